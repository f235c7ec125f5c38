//! What two hosts say to each other about one unit.
//!
//! ```text
//! taker ── Probe ─▶ copy ── Probed ─▶        taker ── Freeze ─▶ copy ── Frozen ─▶
//! taker without a copy ── Fetch ─▶ frozen copy ── batches ─▶
//! owner ── Open ─▶ copy ── Opened ─▶ owner ── Resume ─▶ copy ── Resumed ─▶ owner
//! owner ── Batch · Adopt · Cut · Destaged ─▶ copy ── Ack · NoRoom ─▶ (in this order, one stream)
//! owner ── Release ─▶ drainer of before ── Released ─▶ owner
//! owner ── Standby ─▶ who wants the unit ── Attach ─▶ owner ── HandOver ─▶
//! owner ── Keep · Drop ─▶ copy               a copy to a lower term ── Deposed ─▶
//! ```
//! Always true: a message moves no right by itself. It makes another host look at the vault, let go
//! of a unit by a record of its own, or bind a copy to a record that the vault has; so a message
//! that is lost, late, or said twice costs time only. What changes a copy, or vouches for one, has
//! its term. Parsing never panics on foreign bytes, and keeps no more than the limits here.
//! Deliberately absent: the writes themselves; see [`crate::batch`].

use crate::codec::{Bad, In, Out};
use crate::history::{FORKS_MAX, Fork, Generation, History};
use crate::record::{Epoch, Member, RECORD_BYTES, Record};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use engine::event::{Credit, LogRoom};
use engine::types::{Serial, Uuid};

/// Longest text for people.
pub const TEXT_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// A client of the sender wants the unit that the receiver owns by this record.
    Take {
        number: u64,
    },
    /// The owner does not let go of it, and why.
    Denied {
        why: String,
    },
    /// The owner brings what is dirty to the origin first; so many bytes are left.
    Draining {
        bytes: u64,
    },
    /// There is a newer record than the receiver may know.
    Newer {
        number: u64,
    },
    /// The receiver is no owner by what the sender knows of the vault.
    NotMine {
        number: u64,
    },
    /// What has this copy? Changes nothing.
    Probe {
        copy: Uuid,
    },
    Probed {
        status: Status,
    },
    /// The receiver has no copy of this name in this cache.
    Absent {
        copy: Uuid,
    },
    /// The owner of this record wants to send to a copy. `fresh`: it is made if it is not there.
    Open {
        member: Member,
        session: Uuid,
        fresh: bool,
        destaged: Serial,
        record: Box<Record>,
        /// As the sender's log has it; the machine of the set leaves it empty.
        about: About,
    },
    /// `credit`: what the copy takes of this session's batches.
    Opened {
        session: Uuid,
        credit: Credit,
        status: Status,
    },
    /// What is above the end of `history` follows in order; its forks are the owner's.
    Resume {
        copy: Uuid,
        session: Uuid,
        history: History,
    },
    Resumed {
        copy: Uuid,
        session: Uuid,
        end: Serial,
    },
    /// The owner goes on under a newer record of its own.
    Adopt {
        copy: Uuid,
        session: Uuid,
        record: Box<Record>,
    },
    /// All up to `durable` is synced, and so is the term.
    Ack {
        copy: Uuid,
        session: Uuid,
        term: u64,
        durable: Serial,
        batch: u64,
        credit: Credit,
    },
    /// A sync of the copy has failed.
    Failed {
        copy: Uuid,
        session: Uuid,
    },
    /// There is no room for the copy, or none for what it lacks and there was none for long.
    NoRoom {
        copy: Uuid,
        session: Uuid,
    },
    /// An epoch ends at this serial.
    Cut {
        copy: Uuid,
        session: Uuid,
        serial: Serial,
    },
    /// The ledger says that the origin has all up to this serial.
    Destaged {
        copy: Uuid,
        serial: Serial,
    },
    /// The owner goes on: its client uses the unit, which is a disk like this. A client of the
    /// receiver may be shown it, and its host gets a copy, so that the guest can move there.
    Standby {
        disk: Disk,
    },
    /// A client of the sender has been shown the unit, and may come to use it.
    Attach,
    /// What the guest of a client that went to sleep here believes of the write cache. Said before
    /// the unit is given; who has not heard it believes that it is off.
    HandOver {
        write_back: bool,
    },
    /// The owner of this record needs what the copy has: nothing of an earlier term is taken.
    Freeze {
        copy: Uuid,
        record: Box<Record>,
    },
    Frozen {
        status: Status,
        about: About,
    },
    /// The term of what was said is over; this is the record that a copy has adopted.
    Deposed {
        record: Box<Record>,
    },
    /// The owner of the record that froze the copy wants all that it has, for its own copy.
    Fetch {
        copy: Uuid,
        into: Uuid,
        session: Uuid,
        term: u64,
        destaged: Serial,
    },
    /// The record of this number gives the unit to the sender, and by this epoch the receiver may
    /// still write its origin: it is to say when it does not any more.
    Release {
        number: u64,
        epoch: Epoch,
    },
    /// By that record and that epoch the sender writes the origin no more, and will not again.
    Released {
        number: u64,
        epoch: Epoch,
    },
    /// A copy that is not used any more stays; the origin has what it has up to this serial.
    Keep {
        copy: Uuid,
        record: Box<Record>,
        destaged: Serial,
    },
    /// The owner has enough complete copies without this one.
    Drop {
        copy: Uuid,
        record: Box<Record>,
    },
}

