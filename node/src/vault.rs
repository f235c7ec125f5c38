//! How a record comes to be, and how the newest one is found: on a directory that several hosts
//! share, of which each call may fail, answer late, or answer wrongly.
//!
//! ```text
//! Cas   write a file of its own ─▶ link it to the record's name ─▶ sync the directory ─▶ read the
//!       name: our nonce = won · another record = lost · no answer = undecided, and link again
//! Look  list the names once, then read upwards until a name is absent
//! ```
//!
//! Always true: what is linked was written and synced as a whole; whether a record was made is told
//! by what lies under its name, never by the answer to `link`, which may say that a name exists
//! that we have just made ourselves, or fail after it was made; a name that was used is used for
//! ever, so a link that arrives late meets it. A look may be late and then shows an older record:
//! it decides nothing. Deliberately absent: the calls themselves, which a thread of the host makes.

use crate::record::Record;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use engine::types::Uuid;

/// What a vault keeps: numbered from 1, never changed, each number once.
pub trait Kept: Clone + Eq {
    /// What it is a record of.
    fn unit(&self) -> Uuid;
    fn number(&self) -> u64;
    /// Tells it from another one that was to have the same number.
    fn nonce(&self) -> Uuid;
    fn encode(&self) -> Vec<u8>;
    /// Checks everything, or says what is wrong.
    fn parse(bytes: &[u8]) -> Result<Self, String>;
}

impl Kept for Record {
    fn unit(&self) -> Uuid {
        self.unit
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn nonce(&self) -> Uuid {
        self.nonce
    }

    fn encode(&self) -> Vec<u8> {
        Record::encode(self)
    }

    fn parse(bytes: &[u8]) -> Result<Record, String> {
        Record::parse(bytes).map_err(|error| error.to_string())
    }
}

/// A call of the file system, in the directory of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Makes a file with these bytes and syncs it. One of this name is replaced: it is ours.
    Write {
        name: String,
        bytes: Vec<u8>,
    },
    /// A second name of a file; fails where the name exists.
    Link {
        from: String,
        to: String,
    },
    /// Syncs the directory.
    Sync,
    /// Opens the file anew and reads all of it.
    Read {
        name: String,
    },
    /// The names in the directory, read anew.
    List,
    Remove {
        name: String,
    },
}

/// What a call has answered. `Failed` says nothing about whether it was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Bytes(Vec<u8>),
    Names(Vec<String>),
    /// No file has this name.
    Absent,
    Failed,
}

/// What becomes of a machine after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    Call(Call),
    /// The same again after a while.
    Wait(Call),
    End(T),
}

/// How an attempt to make a record has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<R = Record> {
    Won(R),
    /// Another record has the number.
    Lost(R),
    /// Nothing was linked: what was to be linked could not be written.
    Unwritten,
    /// The name has bytes that are no record of this unit.
    Damaged(String),
}

fn record_name(unit: Uuid, number: u64) -> String {
    format!("r.{}.{number:020}", hex(unit))
}

/// The number in the name of a record of this unit.
fn number_of(unit: Uuid, name: &str) -> Option<u64> {
    let rest = name.strip_prefix("r.")?.strip_prefix(&hex(unit))?;
    rest.strip_prefix('.')?.parse().ok()
}

