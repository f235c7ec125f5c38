//! Qcow2 files that volumes write, as they are made: over a raw base, right to the last count.
//!
//! ```text
//! header │ refcount table │ L1 │ clusters and L2 tables, in any order, holes │ refcount blocks
//! ```
//!
//! Always true: the disk that the two files describe is the content that was asked for, and each
//! file has other bytes where the other one has the disk's; each cluster is counted as often as it
//! is used; a seed gives one file. Shares no code with the crate that reads and plans. Deliberately
//! absent: compressed clusters, because the simulated host unpacks nothing, and snapshots.

use crate::rng::Rng;
use std::ops::Range;

/// What a file has where another one has the disk.
pub const OTHERS: u8 = 0xA7;
/// Of an entry: counted once, so that it may be written where it lies.
pub const COPIED: u64 = 1 << 63;
const NAME: &[u8] = b"base.raw";
const HEADER_BYTES: usize = 104;
/// The extension that says what the file below is.
const BACKING_FORMAT: u32 = 0xE279_2ACA;
const EXTENDED: u64 = 1 << 4;

/// The numbers of a file that never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The logarithm of the bytes of a cluster.
    pub bits: u32,
    /// Clusters have 32 subclusters.
    pub extended: bool,
    /// The logarithm of the bits of a refcount.
    pub order: u32,
}

impl Shape {
    fn draw(rng: &mut Rng) -> Shape {
        let sizes = [(12, false), (16, false), (14, true), (17, true)];
        let (bits, extended) = rng.pick(&sizes);
        let order = rng.pick(&[4, 4, 4, 0, 6]);
        Shape {
            bits,
            extended,
            order,
        }
    }

    pub fn cluster(self) -> usize {
        1 << self.bits
    }

    fn entry_bytes(self) -> usize {
        if self.extended { 16 } else { 8 }
    }

    /// What can be allocated alone, of one cluster.
    fn units(self) -> usize {
        if self.extended { 32 } else { 1 }
    }

    /// Clusters of the disk that one L2 table is about.
    fn entries(self) -> usize {
        self.cluster() / self.entry_bytes()
    }
}

