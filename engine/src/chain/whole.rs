//! Where lines of the disk lie, of those that lie in one piece in one file.
//!
//! ```text
//! a read of a block ─▶ its line is known ─────────────▶ the place, without a table
//!                  └─▶ else by the tables ─▶ the whole line is asked for once ─▶ known
//! ```
//!
//! A chain of any depth costs one look for a line that was read before. Always true: what is known
//! of a line is what the tables say of it, until the file that is written changes; then all is
//! forgotten. One place is for many lines, and the last one has it. Deliberately absent: lines in
//! more than one piece, compressed ones and zeroes, which the tables tell.

use crate::origin::{Extent, FileIndex, Lies};
use crate::types::{SECTOR_BYTES, Span};
use alloc::vec::Vec;

/// Sectors of a line.
const LINE_SECTORS: u64 = 128;
/// 512 MiB of a disk, in 128 KiB of memory.
const PLACES_MAX: usize = 8192;
/// Of the memory for tables this part is for lines.
const SHARE: u64 = 16;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Place {
    line: u32,
    file: FileIndex,
    /// Where the line begins in the file.
    offset: u64,
}

const _: () = assert!(size_of::<Place>() == 16);

/// The lines that are known.
#[derive(Debug, Default)]
pub(super) struct WholeLines {
    /// Made when the first line is known; a power of two.
    places: Vec<Place>,
    places_max: usize,
}

impl WholeLines {
    /// How much memory all tables together may take.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        let places = (bytes_max / SHARE) as usize / size_of::<Place>();
        let before = core::mem::replace(&mut self.places_max, places.min(PLACES_MAX));
        if before != self.places_max {
            self.forget();
        }
    }

    pub fn bytes(&self) -> u64 {
        (self.places.len() * size_of::<Place>()) as u64
    }

    /// The file that is written has changed.
    pub fn forget(&mut self) {
        self.places = Vec::new();
    }

    /// The line that all of a span lies in, as far as the disk goes.
    pub fn line_of(span: Span, disk_sectors: u64) -> Option<Span> {
        let first = span.sector / LINE_SECTORS * LINE_SECTORS;
        let line = Span::new(first, LINE_SECTORS.min(disk_sectors.checked_sub(first)?));
        let fits = span.end() <= line.end() && first / LINE_SECTORS < u64::from(NONE);
        fits.then_some(line)
    }

    /// Where a part of this line lies.
    pub fn find(&self, line: Span, span: Span) -> Option<Extent> {
        let number = (line.sector / LINE_SECTORS) as u32;
        let place = self.places.get(self.slot(number)?)?;
        let offset = place.offset + (span.sector - line.sector) * SECTOR_BYTES;
        let file = place.file;
        let lies = Lies::At { file, offset };
        (place.line == number).then_some(Extent { span, lies })
    }

    /// Keeps what the tables say of a line, if it lies in one piece.
    pub fn keep(&mut self, line: Span, extents: &[Extent]) {
        let [
            Extent {
                span,
                lies: Lies::At { file, offset },
            },
        ] = *extents
        else {
            return;
        };
        assert_eq!(span, line, "all of it was asked for");
        if self.places.is_empty() && self.places_max > 0 {
            let none = Place {
                line: NONE,
                file: FileIndex::TOP,
                offset: 0,
            };
            // The largest power of two that there is room for.
            self.places = alloc::vec![none; 1 << self.places_max.ilog2()];
        }
        let number = (line.sector / LINE_SECTORS) as u32;
        if let Some(slot) = self.slot(number) {
            self.places[slot] = Place {
                line: number,
                file,
                offset,
            };
        }
    }

    /// Neighbours have places beside each other.
    fn slot(&self, line: u32) -> Option<usize> {
        let last = self.places.len().checked_sub(1)?;
        assert!(self.places.len().is_power_of_two());
        Some(line as usize & last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: u64 = 1 << 20;

    fn lies(file: u8, offset: u64) -> Lies {
        let file = FileIndex(file);
        Lies::At { file, offset }
    }

    #[test]
    fn a_line_is_known_until_the_file_changes_or_another_one_has_its_place() {
        let mut lines = WholeLines::default();
        let span = Span::new(128 * 5 + 8, 8);
        let line = WholeLines::line_of(span, DISK).expect("it lies in one");
        assert_eq!(line, Span::new(640, 128));
        let whole = |line| {
            [Extent {
                span: line,
                lies: lies(1, 1 << 20),
            }]
        };
        lines.keep(line, &whole(line));
        assert_eq!(
            (lines.find(line, span), lines.bytes()),
            (None, 0),
            "no room"
        );
        lines.set_bytes_max(16 * 16 * 100);
        lines.keep(line, &whole(line));
        assert_eq!(lines.bytes(), 64 * 16);
        let there = Extent {
            span,
            lies: lies(1, (1 << 20) + 4096),
        };
        assert_eq!(lines.find(line, span), Some(there));
        let other = Span::new(line.sector + 64 * 128, 128);
        assert_eq!(lines.find(other, other), None);
        lines.keep(other, &whole(other));
        assert_eq!(lines.find(line, span), None);
        lines.keep(line, &whole(line));
        lines.forget();
        assert_eq!((lines.find(line, span), lines.bytes()), (None, 0));
    }

    #[test]
    fn what_is_not_in_one_piece_is_left_to_the_tables() {
        let mut lines = WholeLines::default();
        lines.set_bytes_max(1 << 20);
        let line = Span::new(0, 128);
        let half = |sector, lies| Extent {
            span: Span::new(sector, 64),
            lies,
        };
        lines.keep(line, &[half(0, lies(0, 0)), half(64, lies(1, 32 << 10))]);
        lines.keep(
            line,
            &[Extent {
                span: line,
                lies: Lies::Nowhere,
            }],
        );
        assert_eq!((lines.find(line, line), lines.bytes()), (None, 0));
        // Spans of two lines are in none; the last line ends with the disk.
        assert_eq!(WholeLines::line_of(Span::new(120, 16), DISK), None);
        let last = WholeLines::line_of(Span::new(130, 8), 150);
        assert_eq!(last, Some(Span::new(128, 22)));
        assert_eq!(WholeLines::line_of(Span::new(130, 30), 150), None);
    }
}
