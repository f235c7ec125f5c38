//! How much destage a storage takes beside the reads of guests.
//!
//! ```text
//!            the fastest read of an interval came late
//!   window ─────────────────────────────────────────────▶ a quarter less
//!          ─────────────────────────────────────────────▶ an eighth more
//!            it came in time, and somebody was held up
//! ```
//!
//! A read waits behind all that its storage has taken before it, whoever it is from. So the
//! destages of all volumes on one storage share a *window* while guests read there: what they may
//! have in flight together. A queue that stands shows in the fastest read of an interval: chance
//! and a busy disk make some reads slow, a queue makes all of them slow. What a fast read takes
//! without a queue is looked for now and then with next to nothing in flight, or a queue that
//! always stands would be taken for the storage.
//!
//! Always true: a volume that is held up here has somebody's requests before it, or is asked again
//! at the next housekeeping; a volume whose requests hang for [`PATIENCE_NS`] takes no room of the
//! others; where no guest reads, and where the dirty data is near its limit, nobody is held up.
//! Deliberately absent: which of those held up is next
//! ([`RoundRobin`](crate::round_robin::RoundRobin)), and what one volume may have in flight by
//! itself.
//!
//! A share of the queue depth for each storage was tried on paper first: it is too much for a
//! storage that takes requests one after the other, and too little for one that is far away.

