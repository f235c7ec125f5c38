//! `tenuto recover`: the dirty data of a dead host's SSD, to its origins.
//!
//! Always true: the log is only read until a volume's data has been synced at its origin; what
//! could not be brought home stays where it is. Deliberately absent: a way of its own to destage;
//! a daemon without guests does it, with the same ledgers and journals.

use super::Context;
use super::cache::{configuration, report_json, stage_dir, superblock_of};
use super::offline::{self, Found, Places};
use super::progress::{Progress, Work};
use super::surrogate::{self, Cluster, Owner, Share};
use crate::cachedev;
use crate::config::Config;
use crate::config::keys::default_host;
use crate::config::units::human_bytes;
use crate::error::{Error, Kind, Result};
use crate::files::Files;
use crate::inspect;
use clap::Args;
use engine::snapshot::VolumeSnapshot;
use serde_json::{Value, json};
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
    /// The host of a cluster whose cache it is can write no more: it is off, or cut from the
    /// storage
    #[arg(long)]
    pub fenced: bool,
}

/// `tenuto recover`: a dead host's dirty data to its origins.
pub fn run(context: &Context, command: &Recover) -> Result<()> {
    let path = &command.cache;
    let name = path.display().to_string();
    let configured = configuration(context)?;
    let stage_dir = stage_dir(configured.as_ref());
    let found = look(path, &stage_dir)?;
    let asked = |volume: &&VolumeSnapshot| {
        command
            .volume
            .as_ref()
            .is_none_or(|asked| *asked == volume.name)
    };
    if let Some(asked) = &command.volume
        && found.volumes.iter().all(|volume| volume.name != *asked)
    {
        let message = format!("volume {asked}: not in cache {name}; see `tenuto cache inspect`");
        return Err(Error::new(Kind::NotFound, message).about(asked.clone()));
    }
    let volumes: Vec<&VolumeSnapshot> = found.dirty().into_iter().filter(asked).collect();
    let cluster = match &configured {
        Some(config) => Cluster::of(config)?,
        None => None,
    };
    let cache = superblock_of(path)?.cache;
    let (shares, mut failures) = surrogate::divide(&volumes, cluster.as_ref(), cache);
    if command.dry_run {
        return tell_recovered(context, &name, &found, &shares, &failures, false);
    }
    surrogate::need_word(&shares, command.fenced)?;
    for share in &shares {
        failures.extend(recover(context, command, configured.as_ref(), share)?);
    }
    tell_recovered(context, &name, &found, &shares, &failures, true)?;
    match failures.into_iter().next() {
        None if found.report.damage.is_empty() => Ok(()),
        None => Err(Error::new(
            Kind::Damaged,
            format!(
                "cache {name}: {}; everything else is recovered",
                found.report.damage[0]
            ),
        )
        .about(name)),
        Some((_, error)) => Err(error),
    }
}

/// The volumes of one owner; what did not work.
fn recover(
    context: &Context,
    command: &Recover,
    configured: Option<&Config>,
    share: &Share<'_>,
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
        &share.volumes,
        &mut progress,
        &mut |_| {},
    )?;
    progress.finish();
    if let Some(owner) = share.owner.as_ref().filter(|_| failures.is_empty()) {
        owner.forget();
    }
    Ok(failures)
}

/// What a cache holds, without changing a byte of it.
pub fn look(path: &Path, stage_dir: &Path) -> Result<Found> {
    let superblock = superblock_of(path)?;
    let mut progress = offline::tell;
    let target =
        cachedev::open(path, &mut offline::patience(&mut progress)).map_err(offline::from_fault)?;
    offline::peek(&Files::new(target), &superblock, stage_dir)
}

/// `done`: it was tried, and is not only looked at.
fn tell_recovered(
    context: &Context,
    name: &str,
    found: &Found,
    shares: &[Share<'_>],
    failures: &[(String, Error)],
    done: bool,
) -> Result<()> {
    // A failed command prints its error as the only document.
    if context.common.json && done && !(failures.is_empty() && found.report.damage.is_empty()) {
        return Ok(());
    }
    let mut listed: Vec<Value> = Vec::new();
    let mut lines: Vec<String> = Vec::new();
    for (share, volume) in shares.iter().flat_map(Share::each) {
        let failed = failures.iter().any(|(name, _)| *name == volume.name);
        let mut document = inspect::volume_json(volume);
        document["recovered"] = json!(done && !failed);
        let owner = share.owner.as_ref();
        document["owner"] = json!(owner.map(Owner::name));
        document["needs_fenced"] = json!(owner.is_some_and(|owner| !owner.is_here()));
        listed.push(document);
        let what = match (done, failed) {
            (false, _) => "would go to",
            (true, false) => "are now in",
            (true, true) => "could not be brought to",
        };
        let bytes = human_bytes(volume.dirty_bytes);
        let (name, origin) = (&volume.name, &volume.origin);
        let of = owner
            .filter(|owner| !owner.is_here() && !done)
            .map(|owner| format!("; {} owns it, so this needs --fenced", owner.name()))
            .unwrap_or_default();
        lines.push(format!("volume {name}: {bytes} {what} {origin}{of}\n"));
    }
    if !done {
        let refused = failures.iter();
        lines.extend(refused.map(|(_, error)| format!("{}\n", error.message)));
    }
    let document = json!({
        "cache": name,
        "volumes": listed,
        "refused": failures.iter().map(|(name, error)| {
            json!({ "name": name, "reason": error.message })
        }).collect::<Vec<_>>(),
        "recovery": report_json(found),
    });
    context
        .output()
        .document(&document, || match lines.is_empty() {
            true => format!("cache {name}: no dirty data\n"),
            false => lines.concat(),
        })
}
