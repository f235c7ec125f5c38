//! The device or file that holds the log.
//!
//! Always true: the description that carries the cache's I/O carries its exclusive lock, so a
//! cache that is open here takes no late write of a killed daemon any more (rule 5.2.1); a block
//! device is claimed as a mount claims it. Deliberately absent: what is on the device; whether a
//! cache that is already there is dirty the caller finds out before `allocate`.

use crate::config::units::human_bytes;
use crate::fault::{Fault, Kind};
use crate::lock::{self, Mode, Patience};
use crate::signature;
use crate::sys;
use crate::target::{How, Target};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How often a claimed device whose lock is free is tried again before the claim is a refusal.
const CLAIM_TRIES_MAX: u32 = 3;

/// Opens an existing cache for reading and writing and takes its lock.
pub fn open(path: &Path, patience: &mut Patience) -> Result<Target, Fault> {
    let target = open_locked(path, None, patience)?;
    let limit = sys::file_bytes_max();
    // Each write of the log would fail as on a device that is dead.
    match !target.block_device && target.size_bytes > limit {
        true => Err(Fault::too_large(&name_of(path), target.size_bytes, limit)),
        false => Ok(target),
    }
}

/// A cache in the making: locked, nothing on it changed yet.
#[derive(Debug)]
pub struct NewCache {
    /// `size_bytes == 0` for a new file: nothing to inspect.
    pub target: Target,
    /// The first MiB is all zeroes, or the file is new.
    pub blank: bool,
    created: bool,
}

/// Makes a cache file as large as this at least; a block device must be.
pub fn grow(target: Target, bytes: u64) -> Result<Target, Fault> {
    if !target.block_device && target.size_bytes >= bytes {
        return Ok(target);
    }
    let cache = NewCache {
        target,
        blank: false,
        created: false,
    };
    cache.allocate(bytes)
}

/// Opens or creates the file. Refuses mounted devices and, unless forced, foreign signatures.
/// The caller inspects `target` for a dirty cache before it calls `allocate`.
pub fn claim(path: &Path, force: bool, patience: &mut Patience) -> Result<NewCache, Fault> {
    let created = fs::symlink_metadata(path).is_err();
    let target = open_locked(path, Some(0o600), patience)?;
    let unreadable = |_| Fault::new(Kind::Io, format!("{}: cannot be read", name_of(path)));
    let found = signature::foreign(&target).map_err(unreadable)?;
    let found = found.map(str::to_owned).filter(|_| !force);
    if let Some(found) = found.or_else(|| by_blkid(path, force, created)) {
        return Err(Fault::new(
            Kind::WouldLoseData,
            format!(
                "{}: holds {found}; name another device, or force it to lose that",
                name_of(path)
            ),
        ));
    }
    let mut head = vec![0u8; 1 << 20];
    target.read(0, &mut head).map_err(unreadable)?;
    Ok(NewCache {
        target,
        blank: head.iter().all(|&byte| byte == 0),
        created,
    })
}

/// What a second opinion says, where one counts.
fn by_blkid(path: &Path, force: bool, created: bool) -> Option<String> {
    let found = (!force && !created).then(|| signature::by_blkid(path))?;
    found.map(|found| format!("{found}, by blkid"))
}

impl NewCache {
    /// Gives the file its size, all of it allocated; a block device must be as large.
    pub fn allocate(self, bytes: u64) -> Result<Target, Fault> {
        let mut target = self.target;
        let name = name_of(&target.path);
        if target.block_device {
            if target.size_bytes < bytes {
                return Err(Fault::new(
                    Kind::Invalid,
                    format!(
                        "{name}: has {} bytes; {bytes} were asked for, at most its own size fits",
                        target.size_bytes
                    ),
                ));
            }
            return Ok(target);
        }
        let limit = sys::file_bytes_max();
        if bytes > limit {
            let fault = Fault::too_large(&name, bytes, limit);
            let new = NewCache { target, ..self };
            new.abandon();
            return Err(fault);
        }
        // What fails half way takes all there is.
        let free = sys::free_bytes(&target.file).unwrap_or(0);
        if let Err(error) = allocate_file(&target, bytes) {
            // Back to what was there; that it fails changes only the space in use.
            let _ = match self.created {
                true => fs::remove_file(&target.path),
                false => target.file.set_len(target.size_bytes),
            };
            let (wanted, free) = (human_bytes(bytes), human_bytes(free));
            let doing = format!("allocate {wanted} ({free} are free)");
            let mut fault = Fault::io(&name, &doing, error);
            if matches!(fault.kind, Kind::NoSpace) {
                fault.message += "; make room there, or the cache smaller";
            }
            return Err(fault);
        }
        target.size_bytes = bytes;
        sync_directory(&target.path).map_err(|e| Fault::io(&name, "sync its directory", e))?;
        Ok(target)
    }

