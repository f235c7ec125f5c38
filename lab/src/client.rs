//! A small NBD client, the disk driver of the guests that are not there.
//!
//! Owns one connection with one request in flight. Always true: it speaks through a real socket
//! and knows nothing of the server's code. Deliberately absent: everything of the protocol that
//! a demonstration does not need.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Far beyond what a busy machine needs; without it a lost answer would hang the demonstration.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Bounds what an option reply may make us allocate.
const OPTION_REPLY_BYTES_MAX: u32 = 65_536;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;

pub struct Client {
    stream: UnixStream,
    cookie: u64,
    frame: Vec<u8>,
}

impl Client {
    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        Ok(Client {
            stream: open(socket, export)?,
            cookie: 0,
            frame: Vec::new(),
        })
    }

    pub fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.request(READ, offset, bytes.len() as u32, &[])?;
        self.stream.read_exact(bytes)
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.request(WRITE, offset, bytes.len() as u32, bytes)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.request(FLUSH, 0, 0, &[])
    }

    fn send(&mut self, command: u16, offset: u64, length: u32, payload: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        self.frame.clear();
        self.frame.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        self.frame.extend_from_slice(&0u16.to_be_bytes());
        self.frame.extend_from_slice(&command.to_be_bytes());
        self.frame.extend_from_slice(&self.cookie.to_be_bytes());
        self.frame.extend_from_slice(&offset.to_be_bytes());
        self.frame.extend_from_slice(&length.to_be_bytes());
        self.frame.extend_from_slice(payload);
        self.stream.write_all(&self.frame)
    }

    fn request(
        &mut self,
        command: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> io::Result<()> {
        self.send(command, offset, length, payload)?;
        let head: [u8; 16] = take(&mut self.stream)?;
        let fits = be32(&head) == 0x6744_6698 && head[8..] == self.cookie.to_be_bytes();
        if !fits {
            return Err(io::Error::other("the answer belongs to no request"));
        }
        match be32(&head[4..]) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }
}

/// Opens an export by fixed newstyle negotiation (NBD protocol, `NBD_OPT_GO`).
pub fn open(socket: &Path, export: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let greeting: [u8; 18] = take(&mut stream)?;
    if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
        return Err(io::Error::other("the server does not speak NBD"));
    }
    // Fixed newstyle, no padding.
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend_from_slice(b"IHAVEOPT");
    hello.extend_from_slice(&7u32.to_be_bytes());
    hello.extend_from_slice(&(export.len() as u32 + 6).to_be_bytes());
    hello.extend_from_slice(&(export.len() as u32).to_be_bytes());
    hello.extend_from_slice(export.as_bytes());
    hello.extend_from_slice(&[0; 2]);
    stream.write_all(&hello)?;
    loop {
        let head: [u8; 20] = take(&mut stream)?;
        let kind = be32(&head[12..]);
        let length = be32(&head[16..]);
        if length > OPTION_REPLY_BYTES_MAX {
            return Err(io::Error::other("the server's option reply is too long"));
        }
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        match kind {
            1 => break,
            3 => {}
            _ => {
                let text = String::from_utf8_lossy(&payload);
                return Err(io::Error::other(format!("export {export}: {text}")));
            }
        }
    }
    Ok(stream)
}

impl Drop for Client {
    fn drop(&mut self) {
        // A goodbye that is not heard changes nothing.
        let _ = self.send(DISCONNECT, 0, 0, &[]);
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}
