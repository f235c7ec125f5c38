//! Watching guests over QMP, so that a guest that starts again finds a clean disk.
//!
//! ```text
//! RESET ─▶ note it ─▶ stop ─▶ reset the overlay ─▶ system_reset ─▶ cont ─▶ forget the note
//! ```
//!
//! When QEMU says RESET the machine has drained its disks, so no write of the guest's former life
//! is under way; but the guest runs on, and its firmware may have read the old disk. So it is
//! stopped, and when the overlay is gone, durably, the machine is reset once more: what was read
//! or written in between goes with both, and the guest sees only the clean disk. Another design
//! held the guest's requests without stopping it; then its firmware had the old boot sector.
//!
//! A machine that is reset with its overlays empty has read nothing old, and is left alone: SeaBIOS
//! resets the machine once more when it finds that it has run before, and would do so for ever if
//! each time it was interrupted.
//!
//! Always true: the note is durable before the guest is stopped, and says how far we are, so a
//! daemon that dies in between goes on where it was, and no guest stays stopped; a guest that was
//! not running before does not run afterwards. A guest that switches itself off has ended: the
//! next one to come finds the disk reset. One that is ended from outside has not, nor has one
//! whose monitor is not there: resets that nobody saw do nothing. Deliberately absent: how QMP is
//! read (`qmp`), and anything on the data path; this is one thread for all volumes.

use super::VolumeSettings;
use crate::cachedev::sync_directory;
use crate::qmp::{Lines, Message, command};
use crate::shard::control::Handle;
use engine::event::{Command, ResetOn};
use engine::types::{Policy, VolumeId};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::{self, Runtime};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Pause before a monitor that is not there, or went away, is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// QEMU drains its disks before it answers `stop`.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Messages that one read may bring; a monitor that says more at once is none.
const READ_BYTES: usize = 4096;

/// What is known of the guest of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    pub path: PathBuf,
    pub connected: bool,
    /// Overlays thrown away because the guest started again, since the daemon started.
    pub resets: u64,
}

/// A mutex, not a message: held to copy or to set plain data only.
type Known = Arc<Mutex<BTreeMap<String, Watched>>>;

fn known(all: &Known) -> MutexGuard<'_, BTreeMap<String, Watched>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All guests that are watched. The thread starts with the first one.
#[derive(Default)]
pub(super) struct Watches {
    running: Mutex<Option<Running>>,
    known: Known,
}

struct Running {
    runtime: runtime::Handle,
    /// One for each monitor: it takes one client at a time, and a guest may have several disks.
    tasks: BTreeMap<PathBuf, AbortHandle>,
    volumes: BTreeMap<String, (PathBuf, VolumeId)>,
}

impl Watches {
    pub(super) fn shown(&self) -> BTreeMap<String, Watched> {
        known(&self.known).clone()
    }

    /// All that it takes to watch the guest of a volume is there, if it is to be watched.
    pub(super) fn prepare(&self, settings: &VolumeSettings) -> io::Result<()> {
        let mut running = self.running();
        if monitor_of(settings).is_some() && running.is_none() {
            *running = Some(start()?);
        }
        Ok(())
    }

    /// Begins to watch the guest of a volume, if it is to be watched; ends an earlier watch.
    pub(super) fn set(
        &self,
        volume: VolumeId,
        settings: &VolumeSettings,
        shard: &Handle,
        state_dir: &Path,
    ) -> io::Result<()> {
        let name = &settings.name;
        self.end(name, shard, state_dir);
        let Some(path) = monitor_of(settings) else {
            return Ok(());
        };
        let mut running = self.running();
        if running.is_none() {
            *running = Some(start()?);
        }
        let running = running.as_mut().expect("just started");
        let watched = Watched {
            path: path.clone(),
            ..Watched::default()
        };
        known(&self.known).insert(name.clone(), watched);
        let watched = (path.clone(), volume);
        running.volumes.insert(name.clone(), watched);
        self.begin(running, &path, shard, state_dir);
        Ok(())
    }

