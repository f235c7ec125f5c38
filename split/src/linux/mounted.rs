//! A file system of a partition file, mounted for as long as it is needed.
//!
//! Always true: a file system of an image is mounted without its set-user-id programs and devices,
//! and read-only unless it is one of ours; all mounts lie in a mount name space of the caller.

use crate::error::{Error, Result};
use crate::programs::{Failure, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SAFE: &str = "nosuid,nodev,noexec";
/// A busy mount is waited for: two seconds in all.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

pub struct Mounted {
    place: PathBuf,
    is_mounted: bool,
}

impl Mounted {
    /// Mounts what is not changed, and not even its journal is looked at.
    pub fn read_only(kind: &str, partition: &Path, place: PathBuf) -> Result<Mounted> {
        let journal = if kind == "xfs" {
            "norecovery,nouuid"
        } else {
            "noload"
        };
        Mounted::mount(kind, partition, place, &format!("loop,ro,{journal},{SAFE}"))
    }

    /// Mounts so that a journal which has to be replayed is an error.
    pub fn read_only_clean(kind: &str, partition: &Path, place: PathBuf) -> Result<Mounted> {
        let twin = if kind == "xfs" { ",nouuid" } else { "" };
        Mounted::mount(kind, partition, place, &format!("loop,ro,{SAFE}{twin}"))
    }

    pub fn writable(kind: &str, partition: &Path, place: PathBuf) -> Result<Mounted> {
        let twin = if kind == "xfs" { ",nouuid" } else { "" };
        Mounted::mount(kind, partition, place, &format!("loop,{SAFE}{twin}"))
    }

    /// Mounts a directory at another place.
    pub fn bind(from: &Path, place: PathBuf) -> Result<Mounted> {
        let mut command = Command::new("mount");
        command.arg("--bind").arg(from).arg(&place);
        run("mount", &mut command)?;
        Ok(Mounted {
            place,
            is_mounted: true,
        })
    }

    /// Mounts a partition over a directory that exists.
    pub fn over(kind: &str, partition: &Path, place: PathBuf) -> Result<Mounted> {
        let twin = if kind == "xfs" { ",nouuid" } else { "" };
        Mounted::mount(kind, partition, place, &format!("loop,ro,{SAFE}{twin}"))
    }

    fn mount(kind: &str, partition: &Path, place: PathBuf, options: &str) -> Result<Mounted> {
        std::fs::create_dir_all(&place).map_err(|error| Error::io(&place, &error))?;
        let mut command = Command::new("mount");
        command.args(["-t", kind, "-o", options]);
        run("mount", command.arg(partition).arg(&place))?;
        Ok(Mounted {
            place,
            is_mounted: true,
        })
    }

    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Takes the mount away, after which all is written.
    pub fn close(mut self) -> Result<()> {
        self.is_mounted = false;
        let mut left = TRIES;
        loop {
            left -= 1;
            // A program that another thread starts has our open files until it executes.
            match run("mount", Command::new("umount").arg(&self.place)) {
                Err(Failure::Failed { says, .. }) if left > 0 && says.contains("busy") => {
                    std::thread::park_timeout(PAUSE);
                }
                done => return done.map(|_| ()).map_err(Into::into),
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = run("mount", Command::new("umount").arg("-l").arg(&self.place));
        }
    }
}