/// The first clusters of a file: a header that names its backing, and nothing else yet.
pub fn header(shape: Shape, disk_bytes: usize, l1: (usize, usize), bytes: usize) -> Vec<u8> {
    let mut file = vec![0; bytes];
    let mut put = |at: usize, field: &[u8]| file[at..at + field.len()].copy_from_slice(field);
    put(0, b"QFI\xfb");
    put(4, &3_u32.to_be_bytes());
    put(20, &shape.bits.to_be_bytes());
    put(24, &(disk_bytes as u64).to_be_bytes());
    put(36, &(l1.1 as u32).to_be_bytes());
    put(40, &(l1.0 as u64).to_be_bytes());
    put(48, &(shape.cluster() as u64).to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    let features = if shape.extended { EXTENDED } else { 0 };
    put(72, &features.to_be_bytes());
    put(96, &shape.order.to_be_bytes());
    put(100, &(HEADER_BYTES as u32).to_be_bytes());
    // The format of the backing, the end of the extensions, the name of the backing.
    put(HEADER_BYTES, &BACKING_FORMAT.to_be_bytes());
    put(HEADER_BYTES + 4, &3_u32.to_be_bytes());
    put(HEADER_BYTES + 8, b"raw");
    let name_at = HEADER_BYTES + 24;
    put(name_at, NAME);
    put(8, &(name_at as u64).to_be_bytes());
    put(16, &(NAME.len() as u32).to_be_bytes());
    file
}

/// Lets a file name another one below it, or none, and whether that is raw.
pub fn stand_on(file: &mut [u8], on: Option<(&str, bool)>) {
    let end = HEADER_BYTES + 24 + NAME.len();
    file[HEADER_BYTES..end].fill(0);
    file[8..20].fill(0);
    let mut put = |at: usize, field: &[u8]| file[at..at + field.len()].copy_from_slice(field);
    let Some((name, raw)) = on else { return };
    let format: &[u8] = if raw { b"raw" } else { b"qcow2" };
    put(HEADER_BYTES, &BACKING_FORMAT.to_be_bytes());
    put(HEADER_BYTES + 4, &(format.len() as u32).to_be_bytes());
    put(HEADER_BYTES + 8, format);
    let name_at = HEADER_BYTES + 24;
    put(name_at, name.as_bytes());
    put(8, &(name_at as u64).to_be_bytes());
    put(16, &(name.len() as u32).to_be_bytes());
}

/// A file over a raw base that together have this content; the base is as long as the disk, shorter
/// or longer.
pub fn files(content: &[u8], seed: u64) -> [Vec<u8>; 2] {
    let mut rng = Rng::new(seed);
    let shape = Shape::draw(&mut rng);
    let mut below = content.to_vec();
    let sectors = content.len() as u64 / 512;
    let length = match rng.below(3) {
        0 => sectors,
        1 => rng.below(sectors),
        _ => sectors + rng.range(1, 300),
    };
    below.resize(length as usize * 512, OTHERS);
    let unit = shape.cluster() / shape.units();
    for span in below.chunks_mut(shape.cluster() * shape.entries()) {
        let hides = !rng.chance(250);
        for cluster in span.chunks_mut(shape.cluster()) {
            let hidden = rng.pick(&[0, 0, 500, 1000]) * u64::from(hides);
            let parts = cluster.chunks_mut(unit);
            let hidden = parts.filter(|_| rng.chance(hidden));
            hidden.for_each(|part| part.fill(OTHERS));
        }
    }
    let top = over(content, &below, shape, rng);
    [top, below]
}

/// The file that has this content over a base that is there.
pub fn file_over(content: &[u8], below: &[u8], seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let shape = Shape::draw(&mut rng);
    over(content, below, shape, rng)
}

fn over(content: &[u8], below: &[u8], shape: Shape, rng: Rng) -> Vec<u8> {
    let mut top = Top::new(content.len(), shape, rng);
    let mut order: Vec<usize> = (0..content.len().div_ceil(shape.cluster())).collect();
    if top.rng.chance(500) {
        top.rng.shuffle(&mut order);
    }
    let tables = content
        .len()
        .div_ceil(shape.cluster())
        .div_ceil(shape.entries());
    // Of some tables as much as possible is left to the base, so that they are not there.
    let bare: Vec<bool> = (0..tables).map(|_| top.rng.chance(400)).collect();
    for number in order {
        let bare = bare[number / shape.entries()];
        top.put(number, content, below, bare);
    }
    top.finish()
}

/// Where a unit reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Below,
    Zero,
    Data,
}

/// A file that is being filled.
struct Top {
    shape: Shape,
    bytes: Vec<u8>,
    /// Of each cluster of the file, whether it is used.
    used: Vec<bool>,
    /// Where each L2 table lies, and L1 itself.
    tables: Vec<usize>,
    l1_at: usize,
    rng: Rng,
}

impl Top {
    fn new(disk_bytes: usize, shape: Shape, rng: Rng) -> Top {
        let cluster = shape.cluster();
        let tables = disk_bytes.div_ceil(cluster).div_ceil(shape.entries());
        let l1_at = 2 * cluster;
        let clusters = 2 + (tables * 8).div_ceil(cluster);
        let mut bytes = header(shape, disk_bytes, (l1_at, tables), clusters * cluster);
        // Nothing says what lies behind a table.
        bytes[l1_at + tables * 8..].fill(OTHERS);
        Top {
            shape,
            bytes,
            used: vec![true; clusters],
            tables: vec![0; tables],
            l1_at,
            rng,
        }
    }

    /// The next cluster of the file, perhaps behind a hole.
    fn append(&mut self) -> usize {
        if self.rng.chance(50) {
            self.used.push(false);
        }
        self.used.push(true);
        let end = self.used.len() * self.shape.cluster();
        self.bytes.resize(end, OTHERS);
        end - self.shape.cluster()
    }

