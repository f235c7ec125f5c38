//! QEMU's own programs, as child processes: what people run today, to be compared with.
//!
//! Owns each process from its start to its end. Always true: one that has ended by itself, or does
//! not end in its time, is an error with the last thing it said; none is left behind, also where
//! this process is killed. Deliberately absent: what they do with an image, which is what is
//! measured.

use crate::client::Client;
use host::error::{Error, Kind, Result, cause};
use host::sys;
use serde_json::json;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

const NBD: &str = "qemu-nbd";
const IMG: &str = "qemu-img";
const STORAGE_DAEMON: &str = "qemu-storage-daemon";
/// What a node is called that a storage daemon exports.
const DISK: &str = "disk";
/// Until one that was started must listen, and until it must have ended; far beyond what a busy
/// machine needs.
const LISTEN_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(5);
/// Of what it says; the rest is read and forgotten.
const SAID_BYTES_MAX: u64 = 16 << 10;

struct Process {
    name: &'static str,
    child: Child,
    /// What it has said, once it has ended.
    heard: Receiver<String>,
}

impl Process {
    fn start(name: &'static str, arguments: &[&str]) -> Result<Process> {
        let mut command = Command::new(name);
        command.args(arguments).stdin(Stdio::null());
        // A group of its own: Ctrl-C is for this process, which ends it in order.
        command.process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        sys::end_with_parent(&mut command, libc::SIGKILL);
        let mut child = command.spawn().map_err(|error| absent(name, &error))?;
        let stderr = child.stderr.take().expect("it was asked for");
        let (say, heard) = sync_channel(1);
        std::thread::spawn(move || {
            let (mut said, mut stderr) = (Vec::new(), stderr);
            let read = (&mut stderr).take(SAID_BYTES_MAX).read_to_end(&mut said);
            // Only its end counts from here on.
            let _ = read.and_then(|_| io::copy(&mut stderr, &mut io::sink()));
            let _ = say.send(String::from_utf8_lossy(&said).into_owned());
        });
        Ok(Process { name, child, heard })
    }

    /// Waits until it ends, as long as it may take.
    fn end(mut self) -> Result<()> {
        match self.heard.recv_timeout(END_MAX) {
            Ok(said) => match self.status()? {
                status if status.success() => Ok(()),
                status => Err(self.ended(status, &said)),
            },
            Err(_) => {
                let (name, seconds) = (self.name, END_MAX.as_secs());
                Err(Error::failed(format!("{name}: did not end in {seconds} s")))
            }
        }
    }

    /// It has closed its standard error, so this takes no time.
    fn status(&mut self) -> Result<ExitStatus> {
        let name = self.name;
        let waited = self.child.wait();
        waited.map_err(|error| Error::failed(format!("{name}: {}", cause(&error))))
    }

    fn ended(&self, status: ExitStatus, said: &str) -> Error {
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        let (name, last) = (self.name, last.unwrap_or("it said nothing"));
        Error::failed(format!("{name}: has ended ({status}): {}", last.trim()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended by itself needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn package(program: &str) -> &'static str {
    match program {
        STORAGE_DAEMON => "qemu-system-common or qemu-storage-daemon",
        _ => "qemu-utils",
    }
}

fn absent(name: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::new(
            Kind::NotFound,
            format!(
                "{name} is not installed; Debian has it in {}",
                package(name)
            ),
        ),
        _ => Error::failed(format!("{name}: {}", cause(error))),
    }
}

/// The version of the programs, or why there is none.
pub fn version() -> Result<String> {
    version_of(&[NBD, IMG])
}

/// The version of what [`StorageDaemon`] needs and of what makes its images, or why there is none.
pub fn storage_version() -> Result<String> {
    version_of(&[STORAGE_DAEMON, IMG])
}

fn version_of(programs: &[&str]) -> Result<String> {
    let mut version = None;
    for name in programs {
        let mut command = Command::new(name);
        command.arg("--version").stdin(Stdio::null());
        sys::end_with_parent(&mut command, libc::SIGKILL);
        let done = command.output().map_err(|error| absent(name, &error))?;
        let text = String::from_utf8_lossy(&done.stdout);
        let line = text.lines().next().unwrap_or_default();
        if !done.status.success() || line.is_empty() {
            return Err(Error::failed(format!("{name}: does not tell its version")));
        }
        version.get_or_insert(line.to_owned());
    }
    Ok(version.expect("there is one of each program"))
}

/// What a qcow2 file maps by itself, without the files below it, as `qemu-img map` has it.
pub fn map(path: &Path) -> Result<String> {
    let file = json!({ "driver": "file", "filename": path });
    let node = json!({ "driver": "qcow2", "file": file, "backing": null });
    let mut command = Command::new(IMG);
    command.args(["map", "--output=json", &format!("json:{node}")]);
    sys::end_with_parent(&mut command, libc::SIGKILL);
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|error| absent(IMG, &error))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            let last = said.lines().last().unwrap_or("it said nothing");
            Err(Error::failed(format!("{IMG} map: {last}")))
        }
    }
}

