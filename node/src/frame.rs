//! Frames: the bytes that two hosts of a cluster exchange over one connection.
//!
//! Owns the header of 64 bytes, the kinds, and the bodies of those that are about hosts and links.
//! Always true: a header says how long its body is before a byte of it is kept, and both have a
//! checksum; parsing checks everything before it returns anything and never panics on foreign
//! bytes; what was parsed is written again as the same bytes, but for a `Hello` of a later version.
//! A `Hello` always has version [`HELLO_VERSION`], so that hosts of all versions can read it; from
//! then on both sides use the lower of their highest versions. Deliberately absent: the bodies of
//! [`Frame::Unit`], of batches ([`crate::batch`]) and of reads ([`crate::reads`]), which are about
//! volumes, and encryption. The numbers of a batch are zero in all other frames.
//!
//! ```text
//!  0 magic (8)        8 version (2)     10 kind (2)        12 header checksum (4)
//! 16 body bytes (4)  20 payload bytes (4)  24 body checksum (4)  28 zero (4)
//! 32 batch (8)       40 term (8)       48 zero (16)
//! ```

use crate::codec::{Bad, In, Out};
use alloc::string::String;
use alloc::vec::Vec;
use engine::format::{checksum, zeroes};
use engine::types::{SECTOR_BYTES, Uuid};

pub const MAGIC: [u8; 8] = *b"TENUTOFR";
pub const HEADER_BYTES: usize = 64;
pub const BODY_BYTES_MAX: usize = 64 << 10;
/// Of a batch. An engine puts no more than a chunk of its log into one, which is half of this.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Versions that this program speaks. A version talks with the one before it.
pub const VERSION_MIN: u16 = 1;
pub const VERSION_MAX: u16 = 2;
/// From this one on a ping tells the room for copies, and copies have credit.
pub const VERSION_ROOM: u16 = 2;
/// Of the frames before both sides know each other's versions; never changes.
pub const HELLO_VERSION: u16 = 1;
/// Members of a cluster; of those that have left as many again are remembered.
pub const HOSTS_MAX: usize = 64;
pub const NAME_BYTES_MAX: usize = 64;
pub const ADDRESSES_MAX: usize = 4;
pub const ADDRESS_BYTES_MAX: usize = 64;
pub const TEXT_BYTES_MAX: usize = 1024;
/// A certificate or a key.
pub const BLOB_BYTES_MAX: usize = 4096;
pub const SECRET_BYTES: usize = 16;
/// Of a `Hello`: the connection is for batches, and answers to them.
pub const FEATURE_DATA: u64 = 1;
/// And reads of clean blocks are taken on it.
pub const FEATURE_READS: u64 = 2;
/// And reads of what copies have.
pub const FEATURE_RECALLS: u64 = 4;

const CHECKSUM_AT: usize = 12;
const BATCH_AT: usize = 32;
/// What is not used yet: before the batch, and behind the term.
const GAP: core::ops::Range<usize> = 28..BATCH_AT;
const REST_AT: usize = 48;

/// Why bytes are no frame, or none that is expected here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("not a frame of tenuto")]
    Magic,
    #[error("of version {0}, which was not agreed on")]
    Version(u16),
    #[error("of the unknown kind {0}")]
    Kind(u16),
    #[error("checksum does not match")]
    Checksum,
    #[error("fields that are not used yet are not zero")]
    Reserved,
    #[error("field {0} is out of range")]
    Field(&'static str),
    #[error("too short")]
    Short,
    #[error("longer than what it says")]
    Long,
}

