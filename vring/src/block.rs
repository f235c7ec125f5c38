//! Requests of a virtual disk, as a guest lays them out in a chain (virtio 1.2, section 5.2.6).
//!
//! Owns what a request asks for, every check that needs no storage, and its answer: the status byte
//! and the length for the used ring. Always true: header, ranges and status are found wherever they
//! are cut between segments; a command that comes out lies inside the disk, on whole blocks, within
//! the limits the guest was told. What is wrong gets an answer here, so the host sees good requests
//! only. Deliberately absent: payload; a command says where it is in guest memory.

use crate::chain::Chain;
use crate::memory::{Address, Memory, Outside, Segment};
use alloc::vec::Vec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const SECTOR_BYTES: u64 = 512;
pub const ID_BYTES: usize = 20;

/// Request types, in the order of the specification.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

const UNMAP: u32 = 1;

/// The first bytes of a request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    pub kind: U32,
    pub reserved: U32,
    pub sector: U64,
}

/// A range of a discard or of zeroes, as it lies in memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RangeEntry {
    pub sector: U64,
    pub sectors: U32,
    pub flags: U32,
}

pub const HEADER_BYTES: usize = 16;
pub const RANGE_BYTES: usize = 16;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(size_of::<RangeEntry>() == RANGE_BYTES);

/// The status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// How much one discard, or one request for zeroes, may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLimits {
    /// Sectors of one range.
    pub sectors_max: u32,
    /// Ranges of one request.
    pub ranges_max: u16,
}

/// The disk that the guest was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub capacity_sectors: u64,
    /// Logical block: requests begin and end at its multiples. A power of two, 512 at least.
    pub block_bytes: u32,
    pub read_only: bool,
    /// Whether flushes are offered, which is to say that the cache is volatile.
    pub flush: bool,
    pub discard: Option<RangeLimits>,
    pub write_zeroes: Option<RangeLimits>,
    /// Payload of one request.
    pub data_bytes_max: u32,
    /// Segments of payload of one request.
    pub segments_max: u32,
    /// Padded with zero bytes.
    pub id: [u8; ID_BYTES],
}

/// Consecutive sectors, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorRange {
    pub sector: u64,
    pub sectors: u64,
    /// Only of zeroes: whether the sectors may be given back, as by a discard.
    pub unmap: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Into these segments, which are as long as all sectors.
    Read {
        sector: u64,
        sectors: u64,
        data: &'a [Segment],
    },
    /// From these segments.
    Write {
        sector: u64,
        sectors: u64,
        data: &'a [Segment],
    },
    Flush,
    Discard {
        ranges: &'a [SectorRange],
    },
    WriteZeroes {
        ranges: &'a [SectorRange],
    },
}

/// How to answer; kept by the host while the request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// A guest that gave no byte for it learns nothing.
    status: Option<Address>,
    /// Writable bytes before the status byte.
    before: u32,
    /// Whether success means that all of these were written.
    fills: bool,
}

/// A chain, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    Run {
        command: Command<'a>,
        reply: Reply,
    },
    /// Nothing is to be done, because it is wrong, empty, or was done here.
    Answer {
        status: Status,
        reply: Reply,
    },
}

/// Lists of the request at hand, kept so that parsing allocates nothing once they have grown.
#[derive(Debug, Default)]
pub struct Scratch {
    data: Vec<Segment>,
    ranges: Vec<SectorRange>,
    bytes: Vec<u8>,
}

impl Reply {
    /// Writes the status byte. Gives the length for the used ring: how many bytes are surely
    /// written from the first writable one on.
    pub fn finish(self, memory: &impl Memory, status: Status) -> u32 {
        let Some(at) = self.status else {
            return 0;
        };
        let whole = self.before == 0 || (self.fills && status == Status::Ok);
        match memory.store_u8(at, status as u8) {
            Ok(()) if whole => self.before + 1,
            // Not even the status byte is in the guest's memory, or it is not the first.
            _ => 0,
        }
    }
}

/// The rest of a list of segments.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    segments: &'a [Segment],
    /// Bytes of the first one that are behind us.
    passed: u32,
}

