//! Images that move to another file below them, step by step as the daemon does it.
//!
//! ```text
//! Wanted ─all is answered─▶ Destages ─▶ (compared) ─▶ Owns, batch by batch ─▶ Moves ─▶ Empties
//!    ┌──────────────────────────────────────────────────────────────────────────────────┘
//!    └─▶ Exchanges ─▶ Ends ─▶ (on the other file)
//! refused in any step ─▶ (given up; what became the image's own stays so)
//! given up by the host behind Moves ─▶ Ends ─▶ (its header names the other file; what is open
//!                                              stays as it is until the next start)
//! ```
//!
//! A move to nothing is a flatten, and one to the file below the backing a merge. Which parts of
//! the disk differ is found by the second reader, over the files as they are. Always true: its
//! guest asks nothing meanwhile, and nothing of its volume is dirty, but reads of a lost connection
//! may still be under way; at each moment the header names the file before or the other one, and
//! the disk over the one that it names is the same ([`below`](crate::below), judged with every
//! origin); a ledger that names what lies below names what the image surely stands on; a crash ends
//! the order, and the next start opens what the header names. Deliberately absent: how often an
//! administrator orders it, and files that a guest could see change.

use crate::below::{Moving, Step};
use crate::devices::ledger_of;
use crate::guest::{Guest, Pending, Request};
use crate::mapped;
use crate::qcow2;
use crate::tops;
use crate::world::{Broken, Wake, World};
use ::image::create::BackingFormat;
use engine::event::{Command, Event, Io, Op, Refusal};
use engine::image::BELOW_ANY;
use engine::origin::{Move, Onto};
use engine::types::{SECTOR_BYTES, Span, Time, Uuid, VolumeId};
use std::collections::VecDeque;

/// Parts of one batch at most, so that most moves have some.
const PARTS_MAX: u64 = 12;
/// Of a thousand moves so many are not brought to their end by the host, at each of two steps.
const GIVEN_UP: u64 = 60;

impl Guest {
    /// A plan of its image brings nothing of the guest.
    pub(crate) fn plans_move(&self) -> bool {
        let plans = |it: &Moving| matches!(it.step, Step::Owns | Step::Moves);
        self.moving.as_ref().is_some_and(plans)
    }
}

impl World {
    /// Goes on with the move of a volume whose guest has all its answers.
    pub(crate) fn move_on(&mut self, volume: usize) -> Result<(), Broken> {
        let guest = &self.guests[volume];
        let reads = |it: &Pending| matches!(it, Pending::Read { .. });
        let quiet = guest.pending.is_empty() && guest.whole.is_none();
        let quiet = quiet && guest.gone.values().all(reads);
        let Some(step) = guest.moving.as_ref().map(|it| it.step).filter(|_| quiet) else {
            return Ok(());
        };
        match step {
            Step::Wanted => {
                self.go_to(volume, Step::Destages);
                return self.submit(volume, Request::Destage);
            }
            Step::Destages if self.has_dirty(volume) => {
                self.give_up_move(volume);
                return Ok(());
            }
            Step::Destages => self.compare(volume)?,
            Step::Empties if self.rng.chance(GIVEN_UP) => self.go_to(volume, Step::Ends),
            Step::Exchanges => {
                if !self.rng.chance(GIVEN_UP) {
                    self.exchange(volume)?;
                }
                self.go_to(volume, Step::Ends);
            }
            Step::Owns | Step::Moves | Step::Empties | Step::Ends => {}
        }
        match self.struck {
            true => Ok(()),
            false => self.submit(volume, Request::Move),
        }
    }

    fn go_to(&mut self, volume: usize, step: Step) {
        let moving = self.guests[volume].moving.as_mut();
        moving.expect("a move is under way").step = step;
    }

    fn has_dirty(&self, volume: usize) -> bool {
        let engine = self.engine.as_ref().expect("the engine is open");
        let id = self.guests[volume].id;
        let mut volumes = engine.snapshot().volumes.into_iter();
        volumes.any(|it| Some(it.id) == id && it.dirty_bytes > 0)
    }

