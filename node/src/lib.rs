//! The decisions of a cluster that one host takes: who owns a volume, who may write its origin, and
//! what has to be known before.
//!
//! Owns the records of the vault, the way in which one is made, and the messages between hosts.
//! Always true: nothing here waits; what comes in is an event with the time, what goes out is a
//! value. Deliberately absent: files, sockets, certificates and threads, which are the host's, and
//! the data of volumes, which is the engine's.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod batch;
mod broken;
pub mod change;
mod codec;
pub mod copy;
pub mod frame;
pub mod history;
pub mod message;
pub mod peers;
pub mod record;
pub mod set;
pub mod taker;
pub mod unit;
pub mod vault;

#[cfg(test)]
mod search_tests;
