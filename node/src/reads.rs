//! Reads between hosts: what the host to which a volume went asks of the one that had it before, of
//! its clean blocks; what an owner asks of its copies; and what they answer.
//!
//! ```text
//! Read    kind 12   number (8) · volume (16) · since (8) · first block (8) · blocks (4)
//! Blocks  kind 13   number (8) · count (2) · checksums (4 each); none = not all of them are there
//! payload           the blocks, one after the other
//! Recall  kind 14   number (8) · copy (16) · session (16) · first sector (8) · sectors (4)
//! ```
//! They go over connections for batches, to hosts that say so in their `Hello`
//! ([`crate::frame::FEATURE_READS`], [`crate::frame::FEATURE_RECALLS`]): questions the way of
//! batches, answers the way of their answers. A recall is answered with blocks as well, of which
//! the last one is filled up with zeroes. Always true: an answer has all blocks that were asked
//! for, or none; a checksum is that of the block when it left, and the asker compares it.
//! Deliberately absent: the payload, which never passes through this crate, and who may be asked
//! for what, which engines know.

use crate::codec::{In, Out};
use crate::frame::{FrameError, HEADER_BYTES, Header, Kind, Numbers};
use alloc::vec::Vec;
use engine::event::{COPY_SECTORS_MAX, LEFT_BLOCKS_MAX};
use engine::types::{BLOCK_BYTES, SECTOR_BYTES, Serial, Uuid};

/// As many as an engine asks for at once.
pub const BLOCKS_MAX: usize = LEFT_BLOCKS_MAX as usize;

const _: () = assert!(
    COPY_SECTORS_MAX * SECTOR_BYTES <= LEFT_BLOCKS_MAX * BLOCK_BYTES,
    "one answer holds what is asked of a copy"
);

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The answer has it too.
    pub number: u64,
    pub volume: Uuid,
    /// The asker knows all that was destaged behind it.
    pub since: Serial,
    pub first_block: u64,
    pub blocks: u32,
}

/// Either of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    Left(Read),
    Copy(Recall),
}

impl Question {
    pub fn number(&self) -> u64 {
        match self {
            Question::Left(read) => read.number,
            Question::Copy(recall) => recall.number,
        }
    }

    /// Of whole blocks.
    pub fn payload_bytes(&self) -> u64 {
        match self {
            Question::Left(read) => u64::from(read.blocks) * BLOCK_BYTES,
            Question::Copy(recall) => recall.payload_bytes(),
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    pub number: u64,
    /// CRC-32C of each block; none if they are not there.
    pub sums: Vec<u32>,
}

/// A question about what a copy has that is not at the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// The answer has it too.
    pub number: u64,
    pub copy: Uuid,
    /// Of the owner that asks.
    pub session: Uuid,
    pub sector: u64,
    pub sectors: u32,
}

impl Recall {
    pub fn encode(&self, agreed: u16) -> Vec<u8> {
        assert!(
            self.check().is_ok(),
            "a question is checked before it is sent"
        );
        let mut out = Out(alloc::vec![0; HEADER_BYTES]);
        out.u64(self.number);
        out.uuid(self.copy);
        out.uuid(self.session);
        out.u64(self.sector);
        out.u32(self.sectors);
        Header::seal(&mut out.0, Kind::Recall, agreed, Numbers::default());
        out.0
    }

    /// Checks and reads a body whose header was checked.
    pub fn parse(header: &Header, body: &[u8]) -> Result<Recall, FrameError> {
        let mut from = opened(header, body, Kind::Recall)?;
        let recall = Recall {
            number: from.u64()?,
            copy: from.uuid()?,
            session: from.uuid()?,
            sector: from.u64()?,
            sectors: from.u32()?,
        };
        recall.check()?;
        ended(&from)?;
        Ok(recall)
    }

    fn check(&self) -> Result<(), FrameError> {
        let sized = (1..=COPY_SECTORS_MAX).contains(&u64::from(self.sectors));
        let end = self.sector.checked_add(u64::from(self.sectors));
        let end = end.and_then(|end| end.checked_mul(SECTOR_BYTES));
        match sized && end.is_some() {
            true => Ok(()),
            false => Err(FrameError::Field("sectors")),
        }
    }

