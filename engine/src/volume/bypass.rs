//! How far a volume has turned away from a cache device that fails.
//!
//! Always true: writes wait in *Emergency* and *Release*.
//! Deliberately absent: the device, and the way (`core::bypass`).

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
