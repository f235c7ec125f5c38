//! qcow2 files and chains of them, as their writers have left them.
//!
//! Owns the format: headers with their extensions, entries of tables, refcounts, snapshots; where a
//! range of the guest's disk lies in a chain of files; what a check finds; the bytes of a new file.
//! Always true: no bytes of a file make it panic, overflow, or take memory beyond [`limits`]; no
//! call waits, and none keeps a state that a caller could lose. Deliberately absent: I/O, clocks,
//! threads, decompression, JSON, and everything that the cache knows.
//!
//! To serve a chain takes three things:
//!
//! 1. [`Header::parse`] for each file, from its first cluster ([`header::bytes_wanted`] says how
//!    much that is by the first 512 bytes), and [`Header::is_readable`].
//! 2. A [`Chain`] of [`File`]s, top first. Opening them, names and locks are the caller's.
//! 3. [`resolve`](resolve::resolve): a span of the guest gives [`Part`](resolve::Part)s, or
//!    [`Missing`](resolve::Missing) with a range of a file that has tables in it. The caller reads
//!    the range (zeroes behind the end of the file), gives it to its [`Tables`], of which
//!    [`Sectors`](meta::Sectors) is the bounded one, and makes the same call again.
//!
//! To write its top file takes a [`Writer`](plan::Writer).
//!
//! Who lists, checks or makes files uses [`map`], [`check`] and [`create`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod adversary;
pub mod chain;
pub mod check;
pub mod create;
pub mod error;
pub mod format;
pub mod limits;
pub mod map;
pub mod meta;
pub mod plan;
pub mod resolve;
pub mod source;
pub mod types;

pub use chain::{Chain, File, Format};
pub use error::Error;
pub use format::header::{self, Header};
pub use meta::Tables;
