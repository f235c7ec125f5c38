//! A trace straight through the engine, in virtual time.
//!
//! Always true: each disk of the trace is a volume of its own with the same settings; what the
//! report counts is everything up to the last answer, the destage behind the trace included, so
//! that caches of different policies are compared by whole traces; requests that the engine
//! refused are counted and never left out in silence.

use super::machine::{Ask, Machine, ReplayError, SECTORS_MAX, Sizes};
use super::tally::Origin;
use engine::event::{Admission, Command, ResetOn, Tuning, VolumeSpec};
use engine::flow::FlowLimits;
use engine::snapshot::{Counters, Histogram};
use engine::types::{BLOCK_BYTES, DestageMode, Policy, SECTOR_BYTES, Time, Uuid, VolumeId};
use std::collections::HashMap;
use std::time::Duration;
use workload::trace::{NameId, Op, Record};

/// Of every disk, because a trace does not say how large it was.
const DISK_BYTES: u64 = 64 << 40;
/// No trace is longer; what says so has a wrong time in it.
const TIME_MAX: Time = Time(10 * 365 * 86_400 * NS_PER_SECOND);
/// Virtual time in which the end of a trace must be answered and destaged.
const REST: Duration = Duration::from_secs(24 * 3600);
const NS_PER_SECOND: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
pub struct Options {
    pub sizes: Sizes,
    pub volume: Volume,
    /// Times of the trace are divided by it.
    pub speed: f64,
}

/// Settings of every volume, as in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Volume {
    pub policy: Policy,
    pub destage: DestageMode,
    pub destage_after_ms: Option<u64>,
    pub dirty_limit_bytes: u64,
    pub origin_queue_depth: u32,
    pub admission: Admission,
}

impl Volume {
    pub fn spec(&self, number: u32, size_bytes: u64) -> VolumeSpec {
        let mut uuid = [5; 16];
        uuid[..4].copy_from_slice(&number.to_le_bytes());
        VolumeSpec {
            name: format!("disk-{number}"),
            origin: "/nowhere".into(),
            new_uuid: Uuid(uuid),
            policy: self.policy,
            size_bytes,
            read_only: false,
            base_layer: None,
            journal_possible: true,
            commit: false,
            storage: 0,
            group: Default::default(),
            tuning: Tuning {
                write_cache: true,
                destage_after_ms: self.destage_after_ms,
                destage: self.destage,
                dirty_limit_bytes: self.dirty_limit_bytes,
                flow: FlowLimits::default(),
                origin_queue_depth: self.origin_queue_depth,
                admission: self.admission,
                overlay_timeout_ms: 30_000,
                overlay_ram_bytes: 256 << 20,
                reset_on: ResetOn::Command,
                origin_timeout_ms: None,
                share: Default::default(),
                group_members: 0,
            },
        }
    }
}

/// Settings of one disk.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    pub volume: Volume,
    /// What is dirty at the end of the trace goes to the origin then.
    pub is_destaged_at_end: bool,
}

/// Feeds a trace record by record.
pub struct Replay {
    machine: Machine,
    options: Options,
    volumes: HashMap<NameId, VolumeId>,
    /// Of disks with settings of their own.
    own: HashMap<NameId, Own>,
    asked: [u64; 4],
    asked_bytes: [u64; 4],
    last: Time,
}

/// What a replay found.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of [`Op::ALL`].
    pub requests: [u64; 4],
    pub bytes: [u64; 4],
    pub volumes: usize,
    pub refused: u64,
    pub first_refusal: Option<String>,
    pub counters: Counters,
    /// Up to the last request of the trace, and with what was destaged behind it.
    pub origin_in_trace: Origin,
    pub origin: Origin,
    pub origin_busiest_second: u32,
    pub flash_read_bytes: u64,
    pub flash_write_bytes: u64,
    /// At the end of the trace.
    pub index_bytes: u64,
    pub cached_bytes: u64,
    pub dirty_bytes: u64,
    pub latency: [Histogram; 3],
    pub trace_seconds: f64,
    /// Everything was answered and is at the origin.
    pub complete: bool,
}

