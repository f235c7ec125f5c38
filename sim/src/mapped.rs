//! Bases of overlays that are no raw images: a qcow2 file over a raw one. And the maps that the
//! engine is given of such files.
//!
//! Owns the bytes of both files. Always true: the disk that the two describe is the stamped image
//! that a raw base would have; each file has other bytes where the other one has the disk's, so
//! that a block from the wrong place is seen. Deliberately absent: compressed clusters, because the
//! simulated host unpacks nothing.

use crate::made::{self, OTHERS, Shape};
use crate::plan::Plan;
use crate::qcow2::Layer;
use crate::rng::Rng;
use engine::chain::ChainMap;
use engine::origin::Map;
use engine::types::{Policy, Uuid};
use image::types::FileId;
use image::{Chain, File, Format, Header};

/// Whether an origin of a plan is such a base, by its tag.
pub fn is_mapped(plan: &Plan, origin: usize) -> bool {
    let mut mine = plan.volumes.iter().filter(|it| it.origin == origin);
    let even = plan.origins[origin].tag.is_some_and(|tag| tag % 2 == 0);
    let base =
        mine.all(|it| it.policy == Policy::Ephemeral && !it.commits && !it.sleeps && !it.resizes);
    even && base && !plan.rates.knows_images()
}

/// The files of a base with this content: the first one, and the one below.
pub fn files(content: &[u8], seed: u64) -> [Vec<u8>; 2] {
    let mut rng = Rng::new(seed);
    let bits = rng.pick(&[9_u32, 12, 16]);
    let cluster = 1_usize << bits;
    let mut top = Top::new(content.len(), bits);
    let mut below = content.to_vec();
    let mut order: Vec<usize> = (0..content.len().div_ceil(cluster)).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    for number in order {
        if !rng.chance(600) {
            continue;
        }
        let range = number * cluster..content.len().min((number + 1) * cluster);
        top.put(number, &content[range.clone()]);
        below[range].fill(OTHERS);
    }
    [top.bytes, below]
}

/// A qcow2 file that is being filled. Its refcounts are those of an empty one, which no reader of
/// data looks at.
struct Top {
    bytes: Vec<u8>,
    cluster: usize,
    /// Where each L2 table lies, and L1 itself.
    tables: Vec<usize>,
    l1_at: usize,
}

impl Top {
    fn new(disk_bytes: usize, bits: u32) -> Top {
        let cluster = 1 << bits;
        let table_span = cluster / 8 * cluster;
        let tables = disk_bytes.div_ceil(table_span);
        let l1_clusters = (tables * 8).div_ceil(cluster);
        let l1_at = 3 * cluster;
        let shape = Shape {
            bits,
            extended: false,
            order: 4,
        };
        let whole = l1_at + l1_clusters * cluster;
        let mut bytes = made::header(shape, disk_bytes, (l1_at, tables), whole);
        // The one block of refcounts.
        let block = (2 * cluster as u64).to_be_bytes();
        bytes[cluster..cluster + 8].copy_from_slice(&block);
        Top {
            bytes,
            cluster,
            tables: vec![0; tables],
            l1_at,
        }
    }

    fn append(&mut self) -> usize {
        let at = self.bytes.len();
        self.bytes.resize(at + self.cluster, OTHERS);
        at
    }

    fn point(&mut self, entry_at: usize, to: usize) {
        let word = 1_u64 << 63 | to as u64;
        self.bytes[entry_at..entry_at + 8].copy_from_slice(&word.to_be_bytes());
    }

    fn put(&mut self, number: usize, content: &[u8]) {
        let entries = self.cluster / 8;
        let table = number / entries;
        if self.tables[table] == 0 {
            let at = self.append();
            self.bytes[at..].fill(0);
            self.tables[table] = at;
            self.point(self.l1_at + table * 8, at);
        }
        let at = self.append();
        self.bytes[at..at + content.len()].copy_from_slice(content);
        self.point(self.tables[table] + number % entries * 8, at);
    }
}

/// How the engine finds the bytes of a base with these files.
pub fn map(top: &[u8], below: &[Layer], identity: Uuid) -> Box<dyn Map> {
    let (chain, names) = chain(top, below, identity);
    Box::new(ChainMap::new(chain, names.tables, names.layers))
}

/// How the engine finds the bytes of an image that it writes, and how it writes them: of files that
/// are as they are now. What is kept of the files below is of one life as well.
pub fn written(top: &[u8], below: &[Layer], identity: Uuid) -> Box<dyn Map> {
    let (chain, names) = chain(top, below, identity);
    let map = ChainMap::writable(chain, names.tables, names.layers);
    Box::new(map.expect("an image that can be written"))
}

/// Of the files of a chain.
struct Names {
    tables: Vec<Uuid>,
    layers: Vec<Uuid>,
}

fn chain(top: &[u8], below: &[Layer], identity: Uuid) -> (Chain, Names) {
    let layer = |bytes, raw| Layer { bytes, raw };
    let all = std::iter::once(layer(top, false)).chain(below.iter().copied());
    let file = |(number, layer): (usize, Layer)| {
        let file_bytes = layer.bytes.len() as u64;
        let format = match layer.raw {
            true => Format::Raw,
            false => {
                let header = Header::parse(layer.bytes, file_bytes);
                Format::Qcow2(Box::new(header.expect("a header as it was written")))
            }
        };
        File {
            id: FileId(number as u32),
            file_bytes,
            grows_to: None,
            format,
        }
    };
    let chain = Chain::new(all.enumerate().map(file).collect());
    let name = |number: usize| {
        let mut name = identity;
        name.0[1] = number as u8;
        name
    };
    let names = Names {
        tables: (0..=below.len())
            .map(|file| name((2 * file).max(1)))
            .collect(),
        layers: (1..=below.len()).map(|file| name(2 * file + 1)).collect(),
    };
    (chain.expect("a chain of files"), names)
}
