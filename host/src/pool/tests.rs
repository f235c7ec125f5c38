//! What becomes of a pool, step by step, without files and guests.

use super::record::{Record, Records};
use super::{Asked, Fact, Next, Phase};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn members(count: usize) -> Vec<String> {
    (1..=count)
        .map(|number| format!("desk-{number:03}"))
        .collect()
}

fn idle(names: &[String]) -> Vec<Fact> {
    let fact = |name: &String| Fact {
        name: name.clone(),
        in_use: false,
        unhealthy: None,
    };
    names.iter().map(fact).collect()
}

/// A pool that begins to move to `new`.
fn rolling(asked: Asked) -> Record {
    let mut record = Record::first("office", Path::new("/gold/old"));
    record.stage(Path::new("/gold/new"), asked);
    record.switch(1_000);
    record
}

fn asked(canaries: &[&str], percents: &[u8], soak_ms: u64) -> Asked {
    Asked {
        canaries: canaries.iter().map(|it| (*it).to_owned()).collect(),
        percents: percents.to_vec(),
        soak_ms,
        ..Asked::default()
    }
}

fn due(record: &Record, names: &[String]) -> BTreeSet<String> {
    let due = names.iter().filter(|it| record.is_due(it));
    due.cloned().collect()
}

#[test]
fn a_later_step_takes_all_that_an_earlier_one_took() {
    let names = members(200);
    for generation in 1..20 {
        let mut record = rolling(asked(&["desk-007"], &[5, 10, 50], 0));
        record.image.generation = generation;
        assert_eq!(due(&record, &names).len(), 1);
        let mut before = due(&record, &names);
        for percent in [5, 10, 50, 100] {
            record.step(2_000);
            assert_eq!(record.rollout.percent(), Some(percent));
            let now = due(&record, &names);
            assert!(now.is_superset(&before), "at {percent} % of {generation}");
            let share = now.len() * 100 / names.len();
            assert!(
                share.abs_diff(percent.into()) <= 10,
                "{share} % for {percent} % of {generation}"
            );
            before = now;
        }
        assert_eq!(before.len(), names.len());
    }
}

#[test]
fn other_members_are_first_in_another_generation() {
    let names = members(100);
    let first = |generation| {
        let mut record = rolling(asked(&[], &[10], 0));
        record.image.generation = generation;
        due(&record, &names)
    };
    assert_ne!(first(2), first(3));
}

#[test]
fn a_member_has_the_image_before_until_it_has_moved() {
    let names = members(3);
    let mut record = rolling(asked(&[], &[], 0));
    assert_eq!(record.image_of(&names[0]).path, Path::new("/gold/old"));
    record.has_come(&names[0], 2_000);
    assert_eq!(record.image_of(&names[0]).path, Path::new("/gold/new"));
    assert_eq!(record.image_of(&names[1]).path, Path::new("/gold/old"));
    // One that comes when all is over has the new one.
    names.iter().for_each(|it| record.has_come(it, 2_000));
    assert_eq!(record.next(&idle(&names), 2_000), Next::Stable);
    record.settle();
    assert_eq!(record.image_of("later").path, Path::new("/gold/new"));
}

#[test]
fn the_canaries_are_waited_for_and_then_their_soak() {
    let names = members(4);
    let mut record = rolling(asked(&["desk-001"], &[], 500));
    let mut facts = idle(&names);
    facts[0].in_use = true;
    assert_eq!(record.next(&facts, 900_000), Next::Wait, "its guest runs");
    record.has_come("desk-001", 900_000);
    assert_eq!(record.next(&facts, 900_499), Next::Wait, "it soaks");
    assert_eq!(record.next(&facts, 900_500), Next::Step);
}

#[test]
fn one_guest_that_never_ends_holds_up_the_last_step_only() {
    let names = members(100);
    let mut record = rolling(asked(&[], &[50], 100));
    let mut facts = idle(&names);
    let due = due(&record, &names);
    let stays = due.iter().next().expect("half of them are due").clone();
    let at = names.iter().position(|it| *it == stays).expect("it is one");
    facts[at].in_use = true;
    assert_eq!(record.next(&facts, 9_000), Next::Wait, "nothing was tried");
    let others: Vec<&String> = due.iter().filter(|it| **it != stays).collect();
    others.iter().for_each(|it| record.has_come(it, 9_000));
    assert_eq!(record.next(&facts, 9_099), Next::Wait);
    assert_eq!(record.next(&facts, 9_100), Next::Step);
    record.step(9_100);
    let others = names.iter().filter(|it| **it != stays);
    others.for_each(|it| record.has_come(it, 9_200));
    assert_eq!(record.next(&facts, 900_000), Next::Wait);
    record.has_come(&stays, 900_000);
    assert_eq!(record.next(&facts, 900_100), Next::Stable);
}

