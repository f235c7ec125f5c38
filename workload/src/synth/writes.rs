//! What one desktop writes: new pieces, and the same ones again by the law of rewrites.
//!
//! Owns each written piece with its time, small and large ones apart, and the ring of the page
//! file. Always true: a piece is rewritten as a whole and pieces do not overlap, so the time since
//! a byte was written is the time since its piece was; the shares of bytes rewritten within ten
//! seconds, ten minutes and a day stay at their law by feedback, as far as there is something of
//! that age; memory is that of the pieces. Deliberately absent: when something is written.

use super::layout::{Class, Layout, Part};
use super::random::Random;
use std::collections::VecDeque;
use std::ops::Range;

/// Shares rewritten within ten seconds, ten minutes, a day (Capo, figure 5).
pub const REWRITTEN: [f64; 3] = [0.08, 0.25, 0.525];
pub const INTERVALS_MS: [u32; 3] = [10_000, 600_000, 86_400_000];
/// Of the small ones alone: logs, tables and registries are written over and over.
const REWRITTEN_SMALL: [f64; 3] = [0.14, 0.55, 0.85];
/// Of the bytes written; "nearly a tenth" (Capo, 4.3.3).
pub const PAGE_FILE_SHARE: f64 = 0.095;
/// It is written round and round.
const PAGE_FILE_BLOCKS: u64 = 128 << 8;

/// Blocks of a small and a large write: 4.8 and 64 KiB in the mean.
const SMALL: &[(u16, f64)] = &[(1, 0.8), (2, 0.2)];
const LARGE: &[(u16, f64)] = &[(8, 0.4), (16, 0.4), (32, 0.2)];
pub const SMALL_BLOCKS: f64 = 1.2;
pub const LARGE_BLOCKS: f64 = 16.0;

/// Classes of new pieces, in the order of [`Class::ALL`].
const SMALL_CLASSES: [f64; 7] = [0.45, 0.30, 0.02, 0.12, 0.0, 0.03, 0.08];
const LARGE_CLASSES: [f64; 7] = [0.0, 0.36, 0.08, 0.12, 0.0, 0.28, 0.16];

/// Tries to find a piece of the right age that is not dead.
const PROBES: usize = 8;
/// Feedback is full when a law is off by so many writes.
const PATIENCE: f64 = 48.0;
/// Pieces, or dead places, below which nothing is tidied.
const TIDY_MIN: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Piece {
    time_ms: u32,
    block: u32,
    /// 0: it is dead, the piece was written again.
    blocks: u16,
}

/// Pieces of one kind in the order of their last writes.
#[derive(Default)]
struct Log {
    pieces: VecDeque<Piece>,
    /// The number of the piece in front: numbers only grow.
    front: u64,
    /// Where the pieces of the last ten seconds, ten minutes and day begin.
    since: [u64; 3],
    live: usize,
    run: (u64, u64),
    fresh: FreshRun,
}

#[derive(Clone, Copy, Default)]
struct FreshRun {
    class: usize,
    left: u64,
}

impl Log {
    fn end(&self) -> u64 {
        self.front + self.pieces.len() as u64
    }

    fn at(&self, number: u64) -> &Piece {
        &self.pieces[(number - self.front) as usize]
    }

    fn advance(&mut self, now_ms: u32) {
        for (since, interval) in self.since.iter_mut().zip(INTERVALS_MS) {
            *since = (*since).max(self.front);
            while let Some(piece) = self.pieces.get((*since - self.front) as usize) {
                if piece.time_ms.saturating_add(interval) > now_ms {
                    break;
                }
                *since += 1;
            }
        }
    }

    /// One of those in a range of numbers: the next of a run, or any.
    fn pick(&mut self, range: Range<u64>, random: &mut Random) -> Option<u64> {
        let (next, left) = self.run;
        if left > 0 && range.contains(&next) && self.at(next).blocks > 0 {
            self.run = (next + 1, left - 1);
            return Some(next);
        }
        if range.is_empty() {
            return None;
        }
        for _ in 0..PROBES {
            let number = range.start + random.below(range.end - range.start);
            if self.at(number).blocks > 0 {
                self.run = (number + 1, random.between(0, 12));
                return Some(number);
            }
        }
        None
    }

    fn push(&mut self, piece: Piece) {
        self.pieces.push_back(piece);
        self.live += 1;
    }

    fn kill(&mut self, number: u64) -> Piece {
        let piece = &mut self.pieces[(number - self.front) as usize];
        let was = *piece;
        assert!(was.blocks > 0, "a dead piece is written again");
        piece.blocks = 0;
        self.live -= 1;
        was
    }

