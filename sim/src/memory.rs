//! The host's memory, with a stage that outlives the daemon.
//!
//! Owns the bytes of all areas and the kill that strikes in the middle of an operation. Always
//! true: every range lies inside its area (another one is a bug of the engine and panics).
//! Deliberately absent: what is lost when; the world decides that and calls.
//!
//! A kill in the middle of a step cannot unwind the engine. So the stage is copied at that
//! instant, the last operation half done, and the doomed step runs on over the living memory;
//! an engine that reads back what it wrote sees no ghost.

use crate::rng::Rng;
use engine::memory::{Area, Memory, Place, Slice};
use engine::types::BufferId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Granularity in which a store is seen by others; x86 keeps aligned words whole.
const WORD_BYTES: u64 = 8;

/// All memory of one host.
pub struct SimMemory {
    stage: Vec<u8>,
    ram: Vec<u8>,
    scratch: Vec<u8>,
    buffers: Vec<Option<Vec<u8>>>,
    /// Stage operations until the kill, when one is armed.
    fuse: Option<u64>,
    /// The stage as the kill left it.
    survivor: Option<Vec<u8>>,
    /// Whether there is one, for those that are asked on the daemon's behalf meanwhile.
    killed: Arc<AtomicBool>,
    /// Everything in the read tier has the same checksum.
    pub no_ram_sums: bool,
    rng: Rng,
}

impl SimMemory {
    pub fn new(stage_bytes: u64, ram_bytes: u64, scratch_bytes: u64, rng: Rng) -> SimMemory {
        SimMemory {
            stage: vec![0; stage_bytes as usize],
            ram: vec![0; ram_bytes as usize],
            scratch: vec![0; scratch_bytes as usize],
            buffers: Vec::new(),
            fuse: None,
            survivor: None,
            killed: Arc::default(),
            no_ram_sums: false,
            rng,
        }
    }

    /// Lets the kill strike at the `operations`-th write to the stage from now.
    pub fn arm(&mut self, operations: u64) {
        self.fuse = Some(operations);
    }

    pub fn disarm(&mut self) {
        self.fuse = None;
    }

    /// Whether the armed kill has struck: the step that was running did not happen.
    pub fn is_killed(&self) -> bool {
        self.survivor.is_some()
    }

    /// Says the same to whoever holds it.
    pub fn killed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.killed)
    }

    /// The daemon is gone: its private memory too, its stage not.
    pub fn restart(&mut self) {
        if let Some(survivor) = self.survivor.take() {
            self.stage = survivor;
        }
        self.killed.store(false, Ordering::Relaxed);
        self.fuse = None;
        self.buffers.clear();
        self.ram.fill(0);
        self.scratch.fill(0);
    }

    /// The daemon is gone, and its stage was removed.
    pub fn lose_stage(&mut self) {
        self.restart();
        self.stage.fill(0);
    }

    /// The host is gone; `stage_kept`: the stage lies where a power loss does not reach it, but
    /// carries the name of another boot.
    pub fn power_loss(&mut self, stage_kept: bool) {
        self.restart();
        if !stage_kept {
            self.stage.fill(0);
        }
    }

    pub fn buffer_add(&mut self, bytes: Vec<u8>) -> BufferId {
        let free = self.buffers.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.buffers.push(None);
            self.buffers.len() - 1
        });
        self.buffers[at] = Some(bytes);
        BufferId(at as u32)
    }

    pub fn buffer_remove(&mut self, id: BufferId) -> Vec<u8> {
        self.buffers[id.0 as usize]
            .take()
            .expect("the buffer belongs to a request")
    }

    /// What a device reads from memory.
    pub fn gather(&self, slices: &[Slice]) -> Vec<u8> {
        let parts = slices.iter();
        let parts: Vec<&[u8]> = parts.map(|it| self.range(it.place, it.bytes)).collect();
        parts.concat()
    }

    /// What a device writes to memory; `bytes` may be shorter when the device failed.
    pub fn scatter(&mut self, slices: &[Slice], mut bytes: &[u8]) {
        for slice in slices {
            let (now, later) = bytes.split_at((slice.bytes as usize).min(bytes.len()));
            self.range_mut(slice.place, now.len() as u64)
                .copy_from_slice(now);
            bytes = later;
        }
    }

    fn area(&self, area: Area) -> &Vec<u8> {
        match area {
            Area::Stage => &self.stage,
            Area::Ram => &self.ram,
            Area::Scratch => &self.scratch,
            Area::Buffer(id) => self.buffers[id.0 as usize]
                .as_ref()
                .unwrap_or_else(|| panic!("{id:?} was used after its request was answered")),
        }
    }

    fn range(&self, place: Place, bytes: u64) -> &[u8] {
        let area = self.area(place.area);
        let end = (place.offset + bytes) as usize;
        assert!(
            end <= area.len(),
            "{place:?} + {bytes} lies outside its area ({})",
            area.len()
        );
        &area[place.offset as usize..end]
    }

    fn range_mut(&mut self, place: Place, bytes: u64) -> &mut [u8] {
        self.range(place, bytes);
        let area = match place.area {
            Area::Stage => &mut self.stage,
            Area::Ram => &mut self.ram,
            Area::Scratch => &mut self.scratch,
            Area::Buffer(id) => self.buffers[id.0 as usize]
                .as_mut()
                .expect("the range was just checked"),
        };
        &mut area[place.offset as usize..(place.offset + bytes) as usize]
    }

    /// Changes memory, or dies half way through.
    fn change(&mut self, to: Place, bytes: &[u8]) {
        if to.area == Area::Stage && self.survivor.is_none() {
            match self.fuse {
                Some(0) => self.die(to, bytes),
                Some(left) => self.fuse = Some(left - 1),
                None => {}
            }
        }
        self.range_mut(to, bytes.len() as u64)
            .copy_from_slice(bytes);
    }

    /// Keeps the stage as it is with a part of the last operation: its begin, its end (copies may
    /// run backwards) or scattered words of it.
    fn die(&mut self, to: Place, bytes: &[u8]) {
        let mut survivor = self.stage.clone();
        let cut = self.rng.below(bytes.len() as u64 + 1) / WORD_BYTES * WORD_BYTES;
        let shape = self.rng.below(3);
        for (at, &byte) in bytes.iter().enumerate() {
            let at = at as u64;
            let landed = match shape {
                0 => at < cut,
                1 => at >= cut,
                _ => {
                    (at / WORD_BYTES)
                        .wrapping_mul(0x9E37_79B9)
                        .wrapping_add(cut)
                        & 16
                        == 0
                }
            };
            if landed {
                survivor[(to.offset + at) as usize] = byte;
            }
        }
        self.survivor = Some(survivor);
        self.killed.store(true, Ordering::Relaxed);
        self.fuse = None;
    }
}

