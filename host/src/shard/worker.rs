//! Blocking work on the files of volumes, beside the shard thread.
//!
//! Owns what io_uring does not do for us: requests that direct I/O does not take as they are,
//! removal of ledgers and journals, times, holes. Always true: jobs of one volume run one after
//! another in the order given, so that two read-modify-writes of one device block never meet; a
//! volume whose storage hangs holds up others for [`LATE_MILLIS`] a few times at most, because
//! threads that do not come back are replaced; a host at rest has [`IDLE_MAX`] threads, however
//! many volumes it has. A thread for each volume was simpler, and cost a thousand of them at a
//! thousand volumes. Deliberately absent: pointers into host memory; a job carries its own copy
//! of the bytes.
//!
//! ```text
//! give ─▶ lane of its volume ─▶ (lane at work: waits) ─▶ thread ─▶ outcomes ─▶ next of the lane
//! ```

use super::allocation::Asked;
use super::reopen::Tried;
use super::slots::Slots;
use crate::fault::Kind;
use crate::frontend::nbd::Extent;
use crate::origin::file::Sides;
use crate::origin::inflate::inflate;
use crate::origin::mapped::Mapped;
use crate::origin::reopen::Lost;
use crate::ring::Waker;
use crate::target::Target;
use ::image::header::Compression;
use engine::event::{IoError, Stat};
use engine::origin::{Codec, Packed};
use engine::types::RequestId;
use engine::types::VolumeId;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::{io, mem, thread};

/// Threads that wait for work; more than these end when they have none.
const IDLE_MAX: usize = 8;
/// Jobs that waited so long while nobody came back get threads of their own.
pub(super) const LATE_MILLIS: u64 = 10;

/// What is done to which file.
#[derive(Debug)]
pub(super) enum Work {
    Read {
        offset: u64,
        bytes: u64,
    },
    /// Reads a compressed cluster; so many bytes of what it holds are wanted.
    Unpack {
        offset: u64,
        packed: Packed,
        bytes: u64,
    },
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    Zero {
        offset: u64,
        bytes: u64,
        allocate: bool,
    },
    Stat,
    /// The same of all files of an image.
    StatImage(Arc<Mapped>),
    /// Gives an image another size and makes that durable.
    Resize(u64),
    /// Cuts a journal to nothing.
    Truncate,
    /// Removes these files and makes that durable.
    Unlink(Vec<PathBuf>),
    /// Finds out where the file has holes.
    Allocation(Asked),
    /// The same of an image, by its tables.
    AllocationOf(Asked, Arc<Mapped>),
    /// What was synced has to be found by the next daemon: written again where it was removed.
    Name(Box<Sides>),
    /// What a storage does that hangs: ends when the other end is dropped.
    #[cfg(test)]
    Hang(mpsc::Receiver<()>),
}

/// Who waits for a job.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    /// A request of the engine, by its number in the shard.
    Engine(u32),
    /// A client, who asked about the file itself.
    Client(RequestId),
}

#[derive(Debug)]
pub(super) struct Job {
    pub owner: Owner,
    pub target: Arc<Target>,
    pub work: Work,
}

/// The end of a job.
#[derive(Debug)]
pub(super) struct Outcome {
    pub owner: Owner,
    pub result: Result<(), IoError>,
    pub stat: Option<Stat>,
    /// Bytes of zeroes that were written for want of a cheap way.
    pub zeroed: Option<u64>,
    /// What was read.
    pub data: Vec<u8>,
    /// What was found out for a client.
    pub extents: Vec<Extent>,
    /// Ledger and journal, where they were written again.
    pub sides: Option<Box<Sides>>,
}

/// Whose jobs go one after another: those of a volume, or of the cache device.
pub(super) type Lane = Option<VolumeId>;

/// What a thread tells the shard.
// Nearly every word is an outcome: it would only be allocated once more.
#[expect(clippy::large_enum_variant)]
#[derive(Debug)]
pub(super) enum Word {
    Done(Outcome),
    /// The files of a volume were tried again.
    Reopened(VolumeId, Box<Tried>),
    /// A thread has done all it was given, which was of this lane.
    Free(u32, Lane),
}

/// Jobs of one lane, for one thread.
type Batch = (Lane, Vec<Job>);

