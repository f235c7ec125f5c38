//! `tenuto volume device`: a volume as a block device of this host, by the kernel's NBD driver.
//!
//! ```text
//! attach ─▶ child: lock, connect, link, say where ─▶ watch: dead? connect again, until detached
//! ```
//!
//! Owns who connects again when the daemon was away: one process for each device, which holds a
//! lock beside the volume's socket. Always true: while the daemon is away requests wait, also where
//! that process is killed; a device that is mounted or open is never taken away; who attaches twice
//! gets the same device. Deliberately absent: the words of the driver ([`crate::nbdlink`]).

use super::reply::{number, url};
use super::{Context, output};
use crate::config::{DEFAULT_PATH, locate};
use crate::error::{Error, Kind, Result, cause};
use crate::nbdlink::{Connection, Device, Driver};
use crate::sys;
use clap::Args;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Between two looks at the connection, and two tries to have another one.
const LOOK: Duration = Duration::from_millis(250);
/// The same where the connection is another process's: a look is a try.
const LOOK_BLIND: Duration = Duration::from_secs(5);
/// How long udev may take for the link.
const UDEV: Duration = Duration::from_secs(5);
const UDEV_PAUSE: Duration = Duration::from_millis(20);
/// How long another process may take that attaches the volume or ends.
const OTHERS: Duration = Duration::from_secs(10);
/// How long requests under way may keep a device after it is disconnected.
const GONE: Duration = Duration::from_secs(10);
/// More than a child says.
const SAID_BYTES_MAX: u64 = 64 << 10;
const LINKS: &str = "/dev/tenuto";

#[derive(Debug, Args)]
pub struct AsDevice {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// Take the device away; refused while it is mounted or open
    #[arg(long, conflicts_with = "foreground")]
    detach: bool,
    /// Stay, and connect again when the daemon was away, as the service does
    #[arg(long)]
    foreground: bool,
}

pub fn run(context: &Context, command: &AsDevice) -> Result<()> {
    let name = command.name.as_str();
    // Said first, because nothing else helps without it.
    if sys::effective_uid() != 0 {
        let message = format!("volume {name}: only root makes block devices; run it with sudo");
        return Err(Error::failed(message).about(name));
    }
    match (command.detach, command.foreground) {
        (true, _) => detach(context, name),
        (false, true) => stay(context, name),
        (false, false) => attach(context, name),
    }
}

/// What there is to print of a device.
fn shown(name: &str, device: Device, attached: bool) -> Value {
    json!({
        "name": name,
        "attached": attached,
        "device": device.path().display().to_string(),
        "link": link(name).display().to_string(),
        "size_bytes": device.size_bytes(),
    })
}

fn link(name: &str) -> PathBuf {
    Path::new(LINKS).join(name)
}

/// Starts who attaches and stays, and returns when the device is there.
fn attach(context: &Context, name: &str) -> Result<()> {
    let failed = |error: io::Error| Error::failed(format!("volume {name}: {}", cause(&error)));
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    // It must not keep the file system that this one was called in.
    let absolute = |path: &Path| std::path::absolute(path).map_err(failed);
    let config = locate(context.common.config.as_deref());
    if config != Path::new(DEFAULT_PATH) {
        command.arg("-c").arg(absolute(&config)?);
    }
    if let Some(socket) = &context.common.socket {
        command.arg("--socket").arg(absolute(socket)?);
    }
    command.args(["--json", "volume", "device", name, "--foreground"]);
    // Ctrl-C and the end of this terminal are not for it.
    command.process_group(0).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let output = child.stdout.take().expect("it was given a pipe");
    let mut said = String::new();
    let mut output = BufReader::new(output.take(SAID_BYTES_MAX));
    output.read_line(&mut said).map_err(failed)?;
    let mut document: Value = serde_json::from_str(&said).unwrap_or_default();
    if document["attached"] != true {
        // An error has more lines than one.
        let _ = output.read_to_string(&mut said);
        document = serde_json::from_str(&said).unwrap_or_default();
    }
    if document["attached"] != true {
        let status = child.wait().map_err(failed)?;
        let ended = || Error::failed(format!("volume {name}: not attached, {status}"));
        return Err(Error::from_json(&document).unwrap_or_else(ended));
    }
    let text = || format!("{}\n", document["link"].as_str().unwrap_or("-"));
    context.output().document(&document, text)
}

