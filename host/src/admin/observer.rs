//! One thread that takes a look a second, for the history, the events and the advice.
//!
//! Owns the thread and its pace. Always true: it only looks, the way `status` does; nothing waits
//! for it, and a second in which the daemon has no time to be looked at is a gap in the history.
//! Deliberately absent: anything on the data path; the shard counts since its start and no more,
//! and how counters grow is found by comparing.

use super::Admin;
use super::changes::Changes;
use super::events::{Kind, Notice, Severity, unix_ms_now};
use crate::error::{Error, Result, cause};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(1);

/// The running thread. [`Observer::stop`] ends it.
pub struct Observer {
    admin: Arc<Admin>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Observer {
    /// The first look is taken before this returns: whoever asks finds the start told.
    pub fn start(admin: Arc<Admin>) -> Result<Observer> {
        let mut watching = Watching {
            admin: admin.clone(),
            changes: Changes::default(),
            last: None,
        };
        watching.look();
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("observer".into())
            .spawn(move || {
                let mut next = Instant::now() + PERIOD;
                loop {
                    let wait = next.saturating_duration_since(Instant::now());
                    if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    watching.look();
                    // What was missed stays missed.
                    next = (next + PERIOD).max(Instant::now());
                }
            })
            .map_err(|error| Error::failed(format!("observer thread: {}", cause(&error))))?;
        Ok(Observer {
            admin,
            stop,
            thread,
        })
    }

    /// Ends the thread; the last event says so.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
        let words = "stops in order; dirty data stays in the cache";
        self.admin.events.settle_all(unix_ms_now());
        self.admin
            .events
            .tell(Notice::host(Severity::Info, Kind::Stop, words));
    }
}

struct Watching {
    admin: Arc<Admin>,
    changes: Changes,
    last: Option<Instant>,
}

impl Watching {
    fn look(&mut self) {
        // A daemon that cannot be looked at is stopping, or says so itself.
        let Ok(view) = self.admin.view() else {
            return;
        };
        let (now, now_ms) = (Instant::now(), unix_ms_now());
        let events = &self.admin.events;
        self.changes
            .look(&view, &mut |notice| events.tell_at(now_ms, notice));
        events.settle(now_ms);
        let since = self.last.replace(now);
        let seconds = since.map_or(PERIOD, |last| now - last).as_secs_f64();
        let unix_seconds = (now_ms / 1000) as u32;
        self.admin.history.add(&view, unix_seconds, seconds);
        self.admin.learn(&view, seconds);
    }
}
