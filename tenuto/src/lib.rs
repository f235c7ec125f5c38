//! The host side of the cache: devices, sockets, threads and commands around the engine.
//!
//! Owns everything that does I/O or knows the time. Deliberately absent: decisions about data,
//! which live in `engine`.

pub mod admin;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod error;
pub mod inspect;
