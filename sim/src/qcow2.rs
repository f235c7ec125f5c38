//! A second reader of qcow2, to judge the first: the whole file in memory, one full scan.
//!
//! Owns what a guest sees of a chain of files, how often each cluster is used, which bytes
//! something refers to, and what is wrong, as `qemu-img check` counts. Always true: it shares no
//! code with the crate that the product reads with, and takes numbers out of bytes one by one; a
//! place behind the end of a file reads as zero. Deliberately absent: speed, any bound on memory,
//! and decompression, which the caller has.

use std::collections::BTreeMap;
use std::ops::Range;

/// The byte of a header, and its bit, by which the product says that a file is between two states.
/// For every reader of the format it is a feature that nobody knows.
const GUARD: (usize, u8) = (72, 0x20);
/// The byte and the bit that say that no other program has written the file.
const AUTOCLEAR: (usize, u8) = (88, 0x20);
/// In the same byte.
const LEAKS: u8 = 0x40;

/// What is wrong with a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub errors: Vec<String>,
    pub leaks: Vec<u64>,
}

/// One file of a chain, from the top down.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    pub bytes: &'a [u8],
    pub raw: bool,
}

/// Where a header has the size of the disk.
const SIZE_AT: u64 = 24;

/// Decompresses: whether it is zstd, the bytes, the size of the cluster.
pub type Unpack<'a> = &'a dyn Fn(bool, &[u8], usize) -> Option<Vec<u8>>;

/// Whether the first bytes of a file have the guard.
pub fn is_guarded(header: &[u8]) -> bool {
    header.get(GUARD.0).is_some_and(|it| it & GUARD.1 != 0)
}

/// Takes the guard away, if it is there.
pub fn unguard(header: &mut [u8]) {
    if let Some(byte) = header.get_mut(GUARD.0) {
        *byte &= !GUARD.1;
    }
}

/// The disk that a header names.
pub fn size(header: &[u8]) -> u64 {
    number(header, SIZE_AT, 8)
}

/// Takes the size away.
pub fn unsize(header: &mut [u8]) {
    header[SIZE_AT as usize..SIZE_AT as usize + 8].fill(0);
}

/// What a header names as the file below, if anything.
pub fn backing(header: &[u8]) -> Option<&[u8]> {
    let (at, bytes) = (number(header, 8, 8), number(header, 16, 4));
    if at == 0 {
        return None;
    }
    let end = (at as usize).saturating_add(bytes as usize);
    Some(header.get(at as usize..end).unwrap_or(&[]))
}

/// What can be allocated alone in a file with this header.
pub fn unit_bytes(header: &[u8]) -> u64 {
    let cluster = 1 << number(header, 20, 4);
    match number(header, 72, 8) >> 4 & 1 {
        1 => cluster / 32,
        _ => cluster,
    }
}

/// The serial that a mark behind the header names, as far as that is the first extension.
pub fn mark(header: &[u8]) -> Option<u64> {
    let at = mark_at(header)?;
    (header.get(AUTOCLEAR.0)? & AUTOCLEAR.1 != 0).then(|| number(header, at as u64 + 32, 8))
}

/// Whether the first bytes of a file say that clusters may be counted that nothing refers to.
pub fn may_leak(header: &[u8]) -> bool {
    header.get(AUTOCLEAR.0).is_some_and(|it| it & LEAKS != 0)
}

/// Takes a mark and its bit away; its place stays.
pub fn unmark(header: &mut [u8]) {
    if let Some(at) = mark_at(header) {
        header[at + 8..at + 40].fill(0);
        header[AUTOCLEAR.0] &= !AUTOCLEAR.1;
    }
}

fn mark_at(header: &[u8]) -> Option<usize> {
    let at = number(header, 100, 4) as usize;
    let whole = header.get(at..at + 40)?;
    (number(header, 4, 4) == 3 && whole.starts_with(b"TNUT\0\0\0\x20")).then_some(at)
}