impl From<Bad> for FrameError {
    fn from(bad: Bad) -> FrameError {
        match bad {
            Bad::Short => FrameError::Short,
            Bad::Field(field) => FrameError::Field(field),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    Hello = 1,
    Ping = 2,
    Pong = 3,
    Hosts = 4,
    Unit = 5,
    Refused = 6,
    Join = 7,
    Welcome = 8,
    Ask = 9,
    Answer = 10,
    /// Writes for a copy; see [`crate::batch`].
    Batch = 11,
    /// A read of clean blocks, and its answer; see [`crate::reads`].
    Read = 12,
    Blocks = 13,
    /// A read of what a copy has; answered by the same.
    Recall = 14,
}

impl Kind {
    const ALL: [Kind; 14] = [
        Kind::Hello,
        Kind::Ping,
        Kind::Pong,
        Kind::Hosts,
        Kind::Unit,
        Kind::Refused,
        Kind::Join,
        Kind::Welcome,
        Kind::Ask,
        Kind::Answer,
        Kind::Batch,
        Kind::Read,
        Kind::Blocks,
        Kind::Recall,
    ];

    fn parse(number: u16) -> Result<Kind, FrameError> {
        let known = Kind::ALL.into_iter().find(|kind| *kind as u16 == number);
        known.ok_or(FrameError::Kind(number))
    }

    /// Sent before versions are agreed on.
    const fn opens(self) -> bool {
        matches!(
            self,
            Kind::Hello | Kind::Refused | Kind::Join | Kind::Welcome
        )
    }

    /// The version in its header, where both sides have agreed on one.
    pub const fn version(self, agreed: u16) -> u16 {
        match self.opens() {
            true => HELLO_VERSION,
            false => agreed,
        }
    }
}

/// What a checked header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub body_bytes: usize,
    pub numbers: Numbers,
    body_checksum: u32,
}

/// What a header says of a batch; zero in all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Bytes that follow the body, in whole sectors.
    pub payload_bytes: usize,
    pub batch: u64,
    pub term: u64,
}

impl Header {
    /// Checks a header before its body is read. `agreed`: the version of this connection.
    pub fn parse(bytes: &[u8; HEADER_BYTES], agreed: u16) -> Result<Header, FrameError> {
        if bytes[..8] != MAGIC {
            return Err(FrameError::Magic);
        }
        // The version comes first: what lies behind may mean something else in another one.
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != agreed && version != HELLO_VERSION {
            return Err(FrameError::Version(version));
        }
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let sum = checksum(&[&bytes[..CHECKSUM_AT], &[0; 4], &bytes[CHECKSUM_AT + 4..]]);
        if word(CHECKSUM_AT) != sum {
            return Err(FrameError::Checksum);
        }
        let kind = Kind::parse(u16::from_le_bytes([bytes[10], bytes[11]]))?;
        if version != kind.version(agreed) {
            return Err(FrameError::Version(version));
        }
        let body_bytes = word(16) as usize;
        if body_bytes > BODY_BYTES_MAX {
            return Err(FrameError::Field("body bytes"));
        }
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let numbers = Numbers {
            payload_bytes: word(20) as usize,
            batch: long(BATCH_AT),
            term: long(BATCH_AT + 8),
        };
        for unused in [&bytes[GAP], &bytes[REST_AT..]] {
            zeroes(unused).map_err(|_| FrameError::Reserved)?;
        }
        let payload_bytes = numbers.payload_bytes;
        let whole = payload_bytes.is_multiple_of(SECTOR_BYTES as usize)
            && payload_bytes <= PAYLOAD_BYTES_MAX;
        let carries = matches!(kind, Kind::Batch | Kind::Blocks);
        if !whole || (!carries && payload_bytes > 0) {
            return Err(FrameError::Field("payload bytes"));
        }
        if kind != Kind::Batch && (numbers.batch, numbers.term) != (0, 0) {
            return Err(FrameError::Reserved);
        }
        Ok(Header {
            kind,
            body_bytes,
            numbers,
            body_checksum: word(24),
        })
    }

    /// Fills in the header before a body that is there.
    pub(crate) fn seal(bytes: &mut [u8], kind: Kind, agreed: u16, numbers: Numbers) {
        let body_bytes = bytes.len() - HEADER_BYTES;
        assert!(
            body_bytes <= BODY_BYTES_MAX && numbers.payload_bytes <= PAYLOAD_BYTES_MAX,
            "a frame is checked before it is sent"
        );
        let sum = checksum(&[&bytes[HEADER_BYTES..]]);
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &kind.version(agreed).to_le_bytes());
        put(10, &(kind as u16).to_le_bytes());
        put(16, &(body_bytes as u32).to_le_bytes());
        put(20, &(numbers.payload_bytes as u32).to_le_bytes());
        put(24, &sum.to_le_bytes());
        put(BATCH_AT, &numbers.batch.to_le_bytes());
        put(BATCH_AT + 8, &numbers.term.to_le_bytes());
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        let sum = checksum(&[&bytes[..HEADER_BYTES]]);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }

    pub(crate) fn check_body(&self, body: &[u8]) -> Result<(), FrameError> {
        if body.len() != self.body_bytes {
            return Err(FrameError::Short);
        }
        match checksum(&[body]) == self.body_checksum {
            true => Ok(()),
            false => Err(FrameError::Checksum),
        }
    }
}

