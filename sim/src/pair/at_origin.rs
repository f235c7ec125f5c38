//! A volume without its copy whose flushes are answered when the origin has what they cover.
//!
//! ```text
//! Off ─ the log is told ─▶ Told ─ the origin has all that was answered before ─▶ Recorded
//!  ▲                                                                                │
//!  └──────────────── the log is told, after the record says so no more ◀────────────┘
//! ```
//! Always true: while the record says so, the owner may be lost with its cache, and another host
//! goes on with the image alone. An owner that begins again has more than the image: the record
//! says so no more before a guest sees that. Deliberately absent: why a host wants all this.

use super::{BRING_UP_MAX, Pair, Peer, SECTORS, SEGMENTS};
use crate::machine::{Machine, Shape, attach_settled, expect};
use crate::rng::Rng;
use engine::event::Command;
use engine::types::{DestageMode, Serial};

/// In which the record says so.
const STEPS_MAX: u32 = 4_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Off,
    /// The origin has to have all up to here.
    Told(Serial),
    Recorded,
}

/// In some runs only, with random numbers of its own: the others stay as they were.
pub struct AtOrigin {
    mode: Mode,
    rng: Option<Rng>,
}

impl AtOrigin {
    pub fn off() -> AtOrigin {
        AtOrigin {
            mode: Mode::Off,
            rng: None,
        }
    }

    /// A destage in place leaves parts of writes that came later: no state of the disk.
    pub fn of_seed(seed: u64, destage: DestageMode) -> AtOrigin {
        let some = seed % 3 == 1 && destage == DestageMode::Atomic;
        AtOrigin {
            mode: Mode::Off,
            rng: some.then(|| Rng::new(!seed)),
        }
    }
}

/// Some time has passed.
pub(super) fn step(pair: &mut Pair) -> Result<(), String> {
    let counts = pair.peers.iter().any(Peer::counts);
    let Some(rng) = &mut pair.at_origin.rng else {
        return Ok(());
    };
    let (begins, ends) = (rng.chance(20), rng.chance(3));
    match pair.at_origin.mode {
        Mode::Off if begins && !counts => {
            tell(pair, true)?;
            let shown = pair.owner.engine().copy(pair.disk).ok_or("no volume")?;
            pair.at_origin.mode = Mode::Told(shown.acked);
        }
        Mode::Told(upto) => {
            let shown = pair.owner.engine().copy(pair.disk).ok_or("no volume")?;
            if shown.destaged >= upto || !shown.dirty {
                pair.at_origin.mode = Mode::Recorded;
            }
        }
        Mode::Recorded if ends => end(pair)?,
        Mode::Off | Mode::Recorded => {}
    }
    Ok(())
}

/// The image has all that was answered, and the log answers by it: the record says so.
pub(super) fn record(pair: &mut Pair) -> Result<(), String> {
    let shown = pair.owner.engine().copy(pair.disk).ok_or("no volume")?;
    if shown.dirty || !shown.at_origin {
        return Err("the record would say what is not so".to_owned());
    }
    pair.at_origin.mode = Mode::Recorded;
    Ok(())
}

pub(super) fn is_recorded(pair: &Pair) -> bool {
    pair.at_origin.mode == Mode::Recorded
}

/// The record names a copy again, or says no more that the image has all.
pub(super) fn end(pair: &mut Pair) -> Result<(), String> {
    let was = std::mem::replace(&mut pair.at_origin.mode, Mode::Off);
    match was {
        Mode::Off => Ok(()),
        Mode::Told(_) | Mode::Recorded => tell(pair, false),
    }
}

/// The owner has begun again. What a guest is about to see is not lost later: where the origin
/// does not have all of it, the record is changed first.
pub(super) fn begin_again(pair: &mut Pair) -> Result<(), String> {
    if pair.at_origin.mode == Mode::Off {
        return Ok(());
    }
    let shown = pair.owner.engine().copy(pair.disk).ok_or("no volume")?;
    if shown.dirty {
        pair.at_origin.mode = Mode::Told(shown.acked);
    }
    tell(pair, true)
}

fn tell(pair: &mut Pair, on: bool) -> Result<(), String> {
    let volume = pair.disk;
    expect(pair.owner.order(Command::AnswerAtOrigin { volume, on }))
}

/// Without a peer the record comes to say so, if this run is one of those. False if it is not,
/// or the origin does not come that far.
pub(super) fn come(pair: &mut Pair) -> Result<bool, String> {
    let counting = |it: &Peer| it.counting.is_some();
    if pair.at_origin.rng.is_none() || pair.peers.iter().any(counting) {
        return Ok(false);
    }
    for turn in 0..STEPS_MAX {
        step(pair)?;
        if pair.at_origin.mode == Mode::Recorded {
            return Ok(true);
        }
        match turn % 40 {
            0 => pair.write(),
            20 => pair.flush(),
            _ if pair.owner.complete() => {}
            _ => pair.owner.pass(100_000),
        }
        pair.reap()?;
    }
    Ok(false)
}

/// The owner is lost with its cache. Another host goes on with the image.
pub(super) fn lose_owner(pair: &mut Pair) -> Result<(), String> {
    for _ in 0..pair.rng.below(80) {
        match pair.rng.below(8) {
            0 => pair.write(),
            1 => pair.flush(),
            2 => pair.owner.pass(1_000_000),
            _ => drop(pair.owner.complete()),
        }
        pair.reap()?;
    }
    if pair.rng.chance(300) {
        answer_all(pair)?;
    }
    go_on_with_image(pair)
}

/// The same at once: what was promised is in the image.
pub(super) fn go_on_with_image(pair: &mut Pair) -> Result<(), String> {
    let promised = pair.model.promised();
    pair.counters.takeovers.with_flushes += u64::from(promised > 0);
    pair.counters.failing.lost_owners += 1;
    pair.owner.crash(true)?;
    let mut other = Machine::new(&mut pair.rng, Shape::without_lines(SEGMENTS))?;
    let origin = pair.owner.devices.origins.remove(0);
    other.devices.origins.push(origin);
    pair.owner = other;
    pair.at_origin.mode = Mode::Off;
    let id = pair.owner.engine().place("disk");
    pair.owner.devices.places.insert(id, 0);
    let mut settled = pair.owner.settle(id)?;
    // The record says that nothing of what the other cache may have was promised.
    settled.accept_loss();
    let (of, with) = ((id, "disk"), (settled, pair.tuning));
    pair.disk = attach_settled(&mut pair.owner, of, (0, SECTORS), with)?;
    pair.judge_alone(promised)
}

/// Nothing fails: the origin takes what flushes wait for, though no other trigger asks for it.
fn answer_all(pair: &mut Pair) -> Result<(), String> {
    for _ in 0..BRING_UP_MAX {
        if pair.asked.is_empty() {
            return Ok(());
        }
        if !pair.owner.complete() {
            pair.owner.pass(100_000);
        }
        pair.reap()?;
    }
    Err("what waits for the origin is never answered".to_owned())
}
