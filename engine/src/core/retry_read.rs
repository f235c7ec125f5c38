//! Damage that a guest or a scrub has met: whether it is still there.
//!
//! A device that fails reads for a while has lost nothing. What could not be read is read again a
//! minute later, block by block, and so on until it is good or nobody needs it. Always true: one
//! block is looked at at a time; a volume that met damage is called good only when all that it
//! remembers is, and nothing stands in the way of its destage. Deliberately absent: what a destage
//! has met ([`merge_damage`](super::mend)), and what was met while the whole device failed
//! ([`bypass`](super::bypass)).

use super::Core;
use crate::event::Purpose;
use crate::fetch::{Owner, Want};
use crate::outbox::Cx;
use crate::snapshot::State;
use crate::types::{BLOCK_SECTORS, LogAddr, Time, VolumeId};
use crate::volume::Volume;
use crate::volume::unread::REREAD_MS;

/// A block is being read again.
pub struct RetryRead {
    volume: VolumeId,
    block: LogAddr,
    piece: u32,
}

impl Core {
    /// Reads the next block that is due.
    pub(super) fn retry_bad_reads(&mut self, cx: &mut Cx<'_>) {
        if self.retry_read.is_some() {
            return;
        }
        let due = |it: &&Volume| {
            it.state() == State::Damaged && !it.unread.is_empty() && cx.now >= it.unread.look_at
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
        let retry_read = RetryRead {
            volume: id,
            block,
            piece,
        };
        self.retry_read = Some(retry_read);
        let parts = (&mut self.log, &mut self.scratch);
        let owner = Owner::RetryRead;
        if !self
            .fetches
            .start(cx, parts, owner, Purpose::Scrub, &[want])
        {
            self.read_retried(cx.now, true);
        }
    }

    pub(super) fn read_retried(&mut self, now: Time, good: bool) {
        let retry_read = self.retry_read.take().expect("a block was being read");
        assert!(
            retry_read.block.0.is_multiple_of(BLOCK_SECTORS),
            "whole blocks are read again"
        );
        self.scratch.free_piece(retry_read.piece);
        let Some(volume) = self.find(retry_read.volume) else {
            return;
        };
        volume.unread.blocks.retain(|it| *it != retry_read.block);
        if !good {
            // The others have their turn first.
            volume.unread.blocks.push(retry_read.block);
            volume.unread.look_at = now.plus_millis(REREAD_MS);
        }
        self.forgive_if_read(retry_read.volume);
    }

    /// Nothing of the volume is known to be bad any more.
    pub(super) fn forgive_if_read(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        let met = volume.destage.as_ref().is_some_and(|it| it.met_damage());
        if volume.state() == State::Damaged && volume.unread.is_empty() && !met {
            volume.recover();
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
