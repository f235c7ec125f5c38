//! A disk that loses power, and a disk that is slow with single writes.
//!
//! Owns the bytes of one disk behind an NBD socket in this process, and a mount of it as a plain
//! file by `nbdfuse`, on which a loop device can sit. Always true: a flush covers exactly the
//! writes that were answered before it arrived; after [`Disk::cut_power`] nothing changes any
//! more, and [`Disk::restore_power`] continues from the synced bytes plus a seeded subset of the
//! unsynced sectors, torn at 512 bytes. Writes that match a hold are parked without an answer
//! until they are let go, as a path to a far array does it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::random::Random;
use super::{Background, nbd};

const SECTOR: usize = 512;
/// Connections of one mount; `nbdfuse` asks for four.
const CONNECTIONS_MAX: usize = 16;
/// Longest request that is taken, as the protocol recommends.
const REQUEST_BYTES_MAX: u32 = 32 << 20;
const MOUNT_TIMEOUT: Duration = Duration::from_secs(10);

struct Parked {
    offset: u64,
    payload: Vec<u8>,
    cookie: u64,
    answer_to: UnixStream,
}

#[derive(Default)]
struct State {
    /// What a reader sees.
    now: Vec<u8>,
    /// What the last flush left.
    synced: Vec<u8>,
    /// Answered writes since the last flush, in order; replayed onto `synced` by the flush.
    unsynced: VecDeque<(usize, Vec<u8>)>,
    powered: bool,
    /// Every request fails, nothing is lost: a path that is down.
    unplugged: bool,
    hold_from: Option<(u64, u64)>,
    parked: Vec<Parked>,
    connections: Vec<UnixStream>,
}

/// Bytes with a power switch. Cheap to clone; all clones are the same disk.
#[derive(Clone)]
pub struct Disk {
    state: Arc<(Mutex<State>, Condvar)>,
}

/// What a power cut took and left.
#[derive(Debug, Default, Clone, Copy)]
pub struct Loss {
    pub unsynced_sectors: u64,
    pub kept_sectors: u64,
}

