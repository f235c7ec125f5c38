//! Blocking work on one volume's files, beside the shard thread.
//!
//! Owns what io_uring does not do for us: requests that direct I/O does not take as they are,
//! removal of ledgers and journals, times, holes. Always true: jobs of one volume run one after
//! another in the order given, so that two read-modify-writes of one device block never meet; a
//! volume whose storage hangs holds up nobody else. Deliberately absent: pointers into host
//! memory; a job carries its own copy of the bytes.

use super::allocation::Asked;
use crate::frontend::nbd::Extent;
use crate::ring::Waker;
use crate::target::Target;
use engine::event::{IoError, Stat};
use engine::types::RequestId;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;

/// Jobs of one volume that may wait; the shard keeps the others back.
const JOBS_MAX: usize = 64;

/// What is done to which file.
#[derive(Debug)]
pub(super) enum Work {
    Read {
        offset: u64,
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
    /// Gives an image another size and makes that durable.
    Resize(u64),
    /// Cuts a journal to nothing.
    Truncate,
    /// Removes these files and makes that durable.
    Unlink(Vec<PathBuf>),
    /// Finds out where the file has holes.
    Allocation(Asked),
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
    /// What was read.
    pub data: Vec<u8>,
    /// What was found out for a client.
    pub extents: Vec<Extent>,
}

/// One thread that ends when this is dropped and its jobs are done.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: mpsc::SyncSender<Job>,
}

impl Worker {
    pub fn start(outcomes: mpsc::Sender<Outcome>, waker: Arc<Waker>) -> std::io::Result<Worker> {
        let (jobs, queue) = mpsc::sync_channel::<Job>(JOBS_MAX);
        thread::Builder::new()
            .name("tenuto-worker".into())
            .spawn(move || {
                for job in queue {
                    let outcome = job.run();
                    // The shard has ended: nobody waits for outcomes any more.
                    if outcomes.send(outcome).is_err() {
                        return;
                    }
                    waker.wake();
                }
            })?;
        Ok(Worker { jobs })
    }

    /// Gives the job back if too many wait.
    pub fn give(&self, job: Job) -> Result<(), Job> {
        self.jobs.try_send(job).map_err(|error| match error {
            mpsc::TrySendError::Full(job) | mpsc::TrySendError::Disconnected(job) => job,
        })
    }
}

impl Job {
    fn run(self) -> Outcome {
        let mut data = Vec::new();
        let mut stat = None;
        let mut extents = Vec::new();
        let target = &self.target;
        let result = match self.work {
            Work::Read { offset, bytes } => {
                data.resize(bytes as usize, 0);
                target.read(offset, &mut data)
            }
            Work::Write { offset, data } => target.write(offset, &data),
            Work::Zero {
                offset,
                bytes,
                allocate,
            } => target.zero(offset, bytes, allocate),
            Work::Stat => target.stat().map(|found| stat = Some(found)),
            Work::Resize(bytes) => resize(target, bytes),
            Work::Truncate => truncate(target),
            Work::Unlink(paths) => unlink(&paths),
            Work::Allocation(asked) => {
                extents = asked.of_file(&target.file);
                Ok(())
            }
        };
        Outcome {
            owner: self.owner,
            result,
            stat,
            data,
            extents,
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
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => IoError::NoSpace,
            _ => IoError::Failed,
        }
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