/// Attaches, says where, and connects again until the device is taken away.
fn stay(context: &Context, name: &str) -> Result<()> {
    let wanted = Wanted::look(context, name)?;
    let mut driver = driver(name)?;
    let (known, lock) = wanted.device_or_lock()?;
    if let Some(device) = known {
        // The volume may have grown meanwhile.
        if device.size_bytes() < wanted.size_bytes {
            let grown = driver.resize(device, name, wanted.size_bytes);
            grown.map_err(|error| {
                let (path, why) = (device.path(), cause(&error));
                let message = format!("volume {name}: {} keeps its size: {why}", path.display());
                Error::failed(message).about(name)
            })?;
        }
        settle(name, device);
        say(context, name, device)?;
        return match lock {
            // Who watches it is there.
            None => Ok(()),
            Some(_lock) => watch(&mut driver, &wanted, device, None),
        };
    }
    let connection = wanted.connect()?;
    let device = driver.connect(name, &connection).map_err(|error| {
        let why = cause(&error);
        Error::failed(format!(
            "volume {name}: the kernel makes no block device of it: {why}; it takes Linux 5.15"
        ))
        .about(name)
    })?;
    settle(name, device);
    say(context, name, device)?;
    watch(&mut driver, &wanted, device, Some(connection))
}

/// One line, because its reader waits for the end of it; later there may be no reader.
fn say(context: &Context, name: &str, device: Device) -> Result<()> {
    let document = shown(name, device, true);
    match context.common.json {
        true => output::write(&format!("{document}\n")),
        false => output::write(&format!("{}\n", link(name).display())),
    }
}

fn driver(name: &str) -> Result<Driver> {
    let opened = Driver::open().or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error);
        }
        // Where it is a module, this is how it comes; without it the error is the first one.
        let _ = Command::new("modprobe")
            .arg("nbd")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        Driver::open()
    });
    opened.map_err(|error| {
        let message = match error.kind() {
            io::ErrorKind::NotFound => format!(
                "volume {name}: this kernel has no NBD driver; load its module with `modprobe \
                 nbd`, or run a kernel that has it"
            ),
            _ => format!("volume {name}: the NBD driver: {}", cause(&error)),
        };
        Error::failed(message).about(name)
    })
}

/// The volume of which a device is wanted.
struct Wanted {
    name: String,
    socket: PathBuf,
    size_bytes: u64,
    read_only: bool,
}

