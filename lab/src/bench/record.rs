//! What a recording costs the guest that is recorded.
//!
//! Owns a daemon and recorders as processes of their own, as an administrator has them, and
//! alternating slots of one guest: alone, recorded, alone again, and the same backwards, so that
//! what drifts is in each alike. The guest reads from RAM as fast as it is answered, because then a
//! recording has most to do. Beside its speed stands the processor time that a request takes of
//! the daemon, and of its shard, which is the part that a guest waits for: others who use the
//! machine change the speed by more than a recording does, and these figures hardly. Always true: a
//! round counts only if the traces of its recordings hold each request that the daemon counted
//! meanwhile and nothing was lost; a recorder has ended before the next slot begins; the daemon's
//! time includes the end of a recording, so that nothing of it is left for a slot without.
//! Deliberately absent: other loads; where a request takes longer, the part of a recording in it is
//! smaller.

use super::own_process::{self, Process, Served, this_program};
use super::pipe::Pipe;
use super::range;
use super::rounds::{self, Spread, cell};
use super::work::{BLOCK_BYTES, Carrier, Tally, Verb, Work};
use crate::in_process::make_image;
use crate::machine;
use crate::place::{Place, make_cache};
use host::admin::client::PROMPT;
use host::error::{Error, Result, cause};
use host::sys;
use serde_json::{Value, json};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What is asked of the product: so much of the requests per second is left.
pub const RATIO_WANTED: f64 = 0.98;
/// The same, said of the shard's time: so much of it a request may take.
pub const CPU_RATIO_WANTED: f64 = 1.02;
/// What the thread is called that answers guests.
const SHARD: &str = "tenuto-shard";
const NAME: &str = "guest";
/// 64 MiB, which fit the RAM tier.
const HOT: Range<u64> = 0..16_384;
const CACHE_BYTES: u64 = 256 << 20;
/// Of a process to come or to go.
const WAIT_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
pub struct Options {
    pub rounds: u32,
    pub seconds: f64,
    /// Requests in flight.
    pub depth: usize,
    pub directory: PathBuf,
}

/// What came of one kind of slot in a round; requests one by one are not kept.
struct Slot {
    per_second: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    counts: Counts,
}

/// One visit of a slot, or both of a round.
struct Visit {
    tally: Tally,
    counts: Counts,
}

struct Counts {
    /// What the daemon counted, and what is in the traces.
    requests: u64,
    recorded: u64,
    lost: u64,
    cpu: Cpu,
}

/// Time on processors.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    daemon: Duration,
    shard: Duration,
    /// From when it records until it has ended.
    recorder: Duration,
}

/// What a recorder said, and how long it was on processors.
#[derive(Default)]
struct Said {
    recorded: u64,
    lost: u64,
    cpu: Duration,
}

/// Alone, recorded, alone again.
type Round = [Slot; 3];
const RECORDED: usize = 1;

/// Something of a slot that is compared.
type Figure = fn(&Slot) -> Option<f64>;

/// Name in a table, name in a document, what it is, and what is wanted of its ratio.
const FIGURES: [(&str, &str, Figure, Option<Wanted>); 5] = [
    (
        "requests/s",
        "iops",
        |slot| Some(slot.per_second),
        Some(Wanted::AtLeast(RATIO_WANTED)),
    ),
    ("p50, us", "p50_us", |slot| slot.p50_us, None),
    ("p99, us", "p99_us", |slot| slot.p99_us, None),
    (
        "shard, us of CPU",
        "shard_cpu_us",
        |slot| slot.cpu_us(|cpu| cpu.shard),
        Some(Wanted::AtMost(CPU_RATIO_WANTED)),
    ),
    (
        "daemon, us of CPU",
        "daemon_cpu_us",
        |slot| slot.cpu_us(|cpu| cpu.daemon),
        None,
    ),
];

#[derive(Clone, Copy, Debug)]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Wanted {
    fn text(self) -> String {
        match self {
            Wanted::AtLeast(ratio) => format!(">= {ratio}"),
            Wanted::AtMost(ratio) => format!("<= {ratio}"),
        }
    }
}

pub struct Report {
    options: Options,
    rounds: Vec<Round>,
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench record: {}", cause(&error)))
}

/// A daemon with one volume.
struct Host {
    served: Served,
    /// Recordings so far: nobody else makes any.
    recordings: u64,
}

impl Host {
    fn start(place: &Place) -> Result<Host> {
        let (cache, run_dir) = (place.path("cache"), place.path("run"));
        let image = place.stage_dir().join("guest.img");
        make_image(&image, HOT.end * BLOCK_BYTES)?;
        make_cache(&cache, CACHE_BYTES)?;
        let sizes = "ram = \"128MiB\"\nstage = \"16MiB\"";
        let head = own_process::config(&run_dir, place.stage_dir(), &cache, sizes)?;
        let text = format!(
            "{head}[[volume]]\nname = \"{NAME}\"\norigin = {image:?}\nformat = \"raw\"\npolicy = \
             \"write-back\"\nexport = [\"nbd\"]\n",
        );
        let config = place.path("tenuto.toml");
        fs::write(&config, text).map_err(failed)?;
        Ok(Host {
            served: Served::start(&this_program()?, &config, &run_dir)?,
            recordings: 0,
        })
    }

