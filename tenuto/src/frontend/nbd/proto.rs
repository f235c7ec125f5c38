//! The words of the NBD protocol: magic numbers, options, commands, flags, limits.
//!
//! Always true: this is the only place that spells a number of the protocol. Deliberately absent:
//! what the numbers mean for a session.

/// Server's first words: fixed newstyle, and no padding after the old way to attach.
pub const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\x00\x03";
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
pub const BLOCK_PREFERRED_BYTES: u32 = 4096;
