//! Between guests and engine: requests become events, replies become knowledge.
//!
//! Always true: each request is answered at most once, its buffer lives until then, and the
//! models hear of it before the engine does. Deliberately absent: which requests there are
//! ([`guest`](crate::guest)) and when they arrive ([`world`](crate::world)).

use crate::guest::{Commit, Guest, Pending, Request, SizingStep};
use crate::qcow2;
use crate::tops;
use crate::world::{Broken, Sabotage, Wake, World};
use engine::event::{Command, Event, Refusal, ResetOn};
use engine::types::{BufferId, ConnectionId, Policy, RequestId, VolumeId};
use workload::check::{FlushPoint, Kind};
use workload::stamp;

/// Connections number as volume + this x (2 x count + whether it is the administrator's).
const CONNECTIONS: u32 = 1000;
/// The connection of commands to the whole host.
pub(crate) const HOST: u32 = CONNECTIONS - 1;
/// The number of the word that the cache file was looked for.
pub(crate) const CACHE_SEEN: u32 = 1;

impl World {
    pub fn wake_guests(&mut self) {
        for volume in 0..self.guests.len() {
            self.later(1, Wake::Guest(volume));
        }
    }

    pub(crate) fn wake_guest(&mut self, volume: usize) -> Result<(), Broken> {
        if self.guests[volume].id.is_none() {
            return Ok(());
        }
        self.read_on(volume)?;
        self.commit_on(volume)?;
        self.move_on(volume)?;
        while self.budget > 0 && self.guests[volume].whole.is_none() {
            let disconnect = self.plan.rates.disconnect;
            let Some(request) = self.guests[volume].next(disconnect) else {
                break;
            };
            self.budget -= 1;
            self.trace.counters.operations += 1;
            self.make_trouble();
            self.make_images_misfit();
            self.remove_cache();
            self.submit(volume, request)?;
            if self.struck {
                return Ok(());
            }
            if self.rng.chance(self.plan.rates.origin_check) {
                self.check_origins(false)?;
            }
            let pause = self.guests[volume].pause_ns();
            if pause > 1 {
                self.later(pause, Wake::Guest(volume));
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn request_id(&mut self, volume: usize, admin: bool) -> RequestId {
        let guest = &mut self.guests[volume];
        let connection = volume as u32 + CONNECTIONS * (2 * guest.connection + u32::from(admin));
        RequestId {
            connection: ConnectionId(connection),
            number: guest.number(),
        }
    }

    /// Parks the cache for an orderly stop.
    pub fn park(&mut self) -> Result<(), Broken> {
        let request = RequestId {
            connection: ConnectionId(HOST),
            number: 0,
        };
        self.apply(Event::Admin {
            request,
            command: Command::Park,
        })
    }

    pub fn submit(&mut self, volume: usize, request: Request) -> Result<(), Broken> {
        let id = self.guests[volume].id.expect("the volume is attached");
        self.trace.tell(format_args!("v{volume}: {request}"));
        match request {
            Request::Read { sector, sectors } => {
                let point = self.guests[volume].model.read_begin(sector, sectors);
                let buffer = self.buffer(sectors, 0xEE);
                self.trace.counters.reads += 1;
                let blurred = self.is_blurred(volume);
                let pending = Pending::Read {
                    point,
                    buffer,
                    blurred,
                };
                self.read(volume, sector, sectors, pending)
            }
            Request::Write { .. } | Request::Discard { .. } | Request::WriteZeroes { .. } => {
                self.change(volume, id, request)
            }
            Request::Outside => {
                let sector = self.guests[volume].model.sectors() - 1;
                let buffer = self.buffer(2, 0xEE);
                self.read(volume, sector, 2, Pending::Outside { buffer })
            }
            Request::Flush => {
                let point = self.guests[volume].model.flush_begin();
                let request = self.request_id(volume, false);
                self.guests[volume]
                    .pending
                    .insert(request.number, Pending::Flush { point });
                self.trace.counters.flushes += 1;
                self.apply(Event::Flush {
                    volume: id,
                    request,
                })
            }
            Request::Disconnect => {
                let connection = self.request_id(volume, false).connection;
                self.guests[volume].disconnected();
                self.trace.counters.disconnects += 1;
                self.apply(Event::Disconnect { connection })
            }
            Request::Destage
            | Request::Reset
            | Request::Sleep
            | Request::Tune(_)
            | Request::Switch(_)
            | Request::Resize(_)
            | Request::Quiesce
            | Request::Resume
            | Request::Commit
            | Request::Move
            | Request::Scrub
            | Request::Detach => self.command(volume, id, request),
        }
    }

    fn buffer(&mut self, sectors: u64, filler: u8) -> BufferId {
        self.memory
            .buffer_add(vec![filler; sectors as usize * stamp::SECTOR_BYTES])
    }

    pub fn read(
        &mut self,
        volume: usize,
        sector: u64,
        sectors: u64,
        pending: Pending,
    ) -> Result<(), Broken> {
        let request = self.request_id(volume, false);
        let buffer = pending.buffer().expect("a read has a buffer");
        self.guests[volume].pending.insert(request.number, pending);
        let id = self.guests[volume].id.expect("the volume is attached");
        self.apply(Event::Read {
            volume: id,
            request,
            sector,
            sectors,
            buffer,
        })
    }

    pub fn read_part(&mut self, volume: usize, sector: u64, sectors: u64) -> Result<(), Broken> {
        let buffer = self.buffer(sectors, 0xEE);
        self.read(volume, sector, sectors, Pending::Part { sector, buffer })
    }

    fn change(&mut self, at: usize, volume: VolumeId, request: Request) -> Result<(), Broken> {
        let id = self.request_id(at, false);
        let tag = self.guests[at].tag;
        let clock = self.clock();
        let guest = &mut self.guests[at];
        let (sector, sectors, fua) = range(request);
        let is_write = matches!(request, Request::Write { .. });
        let kind = if is_write { Kind::Stamp } else { Kind::Zero };
        let serial = guest.submit(clock, kind, (sector, sectors), fua);
        let buffer = is_write.then(|| {
            let mut bytes = vec![0; sectors as usize * stamp::SECTOR_BYTES];
            stamp::fill(&mut bytes, tag, sector, serial);
            self.memory.buffer_add(bytes)
        });
        let event = match (request, buffer) {
            (Request::WriteZeroes { allocate, .. }, _) => Event::WriteZeroes {
                volume,
                request: id,
                sector,
                sectors,
                fua,
                allocate,
            },
            (_, Some(buffer)) => Event::Write {
                volume,
                request: id,
                sector,
                sectors,
                buffer,
                fua,
                tag: Guest::tag(serial),
            },
            (_, None) => Event::Discard {
                volume,
                request: id,
                sector,
                sectors,
                fua,
            },
        };
        if is_write {
            self.trace.counters.writes += 1;
            self.trace.tell(format_args!("v{at}:   as #{serial}"));
        } else {
            self.trace.counters.zeroes += 1;
            self.trace.tell(format_args!("v{at}:   as #{serial}"));
        }
        let pending = Pending::Write {
            serial,
            sector,
            sectors,
            fua,
            buffer,
        };
        self.guests[at].pending.insert(id.number, pending);
        self.apply(event)
    }

    /// What an order to destage has to bring to the origins: what the volume and its group have.
    fn origin_points(&mut self, at: usize, request: Request) -> Vec<(usize, FlushPoint)> {
        if !matches!(request, Request::Destage | Request::Quiesce) {
            return Vec::new();
        }
        let mut members: Vec<usize> = self.members(at).collect();
        // What goes past the log is no matter of the group.
        if self.sabotage == Some(Sabotage::NoGroups) || self.guests[at].plan.switches {
            members = vec![at];
        }
        let points = members.into_iter().map(|member| {
            let origin = self.guests[member].origin.as_mut();
            let origin = origin.expect("only such volumes are destaged");
            (member, origin.flush_begin())
        });
        points.collect()
    }

    fn command(&mut self, at: usize, volume: VolumeId, request: Request) -> Result<(), Broken> {
        let id = self.request_id(at, true);
        let points = self.origin_points(at, request);
        let guest = &mut self.guests[at];
        let (command, pending) = match request {
            Request::Destage => {
                self.trace.counters.destages += 1;
                (Command::Destage { volume }, Pending::Destage { points })
            }
            Request::Reset => {
                guest.model.reset_begin();
                self.trace.counters.resets += 1;
                match guest.tuning.reset_on {
                    ResetOn::Command => (Command::Reset { volume }, Pending::Reset),
                    why => {
                        self.leave(at, volume, why)?;
                        let goes_on = false;
                        (Command::Arrive { volume, goes_on }, Pending::Reset)
                    }
                }
            }
            Request::Sleep => (self.sleep(at, volume)?, Pending::Wake),
            Request::Tune(tuning) => {
                guest.tune_begin(&tuning);
                (Command::Tune { volume, tuning }, Pending::Tune(tuning))
            }
            Request::Switch(policy) => (self.switch(at, volume, policy), Pending::Switch(policy)),
            Request::Resize(sectors) => {
                let size_bytes = sectors * stamp::SECTOR_BYTES as u64;
                let origin = &self.devices.origins[guest.plan.origin];
                if origin.top && guest.is_shrinking() {
                    let disk = tops::disk(origin, origin.disk_bytes() as usize)?;
                    guest.tail = disk[size_bytes as usize..].to_vec();
                }
                (
                    Command::Resize { volume, size_bytes },
                    Pending::Resize(sectors),
                )
            }
            Request::Quiesce => (Command::Quiesce { volume }, Pending::Quiesce { points }),
            Request::Resume => {
                self.rested_at_end(at)?;
                (Command::Resume { volume }, Pending::Resume)
            }
            Request::Commit => match guest.commit {
                Some(Commit::Alone) => (Command::Commit { volume }, Pending::Commit),
                _ => (Command::Suspend { volume }, Pending::Suspend),
            },
            Request::Move => (self.move_command(at, volume), Pending::Move),
            Request::Scrub => {
                self.trace.counters.scrubs += 1;
                (Command::Scrub, Pending::Scrub)
            }
            Request::Detach => {
                let discard_dirty = guest.plan.policy == Policy::Ephemeral;
                let command = Command::Detach {
                    volume,
                    discard_dirty,
                };
                (command, Pending::Detach)
            }
            other => unreachable!("{other:?} is no command"),
        };
        self.guests[at].pending.insert(id.number, pending);
        self.apply(Event::Admin {
            request: id,
            command,
        })
    }

    fn switch(&mut self, at: usize, volume: VolumeId, policy: Policy) -> Command {
        let guest = &mut self.guests[at];
        guest.policies[0] = policy;
        self.trace.counters.switches += 1;
        Command::Switch {
            volume,
            policy,
            journal_possible: guest.plan.journal_possible,
        }
    }

    /// The rings of a guest stop as at its end, and it goes on.
    fn sleep(&mut self, at: usize, volume: VolumeId) -> Result<Command, Broken> {
        self.trace.counters.images.sleeps += 1;
        let why = self.guests[at].tuning.reset_on;
        self.leave(at, volume, why)?;
        let goes_on = true;
        Ok(Command::Arrive { volume, goes_on })
    }

    /// The guest ends in order. It comes back at once, before or after that is durable.
    fn leave(&mut self, at: usize, volume: VolumeId, why: ResetOn) -> Result<(), Broken> {
        let request = self.request_id(at, true);
        let guest = &mut self.guests[at];
        guest.pending.insert(request.number, Pending::Leave);
        let command = Command::Leave { volume, why };
        self.apply(Event::Admin { request, command })
    }

    /// Hands an answer to the guest that waits for it.
    pub(crate) fn reply(
        &mut self,
        id: RequestId,
        result: Result<(), Refusal>,
    ) -> Result<(), Broken> {
        let volume = (id.connection.0 % CONNECTIONS) as usize;
        if volume == HOST as usize && id.number == CACHE_SEEN {
            return result.map_err(|refusal| format!("a look was refused: {refusal}").into());
        }
        if volume == HOST as usize {
            self.parked = result.is_ok();
            return result.map_err(|refusal| format!("park was refused: {refusal}").into());
        }
        let guest = &mut self.guests[volume];
        let gone = guest.gone.contains_key(&id.number);
        let known = guest
            .pending
            .remove(&id.number)
            .or_else(|| guest.gone.remove(&id.number));
        let pending = known.ok_or_else(|| format!("{id:?} was answered, but nobody asked"))?;
        if self.sabotage == Some(Sabotage::NoAnswer) && matches!(pending, Pending::Destage { .. }) {
            self.guests[volume].pending.insert(id.number, pending);
            return Ok(());
        }
        if self.trace.tells() {
            let outcome = result.map_or_else(|it| it.to_string(), |()| "done".to_owned());
            self.trace
                .tell(format_args!("v{volume}:   {}: {outcome}", pending.name()));
        }
        let bytes = pending
            .buffer()
            .map(|buffer| self.memory.buffer_remove(buffer));
        if let Err(refusal) = result {
            // What owns nothing yet is given up with its connection.
            if !(gone && refusal == Refusal::Gone) {
                self.check_refusal(volume, &pending, refusal)?;
            }
        }
        self.answer(volume, pending, result, bytes.unwrap_or_default())
            .map_err(|broken| broken.at(format_args!("v{volume}")))?;
        let pause = self.guests[volume].pause_ns();
        self.later(pause, Wake::Guest(volume));
        Ok(())
    }

    fn answer(
        &mut self,
        volume: usize,
        pending: Pending,
        result: Result<(), Refusal>,
        bytes: Vec<u8>,
    ) -> Result<(), Broken> {
        let clock = self.clock();
        let guest = &mut self.guests[volume];
        match pending {
            Pending::Read { blurred: true, .. } => {}
            Pending::Read { point, .. } if result.is_ok() => {
                guest
                    .model
                    .read_done(&point, &bytes)
                    .map_err(|it| it.to_string())?;
            }
            Pending::Write { serial, .. } if result.is_ok() => {
                guest.acknowledge(clock, serial);
                self.trace.counters.acknowledged += 1;
            }
            Pending::Flush { point } if result.is_ok() => guest.model.flush_done(point),
            // What was written may have gone to a file without a name.
            Pending::Destage { points } if result.is_ok() && self.plan.rates.knows_images() => {
                // Before a look is answered the next cut may be at some of the origins.
                self.check_cut(volume)?;
                self.look(volume, points)?;
            }
            Pending::Destage { points } if result.is_ok() => {
                self.is_home(points)?;
                self.check_cut(volume)?;
            }
            Pending::Look { points } if result.is_ok() => {
                self.fits(volume)?;
                if !points.is_empty() {
                    self.is_home(points)?;
                }
            }
            Pending::Reset => guest.model.reset_done(result.is_ok()),
            Pending::Tune(tuning) => {
                guest.tune_done(if result.is_ok() { tuning } else { guest.tuning });
            }
            Pending::Switch(_) => guest.switch_done(result.is_ok()),
            Pending::Resize(sectors) => self.resize_answered(volume, sectors, result)?,
            Pending::Quiesce { points } => self.quiesced(volume, points, result)?,
            Pending::Resume => self.resumed(volume, result)?,
            Pending::Commit => self.check_commit(volume, Some(result.is_ok()))?,
            Pending::Move => self.move_answered(volume, result)?,
            Pending::Scrub if result.is_ok() => self.scrubbed()?,
            Pending::Detach if result.is_ok() => {
                let id = guest.id.take().expect("it was attached");
                self.check_left(volume, id)?;
            }
            Pending::Part { sector, .. } => self.part_read(volume, sector, result, &bytes)?,
            Pending::Outside { .. } if result.is_ok() => {
                return Err("a read beyond the end was answered".into());
            }
            _ => {}
        }
        Ok(())
    }

    /// The origins have what an order to destage was for.
    pub(crate) fn is_home(&mut self, points: Vec<(usize, FlushPoint)>) -> Result<(), Broken> {
        for (member, point) in points {
            self.check_reached(member)?;
            let origin = self.guests[member].origin.as_mut();
            origin
                .expect("only such volumes are destaged")
                .flush_done(point);
        }
        self.check_origins(true)
    }

    /// A volume has its new size when that is answered, and its image with it.
    fn resize_answered(
        &mut self,
        volume: usize,
        sectors: u64,
        result: Result<(), Refusal>,
    ) -> Result<(), Broken> {
        let guest = &mut self.guests[volume];
        let counters = &mut self.trace.counters.sizes;
        let refused = result == Err(Refusal::Dirty);
        counters.refused += u64::from(refused);
        if let Err(refusal) = result {
            // Its end may be gone when its header could not be read.
            let tried = matches!(refusal, Refusal::Io | Refusal::OriginFull | Refusal::Held);
            let origin = &self.devices.origins[guest.plan.origin];
            match tried && origin.top && guest.is_shrinking() {
                true => guest.doubt_end(),
                false => guest.resized(None),
            }
            return Ok(());
        }
        counters.changed += 1;
        counters.shrunk += u64::from(sectors < guest.model.sectors());
        guest.resized(Some(sectors));
        let ephemeral = guest.plan.policy == Policy::Ephemeral;
        let bytes = sectors * stamp::SECTOR_BYTES as u64;
        let origin = &self.devices.origins[guest.plan.origin];
        let found = origin.disk_bytes();
        let sure = !origin.top || qcow2::size(origin.image.durable()) == bytes;
        if ephemeral || found != bytes || !sure {
            return Err(format!("resized to {bytes} bytes, but its image has {found}").into());
        }
        Ok(())
    }

    /// A daemon is gone in the middle of a change of size: what the image has counts.
    pub(crate) fn take_sizes(&mut self) -> Result<(), Broken> {
        let raw = |it: &usize| !self.devices.origins[self.guests[*it].plan.origin].top;
        let raw: Vec<usize> = (0..self.guests.len()).filter(raw).collect();
        raw.into_iter().try_for_each(|at| self.take_size(at))
    }

    /// The same of one, whose image is sure.
    pub(crate) fn take_size(&mut self, at: usize) -> Result<(), Broken> {
        let guest = &mut self.guests[at];
        let origin = &self.devices.origins[guest.plan.origin];
        let found = origin.disk_bytes() / stamp::SECTOR_BYTES as u64;
        let ordered = guest.sizing.filter(|it| it.step == SizingStep::Ordered);
        let known = guest.sectors();
        if origin.top && guest.is_shrinking() && found == known {
            let at = |why: String| format!("v{at} was to become smaller: {why}");
            tops::judge_tail(origin, &guest.tail).map_err(at)?;
            guest.doubt_end();
            self.trace.counters.sizes.ends_doubted += 1;
            return Ok(());
        }
        if !guest.plan.resizes || found == known {
            guest.sizing = guest.sizing.filter(|_| ordered.is_none());
            return Ok(());
        }
        if ordered.is_none_or(|it| it.sectors != found) {
            let words =
                format!("the image of v{at} has {found} sectors, not {known}, after {ordered:?}");
            return Err(words.into());
        }
        if origin.top && qcow2::size(origin.image.durable()) != origin.disk_bytes() {
            return Err(format!("the size of v{at} counts and is not sure").into());
        }
        self.trace.counters.sizes.cut_short += 1;
        guest.resized(Some(found));
        Ok(())
    }

    /// A scrub has come to its end: of dirty data there is nothing to be found, because only a
    /// device that dies loses some.
    fn scrubbed(&mut self) -> Result<(), Broken> {
        let engine = self.engine.as_ref().expect("it has just answered");
        let seen = engine.snapshot().scrub.expect("one has ended");
        let counters = &mut self.trace.counters;
        counters.scrubbed_bytes += seen.checked_bytes;
        counters.scrub_dropped_bytes += seen.dropped_bytes;
        if !seen.complete || seen.running {
            return Err(format!("a scrub was answered before its end: {seen:?}").into());
        }
        if (seen.damaged_bytes > 0 || seen.bad_footers > 0) && !self.faulty() {
            return Err(format!("a scrub found damage where none is: {seen:?}").into());
        }
        Ok(())
    }

    /// Whether the engine may refuse this.
    fn check_refusal(
        &mut self,
        volume: usize,
        pending: &Pending,
        refusal: Refusal,
    ) -> Result<(), Broken> {
        let plan = &self.guests[volume].plan;
        let (policy, direct) = (plan.policy, plan.goes_direct());
        let held = self.members(volume).any(|it| self.guests[it].misfits);
        let allowed = match (pending, refusal) {
            (Pending::Look { .. }, it) => it == Refusal::Held && self.may_be_held(volume),
            (_, Refusal::Held) if held => true,
            (Pending::Outside { .. }, it) => it == Refusal::OutOfRange,
            (Pending::Write { .. }, Refusal::NoSpace) => policy == Policy::Ephemeral,
            (Pending::Write { .. }, Refusal::OriginFull | Refusal::Io) => direct && self.faulty(),
            (Pending::Reset | Pending::Wake, it) => it == Refusal::Gone,
            (Pending::Destage { .. }, Refusal::Busy) => self.has_rests(volume),
            (Pending::Resize(_), Refusal::Busy) => {
                let below = &self.devices.origins[plan.origin].below;
                self.has_rests(volume) || below.given_up
            }
            (Pending::Switch(_), Refusal::Busy) => self.has_rests(volume),
            (Pending::Quiesce { .. }, Refusal::Busy) => {
                self.any_member(volume, |it| it.resizes || it.moves)
            }
            (Pending::Quiesce { .. }, Refusal::Policy) => {
                self.faulty() || self.any_member(volume, |it| it.switches)
            }
            (Pending::Quiesce { .. }, Refusal::CacheFailed) => self.faulty(),
            // The log needed its room, or its device has failed.
            (Pending::Resume, Refusal::NotQuiesced) => true,
            (Pending::Resize(_), Refusal::Policy) => policy == Policy::Ephemeral,
            (Pending::Resize(_), Refusal::CacheFailed | Refusal::OriginFull) => self.faulty(),
            (Pending::Commit, Refusal::OriginFull) => self.faulty(),
            (Pending::Move, it) => self.may_refuse_move(volume, it),
            (Pending::Resize(sectors), Refusal::Dirty) => {
                // With a log that holds data, that is.
                let logged = policy == Policy::WriteBack || plan.switches;
                logged && *sectors < self.guests[volume].sectors()
            }
            (_, Refusal::Io | Refusal::Held | Refusal::Damaged) => self.faulty(),
            (Pending::Switch(_) | Pending::Scrub, Refusal::CacheFailed) => self.faulty(),
            _ => false,
        };
        if !matches!(pending, Pending::Outside { .. }) {
            self.trace.counters.refused += 1;
        }
        let why = || {
            format!(
                "v{volume} ({}): {} refused: {refusal}",
                policy.name(),
                pending.name()
            )
        };
        if allowed { Ok(()) } else { Err(why().into()) }
    }
}

/// Sectors and FUA of a request that changes something.
fn range(request: Request) -> (u64, u64, bool) {
    match request {
        Request::Write {
            sector,
            sectors,
            fua,
        }
        | Request::Discard {
            sector,
            sectors,
            fua,
        }
        | Request::WriteZeroes {
            sector,
            sectors,
            fua,
            ..
        } => (sector, sectors, fua),
        other => unreachable!("{other:?} changes nothing"),
    }
}
