//! What the log has of a volume that another host serves.
//!
//! ```text
//! Own ◀──────────── TakeOver ────────────┐
//!  └───────────────── Retire ──────────▶ │
//!        none ─KeepReplica─▶ Replica ─Freeze─▶ Frozen
//!                               ▲                │
//!                               └─ KeepReplica ──┘
//! ```
//!
//! A frozen replica goes on for an owner whose record is not older than the one that froze it. One
//! that was retired is as any other one: it ends with the newest write of its host.
//!
//! The owner sends deltas in order: what all writes between two serials leave behind. Most come in
//! one batch. One of several is an epoch of its own while it is not whole, so that nothing of what
//! was there before is replaced by it.
//!
//! Always true: the replica has every write above `destaged` and up to `end`, and counts nothing
//! beyond; every entry of a delta has the serial of its last write, so that a recovery takes it as
//! a whole or leaves it out; no serial above all that was seen is taken for older ones. A replica
//! keeps its lineage and its end over a restart: only an owner begins a new one. One that has a
//! part of a delta goes on for the owner that sends the rest, and for no other one: what the next
//! owner sends may end in front of that part, or be without its writes, and a recovery takes what
//! is older than a whole delta for whole. A recovery takes such a part out of the log.
//! Deliberately absent: what may be acknowledged, which the host decides by the records of the
//! cluster; and the way of a batch into the log (`core::replica`).

use super::Volume;
use super::credit::Promise;
use crate::adversary::{Bug, has};
use crate::event::{Batch, Refusal, ReplicaSpec};
use crate::format::checkpoint::{Role, Standing, VolumeRecord};
use crate::map::{EXTENT_SECTORS_MAX, ExtentMap};
use crate::snapshot::ReplicaSnapshot;
use crate::types::{Policy, RequestId, Serial, Uuid};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

/// Serials of two owners are at least so far apart that none is given twice.
const FORK_SERIALS: u64 = 1 << 32;

/// No owner gives a serial as high, not even after a takeover each second for centuries.
const SERIAL_MAX: Serial = Serial(1 << 63);

/// Parts of one batch.
pub const PARTS_MAX: usize = 64;

/// A batch that has come.
pub struct Incoming {
    pub request: RequestId,
    pub batch: Batch,
    /// Parts that are staged, and sectors of the next one.
    pub parts_done: usize,
    pub sectors_done: u64,
    pub begun: bool,
}

/// A delta of which parts have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Partial {
    upto: Serial,
    /// The next part, and where it begins, or behind.
    part: u32,
    from: u64,
}

#[derive(Default)]
pub struct Replica {
    standing: Standing,
    end: Serial,
    /// The newest serial that this life has put into the log, or found there.
    staged: Serial,
    /// The owner that has sent it.
    staged_of: Uuid,
    /// What the recovery of this life has found, in order and without a gap.
    recovered: Serial,
    partial: Option<Partial>,
    inbox: VecDeque<Incoming>,
    /// A batch was refused: none behind it is taken before the owner comes anew.
    broken: bool,
    /// A checkpoint is awaited, which lets go for good of what lies before writes left out.
    covering: bool,
    /// Who waits until all that is here is durable.
    settling: Option<RequestId>,
    promise: Promise,
}

impl Replica {
    pub(super) fn of(standing: Standing) -> Replica {
        Replica {
            standing,
            ..Replica::default()
        }
    }
}

impl Replica {
    /// The first batch says that the image has writes that this copy never got: what of the copy
    /// lies before them is old, though the copy does not know by what.
    pub fn leaves_out(&self) -> Option<Serial> {
        let first = self.inbox.front().filter(|it| !it.begun)?;
        let destaged = first.batch.destaged;
        let unknown = destaged > self.end && !has(Bug::LeaveOutUncovered);
        (unknown && !self.covering).then_some(destaged)
    }

    /// It is let go of, but a crash would bring it back.
    pub fn begin_cover(&mut self) {
        assert!(!self.covering, "one checkpoint is enough");
        self.covering = true;
    }

    /// Whether the first batch waits for that.
    pub fn is_covering(&self) -> bool {
        self.covering && !self.inbox.front().is_some_and(|it| it.begun)
    }

