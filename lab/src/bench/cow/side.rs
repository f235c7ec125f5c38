//! The two sides of a comparison: a cache that knows what copy-on-write is, and one below it.
//!
//! Owns the engine that a load is served by, and what came of it. Always true: both sides are the
//! same engine with the same log, cache and admission, in virtual time; below the stacked disk it
//! serves two raw volumes and knows nothing of tables, on the other side one volume on a qcow2
//! image over a raw base. Everything dirty is at the storage when a side is measured. Deliberately
//! absent: how long a guest waits, which this cannot say.

use super::trace::Timed;
use crate::replay::kept::{self, Files};
use crate::replay::machine::{Ask, Machine, Sizes};
use crate::replay::offline::Volume;
use crate::replay::tally::{Count, Flash, Origin};
use engine::event::{Admission, Command, VolumeSpec};
use engine::types::{BLOCK_BYTES, DestageMode, Policy, SECTOR_BYTES, Time, Uuid, VolumeId};
use host::error::{Error, Result};
use host::origin::san::Params;
use image::create::Shape;
use workload::stacked::{self, Request, Stacked, What};

/// Requests of guests under way at once.
pub const DEPTH: usize = 32;
/// Small, because the paper has no cache of data in RAM.
const RAM_BYTES: u64 = 16 << 20;
const STAGE_BYTES: u64 = 64 << 20;
const CACHE_LATENCY_NS: u64 = 100_000;
const ORIGIN_LATENCY_NS: u64 = 1_000_000;
/// The stacked delta is so much longer than the disk, at most, for its tables.
const DELTA_TIMES: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A copy-on-write disk over a cache that takes it for files.
    Stacked(Policy),
    /// A volume on an image with clusters of 64 KiB, or of 128 KiB with subclusters.
    Mapped(Shape, Policy),
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Stacked(Policy::Uncached) => "qcow2 without a cache",
            Kind::Stacked(Policy::WriteThrough) => "TRDCache, write-through",
            Kind::Stacked(_) => "TRDCache, write-back",
            Kind::Mapped(Shape::Plain, Policy::WriteThrough) => {
                "Tenuto, 64 KiB clusters, write-through"
            }
            Kind::Mapped(Shape::Extended, Policy::WriteThrough) => {
                "Tenuto, subclusters, write-through"
            }
            Kind::Mapped(Shape::Plain, _) => "Tenuto, 64 KiB clusters",
            Kind::Mapped(Shape::Extended, _) => "Tenuto, subclusters",
        }
    }

    fn policy(self) -> Policy {
        match self {
            Kind::Stacked(policy) | Kind::Mapped(_, policy) => policy,
        }
    }
}

/// When what is dirty goes to the storage.
#[derive(Clone, Copy, Debug)]
pub enum Destages {
    /// After so many requests of the guest.
    Every(u64),
    /// At this age in milliseconds, as a volume by itself does.
    After(u64),
}

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub kind: Kind,
    pub disk_bytes: u64,
    pub cache_bytes: u64,
    /// For tables of the image.
    pub table_ram_bytes: u64,
    /// Requests that the stacked disk takes for under way at once.
    pub in_flight: usize,
    /// What all volumes together may have dirty.
    pub dirty_limit_bytes: u64,
    pub destages: Destages,
    pub seed: u64,
}

/// What came of a load, with all of it at the storage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub requests: u64,
    pub written_bytes: u64,
    pub read_bytes: u64,
    /// What the volumes of the cache were asked to write.
    pub asked_bytes: u64,
    pub flash: Flash,
    /// Without what a new cache is prepared with.
    pub flash_write_bytes: u64,
    pub flash_read_bytes: u64,
    /// Tables of the image that were written to the cache device, at most.
    pub flash_table_bytes: u64,
    pub lookups: u64,
    /// Tables that a guest's request waited for, and their bytes.
    pub misses: Count,
    pub allocating_writes: u64,
    pub writes: u64,
    /// Up to the last answer, and with the destage behind it.
    pub origin_in_load: Origin,
    pub origin: Origin,
    /// Of a mapped image: tables that plans have read and made.
    pub plans: kept::Counts,
    /// When it held most.
    pub index_bytes: u64,
    /// Before anything was asked for.
    pub empty_index_bytes: u64,
    pub cached_bytes: u64,
}

impl Measured {
    pub fn network_bytes(&self) -> u64 {
        network_bytes(&self.origin)
    }

