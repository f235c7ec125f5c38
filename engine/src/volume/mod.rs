//! A volume: its identity, its epochs of dirty data, and who waits for it.
//!
//! Always true: serials are given in order and never twice; `epochs` are in order of serial, all
//! but the last sealed; a waiting request owns nothing and has no serial. Deliberately absent:
//! bytes and devices; see `core::write` for the way of a write.
//!
//! The states of what a volume is about lie in files below: a destage, a replay, a switch, and so
//! on, with what each decides by itself. What drives them is in `core`, which knows this folder and
//! is not known here.

mod all;
pub(crate) mod allocation;
pub(crate) mod batch;
mod bypass;
mod condition;
pub(crate) mod credit;
pub(crate) mod destage;
mod identity;
pub(crate) mod jobs;
mod known;
pub(crate) mod ledger;
mod life;
mod logged;
mod origin_use;
mod overlay;
pub(crate) mod pace;
mod proof;
mod queue;
pub(crate) mod quiesce;
pub(crate) mod rebase;
pub(crate) mod replay;
pub(crate) mod replica;
pub(crate) mod replication;
pub(crate) mod resend;
pub(crate) mod resize;
mod rounds;
pub(crate) mod runs;
mod serials;
pub(crate) mod share;
pub(crate) mod switch;
pub(crate) mod unread;

pub use all::Volumes;
pub use allocation::Allocator;
pub use bypass::Bypass;
pub use condition::Condition;
pub use destage::Destage;
pub use known::Known;
pub use ledger::LedgerWriter;
pub use life::{Life, Removal};
pub use origin_use::OriginUse;
pub use overlay::Overlay;
pub use proof::Right;
pub use queue::{Queue, WaitKind, Waiting};
pub use quiesce::Quiesce;
pub use rebase::Rebase;
pub use replay::Replay;
pub use replica::Replica;
pub use replication::Replication;
pub use resize::Resize;
pub use serials::Serials;
pub use share::Own;
pub use switch::Switch;
pub use unread::Unread;

use crate::adversary::{Bug, has};
use crate::event::{Admission, Device, IoError, ReplicaSpec, ResetOn, Share, Tuning, VolumeSpec};
use crate::flow::{Flow, FlowLimits, Gauges};
use crate::format::checkpoint::VolumeRecord;
use crate::log::QuotaOwner;
use crate::map::{Content, ExtentMap};
use crate::origin::MapId;
use crate::ram::Layer;
use crate::snapshot::Counters;
use crate::types::{
    BLOCK_BYTES, DestageMode, EpochNumber, Generation, Policy, SECTOR_BYTES, Serial, Span,
    StreamSeq, Time, Uuid, VolumeId,
};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

/// An epoch ends before it is larger than one journal should be.
pub const EPOCH_BYTES_MAX: u64 = 1 << 30;

/// Dirty data between two serials.
pub struct Epoch {
    pub map: ExtentMap,
    /// As its entries in the log name it.
    pub number: EpochNumber,
    /// The cut of its group that it belongs to: epochs of one cut end at one moment.
    pub cut: u64,
    pub last_serial: Serial,
    /// The newest record that holds a write of it.
    pub last_seq: StreamSeq,
    pub writes: u64,
    /// Zero, before any other time, where a recovery found it.
    pub opened: Time,
    pub sealed: bool,
    /// Blocks of the log that its extents keep alive.
    pub charge: u64,
    /// The next newer one is becoming a part of it.
    pub joins: bool,
}

impl Epoch {
    /// Its data is older than this life of the engine.
    pub fn is_recovered(&self) -> bool {
        self.opened == Time(0)
    }
}