    /// The volume goes on as before.
    fn give_up_move(&mut self, volume: usize) {
        self.guests[volume].moving = None;
        self.trace.counters.images.moves.refused += 1;
        self.later(1, Wake::Guest(volume));
    }

    /// Chooses what the image moves to, and finds which parts of its disk would be others there.
    fn compare(&mut self, volume: usize) -> Result<(), Broken> {
        let origin = &self.devices.origins[self.guests[volume].plan.origin];
        let onto = self.rng.pick(&origin.below.others());
        let bytes = origin.disk_bytes() as usize;
        let disk = |on| qcow2::disk(&origin.below.layers(on), bytes);
        let (now, then) = (disk(origin.below.on)?, disk(onto)?);
        let unit = qcow2::unit_bytes(origin.image.landed()) as usize;
        let units = now.chunks(unit).zip(then.chunks(unit)).enumerate();
        let mut own: Vec<Span> = Vec::new();
        for (number, (now, _)) in units.filter(|(_, (now, then))| now != then) {
            let sectors = |bytes: usize| bytes as u64 / SECTOR_BYTES;
            let part = Span::new(sectors(number * unit), sectors(now.len()));
            match own.last_mut() {
                Some(last) if last.end() == part.sector => last.sectors += part.sectors,
                _ => own.push(part),
            }
        }
        let mut batches = VecDeque::new();
        while !own.is_empty() {
            let count = 1 + self.rng.below(PARTS_MAX) as usize;
            batches.push_back(own.drain(..count.min(own.len())).collect());
        }
        if batches.is_empty() || self.rng.chance(200) {
            // All of it may be its own before the last plan.
            batches.push_back(Vec::new());
        }
        let moves = &mut self.trace.counters.images.moves;
        moves.begun += 1;
        moves.own += batches
            .iter()
            .map(|it: &Vec<Span>| it.len() as u64)
            .sum::<u64>();
        let count = batches.len();
        self.trace.tell(format_args!(
            "v{volume}: moves to {onto:?}, in {count} batches"
        ));
        self.guests[volume].moving = Some(Moving {
            step: if count > 1 { Step::Owns } else { Step::Moves },
            onto,
            own: batches,
        });
        Ok(())
    }

    /// What the daemon orders in this step.
    pub(crate) fn move_command(&mut self, at: usize, volume: VolumeId) -> Command {
        let guest = &mut self.guests[at];
        let origin = &mut self.devices.origins[guest.plan.origin];
        let moving = guest.moving.as_mut().expect("a move is under way");
        let onto = match moving.step {
            Step::Empties => return Command::Empty { volume },
            Step::Ends => return Command::EndExchange { volume },
            Step::Moves => Some(moving.onto),
            _ => None,
        };
        if let Some(onto) = onto {
            assert!(moving.own.len() == 1, "the last batch goes with the move");
            origin.below.to = Some(onto);
        }
        let order = Move {
            own: moving.own.pop_front().expect("there is a batch left"),
            onto: onto.map(|on| match on.map(|it| origin.below.file(it)) {
                None => Onto::Nothing,
                Some(file) => Onto::File {
                    name: file.name.clone(),
                    format: match file.raw {
                        true => BackingFormat::Raw,
                        false => BackingFormat::Qcow2,
                    },
                },
            }),
            changes: false,
        };
        Command::Rebase { volume, order }
    }

