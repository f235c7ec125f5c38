//! Requests of the engine to its devices.
//!
//! Owns each [`Io`] from the action to its `Done`. Always true: every action is answered once;
//! the file stays open until the last completion, whatever happens to its volume; direct I/O
//! that does not fit its device goes by a worker, never through the page cache. Deliberately
//! absent: what a request is for, beyond the marks of the kill drill.

use super::worker::{Job, LATE_MILLIS, Lane, Outcome, Owner, Word, Work};
use super::{Alarm, Decide, Shard, former, tag};
use crate::buffer::{Arena, HostMemory};
use crate::drill;
use crate::marks::{self, Phase};
use crate::origin::file::Sides;
use crate::origin::mapped::Mapped;
use crate::ring::{Completed, Span};
use crate::target::{Target, misaligned};
use engine::event::{Device, Event, Io, IoError, Op, Stat};
use engine::memory::Slice;
use engine::types::{SECTOR_BYTES, Time, VolumeId};
use std::path::PathBuf;
use std::sync::Arc;

/// A request that has not been answered.
pub(super) struct Running {
    io: Io,
    target: Arc<Target>,
    /// When the simulated storage network would answer.
    not_before: Option<Time>,
    locked: bool,
    /// Of a sync: how many writes it covers.
    covers: u64,
    /// Where it reads to, before the bytes are given to a guest.
    private: Option<Arena>,
}

impl Running {
    pub(super) fn device(&self) -> Device {
        self.io.device
    }

    pub(super) fn op(&self) -> Op {
        self.io.op
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// What its end says about the bytes on the device.
    fn note(&self, result: &Result<(), IoError>) {
        match (self.io.op, result) {
            (Op::Write | Op::Zero { .. } | Op::Resize, Ok(())) => self.target.note_written(),
            (Op::Sync, Ok(())) => self.target.note_synced(self.covers),
            _ => {}
        }
    }

    /// A read that may land after our death must not land in the memory of a guest, who uses it for
    /// something else by then. The lock of a file waits for it, where the file is locked for us
    /// alone (rule 5.2.1); an image that others may read as well is not.
    fn keeps_to_itself(&self) -> bool {
        let lent = |slice: &Slice| HostMemory::is_lent(slice.place);
        self.io.op == Op::Read && self.target.read_only && self.io.slices.iter().any(lent)
    }
}

/// The end of a request as the engine hears it.
pub(super) type Ending = (Result<(), IoError>, Option<Stat>);

/// The volume a device belongs to; the cache belongs to none.
pub(super) fn owner(device: Device) -> Lane {
    match device {
        Device::Cache => None,
        Device::Origin(id) | Device::Base(id, _) | Device::Former(id) => Some(id),
        Device::Peer(id, _) => Some(id),
        Device::Journal(id) | Device::Ledger(id) => Some(id),
    }
}

fn io_error(errno: i32) -> IoError {
    match errno {
        // As QEMU answers what lies behind the limit of file sizes.
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => IoError::NoSpace,
        _ => IoError::Failed,
    }
}

/// The device blocks that a request touches, in sectors.
fn blocks(target: &Target, io: &Io) -> engine::types::Span {
    let align = u64::from(target.dio_align).max(SECTOR_BYTES);
    let start = io.offset / align * align;
    let end = (io.offset + io.bytes).next_multiple_of(align);
    engine::types::Span::new(start / SECTOR_BYTES, (end - start) / SECTOR_BYTES)
}

impl<E: Decide> Shard<E> {
    /// Starts what the engine asked for.
    pub(super) fn start_io(&mut self, io: Io) {
        if let (Device::Origin(volume), Op::Write | Op::Zero { .. } | Op::Resize) =
            (io.device, io.op)
        {
            self.backups.written(volume);
        }
        if let Device::Former(volume) = io.device {
            let about = (volume, self.engine.former(volume));
            let timers = &mut self.timers;
            let alarm = |at, number| timers.set(at, Alarm::Former(number));
            let back = self.copies.formers.ask(io, about, self.now, alarm);
            return self
                .done
                .extend(back.map(|io| former::ended(&io, Err(IoError::Away))));
        }
        if let Device::Peer(volume, peer) = io.device {
            let asked = (volume, self.copies.holder(volume, peer));
            let timers = &mut self.timers;
            let alarm = |at, number| timers.set(at, Alarm::Former(number));
            let back = self.copies.formers.recall(io, asked, self.now, alarm);
            return self
                .done
                .extend(back.map(|io| former::ended(&io, Err(IoError::Away))));
        }
        if self.has_remote(io.device) {
            return self.start_remote(io);
        }
        let Err(io) = self.waits_for_files(io) else {
            return;
        };
        let Some(target) = self.files.share(io.device) else {
            // No such volume, or nothing can lie beside its origin: an error of the device,
            // which the engine knows how to live with.
            self.done.push_back((io.id, (Err(IoError::Failed), None)));
            return;
        };
        if marks::on()
            && let Some(phase) = Phase::of(io.purpose)
        {
            marks::enter(phase);
            self.submitted.push(phase);
        }
        let not_before = self.network_delay(&io);
        // Only where device blocks are larger than sectors can two writes meet in one block.
        let shares = target.dio_align as u64 > SECTOR_BYTES
            && matches!(io.device, Device::Origin(_))
            && matches!(io.op, Op::Write | Op::Zero { .. });
        let (span, device) = (blocks(&target, &io), io.device);
        let alone = misaligned(&target, io.offset, io.bytes);
        let slot = self.running.insert(Running {
            io,
            target,
            not_before,
            locked: shares,
            covers: 0,
            private: None,
        });
        if shares {
            let lock = self.blocks.entry(device).or_default();
            if !lock.acquire(slot, span, alone) {
                return;
            }
        }
        self.issue(slot);
    }

