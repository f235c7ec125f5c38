//! Exclusive and shared locks on the very open file descriptions that carry the I/O.
//!
//! Always true: the requests of a killed process keep its open file description, and with it the
//! lock, until the last one has landed. So whoever got the lock knows that no late write is under
//! way (rule 5.2.1). A living owner is refused at once and by name; a dead one is waited for, up
//! to a bound. The name comes from the kernel (`/proc`), because a side file with a pid in it can
//! be stale or lie.

use crate::fault::{Fault, FileId, Kind};
use crate::sys;
use std::fs::{self, File, TryLockError};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// How often a lock that a dead process still holds is tried again.
const POLL: Duration = Duration::from_millis(10);
/// How often a wait is reported.
const PROGRESS: Duration = Duration::from_secs(1);
/// Flag of linux/sched.h in field 9 of `/proc/PID/stat`: the process is ending.
const PF_EXITING: u64 = 4;
const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// QEMU's permission bits (`block/block-common.h`) that matter to a disk image.
const PERM_CONSISTENT_READ: i64 = 0;
const PERM_WRITE: i64 = 1;
const PERM_RESIZE: i64 = 3;
/// First byte of "I use this permission" and of "I do not share it" (`block/file-posix.c`).
const PERM_BASE: i64 = 100;
const UNSHARED_BASE: i64 = 200;
/// What nobody else may do to an image that we read or write.
const UNSHARED: [i64; 2] = [PERM_WRITE, PERM_RESIZE];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
}

/// How long to wait while the late I/O of a dead owner lands, and whom to tell.
pub struct Patience<'a> {
    pub wait: Duration,
    pub progress: &'a mut dyn FnMut(&str),
}

impl Patience<'_> {
    /// Fails at once where a dead owner's I/O is still landing.
    pub fn none() -> Patience<'static> {
        Patience {
            wait: Duration::ZERO,
            // A closure without captures has no size: nothing is leaked.
            progress: Box::leak(Box::new(|_: &str| {})),
        }
    }
}

/// Waits until late writes to an origin without a fence have landed.
pub fn stay_quiet(object: &str, quiet: Duration, patience: &mut Patience) {
    let until = Instant::now() + quiet;
    (patience.progress)(&format!(
        "origin {object}: waiting {} s for writes of an unclean end to land (origin-quiet)",
        quiet.as_secs()
    ));
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}

/// Takes an `flock` on this open file description. `object` names it in messages.
pub fn acquire(
    file: &File,
    object: &str,
    mode: Mode,
    patience: &mut Patience,
) -> Result<(), Fault> {
    retry(file, object, patience, || {
        let tried = match mode {
            Mode::Exclusive => file.try_lock(),
            Mode::Shared => file.try_lock_shared(),
        };
        match tried {
            Ok(()) => Ok(Attempt::Done),
            Err(TryLockError::WouldBlock) => Ok(Attempt::Conflict(Culprit::Flock)),
            Err(TryLockError::Error(error)) => Err(Fault::io(object, "lock it", error)),
        }
    })
}

/// Takes QEMU's image locks, as `qemu-system` does for `-drive format=raw`.
pub fn acquire_image(
    file: &File,
    object: &str,
    mode: Mode,
    patience: &mut Patience,
) -> Result<(), Fault> {
    let used: &[i64] = match mode {
        Mode::Exclusive => &[PERM_CONSISTENT_READ, PERM_WRITE, PERM_RESIZE],
        Mode::Shared => &[PERM_CONSISTENT_READ],
    };
    retry(file, object, patience, || {
        let conflict = try_image(file, used).map_err(|e| Fault::io(object, "lock it", e))?;
        Ok(match conflict {
            None => Attempt::Done,
            Some(byte) => Attempt::Conflict(Culprit::Byte(byte)),
        })
    })
}

