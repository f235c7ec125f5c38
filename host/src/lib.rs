//! The host side of the cache: devices, sockets, threads and commands around the engine.
//!
//! Owns everything that serves a volume, does I/O or knows the time, and the commands of the
//! product. Deliberately absent: decisions about data, which live in `engine`, and what measures or
//! demonstrates, which is in `lab`.

pub mod admin;
pub mod advise;
pub mod backup;
pub mod blockdev;
pub mod buffer;
pub mod cachedev;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod daemon;
pub mod drill;
pub mod error;
pub mod fault;
pub mod files;
pub mod frontend;
pub mod inspect;
pub mod latency;
pub mod lent;
pub mod limit;
pub mod lock;
pub mod marks;
pub mod natural;
pub mod nbd;
pub mod nbdlink;
pub mod origin;
pub mod peer;
pub mod pool;
pub mod qmp;
pub mod ring;
pub mod shard;
pub mod signature;
pub mod stage;
pub mod sys;
pub mod target;
pub mod tls;
pub mod ublk;
pub mod unit;
pub mod vault;
pub mod waiting;
