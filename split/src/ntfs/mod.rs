//! A disk with NTFS.
//!
//! Owns what makes several NTFS volumes out of one: whether a partition may be split ([`look`]),
//! what of it moves ([`list`]), the new volumes ([`make_volume`], [`copy`], [`verify`]), the mount
//! points in place of what moved ([`empty`], [`link`]), the registry ([`register`]), and the proof
//! that a guest sees the same as before ([`check`]). [`Windows`] is all of it behind the trait that
//! a split asks.
//!
//! Always true: a partition is an ordinary file; each step may be run again after it ended or was
//! killed in its middle, and gives the same; until [`empty`] nothing is written to the system's
//! partition; what the image holds is foreign and becomes a typed error, never a panic. A path
//! stays the same on its new volume: `\Users\x\AppData\Local` of the system is
//! `\Users\x\AppData\Local` there, below directories with the same access rights.
//!
//! Deliberately absent: images, disks and their tables, which step is next, classes and their sizes
//! (the caller knows them); a driver for NTFS (ntfs-3g and wimlib have one, in user space); files
//! as mount points, which Windows does not know.

mod compare;
mod copy;
mod error;
mod hive;
mod link;
mod list;
mod look;
mod mount;
mod path;
mod register;
mod reparse;
mod tree;
mod windows;
mod xattr;

pub use compare::{Changed, Compared, check, verify};
pub use copy::{NewVolume, copy, make_volume};
pub use error::{Error, Refused};
pub use link::{empty, link};
pub(crate) use list::VALUED;
pub use list::{Found, LinkInto, Moved, Rule, Share, Valued, VolumeIndex, list};
pub use look::{Looked, look};
pub use path::{Pattern, WindowsPath};
pub use register::{PageFile, look_registry, register};
pub use windows::Windows;
