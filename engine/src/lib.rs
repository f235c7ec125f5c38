//! The decisions of the cache: events in, actions out.
//!
//! Owns every choice about what is acknowledged, logged, destaged, evicted and recovered. Always
//! true: no I/O, no clock, no randomness, no threads and no payload bytes live here, so the same
//! object runs in the daemon and in the simulator. Deliberately absent: anything that knows what
//! a socket, a file or a protocol is.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod adversary;
pub mod chain;
pub mod chart;
pub(crate) mod clean;
pub(crate) mod core;
pub mod engine;
pub mod event;
pub(crate) mod evict;
pub(crate) mod fetch;
pub mod flow;
pub mod format;
pub(crate) mod ghost;
pub mod image;
pub mod layout;
pub(crate) mod lines;
pub(crate) mod log;
pub mod map;
pub mod media;
pub mod memory;
pub(crate) mod open;
pub mod origin;
pub(crate) mod outbox;
pub(crate) mod ram;
pub(crate) mod recover;
pub mod round_robin;
pub mod sample;
pub(crate) mod scratch;
pub(crate) mod settle;
pub(crate) mod slab;
pub mod snapshot;
pub mod types;
pub(crate) mod volume;
pub mod window;
