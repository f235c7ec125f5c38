//! qcow2 files as a [`Map`]: from the tables of a chain to extents of its files.
//!
//! Always true: a table that is asked for lies in whole blocks of its file, so that it can be kept
//! among clean blocks. Deliberately absent: the format (crate `image`), and opening files.

use crate::origin::{Codec, Extent, FileIndex, Lies, Map, Missing, Packed, Resolved};
use crate::types::{BLOCK_BYTES, SECTOR_BYTES, Span, Uuid};
use ::image::header::Compression;
use ::image::meta::Sectors;
use ::image::resolve::{self, Content, Part, Stop, resolve};
use ::image::{Chain, types};
use alloc::vec::Vec;

/// A chain of files with the tables that were read of it.
#[derive(Debug)]
pub struct ChainMap {
    chain: Chain,
    tables: Sectors,
    names: Vec<Uuid>,
}

impl ChainMap {
    /// `names` are of its files, as [`Map::tables`] gives them.
    pub fn new(chain: Chain, names: Vec<Uuid>) -> ChainMap {
        assert_eq!(chain.files().len(), names.len(), "each file has a name");
        ChainMap {
            chain,
            // Its share is given when it is in use.
            tables: Sectors::new(0),
            names,
        }
    }

    fn extent(&self, part: &Part) -> Extent {
        let span = Span::new(
            part.span.at / SECTOR_BYTES,
            part.span.bytes.div_ceil(SECTOR_BYTES),
        );
        let Some(index) = part.file else {
            let lies = Lies::Nowhere;
            return Extent { span, lies };
        };
        let file = FileIndex(index.0);
        let lies = match part.content {
            Content::Zero => Lies::Nowhere,
            Content::Data { at } => Lies::At { file, offset: at },
            Content::Compressed { from, cluster_at } => {
                let header = self.chain.file(index).header();
                let header = header.expect("only qcow2 files have compressed clusters");
                Lies::Packed {
                    file,
                    offset: from.at,
                    packed: Packed {
                        codec: match header.compression {
                            Compression::Zlib => Codec::Deflate,
                            Compression::Zstd => Codec::Zstd,
                        },
                        packed_bytes: from.bytes as u32,
                        cluster_bytes: header.cluster_bytes() as u32,
                        skip: (part.span.at - cluster_at) as u32,
                    },
                }
            }
        };
        Extent { span, lies }
    }
}

/// The blocks of a file that have a range in them.
fn in_blocks(missing: resolve::Missing) -> Missing {
    let start = missing.range.at / BLOCK_BYTES * BLOCK_BYTES;
    let end = missing.range.end().next_multiple_of(BLOCK_BYTES);
    Missing {
        file: FileIndex(missing.file.0),
        offset: start,
        bytes: end - start,
        wanted: missing.wanted,
    }
}

impl Map for ChainMap {
    fn resolve(&mut self, span: Span) -> Resolved {
        let asked = types::Span {
            at: span.sector * SECTOR_BYTES,
            bytes: span.sectors * SECTOR_BYTES,
        };
        let mut parts = Vec::new();
        let done = resolve(&self.chain, asked, &mut self.tables, &mut parts);
        let extents = parts.iter().map(|part| self.extent(part));
        match done {
            Ok(()) => Resolved::Ready(extents.collect()),
            Err(Stop::Missing(missing)) => Resolved::Missing(extents.collect(), in_blocks(missing)),
            Err(Stop::Damaged(_)) => Resolved::Damaged,
        }
    }

    fn supply(&mut self, missing: Missing, bytes: &[u8]) {
        let id = self.chain.file(types::FileIndex(missing.file.0)).id;
        self.tables.fill(id, missing.offset, bytes, missing.wanted);
    }

    fn tables(&self) -> &[Uuid] {
        &self.names
    }

    fn bytes(&self) -> u64 {
        self.tables.bytes()
    }

    fn set_bytes_max(&mut self, bytes: u64) {
        self.tables.set_bytes_max(bytes);
    }
}
