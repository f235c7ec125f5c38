//! How a run ends, or goes on: the owner dies for good.
//!
//! Always true: a replica is taken over only if the record names its host; what the owner before
//! has is lost with its host, or becomes a frozen replica that others fetch. Deliberately absent:
//! what happens until then, which the steps of a run are.

use super::{BRING_UP_MAX, FIRST, Pair, Peer, SECTORS, SEGMENTS, at_origin};
use crate::machine::{Machine, Shape, attach, attach_proved, attach_settled, expect};
use engine::engine::Settled;
use engine::event::{Command, Credit, Event, ReplicaSpec};
use engine::types::VolumeId;

/// The owner dies for good. A replica that the record names is taken over; else the owner comes
/// back once more.
pub(super) fn take_over(pair: &mut Pair) -> Result<(), String> {
    if pair.peers.len() > 1 {
        return go_over(pair);
    }
    match pair.rng.below(4) {
        0 if pair.peers[0].member => last_moments(pair)?,
        1 if pair.peers[0].member => last_write(pair)?,
        2 | 3 if !pair.peers[0].member => count_late(pair)?,
        _ => {}
    }
    if !pair.peers[0].member {
        return match at_origin::come(pair)? {
            true => at_origin::lose_owner(pair),
            false => pair.crash_owner(),
        };
    }
    let promised = pair.model.promised();
    let (mut before, old) = move_to(pair, 0)?;
    pair.judge_alone(promised)?;
    retire(pair, &mut before, old)?;
    pair.counters.takeovers.with_flushes += u64::from(promised > 0);
    Ok(())
}

/// Of two replicas one is taken over, and the other one stays a member. The host of the owner
/// is lost with its cache, and an empty one takes its place.
pub(super) fn go_over(pair: &mut Pair) -> Result<(), String> {
    if pair.peers.iter().all(|it| !it.member) {
        make_members(pair)?;
    }
    let members = (0..pair.peers.len()).filter(|at| pair.peers[*at].member);
    let members: Vec<usize> = members.collect();
    if members.is_empty() {
        return pair.crash_owner();
    }
    let at = members[pair.rng.below(members.len() as u64) as usize];
    let (promised, id) = (pair.model.promised(), pair.peers[at].id);
    move_to(pair, at)?;
    pair.term += 1;
    let empty = Peer::new(&mut pair.rng, id, SEGMENTS)?;
    pair.peers.push(empty);
    pair.asked.clear();
    pair.begin_again()?;
    let found = pair.owner.read(pair.disk, SECTORS)?;
    pair.model.judge(&found, promised)?;
    pair.counters.takeovers.with_flushes += u64::from(promised > 0);
    Ok(())
}

/// Nothing fails for a while, and both hosts come to count if they have room.
pub(super) fn make_members(pair: &mut Pair) -> Result<(), String> {
    for turn in 0..600 {
        let at = turn % pair.peers.len();
        let Peer { linked, member, .. } = pair.peers[at];
        match linked {
            false if turn % 10 < 2 => pair.link(at)?,
            true if !member && pair.peers[at].counting.is_none() => pair.count(at),
            _ => {}
        }
        if turn % 30 == 0 {
            pair.write();
        }
        pair.advance(at)?;
    }
    Ok(())
}

/// The owner dies for good, and this host takes its replica over. The machine of before, and
/// what the disk was there.
fn move_to(pair: &mut Pair, at: usize) -> Result<(Machine, VolumeId), String> {
    let promised = pair.model.promised();
    let all = 0..pair.peers.len();
    all.for_each(|at| pair.break_link(at));
    pair.owner.crash(true)?;
    for peer in &mut pair.peers {
        peer.coming.clear();
        peer.counting = None;
    }
    let mut peer = pair.peers.remove(at);
    let host = &mut peer.host;
    if pair.rng.chance(400) {
        host.crash(true)?;
    }
    let volume = peer.replica.ok_or("a member without a replica")?;
    let term = pair.term + 1;
    expect(host.order(Command::Freeze { volume, term }))?;
    let end = |host: &Machine| host.show(volume).and_then(|it| it.replica).map(|it| it.end);
    let said = end(host);
    if pair.rng.chance(400) {
        host.crash(true)?;
    }
    if end(host) != said {
        return Err(format!("a frozen replica ends at {said:?} no more"));
    }
    let name = "disk".to_owned();
    expect(host.order(Command::TakeOver { volume, name }))?;
    if pair.rng.chance(400) {
        host.crash(true)?;
    }
    let old = pair.disk;
    // The storage is one for all, and the old owner writes no more.
    host.devices.origins[0] = pair.owner.devices.origins.remove(0);
    std::mem::swap(&mut pair.owner, host);
    // No draw, so that a seed does before a takeover what it always did.
    match promised % 2 {
        0 => pair.disk = attach(&mut pair.owner, "disk", (0, SECTORS), pair.tuning)?,
        _ => serve_before_proof(pair, promised)?,
    }
    pair.counters.takeovers.all += 1;
    Ok((peer.host, old))
}