pub struct Volume {
    /// Whether it is there, and whether it goes.
    life: Life,
    /// What of it is on its way to its origin, and how that answers.
    origin_use: OriginUse,
    /// Whether its image is this host's to write.
    right: Right,
    condition: Condition,
    serials: Serials,
    /// What it is to other hosts, and what it has of another's volume.
    replica: Replica,
    /// Peers that it is replicated to.
    pub replication: Replication,
    /// Requests that wait, and guests.
    queue: Queue,
    id: VolumeId,
    name: String,
    origin: String,
    uuid: Uuid,
    /// The policy in effect.
    pub policy: Policy,
    /// The policy that checkpoints name. It differs only while a switch is under way, and says
    /// which of the log's entries a recovery believes.
    pub logged_policy: Policy,
    switch: Option<Switch>,
    /// How far it has turned away from a cache device that fails.
    bypass: Bypass,
    size_bytes: u64,
    read_only: bool,
    image: Known,
    layer: Layer,
    journal_possible: bool,
    /// Volumes with one number here take turns at destage: their origins are one storage.
    storage: u64,
    /// Index of its group among the shard's.
    group: Option<usize>,
    /// The cut of its group to which new writes belong.
    pub cut: u64,
    tuning: Tuning,
    pub epochs: VecDeque<Epoch>,
    /// Of the newest epoch that there was.
    pub epoch_number: EpochNumber,
    ledger_writer: Option<LedgerWriter>,
    /// Of the ledger as it is on its medium; 0 while there is none.
    ledger_generation: Generation,
    destage: Option<Destage>,
    /// Its journal, which a run before has left.
    replay: Option<Replay>,
    unread: Unread,
    /// What it has of the log and of the map.
    own: Own,
    allocator: Allocator,
    pub flow: Flow,
    pub counters: Counters,
    /// Where its bytes lie in the files of its image; none = raw.
    map: Option<MapId>,
    /// The origin writes zeroes where others make a hole.
    zeroes_dearly: bool,
    /// The last guest has ended, so that the next one finds a clean disk.
    ended: bool,
    /// See [`VolumeRecord::stage_lost`] and [`VolumeRecord::damaged`].
    stage_lost: bool,
    log_damaged: bool,
    /// It and its image get another size.
    resize: Option<Resize>,
    /// Its image rests, or is to.
    quiesce: Option<Quiesce>,
    /// For whom the log counts what an overlay holds.
    quota_owner: QuotaOwner,
    overlay: Overlay,
}

impl Volume {
    /// A volume as the log knows it, not attached yet.
    pub fn known(record: VolumeRecord) -> Volume {
        Volume {
            life: Life::default(),
            origin_use: OriginUse::default(),
            right: Right::default(),
            condition: Condition::default(),
            serials: Serials::of(&record),
            replica: Replica::of(record.standing),
            replication: Replication::default(),
            queue: Queue::default(),
            id: record.id,
            name: record.name,
            origin: record.origin,
            uuid: record.uuid,
            policy: record.policy,
            logged_policy: record.policy,
            switch: None,
            bypass: Bypass::None,
            size_bytes: record.size_bytes,
            read_only: false,
            image: Known::under(record.under),
            layer: Layer(0),
            journal_possible: record.journal_possible,
            storage: 0,
            group: None,
            cut: 0,
            tuning: tuning_before_attach(record.destage_in_place),
            epochs: VecDeque::new(),
            epoch_number: EpochNumber::default(),
            ledger_writer: None,
            ledger_generation: Generation(0),
            destage: None,
            replay: None,
            unread: Unread::default(),
            own: Own::default(),
            allocator: Allocator::default(),
            flow: Flow::default(),
            counters: Counters::default(),
            map: None,
            zeroes_dearly: false,
            ended: record.ended,
            stage_lost: record.stage_lost,
            log_damaged: record.damaged,
            resize: None,
            quiesce: None,
            quota_owner: QuotaOwner::NONE,
            overlay: Overlay::default(),
        }
    }

    /// A volume that neither log nor ledger knew.
    pub fn fresh(id: VolumeId, spec: &VolumeSpec) -> Volume {
        Volume::known(VolumeRecord {
            policy: spec.policy,
            destage_in_place: spec.tuning.destage == DestageMode::InPlace,
            journal_possible: spec.journal_possible,
            size_bytes: spec.size_bytes,
            name: spec.name.clone(),
            origin: spec.origin.clone(),
            ..VolumeRecord::unwritten(id, spec.new_uuid)
        })
    }

