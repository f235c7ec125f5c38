//! What the index of clean data of clones takes, and their tables.
//!
//! Owns a cache of its own that is filled by what clones read of their base, in order, up to 85 %
//! of it. Always true: the index is all that the daemon calls so, of the log, of RAM, and of the
//! clean data with its checksums; what it took before anything was clean stands beside it, because
//! a part of it grows with the cache and not with what is in it; tables of images are apart.

use super::host::{Host, failed};
use super::options::Options;
use crate::bench::own_process::number;
use crate::place::Place;
use host::error::Result;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Of the cache.
pub const FILL: f64 = 0.85;
/// Of the bytes that are clean.
pub const PART_WANTED: f64 = 0.001_38;
const CLONES: usize = 4;
const RAM_BYTES: u64 = 16 << 20;
const PIECE_BYTES: u64 = 64 << 10;
/// Between two looks at how full it is.
const STRETCH_BYTES: u64 = 4 << 20;
/// So long after it has grown for the last time the cache is called as full as it gets.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Memory {
    cache_bytes: u64,
    clean_bytes: u64,
    empty_index_bytes: u64,
    index_bytes: u64,
    /// Of each clone.
    table_bytes: Vec<u64>,
    /// Of the base, read by the clones.
    read_bytes: u64,
}

impl Memory {
    pub fn fill(&self) -> f64 {
        self.clean_bytes as f64 / self.cache_bytes as f64
    }

    /// For each byte that is clean.
    pub fn index_part(&self) -> f64 {
        self.index_bytes as f64 / self.clean_bytes as f64
    }

    /// The same, without what there was before.
    pub fn grown_part(&self) -> f64 {
        let grown = self.index_bytes.saturating_sub(self.empty_index_bytes);
        grown as f64 / self.clean_bytes as f64
    }

    pub fn table_bytes(&self) -> u64 {
        self.table_bytes.iter().sum()
    }

    /// For each byte of the base that the clones have read.
    pub fn table_part(&self) -> f64 {
        self.table_bytes() as f64 / self.read_bytes as f64
    }

    pub fn is_proven(&self) -> bool {
        self.fill() >= FILL
    }

    pub fn text(&self) -> String {
        format!(
            "a cache of {} MiB with {} MiB of clean data, {:.1} % of it; index of {} KiB, {} KiB \
             of it before anything was clean; tables of {CLONES} clones that have read {} MiB: {} \
             KiB",
            self.cache_bytes >> 20,
            self.clean_bytes >> 20,
            self.fill() * 100.0,
            self.index_bytes >> 10,
            self.empty_index_bytes >> 10,
            self.read_bytes >> 20,
            self.table_bytes() >> 10,
        )
    }

    pub fn document(&self) -> Value {
        json!({
            "proven": self.is_proven(),
            "cache_bytes": self.cache_bytes,
            "clean_bytes": self.clean_bytes,
            "fill": self.fill(),
            "index_bytes": self.index_bytes,
            "empty_index_bytes": self.empty_index_bytes,
            "index_part": self.index_part(),
            "grown_part": self.grown_part(),
            "part_wanted": PART_WANTED,
            "clones": CLONES,
            "read_bytes": self.read_bytes,
            "metadata_ram_bytes": self.table_bytes,
            "metadata_ram_part": self.table_part(),
        })
    }
}

fn cache(host: &Host, key: &str) -> Result<u64> {
    number(&host.status()?["cache"][key])
}

fn clean_bytes(host: &Host) -> Result<u64> {
    number(&host.status()?["cache"]["clean"]["bytes"])
}

pub fn run(place: &Place, options: &Options) -> Result<Memory> {
    let host = Host::beside_base(place, options.fill_bytes, RAM_BYTES)?;
    let names: Vec<String> = (0..CLONES)
        .map(|number| format!("reader-{number}"))
        .collect();
    for name in &names {
        host.add_clone(name, &[("admission", "all")])?;
    }
    let empty_index_bytes = cache(&host, "index_bytes")?;
    let read_bytes = fill(&host, &names, options)?;
    let mut table_bytes = Vec::new();
    for name in &names {
        table_bytes.push(number(&host.volume(name)?["image"]["metadata_ram_bytes"])?);
    }
    let memory = Memory {
        cache_bytes: cache(&host, "size_bytes")?,
        clean_bytes: clean_bytes(&host)?,
        empty_index_bytes,
        index_bytes: cache(&host, "index_bytes")?,
        table_bytes,
        read_bytes,
    };
    host.stop()?;
    Ok(memory)
}

/// Reads the base again and again, each piece through the next clone, until so much of the cache
/// is clean data or no more comes; how far it came into the base.
fn fill(host: &Host, names: &[String], options: &Options) -> Result<u64> {
    let mut clients = names
        .iter()
        .map(|name| host.client(name))
        .collect::<Result<Vec<_>>>()?;
    let wanted = (cache(host, "size_bytes")? as f64 * FILL).ceil() as u64;
    let mut bytes = vec![0; PIECE_BYTES as usize];
    let (mut clean, mut grown, mut most) = (0, Instant::now(), 0);
    loop {
        for offset in (0..options.data_bytes).step_by(PIECE_BYTES as usize) {
            let turn = (offset / PIECE_BYTES) as usize % clients.len();
            clients[turn].read(offset, &mut bytes).map_err(failed)?;
            most = most.max(offset + PIECE_BYTES);
            if !offset.is_multiple_of(STRETCH_BYTES) {
                continue;
            }
            let now = clean_bytes(host)?;
            if now > clean {
                (clean, grown) = (now, Instant::now());
            }
            if clean >= wanted || grown.elapsed() > PATIENCE {
                return Ok(most);
            }
        }
    }
}
