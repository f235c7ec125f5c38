//! qcow2 files as a [`Map`]: from the tables of a chain to extents of its files. The top file may
//! be written as well: then it is a [`Planner`].
//!
//! Always true: a table that is asked for lies in whole blocks of its file, so that it can be kept
//! among clean blocks; what a plan has read for itself is forgotten when the plan is over, and what
//! it has changed when it is at the file. Lines of the disk that lie in one piece are known beside
//! the tables, so that most reads need none. Deliberately absent: the format (crate `image`), and
//! opening files.

mod whole;

use crate::image::{Mark, Marked};
use crate::origin::{
    Codec, Errand, Extent, FileIndex, Lies, Map, Missing, Packed, Piece, Planned, Planner,
    Resolved, Work,
};
use crate::types::{BLOCK_BYTES, Generation, SECTOR_BYTES, Serial, Span, Uuid};
use ::image::format::mark;
use ::image::header::Compression;
use ::image::meta::{Sector, Sectors, Tables};
use ::image::plan::{self, Writer, exposed};
use ::image::resolve::{self, Content, Part, Stop, resolve};
use ::image::{Chain, Error, types};
use alloc::vec::Vec;
use whole::WholeLines;

/// The file that is written.
const TOP: types::FileIndex = types::FileIndex(0);
/// What a plan may keep of the tables it has read: a piece that was asked for is kept whole, and
/// each step finds all it needs.
const PLAN_BYTES: u64 = 16 << 20;

/// A mark as it stands in a file.
fn in_file(mark: Mark) -> mark::Mark {
    mark::Mark {
        volume: mark.volume.0,
        generation: mark.generation.0,
        serial: mark.serial.0,
    }
}

/// What a file with this first sector says of the volume that has written it.
pub fn marked(sector: &[u8]) -> Marked {
    mark::Mark::of(sector).map_or(Marked::Absent, |found| {
        Marked::By(Mark {
            volume: Uuid(found.volume),
            generation: Generation(found.generation),
            serial: Serial(found.serial),
        })
    })
}

/// A chain of files with the tables that were read of it.
#[derive(Debug)]
pub struct ChainMap {
    chain: Chain,
    tables: Sectors,
    lines: WholeLines,
    names: Vec<Uuid>,
    /// Of the files below the first.
    layers: Vec<Uuid>,
    writing: Option<Writing>,
}

/// What it takes to write the top file.
#[derive(Debug)]
struct Writing {
    writer: Writer,
    /// Tables that were read for the plan alone.
    tables: Sectors,
}

/// Tables of a plan, and behind them those of the map.
struct Both<'a> {
    plan: &'a mut Sectors,
    map: &'a mut Sectors,
}

impl Tables for Both<'_> {
    fn sector(&mut self, file: types::FileId, sector: u64) -> Option<&Sector> {
        match self.plan.sector(file, sector) {
            Some(found) => Some(found),
            None => self.map.sector(file, sector),
        }
    }
}

impl ChainMap {
    /// `names` are of its files, as [`Map::tables`] gives them, `layers` of those below the first,
    /// as [`Map::layers`] gives them.
    pub fn new(chain: Chain, names: Vec<Uuid>, layers: Vec<Uuid>) -> ChainMap {
        assert_eq!(chain.files().len(), names.len(), "each file has a name");
        assert_eq!(chain.files().len() - 1, layers.len(), "one for each below");
        ChainMap {
            chain,
            // Its share is given when it is in use.
            tables: Sectors::new(0),
            lines: WholeLines::default(),
            names,
            layers,
            writing: None,
        }
    }

    /// The same, of a chain whose top is written. Refuses one that cannot be.
    pub fn writable(chain: Chain, names: Vec<Uuid>, layers: Vec<Uuid>) -> Result<ChainMap, Error> {
        let header = chain.file(TOP).header().ok_or(Error::NotQcow2)?;
        let writing = Writing {
            writer: Writer::new(header)?,
            tables: Sectors::new(PLAN_BYTES),
        };
        Ok(ChainMap {
            writing: Some(writing),
            ..ChainMap::new(chain, names, layers)
        })
    }

