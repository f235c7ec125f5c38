//! A record of the log: one header block, then its payload blocks.
//!
//! The header is built in the stage while the record is open. `identity` makes the head valid
//! from the first store on, each entry carries a checksum of its own that also covers the sums
//! of its payload, and `prefix.checksum` seals the whole block when the record is closed. So
//! after a kill the stage is read entry by entry, and after a power loss the log is read record
//! by record, from the same bytes.
//!
//! Two shapes: most records have payload in blocks of their own. One that begins with a small
//! write keeps it inside the header block, behind fewer entries and sums, so that a flush of one
//! small write costs one block of the device and not two.

use super::{FormatError, Kind, PREFIX_BYTES, Prefix, check, check_prefix, checksum, seal, zeroes};
use crate::adversary::{Bug, has};
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, EpochNumber, Generation, SECTOR_BYTES, Serial, Span, Tag, Uuid,
    VolumeId,
};
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const HEADER_BYTES: usize = BLOCK_BYTES as usize;
/// Entries of one record.
pub const ENTRIES_MAX: usize = 64;
/// Payload blocks of one record; the largest chunk has 128 blocks.
pub const SUMS_MAX: usize = 128;
pub const ENTRIES_AT: usize = 128;
pub const ENTRY_BYTES: usize = 48;
pub const SUMS_AT: usize = ENTRIES_AT + ENTRIES_MAX * ENTRY_BYTES;
const END: usize = SUMS_AT + SUMS_MAX * 4;
const _: () = assert!(END <= HEADER_BYTES);

/// The first sector of a header block that holds payload, in records of that shape.
pub const INLINE_FROM: u64 = 3;
/// Sectors of payload that such a header block holds: 2.5 KiB.
pub const INLINE_SECTORS: u64 = BLOCK_SECTORS - INLINE_FROM;
pub const INLINE_ENTRIES_MAX: usize = 24;
pub const INLINE_SUMS_MAX: usize = 64;
pub const INLINE_SUMS_AT: usize = ENTRIES_AT + INLINE_ENTRIES_MAX * ENTRY_BYTES;
const INLINE_AT: usize = INLINE_SUMS_AT + INLINE_SUMS_MAX * 4;
const _: () = assert!(INLINE_AT == (INLINE_FROM * SECTOR_BYTES) as usize);
const _: () = assert!(INLINE_ENTRIES_MAX <= ENTRIES_MAX && INLINE_SUMS_MAX <= SUMS_MAX);

/// What the header block of a record is divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Entries and sums; all payload lies in blocks behind.
    Blocks,
    /// Fewer of both, and payload of small writes behind them.
    Inline,
}

impl Shape {
    fn kind(self) -> Kind {
        match self {
            Shape::Blocks => Kind::Record,
            Shape::Inline => Kind::InlineRecord,
        }
    }

    fn of(block: &[u8]) -> Result<Shape, FormatError> {
        match check_prefix(block, Kind::InlineRecord) {
            Ok(()) => Ok(Shape::Inline),
            Err(_) => check_prefix(block, Kind::Record).map(|()| Shape::Blocks),
        }
    }

    pub fn entries_max(self) -> usize {
        match self {
            Shape::Blocks => ENTRIES_MAX,
            Shape::Inline => INLINE_ENTRIES_MAX,
        }
    }

    pub fn sums_max(self) -> usize {
        match self {
            Shape::Blocks => SUMS_MAX,
            Shape::Inline => INLINE_SUMS_MAX,
        }
    }

    pub fn sums_at(self) -> usize {
        match self {
            Shape::Blocks => SUMS_AT,
            Shape::Inline => INLINE_SUMS_AT,
        }
    }
}

/// The stream of logged writes, and the one of ephemeral overlays.
pub const STREAM_WRITES: u16 = 1;
pub const STREAM_OVERLAY: u16 = 2;
/// Not a stream of records: clean blocks, see `fill`.
pub const STREAM_FILL: u16 = 3;
const _: () = assert!(STREAM_WRITES != STREAM_OVERLAY && STREAM_OVERLAY != STREAM_FILL);