    fn network_delay(&mut self, io: &Io) -> Option<Time> {
        // Ledger and journal lie beside the image, on the same storage.
        let volume = owner(io.device)?;
        let san = self.files.san(volume)?;
        Some(Time(san.admit(self.now.0, io.bytes)))
    }

    /// Hands a request to the ring or to a worker.
    fn issue(&mut self, slot: u32) {
        let running = self.running.get_mut(slot);
        let running = running.expect("a request is issued once");
        if let Some(volume) = self.reopens.of(running.io.device) {
            return self.park(volume, slot);
        }
        running.covers = running.target.written();
        if running.keeps_to_itself() {
            running.private = Arena::anonymous(running.io.bytes).ok();
            if running.private.is_none() {
                // A worker reads into memory of its own as well.
                return self.bounce(slot);
            }
        }
        let (io, target) = (&running.io, &running.target);
        let (fd, tag) = (target.fd(), tag::device(slot));
        self.spans.clear();
        match io.op {
            Op::Read | Op::Write => {
                if let Some(private) = &running.private {
                    self.spans.push(Span::whole(private));
                }
                let lent = running.private.is_none();
                for slice in io.slices.iter().filter(|_| lent) {
                    Span::places(&self.memory, slice.place, slice.bytes, &mut self.spans);
                }
                let bytes: u64 = self.spans.iter().map(|span| span.bytes() as u64).sum();
                assert_eq!(bytes, io.bytes, "slices add up to the request");
                self.iovecs.clear();
                self.iovecs.extend(self.spans.iter().map(Span::iovec));
                if !target.takes(io.offset, &self.iovecs) {
                    return self.bounce(slot);
                }
                match io.op {
                    Op::Read => self.ring.read(tag, fd, io.offset, &self.spans),
                    _ => self.ring.write(tag, fd, io.offset, &self.spans),
                }
            }
            Op::Zero { .. } if target.zero_by_writing => {
                self.zeroes.spans(io.bytes, &mut self.spans);
                self.ring.write(tag, fd, io.offset, &self.spans);
            }
            Op::Zero { .. } if target.block_device || misaligned(target, io.offset, io.bytes) => {
                self.bounce(slot);
            }
            Op::Zero { allocate } => {
                let mode = match allocate {
                    true => libc::FALLOC_FL_ZERO_RANGE,
                    false => libc::FALLOC_FL_PUNCH_HOLE,
                };
                let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
                self.ring.allocate(tag, fd, mode, io.offset, io.bytes);
            }
            Op::Sync if drill::leaves_out_sync(io.device) => self.ring.nothing(tag),
            Op::Sync => self.ring.sync(tag, fd, target.datasync()),
            Op::Unpack(_) | Op::Stat | Op::Remove | Op::Resize => self.bounce(slot),
        }
    }

