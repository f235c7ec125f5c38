//! The rules of changing the size of a volume.

use super::{Admin, Outcome, find, refuse_connected, refuse_held};
use crate::config::units::{human_bytes, parse_size};
use crate::daemon::Resized;
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
        let resized = self.machine.resize(name, new)?;
        Ok(Outcome {
            notes: notes(resized, name),
        })
    }
}

/// Which clients see the new size, and when; nothing where there is none.
fn notes(resized: Resized, name: &str) -> Vec<String> {
    let Resized {
        told,
        untold,
        by_nbd,
    } = resized;
    let notes = [
        (
            told,
            "is told: its guest sees the new size now",
            "vhost-user",
        ),
        (
            untold,
            "takes no message: it sees the new size when it connects again, or reads the \
             configuration of its disk again",
            "vhost-user",
        ),
        (
            by_nbd,
            "is not told, because NBD has no way to: it sees the new size when it connects \
             again",
            "NBD",
        ),
    ];
    let notes = notes.iter().filter(|(count, ..)| *count > 0);
    let note = |(count, what, by): &(u64, &str, &str)| match count {
        1 => format!("volume {name}: a client over {by} {what}"),
        _ => format!("volume {name}: each of {count} clients over {by} {what}"),
    };
    notes.map(note).collect()
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
