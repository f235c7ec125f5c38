//! Option haggling: from the client's first flags to the export it attaches to.
//!
//! Owns what has been agreed so far. Always true: an option is answered only when it is complete,
//! at most `OPTION_BYTES_MAX` of it are kept, and an option that is unknown, malformed or too
//! long gets an error reply and the negotiation goes on, unless the protocol leaves no way to
//! say so. Where TLS is required nothing is told and nothing is agreed on before it, and no byte
//! behind STARTTLS is looked into. Deliberately absent: the handshake of TLS, and time limits.

use super::proto::{self, Reader, answer, info, option};
use super::rights::Rights;
use super::transmission::Transmission;
use super::{BACKUP_SUFFIX, Closing, Config, Context, Export, Exports, Step, Tls};

#[derive(Debug)]
pub struct Handshake {
    tls: Tls,
    awaited: Awaited,
    /// The part of the awaited message that has arrived.
    held: Vec<u8>,
    no_zeroes: bool,
    structured: bool,
    /// The export for which the client has selected contexts, and which.
    selected: Option<(String, Vec<(Context, String)>)>,
    options_seen: u32,
    /// An option about an export that comes later.
    deferred: Option<(u32, Vec<u8>)>,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    ClientFlags,
    OptionHead,
    OptionBody {
        option: u32,
        length: usize,
    },
    /// The rest of an option that is too long to be looked into.
    Skipped {
        option: u32,
        left: usize,
    },
    /// Not for this session: STARTTLS was its last message.
    Tls,
}

/// The exports as this socket shows them.
struct View<'a> {
    exports: &'a dyn Exports,
    only: Option<&'a str>,
}

