//! Traces played back: against the engine alone in virtual time, and against live volumes.
//!
//! Owns both ways and what they share. Always true: the engine is the one that the daemon runs,
//! with every step that the shard takes for a request; a request is sent at its time in the trace
//! whether earlier ones are answered or not. Deliberately absent: the formats of traces, which
//! are in the crate `workload`, and the arguments of the commands.

pub mod blank;
pub mod kept;
pub mod live;
pub mod machine;
pub mod memory;
pub mod offline;
pub mod tally;
pub mod watch;
pub mod wire;
