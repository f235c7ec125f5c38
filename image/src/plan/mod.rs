//! How the top file of a chain is written: what one destage does to it, cluster by cluster.
//!
//! Owns [`Writer`]: which clusters are tables, where the file is appended to, and the plan that is
//! being made.
//!
//! ```text
//! begin ─▶ cluster … ─▶ end ─▶ (all of it is at the file) ─▶ accept
//!   ▲                    │
//!   └── anything failed ─┘
//! ```
//!
//! The first step loads what must never be a target: L1, refcount table, lists of snapshots, the
//! end of the refcounts. A step that is [`Missing`](crate::resolve::Missing) has changed nothing
//! but what it has read so far, and is made again.
//!
//! Always true: what is written [`When::Now`] lies where nothing in the file refers to, so before
//! the journal is applied the file is what it was; the journal may be applied in any order, and
//! after it the file is a right qcow2 file whose refcounts are exact. Clusters are only appended,
//! behind the highest one that is counted; one that a plan frees is not used again by this writer.
//! Without a journal the tables go to the file in the order of their [`Rank`]s; then it is a right
//! qcow2 file at every instant, whose counts are at most too high.
//! All clusters that a plan appends are counted once. A sector 0 in the journal has the guard.
//! Deliberately absent: reading, writing, compression, and whether entries of a journal overlap
//! because two places of the disk share a cluster.

mod cluster;
mod count;
mod grow;
mod load;
mod own;
mod table;

pub use grow::exposed;

use crate::chain::Chain;
use crate::error::Error;
use crate::format::header::{ALLOCATING, Header};
use crate::format::mark::Mark;
use crate::format::onto::Onto;
use crate::meta::{Sector, Tables};
use crate::resolve::{self, Damage, Part, Stop, Wrong};
use crate::types::{FileId, FileIndex, Range, SECTOR_BYTES, Span};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use grow::Longer;
use load::{Known, Load};
use table::Table;

/// What an epoch has of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub span: Span,
    /// It reads as zeroes; else there is data.
    pub zero: bool,
}

/// When a place of the file may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once: nothing in the file refers to it.
    Now,
    /// By way of the journal.
    Journal,
}

/// What of a plan's tables must be durable before what, where no journal brings them to the file
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Nothing in the file refers to the place.
    Unused,
    /// It says that counts may be too high from here on.
    Mark,
    /// It counts clusters that nothing refers to yet.
    Count,
    /// It says where clusters are counted: those counts come first.
    Hook,
    /// It refers to clusters: they and their counts come first.
    Refer,
    /// It counts clusters less often: what referred to them comes first.
    Release,
}

impl Rank {
    /// When it is written, where a journal is.
    pub fn when(self) -> When {
        match self {
            Rank::Unused => When::Now,
            _ => When::Journal,
        }
    }
}

/// One thing that a plan does to the top file. Places are whole sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Data of the epoch goes to this place.
    Data { span: Span, at: u64, when: When },
    /// What the chain has of this part before the plan goes to this place, at once.
    Copy { part: Part, at: u64 },
    /// The journal zeroes these bytes.
    Zero { range: Range },
    /// Tables, or sectors of them.
    Table { at: u64, bytes: Vec<u8>, rank: Rank },
}

/// What is kept of the top file to write it, and the plan that is being made.
#[derive(Debug, Default)]
pub struct Writer {
    load: Load,
    plan: Plan,
}

