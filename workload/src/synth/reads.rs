//! What desktops read: the shared image, in the order in which the cluster comes to know it.
//!
//! Owns the frontier, beyond which nobody has read yet, and pools of pieces that somebody has.
//! Always true: a desktop has read exactly the first pieces of a pool, up to its head, and what
//! it brought there itself; so new to the cluster, new to the desktop and read again are three
//! choices and need no memory for each block. A piece is always read as a whole. Deliberately
//! absent: what was written; content and writes do not overlap.

use super::layout::{BLOCK_BYTES, Class, Layout, Part};
use super::published::SMALL_BYTES;
use super::random::Random;
use std::ops::Range;

/// Blocks of a piece, and how likely.
pub type Sizes = &'static [(u16, f64)];

/// 64 KiB in the mean: with writes of 18 KiB, 65 % of requests are 35 % of bytes.
pub const WEEK_SIZES: Sizes = &[
    (1, 0.10),
    (4, 0.15),
    (8, 0.20),
    (16, 0.35),
    (32, 0.15),
    (64, 0.05),
];
/// 27 KiB: 190 MiB in 7,163 pieces.
pub const BOOT_SIZES: Sizes = &[(1, 0.30), (4, 0.32), (8, 0.22), (16, 0.11), (32, 0.05)];
/// 36 KB.
pub const LOGIN_SIZES: Sizes = &[(1, 0.18), (4, 0.27), (8, 0.30), (16, 0.18), (32, 0.07)];
/// 18 KB.
pub const STEADY_SIZES: Sizes = &[(1, 0.40), (4, 0.36), (8, 0.18), (16, 0.06)];

/// New content is found in runs, as files are.
const RUN_PIECES: (u64, u64) = (4, 40);
/// So many of the small ones lie right behind what was read before them, the others apart.
const FOLLOWING: f64 = 0.25;
const GAP_BLOCKS: u64 = 1;
/// What is read for the first time, by class, in the order of [`Class::ALL`].
const CLASS_WEIGHTS: [f64; 7] = [0.10, 0.42, 0.30, 0.05, 0.0, 0.0, 0.13];
/// A document that nobody else has is read again while it is open, by one of so many reads.
const FOUND_AGAIN: u8 = 1;
const FOUND_CHANCE: u64 = 8;
/// The golden ratio: each stretch of a pool has the same mix of sizes.
const STRIDE: f64 = 0.618_033_988_749_894_8;

#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub block: u32,
    pub blocks: u16,
    /// The desktop that read it first.
    by: u16,
}

/// Content that nobody has read.
pub struct Frontier {
    left: Vec<Range<u64>>,
    class: usize,
    run_left: u64,
    /// Small ones that follow another, owed.
    following: f64,
}

impl Frontier {
    pub fn new(layout: &Layout) -> Frontier {
        let left = Class::ALL.map(|class| layout.part(class, Part::Content));
        Frontier {
            left: left.into(),
            class: 0,
            run_left: 0,
            following: 0.0,
        }
    }

    /// Whether the next small one does, evenly spread.
    fn follows(&mut self) -> bool {
        self.following += FOLLOWING;
        let follows = self.following >= 1.0;
        self.following -= f64::from(u8::from(follows));
        follows
    }

    /// The first of so many blocks; `None` when the image is read to its end.
    fn take(&mut self, blocks: u16, random: &mut Random) -> Option<u32> {
        let fits = |range: &Range<u64>| range.end - range.start >= blocks.into();
        if self.run_left == 0 || !fits(&self.left[self.class]) {
            self.run_left = random.between(RUN_PIECES.0, RUN_PIECES.1);
            self.class = random.weighted(&CLASS_WEIGHTS);
            if !fits(&self.left[self.class]) {
                self.class = self.left.iter().position(fits)?;
            }
        }
        self.run_left -= 1;
        let apart = u64::from(blocks) * BLOCK_BYTES <= SMALL_BYTES && !self.follows();
        let range = &mut self.left[self.class];
        let left = range.end - range.start - u64::from(blocks);
        if apart {
            range.start += GAP_BLOCKS.min(left);
        }
        let block = range.start;
        range.start += u64::from(blocks);
        Some(block as u32)
    }
}