    /// Gives up; a file that `claim` made goes away again.
    pub fn abandon(self) {
        if self.created {
            // Best effort: what is left is an empty file.
            let _ = fs::remove_file(&self.target.path);
        }
    }
}

fn allocate_file(target: &Target, bytes: u64) -> io::Result<()> {
    if target.size_bytes > bytes {
        target.file.set_len(bytes)?;
    }
    let present = target.file.metadata().map_or(0, |meta| meta.blocks() * 512);
    if sys::lacks(&target.file, bytes.saturating_sub(present)) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    match sys::fallocate(&target.file, 0, 0, bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let rest = bytes.saturating_sub(target.size_bytes);
            let zeroed = target.zero(target.size_bytes, rest, true);
            zeroed.map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
        }
        result => result?,
    }
    target.file.sync_all()
}

/// Makes the names in the directory of `path` durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::File::open(parent)?.sync_all()
}

fn name_of(path: &Path) -> String {
    format!("cache {}", path.display())
}

fn open_locked(path: &Path, create: Option<u32>, patience: &mut Patience) -> Result<Target, Fault> {
    let name = name_of(path);
    let how = How {
        write: true,
        create,
        claim_device: true,
        refuse_symlink: false,
    };
    let mut tries = 0;
    let mut target = loop {
        match Target::open(path, how) {
            Ok(target) => break target,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                refuse_used_device(path, &name)?;
                // Somebody has it open: its lock tells who, or lets us wait for his late writes.
                let how = How::default();
                let look = Target::open(path, how).map_err(|e| Fault::io(&name, "open it", e))?;
                lock::acquire(&look.file, &name, Mode::Exclusive, patience)?;
                tries += 1;
                if tries == CLAIM_TRIES_MAX {
                    return Err(Fault::io(&name, "claim it", error));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Fault::new(
                    Kind::NotFound,
                    format!("{name}: does not exist; make it with `tenuto cache create`"),
                ));
            }
            Err(error) => return Err(Fault::io(&name, "open it", error)),
        }
    };
    lock::acquire(&target.file, &name, Mode::Exclusive, patience)?;
    if !target
        .size_bytes
        .is_multiple_of(u64::from(target.dio_align))
    {
        let gone = target.go_buffered();
        gone.map_err(|error| Fault::io(&name, "turn direct I/O off", error))?;
    }
    target.zero_by_writing = true;
    Ok(target)
}

