//! `volume map`: which range of a volume is read from where.
//!
//! Owns how the pages of the shard become one picture: at each sector the place counts that a
//! reader meets first, and what nobody holds is the origin's. Always true: the ranges follow one
//! another without a gap from 0 to the size of the volume, neighbours differ, and the totals add
//! up to the size. Guests go on while it is drawn, so ranges of different pages may be of
//! different moments. Deliberately absent: what the origin has there.

use super::{Admin, find, refuse_held};
use crate::error::Result;
use engine::chart::{Site, Spot};
use engine::types::{SECTOR_BYTES, Span};
use serde_json::{Value, json};

/// Ranges that one document lists; the totals count them all.
const RANGES_MAX: usize = 1 << 16;

/// A range and where it is read from; `None` = the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    span: Span,
    site: Option<Site>,
    zero: bool,
}

impl Range {
    fn place(&self) -> &'static str {
        match self.site {
            Some(Site::Stage) => "stage",
            Some(Site::Log) => "log",
            Some(Site::Ram) => "ram",
            Some(Site::Ssd) => "ssd",
            None => "origin",
        }
    }

    fn document(&self) -> Value {
        json!({
            "start": self.span.sector * SECTOR_BYTES,
            "length": self.span.sectors * SECTOR_BYTES,
            "where": self.place(),
            "zero": self.zero,
        })
    }
}

impl Admin {
    /// The document of `volume map`.
    pub fn map(&self, name: &str) -> Result<Value> {
        let look = self.look()?;
        if look.held(name).is_some() {
            refuse_held(&look, name)?;
        }
        let volume = find(&look, name)?;
        let spots = self.machine.chart(volume.id)?;
        let ranges = draw(spots, volume.size_bytes / SECTOR_BYTES);
        let total = |wanted: &dyn Fn(&Range) -> bool| {
            let of_kind = ranges.iter().filter(|range| wanted(range));
            of_kind.map(|range| range.span.sectors).sum::<u64>() * SECTOR_BYTES
        };
        let at = |place: &str| total(&|range| range.place() == place && !range.zero);
        let listed: Vec<Value> = ranges
            .iter()
            .take(RANGES_MAX)
            .map(Range::document)
            .collect();
        Ok(json!({
            "name": volume.name,
            "policy": volume.policy.name(),
            "size_bytes": volume.size_bytes,
            "generation": volume.generation.0,
            "totals": {
                "stage_bytes": at("stage"),
                "log_bytes": at("log"),
                "zero_bytes": total(&|range| range.zero),
                "ram_bytes": at("ram"),
                "ssd_bytes": at("ssd"),
                "origin_bytes": at("origin"),
            },
            "extents": listed,
            "extents_total": ranges.len(),
            "extents_truncated": ranges.len() > RANGES_MAX,
        }))
    }
}

/// One of several sorted lists that is walked along.
struct Layer {
    spots: Vec<Spot>,
    at: usize,
}

impl Layer {
    fn new(mut spots: Vec<Spot>) -> Layer {
        spots.sort_unstable_by_key(|spot| spot.span.sector);
        Layer { spots, at: 0 }
    }

    /// The spot at `sector`, if there is one, and where the next change comes.
    fn look(&mut self, sector: u64) -> (Option<Spot>, u64) {
        while self
            .spots
            .get(self.at)
            .is_some_and(|spot| spot.span.end() <= sector)
        {
            self.at += 1;
        }
        match self.spots.get(self.at) {
            None => (None, u64::MAX),
            Some(spot) if spot.span.sector > sector => (None, spot.span.sector),
            Some(spot) => (Some(*spot), spot.span.end()),
        }
    }
}

/// Puts the layers over one another, the one that a reader meets first on top.
fn draw(spots: Vec<Spot>, sectors: u64) -> Vec<Range> {
    let of = |wanted: &[Site]| {
        let wanted = spots.iter().filter(|spot| wanted.contains(&spot.site));
        Layer::new(wanted.copied().collect())
    };
    let mut layers = [
        of(&[Site::Stage, Site::Log]),
        of(&[Site::Ram]),
        of(&[Site::Ssd]),
    ];
    let mut ranges: Vec<Range> = Vec::new();
    let mut from = 0;
    while from < sectors {
        let (mut found, mut end) = (None, sectors);
        for layer in &mut layers {
            let (spot, change) = layer.look(from);
            end = end.min(change);
            if spot.is_some() {
                found = spot;
                break;
            }
        }
        let span = Span::new(from, end - from);
        let (site, zero) = found.map_or((None, false), |spot| (Some(spot.site), spot.zero));
        match ranges.last_mut() {
            Some(last) if last.site == site && last.zero == zero => last.span.sectors += end - from,
            _ => ranges.push(Range { span, site, zero }),
        }
        from = end;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(sector: u64, sectors: u64, site: Site) -> Spot {
        Spot {
            span: Span::new(sector, sectors),
            site,
            zero: false,
        }
    }

    /// Sector by sector, the slow way.
    fn slow(spots: &[Spot], sectors: u64) -> Vec<(Option<Site>, bool)> {
        let rank = |site: Site| match site {
            Site::Stage | Site::Log => 0,
            Site::Ram => 1,
            Site::Ssd => 2,
        };
        let at = |sector| {
            let here = spots
                .iter()
                .filter(|spot| spot.span.overlaps(Span::new(sector, 1)));
            let first = here.min_by_key(|spot| rank(spot.site));
            first.map_or((None, false), |spot| (Some(spot.site), spot.zero))
        };
        (0..sectors).map(at).collect()
    }

    #[test]
    fn each_sector_is_where_a_reader_finds_it_first() {
        let mut rng = workload::rng::Rng::new(11);
        let mut random = move |below: u64| rng.below(below);
        for _ in 0..300 {
            let sectors = 8 * (1 + random(40)) - random(8);
            let mut spots = Vec::new();
            let mut from = 0;
            while from < sectors {
                let length = 1 + random(20);
                let site = [Site::Stage, Site::Log][random(2) as usize];
                let mut one = spot(from, length.min(sectors - from), site);
                one.zero = random(4) == 0;
                spots.push(one);
                from += length + random(30);
            }
            for _ in 0..random(30) {
                // Blocks may be named twice: once before and once after they moved.
                let site = [Site::Ram, Site::Ssd][random(2) as usize];
                spots.push(spot(8 * random(40), 8, site));
            }
            let expected = slow(&spots, sectors);
            let ranges = draw(spots, sectors);
            let drawn: Vec<_> = ranges
                .iter()
                .flat_map(|range| (0..range.span.sectors).map(|_| (range.site, range.zero)))
                .collect();
            assert_eq!(drawn, expected);
            for pair in ranges.windows(2) {
                assert_eq!(pair[0].span.end(), pair[1].span.sector, "no gap");
                assert!(pair[0].site != pair[1].site || pair[0].zero != pair[1].zero);
            }
        }
    }
}
