//! Checkpoints: the volume table and the segment table, made durable.
//!
//! Always true: one is written at a time, to the slot that does not hold the newest one; who
//! waits is told only after the sync; the segments that it lists as free are used again only
//! after it. A failed one is written again as a whole.

use super::Core;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose, Refusal};
use crate::format::checkpoint::Checkpoint;
use crate::format::superblock::CHECKPOINT_AT;
use crate::map::ExtentMap;
use crate::memory::Slice;
use crate::outbox::{Cx, Pending, Timer};
use crate::types::{RequestId, SegmentIndex, Time, VolumeId};
use alloc::vec::Vec;

const RETRY_MS: u64 = 100;

/// Who waits for the next checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// The table names the volume; it may be claimed.
    Attach(VolumeId),
    Reset {
        volume: VolumeId,
        request: RequestId,
    },
    /// The same for guests that wait to be let in.
    Renew(VolumeId),
    /// Whether its guest has ended.
    Leave(RequestId),
    Commit(VolumeId),
    Detach(RequestId, VolumeId),
    /// What other hosts have to know of the volume.
    Replica(RequestId),
    Park(RequestId),
    /// The table names the volume by the policy that it is changing to.
    Switch(VolumeId),
    /// The table names the volume by its new size.
    Resize(VolumeId),
    /// The table names what becomes one epoch of the volume.
    Join(VolumeId),
    /// The table says what the image has of a copy.
    Cover(VolumeId),
}

#[derive(Default)]
pub struct CheckpointWriter {
    /// One should be written, though nobody waits.
    pub wanted: bool,
    /// Sequence of the newest durable one.
    pub sequence: u64,
    pub written: u64,
    waiters: Vec<Waiter>,
    /// Maps that nobody reads any more once the next one is durable. Until then a crash brings
    /// them back, so what they keep alive must stay.
    doomed: Vec<ExtentMap>,
    running: Option<Running>,
    retry_at: Time,
}

struct Running {
    waiters: Vec<Waiter>,
    doomed: Vec<ExtentMap>,
    freed: Vec<SegmentIndex>,
    bytes: Vec<u8>,
    at: usize,
    piece: u32,
    failed: bool,
}

impl CheckpointWriter {
    /// As it stands when a checkpoint with this sequence is the newest.
    pub fn after(sequence: u64) -> CheckpointWriter {
        CheckpointWriter {
            sequence,
            ..CheckpointWriter::default()
        }
    }

    pub fn wait(&mut self, waiter: Waiter) {
        self.waiters.push(waiter);
    }

    /// A waiter has gone; the checkpoint that is under way means nothing to it either.
    pub fn forget(&mut self, gone: Waiter) {
        self.waiters.retain(|it| *it != gone);
        if let Some(running) = &mut self.running {
            running.waiters.retain(|it| *it != gone);
        }
    }

    /// Whether it still waits for the next one, or for the one under way.
    pub fn is_waited_for(&self, waiter: Waiter) -> bool {
        let running = self.running.iter().flat_map(|running| &running.waiters);
        self.waiters.iter().chain(running).any(|it| *it == waiter)
    }

    /// One is to be written.
    pub fn is_due(&self) -> bool {
        self.wanted || !self.waiters.is_empty()
    }

    pub fn take_waiters(&mut self) -> Vec<Waiter> {
        core::mem::take(&mut self.waiters)
    }

    /// Of the maps that go with checkpoints to come.
    #[cfg(feature = "adversary")]
    pub fn extents(&self) -> u64 {
        let running = self.running.iter().flat_map(|running| &running.doomed);
        self.doomed.iter().chain(running).map(ExtentMap::len).sum()
    }

    /// Drops a map with the next checkpoint.
    pub fn free_after_checkpoint(&mut self, map: ExtentMap) {
        self.doomed.push(map);
    }
}

impl Core {
    pub(super) fn pump_checkpoint(&mut self, cx: &mut Cx<'_>) {
        let low = self.log.is_low() && self.log.freeable() > 0;
        let writer = &self.checkpoint;
        let due = writer.wanted || !writer.waiters.is_empty() || low;
        if writer.running.is_some() || !due || cx.now < writer.retry_at {
            return;
        }
        let Some(piece) = self.scratch.take_piece() else {
            return;
        };
        let (bytes, mut freed) = self.encode_checkpoint(self.checkpoint.sequence + 1);
        assert!(
            bytes.len() as u64 <= self.superblock.checkpoint_slot_bytes,
            "a checkpoint fits its slot"
        );
        if has(Bug::ReuseSegmentEarly) {
            self.log.free(&core::mem::take(&mut freed));
        }
        let writer = &mut self.checkpoint;
        writer.wanted = false;
        let waiters = core::mem::take(&mut writer.waiters);
        let doomed = core::mem::take(&mut writer.doomed);
        writer.running = Some(Running {
            waiters,
            doomed,
            freed,
            bytes,
            at: 0,
            piece,
            failed: false,
        });
        self.write_checkpoint_part(cx);
    }