/// Says what a device is used for, by the kernel's own tables; `Ok` when they know nothing.
pub fn refuse_used_device(path: &Path, name: &str) -> Result<(), Fault> {
    let Ok(meta) = fs::metadata(path) else {
        return Ok(());
    };
    if !meta.file_type().is_block_device() {
        return Ok(());
    }
    let number = format!("{}:{}", libc::major(meta.rdev()), libc::minor(meta.rdev()));
    let node = PathBuf::from("/sys/dev/block").join(&number);
    let mut numbers = vec![number];
    let mut users = entries(&node.join("holders"));
    for part in entries(&node) {
        let place = node.join(&part);
        if place.join("partition").exists() {
            let number = fs::read_to_string(place.join("dev")).unwrap_or_default();
            numbers.push(number.trim().to_string());
            users.extend(entries(&place.join("holders")));
        }
    }
    if let Some(user) = users.first() {
        let message = format!("{name}: is used by the device {user}; take it out of that first");
        return Err(Fault::new(Kind::InUse, message));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, _, device, _, place, ..] = words[..]
            && numbers.iter().any(|number| number == device)
        {
            let message = format!("{name}: is mounted at {place}; unmount it first");
            return Err(Fault::new(Kind::InUse, message));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for swap in swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
    {
        if fs::metadata(swap).is_ok_and(|found| found.rdev() == meta.rdev()) {
            let message = format!("{name}: is in use as swap; run swapoff first");
            return Err(Fault::new(Kind::InUse, message));
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::testing::freed;

    /// The refusal that stays when no other test's fork holds the device any more.
    fn settled(node: &Path, force: bool) -> Fault {
        freed(|| match claim(node, force, &mut no_wait()) {
            Err(fault) if fault.message.contains("(pid") => Err(fault),
            Err(fault) => Ok(fault),
            Ok(_) => panic!("{} was claimed", node.display()),
        })
    }

    fn no_wait() -> Patience<'static> {
        Patience::none()
    }

    #[test]
    fn a_new_cache_is_allocated_in_full_and_opened_by_one_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cache");
        let missing = open(&path, &mut no_wait()).expect_err("not there");
        assert_eq!(missing.kind, Kind::NotFound);
        let new = claim(&path, false, &mut no_wait()).expect("claimed");
        assert!(new.blank && new.target.size_bytes == 0);
        let target = new.allocate(16 << 20).expect("allocated");
        assert_eq!(target.size_bytes, 16 << 20);
        assert!(fs::metadata(&path).expect("there").blocks() * 512 >= 16 << 20);
        let second = open(&path, &mut no_wait()).expect_err("locked");
        assert_eq!(second.kind, Kind::InUse);
        assert!(
            second
                .message
                .contains(&format!("pid {}", std::process::id())),
            "{second}"
        );
        drop(target);
        freed(|| open(&path, &mut no_wait()));
    }

    #[test]
    fn foreign_data_is_refused_unless_forced_and_stays_as_it_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        let mut disk = vec![3u8; 1 << 20];
        disk[1080..1082].copy_from_slice(b"\x53\xef");
        fs::write(&path, &disk).expect("written");
        let fault = claim(&path, false, &mut no_wait()).expect_err("refused");
        assert_eq!(fault.kind, Kind::WouldLoseData);
        assert!(fault.message.contains("ext4"), "{fault}");
        let new = freed(|| claim(&path, true, &mut no_wait()));
        assert!(!new.blank);
        new.abandon();
        assert_eq!(fs::read(&path).expect("there"), disk);
    }

    #[test]
    fn a_cache_larger_than_its_file_system_leaves_nothing_behind() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = dir.path().join("cache");
        let new = claim(&path, false, &mut no_wait()).expect("claimed");
        let fault = new.allocate(1 << 50).expect_err("too large");
        assert_eq!(fault.kind, Kind::NoSpace, "{fault}");
        assert!(!path.exists());
    }

    /// A loop device over a file; needs root and free loop devices.
    struct Loop(String);

    impl Loop {
        fn over(path: &Path) -> Option<Loop> {
            let command = std::process::Command::new("losetup")
                .args(["--find", "--show"])
                .arg(path)
                .output();
            match command {
                Ok(output) if output.status.success() => {
                    let device = String::from_utf8_lossy(&output.stdout).trim().to_string();
                    Some(Loop(device))
                }
                _ => {
                    eprintln!("skipped: no loop device can be made here");
                    None
                }
            }
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            run("losetup", &["--detach", &self.0]);
        }
    }

    fn run(program: &str, arguments: &[&str]) -> bool {
        let output = std::process::Command::new(program).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    }

    #[test]
    fn a_block_device_is_claimed_by_one_and_refused_while_mounted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        fs::File::create(&path)
            .and_then(|file| file.set_len(32 << 20))
            .expect("made");
        let Some(device) = Loop::over(&path) else {
            return;
        };
        let node = Path::new(&device.0);
        let first = open(node, &mut no_wait()).expect("free");
        assert!(first.block_device && first.size_bytes == 32 << 20);
        let second = open(node, &mut no_wait()).expect_err("claimed");
        assert!(
            second
                .message
                .contains(&format!("pid {}", std::process::id())),
            "{second}"
        );
        first.zero(4096, 8192, false).expect("zeroed");
        drop(first);
        let new = freed(|| claim(node, false, &mut no_wait()));
        assert!(
            new.allocate(64 << 20)
                .is_err_and(|fault| fault.kind == Kind::Invalid)
        );
        if !run("mkfs.ext4", &["-q", &device.0]) {
            eprintln!("skipped: mkfs.ext4 is not installed");
            return;
        }
        let fault = settled(node, false);
        assert!(fault.message.contains("ext4"), "{fault}");
        let place = dir.path().join("mounted");
        fs::create_dir(&place).expect("made");
        let place = place.to_str().expect("text");
        if !run("mount", &[&device.0, place]) {
            eprintln!("skipped: nothing can be mounted here");
            return;
        }
        let fault = settled(node, true);
        assert!(run("umount", &[place]));
        assert!(fault.message.contains("is mounted at"), "{fault}");
    }
}
