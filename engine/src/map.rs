//! The extent map: which sectors of a volume lie where in the log.
//!
//! Extents are packed into 16 bytes and live in sorted leaves that are split by count. Always
//! true: extents do not overlap, none is empty, leaves are never empty, and `firsts[n]` is the
//! first sector of leaf `n`. Leaves of up to 128 extents keep an insert inside two cache lines of
//! moves and cost about 18 bytes per extent; hashed buckets of 1 MiB were tried and cost 71 bytes
//! on a sparse terabyte. Deliberately absent: what an extent is worth; the caller hears of each
//! one that goes through `gone`.

use crate::types::{LogAddr, Span};
use alloc::vec::Vec;

const LEAF_EXTENTS_MAX: usize = 128;
/// Leaves grow by this many extents, so that half-full ones waste little.
const LEAF_GROWTH: usize = 16;
/// Largest number of sectors in one extent; longer ranges are cut.
pub const EXTENT_SECTORS_MAX: u64 = u32::MAX as u64;

/// What a range of sectors holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Payload in the log, from this position on.
    Data(LogAddr),
    /// Zeroes; the position is the header block of the record that says so.
    Zero { header: LogAddr, allocate: bool },
}

impl Content {
    /// The content `sectors` further on.
    pub fn advance(self, sectors: u64) -> Content {
        match self {
            Content::Data(addr) => Content::Data(addr.plus(sectors)),
            zero => zero,
        }
    }

    /// Position in the log that keeps this content alive.
    pub fn addr(self) -> LogAddr {
        match self {
            Content::Data(addr) | Content::Zero { header: addr, .. } => addr,
        }
    }

    /// Blocks of the log that this content of `span` keeps alive, or needs where it is moved to; at
    /// most. Inline payload lies within one block, and may be given those of its place in the
    /// volume.
    pub fn charge(self, span: Span) -> u32 {
        match self {
            Content::Data(_) => span.blocks() as u32,
            Content::Zero { .. } => 1,
        }
    }
}

/// A stored range and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub span: Span,
    pub content: Content,
}

/// `Piece` in 16 bytes: 44 bits of sector, 32 of count, 40 of position, 2 of kind.
#[derive(Clone, Copy)]
struct Extent {
    sector_low: u32,
    addr_low: u32,
    sectors: u32,
    /// Bits 0-11 sector, 12-19 position, 20-21 kind.
    high: u32,
}

const KIND_ZERO: u32 = 1;
const KIND_ZERO_ALLOCATE: u32 = 2;

impl Extent {
    fn pack(piece: Piece) -> Extent {
        let addr = piece.content.addr().0;
        let kind = match piece.content {
            Content::Data(_) => 0,
            Content::Zero {
                allocate: false, ..
            } => KIND_ZERO,
            Content::Zero { allocate: true, .. } => KIND_ZERO_ALLOCATE,
        };
        assert!(
            piece.span.sector < 1 << 44 && addr < 1 << 40,
            "extent fields fit"
        );
        assert!(piece.span.sectors > 0 && piece.span.sectors <= EXTENT_SECTORS_MAX);
        Extent {
            sector_low: piece.span.sector as u32,
            addr_low: addr as u32,
            sectors: piece.span.sectors as u32,
            high: (piece.span.sector >> 32) as u32 | ((addr >> 32) as u32) << 12 | kind << 20,
        }
    }

    fn sector(&self) -> u64 {
        u64::from(self.sector_low) | u64::from(self.high & 0xfff) << 32
    }

    fn end(&self) -> u64 {
        self.sector() + u64::from(self.sectors)
    }

    fn piece(&self) -> Piece {
        let addr = LogAddr(u64::from(self.addr_low) | u64::from(self.high >> 12 & 0xff) << 32);
        let content = match self.high >> 20 {
            0 => Content::Data(addr),
            KIND_ZERO => Content::Zero {
                header: addr,
                allocate: false,
            },
            _ => Content::Zero {
                header: addr,
                allocate: true,
            },
        };
        Piece {
            span: Span::new(self.sector(), u64::from(self.sectors)),
            content,
        }
    }
}