fn number(bytes: &[u8], at: u64, width: u64) -> u64 {
    let digit = |at: u64| u64::from(bytes.get(at as usize).copied().unwrap_or(0));
    (0..width).fold(0, |sum, step| sum << 8 | digit(at.saturating_add(step)))
}

/// The fields of a header that matter here.
struct Head<'a> {
    file: &'a [u8],
    version: u64,
    cluster: u64,
    size: u64,
    l1: u64,
    l1_entries: u64,
    counts: u64,
    counts_clusters: u64,
    width_bits: u64,
    snapshots: u64,
    snapshots_at: u64,
    extended: bool,
    zstd: bool,
}

fn head(file: &[u8]) -> Result<Head<'_>, String> {
    let field = |at, width| number(file, at, width);
    if field(0, 4) != 0x5146_49fb || !(2..=3).contains(&field(4, 4)) {
        return Err("no qcow2 of version 2 or 3".into());
    }
    let (version, bits) = (field(4, 4), field(20, 4));
    if !(9..=21).contains(&bits) {
        return Err("cluster size".into());
    }
    let cluster = 1 << bits;
    let new = |at, width, old| if version == 3 { field(at, width) } else { old };
    let (incompatible, length) = (new(72, 8, 0), new(100, 4, 72));
    let method = if length > 104 { field(104, 1) } else { 0 };
    let extended = incompatible >> 4 & 1 == 1;
    let head = Head {
        file,
        version,
        cluster,
        size: field(24, 8),
        l1: field(40, 8),
        l1_entries: field(36, 4),
        counts: field(48, 8),
        counts_clusters: field(56, 4),
        width_bits: 1 << new(96, 4, 4).min(7),
        snapshots: field(60, 4),
        snapshots_at: field(64, 8),
        extended,
        zstd: method == 1,
    };
    let starts = |at: u64| at.is_multiple_of(cluster) && at > 0;
    let fits = |at: u64, bytes: u64| at <= file.len() as u64 && bytes <= file.len() as u64 - at;
    let needed = head.size.div_ceil(cluster / head.entry_bytes() * cluster);
    let tables = starts(head.l1)
        && fits(head.l1, head.l1_entries * 8)
        && (needed..=4 << 20).contains(&head.l1_entries)
        && starts(head.counts)
        && fits(head.counts, head.counts_clusters * cluster)
        && (1..=8 << 20).contains(&(head.counts_clusters * cluster))
        && head.snapshots <= 65_536
        && match head.snapshots {
            0 => head.snapshots_at.is_multiple_of(cluster) && head.snapshots_at >> 63 == 0,
            _ => starts(head.snapshots_at),
        };
    let sizes = head.width_bits <= 64
        && (!extended || bits >= 14)
        && new(88, 8, 0) >> 1 & 1 <= incompatible >> 2 & 1
        && (512..=256 << 40).contains(&head.size)
        && field(32, 4) <= 2;
    let length_is_right = (104..=cluster).contains(&length) && length % 8 == 0;
    let known = incompatible >> 5 == 0
        && method <= 1
        && (method == 1) == (incompatible >> 3 & 1 == 1)
        && (version == 2 || length_is_right);
    let good = sizes && tables && known;
    good.then_some(head)
        .ok_or_else(|| "sizes, tables, features".into())
}

