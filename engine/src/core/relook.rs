//! Damage that a guest or a scrub has met: whether it is still there.
//!
//! A device that fails reads for a while has lost nothing. What could not be read is read again a
//! minute later, block by block, and so on until it is good or nobody needs it. Always true: one
//! block is looked at at a time; a volume that met damage is called good only when all that it
//! remembers is, and nothing stands in the way of its destage. Deliberately absent: what a destage
//! has met ([`mend`](super::mend)), and what was met while the whole device failed
//! ([`bypass`](super::bypass)).

use super::Core;
use super::mend::REREAD_MS;
use crate::event::Purpose;
use crate::fetch::{Owner, Want};
use crate::outbox::Cx;
use crate::snapshot::State;
use crate::types::{BLOCK_SECTORS, LogAddr, Time, VolumeId};
use crate::volume::Volume;
use alloc::vec::Vec;

/// Blocks that a volume remembers. Who reads another one tells again.
const BLOCKS_MAX: usize = 64;

/// What of a volume could not be read.
#[derive(Default)]
pub struct Unread {
    blocks: Vec<LogAddr>,
    look_at: Time,
}

/// A block is being read again.
pub struct Relook {
    volume: VolumeId,
    block: LogAddr,
    piece: u32,
}

impl Unread {
    pub(super) fn add(&mut self, now: Time, bad: impl Iterator<Item = LogAddr>) {
        if self.blocks.is_empty() {
            self.look_at = now.plus_millis(REREAD_MS);
        }
        for addr in bad {
            let block = LogAddr(addr.0 / BLOCK_SECTORS * BLOCK_SECTORS);
            if !self.blocks.contains(&block) && self.blocks.len() < BLOCKS_MAX {
                self.blocks.push(block);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

impl Core {
    /// Reads the next block that is due.
    pub(super) fn look_again(&mut self, cx: &mut Cx<'_>) {
        if self.relook.is_some() {
            return;
        }
        let due = |it: &&Volume| {
            it.state == State::Damaged && !it.unread.is_empty() && cx.now >= it.unread.look_at
        };
        let Some(volume) = self.volumes.iter().flatten().find(due) else {
            return;
        };
        let (id, block) = (volume.id, volume.unread.blocks[0]);
        // Where it lay there may be nothing by now.
        if !needs(volume, block) {
            self.volume(id).unread.blocks.remove(0);
            return self.forgive_if_read(id);
        }
        let Some(piece) = self.scratch.take_piece() else {
            return;
        };
        let want = Want {
            addr: block,
            sectors: BLOCK_SECTORS,
            to: self.scratch.piece(piece),
        };
        let relook = Relook {
            volume: id,
            block,
            piece,
        };
        self.relook = Some(relook);
        let parts = (&mut self.log, &mut self.scratch);
        let owner = Owner::Relook;
        if !self
            .fetches
            .start(cx, parts, owner, Purpose::Scrub, &[want])
        {
            self.looked_again(cx.now, true);
        }
    }

    pub(super) fn looked_again(&mut self, now: Time, good: bool) {
        let relook = self.relook.take().expect("a block was being read");
        self.scratch.free_piece(relook.piece);
        let Some(volume) = self.find(relook.volume) else {
            return;
        };
        volume.unread.blocks.retain(|it| *it != relook.block);
        if !good {
            // The others have their turn first.
            volume.unread.blocks.push(relook.block);
            volume.unread.look_at = now.plus_millis(REREAD_MS);
        }
        self.forgive_if_read(relook.volume);
    }

    /// Nothing of the volume is known to be bad any more.
    pub(super) fn forgive_if_read(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        let met = volume.destage.as_ref().is_some_and(|it| it.met_damage());
        if volume.state == State::Damaged && volume.unread.is_empty() && !met {
            volume.state = State::Clean;
            volume.reason = None;
        }
    }
}

/// Whether something dirty of the volume lies in this block.
fn needs(volume: &Volume, block: LogAddr) -> bool {
    let end = block.plus(BLOCK_SECTORS);
    volume.epochs.iter().any(|epoch| {
        let mut at = 0;
        while let Some(piece) = epoch.map.at_or_after(at) {
            at = piece.span.end();
            let from = piece.content.addr();
            let is_data = matches!(piece.content, crate::map::Content::Data(_));
            if is_data && from < end && from.plus(piece.span.sectors) > block {
                return true;
            }
        }
        false
    })
}
