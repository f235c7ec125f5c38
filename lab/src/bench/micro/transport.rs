//! How the requests of a run reach whoever serves them.
//!
//! Always true: a client is driven by one thread, whatever it speaks; room is made for the deepest
//! of all depths, so that a disk is connected to once.

use super::Options;
use crate::bench::pipe::Pipe;
use crate::bench::rings::Rings;
use crate::bench::work::Carrier;
use crate::bench::{null, null_rings};
use crate::vhost_client::Wait;
use std::io;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Nbd { connections: usize },
    VhostUser { queues: u16, wait: Wait },
}

impl Transport {
    /// To a volume: `nbd` is the socket of all exports, `rings` that of the volume.
    pub fn connect(
        self,
        options: &Options,
        (nbd, export): (&Path, &str),
        rings: &Path,
    ) -> io::Result<Box<dyn Carrier>> {
        Ok(match self {
            Transport::Nbd { connections } => Box::new(Pipe::connect(nbd, export, connections)?),
            Transport::VhostUser { queues, wait } => {
                Box::new(Rings::connect(rings, queues, options.deepest(), wait)?)
            }
        })
    }

    /// To a server that does nothing.
    pub fn null(self, options: &Options) -> io::Result<Box<dyn Carrier>> {
        Ok(match self {
            Transport::Nbd { connections } => Box::new(null::connect(connections)?),
            Transport::VhostUser { queues, wait } => {
                Box::new(null_rings::connect(queues, options.deepest(), wait)?)
            }
        })
    }

    pub fn text(self) -> String {
        match self {
            Transport::Nbd { connections } => {
                format!("NBD over UNIX sockets, {connections} connection(s)")
            }
            Transport::VhostUser { queues, wait } => {
                let wait = match wait {
                    Wait::Polling => "polling",
                    Wait::Events => "event-driven",
                };
                format!("vhost-user, {queues} queue(s), {wait}")
            }
        }
    }
}

impl Options {
    /// Requests in flight at most, in any row.
    pub fn deepest(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(1)
    }
}
