//! What leaves the engine: actions in order, and what to do when each of them has ended.
//!
//! Always true: an [`Io`] that was pushed has exactly one [`Pending`], taken out once. Timers are
//! kept here too, because they are the other way by which the engine hears from the host again.

use crate::event::{Action, Device, Io, Op, Purpose, Refusal};
use crate::format::record::StreamKind;
use crate::memory::{Memory, Slice};
use crate::types::{IoId, RequestId, SegmentIndex, SlotIndex, Span, Time, VolumeId};
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

/// What the end of a request to a device means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// Blocks of a slot went to the log.
    Log {
        slot: SlotIndex,
        stream: StreamKind,
        segment: SegmentIndex,
        attempt: u32,
        from: u32,
        upto: u32,
    },
    CacheSync {
        attempt: u32,
    },
    Footer {
        segment: SegmentIndex,
        piece: u32,
    },
    Prepare {
        segment: SegmentIndex,
        piece: u32,
    },
    Checkpoint,
    CheckpointSync,
    /// One part of a fetch from the log.
    Fetch {
        fetch: u32,
        part: u32,
    },
    /// Blocks of a fetch that the log does not give, from a peer.
    Recall {
        recall: u32,
        part: u32,
    },
    /// Blocks from the origin into the read tier.
    Fill {
        fill: u32,
    },
    /// Blocks from the cache device into the read tier.
    LineRead {
        fill: u32,
    },
    /// Blocks of the host that had the volume before into the read tier.
    FormerRead {
        fill: u32,
    },
    /// Clean blocks from the cache device for another host.
    Serve {
        serving: u32,
        row: u32,
    },
    /// A record of clean blocks.
    FillBatch {
        batch: u32,
    },
    FillFooter {
        segment: SegmentIndex,
        piece: u32,
    },
    /// Sectors from the origin straight into a guest's buffer.
    OriginRead {
        read: u32,
        part: Span,
    },
    /// A write, discard, write of zeroes or flush that goes to the origin past the log.
    Direct {
        call: u32,
    },
    /// The sync of an origin before its volume becomes write-back.
    Resize {
        volume: VolumeId,
    },
    SwitchSync {
        volume: VolumeId,
    },
    Ledger {
        volume: VolumeId,
    },
    LedgerSync {
        volume: VolumeId,
    },
    Destage {
        volume: VolumeId,
        job: u32,
    },
    DestageSync {
        volume: VolumeId,
    },
    JournalTable {
        volume: VolumeId,
    },
    /// A destage of an image that allocates.
    Plan {
        volume: VolumeId,
        io: PlanIo,
    },
    /// Direct writes of an image that allocates.
    Allocate {
        volume: VolumeId,
        io: AllocateIo,
    },
    /// A journal that is replayed while its volume is served.
    Replay {
        volume: VolumeId,
        io: ReplayIo,
    },
    Stat {
        volume: VolumeId,
    },
    /// A look whether an image is still the one that its volume knows.
    LookAtImage {
        volume: VolumeId,
    },
    /// A look at an image that nobody writes any more, or the sync before it.
    Look {
        volume: VolumeId,
        op: Op,
    },
    /// The time that the origin's file system put on a ledger just written.
    Clock {
        volume: VolumeId,
    },
    EvacuateFooter,
    ScrubFooter,
    Remove {
        volume: VolumeId,
    },
    CutJournal {
        volume: VolumeId,
    },
}

impl Pending {
    /// The volume whose own work it was. What reads and writes of guests ask of an origin is none:
    /// their end matters only where something waits for it.
    pub fn volume(&self) -> Option<VolumeId> {
        match *self {
            Pending::SwitchSync { volume }
            | Pending::Resize { volume }
            | Pending::Clock { volume }
            | Pending::CutJournal { volume }
            | Pending::Remove { volume }
            | Pending::Ledger { volume }
            | Pending::LedgerSync { volume }
            | Pending::Destage { volume, .. }
            | Pending::DestageSync { volume }
            | Pending::JournalTable { volume }
            | Pending::Plan { volume, .. }
            | Pending::Allocate { volume, .. }
            | Pending::Replay { volume, .. }
            | Pending::Stat { volume }
            | Pending::LookAtImage { volume }
            | Pending::Look { volume, .. } => Some(volume),
            Pending::Log { .. } | Pending::CacheSync { .. } | Pending::Footer { .. } => None,
            Pending::Prepare { .. } | Pending::Checkpoint | Pending::CheckpointSync => None,
            Pending::Fetch { .. } | Pending::Fill { .. } | Pending::LineRead { .. } => None,
            Pending::FormerRead { .. } | Pending::Serve { .. } | Pending::Recall { .. } => None,
            Pending::FillBatch { .. } | Pending::FillFooter { .. } => None,
            Pending::OriginRead { .. } | Pending::Direct { .. } => None,
            Pending::EvacuateFooter | Pending::ScrubFooter => None,
        }
    }
}

/// The requests of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayIo {
    /// The next bytes of header and table.
    Table { bytes: u64 },
    /// Payload of a job.
    Read { job: u32 },
    /// These entries of a job, to the image.
    Write { job: u32, first: u32, upto: u32 },
    /// A stat or a sync of the image.
    Order,
    /// Its first sector, read or written.
    Header { writes: bool },
}

/// The requests that only plans make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanIo {
    /// A table of the image that a plan has to see.
    Table,
    /// What a batch copies from a file of the image.
    Read { job: u32 },
    /// The first sector of the image, read or written for its guard.
    Guard { writes: bool },
}