    /// A replica of another host's volume, of which nothing is here.
    pub fn replica(id: VolumeId, spec: &ReplicaSpec) -> Volume {
        let mut volume = Volume::known(VolumeRecord {
            size_bytes: spec.size_bytes,
            name: spec.name.clone(),
            origin: spec.origin.clone(),
            ..VolumeRecord::unwritten(id, spec.uuid)
        });
        volume.begin_replica(spec);
        volume
    }

    /// What its host says of it.
    pub fn take(&mut self, spec: &VolumeSpec) {
        self.name.clone_from(&spec.name);
        self.origin.clone_from(&spec.origin);
        self.size_bytes = spec.size_bytes;
        self.read_only = spec.read_only;
        self.journal_possible = spec.journal_possible;
        self.storage = spec.storage;
        self.tuning = spec.tuning;
        self.has_come();
    }

    /// As the next checkpoint has it; `logged`: all that was acknowledged is durable in the log,
    /// and nothing more will be.
    pub fn record(&self, logged: bool) -> VolumeRecord {
        self.check_serials();
        // One that becomes smaller may stay as it was, and then has writes up to there.
        let returns = self.resize.map(|resize| resize.bytes_to_return_to());
        VolumeRecord {
            id: self.id,
            uuid: self.uuid,
            generation: self.generation(),
            base_generation: self.base_generation(),
            policy: self.logged_policy,
            destage_in_place: self.tuning.destage == DestageMode::InPlace,
            journal_possible: self.journal_possible,
            ended: self.ended,
            staged: self.is_staged(logged),
            stage_lost: self.stage_lost,
            damaged: self.log_damaged,
            first_serial: self.first_serial(),
            serial_next: self.serial_next(),
            destaged: self.destaged(),
            merged_upto: self.merged_upto(),
            standing: self.standing(),
            size_bytes: self.size_bytes.max(returns.unwrap_or(0)),
            under: self.image_under(),
            name: self.name.clone(),
            origin: self.origin.clone(),
        }
    }

    /// Whether the stage may hold what nothing else has; of overlays it says what of them counts.
    fn is_staged(&self, logged: bool) -> bool {
        let serves = self.is_attached() && (!logged || self.has_waiting());
        match self.logged_policy {
            Policy::WriteBack => serves && !self.read_only,
            Policy::Ephemeral => serves || self.is_dirty(),
            Policy::Uncached | Policy::WriteThrough => false,
        }
    }

    pub fn effective_destage(&self) -> DestageMode {
        if self.journal_possible {
            self.tuning.destage
        } else {
            DestageMode::InPlace
        }
    }

    pub fn sectors(&self) -> u64 {
        self.size_bytes / SECTOR_BYTES
    }

    /// Where sectors of the volume are written, of a raw image.
    pub fn written_at(&self, span: Span) -> (Device, u64) {
        assert!(self.map.is_none(), "where a map has them a plan says");
        (Device::Origin(self.id), span.sector * SECTOR_BYTES)
    }

    pub fn is_dirty(&self) -> bool {
        !self.epochs.is_empty()
    }

    /// The volume may hold dirty data in the log.
    pub fn takes_log(&self) -> bool {
        let writes = self.is_attached() && !self.read_only && !self.policy.is_direct();
        self.is_dirty() || writes || self.is_replica()
    }

    /// Dirty data that must reach the origin some day.
    pub fn owes(&self) -> bool {
        self.policy == Policy::WriteBack && self.is_dirty()
    }

    /// It has data that its image is to have before it may be let go of.
    pub fn owes_when_suspended(&self) -> bool {
        self.policy != Policy::Ephemeral && self.misfit().is_none() && self.is_dirty()
    }

