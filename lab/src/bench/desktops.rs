//! How many desktops a slow shared storage carries: with the cache on their host, with the same
//! cache beside the storage, and with none.
//!
//! Owns the comparison. Always true: all cases see the same requests at the same times, through
//! the sockets of the product, over the same simulated storage network; each begins with an empty
//! cache and untouched images; a case counts as carried when its requests were also sent on time.
//! The storage network is one front end that takes so many requests a second and answers after its
//! latency. A cache beside it spares the disks behind the front end and not the way to it: requests
//! pay `path_latency` and a place among the requests per second, and what the cache does not have
//! pays the rest. Deliberately absent: what desktops do (`workload::synth`).

pub(super) mod load;
mod page;
mod responses;

use super::range;
use crate::in_process::{Host, Sizes, make_image, san, volume};
use crate::machine;
use crate::place::Place;
use engine::event::Admission;
use engine::snapshot::Counters;
use engine::types::{DestageMode, Policy};
use host::daemon::VolumeSettings;
use host::error::{Error, Result, cause};
use host::origin::san::{Params, San};
use host::sys;
use load::{Load, Told};
use responses::{FAST_US, GOOD_US, Responses};
use serde_json::{Value, json};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;
use workload::synth::{Parameters, Pattern, Synth};
use workload::trace::Record;

/// Of a hundred requests, so many under 50 ms carry a desktop; VDI-IOmark's rule.
const CARRIED: f64 = 0.8;
/// What is asked of the product against no cache.
const TIMES_WANTED: f64 = 10.0;
/// A load that is later than this was not what it says.
const LATE_MAX_US: u64 = 20_000;
const USERS_MAX: u32 = 4096;
/// A destage writes no more than this for each request, on average, by far.
const ORIGIN_BYTES_EACH: u64 = 32 << 10;
/// Workers begin one after the other; after so long all are at work.
const AT_WORK_NS: u64 = 60_000_000_000;
/// Part of free memory that images may take.
const MEMORY_PART: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    NoCache,
    BesideOrigin,
    OnHost,
}

impl Case {
    pub const ALL: [Case; 3] = [Case::NoCache, Case::BesideOrigin, Case::OnHost];

    pub fn name(self) -> &'static str {
        match self {
            Case::NoCache => "no cache",
            Case::BesideOrigin => "cache beside the origin",
            Case::OnHost => "cache on the host",
        }
    }

    /// As it is called in options.
    pub fn key(self) -> &'static str {
        match self {
            Case::NoCache => "none",
            Case::BesideOrigin => "beside",
            Case::OnHost => "host",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub users: Vec<u32>,
    pub pattern: Pattern,
    pub cases: Vec<Case>,
    pub policy: Policy,
    pub origin_latency: Duration,
    pub origin_iops: u32,
    /// The part of the latency that a cache beside the origin does not spare.
    pub path_latency: Duration,
    /// Of one case with one number of users.
    pub seconds: f64,
    pub destage: DestageMode,
    pub destage_after: Duration,
    pub admission: Admission,
    pub cache_bytes: u64,
    pub ram_bytes: u64,
    pub seed: u64,
    /// Where cache and images lie.
    pub directory: PathBuf,
    pub html: Option<PathBuf>,
}

/// What reached the images, and what was still owed to them.
#[derive(Clone, Copy, Debug, Default)]
struct Behind {
    ram_hits: u64,
    ssd_hits: u64,
    reads: u64,
    read_bytes: u64,
    writes: u64,
    write_bytes: u64,
    journal_bytes: u64,
    dirty_bytes: u64,
    held_writes: u64,
}

/// One case with one number of users.
struct Outcome {
    case: Case,
    users: u32,
    told: Told,
    all: Responses,
    behind: Behind,
    images_in_memory: bool,
}

pub struct Report {
    options: Options,
    outcomes: Vec<Outcome>,
}

fn check(options: &Options) -> Result<()> {
    for users in &options.users {
        range::within("--users", *users, 1..=USERS_MAX)?;
    }
    range::within("--seconds", options.seconds, 0.5..=86_400.0)?;
    range::at_least_one("--origin-iops", options.origin_iops)?;
    range::size_at_least("--cache", options.cache_bytes, 512 << 20)?;
    match options.path_latency <= options.origin_latency {
        true => Ok(()),
        false => Err(Error::usage(
            "--path-latency: it is a part of --origin-latency; give one that is not longer",
        )),
    }
}