/// Whether a copy can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Health {
    Whole = 0,
    /// Its host reads its log: what it has is not known yet. Never taken for absent.
    Recovering = 1,
    /// Something below its end cannot be read, or a sync has failed.
    Damaged = 2,
}

/// Longest name of a volume, and longest path of an origin.
const NAME_BYTES_MAX: usize = 64;
const ORIGIN_BYTES_MAX: usize = 1024;

/// What a host has to know of a volume to keep a copy of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct About {
    /// For people; the unit says which volume it is.
    pub name: String,
    pub origin: String,
    /// Of the volume in the owner's log and in its ledger.
    pub volume: Uuid,
    pub size_bytes: u64,
}

impl About {
    pub(crate) fn put(&self, out: &mut Out) {
        out.text(&self.name, NAME_BYTES_MAX);
        out.text(&self.origin, ORIGIN_BYTES_MAX);
        out.uuid(self.volume);
        out.u64(self.size_bytes);
    }

    pub(crate) fn take(from: &mut In<'_>) -> Result<About, Bad> {
        Ok(About {
            name: from.text("name", NAME_BYTES_MAX)?,
            origin: from.text("origin", ORIGIN_BYTES_MAX)?,
            volume: from.uuid()?,
            size_bytes: from.u64()?,
        })
    }
}

/// A disk as its guest sees it, wherever it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Disk {
    pub size_bytes: u64,
    pub block_bytes: u32,
    pub read_only: bool,
    /// The mode of the write cache that it begins with.
    pub write_back: bool,
}

/// What a copy says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    pub copy: Uuid,
    /// Of the newest record that it has adopted.
    pub term: u64,
    pub history: History,
    /// It has all writes of its history above this serial.
    pub from: Serial,
    /// As far as it knows, which may be late.
    pub destaged: Serial,
    pub health: Health,
}

impl Status {
    /// With the origin at `destaged` it has everything up to its end.
    pub fn is_complete(&self) -> bool {
        self.health == Health::Whole && self.from <= self.destaged
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    pub unit: Uuid,
    pub body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no message between hosts")]
pub struct Malformed;

impl From<Bad> for Malformed {
    fn from(_: Bad) -> Malformed {
        Malformed
    }
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out(Vec::from(self.unit.0));
        let (kind, number, text) = match &self.body {
            Body::Take { number } => (1, *number, ""),
            Body::Denied { why } => (2, 0, why.as_str()),
            Body::Draining { bytes } => (3, *bytes, ""),
            Body::Newer { number } => (4, *number, ""),
            Body::NotMine { number } => (5, *number, ""),
            of_copies => {
                put_copies(&mut out, of_copies);
                return out.0;
            }
        };
        out.u8(kind);
        out.u64(number);
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        out.0.extend_from_slice(&text.as_bytes()[..end]);
        out.0
    }

    pub fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
        let mut from = In(bytes);
        let unit = from.uuid()?;
        let kind = from.u8()?;
        if kind > LAST_WITH_TEXT {
            let body = take_copies(kind, &mut from)?;
            return match from.0.is_empty() {
                true => Ok(Message { unit, body }),
                false => Err(Malformed),
            };
        }
        let number = from.u64()?;
        let text = from.0;
        if text.len() > TEXT_BYTES_MAX || (kind != 2 && !text.is_empty()) {
            return Err(Malformed);
        }
        let text = core::str::from_utf8(text).map_err(|_| Malformed)?;
        let body = match kind {
            1 => Body::Take { number },
            2 if number == 0 => Body::Denied { why: text.into() },
            3 => Body::Draining { bytes: number },
            4 => Body::Newer { number },
            5 => Body::NotMine { number },
            _ => return Err(Malformed),
        };
        Ok(Message { unit, body })
    }
}

