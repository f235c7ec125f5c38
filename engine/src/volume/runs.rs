//! What an epoch is cut into on its way to the origin.
//!
//! Always true: a run is one range, of data or of zeroes, in the order of sectors; it ends where
//! the next extent does not touch it, or is of the other kind, or does not fit.

use crate::format::record::EntryKind;
use crate::map::{Content, ExtentMap};
use crate::types::{BLOCK_BYTES, LogAddr, SECTOR_BYTES, Span};
use alloc::vec::Vec;

/// Sectors that one request zeroes at the origin.
const ZERO_SECTORS_MAX: u64 = 1 << 21;

/// Neighbouring extents that make one request.
pub(crate) struct Run {
    pub span: Span,
    pub kind: EntryKind,
    /// Where its data lies in the log, and how many sectors of it.
    pub parts: Vec<(LogAddr, u64)>,
}

impl Run {
    /// The beginning of a run of data.
    pub fn up_to(mut self, sectors: u64) -> Run {
        self.span.sectors = self.span.sectors.min(sectors);
        let mut left = self.span.sectors;
        self.parts.retain_mut(|(_, sectors)| {
            *sectors = left.min(*sectors);
            left -= *sectors;
            *sectors > 0
        });
        assert!(
            left == 0 || self.kind != EntryKind::Write,
            "the parts make up the range"
        );
        self
    }
}

/// Upper bound of the entries of one journal: long zero extents are cut, and so is the run that
/// fills a piece, each range of which begins with a block.
pub(crate) fn journal_entries_max(map: &ExtentMap, piece_bytes: u64) -> usize {
    let zeroes = map.sectors() / ZERO_SECTORS_MAX;
    let padded = map.sectors() * SECTOR_BYTES + map.len() * BLOCK_BYTES;
    (map.len() + zeroes + padded / piece_bytes + 2) as usize
}

/// The next request from `cursor` on: neighbouring data up to `bytes_max`, or one zero range.
pub(crate) fn next_run(map: &ExtentMap, cursor: u64, bytes_max: u64) -> Option<Run> {
    let mut pieces = map.pieces_from(cursor);
    let first = pieces.next()?;
    let skipped = cursor.saturating_sub(first.span.sector);
    let sector = first.span.sector + skipped;
    assert!(skipped < first.span.sectors, "what is found ends behind");
    let sectors = first.span.sectors - skipped;
    let Content::Data(addr) = first.content.advance(skipped) else {
        let Content::Zero { allocate, .. } = first.content else {
            unreachable!()
        };
        let span = Span::new(sector, sectors.min(ZERO_SECTORS_MAX));
        return Some(Run {
            span,
            kind: EntryKind::Zero { allocate },
            parts: Vec::new(),
        });
    };
    let mut run = Run {
        span: Span::new(sector, sectors),
        kind: EntryKind::Write,
        parts: alloc::vec![(addr, sectors)],
    };
    assert!(
        sectors * SECTOR_BYTES <= bytes_max,
        "an extent fits a piece"
    );
    for next in pieces {
        let Content::Data(addr) = next.content else {
            break;
        };
        let grown = (run.span.sectors + next.span.sectors) * SECTOR_BYTES;
        if next.span.sector != run.span.end() || grown > bytes_max {
            break;
        }
        run.parts.push((addr, next.span.sectors));
        run.span.sectors += next.span.sectors;
    }
    Some(run)
}
