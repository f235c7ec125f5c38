//! A member of a pool, as far as its clients matter.
//!
//! A client of NBD that says goodbye has ended. A guest on rings may only sleep: the next one says
//! with its first ring whether it goes on. Always true: who comes to a member that is due, after
//! the end of a client or on rings, waits until it is known with which image. Deliberately absent:
//! which members are due, and what follows; see [`crate::daemon`].

use crate::pool::note::Note;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a pool is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A client came where none was.
    Came,
    /// The last one has ended; `wait`: those who come now wait.
    Ended { wait: bool },
    /// The last one had rings, which have stopped in order.
    Stopped,
    /// A guest with rings waits; it goes on with what it did before, or begins.
    Waits { goes_on: bool },
}

pub struct Pooled {
    pub note: Note,
    /// Its next guest is to find another image.
    pub due: Arc<AtomicBool>,
    /// Does not wait.
    pub told: Box<dyn Fn(Happened) + Send>,
}

impl Pooled {
    /// A client comes where none is.
    pub(super) fn client_comes(&self) {
        self.note.write();
        (self.told)(Happened::Came);
    }

    pub(super) fn is_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    /// A guest comes with its first ring, and waits.
    pub(super) fn guest_waits(&self, goes_on: bool) {
        (self.told)(Happened::Waits { goes_on });
    }

    /// The last client has said goodbye. True if those who come now have to wait.
    pub(super) fn client_ended(&self, rings: bool) -> bool {
        if rings {
            (self.told)(Happened::Stopped);
            return false;
        }
        self.note.remove();
        let wait = self.is_due();
        (self.told)(Happened::Ended { wait });
        wait
    }
}