    /// No crash brings it back any more.
    pub fn end_cover(&mut self) {
        self.covering = false;
    }

    pub fn first_batch(&mut self) -> Option<&mut Incoming> {
        self.inbox.front_mut()
    }
}

impl Volume {
    /// Of what it is as a copy.
    pub fn as_replica(&mut self) -> &mut Replica {
        &mut self.replica
    }

    /// An owner may have given it.
    pub fn is_serial_of_owner(serial: Serial) -> bool {
        serial < SERIAL_MAX
    }

    pub fn standing(&self) -> Standing {
        self.replica.standing
    }

    /// The ledger that its host finds was begun by an owner before it.
    pub fn is_taken_over(&self) -> bool {
        self.replica.standing.role == Role::Taken
    }

    /// It is served here, and its ledger is its own.
    pub fn owns_serials(&mut self) {
        assert!(!self.is_replica(), "a replica is not attached");
        self.replica.standing.role = Role::Own;
    }

    /// Another host gives its serials.
    pub fn is_replica(&self) -> bool {
        matches!(self.replica.standing.role, Role::Replica | Role::Frozen)
    }

    /// It is kept for its owner, in the room for copies.
    pub fn is_copy(&self) -> bool {
        self.is_replica() && !self.replica.promise.is_unlimited()
    }

    /// It was promised this.
    pub fn room_promise(&self) -> &Promise {
        &self.replica.promise
    }

    pub fn room_promise_mut(&mut self) -> &mut Promise {
        &mut self.replica.promise
    }

    /// It takes nothing from its owner any more.
    pub fn is_frozen(&self) -> bool {
        self.replica.standing.role == Role::Frozen
    }

    /// There is nothing behind it that could be sent to others.
    pub fn history_end(&self) -> Serial {
        match self.is_replica() {
            true => self.replica.end,
            false => self.acked(),
        }
    }

    pub fn replica_snapshot(&self) -> Option<ReplicaSnapshot> {
        self.is_replica().then(|| ReplicaSnapshot {
            frozen: self.is_frozen(),
            term: self.replica.standing.term,
            end: self.replica.end,
            seen: self.acked(),
            torn: self.is_torn(),
            no_room: self.replica.promise.refuses(),
        })
    }

    /// What a recovery has found is whole up to its newest entry.
    pub fn has_recovered(&mut self) {
        let newest = self.epochs.back().map(|epoch| epoch.last_serial);
        let newest = newest.unwrap_or_default().max(self.destaged());
        (self.replica.end, self.replica.recovered) = (newest, newest);
        self.replica.staged = newest;
        // A guest that starts again reads it, and takes it for durable.
        self.promise(newest);
        assert!(self.replica.partial.is_none() && self.replica.inbox.is_empty());
    }

    /// The newest write of lives before this one that is not lost. A replica that has seen one
    /// behind it has what this host has lost.
    pub fn recovered_upto(&self) -> Serial {
        self.replica.recovered
    }

    /// A new replica, of which nothing is here.
    pub fn begin_replica(&mut self, spec: &ReplicaSpec) {
        assert!(self.epochs.is_empty(), "a new replica is empty");
        self.reach(spec.destaged);
        self.go_on_behind(spec.destaged);
        self.replica.end = spec.destaged;
        self.replica.promise.begin(spec.fetched);
        self.replica.standing = Standing {
            role: Role::Replica,
            lineage: spec.lineage,
            term: spec.term,
            ..Standing::default()
        };
    }

    /// An owner comes to it: the one that it had, or the next one. False if the replica obeys a
    /// newer record.
    pub fn reopen_replica(&mut self, spec: &ReplicaSpec) -> bool {
        let obeys = self.is_replica() && self.replica.standing.term <= spec.term;
        if obeys && self.replica.settling.is_none() && !self.log_damaged {
            let standing = &mut self.replica.standing;
            standing.role = Role::Replica;
            (standing.lineage, standing.term) = (spec.lineage, spec.term);
            self.replica.broken = false;
            self.replica.promise.begin(spec.fetched);
            return true;
        }
        false
    }

