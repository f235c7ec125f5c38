//! The NBD server of one connection, as a pure state machine.
//!
//! Owns the conversation: what the client may say next, what it is answered, and which of its
//! requests are still unanswered. Always true: every byte that comes in moves the session forward
//! or is left to the caller, no length from the wire is believed before it is compared with a
//! named bound, and each request is answered exactly once. Deliberately absent: sockets, time
//! limits, payload bytes (the caller moves them between its socket and its own buffers), and the
//! bytes of TLS: a session is driven up to the handshake, and another one goes on behind it.
//!
//! ```text
//!  ClientFlags -> Haggling -> Transmission -> Closed
//!                    |  ^          |
//!                    v  |          +-> request: the caller answers by its ticket
//!                 one option       +-> write: the caller takes the payload, then goes on
//!                    |
//!                    +-> STARTTLS: this session is over, the next one begins in Haggling
//! ```
//!
//! How a caller drives it:
//!
//! 1. send [`GREETING`];
//! 2. feed [`Session::receive`] until the input is used up and it returns no step; do what each
//!    step says, in order. Not feeding is the way to slow a client down: hold the input back
//!    while too many reply bytes wait to be sent;
//! 3. after a [`Command::Write`] read [`Session::payload_left`] bytes from the connection into a
//!    buffer of its own (some of them may be at the head of the rest of the input) and report
//!    them by [`Session::payload_taken`]; only then call `receive` again;
//! 4. answer requests in any order by `reply`, `read_reply`, `read_chunk` and `status_reply`, and
//!    send what these return without anything in between it and the payload that belongs to it.
//!
//! The protocol is the one of the NBD project's `doc/proto.md`, baseline and beyond: fixed
//! newstyle, structured replies, `base:allocation`, and QEMU's `qemu:dirty-bitmap:NAME` of an
//! export that has bitmaps.

mod handshake;
mod reply;
mod rights;
#[cfg(test)]
mod tests;
mod transmission;

pub use proto::{BLOCK_MINIMUM_BYTES, BLOCK_PREFERRED_BYTES, GREETING, PAYLOAD_BYTES_MAX};
pub use reply::{Chunk, Error, Extent, ExtentState, Frame};

use crate::nbd as proto;
use handshake::Handshake;
use proto::export_flag;
use transmission::Transmission;

/// What a session has to know about the socket it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The socket of one volume: only this export is shown, and the empty name stands for it.
    /// `None` = all exports, and no default one.
    pub only: Option<String>,
    /// Requests of one connection that may be unanswered at a time; the session takes no more.
    pub requests_max: u16,
    pub tls: Tls,
}

/// What TLS is to a connection, from its first byte to its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// This server has none here.
    #[default]
    Absent,
    /// Nothing but STARTTLS is answered before it.
    Required,
    /// The bytes come through it. The client has said its flags before, and nothing else of what
    /// it said there counts.
    Done { no_zeroes: bool },
}

/// What a client may attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    pub size_bytes: u64,
    pub read_only: bool,
    /// Several connections see one cache, and a flush on one covers all of them.
    pub multi_conn: bool,
    pub trim: bool,
    pub write_zeroes: bool,
    /// Zeroing is quicker than writing zeroes; if not, requests that insist on it are refused.
    pub fast_zero: bool,
    /// Requests begin and end at its multiples; 1, or a power of two.
    pub block_bytes: u32,
    /// Names of bitmaps that say what has changed since some moment.
    pub bitmaps: Vec<String>,
}

/// What is asked for by a block status request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    Allocation,
    /// A bitmap of the export, by its place there.
    Bitmap(usize),
}

impl Context {
    const fn id(self) -> u32 {
        match self {
            Context::Allocation => proto::ALLOCATION_CONTEXT_ID,
            Context::Bitmap(at) => proto::BITMAP_CONTEXT_ID + at as u32,
        }
    }
}

/// Behind the name of a volume: the export of its image while that rests.
pub const BACKUP_SUFFIX: &str = "@backup";

/// The exports there are at this moment. They come and go while sessions run.
pub trait Exports {
    fn find(&self, name: &str) -> Option<Export>;
    /// All of them, in the order in which a client lists them.
    fn list(&self) -> Vec<Export>;
    /// Whether there would be an export of this name if its volume were not held.
    fn is_held(&self, _name: &str) -> bool {
        false
    }
    /// Whether its volume is served on another host: who asks for it waits.
    fn is_away(&self, _name: &str) -> bool {
        false
    }
}

/// A fixed list; enough where volumes do not change, and for tests.
impl Exports for Vec<Export> {
    fn find(&self, name: &str) -> Option<Export> {
        self.iter().find(|export| export.name == name).cloned()
    }

