//! Whether a volume is there, and whether it goes.
//!
//! ```text
//! Known ─attach─▶ Attached ◀─close─ open ─▶ Ready
//!   ▲                └───────── let go ───────┘
//! none ─suspend─▶ Suspending ─▶ (let go)
//! none, Suspending ─detach─▶ Detaching ─▶ files removed ─▶ (forgotten)
//! ```
//!
//! Always true: requests are taken only of a volume that is attached; files are removed only of one
//! that is being detached; who detaches one that is being suspended does not take the other order
//! away. Deliberately absent: orders that a volume comes back from as it was, which have types of
//! their own ([`super::Switch`], [`super::Resize`], [`super::Quiesce`], [`super::Rebase`]): several
//! of them may be under way together.

use super::Volume;
use crate::types::{Policy, RequestId};

/// How far it is that ledger and journal of a volume that goes are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    No,
    Ordered,
    /// Or they could not be removed.
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    /// Only the log knows it.
    #[default]
    Known,
    /// A host has opened its origin; requests wait.
    Attached,
    /// Requests are taken.
    Ready,
}

/// Who has ordered it to go.
#[derive(Clone, Copy, Debug, Default)]
enum Leaving {
    #[default]
    No,
    Suspending(RequestId),
    Detaching {
        request: RequestId,
        suspending: Option<RequestId>,
        removal: Removal,
    },
}

/// The life cycle of a volume.
#[derive(Default)]
pub struct Life {
    presence: Presence,
    leaving: Leaving,
    /// Who has ordered that its overlay becomes the content of its image.
    committing: Option<RequestId>,
}

impl Volume {
    /// A host has opened its origin; else only the log knows it.
    #[inline]
    pub fn is_attached(&self) -> bool {
        self.life.presence != Presence::Known
    }