/// The appenders of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Logged writes: written soon, made durable by flushes.
    Writes,
    /// Ephemeral overlays: written only when their slots run out.
    Overlay,
    /// Overlays beyond their own share of RAM: written as soon as a chunk is full. To everybody
    /// who reads the log it is the same stream.
    Spill,
}

impl StreamKind {
    /// Those that own slots, and that the log tells apart.
    pub const STORED: [StreamKind; 2] = [StreamKind::Writes, StreamKind::Overlay];

    pub fn code(self) -> u16 {
        match self {
            StreamKind::Writes => STREAM_WRITES,
            StreamKind::Overlay | StreamKind::Spill => STREAM_OVERLAY,
        }
    }

    pub fn of_code(code: u16) -> Option<StreamKind> {
        StreamKind::STORED
            .into_iter()
            .find(|kind| kind.code() == code)
    }

    /// Whose slots it takes.
    pub(crate) fn stored(self) -> StreamKind {
        match self {
            StreamKind::Writes => StreamKind::Writes,
            StreamKind::Overlay | StreamKind::Spill => StreamKind::Overlay,
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HeadBytes {
    pub prefix: Prefix,
    /// Checksum of the fields below up to `durable_upto`, stored when the record is opened.
    pub identity: U32,
    pub shard: U16,
    pub stream: U16,
    pub cache: [u8; 16],
    pub incarnation: U64,
    pub segment_seq: U64,
    pub stream_seq: U64,
    pub durable_upto: U64,
    pub entries: U16,
    pub payload_blocks: U16,
    pub reserved: [u8; 44],
}

const IDENTITY_FROM: usize = PREFIX_BYTES + 4;
const IDENTITY_TO: usize = 72;
/// Where the counts of entries and payload blocks lie, stored when the record is sealed.
pub const COUNTS_AT: usize = IDENTITY_TO;
const _: () = assert!(size_of::<HeadBytes>() <= ENTRIES_AT);
const _: () = assert!(core::mem::offset_of!(HeadBytes, entries) == IDENTITY_TO);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EntryBytes {
    pub checksum: U32,
    pub kind: u8,
    pub flags: u8,
    /// First payload block of the entry within the record.
    pub first_block: U16,
    pub volume: U32,
    pub generation: U32,
    pub serial: U64,
    pub sector: U64,
    pub sectors: U32,
    pub region: U32,
    pub counter: U64,
}

const _: () = assert!(size_of::<EntryBytes>() == ENTRY_BYTES);

const KIND_WRITE: u8 = 1;
const KIND_ZERO: u8 = 2;
/// A write whose payload lies in the header block.
const KIND_INLINE: u8 = 3;
const FLAG_ALLOCATE: u8 = 1;
/// More entries of the same serial follow: the write counts only when its last one is there.
const FLAG_MORE: u8 = 2;
/// The other bits of the flags are the number of the epoch.
const EPOCH_SHIFT: u8 = 2;
const _: () = assert!(FLAG_ALLOCATE & FLAG_MORE == 0, "a flag has its own bit");
const _: () = assert!(FLAG_ALLOCATE < 1 << EPOCH_SHIFT && FLAG_MORE < 1 << EPOCH_SHIFT);

/// The flags of an entry, and back.
pub(crate) fn flags_of(of_kind: u8, more: bool, epoch: EpochNumber) -> u8 {
    assert!(of_kind & !FLAG_ALLOCATE == 0, "a flag has its own bit");
    let more = if more { FLAG_MORE } else { 0 };
    of_kind | more | epoch.get() << EPOCH_SHIFT
}

pub(crate) fn split_flags(flags: u8) -> (u8, bool, EpochNumber) {
    let epoch = EpochNumber::of(flags >> EPOCH_SHIFT);
    (flags & FLAG_ALLOCATE, flags & FLAG_MORE != 0, epoch)
}

/// What an entry does to its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Write,
    /// Reads as zeroes; `allocate` asks the origin to keep the space.
    Zero {
        allocate: bool,
    },
}

impl EntryKind {
    fn code(self) -> (u8, u8) {
        match self {
            EntryKind::Write => (KIND_WRITE, 0),
            EntryKind::Zero { allocate: false } => (KIND_ZERO, 0),
            EntryKind::Zero { allocate: true } => (KIND_ZERO, FLAG_ALLOCATE),
        }
    }

    pub(crate) fn of(kind: u8, flags: u8) -> Result<EntryKind, FormatError> {
        match (kind, flags) {
            (KIND_WRITE, 0) => Ok(EntryKind::Write),
            (KIND_ZERO, 0) => Ok(EntryKind::Zero { allocate: false }),
            (KIND_ZERO, FLAG_ALLOCATE) => Ok(EntryKind::Zero { allocate: true }),
            _ => Err(FormatError::Field("entry kind")),
        }
    }

    pub(crate) fn codes(self) -> (u8, u8) {
        self.code()
    }

    /// The codes of an entry that may be inline.
    pub(crate) fn codes_at(self, inline: Option<u8>) -> (u8, u8) {
        assert!(
            inline.is_none_or(|at| self == EntryKind::Write && u64::from(at) >= INLINE_FROM),
            "only writes have payload, and none in the first sectors of a header block"
        );
        match (self, inline) {
            (EntryKind::Write, Some(_)) => (KIND_INLINE, 0),
            (kind, _) => kind.code(),
        }
    }

    /// The kind of an entry, and whether its payload is inline.
    pub(crate) fn parse_at(kind: u8, flags: u8) -> Result<(EntryKind, bool), FormatError> {
        match kind {
            KIND_INLINE => Ok((EntryKind::of(KIND_WRITE, flags)?, true)),
            kind => Ok((EntryKind::of(kind, flags)?, false)),
        }
    }
}

/// Where an inline payload of so many sectors may lie: its first sector in the header block.
pub(crate) fn inline_at(sector: u64, sectors: u64) -> Result<u8, FormatError> {
    let inside = (INLINE_FROM..BLOCK_SECTORS).contains(&sector);
    let fits = inside && sectors <= BLOCK_SECTORS - sector;
    match fits {
        true => Ok(sector as u8),
        false => Err(FormatError::Field("inline payload")),
    }
}

/// One write, discard or write of zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: EntryKind,
    pub volume: VolumeId,
    pub generation: Generation,
    pub serial: Serial,
    pub span: Span,
    /// First payload block within the record; of an entry without one, 0.
    pub first_block: u16,
    /// Where in the header block its payload begins, in sectors, if it lies there.
    pub inline: Option<u8>,
    /// The write goes on in a further entry of the same serial.
    pub more: bool,
    pub epoch: EpochNumber,
    pub tag: Tag,
}

impl Entry {
    /// Payload blocks the entry occupies.
    pub fn blocks(&self) -> u64 {
        match (self.kind, self.inline) {
            (EntryKind::Write, None) => self.span.blocks(),
            (EntryKind::Write, Some(_)) | (EntryKind::Zero { .. }, _) => 0,
        }
    }