    pub(super) fn end(&self, name: &str, shard: &Handle, state_dir: &Path) {
        let mut running = self.running();
        let Some(running) = running.as_mut() else {
            return;
        };
        known(&self.known).remove(name);
        if let Some((path, _)) = running.volumes.remove(name) {
            self.begin(running, &path, shard, state_dir);
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a monitor for all volumes that name it now. An earlier watch of it ends wherever
    /// it is; its note says where to go on.
    fn begin(&self, running: &mut Running, path: &Path, shard: &Handle, state_dir: &Path) {
        if let Some(task) = running.tasks.remove(path) {
            task.abort();
        }
        let volumes = running.volumes.iter();
        let volumes = volumes.filter(|(_, (other, _))| other == path);
        let volumes: Vec<_> = volumes
            .map(|(name, (_, volume))| (name.clone(), *volume))
            .collect();
        if volumes.is_empty() {
            return;
        }
        let watch = Watch {
            path: path.to_owned(),
            volumes,
            shard: shard.clone(),
            note: Note::of(state_dir, path),
            known: self.known.clone(),
        };
        let task = running.runtime.spawn(watch.run());
        running.tasks.insert(path.to_owned(), task.abort_handle());
    }
}

/// The monitor of a guest that is to be watched.
fn monitor_of(settings: &VolumeSettings) -> Option<PathBuf> {
    let wanted = settings.policy == Policy::Ephemeral && settings.reset_on == ResetOn::GuestReset;
    settings.qmp.clone().filter(|_| wanted)
}

fn start() -> io::Result<Running> {
    let runtime: Runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("tenuto-qmp".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(Running {
        runtime: handle,
        tasks: BTreeMap::new(),
        volumes: BTreeMap::new(),
    })
}

/// How far the reset of a guest is, in a file that outlives the daemon.
struct Note(PathBuf);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The overlay has to go. `running`: the guest ran, and has to run again.
    Renew { running: bool },
    /// All is done but to let the guest go on.
    Continue,
}

impl Note {
    fn of(state_dir: &Path, monitor: &Path) -> Note {
        let name = monitor.to_string_lossy();
        let name = name.replace('+', "++").replace('/', "+-");
        Note(state_dir.join("qmp").join(name))
    }

    fn read(&self) -> Option<Step> {
        match std::fs::read_to_string(&self.0).ok()?.trim() {
            "continue" => Some(Step::Continue),
            "renew" => Some(Step::Renew { running: true }),
            "renew stopped" => Some(Step::Renew { running: false }),
            _ => None,
        }
    }

    fn write(&self, step: Step) -> io::Result<()> {
        let text = match step {
            Step::Continue => "continue\n",
            Step::Renew { running: true } => "renew\n",
            Step::Renew { running: false } => "renew stopped\n",
        };
        let directory = self.0.parent().unwrap_or(&self.0);
        std::fs::create_dir_all(directory)?;
        sync_directory(directory)?;
        let fresh = self.0.with_extension("new");
        let mut file = std::fs::File::create(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, &self.0)?;
        sync_directory(&self.0)
    }

    fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => sync_directory(&self.0),
        }
    }
}

/// The monitor of a guest, and the volumes that are its disks.
struct Watch {
    path: PathBuf,
    volumes: Vec<(String, VolumeId)>,
    shard: Handle,
    note: Note,
    known: Known,
}

impl Watch {
    async fn run(self) {
        let mut told = false;
        loop {
            let ended = self.session().await;
            let mut was = false;
            self.set(|watched| was |= std::mem::take(&mut watched.connected));
            if let Err(error) = ended
                && (was || !told)
            {
                let path = self.path.display();
                tracing::info!(%path, "QMP {path}: {error}; trying again");
                told = true;
            }
            sleep(RETRY).await;
        }
    }

    fn set(&self, mut change: impl FnMut(&mut Watched)) {
        let mut known = known(&self.known);
        for (name, _) in &self.volumes {
            known.get_mut(name).map(&mut change);
        }
    }

