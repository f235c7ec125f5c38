//! Headers that are refused, and chains that are walked, on files that are built here.
//!
//! Always true: every file begins as `create` makes it, so a test says only what it changes.

#![allow(clippy::unwrap_used)]

use image::create::{Backing, BackingFormat, Shape, create};
use image::error::{Error, Kind};
use image::format::entry::Compressed;
use image::format::extension;
use image::format::extension::append;
use image::format::header::{self, BackingName, LAYOUT_BYTES};
use image::meta::{SECTORS_MIN, Sectors};
use image::resolve::{Content, Part, Stop, Wrong, resolve};
use image::types::{FileId, FileIndex, Span};
use image::{Chain, File, Format, Header};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A file in memory.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn new(size_bytes: u64, shape: Shape, backing: Option<BackingFormat>) -> Bytes {
        let name = "base";
        let backing = backing.map(|format| Backing { name, format });
        let made = create(size_bytes, shape, backing).unwrap();
        let mut bytes = vec![0; made.file_bytes as usize];
        for extent in made.extents {
            let at = extent.at as usize;
            bytes[at..at + extent.bytes.len()].copy_from_slice(&extent.bytes);
        }
        Bytes(bytes)
    }

    fn header(&self) -> Result<Header, Error> {
        let cluster = header::bytes_wanted(&self.0)?;
        Header::parse(&self.0[..cluster.min(self.0.len())], self.0.len() as u64)
    }

    fn put(&mut self, at: u64, word: u64) {
        self.0.resize(self.0.len().max(at as usize + 8), 0);
        self.0[at as usize..at as usize + 8].copy_from_slice(&word.to_be_bytes());
    }

    fn put32(&mut self, at: u64, word: u32) {
        self.0[at as usize..at as usize + 4].copy_from_slice(&word.to_be_bytes());
    }

    /// Appends a cluster-aligned table or data of `bytes`; where it lies.
    fn grow(&mut self, bytes: u64) -> u64 {
        let cluster = self.header().unwrap().cluster_bytes() as usize;
        let at = self.0.len().next_multiple_of(cluster);
        self.0.resize(at + bytes as usize, 0);
        at as u64
    }

    /// An L2 table in the first entry of L1; where it lies.
    fn table(&mut self) -> u64 {
        let header = self.header().unwrap();
        let at = self.grow(header.cluster_bytes());
        self.put(header.l1_at, at | 1 << 63);
        at
    }

    fn file(&self, id: u32) -> File {
        File {
            id: FileId(id),
            file_bytes: self.0.len() as u64,
            grows_to: None,
            format: Format::Qcow2(Box::new(self.header().unwrap())),
        }
    }
}

/// Files and their tables.
struct Stack {
    bytes: Vec<Vec<u8>>,
    chain: Chain,
    sectors: Sectors,
    reads: u64,
}

impl Stack {
    fn new(files: &[&Bytes], raw: Option<u64>) -> Stack {
        let numbered = files.iter().enumerate();
        let mut all: Vec<File> = numbered.map(|(id, it)| it.file(id as u32)).collect();
        all.extend(raw.map(|file_bytes| File {
            id: FileId(99),
            file_bytes,
            grows_to: None,
            format: Format::Raw,
        }));
        Stack {
            bytes: files.iter().map(|it| it.0.clone()).collect(),
            chain: Chain::new(all).unwrap(),
            sectors: Sectors::new(0),
            reads: 0,
        }
    }

    fn parts(&mut self, at: u64, bytes: u64) -> Result<Vec<Part>, Wrong> {
        let mut parts = Vec::new();
        loop {
            let span = Span { at, bytes };
            match resolve(&self.chain, span, &mut self.sectors, &mut parts) {
                Ok(()) => return Ok(parts),
                Err(Stop::Damaged(damage)) => return Err(damage.why),
                Err(Stop::Missing(missing)) => {
                    self.reads += 1;
                    assert!(self.reads < 10_000, "no progress");
                    let from = &self.bytes[usize::from(missing.file.0)];
                    let range = missing.range;
                    let end = from.len().min(range.end() as usize);
                    let mut bytes = from[range.at as usize..end].to_vec();
                    bytes.resize(range.bytes as usize, 0);
                    let id = self.chain.file(missing.file).id;
                    self.sectors.fill(id, range.at, &bytes, missing.wanted);
                }
            }
        }
    }

