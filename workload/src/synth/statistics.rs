//! What a trace of desktops is like, measured from its records.
//!
//! Owns the counts of the whole trace, of the six peaks and of each desktop. Always true: nothing
//! of the generator's own state is used, only records in the order of time and where the page
//! file lies; memory is that of the megabytes touched on each disk. Deliberately absent: what the
//! figures should be, which [`super::rows`] knows.

use super::layout::{BLOCK_BYTES, BLOCK_SECTORS};
use super::published::{DAY_S, DESKTOPS, PEAKS, SECOND_NS, SMALL_BYTES};
use crate::trace::analyze::sizes::Streams;
use crate::trace::{Op, Record, SECTOR_BYTES};
use std::ops::Range;

/// Since a byte was written before: ten seconds, ten minutes, a day.
const INTERVALS_MS: [u64; 3] = [10_000, 600_000, DAY_S * 1000];
const PAGE_BLOCKS: usize = 256;
/// Writes are held together for so long, as a cache does that writes back after ten minutes.
const WINDOW_NS: u64 = 600 * SECOND_NS;
/// Parts of the space, by how busy they are: the busiest 5 %, the next 10 %, the rest.
const SPACE: [f64; 2] = [0.05, 0.10];
/// Of a peak's requests: a desktop that makes so much of them is heavy, of 55 desktops.
const HEAVY: f64 = 0.05;

/// Requests and bytes, reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
}

impl Totals {
    fn add(&mut self, write: bool, bytes: u64) {
        if write {
            self.writes += 1;
            self.write_bytes += bytes;
        } else {
            self.reads += 1;
            self.read_bytes += bytes;
        }
    }

    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    pub fn write_requests_share(&self) -> f64 {
        share(self.writes, self.requests())
    }

    pub fn write_bytes_share(&self) -> f64 {
        share(self.write_bytes, self.read_bytes + self.write_bytes)
    }
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / (whole as f64).max(1.0)
}

/// One of the six peaks.
#[derive(Clone, Debug, Default)]
pub struct Peak {
    pub totals: Totals,
    pub requests_per_second_max: u64,
    /// Of them writes, and reads that were not seen by their desktop before.
    pub passing_per_second_max: u64,
    /// Share of all desktops.
    pub heavy_desktops: f64,
    /// Reads that were seen before as a whole.
    pub seen_by_desktop: u64,
    pub seen_by_cluster: u64,
    of_second: Second,
    of_desktop: Vec<u64>,
}

/// A second of a peak, so far.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    second: u64,
    requests: u64,
    passing: u64,
}

/// Requests of one size: those that begin where one of the last 32 streams of their disk and
/// direction ended, and how many stretches of the disk ten minutes' writes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pub requests: u64,
    pub sequential: u64,
    pub stretches: u64,
}

/// What one disk is in the middle of.
#[derive(Clone, Debug, Default)]
struct Running {
    /// Of reads, of writes.
    streams: [Streams; 2],
    window: u64,
    /// Where writes of this window lie, small and large ones.
    written: [Vec<Range<u64>>; 2],
}

/// One desktop.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfDesktop {
    pub totals: Totals,
    pub first_ns: u64,
    pub last_ns: u64,
    /// Blocks written at least once, by the end of the first day and in all.
    pub diverged_in_a_day: u64,
    pub diverged: u64,
}

/// A megabyte of one disk.
struct Page {
    /// Milliseconds and 1 when each block was last written; 0: never.
    written: [u32; PAGE_BLOCKS],
    /// Read or written by this desktop.
    seen: [u64; PAGE_BLOCKS / 64],
}

pub struct Statistics {
    pub totals: Totals,
    pub flushes: u64,
    pub desktops: Vec<OfDesktop>,
    pub peaks: Vec<Peak>,
    /// Bytes that were written again within each interval.
    pub rewritten: [u64; 3],
    pub page_file_bytes: u64,
    /// Of reads, of writes: small and large ones.
    pub placement: [[Placement; 2]; 2],
    running: Vec<Running>,
    pages: Vec<Vec<Option<Box<Page>>>>,
    /// Content that somebody has read, and requests of each megabyte.
    known: Vec<[u64; PAGE_BLOCKS / 64]>,
    requests: Vec<u32>,
    page_file: Range<u64>,
}

