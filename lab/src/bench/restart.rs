//! How long guests wait for a daemon that starts again.
//!
//! Owns a daemon as a process of its own, as it runs for guests, a cache that holds so much dirty
//! data in scattered blocks, and a guest that writes until the daemon ends in one of four ways:
//! in order; killed; killed with the stage gone, as after a loss of power; and killed while it
//! applies a journal. A figure is the time from the start of the process to the answer to the
//! first read. Always true: a start counts only if the daemon shows the dirty data that was there
//! before it (without the stage: most of it), and one in a destage only if the image had got a part
//! of it when the daemon was killed.
//! Deliberately absent: a loss of what the device was given and no sync has covered; that is for
//! drills with real power, and leaves less to recover, never more.

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
use host::admin::client::{Client, PROMPT};
use host::cachedev;
use host::error::{Error, Result, cause};
use host::files::Files;
use host::lock::Patience;
use host::sys;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is asked of the product.
pub const WANTED: Duration = Duration::from_secs(1);
const NAME: &str = "disk";
/// The cache is at least so many times as large as what is dirty in it, or it would be destaged
/// for want of room.
const CACHE_PER_DIRTY: u64 = 3;
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
    first_reply: Duration,
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
            "proven": self.is_proven(),
            "first_reply_ms": self.first_reply.as_secs_f64() * 1e3,
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

/// A process that ends with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
    daemon: Option<Process>,
}

impl Host {
    fn new(place: &Place, options: &Options) -> Result<Host> {
        let (cache, run_dir) = (place.path("cache"), place.path("run"));
        let image = place.image(NAME);
        make_image(&image, options.image_bytes())?;
        sparse_cache(&cache, options.cache_bytes)?;
        fs::create_dir_all(&run_dir).map_err(failed)?;
        let group = fs::metadata(&run_dir).map_err(failed)?.gid();
        let text = format!(
            "[host]\nname = \"bench\"\ngroup = \"{group}\"\nrun-dir = {run_dir:?}\nstage-dir = \
             {stage:?}\nstate-dir = {stage:?}\n[cache]\npath = {cache:?}\nram = \"64MiB\"\n\
             overlay-ram = \"16MiB\"\n[[volume]]\nname = \"{NAME}\"\norigin = {image:?}\nformat = \
             \"raw\"\npolicy = \"write-back\"\nexport = [\"nbd\"]\ndestage-after = \"never\"\n\
             dirty-limit = \"{limit}MiB\"\n",
            stage = place.stage_dir(),
            limit = (options.dirty_bytes >> 19).max(64),
        );
        let config = place.path("tenuto.toml");
        fs::write(&config, text).map_err(failed)?;
        Ok(Host {
            program: options.program.clone(),
            config,
            client: Client::new(&run_dir.join("tenuto.sock")),
            run_dir,
            stage_dir: place.stage_dir().to_owned(),
            boot: uuid::Uuid::new_v4().to_string(),
            daemon: None,
        })
    }

    fn socket(&self) -> PathBuf {
        self.run_dir.join("nbd.sock")
    }