    /// Each part as bytes, file and content.
    fn shown(&mut self, at: u64, bytes: u64) -> Vec<(u64, Option<u8>, Content)> {
        let parts = self.parts(at, bytes).unwrap();
        let file = |part: &Part| part.file.map(|FileIndex(number)| number);
        parts
            .iter()
            .map(|it| (it.span.bytes, file(it), it.content))
            .collect()
    }
}

#[test]
fn a_new_file_says_what_it_was_made_with() {
    let plain = Bytes::new(MIB, Shape::Plain, None).header().unwrap();
    assert_eq!(
        (plain.cluster_bytes(), plain.unit_bytes()),
        (64 * KIB, 64 * KIB)
    );
    assert_eq!((plain.size_bytes, plain.backing), (MIB, None));
    let file = Bytes::new(256 << 40, Shape::Extended, Some(BackingFormat::Raw));
    let header = file.header().unwrap();
    assert_eq!(
        (header.cluster_bytes(), header.unit_bytes()),
        (128 * KIB, 4 * KIB)
    );
    assert_eq!(header.backing.as_deref(), Some("base"));
    assert_eq!(header.backing_format.as_deref(), Some("raw"));
    assert_eq!(header.table_span_bytes(), 1 << 30);
    assert_eq!(header.extensions.len(), 2);
    let long = "x".repeat(1024);
    let long = Backing {
        name: &long,
        format: BackingFormat::Raw,
    };
    assert!(create(MIB, Shape::Plain, Some(long)).is_err());
    assert!(create((256 << 40) + 512, Shape::Plain, None).is_err());
    assert!(create(0, Shape::Plain, None).is_err() && create(700, Shape::Plain, None).is_err());
}

/// What is changed, and the sentence that refuses it.
type Case = (&'static str, fn(&mut Bytes), &'static str);

const REFUSED: [Case; 20] = [
    (
        "magic",
        |it| it.0[0] = b'q',
        "does not begin as a qcow2 file",
    ),
    ("version", |it| it.put32(4, 4), "is qcow2 version 4"),
    ("small", |it| it.put32(20, 8), "clusters of 2^8"),
    ("large", |it| it.put32(20, 22), "clusters of 2^22"),
    ("short", |it| it.put32(100, 96), "a header of 96 bytes"),
    ("odd", |it| it.put32(100, 108), "a header of 108 bytes"),
    ("empty", |it| it.put(24, 511), "a virtual size of 511 bytes"),
    (
        "huge",
        |it| it.put(24, (256 << 40) + 1),
        "a virtual size of",
    ),
    (
        "l1",
        |it| it.put32(36, 0),
        "L1 table of 0 entries; its size needs 1",
    ),
    (
        "l1 at",
        |it| it.put(40, 0x30200),
        "L1 table at offset 0x30200, which is no",
    ),
    (
        "l1 size",
        |it| it.put32(36, 4 << 20 | 1),
        "L1 table of 33554440; 33554432 is the most",
    ),
    (
        "l1 end",
        |it| it.put(40, 0xf_0000),
        "L1 table at offset 0xf0000",
    ),
    (
        "l1 wrap",
        |it| it.put(40, 0xffff_ffff_ffff_0000),
        "L1 table at offset",
    ),
    ("counts", |it| it.put32(56, 0), "has no refcount table"),
    (
        "counts size",
        |it| it.put32(56, 129),
        "refcount table of 8454144",
    ),
    ("width", |it| it.put32(96, 7), "refcounts of 2^7 bits"),
    ("encryption", |it| it.put32(32, 3), "unknown method 3"),
    ("bit", |it| it.put(72, 1 << 3), "zlib and zstd"),
    (
        "unknown",
        |it| it.put(72, 1 << 40 | 1 << 5),
        "not known here: bit 5, bit 40",
    ),
    (
        "name",
        |it| it.put32(16, 60_000),
        "backing name of 60000; 1023 is the most",
    ),
];

#[test]
fn a_header_that_breaks_a_limit_is_refused_with_a_sentence() {
    let good = Bytes::new(MIB, Shape::Plain, Some(BackingFormat::Qcow2));
    good.header().unwrap();
    for (name, change, sentence) in REFUSED {
        let mut file = good.clone();
        change(&mut file);
        let error = file.header().expect_err(name);
        let said = error.to_string();
        assert!(said.contains(sentence), "{name}: {said}");
    }
    let cut = Header::parse(&good.0[..100], 100).unwrap_err();
    assert_eq!(
        (cut.kind(), cut),
        (Kind::Damaged, Error::Short { bytes: 100 })
    );
}

