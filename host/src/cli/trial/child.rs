//! The daemon of a trial: `tenuto serve` as a child.
//!
//! Always true: Ctrl-C on the terminal does not reach it, because the trial decides when it stops;
//! where the trial is killed, it stops in order and keeps its data. What it refuses is the error of
//! the trial. Deliberately absent: what it serves.

use crate::error::{Error, Result, cause};
use crate::sys;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// More than a daemon says on standard output.
const SAID_BYTES_MAX: u64 = 64 << 10;

pub struct Served {
    child: Child,
    /// Open while it runs, so that it may write there.
    _output: BufReader<ChildStdout>,
}

fn failed(error: &std::io::Error) -> Error {
    Error::failed(format!("the daemon: {}", cause(error)))
}

impl Served {
    /// Returns when the daemon is ready. Its log goes to a file.
    pub fn start(config: &Path, log: &Path) -> Result<Served> {
        let log = File::create(log).map_err(|error| failed(&error))?;
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut command = Command::new(program);
        command.arg("-c").arg(config).args(["--json", "serve"]);
        command.env_remove("TENUTO_SOCKET").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(log);
        sys::end_with_parent(&mut command, libc::SIGTERM);
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let output = child.stdout.take().expect("it was given a pipe");
        let mut output = BufReader::new(output);
        let mut said = String::new();
        let mut first = (&mut output).take(SAID_BYTES_MAX);
        let read = first.read_line(&mut said);
        if read.is_ok() && said == "ready\n" {
            return Ok(Served {
                child,
                _output: output,
            });
        }
        // What goes wrong here leaves less to tell, and no more.
        let _ = first.read_to_string(&mut said);
        let status = child.wait().map_err(|error| failed(&error))?;
        let document = serde_json::from_str(&said).unwrap_or_default();
        let ended = || Error::failed(format!("the daemon: has ended, {status}; try it again"));
        Err(Error::from_json(&document).unwrap_or_else(ended))
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Stops it in order. Dirty data is in the cache then.
    pub fn stop(&mut self) -> Result<()> {
        let asked = sys::ask_to_end(&self.child);
        let status = asked.and_then(|()| self.child.wait());
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Error::failed(format!("the daemon: has ended, {status}"))),
            Err(error) => Err(failed(&error)),
        }
    }
}