    fn top(&self) -> &::image::Header {
        let header = self.chain.file(TOP).header();
        header.expect("it was made of one")
    }

    fn writing(&mut self) -> &mut Writing {
        self.writing.as_mut().expect("it is written")
    }

    /// One step of the plan.
    fn step(
        &mut self,
        work: &mut Vec<Work>,
        step: impl FnOnce(&mut Writer, &Chain, &mut Both, &mut Vec<plan::Work>) -> Result<(), Stop>,
    ) -> Planned {
        let writing = self.writing.as_mut().expect("it is written");
        let mut both = Both {
            plan: &mut writing.tables,
            map: &mut self.tables,
        };
        let mut made = Vec::new();
        match step(&mut writing.writer, &self.chain, &mut both, &mut made) {
            Err(Stop::Missing(missing)) => Planned::Missing(in_blocks(missing)),
            Err(Stop::Damaged(_)) => Planned::Damaged,
            Ok(()) => {
                work.extend(made.into_iter().map(|it| self.work(it)));
                Planned::Done
            }
        }
    }

    fn work(&self, work: plan::Work) -> Work {
        match work {
            plan::Work::Data { span, at, when } => Work::Data {
                span: Span::new(span.at / SECTOR_BYTES, span.bytes / SECTOR_BYTES),
                at,
                when,
            },
            plan::Work::Copy { part, at } => Work::Copy {
                extent: self.extent(&part),
                at,
            },
            plan::Work::Zero { range } => Work::Zero {
                at: range.at,
                bytes: range.bytes,
            },
            plan::Work::Table { at, bytes, rank } => Work::Table { at, bytes, rank },
        }
    }

    fn extent(&self, part: &Part) -> Extent {
        let span = Span::new(
            part.span.at / SECTOR_BYTES,
            part.span.bytes.div_ceil(SECTOR_BYTES),
        );
        let Some(index) = part.file else {
            let lies = Lies::Nowhere;
            return Extent { span, lies };
        };
        let file = FileIndex(index.0);
        let lies = match part.content {
            Content::Zero => Lies::Nowhere,
            Content::Data { at } => Lies::At { file, offset: at },
            Content::Compressed { from, cluster_at } => {
                let header = self.chain.file(index).header();
                let header = header.expect("only qcow2 files have compressed clusters");
                Lies::Packed {
                    file,
                    offset: from.at,
                    packed: Packed {
                        codec: match header.compression {
                            Compression::Zlib => Codec::Deflate,
                            Compression::Zstd => Codec::Zstd,
                        },
                        packed_bytes: from.bytes as u32,
                        cluster_bytes: header.cluster_bytes() as u32,
                        skip: (part.span.at - cluster_at) as u32,
                    },
                }
            }
        };
        Extent { span, lies }
    }
}

/// The blocks of a file that have a range in them.
fn in_blocks(missing: resolve::Missing) -> Missing {
    let start = missing.range.at / BLOCK_BYTES * BLOCK_BYTES;
    let end = missing.range.end().next_multiple_of(BLOCK_BYTES);
    Missing {
        file: FileIndex(missing.file.0),
        offset: start,
        bytes: end - start,
        wanted: missing.wanted,
    }
}

impl Map for ChainMap {
    fn resolve(&mut self, span: Span) -> Resolved {
        let line = WholeLines::line_of(span, self.chain.size_bytes() / SECTOR_BYTES);
        let Some(line) = line else {
            return self.look_up(span);
        };
        if let Some(known) = self.lines.find(line, span) {
            return Resolved::Ready(alloc::vec![known]);
        }
        let found = self.look_up(span);
        // Where its line is known, what follows needs no table.
        if let Resolved::Ready(extents) = &found
            && matches!(
                extents[..],
                [Extent {
                    lies: Lies::At { .. },
                    ..
                }]
            )
            && let Resolved::Ready(all) = self.look_up(line)
        {
            self.lines.keep(line, &all);
        }
        found
    }

