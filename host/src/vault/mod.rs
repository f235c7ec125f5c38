//! The records of one unit, wherever the vault of the cluster has them.
//!
//! Owns the loops that make a record and look for the newest one by what [`node::vault`] asks for.
//! Always true: what is to be done next is told by its machines alone, and each kind of place does
//! single calls; a place that was made is never made anew. Deliberately absent: what an answer
//! means. Calls may take as long as the vault takes, so they run on threads that may wait.

mod answers;
mod directory;
mod etcd;
mod gateway;
mod place;
#[cfg(test)]
mod tests;

pub use answers::is_known;
pub use etcd::Drills;
pub use place::{Etcd, RIGHT, Tls, Unfit, Vault};

use crate::error::cause;
use engine::types::Uuid;
use node::vault::{Answer, Call, Cas, Kept, Look, Outcome, Step, hex};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two attempts, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Attempts of a look, and how long they may take; it decides nothing, and is asked for again.
const LOOKS_MAX: u32 = 5;
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// A place that has the records of one unit.
trait Store: Send + Sync {
    /// For people.
    fn shown(&self) -> String;

    /// Makes it if it is not there; what it lies in has to be there. A storage that is not mounted
    /// must not look like a new one.
    fn make(&self) -> Result<(), String>;

    /// Whether it is there, where it was made before.
    fn find(&self) -> Result<(), String>;

    /// Does one call; `own` is the record that is to be made. An error says nothing about whether
    /// it was done.
    fn call(&self, call: &Call, own: Option<&Own>) -> Result<Answer, String>;

    /// Puts what a host says of itself beside the records, in the place of what it said before.
    fn say(&self, host: Uuid, bytes: &[u8]) -> Result<(), String>;

    /// What all hosts say.
    fn said(&self) -> Result<Vec<Vec<u8>>, String>;
}

/// Longest record that is read.
pub const OWN_BYTES_MAX: usize = 64 << 10;

/// A record that is to be made.
struct Own {
    number: u64,
    bytes: Vec<u8>,
}

#[derive(Clone)]
pub struct Records(Arc<dyn Store>);

impl Records {
    /// Those of a unit; `beside` is their directory if they lie beside the image. Nothing is done.
    pub fn of(vault: &Vault, cluster: Uuid, unit: Uuid, beside: PathBuf) -> Records {
        Records(match vault {
            Vault::Beside => Arc::new(directory::Directory::new(beside)),
            Vault::Directory(place) => {
                let path = place.join(format!("{}.d", hex(unit)));
                Arc::new(directory::Directory::new(path))
            }
            Vault::Etcd(etcd) => Arc::new(etcd::Keys::new(etcd, cluster, unit)),
        })
    }

    pub fn show(&self) -> String {
        self.0.shown()
    }

    /// Makes what they lie in, if it is not there.
    pub fn make(&self) -> Result<(), String> {
        self.0.make()
    }

    /// Whether what they lie in is there, where it was made before.
    pub fn find(&self) -> Result<(), String> {
        self.0.find()
    }

    /// Puts what a host says of itself beside the records.
    pub fn say(&self, host: Uuid, bytes: &[u8]) -> Result<(), String> {
        self.0.say(host, bytes)
    }

    /// What all hosts say, as far as it can be read.
    pub fn said(&self) -> Result<Vec<Vec<u8>>, String> {
        self.0.said()
    }

    /// The answer to a call; why there is none is kept for who is told.
    fn call(&self, call: &Call, own: Option<&Own>, why: &mut String) -> Answer {
        self.0.call(call, own).unwrap_or_else(|error| {
            tracing::debug!("{}: {call:?}: {error}", self.show());
            *why = error;
            Answer::Failed
        })
    }

    /// The newest record that is seen.
    pub fn look<R: Kept>(&self, mut look: Look<R>) -> Result<Option<R>, String> {
        let (mut call, mut tries, mut pause) = (look.begin(), 0, PAUSE_MIN);
        let mut trouble = "a record that was there is not".to_owned();
        let begun = Instant::now();
        loop {
            match look.answer(self.call(&call, None, &mut trouble)) {
                Step::Call(next) => call = next,
                Step::Wait(next) => {
                    tries += 1;
                    if tries == LOOKS_MAX || begun.elapsed() >= LOOK_PATIENCE {
                        let place = self.show();
                        return Err(format!("the vault {place} cannot be read: {trouble}"));
                    }
                    call = next;
                    wait(&mut pause);
                }
                Step::End(found) => return found.map_err(|why| format!("{}: {why}", self.show())),
            }
        }
    }

    /// Makes a record, however long the vault takes to tell whether it did. `None`: `ends` said so.
    pub fn decide<R: Kept>(&self, mut cas: Cas<R>, ends: &dyn Fn() -> bool) -> Option<Outcome<R>> {
        let (mut call, mut pause) = (cas.begin(), PAUSE_MIN);
        let (number, bytes) = (cas.record().number(), cas.record().encode());
        let (own, mut trouble) = (Own { number, bytes }, String::new());
        loop {
            match cas.answer(self.call(&call, Some(&own), &mut trouble)) {
                Step::Call(next) => call = next,
                Step::Wait(_) if ends() => return None,
                Step::Wait(next) => {
                    if wait(&mut pause) {
                        let place = self.show();
                        tracing::warn!("the vault {place} does not say who is first: {trouble}");
                    }
                    call = next;
                }
                Step::End(outcome) => {
                    if outcome == Outcome::Unwritten {
                        let place = self.show();
                        tracing::error!("the vault {place} cannot be written: {trouble}");
                    }
                    return Some(outcome);
                }
            }
        }
    }
}

/// Whether this was the first of the longest waits.
fn wait(pause: &mut Duration) -> bool {
    std::thread::sleep(*pause);
    let before = std::mem::replace(pause, (*pause * 2).min(PAUSE_MAX));
    before < PAUSE_MAX && *pause == PAUSE_MAX
}

/// Makes what a new cluster needs of its vault.
pub fn begin(vault: &Vault) -> Result<(), String> {
    match vault {
        Vault::Directory(path) if !path.is_dir() => std::fs::create_dir(path).map_err(|error| {
            let why = cause(&error);
            format!("{why}; make the directory it lies in, or mount its storage")
        }),
        Vault::Directory(_) | Vault::Beside => Ok(()),
        Vault::Etcd(etcd) => {
            let (drills, name) = (Drills::new(etcd), format!("init{}", uuid::Uuid::new_v4()));
            let made = drills.make(&name, "init");
            drills.remove(&name);
            made.map(drop).map_err(|why| {
                format!("{why}; start the etcd, and see that this host reaches it and may write it")
            })
        }
    }
}
