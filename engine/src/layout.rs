//! What lies where in a volume, without a byte of it: for clients that ask which ranges hold data.
//!
//! Always true: parts follow one another without a gap from the first sector asked for, neighbours
//! differ, and each tells what the newest epoch that covers it holds; a range that no epoch covers
//! is the origin's. The work of one call is bounded, so an answer may end before the range does,
//! but never before its first part. Deliberately absent: what the origin holds; only it knows.

use crate::map::{Content, ExtentMap};
use crate::types::Span;
use alloc::vec::Vec;

/// Extents that one call looks at; some 200 µs of the shard where dirty data is scattered.
const STEPS_MAX: usize = 1024;

/// What a range of sectors holds, as far as this host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Data,
    /// Reads as zeroes; `allocate` as the guest asked when it wrote them.
    Zero {
        allocate: bool,
    },
    /// Whatever the origin has there.
    Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub span: Span,
    pub holds: Holds,
}

/// Splits `span` into at most `parts_max` parts. `maps` are those of the epochs, newest first.
pub fn layout<'a>(
    maps: impl Iterator<Item = &'a ExtentMap> + Clone,
    span: Span,
    parts_max: usize,
) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut from = span.sector;
    for _ in 0..STEPS_MAX {
        if from == span.end() {
            break;
        }
        let (content, end) = next(maps.clone(), from, span.end());
        let holds = match content {
            Some(Content::Data(_)) => Holds::Data,
            Some(Content::Zero { allocate, .. }) => Holds::Zero { allocate },
            None => Holds::Origin,
        };
        let full = parts.len() == parts_max;
        match parts.last_mut() {
            Some(last) if last.holds == holds => last.span.sectors += end - from,
            _ if full => break,
            _ => parts.push(Part {
                span: Span::new(from, end - from),
                holds,
            }),
        }
        from = end;
    }
    debug_assert!(
        parts.is_sorted_by(|a, b| a.span.end() == b.span.sector && a.holds != b.holds),
        "parts follow one another, and neighbours differ"
    );
    parts
}

/// Calls data what only the origin knows, where it may not be asked.
pub fn assume_data(parts: &mut Vec<Part>) {
    for part in parts.iter_mut().filter(|it| it.holds == Holds::Origin) {
        part.holds = Holds::Data;
    }
    parts.dedup_by(|next, before| {
        let joins = next.holds == before.holds;
        before.span.sectors += if joins { next.span.sectors } else { 0 };
        joins
    });
}

/// The newest content at `from`, and up to where nothing newer begins.
pub(crate) fn next<'a>(
    maps: impl Iterator<Item = &'a ExtentMap>,
    from: u64,
    end: u64,
) -> (Option<Content>, u64) {
    assert!(from < end, "a range has sectors");
    let mut end = end;
    for map in maps {
        let Some(piece) = map.at_or_after(from) else {
            continue;
        };
        if piece.span.sector <= from {
            return (Some(piece.content), end.min(piece.span.end()));
        }
        end = end.min(piece.span.sector);
        assert!(from < end, "each step goes on");
    }
    (None, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Piece;
    use crate::types::LogAddr;
    use workload::rng::Rng;

    #[test]
    fn the_newest_epoch_decides_sector_by_sector() {
        let mut rng = Rng::new(5);
        for round in 0..200 {
            let mut maps: Vec<ExtentMap> = (0..3).map(|_| ExtentMap::new()).collect();
            // Newest first, as the call wants it: the first map that covers a sector counts.
            let mut expected = [[None; 400]; 3];
            for write in 0..60 {
                let at = rng.below(3) as usize;
                let span = Span::new(rng.below(360), 1 + rng.below(40));
                let header = LogAddr(write * 64);
                let (content, holds) = match rng.below(4) {
                    0 => (
                        Content::Zero {
                            header,
                            allocate: true,
                        },
                        Holds::Zero { allocate: true },
                    ),
                    1 => (
                        Content::Zero {
                            header,
                            allocate: false,
                        },
                        Holds::Zero { allocate: false },
                    ),
                    _ => (Content::Data(header), Holds::Data),
                };
                maps[at].insert(Piece { span, content }, &mut |_| {});
                for sector in span.sector..span.end() {
                    expected[at][sector as usize] = Some(holds);
                }
            }
            let asked = Span::new(rng.below(100), 1 + rng.below(300));
            let parts_max = 1 + (round % 20) as usize;
            let parts = layout(maps.iter(), asked, parts_max);
            assert!(!parts.is_empty() && parts.len() <= parts_max);
            let mut at = asked.sector;
            for (n, part) in parts.iter().enumerate() {
                assert_eq!(part.span.sector, at, "no gap");
                assert!(
                    n == 0 || parts[n - 1].holds != part.holds,
                    "neighbours differ"
                );
                for sector in part.span.sector..part.span.end() {
                    let newest = expected.iter().find_map(|map| map[sector as usize]);
                    assert_eq!(part.holds, newest.unwrap_or(Holds::Origin), "{sector}");
                }
                at = part.span.end();
            }
            assert!(at == asked.end() || parts.len() == parts_max);
        }
    }

    #[test]
    fn an_answer_over_very_many_extents_is_cut_short() {
        let mut map = ExtentMap::new();
        for n in 0..10_000u64 {
            let content = Content::Data(LogAddr(n * 64));
            let span = Span::new(n * 8, 8);
            map.insert(Piece { span, content }, &mut |_| {});
        }
        let parts = layout([&map].into_iter(), Span::new(0, 80_000), 16);
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].span, Span::new(0, 8 * STEPS_MAX as u64));
    }
}
