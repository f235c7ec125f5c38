//! Blocking access to devices, for what happens before anything is served.
//!
//! Owns the interface of recovery, of settling a ledger and of the offline tools. Always true:
//! when a call returns, its bytes have been read or handed to the device; only `sync` makes them
//! durable. Recovery used to be an event machine; everything in it waits for the step before, so
//! straight-line code over this trait says the same in a third of the lines, and the simulator
//! still kills it between any two calls.

use crate::event::{Device, IoError, Stat};

/// The devices of one host, by blocking calls. Reads beyond the end of a file give zeroes;
/// a ledger or journal that does not exist reads as empty and is created by the first write.
pub trait Media {
    fn read(&mut self, device: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError>;

    /// Several reads of one device, in flight together where the host can.
    fn read_many(&mut self, device: Device, reads: &mut [(u64, &mut [u8])]) -> Result<(), IoError> {
        for (offset, bytes) in reads.iter_mut() {
            self.read(device, *offset, bytes)?;
        }
        Ok(())
    }

    fn write(&mut self, device: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError>;

    /// Several writes of one device that do not overlap, in any order and in flight together where
    /// the host can. After an error any of them may have been written.
    fn write_many(&mut self, device: Device, writes: &[(u64, &[u8])]) -> Result<(), IoError> {
        writes
            .iter()
            .try_for_each(|(offset, bytes)| self.write(device, *offset, bytes))
    }

    fn zero(&mut self, device: Device, offset: u64, bytes: u64) -> Result<(), IoError>;
    fn sync(&mut self, device: Device) -> Result<(), IoError>;
    fn stat(&mut self, device: Device) -> Result<Stat, IoError>;
}
