//! Volumes that stand beside the one that is dirty.
//!
//! Always true: they are as large, raw or clones; clones stand on one base and are made as `volume
//! add --clone-of` makes them; no block of any of them was written. Deliberately absent: what they
//! cost, which is measured.

use crate::in_process::{make_image, make_qcow2};
use crate::place::Place;
use host::error::{Error, Result};
use host::origin::clone::{self, CloneOf};
use std::path::PathBuf;

pub const VOLUME_BYTES: u64 = 64 << 20;
/// Of one host.
pub const VOLUMES_MAX: u32 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    Nothing,
    Raw,
    Clones,
}

impl Beside {
    pub fn key(self) -> &'static str {
        match self {
            Beside::Nothing => "nothing",
            Beside::Raw => "raw",
            Beside::Clones => "clones",
        }
    }

    /// Behind how the daemon before ended.
    pub fn words(self) -> &'static str {
        match self {
            Beside::Nothing => "",
            Beside::Raw => ", raw volumes",
            Beside::Clones => ", clones",
        }
    }

    /// Of the names of files.
    pub fn prefix(self) -> &'static str {
        match self {
            Beside::Nothing => "",
            Beside::Raw => "raw-",
            Beside::Clones => "clones-",
        }
    }
}

pub struct Other {
    pub name: String,
    image: PathBuf,
    format: &'static str,
}

impl Other {
    /// As it stands in a configuration.
    pub fn config(&self) -> String {
        let Other {
            name,
            image,
            format,
        } = self;
        format!(
            "[[volume]]\nname = \"{name}\"\norigin = {image:?}\nformat = \"{format}\"\npolicy = \
             \"write-back\"\nexport = [\"nbd\"]\n"
        )
    }
}

/// Makes the images of so many.
pub fn make(place: &Place, beside: Beside, count: u32) -> Result<Vec<Other>> {
    let format = match beside {
        Beside::Nothing => return Ok(Vec::new()),
        Beside::Raw => "raw",
        Beside::Clones => "qcow2",
    };
    let base = CloneOf {
        image: place.path("base.qcow2"),
        plain: false,
    };
    if beside == Beside::Clones {
        make_qcow2(&base.image, VOLUME_BYTES)?;
    }
    let allow = [place.directory().to_owned()];
    let one = |number: u32| {
        let name = format!("{format}-{number:04}");
        let image = place.path(&format!("{name}.img"));
        match beside {
            Beside::Clones => {
                let made = clone::make(&image, &base, &allow);
                made.map_err(|fault| Error::failed(fault.to_string()))?;
            }
            _ => make_image(&image, VOLUME_BYTES)?,
        }
        Ok(Other {
            name,
            image,
            format,
        })
    };
    (0..count).map(one).collect()
}
