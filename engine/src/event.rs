//! The seam: what the host tells the engine and what the engine asks of the host.
//!
//! Always true: the host executes actions in the order given, starts an [`Action::Io`] without
//! waiting for earlier ones, and answers each exactly once by [`Event::Done`]. Sectors are
//! checked against the volume by the engine; lengths against the buffer by the host.

use crate::adversary::{Bug, has};
use crate::flow::FlowLimits;
use crate::format::record::EntryKind;
use crate::image::{Image, Named};
use crate::memory::{Place, Slice};
use crate::origin::Move;
use crate::origin::{FileIndex, Packed};
use crate::round_robin::WEIGHT_DEFAULT;
use crate::types::{
    BLOCK_SECTORS, BufferId, ConnectionId, DestageMode, IoId, PeerId, Policy, RequestId, Serial,
    Span, Tag, Uuid, VolumeId,
};
use alloc::string::String;
use alloc::vec::Vec;

/// Blocks of one [`Event::ReadLeft`], and of one request to a [`Device::Former`].
pub const LEFT_BLOCKS_MAX: u64 = 64;
/// Sectors of one [`Event::ReadCopy`], and of one request to a [`Device::Peer`].
pub const COPY_SECTORS_MAX: u64 = 512;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    Read {
        volume: VolumeId,
        request: RequestId,
        sector: u64,
        sectors: u64,
        buffer: BufferId,
    },
    Write {
        volume: VolumeId,
        request: RequestId,
        sector: u64,
        sectors: u64,
        buffer: BufferId,
        fua: bool,
        tag: Tag,
    },
    Flush {
        volume: VolumeId,
        request: RequestId,
    },
    /// A hint. Where the origin zeroes cheaply the range reads as zeroes afterwards, stably; else
    /// nothing changes.
    Discard {
        volume: VolumeId,
        request: RequestId,
        sector: u64,
        sectors: u64,
        fua: bool,
    },
    /// Afterwards the range reads as zeroes, stably; `allocate` asks the origin to keep the space.
    WriteZeroes {
        volume: VolumeId,
        request: RequestId,
        sector: u64,
        sectors: u64,
        fua: bool,
        allocate: bool,
    },
    /// The connection is gone: requests of it that own nothing yet are answered with
    /// [`Refusal::Gone`], the others run to their end and are answered as ever.
    Disconnect { connection: ConnectionId },
    /// The end of an [`Action::Io`].
    Done {
        io: IoId,
        result: Result<(), IoError>,
        stat: Option<Stat>,
    },
    /// The owner of a volume sends this for the replica that is kept here. Replied to when all of
    /// it is durable, with all batches before it.
    Replicate {
        volume: VolumeId,
        request: RequestId,
        batch: Batch,
    },
    /// A peer has the batch of this number, and all that were sent to it before, durably. It takes
    /// this much by now.
    Replicated {
        volume: VolumeId,
        peer: PeerId,
        number: u64,
        credit: Credit,
    },
    /// Another host, to which a volume went from here, asks for clean blocks of it. Replied to when
    /// the buffer has all of them; refused as gone where one of them is not here.
    ReadLeft {
        request: RequestId,
        volume: Uuid,
        /// That host knows all that was destaged behind it.
        since: Serial,
        first_block: u64,
        blocks: u64,
        buffer: BufferId,
    },
    /// The owner of a volume asks for what the replica that is kept here has there. Replied to when
    /// the buffer has all of it; refused as gone where some of it is not here.
    ReadCopy {
        request: RequestId,
        volume: VolumeId,
        sector: u64,
        sectors: u64,
        buffer: BufferId,
    },
    /// The origin of a volume has no cheap way to zero: for lack of it so many zeroes were written.
    Zeroed { volume: VolumeId, bytes: u64 },
    Admin {
        request: RequestId,
        command: Command,
    },
    /// A deadline has passed.
    Tick,
}

