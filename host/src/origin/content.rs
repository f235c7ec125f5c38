//! Tables of images, read where a thread may wait for them: for tools, and for questions about
//! what a disk holds.
//!
//! Always true: they take no more RAM than they were given. Deliberately absent: the reads of
//! guests, for which the shard asks.

use super::chain::{Link, Opened, name_of, read};
use crate::fault::{Fault, Kind};
use image::Tables;
use image::meta::{Sector, Sectors};
use image::resolve::{Missing, Stop};
use image::source::Source;
use image::types::FileId;

/// For the tables of all files of a chain.
const TABLES_BYTES_MAX: u64 = 16 << 20;

/// Tables that are read when they are wanted.
#[derive(Debug)]
pub struct Metadata {
    sectors: Sectors,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata::new(TABLES_BYTES_MAX)
    }
}

impl Metadata {
    pub fn new(bytes_max: u64) -> Metadata {
        Metadata {
            sectors: Sectors::new(bytes_max),
        }
    }

    /// Reads what was missing, or says what is damaged.
    pub fn meet(&mut self, image: &Opened, stop: Stop) -> Result<(), Fault> {
        match stop {
            Stop::Missing(missing) => self.fill(image, missing),
            Stop::Damaged(damage) => {
                let link = &image.links[usize::from(damage.file.0)];
                let name = name_of(&link.path);
                let message = format!("{name}: {damage}; restore it from a backup");
                Err(Fault::new(Kind::Invalid, message))
            }
        }
    }

    fn fill(&mut self, image: &Opened, missing: Missing) -> Result<(), Fault> {
        let link = &image.links[usize::from(missing.file.0)];
        let (name, range) = (name_of(&link.path), missing.range);
        let bytes = read(&link.target, &name, range.at, range.bytes as usize)?;
        let id = image.chain.file(missing.file).id;
        self.sectors.fill(id, range.at, &bytes, missing.wanted);
        Ok(())
    }
}

impl Tables for Metadata {
    fn sector(&mut self, file: FileId, sector: u64) -> Option<&Sector> {
        self.sectors.sector(file, sector)
    }
}

/// One file, for tools that go through all of it.
#[derive(Debug)]
pub struct FileSource<'a> {
    link: &'a Link,
}

impl FileSource<'_> {
    pub fn new(link: &Link) -> FileSource<'_> {
        FileSource { link }
    }
}

impl Source for FileSource<'_> {
    type Error = Fault;

    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Fault> {
        let target = &self.link.target;
        // A wrong table may name offsets that no file has.
        let there = target.size_bytes.saturating_sub(at).min(into.len() as u64) as usize;
        let (there, behind) = into.split_at_mut(there);
        behind.fill(0);
        if !there.is_empty() {
            there.copy_from_slice(&read(target, &name_of(&self.link.path), at, there.len())?);
        }
        Ok(())
    }
}