    /// Before the destage at the end.
    pub fn network_bytes_in_load(&self) -> u64 {
        network_bytes(&self.origin_in_load)
    }

    /// What the log takes beside what was written.
    pub fn header_bytes(&self) -> u64 {
        let log = self.flash.records.bytes + self.flash.footers.bytes;
        log.saturating_sub(self.asked_bytes)
    }

    pub fn misses_per_request(&self) -> f64 {
        self.misses.requests as f64 / self.requests.max(1) as f64
    }

    /// Tables that destages have read.
    pub fn later_per_request(&self) -> f64 {
        self.plans.plan_tables.requests as f64 / self.requests.max(1) as f64
    }

    /// Of all that the cache holds.
    pub fn index_share(&self) -> f64 {
        self.index_bytes as f64 / self.cached_bytes.max(1) as f64
    }
}

fn network_bytes(origin: &Origin) -> u64 {
    origin.reads.bytes + origin.writes.bytes + origin.journal.bytes + origin.ledger.bytes
}

enum Disk {
    Stacked {
        mapper: Box<Stacked>,
        /// The base, and the deltas over it.
        volumes: Vec<VolumeId>,
        requests: Vec<Request>,
    },
    Mapped {
        files: Files,
        volume: VolumeId,
    },
}

/// A load on one side.
pub struct Side {
    machine: Machine,
    disk: Disk,
    setup: Setup,
    measured: Measured,
}

/// What has happened up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Day {
    pub flash_bytes: u64,
    /// Reads that the cache had, and those that went to the storage.
    pub hits: u64,
    pub misses: u64,
}

const IDENTITY: Uuid = Uuid([9; 16]);

fn sizes(setup: &Setup) -> Sizes {
    Sizes {
        cache_bytes: setup.cache_bytes,
        ram_bytes: RAM_BYTES,
        stage_bytes: STAGE_BYTES,
        overlay_ram_bytes: 0,
        map_bytes: setup.table_ram_bytes,
        cache_latency_ns: CACHE_LATENCY_NS,
        san: Params {
            latency_ns: ORIGIN_LATENCY_NS,
            ..Params::default()
        },
        seed: setup.seed,
    }
}

fn spec(setup: &Setup, policy: Policy, number: u32, size_bytes: u64) -> VolumeSpec {
    let volume = Volume {
        policy,
        destage: DestageMode::Atomic,
        destage_after_ms: match setup.destages {
            Destages::Every(_) => None,
            Destages::After(millis) => Some(millis),
        },
        dirty_limit_bytes: setup.dirty_limit_bytes,
        origin_queue_depth: 32,
        admission: Admission::All,
    };
    volume.spec(number, size_bytes)
}

impl Side {
    pub fn new(setup: &Setup) -> Result<Side> {
        let mut machine = Machine::start(sizes(setup))?;
        let disk_bytes = setup.disk_bytes;
        let disk = match setup.kind {
            Kind::Stacked(policy) => {
                let base = machine.attach(spec(setup, policy, 0, disk_bytes))?;
                let delta = machine.attach(spec(setup, policy, 1, DELTA_TIMES * disk_bytes))?;
                let shape = stacked::Shape {
                    disk_bytes,
                    table_ram_bytes: setup.table_ram_bytes,
                    in_flight: setup.in_flight,
                };
                Disk::Stacked {
                    mapper: Box::new(Stacked::new(shape)),
                    volumes: vec![base, delta],
                    requests: Vec::new(),
                }
            }
            Kind::Mapped(shape, policy) => {
                let files = Files::over_raw(disk_bytes, shape).map_err(failed)?;
                let map = files.map(disk_bytes, IDENTITY).map_err(failed)?;
                let spec = spec(setup, policy, 0, disk_bytes);
                let volume = machine.attach_mapped(spec, map)?;
                Disk::Mapped { files, volume }
            }
        };
        let measured = Measured {
            empty_index_bytes: machine.snapshot().index_bytes,
            ..Measured::default()
        };
        Ok(Side {
            machine,
            disk,
            setup: *setup,
            measured,
        })
    }

