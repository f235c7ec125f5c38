//! What keeps a volume, or its dirty data, from going on.
//!
//! Always true: a volume that is fine has no reason why it is not. Deliberately absent: what is
//! found anew with each look ([`Volume::misfit`], [`Volume::origin_fails`]), and a cache device
//! that fails ([`super::Bypass`]).

use super::Volume;
use crate::snapshot::State;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    Fine,
    /// Dirty data does not reach the origin.
    Stalled(&'static str),
    /// Dirty data cannot be read.
    Damaged(&'static str),
    /// Going on would lose or invent data.
    Held(Option<&'static str>),
}

impl Volume {
    /// What is dirty is not looked at.
    pub fn state(&self) -> State {
        match self.condition {
            Condition::Fine => State::Clean,
            Condition::Stalled(_) => State::Stalled,
            Condition::Damaged(_) => State::Damaged,
            Condition::Held(_) => State::Held,
        }
    }

    pub fn reason(&self) -> Option<&'static str> {
        match self.condition {
            Condition::Fine => None,
            Condition::Stalled(why) | Condition::Damaged(why) => Some(why),
            Condition::Held(why) => why,
        }
    }

    /// Nothing is in its way any more.
    pub fn recover(&mut self) {
        self.condition = Condition::Fine;
    }

    /// The same of what keeps dirty data from the origin; damage stays.
    pub fn recover_if_stalled(&mut self) {
        if self.state() == State::Stalled {
            self.recover();
        }
    }

    pub fn stall_for(&mut self, why: &'static str) {
        assert!(!why.is_empty(), "an administrator needs a reason");
        self.condition = Condition::Stalled(why);
    }

    pub fn damage(&mut self, why: &'static str) {
        assert!(!why.is_empty(), "an administrator needs a reason");
        self.condition = Condition::Damaged(why);
    }

    pub fn hold(&mut self, why: Option<&'static str>) {
        self.condition = Condition::Held(why);
    }

    /// Dirty data does not reach its origin. What is worse stays.
    pub fn stall(&mut self, full: bool) {
        if matches!(self.state(), State::Damaged | State::Held) {
            return;
        }
        self.stall_for(match full {
            true => {
                "there is no space left for the data or its journal beside the image; make room \
                 there, and destage goes on by itself"
            }
            false => "the origin answers with errors; destage is tried again",
        });
    }

    /// The state that an administrator sees.
    pub fn shown_state(&self) -> State {
        match self.state() {
            _ if self.misfit().is_some() => State::Held,
            state @ (State::Held | State::Damaged | State::Stalled) => state,
            _ if self.owes() => State::Dirty,
            _ => State::Clean,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;

    #[test]
    fn an_origin_that_fails_hides_no_damage() {
        let mut volume = volume();
        volume.stall(false);
        assert_eq!(volume.state(), State::Stalled);
        volume.damage("it cannot be read");
        volume.stall(true);
        volume.recover_if_stalled();
        assert_eq!(
            (volume.state(), volume.reason()),
            (State::Damaged, Some("it cannot be read"))
        );
        volume.recover();
        assert_eq!((volume.state(), volume.reason()), (State::Clean, None));
    }
}
