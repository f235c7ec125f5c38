//! One real Linux guest under QEMU.
//!
//! Owns the process and its serial console. Always true: the process ends with this value, and by
//! the kernel's hand if this process is killed; a guest says lines that begin with
//! `tenuto: `, all else on its console is kept only for the case of a failure. Deliberately
//! absent: what guests do and when.

mod initramfs;
pub mod kit;
mod modules;

use host::error::{Error, Result, cause};
use host::sys;
use initramfs::Archive;
use kit::Kit;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// With hardware a kernel is up in a second; a machine whose KVM does not work never is.
const KVM_PROBE: Duration = Duration::from_secs(3);
/// Without hardware it takes three seconds on a core of its own, and a busy machine has less than
/// that.
const TCG_PROBE: Duration = Duration::from_secs(60);
const MEMORY_MIB: u64 = 192;
/// A longer line of a console is taken in pieces.
const LINE_BYTES_MAX: u64 = 4096;
/// Lines on their way from consoles; a guest that says more waits.
const LINES_MAX: usize = 1024;
const PREFIX: &str = "tenuto: ";
/// The kernel counts ticks when it starts, and panics when an emulated timer was late because
/// the host was busy.
const TIMERS: &str = "no_timer_check";

/// How QEMU runs a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    Kvm,
    Tcg,
}

impl Accelerator {
    pub const fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }
}

/// What came from a console.
#[derive(Debug)]
pub enum What {
    /// What the guest said, without the prefix.
    Said(String),
    /// Anything else, from the kernel or from QEMU.
    Noise(String),
    /// Its console is closed: QEMU has ended.
    Ended,
}

#[derive(Debug)]
pub struct Heard {
    pub guest: usize,
    pub at: Instant,
    pub what: What,
}

/// A kernel and its first file system, ready to be started many times.
pub struct Machine<'a> {
    kit: &'a Kit,
    initramfs: PathBuf,
    pub accelerator: Accelerator,
    /// From the start of QEMU until the kernel had loaded its drivers, alone.
    pub probed: Duration,
}

/// Whether this user may use the hardware's help; that it works is shown by a guest.
fn has_kvm() -> std::result::Result<(), String> {
    let options = std::fs::File::options().write(true).read(true).clone();
    let opened = options.open("/dev/kvm");
    opened.map(drop).map_err(|error| {
        let why = cause(&error);
        format!("no hardware acceleration (/dev/kvm: {why})")
    })
}

pub fn console() -> (SyncSender<Heard>, Receiver<Heard>) {
    sync_channel(LINES_MAX)
}

