//! Requests and replies of one connection, after its negotiation.
//!
//! Owns which requests are unanswered and what of a read has arrived. Always true: each request
//! ends once; data lies inside the read it belongs to, no byte of it comes twice, and a read ends
//! well only when all of it has come; cookies are never used twice. After an error nothing more
//! is believed. Deliberately absent: sockets, payload bytes, time; and what happens to requests
//! that a broken connection leaves behind.

use super::Broken;
use crate::nbd::{self, Reader, RequestHead, chunk, command, command_flag};
use std::collections::HashMap;

/// Longest chunk that is no data: an error with its message, or a hole.
const NOTE_BYTES_MAX: u32 = 8 << 10;
/// Separate pieces in which a read may arrive before they join.
const PIECES_MAX: usize = 1024;

/// What a server can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Read {
        offset: u64,
        bytes: u32,
    },
    /// The payload follows the head.
    Write {
        offset: u64,
        bytes: u32,
    },
    Zero {
        offset: u64,
        bytes: u32,
        keep: bool,
    },
    Flush,
}

/// How a request failed at the server: the protocol's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub u32);

impl Errno {
    pub const NO_SPACE: Errno = Errno(28);
}

/// What came of some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, without more of it.
    More,
    /// So many bytes are used up and say nothing by themselves.
    Used(usize),
    /// The input starts with `bytes` of the read, from its byte `at` on.
    Data { cookie: u64, at: u32, bytes: usize },
    /// A part of the read is zeroes.
    Hole {
        used: usize,
        cookie: u64,
        at: u32,
        bytes: u32,
    },
    /// A request has ended.
    Done {
        used: usize,
        cookie: u64,
        result: Result<(), Errno>,
    },
}

#[derive(Clone, Debug)]
struct Pending {
    /// Offset and length of a read.
    read: Option<(u64, u32)>,
    /// What has come of it, in order, apart from each other.
    have: Vec<(u32, u32)>,
    failed: Option<Errno>,
}

/// Data of a read that is still on its way.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    cookie: u64,
    at: u32,
    left: u32,
    last: bool,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Session {
    structured: bool,
    pending: HashMap<u64, Pending>,
    next: u64,
    arriving: Option<Arriving>,
}

/// The fields of a chunk's head.
struct Chunk {
    flags: u16,
    kind: u16,
    cookie: u64,
    length: u32,
}

impl Session {
    pub fn new(structured: bool) -> Session {
        Session {
            structured,
            pending: HashMap::new(),
            next: 1,
            arriving: None,
        }
    }

    pub fn unanswered(&self) -> usize {
        self.pending.len()
    }

    /// Notes a request; its cookie, and the head to send.
    pub fn ask(&mut self, ask: Ask) -> (u64, [u8; nbd::REQUEST_BYTES]) {
        let cookie = self.next;
        self.next += 1;
        let (command, flags, offset, length) = match ask {
            Ask::Read { offset, bytes } => (command::READ, 0, offset, bytes),
            Ask::Write { offset, bytes } => (command::WRITE, 0, offset, bytes),
            Ask::Zero {
                offset,
                bytes,
                keep,
            } => {
                let flags = if keep { command_flag::NO_HOLE } else { 0 };
                (command::WRITE_ZEROES, flags, offset, bytes)
            }
            Ask::Flush => (command::FLUSH, 0, 0, 0),
        };
        let read = matches!(ask, Ask::Read { .. }).then_some((offset, length));
        assert!(read.is_none_or(|(_, bytes)| bytes > 0), "a read has bytes");
        let pending = Pending {
            read,
            have: Vec::new(),
            failed: None,
        };
        self.pending.insert(cookie, pending);
        (cookie, head(command, flags, cookie, offset, length))
    }

    /// The head of an orderly end. No answer follows.
    pub fn goodbye(&self) -> [u8; nbd::REQUEST_BYTES] {
        head(command::DISC, 0, self.next, 0, 0)
    }

