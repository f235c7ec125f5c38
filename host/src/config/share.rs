//! Reserves of the log: what all volumes of a configuration ask for together must be there.
//!
//! Always true: reserves sum to at most half of what the log may keep dirty, so that no volume
//! starves for another's. Deliberately absent: how room is given, which the engine decides.

use super::{Cache, Volume, Wrong, units};
use engine::types::BLOCK_BYTES;
use std::io::{Seek, SeekFrom};

/// What the volumes of a cache may reserve together; `None` for a size that is no cache's.
pub fn bytes_max(cache: &Cache) -> Option<u64> {
    let found = std::fs::File::open(&cache.path);
    // A cache that is there has its size, whatever the configuration says.
    let found = found.and_then(|mut file| file.seek(SeekFrom::End(0)));
    let bytes = found.ok().filter(|bytes| *bytes > 0);
    let geometry = engine::engine::geometry_for(bytes.unwrap_or(cache.size_bytes)).ok()?;
    Some(geometry.dirty_blocks_max() * BLOCK_BYTES / 2)
}

/// The first volume whose reserve does not fit beside those before it.
pub fn check<'a>(cache: &Cache, volumes: &'a [Volume]) -> Result<(), (&'a Volume, Wrong)> {
    let Some(max) = bytes_max(cache) else {
        return Ok(());
    };
    let mut left = max;
    for volume in volumes {
        let min = volume.share.min_bytes;
        match left.checked_sub(min) {
            Some(rest) => left = rest,
            None => return Err((volume, too_much(min, max, left))),
        }
    }
    Ok(())
}

/// What to say of a reserve that does not fit.
pub fn too_much(min_bytes: u64, max: u64, left: u64) -> Wrong {
    let min = units::show_size(min_bytes);
    let what = match left == max {
        true => format!("min = \"{min}\" is more than half of the log"),
        false => {
            format!("min = \"{min}\" and those of other volumes are more than half of the log")
        }
    };
    let left = units::show_size(left >> 20 << 20);
    Wrong::new(
        what,
        format!("write at most min = \"{left}\", or enlarge the cache"),
    )
}
