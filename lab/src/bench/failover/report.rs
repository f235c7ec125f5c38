//! The times of kills, for people and for programs.

use super::guest::{DEPTH, WRITES_PER_FLUSH};
use super::run::{OwnerKilled, PeerKilled, Round};
use super::{FIRST_ANSWER_WANTED, FLUSH_WANTED, LOSS_WANTED, Report};
use crate::bench::rounds::Spread;
use crate::machine;
use serde_json::{Value, json};
use std::time::Duration;

pub const HEAD: [&str; 11] = [
    "ROUND",
    "OWNER",
    "OWNER KILLED: FIRST ANSWER, MS",
    "WITHOUT A KILL",
    "FLUSHED WRITES, ALL THERE",
    "COPY AGAIN, MS",
    "PEER KILLED: LONGEST FLUSH, MS",
    "BEFORE",
    "COPY AGAIN, MS",
    "GUEST, MEANWHILE / BEFORE",
    "A/A",
];

fn ms(it: Duration) -> f64 {
    it.as_secs_f64() * 1e3
}

fn ratio(over: Option<f64>, under: Option<f64>) -> Option<f64> {
    let under = under.filter(|it| *it > 0.0)?;
    Some(over? / under)
}

impl PeerKilled {
    fn ratio(&self) -> Option<f64> {
        ratio(self.during, self.before)
    }

    fn copying_ratio(&self) -> Option<f64> {
        ratio(self.copying, self.before)
    }

    /// The second half of the time before against the first.
    fn a_a_ratio(&self) -> Option<f64> {
        ratio(self.halves[1], self.halves[0])
    }

    fn document(&self) -> Value {
        json!({
            "longest_flush_ms": ms(self.longest_flush),
            "longest_flush_before_ms": ms(self.longest_flush_before),
            "degraded_ms": ms(self.degraded),
            "copies_complete_ms": ms(self.full),
            "copies_complete_since_kill_ms": ms(self.full_since_kill),
            "dirty_bytes": self.dirty_bytes,
            "before_per_second": self.before,
            "during_per_second": self.during,
            "copying_per_second": self.copying,
            "ratio": self.ratio(),
            "copying_ratio": self.copying_ratio(),
            "a_a_ratio": self.a_a_ratio(),
        })
    }
}

impl OwnerKilled {
    fn document(&self) -> Value {
        json!({
            "first_answer_ms": ms(self.first_answer),
            "first_answer_without_kill_ms": ms(self.first_answer_before),
            "proof": self.proof,
            "flushed_writes": self.flushed,
            "found_writes": self.found,
            "submitted_writes": self.submitted,
            "flushes": self.flushes,
            "checked_bytes": self.checked_bytes,
            "copies_complete_ms": ms(self.full),
        })
    }
}

fn name(host: usize) -> char {
    char::from(b'a' + host as u8)
}

fn of(report: &Report, figure: impl Fn(&Round) -> Option<f64>) -> Option<Spread> {
    Spread::of(report.rounds.iter().filter_map(figure))
}

fn most(report: &Report, figure: impl Fn(&Round) -> f64) -> f64 {
    report.rounds.iter().map(figure).fold(0.0, f64::max)
}

pub fn headline(report: &Report) -> String {
    let options = &report.options;
    let flushed: u64 = report.rounds.iter().map(|it| it.owner_killed.flushes).sum();
    format!(
        "two hosts on this machine over loopback, replicas = 1; the guest has {} MiB, all dirty, \
         and writes 4 KiB at random, {DEPTH} in flight, with a flush after each \
         {WRITES_PER_FLUSH}; {} rounds with two kills under load each; after each kill of the \
         owner all of the disk was read and has every write before the last of {flushed} flushes",
        options.size_bytes >> 20,
        report.rounds.len(),
    )
}

pub fn rows(report: &Report) -> Vec<Vec<String>> {
    let row = |(number, round): (usize, &Round)| {
        let (owner, peer) = (&round.owner_killed, &round.peer_killed);
        let part = |it: Option<f64>| it.map_or("-".into(), |it| format!("{it:.2}"));
        vec![
            (number + 1).to_string(),
            name(round.owner).to_string(),
            format!("{:.0}", ms(owner.first_answer)),
            format!("{:.1}", ms(owner.first_answer_before)),
            owner.flushed.to_string(),
            format!("{:.0}", ms(owner.full)),
            format!("{:.0}", ms(peer.longest_flush)),
            format!("{:.1}", ms(peer.longest_flush_before)),
            format!("{:.0}", ms(peer.full)),
            part(peer.ratio()),
            part(peer.a_a_ratio()),
        ]
    };
    report.rounds.iter().enumerate().map(row).collect()
}