/// The version that two hosts speak: the lower of their highest ones, if both know it.
pub fn negotiate(ours: (u16, u16), theirs: (u16, u16)) -> Option<u16> {
    let version = ours.1.min(theirs.1);
    (version >= ours.0 && version >= theirs.0).then_some(version)
}

/// A host as the members of a cluster know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub id: Uuid,
    /// The newest wins; only the host itself, or the one that let it in, makes a new one.
    pub revision: u64,
    /// It is no member any more, and never again under this id.
    pub left: bool,
    pub name: String,
    pub domain: String,
    /// As in "10.0.0.1:7440".
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub version_min: u16,
    pub version_max: u16,
    pub features: u64,
    pub cluster: Uuid,
    pub host: Uuid,
    pub boot: Uuid,
    /// Another one for each start of a daemon.
    pub session: Uuid,
    pub cache: Uuid,
    pub name: String,
    pub domain: String,
    pub addresses: Vec<String>,
    /// Version of the program, for people.
    pub program: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    pub number: u64,
    /// Of the sender, to be shown only.
    pub wall_ms: u64,
    /// Blocks of the sender's log that copies may still take. None: the version is below
    /// [`VERSION_ROOM`].
    pub room_blocks: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong {
    /// Of the ping that it answers.
    pub number: u64,
    pub wall_ms: u64,
}

/// What a host without a certificate may say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    pub secret: [u8; SECRET_BYTES],
    pub host: Uuid,
    pub name: String,
    pub domain: String,
    pub addresses: Vec<String>,
    /// A point of P-256; the private key stays where it was made.
    pub public_key: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub cluster: Uuid,
    pub name: String,
    /// As in the configuration.
    pub vault: String,
    pub certificate: Vec<u8>,
    pub ca_key: Vec<u8>,
    pub hosts: Vec<Host>,
}

/// What a host asks another one to try for `cluster check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Question {
    /// Connect to all addresses of the asker.
    Reach = 1,
    /// Link a file in the vault to a name that the asker has linked.
    Drill = 2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Hello(Hello),
    Ping(Ping),
    Pong(Pong),
    /// All hosts that the sender knows.
    Hosts(Vec<Host>),
    /// About a volume; opaque here.
    Unit(Vec<u8>),
    /// The last frame of a connection.
    Refused {
        why: String,
    },
    Join(Join),
    Welcome(Welcome),
    Ask {
        number: u64,
        question: Question,
        text: String,
    },
    Answer {
        number: u64,
        ok: bool,
        text: String,
    },
}

impl Frame {
    pub const fn kind(&self) -> Kind {
        match self {
            Frame::Hello(_) => Kind::Hello,
            Frame::Ping(_) => Kind::Ping,
            Frame::Pong(_) => Kind::Pong,
            Frame::Hosts(_) => Kind::Hosts,
            Frame::Unit(_) => Kind::Unit,
            Frame::Refused { .. } => Kind::Refused,
            Frame::Join(_) => Kind::Join,
            Frame::Welcome(_) => Kind::Welcome,
            Frame::Ask { .. } => Kind::Ask,
            Frame::Answer { .. } => Kind::Answer,
        }
    }

    /// Header and body. Lists are within their limits; a text that is too long is cut.
    pub fn encode(&self, agreed: u16) -> Vec<u8> {
        let mut out = Out(alloc::vec![0; HEADER_BYTES]);
        self.put_body(&mut out);
        Header::seal(&mut out.0, self.kind(), agreed, Numbers::default());
        out.0
    }

    /// Checks and reads a body whose header was checked.
    pub fn parse(header: &Header, body: &[u8]) -> Result<Frame, FrameError> {
        header.check_body(body)?;
        let mut from = In(body);
        let frame = Frame::take_body(header.kind, &mut from)?;
        // A later version may say more of itself; this one does not need to know it.
        match from.0.is_empty() || header.kind == Kind::Hello {
            true => Ok(frame),
            false => Err(FrameError::Long),
        }
    }