/// Kinds up to this one are a number and a text.
const LAST_WITH_TEXT: u8 = 5;

fn put_copies(out: &mut Out, body: &Body) {
    match body {
        Body::Probe { copy } => put_ids(out, 6, &[*copy]),
        Body::Probed { status } => put_status(out, 7, status),
        Body::Absent { copy } => put_ids(out, 8, &[*copy]),
        Body::Open {
            member,
            session,
            fresh,
            destaged,
            record,
            about,
        } => {
            put_ids(out, 9, &[member.host, member.cache, member.copy, *session]);
            out.u8(u8::from(*fresh));
            out.u64(destaged.0);
            put_record(out, record);
            about.put(out);
        }
        Body::Opened {
            session,
            credit,
            status,
        } => {
            put_ids(out, 10, &[*session]);
            put_credit(out, *credit);
            put_status_body(out, status);
        }
        Body::Resume {
            copy,
            session,
            history,
        } => {
            put_ids(out, 11, &[*copy, *session]);
            put_history(out, history);
        }
        Body::Resumed { copy, session, end } => {
            put_ids(out, 12, &[*copy, *session]);
            out.u64(end.0);
        }
        Body::Adopt {
            copy,
            session,
            record,
        } => {
            put_ids(out, 13, &[*copy, *session]);
            put_record(out, record);
        }
        stream => put_stream(out, stream),
    }
}

fn put_stream(out: &mut Out, body: &Body) {
    match body {
        Body::Ack {
            copy,
            session,
            term,
            durable,
            batch,
            credit,
        } => {
            put_ids(out, 14, &[*copy, *session]);
            out.u64(*term);
            out.u64(durable.0);
            out.u64(*batch);
            put_credit(out, *credit);
        }
        Body::Failed { copy, session } => put_ids(out, 15, &[*copy, *session]),
        Body::Cut {
            copy,
            session,
            serial,
        } => {
            put_ids(out, 16, &[*copy, *session]);
            out.u64(serial.0);
        }
        Body::Destaged { copy, serial } => {
            put_ids(out, 17, &[*copy]);
            out.u64(serial.0);
        }
        Body::Freeze { copy, record } => put_bound(out, 18, *copy, record),
        Body::Frozen { status, about } => {
            put_status(out, 19, status);
            about.put(out);
        }
        Body::Deposed { record } => {
            put_ids(out, 20, &[]);
            put_record(out, record);
        }
        Body::Drop { copy, record } => put_bound(out, 21, *copy, record),
        Body::Fetch {
            copy,
            into,
            session,
            term,
            destaged,
        } => {
            put_ids(out, 22, &[*copy, *into, *session]);
            out.u64(*term);
            out.u64(destaged.0);
        }
        Body::Release { number, epoch } => put_release(out, 23, *number, *epoch),
        Body::Released { number, epoch } => put_release(out, 24, *number, *epoch),
        Body::NoRoom { copy, session } => put_ids(out, 25, &[*copy, *session]),
        Body::Keep {
            copy,
            record,
            destaged,
        } => {
            put_bound(out, 26, *copy, record);
            out.u64(destaged.0);
        }
        of_guests => put_guests(out, of_guests),
    }
}