impl Head<'_> {
    fn entry_bytes(&self) -> u64 {
        if self.extended { 16 } else { 8 }
    }

    /// What can be allocated alone, of one cluster.
    fn units(&self) -> u64 {
        if self.extended { 32 } else { 1 }
    }

    /// What an entry that is not compressed, with its bitmap, says of a unit.
    fn state(&self, entry: u64, map: u64, unit: u64) -> Result<State, String> {
        let placed = entry & 0x00ff_ffff_ffff_fe00 != 0;
        let (mut zero, mut data) = (entry & 1 == 1, placed);
        if self.extended {
            let allowed = if placed { !(map >> 32) } else { 0 };
            if map & 0xffff_ffff & !allowed != 0 {
                return Err(format!("subclusters {map:#x}"));
            }
            (zero, data) = (map >> (32 + unit) & 1 == 1, map >> unit & 1 == 1);
        } else if zero && self.version < 3 {
            return Err("a zero cluster in version 2".into());
        }
        Ok(match (zero, data) {
            (true, _) => State::Zero,
            (false, true) => State::Data,
            (false, false) => State::Below,
        })
    }

    fn compressed(&self, entry: u64) -> (u64, u64) {
        // The number of sectors has as many bits as a cluster has halves of a sector.
        let size_bits = u64::from(self.cluster.trailing_zeros()) - 8;
        let place = entry % (1 << (62 - size_bits));
        let sectors = entry / (1 << (62 - size_bits)) % (1 << size_bits) + 1;
        (place, sectors * 512 - place % 512)
    }

    /// The refcount that the file has of a cluster.
    fn stored(&self, cluster: u64) -> Option<u64> {
        let per_block = self.cluster * 8 / self.width_bits;
        if cluster / per_block >= self.counts_clusters * self.cluster / 8 {
            return Some(0);
        }
        let block = number(self.file, self.counts + cluster / per_block * 8, 8);
        let block = block - block % 512;
        if block == 0 {
            return Some(0);
        } else if !block.is_multiple_of(self.cluster) {
            return None;
        }
        let place = cluster % per_block * self.width_bits;
        if self.width_bits >= 8 {
            return Some(number(self.file, block + place / 8, self.width_bits / 8));
        }
        let byte = number(self.file, block + place / 8, 1);
        Some(byte / (1 << (place % 8)) % (1 << self.width_bits))
    }
}

/// Where a unit reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Data,
    Zero,
    Below,
}

/// References, found one after the other.
struct Scan<'a> {
    head: Head<'a>,
    used: BTreeMap<u64, u64>,
    /// Bytes that something refers to, as they were found.
    held: Vec<Range<u64>>,
    /// The same of data that is not compressed.
    data: Vec<Range<u64>>,
    verdict: Verdict,
}

fn scan(file: &[u8]) -> Result<Scan<'_>, String> {
    let mut scan = Scan {
        head: head(file)?,
        used: BTreeMap::new(),
        held: Vec::new(),
        data: Vec::new(),
        verdict: Verdict::default(),
    };
    scan.all();
    Ok(scan)
}

/// Judges one file by itself.
pub fn judge(file: &[u8]) -> Verdict {
    match scan(file) {
        Ok(scan) => scan.verdict,
        Err(why) => Verdict {
            errors: vec![why],
            leaks: Vec::new(),
        },
    }
}

/// The bytes of a file that its header, a table, a count or an entry refers to, in whole sectors:
/// of a cluster that has a place those units that read from it. All of a file that is no qcow2.
pub fn referenced(file: &[u8]) -> Vec<Range<u64>> {
    let Ok(mut scan) = scan(file) else {
        let all = 0..u64::MAX;
        return Vec::from([all]);
    };
    scan.held.append(&mut scan.data);
    merged(scan.held)
}

/// The same without the data that one entry alone refers to.
pub fn fixed(file: &[u8]) -> Vec<Range<u64>> {
    let Ok(mut scan) = scan(file) else {
        let all = 0..u64::MAX;
        return Vec::from([all]);
    };
    let data = std::mem::take(&mut scan.data).into_iter();
    let shared = data.filter(|it| {
        let cluster = it.start / scan.head.cluster;
        scan.used.get(&cluster) != Some(&1) || scan.head.stored(cluster) != Some(1)
    });
    scan.held.extend(shared);
    merged(scan.held)
}

