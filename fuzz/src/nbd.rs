//! The target for the NBD session: any bytes in pieces of any size, answered in any order.
//!
//! Invariants: no panic; no more input is used than there was; what is handed on lies inside the
//! export and is allowed on it; the number of unanswered requests and their tickets keep below
//! their bound; every reply is complete in itself; and the pieces in which the bytes came make no
//! difference.

use crate::source::Source;
use host::frontend::nbd::{
    Chunk, Closing, Command, Config, Error, Export, Extent, ExtentState, PAYLOAD_BYTES_MAX,
    Request, Session, Step, Tls,
};

const EXPORT_BYTES: u64 = 1 << 16;
const ERRORS: [Error; 7] = [
    Error::NotPermitted,
    Error::Io,
    Error::Invalid,
    Error::NoSpace,
    Error::Overflow,
    Error::NotSupported,
    Error::Shutdown,
];

/// Half of the inputs are a script for a client and its server, half are what a client sends.
pub fn session(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let requests_max = u16::from(source.byte() % 8) + 1;
    let only = source.flag().then(|| "a".into());
    let tls = match source.byte() {
        0..64 => Tls::Required,
        64..96 => Tls::Done {
            no_zeroes: source.flag(),
        },
        _ => Tls::Absent,
    };
    let config = Config {
        only,
        requests_max,
        tls,
    };
    let scripted = source.flag();
    let mut opening = opening(source);
    if matches!(config.tls, Tls::Done { .. }) && !opening.is_empty() {
        // The client has said its flags before.
        opening.drain(..4);
    }
    if scripted {
        let mut server = Server::new(config);
        server.hear(&opening, source);
        while !source.is_empty() && server.closed.is_none() {
            server.act(source);
        }
        server.drain(source);
        server.answered > 0
    } else {
        let sizes: Vec<usize> = source
            .take(4)
            .iter()
            .map(|&size| 1 + usize::from(size))
            .collect();
        let attached = !opening.is_empty();
        let mut bytes = opening;
        while !source.is_empty() {
            bytes.extend(words(source, attached));
        }
        let whole = conversation(&config, &bytes, &[usize::MAX]);
        assert_eq!(whole, conversation(&config, &bytes, &[1]));
        if !sizes.is_empty() {
            assert_eq!(whole, conversation(&config, &bytes, &sizes));
        }
        !whole.1.is_empty()
    }
}

fn exports() -> Vec<Export> {
    let writable = Export {
        name: "a".into(),
        description: "writable".into(),
        size_bytes: EXPORT_BYTES,
        read_only: false,
        multi_conn: true,
        trim: true,
        write_zeroes: true,
        fast_zero: false,
        block_bytes: 1,
        bitmaps: Vec::new(),
    };
    let fixed = Export {
        name: "b".into(),
        read_only: true,
        ..writable.clone()
    };
    vec![writable, fixed]
}

/// Most clients get to the transmission phase; noise would get there once in a lifetime.
fn opening(source: &mut Source) -> Vec<u8> {
    let choice = source.byte();
    if choice.is_multiple_of(4) {
        return Vec::new();
    }
    let name = if choice & 16 == 0 { b'a' } else { b'b' };
    let mut out = vec![0, 0, 0, choice / 64];
    if choice & 4 != 0 {
        out.extend(option(8, &[]));
    }
    if choice & 8 != 0 {
        let body = [
            b"\0\0\0\x01",
            &[name][..],
            b"\0\0\0\x01\0\0\0\x0fbase:allocation",
        ];
        out.extend(option(10, &body.concat()));
    }
    match choice & 32 {
        0 => out.extend(option(7, &[0, 0, 0, 1, name, 0, 0])),
        _ => out.extend(option(1, &[name])),
    }
    out
}

/// Something a client may say: sense, nonsense, or sense with a flaw. Anything but a request
/// ends an attached session, so that is said rarely then.
fn words(source: &mut Source, attached: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let choice = source.byte();
    let kind = if attached && choice < 240 {
        7
    } else {
        choice % 8
    };
    match kind {
        0 => out.extend(source.take(40)),
        1 => out.extend(u32::from(source.byte() % 4).to_be_bytes()),
        2 => return option(u32::from(source.byte() % 13), source.take(40)),
        3 => return option(8, &[]),
        4 => {
            let number = source.pick(&[6u32, 7]);
            let name = source.pick(&[&b"a"[..], b"b", b"c", b""]);
            out.extend((name.len() as u32).to_be_bytes());
            out.extend(name);
            out.extend([0, 2, 0, 1, 0, 3]);
            source.damage_rarely(&mut out);
            return option(number, &out);
        }
        5 => {
            let number = source.pick(&[9u32, 10]);
            out.extend(b"\0\0\0\x01a\0\0\0\x01");
            let query = source.pick(&[&b"base:allocation"[..], b"base:", b"x:y"]);
            out.extend((query.len() as u32).to_be_bytes());
            out.extend(query);
            source.damage_rarely(&mut out);
            return option(number, &out);
        }
        _ => {
            let command = u16::from(source.byte() % 10);
            let flags = if source.flag() { source.u16() % 64 } else { 0 };
            let length = match source.byte() % 4 {
                0 => source.number() as u32,
                _ => u32::from(source.u16() % 600),
            };
            out.extend(0x2560_9513u32.to_be_bytes());
            out.extend(flags.to_be_bytes());
            out.extend(command.to_be_bytes());
            out.extend(u64::from(source.byte() % 16).to_be_bytes());
            out.extend((source.number() % (EXPORT_BYTES + 2)).to_be_bytes());
            out.extend(length.to_be_bytes());
            source.damage_rarely(&mut out);
            if command == 1 {
                out.resize(out.len() + length.min(600) as usize, 0xa5);
            }
        }
    }
    out
}

