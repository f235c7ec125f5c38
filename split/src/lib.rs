//! One disk of a guest made into several, one for each class of durability.
//!
//! Deliberately absent: the daemon, which serves the disks, and what an image's format is, which
//! the programs of QEMU know.

mod disk;
pub mod error;
pub mod kind;
pub mod linux;
pub mod ntfs;
mod plan;
pub mod programs;
pub mod report;
pub mod rules;
mod run;
mod state;
mod sys;

pub use error::{Error, Kind, Result};
pub use rules::Rules;
pub use run::{Request, Split, VOLUMES_FILE, Watch};
pub use state::State;
