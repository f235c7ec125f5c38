//! A scripted client and a caller that serves a small disk, for the tests of the session.

mod haggling;
mod hostile;
mod requests;
mod tls;

use super::proto::{self, Reader};
use super::*;

pub const DISK_BYTES: u64 = 1 << 20;
pub const READ_ONLY_BYTES: u64 = 12_345;
pub const REQUESTS_MAX: u16 = 8;

pub fn exports() -> Vec<Export> {
    let plain = Export {
        name: "disk".into(),
        description: "a disk to write on".into(),
        size_bytes: DISK_BYTES,
        read_only: false,
        multi_conn: true,
        trim: true,
        write_zeroes: true,
        fast_zero: true,
        block_bytes: 1,
        bitmaps: Vec::new(),
    };
    let fixed = Export {
        name: "gold".into(),
        description: String::new(),
        size_bytes: READ_ONLY_BYTES,
        read_only: true,
        ..plain.clone()
    };
    let bare = Export {
        name: "bare".into(),
        multi_conn: false,
        trim: false,
        write_zeroes: false,
        ..plain.clone()
    };
    let slow = Export {
        name: "slow".into(),
        fast_zero: false,
        bitmaps: Vec::new(),
        ..plain.clone()
    };
    vec![plain, fixed, bare, slow]
}

/// A caller as the shard is one: answers at once, or keeps requests until it is told to.
pub struct Caller {
    pub session: Session,
    pub exports: Vec<Export>,
    pub disk: Vec<u8>,
    pub answers_at_once: bool,
    pub kept: Vec<Request>,
    pub sent: Vec<u8>,
    pub requests: Vec<Command>,
    pub attached: Option<Export>,
    pub closed: Option<Closing>,
    /// With what the session behind TLS begins.
    pub then: Option<Tls>,
    writing: Option<(Request, u64)>,
}

impl Caller {
    pub fn new() -> Caller {
        Caller::with(Config {
            only: None,
            requests_max: REQUESTS_MAX,
            tls: Tls::Absent,
        })
    }

    pub fn with(config: Config) -> Caller {
        Caller {
            session: Session::new(config),
            exports: exports(),
            disk: (0..DISK_BYTES).map(|at| (at / 512) as u8).collect(),
            answers_at_once: true,
            kept: Vec::new(),
            sent: Vec::new(),
            requests: Vec::new(),
            attached: None,
            closed: None,
            then: None,
            writing: None,
        }
    }

    /// Past the greeting, attached to `name`.
    pub fn attached_to(name: &str, structured: bool) -> Caller {
        let mut caller = Caller::new();
        caller.feed(&attach(name, structured));
        assert_eq!(caller.attached.as_ref().expect("attached").name, name);
        caller.sent.clear();
        caller
    }

    /// Takes all of the input, as long as the session takes it; returns what it left.
    pub fn feed<'a>(&mut self, mut input: &'a [u8]) -> &'a [u8] {
        while !input.is_empty() {
            if self.session.payload_left() > 0 {
                input = self.take_payload(input);
                continue;
            }
            let (used, step) = self.session.receive(&self.exports, input);
            assert!(used <= input.len());
            input = &input[used..];
            match step {
                Some(step) => self.obey(step),
                None if used == 0 => break,
                None => {}
            }
        }
        input
    }

    fn take_payload<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let taken = input.len().min(self.session.payload_left() as usize);
        let (payload, rest) = input.split_at(taken);
        let (request, at) = self.writing.take().expect("a payload belongs to a write");
        self.disk[at as usize..at as usize + taken].copy_from_slice(payload);
        self.session.payload_taken(taken as u32);
        if self.session.payload_left() > 0 {
            self.writing = Some((request, at + taken as u64));
        } else {
            self.accept(request);
        }
        rest
    }

    fn obey(&mut self, step: Step) {
        assert!(self.closed.is_none(), "nothing comes after a close");
        match step {
            Step::Send(bytes) => self.sent.extend(bytes),
            Step::StartTls { reply, then } => {
                self.sent.extend(reply);
                assert!(self.then.replace(then).is_none(), "TLS begins once");
            }
            Step::Attach { export, reply } => {
                assert!(self.attached.replace(export).is_none());
                self.sent.extend(reply);
            }
            Step::Request(request) => {
                self.requests.push(request.command);
                match request.command {
                    Command::Write { offset, .. } => self.writing = Some((request, offset)),
                    _ => self.accept(request),
                }
            }
            Step::Close { reason, farewell } => {
                self.sent.extend(farewell);
                self.closed = Some(reason);
            }
            Step::Await { name } => panic!("{name} is not away"),
        }
    }

    fn accept(&mut self, request: Request) {
        match self.answers_at_once {
            true => self.answer(request),
            false => self.kept.push(request),
        }
    }

    pub fn answer(&mut self, request: Request) {
        let ticket = request.ticket;
        match request.command {
            Command::Read { offset, length } => {
                let frame = self.session.read_reply(ticket);
                self.sent.extend(frame.as_bytes());
                let data = &self.disk[offset as usize..offset as usize + length as usize];
                self.sent.extend(data);
            }
            Command::BlockStatus { .. } => {
                let extents = [
                    Extent {
                        length: 4096,
                        state: ExtentState::Data,
                    },
                    Extent {
                        length: 4096,
                        state: ExtentState::Data,
                    },
                    Extent {
                        length: 8192,
                        state: ExtentState::Zero,
                    },
                    Extent {
                        length: DISK_BYTES,
                        state: ExtentState::Hole,
                    },
                ];
                self.sent
                    .extend(self.session.status_reply(ticket, &extents));
            }
            _ => {
                let frame = self.session.reply(ticket, Ok(()));
                self.sent.extend(frame.as_bytes());
            }
        }
    }

    /// What was sent since the last call.
    pub fn take_sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sent)
    }

    /// Sends one request without payload and decodes its only reply.
    pub fn ask(&mut self, flags: u16, command: u16, offset: u64, length: u32) -> Reply {
        self.feed(&request(flags, command, 77, offset, length));
        let sent = self.take_sent();
        let mut replies = replies(&sent);
        assert_eq!(replies.len(), 1, "one reply in {sent:?}");
        replies.remove(0)
    }
}

