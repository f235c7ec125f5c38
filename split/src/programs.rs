//! Programs of the host that do the work on file systems.
//!
//! Always true: a program that is missing is named with the Debian package that has it, and one
//! that fails with what it said.

use crate::error::Error;
use std::process::{Command, Output};

/// What goes wrong with a program.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{program} is not installed; `apt install {package}` has it")]
    Missing {
        program: String,
        package: &'static str,
    },
    #[error("{program}: {says}")]
    Failed { program: String, says: String },
    #[error("{program}: {source}")]
    Io {
        program: String,
        source: std::io::Error,
    },
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::failed(failure.to_string())
    }
}

/// Runs a program to its end, and returns what it printed.
pub fn run(package: &'static str, command: &mut Command) -> Result<Output, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = match crate::sys::ends_with_us(command).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::Missing { program, package });
        }
        Err(source) => return Err(Failure::Io { program, source }),
    };
    if output.status.success() {
        return Ok(output);
    }
    let says = String::from_utf8_lossy(&output.stderr);
    let says = match says.lines().rfind(|line| !line.trim().is_empty()) {
        Some(line) => line.trim().to_owned(),
        None => output.status.to_string(),
    };
    Err(Failure::Failed { program, says })
}
