//! Plans of the engine's map on small qcow2 files, judged by the second reader: the file is what it
//! was until the journal is applied, and afterwards it is right, without leaks, and as the guest
//! wrote it.
//!
//! `TENUTO_SEEDS` sets how many files, `TENUTO_SEED` where they begin.

use engine::chain::ChainMap;
use engine::image::Mark;
use engine::origin::{
    Extent, FileIndex, Lies, Map, Missing, Piece, Planned, Planner, Resolved, When, Work,
};
use engine::types::{Generation, Serial, Span, Uuid};
use image::types::FileId;
use image::{Chain, File, Format, Header};
use sim::qcow2::{Layer, Verdict, judge, view};
use workload::rng::Rng;

/// What the volume that writes is called in the file.
const MARK: Mark = Mark {
    volume: Uuid([7; 16]),
    generation: Generation(3),
    serial: Serial(12),
};
const SECTOR: u64 = 512;

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |it| it.parse().expect("a decimal number"))
}

/// An empty file: header, refcount table, refcount block, L1.
fn empty(bits: u32, extended: bool, order: u32, size: u64, backed: bool) -> Vec<u8> {
    let cluster = 1_u64 << bits;
    let span = (cluster / if extended { 16 } else { 8 }) << bits;
    let entries = size.div_ceil(span);
    let mut file = vec![0; (3 * cluster + entries * 8) as usize];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0x51, 0x46, 0x49, 0xfb, 0, 0, 0, 3]);
    if backed {
        put(8, &600_u64.to_be_bytes());
        put(16, &4_u32.to_be_bytes());
        put(600, b"base");
    }
    put(20, &bits.to_be_bytes());
    put(24, &size.to_be_bytes());
    put(36, &(entries as u32).to_be_bytes());
    put(40, &(3 * cluster).to_be_bytes());
    put(48, &cluster.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(72, &(u64::from(extended) << 4).to_be_bytes());
    put(96, &order.to_be_bytes());
    put(100, &112_u32.to_be_bytes());
    put(cluster as usize, &(2 * cluster).to_be_bytes());
    let block = 2 * cluster as usize;
    match order {
        0 => put(block, &[0b1111]),
        1 => put(block, &[0b0101_0101]),
        2 => put(block, &[0x11, 0x11]),
        _ => {
            let width = 1 << (order - 3);
            (1..=4).for_each(|it| put(block + it * width - 1, &[1]));
        }
    }
    file
}

struct Bench {
    rng: Rng,
    /// The top, and below it raw files.
    files: Vec<Vec<u8>>,
    map: ChainMap,
    model: Vec<u8>,
}

