//! The binary: the commands of the product and of the lab as one command line.
//!
//! Owns the order of the commands, and what is made of all of them: help, manual pages, completion
//! scripts, errors in the arguments. Deliberately absent: what commands do.

mod completions;
mod examples;
mod man;
mod usage;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use host::cli::{Common, Context, report};
use host::error::Result;
use host::sys;
use std::ffi::OsString;
use std::process::ExitCode;

/// A write-back cache between the disks of virtual machines and slow shared storage.
#[derive(Debug, Parser)]
#[command(
    name = "tenuto",
    disable_version_flag = false,
    version,
    arg_required_else_help = true
)]
#[command(infer_subcommands = false, propagate_version = false)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Product(host::cli::Command),
    /// Print the manual page, or write all of them
    Man(man::Pages),
    /// Print a completion script for a shell
    Completions {
        /// bash: `source <(tenuto completions bash)`
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    #[command(flatten)]
    Lab(Box<lab::cli::Command>),
}

/// The command line with all that its help says.
fn command() -> clap::Command {
    examples::add(Cli::command())
}

impl Cli {
    fn read<T: Into<OsString> + Clone>(
        arguments: impl IntoIterator<Item = T>,
    ) -> std::result::Result<Cli, clap::Error> {
        let mut matches = command().try_get_matches_from(arguments)?;
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command()))
    }
}

/// Parses the arguments, does what they say, prints what there is to print.
fn main() -> ExitCode {
    sys::survive_file_size_limit();
    let arguments: Vec<_> = std::env::args_os().collect();
    // An error in the arguments must know about --json before the arguments are understood.
    let json = arguments.iter().any(|argument| argument == "--json");
    let parsed = Cli::read(&arguments);
    let result = match parsed {
        Ok(cli) => run(cli),
        Err(error) => match usage::explain(error) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => Err(error),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error, json);
            ExitCode::from(error.kind.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let context = Context { common: cli.common };
    match cli.command {
        Command::Product(command) => host::cli::run(&context, command),
        Command::Man(command) => man::run(&context, &command),
        Command::Completions { shell } => completions::run(shell),
        Command::Lab(command) => lab::cli::run(&context, *command),
    }
}