    /// The next request of the guest.
    pub fn ask(&mut self, ask: Ask) -> Result<()> {
        self.wait_below(DEPTH)?;
        let measured = &mut self.measured;
        match ask {
            Ask::Read { sectors, .. } => {
                measured.requests += 1;
                measured.read_bytes += sectors * SECTOR_BYTES;
            }
            Ask::Write { sectors, .. } => {
                measured.requests += 1;
                measured.written_bytes += sectors * SECTOR_BYTES;
            }
            Ask::Discard { .. } | Ask::Flush => {}
        }
        match &mut self.disk {
            Disk::Stacked {
                mapper,
                volumes,
                requests,
            } => {
                match ask {
                    Ask::Read { sector, sectors } => mapper.read(sector, sectors, requests),
                    Ask::Write { sector, sectors } => mapper.write(sector, sectors, requests),
                    Ask::Flush => mapper.flush(requests),
                    Ask::Discard { .. } => {}
                }
                send(&mut self.machine, measured, volumes, requests)?;
                if ask == Ask::Flush {
                    let (now, top) = (self.machine.now(), volumes.len() - 1);
                    self.machine.ask(now, volumes[top], Ask::Flush)?;
                }
            }
            Disk::Mapped { volume, .. } => {
                measured.asked_bytes = measured.written_bytes;
                let now = self.machine.now();
                self.machine.ask(now, *volume, ask)?;
            }
        }
        match ask {
            // Who syncs waits for it.
            Ask::Flush => self.wait_below(1),
            _ if self.is_due() => self.destage(),
            _ => Ok(()),
        }
    }

    fn is_due(&self) -> bool {
        match self.setup.destages {
            Destages::Every(requests) => self.measured.requests.is_multiple_of(requests.max(1)),
            Destages::After(_) => false,
        }
    }

    /// The next request of the guest at its time, or later if too many are under way.
    pub fn ask_timed(&mut self, timed: &Timed) -> Result<()> {
        self.machine.run_until(Time(timed.at_ns));
        self.ask(timed.ask)
    }

    /// Waits until all is answered.
    pub fn wait_idle(&mut self) -> Result<()> {
        self.wait_below(1)
    }

    /// Reads that the cache had so far, and those that went to the storage.
    pub fn reads(&self) -> (u64, u64) {
        let volumes = self.machine.snapshot().volumes;
        let reads = volumes.iter().map(|volume| volume.counters.reads);
        reads.fold((0, 0), |(hits, misses), it| {
            (hits + it.ram_hits + it.ssd_hits, misses + it.origin)
        })
    }

    /// Lets a day pass; what has happened since the begin.
    pub fn end_day(&mut self, at: Time) -> Day {
        self.machine.run_until(at);
        self.look_at_index();
        let tally = &self.machine.tally;
        let (hits, misses) = self.reads();
        Day {
            flash_bytes: tally.flash_writes.bytes - tally.flash.prepared.bytes,
            hits,
            misses,
        }
    }

    /// What the disk has now is frozen, and it goes on in a new file.
    pub fn snapshot(&mut self) -> Result<()> {
        self.wait_below(1)?;
        let (disk_bytes, policy) = (self.setup.disk_bytes, self.setup.kind.policy());
        if let Disk::Stacked {
            mapper,
            volumes,
            requests,
        } = &mut self.disk
        {
            mapper.snapshot(requests);
            send(&mut self.machine, &mut self.measured, volumes, requests)?;
            let spec = spec(
                &self.setup,
                policy,
                volumes.len() as u32,
                DELTA_TIMES * disk_bytes,
            );
            volumes.push(self.machine.attach(spec)?);
            return self.wait_below(1);
        }
        let (Kind::Mapped(shape, _), Disk::Mapped { files, volume }) =
            (self.setup.kind, &self.disk)
        else {
            unreachable!("one of the two");
        };
        let volume = *volume;
        let above = files.with_top(disk_bytes, shape).map_err(failed)?;
        let map = above.map(disk_bytes, IDENTITY).map_err(failed)?;
        for order in [
            Command::Quiesce { volume },
            Command::Announce { volume },
            Command::Empty { volume },
        ] {
            self.machine.order(order)?;
            self.wait_below(1)?;
        }
        self.machine.exchange(volume, map);
        self.disk = Disk::Mapped {
            files: above,
            volume,
        };
        self.machine.order(Command::EndExchange { volume })?;
        self.wait_below(1)
    }

    fn look_at_index(&mut self) {
        let now = self.machine.snapshot();
        let dirty: u64 = now.volumes.iter().map(|volume| volume.dirty_bytes).sum();
        let cached = now.lines.blocks * BLOCK_BYTES + dirty;
        if cached > self.measured.cached_bytes {
            self.measured.cached_bytes = cached;
            self.measured.index_bytes = now.index_bytes;
        }
    }

