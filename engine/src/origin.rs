//! Where the bytes of a volume lie: the seam between guest sectors and the files of an image.
//!
//! ```text
//! raw     a byte of the volume lies at the same offset of its one file
//! mapped  a [`Map`] says where: resolve(span) ─▶ extents of all of it
//!                                            └─▶ extents of its begin, and what is missing for
//!                                                the rest ─▶ read, supply, again from there
//! ```
//!
//! An image that is written has a [`Planner`] as well. It says what one destage does to the first
//! file, cluster by cluster:
//!
//! ```text
//! begin ─▶ plan(cluster) … ─▶ end ─▶ (all of it is at the file) ─▶ reached
//!   ▲                          │
//!   └──── anything failed ─────┘
//! ```
//!
//! Always true: extents cover what was asked for, or its begin, in order, without a gap, so a map
//! needs tables for no more than a block at once to go on; a map never waits and
//! keeps no state between two calls but the tables it was given, so the same call may be made again
//! at any time; what it says is checked against its files before it is believed. What a plan writes
//! at once lies where nothing in the file refers to, so that the file is what it was until the
//! journal of the plan is applied; until `reached` the map describes the file as it was before.
//! Deliberately absent: formats (a map is made by the host), and who reads and writes the files
//! ([`crate::core`]).

use crate::adversary::{Bug, has};
use crate::image::Mark;
use crate::types::{Span, Uuid};
pub use ::image::format::onto::Onto;
pub use ::image::plan::{Rank, When};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Files that one image may consist of.
pub const FILES_MAX: usize = 64;
/// Bytes of a file that a map may miss at once.
pub const TABLE_BYTES_MAX: u64 = 64 << 10;

/// A file of an image: 0 is the origin itself, the others lie below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileIndex(pub u8);

impl FileIndex {
    pub const TOP: FileIndex = FileIndex(0);
}

/// How a cluster is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Deflate,
    Zstd,
}

/// A compressed cluster and the part of it that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    pub codec: Codec,
    /// At most so many bytes of the file hold it.
    pub packed_bytes: u32,
    pub cluster_bytes: u32,
    /// How far into the cluster the wanted bytes begin.
    pub skip: u32,
}

/// Where a part of a volume lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    At {
        file: FileIndex,
        offset: u64,
    },
    Packed {
        file: FileIndex,
        offset: u64,
        packed: Packed,
    },
    /// Nothing has it: it reads as zeroes.
    Nowhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub span: Span,
    pub lies: Lies,
}

/// A part of a file that a map has to see before it can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    pub file: FileIndex,
    /// A multiple of 4 KiB.
    pub offset: u64,
    /// At most [`TABLE_BYTES_MAX`]. What lies behind the end of the file is zero.
    pub bytes: u64,
    /// Which part of it the map waits for; for the map alone.
    pub wanted: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    Ready(Vec<Extent>),
    /// So far, and no further without this.
    Missing(Vec<Extent>, Missing),
    /// What the image says of itself cannot be.
    Damaged,
}

/// What an image of a format knows of itself.
pub trait Map: Send {
    /// Where these sectors lie. They are not behind the end of the volume.
    fn resolve(&mut self, span: Span) -> Resolved;

    /// Bytes that were missing. They may be forgotten again.
    fn supply(&mut self, missing: Missing, bytes: &[u8]);

    /// Of each file a name for its tables among clean blocks: of the file at one moment of its
    /// life, as a base layer has it. The first is the origin.
    fn tables(&self) -> &[Uuid];

    /// Of each file below the first a name for what the disk is as seen through it and all below
    /// it, as a base layer has it. Blocks that lie there are kept for all volumes together. None
    /// for an image whose blocks are all of one layer, as a raw one.
    fn layers(&self) -> &[Uuid] {
        &[]
    }

    /// RAM that its tables hold.
    fn bytes(&self) -> u64;

    /// The most that they may hold from now on. A map that needs more to answer at all takes that.
    fn set_bytes_max(&mut self, bytes: u64);

    /// How the image is written; `None` for one that is only read.
    fn planner(&mut self) -> Option<&mut dyn Planner> {
        None
    }
}

/// What an epoch has of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub span: Span,
    /// It reads as zeroes; else there is data.
    pub zero: bool,
}

