//! A qcow2 image whose tables are kept and whose data is not there.
//!
//! Owns what the files of a chain have of headers, tables and refcounts, beside the map that the
//! engine plans and reads by. Always true: a plan changes the tables when all of it is at the file,
//! not before; what a device gives for a table counts for nothing, because devices of a replay hold
//! no bytes; the map itself is the one of the daemon. Counts are of what was asked for, whether
//! the cache answers or the file. Deliberately absent: data, faults, and images of other formats.

use super::tally::Count;
use engine::chain::ChainMap;
use engine::image::Mark;
use engine::origin::{
    Errand, FileIndex, Map, Missing, Piece, Planned, Planner, Resolved, When, Work,
};
use engine::types::{BLOCK_BYTES, SECTOR_BYTES, Span, Uuid};
use image::create::{Backing, BackingFormat, NewFile, Shape, create};
use image::types::FileId;
use image::{Chain, Error, File, Format, Header};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE_BYTES: u64 = 64 << 10;

/// Tables that were asked for, and what plans have made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// For reads of guests, and for plans.
    pub guest_tables: Count,
    pub plan_tables: Count,
    /// Blocks of tables that came for reads of guests, each once until it is changed: what a cache
    /// has to write of them at most.
    pub brought: Count,
    /// Of tables, by plans: where nothing refers to, and by way of the journal.
    pub tables_at_once: Count,
    pub tables_journaled: Count,
    /// Of the files, for the rest of a unit that a guest wrote a part of.
    pub copied: Count,
}

/// One file with tables, as it is now.
#[derive(Debug, Default)]
struct Stored {
    pages: HashMap<u64, Box<[u8]>>,
    bytes: u64,
}

impl Stored {
    fn of(file: &NewFile) -> Stored {
        let mut stored = Stored {
            pages: HashMap::new(),
            bytes: file.file_bytes,
        };
        for extent in &file.extents {
            stored.write(extent.at, &extent.bytes);
        }
        stored
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let place = at + done as u64;
            let from = (place % PAGE_BYTES) as usize;
            let length = (PAGE_BYTES as usize - from).min(bytes.len() - done);
            let page = self.pages.entry(place / PAGE_BYTES);
            let page = page.or_insert_with(|| vec![0; PAGE_BYTES as usize].into());
            page[from..from + length].copy_from_slice(&bytes[done..done + length]);
            done += length;
        }
    }

    fn read(&self, at: u64, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let place = at + done as u64;
            let from = (place % PAGE_BYTES) as usize;
            let length = (PAGE_BYTES as usize - from).min(bytes.len() - done);
            let part = &mut bytes[done..done + length];
            match self.pages.get(&(place / PAGE_BYTES)) {
                Some(page) => part.copy_from_slice(&page[from..from + length]),
                None => part.fill(0),
            }
            done += length;
        }
    }

    fn header(&self) -> Vec<u8> {
        let mut sector = vec![0; SECTOR_BYTES as usize];
        self.read(0, &mut sector);
        sector
    }
}

/// Files with tables, the top first; those below are only read.
#[derive(Clone, Debug, Default)]
pub struct Files {
    stored: Vec<Arc<Mutex<Stored>>>,
    counts: Arc<Mutex<Counts>>,
}

fn locked<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().expect("a replay is one thread")
}

impl Files {
    /// An empty image over a raw base of the same size.
    pub fn over_raw(disk_bytes: u64, shape: Shape) -> Result<Files, Error> {
        let backing = Backing {
            name: "base",
            format: BackingFormat::Raw,
        };
        let file = create(disk_bytes, shape, Some(backing))?;
        Ok(Files {
            stored: vec![Arc::new(Mutex::new(Stored::of(&file)))],
            counts: Arc::default(),
        })
    }

    /// The same image with an empty file on top of it.
    pub fn with_top(&self, disk_bytes: u64, shape: Shape) -> Result<Files, Error> {
        let backing = Backing {
            name: "frozen",
            format: BackingFormat::Qcow2,
        };
        let file = create(disk_bytes, shape, Some(backing))?;
        let top = Arc::new(Mutex::new(Stored::of(&file)));
        let stored = [top].into_iter().chain(self.stored.iter().cloned());
        Ok(Files {
            stored: stored.collect(),
            counts: self.counts.clone(),
        })
    }

