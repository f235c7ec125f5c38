//! A sparse file in memory, images that are built in it, and who carries out a plan.
//!
//! Owns the model: what the guest must read before and after. Always true: a step of a plan that
//! asks for a sector gets it, and is made again; what a plan writes at once and what its journal
//! writes do not overlap. Compressed clusters have a content that their place says.

use std::collections::BTreeMap;
use std::convert::Infallible;

use image::check::{check, check_and_list, without_leaks};
use image::create::BackingFormat;
use image::format::entry::{COPIED, Cluster, L1, L2};
use image::format::mark::Mark;
use image::format::onto::Onto;
use image::format::refcount;
use image::header::{Layout, bytes_wanted};
use image::meta::Sectors;
use image::plan::{Piece, Rank, When, Work, Writer, exposed};
use image::resolve::{Content, Part, Stop, resolve};
use image::source::{Source, snapshots};
use image::types::{FileId, FileIndex, Range, Span};
use image::{Chain, File, Format, Header};
use zerocopy::{FromZeros, IntoBytes};

/// What the volume that writes is called in the file.
pub const MARK: Mark = Mark {
    volume: [7; 16],
    generation: 3,
    serial: 12,
};
const PAGE: u64 = 4096;
/// So much is enough for any step of a plan.
const TABLES_BYTES: u64 = 16 << 20;

pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// A file whose unwritten pages are zeroes.
#[derive(Clone, Default)]
pub struct Sparse {
    pages: BTreeMap<u64, Vec<u8>>,
    pub bytes: u64,
}

impl Sparse {
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let here = at + done as u64;
            let count = ((PAGE - here % PAGE) as usize).min(bytes.len() - done);
            let page = self.pages.entry(here / PAGE);
            let page = page.or_insert_with(|| vec![0; PAGE as usize]);
            page[(here % PAGE) as usize..][..count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        self.bytes = self.bytes.max(at + bytes.len() as u64);
    }

    /// Ends here from now on.
    fn cut(&mut self, bytes: u64) {
        self.pages.split_off(&bytes.div_ceil(PAGE));
        if let Some(page) = self.pages.get_mut(&(bytes / PAGE)) {
            page[(bytes % PAGE) as usize..].fill(0);
        }
        self.bytes = bytes;
    }

    fn all(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        self.fill(0, &mut bytes);
        bytes
    }

    pub fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.fill(at, &mut word);
        u64::from_be_bytes(word)
    }

    pub fn put(&mut self, at: u64, word: u64) {
        self.write(at, &word.to_be_bytes());
    }

    pub fn fill(&self, at: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let here = at + done as u64;
            let count = ((PAGE - here % PAGE) as usize).min(into.len() - done);
            let piece = &mut into[done..done + count];
            match self.pages.get(&(here / PAGE)) {
                Some(page) => piece.copy_from_slice(&page[(here % PAGE) as usize..][..count]),
                None => piece.fill(0),
            }
            done += count;
        }
    }

    pub fn header(&self) -> Header {
        let mut head = vec![0; 512];
        self.fill(0, &mut head);
        let mut cluster = vec![0; bytes_wanted(&head).unwrap()];
        self.fill(0, &mut cluster);
        Header::parse(&cluster, self.bytes).unwrap()
    }
}

impl Source for &Sparse {
    type Error = Infallible;

    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Infallible> {
        self.fill(at, into);
        Ok(())
    }
}

/// How an image is made.
#[derive(Clone, Copy, Debug)]
pub struct Knobs {
    pub bits: u32,
    pub extended: bool,
    pub order: u32,
    pub size: u64,
    pub backed: bool,
    /// Where the L1 table lies, which is the end of the file.
    pub l1_cluster: u64,
}