    /// The owner before has left a part of a delta, which this one cannot go on with: it must begin
    /// a new replica.
    pub fn is_torn(&self) -> bool {
        let replica = &self.replica;
        let other = replica.staged_of != replica.standing.lineage;
        other && replica.staged > replica.end && !has(Bug::GoOnWhenTorn)
    }

    /// Nothing of its owner is taken any more. False if it obeys a newer record.
    pub fn freeze(&mut self, term: u64) -> bool {
        let standing = &mut self.replica.standing;
        let obeys = matches!(standing.role, Role::Replica | Role::Frozen);
        if obeys && standing.term <= term && self.replica.settling.is_none() {
            (standing.role, standing.term) = (Role::Frozen, term);
            self.replica.promise.end();
            return true;
        }
        false
    }

    /// A host may make a replica of it: nothing of it is under way.
    pub fn may_retire(&self) -> bool {
        let requests = self.has_requests() || self.has_reads() || self.is_in_part();
        let writes = self.is_destaging() || self.is_ledger_busy();
        !self.is_attached() && !self.goes() && !requests && !writes && !self.is_switching()
    }

    /// Another host serves it from here on. It is as a recovery would find it, frozen.
    pub fn retired(mut self, name: String, term: u64) -> Volume {
        assert!(
            self.may_retire() && !self.is_replica(),
            "only the log knows it"
        );
        assert!(self.group().is_none() && self.policy == Policy::WriteBack);
        let newest = self.epochs.back().map(|epoch| epoch.last_serial);
        let newest = newest.unwrap_or_default().max(self.destaged());
        let mut volume = Volume::known(VolumeRecord {
            name,
            standing: Standing {
                role: Role::Frozen,
                term,
                ..self.standing()
            },
            // Its end tells what it has.
            stage_lost: false,
            ..self.record(false)
        });
        volume.epoch_number = self.epoch_number;
        volume.epochs = core::mem::take(&mut self.epochs);
        for epoch in &mut volume.epochs {
            epoch.cut = 0;
        }
        // Some of what was read for peers may still be on its way.
        volume.replication = core::mem::take(&mut self.replication);
        (volume.condition, volume.unread) = (self.condition, self.unread);
        volume.recover_if_stalled();
        (volume.replica.end, volume.replica.staged) = (newest, newest);
        volume.replica.recovered = newest;
        assert!(volume.replica.end <= volume.acked(), "it was given");
        volume
    }

    /// Which serials are void once it is owned here, and the first that is given then. None if one
    /// range cannot tell: some are void in front of what counts, and some behind it.
    fn fork(&self) -> Option<((Serial, Serial), Serial)> {
        let (seen, end) = (self.acked(), self.replica.end);
        let first = Serial((seen.0 / FORK_SERIALS + 2) * FORK_SERIALS);
        let (above, below) = self.replica.standing.void;
        let needed = above < below && below.0 > self.destaged().0 + 1;
        let void = match needed {
            _ if has(Bug::CountVoidSerials) => (Serial(0), Serial(0)),
            // Nothing was ever there behind its end.
            true if seen == end => (above, below),
            true if end >= below => return None,
            true => (above.min(end), first),
            false => (end, first),
        };
        Some((void, first))
    }

    /// It may be taken over, as far as its serials go. Not one that was taken over here before,
    /// lost parts of deltas both times, and has brought nothing home since.
    pub fn can_fork(&self) -> bool {
        self.fork().is_some()
    }

    /// The serials of this host begin above all that the owner before may have given. What of those
    /// is beyond the end of the replica never counts.
    pub fn own_replica(&mut self, name: String) {
        let seen = self.acked();
        assert!(
            self.replica.standing.role == Role::Frozen && self.replica.partial.is_none(),
            "what is taken over is frozen, and whole"
        );
        assert!(self.replica.end <= seen && self.replica.inbox.is_empty());
        let (void, first) = self.fork().expect("checked by the caller");
        self.skip_to(Serial(first.0 - 1));
        self.name = name;
        self.replica.recovered = self.replica.end;
        self.replica.promise = Promise::default();
        self.replica.standing = Standing {
            role: Role::Taken,
            term: self.replica.standing.term,
            lineage: Uuid::NIL,
            void,
        };
    }

