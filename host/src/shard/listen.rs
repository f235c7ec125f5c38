//! Listening sockets and the exports that clients find behind them.
//!
//! Always true: a listener has at most one accept in flight, and is closed only after it has
//! ended. Want of descriptors or memory makes it pause, never spin. Deliberately absent: where
//! sockets lie and who may open them (`daemon`).

use super::control::{Arrival, Export, Greeter, ListenerScope};
use super::{Alarm, Decide, Shard, tag};
use crate::backup::Backup;
use crate::error::cause;
use crate::frontend::nbd;
use crate::ring;
use crate::waiting::{Ticket, Waiting};
use engine::types::{Policy, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Pause after an accept that failed for want of something.
const RETRY_MILLIS: u64 = 100;

pub(super) struct Listener {
    socket: OwnedFd,
    scope: ListenerScope,
    /// Who takes its clients, if that is not the shard.
    greeter: Option<Greeter>,
    closing: bool,
}

/// The exports by name.
#[derive(Default)]
pub(super) struct ExportTable {
    exports: BTreeMap<String, (Export, nbd::Export)>,
    /// Names whose volumes are held.
    held: BTreeSet<String>,
    /// Names whose volumes are served on another host, and who counts their clients.
    away: BTreeMap<String, Waiting>,
    /// Backups by the name that clients ask for, until their windows end.
    backups: BTreeMap<String, (VolumeId, Arc<Backup>)>,
}

impl ExportTable {
    pub fn set_backup(&mut self, volume: VolumeId, backup: Arc<Backup>) {
        self.backups.retain(|_, (_, other)| other.window.is_open());
        let name = backup.export().name;
        self.backups.insert(name, (volume, backup));
    }

    /// The backup of this name, if its window is open.
    pub fn backup(&self, name: &str) -> Option<Arc<Backup>> {
        let (_, backup) = self.backups.get(name)?;
        backup.window.is_open().then(|| backup.clone())
    }

    pub fn set(&mut self, name: &str, export: Export, policy: Policy) {
        let shown = nbd::Export {
            name: name.to_owned(),
            description: export.description.clone(),
            size_bytes: export.size_bytes,
            read_only: export.read_only,
            multi_conn: true,
            trim: !export.read_only,
            write_zeroes: !export.read_only,
            // In the log zeroes are an entry without payload; at the origin they may be bytes.
            fast_zero: !export.read_only && !policy.is_direct(),
            // A disk of sectors takes any range: what is cut is read and written whole here.
            block_bytes: match export.block_bytes {
                512 => 1,
                larger => larger,
            },
            bitmaps: Vec::new(),
        };
        self.exports.insert(name.to_owned(), (export, shown));
        self.held.remove(name);
        self.away.remove(name);
    }

    pub fn hold(&mut self, name: &str) {
        self.held.insert(name.to_owned());
        self.away.remove(name);
    }

    /// Who asks for this name waits, until it is set, held, or removed.
    pub fn set_away(&mut self, name: &str, waiting: Waiting) {
        self.remove(name);
        self.away.insert(name.to_owned(), waiting);
    }

    /// The same for all names of a volume. Those who wait are not counted.
    pub fn set_volume_away(&mut self, volume: VolumeId) {
        let of_volume = |(export, _): &(Export, nbd::Export)| export.volume == volume;
        let all = self.exports.iter().filter(|(_, it)| of_volume(it));
        let names: Vec<String> = all.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.set_away(&name, Waiting::default());
        }
    }

    /// Counts a client that waits for this name.
    pub fn await_export(&self, name: &str) -> Option<Ticket> {
        self.away.get(name).map(Waiting::enter)
    }

    pub fn remove(&mut self, name: &str) {
        self.exports.remove(name);
        self.held.remove(name);
        self.away.remove(name);
    }

    /// Shows the exports of a volume as its new policy has them, to clients that come from now on.
    pub fn renew(&mut self, volume: VolumeId, policy: Policy) {
        let all = self.exports.iter();
        let of_volume = all.filter(|(_, (export, _))| export.volume == volume);
        let of_volume: Vec<_> = of_volume
            .map(|(name, (export, _))| (name.clone(), export.clone()))
            .collect();
        for (name, export) in of_volume {
            let description = format!("{} volume", policy.name());
            let export = Export {
                description,
                ..export
            };
            self.set(&name, export, policy);
        }
    }

    pub fn remove_volume(&mut self, volume: VolumeId) {
        self.exports
            .retain(|_, (export, _)| export.volume != volume);
        self.backups.retain(|_, (other, _)| *other != volume);
    }

    pub fn volume(&self, name: &str) -> Option<VolumeId> {
        self.exports.get(name).map(|(export, _)| export.volume)
    }

    /// The volume of an export that one client at a time may write.
    pub fn one_writer(&self, name: &str) -> Option<VolumeId> {
        let (export, _) = self.exports.get(name)?;
        (!export.shared && !export.read_only).then_some(export.volume)
    }

    pub fn names_by_volume(&self) -> BTreeMap<VolumeId, Vec<String>> {
        let mut names: BTreeMap<VolumeId, Vec<String>> = BTreeMap::new();
        for (name, (export, _)) in &self.exports {
            names.entry(export.volume).or_default().push(name.clone());
        }
        names
    }
}