    /// Gives a request to the worker of its volume.
    fn bounce(&mut self, slot: u32) {
        let running = self.running.get(slot).expect("a request is issued once");
        let io = &running.io;
        let work = match io.op {
            Op::Read => Work::Read {
                offset: io.offset,
                bytes: io.bytes,
            },
            Op::Unpack(packed) => Work::Unpack {
                offset: io.offset,
                packed,
                bytes: io.bytes,
            },
            Op::Write => Work::Write {
                offset: io.offset,
                data: self.gather(io),
            },
            Op::Zero { allocate } => Work::Zero {
                offset: io.offset,
                bytes: io.bytes,
                allocate,
            },
            Op::Stat => match self.mapped(io.device) {
                Some(image) => Work::StatImage(image),
                None => Work::Stat,
            },
            Op::Resize => Work::Resize(io.bytes),
            Op::Remove => match io.device {
                Device::Ledger(volume) => Work::Unlink(self.beside(volume)),
                Device::Journal(_) => Work::Truncate,
                Device::Cache
                | Device::Origin(_)
                | Device::Base(..)
                | Device::Former(_)
                | Device::Peer(..) => {
                    panic!("only what lies beside is removed")
                }
            },
            Op::Sync => panic!("a sync fits every device"),
        };
        if matches!(io.op, Op::Read | Op::Write) {
            self.counters.bounced += 1;
        }
        let target = running.target.clone();
        let owner = owner(io.device);
        let job = Job {
            owner: Owner::Engine(slot),
            target,
            work,
        };
        if self.give(owner, job).is_err() {
            tracing::error!("cannot start a worker thread");
            self.end_io(slot, (Err(IoError::Failed), None));
        }
    }

    /// The image that a device is the first file of.
    pub(super) fn mapped(&self, device: Device) -> Option<Arc<Mapped>> {
        let Device::Origin(volume) = device else {
            return None;
        };
        self.files.volume(volume)?.mapped.clone()
    }

    /// Files that an orderly removal of the volume takes away.
    fn beside(&self, volume: VolumeId) -> Vec<PathBuf> {
        let found = self.volumes.get(&volume);
        found
            .map(|volume| volume.beside.clone())
            .unwrap_or_default()
    }

    fn gather(&self, io: &Io) -> Vec<u8> {
        let mut data = vec![0; io.bytes as usize];
        let mut at = 0;
        for slice in &io.slices {
            let end = at + slice.bytes as usize;
            engine::memory::Memory::load(&self.memory, slice.place, &mut data[at..end]);
            at = end;
        }
        data
    }

    /// Hands a job to the workers, or back if there is none and none can be had.
    pub(super) fn give(&mut self, lane: Lane, job: Job) -> Result<(), Job> {
        self.workers.give(lane, job)?;
        self.mind_workers();
        Ok(())
    }

    /// Looks again at jobs that wait, when they have waited too long.
    fn mind_workers(&mut self) {
        if self.workers.is_short() && !self.workers_minded {
            self.workers_minded = true;
            let at = self.now.plus_millis(LATE_MILLIS);
            self.timers.set(at, Alarm::Workers);
        }
    }

    /// Jobs have waited for a while.
    pub(super) fn relieve_workers(&mut self) {
        self.workers_minded = false;
        self.workers.look();
        self.mind_workers();
    }

    /// Forgets locks on the device of a volume that is gone.
    pub(super) fn drop_blocks(&mut self, volume: VolumeId) {
        self.blocks
            .retain(|device, lock| owner(*device) != Some(volume) || !lock.is_idle());
    }

    /// Takes what the workers have finished.
    pub(super) fn collect_outcomes(&mut self) {
        while let Ok(word) = self.words.try_recv() {
            match word {
                Word::Done(outcome) => match outcome.owner {
                    Owner::Engine(slot) => self.finish_job(slot, outcome),
                    Owner::Client(request) => self.take_extents(request, outcome.extents),
                },
                Word::Reopened(volume, tried) => self.reopened(volume, *tried),
                Word::Free(thread, lane) => self.workers.free(thread, lane),
            }
        }
        self.mind_workers();
    }

    fn finish_job(&mut self, slot: u32, outcome: Outcome) {
        if outcome.result.is_err() && self.is_lost(slot) {
            return;
        }
        let running = self.running.get(slot).expect("a job ends once");
        if let (Some(sides), Some(volume)) = (outcome.sides, owner(running.io.device)) {
            self.files.take_sides(volume, *sides);
        }
        let running = self.running.get(slot).expect("a job ends once");
        let brings = matches!(running.io.op, Op::Read | Op::Unpack(_));
        if brings && outcome.result.is_ok() {
            let mut at = 0;
            for slice in &running.io.slices {
                let end = at + slice.bytes as usize;
                let data = &outcome.data[at..end];
                engine::memory::Memory::store(&mut self.memory, slice.place, data);
                at = end;
            }
        }
        if let (Some(bytes), Some(volume)) = (outcome.zeroed, owner(running.io.device)) {
            self.told.push_back(Event::Zeroed { volume, bytes });
        }
        self.end_io(slot, (outcome.result, outcome.stat));
    }

