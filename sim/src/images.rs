//! Images that are not what they were, while a daemon serves them.
//!
//! ```text
//! moved:  renamed or removed, and perhaps another file has its name ─▶ put back
//! written: a base, by another program
//! shrunk: cut short where it lies ─▶ seen by all who have it ─▶ put back, sector by sector
//! ```
//!
//! Owns when that happens, the looks of the daemon, and what each volume was told. Always true:
//! once the engine was told that an image does not fit, it asks nothing of it but looks and syncs
//! until it was told that it fits again; a destage is not answered whose last sync went to a file
//! that has lost its name; what is read before the first look at an image that was cut short is no
//! promise, what is read when it was put back is. Deliberately absent: images that are replaced
//! while they are not served ([`host`](crate::host)).

use crate::devices::{File, Origin, Path};
use crate::guest::{Guest, Pending, Request};
use crate::world::{Broken, Step, Wake, World};
use engine::event::{Command, Device, Event, Io, IoError, Op};
use engine::types::Policy;
use workload::check::FlushPoint;
use workload::stamp;
use workload::stamp::SECTOR_BYTES;

/// The daemon looks at an image at least as often.
const LOOK_NS: u64 = 2_000_000_000;
/// How long an image is not what it was.
const ASTRAY_NS: u64 = 8_000_000_000;
/// Who puts an image back looks whether all have seen it.
const SEEN_NS: u64 = 50_000_000;

/// What an image has gone through, by the clock of the world.
#[derive(Clone, Debug, Default)]
pub struct Misfit {
    since: u64,
    synced_at: u64,
    mtime: u64,
    /// Its time of change is another one than when some overlays were begun.
    pub written: bool,
    /// What was behind the end when it was cut short.
    tail: Vec<u8>,
}

/// Where the sector of this byte begins. Who puts a part of one back beside what was written of it
/// meanwhile tears it, and that is no fault of ours.
fn whole(cut: u64) -> u64 {
    cut / SECTOR_BYTES as u64 * SECTOR_BYTES as u64
}

impl World {
    fn on_image(&self, origin: usize) -> impl Iterator<Item = usize> {
        let guests = self.guests.iter().enumerate();
        let mine = guests.filter(move |(_, it)| it.plan.origin == origin && it.id.is_some());
        mine.map(|(at, _)| at)
    }

    /// Perhaps an image loses its name, or what is behind some byte.
    pub(crate) fn make_images_misfit(&mut self) {
        let rates = &self.plan.rates;
        let (moved, shrunk) = (rates.image_moved, rates.image_shrunk);
        let written = rates.base_written;
        if self.healthy || !rates.knows_images() {
            return;
        }
        if written > 0 && self.rng.chance(written) {
            let at = self.rng.below(self.devices.origins.len() as u64) as usize;
            self.write_base(at);
        }
        if moved > 0 && self.rng.chance(moved) {
            let path = self.rng.pick(&[Path::Gone, Path::Elsewhere]);
            self.lead_astray(|origin| origin.path = path);
        }
        if shrunk > 0 && self.rng.chance(shrunk) {
            let part = self.rng.below(1000);
            self.lead_astray(|origin| origin.cut = Some(origin.image.size() * part / 1000));
        }
    }

    fn lead_astray(&mut self, change: impl Fn(&mut Origin)) {
        let at = self.rng.below(self.devices.origins.len() as u64) as usize;
        let back = self.rng.below(ASTRAY_NS);
        let busy = |it: usize| {
            let guest = &self.guests[it];
            guest.plan.resizes || guest.commit.is_some() || guest.moving.is_some()
        };
        if !self.devices.origins[at].fits() || self.on_image(at).any(busy) {
            return;
        }
        let since = self.clock();
        let origin = &mut self.devices.origins[at];
        self.images[at].since = since;
        self.images[at].mtime = origin.image.mtime();
        change(origin);
        let (path, cut) = (origin.path, origin.cut);
        let counters = &mut self.trace.counters.images;
        match cut {
            Some(_) => counters.shrunk += 1,
            None => counters.moved += 1,
        }
        self.trace.tell(format_args!(
            "image {at}: its path leads {path:?}, cut at {cut:?}"
        ));
        if cut.is_some() {
            let time = self.devices.stamp(File::Image(at), self.now);
            self.touch(at, time);
            self.blur(at);
            self.back_up(at);
        }
        // A read may end before its origin answers.
        self.found_fault();
        self.later(back, Wake::PutBack(at));
    }