/// Gives back what only a writer of this image needs, and goes on as one of its readers. No other
/// program can write the image meanwhile. On NFS readers have the image locks alone.
pub fn share(file: &File) -> std::io::Result<()> {
    if crate::drill::leaves_out_locks() {
        return Ok(());
    }
    match sys::is_nfs(file) {
        true => file.unlock()?,
        false => file.try_lock_shared()?,
    }
    for perm in [PERM_WRITE, PERM_RESIZE] {
        sys::unlock_byte(file, PERM_BASE + perm)?;
    }
    Ok(())
}

/// Takes the bytes first and looks second, as QEMU does: of two that start together at least one
/// sees the other. Returns a byte that somebody else holds against us.
fn try_image(file: &File, used: &[i64]) -> std::io::Result<Option<i64>> {
    let ours = || {
        let used = used.iter().map(|perm| PERM_BASE + perm);
        used.chain(UNSHARED.iter().map(|perm| UNSHARED_BASE + perm))
    };
    for byte in ours() {
        sys::lock_byte_shared(file, byte)?;
    }
    let against_use = used.iter().map(|perm| UNSHARED_BASE + perm);
    let mut against = against_use.chain(UNSHARED.iter().map(|perm| PERM_BASE + perm));
    let conflict = loop {
        let Some(byte) = against.next() else {
            return Ok(None);
        };
        if sys::byte_conflict(file, byte)?.is_some() {
            break byte;
        }
    };
    for byte in ours() {
        sys::unlock_byte(file, byte)?;
    }
    Ok(Some(conflict))
}

/// Somebody who has QEMU's image locks on this file by another description, whatever for.
pub fn sharer(file: &File) -> Option<String> {
    let bases = [PERM_BASE, UNSHARED_BASE].into_iter();
    let perms = [PERM_CONSISTENT_READ, PERM_WRITE, PERM_RESIZE];
    let mut bytes = bases.flat_map(|base| perms.map(|perm| base + perm));
    let held = bytes.find(|byte| matches!(sys::byte_conflict(file, *byte), Ok(Some(_))))?;
    let unseen = || "a program that cannot be seen from here".to_owned();
    let owner = owner(file, Culprit::Byte(held));
    Some(owner.map_or_else(unseen, |owner| owner.describe()))
}

/// The lock of somebody else that was met.
#[derive(Clone, Copy, Debug)]
enum Culprit {
    Flock,
    /// QEMU's lock on this byte.
    Byte(i64),
}

impl Culprit {
    fn describe(self) -> &'static str {
        match self {
            Culprit::Flock => "holds its lock",
            Culprit::Byte(byte) if byte >= UNSHARED_BASE => "does not share it (QEMU image lock)",
            Culprit::Byte(_) => "writes to it (QEMU image lock)",
        }
    }

    /// `1: OFDLCK ADVISORY READ -1 fe:00:123 101 101`, as in `/proc/locks` and in `fdinfo`.
    fn is(self, words: &[&str]) -> bool {
        match (self, words) {
            (Culprit::Flock, [_, "FLOCK", ..]) => true,
            // A program that locks the whole file by fcntl stands in our way as well.
            (Culprit::Byte(byte), [_, "OFDLCK" | "POSIX", _, _, _, _, start, end, ..]) => {
                let start: i64 = start.parse().unwrap_or(i64::MAX);
                let end: i64 = end.parse().unwrap_or(i64::MAX);
                (start..=end).contains(&byte)
            }
            _ => false,
        }
    }
}

enum Attempt {
    Done,
    Conflict(Culprit),
}

