//! What of a volume lies where on this host, for an administrator who asks.
//!
//! Always true: a page changes nothing and costs a bounded time of the shard, whatever the size
//! of the volume: it walks what the host holds, never the range of the disk. Pages are taken
//! while guests go on, so each is true of its own moment only. What two pages name twice belongs
//! to the one that a reader meets first: epochs, then the tier, then lines. Deliberately absent:
//! the origin, which has all that no page names.

use crate::core::Core;
use crate::event::Refusal;
use crate::layout;
use crate::map::Content;
use crate::types::{BLOCK_SECTORS, Span, VolumeId};
use alloc::vec::Vec;

/// Extents, places of the tier or entries of the index that one page looks at: some 100 µs.
const STEPS_MAX: usize = 1024;
const ENTRIES_MAX: u32 = 8192;

/// Where a page begins. The first one is [`Cursor::START`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// Epochs, from this sector on.
    Epochs(u64),
    /// The read tier, from this place on.
    Tier(u32),
    /// The index of clean blocks on the cache device, from this entry on.
    Lines(u32),
}

impl Cursor {
    pub const START: Cursor = Cursor::Epochs(0);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    /// Written by the guest and so far in RAM only.
    Stage,
    /// Written by the guest, in the log on the cache device.
    Log,
    /// A clean copy in the read tier.
    Ram,
    /// A clean copy on the cache device.
    Ssd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub span: Span,
    pub site: Site,
    /// It reads as zeroes, and nothing is stored of it but that.
    pub zero: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Of one site in no order.
    pub spots: Vec<Spot>,
    /// `None`: there is no more.
    pub next: Option<Cursor>,
}

impl Core {
    /// One page of the chart of a volume.
    pub fn chart(&self, id: VolumeId, from: Cursor) -> Result<Page, Refusal> {
        let volume = self.volumes.get(id).ok_or(Refusal::Gone)?;
        let mut page = Page::default();
        page.next = match from {
            Cursor::Epochs(sector) => self.chart_epochs(id, sector, &mut page.spots),
            Cursor::Tier(place) => {
                let blocks = self.ram.blocks_of(volume.layer(), place, ENTRIES_MAX);
                page.spots.extend(blocks.map(|block| Spot {
                    span: Span::new(block * BLOCK_SECTORS, BLOCK_SECTORS),
                    site: Site::Ram,
                    zero: false,
                }));
                let next = place.saturating_add(ENTRIES_MAX);
                Some(match u64::from(next) < self.ram.blocks() {
                    true => Cursor::Tier(next),
                    false => Cursor::Lines(0),
                })
            }
            Cursor::Lines(entry) => {
                let (runs, more) = self.lines.listed(volume.layer(), entry, ENTRIES_MAX);
                page.spots.extend(runs.into_iter().map(|block| Spot {
                    span: Span::new(block * BLOCK_SECTORS, BLOCK_SECTORS),
                    site: Site::Ssd,
                    zero: false,
                }));
                more.then_some(Cursor::Lines(entry.saturating_add(ENTRIES_MAX)))
            }
        };
        Ok(page)
    }

    fn chart_epochs(&self, id: VolumeId, from: u64, spots: &mut Vec<Spot>) -> Option<Cursor> {
        let volume = self.volumes.known(id);
        let end = volume.sectors();
        let mut from = from;
        for _ in 0..STEPS_MAX {
            if from >= end {
                return Some(Cursor::Tier(0));
            }
            let maps = volume.epochs.iter().rev().map(|epoch| &epoch.map);
            let (content, upto) = layout::next(maps, from, end);
            if let Some(content) = content {
                let site = match self.log.is_staged_only(content.addr()) {
                    true => Site::Stage,
                    false => Site::Log,
                };
                spots.push(Spot {
                    span: Span::new(from, upto - from),
                    site,
                    zero: matches!(content, Content::Zero { .. }),
                });
            }
            from = upto;
        }
        Some(Cursor::Epochs(from))
    }
}
