//! What the engine may write to an image that allocates, and when.
//!
//! Owns the look at each such request. Always true: what is written at once lies where nothing in
//! the file refers to, in the file as it is seen and as it surely is; the image is written in other
//! places only while the ledger surely names a journal and the image surely has its guard; the
//! guard is taken away only when the ledger surely names none; a larger disk is named when there is
//! room for it and what is new surely reads as zeroes, a smaller one when nothing of its end is
//! left; one request at a time writes the header.
//! Deliberately absent: what the bytes have to be ([`tops`](crate::tops)).

use crate::devices::File;
use crate::qcow2;
use crate::tops;
use crate::world::{Broken, World};
use engine::event::{Device, Io, Op, Purpose};

const SECTOR_BYTES: u64 = 512;

impl World {
    /// Judges a request to an origin whose image allocates.
    pub(crate) fn check_planned(&mut self, io: &Io, origin: usize) -> Result<(), Broken> {
        let here = &self.devices.origins[origin];
        let changes = matches!(io.op, Op::Write | Op::Zero { .. });
        match io.device {
            Device::Base(..) if changes => {
                return Err(format!("the base of an image is written: {io:?}").into());
            }
            Device::Origin(_) => {}
            _ => return Ok(()),
        }
        if io.op == Op::Resize && io.bytes < here.image.size() {
            return Err(format!("an image becomes shorter: {io:?}").into());
        }
        if !changes {
            return Ok(());
        }
        if !(io.offset.is_multiple_of(SECTOR_BYTES) && io.bytes.is_multiple_of(SECTOR_BYTES)) {
            return Err(format!("not in whole sectors of the image: {io:?}").into());
        }
        if io.purpose == Purpose::GuestWrite {
            return self.check_direct(io, origin);
        }
        let written = (io.op == Op::Write).then(|| self.memory.gather(&io.slices));
        let head = written.filter(|_| io.offset == 0);
        let head = head.map(|mut bytes| {
            bytes.truncate(SECTOR_BYTES as usize);
            bytes
        });
        let guards = io.bytes == SECTOR_BYTES
            && head
                .as_ref()
                .is_some_and(|head| self.changes_guard_alone(origin, head));
        match head {
            Some(head) if guards => self.check_guard(io, origin, &head),
            Some(head) if io.bytes == SECTOR_BYTES && self.changes_size(origin, &head) => {
                self.check_size(io, origin, &head)
            }
            head if io.purpose == Purpose::JournalApply => {
                let guarded = head.is_none_or(|head| qcow2::is_guarded(&head));
                self.check_applied(io, origin, guarded)
            }
            _ => self.check_at_once(io, origin),
        }
    }

    /// A direct write: nothing else has the image.
    fn check_direct(&mut self, io: &Io, origin: usize) -> Result<(), Broken> {
        self.tops[origin].forget();
        let here = &self.devices.origins[origin];
        if tops::is_pending(here.ledger.landed()) || tops::is_pending(here.ledger.durable()) {
            return Err(format!("written beside a journal: {io:?}").into());
        }
        if qcow2::is_guarded(here.image.landed()) {
            return Err(format!("written under a guard: {io:?}").into());
        }
        Ok(())
    }

    /// Whether this is the first sector as it is there, but for the guard; where that goes, for the
    /// mark as well.
    fn changes_guard_alone(&self, origin: usize, head: &[u8]) -> bool {
        let (mut old, mut new) = (vec![0; head.len()], head.to_vec());
        self.devices.origins[origin].image.read_landed(0, &mut old);
        let guarded = qcow2::is_guarded(head);
        for header in [&mut old, &mut new] {
            qcow2::unguard(header);
            if !guarded {
                qcow2::unmark(header);
            }
        }
        old == new
    }

    fn changes_size(&self, origin: usize, head: &[u8]) -> bool {
        let there = self.devices.origins[origin].disk_bytes();
        qcow2::size(head) != there
    }

