//! Looks every few seconds at what may be taken away from a running daemon.
//!
//! Owns one thread, its pace, the list of checks, and what they have found. Always true: what is
//! wrong is said once, in words that name the object, and shown for as long as it lasts; what was
//! put right by us is told as well; a check that waits for a storage that hangs holds up the other
//! checks and nothing else. Deliberately absent: what a dead file means for the data of a volume,
//! which the engine decides; and the admin socket, which `admin` makes again.

use super::sockets::Socket;
use super::volumes::Entry;
use super::{Daemon, Exports, VolumeError};
use crate::config::units::human_bytes;
use crate::origin::file::Sides;
use crate::shard::control::{Handle, ListenerScope, Stopped};
use crate::stage::Stage;
use engine::event::Command;
use engine::snapshot::VolumeSnapshot;
use engine::types::{Policy, VolumeId};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is removed is noticed within ten seconds.
const PERIOD: Duration = Duration::from_secs(5);
/// What was put right and is remembered for whoever tells of it.
const MENDED_MAX: usize = 64;
/// How long an orderly stop lets origins take what lies in a cache file that nobody will find.
const SAVE_WAIT: Duration = Duration::from_secs(20);
const SAVE_POLL: Duration = Duration::from_millis(50);

/// What one look has found.
#[derive(Default)]
pub(super) struct Findings {
    /// What is wrong and stays so until somebody acts.
    lasting: Vec<String>,
    /// What was wrong, and was put right.
    mended: Vec<String>,
}

/// What the looks have found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noticed {
    /// What is wrong now.
    pub lasting: Vec<String>,
    /// What was put right lately, with numbers that grow.
    pub mended: VecDeque<(u64, String)>,
}

/// A check, in the order of the list.
type Check = fn(&Daemon, &mut Findings);

const CHECKS: &[Check] = &[
    Daemon::look_at_cache,
    Daemon::look_at_stage,
    Daemon::look_at_sides,
    Daemon::look_at_sockets,
];

