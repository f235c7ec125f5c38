//! A plain write of a file: what the storage takes from a program that only copies.
//!
//! Owns the file and its threads. Always true: no page cache is in between; each place is written
//! once; the time ends behind the sync. Deliberately absent: a look at the bytes.

use crate::bench::pipe::noise;
use crate::bench::work::BLOCK_BYTES;
use host::buffer::{BUFFER_BYTES_MAX, BufferPool};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// As many as a destage has at the image at once.
const THREADS: usize = 32;

pub struct Plain {
    file: File,
    piece_bytes: u64,
}

impl Plain {
    /// Of one write, where a file is written in one run.
    pub const RUN_BYTES: u64 = 1 << 20;

    pub fn new(path: &Path, piece_bytes: u64) -> io::Result<Plain> {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(libc::O_DIRECT);
        let file = options.open(path)?;
        Ok(Plain { file, piece_bytes })
    }

    /// All places in their order, many at once, and a sync.
    pub fn write(&self, places: &[u64]) -> io::Result<Duration> {
        // Large writes need fewer at once to keep a storage busy.
        let threads = match self.piece_bytes >= Plain::RUN_BYTES {
            true => THREADS / 4,
            false => THREADS,
        };
        let pools = (0..threads).map(|_| BufferPool::new(BUFFER_BYTES_MAX));
        let mut pools = pools.collect::<io::Result<Vec<BufferPool>>>()?;
        let next = AtomicUsize::new(0);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let loops: Vec<_> = pools
                .iter_mut()
                .map(|pool| scope.spawn(|| self.write_each(pool, places, &next)))
                .collect();
            let mut ends = loops.into_iter().map(|it| it.join().expect("no panic"));
            ends.find_map(Result::err).map_or(Ok(()), Err)
        })?;
        self.file.sync_data()?;
        Ok(begun.elapsed())
    }

    fn write_each(
        &self,
        pool: &mut BufferPool,
        places: &[u64],
        next: &AtomicUsize,
    ) -> io::Result<()> {
        let buffer = pool.allocate(self.piece_bytes);
        let buffer = buffer.ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes = pool.bytes(buffer);
        bytes.copy_from_slice(&noise().repeat((self.piece_bytes / BLOCK_BYTES) as usize));
        while let Some(at) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            self.file.write_all_at(bytes, *at)?;
        }
        Ok(())
    }
}
