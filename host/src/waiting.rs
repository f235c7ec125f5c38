//! Clients that have come for a volume which is served on another host.
//!
//! Always true: a client counts from when it asks until it is let in or has gone. Deliberately
//! absent: what becomes of the volume, which is decided by who counts them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

#[derive(Default)]
struct Inner {
    count: AtomicUsize,
    /// Called for each client that comes; it does not wait.
    told: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The count of one volume.
#[derive(Clone, Default)]
pub struct Waiting(Arc<Inner>);

/// One client that waits, until it is dropped.
pub struct Ticket(Arc<Inner>);

impl Waiting {
    pub fn count(&self) -> usize {
        self.0.count.load(Ordering::Acquire)
    }

    /// Who counts is told of each client; the first one to say so is.
    pub fn tell(&self, told: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.told.set(Box::new(told));
    }

    pub fn enter(&self) -> Ticket {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        if let Some(told) = self.0.told.get() {
            told();
        }
        Ticket(self.0.clone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}
