//! What hosts of a cluster make of one record, and what follows from what they say.

use super::*;
use crate::pool::{Asked, Prefetch};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use workload::rng::Rng;

const UNIT: Uuid = Uuid([7; 16]);

fn record() -> Record {
    Record::first("office", Path::new("/gold/1"))
}

fn shared(number: u64, record: Record) -> Shared {
    Shared {
        unit: UNIT,
        number,
        nonce: Uuid([9; 16]),
        by: Uuid([1; 16]),
        record,
    }
}

/// Of hosts 1, 2, ….
fn report(host: u8, follows: u64) -> Report {
    let mut report = Report::of(Uuid([host; 16]), &format!("host-{host}"));
    report.follows = follows;
    report
}

/// Fails when: a record is read as another one than was made, or bytes that were changed count.
#[test]
fn a_record_is_read_as_it_was_made_or_not_at_all() {
    let mut of = record();
    let asked = Asked {
        canaries: BTreeSet::from(["desk-1".to_owned()]),
        percents: vec![10, 50],
        prefetch: Prefetch::All,
        ..Asked::default()
    };
    of.stage(Path::new("/gold/2"), asked);
    let made = shared(3, of);
    let mut bytes = made.encode();
    assert_eq!(Shared::parse(&bytes), Ok(made.clone()));
    bytes.resize(4096, 0);
    assert_eq!(Shared::parse(&bytes), Ok(made.clone()));
    let said = report(2, 3).encode();
    assert_eq!(Report::parse(&said), Ok(report(2, 3)));
    for at in 0..made.encode().len() {
        let mut bytes = made.encode();
        bytes[at] ^= 1;
        assert!(Shared::parse(&bytes).is_err(), "byte {at}");
        assert!(Shared::parse(&made.encode()[..at]).is_err(), "cut at {at}");
    }
    let mut named = made;
    named.record.moved.insert("desk-1".into());
    assert!(Shared::parse(&named.encode()).is_err());
}

/// Fails when: a record is made that no host can read.
#[test]
fn a_record_that_no_host_could_read_does_not_fit() {
    let with = |canaries: usize| {
        let name = |at: usize| format!("{at:063}");
        let asked = Asked {
            canaries: (0..canaries).map(name).collect(),
            ..Asked::default()
        };
        let mut of = record();
        of.stage(Path::new("/gold/2"), asked);
        shared(3, of).fits()
    };
    assert!(with(900));
    assert!(!with(1_100));
}

/// Fails when: a step ends before all hosts that count say so, or one that counts no more is waited
/// for.
#[test]
fn what_is_decided_follows_from_what_all_hosts_say_of_the_same_record() {
    let mut of = record();
    let at_unix_ms = Some(50);
    let asked = Asked {
        at_unix_ms,
        percents: vec![50],
        max_failed: 1,
        ..Asked::default()
    };
    of.stage(Path::new("/gold/2"), asked);
    let staged = shared(4, of.clone());
    let ready = |host: u8| Report {
        ready: true,
        ..report(host, 4)
    };
    let decide = |reports: &[Report], patient, now| staged.decide(reports, patient, now);
    assert_eq!(decide(&[ready(1), ready(2)], true, 60), Decision::Switch);
    assert_eq!(decide(&[ready(1), ready(2)], true, 40), Decision::Wait);
    assert_eq!(decide(&[ready(1), report(2, 4)], true, 60), Decision::Wait);
    assert_eq!(decide(&[ready(1), report(2, 3)], true, 60), Decision::Wait);
    assert_eq!(
        decide(&[ready(1), report(2, 3)], false, 60),
        Decision::Switch
    );
    assert_eq!(decide(&[report(2, 3)], false, 60), Decision::Wait);
    let failed = Report {
        failed: Some("no such file".into()),
        ..report(2, 4)
    };
    let why = Decision::Unstage("host-2: no such file".into());
    assert_eq!(decide(&[ready(1), failed], true, 40), why);
    of.switch(70);
    let rolling = shared(5, of.clone());
    let ends = |host: u8| Report {
        ends: true,
        ..report(host, 5)
    };
    let ill = |host: u8| Report {
        ill: vec![(format!("desk-{host}"), "is silent".into())],
        ..report(host, 5)
    };
    let decide = |reports: &[Report]| rolling.decide(reports, true, 80);
    assert_eq!(decide(&[ends(1), ends(2)]), Decision::Step);
    assert_eq!(decide(&[ends(1), report(2, 5)]), Decision::Wait);
    assert_eq!(decide(&[ends(1), report(2, 4)]), Decision::Wait);
    assert_eq!(decide(&[ends(1), ill(2)]), Decision::Wait);
    let why = "desk-1 on host-1: is silent, and 1 more";
    assert_eq!(decide(&[ill(1), ill(2)]), Decision::Back(why.into()));
    of.step(90);
    let last = shared(6, of);
    let ends = [Report {
        ends: true,
        ..report(1, 6)
    }];
    assert_eq!(last.decide(&ends, true, 100), Decision::Stable);
}