fn map(files: &[Vec<u8>]) -> ChainMap {
    let described = (0..).zip(files).map(|(id, bytes)| File {
        id: FileId(id),
        file_bytes: bytes.len() as u64,
        grows_to: None,
        format: match id {
            0 => {
                let cluster = &bytes[..1 << bytes[23]];
                let header = Header::parse(cluster, bytes.len() as u64);
                Format::Qcow2(Box::new(header.expect("it was made right")))
            }
            _ => Format::Raw,
        },
    });
    let chain = Chain::new(described.collect()).expect("it was made right");
    let layers = vec![Uuid([9; 16]); files.len() - 1];
    let names = (1..=files.len() as u8).map(|it| Uuid([it; 16])).collect();
    ChainMap::writable(chain, names, layers).expect("it can be written")
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let mut rng = Rng::new(seed);
        let extended = rng.below(2) == 0;
        let bits = match (extended, rng.below(20)) {
            (true, 0) => 17,
            (true, _) => 14,
            (false, 0) => 16,
            (false, _) => 12,
        };
        let size = SECTOR * (1 + rng.below(400));
        let backed = rng.below(2) == 0;
        let mut files = vec![empty(bits, extended, rng.below(7) as u32, size, backed)];
        if backed {
            let bytes = match rng.below(3) {
                0 => size,
                1 => 1 + rng.below(size),
                _ => size + 700,
            };
            files.push((0..bytes).map(|it| (it / SECTOR % 250 + 1) as u8).collect());
        }
        let map = map(&files);
        let model = vec![0; size as usize];
        let mut bench = Bench {
            rng,
            files,
            map,
            model,
        };
        bench.model = bench.seen();
        bench
    }

    /// The disk, by the second reader.
    fn seen(&self) -> Vec<u8> {
        let files = self.files.iter().enumerate();
        let layers: Vec<Layer> = files
            .map(|(number, bytes)| Layer {
                bytes,
                raw: number > 0,
            })
            .collect();
        let mut seen = vec![0; self.model.len()];
        view(&layers, 0, &mut seen, &|_, _, _| None).expect("it can be read");
        seen
    }

    fn read(&self, file: FileIndex, at: u64, bytes: u64) -> Vec<u8> {
        let from = &self.files[usize::from(file.0)];
        let at = from.len().min(at as usize);
        let mut read = from[at..from.len().min(at + bytes as usize)].to_vec();
        read.resize(bytes as usize, 0);
        read
    }

    /// The disk, by the map with what it knows.
    fn mapped(&mut self) -> Vec<u8> {
        let span = Span::new(0, self.model.len() as u64 / SECTOR);
        loop {
            match self.map.resolve(span) {
                Resolved::Ready(extents) => {
                    return extents.iter().flat_map(|it| self.bytes_of(it)).collect();
                }
                Resolved::Missing(_, missing) => {
                    let bytes = self.read(missing.file, missing.offset, missing.bytes);
                    Map::supply(&mut self.map, missing, &bytes);
                }
                Resolved::Damaged => panic!("the file was right"),
            }
        }
    }

    fn bytes_of(&self, extent: &Extent) -> Vec<u8> {
        let bytes = extent.span.sectors * SECTOR;
        match extent.lies {
            Lies::At { file, offset } => self.read(file, offset, bytes),
            Lies::Nowhere => vec![0; bytes as usize],
            Lies::Packed { .. } => panic!("nothing is compressed"),
        }
    }

    /// Sectors that an epoch has as data (1) or zeroes (2).
    fn epoch(&mut self) -> Vec<u8> {
        let sectors = self.model.len() / 512;
        let mut marks = vec![0; sectors];
        for _ in 0..1 + self.rng.below(6) {
            let at = self.rng.below(sectors as u64) as usize;
            let most = self.rng.pick(&[4, 32, 200]);
            let count = 1 + self.rng.below(most) as usize;
            marks[at..sectors.min(at + count)].fill(1 + self.rng.below(2) as u8);
        }
        marks
    }

    fn planner(&mut self) -> &mut dyn Planner {
        self.map.planner().expect("it can be written")
    }

    fn plan(&mut self, marks: &[u8]) -> Vec<Work> {
        self.planner().begin(MARK);
        let cluster = self.planner().cluster_bytes() / SECTOR;
        let mut work = Vec::new();
        for (number, marks) in marks.chunks(cluster as usize).enumerate() {
            let mut at = number as u64 * cluster;
            let mut pieces = Vec::new();
            for run in marks.chunk_by(|one, other| one == other) {
                let span = Span::new(at, run.len() as u64);
                at = span.end();
                if run[0] > 0 {
                    let zero = run[0] == 2;
                    pieces.push(Piece { span, zero });
                }
            }
            if !pieces.is_empty() {
                self.until_done(|it| it.planner().plan(&pieces, &mut work));
            }
        }
        self.until_done(|it| it.planner().end(&mut work));
        work
    }

    fn until_done(&mut self, mut step: impl FnMut(&mut Bench) -> Planned) {
        for _ in 0..10_000 {
            match step(self) {
                Planned::Done => return,
                Planned::Missing(missing) => self.supply(missing),
                Planned::Damaged => panic!("the file was right"),
            }
        }
        panic!("no progress");
    }

    fn supply(&mut self, missing: Missing) {
        assert!(missing.offset.is_multiple_of(4096) && missing.bytes <= 64 << 10);
        let bytes = self.read(missing.file, missing.offset, missing.bytes);
        self.planner().supply(missing, &bytes);
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let (top, at) = (&mut self.files[0], at as usize);
        top.resize(top.len().max(at + bytes.len()), 0);
        top[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn carry_out(&mut self, work: &Work, model: &[u8]) {
        match work {
            Work::Data { span, at, .. } => {
                let from = (span.sector * SECTOR) as usize;
                let bytes = &model[from..from + (span.sectors * SECTOR) as usize];
                self.put(*at, bytes);
            }
            Work::Copy { extent, at } => {
                let bytes = self.bytes_of(extent);
                self.put(*at, &bytes);
            }
            Work::Zero { at, bytes } => self.put(*at, &vec![0; *bytes as usize]),
            Work::Table { at, bytes, .. } => self.put(*at, bytes),
        }
    }

    fn guard(&mut self, guard: bool) {
        let sector = self.read(FileIndex::TOP, 0, SECTOR);
        let changed = self.planner().guarded(&sector, guard);
        let changed = changed.expect("it is a header of this image");
        self.put(0, &changed);
    }

    fn right(&self, model: &[u8], when: &str) {
        assert_eq!(judge(&self.files[0]), Verdict::default(), "{when}");
        assert!(self.seen() == model, "{when}");
    }

    /// One epoch; with `aborts` it ends in the middle of what is written at once.
    fn destage(&mut self, aborts: bool) {
        let marks = self.epoch();
        let work = self.plan(&marks);
        let mut model = self.model.clone();
        for (sector, mark) in model.chunks_mut(512).zip(&marks) {
            let byte = 1 + self.rng.below(255) as u8;
            match mark {
                0 => {}
                1 => sector.fill(byte),
                _ => sector.fill(0),
            }
        }
        let is_now = |it: &Work| match it {
            Work::Data { when, .. } => *when == When::Now,
            Work::Table { rank, .. } => rank.when() == When::Now,
            Work::Copy { .. } => true,
            Work::Zero { .. } => false,
        };
        let (mut now, mut journal): (Vec<_>, Vec<_>) = work.into_iter().partition(is_now);
        self.shuffle(&mut now);
        if aborts {
            now.truncate(self.rng.below(now.len() as u64 + 1) as usize);
        }
        now.iter().for_each(|it| self.carry_out(it, &model));
        self.right(&self.model, "before the journal");
        if aborts {
            return;
        }
        self.guard(true);
        self.shuffle(&mut journal);
        let part = self.rng.below(journal.len() as u64 + 1) as usize;
        for work in journal[..part].iter().chain(&journal) {
            self.carry_out(work, &model);
        }
        if self.rng.below(3) == 0 {
            let sector = self.read(FileIndex::TOP, 0, SECTOR);
            let bytes = self.files[0].len() as u64;
            assert!(self.planner().read_anew(&sector, bytes));
        } else {
            self.planner().reached();
        }
        self.guard(false);
        self.right(&model, "after the journal");
        self.model = model;
        assert!(self.mapped() == self.model, "by the map");
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
    }
}

#[test]
fn what_a_plan_does_to_a_file_is_right_for_the_second_reader() {
    let first = number("TENUTO_SEED", 1);
    for seed in first..first + number("TENUTO_SEEDS", 200) {
        println!("TENUTO_SEED={seed} TENUTO_SEEDS=1");
        let mut bench = Bench::new(seed);
        for _ in 0..1 + bench.rng.below(4) {
            let aborts = bench.rng.below(4) == 0;
            bench.destage(aborts);
            if bench.rng.below(4) == 0 {
                bench.map = map(&bench.files);
            }
        }
    }
}

#[test]
fn a_header_of_another_image_is_neither_guarded_nor_read() {
    let mut bench = Bench::new(3);
    let sector = bench.read(FileIndex::TOP, 0, SECTOR);
    // Magic, version, cluster size, virtual size, width of refcounts.
    for at in [0, 7, 23, 30, 99] {
        let mut other = sector.clone();
        other[at] ^= 2;
        assert_eq!(bench.planner().guarded(&other, true), None, "byte {at}");
        assert!(!bench.planner().read_anew(&other, 1 << 30), "byte {at}");
    }
    let guarded = bench.planner().guarded(&sector, true).expect("it is ours");
    assert_ne!(guarded, sector);
    assert_eq!(bench.planner().guarded(&guarded, false), Some(sector));
}