    /// An order, or requests that wait, may wait for the end of what is in flight.
    pub fn is_awaited(&self) -> bool {
        let orders = self.switch.is_some() || self.resize.is_some() || self.quiesce.is_some();
        let image = self.image.rebase.is_some() || self.is_committing();
        let goes = self.goes() || self.prove_order().is_some();
        orders || image || goes || self.has_waiting()
    }

    /// Nobody else stands on its image.
    pub fn owns_image(&self) -> bool {
        self.policy != Policy::Ephemeral
    }

    /// Shows its controller the gauges.
    pub fn look_at_flow(&mut self, now: Time, gauges: &Gauges) {
        self.flow.look(now, &self.tuning.flow, gauges);
    }

    /// A write was refused because the volume is full.
    pub fn hit_hard_limit(&mut self) {
        self.flow.hit_hard_limit();
        self.want_room();
    }

    /// Blocks of the log that its extents keep alive.
    pub fn charge(&self) -> u64 {
        self.epochs.iter().map(|epoch| epoch.charge).sum()
    }

    /// Blocks of the log that it may keep alive.
    pub fn dirty_limit_blocks(&self) -> u64 {
        (self.tuning.dirty_limit_bytes / BLOCK_BYTES).max(1)
    }

    /// How much of its dirty limit it has, in thousandths.
    pub fn dirty_fill(&self) -> u64 {
        let limit = self.dirty_limit_blocks();
        self.charge().min(limit) * 1000 / limit
    }

    pub fn dirty_bytes(&self) -> u64 {
        self.epochs
            .iter()
            .map(|epoch| epoch.map.sectors() * SECTOR_BYTES)
            .sum()
    }

    pub fn dirty_extents(&self) -> u64 {
        self.epochs.iter().map(|epoch| epoch.map.len()).sum()
    }

    /// The number of the epoch that takes the next write.
    pub fn next_epoch(&self) -> EpochNumber {
        match self.epochs.back().filter(|epoch| !epoch.sealed) {
            Some(open) => open.number,
            None => self.epoch_number.next(),
        }
    }

    /// The epoch that takes the next write, which has this serial.
    pub fn open_epoch(&mut self, now: Time, serial: Serial) -> &mut Epoch {
        if self.epochs.back().is_none_or(|epoch| epoch.sealed) {
            let last = self.epochs.back().filter(|_| self.group.is_some());
            assert!(
                last.is_none_or(|epoch| epoch.cut < self.cut),
                "a cut of a group is one epoch of each member"
            );
            let before = self.epochs.back();
            assert!(
                before.is_none_or(|epoch| epoch.last_serial <= self.acked()),
                "serials only grow"
            );
            self.epoch_number = self.epoch_number.next();
            self.epochs.push_back(Epoch {
                map: ExtentMap::new(),
                number: self.epoch_number,
                cut: self.cut,
                last_serial: serial,
                last_seq: StreamSeq(0),
                writes: 0,
                opened: now,
                sealed: false,
                charge: 0,
                joins: false,
            });
        }
        self.epochs.back_mut().expect("one was just pushed")
    }

    /// Splits a range into parts in order: dirty parts with the newest content, gaps with none.
    pub fn resolve(&self, span: Span) -> Vec<(Span, Option<Content>)> {
        let mut parts = Vec::new();
        resolve_from(&self.epochs, self.epochs.len(), span, &mut parts);
        parts
    }

    /// Whether what could not be read may be there another time. While a journal is being applied a
    /// table may be half of one state and half of the other.
    pub fn may_read_again(&self, result: Result<(), IoError>) -> bool {
        result != Err(IoError::Damaged) || self.replay.is_some()
    }
}

/// What holds for a volume that only the log knows.
fn tuning_before_attach(destage_in_place: bool) -> Tuning {
    let destage = match destage_in_place {
        true => DestageMode::InPlace,
        false => DestageMode::Atomic,
    };
    Tuning {
        write_cache: true,
        destage_after_ms: Some(600_000),
        destage,
        dirty_limit_bytes: 4 << 30,
        flow: FlowLimits::default(),
        origin_queue_depth: 32,
        admission: Admission::Reuse,
        overlay_timeout_ms: 30_000,
        overlay_ram_bytes: 256 << 20,
        reset_on: ResetOn::Command,
        origin_timeout_ms: None,
        share: Share::default(),
        group_members: 0,
    }
}

