//! Where a span of the guest's disk lies in a chain of files.
//!
//! Owns the walk from the top down: L1, L2, subclusters, the next file. Always true: parts come in
//! order, touch each other and begin where the span begins; a part that lies in a file lies inside
//! it; work is bounded by the units of the span times 64 files. A call keeps nothing: what it could
//! not see is `Missing`, and the same call is made again with that at hand. Deliberately absent:
//! reading, decompression, and the cache.
//!
//! Bytes behind the end of a file read as zeroes, tables too. A backing that is shorter than the
//! file above it is followed by zeroes, whatever lies below it; one that is longer is cut. Reserved
//! bits are masked; what no reader could agree on is [`Damage`].

use crate::chain::{Chain, File, Format};
use crate::format::be64;
use crate::format::entry::{self, Cluster, Compressed, L1, L2, Unit};
use crate::format::header::Header;
use crate::meta::Tables;
use crate::types::{FileIndex, Range, SECTOR_BYTES, Span};
use alloc::vec::Vec;

/// A table is read in aligned pieces of this size: one request, and what follows is near.
pub const TABLE_READ_BYTES: u64 = 64 << 10;

/// What a part of a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Zero,
    /// Lies in the file at this offset. The last sector of a file may be short: zeroes follow.
    Data {
        at: u64,
    },
    /// Has to be decompressed: one whole cluster, of which the part is some bytes.
    Compressed {
        from: Compressed,
        /// Where in the guest's disk the cluster begins.
        cluster_at: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub span: Span,
    /// The file that holds it, also as zeroes; `None` where no file does.
    pub file: Option<FileIndex>,
    pub content: Content,
}

/// A range of a file that has a table in it, to be read and given to the [`Tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    pub file: FileIndex,
    /// Whole sectors, at most [`TABLE_READ_BYTES`]; zeroes behind the end of the file.
    pub range: Range,
    /// The sector of it, from the start of the file, without which nothing goes on.
    pub wanted: u64,
}

/// An entry of a table that has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has at offset {entry_at:#x}, for guest offset {guest_at:#x}, {why}: {word:#018x}")]
pub struct Damage {
    pub file: FileIndex,
    /// Where in the file the entry is.
    pub entry_at: u64,
    pub guest_at: u64,
    pub word: u64,
    pub why: Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("an L2 table inside a cluster")]
    TableMisaligned,
    #[error("data inside a cluster")]
    DataMisaligned,
    #[error("a zero cluster, which version 2 does not have")]
    ZeroInVersion2,
    #[error("a bitmap of subclusters that contradicts itself")]
    Bitmap,
    #[error("compressed data behind the end of the file")]
    CompressedOutside,
    #[error("reserved bits")]
    Reserved,
    #[error("a place behind the end of the clusters that are counted")]
    Outside,
    #[error("a refcount block inside a cluster")]
    BlockMisaligned,
    #[error("a table where the file has another one")]
    TablesShared,
    #[error("data where the file has a table")]
    Table,
    #[error("a cluster that is used and not counted")]
    Uncounted,
    #[error("a cluster that it says is used once, and is counted otherwise")]
    Copied,
    #[error("a wrong snapshot")]
    Snapshot,
    #[error("a header of another image")]
    Header,
    #[error("no room for more clusters")]
    Full,
}

/// Why a call went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Missing(Missing),
    Damaged(Damage),
}

/// The parts of `span` into `parts`, which is emptied first. When it stops early, `parts` has what
/// lies before that place. What lies behind the end of the disk is zeroes.
pub fn resolve(
    chain: &Chain,
    span: Span,
    tables: &mut impl Tables,
    parts: &mut Vec<Part>,
) -> Result<(), Stop> {
    parts.clear();
    let mut at = span.at;
    while at < span.end() {
        let rest = Span {
            at,
            bytes: span.end() - at,
        };
        let part = part(chain, rest, tables)?;
        assert!(part.span.at == at && part.span.bytes > 0 && part.span.bytes <= rest.bytes);
        at = part.span.end();
        match parts.last_mut().filter(|last| continues(last, &part)) {
            Some(last) => last.span.bytes += part.span.bytes,
            None => parts.push(part),
        }
    }
    Ok(())
}

