//! What one desktop writes: new pieces, and the same ones again by the law of rewrites.
//!
//! Owns what is written next, where the new goes, and the ring of the page file. Always true: the
//! shares of bytes rewritten within ten seconds, ten minutes and a day stay at their law by
//! feedback, as far as there is something of that age, and so do the shares of small and of large
//! writes that go on where another ended. Deliberately absent: when something is written.

use super::layout::{Class, Layout, Part};
use super::pieces::{INTERVALS_MS, OLDER, Pieces, Place};
use super::published::{LARGE_WRITES_SEQUENTIAL, SMALL_WRITES_SEQUENTIAL};
use super::random::Random;
use crate::trace::analyze::sizes::Streams;
use std::collections::VecDeque;
use std::ops::Range;

/// Shares rewritten within ten seconds, ten minutes, a day (Capo, figure 5).
pub const REWRITTEN: [f64; 3] = [0.08, 0.25, 0.525];
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

/// Feedback is full when a law is off by so many writes.
const PATIENCE: f64 = 48.0;
/// A run ends when the law of its age is ahead by so many writes, or that of a younger one behind.
const AHEAD: f64 = 8.0;
const BEHIND: f64 = 24.0;
/// Of small and of large ones that go on where another ended.
const FOLLOWING: [f64; 2] = [
    (SMALL_WRITES_SEQUENTIAL.0 + SMALL_WRITES_SEQUENTIAL.1) / 2.0,
    (LARGE_WRITES_SEQUENTIAL.0 + LARGE_WRITES_SEQUENTIAL.1) / 2.0,
];
/// Of those that do not: how many touch something of the last ten minutes, as tables, directories
/// and files that are filled from several ends do.
const NEAR: f64 = 0.96;
/// Tries to find a piece beside one of them.
const PROBES: usize = 8;
/// Runs that may be gone on with.
const RECENT: usize = 16;
/// A large file is written again from its beginning, which is so many pieces back at most.
const BACK: usize = 64;