    pub fn name_lineage(&mut self, lineage: Uuid) {
        assert!(
            !self.is_replica(),
            "the lineage of a replica is its owner's"
        );
        self.replica.standing.lineage = lineage;
    }

    /// Whether a batch may come next, as far as it says so itself; the bytes of another host are
    /// believed in nothing.
    pub fn check_batch(&self, batch: &Batch) -> Result<(), Refusal> {
        let settles = self.replica.settling.is_some() || self.is_detaching();
        let ended = self.replica.broken || self.is_torn();
        if self.replica.standing.role != Role::Replica || settles || ended {
            return Err(Refusal::Gone);
        }
        let mut from = 0;
        for part in &batch.parts {
            let span = part.span;
            let ends = span.sector.checked_add(span.sectors);
            let inside = ends.is_some_and(|it| it <= self.sectors());
            let sized = (1..=EXTENT_SECTORS_MAX - 7).contains(&span.sectors);
            if !inside || !sized || span.sector < from {
                return Err(Refusal::OutOfRange);
            }
            from = span.end();
        }
        let few = batch.parts.len() <= PARTS_MAX;
        if few && !self.replica.promise.allows(batch.cost()) {
            return Err(Refusal::NoRoom);
        }
        match few && batch.destaged <= batch.upto && batch.upto < SERIAL_MAX {
            true => Ok(()),
            false => Err(Refusal::OutOfRange),
        }
    }

    /// Whether the batch goes on where the one before it has ended.
    pub fn follows(&self, batch: &Batch) -> bool {
        let counted = self.replica.end.max(batch.destaged);
        let no_gap = batch.after <= counted || has(Bug::SkipGapCheck);
        let Some(first) = batch.parts.first() else {
            // Its reply stands for all that was sent before it.
            return batch.ends && no_gap;
        };
        if batch.part == 0 {
            return no_gap && batch.upto >= self.replica.staged && batch.upto > counted;
        }
        let partial = self.replica.partial;
        let partial = partial.filter(|it| it.upto == batch.upto && it.upto > batch.destaged);
        partial.is_some_and(|it| it.part == batch.part && first.span.sector >= it.from)
    }

    /// A batch was refused; those that have come behind it are, too.
    pub fn break_replica(&mut self) -> impl Iterator<Item = RequestId> + use<> {
        self.replica.broken = !has(Bug::GoOnBehindRefused);
        let gone = match self.replica.broken {
            true => self.take_batches().collect(),
            false => Vec::new(),
        };
        gone.into_iter()
    }

    /// The same of the first batch that waits.
    pub fn follows_first(&self) -> bool {
        let first = self.replica.inbox.front();
        first.is_some_and(|it| self.follows(&it.batch))
    }

    pub fn add_batch(&mut self, request: RequestId, batch: Batch) {
        self.replica.promise.receive(batch.cost());
        self.replica.inbox.push_back(Incoming {
            request,
            batch,
            parts_done: 0,
            sectors_done: 0,
            begun: false,
        });
    }

    /// The first batch begins. Whether an epoch ends before it, because it is of a new one, or
    /// because a crash may leave it in part.
    pub fn begin_batch(&mut self) -> bool {
        let incoming = self.replica.inbox.front_mut().expect("a batch has come");
        assert!(!incoming.begun, "a batch begins once");
        incoming.begun = true;
        let batch = &incoming.batch;
        let alone = batch.begins_epoch || !batch.ends && !has(Bug::MergePartialDelta);
        let (upto, brings) = (batch.upto, !batch.parts.is_empty());
        let begins = batch.part == 0 && brings;
        if brings {
            self.skip_to(upto);
            let replica = &mut self.replica;
            replica.staged = replica.staged.max(upto);
            replica.staged_of = replica.standing.lineage;
        }
        assert!(
            !begins || self.replica.partial.is_none(),
            "what is left of a delta goes before the next begins"
        );
        begins && alone
    }

    /// The first batch does not follow those before it.
    pub fn end_refused(&mut self) {
        let incoming = self.replica.inbox.pop_front();
        let incoming = incoming.filter(|it| !it.begun);
        let batch = incoming.expect("it has not begun").batch;
        self.replica.promise.settle(batch.cost());
    }

