//! The figures of figure 4, for people and for programs.
//!
//! Always true: a ratio is of medians of slots of one round; our files are held against those that
//! QEMU wrote with the same clusters. Deliberately absent: how a slot is measured.

use super::{Extents, Options, Round, Verb, Way};
use crate::bench::cow::chapter::{Chapter, Grid};
use crate::bench::cow::served::Kind;
use crate::bench::rounds::{Spread, cell};
use crate::machine;
use serde_json::{Value, json};

/// The most that the paper's figure has of an SSD.
const PAPER: [(Verb, Option<f64>); 2] = [(Verb::Read, Some(3.3)), (Verb::Write, None)];

pub struct Report {
    pub(super) options: Options,
    pub(super) qemu_version: String,
    /// Of reads, and of writes.
    pub(super) rounds: [Vec<Round>; 2],
    pub(super) extents: Vec<Extents>,
}

const HEAD: [&str; 8] = [
    "64 KIB",
    "WHOLE, US",
    "16 AT ONCE, US",
    "16 ONE BY ONE, US",
    "AT ONCE / WHOLE",
    "ONE BY ONE / WHOLE",
    "WHOLE / WHOLE",
    "PAPER, SSD",
];

const EXTENTS_HEAD: [&str; 6] = [
    "WRITTEN BY",
    "EXTENTS",
    "MIB",
    "MEAN EXTENT, KIB",
    "OF QEMU'S",
    "MET",
];

fn ratio(rounds: &[Round], over: Way) -> Option<Spread> {
    let ratios = rounds.iter().map(|it| it[over as usize] / it[0]);
    Spread::of(ratios)
}

fn micros(rounds: &[Round], way: Way) -> Option<Spread> {
    Spread::of(rounds.iter().map(|it| it[way as usize] * 1e6))
}

impl Report {
    /// The file that QEMU wrote with clusters like those.
    fn peer(&self, kind: Kind) -> Option<&Extents> {
        let peer = Kind::Qemu(kind.shape());
        let mut extents = self.extents.iter();
        extents.find(|it| it.kind == peer && kind != peer)
    }

    fn of_qemu(&self, extents: &Extents) -> Option<f64> {
        let peer = self.peer(extents.kind)?;
        Some(extents.mean_bytes() / peer.mean_bytes())
    }

    fn is_met(&self, extents: &Extents) -> Option<bool> {
        self.of_qemu(extents).map(|it| it >= 1.0)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let rows = PAPER.iter().zip(&self.rounds);
        rows.map(|((verb, paper), rounds)| {
            vec![
                verb.name().into(),
                cell(micros(rounds, Way::Whole), 0),
                cell(micros(rounds, Way::Scattered), 0),
                cell(micros(rounds, Way::OneByOne), 0),
                cell(ratio(rounds, Way::Scattered), 2),
                cell(ratio(rounds, Way::OneByOne), 2),
                cell(ratio(rounds, Way::WholeAgain), 2),
                paper.map_or("-".into(), |it| format!("<= {it:.1}")),
            ]
        })
        .collect()
    }

    fn extent_rows(&self) -> Vec<Vec<String>> {
        let rows = self.extents.iter().map(|it| {
            vec![
                it.kind.name().into(),
                it.count.to_string(),
                format!("{:.1}", it.bytes as f64 / (1 << 20) as f64),
                format!("{:.1}", it.mean_bytes() / 1024.0),
                self.of_qemu(it).map_or("-".into(), |it| format!("{it:.2}")),
                match self.is_met(it) {
                    None => "-".into(),
                    Some(true) => "yes".into(),
                    Some(false) => "no".into(),
                },
            ]
        });
        rows.collect()
    }

    fn unproven(&self) -> Vec<String> {
        let wrong = self.extents.iter().filter(|it| !it.is_proven());
        wrong.map(|it| it.kind.name().to_owned()).collect()
    }

    fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "64 KiB of a bare file of {} MiB, whole and as 16 scattered blocks, {} rounds of {} \
             accesses; and what the files have after {} random writes of 4 KiB to a new clone of a \
             full base; {}",
            options.disk_bytes >> 20,
            options.rounds,
            options.accesses,
            self.extents.first().map_or(0, |it| it.writes),
            self.qemu_version,
        )
    }

    pub fn chapter(&self) -> Chapter {
        let unproven = self.unproven().into_iter();
        Chapter {
            name: "f4",
            headline: self.headline(),
            machine: machine::text(),
            grids: vec![
                Grid {
                    head: &HEAD,
                    rows: self.rows(),
                    words: 1,
                },
                Grid {
                    head: &EXTENTS_HEAD,
                    rows: self.extent_rows(),
                    words: 1,
                },
            ],
            notes: unproven.map(|it| format!("not proven: {it}")).collect(),
            document: self.document(),
            unproven: self.unproven(),
        }
    }

    fn document(&self) -> Value {
        let spread = |it: Option<Spread>| it.map(|it| it.document());
        let accesses = PAPER
            .iter()
            .zip(&self.rounds)
            .map(|((verb, paper), rounds)| {
                json!({
                    "verb": verb.name(),
                    "whole_us": spread(micros(rounds, Way::Whole)),
                    "at_once_us": spread(micros(rounds, Way::Scattered)),
                    "one_by_one_us": spread(micros(rounds, Way::OneByOne)),
                    "at_once_ratio": spread(ratio(rounds, Way::Scattered)),
                    "one_by_one_ratio": spread(ratio(rounds, Way::OneByOne)),
                    "a_a_ratio": spread(ratio(rounds, Way::WholeAgain)),
                    "paper_ratio": paper,
                })
            });
        let extents = self.extents.iter().map(|it| {
            json!({
                "side": it.kind.name(),
                "extents": it.count,
                "bytes": it.bytes,
                "mean_bytes": it.mean_bytes(),
                "of_qemu": self.of_qemu(it),
                "met": self.is_met(it),
                "proven": it.is_proven(),
            })
        });
        json!({
            "benchmark": "cow f4",
            "machine": machine::document(),
            "qemu": self.qemu_version,
            "parameters": {
                "rounds": self.options.rounds,
                "accesses": self.options.accesses,
                "disk_bytes": self.options.disk_bytes,
                "cache_bytes": self.options.cache_bytes,
                "seed": self.options.seed,
            },
            "accesses": accesses.collect::<Vec<Value>>(),
            "files": extents.collect::<Vec<Value>>(),
            "unproven": self.unproven(),
        })
    }
}
