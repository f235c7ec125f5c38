//! What is measured of clones, and how much of it.
//!
//! Deliberately absent: which values are allowed, and what follows from them.

use std::path::PathBuf;

/// By so much of raw a clone may be slower.
pub const RATIO_WANTED: f64 = 0.02;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Requests,
    Destage,
    Guard,
    Index,
}

impl Part {
    pub const ALL: [Part; 4] = [Part::Requests, Part::Destage, Part::Guard, Part::Index];

    /// As it is called in options.
    pub fn key(self) -> &'static str {
        match self {
            Part::Requests => "requests",
            Part::Destage => "destage",
            Part::Guard => "guard",
            Part::Index => "index",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub parts: Vec<Part>,
    pub rounds: u32,
    pub seconds: f64,
    pub depths: Vec<usize>,
    pub cache_bytes: u64,
    /// Content of the raw image and of the base.
    pub data_bytes: u64,
    pub destages: u32,
    /// Before each destage.
    pub writes: u64,
    pub desktop_seconds: f64,
    /// Times of the desktop are divided by it.
    pub scale: f64,
    /// Size of the cache that is filled.
    pub fill_bytes: u64,
    pub seed: u64,
    pub directory: PathBuf,
}

impl Options {
    pub fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}
