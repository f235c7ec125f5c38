//! Traces with their times: what reaches flash by the day, and by the size of the cache.
//!
//! Always true: a trace is served at its own times and destaged by age, as a volume is; sizes of
//! caches are parts of its working set, and a cache is never smaller than the engine takes; a
//! snapshot comes at the end of a day. Deliberately absent: more than one snapshot in a day.

use super::behind::{self, Divided, Division};
use super::experiments::{BASELINE, EXTENDED, PLAIN, Runner, both};
use super::paper::GIB;
use super::section::{Case, Comparison, Section};
use super::side::{DEPTH, Day, Destages, Kind, Measured, Setup, Side};
use super::trace::{Timed, Trace};
use crate::plot::{Axis, Curve, Scale, bars, chart};
use engine::engine::geometry_for;
use engine::types::Time;
use host::config::units::human_bytes;
use host::error::Result;
use std::sync::Arc;

const NS_PER_DAY: u64 = 86_400_000_000_000;
/// As in the configuration where nothing is said.
const DESTAGE_AFTER_MS: u64 = 600_000;
/// Of the working set.
const CACHE_PERCENTS: [u64; 3] = [10, 20, 40];
const TABLE_RAM_BYTES: u64 = 16 << 20;
const CACHE_STEP_BYTES: u64 = 8 << 20;
/// Ours for each of the baseline's at the least that the paper gains: flash by day without
/// snapshots, flash and network by size of the cache.
const BY_DAY: f64 = 1.0 - 0.014;
const BY_CACHE: (f64, f64) = (1.0 - 0.028, 1.0 - 0.18);

/// The same with a snapshot each day; and what has to be left of the hit ratio.
const BY_DAY_FROZEN: f64 = 1.0 - 0.004;
const HITS_LEFT: f64 = 0.95;

/// Up to the end of each.
pub type Days = Vec<Day>;

/// A side for a trace, with a cache of this size and so much dirty in it at most.
fn setup(trace: &Trace, kind: Kind, (cache_bytes, limit): (u64, u64), seed: u64) -> Setup {
    Setup {
        kind,
        disk_bytes: trace.disk_bytes,
        cache_bytes,
        dirty_limit_bytes: limit,
        table_ram_bytes: TABLE_RAM_BYTES,
        in_flight: DEPTH,
        destages: Destages::After(DESTAGE_AFTER_MS),
        seed,
    }
}

/// All of a trace, where each of its requests is asked by `each`.
fn play(
    side: &mut Side,
    trace: &Trace,
    frozen: bool,
    each: &mut dyn FnMut(&mut Side, &Timed) -> Result<()>,
) -> Result<Days> {
    let (mut days, part_ns) = (Vec::new(), part(trace).0);
    for timed in &trace.requests {
        let day = (timed.at_ns / part_ns) as usize;
        while days.len() < day {
            days.push(side.end_day(Time((days.len() as u64 + 1) * part_ns)));
            if frozen {
                side.snapshot()?;
            }
        }
        each(side, timed)?;
    }
    days.push(side.end_day(Time((days.len() as u64 + 1) * part_ns)));
    Ok(days)
}

/// All of a trace on one side, and what has happened up to the end of each day.
pub fn serve(
    trace: &Trace,
    kind: Kind,
    sizes: (u64, u64),
    frozen: bool,
    seed: u64,
) -> Result<(Measured, Days)> {
    let mut side = Side::new(&setup(trace, kind, sizes, seed))?;
    let days = play(&mut side, trace, frozen, &mut |side, timed| {
        side.ask_timed(timed)
    })?;
    Ok((side.finish()?, days))
}

/// The reads of each part, with a snapshot between them or without.
fn divided(trace: &Trace, sizes: (u64, u64), frozen: bool, seed: u64) -> Result<Vec<Divided>> {
    let mut side = Side::new(&setup(trace, PLAIN, sizes, seed))?;
    let mut division = Division::new(part(trace).0, DESTAGE_AFTER_MS);
    play(&mut side, trace, frozen, &mut |side, timed| {
        division.ask(side, timed)
    })?;
    side.finish()?;
    Ok(division.parts)
}

