//! The header of a qcow2 file, versions 2 and 3, with its extensions and the name of its backing.
//!
//! Always true: what [`Header::parse`] gives can be computed with. Offsets are aligned and below
//! 2^56, tables fit their limits and lie inside the file, the L1 table is large enough for the
//! size, and each name is text. Bits of features that a reader must know are known. Deliberately
//! absent: what lies behind the first cluster, and whether the rest of the file agrees.

use super::be32;
use super::extension::{self, Bitmaps, Extension, FeatureName, FeatureSet};
use crate::error::Error;
use crate::limits;
use crate::types::{Range, SECTOR_BYTES};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "QFI" and 0xfb.
pub const MAGIC: u32 = 0x5146_49fb;

/// What is read first: enough for the size of a cluster, and with that of the first cluster.
pub const HEAD_BYTES: usize = 512;

const V2_BYTES: usize = 72;
const V3_BYTES: u32 = 104;
/// Version 2 has refcounts of 16 bits.
const V2_REFCOUNT_ORDER: u32 = 4;

/// Refcounts may be wrong: leaks, and clusters that are used and not counted.
pub const DIRTY: u64 = 1 << 0;
/// Some writer found that tables contradict each other.
pub const CORRUPT: u64 = 1 << 1;
pub const EXTERNAL_DATA: u64 = 1 << 2;
pub const COMPRESSION: u64 = 1 << 3;
pub const EXTENDED_L2: u64 = 1 << 4;
/// Ours: the file is between two states, and a journal beside it completes it.
pub const GUARD: u64 = 1 << 61;
const KNOWN: u64 = DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION | EXTENDED_L2 | GUARD;

/// Compatible: refcounts are written late, under [`DIRTY`].
pub const LAZY_REFCOUNTS: u64 = 1 << 0;
/// Autoclear: the bitmaps are right.
pub const BITMAPS: u64 = 1 << 0;
/// Autoclear: the external data file can be read as a raw image.
pub const RAW_EXTERNAL: u64 = 1 << 1;
/// Autoclear, ours: no other program has written the file.
pub const OURS: u64 = 1 << 61;
/// Autoclear, ours: clusters are given without a journal, so some may be counted that nothing
/// refers to.
pub const ALLOCATING: u64 = 1 << 62;

/// The fields as they lie in the file. Version 2 ends before the features.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Layout {
    pub magic: U32,
    pub version: U32,
    pub backing_at: U64,
    pub backing_bytes: U32,
    pub cluster_bits: U32,
    pub size_bytes: U64,
    pub encryption: U32,
    pub l1_entries: U32,
    pub l1_at: U64,
    pub refcount_table_at: U64,
    pub refcount_table_clusters: U32,
    pub snapshots: U32,
    pub snapshots_at: U64,
    pub incompatible: U64,
    pub compatible: U64,
    pub autoclear: U64,
    pub refcount_order: U32,
    pub header_bytes: U32,
    pub compression: u8,
    pub padding: [u8; 7],
}

pub const LAYOUT_BYTES: usize = 112;
const _: () = assert!(size_of::<Layout>() == LAYOUT_BYTES);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Zlib,
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    None,
    Aes,
    Luks,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub version: u32,
    pub cluster_bits: u32,
    /// What the guest sees, in whole sectors.
    pub size_bytes: u64,
    pub l1_entries: u32,
    pub l1_at: u64,
    pub refcount_table: Range,
    /// The logarithm of the bits of a refcount.
    pub refcount_order: u32,
    pub snapshots: u32,
    pub snapshots_at: u64,
    pub incompatible: u64,
    pub compatible: u64,
    pub autoclear: u64,
    pub compression: Compression,
    pub encryption: Encryption,
    pub header_bytes: u32,
    /// The name as it stands in the file.
    pub backing: Option<String>,
    pub backing_format: Option<String>,
    pub data_file: Option<String>,
    /// Only where the autoclear bit says that they are right.
    pub bitmaps: Option<Bitmaps>,
    pub encryption_header: Option<Range>,
    /// All of them, in their order, also those that are understood.
    pub extensions: Vec<Extension>,
}

