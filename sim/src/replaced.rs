//! Images that are replaced while they are not served, with ledger and journal still beside them.
//!
//! ```text
//! a life ends ─▶ another file has the name ─▶ attach ─ nothing is owed ─▶ the new one
//!                                               └─ held ─▶ put back: as if nothing had been
//!                                                      ├─▶ image is kept: all owed is gone
//!                                                      └─▶ log is kept: laid over the new one
//! ```
//!
//! Always true: a volume that comes without a word owed nothing, so the image that was there has
//! all that was promised; one that is held comes by the way that its administrator has chosen, and
//! has exactly what that way promises. An overlay never lies on another base than its own.
//! Deliberately absent: images that change while they are served ([`images`](crate::images)).

use crate::devices::{Blocking, Devices, MADE_NS, Origin};
use crate::disk::{Disk, Power};
use crate::guest::{Guest, Pending};
use crate::tops;
use crate::world::{Broken, Step, World};
use engine::chart::{Cursor, Site};
use engine::engine::{OpenError, Otherwise, Settled, settle, settle_or};
use engine::event::{Command, Device, Event};
use engine::media::Media;
use engine::types::{Policy, Time, VolumeId};
use workload::check::Crash;
use workload::stamp::{self, SECTOR_BYTES};

/// What an administrator does with a volume that is held for its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    PutBack,
    KeepImage,
    KeepLog,
}

/// The image of a volume is another one.
pub struct Replaced {
    image: Disk,
    inode: u64,
    /// What it was, with its journal.
    old: Vec<u8>,
    tag: u64,
    way: Option<Way>,
}

/// What the log had was laid over another image.
pub struct Laid {
    pub tag: u64,
    pub old: Vec<u8>,
    /// Of each sector.
    pub laid: Vec<bool>,
}

/// What came of an attempt.
enum Tried {
    Came,
    Held,
    /// A crash came in between.
    Struck,
}

impl World {
    /// While the host is down other files get the names of some images.
    pub(crate) fn replace_images(&mut self, served: &[usize]) -> Result<(), Broken> {
        let rate = self.plan.rates.image_replaced;
        if rate == 0 || self.stage_gone || self.plan.hosts > 1 {
            return Ok(());
        }
        for at in 0..self.devices.origins.len() {
            if !self.rng.chance(rate) {
                continue;
            }
            let mine = |it: &&usize| self.guests[**it].plan.origin == at;
            let guests: Vec<usize> = served.iter().filter(mine).copied().collect();
            let plain = |it: &usize| {
                let guest = &self.guests[*it];
                let plan = &guest.plan;
                let stays = guest.replaced.is_none() && guest.laid.is_none();
                let alone = plan.group.is_empty() && !plan.switches && !plan.commits;
                stays && alone && !plan.resizes
            };
            let all = self.guests.iter().filter(|it| it.plan.origin == at).count();
            if guests.len() == all && guests.iter().all(plain) {
                self.replace_image(at, &guests)?;
            }
        }
        Ok(())
    }

    fn replace_image(&mut self, at: usize, guests: &[usize]) -> Result<(), Broken> {
        let old = self.whole_image(at)?;
        let origin = &mut self.devices.origins[at];
        origin.version += 1;
        let tag = (at as u64 + 1) * 1_000_000 + origin.version;
        let mut bytes = vec![0; origin.image.size() as usize];
        stamp::fill(&mut bytes, tag, 0, 0);
        let mut image = Disk::new(bytes);
        image.touch(MADE_NS);
        let before = std::mem::replace(&mut origin.image, image);
        let inode = origin.inode;
        // Numbers below this belong to files that its path has led to.
        origin.inode += 2;
        self.trace.counters.images.replaced += 1;
        self.trace.tell(format_args!(
            "image {at} is replaced by another file, {tag}"
        ));
        for &volume in guests {
            let guest = &mut self.guests[volume];
            guest.owed.clear();
            if guest.plan.policy == Policy::Ephemeral {
                // Whatever lay over the old one is reset before anybody reads it.
                guest.model.replaced(tag);
                self.images[at].written = true;
                continue;
            }
            guest.replaced = Some(Replaced {
                image: before.clone(),
                inode,
                old: old.clone(),
                tag,
                way: None,
            });
        }
        Ok(())
    }