/// A host, its members, and the image that each has.
struct Host {
    record: Record,
    has: BTreeMap<String, PathBuf>,
    running: BTreeSet<String>,
}

impl Host {
    fn new(members: u64) -> Host {
        let name = |at: u64| (format!("desk-{at}"), PathBuf::from("/gold/1"));
        Host {
            record: record(),
            has: (0..members).map(name).collect(),
            running: BTreeSet::new(),
        }
    }

    fn names(&self) -> Vec<String> {
        self.has.keys().cloned().collect()
    }

    fn follow(&mut self, shared: &Record, now: u64) {
        let names = self.names();
        for _ in 0..4 {
            self.record = self.record.follow(shared, &names, now);
            self.record.check().expect("its fields fit together");
            for name in &names {
                if self.record.is_due(name) && !self.running.contains(name) {
                    self.record.has_come(name, now);
                    let image = self.record.image.path.clone();
                    self.has.insert(name.clone(), image);
                }
            }
            for (name, image) in &self.has {
                assert_eq!(&self.record.image_of(name).path, image, "{name}");
            }
        }
    }
}

/// One thing that an administrator or the cluster may do.
fn change(record: &mut Record, random: &mut Rng, now: u64) {
    let image = PathBuf::from(format!("/gold/{}", random.below(3) + 1));
    match record.phase {
        Phase::Stable if record.image.path != image => {
            if record.previous.is_some() {
                record.finish();
            }
            let percents = [vec![], vec![40]][random.below(2) as usize].clone();
            let asked = Asked {
                percents,
                ..Asked::default()
            };
            record.stage(&image, asked);
        }
        Phase::Stable if record.previous.is_some() && random.below(2) == 0 => record.finish(),
        Phase::Stable if record.previous.is_some() && !record.rollout.back => {
            record.go_back(&[], None, now);
            record.moved.clear();
        }
        Phase::Staged if random.below(4) == 0 => record.unstage(None),
        Phase::Staged => record.switch(now),
        Phase::Rolling if random.below(4) == 0 && !record.rollout.back => {
            record.go_back(&[], None, now);
            record.moved.clear();
        }
        Phase::Rolling if record.rollout.steps_left() > Some(0) => record.step(now),
        Phase::Rolling => record.settle(),
        Phase::Stable => {}
    }
}

/// Fails when: a member that a guest has gets another image, a host that misses records does not
/// come to the newest one, or it gives up what it has begun.
#[test]
fn hosts_that_miss_records_come_to_the_image_of_the_newest_one() {
    for seed in 0..2_000 {
        let mut random = Rng::new(seed);
        let mut cluster = record();
        let mut hosts = [Host::new(3), Host::new(1), Host::new(0)];
        for now in 1..60 {
            change(&mut cluster, &mut random, now);
            for host in &mut hosts {
                for name in host.names() {
                    match random.below(6) {
                        0 => drop(host.running.insert(name)),
                        1 => drop(host.running.remove(&name)),
                        _ => {}
                    }
                }
                if random.below(3) == 0 {
                    host.follow(&cluster, now);
                }
            }
        }
        while cluster.phase != Phase::Stable {
            change(&mut cluster, &mut random, 100);
        }
        for host in &mut hosts {
            host.running.clear();
            host.follow(&cluster, 101);
            host.follow(&cluster, 102);
            let all = host.has.values().all(|image| *image == cluster.image.path);
            assert!(all, "seed {seed}: {:?}, not {:?}", host.has, cluster.image);
            assert!(host.record.is_along(&cluster), "seed {seed}");
        }
    }
}

/// Fails when: a vault that was put back takes a host back.
#[test]
fn a_record_that_is_older_than_what_a_host_has_done_changes_nothing() {
    let mut newer = record();
    newer.stage(Path::new("/gold/2"), Asked::default());
    newer.switch(1);
    let mut host = Host::new(2);
    host.follow(&newer, 2);
    let before = host.record.clone();
    assert!(host.record.is_ahead_of(&record()));
    host.follow(&record(), 3);
    assert_eq!(host.record, before);
    assert_ne!(unit_of(UNIT, "office"), unit_of(UNIT, "lab"));
    assert_ne!(unit_of(UNIT, "office"), unit_of(Uuid([8; 16]), "office"));
}
