//! The host around the engine: files, memory, threads, sockets.
//!
//! Owns everything the engine asks for and may not touch itself. Always true: no decision about
//! what is acknowledged, logged or destaged is taken here.

//! The daemon's parts, as a library, so that tests and tools use the same ones.

pub mod buffer;
pub mod cachedev;
pub mod fault;
pub mod files;
pub mod frontend;
pub mod lock;
pub mod marks;
pub mod origin;
pub mod signature;
pub mod stage;
pub mod sys;
pub mod target;
