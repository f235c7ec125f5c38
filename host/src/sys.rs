//! The few system calls that std does not offer, as safe functions.
//!
//! Owns the `unsafe` of calls that take no memory of ours beyond one local struct. Always true: a
//! function here makes one call and turns its errno into `io::Error`. Deliberately absent: any
//! decision, and mappings (those are in `buffer`).

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::net::TcpStream;
#[cfg(feature = "ublk")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// `_IO(0x12, 127)`, `_IOR(0x12, 114, size_t)` and `_IO(0x12, 104)` of linux/fs.h.
const BLKZEROOUT: libc::Ioctl = 0x127f;
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
const BLKSSZGET: libc::Ioctl = 0x1268;
/// linux/stat.h; since Linux 6.1.
const STATX_DIOALIGN: u32 = 0x2000;
/// Groups of one process that the kernel allows.
const GROUPS_MAX: usize = 65_536;
/// Descriptors of one message that are looked at; the kernel closes further ones.
const DESCRIPTORS_MAX: usize = 32;
/// linux/magic.h.
pub const NFS_MAGIC: i64 = 0x6969;
/// NFS, SMB (both versions), Ceph, FUSE.
pub const FILE_SERVERS: [i64; 5] = [
    NFS_MAGIC,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x6573_5546,
];
const FUSE_MAGIC: i64 = 0x6573_5546;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A byte-range lock that another open file description holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLock {
    pub start: i64,
    pub bytes: i64,
    pub exclusive: bool,
}

fn range(kind: libc::c_int, byte: i64, bytes: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: bytes,
        // Open file description locks want 0 here.
        l_pid: 0,
    }
}

/// Lets the kernel notice within half a minute that the other side of a connection is gone.
pub fn notice_dead_peers(stream: &TcpStream) -> io::Result<()> {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 30_000),
    ];
    for (level, option, value) in options {
        let value: libc::c_int = value;
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the socket is open while `stream` is borrowed; the value outlives the call.
        check(unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size,
            )
        })?;
    }
    Ok(())
}

/// A write behind the limit of file sizes is then an error of its own (EFBIG); without this the
/// kernel ends the process, and with it every disk.
pub fn survive_file_size_limit() {
    // SAFETY: no handler runs, the signal is only ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Up to which byte this process may write a file; the kernel applies it to no device.
pub fn file_bytes_max() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: fills a value that lives over the call; where it fails the value stays as it is.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur
}

/// Takes a shared lock on one byte, owned by the open file description.
pub fn lock_byte_shared(file: &File, byte: i64) -> io::Result<()> {
    let lock = range(libc::F_RDLCK, byte, 1);
    // SAFETY: the descriptor is open while `file` is borrowed; `lock` outlives the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) })
}

/// Gives the lock on one byte back.
pub fn unlock_byte(file: &File, byte: i64) -> io::Result<()> {
    let lock = range(libc::F_UNLCK, byte, 1);
    // SAFETY: as in `lock_byte_shared`.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) })
}

/// The lock of somebody else that an exclusive lock on this byte would meet.
pub fn byte_conflict(file: &File, byte: i64) -> io::Result<Option<RangeLock>> {
    let mut lock = range(libc::F_WRLCK, byte, 1);
    // SAFETY: the descriptor is open; the kernel writes into `lock`, which outlives the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) })?;
    if libc::c_int::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    Ok(Some(RangeLock {
        start: lock.l_start,
        bytes: lock.l_len,
        exclusive: libc::c_int::from(lock.l_type) == libc::F_WRLCK,
    }))
}

/// `fallocate(2)`; `mode` 0 allocates and grows.
pub fn fallocate(file: &File, mode: libc::c_int, offset: u64, bytes: u64) -> io::Result<()> {
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let bytes = i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: plain values and an open descriptor.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) })
}

/// Size of a block device in bytes.
pub fn device_bytes(file: &File) -> io::Result<u64> {
    let mut bytes: u64 = 0;
    // SAFETY: BLKGETSIZE64 writes one u64 to the pointer, which outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &mut bytes) })?;
    Ok(bytes)
}

/// Logical sector size of a block device.
pub fn device_sector_bytes(file: &File) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: BLKSSZGET writes one int to the pointer, which outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET, &mut bytes) })?;
    u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Makes a range of a block device read as zeroes, in the device or by writes of the kernel.