/// An empty image: header, refcount table, refcount blocks, L1.
pub fn build(knobs: Knobs) -> Sparse {
    let cluster = 1_u64 << knobs.bits;
    let entry_bytes = if knobs.extended { 16 } else { 8 };
    let entries = knobs.size.div_ceil((cluster / entry_bytes) << knobs.bits);
    let mut layout = Layout::new_zeroed();
    layout.magic.set(0x5146_49fb);
    layout.version.set(3);
    layout.cluster_bits.set(knobs.bits);
    layout.size_bytes.set(knobs.size);
    layout.l1_entries.set(entries as u32);
    layout.l1_at.set(knobs.l1_cluster * cluster);
    layout.refcount_table_at.set(cluster);
    layout.refcount_table_clusters.set(1);
    layout.incompatible.set(u64::from(knobs.extended) << 4);
    layout.refcount_order.set(knobs.order);
    layout.header_bytes.set(112);
    if knobs.backed {
        layout.backing_at.set(600);
        layout.backing_bytes.set(4);
    }
    let mut file = Sparse::default();
    file.write(0, layout.as_bytes());
    file.write(600, b"base");
    // As QEMU leaves it: the L1 table is the end of the file.
    file.bytes = knobs.l1_cluster * cluster + entries * 8;
    let per_block = (cluster * 8) >> knobs.order;
    let l1_clusters = (entries * 8).div_ceil(cluster);
    let last = (knobs.l1_cluster + l1_clusters - 1) / per_block;
    let mut next = 2;
    let mut numbers: Vec<u64> = (0..=last)
        .filter(|it| *it == 0 || *it + 1 >= last)
        .collect();
    numbers.dedup();
    for number in numbers {
        file.put(cluster + number * 8, next * cluster);
        next += 1;
    }
    assert!(next <= knobs.l1_cluster);
    recount(&mut file);
    file
}

/// The clusters that a file uses, and how often.
fn references(file: &Sparse, header: &Header) -> BTreeMap<u64, u64> {
    let bits = header.cluster_bits;
    let mut used = BTreeMap::new();
    let mut count = |at: u64, bytes: u64| {
        if bytes > 0 {
            (at >> bits..=(at + bytes - 1) >> bits)
                .for_each(|it| *used.entry(it).or_default() += 1);
        }
    };
    count(0, 1);
    count(header.refcount_table.at, header.refcount_table.bytes);
    for at in (header.refcount_table.at..header.refcount_table.end()).step_by(8) {
        count(file.word(at), u64::from(file.word(at) != 0));
    }
    let mut tables = vec![header.l1()];
    let bytes = snapshots(header, &mut &*file, |it| tables.push(it.l1)).unwrap();
    count(header.snapshots_at, bytes);
    for l1 in tables {
        count(l1.at, l1.bytes);
        for (_, table) in pointers(file, l1) {
            count(table, 1);
            for (at, _) in entries(file, header, table) {
                match entry(file, header, at).cluster(bits) {
                    Cluster::Data(at) | Cluster::Zero(Some(at)) => count(at, 1),
                    Cluster::Compressed(from) => count(from.at, from.bytes),
                    _ => {}
                }
            }
        }
    }
    used
}

fn pointers(file: &Sparse, l1: Range) -> Vec<(u64, u64)> {
    let all = (l1.at..l1.end()).step_by(8);
    let found = all.map(|at| (at, L1(file.word(at)).table_at()));
    found.filter(|it| it.1 != 0).collect()
}

fn entries(file: &Sparse, header: &Header, table: u64) -> Vec<(u64, u64)> {
    let all = (table..table + header.cluster_bytes()).step_by(header.l2_entry_bytes() as usize);
    all.map(|at| (at, file.word(at)))
        .filter(|it| it.1 != 0)
        .collect()
}

/// Entries of clusters that begin in this part of the disk.
fn entries_within(file: &Sparse, header: &Header, part: std::ops::Range<u64>) -> u64 {
    let l1 = header.l1();
    let behind = pointers(file, l1).into_iter().map(|(l1_at, table)| {
        let first = (l1_at - l1.at) / 8 * header.table_span_bytes();
        let entries = entries(file, header, table).into_iter();
        let guest = |at: u64| (at - table) / header.l2_entry_bytes() * header.cluster_bytes();
        entries
            .filter(|it| part.contains(&(first + guest(it.0))))
            .count() as u64
    });
    behind.sum()
}

fn entry(file: &Sparse, header: &Header, at: u64) -> L2 {
    let extended = header.is_extended();
    let bitmap = if extended { file.word(at + 8) } else { 0 };
    L2 {
        word: file.word(at),
        bitmap,
        extended,
    }
}