    /// Looks at the input from its start.
    pub fn step(&mut self, input: &[u8]) -> Result<Step, Broken> {
        if let Some(arriving) = self.arriving {
            return Ok(self.arrive(arriving, input.len()));
        }
        let Some(magic) = Reader::new(input).u32() else {
            return Ok(Step::More);
        };
        match magic {
            nbd::SIMPLE_REPLY_MAGIC => self.simple(input),
            nbd::STRUCTURED_REPLY_MAGIC if self.structured => self.chunk(input),
            _ => Err(Broken::new("the server sends bytes that are no reply")),
        }
    }

    fn arrive(&mut self, arriving: Arriving, there: usize) -> Step {
        let Arriving {
            cookie,
            at,
            left,
            last,
        } = arriving;
        if left == 0 {
            self.arriving = None;
            return match last {
                true => self.finish(cookie, 0),
                false => Step::Used(0),
            };
        }
        if there == 0 {
            return Step::More;
        }
        let bytes = there.min(left as usize);
        self.arriving = Some(Arriving {
            at: at + bytes as u32,
            left: left - bytes as u32,
            ..arriving
        });
        Step::Data { cookie, at, bytes }
    }

    fn simple(&mut self, input: &[u8]) -> Result<Step, Broken> {
        let mut reader = Reader::new(input);
        let mut fields = || {
            reader.u32()?;
            Some((reader.u32()?, reader.u64()?))
        };
        let Some((error, cookie)) = fields() else {
            return Ok(Step::More);
        };
        let used = nbd::SIMPLE_REPLY_BYTES;
        let structured = self.structured;
        let pending = self.known(cookie)?;
        if error != 0 {
            pending.failed = Some(Errno(error));
            return Ok(self.finish(cookie, used));
        }
        let Some((_, bytes)) = pending.read else {
            return Ok(self.finish(cookie, used));
        };
        if structured {
            return Err(Broken::new("the server answers a read in a way it gave up"));
        }
        pending.cover(0, bytes)?;
        self.arriving = Some(Arriving {
            cookie,
            at: 0,
            left: bytes,
            last: true,
        });
        Ok(Step::Used(used))
    }

    fn known(&mut self, cookie: u64) -> Result<&mut Pending, Broken> {
        let found = self.pending.get_mut(&cookie);
        found.ok_or_else(|| Broken::new("the server answers a request that it was not sent"))
    }

    fn chunk(&mut self, input: &[u8]) -> Result<Step, Broken> {
        let mut reader = Reader::new(input);
        let mut fields = || {
            reader.u32()?;
            Some(Chunk {
                flags: reader.u16()?,
                kind: reader.u16()?,
                cookie: reader.u64()?,
                length: reader.u32()?,
            })
        };
        let Some(chunk) = fields() else {
            return Ok(Step::More);
        };
        let rest = reader.rest();
        self.known(chunk.cookie)?;
        if chunk.kind == chunk::OFFSET_DATA {
            return self.data_chunk(&chunk, rest);
        }
        if chunk.length > NOTE_BYTES_MAX {
            let bytes = chunk.length;
            return Err(Broken::new(format!("a reply of {bytes} bytes is too long")));
        }
        let Some(body) = rest.get(..chunk.length as usize) else {
            return Ok(Step::More);
        };
        let used = nbd::CHUNK_HEAD_BYTES + body.len();
        let last = chunk.flags & chunk::DONE != 0;
        match chunk.kind {
            chunk::NONE if last && body.is_empty() => Ok(self.finish(chunk.cookie, used)),
            chunk::OFFSET_HOLE => self.hole_chunk(&chunk, body, used),
            kind if kind >= chunk::ERRORS_FROM => {
                let error = Reader::new(body).u32().filter(|error| *error != 0);
                let error = error.ok_or_else(|| Broken::new("an error without its number"))?;
                self.known(chunk.cookie)?.failed = Some(Errno(error));
                Ok(match last {
                    true => self.finish(chunk.cookie, used),
                    false => Step::Used(used),
                })
            }
            _ => Err(Broken::new("the server sends a chunk of no known kind")),
        }
    }

