//! A guest that goes on while the test does something to its disks, its daemon or itself.
//!
//! Owns the start of QEMU with disks over vhost-user, the guest's console in both directions, and
//! QEMU's monitor. Always true: whatever is waited for, the wait ends at once, with the console
//! shown, when the guest says that something is wrong, when its kernel does, or when QEMU is gone.
//! Deliberately absent: what the guest does, which is in [`inside`](super::inside).

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::guest::{KERNEL_WORDS, Machine};

/// A guest is up in seconds; two of them and a build may share two cores.
pub const PATIENCE: Duration = Duration::from_secs(480);
const MEMORY: &str = "256M";
const QUEUES: u32 = 4;
/// Of the in-flight region, as the protocol lays it out for a split ring.
const REGION_HEADER: usize = 16;
const REGION_ENTRY: usize = 16;
const REGION_ALIGNMENT: usize = 64;
/// What a kernel says of a disk that answers with an error, or not at all.
const WRONG: [&str; 9] = [
    "guest: error",
    "I/O error",
    "EXT4-fs error",
    "XFS (vd",
    "Kernel panic",
    "BUG: ",
    "Oops: ",
    "is not a head!",
    "blocked for more than",
];
/// Good news of that file system.
const RIGHT: [&str; 4] = [
    "Mounting V5",
    "Ending clean mount",
    "Unmounting Filesystem",
    "Starting recovery",
];

/// Where a disk of the guest comes from.
pub enum Disk {
    /// A volume's socket.
    Vhost(PathBuf),
    /// A raw image without the product.
    Image(PathBuf),
    /// The same of a qcow2 image.
    Qcow2(PathBuf),
}

/// What one guest is started with.
pub struct Shape<'a> {
    pub name: String,
    pub disks: Vec<Disk>,
    /// Each disk's use inside, in the same order.
    pub uses: &'a [&'a str],
    pub step: &'a str,
    pub processors: u32,
    /// More words for its kernel.
    pub words: &'a str,
    /// Waits for another one to move in, here.
    pub incoming: Option<PathBuf>,
}

/// What a guest has said so far, and when it last said anything.
pub struct Console {
    pub text: String,
    pub heard: Instant,
}

pub type Screen = Arc<Mutex<Console>>;

pub struct Vm {
    child: Child,
    input: Option<ChildStdin>,
    console: Screen,
    listener: Option<std::thread::JoinHandle<()>>,
    monitor: PathBuf,
}

impl Vm {
    pub fn start(machine: &Machine, dir: &Path, shape: &Shape) -> Vm {
        Vm::start_with(machine, dir, shape, &[])
    }

    /// The same with more arguments for QEMU.
    pub fn start_with(machine: &Machine, dir: &Path, shape: &Shape, more: &[String]) -> Vm {
        let [kernel, initramfs] = machine.files();
        let mut boot = Command::new("qemu-system-x86_64");
        boot.arg("-kernel").arg(kernel).arg("-initrd");
        boot.arg(initramfs).args(["-append", &command_line(shape)]);
        boot.args(more);
        Vm::boot(boot, dir, shape)
    }

    /// Starts from its first disk; `uses` and `step` are in the words of its boot loader.
    pub fn start_from_disk(dir: &Path, shape: &Shape) -> Vm {
        Vm::boot(Command::new("qemu-system-x86_64"), dir, shape)
    }

