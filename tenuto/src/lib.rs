//! The host side of the cache: devices, sockets, threads and commands around the engine.
//!
//! Owns everything that does I/O or knows the time. Deliberately absent: decisions about data,
//! which live in `engine`.

pub mod admin;
pub mod bench;
pub mod buffer;
pub mod cachedev;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod demo;
pub mod drill;
pub mod error;
pub mod fault;
pub mod files;
pub mod frontend;
pub mod inspect;
pub mod latency;
pub mod lent;
pub mod lock;
pub mod marks;
pub mod nbd;
pub mod origin;
pub mod peer;
pub mod plot;
pub mod qmp;
pub mod replay;
pub mod ring;
pub mod shard;
pub mod signature;
pub mod stage;
pub mod sys;
pub mod target;
pub mod vhost_client;