impl Wanted {
    fn look(context: &Context, name: &str) -> Result<Wanted> {
        let volume = context.client()?.get(&url(name, "")?)?;
        let Some(socket) = volume["nbd_socket"].as_str() else {
            let message = format!(
                "volume {name}: is not exported over NBD; run `tenuto volume set {name} \
                 export=vhost-user,nbd` first"
            );
            return Err(Error::usage(message).about(name));
        };
        let flags = volume["flags"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(Wanted {
            name: name.into(),
            socket: socket.into(),
            size_bytes: number(&volume["size_bytes"]),
            read_only: flags.iter().any(|flag| flag == "read-only"),
        })
    }

    /// Held by the process that watches the device, for as long as it lives.
    fn lock(&self) -> Result<Option<File>> {
        let path = self.socket.with_extension("device");
        let name = &self.name;
        let failed = |error: io::Error| {
            let place = path.display();
            Error::failed(format!("volume {name}: {place}: {}", cause(&error)))
        };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// A device that is there, or the right to make one. Who watches one that was taken away a
    /// moment ago is about to end, and who makes one is about to have it.
    fn device_or_lock(&self) -> Result<(Option<Device>, Option<File>)> {
        let begun = Instant::now();
        loop {
            let lock = self.lock()?;
            let known = Device::of(&self.name);
            if known.is_some() || lock.is_some() {
                return Ok((known, lock));
            }
            if begun.elapsed() > OTHERS {
                let name = self.name.as_str();
                let message = format!(
                    "volume {name}: another process attaches it or takes it away right now; try \
                     it again"
                );
                return Err(Error::failed(message).about(name));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn connect(&self) -> Result<Connection> {
        let name = &self.name;
        let connection = Connection::open(&self.socket, name).map_err(|error| {
            let (socket, why) = (self.socket.display(), cause(&error));
            Error::failed(format!("volume {name}: {socket}: {why}")).about(name.as_str())
        })?;
        if connection.is_read_only() && !self.read_only {
            let message = format!(
                "volume {name}: another client writes it; end that one, or let several write with \
                 `tenuto volume set {name} shared=true`"
            );
            return Err(Error::refused(message).about(name.as_str()));
        }
        Ok(connection)
    }
}

/// Lets the block device of a volume on this host, if there is one, grow with it; what became of
/// that.
pub(super) fn grow(name: &str, size_bytes: u64) -> Option<String> {
    let device = Device::of(name).filter(|device| device.size_bytes() < size_bytes)?;
    let path = device.path().display().to_string();
    let grown = Driver::open().and_then(|mut driver| driver.resize(device, name, size_bytes));
    Some(match grown {
        Ok(()) => format!("volume {name}: its block device {path} has the new size"),
        Err(error) => format!(
            "volume {name}: its block device {path} keeps its size: {}; run `sudo tenuto volume \
             device {name}` to tell the kernel",
            cause(&error)
        ),
    })
}

/// Puts another connection in the place of one that has died, until the device is taken away.
fn watch(
    driver: &mut Driver,
    wanted: &Wanted,
    device: Device,
    mut connection: Option<Connection>,
) -> Result<()> {
    let name = wanted.name.as_str();
    let mut complained = false;
    while device.is_of(name) {
        if let Some(alive) = &connection
            && !sys::has_hung_up(&alive.socket)
        {
            std::thread::sleep(LOOK);
            continue;
        }
        // Taken away, not died: the kernel ends its connection before it forgets the name.
        std::thread::sleep(LOOK);
        if !device.is_of(name) {
            break;
        }
        let again = wanted.connect().and_then(|new| fits(name, device, new));
        let again = again.and_then(|new| {
            let replaced = driver.replace(device, name, &new);
            replaced.map_err(|error| Error::failed(cause(&error)))?;
            Ok(new)
        });
        match again {
            Ok(new) => (connection, complained) = (Some(new), false),
            Err(error) => {
                if connection.is_some() && !complained {
                    eprintln!("tenuto: {error}; requests wait, and it is tried again");
                    complained = true;
                }
                std::thread::sleep(if connection.is_some() {
                    LOOK
                } else {
                    LOOK_BLIND
                });
            }
        }
    }
    unlink(name, device);
    Ok(())
}

/// A disk that has become smaller would lose what is behind its new end.
fn fits(name: &str, device: Device, connection: Connection) -> Result<Connection> {
    let (had, has) = (device.size_bytes(), connection.size_bytes);
    match has >= had {
        true => Ok(connection),
        false => Err(Error::failed(format!(
            "volume {name}: has {has} bytes, and its device has {had}; detach that first"
        ))),
    }
}

/// The name below `/dev`: udev's where it runs and knows the rule, else one of our own.
fn settle(name: &str, device: Device) {
    let is_there = || fs::canonicalize(link(name)).is_ok_and(|path| path == device.path());
    let begun = Instant::now();
    while Path::new("/run/udev/control").exists() && begun.elapsed() < UDEV {
        if is_there() {
            return;
        }
        std::thread::sleep(UDEV_PAUSE);
    }
    if !is_there() {
        // A name is a convenience: the device itself is told as well.
        let _ = fs::create_dir_all(LINKS);
        let _ = fs::remove_file(link(name));
        let _ = symlink(device.path(), link(name));
    }
}

fn unlink(name: &str, device: Device) {
    let to = fs::read_link(link(name)).unwrap_or_default();
    // Another device of that name may have come meanwhile.
    if to.file_name() == device.path().file_name() && Device::of(name).is_none() {
        let _ = fs::remove_file(link(name));
    }
}

fn detach(context: &Context, name: &str) -> Result<()> {
    url(name, "")?;
    let Some(device) = Device::of(name) else {
        let message = format!("volume {name}: has no block device on this host");
        return Err(Error::new(Kind::NotFound, message).about(name));
    };
    let path = device.path().display().to_string();
    let refuse = |who: String| {
        let message = format!(
            "volume {name}: {path} is {who}; unmount it or end who has it open, then detach it"
        );
        Error::refused(message).about(name)
    };
    // While it is open in this way nothing can be mounted on it.
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_EXCL);
    let open = options.open(device.path()).or_else(|error| {
        // A volume that is read-only has a device that is.
        match error.raw_os_error() {
            Some(libc::EROFS | libc::EACCES) => {
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(libc::O_EXCL);
                options.open(device.path())
            }
            _ => Err(error),
        }
    });
    let claimed = open.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => refuse("mounted, or part of another device".into()),
        _ => Error::failed(format!("volume {name}: {path}: {}", cause(&error))).about(name),
    })?;
    let holders = device.holders();
    if !holders.is_empty() {
        return Err(refuse(format!("in use by {}", holders.join(", "))));
    }
    let size_bytes = device.size_bytes();
    let failed = |error: io::Error| {
        Error::failed(format!("volume {name}: {path}: {}", cause(&error))).about(name)
    };
    // What the kernel has of it in memory goes to the volume first.
    claimed.sync_all().map_err(failed)?;
    driver(name)?.disconnect(device).map_err(failed)?;
    drop(claimed);
    let begun = Instant::now();
    while device.is_of(name) && begun.elapsed() < GONE {
        std::thread::sleep(UDEV_PAUSE);
    }
    unlink(name, device);
    let mut document = shown(name, device, false);
    document["size_bytes"] = size_bytes.into();
    let text = || format!("volume {name}: {path} is taken away\n");
    context.output().confirmation(&document, text)
}
