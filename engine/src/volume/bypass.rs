//! How far a volume has turned away from a cache device that fails.
//!
//! Always true: writes wait in *Emergency* and *Release*.
//! Deliberately absent: the device, and the way (`core::bypass`).

use super::Volume;

/// How far a volume has turned away from a failed device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bypass {
    #[default]
    None,
    Emergency,
    /// `back`: when the device is good again the volume becomes write-back.
    Release {
        back: bool,
    },
    Bypassed,
    Held,
}

impl Bypass {
    /// New writes wait.
    pub fn holds_writes(self) -> bool {
        matches!(self, Bypass::Emergency | Bypass::Release { .. })
    }

    /// What the log has is being brought from a device that fails, or cannot be.
    pub fn is_rescue(self) -> bool {
        matches!(self, Bypass::Emergency | Bypass::Held)
    }

    /// The image is written past the log, or is about to be.
    pub fn is_past_log(self) -> bool {
        matches!(self, Bypass::Release { .. } | Bypass::Bypassed)
    }

    pub(crate) fn reason(self, gone: bool) -> Option<&'static str> {
        match self {
            Bypass::None => None,
            Bypass::Emergency | Bypass::Release { .. } if gone => {
                Some("the cache file was removed; what it holds is being brought to the origin")
            }
            Bypass::Bypassed if gone => {
                Some("the cache file was removed; guests read and write the origin")
            }
            Bypass::Emergency | Bypass::Release { .. } => {
                Some("the cache device fails; what it holds is being brought to the origin")
            }
            Bypass::Bypassed => Some("the cache device fails; guests read and write the origin"),
            Bypass::Held => {
                Some("the cache device fails, and dirty data that nothing else has is on it")
            }
        }
    }
}

impl Volume {
    /// How far it has turned away from the device.
    pub fn bypass(&self) -> Bypass {
        self.bypass
    }

    /// It goes by its log, as far as it has one.
    pub fn is_with_log(&self) -> bool {
        self.bypass == Bypass::None
    }

    /// The device fails: all that is in the log alone goes to the origin.
    pub fn enter_bypass(&mut self) {
        assert!(self.is_with_log(), "it turns away once");
        assert!(
            self.is_ready() && !self.read_only,
            "it has something to bring"
        );
        self.bypass = Bypass::Emergency;
    }

    /// Its ledger is to say that nothing of it is in the log alone.
    pub fn begin_release(&mut self, back: bool) {
        assert!(!self.is_dirty(), "the origin has what the log has");
        if self.relies_on_peers() {
            self.replication.answer_at_origin(true);
        }
        self.bypass = Bypass::Release { back };
    }

    /// The ledger says so.
    pub fn bypass_is_released(&mut self) {
        let Bypass::Release { back } = self.bypass else {
            unreachable!("a release was under way");
        };
        assert!(!self.is_dirty(), "the origin has what the log had");
        self.bypass = if back { Bypass::Bypassed } else { Bypass::None };
    }

    /// What its destage needs cannot be read, and nothing else has it.
    pub fn hold_in_bypass(&mut self) {
        assert!(
            self.bypass == Bypass::Emergency,
            "that reads from the device"
        );
        self.bypass = Bypass::Held;
        self.hold(None);
    }

    /// It goes by its log again, or by the way of its policy.
    pub fn leave_bypass(&mut self) {
        self.bypass = Bypass::None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;
    use crate::snapshot::State;

    #[test]
    fn a_volume_is_past_its_log_when_the_ledger_says_so_and_not_before() {
        let mut volume = volume();
        volume.has_come();
        volume.open();
        volume.enter_bypass();
        volume.begin_release(true);
        assert!(volume.bypass().holds_writes());
        volume.bypass_is_released();
        assert_eq!(volume.bypass(), Bypass::Bypassed);
        volume.leave_bypass();
        assert!(volume.is_with_log());
    }

    #[test]
    fn one_that_cannot_bring_what_it_has_is_held() {
        let mut volume = volume();
        volume.has_come();
        volume.open();
        volume.enter_bypass();
        volume.hold_in_bypass();
        assert_eq!(volume.state(), State::Held);
    }
}