    /// Another program writes all of a base, where it lies. What is read of it before a look is of
    /// the one or of the other.
    fn write_base(&mut self, at: usize) {
        let origin = &mut self.devices.origins[at];
        let base = |it: &Guest| it.plan.policy == Policy::Ephemeral && it.commit.is_none();
        let stamped = self.plan.origins[at].tag.is_some();
        let mut mine = self.guests.iter().filter(|it| it.plan.origin == at);
        if !origin.fits() || !stamped || !mine.all(base) {
            return;
        }
        origin.version += 1;
        let tag = (at as u64 + 1) * 1_000_000 + origin.version;
        let mut bytes = vec![0; origin.image.size() as usize];
        stamp::fill(&mut bytes, tag, 0, 0);
        origin.image.put(0, bytes);
        self.trace.counters.images.written += 1;
        self.trace
            .tell(format_args!("another program writes image {at}, a base"));
        let time = self.devices.stamp(File::Image(at), self.now);
        self.touch(at, time);
        self.blur(at);
        for guest in self.guests.iter_mut().filter(|it| it.plan.origin == at) {
            guest.model.base_written(tag);
            guest.stale_base = guest.id.is_some();
        }
    }

    /// Of an image that volumes write the time is their own doing, and who puts it back keeps that.
    fn touch(&mut self, at: usize, time: u64) {
        let base = |it: &Guest| it.plan.policy == Policy::Ephemeral;
        let mut mine = self.guests.iter().filter(|it| it.plan.origin == at);
        if mine.all(base) {
            self.devices.origins[at].image.touch(time);
            self.images[at].written = true;
        }
    }

    /// Only who has a log can write again what goes behind an end that was not seen.
    fn back_up(&mut self, at: usize) {
        let origin = &self.devices.origins[at];
        let logs = |it: &Guest| it.plan.policy == Policy::WriteBack && !it.plan.goes_direct();
        let mut mine = self.guests.iter().filter(|it| it.plan.origin == at);
        let from = whole(origin.cut.expect("it was cut short"));
        let kept = mine.all(logs);
        let bytes = if kept { origin.image.size() - from } else { 0 };
        let mut tail = vec![0; bytes as usize];
        origin.image.read_landed(from, &mut tail);
        self.images[at].tail = tail;
    }

    /// What is being read of an image that was cut short is as it comes.
    fn blur(&mut self, at: usize) {
        for guest in self.guests.iter_mut().filter(|it| it.plan.origin == at) {
            for pending in guest.pending.values_mut().chain(guest.gone.values_mut()) {
                if let Pending::Read { blurred, .. } = pending {
                    *blurred = true;
                }
            }
        }
    }

    /// The image of a volume was cut short, or is a base that was written, and the engine does
    /// not know.
    pub(crate) fn is_blurred(&self, volume: usize) -> bool {
        let guest = &self.guests[volume];
        let cut = self.devices.origins[guest.plan.origin].cut.is_some();
        cut && !guest.misfits || guest.stale_base
    }

    /// Behind the end of an image there are zeroes.
    pub(crate) fn cut_short(&self, file: File, offset: u64, bytes: &mut [u8]) {
        let File::Image(at) = file else { return };
        if let Some(cut) = self.devices.origins[at].cut {
            let left = cut.saturating_sub(offset).min(bytes.len() as u64);
            bytes[left as usize..].fill(0);
        }
    }