    fn put_body(&self, out: &mut Out) {
        match self {
            Frame::Hello(hello) => put_hello(out, hello),
            Frame::Ping(ping) => {
                out.u64(ping.number);
                out.u64(ping.wall_ms);
                ping.room_blocks.iter().for_each(|room| out.u64(*room));
            }
            Frame::Pong(Pong { number, wall_ms }) => {
                out.u64(*number);
                out.u64(*wall_ms);
            }
            Frame::Hosts(hosts) => put_hosts(out, hosts),
            Frame::Unit(body) => out.0.extend_from_slice(body),
            Frame::Refused { why } => out.text(why, TEXT_BYTES_MAX),
            Frame::Join(join) => put_join(out, join),
            Frame::Welcome(welcome) => put_welcome(out, welcome),
            Frame::Ask {
                number,
                question,
                text,
            } => {
                out.u64(*number);
                out.u8(*question as u8);
                out.text(text, TEXT_BYTES_MAX);
            }
            Frame::Answer { number, ok, text } => {
                out.u64(*number);
                out.u8(u8::from(*ok));
                out.text(text, TEXT_BYTES_MAX);
            }
        }
    }

    fn take_body(kind: Kind, from: &mut In<'_>) -> Result<Frame, FrameError> {
        Ok(match kind {
            Kind::Hello => Frame::Hello(take_hello(from)?),
            Kind::Ping => Frame::Ping(Ping {
                number: from.u64()?,
                wall_ms: from.u64()?,
                room_blocks: match from.0.is_empty() {
                    true => None,
                    false => Some(from.u64()?),
                },
            }),
            Kind::Pong => Frame::Pong(Pong {
                number: from.u64()?,
                wall_ms: from.u64()?,
            }),
            Kind::Hosts => Frame::Hosts(take_hosts(from)?),
            Kind::Unit => Frame::Unit(core::mem::take(&mut from.0).to_vec()),
            Kind::Refused => Frame::Refused {
                why: from.text("why", TEXT_BYTES_MAX)?,
            },
            Kind::Join => Frame::Join(take_join(from)?),
            Kind::Welcome => Frame::Welcome(take_welcome(from)?),
            Kind::Ask => Frame::Ask {
                number: from.u64()?,
                question: match from.u8()? {
                    1 => Question::Reach,
                    2 => Question::Drill,
                    _ => return Err(FrameError::Field("question")),
                },
                text: from.text("text", TEXT_BYTES_MAX)?,
            },
            Kind::Answer => Frame::Answer {
                number: from.u64()?,
                ok: from.flag("ok")?,
                text: from.text("text", TEXT_BYTES_MAX)?,
            },
            Kind::Batch | Kind::Read | Kind::Blocks | Kind::Recall => {
                return Err(FrameError::Kind(kind as u16));
            }
        })
    }
}

fn put_hello(out: &mut Out, hello: &Hello) {
    out.u16(hello.version_min);
    out.u16(hello.version_max);
    out.u64(hello.features);
    for id in [
        hello.cluster,
        hello.host,
        hello.boot,
        hello.session,
        hello.cache,
    ] {
        out.0.extend_from_slice(&id.0);
    }
    out.text(&hello.name, NAME_BYTES_MAX);
    out.text(&hello.domain, NAME_BYTES_MAX);
    put_addresses(out, &hello.addresses);
    out.text(&hello.program, NAME_BYTES_MAX);
}

fn take_hello(from: &mut In<'_>) -> Result<Hello, FrameError> {
    let hello = Hello {
        version_min: from.u16()?,
        version_max: from.u16()?,
        features: from.u64()?,
        cluster: from.uuid()?,
        host: from.uuid()?,
        boot: from.uuid()?,
        session: from.uuid()?,
        cache: from.uuid()?,
        name: from.text("name", NAME_BYTES_MAX)?,
        domain: from.text("domain", NAME_BYTES_MAX)?,
        addresses: take_addresses(from)?,
        program: from.text("program", NAME_BYTES_MAX)?,
    };
    match hello.version_min <= hello.version_max {
        true => Ok(hello),
        false => Err(FrameError::Field("versions")),
    }
}

fn put_join(out: &mut Out, join: &Join) {
    out.0.extend_from_slice(&join.secret);
    out.0.extend_from_slice(&join.host.0);
    out.text(&join.name, NAME_BYTES_MAX);
    out.text(&join.domain, NAME_BYTES_MAX);
    put_addresses(out, &join.addresses);
    out.blob(&join.public_key, BLOB_BYTES_MAX);
}

fn take_join(from: &mut In<'_>) -> Result<Join, FrameError> {
    Ok(Join {
        secret: from.array()?,
        host: from.uuid()?,
        name: from.text("name", NAME_BYTES_MAX)?,
        domain: from.text("domain", NAME_BYTES_MAX)?,
        addresses: take_addresses(from)?,
        public_key: from.blob("public key", BLOB_BYTES_MAX)?,
    })
}