    fn write(&mut self, at: usize, word: u64) {
        self.bytes[at..at + 8].copy_from_slice(&word.to_be_bytes());
    }

    /// The table of a cluster of the disk.
    fn table(&mut self, number: usize) -> usize {
        let table = number / self.shape.entries();
        if self.tables[table] == 0 {
            let at = self.append();
            self.bytes[at..].fill(0);
            self.tables[table] = at;
            self.write(self.l1_at + table * 8, COPIED | at as u64);
        }
        self.tables[table]
    }

    /// What becomes of a unit of the disk.
    fn choose(&mut self, content: &[u8], below: &[u8], to: Range<usize>, bare: bool) -> Unit {
        let here = &content[to.clone()];
        let zero = here.iter().all(|&byte| byte == 0);
        let base = &below[below.len().min(to.start)..below.len().min(to.end)];
        let rest = &here[base.len()..];
        let same = here[..base.len()] == *base && rest.iter().all(|&byte| byte == 0);
        match (same, zero) {
            (true, _) if bare || to.is_empty() || self.rng.chance(400) => Unit::Below,
            (_, true) if self.rng.chance(600) => Unit::Zero,
            _ => Unit::Data,
        }
    }

    fn put(&mut self, number: usize, content: &[u8], below: &[u8], bare: bool) {
        let (cluster, units) = (self.shape.cluster(), self.shape.units());
        let (start, unit) = (number * cluster, cluster / units);
        let end = |at: usize| content.len().min(at);
        let range = |it: usize| end(start + it * unit)..end(start + (it + 1) * unit);
        let bare = bare || self.rng.chance(200);
        let mut states = Vec::new();
        for it in 0..units {
            states.push(self.choose(content, below, range(it), bare));
        }
        let has = |state: Unit| states.contains(&state);
        // A place may be kept for what has no data yet.
        let keeps = (has(Unit::Zero) || self.shape.extended && !bare) && self.rng.chance(400);
        if !has(Unit::Data) && !has(Unit::Zero) && !keeps {
            return;
        }
        let entry_at = self.table(number);
        let entry_at = entry_at + number % self.shape.entries() * self.shape.entry_bytes();
        let mut word = 0;
        if has(Unit::Data) || keeps {
            let at = self.append();
            word = COPIED | at as u64;
            for (it, _) in states.iter().enumerate().filter(|it| *it.1 == Unit::Data) {
                let from = range(it);
                let to = at + it * unit;
                self.bytes[to..to + from.len()].copy_from_slice(&content[from]);
            }
        }
        if self.shape.extended {
            let bit = |it: usize| match states[it] {
                Unit::Below => 0,
                Unit::Zero => 1 << (32 + it),
                Unit::Data => 1 << it,
            };
            self.write(entry_at + 8, (0..units).map(bit).sum());
        } else if has(Unit::Zero) {
            word |= 1;
        }
        self.write(entry_at, word);
    }

    /// Counts everything, and perhaps leaves out the zeroes at the end.
    fn finish(mut self) -> Vec<u8> {
        let cluster = self.shape.cluster();
        let per_block = (cluster * 8) >> self.shape.order;
        let data = self.used.len();
        let mut blocks = 1;
        while blocks * per_block < data + blocks {
            blocks += 1;
        }
        self.used.resize(data + blocks, true);
        self.bytes.resize((data + blocks) * cluster, 0);
        for block in 0..blocks {
            self.write(cluster + block * 8, ((data + block) * cluster) as u64);
        }
        for number in 0..self.used.len() {
            if self.used[number] {
                let block = (data + number / per_block) * cluster;
                self.count(block, number % per_block);
            }
        }
        if self.rng.chance(300) {
            let used = self.bytes.iter().rposition(|&byte| byte != 0);
            let used = used.map_or(0, |it| it + 1).next_multiple_of(512);
            let least = self.bytes.len() - cluster + 512;
            self.bytes.truncate(used.max(least));
        }
        self.bytes
    }

