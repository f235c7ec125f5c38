//! The daemon's parts, as a library, so that tests and tools use the same ones.

pub mod frontend;
