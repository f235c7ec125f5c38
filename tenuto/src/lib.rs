//! The host side of the cache: devices, sockets, threads and commands around the engine.
//!
//! Owns everything that does I/O or knows the time. Deliberately absent: decisions about data,
//! which live in `engine`.

pub mod daemon;
