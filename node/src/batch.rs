//! The head of a batch: the writes that an owner sends to a copy, in the order of their serials.
//!
//! ```text
//! header (64)   kind 11; stream at 28, number of the batch at 32, term at 40
//! body          copy, session (16 each) · serial before, last serial (8 each)
//!               entries: count (2), then volume (2) blocks (2) sectors (4) sector (8) serial (8)
//!               checksums: one of 4 bytes for each block of the payload
//! payload       blocks of 4 KiB, as the entries have them, one after the other
//! ```
//! A copy is filled strictly in order: sealed epochs from the owner's cursor on, then what is
//! written now. So a learner, a copy that came back and a member get the same stream.
//!
//! Always true: a batch says all of (before, last], but for writes that a later one of the same
//! batch covers; a batch is taken as a whole or not at all. The checksums are those that the blocks
//! had when the guest's write was taken; the receiver compares them before it answers. Deliberately
//! absent: the payload, which never passes through this crate.

use crate::codec::{In, Out};
use crate::frame::{FrameError, HEADER_BYTES, Header, Kind, Numbers, PAYLOAD_BYTES_MAX};
use alloc::vec::Vec;
use engine::types::{Serial, Uuid};

pub const BLOCK_BYTES: usize = 4096;
pub const BLOCKS_MAX: usize = PAYLOAD_BYTES_MAX / BLOCK_BYTES;
pub const ENTRIES_MAX: usize = 1024;

/// One write of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Index within the unit.
    pub volume: u16,
    /// Of the payload. 0: the sectors read as zeroes.
    pub blocks: u16,
    pub sectors: u32,
    pub sector: u64,
    pub serial: Serial,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    pub stream: u32,
    /// From 1 within a session, without a hole.
    pub number: u64,
    pub term: u64,
    pub copy: Uuid,
    pub session: Uuid,
    /// The end of the copy that this batch follows.
    pub before: Serial,
    pub last: Serial,
    pub entries: Vec<Entry>,
    pub checksums: Vec<u32>,
}

impl Batch {
    pub fn payload_bytes(&self) -> usize {
        self.checksums.len() * BLOCK_BYTES
    }

    /// Header and body; the payload follows them.
    pub fn encode(&self, agreed: u16) -> Vec<u8> {
        assert!(self.check().is_ok(), "a batch is checked before it is sent");
        let mut out = Out(alloc::vec![0; HEADER_BYTES]);
        out.uuid(self.copy);
        out.uuid(self.session);
        out.u64(self.before.0);
        out.u64(self.last.0);
        out.u16(self.entries.len() as u16);
        for entry in &self.entries {
            out.u16(entry.volume);
            out.u16(entry.blocks);
            out.u32(entry.sectors);
            out.u64(entry.sector);
            out.u64(entry.serial.0);
        }
        self.checksums.iter().for_each(|sum| out.u32(*sum));
        let numbers = Numbers {
            payload_bytes: self.payload_bytes(),
            stream: self.stream,
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
        let Numbers {
            payload_bytes,
            stream,
            batch: number,
            term,
        } = header.numbers;
        let mut from = In(body);
        let (copy, session) = (from.uuid()?, from.uuid()?);
        let (before, last) = (Serial(from.u64()?), Serial(from.u64()?));
        let count = usize::from(from.u16()?);
        if count > ENTRIES_MAX {
            return Err(FrameError::Field("entries"));
        }
        let entry = |from: &mut In<'_>| {
            Ok::<Entry, FrameError>(Entry {
                volume: from.u16()?,
                blocks: from.u16()?,
                sectors: from.u32()?,
                sector: from.u64()?,
                serial: Serial(from.u64()?),
            })
        };
        let entries: Result<Vec<Entry>, FrameError> =
            (0..count).map(|_| entry(&mut from)).collect();
        let blocks = payload_bytes / BLOCK_BYTES;
        let checksums: Result<Vec<u32>, FrameError> =
            (0..blocks).map(|_| Ok(from.u32()?)).collect();
        let batch = Batch {
            stream,
            number,
            term,
            copy,
            session,
            before,
            last,
            entries: entries?,
            checksums: checksums?,
        };
        if !from.0.is_empty() {
            return Err(FrameError::Long);
        }
        batch.check()?;
        Ok(batch)
    }

