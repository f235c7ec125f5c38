//! Verbs of the public interface that a later version fills.
//!
//! Always true: each is in the help, ends with code 2, and its message says "not in this
//! version". Scripts written against the interface then fail for the right reason.

use crate::error::Error;
use clap::{Args, Subcommand};

/// Whatever stands behind such a verb.
#[derive(Debug, Args)]
pub struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show other hosts (not in this version)
    #[command(display_order = 200)]
    Peer(Rest),
}

impl Command {
    pub fn refuse(&self) -> Error {
        let verb = match self {
            Command::Peer(_) => "peer",
        };
        not_yet(verb)
    }
}

pub fn not_yet(verb: &str) -> Error {
    Error::later(format!("`tenuto {verb}` is"))
}