    pub fn counts(&self) -> Counts {
        *locked(&self.counts)
    }

    pub fn top_bytes(&self) -> u64 {
        locked(&self.stored[0]).bytes
    }

    /// How the engine finds and writes the bytes of the image; `identity` is of its life.
    pub fn map(&self, disk_bytes: u64, identity: Uuid) -> Result<Box<dyn Map>, Error> {
        let mut files = Vec::new();
        for (at, stored) in self.stored.iter().enumerate() {
            let stored = locked(stored);
            let mut first = vec![0; PAGE_BYTES as usize];
            stored.read(0, &mut first);
            files.push(File {
                id: FileId(at as u32),
                file_bytes: stored.bytes,
                grows_to: None,
                format: Format::Qcow2(Box::new(Header::parse(&first, stored.bytes)?)),
            });
        }
        files.push(File {
            id: FileId(files.len() as u32),
            file_bytes: disk_bytes,
            grows_to: None,
            format: Format::Raw,
        });
        // A file keeps its name when another one comes to lie above it.
        let depth = files.len();
        let name = |kind: u8, at: usize| {
            let mut name = identity;
            (name.0[1], name.0[2]) = (kind, (depth - at) as u8);
            name
        };
        let names: Vec<Uuid> = (0..depth).map(|at| name(1, at)).collect();
        let layers = (1..depth).map(|at| name(2, at)).collect();
        let chain = Chain::new(files)?;
        Ok(Box::new(Kept {
            inner: ChainMap::writable(chain, names, layers)?,
            files: self.clone(),
            planned: Vec::new(),
            end: 0,
            brought: HashSet::new(),
        }))
    }
}

/// The map of the daemon, which finds its tables here.
struct Kept {
    inner: ChainMap,
    files: Files,
    /// What the plan under way makes of the top.
    planned: Vec<(u64, Vec<u8>)>,
    /// How far it writes.
    end: u64,
    /// Blocks of the files that have come for reads.
    brought: HashSet<(FileIndex, u64)>,
}

impl Kept {
    fn bytes_of(&self, missing: Missing) -> Vec<u8> {
        let mut bytes = vec![0; missing.bytes as usize];
        // The last file is raw and has none.
        let stored = &self.files.stored[usize::from(missing.file.0)];
        locked(stored).read(missing.offset, &mut bytes);
        bytes
    }

    fn top(&self) -> MutexGuard<'_, Stored> {
        locked(&self.files.stored[usize::from(FileIndex::TOP.0)])
    }

    /// All of a plan is at the file.
    fn keep_planned(&mut self) {
        let planned = std::mem::take(&mut self.planned);
        let mut top = self.top();
        for (at, bytes) in &planned {
            top.write(*at, bytes);
        }
    }

    fn forget_brought(&mut self, changed: &[(u64, u64)]) {
        for (at, bytes) in changed {
            for block in blocks(*at, *bytes) {
                self.brought.remove(&(FileIndex::TOP, block));
            }
        }
    }

    fn note(&mut self, work: &[Work]) {
        let mut counts = locked(&self.files.counts);
        for work in work {
            let (at, bytes) = match work {
                Work::Data { span, at, .. } => (*at, span.sectors * SECTOR_BYTES),
                Work::Copy { extent, at } => {
                    let bytes = extent.span.sectors * SECTOR_BYTES;
                    counts.copied.add(bytes);
                    (*at, bytes)
                }
                Work::Zero { at, bytes } => (*at, *bytes),
                Work::Table { at, bytes, rank } => {
                    match rank.when() {
                        When::Now => counts.tables_at_once.add(bytes.len() as u64),
                        When::Journal => counts.tables_journaled.add(bytes.len() as u64),
                    }
                    self.planned.push((*at, bytes.clone()));
                    (*at, bytes.len() as u64)
                }
            };
            self.end = self.end.max(at + bytes);
        }
    }
}

/// Those of a file that a range touches.
fn blocks(at: u64, bytes: u64) -> std::ops::Range<u64> {
    at / BLOCK_BYTES..(at + bytes).div_ceil(BLOCK_BYTES)
}

