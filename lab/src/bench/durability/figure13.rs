//! Heavy users on disks by class, and the storage below them, over time: Capo's figure 13.
//!
//! Owns the load and both series. Always true: the users' requests leave at their times, whatever
//! became of earlier ones; each user has a disk for each durability, served by the daemon as the
//! disks of `image split` are; a request counts as asked of the caches once, also where it is cut
//! at a border, and at the storage by the counters of the daemon. Deliberately absent: more than
//! one host.

use crate::bench::desktops::load::{Load, Told};
use crate::bench::range;
use crate::bench::split_disks::{DURABILITIES, SplitDisks};
use crate::in_process::{Host, Sizes, make_image, san, volume, watched};
use crate::place::Place;
use engine::snapshot::Counters;
use engine::types::Policy;
use host::daemon::VolumeSettings;
use host::error::{Error, Result, cause};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use workload::synth::{Durability, Parameters, Pattern, Synth};
use workload::trace::{NameId, Op, Record};

const NS_PER_SECOND: u64 = 1_000_000_000;
/// Workers begin one after the other; after so long all are at work.
const AT_WORK_NS: u64 = 60 * NS_PER_SECOND;
const LOOK: Duration = Duration::from_millis(250);
/// A load that is later than this was not what it says.
const LATE_MAX_US: u64 = 20_000;

#[derive(Clone, Debug)]
pub struct Options {
    pub users: u32,
    pub seconds: f64,
    pub origin_latency: Duration,
    pub origin_iops: u32,
    pub destage_after: Duration,
    pub cache_bytes: u64,
    pub ram_bytes: u64,
    pub seed: u64,
    pub directory: PathBuf,
}

impl Options {
    pub fn check(&self) -> Result<()> {
        range::within("--users", self.users, 1..=1000)?;
        range::within("--seconds", self.seconds, 2.0..=86_400.0)?;
        range::at_least_one("--origin-iops", self.origin_iops)?;
        range::size_at_least("--cache", self.cache_bytes, 512 << 20)
    }
}

/// Reads and writes, of one second or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub reads: u64,
    pub writes: u64,
    /// At the storage: journals and ledgers.
    pub beside: u64,
}

impl Requests {
    pub fn all(self) -> u64 {
        self.reads + self.writes + self.beside
    }

    pub fn add(&mut self, more: Requests) {
        self.reads += more.reads;
        self.writes += more.writes;
        self.beside += more.beside;
    }

    pub fn document(self) -> Value {
        json!({ "reads": self.reads, "writes": self.writes, "beside": self.beside })
    }

    pub fn since(self, before: Requests) -> Requests {
        Requests {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            beside: self.beside - before.beside,
        }
    }
}

/// Counters of the daemon, and when they were looked at.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    /// By durability.
    sent: [Requests; 3],
}

pub struct Figure13 {
    options: Options,
    /// Asked of the caches in each second.
    asked: Vec<Requests>,
    /// Sent to the storage in each second.
    sent: Vec<Requests>,
    asked_of: [Requests; 3],
    sent_of: [Requests; 3],
    told: Told,
}

pub fn run(options: &Options, progress: &dyn Fn()) -> Result<Figure13> {
    let place = Place::below(&options.directory)?;
    let duration_ns = (options.seconds * 1e9) as u64;
    let parameters = Parameters {
        desktops: options.users,
        active: 1.0,
        seed: options.seed,
        from_ns: AT_WORK_NS,
        duration_ns,
        ..Parameters::new(Pattern::Heavy)
    };
    let wrong = |error: workload::synth::SynthError| Error::usage(format!("figure13: {error}"));
    let synth = Synth::new(&parameters).map_err(wrong)?;
    let split = SplitDisks::new(&synth);
    let (names, volumes) = volumes(options, &place, &split)?;
    let sizes = Sizes {
        cache_bytes: options.cache_bytes,
        ram_bytes: options.ram_bytes,
    };
    let host = Host::start(&place, sizes, volumes)?;
    let counted = RefCell::new(Counted::new(split, options.seconds));
    let records = synth.flat_map(|record| counted.borrow_mut().take(record));
    let lasts = Duration::from_secs_f64(options.seconds);
    let failed = |error: std::io::Error| Error::failed(format!("figure13: {}", cause(&error)));
    let load = Load::connect(host.socket(), &names, None).map_err(failed)?;
    let begun = Instant::now();
    // A look that fails is one point less; the last one must not.
    let look = || looked(&host, begun.elapsed()).ok();
    let ended = watched(LOOK, look, || {
        load.run(records, lasts, |_| ()).map_err(failed)
    });
    let last = looked(&host, lasts);
    host.stop()?;
    let ((told, looks), last) = (ended?, last?);
    progress();
    let counted = counted.into_inner();
    Ok(Figure13 {
        options: options.clone(),
        asked: counted.by_second,
        sent: by_second(&looks, options.seconds),
        asked_of: counted.of,
        sent_of: last.sent,
        told,
    })
}

