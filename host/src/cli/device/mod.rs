//! `tenuto volume device`: a volume as a block device of this host, by a driver of the kernel.
//!
//! ```text
//! attach ─▶ child: lock, connect, link, say where ─▶ watch: dead? connect again, until detached
//! ```
//!
//! Owns who connects again when the daemon was away: one process for each device, which holds a
//! lock beside the volume's socket. Always true: while the daemon is away requests wait, also where
//! that process is killed; a device that is mounted or open is never taken away; who attaches twice
//! gets the same device, be its driver NBD ([`nbd`]) or, with the feature, ublk. Deliberately
//! absent: the words of the drivers ([`crate::nbdlink`], [`crate::ublk`]).

mod found;
mod nbd;
mod place;
#[cfg(feature = "ublk")]
mod ublk;
mod wanted;

use super::Context;
use super::reply::url;
use crate::config::{DEFAULT_PATH, locate};
use crate::error::{Error, Kind, Result, cause};
use crate::sys;
use clap::Args;
use found::{By, Found};
use place::{UDEV_PAUSE, shown, unlink};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use wanted::Wanted;

/// How long requests under way may keep a device after it is disconnected.
const GONE: Duration = Duration::from_secs(10);
/// More than a child says.
const SAID_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, Args)]
pub struct AsDevice {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// Take the device away; refused while it is mounted or open
    #[arg(long, conflicts_with = "foreground")]
    detach: bool,
    /// Stay, and connect again when the daemon was away, as the service does
    #[arg(long)]
    foreground: bool,
    /// Driver of the kernel that makes the device [default: nbd, or that of the device it has];
    /// ublk takes a build with that feature
    #[arg(long, value_name = "DRIVER", hide_default_value = true)]
    by: Option<By>,
}

pub fn run(context: &Context, command: &AsDevice) -> Result<()> {
    let name = command.name.as_str();
    if command.by == Some(By::Ublk) && !cfg!(feature = "ublk") {
        let message = format!(
            "volume {name}: this build makes no devices by ublk; build it with `cargo build \
             --release --features ublk`, or take --by nbd"
        );
        return Err(Error::usage(message).about(name));
    }
    // Said first, because nothing else helps without it.
    if sys::effective_uid() != 0 {
        let message = format!("volume {name}: only root makes block devices; run it with sudo");
        return Err(Error::failed(message).about(name));
    }
    match (command.detach, command.foreground) {
        (true, _) => detach(context, command),
        (false, true) => stay(context, command),
        (false, false) => attach(context, command),
    }
}

/// Starts who attaches and stays, and returns when the device is there.
fn attach(context: &Context, command: &AsDevice) -> Result<()> {
    let (name, by) = (command.name.as_str(), command.by);
    let failed = |error: io::Error| Error::failed(format!("volume {name}: {}", cause(&error)));
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    // It must not keep the file system that this one was called in.
    let absolute = |path: &Path| std::path::absolute(path).map_err(failed);
    let config = locate(context.common.config.as_deref());
    if config != Path::new(DEFAULT_PATH) {
        command.arg("-c").arg(absolute(&config)?);
    }
    if let Some(socket) = &context.common.socket {
        command.arg("--socket").arg(absolute(socket)?);
    }
    command.args(["--json", "volume", "device", name, "--foreground"]);
    if let Some(by) = by {
        command.args(["--by", &by.to_string()]);
    }
    // Ctrl-C and the end of this terminal are not for it.
    command.process_group(0).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let output = child.stdout.take().expect("it was given a pipe");
    let mut said = String::new();
    let mut output = BufReader::new(output.take(SAID_BYTES_MAX));
    output.read_line(&mut said).map_err(failed)?;
    let mut document: Value = serde_json::from_str(&said).unwrap_or_default();
    if document["attached"] != true {
        // An error has more lines than one.
        let _ = output.read_to_string(&mut said);
        document = serde_json::from_str(&said).unwrap_or_default();
    }
    if document["attached"] != true {
        let status = child.wait().map_err(failed)?;
        let ended = || Error::failed(format!("volume {name}: not attached, {status}"));
        return Err(Error::from_json(&document).unwrap_or_else(ended));
    }
    let text = || format!("{}\n", document["link"].as_str().unwrap_or("-"));
    context.output().document(&document, text)
}