/// One thing that a plan does to the first file. Places are whole sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Data of the epoch goes to this place.
    Data { span: Span, at: u64, when: When },
    /// What the image says of this part before the plan goes to this place, at once.
    Copy { extent: Extent, at: u64 },
    /// The journal zeroes these bytes.
    Zero { at: u64, bytes: u64 },
    /// Tables, or sectors of them.
    Table { at: u64, bytes: Vec<u8>, rank: Rank },
}

/// What a plan is for that brings no epoch. Its pieces are zeroes, where they are anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Room for a disk of so many bytes; its pieces lie behind the end.
    Grow(u64),
    /// Its pieces are the end of the disk, which goes.
    Cut,
    /// Its pieces become the first file's own, which stands on something else then, if that is
    /// given.
    Own(Option<Onto>),
}

/// What an administrator orders of the files below an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// In order: parts of the disk that become the image's own.
    pub own: Vec<Span>,
    /// What the image stands on then; as before if it is not given.
    pub onto: Option<Onto>,
    /// Whether the disk may be another one then.
    pub changes: bool,
}

/// What came of a step of a plan. One that is not `Done` has done nothing, and is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    Done,
    Missing(Missing),
    Damaged,
}

/// How an image of a format is written. Its steps never wait.
pub trait Planner {
    /// So much of the disk is planned in one step, from a multiple of it on.
    fn cluster_bytes(&self) -> u64;

    /// A new plan. One before it that was not reached is forgotten; nothing of it is in flight. It
    /// puts this mark into the image if that has none of this volume, and room for it.
    fn begin(&mut self, mark: Mark);

    /// The same of a plan whose tables go to the file in the order of their ranks, without a
    /// journal.
    fn begin_ordered(&mut self);

    /// Where these sectors lie in the first file, if all of them may be written where they are.
    /// `None` where that is not so or not at hand: then a plan says what becomes of them.
    fn in_place(&mut self, span: Span) -> Option<Vec<(Span, u64)>>;

    /// What of a disk of this size lies behind the end that it has, and may be anything but zeroes;
    /// `None` if the image cannot be so large.
    fn growth(&self, size_bytes: u64) -> Option<Span>;

    /// The same as `begin`, for a plan that brings no epoch. A larger disk is one that it was asked
    /// for its growth by.
    fn begin_errand(&mut self, mark: Mark, errand: &Errand);

    /// What becomes of the pieces of one cluster, which lie in it in order and do not overlap. It
    /// is appended to `work`; clusters come in order, each once.
    fn plan(&mut self, pieces: &[Piece], work: &mut Vec<Work>) -> Planned;

    /// What is left when all clusters were planned.
    fn end(&mut self, work: &mut Vec<Work>) -> Planned;

    /// Bytes that were missing for the plan. They are of the file as it was before.
    fn supply(&mut self, missing: Missing, bytes: &[u8]);

    /// The file has so many bytes by now: tables that are read while a journal is applied may
    /// refer to all of them.
    fn grown(&mut self, bytes: u64);

    /// The first sector of the file with the guard set or cleared, made from the one that is there.
    /// `None` if that is no header of this image any more.
    fn guarded(&self, sector: &[u8], guard: bool) -> Option<Vec<u8>>;

    /// The first sector of the file with this mark in the place of the one that it has, if any.
    fn marked(&self, sector: &[u8], mark: Mark) -> Vec<u8>;

    /// The first sector of the file when the disk has this size, for which there is room. `None` if
    /// that is no header of this image any more.
    fn sized(&self, sector: &[u8], size_bytes: u64) -> Option<Vec<u8>>;

    /// The file says that the disk has this size.
    fn set_size(&mut self, size_bytes: u64);

    /// All of the plan is at the file. Gives the ranges of it, in bytes, whose tables have changed.
    fn reached(&mut self) -> Vec<(u64, u64)>;

    /// The same of a plan that was ordered: these tables, with their places, were written.
    fn written_through(&mut self, tables: &[(u64, &[u8])]) -> Vec<(u64, u64)>;

    /// The file was written past any plan of this map (a journal of another life was applied to
    /// it): nothing that is known of its tables counts. `sector` is the first of the file, `bytes`
    /// its length. False if that is no header of this image.
    fn read_anew(&mut self, sector: &[u8], bytes: u64) -> bool;
}

/// The one extent of a raw image.
pub fn raw(span: Span) -> Resolved {
    Resolved::Ready(alloc::vec![Extent {
        span,
        lies: Lies::At {
            file: FileIndex::TOP,
            offset: span.sector * crate::types::SECTOR_BYTES,
        },
    }])
}

