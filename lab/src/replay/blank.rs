//! Devices that keep what is written before anything is served, in pages; blank elsewhere.

use engine::event::{Device, IoError, Stat};
use engine::media::Media;
use engine::types::BLOCK_BYTES;
use std::collections::HashMap;

/// Of every device, whoever asks.
pub const STAT: Stat = Stat {
    size_bytes: 0,
    mtime_ns: 1,
    now_ns: 2,
    print: None,
    image: None,
    named: engine::image::Named::Unknown,
};

#[derive(Default)]
pub struct Blank {
    pages: HashMap<(Device, u64), Vec<u8>>,
}

impl Blank {
    /// Calls `part` for each page of the range with its bounds in page and range.
    fn pages(offset: u64, bytes: usize, mut part: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let inside = (at % BLOCK_BYTES) as usize;
            let length = (BLOCK_BYTES as usize - inside).min(bytes - done);
            part(at / BLOCK_BYTES, inside, done..done + length);
            done += length;
        }
    }
}

impl Media for Blank {
    fn read(&mut self, device: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        Blank::pages(offset, bytes.len(), |page, inside, range| {
            match self.pages.get(&(device, page)) {
                Some(kept) => {
                    let length = range.len();
                    bytes[range].copy_from_slice(&kept[inside..inside + length]);
                }
                None => bytes[range].fill(0),
            }
        });
        Ok(())
    }

    fn write(&mut self, device: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        Blank::pages(offset, bytes.len(), |page, inside, range| {
            let kept = self.pages.entry((device, page));
            let kept = kept.or_insert_with(|| vec![0; BLOCK_BYTES as usize]);
            kept[inside..inside + range.len()].copy_from_slice(&bytes[range]);
        });
        Ok(())
    }

    fn zero(&mut self, device: Device, offset: u64, bytes: u64) -> Result<(), IoError> {
        let zeroes = vec![0; bytes as usize];
        self.write(device, offset, &zeroes)
    }

    fn sync(&mut self, _device: Device) -> Result<(), IoError> {
        Ok(())
    }

    fn stat(&mut self, _device: Device) -> Result<Stat, IoError> {
        Ok(STAT)
    }
}
