//! `tenuto bench replicas`, `failover` and `migrate`: figures of a cluster of two hosts.
//!
//! Always true: the hosts are made for the run, and a host of this machine is left alone.

use super::bench::directory;
use super::tools::{BenchFailover, BenchMigrate, BenchReplicas};
use crate::bench::{failover, migrate, replicas};
use host::cli::arguments::{latency, size};
use host::cli::{Context, output, progress};
use host::error::Result;

pub fn replicas(context: &Context, command: &BenchReplicas) -> Result<()> {
    let asked = |load: &replicas::Load| command.loads.iter().any(|name| name == load.key());
    let rate = command.device_rate.as_deref();
    let rate = rate.map(|text| size("--device-rate", text.strip_suffix("/s").unwrap_or(text)));
    let options = replicas::Options {
        loads: replicas::Load::ALL.into_iter().filter(asked).collect(),
        rounds: command.rounds,
        seconds: command.seconds,
        cache_bytes: size("--cache", &command.cache)?,
        size_bytes: size("--size", &command.size)?,
        device_rate: rate.transpose()?,
        directory: directory(&command.path),
    };
    let rounds = u64::from(command.rounds) * options.loads.len() as u64;
    let template = "{bar:40} {pos} of {len} rounds, {elapsed}";
    let bar = progress::counter(context.common.quiet, rounds, template);
    let report = replicas::run(&options, |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = report?;
    context.output().document(&report.document(), || {
        let right = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let table = output::table(&replicas::HEAD, &report.rows(), &right);
        let costs = output::table(&replicas::COSTS_HEAD, &report.costs(), &right[..6]);
        let (headline, machine) = (report.headline(), report.machine());
        format!("{headline}\n{machine}\n\n{table}\n{costs}")
    })
}

pub fn failover(context: &Context, command: &BenchFailover) -> Result<()> {
    let options = failover::Options {
        rounds: command.rounds,
        seconds: command.seconds,
        cache_bytes: size("--cache", &command.cache)?,
        size_bytes: size("--size", &command.size)?,
        seed: command.seed,
        directory: directory(&command.path),
    };
    let template = "{bar:40} {pos} of {len} rounds, {elapsed}";
    let bar = progress::counter(context.common.quiet, command.rounds.into(), template);
    let report = failover::run(&options, |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = report?;
    context.output().document(&report.document(), || {
        let right = [0, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        let table = output::table(&failover::HEAD, &report.rows(), &right);
        let findings = report.findings().join("\n");
        let (headline, machine) = (report.headline(), report.machine());
        format!("{headline}\n{machine}\n\n{table}\n{findings}\n")
    })
}

pub fn migrate(context: &Context, command: &BenchMigrate) -> Result<()> {
    let dirty = command.dirty.iter().map(|text| size("--dirty", text));
    let options = migrate::Options {
        rounds: command.rounds,
        seconds: command.seconds,
        size_bytes: size("--size", &command.size)?,
        cache_bytes: size("--cache", &command.cache)?,
        dirty: dirty.collect::<Result<_>>()?,
        origin_latency: latency("--origin-latency", &command.origin_latency)?,
        seed: command.seed,
        directory: directory(&command.path),
    };
    let template = "{bar:40} {pos} of {len} moves, {elapsed}";
    let bar = progress::counter(context.common.quiet, options.steps(), template);
    let report = migrate::run(&options, |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = report?;
    context.output().document(&report.document(), || {
        let right = [0, 1, 2, 3, 4, 5, 6, 7];
        let table = output::table(&migrate::HEAD, &report.rows(), &right);
        let switch = output::table(&migrate::SWITCH_HEAD, &report.switch_rows(), &right[..7]);
        let findings = report.findings().join("\n");
        let (headline, machine) = (report.headline(), report.machine());
        format!("{headline}\n{machine}\n\n{table}\n{findings}\n\n{switch}")
    })
}
