//! Where the bytes of an image at rest come from.
//!
//! Owns their reading, for a thread that may wait. Always true: an image is read through all of its
//! files, with the length and the header that they have in the window; each reader has its own
//! tables and, of an origin behind NBD, its own connection. Deliberately absent: whether the window
//! is still open afterwards (`serve`).

use crate::frontend::nbd::{Extent, ExtentState};
use crate::origin::chain::{Link, chain_of};
use crate::origin::compare::View;
use crate::origin::nbd::client::Client;
use crate::origin::nbd::uri::Uri;

/// Of so much of the disk tables are looked at for one answer.
const LOOK_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub enum Source {
    /// The files of an image, from the top down.
    Image(Vec<Link>),
    Nbd(Uri),
}

pub enum Reader {
    Image(Box<View>),
    Nbd(Box<Client>),
}

impl Source {
    pub fn open(&self) -> Result<Reader, String> {
        match self {
            Source::Image(links) => {
                let opened = chain_of(links.clone()).map_err(|fault| fault.to_string())?;
                Ok(Reader::Image(Box::new(View::new(opened))))
            }
            Source::Nbd(uri) => Ok(Reader::Nbd(Box::new(Client::connect(uri)?))),
        }
    }
}

impl Reader {
    pub fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), String> {
        match self {
            Reader::Image(view) => view.read(at, into).map_err(|fault| fault.to_string()),
            Reader::Nbd(client) => client
                .read(at, into)
                .map_err(|error| format!("{} bytes at {at:#x}: {error:?}", into.len())),
        }
    }

    /// What is allocated from a place on, in at most so many extents.
    pub fn extents(&mut self, at: u64, bytes: u64, most: usize) -> Result<Vec<Extent>, String> {
        let bytes = bytes.min(LOOK_BYTES);
        let all_data = Extent {
            length: bytes,
            state: ExtentState::Data,
        };
        let Reader::Image(view) = self else {
            return Ok(vec![all_data]);
        };
        let mut extents: Vec<Extent> = Vec::new();
        let zeroes = view.zeroes(at, bytes).map_err(|fault| fault.to_string())?;
        for (length, zero) in zeroes {
            let state = match zero {
                true => ExtentState::Hole,
                false => ExtentState::Data,
            };
            let full = extents.len() == most;
            match extents.last_mut() {
                Some(last) if last.state == state => last.length += length,
                _ if full => break,
                _ => extents.push(Extent { length, state }),
            }
        }
        Ok(extents)
    }
}
