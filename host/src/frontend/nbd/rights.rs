//! What a client may ask of its export.
//!
//! Owns the judgement of one request. Always true: what is accepted lies inside the export, is
//! offered by it and carries only flags that belong to it; what is not gets the error that the
//! protocol names for the case. Deliberately absent: the stream the request came from.

use super::proto::{self, RequestHead, command, command_flag};
use super::reply::Error;
use super::{Command, Context, Export};

/// What this client may do with its export.
#[derive(Debug)]
pub struct Rights {
    size_bytes: u64,
    block_bytes: u32,
    read_only: bool,
    trim: bool,
    write_zeroes: bool,
    fast_zero: bool,
    pub structured: bool,
    pub contexts: Vec<Context>,
    pub revoked: bool,
}

/// How a request is answered when it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `sent` bytes have been answered by chunks.
    Read {
        unfragmented: bool,
        sent: u32,
    },
    Status {
        one: bool,
    },
    /// Anything whose success is told without data.
    Plain,
}

/// An error and the text that goes with it where the client understands one.
pub type Refused = (Error, &'static str);

const PAYLOAD_TOO_LARGE: &str = "a request moves at most 32 MiB";

impl Rights {
    pub fn new(export: &Export, structured: bool, contexts: Vec<Context>) -> Rights {
        assert!(
            structured || contexts.is_empty(),
            "metadata contexts need structured replies"
        );
        Rights {
            size_bytes: export.size_bytes,
            block_bytes: export.block_bytes,
            read_only: export.read_only,
            trim: export.trim,
            write_zeroes: export.write_zeroes,
            fast_zero: export.fast_zero,
            structured,
            contexts,
            revoked: false,
        }
    }

    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    pub fn grow(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.max(size_bytes);
    }

    /// What the request is, or why it is refused.
    pub fn judge(&self, head: &RequestHead) -> Result<(Command, Kind), Refused> {
        if self.revoked {
            return Err((Error::Shutdown, "the export was removed"));
        }
        self.judge_flags(head)?;
        if head.command == command::FLUSH {
            // Offset and length are reserved. Some clients leave something there, and a flush
            // that fails costs a guest its file system.
            return Ok((Command::Flush, Kind::Plain));
        }
        self.judge_offer(head)?;
        self.judge_range(head)?;
        Ok(accepted(head))
    }

    fn judge_flags(&self, head: &RequestHead) -> Result<(), Refused> {
        // The bit for durability is allowed everywhere, because clients set it everywhere.
        let allowed = command_flag::FUA
            | match head.command {
                command::READ if self.structured => command_flag::DF,
                command::READ | command::WRITE | command::FLUSH => 0,
                command::TRIM | command::CACHE => 0,
                command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
                command::BLOCK_STATUS => command_flag::REQ_ONE,
                _ => return Err((Error::Invalid, "this command is not known here")),
            };
        if head.flags & !allowed != 0 {
            return Err((Error::Invalid, "a flag does not belong to this command"));
        }
        Ok(())
    }

    /// Whether the export takes such commands at all.
    fn judge_offer(&self, head: &RequestHead) -> Result<(), Refused> {
        let writes = matches!(
            head.command,
            command::WRITE | command::TRIM | command::WRITE_ZEROES
        );
        if writes && self.read_only {
            return Err((Error::NotPermitted, "the export is read-only"));
        }
        match head.command {
            command::TRIM if !self.trim => Err((Error::Invalid, "the export does not trim")),
            command::WRITE_ZEROES if !self.write_zeroes => {
                Err((Error::Invalid, "the export does not write zeroes by itself"))
            }
            command::WRITE_ZEROES
                if head.flags & command_flag::FAST_ZERO != 0 && !self.fast_zero =>
            {
                Err((
                    Error::NotSupported,
                    "zeroing is no faster than writing here",
                ))
            }
            command::BLOCK_STATUS if self.contexts.is_empty() => Err((
                Error::Invalid,
                "no metadata context was selected for this export",
            )),
            _ => Ok(()),
        }
    }

    fn judge_range(&self, head: &RequestHead) -> Result<(), Refused> {
        if head.length == 0 {
            return Err((Error::Invalid, "the length is zero"));
        }
        if head.length > proto::PAYLOAD_BYTES_MAX {
            match head.command {
                command::WRITE => return Err((Error::Invalid, PAYLOAD_TOO_LARGE)),
                // Who has not agreed on structured replies does not know the better error.
                command::READ if !self.structured => {
                    return Err((Error::Invalid, PAYLOAD_TOO_LARGE));
                }
                command::READ => return Err((Error::Overflow, PAYLOAD_TOO_LARGE)),
                _ => {}
            }
        }
        let block_bytes = u64::from(self.block_bytes);
        let whole = |bytes: u64| bytes.is_multiple_of(block_bytes);
        if !whole(head.offset) || !whole(head.length.into()) {
            return Err((Error::Invalid, "the range is not of whole blocks"));
        }
        let end = head.offset.checked_add(u64::from(head.length));
        if end.is_some_and(|end| end <= self.size_bytes) {
            return Ok(());
        }
        let error = match head.command {
            command::WRITE | command::WRITE_ZEROES => Error::NoSpace,
            _ => Error::Invalid,
        };
        Err((error, "the range ends beyond the export"))
    }
}

/// The command of a request that was judged to be in order.
fn accepted(head: &RequestHead) -> (Command, Kind) {
    let RequestHead { offset, length, .. } = *head;
    let flag = |flag| head.flags & flag != 0;
    let fua = flag(command_flag::FUA);
    match head.command {
        command::READ => {
            let unfragmented = flag(command_flag::DF);
            (
                Command::Read { offset, length },
                Kind::Read {
                    unfragmented,
                    sent: 0,
                },
            )
        }
        command::WRITE => (
            Command::Write {
                offset,
                length,
                fua,
            },
            Kind::Plain,
        ),
        command::TRIM => (
            Command::Trim {
                offset,
                length,
                fua,
            },
            Kind::Plain,
        ),
        command::CACHE => (Command::Cache { offset, length }, Kind::Plain),
        command::WRITE_ZEROES => {
            let allocate = flag(command_flag::NO_HOLE);
            let fast = flag(command_flag::FAST_ZERO);
            (
                Command::WriteZeroes {
                    offset,
                    length,
                    fua,
                    allocate,
                    fast,
                },
                Kind::Plain,
            )
        }
        command::BLOCK_STATUS => {
            let one = flag(command_flag::REQ_ONE);
            (
                Command::BlockStatus { offset, length },
                Kind::Status { one },
            )
        }
        other => unreachable!("command {other} was judged unknown"),
    }
}
