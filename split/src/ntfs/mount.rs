//! Volumes that are mounted while a piece of work is done on them.
//!
//! Always true: the mounts are in a mount namespace of one thread, which no other program of the
//! host sees; when the work ends they are unmounted and all is written before [`mounted`] returns.
//! Should this process be killed, each ntfs-3g is asked to end, which writes what it has and takes
//! the mounts with it; an empty directory in the temporary directory is what stays.
//!
//! Deliberately absent: the kernel's own driver, because a foreign file system is parsed outside of
//! the kernel; a user namespace, in which ntfs-3g fails because it calls `setgroups` (tried); a
//! signal at the death of the parent alone (tried): one that comes between ntfs-3g's look at its
//! flag and its read is lost, and it stays with the volume locked.

use super::error::{Error, Refused, io};
use crate::programs::Failure;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{Error as IoError, Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub(super) const PACKAGE: &str = "ntfs-3g";
/// A volume of a million files is there in 2 s; a storage may be slow.
const MOUNT_SECONDS_MAX: u64 = 120;
/// Between looks whether ntfs-3g ended without a mount. A mount wakes us at once.
const ENDED_POLL_MS: i32 = 100;

/// Runs ntfs-3g with its arguments. The standard input ends with the process that starts it, and
/// then ntfs-3g is asked to end until it does.
const SUPERVISED: &str = r#"
exec 3<&0
ntfs-3g "$@" </dev/null 3<&- &
child=$!
(read -r nothing <&3; while kill -TERM $child 2>/dev/null; do sleep 0.1; done) >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait $child
code=$?
kill $watch
exit $code
"#;
/// Of a shell that does not find a program.
const NO_PROGRAM: i32 = 127;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A command whose program is killed when the thread ends that starts it, and speaks UTF-8.
pub(super) fn bound(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    let parent = std::process::id();
    let end_with_parent = move || {
        // SAFETY: system calls without memory, between fork and exec.
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: it has no preconditions.
        let now = unsafe { libc::getppid() };
        match result {
            0 if u32::try_from(now) == Ok(parent) => Ok(()),
            // The parent died before the kernel was asked.
            0 => Err(IoError::from_raw_os_error(libc::ESRCH)),
            _ => Err(IoError::last_os_error()),
        }
    };
    // SAFETY: it makes two system calls, and nothing that needs memory or a lock.
    unsafe { command.pre_exec(end_with_parent) };
    command
}

/// Does the work with the volumes mounted, at the places it is given in the same order.
pub(super) fn mounted<T: Send>(
    volumes: &[(&Path, Access)],
    work: impl FnOnce(&[PathBuf]) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let Some((first, _)) = volumes.first() else {
        return work(&[]);
    };
    let directory = tempfile::Builder::new().prefix("tenuto-split-").tempdir();
    let directory = directory.map_err(io(&std::env::temp_dir(), "no directory can be made"))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter_namespace(first)?;
            let mut mounts = Vec::new();
            for (number, (partition, access)) in volumes.iter().enumerate() {
                let place = directory.path().join(number.to_string());
                mounts.push(Mounted::new(partition, *access, place)?);
            }
            let places: Vec<PathBuf> = mounts.iter().map(|it| it.place.clone()).collect();
            let mut result = work(&places);
            for mut mount in mounts {
                let ended = mount.end();
                // Of two errors, the first says why.
                result = result.and_then(|it| ended.map(|()| it));
            }
            result
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Of this thread only.
fn enter_namespace(partition: &Path) -> Result<(), Error> {
    let failed = || Error::NoNamespace {
        partition: partition.to_owned(),
        source: IoError::last_os_error(),
    };
    // SAFETY: it concerns this thread alone, which has its own directory and mounts afterwards.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(failed());
    }
    let none: *const libc::c_char = std::ptr::null();
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: only the target is read, which is a constant that ends with a zero.
    let result = unsafe { libc::mount(none, c"/".as_ptr(), none, flags, std::ptr::null()) };
    if result != 0 {
        return Err(failed());
    }
    Ok(())
}

struct Mounted {
    partition: PathBuf,
    place: PathBuf,
    /// None once it ended.
    child: Option<Child>,
    /// Closed when this process ends, however it does.
    lifeline: Option<ChildStdin>,
    says: File,
}

impl Mounted {
    fn new(partition: &Path, access: Access, place: PathBuf) -> Result<Mounted, Error> {
        fs::create_dir(&place).map_err(io(&place, "it can not be made"))?;
        let options = match access {
            Access::Read => "ro,streams_interface=windows,no_detach",
            // An unclean journal is for Windows to play back; ntfs-3g would throw it away.
            Access::Write => "norecover,noatime,streams_interface=windows,no_detach",
        };
        let says = tempfile::tempfile().map_err(io(&place, "no file can be made"))?;
        let errors = says
            .try_clone()
            .map_err(io(&place, "no file can be made"))?;
        let outside = device(&place)?;
        let mut command = Command::new("sh");
        command
            .args(["-c", SUPERVISED, "sh", "-o", options])
            .arg(partition)
            .arg(&place);
        command.env("LC_ALL", "C.UTF-8").stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(errors);
        let mut child = command.spawn().map_err(|source| Failure::Io {
            program: "sh".to_owned(),
            source,
        })?;
        let lifeline = child.stdin.take();
        let partition = partition.to_owned();
        let mut mounted = Mounted {
            partition,
            place,
            child: Some(child),
            lifeline,
            says,
        };
        mounted.wait_until_there(outside)?;
        if access == Access::Write && is_read_only(&mounted.place)? {
            // The reasons are those that `look` tells apart.
            return Err(Refused::Unclean(mounted.partition.clone()).into());
        }
        Ok(mounted)
    }

    /// The kernel says on the list of mounts that it changed.
    fn wait_until_there(&mut self, outside: u64) -> Result<(), Error> {
        let list = Path::new("/proc/thread-self/mountinfo");
        let mut mounts = File::open(list).map_err(io(list, "it can not be read"))?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(MOUNT_SECONDS_MAX) {
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait().map_err(io(list, "no child"))?
            {
                self.child = None;
                return Err(self.failed(status));
            }
            if device(&self.place).is_ok_and(|it| it != outside) {
                return Ok(());
            }
            // Reading arms the next notice.
            let mut text = Vec::new();
            mounts.rewind().map_err(io(list, "it can not be read"))?;
            mounts
                .read_to_end(&mut text)
                .map_err(io(list, "it can not be read"))?;
            let mut poll = libc::pollfd {
                fd: mounts.as_raw_fd(),
                events: libc::POLLPRI,
                revents: 0,
            };
            // SAFETY: one entry is there, and its descriptor is open.
            unsafe { libc::poll(&mut poll, 1, ENDED_POLL_MS) };
        }
        Err(Error::MountTimeout {
            partition: self.partition.clone(),
            seconds: MOUNT_SECONDS_MAX,
        })
    }

    fn failed(&mut self, status: ExitStatus) -> Error {
        let program = "ntfs-3g".to_owned();
        if status.code() == Some(NO_PROGRAM) {
            let package = PACKAGE;
            return Failure::Missing { program, package }.into();
        }
        let mut text = String::new();
        let read = self
            .says
            .rewind()
            .and_then(|()| self.says.read_to_string(&mut text));
        let mut lines = text.lines().filter(|it| !it.trim().is_empty());
        let says = match (read, lines.next()) {
            (Ok(_), Some(line)) => line.trim().to_owned(),
            _ => status.to_string(),
        };
        let says = format!("{}: {says}", self.partition.display());
        Failure::Failed { program, says }.into()
    }

    /// Waits until all is written.
    fn end(&mut self) -> Result<(), Error> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let unmounted = unmount(&self.place);
        if unmounted.is_err() {
            // It would never end by itself. This makes it write what it has, too.
            self.lifeline = None;
        }
        let status = child
            .wait()
            .map_err(io(&self.partition, "ntfs-3g is lost"))?;
        unmounted.map_err(io(&self.partition, "it can not be unmounted"))?;
        if status.success() {
            return Ok(());
        }
        Err(self.failed(status))
    }
}