/// Runs `qemu-img`.
pub fn img(arguments: &[&str]) -> Result<()> {
    Process::start(IMG, arguments)?.end()
}

/// What QEMU is told to open: an export below this driver.
pub fn node(driver: &str, socket: &Path, export: &str) -> String {
    let socket = escaped(socket);
    format!(
        "driver={driver},file.driver=nbd,file.server.type=unix,file.server.path={socket},\
         file.export={export}"
    )
}

/// Makes an empty overlay over an export, without a look at that.
pub fn overlay(path: &Path, bytes: u64, socket: &Path, base: &str, options: &str) -> Result<()> {
    let backing = format!("nbd+unix:///{base}?socket={}", socket.display());
    let (path, bytes) = (path.display().to_string(), bytes.to_string());
    let create = ["create", "-q", "-f", "qcow2", "-u", "-b", &backing];
    let rest = ["-F", "raw", "-o", options, &path, &bytes];
    img(&[&create[..], &rest].concat())
}

/// Makes an empty qcow2 clone with these options in one export, over a qcow2 base in another.
pub fn clone_through(
    socket: &Path,
    (clone, base): (&str, &str),
    bytes: u64,
    options: &str,
) -> Result<()> {
    let url = |export: &str| format!("nbd+unix:///{export}?socket={}", socket.display());
    let (clone, base, bytes) = (url(clone), url(base), bytes.to_string());
    let create = ["create", "-q", "-f", "qcow2", "-u", "-b", &base];
    let rest = ["-F", "qcow2", "-o", options, &clone, &bytes];
    img(&[&create[..], &rest].concat())
}

/// Makes a qcow2 image with clusters of 64 KiB of a raw one.
pub fn convert(raw: &Path, qcow2: &Path) -> Result<()> {
    let (raw, qcow2) = (raw.display().to_string(), qcow2.display().to_string());
    let formats = ["convert", "-f", "raw", "-O", "qcow2"];
    let rest = ["-o", "cluster_size=65536", &raw, &qcow2];
    img(&[&formats[..], &rest].concat())
}

/// An image that QEMU serves.
pub struct Server {
    process: Process,
    socket: PathBuf,
}

impl Server {
    /// For so many clients at once; it stays when they go. `image` is a node in QEMU's words.
    pub fn start(socket: &Path, image: &str, clients: usize) -> Result<Server> {
        let shared = format!("--shared={clients}");
        Server::with(socket, image, &["--persistent", &shared])
    }

    fn with(socket: &Path, image: &str, more: &[&str]) -> Result<Server> {
        // Left by the one before; if there is none, all is well.
        let _ = std::fs::remove_file(socket);
        let path = socket.display().to_string();
        let all = [more, &["--socket", &path, "--image-opts", image]].concat();
        Ok(Server {
            process: Process::start(NBD, &all)?,
            socket: socket.to_owned(),
        })
    }

