//! The bytes of a guest's disk out of its chain of files, read one after the other.
//!
//! Always true: what is read is what QEMU would read from the same files. Deliberately absent: any
//! cache but that of tables and the cluster that was decompressed last; the shard serves guests.

use super::chain::{Link, Opened, name_of, read};
use super::inflate::inflate;
use crate::fault::{Fault, Kind};
use image::Tables;
use image::header::Compression;
use image::meta::{Sector, Sectors};
use image::resolve::{Content, Missing, Part, Stop, resolve};
use image::source::Source;
use image::types::{FileId, FileIndex, Span};

/// For the tables of all files of a chain.
const TABLES_BYTES_MAX: u64 = 16 << 20;

/// Tables that are read when they are wanted.
#[derive(Debug)]
pub struct Metadata {
    sectors: Sectors,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata {
            sectors: Sectors::new(TABLES_BYTES_MAX),
        }
    }
}

impl Metadata {
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

/// Reads a disk.
#[derive(Debug)]
pub struct Reader {
    pub image: Opened,
    metadata: Metadata,
    parts: Vec<Part>,
    /// The cluster that was decompressed last, and whose it is.
    cluster: Vec<u8>,
    holds: Option<(FileIndex, u64)>,
}

impl Reader {
    pub fn new(image: Opened) -> Reader {
        Reader {
            image,
            metadata: Metadata::default(),
            parts: Vec::new(),
            cluster: Vec::new(),
            holds: None,
        }
    }

    /// Any bytes of the disk; zeroes behind its end.
    pub fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Fault> {
        let span = Span {
            at,
            bytes: into.len() as u64,
        };
        let mut parts = std::mem::take(&mut self.parts);
        while let Err(stop) = resolve(&self.image.chain, span, &mut self.metadata, &mut parts) {
            self.metadata.meet(&self.image, stop)?;
        }
        let mut rest = into;
        for part in &parts {
            let (now, later) = rest.split_at_mut(part.span.bytes as usize);
            self.fetch(part, now)?;
            rest = later;
        }
        assert!(rest.is_empty(), "parts cover the span");
        self.parts = parts;
        Ok(())
    }

    fn fetch(&mut self, part: &Part, into: &mut [u8]) -> Result<(), Fault> {
        let Some(index) = part.file else {
            into.fill(0);
            return Ok(());
        };
        let link = &self.image.links[usize::from(index.0)];
        match part.content {
            Content::Zero => into.fill(0),
            Content::Data { at } => {
                let bytes = read(&link.target, &name_of(&link.path), at, into.len())?;
                into.copy_from_slice(&bytes);
            }
            Content::Compressed { from, cluster_at } => {
                if self.holds != Some((index, cluster_at)) {
                    let header = self.image.chain.file(index).header();
                    let (bits, how) = header.map_or((9, Compression::Zlib), |it| {
                        (it.cluster_bits, it.compression)
                    });
                    self.holds = None;
                    self.cluster.resize(1 << bits, 0);
                    let name = name_of(&link.path);
                    let bytes = read(&link.target, &name, from.at, from.bytes as usize)?;
                    inflate(how, &bytes, &mut self.cluster).map_err(|why| {
                        let at = from.at;
                        let message = format!(
                            "{name}: its compressed cluster at {at:#x} {why}; restore it from a \
                             backup"
                        );
                        Fault::new(Kind::Invalid, message)
                    })?;
                    self.holds = Some((index, cluster_at));
                }
                let skip = (part.span.at - cluster_at) as usize;
                into.copy_from_slice(&self.cluster[skip..skip + into.len()]);
            }
        }
        Ok(())
    }
}
