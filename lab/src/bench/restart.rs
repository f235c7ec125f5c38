//! How long guests wait for a daemon that starts again.
//!
//! Owns a daemon as a process of its own, as it runs for guests, a cache that holds so much dirty
//! data in scattered blocks, and a guest that writes until the daemon ends in one of four ways:
//! in order; killed; killed with the stage gone, as after a loss of power; and killed while it
//! applies a journal. A figure is the time from the start of the process to the answer to the
//! first read. Always true: a start counts only if the daemon shows the dirty data that was there
//! before it (without the stage: most of it), and one in a destage only if the image had got a part
//! of it when the daemon was killed. With other volumes beside that one there are two caches in
//! turn, whose volumes are raw images and clones, and the daemon of only one of them runs.
//! Deliberately absent: a loss of what the device was given and no sync has covered; that is for
//! drills with real power, and leaves less to recover, never more.

mod fleet;

use super::own_process::{self, Process, number};
use super::pipe::Pipe;
use super::range;
use super::rounds::{Spread, cell};
use super::work::{BLOCK_BYTES, Carrier, Verb, Work};
use crate::client::Client as Guest;
use crate::in_process::make_image;
use crate::machine;
use crate::place::Place;
use engine::engine::{format_cache, geometry_for};
use engine::types::Uuid;
pub use fleet::Beside;
use host::admin::client::{Client, PROMPT};
use host::cachedev;
use host::error::{Error, Result, cause};
use host::files::Files;
use host::lock::Patience;
use host::sys;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What is asked of the product.
pub const WANTED: Duration = Duration::from_secs(1);
const NAME: &str = "disk";
/// The cache is at least so many times as large as what is dirty in it, or it would be destaged
/// for want of room.
const CACHE_PER_DIRTY: u64 = 3;
/// Of many volumes the dirty one has so much of the log for its own: twice what its blocks take
/// there with their headers, and twice that, because a destage begins at a half.
const SHARE_PER_DIRTY: u64 = 8;
/// Dirty data lies in every other block or less.
const IMAGE_PER_DIRTY: u64 = 2;
const DEPTH: usize = 64;
/// Written again right before the end, so that the stage has what no sync has covered.
const LAST_BLOCKS: u64 = 16_384;
/// A destage may be over before the daemon is killed; then it is tried again.
const ATTEMPTS: usize = 5;
const WAIT_MAX: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub struct Options {
    pub rounds: u32,
    pub cache_bytes: u64,
    pub dirty_bytes: u64,
    /// So many more volumes, of raw images and of clones in turn; 0: none.
    pub clones: u32,
    /// The product that is measured, which may be another version than this one.
    pub program: PathBuf,
    pub directory: PathBuf,
}

/// How the daemon before has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    InOrder,
    Killed,
    PowerLoss,
    KilledInDestage,
}

impl Way {
    pub const ALL: [Way; 4] = [
        Way::InOrder,
        Way::Killed,
        Way::PowerLoss,
        Way::KilledInDestage,
    ];

    fn key(self) -> &'static str {
        match self {
            Way::InOrder => "in_order",
            Way::Killed => "killed",
            Way::PowerLoss => "power_loss",
            Way::KilledInDestage => "killed_in_destage",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Way::InOrder => "in order",
            Way::Killed => "killed",
            Way::PowerLoss => "killed, stage gone",
            Way::KilledInDestage => "killed in a destage",
        }
    }
}

/// One start.
struct Start {
    way: Way,
    beside: Beside,
    first_reply: Duration,
    /// Until every volume has answered.
    all_replies: Duration,
    /// Of that, reading the cache and making durable what it holds.
    recovery_ms: u64,
    records_replayed: u64,
    dirty_before: u64,
    dirty_after: u64,
    /// What the image had got of the journal that was being applied.
    applied_bytes: u64,
}

