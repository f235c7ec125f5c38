//! The adversary: virtual time, lying disks and careless guests around the product's own engine.
//!
//! Owns everything that a host, its storage and its guests are to the engine. Always true: the
//! engine is the one that the daemon runs, unmodified; a run follows from its seed alone, so the
//! same seed gives the same trace. Deliberately absent: threads, clocks, files, and any hash map.
#![forbid(unsafe_code)]

pub mod below;
pub mod broken;
mod commit;
pub mod devices;
pub mod disk;
mod faults;
pub mod guest;
pub mod handed;
pub mod host;
mod hosts;
mod images;
mod machine;
mod made;
mod mapped;
pub mod memory;
mod model;
mod moves;
pub mod oracle;
pub mod pair;
pub mod plan;
mod planned;
pub mod qcow2;
mod replaced;
mod requests;
mod rests;
pub mod rings;
mod run;
pub mod scenario;
pub mod shrink;
mod spoil;
pub mod swarm;
pub mod tops;
pub mod trace;
mod unlinked;
pub mod world;

pub use broken::{Broken, Class};
pub use run::{Failure, Options, Outcome, run};
pub use workload::rng;
pub use world::Sabotage;
