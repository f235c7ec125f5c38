//! The cache device of the owner fails for good, while others have copies.
//!
//! ```text
//! members have all ─▶ the device fails ─▶ the image gets what RAM and the copies have
//!    ─▶ the record says so, and names no copy ─▶ guests write the image
//!          ├─▶ the device is good again ─▶ the run goes on
//!          └─▶ the owner is lost ─▶ another host goes on with the image
//! before the record: the owner is lost ─▶ a copy is taken over
//! ```
//! Always true: while the device fails no request is refused, and a guest reads what it wrote; the
//! record is changed before the image gets what no copy has. Bits of the device that are wrong are
//! read of a copy. Deliberately absent: copies that are lost at the same time.

use super::{BRING_UP_MAX, Pair, SECTORS, at_origin, ends};
use engine::event::{Device, Event, Io, IoError, Refusal};
use engine::types::{BufferId, RequestId};

/// Turns in which the image has to get everything.
const TURNS_MAX: u32 = 60_000;
/// Of a thousand reads of a copy so many get no answer.
const REFUSED: u64 = 400;
const TIMES: [u64; 3] = [100_000, 7_000_000, 150_000_000];

/// What happened of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failing {
    pub devices: u64,
    /// Images that were written past the log.
    pub past_log: u64,
    /// Devices with wrong bits, and blocks that came from copies.
    pub rotten: u64,
    pub recalled: u64,
    /// Owners that were lost with their cache, also for other reasons.
    pub lost_owners: u64,
}

impl Failing {
    pub fn add(&mut self, other: &Failing) {
        self.devices += other.devices;
        self.past_log += other.past_log;
        self.rotten += other.rotten;
        self.recalled += other.recalled;
        self.lost_owners += other.lost_owners;
    }
}

/// A read of a copy that its host has.
pub struct Recall {
    io: Io,
    /// Of the peers, and the link that it went by.
    at: usize,
    link: u64,
    request: RequestId,
    buffer: BufferId,
}

/// Reads of copies go on: to their hosts, and back.
pub(super) fn step(pair: &mut Pair) -> Result<(), String> {
    for io in std::mem::take(&mut pair.owner.asks) {
        let Device::Peer(_, peer) = io.device else {
            return Err(format!("no host is asked: {io:?}"));
        };
        let at = pair.peers.iter().position(|it| it.id == peer);
        let at = at.filter(|at| pair.peers[*at].linked && !pair.rng.chance(REFUSED));
        let Some(at) = at else {
            pair.owner.end_ask(&io, Err(IoError::Away));
            continue;
        };
        let of = &mut pair.peers[at];
        let volume = of.replica.ok_or("a link without a replica")?;
        let buffer = of.host.memory.buffer_add(vec![0xee; io.bytes as usize]);
        let (request, link) = (of.host.request(), of.link);
        of.host.apply(Event::ReadCopy {
            request,
            volume,
            sector: io.offset / 512,
            sectors: io.bytes / 512,
            buffer,
        });
        pair.recalls.push(Recall {
            io,
            at,
            link,
            request,
            buffer,
        });
    }
    for recall in std::mem::take(&mut pair.recalls) {
        let of = &mut pair.peers[recall.at];
        let Some(answer) = of.host.answer(recall.request) else {
            pair.recalls.push(recall);
            continue;
        };
        let bytes = of.host.memory.buffer_remove(recall.buffer);
        let there = of.linked && of.link == recall.link;
        let bytes = match answer {
            _ if !there => Err(IoError::Away),
            Ok(()) => Ok(bytes),
            Err(Refusal::Gone) => Err(IoError::Damaged),
            Err(refusal) => return Err(format!("a copy is not read: {refusal}")),
        };
        pair.counters.failing.recalled += u64::from(bytes.is_ok());
        let bytes = bytes.as_deref().map_err(|error| *error);
        pair.owner.end_ask(&recall.io, bytes);
    }
    Ok(())
}

/// All of it. True if the run is at its end.
pub(super) fn run(pair: &mut Pair) -> Result<bool, String> {
    ends::make_members(pair)?;
    if !pair.peers.iter().any(|it| it.member) {
        return Ok(false);
    }
    for _ in 0..pair.rng.below(400) {
        turn(pair)?;
    }
    if pair.rng.chance(400) {
        rot(pair)?;
    }
    if !pair.peers.iter().any(|it| it.member) {
        mend(pair);
        return Ok(false);
    }
    wait_for_all(pair)?;
    if pair.rng.chance(800) {
        pair.write();
    }
    pair.owner.failing = true;
    pair.owner.reads_fail = pair.rng.chance(700);
    pair.counters.failing.devices += 1;
    let dies = pair.rng.chance(300).then(|| pair.rng.below(8_000));
    for count in 0..u64::from(TURNS_MAX) {
        let shown = pair.owner.engine().copy(pair.disk).ok_or("no volume")?;
        if shown.past_log {
            break;
        }
        if dies == Some(count) && pair.peers.iter().any(|it| it.member) {
            pair.counters.failing.lost_owners += 1;
            mend(pair);
            ends::take_over(pair)?;
            return Ok(true);
        }
        turn(pair)?;
    }
    let shown = pair.owner.engine().copy(pair.disk).ok_or("no volume")?;
    if !shown.past_log && shown.peers.iter().all(|it| it.no_room || !it.counts) {
        // They wait for each other: so does a host, until there is room.
        mend(pair);
        return Ok(false);
    }
    if !shown.past_log {
        return Err("the image never gets what the device had".to_owned());
    }
    past_log(pair)
}