/// Calls `progress` with the seconds that were measured, of all cases.
pub fn run(options: &Options, progress: impl Fn(f64)) -> Result<Report> {
    check(options)?;
    crate::report::check(options.html.as_deref())?;
    let place = Place::below(&options.directory)?;
    let mut outcomes = Vec::new();
    for users in &options.users {
        for case in &options.cases {
            let before = outcomes.len() as f64 * options.seconds;
            let outcome = measure(&place, options, *case, *users, |seconds| {
                progress(before + seconds);
            })?;
            outcomes.push(outcome);
        }
    }
    let report = Report {
        options: options.clone(),
        outcomes,
    };
    if let Some(path) = &options.html {
        crate::report::save(path, &page::page(&report))?;
    }
    Ok(report)
}

/// When in its trace a case begins.
fn from_ns(pattern: Pattern) -> u64 {
    match pattern {
        Pattern::Boot | Pattern::Login => 0,
        _ => AT_WORK_NS,
    }
}

/// What the desktops of a case do, and how large their disks are.
fn desktops(options: &Options, users: u32) -> Result<Synth> {
    let duration_ns = (options.seconds * 1e9) as u64;
    let parameters = Parameters {
        desktops: users,
        active: 1.0,
        seed: options.seed,
        from_ns: from_ns(options.pattern),
        duration_ns,
        // Those who come last have a quarter of the time left.
        arrivals_ns: duration_ns / 4 * 3,
        ..Parameters::new(options.pattern)
    };
    Synth::new(&parameters).map_err(|error| Error::usage(format!("bench desktops: {error}")))
}

/// Images of this run fit into memory with room to spare.
fn fit_in_memory(place: &Place, options: &Options) -> bool {
    let writes = u64::from(options.origin_iops) * options.seconds.ceil() as u64;
    let free = File::open(place.stage_dir()).and_then(|it| sys::free_bytes(&it));
    place.has_memory() && free.is_ok_and(|free| writes * ORIGIN_BYTES_EACH <= free / MEMORY_PART)
}

fn measure(
    place: &Place,
    options: &Options,
    case: Case,
    users: u32,
    progress: impl Fn(f64),
) -> Result<Outcome> {
    let synth = desktops(options, users)?;
    let in_memory = fit_in_memory(place, options);
    let below = if in_memory {
        place.stage_dir()
    } else {
        place.directory()
    };
    let images = below.join("images");
    let failed = |error: std::io::Error| {
        let (images, why) = (images.display(), cause(&error));
        Error::failed(format!("bench desktops: {images}: {why}"))
    };
    std::fs::create_dir(&images).map_err(failed)?;
    let volumes = volumes(options, case, users, &images, synth.disk_bytes())?;
    let names: Vec<String> = volumes.iter().map(|volume| volume.name.clone()).collect();
    let sizes = Sizes {
        cache_bytes: options.cache_bytes,
        ram_bytes: options.ram_bytes,
    };
    let host = Host::start(place, sizes, volumes)?;
    let path = (case == Case::BesideOrigin).then(|| {
        San::new(Params {
            latency_ns: options.path_latency.as_nanos() as u64,
            iops: options.origin_iops.into(),
            ..Params::default()
        })
    });
    let lasts = Duration::from_secs_f64(options.seconds);
    let begin_ns = from_ns(options.pattern);
    let records = synth.map(|record| Record {
        time_ns: record.time_ns - begin_ns,
        ..record
    });
    let ended = Load::connect(host.socket(), &names, path)
        .and_then(|load| load.run(records, lasts, |now| progress(now.as_secs_f64())))
        .map_err(|error| Error::failed(format!("bench desktops: {}", cause(&error))));
    let behind = behind(&host);
    host.stop()?;
    // The place goes away anyway; this keeps the peak low.
    let _ = std::fs::remove_dir_all(&images);
    let told = ended?;
    Ok(Outcome {
        case,
        users,
        all: told.all(),
        told,
        behind: behind?,
        images_in_memory: in_memory,
    })
}

