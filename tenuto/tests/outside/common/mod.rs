//! What all outside tests share: a daemon of the real binary in directories of its own.
//!
//! Owns directories, configuration, start, kill and clean-up, and the calls of the command line.
//! Always true: the daemon's processes are ended by their own id, and everything made here
//! (stage files, sockets, mounts) is removed when the test ends, also when it fails. Nothing
//! here knows the product's inside: sockets, files, exit codes and JSON are all it sees; only
//! `anatomy` and `scene` know where bytes of its formats lie.

pub mod agents;
pub mod anatomy;
pub mod boot;
pub mod browser;
pub mod certificates;
pub mod denied;
pub mod disk;
pub mod export;
pub mod front_end;
pub mod fuse;
pub mod guest;
pub mod history;
pub mod inside;
pub mod load;
pub mod marks;
pub mod nbd;
pub mod nfs;
pub mod relay;
pub mod scene;
pub mod server;
pub mod shelf;
pub mod thread;
pub mod vault;
pub mod vm;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
/// For [`inside`], which is also built where there is no such crate.
use workload::{rng, stamp};

/// Exit codes of the command line.
pub const EXIT_DONE: i32 = 0;
pub const EXIT_FAILED: i32 = 1;
pub const EXIT_USAGE: i32 = 2;
pub const EXIT_UNREACHABLE: i32 = 3;
pub const EXIT_REFUSED: i32 = 4;
pub const EXIT_DAMAGE: i32 = 5;

/// How long a state is waited for that is sure to come, however slow the machine is.
pub const PATIENCE: Duration = Duration::from_secs(300);
const READY_TIMEOUT: Duration = PATIENCE;
/// An orderly stop writes what is acknowledged to the log; it does not destage.
const STOP_TIMEOUT: Duration = PATIENCE;
/// How long a line of the log may take.
const SAID: Duration = PATIENCE;

/// The program that is tested: the one that `TENUTO_BINARY` names, as `./test` does with the one it
/// built as it is shipped, or that of this build.
pub fn binary() -> String {
    std::env::var("TENUTO_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tenuto").to_owned())
}

/// A line for the runner, which counts skips from this file and never calls them passed.
pub fn skip(test: &str, why: &str) {
    use std::io::Write as _;
    eprintln!("skipped: {test}: {why}");
    if let Some(path) = std::env::var_os("TENUTO_SKIPS") {
        let mut file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .expect("open the file of skips");
        writeln!(file, "{test}: {why}").expect("note the skip");
    }
}

/// Whether these programs are here; notes a skip if not.
pub fn have(test: &str, programs: &[&str]) -> bool {
    for program in programs {
        if !on_path(program) {
            skip(test, &format!("{program} is not installed"));
            return false;
        }
    }
    true
}

pub fn on_path(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin")
        .split(':')
        .any(|directory| Path::new(directory).join(program).is_file())
}

pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Whether this process may mount; notes a skip if not.
pub fn may_mount(test: &str) -> bool {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        skip(test, "mounting needs root and /dev/fuse");
        return false;
    }
    have(test, &["losetup", "mkfs.ext4", "mount", "umount"])
}

/// A number from the environment, so that long runs need no other code.
pub fn count(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| {
        text.parse().expect("a count in the environment")
    })
}

/// The seed of a test: fixed, or the one given to replay a failure.
pub fn seed(default: u64) -> u64 {
    let seed = count("TENUTO_SEED", default);
    eprintln!("seed {seed}: replay with TENUTO_SEED={seed}");
    seed
}

/// Directories and configuration of one daemon.
pub struct Rig {
    pub dir: PathBuf,
    stage: PathBuf,
    host: String,
    cache: String,
    volumes: String,
    sections: String,
    environment: Vec<(String, String)>,
    file_bytes_max: Option<u64>,
    no_ring: Option<i32>,
    /// The boot that the host is in, and how many it had: one more than losses of power.
    boot: AtomicU32,
    boots: AtomicU32,
    _dir: tempfile::TempDir,
    _stage: Option<tempfile::TempDir>,
}

