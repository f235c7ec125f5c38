//! The command line of the product: arguments first, effects later.
//!
//! Owns the form of its commands and what all commands share, also those of other crates: exit
//! codes, the one line of an error, `--json`. Always true: standard output carries the result and
//! nothing else; a failed command prints one line on standard error, and with `--json` one document
//! on standard output. Deliberately absent: what commands do, which is in one file for each family,
//! and the binary, which joins them with those of the lab.

mod advise;
mod agent;
mod alive;
pub mod arguments;
mod attach;
mod cache;
mod checkpoint;
mod cluster;
mod clustered;
mod config;
mod copies;
mod device;
mod drain;
mod events;
mod give;
mod image;
pub mod later;
mod live;
mod log;
mod map;
mod monitors;
mod moved;
mod offline;
mod origin;
pub mod output;
mod peer;
mod pool;
pub mod progress;
mod recover;
mod relayout;
mod reload;
mod reply;
mod scrub;
mod serve;
mod signals;
mod split;
mod status;
mod supervisor;
mod surrogate;
mod top;
mod trial;
mod volume;

use crate::admin::client::Client;
use crate::config::{self as configuration, Config};
use crate::error::{Error, Result};
use clap::{Args, Subcommand, ValueEnum};
use output::Output;
use serde_json::json;
use std::io::IsTerminal;
use std::path::PathBuf;

/// What every command takes.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Configuration file; default: $TENUTO_CONFIG, else /etc/tenuto/tenuto.toml
    #[arg(short, long, global = true, value_name = "FILE", display_order = 100)]
    pub config: Option<PathBuf>,
    /// Admin socket of the daemon; default: from the configuration
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "TENUTO_SOCKET",
        display_order = 101
    )]
    pub socket: Option<PathBuf>,
    /// One JSON document on standard output; of `top` and `events` one on each line
    #[arg(long, global = true, display_order = 102)]
    pub json: bool,
    /// Say less: no confirmation, no progress
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 103)]
    pub quiet: u8,
    /// Say more; twice for even more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 104)]
    pub verbose: u8,
    /// When to use colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        display_order = 105
    )]
    pub color: Color,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon in the foreground
    Serve(serve::Serve),
    /// Try one image behind a temporary cache, as any user; nothing is left behind at the end
    Try(trial::Try),
    /// List, show, add, change and remove volumes
    #[command(subcommand)]
    Volume(volume::Command),
    /// Show the state of the daemon, its cache and its volumes
    Status(status::Status),
    /// Watch the daemon and its volumes live: rates, latencies, dirty data
    Top(top::Top),
    /// Show what happened to the daemon and its volumes, or follow it
    Events(events::Events),
    /// Check or explain the configuration
    Config(config::Check),
    /// Make, look at, check and resize cache devices
    #[command(subcommand)]
    Cache(cache::Command),
    /// Bring the dirty data of a dead host's SSD to its origins, offline
    Recover(recover::Recover),
    /// Inspect the ledger and journal beside an image, finish a pending journal
    #[command(subcommand)]
    Origin(origin::Command),
    /// Look at a qcow2 or raw image, and split it by how durable its data must be
    #[command(subcommand)]
    Image(image::Command),
    /// Make, join, check and leave a cluster of hosts
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Show the other hosts of the cluster
    #[command(subcommand)]
    Peer(peer::Command),
    /// Refresh clones of one image together: stage, roll out, go back
    #[command(subcommand)]
    Pool(pool::Command),
    /// Say who needs what of RAM, SSD and log, and which volumes the cache gives nothing
    Advise(advise::Advise),
    /// Destage everything and write through from then on, to take this host away
    Drain(drain::Drain),
    /// Apply a changed configuration file, and say what needs a restart
    Reload,
    /// Show version and build
    Version,
}

/// Prints a failure. A reader that has gone away is no second failure.
pub fn report(error: &Error, json: bool) {
    use std::io::Write;
    // Nothing more to say: what was printed says it all.
    if error.message.is_empty() {
        return;
    }
    if json {
        let _ = writeln!(std::io::stdout(), "{}", error.to_json());
    }
    let _ = writeln!(std::io::stderr(), "tenuto: {}", error.message);
}

pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Serve(command) => serve::run(context, &command),
        Command::Try(command) => trial::run(context, &command),
        Command::Volume(command) => volume::run(context, command),
        Command::Status(command) => status::run(context, &command),
        Command::Top(command) => top::run(context, &command),
        Command::Events(command) => events::run(context, &command),
        Command::Config(command) => config::run(context, &command),
        Command::Cache(command) => cache::run(context, command),
        Command::Recover(command) => recover::run(context, &command),
        Command::Origin(command) => origin::run(context, command),
        Command::Image(command) => image::run(context, command),
        Command::Cluster(command) => cluster::run(context, command),
        Command::Peer(command) => peer::run(context, &command),
        Command::Pool(command) => pool::run(context, &command),
        Command::Advise(command) => advise::run(context, &command),
        Command::Drain(command) => drain::run(context, &command),
        Command::Reload => reload::run(context),
        Command::Version => version(context),
    }
}

/// What commands know about how they were called.
#[derive(Clone)]
pub struct Context {
    pub common: Common,
}

impl Context {
    pub fn output(&self) -> Output {
        let common = &self.common;
        let color = match common.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
            }
        };
        Output {
            json: common.json,
            quiet: common.quiet > 0,
            color,
        }
    }

    /// The configuration, which must exist.
    pub fn load(&self) -> Result<Config> {
        Config::load(&configuration::locate(self.common.config.as_deref()))
    }

    /// The daemon's socket: as asked, else from the configuration, else the default place.
    pub fn client(&self) -> Result<Client> {
        if let Some(socket) = &self.common.socket {
            return Ok(Client::new(socket));
        }
        let path = configuration::locate(self.common.config.as_deref());
        let named = self.common.config.is_some() || std::env::var_os("TENUTO_CONFIG").is_some();
        if !named && !path.exists() {
            return Ok(Client::new(
                &configuration::default_run_dir().join("tenuto.sock"),
            ));
        }
        Ok(Client::new(&configuration::admin_socket(&path)?))
    }
}

fn version(context: &Context) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let document = json!({
        "name": "tenuto",
        "version": version,
        "arch": std::env::consts::ARCH,
        "os": std::env::consts::OS,
    });
    context
        .output()
        .document(&document, || format!("tenuto {version}\n"))
}
