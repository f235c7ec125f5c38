//! Clean blocks: whose they are, which of them go to the cache device, how they are found there.
//!
//! Always true: a block is of one layer, and found under no other. Deliberately absent: reads and
//! fills, which bring the blocks (`core::read`, `core::fill`), and the tier itself
//! ([`crate::ram`]), which each verb is given.

pub mod layers;
pub mod lines;
pub mod remote;
pub mod serve;

pub use layers::is_base;
pub use lines::{FoundFill, Lines, segments_max};