/// Attaches, says where, and serves or watches the device until it is taken away.
fn stay(context: &Context, command: &AsDevice) -> Result<()> {
    let wanted = Wanted::look(context, &command.name)?;
    let (known, lock) = wanted.device_or_lock()?;
    let by = agreed(command, known)?.unwrap_or(By::Nbd);
    serve(context, wanted, by, known, lock)
}

fn serve(
    context: &Context,
    wanted: Wanted,
    by: By,
    known: Option<Found>,
    lock: Option<File>,
) -> Result<()> {
    match by {
        By::Nbd => nbd::stay(context, &wanted, known.and_then(Found::as_nbd), lock),
        #[cfg(feature = "ublk")]
        By::Ublk => ublk::stay(context, wanted, known.and_then(Found::as_ublk), lock),
        #[cfg(not(feature = "ublk"))]
        By::Ublk => unreachable!("refused before"),
    }
}

/// The driver that is meant; one device is not changed into another.
fn agreed(command: &AsDevice, known: Option<Found>) -> Result<Option<By>> {
    let Some(known) = known else {
        return Ok(command.by);
    };
    match command.by {
        Some(by) if by != known.by() => {
            let (name, path) = (command.name.as_str(), known.block().path());
            let (path, is) = (path.display(), known.by());
            let message = format!(
                "volume {name}: its block device {path} is one by {is}; leave out --by {by}, or \
                 detach that one first"
            );
            Err(Error::failed(message).about(name))
        }
        _ => Ok(Some(known.by())),
    }
}

/// Lets the block device of a volume on this host, if there is one, grow with it; what became of
/// that.
pub(super) fn grow(name: &str, size_bytes: u64) -> Option<String> {
    let device = Found::of(name).filter(|found| found.block().size_bytes() < size_bytes)?;
    let path = device.block().path().display().to_string();
    Some(match device.resize(name, size_bytes) {
        Ok(()) => format!("volume {name}: its block device {path} has the new size"),
        Err(error) => format!(
            "volume {name}: its block device {path} keeps its size: {}; run `sudo tenuto volume \
             device {name}` to tell the kernel",
            cause(&error)
        ),
    })
}

fn detach(context: &Context, command: &AsDevice) -> Result<()> {
    let name = command.name.as_str();
    url(name, "")?;
    let Some(found) = Found::of(name) else {
        let message = format!("volume {name}: has no block device on this host");
        return Err(Error::new(Kind::NotFound, message).about(name));
    };
    agreed(command, Some(found))?;
    let device = found.block();
    let path = device.path().display().to_string();
    if found.is_orphan() {
        let message = format!(
            "volume {name}: {path} waits for a process that serves it, and holds what is not \
             written; run `tenuto volume device {name}`, then detach it"
        );
        return Err(Error::refused(message).about(name));
    }
    let refuse = |who: String| {
        let message = format!(
            "volume {name}: {path} is {who}; unmount it or end who has it open, then detach it"
        );
        Error::refused(message).about(name)
    };
    // While it is open in this way nothing can be mounted on it.
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_EXCL);
    let open = options.open(device.path()).or_else(|error| {
        // A volume that is read-only has a device that is.
        match error.raw_os_error() {
            Some(libc::EROFS | libc::EACCES) => {
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(libc::O_EXCL);
                options.open(device.path())
            }
            _ => Err(error),
        }
    });
    let claimed = open.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => refuse("mounted, or part of another device".into()),
        _ => Error::failed(format!("volume {name}: {path}: {}", cause(&error))).about(name),
    })?;
    let holders = device.holders();
    if !holders.is_empty() {
        return Err(refuse(format!("in use by {}", holders.join(", "))));
    }
    let size_bytes = device.size_bytes();
    let failed = |error: io::Error| {
        Error::failed(format!("volume {name}: {path}: {}", cause(&error))).about(name)
    };
    // What the kernel has of it in memory goes to the volume first.
    claimed.sync_all().map_err(failed)?;
    found.disconnect().map_err(failed)?;
    drop(claimed);
    let begun = Instant::now();
    while found.is_of(name) && begun.elapsed() < GONE {
        std::thread::sleep(UDEV_PAUSE);
    }
    if found.is_of(name) {
        found.clear();
    }
    unlink(name, &device);
    let mut document = shown(name, &device, false);
    document["size_bytes"] = size_bytes.into();
    let text = || format!("volume {name}: {path} is taken away\n");
    context.output().confirmation(&document, text)
}