impl Memory for SimMemory {
    fn stage_bytes(&self) -> u64 {
        self.stage.len() as u64
    }

    fn copy(&mut self, from: Place, to: Place, bytes: u64) {
        let apart = from.area != to.area
            || from.offset + bytes <= to.offset
            || to.offset + bytes <= from.offset;
        assert!(
            apart,
            "copies do not overlap: {from:?} to {to:?}, {bytes} bytes"
        );
        let content = self.range(from, bytes).to_vec();
        self.change(to, &content);
    }

    fn zero(&mut self, to: Place, bytes: u64) {
        self.change(to, &vec![0; bytes as usize]);
    }

    fn store(&mut self, to: Place, bytes: &[u8]) {
        self.change(to, bytes);
    }

    fn load(&self, from: Place, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.range(from, bytes.len() as u64));
    }

    fn checksum(&self, from: Place, bytes: u64) -> u32 {
        let range = self.range(from, bytes);
        if self.no_ram_sums && from.area == Area::Ram {
            return 0;
        }
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, range) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> SimMemory {
        SimMemory::new(64, 64, 64, Rng::new(1))
    }

    fn stage(offset: u64) -> Place {
        Place::new(Area::Stage, offset)
    }

    #[test]
    fn the_checksum_is_the_one_of_iscsi() {
        let mut memory = memory();
        memory.store(stage(0), b"123456789");
        assert_eq!(memory.checksum(stage(0), 9), 0xE306_9283);
    }

    #[test]
    fn a_kill_keeps_the_operations_before_it_and_none_after_it() {
        for seed in 0..50 {
            let mut memory = SimMemory::new(64, 64, 64, Rng::new(seed));
            memory.arm(1);
            memory.store(stage(0), &[1; 16]);
            assert!(!memory.is_killed());
            memory.store(stage(16), &[2; 16]);
            assert!(memory.is_killed());
            memory.store(stage(32), &[3; 16]);
            assert_eq!(
                memory.gather(&[Slice {
                    place: stage(32),
                    bytes: 16
                }]),
                [3; 16]
            );
            memory.restart();
            let after = memory.gather(&[Slice {
                place: stage(0),
                bytes: 64,
            }]);
            assert_eq!(after[..16], [1; 16]);
            assert!(after[16..32].iter().all(|&byte| byte == 0 || byte == 2));
            assert_eq!(after[32..], [0; 32]);
        }
    }

    #[test]
    fn a_power_loss_takes_the_stage_along() {
        let mut memory = memory();
        memory.store(stage(0), &[1; 16]);
        memory.restart();
        assert_eq!(
            memory.gather(&[Slice {
                place: stage(0),
                bytes: 1
            }]),
            [1]
        );
        memory.power_loss(false);
        assert_eq!(
            memory.gather(&[Slice {
                place: stage(0),
                bytes: 1
            }]),
            [0]
        );
    }

    #[test]
    #[should_panic(expected = "used after its request was answered")]
    fn a_released_buffer_cannot_be_used() {
        let mut memory = memory();
        let id = memory.buffer_add(vec![0; 512]);
        memory.buffer_remove(id);
        memory.zero(Place::new(Area::Buffer(id), 0), 512);
    }
}
