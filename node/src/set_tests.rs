//! Schedules of the set of an owner, one after the other; the search has all orders.

use super::*;
use crate::broken::Rule;
use crate::change::Order;
use crate::fixtures::{holder, id};
use alloc::vec;
use engine::event::Credit;

const FIRST: u64 = 1 << 42;

fn member(number: u8) -> Member {
    Member {
        host: id(number),
        cache: id(number),
        copy: id(50 + number),
    }
}

struct Counter(u8);

impl Nonces for Counter {
    fn fresh(&mut self) -> Uuid {
        self.0 += 1;
        id(200 + self.0)
    }
}

struct Owner {
    set: Set,
    nonces: Counter,
    out: Vec<Action>,
}

impl Owner {
    /// Owner 1 under record 1.
    fn new(members: &[u8], wanted: u8, degraded: Option<Degraded>, drainer: Option<u8>) -> Owner {
        let record = Record {
            cluster: id(1),
            unit: id(2),
            number: 1,
            nonce: id(3),
            before: id(4),
            owner: Some(holder(1)),
            epoch: Epoch {
                number: 4,
                nonce: id(5),
            },
            drainer: drainer.map(holder),
            given: 1,
            wanted,
            degraded,
            at_origin: false,
            quiesced: false,
            members: vec![],
        };
        let empty = History::empty(Serial(0));
        let owns = Ownership::alone(record, member(1), &empty, Serial(0)).expect("serials");
        let members = members.iter().map(|it| member(*it)).collect();
        let record = Record {
            members,
            ..owns.record.clone()
        };
        let mut owner = Owner {
            set: Set::new(holder(1), Ownership { record, ..owns }),
            nonces: Counter(0),
            out: vec![],
        };
        owner.tell(Event::Begin);
        owner
    }

    fn tell(&mut self, event: Event) {
        let mut cx = Cx {
            nonces: &mut self.nonces,
            out: &mut self.out,
        };
        self.set.handle(&mut cx, event);
    }

    /// The copy of a host opens, resumes and has all up to here.
    fn joins(&mut self, number: u8, durable: u64) {
        self.joins_behind(number, durable, Serial(0));
    }

    /// So too, of what the origin lacks.
    fn joins_behind(&mut self, number: u8, durable: u64, destaged: Serial) {
        let status = Status {
            copy: self.copy_of(number),
            term: 1,
            history: History::empty(destaged),
            from: destaged,
            destaged,
            health: Health::Whole,
        };
        let (copy, session) = (status.copy, id(91));
        let opened = Body::Opened {
            session,
            credit: Credit::default(),
            status,
        };
        self.hears(number, opened);
        let end = destaged;
        self.hears(number, Body::Resumed { copy, session, end });
        self.acks(number, durable);
    }

    fn copy_of(&self, number: u8) -> Uuid {
        let mut peers = self.set.peers.iter();
        let peer = peers.find(|it| it.member.host == id(number));
        peer.expect("it is a peer").member.copy
    }

    /// Without credit: that is no reason to leave it out (correction 13).
    fn acks(&mut self, number: u8, durable: u64) {
        let body = Body::Ack {
            copy: self.copy_of(number),
            session: id(91),
            term: 1,
            durable: Serial(durable),
            batch: 1,
            credit: Credit::default(),
        };
        self.hears(number, body);
    }

    fn hears(&mut self, number: u8, body: Body) {
        let from = id(number);
        self.tell(Event::Heard { from, body });
    }

    fn writes(&mut self, serial: u64) {
        self.tell(Event::Given(Serial(serial)));
        self.tell(Event::Synced(Serial(serial)));
    }

    fn changing(&self) -> Option<Record> {
        self.set.change.as_ref().map(|it| it.record().clone())
    }

    fn wins(&mut self) -> Record {
        self.tell(Event::Remembered);
        let record = self.changing().expect("a change is under way");
        self.tell(Event::Decided(Outcome::Won(record.clone())));
        record
    }

    /// How often a host was told to drop a copy.
    fn drops(&self, number: u8, copy: Uuid) -> usize {
        let drops = |it: &&Action| match it {
            Action::Send { host, body } => {
                *host == id(number) && matches!(body, Body::Drop { copy: it, .. } if *it == copy)
            }
            _ => false,
        };
        self.out.iter().filter(drops).count()
    }