impl Replay {
    pub fn new(options: Options) -> Result<Replay, ReplayError> {
        Ok(Replay {
            machine: Machine::start(options.sizes)?,
            options,
            volumes: HashMap::new(),
            own: HashMap::new(),
            asked: [0; 4],
            asked_bytes: [0; 4],
            last: Time(0),
        })
    }

    /// Gives a disk that had no request yet settings of its own.
    pub fn set(&mut self, disk: NameId, own: Own) {
        assert!(!self.volumes.contains_key(&disk), "it has had a request");
        self.own.insert(disk, own);
    }

    /// What of a disk reached the origin by now.
    pub fn origin_of(&self, disk: NameId) -> Origin {
        let volume = self.volumes.get(&disk);
        let origin = volume.and_then(|it| self.machine.tally.by_volume.get(it));
        origin.copied().unwrap_or_default()
    }

    fn volume(&mut self, disk: NameId) -> Result<VolumeId, ReplayError> {
        if let Some(volume) = self.volumes.get(&disk) {
            return Ok(*volume);
        }
        let own = self.own.get(&disk).map(|it| it.volume);
        let spec = own.unwrap_or(self.options.volume);
        let spec = spec.spec(disk.0, DISK_BYTES);
        let volume = self.machine.attach(spec)?;
        self.volumes.insert(disk, volume);
        Ok(volume)
    }

