//! The busiest periods: how busy, with how many writes, by whom, and what of their reads was seen
//! before (Capo, table 1 and figure 3).
//!
//! Owns the counts of each disk in short slots, and periods that somebody named. Always true: a
//! period that was named is exact; a peak begins and ends with a slot, a fifteenth of its length
//! each, or twice that and so on once a trace has more than [`CELLS_MAX`] counts; it is then as
//! long as whole slots make it, and says so. Peaks do not overlap, and are chosen by requests, the
//! busiest first, of equals the earlier.

use super::categories::{CATEGORIES_MAX, CategoryId};
use super::flow::Mix;

/// Slots of a peak.
const PARTS: u64 = 15;
/// Counts of a disk in a slot; each has 120 bytes.
const CELLS_MAX: usize = 1 << 20;

/// Of one disk, or of all, in a slot or a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub mix: Mix,
    pub seen: Seen,
}

/// Reads whose blocks were looked at, and how many of them had been asked for before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub requests: u64,
    pub bytes: u64,
    /// By the disk itself: requests with all of their blocks, and bytes.
    pub disk_requests: u64,
    pub disk_bytes: u64,
    /// By any disk with the same base.
    pub cluster_requests: u64,
    pub cluster_bytes: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        for (sum, more) in [
            (&mut self.requests, other.requests),
            (&mut self.bytes, other.bytes),
            (&mut self.disk_requests, other.disk_requests),
            (&mut self.disk_bytes, other.disk_bytes),
            (&mut self.cluster_requests, other.cluster_requests),
            (&mut self.cluster_bytes, other.cluster_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl Cell {
    fn add(&mut self, other: &Cell) {
        super::slots::Figures::join(&mut self.mix, other.mix);
        self.seen.add(&other.seen);
    }
}

/// A period by its beginning and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub start_ns: u64,
    /// The first moment that is no longer in it.
    pub end_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    pub period: Period,
    pub total: Cell,
    /// Each disk that asked for something, with its requests; the one with most first.
    pub disks: Vec<(u32, u64)>,
    /// Requests by category.
    pub categories: [u64; CATEGORIES_MAX],
}

impl Peak {
    /// Disks that made at least so many percent of the requests.
    pub fn disks_with(&self, percent: u64) -> usize {
        let all = self.total.mix.requests();
        let enough = |requests: u64| u128::from(requests) * 100 >= u128::from(all * percent);
        self.disks.iter().filter(|it| enough(it.1)).count()
    }
}

/// What was counted in one slot or period, by disk and by category.
#[derive(Clone, Debug, Default)]
struct Counts {
    disks: Vec<Cell>,
    categories: [u64; CATEGORIES_MAX],
}

impl Counts {
    fn add(&mut self, disk: u32, category: CategoryId, cell: &Cell) {
        if self.disks.len() <= disk as usize {
            self.disks.resize(disk as usize + 1, Cell::default());
        }
        self.disks[disk as usize].add(cell);
        self.categories[usize::from(category.0)] += cell.mix.requests();
    }

    fn peak(&self, period: Period) -> Peak {
        let mut total = Cell::default();
        let mut disks = Vec::new();
        for (disk, cell) in self.disks.iter().enumerate() {
            total.add(cell);
            if cell.mix.requests() > 0 {
                disks.push((disk as u32, cell.mix.requests()));
            }
        }
        disks.sort_by_key(|&(disk, requests)| (std::cmp::Reverse(requests), disk));
        Peak {
            period,
            total,
            disks,
            categories: self.categories,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Peaks {
    peak_ns: u64,
    slot_ns: u64,
    cells_max: usize,
    /// By slot and disk; slots only grow.
    cells: Vec<(u64, u32, Cell)>,
    categories: Vec<(u64, CategoryId, u64)>,
    now: u64,
    latest_ns: u64,
    current: Counts,
    /// Disks of the current slot.
    busy: Vec<u32>,
    named: Vec<(Period, Counts)>,
}

impl Peaks {
    pub fn new(peak_ns: u64, periods: &[Period]) -> Peaks {
        let slot_ns = (peak_ns / PARTS).max(1);
        Peaks {
            peak_ns,
            slot_ns,
            cells_max: CELLS_MAX,
            cells: Vec::new(),
            categories: Vec::new(),
            now: 0,
            latest_ns: 0,
            current: Counts::default(),
            busy: Vec::new(),
            named: periods.iter().map(|it| (*it, Counts::default())).collect(),
        }
    }

    /// A request, in the order of time.
    pub fn request(&mut self, time_ns: u64, disk: u32, category: CategoryId, cell: &Cell) {
        let slot = time_ns / self.slot_ns;
        assert!(slot >= self.now, "requests come in the order of time");
        if slot > self.now {
            self.end_slot();
            self.now = time_ns / self.slot_ns;
        }
        self.latest_ns = time_ns;
        let known = self.current.disks.get(disk as usize);
        if known.is_none_or(|it| it.mix.requests() == 0) {
            self.busy.push(disk);
        }
        self.current.add(disk, category, cell);
        for (period, counts) in &mut self.named {
            if period.start_ns <= time_ns && time_ns < period.end_ns {
                counts.add(disk, category, cell);
            }
        }
    }

    fn end_slot(&mut self) {
        self.busy.sort_unstable();
        for disk in self.busy.drain(..) {
            let cell = std::mem::take(&mut self.current.disks[disk as usize]);
            self.cells.push((self.now, disk, cell));
        }
        for (at, requests) in self.current.categories.iter_mut().enumerate() {
            if *requests > 0 {
                let category = CategoryId(at as u8);
                self.categories.push((self.now, category, *requests));
                *requests = 0;
            }
        }
        let spread = |cells: &[(u64, u32, Cell)]| match cells {
            [first, .., last] => first.0 < last.0,
            _ => false,
        };
        while self.cells.len() > self.cells_max && spread(&self.cells) {
            self.coarsen();
        }
    }

    /// Two slots become one.
    fn coarsen(&mut self) {
        self.slot_ns = self.slot_ns.saturating_mul(2);
        for cell in &mut self.cells {
            cell.0 /= 2;
        }
        self.cells.sort_by_key(|cell| (cell.0, cell.1));
        self.cells.dedup_by(|next, cell| {
            let same = (next.0, next.1) == (cell.0, cell.1);
            if same {
                cell.2.add(&next.2);
            }
            same
        });
        for entry in &mut self.categories {
            entry.0 /= 2;
        }
        self.categories.sort_by_key(|entry| (entry.0, entry.1));
        self.categories.dedup_by(|next, entry| {
            let same = (next.0, next.1) == (entry.0, entry.1);
            if same {
                entry.2 += next.2;
            }
            same
        });
    }

    /// The periods that were named.
    pub fn named(&self) -> Vec<Peak> {
        let named = self.named.iter();
        named.map(|(period, counts)| counts.peak(*period)).collect()
    }

    /// So many of the busiest periods.
    pub fn busiest(mut self, count: usize) -> Vec<Peak> {
        self.end_slot();
        let Some(last) = self.cells.last().map(|cell| cell.0) else {
            return Vec::new();
        };
        let width = self.peak_ns.div_ceil(self.slot_ns).max(1);
        let sums = self.sums();
        let mut taken: Vec<u64> = Vec::new();
        while taken.len() < count {
            let Some(start) = best(&sums, &taken, width, last) else {
                break;
            };
            taken.push(start);
        }
        taken
            .iter()
            .map(|start| self.window(*start, width))
            .collect()
    }

    /// Slots with the requests up to and with them.
    fn sums(&self) -> Vec<(u64, u64)> {
        let mut sums: Vec<(u64, u64)> = Vec::new();
        let mut sum = 0;
        for (slot, _, cell) in &self.cells {
            sum += cell.mix.requests();
            match sums.last_mut() {
                Some(last) if last.0 == *slot => last.1 = sum,
                _ => sums.push((*slot, sum)),
            }
        }
        sums
    }

    fn window(&self, start: u64, width: u64) -> Peak {
        let end = start + width;
        let mut counts = Counts::default();
        let first = self.cells.partition_point(|cell| cell.0 < start);
        for (_, disk, cell) in self.cells[first..].iter().take_while(|cell| cell.0 < end) {
            if counts.disks.len() <= *disk as usize {
                counts.disks.resize(*disk as usize + 1, Cell::default());
            }
            counts.disks[*disk as usize].add(cell);
        }
        let first = self.categories.partition_point(|entry| entry.0 < start);
        let entries = self.categories[first..].iter();
        for (_, category, requests) in entries.take_while(|entry| entry.0 < end) {
            counts.categories[usize::from(category.0)] += requests;
        }
        counts.peak(Period {
            start_ns: start * self.slot_ns,
            // The last slot ends with the trace.
            end_ns: end
                .saturating_mul(self.slot_ns)
                .min(self.latest_ns.saturating_add(1)),
        })
    }
}

/// The window with most requests that overlaps no other, and ends with the trace at the latest. It
/// begins where something happens, because otherwise a later one would have as much.
fn best(sums: &[(u64, u64)], taken: &[u64], width: u64, last: u64) -> Option<u64> {
    let latest = (last + 1).saturating_sub(width);
    let upto = |slot: u64| match sums.partition_point(|it| it.0 < slot) {
        0 => 0,
        at => sums[at - 1].1,
    };
    let starts = sums.iter().map(|it| it.0.min(latest));
    let free = starts.filter(|start| taken.iter().all(|it| it.abs_diff(*start) >= width));
    let busy = free.map(|start| (upto(start + width) - upto(start), std::cmp::Reverse(start)));
    let (requests, start) = busy.max()?;
    (requests > 0).then_some(start.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn one(write: bool) -> Cell {
        let mut cell = Cell::default();
        cell.mix.add(write, 4096);
        cell
    }

    fn peaks(cells_max: usize, requests: &[(u64, u32)]) -> Peaks {
        let period = Period {
            start_ns: 10 * S,
            end_ns: 20 * S,
        };
        let mut peaks = Peaks::new(15 * S, &[period]);
        peaks.cells_max = cells_max;
        for (second, disk) in requests {
            peaks.request(second * S, *disk, CategoryId(1), &one(*disk == 0));
        }
        peaks
    }

    #[test]
    fn the_busiest_periods_come_first_and_do_not_overlap() {
        let mut requests = Vec::new();
        for second in 0..300u64 {
            let many = match second {
                100..110 => 5,
                112..130 => 4,
                200..215 => 3,
                _ => 1,
            };
            for number in 0..many {
                requests.push((second, number % 3));
            }
        }
        let found = peaks(CELLS_MAX, &requests).busiest(3);
        let starts: Vec<u64> = found.iter().map(|it| it.period.start_ns / S).collect();
        assert_eq!(starts[0], 100);
        assert_eq!(found[0].total.mix.requests(), 50 + 2 + 12);
        assert_eq!(found[0].disks.len(), 3);
        assert_eq!(found[0].categories[1], 64);
        assert!(starts[1] == 115 && starts[2] == 200, "{starts:?}");
    }

    #[test]
    fn a_named_period_has_its_first_moment_and_not_its_last() {
        let named = peaks(CELLS_MAX, &[(9, 0), (10, 0), (19, 2), (20, 1)]).named();
        assert_eq!(named[0].total.mix.requests(), 2);
        assert_eq!(named[0].total.mix.writes, 1);
        assert_eq!(named[0].disks, [(0, 1), (2, 1)]);
        assert_eq!(named[0].disks_with(50), 2);
    }

    #[test]
    fn a_trace_shorter_than_a_peak_is_one_peak() {
        let found = peaks(CELLS_MAX, &[(0, 0), (3, 0)]).busiest(5);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].total.mix.requests(), 2);
        assert_eq!(found[0].period.end_ns, 3 * S + 1);
        assert!(peaks(CELLS_MAX, &[]).busiest(5).is_empty());
    }

    #[test]
    fn few_counts_make_coarser_slots_and_lose_no_request() {
        let requests: Vec<(u64, u32)> = (0..1000).flat_map(|at| [(at, 0), (at, 1)]).collect();
        let mut peaks = peaks(300, &requests);
        peaks.end_slot();
        assert!(peaks.cells.len() <= 300 && peaks.slot_ns == 8 * S);
        let all: u64 = peaks.cells.iter().map(|it| it.2.mix.requests()).sum();
        assert_eq!(all, 2000);
        let all: u64 = peaks.categories.iter().map(|it| it.2).sum();
        assert_eq!(all, 2000);
    }
}
