//! A daemon that may not do what others may: limits and filters of its process.
//!
//! Always true: what is set here holds for the program that is started and for nothing else.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// `ulimit -f`, in bytes.
pub fn larger_files(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    let set = move || {
        // SAFETY: setrlimit may be called between fork and exec; the value lives over the call.
        match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure allocates nothing and makes one system call.
    unsafe { command.pre_exec(set) };
}

/// A seccomp filter that answers `io_uring_setup` with an errno, as container runtimes do.
pub fn io_uring(command: &mut Command, errno: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        // The number of the call is the first word of what the filter sees.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let set = move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: both calls may be made between fork and exec; filter and program live over them.
        let result = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure allocates nothing and makes two system calls.
    unsafe { command.pre_exec(set) };
}
