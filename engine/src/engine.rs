//! The engine as the host sees it: open, attach, apply, poll.
//!
//! Always true: `open` returns only when what it accepted is durable; everything after it happens
//! in `apply`. Deliberately absent: every decision; they are in `core` and `recover`.

use crate::adversary::{Mark, mark};
use crate::chart::{Cursor, Page};
use crate::core::Core;
use crate::event::{Action, Credit, Event, Refusal, VolumeSpec};
use crate::format::ledger::Ledger;
use crate::format::superblock::Superblock;
use crate::image::Image;
use crate::layout::Part;
use crate::media::Media;
use crate::memory::Memory;
use crate::open::volumes_max;
use crate::origin::Map;
use crate::outbox::{Cx, Outbox};
use crate::sample::Samples;
use crate::snapshot::{CopyRoom, CopySnapshot, Snapshot, VolumeSnapshot};
use crate::types::{Geometry, Policy, Serial, Span, Tag, Time, Uuid, VolumeId};
use alloc::boxed::Box;
use alloc::vec::Vec;

pub use crate::open::read_superblock;
pub use crate::open::{Config, OpenError, Report, VOLUMES_MAX, device_bytes, geometry_for};
pub use crate::recover::{CacheInfo, VerifyReport, inspect, verify};
pub use crate::settle::{OriginInfo, Otherwise, Settled, inspect_origin, pending_journal};
pub use crate::settle::{settle, settle_for, settle_or};

/// One shard: one cache device and all volumes placed on it, owned by one thread.
pub struct Engine {
    core: Core,
    out: Outbox,
}

impl Engine {
    /// Reads superblock, log and stage, decides what is true, makes it durable.
    pub fn open(
        config: Config,
        media: &mut dyn Media,
        memory: &mut dyn Memory,
    ) -> Result<(Engine, Report), OpenError> {
        let (core, report) = crate::recover::recover(config, media, memory)?;
        Ok((
            Engine {
                core,
                out: Outbox::default(),
            },
            report,
        ))
    }

    /// The id under which the host registers the files of this volume: the one the volume had,
    /// if the log knows its name, else a fresh one.
    pub fn place(&mut self, name: &str) -> VolumeId {
        self.core.place(name)
    }

    /// A volume or a replica that the log knows.
    pub fn find(&self, name: &str) -> Option<VolumeId> {
        self.core.known_as(name)
    }

    /// The cache that this is the engine of.
    pub fn cache(&self) -> Uuid {
        self.core.superblock.cache
    }

    /// Volumes the log knows, attached or not.
    pub fn known(&self) -> Vec<VolumeSnapshot> {
        self.core.snapshot(Time(0)).volumes
    }

    /// Joins a volume to its recovered data. Requests are accepted at once and wait until the
    /// claim is durable; the host calls `apply` with a `Tick` to set that going.
    pub fn attach(
        &mut self,
        _now: Time,
        id: VolumeId,
        spec: VolumeSpec,
        ledger: Settled,
    ) -> Result<(), OpenError> {
        self.core.attach(id, spec, ledger)
    }

    /// The same for a volume on an image of a format, which only reads it.
    pub fn attach_mapped(
        &mut self,
        id: VolumeId,
        spec: VolumeSpec,
        ledger: Settled,
        map: Box<dyn Map>,
    ) -> Result<(), OpenError> {
        self.core.attach_mapped(id, spec, ledger, Some(map))
    }

    /// Joins a volume that was attached without proof once more, with the right to write its image,
    /// after the reply to [`Command::Prove`](crate::event::Command::Prove). Refused, it goes on
    /// with the files of before. The host calls `apply` with a `Tick` to let guests go on.
    pub fn attach_proved(
        &mut self,
        now: Time,
        id: VolumeId,
        spec: VolumeSpec,
        settled: Settled,
        memory: &mut dyn Memory,
    ) -> Result<(), OpenError> {
        let mut cx = Cx {
            now,
            memory,
            out: &mut self.out,
        };
        self.core.attach_proved(&mut cx, id, spec, settled)
    }

    /// Another file has taken the place of the image of a volume, after the reply to
    /// [`Command::Empty`](crate::event::Command::Empty). `map` is of the new one, right above the
    /// old one, and `image` what it is known by. The host calls `apply` with a `Tick` to let
    /// guests go on.
    pub fn exchange(
        &mut self,
        now: Time,
        id: VolumeId,
        map: Box<dyn Map>,
        image: Image,
        memory: &mut dyn Memory,
    ) {
        let mut cx = Cx {
            now,
            memory,
            out: &mut self.out,
        };
        self.core.exchange(&mut cx, id, map, image);
    }

