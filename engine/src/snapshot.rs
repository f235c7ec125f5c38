//! Plain data about the engine, for the admin interface, metrics and the simulator.
//!
//! Always true: a snapshot is a copy; reading one changes nothing.

use crate::event::Credit;
use crate::event::Share;
use crate::image::Finding;
use crate::types::{DestageMode, Generation, PeerId, Policy, Serial, Span, Uuid, VolumeId};
use alloc::string::String;
use alloc::vec::Vec;

/// One histogram of latencies: powers of two in microseconds, 0 to 2^31.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    pub counts: [u64; 32],
}

impl Histogram {
    pub fn add_ns(&mut self, nanos: u64) {
        let micros = (nanos / 1000).max(1);
        self.counts[(63 - micros.leading_zeros()).min(31) as usize] += 1;
    }

    pub fn add(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }

    /// Upper bound of the bucket that holds the given per-mille of all samples.
    pub fn quantile_us(&self, per_mille: u64) -> Option<u64> {
        let total: u64 = self.counts.iter().sum();
        let mut left = (total * per_mille).div_ceil(1000);
        if total == 0 {
            return None;
        }
        for (power, &count) in self.counts.iter().enumerate() {
            if left <= count {
                return Some(2u64 << power);
            }
            left -= count;
        }
        None
    }
}

/// State of a volume as the administrator sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Clean,
    Dirty,
    /// Guests or dirty data wait for the origin: it answers with errors or not at all.
    Stalled,
    /// Stopped: going on would lose or invent data.
    Held,
    /// Some dirty blocks cannot be read any more.
    Damaged,
    /// Served by another host, or by none. Only hosts of a cluster say so.
    Away,
}

impl State {
    pub const fn name(self) -> &'static str {
        match self {
            State::Clean => "clean",
            State::Dirty => "dirty",
            State::Stalled => "stalled",
            State::Held => "held",
            State::Damaged => "damaged",
            State::Away => "away",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    pub requests: u64,
    pub bytes: u64,
    pub ram_hits: u64,
    pub ssd_hits: u64,
    pub origin: u64,
    /// From the host that had the volume before.
    pub remote: u64,
    pub remote_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    pub requests: u64,
    pub bytes: u64,
    /// Bytes overwritten before they were destaged.
    pub elided_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginCounters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub journal_bytes: u64,
    /// Reads and writes of the journal and the ledger, and of the header for the guard.
    pub journal_requests: u64,
    pub syncs: u64,
    /// Zeroes that were written because the origin cannot make a hole.
    pub zeroed_bytes: u64,
    pub errors: u64,
    pub latency: Histogram,
}

/// What the log can expect of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheState {
    #[default]
    Good,
    /// It has failed since its last good sync.
    Failing,
    /// It has failed for so long that volumes do without it.
    Failed,
    /// It answers, but nobody will find it once this daemon has ended.
    Gone,
}

impl CacheState {
    pub fn name(self) -> &'static str {
        match self {
            CacheState::Good => "good",
            CacheState::Failing => "failing",
            CacheState::Failed => "failed",
            CacheState::Gone => "gone",
        }
    }
}

/// Everything counted for one volume since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub reads: Reads,
    pub writes: Writes,
    pub discards: u64,
    /// Of these, dropped because the origin cannot zero cheaply.
    pub dropped_discards: u64,
    pub flushes: u64,
    pub origin: OriginCounters,
    pub ssd_read_bytes: u64,
    /// That a peer gave where the log did not.
    pub recalled_bytes: u64,
    pub ssd_write_bytes: u64,
    pub checksum_errors: u64,
    /// Reads that found something in the overlay.
    pub overlay_hits: u64,
    /// Writes answered for want of room in the overlay.
    pub overlay_refused: u64,
    /// Times that its image rested until the log needed its room.
    pub rests_ended: u64,
}

/// Flow control of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSnapshot {
    pub active: bool,
    /// How long a write is held before it is admitted.
    pub delay_ns: u64,
    pub reason: Option<&'static str>,
    /// Moving average of the origin's latency.
    pub latency_ns: u64,
    /// Writes that were held since start.
    pub held_writes: u64,
}