fn volumes(
    options: &Options,
    place: &Place,
    split: &SplitDisks,
) -> Result<(Vec<String>, Vec<VolumeSettings>)> {
    let (mut names, mut volumes) = (Vec::new(), Vec::new());
    for user in 1..=options.users {
        for (at, durability) in DURABILITIES.into_iter().enumerate() {
            let (class, policy, after) = match durability {
                Durability::WriteThrough => ("system", Policy::WriteThrough, None),
                Durability::WriteBack => ("late", Policy::WriteBack, Some(options.destage_after)),
                Durability::NoWriteBack => ("never", Policy::WriteBack, None),
            };
            let name = format!("user-{user:03}-{class}");
            let origin = place.path(&format!("{name}.img"));
            make_image(&origin, split.bytes(at))?;
            let mut settings = volume(&name, origin, policy);
            settings.destage_after = after;
            settings.san = Some(san(options.origin_latency, options.origin_iops));
            names.push(name);
            volumes.push(settings);
        }
    }
    Ok((names, volumes))
}

/// Of the counters of all users' volumes.
fn looked(host: &Host, at: Duration) -> Result<Look> {
    let mut sent = [Requests::default(); 3];
    for volume in host.snapshot()?.volumes {
        let class = match volume.name.rsplit('-').next() {
            Some("system") => 0,
            Some("late") => 1,
            _ => 2,
        };
        let Counters { origin, .. } = volume.counters;
        sent[class].reads += origin.reads;
        sent[class].writes += origin.writes;
        sent[class].beside += origin.journal_requests;
    }
    Ok(Look { at, sent })
}

/// What the users ask, and where it goes.
struct Counted {
    split: SplitDisks,
    by_second: Vec<Requests>,
    of: [Requests; 3],
}

impl Counted {
    fn new(split: SplitDisks, seconds: f64) -> Counted {
        Counted {
            split,
            by_second: vec![Requests::default(); seconds.ceil() as usize],
            of: Default::default(),
        }
    }

    /// The pieces of a record, each for the export of its disk.
    fn take(&mut self, record: Record) -> Vec<Record> {
        let time_ns = record.time_ns - AT_WORK_NS;
        let pieces = self.split.route(&record);
        let add = |sum: &mut Requests| match record.op {
            Op::Read => sum.reads += 1,
            Op::Write => sum.writes += 1,
            Op::Flush | Op::Discard => {}
        };
        if let Some(sum) = self.by_second.get_mut((time_ns / NS_PER_SECOND) as usize) {
            add(sum);
            if let Some(piece) = pieces.first() {
                add(&mut self.of[piece.disk]);
            }
        }
        let pieces = pieces.into_iter().map(|piece| Record {
            time_ns,
            disk: NameId(record.disk.0 * 3 + piece.disk as u32),
            sector: piece.sector,
            sectors: piece.sectors as u32,
            path: None,
            ..record
        });
        pieces.collect()
    }
}

/// What was sent between two looks counts for the second in which the later one was.
fn by_second(looks: &[Look], seconds: f64) -> Vec<Requests> {
    let mut sums = vec![Requests::default(); seconds.ceil() as usize];
    let mut before = Requests::default();
    for look in looks {
        let mut now = Requests::default();
        for of in look.sent {
            now.add(of);
        }
        let at = (look.at.as_secs_f64() as usize).min(sums.len() - 1);
        sums[at].add(now.since(before));
        before = now;
    }
    sums
}

fn busiest(all: &[Requests]) -> u64 {
    all.iter().map(|it| it.all()).max().unwrap_or(0)
}

pub const HEAD: [&str; 7] = [
    "DISKS",
    "READS ASKED",
    "WRITES ASKED",
    "READS AT THE STORAGE",
    "WRITES THERE",
    "JOURNALS THERE",
    "OF ASKED",
];