/// Of guests that move.
fn put_guests(out: &mut Out, body: &Body) {
    match body {
        Body::Standby { disk } => {
            put_ids(out, 27, &[]);
            out.u64(disk.size_bytes);
            out.u32(disk.block_bytes);
            out.u8(u8::from(disk.read_only));
            out.u8(u8::from(disk.write_back));
        }
        Body::Attach => put_ids(out, 28, &[]),
        Body::HandOver { write_back } => {
            put_ids(out, 29, &[]);
            out.u8(u8::from(*write_back));
        }
        other => unreachable!("{other:?} is written by its own function"),
    }
}

/// What is said of a copy by this record.
fn put_bound(out: &mut Out, kind: u8, copy: Uuid, record: &Record) {
    put_ids(out, kind, &[copy]);
    put_record(out, record);
}

fn take_copies(kind: u8, from: &mut In<'_>) -> Result<Body, Malformed> {
    Ok(match kind {
        6 => Body::Probe { copy: from.uuid()? },
        7 => Body::Probed {
            status: take_status(from)?,
        },
        8 => Body::Absent { copy: from.uuid()? },
        9 => Body::Open {
            member: Member {
                host: from.uuid()?,
                cache: from.uuid()?,
                copy: from.uuid()?,
            },
            session: from.uuid()?,
            fresh: from.flag("fresh")?,
            destaged: Serial(from.u64()?),
            record: take_record(from)?,
            about: About::take(from)?,
        },
        10 => Body::Opened {
            session: from.uuid()?,
            credit: take_credit(from)?,
            status: take_status(from)?,
        },
        11 => Body::Resume {
            copy: from.uuid()?,
            session: from.uuid()?,
            history: take_history(from)?,
        },
        12 => Body::Resumed {
            copy: from.uuid()?,
            session: from.uuid()?,
            end: Serial(from.u64()?),
        },
        13 => Body::Adopt {
            copy: from.uuid()?,
            session: from.uuid()?,
            record: take_record(from)?,
        },
        stream => take_stream(stream, from)?,
    })
}

fn take_stream(kind: u8, from: &mut In<'_>) -> Result<Body, Malformed> {
    Ok(match kind {
        14 => Body::Ack {
            copy: from.uuid()?,
            session: from.uuid()?,
            term: from.u64()?,
            durable: Serial(from.u64()?),
            batch: from.u64()?,
            credit: take_credit(from)?,
        },
        15 => Body::Failed {
            copy: from.uuid()?,
            session: from.uuid()?,
        },
        16 => Body::Cut {
            copy: from.uuid()?,
            session: from.uuid()?,
            serial: Serial(from.u64()?),
        },
        17 => Body::Destaged {
            copy: from.uuid()?,
            serial: Serial(from.u64()?),
        },
        18 => Body::Freeze {
            copy: from.uuid()?,
            record: take_record(from)?,
        },
        19 => Body::Frozen {
            status: take_status(from)?,
            about: About::take(from)?,
        },
        20 => Body::Deposed {
            record: take_record(from)?,
        },
        21 => Body::Drop {
            copy: from.uuid()?,
            record: take_record(from)?,
        },
        22 => Body::Fetch {
            copy: from.uuid()?,
            into: from.uuid()?,
            session: from.uuid()?,
            term: from.u64()?,
            destaged: Serial(from.u64()?),
        },
        23 => {
            let (number, epoch) = take_release(from)?;
            Body::Release { number, epoch }
        }
        24 => {
            let (number, epoch) = take_release(from)?;
            Body::Released { number, epoch }
        }
        25 => Body::NoRoom {
            copy: from.uuid()?,
            session: from.uuid()?,
        },
        26 => Body::Keep {
            copy: from.uuid()?,
            record: take_record(from)?,
            destaged: Serial(from.u64()?),
        },
        of_guests => take_guests(of_guests, from)?,
    })
}

fn take_guests(kind: u8, from: &mut In<'_>) -> Result<Body, Malformed> {
    Ok(match kind {
        27 => Body::Standby {
            disk: Disk {
                size_bytes: from.u64()?,
                block_bytes: from.u32()?,
                read_only: from.flag("read only")?,
                write_back: from.flag("write back")?,
            },
        },
        28 => Body::Attach,
        29 => Body::HandOver {
            write_back: from.flag("write back")?,
        },
        _ => return Err(Malformed),
    })
}

