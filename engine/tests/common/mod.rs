//! Structures as the tests of the formats write them.
//!
//! Always true: what is here lies in the fixtures too, so it never changes.

// Not every test needs all of it.
#![allow(dead_code)]

use engine::format::checkpoint::{Checkpoint, SegmentRecord, VolumeRecord};
use engine::format::fill::Life;
use engine::format::footer::{Footer, FooterEntry};
use engine::format::ledger::{Ledger, Progress};
use engine::format::record::{self, Entry, EntryKind, Identity};
use engine::types::{EpochNumber, Generation, Serial, Span, Tag, Uuid, VolumeId};

pub const CACHE: Uuid = Uuid(*b"the cache itself");
pub const VOLUME: Uuid = Uuid(*b"one of a volume.");
pub const BOOT: Uuid = Uuid(*b"boot of the host");
pub const MACHINE: Uuid = Uuid(*b"the host machine");

pub fn checkpoint(volumes: Vec<VolumeRecord>, segments: Vec<SegmentRecord>) -> Checkpoint {
    Checkpoint {
        cache: CACHE,
        boot: BOOT,
        sequence: 42,
        incarnation: 9,
        stream_seq_next: 100,
        segment_seq_next: 55,
        generation_next: 8,
        unwritten_from: 6,
        segments_total: 8,
        volumes,
        segments,
    }
}

pub fn identity() -> Identity {
    Identity {
        cache: CACHE,
        stream: record::STREAM_WRITES,
        incarnation: 9,
        segment_seq: 54,
        stream_seq: 91,
        durable_upto: 89,
    }
}

pub fn entry(serial: u64, kind: EntryKind, span: Span, first_block: u16, more: bool) -> Entry {
    Entry {
        kind,
        volume: VolumeId(2),
        generation: Generation(7),
        serial: Serial(serial),
        span,
        first_block,
        inline: None,
        more,
        epoch: EpochNumber::default(),
        tag: Tag::NONE,
    }
}

/// A record that is open: its head, its entries, and the sums of their blocks.
pub fn open_record(entries: &[Entry], sums: &[u32]) -> Vec<u8> {
    open_record_of(&identity(), entries, sums)
}

pub fn open_record_of(identity: &Identity, entries: &[Entry], sums: &[u32]) -> Vec<u8> {
    let mut block = vec![0; record::HEADER_BYTES];
    let head = record::encode_open(record::Shape::Blocks, identity);
    block[..record::ENTRIES_AT].copy_from_slice(&head);
    for (n, sum) in sums.iter().take(record::SUMS_MAX).enumerate() {
        let at = record::SUMS_AT + n * 4;
        block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
    for (n, entry) in entries.iter().enumerate() {
        let first = usize::from(entry.first_block);
        let sums = &sums[first..first + entry.blocks() as usize];
        let at = record::ENTRIES_AT + n * record::ENTRY_BYTES;
        let bytes = record::encode_entry(identity, entry, sums);
        block[at..at + record::ENTRY_BYTES].copy_from_slice(&bytes);
    }
    block
}

/// A record with payload in its header block: small writes of these sectors, one after the other,
/// the bytes of each of one value, and then entries with blocks of their own.
pub fn open_inline_record(small: &[(Entry, u8)], entries: &[Entry], sums: &[u32]) -> Vec<u8> {
    let (identity, shape) = (identity(), record::Shape::Inline);
    let mut block = vec![0; record::HEADER_BYTES];
    block[..record::ENTRIES_AT].copy_from_slice(&record::encode_open(shape, &identity));
    let mut at = record::ENTRIES_AT;
    for (entry, fill) in small {
        let from = usize::from(entry.inline.expect("it is inline")) * 512;
        let payload = &mut block[from..from + entry.span.sectors as usize * 512];
        payload.fill(*fill);
        let sum = engine::format::checksum(&[payload]);
        let bytes = record::encode_entry(&identity, entry, &[sum]);
        block[at..at + record::ENTRY_BYTES].copy_from_slice(&bytes);
        at += record::ENTRY_BYTES;
    }
    for (n, sum) in sums.iter().enumerate() {
        let at = shape.sums_at() + n * 4;
        block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
    for entry in entries {
        let first = usize::from(entry.first_block);
        let sums = &sums[first..first + entry.blocks() as usize];
        let bytes = record::encode_entry(&identity, entry, sums);
        block[at..at + record::ENTRY_BYTES].copy_from_slice(&bytes);
        at += record::ENTRY_BYTES;
    }
    block
}

/// A small write whose payload lies in the header block, from this sector on.
pub fn inline_entry(serial: u64, span: Span, at: u8) -> Entry {
    Entry {
        inline: Some(at),
        ..entry(serial, EntryKind::Write, span, 0, false)
    }
}

/// The same entry in the footer of its segment.
pub fn in_footer(entry: &Entry, block: u32) -> FooterEntry {
    FooterEntry {
        volume: entry.volume,
        generation: entry.generation,
        serial: entry.serial,
        span: entry.span,
        kind: entry.kind,
        block,
        inline: entry.inline,
        more: entry.more,
        epoch: entry.epoch,
    }
}

pub fn footer(entries: Vec<FooterEntry>, sums: Vec<u32>) -> Footer {
    Footer {
        cache: CACHE,
        stream: record::STREAM_WRITES,
        incarnation: 9,
        segment_seq: 54,
        first_stream_seq: 91,
        last_stream_seq: 91,
        durable_upto: 89,
        entries,
        sums,
    }
}

pub fn life() -> Life {
    Life {
        cache: CACHE,
        incarnation: 9,
        segment_seq: 55,
    }
}

pub fn ledger() -> Ledger {
    Ledger {
        sequence: 12,
        volume: VOLUME,
        cache: CACHE,
        machine: MACHINE,
        boot: BOOT,
        owner: "host-a".into(),
        generation: Generation(7),
        destaged: Serial(999),
        progress: Progress::Idle,
        dirty: true,
        origin_bytes: 64 << 30,
        mtime_before_ns: 1_700_000_000_000_000_000,
        mtime_limit_ns: 1_700_000_000_000_000_001,
        may_succeed: false,
        compatible: 1 << 40,
        image: Default::default(),
    }
}