    /// Counts one cluster once, in this block.
    fn count(&mut self, block: usize, place: usize) {
        let width = 1 << self.shape.order;
        if width < 8 {
            let bit = place * width;
            self.bytes[block + bit / 8] |= 1 << (bit % 8);
        } else {
            // The last byte of a number is its lowest.
            self.bytes[block + (place + 1) * width / 8 - 1] = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qcow2::{self, Layer, Verdict};
    use std::collections::BTreeSet;
    use workload::stamp;

    fn content(sectors: usize, tag: Option<u64>) -> Vec<u8> {
        let mut content = vec![0; sectors * 512];
        if let Some(tag) = tag {
            stamp::fill(&mut content, tag, 0, 0);
        }
        content
    }

    fn layers<'a>(top: &'a [u8], below: &'a [u8]) -> [Layer<'a>; 2] {
        let layer = |bytes, raw| Layer { bytes, raw };
        [layer(top, false), layer(below, true)]
    }

    #[test]
    fn a_file_that_is_made_is_right_and_has_the_disk() {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let sectors = [64, 1000, 4099, 8195][seed as usize % 4];
            let disk = content(sectors, (seed % 3 > 0).then_some(1000 + seed));
            let [top, below] = files(&disk, seed);
            assert_eq!(qcow2::judge(&top), Verdict::default(), "seed {seed}");
            let layers = layers(&top, &below);
            assert!(
                qcow2::disk(&layers, disk.len()) == Ok(disk.clone()),
                "{seed}"
            );
            let mut part = vec![1; 16 * 512];
            let at = sectors as u64 / 2 * 512;
            qcow2::view(&layers, at, &mut part, &|_, _, _| None).expect("it can be read");
            assert!(part == disk[at as usize..][..part.len()], "seed {seed}");
            seen.insert((top[23], top[99], below.len().cmp(&disk.len())));
        }
        assert!(seen.len() > 20, "sizes, widths and bases: {seen:?}");
    }

    #[test]
    fn a_file_is_made_over_a_base_that_has_something_else() {
        for seed in 0..40 {
            let below = content(700, Some(5));
            let disk = content(1003, (seed % 2 > 0).then_some(7));
            let top = file_over(&disk, &below, seed);
            assert_eq!(qcow2::judge(&top), Verdict::default(), "seed {seed}");
            let found = qcow2::disk(&layers(&top, &below), disk.len());
            assert!(found == Ok(disk), "seed {seed}");
        }
    }

    #[test]
    fn places_without_data_and_tables_that_are_not_there_are_among_them() {
        let (mut held, mut bare) = (0, 0);
        for seed in 0..60 {
            let [top, _] = files(&content(8195, (seed % 2 > 0).then_some(9)), seed);
            let parts = qcow2::referenced(&top);
            let bytes: u64 = parts.iter().map(|it| it.end - it.start).sum();
            held += u64::from(bytes < top.len() as u64);
            let l1 = 2 << top[23];
            bare += u64::from(top[l1..l1 + 8] == [0; 8]);
        }
        assert!(
            held > 20 && bare > 3,
            "{held} with free places, {bare} bare"
        );
    }

    #[test]
    fn what_a_file_refers_to_is_all_that_a_reader_needs() {
        for seed in 0..20 {
            let disk = content(4099, Some(3));
            let [mut top, below] = files(&disk, seed);
            let mut at = 0;
            for part in qcow2::referenced(&top) {
                let end = top.len().min(part.start as usize);
                top[at.min(end)..end].fill(0x5A);
                at = part.end as usize;
            }
            assert_eq!(qcow2::judge(&top), Verdict::default(), "seed {seed}");
            let found = qcow2::disk(&layers(&top, &below), disk.len());
            assert!(found == Ok(disk), "seed {seed}");
        }
    }
}
