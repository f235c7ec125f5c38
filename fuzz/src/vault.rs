//! The target for what hosts of a cluster leave and say about volumes: records, pointers, messages.
//!
//! Invariants: parsing returns and never panics; what was parsed is written again as bytes that
//! read the same; a look and an attempt to make a record end, or ask for one more call, whatever
//! they are answered.

use crate::repair;
use crate::source::Source;
use engine::event::{Credit, LogRoom};
use engine::format::Kind;
use engine::types::{Serial, Uuid};
use node::copy::{Action, Copy, Event};
use node::history::{Generation, History};
use node::message::{About, Body, Disk, Health, Message, Status};
use node::record::{Degraded, Epoch, Holder, MEMBERS_MAX, Member, Pointer, RECORD_BYTES, Record};
use node::vault::{Answer, Cas, Look, Step};

const CALLS_MAX: usize = 64;

pub fn vault(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let choice = source.byte();
    if choice & 1 == 0 {
        return message(source, choice & 2 == 0);
    }
    let kind = match choice & 2 == 0 {
        true => Kind::VaultRecord,
        false => Kind::Pointer,
    };
    let mut bytes = match (choice & 4 == 0, kind) {
        (true, Kind::VaultRecord) => record(source).encode(),
        (true, _) => pointer(source).encode(),
        (false, _) => source.take(RECORD_BYTES).to_vec(),
    };
    if choice & 8 == 0 {
        source.damage(&mut bytes);
    }
    if choice & 16 == 0 {
        bytes.resize(RECORD_BYTES, 0);
        repair::stamp(&mut bytes, kind);
        repair::seal(&mut bytes, RECORD_BYTES);
    }
    machines(source, &bytes);
    match kind {
        Kind::VaultRecord => Record::parse(&bytes).is_ok_and(|parsed| {
            assert_eq!(Record::parse(&parsed.encode()), Ok(parsed));
            true
        }),
        _ => Pointer::parse(&bytes).is_ok_and(|parsed| {
            assert_eq!(Pointer::parse(&parsed.encode()), Ok(parsed));
            true
        }),
    }
}

fn holder(source: &mut Source<'_>) -> Holder {
    Holder {
        host: Uuid(source.bytes16()),
        cache: Uuid(source.bytes16()),
        boot: Uuid(source.bytes16()),
        session: Uuid(source.bytes16()),
        name: source.text(16),
    }
}

fn record(source: &mut Source<'_>) -> Record {
    let mut record = Record {
        cluster: Uuid(source.bytes16()),
        unit: Uuid(source.bytes16()),
        number: source.number().clamp(1, u64::MAX - 1),
        nonce: Uuid(source.bytes16()),
        before: Uuid(source.bytes16()),
        owner: None,
        epoch: Epoch {
            number: source.number(),
            nonce: Uuid(source.bytes16()),
        },
        drainer: None,
        given: 0,
        wanted: source.byte() % 8,
        degraded: None,
        at_origin: false,
        quiesced: false,
        members: Vec::new(),
    };
    if source.flag() {
        record.owner = Some(holder(source));
        record.drainer = source.flag().then(|| holder(source));
        record.given = source.number() % (record.number + 1);
        record.degraded = source.pick(&[
            None,
            Some(Degraded::PeerLost),
            Some(Degraded::TakenOver),
            Some(Degraded::TooFew),
        ]);
        for host in 0..source.below(MEMBERS_MAX + 1) {
            let mut id = source.bytes16();
            id[0] = host as u8;
            record.members.push(Member {
                host: Uuid(id),
                cache: Uuid(source.bytes16()),
                copy: Uuid(source.bytes16()),
            });
        }
    }
    if record.wanted == 0 && record.members.is_empty() && record.drainer.is_none() {
        (record.given, record.degraded) = (0, None);
    }
    record
}

fn pointer(source: &mut Source<'_>) -> Pointer {
    Pointer {
        cluster: Uuid(source.bytes16()),
        unit: Uuid(source.bytes16()),
        inode: source.number(),
        vault: source.text(64),
    }
}

fn message(source: &mut Source<'_>, built: bool) -> bool {
    let kind = source.byte();
    if kind >= 128 {
        return of_copies(source, kind);
    }
    let body = match kind % 5 {
        0 => Body::Take {
            number: source.u64(),
        },
        1 => Body::Denied {
            why: source.text(64),
        },
        2 => Body::Draining {
            bytes: source.u64(),
        },
        3 => Body::Newer {
            number: source.u64(),
        },
        _ => Body::NotMine {
            number: source.u64(),
        },
    };
    let unit = Uuid(source.bytes16());
    let mut bytes = match built {
        true => Message { unit, body }.encode(),
        false => source.take(1024).to_vec(),
    };
    source.damage(&mut bytes);
    Message::parse(&bytes).is_ok_and(|parsed| {
        assert_eq!(Message::parse(&parsed.encode()), Ok(parsed));
        true
    })
}

