//! What verbs of the public interface say that a later version fills.
//!
//! Always true: such a verb ends with code 2, and its message says "not in this version". Scripts
//! written against the interface then fail for the right reason.

use crate::error::Error;
use clap::Args;

/// Whatever stands behind such a verb.
#[derive(Debug, Args)]
pub struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<String>,
}

pub fn not_yet(verb: &str) -> Error {
    Error::later(format!("`tenuto {verb}` is"))
}