/// How many bytes [`Header::parse`] wants to see, by the first [`HEAD_BYTES`]: the first cluster.
pub fn bytes_wanted(head: &[u8]) -> Result<usize, Error> {
    if be32(head, 0) != MAGIC {
        return Err(Error::NotQcow2);
    }
    if head.len() < V2_BYTES {
        let bytes = head.len() as u64;
        return Err(Error::Short { bytes });
    }
    let bits = be32(head, 20);
    if !(limits::CLUSTER_BITS_MIN..=limits::CLUSTER_BITS_MAX).contains(&bits) {
        return Err(Error::ClusterBits(bits));
    }
    Ok(1 << bits)
}

impl Header {
    /// `cluster` is the first cluster, or as much of it as the file has. `file_bytes` is the length
    /// of the file.
    pub fn parse(cluster: &[u8], file_bytes: u64) -> Result<Header, Error> {
        let cluster_bytes = bytes_wanted(cluster)?;
        let cluster = &cluster[..cluster.len().min(cluster_bytes)];
        let layout = Layout::of(cluster)?;
        let header_bytes = layout.header_bytes.get();
        let backing = backing_range(&layout, cluster_bytes as u64)?;
        let list_end = backing.map_or(cluster_bytes, |range| range.at as usize);
        let extensions = extension::parse(cluster, header_bytes as usize, list_end)?;
        let mut header = Header {
            version: layout.version.get(),
            cluster_bits: layout.cluster_bits.get(),
            size_bytes: layout.size_bytes.get() / SECTOR_BYTES * SECTOR_BYTES,
            l1_entries: layout.l1_entries.get(),
            l1_at: layout.l1_at.get(),
            refcount_table: layout.refcount_table(),
            refcount_order: layout.refcount_order.get(),
            snapshots: layout.snapshots.get(),
            snapshots_at: layout.snapshots_at.get(),
            incompatible: layout.incompatible.get(),
            compatible: layout.compatible.get(),
            autoclear: layout.autoclear.get(),
            compression: layout.compression()?,
            encryption: layout.encryption()?,
            header_bytes,
            backing: None,
            backing_format: None,
            data_file: None,
            bitmaps: None,
            encryption_header: None,
            extensions,
        };
        header.check_features()?;
        header.check_sizes(layout.size_bytes.get())?;
        header.check_tables(file_bytes)?;
        header.read_names(cluster, backing)?;
        header.read_extensions(file_bytes)?;
        Ok(header)
    }

    fn check_features(&self) -> Result<(), Error> {
        if self.autoclear & RAW_EXTERNAL != 0 && self.incompatible & EXTERNAL_DATA == 0 {
            return Err(Error::RawWithoutDataFile);
        }
        let unknown = self.incompatible & !KNOWN;
        if unknown == 0 {
            return Ok(());
        }
        let names = self.feature_names();
        let called = |bit: u32| {
            let mut names = names.iter();
            let found =
                names.find(|it| it.set == FeatureSet::Incompatible && u32::from(it.bit) == bit);
            found.map_or_else(|| format!("bit {bit}"), |it| it.name.clone())
        };
        let bits = (0..u64::BITS).filter(|bit| unknown >> bit & 1 == 1);
        let listed: Vec<String> = bits.map(called).collect();
        Err(Error::Features(listed.join(", ")))
    }

    fn check_sizes(&self, size_bytes: u64) -> Result<(), Error> {
        let bits_min = match self.is_extended() {
            true => limits::CLUSTER_BITS_EXTENDED_MIN,
            false => limits::CLUSTER_BITS_MIN,
        };
        if self.cluster_bits < bits_min {
            return Err(Error::ClusterBits(self.cluster_bits));
        }
        if self.size_bytes == 0 || size_bytes > limits::VIRTUAL_BYTES_MAX {
            return Err(Error::VirtualSize(size_bytes));
        }
        if self.refcount_order > limits::REFCOUNT_ORDER_MAX {
            return Err(Error::RefcountOrder(self.refcount_order));
        }
        let needed = size_bytes.div_ceil(self.table_span_bytes());
        if u64::from(self.l1_entries) < needed {
            let entries = self.l1_entries;
            return Err(Error::L1TooSmall { entries, needed });
        }
        Ok(())
    }