    /// Requests of the guest until now.
    fn requests(&self) -> Result<u64> {
        let volume = self.served.volume(NAME)?;
        let of = |what: &str| volume[what]["requests"].as_u64();
        let counted = of("reads").zip(of("writes"));
        let counted = counted.map(|(reads, writes)| reads + writes);
        counted.ok_or_else(|| Error::failed("bench record: its daemon counts nothing"))
    }

    /// Time on processors until now, without a recorder's.
    fn cpu(&self) -> Result<Cpu> {
        let pid = self.served.pid();
        Ok(Cpu {
            daemon: sys::process_cpu(Some(pid)).map_err(failed)?,
            shard: sys::named_threads_cpu(pid, SHARD).map_err(failed)?,
            recorder: Duration::ZERO,
        })
    }

    /// Starts a recorder; returns when it records, and how long it was on processors before.
    fn record(&mut self, trace: &Path) -> Result<(Process, Duration)> {
        let mut command = own_process::command(&this_program()?, Stdio::piped());
        command.args(["trace", "record", NAME, "--json", "--force", "--output"]);
        command.arg(trace);
        command.arg("--socket").arg(self.served.client.socket());
        let _ = fs::remove_file(trace);
        let mut recorder = Process(command.spawn().map_err(failed)?);
        let begun = Instant::now();
        while !trace.exists() {
            let ended = recorder.0.try_wait().map_err(failed)?;
            if ended.is_some() || begun.elapsed() > WAIT_MAX {
                return Err(Error::failed("bench record: the recorder does not record"));
            }
            std::thread::sleep(LOOK);
        }
        self.recordings += 1;
        let before = sys::process_cpu(Some(recorder.0.id())).map_err(failed)?;
        Ok((recorder, before))
    }

    /// Ends a recorder in order.
    fn end(&self, (mut recorder, before): (Process, Duration)) -> Result<Said> {
        let place = format!("/v1/trace/{}", self.recordings);
        self.served.client.delete(&place, PROMPT)?;
        let said = recorder.0.stdout.take().expect("it is a pipe");
        let said: Value = serde_json::from_reader(said).map_err(|error| {
            Error::failed(format!("bench record: the recorder says nothing: {error}"))
        })?;
        // It has said all, and has its times until it was waited for.
        let cpu = sys::process_cpu(Some(recorder.0.id())).map_err(failed)?;
        recorder.0.wait().map_err(failed)?;
        let of = |what: &str| said[what].as_u64();
        let counted = of("requests").zip(of("lost"));
        let (recorded, lost) = counted
            .ok_or_else(|| Error::failed(format!("bench record: the recorder says {said}")))?;
        Ok(Said {
            recorded,
            lost,
            cpu: cpu.saturating_sub(before),
        })
    }

    /// One visit of a slot.
    fn visit(
        &mut self,
        pipe: &mut Pipe,
        work: &mut Work,
        lasts: Duration,
        trace: Option<&Path>,
    ) -> Result<Visit> {
        let recorder = trace.map(|trace| self.record(trace)).transpose()?;
        let (before, cpu) = (self.requests()?, self.cpu()?);
        let tally = pipe.carry(work, lasts).map_err(failed)?;
        let requests = self.requests()? - before;
        let said = recorder.map(|recorder| self.end(recorder)).transpose()?;
        let said = said.unwrap_or_default();
        let now = self.cpu()?;
        let counts = Counts {
            requests,
            recorded: said.recorded,
            lost: said.lost,
            cpu: Cpu {
                daemon: now.daemon.saturating_sub(cpu.daemon),
                shard: now.shard.saturating_sub(cpu.shard),
                recorder: said.cpu,
            },
        };
        Ok(Visit { tally, counts })
    }
}

impl Visit {
    fn join(mut self, again: Visit) -> Visit {
        self.tally.join(again.tally);
        let (all, more) = (&mut self.counts, again.counts);
        all.requests += more.requests;
        all.recorded += more.recorded;
        all.lost += more.lost;
        all.cpu.daemon += more.cpu.daemon;
        all.cpu.shard += more.cpu.shard;
        all.cpu.recorder += more.cpu.recorder;
        self
    }

    fn slot(self) -> Slot {
        Slot {
            per_second: self.tally.per_second(),
            p50_us: self.tally.quantile_us(50),
            p99_us: self.tally.quantile_us(99),
            counts: self.counts,
        }
    }
}

impl Slot {
    /// Of one request, in microseconds.
    fn cpu_us(&self, of: fn(&Cpu) -> Duration) -> Option<f64> {
        let requests = self.counts.requests;
        (requests > 0).then(|| of(&self.counts.cpu).as_secs_f64() * 1e6 / requests as f64)
    }
}