    /// The first batch is staged as a whole.
    pub fn end_batch(&mut self) -> Incoming {
        let incoming = self.replica.inbox.pop_front().expect("a batch has come");
        let batch = &incoming.batch;
        assert!(incoming.begun && incoming.parts_done == batch.parts.len());
        self.replica.promise.settle(batch.cost());
        if let Some(last) = batch.parts.last() {
            let partial = Partial {
                upto: batch.upto,
                part: batch.part.wrapping_add(1),
                from: last.span.end(),
            };
            self.replica.partial = (!batch.ends).then_some(partial);
        }
        if batch.ends && !batch.parts.is_empty() || has(Bug::CountPartialDelta) {
            self.replica.end = self.replica.end.max(batch.upto);
        }
        incoming
    }

    /// A batch is staged in part.
    pub fn has_begun_batch(&self) -> bool {
        self.replica.inbox.front().is_some_and(|it| it.begun)
    }

    /// Some of the first batch is in the log, and some is not.
    #[cfg(feature = "adversary")]
    pub fn has_batch_in_part(&self) -> bool {
        let first = self.replica.inbox.front();
        first.is_some_and(|it| it.parts_done > 0 || it.sectors_done > 0)
    }

    pub fn has_batches(&self) -> bool {
        !self.replica.inbox.is_empty()
    }

    /// All batches but one that has begun.
    pub fn take_batches(&mut self) -> impl Iterator<Item = RequestId> + use<> {
        let begun = usize::from(self.has_begun_batch());
        let gone = self.replica.inbox.split_off(begun);
        for incoming in &gone {
            self.replica.promise.settle(incoming.batch.cost());
        }
        gone.into_iter().map(|incoming| incoming.request)
    }

    /// The origin has all writes up to here: what of the replica is older goes.
    pub fn replica_destaged(&mut self, upto: Serial) -> VecDeque<ExtentMap> {
        let mut gone = VecDeque::new();
        self.reach(upto);
        self.skip_to(upto);
        self.replica.end = self.replica.end.max(upto);
        // Those that become one go together.
        while let Some(last) = self.epochs.iter().position(|it| !it.joins) {
            if self.epochs[last].last_serial > upto {
                break;
            }
            gone.extend(self.epochs.drain(..=last).map(|epoch| epoch.map));
        }
        self.replica.partial = self.replica.partial.filter(|it| it.upto > upto);
        gone
    }

    /// What is left of a delta whose rest does not come.
    pub fn drop_partial(&mut self) -> Option<ExtentMap> {
        let partial = self.replica.partial.take()?;
        let epoch = self.epochs.pop_back().expect("its parts are dirty");
        assert!(
            epoch.last_serial == partial.upto && !epoch.sealed,
            "a delta that is not whole is an epoch of its own"
        );
        Some(epoch.map)
    }

    /// The request is answered when all that is here is durable.
    pub fn settle(&mut self, request: RequestId) {
        let before = self.replica.settling.replace(request);
        assert!(before.is_none(), "one order at a time");
    }

    pub fn is_settling(&self) -> bool {
        self.replica.settling.is_some()
    }

