//! The window of a storage against models of storages: guests read at a steady rate, many volumes
//! destage as much as they may.
//!
//! Always checked: reads do not wait behind a queue of the destages for long; what the storage
//! could do besides is done, whether it takes requests one after the other or is far away.

use engine::types::{Time, VolumeId};
use engine::window::Windows;
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

#[derive(Clone, Copy)]
enum What {
    Read,
    Destage(VolumeId),
}

/// A storage that answers after `base_ns`, and takes one request each `service_ns`.
struct Model {
    windows: Windows,
    now: u64,
    base_ns: u64,
    service_ns: u64,
    free_at: u64,
    /// One read in so many is answered by a memory of the storage.
    cached: u64,
    reads_ns: u64,
    next_read: u64,
    reads: u64,
    volumes: u32,
    depth: u32,
    fill: u64,
    in_flight: Vec<u32>,
    hangs: u32,
    ends: BTreeMap<(u64, u64), (What, u64)>,
    sent: u64,
    latencies: Vec<u64>,
    destaged: u64,
    most: u32,
}

impl Model {
    fn new(base_ns: u64, service_ns: u64, reads_ns: u64, volumes: u32) -> Model {
        Model {
            windows: Windows::default(),
            now: SECOND,
            base_ns,
            service_ns,
            free_at: 0,
            cached: u64::MAX,
            reads_ns,
            next_read: SECOND,
            reads: 0,
            volumes,
            depth: 8,
            fill: 0,
            in_flight: vec![0; volumes as usize],
            hangs: 0,
            ends: BTreeMap::new(),
            sent: 0,
            latencies: Vec::new(),
            destaged: 0,
            most: 0,
        }
    }

    fn send(&mut self, what: What, base_ns: u64) {
        self.free_at = self.free_at.max(self.now) + self.service_ns;
        self.sent += 1;
        let end = self.free_at + base_ns;
        self.ends.insert((end, self.sent), (what, self.now));
    }

    fn destage(&mut self) {
        for _ in 0..self.volumes {
            let mut sent = false;
            for number in 0..self.volumes {
                let id = VolumeId(number);
                let mine = self.in_flight[number as usize];
                let now = Time(self.now);
                if mine >= self.depth || !self.windows.is_open(now, 1, self.fill) {
                    continue;
                }
                self.windows.sent(now, id, 1, 1);
                self.in_flight[number as usize] += 1;
                if number >= self.hangs {
                    self.send(What::Destage(id), self.base_ns);
                }
                sent = true;
            }
            if !sent {
                break;
            }
        }
        let all: u32 = self.in_flight[self.hangs as usize..].iter().sum();
        self.most = self.most.max(all);
    }

    fn end(&mut self, what: What, since: u64) {
        let now = Time(self.now);
        match what {
            What::Read => {
                self.windows.read_done(now, 1, self.now - since);
                self.latencies.push(self.now - since);
            }
            What::Destage(id) => {
                self.windows.done(now, id, 1);
                self.in_flight[id.0 as usize] -= 1;
                self.destaged += 1;
            }
        }
    }

    fn read(&mut self) {
        self.windows.read_sent(Time(self.now), 1);
        self.reads += 1;
        // Not in step with anything.
        self.next_read += self.reads_ns / 2 + self.reads * 7_919 % self.reads_ns;
        match self.reads.is_multiple_of(self.cached) {
            true => {
                let end = self.now + self.base_ns / 20;
                self.ends.insert((end, self.reads), (What::Read, self.now));
            }
            false => self.send(What::Read, self.base_ns),
        }
    }

    /// Runs, and forgets what was counted before.
    fn run(&mut self, seconds: u64) {
        (self.destaged, self.most) = (0, 0);
        self.latencies.clear();
        let end = self.now + seconds * SECOND;
        let mut looked = self.now;
        while self.now < end {
            self.destage();
            let next = self.ends.keys().next().map_or(u64::MAX, |key| key.0);
            self.now = next.min(self.next_read).min(looked + 100 * MS);
            if self.now == self.next_read {
                self.read();
            } else if self.now == next {
                let (_, (what, since)) = self.ends.pop_first().expect("just seen");
                self.end(what, since);
            } else {
                looked = self.now;
                self.windows.look(Time(self.now));
            }
        }
    }

    fn percentile_ms(&mut self, percent: usize) -> u64 {
        self.latencies.sort_unstable();
        self.latencies[self.latencies.len() * percent / 100] / MS
    }
}

/// 2,000 requests a second and 5 ms; guests take a quarter of it.
fn san(volumes: u32) -> Model {
    Model::new(5 * MS, MS / 2, 2 * MS, volumes)
}

#[test]
fn reads_do_not_wait_behind_the_destages_of_many_volumes() {
    for volumes in [1, 20, 300] {
        let mut model = san(volumes);
        model.run(10);
        model.run(120);
        let (median, late) = (model.percentile_ms(50), model.percentile_ms(95));
        assert!(median <= 8 && late <= 12, "{volumes}: {median}, {late} ms");
        let rate = model.destaged / 120;
        assert!(rate >= 1_350, "{volumes}: of 1,500 left, {rate} are used");
    }
}

#[test]
fn a_storage_that_is_far_away_is_filled() {
    let mut model = Model::new(50 * MS, 1, 2 * MS, 100);
    model.run(10);
    model.run(60);
    let rate = model.destaged / 60;
    assert!(rate >= 14_000, "of 16,000 that 800 in flight make, {rate}");
    assert!(model.percentile_ms(95) <= 50);
}

#[test]
fn a_storage_whose_memory_answers_some_reads_is_not_taken_for_a_full_one() {
    let mut model = Model::new(5 * MS, MS / 10, 2 * MS, 100);
    model.cached = 10;
    model.run(10);
    model.run(60);
    let rate = model.destaged / 60;
    assert!(rate >= 8_500, "of 9,500 left, {rate} are used");
}

#[test]
fn who_hangs_takes_no_room_of_the_others() {
    let mut model = san(50);
    model.hangs = 20;
    model.run(10);
    model.run(60);
    let rate = model.destaged / 60;
    assert!(rate >= 1_350, "of 1,500 left, {rate} are used");
    assert!(model.percentile_ms(95) <= 12);
}

#[test]
fn the_fuller_the_cache_the_more_is_destaged_and_at_its_limit_all_of_it() {
    let most = [0, 700, 899, 900].map(|fill| {
        let mut model = san(100);
        model.run(10);
        model.fill = fill;
        model.run(1);
        model.most
    });
    assert!(most[0] < 30, "{most:?}");
    assert!(most.is_sorted_by(|less, more| less < more), "{most:?}");
    assert_eq!(most[3], 800);
}

#[test]
fn where_no_guest_reads_nobody_is_held_up() {
    let mut model = san(100);
    model.run(10);
    model.next_read = u64::MAX;
    model.run(1);
    assert_eq!(model.most, 800);
}
