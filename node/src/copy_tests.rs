//! Schedules of one copy: what it says under which term, and what a restart leaves.

use super::*;
use crate::history::Generation;
use crate::record::{Epoch, Holder};
use alloc::vec;

const FIRST: u64 = 1 << 42;

fn id(number: u8) -> Uuid {
    Uuid([number; 16])
}

fn record(number: u64, owner: u8) -> Box<Record> {
    let owner = Holder {
        host: id(owner),
        cache: id(owner),
        boot: id(1),
        session: id(1),
        name: "h".into(),
    };
    Box::new(Record {
        cluster: id(1),
        unit: id(2),
        number,
        nonce: Uuid([number as u8; 16]),
        before: id(3),
        owner: Some(owner),
        epoch: Epoch::default(),
        drainer: None,
        given: 1,
        wanted: 1,
        degraded: None,
        at_origin: false,
        quiesced: false,
        members: vec![member()],
    })
}

fn member() -> Member {
    Member {
        host: id(20),
        cache: id(21),
        copy: id(22),
    }
}

fn open(number: u64, owner: u8) -> Body {
    Body::Open {
        member: member(),
        session: id(owner),
        fresh: true,
        destaged: Serial(0),
        record: record(number, owner),
        about: About::default(),
    }
}

fn history(end: u64) -> History {
    let generation = Generation {
        term: 1,
        restarts: 0,
    };
    let begun = History::empty(Serial(0)).fork(generation);
    begun.expect("serials are left").upto(Serial(end))
}

/// All that follows, with what is made durable or written being so at once.
fn tell(copy: &mut Copy, from: u8, body: Body) -> Vec<Body> {
    let from = id(from);
    run(copy, Event::Heard { from, body })
}

fn run(copy: &mut Copy, event: Event) -> Vec<Body> {
    let mut out = vec![];
    let mut said = vec![];
    copy.handle(&mut out, event);
    while !out.is_empty() {
        let mut more = vec![];
        for action in out {
            match action {
                Action::Persist(_) => copy.handle(&mut more, Event::Persisted),
                Action::Write { last } => copy.handle(&mut more, Event::Synced(last)),
                Action::Send { body, .. } => said.push(body),
                _ => {}
            }
        }
        out = more;
    }
    said
}

fn batch(term: u64, number: u64, before: u64, last: u64) -> Event {
    Event::Batch {
        from: id(1),
        session: id(1),
        term,
        number,
        before: Serial(before),
        last: Serial(last),
    }
}

/// A copy of the owner 1 that streams under record 1.
fn streaming() -> Copy {
    let open = open(1, 1);
    let mut copy = Copy::make((id(20), id(21)), &open).expect("it is made");
    tell(&mut copy, 1, open);
    let resume = Body::Resume {
        copy: id(22),
        session: id(1),
        history: history(0),
    };
    let said = tell(&mut copy, 1, resume);
    assert!(matches!(said[..], [Body::Resumed { .. }, Body::Ack { .. }]));
    copy
}

fn durable_of(said: &[Body]) -> Option<u64> {
    said.iter().find_map(|body| match body {
        Body::Ack { durable, .. } => Some(durable.0),
        _ => None,
    })
}

#[test]
fn what_is_synced_is_acknowledged_and_a_hole_ends_the_session_only() {
    let mut copy = streaming();
    let said = run(&mut copy, batch(1, 1, 0, FIRST));
    assert_eq!(durable_of(&said), Some(FIRST));
    let mut out = vec![];
    copy.handle(&mut out, batch(1, 3, FIRST, FIRST + 1));
    assert_eq!(out, [Action::Close { host: id(1) }]);
    assert_eq!(copy.status().history.end(), Serial(FIRST));
    assert!(copy.status().is_complete());
    // Nothing is said of what is not synced.
    let mut copy = streaming();
    copy.handle(&mut out, batch(1, 1, 0, FIRST));
    assert_eq!(
        out.last(),
        Some(&Action::Write {
            last: Serial(FIRST)
        })
    );
}

/// H8, C5: after the freeze nothing of the old owner counts, and the end that was told stays.
#[test]
fn a_freeze_waits_for_writes_under_way_and_lasts_over_a_restart() {
    let mut copy = streaming();
    let mut out = vec![];
    copy.handle(&mut out, batch(1, 1, 0, FIRST));
    let freeze = Body::Freeze {
        copy: id(22),
        record: record(2, 2),
    };
    let said = tell(&mut copy, 2, freeze.clone());
    assert!(said.is_empty(), "a write is under way");
    let said = run(&mut copy, Event::Synced(Serial(FIRST)));
    let [Body::Frozen { status, .. }] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!((status.term, status.history.end()), (2, Serial(FIRST)));
    let said = run(&mut copy, batch(1, 2, FIRST, FIRST + 1));
    assert!(matches!(said[..], [Body::Deposed { .. }]));
    let mut copy = Copy::recover(copy.durable().clone());
    assert!(
        tell(&mut copy, 2, freeze.clone()).is_empty(),
        "its end is not known"
    );
    run(&mut copy, Event::Recovered(Serial(FIRST + 1)));
    assert!(matches!(
        tell(&mut copy, 1, open(1, 1))[..],
        [Body::Deposed { .. }]
    ));
    let said = tell(&mut copy, 2, freeze);
    let [Body::Frozen { status, .. }] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(status.history.end(), Serial(FIRST), "it freezes again");
}