/// An administrator's command. Each is answered by one [`Action::Reply`].
#[derive(Clone, Debug)]
pub enum Command {
    /// Destages everything written so far; replied to when it is at the origin and synced.
    Destage { volume: VolumeId },
    /// Throws the overlay of an ephemeral volume away. Durable before the reply.
    Reset { volume: VolumeId },
    /// The guest of an ephemeral volume has ended, in a way that its volume may be reset for: the
    /// next guest that arrives finds it clean. Durable before the reply.
    Leave { volume: VolumeId, why: ResetOn },
    /// A guest arrives where none was. The reply lets it in; a reset that is due comes first. One
    /// that `goes_on` with what it did before has only slept: then none is due any more, durably.
    Arrive { volume: VolumeId, goes_on: bool },
    /// Makes the overlay of a volume that was attached to be committed the content of its image;
    /// replied to when the image has it, synced, and the overlay is reset.
    Commit { volume: VolumeId },
    /// Lets go of the files of a volume without clients, and keeps what the log has of it: it can
    /// be attached again. Replied to when nothing touches its origin any more. Refused to a dirty
    /// one that is not ephemeral; a clean one leaves a ledger that says so.
    Suspend { volume: VolumeId },
    /// The same for a volume whose image is another host's from now on: nothing is written to it
    /// any more, and guests are refused.
    Depose { volume: VolumeId },
    /// Lets go of the files of a volume that was attached without proof, so that it can be attached
    /// with it. Replied to when nothing touches them any more; requests wait from then on.
    Prove { volume: VolumeId },
    /// Brings the images of a volume and of its group to rest, each with all that was written
    /// before: nothing writes them until [`Command::Resume`], and guests go on in the log. Replied
    /// to when they rest. Refused to a volume that is not write-back.
    Quiesce { volume: VolumeId },
    /// Ends that, or gives it up. Refused where nothing rests any more, because the log needed its
    /// room, and where another file takes the place of the image.
    Resume { volume: VolumeId },
    /// Other hosts know by now that the image rests: it ends by [`Command::Resume`] or
    /// [`Command::BreakRest`] only, and guests wait where the log needs its room. `begins`: the
    /// volume was attached just now, and its image rests from then on. Refused where nothing rests.
    KeepRest { volume: VolumeId, begins: bool },
    /// Ends a rest that was kept, because the log needs its room: it counts as broken.
    BreakRest { volume: VolumeId },
    /// The image rests, and another file may take its place from the reply on: the ledger says so.
    Announce { volume: VolumeId },
    /// That file is there. Replied to when nothing of the image is in flight, and then nothing
    /// begins until the host has exchanged what is open, or a [`Command::EndExchange`].
    Empty { volume: VolumeId },
    /// The file that is there now stays, be it the other one or the image as before: it is written
    /// again.
    EndExchange { volume: VolumeId },
    /// Changes tunables of a running volume.
    Tune { volume: VolumeId, tuning: Tuning },
    /// Changes the policy of a volume while its guest goes on; replied to when the new one is in
    /// effect. Refused to and from ephemeral. `journal_possible` as in [`VolumeSpec`], for a
    /// volume that becomes write-back; its ledger is there by then.
    Switch {
        volume: VolumeId,
        policy: Policy,
        journal_possible: bool,
    },
    /// Forgets a volume. Refused while it is dirty unless `discard_dirty`; the reply comes when
    /// nothing touches its origin any more and its ledger says so.
    Detach {
        volume: VolumeId,
        discard_dirty: bool,
    },
    /// Gives a volume and its image another size; replied to when both have it, durably. Refused
    /// to a volume that does not own its image, and to a smaller size while it is dirty.
    Resize { volume: VolumeId, size_bytes: u64 },
    /// Makes parts of the disk the own of an image that allocates, which may stand on another file
    /// then. Replied to when the image says so, synced; one that moves is served again after
    /// [`Command::EndExchange`], and in between [`Command::Empty`] and its exchange. Refused while
    /// it is dirty.
    Rebase { volume: VolumeId, order: Move },
    /// Keeps a replica of a volume that another host serves, a new one under an id that is free.
    /// One that is there goes on where it ends, also a frozen one, unless it obeys a newer record:
    /// what is left of a delta is dropped. Durable before the reply, with all that it has. A new
    /// one is refused where copies have no room in the log; one that has a part of a delta of
    /// another owner, as gone.
    KeepReplica { volume: VolumeId, spec: ReplicaSpec },
    /// The replica takes nothing more from its owner, and obeys this record of the cluster. Durable
    /// before the reply, with all that it has.
    Freeze { volume: VolumeId, term: u64 },
    /// Makes a frozen replica a volume of this host, under this name; it can be attached after the
    /// reply. Durable before that.
    TakeOver { volume: VolumeId, name: String },
    /// The reverse: a volume of this host that is not attached becomes a frozen replica under this
    /// name, which ends with its newest write and obeys this record of the cluster. Durable before
    /// the reply, with all that it has. Refused as busy while the volume is attached, something of
    /// it is under way, or the name is taken; as gone if it is a replica already, or obeys a newer
    /// record.
    Retire {
        volume: VolumeId,
        name: String,
        term: u64,
    },
    /// The origin has what a replica has up to there: it lets go of that. Refused as gone where it
    /// is none, as busy while its owner sends.
    TellDestaged { volume: VolumeId, upto: Serial },
    /// The owner of a volume gives it this lineage. Durable before the reply.
    NameLineage { volume: VolumeId, lineage: Uuid },
    /// Sends a peer every write that is dirty and behind `have`, and from then on each new one. Of
    /// a frozen replica all that it has; that peer never counts, and the orders to keep the
    /// replica, to take it over and to forget it stop it.
    StartPeer {
        volume: VolumeId,
        peer: PeerId,
        have: Serial,
        credit: Credit,
    },
    /// From now on a flush needs the peer, and a destage as well; replied to when it has all that
    /// any of them has relied on so far.
    CountPeer { volume: VolumeId, peer: PeerId },
    /// Nothing is sent to the peer any more. One that `counts` is needed all the same.
    StopPeer {
        volume: VolumeId,
        peer: PeerId,
        counts: bool,
    },
    /// From now on a flush is answered when the origin has what it covers, beside what it needs
    /// else; `on: false`: no more. Holds until the volume is detached.
    AnswerAtOrigin { volume: VolumeId, on: bool },
    /// The same by order of an administrator, whatever the host orders beside it.
    FlushThrough { volume: VolumeId, on: bool },
    /// Looks whether the image of a volume is still the one that it knows, under its path. A volume
    /// whose image does not fit is held until it does; then the reply is [`Refusal::Held`].
    Look { volume: VolumeId },
    /// Reads all that lies on the cache device and compares it with its checksums; replied to when
    /// that is done, whatever was found. What was is in the snapshot.
    Scrub,
    /// The cache file is not found under its name any more, so that it ends with this process; or
    /// it is again. Until then it is a device that has failed, of which all can be read.
    CacheGone { gone: bool },
    /// Writes everything acknowledged to the log and syncs it, for an orderly stop.
    Park,
}

