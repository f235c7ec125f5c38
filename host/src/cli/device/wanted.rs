//! The volume of which a block device is wanted: the lock of the process that serves the device,
//! and connections to the daemon.
//!
//! Always true: one process at a time serves a device; a connection is one that may write, or the
//! volume is read-only. Deliberately absent: what is done over the connection.

use super::found::Found;
use crate::blockdev::Block;
use crate::cli::Context;
use crate::cli::reply::{number, url};
use crate::error::{Error, Result, cause};
use crate::nbdlink::Connection;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two looks at the connection, and two tries to have another one.
pub const LOOK: Duration = Duration::from_millis(250);
/// How long another process may take that attaches the volume or ends.
const OTHERS: Duration = Duration::from_secs(10);

/// The volume of which a device is wanted.
pub struct Wanted {
    pub name: String,
    socket: PathBuf,
    pub size_bytes: u64,
    read_only: bool,
    /// Several clients may write it.
    #[cfg(feature = "ublk")]
    pub shared: bool,
}

impl Wanted {
    pub fn look(context: &Context, name: &str) -> Result<Wanted> {
        let volume = context.client()?.get(&url(name, "")?)?;
        let Some(socket) = volume["nbd_socket"].as_str() else {
            let message = format!(
                "volume {name}: is not exported over NBD; run `tenuto volume set {name} \
                 export=vhost-user,nbd` first"
            );
            return Err(Error::usage(message).about(name));
        };
        let flags = volume["flags"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(Wanted {
            name: name.into(),
            socket: socket.into(),
            size_bytes: number(&volume["size_bytes"]),
            read_only: flags.iter().any(|flag| flag == "read-only"),
            #[cfg(feature = "ublk")]
            shared: volume["shared"] == true,
        })
    }

    /// Held by the process that watches the device, for as long as it lives.
    fn lock(&self) -> Result<Option<File>> {
        let path = self.socket.with_extension("device");
        let name = &self.name;
        let failed = |error: io::Error| {
            let place = path.display();
            Error::failed(format!("volume {name}: {place}: {}", cause(&error)))
        };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// A device that is there, or the right to make one. Who watches one that was taken away a
    /// moment ago is about to end, and who makes one is about to have it.
    pub fn device_or_lock(&self) -> Result<(Option<Found>, Option<File>)> {
        let begun = Instant::now();
        loop {
            let lock = self.lock()?;
            let known = Found::of(&self.name);
            if known.is_some() || lock.is_some() {
                return Ok((known, lock));
            }
            if begun.elapsed() > OTHERS {
                let name = self.name.as_str();
                let message = format!(
                    "volume {name}: another process attaches it or takes it away right now; try \
                     it again"
                );
                return Err(Error::failed(message).about(name));
            }
            std::thread::sleep(LOOK);
        }
    }

    pub fn connect(&self) -> Result<Connection> {
        let name = &self.name;
        let connection = Connection::open(&self.socket, name).map_err(|error| {
            let (socket, why) = (self.socket.display(), cause(&error));
            Error::failed(format!("volume {name}: {socket}: {why}")).about(name.as_str())
        })?;
        if connection.is_read_only() && !self.read_only {
            let message = format!(
                "volume {name}: another client writes it; end that one, or let several write with \
                 `tenuto volume set {name} shared=true`"
            );
            return Err(Error::refused(message).about(name.as_str()));
        }
        Ok(connection)
    }
}

/// A disk that has become smaller would lose what is behind its new end.
pub fn fits(name: &str, device: &Block, connection: Connection) -> Result<Connection> {
    let (had, has) = (device.size_bytes(), connection.size_bytes);
    match has >= had {
        true => Ok(connection),
        false => Err(Error::failed(format!(
            "volume {name}: has {has} bytes, and its device has {had}; detach that first"
        ))),
    }
}
