//! A guest that reads, and knows what must be there.
//!
//! Owns the content of its disk and the choice of its blocks. Always true: each sector of the image
//! carries its place from the start, and a read that finds anything else ends the run; one request
//! is in flight. Deliberately absent: writes, which are of blocks that it does not look at.

use crate::bench::work::{BLOCK_BYTES, Sample};
use crate::client::Client;
use crate::interrupt::Interrupt;
use host::error::{Error, Result, cause};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use workload::rng::Rng;
use workload::stamp::{self, Reading, SECTOR_BYTES};

const TAG: u64 = 1;
const SERIAL: u64 = 1;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES as u64;
/// Of an image that is made, and of a disk that is read from its begin to its end.
pub const PIECE_BYTES: u64 = 1 << 20;

pub fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("the guest of bench migrate: {}", cause(&error)))
}

/// An image of this size, whole pieces, that has stamps from this byte on.
pub fn make_stamped(path: &Path, from: u64, bytes: u64) -> Result<()> {
    let mut piece = vec![0; PIECE_BYTES as usize];
    let made = File::create(path).and_then(|file| {
        file.set_len(bytes)?;
        for at in (from..bytes).step_by(piece.len()) {
            stamp::fill(&mut piece, TAG, at / SECTOR_BYTES as u64, SERIAL);
            file.write_all_at(&piece, at)?;
        }
        Ok(())
    });
    made.map_err(|error| Error::failed(format!("{}: {}", path.display(), cause(&error))))
}

/// The guest at one host.
pub struct Guest {
    client: Client,
    block: [u8; BLOCK_BYTES as usize],
}

impl Guest {
    pub fn at(socket: &Path, export: &str) -> Result<Guest> {
        Ok(Guest {
            client: Client::connect(socket, export).map_err(failed)?,
            block: [0; BLOCK_BYTES as usize],
        })
    }

    /// Reads all of the first so many bytes, one piece after the other.
    pub fn read_all(&mut self, bytes: u64) -> Result<()> {
        let mut piece = vec![0; PIECE_BYTES as usize];
        for at in (0..bytes).step_by(piece.len()) {
            self.client.read(at, &mut piece).map_err(failed)?;
            judge(&piece, at)?;
        }
        Ok(())
    }

    pub fn read(&mut self, offset: u64) -> Result<Duration> {
        let sent = Instant::now();
        self.client.read(offset, &mut self.block).map_err(failed)?;
        let took = sent.elapsed();
        judge(&self.block, offset)?;
        Ok(took)
    }

    /// Reads blocks of the first so many bytes at random, for so long since a moment.
    pub fn watch(
        &mut self,
        (bytes, mut random): (u64, Rng),
        (began, lasts): (Instant, Duration),
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        while began.elapsed() < lasts {
            interrupt.check()?;
            let block = random.scaled(bytes / BLOCK_BYTES);
            let latency = self.read(block * BLOCK_BYTES)?;
            let at = began.elapsed();
            samples.push(Sample { at, latency });
        }
        Ok(samples)
    }
}

/// Every sector must carry its place.
fn judge(bytes: &[u8], offset: u64) -> Result<()> {
    let first = offset / BLOCK_BYTES * BLOCK_SECTORS;
    for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
        let (tag, serial) = (TAG, SERIAL);
        let found = stamp::read(bytes);
        let right = Reading::Stamped {
            tag,
            sector,
            serial,
        };
        if found != right {
            return Err(Error::failed(format!(
                "bench migrate: sector {sector} has {found:?} instead of what was written there"
            )));
        }
    }
    Ok(())
}