fn volumes(
    options: &Options,
    case: Case,
    users: u32,
    images: &std::path::Path,
    disk_bytes: u64,
) -> Result<Vec<VolumeSettings>> {
    let policy = match case {
        Case::NoCache => Policy::Uncached,
        Case::BesideOrigin | Case::OnHost => options.policy,
    };
    let latency = match case {
        Case::BesideOrigin => options.origin_latency - options.path_latency,
        Case::NoCache | Case::OnHost => options.origin_latency,
    };
    // Throw-away desktops are clones of one image.
    let image = |name: &str| match policy {
        Policy::Ephemeral => images.join("gold.img"),
        _ => images.join(format!("{name}.img")),
    };
    let mut volumes = Vec::new();
    for number in 1..=users {
        let name = format!("desktop-{number:04}");
        let origin = image(&name);
        if number == 1 || policy != Policy::Ephemeral {
            make_image(&origin, disk_bytes)?;
        }
        let mut settings = volume(&name, origin, policy);
        settings.destage = options.destage;
        settings.destage_after = Some(options.destage_after);
        settings.admission = options.admission;
        settings.san = Some(san(latency, options.origin_iops));
        volumes.push(settings);
    }
    Ok(volumes)
}

fn behind(host: &Host) -> Result<Behind> {
    let mut sum = Behind::default();
    for volume in host.snapshot()?.volumes {
        let Counters { reads, origin, .. } = volume.counters;
        sum.ram_hits += reads.ram_hits;
        sum.ssd_hits += reads.ssd_hits;
        sum.reads += origin.reads;
        sum.read_bytes += origin.read_bytes;
        sum.writes += origin.writes;
        sum.write_bytes += origin.write_bytes;
        sum.journal_bytes += origin.journal_bytes;
        sum.dirty_bytes += volume.dirty_bytes;
        sum.held_writes += volume.flow.held_writes;
    }
    Ok(sum)
}

impl Outcome {
    /// The load was what it should be.
    fn is_on_time(&self) -> bool {
        let late = self.told.late.quantile_us(990);
        late.is_none_or(|late| late <= LATE_MAX_US)
    }

    fn is_carried(&self) -> bool {
        self.is_on_time() && self.told.errors == 0 && self.all.good() >= CARRIED
    }
}

fn millis(micros: Option<u64>) -> String {
    match micros {
        Some(micros) if micros < 100_000 => format!("{:.1}", micros as f64 / 1e3),
        Some(micros) => format!("{:.0}", micros as f64 / 1e3),
        None => "-".into(),
    }
}