/// A map that volumes share, by the name of the base that they stand on.
pub struct Shared {
    identity: Uuid,
    users: u32,
    map: Box<dyn Map>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "map {} of {} volumes", self.identity, self.users)
    }
}

/// Number of a map in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MapId(u32);

/// All maps in use. They share the RAM for their tables.
pub struct Maps {
    slots: Vec<Option<Shared>>,
    bytes_max: u64,
}

impl Maps {
    pub fn new(bytes_max: u64) -> Maps {
        Maps {
            slots: Vec::new(),
            bytes_max,
        }
    }

    fn share_out(&mut self) {
        let maps = self.slots.iter().flatten().count() as u64;
        for shared in self.slots.iter_mut().flatten() {
            shared.map.set_bytes_max(self.bytes_max / maps);
        }
    }

    /// One more volume stands on this image. A map that is there already is kept: it has tables.
    pub fn open(&mut self, identity: Uuid, map: Box<dyn Map>) -> MapId {
        let files = map.tables().len();
        assert!(
            (1..=FILES_MAX).contains(&files),
            "an image has a first file"
        );
        let same = |it: &Option<Shared>| it.as_ref().is_some_and(|it| it.identity == identity);
        let free = || self.slots.iter().position(Option::is_none);
        let at = self.slots.iter().position(same).or_else(free);
        let at = at.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let shared = self.slots[at].get_or_insert(Shared {
            identity,
            users: 0,
            map,
        });
        assert_eq!(
            shared.map.tables().len(),
            files,
            "one identity is one chain of files"
        );
        shared.users += 1;
        if shared.users == 1 {
            self.share_out();
        }
        MapId(at as u32)
    }

    /// One volume less; the last one takes the map along.
    pub fn close(&mut self, id: MapId) {
        let slot = &mut self.slots[id.0 as usize];
        let shared = slot.as_mut().expect("a volume stands on it");
        shared.users -= 1;
        if shared.users == 0 {
            *slot = None;
            self.share_out();
        }
    }

    pub fn get(&mut self, id: MapId) -> &mut dyn Map {
        let slot = self.slots[id.0 as usize].as_mut();
        &mut *slot.expect("a volume stands on it").map
    }

    pub fn bytes(&self, id: MapId) -> u64 {
        self.see(id).bytes()
    }

    /// Names of the tables of its files, as [`Map::tables`] gives them.
    pub fn tables(&self, id: MapId) -> &[Uuid] {
        self.see(id).tables()
    }

    fn see(&self, id: MapId) -> &dyn Map {
        let slot = self.slots[id.0 as usize].as_ref();
        &*slot.expect("a volume stands on it").map
    }
}

/// Where extents end that cover a span from its begin on, in order and without a gap; `None` if
/// they do not.
pub fn covered(span: Span, extents: &[Extent]) -> Option<u64> {
    let mut at = span.sector;
    for extent in extents {
        if extent.span.sector != at || extent.span.sectors == 0 {
            return None;
        }
        at = extent.span.end();
    }
    (at <= span.end()).then_some(at)
}

/// The file below the first that has a block and to which the block belongs: the highest one that
/// has a part of it, if all of it is data of such files. `extents` cover the block.
pub fn owner_below(block: Span, extents: &[Extent]) -> Option<FileIndex> {
    let mut owner = None;
    for extent in extents {
        if extent.span.end() <= block.sector || extent.span.sector >= block.end() {
            continue;
        }
        let file = match extent.lies {
            Lies::At { file, .. } | Lies::Packed { file, .. } => file,
            // Whose zeroes these are is not told.
            Lies::Nowhere => return None,
        };
        owner = Some(owner.map_or(file, |other: FileIndex| other.min(file)));
    }
    match owner {
        Some(FileIndex::TOP) if has(Bug::ShareMixedBlock) => Some(FileIndex(1)),
        other => other.filter(|file| *file != FileIndex::TOP),
    }
}

/// What of extents lies behind this sector.
pub fn from(mut extents: Vec<Extent>, start: u64) -> Vec<Extent> {
    extents.retain(|extent| extent.span.end() > start);
    if let Some(first) = extents.first_mut().filter(|it| it.span.sector < start) {
        let sectors = start - first.span.sector;
        let bytes = sectors * crate::types::SECTOR_BYTES;
        match &mut first.lies {
            Lies::At { offset, .. } => *offset += bytes,
            Lies::Packed { packed, .. } => packed.skip += bytes as u32,
            Lies::Nowhere => {}
        }
        first.span = Span::new(start, first.span.sectors - sectors);
    }
    extents
}

