//! The head of a batch: what an owner sends to a copy, in the form that the engines of both take.
//!
//! ```text
//! header (64)   kind 11; number of the batch at 32, term at 40
//! body          copy, session (16 each) · after, upto, destaged (8 each)
//!               part of the delta (4) · flags (1) · count (2)
//!               parts: sector (8) sectors (4) kind (1) checksum (4)
//! payload       bytes of the parts that write, one after the other
//! ```
//! A copy is filled strictly in order: sealed epochs from the owner's cursor on, then what is
//! written now. So a learner, a copy that came back and a member get the same stream.
//!
//! Always true: parts ascend and none lies over another; the payload is as long as the parts that
//! write; a checksum is that of the bytes when the owner's engine gave them away, and the engine of
//! the copy compares it before anything of the batch counts. Deliberately absent: the payload,
//! which never passes through this crate, and whether a batch follows the one before it, which the
//! engine knows.

use crate::codec::{In, Out};
use crate::frame::{FrameError, HEADER_BYTES, Header, Kind, Numbers, PAYLOAD_BYTES_MAX};
use alloc::vec::Vec;
use engine::format::record::EntryKind;
use engine::types::{SECTOR_BYTES, Serial, Span, Uuid};

/// As many as an engine puts into one batch, and takes.
pub const PARTS_MAX: usize = 64;

const ENDS: u8 = 1;
const BEGINS_EPOCH: u8 = 2;

/// A range that a batch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub span: Span,
    pub kind: EntryKind,
    /// CRC-32C of the bytes of a write; 0 of zeroes.
    pub sum: u32,
}

impl Part {
    /// Of the payload.
    pub fn bytes(&self) -> u64 {
        match self.kind {
            EntryKind::Write => self.span.sectors * SECTOR_BYTES,
            EntryKind::Zero { .. } => 0,
        }
    }
}

/// A delta of a volume, or a part of one; see [`engine::event::Batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// It rises within a session, from at least 1 on.
    pub number: u64,
    pub term: u64,
    pub copy: Uuid,
    pub session: Uuid,
    pub after: Serial,
    pub upto: Serial,
    pub destaged: Serial,
    pub part: u32,
    pub ends: bool,
    pub begins_epoch: bool,
    pub parts: Vec<Part>,
}

