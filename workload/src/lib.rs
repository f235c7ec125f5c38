//! Data that knows where it belongs, the check that nothing of it was lost, and traces of disks.
//!
//! Owns stamped sectors, the model of one volume against which a crash is judged, the formats of
//! block traces, a copy-on-write disk stacked on a cache, and the one generator of chance. Always
//! true: no clock and no entropy, so the simulator, the drills on the real binary and a replay of
//! their seeds judge alike. Deliberately absent: files; the caller brings the bytes.
#![forbid(unsafe_code)]

pub mod check;
pub mod rng;
pub mod stacked;
pub mod stamp;
pub mod synth;
pub mod trace;
mod violation;
