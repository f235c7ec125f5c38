//! What only the kernel's interface gives: mounts of our own, children that end with us, flags.
//!
//! Always true: nothing that is mounted here is seen outside, and the kernel takes it away when the
//! last process of the work is gone, also after a kill.

use crate::error::{Error, Result, cause};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `FS_IOC_GETFLAGS` and `FS_IOC_FSGETXATTR` of linux/fs.h.
const GET_FLAGS: libc::c_ulong = 0x8008_6601;
const GET_XATTR: libc::c_ulong = 0x801c_581f;
/// `FS_*_FL` of linux/fs.h.
pub const IMMUTABLE: u32 = 0x10;
pub const APPEND_ONLY: u32 = 0x20;
pub const ENCRYPTED: u32 = 0x800;
pub const VERITY: u32 = 0x10_0000;
pub const CASE_FOLDED: u32 = 0x4000_0000;

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct FileAttributes {
    flags: u32,
    extent_bytes: u32,
    extents: u32,
    project: u32,
    cow_extent_bytes: u32,
    padding: [u8; 8],
}

const _: () = assert!(size_of::<FileAttributes>() == 28);

/// Flags and project of a file; a file system that has none of them says so by an error.
pub fn flags(file: &File) -> (u32, u32) {
    let mut flags: libc::c_long = 0;
    let mut attributes = FileAttributes::default();
    // SAFETY: the descriptor is open, and each call writes what its number says: a long, and a
    // structure whose size is asserted above.
    let (has_flags, has_project) = unsafe {
        (
            libc::ioctl(file.as_raw_fd(), GET_FLAGS, &mut flags) == 0,
            libc::ioctl(file.as_raw_fd(), GET_XATTR, &mut attributes) == 0,
        )
    };
    // The kernel writes 32 bits, whatever the number of the call says.
    let flags = if has_flags { flags as u32 } else { 0 };
    let project = if has_project { attributes.project } else { 0 };
    (flags, project)
}

/// Whether this process may do what only root may.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0)
}

/// Does some work on a thread that has a mount name space of its own.
pub fn with_own_mounts<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if !is_root() {
        return Err(Error::usage(
            "a split mounts file systems and needs root; call it with sudo",
        ));
    }
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            unshare().map_err(|error| {
                let cause = cause(&error);
                Error::failed(format!(
                    "a mount name space: {cause}; allow CAP_SYS_ADMIN to this process"
                ))
            })?;
            work()
        });
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn unshare() -> io::Result<()> {
    let nothing = std::ptr::null();
    // SAFETY: changes the mounts of this thread alone; the strings end with a zero.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                nothing,
                c"/".as_ptr(),
                nothing,
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
    };
    match done {
        true => Ok(()),
        false => Err(io::Error::last_os_error()),
    }
}

thread_local! {
    /// What the programs of this thread have open as well.
    static SHARED: Cell<Option<RawFd>> = const { Cell::new(None) };
}

/// Programs that this thread starts meanwhile have the file open too, so that a lock on it lasts
/// until the last one of them is gone.
pub fn sharing<T>(file: &File, work: impl FnOnce() -> T) -> T {
    SHARED.set(Some(file.as_raw_fd()));
    let done = work();
    SHARED.set(None);
    done
}

/// The kernel kills the program when the thread that starts it is gone: no copy goes on beside the
/// run that comes after a killed one.
pub fn ends_with_us(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    let shared = SHARED.get();
    // SAFETY: the closure makes system calls alone, which need no memory and no lock.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) != 0 {
                return Err(io::Error::last_os_error());
            }
            // Killed before the call above: the kernel will say nothing.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            match shared.map(|file| libc::fcntl(file, libc::F_SETFD, 0)) {
                Some(-1) => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        })
    }
}