    /// Bytes of its answer: whole blocks.
    pub fn payload_bytes(&self) -> u64 {
        (u64::from(self.sectors) * SECTOR_BYTES).next_multiple_of(BLOCK_BYTES)
    }
}

impl Read {
    pub fn encode(&self, agreed: u16) -> Vec<u8> {
        assert!(
            self.check().is_ok(),
            "a question is checked before it is sent"
        );
        let mut out = Out(alloc::vec![0; HEADER_BYTES]);
        out.u64(self.number);
        out.uuid(self.volume);
        out.u64(self.since.0);
        out.u64(self.first_block);
        out.u32(self.blocks);
        Header::seal(&mut out.0, Kind::Read, agreed, Numbers::default());
        out.0
    }

    /// Checks and reads a body whose header was checked.
    pub fn parse(header: &Header, body: &[u8]) -> Result<Read, FrameError> {
        let mut from = opened(header, body, Kind::Read)?;
        let read = Read {
            number: from.u64()?,
            volume: from.uuid()?,
            since: Serial(from.u64()?),
            first_block: from.u64()?,
            blocks: from.u32()?,
        };
        read.check()?;
        ended(&from)?;
        Ok(read)
    }

    fn check(&self) -> Result<(), FrameError> {
        let sized = (1..=BLOCKS_MAX as u32).contains(&self.blocks);
        let end = self.first_block.checked_add(u64::from(self.blocks));
        let end = end.and_then(|end| end.checked_mul(BLOCK_BYTES));
        match sized && end.is_some() {
            true => Ok(()),
            false => Err(FrameError::Field("blocks")),
        }
    }
}

impl Blocks {
    pub fn payload_bytes(&self) -> usize {
        self.sums.len() * BLOCK_BYTES as usize
    }

    /// Header and body; the payload follows them.
    pub fn encode(&self, agreed: u16) -> Vec<u8> {
        assert!(self.sums.len() <= BLOCKS_MAX, "no host asks for more");
        let mut out = Out(alloc::vec![0; HEADER_BYTES]);
        out.u64(self.number);
        out.u16(self.sums.len() as u16);
        self.sums.iter().for_each(|sum| out.u32(*sum));
        let numbers = Numbers {
            payload_bytes: self.payload_bytes(),
            ..Numbers::default()
        };
        Header::seal(&mut out.0, Kind::Blocks, agreed, numbers);
        out.0
    }

    pub fn parse(header: &Header, body: &[u8]) -> Result<Blocks, FrameError> {
        let mut from = opened(header, body, Kind::Blocks)?;
        let (number, count) = (from.u64()?, usize::from(from.u16()?));
        if count > BLOCKS_MAX {
            return Err(FrameError::Field("blocks"));
        }
        let sums = (0..count).map(|_| from.u32());
        let blocks = Blocks {
            number,
            sums: sums.collect::<Result<_, _>>()?,
        };
        ended(&from)?;
        match blocks.payload_bytes() == header.numbers.payload_bytes {
            true => Ok(blocks),
            false => Err(FrameError::Field("payload bytes")),
        }
    }
}

fn opened<'a>(header: &Header, body: &'a [u8], kind: Kind) -> Result<In<'a>, FrameError> {
    if header.kind != kind {
        return Err(FrameError::Kind(header.kind as u16));
    }
    header.check_body(body)?;
    Ok(In(body))
}