impl Map for Kept {
    fn resolve(&mut self, span: Span) -> Resolved {
        self.inner.resolve(span)
    }

    fn supply(&mut self, missing: Missing, _nothing: &[u8]) {
        let mut counts = locked(&self.files.counts);
        counts.guest_tables.add(missing.bytes);
        for block in blocks(missing.offset, missing.bytes) {
            if self.brought.insert((missing.file, block)) {
                counts.brought.add(BLOCK_BYTES);
            }
        }
        drop(counts);
        let bytes = self.bytes_of(missing);
        Map::supply(&mut self.inner, missing, &bytes);
    }

    fn tables(&self) -> &[Uuid] {
        self.inner.tables()
    }

    fn layers(&self) -> &[Uuid] {
        self.inner.layers()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn set_bytes_max(&mut self, bytes: u64) {
        self.inner.set_bytes_max(bytes);
    }

    fn planner(&mut self) -> Option<&mut dyn Planner> {
        Some(self)
    }
}

impl Planner for Kept {
    fn cluster_bytes(&self) -> u64 {
        self.inner.cluster_bytes()
    }

    fn begin(&mut self, mark: Mark) {
        self.planned.clear();
        self.inner.begin(mark);
    }

    fn begin_ordered(&mut self) {
        self.planned.clear();
        self.inner.begin_ordered();
    }

    fn in_place(&mut self, span: Span) -> Option<Vec<(Span, u64)>> {
        self.inner.in_place(span)
    }

    fn growth(&self, size_bytes: u64) -> Option<Span> {
        self.inner.growth(size_bytes)
    }

    fn begin_errand(&mut self, mark: Mark, errand: &Errand) {
        self.planned.clear();
        self.inner.begin_errand(mark, errand);
    }

    fn plan(&mut self, pieces: &[Piece], work: &mut Vec<Work>) -> Planned {
        let before = work.len();
        let planned = self.inner.plan(pieces, work);
        self.note(&work[before..]);
        planned
    }

    fn end(&mut self, work: &mut Vec<Work>) -> Planned {
        let before = work.len();
        let planned = self.inner.end(work);
        self.note(&work[before..]);
        planned
    }

    fn supply(&mut self, missing: Missing, _nothing: &[u8]) {
        locked(&self.files.counts).plan_tables.add(missing.bytes);
        let bytes = self.bytes_of(missing);
        Planner::supply(&mut self.inner, missing, &bytes);
    }

    fn grown(&mut self, _of_no_file: u64) {
        let end = self.end.next_multiple_of(self.inner.cluster_bytes());
        let mut top = self.top();
        top.bytes = top.bytes.max(end);
        let bytes = top.bytes;
        drop(top);
        self.inner.grown(bytes);
    }

    fn guarded(&self, _nothing: &[u8], guard: bool) -> Option<Vec<u8>> {
        let header = self.top().header();
        self.inner.guarded(&header, guard)
    }

    fn marked(&self, sector: &[u8], mark: Mark) -> Vec<u8> {
        let marked = self.inner.marked(sector, mark);
        self.top().write(0, &marked);
        marked
    }

    fn reached(&mut self) -> Vec<(u64, u64)> {
        self.keep_planned();
        let changed = self.inner.reached();
        self.forget_brought(&changed);
        changed
    }

    fn written_through(&mut self, tables: &[(u64, &[u8])]) -> Vec<(u64, u64)> {
        self.keep_planned();
        let changed = self.inner.written_through(tables);
        self.forget_brought(&changed);
        changed
    }

    fn sized(&self, _nothing: &[u8], size_bytes: u64) -> Option<Vec<u8>> {
        let header = self.top().header();
        let sized = self.inner.sized(&header, size_bytes)?;
        self.top().write(0, &sized);
        Some(sized)
    }

    fn set_size(&mut self, size_bytes: u64) {
        self.inner.set_size(size_bytes);
    }

    fn read_anew(&mut self, _nothing: &[u8], _of_no_file: u64) -> bool {
        let top = self.top();
        let (header, bytes) = (top.header(), top.bytes);
        drop(top);
        self.inner.read_anew(&header, bytes)
    }
}
