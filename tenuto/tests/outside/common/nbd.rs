//! A small blocking NBD client for tests.
//!
//! Owns one connection: fixed newstyle handshake with `GO`, simple replies, as many requests in
//! flight as the caller likes. Always true: every error is a panic with the name of the step, as
//! a test wants it, except where the server's answer itself is the subject. Deliberately shares
//! no line with the product's own protocol code, so that one mistake cannot hide the other.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::{PATIENCE, wait_until};

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_CACHE: u16 = 5;
pub const CMD_WRITE_ZEROES: u16 = 6;

pub const FLAG_FUA: u16 = 1;
pub const FLAG_NO_HOLE: u16 = 2;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;

pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const OPT_SET_META_CONTEXT: u32 = 10;
const CMD_BLOCK_STATUS: u16 = 7;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;
const CHUNK_BLOCK_STATUS: u16 = 5;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;

/// No answer within this time is a failure of the server. Generous, because two cores may be
/// shared with an emulated guest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The answer to one request.
#[derive(Debug)]
pub struct Answer {
    pub cookie: u64,
    pub error: u32,
}

pub struct Client {
    pub stream: UnixStream,
    pub size: u64,
    pub flags: u16,
    next_cookie: u64,
}

/// The 28 bytes in front of every request.
pub fn request_header(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    bytes.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// One option of the handshake with its payload.
pub fn option(kind: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_vec();
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The payload of `GO` and `INFO` for an export, without further information requests.
pub fn go_payload(export: &str) -> Vec<u8> {
    let mut bytes = (export.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(export.as_bytes());
    bytes.extend_from_slice(&0u16.to_be_bytes());
    bytes
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Waits until a server answers for its default export. It has opened its image by then: some make
/// their socket, and listen, before they have.
pub fn wait_for_server(socket: &Path) {
    wait_until("the server answers", PATIENCE, || {
        Client::connect(socket, "").is_ok()
    });
}

/// Connects and exchanges greetings, no option yet: where hostile clients begin.
pub fn greet(socket: &Path) -> io::Result<UnixStream> {
    greet_on(UnixStream::connect(socket)?)
}

fn greet_on(mut stream: UnixStream) -> io::Result<UnixStream> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let greeting: [u8; 18] = take(&mut stream)?;
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    assert_eq!(&greeting[8..16], OPTION_MAGIC);
    let offered = u16::from_be_bytes([greeting[16], greeting[17]]);
    assert_eq!(offered & 1, 1, "the server must offer fixed newstyle");
    // Fixed newstyle, and no 124 zeroes where the server can do without.
    stream.write_all(&u32::from(offered & 3).to_be_bytes())?;
    Ok(stream)
}

impl Client {
    /// Opens an export; the empty name is the default export.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        Client::open(greet(socket)?, export)
    }

    /// The same over TCP: what is done with a stream is the same for both kinds.
    pub fn connect_tcp(address: SocketAddr, export: &str) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Client::open(greet_on(OwnedFd::from(stream).into())?, export)
    }

    fn open(mut stream: UnixStream, export: &str) -> io::Result<Client> {
        stream.write_all(&option(OPT_GO, &go_payload(export)))?;
        let (mut size, mut flags) = (0, 0);
        loop {
            let head: [u8; 20] = take(&mut stream)?;
            let magic = u64::from_be_bytes(head[..8].try_into().unwrap());
            assert_eq!(magic, OPTION_REPLY_MAGIC, "magic of an option reply");
            let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
            let length = u32::from_be_bytes(head[16..20].try_into().unwrap());
            assert!(length <= 65_536, "option reply of {length} bytes");
            let mut payload = vec![0; length as usize];
            stream.read_exact(&mut payload)?;
            match kind {
                REP_ACK => break,
                REP_INFO if payload[..2] == INFO_EXPORT.to_be_bytes() => {
                    size = u64::from_be_bytes(payload[2..10].try_into().unwrap());
                    flags = u16::from_be_bytes(payload[10..12].try_into().unwrap());
                }
                REP_INFO => {}
                other => {
                    let text = String::from_utf8_lossy(&payload);
                    return Err(io::Error::other(format!("option error {other:#x}: {text}")));
                }
            }
        }
        Ok(Client {
            stream,
            size,
            flags,
            next_cookie: 1,
        })
    }

    /// The cookie that the next request will carry.
    pub fn next_cookie(&self) -> u64 {
        self.next_cookie
    }

    /// Sends a request without waiting; the cookie names its answer.
    pub fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut bytes = request_header(command, flags, cookie, offset, length);
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes)?;
        Ok(cookie)
    }

    /// Waits for the next answer, whichever request it belongs to. Payload of reads follows and
    /// is taken by [`Client::payload`].
    pub fn answer(&mut self) -> io::Result<Answer> {
        let head: [u8; 16] = take(&mut self.stream)?;
        let magic = u32::from_be_bytes(head[..4].try_into().unwrap());
        assert_eq!(magic, REPLY_MAGIC, "magic of a simple reply");
        Ok(Answer {
            error: u32::from_be_bytes(head[4..8].try_into().unwrap()),
            cookie: u64::from_be_bytes(head[8..16].try_into().unwrap()),
        })
    }

    /// The payload behind a good answer to a read.
    pub fn payload(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes)
    }

    fn alone(&mut self, command: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> u32 {
        let cookie = self
            .send(command, flags, offset, length, payload)
            .expect("send a request");
        let answer = self.answer().expect("an answer");
        assert_eq!(
            answer.cookie, cookie,
            "the only request in flight is answered"
        );
        answer.error
    }

    /// Reads, or says which NBD error came back.
    pub fn try_read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), u32> {
        match self.alone(CMD_READ, 0, offset, bytes.len() as u32, &[]) {
            0 => {
                self.payload(bytes).expect("payload of a read");
                Ok(())
            }
            error => Err(error),
        }
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.try_read(offset, &mut bytes)
            .unwrap_or_else(|error| panic!("read of {length} at {offset}: NBD error {error}"));
        bytes
    }

    /// Any command that carries no answer payload; the NBD error, 0 for success.
    pub fn command(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        self.alone(command, flags, offset, length, &[])
    }

    pub fn try_write(&mut self, offset: u64, bytes: &[u8], flags: u16) -> u32 {
        self.alone(CMD_WRITE, flags, offset, bytes.len() as u32, bytes)
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert_eq!(self.try_write(offset, bytes, 0), 0, "write at {offset}");
    }

    pub fn flush(&mut self) {
        assert_eq!(self.command(CMD_FLUSH, 0, 0, 0), 0, "flush");
    }

    /// Ends the session in order; the daemon counts this client no more when this returns.
    pub fn disconnect(mut self) {
        let _ = self.send(CMD_DISC, 0, 0, 0, &[]);
        // What is left to read are answers that this client does not wait for.
        let _ = io::copy(&mut self.stream, &mut io::sink());
    }
}