    fn tidy(&mut self) {
        while self.pieces.front().is_some_and(|piece| piece.blocks == 0) {
            self.pieces.pop_front();
            self.front += 1;
        }
        if self.pieces.len() < 2 * self.live + TIDY_MIN {
            return;
        }
        let dead_before = |pieces: &VecDeque<Piece>, front: u64, number: u64| {
            let before = pieces.iter().take(number.saturating_sub(front) as usize);
            before.filter(|piece| piece.blocks == 0).count() as u64
        };
        for since in &mut self.since {
            *since = (*since).max(self.front);
            *since -= dead_before(&self.pieces, self.front, *since);
        }
        self.pieces.retain(|piece| piece.blocks > 0);
        self.run = (0, 0);
    }
}

/// Where new pieces of one kind go, for each class.
struct Room {
    left: [Range<u64>; 7],
}

impl Room {
    fn new(layout: &Layout, part: Part) -> Room {
        Room {
            left: Class::ALL.map(|class| layout.part(class, part)),
        }
    }

    fn take(&mut self, class: usize, blocks: u16) -> Option<u32> {
        let range = &mut self.left[class];
        if range.end - range.start < blocks.into() {
            return None;
        }
        let block = range.start;
        range.start += u64::from(blocks);
        Some(block as u32)
    }
}

/// The page file: written round, so that it diverges once and not again.
struct Ring {
    start: u64,
    blocks: u64,
    at: u64,
    filled: u64,
}

pub struct Written {
    logs: [Log; 2],
    rooms: [Room; 2],
    ring: Ring,
    random: Random,
    /// The last one with a write.
    second: u32,
    bytes: f64,
    page_bytes: f64,
    page_run_left: u64,
    /// Bytes of all, and requests of small ones, rewritten within each interval.
    rewritten: [f64; 3],
    small: f64,
    small_rewritten: [f64; 3],
    diverged_blocks: u64,
}

fn size(sizes: &[(u16, f64)], random: &mut Random) -> u16 {
    let mut left = random.share();
    for (blocks, weight) in sizes {
        left -= weight;
        if left < 0.0 {
            return *blocks;
        }
    }
    sizes[sizes.len() - 1].0
}

impl Written {
    pub fn new(layout: &Layout, random: Random) -> Written {
        let page_file = layout.part(Class::PageFile, Part::Large);
        Written {
            logs: [Log::default(), Log::default()],
            rooms: [
                Room::new(layout, Part::Small),
                Room::new(layout, Part::Large),
            ],
            ring: Ring {
                start: page_file.start,
                blocks: PAGE_FILE_BLOCKS.min(page_file.end - page_file.start),
                at: 0,
                filled: 0,
            },
            random,
            second: 0,
            bytes: 0.0,
            page_bytes: 0.0,
            page_run_left: 0,
            rewritten: [0.0; 3],
            small: 0.0,
            small_rewritten: [0.0; 3],
            diverged_blocks: 0,
        }
    }

    /// Once in each second with a write.
    fn advance(&mut self, now_ms: u32) {
        let second = now_ms / 1000;
        if self.second == second {
            return;
        }
        self.second = second;
        for log in &mut self.logs {
            log.tidy();
            log.advance(second * 1000);
        }
    }

    /// Blocks of the page file that were never written.
    pub fn page_file_left(&self) -> u64 {
        (self.ring.blocks - self.ring.filled).saturating_sub(u64::from(LARGE[2].0))
    }

    /// One write; new where nothing old enough is there and less than `diverge_to` has diverged.
    pub fn write(&mut self, now_ms: u32, large: bool, diverge_to: u64) -> (u32, u16) {
        self.advance(now_ms);
        let paging = self.page_bytes < PAGE_FILE_SHARE * self.bytes;
        if large && (self.page_run_left > 0 || (paging && self.random.below(8) == 0)) {
            if self.page_run_left == 0 {
                self.page_run_left = self.random.between(8, 32);
            }
            self.page_run_left -= 1;
            return self.page_out();
        }
        let age = self.age(large);
        let mut ages = age..3;
        if let Some(number) = ages.find_map(|age| self.of_age(large, age)) {
            return self.again(now_ms, large, number);
        }
        if self.diverged_blocks >= diverge_to {
            // Older than a day, or whatever there is.
            let log = &mut self.logs[usize::from(large)];
            let old = log.front..log.since[2].max(log.front);
            if let Some(number) = log.pick(old, &mut self.random) {
                return self.again(now_ms, large, number);
            }
        }
        self.fresh(now_ms, large)
    }

