//! The health program of a roll-out, and the time of the host.
//!
//! Always true: a program that does not end is ended, and says nothing good. Deliberately absent:
//! what follows from what it says.

use crate::error::cause;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A health program that takes longer says nothing good.
const HEALTH_WAIT: Duration = Duration::from_secs(30);
const HEALTH_POLL: Duration = Duration::from_millis(20);

pub fn unix_ms_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Asks a health program about a member; why it is not well.
pub fn ask_health(program: &Path, member: &str) -> Result<(), String> {
    let shown = program.display();
    let mut child = Command::new(program)
        .arg(member)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{shown}: {}", cause(&error)))?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{shown} says so ({status})")),
            Ok(None) if begun.elapsed() < HEALTH_WAIT => sleep(HEALTH_POLL),
            Ok(None) => {
                // Not waited for any more; it is ours, and ends by this.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{shown} has not ended within half a minute"));
            }
            Err(error) => return Err(format!("{shown}: {}", cause(&error))),
        }
    }
}