/// What a plan changes, as far as it is not yet told.
#[derive(Debug, Default)]
struct Plan {
    /// The first cluster that it appends, and the next. Nothing while the file is not loaded.
    start: u64,
    append: u64,
    mark: Option<Mark>,
    /// No journal brings it to the file: its tables have an order.
    ordered: bool,
    aim: Aim,
    /// What the file is to stand on.
    onto: Option<Onto>,
    /// So many entries L1 is to have.
    l1_wanted: Option<u32>,
    /// L1 as it becomes longer; `l1_copied`: of the one that moves, as far as it was read.
    longer: Option<Longer>,
    l1_copied: Vec<u8>,
    /// Sectors of L1 that change, where it lies now.
    l1: BTreeMap<u64, Sector>,
    /// The L2 table that the walk is in.
    table: Option<Table>,
    /// An L2 table that is read to be copied, as far as it is there: its place and its bytes.
    copied: Option<(u64, Vec<u8>)>,
    /// How many references each of these clusters loses.
    released: BTreeMap<u64, u64>,
    /// Sectors of refcounts that change, read at the end.
    counts: BTreeMap<u64, Sector>,
    /// Clusters of its new tables.
    tables: Vec<u64>,
    /// Where it changes tables.
    changed: Vec<Range>,
    /// Where what it writes at once ends.
    end_bytes: u64,
    /// The disk is planned up to here.
    planned: u64,
    ended: Option<Ended>,
}

/// What of the file is another once a plan is at it.
#[derive(Clone, Debug)]
struct Ended {
    refcount_table: Range,
    /// Of one that became longer.
    l1: Option<Range>,
    /// It was put into the header.
    mark: Option<Mark>,
    /// The same.
    onto: Option<Onto>,
    /// The header says that counts may be too high.
    may_leak: bool,
    /// New refcount blocks: their number and their cluster.
    blocks: Vec<(u64, u64)>,
}

impl Writer {
    /// For the top file of a chain with this header. Refuses what cannot be written.
    pub fn new(header: &Header) -> Result<Writer, Error> {
        header.is_writable()?;
        Ok(Writer::default())
    }

    /// A new plan. One before it that was not accepted is forgotten. This mark is put in where the
    /// file has none of its volume, and room.
    pub fn begin(&mut self, mark: Option<Mark>) {
        let append = self.load.known().map_or(0, |it| it.append);
        self.plan = Plan {
            start: append,
            append,
            mark,
            ..Plan::default()
        };
    }

    /// The same, of a plan whose tables go to the file in the order of their ranks, with all of
    /// one rank synced before the next. It puts no mark in.
    pub fn begin_ordered(&mut self) {
        self.begin(None);
        self.plan.ordered = true;
    }

    /// What becomes of the pieces of one cluster, which lie in it in order and do not overlap. It
    /// is appended to `out`. Clusters come in order, each once. After `Damaged` the plan is over.
    pub fn cluster(
        &mut self,
        chain: &Chain,
        tables: &mut impl Tables,
        pieces: &[Piece],
        out: &mut Vec<Work>,
    ) -> Result<(), Stop> {
        assert!(self.plan.ended.is_none(), "the plan is not at its end");
        let view = &mut View::new(chain, tables);
        self.load(view)?;
        self.plan_cluster(view, pieces, out)
    }

    /// What is left when all clusters were planned.
    pub fn end(
        &mut self,
        chain: &Chain,
        tables: &mut impl Tables,
        out: &mut Vec<Work>,
    ) -> Result<(), Stop> {
        assert!(self.plan.ended.is_none(), "a plan ends once");
        let view = &mut View::new(chain, tables);
        self.load(view)?;
        self.plan_end(view, out)
    }

    /// Where the bytes of a span lie, if all of them may be written where they are. `None` where
    /// that is not so or not at hand: then a plan says what becomes of it.
    pub fn in_place(
        &self,
        chain: &Chain,
        tables: &mut impl Tables,
        span: Span,
    ) -> Option<Vec<(Span, u64)>> {
        self.load.known()?;
        let view = &mut View::new(chain, tables);
        self.places(view, span).ok().flatten()
    }

    fn load(&mut self, view: &mut View<impl Tables>) -> Result<(), Stop> {
        if self.load.known().is_none() {
            let append = self.load.go(view)?.append;
            (self.plan.start, self.plan.append) = (append, append);
        }
        self.make_longer(view)
    }

    fn known(&self) -> &Known {
        self.load.known().expect("each step loads it first")
    }