    /// An image as it is with its journal.
    fn whole_image(&mut self, at: usize) -> Result<Vec<u8>, Broken> {
        let mut origin: Origin = self.devices.origins[at].clone();
        let mut rng = self.rng.fork();
        for disk in [&mut origin.image, &mut origin.journal, &mut origin.ledger] {
            disk.power_loss(Power::Kept, false, &mut rng);
        }
        let mut bytes = vec![0; origin.image.size() as usize];
        let mut devices = Devices {
            origins: vec![origin],
            ..Devices::default()
        };
        let id = VolumeId(0);
        devices.places.insert(id, 0);
        let mut now = 0;
        let mut media = Blocking::new(&mut devices, &mut rng, &mut now);
        settle(&mut media, id).map_err(|it| format!("cannot be settled: {it}"))?;
        let origin = &media.devices.origins[0];
        if origin.top {
            let sectors = self.plan.origins[at].sectors;
            return Ok(tops::disk(origin, sectors as usize * SECTOR_BYTES)?);
        }
        let read = media.read(Device::Origin(id), 0, &mut bytes);
        read.map_err(|_| "an image without faults cannot be read")?;
        Ok(bytes)
    }

    /// Attaches a volume whose image is another one. `None`: it was put back, and comes as ever.
    /// Else whether a crash has come in between.
    pub(crate) fn attach_replaced(
        &mut self,
        volume: usize,
        id: VolumeId,
    ) -> Result<Option<bool>, Broken> {
        let mut way = self.guests[volume].replaced.as_ref().and_then(|it| it.way);
        if way.is_none() {
            match self.try_replaced(volume, id, Otherwise::Refuse)? {
                Tried::Came => return self.came_clean(volume).map(|()| Some(false)),
                Tried::Struck => return Ok(Some(true)),
                Tried::Held => {
                    self.trace.counters.images.refused += 1;
                    way = Some(self.rng.pick(&[Way::PutBack, Way::KeepImage, Way::KeepLog]));
                }
            }
        }
        let chosen = way.expect("one was chosen");
        self.trace
            .tell(format_args!("v{volume} is held for its image: {chosen:?}"));
        let replaced = self.guests[volume].replaced.as_mut();
        replaced.expect("only such volumes get here").way = way;
        let (image, otherwise) = match chosen {
            Way::PutBack => {
                self.put_image_back(volume);
                return Ok(None);
            }
            Way::KeepImage => (true, Otherwise::KeepImage),
            Way::KeepLog => (false, Otherwise::KeepLog),
        };
        if image && self.drop_logged(volume, id)? == Step::Struck {
            return Ok(Some(true));
        }
        match self.try_replaced(volume, id, otherwise)? {
            Tried::Came if image => self.keep_image(volume),
            Tried::Came => {}
            Tried::Struck => return Ok(Some(true)),
            Tried::Held => return Err(format!("v{volume} is held after {chosen:?}").into()),
        }
        Ok(Some(false))
    }

    fn try_replaced(
        &mut self,
        volume: usize,
        id: VolumeId,
        otherwise: Otherwise,
    ) -> Result<Tried, Broken> {
        let mut rng = self.rng.fork();
        let mut now = self.now;
        let mut media = Blocking::new(&mut self.devices, &mut rng, &mut now);
        let settled = settle_or(&mut media, id, otherwise);
        self.now = now;
        let mut settled: Settled = match settled {
            Ok(settled) => settled,
            Err(OpenError::Image(_)) => return Ok(Tried::Held),
            Err(error) => return Err(format!("v{volume} cannot be settled: {error}").into()),
        };
        if otherwise == Otherwise::KeepImage {
            settled.accept_loss();
        }
        let spec = self.spec(volume);
        let engine = self.engine.as_mut().expect("the engine is open");
        match engine.attach(Time(self.now), id, spec, settled) {
            Ok(()) => {}
            Err(OpenError::Image(_)) => return Ok(Tried::Held),
            Err(error) => return Err(format!("v{volume} cannot be attached: {error}").into()),
        }
        if otherwise == Otherwise::KeepLog {
            self.lay(volume, id);
        }
        self.guests[volume].id = Some(id);
        self.guests[volume].knows_image = true;
        self.look_later(volume);
        self.apply(Event::Tick)?;
        Ok(match self.struck {
            true => Tried::Struck,
            false => Tried::Came,
        })
    }

    /// It came without a word, so the image that was there had all that was promised.
    fn came_clean(&mut self, volume: usize) -> Result<(), Broken> {
        let guest = &mut self.guests[volume];
        let replaced = guest.replaced.take().expect("its image is another one");
        let crash = guest.crash.unwrap_or(Crash::Kill);
        let old = &replaced.old;
        let judged = guest.model.verify(crash, |sectors, bytes| {
            bytes.copy_from_slice(&old[sectors.start as usize * SECTOR_BYTES..][..bytes.len()]);
            Ok(())
        });
        judged
            .map_err(|it| format!("v{volume}: its old image, of which nothing was owed: {it}"))?;
        guest.takes_image(replaced.tag);
        Ok(())
    }