    fn chooses(&mut self, number: u8) {
        assert!(
            self.out
                .iter()
                .any(|it| matches!(it, Action::Choose { .. }))
        );
        self.tell(Event::Chosen(Some((id(number), id(number)))));
    }
}

/// Schedule 6.2: what is left out counts until the record without it is decided.
#[test]
fn a_flush_waits_for_a_lost_member_until_the_record_without_it_is_decided() {
    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.writes(FIRST);
    assert_eq!(owner.set.acknowledge(), None, "its fork is not there (C6)");
    owner.joins(2, FIRST);
    assert_eq!(owner.set.state(), State::Full);
    owner.writes(FIRST + 1);
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST)));
    owner.tell(Event::Unfit { host: id(2) });
    assert_eq!(owner.set.state(), State::Waiting);
    assert!(matches!(
        owner.out.last(),
        Some(Action::Vault(Order::Remember {
            undecided: true,
            ..
        }))
    ));
    owner.tell(Event::Remembered);
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST)));
    assert_eq!(owner.set.begin_cut(), Some(Serial(FIRST)));
    owner.tell(Event::Decided(Outcome::Damaged("?".into())));
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST)), "undecided");
    let record = owner.wins();
    assert_eq!(record.degraded, Some(Degraded::PeerLost));
    assert_eq!(owner.set.state(), State::Degraded);
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST + 1)));
}

/// Schedules 1 and 2, H17: a flush and a cut that the learner has not, and then the union.
#[test]
fn a_learner_is_proposed_with_all_flushes_and_cuts_and_counts_from_then() {
    let degraded = Some(Degraded::PeerLost);
    let mut owner = Owner::new(&[1], 1, degraded, None);
    owner.writes(FIRST);
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST)));
    assert_eq!(owner.set.begin_cut(), Some(Serial(FIRST)));
    owner.chooses(3);
    owner.joins(3, 0);
    owner.tell(Event::Live { host: id(3) });
    assert_eq!(owner.changing(), None, "it has nothing yet");
    owner.writes(FIRST + 1);
    assert_eq!(owner.set.begin_cut(), None, "it counts since it is live");
    owner.acks(3, FIRST);
    let record = owner.changing().expect("it has all");
    assert_eq!(record.members.len(), 2);
    assert_eq!(record.degraded, None);
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST)));
    owner.acks(3, FIRST + 1);
    assert_eq!(owner.set.begin_cut(), Some(Serial(FIRST + 1)));
    owner.wins();
    assert_eq!((owner.set.state(), owner.set.real()), (State::Full, 1));
    // H18: nothing above what was sent is believed.
    owner.acks(3, u64::MAX);
    owner.writes(FIRST + 2);
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST + 1)));
}

/// Correction 10: degraded until what was left is in p + 1 copies. C7, C9: no cut before proof.
#[test]
fn after_a_takeover_a_unit_is_degraded_and_its_origin_is_not_written_before_proof() {
    let mut owner = Owner::new(&[1], 1, Some(Degraded::TakenOver), Some(9));
    owner.writes(FIRST);
    assert_eq!((owner.set.state(), owner.set.real()), (State::Degraded, 0));
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST)), "it serves");
    assert_eq!(owner.set.begin_cut(), None, "and does not drain");
    let other = Epoch {
        number: 3,
        ..owner.set.record().epoch
    };
    owner.tell(Event::Proved(other));
    assert_eq!(owner.set.preparing, None, "proof of another epoch");
    owner.tell(Event::Proved(owner.set.record().epoch));
    owner.tell(Event::Prepared(Ok(())));
    let record = owner.wins();
    assert_eq!((record.epoch.number, &record.drainer), (5, &None));
    assert_eq!(record.degraded, Some(Degraded::TakenOver));
    assert!(
        owner
            .out
            .iter()
            .any(|it| matches!(it, Action::Drain { .. }))
    );
    assert_eq!(owner.set.begin_cut(), Some(Serial(FIRST)));
    owner.chooses(3);
    owner.joins(3, FIRST);
    owner.tell(Event::Live { host: id(3) });
    assert_eq!(owner.wins().degraded, None);
    assert_eq!(owner.set.state(), State::Full);
}