    /// A header with another size, and nothing else.
    fn check_size(&self, io: &Io, origin: usize, head: &[u8]) -> Result<(), Broken> {
        let here = &self.devices.origins[origin];
        let (mut old, mut new) = (vec![0; head.len()], head.to_vec());
        here.image.read_landed(0, &mut old);
        for it in [&mut old, &mut new] {
            qcow2::unsize(it);
        }
        if old != new || qcow2::is_guarded(head) || tops::is_pending(here.ledger.durable()) {
            return Err(format!("more than a size changes, or not at rest: {io:?}").into());
        }
        self.check_one_header(io, origin)?;
        tops::judge_sized(here, head).map_err(|it| format!("another size: {it}: {io:?}").into())
    }

    fn check_one_header(&self, io: &Io, origin: usize) -> Result<(), Broken> {
        let first = |it: &Io| {
            let image = self.devices.file(it.device) == File::Image(origin);
            image && it.offset < SECTOR_BYTES && matches!(it.op, Op::Write | Op::Zero { .. })
        };
        match self.in_flight().find(|it| first(it)) {
            Some(other) => Err(format!("{io:?} is written over {other:?}").into()),
            None => Ok(()),
        }
    }

    fn check_guard(&self, io: &Io, origin: usize, head: &[u8]) -> Result<(), Broken> {
        self.check_one_header(io, origin)?;
        let pending = tops::is_pending(self.devices.origins[origin].ledger.durable());
        if pending && !qcow2::is_guarded(head) {
            return Err(format!("a journal may be pending, and the guard goes: {io:?}").into());
        }
        let destaged = tops::destaged(self.devices.origins[origin].ledger.durable());
        let said = qcow2::mark(head).filter(|_| !qcow2::is_guarded(head));
        if said.is_some_and(|said| said != destaged) {
            let why = format!("the image says that it has {said:?}, its ledger {destaged}: {io:?}");
            return Err(why.into());
        }
        Ok(())
    }

    fn check_applied(&mut self, io: &Io, origin: usize, guarded: bool) -> Result<(), Broken> {
        self.tops[origin].forget();
        self.tops[origin].planned = 0;
        let here = &self.devices.origins[origin];
        if !tops::is_pending(here.ledger.durable()) {
            return Err(format!("applied before the ledger surely says so: {io:?}").into());
        }
        if !guarded || !qcow2::is_guarded(here.image.durable()) {
            return Err(format!("applied without a guard that is sure: {io:?}").into());
        }
        Ok(())
    }

    fn check_at_once(&mut self, io: &Io, origin: usize) -> Result<(), Broken> {
        let mut bytes = io.offset..io.offset + io.bytes;
        if io.op == Op::Write {
            // What is there already, as zeroes are behind the end, may be written again.
            let written = self.memory.gather(&io.slices);
            let image = &self.devices.origins[origin].image;
            let there = [image.landed(), image.durable()];
            let differs = |at: &usize| {
                let new = &written[*at..at + SECTOR_BYTES as usize];
                let byte = |file: &[u8], at: usize| file.get(at).copied().unwrap_or(0);
                let start = io.offset as usize + at;
                let same =
                    |file: &&[u8]| (0..new.len()).all(|it| byte(file, start + it) == new[it]);
                !there.iter().all(same)
            };
            let sectors = || (0..written.len()).step_by(SECTOR_BYTES as usize);
            let first = sectors().find(differs).map_or(io.bytes, |at| at as u64);
            let last = sectors().rev().find(differs);
            let end = last.map_or(first, |at| at as u64 + SECTOR_BYTES);
            bytes = io.offset + first..io.offset + end;
        }
        let writing = &mut self.tops[origin];
        writing.planned += io.bytes;
        if bytes.is_empty() {
            return Ok(());
        }
        match writing.refers_to(&self.devices.origins[origin], &bytes) {
            Some(part) => {
                let size = self.devices.origins[origin].image.size();
                let where_to = format!("{part:?} of a file of {size} bytes");
                Err(format!("written at once where the image refers to, {where_to}: {io:?}").into())
            }
            None => Ok(()),
        }
    }

