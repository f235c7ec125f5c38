//! `tenuto recover`: the dirty data of a dead host's SSD, to its origins.
//!
//! Always true: the log is only read until a volume's data has been synced at its origin, but for a
//! copy that becomes the volume when a record says so; what could not be brought home stays where
//! it is; a copy is used only after each block that the log has was read once and is good.
//! Deliberately absent: a way of its own to destage;
//! a daemon without guests does it, with the same ledgers and journals.

use super::Context;
use super::cache::{configuration, report_json, stage_dir, superblock_of, work};
use super::offline::{self, Found, Places};
use super::progress::{Progress, Work};
use super::surrogate::{Because, Cluster, Division, Left, Moved, Owner, Share, Task};
use crate::cachedev;
use crate::config::Config;
use crate::config::keys::default_host;
use crate::config::units::human_bytes;
use crate::error::{Error, Kind, Result};
use crate::files::Files;
use crate::inspect;
use clap::Args;
use engine::types::{Serial, VolumeId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct Recover {
    /// The cache device or file of the dead host
    #[arg(long, value_name = "PATH")]
    pub cache: PathBuf,
    /// Only this volume
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Where ledgers and journals lie if not beside the origins
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
    /// Only print which data would go where
    #[arg(long)]
    pub dry_run: bool,
    /// The hosts of a cluster that own the volumes, or may write their images, can write no more:
    /// they are off, or cut from the storage. Without it the command names them
    #[arg(long)]
    pub fenced: bool,
}

/// `tenuto recover`: a dead host's dirty data to its origins.
pub fn run(context: &Context, command: &Recover) -> Result<()> {
    let path = &command.cache;
    let name = path.display().to_string();
    let configured = configuration(context)?;
    let stage_dir = stage_dir(configured.as_ref());
    let (found, bad_upto) = look_whole(context, path, &stage_dir)?;
    let cluster = match &configured {
        Some(config) => Cluster::of(context, config)?,
        None => None,
    };
    let moved = Moved {
        cache: superblock_of(path)?.cache,
        volumes: &found.volumes,
        dirty: found.dirty(),
        damaged: found.damaged(),
        bad_upto,
    };
    let asked = |name: &str| command.volume.as_ref().is_none_or(|asked| *asked == name);
    let division = Division::of(&moved, cluster.as_ref(), &asked);
    if let Some(asked) = &command.volume
        && division.tasks().next().is_none()
        && division.left.is_empty()
        && found.volumes.iter().all(|volume| volume.name != *asked)
    {
        let message = format!("volume {asked}: not in cache {name}; see `tenuto cache inspect`");
        return Err(Error::new(Kind::NotFound, message).about(asked.clone()));
    }
    if command.dry_run {
        return tell_recovered(context, &name, &found, &division, None);
    }
    division.need_word(command.fenced)?;
    let mut failures = Vec::new();
    for share in &division.shares {
        failures.extend(recover(context, command, configured.as_ref(), share)?);
    }
    let done = division.is_done() && command.volume.is_none();
    if let Some(cluster) = cluster.as_ref().filter(|_| done) {
        cluster.forget(moved.cache);
    }
    let refused = refused(&division, command.volume.is_some());
    let fails = refused.is_some() || !found.report.damage.is_empty();
    if !(context.common.json && (fails || !failures.is_empty())) {
        // A failed command prints its error as the only document.
        tell_recovered(context, &name, &found, &division, Some(&failures))?;
    }
    match (failures.into_iter().next(), refused) {
        (Some((_, error)), _) | (None, Some(error)) => Err(error),
        (None, None) if found.report.damage.is_empty() => Ok(()),
        (None, None) => Err(Error::new(
            Kind::Damaged,
            format!(
                "cache {name}: {}; everything else is recovered",
                found.report.damage[0]
            ),
        )
        .about(name)),
    }
}

/// Why the command ends with an error for what it has left as it is. A copy of what other hosts
/// have is none, where the command had other things to do.
fn refused(division: &Division, by_name: bool) -> Option<Error> {
    let idle = by_name || division.tasks().next().is_none();
    let first = |why: Because| division.left.iter().find(|left| left.because == why);
    first(Because::Refused)
        .or_else(|| first(Because::OfAnother).filter(|_| idle))
        .map(|left| left.error.clone())
}

/// The volumes of one owner; what did not work.
fn recover(
    context: &Context,
    command: &Recover,
    configured: Option<&Config>,
    share: &Share,
) -> Result<Vec<(String, Error)>> {
    let state_dir = match (&share.owner, configured) {
        (Some(owner), _) => owner.state_dir().to_owned(),
        (None, Some(config)) => config.host.state_dir.clone(),
        (None, None) => default_host().state_dir,
    };
    let places = Places {
        stage_dir: stage_dir(configured),
        state_dir,
        journal: command.journal.clone(),
        images: configured.map_or_else(Default::default, |config| {
            config.image_places(&config.volumes)
        }),
        owner: share.owner.clone(),
    };
    let work = Work {
        verb: "recover",
        object: command.cache.display().to_string(),
        counted: "dirty data destaged",
    };
    let mut progress = Progress::new(context, work, Some(0));
    let failures = offline::destage_all(
        &command.cache,
        &places,
        &share.volumes(),
        &mut progress,
        &mut |_| {},
    )?;
    progress.finish();
    if let Some(owner) = share.owner.as_ref().filter(|_| failures.is_empty()) {
        owner.forget();
    }
    Ok(failures)
}

fn open(path: &Path) -> Result<Files> {
    let mut progress = offline::tell;
    let target = cachedev::open(path, &mut offline::patience(&mut progress));
    Ok(Files::new(target.map_err(offline::from_fault)?))
}

/// What a cache holds, without changing a byte of it.
pub fn look(path: &Path, stage_dir: &Path) -> Result<Found> {
    let superblock = superblock_of(path)?;
    offline::peek(&open(path)?, &superblock, stage_dir)
}

/// The same; where copies are among it, with what of them cannot be read.
fn look_whole(
    context: &Context,
    path: &Path,
    stage_dir: &Path,
) -> Result<(Found, BTreeMap<VolumeId, Serial>)> {
    let superblock = superblock_of(path)?;
    let mut files = open(path)?;
    let found = offline::peek(&files, &superblock, stage_dir)?;
    if found.volumes.iter().all(|volume| volume.replica.is_none()) {
        return Ok((found, BTreeMap::new()));
    }
    let segment_bytes = superblock.geometry.segment_bytes();
    let shown = path.display().to_string();
    let mut progress = Progress::new(context, work("recover", &shown, "log read"), None);
    let report = engine::engine::verify(&mut files, &mut |segments, total| {
        progress.set(segments * segment_bytes, Some(total * segment_bytes));
    });
    progress.finish();
    Ok((found, report.map_err(offline::open_error)?.bad_upto))
}

/// `failures`: it was tried, and is not only looked at.
fn tell_recovered(
    context: &Context,
    name: &str,
    found: &Found,
    division: &Division,
    failures: Option<&[(String, Error)]>,
) -> Result<()> {
    let mut listed: Vec<Value> = Vec::new();
    let mut lines: Vec<String> = Vec::new();
    for (share, task) in division.shares.iter().flat_map(Share::each) {
        let failed = failures.map(|it| it.iter().any(|(name, _)| *name == task.volume.name));
        listed.push(task_json(share, task, failed == Some(false)));
        lines.push(task_text(task, failed));
    }
    lines.extend(
        division
            .left
            .iter()
            .filter(|left| failures.is_none() || left.because != Because::Refused)
            .map(left_text),
    );
    let document = json!({
        "cache": name,
        "volumes": listed,
        "refused": division.left.iter().map(left_json).collect::<Vec<_>>(),
        "recovery": report_json(found),
    });
    context
        .output()
        .document(&document, || match lines.is_empty() {
            true => format!("cache {name}: no dirty data\n"),
            false => lines.concat(),
        })
}

fn task_json(share: &Share, task: &Task, recovered: bool) -> Value {
    let mut document = inspect::volume_json(&task.volume);
    document["recovered"] = json!(recovered);
    document["owner"] = json!(task.owner);
    document["needs_fenced"] = json!(!task.silent().is_empty());
    document["fenced"] = json!(task.silent());
    let member = share.owner.as_ref().filter(|_| task.is_copy);
    document["copy_of"] = json!(member.map(Owner::name));
    document
}

fn left_text(left: &Left) -> String {
    let bytes = human_bytes(left.dirty_bytes);
    format!("{} ({bytes} are here)\n", left.error.message)
}

fn left_json(left: &Left) -> Value {
    json!({
        "name": left.name,
        "reason": left.error.message,
        "dirty_bytes": left.dirty_bytes,
        "copy": left.is_copy,
        "superfluous": left.because != Because::Refused,
    })
}

/// `failed`: whether it could not be done; none where it was not tried.
fn task_text(task: &Task, failed: Option<bool>) -> String {
    let what = match failed {
        None => "would go to",
        Some(false) => "are now in",
        Some(true) => "could not be brought to",
    };
    let bytes = human_bytes(task.volume.dirty_bytes);
    let (name, origin) = (&task.volume.name, &task.volume.origin);
    let kind = if task.is_copy {
        "copy of volume"
    } else {
        "volume"
    };
    let silent = task.silent();
    let owner = task.owner.as_deref().unwrap_or_default();
    let of = match (silent.is_empty(), failed) {
        (false, None) if silent[..] == [owner] => {
            format!("; {owner} owns it, so this needs --fenced")
        }
        (false, None) => {
            let silent = silent.join(" and ");
            format!("; {owner} owns it, so this needs --fenced, which speaks of {silent}")
        }
        _ => String::new(),
    };
    format!("{kind} {name}: {bytes} {what} {origin}{of}\n")
}