/// C9: the word of the drainer counts for the ownership that it knew, and for its epoch.
#[test]
fn the_drainer_of_before_says_that_it_writes_no_more() {
    let asked = |owner: &mut Owner| {
        owner.out.clear();
        owner.tell(Event::Tick);
        let release = |it: &Action| match it {
            Action::Send {
                host,
                body: Body::Release { number, epoch },
            } => Some((*host, *number, *epoch)),
            _ => None,
        };
        owner.out.iter().find_map(release)
    };
    for left_out in [None, Some(Rule::ReleaseIsOfThisOwner)] {
        crate::broken::leave_out(left_out);
        let mut owner = Owner::new(&[1], 1, Some(Degraded::TakenOver), Some(9));
        assert!(owner.out.contains(&Action::Serve), "it serves at once");
        let record = owner.set.record().clone();
        let (host, number, epoch) = asked(&mut owner).expect("it is asked");
        assert_eq!((host, number, epoch), (id(9), 1, record.epoch));
        let other = Epoch {
            number: 3,
            ..record.epoch
        };
        let says = |owner: &mut Owner, from: u8, number: u64, epoch: Epoch| {
            let body = Body::Released { number, epoch };
            let from = id(from);
            owner.tell(Event::Heard { from, body });
            owner.set.preparing.is_some()
        };
        assert!(!says(&mut owner, 9, 1, other), "another epoch");
        assert!(!says(&mut owner, 8, 1, epoch), "another host");
        assert!(!says(&mut owner, 9, 2, epoch), "no record of this owner");
        let early = says(&mut owner, 9, 0, epoch);
        assert_eq!(early, left_out.is_some(), "said of an ownership before");
        assert!(says(&mut owner, 9, 1, epoch));
        assert!(asked(&mut owner).is_none() && owner.set.waits_for().is_none());
    }
    crate::broken::leave_out(None);
}

/// C11, H19: a member that has lost what it had is left out, and another copy is made there.
#[test]
fn a_copy_that_has_too_little_or_too_much_is_not_resumed() {
    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.writes(FIRST + 1);
    owner.joins(2, FIRST + 1);
    owner.tell(Event::Fit { host: id(2) });
    // Its stream has ended, and it comes back with less than it had acknowledged.
    let status = Status {
        copy: id(52),
        term: 1,
        history: owner.set.history.upto(Serial(FIRST)),
        from: Serial(0),
        destaged: Serial(0),
        health: Health::Whole,
    };
    let (session, credit) = (id(91), Credit::default());
    owner.hears(
        2,
        Body::Opened {
            session,
            credit,
            status: status.clone(),
        },
    );
    assert_eq!(owner.set.state(), State::Waiting);
    assert_eq!(owner.wins().members, [member(1)]);
    owner.chooses(2);
    assert_eq!(owner.copy_of(2), id(52), "it may go on, if it fits");
    let more = History::checked(status.history.forks().to_vec(), Serial(FIRST + 9));
    let status = Status {
        history: more.expect("is sane"),
        ..status
    };
    owner.hears(
        2,
        Body::Opened {
            session,
            credit,
            status,
        },
    );
    assert_ne!(owner.copy_of(2), id(52), "it has more: a new copy");
}

#[test]
fn another_host_with_a_newer_record_ends_the_ownership_and_a_smaller_p_drops_a_copy() {
    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.joins(2, 0);
    owner.tell(Event::Wanted(0));
    assert_eq!(owner.wins().members, [member(1)]);
    assert_eq!(owner.set.state(), State::Full);
    owner.tell(Event::Wanted(1));
    let mut other = owner.changing().expect("p is in the record");
    other.owner = Some(holder(2));
    other.nonce = id(77);
    owner.tell(Event::Remembered);
    owner.tell(Event::Decided(Outcome::Lost(other)));
    assert_eq!(owner.set.state(), State::Ended);
    assert!(matches!(owner.out.last(), Some(Action::Stop { .. })));
    assert_eq!(owner.set.acknowledge(), None);
}