/// Whether `next` is more of the same as `last`.
pub(crate) fn continues(last: &Part, next: &Part) -> bool {
    if last.file != next.file || last.span.end() != next.span.at {
        return false;
    }
    match (last.content, next.content) {
        (Content::Data { at }, Content::Data { at: next }) => {
            at.checked_add(last.span.bytes) == Some(next)
        }
        (last, next) => last == next,
    }
}

/// What a file says of the beginning of a span.
struct Found {
    bytes: u64,
    /// `None`: what lies below counts.
    content: Option<Content>,
}

/// The first part of a span that is not empty.
fn part(chain: &Chain, span: Span, tables: &mut impl Tables) -> Result<Part, Stop> {
    let mut bytes = span.bytes;
    for (number, file) in chain.files().iter().enumerate() {
        let room = file.size_bytes().saturating_sub(span.at);
        // Nothing below a file that ends before is seen through it.
        if room == 0 {
            break;
        }
        let span = Span {
            bytes: bytes.min(room),
            ..span
        };
        let index = FileIndex(number as u8);
        let found = match &file.format {
            Format::Raw => raw(file, span),
            Format::Qcow2(header) => Walk {
                file,
                header,
                index,
            }
            .look(span, tables)?,
        };
        bytes = found.bytes;
        if let Some(content) = found.content {
            return Ok(Part {
                span: Span { bytes, ..span },
                file: Some(index),
                content,
            });
        }
    }
    Ok(Part {
        span: Span { bytes, ..span },
        file: None,
        content: Content::Zero,
    })
}

fn raw(file: &File, span: Span) -> Found {
    assert!(span.end() <= file.size_bytes());
    Found {
        bytes: span.bytes,
        content: Some(Content::Data { at: span.at }),
    }
}

/// The piece of a table that is read for the byte at `at`, which lies inside the file.
pub(crate) fn missing(file: FileIndex, table: Range, file_bytes: u64, at: u64) -> Missing {
    let piece = at / TABLE_READ_BYTES * TABLE_READ_BYTES;
    let start = piece.max(table.at);
    let end = table.end().min(piece + TABLE_READ_BYTES).min(file_bytes);
    let range = Range {
        at: start,
        bytes: (end - start).next_multiple_of(SECTOR_BYTES),
    };
    Missing {
        file,
        range,
        wanted: at / SECTOR_BYTES,
    }
}

/// One qcow2 file that is asked.
struct Walk<'a> {
    file: &'a File,
    header: &'a Header,
    index: FileIndex,
}

