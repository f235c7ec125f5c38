//! The volume goes to the other host, and a host dies.
//!
//! Always true: a guest that is handed over has all of its writes answered and flushed, so what a
//! loss of power may take is nothing; reads may be under way. The image goes along: who has let go
//! of it finds an empty one, and must leave that alone. Deliberately absent: which host a volume
//! ought to have.

use super::{Handed, ROUNDS_MAX, SECTORS};
use crate::devices::ledger_of;
use crate::machine::{attach_own, attach_proved, attach_settled, expect};
use engine::engine::Settled;
use engine::event::{Command, Event};
use engine::format::ledger::Progress;

/// Steps of a destage that is under way in a hand-over.
const DESTAGE_STEPS_MAX: u64 = 60;

impl Handed {
    pub(super) fn hand_over(&mut self) -> Result<(), String> {
        self.prove()?;
        self.get_ready()?;
        if self.rng.chance(600) {
            self.begin_destage()?;
        }
        self.term += 1;
        self.let_go()?;
        let ledger = ledger_of(self.owner.devices.origins[0].ledger.landed());
        let progress = ledger.ok_or("a volume without a ledger")?.progress;
        self.counters.in_destage += u64::from(progress != Progress::Idle);
        self.own_copy()?;
        self.judge_image_of_peer()?;
        let (here, there) = (&mut self.owner, &mut self.peer);
        std::mem::swap(&mut here.devices.origins[0], &mut there.devices.origins[0]);
        (here.now, there.now) = (here.now.max(there.now), here.now.max(there.now));
        std::mem::swap(here, there);
        self.retired = Some(self.disk);
        match self.rng.chance(500) {
            true => {
                self.attach_unproved()?;
                self.counters.unproved += 1;
            }
            false => {
                let former = self.rng.chance(950);
                self.attach(former, false)?;
            }
        }
        self.guest.settle()?;
        self.begin_stay();
        self.counters.hand_overs += 1;
        Ok(())
    }

    /// The copy counts, and has all that was written.
    fn get_ready(&mut self) -> Result<(), String> {
        self.drop_retired()?;
        for round in 0..ROUNDS_MAX {
            if self.link.counting_replica().is_some() {
                break;
            }
            if round % 64 == 0 {
                self.guest.write(&mut self.owner, self.disk, &mut self.rng);
                match self.link.is_there() {
                    false => self.link()?,
                    true if !self.link.is_counting() => self.count(),
                    true => {}
                }
            }
            self.turn(false)?;
        }
        for _ in 0..self.rng.below(12) {
            self.guest.write(&mut self.owner, self.disk, &mut self.rng);
        }
        self.until("all writes have ended", |it| it.guest.has_written())?;
        self.guest.flush(&mut self.owner, self.disk);
        self.until("all is flushed", |it| it.guest.has_written())
    }

    /// The image gets all that was written so far.
    pub(super) fn bring_home(&mut self) -> Result<(), String> {
        let (volume, request) = (self.disk, self.owner.request());
        let command = Command::Destage { volume };
        self.owner.apply(Event::Admin { request, command });
        self.until("all is destaged", |it| {
            it.owner.answer(request) == Some(Ok(()))
        })
    }

    /// A destage is under way, and perhaps in the middle of its work.
    fn begin_destage(&mut self) -> Result<(), String> {
        self.destage();
        for _ in 0..self.rng.below(DESTAGE_STEPS_MAX) {
            self.turn(false)?;
        }
        Ok(())
    }

    /// The owner lets go of the volume. Reads are under way, and some of them are refused.
    fn let_go(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.below(6) {
            self.guest.read(&mut self.owner, self.disk, &mut self.rng);
        }
        let (volume, request) = (self.disk, self.owner.request());
        let command = Command::Depose { volume };
        self.owner.apply(Event::Admin { request, command });
        let mut deposed = None;
        for _ in 0..ROUNDS_MAX {
            deposed = deposed.or_else(|| self.owner.answer(request));
            let over = deposed.is_some() && self.guest.is_idle();
            if over && self.asks.is_empty() && self.owner.asks.is_empty() {
                break;
            }
            self.turn(true)?;
        }
        expect(deposed.ok_or_else(|| "it never lets go".to_owned()))?;
        if !self.guest.is_idle() || !self.asks.is_empty() {
            return Err("what was asked for never ends".to_owned());
        }
        if self.rng.chance(40) {
            self.counters.owner_crashes += 1;
            let power = self.rng.chance(500);
            self.owner.crash(power)?;
        }
        let (name, term) = (format!("old@{}", self.term), self.term);
        expect(self.owner.order(Command::Retire { volume, name, term }))
    }

