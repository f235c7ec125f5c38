//! The nouns of the engine: units, indexes, serials, identities.
//!
//! Glossary, used everywhere without further explanation: *sector* 512 bytes; *block* 4 KiB;
//! *chunk* the part of the log that one stage slot mirrors; *segment* the unit in which the log
//! is reused; *serial* the number of a write within its volume; *stream* one appender of the log.

use core::fmt;

/// Bytes in a sector, the unit of guest requests.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes in a block, the unit of checksums, of the log and of the clean cache.
pub const BLOCK_BYTES: u64 = 4096;
/// Sectors in a block.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;

/// Nanoseconds on the host's monotonic clock (simulated time in `sim`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    pub const fn from_millis(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    /// A time beyond all clocks is as good as never: whoever configured it meant that.
    pub const fn plus_millis(self, millis: u64) -> Time {
        Time(self.0.saturating_add(millis.saturating_mul(1_000_000)))
    }

    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// Number of a write within its volume, from 1, never reused.
    Serial(u64)
);
number!(
    /// Counts the lives of a volume: every recovery and every reset starts a new one.
    Generation(u32)
);
number!(
    /// Index of a volume in the volume table of its shard.
    VolumeId(u32)
);
number!(
    /// A host buffer that carries the payload of one guest request.
    BufferId(u32)
);

/// The epoch of its volume that a write belongs to, modulo 64. Six bits of each entry of the log,
/// so that a recovery finds where epochs ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochNumber(u8);

impl EpochNumber {
    const COUNT: u8 = 1 << 6;

    pub const fn of(number: u8) -> EpochNumber {
        EpochNumber(number % EpochNumber::COUNT)
    }

    pub const fn get(self) -> u8 {
        self.0
    }

    pub const fn next(self) -> EpochNumber {
        EpochNumber::of(self.0 + 1)
    }
}

/// Which request of a guest a write is, for the run of the daemon after this one: a number of the
/// guest's in-flight region, and the place of the request in it. Most writes need none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Not 0, but where there is no tag.
    pub region: u32,
    pub counter: u64,
}

impl Tag {
    pub const NONE: Tag = Tag {
        region: 0,
        counter: 0,
    };
}

number!(
    /// Another host that keeps a replica of a volume, by a number of the host's own.
    PeerId(u32)
);
number!(
    /// One input or output operation that the engine has asked for.
    IoId(u64)
);
number!(
    /// Index of a segment in the log.
    SegmentIndex(u32)
);
number!(
    /// Index of a chunk in the log: segment x chunks per segment + position.
    ChunkIndex(u32)
);
number!(
    /// Index of a slot in the stage.
    SlotIndex(u32)
);
number!(
    /// Number of a record within its stream, without gaps.
    StreamSeq(u64)
);
number!(
    /// Number of a life of a segment; grows over the whole log.
    SegmentSeq(u64)
);
number!(
    /// A client connection of the frontend.
    ConnectionId(u32)
);

/// A guest request or an administrator's command that waits for its [`Reply`].
///
/// [`Reply`]: crate::event::Action::Reply
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Waiting requests of a connection that closes are dropped.
    pub connection: ConnectionId,
    pub number: u32,
}

/// A position in the log, in sectors from its first segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogAddr(pub u64);

impl LogAddr {
    pub const fn plus(self, sectors: u64) -> LogAddr {
        LogAddr(self.0 + sectors)
    }

    /// Number of the 4 KiB block of the log that holds this sector.
    pub const fn block(self) -> u64 {
        self.0 / BLOCK_SECTORS
    }
}

/// A range of guest sectors. Never empty where it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub sector: u64,
    pub sectors: u64,
}

impl Span {
    pub const fn new(sector: u64, sectors: u64) -> Span {
        Span { sector, sectors }
    }

    pub const fn end(self) -> u64 {
        self.sector + self.sectors
    }

    pub const fn overlaps(self, other: Span) -> bool {
        self.sector < other.end() && other.sector < self.end()
    }

