//! Ten throw-away desktops on two hosts over one share: the experiment of a report on write filters
//! and local image caches.
//!
//! Owns the boots and the end of the desktops. Always true: each row has the same requests at the
//! same times; a desktop of a cached row is a new ephemeral clone, so that the second boot finds
//! the host's cache and nothing of an earlier desktop; what reaches the share is counted by both
//! daemons. Deliberately absent: guests, for which the boot and the writes of the generator stand.

use super::figure13::Requests;
use crate::bench::desktops::load::{Load, Told};
use crate::bench::range;
use crate::in_process::{Host, Sizes, make_image, volume, watched};
use crate::place::Place;
use engine::snapshot::VolumeSnapshot;
use engine::types::Policy;
use host::daemon::{SanSettings, VolumeSettings};
use host::error::{Error, Result, cause};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use workload::synth::{Parameters, Pattern, Synth};
use workload::trace::{NameId, Op, Record};

const HOSTS: usize = 2;
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Desktops begin within so long; a boot takes 6.5 s.
const ARRIVALS_NS: u64 = 2 * NS_PER_SECOND;
const BOOT_S: u64 = 10;
/// On a busy machine the last answers come later.
const ANSWERED_S: u64 = 60;
/// What they write at their end stands for a shutdown: what heavy users write, so long, and so many
/// times as fast. The report has up to 238 writes a second of one desktop.
const END_S: u64 = 3;
const END_TIMES: f64 = 20.0;
const AT_WORK_NS: u64 = 60 * NS_PER_SECOND;
const LOOK: Duration = Duration::from_millis(250);

/// Of the report, for ten desktops: the busiest second with its caches, and ten times that of one
/// desktop without.
const PUBLISHED_READS: (u64, u64) = (34, 6130);
const PUBLISHED_WRITES: (u64, u64) = (26, 2380);

#[derive(Clone, Debug)]
pub struct Options {
    pub desktops: u32,
    pub origin_latency: Duration,
    pub cache_bytes: u64,
    pub ram_bytes: u64,
    pub seed: u64,
    pub directory: PathBuf,
}

impl Options {
    pub fn check(&self) -> Result<()> {
        range::within("--desktops", self.desktops, 2..=200)?;
        range::size_at_least("--cache", self.cache_bytes, 512 << 20)
    }
}

/// What is done at once by all desktops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Boot,
    End,
}

pub struct Row {
    name: &'static str,
    asked: Requests,
    share: Requests,
    read_bytes: u64,
    busiest: Requests,
    errors: u64,
    unanswered: u64,
}

pub struct TwoHosts {
    options: Options,
    rows: Vec<Row>,
}

/// How often `progress` is called.
pub const STEPS: u64 = 5;

pub fn run(options: &Options, progress: &dyn Fn()) -> Result<TwoHosts> {
    let place = Place::below(&options.directory)?;
    let gold = place.path("gold.img");
    let disk_bytes = synth(options, Act::Boot)?.disk_bytes();
    make_image(&gold, disk_bytes)?;
    let mut rows = Vec::new();
    let none = Setting {
        place: place.part("none")?,
        gold: None,
        disk_bytes,
        desktops: vec!["a"],
    };
    let hosts = none.start(options)?;
    rows.push(act(options, &hosts, ("boot, no cache", Act::Boot, "a"))?);
    progress();
    rows.push(act(options, &hosts, ("end, no cache", Act::End, "a"))?);
    progress();
    stop(hosts)?;
    drop(none);
    let cached = Setting {
        place: place.part("cached")?,
        gold: Some(&gold),
        disk_bytes,
        desktops: vec!["a", "b"],
    };
    let hosts = cached.start(options)?;
    rows.push(act(options, &hosts, ("boot, cold caches", Act::Boot, "a"))?);
    progress();
    rows.push(act(options, &hosts, ("boot, warm caches", Act::Boot, "b"))?);
    progress();
    rows.push(act(options, &hosts, ("end, ephemeral", Act::End, "b"))?);
    progress();
    stop(hosts)?;
    Ok(TwoHosts {
        options: options.clone(),
        rows,
    })
}