/// H20: a restart of the copy's daemon starts no generation. H19: a wiped cache is absent.
#[test]
fn a_restart_keeps_generation_and_end_and_a_wiped_cache_has_no_copy() {
    let mut copy = streaming();
    run(&mut copy, batch(1, 1, 0, FIRST + 9));
    let before = copy.status();
    let mut again = Copy::recover(copy.durable().clone());
    assert_eq!(again.health(), Health::Recovering);
    assert!(!again.status().is_complete(), "not known yet");
    run(&mut again, Event::Recovered(Serial(FIRST + 9)));
    assert_eq!(again.status().history, before.history);
    // Less than what it had made durable is not the same copy any more.
    let mut durable = copy.durable().clone();
    durable.history.grow(Serial(FIRST + 9));
    let mut lost = Copy::recover(durable);
    run(&mut lost, Event::Recovered(Serial(FIRST + 3)));
    assert_eq!(lost.health(), Health::Damaged);
    assert!(Copy::make((id(20), id(99)), &open(1, 1)).is_none());
    let other = Body::Open {
        member: Member {
            cache: id(99),
            ..member()
        },
        session: id(1),
        fresh: true,
        destaged: Serial(0),
        record: record(1, 1),
        about: About::default(),
    };
    assert!(matches!(
        tell(&mut again, 1, other)[..],
        [Body::Absent { .. }]
    ));
}

/// C1: no answer goes before its term is durable; a lower term and another record of the same
/// number are refused.
#[test]
fn a_term_is_durable_before_anything_is_answered_under_it() {
    let mut copy = streaming();
    let mut out = vec![];
    let (from, body) = (id(2), open(3, 2));
    copy.handle(&mut out, Event::Heard { from, body });
    assert!(matches!(out[..], [Action::Persist(_)]));
    let said = run(&mut copy, Event::Persisted);
    assert!(matches!(said[..], [Body::Opened { .. }]));
    assert!(matches!(
        tell(&mut copy, 1, open(2, 1))[..],
        [Body::Deposed { .. }]
    ));
    let Body::Open { mut record, .. } = open(3, 2) else {
        unreachable!("it is an open");
    };
    record.nonce = id(99);
    let other = Body::Freeze {
        copy: id(22),
        record,
    };
    assert!(matches!(
        tell(&mut copy, 2, other)[..],
        [Body::Deposed { .. }]
    ));
    assert_eq!(copy.term(), 3);
}

/// Correction 16: what is destaged, evicted or superseded stays until its owner drops it.
#[test]
fn a_copy_is_removed_by_a_drop_of_a_record_that_does_not_name_it() {
    let mut copy = streaming();
    let mut out = vec![];
    let destaged = Body::Destaged {
        copy: id(22),
        serial: Serial(FIRST << 1),
    };
    let drop = |record: Box<Record>| Body::Drop {
        copy: id(22),
        record,
    };
    let mut unnamed = record(2, 1);
    unnamed.members.clear();
    for (body, removed) in [
        (destaged, false),
        (drop(record(1, 1)), false),
        (drop(unnamed), true),
    ] {
        out.clear();
        let from = id(1);
        copy.handle(&mut out, Event::Heard { from, body });
        assert_eq!(out.contains(&Action::Remove), removed);
    }
}

/// C12: the owner that came after may say what the origin has; one from before may not, and none
/// says it of more than is there.
#[test]
fn a_copy_that_is_kept_lets_go_of_what_the_origin_has() {
    let mut copy = streaming();
    let mut out = vec![];
    run(&mut copy, batch(1, 1, 0, FIRST));
    copy.handle(&mut out, Event::Closed);
    let keep = |record: Box<Record>, serial: u64| Body::Keep {
        copy: id(22),
        record,
        destaged: Serial(serial),
    };
    let end = copy.status().history.end().0;
    for (from, body, told) in [
        (2, keep(record(0, 2), end), false),
        (2, keep(record(3, 1), end), false),
        (2, keep(record(3, 2), end + 1), false),
        (2, keep(record(3, 2), end), true),
        (2, keep(record(3, 2), end), false),
    ] {
        out.clear();
        let from = id(from);
        copy.handle(&mut out, Event::Heard { from, body });
        assert_eq!(out.contains(&Action::Forget(Serial(end))), told);
    }
}
