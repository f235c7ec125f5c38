//! The memory of a host as plain bytes, for tests of the parts that arrange it.
//!
//! Always true: an area has the length it was made with, and a range beyond it panics; requests
//! share one buffer, whatever their number.

use super::{Area, Memory, Place};
use crate::format::checksum;
use alloc::vec;
use alloc::vec::Vec;

#[derive(Default)]
pub struct Bytes {
    pub stage: Vec<u8>,
    pub ram: Vec<u8>,
    pub scratch: Vec<u8>,
    pub buffer: Vec<u8>,
}

impl Bytes {
    fn area(&mut self, area: Area) -> &mut Vec<u8> {
        match area {
            Area::Stage => &mut self.stage,
            Area::Ram => &mut self.ram,
            Area::Scratch => &mut self.scratch,
            Area::Buffer(_) => &mut self.buffer,
        }
    }

    pub fn get(&self, from: Place, bytes: u64) -> &[u8] {
        let area = match from.area {
            Area::Stage => &self.stage,
            Area::Ram => &self.ram,
            Area::Scratch => &self.scratch,
            Area::Buffer(_) => &self.buffer,
        };
        &area[from.offset as usize..(from.offset + bytes) as usize]
    }
}

impl Memory for Bytes {
    fn copy(&mut self, from: Place, to: Place, bytes: u64) {
        let copied = self.get(from, bytes).to_vec();
        self.store(to, &copied);
    }

    fn zero(&mut self, to: Place, bytes: u64) {
        self.store(to, &vec![0; bytes as usize]);
    }

    fn store(&mut self, to: Place, bytes: &[u8]) {
        let at = to.offset as usize;
        self.area(to.area)[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn load(&self, from: Place, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.get(from, bytes.len() as u64));
    }

    fn stage_bytes(&self) -> u64 {
        self.stage.len() as u64
    }

    fn checksum(&self, from: Place, bytes: u64) -> u32 {
        checksum(&[self.get(from, bytes)])
    }
}
