//! The host around the engine: files, memory, threads, sockets.
//!
//! Owns everything the engine asks for and may not touch itself. Always true: no decision about
//! what is acknowledged, logged or destaged is taken here.

pub mod buffer;
pub mod cachedev;
pub mod fault;
pub mod files;
pub mod lock;
pub mod marks;
pub mod origin;
pub mod signature;
pub mod stage;
pub mod sys;
pub mod target;