/// Why an option was refused: the answer and the text that goes with it.
type Refused = (u32, &'static str);

const MALFORMED: Refused = (
    answer::ERR_INVALID,
    "the option's lengths do not fit together",
);
const NAME_TOO_LONG: Refused = (answer::ERR_TOO_BIG, "an export name has at most 4096 bytes");
const NAME_NOT_TEXT: Refused = (answer::ERR_INVALID, "an export name is UTF-8 text");
const UNKNOWN_EXPORT: Refused = (answer::ERR_UNKNOWN, "there is no export of this name here");
const HELD_EXPORT: Refused = (
    answer::ERR_POLICY,
    "this volume is held; `tenuto status -x` on its host says why and how to go on",
);
const TLS_FIRST: Refused = (
    answer::ERR_TLS_REQD,
    "this server needs TLS; give the client certificates",
);
const NEEDS_STRUCTURED: Refused = (
    answer::ERR_INVALID,
    "metadata contexts need structured replies to be agreed on first",
);

impl Handshake {
    pub fn new(tls: Tls) -> Handshake {
        let (awaited, no_zeroes) = match tls {
            Tls::Absent | Tls::Required => (Awaited::ClientFlags, false),
            Tls::Done { no_zeroes } => (Awaited::OptionHead, no_zeroes),
        };
        Handshake {
            tls,
            awaited,
            held: Vec::new(),
            no_zeroes,
            structured: false,
            selected: None,
            options_seen: 0,
            deferred: None,
        }
    }

    /// Takes input up to the end of the first message that has consequences.
    pub fn receive(
        &mut self,
        config: &Config,
        exports: &dyn Exports,
        input: &[u8],
    ) -> (usize, Option<Step>) {
        let view = View {
            exports,
            only: config.only.as_deref(),
        };
        if let Some((option, body)) = self.deferred.take() {
            return (0, Some(self.option(&view, option, &body)));
        }
        let mut used = 0;
        while used < input.len() {
            if matches!(self.awaited, Awaited::Tls) {
                return (input.len(), Some(Step::close(Closing::PlainBehindTls)));
            }
            let (taken, message) = self.gather(&input[used..]);
            used += taken;
            let Some(message) = message else { continue };
            if let Some(step) = self.advance(&view, &message) {
                return (used, Some(step));
            }
        }
        (used, None)
    }

    pub fn mid_message(&self) -> bool {
        !self.held.is_empty() || !matches!(self.awaited, Awaited::OptionHead)
    }

    /// What follows once `export` is attached.
    pub fn transmission(&self, export: &Export, requests_max: u16) -> Transmission {
        let selected = self.selected.as_ref();
        let selected = selected.filter(|(name, _)| *name == export.name);
        // A bitmap that is not there any more was not selected, nor was one in its place.
        let contexts = selected.map_or_else(Vec::new, |(_, selected)| {
            let there = contexts_of(export).filter(|it| selected.contains(it));
            there.map(|(context, _)| context).collect()
        });
        let rights = Rights::new(export, self.structured, contexts);
        Transmission::new(rights, requests_max)
    }

    /// Collects the awaited message, or swallows the bytes of one that is skipped.
    fn gather(&mut self, input: &[u8]) -> (usize, Option<Vec<u8>>) {
        let needed = match &mut self.awaited {
            Awaited::ClientFlags => 4,
            Awaited::OptionHead => proto::OPTION_HEAD_BYTES,
            Awaited::OptionBody { length, .. } => *length,
            Awaited::Skipped { left, .. } => {
                let taken = input.len().min(*left);
                *left -= taken;
                return (taken, (*left == 0).then(Vec::new));
            }
            Awaited::Tls => return (0, None),
        };
        let taken = input.len().min(needed - self.held.len());
        self.held.extend_from_slice(&input[..taken]);
        let complete = self.held.len() == needed;
        (taken, complete.then(|| std::mem::take(&mut self.held)))
    }

    /// Acts on a complete message.
    fn advance(&mut self, view: &View, message: &[u8]) -> Option<Step> {
        match std::mem::replace(&mut self.awaited, Awaited::OptionHead) {
            Awaited::ClientFlags => self.client_flags(message),
            Awaited::OptionHead => self.option_head(view, message),
            Awaited::OptionBody { option, .. } => Some(self.option(view, option, message)),
            Awaited::Skipped { option, .. } => Some(self.skipped(option)),
            Awaited::Tls => None,
        }
    }

    fn client_flags(&mut self, message: &[u8]) -> Option<Step> {
        let flags = Reader::new(message).u32().expect("gathered in full");
        if flags & !(proto::CLIENT_FIXED_NEWSTYLE | proto::CLIENT_NO_ZEROES) != 0 {
            return Some(Step::close(Closing::ClientFlags));
        }
        // A client that does not claim the fixed newstyle may use it all the same: the protocol
        // lets a server honour that. TLS it may not use.
        if self.tls == Tls::Required && flags & proto::CLIENT_FIXED_NEWSTYLE == 0 {
            return Some(Step::close(Closing::TlsRequired));
        }
        self.no_zeroes = flags & proto::CLIENT_NO_ZEROES != 0;
        None
    }

    fn option_head(&mut self, view: &View, message: &[u8]) -> Option<Step> {
        let mut reader = Reader::new(message);
        let magic = reader.u64().expect("gathered in full");
        let option = reader.u32().expect("gathered in full");
        let length = reader.u32().expect("gathered in full");
        if magic != proto::OPTION_MAGIC {
            return Some(Step::close(Closing::Magic));
        }
        self.options_seen += 1;
        if self.options_seen > proto::OPTIONS_MAX {
            return Some(Step::close(Closing::OptionCount));
        }
        if length > proto::OPTION_BYTES_MAX {
            return self.too_long(option, length);
        }
        if length == 0 {
            return Some(self.option(view, option, &[]));
        }
        self.awaited = Awaited::OptionBody {
            option,
            length: length as usize,
        };
        None
    }

    fn too_long(&mut self, option: u32, length: u32) -> Option<Step> {
        // The old way to attach has no error reply, and nobody has megabytes of options.
        if option == option::EXPORT_NAME {
            return Some(Step::close(Closing::TooBig));
        }
        if length > proto::OPTION_SKIP_BYTES_MAX {
            let (answer, text) = match self.needs_tls(option) {
                true => TLS_FIRST,
                false => (answer::ERR_TOO_BIG, OPTION_TOO_LONG),
            };
            let farewell = proto::option_reply(option, answer, text);
            return Some(Step::Close {
                reason: Closing::TooBig,
                farewell,
            });
        }
        self.awaited = Awaited::Skipped {
            option,
            left: length as usize,
        };
        None
    }

    /// Answers a complete option, unless it is about an export that comes later.
    fn option(&mut self, view: &View, option: u32, body: &[u8]) -> Step {
        if self.needs_tls(option) {
            return tls_first(option);
        }
        if let Some(name) = view.awaited(option, body) {
            self.deferred = Some((option, body.to_vec()));
            return Step::Await { name };
        }
        let result = match option {
            option::EXPORT_NAME => return self.export_name(view, body),
            option::ABORT => return abort(),
            option::LIST => list(view, body),
            option::STARTTLS => match self.start_tls(body) {
                Ok(step) => return step,
                Err(refused) => Err(refused),
            },
            option::INFO => self.info(view, option, body).map(|(_, reply)| reply),
            option::GO => match self.info(view, option, body) {
                Ok((export, reply)) => return Step::Attach { export, reply },
                Err(refused) => Err(refused),
            },
            option::STRUCTURED_REPLY => self.structured_reply(body),
            option::LIST_META_CONTEXT => self.list_contexts(view, body),
            option::SET_META_CONTEXT => self.set_contexts(view, body),
            _ => Err((answer::ERR_UNSUP, "this option is not known here")),
        };
        let reply =
            result.unwrap_or_else(|(answer, text)| proto::option_reply(option, answer, text));
        Step::Send(reply)
    }

    /// Whether this option is refused because TLS comes first.
    fn needs_tls(&self, option: u32) -> bool {
        self.tls == Tls::Required && !matches!(option, option::STARTTLS | option::ABORT)
    }

    fn start_tls(&mut self, body: &[u8]) -> Result<Step, Refused> {
        no_data(body)?;
        match self.tls {
            Tls::Absent => Err((answer::ERR_POLICY, "TLS is not configured here")),
            Tls::Done { .. } => Err((answer::ERR_INVALID, "TLS is there already")),
            Tls::Required => {
                self.awaited = Awaited::Tls;
                let no_zeroes = self.no_zeroes;
                Ok(Step::StartTls {
                    reply: proto::option_reply(option::STARTTLS, answer::ACK, ""),
                    then: Tls::Done { no_zeroes },
                })
            }
        }
    }

    /// What an option is answered whose body was read past.
    fn skipped(&self, option: u32) -> Step {
        let answer = match option {
            option::ABORT => return abort(),
            _ if self.needs_tls(option) => return tls_first(option),
            option::LIST..=option::SET_META_CONTEXT => answer::ERR_TOO_BIG,
            _ => answer::ERR_UNSUP,
        };
        Step::Send(proto::option_reply(option, answer, OPTION_TOO_LONG))
    }

    /// The old way to attach: no errors, the connection is all there is to say no with.
    fn export_name(&mut self, view: &View, body: &[u8]) -> Step {
        let Ok(export) = view.find(body) else {
            return Step::close(Closing::UnknownExport);
        };
        let mut reply = Vec::with_capacity(10 + proto::EXPORT_NAME_PADDING_BYTES);
        reply.extend_from_slice(&export.size_bytes.to_be_bytes());
        reply.extend_from_slice(&export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            reply.extend_from_slice(&[0; proto::EXPORT_NAME_PADDING_BYTES]);
        }
        Step::Attach { export, reply }
    }

    /// The answer to `INFO` and `GO`, which differ only in what comes afterwards.
    fn info(&self, view: &View, option: u32, body: &[u8]) -> Result<(Export, Vec<u8>), Refused> {
        let (name, wanted) = parse_info(body).ok_or(MALFORMED)?;
        let export = view.find(name)?;
        let mut out = Vec::new();
        let mut put = |item: u16, parts: [&[u8]; 3]| {
            let kind = item.to_be_bytes();
            let parts = [&kind[..], parts[0], parts[1], parts[2]];
            proto::put_option_reply(&mut out, option, answer::INFO, &parts);
        };
        let flags = export.flags(self.structured).to_be_bytes();
        put(
            info::EXPORT,
            [&export.size_bytes.to_be_bytes(), &flags, &[]],
        );
        if wanted.contains(&info::NAME) {
            put(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if wanted.contains(&info::DESCRIPTION) {
            put(
                info::DESCRIPTION,
                [proto::clipped(&export.description).as_bytes(), &[], &[]],
            );
        }
        if wanted.contains(&info::BLOCK_SIZE) {
            let minimum = export.block_bytes.to_be_bytes();
            let preferred = proto::BLOCK_PREFERRED_BYTES.to_be_bytes();
            put(
                info::BLOCK_SIZE,
                [
                    &minimum,
                    &preferred,
                    &proto::PAYLOAD_BYTES_MAX.to_be_bytes(),
                ],
            );
        }
        proto::put_option_reply(&mut out, option, answer::ACK, &[]);
        Ok((export, out))
    }

    fn structured_reply(&mut self, body: &[u8]) -> Result<Vec<u8>, Refused> {
        no_data(body)?;
        self.structured = true;
        Ok(proto::option_reply(
            option::STRUCTURED_REPLY,
            answer::ACK,
            "",
        ))
    }

    fn list_contexts(&self, view: &View, body: &[u8]) -> Result<Vec<u8>, Refused> {
        if !self.structured {
            return Err(NEEDS_STRUCTURED);
        }
        let (name, queries) = parse_queries(body).ok_or(MALFORMED)?;
        let export = view.find(name)?;
        // Without a query everything is listed; the bare namespace is a wildcard here.
        let wildcards = [
            proto::BASE_NAMESPACE,
            proto::QEMU_NAMESPACE,
            proto::BITMAP_CONTEXT,
        ];
        let asks = |query: &[u8], context: &str| {
            let wildcard = wildcards.iter().find(|it| it.as_bytes() == query);
            query == context.as_bytes() || wildcard.is_some_and(|it| context.starts_with(it))
        };
        let listed = contexts_of(&export).filter(|(_, context)| {
            queries.is_empty() || queries.iter().any(|query| asks(query, context))
        });
        // In a list the numbers say nothing.
        let listed = listed.map(|(_, context)| (0, context));
        Ok(contexts(option::LIST_META_CONTEXT, listed))
    }

    fn set_contexts(&mut self, view: &View, body: &[u8]) -> Result<Vec<u8>, Refused> {
        // What was selected before is void even if this selection fails.
        self.selected = None;
        if !self.structured {
            return Err(NEEDS_STRUCTURED);
        }
        let (name, queries) = parse_queries(body).ok_or(MALFORMED)?;
        let export = view.find(name)?;
        // The bare namespace selects nothing here, and nor do contexts nobody knows.
        let found: Vec<(Context, String)> = contexts_of(&export)
            .filter(|(_, context)| queries.contains(&context.as_bytes()))
            .collect();
        let ids = found.iter().map(|(it, context)| (it.id(), context.clone()));
        let reply = contexts(option::SET_META_CONTEXT, ids);
        self.selected = Some((export.name, found));
        Ok(reply)
    }
}

const OPTION_TOO_LONG: &str = "the option is longer than a name and 4096 bytes";

impl View<'_> {
    /// The export that an option is about, if it comes later.
    fn awaited(&self, option: u32, body: &[u8]) -> Option<String> {
        let name = match option {
            option::EXPORT_NAME => body,
            option::INFO | option::GO => parse_info(body)?.0,
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => parse_queries(body)?.0,
            _ => return None,
        };
        let name = self.named(name).ok()?;
        self.exports.is_away(name).then(|| name.to_owned())
    }

    fn named<'a>(&'a self, name: &'a [u8]) -> Result<&'a str, Refused> {
        if name.len() > proto::STRING_BYTES_MAX {
            return Err(NAME_TOO_LONG);
        }
        let name = std::str::from_utf8(name).map_err(|_| NAME_NOT_TEXT)?;
        match self.only {
            Some(only) if name.is_empty() || name == only => Ok(only),
            Some(only) if name.strip_suffix(BACKUP_SUFFIX) == Some(only) => Ok(name),
            None if !name.is_empty() => Ok(name),
            _ => Err(UNKNOWN_EXPORT),
        }
    }

    fn find(&self, name: &[u8]) -> Result<Export, Refused> {
        let name = self.named(name)?;
        let found = self.exports.find(name);
        found.ok_or_else(|| match self.exports.is_held(name) {
            true => HELD_EXPORT,
            false => UNKNOWN_EXPORT,
        })
    }

    fn list(&self) -> Vec<Export> {
        match self.only {
            Some(only) => {
                let backup = format!("{only}{BACKUP_SUFFIX}");
                let both = [only, &backup].map(|name| self.exports.find(name));
                both.into_iter().flatten().collect()
            }
            None => self.exports.list(),
        }
    }
}

fn abort() -> Step {
    let farewell = proto::option_reply(option::ABORT, answer::ACK, "");
    Step::Close {
        reason: Closing::Abort,
        farewell,
    }
}

/// What a client hears that has not begun TLS; the old way to attach has no error reply.
fn tls_first(option: u32) -> Step {
    if option == option::EXPORT_NAME {
        return Step::close(Closing::TlsRequired);
    }
    let (answer, text) = TLS_FIRST;
    Step::Send(proto::option_reply(option, answer, text))
}

fn no_data(body: &[u8]) -> Result<(), Refused> {
    if body.is_empty() {
        return Ok(());
    }
    Err((answer::ERR_INVALID, "this option takes no data"))
}

fn list(view: &View, body: &[u8]) -> Result<Vec<u8>, Refused> {
    no_data(body)?;
    let mut out = Vec::new();
    for export in view.list().iter().take(proto::EXPORTS_LISTED_MAX) {
        let length = u32::try_from(export.name.len()).expect("a name in memory of this length");
        let parts = [
            &length.to_be_bytes()[..],
            export.name.as_bytes(),
            proto::clipped(&export.description).as_bytes(),
        ];
        proto::put_option_reply(&mut out, option::LIST, answer::SERVER, &parts);
    }
    proto::put_option_reply(&mut out, option::LIST, answer::ACK, &[]);
    Ok(out)
}

/// The contexts of an export with their names.
fn contexts_of(export: &Export) -> impl Iterator<Item = (Context, String)> + '_ {
    let allocation = (Context::Allocation, proto::ALLOCATION_CONTEXT.to_owned());
    let bitmaps = export.bitmaps.iter().enumerate();
    let bitmaps = bitmaps.map(|(at, name)| {
        let name = format!("{}{name}", proto::BITMAP_CONTEXT);
        (Context::Bitmap(at), name)
    });
    std::iter::once(allocation).chain(bitmaps)
}

/// The contexts found, by their numbers.
fn contexts(option: u32, found: impl Iterator<Item = (u32, String)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (id, name) in found {
        let parts = [&id.to_be_bytes()[..], name.as_bytes()];
        proto::put_option_reply(&mut out, option, answer::META_CONTEXT, &parts);
    }
    proto::put_option_reply(&mut out, option, answer::ACK, &[]);
    out
}

/// Name and information requests of `INFO` and `GO`; the lengths must fit exactly.
fn parse_info(body: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut reader = Reader::new(body);
    let name = reader.counted()?;
    let count = reader.u16()?;
    let wanted = (0..count)
        .map(|_| reader.u16())
        .collect::<Option<Vec<u16>>>()?;
    reader.is_empty().then_some((name, wanted))
}

/// Name and queries of the metadata context options; the lengths must fit exactly.
fn parse_queries(body: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut reader = Reader::new(body);
    let name = reader.counted()?;
    // The count is not believed: each query takes its four bytes of a bounded body, or it ends.
    let count = reader.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(reader.counted()?);
    }
    reader.is_empty().then_some((name, queries))
}