/// What of extents lies before this sector.
pub fn up_to(mut extents: Vec<Extent>, end: u64) -> Vec<Extent> {
    extents.retain(|extent| extent.span.sector < end);
    if let Some(last) = extents.last_mut() {
        last.span.sectors = last.span.sectors.min(end - last.span.sector);
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// What it was given.
    struct Nothing([Uuid; 1], u64);

    impl Map for Nothing {
        fn resolve(&mut self, _: Span) -> Resolved {
            Resolved::Damaged
        }

        fn supply(&mut self, _: Missing, _: &[u8]) {}

        fn tables(&self) -> &[Uuid] {
            &self.0
        }

        fn bytes(&self) -> u64 {
            self.1
        }

        fn set_bytes_max(&mut self, bytes: u64) {
            self.1 = bytes;
        }
    }

    fn map() -> Box<dyn Map> {
        Box::new(Nothing([Uuid([1; 16])], 0))
    }

    #[test]
    fn volumes_on_one_image_share_its_map_until_the_last_one_goes() {
        let mut maps = Maps::new(600);
        let one = maps.open(Uuid([1; 16]), map());
        assert_eq!(maps.bytes(one), 600);
        let other = maps.open(Uuid([2; 16]), map());
        assert_ne!(one, other);
        assert_eq!(maps.open(Uuid([1; 16]), map()), one);
        assert_eq!((maps.bytes(one), maps.bytes(other)), (300, 300));
        maps.close(one);
        assert_eq!(maps.bytes(one), 300);
        maps.close(one);
        assert_eq!(maps.bytes(other), 600, "what the other had is its own");
        assert_eq!(maps.open(Uuid([3; 16]), map()), one, "its place is free");
    }

    #[test]
    fn extents_cover_a_span_without_a_gap() {
        let extent = |sector, sectors| Extent {
            span: Span::new(sector, sectors),
            lies: Lies::Nowhere,
        };
        let span = Span::new(8, 8);
        assert_eq!(covered(span, &[extent(8, 3), extent(11, 5)]), Some(16));
        assert_eq!(covered(span, &[extent(8, 3)]), Some(11));
        assert_eq!(covered(span, &[]), Some(8));
        for wrong in [
            vec![extent(8, 3), extent(12, 4)],
            vec![extent(8, 9)],
            vec![extent(8, 0), extent(8, 8)],
            vec![extent(9, 7)],
        ] {
            assert_eq!(covered(span, &wrong), None, "{wrong:?}");
        }
        let all = vec![extent(8, 3), extent(11, 5)];
        assert_eq!(from(all.clone(), 10), [extent(10, 1), extent(11, 5)]);
        assert_eq!(from(all.clone(), 11), [extent(11, 5)]);
        assert_eq!(up_to(all.clone(), 12), [extent(8, 3), extent(11, 1)]);
        assert_eq!(up_to(all.clone(), 11), [extent(8, 3)]);
        assert_eq!(up_to(all, 8), []);
    }

    /// Fails when: a block that the first file has a part of is kept for others.
    #[test]
    fn a_block_belongs_to_the_highest_file_that_has_a_part_of_it() {
        let at = |sector, file, offset| Extent {
            span: Span::new(sector, 4),
            lies: Lies::At {
                file: FileIndex(file),
                offset,
            },
        };
        let zero = Extent {
            span: Span::new(12, 4),
            lies: Lies::Nowhere,
        };
        let owner = |one, other| owner_below(Span::new(8, 8), &[at(0, 0, 0), one, other]);
        assert_eq!(owner(at(8, 2, 0), at(12, 1, 0)), Some(FileIndex(1)));
        assert_eq!(owner(at(8, 2, 0), at(12, 2, 0)), Some(FileIndex(2)));
        assert_eq!(owner(at(8, 2, 0), at(12, 0, 0)), None);
        assert_eq!(owner(at(8, 2, 0), zero), None);
        assert_eq!(
            from(vec![at(8, 1, 512)], 10),
            [Extent {
                span: Span::new(10, 2),
                lies: Lies::At {
                    file: FileIndex(1),
                    offset: 1536,
                },
            }]
        );
    }
}
