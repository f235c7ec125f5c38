//! Why the kernel makes no io_uring, in words that say what to change.
//!
//! Always true: the message names the errno and the setting that explains it, as far as this
//! process can see one; where it sees none it says what usually does it. Only `/proc` is read.

use crate::error::cause;
use std::fs;
use std::io;

/// What decides whether a process may have an io_uring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Host {
    /// `kernel.io_uring_disabled`: 0 = for all, 1 = for a group and CAP_SYS_ADMIN, 2 = for none.
    disabled: Option<u8>,
    /// A seccomp filter is on this process.
    filtered: bool,
    /// Bytes that may be locked in memory; `None` = no limit, or not known.
    memlock_bytes: Option<u64>,
}

impl Host {
    pub(super) fn look() -> Host {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = read("/proc/self/status");
        let mut seccomp = status
            .lines()
            .filter_map(|line| line.strip_prefix("Seccomp:"));
        let limits = read("/proc/self/limits");
        let mut memlock = limits
            .lines()
            .filter_map(|line| line.strip_prefix("Max locked memory"));
        let soft = memlock
            .next()
            .and_then(|rest| rest.split_whitespace().next());
        Host {
            disabled: read("/proc/sys/kernel/io_uring_disabled")
                .trim()
                .parse()
                .ok(),
            filtered: seccomp.next().is_some_and(|mode| mode.trim() == "2"),
            memlock_bytes: soft.and_then(|soft| soft.parse().ok()),
        }
    }
}

/// The same error with its cause and what would be right.
pub(super) fn explained(error: io::Error, host: &Host) -> io::Error {
    let why = match (error.raw_os_error(), host) {
        (
            Some(libc::EPERM),
            Host {
                disabled: Some(level @ 1..),
                ..
            },
        ) => format!(
            "the sysctl kernel.io_uring_disabled is {level}; set it to 0{}",
            match level {
                1 => ", or put the user of the daemon into the group of kernel.io_uring_group",
                _ => "",
            }
        ),
        (Some(libc::EPERM | libc::EACCES | libc::ENOSYS), Host { filtered: true, .. }) => {
            "a seccomp filter of the container or of the unit refuses it; allow io_uring_setup, \
             io_uring_enter and io_uring_register there (SystemCallFilter=, or the profile of the \
             container runtime)"
                .to_owned()
        }
        (Some(libc::EPERM | libc::EACCES), _) => {
            "a security module of this host refuses it; allow io_uring for the daemon".to_owned()
        }
        (Some(libc::ENOSYS), _) => {
            "this kernel has none; 5.11 or newer with CONFIG_IO_URING is needed".to_owned()
        }
        (Some(libc::ENOMEM), host) => {
            let limit = match host.memlock_bytes {
                Some(bytes) => format!(" (it is {} KiB)", bytes >> 10),
                None => String::new(),
            };
            format!(
                "memory for it may not be locked; raise LimitMEMLOCK= of the unit, or \
                 `ulimit -l`{limit}, to 64 MiB or more"
            )
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("io_uring: {}: {why}", cause(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(errno: i32, host: Host) -> String {
        explained(io::Error::from_raw_os_error(errno), &host).to_string()
    }

    #[test]
    fn each_refusal_of_the_kernel_names_what_to_change() {
        let disabled = |level| Host {
            disabled: Some(level),
            filtered: true,
            ..Host::default()
        };
        assert!(said(libc::EPERM, disabled(2)).contains("kernel.io_uring_disabled is 2; set it"));
        assert!(said(libc::EPERM, disabled(1)).contains("kernel.io_uring_group"));
        assert!(said(libc::EPERM, disabled(0)).contains("seccomp"));
        assert!(said(libc::ENOSYS, disabled(0)).contains("SystemCallFilter="));
        assert!(said(libc::ENOSYS, Host::default()).contains("CONFIG_IO_URING"));
        assert!(said(libc::EPERM, Host::default()).contains("security module"));
        let locked = Host {
            memlock_bytes: Some(64 << 10),
            ..Host::default()
        };
        assert!(said(libc::ENOMEM, locked).contains("`ulimit -l` (it is 64 KiB)"));
    }
}
