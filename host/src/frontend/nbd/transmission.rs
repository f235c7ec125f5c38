//! The transmission phase: requests in, heads of replies out.
//!
//! Owns the place in the stream of requests and the requests that are not answered yet. Always
//! true: what is handed on lies inside the export and is allowed on it; a request that is not is
//! answered here, after its payload has been read past, so that the stream stays in step. A reply
//! to a ticket that is not in flight is a bug of ours and stops the process. Deliberately absent:
//! payload bytes, and the order in which requests are carried out.

use super::proto::{self, REQUEST_BYTES, RequestHead, chunk, command};
use super::reply::{Chunk, Error, Extent, Frame, failure, join, whole_blocks};
use super::rights::{Kind, Refused, Rights};
use super::{Closing, Command, Context, Request, Step, Ticket};

#[derive(Debug)]
pub struct Transmission {
    rights: Rights,
    intake: Intake,
    head: [u8; REQUEST_BYTES],
    head_filled: usize,
    /// By ticket.
    waiting: Vec<Option<Waiting>>,
    in_flight: usize,
    requests_max: usize,
}

/// What the next bytes are.
#[derive(Debug)]
enum Intake {
    Head,
    /// Payload, which the caller takes.
    Payload {
        left: u32,
    },
    /// Payload of a request that has failed already; the reply goes out behind it.
    Discard {
        left: u32,
        reply: Option<Vec<u8>>,
    },
}

/// A request that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    cookie: u64,
    kind: Kind,
    offset: u64,
    length: u32,
}

impl Transmission {
    pub fn new(rights: Rights, requests_max: u16) -> Transmission {
        Transmission {
            rights,
            intake: Intake::Head,
            head: [0; REQUEST_BYTES],
            head_filled: 0,
            waiting: Vec::new(),
            in_flight: 0,
            requests_max: usize::from(requests_max),
        }
    }

    /// Takes input up to the end of the first message that has consequences.
    pub fn receive(&mut self, input: &[u8]) -> (usize, Option<Step>) {
        let mut used = 0;
        while used < input.len() {
            let (taken, step) = match self.intake {
                Intake::Head if self.in_flight == self.requests_max => break,
                Intake::Head => self.head(&input[used..]),
                Intake::Discard { .. } => self.discard(&input[used..]),
                Intake::Payload { .. } => {
                    panic!("the caller takes the payload of a write before it goes on")
                }
            };
            used += taken;
            if step.is_some() {
                return (used, step);
            }
        }
        (used, None)
    }

    fn head(&mut self, input: &[u8]) -> (usize, Option<Step>) {
        let taken = input.len().min(REQUEST_BYTES - self.head_filled);
        let end = self.head_filled + taken;
        self.head[self.head_filled..end].copy_from_slice(&input[..taken]);
        self.head_filled = end;
        if end < REQUEST_BYTES {
            return (taken, None);
        }
        self.head_filled = 0;
        (taken, self.request(RequestHead::parse(&self.head)))
    }

    fn discard(&mut self, input: &[u8]) -> (usize, Option<Step>) {
        let Intake::Discard { left, reply } = &mut self.intake else {
            unreachable!("called while a payload is dropped");
        };
        let taken = input.len().min(*left as usize);
        *left -= taken as u32;
        if *left > 0 {
            return (taken, None);
        }
        let step = reply.take().map(Step::Send);
        self.intake = Intake::Head;
        (taken, step)
    }

    /// Judges a complete request. Nothing to do means that its payload is read past first.
    fn request(&mut self, head: RequestHead) -> Option<Step> {
        if head.magic != proto::REQUEST_MAGIC {
            // Nothing says where the next request begins.
            return Some(Step::close(Closing::Magic));
        }
        if head.command == command::DISC {
            return Some(Step::close(Closing::Disconnect));
        }
        let mut waiting = self.waiting.iter().flatten();
        let verdict = match waiting.any(|other| other.cookie == head.cookie) {
            true => Err((
                Error::Invalid,
                "a request with this cookie is not answered yet",
            )),
            false => self.rights.judge(&head),
        };
        let (command, kind) = match verdict {
            Ok(accepted) => accepted,
            Err(refused) => return self.refuse(&head, refused),
        };
        if let Command::Write { length, .. } = command {
            self.intake = Intake::Payload { left: length };
        }
        let ticket = self.admit(Waiting {
            cookie: head.cookie,
            kind,
            offset: head.offset,
            length: head.length,
        });
        Some(Step::Request(Request { ticket, command }))
    }