    pub(crate) fn move_answered(
        &mut self,
        volume: usize,
        result: Result<(), Refusal>,
    ) -> Result<(), Broken> {
        let guest = &mut self.guests[volume];
        let origin = &mut self.devices.origins[guest.plan.origin];
        let moving = guest.moving.as_mut().expect("a move is under way");
        if result.is_err() {
            // The image stands where it stood, and what is left in the journal is of no cut.
            origin.below.to = None;
            self.journals[guest.plan.origin] = origin.journal.sync_point();
            self.give_up_move(volume);
            return self.check_origins(true);
        }
        moving.step = match moving.step {
            Step::Owns if moving.own.len() > 1 => Step::Owns,
            Step::Owns => Step::Moves,
            Step::Moves => Step::Empties,
            Step::Empties => Step::Exchanges,
            step => {
                assert!(step == Step::Ends, "other steps order nothing");
                return self.end_move(volume);
            }
        };
        if moving.step == Step::Empties {
            let at = |why: String| format!("v{volume} has moved: {why}");
            tops::judge_at_rest(origin).map_err(at)?;
            let named = origin.below.named(origin.image.durable())?;
            if Some(named) != origin.below.to {
                return Err(format!("v{volume} has moved, and its image names {named:?}").into());
            }
        }
        Ok(())
    }

    /// What the daemon has open from now on is what the header names.
    fn exchange(&mut self, volume: usize) -> Result<(), Broken> {
        let identity = Uuid(self.rng.bytes16());
        let guest = &self.guests[volume];
        let id = guest.id.expect("the volume is attached");
        let origin = &mut self.devices.origins[guest.plan.origin];
        let top = origin.image.landed();
        origin.below.open(top)?;
        let map = mapped::written(top, &origin.below.layers(origin.below.on), identity);
        let image = origin.image().unwrap_or_default();
        let engine = self.engine.as_mut().expect("the engine is open");
        engine.exchange(Time(self.now), id, map, image, &mut self.memory);
        self.apply(Event::Tick)
    }

    fn end_move(&mut self, volume: usize) -> Result<(), Broken> {
        let guest = &mut self.guests[volume];
        let moving = guest.moving.take().expect("a move is under way");
        let below = &mut self.devices.origins[guest.plan.origin].below;
        let moves = &mut self.trace.counters.images.moves;
        if below.to.is_some() {
            below.give_up();
            moves.given_up += 1;
        } else {
            moves.done += 1;
            moves.flattened += u64::from(moving.onto.is_none());
            // Only the one in the middle stands on something.
            moves.merged += u64::from(moving.onto == Some(0));
        }
        self.later(1, Wake::Guest(volume));
        self.check_origins(true)
    }

    /// Whether the engine may refuse a step of a move.
    pub(crate) fn may_refuse_move(&self, volume: usize, refusal: Refusal) -> bool {
        self.guests[volume].plans_move()
            && match refusal {
                Refusal::Io | Refusal::OriginFull | Refusal::CacheFailed => self.faulty(),
                Refusal::Policy => self.faulty(),
                Refusal::Busy => self.has_rests(volume),
                _ => false,
            }
    }

    /// A ledger that names what lies below an image names what that surely stands on.
    pub(crate) fn check_below(&self, io: &Io, origin: usize) -> Result<(), Broken> {
        let here = &self.devices.origins[origin];
        if io.op != Op::Write || !here.below.has_choice() {
            return Ok(());
        }
        let Some(ledger) = ledger_of(&self.memory.gather(&io.slices)) else {
            return Ok(());
        };
        let told = ledger.image.below;
        let named = here.below.named(here.image.durable())?;
        match told == 0 || told == BELOW_ANY || told == here.below.print(named) {
            true => Ok(()),
            false => Err(format!(
                "a ledger names {told} below an image that stands on {named:?}: {io:?}"
            )
            .into()),
        }
    }

    /// A life ends, perhaps in the middle of a move.
    pub(crate) fn moves_end(&mut self) {
        for origin in &mut self.devices.origins {
            origin.below.close();
        }
        for guest in &self.guests {
            let below = &self.devices.origins[guest.plan.origin].below;
            let moves = &mut self.trace.counters.images.moves;
            let early = |it: &Moving| !matches!(it.step, Step::Wanted | Step::Destages);
            if !guest.moving.as_ref().is_some_and(early) {
                continue;
            }
            moves.cut_short += 1;
            let image = self.devices.origins[guest.plan.origin].image.landed();
            let named = below.named(image).ok();
            moves.reached += u64::from(named.is_some() && named == below.to);
        }
    }
}