/// The owner before may still write the image, so no ledger tells what is there: the disk is read
/// from the replica and the image alone. Then there is proof.
fn serve_before_proof(pair: &mut Pair, promised: usize) -> Result<(), String> {
    let volume = pair.owner.engine().place("disk");
    pair.owner.devices.places.insert(volume, 0);
    let settled = Settled {
        unproved: true,
        ..Settled::default()
    };
    let (of, place) = ((volume, "disk"), (0, SECTORS));
    pair.disk = attach_settled(&mut pair.owner, of, place, (settled, pair.tuning))?;
    let found = pair.owner.read(volume, SECTORS)?;
    // What it goes on from is judged with proof.
    let judged = pair.model.clone().judge(&found, promised);
    judged.map_err(|why| format!("before proof: {why}"))?;
    pair.counters.takeovers.before_proof += 1;
    expect(pair.owner.order(Command::Prove { volume }))?;
    let settled = pair.owner.settle(volume)?;
    attach_proved(&mut pair.owner, of, place, (settled, pair.tuning))
}

/// What the owner before has becomes a frozen replica, and a third host fetches it.
fn retire(pair: &mut Pair, there: &mut Machine, volume: VolumeId) -> Result<(), String> {
    let (name, term) = ("old".to_owned(), pair.term + 2);
    expect(there.order(Command::Retire { volume, name, term }))?;
    let end = |host: &mut Machine, id| host.engine().copy(id).and_then(|it| it.replica);
    let said = end(there, volume).ok_or("it is no replica")?;
    if pair.rng.chance(400) {
        there.crash(true)?;
    }
    if end(there, volume) != Some(said) {
        return Err(format!("what was retired is {said:?} no more"));
    }
    let shown = there.show(volume).ok_or("no volume")?;
    let mut third = Machine::new(&mut pair.rng, Shape::without_lines(SEGMENTS))?;
    let replica = third.engine().place("third");
    let spec = ReplicaSpec {
        name: "third".to_owned(),
        origin: shown.origin,
        uuid: shown.uuid,
        size_bytes: shown.size_bytes,
        lineage: shown.lineage,
        term,
        destaged: shown.destaged_serial,
        fetched: true,
    };
    let (peer, have, credit) = (FIRST, spec.destaged, Credit::ALL);
    let keep = Command::KeepReplica {
        volume: replica,
        spec,
    };
    expect(third.order(keep))?;
    expect(there.order(Command::StartPeer {
        volume,
        peer,
        have,
        credit,
    }))?;
    fetch(there, volume, (&mut third, replica))?;
    third.crash(true)?;
    let found = end(&mut third, replica).ok_or("no replica")?;
    match found.end == said.end {
        true => Ok(()),
        false => Err(format!("{said:?} was fetched as {found:?}")),
    }
}

/// The peer was away, and gets some of what it lacks.
fn last_moments(pair: &mut Pair) -> Result<(), String> {
    if pair.peers[0].linked {
        pair.cut(0)?;
    }
    for _ in 0..60 {
        pair.write();
        pair.owner.complete();
        pair.owner.pass(100_000);
        pair.reap()?;
    }
    pair.link(0)?;
    carry_some(pair)
}

/// The peer has all, and gets some of a write that takes several batches.
fn last_write(pair: &mut Pair) -> Result<(), String> {
    if !pair.peers[0].linked {
        pair.link(0)?;
    }
    for _ in 0..300 {
        pair.advance(0)?;
    }
    if pair.peers[0].linked && pair.asked.len() < 8 {
        let sectors = 8 * pair.rng.range(8, 40);
        pair.write_sectors(sectors);
    }
    carry_some(pair)
}

/// Some batches come, and are on media.
fn carry_some(pair: &mut Pair) -> Result<(), String> {
    for _ in 0..pair.rng.below(4) {
        pair.carry(0)?;
        for _ in 0..40 {
            pair.peers[0].host.complete();
            pair.peers[0].host.pass(100_000);
        }
        pair.acknowledge(0);
        pair.reap()?;
    }
    Ok(())
}

/// A peer begins to count while a destage is under way with what it lacks.
fn count_late(pair: &mut Pair) -> Result<(), String> {
    if !pair.peers[0].linked {
        pair.link(0)?;
    }
    for _ in 0..20 {
        pair.write();
        pair.owner.complete();
        pair.reap()?;
    }
    let (volume, request) = (pair.disk, pair.owner.request());
    let command = Command::Destage { volume };
    pair.owner.apply(Event::Admin { request, command });
    for _ in 0..pair.rng.below(60) {
        pair.owner.complete();
        pair.owner.pass(50_000);
    }
    if pair.peers[0].linked && pair.peers[0].counting.is_none() {
        pair.count(0);
    }
    pair.reap()?;
    carry_some(pair)
}

/// Brings all of a frozen replica to another host.
fn fetch(
    there: &mut Machine,
    volume: VolumeId,
    (third, replica): (&mut Machine, VolumeId),
) -> Result<(), String> {
    for _ in 0..BRING_UP_MAX {
        let copy = there.engine().copy(volume).ok_or("no volume")?;
        let peer = copy.peers.first().ok_or("the peer was stopped")?;
        if Some(peer.durable) == copy.replica.map(|it| it.end) {
            return Ok(());
        }
        let Some(sent) = there.sent.pop_front() else {
            if !there.complete() {
                there.pass(1_000_000);
            }
            continue;
        };
        let number = sent.number;
        let (request, buffer) = third.take(replica, sent);
        let answer = loop {
            match third.answer(request) {
                Some(answer) => break answer,
                None if third.complete() => {}
                None => third.pass(1_000_000),
            }
        };
        third.memory.buffer_remove(buffer);
        expect(Ok(answer))?;
        there.apply(Event::Replicated {
            volume,
            peer: FIRST,
            number,
            credit: Credit::ALL,
        });
    }
    Err("a frozen replica is never fetched".to_owned())
}