impl Runner<'_> {
    fn trace(&self) -> Result<Arc<Trace>> {
        let options = self.options;
        match &options.trace {
            Some(trace) => Ok(trace.clone()),
            None => Ok(Arc::new(Trace::desktop(options.seed, options.scale)?)),
        }
    }

    fn serve(
        &mut self,
        trace: &Trace,
        kind: Kind,
        sizes: (u64, u64),
        frozen: bool,
    ) -> Result<(Measured, Days)> {
        let served = serve(trace, kind, sizes, frozen, self.options.seed)?;
        (self.step)();
        Ok(served)
    }

    pub fn days(&mut self) -> Result<Section> {
        let trace = self.trace()?;
        let cache_bytes = smallest(4 * trace.working_set_bytes);
        let sizes = (cache_bytes, cache_bytes);
        let (baseline, below) = self.serve(&trace, BASELINE, sizes, false)?;
        let (ours, aware) = self.serve(&trace, PLAIN, sizes, false)?;
        let (_, below_frozen) = self.serve(&trace, BASELINE, sizes, true)?;
        let (_, aware_frozen) = self.serve(&trace, PLAIN, sizes, true)?;
        let mut apart = |frozen: bool| {
            let parts = divided(&trace, sizes, frozen, self.options.seed);
            (self.step)();
            parts
        };
        let (loose, behind) = (apart(false)?, apart(true)?);
        let part = part(&trace).1;
        let mut comparisons = by_day(part, "flash, GiB", (&below, &aware), BY_DAY);
        let what = "flash with a snapshot each, GiB";
        let frozen = (&below_frozen, &aware_frozen);
        comparisons.extend(by_day(part, what, frozen, BY_DAY_FROZEN));
        let curve = |number, name: &str, days: &Days| {
            let days = days.iter().enumerate();
            let points = days.map(|(at, day)| {
                let bytes = day.flash_bytes as f64 / GIB;
                (at as f64 + 1.0, bytes)
            });
            Curve::new(number, name, points.collect())
        };
        let curves = [
            curve(0, "TRDCache", &below),
            curve(1, "Tenuto", &aware),
            curve(2, "TRDCache, a snapshot each", &below_frozen),
            curve(3, "Tenuto, a snapshot each", &aware_frozen),
        ];
        let axis = |name, scale| Axis { name, scale };
        let (x, y) = (
            axis(part, Scale::Counts),
            axis("GiB to flash since the first", Scale::Linear),
        );
        Ok(Section {
            name: "f14",
            title: "Written to flash by the day",
            input: format!(
                "{}; a cache of {}",
                trace.description,
                human_bytes(cache_bytes)
            ),
            cases: vec![Case {
                name: "all of it".into(),
                sides: vec![(BASELINE, baseline), (PLAIN, ours)],
            }],
            comparisons,
            notes: vec![
                "The paper replays ten MSR traces: without snapshots its flash writes are 1.4 to \
                 32.8 % fewer. The target is its least."
                    .into(),
                "With a snapshot each day they are 0.4 to 37.8 % fewer; that target is its least, \
                 too."
                    .into(),
                hits(part, &aware, &aware_frozen),
                behind::note(part, &loose, &behind),
            ],
            plots: vec![("Written to flash".into(), chart(x, y, &curves))],
        })
    }

    /// The week with the largest of the caches, for the index.
    pub fn week(&mut self) -> Result<Case> {
        let trace = self.trace()?;
        let percent = CACHE_PERCENTS[CACHE_PERCENTS.len() - 1];
        let cache_bytes = smallest(trace.working_set_bytes * percent / 100);
        let (measured, _) = self.serve(&trace, PLAIN, (cache_bytes, cache_bytes / 4), false)?;
        Ok(Case {
            name: format!("the trace, cache of {percent} %"),
            sides: vec![(PLAIN, measured)],
        })
    }

    pub fn caches(&mut self) -> Result<Section> {
        let trace = self.trace()?;
        let (mut cases, mut comparisons) = (Vec::new(), Vec::new());
        for percent in CACHE_PERCENTS {
            let cache_bytes = smallest(trace.working_set_bytes * percent / 100);
            let mut sides = Vec::new();
            for kind in [BASELINE, PLAIN, EXTENDED] {
                let sizes = (cache_bytes, cache_bytes / 4);
                sides.push((kind, self.serve(&trace, kind, sizes, false)?.0));
            }
            let name = format!("{percent} %: {}", human_bytes(cache_bytes));
            let case = Case { name, sides };
            comparisons.push(compared(&case, PLAIN, "flash, 64 KiB clusters, GiB"));
            comparisons.push(compared(&case, EXTENDED, "flash, subclusters, GiB"));
            for kind in [PLAIN, EXTENDED] {
                comparisons.push(network(&case, kind));
            }
            cases.push(case);
        }
        let plot = |title: &str, of: fn(&Measured) -> u64| {
            let rows: Vec<(String, Vec<f64>)> = cases
                .iter()
                .map(|case| {
                    let sides = case.sides.iter();
                    let values = sides.map(|(_, it)| of(it) as f64 / GIB).collect();
                    (case.name.clone(), values)
                })
                .collect();
            let names = cases[0].sides.iter().map(|(kind, _)| kind.name());
            let names: Vec<&str> = names.collect();
            (title.to_owned(), bars("GiB", &names, &rows))
        };
        let plots = vec![
            plot("Written to flash", |it| it.flash_write_bytes),
            plot("To and from storage", Measured::network_bytes),
        ];
        Ok(Section {
            name: "f15",
            title: "Flash and network, by the size of the cache",
            input: trace.description.clone(),
            cases,
            comparisons,
            notes: vec![
                "The paper replays ten MSR traces: 2.8 to 25.5 % fewer flash writes, 18 to 76.2 % \
                 less network. The targets are its least."
                    .into(),
                "With clusters of 64 KiB a destage reads the rest of a new cluster below; with \
                 subclusters it does not."
                    .into(),
            ],
            plots,
        })
    }
}

