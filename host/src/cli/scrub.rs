//! `tenuto cache scrub`: everything on the cache device is compared with its checksums.
//!
//! A cache that a daemon runs on is scrubbed by that daemon beside its guests; one that lies still
//! is read as `cache verify` does. Always true: the daemon that is asked is the one that has this
//! cache; whoever stops waiting stops nothing. Damage ends with code 5, clean blocks that were
//! forgotten do not: nothing is lost with them.

use super::Context;
use super::cache::{superblock_of, verify, work};
use super::progress::{self, Pending, Progress};
use crate::admin::client::{Client, PATIENT};
use crate::config::units::{human_bytes, human_seconds};
use crate::error::{Error, Kind, Result};
use serde_json::Value;
use std::path::Path;

pub fn run(context: &Context, path: &Path) -> Result<()> {
    superblock_of(path)?;
    match daemon_of(context, path)? {
        Some(client) => scrub(context, path, client),
        None => verify(context, path, "scrub").map_err(of_another),
    }
}

/// A cache that is in use belongs to a daemon that was not asked.
fn of_another(error: Error) -> Error {
    if error.kind != Kind::Refused {
        return error;
    }
    let message = format!(
        "{}, or name its --socket to have it scrub beside its guests",
        error.message
    );
    Error { message, ..error }
}

/// The daemon that runs on this cache, if the one that can be reached does.
fn daemon_of(context: &Context, path: &Path) -> Result<Option<Client>> {
    let client = context.client()?;
    let status = match client.get("/v1/status") {
        Err(error) if error.kind == Kind::Unreachable => return Ok(None),
        status => status?,
    };
    let of_daemon = status["cache"]["path"].as_str().map(Path::new);
    let same = of_daemon.is_some_and(|other| is_same(path, other));
    Ok(same.then_some(client))
}

/// Two names of one file or device.
fn is_same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| std::fs::canonicalize(path).ok();
    whole(one).is_some_and(|one| Some(one) == whole(other))
}

fn scrub(context: &Context, path: &Path, client: Client) -> Result<()> {
    let name = path.display().to_string();
    let asked = client.clone();
    let left = move || {
        let status = asked.get("/v1/status").ok()?;
        let scrub = &status["cache"]["scrub"];
        let total = scrub["total_bytes"].as_u64()?;
        let left = total.saturating_sub(scrub["checked_bytes"].as_u64()?);
        scrub["running"]
            .as_bool()?
            .then(|| Pending::new(left, 0, None))
    };
    let order = move || client.post("/v1/cache/scrub?wait=true", None, PATIENT);
    let progress = Progress::new(context, work("scrub", &name, "checked"), Some(0));
    let goes_on = "the daemon goes on with it; `tenuto status` shows how far it is";
    let found = progress::wait_for_order(progress, left, order, goes_on)?;
    let damage = damage(&found);
    if let Some(damage) = damage {
        let message = format!("cache {name}: {damage}; {}", words(&found));
        return Err(Error::new(Kind::Damaged, message).about(name));
    }
    context.output().confirmation(&found, || {
        format!("cache {name}: no damage; {}\n", words(&found))
    })
}

fn damage(found: &Value) -> Option<String> {
    let number = |key: &str| found[key].as_u64().unwrap_or(0);
    let (dirty, footers) = (number("damaged_bytes"), number("bad_footers"));
    let mut found = Vec::new();
    if dirty > 0 {
        found.push(format!(
            "{} of dirty data cannot be read any more, and `tenuto status -x` names the volumes",
            human_bytes(dirty)
        ));
    }
    if footers > 0 {
        found.push(format!(
            "{footers} segments of the log lost the table of what lies in them; bring everything \
             home with `tenuto volume destage --all --wait` before the next start",
        ));
    }
    (!found.is_empty()).then(|| found.join("; "))
}

/// What was read and what of it was forgotten, for `status` as well.
pub fn words(found: &Value) -> String {
    let number = |key: &str| found[key].as_u64().unwrap_or(0);
    let checked = human_bytes(number("checked_bytes"));
    let time = human_seconds(number("seconds"));
    let forgotten = match number("dropped_bytes") {
        0 => String::new(),
        bytes => format!(
            ", {} of clean data forgotten, which its origins have",
            human_bytes(bytes)
        ),
    };
    format!("{checked} read in {time}{forgotten}")
}
