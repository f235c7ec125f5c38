//! All of a disk, run by run: which file holds it, where, and as what.
//!
//! Always true: runs come in order, cover the disk once, and two that follow each other differ. The
//! memory is that of one window's parts. Deliberately absent: reading; a walk that misses a table
//! says so and goes on where it was.

use crate::chain::Chain;
use crate::meta::Tables;
use crate::resolve::{Part, Stop, continues, resolve};
use crate::types::Span;
use alloc::vec::Vec;

/// So much is resolved at a time: 131,072 parts if each sector is one of its own.
const WINDOW_BYTES: u64 = 64 << 20;

/// A walk over a disk.
#[derive(Debug, Default)]
pub struct Walk {
    at: u64,
    parts: Vec<Part>,
    last: Option<Part>,
}

impl Walk {
    /// Goes on until the end of the disk, and gives each run to `each`. After `Missing` it is
    /// called again with what was missing, and goes on.
    pub fn go(
        &mut self,
        chain: &Chain,
        tables: &mut impl Tables,
        mut each: impl FnMut(Part),
    ) -> Result<(), Stop> {
        while self.at < chain.size_bytes() {
            let span = Span {
                at: self.at,
                bytes: WINDOW_BYTES.min(chain.size_bytes() - self.at),
            };
            let done = resolve(chain, span, tables, &mut self.parts);
            for part in self.parts.drain(..) {
                self.at = part.span.end();
                match self.last.as_mut().filter(|last| continues(last, &part)) {
                    Some(last) => last.span.bytes += part.span.bytes,
                    None => self.last.replace(part).into_iter().for_each(&mut each),
                }
            }
            done?;
        }
        self.last.take().into_iter().for_each(each);
        Ok(())
    }
}