    pub fn take(&mut self, record: &Record) -> Result<(), ReplayError> {
        let at = Time((record.time_ns as f64 / self.options.speed) as u64);
        if at > TIME_MAX {
            return Err(ReplayError::Late);
        }
        // A trace may go back in time a little; virtual time does not.
        self.last = self.last.max(at);
        let volume = self.volume(record.disk)?;
        let place = Op::ALL.iter().position(|op| *op == record.op);
        let place = place.expect("all are listed");
        self.asked[place] += 1;
        self.asked_bytes[place] += u64::from(record.sectors) * SECTOR_BYTES;
        for ask in asks(record.op, record.sector, record.sectors.into()) {
            self.machine.ask(self.last, volume, ask)?;
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<Report, ReplayError> {
        self.end()
    }

    /// The end of the trace; what reached the origin of each disk can be asked for afterwards.
    pub fn end(&mut self) -> Result<Report, ReplayError> {
        self.machine.run_until(self.last);
        let end = self.machine.snapshot();
        let origin_in_trace = self.machine.tally.origin;
        let mut volumes: Vec<(VolumeId, NameId)> =
            self.volumes.iter().map(|it| (*it.1, *it.0)).collect();
        // Not in the order of a hash table: the same trace would end in another way each time.
        volumes.sort_unstable();
        for (volume, disk) in volumes {
            let own = self.own.get(&disk);
            let policy = own.map_or(self.options.volume.policy, |it| it.volume.policy);
            let is_destaged = own.is_none_or(|it| it.is_destaged_at_end);
            if policy == Policy::WriteBack && is_destaged {
                self.machine.order(Command::Destage { volume })?;
            }
        }
        let rest = Time(self.last.0.saturating_add(REST.as_nanos() as u64));
        let complete = self.machine.settle_until(rest);
        let last = self.machine.snapshot();
        let mut counters = Counters::default();
        for volume in &last.volumes {
            add(&mut counters, &volume.counters);
        }
        let (tally, answers) = (&self.machine.tally, &self.machine.answers);
        Ok(Report {
            requests: self.asked,
            bytes: self.asked_bytes,
            volumes: self.volumes.len(),
            refused: answers.refused,
            first_refusal: answers.first_refusal.map(|refusal| refusal.to_string()),
            counters,
            origin_in_trace,
            origin: tally.origin,
            origin_busiest_second: tally.seconds.iter().map(|it| it.all()).max().unwrap_or(0),
            flash_read_bytes: tally.flash_reads.bytes,
            flash_write_bytes: tally.flash_writes.bytes,
            index_bytes: end.index_bytes,
            cached_bytes: end.lines.blocks * BLOCK_BYTES,
            dirty_bytes: end.volumes.iter().map(|volume| volume.dirty_bytes).sum(),
            latency: answers.latency,
            trace_seconds: self.last.0 as f64 / NS_PER_SECOND as f64,
            complete,
        })
    }
}

fn add(sum: &mut Counters, more: &Counters) {
    sum.reads.requests += more.reads.requests;
    sum.reads.bytes += more.reads.bytes;
    sum.reads.ram_hits += more.reads.ram_hits;
    sum.reads.ssd_hits += more.reads.ssd_hits;
    sum.reads.origin += more.reads.origin;
    sum.writes.requests += more.writes.requests;
    sum.writes.bytes += more.writes.bytes;
    sum.writes.elided_bytes += more.writes.elided_bytes;
    sum.origin.reads += more.origin.reads;
    sum.origin.read_bytes += more.origin.read_bytes;
    sum.origin.writes += more.origin.writes;
    sum.origin.write_bytes += more.origin.write_bytes;
    sum.origin.journal_bytes += more.origin.journal_bytes;
    sum.origin.journal_requests += more.origin.journal_requests;
    sum.origin.syncs += more.origin.syncs;
    sum.ssd_read_bytes += more.ssd_read_bytes;
    sum.ssd_write_bytes += more.ssd_write_bytes;
}

/// One request of a trace as requests of a guest.
pub fn asks(op: Op, sector: u64, sectors: u64) -> impl Iterator<Item = Ask> {
    let parts = match op {
        Op::Flush => 1,
        _ => sectors.div_ceil(SECTORS_MAX),
    };
    (0..parts).map(move |part| {
        let from = sector + part * SECTORS_MAX;
        let sectors = (sector + sectors - from).min(SECTORS_MAX);
        match op {
            Op::Read => Ask::Read {
                sector: from,
                sectors,
            },
            Op::Write => Ask::Write {
                sector: from,
                sectors,
            },
            Op::Discard => Ask::Discard {
                sector: from,
                sectors,
            },
            Op::Flush => Ask::Flush,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::origin::san::Params;

    const MIB: u64 = 1 << 20;

    fn options(policy: Policy, destage: DestageMode, after_ms: Option<u64>) -> Options {
        Options {
            sizes: Sizes {
                cache_bytes: 2 << 30,
                ram_bytes: 16 * MIB,
                stage_bytes: 64 * MIB,
                overlay_ram_bytes: 0,
                map_bytes: 0,
                cache_latency_ns: 100_000,
                san: Params {
                    latency_ns: 5_000_000,
                    ..Params::default()
                },
                seed: 1,
            },
            volume: Volume {
                policy,
                destage,
                destage_after_ms: after_ms,
                dirty_limit_bytes: 1 << 30,
                origin_queue_depth: 32,
                admission: Admission::Reuse,
            },
            speed: 1.0,
        }
    }

    fn record(time_ms: u64, op: Op, sector: u64, sectors: u32) -> Record {
        Record {
            time_ns: time_ms * 1_000_000,
            disk: NameId(0),
            op,
            sector,
            sectors,
            path: None,
        }
    }

    fn replay(options: Options, records: impl IntoIterator<Item = Record>) -> Report {
        let mut replay = Replay::new(options).expect("it starts");
        for record in records {
            replay.take(&record).expect("it is taken");
        }
        let report = replay.finish().expect("it ends");
        assert!(report.complete, "everything is at the origin");
        assert_eq!(report.refused, 0, "{:?}", report.first_refusal);
        report
    }

    #[test]
    fn without_a_cache_every_request_is_one_at_the_origin() {
        let records = (0..100).flat_map(|at| {
            [
                record(10 * at, Op::Write, 8 * at, 8),
                record(10 * at + 5, Op::Read, 8 * at, 8),
                record(10 * at + 6, Op::Read, 8 * at, 8),
            ]
        });
        let options = options(Policy::Uncached, DestageMode::Atomic, None);
        let origin = replay(options, records).origin;
        assert_eq!((origin.reads.requests, origin.writes.requests), (200, 100));
        assert_eq!(origin.beside(), 0);
    }

    #[test]
    fn scattered_writes_of_an_epoch_share_writes_of_the_journal() {
        // 512 blocks that do not touch each other are 2 MiB of journal.
        let records = (0..512).map(|at| record(at, Op::Write, 64 * at, 8));
        let options = options(Policy::WriteBack, DestageMode::Atomic, Some(60_000));
        let origin = replay(options, records).origin;
        assert_eq!(origin.writes.requests, 512);
        // A request takes 1 MiB, and the table is one more.
        assert!(origin.journal.requests <= 3, "{origin:?}");
        assert!(origin.journal.bytes >= 2 * MIB, "{origin:?}");
    }

    #[test]
    fn neighbours_of_an_epoch_go_in_requests_of_a_mebibyte() {
        // 4 MiB in writes of 60 KiB, so that none ends where a piece of memory does.
        let records = (0..68).map(|at| record(at, Op::Write, 120 * at, 120));
        for destage in [DestageMode::Atomic, DestageMode::InPlace] {
            let options = options(Policy::WriteBack, destage, Some(60_000));
            let origin = replay(options, records.clone()).origin;
            assert_eq!(origin.writes.bytes, 68 * 60 * 1024);
            assert!(origin.writes.requests <= 5, "{destage:?}: {origin:?}");
        }
    }

    #[test]
    fn what_only_age_asks_for_is_spread_and_what_is_ordered_is_not() {
        let writes = || (0..400).map(|at| record(at, Op::Write, 64 * at, 8));
        let aged = options(Policy::WriteBack, DestageMode::InPlace, Some(60_000));
        // The last request comes long after the destage, so nothing is left for the order.
        let late = record(600_000, Op::Read, 1 << 30, 8);
        let spread = replay(aged.clone(), writes().chain([late]));
        assert_eq!(spread.origin.writes.requests, 400);
        assert!(spread.origin_busiest_second <= 80, "{spread:?}");
        let ordered = replay(aged, writes());
        assert_eq!(ordered.origin.writes.requests, 400);
        assert!(ordered.origin_busiest_second >= 300, "{ordered:?}");
    }

    #[test]
    fn what_joins_neighbours_is_spread_over_as_long_as_what_does_not() {
        // From the last block of each run to its first: four extents, and one request.
        let record = |at: u64| record(at, Op::Write, 64 * (at / 4) + 8 * (3 - at % 4), 8);
        let aged = options(Policy::WriteBack, DestageMode::InPlace, Some(60_000));
        let late = Record {
            op: Op::Read,
            ..record(600_000)
        };
        let spread = replay(aged, (0..1600).map(record).chain([late]));
        assert_eq!(spread.origin.writes.requests, 400);
        assert!(spread.origin_busiest_second <= 80, "{spread:?}");
    }

    #[test]
    fn a_time_that_no_trace_has_is_told_and_no_clock_ends() {
        let options = options(Policy::WriteBack, DestageMode::Atomic, Some(u64::MAX));
        let mut replay = Replay::new(options).expect("it starts");
        let mut late = record(0, Op::Write, 0, 8);
        replay
            .take(&late)
            .expect("an age beyond all clocks is never");
        late.time_ns = u64::MAX;
        assert!(matches!(replay.take(&late), Err(ReplayError::Late)));
    }

    #[test]
    fn overwrites_are_destaged_once_and_a_cached_block_is_read_once() {
        let writes = (0..300).map(|at| record(at, Op::Write, 8 * (at % 3), 8));
        let reads = (300..400).map(|at| record(10 * at, Op::Read, 4096, 8));
        let options = options(Policy::WriteBack, DestageMode::Atomic, None);
        let report = replay(options, writes.chain(reads));
        assert_eq!(report.origin.writes.requests, 1, "three blocks that touch");
        assert_eq!(report.counters.writes.elided_bytes, 297 * 4096);
        assert_eq!(report.origin.reads.requests, 1);
        assert_eq!(report.counters.reads.ram_hits, 99);
    }

    #[test]
    fn a_log_that_wraps_is_evacuated_without_its_payload() {
        // One block of each megabyte stays, all else is overwritten again and again.
        let stays = (0..256).map(|at| record(at, Op::Write, at * 2048, 8));
        let churn =
            (0..6000).map(|at| record(1000 + at * 4, Op::Write, (1 << 22) + at % 32 * 2048, 2048));
        let mut options = options(Policy::WriteBack, DestageMode::InPlace, None);
        options.volume.dirty_limit_bytes = 1 << 40;
        let report = replay(options, stays.chain(churn));
        assert!(report.flash_write_bytes > 5 << 30, "{report:?}");
    }
}
