//! What each overlay holds of the log: how much in RAM, how much on the device.
//!
//! Always true: every live block of an overlay is counted once, for the overlay that it belongs
//! to; it counts as RAM from its append until its chunk is safe on the device, but from the start
//! as of the device where it was appended to be spilled. A reset begins a new tenancy, so that
//! what is swept of the old one later changes no count. Deliberately absent: limits; the writer
//! decides by these counts where the next write goes.

use super::{Log, StreamKind};
use crate::types::{ChunkIndex, SlotIndex};

/// One life of an overlay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenant(u32);

impl Tenant {
    /// Data that is no overlay's.
    pub const NOBODY: Tenant = Tenant(0);
}

/// Blocks of the log that an overlay keeps alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub ram: u64,
    pub ssd: u64,
}

impl Log {
    /// Begins to count for a new life of an overlay.
    pub fn move_in(&mut self) -> Tenant {
        self.tenants += 1;
        let tenant = Tenant(self.tenants);
        self.holdings.insert(tenant, Holding::default());
        tenant
    }

    /// Nobody asks for the counts of this life any more.
    pub fn move_out(&mut self, tenant: Tenant) {
        self.holdings.remove(&tenant);
    }

    pub fn holding(&self, tenant: Tenant) -> Holding {
        self.holdings.get(&tenant).copied().unwrap_or_default()
    }

    /// Blocks in a chunk have come to life, or died.
    pub(super) fn hold(&mut self, tenant: Tenant, chunk: ChunkIndex, blocks: u32, added: bool) {
        let Some(holding) = self.holdings.get_mut(&tenant) else {
            return;
        };
        let slot = self.chunk_slot[chunk.0 as usize].checked_sub(1);
        let slot = slot.map(|slot| &mut self.slots[slot as usize]);
        let in_ram = |slot: &&mut super::Slot| {
            slot.stream == StreamKind::Overlay && !slot.spilling && !slot.reusable
        };
        let Some(slot) = slot.filter(in_ram) else {
            change(&mut holding.ssd, u64::from(blocks), added);
            return;
        };
        change(&mut holding.ram, u64::from(blocks), added);
        match slot.tenants.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, count)) => change(count, u64::from(blocks), added),
            None => {
                assert!(added, "what dies has lived in the chunk");
                slot.tenants.push((tenant, u64::from(blocks)));
            }
        }
    }

    /// A chunk is safe on the device: what lives in it is no longer counted as RAM.
    pub(super) fn spilled(&mut self, slot: SlotIndex) {
        let tenants = core::mem::take(&mut self.slots[slot.0 as usize].tenants);
        for (tenant, blocks) in tenants {
            if let Some(holding) = self.holdings.get_mut(&tenant) {
                change(&mut holding.ram, blocks, false);
                change(&mut holding.ssd, blocks, true);
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
