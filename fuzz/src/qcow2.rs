//! Targets for qcow2 files: parts of one by themselves, and whole small files that are walked.
//!
//! Invariants: nothing panics; what a header that was accepted says can be computed with; parts of
//! a span touch each other, cover it, and lie inside their files; a span cut in two gives the same;
//! a file that a check finds right is one that every walk gets through, but for what QEMU's check
//! does not look at; what a plan writes never goes to a table of the header but by way of the
//! journal. Compressed data fills its cluster or is refused.

use crate::source::Source;
use host::origin::chain::json_backing;
use host::origin::inflate::inflate;
use image::check::{FINDINGS_MAX, check as check_file};
use image::format::entry::{Cluster, L1, L2};
use image::format::extension::append;
use image::format::mark::Mark;
use image::format::{extension, refcount, snapshot};
use image::header::{BackingName, Compression, HEAD_BYTES, Layout, bytes_wanted, features};
use image::meta::Sectors;
use image::plan::{Piece, When, Work, Writer};
use image::resolve::{Content, Missing, Part, Stop, TABLE_READ_BYTES, Wrong, resolve};
use image::source::Source as FileSource;
use image::types::{FileId, FileIndex, Range, Span};
use image::{Chain, File, Format, Header};
use zerocopy::{FromZeros, IntoBytes};

/// Clusters of a file that is made: header, refcount table and block, L1, L2, and data.
const CLUSTERS: u64 = 8;
/// What the volume that writes is called in the file.
pub const MARK: Mark = Mark {
    volume: [7; 16],
    generation: 3,
    serial: 12,
};
const VIRTUAL_BYTES_MAX: u64 = 1 << 20;

fn layout(source: &mut Source) -> Layout {
    let mut layout = Layout::new_zeroed();
    let extended = source.below(4) == 0;
    let bits = if extended {
        14
    } else {
        9 + source.below(4) as u32
    };
    let cluster = 1_u64 << bits;
    let old = !extended && source.below(4) == 0;
    layout.magic.set(0x5146_49fb);
    layout.version.set(if old { 2 } else { 3 });
    layout.cluster_bits.set(bits);
    let entry_bytes = if extended { 16 } else { 8 };
    let span = (cluster / entry_bytes) << bits;
    let size = 512 * (1 + u64::from(source.u16()) % 2048);
    layout.size_bytes.set(size.min(span * 2));
    layout.l1_entries.set(2);
    layout.l1_at.set(3 * cluster);
    layout.refcount_table_at.set(cluster);
    layout.refcount_table_clusters.set(1);
    layout.incompatible.set(if extended { 1 << 4 } else { 0 });
    layout
        .refcount_order
        .set(if old { 4 } else { source.below(7) as u32 });
    layout.header_bytes.set(112);
    if source.below(4) == 0 {
        layout.snapshots.set(1 + source.below(3) as u32);
        layout.snapshots_at.set(6 * cluster);
    }
    layout
}

/// A word of a table: a cluster of the file, compressed data, zeroes, or anything.
fn word(source: &mut Source, cluster: u64) -> u64 {
    let place = source.below(CLUSTERS as usize + 2) as u64 * cluster;
    let copied = u64::from(source.flag()) << 63;
    match source.below(6) {
        0 | 1 => place | copied,
        2 => place | 1 | copied,
        3 => 1 << 62 | place | u64::from(source.byte()),
        4 => 0,
        _ => source.number(),
    }
}

fn file(source: &mut Source, backed: bool) -> Vec<u8> {
    let mut layout = layout(source);
    let cluster = 1_u64 << layout.cluster_bits.get();
    let header_bytes = if layout.version.get() == 2 { 72 } else { 112 };
    let mut extensions = Vec::new();
    let magics = [extension::FEATURE_NAMES, 7, extension::BACKING_FORMAT];
    for magic in &magics[..source.below(4)] {
        let text = source.text(5).replace('\0', "x");
        append(&mut extensions, *magic, text.as_bytes());
    }
    append(&mut extensions, extension::END, &[]);
    let name_at = header_bytes + extensions.len();
    if backed {
        layout.backing_at.set(name_at as u64);
        layout.backing_bytes.set(4);
    }
    let mut bytes = layout.as_bytes()[..header_bytes].to_vec();
    bytes.extend(extensions);
    bytes.extend(b"base");
    bytes.resize((CLUSTERS * cluster) as usize - source.below(600), 0);
    let mut put = |at: u64, word: u64| {
        let at = at as usize;
        if let Some(place) = bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    };
    put(cluster, 2 * cluster);
    put(
        3 * cluster,
        (4 * cluster) | (u64::from(source.flag()) << 63),
    );
    for _ in 0..source.below(24) {
        let table = source.pick(&[1, 2, 3, 4, 4, 4, 5, 6]);
        let entry = source.below((cluster / 8) as usize) as u64;
        let near = if source.flag() { entry % 8 } else { entry };
        put(table * cluster + near * 8, word(source, cluster));
    }
    bytes
}