    /// One connection to its end.
    async fn session(&self) -> io::Result<()> {
        let stream = timeout(ANSWER_MAX, UnixStream::connect(&self.path)).await??;
        let mut monitor = Monitor::new(stream);
        timeout(ANSWER_MAX, monitor.greeted()).await??;
        monitor.execute("qmp_capabilities").await?;
        self.set(|watched| watched.connected = true);
        match self.note.read() {
            Some(Step::Renew { running }) => self.renew(&mut monitor, running).await?,
            Some(Step::Continue) => self.go_on(&mut monitor).await?,
            None => {}
        }
        loop {
            if std::mem::take(&mut monitor.shut_down) {
                let why = ResetOn::GuestReset;
                self.order(|volume| Command::Leave { volume, why }).await?;
            }
            if std::mem::take(&mut monitor.reset) && self.is_dirty().await? {
                let running = monitor.execute("query-status").await?;
                let running = running.unwrap_or(true);
                self.note.write(Step::Renew { running })?;
                self.renew(&mut monitor, running).await?;
                continue;
            }
            monitor.receive().await?;
        }
    }

    async fn is_dirty(&self) -> io::Result<bool> {
        let known = self.shard.snapshot_async().await;
        let known = known.map_err(io::Error::other)?.engine.volumes;
        let ours = |id| self.volumes.iter().any(|(_, volume)| *volume == id);
        Ok(known.iter().any(|it| ours(it.id) && it.dirty_bytes > 0))
    }

    /// Gives the guest a clean disk and starts it anew. May be done again from the start.
    async fn renew(&self, monitor: &mut Monitor, running: bool) -> io::Result<()> {
        monitor.execute("stop").await?;
        self.order(|volume| Command::Reset { volume }).await?;
        monitor.reset = false;
        monitor.execute("system_reset").await?;
        while !monitor.reset {
            timeout(ANSWER_MAX, monitor.receive()).await??;
        }
        monitor.reset = false;
        self.set(|watched| watched.resets += 1);
        for (name, _) in &self.volumes {
            tracing::info!(volume = %name, "volume {name}: reset, because its guest starts again");
        }
        if !running {
            return self.note.remove();
        }
        self.note.write(Step::Continue)?;
        self.go_on(monitor).await
    }

    async fn go_on(&self, monitor: &mut Monitor) -> io::Result<()> {
        monitor.execute("cont").await?;
        self.note.remove()
    }

    /// The same order for each disk of the guest.
    async fn order(&self, command: impl Fn(VolumeId) -> Command) -> io::Result<()> {
        for (_, volume) in &self.volumes {
            let done = self.shard.command_async(command(*volume)).await;
            done.map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// A session with QEMU. Events of the same kind count once.
struct Monitor {
    stream: UnixStream,
    lines: Lines,
    answers: Vec<Message>,
    greeted: bool,
    reset: bool,
    shut_down: bool,
    next: u64,
}

impl Monitor {
    fn new(stream: UnixStream) -> Monitor {
        Monitor {
            stream,
            lines: Lines::default(),
            answers: Vec::new(),
            greeted: false,
            reset: false,
            shut_down: false,
            next: 1,
        }
    }

    async fn greeted(&mut self) -> io::Result<()> {
        while !self.greeted {
            self.receive().await?;
        }
        Ok(())
    }

    /// Reads once; events are noted, answers kept.
    async fn receive(&mut self) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        let count = self.stream.read(&mut bytes).await?;
        if count == 0 {
            return Err(io::Error::other("QEMU has closed the monitor"));
        }
        let mut messages = Vec::new();
        let taken = self.lines.take(&bytes[..count], &mut messages);
        for message in messages {
            match message {
                Message::Greeting => self.greeted = true,
                Message::Reset => self.reset = true,
                Message::Shutdown { guest } => self.shut_down |= guest,
                Message::Return { .. } | Message::Error { .. } => self.answers.push(message),
                Message::Other => {}
            }
        }
        taken.map_err(io::Error::other)
    }

    /// Gives a command and waits for its answer; of `query-status`, whether the guest runs.
    async fn execute(&mut self, name: &str) -> io::Result<Option<bool>> {
        let ours = self.next;
        self.next += 1;
        self.answers.clear();
        let answer = async {
            self.stream.write_all(&command(name, ours)).await?;
            loop {
                for answer in self.answers.drain(..) {
                    match answer {
                        Message::Return { id, running } if id == Some(ours) => return Ok(running),
                        Message::Error { id, text } if id == Some(ours) => {
                            return Err(io::Error::other(format!("{name}: {text}")));
                        }
                        _ => {}
                    }
                }
                self.receive().await?;
            }
        };
        timeout(ANSWER_MAX, answer).await?
    }
}