/// M2: the copy for a guest that may move is one more, and the first to go when it does not.
#[test]
fn a_standby_gets_a_copy_besides_and_no_unit_is_degraded_for_want_of_it() {
    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.joins(2, 0);
    owner.writes(FIRST);
    owner.acks(2, FIRST);
    owner.tell(Event::Standby(Some(id(3))));
    owner.out.clear();
    owner.tell(Event::Chosen(Some((id(4), id(4)))));
    assert_eq!(owner.set.learner(), None, "another host is not asked for");
    assert_eq!(owner.out, [], "nor is a place, before the next tick");
    owner.tell(Event::Tick);
    owner.chooses(3);
    owner.joins(3, FIRST);
    assert_eq!(owner.set.state(), State::Full);
    owner.tell(Event::Live { host: id(3) });
    let record = owner.wins();
    let hosts = |record: &Record| record.members.iter().map(|it| it.host).collect::<Vec<_>>();
    assert_eq!(hosts(&record), [id(1), id(2), id(3)]);
    assert_eq!((record.wanted, record.degraded), (1, None));
    owner.writes(FIRST + 1);
    owner.acks(2, FIRST + 1);
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST)), "it counts");
    owner.acks(3, FIRST + 1);
    owner.tell(Event::Wanted(0));
    assert_eq!(hosts(&owner.wins()), [id(1), id(3)]);
    owner.tell(Event::Standby(None));
    assert_eq!(owner.wins().members, [member(1)]);
}

/// A host that has the copy already needs no other one.
#[test]
fn a_standby_that_is_a_member_changes_nothing() {
    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.joins(2, 0);
    owner.out.clear();
    owner.tell(Event::Standby(Some(id(2))));
    owner.tell(Event::Tick);
    assert_eq!((owner.out.len(), owner.changing()), (0, None));
    owner.tell(Event::Standby(Some(id(1))));
    owner.tell(Event::Tick);
    assert_eq!((owner.out.len(), owner.changing()), (0, None));
}

/// H32, correction 13: a member without room is left out by its own word, and dropped after that.
#[test]
fn a_member_that_has_no_room_is_left_out_and_dropped_when_that_is_decided() {
    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.writes(FIRST);
    owner.joins(2, FIRST);
    let (copy, session) = (owner.copy_of(2), id(91));
    let drops = |owner: &Owner| owner.drops(2, copy);
    let other = id(92);
    owner.hears(
        2,
        Body::NoRoom {
            copy,
            session: other,
        },
    );
    assert_eq!(owner.set.state(), State::Full, "of another session");
    owner.hears(2, Body::NoRoom { copy, session });
    assert_eq!(owner.set.state(), State::Waiting);
    assert_eq!(drops(&owner), 0, "the record names it still");
    assert_eq!(owner.wins().members, [member(1)]);
    assert_eq!(drops(&owner), 1);
    // The word was lost, and the host offers the copy.
    let status = Status {
        copy,
        term: 1,
        history: owner.set.history.clone(),
        from: Serial(0),
        destaged: Serial(0),
        health: Health::Whole,
    };
    owner.out.clear();
    owner.hears(2, Body::Probed { status });
    assert_eq!(drops(&owner), 1);
    // Another learner there begins from nothing.
    owner.tell(Event::Tick);
    owner.chooses(2);
    assert_ne!(owner.copy_of(2), copy);
    let (copy, before) = (owner.copy_of(2), owner.set.record().number);
    owner.hears(2, Body::NoRoom { copy, session });
    assert_eq!(owner.set.learner(), None);
    assert_eq!(owner.set.record().number, before, "it did not count");
}

/// What is left of it would take the room of the one that is made in its place.
#[test]
fn a_copy_that_cannot_go_on_is_left_out_and_dropped_and_another_is_made_there() {
    let mut owner = Owner::new(&[1, 2, 3], 2, None, None);
    owner.writes(FIRST);
    owner.joins(3, FIRST);
    let copy = owner.copy_of(2);
    owner.hears(2, Body::Absent { copy });
    assert_eq!(owner.set.state(), State::Waiting);
    assert_eq!(owner.drops(2, copy), 0, "the record names it still");
    assert_eq!(owner.wins().members, [member(1), member(3)]);
    assert_eq!((owner.drops(2, copy), owner.set.real()), (1, 1));
    owner.tell(Event::Tick);
    owner.chooses(2);
    assert_ne!(owner.copy_of(2), copy);
    owner.joins(2, FIRST);
    owner.tell(Event::Live { host: id(2) });
    assert_eq!(owner.wins().members.len(), 3);
}

