//! A guest's end of vhost-user-blk, without a guest: memory, rings, messages.
//!
//! Owns everything that QEMU and a guest would have of one disk. Always true: all that the back end
//! may touch lies in one memory file, which this process keeps when the back end dies, and with it
//! the in-flight region; a request is answered once; whoever is waited for too long is an error.
//! Benchmarks and drills drive disks with it, ours and those of other programs. Deliberately
//! absent: migration, changes of memory, and threads; a queue may be lent to one.
//!
//! ```text
//! connect -> negotiate -> rings run --stop--> where each ring stands
//!               ^           | the back end is gone
//!               +-reconnect-+ same memory, same rings, the in-flight region set back
//! ```

mod client;
mod memory;
mod queue;
mod session;

pub use client::Client;
pub use queue::{Ended, Queue, Request, Slot};

use std::io;
use std::path::PathBuf;
use std::time::Duration;
use vring::driver::DeviceError;
use vring::memory::Outside;

/// Queues of one disk.
pub const QUEUES_MAX: u16 = 16;
/// Requests in flight in one queue.
pub const SLOTS_MAX: u16 = 256;
/// Ranges of one request.
pub const RANGES_MAX: usize = 16;
/// Longer than any back end is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the answers of the back end are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Looks at the rings all the time, and wants no calls.
    Polling,
    /// Sleeps until the back end calls.
    Events,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub queues: u16,
    /// Requests in flight in each queue, a power of two.
    pub slots: u16,
    /// Payload of one request.
    pub slot_bytes: u32,
    pub wait: Wait,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queues: 1,
            slots: 32,
            slot_bytes: 64 << 10,
            wait: Wait::Events,
        }
    }
}

/// Why a disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{what} {value}; {right} is right")]
    Options {
        what: &'static str,
        value: u64,
        right: &'static str,
    },
    #[error("{path}: {source}", path = .path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("the back end does not offer {0}")]
    Lacks(&'static str),
    #[error("the back end has {has} queues, and {asked} were asked for")]
    Queues { asked: u16, has: u64 },
    #[error("the back end refuses {0}")]
    Refused(&'static str),
    #[error("the back end ends the connection at {0}")]
    Closed(&'static str),
    #[error("the back end does not answer to {0}")]
    Silent(&'static str),
    #[error("{message}: {source}")]
    Message {
        message: &'static str,
        source: vhost::Error,
    },
    #[error("the back end is gone")]
    Gone,
    #[error("the back end breaks a rule of the rings: {0}")]
    Device(#[from] DeviceError),
    #[error("the back end answers with status {0}")]
    Status(u8),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Outside> for ClientError {
    fn from(outside: Outside) -> ClientError {
        ClientError::Device(outside.into())
    }
}

pub type Result<T> = std::result::Result<T, ClientError>;

#[cfg(test)]
mod tests;
