//! Deficit round robin against a model of a storage: members of any weight and request size ask
//! for turns, requests take a while, and some members rest or hang.
//!
//! Always checked: what members that always have work have spent, in any window, differs from
//! their weights by two quanta and two requests at most; while somebody has work something is done.

use engine::round_robin::{PATIENCE_NS, QUANTUM_BYTES, RoundRobin};
use engine::types::{Time, VolumeId};
use std::collections::VecDeque;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

struct Member {
    weight: u32,
    lane: u64,
    request_bytes: u64,
    depth: usize,
    /// Pause between two batches, for a sync; bytes of a batch.
    pause_ns: u64,
    batch_bytes: u64,
    hangs: bool,
    rests_until: u64,
    paused_until: u64,
    in_batch: u64,
    flying: VecDeque<u64>,
    done: u64,
    longest_wait: u64,
    last: u64,
}

fn member(weight: u32, request_bytes: u64) -> Member {
    Member {
        weight,
        lane: 0,
        request_bytes,
        depth: 8,
        pause_ns: 0,
        batch_bytes: u64::MAX,
        hangs: false,
        rests_until: 0,
        paused_until: 0,
        in_batch: 0,
        flying: VecDeque::new(),
        done: 0,
        longest_wait: 0,
        last: 0,
    }
}

/// One storage for all, or one for each lane, that carries so many bytes in a second.
struct Model {
    turns: RoundRobin,
    now: u64,
    members: Vec<Member>,
    bytes_per_second: u64,
    free_at: [u64; 2],
}

impl Model {
    fn new(bytes_per_second: u64, members: Vec<Member>) -> Model {
        Model {
            turns: RoundRobin::new(QUANTUM_BYTES, PATIENCE_NS),
            now: SECOND,
            members,
            bytes_per_second,
            free_at: [0; 2],
        }
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now + seconds * SECOND;
        while self.now < end {
            self.now += MS;
            for at in 0..self.members.len() {
                self.step(at);
            }
        }
    }

    fn step(&mut self, at: usize) {
        let (now, id) = (self.now, VolumeId(at as u32));
        let it = &mut self.members[at];
        if it.rests_until > now {
            self.turns.rest(id);
            return;
        }
        self.turns.join(Time(now), id, it.lane, it.weight);
        while !it.hangs && it.flying.front().is_some_and(|end| *end <= now) {
            it.flying.pop_front();
            it.done += it.request_bytes;
            it.last = now;
            self.turns.moved(Time(now), id);
        }
        if it.in_batch >= it.batch_bytes && it.flying.is_empty() {
            (it.in_batch, it.paused_until) = (0, now + it.pause_ns);
        }
        while it.flying.len() < it.depth && it.in_batch < it.batch_bytes && it.paused_until <= now {
            if !self.turns.may(Time(now), id) {
                it.longest_wait = it.longest_wait.max(now - it.last);
                return;
            }
            self.turns.spend(Time(now), id, it.request_bytes);
            it.in_batch += it.request_bytes;
            let free = &mut self.free_at[it.lane as usize];
            *free = (*free).max(now) + it.request_bytes * SECOND / self.bytes_per_second;
            it.flying.push_back(*free);
        }
    }

    fn done(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.done).collect()
    }

    /// What the members did since `before`, each divided by its weight, agrees.
    fn check(&self, before: &[u64]) {
        let heaviest = self.members.iter().map(|it| it.weight).max().expect("some");
        let slack = |it: &Member| {
            let quantum = QUANTUM_BYTES * u64::from(it.weight) / u64::from(heaviest);
            (2 * quantum + (2 + it.depth as u64) * it.request_bytes) as f64 / f64::from(it.weight)
        };
        for (a, from_a) in self.members.iter().zip(before) {
            for (b, from_b) in self.members.iter().zip(before) {
                let share_a = (a.done - from_a) as f64 / f64::from(a.weight);
                let share_b = (b.done - from_b) as f64 / f64::from(b.weight);
                let (found, most) = (share_a - share_b, slack(a) + slack(b));
                assert!(found.abs() <= most, "{share_a} and {share_b}, {most} apart");
            }
        }
    }
}