impl Start {
    /// What no sync has covered goes with the stage.
    fn is_proven(&self) -> bool {
        match self.way {
            Way::KilledInDestage => (1..self.dirty_before).contains(&self.applied_bytes),
            Way::PowerLoss => {
                (self.dirty_before / 2..=self.dirty_before).contains(&self.dirty_after)
            }
            _ => self.dirty_after == self.dirty_before,
        }
    }

    fn document(&self) -> Value {
        json!({
            "end": self.way.key(),
            "beside": self.beside.key(),
            "proven": self.is_proven(),
            "first_reply_ms": self.first_reply.as_secs_f64() * 1e3,
            "all_replies_ms": self.all_replies.as_secs_f64() * 1e3,
            "recovery_ms": self.recovery_ms,
            "records_replayed": self.records_replayed,
            "dirty_bytes": self.dirty_after,
            "applied_bytes": self.applied_bytes,
        })
    }
}

pub struct Report {
    options: Options,
    starts: Vec<Start>,
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench restart: {}", cause(&error)))
}

/// A daemon that runs, or has just ended.
struct Host {
    program: PathBuf,
    config: PathBuf,
    run_dir: PathBuf,
    stage_dir: PathBuf,
    client: Client,
    /// Name of the boot: a loss of power takes it along, with the stage.
    boot: String,
    /// Names of the volumes beside the one that is dirty.
    others: Vec<String>,
    daemon: Option<Process>,
}

impl Host {
    fn new(place: &Place, options: &Options, beside: Beside) -> Result<Host> {
        let name = |what: &str| format!("{}{what}", beside.prefix());
        let cache = place.path(&name("cache"));
        // In memory where there is room, as /run is: a file system on a disk takes milliseconds to
        // make a socket where others were removed a moment ago.
        let run_dir = place.stage_dir().join(name("run"));
        let stage_dir = place.stage_dir().join(name("stage"));
        let image = place.image(&name(NAME));
        make_image(&image, options.image_bytes())?;
        sparse_cache(&cache, options.cache_bytes)?;
        let mut text = own_process::config(&run_dir, &stage_dir, &cache, "ram = \"64MiB\"")?;
        let limit = (options.dirty_bytes >> 19).max(64);
        text += &format!(
            "[[volume]]\nname = \"{NAME}\"\norigin = {image:?}\nformat = \"raw\"\npolicy = \
             \"write-back\"\nexport = [\"nbd\"]\ndestage-after = \"never\"\ndirty-limit = \
             \"{limit}MiB\"\n",
        );
        if options.clones > 0 {
            // The part of one among many would be less than is dirty, and be destaged.
            let share = SHARE_PER_DIRTY * options.dirty_bytes;
            text += &format!("share = {{ min = \"{}MiB\" }}\n", share >> 20);
        }
        let others = fleet::make(place, beside, options.clones)?;
        others.iter().for_each(|other| text += &other.config());
        let config = place.path(&name("tenuto.toml"));
        fs::write(&config, text).map_err(failed)?;
        Ok(Host {
            program: options.program.clone(),
            config,
            client: Client::new(&run_dir.join("tenuto.sock")),
            run_dir,
            stage_dir,
            boot: uuid::Uuid::new_v4().to_string(),
            others: others.into_iter().map(|other| other.name).collect(),
            daemon: None,
        })
    }

    fn socket(&self) -> PathBuf {
        self.run_dir.join("nbd.sock")
    }

    /// Starts it; the time until a guest has its first answer, and until the guest of each volume
    /// has one.
    fn start(&mut self) -> Result<(Duration, Duration)> {
        let mut command = own_process::command(&self.program, Stdio::null());
        command.env("TENUTO_DRILL_BOOT", &self.boot);
        command.arg("serve").arg("--config").arg(&self.config);
        let begun = Instant::now();
        let daemon = command.spawn().map_err(failed)?;
        self.daemon = Some(Process(daemon));
        self.wait_for_answer(begun, NAME)?;
        let first = begun.elapsed();
        for other in self.others.clone() {
            self.wait_for_answer(begun, &other)?;
        }
        let last = begun.elapsed();
        // Its admin socket is there a moment after its exports.
        while let Err(error) = self.client.get("/v1/status") {
            if begun.elapsed() > WAIT_MAX {
                return Err(error);
            }
            std::thread::sleep(LOOK);
        }
        Ok((first, last))
    }

