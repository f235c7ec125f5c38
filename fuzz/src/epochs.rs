//! Target for epochs that reach an image of our own writing, one after the other.
//!
//! Invariants: before a journal is applied the file is right to the last count and has its old
//! content, or in place each sector of it old or new; a part of the journal changes nothing of what
//! all of it makes; behind it the file is right again and has what was written; a journal makes no
//! file longer, and its header has the guard.

use crate::qcow2::{MARK, Stack};
use crate::source::Source;
use image::check::check;
use image::format::refcount;
use image::header::Layout;
use image::meta::Sectors;
use image::plan::{Piece, When, Work, Writer};
use image::resolve::{Content, Stop};
use image::types::{FileId, FileIndex, Span};
use image::{Chain, File, Format};
use zerocopy::{FromZeros, IntoBytes};

const SECTOR: usize = 512;
/// Header, refcount table and block, L1.
const CLUSTERS: u64 = 4;
const SECTORS_MAX: usize = 512;

/// An image that has nothing yet.
fn empty(source: &mut Source) -> Vec<u8> {
    let extended = source.flag();
    let (bits, entry_bytes) = if extended { (14, 16) } else { (12, 8) };
    let cluster = 1_u64 << bits;
    let size = (SECTOR * (1 + source.below(SECTORS_MAX))) as u64;
    let mut layout = Layout::new_zeroed();
    layout.magic.set(0x5146_49fb);
    layout.version.set(3);
    layout.cluster_bits.set(bits);
    layout.size_bytes.set(size);
    let span = (cluster / entry_bytes) << bits;
    layout.l1_entries.set(size.div_ceil(span) as u32);
    layout.l1_at.set(3 * cluster);
    layout.refcount_table_at.set(cluster);
    layout.refcount_table_clusters.set(1);
    layout.incompatible.set(u64::from(extended) << 4);
    let order = source.below(7) as u32;
    layout.refcount_order.set(order);
    layout.header_bytes.set(112);
    let mut bytes = layout.as_bytes().to_vec();
    bytes.resize((CLUSTERS * cluster) as usize, 0);
    let at = cluster as usize;
    bytes[at..at + 8].copy_from_slice(&(2 * cluster).to_be_bytes());
    let block = &mut bytes[2 * at..3 * at];
    (0..CLUSTERS).for_each(|it| refcount::set(block, order, it, 1));
    bytes
}

struct Image {
    stack: Stack,
    writer: Writer,
    model: Vec<u8>,
}

impl Image {
    fn new(bytes: Vec<u8>) -> Image {
        let header = crate::qcow2::parsed(&bytes).expect("it was made right");
        let writer = Writer::new(&header).expect("it is written");
        let model = vec![0; header.size_bytes as usize];
        let file = File {
            id: FileId(0),
            file_bytes: bytes.len() as u64,
            grows_to: None,
            format: Format::Qcow2(Box::new(header)),
        };
        let stack = Stack {
            bytes: vec![bytes],
            chain: Chain::new(vec![file]).expect("one file is a chain"),
            sectors: Sectors::new(4 << 20),
        };
        Image {
            stack,
            writer,
            model,
        }
    }

    /// The same file as another program opens it: what it holds, when it is right.
    fn opened(&self) -> Vec<u8> {
        let mut bytes = self.stack.bytes[0].clone();
        unguard(&mut bytes);
        let header = crate::qcow2::parsed(&bytes).expect("its header stays right");
        let report = check(&header, bytes.len() as u64, &mut &bytes[..]);
        let report = report.expect("memory is read, and is small");
        assert_eq!(
            (report.corruptions, report.leaks),
            (0, 0),
            "{:?}",
            report.findings
        );
        let mut fresh = Image::new(bytes).stack;
        let whole = Span {
            at: 0,
            bytes: self.model.len() as u64,
        };
        let parts = fresh.parts(whole).expect("it was checked");
        let mut content = vec![0; self.model.len()];
        for part in parts {
            if let Content::Data { at } = part.content {
                let into = part.span.at as usize..part.span.end() as usize;
                let end = (at as usize + into.len()).min(fresh.bytes[0].len());
                let there = &fresh.bytes[0][at as usize..end];
                content[into][..there.len()].copy_from_slice(there);
            }
        }
        content
    }

    fn plan(&mut self, marks: &[u8]) -> Vec<Work> {
        let header = self.stack.chain.file(FileIndex(0)).header();
        let sectors = header.expect("it is qcow2").cluster_bytes() as usize / SECTOR;
        let mut work = Vec::new();
        self.writer.begin(Some(MARK));
        for (number, marks) in marks.chunks(sectors).enumerate() {
            let pieces = pieces(marks, number * sectors);
            if !pieces.is_empty() {
                self.step(|it| {
                    let stack = &mut it.stack;
                    it.writer
                        .cluster(&stack.chain, &mut stack.sectors, &pieces, &mut work)
                });
            }
        }
        self.step(|it| {
            let stack = &mut it.stack;
            it.writer.end(&stack.chain, &mut stack.sectors, &mut work)
        });
        work
    }