const _: () = assert!(size_of::<Extent>() == 16);
const _: () = assert!(LEAF_EXTENTS_MAX.is_multiple_of(LEAF_GROWTH));

struct Leaf {
    extents: Vec<Extent>,
}

/// Which sectors lie where.
#[derive(Default)]
pub struct ExtentMap {
    firsts: Vec<u64>,
    leaves: Vec<Leaf>,
    extents: u64,
    sectors: u64,
}

impl ExtentMap {
    pub fn new() -> ExtentMap {
        ExtentMap::default()
    }

    /// Number of extents.
    pub fn len(&self) -> u64 {
        self.extents
    }

    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }

    /// Sectors that are mapped.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> u64 {
        let extents: usize = self.leaves.iter().map(|leaf| leaf.extents.capacity()).sum();
        (extents * size_of::<Extent>()
            + self.leaves.capacity() * size_of::<Leaf>()
            + self.firsts.capacity() * 8) as u64
    }

    /// Maps `piece`, telling `gone` every piece, or part of one, that it covers, and `cut` every
    /// piece that stays in part (before, then what is left of it).
    pub fn insert(&mut self, piece: Piece, changed: &mut impl FnMut(Change)) {
        assert!(
            piece.span.sectors > 0,
            "only ranges that are not empty are mapped"
        );
        // One search serves the two common ways: a range that is new, and a rewrite of exactly
        // one extent. A search costs more than all else here, because leaves are cold.
        let found = self.place_of(piece.span.sector);
        let next = self.extent_at(found).map(|extent| extent.piece());
        match next {
            Some(old) if old.span == piece.span => {
                let (leaf, at) = found;
                self.leaves[leaf].extents[at] = Extent::pack(piece);
                changed(Change::Removed(old));
                changed(Change::Added(piece));
            }
            Some(old) if old.span.sector < piece.span.end() => {
                self.remove(piece.span, changed);
                changed(Change::Added(piece));
                self.place(self.place_of(piece.span.sector), piece, changed);
            }
            _ => {
                changed(Change::Added(piece));
                self.place(found, piece, changed);
            }
        }
    }

    /// Unmaps a range.
    pub fn remove(&mut self, span: Span, changed: &mut impl FnMut(Change)) {
        let mut from = span.sector;
        while from < span.end() {
            let Some((leaf_at, at)) = self.find(from) else {
                return;
            };
            let old = self.leaves[leaf_at].extents[at].piece();
            assert!(old.span.end() > from, "what is found ends behind");
            if old.span.sector >= span.end() {
                return;
            }
            self.take(leaf_at, at);
            changed(Change::Removed(old));
            if old.span.sector < span.sector {
                let left = Piece {
                    span: Span::new(old.span.sector, span.sector - old.span.sector),
                    content: old.content,
                };
                changed(Change::Added(left));
                self.put(self.place_of(left.span.sector), left);
            }
            if old.span.end() > span.end() {
                let skipped = span.end() - old.span.sector;
                let right = Piece {
                    span: Span::new(span.end(), old.span.end() - span.end()),
                    content: old.content.advance(skipped),
                };
                changed(Change::Added(right));
                self.put(self.place_of(right.span.sector), right);
            }
            from = old.span.end();
        }
    }

    /// Calls `visit` for each piece of `span` in order: mapped parts with their content, gaps
    /// with `None`.
    pub fn get(&self, span: Span, mut visit: impl FnMut(Span, Option<Content>)) {
        let mut from = span.sector;
        let mut position = self.find(from);
        while from < span.end() {
            let next = position.map(|(leaf, at)| self.leaves[leaf].extents[at].piece());
            let Some(piece) = next.filter(|piece| piece.span.sector < span.end()) else {
                visit(Span::new(from, span.end() - from), None);
                return;
            };
            if piece.span.sector > from {
                visit(Span::new(from, piece.span.sector - from), None);
                from = piece.span.sector;
            }
            let end = piece.span.end().min(span.end());
            assert!(end > from, "each piece goes on from the one before");
            let content = piece.content.advance(from - piece.span.sector);
            visit(Span::new(from, end - from), Some(content));
            from = end;
            position = position.and_then(|at| self.after(at));
        }
    }

    /// The first piece that ends above `sector`.
    pub fn at_or_after(&self, sector: u64) -> Option<Piece> {
        let (leaf, at) = self.find(sector)?;
        Some(self.leaves[leaf].extents[at].piece())
    }

    /// The pieces that end above `sector`, in order.
    pub fn pieces_from(&self, sector: u64) -> impl Iterator<Item = Piece> + '_ {
        let mut position = self.find(sector);
        core::iter::from_fn(move || {
            let (leaf, at) = position?;
            position = self.after((leaf, at));
            Some(self.leaves[leaf].extents[at].piece())
        })
    }

    /// Takes any piece out, the last leaf first, so that a map is swept in small steps.
    pub fn pop(&mut self) -> Option<Piece> {
        let leaf = self.leaves.len().checked_sub(1)?;
        let at = self.leaves[leaf].extents.len() - 1;
        let piece = self.leaves[leaf].extents[at].piece();
        self.take(leaf, at);
        Some(piece)
    }

    fn leaf_of(&self, sector: u64) -> Option<usize> {
        if self.firsts.is_empty() {
            return None;
        }
        Some(
            self.firsts
                .partition_point(|&first| first <= sector)
                .saturating_sub(1),
        )
    }

    /// Position of the first extent that ends above `sector`.
    fn find(&self, sector: u64) -> Option<(usize, usize)> {
        let (leaf, at) = self.place_of(sector);
        if at < self.leaves.get(leaf)?.extents.len() {
            return Some((leaf, at));
        }
        (leaf + 1 < self.leaves.len()).then_some((leaf + 1, 0))
    }

    /// Where an extent from `sector` on belongs if none holds it: the leaf, and behind which of its
    /// extents. May be behind its last one; the first leaf of an empty map is not there yet.
    fn place_of(&self, sector: u64) -> (usize, usize) {
        let Some(leaf) = self.leaf_of(sector) else {
            return (0, 0);
        };
        let extents = &self.leaves[leaf].extents;
        let at = extents.partition_point(|extent| extent.end() <= sector);
        (leaf, at)
    }

    /// The extent at a place, or the first one behind it.
    fn extent_at(&self, (leaf, at): (usize, usize)) -> Option<&Extent> {
        let here = self.leaves.get(leaf)?.extents.get(at);
        here.or_else(|| self.leaves.get(leaf + 1)?.extents.first())
    }

    fn after(&self, (leaf, at): (usize, usize)) -> Option<(usize, usize)> {
        if at + 1 < self.leaves[leaf].extents.len() {
            return Some((leaf, at + 1));
        }
        (leaf + 1 < self.leaves.len()).then_some((leaf + 1, 0))
    }

    fn take(&mut self, leaf: usize, at: usize) {
        let extents = &mut self.leaves[leaf].extents;
        let old = extents.remove(at);
        self.extents -= 1;
        self.sectors -= u64::from(old.sectors);
        if extents.is_empty() {
            self.leaves.remove(leaf);
            self.firsts.remove(leaf);
        } else if at == 0 {
            self.firsts[leaf] = extents[0].sector();
        }
        assert!(self.firsts.len() == self.leaves.len());
        assert!(
            (self.extents == 0) == (self.sectors == 0)
                && (self.extents == 0) == self.leaves.is_empty(),
            "counts and leaves agree"
        );
    }

    /// Stores a piece into free room, merged with its left neighbour where the log is
    /// contiguous too. The neighbour lies in the leaf of the place: a leaf begins at its first
    /// extent, so only what is below all extents has none before it there.
    fn place(
        &mut self,
        (leaf, at): (usize, usize),
        piece: Piece,
        changed: &mut impl FnMut(Change),
    ) {
        let left = at.checked_sub(1).map(|at| self.leaves[leaf].extents[at]);
        let Some(left) = left.filter(|left| left.end() == piece.span.sector) else {
            return self.put((leaf, at), piece);
        };
        let left = left.piece();
        let joins = left.content.advance(left.span.sectors) == piece.content
            && left.span.sectors + piece.span.sectors <= EXTENT_SECTORS_MAX;
        if !joins {
            return self.put((leaf, at), piece);
        }
        let whole = Piece {
            span: Span::new(left.span.sector, left.span.sectors + piece.span.sectors),
            content: left.content,
        };
        let extents = &self.leaves[leaf].extents;
        assert!(
            extents
                .get(at)
                .is_none_or(|next| piece.span.end() <= next.sector()),
            "extents do not overlap"
        );
        self.leaves[leaf].extents[at - 1] = Extent::pack(whole);
        self.sectors += piece.span.sectors;
        changed(Change::Removed(left));
        changed(Change::Removed(piece));
        changed(Change::Added(whole));
    }

    /// Stores a piece at its place as an extent of its own.
    fn put(&mut self, (leaf, at): (usize, usize), piece: Piece) {
        self.extents += 1;
        self.sectors += piece.span.sectors;
        if self.leaves.is_empty() {
            self.firsts.push(piece.span.sector);
            self.leaves.push(Leaf {
                extents: alloc::vec![Extent::pack(piece)],
            });
            return;
        }
        let extents = &mut self.leaves[leaf].extents;
        let before = at.checked_sub(1).map(|at| extents[at].end());
        let behind = extents.get(at).map(|extent| extent.sector());
        assert!(
            before.is_none_or(|end| end <= piece.span.sector)
                && behind.is_none_or(|sector| piece.span.end() <= sector),
            "extents do not overlap"
        );
        if extents.len() == extents.capacity() {
            extents.reserve_exact(LEAF_GROWTH);
        }
        extents.insert(at, Extent::pack(piece));
        if at == 0 {
            self.firsts[leaf] = piece.span.sector;
        }
        if extents.len() > LEAF_EXTENTS_MAX {
            self.split(leaf, at);
        }
    }

    /// Splits in the middle, but at the end for ascending inserts, so that they fill leaves.
    fn split(&mut self, leaf: usize, inserted_at: usize) {
        let extents = &mut self.leaves[leaf].extents;
        let keep = if inserted_at + 1 == extents.len() {
            extents.len() - 1
        } else {
            extents.len() / 2
        };
        assert!(keep > 0 && keep < extents.len(), "no leaf is empty");
        let tail = extents[keep..].to_vec();
        extents.truncate(keep);
        extents.shrink_to(keep.next_multiple_of(LEAF_GROWTH));
        self.firsts.insert(leaf + 1, tail[0].sector());
        self.leaves.insert(leaf + 1, Leaf { extents: tail });
        assert!(
            self.firsts[leaf] < self.firsts[leaf + 1],
            "leaves are in order of their sectors"
        );
    }
}

