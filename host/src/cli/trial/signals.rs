//! The user's wish to end a trial: SIGINT, SIGTERM, SIGHUP.
//!
//! Always true: the first signal only tells; one that comes while the trial ends says where the
//! data is and ends the process, as does an image that does not answer. Nothing acknowledged is
//! lost by that, as by any kill. Deliberately absent: keys, which `top` reads.

use crate::cli::{offline, report};
use crate::error::{Error, Result, cause};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long the stop of the daemon is waited for; it writes what is acknowledged to the log.
const STOP_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

pub struct Signals {
    told: Receiver<()>,
    came: Cell<bool>,
    /// What is said before the process ends. Locked, because the thread that reads it waits for
    /// signals and for nothing else, and the work that ends meanwhile cannot be asked.
    leave: Arc<Mutex<Option<Error>>>,
    /// The daemon has stopped, so that the command which is named finds the cache free.
    stopped: Arc<AtomicBool>,
}

impl Signals {
    /// Listens from now on, to the end of the process.
    pub fn listen(json: bool) -> Result<Signals> {
        let failed = |error| Error::failed(format!("signals: {}", cause(&error)));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let listen = |kind| signal(kind).map_err(failed);
        let kinds = {
            let _inside = runtime.enter();
            [
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
            ]
        };
        let (tell, told) = sync_channel(1);
        let leave = Arc::new(Mutex::new(None));
        let stopped = Arc::new(AtomicBool::new(false));
        let signals = Signals {
            told,
            came: Cell::new(false),
            leave: leave.clone(),
            stopped: stopped.clone(),
        };
        std::thread::spawn(move || {
            let error = runtime.block_on(serve(kinds, &tell, &leave));
            let begun = Instant::now();
            while !stopped.load(Ordering::SeqCst) && begun.elapsed() < STOP_MAX {
                std::thread::sleep(LOOK);
            }
            end_process(&error, json)
        });
        Ok(signals)
    }

    /// Whether one has come.
    pub fn came(&self) -> bool {
        self.come_within(Duration::ZERO)
    }

    /// Waits for one for so long.
    pub fn come_within(&self, time: Duration) -> bool {
        if !self.came.get() {
            self.came.set(self.told.recv_timeout(time).is_ok());
        }
        self.came.get()
    }

    /// From now on a signal ends the process with this error.
    pub fn leave_with(&self, error: Error) {
        *self.leave.lock().expect("no holder of this lock panics") = Some(error);
    }

    /// The daemon has ended.
    pub fn stopped(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

/// Returns what is said before the process ends, when a signal asks for it.
async fn serve(
    mut kinds: [Signal; 3],
    tell: &SyncSender<()>,
    leave: &Mutex<Option<Error>>,
) -> Error {
    let [interrupt, terminate, hang_up] = &mut kinds;
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
        let error = leave.lock().expect("no holder of this lock panics").clone();
        match error {
            // One that was told already says the same.
            None => drop(tell.try_send(())),
            Some(error) => return error,
        }
    }
}

/// Ends the process in the middle of a destage.
pub fn end_process(error: &Error, json: bool) -> ! {
    // Only sockets are in it; what is left of them is no harm.
    let _ = std::fs::remove_dir_all(offline::run_dir());
    report(error, json);
    std::process::exit(error.kind.exit_code().into())
}
