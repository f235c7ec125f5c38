//! The log of the daemon, as its units use it for copies.
//!
//! Always true: one replica is made at a time, because the log gives a new one the first place that
//! is free. Deliberately absent: when what is done; see [`crate::unit`].

use super::Daemon;
use crate::cluster::data::Outlet;
use crate::shard::control::{CommandError, CommandReply, Handle};
use crate::shard::copies::{Inlet, Stream};
use crate::shard::former::Former;
use crate::unit::Post;
use crate::unit::logs::{InletFrom, Logs, Neighbour, StreamTo};
use engine::event::{Command, ReplicaSpec};
use engine::snapshot::{CopyRoom, CopySnapshot};
use engine::types::{PeerId, Serial, Uuid, VolumeId};
use std::sync::{Arc, Mutex, PoisonError};

pub(super) struct ByShard {
    handle: Handle,
    post: Arc<dyn Post>,
    making: Arc<Mutex<()>>,
}

impl ByShard {
    pub fn of(daemon: &Daemon, post: Arc<dyn Post>) -> ByShard {
        ByShard {
            handle: daemon.handle.clone(),
            post,
            making: daemon.placing.clone(),
        }
    }
}

fn words(error: CommandError) -> String {
    error.to_string()
}

impl Logs for ByShard {
    fn find(&self, name: &str) -> Option<VolumeId> {
        self.handle.find(name).ok().flatten()
    }

    fn view(&self, volume: VolumeId) -> Option<CopySnapshot> {
        self.views(vec![volume]).pop().flatten()
    }

    fn views(&self, volumes: Vec<VolumeId>) -> Vec<Option<CopySnapshot>> {
        let count = volumes.len();
        let views = self.handle.copy_views(volumes);
        views.unwrap_or_else(|_| vec![None; count])
    }

    fn replicas(&self) -> Vec<String> {
        let shown = self.handle.snapshot().ok();
        let volumes = shown.into_iter().flat_map(|shown| shown.engine.volumes);
        let replicas = volumes.filter(|volume| volume.replica.is_some());
        replicas.map(|volume| volume.name).collect()
    }

    fn keep(&self, spec: ReplicaSpec) -> Result<VolumeId, String> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let volume = self.handle.place(&spec.name);
        let volume = volume.map_err(|error| error.to_string())?;
        let kept = self.handle.command(Command::KeepReplica { volume, spec });
        kept.map(|()| volume).map_err(words)
    }

    fn run(&self, command: Command) -> Result<(), String> {
        self.handle.command(command).map_err(words)
    }

    fn begin(&self, command: Command) -> Option<CommandReply> {
        self.handle.command_begin(command).ok()
    }

    fn start_stream(&self, to: StreamTo, have: Serial) -> Result<(), String> {
        let outlet: Option<Arc<dyn Outlet>> = self.post.outlet(to.host);
        let outlet = outlet.ok_or("there is no link to its host")?;
        let (volume, peer) = (to.volume, to.peer);
        let stream = Stream {
            volume,
            peer,
            host: to.host,
            copy: to.copy,
            session: to.session,
            term: to.term,
            to: outlet,
        };
        let opened = self.handle.stream_open(stream);
        opened.map_err(|error| error.to_string())?;
        self.run(Command::StartPeer {
            volume,
            peer,
            have,
            credit: to.credit,
        })
    }

    fn close_stream(&self, volume: VolumeId, peer: PeerId) {
        // One that does not answer any more has no streams either.
        let _ = self.handle.stream_close(volume, peer);
    }

    fn stop_stream(&self, volume: VolumeId, peer: PeerId, counts: bool) {
        self.close_stream(volume, peer);
        let _ = self.handle.command(Command::StopPeer {
            volume,
            peer,
            counts,
        });
    }

    fn open_inlet(&self, from: InletFrom) {
        let _ = self.handle.inlet_open(Inlet {
            copy: from.copy,
            session: from.session,
            host: from.host,
            volume: from.volume,
            term: from.term,
        });
    }

    fn close_inlet(&self, copy: Uuid) {
        let _ = self.handle.inlet_close(copy);
    }

    fn open_former(&self, volume: VolumeId, host: Uuid) {
        if let Some(to) = self.post.outlet(host) {
            let _ = self.handle.former_open(Former { volume, host, to });
        }
    }

    fn room(&self) -> Option<CopyRoom> {
        self.handle.copy_room().ok()
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        self.post.neighbours()
    }
}
