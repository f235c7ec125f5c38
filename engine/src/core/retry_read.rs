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
use crate::types::{BLOCK_SECTORS, LogAddr, Time, VolumeId};
use crate::volume::Volume;

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
        let due = |it: &Volume| it.block_to_read_again(cx.now).map(|block| (it.id(), block));
        let Some((id, block)) = self.volumes.iter().find_map(due) else {
            return;
        };
        // Where it lay there may be nothing by now.
        let volume = self.volume(id);
        if !volume.needs_block(block) {
            return volume.block_was_read(cx.now, block, true);
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
        self.scratch.free_piece(retry_read.piece);
        if let Some(volume) = self.find(retry_read.volume) {
            volume.block_was_read(now, retry_read.block, good);
        }
    }
}
