//! The record of a pool: one small file in the state directory.
//!
//! Always true: the file is either the old one or the new one, whatever happens while it is
//! written; a record that cannot be read is an error, because a member would get a wrong image.
//! Deliberately absent: what a record is changed to, which is [`super::rollout`].

use super::order::Rollout;
use crate::cachedev::sync_directory;
use crate::error::cause;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;
/// A record longer than this is not one: names of 4,096 members are a part of it.
const BYTES_MAX: u64 = 4 << 20;

/// Where a pool stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// All members have the image.
    Stable,
    /// Another image was looked at and waits for the switch.
    Staged,
    /// Members move.
    Rolling,
}

impl Phase {
    pub fn word(self) -> &'static str {
        match self {
            Phase::Stable => "stable",
            Phase::Staged => "staged",
            Phase::Rolling => "rolling",
        }
    }
}

/// One of the images that a pool has had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    pub generation: u64,
    pub path: PathBuf,
}

/// What is kept of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    version: u32,
    pub name: String,
    pub phase: Phase,
    /// Who starts from now on finds this one.
    pub image: Image,
    /// What members have that have not moved; kept until `pool finish`.
    pub previous: Option<Image>,
    /// What was staged, and how it is to be rolled out.
    pub staged: Option<PathBuf>,
    pub rollout: Rollout,
    /// While it is rolling: members that have the image.
    pub moved: BTreeSet<String>,
    /// In a cluster: number of the record that this one follows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub followed: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Why a record is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("{path}: {}; {}", cause(error), right(error))]
    Io { path: PathBuf, error: io::Error },
    #[error(
        "{path}: is no record of pool {pool}: {why}; put it back, or remove it and name in the \
             file the image that the members have"
    )]
    Damaged {
        path: PathBuf,
        pool: String,
        why: String,
    },
}

fn right(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there",
        _ => "[host] state-dir must be a directory this daemon may read and write",
    }
}

impl Record {
    /// Of a pool that has never been refreshed.
    pub fn first(name: &str, image: &Path) -> Record {
        let image = Image {
            generation: 1,
            path: image.to_owned(),
        };
        Record {
            version: VERSION,
            name: name.to_owned(),
            phase: Phase::Stable,
            image,
            previous: None,
            staged: None,
            rollout: Rollout::default(),
            moved: BTreeSet::new(),
            followed: 0,
        }
    }

    /// The same without members, and at rest: what a cluster begins with.
    pub fn alone(&self) -> Record {
        let image = self.image.clone();
        Record {
            image,
            ..Record::first(&self.name, &self.image.path)
        }
    }

    /// The image of a member.
    pub fn image_of(&self, member: &str) -> &Image {
        match &self.previous {
            Some(previous) if !self.has_moved(member) => previous,
            _ => &self.image,
        }
    }

    pub fn has_moved(&self, member: &str) -> bool {
        self.phase != Phase::Rolling || self.moved.contains(member)
    }

    /// What a file says of the pool with this name, or why that cannot be.
    pub fn parse(text: &[u8], name: &str) -> Result<Record, String> {
        let record: Record = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        record.check()?;
        match record.name == name {
            true => Ok(record),
            false => Err(format!("it is of pool {}", record.name)),
        }
    }

    /// Its fields fit together.
    pub fn check(&self) -> Result<(), String> {
        let rolls = self.phase == Phase::Rolling;
        match () {
            () if self.version != VERSION => Err(format!("it has version {}", self.version)),
            () if rolls && self.previous.is_none() => {
                Err("it has no image to come from".to_owned())
            }
            () if (self.phase == Phase::Staged) != self.staged.is_some() => {
                Err("it has no image that is staged, or one that waits for nothing".to_owned())
            }
            () if self.rollout.steps_left().is_none() => Err("it has no step to be at".to_owned()),
            () => Ok(()),
        }
    }
}

/// Where the records lie.
#[derive(Clone, Debug)]
pub struct Records(PathBuf);

impl Records {
    pub fn new(state_dir: &Path) -> Records {
        Records(state_dir.join("pools"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.json"))
    }

    /// Where it is noted that the guest of a member has not ended.
    pub fn note_of(&self, member: &str) -> PathBuf {
        self.0.join("in-use").join(member)
    }

    /// Nothing if the pool was never refreshed.
    pub fn read(&self, name: &str) -> Result<Option<Record>, Fault> {
        let path = self.path(name);
        let io = |error| Fault::Io {
            path: path.clone(),
            error,
        };
        let damaged = |why: String| Fault::Damaged {
            path: path.clone(),
            pool: name.to_owned(),
            why,
        };
        match fs::metadata(&path) {
            Ok(meta) if meta.len() > BYTES_MAX => return Err(damaged("it is too long".into())),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        }
        let text = fs::read(&path).map_err(io)?;
        Record::parse(&text, name).map(Some).map_err(damaged)
    }

    /// It is on stable media when this returns.
    pub fn write(&self, record: &Record) -> Result<(), Fault> {
        let path = self.path(&record.name);
        let write = || -> io::Result<()> {
            self.make()?;
            let fresh = self.0.join(format!(".{}.json.new", record.name));
            let mut file = File::create(&fresh)?;
            let text = serde_json::to_vec_pretty(record).map_err(io::Error::other)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            sync_directory(&self.0)
        };
        write().map_err(|error| Fault::Io {
            path: path.clone(),
            error,
        })
    }

    /// Makes the directories.
    pub fn make(&self) -> io::Result<()> {
        let marks = self.0.join("in-use");
        if marks.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(&marks)?;
        sync_directory(&self.0)?;
        sync_directory(self.0.parent().unwrap_or(&self.0))
    }
}
