//! Cache devices that are slower than they are: limits of control groups.
//!
//! Owns the groups that it has made, one for each daemon, with so many bytes a second to and from
//! the disk below a directory. Always true: what a daemon writes past the page cache is limited,
//! and nothing of other programs; where there is no limit it is said why; a group goes away with
//! its owner, when the daemons in it have ended, and one whose owner was killed is swept by the
//! next run. Deliberately absent: devices that only look like slow ones, as loop devices, because
//! the limit of a group holds for the disk itself.

use host::error::{Error, Result, cause};
use host::lock;
use host::sys;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PREFIX: &str = "tenuto-bench-";

/// The hierarchy in which groups are made.
#[derive(Clone, Debug)]
enum Hierarchy {
    /// Version 1: the mount of `blkio`.
    First(PathBuf),
    /// Version 2, with the controller `io`.
    Second(PathBuf),
}

/// Limits of one disk.
pub struct Limits {
    hierarchy: Hierarchy,
    /// Its numbers, as in 8:0.
    device: String,
    per_second: u64,
    groups: Vec<PathBuf>,
}

/// What was asked for, and what came of it.
pub enum Limited {
    NotAsked,
    /// Why there is no limit.
    Not(String),
    To(Limits),
}

impl Limited {
    /// Of the disk below this directory.
    pub fn to(per_second: Option<u64>, directory: &Path) -> Limited {
        let Some(per_second) = per_second else {
            return Limited::NotAsked;
        };
        match Limits::of(per_second, directory) {
            Ok(limits) => Limited::To(limits),
            Err(why) => Limited::Not(why),
        }
    }

    /// Puts a daemon into a group of its own.
    pub fn hold(&mut self, pid: u32) -> Result<()> {
        match self {
            Limited::To(limits) => limits.hold(pid),
            _ => Ok(()),
        }
    }

    pub fn words(&self) -> String {
        match self {
            Limited::NotAsked => "the cache devices are not limited".into(),
            Limited::Not(why) => format!("the cache devices are NOT limited: {why}"),
            Limited::To(limits) => format!(
                "the cache device of each host is limited to {} MiB/s by a control group",
                limits.per_second >> 20
            ),
        }
    }

    pub fn document(&self) -> Value {
        match self {
            Limited::NotAsked => json!({ "limited": false, "reason": null }),
            Limited::Not(why) => json!({ "limited": false, "reason": why }),
            Limited::To(limits) => json!({
                "limited": true,
                "bytes_per_second": limits.per_second,
                "device": limits.device,
                "control_group": match limits.hierarchy {
                    Hierarchy::First(_) => 1,
                    Hierarchy::Second(_) => 2,
                },
            }),
        }
    }
}

impl Limits {
    fn of(per_second: u64, directory: &Path) -> std::result::Result<Limits, String> {
        if sys::effective_uid() != 0 {
            return Err("only root can make control groups".into());
        }
        let limits = Limits {
            hierarchy: hierarchy()?,
            device: disk(directory)?,
            per_second,
            groups: Vec::new(),
        };
        sweep(limits.root());
        limits.try_one()?;
        Ok(limits)
    }

    fn root(&self) -> &Path {
        match &self.hierarchy {
            Hierarchy::First(root) | Hierarchy::Second(root) => root,
        }
    }

    /// Not each disk can be limited, as one without numbers of its own.
    fn try_one(&self) -> std::result::Result<(), String> {
        let group = self.root().join(name("try"));
        let made = self.make(&group);
        let removed = fs::remove_dir(&group);
        let tried = made.and(removed);
        tried.map_err(|error| format!("{}: {}", group.display(), cause(&error)))
    }

    fn make(&self, group: &Path) -> io::Result<()> {
        fs::create_dir(group)?;
        let (device, bytes) = (&self.device, self.per_second);
        match self.hierarchy {
            Hierarchy::First(_) => {
                let line = format!("{device} {bytes}");
                fs::write(group.join("blkio.throttle.read_bps_device"), &line)?;
                fs::write(group.join("blkio.throttle.write_bps_device"), &line)
            }
            Hierarchy::Second(_) => {
                let line = format!("{device} rbps={bytes} wbps={bytes}");
                fs::write(group.join("io.max"), line)
            }
        }
    }

    fn hold(&mut self, pid: u32) -> Result<()> {
        let group = self.root().join(name(&self.groups.len().to_string()));
        let made = self.make(&group);
        self.groups.push(group.clone());
        let held = made.and_then(|()| fs::write(group.join("cgroup.procs"), pid.to_string()));
        held.map_err(|error| Error::failed(format!("{}: {}", group.display(), cause(&error))))
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        for group in &self.groups {
            // One that still has a daemon is swept by the next run.
            let _ = fs::remove_dir(group);
        }
    }
}

fn name(what: &str) -> String {
    format!("{PREFIX}{}-{what}", std::process::id())
}

/// Removes the groups of runs that were killed.
fn sweep(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let pid = rest.and_then(|rest| rest.split('-').next()?.parse().ok());
        if pid.is_some_and(|pid| !lock::alive(pid)) {
            // One that is in use is of a run that ends.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The hierarchy with limits of disks, of the mounts of this machine.
fn hierarchy() -> std::result::Result<Hierarchy, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo");
    let mounts = mounts.map_err(|error| format!("/proc/self/mountinfo: {}", cause(&error)))?;
    let found = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let root = PathBuf::from(before.split(' ').nth(4)?);
        let mut kinds = after.split(' ');
        match kinds.next()? {
            "cgroup" if kinds.nth(1)?.split(',').any(|it| it == "blkio") => {
                Some(Hierarchy::First(root))
            }
            "cgroup2" if has_word(&root.join("cgroup.controllers"), "io") => {
                Some(Hierarchy::Second(root))
            }
            _ => None,
        }
    });
    let found = found.ok_or("no control groups with limits of disks are mounted")?;
    if let Hierarchy::Second(root) = &found {
        let below = root.join("cgroup.subtree_control");
        if !has_word(&below, "io") {
            let enabled = fs::write(&below, "+io");
            enabled.map_err(|error| format!("{}: {}", below.display(), cause(&error)))?;
        }
    }
    Ok(found)
}

fn has_word(path: &Path, word: &str) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().any(|it| it == word)
}

/// The numbers of the whole disk below a directory.
fn disk(directory: &Path) -> std::result::Result<String, String> {
    let wrong = |error: &io::Error| format!("{}: {}", directory.display(), cause(error));
    let device = fs::metadata(directory)
        .map_err(|error| wrong(&error))?
        .dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let entry = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !entry.exists() {
        return Err(format!(
            "{}: its file system is not on one disk",
            directory.display()
        ));
    }
    let whole = match entry.join("partition").exists() {
        // The entry is a link to a directory inside that of the disk.
        true => entry
            .canonicalize()
            .map_err(|error| wrong(&error))?
            .join(".."),
        false => entry,
    };
    let numbers = fs::read_to_string(whole.join("dev")).map_err(|error| wrong(&error))?;
    Ok(numbers.trim().to_owned())
}
