//! Rules taken out on purpose, so that a drill shows that it would notice.
//!
//! Owns the switches `TENUTO_DRILL_SKIP_SYNC` (`cache` or `journal`) and `TENUTO_DRILL_NO_LOCK`,
//! and `TENUTO_DRILL_BOOT`, which lets a machine seem to have been started again. Always true: the
//! switches do nothing unless `TENUTO_MARKS` is set too, as only a drill does, and each is told in
//! the log at start. Deliberately absent: any use outside the tests.

use engine::event::Device;
use std::sync::OnceLock;

#[derive(Clone, Copy, Default)]
struct Switches {
    cache_sync: bool,
    journal_sync: bool,
    lock: bool,
}

static SWITCHES: OnceLock<Switches> = OnceLock::new();

fn switches() -> Switches {
    *SWITCHES.get_or_init(|| {
        if std::env::var_os("TENUTO_MARKS").is_none() {
            return Switches::default();
        }
        let sync = std::env::var("TENUTO_DRILL_SKIP_SYNC").unwrap_or_default();
        let switches = Switches {
            cache_sync: sync == "cache",
            journal_sync: sync == "journal",
            lock: std::env::var_os("TENUTO_DRILL_NO_LOCK").is_some(),
        };
        if switches.cache_sync || switches.journal_sync || switches.lock {
            tracing::warn!("a drill has taken out a rule: data will be lost");
        }
        switches
    })
}

/// The name of the present boot, in place of the kernel's.
pub fn boot() -> Option<String> {
    std::env::var("TENUTO_DRILL_BOOT").ok()
}

/// Syncs of this device are left out.
pub fn leaves_out_sync(device: Device) -> bool {
    match device {
        Device::Cache => switches().cache_sync,
        Device::Journal(_) => switches().journal_sync,
        Device::Origin(_)
        | Device::Base(..)
        | Device::Ledger(_)
        | Device::Former(_)
        | Device::Peer(..) => false,
    }
}

/// Locks on the descriptions that carry the I/O are left out.
pub fn leaves_out_locks() -> bool {
    switches().lock
}