pub fn run(options: &Options) -> Result<Report> {
    range::within("--seconds", options.seconds, 0.05..=600.0)?;
    range::at_least_one("--rounds", options.rounds)?;
    range::within("--qd", options.depth, 1..=256)?;
    let place = Place::below(&options.directory)?;
    let mut host = Host::start(&place)?;
    let report = Report {
        options: options.clone(),
        rounds: measure(&mut host, options, &place.path("guest.trace"))?,
    };
    if report.proven().count() == 0 {
        let last = report.rounds.last().expect("there is at least one round");
        return Err(Error::failed(format!(
            "bench record: no trace of {} rounds holds all that was asked for; of the last round: \
             {}",
            options.rounds,
            round_document(last)
        )));
    }
    Ok(report)
}

fn measure(host: &mut Host, options: &Options, trace: &Path) -> Result<Vec<Round>> {
    let socket = host.served.socket();
    let mut pipe = Pipe::connect(&socket, NAME, 1).map_err(failed)?;
    let mut warm = Work::only(Verb::Read, HOT, options.depth);
    warm.left = Some(2 * (HOT.end - HOT.start));
    pipe.carry(&mut warm, WAIT_MAX).map_err(failed)?;
    let mut work = Work::only(Verb::Read, HOT, options.depth);
    let lasts = Duration::from_secs_f64(options.seconds);
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let mut slots = [None, None, None];
        for at in rounds::mirrored(round) {
            let trace = (at == RECORDED).then_some(trace);
            let visit = host.visit(&mut pipe, &mut work, lasts, trace)?;
            let before: Option<Visit> = slots[at].take();
            slots[at] = Some(match before {
                Some(before) => before.join(visit),
                None => visit,
            });
        }
        rounds.push(slots.map(|visit| visit.expect("each has its turn").slot()));
    }
    Ok(rounds)
}

fn is_proven([alone, recorded, again]: &Round) -> bool {
    let of = &recorded.counts;
    let all = of.recorded == of.requests && of.lost == 0;
    let some = |slot: &Slot| slot.counts.requests > 0;
    all && [alone, recorded, again].into_iter().all(some)
}

fn slot_document(slot: &Slot) -> Value {
    json!({
        "iops": slot.per_second,
        "p50_us": slot.p50_us,
        "p99_us": slot.p99_us,
        "shard_cpu_us": slot.cpu_us(|cpu| cpu.shard),
        "daemon_cpu_us": slot.cpu_us(|cpu| cpu.daemon),
        "recorder_cpu_us": slot.cpu_us(|cpu| cpu.recorder),
        "requests": slot.counts.requests,
        "recorded": slot.counts.recorded,
        "lost": slot.counts.lost,
    })
}

fn round_document(round: &Round) -> Value {
    rounds::round(round, is_proven(round), "recorded", slot_document)
}

impl Report {
    fn proven(&self) -> impl Iterator<Item = &Round> + Clone {
        self.rounds.iter().filter(|round| is_proven(round))
    }

    fn median(&self, at: usize, figure: impl Fn(&Slot) -> Option<f64>) -> Option<Spread> {
        rounds::median(self.proven(), at, figure)
    }

    fn recorded(&self) -> u64 {
        let rounds = self.rounds.iter();
        rounds.map(|round| round[RECORDED].counts.recorded).sum()
    }

    fn recorder_us(&self) -> Option<Spread> {
        self.median(RECORDED, |slot| slot.cpu_us(|cpu| cpu.recorder))
    }

    pub fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "4 KiB reads from RAM, {} in flight over one NBD connection; daemon and recorder are \
             processes of their own; {} of {} rounds of 6 x {} s whose traces hold every \
             request, {} requests in all traces; the recorder takes {} us of CPU for one",
            options.depth,
            self.proven().count(),
            self.rounds.len(),
            options.seconds,
            self.recorded(),
            cell(self.recorder_us(), 2),
        )
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub const HEAD: [&'static str; 6] = ["", "ALONE", "RECORDED", "RATIO", "A/A", "WANTED"];

    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |(name, _, of, wanted): (&str, &str, Figure, Option<Wanted>)| {
            let compared = rounds::compared(self.proven(), of);
            let digits = if name.ends_with("CPU") { 3 } else { 1 };
            vec![
                name.to_owned(),
                cell(self.median(0, of), digits),
                cell(self.median(RECORDED, of), digits),
                cell(compared.ratio, 3),
                cell(compared.same, 3),
                wanted.map_or("-".into(), Wanted::text),
            ]
        };
        FIGURES.into_iter().map(row).collect()
    }

    pub fn document(&self) -> Value {
        let options = &self.options;
        let mut document = json!({
            "benchmark": "record",
            "machine": machine::document(),
            "parameters": {
                "rounds": options.rounds,
                "seconds": options.seconds,
                "queue_depth": options.depth,
            },
            "rounds_proven": self.proven().count(),
            "requests_recorded": self.recorded(),
            "recorder_cpu_us": self.recorder_us().map(|it| it.document()),
            "ratio_wanted": RATIO_WANTED,
            "cpu_ratio_wanted": CPU_RATIO_WANTED,
            "rounds": self.rounds.iter().map(round_document).collect::<Vec<Value>>(),
        });
        for (_, name, of, _) in FIGURES {
            document[name] = rounds::document(self.proven(), "recorded", of);
        }
        document
    }
}
