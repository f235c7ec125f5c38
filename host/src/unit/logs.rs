//! The log of this host as units see it: replicas that it keeps, and streams to those of others.
//!
//! Always true: each call returns when the log has replied, and what the reply promises is durable.
//! Deliberately absent: when to call; see [`super::kept`] and [`super::replicas`].

use crate::shard::control::CommandReply;
use engine::event::{Command, Credit, ReplicaSpec};
use engine::snapshot::{CopyRoom, CopySnapshot};
use engine::types::{PeerId, Serial, Uuid, VolumeId};

/// What a volume sends goes to this copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTo {
    pub volume: VolumeId,
    pub peer: PeerId,
    pub host: Uuid,
    pub copy: Uuid,
    pub session: Uuid,
    pub term: u64,
    /// What the copy has said that it takes.
    pub credit: Credit,
}

/// What comes from this host, in this session of it, is for this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InletFrom {
    pub copy: Uuid,
    pub session: Uuid,
    pub host: Uuid,
    pub volume: VolumeId,
    pub term: u64,
}

/// A host that a copy may be made on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub host: Uuid,
    pub cache: Uuid,
    pub boot: Uuid,
    pub name: String,
    pub domain: String,
    /// Blocks of its log that copies may take; none where it has not told.
    pub room_blocks: Option<u64>,
}

pub trait Logs: Send + Sync {
    /// A volume or a replica that the log knows.
    fn find(&self, name: &str) -> Option<VolumeId>;
    fn view(&self, volume: VolumeId) -> Option<CopySnapshot>;
    /// The same of several, in one moment.
    fn views(&self, volumes: Vec<VolumeId>) -> Vec<Option<CopySnapshot>>;
    /// Names of all replicas.
    fn replicas(&self) -> Vec<String>;
    /// Makes a replica under its name, or goes on with the one that is there.
    fn keep(&self, spec: ReplicaSpec) -> Result<VolumeId, String>;
    fn run(&self, command: Command) -> Result<(), String>;
    fn begin(&self, command: Command) -> Option<CommandReply>;
    fn start_stream(&self, to: StreamTo, have: Serial) -> Result<(), String>;
    /// One that `counts` is needed all the same.
    fn stop_stream(&self, volume: VolumeId, peer: PeerId, counts: bool);
    /// What is sent from now on goes nowhere; the log is not told.
    fn close_stream(&self, volume: VolumeId, peer: PeerId);
    fn open_inlet(&self, from: InletFrom);
    /// Nothing that comes in an earlier session is acknowledged any more.
    fn close_inlet(&self, copy: Uuid);
    /// This host had the volume before, and may be asked for clean blocks of it.
    fn open_former(&self, volume: VolumeId, host: Uuid);
    /// For copies of other hosts' volumes.
    fn room(&self) -> Option<CopyRoom>;
    /// Hosts that there is a link to.
    fn neighbours(&self) -> Vec<Neighbour>;
}