impl Walk<'_> {
    fn look(&self, span: Span, tables: &mut impl Tables) -> Result<Found, Stop> {
        let header = self.header;
        let table_span = header.table_span_bytes();
        let bytes = span.bytes.min(table_span - span.at % table_span);
        let nothing = Found {
            bytes,
            content: None,
        };
        let index = span.at / table_span;
        // A disk that is about to grow has more than its file has entries for.
        if index >= u64::from(header.l1_entries) {
            return Ok(nothing);
        }
        let l1_at = header.l1_at + index * 8;
        let l1 = L1(self.word(tables, header.l1(), l1_at)?);
        let table = Range {
            at: l1.table_at(),
            bytes: header.cluster_bytes(),
        };
        if table.at == 0 {
            return Ok(nothing);
        }
        if !table.at.is_multiple_of(header.cluster_bytes()) {
            return Err(self.damaged(l1_at, span.at, l1.0, Wrong::TableMisaligned));
        }
        let number = (span.at % table_span) >> header.cluster_bits;
        let entry_at = table.at + number * header.l2_entry_bytes();
        if entry_at >= self.file.file_bytes {
            return Ok(nothing);
        }
        let word = self.word(tables, table, entry_at)?;
        let bitmap = match header.is_extended() {
            true => self.word(tables, table, entry_at + 8)?,
            false => 0,
        };
        let entry = L2 {
            word,
            bitmap,
            extended: header.is_extended(),
        };
        self.cluster(entry, entry_at, span)
    }

    /// What an entry says of the part of the span that lies in its cluster.
    fn cluster(&self, entry: L2, entry_at: u64, span: Span) -> Result<Found, Stop> {
        let cluster_bytes = self.header.cluster_bytes();
        let within = span.at % cluster_bytes;
        let bytes = span.bytes.min(cluster_bytes - within);
        let cluster = entry.cluster(self.header.cluster_bits);
        let damaged = |why| Err(self.damaged(entry_at, span.at, entry.word, why));
        // QEMU ignores the bitmap of a compressed cluster when it reads.
        let compressed = matches!(cluster, Cluster::Compressed(_));
        if !compressed && entry.is_contradictory(cluster) {
            return damaged(Wrong::Bitmap);
        }
        let content = match cluster {
            Cluster::Compressed(from) if from.at >= self.file.file_bytes => {
                return damaged(Wrong::CompressedOutside);
            }
            Cluster::Compressed(from) => Some(Content::Compressed {
                from,
                cluster_at: span.at - within,
            }),
            Cluster::Zero(_) if self.header.version < 3 => return damaged(Wrong::ZeroInVersion2),
            Cluster::Zero(_) => Some(Content::Zero),
            Cluster::Data(at) if at % cluster_bytes != 0 => return damaged(Wrong::DataMisaligned),
            Cluster::Data(_) | Cluster::Unallocated if entry.extended => {
                return Ok(self.units(entry, cluster, Span { bytes, ..span }));
            }
            Cluster::Data(at) => return Ok(self.data(at + within, bytes)),
            Cluster::Unallocated => None,
        };
        Ok(Found { bytes, content })
    }

    /// The first run of subclusters that are alike. The span lies in one cluster.
    fn units(&self, entry: L2, cluster: Cluster, span: Span) -> Found {
        let unit_bytes = self.header.unit_bytes();
        let within = span.at % self.header.cluster_bytes();
        let first = within / unit_bytes;
        let last = (within + span.bytes - 1) / unit_bytes;
        assert!(last < entry::SUBCLUSTERS, "the span lies in one cluster");
        let unit = entry.unit(first as u32);
        let same = (first..=last).take_while(|it| entry.unit(*it as u32) == unit);
        let end = (first + same.count() as u64) * unit_bytes;
        let bytes = span.bytes.min(end - within);
        match (unit, cluster) {
            (Unit::Data, Cluster::Data(at)) => self.data(at + within, bytes),
            (Unit::Zero, _) => Found {
                bytes,
                content: Some(Content::Zero),
            },
            _ => Found {
                bytes,
                content: None,
            },
        }
    }

    /// Data at this place, or the zeroes behind the end of the file.
    fn data(&self, at: u64, bytes: u64) -> Found {
        let end = self
            .file
            .file_bytes
            .div_ceil(SECTOR_BYTES)
            .saturating_mul(SECTOR_BYTES);
        match end.saturating_sub(at) {
            0 => Found {
                bytes,
                content: Some(Content::Zero),
            },
            room => Found {
                bytes: bytes.min(room),
                content: Some(Content::Data { at }),
            },
        }
    }

    /// Eight bytes of a table.
    fn word(&self, tables: &mut impl Tables, table: Range, at: u64) -> Result<u64, Stop> {
        assert!(at.is_multiple_of(8) && at >= table.at && at < table.end());
        if at >= self.file.file_bytes {
            return Ok(0);
        }
        if let Some(sector) = tables.sector(self.file.id, at / SECTOR_BYTES) {
            return Ok(be64(sector, (at % SECTOR_BYTES) as usize));
        }
        Err(Stop::Missing(missing(
            self.index,
            table,
            self.file.file_bytes,
            at,
        )))
    }

    fn damaged(&self, entry_at: u64, guest_at: u64, word: u64, why: Wrong) -> Stop {
        Stop::Damaged(Damage {
            file: self.index,
            entry_at,
            guest_at,
            word,
            why,
        })
    }
}
