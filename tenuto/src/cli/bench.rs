//! `tenuto bench`: figures of this machine.
//!
//! Always true: the text says what was left out of a figure.

use super::later::not_yet;
use super::tools::{Bench, BenchBurst, BenchEngine};
use super::{Context, output};
use crate::bench::burst;
use crate::bench::engine::{BenchError, Figures, Options, run as measure};
use crate::config::units::{human_bytes, parse_size};
use crate::error::{Error, Result};
use engine::types::DestageMode;
use serde_json::{Value, json};

/// What the design asks of the engine.
const WANTED_PER_SECOND: f64 = 1e6;

pub fn run(context: &Context, command: &Bench) -> Result<()> {
    match command {
        Bench::Engine(command) => engine(context, command),
        Bench::Micro(_) => Err(not_yet("bench micro")),
        Bench::Burst(command) => burst(context, command),
        Bench::Desktops(_) => Err(not_yet("bench desktops")),
        Bench::Storm(_) => Err(not_yet("bench storm")),
        Bench::Destage(_) => Err(not_yet("bench destage")),
    }
}

fn engine(context: &Context, command: &BenchEngine) -> Result<()> {
    let span_bytes = parse_size(&command.span).ok_or_else(|| {
        Error::usage(format!(
            "--span {}: not a size; use bytes or a number with KiB, MiB, GiB or TiB",
            command.span
        ))
    })?;
    let options = Options {
        extents: command.extents,
        span_bytes,
        operations: command.operations,
        seed: command.seed,
    };
    if command.rounds == 0 {
        return Err(Error::usage("--rounds 0: give at least one"));
    }
    let (mut engine, mut whole) = (Rounds::default(), Rounds::default());
    for _ in 0..command.rounds {
        engine.0.push(measure(options, false).map_err(refused)?);
        whole.0.push(measure(options, true).map_err(refused)?);
    }
    let document = json!({
        "benchmark": "engine",
        "cores": 1,
        "extents": engine.median().extents,
        "span_bytes": span_bytes,
        "operations": command.operations,
        "rounds": command.rounds,
        "seed": command.seed,
        "wanted_per_second": WANTED_PER_SECOND,
        "engine": figures(&engine),
        "with_copies_and_crc32c": figures(&whole),
    });
    context
        .output()
        .document(&document, || text(command, options, &engine, &whole))
}

fn burst(context: &Context, command: &BenchBurst) -> Result<()> {
    let options = burst::Options {
        scale: command.scale,
        destage: match command.destage.as_str() {
            "atomic" => DestageMode::Atomic,
            _ => DestageMode::InPlace,
        },
        report: command.report.clone(),
        seed: command.seed,
    };
    let report = burst::run(&options)?;
    context.output().document(&report.document(), || {
        let head = [
            "",
            "WRITES/S",
            "P50 MS",
            "P99 MS",
            "DESTAGED/S",
            "SLOWED S",
            "DELAY MS",
        ];
        let table = output::table(&head, &report.rows(), &[1, 2, 3, 4, 5, 6]);
        let path = options.report.display();
        format!("{}\n\n{table}\nplots: {path}\n", report.headline())
    })
}

/// The rounds of one measurement.
#[derive(Default)]
struct Rounds(Vec<Figures>);

impl Rounds {
    fn sorted(&self) -> Vec<Figures> {
        let mut sorted = self.0.clone();
        sorted.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
        sorted
    }

    /// The round in the middle by its speed.
    fn median(&self) -> Figures {
        self.sorted()[self.0.len() / 2]
    }

    fn slowest_and_fastest(&self) -> (f64, f64) {
        let sorted = self.sorted();
        let of = |figures: Option<&Figures>| figures.map_or(0.0, Figures::per_second);
        (of(sorted.first()), of(sorted.last()))
    }
}

fn figures(rounds: &Rounds) -> Value {
    let figures = rounds.median();
    let (slowest, fastest) = rounds.slowest_and_fastest();
    json!({
        "overwrite_ns": figures.overwrite_ns,
        "overwrites_per_second": figures.per_second(),
        "overwrites_per_second_slowest": slowest,
        "overwrites_per_second_fastest": fastest,
        "overwrite_cpu_ns": figures.overwrite_cpu_ns,
        "insert_ns": figures.fill_ns,
        "bytes_per_extent": figures.bytes_per_extent,
        "log_writes": figures.log_writes,
    })
}

fn text(command: &BenchEngine, options: Options, engine: &Rounds, whole: &Rounds) -> String {
    let row = |name: &str, rounds: &Rounds| {
        let figures = rounds.median();
        let (slowest, fastest) = rounds.slowest_and_fastest();
        vec![
            name.to_owned(),
            format!("{:.0}", figures.overwrite_ns),
            figures
                .overwrite_cpu_ns
                .map_or("-".into(), |ns| format!("{ns:.0}")),
            format!("{:.0}", figures.per_second()),
            format!("{slowest:.0}-{fastest:.0}"),
            format!("{:.0}", figures.fill_ns),
            format!("{:.1}", figures.bytes_per_extent),
        ]
    };
    let head = [
        "4 KIB WRITE HITS",
        "NS EACH",
        "NS ON CPU",
        "PER CORE-SECOND",
        "ALL ROUNDS",
        "NS FIRST WRITE",
        "BYTES PER EXTENT",
    ];
    let rows = [
        row("engine, payload neither copied nor summed", engine),
        row("engine with copies and CRC-32C", whole),
    ];
    format!(
        "one core, {} dirty extents scattered over {}, {} overwrites in each of {} rounds, no \
         devices, no sockets\n\n{}",
        engine.median().extents,
        human_bytes(options.span_bytes),
        options.operations,
        command.rounds,
        output::table(&head, &rows, &[1, 2, 3, 4, 5, 6]),
    )
}

fn refused(error: BenchError) -> Error {
    match error {
        BenchError::Options(why) => Error::usage(why),
        error => Error::failed(error.to_string()),
    }
}