pub fn findings(report: &Report) -> Vec<String> {
    let text = |it: Option<Spread>, digits| it.map_or("-".into(), |it| it.text(1.0, digits));
    let first = |round: &Round| ms(round.owner_killed.first_answer);
    let flush = |round: &Round| ms(round.peer_killed.longest_flush);
    let part = |of: fn(&PeerKilled) -> Option<f64>| move |round: &Round| of(&round.peer_killed);
    vec![
        format!(
            "owner killed: {} ms to the first answer at the other host, {:.0} at most; wanted: \
             < {}; a new connection without a kill: {} ms",
            text(of(report, |it| Some(first(it))), 0),
            most(report, first),
            FIRST_ANSWER_WANTED.as_millis(),
            text(
                of(report, |it| Some(ms(it.owner_killed.first_answer_before))),
                1
            ),
        ),
        format!(
            "peer killed: longest flush {} ms, {:.0} at most; wanted: < {}; before the kill: {} \
             ms; left out after {} ms",
            text(of(report, |it| Some(flush(it))), 0),
            most(report, flush),
            FLUSH_WANTED.as_millis(),
            text(
                of(report, |it| Some(ms(it.peer_killed.longest_flush_before))),
                1
            ),
            text(of(report, |it| Some(ms(it.peer_killed.degraded))), 0),
        ),
        format!(
            "its copy is complete {} ms after it was started again; from the kill until then the \
             guest has {} of its speed, while the copy is made {}; wanted: >= {}; A/A {}",
            text(of(report, |it| Some(ms(it.peer_killed.full))), 0),
            text(of(report, part(PeerKilled::ratio)), 2),
            text(of(report, part(PeerKilled::copying_ratio)), 2),
            1.0 - LOSS_WANTED,
            text(of(report, part(PeerKilled::a_a_ratio)), 2),
        ),
    ]
}

pub fn document(report: &Report) -> Value {
    let options = &report.options;
    let spread = |it: Option<Spread>| it.map(|it| it.document());
    let owner = |of_round: fn(&OwnerKilled) -> f64| {
        spread(of(report, |round| Some(of_round(&round.owner_killed))))
    };
    let peer = |of_round: fn(&PeerKilled) -> Option<f64>| {
        spread(of(report, |round| of_round(&round.peer_killed)))
    };
    let rounds = report.rounds.iter().map(|round| {
        json!({
            "owner": name(round.owner).to_string(),
            "peer_killed": round.peer_killed.document(),
            "owner_killed": round.owner_killed.document(),
        })
    });
    json!({
        "benchmark": "failover",
        "machine": machine::document(),
        "parameters": {
            "rounds": options.rounds,
            "seconds": options.seconds,
            "cache_bytes": options.cache_bytes,
            "size_bytes": options.size_bytes,
            "seed": options.seed,
            "queue_depth": DEPTH,
            "writes_per_flush": WRITES_PER_FLUSH,
            "hosts": 2,
        },
        "owner_killed": {
            "first_answer_ms": owner(|it| ms(it.first_answer)),
            "first_answer_ms_max": most(report, |it| ms(it.owner_killed.first_answer)),
            "first_answer_without_kill_ms": owner(|it| ms(it.first_answer_before)),
            "copies_complete_ms": owner(|it| ms(it.full)),
            "first_answer_ms_wanted": FIRST_ANSWER_WANTED.as_millis() as u64,
        },
        "peer_killed": {
            "longest_flush_ms": peer(|it| Some(ms(it.longest_flush))),
            "longest_flush_ms_max": most(report, |it| ms(it.peer_killed.longest_flush)),
            "longest_flush_before_ms": peer(|it| Some(ms(it.longest_flush_before))),
            "longest_flush_ms_wanted": FLUSH_WANTED.as_millis() as u64,
            "degraded_ms": peer(|it| Some(ms(it.degraded))),
            "copies_complete_ms": peer(|it| Some(ms(it.full))),
            "ratio": peer(PeerKilled::ratio),
            "copying_ratio": peer(PeerKilled::copying_ratio),
            "a_a_ratio": peer(PeerKilled::a_a_ratio),
            "ratio_wanted": 1.0 - LOSS_WANTED,
        },
        "rounds": rounds.collect::<Vec<Value>>(),
    })
}