impl nbd::Exports for ExportTable {
    fn is_away(&self, name: &str) -> bool {
        self.away.contains_key(name)
    }

    fn is_held(&self, name: &str) -> bool {
        self.held.contains(name)
    }

    fn find(&self, name: &str) -> Option<nbd::Export> {
        let shown = self.exports.get(name).map(|(_, shown)| shown.clone());
        shown.or_else(|| self.backup(name).map(|backup| backup.export()))
    }

    fn list(&self) -> Vec<nbd::Export> {
        let backups = self.backups.values().map(|(_, backup)| backup);
        let backups = backups.filter(|it| it.window.is_open());
        let backups = backups.map(|backup| backup.export());
        let shown = self.exports.values().map(|(_, shown)| shown.clone());
        shown.chain(backups).collect()
    }
}

impl<E: Decide> Shard<E> {
    pub(super) fn listen(
        &mut self,
        socket: OwnedFd,
        scope: ListenerScope,
        greeter: Option<Greeter>,
    ) {
        let slot = self.listeners.insert(Listener {
            socket,
            scope,
            greeter,
            closing: false,
        });
        self.accept(slot);
    }

    pub(super) fn unlisten(&mut self, wanted: impl Fn(&ListenerScope) -> bool) {
        let all = self.listeners.iter();
        let found = all.filter(|(_, listener)| wanted(&listener.scope));
        let found: Vec<u32> = found.map(|(slot, _)| slot).collect();
        for slot in found {
            let listener = self.listeners.get_mut(slot).expect("was just found");
            listener.closing = true;
            self.ring.cancel(tag::NOTHING, tag::accept(slot));
        }
    }

    /// Waits for the next client.
    pub(super) fn accept(&mut self, slot: u32) {
        let listener = self
            .listeners
            .get(slot)
            .expect("a listener outlives its accepts");
        if listener.closing {
            self.listeners.remove(slot);
            return;
        }
        let fd = listener.socket.as_raw_fd();
        self.ring.accept(tag::accept(slot), fd);
    }

    pub(super) fn finish_accept(&mut self, slot: u32, result: Result<u64, i32>) {
        let listener = self
            .listeners
            .get(slot)
            .expect("a listener outlives its accepts");
        let closing = listener.closing;
        match result {
            Ok(socket) if listener.greeter.is_some() => {
                let greeter = listener.greeter.as_ref().expect("just seen");
                greeter(ring::accepted(socket));
            }
            Ok(socket) => {
                let only = match &listener.scope {
                    ListenerScope::All | ListenerScope::Network | ListenerScope::Rings(_) => None,
                    ListenerScope::Volume(name) => Some(name.clone()),
                };
                self.welcome(Arrival::plain(ring::accepted(socket)), only);
            }
            Err(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => {}
            Err(_) if closing => {}
            Err(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                tracing::warn!("cannot accept a client: {}", cause(&error));
                let later = self.now.plus_millis(RETRY_MILLIS);
                self.timers.set(later, Alarm::Accept(slot));
                return;
            }
        }
        self.accept(slot);
    }
}