fn option(number: u32, body: &[u8]) -> Vec<u8> {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(number.to_be_bytes());
    out.extend((body.len() as u32).to_be_bytes());
    out.extend(body);
    out
}

impl Source<'_> {
    fn damage_rarely(&mut self, bytes: &mut Vec<u8>) {
        if self.byte() % 16 == 15 {
            self.damage(bytes);
        }
    }
}

/// All that a conversation shows when each request is answered at once.
type Outcome = (Vec<u8>, Vec<Command>, Option<Closing>);

fn conversation(config: &Config, bytes: &[u8], sizes: &[usize]) -> Outcome {
    let mut server = Server::new(config.clone());
    let mut commands = Vec::new();
    let mut rest = bytes;
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (mut piece, behind) = rest.split_at(rest.len().min(*size));
        rest = behind;
        while !piece.is_empty() {
            let (used, request) = server.step(piece);
            piece = &piece[used..];
            commands.extend(request.map(|request| request.command));
            while let Some(request) = server.take_answerable() {
                server.answer(request, &mut Source::new(&[]));
            }
        }
    }
    (server.sent, commands, server.closed)
}

struct Server {
    session: Session,
    exports: Vec<Export>,
    requests_max: usize,
    /// It is the plain part of a connection with TLS.
    required: bool,
    attached: Option<Export>,
    waiting: Vec<Request>,
    /// A write whose payload is still to come; the last one of `waiting`.
    writing: bool,
    sent: Vec<u8>,
    closed: Option<Closing>,
    answered: usize,
}

impl Server {
    fn new(config: Config) -> Server {
        Server {
            requests_max: usize::from(config.requests_max),
            required: config.tls == Tls::Required,
            session: Session::new(config),
            exports: exports(),
            attached: None,
            waiting: Vec::new(),
            writing: false,
            sent: Vec::new(),
            closed: None,
            answered: 0,
        }
    }

    /// One act of the script.
    fn act(&mut self, source: &mut Source) {
        match source.byte() % 8 {
            0 if !self.waiting.is_empty() => {
                let at = source.below(self.waiting.len());
                if self.writing && at + 1 == self.waiting.len() {
                    self.session.payload_skip();
                    self.writing = false;
                }
                let request = self.waiting.remove(at);
                self.answer(request, source);
            }
            1 if source.byte() == 1 => self.session.revoke(),
            2 if source.byte() == 2 => self.exports.clear(),
            _ => {
                let words = words(source, self.attached.is_some());
                self.hear(&words, source);
            }
        }
        self.check();
    }

    /// Takes all of the input, and answers requests where there is no room for more.
    fn hear(&mut self, mut input: &[u8], source: &mut Source) {
        while !input.is_empty() {
            let (used, _) = self.step(input);
            input = &input[used..];
            if used == 0 {
                assert_eq!(self.session.in_flight(), self.requests_max, "only if full");
                let at = source.below(self.waiting.len());
                let request = self.waiting.remove(at);
                self.answer(request, source);
            }
        }
    }

    /// Answers what is left, as a caller does before it closes.
    fn drain(&mut self, source: &mut Source) {
        while let Some(request) = self.waiting.pop() {
            self.answer(request, source);
        }
        assert_eq!(self.session.in_flight(), 0);
    }

    fn check(&self) {
        assert_eq!(self.session.in_flight(), self.waiting.len());
        assert!(self.waiting.len() <= self.requests_max);
        assert_eq!(self.session.payload_left() > 0, self.writing);
    }

    /// A request whose payload is complete.
    fn take_answerable(&mut self) -> Option<Request> {
        if self.writing {
            None
        } else {
            self.waiting.pop()
        }
    }

    /// Gives the session, or a write of it, what it takes of the input.
    fn step(&mut self, input: &[u8]) -> (usize, Option<Request>) {
        if self.writing {
            let taken = input.len().min(self.session.payload_left() as usize);
            self.session.payload_taken(taken as u32);
            self.writing = self.session.payload_left() > 0;
            return (taken, None);
        }
        let (used, step) = self.session.receive(&self.exports, input);
        assert!(used <= input.len());
        let Some(step) = step else {
            return (used, None);
        };
        assert!(used > 0 && self.closed.is_none());
        match step {
            Step::Send(bytes) => self.send(&bytes, 0),
            Step::Attach { export, reply } => {
                assert!(!self.required, "nothing is told before TLS");
                self.sent.extend(reply);
                assert!(self.attached.replace(export).is_none(), "attached once");
            }
            Step::Close { reason, farewell } => {
                self.send(&farewell, 0);
                self.closed = Some(reason);
            }
            Step::StartTls { reply, then } => {
                assert!(self.required && self.attached.is_none());
                assert!(matches!(then, Tls::Done { .. }));
                self.send(&reply, 0);
            }
            Step::Await { name } => panic!("{name} is not away"),
            Step::Request(request) => {
                self.judge(&request);
                self.writing = matches!(request.command, Command::Write { .. });
                self.waiting.push(request);
                return (used, Some(request));
            }
        }
        (used, None)
    }