/// Counts the stretches that writes are, those that touch or overlap as one.
fn end_window(written: &mut [Vec<Range<u64>>; 2], placement: &mut [Placement; 2]) {
    for (ranges, placement) in written.iter_mut().zip(placement) {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut end = None;
        for range in ranges.drain(..) {
            placement.stretches += u64::from(end.is_none_or(|end| range.start > end));
            end = end.max(Some(range.end));
        }
    }
}

/// Sets a bit; whether it was set.
fn set(bits: &mut [u64; PAGE_BLOCKS / 64], at: usize) -> bool {
    let was = bits[at / 64] >> (at % 64) & 1 == 1;
    bits[at / 64] |= 1 << (at % 64);
    was
}

impl Statistics {
    /// Of disks of this size; the page file lies in these sectors.
    pub fn new(desktops: u32, disk_bytes: u64, page_file: Range<u64>) -> Statistics {
        let megabytes = (disk_bytes >> 20) as usize;
        let desktops = desktops as usize;
        let peak = Peak {
            of_desktop: vec![0; desktops],
            ..Peak::default()
        };
        Statistics {
            totals: Totals::default(),
            flushes: 0,
            desktops: vec![OfDesktop::default(); desktops],
            peaks: vec![peak; PEAKS.len()],
            rewritten: [0; 3],
            page_file_bytes: 0,
            placement: Default::default(),
            running: vec![Running::default(); desktops],
            pages: (0..desktops)
                .map(|_| (0..megabytes).map(|_| None).collect())
                .collect(),
            known: vec![[0; PAGE_BLOCKS / 64]; megabytes],
            requests: vec![0; megabytes],
            page_file,
        }
    }

    pub fn add(&mut self, record: &Record) {
        let write = match record.op {
            Op::Read => false,
            Op::Write => true,
            Op::Flush | Op::Discard => {
                self.flushes += u64::from(record.op == Op::Flush);
                return;
            }
        };
        let at = record.disk.0 as usize;
        let bytes = u64::from(record.sectors) * SECTOR_BYTES;
        self.totals.add(write, bytes);
        self.add_to_streams(record, write, bytes);
        let desktop = &mut self.desktops[at];
        if desktop.totals.requests() == 0 {
            desktop.first_ns = record.time_ns;
        }
        desktop.totals.add(write, bytes);
        desktop.last_ns = record.time_ns;
        let first = record.sector / BLOCK_SECTORS;
        let end = (record.sector + u64::from(record.sectors)).div_ceil(BLOCK_SECTORS);
        self.requests[first as usize / PAGE_BLOCKS] += 1;
        let seen = match write {
            true => {
                self.write(at, first..end, record.time_ns);
                if self.page_file.contains(&record.sector) {
                    self.page_file_bytes += bytes;
                }
                (false, false)
            }
            false => self.read(at, first..end),
        };
        self.add_to_peak(record, write, bytes, seen);
    }

    fn add_to_streams(&mut self, record: &Record, write: bool, bytes: u64) {
        let running = &mut self.running[record.disk.0 as usize];
        let large = usize::from(bytes > SMALL_BYTES);
        let placement = &mut self.placement[usize::from(write)][large];
        let end = record.sector + u64::from(record.sectors);
        placement.requests += 1;
        let follows = running.streams[usize::from(write)].add(record.sector, end);
        placement.sequential += u64::from(follows);
        if write {
            let window = record.time_ns / WINDOW_NS;
            if std::mem::replace(&mut running.window, window) != window {
                end_window(&mut running.written, &mut self.placement[1]);
            }
            running.written[large].push(record.sector..end);
        }
    }

