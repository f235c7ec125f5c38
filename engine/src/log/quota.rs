//! What each overlay holds of the log: how much in RAM, how much on the device.
//!
//! Always true: every live block of an overlay is counted once, for the overlay that it belongs
//! to; it counts as RAM from its append until its chunk is safe on the device, but from the start
//! as of the device where it was appended to be spilled. A reset opens a new quota, so that
//! what is swept of the old one later changes no count. Deliberately absent: limits; the writer
//! decides by these counts where the next write goes.

use super::{Log, StreamKind};
use crate::types::{ChunkIndex, SlotIndex};

/// One life of an overlay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuotaOwner(u32);

impl QuotaOwner {
    /// Data that is no overlay's.
    pub const NONE: QuotaOwner = QuotaOwner(0);

    #[cfg(test)]
    pub fn of_test(number: u32) -> QuotaOwner {
        QuotaOwner(number)
    }
}

/// Blocks of the log that an overlay keeps alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub ram: u64,
    pub ssd: u64,
}

impl Log {
    /// Begins to count for a new life of an overlay.
    pub fn open_quota(&mut self) -> QuotaOwner {
        self.quota_owners += 1;
        let quota_owner = QuotaOwner(self.quota_owners);
        let before = self.usages.insert(quota_owner, Usage::default());
        assert!(
            before.is_none(),
            "each life of an overlay has a number of its own"
        );
        quota_owner
    }

    /// Nobody asks for the counts of this life any more.
    pub fn close_quota(&mut self, quota_owner: QuotaOwner) {
        self.usages.remove(&quota_owner);
    }

    pub fn usage(&self, quota_owner: QuotaOwner) -> Usage {
        self.usages.get(&quota_owner).copied().unwrap_or_default()
    }

    /// Blocks in a chunk have come to life, or died.
    pub(super) fn hold(
        &mut self,
        quota_owner: QuotaOwner,
        chunk: ChunkIndex,
        blocks: u32,
        added: bool,
    ) {
        let Some(usage) = self.usages.get_mut(&quota_owner) else {
            return;
        };
        let slot = self.chunk_slot[chunk.0 as usize].checked_sub(1);
        let slot = slot.map(|slot| &mut self.slots[slot as usize]);
        let in_ram = |slot: &&mut super::Slot| {
            slot.stream == StreamKind::Overlay && !slot.spilling && !slot.reusable
        };
        let Some(slot) = slot.filter(in_ram) else {
            change(&mut usage.ssd, u64::from(blocks), added);
            return;
        };
        assert!(
            slot.chunk == Some(chunk),
            "a chunk and its slot name each other"
        );
        change(&mut usage.ram, u64::from(blocks), added);
        match slot
            .quota_owners
            .iter_mut()
            .find(|(known, _)| *known == quota_owner)
        {
            Some((_, count)) => change(count, u64::from(blocks), added),
            None => {
                assert!(added, "what dies has lived in the chunk");
                slot.quota_owners.push((quota_owner, u64::from(blocks)));
            }
        }
    }

    /// A chunk is safe on the device: what lives in it is no longer counted as RAM.
    pub(super) fn spilled(&mut self, slot: SlotIndex) {
        let slot = &mut self.slots[slot.0 as usize];
        assert!(
            slot.reusable && slot.in_flight == 0,
            "a chunk that is safe is not written any more"
        );
        let quota_owners = core::mem::take(&mut slot.quota_owners);
        for (quota_owner, blocks) in quota_owners {
            if let Some(usage) = self.usages.get_mut(&quota_owner) {
                change(&mut usage.ram, blocks, false);
                change(&mut usage.ssd, blocks, true);
            }
        }
    }
}

fn change(count: &mut u64, by: u64, added: bool) {
    match added {
        true => *count += by,
        false => *count = count.strict_sub(by),
    }
}