    fn admit(&mut self, waiting: Waiting) -> Ticket {
        let slot = match self.waiting.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                self.waiting.push(None);
                self.waiting.len() - 1
            }
        };
        assert!(
            slot < self.requests_max,
            "requests are taken only while a ticket is free"
        );
        self.waiting[slot] = Some(waiting);
        self.in_flight += 1;
        Ticket(slot as u16)
    }

    fn refuse(&mut self, head: &RequestHead, (error, text): Refused) -> Option<Step> {
        let reply = failure(self.rights.structured, head.cookie, error, text);
        if head.command != command::WRITE || head.length == 0 {
            return Some(Step::Send(reply));
        }
        if head.length > proto::PAYLOAD_BYTES_MAX {
            return Some(Step::Close {
                reason: Closing::TooBig,
                farewell: reply,
            });
        }
        self.intake = Intake::Discard {
            left: head.length,
            reply: Some(reply),
        };
        None
    }

    pub fn payload_left(&self) -> u32 {
        match self.intake {
            Intake::Payload { left } => left,
            Intake::Head | Intake::Discard { .. } => 0,
        }
    }

    pub fn payload_taken(&mut self, bytes: u32) {
        let left = self.payload_left();
        assert!(
            bytes <= left,
            "took {bytes} bytes of a payload that has {left}"
        );
        if left > 0 {
            self.intake = match left - bytes {
                0 => Intake::Head,
                left => Intake::Payload { left },
            };
        }
    }

    pub fn payload_skip(&mut self) {
        if let Intake::Payload { left } = self.intake {
            self.intake = Intake::Discard { left, reply: None };
        }
    }

    pub fn mid_message(&self) -> bool {
        self.head_filled > 0 || !matches!(self.intake, Intake::Head)
    }

    pub fn grow(&mut self, size_bytes: u64) {
        self.rights.grow(size_bytes);
    }

    pub fn revoke(&mut self) {
        self.rights.revoked = true;
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn waiting(&self, ticket: Ticket) -> &Waiting {
        self.waiting
            .get(usize::from(ticket.0))
            .and_then(Option::as_ref)
            .expect("a ticket is answered once, by who got it")
    }

    fn finish(&mut self, ticket: Ticket) -> Waiting {
        let waiting = *self.waiting(ticket);
        self.waiting[usize::from(ticket.0)] = None;
        self.in_flight -= 1;
        waiting
    }

    pub fn reply(&mut self, ticket: Ticket, result: Result<(), Error>) -> Frame {
        let waiting = self.finish(ticket);
        match result {
            Ok(()) => {
                assert_eq!(
                    waiting.kind,
                    Kind::Plain,
                    "a success of this request carries data"
                );
                Frame::new(&[&proto::simple_head(0, waiting.cookie)])
            }
            Err(error) if self.rights.structured => Frame::new(&[
                &proto::chunk_head(chunk::DONE, chunk::ERROR, waiting.cookie, 6),
                &error.code().to_be_bytes(),
                &0u16.to_be_bytes(),
            ]),
            Err(error) => Frame::new(&[&proto::simple_head(error.code(), waiting.cookie)]),
        }
    }

    pub fn read_reply(&mut self, ticket: Ticket) -> Frame {
        let Waiting { offset, length, .. } = *self.waiting(ticket);
        if self.rights.structured {
            return self.read_chunk(ticket, Chunk::Data { offset, length });
        }
        let waiting = self.finish(ticket);
        assert!(
            matches!(waiting.kind, Kind::Read { .. }),
            "only reads are answered by data"
        );
        Frame::new(&[&proto::simple_head(0, waiting.cookie)])
    }

    pub fn takes_chunks(&self, ticket: Ticket) -> bool {
        let unfragmented = Kind::Read {
            unfragmented: false,
            sent: 0,
        };
        self.rights.structured && self.waiting(ticket).kind == unfragmented
    }

    pub fn read_chunk(&mut self, ticket: Ticket, part: Chunk) -> Frame {
        assert!(
            self.rights.structured,
            "this client knows simple replies only"
        );
        let (Chunk::Data { offset, length } | Chunk::Hole { offset, length }) = part;
        let waiting = *self.waiting(ticket);
        let Kind::Read { unfragmented, sent } = waiting.kind else {
            panic!("only reads are answered by data");
        };
        let left = waiting.length - sent;
        assert_eq!(
            offset,
            waiting.offset + u64::from(sent),
            "parts of a read come in order"
        );
        assert!(
            length > 0 && length <= left,
            "a part of a read lies inside of it"
        );
        assert!(
            !unfragmented || length == left,
            "the client asked for one part"
        );
        let flags = if length == left {
            self.finish(ticket);
            chunk::DONE
        } else {
            let kind = Kind::Read {
                unfragmented,
                sent: sent + length,
            };
            self.waiting[usize::from(ticket.0)] = Some(Waiting { kind, ..waiting });
            0
        };
        let cookie = waiting.cookie;
        match part {
            Chunk::Data { .. } => Frame::new(&[
                &proto::chunk_head(flags, chunk::OFFSET_DATA, cookie, 8 + length),
                &offset.to_be_bytes(),
            ]),
            Chunk::Hole { .. } => Frame::new(&[
                &proto::chunk_head(flags, chunk::OFFSET_HOLE, cookie, 12),
                &offset.to_be_bytes(),
                &length.to_be_bytes(),
            ]),
        }
    }

    pub fn extents_max(&self, ticket: Ticket) -> usize {
        let Kind::Status { one } = self.waiting(ticket).kind else {
            panic!("only block status requests are answered by extents");
        };
        if one { 1 } else { proto::EXTENTS_MAX }
    }

    pub fn contexts(&self) -> &[Context] {
        &self.rights.contexts
    }

    /// One chunk for each context that was selected.
    pub fn status_reply(&mut self, ticket: Ticket, answers: &[(Context, &[Extent])]) -> Vec<u8> {
        let answered = answers.iter().map(|(context, _)| context);
        assert!(
            answered.eq(&self.rights.contexts),
            "a client that selected contexts hears of each"
        );
        let extents_max = self.extents_max(ticket);
        let waiting = self.finish(ticket);
        let mut out = Vec::new();
        for (at, (context, extents)) in answers.iter().enumerate() {
            let whole = whole_blocks(extents, self.rights.block_bytes().into());
            let joined = join(&whole, waiting.length, extents_max);
            assert!(!joined.is_empty(), "a block status reply makes progress");
            let length = 4 + 8 * joined.len() as u32;
            let flags = match at + 1 == answers.len() {
                true => chunk::DONE,
                false => 0,
            };
            let head = proto::chunk_head(flags, chunk::BLOCK_STATUS, waiting.cookie, length);
            out.extend_from_slice(&head);
            out.extend_from_slice(&context.id().to_be_bytes());
            for (length, state) in joined {
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(&state.flags().to_be_bytes());
            }
        }
        out
    }
}
