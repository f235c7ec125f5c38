//! A block device by the kernel's ublk driver, whose requests this process carries to the daemon.
//!
//! Owns the driver's module, and the life of the process. Always true: requests wait while the
//! daemon is away, and where this process is killed until the command is given again, as the
//! service does; the process ends well only when the device was taken away. Deliberately absent:
//! how requests are carried ([`crate::ublk`]).

use super::place::{say, settle, unlink};
use super::wanted::{LOOK, Wanted, fits};
use crate::blockdev::Block;
use crate::cli::Context;
use crate::error::{Error, Kind, Result, cause};
use crate::nbdlink::Connection;
use crate::ublk::device::{self, Device, Served};
use crate::ublk::link;
use std::fs::File;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;

pub fn stay(
    context: &Context,
    wanted: Wanted,
    known: Option<Device>,
    lock: Option<File>,
) -> Result<()> {
    let name = wanted.name.clone();
    let failed = |error: io::Error| {
        let why = cause(&error);
        let message = format!("volume {name}: the kernel makes no block device of it: {why}");
        Error::failed(message).about(name.as_str())
    };
    load(&name)?;
    let Some(_lock) = lock else {
        // Who serves it is there.
        let known = known.expect("without a lock there is a device");
        grow(&wanted, known)?;
        settle(&name, &known.block());
        return say(context, &name, &known.block());
    };
    if wanted.shared {
        let message = format!(
            "volume {name}: is shared, so that a late write of a killed process could not be told \
             from a new one; take --by nbd, or set shared=false"
        );
        return Err(Error::usage(message).about(name.as_str()));
    }
    let left = match known {
        // Who made it was killed before it was a block device.
        Some(dead) if dead.is_dead() => {
            dead.delete().map_err(failed)?;
            None
        }
        other => other,
    };
    let connection = match left {
        None => wanted.connect()?,
        Some(device) => reconnect(&wanted, &device.block()),
    };
    let served = Served::prepare(&name, left, &connection).map_err(failed)?;
    let wanted = Arc::new(wanted);
    carry(&served, wanted.clone(), connection);
    let served = served.start().map_err(failed)?;
    let device = served.device;
    if let Err(error) = grow(&wanted, device) {
        eprintln!("tenuto: {error}");
    }
    settle(&name, &device.block());
    say(context, &name, &device.block())?;
    served.wait().map_err(failed)?;
    unlink(&name, &device.block());
    Ok(())
}

/// Where the driver is a module, this is how it comes.
fn load(name: &str) -> Result<()> {
    if !device::is_there() {
        let _ = Command::new("modprobe")
            .arg("ublk_drv")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
    if device::is_there() {
        return Ok(());
    }
    let message = format!(
        "volume {name}: this kernel has no ublk driver; load its module with `modprobe ublk_drv`, \
         run a kernel that has it, or take --by nbd"
    );
    Err(Error::failed(message).about(name))
}

/// The volume may have grown meanwhile.
fn grow(wanted: &Wanted, device: Device) -> Result<()> {
    if device.block().size_bytes() >= wanted.size_bytes {
        return Ok(());
    }
    device.resize(wanted.size_bytes).map_err(|error| {
        let (name, path) = (wanted.name.as_str(), device.block().path());
        let message = format!(
            "volume {name}: {} keeps its size: {}",
            path.display(),
            cause(&error)
        );
        Error::failed(message).about(name)
    })
}

/// Carries requests for as long as this process lives.
fn carry(served: &Served, wanted: Arc<Wanted>, connection: Connection) {
    let (link, block) = (served.link.clone(), served.device.block());
    std::thread::spawn(move || {
        let again = || reconnect(&wanted, &block);
        let why = link::carry(&link, connection, again, device::begin_thread);
        // Another process is another client, to which the daemon gives the right to write only when
        // nothing of this one is under way.
        let name = &wanted.name;
        eprintln!("tenuto: volume {name}: its server {why}; requests wait for another process");
        std::process::exit(Kind::Failed.exit_code().into());
    });
}

/// A connection that may write, as soon as there is one.
fn reconnect(wanted: &Wanted, block: &Block) -> Connection {
    let mut complained = false;
    loop {
        let fitting = wanted.connect();
        match fitting.and_then(|new| fits(&wanted.name, block, new)) {
            Ok(connection) => return connection,
            Err(error) if !complained => {
                eprintln!("tenuto: {error}; requests wait, and it is tried again");
                complained = true;
            }
            Err(_) => {}
        }
        std::thread::sleep(LOOK);
    }
}