    /// Starts it; the time until a guest has its first answer.
    fn start(&mut self) -> Result<Duration> {
        let mut command = Command::new(&self.program);
        command
            .env_remove("TENUTO_SOCKET")
            .env_remove("TENUTO_CONFIG")
            .env("TENUTO_DRILL_BOOT", &self.boot);
        sys::end_with_parent(&mut command);
        command.arg("serve").arg("--config").arg(&self.config);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let begun = Instant::now();
        let daemon = command.spawn().map_err(failed)?;
        let daemon = self.daemon.insert(Process(daemon));
        let socket = self.run_dir.join("nbd.sock");
        let mut block = [0; BLOCK_BYTES as usize];
        loop {
            let asked = Guest::connect(&socket, NAME).and_then(|mut it| it.read(0, &mut block));
            match asked {
                Ok(()) => break,
                Err(error) => {
                    let ended = daemon.0.try_wait().map_err(failed)?;
                    if ended.is_some() || begun.elapsed() > WAIT_MAX {
                        return Err(failed(error));
                    }
                }
            }
            std::thread::sleep(LOOK);
        }
        let first_reply = begun.elapsed();
        // Its admin socket is there a moment after its exports.
        while let Err(error) = self.client.get("/v1/status") {
            if begun.elapsed() > WAIT_MAX {
                return Err(error);
            }
            std::thread::sleep(LOOK);
        }
        Ok(first_reply)
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

fn number(value: &Value) -> Result<u64> {
    let number = value.as_u64();
    number.ok_or_else(|| Error::failed("bench restart: its daemon counts nothing"))
}

/// A cache in a file without blocks: only what is written to it takes room.
fn sparse_cache(path: &Path, bytes: u64) -> Result<()> {
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
    let least = (CACHE_PER_DIRTY * options.dirty_bytes).max(128 << 20);
    range::size_at_least("--cache", options.cache_bytes, least)?;
    let place = Place::below(&options.directory)?;
    let mut host = Host::new(&place, options)?;
    host.start()?;
    let blocks = options.image_bytes() / BLOCK_BYTES;
    let mut work = Work::only(Verb::Write, 0..blocks, DEPTH);
    let mut starts: Vec<Start> = Vec::new();
    for round in 0..u64::from(options.rounds) {
        for (way, number) in Way::ALL.into_iter().zip(1..) {
            for _ in 0..ATTEMPTS {
                fill(&host, &mut work, options)?;
                let start = start_after(&mut host, way)?;
                let enough = way != Way::KilledInDestage || start.is_proven();
                starts.push(start);
                if enough {
                    break;
                }
            }
            done(round * Way::ALL.len() as u64 + number);
        }
    }
    Ok(Report {
        options: options.clone(),
        starts,
    })
}

fn start_after(host: &mut Host, way: Way) -> Result<Start> {
    let dirty_before = host.dirty_bytes()?;
    let applied_bytes = host.end(way)?;
    let first_reply = host.start()?;
    let recovery = host.client.get("/v1/status")?["recovery"].take();
    Ok(Start {
        way,
        first_reply,
        recovery_ms: number(&recovery["ms"])?,
        records_replayed: number(&recovery["records_replayed"])?,
        dirty_before,
        dirty_after: host.dirty_bytes()?,
        applied_bytes,
    })
}

impl Report {
    fn of(&self, way: Way) -> impl Iterator<Item = &Start> {
        let starts = self.starts.iter();
        starts.filter(move |start| start.way == way && start.is_proven())
    }

    fn spread(&self, way: Way, of: impl Fn(&Start) -> f64) -> Option<Spread> {
        Spread::of(self.of(way).map(of))
    }

    fn reply_ms(&self, way: Way) -> Option<Spread> {
        self.spread(way, |start| start.first_reply.as_secs_f64() * 1e3)
    }

    pub fn headline(&self) -> String {
        format!(
            "process start to the first answer over NBD; cache of {} MiB, {} MiB dirty in \
             scattered blocks of 4 KiB; {} of {} starts proven",
            self.options.cache_bytes >> 20,
            self.options.dirty_bytes >> 20,
            Way::ALL.into_iter().flat_map(|way| self.of(way)).count(),
            self.starts.len(),
        )
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub const HEAD: [&'static str; 5] = [
        "THE DAEMON BEFORE ENDED",
        "FIRST REPLY, MS",
        "OF IT RECOVERY, MS",
        "DIRTY, MIB",
        "WANTED, MS",
    ];

    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |way: Way| {
            let dirty = self.spread(way, |start| start.dirty_after as f64 / (1 << 20) as f64);
            vec![
                way.name().to_owned(),
                cell(self.reply_ms(way), 0),
                cell(self.spread(way, |start| start.recovery_ms as f64), 0),
                cell(dirty, 0),
                format!("< {}", WANTED.as_millis()),
            ]
        };
        Way::ALL.into_iter().map(row).collect()
    }

    pub fn document(&self) -> Value {
        let mut document = json!({
            "benchmark": "restart",
            "machine": machine::document(),
            "parameters": {
                "rounds": self.options.rounds,
                "cache_bytes": self.options.cache_bytes,
                "dirty_bytes": self.options.dirty_bytes,
            },
            "wanted_ms": WANTED.as_millis() as u64,
            "starts": self.starts.iter().map(Start::document).collect::<Vec<Value>>(),
        });
        for way in Way::ALL {
            document[way.key()] = json!({
                "proven": self.of(way).count(),
                "first_reply_ms": self.reply_ms(way).map(|it| it.document()),
            });
        }
        document
    }
}