    /// A completion of the ring.
    pub(super) fn finish_io(&mut self, slot: u32, completed: Completed) {
        let running = self.running.get(slot).expect("a request completes once");
        let io = &running.io;
        match completed.result {
            Ok(_) if io.op == Op::Sync && self.is_side(io.device) => self.look_for_name(slot),
            Ok(_) => {
                let mut at = 0;
                let private = running.private.as_ref();
                for slice in private.iter().flat_map(|_| &io.slices) {
                    let private = private.expect("there is something to copy");
                    self.memory.copy_in(private, at, slice.place, slice.bytes);
                    at += slice.bytes;
                }
                self.end_io(slot, (Ok(()), None));
            }
            Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
                if matches!(io.op, Op::Zero { .. }) && !running.target.zero_by_writing =>
            {
                self.bounce(slot);
            }
            Err(errno) => {
                running.target.note(errno);
                if self.is_lost(slot) {
                    return;
                }
                let running = self.running.get(slot).expect("it is not over yet");
                let io = &running.io;
                let path = running.target.path.display();
                let error = std::io::Error::from_raw_os_error(errno);
                let (op, offset, bytes) = (io.op, io.offset, io.bytes);
                tracing::warn!(%path, "{path}: {op:?} of {bytes} bytes at {offset}: {error}");
                self.end_io(slot, (Err(io_error(errno)), None));
            }
        }
    }

    fn is_side(&self, device: Device) -> bool {
        matches!(device, Device::Ledger(_) | Device::Journal(_))
    }

    /// A ledger or a journal is synced: whoever starts after us must find it, too.
    fn look_for_name(&mut self, slot: u32) {
        let running = self.running.get(slot).expect("a request completes once");
        let (device, target) = (running.io.device, running.target.clone());
        if self.doubtful.remove(&device) {
            return self.end_io(slot, (Err(IoError::Failed), None));
        }
        let volume = owner(device);
        let open = volume.and_then(|volume| self.files.volume(volume));
        let Some(sides) = open.map(|open| Box::new(open.sides())) else {
            return self.end_io(slot, (Ok(()), None));
        };
        let job = Job {
            owner: Owner::Engine(slot),
            target,
            work: Work::Name(sides),
        };
        if self.give(volume, job).is_err() {
            tracing::error!("cannot start a worker thread");
            self.end_io(slot, (Err(IoError::Failed), None));
        }
    }

    /// Takes ledger and journal that were made on another thread. What was on its way into the old
    /// ones may not be in these, so a sync that follows does not vouch for it.
    pub(super) fn take_sides(&mut self, volume: VolumeId, made: Sides) {
        for device in [Device::Ledger(volume), Device::Journal(volume)] {
            let busy = |running: &Running| running.io.device == device;
            if self.running.iter().any(|(_, running)| busy(running)) {
                self.doubtful.insert(device);
            }
        }
        self.files.take_sides(volume, made);
    }

    fn end_io(&mut self, slot: u32, ending: Ending) {
        let running = self.running.get(slot).expect("a request ends once");
        match running.not_before {
            Some(at) if at > self.now => {
                self.timers.set(at, Alarm::Delayed(slot, Box::new(ending)));
            }
            _ => self.report_io(slot, ending),
        }
    }

    /// Tells the engine.
    pub(super) fn report_io(&mut self, slot: u32, ending: Ending) {
        let running = self.running.get(slot).expect("a request ends once");
        running.note(&ending.0);
        let io = self.take_back(slot);
        self.done.push_back((io.id, ending));
        if let Some(volume) = self.reopens.of(io.device) {
            self.close_when_idle(volume);
        }
    }

    /// Takes a request off its file, and lets those go who waited for the same device blocks.
    pub(super) fn take_back(&mut self, slot: u32) -> Io {
        let running = self.running.remove(slot);
        if marks::on()
            && let Some(phase) = Phase::of(running.io.purpose)
        {
            marks::leave(phase);
        }
        if running.locked {
            let mut granted = Vec::new();
            let lock = self.blocks.get_mut(&running.io.device);
            lock.expect("it was locked").release(slot, &mut granted);
            granted.into_iter().for_each(|slot| self.issue(slot));
        }
        running.io
    }

    pub(super) fn done_event(&mut self) -> Option<Event> {
        if let Some(event) = self.told.pop_front() {
            return Some(event);
        }
        let (io, (result, stat)) = self.done.pop_front()?;
        Some(Event::Done { io, result, stat })
    }
}