fn put_credit(out: &mut Out, credit: Credit) {
    for room in [credit.upto, credit.most] {
        out.u64(room.blocks);
        out.u64(room.extents);
    }
}

fn take_credit(from: &mut In<'_>) -> Result<Credit, Bad> {
    let mut room = || -> Result<LogRoom, Bad> {
        Ok(LogRoom {
            blocks: from.u64()?,
            extents: from.u64()?,
        })
    };
    Ok(Credit {
        upto: room()?,
        most: room()?,
    })
}

fn put_ids(out: &mut Out, kind: u8, ids: &[Uuid]) {
    assert!(kind > LAST_WITH_TEXT, "kinds have one form each");
    out.u8(kind);
    ids.iter().for_each(|id| out.uuid(*id));
}

fn put_release(out: &mut Out, kind: u8, number: u64, epoch: Epoch) {
    put_ids(out, kind, &[epoch.nonce]);
    out.u64(epoch.number);
    out.u64(number);
}

fn take_release(from: &mut In<'_>) -> Result<(u64, Epoch), Malformed> {
    let nonce = from.uuid()?;
    let number = from.u64()?;
    Ok((from.u64()?, Epoch { number, nonce }))
}

fn put_record(out: &mut Out, record: &Record) {
    out.0.extend_from_slice(&record.encode());
}

fn take_record(from: &mut In<'_>) -> Result<Box<Record>, Malformed> {
    let record = Record::parse(from.take(RECORD_BYTES)?);
    record.map(Box::new).map_err(|_| Malformed)
}

pub(crate) fn put_history(out: &mut Out, history: &History) {
    assert!(history.forks().len() <= FORKS_MAX, "forks are bounded");
    out.u8(history.forks().len() as u8);
    for fork in history.forks() {
        out.u64(fork.generation.term);
        out.u32(fork.generation.restarts);
        out.u64(fork.upto.0);
        out.u64(fork.first.0);
    }
    out.u64(history.end().0);
}

pub(crate) fn take_history(from: &mut In<'_>) -> Result<History, Malformed> {
    let count = usize::from(from.u8()?);
    if count > FORKS_MAX {
        return Err(Malformed);
    }
    let mut forks = Vec::with_capacity(count);
    for _ in 0..count {
        forks.push(Fork {
            generation: Generation {
                term: from.u64()?,
                restarts: from.u32()?,
            },
            upto: Serial(from.u64()?),
            first: Serial(from.u64()?),
        });
    }
    History::checked(forks, Serial(from.u64()?)).ok_or(Malformed)
}

fn put_status(out: &mut Out, kind: u8, status: &Status) {
    put_ids(out, kind, &[]);
    put_status_body(out, status);
}

fn put_status_body(out: &mut Out, status: &Status) {
    out.uuid(status.copy);
    out.u64(status.term);
    put_history(out, &status.history);
    out.u64(status.from.0);
    out.u64(status.destaged.0);
    out.u8(status.health as u8);
}