impl Rig {
    /// A rig with a small cache file in its own directory and no volumes.
    pub fn new() -> Rig {
        let dir = tempfile::Builder::new()
            .prefix("tenuto-t")
            .tempdir()
            .expect("make a directory");
        // The stage must be shared memory where there is some: that is what outlives a kill.
        let stage = tempfile::Builder::new()
            .prefix("tenuto-t")
            .tempdir_in("/dev/shm")
            .ok();
        let rig = Rig {
            dir: dir.path().to_owned(),
            stage: stage
                .as_ref()
                .map_or_else(|| dir.path().join("stage"), |stage| stage.path().to_owned()),
            host: host_section("host-a"),
            cache: String::new(),
            volumes: String::new(),
            sections: String::new(),
            environment: Vec::new(),
            file_bytes_max: None,
            no_ring: None,
            boot: AtomicU32::new(0),
            boots: AtomicU32::new(1),
            _dir: dir,
            _stage: stage,
        };
        for part in ["run", "state", "stage"] {
            fs::create_dir_all(rig.dir.join(part)).expect("make a directory");
        }
        rig
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub fn cache_path(&self) -> PathBuf {
        self.dir.join("cache")
    }

    pub fn config_path(&self) -> PathBuf {
        self.dir.join("tenuto.toml")
    }

    /// The socket on which a volume is the default export.
    pub fn socket(&self, volume: &str) -> PathBuf {
        self.run_dir().join(format!("{volume}.nbd.sock"))
    }

    /// The socket of all exports.
    pub fn all_exports(&self) -> PathBuf {
        self.run_dir().join("nbd.sock")
    }

    /// What `qemu-img`, `qemu-io` and QEMU call a volume.
    pub fn uri(&self, volume: &str) -> String {
        format!(
            "nbd+unix:///{volume}?socket={}",
            self.all_exports().display()
        )
    }

    pub fn host_name(&mut self, name: &str) -> &mut Rig {
        self.host = host_section(name);
        self
    }

    /// The `[cache]` section: place, size, and lines as in the file.
    pub fn cache(&mut self, path: &Path, size: &str, lines: &str) -> &mut Rig {
        self.cache = format!(
            "path = \"{}\"\nsize = \"{size}\"\n{lines}\n",
            path.display()
        );
        self
    }

    /// One volume with its origin, policy and further lines as in the file.
    pub fn volume(&mut self, name: &str, origin: &Path, policy: &str, lines: &str) -> &mut Rig {
        self.exported(&["nbd"], name, (origin, "raw"), policy, lines)
    }

    /// The same on a qcow2 image.
    pub fn qcow2_volume(
        &mut self,
        name: &str,
        image: &Path,
        policy: &str,
        lines: &str,
    ) -> &mut Rig {
        self.exported(&["nbd"], name, (image, "qcow2"), policy, lines)
    }

    /// The same on an image of this format.
    pub fn volume_of(
        &mut self,
        name: &str,
        image: (&Path, &str),
        policy: &str,
        lines: &str,
    ) -> &mut Rig {
        self.exported(&["nbd"], name, image, policy, lines)
    }

    /// The same for one that a guest has over vhost-user.
    pub fn guest_volume(
        &mut self,
        name: &str,
        origin: &Path,
        policy: &str,
        lines: &str,
    ) -> &mut Rig {
        self.exported(&["vhost-user", "nbd"], name, (origin, "raw"), policy, lines)
    }

    /// The same for a guest over vhost-user.
    pub fn qcow2_guest(&mut self, name: &str, image: &Path, policy: &str, lines: &str) -> &mut Rig {
        self.exported(
            &["vhost-user", "nbd"],
            name,
            (image, "qcow2"),
            policy,
            lines,
        )
    }

    fn exported(
        &mut self,
        exports: &[&str],
        name: &str,
        (origin, format): (&Path, &str),
        policy: &str,
        lines: &str,
    ) -> &mut Rig {
        write!(
            self.volumes,
            "[[volume]]\nname = \"{name}\"\norigin = \"{}\"\nformat = \"{format}\"\n\
             policy = \"{policy}\"\nexport = {exports:?}\n{lines}\n",
            origin.display()
        )
        .expect("a string takes everything");
        self
    }

    /// A line of the `[host]` section.
    pub fn host_line(&mut self, line: &str) -> &mut Rig {
        self.host.push_str(line);
        self.host.push('\n');
        self
    }

    /// A further section of the file.
    pub fn section(&mut self, text: &str) -> &mut Rig {
        self.sections.push_str(text);
        self
    }

    pub fn forget_volumes(&mut self) -> &mut Rig {
        self.volumes.clear();
        self
    }

    /// A variable of the daemon's environment.
    pub fn env(&mut self, key: &str, value: &str) -> &mut Rig {
        self.environment.retain(|(known, _)| known != key);
        self.environment.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn forget_env(&mut self, key: &str) {
        self.environment.retain(|(known, _)| known != key);
    }

    /// What `ulimit -f` is for the daemon; `None` = as for the test.
    pub fn file_bytes_max(&mut self, bytes: Option<u64>) -> &mut Rig {
        self.file_bytes_max = bytes;
        self
    }

    /// The kernel answers `io_uring_setup` of the daemon with this errno.
    pub fn no_ring(&mut self, errno: Option<i32>) -> &mut Rig {
        self.no_ring = errno;
        self
    }

    /// A raw image of that many bytes, all zero.
    pub fn image(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.dir.join(name);
        let file = fs::File::create(&path).expect("create an image");
        file.set_len(bytes).expect("size an image");
        path
    }

    /// Writes the configuration file as it stands now.
    pub fn write_config(&self) -> PathBuf {
        let cache = if self.cache.is_empty() {
            format!(
                "path = \"{}\"\nsize = \"256MiB\"\nram = \"16MiB\"\nstage = \"16MiB\"\n\
                 overlay-ram = \"16MiB\"\n",
                self.cache_path().display()
            )
        } else {
            self.cache.clone()
        };
        let text = format!(
            "[host]\n{}run-dir = \"{}\"\nstage-dir = \"{}\"\nstate-dir = \"{}\"\n\n\
             [cache]\n{cache}\n{}{}",
            self.host,
            self.run_dir().display(),
            self.stage.display(),
            self.state_dir().display(),
            self.sections,
            self.volumes
        );
        let path = self.config_path();
        fs::write(&path, text).expect("write the configuration");
        path
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    pub fn stage_dir(&self) -> &Path {
        &self.stage
    }

    /// What a host that lost power has of its stage: nothing, and it is another boot.
    pub fn lose_stage(&self) {
        self.go_to_boot(self.boots.fetch_add(1, Ordering::SeqCst));
        self.remove_stage();
    }

    pub fn boot(&self) -> u32 {
        self.boot.load(Ordering::SeqCst)
    }

    /// The host is put back to what it was in this boot.
    pub fn go_to_boot(&self, boot: u32) {
        self.boot.store(boot, Ordering::SeqCst);
    }

    /// The stage is removed while the host goes on.
    pub fn remove_stage(&self) {
        for entry in fs::read_dir(&self.stage).expect("list the stage directory") {
            fs::remove_file(entry.expect("an entry").path()).expect("remove a stage file");
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(binary());
        if let Some(bytes) = self.file_bytes_max {
            denied::larger_files(&mut command, bytes);
        }
        if let Some(errno) = self.no_ring {
            denied::io_uring(&mut command, errno);
        }
        command
            .env("TENUTO_CONFIG", self.config_path())
            .env_remove("TENUTO_SOCKET")
            .env("NO_COLOR", "1")
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .envs(self.boot_name())
            .stdin(Stdio::null());
        command
    }

    /// The present boot, where it is not the real one.
    fn boot_name(&self) -> Option<(&'static str, String)> {
        let boot = self.boot();
        let name = format!("00000000-0000-4000-8000-{boot:012x}");
        (boot > 0).then_some(("TENUTO_DRILL_BOOT", name))
    }

    /// Runs one command of the product to its end.
    pub fn tenuto(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().expect("run tenuto")
    }

    /// Starts one that goes on, with both outputs to be read.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        Command::new(binary())
            .args(arguments)
            .env("TENUTO_CONFIG", self.config_path())
            .env_remove("TENUTO_SOCKET")
            .envs(self.boot_name())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run tenuto")
    }

    /// Runs a command that must succeed; its standard output.
    pub fn done(&self, arguments: &[&str]) -> String {
        let output = self.tenuto(arguments);
        assert_eq!(
            output.status.code(),
            Some(EXIT_DONE),
            "tenuto {arguments:?}: {}",
            text_of(&output)
        );
        String::from_utf8(output.stdout).expect("output is UTF-8")
    }

    /// Runs a command that must succeed with `--json`; the one document it prints.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        let text = self.done(&all);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
    }

    /// `volume show NAME --json`.
    pub fn show(&self, volume: &str) -> Value {
        self.json(&["volume", "show", volume])
    }

    /// Runs a command that must fail with this code; its one line on standard error.
    pub fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.tenuto(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            text_of(&output)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// What the admin socket answers to a request, head included.
    pub fn get(&self, path: &str) -> String {
        let socket = self.run_dir().join("tenuto.sock");
        let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("connect");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("ask");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// What the daemon shows for a metric without labels, named without its prefix.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("tenuto_{name} ")));
        let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        value.trim().parse().expect("a number")
    }

    /// Starts the daemon and waits until it says `ready`.
    pub fn serve(&self) -> Daemon {
        match self.try_serve() {
            Ok(daemon) => daemon,
            Err((status, log)) => panic!("the daemon did not start, {status}:\n{log}"),
        }
    }

    /// Starts the daemon; what it said when it ended before it was ready.
    pub fn try_serve(&self) -> Result<Daemon, (ExitStatus, String)> {
        self.start().wait()
    }

    /// The same, and an image that cannot be opened ends it.
    pub fn try_serve_strict(&self) -> Result<Daemon, (ExitStatus, String)> {
        self.start_with(&["--strict"]).wait()
    }

    /// Starts the daemon and does not wait.
    pub fn start(&self) -> Starting {
        self.start_with(&[])
    }

    fn start_with(&self, arguments: &[&str]) -> Starting {
        self.write_config();
        let mut child = self
            .command()
            .arg("serve")
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the daemon");
        let log = Arc::new(Mutex::new(String::new()));
        let (ready, is_ready) = channel();
        let readers = vec![
            listen(child.stdout.take().expect("a pipe"), &log, ready.clone()),
            listen(child.stderr.take().expect("a pipe"), &log, ready),
        ];
        Starting {
            daemon: Daemon {
                child,
                log,
                readers,
            },
            is_ready,
        }
    }

    /// Waits until the daemon has noticed that all clients of a volume are gone.
    pub fn gone_clients(&self, volume: &str) {
        wait_until("the clients are gone", STOP_TIMEOUT, || {
            self.show(volume)["clients"] == 0
        });
    }

    /// Brings what `disk` has to its origin.
    pub fn flush_and_destage(&self, client: &mut nbd::Client, policy: &str) {
        client.flush();
        if policy == "write-back" {
            self.done(&["volume", "destage", "disk", "--wait"]);
        }
    }

    /// Opens a volume with the small client.
    pub fn connect(&self, volume: &str) -> nbd::Client {
        nbd::Client::connect(&self.socket(volume), "")
            .unwrap_or_else(|error| panic!("connect to {volume}: {error}"))
    }
}

/// The group of the test itself: there may be no group `kvm` here.
fn host_section(name: &str) -> String {
    // SAFETY: getegid has no preconditions and cannot fail.
    let group = unsafe { libc::getegid() };
    format!("name = \"{name}\"\ngroup = \"{group}\"\n")
}

/// What a program said, for a failed assertion.
pub fn text_of(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs a foreign program that must succeed; its standard output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        text_of(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An image with its ledger and journal, as somebody would find them on the shared storage:
/// size and times stay, because a journal is replayed only onto the image it was written for.
pub fn copy_with_neighbours(image: &Path, copy: &Path) {
    for ending in ["", ".tenuto", ".tenuto-journal"] {
        let from = format!("{}{ending}", image.display());
        let to = format!("{}{ending}", copy.display());
        // What an earlier round left must not be taken for this round's.
        let _ = fs::remove_file(&to);
        if !Path::new(&from).exists() {
            continue;
        }
        let modified = fs::metadata(&from).and_then(|data| data.modified());
        fs::copy(&from, &to).unwrap_or_else(|error| panic!("copy {from}: {error}"));
        let file = fs::File::options()
            .write(true)
            .open(&to)
            .expect("open the copy");
        file.set_modified(modified.expect("the time of the original"))
            .expect("set the time");
    }
}

/// Ends the threads that look at a flag, also when the test fails.
pub struct SetWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits for a condition that another process brings about. Polling is all there is from
/// outside; the pause only spares the processor.
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < timeout, "not within {timeout:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Waits after SIGSTOP until no thread of a program can answer any more: the signal reaches one of
/// them first, and the others may serve a request in the meantime.
pub fn wait_until_it_stands(pid: u32) {
    let tasks = format!("/proc/{pid}/task");
    wait_until("every thread stands", PATIENCE, || {
        let tasks = fs::read_dir(&tasks).expect("its threads");
        tasks.flatten().all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name, which may hold anything.
            stat.rsplit_once(") ")
                .is_none_or(|(_, rest)| rest.starts_with('T'))
        })
    });
}

/// A foreign program in the background, ended by its own id when dropped.
pub struct Background(Child);

impl Background {
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill(2) takes numbers; the process is our own child and not reaped yet.
        let sent = unsafe { libc::kill(self.0.id() as i32, signal) };
        assert_eq!(sent, 0, "the program is there");
    }

    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        wait_until_it_stands(self.0.id());
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn start(program: &str, arguments: &[&str]) -> Background {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        Background(child)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks a process of ours to end in order.
pub fn end(pid: i32) {
    signal(pid, libc::SIGTERM);
}

/// Sends a signal to a process of ours.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: plain call with the id of a child that was not waited for.
    let sent = unsafe { libc::kill(pid, signal) };
    assert_eq!(sent, 0, "signal {signal} to {pid}");
}

/// A daemon that may not be ready yet.
pub struct Starting {
    daemon: Daemon,
    is_ready: Receiver<()>,
}

impl Starting {
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Waits for `ready`, or for the end of the process.
    pub fn wait(mut self) -> Result<Daemon, (ExitStatus, String)> {
        match self.is_ready.recv_timeout(READY_TIMEOUT) {
            Ok(()) => Ok(self.daemon),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.daemon.child.wait().expect("the daemon's exit status");
                Err((status, self.daemon.last_words()))
            }
            Err(RecvTimeoutError::Timeout) => {
                panic!("not ready within {READY_TIMEOUT:?}:\n{}", self.daemon.log())
            }
        }
    }

    /// Whether it said `ready` within this time.
    pub fn is_ready_within(&self, time: Duration) -> bool {
        self.is_ready.recv_timeout(time).is_ok()
    }

    /// The daemon, after [`Starting::is_ready_within`] said yes.
    pub fn daemon(self) -> Daemon {
        self.daemon
    }
}

fn listen(
    pipe: impl Read + Send + 'static,
    log: &Arc<Mutex<String>>,
    ready: std::sync::mpsc::Sender<()>,
) -> JoinHandle<()> {
    let log = Arc::clone(log);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { return };
            let mut log = log.lock().unwrap();
            log.push_str(&line);
            log.push('\n');
            drop(log);
            if line.trim() == "ready" {
                // Nobody listens any more after the first one.
                let _ = ready.send(());
            }
        }
    })
}

