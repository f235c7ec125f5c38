//! What requests are: reads or writes, small or large, of content seen before or not.
//!
//! Owns the targets of one phase and what was done so far. Always true: shares follow their targets
//! by feedback, so that they come out near them for every seed, not in the mean of seeds alone.
//! Deliberately absent: which blocks, and when.

use super::Content;
use super::layout::BLOCK_BYTES;
use super::published::{BOOT_WRITES, Period, Phase, WEEK_WRITE_BYTES, WEEK_WRITES};
use super::random::Random;
use super::writes::{LARGE_BLOCKS, SMALL_BLOCKS};

/// Read and written so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub requests: [f64; 2],
    pub bytes: [f64; 2],
}

impl Counts {
    pub fn add(&mut self, write: bool, blocks: u16) {
        self.requests[usize::from(write)] += 1.0;
        self.bytes[usize::from(write)] += f64::from(blocks) * BLOCK_BYTES as f64;
    }
}

/// Of one second: the greatest share of writes, and the part of the reads that are new to their
/// desktop which are new in it.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub writes: f64,
    pub unseen: f64,
}

impl Bound {
    pub const NONE: Bound = Bound {
        writes: 1.0,
        unseen: 1.0,
    };
}

pub struct Mix {
    pub content: Content,
    /// Shares of writes, by requests and by bytes.
    writes: f64,
    write_bytes: f64,
    /// How many requests it takes to get right what was wrong, and how far it goes for that.
    patience: f64,
    reach: f64,
    /// Of reads: not seen before by the desktop, nor by any.
    pub new_to_desktop: f64,
    pub new_to_cluster: f64,
    /// Reads that nobody has seen, owed.
    pub undiscovered: f64,
    large: f64,
    pub counts: Counts,
}

/// Blocks of a read of each kind of content, in the mean.
const fn read_blocks(content: Content) -> f64 {
    match content {
        Content::Week => 15.9,
        Content::Steady => 4.24,
        Content::Login => 8.78,
        Content::Boot => 6.79,
    }
}

/// Of the office's week outside its peaks: reads new to a desktop and to the cluster, on its first
/// day and later.
pub const WEEK_NEW: [(f64, f64); 2] = [(0.14, 0.05), (0.067, 0.0222)];

impl Mix {
    fn new(content: Content, writes: f64, write_bytes: f64) -> Mix {
        let bytes = write_bytes / (1.0 - write_bytes);
        let blocks = read_blocks(content) * bytes * (1.0 - writes) / writes;
        let large = (blocks - SMALL_BLOCKS) / (LARGE_BLOCKS - SMALL_BLOCKS);
        Mix {
            content,
            writes,
            write_bytes,
            patience: 200.0,
            reach: 0.3,
            new_to_desktop: 0.1,
            new_to_cluster: 0.02,
            undiscovered: 0.0,
            large: large.clamp(0.0, 1.0),
            counts: Counts::default(),
        }
    }

    pub fn of_peak(period: &Period) -> Mix {
        Mix {
            new_to_desktop: 1.0 - period.seen_by_desktop,
            new_to_cluster: 1.0 - period.seen_by_cluster,
            ..Mix::new(Content::Week, period.write_requests, period.write_bytes)
        }
    }

    /// Of the week as a whole: slow, since it makes up for peaks, boots and nights.
    pub fn of_week(desktops: u32) -> Mix {
        Mix {
            patience: 20_000.0 * f64::from(desktops),
            reach: 0.12,
            ..Mix::new(Content::Week, WEEK_WRITES, WEEK_WRITE_BYTES)
        }
    }

    pub fn of_phase(phase: &Phase, content: Content) -> Mix {
        let written = phase.writes * phase.write_bytes;
        let read = (1.0 - phase.writes) * phase.read_bytes;
        Mix {
            new_to_desktop: 0.12,
            ..Mix::new(content, phase.writes, written / (written + read))
        }
    }

    /// The first night: much is read, and what is written is large and new.
    pub fn of_settling() -> Mix {
        let bytes = WEEK_WRITE_BYTES / (1.0 - WEEK_WRITE_BYTES);
        let writes = bytes * read_blocks(Content::Week) / LARGE_BLOCKS;
        Mix {
            new_to_desktop: 0.32,
            new_to_cluster: 0.02,
            large: 1.0,
            ..Mix::new(Content::Week, writes / (1.0 + writes), WEEK_WRITE_BYTES)
        }
    }

    pub fn of_boot() -> Mix {
        Mix::new(Content::Boot, BOOT_WRITES, 0.15)
    }

    /// What keeps those of `total` requests that pass a cache at no more than `passing`.
    pub fn bound(&self, total: f64, passing: f64) -> Bound {
        let part = passing / total.max(1.0);
        // Writes and unseen reads are scaled alike; with e: e * writes + (1 - e * writes) * e * new
        // is what passes.
        let (sum, product) = (
            self.writes + self.new_to_desktop,
            self.writes * self.new_to_desktop,
        );
        let scale = if sum - product > part {
            let root = (sum * sum - 4.0 * product * part).max(0.0).sqrt();
            2.0 * part / (sum + root)
        } else {
            1.0
        };
        let new = scale * self.new_to_desktop;
        Bound {
            writes: (part - new) / (1.0 - new),
            unseen: scale,
        }
    }

    pub fn is_write(&self, counts: &Counts, bound: Bound, random: &mut Random) -> bool {
        let [reads, writes] = counts.requests;
        let behind = (reads + writes) * self.writes - writes;
        let steered = (behind / self.patience).clamp(-self.reach, self.reach);
        random.share() < (self.writes + steered).min(bound.writes)
    }

    pub fn is_large(&self, counts: &Counts, random: &mut Random) -> bool {
        let [read, written] = counts.bytes;
        let behind = read * self.write_bytes / (1.0 - self.write_bytes) - written;
        let requests = behind / (LARGE_BLOCKS * BLOCK_BYTES as f64);
        let steered = (requests / (self.patience * self.writes)).clamp(-self.reach, self.reach);
        random.share() < (self.large + steered).max(0.01)
    }
}
