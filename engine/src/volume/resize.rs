//! A change of size that is under way.
//!
//! Always true: a volume is never larger than its image.
//! Deliberately absent: the steps (`core::resize`).

use super::Volume;
use crate::format::ledger::Progress;
use crate::types::{RequestId, Time};

/// A change of size that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Resize {
    pub(crate) request: RequestId,
    pub(crate) old_bytes: u64,
    pub(crate) new_bytes: u64,
    pub(crate) step: Step,
    /// Of an image that allocates: it has room for the new size, or has given back all behind it.
    pub(crate) has_room: bool,
    /// The disk is cut off from here on, and will be from there on.
    pub(crate) cut_end: u64,
    pub(crate) cut_next: u64,
    /// Its header may say the new size.
    pub(crate) header_sent: bool,
    pub(crate) piece: Option<u32>,
    pub(crate) retry_at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Wait,
    /// A plan makes room, or the header is written again after a while.
    Room,
    HeaderRead,
    HeaderWrite,
    HeaderSync,
    Set,
    Name,
}

impl Resize {
    /// Who has ordered it.
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// The size to which the volume goes back if its image does not get the new one.
    pub fn bytes_to_return_to(&self) -> u64 {
        match self.step {
            Step::Name => 0,
            _ => self.old_bytes,
        }
    }
}

impl Volume {
    /// No destage may begin.
    pub fn holds_destage(&self) -> bool {
        let changes = self.resize.is_some_and(|resize| resize.step != Step::Name);
        self.image.rebase.is_some() || changes && !self.is_between_states()
    }

    /// A destage in place was cut short: another one has to reach its end first.
    pub(crate) fn is_between_states(&self) -> bool {
        let ledger = self.ledger_writer.as_ref().map(|it| &it.ledger);
        self.map.is_some() && ledger.is_some_and(|it| matches!(it.progress, Progress::Cut(_)))
    }
}