    fn check_tables(&self, file_bytes: u64) -> Result<(), Error> {
        if self.refcount_table.bytes == 0 {
            return Err(Error::NoRefcountTable);
        }
        let refcounts = limits::REFCOUNT_TABLE_BYTES_MAX;
        let (l1, table) = (self.l1(), self.refcount_table);
        self.check_table("L1 table", l1, limits::L1_BYTES_MAX, file_bytes)?;
        self.check_table("refcount table", table, refcounts, file_bytes)?;
        if self.snapshots > limits::SNAPSHOTS_MAX {
            return Err(Error::TooLarge {
                what: "number of snapshots",
                found: u64::from(self.snapshots),
                most: u64::from(limits::SNAPSHOTS_MAX),
            });
        }
        if self.snapshots == 0 {
            // QEMU takes no odd place of a table that is empty either.
            let at = self.snapshots_at;
            let odd = !at.is_multiple_of(self.cluster_bytes()) || at > i64::MAX as u64;
            let what = "snapshot table";
            return if odd {
                Err(Error::Misaligned { what, at })
            } else {
                Ok(())
            };
        }
        // Its length is known when it was read.
        let snapshots = Range {
            at: self.snapshots_at,
            bytes: u64::from(self.snapshots),
        };
        self.check_table("snapshot table", snapshots, u64::MAX, file_bytes)
    }

    fn check_table(
        &self,
        what: &'static str,
        range: Range,
        most: u64,
        file_bytes: u64,
    ) -> Result<(), Error> {
        let Range { at, bytes } = range;
        if at % self.cluster_bytes() != 0 {
            return Err(Error::Misaligned { what, at });
        }
        if bytes > most {
            let found = bytes;
            return Err(Error::TooLarge { what, found, most });
        }
        let room = file_bytes.min(limits::OFFSET_END);
        if at == 0 || !range.is_inside(room) {
            return Err(Error::Outside {
                what,
                at,
                bytes,
                room,
            });
        }
        Ok(())
    }

    fn read_names(&mut self, cluster: &[u8], backing: Option<Range>) -> Result<(), Error> {
        if let Some(range) = backing {
            let bytes = cluster.get(range.at as usize..range.end() as usize);
            let cut = Error::Short {
                bytes: cluster.len() as u64,
            };
            let text = extension::name(bytes.ok_or(cut)?, "backing file")?;
            self.backing = Some(text);
        }
        let named = |magic, what| {
            let bytes = extension::find(&self.extensions, magic);
            bytes.map(|it| extension::name(it, what)).transpose()
        };
        let format = named(extension::BACKING_FORMAT, "backing format")?;
        let data_file = named(extension::DATA_FILE, "external data file")?;
        if self.incompatible & EXTERNAL_DATA != 0 && data_file.is_none() {
            return Err(Error::DataFileUnnamed);
        }
        (self.backing_format, self.data_file) = (format, data_file);
        Ok(())
    }

    fn read_extensions(&mut self, file_bytes: u64) -> Result<(), Error> {
        let cluster_bytes = self.cluster_bytes();
        if let Some(bytes) = extension::find(&self.extensions, extension::ENCRYPTION) {
            if self.encryption != Encryption::Luks {
                return Err(Error::Extension {
                    magic: extension::ENCRYPTION,
                    at: 0,
                    what: "in a file that is not encrypted by LUKS",
                });
            }
            self.encryption_header = Some(extension::encryption(bytes, cluster_bytes)?);
        } else if self.encryption == Encryption::Luks {
            return Err(Error::NoEncryptionHeader);
        }
        let right = self.version >= 3 && self.autoclear & BITMAPS != 0;
        if let Some(bytes) = extension::find(&self.extensions, extension::BITMAPS)
            && right
        {
            self.bitmaps = Some(extension::bitmaps(bytes, cluster_bytes, file_bytes)?);
        }
        Ok(())
    }

    pub const fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    pub const fn is_extended(&self) -> bool {
        self.incompatible & EXTENDED_L2 != 0
    }

    /// What can be allocated alone: a subcluster, or a cluster where there are none.
    pub const fn unit_bytes(&self) -> u64 {
        match self.is_extended() {
            true => self.cluster_bytes() / 32,
            false => self.cluster_bytes(),
        }
    }

    /// Bytes of an entry of an L2 table.
    pub const fn l2_entry_bytes(&self) -> u64 {
        match self.is_extended() {
            true => 16,
            false => 8,
        }
    }

    /// Bytes of the guest's disk that one L2 table is about.
    pub const fn table_span_bytes(&self) -> u64 {
        (self.cluster_bytes() / self.l2_entry_bytes()) << self.cluster_bits
    }