    fn check(&self) -> Result<(), FrameError> {
        if self.number == 0 || self.term == 0 || self.before >= self.last {
            return Err(FrameError::Field("batch"));
        }
        let mut before = self.before;
        let mut blocks = 0;
        for entry in &self.entries {
            let end = entry.sector.checked_add(entry.sectors.into());
            let next = entry.serial > before && entry.serial <= self.last;
            if !next || entry.sectors == 0 || end.is_none() {
                return Err(FrameError::Field("entries"));
            }
            before = entry.serial;
            blocks += usize::from(entry.blocks);
        }
        let fits = self.entries.len() <= ENTRIES_MAX && self.checksums.len() <= BLOCKS_MAX;
        match fits && blocks == self.checksums.len() {
            true => Ok(()),
            false => Err(FrameError::Field("payload bytes")),
        }
    }

    /// The payload has what the entries were checked to have.
    pub fn payload_is_whole(&self, payload: &[u8]) -> bool {
        let blocks = payload.chunks(BLOCK_BYTES);
        let sums = || self.checksums.iter();
        payload.len() == self.payload_bytes()
            && blocks
                .zip(sums())
                .all(|(block, sum)| engine::format::checksum(&[block]) == *sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use alloc::vec;

    fn batch(entries: usize, blocks: usize) -> Batch {
        let entry = |at: usize| Entry {
            volume: 1,
            blocks: if at == 0 { blocks as u16 } else { 0 },
            sectors: 8,
            sector: at as u64 * 8,
            serial: Serial(101 + at as u64),
        };
        let block = [7; BLOCK_BYTES];
        Batch {
            stream: 3,
            number: 4,
            term: 5,
            copy: Uuid([1; 16]),
            session: Uuid([2; 16]),
            before: Serial(100),
            last: Serial(101 + entries as u64),
            entries: (0..entries).map(entry).collect(),
            checksums: vec![engine::format::checksum(&[&block]); blocks],
        }
    }

    fn parse(bytes: &[u8]) -> Result<Batch, FrameError> {
        let (header, body) = bytes.split_first_chunk().ok_or(FrameError::Short)?;
        Batch::parse(&Header::parse(header, 1)?, body)
    }

    #[test]
    fn a_batch_reads_back_and_every_flipped_bit_is_noticed() {
        for (entries, blocks) in [(2, 1), (1, 0), (ENTRIES_MAX, BLOCKS_MAX)] {
            let batch = batch(entries, blocks);
            let bytes = batch.encode(1);
            assert_eq!(parse(&bytes), Ok(batch.clone()));
            for at in (0..bytes.len().min(300)).chain([bytes.len() - 1]) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << (at % 8);
                assert!(parse(&damaged).is_err(), "byte {at}");
            }
            let payload = vec![7; batch.payload_bytes()];
            assert!(batch.payload_is_whole(&payload));
            assert!(!batch.payload_is_whole(&[&payload[..], &[7]].concat()));
        }
        let mut payload = vec![7; BLOCK_BYTES];
        payload[4095] = 6;
        assert!(!batch(1, 1).payload_is_whole(&payload));
    }

    /// The header and the checksums are right; what is said is not.
    #[test]
    fn a_batch_with_holes_in_its_own_numbers_is_refused() {
        let wrong: [fn(&mut Batch); 7] = [
            |it| it.number = 0,
            |it| it.term = 0,
            |it| it.last = it.before,
            |it| it.entries[1].serial = it.entries[0].serial,
            |it| it.entries[0].serial = Serial(it.last.0 + 1),
            |it| it.entries[0].sector = u64::MAX,
            |it| it.entries[0].blocks = 2,
        ];
        for change in wrong {
            let mut batch = batch(2, 1);
            change(&mut batch);
            assert!(batch.check().is_err(), "{batch:?}");
        }
    }

    #[test]
    fn a_program_that_takes_no_batches_refuses_one_by_its_kind() {
        let bytes = batch(1, 1).encode(1);
        let (header, body) = bytes.split_first_chunk().expect("a header");
        let header = Header::parse(header, 1).expect("a header");
        assert_eq!(header.numbers.payload_bytes, BLOCK_BYTES);
        assert_eq!(Frame::parse(&header, body), Err(FrameError::Kind(11)));
        let ping = Frame::Refused { why: "no".into() }.encode(1);
        assert_eq!(parse(&ping), Err(FrameError::Kind(6)));
    }
}
