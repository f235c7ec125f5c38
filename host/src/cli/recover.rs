//! `tenuto recover`: the dirty data of a dead host's SSD, to its origins.
//!
//! Always true: the log is only read until a volume's data has been synced at its origin; what
//! could not be brought home stays where it is. Deliberately absent: a way of its own to destage;
//! a daemon without guests does it, with the same ledgers and journals.

use super::Context;
use super::cache::{configuration, report_json, stage_dir, superblock_of};
use super::offline::{self, Found, Places};
use super::progress::{Progress, Work};
use crate::cachedev;
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
    if command.dry_run {
        return tell_recovered(context, &name, &found, &volumes, None);
    }
    let state_dir = match &configured {
        Some(config) => config.host.state_dir.clone(),
        None => default_host().state_dir,
    };
    let places = Places {
        stage_dir,
        state_dir,
        journal: command.journal.clone(),
        images: configured.as_ref().map_or_else(Default::default, |config| {
            config.image_places(&config.volumes)
        }),
    };
    let work = Work {
        verb: "recover",
        object: name.clone(),
        counted: "dirty data destaged",
    };
    let mut progress = Progress::new(context, work, Some(0));
    let failures = offline::destage_all(path, &places, &volumes, &mut progress, &mut |_| {})?;
    progress.finish();
    tell_recovered(context, &name, &found, &volumes, Some(&failures))?;
    match failures.first() {
        None if found.report.damage.is_empty() => Ok(()),
        None => Err(Error::new(
            Kind::Damaged,
            format!(
                "cache {name}: {}; everything else is recovered",
                found.report.damage[0]
            ),
        )
        .about(name)),
        Some((_, error)) => Err(error.clone()),
    }
}

/// What a cache holds, without changing a byte of it.
pub fn look(path: &Path, stage_dir: &Path) -> Result<Found> {
    let superblock = superblock_of(path)?;
    let mut progress = offline::tell;
    let target =
        cachedev::open(path, &mut offline::patience(&mut progress)).map_err(offline::from_fault)?;
    offline::peek(&Files::new(target), &superblock, stage_dir)
}

/// `failures` is `None` where nothing was tried.
fn tell_recovered(
    context: &Context,
    name: &str,
    found: &Found,
    volumes: &[&VolumeSnapshot],
    failures: Option<&[(String, Error)]>,
) -> Result<()> {
    let failed = |volume: &VolumeSnapshot| {
        failures.is_some_and(|failures| failures.iter().any(|(name, _)| *name == volume.name))
    };
    let any_failed = failures.is_some_and(|failures| !failures.is_empty());
    // A failed command prints its error as the only document.
    if context.common.json && (any_failed || !found.report.damage.is_empty()) {
        return Ok(());
    }
    let listed: Vec<Value> = volumes
        .iter()
        .map(|volume| {
            let mut document = inspect::volume_json(volume);
            document["recovered"] = json!(failures.is_some() && !failed(volume));
            document
        })
        .collect();
    let document = json!({ "cache": name, "volumes": listed, "recovery": report_json(found) });
    context.output().document(&document, || {
        if volumes.is_empty() {
            return format!("cache {name}: no dirty data\n");
        }
        let line = |volume: &&VolumeSnapshot| {
            let what = match (failures, failed(volume)) {
                (None, _) => "would go to",
                (Some(_), false) => "are now in",
                (Some(_), true) => "could not be brought to",
            };
            let bytes = human_bytes(volume.dirty_bytes);
            format!("volume {}: {bytes} {what} {}\n", volume.name, volume.origin)
        };
        volumes.iter().map(line).collect()
    })
}