/// Pieces that somebody has read, in the order of their first reads.
pub struct Pool {
    pieces: Vec<Piece>,
    sizes: Sizes,
    /// Where in the mix of sizes it is.
    place: f64,
}

/// What one desktop has done with one pool.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// It has read all before that.
    head: u32,
    run_at: u32,
    run_left: u32,
    /// What it has found itself is read again soon, so many times.
    found: Option<Piece>,
    found_left: u8,
}

impl Pool {
    pub fn new(sizes: Sizes) -> Pool {
        Pool {
            pieces: Vec::new(),
            sizes,
            place: 0.0,
        }
    }

    /// A pool that is as it is, `total` blocks in `count` pieces.
    pub fn whole(
        sizes: Sizes,
        (count, total): (u64, u64),
        frontier: &mut Frontier,
        random: &mut Random,
    ) -> Pool {
        let mut pool = Pool::new(sizes);
        let mut lengths: Vec<u64> = (0..count).map(|_| u64::from(pool.size())).collect();
        let mut sum: u64 = lengths.iter().sum();
        // What the mix leaves over goes to as many as it takes, one block each.
        let mut at = 0;
        while sum != total && at < 64 * count {
            let length = &mut lengths[(at % count) as usize];
            if sum < total {
                *length += 1;
                sum += 1;
            } else if *length > 1 {
                *length -= 1;
                sum -= 1;
            }
            at += 1;
        }
        for blocks in lengths {
            let block = frontier.take(blocks as u16, random);
            let block = block.expect("the smallest image holds more than this");
            pool.pieces.push(Piece {
                block,
                blocks: blocks as u16,
                by: u16::MAX,
            });
        }
        pool
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn size(&mut self) -> u16 {
        self.place = (self.place + STRIDE).fract();
        let mut left = self.place;
        for (blocks, weight) in self.sizes {
            left -= weight;
            if left < 0.0 {
                return *blocks;
            }
        }
        self.sizes[self.sizes.len() - 1].0
    }

    /// Reads what nobody has.
    pub fn discover(
        &mut self,
        frontier: &mut Frontier,
        desktop: u16,
        reader: &mut Reader,
        random: &mut Random,
    ) -> Option<Piece> {
        let blocks = self.size();
        let piece = Piece {
            block: frontier.take(blocks, random)?,
            blocks,
            by: desktop,
        };
        if reader.head as usize == self.pieces.len() {
            reader.head += 1;
        }
        self.pieces.push(piece);
        reader.found = Some(piece);
        reader.found_left = FOUND_AGAIN;
        Some(piece)
    }

    /// Reads what others have and this one has not.
    pub fn follow(&self, desktop: u16, reader: &mut Reader) -> Option<Piece> {
        loop {
            let piece = self.pieces.get(reader.head as usize)?;
            reader.head += 1;
            if piece.by != desktop {
                return Some(*piece);
            }
        }
    }

    /// Reads again: runs, more of them near the beginning, where everybody's programs are.
    pub fn again(&self, reader: &mut Reader, random: &mut Random) -> Option<Piece> {
        if reader.found_left > 0 && random.below(FOUND_CHANCE) == 0 {
            reader.found_left -= 1;
            return reader.found;
        }
        if reader.head == 0 {
            return None;
        }
        if reader.run_left == 0 || reader.run_at >= reader.head {
            let share = random.share();
            reader.run_at = (f64::from(reader.head) * share * share * share) as u32;
            reader.run_left = random.between(1, 16) as u32;
        }
        let piece = self.pieces[reader.run_at as usize];
        reader.run_at += 1;
        reader.run_left -= 1;
        Some(piece)
    }
}