    fn data_chunk(&mut self, chunk: &Chunk, rest: &[u8]) -> Result<Step, Broken> {
        if chunk.length <= 8 {
            return Err(Broken::new("the server sends data without bytes"));
        }
        let Some(offset) = Reader::new(rest).u64() else {
            return Ok(Step::More);
        };
        let left = chunk.length - 8;
        let at = self.known(chunk.cookie)?.place(offset, left)?;
        self.arriving = Some(Arriving {
            cookie: chunk.cookie,
            at,
            left,
            last: chunk.flags & chunk::DONE != 0,
        });
        Ok(Step::Used(nbd::CHUNK_HEAD_BYTES + 8))
    }

    fn hole_chunk(&mut self, chunk: &Chunk, body: &[u8], used: usize) -> Result<Step, Broken> {
        let mut reader = Reader::new(body);
        let mut fields = || Some((reader.u64()?, reader.u32()?));
        let hole = fields().filter(|(_, bytes)| *bytes > 0);
        let Some((offset, bytes)) = hole.filter(|_| reader.is_empty()) else {
            return Err(Broken::new("the server sends a hole that is none"));
        };
        let cookie = chunk.cookie;
        let at = self.known(cookie)?.place(offset, bytes)?;
        if chunk.flags & chunk::DONE != 0 {
            // Ends at the next step, which needs no more input.
            self.arriving = Some(Arriving {
                cookie,
                at,
                left: 0,
                last: true,
            });
        }
        Ok(Step::Hole {
            used,
            cookie,
            at,
            bytes,
        })
    }

    fn finish(&mut self, cookie: u64, used: usize) -> Step {
        let pending = self.pending.remove(&cookie);
        let pending = pending.expect("looked up by the caller");
        let result = match (pending.failed, pending.read) {
            (Some(error), _) => Err(error),
            // A part that never came must not be taken for data.
            (None, Some((_, bytes))) if pending.have != [(0, bytes)] => Err(Errno(5)),
            (None, _) => Ok(()),
        };
        Step::Done {
            used,
            cookie,
            result,
        }
    }
}

impl Pending {
    /// Where in the read this range of the export lies.
    fn place(&mut self, offset: u64, bytes: u32) -> Result<u32, Broken> {
        let outside = || Broken::new("the server sends data that was not asked for");
        let (start, length) = self.read.ok_or_else(outside)?;
        let at = offset.checked_sub(start).ok_or_else(outside)?;
        if at >= u64::from(length) || u64::from(bytes) > u64::from(length) - at {
            return Err(outside());
        }
        let at = at as u32;
        self.cover(at, bytes)?;
        Ok(at)
    }

    fn cover(&mut self, at: u32, bytes: u32) -> Result<(), Broken> {
        let end = at + bytes;
        let next = self.have.partition_point(|(from, _)| *from < at);
        let before = next.checked_sub(1);
        let overlaps = before.is_some_and(|before| self.have[before].1 > at)
            || self.have.get(next).is_some_and(|(from, _)| *from < end);
        if overlaps {
            return Err(Broken::new("the server sends the same data twice"));
        }
        let joins = before.filter(|&before| self.have[before].1 == at);
        let meets = self.have.get(next).is_some_and(|(from, _)| *from == end);
        match (joins, meets) {
            (Some(before), true) => {
                self.have[before].1 = self.have[next].1;
                self.have.remove(next);
            }
            (Some(before), false) => self.have[before].1 = end,
            (None, true) => self.have[next].0 = at,
            (None, false) => self.have.insert(next, (at, end)),
        }
        match self.have.len() <= PIECES_MAX {
            true => Ok(()),
            false => Err(Broken::new("the server sends a read in too many pieces")),
        }
    }
}

fn head(
    command: u16,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u32,
) -> [u8; nbd::REQUEST_BYTES] {
    let magic = nbd::REQUEST_MAGIC;
    let head = RequestHead {
        magic,
        flags,
        command,
        cookie,
        offset,
        length,
    };
    head.encode()
}
