//! The target for frames between hosts: each is built well or taken raw, damaged, repaired, parsed.
//!
//! Invariants: parsing returns and never panics; what was parsed is written again as a frame that
//! reads the same; no header asks for more than a frame may hold.

use crate::source::Source;
use engine::format::checksum;
use engine::format::record::EntryKind;
use engine::types::{Serial, Span, Time, Uuid};
use node::batch::{Batch, PARTS_MAX, Part};
use node::frame::{
    ADDRESSES_MAX, BODY_BYTES_MAX, Frame, HEADER_BYTES, Header, Hello, Host, Join, MAGIC,
    PAYLOAD_BYTES_MAX, Ping, Pong, Question, SECRET_BYTES, Welcome,
};
use node::peers::{Link, PeerTimeout, State};
use node::reads::{BLOCKS_MAX, Blocks, Read};

const TEXT: usize = 32;

pub fn frame(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let agreed = 1 + source.u16() % 3;
    let choice = source.byte();
    let mut bytes = if choice & 48 == 48 {
        read(source, agreed)
    } else if choice & 16 != 0 {
        batch(source).encode(agreed)
    } else if choice & 1 == 0 {
        built(source).encode(agreed)
    } else {
        let mut raw = source.take(1024).to_vec();
        raw.resize(raw.len().max(HEADER_BYTES), 0);
        stamp(&mut raw, agreed);
        raw
    };
    if choice & 2 == 0 {
        source.damage(&mut bytes);
    }
    if choice & 12 != 0 {
        repair(&mut bytes);
    }
    let Some((header, body)) = bytes.split_first_chunk() else {
        return false;
    };
    let Ok(header) = Header::parse(header, agreed) else {
        return false;
    };
    assert!(header.body_bytes <= BODY_BYTES_MAX);
    assert!(header.numbers.payload_bytes <= PAYLOAD_BYTES_MAX);
    if let Ok(parsed) = Batch::parse(&header, body) {
        assert_eq!(parsed.payload_bytes(), header.numbers.payload_bytes);
        let again = parsed.encode(agreed);
        let (header, body) = again.split_first_chunk().expect("a frame has a header");
        let header = Header::parse(header, agreed).expect("our own header");
        assert_eq!(Batch::parse(&header, body), Ok(parsed));
        return true;
    }
    if let Some(again) = parse_read(&header, body, agreed) {
        let whole = &bytes[..HEADER_BYTES + header.body_bytes];
        assert_eq!(again, whole, "it is written again as the same bytes");
        return true;
    }
    let Ok(parsed) = Frame::parse(&header, body) else {
        return false;
    };
    link(&parsed, source.u64());
    let again = parsed.encode(agreed);
    let (header, body) = again.split_first_chunk().expect("a frame has a header");
    let header = Header::parse(header, agreed).expect("our own header");
    assert_eq!(Frame::parse(&header, body), Ok(parsed));
    true
}

/// A read of clean blocks, or its answer.
fn read(source: &mut Source, agreed: u16) -> Vec<u8> {
    let (number, count) = (source.u64(), source.below(BLOCKS_MAX + 1));
    match source.byte() % 2 {
        0 => Read {
            number,
            volume: Uuid(source.bytes16()),
            since: Serial(source.u64()),
            first_block: source.number() >> 16,
            blocks: count.max(1) as u32,
        }
        .encode(agreed),
        _ => Blocks {
            number,
            sums: (0..count).map(|_| source.u32()).collect(),
        }
        .encode(agreed),
    }
}

/// What was parsed, written again.
fn parse_read(header: &Header, body: &[u8], agreed: u16) -> Option<Vec<u8>> {
    if let Ok(read) = Read::parse(header, body) {
        assert!((1..=BLOCKS_MAX as u32).contains(&read.blocks));
        return Some(read.encode(agreed));
    }
    let blocks = Blocks::parse(header, body).ok()?;
    assert_eq!(blocks.payload_bytes(), header.numbers.payload_bytes);
    Some(blocks.encode(agreed))
}