    /// All of the plan is at the file. Gives where tables have changed.
    pub fn accept(&mut self, chain: &mut Chain) -> Vec<Range> {
        let plan = core::mem::take(&mut self.plan);
        let ended = plan.ended.expect("the plan was made to its end");
        let file = chain.file_mut(FileIndex(0));
        file.file_bytes = file.file_bytes.max(plan.end_bytes);
        file.grows_to = None;
        let header = file.header_mut().expect("it is a qcow2 file");
        header.refcount_table = ended.refcount_table;
        if ended.may_leak {
            header.autoclear |= ALLOCATING;
        }
        if let Some(l1) = ended.l1 {
            header.l1_at = l1.at;
            header.l1_entries = (l1.bytes / 8) as u32;
        }
        if let Some(onto) = &ended.onto {
            header.set_onto(onto);
        }
        if let Some(mark) = ended.mark {
            header.accept_mark(&mark);
        }
        let known = self.load.known_mut().expect("each step loads it first");
        known.accept(plan.append, plan.tables, &ended.blocks);
        self.begin(None);
        plan.changed
    }
}

impl Plan {
    /// The next cluster at the end of the file.
    fn allocate(&mut self) -> u64 {
        self.append += 1;
        self.append - 1
    }

    fn wrote(&mut self, range: Range) {
        self.end_bytes = self.end_bytes.max(range.end());
    }

    /// Tells of a table, or of sectors of one.
    fn put(&mut self, at: u64, bytes: Vec<u8>, rank: Rank, out: &mut Vec<Work>) {
        assert!(at.is_multiple_of(SECTOR_BYTES) && !bytes.is_empty());
        let range = Range {
            at,
            bytes: bytes.len() as u64,
        };
        self.changed.push(range);
        if rank == Rank::Unused {
            self.wrote(range);
        }
        out.push(Work::Table { at, bytes, rank });
    }
}

/// What pieces of a plan mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Aim {
    /// What an epoch has.
    #[default]
    Write,
    /// Parts that are to be the file's own.
    Own,
    /// The end of the disk, which goes.
    Cut,
}

/// The chain, and what is at hand of its tables.
struct View<'a, T> {
    chain: &'a Chain,
    header: &'a Header,
    id: FileId,
    file_bytes: u64,
    /// The disk as it is when the plan is at the file.
    disk_bytes: u64,
    tables: &'a mut T,
}

impl<'a, T: Tables> View<'a, T> {
    fn new(chain: &'a Chain, tables: &'a mut T) -> View<'a, T> {
        let file = chain.file(FileIndex(0));
        View {
            chain,
            header: file.header().expect("a writer is made of its header"),
            id: file.id,
            file_bytes: file.file_bytes,
            disk_bytes: file.size_bytes(),
            tables,
        }
    }

    /// A sector of the top file, if it is at hand. Behind the end of the file there are zeroes.
    fn peek(&mut self, sector: u64) -> Option<Sector> {
        if sector.saturating_mul(SECTOR_BYTES) >= self.file_bytes {
            return Some([0; SECTOR_BYTES as usize]);
        }
        self.tables.sector(self.id, sector).copied()
    }

    /// The sector at this place, which lies in a table with this range.
    fn sector(&mut self, table: Range, at: u64) -> Result<Sector, Stop> {
        let found = self.peek(at / SECTOR_BYTES);
        found.ok_or_else(|| {
            let index = FileIndex(0);
            Stop::Missing(resolve::missing(index, table, self.file_bytes, at))
        })
    }

    fn cluster_of(&self, number: u64) -> Range {
        Range {
            at: number << self.header.cluster_bits,
            bytes: self.header.cluster_bytes(),
        }
    }

    /// The most clusters that offsets reach.
    fn clusters_max(&self) -> u64 {
        crate::limits::OFFSET_END >> self.header.cluster_bits
    }
}

fn damaged(entry_at: u64, guest_at: u64, word: u64, why: Wrong) -> Stop {
    Stop::Damaged(Damage {
        file: FileIndex(0),
        entry_at,
        guest_at,
        word,
        why,
    })
}