/// After an error or a panic. What is said of the end does not matter any more.
impl Drop for Mounted {
    fn drop(&mut self) {
        self.end().ok();
    }
}

fn unmount(place: &Path) -> std::io::Result<()> {
    let place = CString::new(place.as_os_str().as_bytes())?;
    let result = |flags| {
        let place: &CStr = &place;
        // SAFETY: the name ends with a zero.
        unsafe { libc::umount2(place.as_ptr(), flags) }
    };
    // Busy only after a panic, with files still open; then it goes as soon as they are closed.
    if result(0) == 0 || result(libc::MNT_DETACH) == 0 {
        return Ok(());
    }
    Err(IoError::last_os_error())
}

fn device(place: &Path) -> Result<u64, Error> {
    let metadata = fs::metadata(place).map_err(io(place, "it can not be read"))?;
    Ok(metadata.dev())
}

fn is_read_only(place: &Path) -> Result<bool, Error> {
    let path = CString::new(place.as_os_str().as_bytes());
    let path = path.map_err(|it| io(place, "it has a zero")(it.into()))?;
    let mut statistics = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the name ends with a zero, and the structure is as long as the kernel's.
    if unsafe { libc::statvfs(path.as_ptr(), statistics.as_mut_ptr()) } != 0 {
        let error = IoError::last_os_error();
        return Err(io(place, "it can not be read")(error));
    }
    // SAFETY: all zeroes are a valid value, and the call succeeded.
    let statistics = unsafe { statistics.assume_init() };
    Ok(statistics.f_flag & libc::ST_RDONLY != 0)
}
