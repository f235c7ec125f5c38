//! What a recording costs the guest that is recorded.
//!
//! Owns a daemon and recorders as processes of their own, as an administrator has them, and
//! alternating slots of one guest: alone, recorded, alone again. The guest reads from RAM as fast
//! as it is answered, because then a recording has most to do. Always true: a round counts only if
//! the trace of its recording holds each request that the daemon counted meanwhile and nothing was
//! lost; a recorder has ended before the next slot begins. Deliberately absent: other loads; where
//! a request takes longer, the part of a recording in it is smaller.

use super::host::make_image;
use super::machine;
use super::pipe::Pipe;
use super::rounds::{self, Compared, Spread};
use super::work::{BLOCK_BYTES, Carrier, Tally, Verb, Work};
use crate::admin::client::{Client, PROMPT};
use crate::demo::host::{Place, make_cache};
use crate::error::{Error, Result, cause};
use crate::sys;
use serde_json::{Value, json};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is asked of the product: so much of the requests per second is left.
pub const RATIO_WANTED: f64 = 0.98;
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

struct Slot {
    per_second: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// What the daemon counted, and what is in the trace.
    requests: u64,
    recorded: u64,
    lost: u64,
}

/// Alone, recorded, alone again.
type Round = [Slot; 3];

pub struct Report {
    options: Options,
    rounds: Vec<Round>,
}

/// A process that ends with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench record: {}", cause(&error)))
}

/// This program with other arguments.
fn this_program(output: Stdio) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command
        .env_remove("TENUTO_SOCKET")
        .env_remove("TENUTO_CONFIG");
    sys::end_with_parent(&mut command);
    command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null());
    Ok(command)
}

/// A daemon with one volume.
struct Host {
    run_dir: PathBuf,
    client: Client,
    /// Recordings so far: nobody else makes any.
    recordings: u64,
    daemon: Process,
}

impl Host {
    fn start(place: &Place) -> Result<Host> {
        let (cache, run_dir) = (place.path("cache"), place.path("run"));
        let image = place.stage_dir().join("guest.img");
        make_image(&image, HOT.end * BLOCK_BYTES)?;
        make_cache(&cache, CACHE_BYTES)?;
        fs::create_dir_all(&run_dir).map_err(failed)?;
        let group = fs::metadata(&run_dir).map_err(failed)?.gid();
        let text = format!(
            "[host]\nname = \"bench\"\ngroup = \"{group}\"\nrun-dir = {run_dir:?}\nstage-dir = \
             {stage:?}\nstate-dir = {stage:?}\n[cache]\npath = {cache:?}\nram = \"128MiB\"\nstage \
             = \"16MiB\"\noverlay-ram = \"16MiB\"\n[[volume]]\nname = \"{NAME}\"\norigin = \
             {image:?}\nformat = \"raw\"\npolicy = \"write-back\"\nexport = [\"nbd\"]\n",
            stage = place.stage_dir(),
        );
        let config = place.path("tenuto.toml");
        fs::write(&config, text).map_err(failed)?;
        let mut command = this_program(Stdio::null())?;
        let daemon = command.arg("serve").arg("--config").arg(&config).spawn();
        let mut host = Host {
            client: Client::new(&run_dir.join("tenuto.sock")),
            run_dir,
            recordings: 0,
            daemon: Process(daemon.map_err(failed)?),
        };
        let begun = Instant::now();
        while let Err(error) = host.client.get("/v1/status") {
            let ended = host.daemon.0.try_wait().map_err(failed)?;
            if ended.is_some() || begun.elapsed() > WAIT_MAX {
                return Err(Error::failed(format!("bench record: its daemon: {error}")));
            }
            std::thread::sleep(LOOK);
        }
        Ok(host)
    }

    /// Requests of the guest until now.
    fn requests(&self) -> Result<u64> {
        let volume = self.client.get(&format!("/v1/volumes/{NAME}"))?;
        let of = |what: &str| volume[what]["requests"].as_u64();
        let counted = of("reads").zip(of("writes"));
        let counted = counted.map(|(reads, writes)| reads + writes);
        counted.ok_or_else(|| Error::failed("bench record: its daemon counts nothing"))
    }

    /// Starts a recorder; returns when it records.
    fn record(&mut self, trace: &Path) -> Result<Process> {
        let mut command = this_program(Stdio::piped())?;
        command.args(["trace", "record", NAME, "--json", "--force", "--output"]);
        command.arg(trace);
        command.arg("--socket").arg(self.client.socket());
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
        Ok(recorder)
    }

    /// Ends a recorder in order: how many requests it has recorded and lost.
    fn end(&self, mut recorder: Process) -> Result<(u64, u64)> {
        let place = format!("/v1/trace/{}", self.recordings);
        self.client.delete(&place, PROMPT)?;
        let said = recorder.0.stdout.take().expect("it is a pipe");
        let said: Value = serde_json::from_reader(said).map_err(|error| {
            Error::failed(format!("bench record: the recorder says nothing: {error}"))
        })?;
        recorder.0.wait().map_err(failed)?;
        let of = |what: &str| said[what].as_u64();
        let counted = of("requests").zip(of("lost"));
        counted.ok_or_else(|| Error::failed(format!("bench record: the recorder says {said}")))
    }
}

