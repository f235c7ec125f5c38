//! Arguments of the commands that drive the product instead of serving with it.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// A gold image on a simulated SAN, clones and a write-back volume, with and without the cache
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "tenuto-demo.html")]
    pub report: PathBuf,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Do not boot guests, use the built-in client
    #[arg(long)]
    pub no_guests: bool,
}

/// Run the engine against a simulated host that is killed and loses power
#[derive(Clone, Debug, Args)]
pub struct Sim {
    /// Seed of the run; without it, one is chosen and printed
    #[arg(long)]
    pub seed: Option<u64>,
    /// Stop after this time; a seed that was asked for runs to its end
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub seconds: u64,
    /// Stop after this many seeds
    #[arg(long, value_name = "N")]
    pub seeds: Option<u64>,
    /// Operations of each seed
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub operations: u64,
}

/// Measure the running product or its engine
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Speed of the engine alone: write hits per second, bytes per extent
    Engine(BenchEngine),
    /// Requests against other servers (not in this version)
    Micro(super::later::Rest),
    /// Bursts of a database over a simulated SAN, short and sustained
    Burst(BenchBurst),
    /// Virtual desktops over a simulated SAN (not in this version)
    Desktops(super::later::Rest),
    /// Many hosts boot one image (not in this version)
    Storm(super::later::Rest),
    /// Guest speed during a destage (not in this version)
    Destage(super::later::Rest),
}

#[derive(Clone, Debug, Args)]
pub struct BenchBurst {
    /// All times and limits are divided by this; 1 takes 36 minutes
    #[arg(long, value_name = "N", default_value_t = 20.0)]
    pub scale: f64,
    /// Destage through a journal (atomic) or directly (in-place)
    #[arg(long, value_name = "MODE", default_value = "in-place")]
    #[arg(value_parser = ["in-place", "atomic"])]
    pub destage: String,
    /// Where the plots go
    #[arg(long, value_name = "FILE", default_value = "tenuto-burst.html")]
    pub report: PathBuf,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Clone, Debug, Args)]
pub struct BenchEngine {
    /// Extents in the map before measuring
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub extents: u64,
    /// Size of the volume over which they are scattered
    #[arg(long, value_name = "SIZE", default_value = "1TiB")]
    pub span: String,
    /// Write hits that are measured in each round
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    pub operations: u64,
    /// Rounds of each measurement, in turn; the median counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: u32,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}