impl Figure13 {
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut all = (Requests::default(), Requests::default());
        let names = ["write-through", "write-back", "never"];
        let mut rows = Vec::new();
        let row = |name: &str, asked: Requests, sent: Requests| {
            let share = sent.all() as f64 / asked.all().max(1) as f64;
            vec![
                name.to_owned(),
                asked.reads.to_string(),
                asked.writes.to_string(),
                sent.reads.to_string(),
                sent.writes.to_string(),
                sent.beside.to_string(),
                format!("{:.1} %", share * 100.0),
            ]
        };
        for (at, name) in names.into_iter().enumerate() {
            let (asked, sent) = (self.asked_of[at], self.sent_of[at]);
            all.0.add(asked);
            all.1.add(sent);
            rows.push(row(name, asked, sent));
        }
        rows.push(row("all", all.0, all.1));
        rows
    }

    pub fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "{} heavy users, {} s, a disk for each class; simulated SAN of {} ms and {} \
             requests/s; late data after {} s",
            options.users,
            options.seconds,
            options.origin_latency.as_secs_f64() * 1e3,
            options.origin_iops,
            options.destage_after.as_secs_f64(),
        )
    }

    fn is_on_time(&self) -> bool {
        let late = self.told.late.quantile_us(990);
        late.is_none_or(|late| late <= LATE_MAX_US)
    }

    pub fn notes(&self) -> Vec<String> {
        let (asked, sent) = (busiest(&self.asked), busiest(&self.sent));
        let reached = match sent < asked {
            true => "reached",
            false => "not reached",
        };
        let mut notes = vec![format!(
            "busiest second: {asked} requests asked of the caches, {sent} of the storage (the \
             paper: all peaks are smaller at the storage): {reached}"
        )];
        if !self.is_on_time() {
            let line = "this machine could not send so many requests in time: the series say less";
            notes.push(line.to_owned());
        }
        if self.told.unanswered > 0 {
            let left = self.told.unanswered;
            notes.push(format!("{left} requests had no answer at the end"));
        }
        notes
    }

    pub fn errors(&self) -> u64 {
        self.told.errors
    }

    /// Requests per second over time: asked of the caches, asked of the storage.
    pub fn series(&self) -> [Vec<(f64, f64)>; 2] {
        let points = |all: &[Requests]| {
            let all = all.iter().enumerate();
            all.map(|(at, it)| (at as f64 + 0.5, it.all() as f64))
                .collect()
        };
        [points(&self.asked), points(&self.sent)]
    }

    pub fn document(&self) -> Value {
        let names = ["write-through", "write-back", "never"];
        let classes: Vec<Value> = (0..3)
            .map(|at| {
                json!({
                    "class": names[at],
                    "asked": self.asked_of[at].document(),
                    "storage": self.sent_of[at].document(),
                })
            })
            .collect();
        let [asked, sent] = self.series();
        let counts = |all: &[(f64, f64)]| all.iter().map(|it| it.1 as u64).collect::<Vec<_>>();
        json!({
            "users": self.options.users,
            "seconds": self.options.seconds,
            "classes": classes,
            "asked_by_second": counts(&asked),
            "storage_by_second": counts(&sent),
            "busiest_asked": busiest(&self.asked),
            "busiest_storage": busiest(&self.sent),
            "sent_on_time": self.is_on_time(),
            "read_bytes": self.told.read_bytes,
            "write_bytes": self.told.write_bytes,
            "errors": self.told.errors,
            "unanswered": self.told.unanswered,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::types::SECTOR_BYTES;

    fn look(millis: u64, writes: u64) -> Look {
        let mut sent = [Requests::default(); 3];
        sent[0].writes = writes;
        sent[1].beside = writes / 2;
        Look {
            at: Duration::from_millis(millis),
            sent,
        }
    }

    /// Fails when: counters that only grow are added as they stand, or a second gets what another
    /// one sent.
    #[test]
    fn a_second_has_what_was_sent_between_its_looks() {
        let looks = [look(100, 4), look(900, 10), look(1500, 10), look(2900, 30)];
        let seconds = by_second(&looks, 3.0);
        let all: Vec<u64> = seconds.iter().map(|it| it.all()).collect();
        assert_eq!(all, [15, 0, 30]);
        assert_eq!(busiest(&seconds), 30);
        // What was sent after the last second counts for it.
        assert_eq!(by_second(&[look(7000, 2)], 3.0)[2].all(), 3);
    }

    /// Fails when: a request that is cut at a border is asked twice, or goes to another user's
    /// disk.
    #[test]
    fn a_request_is_asked_once_and_goes_to_the_disks_of_its_user() {
        let parameters = Parameters {
            desktops: 2,
            ..Parameters::new(Pattern::Heavy)
        };
        let synth = Synth::new(&parameters).expect("it can be made");
        let page_file = synth.ranges(workload::synth::Class::PageFile)[0].start;
        let mut counted = Counted::new(SplitDisks::new(&synth), 2.0);
        let record = Record {
            time_ns: AT_WORK_NS + NS_PER_SECOND,
            disk: NameId(1),
            op: Op::Write,
            sector: page_file - 8,
            sectors: 16,
            path: None,
        };
        let pieces = counted.take(record);
        let disks: Vec<u32> = pieces.iter().map(|it| it.disk.0).collect();
        assert_eq!(disks, [4, 5]);
        assert!(pieces.iter().all(|it| it.time_ns == NS_PER_SECOND));
        assert_eq!(counted.by_second[1].all(), 1);
        assert_eq!(pieces[0].sector + 8, counted.split.bytes(1) / SECTOR_BYTES);
    }
}
