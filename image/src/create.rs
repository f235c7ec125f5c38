//! The bytes of a new, empty qcow2 file, with or without a backing.
//!
//! Owns the layout: header, refcount table, one refcount block, L1 table, each in clusters of its
//! own. Always true: what comes out parses, and a check of it finds nothing; every cluster that is
//! counted is inside the file. Deliberately absent: writing, and names of temporary files.

use crate::error::Error;
use crate::format::extension::{self, GUARD_NAME, append, feature_name};
use crate::format::header::{EXTENDED_L2, Header, LAYOUT_BYTES, Layout, MAGIC};
use crate::format::mark::Mark;
use crate::format::refcount;
use crate::limits;
use crate::types::SECTOR_BYTES;
use alloc::vec;
use alloc::vec::Vec;
use zerocopy::IntoBytes;
use zerocopy::big_endian::{U32, U64};

/// Refcounts of 16 bits.
const REFCOUNT_ORDER: u32 = 4;

/// Bits that a reader may not know, by set and number, so that its message names them.
const FEATURE_NAMES: [(u8, u8, &str); 9] = [
    (0, 0, "dirty bit"),
    (0, 1, "corrupt bit"),
    (0, 2, "external data file"),
    (0, 3, "compression type"),
    (0, 4, "extended L2 entries"),
    GUARD_NAME,
    (1, 0, "lazy refcounts"),
    (2, 0, "bitmaps"),
    (2, 1, "raw external data"),
];

/// How a file divides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Clusters of 128 KiB with 32 subclusters: units of 4 KiB.
    Extended,
    /// Clusters of 64 KiB, for readers that know no subclusters.
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackingFormat {
    Raw,
    Qcow2,
}

impl BackingFormat {
    /// As it stands in a header.
    pub const fn name(self) -> &'static str {
        match self {
            BackingFormat::Raw => "raw",
            BackingFormat::Qcow2 => "qcow2",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing<'a> {
    /// As it shall stand in the file: relative to its directory, or absolute.
    pub name: &'a str,
    pub format: BackingFormat,
}

/// Bytes to be written at an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    pub at: u64,
    pub bytes: Vec<u8>,
}

/// A new file: extents in order, and its length. What no extent covers is zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    pub extents: Vec<Extent>,
    pub file_bytes: u64,
}

impl NewFile {
    /// The same file with the mark of a volume.
    pub fn with_mark(mut self, mark: &Mark) -> Result<NewFile, Error> {
        let head = &mut self.extents[0].bytes;
        head.resize(head.len().next_multiple_of(SECTOR_BYTES as usize), 0);
        let sector = SECTOR_BYTES as usize;
        let header = Header::parse(head, self.file_bytes)?;
        let marked = header.marked(&head[..sector], mark);
        let mut marked = marked.expect("a new header is short");
        // It is in no journal.
        let header = Header::parse(&marked, self.file_bytes)?;
        let first = header.guarded(&marked[..sector], false);
        marked[..sector].copy_from_slice(&first.expect("a new file is of version 3"));
        *head = marked;
        Ok(self)
    }
}

/// The file for a disk of `size_bytes`, in whole sectors.
pub fn create(size_bytes: u64, shape: Shape, backing: Option<Backing>) -> Result<NewFile, Error> {
    let whole = size_bytes.is_multiple_of(SECTOR_BYTES);
    if size_bytes == 0 || size_bytes > limits::VIRTUAL_BYTES_MAX || !whole {
        return Err(Error::VirtualSize(size_bytes));
    }
    let (cluster_bits, entry_bytes, incompatible) = match shape {
        Shape::Extended => (17, 16, EXTENDED_L2),
        Shape::Plain => (16, 8, 0),
    };
    let cluster_bytes = 1_u64 << cluster_bits;
    let table_span = (cluster_bytes / entry_bytes) << cluster_bits;
    let l1_entries = size_bytes.div_ceil(table_span);
    let l1_clusters = (l1_entries * 8).div_ceil(cluster_bytes);
    // Header, refcount table, refcount block, L1 table.
    let clusters = 3 + l1_clusters;
    assert!(
        clusters <= (cluster_bytes * 8) >> REFCOUNT_ORDER,
        "one block counts them"
    );
    let layout = Layout {
        magic: U32::new(MAGIC),
        version: U32::new(3),
        backing_at: U64::new(0),
        backing_bytes: U32::new(0),
        cluster_bits: U32::new(cluster_bits),
        size_bytes: U64::new(size_bytes),
        encryption: U32::new(0),
        l1_entries: U32::new(l1_entries as u32),
        l1_at: U64::new(3 * cluster_bytes),
        refcount_table_at: U64::new(cluster_bytes),
        refcount_table_clusters: U32::new(1),
        snapshots: U32::new(0),
        snapshots_at: U64::new(0),
        incompatible: U64::new(incompatible),
        compatible: U64::new(0),
        autoclear: U64::new(0),
        refcount_order: U32::new(REFCOUNT_ORDER),
        header_bytes: U32::new(LAYOUT_BYTES as u32),
        compression: 0,
        padding: [0; 7],
    };
    let mut counts = vec![0; refcount::byte_of(REFCOUNT_ORDER, clusters) as usize];
    (0..clusters).for_each(|number| refcount::set(&mut counts, REFCOUNT_ORDER, number, 1));
    let extent = |cluster, bytes| Extent {
        at: cluster * cluster_bytes,
        bytes,
    };
    Ok(NewFile {
        extents: vec![
            extent(0, first_cluster(layout, backing)?),
            extent(1, (2 * cluster_bytes).to_be_bytes().to_vec()),
            extent(2, counts),
        ],
        file_bytes: clusters * cluster_bytes,
    })
}

/// Header, extensions, end mark and name; as much of the first cluster as that is.
fn first_cluster(mut layout: Layout, backing: Option<Backing>) -> Result<Vec<u8>, Error> {
    let mut extensions = Vec::new();
    if let Some(backing) = backing {
        let format = backing.format.name().as_bytes();
        append(&mut extensions, extension::BACKING_FORMAT, format);
    }
    append(&mut extensions, extension::FEATURE_NAMES, &feature_names());
    append(&mut extensions, extension::END, &[]);
    if let Some(backing) = backing {
        let what = "backing file";
        let (found, most) = (backing.name.len(), limits::BACKING_NAME_BYTES_MAX);
        if backing.name.is_empty() || backing.name.contains('\0') {
            return Err(Error::Name { what });
        }
        if found > most as usize {
            let (found, most) = (found as u64, u64::from(most));
            let what = "backing name";
            return Err(Error::TooLarge { what, found, most });
        }
        layout.backing_at = U64::new((LAYOUT_BYTES + extensions.len()) as u64);
        layout.backing_bytes = U32::new(found as u32);
    }
    let mut bytes = layout.as_bytes().to_vec();
    bytes.extend(extensions);
    bytes.extend(backing.map_or(&[][..], |it| it.name.as_bytes()));
    Ok(bytes)
}

fn feature_names() -> Vec<u8> {
    FEATURE_NAMES.into_iter().flat_map(feature_name).collect()
}
