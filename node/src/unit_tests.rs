//! Schedules of one unit whose record names copies; the search has those without.

use super::*;
use crate::fixtures::{holder, id};
use crate::record::{Degraded, Member};
use alloc::vec;

const OWNER: u8 = 7;

fn record(number: u64, owner: u8, members: &[u8]) -> Record {
    let member = |number: &u8| Member {
        host: id(*number),
        cache: id(*number),
        copy: id(50 + number),
    };
    Record {
        cluster: id(1),
        unit: id(2),
        number,
        nonce: id(100 + number as u8),
        before: id(4),
        owner: Some(holder(owner)),
        epoch: Epoch {
            number: 4,
            nonce: id(5),
        },
        drainer: None,
        given: 1,
        wanted: 1,
        degraded: None,
        at_origin: false,
        quiesced: false,
        members: members.iter().map(member).collect(),
    }
}

struct Counter;

impl Nonces for Counter {
    fn fresh(&mut self) -> Uuid {
        id(200)
    }
}

struct Host(Unit, Vec<Action>);

impl Host {
    /// Host 1, which has seen this record and has a client or not.
    fn new(record: &Record, wanted: bool) -> Host {
        let mut host = Host(Unit::new(id(1), id(2), holder(1), None), vec![]);
        host.tell(Event::Wanted(wanted));
        if !wanted {
            host.tell(Event::Begin);
        }
        host.sees(record);
        host
    }

    fn tell(&mut self, event: Event) {
        let mut cx = Cx {
            nonces: &mut Counter,
            out: &mut self.1,
        };
        self.0.handle(&mut cx, event);
    }

    fn sees(&mut self, record: &Record) {
        self.tell(Event::Seen(Ok(Some(record.clone()))));
    }

    fn link(&mut self, up: bool) {
        let host = id(OWNER);
        self.tell(Event::Link { host, up });
    }

    fn hears(&mut self, body: Body) {
        let from = id(OWNER);
        self.tell(Event::Heard { from, body });
    }
}

#[test]
fn a_silent_owner_is_replaced_for_a_client_where_others_have_copies() {
    let full = record(3, OWNER, &[OWNER, 2]);
    let mut host = Host::new(&full, true);
    assert_eq!(*host.0.state(), State::Proof);
    host.tell(Event::Silent { number: 2 });
    host.sees(&full);
    assert_eq!(*host.0.state(), State::Proof, "of another record");
    host.tell(Event::Silent { number: 3 });
    host.sees(&full);
    assert_eq!(*host.0.state(), State::Lent);

    for alone in [record(3, OWNER, &[OWNER]), record(3, OWNER, &[])] {
        let mut host = Host::new(&alone, true);
        host.tell(Event::Silent { number: 3 });
        host.sees(&alone);
        assert_eq!(*host.0.state(), State::Proof, "it has all alone");
    }
}

#[test]
fn copies_that_are_not_heard_are_not_waited_for_where_the_origin_has_all() {
    let mut at_origin = record(3, OWNER, &[OWNER, 2]);
    (at_origin.at_origin, at_origin.wanted) = (true, 2);
    at_origin.degraded = Some(Degraded::PeerLost);
    let host = |record: &Record| {
        let mut host = Host::new(record, true);
        host.tell(Event::Silent { number: 3 });
        host.sees(record);
        host
    };
    let mut lost = host(&at_origin);
    assert_eq!(
        *lost.0.state(),
        State::Proof,
        "nothing is served before proof"
    );
    lost.tell(Event::Proved { number: 3 });
    lost.sees(&at_origin);
    let whole = matches!(lost.1.last(), Some(Action::Prepare { whole: true, .. }));
    assert!(whole, "{:?}", lost.1.last());

    let mut heard = host(&at_origin);
    heard.tell(Event::Link {
        host: id(2),
        up: true,
    });
    heard.tell(Event::Silent { number: 3 });
    heard.sees(&at_origin);
    assert_eq!(
        *heard.0.state(),
        State::Lent,
        "a copy may have more, and needs no proof"
    );

    let mut here = at_origin.clone();
    here.members[1].host = id(1);
    here.members[1].cache = id(1);
    assert_eq!(*host(&here).0.state(), State::Lent, "it has a copy itself");
}

#[test]
fn an_owner_that_is_heard_is_asked_though_it_was_silent() {
    let full = record(3, OWNER, &[OWNER, 2]);
    let mut host = Host::new(&full, true);
    host.tell(Event::Silent { number: 3 });
    host.link(true);
    host.sees(&full);
    assert_eq!(*host.0.state(), State::Asking { host: id(OWNER) });
    host.link(false);
    host.sees(&full);
    assert_eq!(*host.0.state(), State::Proof, "it is silent anew");
}

#[test]
fn a_host_without_a_client_replaces_nobody() {
    let full = record(3, OWNER, &[OWNER, 2]);
    let mut host = Host::new(&full, true);
    host.tell(Event::Wanted(false));
    host.tell(Event::Silent { number: 3 });
    host.tell(Event::Wanted(true));
    host.sees(&full);
    assert_eq!(*host.0.state(), State::Lent, "silent, and wanted again");

    let mut host = Host::new(&full, true);
    host.tell(Event::Silent { number: 3 });
    host.tell(Event::Wanted(false));
    host.sees(&full);
    assert_eq!(*host.0.state(), State::Away);
}