    fn add_to_peak(&mut self, record: &Record, write: bool, bytes: u64, seen: (bool, bool)) {
        let time_ns = record.time_ns;
        for (peak, period) in self.peaks.iter_mut().zip(&PEAKS) {
            if !(period.from_ns..period.from_ns + period.duration_ns).contains(&time_ns) {
                continue;
            }
            peak.totals.add(write, bytes);
            peak.seen_by_desktop += u64::from(seen.0);
            peak.seen_by_cluster += u64::from(seen.1);
            peak.of_desktop[record.disk.0 as usize] += 1;
            let second = time_ns / SECOND_NS;
            if peak.of_second.second != second {
                peak.of_second = Second {
                    second,
                    ..Second::default()
                };
            }
            let now = &mut peak.of_second;
            now.requests += 1;
            now.passing += u64::from(write || !seen.0);
            peak.requests_per_second_max = peak.requests_per_second_max.max(now.requests);
            peak.passing_per_second_max = peak.passing_per_second_max.max(now.passing);
        }
    }

    fn page(&mut self, desktop: usize, block: u64) -> &mut Page {
        let page = &mut self.pages[desktop][block as usize / PAGE_BLOCKS];
        page.get_or_insert_with(|| {
            Box::new(Page {
                written: [0; PAGE_BLOCKS],
                seen: [0; PAGE_BLOCKS / 64],
            })
        })
    }

    fn write(&mut self, desktop: usize, blocks: Range<u64>, time_ns: u64) {
        let now_ms = time_ns / (SECOND_NS / 1000);
        let (mut new, mut rewritten) = (0, [0; 3]);
        for block in blocks {
            let page = self.page(desktop, block);
            let at = block as usize % PAGE_BLOCKS;
            let before = std::mem::replace(&mut page.written[at], now_ms as u32 + 1);
            set(&mut page.seen, at);
            if before == 0 {
                new += 1;
                continue;
            }
            for (count, interval) in rewritten.iter_mut().zip(INTERVALS_MS) {
                *count += u64::from(now_ms + 1 - u64::from(before) <= interval);
            }
        }
        for (sum, blocks) in self.rewritten.iter_mut().zip(rewritten) {
            *sum += blocks * BLOCK_BYTES;
        }
        let desktop = &mut self.desktops[desktop];
        desktop.diverged += new;
        if time_ns < DAY_S * SECOND_NS {
            desktop.diverged_in_a_day += new;
        }
    }

    /// Whether the desktop, and whether the cluster, had seen all of it before.
    fn read(&mut self, desktop: usize, blocks: Range<u64>) -> (bool, bool) {
        let mut all = (true, true);
        for block in blocks {
            let page = self.page(desktop, block);
            let at = block as usize % PAGE_BLOCKS;
            let own = set(&mut page.seen, at);
            // What the desktop has written is its own; all else is the image's, as on the others.
            let shared = page.written[at] == 0;
            let known = shared && set(&mut self.known[block as usize / PAGE_BLOCKS], at);
            all.0 &= own;
            all.1 &= own || known;
        }
        all
    }

    /// The peaks, with what can only be told at the end.
    pub fn finish(&mut self) {
        for running in &mut self.running {
            end_window(&mut running.written, &mut self.placement[1]);
        }
        let desktops = self.desktops.len() as f64;
        for peak in &mut self.peaks {
            let threshold = HEAVY * f64::from(DESKTOPS) / desktops;
            let requests = peak.totals.requests() as f64;
            let heavy = peak.of_desktop.iter();
            let heavy = heavy.filter(|of| **of as f64 >= threshold * requests && **of > 0);
            peak.heavy_desktops = heavy.count() as f64 / desktops;
        }
    }

    /// Shares of requests to the busiest 5 % of the space, the next 10 % and the rest: megabytes,
    /// all disks laid over each other.
    pub fn locality(&self) -> [f64; 3] {
        let mut requests = self.requests.clone();
        requests.sort_unstable_by(|a, b| b.cmp(a));
        let count = requests.len() as f64;
        let first = (count * SPACE[0]) as usize;
        let second = (count * (SPACE[0] + SPACE[1])) as usize;
        let sum = |part: &[u32]| part.iter().map(|count| u64::from(*count)).sum::<u64>();
        let all = self.totals.requests();
        [
            share(sum(&requests[..first]), all),
            share(sum(&requests[first..second]), all),
            share(sum(&requests[second..]), all),
        ]
    }
}
