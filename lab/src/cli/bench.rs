//! `tenuto bench`: figures of this machine.
//!
//! Always true: the text says what was left out of a figure.

use super::tools::{
    Bench, BenchBurst, BenchDesktops, BenchDestage, BenchEngine, BenchImages, BenchMicro,
    BenchNeighbour, BenchPolicies, BenchRecord, BenchRestart,
};
use super::{bench_cluster, bench_cow, bench_durability};
use crate::bench::engine::{BenchError, Figures, Options, run as measure};
use crate::bench::micro::peer::Program;
use crate::bench::{
    burst, desktops, destage, images, micro, neighbour, policies, range, record, restart,
};
use crate::report;
use crate::vhost_client::Wait;
use engine::event::Admission;
use engine::types::{DestageMode, Policy};
use host::cli::arguments::{latency, millis, size};
use host::cli::later::not_yet;
use host::cli::progress;
use host::cli::{Context, output};
use host::config::units::human_bytes;
use host::error::{Error, Result};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use workload::synth::Pattern;

/// What the design asks of the engine.
const WANTED_PER_SECOND: f64 = 1e6;

pub fn run(context: &Context, command: &Bench) -> Result<()> {
    match command {
        Bench::Engine(command) => engine(context, command),
        Bench::Micro(command) => micro(context, command),
        Bench::Burst(command) => burst(context, command),
        Bench::Desktops(command) => desktops(context, command),
        Bench::Storm(_) => Err(not_yet("bench storm")),
        Bench::Destage(command) => destage(context, command),
        Bench::Neighbour(command) => neighbour(context, command),
        Bench::Policies(command) => policies(context, command),
        Bench::Record(command) => record(context, command),
        Bench::Restart(command) => restart(context, command),
        Bench::Replicas(command) => bench_cluster::replicas(context, command),
        Bench::Failover(command) => bench_cluster::failover(context, command),
        Bench::Migrate(command) => bench_cluster::migrate(context, command),
        Bench::Images(command) => images(context, command),
        Bench::Cow(command) => bench_cow::run(context, command),
        Bench::Durability(command) => bench_durability::run(context, command),
    }
}

fn engine(context: &Context, command: &BenchEngine) -> Result<()> {
    let span_bytes = size("--span", &command.span)?;
    let options = Options {
        extents: command.extents,
        span_bytes,
        operations: command.operations,
        seed: command.seed,
    };
    range::at_least_one("--rounds", command.rounds)?;
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
        destage: mode(&command.destage),
        html: command.html.clone(),
        seed: command.seed,
    };
    let report = burst::run(&options)?;
    context.output().document(&report.document(), || {
        let table = output::table(&burst::Report::HEAD, &report.rows(), &[1, 2, 3, 4, 5, 6, 7]);
        let head = burst::Report::FINDINGS_HEAD;
        let findings = output::table(&head, &report.findings(), &[]);
        let (headline, machine) = (report.headline(), report.machine());
        let path = options.html.display();
        format!("{headline}\n{machine}\n\n{table}\n{findings}plots: {path}\n")
    })
}

fn admission(name: &str) -> Admission {
    match name {
        "all" => Admission::All,
        _ => Admission::Reuse,
    }
}

fn policies(context: &Context, command: &BenchPolicies) -> Result<()> {
    let options = policies::Options {
        desktops: command.desktops,
        seed: command.seed,
        cache_bytes: size("--cache", &command.cache)?,
        ram_bytes: size("--ram", &command.ram)?,
        destage_after_ms: millis("--destage-after", &command.destage_after)?,
        destage: mode(&command.destage),
        admission: admission(&command.admission),
        qcow2_desktops: command.qcow2,
    };
    report::check(command.html.as_deref())?;
    let seconds = policies::seconds_of(&options) * policies::Column::RUN.len() as u64;
    let template = "{bar:40} {percent} % {elapsed}, {eta} left";
    let bar = progress::counter(context.common.quiet, seconds, template);
    let report = policies::run(&options, |done| bar.set_position(done));
    bar.finish_and_clear();
    let mut report = report?;
    let bar = progress::counter(context.common.quiet, report.to_play(), template);
    report.play(&|more| bar.inc(more));
    bar.finish_and_clear();
    if let Some(path) = &command.html {
        report::save(path, &policies::page::html(&report))?;
    }
    context.output().document(&report.document(), || {
        let head = report.head();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let table = output::table(&head, &report.rows(), &[1, 2, 3, 4, 5, 6, 7, 8]);
        let head = policies::Report::SPLIT_HEAD;
        let split = output::table(&head, &report.split_rows(), &[1, 2, 3, 4, 5, 6]);
        let split = format!("{split}\n{}\n", report.split_line());
        format!(
            "{table}\n{split}\n{}{}",
            report.proof(),
            qcow2_text(&report)
        )
    })?;
    match &report.qcow2 {
        policies::Played::Failed(error) => Err(error.clone()),
        _ => Ok(()),
    }
}