/// The requests of direct writes of an image that allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateIo {
    /// A table that their plan has to see.
    Table,
    /// The first sector of the image.
    Header,
    /// What a write copies from a file of the image.
    Read {
        job: u32,
    },
    Write {
        job: u32,
    },
    /// A stat, a sync, or a range that becomes zeroes.
    Order,
}

/// Why the engine wants to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The open record has lingered long enough.
    Linger,
    /// The log has been idle since a flush: announce what is durable.
    Announce,
    /// What is on the device has waited for a sync long enough.
    Sync,
    /// Ages, low space, limits, and whatever failed and is due again.
    Housekeeping,
    /// The first held write of a volume is due.
    Flow(VolumeId),
    /// The next request of an unhurried destage is due.
    Pace(VolumeId),
    /// A scrub has rested.
    Scrub,
}

#[derive(Default)]
pub struct Outbox {
    actions: VecDeque<Action>,
    pending: Vec<Option<(Pending, Time)>>,
    free: Vec<u32>,
    in_flight: usize,
    timers: BinaryHeap<Reverse<(Time, Timer)>>,
    /// The next housekeeping: there is one, whoever asks for it.
    house: Option<Time>,
}

impl Outbox {
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub fn reply(&mut self, request: RequestId, result: Result<(), Refusal>) {
        self.actions.push_back(Action::Reply { request, result });
    }

    /// Something that is neither a reply nor a request to a device.
    pub fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Requests to devices that have not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Those requests, with the time when they were issued.
    pub fn outstanding(&self) -> impl Iterator<Item = (&Pending, Time)> {
        let pending = self.pending.iter().flatten();
        pending.map(|(pending, started)| (pending, *started))
    }

    pub fn take(&mut self, io: IoId) -> (Pending, Time) {
        let slot = self.pending.get_mut(io.0 as usize).and_then(Option::take);
        let taken = slot.expect("the host answers each request to a device once");
        self.free.push(io.0 as u32);
        self.in_flight -= 1;
        assert!(
            self.in_flight == self.pending.len() - self.free.len(),
            "a number is free or in flight"
        );
        taken
    }

    fn issue(&mut self, now: Time, pending: Pending, mut io: Io) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.pending.push(None);
                self.pending.len() as u32 - 1
            }
        };
        let before = self.pending[index as usize].replace((pending, now));
        assert!(before.is_none(), "a free number has no request");
        self.in_flight += 1;
        assert!(self.in_flight == self.pending.len() - self.free.len());
        io.id = IoId(u64::from(index));
        self.actions.push_back(Action::Io(io));
    }

    pub fn timer(&mut self, at: Time, timer: Timer) {
        match timer {
            Timer::Housekeeping => self.house = Some(self.house.map_or(at, |set| set.min(at))),
            _ => self.timers.push(Reverse((at, timer))),
        }
    }

    /// Whether housekeeping is due some day.
    pub fn keeps_house(&self) -> bool {
        self.house.is_some()
    }

    pub fn next_deadline(&self) -> Option<Time> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        timer.into_iter().chain(self.house).min()
    }

    /// The next timer that is due.
    pub fn due(&mut self, now: Time) -> Option<Timer> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let house = self.house.filter(|at| *at <= now);
        if house.is_some() && timer.is_none_or(|at| Some(at) > house) {
            self.house = None;
            return Some(Timer::Housekeeping);
        }
        timer.filter(|at| *at <= now)?;
        self.timers.pop().map(|Reverse((_, timer))| timer)
    }
}

/// What one `apply` works with.
pub struct Cx<'a> {
    pub now: Time,
    pub memory: &'a mut dyn Memory,
    pub out: &'a mut Outbox,
}

impl Cx<'_> {
    /// Asks for a transfer between a device and the slices.
    pub fn transfer(
        &mut self,
        pending: Pending,
        purpose: Purpose,
        device: Device,
        op: Op,
        offset: u64,
        slices: Vec<Slice>,
    ) {
        let bytes = slices.iter().map(|slice| slice.bytes).sum();
        // A compressed cluster begins anywhere.
        let aligned = offset.is_multiple_of(512) || matches!(op, Op::Unpack(_));
        assert!(bytes > 0 && aligned, "transfers are whole sectors");
        assert!(
            matches!(op, Op::Read | Op::Unpack(_) | Op::Write),
            "only these have payload"
        );
        debug_assert!(slices.iter().all(|slice| slice.bytes > 0));
        let io = Io {
            id: IoId(0),
            device,
            op,
            offset,
            bytes,
            slices,
            purpose,
        };
        self.out.issue(self.now, pending, io);
    }

    /// Asks for an operation without payload.
    pub fn order(
        &mut self,
        pending: Pending,
        purpose: Purpose,
        device: Device,
        op: Op,
        offset: u64,
        bytes: u64,
    ) {
        assert!(!matches!(op, Op::Read | Op::Write), "these have payload");
        let io = Io {
            id: IoId(0),
            device,
            op,
            offset,
            bytes,
            slices: Vec::new(),
            purpose,
        };
        self.out.issue(self.now, pending, io);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_out_in_order_and_only_when_due() {
        let mut out = Outbox::default();
        out.timer(Time(20), Timer::Housekeeping);
        out.timer(Time(10), Timer::Linger);
        assert_eq!(out.next_deadline(), Some(Time(10)));
        assert_eq!(out.due(Time(9)), None);
        assert_eq!(out.due(Time(15)), Some(Timer::Linger));
        assert_eq!(out.due(Time(15)), None);
        out.timer(Time(30), Timer::Housekeeping);
        assert_eq!(out.due(Time(20)), Some(Timer::Housekeeping));
        assert_eq!(out.due(Time(40)), None, "housekeeping was asked for twice");
    }
}