    fn put_image_back(&mut self, volume: usize) {
        let guest = &mut self.guests[volume];
        let replaced = guest.replaced.take().expect("its image is another one");
        let origin = &mut self.devices.origins[guest.plan.origin];
        origin.image = replaced.image;
        origin.inode = replaced.inode;
        self.trace.counters.images.put_back += 1;
    }

    /// What the log has of a volume that is held is given up.
    fn drop_logged(&mut self, volume: usize, id: VolumeId) -> Result<Step, Broken> {
        let engine = self.engine.as_ref().expect("the engine is open");
        if !engine.known().iter().any(|it| it.id == id) {
            return Ok(Step::Ran);
        }
        let request = self.request_id(volume, true);
        let guest = &mut self.guests[volume];
        guest.pending.insert(request.number, Pending::Drop);
        let command = Command::Detach {
            volume: id,
            discard_dirty: true,
        };
        self.apply(Event::Admin { request, command })?;
        let drops = |it: &Pending| matches!(it, Pending::Drop);
        let busy = |world: &World| world.guests[volume].pending.values().any(drops);
        let step = self.run_while(busy, "a loss that was accepted")?;
        // The id may be another one's by now.
        let name = self.guests[volume].plan.name.clone();
        let engine = self.engine.as_mut().expect("the engine is open");
        let again = engine.place(&name);
        if step == Step::Ran && again != id {
            return Err(format!("{name} had the place {id}, and has {again}").into());
        }
        Ok(step)
    }

    /// What was decided stays so until the volume is judged: a crash may come before its ledger
    /// says so.
    fn keep_image(&mut self, volume: usize) {
        let guest = &mut self.guests[volume];
        let replaced = guest.replaced.as_ref().expect("its image is another one");
        guest.takes_image(replaced.tag);
        self.trace.counters.images.kept_images += 1;
    }

    /// Notes what of the log lies over the new image.
    fn lay(&mut self, volume: usize, id: VolumeId) {
        let engine = self.engine.as_ref().expect("the engine is open");
        let guest = &mut self.guests[volume];
        let mut laid = vec![false; guest.model.sectors() as usize];
        let mut next = Some(Cursor::START);
        while let Some(Cursor::Epochs(_)) = next {
            let page = engine.chart(id, next.expect("just seen"));
            let page = page.expect("the volume is attached");
            let dirty = page.spots.iter();
            let dirty = dirty.filter(|it| matches!(it.site, Site::Stage | Site::Log));
            for spot in dirty {
                laid[spot.span.sector as usize..spot.span.end() as usize].fill(true);
            }
            next = page.next;
        }
        let replaced = guest.replaced.as_ref().expect("its image is another one");
        let fresh = || Laid {
            tag: replaced.tag,
            old: replaced.old.clone(),
            laid: vec![false; laid.len()],
        };
        let all = guest.laid.get_or_insert_with(fresh);
        // An earlier life may have brought some of it there.
        for (known, now) in all.laid.iter_mut().zip(laid) {
            *known |= now;
        }
        self.trace.counters.images.kept_logs += 1;
    }

    /// What was laid over other images goes there, and they have it.
    pub(crate) fn bring_laid_home(&mut self, volumes: &[usize]) -> Result<Step, Broken> {
        for &volume in volumes {
            self.submit(volume, crate::guest::Request::Destage)?;
            if self.struck {
                return Ok(Step::Struck);
            }
        }
        let asks = |it: &Pending| matches!(it, Pending::Destage { .. } | Pending::Look { .. });
        let busy = |guest: &Guest| guest.pending.values().any(asks);
        let busy = |world: &World| volumes.iter().any(|it| busy(&world.guests[*it]));
        if self.run_while(busy, "what was laid over another image")? == Step::Struck {
            return Ok(Step::Struck);
        }
        for &volume in volumes {
            let guest = &mut self.guests[volume];
            guest.origin = Some(guest.model.clone());
            guest.doubts_origin = false;
        }
        self.check_origins(true).map(|()| Step::Ran)
    }
}

impl Guest {
    /// Its volume is another image now; nothing of what was before is expected, or may be there.
    fn takes_image(&mut self, tag: u64) {
        self.model.replaced(tag);
        if self.origin.is_some() {
            self.origin = Some(self.model.clone());
        }
        self.owed.clear();
        self.crash = Some(Crash::Kill);
    }
}
