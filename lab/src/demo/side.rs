//! What the guests' disks are in a run: the three columns of the comparison.
//!
//! Owns the names and the disks. Always true: the storage below is the same in all three, an
//! uncached volume of the same daemon with the same limits for each image; with qcow2 each guest
//! has a QEMU of its own between itself and that storage, as it has in use.

use super::load;
use super::run::Plan;
use crate::qemu::{self, Server};
use host::error::Result;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Each guest has a raw image of its own on the storage.
    Raw,
    /// Each clone is an overlay on the storage, over the one gold image there.
    Qcow2,
    Tenuto,
}

impl Side {
    pub const ALL: [Side; 3] = [Side::Raw, Side::Qcow2, Side::Tenuto];

    /// The head of its column.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Raw => "raw images",
            Side::Qcow2 => "qcow2 overlays",
            Side::Tenuto => "Tenuto",
        }
    }

    /// In documents for scripts.
    pub const fn key(self) -> &'static str {
        match self {
            Side::Raw => "uncached",
            Side::Qcow2 => "qcow2",
            Side::Tenuto => "cached",
        }
    }

    /// Its colour in the style sheet.
    pub const fn class(self) -> &'static str {
        match self {
            Side::Raw => "uncached",
            Side::Qcow2 => "overlays",
            Side::Tenuto => "cached",
        }
    }
}

/// The disk of one guest.
pub struct Disk {
    pub name: String,
    /// Where the built-in client finds it.
    pub socket: PathBuf,
    pub export: String,
    /// What the QEMU of a guest opens.
    pub node: String,
}

pub struct Disks {
    pub all: Vec<Disk>,
    /// They end with this value, and before the storage below them does.
    _servers: Vec<Server>,
}

impl Disks {
    /// The disks of these volumes, of which the last is the kept one.
    pub fn open(side: Side, plan: &Plan<'_>, run: &Path, names: &[String]) -> Result<Disks> {
        let volumes = run.join("nbd.sock");
        let kept = names.len() - 1;
        let mut all: Vec<Disk> = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let driver = match side {
                Side::Qcow2 if at < kept => "qcow2",
                _ => "raw",
            };
            all.push(Disk {
                name: name.clone(),
                socket: volumes.clone(),
                export: name.clone(),
                node: qemu::node(driver, &volumes, name),
            });
        }
        let mut servers = Vec::new();
        if side == Side::Qcow2 && !plan.driver.is_guests() {
            // The client has no driver for overlays: QEMU's own, a process for each guest.
            for (at, disk) in all.iter_mut().enumerate() {
                disk.socket = run.join(format!("qemu-{at}.sock"));
                disk.export = String::new();
                servers.push(Server::start(&disk.socket, &disk.node, load::CLIENTS)?);
            }
            for server in &mut servers {
                drop(server.connect()?);
            }
        }
        Ok(Disks {
            all,
            _servers: servers,
        })
    }
}
