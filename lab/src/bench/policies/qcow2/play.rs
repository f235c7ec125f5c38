//! The requests of one desktop, played through QEMU's drivers to a storage that counts.
//!
//! Owns the images of one desktop. Always true: one request is in flight, so that what arrives at
//! the storage until its answer is what it caused, and counts are the same in every run; formats
//! are given the same requests with the same data. Of the time before a peak only writes are
//! played that reach a block for the first time: nothing else changes what an image has allocated.
//! QEMU opens the image anew before each peak, with the cache of tables that it has by default;
//! what opening costs does not count.

use super::storage::{Content, Export, Note, Storage, veil};
use super::tables::Tables;
use super::{Format, Row, State, by_time};
use crate::bench::policies::NS_PER_SECOND;
use crate::qemu::{self, Served};
use crate::replay::watch::{Disk, Sent, Verb};
use host::error::{Error, Result, cause};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use workload::synth::peaks;

const CLUSTER_BYTES: u64 = 64 << 10;
const BLOCK_BYTES: u64 = 4096;
/// Of the last data, spread evenly over what was written.
const COMPARED_CLUSTERS_MAX: usize = 4096;
/// What a format may cause in one peak of one desktop.
const NOTES_MAX: usize = 4 << 20;
/// Tables of an image, and what grows at its end.
const ROOM_BYTES: u64 = 1 << 30;
const REPORT: u64 = 256;

/// What is played around one peak.
pub struct Step {
    peak: usize,
    /// Before it, and after the one before: indices of requests.
    before: Vec<usize>,
    window: Range<usize>,
}

/// What one desktop's requests are in each peak, in the order of time.
pub fn steps(disk: &Disk, disk_bytes: u64) -> Vec<Step> {
    let mut written = vec![0_u64; (disk_bytes / BLOCK_BYTES).div_ceil(64) as usize];
    let mut is_new = |sent: &Sent| {
        let mut new = false;
        for block in sent.offset / BLOCK_BYTES..(sent.offset + sent.bytes).div_ceil(BLOCK_BYTES) {
            let (word, bit) = (&mut written[(block / 64) as usize], 1 << (block % 64));
            new |= *word & bit == 0;
            *word |= bit;
        }
        new
    };
    let (mut at, mut steps) = (0, Vec::new());
    for peak in by_time() {
        let period = &peaks()[peak];
        let place = |ns: u64| disk.image.partition_point(|sent| sent.time_ns < ns);
        let begin = place(period.from_ns);
        let window = begin..place(period.from_ns + period.duration_ns);
        let before = (at..begin).filter(|&index| {
            let sent = &disk.image[index];
            sent.verb == Verb::Write && is_new(sent)
        });
        let before = before.collect();
        let within = disk.image[window.clone()].iter();
        within
            .filter(|sent| sent.verb == Verb::Write)
            .for_each(|sent| {
                is_new(sent);
            });
        at = window.end;
        steps.push(Step {
            peak,
            before,
            window,
        });
    }
    steps
}

/// Requests that [`play`] sends.
pub fn requests(steps: &[Step]) -> u64 {
    let formats = Format::QCOW2.len();
    let of = |step: &Step| formats * step.before.len() + (1 + 3 * formats) * step.window.len();
    steps.iter().map(of).sum::<usize>() as u64
}

pub struct Player<'a> {
    pub directory: &'a Path,
    pub seed: u64,
    pub disk: &'a Disk,
    pub disk_bytes: u64,
    pub steps: &'a [Step],
    /// Told of every few hundred requests.
    pub progress: &'a dyn Fn(u64),
}

/// An image that is open in QEMU.
struct Session<'a> {
    player: &'a Player<'a>,
    storage: &'a Storage,
    served: Served,
    bytes: Vec<u8>,
    sent: u64,
}