fn credit(source: &mut Source<'_>) -> Credit {
    let mut room = || LogRoom {
        blocks: source.u64(),
        extents: source.u64(),
    };
    Credit {
        upto: room(),
        most: room(),
    }
}

/// What of a message is read when some of its bytes have changed.
fn damaged(source: &mut Source<'_>, message: Message) -> Option<Message> {
    let mut bytes = message.encode();
    source.damage(&mut bytes);
    let parsed = Message::parse(&bytes).ok()?;
    assert_eq!(Message::parse(&parsed.encode()), Ok(parsed.clone()));
    Some(parsed)
}

/// A message about a copy: what a machine of a copy does with it never panics either.
fn of_copies(source: &mut Source<'_>, kind: u8) -> bool {
    let mut id = || Uuid(source.bytes16());
    let (unit, copy, session) = (id(), id(), id());
    let record = Box::new(record(source));
    let (host, cache) = (unit, session);
    let member = Member { host, cache, copy };
    let serial = Serial(source.number());
    let status = status(source, copy, serial);
    let history = status.history.clone();
    let fresh = source.flag();
    let about = about(source, unit);
    let open = Body::Open {
        member,
        session,
        fresh: true,
        destaged: serial,
        record: record.clone(),
        about: about.clone(),
    };
    let body = match kind % 14 {
        0 => Body::Probed { status },
        1 => Body::Open {
            member,
            session,
            fresh,
            destaged: serial,
            record,
            about,
        },
        2 => Body::Opened {
            session,
            credit: credit(source),
            status,
        },
        3 => Body::Resume {
            copy,
            session,
            history,
        },
        4 => Body::Adopt {
            copy,
            session,
            record,
        },
        5 => Body::Ack {
            copy,
            session,
            term: source.u64(),
            durable: serial,
            batch: source.u64(),
            credit: credit(source),
        },
        6 => Body::Freeze { copy, record },
        7 => Body::Drop { copy, record },
        8 => Body::NoRoom { copy, session },
        9 => Body::Keep {
            copy,
            record,
            destaged: serial,
        },
        10..13 => of_guests(source, kind, fresh),
        _ => Body::Destaged { copy, serial },
    };
    let Some(parsed) = damaged(source, Message { unit, body }) else {
        return false;
    };
    hear((unit, session), Uuid(source.bytes16()), [open, parsed.body]);
    true
}

/// Of guests that move.
fn of_guests(source: &mut Source<'_>, kind: u8, flag: bool) -> Body {
    match kind % 3 {
        0 => Body::Attach,
        1 => Body::HandOver { write_back: flag },
        _ => Body::Standby {
            disk: Disk {
                size_bytes: source.number(),
                block_bytes: source.u32(),
                read_only: flag,
                write_back: !flag,
            },
        },
    }
}

fn about(source: &mut Source<'_>, volume: Uuid) -> About {
    About {
        name: source.text(64),
        origin: source.text(256),
        volume,
        size_bytes: source.number(),
    }
}

fn status(source: &mut Source<'_>, copy: Uuid, serial: Serial) -> Status {
    let generation = Generation {
        term: source.number(),
        restarts: source.u32(),
    };
    let history = History::empty(serial);
    Status {
        copy,
        term: source.u64(),
        history: history.fork(generation).unwrap_or(history),
        from: Serial(source.number()),
        destaged: Serial(source.number()),
        health: source.pick(&[Health::Whole, Health::Recovering, Health::Damaged]),
    }
}

/// A copy that was opened by the first of these hears both.
fn hear(me: (Uuid, Uuid), from: Uuid, bodies: [Body; 2]) {
    let mut copy = Copy::make(me, &bodies[0]).expect("it is made");
    for body in bodies {
        let mut out = Vec::new();
        copy.handle(&mut out, Event::Heard { from, body });
        if out.iter().any(|it| matches!(it, Action::Persist(_))) {
            copy.handle(&mut out, Event::Persisted);
        }
    }
}

/// Answers of a vault, in any order, some of them with these bytes.
fn machines(source: &mut Source<'_>, bytes: &[u8]) {
    let unit = Uuid(source.bytes16());
    let mut look = Look::<Record>::new(unit, None);
    let mut cas = Cas::new(record(source));
    for _ in 0..CALLS_MAX {
        if source.is_empty() {
            return;
        }
        let answer = match source.byte() % 6 {
            0 => Answer::Done,
            1 => Answer::Bytes(bytes.to_vec()),
            2 => Answer::Names(vec![source.text(64), source.text(64)]),
            3 => Answer::Absent,
            _ => Answer::Failed,
        };
        if let Step::End(_) = look.answer(answer.clone()) {
            look = Look::new(unit, None);
        }
        if let Step::End(_) = cas.answer(answer) {
            cas = Cas::again(record(source));
        }
    }
}