    fn list(&self) -> Vec<Export> {
        self.clone()
    }
}

/// What the caller must do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Send(Vec<u8>),
    /// The client has chosen its export: attach it, then send `reply`; requests follow.
    Attach {
        export: Export,
        reply: Vec<u8>,
    },
    Request(Request),
    /// Send `reply`, then let TLS begin, and give what comes out of it to a session with `then`.
    /// If there is input left, feed it first: it is refused, and the reply must not be sent.
    StartTls {
        reply: Vec<u8>,
        then: Tls,
    },
    /// The export comes later: feed the session again then, also with nothing.
    Await {
        name: String,
    },
    /// Send `farewell`, and close. After [`Closing::Disconnect`] answer what is in flight first.
    Close {
        reason: Closing,
        farewell: Vec<u8>,
    },
}

impl Step {
    /// A close without a word.
    fn close(reason: Closing) -> Step {
        Step::Close {
            reason,
            farewell: Vec::new(),
        }
    }
}

/// Something the client wants done. Offset and length lie inside the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub ticket: Ticket,
    pub command: Command,
}

/// Names a request that is not answered yet: below `requests_max`, and used again afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u16);

/// Offsets and lengths in bytes. No length is zero; those of reads and writes are at most
/// [`PAYLOAD_BYTES_MAX`], the others may be anything the export has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Read {
        offset: u64,
        length: u32,
    },
    /// `length` bytes of payload follow on the connection; the caller takes them.
    Write {
        offset: u64,
        length: u32,
        fua: bool,
    },
    Flush,
    Trim {
        offset: u64,
        length: u32,
        fua: bool,
    },
    /// `allocate` forbids a hole; `fast` wants [`Error::NotSupported`] at once rather than
    /// anything slow.
    WriteZeroes {
        offset: u64,
        length: u32,
        fua: bool,
        allocate: bool,
        fast: bool,
    },
    BlockStatus {
        offset: u64,
        length: u32,
    },
    Cache {
        offset: u64,
        length: u32,
    },
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closing {
    #[error("client disconnected in order")]
    Disconnect,
    #[error("client ended the negotiation in order")]
    Abort,
    #[error("client does not speak this protocol: wrong magic number")]
    Magic,
    #[error("client set handshake flags that were not offered")]
    ClientFlags,
    #[error("client asked for an export that is not here")]
    UnknownExport,
    #[error("client sent more options than a negotiation needs")]
    OptionCount,
    #[error("client announced more bytes than are taken in one message")]
    TooBig,
    #[error("client wants an export without TLS")]
    TlsRequired,
    #[error("client has sent bytes in plain text behind STARTTLS")]
    PlainBehindTls,
}

impl Closing {
    /// The client said goodbye by the rules: for an ephemeral volume this is a disconnect.
    pub const fn is_orderly(self) -> bool {
        matches!(self, Closing::Disconnect | Closing::Abort)
    }
}

/// The server's side of one connection.
#[derive(Debug)]
pub struct Session {
    config: Config,
    phase: Phase,
    /// The client gets no further; requests in flight may still be answered.
    closed: bool,
}

#[derive(Debug)]
enum Phase {
    Handshake(Handshake),
    Transmission(Transmission),
}

impl Session {
    pub fn new(config: Config) -> Session {
        assert!(
            config.requests_max > 0,
            "a session that takes no request never ends"
        );
        Session {
            phase: Phase::Handshake(Handshake::new(config.tls)),
            config,
            closed: false,
        }
    }

    /// Takes bytes from the connection. Returns how many were used and what to do; if not all
    /// were used, or there was a step, call again with the rest.
    ///
    /// `(0, None)` for an input that is not empty means that `requests_max` requests wait for
    /// their replies: feed again after the next one. What arrives after a close is dropped.
    pub fn receive(&mut self, exports: &dyn Exports, input: &[u8]) -> (usize, Option<Step>) {
        if self.closed {
            return (input.len(), None);
        }
        let (used, step) = match &mut self.phase {
            Phase::Transmission(transmission) => transmission.receive(input),
            Phase::Handshake(handshake) => {
                let (used, step) = handshake.receive(&self.config, exports, input);
                if let Some(Step::Attach { export, .. }) = &step {
                    let next = handshake.transmission(export, self.config.requests_max);
                    self.phase = Phase::Transmission(next);
                }
                (used, step)
            }
        };
        self.closed = matches!(step, Some(Step::Close { .. }));
        (used, step)
    }