    /// Sums that its own checksum covers: of its blocks, or of its inline payload.
    fn sums(&self) -> u64 {
        match self.inline {
            Some(_) => 1,
            None => self.blocks(),
        }
    }
}

/// Who a record is: known before its first entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cache: Uuid,
    pub stream: u16,
    pub incarnation: u64,
    pub segment_seq: u64,
    pub stream_seq: u64,
    /// Records up to this one were on stable media when the record was opened.
    pub durable_upto: u64,
}

/// A record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub shape: Shape,
    pub identity: Identity,
    pub entries: Vec<Entry>,
    /// One checksum per payload block.
    pub sums: Vec<u32>,
}

impl Record {
    /// Whether the map points into its header block.
    pub fn has_inline(&self) -> bool {
        self.entries.iter().any(|entry| entry.inline.is_some())
    }
}

/// The head as it is stored when the record is opened. The rest of the block must be zero.
pub fn encode_open(shape: Shape, identity: &Identity) -> [u8; ENTRIES_AT] {
    let mut head = HeadBytes {
        prefix: Prefix::new(shape.kind()),
        identity: U32::new(0),
        shard: U16::new(0),
        stream: U16::new(identity.stream),
        cache: identity.cache.0,
        incarnation: U64::new(identity.incarnation),
        segment_seq: U64::new(identity.segment_seq),
        stream_seq: U64::new(identity.stream_seq),
        durable_upto: U64::new(identity.durable_upto),
        entries: U16::new(0),
        payload_blocks: U16::new(0),
        reserved: [0; 44],
    };
    let sum = checksum(&[&head.as_bytes()[IDENTITY_FROM..IDENTITY_TO]]);
    head.identity = U32::new(sum);
    let mut bytes = [0; ENTRIES_AT];
    bytes[..size_of::<HeadBytes>()].copy_from_slice(head.as_bytes());
    bytes
}