    fn boot(mut command: Command, dir: &Path, shape: &Shape) -> Vm {
        let monitor = dir.join(format!("{}.qmp", shape.name));
        command
            .args(["-accel", "tcg", "-m", MEMORY, "-nodefaults"])
            .args(["-display", "none", "-serial", "stdio"])
            .args(["-smp", &shape.processors.to_string()])
            .arg("-object")
            .arg(format!(
                "memory-backend-memfd,id=memory,size={MEMORY},share=on"
            ))
            .args(["-machine", "memory-backend=memory", "-qmp"])
            .arg(format!("unix:{},server=on,wait=off", monitor.display()));
        for (number, disk) in shape.disks.iter().enumerate() {
            command.args(arguments(number, disk));
        }
        if let Some(place) = &shape.incoming {
            command
                .arg("-incoming")
                .arg(format!("unix:{}", place.display()));
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("start QEMU");
        let console = Arc::new(Mutex::new(Console {
            text: String::new(),
            heard: Instant::now(),
        }));
        let pipe = child.stdout.take().expect("a pipe");
        let listener = listen(pipe, &console);
        Vm {
            input: child.stdin.take(),
            child,
            console,
            listener: Some(listener),
            monitor,
        }
    }

    /// The same for one who outlives this.
    pub fn screen(&self) -> Screen {
        self.console.clone()
    }

    pub fn console(&self) -> String {
        self.console.lock().unwrap().text.clone()
    }

    /// What the guest has said that begins with this word, in order, without the word.
    pub fn said(&self, word: &str) -> Vec<String> {
        let console = self.console();
        // The last line may not have ended yet.
        let whole = console.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().filter_map(|line| {
            let said = line.trim().strip_prefix("guest: ")?.strip_prefix(word)?;
            (said.is_empty() || said.starts_with(' ')).then(|| said.trim().to_owned())
        });
        lines.collect()
    }

    /// The newest number that the guest has said with this word; 0 before the first.
    pub fn number(&self, word: &str) -> u64 {
        let said = self.said(word);
        let newest = said.last().map(|said| said.parse().expect("a number"));
        newest.unwrap_or(0)
    }

    /// What the guest or its kernel complains about.
    pub fn complaint(&self) -> Option<String> {
        let console = self.console();
        let mut lines = console.lines();
        let bad = |line: &&str| {
            WRONG.iter().any(|wrong| line.contains(wrong))
                && !RIGHT.iter().any(|right| line.contains(right))
        };
        lines.find(bad).map(str::to_owned)
    }

    /// Waits, while all is well, until the guest has come this far.
    pub fn wait_for(&mut self, what: &str, reached: impl Fn(&Vm) -> bool) {
        self.try_wait_for(what, PATIENCE, reached)
            .unwrap_or_else(|wrong| panic!("{wrong}:\n{}", self.console()));
    }

    /// The same; what is wrong, for a test in which something must be.
    pub fn try_wait_for(
        &mut self,
        what: &str,
        patience: Duration,
        reached: impl Fn(&Vm) -> bool,
    ) -> Result<(), String> {
        let start = Instant::now();
        while !reached(self) {
            if let Some(complaint) = self.complaint() {
                return Err(complaint);
            }
            if let Some(status) = self.child.try_wait().expect("ask for QEMU") {
                return Err(format!("{status} before {what}"));
            }
            if start.elapsed() > patience {
                return Err(format!("not within {patience:?}: {what}"));
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Everybody inside has done so many steps more, also those with a request that was under way.
    pub fn goes_on(&mut self, steps: u64) {
        let goal = self.number("least") + steps;
        self.wait_for("everybody goes on", |vm| vm.number("least") >= goal);
    }

    /// Tells the guest to end its work, and waits for the power-off.
    pub fn end(mut self) -> Ended {
        self.tell();
        self.wait_off()
    }

    pub fn tell(&mut self) {
        self.type_line("now");
    }

    /// Types a line on its console.
    pub fn type_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("a pipe");
        let typed = writeln!(input, "{line}");
        typed.expect("write to the console");
    }

    /// Waits for the power-off of a guest that comes to its end.
    pub fn wait_off(mut self) -> Ended {
        let start = Instant::now();
        while self.child.try_wait().expect("ask for QEMU").is_none() {
            let in_time = start.elapsed() < PATIENCE;
            assert!(in_time, "the guest goes on:\n{}", self.console());
            std::thread::park_timeout(Duration::from_millis(5));
        }
        self.close();
        let console = self.console();
        assert_eq!(self.complaint(), None, "{console}");
        assert_eq!(self.said("over").len(), 1, "not to its end:\n{console}");
        Ended(self)
    }

    /// `kill -9` of QEMU.
    pub fn kill(mut self) -> Ended {
        self.child.kill().expect("kill QEMU");
        self.child.wait().expect("reap QEMU");
        self.close();
        Ended(self)
    }

    fn close(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.join().expect("the listener does not panic");
        }
    }

    /// Requests that the daemon has taken and not ended, by the regions that QEMU keeps. Sure only
    /// while there is no daemon.
    pub fn in_flight(&self) -> usize {
        let descriptors = format!("/proc/{}/fd", self.child.id());
        let descriptors = fs::read_dir(descriptors).expect("what QEMU has open");
        let regions = descriptors.flatten().filter(|entry| {
            fs::read_link(entry.path())
                .is_ok_and(|file| file.to_string_lossy().contains("memfd:tenuto-in-flight"))
        });
        regions
            .map(|entry| {
                let file = fs::File::open(entry.path()).expect("open a region");
                let length = file.metadata().expect("its size").len();
                let mut bytes = vec![0; length as usize];
                file.read_exact_at(&mut bytes, 0).expect("read a region");
                flags(&bytes)
            })
            .sum()
    }

    pub fn monitor(&self) -> Monitor {
        Monitor::connect(&self.monitor)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let console = self.console();
            let from = console.len().saturating_sub(4000);
            let shown = console.get(from..).unwrap_or_default();
            eprintln!("the guest said at last:\n{shown}");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A guest that is off; what it said can still be asked.
pub struct Ended(Vm);

impl Ended {
    pub fn said(&self, word: &str) -> Vec<String> {
        self.0.said(word)
    }
}

fn command_line(shape: &Shape) -> String {
    let uses = shape.uses.iter().zip('a'..='z');
    let uses: Vec<String> = uses
        .map(|(kind, letter)| format!("vd{letter}:{kind}"))
        .collect();
    format!(
        "{KERNEL_WORDS} {} tenuto.step={} tenuto.disks={}",
        shape.words,
        shape.step,
        uses.join(",")
    )
}

fn arguments(number: usize, disk: &Disk) -> [String; 4] {
    match disk {
        Disk::Vhost(socket) => [
            "-chardev".to_owned(),
            format!(
                "socket,id=disk{number},path={},reconnect=1",
                socket.display()
            ),
            "-device".to_owned(),
            format!("vhost-user-blk-pci,chardev=disk{number},num-queues={QUEUES}"),
        ],
        Disk::Image(image) => drive(number, "raw", image),
        Disk::Qcow2(image) => drive(number, "qcow2", image),
    }
}

fn drive(number: usize, format: &str, image: &Path) -> [String; 4] {
    [
        "-drive".to_owned(),
        format!(
            "if=none,id=disk{number},format={format},file={}",
            image.display()
        ),
        "-device".to_owned(),
        format!("virtio-blk-pci,drive=disk{number}"),
    ]
}

fn listen(mut pipe: impl Read + Send + 'static, to: &Screen) -> std::thread::JoinHandle<()> {
    let to = to.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = pipe.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..read]);
            let mut to = to.lock().unwrap();
            to.text.push_str(&text);
            to.heard = Instant::now();
        }
    })
}