/// The table of qcow2 against raw, or why there is none.
fn qcow2_text(report: &policies::Report) -> String {
    if let policies::Played::Done(measured) = &report.qcow2 {
        let right = [3, 4, 5, 6, 7, 8, 9, 10, 11];
        let table = output::table(&policies::qcow2::Measured::HEAD, &measured.rows(), &right);
        return format!("\n{}\n\n{table}", measured.headline());
    }
    let line = report.qcow2_line();
    line.map_or(String::new(), |line| format!("\n{line}\n"))
}

fn desktops(context: &Context, command: &BenchDesktops) -> Result<()> {
    let origin_latency = latency("--origin-latency", &command.origin_latency)?;
    let path_latency = command.path_latency.as_deref();
    let path_latency = path_latency.map(|text| latency("--path-latency", text));
    let after = millis("--destage-after", &command.destage_after)?;
    let named = |case: &desktops::Case| command.cases.iter().any(|name| name == case.key());
    let options = desktops::Options {
        users: command.users.clone(),
        pattern: Pattern::ALL
            .into_iter()
            .find(|pattern| pattern.name() == command.pattern)
            .unwrap_or(Pattern::Office),
        cases: desktops::Case::ALL.into_iter().filter(named).collect(),
        policy: match command.policy.as_str() {
            "write-through" => Policy::WriteThrough,
            "ephemeral" => Policy::Ephemeral,
            _ => Policy::WriteBack,
        },
        origin_latency,
        origin_iops: command.origin_iops,
        path_latency: path_latency.transpose()?.unwrap_or(origin_latency / 2),
        seconds: command.seconds,
        destage: mode(&command.destage),
        destage_after: Duration::from_millis(after),
        admission: admission(&command.admission),
        cache_bytes: size("--cache", &command.cache)?,
        ram_bytes: size("--ram", &command.ram)?,
        seed: command.seed,
        directory: directory(&command.path),
        html: command.html.clone(),
    };
    let runs = options.users.len() * options.cases.len();
    let template = "{bar:40} {percent} % {elapsed}, {eta} left";
    let whole = (runs as f64 * options.seconds).ceil() as u64;
    let bar = progress::counter(context.common.quiet, whole, template);
    let report = desktops::run(&options, |seconds| bar.set_position(seconds as u64));
    bar.finish_and_clear();
    let report = report?;
    context.output().document(&report.document(), || {
        let right = [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let table = output::table(&desktops::Report::HEAD, &report.rows(), &right);
        let findings: String = report
            .findings()
            .iter()
            .map(|it| format!("{it}\n"))
            .collect();
        let page = options.html.as_ref();
        let page = page.map_or(String::new(), |path| format!("plots: {}\n", path.display()));
        let (headline, machine) = (report.headline(), report.machine());
        format!("{headline}\n{machine}\n\n{table}\n{findings}{page}")
    })?;
    match report.errors() {
        0 => Ok(()),
        errors => Err(Error::failed(format!(
            "bench desktops: {errors} requests were answered with an error"
        ))),
    }
}

fn mode(name: &str) -> DestageMode {
    match name {
        "atomic" => DestageMode::Atomic,
        _ => DestageMode::InPlace,
    }
}

pub fn directory(path: &Option<PathBuf>) -> PathBuf {
    path.clone().unwrap_or_else(std::env::temp_dir)
}

fn destage(context: &Context, command: &BenchDestage) -> Result<()> {
    let slots = &command.slots;
    let options = destage::Options {
        origin_latency: latency("--origin-latency", &slots.origin_latency)?,
        origin_iops: slots.origin_iops,
        rounds: slots.rounds,
        seconds: slots.seconds,
        depth: command.qd,
        writes_percent: command.writes,
        misses_per_mille: command.misses,
        cache_bytes: size("--cache", &command.cache)?,
        mode: mode(&slots.destage),
        directory: directory(&slots.path),
        html: command.html.clone(),
    };
    let report = destage::run(&options)?;
    context.output().document(&report.document(), || {
        let table = output::table(&destage::Report::HEAD, &report.rows(), &[1, 2, 3, 4, 5]);
        let page = options.html.as_ref();
        let page = page.map_or(String::new(), |path| format!("plots: {}\n", path.display()));
        let (headline, machine, proof) = (report.headline(), report.machine(), report.proof());
        format!("{headline}\n{machine}\n\n{table}\n{proof}{page}")
    })
}

fn neighbour(context: &Context, command: &BenchNeighbour) -> Result<()> {
    let slots = &command.slots;
    let options = neighbour::Options {
        origin_latency: latency("--origin-latency", &slots.origin_latency)?,
        origin_iops: slots.origin_iops,
        rounds: slots.rounds,
        seconds: slots.seconds,
        per_second: command.rate,
        mode: mode(&slots.destage),
        directory: directory(&slots.path),
    };
    let report = neighbour::run(&options)?;
    context.output().document(&report.document(), || {
        let table = output::table(&neighbour::Report::HEAD, &report.rows(), &[1, 2, 3, 4, 5]);
        format!("{}\n{}\n\n{table}", report.headline(), report.machine())
    })
}

fn record(context: &Context, command: &BenchRecord) -> Result<()> {
    let options = record::Options {
        rounds: command.rounds,
        seconds: command.seconds,
        depth: command.qd,
        directory: directory(&command.path),
    };
    let report = record::run(&options)?;
    context.output().document(&report.document(), || {
        let table = output::table(&record::Report::HEAD, &report.rows(), &[1, 2, 3, 4, 5]);
        format!("{}\n{}\n\n{table}", report.headline(), report.machine())
    })
}

fn restart(context: &Context, command: &BenchRestart) -> Result<()> {
    let options = restart::Options {
        rounds: command.rounds,
        cache_bytes: size("--cache", &command.cache)?,
        dirty_bytes: size("--dirty", &command.dirty)?,
        clones: command.clones,
        program: match &command.program {
            Some(program) => program.clone(),
            None => std::env::current_exe()
                .map_err(|error| Error::failed(format!("bench restart: {error}")))?,
        },
        directory: directory(&command.path),
    };
    let starts = u64::from(command.rounds) * restart::Way::ALL.len() as u64;
    let starts = starts * options.beside().len() as u64;
    let template = "{bar:40} {pos} of {len} starts, {elapsed}";
    let bar = progress::counter(context.common.quiet, starts, template);
    let report = restart::run(&options, |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = report?;
    context.output().document(&report.document(), || {
        let table = output::table(&restart::Report::HEAD, &report.rows(), &[1, 2, 3, 4, 5]);
        format!("{}\n{}\n\n{table}", report.headline(), report.machine())
    })
}

fn images(context: &Context, command: &BenchImages) -> Result<()> {
    let asked = |part: &images::Part| command.parts.iter().any(|name| name == part.key());
    let options = images::Options {
        parts: images::Part::ALL.into_iter().filter(asked).collect(),
        rounds: command.rounds,
        seconds: command.seconds,
        depths: command.qd.clone(),
        cache_bytes: size("--cache", &command.cache)?,
        data_bytes: size("--data", &command.data)?,
        destages: command.destages,
        writes: command.writes,
        desktop_seconds: command.desktop_seconds,
        scale: command.scale,
        fill_bytes: size("--fill", &command.fill)?,
        seed: command.seed,
        directory: directory(&command.path),
    };
    let template = "{bar:40} {pos} of {len} rounds, {elapsed}";
    let bar = progress::counter(context.common.quiet, options.steps(), template);
    let report = images::run(&options, |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = report?;
    context.output().document(&report.document(), || {
        let table = output::table(&images::Report::HEAD, &report.rows(), &[1, 3, 4, 5, 6, 7]);
        let notes: String = report.notes().iter().map(|it| format!("{it}\n")).collect();
        format!(
            "{}\n{}\n\n{table}\n{notes}",
            report.headline(),
            report.machine()
        )
    })?;
    match report.unproven().is_empty() {
        true => Ok(()),
        // The notes say what is missing; a second line would be noise.
        false => Err(Error::failed("")),
    }
}

fn micro(context: &Context, command: &BenchMicro) -> Result<()> {
    let all = micro::Row::ALL;
    let asked = |row: &micro::Row| {
        command.rows.is_empty() || command.rows.iter().any(|name| name == row.name())
    };
    let transport = match command.client.as_str() {
        "vhost-user" => {
            if command.connections.is_some() {
                return Err(Error::usage(
                    "--connections: belongs to --client nbd; --queues spreads rings",
                ));
            }
            micro::transport::Transport::VhostUser {
                queues: command.queues.unwrap_or(1),
                wait: if command.polling {
                    Wait::Polling
                } else {
                    Wait::Events
                },
            }
        }
        _ if command.polling || command.queues.is_some() => {
            return Err(Error::usage(
                "--polling and --queues: belong to --client vhost-user",
            ));
        }
        _ => micro::transport::Transport::Nbd {
            connections: command.connections.unwrap_or(1),
        },
    };
    let options = micro::Options {
        path: command.path.clone(),
        against: match command.against.as_str() {
            "raw" => micro::Against::Raw,
            "nbdkit" => micro::Against::Server(Program::Nbdkit),
            "qemu-nbd" => micro::Against::Server(Program::QemuNbd),
            "qsd" => micro::Against::Server(Program::Qsd),
            _ => micro::Against::Auto,
        },
        rows: all.into_iter().filter(asked).collect(),
        depths: command.qd.clone(),
        transport,
        rounds: command.rounds,
        seconds: command.seconds,
        size_bytes: size("--size", &command.size)?,
    };
    let report = micro::run(&options)?;
    context.output().document(&report.document(), || {
        let table = output::table(&micro::HEAD, &report.rows(), &[1, 3, 4, 5, 6, 7, 8, 9]);
        let notes: String = report.notes().iter().map(|it| format!("{it}\n")).collect();
        format!("{}\n\n{table}\n{notes}", report.headline())
    })?;
    match report.is_complete() {
        true => Ok(()),
        // The rows say what is missing; a second line would be noise.
        false => Err(Error::failed("")),
    }
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
