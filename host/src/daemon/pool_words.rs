//! What is said of pools.
//!
//! Always true: a line names the pool, what is wrong with an order, and what would be right.

use super::VolumeError;
use crate::pool::Record;

pub(super) fn unknown(name: &str) -> VolumeError {
    VolumeError::Settings(format!("pool {name}: not known; see `tenuto pool ls`"))
}

pub(super) fn tell_switch(record: &Record) {
    let (name, image) = (&record.name, record.image.path.display());
    let generation = record.image.generation;
    tracing::info!("pool {name}: members move to {image}, generation {generation}");
}

pub(super) fn refused(name: &str, why: &str) -> VolumeError {
    VolumeError::Settings(format!("pool {name}: {why}"))
}
