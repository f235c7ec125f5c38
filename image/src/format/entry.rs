//! Entries of L1 and L2 tables.
//!
//! Owns their bits. Always true: any 64 or 128 bits are some entry; offsets that come out are below
//! 2^56, of compressed clusters below 2^61. Deliberately absent: whether an offset is aligned or
//! inside the file, which depends on the header.

/// The cluster that an entry points to is used once, so that it may be written in place.
pub const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// A cluster reads as zeroes, wherever its entry points; not of an extended entry.
pub const ZERO: u64 = 1;
/// Where the cluster lies that is not compressed.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const L1_RESERVED: u64 = 0x7f00_0000_0000_01ff;
const L2_RESERVED: u64 = 0x3f00_0000_0000_01fe;

/// Subclusters of a cluster with an extended entry.
pub const SUBCLUSTERS: u64 = 32;

/// An entry of the L1 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1(pub u64);

impl L1 {
    /// Where the L2 table lies; zero where there is none.
    pub const fn table_at(self) -> u64 {
        self.0 & OFFSET
    }

    pub const fn is_copied(self) -> bool {
        self.0 & COPIED != 0
    }

    pub const fn has_reserved_bits(self) -> bool {
        self.0 & L1_RESERVED != 0
    }
}

/// An entry of an L2 table, with the bitmap of an extended one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2 {
    pub word: u64,
    /// Subclusters that are allocated (lower half) and that read as zeroes (upper half).
    pub bitmap: u64,
    pub extended: bool,
}

/// Where compressed data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    pub at: u64,
    /// Up to the end of a sector: the data may end before, and never needs two clusters.
    pub bytes: u64,
}

/// What an entry says of its whole cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    Unallocated,
    /// Reads as zeroes; the offset of space that is kept for it.
    Zero(Option<u64>),
    /// Has its place here; with an extended entry, each subcluster says whether it is used.
    Data(u64),
    Compressed(Compressed),
}

/// What an entry says of one subcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Unallocated,
    Zero,
    Data,
}

impl L2 {
    pub const fn is_copied(self) -> bool {
        self.word & COPIED != 0
    }

    pub const fn cluster(self, cluster_bits: u32) -> Cluster {
        let at = self.word & OFFSET;
        if self.word & COMPRESSED != 0 {
            return Cluster::Compressed(self.compressed(cluster_bits));
        }
        if !self.extended && self.word & ZERO != 0 {
            return Cluster::Zero(match at {
                0 => None,
                at => Some(at),
            });
        }
        match at {
            0 => Cluster::Unallocated,
            at => Cluster::Data(at),
        }
    }

    const fn compressed(self, cluster_bits: u32) -> Compressed {
        assert!(cluster_bits >= 9 && cluster_bits <= 21);
        let shift = 62 - (cluster_bits - 8);
        let at = self.word & ((1 << shift) - 1);
        let sectors = (self.word >> shift & ((1 << (cluster_bits - 8)) - 1)) + 1;
        Compressed {
            at,
            bytes: sectors * 512 - (at & 511),
        }
    }

    /// Of a cluster that is not compressed.
    pub const fn has_reserved_bits(self) -> bool {
        self.word & L2_RESERVED != 0
    }

    /// Whether the bitmap contradicts itself or the entry.
    pub const fn is_contradictory(self, cluster: Cluster) -> bool {
        let allocated = self.bitmap as u32;
        match cluster {
            _ if !self.extended => false,
            Cluster::Unallocated => allocated != 0,
            Cluster::Data(_) => allocated & (self.bitmap >> 32) as u32 != 0,
            Cluster::Zero(_) => false,
            Cluster::Compressed(_) => self.bitmap != 0,
        }
    }

    /// Of an extended entry that is not compressed.
    pub const fn unit(self, number: u32) -> Unit {
        assert!(number < SUBCLUSTERS as u32);
        if self.bitmap >> (32 + number) & 1 == 1 {
            return Unit::Zero;
        }
        match self.bitmap >> number & 1 {
            1 => Unit::Data,
            _ => Unit::Unallocated,
        }
    }
}