pub(crate) fn parsed(bytes: &[u8]) -> Option<Header> {
    let wanted = bytes_wanted(&bytes[..bytes.len().min(HEAD_BYTES)]).ok()?;
    let cluster = &bytes[..bytes.len().min(wanted)];
    Header::parse(cluster, bytes.len() as u64).ok()
}

pub fn header(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let backed = source.flag();
    let mut bytes = file(source, backed);
    bytes.truncate(4096);
    source.damage(&mut bytes);
    // The tables lie behind what was kept.
    let Ok(wanted) = bytes_wanted(&bytes) else {
        return false;
    };
    let cluster = &bytes[..bytes.len().min(wanted)];
    let Ok(header) = Header::parse(cluster, source.number()) else {
        return Header::parse(cluster, 1 << 40).is_ok();
    };
    assert!(header.size_bytes > 0 && header.size_bytes % 512 == 0);
    assert!(header.l1().end() <= 1 << 56 && header.unit_bytes() >= 512);
    assert!(header.size_bytes.div_ceil(header.table_span_bytes()) <= u64::from(header.l1_entries));
    let name = header.backing.as_deref().unwrap_or("");
    assert!(!name.contains('\0') && name.len() <= 1023);
    let _ = (
        BackingName::of(name),
        features(&header),
        header.feature_names(),
    );
    true
}

pub fn extensions(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let (start, room) = (source.below(256), source.below(512));
    let mut bytes = vec![0; start];
    for _ in 0..source.below(6) {
        let magic = source.u32();
        append(&mut bytes, magic, source.take(40));
    }
    append(&mut bytes, extension::END, &[]);
    source.damage(&mut bytes);
    let Ok(list) = extension::parse(&bytes, start, start + room) else {
        return false;
    };
    let sum: usize = list.iter().map(|it| 8 + it.bytes.len()).sum();
    assert!(list.len() <= 64 && sum <= room);
    for it in &list {
        assert_eq!(extension::find(&list, it.magic), Some(&it.bytes[..]));
        let _ = extension::feature_names(&it.bytes);
        let _ = extension::bitmaps(&it.bytes, 4096, source.number());
    }
    !list.is_empty()
}

/// What an image says of the file below it: a path, JSON that names one and no more, or another
/// protocol.
pub fn backing(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let keys = [
        "driver",
        "file.filename",
        "file.driver",
        "file",
        "filename",
        "x",
    ];
    let values = [
        "\"qcow2\"",
        "\"raw\"",
        "\"file\"",
        "\"/a/b\"",
        "\"c\"",
        "1",
        "{}",
        "{\"filename\":\"/d\"}",
    ];
    let name = match source.below(3) {
        0 => source.text(40),
        1 => format!("json:{}", source.text(60)),
        _ => {
            let pair = |_| format!("\"{}\":{}", source.pick(&keys), source.pick(&values));
            let pairs: Vec<String> = (0..3).map(pair).collect();
            format!("json:{{{}}}", pairs.join(","))
        }
    };
    match BackingName::of(&name) {
        BackingName::Path(path) => name.ends_with(path),
        BackingName::Protocol(protocol) => {
            assert!(!protocol.contains('/') && name.starts_with(protocol));
            false
        }
        BackingName::Json(text) => match json_backing(text) {
            Ok((path, _)) => {
                assert!(path.is_absolute(), "{path:?}");
                true
            }
            Err(why) => {
                assert!(!why.is_empty() && !why.contains('\n'), "{why:?}");
                false
            }
        },
    }
}