pub fn device_zero(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let range = [offset, bytes];
    // SAFETY: BLKZEROOUT reads two u64 from the pointer, which outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKZEROOUT, range.as_ptr()) })
}

/// What direct I/O asks of memory and of offsets; `None` when the kernel cannot say, zeroes when
/// this file takes no direct I/O.
pub fn direct_alignment(file: &File) -> Option<(u32, u32)> {
    // SAFETY: statx is plain data, for which all zeroes are valid.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a terminated empty string, the descriptor is open and `found` outlives
    // the call.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            STATX_DIOALIGN,
            &mut found,
        )
    };
    if result < 0 || found.stx_mask & STATX_DIOALIGN == 0 {
        return None;
    }
    Some((found.stx_dio_mem_align, found.stx_dio_offset_align))
}

/// Asks the storage about a directory, so that what it answers is not what a network file system
/// keeps of it for up to a minute: from here on names in it are those of now.
pub fn refresh(directory: &Path) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: statx is plain data, for which all zeroes are valid.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a terminated path; `found` outlives the call.
    check(unsafe {
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_STATX_FORCE_SYNC,
            libc::STATX_BASIC_STATS,
            &mut found,
        )
    })
}

/// Gives a file a new name that no other has; `AlreadyExists` where one has it.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let (old, new) = (name(from)?, name(to)?);
    // SAFETY: two names that end with a zero, and numbers.
    let renamed = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            old.as_ptr(),
            libc::AT_FDCWD,
            new.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if renamed == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // NFS, for one, has no such renaming.
        Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from).inspect_err(|_| {
                let _ = std::fs::remove_file(to);
            })
        }
        _ => Err(error),
    }
}

/// Takes O_DIRECT off an open file description.
pub fn clear_direct(file: &File) -> io::Result<()> {
    // SAFETY: an open descriptor and no memory.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    check(flags)?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT) })
}

/// Whether a file system says that it has no room for so many bytes more. Setting them aside all
/// the same would take all there is before it fails.
pub fn lacks(file: &File, more_bytes: u64) -> bool {
    free_bytes(file).is_ok_and(|free| free < more_bytes)
}

/// Bytes that are free on the file system of `file`.
pub fn free_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: statvfs is plain data, for which all zeroes are valid.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor; `found` outlives the call.
    check(unsafe { libc::fstatvfs(file.as_raw_fd(), &mut found) })?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// The first byte from `offset` on that is not in a hole; `None` where there is none.
pub fn seek_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, offset, libc::SEEK_DATA) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        found => found.map(Some),
    }
}

/// The first byte from `offset` on that is in a hole; the end of the file counts as one.
pub fn seek_hole(file: &File, offset: u64) -> io::Result<u64> {
    seek(file, offset, libc::SEEK_HOLE)
}

/// Moves the position of the description, which nothing else here uses.
fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<u64> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: an open descriptor and no memory.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

/// On NFS an `flock` is a byte-range lock over the whole file on the server.
pub fn is_nfs(file: &File) -> bool {
    file_system(file).is_ok_and(|(kind, _)| kind == NFS_MAGIC)
}

/// Whether the file system of a file numbers it anew at each mount: those behind FUSE may.
pub fn forgets_inodes(file: &File) -> bool {
    file_system(file).map_or(true, |(kind, _)| kind == FUSE_MAGIC)
}

/// The kind of a file's file system (linux/magic.h) and the bytes of its blocks.
pub fn file_system(file: &File) -> io::Result<(i64, u64)> {
    // SAFETY: statfs is plain data, for which all zeroes are valid.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor; `found` outlives the call.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), &mut found) })?;
    Ok((found.f_type, found.f_bsize as u64))
}

/// The pages of this machine.
pub fn page_bytes() -> u64 {
    // SAFETY: a plain value.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).expect("the kernel knows its pages")
}

/// A file in memory, allocated, of a size that nobody can change.
pub fn memory_file(name: &CStr, bytes: u64) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a terminated string that outlives the call.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    check(descriptor)?;
    // SAFETY: the descriptor is new and nobody else's.
    let file = unsafe { File::from_raw_fd(descriptor) };
    fallocate(&file, 0, 0, bytes)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: an open descriptor and plain values.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