fn retry(
    file: &File,
    object: &str,
    patience: &mut Patience,
    mut attempt: impl FnMut() -> Result<Attempt, Fault>,
) -> Result<(), Fault> {
    if crate::drill::leaves_out_locks() {
        return Ok(());
    }
    let start = Instant::now();
    let mut reported = None::<Instant>;
    loop {
        let culprit = match attempt()? {
            Attempt::Done => return Ok(()),
            Attempt::Conflict(culprit) => culprit,
        };
        if let Some(owner) = owner(file, culprit) {
            let what = culprit.describe();
            let owner_is = owner.describe();
            let message = format!("{object}: in use by {owner_is}, which {what}; stop it first");
            let meta = file.metadata().ok().filter(|_| owner.is_us());
            return Err(Fault {
                ours: meta.as_ref().map(FileId::of),
                ..Fault::new(Kind::InUse, message)
            });
        }
        if start.elapsed() >= patience.wait {
            return Err(Fault::new(
                Kind::InUse,
                format!(
                    "{object}: locked, but by no process that can be seen here: late writes of a \
                     killed one are still landing, or another host or container uses it; \
                     waited {} s, try again when it is free",
                    start.elapsed().as_secs()
                ),
            ));
        }
        if reported.is_none_or(|at| at.elapsed() >= PROGRESS) {
            reported = Some(Instant::now());
            (patience.progress)(&format!(
                "{object}: waiting for the late writes of a process that is gone ({} of {} s)",
                start.elapsed().as_secs(),
                patience.wait.as_secs()
            ));
        }
        std::thread::sleep(POLL);
    }
}

/// A living process.
struct Owner {
    pid: u32,
}

impl Owner {
    fn is_us(&self) -> bool {
        self.pid == std::process::id()
    }

    /// As `qemu-io (pid 17) on host-a`.
    fn describe(&self) -> String {
        let pid = self.pid;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = match name.trim() {
            "" => "a process",
            name => name,
        };
        let us = match self.is_us() {
            true => ", this very process",
            false => "",
        };
        format!("{name} (pid {pid}{us}) on {}", host_name())
    }
}

/// Who holds this lock by another description.
fn owner(file: &File, culprit: Culprit) -> Option<Owner> {
    let by_descriptors = owner_by_descriptors(file, culprit);
    let pid = by_descriptors.or_else(|| owner_by_lock_table(file, culprit))?;
    Some(Owner { pid })
}

pub fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_string())
        .unwrap_or_else(|_| "this host".into())
}

/// Looks for a descriptor of this file with the lock on it. Byte-range locks of open file
/// descriptions carry no pid, so `/proc/locks` alone cannot name their holders.
fn owner_by_descriptors(file: &File, culprit: Culprit) -> Option<u32> {
    let meta = file.metadata().ok()?;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            let number = descriptor.file_name();
            let ourselves = pid == std::process::id()
                && number.to_str() == Some(file.as_raw_fd().to_string().as_str());
            let same = fs::metadata(descriptor.path())
                .is_ok_and(|found| found.dev() == meta.dev() && found.ino() == meta.ino());
            if ourselves || !same {
                continue;
            }
            let info = process.path().join("fdinfo").join(number);
            let info = fs::read_to_string(info).unwrap_or_default();
            let mut locks = info.lines().filter_map(|line| line.strip_prefix("lock:"));
            if locks.any(|line| culprit.is(&words_of(line))) && alive(pid) {
                return Some(pid);
            }
        }
    }
    None
}

/// Descriptors of other users' processes are hidden; the lock table still tells the pid of an
/// `flock`. A dead process is not in it.
fn owner_by_lock_table(file: &File, culprit: Culprit) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let table = fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let name = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let holders = table
        .lines()
        .map(words_of)
        .filter(|words| words.get(5).is_some_and(|word| *word == name) && culprit.is(words));
    holders
        .filter_map(|words| words.get(4)?.parse::<u32>().ok())
        // A process whose descriptors we can read has none of this file, or the search before
        // would have found it: its number has merely been reused.
        .find(|&pid| pid > 0 && alive(pid) && fs::read_dir(format!("/proc/{pid}/fd")).is_err())
}

/// Without the arrow that marks a waiting request.
fn words_of(line: &str) -> Vec<&str> {
    line.split_whitespace()
        .filter(|word| *word != "->")
        .collect()
}

