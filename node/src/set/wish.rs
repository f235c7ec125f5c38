//! How many copies a unit is to have, and the host that is to have one besides.
//!
//! A host to which the guest of a unit is about to move is its standby: with a copy there, nothing
//! has to be brought to the origin when it moves. Always true: a standby adds at most one member to
//! those that are wanted, and no unit is degraded for want of it; of members that are too many it
//! is the last to be left out. Deliberately absent: whether a guest moves, which the host knows.

use crate::record::{MEMBERS_MAX, Member};
use engine::types::Uuid;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wish {
    /// On other hosts.
    pub copies: u8,
    pub standby: Option<Uuid>,
    /// A backup window; see [`super::window`].
    pub window: bool,
}

impl Wish {
    pub fn new(copies: u8) -> Wish {
        Wish {
            copies,
            standby: None,
            window: false,
        }
    }

    pub fn want(&mut self, copies: u8) {
        self.copies = copies.min(MEMBERS_MAX as u8 - 1);
    }

    /// It is to have copies at all.
    pub fn is_any(&self) -> bool {
        self.copies > 0 || self.standby.is_some()
    }

    /// Another host is to have a copy beside these members.
    pub fn lacks(&self, members: &[Member]) -> bool {
        let there = |host: &Uuid| members.iter().any(|member| member.host == *host);
        let standby = self.standby.as_ref().is_some_and(|host| !there(host));
        let wanted = members.len() <= usize::from(self.copies);
        (wanted || standby) && members.len() < MEMBERS_MAX
    }

    /// This host may be the next member.
    pub fn takes(&self, members: &[Member], host: Uuid) -> bool {
        let wanted = members.len() <= usize::from(self.copies);
        (wanted || self.standby == Some(host)) && members.len() < MEMBERS_MAX
    }

    /// The member to leave out, of those that are too many.
    pub fn spare(&self, members: &[Member], own: &Member) -> Option<usize> {
        let standby = usize::from(self.standby.is_some());
        if members.len() <= usize::from(self.copies) + 1 + standby {
            return None;
        }
        let other = |member: &Member| member != own && Some(member.host) != self.standby;
        members.iter().rposition(other)
    }
}
