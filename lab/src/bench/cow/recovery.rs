//! Full recovery: how long the dirty data of a dead host's cache takes to its image.
//!
//! Owns the slots of a round: a plain write of the same bytes in one run, one in the pattern of the
//! guest, and the recovery, which take turns, the first of them twice. Always true: the daemon is
//! killed and its stage is gone, as with its host; `tenuto recover` is a process of its own and is
//! timed from its start to its end; each slot has a new file on the same file system, and a plain
//! write ends with a sync; a recovery counts if the cache had all that was written and has nothing
//! afterwards, and its rate is of what the image got by it. Deliberately absent: a simulated
//! storage, whose rate would be what was chosen.

mod plain;
mod report;

use super::live::guest;
use super::live::side::allocated;
use crate::bench::own_process::{self, Served, number};
use crate::bench::range;
use crate::bench::restart::sparse_cache;
use crate::bench::work::Walk;
use crate::in_process::{make_clone, make_image, make_qcow2};
use crate::place::Place;
use crate::replay::machine::Ask;
use host::error::{Error, Result, cause};
use image::create::Shape;
use plain::Plain;
pub use report::Report;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const NAME: &str = "disk";
const SECTOR_BYTES: u64 = 512;
/// A destage begins long before a log is full; only what is written takes room.
const CACHE_PER_DIRTY: u64 = 8;
const CACHE_BYTES_MIN: u64 = 128 << 20;
/// Dirty data lies in every other piece.
const IMAGE_PER_DIRTY: u64 = 2;
const DEPTH: usize = 16;
const LASTS: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub struct Options {
    pub rounds: u32,
    pub dirty_bytes: u64,
    /// Sizes of the guest's writes.
    pub piece_bytes: Vec<u64>,
    /// The product that recovers.
    pub program: PathBuf,
    /// Of image and cache, or of the image alone.
    pub directory: PathBuf,
    pub cache_directory: Option<PathBuf>,
}

impl Options {
    pub const PIECES: &str = "64KiB,4KiB";