    /// Whether an image that allocates has more bytes after a request.
    pub(crate) fn makes_longer(&self, io: &Io, origin: usize) -> bool {
        let here = &self.devices.origins[origin];
        let end = match io.op {
            Op::Write => io.offset + io.bytes,
            Op::Resize => io.bytes,
            _ => 0,
        };
        here.top && matches!(io.device, Device::Origin(_)) && end > here.image.size()
    }

    /// A request to an image has ended: what a journal changes decides what it refers to.
    pub(crate) fn note_applied(&mut self, io: &Io, origin: usize) {
        if matches!(io.purpose, Purpose::JournalApply | Purpose::GuestWrite) {
            self.tops[origin].forget();
        }
    }

    /// A life ends, perhaps in the middle of a plan.
    pub(crate) fn plans_end(&mut self) {
        for (origin, writing) in self.devices.origins.iter().zip(&mut self.tops) {
            let cut = writing.planned > 0 && !tops::is_pending(origin.ledger.landed());
            self.trace.counters.images.tops.cut += u64::from(cut);
            writing.planned = 0;
            writing.forget();
        }
    }

    /// How an image was found before its journal was applied.
    pub(crate) fn count_left(&mut self, left: Option<tops::Left>) {
        let counters = &mut self.trace.counters.images.tops;
        if let Some(left) = left {
            counters.judged += 1;
            counters.guarded += u64::from(left.guarded);
            counters.pending += u64::from(left.pending);
        }
    }

    /// Volumes of this daemon whose images allocate.
    pub(crate) fn on_tops(&self) -> Vec<usize> {
        let numbered = self.guests.iter().enumerate();
        let served = numbered.filter(|(_, it)| it.id.is_some());
        let on_top = served.filter(|(_, it)| self.devices.origins[it.plan.origin].top);
        on_top.map(|(at, _)| at).collect()
    }

    /// The daemon stops in order, at the end of a run: it has brought all home, so the images of
    /// these volumes are at rest.
    pub(crate) fn rest(&mut self, volumes: &[usize]) -> Result<(), Broken> {
        let tops = self.devices.origins.iter().any(|it| it.top);
        self.trace.counters.images.tops.runs += u64::from(tops);
        if volumes.is_empty() {
            return Ok(());
        }
        self.stop()?;
        for &volume in volumes {
            let guest = &self.guests[volume];
            let engine = self.engine.as_ref().expect("it was stopped in order");
            if guest.id.is_some_and(|id| engine.has_allocated(id)) {
                tops::end_allocations(&mut self.devices.origins[guest.plan.origin].image);
            }
        }
        self.check_rests(volumes)
    }