    pub const fn l1(&self) -> Range {
        Range {
            at: self.l1_at,
            bytes: self.l1_entries as u64 * 8,
        }
    }

    pub const fn refcount_bits(&self) -> u32 {
        1 << self.refcount_order
    }

    pub const fn is_dirty(&self) -> bool {
        self.incompatible & DIRTY != 0
    }

    pub const fn is_corrupt(&self) -> bool {
        self.incompatible & CORRUPT != 0
    }

    /// Whether only a replay of the journal beside it makes it whole.
    pub const fn is_guarded(&self) -> bool {
        self.incompatible & GUARD != 0
    }

    pub const fn has_lazy_refcounts(&self) -> bool {
        self.compatible & LAZY_REFCOUNTS != 0
    }

    pub fn feature_names(&self) -> Vec<FeatureName> {
        let bytes = extension::find(&self.extensions, extension::FEATURE_NAMES);
        bytes.map(extension::feature_names).unwrap_or_default()
    }

    /// Whether its content can be read, which header and tables alone do not say.
    pub fn is_readable(&self) -> Result<(), Error> {
        if self.incompatible & EXTERNAL_DATA != 0 {
            return Err(Error::DataFile);
        }
        match self.encryption {
            Encryption::None => Ok(()),
            Encryption::Aes | Encryption::Luks => Err(Error::Encrypted),
        }
    }

    /// Whether it can be written so that it stays right for all its readers.
    pub fn is_writable(&self) -> Result<(), Error> {
        self.is_readable()?;
        let unknown = self.autoclear & !(BITMAPS | RAW_EXTERNAL | OURS | ALLOCATING);
        match self.bitmaps {
            _ if self.version < 3 => Err(Error::WriteVersion),
            _ if self.is_corrupt() => Err(Error::WriteCorrupt),
            _ if self.is_dirty() => Err(Error::WriteDirty),
            _ if self.cluster_bits < limits::CLUSTER_BITS_WRITTEN_MIN => {
                Err(Error::WriteClusters(self.cluster_bytes()))
            }
            Some(bitmaps) if bitmaps.count > 0 => Err(Error::WriteBitmaps(bitmaps.count)),
            _ if unknown != 0 => Err(Error::WriteAutoclear(unknown)),
            _ => Ok(()),
        }
    }

    /// The fields of this sector, the first of the file, if they are of this image.
    pub(super) fn own_layout(&self, sector: &[u8]) -> Option<Layout> {
        let layout = Layout::of(sector.get(..HEAD_BYTES)?).ok()?;
        let size_bytes = layout.size_bytes.get() / SECTOR_BYTES * SECTOR_BYTES;
        let same = layout.magic.get() == MAGIC
            && layout.version.get() == self.version
            && layout.cluster_bits.get() == self.cluster_bits
            && layout.refcount_order.get() == self.refcount_order
            && size_bytes == self.size_bytes;
        same.then_some(layout)
    }

    /// The first sector of the file with the guard set or cleared; `None` if the one that is there
    /// is of another image, or of version 2, which has none.
    pub fn guarded(&self, sector: &[u8], guard: bool) -> Option<Vec<u8>> {
        let layout = self.own_layout(sector)?;
        if self.version < 3 {
            return None;
        }
        let bits = match guard {
            true => layout.incompatible.get() | GUARD,
            false => layout.incompatible.get() & !GUARD,
        };
        let mut bytes = sector.to_vec();
        let at = core::mem::offset_of!(Layout, incompatible);
        bytes[at..at + 8].copy_from_slice(&bits.to_be_bytes());
        Some(bytes)
    }

    /// The first sector of the file when its refcount table lies elsewhere. In a journal it has the
    /// guard.
    pub fn with_refcount_table(&self, sector: &[u8], table: Range, guard: bool) -> Option<Vec<u8>> {
        let mut bytes = self.guarded(sector, guard)?;
        let clusters = (table.bytes >> self.cluster_bits) as u32;
        let at = core::mem::offset_of!(Layout, refcount_table_at);
        bytes[at..at + 8].copy_from_slice(&table.at.to_be_bytes());
        let at = core::mem::offset_of!(Layout, refcount_table_clusters);
        bytes[at..at + 4].copy_from_slice(&clusters.to_be_bytes());
        Some(bytes)
    }

