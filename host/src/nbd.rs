//! The words of the NBD protocol: magic numbers, options, commands, flags, limits, reply heads.
//!
//! Always true: this is the only place that spells a number of the protocol, and all numbers on
//! the wire are big-endian. Server (`frontend::nbd`) and client (`origin::nbd`) share it.
//! Deliberately absent: what the words mean for a session.

/// The server's first words: fixed newstyle, and no padding after the old way to attach.
pub const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\x00\x03";

/// Largest payload of one read or write; the protocol's default, and what is advertised.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
pub const BLOCK_MINIMUM_BYTES: u32 = 1;
pub const BLOCK_PREFERRED_BYTES: u32 = 4096;
/// Longest string of the protocol, export names among them.
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest option that is looked into: a name of full length and 4 KiB of anything else.
pub const OPTION_BYTES_MAX: u32 = 4096 + STRING_BYTES_MAX as u32;
/// Longest option that is read past; who sends more is cut off.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;
/// Options in one negotiation: far above what a client needs, and an end for one without an end.
pub const OPTIONS_MAX: u32 = 4096;
/// Exports in the answer to one list option.
pub const EXPORTS_LISTED_MAX: usize = 1 << 16;
/// Descriptors in one block status reply; the protocol advises against more than 2^20, and a
/// client asks again where the reply ends.
pub const EXTENTS_MAX: usize = 1 << 16;

pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

pub const OPTION_HEAD_BYTES: usize = 16;
pub const OPTION_REPLY_HEAD_BYTES: usize = 20;
pub const SIMPLE_REPLY_BYTES: usize = 16;
pub const CHUNK_HEAD_BYTES: usize = 20;
pub const REQUEST_BYTES: usize = 28;
/// Zeroes after the answer to the old way to attach, unless the client asked to be spared.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;

pub const SERVER_FIXED_NEWSTYLE: u16 = 1 << 0;
pub const SERVER_NO_ZEROES: u16 = 1 << 1;
pub const CLIENT_FIXED_NEWSTYLE: u32 = 1 << 0;
pub const CLIENT_NO_ZEROES: u32 = 1 << 1;

pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

pub mod answer {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERROR + 1;
    pub const ERR_POLICY: u32 = ERROR + 2;
    pub const ERR_INVALID: u32 = ERROR + 3;
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    pub const ERR_TOO_BIG: u32 = ERROR + 9;

    pub const fn is_error(answer: u32) -> bool {
        answer & ERROR != 0
    }
}

pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do, told when a client attaches.
pub mod export_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

pub mod chunk {
    pub const DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;

    /// Kinds from here on say that the request failed.
    pub const ERRORS_FROM: u16 = 1 << 15;
}

pub const STATE_HOLE: u32 = 1 << 0;
pub const STATE_ZERO: u32 = 1 << 1;
/// Of a dirty bitmap.
pub const STATE_DIRTY: u32 = 1 << 0;

/// The metadata context that every export has, its namespace, and the number it is known by.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";
pub const BASE_NAMESPACE: &str = "base:";
pub const ALLOCATION_CONTEXT_ID: u32 = 1;
/// What precedes the name of a bitmap, as QEMU has it, and the number of the first one.
pub const QEMU_NAMESPACE: &str = "qemu:";
pub const BITMAP_CONTEXT: &str = "qemu:dirty-bitmap:";
pub const BITMAP_CONTEXT_ID: u32 = 2;

/// Appends one reply to an option.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, answer: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length).expect("names and descriptions are bounded");
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&answer.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// An option as a client sends it.
pub fn option_request(option: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("names are bounded");
    let mut out = Vec::with_capacity(OPTION_HEAD_BYTES + body.len());
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(body);
    out
}

/// One reply to an option, in a vector of its own.
pub fn option_reply(option: u32, answer: u32, text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(20 + text.len());
    put_option_reply(&mut out, option, answer, &[text.as_bytes()]);
    out
}

/// Head of a simple reply.
pub fn simple_head(error: u32, cookie: u64) -> [u8; 16] {
    let mut head = [0; 16];
    head[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    head[4..8].copy_from_slice(&error.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head
}

/// Head of a chunk of a structured reply, `length` bytes of payload behind it.
pub fn chunk_head(flags: u16, kind: u16, cookie: u64, length: u32) -> [u8; 20] {
    let mut head = [0; 20];
    head[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&flags.to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..20].copy_from_slice(&length.to_be_bytes());
    head
}

/// The fields of a transmission request, not judged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    pub magic: u32,
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl RequestHead {
    /// The end of a connection in order.
    pub const GOODBYE: RequestHead = RequestHead {
        magic: REQUEST_MAGIC,
        flags: 0,
        command: command::DISC,
        cookie: 0,
        offset: 0,
        length: 0,
    };

    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut head = [0; REQUEST_BYTES];
        head[0..4].copy_from_slice(&self.magic.to_be_bytes());
        head[4..6].copy_from_slice(&self.flags.to_be_bytes());
        head[6..8].copy_from_slice(&self.command.to_be_bytes());
        head[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        head[16..24].copy_from_slice(&self.offset.to_be_bytes());
        head[24..28].copy_from_slice(&self.length.to_be_bytes());
        head
    }

    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> RequestHead {
        let mut reader = Reader::new(bytes);
        let mut next = || {
            let magic = reader.u32()?;
            let flags = reader.u16()?;
            let command = reader.u16()?;
            let cookie = reader.u64()?;
            let offset = reader.u64()?;
            let length = reader.u32()?;
            Some(RequestHead {
                magic,
                flags,
                command,
                cookie,
                offset,
                length,
            })
        };
        next().expect("the fields are as long as the array")
    }
}

/// Reads the fields of a message; `None` where the message is too short.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(head)
    }

    /// Bytes behind their own 32-bit length.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()?;
        self.bytes(usize::try_from(count).ok()?)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.bytes(N)?;
        Some(bytes.try_into().expect("split at this length"))
    }
}

/// The beginning of a string, cut at a character boundary so that it stays a string.
pub fn clipped(text: &str) -> &str {
    let mut end = text.len().min(STRING_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