fn resolve_from(
    epochs: &VecDeque<Epoch>,
    below: usize,
    span: Span,
    parts: &mut Vec<(Span, Option<Content>)>,
) {
    let Some(at) = below.checked_sub(1) else {
        parts.push((span, None));
        return;
    };
    let oldest_first = has(Bug::ReadOldestFirst);
    let looked_at = if oldest_first {
        epochs.len() - below
    } else {
        at
    };
    epochs[looked_at]
        .map
        .get(span, |part, content| match content {
            Some(content) => parts.push((part, Some(content))),
            None => resolve_from(epochs, at, part, parts),
        });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Piece;
    use crate::types::{ConnectionId, LogAddr, RequestId};
    use workload::rng::Rng;

    const SECTORS: u64 = 500;
    /// Of an administrator.
    pub const ORDER: RequestId = RequestId {
        connection: ConnectionId(1),
        number: 1,
    };

    pub fn volume() -> Volume {
        Volume::known(VolumeRecord {
            size_bytes: SECTORS * SECTOR_BYTES,
            name: String::from("disk"),
            origin: String::from("/disk.img"),
            ..VolumeRecord::unwritten(VolumeId(1), Uuid([1; 16]))
        })
    }

    /// The reference: an array of sectors for each epoch.
    #[test]
    fn epochs_agree_with_an_array_of_sectors_for_each() {
        let mut rng = Rng::new(11);
        let mut volume = volume();
        let mut reference: VecDeque<Vec<Option<Content>>> = VecDeque::new();
        let (mut sealed, mut gone) = (true, 0);
        for step in 0..20_000_u64 {
            match rng.below(20) {
                0 => {
                    if let Some(epoch) = volume.epochs.back_mut() {
                        epoch.sealed = true;
                    }
                    sealed = true;
                }
                // It is at the origin, which has what it held.
                1 if volume.epochs.len() > 1 => {
                    volume.epochs.pop_front();
                    reference.pop_front();
                    gone += 1;
                }
                _ => {
                    let span = Span::new(rng.below(SECTORS - 40), 1 + step % 40);
                    let header = LogAddr(step * 64);
                    let content = match rng.below(4) {
                        0 => Content::Zero {
                            header,
                            allocate: step % 2 == 0,
                        },
                        _ => Content::Data(header),
                    };
                    let epoch = volume.open_epoch(Time(step), Serial(0));
                    epoch.map.insert(Piece { span, content }, &mut |_| {});
                    if core::mem::take(&mut sealed) || reference.is_empty() {
                        reference.push_back(alloc::vec![None; SECTORS as usize]);
                    }
                    let newest = reference.back_mut().expect("one was just pushed");
                    for at in 0..span.sectors {
                        newest[(span.sector + at) as usize] = Some(content.advance(at));
                    }
                }
            }
            assert_eq!(volume.epochs.len(), reference.len());
            let asked = Span::new(rng.below(400), 1 + rng.below(100));
            let mut at = asked.sector;
            for (part, content) in volume.resolve(asked) {
                assert_eq!(part.sector, at, "no gap");
                at = part.end();
                for sector in 0..part.sectors {
                    let found = content.map(|content| content.advance(sector));
                    let held =
                        |epoch: &Vec<Option<Content>>| epoch[(part.sector + sector) as usize];
                    assert_eq!(found, reference.iter().rev().find_map(held), "{part:?}");
                }
            }
            assert_eq!(at, asked.end());
            let held = |epoch: &Vec<Option<Content>>| epoch.iter().flatten().count() as u64;
            let dirty: u64 = reference.iter().map(held).sum();
            assert_eq!(volume.dirty_bytes(), dirty * SECTOR_BYTES);
        }
        assert!(gone > 300, "{gone} epochs were destaged");
    }
}
