//! Backup windows and checkpoints, as administrators order and see them.
//!
//! Deliberately absent: what a window and a checkpoint are (`daemon::backup`).

use super::rest::name_by_time;
use super::{Admin, Outcome, find, refuse_held};
use crate::backup::bitmap::GRAIN_BYTES;
use crate::backup::chain::{CHECKPOINTS_MAX, ShownState};
use crate::config::keys::check_name;
use crate::daemon::CheckpointShown;
use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// Ranges that one document lists.
const RANGES_MAX: usize = 1 << 16;

impl Admin {
    /// Returns when the image of a volume, and of all members of its group, has all that was
    /// written before. With a name, that is a checkpoint after the resume.
    pub fn quiesce(&self, name: &str, checkpoint: Option<&str>) -> Result<Outcome> {
        if let Some(checkpoint) = checkpoint {
            check_checkpoint(name, checkpoint)?;
        }
        let look = self.look()?;
        refuse_held(&look, name)?;
        let volume = find(&look, name)?;
        if volume.rests {
            let note = format!("volume {name}: is quiesced already");
            self.machine.quiesce_again(name)?;
            return match checkpoint {
                None => Ok(Outcome { notes: vec![note] }),
                Some(checkpoint) => Err(Error::failed(format!(
                    "{note}, without checkpoint {checkpoint}; run `tenuto volume resume {name}` \
                     first"
                ))
                .about(name)),
            };
        }
        self.machine.quiesce(name, checkpoint)?;
        Ok(Outcome::default())
    }

    /// Returns when the image has all that was written before; until the resume it has what a flush
    /// covers before the flush is answered.
    pub fn quiesce_through(&self, name: &str) -> Result<Outcome> {
        let look = self.look()?;
        refuse_held(&look, name)?;
        find(&look, name)?;
        self.machine.quiesce_through(name)?;
        Ok(Outcome::default())
    }

    /// `force`: clients that read a backup are cut off.
    pub fn resume(&self, name: &str, force: bool) -> Result<Outcome> {
        find(&self.look()?, name)?;
        self.machine.resume(name, force)?;
        Ok(Outcome::default())
    }

    /// A checkpoint without a backup; without a name the time is the name.
    pub fn checkpoint(&self, name: &str, checkpoint: Option<&str>) -> Result<Value> {
        let checkpoint = checkpoint.map_or_else(name_by_time, str::to_owned);
        self.quiesce(name, Some(&checkpoint))?;
        self.resume(name, false)?;
        Ok(json!({ "name": name, "checkpoint": checkpoint }))
    }

    pub fn checkpoints(&self, name: &str) -> Result<Value> {
        let look = self.look()?;
        refuse_held(&look, name)?;
        find(&look, name)?;
        let all = self.machine.checkpoints(name)?;
        let listed: Vec<Value> = all.iter().map(document).collect();
        Ok(json!({
            "name": name,
            "granularity_bytes": GRAIN_BYTES,
            "checkpoints_max": CHECKPOINTS_MAX,
            "checkpoints": listed,
        }))
    }

    /// What has changed of a volume since a checkpoint.
    pub fn changes(&self, name: &str, checkpoint: &str) -> Result<Value> {
        let look = self.look()?;
        refuse_held(&look, name)?;
        find(&look, name)?;
        let bitmap = self.machine.changes(name, checkpoint)?;
        let mut at = 0;
        let mut extents = Vec::new();
        for (length, changed) in bitmap.ranges(0, bitmap.size_bytes, RANGES_MAX) {
            extents.push(json!({ "start": at, "length": length, "changed": changed }));
            at += length;
        }
        Ok(json!({
            "name": name,
            "checkpoint": checkpoint,
            "size_bytes": bitmap.size_bytes,
            "granularity_bytes": GRAIN_BYTES,
            "changed_bytes": bitmap.changed_bytes(),
            "extents": extents,
            "extents_truncated": at < bitmap.size_bytes,
        }))
    }

    pub fn delete_checkpoint(&self, name: &str, checkpoint: &str) -> Result<Value> {
        find(&self.look()?, name)?;
        self.machine.forget_checkpoint(name, checkpoint)?;
        Ok(json!({ "name": name, "checkpoint": checkpoint }))
    }
}

fn check_checkpoint(name: &str, checkpoint: &str) -> Result<()> {
    let checked = check_name(checkpoint);
    checked.map_err(|why| {
        let right = why.right;
        let message = format!("volume {name}: {checkpoint:?} is no name of a checkpoint; {right}");
        Error::usage(message).about(name)
    })
}

fn document(it: &CheckpointShown) -> Value {
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(it.shown.created);
    let (state, reason) = match it.shown.state {
        ShownState::Making => ("open", None),
        ShownState::Valid => ("valid", None),
        ShownState::Lost(reason) => ("lost", Some(reason.text())),
    };
    json!({
        "name": it.shown.name,
        "created": humantime::format_rfc3339_seconds(created).to_string(),
        "size_bytes": it.shown.size_bytes,
        "state": state,
        "reason": reason,
        "changed_bytes": it.changed_bytes,
    })
}
