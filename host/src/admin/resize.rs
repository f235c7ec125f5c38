//! The rules of changing the size of a volume.

use super::{Admin, Outcome, find, refuse_connected, refuse_held};
use crate::config::units::{human_bytes, parse_size};
use crate::error::{Error, Result};
use engine::types::{Policy, SECTOR_BYTES};

impl Admin {
    /// `size` as it is written, or with a plus before it what is added. What a smaller disk would
    /// lose is lost only with `shrink`.
    pub fn resize(&self, name: &str, size: &str, shrink: bool) -> Result<Outcome> {
        let _order = self.order();
        let look = self.look()?;
        let volume = find(&look, name)?;
        refuse_held(&look, name)?;
        let usage = |message: String| Error::usage(format!("volume {name}: {message}")).about(name);
        if volume.policy == Policy::Ephemeral {
            return Err(usage(
                "an ephemeral volume is as large as its image; change that while no volume stands \
                 on it"
                    .into(),
            ));
        }
        let old = volume.size_bytes;
        let new = wanted(size, old).ok_or_else(|| {
            usage(format!(
                "{size:?} is not a size; write bytes or K, M, G, T or KiB, MiB, GiB, TiB in whole \
                 sectors of 512 bytes, as in 40GiB, or +8GiB to add that much"
            ))
        })?;
        if new == old {
            let note = format!("volume {name}: has this size already");
            return Ok(Outcome { notes: vec![note] });
        }
        if new < old {
            let lost = old - new;
            if !shrink {
                return Err(Error::refused(format!(
                    "volume {name}: the last {lost} bytes ({}) of the disk would be lost; make the \
                     file systems on it smaller first, then force it with --shrink",
                    human_bytes(lost)
                ))
                .about(name));
            }
            refuse_connected(&look, volume, "resize")?;
            if volume.dirty_bytes > 0 {
                self.machine.destage(volume.id)?;
            }
        }
        self.machine.resize(name, new)?;
        let clients = look.clients.iter().find(|(id, _)| *id == volume.id);
        let mut notes = Vec::new();
        if clients.is_some_and(|(_, clients)| *clients > 0) {
            notes.push(format!(
                "volume {name}: clients that are connected see the new size when they connect again"
            ));
        }
        Ok(Outcome { notes })
    }
}

fn wanted(size: &str, old: u64) -> Option<u64> {
    let new = match size.strip_prefix('+') {
        Some(more) => old.checked_add(parse_size(more)?)?,
        None => parse_size(size)?,
    };
    // What a file can have at most.
    let fits = new > 0 && new.is_multiple_of(SECTOR_BYTES) && i64::try_from(new).is_ok();
    fits.then_some(new)
}
