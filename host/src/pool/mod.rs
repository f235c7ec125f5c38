//! Which image the clones of a pool have, and how they come to another one.
//!
//! ```text
//! stable(g) ─stage─▶ staged ─switch─▶ rolling(g+1): canaries ─▶ 10 % ─▶ … ─▶ all ─▶ stable(g+1)
//!                      └─ abort            ├─ too many unhealthy ─┐
//!                                          └─ `pool rollback` ────┴▶ rolling(g+2, image of g)
//! ```
//!
//! The record of a pool is the switch: it is durable before the first member moves, and it says of
//! each member which of the two images is its own. Always true: a member has one of the two images
//! and nothing in between; it moves only when its guest has ended, so no guest ever sees its disk
//! become another one; which members a step takes follows from their names and the generation
//! alone. Deliberately absent: files, guests and clocks; [`crate::daemon`] has them.

mod follow;
pub mod members;
pub mod note;
pub mod order;
pub mod record;
pub mod rollout;
pub mod shared;
#[cfg(test)]
mod tests;

pub use order::{Asked, Prefetch};
pub use record::{Fault, Phase, Record, Records};
pub use rollout::{Fact, Next};

/// In names of volumes that pools have for themselves, and in no other name.
pub const INNER: char = ':';

/// Whether a volume is one that no client and no administrator knows.
pub fn is_inner(volume: &str) -> bool {
    volume.contains(INNER)
}
