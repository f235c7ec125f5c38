//! The lives of the daemon: how it starts, and how each life ends.
//!
//! Always true: a volume is judged by the worst that happened since it was judged last; a daemon
//! starts only when the late writes of the one before have landed, unless the run was asked to
//! leave that fence out. Deliberately absent: what happens within a life
//! ([`world`](crate::world)).
//!
//! ```text
//! start: open -> for each volume: place, settle, attach -> read everything, judge
//!    ^     \__________________ another crash ______________/          |
//!    |                                                                v
//!    +------- kill | kill in a memory operation | power loss | orderly stop
//! ```

use crate::below::Below;
use crate::devices::Blocking;
use crate::disk::{Disk, Power};
use crate::guest::{Commit, Guest};
use crate::mapped;
use crate::oracle::ANSWER_NS_MAX;
use crate::tops;
use crate::world::{Broken, LATE_NS_MAX, Sabotage, Step, Trigger, World};
use engine::engine::{Engine, OpenError, Otherwise, Settled, format_cache, settle_for};
use engine::event::{Event, Purpose, VolumeSpec};
use engine::types::{Policy, Time, Uuid, VolumeId};
use workload::check::Crash;
use workload::stamp;

/// Starts that may be hit by another crash; later ones are left alone, so that the run goes on.
const CRASHES_MAX: u32 = 4;
/// Starts at most.
const STARTS_MAX: u32 = 40;

const PURPOSES: [Purpose; 15] = [
    Purpose::GuestRead,
    Purpose::GuestWrite,
    Purpose::Log,
    Purpose::Footer,
    Purpose::Fill,
    Purpose::LineRead,
    Purpose::Prepare,
    Purpose::Checkpoint,
    Purpose::Evacuate,
    Purpose::Scrub,
    Purpose::DestageRead,
    Purpose::JournalWrite,
    Purpose::JournalApply,
    Purpose::DestageWrite,
    Purpose::Ledger,
];

/// How a life of the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Kill,
    /// In the middle of an operation on the stage.
    KillInMemory,
    PowerLoss,
    /// A kill, and its stage is removed while the host goes on.
    StageGone,
    /// Everything is parked; then the host goes down as well, or not.
    Orderly {
        power_off: bool,
    },
    /// All is brought home, then everything as at an orderly stop; another host goes on.
    Move,
    /// A power loss, and another host helps out until this one is back.
    Visit,
}

/// What came of an attempt to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Up,
    Again,
}

impl World {
    /// Writes the empty cache, before the first start.
    pub fn format(&mut self) -> Result<(), Broken> {
        for _ in 0..self.plan.hosts {
            let uuid = Uuid(self.rng.bytes16());
            let mut media = Blocking::new(&mut self.devices, &mut self.rng, &mut self.now);
            format_cache(&mut media, uuid, self.plan.geometry)
                .map_err(|error| format!("the cache cannot be formatted: {error}"))?;
            if self.plan.hosts > 1 {
                self.change_host();
            }
        }
        Ok(())
    }

    /// Starts the daemon, through further crashes, until all volumes are judged.
    pub fn start(&mut self) -> Result<(), Broken> {
        // Who was let in earlier than others asks nothing before all are judged.
        if self.plan.rates.knows_images() {
            self.budget = 0;
        }
        for attempt in 0..STARTS_MAX {
            let calm = attempt >= CRASHES_MAX;
            if self.try_start(calm)? == Start::Again {
                continue;
            }
            let unlucky = !calm && self.rng.chance(self.plan.rates.crash_in_recovery / 2);
            if unlucky {
                let purpose = self.rng.pick(&PURPOSES);
                self.arm(purpose);
            }
            let verified = self.verify()?;
            self.disarm();
            if verified == Step::Ran {
                return Ok(());
            }
            self.die(true)?;
        }
        Err(Broken::stuck(format!(
            "the daemon does not come up in {STARTS_MAX} starts"
        )))
    }