impl<'a> Machine<'a> {
    /// Writes the first file system and tries, with a guest without a disk, what works here.
    pub fn new(kit: &'a Kit, initramfs: PathBuf, emulate: bool) -> Result<Machine<'a>> {
        let kvm = has_kvm();
        if let (Err(why), false) = (&kvm, emulate) {
            return Err(Error::failed(why.clone()));
        }
        let busybox = std::fs::read(&kit.busybox)
            .map_err(|error| Error::failed(format!("busybox: {}", cause(&error))))?;
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.program("bin/busybox", &busybox);
        archive.program("init", init(kit).as_bytes());
        archive.directory("modules");
        for (name, bytes) in &kit.modules {
            archive.program(&format!("modules/{name}.ko"), bytes);
        }
        let written = std::fs::write(&initramfs, archive.finish());
        written.map_err(|error| {
            Error::failed(format!("{}: {}", initramfs.display(), cause(&error)))
        })?;
        let mut machine = Machine {
            kit,
            initramfs,
            accelerator: Accelerator::Kvm,
            probed: Duration::ZERO,
        };
        if kvm.is_ok() && machine.probe(KVM_PROBE)?.is_ok() {
            return Ok(machine);
        }
        if !emulate {
            return Err(Error::failed(format!(
                "/dev/kvm is there, but a guest does not start with it within {} s",
                KVM_PROBE.as_secs()
            )));
        }
        machine.accelerator = Accelerator::Tcg;
        match machine.probe(TCG_PROBE)? {
            Ok(()) => Ok(machine),
            Err(last) => Err(Error::failed(format!(
                "a guest of {} says nothing within {} s{last}",
                kit.kernel_name(),
                TCG_PROBE.as_secs()
            ))),
        }
    }

    /// Whether a guest comes up in time; what it said last if not.
    fn probe(&mut self, patience: Duration) -> Result<std::result::Result<(), String>> {
        let (sender, heard) = console();
        let guest = self.start(0, &[], sender)?;
        let mut last = String::new();
        while let Some(left) = patience.checked_sub(guest.started.elapsed()) {
            match heard.recv_timeout(left).map(|it| it.what) {
                Ok(What::Said(_)) => {
                    self.probed = guest.started.elapsed();
                    return Ok(Ok(()));
                }
                Ok(What::Noise(line)) => last = format!("; it ended with: {line}"),
                _ => break,
            }
        }
        Ok(Err(last))
    }

    /// Starts a guest with its root on the first of these nodes of QEMU; without one it only comes
    /// up.
    pub fn start(&self, number: usize, disks: &[&str], sender: SyncSender<Heard>) -> Result<Guest> {
        let serial = match std::env::consts::ARCH {
            "aarch64" => "ttyAMA0",
            _ => "ttyS0",
        };
        let probe = if disks.is_empty() {
            " tenuto.probe"
        } else {
            ""
        };
        let mut command = Command::new(&self.kit.qemu);
        match (std::env::consts::ARCH, self.accelerator) {
            ("aarch64", Accelerator::Kvm) => command.args(["-M", "virt", "-cpu", "host"]),
            ("aarch64", Accelerator::Tcg) => command.args(["-M", "virt", "-cpu", "max"]),
            (_, Accelerator::Kvm) => command.args(["-cpu", "host"]),
            (_, Accelerator::Tcg) => &mut command,
        };
        command
            .args(["-accel", self.accelerator.name()])
            .args(["-m", &MEMORY_MIB.to_string(), "-nodefaults", "-no-reboot"])
            .args(["-display", "none", "-serial", "stdio", "-kernel"])
            .arg(&self.kit.kernel)
            .arg("-initrd")
            .arg(&self.initramfs)
            .arg("-append")
            .arg(format!("console={serial} quiet panic=-1 {TIMERS}{probe}"));
        for (at, node) in disks.iter().enumerate() {
            let drive = format!("if=none,id=disk{at},{node}");
            let device = format!("virtio-blk-pci,drive=disk{at}");
            command.args(["-drive", &drive, "-device", &device]);
        }
        // A group of its own: Ctrl-C is for us, who end the guests in order.
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        sys::end_with_parent(&mut command, libc::SIGKILL);
        let started = Instant::now();
        let mut child = command.spawn().map_err(|error| {
            Error::failed(format!("{}: {}", self.kit.qemu.display(), cause(&error)))
        })?;
        let stdin = child.stdin.take().expect("it was asked for");
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let out = out.expect("it was asked for");
        let err = err.expect("it was asked for");
        let complaints = sender.clone();
        std::thread::spawn(move || listen(number, out, &sender, true));
        std::thread::spawn(move || listen(number, err, &complaints, false));
        Ok(Guest {
            child,
            stdin,
            started,
        })
    }
}

/// The program that the kernel starts: it loads the drivers and hands over to the disk.
fn init(kit: &Kit) -> String {
    let mut text = String::from(
        "#!/bin/busybox sh\nexport PATH=/bin\n\
         busybox mkdir -p /proc /sys /dev /root\n\
         busybox mount -t proc proc /proc\nbusybox mount -t sysfs sys /sys\n\
         busybox mount -t devtmpfs dev /dev\n",
    );
    for (name, _) in &kit.modules {
        // What the kernel has built in after all is refused, and nothing is lost by that.
        let _ = writeln!(text, "busybox insmod /modules/{name}.ko 2>/dev/null");
    }
    text.push_str(
        "echo 'tenuto: up'\n\
         busybox grep -q tenuto.probe /proc/cmdline && busybox poweroff -f\n\
         busybox mount -t ext4 /dev/vda /root || \
         { echo 'tenuto: wrong no root file system'; busybox poweroff -f; }\n\
         exec busybox switch_root /root /work\n",
    );
    text
}

/// Passes lines on until the pipe is closed or nobody wants them any more.
fn listen(guest: usize, pipe: impl Read, sender: &SyncSender<Heard>, is_console: bool) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut pipe)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line);
        let ended = !matches!(read, Ok(bytes) if bytes > 0);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        let what = match text.strip_prefix(PREFIX) {
            _ if ended && is_console => What::Ended,
            _ if ended => return,
            Some(said) if is_console => What::Said(said.to_owned()),
            _ => What::Noise(text.to_owned()),
        };
        let at = Instant::now();
        if sender.send(Heard { guest, at, what }).is_err() || ended {
            return;
        }
    }
}

/// A running guest. Ended when dropped.
pub struct Guest {
    child: Child,
    stdin: ChildStdin,
    pub started: Instant,
}

impl Guest {
    /// A line on its console, where it waits for one.
    pub fn tell(&mut self, line: &str) -> std::io::Result<()> {
        writeln!(self.stdin, "{line}")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended by itself; then there is only its exit status to take.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