impl Player<'_> {
    /// Every format in every state, and how many bytes were read back and compared.
    pub fn play(&self) -> Result<(Vec<Row>, u64)> {
        let raw = self.file("raw.img", self.disk_bytes)?;
        let mut rows = vec![self.raw(&raw)?];
        let mut compared = 0;
        for format in Format::QCOW2 {
            let (row, bytes) = self.week(format, &raw)?;
            rows.push(row);
            compared += bytes;
            rows.extend(self.passes(format)?);
        }
        self.remove("raw.img");
        Ok((rows, compared))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn file(&self, name: &str, bytes: u64) -> Result<File> {
        let path = self.path(name);
        let options = File::options().read(true).write(true).create(true).clone();
        let file = options.open(&path).and_then(|file| {
            // What QEMU has made stays, with room behind it.
            file.set_len(bytes).map(|()| file)
        });
        file.map_err(|error| Error::failed(format!("{}: {}", path.display(), cause(&error))))
    }

    fn remove(&self, name: &str) {
        // The directory goes away anyway; this only keeps the peak low.
        let _ = fs::remove_file(self.path(name));
    }

    fn socket(&self) -> PathBuf {
        self.path("storage.sock")
    }

    /// The data of a write, the same for every format.
    fn payload(&self, index: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let sent = &self.disk.image[index];
        let fits = sent.offset.is_multiple_of(512) && sent.bytes.is_multiple_of(512);
        if !fits || sent.offset + sent.bytes > self.disk_bytes {
            let at = sent.offset;
            return Err(Error::failed(format!(
                "request at {at}: is beyond its disk"
            )));
        }
        bytes.clear();
        bytes.resize(sent.bytes as usize, 0);
        if sent.verb == Verb::Write {
            veil(self.seed ^ (index as u64 + 1) << 20, sent.offset, bytes);
        }
        Ok(())
    }

    fn open<'a>(&'a self, storage: &'a Storage, node: &str) -> Result<Session<'a>> {
        let served = Served::start(&self.path("qemu.sock"), node)?;
        // What opening asks for is no part of any request.
        storage.take()?;
        Ok(Session {
            player: self,
            storage,
            served,
            bytes: Vec::new(),
            sent: 0,
        })
    }

    fn node(&self, driver: &str, export: &str) -> String {
        qemu::node(driver, &self.socket(), export)
    }

    fn raw(&self, raw: &File) -> Result<Row> {
        let exports = vec![Export {
            name: "raw",
            bytes: self.disk_bytes,
            content: Content::Copy(copy(raw)?),
        }];
        let storage = Storage::start(&self.socket(), self.seed, exports)?;
        let mut row = Row::new(Format::Raw, State::Week);
        let mut bytes = Vec::new();
        for step in self.steps {
            for &index in &step.before {
                self.payload(index, &mut bytes)?;
                storage.write(0, self.disk.image[index].offset, &mut bytes)?;
            }
            let mut session = self.open(&storage, &self.node("raw", "raw"))?;
            let notes = session.window(step)?;
            session.close()?;
            self.count(&mut row, step, &notes, None);
        }
        Ok(row)
    }

    /// An empty clone of the base, and the storage that holds both.
    fn clone(&self, format: Format) -> Result<(File, Storage)> {
        self.remove("clone.img");
        let (path, socket) = (self.path("clone.img"), self.socket());
        let subclusters = match format {
            Format::Extended => "on",
            _ => "off",
        };
        let options = format!("cluster_size={CLUSTER_BYTES},extended_l2={subclusters}");
        qemu::overlay(&path, self.disk_bytes, &socket, "base", &options)?;
        let whole = self.disk_bytes + self.disk_bytes / 64 + ROOM_BYTES;
        let file = self.file("clone.img", whole)?;
        let exports = vec![
            Export {
                name: "clone",
                bytes: whole,
                content: Content::Plain(copy(&file)?),
            },
            Export {
                name: "base",
                bytes: self.disk_bytes,
                content: Content::Base,
            },
        ];
        Ok((file, Storage::start(&socket, self.seed, exports)?))
    }

    /// With what the days before each peak have left in the image.
    fn week(&self, format: Format, raw: &File) -> Result<(Row, u64)> {
        let (file, storage) = self.clone(format)?;
        let node = self.node("qcow2", "clone");
        let mut row = Row::new(format, State::Week);
        for step in self.steps {
            if !step.before.is_empty() {
                let mut session = self.open(&storage, &node)?;
                for &index in &step.before {
                    session.ask(index)?;
                    storage.take()?;
                }
                session.close()?;
            }
            let mut session = self.open(&storage, &node)?;
            let notes = session.window(step)?;
            session.close()?;
            self.count(&mut row, step, &notes, Some(&tables(&file)?));
        }
        qemu::img(&["check", "-q", "--image-opts", &node])?;
        let compared = self.compare(&storage, &node, raw)?;
        Ok((row, compared))
    }

    /// Each peak into a clone of which nothing was written, and again into the same.
    fn passes(&self, format: Format) -> Result<[Row; 2]> {
        let node = self.node("qcow2", "clone");
        let states = [State::First, State::Second];
        let mut rows = states.map(|state| Row::new(format, state));
        for step in self.steps {
            let (file, storage) = self.clone(format)?;
            for row in &mut rows {
                let mut session = self.open(&storage, &node)?;
                let notes = session.window(step)?;
                session.close()?;
                self.count(row, step, &notes, Some(&tables(&file)?));
            }
        }
        self.remove("clone.img");
        Ok(rows)
    }

    fn count(&self, row: &mut Row, step: &Step, notes: &[Caused], tables: Option<&Tables>) {
        let counts = &mut row.peaks[step.peak];
        let period = &peaks()[step.peak];
        let second = |ns: u64| ((ns - period.from_ns) / NS_PER_SECOND) as usize;
        for sent in &self.disk.image[step.window.clone()] {
            counts.ask(sent);
        }
        for caused in notes {
            let sent = &self.disk.image[caused.index];
            let own = caused.note.export == 0
                && tables.is_some_and(|tables| tables.hold(caused.note.offset));
            counts.arrive(second(sent.time_ns), sent.verb, &caused.note, own);
        }
        let within = |ns: &&u64| (period.from_ns..period.from_ns + period.duration_ns).contains(ns);
        for ns in self.disk.beside_ns.iter().filter(within) {
            counts.beside(second(*ns));
        }
    }

    /// Reads what was written through QEMU, its clusters as a whole, and compares it with the raw
    /// image as it lies.
    fn compare(&self, storage: &Storage, node: &str, raw: &File) -> Result<u64> {
        let raw = Export {
            name: "raw",
            bytes: self.disk_bytes,
            content: Content::Copy(copy(raw)?),
        };
        let mut clusters = BTreeSet::new();
        for step in self.steps {
            for index in step.before.iter().copied().chain(step.window.clone()) {
                let sent = &self.disk.image[index];
                if sent.verb == Verb::Write {
                    let end = (sent.offset + sent.bytes).div_ceil(CLUSTER_BYTES);
                    clusters.extend(sent.offset / CLUSTER_BYTES..end);
                }
            }
        }
        let every = clusters.len().div_ceil(COMPARED_CLUSTERS_MAX).max(1);
        let mut session = self.open(storage, node)?;
        let (mut found, mut wanted) = (Vec::new(), Vec::new());
        let mut compared = 0;
        for cluster in clusters.into_iter().step_by(every) {
            let at = cluster * CLUSTER_BYTES;
            let bytes = CLUSTER_BYTES.min(self.disk_bytes - at) as usize;
            found.resize(bytes, 0);
            wanted.resize(bytes, 0);
            let read = session.served.client().read(at, &mut found);
            read.map_err(|error| session.lost(&error))?;
            storage.take()?;
            let read = raw.read(self.seed, at, &mut wanted);
            read.map_err(|error| Error::failed(format!("raw image: {}", cause(&error))))?;
            if found != wanted {
                return Err(Error::failed(format!(
                    "{node}: the cluster at {at} is not what the raw image has there"
                )));
            }
            compared += bytes as u64;
        }
        session.close()?;
        Ok(compared)
    }
}