    fn encode_checkpoint(&self, sequence: u64) -> (Vec<u8>, Vec<SegmentIndex>) {
        let (segments, freed) = self.log.table();
        // The last one of an orderly stop.
        let parks = |waiter: &Waiter| matches!(waiter, Waiter::Park(_));
        let parked = self.checkpoint.waiters.iter().any(parks);
        let logged = parked && self.log.durable >= self.log.newest();
        let checkpoint = Checkpoint {
            cache: self.superblock.cache,
            boot: self.config.boot,
            sequence,
            incarnation: self.log.incarnation,
            stream_seq_next: self.log.durable.0 + 1,
            segment_seq_next: self.log.segment_seq_next().0,
            generation_next: self.given.generation_next().0,
            unwritten_from: self.log.unwritten_from(),
            segments_total: self.log.geometry.segments,
            volumes: self
                .volumes
                .iter()
                .map(|volume| volume.record(logged))
                .collect(),
            segments,
        };
        assert!(self.log.durable <= self.log.newest());
        debug_assert!(
            checkpoint.volumes.is_sorted_by(|a, b| a.id < b.id),
            "each volume is named once"
        );
        let bytes = checkpoint.encode();
        debug_assert!(
            Checkpoint::parse(&bytes, self.superblock.cache).is_ok(),
            "what is written can be read"
        );
        (bytes, freed)
    }

    fn write_checkpoint_part(&mut self, cx: &mut Cx<'_>) {
        let sequence = self.checkpoint.sequence + 1;
        let turn = u64::from(!has(Bug::OverwriteCheckpoint)) * (sequence % 2);
        let slot = CHECKPOINT_AT + turn * self.superblock.checkpoint_slot_bytes;
        let running = self
            .checkpoint
            .running
            .as_mut()
            .expect("one is being written");
        assert!(
            running.at < running.bytes.len(),
            "something is left to write"
        );
        let bytes = (running.bytes.len() - running.at).min(self.scratch.piece_bytes() as usize);
        let place = self.scratch.piece(running.piece);
        cx.memory
            .store(place, &running.bytes[running.at..running.at + bytes]);
        let at = slot + running.at as u64;
        running.at += bytes;
        let slices = alloc::vec![Slice {
            place,
            bytes: bytes as u64
        }];
        let pending = Pending::Checkpoint;
        cx.transfer(
            pending,
            Purpose::Checkpoint,
            Device::Cache,
            Op::Write,
            at,
            slices,
        );
    }

    pub(super) fn checkpoint_written(&mut self, cx: &mut Cx<'_>, ok: bool) {
        let running = self
            .checkpoint
            .running
            .as_mut()
            .expect("one is being written");
        running.failed |= !ok;
        if running.failed {
            self.checkpoint_failed(cx);
        } else if running.at < running.bytes.len() {
            self.write_checkpoint_part(cx);
        } else {
            let pending = Pending::CheckpointSync;
            let op = Op::sync_unless(Bug::SkipCheckpointSync);
            cx.order(pending, Purpose::Checkpoint, Device::Cache, op, 0, 0);
        }
    }

    fn checkpoint_failed(&mut self, cx: &mut Cx<'_>) {
        let writer = &mut self.checkpoint;
        mark(Mark::CheckpointFailed);
        let running = writer.running.take().expect("one was being written");
        writer.waiters.extend(running.waiters);
        writer.doomed.extend(running.doomed);
        writer.wanted = true;
        writer.retry_at = cx.now.plus_millis(RETRY_MS);
        cx.out.timer(writer.retry_at, Timer::Housekeeping);
        self.log.counters.cache_errors += 1;
        self.scratch.free_piece(running.piece);
    }

    /// A sync of the device failed: what was written of a checkpoint may be gone.
    pub(super) fn doubt_checkpoint(&mut self) {
        if let Some(running) = &mut self.checkpoint.running {
            running.failed = true;
        }
    }

    pub(super) fn checkpoint_synced(&mut self, cx: &mut Cx<'_>, ok: bool) {
        if !ok && !has(Bug::KeepQuietAboutSync) {
            // The device reports the loss once, to us: the log must not take its next sync for
            // good.
            self.log.write_again(cx);
        }
        if !ok
            || self
                .checkpoint
                .running
                .as_ref()
                .is_some_and(|running| running.failed)
        {
            self.checkpoint_failed(cx);
            return;
        }
        let writer = &mut self.checkpoint;
        let running = writer.running.take().expect("one was being written");
        assert!(
            running.at == running.bytes.len(),
            "a checkpoint counts when all of it is there"
        );
        writer.sequence += 1;
        writer.written += 1;
        self.scratch.free_piece(running.piece);
        self.log.free(&running.freed);
        running
            .doomed
            .into_iter()
            .for_each(|map| self.extents.free_later(map));
        for waiter in running.waiters {
            match waiter {
                Waiter::Attach(volume) => self.claim(cx, volume),
                Waiter::Reset { volume, request } => {
                    cx.out.reply(request, Ok::<(), Refusal>(()));
                    self.open_for_requests(cx, volume);
                }
                Waiter::Switch(volume) => self.switch_named(cx, volume),
                Waiter::Resize(volume) => self.resize_named(cx, volume),
                Waiter::Join(volume) => self.join_named(volume),
                Waiter::Cover(volume) => {
                    if let Some(replica) = self.find(volume) {
                        replica.as_replica().end_cover();
                        self.touch(volume);
                    }
                }
                Waiter::Commit(volume) => self.commit_reset(cx, volume),
                Waiter::Detach(request, id) => {
                    self.volumes.left(id);
                    cx.out.reply(request, Ok(()));
                }
                Waiter::Renew(volume) => self.open_for_requests(cx, volume),
                Waiter::Leave(request) | Waiter::Replica(request) | Waiter::Park(request) => {
                    cx.out.reply(request, Ok(()));
                }
            }
        }
    }
}