fn by_day(
    part: &str,
    what: &'static str,
    (below, aware): (&Days, &Days),
    target: f64,
) -> Vec<Comparison> {
    let days = below.iter().zip(aware).enumerate();
    days.map(|(day, (below, aware))| Comparison {
        case: format!("up to {part} {}", day + 1),
        what,
        baseline: below.flash_bytes as f64 / GIB,
        ours: aware.flash_bytes as f64 / GIB,
        paper: None,
        target: Some(target),
    })
    .collect()
}

/// How many of the reads of each day the cache has, with snapshots and without.
fn hits(part: &str, plain: &Days, frozen: &Days) -> String {
    let counts = |days: &Days| -> Vec<(u64, u64)> {
        let before = [Day::default()].into_iter().chain(days.iter().copied());
        let days = days.iter().zip(before);
        days.map(|(day, before)| {
            let (hits, misses) = (day.hits - before.hits, day.misses - before.misses);
            (hits, hits + misses)
        })
        .collect()
    };
    let ratio = |(hits, all): (u64, u64)| hits as f64 / all.max(1) as f64;
    let (plain, frozen) = (counts(plain), counts(frozen));
    // The first has no snapshot before it.
    let left = plain.iter().zip(&frozen).skip(1);
    let left = left.map(|(plain, frozen)| ratio(*frozen) / ratio(*plain).max(f64::MIN_POSITIVE));
    let least = left.fold(f64::INFINITY, f64::min);
    let shown = |counts: &[(u64, u64)]| {
        let all = counts
            .iter()
            .map(|it| format!("{:.3} of {}", ratio(*it), it.1));
        all.collect::<Vec<String>>().join(", ")
    };
    format!(
        "Hit ratio of each {part}: {} without, {} with a snapshot each; at least {least:.3} of it \
         is left behind a snapshot (asked: {HITS_LEFT})",
        shown(&plain),
        shown(&frozen)
    )
}

/// What is called a day of it: a seventh, if it is not as long as two; and its name.
fn part(trace: &Trace) -> (u64, &'static str) {
    match trace.duration_ns() {
        short if short < 2 * NS_PER_DAY => (short / 7 + 1, "part"),
        _ => (NS_PER_DAY, "day"),
    }
}

/// The size of a cache that the engine takes, and at least this.
pub fn smallest(wanted: u64) -> u64 {
    let mut bytes = wanted.next_multiple_of(CACHE_STEP_BYTES);
    while geometry_for(bytes).is_err() {
        bytes += CACHE_STEP_BYTES;
    }
    bytes
}

fn compared(case: &Case, kind: Kind, what: &'static str) -> Comparison {
    let (baseline, ours) = both(case, kind);
    Comparison {
        case: case.name.clone(),
        what,
        baseline: baseline.flash_write_bytes as f64 / GIB,
        ours: ours.flash_write_bytes as f64 / GIB,
        paper: None,
        target: Some(BY_CACHE.0),
    }
}

fn network(case: &Case, kind: Kind) -> Comparison {
    let (baseline, ours) = both(case, kind);
    Comparison {
        case: case.name.clone(),
        what: match kind {
            EXTENDED => "network, subclusters, GiB",
            _ => "network, 64 KiB clusters, GiB",
        },
        baseline: baseline.network_bytes() as f64 / GIB,
        ours: ours.network_bytes() as f64 / GIB,
        paper: None,
        target: Some(BY_CACHE.1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::behind::Reads;
    use super::*;
    use workload::trace::{NameId, Op, Record};

    const MINUTE_NS: u64 = 60_000_000_000;

    /// Fails when: a read of what a snapshot has destaged is not told from others, or what was
    /// written long before it, or after it, counts as dirty.
    #[test]
    fn reads_of_what_was_dirty_at_a_snapshot_are_told_from_others() {
        let record = |minute: u64, op: Op, place: u64| Record {
            time_ns: minute * MINUTE_NS,
            disk: NameId(0),
            op,
            sector: place * 1024,
            sectors: 8,
            path: None,
        };
        // Parts are a little longer than an hour, so that the last request is in the seventh.
        let records = [
            record(1, Op::Write, 1),
            record(40, Op::Write, 2),
            record(59, Op::Write, 3),
            record(60, Op::Write, 4),
            record(62, Op::Read, 1),
            record(63, Op::Read, 3),
            record(64, Op::Write, 3),
            record(65, Op::Read, 3),
            record(66, Op::Read, 4),
            record(420, Op::Read, 4),
        ];
        let trace = Trace::of("ten requests", records).expect("one disk");
        let sizes = (256 << 20, 256 << 20);
        let without = divided(&trace, sizes, false, 1).expect("it runs");
        let with = divided(&trace, sizes, true, 1).expect("it runs");
        assert_eq!(without[1].dirty, Reads { all: 2, hits: 2 });
        assert_eq!((with[1].dirty.all, with[1].others.all), (2, 2));
        assert_eq!(with[1].others, without[1].others, "nothing else changes");
    }
}
