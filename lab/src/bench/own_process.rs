//! A daemon as a process of its own, as it runs for guests.
//!
//! Owns the process, and what every configuration of a benchmark says before its volumes. Always
//! true: a process ends with its owner, killed where it was not asked to end; a daemon has answered
//! its administrator before it is handed out. Deliberately absent: volumes, and what is measured.

use host::admin::client::Client;
use host::error::{Error, Result, cause};
use host::sys;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Of a process to come.
const WAIT_MAX: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(5);

/// A process that ends with its owner.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("the daemon of the benchmark: {}", cause(&error)))
}

/// The program that runs now.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(failed)
}

/// A program without arguments; nothing of the environment names another daemon to it.
pub fn command(program: &Path, output: Stdio) -> Command {
    let mut command = Command::new(program);
    command
        .env_remove("TENUTO_SOCKET")
        .env_remove("TENUTO_CONFIG");
    sys::end_with_parent(&mut command, libc::SIGKILL);
    command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null());
    command
}

/// What a configuration says before its volumes; the directories of sockets and of the stage are
/// made. `sizes` are more lines of the table of the cache.
pub fn config(run_dir: &Path, stage: &Path, cache: &Path, sizes: &str) -> Result<String> {
    config_of("bench", run_dir, stage, cache, sizes)
}

/// The same of the host of this name.
pub fn config_of(
    name: &str,
    run_dir: &Path,
    stage: &Path,
    cache: &Path,
    sizes: &str,
) -> Result<String> {
    for directory in [run_dir, stage] {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let group = fs::metadata(run_dir).map_err(failed)?.gid();
    Ok(format!(
        "[host]\nname = \"{name}\"\ngroup = \"{group}\"\nrun-dir = {run_dir:?}\nstage-dir = \
         {stage:?}\nstate-dir = {stage:?}\n[cache]\npath = {cache:?}\noverlay-ram = \
         \"16MiB\"\n{sizes}\n",
    ))
}

/// A daemon that answers.
pub struct Served {
    pub client: Client,
    run_dir: PathBuf,
    process: Process,
}

impl Served {
    /// Starts one with the configuration in this file, whose sockets are in `run_dir`.
    pub fn start(program: &Path, config: &Path, run_dir: &Path) -> Result<Served> {
        let mut command = command(program, Stdio::null());
        command.arg("serve").arg("--config").arg(config);
        Served::running(command, run_dir)
    }

    /// The same of a command that serves.
    pub fn running(mut command: Command, run_dir: &Path) -> Result<Served> {
        let process = command.spawn();
        let mut served = Served {
            client: Client::new(&run_dir.join("tenuto.sock")),
            run_dir: run_dir.to_owned(),
            process: Process(process.map_err(failed)?),
        };
        let begun = Instant::now();
        while let Err(error) = served.client.get("/v1/status") {
            let ended = served.process.0.try_wait().map_err(failed)?;
            if ended.is_some() || begun.elapsed() > WAIT_MAX {
                let message = format!("the daemon of the benchmark: {error}");
                return Err(Error::failed(message));
            }
            std::thread::sleep(LOOK);
        }
        Ok(served)
    }

    /// Of all exports.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join("nbd.sock")
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub fn volume(&self, name: &str) -> Result<Value> {
        self.client.get(&format!("/v1/volumes/{name}"))
    }

    /// The daemon hears of a client's end a moment after the client.
    pub fn wait_for_no_client(&self, name: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            match number(&self.volume(name)?["clients"])? {
                0 => return Ok(()),
                _ if begun.elapsed() > WAIT_MAX => {
                    let message = format!("volume {name}: its clients do not end");
                    return Err(Error::failed(message));
                }
                _ => std::thread::sleep(LOOK),
            }
        }
    }

    /// Ends it in order.
    pub fn stop(mut self) -> Result<()> {
        sys::ask_to_end(&self.process.0).map_err(failed)?;
        let status = self.process.0.wait().map_err(failed)?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::failed(format!(
                "the daemon of the benchmark: {status}"
            ))),
        }
    }
}

/// A number that the daemon tells.
pub fn number(value: &Value) -> Result<u64> {
    let number = value.as_u64();
    number.ok_or_else(|| Error::failed("the daemon of the benchmark counts nothing here"))
}