    fn supply(&mut self, missing: Missing, bytes: &[u8]) {
        let id = self.chain.file(types::FileIndex(missing.file.0)).id;
        self.tables.fill(id, missing.offset, bytes, missing.wanted);
    }

    fn tables(&self) -> &[Uuid] {
        &self.names
    }

    fn layers(&self) -> &[Uuid] {
        &self.layers
    }

    fn bytes(&self) -> u64 {
        self.tables.bytes() + self.lines.bytes()
    }

    fn set_bytes_max(&mut self, bytes: u64) {
        self.tables.set_bytes_max(bytes);
        self.lines.set_bytes_max(bytes);
    }

    fn planner(&mut self) -> Option<&mut dyn Planner> {
        match self.writing {
            Some(_) => Some(self),
            None => None,
        }
    }
}

impl ChainMap {
    /// All of a plan is at the file. Gives where tables have changed.
    fn accept(&mut self) -> Vec<(u64, u64)> {
        let writing = self.writing.as_mut().expect("it is written");
        let changed = writing.writer.accept(&mut self.chain);
        writing.tables = Sectors::new(PLAN_BYTES);
        self.lines.forget();
        changed.iter().map(|it| (it.at, it.bytes)).collect()
    }

    /// What the tables say.
    fn look_up(&mut self, span: Span) -> Resolved {
        let asked = types::Span {
            at: span.sector * SECTOR_BYTES,
            bytes: span.sectors * SECTOR_BYTES,
        };
        let mut parts = Vec::new();
        let done = resolve(&self.chain, asked, &mut self.tables, &mut parts);
        let extents = parts.iter().map(|part| self.extent(part));
        match done {
            Ok(()) => Resolved::Ready(extents.collect()),
            Err(Stop::Missing(missing)) => Resolved::Missing(extents.collect(), in_blocks(missing)),
            Err(Stop::Damaged(_)) => Resolved::Damaged,
        }
    }
}

impl Planner for ChainMap {
    fn cluster_bytes(&self) -> u64 {
        self.top().cluster_bytes()
    }

    fn begin(&mut self, mark: Mark) {
        self.chain.file_mut(TOP).grows_to = None;
        let writing = self.writing();
        writing.tables = Sectors::new(PLAN_BYTES);
        writing.writer.begin(Some(in_file(mark)));
    }

    fn begin_ordered(&mut self) {
        let writing = self.writing();
        writing.tables = Sectors::new(PLAN_BYTES);
        writing.writer.begin_ordered();
    }

    fn in_place(&mut self, span: Span) -> Option<Vec<(Span, u64)>> {
        let writing = self.writing.as_ref().expect("it is written");
        let asked = types::Span {
            at: span.sector * SECTOR_BYTES,
            bytes: span.sectors * SECTOR_BYTES,
        };
        let places = writing
            .writer
            .in_place(&self.chain, &mut self.tables, asked)?;
        let sectors = |it: types::Span| Span::new(it.at / SECTOR_BYTES, it.bytes / SECTOR_BYTES);
        let places = places.into_iter();
        Some(places.map(|(span, at)| (sectors(span), at)).collect())
    }

    fn growth(&self, size_bytes: u64) -> Option<Span> {
        self.top().l1_entries_for(size_bytes)?;
        let types::Span { at, bytes } = exposed(&self.chain, size_bytes);
        Some(Span::new(at / SECTOR_BYTES, bytes / SECTOR_BYTES))
    }