#[test]
fn extensions_are_kept_and_bounded() {
    let good = Bytes::new(MIB, Shape::Plain, None);
    let with = |list: &[(u32, &[u8])]| {
        let mut file = good.clone();
        let mut bytes = Vec::new();
        list.iter()
            .for_each(|(magic, it)| append(&mut bytes, *magic, it));
        append(&mut bytes, extension::END, &[]);
        file.0[LAYOUT_BYTES..LAYOUT_BYTES + bytes.len()].copy_from_slice(&bytes);
        file.header()
    };
    let header = with(&[(7, b"abc"), (8, &[1; 900])]).unwrap();
    assert_eq!(extension::find(&header.extensions, 7), Some(&b"abc"[..]));
    assert!(with(&[(7, b"a"), (7, b"b")]).is_err_and(|it| it.to_string().contains("twice")));
    let many: Vec<(u32, &[u8])> = (1..=65).map(|it| (it, &[][..])).collect();
    assert_eq!(with(&many), Err(Error::ExtensionsMany));
    let text = with(&[(extension::DATA_FILE, &[0xff])]).unwrap_err();
    assert!(text.to_string().contains("not UTF-8"), "{text}");
    let mut long = good.clone();
    long.put32(LAYOUT_BYTES as u64, 9);
    long.put32(LAYOUT_BYTES as u64 + 4, u32::MAX);
    assert!(matches!(
        long.header(),
        Err(Error::Extension { magic: 9, .. })
    ));
}

#[test]
fn an_unknown_feature_is_named_as_its_writer_calls_it() {
    let mut file = Bytes::new(MIB, Shape::Plain, None);
    file.put(72, 1 << 62);
    // The entry of our own bit, whose number is changed.
    let at = file.0.windows(8).position(|it| it == b"tenuto: ").unwrap();
    file.0[at - 1] = 62;
    let said = file.header().unwrap_err().to_string();
    assert!(
        said.ends_with("tenuto: run \"tenuto origin replay\""),
        "{said}"
    );
    file.put(72, header::GUARD);
    assert!(file.header().unwrap().is_guarded());
}

#[test]
fn names_of_backings_are_told_apart() {
    assert_eq!(BackingName::of("a/b:c"), BackingName::Path("a/b:c"));
    assert_eq!(BackingName::of("file:/x"), BackingName::Path("/x"));
    assert_eq!(BackingName::of("nbd://h/e"), BackingName::Protocol("nbd"));
    assert_eq!(BackingName::of("json:{}"), BackingName::Json("{}"));
}

#[test]
fn a_chain_shows_what_the_highest_file_holds() {
    let mut top = Bytes::new(4 * MIB, Shape::Plain, Some(BackingFormat::Qcow2));
    let table = top.table();
    let data = top.grow(128 * KIB);
    top.put(table, data | 1 << 63);
    top.put(table + 8, (data + 64 * KIB) | 1 << 63);
    top.put(table + 24, 1);
    // Shorter than the top, over a raw file that is longer: that is not seen.
    let base = Bytes::new(MIB, Shape::Plain, Some(BackingFormat::Raw));
    let mut stack = Stack::new(&[&top, &base], Some(2 * MIB));
    let at = |at| Content::Data { at };
    let seen = [
        (128 * KIB, Some(0), at(data)),
        (64 * KIB, Some(2), at(128 * KIB)),
        (64 * KIB, Some(0), Content::Zero),
        (768 * KIB, Some(2), at(256 * KIB)),
        (3 * MIB, None, Content::Zero),
    ];
    assert_eq!(stack.shown(0, 4 * MIB), seen);
    assert_eq!(stack.shown(100 * KIB, 50 * KIB)[1].2, at(128 * KIB));
    assert_eq!(stack.shown(4 * MIB, 512), [(512, None, Content::Zero)]);
}

#[test]
fn subclusters_are_resolved_one_by_one() {
    let mut top = Bytes::new(4 * MIB, Shape::Extended, Some(BackingFormat::Raw));
    let table = top.table();
    let data = top.grow(128 * KIB);
    top.put(table, data | 1 << 63);
    // The first two hold data, the fourth reads as zeroes, all others show the base.
    top.put(table + 8, 0b11 | 0b1000 << 32);
    // Zeroes without a place, and a file that ends inside its cluster.
    top.put(table + 24, u64::from(u32::MAX) << 32);
    let mut stack = Stack::new(&[&top], Some(4 * MIB));
    let at = |at| Content::Data { at };
    let seen = [
        (8 * KIB, Some(0), at(data)),
        (4 * KIB, Some(1), at(8 * KIB)),
        (4 * KIB, Some(0), Content::Zero),
        (112 * KIB, Some(1), at(16 * KIB)),
        (128 * KIB, Some(0), Content::Zero),
    ];
    assert_eq!(stack.shown(0, 256 * KIB), seen);
    assert_eq!(
        stack.shown(5 * KIB, KIB),
        [(KIB, Some(0), at(data + 5 * KIB))]
    );
    top.put(table + 8, 1 | 1 << 32);
    let mut stack = Stack::new(&[&top], Some(4 * MIB));
    assert_eq!(stack.parts(0, 512), Err(Wrong::Bitmap));
}