    pub(crate) fn is_image_astray(&self) -> bool {
        let astray = self.devices.origins.iter().any(|it| !it.fits());
        astray || self.guests.iter().any(|it| it.misfits || it.stale_base)
    }

    /// What was cut off is put back when all have seen that, because what happens between two
    /// looks leaves no trace at an image that volumes write.
    pub(crate) fn put_back_if_seen(&mut self, at: usize) {
        let origin = &self.devices.origins[at];
        let sees = |it: usize| self.guests[it].knows_image && !self.guests[it].misfits;
        if origin.cut.is_some() && self.on_image(at).any(sees) {
            return self.later(SEEN_NS, Wake::PutBack(at));
        }
        self.put_back(at);
    }

    fn put_back(&mut self, at: usize) {
        let origin = &mut self.devices.origins[at];
        if origin.fits() {
            return;
        }
        let cut = origin.cut.take();
        origin.path = Path::Here;
        let tail = std::mem::take(&mut self.images[at].tail);
        if let Some(cut) = cut.filter(|_| !tail.is_empty()) {
            origin.image.put(whole(cut), tail);
        }
        self.trace.tell(format_args!("image {at} is put back"));
        if cut.is_none() {
            return;
        }
        // What was kept of it may be what it was while it was short.
        self.devices.origins[at].version += 1;
        // With the time that it had, or with that of now.
        let time = match self.rng.chance(500) {
            true => self.devices.stamp(File::Image(at), self.now),
            false => self.images[at].mtime,
        };
        self.touch(at, time);
    }

    pub(crate) fn put_back_soon(&mut self) {
        for at in 0..self.devices.origins.len() {
            if !self.devices.origins[at].fits() {
                self.later(1, Wake::PutBack(at));
            }
        }
    }

    /// While no daemon serves them all images are put back.
    pub(crate) fn put_all_back(&mut self) {
        (0..self.devices.origins.len()).for_each(|at| self.put_back(at));
    }

    pub(crate) fn look_later(&mut self, volume: usize) {
        if self.plan.rates.knows_images() {
            let after = 1 + self.rng.below(LOOK_NS);
            self.later(after, Wake::Look(volume));
        }
    }

    pub(crate) fn look_in_turn(&mut self, volume: usize) -> Result<(), Broken> {
        if self.guests[volume].id.is_none() {
            return Ok(());
        }
        self.look_later(volume);
        let asked = |it: &Pending| matches!(it, Pending::Look { .. } | Pending::Detach);
        let guest = &self.guests[volume];
        if guest.pending.values().any(asked) || guest.commit.is_some() || self.parked {
            return Ok(());
        }
        self.look(volume, Vec::new())
    }

    /// Asks whether the image of a volume fits; what an order to destage was for waits for that.
    pub(crate) fn look(
        &mut self,
        at: usize,
        points: Vec<(usize, FlushPoint)>,
    ) -> Result<(), Broken> {
        let request = self.request_id(at, true);
        let guest = &mut self.guests[at];
        let volume = guest.id.expect("the volume is attached");
        guest
            .pending
            .insert(request.number, Pending::Look { points });
        let command = Command::Look { volume };
        self.apply(Event::Admin { request, command })
    }

    /// What the engine hears of an image with the end of a request.
    pub(crate) fn note_image(&mut self, io: &Io, file: File, result: Result<(), IoError>) {
        let File::Image(origin) = file else { return };
        self.note_applied(io, origin);
        if io.op == Op::Sync && result.is_ok() {
            self.images[origin].synced_at = self.clock();
        }
        let fits = self.devices.origins[origin].fits();
        let asked = |it: &&mut Guest| Some(io.device) == it.id.map(Device::Origin);
        let guest = self.guests.iter_mut().find(asked);
        if let (Op::Stat, Some(guest)) = (io.op, guest.filter(|it| it.knows_image)) {
            guest.unseen = result.is_err();
            if result.is_ok() {
                self.trace.counters.images.held += u64::from(!fits && !guest.misfits);
                guest.misfits = !fits;
                guest.stale_base &= !fits;
            }
        }
    }

