//! A block device by the kernel's NBD driver, which sends and receives by itself.
//!
//! Owns the driver's module, and the watch over the connection. Always true: requests wait in the
//! kernel while the daemon is away, also where the process that watches is killed. Deliberately
//! absent: the words of the driver ([`crate::nbdlink`]).

use super::place::{say, settle, unlink};
use super::wanted::{LOOK, Wanted, fits};
use crate::cli::Context;
use crate::error::{Error, Result, cause};
use crate::nbdlink::{Connection, Device, Driver};
use crate::sys;
use std::fs::File;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Between two tries where the connection is another process's: a look is a try.
const LOOK_BLIND: Duration = Duration::from_secs(5);

/// Attaches, says where, and connects again until the device is taken away.
pub fn stay(
    context: &Context,
    wanted: &Wanted,
    known: Option<Device>,
    lock: Option<File>,
) -> Result<()> {
    let name = wanted.name.as_str();
    let mut driver = driver(name)?;
    if let Some(device) = known {
        // The volume may have grown meanwhile.
        if device.block().size_bytes() < wanted.size_bytes {
            let grown = driver.resize(device, name, wanted.size_bytes);
            grown.map_err(|error| {
                let (path, why) = (device.block().path(), cause(&error));
                let message = format!("volume {name}: {} keeps its size: {why}", path.display());
                Error::failed(message).about(name)
            })?;
        }
        settle(name, &device.block());
        say(context, name, &device.block())?;
        return match lock {
            // Who watches it is there.
            None => Ok(()),
            Some(_lock) => watch(&mut driver, wanted, device, None),
        };
    }
    let connection = wanted.connect()?;
    let device = driver.connect(name, &connection).map_err(|error| {
        let why = cause(&error);
        Error::failed(format!(
            "volume {name}: the kernel makes no block device of it: {why}; it takes Linux 5.15"
        ))
        .about(name)
    })?;
    settle(name, &device.block());
    say(context, name, &device.block())?;
    watch(&mut driver, wanted, device, Some(connection))
}

fn driver(name: &str) -> Result<Driver> {
    let opened = Driver::open().or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error);
        }
        // Where it is a module, this is how it comes; without it the error is the first one.
        let _ = Command::new("modprobe")
            .arg("nbd")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        Driver::open()
    });
    opened.map_err(|error| {
        let message = match error.kind() {
            io::ErrorKind::NotFound => format!(
                "volume {name}: this kernel has no NBD driver; load its module with `modprobe \
                 nbd`, or run a kernel that has it"
            ),
            _ => format!("volume {name}: the NBD driver: {}", cause(&error)),
        };
        Error::failed(message).about(name)
    })
}

/// Puts another connection in the place of one that has died, until the device is taken away.
fn watch(
    driver: &mut Driver,
    wanted: &Wanted,
    device: Device,
    mut connection: Option<Connection>,
) -> Result<()> {
    let name = wanted.name.as_str();
    let mut complained = false;
    while device.is_of(name) {
        if let Some(alive) = &connection
            && !sys::has_hung_up(&alive.socket)
        {
            std::thread::sleep(LOOK);
            continue;
        }
        // Taken away, not died: the kernel ends its connection before it forgets the name.
        std::thread::sleep(LOOK);
        if !device.is_of(name) {
            break;
        }
        let again = wanted
            .connect()
            .and_then(|new| fits(name, &device.block(), new));
        let again = again.and_then(|new| {
            let replaced = driver.replace(device, name, &new);
            replaced.map_err(|error| Error::failed(cause(&error)))?;
            Ok(new)
        });
        match again {
            Ok(new) => (connection, complained) = (Some(new), false),
            Err(error) => {
                if connection.is_some() && !complained {
                    eprintln!("tenuto: {error}; requests wait, and it is tried again");
                    complained = true;
                }
                std::thread::sleep(if connection.is_some() {
                    LOOK
                } else {
                    LOOK_BLIND
                });
            }
        }
    }
    unlink(name, &device.block());
    Ok(())
}