impl Report {
    pub fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "{} desktops, seed {}, {} s each; simulated SAN of {} ms and {} requests/s, {} ms of \
             it the way there; policy {}, destage {} after {} s{}; images {}",
            options.pattern.name(),
            options.seed,
            options.seconds,
            options.origin_latency.as_secs_f64() * 1e3,
            options.origin_iops,
            options.path_latency.as_secs_f64() * 1e3,
            options.policy.name(),
            options.destage.name(),
            options.destage_after.as_secs_f64(),
            match options.admission {
                Admission::All => ", every block read kept",
                Admission::Reuse => "",
            },
            match self.outcomes.iter().all(|it| it.images_in_memory) {
                true => "in memory",
                false => "on the device of the cache",
            },
        )
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub const HEAD: [&'static str; 13] = [
        "USERS",
        "CASE",
        "REQUESTS/S",
        "UNDER 50 MS",
        "80 %, MS",
        "90 %, MS",
        "95 %, MS",
        "MAX, MS",
        "UNANSWERED",
        "ORIGIN READS",
        "ORIGIN WRITES",
        "STILL OWED",
        "SENT LATE BY (P99), MS",
    ];

    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |outcome: &Outcome| {
            let all = &outcome.all;
            let quantile = |per_mille| millis(all.quantile_us(per_mille));
            vec![
                outcome.users.to_string(),
                outcome.case.name().into(),
                format!("{:.0}", all.total() as f64 / self.options.seconds),
                format!("{:.2} %", all.good() * 100.0),
                quantile(800),
                quantile(900),
                quantile(950),
                millis(Some(all.most_us())),
                outcome.told.unanswered.to_string(),
                outcome.behind.reads.to_string(),
                outcome.behind.writes.to_string(),
                format!("{} MiB", outcome.behind.dirty_bytes >> 20),
                millis(outcome.told.late.quantile_us(990)),
            ]
        };
        self.outcomes.iter().map(row).collect()
    }

    /// The most users that a case has carried, and every smaller number as well.
    pub fn carried(&self, case: Case) -> Option<u32> {
        let mut of_case: Vec<&Outcome> =
            self.outcomes.iter().filter(|it| it.case == case).collect();
        of_case.sort_by_key(|it| it.users);
        let carried = of_case.iter().take_while(|it| it.is_carried());
        carried.last().map(|it| it.users)
    }

    pub fn findings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for case in &self.options.cases {
            let carried = match self.carried(*case) {
                Some(users) => format!("{users} users"),
                None => "none of these numbers".into(),
            };
            lines.push(format!(
                "{}: 80 % of responses under 50 ms with {carried}",
                case.name()
            ));
        }
        if let (Some(none), Some(host)) = (self.carried(Case::NoCache), self.carried(Case::OnHost))
        {
            let times = f64::from(host) / f64::from(none);
            lines.push(format!(
                "the cache on the host carries {times:.1} times what no cache does, of these \
                 numbers (wanted {TIMES_WANTED})"
            ));
        }
        for outcome in self.outcomes.iter().filter(|it| !it.is_on_time()) {
            lines.push(format!(
                "{} with {} users: this machine could not send so many requests in time, so that \
                 it says nothing",
                outcome.case.name(),
                outcome.users
            ));
        }
        lines
    }

    /// Requests that were answered with an error.
    pub fn errors(&self) -> u64 {
        self.outcomes.iter().map(|it| it.told.errors).sum()
    }

    pub fn document(&self) -> Value {
        let options = &self.options;
        json!({
            "benchmark": "desktops",
            "machine": machine::document(),
            "parameters": {
                "pattern": options.pattern.name(),
                "users": options.users,
                "seconds": options.seconds,
                "policy": options.policy.name(),
                "origin_latency_us": options.origin_latency.as_micros() as u64,
                "origin_iops": options.origin_iops,
                "path_latency_us": options.path_latency.as_micros() as u64,
                "destage": options.destage.name(),
                "destage_after_ms": options.destage_after.as_millis() as u64,
                "admission": match options.admission {
                    Admission::All => "all",
                    Admission::Reuse => "reuse",
                },
                "cache_bytes": options.cache_bytes,
                "ram_bytes": options.ram_bytes,
                "seed": options.seed,
                "in_flight_of_one_user": load::IN_FLIGHT_MAX,
            },
            "cases": self.outcomes.iter().map(|it| self.case(it)).collect::<Vec<Value>>(),
            "carried_users": options.cases.iter().map(|case| {
                (case.key().to_owned(), json!(self.carried(*case)))
            }).collect::<serde_json::Map<String, Value>>(),
            "carried_part": CARRIED,
            "times_wanted": TIMES_WANTED,
            "report": options.html.as_ref().map(|path| path.display().to_string()),
        })
    }

    fn case(&self, outcome: &Outcome) -> Value {
        let behind = &outcome.behind;
        json!({
            "case": outcome.case.key(),
            "users": outcome.users,
            "carried": outcome.is_carried(),
            "sent_on_time": outcome.is_on_time(),
            "sent_late_us": times(&outcome.told.late),
            "responses": distribution(&outcome.all),
            "reads": distribution(&outcome.told.reads),
            "writes": distribution(&outcome.told.writes),
            "flushes": distribution(&outcome.told.flushes),
            "read_bytes": outcome.told.read_bytes,
            "write_bytes": outcome.told.write_bytes,
            "errors": outcome.told.errors,
            "unanswered": outcome.told.unanswered,
            "ram_hits": behind.ram_hits,
            "ssd_hits": behind.ssd_hits,
            "origin": {
                "reads": behind.reads,
                "read_bytes": behind.read_bytes,
                "writes": behind.writes,
                "write_bytes": behind.write_bytes,
                "journal_bytes": behind.journal_bytes,
                "in_memory": outcome.images_in_memory,
            },
            "dirty_bytes": behind.dirty_bytes,
            "held_writes": behind.held_writes,
        })
    }
}

fn times(responses: &Responses) -> Value {
    json!({
        "p50": responses.quantile_us(500),
        "p80": responses.quantile_us(800),
        "p90": responses.quantile_us(900),
        "p95": responses.quantile_us(950),
        "p99": responses.quantile_us(990),
        "max": responses.most_us(),
    })
}

fn distribution(responses: &Responses) -> Value {
    json!({
        "requests": responses.total(),
        "part_within": {
            FAST_US.to_string(): responses.fast(),
            GOOD_US.to_string(): responses.good(),
        },
        "us": times(responses),
        "cdf_ms_percent": responses.curve(),
    })
}