    fn check(&self) -> Result<()> {
        range::at_least_one("--rounds", self.rounds)?;
        range::size_within("--size", self.dirty_bytes, 8 << 20..=64 << 30)?;
        for bytes in &self.piece_bytes {
            range::size_within("--pieces", *bytes, 4096..=1 << 20)?;
            if !bytes.is_power_of_two() {
                return Err(Error::usage("--pieces: give powers of two"));
            }
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let of = |image: Image| {
            let pieces = self.piece_bytes.iter();
            pieces.map(move |piece_bytes| Case {
                image,
                piece_bytes: *piece_bytes,
            })
        };
        of(Image::Raw).chain(of(Image::Clone)).collect()
    }

    /// Slots of which [`run`] tells.
    pub fn steps(&self) -> u64 {
        (self.cases().len() * Slot::ALL.len()) as u64 * u64::from(self.rounds)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    Raw,
    /// With subclusters, as `volume add --clone-of` makes it.
    Clone,
}

impl Image {
    fn name(self) -> &'static str {
        match self {
            Image::Raw => "raw",
            Image::Clone => "qcow2 clone",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    image: Image,
    piece_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// In one run.
    Sequential,
    /// In the guest's pieces, at their places.
    Pattern,
    Recovery,
    SequentialAgain,
}

impl Slot {
    const ALL: [Slot; 4] = [
        Slot::Sequential,
        Slot::Pattern,
        Slot::Recovery,
        Slot::SequentialAgain,
    ];
}

/// One round of a case.
struct Round {
    /// In the order of [`Slot::ALL`].
    seconds: [f64; 4],
    recovered: Option<Recovered>,
}

impl Round {
    /// What a slot has moved.
    fn bytes(&self, slot: Slot, dirty_bytes: u64) -> u64 {
        match (slot, self.recovered) {
            (Slot::Recovery, Some(recovered)) => recovered.brought_bytes(dirty_bytes),
            _ => dirty_bytes,
        }
    }

    fn rate(&self, slot: Slot, dirty_bytes: u64) -> f64 {
        self.bytes(slot, dirty_bytes) as f64 / self.seconds[slot as usize]
    }

    fn is_proven(&self, dirty_bytes: u64) -> bool {
        self.recovered.is_some_and(|it| it.is_proven(dirty_bytes))
    }
}

struct Line {
    case: Case,
    dirty_bytes: u64,
    rounds: Vec<Round>,
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench cow recovery: {}", cause(&error)))
}

/// Calls `done` with the slots so far.
pub fn run(options: &Options, mut done: impl FnMut(u64)) -> Result<Report> {
    options.check()?;
    let place = Place::below(&options.directory)?;
    let elsewhere = options.cache_directory.as_deref();
    let elsewhere = elsewhere.map(Place::below).transpose()?;
    let bench = Bench {
        options,
        place: &place,
        caches: elsewhere.as_ref().unwrap_or(&place),
    };
    let mut steps = 0;
    let mut lines = Vec::new();
    for case in options.cases() {
        let mut rounds = Vec::new();
        for number in 0..options.rounds as usize {
            let mut round = Round {
                seconds: [0.0; 4],
                recovered: None,
            };
            for turn in 0..Slot::ALL.len() {
                let at = (turn + number) % Slot::ALL.len();
                bench.slot(case, Slot::ALL[at], &mut round)?;
                steps += 1;
                done(steps);
            }
            rounds.push(round);
        }
        lines.push(Line {
            case,
            dirty_bytes: options.dirty_bytes,
            rounds,
        });
    }
    Ok(Report {
        options: options.clone(),
        lines,
    })
}

struct Bench<'a> {
    options: &'a Options,
    place: &'a Place,
    caches: &'a Place,
}

impl Bench<'_> {
    fn image_bytes(&self) -> u64 {
        (IMAGE_PER_DIRTY * self.options.dirty_bytes).next_power_of_two()
    }

    /// Where the guest writes, each place once.
    fn places(&self, case: Case) -> Vec<u64> {
        let mut walk = Walk::new(0..self.image_bytes() / case.piece_bytes);
        let count = self.options.dirty_bytes / case.piece_bytes;
        (0..count).map(|_| walk.next() * case.piece_bytes).collect()
    }

    fn slot(&self, case: Case, slot: Slot, round: &mut Round) -> Result<()> {
        round.seconds[slot as usize] = match slot {
            Slot::Recovery => {
                let recovered = self.recovery(case)?;
                round.recovered = Some(recovered);
                recovered.took.as_secs_f64()
            }
            Slot::Pattern => {
                let mut places = self.places(case);
                // As a destage does, and in favour of the storage.
                places.sort_unstable();
                self.plain(case.piece_bytes, places)?.as_secs_f64()
            }
            Slot::Sequential | Slot::SequentialAgain => {
                let pieces = self.options.dirty_bytes.div_ceil(Plain::RUN_BYTES);
                let places = (0..pieces).map(|at| at * Plain::RUN_BYTES).collect();
                self.plain(Plain::RUN_BYTES, places)?.as_secs_f64()
            }
        };
        Ok(())
    }

    fn plain(&self, piece_bytes: u64, places: Vec<u64>) -> Result<Duration> {
        let path = self.place.path("plain");
        make_image(&path, self.image_bytes())?;
        let took = Plain::new(&path, piece_bytes).and_then(|it| it.write(&places));
        let removed = fs::remove_file(&path);
        let took = took.map_err(failed)?;
        removed.map_err(failed)?;
        Ok(took)
    }

    /// Fills a cache, kills its daemon, and brings home what is in it.
    fn recovery(&self, case: Case) -> Result<Recovered> {
        let host = DeadHost::new(self, case)?;
        let asks: Vec<Ask> = self
            .places(case)
            .into_iter()
            .map(|at| ask(case, at))
            .collect();
        host.fill(&asks)?;
        let program = &self.options.program;
        let dirty_bytes = host.dirty_bytes(program)?;
        // Where the log was short of room for a moment a destage had begun: what the image had of
        // it is not recovered again, and does not count.
        let before = allocated(&host.image)?;
        let begun = Instant::now();
        host.recover(program, &[])?;
        let took = begun.elapsed();
        let left_bytes = host.dirty_bytes(program)?;
        let image_bytes = allocated(&host.image)? - before;
        let wrong = match case.image {
            Image::Raw => wrong_places(&host.image, &asks)?,
            Image::Clone => 0,
        };
        Ok(Recovered {
            took,
            dirty_bytes,
            left_bytes,
            image_bytes,
            wrong,
        })
    }
}

fn ask(case: Case, at: u64) -> Ask {
    Ask::Write {
        sector: at / SECTOR_BYTES,
        sectors: case.piece_bytes / SECTOR_BYTES,
    }
}

/// Places of a raw image that do not have what the guest wrote; each write has its number.
fn wrong_places(image: &Path, asks: &[Ask]) -> Result<u64> {
    let file = fs::File::open(image).map_err(failed)?;
    let mut wrong = 0;
    for (number, ask) in asks.iter().enumerate() {
        let Ask::Write { sector, .. } = ask else {
            unreachable!("a guest only writes here");
        };
        let mut head = [0; 8];
        file.read_exact_at(&mut head, sector * SECTOR_BYTES)
            .map_err(failed)?;
        wrong += u64::from(u64::from_le_bytes(head) != number as u64);
    }
    Ok(wrong)
}

#[derive(Clone, Copy)]
struct Recovered {
    took: Duration,
    /// In the cache, before and after.
    dirty_bytes: u64,
    left_bytes: u64,
    /// What the image was given on its file system.
    image_bytes: u64,
    wrong: u64,
}

impl Recovered {
    /// What the recovery itself has brought to the image; tables are not data.
    fn brought_bytes(&self, dirty_bytes: u64) -> u64 {
        self.image_bytes.min(dirty_bytes)
    }