/// Makes all refcounts and COPIED bits right, in the blocks that are there.
pub fn recount(file: &mut Sparse) {
    let header = file.header();
    let used = references(file, &header);
    let per_block = refcount::block_clusters(&header);
    let blocks =
        |it: &Sparse, cluster: u64| it.word(header.refcount_table.at + cluster / per_block * 8);
    for (&cluster, &count) in &used {
        let block = blocks(file, cluster);
        assert!(block != 0, "{cluster} has a block");
        let mut bytes = vec![0; header.cluster_bytes() as usize];
        file.fill(block, &mut bytes);
        refcount::set(
            &mut bytes,
            header.refcount_order,
            cluster % per_block,
            count,
        );
        file.write(block, &bytes);
    }
    let once = |at: u64| {
        if used[&(at >> header.cluster_bits)] == 1 {
            COPIED
        } else {
            0
        }
    };
    for (l1_at, table) in pointers(file, header.l1()) {
        file.put(l1_at, table | once(table));
        for (at, word) in entries(file, &header, table) {
            let found = entry(file, &header, at).cluster(header.cluster_bits);
            if let Cluster::Data(to) | Cluster::Zero(Some(to)) = found {
                file.put(at, word & !COPIED | once(to));
            }
        }
    }
}

/// What the guest reads, where it is compressed.
fn compressed(at: u64, within: u64) -> u8 {
    (at / 7 + within / 512 + 1) as u8
}

pub struct Bench {
    pub rng: Rng,
    pub top: Sparse,
    /// Below it; raw where it is the last.
    pub below: Vec<(Sparse, bool)>,
    pub chain: Chain,
    pub tables: Sectors,
    pub writer: Writer,
    pub model: Vec<u8>,
    pub counted: u64,
    pub mark: Option<Mark>,
    /// So many entries the next plan gives to L1.
    pub l1_entries: Option<u32>,
    /// What the next plan is for, where that is no epoch.
    errand: Option<Errand>,
}

#[derive(Clone)]
enum Errand {
    Own(Option<Onto>),
    Cut,
}

/// What one plan is to do, and did.
pub struct Made {
    pub now: Vec<Work>,
    pub journal: Vec<Work>,
    pub model: Vec<u8>,
}

impl Bench {
    pub fn new(seed: u64, top: Sparse, below: Vec<(Sparse, bool)>) -> Bench {
        let header = top.header();
        let mut files = vec![(&top, false)];
        files.extend(below.iter().map(|(file, raw)| (file, *raw)));
        let files = (0..).zip(files).map(|(id, (file, raw))| File {
            id: FileId(id),
            file_bytes: file.bytes,
            grows_to: None,
            format: match raw {
                true => Format::Raw,
                false => Format::Qcow2(Box::new(file.header())),
            },
        });
        let chain = Chain::new(files.collect()).unwrap();
        let mut bench = Bench {
            rng: Rng(seed),
            chain,
            tables: Sectors::new(TABLES_BYTES),
            writer: Writer::new(&header).unwrap(),
            model: Vec::new(),
            top,
            below,
            counted: 0,
            mark: None,
            l1_entries: None,
            errand: None,
        };
        bench.model = bench.content();
        bench
    }

    /// As a program would that opens the files.
    pub fn reopen(&mut self) {
        let again = Bench::new(self.rng.next(), self.top.clone(), self.below.clone());
        assert!(again.model == self.model);
        (self.chain, self.tables, self.writer) = (again.chain, again.tables, again.writer);
    }

    pub fn file(&self, index: usize) -> &Sparse {
        match index {
            0 => &self.top,
            other => &self.below[other - 1].0,
        }
    }

    fn supply(&mut self, missing: image::resolve::Missing) {
        let index = usize::from(missing.file.0);
        let mut bytes = vec![0; missing.range.bytes as usize];
        self.file(index).fill(missing.range.at, &mut bytes);
        let id = FileId(index as u32);
        self.tables
            .fill(id, missing.range.at, &bytes, missing.wanted);
    }

    pub fn content(&mut self) -> Vec<u8> {
        let chain = self.chain.clone();
        self.content_of(&chain)
    }