pub fn hex(id: Uuid) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that were found under a name, as the record of this number.
fn judge<R: Kept>(bytes: &[u8], unit: Uuid, number: u64) -> Result<R, String> {
    let name = record_name(unit, number);
    let record = R::parse(bytes).map_err(|error| format!("{name}: {error}"))?;
    match record.unit() == unit && record.number() == number {
        true => Ok(record),
        false => Err(format!("{name}: is a record of another unit or number")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Writing,
    Linking,
    Syncing,
    Reading,
    /// The file that was linked is not needed any more.
    Cleaning,
}

/// An attempt to make one record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cas<R = Record> {
    record: R,
    at: At,
    /// A link of it may be under way, or has arrived.
    linked: bool,
    /// What the name has, when the rest is cleaned up.
    found: Option<Result<R, String>>,
}

impl<R: Kept> Cas<R> {
    /// Its first call is given by [`Cas::begin`].
    pub fn new(record: R) -> Cas<R> {
        Cas {
            record,
            at: At::Writing,
            linked: false,
            found: None,
        }
    }

    /// The same for a record that an earlier run may have linked: it stays undecided until the name
    /// tells.
    pub fn again(record: R) -> Cas<R> {
        Cas {
            linked: true,
            ..Cas::new(record)
        }
    }

    pub fn record(&self) -> &R {
        &self.record
    }

    pub fn begin(&self) -> Call {
        Call::Write {
            name: self.own_name(),
            bytes: self.record.encode(),
        }
    }

    fn own_name(&self) -> String {
        format!("t.{}", hex(self.record.nonce()))
    }

    fn name(&self) -> String {
        record_name(self.record.unit(), self.record.number())
    }

    fn link(&self) -> Call {
        Call::Link {
            from: self.own_name(),
            to: self.name(),
        }
    }

    /// Takes the answer to the last call.
    pub fn answer(&mut self, answer: Answer) -> Step<Outcome<R>> {
        match self.at {
            At::Writing if answer == Answer::Done => {
                (self.at, self.linked) = (At::Linking, true);
                Step::Call(self.link())
            }
            At::Writing if !self.linked => Step::End(Outcome::Unwritten),
            At::Writing => {
                self.at = At::Reading;
                Step::Call(Call::Read { name: self.name() })
            }
            // Whatever was answered.
            At::Linking => {
                self.at = At::Syncing;
                Step::Call(Call::Sync)
            }
            At::Syncing if answer == Answer::Done => {
                self.at = At::Reading;
                Step::Call(Call::Read { name: self.name() })
            }
            At::Syncing => Step::Wait(Call::Sync),
            At::Reading => self.read(answer),
            At::Cleaning => Step::End(self.outcome()),
        }
    }

    fn read(&mut self, answer: Answer) -> Step<Outcome<R>> {
        if let Answer::Bytes(bytes) = answer {
            self.found = Some(judge(&bytes, self.record.unit(), self.record.number()));
            self.at = At::Cleaning;
            let name = self.own_name();
            return Step::Call(Call::Remove { name });
        }
        // The link may not have arrived, or the name is not seen yet.
        self.at = At::Writing;
        Step::Wait(self.begin())
    }

    fn outcome(&self) -> Outcome<R> {
        match self.found.clone().expect("the name was read") {
            Ok(record) if record.nonce() == self.record.nonce() => Outcome::Won(record),
            Ok(record) => Outcome::Lost(record),
            Err(why) => Outcome::Damaged(why),
        }
    }
}

/// A look for the newest record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Look<R = Record> {
    unit: Uuid,
    newest: Option<R>,
    /// The one that is read; 0 = the names are listed.
    number: u64,
    /// The highest that was listed: it is there.
    listed: u64,
}

impl<R: Kept> Look<R> {
    /// From a record that is known, which is read again: a vault that was put back to an earlier
    /// state has it no more.
    pub fn new(unit: Uuid, known: Option<R>) -> Look<R> {
        let number = known.map_or(0, |known| known.number());
        Look {
            unit,
            newest: None,
            number,
            listed: number,
        }
    }

    pub fn begin(&self) -> Call {
        match self.number {
            0 => Call::List,
            number => Call::Read {
                name: record_name(self.unit, number),
            },
        }
    }

    /// Ends with the newest record that is seen, or with `Err` and what is wrong with one.
    pub fn answer(&mut self, answer: Answer) -> Step<Result<Option<R>, String>> {
        match answer {
            Answer::Names(names) if self.number == 0 => {
                let numbers = names.iter().filter_map(|name| number_of(self.unit, name));
                (self.number, self.listed) = numbers.max().map_or((1, 0), |max| (max, max));
                Step::Call(self.begin())
            }
            Answer::Bytes(bytes) if self.number > 0 => {
                match judge(&bytes, self.unit, self.number) {
                    Ok(record) => {
                        self.newest = Some(record);
                        self.number += 1;
                        Step::Call(self.begin())
                    }
                    Err(why) => Step::End(Err(why)),
                }
            }
            Answer::Absent if self.number > self.listed => Step::End(Ok(self.newest.clone())),
            _ => Step::Wait(self.begin()),
        }
    }
}