/// A running daemon. Killed when dropped.
pub struct Daemon {
    child: Child,
    log: Arc<Mutex<String>>,
    /// The threads that read its output: they end with it.
    readers: Vec<JoinHandle<()>>,
}

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said as far as it was read: a line may come after what it tells of.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it has said all of these.
    pub fn says(&self, parts: &[&str]) {
        let start = Instant::now();
        loop {
            let log = self.log();
            let Some(part) = parts.iter().find(|part| !log.contains(**part)) else {
                return;
            };
            assert!(start.elapsed() < SAID, "{part:?} is missing in: {log}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// All that it has said, once its process has ended.
    fn last_words(&mut self) -> String {
        for reader in self.readers.drain(..) {
            reader.join().expect("read what a daemon says");
        }
        self.log()
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("ask for the daemon").is_none()
    }

    /// `kill -9`, and the process is reaped. Its requests to devices may still be under way.
    pub fn kill(mut self) -> String {
        self.child.kill().expect("kill the daemon");
        self.child.wait().expect("reap the daemon");
        self.last_words()
    }

    pub fn signal(&self, signal: i32) {
        let pid = self.child.id() as i32;
        // SAFETY: plain call with a process id that is ours until it is waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "signal the daemon");
    }

    /// An orderly stop: SIGTERM, exit code 0.
    pub fn stop(mut self) -> String {
        self.signal(libc::SIGTERM);
        let child = &mut self.child;
        let mut status = None;
        wait_until("the daemon stops in order", STOP_TIMEOUT, || {
            status = child.try_wait().expect("ask for the daemon");
            status.is_some()
        });
        let status = status.expect("it was waited for");
        let log = self.last_words();
        assert_eq!(status.code(), Some(0), "orderly stop:\n{log}");
        log
    }

    /// How many descriptors are open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .expect("list descriptors")
            .count()
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.pid()))
            .expect("list threads")
            .count()
    }

    /// Resident memory of its own, without shared memory, in KiB.
    pub fn private_kib(&self) -> u64 {
        self.resident_kib(["RssAnon"])
    }

    /// What its allocators and stacks hold, in KiB: anonymous memory without the areas that have
    /// their size in the configuration, which the daemon keeps out of core dumps.
    pub fn heap_kib(&self) -> u64 {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", self.pid()));
        let maps = maps.expect("read the maps");
        let mut anonymous = 0;
        let mut kib = 0;
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("Anonymous:") => {
                    let number = words.next().and_then(|number| number.parse::<u64>().ok());
                    anonymous = number.expect("a number of KiB");
                }
                Some("VmFlags:") if words.all(|flag| flag != "dd") => kib += anonymous,
                _ => {}
            }
        }
        kib
    }

    /// Resident memory of these kinds, in KiB.
    pub fn resident_kib<const N: usize>(&self, kinds: [&str; N]) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("read the status");
        let of = |kind: &str| {
            let mut lines = status.lines();
            let line = lines.find(|line| line.split(':').next() == Some(kind));
            let number = line.and_then(|line| line.split_whitespace().nth(1));
            number.and_then(|number| number.parse::<u64>().ok())
        };
        kinds
            .map(|kind| of(kind).expect("a line of this kind"))
            .iter()
            .sum()
    }

    /// Time for which it has used processors, its own and the kernel's on its behalf.
    pub fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.expect("read the times");
        // The fields follow the name, which may hold anything.
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        let times = fields.split(' ').skip(11).take(2);
        let ticks: u64 = times
            .map(|ticks| ticks.parse::<u64>().expect("a number"))
            .sum();
        // SAFETY: asks for a constant of the system.
        let in_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Duration::from_secs_f64(ticks as f64 / in_second as f64)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon said:\n{}", self.log());
        }
    }
}
