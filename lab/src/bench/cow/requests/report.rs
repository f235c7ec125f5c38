//! The figures of figure 3, for people and for programs.
//!
//! Always true: a request is a read or a write of the storage, of data, tables, journal or ledger;
//! syncs stand apart; the paper's figures are the most that it shows of QEMU. Deliberately absent:
//! which operations there are.

use super::{Options, Replayed, Row};
use crate::bench::cow::chapter::{Chapter, Grid};
use crate::bench::cow::side::Measured;
use crate::machine;
use host::config::units::human_bytes;
use serde_json::{Value, json};

/// A trace's requests at the storage for one of the guest: wanted are less.
const TRACE_WANTED: f64 = 1.0;

pub struct Report {
    pub(super) options: Options,
    pub(super) qemu_version: String,
    pub(super) rows: Vec<Row>,
    pub(super) replayed: Vec<Replayed>,
}

const HEAD: [&str; 11] = [
    "OPERATION",
    "TABLES",
    "SIDE",
    "READS",
    "WRITES",
    "JOURNAL",
    "ALL",
    "KIB",
    "SYNCS",
    "AT MOST",
    "MET",
];

const TRACES_HEAD: [&str; 8] = [
    "TRACE", "CACHE", "SIDE", "READS", "WRITES", "JOURNAL", "ALL", "MET",
];

fn met(met: Option<bool>) -> String {
    match met {
        None => "-",
        Some(true) => "yes",
        Some(false) => "no",
    }
    .into()
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let requests = &self.requests;
        let each = |count: u64| format!("{:.3}", self.each(count));
        vec![
            self.operation.name().into(),
            self.apart.name().into(),
            self.kind.name().into(),
            each(requests.reads),
            each(requests.writes),
            each(requests.beside),
            each(requests.all()),
            format!("{:.1}", self.each(requests.bytes()) / 1024.0),
            each(requests.syncs),
            match self.operation.target(self.kind) {
                Some(target) => format!("{target:.1}"),
                None => "-".into(),
            },
            met(self.is_met()),
        ]
    }

    fn document(&self) -> Value {
        json!({
            "operation": self.operation.name(),
            "tables": self.apart.name(),
            "side": self.kind.name(),
            "guest_requests": self.count,
            "storage": self.requests.document(),
            "requests_each": self.each(self.requests.all()),
            "paper": self.operation.paper(),
            "target": self.operation.target(self.kind),
            "met": self.is_met(),
            "proven": self.proven,
        })
    }
}

fn each(measured: &Measured, count: u64) -> f64 {
    count as f64 / measured.requests.max(1) as f64
}

impl Replayed {
    /// Of a side that is ours.
    fn is_met(kind: crate::bench::cow::side::Kind, measured: &Measured) -> Option<bool> {
        match kind {
            crate::bench::cow::side::Kind::Stacked(_) => None,
            _ => Some(each(measured, measured.origin.requests()) < TRACE_WANTED),
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let sides = self.sides.iter().map(|(kind, measured)| {
            let origin = &measured.origin;
            let shown = |count: u64| format!("{:.3}", each(measured, count));
            vec![
                self.trace.clone(),
                human_bytes(self.cache_bytes),
                kind.name().into(),
                shown(origin.reads.requests),
                shown(origin.writes.requests),
                shown(origin.beside()),
                shown(origin.requests()),
                met(Replayed::is_met(*kind, measured)),
            ]
        });
        sides.collect()
    }

    fn document(&self) -> Value {
        let sides = self.sides.iter().map(|(kind, measured)| {
            let origin = &measured.origin;
            json!({
                "side": kind.name(),
                "guest_requests": measured.requests,
                "reads": origin.reads.requests,
                "writes": origin.writes.requests,
                "journal_and_ledger": origin.beside(),
                "requests_each": each(measured, origin.requests()),
                "met": Replayed::is_met(*kind, measured),
            })
        });
        json!({
            "trace": self.trace,
            "cache_bytes": self.cache_bytes,
            "sides": sides.collect::<Vec<Value>>(),
        })
    }
}

impl Report {
    fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "requests at the storage for one of the guest; {} operations of 4 KiB that need a \
             table each, {} close together, {} in flight, empty caches, a flush and a destage \
             behind all of them; traces by the engine in virtual time; {}",
            options.far, options.near, options.depth, self.qemu_version
        )
    }

    fn unproven(&self) -> Vec<String> {
        let rows = self.rows.iter().filter(|row| !row.proven);
        let told = rows.map(|row| {
            let [operation, apart] = [row.operation.name(), row.apart.name()];
            format!("{operation}, {apart}, {}", row.kind.name())
        });
        told.collect()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "reads, writes: of data and tables; journal: with the ledger and the header of the \
             image; the paper has at most 13, 2, 2 and 3 of QEMU, and 2.59 to 3.59 of traces"
                .to_owned(),
        ];
        let (met, targets) = self.met();
        notes.push(format!("targets met: {met} of {targets}"));
        let unproven = self.unproven().into_iter();
        notes.extend(unproven.map(|it| format!("not proven: {it}")));
        notes
    }

    fn met(&self) -> (usize, usize) {
        let rows = self.rows.iter().filter_map(Row::is_met);
        let sides = self.replayed.iter().flat_map(|it| &it.sides);
        let traces = sides.filter_map(|(kind, measured)| Replayed::is_met(*kind, measured));
        let told: Vec<bool> = rows.chain(traces).collect();
        (told.iter().filter(|met| **met).count(), told.len())
    }

    pub fn chapter(&self) -> Chapter {
        Chapter {
            name: "f3",
            headline: self.headline(),
            machine: machine::text(),
            grids: vec![
                Grid {
                    head: &HEAD,
                    rows: self.rows.iter().map(Row::cells).collect(),
                    words: 3,
                },
                Grid {
                    head: &TRACES_HEAD,
                    rows: self.replayed.iter().flat_map(Replayed::rows).collect(),
                    words: 3,
                },
            ],
            notes: self.notes(),
            document: self.document(),
            unproven: self.unproven(),
        }
    }

    fn document(&self) -> Value {
        let options = &self.options;
        let (met, targets) = self.met();
        json!({
            "benchmark": "cow f3",
            "machine": machine::document(),
            "qemu": self.qemu_version,
            "parameters": {
                "far": options.far,
                "near": options.near,
                "queue_depth": options.depth,
                "scale": options.scale,
                "seed": options.seed,
            },
            "rows": self.rows.iter().map(Row::document).collect::<Vec<Value>>(),
            "traces": self.replayed.iter().map(Replayed::document).collect::<Vec<Value>>(),
            "targets": targets,
            "targets_met": met,
            "unproven": self.unproven(),
        })
    }
}
