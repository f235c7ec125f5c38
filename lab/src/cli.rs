//! The commands of the lab: demonstration, simulator, benchmarks and traces.
//!
//! Owns their arguments and their words. Always true: they print, fail and exit as the commands
//! of the product do, by the same code.

mod bench;
mod bench_cluster;
mod bench_cow;
mod bench_durability;
mod demo;
mod sim;
pub mod tools;
mod trace;
mod trace_agent;
mod trace_agents;
mod trace_analyze;
mod trace_live;
mod trace_record;
mod trace_replay;
mod trace_synth;

use clap::Subcommand;
use host::cli::Context;
use host::error::Result;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Clones of an image and a disk that is kept, on raw images, on qcow2 overlays and on Tenuto
    Demo(tools::Demo),
    /// Run the engine against a simulated host that is killed and loses power
    Sim(tools::Sim),
    /// Measure the running product or its engine
    #[command(subcommand)]
    Bench(tools::Bench),
    /// Look at block traces and convert them
    #[command(subcommand)]
    Trace(trace::Command),
}

pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Demo(command) => demo::run(context, &command),
        Command::Sim(command) => sim::run(context, &command),
        Command::Bench(command) => bench::run(context, &command),
        Command::Trace(command) => trace::run(context, command),
    }
}