    fn judge(&self, request: &Request) {
        let export = self.attached.as_ref().expect("a request has an export");
        assert!(usize::from(request.ticket.0) < self.requests_max);
        let known = self
            .waiting
            .iter()
            .any(|other| other.ticket == request.ticket);
        assert!(!known, "a ticket names one request");
        let (offset, length, writes) = match request.command {
            Command::Flush => return,
            Command::Read { offset, length } => {
                assert!(length <= PAYLOAD_BYTES_MAX);
                (offset, length, false)
            }
            Command::Write { offset, length, .. } => {
                assert!(length <= PAYLOAD_BYTES_MAX);
                (offset, length, true)
            }
            Command::WriteZeroes {
                offset,
                length,
                fast,
                ..
            } => {
                assert!(!fast, "not possible on these exports");
                (offset, length, true)
            }
            Command::Trim { offset, length, .. } => (offset, length, true),
            Command::BlockStatus { offset, length } | Command::Cache { offset, length } => {
                (offset, length, false)
            }
        };
        assert!(length > 0 && offset + u64::from(length) <= export.size_bytes);
        assert!(!writes || !export.read_only);
    }

    fn answer(&mut self, request: Request, source: &mut Source) {
        let ticket = request.ticket;
        self.answered += 1;
        if source.byte() % 4 == 3 {
            let frame = self.session.reply(ticket, Err(source.pick(&ERRORS)));
            return self.send(frame.as_bytes(), 0);
        }
        match request.command {
            Command::Read { offset, length } if self.session.takes_chunks(ticket) => {
                self.answer_in_parts(request, offset, length, source);
            }
            Command::Read { length, .. } => {
                let frame = self.session.read_reply(ticket);
                self.send(frame.as_bytes(), length);
            }
            Command::BlockStatus { .. } => {
                let states = [ExtentState::Data, ExtentState::Zero, ExtentState::Hole];
                let extents: Vec<Extent> = (0..1 + source.below(20))
                    .map(|_| Extent {
                        length: source.number().max(1),
                        state: source.pick(&states),
                    })
                    .collect();
                let reply = self.session.status_reply(ticket, &extents);
                self.send(&reply, 0);
            }
            _ => {
                let frame = self.session.reply(ticket, Ok(()));
                self.send(frame.as_bytes(), 0);
            }
        }
    }

    fn answer_in_parts(&mut self, request: Request, offset: u64, length: u32, source: &mut Source) {
        let mut at = 0;
        while at < length {
            let part = (1 + source.number() % u64::from(length)).min(u64::from(length - at)) as u32;
            let offset = offset + u64::from(at);
            at += part;
            let (chunk, data) = match source.byte() % 3 {
                0 => (
                    Chunk::Data {
                        offset,
                        length: part,
                    },
                    part,
                ),
                1 => (
                    Chunk::Hole {
                        offset,
                        length: part,
                    },
                    0,
                ),
                _ => {
                    let frame = self.session.reply(request.ticket, Err(Error::Io));
                    return self.send(frame.as_bytes(), 0);
                }
            };
            let frame = self.session.read_chunk(request.ticket, chunk);
            self.send(frame.as_bytes(), data);
        }
    }

    /// Sends one message, behind which `data` bytes of payload would follow.
    fn send(&mut self, bytes: &[u8], data: u32) {
        if self.attached.is_some() {
            assert_reply(bytes, data);
        } else {
            assert_option_replies(bytes);
        }
        self.sent.extend(bytes);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn assert_option_replies(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        bytes = &bytes[20 + word(bytes, 16) as usize..];
    }
}

/// Nothing, one simple reply, or one chunk.
fn assert_reply(bytes: &[u8], data: u32) {
    if bytes.is_empty() {
        return;
    }
    match word(bytes, 0) {
        0x6744_6698 => {
            assert_eq!(bytes.len(), 16);
            assert!(
                data == 0 || word(bytes, 4) == 0,
                "no payload behind an error"
            );
        }
        0x668e_33ef => {
            assert_eq!(
                bytes.len() as u64 + u64::from(data),
                20 + u64::from(word(bytes, 16))
            );
            let kind = word(bytes, 4) & 0xffff;
            assert_eq!(kind == 1, data > 0, "payload belongs to data");
            assert!(matches!(kind, 1 | 2 | 5 | 0x8001));
        }
        other => panic!("a reply begins with {other:#x}"),
    }
}
