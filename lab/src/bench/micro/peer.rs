//! Other servers, as child processes of the benchmark.
//!
//! Owns each process from its start to its end. Always true: it listens on a private UNIX socket,
//! serves one file, and is ended by its process id when it is dropped; one that is not installed
//! is an error that says how to get it. Those that speak NBD only are asked over one connection
//! where ours is asked through rings.

use super::Options;
use super::transport::Transport;
use crate::bench::work::Carrier;
use host::error::{Error, Kind, Result};
use host::sys;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Until a server that was started must listen.
const LISTEN_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Nbdkit,
    QemuNbd,
    Qsd,
}

impl Program {
    pub const fn name(self) -> &'static str {
        match self {
            Program::Nbdkit => "nbdkit",
            Program::QemuNbd => "qemu-nbd",
            Program::Qsd => "qemu-storage-daemon",
        }
    }

    const fn package(self) -> &'static str {
        match self {
            Program::Nbdkit => "nbdkit",
            Program::QemuNbd => "qemu-utils",
            Program::Qsd => "qemu-system-common or qemu-storage-daemon",
        }
    }

    /// How it serves, for the one who reads the figures. Rows that measure memory may find the file
    /// in the page cache.
    pub const fn way(self, memory: bool) -> &'static str {
        match (self, memory) {
            (Program::Nbdkit, _) => "file, page cache",
            (Program::Qsd, true) => "page cache, aio=io_uring",
            (Program::QemuNbd | Program::Qsd, _) => "cache=none, aio=native",
        }
    }

    /// How it is asked where ours is asked like this.
    pub const fn transport(self, ours: Transport) -> Transport {
        match (self, ours) {
            (Program::Qsd, _) | (_, Transport::Nbd { .. }) => ours,
            _ => Transport::Nbd { connections: 1 },
        }
    }
}

pub struct Peer {
    child: Child,
    socket: PathBuf,
    export: &'static str,
    program: Program,
    transport: Transport,
}

impl Peer {
    /// Starts a server of this file whose socket lies in `directory`. Asked `through` what ours is
    /// asked, if it can be; `memory` where the page cache is what is compared.
    pub fn start(
        program: Program,
        file: &Path,
        directory: &Path,
        through: Transport,
        memory: bool,
    ) -> Result<Peer> {
        let transport = program.transport(through);
        let socket = directory.join(format!("{}.sock", program.name()));
        // Left by one that was killed; if there is none, all is well.
        let _ = fs::remove_file(&socket);
        let mut command = match (program, transport) {
            (Program::Qsd, transport) => storage_daemon(file, &socket, transport, memory),
            _ => command(program, file, &socket),
        };
        sys::end_with_parent(&mut command, libc::SIGKILL);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(|error| {
            let name = program.name();
            match error.kind() {
                io::ErrorKind::NotFound => Error::new(
                    Kind::NotFound,
                    format!(
                        "{name}: not installed; Debian has it in {}",
                        program.package()
                    ),
                ),
                _ => Error::failed(format!("{name}: {error}")),
            }
        })?;
        Ok(Peer {
            child,
            socket,
            export: match program {
                Program::Qsd => "disk",
                _ => "",
            },
            program,
            transport,
        })
    }

    /// Connects as soon as it listens.
    pub fn connect(&mut self, options: &Options) -> Result<Box<dyn Carrier>> {
        let begun = Instant::now();
        let name = self.program.name();
        loop {
            let export = (&*self.socket, self.export);
            let connected = self.transport.connect(options, export, &self.socket);
            let error = match connected {
                Ok(carrier) => return Ok(carrier),
                // It listens, and does not want us.
                Err(error) if error.kind() == io::ErrorKind::Other => {
                    return Err(Error::failed(format!("{name}: {error}")));
                }
                Err(error) => error,
            };
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Error::failed(format!("{name}: has ended: {status}")));
            }
            if begun.elapsed() > LISTEN_MAX {
                return Err(Error::failed(format!("{name}: does not listen: {error}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // One that has ended by itself needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves NBD, or rings in a thread that looks at them for a moment before it sleeps, as it does
/// by default.
fn storage_daemon(file: &Path, socket: &Path, transport: Transport, memory: bool) -> Command {
    let mut command = Command::new(Program::Qsd.name());
    let (file, socket) = (file.display(), socket.display());
    let mode = match memory {
        true => "cache.direct=off,aio=io_uring",
        false => "cache.direct=on,aio=native",
    };
    let node = format!("driver=file,node-name=disk,filename={file},{mode}");
    command.arg("--blockdev").arg(node);
    match transport {
        Transport::Nbd { .. } => {
            let server = format!("addr.type=unix,addr.path={socket},max-connections=64");
            command.arg("--nbd-server").arg(server);
            let export = "type=nbd,id=disk,node-name=disk,name=disk,writable=on";
            command.args(["--export", export]);
        }
        Transport::VhostUser { queues, .. } => {
            command.args(["--object", "iothread,id=rings", "--export"]);
            command.arg(format!(
                "type=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path={socket},\
                 writable=on,num-queues={queues},iothread=rings"
            ));
        }
    }
    command
}

fn command(program: Program, file: &Path, socket: &Path) -> Command {
    let mut command = Command::new(program.name());
    match program {
        Program::Nbdkit => {
            command.args(["--exit-with-parent", "--foreground", "--unix"]);
            command.arg(socket).arg("file").arg(file);
        }
        Program::QemuNbd => {
            // Without `--persistent` it ends with its last client, also if we are killed.
            command.args([
                "--format=raw",
                "--cache=none",
                "--aio=native",
                "--shared=64",
            ]);
            command.arg("--socket").arg(socket).arg(file);
        }
        Program::Qsd => unreachable!("it has a command of its own"),
    }
    command
}

/// Bytes that a process has had read from and written to storage, where the kernel tells.
pub fn device_bytes(pid: Option<u32>) -> Option<(u64, u64)> {
    let path = match pid {
        Some(pid) => format!("/proc/{pid}/io"),
        None => "/proc/self/io".into(),
    };
    let text = fs::read_to_string(path).ok()?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().parse::<u64>().ok()
    };
    Some((value("read_bytes:")?, value("write_bytes:")?))
}
