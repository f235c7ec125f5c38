//! Blocks of a volume that could not be read.
//!
//! Always true: each stands there once, and there is a bound.
//! Deliberately absent: when they are read again (`core::retry_read`).

use super::{Bypass, Volume};
use crate::map::Content;
use crate::snapshot::State;
use crate::types::{BLOCK_SECTORS, LogAddr, Time};
use alloc::vec::Vec;

/// What was bad is read again so much later; a device may have recovered.
pub(crate) const REREAD_MS: u64 = 60_000;
/// Blocks that a volume remembers. Who reads another one tells again.
const BLOCKS_MAX: usize = 64;

/// What of a volume could not be read.
#[derive(Default)]
pub struct Unread {
    blocks: Vec<LogAddr>,
    look_at: Time,
}

impl Unread {
    fn add(&mut self, now: Time, bad: impl Iterator<Item = LogAddr>) {
        if self.blocks.is_empty() {
            self.look_at = now.plus_millis(REREAD_MS);
        }
        for addr in bad {
            let block = LogAddr(addr.0 / BLOCK_SECTORS * BLOCK_SECTORS);
            if !self.blocks.contains(&block) && self.blocks.len() < BLOCKS_MAX {
                self.blocks.push(block);
            }
            assert!(self.blocks.len() <= BLOCKS_MAX);
        }
    }
}

impl Volume {
    /// These blocks, which it needs, cannot be read.
    pub fn meets_damage(&mut self, now: Time, bad: impl Iterator<Item = LogAddr>) {
        self.counters.checksum_errors += 1;
        if self.bypass == Bypass::Held {
            return;
        }
        if self.state() != State::Damaged {
            self.unread.blocks.clear();
        }
        self.unread.add(now, bad);
        self.damage("dirty data cannot be read from the cache device any more");
        assert!(self.unread.blocks.len() <= BLOCKS_MAX);
    }

    /// What was bad is not known to be so any more.
    pub fn forget_damage(&mut self) {
        self.unread.blocks.clear();
    }

    /// The block that is to be read again by now.
    pub fn block_to_read_again(&self, now: Time) -> Option<LogAddr> {
        let due = self.state() == State::Damaged && now >= self.unread.look_at;
        self.unread.blocks.first().copied().filter(|_| due)
    }

    /// A block was read again, or lies where nothing of the volume is by now.
    pub fn block_was_read(&mut self, now: Time, block: LogAddr, good: bool) {
        assert!(
            block.0.is_multiple_of(BLOCK_SECTORS),
            "whole blocks are read"
        );
        self.unread.blocks.retain(|it| *it != block);
        if !good {
            // The others have their turn first.
            self.unread.blocks.push(block);
            self.unread.look_at = now.plus_millis(REREAD_MS);
        }
        assert!(self.unread.blocks.len() <= BLOCKS_MAX);
        self.recover_if_read();
    }

    /// It recovers once nothing of it is known to be bad.
    pub fn recover_if_read(&mut self) {
        let met = self.destage.as_ref().is_some_and(|it| it.met_damage());
        if self.state() == State::Damaged && self.unread.blocks.is_empty() && !met {
            self.recover();
        }
    }

    /// Whether something dirty of it lies in this block.
    pub fn needs_block(&self, block: LogAddr) -> bool {
        let end = block.plus(BLOCK_SECTORS);
        self.epochs.iter().any(|epoch| {
            let mut at = 0;
            while let Some(piece) = epoch.map.at_or_after(at) {
                at = piece.span.end();
                let from = piece.content.addr();
                let is_data = matches!(piece.content, Content::Data(_));
                if is_data && from < end && from.plus(piece.span.sectors) > block {
                    return true;
                }
            }
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;

    #[test]
    fn a_bad_block_is_read_again_after_a_minute_and_then_in_turn_with_the_others() {
        let mut volume = volume();
        let (one, other) = (LogAddr(0), LogAddr(BLOCK_SECTORS));
        volume.meets_damage(Time(0), [LogAddr(1), other].into_iter());
        let due = Time(0).plus_millis(REREAD_MS);
        assert_eq!(volume.block_to_read_again(Time(0)), None);
        assert_eq!(volume.block_to_read_again(due), Some(one));
        volume.block_was_read(due, one, false);
        assert_eq!(volume.block_to_read_again(due), None);
        let due = due.plus_millis(REREAD_MS);
        assert_eq!(volume.block_to_read_again(due), Some(other));
        volume.block_was_read(due, other, true);
        assert_eq!(volume.state(), State::Damaged);
        volume.block_was_read(due, one, true);
        assert_eq!(volume.state(), State::Clean);
    }
}
