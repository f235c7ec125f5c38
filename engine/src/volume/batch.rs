//! What a plan has on its way: work that is sorted into batches, each of which is one request.
//!
//! Always true: a batch says what it carries, so that it can be put together again after a
//! failure; one to the file covers one range without a gap; a part of the journal begins with a
//! sector, data with a block; no batch is longer than a piece of memory. Deliberately absent:
//! reading and writing (`core::planned`).

use super::runs::journal_entries_max;
use crate::adversary::{Bug, has};
use crate::format::journal;
use crate::map::{self, Content, ExtentMap};
use crate::origin::{Errand, Extent, Lies, Missing, Piece, Planned, Planner, When, Work};
use crate::types::{BLOCK_BYTES, LogAddr, SECTOR_BYTES, Span};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Where the bytes of a part come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Epoch(Span),
    File(Extent),
    Bytes(Vec<u8>),
}

/// Some bytes of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Where they lie in the batch.
    pub at: u64,
    pub bytes: u64,
    pub from: Source,
    /// Where they belong in the file.
    pub place: u64,
}

/// What one request carries.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub when: When,
    /// Where it goes: a place of the file, or of the journal once it has one.
    pub at: Option<u64>,
    pub bytes: u64,
    pub parts: Vec<Part>,
    /// The table of the journal has its entries.
    pub told: bool,
}

impl Batch {
    const fn empty(when: When) -> Batch {
        Batch {
            when,
            at: None,
            bytes: 0,
            parts: Vec::new(),
            told: false,
        }
    }

    /// Bytes that the planner has made.
    pub fn has_tables(&self) -> bool {
        let is_table = |part: &Part| matches!(part.from, Source::Bytes(_));
        self.parts.iter().any(is_table)
    }

    /// It goes to the file itself.
    pub fn goes_to_file(&self) -> bool {
        self.when == When::Now
    }

    /// Where in it the next part begins; `None` if that has to be another batch.
    fn next_at(&self, place: u64, from: &Source, piece_bytes: u64) -> Option<u64> {
        let at = match (self.when, from) {
            (When::Now, _) => self.bytes,
            (When::Journal, Source::Bytes(_)) => self.bytes,
            (When::Journal, _) => self.bytes.next_multiple_of(BLOCK_BYTES),
        };
        let follows = match (self.when, self.at) {
            (When::Now, Some(start)) => start + self.bytes == place,
            _ => true,
        };
        (follows && at < piece_bytes).then_some(at)
    }

    /// Data blocks of the epoch in it.
    pub fn blocks(&self) -> u64 {
        let blocks = |part: &Part| match part.from {
            Source::Epoch(span) => span.blocks(),
            Source::File(_) | Source::Bytes(_) => 0,
        };
        self.parts.iter().map(blocks).sum()
    }
}

