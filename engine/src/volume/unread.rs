//! Blocks of a volume that could not be read.
//!
//! Always true: each stands there once, and there is a bound.
//! Deliberately absent: when they are read again (`core::retry_read`).

use crate::types::{BLOCK_SECTORS, LogAddr, Time};
use alloc::vec::Vec;

/// What was bad is read again so much later; a device may have recovered.
pub(crate) const REREAD_MS: u64 = 60_000;
/// Blocks that a volume remembers. Who reads another one tells again.
const BLOCKS_MAX: usize = 64;

/// What of a volume could not be read.
#[derive(Default)]
pub struct Unread {
    pub(crate) blocks: Vec<LogAddr>,
    pub(crate) look_at: Time,
}

impl Unread {
    pub(crate) fn add(&mut self, now: Time, bad: impl Iterator<Item = LogAddr>) {
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

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}