    /// Brings what is dirty to the storage; the guest waits, which no count depends on.
    fn destage(&mut self) -> Result<()> {
        self.look_at_index();
        let volumes = match &self.disk {
            Disk::Stacked { volumes, .. } => volumes.clone(),
            Disk::Mapped { volume, .. } => vec![*volume],
        };
        if self.setup.kind.policy() == Policy::WriteBack {
            for volume in volumes {
                self.machine.order(Command::Destage { volume })?;
            }
        }
        self.wait_below(1)
    }

    fn wait_below(&mut self, requests: usize) -> Result<()> {
        match self.machine.wait_below(requests) {
            true => Ok(()),
            false => Err(Error::failed(format!(
                "bench cow: {}: requests wait for ever",
                self.setup.kind.name()
            ))),
        }
    }

    /// Brings everything to the storage.
    pub fn finish(mut self) -> Result<Measured> {
        if let Disk::Stacked { .. } = self.disk {
            // The guest ends, and the disk is closed.
            self.ask(Ask::Flush)?;
        }
        self.wait_below(1)?;
        self.measured.origin_in_load = self.machine.tally.origin;
        self.destage()?;
        let (name, answers) = (self.setup.kind.name(), &self.machine.answers);
        match answers.first_refusal {
            None => Ok(self.counts()),
            Some(refusal) => Err(Error::failed(format!(
                "bench cow: {name}: {} refused, the first: {refusal}",
                answers.refused
            ))),
        }
    }

    fn counts(self) -> Measured {
        let mut measured = self.measured;
        let tally = &self.machine.tally;
        measured.flash = tally.flash;
        measured.flash_write_bytes = tally.flash_writes.bytes - tally.flash.prepared.bytes;
        measured.flash_read_bytes = tally.flash_reads.bytes;
        measured.origin = tally.origin;
        match &self.disk {
            Disk::Stacked { mapper, .. } => {
                let counts = mapper.counts();
                measured.lookups = counts.lookups;
                measured.misses = Count {
                    requests: counts.misses,
                    bytes: counts.table_read_bytes,
                };
                // What goes past the log is not on flash.
                let records = tally.flash.records.bytes;
                measured.flash_table_bytes = counts.table_write_bytes.min(records);
                (measured.writes, measured.allocating_writes) =
                    (counts.writes, counts.allocating_writes);
            }
            Disk::Mapped { files, .. } => {
                let counts = files.counts();
                measured.misses = counts.guest_tables;
                measured.plans = counts;
                measured.flash_table_bytes = counts.brought.bytes.min(tally.flash.fills.bytes);
            }
        }
        measured
    }
}

fn failed(error: image::Error) -> Error {
    Error::failed(format!("bench cow: {error}"))
}

/// What a stacked disk asks of its files.
fn send(
    machine: &mut Machine,
    measured: &mut Measured,
    volumes: &[VolumeId],
    requests: &mut Vec<Request>,
) -> Result<()> {
    for request in requests.drain(..) {
        measured.asked_bytes += u64::from(request.write) * request.bytes;
        let (now, volume) = (machine.now(), volumes[request.file]);
        machine.ask(now, volume, on_file(&request))?;
    }
    Ok(())
}