    /// Connects as soon as it listens.
    pub fn connect(&mut self) -> Result<Client> {
        let begun = Instant::now();
        loop {
            let error = match Client::connect(&self.socket, "") {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            // The pause ends when it ends.
            match self.process.heard.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) if begun.elapsed() < LISTEN_MAX => {}
                Err(_) => {
                    let why = cause(&error);
                    return Err(Error::failed(format!("{NBD}: does not listen: {why}")));
                }
                Ok(said) => {
                    let status = self.process.status()?;
                    return Err(self.process.ended(status, &said));
                }
            }
        }
    }

    /// Why an answer did not come.
    fn lost(&mut self, error: &io::Error) -> Error {
        match self.process.heard.recv_timeout(LOOK * 20) {
            Ok(said) => match self.process.status() {
                Ok(status) => self.process.ended(status, &said),
                Err(error) => error,
            },
            Err(_) => Error::failed(format!("{NBD}: {}", cause(error))),
        }
    }
}

/// An image that QEMU serves to one client, and closes when that one goes.
pub struct Served {
    client: Option<Client>,
    server: Server,
}

impl Served {
    /// `image` is a node in QEMU's words.
    pub fn start(socket: &Path, image: &str) -> Result<Served> {
        let mut server = Server::with(socket, image, &[])?;
        Ok(Served {
            client: Some(server.connect()?),
            server,
        })
    }

    pub fn client(&mut self) -> &mut Client {
        self.client.as_mut().expect("it is there until the end")
    }

    /// Why an answer did not come.
    pub fn lost(&mut self, error: &io::Error) -> Error {
        self.server.lost(error)
    }

    /// Says goodbye; what QEMU still holds back goes to the storage.
    pub fn close(mut self) -> Result<()> {
        self.client = None;
        self.server.process.end()
    }
}

/// A graph of nodes that `qemu-storage-daemon` exports by NBD.
pub struct StorageDaemon {
    process: Process,
    socket: PathBuf,
}

impl StorageDaemon {
    pub const EXPORT: &str = DISK;

    /// `nodes` are block devices in QEMU's words, one of them with the name of the export. It
    /// listens when this returns.
    pub fn start(socket: &Path, nodes: &[String]) -> Result<StorageDaemon> {
        // Left by the one before; if there is none, all is well.
        let _ = std::fs::remove_file(socket);
        let server = format!(
            "addr.type=unix,addr.path={},max-connections=64",
            escaped(socket)
        );
        let export = format!("type=nbd,id={DISK},node-name={DISK},name={DISK},writable=on");
        let mut arguments = Vec::new();
        for node in nodes {
            arguments.extend(["--blockdev", node]);
        }
        arguments.extend(["--nbd-server", &server, "--export", &export]);
        let process = Process::start(STORAGE_DAEMON, &arguments)?;
        let mut daemon = StorageDaemon {
            process,
            socket: socket.to_owned(),
        };
        daemon.wait()?;
        Ok(daemon)
    }

    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let error = match Client::connect(&self.socket, DISK) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match self.process.heard.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) if begun.elapsed() < LISTEN_MAX => {}
                Err(_) => {
                    let why = cause(&error);
                    return Err(Error::failed(format!(
                        "{STORAGE_DAEMON}: does not listen: {why}"
                    )));
                }
                Ok(said) => {
                    let status = self.process.status()?;
                    return Err(self.process.ended(status, &said));
                }
            }
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends it in order: it writes the tables that it holds back.
    pub fn stop(self) -> Result<()> {
        let asked = sys::ask_to_end(&self.process.child);
        asked.map_err(|error| Error::failed(format!("{STORAGE_DAEMON}: {}", cause(&error))))?;
        self.process.end()
    }
}

/// A path in an option of QEMU.
pub fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_told_of_in_one_line_with_what_it_said_last() {
        let failing = "echo first >&2; echo 'the disk is full' >&2; exit 3";
        let process = Process::start("sh", &["-c", failing]).expect("it starts");
        let error = process.end().expect_err("it has failed");
        let wanted = "sh: has ended (exit status: 3): the disk is full";
        assert_eq!(error.message, wanted);
        let missing = Process::start("no-such-program-of-qemu", &[]);
        let error = missing.err().expect("it is not there");
        assert!(error.message.contains("not installed; Debian has it in"));
    }
}
