//! What the daemon tells the service manager that started it, by sd_notify(3).
//!
//! Owns the socket that `NOTIFY_SOCKET` names, and the thread of the watchdog. Always true: a sign
//! of life is sent only after the shard has answered a question that was put to it for that
//! sign, so a loop that hangs sends none, and a device or an origin that hangs stops no sign,
//! because the loop waits for neither. Without a manager nothing is sent and no thread runs.
//! Deliberately absent: what is done about it; the manager ends the process and starts another.

use crate::admin::{Admin, View};
use crate::config::units;
use crate::error::cause;
use crate::ring::monotonic_ns;
use crate::shard::control::Handle;
use engine::snapshot::{CacheState, State};
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often the line of `systemctl status` is made anew.
const STATUS_EVERY: Duration = Duration::from_secs(10);
/// Signs of life in the time that the manager waits for one: two may be late.
const SIGNS: u32 = 3;
/// A manager that waits a shorter time than this is asked too much of.
const SIGN_PAUSE_MIN: Duration = Duration::from_millis(10);

/// The service manager, if there is one. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Supervisor {
    socket: Option<OsString>,
    /// How long it waits for a sign of life; `None` = it does not.
    patience: Option<Duration>,
}

impl Supervisor {
    pub fn from_environment() -> Supervisor {
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let ours = env::var_os("WATCHDOG_PID").is_none()
            || number("WATCHDOG_PID") == Some(u64::from(std::process::id()));
        let patience = number("WATCHDOG_USEC").filter(|micros| ours && *micros > 0);
        Supervisor {
            socket: env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()),
            patience: patience.map(Duration::from_micros),
        }
    }

    pub fn starting(&self) {
        self.say("STATUS=opening the cache and its volumes");
    }

    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// The time of the order lets a manager that sent SIGHUP tell this answer from an older one.
    pub fn reloading(&self) {
        let micros = monotonic_ns() / 1000;
        let status = "STATUS=applying the configuration";
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\n{status}"));
    }

    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=stopping; dirty data stays in the cache");
    }

    /// One line for `systemctl status`.
    pub fn show(&self, admin: &Admin) {
        if self.socket.is_some()
            && let Ok(view) = admin.view()
        {
            self.say(&format!("STATUS={}", summary(&view)));
        }
    }

    fn say(&self, state: &str) {
        let Some(socket) = &self.socket else {
            return;
        };
        if let Err(error) = send(socket, state) {
            tracing::warn!("{}: {}", socket.display(), cause(&error));
        }
    }

    /// Starts to send signs of life, until the shard has ended.
    pub fn watch(&self, shard: Handle, admin: Arc<Admin>) -> io::Result<()> {
        if self.socket.is_none() {
            return Ok(());
        }
        let supervisor = self.clone();
        thread::Builder::new()
            .name("tenuto-watchdog".into())
            .spawn(move || supervisor.run(&shard, &admin))?;
        Ok(())
    }

    fn run(&self, shard: &Handle, admin: &Admin) {
        let pause = self.patience.map_or(STATUS_EVERY, |patience| {
            (patience / SIGNS).clamp(SIGN_PAUSE_MIN, STATUS_EVERY)
        });
        let mut shown = Instant::now();
        // Blocks for as long as the loop does not turn.
        while shard.ping().is_ok() {
            if self.patience.is_some() {
                self.say("WATCHDOG=1");
            }
            if shown.elapsed() >= STATUS_EVERY {
                shown = Instant::now();
                self.show(admin);
            }
            thread::sleep(pause);
        }
    }
}

fn send(path: &OsString, state: &str) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

/// How many volumes are in which state, and what this host owes.
fn summary(view: &View) -> String {
    let dirty: u64 = view.shown().map(|volume| volume.dirty_bytes).sum();
    let dirty = units::human_bytes(dirty);
    let volumes = view.shown().count();
    let mut line = format!("{volumes} volumes, {dirty} not at their origins");
    for state in [State::Stalled, State::Held, State::Damaged] {
        let number = view.shown().filter(|volume| volume.state == state).count();
        if number > 0 {
            line.push_str(&format!(", {number} {}", state.name()));
        }
    }
    line.push_str(match view.look.engine.cache_state {
        CacheState::Good => "",
        CacheState::Failing => "; the cache device fails",
        CacheState::Failed => "; the cache device has failed",
        CacheState::Gone => "; the cache file was removed",
    });
    line
}
