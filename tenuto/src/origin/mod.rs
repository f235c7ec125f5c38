//! Where the truth of a volume lies: its origin and what is kept beside it.
//!
//! Deliberately absent: frontends, policies, and any cache.

pub mod file;
pub mod san;