fn put_welcome(out: &mut Out, welcome: &Welcome) {
    out.0.extend_from_slice(&welcome.cluster.0);
    out.text(&welcome.name, NAME_BYTES_MAX);
    out.text(&welcome.vault, TEXT_BYTES_MAX);
    out.blob(&welcome.certificate, BLOB_BYTES_MAX);
    out.blob(&welcome.ca_key, BLOB_BYTES_MAX);
    put_hosts(out, &welcome.hosts);
}

fn take_welcome(from: &mut In<'_>) -> Result<Welcome, FrameError> {
    Ok(Welcome {
        cluster: from.uuid()?,
        name: from.text("name", NAME_BYTES_MAX)?,
        vault: from.text("vault", TEXT_BYTES_MAX)?,
        certificate: from.blob("certificate", BLOB_BYTES_MAX)?,
        ca_key: from.blob("key", BLOB_BYTES_MAX)?,
        hosts: take_hosts(from)?,
    })
}

fn put_hosts(out: &mut Out, hosts: &[Host]) {
    assert!(hosts.len() <= 2 * HOSTS_MAX, "a list of hosts is bounded");
    out.u16(hosts.len() as u16);
    for host in hosts {
        out.0.extend_from_slice(&host.id.0);
        out.u64(host.revision);
        out.u8(u8::from(host.left));
        out.text(&host.name, NAME_BYTES_MAX);
        out.text(&host.domain, NAME_BYTES_MAX);
        put_addresses(out, &host.addresses);
    }
}

fn take_hosts(from: &mut In<'_>) -> Result<Vec<Host>, FrameError> {
    let count = usize::from(from.u16()?);
    if count > 2 * HOSTS_MAX {
        return Err(FrameError::Field("hosts"));
    }
    let mut hosts = Vec::with_capacity(count);
    for _ in 0..count {
        hosts.push(Host {
            id: from.uuid()?,
            revision: from.u64()?,
            left: from.flag("left")?,
            name: from.text("name", NAME_BYTES_MAX)?,
            domain: from.text("domain", NAME_BYTES_MAX)?,
            addresses: take_addresses(from)?,
        });
    }
    Ok(hosts)
}

fn put_addresses(out: &mut Out, addresses: &[String]) {
    assert!(
        addresses.len() <= ADDRESSES_MAX,
        "a list of addresses is bounded"
    );
    out.u8(addresses.len() as u8);
    for address in addresses {
        out.text(address, ADDRESS_BYTES_MAX);
    }
}

