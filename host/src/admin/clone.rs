//! The file of a new volume that is a clone of another image.
//!
//! Always true: the volume is one of a qcow2 image from then on, whatever a guest writes to it.
//! Deliberately absent: how the file is made ([`crate::origin::clone`]), and that it goes again
//! where its volume is not attached.

use super::Known;
use crate::config::{Source, Volume};
use crate::error::{Error, Kind, Result};
use crate::fault;
use crate::origin::clone::{self, CloneOf, Made};
use crate::origin::{Format, Place};

/// Makes the file; with it the volume as it is to be attached.
pub(super) fn make(known: &Known, volume: Volume, of: &CloneOf) -> Result<(Volume, Made)> {
    let name = &volume.name;
    let usage = |why: &str| Err(Error::usage(format!("volume {name}: {why}")).about(name.clone()));
    if !matches!(Place::parse(&volume.origin), Ok(Place::File(_))) {
        return usage("clone-of makes a file; name one that is not there yet by origin");
    }
    if volume.format == Format::Raw {
        return usage("a clone is a qcow2 file; leave format out, or write format=qcow2");
    }
    let places = known.config.image_places(&known.volumes);
    let made = clone::make(&volume.origin, of, &places.allow(&volume.origin));
    let made = made.map_err(|fault| {
        let kind = match fault.kind {
            fault::Kind::NotFound | fault::Kind::Invalid | fault::Kind::Foreign => Kind::Usage,
            _ => Kind::Failed,
        };
        Error::new(kind, format!("volume {name}: {fault}")).about(name.clone())
    })?;
    let mut volume = volume;
    volume.format = Format::Qcow2;
    volume.sources.insert("format", Source::Command);
    Ok((volume, made))
}