#[test]
fn bytes_follow_weights_whatever_the_sizes_of_requests() {
    for (weights, sizes) in [
        ([100, 300, 100], [4096, 4096, 4096]),
        ([100, 300, 100], [256 << 10, 4096, 64 << 10]),
        ([300, 100, 1], [4096, 256 << 10, 128 << 10]),
        ([10_000, 5_000, 10_000], [256 << 10, 4096, 2048]),
    ] {
        let members = weights.iter().zip(sizes).map(|(w, s)| member(*w, s));
        let mut model = Model::new(10 << 20, members.collect());
        for _ in 0..6 {
            let before = model.done();
            model.run(10);
            model.check(&before);
        }
        let total: u64 = model.done().iter().sum();
        assert!(total > 57 * (10 << 20), "the storage is not idle: {total}");
    }
}

#[test]
fn a_member_that_pauses_for_syncs_has_its_part() {
    let mut members = vec![member(300, 128 << 10), member(100, 128 << 10)];
    for it in &mut members {
        (it.pause_ns, it.batch_bytes) = (60 * MS, 4 << 20);
    }
    let mut model = Model::new(20 << 20, members);
    model.run(5);
    let before = model.done();
    model.run(60);
    model.check(&before);
    let total: u64 = model.done().iter().sum();
    assert!(total > 60 * (18 << 20), "the storage is not idle: {total}");
}

#[test]
fn nobody_starves() {
    let mut model = Model::new(
        100 << 20,
        vec![member(1, 256 << 10), member(10_000, 256 << 10)],
    );
    // A ten-thousandth of the storage: a request in half a minute.
    model.run(600);
    assert!(
        model.members[0].done >= 5 << 20,
        "{}",
        model.members[0].done
    );
    assert!(model.members[0].longest_wait <= 60 * SECOND);
}

#[test]
fn who_was_idle_has_saved_up_nothing() {
    let mut model = Model::new(20 << 20, vec![member(100, 64 << 10), member(100, 64 << 10)]);
    model.members[0].rests_until = 100 * SECOND;
    model.run(99);
    assert!(
        model.members[1].done > 90 * (20 << 20),
        "who is alone has all"
    );
    let before = model.done();
    model.run(30);
    model.check(&before);
}

#[test]
fn who_leaves_with_a_debt_comes_back_with_it() {
    let mut turns = RoundRobin::new(QUANTUM_BYTES, PATIENCE_NS);
    let (a, b) = (VolumeId(0), VolumeId(1));
    turns.join(Time(0), a, 0, 100);
    assert!(turns.may(Time(0), a));
    turns.spend(Time(0), a, 10 * QUANTUM_BYTES);
    turns.rest(a);
    turns.join(Time(1), b, 0, 100);
    turns.join(Time(1), a, 0, 100);
    for _ in 0..8 {
        assert!(turns.may(Time(1), b));
        turns.spend(Time(1), b, QUANTUM_BYTES);
        assert!(!turns.may(Time(1), a), "a debt is paid first");
    }
}

#[test]
fn one_that_hangs_holds_the_others_up_once() {
    let mut model = Model::new(20 << 20, vec![member(100, 64 << 10), member(100, 64 << 10)]);
    model.members[0].hangs = true;
    model.run(60);
    let alone = 57 * (20 << 20);
    assert!(model.members[1].done >= alone, "{}", model.members[1].done);
    model.members[0].hangs = false;
    model.run(5);
    let before = model.done();
    model.run(30);
    model.check(&before);
}

#[test]
fn another_storage_is_not_waited_for() {
    let mut model = Model::new(20 << 20, vec![member(100, 64 << 10), member(100, 64 << 10)]);
    model.members[1].lane = 1;
    model.members[0].depth = 1;
    model.members[0].hangs = true;
    model.run(10);
    assert!(
        model.members[1].done > 9 * (20 << 20),
        "each lane has its own rounds"
    );
}