    /// How many 4 KiB blocks of the guest this range touches.
    pub const fn blocks(self) -> u64 {
        (self.end().div_ceil(BLOCK_SECTORS)) - self.sector / BLOCK_SECTORS
    }
}

/// 128 bits that name a cache, a volume, a machine or a boot.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    pub const NIL: Uuid = Uuid([0; 16]);
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an acknowledgment of this volume stands for (design table 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Every write goes to the origin before it is acknowledged.
    Uncached,
    /// The same, and reads are served from the cache.
    WriteThrough,
    /// Writes are acknowledged from the stage, flushes from the log.
    WriteBack,
    /// Writes live in RAM and its spill until `reset`; the origin is never written.
    Ephemeral,
}

impl Policy {
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Uncached => "uncached",
            Policy::WriteThrough => "write-through",
            Policy::WriteBack => "write-back",
            Policy::Ephemeral => "ephemeral",
        }
    }

    /// Writes go straight to the origin; nothing of them is in the log.
    pub const fn is_direct(self) -> bool {
        matches!(self, Policy::Uncached | Policy::WriteThrough)
    }
}

/// How dirty data reaches the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestageMode {
    /// Through a redo journal: the origin is a prefix of the guest's writes at every instant.
    Atomic,
    /// Directly: the origin is consistent only between destages.
    InPlace,
}

impl DestageMode {
    pub const fn name(self) -> &'static str {
        match self {
            DestageMode::Atomic => "atomic",
            DestageMode::InPlace => "in-place",
        }
    }
}

/// Shape of the log, fixed when the cache is created.
///
/// The product uses 256 KiB chunks and 8 MiB segments; the simulator uses small ones, so that a
/// short run wraps the log many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub chunk_blocks: u32,
    /// The last chunk of each segment holds its footer.
    pub segment_chunks: u32,
    pub segments: u32,
}

impl Geometry {
    pub const CHUNK_BLOCKS: u32 = 64;
    pub const SEGMENT_CHUNKS: u32 = 32;

    pub const fn chunk_bytes(self) -> u64 {
        self.chunk_blocks as u64 * BLOCK_BYTES
    }

    pub const fn chunk_sectors(self) -> u64 {
        self.chunk_blocks as u64 * BLOCK_SECTORS
    }

    pub const fn segment_bytes(self) -> u64 {
        self.chunk_bytes() * self.segment_chunks as u64
    }

    pub const fn segment_blocks(self) -> u64 {
        self.chunk_blocks as u64 * self.segment_chunks as u64
    }

    /// Blocks that all volumes together may keep dirty. Two segments are for evacuation, one for
    /// each stream is open; of the rest three quarters, so that evacuation always finds a segment
    /// that is a quarter dead.
    pub const fn dirty_blocks_max(self) -> u64 {
        let usable = self.segments as u64 - 4;
        let per_segment = (self.segment_chunks as u64 - 1) * (self.chunk_blocks as u64 - 2);
        usable * per_segment * 3 / 4
    }

    pub const fn segment_sectors(self) -> u64 {
        self.segment_blocks() * BLOCK_SECTORS
    }

    pub const fn chunks(self) -> u32 {
        self.segments * self.segment_chunks
    }

    pub const fn log_bytes(self) -> u64 {
        self.segment_bytes() * self.segments as u64
    }

    pub fn chunk_of(self, addr: LogAddr) -> ChunkIndex {
        ChunkIndex((addr.0 / self.chunk_sectors()) as u32)
    }

    pub fn segment_of(self, addr: LogAddr) -> SegmentIndex {
        SegmentIndex((addr.0 / self.segment_sectors()) as u32)
    }

    pub fn chunk_addr(self, chunk: ChunkIndex) -> LogAddr {
        LogAddr(u64::from(chunk.0) * self.chunk_sectors())
    }

    pub fn first_chunk(self, segment: SegmentIndex) -> ChunkIndex {
        ChunkIndex(segment.0 * self.segment_chunks)
    }
}
