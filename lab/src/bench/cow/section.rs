//! What an experiment shows: loads, what came of them on each side, and the paper's figure beside.
//!
//! Always true: a ratio is ours for each of the baseline's, so less is better; what is not measured
//! is a note and never a number. Deliberately absent: which loads an experiment has.

use super::paper::GIB;
use super::side::{Kind, Measured};
use crate::replay::tally::Count;
use serde_json::{Value, json};

/// One load on both sides.
pub struct Case {
    pub name: String,
    pub sides: Vec<(Kind, Measured)>,
}

impl Case {
    pub fn of(&self, wanted: impl Fn(Kind) -> bool) -> Option<&Measured> {
        let mut sides = self.sides.iter().filter(|(kind, _)| wanted(*kind));
        sides.next().map(|(_, measured)| measured)
    }
}

/// One figure of both sides.
pub struct Comparison {
    pub case: String,
    pub what: &'static str,
    pub baseline: f64,
    pub ours: f64,
    /// The same ratio, as the paper prints it of COWCache.
    pub paper: Option<f64>,
    /// The most that ours may be.
    pub target: Option<f64>,
}

impl Comparison {
    pub fn ratio(&self) -> f64 {
        match self.baseline {
            0.0 if self.ours == 0.0 => 0.0,
            baseline => self.ours / baseline,
        }
    }

    pub fn is_met(&self) -> Option<bool> {
        self.target.map(|target| self.ratio() <= target)
    }

    pub const HEAD: [&'static str; 8] = [
        "case", "what", "TRDCache", "Tenuto", "ratio", "paper", "target", "met",
    ];

    pub fn cells(&self) -> Vec<String> {
        let or = |it: Option<f64>| it.map_or("-".into(), |it| format!("{it:.4}"));
        vec![
            self.case.clone(),
            self.what.into(),
            format!("{:.3}", self.baseline),
            format!("{:.3}", self.ours),
            format!("{:.4}", self.ratio()),
            or(self.paper),
            or(self.target),
            match self.is_met() {
                None => "-",
                Some(true) => "yes",
                Some(false) => "no",
            }
            .into(),
        ]
    }

    fn document(&self) -> Value {
        json!({
            "case": self.case,
            "what": self.what,
            "baseline": self.baseline,
            "ours": self.ours,
            "ratio": self.ratio(),
            "paper_ratio": self.paper,
            "target": self.target,
            "met": self.is_met(),
        })
    }
}

pub struct Section {
    /// Names of the paper's figures and tables.
    pub name: &'static str,
    pub title: &'static str,
    pub input: String,
    pub cases: Vec<Case>,
    pub comparisons: Vec<Comparison>,
    pub notes: Vec<String>,
    /// As SVG.
    pub plots: Vec<(String, String)>,
}

pub const SIDES_HEAD: [&str; 14] = [
    "case",
    "side",
    "requests",
    "guest wrote, GiB",
    "flash, GiB",
    "tables",
    "headers",
    "fills",
    "network, GiB",
    "journal",
    "read back",
    "misses per request",
    "later",
    "index",
];

/// What the heads mean.
pub const SIDES_LEGEND: &str = "flash: written to the cache device, without what a new device is \
    prepared with; of it tables of the image (at most), headers and footers of the log, and fills \
    with clean blocks; network: to and from storage, journal and ledger included, all of it \
    destaged; read back: of the journal, to apply it; misses per request: tables that a guest's \
    request waited for; later: table reads of destages, for each request; index: RAM of the \
    cache's index for each byte cached";

impl Section {
    pub fn sides(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for case in &self.cases {
            for (kind, measured) in &case.sides {
                rows.push(cells(&case.name, *kind, measured));
            }
        }
        rows
    }

    pub fn document(&self) -> Value {
        let side = |(kind, measured): &(Kind, Measured)| document(*kind, measured);
        let cases = self.cases.iter().map(|case| {
            let sides: Vec<Value> = case.sides.iter().map(side).collect();
            json!({ "case": case.name, "sides": sides })
        });
        let comparisons = self.comparisons.iter().map(Comparison::document);
        json!({
            "experiment": self.name,
            "title": self.title,
            "input": self.input,
            "cases": cases.collect::<Vec<_>>(),
            "comparisons": comparisons.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.3}", bytes as f64 / GIB)
}

fn cells(case: &str, kind: Kind, it: &Measured) -> Vec<String> {
    vec![
        case.into(),
        kind.name().into(),
        it.requests.to_string(),
        gib(it.written_bytes),
        gib(it.flash_write_bytes),
        gib(it.flash_table_bytes),
        gib(it.header_bytes()),
        gib(it.flash.fills.bytes),
        gib(it.network_bytes()),
        gib(it.origin.journal.bytes),
        gib(it.origin.journal_reads.bytes),
        format!("{:.3}", it.misses_per_request()),
        format!("{:.3}", it.later_per_request()),
        format!("{:.3} %", 100.0 * it.index_share()),
    ]
}

fn document(kind: Kind, it: &Measured) -> Value {
    let count = |count: Count| json!({ "requests": count.requests, "bytes": count.bytes });
    json!({
        "side": kind.name(),
        "requests": it.requests,
        "guest_written_bytes": it.written_bytes,
        "guest_read_bytes": it.read_bytes,
        "writes": it.writes,
        "allocating_writes": it.allocating_writes,
        "flash_write_bytes": it.flash_write_bytes,
        "flash_read_bytes": it.flash_read_bytes,
        "flash": {
            "records": count(it.flash.records),
            "footers": count(it.flash.footers),
            "fills": count(it.flash.fills),
            "other": count(it.flash.other),
            "prepared": count(it.flash.prepared),
            "table_bytes": it.flash_table_bytes,
            "header_bytes": it.header_bytes(),
        },
        "lookups": it.lookups,
        "misses": count(it.misses),
        "misses_per_request": it.misses_per_request(),
        "network_bytes": it.network_bytes(),
        "network_bytes_in_load": it.network_bytes_in_load(),
        "origin": {
            "reads": count(it.origin.reads),
            "writes": count(it.origin.writes),
            "journal": count(it.origin.journal),
            "journal_read_back": count(it.origin.journal_reads),
            "ledger": count(it.origin.ledger),
        },
        "plans": {
            "tables_read": count(it.plans.plan_tables),
            "tables_written_at_once": count(it.plans.tables_at_once),
            "tables_journaled": count(it.plans.tables_journaled),
            "copied": count(it.plans.copied),
        },
        "index_bytes": it.index_bytes,
        "empty_index_bytes": it.empty_index_bytes,
        "cached_bytes": it.cached_bytes,
    })
}
