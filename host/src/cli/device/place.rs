//! Where a volume's block device is found: its name below `/dev`, and what is printed of it.
//!
//! Always true: a link is made by udev where it runs and knows the rule, else here, and it is
//! removed only while it leads to the device that has gone. Deliberately absent: the drivers.

use super::found::Found;
use crate::blockdev::Block;
use crate::cli::{Context, output};
use crate::error::Result;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long udev may take for the link.
const UDEV: Duration = Duration::from_secs(5);
pub const UDEV_PAUSE: Duration = Duration::from_millis(20);
const LINKS: &str = "/dev/tenuto";

/// What there is to print of a device.
pub fn shown(name: &str, device: &Block, attached: bool) -> Value {
    json!({
        "name": name,
        "attached": attached,
        "device": device.path().display().to_string(),
        "link": link(name).display().to_string(),
        "size_bytes": device.size_bytes(),
    })
}

pub fn link(name: &str) -> PathBuf {
    Path::new(LINKS).join(name)
}

/// One line, because its reader waits for the end of it; later there may be no reader.
pub fn say(context: &Context, name: &str, device: &Block) -> Result<()> {
    let document = shown(name, device, true);
    match context.common.json {
        true => output::write(&format!("{document}\n")),
        false => output::write(&format!("{}\n", link(name).display())),
    }
}

/// The name below `/dev`: udev's where it runs and knows the rule, else one of our own.
pub fn settle(name: &str, device: &Block) {
    let is_there = || fs::canonicalize(link(name)).is_ok_and(|path| path == device.path());
    let begun = Instant::now();
    while Path::new("/run/udev/control").exists() && begun.elapsed() < UDEV {
        if is_there() {
            return;
        }
        std::thread::sleep(UDEV_PAUSE);
    }
    if !is_there() {
        // A name is a convenience: the device itself is told as well.
        let _ = fs::create_dir_all(LINKS);
        let _ = fs::remove_file(link(name));
        let _ = symlink(device.path(), link(name));
    }
}

pub fn unlink(name: &str, device: &Block) {
    let to = fs::read_link(link(name)).unwrap_or_default();
    // Another device of that name may have come meanwhile.
    if to.file_name() == device.path().file_name() && Found::of(name).is_none() {
        let _ = fs::remove_file(link(name));
    }
}
