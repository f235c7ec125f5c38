//! The log of dirty pages, by which a front end learns what we wrote while its guest migrates.
//!
//! Owns the bitmap of 4 KiB pages (vhost-user, "Migration") and the places at which used rings are
//! noted as well. Always true: one log for a front end, whatever tables of memory it has shared, so
//! a request that began before the log still marks what it writes after; bits are set by atomic
//! operations and never outside the log. Deliberately absent: taking bits away, which is the front
//! end's part.

use super::mapping::{Mapping, MappingError};
use std::fs::File;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use vring::memory::Address;

pub const PAGE_BYTES: u64 = 4096;

/// The bitmap.
#[derive(Debug)]
pub struct Log {
    bits: Mapping,
}

impl Log {
    pub fn new(file: &File, offset: u64, bytes: u64) -> Result<Log, MappingError> {
        let bits = Mapping::new(file, offset, bytes)?;
        Ok(Log { bits })
    }

    /// Whether it has a bit for every page below this address.
    pub fn reaches(&self, end: u64) -> bool {
        end.div_ceil(PAGE_BYTES).div_ceil(8) <= self.bits.bytes()
    }

    fn mark(&self, at: u64, bytes: u64) {
        if bytes == 0 || self.bits.is_lost() {
            return;
        }
        let last = at.saturating_add(bytes - 1) / PAGE_BYTES;
        // Behind the end are addresses that no table of memory had when the log was taken.
        let last = last.min(self.bits.bytes().saturating_mul(8) - 1);
        for page in at / PAGE_BYTES..=last {
            let byte = self.bits.byte(page / 8);
            // Always, also where the bit is set: the other side may be taking it away, and it must
            // find our data when it does not find our bit.
            byte.fetch_or(1 << (page % 8), Ordering::SeqCst);
        }
    }
}

/// A used ring that is noted at another place than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedLog {
    pub used: Address,
    pub bytes: u64,
    /// Where its first byte is noted.
    pub at: u64,
}

#[derive(Debug, Default)]
struct State {
    log: Option<Log>,
    used: Vec<UsedLog>,
}

/// What is noted, and whether.
#[derive(Debug, Default)]
pub struct Dirty {
    on: AtomicBool,
    /// A lock and no message: whoever stores must not wait for an answer, and the control side
    /// takes it a few times in a migration. Nobody takes it while nothing migrates.
    state: RwLock<State>,
}

impl Dirty {
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Takes another log, or none.
    pub fn set_log(&self, log: Option<Log>) {
        self.state.write().expect("no panic with this lock").log = log;
    }

    pub fn set_used(&self, used: Vec<UsedLog>) {
        self.state.write().expect("no panic with this lock").used = used;
    }

    /// Who stores learns of it when it has next heard from the control side.
    pub fn set_on(&self, on: bool) {
        self.on.store(on, Ordering::Release);
    }

    /// Whether there is a log that is too short for this address.
    pub fn is_short_of(&self, end: u64) -> bool {
        let state = self.state.read().expect("no panic with this lock");
        state.log.as_ref().is_some_and(|log| !log.reaches(end))
    }

    pub fn mark(&self, at: Address, bytes: u64) {
        let state = self.state.read().expect("no panic with this lock");
        let Some(log) = &state.log else {
            return;
        };
        log.mark(at.0, bytes);
        for used in &state.used {
            let Some(inside) = at.0.checked_sub(used.used.0) else {
                continue;
            };
            if inside < used.bytes {
                log.mark(used.at.saturating_add(inside), bytes);
            }
        }
    }
}