    fn begin_errand(&mut self, mark: Mark, errand: &Errand) {
        self.begin(mark);
        match errand {
            Errand::Grow(size_bytes) => {
                let entries = self.top().l1_entries_for(*size_bytes);
                let entries = entries.expect("it was asked for its growth");
                self.chain.file_mut(TOP).grows_to = Some(*size_bytes);
                self.writing().writer.lengthen(entries);
            }
            Errand::Cut => self.writing().writer.cut_off(),
            Errand::Own(onto) => self.writing().writer.make_own(onto.clone()),
        }
    }

    fn plan(&mut self, pieces: &[Piece], work: &mut Vec<Work>) -> Planned {
        let of = |piece: &Piece| plan::Piece {
            span: types::Span {
                at: piece.span.sector * SECTOR_BYTES,
                bytes: piece.span.sectors * SECTOR_BYTES,
            },
            zero: piece.zero,
        };
        let pieces: Vec<plan::Piece> = pieces.iter().map(of).collect();
        self.step(work, |writer, chain, tables, out| {
            writer.cluster(chain, tables, &pieces, out)
        })
    }

    fn end(&mut self, work: &mut Vec<Work>) -> Planned {
        self.step(work, |writer, chain, tables, out| {
            writer.end(chain, tables, out)
        })
    }

    fn supply(&mut self, missing: Missing, bytes: &[u8]) {
        let id = self.chain.file(types::FileIndex(missing.file.0)).id;
        let (at, wanted) = (missing.offset, missing.wanted);
        self.writing().tables.fill(id, at, bytes, wanted);
    }

    fn grown(&mut self, bytes: u64) {
        let file = self.chain.file_mut(TOP);
        file.file_bytes = file.file_bytes.max(bytes);
    }

    fn guarded(&self, sector: &[u8], guard: bool) -> Option<Vec<u8>> {
        self.top().guarded(sector, guard)
    }

    fn marked(&self, sector: &[u8], mark: Mark) -> Vec<u8> {
        self.top().with_mark(sector, &in_file(mark))
    }

    fn sized(&self, sector: &[u8], size_bytes: u64) -> Option<Vec<u8>> {
        self.top().with_size(sector, size_bytes)
    }

    fn set_size(&mut self, size_bytes: u64) {
        let header = self.chain.file_mut(TOP).header_mut();
        header.expect("it was made of one").size_bytes = size_bytes;
        self.lines.forget();
    }

    fn reached(&mut self) -> Vec<(u64, u64)> {
        let changed = self.accept();
        let id = self.chain.file(TOP).id;
        for (at, bytes) in changed.iter().copied() {
            self.tables.forget_range(id, types::Range { at, bytes });
        }
        changed
    }

    fn written_through(&mut self, tables: &[(u64, &[u8])]) -> Vec<(u64, u64)> {
        let ranges = self.accept();
        let id = self.chain.file(TOP).id;
        for (at, bytes) in tables {
            match *at {
                // The header is changed by others as well, and read anew by each plan.
                0 => self.tables.forget_range(
                    id,
                    types::Range {
                        at: 0,
                        bytes: bytes.len() as u64,
                    },
                ),
                at => self.tables.overwrite(id, at, bytes),
            }
        }
        let told = |range: &(u64, u64)| tables.iter().any(|it| it.0 == range.0);
        debug_assert!(ranges.iter().all(told), "what a plan changes is written");
        ranges
    }

    fn read_anew(&mut self, sector: &[u8], bytes: u64) -> bool {
        let header = self.top().read_anew(sector, bytes);
        let writer = header.and_then(|it| Ok((Writer::new(&it)?, it)));
        let Ok((writer, header)) = writer else {
            return false;
        };
        let file = self.chain.file_mut(TOP);
        let id = file.id;
        file.file_bytes = bytes;
        file.grows_to = None;
        *file.header_mut().expect("it was made of one") = header;
        self.tables.forget(id);
        self.lines.forget();
        let tables = Sectors::new(PLAN_BYTES);
        self.writing = Some(Writing { writer, tables });
        true
    }
}