fn take_addresses(from: &mut In<'_>) -> Result<Vec<String>, FrameError> {
    let count = usize::from(from.u8()?);
    if count > ADDRESSES_MAX {
        return Err(FrameError::Field("addresses"));
    }
    (0..count)
        .map(|_| Ok(from.text("address", ADDRESS_BYTES_MAX)?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn host(number: u8) -> Host {
        Host {
            id: Uuid([number; 16]),
            revision: 7,
            left: number == 2,
            name: "host-a".into(),
            domain: "rack-1".into(),
            addresses: vec!["10.0.0.1:7440".into(), "[::1]:7440".into()],
        }
    }

    fn hello() -> Hello {
        Hello {
            version_min: 1,
            version_max: 3,
            features: 5,
            cluster: Uuid([1; 16]),
            host: Uuid([2; 16]),
            boot: Uuid([3; 16]),
            session: Uuid([4; 16]),
            cache: Uuid([5; 16]),
            name: "host-a".into(),
            domain: String::new(),
            addresses: host(1).addresses,
            program: "0.1.0".into(),
        }
    }

    fn all() -> Vec<Frame> {
        let join = Join {
            secret: [9; SECRET_BYTES],
            host: Uuid([2; 16]),
            name: "host-b".into(),
            domain: "rack-2".into(),
            addresses: host(1).addresses,
            public_key: vec![4; 65],
        };
        let welcome = Welcome {
            cluster: Uuid([1; 16]),
            name: "c1".into(),
            vault: "beside".into(),
            certificate: vec![1; 600],
            ca_key: vec![2; 138],
            hosts: vec![host(1), host(2)],
        };
        vec![
            Frame::Hello(hello()),
            Frame::Ping(Ping {
                number: 1,
                wall_ms: 2,
                room_blocks: None,
            }),
            Frame::Ping(Ping {
                number: 1,
                wall_ms: 2,
                room_blocks: Some(u64::MAX),
            }),
            Frame::Pong(Pong {
                number: 1,
                wall_ms: 3,
            }),
            Frame::Hosts(vec![host(1), host(2)]),
            Frame::Unit(vec![7; BODY_BYTES_MAX]),
            Frame::Refused { why: "no".into() },
            Frame::Join(join),
            Frame::Welcome(welcome),
            Frame::Ask {
                number: 4,
                question: Question::Drill,
                text: "x".into(),
            },
            Frame::Answer {
                number: 4,
                ok: true,
                text: "y".into(),
            },
        ]
    }

    fn parse(bytes: &[u8], agreed: u16) -> Result<Frame, FrameError> {
        let (header, body) = bytes.split_first_chunk().ok_or(FrameError::Short)?;
        Frame::parse(&Header::parse(header, agreed)?, body)
    }

    #[test]
    fn every_frame_reads_back_and_every_flipped_bit_is_noticed() {
        for frame in all() {
            let bytes = frame.encode(2);
            assert_eq!(parse(&bytes, 2), Ok(frame.clone()), "{:?}", frame.kind());
            for at in (0..bytes.len().min(800)).chain([bytes.len() - 1]) {
                for bit in 0..8 {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << bit;
                    assert!(parse(&damaged, 2).is_err(), "{:?} byte {at}", frame.kind());
                }
            }
            for end in [0, 1, HEADER_BYTES - 1, bytes.len() - 1] {
                assert!(parse(&bytes[..end], 2).is_err());
            }
        }
    }

    #[test]
    fn a_body_may_not_be_longer_than_a_frame_takes() {
        let mut bytes = Frame::Unit(vec![]).encode(1);
        bytes[16..20].copy_from_slice(&(BODY_BYTES_MAX as u32 + 1).to_le_bytes());
        bytes[CHECKSUM_AT..16].fill(0);
        let sum = checksum(&[&bytes[..HEADER_BYTES]]);
        bytes[CHECKSUM_AT..16].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(parse(&bytes, 1), Err(FrameError::Field("body bytes")));
    }

    #[test]
    fn a_hello_of_a_later_version_may_say_more() {
        let mut bytes = Frame::Hello(hello()).encode(1);
        bytes.extend_from_slice(b"more");
        let body = bytes.len() - HEADER_BYTES;
        let header = Header {
            kind: Kind::Hello,
            body_bytes: body,
            numbers: Numbers::default(),
            body_checksum: checksum(&[&bytes[HEADER_BYTES..]]),
        };
        let read = Frame::parse(&header, &bytes[HEADER_BYTES..]);
        assert_eq!(read, Ok(Frame::Hello(hello())));
    }

    #[test]
    fn hosts_of_neighbouring_versions_talk_and_others_do_not() {
        assert_eq!(negotiate((1, 2), (2, 3)), Some(2));
        assert_eq!(negotiate((2, 3), (1, 2)), Some(2));
        assert_eq!(negotiate((1, 1), (1, 2)), Some(1));
        assert_eq!(negotiate((3, 4), (1, 2)), None);
        assert_eq!(negotiate((1, 2), (3, 4)), None);
        // A frame of the agreed version only; those that open a connection are for all.
        let ping = Frame::Ping(Ping {
            number: 1,
            wall_ms: 2,
            room_blocks: Some(3),
        })
        .encode(3);
        assert_eq!(parse(&ping, 2), Err(FrameError::Version(3)));
        assert!(parse(&Frame::Hello(hello()).encode(3), 2).is_ok());
    }

    #[test]
    fn the_longest_list_of_hosts_fits_into_a_frame() {
        let long = |number: usize| Host {
            name: "n".repeat(NAME_BYTES_MAX),
            domain: "d".repeat(NAME_BYTES_MAX),
            addresses: vec!["a".repeat(ADDRESS_BYTES_MAX); ADDRESSES_MAX],
            left: false,
            ..host(number as u8)
        };
        let left = |number: usize| Host {
            name: String::new(),
            domain: String::new(),
            addresses: Vec::new(),
            left: true,
            ..host(number as u8)
        };
        let hosts = (0..HOSTS_MAX).map(long).chain((0..HOSTS_MAX).map(left));
        let frame = Frame::Hosts(hosts.collect());
        assert_eq!(parse(&frame.encode(1), 1), Ok(frame));
    }
}