/// What throws the overlay of an ephemeral volume away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetOn {
    /// An administrator's command only.
    Command,
    /// The last connection has ended in order, and a guest comes anew.
    Disconnect,
    /// The guest starts again.
    GuestReset,
}

/// Which blocks of an image that a volume writes are kept clean on the cache device. Blocks of
/// base images always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Those that somebody has asked for twice, as long as the first time is remembered.
    #[default]
    Reuse,
    /// All that came from the origin.
    All,
}

/// What can be changed while a volume runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    pub write_cache: bool,
    /// Age limit of dirty data in milliseconds; `None` = never.
    pub destage_after_ms: Option<u64>,
    pub destage: DestageMode,
    pub dirty_limit_bytes: u64,
    /// When guests are slowed before the dirty limit is reached.
    pub flow: FlowLimits,
    /// Origin requests of the destager in flight.
    pub origin_queue_depth: u32,
    pub admission: Admission,
    /// Ephemeral: how long a write waits for space before it fails with no space.
    pub overlay_timeout_ms: u64,
    /// Ephemeral: RAM that the overlay may fill before its writes are spilled to the log.
    pub overlay_ram_bytes: u64,
    pub reset_on: ResetOn,
    /// How long a read waits for an origin that does not give it; `None` = until it does.
    pub origin_timeout_ms: Option<u64>,
    pub share: Share,
    /// How many volumes are named with its group, itself included: nothing of the group is
    /// destaged before all are attached.
    pub group_members: u32,
}

/// What a volume has of what all volumes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Room in the log that nobody else can take while the volume writes to it.
    pub min_bytes: u64,
    /// What it gets of the rest, and of a storage that several volumes destage to, by comparison.
    pub weight: u32,
}

impl Default for Share {
    fn default() -> Share {
        Share {
            min_bytes: 0,
            weight: WEIGHT_DEFAULT,
        }
    }
}

