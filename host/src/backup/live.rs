//! The bitmap of what changes now: memory that outlives the daemon.
//!
//! ```text
//! page 0: head (see `file`, state *live*) │ from 4096 on: the words of the bitmap
//! ```
//!
//! Owns the file `<stage-dir>/tenuto-<cache uuid>.<volume>.<number of this bitmap>`. Always true:
//! the shard sets a bit before the engine hears of the change, so that a daemon which is killed at
//! any instant leaves no change without its bit; every page is allocated; only a file of this boot,
//! of this number and of this user is taken, so that none from before a power loss is. Deliberately
//! absent: what the bits are between (`chain`).

use super::bitmap::{BITMAP_BYTES_MAX, Bitmap, GRAIN_BYTES, words_for};
use super::file::{HEAD_BYTES, Head, State};
use crate::buffer::Arena;
use crate::sys;
use engine::types::{SECTOR_BYTES, Uuid};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Where the words begin.
const WORDS_AT: u64 = 4096;

/// Sets bits from one thread, and is read from others.
#[derive(Debug)]
pub struct Live {
    arena: Arena,
    path: PathBuf,
    size_bytes: u64,
    pub number: Uuid,
}

/// Whose bitmaps they are, and where they lie.
#[derive(Clone, Debug)]
pub struct Place {
    pub stage_dir: PathBuf,
    pub cache: Uuid,
    pub boot: Uuid,
}

impl Place {
    fn path(&self, volume: &str, number: Uuid) -> PathBuf {
        let (cache, number) = (self.cache, number);
        self.stage_dir
            .join(format!("tenuto-{cache}.{volume}.{number}"))
    }

    fn head(&self, volume: &str, number: Uuid, size_bytes: u64) -> Head {
        Head {
            state: State::Live,
            volume: volume.to_owned(),
            size_bytes,
            boot: self.boot,
            number,
            ..Head::default()
        }
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // The directory may be writable for everyone.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    options
}

impl Live {
    /// A bitmap in which nothing has changed.
    pub fn create(place: &Place, volume: &str, number: Uuid, size_bytes: u64) -> io::Result<Live> {
        let words_bytes = words_for(size_bytes) * 8;
        if words_bytes > BITMAP_BYTES_MAX {
            let why = "disks of at most 16 TiB are tracked in this version";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let path = place.path(volume, number);
        let mut file = options().create_new(true).open(&path)?;
        let bytes = WORDS_AT + words_bytes;
        let allocated = match sys::lacks(&file, bytes) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => sys::fallocate(&file, 0, 0, bytes),
        };
        let head = place.head(volume, number, size_bytes).encode();
        let made = allocated.and_then(|()| file.write_all(&head));
        let mapped = made.and_then(|()| Arena::shared(&file, bytes));
        match mapped {
            Ok(arena) => Ok(Live {
                arena,
                path,
                size_bytes,
                number,
            }),
            Err(error) => {
                // Best effort: no later start takes it.
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// The bitmap of an earlier daemon of this boot; `None` where it is not there or not whole.
    pub fn find(place: &Place, volume: &str, number: Uuid, size_bytes: u64) -> Option<Live> {
        let path = place.path(volume, number);
        let mut file = options().open(&path).ok()?;
        let meta = file.metadata().ok()?;
        let ours = meta.is_file() && meta.nlink() == 1 && meta.uid() == sys::effective_uid();
        let bytes = WORDS_AT + words_for(size_bytes).checked_mul(8)?;
        if !ours || meta.mode() & 0o077 != 0 || meta.len() != bytes {
            return None;
        }
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head).ok()?;
        if Head::parse(&head).ok()? != place.head(volume, number, size_bytes) {
            return None;
        }
        // A hole would have to be allocated when it is touched.
        sys::fallocate(&file, 0, 0, bytes).ok()?;
        let arena = Arena::shared(&file, bytes).ok()?;
        Some(Live {
            arena,
            path,
            size_bytes,
            number,
        })
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Sectors are about to change. What lies behind the end counts as changed anyway.
    pub fn mark(&self, sector: u64, sectors: u64) {
        self.mark_bytes(sector * SECTOR_BYTES, sectors * SECTOR_BYTES);
    }

    pub fn mark_bytes(&self, at: u64, bytes: u64) {
        let end = at.saturating_add(bytes).min(self.size_bytes);
        let mut grain = at / GRAIN_BYTES;
        let grains = end.div_ceil(GRAIN_BYTES);
        while grain < grains {
            let upto = (grain / 64 + 1) * 64;
            let count = upto.min(grains) - grain;
            let bits = u64::MAX >> (64 - count) << (grain % 64);
            let word = &self.arena.words()[(WORDS_AT / 8 + grain / 64) as usize];
            // Most writes go where one was before.
            if word.load(Ordering::Relaxed) & bits != bits {
                word.fetch_or(bits, Ordering::SeqCst);
            }
            grain += count;
        }
    }

    pub fn mark_all_of(&self, bitmap: &Bitmap) {
        let bitmap = bitmap.resized(self.size_bytes);
        let words = &self.arena.words()[(WORDS_AT / 8) as usize..];
        for (word, more) in words.iter().zip(bitmap.words) {
            word.fetch_or(more, Ordering::SeqCst);
        }
    }

    /// As it is now.
    pub fn bitmap(&self) -> Bitmap {
        let words = &self.arena.words()[(WORDS_AT / 8) as usize..];
        let words = &words[..words_for(self.size_bytes) as usize];
        let words = words.iter().map(|word| word.load(Ordering::SeqCst));
        Bitmap::of(words.collect(), self.size_bytes)
    }

    /// Takes its file away; the memory stays as long as this.
    pub fn remove(&self) {
        remove_at(&self.path);
    }

    /// The same of one that is not open.
    pub fn remove_of(place: &Place, volume: &str, number: Uuid) {
        remove_at(&place.path(volume, number));
    }
}

/// What is left is taken by no later start.
fn remove_at(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("{}: cannot be removed: {error}", path.display());
    }
}