pub fn entries(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let (number, bitmap) = (source.number(), source.number());
    assert!(L1(number).table_at() < 1 << 56);
    for bits in 9..=21 {
        for extended in [false, true] {
            let entry = L2 {
                word: number,
                bitmap,
                extended,
            };
            let cluster = entry.cluster(bits);
            let _ = (entry.is_contradictory(cluster), entry.has_reserved_bits());
            match cluster {
                Cluster::Compressed(from) => {
                    assert!(from.bytes > 0 && from.bytes <= 2 << bits && from.at < 1 << 61);
                    assert!((from.at + from.bytes) % 512 == 0);
                }
                Cluster::Data(at) | Cluster::Zero(Some(at)) => assert!(at > 0 && at < 1 << 56),
                Cluster::Unallocated | Cluster::Zero(None) => {}
            }
            (0..32).for_each(|it| assert!(entry.unit(it) == entry.unit(it)));
        }
    }
    true
}

pub fn refcounts(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let order = source.below(7) as u32;
    let mut bytes = source.take(512).to_vec();
    let room = (bytes.len() as u64 * 8) >> order;
    if room == 0 {
        return refcount::get(&bytes, order, source.u64() >> 8) == 0;
    }
    let (number, other) = (source.u64() % room, source.u64() % room);
    let before = refcount::get(&bytes, order, other);
    let count = source.number() & refcount::most(order);
    refcount::set(&mut bytes, order, number, count);
    assert_eq!(refcount::get(&bytes, order, number), count);
    assert!(number == other || refcount::get(&bytes, order, other) == before);
    true
}

pub fn snapshots(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let Some(header) = parsed(&file(source, false)) else {
        return false;
    };
    let mut fixed = source.take(snapshot::FIXED_BYTES).to_vec();
    fixed.resize(snapshot::FIXED_BYTES, 0);
    if source.flag() {
        fixed[36..38].fill(0);
    }
    let mut bytes = fixed.clone();
    let wanted = snapshot::bytes_wanted(&fixed);
    assert!(wanted <= 40 + 1024 + 2 * 65_535);
    bytes.extend(source.take(64));
    bytes.resize(wanted, b'x');
    let Ok(parsed) = snapshot::parse(&bytes, &header, 0, source.number()) else {
        return false;
    };
    assert_eq!(parsed.entry_bytes, wanted.next_multiple_of(8) as u64);
    true
}

/// Files in memory under their chain.
pub(crate) struct Stack {
    pub bytes: Vec<Vec<u8>>,
    pub chain: Chain,
    pub sectors: Sectors,
}

fn stack(source: &mut Source) -> Option<Stack> {
    let depth = 1 + source.below(3);
    let mut bytes: Vec<Vec<u8>> = (0..depth).map(|it| file(source, it + 1 < depth)).collect();
    if source.below(4) == 0 {
        source.damage(&mut bytes[0]);
    }
    let files = (0..).zip(&bytes).map(|(id, it)| {
        Some(File {
            id: FileId(id),
            file_bytes: it.len() as u64,
            grows_to: None,
            format: Format::Qcow2(Box::new(parsed(it)?)),
        })
    });
    let chain = Chain::new(files.collect::<Option<_>>()?).ok()?;
    Some(Stack {
        bytes,
        chain,
        sectors: Sectors::new(0),
    })
}

impl Stack {
    /// Brings what is missing. It is a piece of a table that lies inside its file.
    pub fn supply(&mut self, missing: Missing) {
        let bytes = &self.bytes[usize::from(missing.file.0)];
        let range = missing.range;
        assert!(range.bytes > 0 && range.bytes <= TABLE_READ_BYTES);
        assert!(range.at < bytes.len() as u64 && range.at.is_multiple_of(512));
        let mut read = vec![0; range.bytes as usize];
        let Ok(()) = (&bytes[..]).read(range.at, &mut read);
        let id = self.chain.file(missing.file).id;
        self.sectors.fill(id, range.at, &read, missing.wanted);
    }

    pub fn parts(&mut self, span: Span) -> Result<Vec<Part>, Wrong> {
        let mut parts = Vec::new();
        for _ in 0..10_000 {
            let missing = match resolve(&self.chain, span, &mut self.sectors, &mut parts) {
                Ok(()) => return Ok(parts),
                Err(Stop::Damaged(damage)) => return Err(damage.why),
                Err(Stop::Missing(missing)) => missing,
            };
            self.supply(missing);
        }
        panic!("no progress in {span:?}");
    }

