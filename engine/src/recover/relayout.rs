//! Another size for a cache, or its own with the features of this program: the same volumes, an
//! empty log.
//!
//! ```text
//! old, emptied ─▶ new checkpoint ─▶ superblock, both copies
//! ```
//!
//! Where the log begins, and so every address in it, follows from the size; nothing that lies in
//! the log can stay where it is. So the log is given up, and what must not be lost is the table of
//! volumes: without it a start would take their ledgers for those of a cache that is gone. Always
//! true: at every moment one superblock is whole, and the checkpoint that belongs to it is. A
//! checkpoint without a log is shorter than any slot, so the newest of the old layout and that of
//! the new one, in slots of different parity, never touch. Deliberately absent:
//! what is dirty; who asks has seen that nothing is.

use super::{CACHE, read_checkpoint, write_checkpoint};
use crate::event::Device;
use crate::format::checkpoint::Checkpoint;
use crate::format::superblock::{SUPERBLOCK_AT, Superblock};
use crate::media::Media;
use crate::open::{OpenError, read_superblock};
use crate::types::Geometry;
use alloc::vec::Vec;

/// Gives a cache that owes nothing so many segments.
pub fn relayout(media: &mut dyn Media, segments: u32) -> Result<Superblock, OpenError> {
    let old = read_superblock(media)?;
    let geometry = Geometry {
        segments,
        ..old.geometry
    };
    let new = Superblock::new(old.cache, geometry, old.volumes_max);
    let last = read_checkpoint(media, &old)?;
    let mut empty = Checkpoint {
        incarnation: last.incarnation + 1,
        unwritten_from: 0,
        segments: Vec::new(),
        ..last
    };
    // Nothing is owed, so nothing is missed of the stage, which goes with the log.
    for volume in &mut empty.volumes {
        volume.staged = false;
    }
    empty.sequence += 1;
    write_checkpoint(media, &old, &empty)?;
    empty.sequence += 1;
    empty.segments_total = segments;
    assert!(
        empty.encode().len() as u64 <= new.checkpoint_slot_bytes.min(old.checkpoint_slot_bytes),
        "a slot has room for all volumes"
    );
    write_checkpoint(media, &new, &empty)?;
    for at in SUPERBLOCK_AT {
        let written = media.write(Device::Cache, at, &new.encode());
        written.map_err(|_| CACHE)?;
        media.sync(Device::Cache).map_err(|_| CACHE)?;
    }
    Ok(new)
}