impl Source {
    /// Takes the first bytes off.
    fn split(&mut self, bytes: u64) -> Source {
        let sectors = bytes / SECTOR_BYTES;
        match self {
            Source::Epoch(span) => {
                let first = Span::new(span.sector, sectors);
                *span = Span::new(first.end(), span.sectors - sectors);
                Source::Epoch(first)
            }
            Source::File(extent) => {
                let mut first = *extent;
                first.span.sectors = sectors;
                extent.span = Span::new(first.span.end(), extent.span.sectors - sectors);
                match &mut extent.lies {
                    Lies::At { offset, .. } => *offset += bytes,
                    Lies::Packed { packed, .. } => packed.skip += bytes as u32,
                    Lies::Nowhere => {}
                }
                Source::File(first)
            }
            Source::Bytes(all) => {
                let rest = all.split_off(bytes as usize);
                Source::Bytes(core::mem::replace(all, rest))
            }
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Source::Epoch(span) => span.sectors * SECTOR_BYTES,
            Source::File(extent) => extent.span.sectors * SECTOR_BYTES,
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// Entries whose source is remembered.
const SOURCES_MAX: usize = 1 << 16;
/// Bytes of tables that are kept for it.
const BYTES_MAX: u64 = 8 << 20;

/// By their places in the journal, where the bytes of entries come from.
#[derive(Default)]
pub(crate) struct Sources {
    by_place: BTreeMap<u64, Source>,
    bytes: u64,
}

impl Sources {
    pub fn keep(&mut self, at: u64, from: Source) {
        let bytes = match &from {
            Source::Epoch(_) => 0,
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::File(_) => return,
        };
        if self.by_place.len() < SOURCES_MAX && self.bytes + bytes <= BYTES_MAX {
            self.bytes += bytes;
            let before = self.by_place.insert(at, from);
            assert!(before.is_none(), "a place of a journal has one entry");
        }
    }

    pub fn get(&self, at: u64) -> Option<&Source> {
        self.by_place.get(&at)
    }

    pub fn forget(&mut self, at: u64) {
        if let Some(Source::Bytes(bytes)) = self.by_place.remove(&at) {
            assert!(self.bytes >= bytes.len() as u64, "what is kept is counted");
            self.bytes -= bytes.len() as u64;
        }
    }
}

/// A plan under way.
pub(crate) struct Plan {
    /// What lies before it is planned.
    pub cursor: u64,
    pub ended: bool,
    pub work: VecDeque<Work>,
    /// To the file, and to the journal.
    pub growing: [Batch; 2],
    pub ready: VecDeque<Batch>,
    /// A table that is being read, and the memory that it goes to.
    pub missing: Option<Missing>,
    pub pieces: Vec<u32>,
    /// Of what it has put into the journal.
    pub sources: Sources,
}

impl Plan {
    pub fn new() -> Plan {
        Plan {
            cursor: 0,
            ended: false,
            work: VecDeque::new(),
            growing: [Batch::empty(When::Now), Batch::empty(When::Journal)],
            ready: VecDeque::new(),
            missing: None,
            pieces: Vec::new(),
            sources: Sources::default(),
        }
    }

    pub fn is_at_end(&self) -> bool {
        let grows = self.growing.iter().any(|batch| !batch.parts.is_empty());
        self.ended && self.work.is_empty() && self.ready.is_empty() && !grows
    }

    /// Pieces of the destager's memory that a table has.
    pub fn table_pieces(&self) -> usize {
        self.pieces.len()
    }

    /// A batch that failed goes first.
    pub fn put_back(&mut self, batch: Batch) {
        assert!(batch.at.is_some(), "it was on its way");
        self.ready.push_front(batch);
    }

    pub fn close(&mut self, when: When) {
        let batch = &mut self.growing[when as usize];
        if !batch.parts.is_empty() {
            let batch = core::mem::replace(batch, Batch::empty(when));
            self.ready.push_back(batch);
        }
    }

    /// Adds bytes for this place of the file to the batch that grows, or to the next ones.
    pub fn add(&mut self, when: When, mut place: u64, mut from: Source, piece_bytes: u64) {
        while from.bytes() > 0 {
            let batch = &self.growing[when as usize];
            let Some(at) = batch.next_at(place, &from, piece_bytes) else {
                self.close(when);
                continue;
            };
            let bytes = from.bytes().min(piece_bytes - at);
            assert!(bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES));
            let first = from.split(bytes);
            let batch = &mut self.growing[when as usize];
            if when == When::Now {
                batch.at.get_or_insert(place);
            }
            assert!(at >= batch.bytes && at + bytes <= piece_bytes);
            batch.bytes = at + bytes;
            batch.parts.push(Part {
                at,
                bytes,
                from: first,
                place,
            });
            place += bytes;
        }
    }
}

/// What a destage is for that is of no epoch.
pub(crate) struct Task {
    pub errand: Errand,
    /// Its pieces.
    pub map: ExtentMap,
}

impl Task {
    pub fn new(errand: Errand, pieces: &[Span]) -> Task {
        let mut map = ExtentMap::new();
        let exposes = matches!(errand, Errand::Grow(_)) && has(Bug::ExposeBelow);
        for &span in pieces.iter().filter(|it| it.sectors > 0 && !exposes) {
            // Nothing of the log stands behind them.
            let content = Content::Zero {
                header: LogAddr(0),
                allocate: false,
            };
            map.insert(map::Piece { span, content }, &mut |_| ());
        }
        Task { errand, map }
    }
}

/// The bytes before the payload of a journal of this map.
pub(crate) fn journal_room(map: &ExtentMap, piece_bytes: u64, cluster_bytes: Option<u64>) -> u64 {
    journal::payload_at(match cluster_bytes {
        Some(bytes) => entries_max(map, piece_bytes, bytes),
        None => journal_entries_max(map, piece_bytes),
    })
}

/// Upper bound of the entries that a plan journals for an epoch.
fn entries_max(map: &ExtentMap, piece_bytes: u64, cluster_bytes: u64) -> usize {
    let cluster = cluster_bytes / SECTOR_BYTES;
    let (mut parts, mut clusters, mut last) = (0, 0, None);
    for piece in map.pieces_from(0) {
        let (first, end) = (
            piece.span.sector / cluster,
            piece.span.end().div_ceil(cluster),
        );
        parts += end - first + piece.span.sectors * SECTOR_BYTES / piece_bytes;
        clusters += end - first - u64::from(last == Some(first));
        last = Some(end - 1);
    }
    // Of each cluster its entry, its table's entry, and refcounts of what it had and gets.
    let entries = 2 * parts + 8 * clusters + 256;
    entries.min(journal::ENTRIES_MAX as u64) as usize
}

/// The pieces of one cluster, and where it ends.
pub(crate) type NextPieces = (Vec<Piece>, u64);

/// The step of a plan for these pieces; where none are left, its end.
pub(crate) fn step_of_planner(
    planner: &mut dyn Planner,
    next: Option<&NextPieces>,
) -> (Planned, Vec<Work>) {
    let mut work = Vec::new();
    let planned = match next {
        Some((pieces, _)) => planner.plan(pieces, &mut work),
        None => planner.end(&mut work),
    };
    assert!(
        planned == Planned::Done || work.is_empty(),
        "a step that misses something does nothing"
    );
    (planned, work)
}

/// What of these pieces, which come in order, lies in the first cluster from `cursor` on that has
/// some, and where that cluster ends.
pub(crate) fn next_pieces(
    pieces: impl Iterator<Item = Piece>,
    cursor: u64,
    cluster: u64,
) -> Option<NextPieces> {
    let mut pieces = pieces.peekable();
    let first = pieces.peek()?;
    assert!(first.span.end() > cursor && cluster > 0, "it lies before");
    let end = (first.span.sector.max(cursor) / cluster + 1) * cluster;
    let mut found: Vec<Piece> = Vec::new();
    for Piece { span, zero } in pieces {
        let from = span.sector.max(cursor);
        if from >= end {
            break;
        }
        let span = Span::new(from, span.end().min(end) - from);
        match found.last_mut() {
            Some(last) if last.span.end() == span.sector && last.zero == zero => {
                last.span.sectors += span.sectors;
            }
            _ => found.push(Piece { span, zero }),
        }
    }
    assert!(!found.is_empty(), "what was found is in its cluster");
    Some((found, end))
}

/// What an epoch has from `cursor` on.
pub(crate) fn pieces_of(map: &ExtentMap, cursor: u64) -> impl Iterator<Item = Piece> {
    map.pieces_from(cursor).map(|piece| Piece {
        span: piece.span,
        zero: !matches!(piece.content, Content::Data(_)),
    })
}