#[test]
fn a_step_that_takes_no_member_is_over_at_once() {
    // A part of one percent of three members is none, of some generation.
    let names = members(3);
    let mut record = rolling(asked(&[], &[1], 1_000));
    let none = (1..100).find(|generation| {
        record.image.generation = *generation;
        due(&record, &names).is_empty()
    });
    assert!(none.is_some());
    assert_eq!(record.next(&idle(&names), 1_500), Next::Wait);
    assert_eq!(record.next(&idle(&names), 2_000), Next::Step);
}

#[test]
fn too_many_ill_members_send_the_pool_back_once() {
    let names = members(5);
    let mut record = rolling(Asked {
        max_failed: 1,
        ..asked(&[], &[], 0)
    });
    names[..3].iter().for_each(|it| record.has_come(it, 2_000));
    let mut facts = idle(&names);
    facts[0].unhealthy = Some("asks for nothing".into());
    assert_ne!(record.next(&facts, 2_000), Next::Back(String::new()));
    facts[2].unhealthy = Some("does not start".into());
    let Next::Back(why) = record.next(&facts, 2_000) else {
        panic!("two are more than one");
    };
    assert_eq!(why, "desk-001: asks for nothing, and 1 more");
    record.go_back(&names, Some(why), 3_000);
    assert_eq!(record.image.generation, 3);
    assert_eq!(record.image.path, Path::new("/gold/old"));
    // Two have never left, three have to come back, and there is no third image to go to.
    assert_eq!(due(&record, &names).len(), 3);
    assert!(record.has_moved(&names[4]) && !record.has_moved(&names[0]));
    assert_eq!(record.image_of(&names[0]).path, Path::new("/gold/new"));
    assert!(matches!(record.next(&facts, 9_000), Next::Wait));
    names[..3].iter().for_each(|it| record.has_come(it, 4_000));
    assert_eq!(record.next(&facts, 9_000), Next::Stable);
}

#[test]
fn a_record_is_read_as_it_was_written_and_no_other_file_is_one() {
    let place = tempfile::tempdir().expect("a directory");
    let records = Records::new(place.path());
    assert_eq!(records.read("office").expect("none is there"), None);
    let mut record = rolling(Asked {
        health: Some(PathBuf::from("/usr/bin/true")),
        ..asked(&["desk-001"], &[10, 50], 600_000)
    });
    record.has_come("desk-001", 5_000);
    records.write(&record).expect("it is written");
    assert_eq!(records.read("office").expect("it is there"), Some(record));
    let path = place.path().join("pools/office.json");
    let text = std::fs::read_to_string(&path).expect("it is a file");
    let damages: [(&str, String); 6] = [
        ("cut", text[..text.len() / 2].to_owned()),
        ("empty", String::new()),
        ("other", text.replace("\"office\"", "\"lab\"")),
        (
            "version",
            text.replacen("\"version\": 1", "\"version\": 2", 1),
        ),
        ("step", text.replacen("\"step\": 0", "\"step\": 7", 1)),
        ("unknown", text.replacen("\"phase\"", "\"face\"", 1)),
    ];
    for (what, damaged) in damages {
        assert_ne!(damaged, text, "{what}");
        std::fs::write(&path, damaged).expect("it is written");
        let fault = records.read("office").expect_err(what).to_string();
        assert!(fault.contains("is no record of pool office"), "{fault}");
    }
}

#[test]
fn what_is_staged_changes_nothing_before_the_switch() {
    let mut record = Record::first("office", Path::new("/gold/old"));
    record.stage(Path::new("/gold/new"), Asked::default());
    assert_eq!(record.phase, Phase::Staged);
    assert!(!record.is_due("desk-001"));
    assert_eq!(record.image_of("desk-001").path, Path::new("/gold/old"));
    assert_eq!(record.next(&idle(&members(2)), 9_000), Next::Wait);
    record.unstage(None);
    assert_eq!(record, Record::first("office", Path::new("/gold/old")));
}

/// Fails when: the line about a record that cannot be written does not say what would be right.
#[test]
fn a_record_that_cannot_be_written_says_what_would_be_right() {
    let said = |errno| {
        let error = std::io::Error::from_raw_os_error(errno);
        let path = PathBuf::from("/state/pools/office.json");
        super::Fault::Io { path, error }.to_string()
    };
    assert_eq!(
        said(libc::ENOSPC),
        "/state/pools/office.json: no space left on device; make room there"
    );
    assert_eq!(
        said(libc::EACCES),
        "/state/pools/office.json: permission denied; [host] state-dir must be a directory this \
         daemon may read and write"
    );
}