/// How both hosts are set up.
struct Setting<'a> {
    place: Place,
    /// The image of all desktops; without it each has an uncached one of its own.
    gold: Option<&'a Path>,
    disk_bytes: u64,
    /// Desktops of each host come in several lots.
    desktops: Vec<&'static str>,
}

impl Setting<'_> {
    fn start(&self, options: &Options) -> Result<Vec<(Place, Host)>> {
        let sizes = Sizes {
            cache_bytes: options.cache_bytes,
            ram_bytes: options.ram_bytes,
        };
        let mut hosts = Vec::new();
        for number in 0..HOSTS {
            let place = self.place.part(&format!("host-{number}"))?;
            let mut volumes: Vec<VolumeSettings> = Vec::new();
            for lot in &self.desktops {
                for name in names(options, number, lot) {
                    let (origin, policy) = match self.gold {
                        Some(gold) => (gold.to_owned(), Policy::Ephemeral),
                        None => (place.image(&name), Policy::Uncached),
                    };
                    if self.gold.is_none() {
                        make_image(&origin, self.disk_bytes)?;
                    }
                    let mut settings = volume(&name, origin, policy);
                    settings.san = Some(SanSettings {
                        latency: options.origin_latency,
                        iops: None,
                        bandwidth_bytes: None,
                    });
                    volumes.push(settings);
                }
            }
            let host = Host::start(&place, sizes, volumes)?;
            hosts.push((place, host));
        }
        Ok(hosts)
    }
}

fn stop(hosts: Vec<(Place, Host)>) -> Result<()> {
    hosts.into_iter().try_for_each(|(_, host)| host.stop())
}

/// The desktops of a host: every second one.
fn names(options: &Options, host: usize, lot: &str) -> Vec<String> {
    let all = (0..options.desktops).filter(|at| *at as usize % HOSTS == host);
    all.map(|at| format!("desktop-{lot}-{at:03}")).collect()
}

fn synth(options: &Options, act: Act) -> Result<Synth> {
    let usual = match act {
        Act::Boot => Parameters {
            arrivals_ns: ARRIVALS_NS,
            duration_ns: BOOT_S * NS_PER_SECOND,
            ..Parameters::new(Pattern::Boot)
        },
        Act::End => Parameters {
            from_ns: AT_WORK_NS,
            duration_ns: END_S * NS_PER_SECOND,
            intensity: END_TIMES,
            ..Parameters::new(Pattern::Heavy)
        },
    };
    let parameters = Parameters {
        desktops: options.desktops,
        active: 1.0,
        seed: options.seed,
        ..usual
    };
    let made = Synth::new(&parameters);
    made.map_err(|error| Error::usage(format!("hosts: {error}")))
}

/// What the desktops of a host ask.
fn records(options: &Options, act: Act, host: usize) -> Result<impl Iterator<Item = Record>> {
    let synth = synth(options, act)?;
    let begin_ns = synth.parameters().from_ns;
    let own = synth.filter(move |record| {
        let wanted = act == Act::Boot || record.op != Op::Read;
        record.disk.0 as usize % HOSTS == host && wanted
    });
    Ok(own.map(move |record| Record {
        time_ns: record.time_ns - begin_ns,
        disk: NameId(record.disk.0 / HOSTS as u32),
        ..record
    }))
}

/// What a host has sent to the share.
fn sent(host: &Host) -> Result<(Requests, u64)> {
    let (mut sum, mut read_bytes) = (Requests::default(), 0);
    let add = |volume: VolumeSnapshot| {
        let origin = volume.counters.origin;
        sum.reads += origin.reads;
        sum.writes += origin.writes;
        sum.beside += origin.journal_requests;
        read_bytes += origin.read_bytes;
    };
    host.snapshot()?.volumes.into_iter().for_each(add);
    Ok((sum, read_bytes))
}

fn sent_by_all(hosts: &[(Place, Host)]) -> Result<(Requests, u64)> {
    let (mut all, mut bytes) = (Requests::default(), 0);
    for (_, host) in hosts {
        let (sum, read_bytes) = sent(host)?;
        all.add(sum);
        bytes += read_bytes;
    }
    Ok((all, bytes))
}

