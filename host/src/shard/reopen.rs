//! Volumes whose files are opened again.
//!
//! Owns the requests of such a volume from their failure until its files are open. Always true:
//! the files are closed only when nothing is under way on them (rule 5.2.1), and until they are
//! open again the requests wait here; a request is sent again as it was, except a sync of what was
//! written before: it fails once, because nobody knows what became of those bytes, and so they are
//! written again (rule 5.2.5). Where the files do not open the requests get their error, and the
//! next one tries again after a second.
//!
//! ```text
//! a handle is lost ─▶ draining ─▶ opening ─▶ (open: all goes on)
//!                                   ▲  └───▶ closed ─▶ (next request after a second) ─┐
//!                                   └─────────────────────────────────────────────────┘
//! ```

use super::device::{Running, owner};
use super::{Decide, Shard};
use crate::origin::file::OpenVolume;
use crate::origin::reopen::{Lost, Trouble};
use engine::event::{Device, Io, IoError, Op};
use engine::snapshot::{Snapshot, State};
use engine::types::{Time, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// Between two tries, and before a handle that was just opened counts as lost.
const PAUSE_MILLIS: u64 = 1000;

/// What a thread says that has tried: the files, or why not, with what it takes to try again.
pub(super) type Tried = Result<OpenVolume, (Trouble, Box<Lost>)>;

enum Stage {
    /// Requests are under way on the old description.
    Draining,
    /// A thread is at it.
    Opening,
    Closed {
        files: Option<Box<Lost>>,
        next: Time,
    },
}

struct Reopen {
    stage: Stage,
    /// Whether the path led to another file when it was tried last.
    another: Option<bool>,
    waiting: Vec<Io>,
}

#[derive(Default)]
pub(super) struct Reopens {
    all: BTreeMap<VolumeId, Reopen>,
    /// When files of a volume were opened again.
    last: BTreeMap<VolumeId, Time>,
    /// Devices with bytes that were written before and not synced.
    doubt: BTreeSet<Device>,
}

impl Reopens {
    /// What is said of a volume instead of its state.
    pub fn trouble(&self, volume: VolumeId) -> Option<(State, &'static str)> {
        Some(match self.all.get(&volume)?.another? {
            true => (
                State::Held,
                "the path of its image leads to another file; put the right one there",
            ),
            false => (
                State::Stalled,
                "the files of its origin were lost and do not open; they are tried again",
            ),
        })
    }

    /// The volume of a device whose files are not open.
    pub fn of(&self, device: Device) -> Option<VolumeId> {
        owner(device).filter(|volume| self.all.contains_key(volume))
    }

    /// Says it in the picture of the engine.
    pub fn mark(&self, engine: &mut Snapshot) {
        if self.all.is_empty() {
            return;
        }
        for volume in &mut engine.volumes {
            if let Some((state, reason)) = self.trouble(volume.id) {
                (volume.state, volume.reason) = (state, Some(reason));
            }
        }
    }

    pub fn forget(&mut self, volume: VolumeId) {
        self.all.remove(&volume);
        self.last.remove(&volume);
        self.doubt.retain(|device| owner(*device) != Some(volume));
    }
}

impl<E: Decide> Shard<E> {
    /// Takes a request that failed because its file is lost; it is sent again later.
    pub(super) fn is_lost(&mut self, slot: u32) -> bool {
        let running = self.running.get(slot).expect("a request ends once");
        let Some(volume) = owner(running.device()).filter(|_| running.target().is_lost()) else {
            return false;
        };
        let again = self.reopens.last.get(&volume);
        let soon = again.is_some_and(|at| self.now < at.plus_millis(PAUSE_MILLIS));
        let files = self.files.volume(volume);
        if soon || files.is_none_or(|files| files.origin.file().is_none()) {
            return false;
        }
        let (path, op) = (running.target().name(), running.op());
        tracing::warn!("{path}: {op:?}: the open file is lost; it is opened again");
        self.park(volume, slot);
        true
    }

    /// True where the files of a volume are not open; the request waits, or has its error.
    pub(super) fn waits_for_files(&mut self, io: Io) -> Result<(), Io> {
        let Some(volume) = owner(io.device) else {
            return Err(io);
        };
        if io.op == Op::Sync && self.reopens.doubt.remove(&io.device) {
            self.done.push_back((io.id, (Err(IoError::Failed), None)));
            return Ok(());
        }
        let Some(reopen) = self.reopens.all.get_mut(&volume) else {
            return Err(io);
        };
        match &reopen.stage {
            Stage::Closed { next, .. } if self.now < *next => {
                self.done.push_back((io.id, (Err(IoError::Failed), None)));
            }
            Stage::Closed { .. } => {
                reopen.waiting.push(io);
                self.open_again(volume);
            }
            Stage::Draining | Stage::Opening => reopen.waiting.push(io),
        }
        Ok(())
    }

    /// Takes a request off its file.
    pub(super) fn park(&mut self, volume: VolumeId, slot: u32) {
        let io = self.take_back(slot);
        let reopen = self.reopens.all.entry(volume).or_insert_with(|| Reopen {
            stage: Stage::Draining,
            another: None,
            waiting: Vec::new(),
        });
        reopen.waiting.push(io);
        self.close_when_idle(volume);
    }

    /// A request of a volume is over.
    pub(super) fn close_when_idle(&mut self, volume: VolumeId) {
        let Some(reopen) = self.reopens.all.get(&volume) else {
            return;
        };
        let ours = |(_, running): (u32, &Running)| owner(running.device()) == Some(volume);
        let busy = self.running.iter().any(ours);
        if busy || !matches!(reopen.stage, Stage::Draining) {
            return;
        }
        for device in [
            Device::Origin(volume),
            Device::Ledger(volume),
            Device::Journal(volume),
        ] {
            if self.files.target(device).is_some_and(|it| it.is_unsynced()) {
                self.reopens.doubt.insert(device);
            }
        }
        let files = self.files.remove_volume(volume).map(Lost::of);
        let files = match files {
            Some(Ok(lost)) => Some(lost),
            // Looked at before anything was parked.
            Some(Err(_)) => panic!("only files are opened again"),
            None => None,
        };
        let reopen = self.reopens.all.get_mut(&volume).expect("just seen");
        reopen.stage = Stage::Closed {
            files,
            next: self.now,
        };
        self.open_again(volume);
    }

    fn open_again(&mut self, volume: VolumeId) {
        let reopen = self.reopens.all.get_mut(&volume).expect("just seen");
        let stage = std::mem::replace(&mut reopen.stage, Stage::Opening);
        let Stage::Closed {
            files: Some(files), ..
        } = stage
        else {
            // The volume has gone meanwhile.
            return self.refuse_waiting(volume);
        };
        let begun = self.workers.reopen(volume, files);
        if let Err((error, files)) = begun {
            tracing::error!("cannot start a thread: {error}");
            self.stay_closed(volume, files, false);
        }
    }

    pub(super) fn reopened(&mut self, volume: VolumeId, tried: Tried) {
        let known = self.reopens.all.contains_key(&volume) && self.files.volume(volume).is_none();
        match tried {
            Ok(files) if known => {
                tracing::info!("{}: is open again", files.origin.name());
                self.files.insert_volume(volume, files);
                self.reopens.last.insert(volume, self.now);
                let reopen = self.reopens.all.remove(&volume);
                let waiting = reopen.expect("its requests wait here").waiting;
                waiting.into_iter().for_each(|io| self.start_io(io));
            }
            // Nobody knows the volume any more.
            Ok(_) => self.refuse_waiting(volume),
            Err(_) if !known => {}
            Err((trouble, files)) => {
                let (why, another) = match trouble {
                    Trouble::Away(why) => (why, false),
                    Trouble::Another(why) => (why, true),
                };
                tracing::error!("{}: is not open again: {why}", files.name());
                self.stay_closed(volume, files, another);
            }
        }
    }

    fn stay_closed(&mut self, volume: VolumeId, files: Box<Lost>, another: bool) {
        let next = self.now.plus_millis(PAUSE_MILLIS);
        let reopen = self.reopens.all.get_mut(&volume);
        let reopen = reopen.expect("it is tried for its requests");
        reopen.stage = Stage::Closed {
            files: Some(files),
            next,
        };
        reopen.another = Some(another);
        let waiting = std::mem::take(&mut reopen.waiting);
        self.fail(waiting);
    }

    fn refuse_waiting(&mut self, volume: VolumeId) {
        let reopen = self.reopens.all.remove(&volume);
        self.fail(reopen.map_or_else(Vec::new, |reopen| reopen.waiting));
    }

    fn fail(&mut self, waiting: Vec<Io>) {
        let failed = waiting
            .into_iter()
            .map(|io| (io.id, (Err(IoError::Failed), None)));
        self.done.extend(failed);
    }
}