pub fn client_flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

pub fn option(option: u32, body: &[u8]) -> Vec<u8> {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(option.to_be_bytes());
    out.extend((body.len() as u32).to_be_bytes());
    out.extend(body);
    out
}

pub fn info_body(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name.as_bytes());
    out.extend((wanted.len() as u16).to_be_bytes());
    wanted
        .iter()
        .for_each(|item| out.extend(item.to_be_bytes()));
    out
}

pub fn queries_body(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name.as_bytes());
    out.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        out.extend((query.len() as u32).to_be_bytes());
        out.extend(query.as_bytes());
    }
    out
}

pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(length.to_be_bytes());
    out
}

/// The whole negotiation of an ordinary client.
pub fn attach(name: &str, structured: bool) -> Vec<u8> {
    let mut out = client_flags(3);
    if structured {
        out.extend(option(proto::option::STRUCTURED_REPLY, &[]));
        let body = queries_body(name, &["base:allocation"]);
        out.extend(option(proto::option::SET_META_CONTEXT, &body));
    }
    out.extend(option(proto::option::GO, &info_body(name, &[3])));
    out
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub option: u32,
    pub answer: u32,
    pub data: Vec<u8>,
}

pub fn answers(bytes: &[u8]) -> Vec<Answer> {
    let mut reader = Reader::new(bytes);
    let mut out = Vec::new();
    while !reader.is_empty() {
        assert_eq!(reader.u64(), Some(0x0003_e889_0455_65a9));
        let option = reader.u32().expect("option");
        let answer = reader.u32().expect("answer");
        let data = reader.counted().expect("data").to_vec();
        out.push(Answer {
            option,
            answer,
            data,
        });
    }
    out
}

/// A reply without the data of a simple read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Simple {
        error: u32,
        cookie: u64,
    },
    Chunk {
        flags: u16,
        kind: u16,
        cookie: u64,
        payload: Vec<u8>,
    },
}

impl Reply {
    pub fn error(&self) -> u32 {
        match self {
            Reply::Simple { error, .. } => *error,
            Reply::Chunk {
                flags,
                kind,
                payload,
                ..
            } if *kind == 0x8001 => {
                assert_eq!(*flags, 1, "an error ends its reply");
                let text = u16::from_be_bytes([payload[4], payload[5]]);
                assert_eq!(payload.len(), 6 + usize::from(text));
                u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]])
            }
            Reply::Chunk { .. } => 0,
        }
    }
}

pub fn replies(bytes: &[u8]) -> Vec<Reply> {
    let mut reader = Reader::new(bytes);
    let mut out = Vec::new();
    while !reader.is_empty() {
        let magic = reader.u32().expect("magic");
        if magic == 0x6744_6698 {
            let error = reader.u32().expect("error");
            out.push(Reply::Simple {
                error,
                cookie: reader.u64().expect("cookie"),
            });
            continue;
        }
        assert_eq!(magic, 0x668e_33ef, "a reply begins with a magic number");
        let flags = reader.u16().expect("flags");
        let kind = reader.u16().expect("kind");
        let cookie = reader.u64().expect("cookie");
        let payload = reader.counted().expect("payload").to_vec();
        out.push(Reply::Chunk {
            flags,
            kind,
            cookie,
            payload,
        });
    }
    out
}