/// All desktops of a lot do the same at once.
fn act(
    options: &Options,
    hosts: &[(Place, Host)],
    (name, act, lot): (&'static str, Act, &str),
) -> Result<Row> {
    let seconds = match act {
        Act::Boot => BOOT_S,
        Act::End => END_S,
    };
    let lasts = Duration::from_secs(seconds + ANSWERED_S);
    let failed = |error: std::io::Error| Error::failed(format!("hosts: {}", cause(&error)));
    let mut loads = Vec::new();
    for (number, (_, host)) in hosts.iter().enumerate() {
        let names = names(options, number, lot);
        let load = Load::connect(host.socket(), &names, None).map_err(failed)?;
        loads.push((load.ending_early(), records(options, act, number)?));
    }
    let before = sent_by_all(hosts)?;
    let begun = Instant::now();
    // A look that fails is one point less.
    let look = || Some((begun.elapsed(), sent_by_all(hosts).ok()?.0));
    let (told, looks) = watched(LOOK, look, || {
        std::thread::scope(|scope| {
            let running = loads.into_iter();
            let running = running
                .map(|(load, records)| scope.spawn(move || load.run(records, lasts, |_| ())));
            // All are started before the first is waited for.
            let running: Vec<_> = running.collect();
            let ended = running.into_iter().map(|it| {
                let ended = it.join().expect("a panic ends the process");
                ended.map_err(failed)
            });
            ended.collect::<Result<Vec<Told>>>()
        })
    })?;
    let after = sent_by_all(hosts)?;
    let mut asked = Requests::default();
    for told in &told {
        asked.reads += told.reads.total();
        asked.writes += told.writes.total();
    }
    Ok(Row {
        name,
        asked,
        share: after.0.since(before.0),
        read_bytes: after.1 - before.1,
        busiest: busiest(before.0, &looks, lasts.as_secs()),
        errors: told.iter().map(|it| it.errors).sum(),
        unanswered: told.iter().map(|it| it.unanswered).sum(),
    })
}

/// The most reads and the most writes in one second.
fn busiest(before: Requests, looks: &[(Duration, Requests)], seconds: u64) -> Requests {
    let mut sums = vec![Requests::default(); seconds as usize + 1];
    let mut old = before;
    for (at, now) in looks {
        let place = (at.as_secs() as usize).min(sums.len() - 1);
        sums[place].add(now.since(old));
        old = *now;
    }
    let most = |of: fn(&Requests) -> u64| sums.iter().map(of).max().unwrap_or(0);
    Requests {
        reads: most(|it| it.reads),
        writes: most(|it| it.writes),
        beside: most(|it| it.beside),
    }
}

pub const HEAD: [&str; 8] = [
    "ROW",
    "READS ASKED",
    "WRITES ASKED",
    "READS AT THE SHARE",
    "WRITES THERE",
    "READ THERE, MIB",
    "READS IN THE BUSIEST SECOND",
    "WRITES IN THE BUSIEST",
];

/// Caches are filled by what their own guests read.
const FROM_THE_OTHER: &str = "boot, warmed from the other host";

impl TwoHosts {
    pub fn headline(&self) -> String {
        format!(
            "{} ephemeral desktops of one image on {HOSTS} hosts, one share of {} ms without a \
             limit of requests; {} of them boot within {} s",
            self.options.desktops,
            self.options.origin_latency.as_secs_f64() * 1e3,
            self.options.desktops,
            ARRIVALS_NS / NS_PER_SECOND,
        )
    }

    pub fn rows(&self) -> Vec<Vec<String>> {
        let cells = |row: &Row| {
            vec![
                row.name.to_owned(),
                row.asked.reads.to_string(),
                row.asked.writes.to_string(),
                row.share.reads.to_string(),
                (row.share.writes + row.share.beside).to_string(),
                (row.read_bytes >> 20).to_string(),
                row.busiest.reads.to_string(),
                (row.busiest.writes + row.busiest.beside).to_string(),
            ]
        };
        let mut rows: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        let mut missing = vec![FROM_THE_OTHER.to_owned(), "not in this version".into()];
        missing.resize(HEAD.len(), "-".into());
        let at = rows.iter().position(|it| it[0].starts_with("end, e"));
        rows.insert(at.unwrap_or(rows.len()), missing);
        rows
    }

    fn find(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|it| it.name == name)
    }

    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let pairs = [
            (
                "boot, no cache",
                "boot, warm caches",
                "reads",
                PUBLISHED_READS,
            ),
            (
                "end, no cache",
                "end, ephemeral",
                "writes",
                PUBLISHED_WRITES,
            ),
        ];
        for (without, with, what, (published, of)) in pairs {
            let (Some(without), Some(with)) = (self.find(without), self.find(with)) else {
                continue;
            };
            let pick = |row: &Row| match what {
                "reads" => row.busiest.reads,
                _ => row.busiest.writes + row.busiest.beside,
            };
            let (without, ours) = (pick(without), pick(with));
            let share = ours as f64 / without.max(1) as f64;
            let wanted = published as f64 / of as f64;
            let reached = if share <= wanted {
                "reached"
            } else {
                "not reached"
            };
            notes.push(format!(
                "{}: {ours} {what} in the busiest second, of {without} without a cache: {:.1} % \
                 (the report: {published} of {of}, {:.1} %): {reached}",
                with.name,
                share * 100.0,
                wanted * 100.0
            ));
        }
        let unanswered: u64 = self.rows.iter().map(|it| it.unanswered).sum();
        if unanswered > 0 {
            notes.push(format!(
                "{unanswered} requests had no answer at the end of a row"
            ));
        }
        notes
    }

    pub fn errors(&self) -> u64 {
        self.rows.iter().map(|it| it.errors).sum()
    }

    /// The busiest seconds, as bars.
    pub fn bars(&self) -> Vec<(String, Vec<f64>)> {
        let bar = |row: &Row| {
            let writes = row.busiest.writes + row.busiest.beside;
            (
                row.name.to_owned(),
                vec![row.busiest.reads as f64, writes as f64],
            )
        };
        self.rows.iter().map(bar).collect()
    }

    pub fn document(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "row": row.name,
                    "asked": row.asked.document(),
                    "share": row.share.document(),
                    "share_read_bytes": row.read_bytes,
                    "busiest_second": row.busiest.document(),
                    "errors": row.errors,
                    "unanswered": row.unanswered,
                })
            })
            .collect();
        json!({
            "desktops": self.options.desktops,
            "hosts": HOSTS,
            "rows": rows,
            "not_in_this_version": [FROM_THE_OTHER],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            desktops: 5,
            origin_latency: Duration::ZERO,
            cache_bytes: 1 << 30,
            ram_bytes: 64 << 20,
            seed: 1,
            directory: std::env::temp_dir(),
        }
    }

    /// Fails when: a desktop is on no host or on two, or its requests go to another one.
    #[test]
    fn each_desktop_is_on_one_host_with_all_that_it_asks() {
        let options = options();
        let all: Vec<String> = (0..HOSTS).flat_map(|it| names(&options, it, "a")).collect();
        assert_eq!(all.len(), 5);
        assert_eq!(names(&options, 1, "a"), ["desktop-a-001", "desktop-a-003"]);
        let count = |host| {
            let records = records(&options, Act::Boot, host).expect("it can be made");
            let mut by_desktop = vec![0; names(&options, host, "a").len()];
            records.for_each(|it| by_desktop[it.disk.0 as usize] += 1);
            by_desktop
        };
        assert!(count(0).into_iter().chain(count(1)).all(|it| it > 7000));
        let mut end = records(&options, Act::End, 0).expect("it can be made");
        assert!(end.all(|it| it.op != Op::Read && it.time_ns < END_S * NS_PER_SECOND));
    }

    /// Fails when: what was sent before a row counts for it.
    #[test]
    fn the_busiest_second_is_of_its_row_alone() {
        let at = |reads| Requests {
            reads,
            ..Requests::default()
        };
        let seconds = |millis: u64| Duration::from_millis(millis);
        let looks = [
            (seconds(500), at(110)),
            (seconds(1500), at(150)),
            (seconds(1900), at(155)),
        ];
        assert_eq!(busiest(at(100), &looks, 3).reads, 45);
    }
}
