//! Requests of a replay over NBD.
//!
//! Always true: this thread sends, another takes the answers; what was read is not looked at.

use super::{Reader, Request, Shared, Wire};
use crate::client;
use host::nbd::{self, RequestHead, command};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use workload::trace::{Op, SECTOR_BYTES};

const IN_FLIGHT_MAX: usize = 1024;
const SECTORS_MAX: u64 = nbd::PAYLOAD_BYTES_MAX as u64 / SECTOR_BYTES;
const INPUT_BYTES: usize = 256 << 10;
/// Read back in pieces of this size at most.
const VERIFY_SECTORS: u64 = 512;

pub struct Nbd {
    stream: UnixStream,
    answers: JoinHandle<()>,
    frame: Vec<u8>,
}

impl Nbd {
    pub fn connect(socket: &Path, export: &str, shared: &Arc<Shared>) -> io::Result<Nbd> {
        let stream = client::open(socket, export)?;
        let (input, shared) = (stream.try_clone()?, shared.clone());
        // A slow volume is no reason to give up while others are answered.
        input.set_read_timeout(None)?;
        let answers = std::thread::Builder::new()
            .name("replay-answers".into())
            .spawn(move || shared.end(take_answers(input, &shared)))?;
        Ok(Nbd {
            stream,
            answers,
            frame: Vec::new(),
        })
    }
}

impl Wire for Nbd {
    fn sectors_max(&self, _: Op) -> u64 {
        SECTORS_MAX
    }

    fn in_flight_max(&self) -> usize {
        IN_FLIGHT_MAX
    }

    fn send(&mut self, cookie: u64, request: &Request, payload: &[u8]) -> io::Result<()> {
        let command = match request.op {
            Op::Read => command::READ,
            Op::Write => command::WRITE,
            Op::Flush => command::FLUSH,
            Op::Discard => command::TRIM,
        };
        let (offset, length) = match request.op {
            Op::Flush => (0, 0),
            _ => (
                request.sector * SECTOR_BYTES,
                request.sectors * SECTOR_BYTES,
            ),
        };
        let head = RequestHead {
            magic: nbd::REQUEST_MAGIC,
            flags: 0,
            command,
            cookie,
            offset,
            length: length as u32,
        };
        self.frame.clear();
        self.frame.extend_from_slice(&head.encode());
        self.frame.extend_from_slice(payload);
        self.stream.write_all(&self.frame)
    }

    fn close(mut self: Box<Self>) -> io::Result<()> {
        self.stream.write_all(&RequestHead::GOODBYE.encode())?;
        self.answers.join().expect("a panic ends the process");
        Ok(())
    }
}

fn take_answers(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let mut input = io::BufReader::with_capacity(INPUT_BYTES, stream);
    let mut head = [0; 16];
    loop {
        match input.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != nbd::SIMPLE_REPLY_MAGIC {
            return Err(io::Error::other("the answer is no simple reply"));
        }
        let cookie = u64::from(word(8)) << 32 | u64::from(word(12));
        let request = shared.request(cookie)?;
        let failed = word(4) != 0;
        if request.op == Op::Read && !failed {
            let bytes = request.sectors * SECTOR_BYTES;
            io::copy(&mut input.by_ref().take(bytes), &mut io::sink())?;
        }
        shared.land(cookie, failed);
    }
}

pub fn reader(socket: &Path, export: &str) -> io::Result<impl Reader + use<>> {
    client::Client::connect(socket, export)
}

impl Reader for client::Client {
    fn sectors_max(&self) -> u64 {
        VERIFY_SECTORS
    }

    fn read(&mut self, sector: u64, bytes: &mut [u8]) -> io::Result<()> {
        client::Client::read(self, sector * SECTOR_BYTES, bytes)
    }
}