/// Whether a descriptor is an eventfd.
pub fn is_event(file: &File) -> bool {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let name = std::fs::read_link(link);
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

/// Whether a descriptor is a stream socket of this host.
pub fn is_unix_stream(file: &File) -> bool {
    let option = |name| {
        let mut value: libc::c_int = 0;
        let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: an open descriptor; `value` and `bytes` outlive the call and fit each other.
        let asked = check(unsafe {
            libc::getsockopt(
                file.as_raw_fd(),
                libc::SOL_SOCKET,
                name,
                (&raw mut value).cast(),
                &mut bytes,
            )
        });
        asked.ok().map(|()| value)
    };
    option(libc::SO_DOMAIN) == Some(libc::AF_UNIX)
        && option(libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// Sends all of it now, or nothing. Never waits, whatever flags the socket has.
pub fn send_now(socket: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: an open descriptor; the bytes outlive the call.
    let sent = unsafe {
        let from = bytes.as_ptr().cast();
        libc::send(socket.as_raw_fd(), from, bytes.len(), flags)
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Takes bytes that are there, and the descriptors that came with them.
pub fn receive_with_files(socket: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Vec<File>)> {
    let mut descriptors = [-1; DESCRIPTORS_MAX];
    let mut pieces = [libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    }];
    // SAFETY: the one piece is a slice that outlives the call and may be written.
    let received = unsafe { socket.recv_with_fds(&mut pieces, &mut descriptors) };
    let received = received.map_err(|error| io::Error::from_raw_os_error(error.errno()));
    let (bytes, files) = received?;
    let files = descriptors[..files].iter();
    // SAFETY: the call above made them, and nothing else owns them.
    let files = files.map(|&descriptor| unsafe { File::from_raw_fd(descriptor) });
    Ok((bytes, files.collect()))
}

/// Waits for bytes on a socket and copies them without taking them; 0 at its end.
pub fn peek(socket: &UnixStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: an open descriptor; the bytes outlive the call.
        let count = unsafe {
            let bytes = into.as_mut_ptr().cast();
            libc::recv(socket.as_raw_fd(), bytes, into.len(), libc::MSG_PEEK)
        };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// The process that listens at the other end of a socket; 0 where it is in another namespace.
pub fn peer_pid(socket: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: an open descriptor; `found` and `bytes` outlive the call and fit each other.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut bytes,
        )
    })?;
    Ok(found.pid as u32)
}

/// Longer than any server here is silent that is still alive.
const READABLE_MILLIS_MAX: libc::c_int = 60_000;

/// Waits until one of these sockets has something to read, and returns which.
pub fn wait_readable<'a>(sockets: impl Iterator<Item = &'a UnixStream>) -> io::Result<usize> {
    let entry = |socket: &UnixStream| libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries: Vec<libc::pollfd> = sockets.map(entry).collect();
    loop {
        let count = entries.len() as libc::nfds_t;
        // SAFETY: the entries outlive the call, and their number is given with them.
        let result = unsafe { libc::poll(entries.as_mut_ptr(), count, READABLE_MILLIS_MAX) };
        match check(result) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => {
                let ready = entries.iter().position(|entry| entry.revents != 0);
                return ready.ok_or_else(|| io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// Waits until one of these descriptors has something to read or is at its end, and returns which;
/// `None` when that takes longer than `at_most`.
pub fn wait_any(
    descriptors: impl Iterator<Item = RawFd>,
    at_most: Duration,
) -> io::Result<Option<usize>> {
    let entry = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries: Vec<libc::pollfd> = descriptors.map(entry).collect();
    let millis = libc::c_int::try_from(at_most.as_millis()).unwrap_or(libc::c_int::MAX);
    loop {
        let count = entries.len() as libc::nfds_t;
        // SAFETY: the entries outlive the call, and their number is given with them.
        let result = unsafe { libc::poll(entries.as_mut_ptr(), count, millis) };
        match check(result) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(entries.iter().position(|entry| entry.revents != 0)),
        }
    }
}

/// Whether nobody reads any more what is written to a pipe or a socket.
pub fn reader_is_gone(to: &impl AsRawFd) -> bool {
    let mut entry = libc::pollfd {
        fd: to.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: one entry that outlives the call.
    let result = unsafe { libc::poll(&mut entry, 1, 0) };
    result == 1 && entry.revents & (libc::POLLERR | libc::POLLHUP) != 0
}

/// Time that all threads of a process have spent on processors; of this one without an id.
pub fn process_cpu(pid: Option<u32>) -> io::Result<Duration> {
    let mut clock = libc::CLOCK_PROCESS_CPUTIME_ID;
    if let Some(pid) = pid {
        let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a plain value, and `clock` outlives the call.
        let error = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
    }
    clock_time(clock)
}

/// Time that the threads of this name of a process have spent on processors. The kernel brings it
/// up to date when a thread leaves its processor, and at each tick.
pub fn named_threads_cpu(pid: u32, name: &str) -> io::Result<Duration> {
    let mut nanos = 0u64;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        let read = |what: &str| std::fs::read_to_string(thread.join(what));
        // A thread that ended since the list was made is none of those that stay.
        let (Ok(comm), Ok(stat)) = (read("comm"), read("schedstat")) else {
            continue;
        };
        if comm.trim_end() == name {
            let first = stat.split(' ').next().and_then(|it| it.parse::<u64>().ok());
            nanos = nanos.saturating_add(first.ok_or(io::ErrorKind::InvalidData)?);
        }
    }
    Ok(Duration::from_nanos(nanos))
}

/// Time that this thread has spent on processors.
pub fn thread_cpu() -> io::Result<Duration> {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_time(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a plain value, and `time` outlives the call.
    check(unsafe { libc::clock_gettime(clock, &mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The user this process acts as.
pub fn effective_uid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Ends this process the way a crash does: no handler, no destructor.
pub fn kill_self() -> ! {
    // SAFETY: plain values; SIGKILL to oneself is always permitted.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // The signal is delivered before `kill` returns to user space; this is for the compiler.
    std::process::abort()
}

/// Whether this process may give its files to a group: it is root, or one of the group.
pub fn may_give_to_group(group: u32) -> bool {
    let mut groups = vec![0; GROUPS_MAX];
    // SAFETY: the kernel writes at most as many numbers as there is room for.
    let count = unsafe { libc::getgroups(GROUPS_MAX as libc::c_int, groups.as_mut_ptr()) };
    groups.truncate(count.max(0) as usize);
    // SAFETY: getegid has no preconditions and cannot fail.
    let own = unsafe { libc::getegid() };
    effective_uid() == 0 || own == group || groups.contains(&group)
}

/// Asks a process that this one has started to end in order.
pub fn ask_to_end(child: &std::process::Child) -> io::Result<()> {
    // SAFETY: the process is a child that was not waited for, so its number is its own.
    check(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) })?;
    Ok(())
}

/// Lets the kernel send a child a signal when the thread that starts it ends, however it ends.
pub fn end_with_parent(command: &mut std::process::Command, signal: libc::c_int) {
    use std::os::unix::process::CommandExt;
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: after the fork it makes two system calls, which are safe there, and allocates
    // nothing.
    unsafe {
        command.pre_exec(move || {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, signal))?;
            // The parent may have ended before the call above.
            match libc::getppid() == parent {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        });
    }
}

/// Whether the other end of a socket has closed it. Never waits.
pub fn has_hung_up(socket: &impl AsFd) -> bool {
    let mut poll = libc::pollfd {
        fd: socket.as_fd().as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one entry, which lives over the call.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    ready == 1 && poll.revents & (libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR) != 0
}

/// A socket that speaks to the kernel's drivers by their names; what is written goes to the kernel.
pub fn generic_netlink() -> io::Result<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: plain values; no memory of ours.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC) };
    check(socket)?;
    // SAFETY: the call above made it, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(socket) })
}

/// Standard error as it was, while nothing that is written to it goes anywhere.
#[cfg(feature = "ublk")]
pub struct SilentErrors(Option<OwnedFd>);

/// For the call of a library that speaks where it should return; other threads are silent too.
#[cfg(feature = "ublk")]
pub fn silence_errors() -> SilentErrors {
    let error = io::stderr();
    let saved = error.as_fd().try_clone_to_owned().ok();
    let nowhere = File::options().write(true).open("/dev/null").ok();
    let (Some(saved), Some(nowhere)) = (saved, nowhere) else {
        return SilentErrors(None);
    };
    // SAFETY: both descriptors are open, and the second stays the one of standard error.
    unsafe { libc::dup2(nowhere.as_raw_fd(), libc::STDERR_FILENO) };
    SilentErrors(Some(saved))
}

#[cfg(feature = "ublk")]
impl Drop for SilentErrors {
    fn drop(&mut self) {
        if let Some(saved) = &self.0 {
            // SAFETY: as above.
            unsafe { libc::dup2(saved.as_raw_fd(), libc::STDERR_FILENO) };
        }
    }
}

/// How long this kernel runs.
pub fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|text| text.parse().ok());
    Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default()
}
