//! The controller of flow control against a simulated volume, guest and origin.
//!
//! A guest keeps so many writes of 8 KiB in flight, the destager so many requests; room comes
//! back an epoch at a time, as in the engine. Always checked, at every write: a delay is one to
//! four times the average latency until the volume is nine tenths full, never above a second, and
//! a quarter larger than the one before at most.

use engine::flow::{DELAY_NS_MAX, Flow, FlowLimits, Gauges};
use engine::types::Time;
use std::collections::VecDeque;

const TICK_NS: u64 = 50_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const WRITE_BLOCKS: u64 = 2;
const HOUSEKEEPING_NS: u64 = 100 * MS;
const DEPTH: usize = 32;
/// The largest latency that delays are made of.
const UNIT_NS_MAX: u64 = DELAY_NS_MAX / 4;

/// One volume with its guest and its origin.
struct Model {
    flow: Flow,
    limits: FlowLimits,
    now: u64,
    room: u64,
    /// Blocks of each epoch, the open one last.
    epochs: VecDeque<u64>,
    destaging: bool,
    /// Requests of the epoch under way that are not issued yet, and those that are: start, end.
    todo: u64,
    flying: VecDeque<(u64, u64)>,
    moved_halves: u64,
    job_blocks: u64,
    latency_ns: u64,
    spacing_ns: u64,
    next_start: u64,
    hangs_until: u64,
    /// Writes in flight at most, and pause of each slot between two.
    guest_depth: usize,
    pause_ns: u64,
    slots: VecDeque<u64>,
    waiting: VecDeque<(u64, Time)>,
    delay_before: u64,
    admitted: u64,
    longest_wait: u64,
    fullest: u64,
    held: u64,
}

impl Model {
    fn new(room: u64, latency_ns: u64, iops: u64) -> Model {
        Model {
            flow: Flow::default(),
            limits: FlowLimits::default(),
            now: SECOND,
            room,
            epochs: VecDeque::new(),
            destaging: false,
            todo: 0,
            flying: VecDeque::new(),
            moved_halves: 0,
            job_blocks: WRITE_BLOCKS,
            latency_ns,
            spacing_ns: SECOND / iops,
            next_start: 0,
            hangs_until: 0,
            guest_depth: 0,
            pause_ns: 0,
            slots: VecDeque::new(),
            waiting: VecDeque::new(),
            delay_before: 0,
            admitted: 0,
            longest_wait: 0,
            fullest: 0,
            held: 0,
        }
    }

    fn dirty(&self) -> u64 {
        self.epochs.iter().sum()
    }

    fn fill(&self) -> u64 {
        self.dirty() * 1000 / self.room
    }

    fn gauges(&self, arriving: u64) -> Gauges {
        let batch = self.epochs.front().copied().unwrap_or(0);
        Gauges {
            dirty_blocks: self.dirty(),
            room_blocks: self.room,
            peers_limit: false,
            dirty_writes: self.dirty() / WRITE_BLOCKS,
            dirty_extents: self.dirty() / WRITE_BLOCKS,
            extents_room: 10_000_000,
            batch_left_blocks: batch.saturating_sub(self.moved_halves / 2),
            held_blocks: self.waiting.len() as u64 * WRITE_BLOCKS + arriving,
            queue_depth: DEPTH as u64,
        }
    }

    fn look(&mut self, arriving: u64) {
        let gauges = self.gauges(arriving);
        self.flow.look(Time(self.now), &self.limits, &gauges);
        self.check();
    }

    /// A guest with `depth` writes in flight, each slot resting so long between two.
    fn guest(&mut self, depth: usize, pause_ns: u64) {
        self.guest_depth = depth;
        self.pause_ns = pause_ns;
        self.slots = vec![self.now; depth.saturating_sub(self.waiting.len())].into();
    }

    fn run(&mut self, duration_ns: u64) {
        let end = self.now + duration_ns;
        while self.now < end {
            self.now += TICK_NS;
            if self.now.is_multiple_of(HOUSEKEEPING_NS) {
                let oldest = self.flying.iter().map(|(started, _)| Time(*started)).min();
                self.flow.outstanding(oldest);
                self.look(0);
            }
            self.run_origin();
            self.run_destager();
            self.run_guest();
        }
    }

    fn run_origin(&mut self) {
        if self.now < self.hangs_until {
            return;
        }
        let now = self.now;
        let flying = std::mem::take(&mut self.flying).into_iter();
        let (done, flying): (Vec<_>, _) = flying.partition(|(_, end)| *end <= now);
        self.flying = VecDeque::from(flying);
        for (started, _) in done {
            self.flow
                .origin_done(Time(started), Time(now), self.job_blocks);
            self.flow.moved(self.job_blocks);
            self.moved_halves += self.job_blocks;
        }
    }