impl Disk {
    pub fn new(bytes: usize) -> Disk {
        assert_eq!(bytes % SECTOR, 0);
        let state = State {
            now: vec![0; bytes],
            synced: vec![0; bytes],
            powered: true,
            ..State::default()
        };
        Disk {
            state: Arc::new((Mutex::new(state), Condvar::new())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.lock().now.clone()
    }

    /// While unplugged every request fails; what was written stays.
    pub fn unplug(&self, unplugged: bool) {
        self.lock().unplugged = unplugged;
    }

    /// From now on every request fails and nothing changes. Requests that wait stay unanswered
    /// and never land.
    pub fn cut_power(&self) {
        let mut state = self.lock();
        state.powered = false;
        state.parked.clear();
        state.hold_from = None;
    }

    /// Continues from what a power cut leaves: synced bytes and some of the unsynced sectors.
    pub fn restore_power(&self, random: &mut Random) -> Loss {
        let mut guard = self.lock();
        let state = &mut *guard;
        assert!(!state.powered, "power is restored only after a cut");
        let mut loss = Loss::default();
        // One share per cut, so that some cuts keep almost everything and some almost nothing.
        let keep_percent = [0, 20, 50, 80, 97][random.below(5) as usize];
        for (offset, payload) in state.unsynced.drain(..) {
            let whole = random.below(100) < 50;
            let kept = random.below(100) < keep_percent;
            for (index, sector) in payload.chunks(SECTOR).enumerate() {
                loss.unsynced_sectors += 1;
                let keep = if whole {
                    kept
                } else {
                    random.below(100) < keep_percent
                };
                if keep {
                    loss.kept_sectors += 1;
                    let at = offset + index * SECTOR;
                    state.synced[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        state.now = state.synced.clone();
        state.powered = true;
        loss
    }

    /// Parks every later write that touches this range.
    pub fn hold_writes(&self, from: u64, to: u64) {
        self.lock().hold_from = Some((from, to));
    }

    /// Waits until that many writes are parked. False when it takes longer than `timeout`.
    pub fn wait_parked(&self, count: usize, timeout: Duration) -> bool {
        let (mutex, changed) = &*self.state;
        let guard = mutex.lock().unwrap();
        let (guard, _) = changed
            .wait_timeout_while(guard, timeout, |state| state.parked.len() < count)
            .unwrap();
        guard.parked.len() >= count
    }

    /// Later writes pass again; the parked ones stay parked.
    pub fn hold_no_more(&self) {
        self.lock().hold_from = None;
    }

    pub fn parked(&self) -> usize {
        self.lock().parked.len()
    }

    /// Ends the hold: parked writes land now, late, and are answered. Returns how many.
    pub fn let_go(&self) -> usize {
        let mut state = self.lock();
        state.hold_from = None;
        let parked = std::mem::take(&mut state.parked);
        let count = parked.len();
        for write in parked {
            state.write(write.offset as usize, write.payload);
            let mut stream = write.answer_to;
            // Whoever asked may be gone; the bytes have landed all the same.
            let _ = stream.write_all(&reply(0, write.cookie));
        }
        count
    }

    /// Ends every connection. What is parked stays parked, as in a server that goes on working.
    pub fn hang_up(&self) {
        for stream in std::mem::take(&mut self.lock().connections) {
            // One that has ended already is as it should be.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Serves the disk on a socket until the process ends or the socket's file is gone.
    pub fn serve(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).expect("bind the disk's socket");
        let disk = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(CONNECTIONS_MAX) {
                let Ok(stream) = stream else { return };
                let disk = disk.clone();
                std::thread::spawn(move || {
                    // The end of a connection is an error of reading, and nothing else is due.
                    let _ = disk.talk(stream);
                });
            }
        });
    }

    fn talk(&self, mut stream: UnixStream) -> io::Result<()> {
        let handle = stream.try_clone()?;
        self.lock().connections.push(handle);
        handshake(&mut stream, self.lock().now.len() as u64)?;
        loop {
            let mut head = [0; 28];
            stream.read_exact(&mut head)?;
            assert_eq!(head[..4], nbd::REQUEST_MAGIC.to_be_bytes());
            let command = u16::from_be_bytes(head[6..8].try_into().unwrap());
            let fua = u16::from_be_bytes(head[4..6].try_into().unwrap()) & nbd::FLAG_FUA != 0;
            let cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
            let offset = u64::from_be_bytes(head[16..24].try_into().unwrap());
            let length = u32::from_be_bytes(head[24..28].try_into().unwrap());
            assert!(length <= REQUEST_BYTES_MAX || command != nbd::CMD_WRITE);
            match command {
                nbd::CMD_DISC => return Ok(()),
                nbd::CMD_WRITE => {
                    let mut payload = vec![0; length as usize];
                    stream.read_exact(&mut payload)?;
                    self.take_write(&mut stream, cookie, offset, payload, fua)?;
                }
                nbd::CMD_WRITE_ZEROES => {
                    let payload = vec![0; length as usize];
                    self.take_write(&mut stream, cookie, offset, payload, fua)?;
                }
                nbd::CMD_READ => {
                    let state = self.lock();
                    let end = offset as usize + length as usize;
                    if !state.answers() || end > state.now.len() {
                        stream.write_all(&reply(nbd::EIO, cookie))?;
                        continue;
                    }
                    let mut bytes = reply(0, cookie).to_vec();
                    bytes.extend_from_slice(&state.now[offset as usize..end]);
                    drop(state);
                    stream.write_all(&bytes)?;
                }
                nbd::CMD_FLUSH => {
                    let mut state = self.lock();
                    let error = if state.answers() { 0 } else { nbd::EIO };
                    if state.answers() {
                        state.flush();
                    }
                    drop(state);
                    stream.write_all(&reply(error, cookie))?;
                }
                _ => stream.write_all(&reply(nbd::EINVAL, cookie))?,
            }
        }
    }

    fn take_write(
        &self,
        stream: &mut UnixStream,
        cookie: u64,
        offset: u64,
        payload: Vec<u8>,
        fua: bool,
    ) -> io::Result<()> {
        let mut state = self.lock();
        let end = offset + payload.len() as u64;
        let held = state
            .hold_from
            .is_some_and(|(from, to)| offset < to && from < end);
        let error = if !state.answers() || end > state.now.len() as u64 {
            nbd::EIO
        } else if held {
            let answer_to = stream.try_clone()?;
            state.parked.push(Parked {
                offset,
                payload,
                cookie,
                answer_to,
            });
            self.state.1.notify_all();
            return Ok(());
        } else {
            state.write(offset as usize, payload);
            if fua {
                state.flush();
            }
            0
        };
        drop(state);
        stream.write_all(&reply(error, cookie))
    }
}

impl State {
    fn answers(&self) -> bool {
        self.powered && !self.unplugged
    }

    fn write(&mut self, offset: usize, payload: Vec<u8>) {
        self.now[offset..offset + payload.len()].copy_from_slice(&payload);
        self.unsynced.push_back((offset, payload));
    }

    fn flush(&mut self) {
        for (offset, payload) in self.unsynced.drain(..) {
            self.synced[offset..offset + payload.len()].copy_from_slice(&payload);
        }
    }
}

fn reply(error: u32, cookie: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&0x6744_6698u32.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The server's side of fixed newstyle, as far as `libnbd` needs it: `GO`, and no to the rest.
fn handshake(stream: &mut UnixStream, size: u64) -> io::Result<()> {
    // Has flags, flush, FUA, write zeroes, multi-conn.
    let flags: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 8;
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    let mut client_flags = [0; 4];
    stream.read_exact(&mut client_flags)?;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let kind = u32::from_be_bytes(head[8..12].try_into().unwrap());
        let length = u32::from_be_bytes(head[12..16].try_into().unwrap());
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        let answer = |code: u32, body: &[u8]| {
            let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
            bytes.extend_from_slice(&kind.to_be_bytes());
            bytes.extend_from_slice(&code.to_be_bytes());
            bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
            bytes.extend_from_slice(body);
            bytes
        };
        if kind == 7 {
            let mut body = vec![0, 0];
            body.extend_from_slice(&size.to_be_bytes());
            body.extend_from_slice(&flags.to_be_bytes());
            stream.write_all(&answer(3, &body))?;
            stream.write_all(&answer(1, &[]))?;
            return Ok(());
        }
        stream.write_all(&answer(0x8000_0001, &[]))?;
    }
}

/// The disk as a plain file, by FUSE. Unmounted when dropped.
pub struct Mounted {
    file: PathBuf,
    socket: PathBuf,
    _fuse: Background,
}

impl Mounted {
    /// Mounts `disk` over `file`, which is created.
    pub fn new(disk: &Disk, file: &Path) -> Mounted {
        let socket = file.with_extension("sock");
        let _ = std::fs::remove_file(&socket);
        std::fs::write(file, []).expect("create the file to mount over");
        disk.serve(&socket);
        let arguments = [
            file.to_string_lossy(),
            "--unix".into(),
            socket.to_string_lossy(),
        ];
        let fuse = Background::start("nbdfuse", &arguments.each_ref().map(|text| &**text));
        let bytes = disk.lock().now.len() as u64;
        let start = Instant::now();
        while std::fs::metadata(file).map(|data| data.len()).unwrap_or(0) != bytes {
            assert!(
                start.elapsed() < MOUNT_TIMEOUT,
                "nbdfuse did not mount in time"
            );
            std::thread::yield_now();
        }
        Mounted {
            file: file.to_owned(),
            socket,
            _fuse: fuse,
        }
    }

    pub fn path(&self) -> &Path {
        &self.file
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, because a killed daemon's request may still hold the file.
        let _ = Command::new("umount").arg("-l").arg(&self.file).status();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A loop device on a file. Detached when dropped.
pub struct Loop {
    device: PathBuf,
}

impl Loop {
    pub fn new(file: &Path) -> Loop {
        let output = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(file)
            .output()
            .expect("run losetup");
        assert!(
            output.status.success(),
            "losetup: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let device = String::from_utf8(output.stdout).expect("a path from losetup");
        Loop {
            device: PathBuf::from(device.trim()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

/// The disk as a block device: a loop device on its mount. Direct input and output passes through
/// both, so that a request of a killed process stays under way without the process.
pub struct Device {
    device: Option<Loop>,
    _below: Mounted,
}

impl Device {
    pub fn new(disk: &Disk, base: &Path) -> Device {
        let below = Mounted::new(disk, base);
        Device {
            device: Some(Loop::new(below.path())),
            _below: below,
        }
    }

    pub fn path(&self) -> &Path {
        self.device
            .as_ref()
            .expect("taken only when dropped")
            .path()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Before the file under it goes.
        self.device.take();
    }
}

/// A file system on a disk: mount, loop device and ext4, in this order, taken down in reverse.
pub struct FileSystem {
    directory: PathBuf,
    device: Option<Loop>,
    below: Option<Mounted>,
}

impl FileSystem {
    /// Makes the file system; everything written so far is synced afterwards.
    pub fn make(disk: &Disk, base: &Path) {
        let below = Mounted::new(disk, base);
        let status = Command::new("mkfs.ext4")
            .args([
                "-q",
                "-F",
                "-b",
                "4096",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
            ])
            .arg(below.path())
            .status()
            .expect("run mkfs.ext4");
        assert!(status.success(), "mkfs.ext4");
        drop(below);
        disk.lock().flush();
    }

    /// Mounts it at `base` with the extension `dir`; its own journal is replayed by that.
    pub fn mount(disk: &Disk, base: &Path) -> FileSystem {
        let below = Mounted::new(disk, base);
        let device = Loop::new(below.path());
        let directory = base.with_extension("dir");
        std::fs::create_dir_all(&directory).expect("create the mount point");
        let status = Command::new("mount")
            .args(["-t", "ext4", "-o", "noatime,errors=remount-ro"])
            .arg(device.path())
            .arg(&directory)
            .status()
            .expect("run mount");
        assert!(status.success(), "the file system on the disk mounts");
        FileSystem {
            directory,
            device: Some(device),
            below: Some(below),
        }
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // Not lazily: a file system that is still mounted would be mounted a second time by the
        // next round, with the first one's pages.
        let start = Instant::now();
        while !Command::new("umount")
            .arg(&self.directory)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
        {
            if start.elapsed() > MOUNT_TIMEOUT {
                eprintln!("{} could not be unmounted", self.directory.display());
                break;
            }
        }
        self.device.take();
        self.below.take();
    }
}
