//! The records of one unit in a directory that the hosts of a cluster share.
//!
//! Owns the calls of the file system that [`node::vault`] asks for. Always true: a file is synced
//! before it is linked, and the directory before a record counts; a name is opened anew for each
//! read. Deliberately absent: what an answer means. Calls may take as long as the storage takes, so
//! they run on threads that may wait.

use node::record::{RECORD_BYTES, Record};
use node::vault::{Answer, Call, Cas, Look, Outcome, Step};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two attempts, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Attempts of a look; it decides nothing, and is asked for again.
const LOOKS_MAX: u32 = 5;

/// The directory of one unit.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes it if it is not there; what it lies in has to be there. A storage that is not mounted
    /// must not look like a new one.
    pub fn make(path: &Path) -> io::Result<Directory> {
        if !path.is_dir() {
            let mut builder = fs::DirBuilder::new();
            builder.mode(0o700).create(path)?;
            crate::cachedev::sync_directory(path)?;
        }
        Ok(Directory {
            path: path.to_owned(),
        })
    }

    /// One that is there.
    pub fn open(path: &Path) -> Directory {
        Directory {
            path: path.to_owned(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn call(&self, call: &Call) -> Answer {
        let answered = match call {
            Call::Write { name, bytes } => self.write(name, bytes).map(|()| Answer::Done),
            Call::Link { from, to } => {
                fs::hard_link(self.path.join(from), self.path.join(to)).map(|()| Answer::Done)
            }
            Call::Sync => File::open(&self.path)
                .and_then(|place| place.sync_all())
                .map(|()| Answer::Done),
            Call::Read { name } => self.read(name).map(Answer::Bytes),
            Call::List => self.list().map(Answer::Names),
            Call::Remove { name } => fs::remove_file(self.path.join(name)).map(|()| Answer::Done),
        };
        answered.unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Answer::Absent,
            _ => {
                let place = self.path.display();
                tracing::debug!("{place}: {call:?}: {error}");
                Answer::Failed
            }
        })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path.join(name);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        let file = File::open(self.path.join(name))?;
        file.take(RECORD_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| {
            let name = entry?.file_name();
            Ok(name.to_string_lossy().into_owned())
        });
        names.collect()
    }

    /// The newest record that is seen.
    pub fn look(&self, mut look: Look) -> Result<Option<Record>, String> {
        let place = self.path.display();
        let (mut call, mut tries, mut pause) = (look.begin(), 0, PAUSE_MIN);
        loop {
            match look.answer(self.call(&call)) {
                Step::Call(next) => call = next,
                Step::Wait(next) => {
                    tries += 1;
                    if tries == LOOKS_MAX {
                        return Err(format!("the vault {place} cannot be read"));
                    }
                    call = next;
                    wait(&mut pause);
                }
                Step::End(found) => return found.map_err(|why| format!("{place}: {why}")),
            }
        }
    }

    /// Makes a record, however long the vault takes to tell whether it did. `None`: `ends` said so.
    pub fn decide(&self, mut cas: Cas, ends: &dyn Fn() -> bool) -> Option<Outcome> {
        let (mut call, mut pause) = (cas.begin(), PAUSE_MIN);
        loop {
            match cas.answer(self.call(&call)) {
                Step::Call(next) => call = next,
                Step::Wait(_) if ends() => return None,
                Step::Wait(next) => {
                    call = next;
                    wait(&mut pause);
                }
                Step::End(outcome) => return Some(outcome),
            }
        }
    }
}

fn wait(pause: &mut Duration) {
    std::thread::sleep(*pause);
    *pause = (*pause * 2).min(PAUSE_MAX);
}