    fn try_start(&mut self, calm: bool) -> Result<Start, Broken> {
        self.devices.places.clear();
        self.parked = false;
        self.struck = false;
        let config = self.plan.config(self.machine, self.boot, self.rng.word());
        let fuse = self.fuse(calm);
        let mut rng = self.rng.fork();
        let errors = if calm {
            0
        } else {
            self.plan.rates.recovery_error
        };
        let mut now = self.now;
        let mut media = Blocking::new(&mut self.devices, &mut rng, &mut now);
        (media.fuse, media.errors) = (fuse, errors);
        media.killed = self.memory.killed();
        let opened = Engine::open(config, &mut media, &mut self.memory);
        let (crashed, failed) = (media.crashed || self.memory.is_killed(), media.failed > 0);
        let calls = media.calls;
        self.now = now;
        if crashed {
            let place = if self.memory.is_killed() {
                "the stage"
            } else {
                "the devices"
            };
            self.trace.tell(format_args!(
                "crash in recovery, at {place} after {calls} calls"
            ));
        }
        let (engine, report) = match opened {
            _ if crashed => return self.die(true).map(|()| Start::Again),
            Ok(opened) => opened,
            Err(error) => return self.not_open(error, failed),
        };
        self.trace.note(format_args!("open: {report:?}"));
        let (records, torn) = (report.records_replayed, report.tail_bytes_discarded);
        self.trace.tell(format_args!(
            "the daemon starts: {records} records, {torn} bytes of torn tail"
        ));
        self.trace
            .add(&[report.records_replayed, report.entries_replayed]);
        if !report.damage.is_empty() && !self.spoiled {
            return Err(format!("recovery claims damage: {:?}", report.damage).into());
        }
        self.engine = Some(engine);
        let journals = self
            .devices
            .origins
            .iter()
            .map(|it| it.journal.sync_point());
        self.journals = journals.collect();
        let mut order: Vec<usize> = (0..self.guests.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        for volume in order {
            // Somebody must go on with the run, so the first volume always comes back.
            let absent = !calm && volume > 0 && self.rng.chance(self.plan.rates.absent);
            if absent {
                self.trace.tell(format_args!("v{volume} is not configured"));
            }
            if !absent && self.attach(volume, calm, errors)? == Start::Again {
                return Ok(Start::Again);
            }
        }
        self.memory.disarm();
        Ok(Start::Up)
    }

    /// When the recovery is to be hit by another crash: by calls to devices, and for the stage
    /// by operations on it.
    fn fuse(&mut self, calm: bool) -> Option<u64> {
        if calm || !self.rng.chance(self.plan.rates.crash_in_recovery) {
            return None;
        }
        let far = self.rng.pick(&[10, 60, 300]);
        if self.rng.chance(300) {
            self.memory.arm(self.rng.below(far));
            return None;
        }
        Some(self.rng.below(far))
    }

    fn not_open(&mut self, error: OpenError, failed: bool) -> Result<Start, Broken> {
        if failed && matches!(error, OpenError::Io(_)) {
            self.trace.counters.recovery_errors += 1;
            self.trace.note(format_args!("the start fails: {error}"));
            self.memory.disarm();
            self.end(Ending::Kill)?;
            return Ok(Start::Again);
        }
        Err(format!("recovery refuses: {error}").into())
    }

    /// Writes that the daemon before had begun and that recovery has found end here, as a guest in
    /// whose memory the rings are hears of it. The others it would do again.
    fn pay(&mut self, volume: usize, id: VolumeId) {
        let clock = self.clock();
        let (engine, guest) = (self.engine.as_ref(), &mut self.guests[volume]);
        let engine = engine.expect("the engine is open");
        for serial in std::mem::take(&mut guest.owed) {
            if engine.has_taken(id, Guest::tag(serial)) {
                self.trace.counters.found += 1;
                guest.acknowledge(clock, serial);
            }
        }
    }

    /// Settles a ledger; `None` if the daemon was killed in it, or found a device that fails.
    fn settle(
        &mut self,
        volume: usize,
        id: VolumeId,
        leaves: bool,
        (calm, errors): (bool, u64),
    ) -> Result<Option<Settled>, Broken> {
        let cache = self.engine.as_ref().expect("the engine is open").cache();
        let unlucky = !calm && self.rng.chance(self.plan.rates.crash_in_recovery / 8);
        let fuse = unlucky.then(|| self.rng.below(20));
        let mut rng = self.rng.fork();
        let mut now = self.now;
        let mut media = Blocking::new(&mut self.devices, &mut rng, &mut now);
        (media.fuse, media.errors) = (fuse, errors);
        let cache = Some(cache).filter(|_| leaves);
        let settled = settle_for(&mut media, id, Otherwise::Refuse, cache);
        let (crashed, failed) = (media.crashed, media.failed > 0);
        self.now = now;
        match settled {
            _ if crashed => {
                self.trace.counters.settles_hit += 1;
                self.trace
                    .tell(format_args!("crash while v{volume} is settled"));
                self.die(true).map(|()| None)
            }
            Ok(settled) => Ok(Some(settled)),
            Err(error) => self.not_open(error, failed).map(|_| None),
        }
    }

    fn attach(&mut self, volume: usize, calm: bool, errors: u64) -> Result<Start, Broken> {
        let plan = self.guests[volume].plan.clone();
        let engine = self.engine.as_mut().expect("the engine is open");
        let id = engine.place(&plan.name);
        self.devices.places.insert(id, plan.origin);
        if self.guests[volume].replaced.is_some() {
            match self.attach_replaced(volume, id)? {
                Some(true) => return self.die(true).map(|()| Start::Again),
                Some(false) => return Ok(Start::Up),
                None => {}
            }
        }
        // What the log has of a journal is replayed while the volume is served, but in some lives.
        let leaves = !self.boot.0[0].is_multiple_of(4);
        let Some(settled) = self.settle(volume, id, leaves, (calm, errors))? else {
            return Ok(Start::Again);
        };
        if self.devices.origins[plan.origin].top {
            self.take_size(volume)?;
        }
        // One that is only wanted waits for answers, and has not begun.
        let commit = self.guests[volume].commit.take();
        if commit.is_some_and(|step| step != Commit::Wanted) {
            self.check_commit(volume, None)?;
        }
        let elsewhere = self.plan.hosts > 1 && self.is_owed_elsewhere(id);
        self.guests[volume].knows_image = settled.image.is_some();
        let settled = self.taken_or(settled);
        let spec = self.spec(volume);
        self.guests[volume].journal_left = settled.journal_left;
        let mut attached = self.attach_or_accept(volume, id, spec.clone(), settled);
        if attached == Err(OpenError::JournalFirst) {
            let Some(whole) = self.settle(volume, id, false, (calm, errors))? else {
                return Ok(Start::Again);
            };
            let whole = self.taken_or(whole);
            self.guests[volume].journal_left = false;
            attached = self.attach_or_accept(volume, id, spec, whole);
        }
        match attached {
            Err(OpenError::Refused(why)) if elsewhere => {
                self.trace.counters.held_elsewhere += 1;
                self.trace.tell(format_args!("v{volume} is refused: {why}"));
                return Ok(Start::Up);
            }
            Err(error) => return Err(format!("{} cannot be attached: {error}", plan.name).into()),
            Ok(()) => {}
        }
        self.guests[volume].id = Some(id);
        self.look_later(volume);
        self.pay(volume, id);
        self.apply(Event::Tick)?;
        if self.struck {
            return self.die(true).map(|()| Start::Again);
        }
        Ok(Start::Up)
    }

    /// Where something is lost its administrator accepts that.
    fn attach_or_accept(
        &mut self,
        volume: usize,
        id: VolumeId,
        spec: VolumeSpec,
        settled: Settled,
    ) -> Result<(), OpenError> {
        let mut attached = self.attach_as(volume, id, spec.clone(), settled.clone());
        if let (true, Err(OpenError::StageLost(why))) = (self.stage_gone, &attached) {
            self.trace.counters.stages_lost += 1;
            self.trace.tell(format_args!("v{volume} is held: {why}"));
            self.guests[volume].stage_lost();
            let accepted = Settled {
                without_stage: true,
                ..settled.clone()
            };
            attached = self.attach_as(volume, id, spec.clone(), accepted);
        }
        if matches!(&attached, Err(OpenError::Refused(_))) && self.guests[volume].accepts_loss() {
            self.trace.counters.images.losses += 1;
            let mut accepted = settled;
            accepted.accept_loss();
            attached = self.attach_as(volume, id, spec, accepted);
        }
        attached
    }

    /// With a map where its base is not raw.
    fn attach_as(
        &mut self,
        volume: usize,
        id: VolumeId,
        spec: VolumeSpec,
        mut settled: Settled,
    ) -> Result<(), OpenError> {
        let origin = &mut self.devices.origins[self.guests[volume].plan.origin];
        if origin.top && !settled.journal_left {
            let freed = tops::open(&mut origin.image, spec.policy.is_direct());
            self.trace.counters.images.tops.freed += freed as u64;
        }
        let engine = self.engine.as_mut().expect("the engine is open");
        if !origin.below.is_some() {
            return engine.attach(Time(self.now), id, spec, settled);
        }
        let top = origin.image.landed();
        let opened = origin.below.open(top);
        opened.map_err(OpenError::Damaged)?;
        if let (Some(image), Some(below)) = (&mut settled.image, origin.below.print_open()) {
            // It was not open when its first file was looked at.
            image.below = below;
        }
        let below = origin.below.layers(origin.below.on);
        let map = match spec.base_layer {
            Some(identity) if !origin.top => {
                self.trace.counters.images.mapped += 1;
                mapped::map(top, &below, identity)
            }
            _ => {
                // What was kept of its tables is of another life.
                self.trace.counters.images.tops.attached += 1;
                mapped::written(top, &below, Uuid(self.rng.bytes16()))
            }
        };
        engine.attach_mapped(id, spec, settled, map)
    }

    /// A host that takes all believes no ledger that says *dirty*.
    fn taken_or(&self, mut settled: Settled) -> Settled {
        if self.sabotage == Some(Sabotage::TakesAll)
            && let Some(ledger) = &mut settled.ledger
        {
            ledger.dirty = false;
        }
        settled
    }

    pub(crate) fn spec(&mut self, volume: usize) -> VolumeSpec {
        let grouped = !self.guests[volume].plan.group.is_empty();
        let guest = &mut self.guests[volume];
        let policy = match grouped {
            // Other policies of a group are orders that a start does not know.
            true => guest.settle_on(Policy::WriteBack),
            false => guest.settle_policy(),
        };
        let guest = &self.guests[volume];
        let alone = guest.commit == Some(Commit::Alone);
        let ephemeral = guest.plan.policy == Policy::Ephemeral && !alone;
        let mut identity = [0; 16];
        identity[0] = guest.plan.origin as u8;
        if self.sabotage != Some(Sabotage::SameIdentity) {
            let version = self.devices.origins[guest.plan.origin].version;
            identity[8..].copy_from_slice(&version.to_le_bytes());
        }
        VolumeSpec {
            name: guest.plan.name.clone(),
            origin: format!("/images/{}.raw", guest.plan.origin),
            new_uuid: Uuid(self.rng.bytes16()),
            policy,
            size_bytes: guest.sectors() * engine::types::SECTOR_BYTES,
            read_only: false,
            base_layer: ephemeral.then_some(Uuid(identity)),
            journal_possible: guest.plan.journal_possible,
            commit: alone,
            storage: guest.plan.origin as u64 % 2,
            group: match self.sabotage {
                Some(Sabotage::NoGroups) => String::new(),
                _ => guest.plan.group.clone(),
            },
            tuning: guest.tuning,
        }
    }

    /// Lets the guests work until the life is to end, and ends it.
    pub fn live(&mut self, budget: u64, ending: Ending) -> Result<(), Broken> {
        self.budget = budget;
        let arm_at = self.rng.below(budget / 2 + 1);
        let purpose = self.rng.pick(&PURPOSES);
        self.wake_guests();
        let mut armed = false;
        let mut progress = (self.budget, self.waking());
        while self.budget > 0 {
            if self.budget != progress.0 {
                progress = (self.budget, self.waking());
            } else if self.waking() > progress.1 + ANSWER_NS_MAX {
                return Err(Broken::stuck(format!(
                    "for a long time nobody has asked:{}",
                    self.who_waits()
                )));
            }
            if !armed
                && self.budget <= arm_at
                && !matches!(ending, Ending::Orderly { .. } | Ending::Move)
            {
                armed = true;
                self.trace
                    .note(format_args!("armed: {ending:?} {purpose:?}"));
                match ending {
                    Ending::KillInMemory => {
                        let far = self.rng.below(300);
                        self.memory.arm(far);
                    }
                    _ => self.arm(purpose),
                }
            }
            match self.step()? {
                Step::Struck => break,
                Step::Idle => {
                    return Err(Broken::stuck(format!(
                        "nothing is left to do, but{} waits",
                        self.who_waits()
                    )));
                }
                Step::Ran => {}
            }
        }
        self.disarm();
        self.trace.tell(format_args!("ending: {ending:?}"));
        assert!(
            self.sabotage != Some(Sabotage::Panics),
            "this panic was asked for"
        );
        let mut ending = ending;
        if ending == Ending::Move && !self.bring_home()? {
            // What is not there cannot be brought home, and is nobody else's.
            ending = Ending::Orderly { power_off: true };
        }
        if matches!(ending, Ending::Orderly { .. } | Ending::Move) {
            self.stop()?;
        }
        self.check_origins(false)?;
        self.end(ending)?;
        match ending {
            Ending::Move => {
                self.trace.counters.moves += 1;
                self.change_host();
                Ok(())
            }
            Ending::Visit => self.visit(),
            _ => Ok(()),
        }
    }

    /// An orderly stop, up to its end.
    pub(crate) fn stop(&mut self) -> Result<(), Broken> {
        self.quiet()?;
        self.save_from_removed_cache()?;
        self.park()?;
        self.run_while(|world| !world.parked, "park").map(|_| ())
    }

    /// Waits until all guests have their answers, and what lost connections had begun has ended.
    pub fn quiet(&mut self) -> Result<(), Broken> {
        self.budget = 0;
        self.heal(true);
        let busy = |guest: &Guest| {
            let away = guest.commit.is_some() || guest.moving.is_some();
            !guest.pending.is_empty() || !guest.gone.is_empty() || away
        };
        let busy = |world: &World| world.guests.iter().any(busy) || world.is_image_astray();
        self.run_while(busy, "guests without faults").map(|_| ())
    }

    fn arm(&mut self, purpose: Purpose) {
        let left = self.rng.below(4);
        self.trigger = Some(Trigger {
            purpose,
            left,
            at_end: self.rng.chance(500),
        });
    }

    fn disarm(&mut self) {
        self.trigger = None;
        self.memory.disarm();
    }

    /// Another crash before the last one was dealt with.
    fn die(&mut self, in_recovery: bool) -> Result<(), Broken> {
        self.disarm();
        let power = self.rng.chance(400);
        let ending = if power {
            Ending::PowerLoss
        } else {
            Ending::Kill
        };
        let counters = &mut self.trace.counters;
        if in_recovery && power {
            counters.losses_in_recovery += 1;
        } else if in_recovery {
            counters.kills_in_recovery += 1;
        }
        self.trace.tell(format_args!("another crash: {ending:?}"));
        self.end(ending)
    }

    /// Ends the life of the daemon, and of its host if that is how it ends.
    pub fn end(&mut self, ending: Ending) -> Result<(), Broken> {
        self.count();
        self.check_claims()?;
        let owed_nothing = self.owed_nothing();
        self.plans_end();
        self.served = self.engine.is_some();
        self.faults.life_ends();
        self.engine = None;
        self.put_all_back();
        let late = self.orphaned();
        self.moves_end();
        let power = matches!(
            ending,
            Ending::PowerLoss | Ending::Visit | Ending::Move | Ending::Orderly { power_off: true }
        );
        if power {
            self.power_loss();
        } else {
            self.fence(late);
            self.memory.restart();
            if ending == Ending::StageGone {
                self.memory.lose_stage();
                self.stage_gone = true;
            }
        }
        self.rests.clear();
        self.disturbed.clear();
        self.take_sizes()?;
        let served = |at: &usize| self.guests[*at].id.is_some();
        let served: Vec<usize> = (0..self.guests.len()).filter(served).collect();
        for guest in &mut self.guests {
            // Parking has put everything acknowledged into the log.
            let logged = guest.plan.policy == Policy::WriteBack && !guest.plan.switches;
            let safe = self.parked && logged;
            guest.crashed(if power && !safe {
                Crash::PowerLoss
            } else {
                Crash::Kill
            });
        }
        let in_order = self.parked;
        self.parked = false;
        self.struck = false;
        self.lose_cache(in_order)?;
        if power {
            self.renew_images();
        }
        self.check_rests(&owed_nothing)?;
        if self.sabotage != Some(Sabotage::NoFence) {
            self.clock_is_set();
            self.foreign_writes(&owed_nothing);
        }
        self.replace_images(&served)?;
        self.check_origins(true)
    }

    /// While the host was down somebody has put other images in the place of bases.
    fn renew_images(&mut self) {
        for at in 0..self.plan.origins.len() {
            let mine = |guest: &&mut Guest| guest.plan.origin == at;
            let mut guests: Vec<&mut Guest> = self.guests.iter_mut().filter(mine).collect();
            // One that was being committed has a journal that is for this image and no other.
            let base = |guest: &&mut Guest| {
                guest.plan.policy == Policy::Ephemeral && guest.commit.is_none()
            };
            if !guests.iter().all(base) || !self.rng.chance(self.plan.rates.new_image) {
                continue;
            }
            let origin = &mut self.devices.origins[at];
            origin.version += 1;
            let tag = (at as u64 + 1) * 1_000_000 + origin.version;
            let mut image = vec![0; self.plan.origins[at].sectors as usize * stamp::SECTOR_BYTES];
            stamp::fill(&mut image, tag, 0, 0);
            if origin.below.is_some() {
                let [top, below] = mapped::files(&image, tag);
                origin.below = Below::one(below);
                image = top;
            }
            origin.image = Disk::new(image);
            if origin.inode > 0 {
                origin.inode += 2;
                origin.image.touch(crate::devices::MADE_NS);
            }
            for (n, guest) in guests.iter_mut().enumerate() {
                guest.renew(tag + 1000 * (n as u64 + 1), tag);
            }
            self.trace.counters.images_renewed += 1;
        }
    }

    pub fn ended(&mut self, ending: Ending) {
        let counters = &mut self.trace.counters;
        match ending {
            Ending::Kill => counters.kills += 1,
            Ending::KillInMemory => counters.kills_in_memory += 1,
            Ending::StageGone => counters.kills += 1,
            Ending::PowerLoss | Ending::Visit => counters.power_losses += 1,
            Ending::Orderly { .. } | Ending::Move => counters.orderly_stops += 1,
        }
    }

    fn fence(&mut self, mut late: Vec<(crate::devices::File, u64)>) {
        for at in (1..late.len()).rev() {
            late.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        for write in late {
            if self.sabotage != Some(Sabotage::NoFence) {
                self.now += self.rng.below(LATE_NS_MAX / 100);
                self.land(write.0, write.1);
            } else {
                self.land_later(write);
            }
        }
    }

    fn power_loss(&mut self) {
        let origins = self.rng.pick(&[Power::Kept, Power::Lost]);
        for file in self.devices.files() {
            let power = if file.origin().is_some() {
                origins
            } else {
                Power::Lost
            };
            let mut rng = self.rng.fork();
            let garbage = self.plan.rates.garbage && self.takes_garbage(file);
            let loss = self.devices.disk(file).power_loss(power, garbage, &mut rng);
            self.trace.counters.writes_lost += loss.lost;
            self.trace.counters.writes_torn += loss.torn;
            self.trace.counters.sectors_garbage += loss.garbage;
        }
        self.memory.power_loss(self.rng.chance(200));
        self.boot = Uuid(self.rng.bytes16());
    }

    /// Keeps the counts of a daemon beyond its life.
    fn count(&mut self) {
        if let Some(engine) = &self.engine {
            let snapshot = engine.snapshot();
            let counters = &mut self.trace.counters;
            counters.segments_reused += snapshot.segments_reused;
            counters.checkpoints += snapshot.checkpoints;
            counters.evacuated_bytes += snapshot.evacuated_bytes;
            counters.lines_written += snapshot.lines.write_bytes;
            counters.lines_read += snapshot.lines.read_bytes;
            counters.lines_kept += snapshot.lines.kept_blocks;
            counters.lines_bad += snapshot.lines.bad_blocks;
            counters.lines_retired += snapshot.lines.segments_retired;
            counters.lines_reappended += snapshot.lines.reappended_blocks;
            let held = snapshot.volumes.iter().map(|it| it.flow.held_writes);
            counters.held_writes += held.sum::<u64>();
        }
    }
}
