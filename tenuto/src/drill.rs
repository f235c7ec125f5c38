//! Rules taken out on purpose, for the drills that must see the damage.
//!
//! A drill that cannot fail proves nothing, so two rules can be switched off by the environment:
//! `TENUTO_DRILL_SKIP_SYNC` (`cache` or `journal`) makes syncs of that device do nothing and
//! succeed, `TENUTO_DRILL_NO_LOCK` makes every lock free. Always true: without these variables
//! nothing here does anything; with one, the log says so as a warning. Whoever sets them outside
//! of a test loses data.

use engine::event::Device;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;

struct Switches {
    skip_cache: bool,
    skip_journal: bool,
    no_lock: bool,
    /// What is synced instead: a directory in memory, for which a sync is nothing.
    nothing: Option<File>,
}

fn switches() -> &'static Switches {
    static SWITCHES: OnceLock<Switches> = OnceLock::new();
    SWITCHES.get_or_init(|| {
        let skip = std::env::var("TENUTO_DRILL_SKIP_SYNC").unwrap_or_default();
        let no_lock = std::env::var_os("TENUTO_DRILL_NO_LOCK").is_some();
        if !skip.is_empty() {
            tracing::warn!("drill: syncs of the {skip} do nothing; data will be lost");
        }
        if no_lock {
            tracing::warn!("drill: locks are free; late writes will do damage");
        }
        let nothing = (!skip.is_empty()).then(|| File::open("/dev/shm"));
        Switches {
            skip_cache: skip == "cache",
            skip_journal: skip == "journal",
            no_lock,
            nothing: nothing.map(|opened| opened.expect("a drill runs where there is /dev/shm")),
        }
    })
}

/// Whether locks are to be taken for granted.
pub fn no_lock() -> bool {
    switches().no_lock
}

/// Whether syncs of this device are left out.
pub fn skips_sync(device: Device) -> bool {
    match device {
        Device::Cache => switches().skip_cache,
        Device::Journal(_) => switches().skip_journal,
        Device::Origin(_) | Device::Ledger(_) => false,
    }
}

/// The descriptor to sync: the device's own, as long as no drill runs.
pub fn synced(device: Device, fd: RawFd) -> RawFd {
    match &switches().nothing {
        Some(nothing) if skips_sync(device) => nothing.as_raw_fd(),
        _ => fd,
    }
}