/// The same ranges in order and apart.
pub fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|it| (it.start, it.end));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The first place of a part of the disk of which a whole cluster that begins there has an entry.
pub fn entered(file: &[u8], part: Range<u64>) -> Option<u64> {
    let head = head(file).ok()?;
    let entries = head.cluster / head.entry_bytes();
    let held = |cluster: &u64| {
        let table = number(file, head.l1 + cluster / entries * 8, 8) & 0x00ff_ffff_ffff_fe00;
        let at = table + cluster % entries * head.entry_bytes();
        let words = (0..head.entry_bytes() / 8).any(|it| number(file, at + it * 8, 8) != 0);
        table != 0 && words
    };
    let end = part
        .end
        .div_ceil(head.cluster)
        .min(head.l1_entries * entries);
    let clusters = part.start.div_ceil(head.cluster)..end;
    let cluster = clusters.into_iter().find(held)?;
    Some(cluster * head.cluster)
}

/// How much there is of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The end of the highest cluster that is counted.
    pub end: u64,
    /// What all of its disk takes, and all the tables and counts for it.
    pub disk_bytes: u64,
}

/// How far the clusters of a file go, and how many bytes all of its disk takes once more.
pub fn extent(file: &[u8]) -> Extent {
    let Ok(head) = head(file) else {
        return Extent::default();
    };
    let clusters = (file.len() as u64).div_ceil(head.cluster);
    let counted = |it: &u64| head.stored(*it).is_none_or(|count| count > 0);
    let counted = (0..clusters).rev().find(counted).map_or(0, |it| it + 1);
    let data = head.size.div_ceil(head.cluster);
    let tables = data.div_ceil(head.cluster / head.entry_bytes());
    let blocks = (data + tables).div_ceil(head.cluster * 8 / head.width_bits - 1);
    Extent {
        end: counted * head.cluster,
        disk_bytes: (data + tables + blocks) * head.cluster,
    }
}