impl Cursor<'_> {
    fn read(&mut self, memory: &impl Memory, mut into: &mut [u8]) -> Result<(), Outside> {
        while !into.is_empty() {
            let segment = self.segments[0];
            let here = (segment.bytes - self.passed).min(into.len() as u32);
            let (part, rest) = into.split_at_mut(here as usize);
            memory.read(segment.at.plus(u64::from(self.passed)), part)?;
            into = rest;
            self.passed += here;
            if self.passed == segment.bytes {
                (self.segments, self.passed) = (&self.segments[1..], 0);
            }
        }
        Ok(())
    }

    fn rest(&self) -> impl Iterator<Item = Segment> {
        let mut passed = self.passed;
        self.segments.iter().map(move |segment| {
            let before = core::mem::take(&mut passed);
            Segment {
                at: segment.at.plus(u64::from(before)),
                bytes: segment.bytes - before,
            }
        })
    }
}

/// A walk has checked that this is less than 4 GiB.
fn total(segments: &[Segment]) -> u32 {
    segments.iter().map(|segment| segment.bytes).sum()
}

/// The chain without its status byte, the last writable one.
fn reply_of(chain: &Chain) -> Reply {
    let last = chain.writable.last();
    Reply {
        status: last.map(|last| last.at.plus(u64::from(last.bytes) - 1)),
        before: total(chain.writable).saturating_sub(1),
        fills: false,
    }
}

