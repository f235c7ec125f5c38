//! The decisions of a cluster that one host takes: who owns a volume, who may write its origin, and
//! what has to be known before.
//!
//! Owns the records of the vault, the way in which one is made, the messages between hosts, and the
//! copies of a unit: [`taker`] makes a host its owner, [`set`] says which copies a flush and a cut
//! ask, [`copy`] is one of them. A host drives `taker` first, then `set` with what it gives, and
//! one `copy` for each that it holds, its own one included.
//! Always true: nothing here waits; what comes in is an event with the time, what goes out is a
//! value. Deliberately absent: files, sockets, certificates and threads, which are the host's, and
//! the data of volumes, which is the engine's.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod batch;
mod broken;
pub mod change;
pub mod choice;
mod codec;
pub mod copy;
#[cfg(test)]
mod fixtures;
pub mod frame;
pub mod history;
pub mod message;
pub mod peers;
pub mod reads;
pub mod record;
pub mod set;
pub mod taker;
pub mod unit;
pub mod vault;
pub mod watch;

#[cfg(test)]
mod search_tests;
