//! How large requests are, and whether they go on where others ended.
//!
//! Always true: sizes up to 1 MiB are counted each by itself, larger ones by powers of two. A
//! request is sequential when it begins where the one before it on its disk ended, and part of a
//! stream when it begins where one of the last 32 streams of its disk and direction ended.

use crate::trace::SECTOR_BYTES;

/// Sizes below are counted each by itself.
const EXACT_SECTORS: usize = 2049;
const STREAMS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// By sectors.
    exact: Vec<u64>,
    /// Larger ones, by the power of two that they reach.
    larger: [u64; 33],
    requests: u64,
    bytes: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            exact: vec![0; EXACT_SECTORS],
            larger: [0; 33],
            requests: 0,
            bytes: 0,
        }
    }
}

/// Requests of more than `above` and up to `up_to` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    pub above: u64,
    pub up_to: u64,
    pub requests: u64,
}

impl Sizes {
    pub fn add(&mut self, sectors: u32) {
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(u64::from(sectors) * SECTOR_BYTES);
        match self.exact.get_mut(sectors as usize) {
            Some(count) => *count += 1,
            None => self.larger[(u64::from(sectors) - 1).ilog2() as usize + 1] += 1,
        }
    }

    pub fn mean_bytes(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.bytes as f64 / self.requests as f64)
    }

    /// The most frequent sizes in bytes with their counts; the smaller of equals first.
    pub fn modes(&self, count: usize) -> Vec<(u64, u64)> {
        let sizes = self.exact.iter().enumerate().filter(|it| *it.1 > 0);
        let mut sizes: Vec<(u64, u64)> = sizes
            .map(|(sectors, count)| (sectors as u64 * SECTOR_BYTES, *count))
            .collect();
        sizes.sort_by_key(|&(size, count)| (std::cmp::Reverse(count), size));
        sizes.truncate(count);
        sizes
    }

    /// By powers of two, from 512 bytes on, without the empty ones at the end.
    pub fn histogram(&self) -> Vec<Bar> {
        let mut bars: Vec<Bar> = (0..33u32)
            .map(|power| Bar {
                above: if power == 0 {
                    0
                } else {
                    SECTOR_BYTES << (power - 1)
                },
                up_to: SECTOR_BYTES << power,
                requests: self.larger[power as usize],
            })
            .collect();
        for (sectors, count) in self.exact.iter().enumerate().skip(1) {
            let power = match sectors {
                1 => 0,
                _ => (sectors - 1).ilog2() as usize + 1,
            };
            bars[power].requests += count;
        }
        while bars.last().is_some_and(|bar| bar.requests == 0) {
            bars.pop();
        }
        bars
    }
}

/// Where the last streams of one disk and direction ended.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    ends: [u64; STREAMS],
    next: usize,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            ends: [u64::MAX; STREAMS],
            next: 0,
        }
    }
}

impl Streams {
    /// Whether a request begins where one of them ended; it is part of one from now on.
    pub(crate) fn add(&mut self, begin: u64, end: u64) -> bool {
        if let Some(stream) = self.ends.iter_mut().find(|it| **it == begin) {
            *stream = end;
            return true;
        }
        // The oldest beginning makes room.
        self.ends[self.next] = end;
        self.next = (self.next + 1) % STREAMS;
        false
    }
}

/// Where the requests of one disk ended.
#[derive(Clone, Debug)]
struct Ends {
    last: u64,
    /// Of reads, of writes.
    streams: [Streams; 2],
}

#[derive(Clone, Debug, Default)]
pub struct Sequentiality {
    disks: Vec<Option<Box<Ends>>>,
    pub requests: u64,
    pub sequential: u64,
    pub in_streams: u64,
}

impl Sequentiality {
    pub fn add(&mut self, disk: u32, write: bool, sector: u64, sectors: u32) {
        let disk = disk as usize;
        if self.disks.len() <= disk {
            self.disks.resize(disk + 1, None);
        }
        let ends = self.disks[disk].get_or_insert_with(|| {
            Box::new(Ends {
                last: u64::MAX,
                streams: Default::default(),
            })
        });
        let end = sector.saturating_add(sectors.into());
        self.requests += 1;
        self.sequential += u64::from(ends.last == sector);
        ends.last = end;
        let streams = &mut ends.streams[usize::from(write)];
        self.in_streams += u64::from(streams.add(sector, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_counts_in_the_bar_that_it_just_fills() {
        let mut sizes = Sizes::default();
        for sectors in [1, 8, 8, 9, 16, 2048, 4096, 5000] {
            sizes.add(sectors);
        }
        let bars = sizes.histogram();
        let of = |up_to: u64| bars.iter().find(|bar| bar.up_to == up_to);
        assert_eq!(of(512).map(|bar| bar.requests), Some(1));
        assert_eq!(of(4096).map(|bar| bar.requests), Some(2));
        assert_eq!(of(8192).map(|bar| bar.requests), Some(2));
        assert_eq!(of(1 << 20).map(|bar| bar.requests), Some(1));
        assert_eq!(of(2 << 20).map(|bar| bar.requests), Some(1));
        assert_eq!(of(4 << 20).map(|bar| bar.requests), Some(1));
        assert_eq!(bars.iter().map(|bar| bar.requests).sum::<u64>(), 8);
        assert_eq!(sizes.modes(1), [(4096, 2)]);
        sizes.add(u32::MAX);
        assert_eq!(sizes.histogram().last().map(|bar| bar.requests), Some(1));
    }

    #[test]
    fn two_streams_that_take_turns_are_streams_and_not_sequential() {
        let mut found = Sequentiality::default();
        for step in 0..10 {
            found.add(0, false, step * 8, 8);
            found.add(0, false, 100_000 + step * 8, 8);
            found.add(1, true, step * 8, 8);
        }
        assert_eq!((found.requests, found.sequential), (30, 9));
        assert_eq!(found.in_streams, 27);
    }
}