/// C12: what a copy of an owner before has is at the origin; it takes room for nothing.
#[test]
fn a_copy_whose_writes_are_all_at_the_origin_is_dropped_while_the_unit_is_degraded() {
    let mut owner = Owner::new(&[1], 1, Some(Degraded::PeerLost), None);
    owner.writes(FIRST + 1);
    let offer = |end: u64| Body::Probed {
        status: Status {
            copy: id(77),
            term: 1,
            history: History::empty(Serial(end)),
            from: Serial(0),
            destaged: Serial(0),
            health: Health::Whole,
        },
    };
    let drops = |owner: &Owner| {
        let drops = |it: &Action| {
            matches!(
                it,
                Action::Send {
                    body: Body::Drop { .. },
                    ..
                }
            )
        };
        owner.out.iter().any(drops)
    };
    owner.hears(2, offer(FIRST + 1));
    assert!(!drops(&owner), "it has what the origin has not");
    assert_eq!(owner.set.begin_cut(), Some(Serial(FIRST + 1)));
    owner.tell(Event::Destaged(Serial(FIRST + 1)));
    owner.hears(2, offer(FIRST + 1));
    assert!(drops(&owner));
}

/// C12: a copy that is not used lets go of what the origin has, if the owner's history says that it
/// is the same there.
#[test]
fn a_copy_of_an_owner_before_is_told_what_the_origin_has_of_it() {
    let mut owner = Owner::new(&[1], 1, Some(Degraded::PeerLost), None);
    owner.writes(FIRST + 2);
    assert!(owner.set.begin_cut().is_some());
    owner.tell(Event::Destaged(Serial(FIRST + 1)));
    let ours = owner.set.history().upto(Serial(FIRST + 9));
    let other = History::empty(Serial(FIRST + 9));
    for (history, told) in [(other, false), (ours, true)] {
        let status = Status {
            copy: id(77),
            term: 1,
            history,
            from: Serial(0),
            destaged: Serial(0),
            health: Health::Whole,
        };
        owner.out.clear();
        owner.hears(2, Body::Probed { status });
        let keeps = |it: &Action| match it {
            Action::Send {
                body: Body::Keep { destaged, .. },
                ..
            } => *destaged == Serial(FIRST + 1),
            _ => false,
        };
        assert_eq!(owner.out.iter().any(keeps), told);
    }
}

/// C14, correction 9: with all that was written, flushed or not.
#[test]
fn a_unit_is_given_to_a_copy_once_it_has_all_and_not_to_one_that_is_lost() {
    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.writes(FIRST + 1);
    owner.joins(2, FIRST);
    owner.tell(Event::Give(Some(holder(2))));
    assert!(owner.set.gives(), "it waits for the copy");
    assert_eq!(owner.changing(), None, "one write is not there");
    owner.tell(Event::Give(None));
    owner.acks(2, FIRST + 1);
    owner.tell(Event::Tick);
    assert_eq!(owner.changing(), None, "it is not to be given any more");
    owner.tell(Event::Give(Some(holder(2))));
    let given = owner.changing().expect("it has all");
    assert_eq!(given.owner, Some(holder(2)));
    assert_eq!(
        (given.given, &given.drainer),
        (given.number, &Some(holder(1)))
    );
    assert_eq!(given.members, [member(1), member(2)]);
    owner.tell(Event::Give(None));
    assert!(owner.set.gives(), "its record may be in the vault");
    owner.tell(Event::Remembered);
    owner.tell(Event::Decided(Outcome::Won(given)));
    assert_eq!(owner.set.state(), State::Ended);

    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.writes(FIRST + 1);
    owner.joins(2, FIRST);
    owner.tell(Event::Give(Some(holder(2))));
    owner.tell(Event::Unfit { host: id(2) });
    let without = owner.changing().expect("the lost copy is left out");
    assert_eq!(without.owner, Some(holder(1)));
    owner.wins();
    assert!(!owner.set.gives(), "it stays");
}