impl Batch {
    pub fn payload_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes() as usize).sum()
    }

    /// Header and body; the payload follows them.
    pub fn encode(&self, agreed: u16) -> Vec<u8> {
        assert!(self.check().is_ok(), "a batch is checked before it is sent");
        let mut out = Out(alloc::vec![0; HEADER_BYTES]);
        out.uuid(self.copy);
        out.uuid(self.session);
        out.u64(self.after.0);
        out.u64(self.upto.0);
        out.u64(self.destaged.0);
        out.u32(self.part);
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        out.u8(flag(self.ends, ENDS) | flag(self.begins_epoch, BEGINS_EPOCH));
        out.u16(self.parts.len() as u16);
        for part in &self.parts {
            out.u64(part.span.sector);
            out.u32(part.span.sectors as u32);
            out.u8(kind_code(part.kind));
            out.u32(part.sum);
        }
        let numbers = Numbers {
            payload_bytes: self.payload_bytes(),
            batch: self.number,
            term: self.term,
        };
        Header::seal(&mut out.0, Kind::Batch, agreed, numbers);
        out.0
    }

    /// Checks and reads a body whose header was checked.
    pub fn parse(header: &Header, body: &[u8]) -> Result<Batch, FrameError> {
        if header.kind != Kind::Batch {
            return Err(FrameError::Kind(header.kind as u16));
        }
        header.check_body(body)?;
        let mut from = In(body);
        let (copy, session) = (from.uuid()?, from.uuid()?);
        let (after, upto) = (Serial(from.u64()?), Serial(from.u64()?));
        let (destaged, part) = (Serial(from.u64()?), from.u32()?);
        let flags = from.u8()?;
        if flags & !(ENDS | BEGINS_EPOCH) != 0 {
            return Err(FrameError::Field("flags"));
        }
        let count = usize::from(from.u16()?);
        if count > PARTS_MAX {
            return Err(FrameError::Field("parts"));
        }
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(Part {
                span: Span::new(from.u64()?, u64::from(from.u32()?)),
                kind: kind_of(from.u8()?)?,
                sum: from.u32()?,
            });
        }
        if !from.0.is_empty() {
            return Err(FrameError::Long);
        }
        let batch = Batch {
            number: header.numbers.batch,
            term: header.numbers.term,
            copy,
            session,
            after,
            upto,
            destaged,
            part,
            ends: flags & ENDS != 0,
            begins_epoch: flags & BEGINS_EPOCH != 0,
            parts,
        };
        batch.check()?;
        match batch.payload_bytes() == header.numbers.payload_bytes {
            true => Ok(batch),
            false => Err(FrameError::Field("payload bytes")),
        }
    }

    fn check(&self) -> Result<(), FrameError> {
        if self.number == 0 || self.term == 0 || self.destaged > self.upto {
            return Err(FrameError::Field("batch"));
        }
        // Without parts it says what the origin has, and nothing is left of it.
        if self.parts.len() > PARTS_MAX || (self.parts.is_empty() && !self.ends) {
            return Err(FrameError::Field("parts"));
        }
        let (mut from, mut payload) = (0, 0);
        for part in &self.parts {
            let Span { sector, sectors } = part.span;
            let sized = (1..=u64::from(u32::MAX)).contains(&sectors) && sector >= from;
            let summed = part.kind == EntryKind::Write || part.sum == 0;
            let end = sector.checked_add(sectors).filter(|_| sized && summed);
            from = end.ok_or(FrameError::Field("parts"))?;
            payload += part.bytes();
        }
        match payload <= PAYLOAD_BYTES_MAX as u64 {
            true => Ok(()),
            false => Err(FrameError::Field("payload bytes")),
        }
    }
}

fn kind_code(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Write => 1,
        EntryKind::Zero { allocate: false } => 2,
        EntryKind::Zero { allocate: true } => 3,
    }
}