    /// Requests are taken; before, they wait.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.life.presence == Presence::Ready
    }

    pub(super) fn has_come(&mut self) {
        assert!(!self.is_attached(), "a volume is attached once");
        self.life.presence = Presence::Attached;
    }

    /// Requests are taken from now on.
    pub fn open(&mut self) {
        assert!(
            self.is_attached(),
            "what only the log knows takes no requests"
        );
        self.life.presence = Presence::Ready;
    }

    /// Requests wait from now on.
    pub fn close(&mut self) {
        assert!(
            self.is_attached(),
            "what only the log knows takes no requests"
        );
        self.life.presence = Presence::Attached;
    }

    /// Its files are let go, so that it comes with others. Its requests go on waiting.
    pub(super) fn steps_back(&mut self) {
        assert!(self.is_attached() && !self.goes(), "it was there");
        self.life.presence = Presence::Known;
    }

    pub fn is_detaching(&self) -> bool {
        self.detach_order().is_some()
    }

    /// Who has ordered that it is forgotten.
    pub fn detach_order(&self) -> Option<RequestId> {
        match self.life.leaving {
            Leaving::Detaching { request, .. } => Some(request),
            Leaving::No | Leaving::Suspending(_) => None,
        }
    }

    pub fn begin_detach(&mut self, request: RequestId) {
        assert!(!self.is_detaching(), "a volume goes once");
        self.life.leaving = Leaving::Detaching {
            request,
            suspending: self.suspend_order(),
            removal: Removal::No,
        };
    }

    /// Of its ledger and its journal.
    pub fn removal(&self) -> Removal {
        match self.life.leaving {
            Leaving::Detaching { removal, .. } => removal,
            Leaving::No | Leaving::Suspending(_) => Removal::No,
        }
    }

    /// They are being removed, or are gone by now.
    pub fn remove(&mut self, to: Removal) {
        let Leaving::Detaching { removal, .. } = &mut self.life.leaving else {
            unreachable!("only a volume that goes loses its files");
        };
        let before = core::mem::replace(removal, to);
        assert!(
            (before, to) == (Removal::No, Removal::Ordered)
                || (before, to) == (Removal::Ordered, Removal::Done),
            "files are removed once"
        );
    }

    pub fn is_suspending(&self) -> bool {
        self.suspend_order().is_some()
    }

    /// Who has ordered that its files are let go.
    pub fn suspend_order(&self) -> Option<RequestId> {
        match self.life.leaving {
            Leaving::Suspending(request) => Some(request),
            Leaving::Detaching { suspending, .. } => suspending,
            Leaving::No => None,
        }
    }

    pub fn begin_suspend(&mut self, request: RequestId) {
        assert!(
            self.is_attached() && matches!(self.life.leaving, Leaving::No),
            "a volume that is there, and stays, can be suspended"
        );
        self.life.leaving = Leaving::Suspending(request);
    }

    /// It stays: who has ordered otherwise.
    pub fn give_up_suspend(&mut self) -> RequestId {
        let request = self.suspend_order().expect("it was ordered");
        match &mut self.life.leaving {
            Leaving::Detaching { suspending, .. } => *suspending = None,
            leaving => *leaving = Leaving::No,
        }
        request
    }

    /// Its files are let go: only the log knows it from now on.
    pub fn let_go(&mut self) -> RequestId {
        let request = self.suspend_order().expect("it was ordered");
        assert!(self.is_attached(), "what is let go of was there");
        match &mut self.life.leaving {
            Leaving::Detaching { suspending, .. } => *suspending = None,
            leaving => *leaving = Leaving::No,
        }
        self.life.presence = Presence::Known;
        request
    }

    /// It goes, for good or for a while.
    pub fn goes(&self) -> bool {
        !matches!(self.life.leaving, Leaving::No)
    }

    /// Its overlay is becoming the content of its image.
    pub fn is_committing(&self) -> bool {
        self.life.committing.is_some()
    }

    pub fn order_commit(&mut self, request: RequestId) {
        let before = self.life.committing.replace(request);
        assert!(before.is_none(), "one commit at a time");
    }

    /// The commit has ended, or is given up.
    pub fn take_commit(&mut self) -> Option<RequestId> {
        self.life.committing.take()
    }

    /// It was attached to be committed, and has its image alone.
    pub fn may_commit(&self) -> bool {
        self.policy == Policy::Ephemeral && self.has_ledger()
    }

    /// Its commit is decided, and goes to an image that is not raw.
    pub fn applies_commit(&self) -> bool {
        let decided = self.pending_journal().is_some_and(|it| it.plan);
        self.is_committing() && decided && self.misfit().is_none()
    }
    /// It is not there for orders: not attached, on its way out, or being committed.
    pub fn is_gone(&self) -> bool {
        !self.is_attached() || self.goes() || self.is_committing()
    }

    /// Ledger and journal are gone, or could not be removed; the data is at the origin anyway.
    pub(crate) fn removed(&mut self, ok: bool) {
        if !ok {
            self.counters.origin.errors += 1;
        }
        assert!(self.is_detaching() && self.removal() == Removal::Ordered);
        // A guest may have read from it meanwhile.
        self.remove(Removal::Done);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;
    use crate::types::ConnectionId;

    fn request(number: u32) -> RequestId {
        RequestId {
            connection: ConnectionId(1),
            number,
        }
    }

    #[test]
    fn a_volume_that_is_suspended_and_then_detached_answers_both() {
        let mut volume = volume();
        assert!(volume.is_gone() && !volume.goes());
        volume.has_come();
        volume.open();
        volume.begin_suspend(request(1));
        volume.begin_detach(request(2));
        assert_eq!(volume.let_go(), request(1));
        assert!(!volume.is_attached() && !volume.is_suspending());
        assert_eq!(volume.detach_order(), Some(request(2)));
    }

    #[test]
    fn files_are_removed_only_of_a_volume_that_goes() {
        let mut volume = volume();
        assert_eq!(volume.removal(), Removal::No);
        volume.begin_detach(request(1));
        volume.remove(Removal::Ordered);
        volume.remove(Removal::Done);
        assert_eq!(volume.removal(), Removal::Done);
    }
}