/// False for a process that is gone, a zombie, or one that has been killed and is on its way out.
pub fn alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The name in parentheses may hold anything, so fields count from its end.
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return false;
    };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let state = fields.first().copied().unwrap_or("X");
    let flags: u64 = fields
        .get(6)
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let killed = status.lines().any(|line| {
        let pending = line
            .strip_prefix("SigPnd:")
            .or(line.strip_prefix("ShdPnd:"));
        pending
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask & SIGKILL_BIT != 0)
    });
    !matches!(state, "Z" | "X") && flags & PF_EXITING == 0 && !killed
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Opens what this process has just closed. Another test that starts a program has, until
    /// the program runs, a copy of every descriptor, and with it of every lock.
    pub fn freed<T>(mut open: impl FnMut() -> Result<T, Fault>) -> T {
        let start = Instant::now();
        loop {
            match open() {
                Ok(opened) => return opened,
                Err(fault) if fault.kind == Kind::InUse && start.elapsed().as_secs() < 120 => {
                    std::thread::yield_now();
                }
                Err(fault) => panic!("it should be free: {fault}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Arena;

    /// A lock that no process has a descriptor of, as after a kill with I/O under way: here a
    /// mapping keeps the open file description alive, there the I/O does.
    fn ownerless(path: &std::path::Path) -> Arena {
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .expect("opened");
        file.try_lock().expect("free");
        Arena::shared(&file, 4096).expect("mapped")
    }

    fn file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("made");
        file.as_file().set_len(4096).expect("sized");
        file
    }

    #[test]
    fn the_late_io_of_a_dead_owner_is_waited_for() {
        let named = file();
        let mut late = Some(ownerless(named.path()));
        let file = named.reopen().expect("opened");
        let mut said = Vec::new();
        let mut patience = Patience {
            wait: Duration::from_secs(60),
            progress: &mut |message| {
                said.push(message.to_string());
                late = None;
            },
        };
        acquire(&file, "cache x", Mode::Exclusive, &mut patience).expect("free at last");
        assert_eq!(said.len(), 1);
        assert!(
            said[0].starts_with("cache x: waiting for the late writes"),
            "{said:?}"
        );
    }

    #[test]
    fn the_wait_for_late_io_has_an_end() {
        let named = file();
        let _late = ownerless(named.path());
        let file = named.reopen().expect("opened");
        let mut patience = Patience {
            wait: Duration::from_millis(30),
            progress: &mut |_| {},
        };
        let fault = acquire(&file, "cache x", Mode::Exclusive, &mut patience);
        let fault = fault.expect_err("still locked");
        assert_eq!(fault.kind, Kind::InUse);
        assert!(fault.message.contains("late writes"), "{fault}");
    }

    #[test]
    fn a_living_owner_is_refused_at_once_whatever_the_patience() {
        let named = file();
        let owner = named.reopen().expect("opened");
        acquire(&owner, "cache x", Mode::Exclusive, &mut Patience::none()).expect("free");
        let file = named.reopen().expect("opened");
        let mut patience = Patience {
            wait: Duration::from_secs(3600),
            progress: &mut |message| panic!("no wait for the living: {message}"),
        };
        let fault = acquire(&file, "cache x", Mode::Shared, &mut patience).expect_err("locked");
        let pid = format!("pid {}", std::process::id());
        assert!(
            fault.message.contains(&pid) && fault.message.contains(&host_name()),
            "{fault}"
        );
    }

    #[test]
    fn processes_that_live_and_that_are_gone_are_told_apart() {
        assert!(alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().expect("started");
        let pid = child.id();
        // A process that has ended and is not waited for yet is a zombie.
        let start = Instant::now();
        while alive(pid) {
            assert!(start.elapsed().as_secs() < 10, "the child has ended by now");
            std::thread::yield_now();
        }
        child.wait().expect("ended");
        assert!(!alive(pid));
    }
}