/// The threads, and the jobs that wait for one.
#[derive(Debug)]
pub(super) struct Pool {
    words: mpsc::Sender<Word>,
    waker: Arc<Waker>,
    /// A thread ends when its sender is dropped and its jobs are done.
    threads: Slots<mpsc::Sender<Batch>>,
    idle: Vec<u32>,
    /// Lanes that a thread works on or that wait for one, with what came since.
    lanes: BTreeMap<Lane, Vec<Job>>,
    /// Lanes that wait for a thread.
    waiting: VecDeque<Lane>,
    /// How often threads came back since the last look at those that wait.
    returned: usize,
}

impl Pool {
    /// The pool, and what its threads say.
    pub fn new(waker: Arc<Waker>) -> (Pool, mpsc::Receiver<Word>) {
        let (words, heard) = mpsc::channel();
        let pool = Pool {
            words,
            waker,
            threads: Slots::default(),
            idle: Vec::new(),
            lanes: BTreeMap::new(),
            waiting: VecDeque::new(),
            returned: 0,
        };
        (pool, heard)
    }

    /// Takes a job, or gives it back where there is no thread and none can be had.
    pub fn give(&mut self, lane: Lane, job: Job) -> Result<(), Job> {
        if let Some(jobs) = self.lanes.get_mut(&lane) {
            jobs.push(job);
            return Ok(());
        }
        if self.idle.is_empty() && self.threads.len() < IDLE_MAX {
            let started = self.start();
            if started.is_err() && self.threads.len() == 0 {
                return Err(job);
            }
        }
        self.lanes.insert(lane, vec![job]);
        self.waiting.push_back(lane);
        self.hand_out();
        Ok(())
    }

