//! Shared memory of which a dying daemon stores a prefix.
//!
//! Owns guest memory and in-flight region, and the number of stores that are left to a daemon.
//! Always true: the guest always stores; a daemon stores in order until it is killed, a copy of
//! bytes perhaps in part, and nothing after. The sabotages that concern stores to the region are
//! made here, so that the product's code stays what it is.

use super::Sabotage;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use vring::inflight::Layout;
use vring::memory::{Address, Bytes, Memory, Outside};

pub const GUEST_BYTES: u64 = 1 << 19;
const LAST_BATCH_HEAD: u64 = 12;
const USED_IDX: u64 = 14;

pub struct Machine {
    pub guest: Bytes,
    pub region: Bytes,
    /// Bytes of one queue in the region.
    stride: u64,
    sabotage: Option<Sabotage>,
    stores_left: Cell<u64>,
    dead: Cell<bool>,
    /// Which part of a copy lands when the kill hits it.
    tear: Cell<u64>,
    pub repairing: Cell<bool>,
    /// Stores that a sabotage has put off.
    later: RefCell<Vec<(Address, Vec<u8>)>>,
}

impl Machine {
    pub fn new(layout: Layout, sabotage: Option<Sabotage>) -> Machine {
        Machine {
            guest: Bytes::zeroed(GUEST_BYTES),
            region: Bytes::zeroed(layout.bytes()),
            stride: layout.bytes() / u64::from(layout.queues),
            sabotage,
            stores_left: Cell::new(0),
            dead: Cell::new(false),
            tear: Cell::new(0),
            repairing: Cell::new(false),
            later: RefCell::default(),
        }
    }

    pub fn begin_life(&self, stores: u64, tear: u64) {
        self.stores_left.set(stores);
        self.tear.set(tear);
        self.dead.set(false);
        self.later.borrow_mut().clear();
    }

    pub fn is_dead(&self) -> bool {
        self.dead.get()
    }

    /// How many of these bytes land.
    fn landing(&self, bytes: usize, may_tear: bool) -> usize {
        if self.dead.get() {
            return 0;
        }
        match self.stores_left.get() {
            0 => {
                self.dead.set(true);
                match may_tear {
                    true => self.tear.get() as usize % (bytes + 1),
                    false => 0,
                }
            }
            left => {
                self.stores_left.set(left - 1);
                bytes
            }
        }
    }

    fn store(&self, memory: &Bytes, at: Address, bytes: &[u8], tear: bool) -> Result<(), Outside> {
        memory.check(at, bytes.len() as u64)?;
        let count = self.landing(bytes.len(), tear);
        memory.write(at, &bytes[..count])
    }
}

/// Guest memory or region, as the daemon has it mapped.
pub struct Mapped {
    pub machine: Rc<Machine>,
    pub is_region: bool,
}

impl Mapped {
    fn bytes(&self) -> &Bytes {
        match self.is_region {
            true => &self.machine.region,
            false => &self.machine.guest,
        }
    }

    /// One number. A sabotage may leave it out, or put it off behind the next of another kind.
    fn number(&self, at: Address, bytes: &[u8]) -> Result<(), Outside> {
        let machine = &*self.machine;
        let store = |at, bytes: &[u8]| machine.store(self.bytes(), at, bytes, false);
        if !self.is_region {
            return store(at, bytes);
        }
        let field = at.0 % machine.stride;
        let put_off = match machine.sabotage {
            Some(Sabotage::LastBatchHeadNotSet) if field == LAST_BATCH_HEAD => return Ok(()),
            Some(Sabotage::UsedIndexNotRepaired)
                if field == USED_IDX && machine.repairing.get() =>
            {
                return Ok(());
            }
            Some(Sabotage::CounterAfterFlag) => bytes.len() == 8,
            Some(Sabotage::FlagsAfterUsedIndex) => bytes == [0],
            _ => false,
        };
        if put_off {
            machine.later.borrow_mut().push((at, bytes.to_vec()));
            return Ok(());
        }
        store(at, bytes)?;
        let due = match machine.sabotage {
            Some(Sabotage::CounterAfterFlag) => bytes.len() == 1,
            Some(Sabotage::FlagsAfterUsedIndex) => field == USED_IDX,
            _ => false,
        };
        if due {
            for (at, bytes) in machine.later.take() {
                store(at, &bytes)?;
            }
        }
        Ok(())
    }
}

impl Memory for Mapped {
    fn check(&self, at: Address, bytes: u64) -> Result<(), Outside> {
        self.bytes().check(at, bytes)
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Outside> {
        self.bytes().read(at, into)
    }

    fn write(&self, at: Address, bytes: &[u8]) -> Result<(), Outside> {
        self.machine.store(self.bytes(), at, bytes, true)
    }

    fn load_u16(&self, at: Address) -> Result<u16, Outside> {
        self.bytes().load_u16(at)
    }

    fn store_u8(&self, at: Address, value: u8) -> Result<(), Outside> {
        self.number(at, &[value])
    }

    fn store_u16(&self, at: Address, value: u16) -> Result<(), Outside> {
        self.number(at, &value.to_le_bytes())
    }

    fn store_u64(&self, at: Address, value: u64) -> Result<(), Outside> {
        self.number(at, &value.to_le_bytes())
    }

    fn fence(&self) {}
}
