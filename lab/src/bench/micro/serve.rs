//! Our side of a row: the product with one volume that is in the state the row asks for.
//!
//! Always true: a volume is brought to its state through its socket, as a guest would, and only
//! then measured; the counters tell what the measured requests met.

use super::Options;
use super::peer::device_bytes;
use super::row::{HOT_BLOCKS, Row};
use super::transport::Transport;
use crate::bench::direct::Direct;
use crate::bench::pipe::noise;
use crate::bench::work::{BLOCK_BYTES, Carrier, Verb, Work};
use crate::client::Client;
use crate::in_process::{Host, Sizes, volume};
use crate::place::Place;
use engine::types::Policy;
use host::daemon::Exports;
use host::error::{Error, Result};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NAME: &str = "disk";
/// A volume that is never written: a flush of it is a round trip and nothing else.
const CLEAN: &str = "clean";
const PIECE_BYTES: usize = 1 << 20;
/// Far smaller than what is read from the device, so that a lap finds nothing in it.
const SMALL_RAM_BYTES: u64 = 16 << 20;
const LARGE_RAM_BYTES: u64 = 256 << 20;
const CACHE_BYTES: u64 = 1 << 30;
/// Until all blocks that were read are on the cache device.
const FILL_MAX: Duration = Duration::from_secs(120);

/// What the product counted over all slots of a row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub reads: u64,
    pub read_bytes: u64,
    pub ram_hits: u64,
    pub ssd_hits: u64,
    pub origin_reads: u64,
    pub writes: u64,
    pub flushes: u64,
    /// Bytes read from the cache device, and writes of its log, as the product counts them.
    pub device_read_bytes: u64,
    pub log_writes: u64,
    pub ssd_write_bytes: u64,
    pub held_writes: u64,
    /// What the kernel counted for this process, all slots of it.
    pub kernel_read_bytes: u64,
    pub kernel_write_bytes: u64,
}

pub struct Ours {
    host: Host,
    image: PathBuf,
    pub pipe: Box<dyn Carrier>,
    /// For empty round trips.
    pub clean: Box<dyn Carrier>,
}

impl Ours {
    pub fn start(place: &Place, options: &Options, row: Row) -> Result<Ours> {
        // Names of their own, because a ledger stays beside an image that was written.
        let name = |what: &str| place.path(&format!("{}-{what}.img", row.name()));
        let (image, clean) = (name("ours"), name("clean"));
        let blocks = row.range(options).end;
        make_file(&image, blocks)?;
        make_file(&clean, 1)?;
        let policy = match row {
            Row::SsdRead => Policy::Ephemeral,
            _ => Policy::WriteBack,
        };
        let mut disk = volume(NAME, image.clone(), policy);
        disk.destage_after = None;
        let mut clean = volume(CLEAN, clean, Policy::WriteBack);
        for volume in [&mut disk, &mut clean] {
            // What brings a volume to its state speaks NBD.
            volume.exports = Exports {
                vhost_user: matches!(options.transport, Transport::VhostUser { .. }),
                nbd: true,
            };
        }
        let bytes = blocks * BLOCK_BYTES;
        let sizes = Sizes {
            cache_bytes: CACHE_BYTES.max(2 * bytes),
            ram_bytes: match row {
                Row::SsdRead => SMALL_RAM_BYTES,
                _ => LARGE_RAM_BYTES,
            },
        };
        let host = Host::start(place, sizes, vec![disk, clean])?;
        let connect = |name| {
            let rings = host.rings(name);
            let connected = options
                .transport
                .connect(options, (host.socket(), name), &rings);
            connected.map_err(failed)
        };
        let mut ours = Ours {
            pipe: connect(NAME)?,
            clean: connect(CLEAN)?,
            host,
            image,
        };
        ours.prepare(options, row)?;
        Ok(ours)
    }

    fn prepare(&mut self, options: &Options, row: Row) -> Result<()> {
        let blocks = row.range(options).end;
        match row {
            Row::RamRead => (0..2).try_for_each(|_| self.read_all(blocks)),
            Row::SsdRead => {
                self.fill(blocks)?;
                // What is measured leaves RAM.
                self.read_all(row.range(options).start)
            }
            Row::StagedWrite | Row::WriteFlush => {
                // Once around the log: its first lap writes zeroes ahead, later ones do not.
                let mut first = Work::only(Verb::Write, 0..blocks, options.deepest().min(32));
                first.left = Some(CACHE_BYTES / BLOCK_BYTES);
                let long = Duration::from_secs(3600);
                self.pipe.carry(&mut first, long).map(drop).map_err(failed)
            }
        }
    }