/// C9: by a record that it has seen, at rest, with nothing undecided.
#[test]
fn who_was_replaced_says_that_it_writes_no_more_once_it_knows_the_record() {
    let mut taken = record(4, OWNER, &[OWNER]);
    (taken.drainer, taken.given) = (Some(holder(1)), 4);
    let ask = |number: u64, epoch: Epoch| Body::Release { number, epoch };
    let says = |host: &Host| {
        let release = |it: &Action| matches!(it, Action::Release { .. });
        host.1.iter().any(release)
    };
    let mut host = Host::new(&taken, false);
    host.hears(ask(5, taken.epoch));
    assert!(!says(&host), "a record that it has not seen");
    assert_eq!(*host.0.state(), State::Looking);
    host.sees(&taken);
    let other = Epoch {
        number: 3,
        nonce: id(5),
    };
    host.hears(ask(4, other));
    assert!(!says(&host), "another epoch");
    host.hears(ask(4, taken.epoch));
    assert!(says(&host));

    // With another cache than it had as the owner.
    let mut made_anew = taken.clone();
    made_anew.drainer = Some(Holder {
        cache: id(77),
        ..holder(1)
    });
    let mut host = Host::new(&made_anew, false);
    host.hears(ask(4, taken.epoch));
    assert!(says(&host));

    // Not the drainer, or not replaced by who asks.
    let mut strange = taken.clone();
    strange.drainer = Some(holder(2));
    let mut host = Host::new(&strange, false);
    host.hears(ask(4, taken.epoch));
    assert!(!says(&host));

    // What it may have made itself is undecided.
    let doubt = record(5, 1, &[1]);
    let remembered = Some((doubt, true));
    let mut host = Host(Unit::new(id(1), id(2), holder(1), remembered), vec![]);
    host.sees(&taken);
    host.hears(ask(4, taken.epoch));
    assert!(!says(&host));
}

#[test]
fn who_acts_for_a_host_that_is_gone_goes_on_without_the_copies() {
    let full = record(3, 1, &[1, 2]);
    let host = Host::new(&full, false);
    assert_eq!(*host.0.state(), State::Lent, "its copies are asked");

    let by = Alone::default();
    let mut host = Host(Unit::new(id(1), id(2), holder(1), None).alone(by), vec![]);
    host.tell(Event::Begin);
    host.sees(&full);
    let State::Preparing(next) = host.0.state() else {
        panic!("{:?}", host.0.state());
    };
    assert_eq!(
        (next.number, next.epoch.number),
        (4, 5),
        "by a record and an epoch of its own"
    );
    assert_eq!(next.members, vec![], "no other copy counts from then on");
}

/// Fails when: the cache of a member follows another record than the one that was judged, or the
/// record that it makes does not say which copy has the data.
#[test]
fn who_acts_for_a_member_follows_the_record_that_was_judged_and_no_other() {
    let judged = record(3, OWNER, &[OWNER, 1]);
    let by = Alone {
        judged: judged.nonce,
        copy: Some(id(51)),
    };
    let acts = || {
        let mut host = Host(Unit::new(id(1), id(2), holder(1), None).alone(by), vec![]);
        host.tell(Event::Begin);
        host
    };
    let mut host = acts();
    host.sees(&judged);
    let State::Preparing(next) = host.0.state() else {
        panic!("{:?}", host.0.state());
    };
    let own = Member {
        host: id(1),
        cache: id(1),
        copy: id(51),
    };
    assert_eq!(next.owner, Some(holder(1)));
    assert_eq!((&next.members, next.given), (&vec![own], next.number));
    assert_eq!((&next.drainer, next.epoch.number), (&None, 5));

    // Another host has gone on, or let go of it, since it was judged.
    let mut released = record(4, OWNER, &[]);
    (released.owner, released.given) = (None, 0);
    for other in [record(4, 3, &[3, 1]), released] {
        let mut host = acts();
        host.sees(&other);
        let held = matches!(host.0.state(), State::Held(_));
        assert!(held, "{:?}", host.0.state());
        host.tell(Event::Tick);
        assert!(matches!(host.0.state(), State::Held(_)), "and stays so");
    }
}

/// Fails when: a host that was killed while it gave a unit away, or changed its members, removes
/// the ledger that the record of another host names.
#[test]
fn the_ledger_of_a_lost_record_is_spare_only_where_that_record_made_it() {
    let given = record(2, 3, &[1, 3]);
    let mut host = Host(
        Unit::new(id(1), id(2), holder(1), Some((given.clone(), true))),
        vec![],
    );
    host.tell(Event::Begin);
    assert_eq!(host.0.state(), &State::Deciding(given.clone()));
    // The other host has taken the unit over; the drainer and its epoch are those of before.
    let other = Record {
        nonce: id(9),
        ..given.clone()
    };
    let spare = |unit: &Unit, outcome| unit.spare_epoch(&outcome);
    assert_eq!(spare(&host.0, Outcome::Lost(other.clone())), None);
    assert_eq!(spare(&host.0, Outcome::Won(given.clone())), None);
    let newer = Epoch {
        number: 5,
        nonce: id(6),
    };
    let claimed = Record {
        epoch: newer,
        ..given
    };
    host = Host(
        Unit::new(id(1), id(2), holder(1), Some((claimed, true))),
        vec![],
    );
    host.tell(Event::Begin);
    assert_eq!(spare(&host.0, Outcome::Lost(other)), Some(newer));
}

