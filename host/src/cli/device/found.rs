//! The block device of a volume on this host, whichever driver made it.
//!
//! Always true: a volume has one at most, and which driver made it is known from the kernel.
//! Without the feature `ublk` there are no others than those of NBD. Deliberately absent: who
//! serves it.

use crate::blockdev::Block;
use crate::nbdlink;
#[cfg(feature = "ublk")]
use crate::ublk::device as ublk;
use clap::ValueEnum;
use std::fmt;
use std::io;

/// A driver of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    Nbd,
    Ublk,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            By::Nbd => "nbd",
            By::Ublk => "ublk",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Nbd(nbdlink::Device),
    #[cfg(feature = "ublk")]
    Ublk(ublk::Device),
}

impl Found {
    /// The one of a volume.
    pub fn of(volume: &str) -> Option<Found> {
        let found = nbdlink::Device::of(volume).map(Found::Nbd);
        #[cfg(feature = "ublk")]
        let found = found.or_else(|| ublk::Device::of(volume).map(Found::Ublk));
        found
    }

    pub fn as_nbd(self) -> Option<nbdlink::Device> {
        match self {
            Found::Nbd(device) => Some(device),
            #[cfg(feature = "ublk")]
            Found::Ublk(_) => None,
        }
    }

    #[cfg(feature = "ublk")]
    pub fn as_ublk(self) -> Option<ublk::Device> {
        match self {
            Found::Nbd(_) => None,
            Found::Ublk(device) => Some(device),
        }
    }

    pub fn is_of(self, volume: &str) -> bool {
        match self {
            Found::Nbd(device) => device.is_of(volume),
            #[cfg(feature = "ublk")]
            Found::Ublk(device) => device.is_of(volume),
        }
    }

    pub fn by(self) -> By {
        match self {
            Found::Nbd(_) => By::Nbd,
            #[cfg(feature = "ublk")]
            Found::Ublk(_) => By::Ublk,
        }
    }

    pub fn block(self) -> Block {
        match self {
            Found::Nbd(device) => device.block(),
            #[cfg(feature = "ublk")]
            Found::Ublk(device) => device.block(),
        }
    }

    /// Tells the programs that use it that its volume has another size.
    pub fn resize(self, volume: &str, size_bytes: u64) -> io::Result<()> {
        match self {
            Found::Nbd(device) => nbdlink::Driver::open()?.resize(device, volume, size_bytes),
            #[cfg(feature = "ublk")]
            Found::Ublk(device) => device.resize(size_bytes),
        }
    }

    /// Takes it away; who has it open finds it gone.
    pub fn disconnect(self) -> io::Result<()> {
        match self {
            Found::Nbd(device) => nbdlink::Driver::open()?.disconnect(device),
            #[cfg(feature = "ublk")]
            Found::Ublk(device) => device.stop(),
        }
    }

    /// Whether its requests wait for a process that is not there.
    pub fn is_orphan(self) -> bool {
        match self {
            // The kernel sends them itself.
            Found::Nbd(_) => false,
            #[cfg(feature = "ublk")]
            Found::Ublk(device) => device.is_orphan(),
        }
    }

    /// What its own process has not cleared away.
    pub fn clear(self) {
        match self {
            Found::Nbd(_) => {}
            // Where that does not help, who attaches next does it.
            #[cfg(feature = "ublk")]
            Found::Ublk(device) => drop(device.delete()),
        }
    }
}