    /// Each write goes to the journal and to the origin, a request each.
    fn run_destager(&mut self) {
        if !self.destaging && self.flow.is_pressing() && self.dirty() > 0 {
            self.destaging = true;
            self.moved_halves = 0;
            self.todo = self.epochs[0].div_ceil(self.job_blocks) * 2;
            self.epochs.push_back(0);
        }
        while self.todo > 0 && self.flying.len() < DEPTH {
            let start = self.now.max(self.next_start);
            self.next_start = start + self.spacing_ns;
            let end = start.max(self.hangs_until) + self.latency_ns;
            self.flying.push_back((self.now, end));
            self.todo -= 1;
        }
        if self.destaging && self.todo == 0 && self.flying.is_empty() {
            self.destaging = false;
            self.epochs.pop_front();
            self.look(0);
        }
    }

    fn run_guest(&mut self) {
        while self.waiting.len() < self.guest_depth
            && self.slots.front().is_some_and(|at| *at <= self.now)
        {
            self.slots.pop_front();
            if self.flow.arrives(Time(self.now), WRITE_BLOCKS) {
                self.look(WRITE_BLOCKS);
            }
            let due = self.flow.due(Time(self.now), WRITE_BLOCKS);
            self.held += u64::from(due > Time(self.now));
            self.waiting.push_back((self.now, due));
        }
        while let Some(&(arrived, due)) = self.waiting.front() {
            if due.max(self.flow.not_before()) > Time(self.now) {
                break;
            }
            if self.dirty() + WRITE_BLOCKS > self.room {
                self.flow.hit_hard_limit();
                break;
            }
            self.waiting.pop_front();
            self.flow.admitted(Time(self.now), WRITE_BLOCKS);
            let open = self.epochs.back().copied();
            if open.is_none_or(|blocks| blocks >= self.flow.epoch_blocks())
                || (self.destaging && self.epochs.len() == 1)
            {
                self.epochs.push_back(0);
            }
            *self.epochs.back_mut().expect("just pushed") += WRITE_BLOCKS;
            self.admitted += 1;
            self.longest_wait = self.longest_wait.max(self.now - arrived);
            self.fullest = self.fullest.max(self.fill());
            self.slots.push_back(self.now + TICK_NS + self.pause_ns);
        }
    }

    fn check(&mut self) {
        let (delay, unit) = (self.flow.delay_ns(), self.flow.latency_ns());
        let before = std::mem::replace(&mut self.delay_before, delay);
        if delay == 0 {
            return;
        }
        assert!(delay <= DELAY_NS_MAX);
        let unit = unit.min(UNIT_NS_MAX);
        assert!(delay >= unit, "{delay} ns is less than the latency {unit}");
        if self.fill() < 900 {
            assert!(delay <= 4 * unit, "{delay} ns at {unit} ns of latency");
        }
        let most = if before == 0 { unit } else { before / 4 * 5 };
        assert!(
            delay <= most + 1000,
            "a jump from {before} to {delay} ns at {} ms",
            self.now / MS
        );
    }

    /// Writes per second over the next while.
    fn rate(&mut self, duration_ns: u64) -> u64 {
        let before = self.admitted;
        self.run(duration_ns);
        (self.admitted - before) * SECOND / duration_ns
    }
}

/// 1 GiB for dirty data, 5 ms and 4,000 requests per second: 2,000 writes, each twice.
fn usual() -> Model {
    Model::new(262_144, 5 * MS, 4_000)
}

#[test]
fn a_burst_that_fits_is_never_slowed() {
    let mut model = usual();
    model.guest(32, 0);
    while model.fill() < 700 {
        model.run(MS);
    }
    model.guest(0, 0);
    model.run(60 * SECOND);
    assert_eq!(model.held, 0);
    assert!(!model.flow.is_active());
    assert!(model.longest_wait <= TICK_NS);
    assert!(model.fill() < 300, "the destager was called");
}

#[test]
fn under_sustained_overload_guests_write_as_fast_as_the_origin_takes() {
    for depth in [1, 8, 32, 128] {
        let mut model = usual();
        model.guest(depth, 0);
        while !model.flow.is_active() {
            model.run(MS);
        }
        // The first epoch is as large as half of the room, and all of it comes back at once.
        model.run(60 * SECOND);
        assert!(model.longest_wait < SECOND);
        model.fullest = 0;
        let rate = model.rate(60 * SECOND);
        println!(
            "depth {depth}: {rate} writes/s, delay {} us, latency {} us, fill {}, fullest {}, \
             longest wait {} ms",
            model.flow.delay_ns() / 1000,
            model.flow.latency_ns() / 1000,
            model.fill(),
            model.fullest,
            model.longest_wait / MS
        );
        // A single writer waits for the latency each time, as it would at the origin.
        if depth > 1 {
            assert!((1_700..2_300).contains(&rate), "{rate} writes/s at {depth}");
            assert!(model.flow.is_active());
        }
        assert!(model.longest_wait < SECOND);
        assert!(model.fullest < 1000, "the wall was not reached");
    }
}