/// The overlay of an ephemeral volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlaySnapshot {
    pub ram_blocks: u64,
    /// Spilled to the log, or on their way there.
    pub ssd_blocks: u64,
    pub ram_limit_bytes: u64,
    /// Since its first write; `None` while it is empty, and of one that a recovery found.
    pub age_ns: Option<u64>,
    /// Its guest has ended, and the next one finds it reset.
    pub ended: bool,
    /// The last write was answered for want of room.
    pub full: bool,
}

#[derive(Clone, Debug)]
pub struct VolumeSnapshot {
    /// Why it is held for its image; [`State::Held`] then.
    pub misfit: Option<Finding>,
    /// Its overlay lies on another image than the one that is there.
    pub overlay_misfits: bool,
    /// Its image, which it only reads, was written by another program since the daemon started.
    pub base_changed: bool,
    pub id: VolumeId,
    pub name: String,
    pub uuid: Uuid,
    pub origin: String,
    /// The policy in effect, and the one that it is changing to.
    pub policy: Policy,
    pub switching_to: Option<Policy>,
    pub write_cache: bool,
    pub effective_destage: DestageMode,
    /// False where nothing can lie beside the origin.
    pub journal_possible: bool,
    /// Its image rests by an administrator's order.
    pub rests: bool,
    /// Its flushes are answered by its image, by an administrator's order.
    pub flushes_through: bool,
    /// Its age alone brings no dirty data to the origin.
    pub never_aged: bool,
    pub share: Share,
    /// Empty for a volume that stands alone.
    pub group: String,
    /// Volumes of its group are missing, and nothing of it is destaged before they are there.
    pub group_waits: bool,
    /// A volume of its group is destaged in place.
    pub group_in_place: bool,
    pub state: State,
    pub reason: Option<&'static str>,
    /// Ranges of dirty data that the destage could not read, the first few of them.
    pub damaged: Vec<Span>,
    /// Known from the log only: no configuration names it.
    /// Guests go past a log whose device fails.
    pub past_log: bool,
    pub orphan: bool,
    pub ready: bool,
    pub size_bytes: u64,
    pub dirty_bytes: u64,
    pub dirty_writes: u64,
    pub dirty_extents: u64,
    /// Age of the oldest; of what a recovery found nobody knows more than that it is older than
    /// this life of the engine.
    pub oldest_dirty_ns: Option<u64>,
    pub dirty_before_start: bool,
    pub acked_serial: Serial,
    pub durable_serial: Serial,
    pub destaged_serial: Serial,
    pub generation: Generation,
    pub waiting_requests: u64,
    pub flow: FlowSnapshot,
    pub destaging: bool,
    pub counters: Counters,
    /// Of ephemeral volumes.
    pub overlay: Option<OverlaySnapshot>,
    /// RAM for the tables of an image that is not raw; volumes on one image share it.
    pub map_bytes: Option<u64>,
    /// Blocks with such tables that the cache device holds as clean data; shared likewise, and by
    /// volumes that stand on one of its files.
    pub table_blocks: Option<u64>,
    /// Of the owner that gives its serials; nil where it never had peers.
    pub lineage: Uuid,
    /// The newest write that the start of this daemon has found.
    pub recovered_serial: Serial,
    /// None of a volume of this host.
    pub replica: Option<ReplicaSnapshot>,
    pub peers: Vec<PeerSnapshot>,
    /// Of a volume that writes such an image.
    pub written: Option<WrittenSnapshot>,
}

/// What this host has of a volume, its own or another's, as the hosts of a cluster compare it; see
/// [`Engine::copy`](crate::engine::Engine::copy).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySnapshot {
    pub uuid: Uuid,
    pub size_bytes: u64,
    /// In effect.
    pub policy: Policy,
    /// A host has opened its origin; else only the log knows it.
    pub attached: bool,
    /// The newest serial that was given or seen.
    pub acked: Serial,
    /// Everything up to here is durable in the log, or at the origin.
    pub durable: Serial,
    /// The origin has everything up to here; 0 where the policy keeps no count.
    pub destaged: Serial,
    /// It has data that the origin has not.
    /// Of the newest write that is here, or at the origin; void serials are not counted.
    pub written: Serial,
    /// The same of what is durable, in order and without a gap: a start finds at least that.
    pub end: Serial,
    pub dirty: bool,
    pub dirty_bytes: u64,
    /// Something of what it should have cannot be read, or is missing.
    pub damaged: bool,
    /// None of a volume of this host.
    pub replica: Option<ReplicaSnapshot>,
    /// What its owner may send; none of a volume of this host.
    pub credit: Option<Credit>,
    pub peers: Vec<PeerSnapshot>,
    /// Flushes are answered when the origin has what they cover.
    pub at_origin: bool,
    /// The cache device has failed, and what it has is being brought to the origin.
    pub rescues: bool,
    /// The cache device has failed: it writes its origin past the log, or waits for that.
    pub past_log: bool,
    /// Its image rests by an order that other hosts know of, and the log needs its room.
    pub rest_is_short: bool,
}