fn kind_of(code: u8) -> Result<EntryKind, FrameError> {
    match code {
        1 => Ok(EntryKind::Write),
        2 => Ok(EntryKind::Zero { allocate: false }),
        3 => Ok(EntryKind::Zero { allocate: true }),
        _ => Err(FrameError::Field("kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;

    /// So many parts, of which every other one writes so many sectors.
    fn batch(parts: usize, sectors: u64) -> Batch {
        let part = |at: usize| match at % 2 {
            0 => Part {
                span: Span::new(at as u64 * 4096, sectors),
                kind: EntryKind::Write,
                sum: 7 + at as u32,
            },
            _ => Part {
                span: Span::new(at as u64 * 4096, 4096),
                kind: EntryKind::Zero {
                    allocate: at % 4 == 1,
                },
                sum: 0,
            },
        };
        Batch {
            number: 4,
            term: 5,
            copy: Uuid([1; 16]),
            session: Uuid([2; 16]),
            after: Serial(100),
            upto: Serial(109),
            destaged: Serial(90),
            part: 3,
            ends: true,
            begins_epoch: parts > 1,
            parts: (0..parts).map(part).collect(),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Batch, FrameError> {
        let (header, body) = bytes.split_first_chunk().ok_or(FrameError::Short)?;
        Batch::parse(&Header::parse(header, 1)?, body)
    }

    #[test]
    fn a_batch_reads_back_and_every_flipped_bit_is_noticed() {
        let most = PAYLOAD_BYTES_MAX as u64 / SECTOR_BYTES;
        for (parts, sectors) in [(2, 1), (1, most), (0, 0), (PARTS_MAX, 64)] {
            let batch = batch(parts, sectors);
            let bytes = batch.encode(1);
            assert_eq!(parse(&bytes), Ok(batch.clone()));
            let writes = parts.div_ceil(2) as u64;
            assert_eq!(batch.payload_bytes() as u64, writes * sectors * 512);
            for at in (0..bytes.len().min(300)).chain([bytes.len() - 1]) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << (at % 8);
                assert!(parse(&damaged).is_err(), "byte {at}");
            }
            for end in 0..bytes.len() {
                assert!(parse(&bytes[..end]).is_err(), "cut at {end}");
            }
        }
    }

    /// The header and the checksums are right; what is said is not.
    #[test]
    fn a_batch_that_contradicts_itself_is_refused() {
        let wrong: [fn(&mut Batch); 11] = [
            |it| it.number = 0,
            |it| it.term = 0,
            |it| it.destaged = Serial(it.upto.0 + 1),
            |it| it.parts[1].span.sector = it.parts[0].span.sector,
            |it| it.parts.swap(0, 1),
            |it| it.parts[0].span.sectors = 0,
            |it| it.parts[0].span.sectors = 1 << 32,
            |it| it.parts[1].span.sector = u64::MAX,
            |it| it.parts[1].sum = 1,
            |it| it.parts[0].span.sectors = 1 + PAYLOAD_BYTES_MAX as u64 / SECTOR_BYTES,
            |it| {
                it.parts.clear();
                it.ends = false;
            },
        ];
        for (at, change) in wrong.into_iter().enumerate() {
            let mut batch = batch(2, 1);
            change(&mut batch);
            assert!(batch.check().is_err(), "{at}: {batch:?}");
        }
        let many = Batch {
            parts: batch(PARTS_MAX + 1, 1).parts,
            ..batch(1, 1)
        };
        assert!(many.check().is_err());
    }

    /// A body with right checksums whose bytes at some place are others, and its answer.
    fn read_with(at: usize, byte: u8, payload_bytes: usize) -> Result<Batch, FrameError> {
        let mut bytes = batch(2, 1).encode(1);
        bytes[HEADER_BYTES + at] = byte;
        let numbers = Numbers {
            payload_bytes,
            batch: 4,
            term: 5,
        };
        Header::seal(&mut bytes, Kind::Batch, 1, numbers);
        parse(&bytes)
    }

    #[test]
    fn unknown_flags_kinds_and_counts_and_another_payload_are_refused() {
        let (flags, count, kind) = (60, 61, 75);
        assert!(read_with(flags, ENDS | BEGINS_EPOCH, 512).is_ok());
        let wrong = |what| Err(FrameError::Field(what));
        assert_eq!(read_with(flags, 4, 512), wrong("flags"));
        assert_eq!(read_with(kind, 0, 512), wrong("kind"));
        assert_eq!(read_with(kind, 4, 512), wrong("kind"));
        assert_eq!(read_with(count, 1, 512), Err(FrameError::Long));
        assert_eq!(read_with(count, 3, 512), Err(FrameError::Short));
        assert_eq!(read_with(count, PARTS_MAX as u8 + 1, 512), wrong("parts"));
        for payload in [0, 1024, 513, 4096] {
            assert_eq!(read_with(count, 2, payload), wrong("payload bytes"));
        }
    }

    #[test]
    fn a_program_that_takes_no_batches_refuses_one_by_its_kind() {
        let bytes = batch(1, 1).encode(1);
        let (header, body) = bytes.split_first_chunk().expect("a header");
        let header = Header::parse(header, 1).expect("a header");
        assert_eq!(header.numbers.payload_bytes, 512);
        assert_eq!(Frame::parse(&header, body), Err(FrameError::Kind(11)));
        let ping = Frame::Refused { why: "no".into() }.encode(1);
        assert_eq!(parse(&ping), Err(FrameError::Kind(6)));
    }
}