impl Scan<'_> {
    fn wrong(&mut self, what: String) {
        self.verdict.errors.push(what);
    }

    fn use_bytes(&mut self, what: &str, at: u64, bytes: u64) {
        let cluster = self.head.cluster;
        let end = at.saturating_add(bytes);
        if bytes > 0 && end.saturating_sub(self.head.file.len() as u64) >= cluster {
            self.wrong(format!("{what} at {at:#x} is behind the end"));
        } else if bytes > 0 {
            let clusters = at / cluster..end.div_ceil(cluster);
            clusters.for_each(|it| *self.used.entry(it).or_default() += 1);
        }
        // Of data there are parts that nothing refers to.
        if what != "data" {
            self.hold(at, bytes);
        }
    }

    fn hold(&mut self, at: u64, bytes: u64) {
        let end = at.saturating_add(bytes);
        self.held.push(at / 512 * 512..end.div_ceil(512) * 512);
    }

    fn all(&mut self) {
        self.use_bytes("header", 0, self.head.cluster);
        self.table(self.head.l1, self.head.l1_entries, true);
        let mut at = self.head.snapshots_at;
        for _ in 0..self.head.snapshots {
            let field = |offset, width| number(self.head.file, at + offset, width);
            let (l1, entries) = (field(0, 8), field(8, 4));
            let (extra, texts) = (field(36, 4), field(12, 2) + field(14, 2));
            if extra > 1024 || l1 % self.head.cluster != 0 || entries > 4 << 20 {
                self.wrong(format!("snapshot at {at:#x}"));
            } else {
                self.table(l1, entries, false);
            }
            if extra < 16 && self.head.version >= 3 {
                self.wrong(format!("snapshot at {at:#x} without its sizes"));
            }
            at += (40 + extra.min(1024) + texts).div_ceil(8) * 8;
        }
        let start = self.head.snapshots_at;
        self.use_bytes("snapshots", start, at - start);
        let bytes = self.head.counts_clusters * self.head.cluster;
        self.use_bytes("refcount table", self.head.counts, bytes);
        self.blocks();
        self.compare();
    }

    fn table(&mut self, l1: u64, entries: u64, active: bool) {
        self.use_bytes("L1", l1, entries * 8);
        for at in (0..entries).map(|it| l1 + it * 8) {
            let entry = number(self.head.file, at, 8);
            if entry == 0 {
                continue;
            }
            let table = entry & 0x00ff_ffff_ffff_fe00;
            self.use_bytes("L2", table, self.head.cluster);
            if entry & 0x7f00_0000_0000_01ff != 0 || !table.is_multiple_of(self.head.cluster) {
                self.wrong(format!("L1 entry {entry:#x}"));
                continue;
            }
            if active && table != 0 {
                self.copied(entry, table);
            }
            let step = self.head.entry_bytes();
            for at in (table..table + self.head.cluster).step_by(step as usize) {
                self.entry(at, active);
            }
        }
    }

    fn entry(&mut self, at: u64, active: bool) {
        let entry = number(self.head.file, at, 8);
        let extended = u64::from(self.head.extended);
        let map = extended * number(self.head.file, at + 8, 8);
        let (zeroes, data) = (map >> 32, map & 0xffff_ffff);
        if entry >> 62 & 1 == 1 {
            if entry >> 63 == 1 || map != 0 {
                self.wrong(format!("compressed entry {entry:#x}, bitmap {map:#x}"));
            }
            let (place, bytes) = self.head.compressed(entry);
            return self.use_bytes("compressed", place, bytes);
        }
        if entry & 0x3f00_0000_0000_01fe != 0 {
            self.wrong(format!("L2 entry {entry:#x} has reserved bits"));
        }
        let place = entry & 0x00ff_ffff_ffff_fe00;
        let impossible = if place == 0 { data } else { zeroes & data };
        if impossible != 0 || !place.is_multiple_of(self.head.cluster) {
            self.wrong(format!("data at {place:#x}, subclusters {map:#x}"));
        }
        if place == 0 {
            return;
        }
        self.use_bytes("data", place, self.head.cluster);
        let (units, unit) = (self.head.units(), self.head.cluster / self.head.units());
        let reads = |it: &u64| self.head.state(entry, map, *it) == Ok(State::Data);
        for it in (0..units).filter(reads).collect::<Vec<_>>() {
            self.data.push(place + it * unit..place + (it + 1) * unit);
        }
        if active {
            self.copied(entry, place);
        }
    }

    fn copied(&mut self, entry: u64, place: u64) {
        let stored = self.head.stored(place / self.head.cluster);
        if stored.is_some_and(|it| (it == 1) != (entry >> 63 == 1)) {
            self.wrong(format!("COPIED of {entry:#x}, counted {stored:?}"));
        }
    }

    fn blocks(&mut self) {
        let clusters = (self.head.file.len() as u64).div_ceil(self.head.cluster);
        let mut blocks = Vec::new();
        for number_of in 0..self.head.counts_clusters * self.head.cluster / 8 {
            let block = number(self.head.file, self.head.counts + number_of * 8, 8);
            if !block.is_multiple_of(self.head.cluster) || block / self.head.cluster >= clusters {
                self.wrong(format!("refcount block {block:#x}"));
            } else if block != 0 {
                self.use_bytes("refcount block", block, self.head.cluster);
                blocks.push(block / self.head.cluster);
            }
        }
        let shared = |block: &&u64| self.used.get(block) != Some(&1);
        if let Some(block) = blocks.iter().find(shared) {
            self.wrong(format!("refcount block {block} is used more than once"));
        }
    }

    fn compare(&mut self) {
        let clusters = (self.head.file.len() as u64).div_ceil(self.head.cluster);
        let last = self.used.keys().last().map_or(0, |it| it + 1);
        for cluster in 0..clusters.max(last) {
            let used = self.used.get(&cluster).copied().unwrap_or(0);
            match self.head.stored(cluster) {
                Some(stored) if stored < used => {
                    self.wrong(format!("cluster {cluster}: counted {stored}, used {used}"));
                }
                Some(stored) if stored > used => self.verdict.leaks.push(cluster),
                _ => {}
            }
        }
    }
}