/// A volume as it is attached.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    pub name: String,
    /// Path or URL of the origin, kept in the volume table so that an orphan can be destaged.
    pub origin: String,
    /// Used when the volume is new: neither the log nor a ledger knows it.
    pub new_uuid: Uuid,
    pub policy: Policy,
    pub size_bytes: u64,
    pub read_only: bool,
    /// Volumes with one base layer share its clean blocks, in RAM and on the cache device, also
    /// over a restart: ephemeral and read-only volumes on the same image. It names an image at
    /// one moment of its life, so an image that was changed has another. `None` = the layer is
    /// the volume's own.
    pub base_layer: Option<Uuid>,
    /// False where nothing can lie beside the origin: destage is then in place.
    pub journal_possible: bool,
    /// Ephemeral: its origin is open for writing and held alone, to be committed.
    pub commit: bool,
    /// Equal for volumes whose origins are on one storage: they share what it takes.
    pub storage: u64,
    /// Volumes of one name stand at one point in time; empty = this one alone.
    pub group: String,
    pub tuning: Tuning,
}

/// The volume of another host that a replica is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSpec {
    /// Of the replica: no volume of this host has it.
    pub name: String,
    pub origin: String,
    pub uuid: Uuid,
    pub size_bytes: u64,
    pub lineage: Uuid,
    pub term: u64,
    /// The origin has all writes up to here.
    pub destaged: Serial,
    /// It is to be a volume of this host, and takes room as these do: it has no credit.
    pub fetched: bool,
}

/// Room in a log: in blocks, and in extents of its map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogRoom {
    pub blocks: u64,
    pub extents: u64,
}

impl LogRoom {
    pub const ALL: LogRoom = LogRoom {
        blocks: u64::MAX,
        extents: u64::MAX,
    };

    /// Both at once.
    pub fn with(self, other: LogRoom, of: impl Fn(u64, u64) -> u64) -> LogRoom {
        LogRoom {
            blocks: of(self.blocks, other.blocks),
            extents: of(self.extents, other.extents),
        }
    }

    pub fn plus(self, more: LogRoom) -> LogRoom {
        self.with(more, u64::saturating_add)
    }

    /// What is left without that; nothing where it is more.
    pub fn less(self, gone: LogRoom) -> LogRoom {
        self.with(gone, u64::saturating_sub)
    }

    pub fn holds(self, other: LogRoom) -> bool {
        self.blocks >= other.blocks && self.extents >= other.extents
    }
}

/// What a peer takes of its owner, since the owner came to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Credit {
    /// The cost of all batches together, from the first one on; it only rises. So one that comes
    /// late, or twice, changes nothing.
    pub upto: LogRoom,
    /// All that the copy may hold at a time, as far as the peer knows now.
    pub most: LogRoom,
}

impl Credit {
    /// For what takes all.
    pub const ALL: Credit = Credit {
        upto: LogRoom::ALL,
        most: LogRoom::ALL,
    };
}

/// Writes of a volume on their way to a replica: a delta, or a part of one. A delta is what all
/// writes between two serials leave behind; a replica counts it as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The delta has all that was written behind this serial; of one that begins.
    pub after: Serial,
    /// Of the last write of the delta.
    pub upto: Serial,
    /// Which part of the delta it is, from 0 on.
    pub part: u32,
    /// It is the last one; most are the first as well.
    pub ends: bool,
    /// The delta is the first of an epoch.
    pub begins_epoch: bool,
    /// The origin has all writes up to here.
    pub destaged: Serial,
    /// In ascending order, none over another.
    pub parts: Vec<BatchPart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPart {
    pub span: Span,
    pub kind: EntryKind,
    /// Where the bytes of a write lie, while the host looks at the action, or until the reply.
    pub source: Option<Place>,
    /// CRC-32C of these bytes.
    pub sum: u32,
}

impl BatchPart {
    /// What it takes of a log at most, whatever the log is made of: it may cut what was there
    /// before, and each end of a chunk may cut it.
    pub fn cost(span: Span, kind: EntryKind) -> LogRoom {
        let blocks = match kind {
            EntryKind::Write => span.blocks(),
            EntryKind::Zero { .. } => 1,
        };
        LogRoom {
            blocks: blocks.saturating_add(2),
            extents: 3 + blocks / 2,
        }
    }
}

impl Batch {
    /// Sectors of data in it; a part of zeroes counts as one block.
    pub fn carried_sectors(&self) -> u64 {
        let carried = self.parts.iter().map(|part| match part.kind {
            EntryKind::Write => part.span.sectors,
            EntryKind::Zero { .. } => BLOCK_SECTORS,
        });
        carried.sum()
    }

    /// What it takes of a log at most; nothing if it says only what the origin has.
    pub fn cost(&self) -> LogRoom {
        let parts = self.parts.iter();
        let costs = parts.map(|part| BatchPart::cost(part.span, part.kind));
        costs.fold(LogRoom::default(), LogRoom::plus)
    }
}

