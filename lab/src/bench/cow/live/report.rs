//! The figures of a live run, for people and for programs.
//!
//! Always true: only rounds whose counters show the path of every side are compared; a target
//! stands beside what was measured, whether it is met or not; a target is met by the median.

use super::case::{CHANGE_WANTED, Case, Load, OLTP_SPAN_BYTES};
use super::side::{Side, Slot};
use super::{Line, Options};
use crate::bench::cow::chapter::{Chapter, Grid};
use crate::bench::rounds::{self, Spread, cell};
use crate::machine;
use engine::types::Policy;
use serde_json::{Value, json};

pub struct Report {
    pub options: Options,
    pub(super) qemu_version: String,
    pub(super) lines: Vec<Line>,
}

fn per_second(slot: &Slot) -> Option<f64> {
    Some(slot.carried.per_second())
}

impl Line {
    fn proven(&self) -> impl Iterator<Item = &[Slot; 5]> {
        let proven = |round: &&[Slot; 5]| round.iter().all(Slot::is_proven);
        self.rounds.iter().filter(proven)
    }

    fn column(&self, side: Side, figure: fn(&Slot) -> Option<f64>) -> Vec<Option<f64>> {
        let of = |round: &[Slot; 5]| figure(&round[side as usize]);
        self.proven().map(of).collect()
    }

    fn median(&self, side: Side, figure: fn(&Slot) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.column(side, figure).into_iter().flatten())
    }

    /// For each of TRDCache.
    fn ratio(&self, side: Side, figure: fn(&Slot) -> Option<f64>) -> Option<Spread> {
        let base = self.column(Side::Trdc, figure);
        rounds::ratios(&self.column(side, figure), &base)
    }

    fn is_met(&self, side: Side) -> Option<bool> {
        let (ratio, target) = (self.ratio(side, per_second)?, self.case.target()?);
        Some(ratio.median >= target)
    }

    fn cells(&self) -> Vec<String> {
        let case = &self.case;
        let rate = |side| {
            let median = self.median(side, per_second);
            median.map_or("-".into(), |it| format!("{:.0}", it.median))
        };
        let ratio = |side| cell(self.ratio(side, per_second), 2);
        let (least, most) = case.paper();
        vec![
            case.name.into(),
            case.policy_name().into(),
            rate(Side::Trdc),
            rate(Side::Tenuto),
            rate(Side::Extended),
            rate(Side::Qemu),
            ratio(Side::Tenuto),
            ratio(Side::Extended),
            ratio(Side::TrdcAgain),
            match least == most {
                true => format!("{least:.2}"),
                false => format!("{least:.2}-{most:.2}"),
            },
            case.target().map_or("-".into(), |it| format!(">= {it:.2}")),
            met(self.is_met(Side::Tenuto)).into(),
        ]
    }

    /// Medians of what was counted, for each request of the guest.
    fn paths(&self) -> Vec<Vec<String>> {
        let sides = [Side::Trdc, Side::Tenuto, Side::Extended, Side::Qemu];
        sides.map(|side| self.path(side)).into()
    }

    fn path(&self, side: Side) -> Vec<String> {
        let of = |figure: fn(&Slot) -> Option<f64>, digits: usize| {
            let median = self.median(side, figure);
            median.map_or("-".into(), |it| format!("{:.digits$}", it.median))
        };
        let destaged = self.rounds.iter().find_map(|it| it[side as usize].destaged);
        vec![
            self.case.name.into(),
            self.case.policy_name().into(),
            side.key().into(),
            of(|it| Some(it.carried.requests as f64), 0),
            of(|it| Some(it.carried.clusters as f64), 0),
            of(Slot::flash_each, 0),
            of(Slot::kernel_flash_each, 0),
            of(|it| it.each(it.counts.cache_hits), 2),
            of(|it| it.each(it.counts.origin_reads), 2),
            of(|it| it.each(it.counts.origin_writes), 2),
            destaged.map_or("-".into(), |it| format!("{:.1}", it.bytes as f64 / MIB)),
        ]
    }

    fn document(&self) -> Value {
        let spread = |it: Option<Spread>| it.map(|it| it.document());
        let side = |side: Side| {
            json!({
                "side": side.key(),
                "requests_per_second": spread(self.median(side, per_second)),
                "ratio": spread(self.ratio(side, per_second)),
                "flash_bytes_per_request": spread(self.median(side, Slot::flash_each)),
                "flash_ratio": spread(self.ratio(side, Slot::flash_each)),
                "kernel_flash_bytes_per_request":
                    spread(self.median(side, Slot::kernel_flash_each)),
            })
        };
        let round = |round: &[Slot; 5]| {
            let mut document = json!({ "proven": round.iter().all(Slot::is_proven) });
            for slot in round {
                document[slot.side.key()] = slot.document();
            }
            document
        };
        let (least, most) = self.case.paper();
        json!({
            "case": self.case.name,
            "policy": self.case.policy_name(),
            "rounds_proven": self.proven().count(),
            "sides": Side::ALL.map(side),
            "a_a_ratio": spread(self.ratio(Side::TrdcAgain, per_second)),
            "paper_ratio": [least, most],
            "target": self.case.target(),
            "met": self.is_met(Side::Tenuto),
            "met_extended": self.is_met(Side::Extended),
            "rounds": self.rounds.iter().map(round).collect::<Vec<Value>>(),
        })
    }
}

