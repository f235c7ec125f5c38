//! Blocking reads, for tools that go through a whole file.
//!
//! Owns the interface to the caller's file, and the two lists that lie in one: snapshots, and the
//! directory of bitmaps. Always true: lists are read entry by entry, within their limits.

use crate::error::Error;
use crate::format::header::Header;
use crate::format::snapshot::{self, Snapshot};
use crate::format::{be16, be32, be64};
use crate::limits;
use crate::types::Range;
use alloc::vec;
use alloc::vec::Vec;
use core::convert::Infallible;

/// A file that is read. What lies behind its end is zeroes.
pub trait Source {
    type Error;
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Self::Error>;
}

/// A file in memory.
impl Source for &[u8] {
    type Error = Infallible;

    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Infallible> {
        let at = at.min(self.len() as u64) as usize;
        let there = (self.len() - at).min(into.len());
        into[..there].copy_from_slice(&self[at..at + there]);
        into[there..].fill(0);
        Ok(())
    }
}

/// Why a list is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed<E> {
    Read(E),
    Format(Error),
}

/// Each snapshot in turn; gives the bytes of their table.
pub fn snapshots<S: Source>(
    header: &Header,
    source: &mut S,
    mut each: impl FnMut(Snapshot),
) -> Result<u64, Failed<S::Error>> {
    let mut at = header.snapshots_at;
    for number in 0..header.snapshots {
        let mut fixed = [0; snapshot::FIXED_BYTES];
        source.read(at, &mut fixed).map_err(Failed::Read)?;
        let mut bytes = vec![0; snapshot::bytes_wanted(&fixed)];
        source.read(at, &mut bytes).map_err(Failed::Read)?;
        let parsed = snapshot::parse(&bytes, header, number, at).map_err(Failed::Format)?;
        at += parsed.entry_bytes;
        if at - header.snapshots_at > limits::SNAPSHOT_TABLE_BYTES_MAX {
            return Err(Failed::Format(Error::TooLarge {
                what: "snapshot table",
                found: at - header.snapshots_at,
                most: limits::SNAPSHOT_TABLE_BYTES_MAX,
            }));
        }
        each(parsed);
    }
    Ok(at - header.snapshots_at)
}

/// The fixed part of an entry of the directory of bitmaps.
const BITMAP_BYTES: u64 = 24;

/// The table of each bitmap in turn.
pub fn bitmap_tables<S: Source>(
    header: &Header,
    source: &mut S,
    mut each: impl FnMut(&mut S, Range) -> Result<(), S::Error>,
) -> Result<(), Failed<S::Error>> {
    let Some(bitmaps) = header.bitmaps else {
        return Ok(());
    };
    let mut at = bitmaps.directory.at;
    let end = bitmaps.directory.end();
    for _ in 0..bitmaps.count {
        let place = at;
        let wrong = |what| Failed::Format(Error::Bitmap { at: place, what });
        let mut fixed = [0; BITMAP_BYTES as usize];
        source.read(at, &mut fixed).map_err(Failed::Read)?;
        let table = Range {
            at: be64(&fixed, 0),
            bytes: u64::from(be32(&fixed, 8)) * 8,
        };
        let entries_max = u64::from(limits::BITMAP_TABLE_ENTRIES_MAX);
        if table.at == 0 || !table.at.is_multiple_of(header.cluster_bytes()) {
            return Err(wrong("a table that begins inside a cluster"));
        }
        if table.bytes == 0 || table.bytes / 8 > entries_max {
            return Err(wrong("a table that is empty or too large"));
        }
        let more = u64::from(be16(&fixed, 18)) + u64::from(be32(&fixed, 20));
        at += (BITMAP_BYTES + more).next_multiple_of(8);
        if at > end {
            return Err(wrong("an entry behind the end of the directory"));
        }
        each(source, table).map_err(Failed::Read)?;
    }
    match at == end {
        true => Ok(()),
        false => Err(Failed::Format(Error::Bitmap {
            at,
            what: "a directory that is longer than its entries",
        })),
    }
}

/// All snapshots, within the limit of their table.
pub fn list_snapshots<S: Source>(
    header: &Header,
    source: &mut S,
) -> Result<Vec<Snapshot>, Failed<S::Error>> {
    let mut found = Vec::new();
    snapshots(header, source, |it| found.push(it))?;
    Ok(found)
}