/// What an [`Action::Io`] acts on. The host maps each to one open file description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    Cache,
    Origin(VolumeId),
    /// A file below the origin of a volume, shared by all volumes above it and never written.
    Base(VolumeId, FileIndex),
    Journal(VolumeId),
    Ledger(VolumeId),
    /// What the host that had the volume before has of it clean: whole blocks of the disk, to be
    /// read. One that has not all that is asked for gives nothing.
    Former(VolumeId),
    /// What a peer has of the volume that is dirty, to be read: the newest, or nothing where it has
    /// not all that is asked for.
    Peer(VolumeId, PeerId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
    /// Reads a compressed cluster that begins at the offset; a part of what it holds fills the
    /// slices.
    Unpack(Packed),
    /// Makes the range read as zeroes; may release its space unless `allocate`. No slices.
    Zero {
        allocate: bool,
    },
    /// Everything whose `Done` came before this was issued is on stable media afterwards.
    Sync,
    /// Size and modification time, returned in [`Event::Done`].
    Stat,
    /// Cuts a journal to nothing, or removes a ledger and journal on detach.
    Remove,
    /// Gives an origin the size of `bytes` and makes that durable. New space reads as zeroes.
    Resize,
}

impl Op {
    /// A sync, but where this rule is broken: then something that changes nothing.
    pub fn sync_unless(bug: Bug) -> Op {
        match has(bug) {
            true => Op::Stat,
            false => Op::Sync,
        }
    }
}

/// What `Stat` returns, on the clock of the origin's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub size_bytes: u64,
    pub mtime_ns: u64,
    /// The host's wall clock at the time of the call.
    pub now_ns: u64,
    /// Whatever else is another number for a file that was changed or replaced. `None` where a
    /// change may leave no trace.
    pub print: Option<u64>,
    /// Of an origin: what it is known by, as far as its open file can be asked.
    pub image: Option<Image>,
    /// Of an origin: where its path leads.
    pub named: Named,
}

/// One request to a device. `bytes` is the sum of the slices, or the range of a `Zero`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Io {
    pub id: IoId,
    pub device: Device,
    pub op: Op,
    pub offset: u64,
    pub bytes: u64,
    pub slices: Vec<Slice>,
    /// Why it is done; for tracing, counters and the kill drill, never for its execution.
    pub purpose: Purpose,
}

/// What a request to a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    GuestRead,
    GuestWrite,
    Log,
    Footer,
    /// Clean blocks and their footers on their way to the cache device.
    Fill,
    /// Clean blocks read back from the cache device.
    LineRead,
    Prepare,
    Checkpoint,
    Evacuate,
    Scrub,
    DestageRead,
    JournalWrite,
    JournalApply,
    DestageWrite,
    Ledger,
    /// Dirty data on its way to a peer.
    Replicate,
}

/// Something the host must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Io(Io),
    /// Answers a request. For reads the buffer is filled when `result` is `Ok`.
    Reply {
        request: RequestId,
        result: Result<(), Refusal>,
    },
    /// Goes to a peer, behind all that was sent to it before. The bytes are to be taken before the
    /// next event is applied.
    Send {
        volume: VolumeId,
        peer: PeerId,
        number: u64,
        batch: Batch,
    },
}

/// Why a device did not do what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    Failed,
    NoSpace,
    /// What lies there is not what it has to be, and will not be when it is read again.
    Damaged,
    /// It cannot be asked at present; nothing was done.
    Away,
}

/// Why a request was not carried out; the frontend maps it to its protocol's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("input/output error")]
    Io,
    #[error("no space left on the overlay")]
    NoSpace,
    #[error("no space left at the origin")]
    OriginFull,
    #[error("request lies outside the volume")]
    OutOfRange,
    #[error("volume is read-only")]
    ReadOnly,
    #[error("volume is being removed")]
    Gone,
    #[error("dirty data is not at the origin yet")]
    Dirty,
    #[error("not possible with this policy")]
    Policy,
    #[error("volume is held: its dirty data is damaged, or its image or ledger does not fit")]
    Held,
    #[error("the cache device fails")]
    CacheFailed,
    #[error("dirty data cannot be read from the cache device any more")]
    Damaged,
    #[error("the tables of the image contradict each other")]
    Contradicts,
    #[error("something else is being done with the volume")]
    Busy,
    #[error("its image does not rest")]
    NotQuiesced,
    #[error("another host may still write its image")]
    Unproved,
    #[error("copies have no room in the log")]
    NoRoom,
}