    fn assert_right(&self, span: Span, parts: &[Part]) {
        let mut at = span.at;
        for part in parts {
            assert!(part.span.at == at && part.span.bytes > 0);
            at = part.span.end();
            let Some(FileIndex(file)) = part.file else {
                assert_eq!(part.content, Content::Zero);
                continue;
            };
            let file_bytes = (self.bytes[usize::from(file)].len() as u64).next_multiple_of(512);
            match part.content {
                Content::Zero => {}
                Content::Data { at } => assert!(at + part.span.bytes <= file_bytes),
                Content::Compressed { from, cluster_at } => {
                    assert!(from.at < file_bytes && cluster_at <= part.span.at);
                }
            }
        }
        assert_eq!(at, span.end());
    }
}

pub fn walks(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let Some(mut stack) = stack(source) else {
        return false;
    };
    let mut found = false;
    for _ in 0..1 + source.below(4) {
        let span = Span {
            at: source.number() % (stack.chain.size_bytes() + 4096),
            bytes: 1 + u64::from(source.u16()),
        };
        let Ok(parts) = stack.parts(span) else {
            continue;
        };
        stack.assert_right(span, &parts);
        found |= parts.iter().any(|it| it.file.is_some());
        let cut = u64::from(source.u16()) % span.bytes;
        let first = Span { bytes: cut, ..span };
        let second = Span {
            at: first.end(),
            bytes: span.bytes - cut,
        };
        let halves = [stack.parts(first), stack.parts(second)];
        let [Ok(mut joined), Ok(second)] = halves else {
            panic!("the whole was resolved: {halves:?}");
        };
        joined.extend(second);
        let sum = |parts: &[Part]| -> u64 { parts.iter().map(|it| it.span.bytes).sum() };
        assert_eq!(sum(&joined), sum(&parts));
        assert!(joined.len() <= parts.len() + 1);
    }
    found
}

/// Pieces of a cluster that begins here, in order.
fn pieces(source: &mut Source, start: u64, end: u64) -> Vec<Piece> {
    let mut found = Vec::new();
    let mut at = start + 512 * source.below(4) as u64;
    while at < end && found.len() < 4 {
        let sectors = source.pick(&[1, 2, 5, 8, 16, 64]);
        let bytes = (512 * sectors).min(end - at);
        let (span, zero) = (Span { at, bytes }, source.flag());
        found.push(Piece { span, zero });
        at += bytes + 512 * source.below(3) as u64;
    }
    found
}

/// Data goes to no table of the header, and nothing to the middle of a sector.
fn assert_harmless(header: &Header, work: &Work) {
    let (range, table) = match work {
        Work::Data { span, at, .. } => ((*at, span.bytes), None),
        Work::Copy { part, at } => ((*at, part.span.bytes), None),
        Work::Zero { range } => ((range.at, range.bytes), None),
        Work::Table { at, bytes, rank } => ((*at, bytes.len() as u64), Some(rank.when())),
    };
    let (at, bytes) = range;
    let range = Range { at, bytes };
    assert!(at % 512 == 0 && bytes % 512 == 0 && bytes > 0 && range.end() < 1 << 56);
    if table == Some(When::Journal) {
        return;
    }
    let bytes = header.cluster_bytes();
    for kept in [Range { at: 0, bytes }, header.l1(), header.refcount_table] {
        let end = kept.end().next_multiple_of(bytes);
        assert!(
            at >= end || range.end() <= kept.at,
            "{work:?} is written to {kept:?}"
        );
    }
}