/// What is told of a peer that a volume is replicated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSnapshot {
    pub peer: PeerId,
    /// A flush needs it.
    pub counts: bool,
    /// Nothing is sent to it.
    pub stopped: bool,
    /// It gets writes as they come; else it is behind.
    pub live: bool,
    /// It has all writes up to here, durably; and gets them up to here.
    pub durable: Serial,
    pub sent: Serial,
    /// A flush needs it, and it has no room for what it lacks: writes wait.
    pub no_room: bool,
}

/// The room for copies of other hosts' volumes in the log, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyRoom {
    /// What all copies together may take.
    pub max_bytes: u64,
    /// What they take, with what was promised to them.
    pub taken_bytes: u64,
    /// What can be promised now: also guests of this host take what was not.
    pub free_bytes: u64,
    /// Another copy may begin.
    pub begins: bool,
}

/// A replica that this host keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSnapshot {
    /// It takes nothing from its owner any more.
    pub frozen: bool,
    /// The newest record of the cluster that it obeys.
    pub term: u64,
    /// It has all writes up to here.
    pub end: Serial,
    /// No write behind this one has come, be it in part.
    pub seen: Serial,
    /// It has a part of a delta that came from another copy, and has to be begun anew.
    pub torn: bool,
    /// Its owner asks for room, and there was none for too long.
    pub no_room: bool,
}

/// An image that allocates, as its header and its ledger are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenSnapshot {
    /// The header may say that only the journal beside it makes it whole.
    pub guarded: bool,
    /// Of the journal that is to be applied, or is being applied.
    pub journal_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    pub free: u32,
    pub write: u32,
    pub overlay: u32,
    pub sealed: u32,
    /// Clean blocks; the first to be given back.
    pub fill: u32,
}

/// Clean blocks on the cache device, counted since the engine started but for `blocks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Blocks that can be found now.
    pub blocks: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// Blocks dropped because they were not, twice, what had been written.
    pub bad_blocks: u64,
    /// Reads and writes of clean blocks that the device failed.
    pub errors: u64,
    /// Segments given back.
    pub segments_retired: u64,
    /// Blocks of images that volumes write which were still good after an orderly stop.
    pub kept_blocks: u64,
    /// Blocks that were worth being written again when their segment was given back.
    pub reappended_blocks: u64,
}

/// How far a scrub of the cache device is, or how the last one ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubSnapshot {
    pub running: bool,
    /// It came to the end of the log.
    pub complete: bool,
    /// What there was to read when it began.
    pub total_bytes: u64,
    pub checked_bytes: u64,
    /// Dirty data that cannot be read any more; its volumes are damaged.
    pub damaged_bytes: u64,
    /// Clean blocks that were forgotten; their origins have them.
    pub dropped_bytes: u64,
    /// Footers of segments: a start reads the records instead.
    pub bad_footers: u64,
    pub took_ns: u64,
    /// Since it ended.
    pub ended_ns: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub volumes: Vec<VolumeSnapshot>,
    pub log_bytes: u64,
    /// What all volumes together may keep dirty.
    pub dirty_bytes_max: u64,
    pub live_bytes: u64,
    pub copy_room: CopyRoom,
    pub index_bytes: u64,
    pub segments: SegmentCounts,
    pub ram_blocks: u64,
    pub ram_blocks_used: u64,
    pub stage_slots: u32,
    pub stage_slots_busy: u32,
    pub overlay_slots: u32,
    pub overlay_slots_busy: u32,
    pub evacuated_bytes: u64,
    pub segments_reused: u64,
    /// Writes to the log, and how long they took together.
    pub log_writes: u64,
    pub log_write_ns: u64,
    pub cache_errors: u64,
    pub cache_state: CacheState,
    pub checkpoints: u64,
    pub lines: Lines,
    /// The scrub under way, else the last one of this life.
    pub scrub: Option<ScrubSnapshot>,
}