    /// How old what is written again should be: an interval, or 3 for none of them.
    fn age(&mut self, large: bool) -> usize {
        let share = self.random.share();
        let mut least = 0.0;
        for interval in 0..3 {
            let (law, behind) = if large {
                let owed = REWRITTEN[interval] * self.bytes - self.rewritten[interval];
                let blocks = PATIENCE * LARGE_BLOCKS * super::layout::BLOCK_BYTES as f64;
                (REWRITTEN[interval], owed / blocks)
            } else {
                let law = REWRITTEN_SMALL[interval];
                let owed = law * self.small - self.small_rewritten[interval];
                (law, owed / PATIENCE)
            };
            least = f64::max(least, (law + behind).clamp(0.0, 1.0));
            if share < least {
                return interval;
            }
        }
        3
    }

    fn of_age(&mut self, large: bool, age: usize) -> Option<u64> {
        let log = &mut self.logs[usize::from(large)];
        let end = match age {
            0 => log.end(),
            _ => log.since[age - 1],
        };
        let start = log.since[age].max(log.front);
        log.pick(start..end.max(start), &mut self.random)
    }

    fn again(&mut self, now_ms: u32, large: bool, number: u64) -> (u32, u16) {
        let log = &mut self.logs[usize::from(large)];
        let piece = log.kill(number);
        log.push(Piece {
            time_ms: now_ms,
            ..piece
        });
        let bytes = bytes(piece.blocks);
        for (interval, limit) in INTERVALS_MS.into_iter().enumerate() {
            // Within one second they are not made in order.
            if now_ms.saturating_sub(piece.time_ms) <= limit {
                self.rewritten[interval] += bytes;
                self.small_rewritten[interval] += f64::from(u8::from(!large));
            }
        }
        self.count(piece.blocks, large);
        (piece.block, piece.blocks)
    }

    fn count(&mut self, blocks: u16, large: bool) {
        self.bytes += bytes(blocks);
        self.small += f64::from(u8::from(!large));
    }

    /// A piece that was not written before, in a run of its class.
    pub fn fresh(&mut self, now_ms: u32, large: bool) -> (u32, u16) {
        let (sizes, classes) = match large {
            true => (LARGE, &LARGE_CLASSES),
            false => (SMALL, &SMALL_CLASSES),
        };
        let blocks = size(sizes, &mut self.random);
        let log = &mut self.logs[usize::from(large)];
        if log.fresh.left == 0 {
            log.fresh = FreshRun {
                class: self.random.weighted(classes),
                left: self.random.between(2, 24),
            };
        }
        log.fresh.left -= 1;
        let room = &mut self.rooms[usize::from(large)];
        let wanted = log.fresh.class;
        let found = std::iter::once(wanted)
            .chain(0..Class::ALL.len())
            .filter(|class| classes[*class] > 0.0)
            .find_map(|class| room.take(class, blocks));
        let Some(block) = found else {
            // The disk is full: something that is there is written again.
            let number = (0..log.pieces.len() as u64)
                .map(|at| at + log.front)
                .find(|number| log.at(*number).blocks > 0);
            let number = number.expect("a full part holds pieces");
            return self.again(now_ms, large, number);
        };
        log.push(Piece {
            time_ms: now_ms,
            block,
            blocks,
        });
        self.diverged_blocks += u64::from(blocks);
        self.count(blocks, large);
        (block, blocks)
    }

    /// The next of the page file.
    pub fn page_out(&mut self) -> (u32, u16) {
        let blocks = size(LARGE, &mut self.random);
        let ring = &mut self.ring;
        if ring.at + u64::from(blocks) > ring.blocks {
            ring.at = 0;
        }
        let block = ring.start + ring.at;
        ring.at += u64::from(blocks);
        if ring.at > ring.filled {
            self.diverged_blocks += ring.at - ring.filled;
            ring.filled = ring.at;
        }
        self.page_bytes += bytes(blocks);
        self.count(blocks, true);
        (block as u32, blocks)
    }

    /// Something of this desktop's own that is read: a page that comes back, or a written piece.
    pub fn own(&mut self) -> Option<(u32, u16)> {
        let random = &mut self.random;
        if random.below(2) == 0 && self.ring.filled >= 16 {
            let blocks = random.between(1, 16);
            let at = random.below(self.ring.filled - blocks + 1);
            return Some(((self.ring.start + at) as u32, blocks as u16));
        }
        let large = random.below(4) > 0;
        let log = &self.logs[usize::from(large)];
        let number = random.below(log.pieces.len() as u64);
        let piece = log.pieces.get(number as usize)?;
        (piece.blocks > 0).then_some((piece.block, piece.blocks))
    }
}

fn bytes(blocks: u16) -> f64 {
    (u64::from(blocks) * super::layout::BLOCK_BYTES) as f64
}