    /// All of the disk through this chain.
    pub fn content_of(&mut self, chain: &Chain) -> Vec<u8> {
        let mut parts = Vec::new();
        let span = Span {
            at: 0,
            bytes: chain.size_bytes(),
        };
        loop {
            match resolve(chain, span, &mut self.tables, &mut parts) {
                Ok(()) => break,
                Err(Stop::Missing(missing)) => self.supply(missing),
                Err(Stop::Damaged(damage)) => panic!("{damage}"),
            }
        }
        parts.iter().flat_map(|it| self.bytes_of(it)).collect()
    }

    fn bytes_of(&self, part: &Part) -> Vec<u8> {
        let mut bytes = vec![0; part.span.bytes as usize];
        match part.content {
            Content::Zero => {}
            Content::Data { at } => {
                let FileIndex(file) = part.file.unwrap();
                self.file(usize::from(file)).fill(at, &mut bytes);
            }
            Content::Compressed { from, cluster_at } => {
                let first = part.span.at - cluster_at;
                let made = (first..).map(|it| compressed(from.at, it));
                bytes.iter_mut().zip(made).for_each(|(to, it)| *to = it);
            }
        }
        bytes
    }

    /// Nothing is wrong with the top file, and nothing is lost.
    pub fn check(&mut self, when: &str) {
        let header = self.top.header();
        let report = check(&header, self.top.bytes, &mut &self.top).unwrap();
        let found = (report.corruptions, report.leaks);
        assert_eq!(found, (0, 0), "{when}: {:#?}", report.findings);
        assert!(self.top.bytes.next_multiple_of(512) >= report.end_bytes || when == "before");
    }

    /// Sectors of an epoch: nothing, data, zeroes.
    pub fn epoch(&mut self) -> Vec<u8> {
        let sectors = self.model.len() / 512;
        let mut marks = vec![0; sectors];
        for _ in 0..1 + self.rng.below(12) {
            let most = self.rng.pick(&[8, 64, 256, sectors as u64]);
            let (at, mut count) = (self.rng.below(sectors as u64), 1 + self.rng.below(most));
            let mut at = at as usize;
            if self.rng.below(3) == 0 {
                let unit =
                    (self.chain.file(FileIndex(0)).header().unwrap().unit_bytes() / 512) as usize;
                at = at / unit * unit;
                count = count.next_multiple_of(unit as u64);
            }
            let end = sectors.min(at + count as usize);
            marks[at..end].fill(1 + self.rng.below(2) as u8);
        }
        marks
    }

    /// A plan for these sectors.
    pub fn plan(&mut self, marks: &[u8]) -> Result<Made, Stop> {
        self.writer.begin(self.mark);
        if let Some(entries) = self.l1_entries {
            self.writer.lengthen(entries);
        }
        match self.errand.clone() {
            Some(Errand::Own(onto)) => self.writer.make_own(onto),
            Some(Errand::Cut) => self.writer.cut_off(),
            None => {}
        }
        let (out, mut model) = self.walk(marks)?;
        if let Some(Errand::Own(_)) = self.errand {
            model.clone_from(&self.model);
        }
        let is_now = |it: &Work| match it {
            Work::Data { when, .. } => *when == When::Now,
            Work::Table { rank, .. } => rank.when() == When::Now,
            Work::Copy { .. } => true,
            Work::Zero { .. } => false,
        };
        let (now, journal): (Vec<_>, Vec<_>) = out.into_iter().partition(is_now);
        disjoint(&now, &journal);
        for work in &journal {
            let Work::Table { at: 0, bytes, .. } = work else {
                continue;
            };
            assert!(
                bytes[72] & 0x20 != 0,
                "a header in the journal has the guard"
            );
        }
        Ok(Made {
            now,
            journal,
            model,
        })
    }

    /// The steps of a plan that has begun, and what the disk is behind it.
    fn walk(&mut self, marks: &[u8]) -> Result<(Vec<Work>, Vec<u8>), Stop> {
        let cluster = (self.top.header().cluster_bytes() / 512) as usize;
        let mut out = Vec::new();
        for (number, marks) in marks.chunks(cluster).enumerate() {
            let pieces = pieces(marks, (number * cluster) as u64 * 512);
            if pieces.is_empty() {
                continue;
            }
            self.step(&mut out, |it, out| {
                it.writer.cluster(&it.chain, &mut it.tables, &pieces, out)
            })?;
        }
        self.step(&mut out, |it, out| {
            it.writer.end(&it.chain, &mut it.tables, out)
        })?;
        let mut model = self.model.clone();
        for (sector, mark) in model.chunks_mut(512).zip(marks) {
            match mark {
                0 => {}
                1 => sector.fill(1 + self.rng.below(255) as u8),
                _ => sector.fill(0),
            }
        }
        Ok((out, model))
    }

