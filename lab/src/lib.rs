//! The laboratory: what measures the product, demonstrates it, and plays traces to it.
//!
//! Owns benchmarks, the demonstration, recording and replay of traces, the vhost-user client, and
//! their reports. Always true: it drives the product through what the crate `host` offers to
//! everybody, and the daemon knows nothing of it. Deliberately absent: everything a volume is
//! served with.

pub mod bench;
pub mod cli;
pub mod client;
pub mod demo;
mod guest;
mod image_files;
pub mod in_process;
mod inputs;
mod interrupt;
mod machine;
pub mod place;
mod plot;
mod qemu;
pub mod replay;
mod report;
mod stats;
pub mod vhost_client;