/// An entry, bound to its record and to the sums of its payload: one for each block, or one of
/// its sectors in the header block.
pub fn encode_entry(identity: &Identity, entry: &Entry, sums: &[u32]) -> [u8; ENTRY_BYTES] {
    assert!(
        sums.len() as u64 == entry.sums(),
        "each block of a payload has its sum"
    );
    let (kind, flags) = entry.kind.codes_at(entry.inline);
    let flags = flags_of(flags, entry.more, entry.epoch);
    let first_block = entry.inline.map_or(entry.first_block, u16::from);
    let mut bytes = EntryBytes {
        checksum: U32::new(0),
        kind,
        flags,
        first_block: U16::new(first_block),
        volume: U32::new(entry.volume.0),
        generation: U32::new(entry.generation.0),
        serial: U64::new(entry.serial.0),
        sector: U64::new(entry.span.sector),
        sectors: U32::new(entry.span.sectors as u32),
        region: U32::new(entry.tag.region),
        counter: U64::new(entry.tag.counter),
    };
    bytes.checksum = U32::new(entry_sum(identity, bytes.as_bytes(), sums));
    let mut out = [0; ENTRY_BYTES];
    out.copy_from_slice(bytes.as_bytes());
    out
}

/// Over record, entry and sums, gathered in pieces: the digest takes sixteen bytes in one step,
/// but what it is given in less than that byte by byte.
fn entry_sum(identity: &Identity, entry: &[u8], sums: &[u32]) -> u32 {
    const ENTRY_FROM: usize = 16;
    const SUMS_FROM: usize = ENTRY_FROM + ENTRY_BYTES - 4;
    let mut digest = super::CASTAGNOLI.digest();
    let (mut piece, mut at) = ([0; SUMS_FROM + 68], SUMS_FROM);
    piece[..8].copy_from_slice(&identity.incarnation.to_le_bytes());
    piece[8..ENTRY_FROM].copy_from_slice(&identity.stream_seq.to_le_bytes());
    piece[ENTRY_FROM..SUMS_FROM].copy_from_slice(&entry[4..]);
    for sum in sums {
        if at == piece.len() {
            digest.update(&piece);
            at = 0;
        }
        piece[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        at += 4;
    }
    digest.update(&piece[..at]);
    digest.finalize()
}

/// Closes a record: counts and the checksum over the block, in place.
pub fn seal_record(block: &mut [u8], entries: u16, payload_blocks: u16) {
    let (head, _) = HeadBytes::mut_from_prefix(block).expect("a header block has 4 KiB");
    head.entries = U16::new(entries);
    head.payload_blocks = U16::new(payload_blocks);
    seal(&mut block[..HEADER_BYTES]);
}

/// Reads a closed record: from the log, or sealed in the stage.
pub fn parse_sealed(block: &[u8]) -> Result<Record, FormatError> {
    let block = block.get(..HEADER_BYTES).ok_or(FormatError::Short)?;
    let shape = Shape::of(block)?;
    if !has(Bug::DropRecordSum) {
        check(block, shape.kind())?;
    }
    let (identity, head) = parse_head(block)?;
    let (count, blocks) = (
        head.entries.get() as usize,
        head.payload_blocks.get() as usize,
    );
    if count > shape.entries_max() || blocks > shape.sums_max() {
        return Err(FormatError::Field("record counts"));
    }
    if shape == Shape::Blocks {
        zeroes(&block[END..])?;
    }
    let (mut entries, mut next) = (Vec::with_capacity(count), Next::new());
    for at in 0..count {
        let entry = parse_entry(block, (shape, at), &identity, next)?;
        next.skip(&entry);
        entries.push(entry);
    }
    if next.block != blocks as u64 {
        return Err(FormatError::Field("payload blocks"));
    }
    Ok(Record {
        shape,
        identity,
        entries,
        sums: (0..blocks).map(|at| sum_at(block, shape, at)).collect(),
    })
}

/// Reads a record that may be open: the head and as many entries as are valid.
pub fn parse_open(block: &[u8]) -> Result<Record, FormatError> {
    let block = block.get(..HEADER_BYTES).ok_or(FormatError::Short)?;
    let shape = Shape::of(block)?;
    let (identity, _) = parse_head(block)?;
    let (mut entries, mut next) = (Vec::new(), Next::new());
    for at in 0..shape.entries_max() {
        match parse_entry(block, (shape, at), &identity, next) {
            Ok(entry) => {
                next.skip(&entry);
                entries.push(entry);
            }
            Err(_) => break,
        }
    }
    let blocks = next.block as usize;
    Ok(Record {
        shape,
        identity,
        entries,
        sums: (0..blocks).map(|at| sum_at(block, shape, at)).collect(),
    })
}

/// Where the payload of the next entry lies: one after the other, in blocks and in the header.
#[derive(Clone, Copy)]
struct Next {
    block: u64,
    sector: u64,
}

impl Next {
    fn new() -> Next {
        Next {
            block: 0,
            sector: INLINE_FROM,
        }
    }

    fn skip(&mut self, entry: &Entry) {
        self.block += entry.blocks();
        if entry.inline.is_some() {
            self.sector += entry.span.sectors;
            assert!(self.sector <= BLOCK_SECTORS, "it was seen to fit");
        }
    }
}

fn sum_at(block: &[u8], shape: Shape, at: usize) -> u32 {
    let at = shape.sums_at() + at * 4;
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn parse_head(block: &[u8]) -> Result<(Identity, HeadBytes), FormatError> {
    let (head, _) = HeadBytes::ref_from_prefix(block).map_err(|_| FormatError::Short)?;
    if checksum(&[&block[IDENTITY_FROM..IDENTITY_TO]]) != head.identity.get() {
        return Err(FormatError::Checksum);
    }
    zeroes(&head.reserved)?;
    if head.shard.get() != 0 {
        return Err(FormatError::Field("shard"));
    }
    if !matches!(head.stream.get(), STREAM_WRITES | STREAM_OVERLAY) {
        return Err(FormatError::Field("stream"));
    }
    let identity = Identity {
        cache: Uuid(head.cache),
        stream: head.stream.get(),
        incarnation: head.incarnation.get(),
        segment_seq: head.segment_seq.get(),
        stream_seq: head.stream_seq.get(),
        durable_upto: head.durable_upto.get(),
    };
    Ok((identity, *head))
}

/// Entries lie one after the other, so the place of each payload is known beforehand.
fn parse_entry(
    block: &[u8],
    (shape, at): (Shape, usize),
    identity: &Identity,
    next: Next,
) -> Result<Entry, FormatError> {
    let at = ENTRIES_AT + at * ENTRY_BYTES;
    let bytes =
        EntryBytes::ref_from_bytes(&block[at..at + ENTRY_BYTES]).map_err(|_| FormatError::Short)?;
    let (flags, more, epoch) = split_flags(bytes.flags);
    let (kind, inline) = EntryKind::parse_at(bytes.kind, flags)?;
    let span = Span::new(bytes.sector.get(), u64::from(bytes.sectors.get()));
    if span.sectors == 0 || span.sector > MAX_SECTOR || span.sectors > MAX_SECTOR - span.sector {
        return Err(FormatError::Field("entry range"));
    }
    if inline && shape == Shape::Blocks {
        return Err(FormatError::Field("entry kind"));
    }
    let inline = match inline {
        true => Some(inline_at(next.sector, span.sectors)?),
        false => None,
    };
    let mut entry = Entry {
        kind,
        volume: VolumeId(bytes.volume.get()),
        generation: Generation(bytes.generation.get()),
        serial: Serial(bytes.serial.get()),
        span,
        first_block: 0,
        inline,
        more,
        epoch,
        tag: Tag {
            region: bytes.region.get(),
            counter: bytes.counter.get(),
        },
    };
    let tagged = kind == EntryKind::Write && entry.tag.region != 0;
    if !tagged && entry.tag != Tag::NONE {
        return Err(FormatError::Field("entry tag"));
    }
    let expected = match (inline, entry.blocks()) {
        (Some(sector), _) => u64::from(sector),
        (None, 0) => 0,
        (None, _) => next.block,
    };
    let room = shape.sums_max() as u64;
    if u64::from(bytes.first_block.get()) != expected || next.block + entry.blocks() > room {
        return Err(FormatError::Field("entry payload"));
    }
    let mut sums = Vec::with_capacity(entry.sums() as usize);
    match inline {
        Some(sector) => sums.push(inline_sum(block, u64::from(sector), span.sectors)),
        None => {
            entry.first_block = expected as u16;
            let blocks = next.block..next.block + entry.blocks();
            sums.extend(blocks.map(|at| sum_at(block, shape, at as usize)));
        }
    }
    if entry_sum(identity, bytes.as_bytes(), &sums) != bytes.checksum.get() {
        return Err(FormatError::Checksum);
    }
    Ok(entry)
}

/// The sum of payload that lies in a header block.
fn inline_sum(block: &[u8], sector: u64, sectors: u64) -> u32 {
    let at = (sector * SECTOR_BYTES) as usize;
    checksum(&[&block[at..at + (sectors * SECTOR_BYTES) as usize]])
}

/// Largest guest sector: 2 PiB volumes, as the extent map packs 44 bits.
pub const MAX_SECTOR: u64 = (2 << 50) / (BLOCK_BYTES / BLOCK_SECTORS);
const _: () = assert!(MAX_SECTOR < 1 << 44, "an extent of the map can name it");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_an_entry_is_that_of_all_its_bytes_in_a_row() {
        let identity = Identity {
            cache: Uuid([1; 16]),
            stream: STREAM_WRITES,
            incarnation: 0x0102_0304_0506_0708,
            segment_seq: 7,
            stream_seq: 0x1112_1314_1516_1718,
            durable_upto: 3,
        };
        let all: Vec<u32> = (0..SUMS_MAX as u32).map(|n| n * 0x0101_0107).collect();
        let entry: [u8; ENTRY_BYTES] = core::array::from_fn(|at| at as u8 ^ 0x5A);
        for count in 0..=SUMS_MAX {
            let mut row = identity.incarnation.to_le_bytes().to_vec();
            row.extend(identity.stream_seq.to_le_bytes());
            row.extend(&entry[4..]);
            row.extend(all[..count].iter().flat_map(|sum| sum.to_le_bytes()));
            let sum = entry_sum(&identity, &entry, &all[..count]);
            assert_eq!(sum, super::super::checksum(&[&row]), "{count} sums");
        }
    }
}