    /// All of one plan without a journal: tables in the order of their ranks, and within a rank in
    /// any order. Whatever part of a rank has come, each sector is the old one or the new one.
    pub fn write_through(&mut self, marks: &[u8]) {
        self.writer.begin_ordered();
        let (mut out, model) = self.walk(marks).unwrap();
        let rank = |it: &Work| match it {
            Work::Table { rank, .. } => *rank,
            Work::Data { .. } | Work::Copy { .. } | Work::Zero { .. } => Rank::Unused,
        };
        self.shuffle(&mut out);
        out.sort_by_key(rank);
        let stop = self.rng.below(out.len() as u64 + 1) as usize;
        let table = self.top.header().refcount_table;
        let (end, mut newest) = (self.top.bytes, Rank::Unused);
        for (number, work) in out.iter().enumerate() {
            if number == stop {
                self.check_between(&model);
                if newest <= Rank::Count {
                    self.check_shorter(end);
                }
            }
            newest = newest.max(rank(work));
            self.carry_out(work, &model);
        }
        for range in self.writer.accept(&mut self.chain) {
            self.tables.forget_range(FileId(0), range);
        }
        self.counted += u64::from(self.top.header().refcount_table != table);
        assert_eq!(
            self.chain.file(FileIndex(0)).header(),
            Some(&self.top.header())
        );
        self.model = model;
        assert!(self.content() == self.model, "by what is known");
        let fresh = Bench::new(0, self.top.clone(), self.below.clone());
        assert!(fresh.model == self.model, "by the file");
        self.check("written through");
    }

    /// The file in the middle of a plan without a journal: nothing but leaks.
    fn check_between(&mut self, model: &[u8]) {
        let header = self.top.header();
        assert!(!header.is_guarded(), "nothing says how it would go on");
        let report = check(&header, self.top.bytes, &mut &self.top).unwrap();
        assert_eq!(report.corruptions, 0, "{:#?}", report.findings);
        if report.leaks > 0 {
            assert!(header.may_leak(), "who opens it looks for leaks");
            self.check_freed(&header, report.leaks);
        }
        let fresh = Bench::new(0, self.top.clone(), self.below.clone());
        let disks = fresh.model.chunks(512).zip(self.model.chunks(512));
        for (number, ((now, old), new)) in disks.zip(model.chunks(512)).enumerate() {
            assert!(now == old || now == new, "sector {number} is another");
        }
    }

    /// The same where the counts have come and nothing that makes the file longer, because no sync
    /// was between them: the next plan makes it longer, and nothing of it may have leaked.
    fn check_shorter(&self, end: u64) {
        let (mut top, longer) = (self.top.clone(), self.top.bytes);
        top.cut(end);
        let header = top.header();
        let (report, listed) = check_and_list(&header, end, &mut &top, 1 << 20).unwrap();
        assert_eq!(report.corruptions, 0, "{:#?}", report.findings);
        assert!(listed.is_empty() || header.may_leak(), "it says so");
        for (number, sector) in without_leaks(&header, &mut &top, &listed).unwrap() {
            top.write(number * 512, &sector);
        }
        let report = check(&header, longer, &mut &top).unwrap();
        assert_eq!((report.corruptions, report.leaks), (0, 0), "made longer");
    }

    /// What has leaked is found and freed.
    fn check_freed(&self, header: &Header, leaks: u64) {
        let mut top = self.top.clone();
        let (_, listed) = check_and_list(header, top.bytes, &mut &top, 1 << 20).unwrap();
        assert_eq!(listed.len() as u64, leaks);
        for (number, sector) in without_leaks(header, &mut &top, &listed).unwrap() {
            top.write(number * 512, &sector);
        }
        let report = check(header, top.bytes, &mut &top).unwrap();
        assert_eq!((report.corruptions, report.leaks), (0, 0), "freed");
    }