#[test]
fn entries_without_a_meaning_are_damage_and_ends_of_files_are_zeroes() {
    let mut top = Bytes::new(4 * MIB, Shape::Plain, None);
    let table = top.table();
    top.put(table, 0x1200);
    // Compressed: two sectors from a place that is not aligned.
    let packed = top.grow(700);
    top.put(table + 8, 1 << 62 | 1 << 54 | (packed + 100));
    top.put(table + 16, 1 << 62 | 1 << 40);
    // Wholly behind the end.
    top.put(table + 24, 1 << 40);
    let mut stack = Stack::new(&[&top], None);
    assert_eq!(stack.parts(0, 512), Err(Wrong::DataMisaligned));
    let from = Compressed {
        at: packed + 100,
        bytes: 1024 - 100,
    };
    let content = Content::Compressed {
        from,
        cluster_at: 64 * KIB,
    };
    assert_eq!(
        stack.shown(96 * KIB, 4 * KIB),
        [(4 * KIB, Some(0), content)]
    );
    assert_eq!(stack.parts(128 * KIB, 512), Err(Wrong::CompressedOutside));
    assert_eq!(stack.shown(192 * KIB, 512), [(512, Some(0), Content::Zero)]);
    top.put(top.header().unwrap().l1_at, table + 512);
    let mut stack = Stack::new(&[&top], None);
    assert_eq!(stack.parts(0, 512), Err(Wrong::TableMisaligned));
}

#[test]
fn the_deepest_chain_is_walked_with_the_smallest_store() {
    let mut file = Bytes::new(1 << 40, Shape::Plain, Some(BackingFormat::Qcow2));
    file.table();
    let mut last = Bytes::new(1 << 40, Shape::Plain, None);
    last.table();
    let mut files: Vec<&Bytes> = vec![&file; 63];
    files.push(&last);
    let mut stack = Stack::new(&files, None);
    for round in 0..8 {
        let before = stack.reads;
        assert_eq!(stack.shown(round * 64 * MIB, MIB).len(), 1);
        assert!(stack.sectors.bytes() <= SECTORS_MIN as u64 * 512);
        // Two tables of each file, then only the next sector of one: the other is still there.
        let reads = stack.reads - before;
        assert_eq!(reads, if round == 0 { 128 } else { 64 }, "round {round}");
    }
    let too_many: Vec<File> = (0..65).map(|id| file.file(id)).collect();
    assert_eq!(Chain::new(too_many), Err(Error::Deep(65)));
}

#[test]
fn a_walk_over_a_disk_gives_each_run_once() {
    let mut top = Bytes::new(1 << 40, Shape::Extended, None);
    let table = top.table();
    let data = top.grow(128 * KIB);
    top.put(table + 16, data | 1 << 63);
    top.put(table + 24, 1 << 31);
    let mut stack = Stack::new(&[&top], None);
    let (mut walk, mut runs) = (image::map::Walk::default(), Vec::new());
    while let Err(stop) = walk.go(&stack.chain, &mut stack.sectors, |run| runs.push(run)) {
        let Stop::Missing(missing) = stop else {
            panic!("{stop:?}");
        };
        let range = missing.range;
        let mut bytes = stack.bytes[0].clone();
        bytes.resize(bytes.len().max(range.end() as usize), 0);
        let piece = &bytes[range.at as usize..range.end() as usize];
        stack
            .sectors
            .fill(FileId(0), range.at, piece, missing.wanted);
    }
    let seen: Vec<(u64, bool)> = runs
        .iter()
        .map(|it| (it.span.bytes, it.file.is_some()))
        .collect();
    let before = 252 * KIB;
    assert_eq!(
        seen,
        [
            (before, false),
            (4 * KIB, true),
            ((1 << 40) - 256 * KIB, false)
        ]
    );
}