    /// Of an image that is known not to fit nothing is asked.
    pub(crate) fn check_fits(&self, io: &Io) -> Result<(), Broken> {
        let mine = |it: &&Guest| Some(io.device) == it.id.map(Device::Origin);
        let misfits = self.guests.iter().find(mine).is_some_and(|it| it.misfits);
        if misfits && !matches!(io.op, Op::Stat | Op::Sync) {
            return Err(format!("asked of an image that is known not to fit: {io:?}").into());
        }
        Ok(())
    }

    /// Overlays that lie on another base than the one that is there are reset before anybody reads
    /// them.
    pub(crate) fn reset_misfits(&mut self) -> Result<Step, Broken> {
        let engine = self.engine.as_ref().expect("the engine is open");
        let volumes = engine.snapshot().volumes.into_iter();
        let misfits: Vec<_> = volumes
            .filter(|it| it.overlay_misfits)
            .map(|it| it.id)
            .collect();
        for at in 0..self.guests.len() {
            let guest = &mut self.guests[at];
            guest.awaits_reset = guest.id.is_some_and(|id| misfits.contains(&id));
            if guest.awaits_reset && !self.images[guest.plan.origin].written {
                return Err(format!("v{at}: its overlay is said to lie on another base").into());
            }
        }
        let ready = |world: &World| {
            let engine = world.engine.as_ref().expect("the engine is open");
            let volumes = engine.snapshot().volumes.into_iter();
            volumes.filter(|it| it.overlay_misfits).all(|it| it.ready)
        };
        if self.run_while(|world| !ready(world), "overlays to come")? == Step::Struck {
            return Ok(Step::Struck);
        }
        for at in 0..self.guests.len() {
            if !self.guests[at].awaits_reset {
                continue;
            }
            self.trace.counters.images.overlays += 1;
            self.submit(at, Request::Reset)?;
            if self.struck {
                return Ok(Step::Struck);
            }
        }
        let resets = |it: &Pending| matches!(it, Pending::Reset | Pending::Leave);
        let busy = |guest: &Guest| guest.pending.values().any(resets);
        let busy = |world: &World| world.guests.iter().any(busy);
        let step = self.run_while(busy, "overlays that lie on another base")?;
        for guest in &mut self.guests {
            guest.awaits_reset = false;
        }
        Ok(step)
    }

    /// Whether a look may say that a volume is held: its image does not fit, or it waits for the
    /// reset of an overlay on another one.
    pub(crate) fn may_be_held(&self, volume: usize) -> bool {
        let guest = &self.guests[volume];
        let mut pending = guest.pending.values();
        let resets = pending.any(|it| matches!(it, Pending::Reset));
        let written = self.images[guest.plan.origin].written;
        guest.misfits || guest.awaits_reset || resets && written
    }

    /// A look was answered: its image fits.
    pub(crate) fn fits(&self, volume: usize) -> Result<(), Broken> {
        match self.guests[volume].misfits {
            true => Err("its image does not fit, and that is not told".into()),
            false => Ok(()),
        }
    }

    /// What is called at the origin went to a file that has its name.
    pub(crate) fn check_reached(&self, volume: usize) -> Result<(), Broken> {
        let guest = &self.guests[volume];
        let (origin, misfit) = (guest.plan.origin, &self.images[guest.plan.origin]);
        let astray = !self.devices.origins[origin].fits() && misfit.since < misfit.synced_at;
        // Past the log the image is looked at only at the end; there may be no answer.
        let unseen = guest.unseen && guest.plan.goes_direct();
        if astray && guest.knows_image && !unseen {
            return Err(format!(
                "v{volume} is called at its origin, which was synced while it did not fit"
            )
            .into());
        }
        Ok(())
    }
}