const MIB: f64 = (1 << 20) as f64;

fn met(met: Option<bool>) -> &'static str {
    match met {
        None => "-",
        Some(true) => "yes",
        Some(false) => "no",
    }
}

/// How much a side changes from 80 to 40 % of allocating writes.
struct Change {
    side: Side,
    policy: Policy,
    change: Option<Spread>,
}

impl Change {
    fn is_met(&self) -> Option<bool> {
        // Of TRDCache nothing is wanted.
        let ours = self.side != Side::Trdc;
        let change = self.change.filter(|_| ours)?;
        Some(change.median.abs() <= CHANGE_WANTED)
    }

    fn text(&self) -> String {
        let policy = match self.policy {
            Policy::WriteBack => "write-back",
            _ => "write-through",
        };
        let change = self.change.map_or("-".into(), |it| it.text(100.0, 1));
        let wanted = match self.is_met() {
            None => String::new(),
            told => format!(
                ", wanted within {:.0} %: {}",
                CHANGE_WANTED * 100.0,
                met(told)
            ),
        };
        let name = self.side.key();
        format!("f11, from 80 to 40 % in {policy}, {name}: {change} % of its requests/s{wanted}")
    }

    fn document(&self) -> Value {
        json!({
            "side": self.side.key(),
            "write_back": self.policy == Policy::WriteBack,
            "change": self.change.map(|it| it.document()),
            "wanted": CHANGE_WANTED,
            "met": self.is_met(),
        })
    }
}

impl Report {
    const HEAD: [&'static str; 12] = [
        "LOAD",
        "POLICY",
        "TRDCACHE/S",
        "TENUTO/S",
        "EXTENDED/S",
        "QEMU/S",
        "TENUTO / TRDCACHE",
        "EXTENDED / TRDCACHE",
        "TRDCACHE / TRDCACHE",
        "PAPER",
        "TARGET",
        "MET",
    ];

    const PATHS_HEAD: [&'static str; 11] = [
        "LOAD",
        "POLICY",
        "SIDE",
        "REQUESTS",
        "CLUSTERS",
        "FLASH BYTES EACH",
        "BY THE KERNEL",
        "CACHE HITS EACH",
        "ORIGIN READS EACH",
        "ORIGIN WRITES EACH",
        "DESTAGED, MIB",
    ];

    fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "a new clone of a qcow2 base of {} MiB in each slot, of which OLTP uses {} MiB that it \
             has read before; {} in flight, storage of {:.1} ms and {} requests/s, cache {} MiB; \
             {} rounds of 5 x {} s for each load at most; {}",
            options.disk_bytes >> 20,
            OLTP_SPAN_BYTES.min(options.disk_bytes) >> 20,
            options.depth,
            options.origin_latency.as_secs_f64() * 1e3,
            options.origin_iops,
            options.cache_bytes >> 20,
            options.rounds,
            options.seconds,
            self.qemu_version,
        )
    }

    pub fn chapter(&self) -> Chapter {
        Chapter {
            name: "live",
            headline: self.headline(),
            machine: machine::text(),
            grids: vec![
                Grid {
                    head: &Report::HEAD,
                    rows: self.lines.iter().map(Line::cells).collect(),
                    words: 2,
                },
                // What each side asked of cache and storage.
                Grid {
                    head: &Report::PATHS_HEAD,
                    rows: self.lines.iter().flat_map(Line::paths).collect(),
                    words: 3,
                },
            ],
            notes: self.notes(),
            document: self.document(),
            unproven: self.unproven(),
        }
    }

    fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for policy in [Policy::WriteBack, Policy::WriteThrough] {
            let line = |share: u64| {
                let is = |case: &Case| matches!(case.load, Load::Ratio(it) if it == share);
                let mut lines = self.lines.iter();
                lines.find(|it| it.case.policy == policy && is(&it.case))
            };
            let (Some(from), Some(to)) = (line(800), line(400)) else {
                continue;
            };
            for side in [Side::Tenuto, Side::Extended, Side::Trdc] {
                // Only rounds that are proven in both belong together.
                let pairs = from.rounds.iter().zip(&to.rounds);
                let proven = pairs.filter(|(from, to)| {
                    let both = [from, to].map(|it| it[side as usize].is_proven());
                    both == [true, true]
                });
                let change = proven.map(|(from, to)| {
                    let rate = |it: &[Slot; 5]| it[side as usize].carried.per_second();
                    rate(to) / rate(from) - 1.0
                });
                let change = Spread::of(change);
                changes.push(Change {
                    side,
                    policy,
                    change,
                });
            }
        }
        changes
    }

    /// What is no row.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.changes().iter().map(Change::text).collect();
        let (met, targets) = self.met();
        notes.push(format!("targets met: {met} of {targets}"));
        let unproven = self.unproven().into_iter();
        notes.extend(unproven.map(|it| format!("not proven: {it}")));
        notes
    }

    /// Targets that are met with clusters of 64 KiB or by a change, and all of them.
    fn met(&self) -> (usize, usize) {
        let rows = self.lines.iter().filter_map(|it| it.is_met(Side::Tenuto));
        let changes = self.changes();
        let changes = changes.iter().filter(|it| it.side == Side::Tenuto);
        let told: Vec<bool> = rows.chain(changes.filter_map(Change::is_met)).collect();
        (told.iter().filter(|met| **met).count(), told.len())
    }

    /// What did not show what it should.
    fn unproven(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for line in self.lines.iter().filter(|it| it.proven().count() == 0) {
            let slots = line.rounds.iter().flatten();
            let mut sides: Vec<&str> = slots
                .filter(|slot| !slot.is_proven())
                .map(|slot| slot.side.key())
                .collect();
            sides.sort_unstable();
            sides.dedup();
            wrong.push(format!(
                "{}, {}: no round in which the counters show the path of all sides ({})",
                line.case.name,
                line.case.policy_name(),
                sides.join(", ")
            ));
        }
        wrong
    }

    fn document(&self) -> Value {
        let options = &self.options;
        let changes = self.changes();
        let (met, targets) = self.met();
        json!({
            "benchmark": "cow live",
            "machine": machine::document(),
            "qemu": self.qemu_version,
            "parameters": {
                "rounds": options.rounds,
                "seconds": options.seconds,
                "queue_depth": options.depth,
                "disk_bytes": options.disk_bytes,
                "cache_bytes": options.cache_bytes,
                "origin_latency_ms": options.origin_latency.as_secs_f64() * 1e3,
                "origin_iops": options.origin_iops,
                "seed": options.seed,
            },
            "rows": self.lines.iter().map(Line::document).collect::<Vec<Value>>(),
            "changes": changes.iter().map(Change::document).collect::<Vec<Value>>(),
            "targets": targets,
            "targets_met": met,
            "unproven": self.unproven(),
        })
    }
}
