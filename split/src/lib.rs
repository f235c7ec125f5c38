//! One disk of a guest made into several, one for each class of durability.
//!
//! Deliberately absent: the daemon, which serves the disks, and what an image's format is, which
//! the programs of QEMU know.

// Tests may unwrap.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod class;
mod disk;
pub mod error;
#[cfg(test)]
mod fixture;
pub mod kind;
mod lines;
pub mod linux;
pub mod ntfs;
mod plan;
mod pool;
pub mod programs;
pub mod propose;
pub mod report;
pub mod rules;
mod run;
mod state;
mod sys;

pub use crate::class::Class;
pub use crate::error::{Error, Kind, Result};
pub use crate::rules::Rules;
pub use crate::run::{Request, Split, VOLUMES_FILE, Watch};
pub use crate::state::State;