pub fn run(options: &Options) -> Result<Report> {
    if !(0.05..=600.0).contains(&options.seconds) || options.rounds == 0 {
        return Err(Error::usage(
            "bench record: give at least one round, and --seconds from 0.05 to 600",
        ));
    }
    if !(1..=256).contains(&options.depth) {
        return Err(Error::usage("bench record: --qd takes 1 to 256"));
    }
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
    let socket = host.run_dir.join("nbd.sock");
    let mut pipe = Pipe::connect(&socket, NAME, 1).map_err(failed)?;
    let mut warm = Work::only(Verb::Read, HOT, options.depth);
    warm.left = Some(2 * (HOT.end - HOT.start));
    pipe.carry(&mut warm, WAIT_MAX).map_err(failed)?;
    let mut work = Work::only(Verb::Read, HOT, options.depth);
    let lasts = Duration::from_secs_f64(options.seconds);
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let mut slots = [None, None, None];
        for at in rounds::order(round) {
            let recorder = match at {
                1 => Some(host.record(trace)?),
                _ => None,
            };
            let before = host.requests()?;
            let tally = pipe.carry(&mut work, lasts).map_err(failed)?;
            let requests = host.requests()? - before;
            let found = recorder.map(|recorder| host.end(recorder));
            let (recorded, lost) = found.transpose()?.unwrap_or_default();
            slots[at] = Some(slot(&tally, requests, recorded, lost));
        }
        rounds.push(slots.map(|slot| slot.expect("each has its turn")));
    }
    Ok(rounds)
}

fn slot(tally: &Tally, requests: u64, recorded: u64, lost: u64) -> Slot {
    Slot {
        per_second: tally.per_second(),
        p50_us: tally.quantile_us(50),
        p99_us: tally.quantile_us(99),
        requests,
        recorded,
        lost,
    }
}

fn is_proven([alone, recorded, again]: &Round) -> bool {
    let all = recorded.recorded == recorded.requests && recorded.lost == 0;
    let some = |slot: &Slot| slot.requests > 0;
    all && [alone, recorded, again].into_iter().all(some)
}

fn slot_document(slot: &Slot) -> Value {
    json!({
        "iops": slot.per_second,
        "p50_us": slot.p50_us,
        "p99_us": slot.p99_us,
        "requests": slot.requests,
        "recorded": slot.recorded,
        "lost": slot.lost,
    })
}

fn round_document(round: &Round) -> Value {
    let [alone, recorded, again] = round;
    json!({
        "proven": is_proven(round),
        "alone": slot_document(alone),
        "recorded": slot_document(recorded),
        "alone_again": slot_document(again),
    })
}

impl Report {
    fn proven(&self) -> impl Iterator<Item = &Round> {
        self.rounds.iter().filter(|round| is_proven(round))
    }

    fn compared(&self, figure: impl Fn(&Slot) -> Option<f64>) -> Compared {
        let row = |round: &Round| [figure(&round[0]), figure(&round[1]), figure(&round[2])];
        rounds::compare(&self.proven().map(row).collect::<Vec<_>>())
    }

    fn median(&self, at: usize, figure: impl Fn(&Slot) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.proven().filter_map(|round| figure(&round[at])))
    }

    fn recorded(&self) -> u64 {
        self.rounds.iter().map(|round| round[1].recorded).sum()
    }

    pub fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "4 KiB reads from RAM, {} in flight over one NBD connection; daemon and recorder are \
             processes of their own; {} of {} rounds of 3 x {} s whose trace holds every request, \
             {} requests in all traces",
            options.depth,
            self.proven().count(),
            self.rounds.len(),
            options.seconds,
            self.recorded(),
        )
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub const HEAD: [&'static str; 6] = ["", "ALONE", "RECORDED", "RATIO", "A/A", "WANTED"];

    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, of: &dyn Fn(&Slot) -> Option<f64>, wanted: &str| {
            let compared = self.compared(of);
            let text =
                |it: Option<Spread>, digits| it.map_or("-".into(), |it| it.text(1.0, digits));
            vec![
                name.to_owned(),
                text(self.median(0, of), 1),
                text(self.median(1, of), 1),
                text(compared.ratio, 3),
                text(compared.same, 3),
                wanted.to_owned(),
            ]
        };
        let wanted = format!(">= {RATIO_WANTED}");
        vec![
            row("requests/s", &|slot| Some(slot.per_second), &wanted),
            row("p50, us", &|slot| slot.p50_us, "-"),
            row("p99, us", &|slot| slot.p99_us, "-"),
        ]
    }

    pub fn document(&self) -> Value {
        let options = &self.options;
        let figure = |of: &dyn Fn(&Slot) -> Option<f64>| {
            let compared = self.compared(of);
            let spread = |it: Option<Spread>| it.map(|it| it.document());
            json!({
                "alone": spread(self.median(0, of)),
                "recorded": spread(self.median(1, of)),
                "ratio": spread(compared.ratio),
                "a_a_ratio": spread(compared.same),
            })
        };
        json!({
            "benchmark": "record",
            "machine": machine::document(),
            "parameters": {
                "rounds": options.rounds,
                "seconds": options.seconds,
                "queue_depth": options.depth,
            },
            "rounds_proven": self.proven().count(),
            "requests_recorded": self.recorded(),
            "iops": figure(&|slot| Some(slot.per_second)),
            "p50_us": figure(&|slot| slot.p50_us),
            "p99_us": figure(&|slot| slot.p99_us),
            "ratio_wanted": RATIO_WANTED,
            "rounds": self.rounds.iter().map(round_document).collect::<Vec<Value>>(),
        })
    }
}
