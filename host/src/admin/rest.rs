//! Snapshots of images while their guests go on.

use super::{Admin, Outcome, find, refuse_held};
use crate::config::keys::check_name;
use crate::error::{Error, Result};
use std::time::SystemTime;

impl Admin {
    /// Freezes what the image of a volume has now; without a name the time is the name.
    pub fn snapshot(&self, name: &str, snapshot: Option<&str>, plain: bool) -> Result<Outcome> {
        let snapshot = snapshot.map_or_else(name_by_time, str::to_owned);
        check_name(&snapshot).map_err(|why| {
            let right = why.right;
            let message = format!("volume {name}: {snapshot:?} is no name of a snapshot; {right}");
            Error::usage(message).about(name)
        })?;
        let look = self.look()?;
        refuse_held(&look, name)?;
        find(&look, name)?;
        let frozen = self.machine.snapshot(name, &snapshot, plain)?;
        let notes = frozen.iter().map(|path| {
            let path = path.display();
            format!("{path}: has what was written up to now; nothing writes it any more")
        });
        Ok(Outcome {
            notes: notes.collect(),
        })
    }
}

/// As `20261126T213000Z`.
pub(super) fn name_by_time() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    time.replace(['-', ':'], "")
}
