//! The figures of recoveries, for people and for programs.
//!
//! Always true: only rounds whose recovery is proven are compared; a ratio is of rates of one
//! round. Deliberately absent: how a slot is measured.

use super::{Line, Options, Round, Slot};
use crate::bench::cow::chapter::{Chapter, Grid};
use crate::bench::rounds::{Spread, cell};
use crate::machine;
use host::config::units::human_bytes;
use serde_json::{Value, json};

/// Of the rate of a plain write in one run.
const WANTED: f64 = 0.9;
const MB: f64 = 1e6;

pub struct Report {
    pub(super) options: Options,
    pub(super) lines: Vec<Line>,
}

const HEAD: [&str; 11] = [
    "IMAGE",
    "WRITES OF",
    "RECOVERY, S",
    "MB/S",
    "ONE RUN, MB/S",
    "SAME PLACES, MB/S",
    "OF ONE RUN",
    "OF SAME PLACES",
    "ONE RUN, ITSELF",
    "WANTED",
    "MET",
];

impl Line {
    fn proven(&self) -> impl Iterator<Item = &Round> {
        let rounds = self.rounds.iter();
        rounds.filter(|round| round.is_proven(self.dirty_bytes))
    }

    fn seconds(&self, slot: Slot) -> Option<Spread> {
        Spread::of(self.proven().map(|it| it.seconds[slot as usize]))
    }

    fn rate(&self, slot: Slot) -> Option<Spread> {
        let rates = self.proven().map(|it| it.rate(slot, self.dirty_bytes) / MB);
        Spread::of(rates)
    }

    /// The rate of one over that of another.
    fn ratio(&self, over: Slot, under: Slot) -> Option<Spread> {
        let rate = |it: &Round, slot| it.rate(slot, self.dirty_bytes);
        let ratios = self.proven().map(|it| rate(it, over) / rate(it, under));
        Spread::of(ratios)
    }

    fn is_met(&self) -> Option<bool> {
        let ratio = self.ratio(Slot::Recovery, Slot::Sequential)?;
        Some(ratio.median >= WANTED)
    }

    fn cells(&self) -> Vec<String> {
        let rate = |slot| cell(self.rate(slot), 0);
        let ratio = |over, under| cell(self.ratio(over, under), 2);
        vec![
            self.case.image.name().into(),
            human_bytes(self.case.piece_bytes),
            cell(self.seconds(Slot::Recovery), 2),
            rate(Slot::Recovery),
            rate(Slot::Sequential),
            rate(Slot::Pattern),
            ratio(Slot::Recovery, Slot::Sequential),
            ratio(Slot::Recovery, Slot::Pattern),
            ratio(Slot::SequentialAgain, Slot::Sequential),
            format!(">= {WANTED:.1}"),
            match self.is_met() {
                None => "-",
                Some(true) => "yes",
                Some(false) => "no",
            }
            .into(),
        ]
    }

    fn document(&self) -> Value {
        let spread = |it: Option<Spread>| it.map(|it| it.document());
        let rounds = self.rounds.iter().map(|round| {
            let [sequential, pattern, recovery, again] = round.seconds;
            json!({
                "proven": round.is_proven(self.dirty_bytes),
                "sequential_seconds": sequential,
                "pattern_seconds": pattern,
                "recovery_seconds": recovery,
                "sequential_again_seconds": again,
                "dirty_bytes": round.recovered.map(|it| it.dirty_bytes),
                "left_bytes": round.recovered.map(|it| it.left_bytes),
                "image_bytes": round.recovered.map(|it| it.image_bytes),
                "wrong_places": round.recovered.map(|it| it.wrong),
            })
        });
        json!({
            "image": self.case.image.name(),
            "piece_bytes": self.case.piece_bytes,
            "rounds_proven": self.proven().count(),
            "recovery_seconds": spread(self.seconds(Slot::Recovery)),
            "recovery_mb_per_second": spread(self.rate(Slot::Recovery)),
            "of_sequential": spread(self.ratio(Slot::Recovery, Slot::Sequential)),
            "of_pattern": spread(self.ratio(Slot::Recovery, Slot::Pattern)),
            "a_a_ratio": spread(self.ratio(Slot::SequentialAgain, Slot::Sequential)),
            "target": WANTED,
            "met": self.is_met(),
            "rounds": rounds.collect::<Vec<Value>>(),
        })
    }
}

impl Report {
    fn unproven(&self) -> Vec<String> {
        let lines = self.lines.iter().filter(|it| it.proven().count() == 0);
        let told = lines.map(|line| {
            let (image, bytes) = (line.case.image.name(), line.case.piece_bytes);
            format!("{image}, {}", human_bytes(bytes))
        });
        told.collect()
    }

    fn headline(&self) -> String {
        let options = &self.options;
        let cache = match options.cache_directory {
            None => "cache and image in one directory",
            Some(_) => "the cache in a directory of its own",
        };
        format!(
            "tenuto recover of {} dirty in the cache of a dead host, from its start to its end, \
             beside plain writes of the same bytes with a sync; {cache}; {} rounds",
            human_bytes(options.dirty_bytes),
            options.rounds,
        )
    }

    pub fn chapter(&self) -> Chapter {
        let unproven = self.unproven().into_iter();
        Chapter {
            name: "recovery",
            headline: self.headline(),
            machine: machine::text(),
            grids: vec![Grid {
                head: &HEAD,
                rows: self.lines.iter().map(|it| it.cells()).collect(),
                words: 1,
            }],
            notes: unproven.map(|it| format!("not proven: {it}")).collect(),
            document: self.document(),
            unproven: self.unproven(),
        }
    }

    fn document(&self) -> Value {
        let bytes = self.options.dirty_bytes;
        let lines = self.lines.iter().map(|it| it.document());
        json!({
            "benchmark": "cow recovery",
            "machine": machine::document(),
            "parameters": {
                "rounds": self.options.rounds,
                "dirty_bytes": bytes,
                "cache_elsewhere": self.options.cache_directory.is_some(),
            },
            "rows": lines.collect::<Vec<Value>>(),
            "unproven": self.unproven(),
        })
    }
}