/// What one kind of writes is in the middle of.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: Place,
    /// Of what is written again; `None` of what is new.
    age: Option<usize>,
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
        range.start = block + u64::from(blocks);
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
    pieces: [Pieces; 2],
    rooms: [Room; 2],
    runs: [Option<Run>; 2],
    /// Where runs ended, the latest first.
    recent: [VecDeque<Run>; 2],
    ring: Ring,
    random: Random,
    /// The last one with a write.
    second: u32,
    bytes: f64,
    page_bytes: f64,
    page_run_left: u64,
    /// Bytes of all, and requests of small ones, rewritten within each interval.
    rewritten: [f64; 3],
    small_rewritten: [f64; 3],
    /// Requests of each kind, and those that go on where another ended.
    requests: [f64; 2],
    following: [f64; 2],
    streams: Streams,
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
            pieces: Default::default(),
            rooms: [
                Room::new(layout, Part::Small),
                Room::new(layout, Part::Large),
            ],
            runs: [None; 2],
            recent: Default::default(),
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
            small_rewritten: [0.0; 3],
            requests: [0.0; 2],
            following: [0.0; 2],
            streams: Streams::default(),
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
        for pieces in &mut self.pieces {
            pieces.advance(second * 1000);
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
        let kind = usize::from(large);
        if self.follows(kind)
            && let Some(written) = self.follow(now_ms, kind, diverge_to)
        {
            return written;
        }
        let age = self.age(kind);
        if let Some((age, place)) = (age..OLDER).find_map(|age| self.begin(kind, age)) {
            return self.again(now_ms, kind, place, age);
        }
        if self.diverged_blocks >= diverge_to
            && let Some((age, place)) = self.begin(kind, OLDER)
        {
            return self.again(now_ms, kind, place, age);
        }
        self.begin_new(now_ms, kind)
    }

    /// Whether the next one is to go on where another ended.
    fn follows(&mut self, kind: usize) -> bool {
        let owed = FOLLOWING[kind] * self.requests[kind] - self.following[kind];
        self.random.share() < FOLLOWING[kind] + owed / PATIENCE
    }

    /// Goes on with the run, or with one of those before it; not with what is older than what the
    /// laws ask for.
    fn follow(&mut self, now_ms: u32, kind: usize, diverge_to: u64) -> Option<(u32, u16)> {
        let urgent = (0..OLDER).find(|age| self.owed(kind, *age) > BEHIND);
        let oldest = urgent.unwrap_or(OLDER);
        let owes = (0..OLDER).any(|age| self.owed(kind, age) > AHEAD);
        let new = !owes && self.diverged_blocks < diverge_to;
        for at in 0..=self.recent[kind].len() {
            let run = match at {
                0 => self.runs[kind],
                _ => Some(self.recent[kind][at - 1]),
            };
            let written = match run {
                Some(Run { at, age: None }) if new => self.new_piece(now_ms, kind, at.class.into()),
                Some(Run { at, age: Some(age) })
                    if age <= oldest && self.owed(kind, age) >= -AHEAD =>
                {
                    let next = self.pieces[kind].behind(at, age);
                    next.map(|next| self.again(now_ms, kind, next, age))
                }
                _ => None,
            };
            if written.is_some() {
                return written;
            }
        }
        None
    }

    /// Where a run of this age begins.
    fn begin(&mut self, kind: usize, age: usize) -> Option<(usize, Place)> {
        let pieces = &self.pieces[kind];
        let random = &mut self.random;
        // What is younger than ten minutes is there already.
        if age > 1 && random.share() < NEAR {
            let beside = (0..PROBES).find_map(|_| {
                let place = pieces.pick(1, random).or_else(|| pieces.pick(0, random))?;
                let before = pieces.before(place, age);
                before.or_else(|| pieces.behind(place, age))
            });
            if let Some(place) = beside {
                return Some((age, place));
            }
        }
        let mut place = pieces.pick(age, random)?;
        for _ in 0..BACK * kind {
            let Some(before) = pieces.before(place, age) else {
                break;
            };
            place = before;
        }
        Some((age, place))
    }

    /// Writes by which the law of an interval is behind; what is older than any has none.
    fn owed(&self, kind: usize, interval: usize) -> f64 {
        if interval == OLDER {
            return 0.0;
        }
        if kind == 0 {
            return REWRITTEN_SMALL[interval] * self.requests[0] - self.small_rewritten[interval];
        }
        let bytes = REWRITTEN[interval] * self.bytes - self.rewritten[interval];
        bytes / (LARGE_BLOCKS * super::layout::BLOCK_BYTES as f64)
    }

    /// How old what is written again should be: an interval, or more than any.
    fn age(&mut self, kind: usize) -> usize {
        let share = self.random.share();
        let mut least = 0.0;
        for interval in 0..OLDER {
            let law = [REWRITTEN_SMALL, REWRITTEN][kind][interval];
            let wanted = law + self.owed(kind, interval) / PATIENCE;
            least = f64::max(least, wanted.clamp(0.0, 1.0));
            if share < least {
                return interval;
            }
        }
        OLDER
    }

    fn again(&mut self, now_ms: u32, kind: usize, place: Place, age: usize) -> (u32, u16) {
        let piece = *self.pieces[kind].get(place);
        self.pieces[kind].write(place, now_ms);
        let bytes = bytes(piece.blocks);
        for (interval, limit) in INTERVALS_MS.into_iter().enumerate() {
            // Within one second they are not made in order.
            if now_ms.saturating_sub(piece.time_ms) <= limit {
                self.rewritten[interval] += bytes;
                self.small_rewritten[interval] += f64::from(u8::from(kind == 0));
            }
        }
        self.run(kind, place, Some(age));
        self.count(piece.block, piece.blocks, kind);
        (piece.block, piece.blocks)
    }

    /// The run of this kind has come to here.
    fn run(&mut self, kind: usize, at: Place, age: Option<usize>) {
        let run = self.runs[kind].replace(Run { at, age });
        let recent = &mut self.recent[kind];
        recent.retain(|it| it.at != at);
        if let Some(run) = run
            && !run.at.is_before(at)
        {
            recent.push_front(run);
            recent.truncate(RECENT);
        }
    }

    fn count(&mut self, block: u32, blocks: u16, kind: usize) {
        self.bytes += bytes(blocks);
        self.requests[kind] += 1.0;
        let follows = self
            .streams
            .add(block.into(), u64::from(block) + u64::from(blocks));
        self.following[kind] += f64::from(u8::from(follows));
    }

    /// A piece that was not written before, in a run of its class.
    pub fn fresh(&mut self, now_ms: u32) -> (u32, u16) {
        let run = self.runs[1].filter(|run| run.age.is_none());
        if self.follows(1)
            && let Some(run) = run
            && let Some(new) = self.new_piece(now_ms, 1, run.at.class.into())
        {
            return new;
        }
        self.begin_new(now_ms, 1)
    }

    fn begin_new(&mut self, now_ms: u32, kind: usize) -> (u32, u16) {
        let classes = [&SMALL_CLASSES, &LARGE_CLASSES][kind];
        let wanted = self.random.weighted(classes);
        for class in std::iter::once(wanted).chain(0..Class::ALL.len()) {
            if classes[class] > 0.0
                && let Some(new) = self.new_piece(now_ms, kind, class)
            {
                return new;
            }
        }
        // The disk is full: something that is there is written again.
        let found = (0..=OLDER).rev().find_map(|age| self.begin(kind, age));
        let (age, place) = found.expect("a full part holds pieces");
        self.again(now_ms, kind, place, age)
    }

    fn new_piece(&mut self, now_ms: u32, kind: usize, class: usize) -> Option<(u32, u16)> {
        let blocks = size([SMALL, LARGE][kind], &mut self.random);
        let block = self.rooms[kind].take(class, blocks)?;
        let place = self.pieces[kind].add(class, (block, blocks), now_ms);
        self.run(kind, place, None);
        self.diverged_blocks += u64::from(blocks);
        self.count(block, blocks, kind);
        Some((block, blocks))
    }

    /// The next of the page file.
    pub fn page_out(&mut self) -> (u32, u16) {
        let blocks = size(LARGE, &mut self.random);
        let ring = &mut self.ring;
        if ring.at + u64::from(blocks) > ring.blocks {
            ring.at = 0;
        }
        let block = (ring.start + ring.at) as u32;
        ring.at += u64::from(blocks);
        if ring.at > ring.filled {
            self.diverged_blocks += ring.at - ring.filled;
            ring.filled = ring.at;
        }
        self.page_bytes += bytes(blocks);
        self.count(block, blocks, 1);
        (block, blocks)
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
        let pieces = &self.pieces[usize::from(large)];
        let piece = pieces.get(pieces.any(random)?);
        Some((piece.block, piece.blocks))
    }
}

fn bytes(blocks: u16) -> f64 {
    (u64::from(blocks) * super::layout::BLOCK_BYTES) as f64
}