#[derive(Default)]
pub(super) struct Lookout {
    /// One look at a time; held over all checks, so by the thread and by orders only.
    looking: Mutex<()>,
    /// Held to copy or to set plain data.
    noticed: Mutex<Noticed>,
    /// The thread ends when this is dropped.
    thread: Mutex<Option<Sender<()>>>,
    cache_gone: Mutex<bool>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon {
    /// Starts to look, until the daemon is dropped or stops.
    pub fn keep_looking(self: &Arc<Daemon>) -> std::io::Result<()> {
        let (end, ended) = channel();
        *locked(&self.lookout.thread) = Some(end);
        let daemon = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("lookout".into());
        thread.spawn(move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let Some(daemon) = daemon.upgrade() else {
                    return;
                };
                daemon.look_around();
            }
        })?;
        Ok(())
    }

    /// Looks at everything now.
    pub fn look_around(&self) {
        let _alone = locked(&self.lookout.looking);
        let mut findings = Findings::default();
        for check in CHECKS {
            check(self, &mut findings);
        }
        let mut noticed = locked(&self.lookout.noticed);
        for line in findings.lasting.iter() {
            if !noticed.lasting.contains(line) {
                tracing::error!("{line}");
            }
        }
        noticed.lasting = findings.lasting;
        for line in findings.mended {
            tracing::warn!("{line}");
            let number = noticed.mended.back().map_or(0, |(number, _)| number + 1);
            noticed.mended.push_back((number, line));
            if noticed.mended.len() > MENDED_MAX {
                noticed.mended.pop_front();
            }
        }
    }

    pub fn noticed(&self) -> Noticed {
        locked(&self.lookout.noticed).clone()
    }

    /// A cache file that is not found under its name any more ends with this process. Until then
    /// it can be read, so what is dirty goes to the origins, and new writes go there too.
    fn look_at_cache(&self, findings: &mut Findings) {
        let Some(cache) = self.cache.upgrade() else {
            return;
        };
        let gone = !cache.is_named();
        let mut known = locked(&self.lookout.cache_gone);
        if gone != *known {
            let told = self.handle.command(Command::CacheGone { gone });
            if told.is_ok() {
                *known = gone;
            }
        }
        let path = cache.path.display();
        if gone {
            findings.lasting.push(format!(
                "cache {path}: was removed or replaced while it is in use; dirty data goes to its \
                 origins, and guests bypass the cache; put the file back, or stop the daemon and \
                 make a new cache"
            ));
        }
    }

    /// Whether the cache file was gone at the last look.
    pub fn is_cache_gone(&self) -> bool {
        *locked(&self.lookout.cache_gone)
    }

    /// A stage that nobody will find after a kill is made again, with what it holds.
    fn look_at_stage(&self, findings: &mut Findings) {
        let mut stage = locked(&self.stage);
        if stage.is_named() {
            return;
        }
        let path = stage.path().display().to_string();
        match self.renew_stage(&stage) {
            Ok(renewed) => {
                *stage = renewed;
                findings
                    .mended
                    .push(format!("stage {path}: was removed; it is made again"));
            }
            Err(why) => findings.lasting.push(format!(
                "stage {path}: was removed, and cannot be made again: {why}; until it is, a kill \
                 of the daemon loses acknowledged writes that no flush covers"
            )),
        }
    }

    fn renew_stage(&self, old: &Stage) -> Result<Stage, String> {
        let mut fresh = old.renew().map_err(|fault| fault.to_string())?;
        let file = fresh.file().map_err(|fault| fault.to_string())?;
        let moved = self.handle.move_stage(file);
        let moved = moved.map_err(|stopped| stopped.to_string())?;
        moved.map_err(|error| error.to_string())?;
        fresh.show().map_err(|fault| fault.to_string())?;
        Ok(fresh)
    }

    /// Ledgers and journals are looked at whenever they are synced; here those at rest.
    fn look_at_sides(&self, findings: &mut Findings) {
        let entries: Vec<Entry> = self.table().entries.values().cloned().collect();
        for entry in entries {
            let name = &entry.settings.name;
            let owns = entry.settings.policy == Policy::WriteBack && !entry.settings.read_only;
            if !owns {
                continue;
            }
            match self.renew_sides(name, entry.id) {
                Ok(made) => findings.mended.extend(made.into_iter().map(|path| {
                    let path = path.display();
                    format!("volume {name}: {path} was removed; it is written again")
                })),
                Err(why) => findings.lasting.push(format!("volume {name}: {why}")),
            }
        }
    }

    fn renew_sides(&self, name: &str, volume: VolumeId) -> Result<Vec<PathBuf>, String> {
        let stopped = |error: Stopped| error.to_string();
        let named = |sides: &Option<Sides>| sides.as_ref().is_none_or(Sides::are_named);
        if named(&self.handle.sides(volume).map_err(stopped)?) {
            return Ok(Vec::new());
        }
        // Whoever removes the volume in order removes them as well.
        let Ok(_claim) = self.claim(name) else {
            return Ok(Vec::new());
        };
        let found = match self.entry(name).is_some_and(|entry| entry.id == volume) {
            true => self.handle.sides(volume).map_err(stopped)?,
            false => None,
        };
        let Some(mut sides) = found else {
            return Ok(Vec::new());
        };
        let made = sides.renew().map_err(|fault| fault.to_string())?;
        if !made.is_empty() {
            self.handle.take_sides(volume, sides).map_err(stopped)?;
        }
        Ok(made)
    }

    fn look_at_sockets(&self, findings: &mut Findings) {
        for socket in self.sockets.gone() {
            let path = self.sockets.path(&socket);
            let path: &Path = &path;
            match self.listen_again(&socket) {
                Ok(true) => findings.mended.push(format!(
                    "socket {}: was removed; it is made again",
                    path.display()
                )),
                Ok(false) => {}
                Err(why) => findings.lasting.push(format!(
                    "socket {}: was removed, and cannot be made again: {why}",
                    path.display()
                )),
            }
        }
    }

    /// Makes a socket anew; who is connected stays. False where its volume is being changed.
    fn listen_again(&self, socket: &Socket) -> Result<bool, VolumeError> {
        let (name, scope, exports) = match socket {
            Socket::All => {
                let failed = |error: super::StartError| VolumeError::Settings(error.to_string());
                let listener = self.sockets.all().map_err(failed)?;
                self.handle.unlisten(ListenerScope::All)?;
                self.handle.listen(listener, ListenerScope::All)?;
                return Ok(true);
            }
            Socket::Volume(name) => {
                let scope = ListenerScope::Volume(name.clone());
                (name, scope, Exports::NBD)
            }
            Socket::Rings(name) => {
                let rings = Exports {
                    vhost_user: true,
                    nbd: false,
                };
                (name, ListenerScope::Rings(name.clone()), rings)
            }
        };
        let _claim = match self.claim(name) {
            Err(VolumeError::Changing(_)) => return Ok(false),
            claim => claim?,
        };
        // It may have been removed in order meanwhile.
        if !self.sockets.is_made(socket) {
            return Ok(false);
        }
        self.handle.unlisten(scope)?;
        self.listen(name, exports)?;
        Ok(true)
    }

    /// Before an orderly stop: what lies in a cache file that nobody will find any more goes to
    /// its origins, as far as they take it; what is lost is said.
    pub(super) fn save_from_removed_cache(&self) {
        *locked(&self.lookout.thread) = None;
        self.look_at_cache(&mut Findings::default());
        if !self.is_cache_gone() {
            return;
        }
        let owed = || {
            let mut dirty = dirty(&self.handle);
            dirty.retain(|volume| volume.policy != Policy::Ephemeral);
            dirty
        };
        let bytes = owed().iter().map(|volume| volume.dirty_bytes).sum();
        let bytes = human_bytes(bytes);
        tracing::warn!("the cache file was removed; bringing {bytes} to their origins first");
        let start = Instant::now();
        while !owed().is_empty() && start.elapsed() < SAVE_WAIT {
            std::thread::sleep(SAVE_POLL);
        }
        for volume in dirty(&self.handle) {
            let (name, bytes) = (&volume.name, human_bytes(volume.dirty_bytes));
            let what = match volume.policy {
                Policy::Ephemeral => "of its overlay".to_owned(),
                _ => format!("that have not reached {}", volume.origin),
            };
            tracing::error!(
                volume = %name,
                "volume {name}: {bytes} {what} are lost with the cache file"
            );
        }
    }
}

/// Volumes with data that only this host has.
fn dirty(handle: &Handle) -> Vec<VolumeSnapshot> {
    let volumes = handle.snapshot().map(|shown| shown.engine.volumes);
    let volumes = volumes.into_iter().flatten();
    volumes.filter(|volume| volume.dirty_bytes > 0).collect()
}