    fn is_proven(&self, dirty_bytes: u64) -> bool {
        let most = self.dirty_bytes == dirty_bytes && self.brought_bytes(dirty_bytes) > 0;
        most && self.left_bytes == 0 && self.wrong == 0
    }
}

/// A host with one volume, whose cache and image outlive it. Its files go away with it.
struct DeadHost {
    cache: PathBuf,
    image: PathBuf,
    base: PathBuf,
    config: PathBuf,
    run_dir: PathBuf,
    stage_dir: PathBuf,
    program: PathBuf,
    /// Name of the boot in which its data is recovered; it is not the one that wrote it.
    boot: String,
}

impl DeadHost {
    fn new(bench: &Bench, case: Case) -> Result<DeadHost> {
        let (place, dirty_bytes) = (bench.place, bench.options.dirty_bytes);
        let host = DeadHost {
            cache: bench.caches.path("cache"),
            image: place.image(NAME),
            base: place.path("base.qcow2"),
            config: place.path("tenuto.toml"),
            run_dir: place.stage_dir().join("run"),
            stage_dir: place.stage_dir().join("stage"),
            program: bench.options.program.clone(),
            boot: uuid::Uuid::new_v4().to_string(),
        };
        let bytes = bench.image_bytes();
        let format = match case.image {
            Image::Raw => {
                make_image(&host.image, bytes)?;
                "raw"
            }
            Image::Clone => {
                make_qcow2(&host.base, bytes)?;
                make_clone(&host.image, bytes, Shape::Extended, &host.base)?;
                "qcow2"
            }
        };
        let cache_bytes = (CACHE_PER_DIRTY * dirty_bytes).max(CACHE_BYTES_MIN);
        sparse_cache(&host.cache, cache_bytes.next_multiple_of(8 << 20))?;
        let sizes = "ram = \"64MiB\"";
        let (run_dir, stage_dir) = (&host.run_dir, &host.stage_dir);
        let mut text = own_process::config(run_dir, stage_dir, &host.cache, sizes)?;
        // A destage begins at a half of it.
        let limit = (4 * dirty_bytes) >> 20;
        text += &format!(
            "[[volume]]\nname = \"{NAME}\"\norigin = {:?}\nformat = \"{format}\"\npolicy = \
             \"write-back\"\nexport = [\"nbd\"]\ndestage-after = \"never\"\ndirty-limit = \
             \"{limit}MiB\"\n",
            host.image
        );
        fs::write(&host.config, text).map_err(failed)?;
        Ok(host)
    }

    /// Its guest writes and syncs; then the host is no more.
    fn fill(&self, asks: &[Ask]) -> Result<()> {
        let daemon = Served::start(&self.program, &self.config, &self.run_dir)?;
        let (socket, export) = (daemon.socket(), NAME);
        let carry = |asks: &[Ask], depth: usize| {
            let carried = guest::carry((&socket, export), asks, depth, LASTS);
            carried.map_err(failed)
        };
        carry(asks, DEPTH)?;
        carry(&[Ask::Flush], 1)?;
        drop(daemon);
        for entry in fs::read_dir(&self.stage_dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_string_lossy().starts_with("tenuto-") {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn recover(&self, program: &Path, more: &[&str]) -> Result<Value> {
        let mut command = own_process::command(program, Stdio::piped());
        command.env("TENUTO_DRILL_BOOT", &self.boot);
        command.arg("recover").arg("--json");
        command.arg("--cache").arg(&self.cache);
        command.arg("--config").arg(&self.config).args(more);
        let output = command.output().map_err(failed)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let document = serde_json::from_slice(&output.stdout);
        match (output.status.success(), document) {
            (true, Ok(document)) => Ok(document),
            _ => Err(Error::failed(format!(
                "bench cow recovery: tenuto recover: {}: {}",
                output.status,
                said.trim()
            ))),
        }
    }

    /// What is in the cache and not yet in the image.
    fn dirty_bytes(&self, program: &Path) -> Result<u64> {
        let document = self.recover(program, &["--dry-run"])?;
        let volumes = document["volumes"].as_array();
        let dirty = volumes.into_iter().flatten();
        dirty.map(|volume| number(&volume["dirty_bytes"])).sum()
    }
}

impl Drop for DeadHost {
    fn drop(&mut self) {
        // What is left goes away with the places.
        for file in [&self.cache, &self.image, &self.base, &self.config] {
            let _ = fs::remove_file(file);
        }
        for directory in [&self.run_dir, &self.stage_dir] {
            let _ = fs::remove_dir_all(directory);
        }
    }
}