/// How many heads of a region of four queues are flagged.
fn flags(region: &[u8]) -> usize {
    let mut flagged = 0;
    let mut at = 0;
    while let Some(header) = region.get(at..at + REGION_HEADER) {
        let descriptors = u16::from_le_bytes([header[10], header[11]]);
        let bytes = usize::from(descriptors) * REGION_ENTRY;
        let Some(entries) = region.get(at + REGION_HEADER..at + REGION_HEADER + bytes) else {
            break;
        };
        let entries = entries.chunks_exact(REGION_ENTRY);
        flagged += entries.filter(|entry| entry[0] == 1).count();
        at += (REGION_HEADER + bytes).next_multiple_of(REGION_ALIGNMENT);
    }
    flagged
}

/// The monitor of a QEMU, in its machine protocol.
pub struct Monitor {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Monitor {
    fn connect(socket: &Path) -> Monitor {
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(start.elapsed() < PATIENCE, "QEMU's monitor: {error}"),
            }
            std::thread::park_timeout(Duration::from_millis(5));
        };
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout on a socket");
        let lines = BufReader::new(stream.try_clone().expect("a second handle"));
        let mut monitor = Monitor { stream, lines };
        monitor.next();
        monitor.run("qmp_capabilities", json!({}));
        monitor
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("QEMU answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
    }

    /// Runs a command that must succeed.
    pub fn run(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({ "execute": command, "arguments": arguments });
        self.stream
            .write_all(format!("{request}\n").as_bytes())
            .expect("write to QEMU");
        loop {
            let answer = self.next();
            if let Some(value) = answer.get("return") {
                return value.clone();
            }
            // Anything else but an error is an event.
            let error = answer.get("error");
            assert!(error.is_none(), "{command}: {answer}");
        }
    }
}