    /// The other host makes its copy a volume of its own.
    fn own_copy(&mut self) -> Result<(), String> {
        let volume = self.freeze()?;
        if self.rng.chance(50) {
            self.peer.crash(true)?;
        }
        let name = "disk".to_owned();
        expect(self.peer.order(Command::TakeOver { volume, name }))?;
        if self.rng.chance(50) {
            self.peer.crash(true)?;
        }
        Ok(())
    }

    /// The owner serves the volume. `former`: the other host may be asked; `own`: a journal of its
    /// own is left to its engine.
    pub(super) fn attach(&mut self, former: bool, own: bool) -> Result<(), String> {
        let id = self.owner.engine().place("disk");
        self.owner.devices.places.insert(id, 0);
        let (of, place) = ((id, "disk"), (0, SECTORS));
        self.disk = match own {
            true => attach_own(&mut self.owner, of, place, (former, self.tuning))?,
            false => {
                let mut settled = self.owner.settle(id)?;
                settled.former = former;
                attach_settled(&mut self.owner, of, place, (settled, self.tuning))?
            }
        };
        self.name_lineage()
    }

    /// The same before there is proof that the other host has let go of the image.
    fn attach_unproved(&mut self) -> Result<(), String> {
        let id = self.owner.engine().place("disk");
        self.owner.devices.places.insert(id, 0);
        let settled = Settled {
            unproved: true,
            ..Settled::default()
        };
        let (of, with) = ((id, "disk"), (settled, self.tuning));
        self.disk = attach_settled(&mut self.owner, of, (0, SECTORS), with)?;
        self.proved = false;
        self.name_lineage()
    }

    /// The proof is there, if it was not: from here on the other host may be asked.
    pub(super) fn prove(&mut self) -> Result<(), String> {
        if self.proved {
            return Ok(());
        }
        let (volume, request) = (self.disk, self.owner.request());
        let command = Command::Prove { volume };
        self.owner.apply(Event::Admin { request, command });
        self.until("nothing touches the image", |it| {
            it.owner.answer(request) == Some(Ok(()))
        })?;
        let mut settled = self.owner.settle(volume)?;
        settled.former = self.rng.chance(950);
        let (of, with) = ((volume, "disk"), (settled, self.tuning));
        attach_proved(&mut self.owner, of, (0, SECTORS), with)?;
        self.proved = true;
        Ok(())
    }

    /// What the other host has kept of its own time is not needed.
    pub(super) fn drop_retired(&mut self) -> Result<(), String> {
        match self.retired.take() {
            Some(retired) => self.forget(retired),
            None => Ok(()),
        }
    }

    /// The owner dies and comes back. Its guest starts again, and finds what it must.
    pub(super) fn crash_owner(&mut self) -> Result<(), String> {
        if self.proved && self.rng.chance(600) {
            // The image has something else by now than what the other host has of it.
            self.bring_home()?;
            if self.rng.chance(500) {
                // And a checkpoint says so: the log does not tell any more what that is.
                self.name_lineage()?;
            }
        }
        let power = self.rng.chance(500);
        let least = match power {
            true => self.guest.model.promised(),
            false => self.guest.model.acked(),
        };
        self.guest.is_cut_off();
        self.asks.owner_is_gone();
        self.owner.crash(power)?;
        self.unlink(false)?;
        let (former, own) = (self.rng.chance(850), self.rng.chance(500));
        let former = former && self.counters.hand_overs > 0;
        self.counters.owner_crashes += 1;
        match self.proved || self.rng.chance(500) {
            true => {
                self.attach(former, own && self.proved)?;
                self.proved = true;
                self.counters.asks_again += u64::from(former);
            }
            false => self.attach_unproved()?,
        }
        let found = self.read_all()?;
        self.guest.judge(&found, least)
    }

    /// The other host dies and comes back: what was left there is gone, and its copy is given up.
    pub(super) fn crash_peer(&mut self) -> Result<(), String> {
        let power = self.rng.chance(500);
        self.asks.peer_is_gone();
        self.peer.crash(power)?;
        self.unlink(true)?;
        self.counters.peer_crashes += 1;
        Ok(())
    }
}