    /// The same when L1 lies elsewhere, or is longer.
    pub(crate) fn with_l1(&self, sector: &[u8], l1: Range) -> Option<Vec<u8>> {
        let mut bytes = self.guarded(sector, true)?;
        let entries = (l1.bytes / 8) as u32;
        let at = core::mem::offset_of!(Layout, l1_at);
        bytes[at..at + 8].copy_from_slice(&l1.at.to_be_bytes());
        let at = core::mem::offset_of!(Layout, l1_entries);
        bytes[at..at + 4].copy_from_slice(&entries.to_be_bytes());
        Some(bytes)
    }

    /// The first sector of the file when its disk is so large; also of one that says so already.
    /// `None` if it is of another image, or has no room for that.
    pub fn with_size(&self, sector: &[u8], size_bytes: u64) -> Option<Vec<u8>> {
        let grown = Header {
            size_bytes,
            ..self.clone()
        };
        let layout = self.own_layout(sector);
        let layout = layout.or_else(|| grown.own_layout(sector))?;
        grown.check_sizes(size_bytes).ok()?;
        if layout.l1_entries.get() != self.l1_entries || layout.l1_at.get() != self.l1_at {
            return None;
        }
        let mut bytes = sector.to_vec();
        let at = core::mem::offset_of!(Layout, size_bytes);
        bytes[at..at + 8].copy_from_slice(&size_bytes.to_be_bytes());
        Some(bytes)
    }

    /// Entries of L1 that a disk of this size needs; `None` if no table can have so many.
    pub fn l1_entries_for(&self, size_bytes: u64) -> Option<u32> {
        let entries = size_bytes.div_ceil(self.table_span_bytes());
        let fits = size_bytes <= limits::VIRTUAL_BYTES_MAX && entries * 8 <= limits::L1_BYTES_MAX;
        fits.then_some(entries as u32)
    }

    /// Clusters may be counted that nothing refers to.
    pub fn may_leak(&self) -> bool {
        self.autoclear & ALLOCATING != 0
    }

    /// The first sector of the file with the bit that says so set or cleared, made from the one
    /// that is there. `None` if that is no header of this image any more.
    pub fn allocating(&self, sector: &[u8], set: bool) -> Option<Vec<u8>> {
        let layout = self.own_layout(sector)?;
        let bits = match set {
            true => layout.autoclear.get() | ALLOCATING,
            false => layout.autoclear.get() & !ALLOCATING,
        };
        let mut bytes = sector.to_vec();
        let at = core::mem::offset_of!(Layout, autoclear);
        bytes[at..at + 8].copy_from_slice(&bits.to_be_bytes());
        Some(bytes)
    }

    /// The same header with what another writer may have changed, by the first sector of the file,
    /// which has this length: its tables and its features.
    pub fn read_anew(&self, sector: &[u8], file_bytes: u64) -> Result<Header, Error> {
        let layout = self.own_layout(sector).ok_or(Error::Another)?;
        let mut header = self.clone();
        header.l1_entries = layout.l1_entries.get();
        header.l1_at = layout.l1_at.get();
        header.refcount_table = layout.refcount_table();
        header.snapshots = layout.snapshots.get();
        header.snapshots_at = layout.snapshots_at.get();
        header.incompatible = layout.incompatible.get();
        header.compatible = layout.compatible.get();
        header.autoclear = layout.autoclear.get();
        let fixed = COMPRESSION | EXTENDED_L2;
        if (header.incompatible ^ self.incompatible) & fixed != 0 {
            return Err(Error::Another);
        }
        header.check_features()?;
        header.check_sizes(layout.size_bytes.get())?;
        header.check_tables(file_bytes)?;
        Ok(header)
    }
}

impl Layout {
    /// The fields of both versions in one form: version 2 gets what it implies.
    pub(crate) fn of(cluster: &[u8]) -> Result<Layout, Error> {
        let mut bytes = [0; LAYOUT_BYTES];
        let there = cluster.len().min(LAYOUT_BYTES);
        bytes[..there].copy_from_slice(&cluster[..there]);
        let version = be32(&bytes, 4);
        match version {
            2 => {
                bytes[V2_BYTES..].fill(0);
                let mut layout = zerocopy::transmute!(bytes);
                Layout::imply_v2(&mut layout);
                Ok(layout)
            }
            3 => {
                let header_bytes = be32(&bytes, 100);
                if cluster.len() < V3_BYTES as usize {
                    let bytes = cluster.len() as u64;
                    return Err(Error::Short { bytes });
                }
                let bits = be32(&bytes, 20);
                if header_bytes < V3_BYTES
                    || !header_bytes.is_multiple_of(8)
                    || header_bytes > 1 << bits
                {
                    return Err(Error::HeaderBytes(header_bytes));
                }
                let own = (header_bytes as usize).min(LAYOUT_BYTES);
                bytes[own..].fill(0);
                Ok(zerocopy::transmute!(bytes))
            }
            other => Err(Error::Version(other)),
        }
    }

