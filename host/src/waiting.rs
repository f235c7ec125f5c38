//! Clients that have come for a volume which is served on another host.
//!
//! Always true: a client counts from when it asks until it is let in or has gone. Deliberately
//! absent: what becomes of the volume, which is decided by who counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The count of one volume.
#[derive(Clone, Debug, Default)]
pub struct Waiting(Arc<AtomicUsize>);

/// One client that waits, until it is dropped.
#[derive(Debug)]
pub struct Ticket(Arc<AtomicUsize>);

impl Waiting {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    pub fn enter(&self) -> Ticket {
        self.0.fetch_add(1, Ordering::AcqRel);
        Ticket(self.0.clone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