/// The image has everything: the record says so, and names no copy any more.
fn past_log(pair: &mut Pair) -> Result<bool, String> {
    for _ in 0..pair.rng.below(60) {
        turn(pair)?;
    }
    at_origin::record(pair)?;
    for at in 0..pair.peers.len() {
        if pair.peers[at].counts() {
            pair.give_up(at)?;
        }
    }
    pair.counters.failing.past_log += 1;
    for _ in 0..pair.rng.range(200, 2_000) {
        turn(pair)?;
    }
    judge(pair)?;
    if pair.rng.chance(400) {
        wait_for_all(pair)?;
        at_origin::go_on_with_image(pair)?;
        return Ok(true);
    }
    wait_for_all(pair)?;
    mend(pair);
    for _ in 0..TURNS_MAX {
        turn(pair)?;
        let shown = pair.owner.engine().copy(pair.disk).ok_or("no volume")?;
        if !shown.past_log && shown.policy == engine::types::Policy::WriteBack {
            at_origin::end(pair)?;
            return Ok(false);
        }
    }
    Err("a good device is never used again".to_owned())
}

fn mend(pair: &mut Pair) {
    pair.owner.failing = false;
    pair.owner.reads_fail = false;
    pair.owner.rotten = false;
}

/// Something goes on at each host, and the guest with it.
fn turn(pair: &mut Pair) -> Result<(), String> {
    let at = pair.any();
    let one_by_one = pair.owner.failing || at_origin::is_recorded(pair);
    match pair.rng.below(40) {
        // Past the log, writes to one place that wait side by side come in any order.
        0..=2 if pair.asked.is_empty() || !one_by_one => pair.write(),
        3 => pair.flush(),
        4 => {
            let of = pair.rng.below(3);
            pair.pass(TIMES[of as usize]);
        }
        5..=14 => drop(pair.owner.complete()),
        15 if pair.asked.is_empty() && pair.rng.chance(100) => judge(pair)?,
        _ if pair.peers[at].linked => pair.advance(at)?,
        _ if pair.peers[at].member => pair.link(at)?,
        _ => drop(pair.owner.complete()),
    }
    step(pair)?;
    look_at_stopped(pair)?;
    pair.reap()
}

/// A peer could not be given what the device has alone. Its link begins anew; where the device
/// is only rotten, the record names it no more.
fn look_at_stopped(pair: &mut Pair) -> Result<(), String> {
    // A batch was lost, and none comes behind it.
    for at in 0..pair.peers.len() {
        if pair.peers[at].linked && pair.peers[at].gap {
            pair.cut(at)?;
        }
    }
    let shown = pair.owner.engine().copy(pair.disk).ok_or("no volume")?;
    for peer in shown.peers.iter().filter(|it| it.stopped && it.counts) {
        let at = pair.peers.iter().position(|it| it.id == peer.peer);
        let at = at.ok_or("no such peer")?;
        match pair.owner.failing {
            true if pair.peers[at].linked => pair.cut(at)?,
            false if pair.peers[at].linked => pair.give_up(at)?,
            _ => {}
        }
    }
    Ok(())
}

/// Bits of the device are wrong, in some of its blocks.
fn rot(pair: &mut Pair) -> Result<(), String> {
    pair.owner.rotten = true;
    pair.counters.failing.rotten += 1;
    judge(pair)
}

/// A guest reads its disk, and finds all that was acknowledged.
fn judge(pair: &mut Pair) -> Result<(), String> {
    wait_for_all(pair)?;
    let (request, buffer) = pair.owner.begin_read(pair.disk, 0, SECTORS);
    for _ in 0..BRING_UP_MAX {
        if let Some(answer) = pair.owner.answer(request) {
            let found = pair.owner.memory.buffer_remove(buffer);
            let alone = !pair.peers.iter().any(|it| it.member);
            if answer == Err(Refusal::Io) && alone && pair.owner.rotten {
                return Ok(());
            }
            answer.map_err(|refusal| format!("not read: {refusal}"))?;
            let least = pair.model.acked();
            return pair.model.clone().judge(&found, least).map(drop);
        }
        advance_all(pair)?;
    }
    Err("a read is never answered".to_owned())
}

fn wait_for_all(pair: &mut Pair) -> Result<(), String> {
    for _ in 0..BRING_UP_MAX {
        if pair.asked.is_empty() {
            return Ok(());
        }
        advance_all(pair)?;
    }
    Err("what waits is never answered".to_owned())
}

/// Nothing breaks.
fn advance_all(pair: &mut Pair) -> Result<(), String> {
    for at in 0..pair.peers.len() {
        match pair.peers[at].linked {
            true => pair.advance(at)?,
            false if pair.peers[at].member => pair.link(at)?,
            false => drop(pair.owner.complete()),
        }
        step(pair)?;
    }
    look_at_stopped(pair)?;
    let of = pair.rng.below(3);
    pair.pass(TIMES[of as usize]);
    pair.reap()
}