fn ended(from: &In<'_>) -> Result<(), FrameError> {
    match from.0.is_empty() {
        true => Ok(()),
        false => Err(FrameError::Long),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, VERSION_MAX};

    fn header(frame: &[u8]) -> Result<Header, FrameError> {
        let head = frame.first_chunk().expect("a header");
        Header::parse(head, VERSION_MAX)
    }

    fn read(blocks: u32) -> Read {
        Read {
            number: 7,
            volume: Uuid([3; 16]),
            since: Serial(9),
            first_block: 1 << 20,
            blocks,
        }
    }

    #[test]
    fn what_was_asked_is_read_as_it_was_written() {
        for blocks in [1, BLOCKS_MAX as u32] {
            let frame = read(blocks).encode(VERSION_MAX);
            let head = header(&frame).expect("whole");
            let body = &frame[HEADER_BYTES..];
            assert_eq!(Read::parse(&head, body), Ok(read(blocks)));
            assert_eq!(Blocks::parse(&head, body), Err(FrameError::Kind(12)));
            assert_eq!(Frame::parse(&head, body), Err(FrameError::Kind(12)));
            assert_eq!(Read::parse(&head, &body[1..]), Err(FrameError::Short));
        }
    }

    #[test]
    fn an_answer_says_how_much_follows_it() {
        for count in [0, 1, BLOCKS_MAX] {
            let blocks = Blocks {
                number: 8,
                sums: (0..count as u32).collect(),
            };
            let frame = blocks.encode(VERSION_MAX);
            let head = header(&frame).expect("whole");
            assert_eq!(head.numbers.payload_bytes, count * 4096);
            assert_eq!(Blocks::parse(&head, &frame[HEADER_BYTES..]), Ok(blocks));
        }
    }

    fn recall(sector: u64, sectors: u32) -> Recall {
        Recall {
            number: 9,
            copy: Uuid([3; 16]),
            session: Uuid([4; 16]),
            sector,
            sectors,
        }
    }

    #[test]
    fn what_is_asked_of_a_copy_is_read_as_it_was_written() {
        for (sectors, bytes) in [(1, 4096), (9, 8192), (COPY_SECTORS_MAX as u32, 256 << 10)] {
            let asked = recall(77, sectors);
            let frame = asked.encode(VERSION_MAX);
            let head = header(&frame).expect("whole");
            let body = &frame[HEADER_BYTES..];
            assert_eq!(Recall::parse(&head, body), Ok(asked));
            assert_eq!(Read::parse(&head, body), Err(FrameError::Kind(14)));
            assert_eq!(Question::Copy(asked).payload_bytes(), bytes);
        }
        let change = |at: usize, value: &[u8]| {
            let mut frame = recall(0, 1).encode(VERSION_MAX);
            frame[HEADER_BYTES + at..][..value.len()].copy_from_slice(value);
            Header::seal(&mut frame, Kind::Recall, VERSION_MAX, Numbers::default());
            let head = header(&frame).expect("whole");
            Recall::parse(&head, &frame[HEADER_BYTES..])
        };
        let wrong = Err(FrameError::Field("sectors"));
        assert_eq!(change(48, &0_u32.to_le_bytes()), wrong);
        assert_eq!(change(48, &513_u32.to_le_bytes()), wrong);
        assert_eq!(change(40, &u64::MAX.to_le_bytes()), wrong);
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let change = |at: usize, value: &[u8]| {
            let mut frame = read(1).encode(VERSION_MAX);
            frame[HEADER_BYTES + at..][..value.len()].copy_from_slice(value);
            Header::seal(&mut frame, Kind::Read, VERSION_MAX, Numbers::default());
            let head = header(&frame).expect("whole");
            Read::parse(&head, &frame[HEADER_BYTES..])
        };
        let wrong = Err(FrameError::Field("blocks"));
        assert_eq!(change(40, &0_u32.to_le_bytes()), wrong);
        assert_eq!(change(40, &65_u32.to_le_bytes()), wrong);
        assert_eq!(change(32, &u64::MAX.to_le_bytes()), wrong);
        assert!(change(40, &64_u32.to_le_bytes()).is_ok());
        let mut blocks = Blocks {
            number: 8,
            sums: alloc::vec![5],
        }
        .encode(VERSION_MAX);
        Header::seal(&mut blocks, Kind::Blocks, VERSION_MAX, Numbers::default());
        let head = header(&blocks).expect("whole");
        let parsed = Blocks::parse(&head, &blocks[HEADER_BYTES..]);
        assert_eq!(parsed, Err(FrameError::Field("payload bytes")));
    }
}
