//! The kernel's own NBD driver: block devices of this host behind a server's socket.
//!
//! Owns the words of its netlink family, and the negotiation before a socket is given to it. Always
//! true: a device has one connection. With several the kernel sends a request whose answer takes
//! longer than its timeout once more over another one, while the first may still be carried out
//! behind a newer write; with one and no timeout it sends it again only over a connection that took
//! the place of a dead one, and then the server that had it is gone. Requests wait for that as long
//! as it takes. The name of a device is its backend identifier, so the kernel itself knows whose it
//! is. Deliberately absent: structured replies, which the driver does not know, and who connects
//! again when a server is gone, which is the command's.

use crate::blockdev::Block;
use crate::nbd::{self, Reader, answer, export_flag, info, option};
use crate::sys;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Before the name of a volume in a backend identifier; udev makes it a path below `/dev`.
const BACKEND: &str = "tenuto/";
/// What partition tables and boot loaders expect, where the server asks for no more.
const BLOCK_BYTES: u32 = 512;
/// Ten years: a request waits for a server that comes back, however late. Who cannot wait detaches.
const DEAD_CONNECTION_SECONDS: u64 = 10 * 365 * 86_400;
/// How long the kernel waits before it looks whether the connection of a request was replaced.
const LOOK_MILLIS: u32 = 5_000;
/// How long a server may take for its part of the negotiation.
const NEGOTIATION: Duration = Duration::from_secs(30);
/// Infos about one export, and the longest one that is looked into.
const REPLIES_MAX: u32 = 64;
const REPLY_BYTES_MAX: u32 = 16 << 10;

/// linux/netlink.h and linux/genetlink.h.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const HEAD_BYTES: usize = 16;
const GENERIC_HEAD_BYTES: usize = 4;
const REPLY_MAX: usize = 16 << 10;
/// Messages that come back for one order: its answer and the end of it.
const MESSAGES_MAX: usize = 16;

/// linux/nbd-netlink.h.
const CMD_CONNECT: u8 = 1;
const CMD_DISCONNECT: u8 = 2;
const CMD_RECONFIGURE: u8 = 3;
const ATTR_INDEX: u16 = 1;
const ATTR_SIZE_BYTES: u16 = 2;
const ATTR_BLOCK_SIZE_BYTES: u16 = 3;
const ATTR_TIMEOUT: u16 = 4;
const ATTR_SERVER_FLAGS: u16 = 5;
const ATTR_SOCKETS: u16 = 7;
const ATTR_DEAD_CONN_TIMEOUT: u16 = 8;
const ATTR_BACKEND_IDENTIFIER: u16 = 10;
const SOCK_ITEM: u16 = 1;
const SOCK_FD: u16 = 1;
const NESTED: u16 = 1 << 15;

/// A connection to an export, ready to be given to the kernel.
pub struct Connection {
    pub socket: UnixStream,
    pub size_bytes: u64,
    block_bytes: u32,
    flags: u16,
}

impl Connection {
    /// Attaches to an export.
    pub fn open(socket: &Path, name: &str) -> io::Result<Connection> {
        let mut socket = UnixStream::connect(socket)?;
        socket.set_read_timeout(Some(NEGOTIATION))?;
        socket.set_write_timeout(Some(NEGOTIATION))?;
        let mut greeting = [0; nbd::GREETING.len()];
        socket.read_exact(&mut greeting)?;
        if greeting != nbd::GREETING {
            return Err(wrong("is no NBD server"));
        }
        let flags = nbd::CLIENT_FIXED_NEWSTYLE | nbd::CLIENT_NO_ZEROES;
        socket.write_all(&flags.to_be_bytes())?;
        let mut body = (name.len() as u32).to_be_bytes().to_vec();
        body.extend(name.as_bytes());
        body.extend(1_u16.to_be_bytes());
        body.extend(info::BLOCK_SIZE.to_be_bytes());
        socket.write_all(&nbd::option_request(option::GO, &body))?;
        let Told {
            size_bytes,
            flags,
            block_bytes,
        } = go(&mut socket)?;
        // From here on it is the kernel that reads and writes.
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        Ok(Connection {
            socket,
            size_bytes,
            block_bytes,
            flags,
        })
    }