/// What an insert or a removal did to the stored pieces, for the accounting of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added(Piece),
    Removed(Piece),
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use workload::rng::Rng;

    /// One entry per sector: simple enough to be right.
    #[derive(Default)]
    struct Reference(BTreeMap<u64, Content>);

    #[test]
    fn agrees_with_a_map_of_single_sectors() {
        let mut rng = Rng::new(7);
        let mut map = ExtentMap::new();
        let mut reference = Reference::default();
        let mut charges: i64 = 0;
        for step in 0..40_000u64 {
            let span = Span::new(rng.below(5000), 1 + rng.below(40));
            let mut changed = |change| match change {
                Change::Added(piece) => charges += i64::from(piece.content.charge(piece.span)),
                Change::Removed(piece) => charges -= i64::from(piece.content.charge(piece.span)),
            };
            match rng.below(8) {
                0 => {
                    map.remove(span, &mut changed);
                    (span.sector..span.end()).for_each(|at| {
                        reference.0.remove(&at);
                    });
                }
                kind => {
                    let content = if kind == 1 {
                        Content::Zero {
                            header: LogAddr(step * 8),
                            allocate: step % 2 == 0,
                        }
                    } else {
                        Content::Data(LogAddr(step * 64))
                    };
                    map.insert(Piece { span, content }, &mut changed);
                    (0..span.sectors).for_each(|at| {
                        reference.0.insert(span.sector + at, content.advance(at));
                    });
                }
            }
            if step % 64 == 0 {
                let span = Span::new(rng.below(5000), 1 + rng.below(300));
                let mut at = span.sector;
                map.get(span, |part, content| {
                    assert_eq!(part.sector, at);
                    for n in 0..part.sectors {
                        assert_eq!(
                            reference.0.get(&(at + n)).copied(),
                            content.map(|content| content.advance(n))
                        );
                    }
                    at = part.end();
                });
                assert_eq!(at, span.end());
            }
        }
        assert_eq!(map.sectors(), reference.0.len() as u64);
        let mut popped = 0;
        while let Some(piece) = map.pop() {
            popped += piece.span.sectors;
            charges -= i64::from(piece.content.charge(piece.span));
        }
        assert_eq!(popped, reference.0.len() as u64);
        assert_eq!(charges, 0, "every charge is given back");
        assert!(map.is_empty() && map.leaves.is_empty() && map.firsts.is_empty());
    }

    /// Pieces of a map, or what happened to it.
    type Seen<T> = Vec<T>;

    fn pieces(map: &ExtentMap) -> Seen<Piece> {
        map.pieces_from(0).collect()
    }

    /// The way of an insert that searches anew for each of its steps.
    fn insert_in_steps(map: &mut ExtentMap, piece: Piece, changed: &mut impl FnMut(Change)) {
        map.remove(piece.span, changed);
        changed(Change::Added(piece));
        map.place(map.place_of(piece.span.sector), piece, changed);
    }

    #[test]
    fn an_insert_with_one_search_leaves_what_one_in_steps_leaves() {
        let mut rng = Rng::new(11);
        let (mut map, mut stepped) = (ExtentMap::new(), ExtentMap::new());
        let (mut addr, mut joined, mut replaced) = (0, 0, 0);
        for _ in 0..40_000 {
            // Runs of neighbours that touch in the log as well, so that many join; and over
            // enough sectors for dozens of leaves.
            let mut sector = rng.below(20_000) * 8;
            for _ in 0..=rng.below(4) {
                let sectors = 1 + rng.below(12);
                let (span, content) = (Span::new(sector, sectors), Content::Data(LogAddr(addr)));
                let piece = Piece { span, content };
                let same = map.at_or_after(sector).filter(|old| old.span == span);
                let (mut seen, mut expected) = (Seen::new(), Seen::new());
                map.insert(piece, &mut |change| seen.push(change));
                match same {
                    // A rewrite stays an extent of its own.
                    Some(old) => {
                        expected = alloc::vec![Change::Removed(old), Change::Added(piece)];
                        stepped.remove(span, &mut |_| {});
                        stepped.put(stepped.place_of(sector), piece);
                        replaced += 1;
                    }
                    None => {
                        let changed = &mut |change| expected.push(change);
                        insert_in_steps(&mut stepped, piece, changed);
                    }
                }
                assert_eq!(seen, expected);
                joined += usize::from(seen.len() > 3);
                addr += sectors + u64::from(rng.below(3) == 0);
                sector += sectors;
            }
            if rng.below(64) == 0 {
                assert_eq!(pieces(&map), pieces(&stepped));
                let firsts = map.leaves.iter().map(|leaf| leaf.extents[0].sector());
                assert!(firsts.eq(map.firsts.iter().copied()));
            }
        }
        assert!(map.leaves.len() > 20 && joined > 1000 && replaced > 100);
        assert_eq!(
            (map.len(), map.sectors()),
            (stepped.len(), stepped.sectors())
        );
    }

    #[test]
    fn pieces_in_order_are_those_that_searches_find() {
        let mut rng = Rng::new(5);
        let mut map = ExtentMap::new();
        for n in 0..3000 {
            let span = Span::new(rng.below(60_000), 1 + rng.below(9));
            let content = Content::Data(LogAddr(n * 16));
            map.insert(Piece { span, content }, &mut |_| {});
        }
        for from in [0, 17, 30_000, 59_990, 70_000] {
            let mut at = from;
            let searched = core::iter::from_fn(|| {
                let piece = map.at_or_after(at)?;
                at = piece.span.end();
                Some(piece)
            });
            let searched: Vec<Piece> = searched.collect();
            assert_eq!(map.pieces_from(from).collect::<Vec<_>>(), searched);
        }
    }

    fn data(sector: u64, sectors: u64, at: u64) -> Piece {
        Piece {
            span: Span::new(sector, sectors),
            content: Content::Data(LogAddr(at)),
        }
    }

    fn map_of(pieces: &[Piece]) -> ExtentMap {
        let mut map = ExtentMap::new();
        for piece in pieces {
            map.insert(*piece, &mut |_| {});
        }
        map
    }

    #[test]
    fn an_extent_is_kept_to_the_largest_sector_address_and_length() {
        let sectors_last = (1 << 44) - EXTENT_SECTORS_MAX;
        let addr_last = (1 << 40) - 1;
        for sector in [0, 8, 1 << 32, (1 << 43) + 5, sectors_last] {
            for addr in [0, 1 << 12, 1 << 32, (0xab << 32) + 7, addr_last] {
                let addr = LogAddr(addr);
                let zero = |allocate| Content::Zero {
                    header: addr,
                    allocate,
                };
                for content in [Content::Data(addr), zero(false), zero(true)] {
                    for sectors in [1, EXTENT_SECTORS_MAX] {
                        let span = Span::new(sector, sectors);
                        let piece = Piece { span, content };
                        let mut map = map_of(&[piece]);
                        assert_eq!(map.at_or_after(0), Some(piece));
                        assert_eq!((map.pop(), map.pop()), (Some(piece), None));
                    }
                }
            }
        }
    }

    #[test]
    fn what_follows_on_the_volume_and_in_the_log_is_one_extent_up_to_the_largest() {
        let merged = |pieces: &[Piece]| map_of(pieces).len();
        assert_eq!(merged(&[data(0, 8, 100), data(8, 8, 108)]), 1);
        assert_eq!(merged(&[data(0, 8, 100), data(8, 8, 109)]), 2);
        assert_eq!(merged(&[data(0, 8, 100), data(9, 8, 108)]), 2);
        let most = EXTENT_SECTORS_MAX;
        assert_eq!(
            merged(&[data(0, most - 1, 0), data(most - 1, 1, most - 1)]),
            1
        );
        assert_eq!(merged(&[data(0, most, 0), data(most, 1, most)]), 2);
    }

    #[test]
    fn what_is_asked_for_comes_in_parts_none_of_which_is_empty() {
        let map = map_of(&[data(8, 8, 100), data(24, 8, 200)]);
        let mut parts = Vec::new();
        map.get(Span::new(0, 24), |span, content| {
            parts.push((span, content))
        });
        let data = |at| Some(Content::Data(LogAddr(at)));
        let expected = [
            (Span::new(0, 8), None),
            (Span::new(8, 8), data(100)),
            (Span::new(16, 8), None),
        ];
        assert_eq!(parts, expected);
        parts.clear();
        map.get(Span::new(10, 6), |span, content| {
            parts.push((span, content))
        });
        assert_eq!(parts, [(Span::new(10, 6), data(102))]);
    }

    #[test]
    fn memory_is_counted_whole_and_extents_in_order_fill_it() {
        let mut map = ExtentMap::new();
        let leaves = 256;
        for n in 0..(leaves * LEAF_EXTENTS_MAX) as u64 {
            map.insert(data(n * 16, 8, n * 8), &mut |_| {});
        }
        assert_eq!(map.leaves.len(), leaves);
        let extents = map.len() * size_of::<Extent>() as u64;
        // Of each leaf its head, and its first sector.
        let heads = leaves * (size_of::<Leaf>() + size_of::<u64>());
        assert!(map.bytes() >= extents + heads as u64, "{}", map.bytes());
        let each = map.bytes() as f64 / map.len() as f64;
        assert!(each <= 16.3, "{each} bytes per extent");
    }

    #[test]
    fn a_scattered_extent_costs_at_most_24_bytes() {
        let mut rng = Rng::new(3);
        let mut map = ExtentMap::new();
        for n in 0..300_000u64 {
            let sector = rng.below(1 << 28) * 8;
            let content = Content::Data(LogAddr(n * 8));
            map.insert(
                Piece {
                    span: Span::new(sector, 8),
                    content,
                },
                &mut |_| {},
            );
        }
        let each = map.bytes() as f64 / map.len() as f64;
        assert!(each <= 24.0, "{each} bytes per extent");
    }
}
