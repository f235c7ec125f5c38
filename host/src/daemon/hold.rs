//! Why a volume is named but not served.
//!
//! Plain data. Always true: the reason names the volume. Deliberately absent: the ways out of it
//! ([`super::held`]).

use super::{VolumeError, VolumeSettings};
use engine::engine::{LedgerInfo, OpenError};
use std::fmt;

/// What holds a volume; each has its own way on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its dirty data is on another host, or gone.
    Owed,
    /// Its ledger or journal is damaged: there is no state to go on from.
    Damaged,
    /// Its image cannot be opened at present: missing, busy, or no disk. Nothing is lost by that.
    Unopened,
    /// The log has all but what went with the stage.
    StageLost,
    /// Its image is not the one that its dirty data or its journal belongs to.
    Image,
    /// Its image is not the one that its overlay lies on.
    Overlay,
    /// Another host of the cluster serves it, or none does.
    Away,
}

/// Why a volume must not be served.
#[derive(Clone, Debug)]
pub struct Hold {
    /// One line that names the volume.
    pub reason: String,
    pub why: Why,
    pub ledger: Option<LedgerInfo>,
    /// When the ledger was last written, by the clock of the origin.
    pub ledger_mtime_ns: Option<u64>,
}

impl Hold {
    pub(super) fn because(why: Why, reason: String) -> Hold {
        Hold {
            reason,
            why,
            ledger: None,
            ledger_mtime_ns: None,
        }
    }

    /// Why a volume is held that did not join, if that is for its data or its image. Anything else
    /// is no matter of one volume.
    pub(super) fn of(name: &str, error: VolumeError) -> Result<Hold, VolumeError> {
        match error {
            VolumeError::Held(hold) => Ok(*hold),
            VolumeError::Image(why)
            | VolumeError::InUse { message: why, .. }
            | VolumeError::Taken(why)
            | VolumeError::Origin(why)
            | VolumeError::Unfinished(why) => {
                let reason = match why.starts_with("volume ") {
                    true => why,
                    false => format!("volume {name}: {why}"),
                };
                Ok(Hold::because(Why::Unopened, reason))
            }
            error => Err(error),
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// A volume that is held.
#[derive(Clone, Debug)]
pub struct Held {
    pub settings: VolumeSettings,
    pub hold: Hold,
}

/// The engine names the volume itself where it knows the name.
pub(super) fn refused(name: &str, error: OpenError, damaged: bool) -> VolumeError {
    let text = error.to_string();
    let prefix = format!("volume {name}");
    let reason = match text.starts_with(&prefix) {
        true => text,
        false => format!("{prefix}: {text}"),
    };
    let why = match error {
        OpenError::Io(_) => return VolumeError::Origin(reason),
        OpenError::StageLost(_) => Why::StageLost,
        OpenError::Image(_) => Why::Image,
        _ if damaged => Why::Damaged,
        _ => Why::Owed,
    };
    VolumeError::Held(Box::new(Hold::because(why, reason)))
}