    fn step(&mut self, mut step: impl FnMut(&mut Image) -> Result<(), Stop>) {
        for _ in 0..10_000 {
            match step(self) {
                Ok(()) => return,
                Err(Stop::Missing(missing)) => self.stack.supply(missing),
                Err(Stop::Damaged(damage)) => panic!("a right image has {damage:?}"),
            }
        }
        panic!("no progress");
    }

    fn carry_out(&mut self, work: &Work, model: &[u8]) {
        let zeroes;
        let (at, bytes) = match work {
            Work::Data { span, at, .. } => (*at, &model[span.at as usize..span.end() as usize]),
            Work::Zero { range } => {
                zeroes = vec![0; range.bytes as usize];
                (range.at, &zeroes[..])
            }
            Work::Table { at, bytes, .. } => (*at, &bytes[..]),
            // Nothing lies below it.
            Work::Copy { part, at } => {
                zeroes = match part.content {
                    Content::Data { at } => {
                        let from = at as usize;
                        self.stack.bytes[0][from..from + part.span.bytes as usize].to_vec()
                    }
                    _ => vec![0; part.span.bytes as usize],
                };
                (*at, &zeroes[..])
            }
        };
        let file = &mut self.stack.bytes[0];
        let end = at as usize + bytes.len();
        file.resize(file.len().max(end), 0);
        file[at as usize..end].copy_from_slice(bytes);
    }

    fn destage(&mut self, source: &mut Source, marks: &[u8], in_place: bool) {
        let work = self.plan(marks);
        let mut model = self.model.clone();
        for (sector, mark) in model.chunks_mut(SECTOR).zip(marks) {
            match mark {
                0 => {}
                1 => sector.fill(source.byte()),
                _ => sector.fill(0),
            }
        }
        let at_once = |it: &Work| match it {
            Work::Data { when, .. } => in_place || *when == When::Now,
            Work::Table { rank, .. } => rank.when() == When::Now,
            Work::Copy { .. } => true,
            Work::Zero { .. } => false,
        };
        let (now, journal): (Vec<_>, Vec<_>) = work.into_iter().partition(at_once);
        now.iter().for_each(|it| self.carry_out(it, &model));
        let found = self.opened();
        let states = self.model.chunks(SECTOR).zip(model.chunks(SECTOR));
        for (found, (old, new)) in found.chunks(SECTOR).zip(states) {
            assert!(
                found == old || in_place && found == new,
                "before its journal"
            );
        }
        let length = self.stack.bytes[0].len();
        let part = source.below(journal.len() + 1);
        for work in journal[..part].iter().chain(&journal) {
            if let Work::Table { at: 0, bytes, .. } = work {
                assert!(bytes[72] & 0x20 != 0, "a header in a journal has the guard");
            }
            self.carry_out(work, &model);
        }
        assert_eq!(
            self.stack.bytes[0].len(),
            length,
            "no journal extends a file"
        );
        unguard(&mut self.stack.bytes[0]);
        for range in self.writer.accept(&mut self.stack.chain) {
            self.stack.sectors.forget_range(FileId(0), range);
        }
        self.model = model;
        assert!(self.opened() == self.model, "behind its journal");
    }
}

fn unguard(bytes: &mut [u8]) {
    bytes[72] &= !0x20;
}

/// Sectors of one kind in a row, of a cluster that begins here.
fn pieces(marks: &[u8], first: usize) -> Vec<Piece> {
    let mut found: Vec<Piece> = Vec::new();
    for (number, mark) in marks.iter().enumerate().filter(|it| *it.1 != 0) {
        let at = ((first + number) * SECTOR) as u64;
        let zero = *mark == 2;
        match found.last_mut() {
            Some(last) if last.zero == zero && last.span.end() == at => {
                last.span.bytes += SECTOR as u64;
            }
            _ => found.push(Piece {
                span: Span {
                    at,
                    bytes: SECTOR as u64,
                },
                zero,
            }),
        }
    }
    found
}

pub fn epochs(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let mut image = Image::new(empty(source));
    let sectors = image.model.len() / SECTOR;
    for _ in 0..1 + source.below(3) {
        let mut marks = vec![0; sectors];
        for _ in 0..1 + source.below(4) {
            let at = source.below(sectors);
            let end = sectors.min(at + source.pick(&[1, 3, 8, 32, 200]));
            marks[at..end].fill(1 + source.byte() % 2);
        }
        let in_place = source.flag();
        image.destage(source, &marks, in_place);
    }
    true
}
