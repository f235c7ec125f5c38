//! Data that knows where it belongs, and the check that nothing of it was lost.
//!
//! Owns stamped sectors and the model of one volume against which a crash is judged. Always true:
//! no dependency, no clock, no randomness, so the simulator, the drills on the real binary and a
//! replay of their seeds judge alike. Deliberately absent: anything that does input or output;
//! the caller brings the bytes.
#![forbid(unsafe_code)]

pub mod check;
pub mod stamp;
mod violation;