    /// Reads until there is an answer.
    fn wait_for_answer(&mut self, begun: Instant, name: &str) -> Result<()> {
        let socket = self.socket();
        let daemon = self.daemon.as_mut().expect("it was started");
        let mut block = [0; BLOCK_BYTES as usize];
        loop {
            let asked = Guest::connect(&socket, name).and_then(|mut it| it.read(0, &mut block));
            let Err(error) = asked else {
                return Ok(());
            };
            let ended = daemon.0.try_wait().map_err(failed)?;
            if ended.is_some() || begun.elapsed() > WAIT_MAX {
                return Err(failed(error));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn volume(&self) -> Result<Value> {
        self.client.get(&format!("/v1/volumes/{NAME}"))
    }

    fn dirty_bytes(&self) -> Result<u64> {
        number(&self.volume()?["dirty_bytes"])
    }

    fn applied_bytes(&self) -> Result<u64> {
        number(&self.volume()?["origin"]["write_bytes"])
    }

    /// Ends it; what the image had got of a journal by then.
    fn end(&mut self, way: Way) -> Result<u64> {
        let mut applied = 0;
        if way == Way::KilledInDestage {
            applied = self.destage_until_it_applies()?;
        }
        let mut daemon = self.daemon.take().expect("it was started");
        match way {
            Way::InOrder => {
                sys::ask_to_end(&daemon.0).map_err(failed)?;
                let status = daemon.0.wait().map_err(failed)?;
                if !status.success() {
                    return Err(Error::failed(format!(
                        "bench restart: its daemon: {status}"
                    )));
                }
            }
            _ => drop(daemon),
        }
        if way == Way::PowerLoss {
            self.boot = uuid::Uuid::new_v4().to_string();
            for entry in fs::read_dir(&self.stage_dir).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                if entry.file_name().to_string_lossy().starts_with("tenuto-") {
                    fs::remove_file(entry.path()).map_err(failed)?;
                }
            }
        }
        Ok(applied)
    }

    fn destage_until_it_applies(&self) -> Result<u64> {
        let before = self.applied_bytes()?;
        let order = format!("/v1/volumes/{NAME}/destage");
        self.client.post(&order, None, PROMPT)?;
        let begun = Instant::now();
        loop {
            let applied = self.applied_bytes()? - before;
            if applied > 0 {
                return Ok(applied);
            }
            if begun.elapsed() > WAIT_MAX {
                return Err(Error::failed("bench restart: the destage does not begin"));
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// A cache in a file without blocks: only what is written to it takes room.
pub fn sparse_cache(path: &Path, bytes: u64) -> Result<()> {
    let wrong = |why: String| Error::failed(format!("cache {}: {why}", path.display()));
    make_image(path, bytes)?;
    let geometry = geometry_for(bytes).map_err(wrong)?;
    let opened = cachedev::open(path, &mut Patience::none());
    let target = opened.map_err(|fault| wrong(fault.to_string()))?;
    let uuid = Uuid(*uuid::Uuid::new_v4().as_bytes());
    let formatted = format_cache(&mut Files::new(target), uuid, geometry);
    formatted.map_err(|error| wrong(error.to_string()))
}

impl Options {
    fn image_bytes(&self) -> u64 {
        (IMAGE_PER_DIRTY * self.dirty_bytes).next_power_of_two()
    }

    fn work(&self) -> Work {
        Work::only(Verb::Write, 0..self.image_bytes() / BLOCK_BYTES, DEPTH)
    }

    /// What stands beside the volume that is dirty: each is a cache of its own.
    pub fn beside(&self) -> &'static [Beside] {
        match self.clones {
            0 => &[Beside::Nothing],
            _ => &[Beside::Raw, Beside::Clones],
        }
    }
}

/// Writes on until so much is dirty, and then a little of it again.
fn fill(host: &Host, work: &mut Work, options: &Options) -> Result<()> {
    let mut pipe = Pipe::connect(&host.socket(), NAME, 1).map_err(failed)?;
    let missing = options.dirty_bytes.saturating_sub(host.dirty_bytes()?);
    work.left =
        Some(missing / BLOCK_BYTES + LAST_BLOCKS.min(options.dirty_bytes / BLOCK_BYTES / 8));
    pipe.carry(work, WAIT_MAX).map_err(failed)?;
    Ok(())
}

pub fn run(options: &Options, mut done: impl FnMut(u64)) -> Result<Report> {
    range::at_least_one("--rounds", options.rounds)?;
    range::size_within("--dirty", options.dirty_bytes, 1 << 20..=64 << 30)?;
    let least = match options.clones {
        0 => CACHE_PER_DIRTY,
        _ => 2 * SHARE_PER_DIRTY,
    };
    let least = (least * options.dirty_bytes).max(128 << 20);
    range::size_at_least("--cache", options.cache_bytes, least)?;
    range::within("--clones", options.clones, 0..=fleet::VOLUMES_MAX)?;
    let place = Place::below(&options.directory)?;
    let hosts = options.beside().iter();
    let hosts = hosts.map(|beside| Host::new(&place, options, *beside));
    let mut hosts = hosts.collect::<Result<Vec<Host>>>()?;
    let mut works: Vec<Work> = hosts.iter().map(|_| options.work()).collect();
    let mut starts: Vec<Start> = Vec::new();
    let mut number = 0;
    for round in 0..options.rounds {
        for way in Way::ALL {
            for turn in 0..hosts.len() {
                let at = (turn + round as usize) % hosts.len();
                let beside = options.beside()[at];
                let (host, work) = (&mut hosts[at], &mut works[at]);
                measure(host, work, options, (way, beside), &mut starts)?;
                number += 1;
                done(number);
            }
        }
    }
    Ok(Report {
        options: options.clone(),
        starts,
    })
}

/// Starts after one way to end, until one is proven.
fn measure(
    host: &mut Host,
    work: &mut Work,
    options: &Options,
    (way, beside): (Way, Beside),
    starts: &mut Vec<Start>,
) -> Result<()> {
    if host.daemon.is_none() {
        host.start()?;
    }
    for _ in 0..ATTEMPTS {
        fill(host, work, options)?;
        let start = start_after(host, way, beside)?;
        let enough = way != Way::KilledInDestage || start.is_proven();
        starts.push(start);
        if enough {
            break;
        }
    }
    // Of two the other one has the machine next.
    if options.clones > 0 {
        host.end(Way::InOrder)?;
    }
    Ok(())
}

fn start_after(host: &mut Host, way: Way, beside: Beside) -> Result<Start> {
    let dirty_before = host.dirty_bytes()?;
    let applied_bytes = host.end(way)?;
    let (first_reply, all_replies) = host.start()?;
    let recovery = host.client.get("/v1/status")?["recovery"].take();
    Ok(Start {
        way,
        beside,
        first_reply,
        all_replies,
        recovery_ms: number(&recovery["ms"])?,
        records_replayed: number(&recovery["records_replayed"])?,
        dirty_before,
        dirty_after: host.dirty_bytes()?,
        applied_bytes,
    })
}

impl Report {
    fn of(&self, way: Way, beside: Beside) -> impl Iterator<Item = &Start> {
        let starts = self.starts.iter();
        starts.filter(move |it| (it.way, it.beside) == (way, beside) && it.is_proven())
    }

    fn spread(&self, of: (Way, Beside), figure: impl Fn(&Start) -> f64) -> Option<Spread> {
        Spread::of(self.of(of.0, of.1).map(figure))
    }

    fn reply_ms(&self, of: (Way, Beside)) -> Option<Spread> {
        self.spread(of, |start| start.first_reply.as_secs_f64() * 1e3)
    }

    fn all_replies_ms(&self, of: (Way, Beside)) -> Option<Spread> {
        self.spread(of, |start| start.all_replies.as_secs_f64() * 1e3)
    }

    /// So much later a guest has its answer beside clones than beside raw volumes, in the median.
    fn more_ms(&self, way: Way, of: fn(&Report, (Way, Beside)) -> Option<Spread>) -> Option<f64> {
        let [raw, clones] = [Beside::Raw, Beside::Clones].map(|it| of(self, (way, it)));
        Some(clones?.median - raw?.median)
    }

    pub fn headline(&self) -> String {
        let options = &self.options;
        let beside = match options.clones {
            0 => String::new(),
            count => format!(
                "beside it {count} volumes of {} MiB, raw and qcow2 clones of one base in turn; ",
                fleet::VOLUME_BYTES >> 20
            ),
        };
        format!(
            "process start to the first answer over NBD; cache of {} MiB, {} MiB dirty in \
             scattered blocks of 4 KiB; {beside}{} of {} starts proven",
            options.cache_bytes >> 20,
            options.dirty_bytes >> 20,
            self.starts.iter().filter(|it| it.is_proven()).count(),
            self.starts.len(),
        )
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub const HEAD: [&'static str; 6] = [
        "THE DAEMON BEFORE ENDED",
        "FIRST REPLY, MS",
        "ALL VOLUMES, MS",
        "OF IT RECOVERY, MS",
        "DIRTY, MIB",
        "WANTED, MS",
    ];

    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for way in Way::ALL {
            for beside in self.options.beside() {
                let of = (way, *beside);
                let dirty = self.spread(of, |start| start.dirty_after as f64 / (1 << 20) as f64);
                let wanted = match beside {
                    Beside::Clones => format!("< raw + {}", WANTED.as_millis()),
                    Beside::Nothing => format!("< {}", WANTED.as_millis()),
                    Beside::Raw => "-".into(),
                };
                rows.push(vec![
                    format!("{}{}", way.name(), beside.words()),
                    cell(self.reply_ms(of), 0),
                    cell(self.all_replies_ms(of), 0),
                    cell(self.spread(of, |start| start.recovery_ms as f64), 0),
                    cell(dirty, 0),
                    wanted,
                ]);
            }
        }
        rows
    }

    pub fn document(&self) -> Value {
        let mut document = json!({
            "benchmark": "restart",
            "machine": machine::document(),
            "parameters": {
                "rounds": self.options.rounds,
                "cache_bytes": self.options.cache_bytes,
                "dirty_bytes": self.options.dirty_bytes,
                "clones": self.options.clones,
            },
            "wanted_ms": WANTED.as_millis() as u64,
            "starts": self.starts.iter().map(Start::document).collect::<Vec<Value>>(),
        });
        let figures = |way: Way, beside: Beside| {
            let of = (way, beside);
            json!({
                "proven": self.of(way, beside).count(),
                "first_reply_ms": self.reply_ms(of).map(|it| it.document()),
                "all_replies_ms": self.all_replies_ms(of).map(|it| it.document()),
            })
        };
        for way in Way::ALL {
            document[way.key()] = match self.options.clones {
                0 => figures(way, Beside::Nothing),
                _ => json!({
                    "raw": figures(way, Beside::Raw),
                    "clones": figures(way, Beside::Clones),
                    "clones_more_ms": {
                        "first_reply": self.more_ms(way, Report::reply_ms),
                        "all_replies": self.more_ms(way, Report::all_replies_ms),
                    },
                }),
            };
        }
        document
    }
}