    fn step(
        &mut self,
        out: &mut Vec<Work>,
        mut step: impl FnMut(&mut Bench, &mut Vec<Work>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        for _ in 0..100_000 {
            let before = out.len();
            match step(self, out) {
                Err(Stop::Missing(missing)) => {
                    assert_eq!(out.len(), before, "a step that waits says nothing");
                    // What is forgotten is asked for again.
                    if self.rng.below(40) == 0 {
                        self.tables.forget(FileId(0));
                    }
                    self.supply(missing);
                }
                done => return done,
            }
        }
        panic!("no progress");
    }

    /// Carries out one thing; data is of `model`.
    pub fn carry_out(&mut self, work: &Work, model: &[u8]) {
        match work {
            Work::Data { span, at, .. } => {
                let from = span.at as usize..span.end() as usize;
                self.top.write(*at, &model[from]);
            }
            Work::Copy { part, at } => {
                let bytes = self.bytes_of(part);
                self.top.write(*at, &bytes);
            }
            Work::Zero { range } => self.top.write(range.at, &vec![0; range.bytes as usize]),
            Work::Table { at, bytes, .. } => self.top.write(*at, bytes),
        }
    }

    /// All of one epoch, in any order; sometimes the journal twice, in part.
    pub fn destage(&mut self, marks: &[u8]) {
        let mut made = self.plan(marks).unwrap();
        self.shuffle(&mut made.now);
        for work in &made.now {
            self.carry_out(work, &made.model);
        }
        let old = self.top.header().refcount_table;
        let fresh = Bench::new(0, self.top.clone(), self.below.clone());
        assert!(fresh.model == self.model, "the journal is not applied");
        self.check("before");
        let length = self.top.bytes;
        self.shuffle(&mut made.journal);
        let part = self.rng.below(made.journal.len() as u64 + 1) as usize;
        for work in made.journal[..part].iter().chain(&made.journal) {
            self.carry_out(work, &made.model);
        }
        assert_eq!(self.top.bytes, length, "a journal does not extend the file");
        self.unguard();
        for range in self.writer.accept(&mut self.chain) {
            self.tables.forget_range(FileId(0), range);
        }
        self.counted += u64::from(self.top.header().refcount_table != old);
        assert_eq!(self.chain.file(FileIndex(0)).file_bytes, self.top.bytes);
        assert_eq!(
            self.chain.file(FileIndex(0)).header(),
            Some(&self.top.header())
        );
        self.model = made.model;
        assert!(
            self.content() == self.model,
            "after the journal, by what is known"
        );
        let fresh = Bench::new(0, self.top.clone(), self.below.clone());
        assert!(fresh.model == self.model, "after the journal, by the file");
        self.check("after");
    }

    /// Grows the disk to this size and L1 to so many entries. What lies behind L1 is no zeroes.
    pub fn grow(&mut self, size: u64, l1_entries: u32) {
        let header = self.top.header();
        let behind = header.l1().end().next_multiple_of(header.cluster_bytes()) - header.l1().end();
        self.top
            .write(header.l1().end(), &vec![0x5A; behind as usize]);
        self.reopen();
        let exposed = exposed(&self.chain, size);
        let mut marks = vec![0; (exposed.end() / 512) as usize];
        marks[(exposed.at / 512) as usize..].fill(2);
        self.chain.file_mut(FileIndex(0)).grows_to = Some(size);
        self.l1_entries = Some(l1_entries);
        self.destage(&marks);
        self.l1_entries = None;
        let mut sector = vec![0; 512];
        self.top.fill(0, &mut sector);
        let known = self.chain.file_mut(FileIndex(0)).header_mut().unwrap();
        let sized = known.with_size(&sector, size).expect("there is room");
        assert_eq!(known.with_size(&sized, size).as_ref(), Some(&sized));
        known.size_bytes = size;
        self.top.write(0, &sized);
        self.model.resize(size as usize, 0);
        assert!(self.content() == self.model, "what is new reads as zeroes");
        self.reopen();
        self.check("after");
    }

    /// Lets the top stand on what is below the file below it, or on nothing. It gets what of the
    /// disk would be another thing, sometimes in two plans, and more.
    pub fn rebase(&mut self) {
        let all = self.below.len();
        let below = self.below[1 + self.rng.below(all as u64) as usize..].to_vec();
        let mut seen = match below.split_first() {
            None => Vec::new(),
            Some(((file, true), _)) => file.all(),
            Some(((file, false), rest)) => Bench::new(0, file.clone(), rest.to_vec()).model,
        };
        seen.resize(self.model.len(), 0);
        let mut marks: Vec<u8> = self
            .model
            .chunks(512)
            .zip(seen.chunks(512))
            .map(|(one, other)| 2 * u8::from(one != other))
            .collect();
        if self.rng.below(2) == 0 {
            let more = self.epoch();
            let both = marks.iter_mut().zip(more);
            both.for_each(|(mark, more)| *mark |= 2 * u8::from(more > 0));
        }
        if self.rng.below(2) == 0 {
            self.errand = Some(Errand::Own(None));
            self.destage(&marks);
            self.errand = None;
        }
        let onto = match below.first() {
            None => Onto::Nothing,
            Some((_, raw)) => Onto::File {
                name: "a name that is longer than the one before".into(),
                format: match raw {
                    true => BackingFormat::Raw,
                    false => BackingFormat::Qcow2,
                },
            },
        };
        assert!(self.top.header().has_room_for(&onto));
        self.run_errand(Errand::Own(Some(onto)), &marks);
        self.below = below;
        self.reopen();
        self.check("after");
    }

    /// All of a plan after which the disk or what lies below it is another one. Nothing is another
    /// before its journal is applied, which comes in any order and in part twice.
    fn run_errand(&mut self, errand: Errand, marks: &[u8]) {
        self.errand = Some(errand);
        let mut made = self.plan(marks).expect("the image is right");
        self.errand = None;
        self.shuffle(&mut made.now);
        for work in &made.now {
            self.carry_out(work, &made.model);
        }
        let fresh = Bench::new(0, self.top.clone(), self.below.clone());
        assert!(fresh.model == self.model, "the journal is not applied");
        self.check("before");
        self.shuffle(&mut made.journal);
        let part = self.rng.below(made.journal.len() as u64 + 1) as usize;
        for work in made.journal[..part].iter().chain(&made.journal) {
            self.carry_out(work, &made.model);
        }
        self.unguard();
        self.writer.accept(&mut self.chain);
        let known = self.chain.file(FileIndex(0)).header();
        assert_eq!(known, Some(&self.top.header()));
    }

    /// Makes the disk this small.
    pub fn shrink(&mut self, size: u64) {
        let mut marks = vec![0; self.model.len() / 512];
        marks[(size / 512) as usize..].fill(2);
        self.run_errand(Errand::Cut, &marks);
        let header = self.top.header();
        let mut sector = vec![0; 512];
        self.top.fill(0, &mut sector);
        let sized = header.with_size(&sector, size).expect("there is room");
        self.check("after");
        let behind = entries_within(&self.top, &header, size..self.model.len() as u64);
        assert_eq!(behind, 0, "what is behind the end has no cluster");
        self.top.write(0, &sized);
        self.model.truncate(size as usize);
        self.reopen();
        self.check("after");
    }

    fn unguard(&mut self) {
        let mut sector = vec![0; 512];
        self.top.fill(0, &mut sector);
        let header = self.top.header();
        self.top.write(0, &header.guarded(&sector, false).unwrap());
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
    }

    /// A cluster behind all others, if its refcount has a block.
    fn append(&mut self) -> Option<u64> {
        let header = self.top.header();
        let used = references(&self.top, &header);
        let next = used.last_key_value().unwrap().0 + 1;
        let next = next.max(self.top.bytes.div_ceil(header.cluster_bytes()));
        let block = next / refcount::block_clusters(&header);
        if block >= header.refcount_table.bytes / 8 {
            return None;
        }
        let at = next << header.cluster_bits;
        if self.top.word(header.refcount_table.at + block * 8) == 0 {
            return None;
        }
        self.top.bytes = at + header.cluster_bytes();
        Some(at)
    }

    /// An internal snapshot, as QEMU takes one; gives its L1 table.
    pub fn snapshot(&mut self) -> Option<Range> {
        let header = self.top.header();
        if header.refcount_order < 2 || header.snapshots > 0 {
            return None;
        }
        let l1 = self.append()?;
        let table = l1 + header.cluster_bytes();
        let number = table >> header.cluster_bits;
        let fits = !number.is_multiple_of(refcount::block_clusters(&header));
        if !fits || header.l1().bytes > header.cluster_bytes() {
            // The file may be longer by now.
            self.reopen();
            return None;
        }
        let mut bytes = vec![0; header.l1().bytes as usize];
        self.top.fill(header.l1_at, &mut bytes);
        self.top.write(l1, &bytes);
        let mut entry = Vec::new();
        entry.extend(l1.to_be_bytes());
        entry.extend(header.l1_entries.to_be_bytes());
        entry.extend([0, 1, 0, 1]);
        entry.resize(36, 0);
        entry.extend(16_u32.to_be_bytes());
        entry.extend(0_u64.to_be_bytes());
        entry.extend(header.size_bytes.to_be_bytes());
        entry.extend(b"1s");
        entry.resize(header.cluster_bytes() as usize, 0);
        self.top.write(table, &entry);
        self.top.write(60, &1_u32.to_be_bytes());
        self.top.put(64, table);
        recount(&mut self.top);
        self.reopen();
        Some(Range {
            at: l1,
            bytes: bytes.len() as u64,
        })
    }

    /// What a guest would see of the snapshot with this L1 table.
    pub fn seen_by(&mut self, l1: Range, size: usize) -> Vec<u8> {
        let mut chain = self.chain.clone();
        let header = chain.file_mut(FileIndex(0)).header_mut().unwrap();
        header.l1_at = l1.at;
        header.l1_entries = (l1.bytes / 8) as u32;
        header.size_bytes = size as u64;
        self.content_of(&chain)
    }

    /// Two clusters that have nothing become compressed ones: in one cluster of the file, and the
    /// second one goes on in the next.
    pub fn compress(&mut self) {
        let header = self.top.header();
        if header.refcount_order < 2 {
            return;
        }
        let Some(host) = self.append() else {
            return;
        };
        let bytes = header.cluster_bytes();
        if ((host >> header.cluster_bits) + 1).is_multiple_of(refcount::block_clusters(&header)) {
            self.reopen();
            return;
        }
        self.top.bytes += bytes;
        let mut used = 0;
        for (_, table) in pointers(&self.top, header.l1()) {
            for number in 0..bytes / header.l2_entry_bytes() {
                let at = table + number * header.l2_entry_bytes();
                let old = entry(&self.top, &header, at);
                if used < 2 && (old.word, old.bitmap) == (0, 0) {
                    let shift = 62 - (header.cluster_bits - 8);
                    let at_host = host + used * (bytes - 100) + 17;
                    let word = 1 << 62 | 2 << shift | at_host;
                    self.top.put(at, word);
                    used += 1;
                }
            }
        }
        recount(&mut self.top);
        let again = Bench::new(self.rng.next(), self.top.clone(), self.below.clone());
        (self.chain, self.tables, self.writer) = (again.chain, again.tables, again.writer);
        self.model = again.model;
    }
}

/// Runs of equal marks as pieces, from this place of the disk on.
fn pieces(marks: &[u8], mut at: u64) -> Vec<Piece> {
    let mut found = Vec::new();
    for run in marks.chunk_by(|one, other| one == other) {
        let bytes = run.len() as u64 * 512;
        let span = Span { at, bytes };
        at += bytes;
        if run[0] != 0 {
            let zero = run[0] == 2;
            found.push(Piece { span, zero });
        }
    }
    found
}

fn range(work: &Work) -> Range {
    let (at, bytes) = match work {
        Work::Data { span, at, .. } => (*at, span.bytes),
        Work::Copy { part, at } => (*at, part.span.bytes),
        Work::Zero { range } => (range.at, range.bytes),
        Work::Table { at, bytes, .. } => (*at, bytes.len() as u64),
    };
    Range { at, bytes }
}

fn disjoint(now: &[Work], journal: &[Work]) {
    let mut all: Vec<Range> = now.iter().chain(journal).map(range).collect();
    all.sort_by_key(|it| it.at);
    for range in &all {
        assert!(range.at % 512 == 0 && range.bytes % 512 == 0 && range.bytes > 0);
    }
    for pair in all.windows(2) {
        assert!(pair[0].end() <= pair[1].at, "{pair:?} overlap");
    }
}