/// A connection that asks for nothing but `base:allocation`.
pub struct Mapper {
    stream: UnixStream,
    cookie: u64,
}

/// Bytes and flags of one extent; flag 1 is a hole, flag 2 reads as zeroes.
pub type Allocation = Vec<(u64, u32)>;

pub const STATE_ZERO: u32 = 2;

impl Mapper {
    pub fn connect(socket: &Path, export: &str) -> Mapper {
        let mut stream = greet(socket).expect("connect");
        let name = [&(export.len() as u32).to_be_bytes(), export.as_bytes()].concat();
        let context = b"base:allocation";
        let length = (context.len() as u32).to_be_bytes();
        let query = [&name[..], &1u32.to_be_bytes(), &length, context].concat();
        let options = [
            option(OPT_STRUCTURED_REPLY, &[]),
            option(OPT_SET_META_CONTEXT, &query),
            option(OPT_GO, &go_payload(export)),
        ];
        for option in options {
            stream.write_all(&option).expect("send an option");
            loop {
                let head: [u8; 20] = take(&mut stream).expect("an option reply");
                let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
                let length = u32::from_be_bytes(head[16..20].try_into().unwrap());
                assert!(kind < 1 << 31, "option error {kind:#x}");
                let mut payload = vec![0; length as usize];
                stream.read_exact(&mut payload).expect("an option reply");
                if kind == REP_ACK {
                    break;
                }
            }
        }
        Mapper { stream, cookie: 0 }
    }

    /// One question and its answer, which may cover less than was asked for.
    pub fn ask(&mut self, offset: u64, length: u32) -> Allocation {
        self.cookie += 1;
        let request = request_header(CMD_BLOCK_STATUS, 0, self.cookie, offset, length);
        self.stream.write_all(&request).expect("send a request");
        let head: [u8; 20] = take(&mut self.stream).expect("a reply");
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), STRUCTURED_MAGIC);
        let kind = u16::from_be_bytes([head[6], head[7]]);
        assert_eq!(kind, CHUNK_BLOCK_STATUS, "an answer with extents");
        let mut payload = vec![0; word(16) as usize];
        self.stream.read_exact(&mut payload).expect("extents");
        let extents = payload[4..].chunks_exact(8).map(|extent| {
            let word = |at: usize| u32::from_be_bytes(extent[at..at + 4].try_into().unwrap());
            (u64::from(word(0)), word(4))
        });
        extents.collect()
    }

    /// The whole of a range, by as many questions as it takes.
    pub fn map(&mut self, length: u64) -> Allocation {
        let (mut map, mut at) = (Allocation::new(), 0);
        while at < length {
            let part = self.ask(at, (length - at).min(1 << 30) as u32);
            let got: u64 = part.iter().map(|(bytes, _)| bytes).sum();
            assert!(got > 0 && at + got <= length, "a map makes progress");
            map.extend(part);
            at += got;
        }
        map
    }
}