impl Disk {
    /// Understands a chain. Lists in the answer are in `scratch` until the next call.
    pub fn parse<'s>(
        &self,
        chain: &Chain,
        memory: &impl Memory,
        scratch: &'s mut Scratch,
    ) -> Parsed<'s> {
        let mut reply = reply_of(chain);
        if reply.status.is_none() {
            let status = Status::IoError;
            return Parsed::Answer { status, reply };
        }
        match self.command(chain, memory, &mut reply, scratch) {
            Ok(command) => Parsed::Run { command, reply },
            Err(status) => Parsed::Answer { status, reply },
        }
    }

    fn command<'s>(
        &self,
        chain: &Chain,
        memory: &impl Memory,
        reply: &mut Reply,
        scratch: &'s mut Scratch,
    ) -> Result<Command<'s>, Status> {
        let readable = total(chain.readable);
        let mut cursor = Cursor {
            segments: chain.readable,
            passed: 0,
        };
        let mut header = [0; HEADER_BYTES];
        if (readable as usize) < HEADER_BYTES || cursor.read(memory, &mut header).is_err() {
            return Err(Status::IoError);
        }
        let header: Header = zerocopy::transmute!(header);
        let payload = readable - HEADER_BYTES as u32;
        let sector = header.sector.get();
        match header.kind.get() {
            IN => {
                reply.fills = true;
                let sectors = self.sectors(sector, reply.before)?;
                scratch.take_data(read_into(chain.writable), self)?;
                let data = &scratch.data;
                Ok(Command::Read {
                    sector,
                    sectors,
                    data,
                })
            }
            OUT => {
                self.may_write()?;
                let sectors = self.sectors(sector, payload)?;
                scratch.take_data(cursor.rest(), self)?;
                let data = &scratch.data;
                Ok(Command::Write {
                    sector,
                    sectors,
                    data,
                })
            }
            FLUSH if self.flush => Ok(Command::Flush),
            DISCARD => {
                let limits = self.discard.ok_or(Status::Unsupported)?;
                self.ranges(&limits, 0, memory, cursor, payload, scratch)?;
                let ranges = &scratch.ranges;
                Ok(Command::Discard { ranges })
            }
            WRITE_ZEROES => {
                let limits = self.write_zeroes.ok_or(Status::Unsupported)?;
                self.ranges(&limits, UNMAP, memory, cursor, payload, scratch)?;
                let ranges = &scratch.ranges;
                Ok(Command::WriteZeroes { ranges })
            }
            GET_ID => Err(self.tell_id(chain, memory, reply)),
            _ => Err(Status::Unsupported),
        }
    }

    fn may_write(&self) -> Result<(), Status> {
        match self.read_only {
            true => Err(Status::IoError),
            false => Ok(()),
        }
    }

    /// The sectors of a read or write. One without any is done.
    fn sectors(&self, sector: u64, bytes: u32) -> Result<u64, Status> {
        let sectors = u64::from(bytes) / SECTOR_BYTES;
        let whole = u64::from(bytes).is_multiple_of(SECTOR_BYTES);
        if !whole || bytes > self.data_bytes_max || !self.holds(sector, sectors) {
            return Err(Status::IoError);
        }
        match sectors {
            0 => Err(Status::Ok),
            _ => Ok(sectors),
        }
    }

    /// Whether the range is on the disk, and on whole blocks.
    fn holds(&self, sector: u64, sectors: u64) -> bool {
        let block = u64::from(self.block_bytes) / SECTOR_BYTES;
        let end = sector.checked_add(sectors);
        let aligned = sector.is_multiple_of(block) && sectors.is_multiple_of(block);
        aligned && end.is_some_and(|end| end <= self.capacity_sectors)
    }

    /// The ranges of a discard or of zeroes. Flags are judged first, all of them, because an
    /// unknown one must be told from an error.
    fn ranges(
        &self,
        limits: &RangeLimits,
        flags_known: u32,
        memory: &impl Memory,
        mut cursor: Cursor,
        payload: u32,
        scratch: &mut Scratch,
    ) -> Result<(), Status> {
        self.may_write()?;
        let count = payload as usize / RANGE_BYTES;
        let whole = (payload as usize).is_multiple_of(RANGE_BYTES);
        if !whole || count == 0 || count > usize::from(limits.ranges_max) {
            return Err(Status::IoError);
        }
        scratch.bytes.resize(payload as usize, 0);
        let read = cursor.read(memory, &mut scratch.bytes);
        read.map_err(|_| Status::IoError)?;
        let entries = <[RangeEntry]>::ref_from_bytes(&scratch.bytes)
            .expect("a whole number of ranges, which need no alignment");
        if entries.iter().any(|it| it.flags.get() & !flags_known != 0) {
            return Err(Status::Unsupported);
        }
        scratch.ranges.clear();
        for entry in entries {
            let (sector, sectors) = (entry.sector.get(), entry.sectors.get());
            if sectors > limits.sectors_max || !self.holds(sector, u64::from(sectors)) {
                return Err(Status::IoError);
            }
            if sectors > 0 {
                scratch.ranges.push(SectorRange {
                    sector,
                    sectors: u64::from(sectors),
                    unmap: entry.flags.get() & UNMAP != 0,
                });
            }
        }
        match scratch.ranges.is_empty() {
            true => Err(Status::Ok),
            false => Ok(()),
        }
    }

    /// Twenty bytes, or as many as there is room for.
    fn tell_id(&self, chain: &Chain, memory: &impl Memory, reply: &mut Reply) -> Status {
        let mut id = &self.id[..];
        reply.fills = reply.before as usize <= ID_BYTES;
        for segment in read_into(chain.writable) {
            let (here, rest) = id.split_at(id.len().min(segment.bytes as usize));
            if memory.write(segment.at, here).is_err() {
                return Status::IoError;
            }
            id = rest;
        }
        Status::Ok
    }
}

/// The writable segments without the status byte.
fn read_into(writable: &[Segment]) -> impl Iterator<Item = Segment> {
    let last = writable.len() - 1;
    writable
        .iter()
        .enumerate()
        .filter_map(move |(at, segment)| {
            let bytes = segment.bytes - u32::from(at == last);
            let at = segment.at;
            (bytes > 0).then_some(Segment { at, bytes })
        })
}

impl Scratch {
    fn take_data(
        &mut self,
        segments: impl Iterator<Item = Segment>,
        disk: &Disk,
    ) -> Result<(), Status> {
        self.data.clear();
        self.data.extend(segments);
        match self.data.len() as u64 <= u64::from(disk.segments_max) {
            true => Ok(()),
            false => Err(Status::IoError),
        }
    }
}