    /// Payload bytes of the present write that the caller has still to take.
    pub fn payload_left(&self) -> u32 {
        match &self.phase {
            Phase::Handshake(_) => 0,
            Phase::Transmission(transmission) => transmission.payload_left(),
        }
    }

    pub fn payload_taken(&mut self, bytes: u32) {
        self.transmission().payload_taken(bytes);
    }

    /// Lets the session drop the rest of the payload by itself; the caller has no room for it.
    pub fn payload_skip(&mut self) {
        self.transmission().payload_skip();
    }

    /// A message has begun to arrive and is not complete: what a time limit should look at.
    pub fn mid_message(&self) -> bool {
        match &self.phase {
            Phase::Handshake(handshake) => handshake.mid_message(),
            Phase::Transmission(transmission) => transmission.mid_message(),
        }
    }

    /// The export is larger than the client was told, who may have heard of it in another way:
    /// requests up to its end are taken from now on.
    pub fn grow(&mut self, size_bytes: u64) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.grow(size_bytes);
        }
    }

    /// The export is gone: every further request is answered by [`Error::Shutdown`].
    pub fn revoke(&mut self) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.revoke();
        }
    }

    /// Requests that wait for their replies.
    pub fn in_flight(&self) -> usize {
        match &self.phase {
            Phase::Handshake(_) => 0,
            Phase::Transmission(transmission) => transmission.in_flight(),
        }
    }

    /// Answers a request that returns no data, or any request that failed, even after chunks of
    /// it were sent. The ticket is used up.
    pub fn reply(&mut self, ticket: Ticket, result: Result<(), Error>) -> Frame {
        self.transmission().reply(ticket, result)
    }

    /// What goes in front of the whole data of a read. The ticket is used up.
    pub fn read_reply(&mut self, ticket: Ticket) -> Frame {
        self.transmission().read_reply(ticket)
    }

    /// Whether this read may be answered by more than one [`Chunk`], or by a hole.
    pub fn takes_chunks(&self, ticket: Ticket) -> bool {
        match &self.phase {
            Phase::Handshake(_) => false,
            Phase::Transmission(transmission) => transmission.takes_chunks(ticket),
        }
    }

    /// What goes in front of one part of a read, in order of offsets; data follows a
    /// [`Chunk::Data`]. The chunk that completes the range uses the ticket up.
    pub fn read_chunk(&mut self, ticket: Ticket, chunk: Chunk) -> Frame {
        self.transmission().read_chunk(ticket, chunk)
    }

    /// How many extents the answer to a block status request may have.
    pub fn extents_max(&self, ticket: Ticket) -> usize {
        match &self.phase {
            Phase::Handshake(_) => 0,
            Phase::Transmission(transmission) => transmission.extents_max(ticket),
        }
    }

    /// Answers a block status request for allocation alone by the extents from its offset on.
    /// Neighbours of one state are joined, what exceeds the request is cut off. The ticket is used
    /// up.
    pub fn status_reply(&mut self, ticket: Ticket, extents: &[Extent]) -> Vec<u8> {
        let answers = [(Context::Allocation, extents)];
        self.transmission().status_reply(ticket, &answers)
    }

    /// The contexts that the client has selected; a block status request is about all of them.
    pub fn contexts(&self) -> &[Context] {
        match &self.phase {
            Phase::Handshake(_) => &[],
            Phase::Transmission(transmission) => transmission.contexts(),
        }
    }

    /// The same for all that were selected.
    pub fn contexts_reply(&mut self, ticket: Ticket, answers: &[(Context, &[Extent])]) -> Vec<u8> {
        self.transmission().status_reply(ticket, answers)
    }

    fn transmission(&mut self) -> &mut Transmission {
        match &mut self.phase {
            Phase::Handshake(_) => panic!("there are no requests before an export is attached"),
            Phase::Transmission(transmission) => transmission,
        }
    }
}

impl Export {
    /// The transmission flags. Fast zeroing is always offered where zeroing is, since a refusal
    /// is fast as well.
    fn flags(&self, structured: bool) -> u16 {
        let mut flags = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::SEND_CACHE;
        let mut set = |condition: bool, flag: u16| {
            if condition {
                flags |= flag;
            }
        };
        let writable = !self.read_only;
        set(self.read_only, export_flag::READ_ONLY);
        set(writable && self.trim, export_flag::SEND_TRIM);
        set(
            writable && self.write_zeroes,
            export_flag::SEND_WRITE_ZEROES,
        );
        set(writable && self.write_zeroes, export_flag::SEND_FAST_ZERO);
        set(structured, export_flag::SEND_DF);
        set(self.multi_conn, export_flag::CAN_MULTI_CONN);
        flags
    }
}