    pub fn take_settling(&mut self) -> Option<RequestId> {
        self.replica.settling.take()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;
    use crate::event::BatchPart;
    use crate::format::record::EntryKind;
    use crate::types::{ConnectionId, Span, Time};
    use alloc::vec;

    fn spec() -> ReplicaSpec {
        ReplicaSpec {
            name: String::from("disk@1"),
            origin: String::from("/disk.img"),
            uuid: Uuid([1; 16]),
            size_bytes: 1 << 20,
            lineage: Uuid([5; 16]),
            term: 3,
            destaged: Serial(10),
            fetched: true,
        }
    }

    fn batch(upto: u64, sector: u64, part: u32, ends: bool) -> Batch {
        let zeroes = BatchPart {
            span: Span::new(sector, 8),
            kind: EntryKind::Zero { allocate: false },
            source: None,
            sum: 0,
        };
        Batch {
            after: Serial(10),
            upto: Serial(upto),
            part,
            ends,
            begins_epoch: false,
            destaged: Serial(10),
            parts: vec![zeroes],
        }
    }

    fn take(volume: &mut Volume, batch: Batch) {
        assert!(volume.check_batch(&batch).is_ok() && volume.follows(&batch));
        let request = RequestId {
            connection: ConnectionId(1),
            number: 1,
        };
        let upto = batch.upto;
        volume.add_batch(request, batch);
        if volume.begin_batch()
            && let Some(epoch) = volume.epochs.back_mut()
        {
            epoch.sealed = true;
        }
        volume.open_epoch(Time(1), upto).last_serial = upto;
        volume
            .as_replica()
            .first_batch()
            .expect("it has come")
            .parts_done = 1;
        volume.end_batch();
    }

    #[test]
    fn a_delta_counts_when_its_last_part_is_there() {
        let mut volume = volume();
        volume.begin_replica(&spec());
        take(&mut volume, batch(12, 0, 0, true));
        assert_eq!(volume.replica.end, Serial(12));
        take(&mut volume, batch(20, 0, 0, false));
        assert_eq!(volume.replica.end, Serial(12), "a part is missing");
        assert!(!volume.follows(&batch(20, 0, 1, true)), "that was before");
        assert!(
            !volume.follows(&batch(21, 8, 1, true)),
            "that is of another"
        );
        take(&mut volume, batch(20, 8, 1, true));
        assert_eq!((volume.replica.end, volume.epochs.len()), (Serial(20), 2));
        assert!(!volume.follows(&batch(20, 8, 1, true)), "it is there");
    }

    #[test]
    fn serials_that_were_void_stay_so_when_it_is_taken_over_once_more() {
        let mut volume = volume();
        volume.begin_replica(&spec());
        take(&mut volume, batch(12, 0, 0, true));
        take(&mut volume, batch(20, 0, 0, false));
        volume.freeze(4);
        volume.drop_partial();
        volume.own_replica(String::from("disk"));
        let (first, fork) = (Serial(2 << 32), |it: u64| Serial(it << 32));
        volume.owns_serials();
        // Nothing was written: the two ranges are one.
        let mut volume = volume.retired(String::from("disk@2"), 5);
        assert_eq!(volume.replica.end, Serial(12));
        assert!(volume.can_fork());
        volume.own_replica(String::from("disk"));
        assert_eq!(volume.standing().void, (Serial(12), fork(3)));
        volume.owns_serials();
        // What was written lies behind them, and nothing behind that.
        let given = volume.give_serial();
        volume.open_epoch(Time(1), given).last_serial = given;
        assert!(given > first);
        let mut volume = volume.retired(String::from("disk@3"), 6);
        volume.own_replica(String::from("disk"));
        assert_eq!(volume.standing().void, (Serial(12), fork(3)));
        assert!(!volume.standing().is_void(given));
        // Some are void on both sides of it, until it is at the origin.
        let mut volume = volume.retired(String::from("disk@4"), 7);
        volume.skip_to(Serial(volume.acked().0 + 1));
        assert!(!volume.can_fork());
        volume.reach(given);
        assert!(volume.can_fork());
    }

    #[test]
    fn what_is_left_of_a_delta_goes_and_its_serials_are_not_given_again() {
        let mut volume = volume();
        volume.begin_replica(&spec());
        take(&mut volume, batch(12, 0, 0, true));
        take(&mut volume, batch(20, 0, 0, false));
        assert!(volume.freeze(4) && !volume.freeze(3), "a record is newer");
        assert!(volume.check_batch(&batch(20, 8, 1, true)).is_err());
        assert!(volume.drop_partial().is_some() && volume.epochs.len() == 1);
        volume.own_replica(String::from("disk"));
        let standing = volume.standing();
        assert_eq!(standing.void, (Serial(12), Serial(2 << 32)));
        assert!(standing.is_void(Serial(20)) && !standing.is_void(Serial(12)));
        assert_eq!(volume.serial_next(), Serial(2 << 32));
        assert_eq!(volume.recovered_upto(), Serial(12));
    }
}
