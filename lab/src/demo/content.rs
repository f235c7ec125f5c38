//! What every block of every image must hold, as a function.
//!
//! Owns the layout: a sparse image of which one eighth has content, the part of it that a guest
//! reads when it boots, and the window that guests write. Always true: the content of a block
//! follows from the seed, the block, and who wrote it how many times, so every read can be
//! checked and no copy of the data is kept.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use workload::rng::{Rng, mixed};

pub const BLOCK: usize = 4096;
/// 256 MiB, sparse.
pub const IMAGE_BLOCKS: u64 = 65_536;
pub const IMAGE_BYTES: u64 = IMAGE_BLOCKS * BLOCK as u64;
/// Content comes in pieces of this size, like files of a system.
const EXTENT_BLOCKS: u64 = 16;
/// One extent in so many has content.
const SPARSENESS: u64 = 8;
/// Extents before this one belong to the boot set where they have content: about 24 MiB.
const BOOT_EXTENTS: u64 = IMAGE_BLOCKS / EXTENT_BLOCKS * 3 / 4;
/// The last 64 MiB of the image are written, each lane in a quarter of its own.
pub const LANES: u64 = 4;
pub const LANE_BLOCKS: u64 = 4096;
const WINDOW_BLOCK: u64 = IMAGE_BLOCKS - LANES * LANE_BLOCKS;
/// How the extents of the boot set are read: 4, 12, 16 and 32 KiB.
const READ_BLOCKS: [u64; 4] = [1, 3, 4, 8];

/// First block of the part of the window that belongs to a lane.
pub fn lane_block(lane: u64) -> u64 {
    WINDOW_BLOCK + lane * LANE_BLOCKS
}

/// Fills a block as its `version`-th writer of a volume left it; version 0 is the gold image.
pub fn fill(seed: u64, volume: u64, block: u64, version: u32, bytes: &mut [u8]) {
    assert_eq!(bytes.len(), BLOCK, "one block at a time");
    if version == 0 && !has_content(seed, block / EXTENT_BLOCKS) {
        bytes.fill(0);
        return;
    }
    let writer = if version == 0 { 0 } else { volume + 1 };
    let who = mixed(seed ^ mixed(writer << 32 | u64::from(version)));
    Rng::new(who ^ block).fill(bytes);
}

fn has_content(seed: u64, extent: u64) -> bool {
    mixed(seed ^ mixed(extent)).is_multiple_of(SPARSENESS)
}

/// Writes a whole image, with holes where there is no content.
pub fn make_image(seed: u64, file: &File) -> io::Result<()> {
    file.set_len(IMAGE_BYTES)?;
    let mut bytes = vec![0; EXTENT_BLOCKS as usize * BLOCK];
    for extent in (0..IMAGE_BLOCKS / EXTENT_BLOCKS).filter(|&it| has_content(seed, it)) {
        for (at, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
            fill(seed, 0, extent * EXTENT_BLOCKS + at as u64, 0, block);
        }
        file.write_all_at(&bytes, extent * EXTENT_BLOCKS * BLOCK as u64)?;
    }
    Ok(())
}

/// The reads of a boot, (block, blocks): nearly the same order for every guest, as guests of one
/// image do it.
pub fn boot_reads(seed: u64, guest: u64) -> Vec<(u64, u64)> {
    let mut reads = Vec::new();
    let mut extents: Vec<u64> = (0..BOOT_EXTENTS)
        .filter(|&it| has_content(seed, it))
        .collect();
    Rng::new(seed).shuffle(&mut extents);
    for extent in extents {
        let mut block = extent * EXTENT_BLOCKS;
        for blocks in READ_BLOCKS {
            reads.push((block, blocks));
            block += blocks;
        }
    }
    let mut rng = Rng::new(seed ^ (guest + 1) << 20);
    // A guest differs from the others in what it does within a few dozen reads.
    for near in reads.chunks_mut(32) {
        rng.shuffle(near);
    }
    reads
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn guests_boot_from_the_same_blocks_in_slightly_different_order() {
        let (one, two) = (boot_reads(1, 0), boot_reads(1, 1));
        assert_ne!(one, two);
        let set = |reads: &[(u64, u64)]| reads.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(set(&one), set(&two));
        assert_eq!(set(&one).len(), one.len());
        let bytes: u64 = one.iter().map(|&(_, blocks)| blocks * BLOCK as u64).sum();
        assert!((15 << 20..30 << 20).contains(&bytes), "{bytes}");
        let end = one.iter().map(|&(block, blocks)| block + blocks).max();
        assert!(end <= Some(WINDOW_BLOCK));
    }

    #[test]
    fn the_content_of_a_block_tells_its_writer_and_its_version() {
        let block = |volume, block, version| {
            let mut bytes = vec![0; BLOCK];
            fill(1, volume, block, version, &mut bytes);
            bytes
        };
        assert_eq!(block(0, 7, 0), block(5, 7, 0));
        assert_ne!(block(0, 7, 1), block(1, 7, 1));
        assert_ne!(block(0, 7, 1), block(0, 7, 2));
        assert_ne!(block(0, 7, 1), block(0, 8, 1));
    }
}
