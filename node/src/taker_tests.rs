//! Schedules of a host that takes a unit of several copies over; the search has all orders.

use super::*;
use crate::fixtures::{holder, id};
use crate::record::Epoch;
use alloc::vec;

const FIRST: u64 = 1 << 42;

struct Counter(u8);

impl Nonces for Counter {
    fn fresh(&mut self) -> Uuid {
        self.0 += 1;
        id(200 + self.0)
    }
}

fn member(number: u8) -> Member {
    Member {
        host: id(number),
        cache: id(number),
        copy: id(50 + number),
    }
}

/// Of host 1, with copies on these and itself.
fn record(copies: &[u8]) -> Record {
    Record {
        cluster: id(1),
        unit: id(2),
        number: 1,
        nonce: id(3),
        before: id(4),
        owner: Some(holder(1)),
        epoch: Epoch::default(),
        drainer: None,
        given: 1,
        wanted: copies.len() as u8,
        degraded: None,
        at_origin: false,
        quiesced: false,
        members: [1].iter().chain(copies).map(|it| member(*it)).collect(),
    }
}

fn status(number: u8, term: u64, end: u64, health: Health) -> Status {
    let begun = History::empty(Serial(0)).fork(Generation {
        term: 1,
        restarts: 0,
    });
    let mut history = begun.expect("serials are left");
    history.grow(Serial(end));
    Status {
        copy: member(number).copy,
        term,
        history,
        from: Serial(0),
        destaged: Serial(0),
        health,
    }
}

struct Host {
    taker: Taker,
    nonces: Counter,
    out: Vec<Action>,
}

impl Host {
    /// This host takes the unit with the copy of that one.
    fn takes(me: u8, record: Record, with: u8) -> Host {
        let own = record.member(id(me));
        let own = own.map(|_| status(me, 1, FIRST, Health::Whole));
        let mut host = Host {
            taker: Taker::new(holder(me), record, own, None),
            nonces: Counter(0),
            out: vec![],
        };
        host.tell(Event::Begin);
        let status = status(with, 1, FIRST, Health::Whole);
        let (from, body) = (id(with), Body::Probed { status });
        host.tell(Event::Heard { from, body });
        host.tell(Event::Remembered);
        let record = host.taker.changing().expect("it takes").clone();
        host.out.clear();
        host.tell(Event::Decided(Outcome::Won(record)));
        host
    }

    fn tell(&mut self, event: Event) {
        let mut cx = Cx {
            nonces: &mut self.nonces,
            out: &mut self.out,
        };
        self.taker.handle(&mut cx, event);
    }

    fn frozen(&mut self, number: u8, end: u64, health: Health) {
        let body = Body::Frozen {
            status: status(number, 2, end, health),
            about: Default::default(),
        };
        let from = id(number);
        self.tell(Event::Heard { from, body });
    }

    /// Hosts that were told to freeze theirs.
    fn freezes(&self) -> Vec<Uuid> {
        let freezes = |it: &Action| match it {
            Action::Send {
                host,
                body: Body::Freeze { .. },
            } => Some(*host),
            _ => None,
        };
        self.out.iter().filter_map(freezes).collect()
    }

    fn members(&self) -> Vec<Uuid> {
        let members = self.taker.record().members.iter();
        members.map(|it| it.host).collect()
    }
}

/// Fails when: a copy that has all is forgotten, or that of the owner before is not.
#[test]
fn copies_that_are_left_stay_members_but_not_that_of_the_owner_before() {
    let host = Host::takes(2, record(&[2, 3, 4]), 2);
    assert_eq!(host.members(), [2, 3, 4].map(id));
    assert_eq!(host.freezes(), [id(2)], "its own is enough");
    assert_eq!(host.taker.record().degraded, Some(Degraded::TakenOver));
}

/// Fails when: a host without a copy waits for one host, though another one has a copy as well.
#[test]
fn any_copy_that_is_whole_is_gone_on_from() {
    let mut host = Host::takes(5, record(&[2, 3]), 2);
    assert_eq!(host.members(), [5, 2, 3].map(id));
    assert_eq!(host.freezes(), [2, 3].map(id));
    host.frozen(2, FIRST, Health::Damaged);
    assert!(matches!(host.taker.state(), State::Freezing(_)));
    host.frozen(3, FIRST + 7, Health::Whole);
    let State::Owning(owns) = host.taker.state() else {
        panic!("{:?}", host.taker.state());
    };
    assert_eq!(owns.source, member(3).copy);
    assert_eq!(
        owns.history.forks().last().map(|it| it.upto),
        Some(Serial(FIRST + 7))
    );
    assert_eq!(owns.from, owns.history.end());
}

#[test]
fn a_damaged_copy_that_is_the_only_one_holds_the_unit() {
    let mut host = Host::takes(5, record(&[2]), 2);
    host.frozen(2, FIRST, Health::Damaged);
    assert!(matches!(host.taker.state(), State::Held(_)));
}