    pub fn is_read_only(&self) -> bool {
        self.flags & export_flag::READ_ONLY != 0
    }

    /// What the export takes besides reads and writes.
    pub fn offer(&self) -> Offer {
        let has = |flag| self.flags & flag != 0;
        Offer {
            flush: has(export_flag::SEND_FLUSH),
            fua: has(export_flag::SEND_FUA),
            trim: has(export_flag::SEND_TRIM),
            zeroes: has(export_flag::SEND_WRITE_ZEROES),
            block_bytes: self.block_bytes,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub flush: bool,
    pub fua: bool,
    pub trim: bool,
    pub zeroes: bool,
    /// The smallest block of a request.
    pub block_bytes: u32,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// What a server says of an export.
struct Told {
    size_bytes: u64,
    flags: u16,
    block_bytes: u32,
}

/// Reads the answers to GO.
fn go(socket: &mut UnixStream) -> io::Result<Told> {
    let (mut found, mut block_bytes) = (None, BLOCK_BYTES);
    for _ in 0..REPLIES_MAX {
        let mut head = [0; nbd::OPTION_REPLY_HEAD_BYTES];
        socket.read_exact(&mut head)?;
        let mut reader = Reader::new(&head);
        let words = (reader.u64(), reader.u32(), reader.u32(), reader.u32());
        let (Some(magic), Some(of), Some(kind), Some(length)) = words else {
            return Err(wrong("is no NBD server"));
        };
        if magic != nbd::OPTION_REPLY_MAGIC || of != option::GO || length > REPLY_BYTES_MAX {
            return Err(wrong("is no NBD server"));
        }
        let mut body = vec![0; length as usize];
        socket.read_exact(&mut body)?;
        match kind {
            answer::INFO => {
                found = size_and_flags(&body).or(found);
                block_bytes = block_size(&body).unwrap_or(block_bytes);
            }
            answer::ACK => {
                let (size_bytes, flags) = found.ok_or_else(|| wrong("tells no size"))?;
                return Ok(Told {
                    size_bytes,
                    flags,
                    block_bytes,
                });
            }
            _ if answer::is_error(kind) => {
                let text = String::from_utf8_lossy(&body);
                return Err(io::Error::other(match text.is_empty() {
                    true => format!("the export is refused (error {kind:#x})"),
                    false => text.into_owned(),
                }));
            }
            _ => {}
        }
    }
    Err(wrong("answers without an end"))
}

fn size_and_flags(body: &[u8]) -> Option<(u64, u16)> {
    let mut reader = Reader::new(body);
    match reader.u16()? {
        info::EXPORT => Some((reader.u64()?, reader.u16()?)),
        _ => None,
    }
}

/// The smallest block of an export that the kernel has to keep to.
fn block_size(body: &[u8]) -> Option<u32> {
    let mut reader = Reader::new(body);
    match reader.u16()? {
        info::BLOCK_SIZE => Some(reader.u32()?.max(BLOCK_BYTES)),
        _ => None,
    }
}

/// The driver of this kernel.
pub struct Driver {
    socket: File,
    family: u16,
}

impl Driver {
    /// `NotFound` where the kernel has no such driver.
    pub fn open() -> io::Result<Driver> {
        let mut driver = Driver {
            socket: sys::generic_netlink()?,
            family: GENL_ID_CTRL,
        };
        let name = attribute(CTRL_ATTR_FAMILY_NAME, b"nbd\0");
        let replies = driver.ask(CTRL_CMD_GETFAMILY, &name)?;
        let id = replies
            .iter()
            .find_map(|reply| found(reply, CTRL_ATTR_FAMILY_ID));
        let id = id.and_then(|id| Some(u16::from_ne_bytes(id.get(..2)?.try_into().ok()?)));
        driver.family = id.ok_or_else(|| wrong("the kernel's answer names no family"))?;
        Ok(driver)
    }

    /// Makes a device that is in no use the one of a volume; which one the kernel chooses.
    pub fn connect(&mut self, volume: &str, connection: &Connection) -> io::Result<Device> {
        let mut body = described(volume, connection);
        let block_bytes = u64::from(connection.block_bytes);
        body.extend(attribute(ATTR_BLOCK_SIZE_BYTES, &block_bytes.to_ne_bytes()));
        // Without one a request is never taken from a connection that lives.
        body.extend(attribute(ATTR_TIMEOUT, &0_u64.to_ne_bytes()));
        let dead = DEAD_CONNECTION_SECONDS.to_ne_bytes();
        body.extend(attribute(ATTR_DEAD_CONN_TIMEOUT, &dead));
        let replies = self.ask(CMD_CONNECT, &body)?;
        let index = replies.iter().find_map(|reply| found(reply, ATTR_INDEX));
        let index =
            index.and_then(|index| Some(u32::from_ne_bytes(index.get(..4)?.try_into().ok()?)));
        let index = index.ok_or_else(|| wrong("the kernel's answer names no device"))?;
        let device = Device { index };
        // How soon requests of a dead connection are sent again; what it is by default is 30 s.
        let looks = device.system().join("queue/io_timeout");
        let _ = fs::write(looks, LOOK_MILLIS.to_string());
        device.announce();
        Ok(device)
    }

    /// Gives a device a connection in the place of one that is dead.
    pub fn replace(&mut self, device: Device, volume: &str, by: &Connection) -> io::Result<()> {
        let mut body = attribute(ATTR_INDEX, &device.index.to_ne_bytes());
        body.extend(described(volume, by));
        self.ask(CMD_RECONFIGURE, &body).map(drop)
    }

    /// Tells the programs that use a device that its volume has another size.
    pub fn resize(&mut self, device: Device, volume: &str, size_bytes: u64) -> io::Result<()> {
        let mut body = attribute(ATTR_INDEX, &device.index.to_ne_bytes());
        body.extend(attribute(ATTR_SIZE_BYTES, &size_bytes.to_ne_bytes()));
        body.extend(backend(volume));
        self.ask(CMD_RECONFIGURE, &body).map(drop)
    }

    pub fn disconnect(&mut self, device: Device) -> io::Result<()> {
        let body = attribute(ATTR_INDEX, &device.index.to_ne_bytes());
        self.ask(CMD_DISCONNECT, &body)?;
        device.announce();
        Ok(())
    }

    /// Sends an order and collects what comes back until the kernel says how it ended.
    fn ask(&mut self, command: u8, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut message = Vec::new();
        let bytes = HEAD_BYTES + GENERIC_HEAD_BYTES + body.len();
        message.extend((bytes as u32).to_ne_bytes());
        message.extend(self.family.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        message.extend([0; 8]);
        message.extend([command, 1, 0, 0]);
        message.extend(body);
        self.socket.write_all(&message)?;
        let mut replies = Vec::new();
        for _ in 0..MESSAGES_MAX {
            let mut buffer = vec![0; REPLY_MAX];
            let length = self.socket.read(&mut buffer)?;
            let mut rest = &buffer[..length];
            while let Some((kind, payload, next)) = message_of(rest) {
                rest = next;
                if kind != NLMSG_ERROR {
                    let after = payload.get(GENERIC_HEAD_BYTES..).unwrap_or_default();
                    replies.push(after.to_vec());
                    continue;
                }
                let code = payload.get(..4).and_then(|code| code.try_into().ok());
                return match code.map(i32::from_ne_bytes) {
                    Some(0) => Ok(replies),
                    Some(code) => Err(io::Error::from_raw_os_error(-code)),
                    None => Err(wrong("the kernel's answer is cut off")),
                };
            }
        }
        Err(wrong("the kernel's answer has no end"))
    }
}

/// What is said of a volume at every connection.
fn described(volume: &str, connection: &Connection) -> Vec<u8> {
    let descriptor = connection.socket.as_raw_fd() as u32;
    let socket = attribute(SOCK_FD, &descriptor.to_ne_bytes());
    let sockets = attribute(SOCK_ITEM | NESTED, &socket);
    let mut body = attribute(ATTR_SIZE_BYTES, &connection.size_bytes.to_ne_bytes());
    body.extend(attribute(
        ATTR_SERVER_FLAGS,
        &u64::from(connection.flags).to_ne_bytes(),
    ));
    body.extend(attribute(ATTR_SOCKETS | NESTED, &sockets));
    body.extend(backend(volume));
    body
}

/// Whose device it is.
fn backend(volume: &str) -> Vec<u8> {
    let backend = format!("{BACKEND}{volume}\0");
    attribute(ATTR_BACKEND_IDENTIFIER, backend.as_bytes())
}

/// One attribute, with what makes its end even.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The value of an attribute.
fn found(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?) as usize;
        let this = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let value = attributes.get(4..length)?;
        if this & !NESTED == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// The first message: its type, what is in it, and what follows.
fn message_of(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let payload = bytes.get(HEAD_BYTES..length)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, payload, rest))
}

/// A device of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    index: u32,
}

impl Device {
    /// The one of a volume.
    pub fn of(volume: &str) -> Option<Device> {
        let names = fs::read_dir("/sys/block").ok()?.flatten();
        let indices = names.filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("nbd")?.parse().ok()
        });
        let mut devices = indices.map(|index| Device { index });
        devices.find(|device| device.is_of(volume))
    }

    pub fn is_of(self, volume: &str) -> bool {
        let backend = fs::read_to_string(self.system().join("backend"));
        backend.is_ok_and(|text| text.trim_end().strip_prefix(BACKEND) == Some(volume))
    }

    /// As any block device of this host.
    pub fn block(self) -> Block {
        Block::new(format!("nbd{}", self.index))
    }

    fn system(self) -> PathBuf {
        PathBuf::from(format!("/sys/block/nbd{}", self.index))
    }

    /// What was said of it before, the kernel said before it had its name.
    fn announce(self) {
        let _ = fs::write(self.system().join("uevent"), "change");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_each_other_and_never_beyond_the_end() {
        let mut body = attribute(1, &7_u32.to_ne_bytes());
        body.extend(attribute(2 | NESTED, b"abc"));
        body.extend(attribute(3, b""));
        assert_eq!(body.len() % 4, 0);
        assert_eq!(found(&body, 1), Some(&7_u32.to_ne_bytes()[..]));
        assert_eq!(found(&body, 2), Some(&b"abc"[..]));
        assert_eq!(found(&body, 3), Some(&b""[..]));
        assert_eq!(found(&body, 4), None);
        for cut in 0..body.len() {
            // Whatever is there is read, and nothing else.
            let _ = found(&body[..cut], 3);
        }
        assert_eq!(found(&[0; 64], 1), None, "an attribute without a head");
    }

    #[test]
    fn a_message_that_is_longer_than_what_came_is_none() {
        let mut bytes = 20_u32.to_ne_bytes().to_vec();
        bytes.extend(NLMSG_ERROR.to_ne_bytes());
        bytes.resize(20, 0);
        assert_eq!(
            message_of(&bytes),
            Some((NLMSG_ERROR, &[0; 4][..], &[][..]))
        );
        assert_eq!(message_of(&bytes[..19]), None);
        assert_eq!(message_of(&[0; 16]), None);
    }
}