fn take_status(from: &mut In<'_>) -> Result<Status, Malformed> {
    Ok(Status {
        copy: from.uuid()?,
        term: from.u64()?,
        history: take_history(from)?,
        from: Serial(from.u64()?),
        destaged: Serial(from.u64()?),
        health: match from.u8()? {
            0 => Health::Whole,
            1 => Health::Recovering,
            2 => Health::Damaged,
            _ => return Err(Malformed),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Epoch;
    use alloc::vec;

    fn record() -> Box<Record> {
        Box::new(Record {
            cluster: Uuid([1; 16]),
            unit: Uuid([2; 16]),
            number: 7,
            nonce: Uuid([3; 16]),
            before: Uuid([4; 16]),
            owner: None,
            epoch: Epoch::default(),
            drainer: None,
            given: 0,
            wanted: 1,
            degraded: None,
            at_origin: false,
            quiesced: false,
            members: vec![],
        })
    }

    fn status() -> Status {
        let of = |term| Generation { term, restarts: 0 };
        let mut history = History::empty(Serial(9)).fork(of(1)).expect("serials");
        history.grow(Serial((1 << 42) + 5));
        Status {
            copy: Uuid([5; 16]),
            term: 7,
            history: history.fork(of(2)).expect("serials"),
            from: Serial(1),
            destaged: Serial(2),
            health: Health::Damaged,
        }
    }

    fn credit(blocks: u64) -> Credit {
        let room = |blocks| LogRoom {
            blocks,
            extents: blocks + 1,
        };
        Credit {
            upto: room(blocks),
            most: room(blocks + 9),
        }
    }

    fn all() -> Vec<Body> {
        let [copy, session] = [Uuid([5; 16]), Uuid([6; 16])];
        let member = Member {
            host: Uuid([8; 16]),
            cache: Uuid([9; 16]),
            copy,
        };
        let (serial, record, status) = (Serial(77), record(), status());
        let history = status.history.clone();
        vec![
            Body::Take { number: 1 },
            Body::Denied { why: "no".into() },
            Body::Draining { bytes: 2 },
            Body::Newer { number: 3 },
            Body::NotMine { number: 4 },
            Body::Probe { copy },
            Body::Probed {
                status: status.clone(),
            },
            Body::Absent { copy },
            Body::Open {
                member,
                session,
                fresh: true,
                destaged: serial,
                record: record.clone(),
                about: About {
                    name: "disk".into(),
                    origin: "/mnt/disk.img".into(),
                    volume: Uuid([9; 16]),
                    size_bytes: 1 << 30,
                },
            },
            Body::Opened {
                session,
                credit: credit(5),
                status: status.clone(),
            },
            Body::Resume {
                copy,
                session,
                history,
            },
            Body::Resumed {
                copy,
                session,
                end: serial,
            },
            Body::Adopt {
                copy,
                session,
                record: record.clone(),
            },
            Body::Ack {
                copy,
                session,
                term: 1,
                durable: serial,
                batch: 2,
                credit: credit(3),
            },
            Body::Failed { copy, session },
            Body::NoRoom { copy, session },
            Body::Keep {
                copy,
                record: record.clone(),
                destaged: serial,
            },
            Body::Standby {
                disk: Disk {
                    size_bytes: 1 << 30,
                    block_bytes: 4096,
                    read_only: false,
                    write_back: true,
                },
            },
            Body::Attach,
            Body::HandOver { write_back: true },
            Body::Cut {
                copy,
                session,
                serial,
            },
            Body::Destaged { copy, serial },
            Body::Freeze {
                copy,
                record: record.clone(),
            },
            Body::Frozen {
                status,
                about: About::default(),
            },
            Body::Fetch {
                copy,
                into: Uuid([7; 16]),
                session,
                term: 9,
                destaged: serial,
            },
            Body::Deposed {
                record: record.clone(),
            },
            Body::Release {
                number: 4,
                epoch: record.epoch,
            },
            Body::Released {
                number: 4,
                epoch: record.epoch,
            },
            Body::Drop { copy, record },
        ]
    }

    #[test]
    fn every_message_reads_back_and_none_is_read_that_is_cut_or_longer() {
        for body in all() {
            let unit = Uuid([1; 16]);
            let bytes = Message {
                unit,
                body: body.clone(),
            }
            .encode();
            assert!(bytes.len() <= crate::frame::BODY_BYTES_MAX);
            let read = Message::parse(&bytes);
            assert_eq!(
                read,
                Ok(Message {
                    unit,
                    body: body.clone()
                })
            );
            let has_text = matches!(body, Body::Denied { .. });
            for end in 0..bytes.len() {
                assert!(
                    has_text || Message::parse(&bytes[..end]).is_err(),
                    "{body:?}"
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(has_text || Message::parse(&longer).is_err(), "{body:?}");
        }
    }

    #[test]
    fn a_message_of_an_unknown_kind_or_with_too_many_forks_is_refused() {
        let mut bytes = vec![0; 64];
        for kind in [0, 24, 255] {
            bytes[16] = kind;
            assert_eq!(Message::parse(&bytes), Err(Malformed));
        }
        let body = Body::Probed { status: status() };
        let unit = Uuid([1; 16]);
        let mut bytes = Message { unit, body }.encode();
        bytes[17 + 16 + 8] = FORKS_MAX as u8 + 1;
        assert_eq!(Message::parse(&bytes), Err(Malformed));
    }
}