    /// Volumes of which nothing is owed to their images, after an orderly stop.
    pub(crate) fn check_rests(&self, volumes: &[usize]) -> Result<(), Broken> {
        for &volume in volumes {
            let origin = &self.devices.origins[self.guests[volume].plan.origin];
            if origin.top {
                let rests = tops::judge_at_rest(origin);
                rests.map_err(|it| format!("image of v{volume} after an orderly stop: {it}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use engine::memory::{Area, Place, Slice};
    use engine::types::{IoId, VolumeId};
    use std::ops::Range;

    const TOP: Device = Device::Origin(VolumeId(0));

    /// A world whose first volume has an image that allocates.
    fn world() -> World {
        let mut plan = Plan::from_seed(1);
        plan.volumes.truncate(1);
        plan.origins.truncate(1);
        assert!(plan.may_allocate(0), "a volume of its own");
        plan.origins[0].top = Some(4);
        let mut world = World::new(plan, 1, None, false);
        world.devices.places.insert(VolumeId(0), 0);
        world
    }

    fn zeroes(range: Range<u64>, purpose: Purpose) -> Io {
        Io {
            id: IoId(1),
            device: TOP,
            op: Op::Zero { allocate: true },
            offset: range.start,
            bytes: range.end - range.start,
            slices: Vec::new(),
            purpose,
        }
    }

    /// The first sector, with the guard or without.
    fn head(world: &mut World, guard: bool) -> Io {
        let mut head = world.devices.origins[0].image.landed()[..512].to_vec();
        head[72] = if guard {
            head[72] | 0x20
        } else {
            head[72] & !0x20
        };
        let buffer = world.memory.buffer_add(head);
        Io {
            op: Op::Write,
            slices: vec![Slice {
                place: Place::new(Area::Buffer(buffer), 0),
                bytes: 512,
            }],
            ..zeroes(0..512, Purpose::DestageWrite)
        }
    }

    fn parts(world: &World) -> Vec<Range<u64>> {
        qcow2::referenced(world.devices.origins[0].image.landed())
    }

    #[test]
    fn what_is_written_at_once_meets_nothing_that_the_image_refers_to() {
        let mut world = world();
        let parts = parts(&world);
        let end = world.devices.origins[0].image.size().next_multiple_of(512);
        let free = parts.windows(2).map(|it| it[0].end..it[1].start);
        let free: Vec<_> = free.chain(std::iter::once(end..end + 4096)).collect();
        assert!(free.len() > 3, "there are places without data");
        for range in free {
            let io = zeroes(range, Purpose::DestageWrite);
            assert_eq!(world.check_planned(&io, 0), Ok(()), "{io:?}");
        }
        for range in parts {
            for sector in [range.start..range.start + 512, range.end - 512..range.end] {
                let io = zeroes(sector, Purpose::DestageWrite);
                let broken = world.check_planned(&io, 0).expect_err("it is referred to");
                assert!(broken.words.contains("where the image refers to"));
            }
        }
        let shorter = Io {
            op: Op::Resize,
            bytes: 4096,
            ..zeroes(0..0, Purpose::DestageWrite)
        };
        assert!(world.check_planned(&shorter, 0).is_err());
    }

    #[test]
    fn a_journal_is_applied_under_a_guard_that_is_sure_and_a_ledger_that_names_it() {
        let mut world = world();
        let part = parts(&world).pop().expect("it has clusters");
        let apply = zeroes(part, Purpose::JournalApply);
        let broken = world.check_planned(&apply, 0).expect_err("no ledger");
        assert!(broken.words.contains("before the ledger"), "{broken}");
        let ledger = pending();
        world.devices.origins[0].ledger = crate::disk::Disk::new(ledger);
        let broken = world.check_planned(&apply, 0).expect_err("no guard");
        assert!(broken.words.contains("without a guard"), "{broken}");

        let guard = head(&mut world, true);
        assert_eq!(world.check_planned(&guard, 0), Ok(()));
        let mut image = world.devices.origins[0].image.landed().to_vec();
        image[72] |= 0x20;
        world.devices.origins[0].image = crate::disk::Disk::new(image);
        assert_eq!(world.check_planned(&apply, 0), Ok(()));
        let off = head(&mut world, false);
        let broken = world.check_planned(&off, 0).expect_err("it is pending");
        assert!(broken.words.contains("the guard goes"), "{broken}");
        world.devices.origins[0].ledger = crate::disk::Disk::default();
        assert_eq!(world.check_planned(&off, 0), Ok(()));
    }

    fn pending() -> Vec<u8> {
        use engine::format::ledger::{Ledger, Progress};
        use engine::types::{Generation, Serial, Uuid};
        let ledger = Ledger {
            sequence: 2,
            volume: Uuid([1; 16]),
            cache: Uuid([2; 16]),
            machine: Uuid([3; 16]),
            boot: Uuid([4; 16]),
            owner: "host-a".to_owned(),
            generation: Generation(1),
            destaged: Serial(3),
            progress: Progress::Apply {
                upto: Serial(4),
                journal_sequence: 1,
                journal_bytes: 4096,
            },
            dirty: true,
            origin_bytes: 4096,
            mtime_before_ns: 0,
            mtime_limit_ns: 0,
            image: Default::default(),
            may_succeed: false,
            compatible: 0,
        };
        ledger.encode()
    }
}