/// Correction 8: the record says it when the origin has all, and no more before it has less.
#[test]
fn a_record_says_that_the_origin_has_all_flushes_only_while_it_has_them() {
    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.tell(Event::AtOrigin(true));
    owner.writes(FIRST + 1);
    owner.joins(2, FIRST + 1);
    assert!(!owner.set.answers_at_origin(), "no copy is missing");
    owner.tell(Event::Unfit { host: id(2) });
    assert!(!owner.wins().at_origin, "the log does not obey yet");
    assert!(owner.set.answers_at_origin());
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST + 1)));
    // The log has answered one more before it obeyed.
    owner.writes(FIRST + 2);
    owner.tell(Event::Obeys(true));
    assert_eq!(owner.changing(), None, "the origin lacks some");
    assert_eq!(owner.set.begin_cut(), Some(Serial(FIRST + 2)));
    owner.tell(Event::Destaged(Serial(FIRST + 1)));
    assert_eq!(owner.changing(), None, "the origin lacks the last one");
    owner.tell(Event::Destaged(Serial(FIRST + 2)));
    assert!(owner.wins().at_origin);
    owner.writes(FIRST + 3);
    assert_eq!(
        owner.set.acknowledge(),
        Some(Serial(FIRST + 2)),
        "what the origin lacks is not answered"
    );
    owner.chooses(2);
    owner.joins_behind(2, FIRST + 3, Serial(FIRST + 2));
    owner.tell(Event::Live { host: id(2) });
    let full = owner.changing().expect("the copy is complete");
    assert!(!full.at_origin && full.degraded.is_none());
    assert!(owner.set.answers_at_origin(), "it is not decided");
    owner.wins();
    assert!(!owner.set.answers_at_origin() && !owner.set.obeys());
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST + 3)));
}

/// While its device fails the owner counts on the copy; what is written without the log is in none.
#[test]
fn an_owner_whose_device_fails_keeps_its_copy_until_the_origin_has_everything() {
    let mut owner = Owner::new(&[1, 2], 1, None, None);
    owner.writes(FIRST + 2);
    owner.joins(2, FIRST + 2);
    owner.tell(Event::OwnLog(OwnLog::Fails));
    let same = owner.wins();
    assert_eq!(same.members, [member(1), member(2)]);
    assert!(same.degraded.is_some() && owner.set.real() == 0);
    // Its copy is late, and is the only one that is complete.
    owner.tell(Event::Unfit { host: id(2) });
    assert_eq!(owner.changing(), None);
    owner.tell(Event::Fit { host: id(2) });
    assert_eq!(owner.set.begin_cut(), Some(Serial(FIRST + 2)));
    assert_eq!(owner.set.acknowledge(), Some(Serial(FIRST + 2)));
    owner.tell(Event::OwnLog(OwnLog::Past));
    assert_eq!(owner.changing(), None, "the origin lacks some");
    owner.tell(Event::Destaged(Serial(FIRST + 2)));
    let alone = owner.wins();
    assert_eq!(alone.members, [member(1)]);
    assert!(alone.at_origin && owner.set.answers_at_origin());
    owner.tell(Event::Tick);
    let asks = |it: &Action| matches!(it, Action::Choose { .. });
    assert!(!owner.out.iter().any(asks), "no copy could be made");
    owner.tell(Event::OwnLog(OwnLog::Good));
    assert!(!owner.wins().at_origin, "it goes by its log");
    owner.tell(Event::Tick);
    assert!(owner.out.iter().any(asks));
}

/// What its guest may see once is not lost with its host later.
#[test]
fn an_owner_with_more_than_its_origin_is_served_after_a_record_that_says_less() {
    let owner = Owner::new(&[1], 1, Some(Degraded::TooFew), None);
    let record = Record {
        at_origin: true,
        ..owner.set.record().clone()
    };
    let mut history = owner.set.history().clone();
    history.grow(Serial(FIRST));
    for (destaged, at_once) in [(FIRST, true), (FIRST - 1, false)] {
        let owns = Ownership {
            record: record.clone(),
            own: member(1),
            history: history.clone(),
            from: Serial(0),
            destaged: Serial(destaged),
            source: id(77),
        };
        let mut owner = Owner {
            set: Set::new(holder(1), owns),
            nonces: Counter(0),
            out: vec![],
        };
        owner.tell(Event::Begin);
        let drains = |it: &Action| matches!(it, Action::Drain { .. });
        assert_eq!(owner.out.iter().any(drains), at_once);
        if !at_once {
            assert!(!owner.wins().at_origin);
            assert!(owner.out.iter().any(drains), "it is served now");
        }
    }
}