pub fn plans(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let Some(mut stack) = stack(source) else {
        return false;
    };
    let Some(header) = stack.chain.file(FileIndex(0)).header().cloned() else {
        return false;
    };
    let Ok(mut writer) = Writer::new(&header) else {
        return false;
    };
    let counted = CLUSTERS + source.below(3) as u64;
    for cluster in 0..counted {
        let block = stack.bytes[0].get_mut(2 << header.cluster_bits..);
        if let Some(block) = block.filter(|it| it.len() > 128) {
            refcount::set(block, header.refcount_order, cluster, 1);
        }
    }
    stack.sectors = Sectors::new(16 << 20);
    let mut work = Vec::new();
    let mut planned = false;
    for _ in 0..2 {
        writer.begin(Some(MARK));
        planned = plan(source, &mut stack, &header, &mut writer, &mut work).is_ok();
        // What a damaged place has stopped was harmless as well.
        work.drain(..).for_each(|it| assert_harmless(&header, &it));
        if planned {
            break;
        }
    }
    if planned {
        let changed = writer.accept(&mut stack.chain);
        assert!(changed.iter().all(|it| it.end() < 1 << 56));
    }
    planned
}

/// Some clusters, and the end.
fn plan(
    source: &mut Source,
    stack: &mut Stack,
    header: &Header,
    writer: &mut Writer,
    work: &mut Vec<Work>,
) -> Result<(), Wrong> {
    let cluster = header.cluster_bytes();
    work.clear();
    let mut at = 0;
    for _ in 0..1 + source.below(6) {
        at += source.pick(&[0, 0, 1, 3]) * cluster;
        if at >= header.size_bytes {
            break;
        }
        let end = (at + cluster).min(header.size_bytes);
        let pieces = pieces(source, at, end);
        at += cluster;
        if !pieces.is_empty() {
            until_done(stack, |it| {
                writer.cluster(&it.chain, &mut it.sectors, &pieces, work)
            })?;
        }
    }
    until_done(stack, |it| writer.end(&it.chain, &mut it.sectors, work))
}

fn until_done(
    stack: &mut Stack,
    mut step: impl FnMut(&mut Stack) -> Result<(), Stop>,
) -> Result<(), Wrong> {
    for _ in 0..10_000 {
        match step(stack) {
            Ok(()) => return Ok(()),
            Err(Stop::Damaged(damage)) => return Err(damage.why),
            Err(Stop::Missing(missing)) => stack.supply(missing),
        }
    }
    panic!("no progress");
}

pub fn check(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let mut bytes = file(source, false);
    if source.below(4) == 0 {
        source.damage(&mut bytes);
    }
    let Some(header) = parsed(&bytes) else {
        return false;
    };
    let report = check_file(&header, bytes.len() as u64, &mut &bytes[..]);
    let report = report.expect("memory is read, and is small");
    let told = report.findings.len() as u64;
    assert!(told == (report.corruptions + report.leaks).min(FINDINGS_MAX as u64));
    let readable = header.is_readable().is_ok() && header.backing.is_none();
    if report.corruptions > 0 || !readable || header.size_bytes > 2 * VIRTUAL_BYTES_MAX {
        return true;
    }
    let span = Span {
        at: 0,
        bytes: header.size_bytes,
    };
    let file = File {
        id: FileId(0),
        file_bytes: bytes.len() as u64,
        grows_to: None,
        format: Format::Qcow2(Box::new(header)),
    };
    let mut stack = Stack {
        bytes: vec![bytes],
        chain: Chain::new(vec![file]).expect("it is readable"),
        sectors: Sectors::new(0),
    };
    match stack.parts(span) {
        Ok(parts) => stack.assert_right(span, &parts),
        Err(Wrong::ZeroInVersion2 | Wrong::CompressedOutside) => {}
        Err(why) => panic!("a right file has {why}"),
    }
    true
}

pub fn compressed(input: &[u8]) -> bool {
    const CLUSTER: usize = 512;
    let source = &mut Source::new(input);
    let content: Vec<u8> = (0..CLUSTER).map(|_| source.byte()).collect();
    let how = source.pick(&[Compression::Zlib, Compression::Zstd]);
    let mut packed = match how {
        // One stored block, which is the last.
        Compression::Zlib => vec![1, 0, 2, 0xff, 0xfd],
        // One segment of 512 bytes, and one raw block, which is the last.
        Compression::Zstd => vec![0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 1, 0x01, 0x10, 0],
    };
    packed.extend(&content);
    let harmless = source.flag();
    if !harmless {
        source.damage(&mut packed);
    }
    let mut out = vec![0; CLUSTER];
    let done = inflate(how, &packed, &mut out);
    assert!(
        !harmless || (done == Ok(()) && out == content),
        "{how}: {done:?}"
    );
    done.is_ok()
}