fn copy(file: &File) -> Result<File> {
    let copied = file.try_clone();
    copied.map_err(|error| Error::failed(format!("image: {}", cause(&error))))
}

fn tables(file: &File) -> Result<Tables> {
    let read = Tables::read(file);
    read.map_err(|error| Error::failed(format!("qcow2 image: {}", cause(&error))))
}

/// A request at the storage, and the one that it is there for.
struct Caused {
    index: usize,
    note: Note,
}

impl Session<'_> {
    fn ask(&mut self, index: usize) -> Result<()> {
        let sent = &self.player.disk.image[index];
        self.player.payload(index, &mut self.bytes)?;
        let client = self.served.client();
        let done = match sent.verb {
            Verb::Read => client.read(sent.offset, &mut self.bytes),
            Verb::Write => client.write(sent.offset, &self.bytes),
            Verb::Flush => client.flush(),
        };
        done.map_err(|error| self.lost(&error))?;
        self.sent += 1;
        if self.sent.is_multiple_of(REPORT) {
            (self.player.progress)(REPORT);
        }
        Ok(())
    }

    /// The storage knows better why QEMU answers with an error.
    fn lost(&mut self, error: &std::io::Error) -> Error {
        match self.storage.trouble() {
            Some(why) => Error::failed(format!("counting storage: {why}")),
            None => self.served.lost(error),
        }
    }

    /// All requests of a peak, and what each caused.
    fn window(&mut self, step: &Step) -> Result<Vec<Caused>> {
        let mut all = Vec::new();
        for index in step.window.clone() {
            self.ask(index)?;
            let notes = self.storage.take()?;
            all.extend(notes.into_iter().map(|note| Caused { index, note }));
            if all.len() > NOTES_MAX {
                return Err(Error::failed(format!(
                    "more than {NOTES_MAX} requests at the storage in one peak of one desktop"
                )));
            }
        }
        Ok(all)
    }

    /// What QEMU held back belongs to no peak.
    fn close(self) -> Result<()> {
        (self.player.progress)(self.sent % REPORT);
        self.served.close()?;
        self.storage.take().map(drop)
    }
}