    /// Whether jobs wait for a thread: then somebody has to call [`Pool::look`] later.
    pub fn is_short(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// [`LATE_MILLIS`] after jobs began to wait: where too few came back since to serve those that
    /// wait as soon, the others may hang, and as many again are started.
    pub fn look(&mut self) {
        if mem::take(&mut self.returned) < self.waiting.len() {
            let more = self.threads.len().max(1).min(self.waiting.len());
            for _ in 0..more {
                if let Err(error) = self.start() {
                    tracing::warn!("cannot start a worker thread: {error}");
                    break;
                }
            }
        }
        self.hand_out();
    }

    /// A thread has come back.
    pub fn free(&mut self, thread: u32, lane: Lane) {
        self.returned += 1;
        let jobs = self.lanes.get(&lane).expect("its lane was at work");
        match jobs.is_empty() {
            true => drop(self.lanes.remove(&lane)),
            false => self.waiting.push_back(lane),
        }
        self.idle.push(thread);
        self.hand_out();
        while self.idle.len() > IDLE_MAX {
            let thread = self.idle.pop().expect("just counted");
            self.threads.remove(thread);
        }
    }

    /// Opens files again on a thread of its own: it may take as long as the storage does, while
    /// nothing else of the volume is to be done.
    pub fn reopen(
        &mut self,
        volume: VolumeId,
        files: Box<Lost>,
    ) -> Result<(), (io::Error, Box<Lost>)> {
        let (words, waker) = (self.words.clone(), self.waker.clone());
        // Handed over when the thread is there, so that nothing is lost where it is not.
        let (sender, given) = mpsc::channel::<Box<Lost>>();
        let thread = thread::Builder::new().name("tenuto-reopen".into());
        let begun = thread.spawn(move || {
            let Ok(mut files) = given.recv() else {
                return;
            };
            let tried = files.open().map_err(|trouble| (trouble, files));
            // A shard that has ended has no use for it.
            let _ = words.send(Word::Reopened(volume, Box::new(tried)));
            waker.wake();
        });
        match begun {
            Ok(_) => {
                sender.send(files).expect("the thread waits for this");
                Ok(())
            }
            Err(error) => Err((error, files)),
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let (sender, batches) = mpsc::channel::<Batch>();
        let (number, words, waker) = (self.threads.next(), self.words.clone(), self.waker.clone());
        let thread = thread::Builder::new().name("tenuto-worker".into());
        thread.spawn(move || work(number, &batches, &words, &waker))?;
        assert_eq!(self.threads.insert(sender), number, "the next number");
        self.idle.push(number);
        Ok(())
    }

    fn hand_out(&mut self) {
        while !self.waiting.is_empty()
            && let Some(thread) = self.idle.pop()
        {
            let lane = self.waiting.pop_front().expect("just seen");
            let jobs = self.lanes.get_mut(&lane).expect("it waits with its jobs");
            let jobs = mem::take(jobs);
            assert!(!jobs.is_empty(), "a lane waits for a thread only with jobs");
            let thread = self.threads.get(thread).expect("an idle thread is there");
            let sent = thread.send((lane, jobs));
            sent.expect("a thread ends only after its sender is dropped");
        }
    }
}

fn work(number: u32, batches: &mpsc::Receiver<Batch>, words: &mpsc::Sender<Word>, waker: &Waker) {
    for (lane, jobs) in batches {
        // Where the shard has ended nobody waits for words any more.
        for job in jobs {
            if words.send(Word::Done(job.run())).is_err() {
                return;
            }
            waker.wake();
        }
        if words.send(Word::Free(number, lane)).is_err() {
            return;
        }
        waker.wake();
    }
}

impl Job {
    fn run(self) -> Outcome {
        let mut data = Vec::new();
        let mut stat = None;
        let mut zeroed = None;
        let mut extents = Vec::new();
        let mut sides = None;
        let target = &self.target;
        let result = match self.work {
            Work::Read { offset, bytes } => {
                data.resize(bytes as usize, 0);
                target.read(offset, &mut data)
            }
            Work::Unpack {
                offset,
                packed,
                bytes,
            } => unpack(target, offset, packed, bytes).map(|found| data = found),
            Work::Write { offset, data } => target.write(offset, &data),
            Work::Zero {
                offset,
                bytes,
                allocate,
            } => target
                .zero(offset, bytes, allocate)
                .map(|by_writing| zeroed = by_writing),
            Work::Stat => target.stat().map(|found| stat = Some(found)),
            Work::StatImage(image) => image.stat().map(|found| stat = Some(found)),
            Work::Resize(bytes) => resize(target, bytes),
            Work::Truncate => truncate(target),
            Work::Unlink(paths) => unlink(&paths),
            Work::Allocation(asked) => {
                extents = asked.of_file(&target.file);
                Ok(())
            }
            Work::AllocationOf(asked, image) => {
                extents = asked.of_image(&image);
                Ok(())
            }
            Work::Name(found) => renew(found).map(|made| sides = made),
            #[cfg(test)]
            Work::Hang(held) => {
                let _ = held.recv();
                Ok(())
            }
        };
        Outcome {
            owner: self.owner,
            result,
            stat,
            zeroed,
            data,
            extents,
            sides,
        }
    }
}

/// The wanted part of a compressed cluster.
fn unpack(target: &Target, offset: u64, packed: Packed, bytes: u64) -> Result<Vec<u8>, IoError> {
    let mut from = vec![0; packed.packed_bytes as usize];
    target.read(offset, &mut from)?;
    let how = match packed.codec {
        Codec::Deflate => Compression::Zlib,
        Codec::Zstd => Compression::Zstd,
    };
    let mut cluster = vec![0; packed.cluster_bytes as usize];
    inflate(how, &from, &mut cluster).map_err(|why| {
        let name = target.name();
        tracing::warn!("{name}: the compressed cluster at {offset:#x} {why}");
        IoError::Damaged
    })?;
    let start = packed.skip as usize;
    let end = start + bytes as usize;
    assert!(end <= cluster.len(), "an extent lies in its cluster");
    cluster.truncate(end);
    cluster.drain(..start);
    Ok(cluster)
}

/// The two with what was written again, if anything was.
fn renew(mut sides: Box<Sides>) -> Result<Option<Box<Sides>>, IoError> {
    match sides.renew() {
        Ok(made) => {
            for path in &made {
                tracing::warn!("{}: was removed; it is written again", path.display());
            }
            Ok((!made.is_empty()).then_some(sides))
        }
        Err(fault) => {
            tracing::warn!("{fault}");
            Err(match fault.kind {
                Kind::NoSpace => IoError::NoSpace,
                _ => IoError::Failed,
            })
        }
    }
}

fn resize(target: &Target, bytes: u64) -> Result<(), IoError> {
    let set = target
        .file
        .set_len(bytes)
        .and_then(|()| target.file.sync_all());
    set.map_err(|error| {
        tracing::warn!("{}: cannot change the size: {error}", target.path.display());
        crate::target::io_error(&error)
    })
}

fn truncate(target: &Target) -> Result<(), IoError> {
    let cut = target.file.set_len(0).and_then(|()| target.file.sync_all());
    cut.map_err(|error| {
        let path = target.path.display();
        tracing::warn!(%path, "{path}: cannot cut the journal: {error}");
        IoError::Failed
    })
}

fn unlink(paths: &[PathBuf]) -> Result<(), IoError> {
    for path in paths {
        let removed = match std::fs::remove_file(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        let directory = path.parent().unwrap_or(path);
        let synced = removed.and_then(|()| std::fs::File::open(directory)?.sync_all());
        synced.map_err(|error| {
            let path = path.display();
            tracing::warn!(%path, "{path}: cannot remove: {error}");
            IoError::Failed
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::How;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    fn target() -> Arc<Target> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        Arc::new(Target::open(file.path(), How::default()).expect("opens"))
    }

    fn job(target: &Arc<Target>, number: u32, work: Work) -> Job {
        Job {
            owner: Owner::Engine(number),
            target: target.clone(),
            work,
        }
    }

    fn lane(number: u32) -> Lane {
        Some(VolumeId(number))
    }

    fn number(outcome: &Outcome) -> u32 {
        match outcome.owner {
            Owner::Engine(number) => number,
            Owner::Client(_) => panic!("no client asked"),
        }
    }

    /// Goes on until so many jobs are done; their numbers in order.
    fn done(pool: &mut Pool, words: &mpsc::Receiver<Word>, count: usize) -> Vec<u32> {
        let mut numbers = Vec::new();
        while numbers.len() < count {
            match words.recv_timeout(LONG).expect("a word") {
                Word::Reopened(..) => panic!("no files are opened again here"),
                Word::Done(outcome) => numbers.push(number(&outcome)),
                Word::Free(thread, lane) => pool.free(thread, lane),
            }
        }
        numbers
    }

    #[test]
    fn jobs_of_a_volume_go_one_after_another_and_others_beside() {
        let (mut pool, words) = Pool::new(Arc::new(Waker::new().expect("a waker")));
        let target = target();
        let (release, held) = mpsc::channel();
        pool.give(lane(1), job(&target, 0, Work::Hang(held)))
            .expect("taken");
        pool.give(lane(1), job(&target, 1, Work::Stat))
            .expect("taken");
        pool.give(lane(1), job(&target, 2, Work::Stat))
            .expect("taken");
        pool.give(lane(2), job(&target, 3, Work::Stat))
            .expect("taken");
        assert!(!pool.is_short());
        assert_eq!(done(&mut pool, &words, 1), [3]);
        drop(release);
        assert_eq!(done(&mut pool, &words, 3), [0, 1, 2]);
    }

    #[test]
    fn volumes_whose_storage_hangs_hold_up_nobody_and_threads_end_when_it_is_over() {
        let (mut pool, words) = Pool::new(Arc::new(Waker::new().expect("a waker")));
        let target = target();
        let hanging = 5 * IDLE_MAX as u32;
        let mut releases = Vec::new();
        for number in 0..hanging {
            let (release, held) = mpsc::channel();
            releases.push(release);
            let work = Work::Hang(held);
            pool.give(lane(number), job(&target, number, work))
                .expect("taken");
        }
        assert_eq!(pool.threads.len(), IDLE_MAX, "more only after a while");
        pool.give(lane(hanging), job(&target, hanging, Work::Stat))
            .expect("taken");
        // Threads double at each look.
        (0..3).for_each(|_| pool.look());
        assert!(!pool.is_short(), "{} threads", pool.threads.len());
        assert_eq!(done(&mut pool, &words, 1), [hanging]);
        releases.clear();
        assert_eq!(
            done(&mut pool, &words, hanging as usize).len(),
            hanging as usize
        );
        while !pool.lanes.is_empty() {
            match words.recv_timeout(LONG).expect("a word") {
                Word::Reopened(..) => panic!("no files are opened again here"),
                Word::Free(thread, lane) => pool.free(thread, lane),
                Word::Done(outcome) => panic!("all are done: {outcome:?}"),
            }
        }
        assert_eq!((pool.threads.len(), pool.idle.len()), (IDLE_MAX, IDLE_MAX));
    }
}