#[test]
fn large_requests_of_the_destager_do_not_make_small_writes_wait_as_long() {
    // The same bytes per second, in requests of 32 writes: each waits for 31 others.
    let mut model = Model::new(262_144, MS, 125);
    model.job_blocks = 32 * WRITE_BLOCKS;
    model.guest(32, 0);
    while !model.flow.is_active() {
        model.run(MS);
    }
    model.run(60 * SECOND);
    let rate = model.rate(60 * SECOND);
    let (delay, latency) = (model.flow.delay_ns(), model.flow.latency_ns());
    assert!((1_700..2_300).contains(&rate), "{rate} writes/s");
    assert!(delay < 100 * MS && latency < 50 * MS);
}

#[test]
fn an_origin_that_becomes_ten_times_slower_slows_the_guests_smoothly() {
    let mut model = usual();
    model.guest(32, 0);
    while !model.flow.is_active() {
        model.run(MS);
    }
    model.run(60 * SECOND);
    let (latency, delay) = (model.flow.latency_ns(), model.flow.delay_ns());
    model.latency_ns *= 10;
    model.spacing_ns *= 10;
    model.run(90 * SECOND);
    assert!(model.flow.latency_ns() > 5 * latency);
    assert!(model.flow.delay_ns() > 5 * delay);
    model.run(300 * SECOND);
    let rate = model.rate(150 * SECOND);
    assert!((100..260).contains(&rate), "{rate} writes/s");
    assert!(
        model.longest_wait < SECOND,
        "{} ms",
        model.longest_wait / MS
    );
}

#[test]
fn an_origin_that_hangs_is_seen_and_forgotten_when_it_is_back() {
    let mut model = usual();
    model.guest(32, 0);
    while !model.flow.is_active() {
        model.run(MS);
    }
    model.run(20 * SECOND);
    let before = model.flow.latency_ns();
    model.hangs_until = model.now + 30 * SECOND;
    for flight in &mut model.flying {
        flight.1 = flight.1.max(model.hangs_until);
    }
    model.run(SECOND / 2);
    assert!(
        model.flow.latency_ns() > 4 * before,
        "its age counts before it ends"
    );
    model.run(31 * SECOND);
    model.run(20 * SECOND);
    let rate = model.rate(20 * SECOND);
    assert!((1_500..2_500).contains(&rate), "{rate} writes/s");
    model.longest_wait = 0;
    model.run(20 * SECOND);
    assert!(model.longest_wait < SECOND);
}

#[test]
fn guests_are_released_before_the_next_burst() {
    let mut model = usual();
    for round in 0..3 {
        model.guest(32, 4 * MS);
        model.run(2 * SECOND);
        assert!(
            !model.flow.is_active(),
            "round {round} begins at full speed"
        );
        model.run(20 * SECOND);
        assert!(model.flow.is_active(), "the burst is too long for the room");
        // 200 writes per second, a tenth of what the origin takes.
        model.guest(4, 20 * MS);
        model.run(150 * SECOND);
        assert!(!model.flow.is_active() && model.flow.delay_ns() == 0);
    }
    assert!(model.longest_wait < SECOND);
}

#[test]
fn full_writes_are_released_one_by_one_as_room_comes() {
    let mut model = usual();
    // So many writers that even a second of delay does not slow them enough.
    model.guest(4_000, 0);
    model.run(60 * SECOND);
    let (mut most, mut seen, mut full_at) = (0, 0, 0);
    for _ in 0..3_000 {
        let before = model.admitted;
        model.run(10 * MS);
        if model.fill() >= 999 {
            full_at = model.now;
        } else if full_at > 0 && model.now - full_at <= SECOND {
            // Room has come within this second: for 8,000 writes, and 4,000 wait.
            most = most.max(model.admitted - before);
            seen += 1;
        }
    }
    assert!(seen > 10, "the volume was full {seen} times");
    assert!(most <= 100, "{most} writes in 10 ms, 20 are the origin's");
}

#[test]
fn each_gauge_starts_flow_control_and_tells_its_name() {
    let reason = |limits: FlowLimits, gauges: Gauges| {
        let mut flow = Flow::default();
        flow.look(Time(SECOND), &limits, &gauges);
        flow.reason().map(|reason| reason.name())
    };
    let gauges = Gauges {
        dirty_blocks: 100,
        room_blocks: 1000,
        dirty_writes: 50,
        dirty_extents: 50,
        extents_room: 1000,
        ..Gauges::default()
    };
    let limits = FlowLimits::default();
    assert_eq!(reason(limits, gauges), None);
    let few = FlowLimits {
        dirty_writes: Some(50),
        ..limits
    };
    assert_eq!(reason(few, gauges), Some("dirty-writes"));
    let low = FlowLimits {
        dirty_bytes_percent: 10,
        ..limits
    };
    assert_eq!(reason(low, gauges), Some("dirty-bytes"));
    let scattered = Gauges {
        dirty_extents: 750,
        ..gauges
    };
    assert_eq!(reason(limits, scattered), Some("dirty-writes"));

    let mut model = usual();
    model.limits.destage_time_ms = 10_000;
    model.guest(32, 4 * MS);
    model.run(12 * SECOND);
    let name = model.flow.reason().map(|reason| reason.name());
    assert_eq!(name, Some("destage-time"));
    assert!(model.fill() < 750);
}