/// Host 1 owns a unit without copies and serves it.
fn serving() -> Host {
    let mut record = record(3, 1, &[]);
    (record.wanted, record.given) = (0, 0);
    let mut host = Host::new(&record, true);
    assert_eq!(*host.0.state(), State::Owner);
    host.1.clear();
    host
}

fn decide(host: &mut Host, open: bool) -> Record {
    host.tell(Event::Window(open));
    assert!(host.0.changes_window() && *host.0.state() == State::Owner);
    host.tell(Event::Remembered);
    let decided = host.1.iter().rev().find_map(|action| match action {
        Action::Decide { record, .. } => Some(record.clone()),
        _ => None,
    });
    let record = decided.expect("it is made");
    assert!(record.quiesced == open && record.epoch.number == 4);
    record
}

/// Fails when: a unit with a backup window is let go of, which would bring what is dirty to the
/// image, or is not any more when the window is closed.
#[test]
fn a_unit_with_a_backup_window_stays_with_its_owner() {
    let mut host = serving();
    let record = decide(&mut host, true);
    let asks = |host: &mut Host| {
        host.1.clear();
        host.tell(Event::Wanted(false));
        host.hears(Body::Take { number: 3 });
        let denied = |it: &Action| {
            matches!(
                it,
                Action::Send {
                    body: Body::Denied { .. },
                    ..
                }
            )
        };
        (host.1.iter().any(denied), host.1.contains(&Action::Drain))
    };
    assert_eq!(asks(&mut host), (true, false), "while it is opened");
    host.tell(Event::Decided(Outcome::Won(record)));
    assert!(host.0.newest().is_some_and(|it| it.quiesced) && !host.0.changes_window());
    assert_eq!(asks(&mut host), (true, false));
    host.tell(Event::Leave);
    assert!(!host.1.contains(&Action::Drain), "the daemon ends");
    host.tell(Event::Window(true));
    assert!(!host.0.changes_window(), "it is open");
    let record = decide(&mut host, false);
    assert_eq!(asks(&mut host), (true, false), "while it is closed");
    host.tell(Event::Decided(Outcome::Won(record)));
    assert_eq!(asks(&mut host), (false, true));
}

/// Fails when: a record of a window that cannot be read is taken for none, or is not read again; or
/// one that was never there keeps the unit.
#[test]
fn a_window_that_is_in_doubt_is_asked_for_again() {
    let mut host = serving();
    let record = decide(&mut host, true);
    host.tell(Event::Decided(Outcome::Damaged("unread".into())));
    assert!(host.0.changes_window() && host.0.may_own());
    host.1.clear();
    host.tell(Event::Tick);
    let again = Action::Decide {
        record: record.clone(),
        again: true,
    };
    assert_eq!(host.1, [again]);
    let mut other = record.clone();
    (other.nonce, other.owner, other.quiesced) = (id(77), Some(holder(OWNER)), false);
    host.tell(Event::Decided(Outcome::Lost(other)));
    assert!(host.1.contains(&Action::Stop), "another host was given it");
    let mut host = serving();
    decide(&mut host, true);
    host.tell(Event::Decided(Outcome::Unwritten));
    assert!(!host.0.changes_window() && *host.0.state() == State::Owner);
    assert!(host.0.newest().is_some_and(|it| !it.quiesced));
}

/// Fails when: another host, or another boot of this one, goes on without the window.
#[test]
fn who_takes_a_unit_over_takes_its_window() {
    let prepared = |host: &mut Host| match host.0.state() {
        State::Preparing(record) => record.quiesced,
        state => panic!("{state:?}"),
    };
    let mut open = record(3, OWNER, &[]);
    (open.quiesced, open.wanted, open.given) = (true, 0, 0);
    let mut host = Host::new(&open, true);
    host.tell(Event::Proved { number: 3 });
    host.sees(&open);
    assert!(prepared(&mut host));
    let mut booted = open.clone();
    booted.owner = Some(Holder {
        boot: id(99),
        ..holder(1)
    });
    assert!(prepared(&mut Host::new(&booted, true)));
    // Who acts for a host that is gone has the order to write the image.
    let by = Alone {
        judged: booted.nonce,
        copy: None,
    };
    let unit = Unit::new(id(1), id(2), holder(1), None).alone(by);
    let mut host = Host(unit, vec![]);
    host.tell(Event::Wanted(true));
    booted.owner = Some(holder(1));
    host.sees(&booted);
    assert!(!prepared(&mut host));
}