    fn read_all(&self, blocks: u64) -> Result<()> {
        let mut client = Client::connect(self.host.socket(), NAME).map_err(failed)?;
        let mut bytes = vec![0; PIECE_BYTES];
        for offset in (0..blocks * BLOCK_BYTES).step_by(PIECE_BYTES) {
            let count = PIECE_BYTES.min((blocks * BLOCK_BYTES - offset) as usize);
            client.read(offset, &mut bytes[..count]).map_err(failed)?;
        }
        Ok(())
    }

    /// Reads until every block is among the clean ones on the cache device.
    fn fill(&self, blocks: u64) -> Result<()> {
        let begun = Instant::now();
        while self.host.snapshot()?.lines.blocks < blocks {
            if begun.elapsed() > FILL_MAX {
                return Err(Error::failed(format!(
                    "volume {NAME}: only {} of {blocks} blocks came to the cache device",
                    self.host.snapshot()?.lines.blocks
                )));
            }
            self.read_all(blocks)?;
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    pub fn counters(&self) -> Result<Counters> {
        let snapshot = self.host.snapshot()?;
        let volume = self.host.volume(NAME)?;
        let counters = &volume.counters;
        let (kernel_read_bytes, kernel_write_bytes) = device_bytes(None).unwrap_or_default();
        Ok(Counters {
            reads: counters.reads.requests,
            read_bytes: counters.reads.bytes,
            ram_hits: counters.reads.ram_hits,
            ssd_hits: counters.reads.ssd_hits,
            origin_reads: counters.reads.origin,
            writes: counters.writes.requests,
            flushes: counters.flushes,
            device_read_bytes: counters.ssd_read_bytes,
            log_writes: snapshot.log_writes,
            ssd_write_bytes: counters.ssd_write_bytes,
            held_writes: volume.flow.held_writes,
            kernel_read_bytes,
            kernel_write_bytes,
        })
    }

    pub fn stop(self) -> Result<()> {
        drop((self.pipe, self.clean));
        let stopped = self.host.stop();
        // The directory goes away anyway; this only keeps the peak low.
        let _ = fs::remove_file(self.image);
        stopped
    }
}

impl Counters {
    pub fn since(self, before: Counters) -> Counters {
        Counters {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            ram_hits: self.ram_hits - before.ram_hits,
            ssd_hits: self.ssd_hits - before.ssd_hits,
            origin_reads: self.origin_reads - before.origin_reads,
            writes: self.writes - before.writes,
            flushes: self.flushes - before.flushes,
            device_read_bytes: self.device_read_bytes - before.device_read_bytes,
            log_writes: self.log_writes - before.log_writes,
            ssd_write_bytes: self.ssd_write_bytes - before.ssd_write_bytes,
            held_writes: self.held_writes - before.held_writes,
            kernel_read_bytes: self.kernel_read_bytes - before.kernel_read_bytes,
            kernel_write_bytes: self.kernel_write_bytes - before.kernel_write_bytes,
        }
    }

    pub fn plus(self, more: Counters) -> Counters {
        Counters {
            reads: self.reads + more.reads,
            read_bytes: self.read_bytes + more.read_bytes,
            ram_hits: self.ram_hits + more.ram_hits,
            ssd_hits: self.ssd_hits + more.ssd_hits,
            origin_reads: self.origin_reads + more.origin_reads,
            writes: self.writes + more.writes,
            flushes: self.flushes + more.flushes,
            device_read_bytes: self.device_read_bytes + more.device_read_bytes,
            log_writes: self.log_writes + more.log_writes,
            ssd_write_bytes: self.ssd_write_bytes + more.ssd_write_bytes,
            held_writes: self.held_writes + more.held_writes,
            kernel_read_bytes: self.kernel_read_bytes + more.kernel_read_bytes,
            kernel_write_bytes: self.kernel_write_bytes + more.kernel_write_bytes,
        }
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("volume {NAME}: {error}"))
}

/// A file of written blocks.
pub fn make_file(path: &Path, blocks: u64) -> Result<()> {
    let make = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).open(path)?;
        let piece = noise().repeat(PIECE_BYTES / BLOCK_BYTES as usize);
        let mut left = blocks * BLOCK_BYTES;
        while left > 0 {
            let count = left.min(piece.len() as u64);
            file.write_all(&piece[..count as usize])?;
            left -= count;
        }
        file.sync_all()
    };
    make().map_err(|error| Error::failed(format!("{}: {error}", path.display())))
}

/// A file that no cache stands before.
pub fn direct(path: &Path) -> Result<Direct> {
    let direct = Direct::open(path);
    direct.map_err(|error| {
        Error::failed(format!(
            "{}: no direct input and output here ({error}); name another --path",
            path.display()
        ))
    })
}

/// Blocks that fit the RAM tier with room to spare.
const _: () = assert!(HOT_BLOCKS * BLOCK_BYTES * 2 <= LARGE_RAM_BYTES);
