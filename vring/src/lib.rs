//! The queues of a virtual disk, as its guest and a killed daemon have left them.
//!
//! Owns the split virtqueue of virtio 1.2 (section 2.7), both ends of it, virtio-blk requests
//! (section 5.2) and the in-flight region of the vhost-user protocol. Always true: no bytes that a
//! guest or a front end wrote make it panic, whatever they can change while we look is read once,
//! and no address leaves it that the guest did not name. Deliberately absent: I/O, clocks, threads,
//! payload bytes and the messages of vhost-user; the host translates addresses and moves data.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod adversary;
pub mod block;
pub mod chain;
pub mod config;
pub mod driver;
pub mod inflight;
pub mod memory;
pub mod rings;
pub mod split;

/// One of the queues of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queue(pub u16);

/// The first descriptor of a chain. It names the request while that is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head(pub u16);

/// The place of a request in the order in which a device took them, over all its queues. Never used
/// twice in the life of an in-flight region, so with that region it names a request for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter(pub u64);