    fn refcount_table(&self) -> Range {
        Range {
            at: self.refcount_table_at.get(),
            bytes: u64::from(self.refcount_table_clusters.get()) << self.cluster_bits.get(),
        }
    }

    fn imply_v2(layout: &mut Layout) {
        layout.refcount_order = U32::new(V2_REFCOUNT_ORDER);
        layout.header_bytes = U32::new(V2_BYTES as u32);
    }

    fn compression(&self) -> Result<Compression, Error> {
        let bit = self.incompatible.get() & COMPRESSION != 0;
        match (self.compression, bit) {
            (0, false) => Ok(Compression::Zlib),
            (1, true) => Ok(Compression::Zstd),
            (0 | 1, _) => Err(Error::CompressionBit),
            (other, _) => Err(Error::Compression(other)),
        }
    }

    fn encryption(&self) -> Result<Encryption, Error> {
        match self.encryption.get() {
            0 => Ok(Encryption::None),
            1 => Ok(Encryption::Aes),
            2 => Ok(Encryption::Luks),
            other => Err(Error::Encryption(other)),
        }
    }
}

/// Where the name of the backing lies: behind the header and inside the first cluster.
fn backing_range(layout: &Layout, cluster_bytes: u64) -> Result<Option<Range>, Error> {
    let range = Range {
        at: layout.backing_at.get(),
        bytes: u64::from(layout.backing_bytes.get()),
    };
    if range.at == 0 {
        return Ok(None);
    }
    let what = "backing name";
    let most = u64::from(limits::BACKING_NAME_BYTES_MAX);
    if range.bytes > most {
        let found = range.bytes;
        return Err(Error::TooLarge { what, found, most });
    }
    let inside = range.at >= u64::from(layout.header_bytes.get()) && range.is_inside(cluster_bytes);
    if !inside {
        return Err(Error::Outside {
            what,
            at: range.at,
            bytes: range.bytes,
            room: cluster_bytes,
        });
    }
    Ok(Some(range))
}

/// How a name of a backing is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingName<'a> {
    /// A path, relative to the directory of the file that has the name.
    Path(&'a str),
    /// `json:` and what follows, which a reader of JSON has to judge.
    Json(&'a str),
    /// Another protocol: its name, which ends before the colon.
    Protocol(&'a str),
}

impl BackingName<'_> {
    /// As QEMU takes it: a colon before any slash ends a protocol. `file:` is a path as well.
    pub fn of(name: &str) -> BackingName<'_> {
        let Some((before, after)) = name.split_once(':') else {
            return BackingName::Path(name);
        };
        match before {
            _ if before.contains('/') => BackingName::Path(name),
            "json" => BackingName::Json(after),
            "file" => BackingName::Path(after),
            other => BackingName::Protocol(other),
        }
    }
}

impl core::fmt::Display for Compression {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Compression::Zlib => "zlib",
            Compression::Zstd => "zstd",
        })
    }
}

/// The names of all feature bits that are set, for a reader.
pub fn features(header: &Header) -> Vec<String> {
    let known = [
        (DIRTY, "dirty"),
        (CORRUPT, "corrupt"),
        (EXTERNAL_DATA, "external data file"),
        (COMPRESSION, "compression type"),
        (EXTENDED_L2, "extended L2"),
        (GUARD, "guard"),
    ];
    let set = known
        .iter()
        .filter(|(bit, _)| header.incompatible & bit != 0);
    let mut names: Vec<String> = set.map(|(_, name)| name.to_string()).collect();
    if header.has_lazy_refcounts() {
        names.push("lazy refcounts".to_string());
    }
    if header.autoclear & BITMAPS != 0 {
        names.push("bitmaps".to_string());
    }
    if header.autoclear & RAW_EXTERNAL != 0 {
        names.push("raw external data".to_string());
    }
    names
}