/// A request on a file as one of a guest of its volume.
fn on_file(request: &Request) -> Ask {
    let (sector, sectors) = (request.at / SECTOR_BYTES, request.bytes / SECTOR_BYTES);
    assert!(
        request.file > 0 || !request.write && request.what != What::Table,
        "a base has no tables and is only read"
    );
    match request.write {
        true => Ask::Write { sector, sectors },
        false => Ask::Read { sector, sectors },
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::{DISK_BYTES, Writes};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn run(kind: Kind, bytes: u64, count: u64) -> Measured {
        let setup = Setup {
            kind,
            disk_bytes: DISK_BYTES,
            cache_bytes: 4 << 30,
            table_ram_bytes: 128 * MIB,
            in_flight: DEPTH,
            dirty_limit_bytes: 4 << 30,
            destages: Destages::Every(count),
            seed: 1,
        };
        let mut side = Side::new(&setup).expect("it starts");
        let load = Writes {
            disk_bytes: DISK_BYTES,
            bytes,
            unaligned: false,
        };
        for ask in load.asks(count, 1) {
            side.ask(ask).expect("it is served");
        }
        side.finish().expect("it ends")
    }

    #[test]
    fn a_cache_below_the_disk_writes_what_is_copied_twice_and_one_that_knows_it_does_not() {
        let (count, block) = (2000, 4096);
        let stacked = run(Kind::Stacked(Policy::WriteBack), block, count);
        let wanted = count * (64 + 60) * 1024;
        let data = stacked.flash_write_bytes - stacked.flash_table_bytes;
        assert!(data >= wanted && data < wanted + wanted / 10, "{stacked:?}");
        for shape in [Shape::Plain, Shape::Extended] {
            let ours = run(Kind::Mapped(shape, Policy::WriteBack), block, count);
            let wanted = count * block;
            let written = ours.flash_write_bytes;
            assert!(written >= wanted && written < wanted * 11 / 10, "{ours:?}");
            assert_eq!(ours.flash.fills, Count::default(), "nothing was read");
            let plain = shape == Shape::Plain;
            let copied = ours.plans.copied.bytes;
            assert_eq!(copied, if plain { count * 60 * 1024 } else { 0 });
        }
    }

    /// Fails when: what was kept of an image counts for nothing after a snapshot, or a snapshot
    /// makes a side write what it has written before.
    #[test]
    fn a_side_goes_on_behind_a_snapshot_with_what_it_has_kept() {
        for kind in [
            Kind::Stacked(Policy::WriteBack),
            Kind::Mapped(Shape::Plain, Policy::WriteBack),
            Kind::Mapped(Shape::Extended, Policy::WriteBack),
        ] {
            let mut side = Side::new(&Setup {
                kind,
                disk_bytes: DISK_BYTES,
                cache_bytes: 4 << 30,
                table_ram_bytes: 16 * MIB,
                in_flight: DEPTH,
                dirty_limit_bytes: 4 << 30,
                destages: Destages::After(1000),
                seed: 1,
            })
            .expect("it starts");
            let mut at = 1_000_000_000;
            let mut day = |side: &mut Side, writes: bool| {
                for number in 0..1000 {
                    let (sector, sectors) = (number * 1024, 128);
                    let ask = match writes && number % 2 == 0 {
                        true => Ask::Write { sector, sectors },
                        false => Ask::Read { sector, sectors },
                    };
                    at += 1_000_000;
                    let timed = Timed { at_ns: at, ask };
                    side.ask_timed(&timed).expect("it is served");
                }
                at += 10_000_000_000;
                side.end_day(Time(at))
            };
            day(&mut side, true);
            let before = [day(&mut side, false), day(&mut side, false)];
            side.snapshot().expect("it is taken");
            let after = day(&mut side, false);
            let misses = after.misses - before[1].misses;
            assert!(misses <= 1 + before[1].misses / 100, "{kind:?}: {misses}");
            let written = after.flash_bytes - before[1].flash_bytes;
            assert!(written < 4 * MIB, "{kind:?}: {written} bytes");
            side.finish().expect("it ends");
        }
    }

    #[test]
    fn a_plan_finds_the_tables_that_the_one_before_it_made() {
        let setup = Setup {
            kind: Kind::Mapped(Shape::Plain, Policy::WriteBack),
            disk_bytes: DISK_BYTES,
            cache_bytes: 4 << 30,
            table_ram_bytes: MIB,
            in_flight: DEPTH,
            dirty_limit_bytes: 4 << 30,
            destages: Destages::Every(1000),
            seed: 1,
        };
        let mut side = Side::new(&setup).expect("it starts");
        let Disk::Mapped { volume, .. } = side.disk else {
            unreachable!("it was asked for");
        };
        let write = |side: &mut Side| {
            for cluster in 0..100 {
                let ask = Ask::Write {
                    sector: cluster * 128,
                    sectors: 128,
                };
                side.ask(ask).expect("it is served");
            }
            let order = Command::Destage { volume };
            side.machine.order(order).expect("it is taken");
            side.wait_below(1).expect("it ends");
            let Disk::Mapped { files, .. } = &side.disk else {
                unreachable!("it was asked for");
            };
            files.top_bytes()
        };
        let first = write(&mut side);
        assert!(first >= 100 * 64 * 1024);
        assert_eq!(write(&mut side), first, "the same clusters again");
    }
}