    /// Takes one event. Never blocks, never fails.
    pub fn apply(&mut self, now: Time, event: Event, memory: &mut dyn Memory) {
        let mut cx = Cx {
            now,
            memory,
            out: &mut self.out,
        };
        self.core.apply(&mut cx, event);
    }

    /// The next thing the host must do; drained after each `apply`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.poll()
    }

    /// When `Tick` is due if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.out.next_deadline()
    }

    /// The policy in effect; `None` of a volume that is not there.
    pub fn policy(&self, volume: VolumeId) -> Option<Policy> {
        let volume = self.core.volumes.get(volume)?;
        Some(volume.policy)
    }

    /// Whether direct writes of this life have given clusters of the volume's image, and none of
    /// those can have leaked: nothing of them is under way, and none was cut short.
    pub fn has_allocated(&self, volume: VolumeId) -> bool {
        let volume = self.core.volumes.get(volume);
        volume.is_some_and(|it| it.allocator().has_ended())
    }

    /// Whether recovery has found this write of the run before: the volume holds it, synced, or has
    /// destaged it, and its guest need only be told so. A write that is not found may be there all
    /// the same, where an earlier recovery found it or much was written after it.
    pub fn has_taken(&self, volume: VolumeId, tag: Tag) -> bool {
        let found = self.core.given.has_already(volume, tag);
        if found {
            mark(Mark::TagFound);
        }
        found
    }

    /// Requests to devices whose `Done` has not come.
    pub fn in_flight(&self) -> usize {
        self.out.in_flight()
    }

    /// What a range of a volume holds at this moment, as far as the log decides it: up to
    /// `parts_max` parts from its start on, without a gap. Changes nothing, in bounded time.
    pub fn layout(
        &self,
        volume: VolumeId,
        span: Span,
        parts_max: usize,
    ) -> Result<Vec<Part>, Refusal> {
        self.core.layout(volume, span, parts_max)
    }

    /// One page of what of a volume lies where on this host; see [`crate::chart`].
    pub fn chart(&self, volume: VolumeId, from: Cursor) -> Result<Page, Refusal> {
        self.core.chart(volume, from)
    }

    /// What is here of one volume, attached or not; none of one that is not known. It costs the
    /// same however many volumes there are.
    pub fn copy(&self, volume: VolumeId) -> Option<CopySnapshot> {
        self.core.copy(volume)
    }

    /// A volume that may be read from the host that had it before: its uuid, and what that host has
    /// to have known of the image.
    pub fn former(&self, volume: VolumeId) -> Option<(Uuid, Serial)> {
        let volume = self.core.volumes.get(volume)?;
        let since = self.core.lines.remote.since(volume.layer())?;
        Some((volume.uuid(), since))
    }

    /// What the owner of a copy that is kept here may send; told with each acknowledgment.
    pub fn credit(&self, volume: VolumeId) -> Option<Credit> {
        self.core.credit(volume)
    }

    /// What guests have read since it was asked before, for curves of the cache.
    pub fn take_samples(&mut self) -> Samples {
        self.core.reading.sampler.take()
    }

    pub fn copy_room(&self) -> CopyRoom {
        self.core.show_copy_room()
    }

    pub fn snapshot(&self) -> Snapshot {
        self.core.snapshot(Time(0))
    }

    /// As `snapshot`, with ages as of `now`.
    pub fn snapshot_at(&self, now: Time) -> Snapshot {
        self.core.snapshot(now)
    }
}

/// Writes an empty cache of this shape: checkpoint first, then the superblocks, synced.
pub fn format_cache(
    media: &mut dyn Media,
    uuid: Uuid,
    geometry: Geometry,
) -> Result<(), OpenError> {
    crate::recover::format(
        media,
        Superblock::new(uuid, geometry, volumes_max(geometry)),
    )
}

/// Gives a cache that owes nothing another size: the same volumes, an empty log. Bytes behind the
/// new end are not touched; a larger device is there already.
pub fn resize_cache(media: &mut dyn Media, geometry: Geometry) -> Result<Superblock, OpenError> {
    crate::recover::relayout(media, geometry.segments)
}

/// A ledger as it lies beside an origin, for hosts that show it.
pub type LedgerInfo = Ledger;