/// What the guest sees from `at` on, sector by sector.
pub fn view(layers: &[Layer], at: u64, into: &mut [u8], unpack: Unpack) -> Result<(), String> {
    for (sector, into) in (at / 512..).zip(into.chunks_mut(512)) {
        let found = look(layers, sector * 512, unpack)?;
        into.copy_from_slice(&found[..into.len()]);
    }
    Ok(())
}

fn look(layers: &[Layer], at: u64, unpack: Unpack) -> Result<Vec<u8>, String> {
    let zeroes = vec![0; 512];
    let take = |file: &[u8], at| (0..512).map(|it| number(file, at + it, 1) as u8).collect();
    let Some((layer, below)) = layers.split_first() else {
        return Ok(zeroes);
    };
    if layer.raw {
        return Ok(take(layer.bytes, at));
    }
    let head = head(layer.bytes)?;
    if at >= head.size / 512 * 512 {
        return Ok(zeroes);
    }
    let entries = head.cluster / head.entry_bytes();
    let (cluster, within) = (at / head.cluster, at % head.cluster);
    let table = number(head.file, head.l1 + cluster / entries * 8, 8) & 0x00ff_ffff_ffff_fe00;
    if table == 0 {
        return look(below, at, unpack);
    }
    let entry_at = table + cluster % entries * head.entry_bytes();
    let entry = number(head.file, entry_at, 8);
    let place = entry & 0x00ff_ffff_ffff_fe00;
    if entry >> 62 & 1 == 1 {
        let (place, bytes) = head.compressed(entry);
        let end = head.file.len() as u64;
        let packed = &head.file[place.min(end) as usize..(place + bytes).min(end) as usize];
        let cluster = unpack(head.zstd, packed, head.cluster as usize).ok_or("compressed data")?;
        return Ok(cluster[within as usize..within as usize + 512].to_vec());
    }
    let map = u64::from(head.extended) * number(head.file, entry_at + 8, 8);
    match head.state(entry, map, within / (head.cluster / head.units()))? {
        State::Zero => Ok(zeroes),
        State::Data => Ok(take(head.file, place + within)),
        State::Below => look(below, at, unpack),
    }
}

/// All of the disk, so many bytes of it, unit by unit: of files without compressed clusters.
pub fn disk(layers: &[Layer], bytes: usize) -> Result<Vec<u8>, String> {
    let Some((layer, below)) = layers.split_first() else {
        return Ok(vec![0; bytes]);
    };
    if layer.raw {
        let mut disk = layer.bytes[..bytes.min(layer.bytes.len())].to_vec();
        disk.resize(bytes, 0);
        return Ok(disk);
    }
    let head = head(layer.bytes)?;
    let mut disk = self::disk(below, bytes)?;
    let size = bytes.min((head.size / 512 * 512) as usize);
    disk[size..].fill(0);
    let (entries, unit) = (
        head.cluster / head.entry_bytes(),
        head.cluster / head.units(),
    );
    for cluster in 0..(size as u64).div_ceil(head.cluster) {
        let table = number(head.file, head.l1 + cluster / entries * 8, 8) & 0x00ff_ffff_ffff_fe00;
        if table == 0 {
            continue;
        }
        let entry_at = table + cluster % entries * head.entry_bytes();
        let entry = number(head.file, entry_at, 8);
        if entry >> 62 & 1 == 1 {
            return Err("compressed data".into());
        }
        let map = u64::from(head.extended) * number(head.file, entry_at + 8, 8);
        let place = entry & 0x00ff_ffff_ffff_fe00;
        for number in 0..head.units() {
            let (at, within) = (cluster * head.cluster + number * unit, number * unit);
            let to = size.min(at as usize)..size.min((at + unit) as usize);
            match head.state(entry, map, number)? {
                State::Zero => disk[to].fill(0),
                State::Data => {
                    let file = head.file.get((place + within) as usize..).unwrap_or(&[]);
                    let have = file.len().min(to.len());
                    disk[to.start..to.start + have].copy_from_slice(&file[..have]);
                    disk[to.start + have..to.end].fill(0);
                }
                State::Below => {}
            }
        }
    }
    Ok(disk)
}
