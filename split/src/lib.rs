//! One disk of a guest made into several, one for each class of durability.
//!
//! Deliberately absent: the daemon, which serves the disks, and what an image's format is, which
//! the programs of QEMU know.

pub mod error;
pub mod kind;
pub mod linux;
pub mod ntfs;
pub mod programs;
pub mod rules;