use crate::round_robin::PATIENCE_NS;
use crate::types::{Time, VolumeId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Guests read from a storage until so long after the last read was asked.
pub const READS_LINGER_NS: u64 = 50_000_000;
/// In pieces of the destager's memory: a request of the largest kind, for who is next.
const WINDOW_MIN: u32 = 4;
const WINDOW_FIRST: u32 = 32;
const WINDOW_MAX: u32 = 4096;
/// Steps of the window, each with so many reads to judge by.
const INTERVAL_NS: u64 = 100_000_000;
const SAMPLES_MIN: u32 = 8;
/// A read of a fast storage is late by no less.
const LATE_NS_MIN: u64 = 1_000_000;
/// What a read takes without a queue is believed for one of these or two, then looked for again.
const PERIOD_NS: u64 = 10_000_000_000;
const PROBE_NS: u64 = 200_000_000;
/// Volumes that are full are not held up, so it may never drain.
const DRAIN_NS_MAX: u64 = 1_000_000_000;
/// A storage without destage and reads is forgotten.
const FORGOTTEN_NS: u64 = 600_000_000_000;
/// Thousandths of the room for dirty data: from here on the window widens, up to four times, and
/// from there on it is open.
const FILL_EASY: u64 = 500;
const FILL_OPEN: u64 = 900;

const _: () = assert!(WINDOW_MIN <= WINDOW_FIRST && WINDOW_FIRST <= WINDOW_MAX);
const _: () = assert!(FILL_EASY < FILL_OPEN && FILL_OPEN <= 1000);
const _: () = assert!(LATE_NS_MIN < INTERVAL_NS && INTERVAL_NS < PERIOD_NS);

struct Storage {
    window: u32,
    /// Of all volumes whose requests do not hang.
    in_flight: u32,
    read_at: Option<Time>,
    used: Time,
    began: Time,
    /// The fastest read of this interval, and how many there were.
    fastest_ns: u64,
    samples: u32,
    /// Somebody was held up in this interval, or in this period.
    held: bool,
    held_in_period: bool,
    /// The fastest reads of this period and the one before.
    least_ns: [u64; 2],
    period_began: Time,
    probe: Probe,
}

/// Whether what a read takes without a queue is being looked for.
#[derive(Clone, Copy)]
enum Probe {
    No,
    /// What is in flight has to end first, until then at the latest.
    Drains(Time),
    Until(Time),
}

#[derive(Clone, Copy, Default)]
struct Member {
    storage: u64,
    in_flight: u32,
    moved: Time,
    /// Its requests hang, and are not counted with the others.
    aside: bool,
}

/// Members are volumes, by their index.
#[derive(Default)]
pub struct Windows {
    storages: BTreeMap<u64, Storage>,
    members: Vec<Member>,
}

impl Probe {
    fn begin(now: Time) -> Probe {
        Probe::Drains(Time(now.0 + DRAIN_NS_MAX))
    }
}

impl Storage {
    fn new(now: Time) -> Storage {
        Storage {
            window: WINDOW_FIRST,
            in_flight: 0,
            read_at: None,
            used: now,
            began: now,
            fastest_ns: u64::MAX,
            samples: 0,
            held: false,
            held_in_period: false,
            least_ns: [u64::MAX; 2],
            period_began: now,
            probe: Probe::begin(now),
        }
    }

    fn is_read(&self, now: Time) -> bool {
        self.read_at
            .is_some_and(|at| now.since(at) <= READS_LINGER_NS)
    }

    fn limit(&self, now: Time, fill: u64) -> u32 {
        if fill >= FILL_OPEN {
            return u32::MAX;
        }
        if self.is_probing(now) {
            return WINDOW_MIN;
        }
        let wider = 3 * fill.saturating_sub(FILL_EASY) * u64::from(self.window);
        self.window + (wider / (FILL_OPEN - FILL_EASY)) as u32
    }

    fn is_probing(&self, now: Time) -> bool {
        match self.probe {
            Probe::No => false,
            Probe::Drains(_) => true,
            Probe::Until(end) => now < end,
        }
    }

    fn begin_interval(&mut self, now: Time) {
        (self.began, self.fastest_ns, self.samples) = (now, u64::MAX, 0);
    }

    /// A read has ended after so long.
    fn sample(&mut self, now: Time, latency_ns: u64) {
        match self.probe {
            Probe::Drains(end) if self.in_flight <= WINDOW_MIN || now >= end => {
                self.probe = Probe::Until(Time(now.0 + PROBE_NS));
            }
            Probe::Until(end) if now >= end => {
                // What was seen until now says nothing of the window.
                self.probe = Probe::No;
                self.begin_interval(now);
            }
            _ => {}
        }
        self.samples += 1;
        self.fastest_ns = self.fastest_ns.min(latency_ns);
        self.least_ns[0] = self.least_ns[0].min(latency_ns);
        assert!(
            self.least_ns[0] <= self.fastest_ns,
            "an interval lies in its period"
        );
        if now.since(self.began) < INTERVAL_NS || self.samples < SAMPLES_MIN {
            return;
        }
        if !self.is_probing(now) {
            self.steer();
        }
        self.begin_interval(now);
        self.held_in_period |= core::mem::take(&mut self.held);
        if now.since(self.period_began) >= PERIOD_NS {
            self.period_began = now;
            self.least_ns = [u64::MAX, self.least_ns[0]];
            if core::mem::take(&mut self.held_in_period) {
                self.probe = Probe::begin(now);
            }
        }
    }

    fn steer(&mut self) {
        let least_ns = self.least_ns[0].min(self.least_ns[1]);
        let late_ns = least_ns.saturating_add((least_ns / 2).max(LATE_NS_MIN));
        let window = self.window;
        if self.fastest_ns > late_ns {
            self.window = (window - window / 4).max(WINDOW_MIN);
        } else if self.held {
            self.window = (window + (window / 8).max(1)).min(WINDOW_MAX);
        }
        assert!((WINDOW_MIN..=WINDOW_MAX).contains(&self.window));
    }
}

impl Windows {
    /// A guest's read goes to a storage.
    pub fn read_sent(&mut self, now: Time, storage: u64) {
        let storage = self.storage(now, storage);
        if !storage.is_read(now) {
            // What was seen before a pause says nothing of now.
            storage.begin_interval(now);
        }
        storage.read_at = Some(now);
    }

    /// It was answered.
    pub fn read_done(&mut self, now: Time, storage: u64, latency_ns: u64) {
        self.storage(now, storage).sample(now, latency_ns);
    }

    /// Whether a volume may have more in flight; `fill` says how much of its room is dirty, in
    /// thousandths.
    pub fn is_open(&mut self, now: Time, storage: u64, fill: u64) -> bool {
        let storage = self.storage(now, storage);
        if !storage.is_read(now) {
            return true;
        }
        let open = storage.in_flight < storage.limit(now, fill);
        storage.held |= !open;
        open
    }

    /// A request of a volume goes to its storage.
    pub fn sent(&mut self, now: Time, id: VolumeId, storage: u64, width: u32) {
        assert!(width > 0, "a request takes room");
        let at = id.0 as usize;
        if self.members.len() <= at {
            self.members.resize(at + 1, Member::default());
        }
        let member = &mut self.members[at];
        if member.in_flight == 0 {
            *member = Member {
                storage,
                in_flight: 0,
                moved: now,
                aside: false,
            };
        }
        member.in_flight += width;
        let Member { storage, aside, .. } = *member;
        let counted = if aside { 0 } else { width };
        self.storage(now, storage).in_flight += counted;
    }

    /// It has ended.
    pub fn done(&mut self, now: Time, id: VolumeId, width: u32) {
        let member = &mut self.members[id.0 as usize];
        let before = if member.aside { 0 } else { member.in_flight };
        assert!(member.in_flight >= width, "only what was sent ends");
        member.in_flight -= width;
        (member.moved, member.aside) = (now, false);
        let Member {
            storage, in_flight, ..
        } = *member;
        let storage = self.storage(now, storage);
        assert!(
            storage.in_flight >= before,
            "a storage counts what its members have in flight"
        );
        storage.in_flight = storage.in_flight - before + in_flight;
    }

    /// Sets aside what hangs. Called now and then.
    pub fn look(&mut self, now: Time) {
        for member in &mut self.members {
            let hangs = member.in_flight > 0 && now.since(member.moved) >= PATIENCE_NS;
            if hangs && !member.aside {
                member.aside = true;
                let storage = self.storages.get_mut(&member.storage);
                let storage = storage.expect("it is in use");
                assert!(
                    storage.in_flight >= member.in_flight,
                    "a storage counts what its members have in flight"
                );
                storage.in_flight -= member.in_flight;
            }
        }
        let members = &self.members;
        let is_used = |key: u64| {
            members
                .iter()
                .any(|it| it.in_flight > 0 && it.storage == key)
        };
        self.storages
            .retain(|key, it| now.since(it.used) < FORGOTTEN_NS || is_used(*key));
    }

    fn storage(&mut self, now: Time, key: u64) -> &mut Storage {
        let storage = self
            .storages
            .entry(key)
            .or_insert_with(|| Storage::new(now));
        storage.used = now;
        storage
    }
}