fn batch(source: &mut Source) -> Batch {
    let upto = source.number();
    let mut from = source.number() / 2;
    let mut parts = Vec::new();
    for _ in 0..source.below(PARTS_MAX + 1) {
        let sector = from + u64::from(source.byte());
        let kind = match source.byte() % 3 {
            0 => EntryKind::Write,
            kind => EntryKind::Zero {
                allocate: kind == 1,
            },
        };
        let (sectors, sum) = match kind {
            EntryKind::Write => (1 + u64::from(source.byte() % 32), source.u32()),
            EntryKind::Zero { .. } => (u64::from(source.u32().max(1)), 0),
        };
        let span = Span::new(sector, sectors);
        parts.push(Part { span, kind, sum });
        from = span.end();
    }
    Batch {
        number: source.number().max(1),
        term: source.number().max(1),
        copy: Uuid(source.bytes16()),
        session: Uuid(source.bytes16()),
        after: Serial(source.number()),
        upto: Serial(upto),
        destaged: Serial(source.number().min(upto)),
        part: source.u32(),
        ends: parts.is_empty() || source.flag(),
        begins_epoch: source.flag(),
        parts,
    }
}

/// What a host says never breaks the state of its link.
fn link(frame: &Frame, time: u64) {
    let mut link = Link::new(Time(0), PeerTimeout::default());
    link.tick(Time(0), 0, 0);
    link.connected(Time(0), 1);
    link.tick(Time(0), 0, 0);
    link.heard(Time(time));
    if let Frame::Pong(pong) = frame {
        link.pong(Time(time), pong, time);
    }
    link.tick(Time(time), time, time);
    assert_ne!(link.state(), State::Down);
}

fn stamp(bytes: &mut [u8], agreed: u16) {
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&agreed.to_le_bytes());
    bytes[10] %= 12;
    bytes[11] = 0;
    bytes[20..24].fill(0);
    bytes[28..HEADER_BYTES].fill(0);
}

/// Lengths and checksums of what is there.
fn repair(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let (header, body) = bytes.split_at_mut(HEADER_BYTES);
    header[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[24..28].copy_from_slice(&checksum(&[body]).to_le_bytes());
    header[12..16].fill(0);
    let sum = checksum(&[header]);
    header[12..16].copy_from_slice(&sum.to_le_bytes());
}

fn addresses(source: &mut Source) -> Vec<String> {
    (0..source.below(ADDRESSES_MAX + 1))
        .map(|_| text(source))
        .collect()
}

/// A text as hosts write them: one line.
fn text(source: &mut Source) -> String {
    source
        .text(TEXT)
        .chars()
        .filter(|letter| !letter.is_control())
        .collect()
}

fn hosts(source: &mut Source) -> Vec<Host> {
    let host = |source: &mut Source| Host {
        id: Uuid(source.bytes16()),
        revision: source.u64(),
        left: source.flag(),
        name: text(source),
        domain: text(source),
        addresses: addresses(source),
    };
    (0..source.below(4)).map(|_| host(source)).collect()
}

fn built(source: &mut Source) -> Frame {
    let number = source.u64();
    match source.byte() % 10 {
        0 => {
            let version_min = source.u16() % 4;
            Frame::Hello(Hello {
                version_min,
                version_max: version_min + source.u16() % 4,
                features: number,
                cluster: Uuid(source.bytes16()),
                host: Uuid(source.bytes16()),
                boot: Uuid(source.bytes16()),
                session: Uuid(source.bytes16()),
                cache: Uuid(source.bytes16()),
                name: text(source),
                domain: text(source),
                addresses: addresses(source),
                program: text(source),
            })
        }
        1 => Frame::Ping(Ping {
            number,
            wall_ms: source.u64(),
            room_blocks: source.flag().then(|| source.u64()),
        }),
        2 => Frame::Pong(Pong {
            number: number % 3,
            wall_ms: source.u64(),
        }),
        3 => Frame::Hosts(hosts(source)),
        4 => Frame::Unit(source.take(512).to_vec()),
        5 => Frame::Refused { why: text(source) },
        6 => {
            let mut secret = [0; SECRET_BYTES];
            secret.copy_from_slice(&source.bytes16());
            Frame::Join(Join {
                secret,
                host: Uuid(source.bytes16()),
                name: text(source),
                domain: text(source),
                addresses: addresses(source),
                public_key: source.take(65).to_vec(),
            })
        }
        7 => Frame::Welcome(Welcome {
            cluster: Uuid(source.bytes16()),
            name: text(source),
            vault: text(source),
            certificate: source.take(64).to_vec(),
            ca_key: source.take(64).to_vec(),
            hosts: hosts(source),
        }),
        8 => Frame::Ask {
            number,
            question: source.pick(&[Question::Reach, Question::Drill]),
            text: text(source),
        },
        _ => Frame::Answer {
            number,
            ok: source.flag(),
            text: text(source),
        },
    }
}
