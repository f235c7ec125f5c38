//! Where the truth of a volume lies: its origin and what is kept beside it.
//!
//! Owns how an origin is named: a path, or the URL of an NBD export. Deliberately absent:
//! frontends, policies, and any cache.

pub mod beside;
pub mod chain;
pub mod clone;
pub mod compare;
pub mod content;
pub mod file;
pub mod inflate;
pub mod leaks;
pub mod mapped;
pub mod nbd;
pub mod pointer;
pub mod reopen;
pub mod san;
pub mod successor;
pub mod written;

use nbd::uri::Uri;
use std::path::{Path, PathBuf};

/// What an image is, as its user says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// By its first bytes.
    #[default]
    Auto,
    Raw,
    Qcow2,
}

/// An origin as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A raw image or block device.
    File(PathBuf),
    /// A raw image behind an NBD server.
    Nbd(Uri),
}

impl Place {
    /// What a name means; an error says what is wrong with an NBD URL.
    pub fn parse(name: &Path) -> Result<Place, String> {
        match name.to_str().filter(|text| Uri::claims(text)) {
            Some(text) => Ok(Place::Nbd(Uri::parse(text)?)),
            None => Ok(Place::File(name.to_path_buf())),
        }
    }
}
