//! `tenuto cache resize`: another size for a cache that owes nothing.
//!
//! Always true: what would be lost is found out under the cache's own lock, and before the first
//! byte changes; a power loss at any time leaves the cache of the one size or of the other. The
//! stage belongs to addresses of the log, so it goes with them. Deliberately absent: how the
//! volumes survive; see the engine.

use super::Context;
use super::cache::{
    allocated_bytes, configuration, parse_asked_size, reopened, stage_dir, superblock_of, work,
};
use super::offline::{self, Found, Places};
use super::progress::{self, Pending, Progress};
use crate::cachedev;
use crate::config::Config;
use crate::config::keys::default_host;
use crate::config::units::{human_bytes, show_size};
use crate::error::{Error, Kind, Result, cause};
use crate::fault::Fault;
use crate::files::Files;
use crate::target::Target;
use clap::Args;
use engine::engine::{device_bytes, geometry_for, resize_cache};
use engine::format::superblock::Superblock;
use engine::snapshot::VolumeSnapshot;
use engine::types::{Geometry, Policy};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct Resize {
    /// Cache file or block device
    path: PathBuf,
    /// New size, as in 128GiB; of a block device, the part to use
    size: String,
    /// Lose the overlays of ephemeral volumes
    #[arg(long)]
    discard_overlays: bool,
}

pub fn run(context: &Context, command: &Resize) -> Result<()> {
    let path = &command.path;
    let name = path.display().to_string();
    let asked = parse_asked_size("size", &command.size)?;
    let geometry = geometry_for(asked)
        .map_err(|why| Error::usage(format!("cache {name}: {why}")).about(name.clone()))?;
    let before = superblock_of(path)?;
    // A cache of a version that knew less is laid out anew in its own size.
    if before.geometry == geometry && before.inline_records {
        let message = format!("cache {name}: has this size already");
        return Err(Error::usage(message).about(name));
    }
    let configured = configuration(context)?;
    let places = Places {
        stage_dir: stage_dir(configured.as_ref()),
        state_dir: match &configured {
            Some(config) => config.host.state_dir.clone(),
            None => default_host().state_dir,
        },
        journal: None,
        images: Default::default(),
        owner: None,
    };
    drop(locked(command, &before, &places)?);
    // What a daemon that was killed has left is put in order as its next start would.
    let mut progress = Progress::new(context, work("resize", &name, "recovered"), Some(0));
    let failures = offline::destage_all(path, &places, &[], &mut progress, &mut |_| {})?;
    progress.finish();
    debug_assert!(failures.is_empty(), "nothing was asked for");
    let target = locked(command, &before, &places)?;
    let file_bytes = match target.block_device {
        true => device_bytes(geometry),
        false => asked,
    };
    lay_out(context, path, target, (geometry, file_bytes))?;
    // Of the old layout; what is in it is in the table of volumes, or was given up.
    let _ = std::fs::remove_file(stage_path(&places, &before));
    let log_bytes = geometry.log_bytes();
    let notes: Vec<String> = configured
        .iter()
        .filter_map(|it| other_size(it, path, asked))
        .collect();
    let document = json!({
        "path": name,
        "uuid": before.cache.to_string(),
        "size_bytes": file_bytes,
        "log_bytes": log_bytes,
        "log_bytes_before": before.geometry.log_bytes(),
        "notes": notes,
    });
    context.output().confirmation(&document, || {
        let (old, new) = (
            human_bytes(before.geometry.log_bytes()),
            human_bytes(log_bytes),
        );
        let notes: String = notes.iter().map(|note| format!("{note}\n")).collect();
        format!("cache {name}: {new} instead of {old}; clean blocks are read anew\n{notes}")
    })
}

/// Makes room, moves the volumes to the new layout, gives room back.
fn lay_out(
    context: &Context,
    path: &Path,
    target: Target,
    (geometry, file_bytes): (Geometry, u64),
) -> Result<()> {
    let name = path.display().to_string();
    let mut progress = Progress::new(context, work("resize", &name, "allocated"), None);
    let left = || {
        let missing = file_bytes.saturating_sub(allocated_bytes(path));
        Some(Pending::new(missing, 0, None))
    };
    let grown = progress::watch(&mut progress, left, || cachedev::grow(target, file_bytes));
    progress.finish();
    let target = grown.map_err(offline::from_fault)?;
    let file = target.file.try_clone();
    let file = file.map_err(|error| Error::failed(format!("cache {name}: {}", cause(&error))))?;
    let shrinks = !target.block_device && target.size_bytes > file_bytes;
    let mut files = Files::new(target);
    resize_cache(&mut files, geometry).map_err(offline::open_error)?;
    if shrinks {
        let cut = file.set_len(file_bytes).and_then(|()| file.sync_all());
        cut.map_err(|error| {
            let fault = Fault::io(&format!("cache {name}"), "give its space back", error);
            offline::from_fault(fault)
        })?;
    }
    Ok(())
}

/// The cache, locked, after a look that says that nothing would be lost.
fn locked(command: &Resize, superblock: &Superblock, places: &Places) -> Result<Target> {
    let path = &command.path;
    let mut progress = offline::tell;
    let target = cachedev::open(path, &mut offline::patience(&mut progress));
    let target = target.map_err(offline::from_fault)?;
    let files = Files::new(reopened(&target)?);
    let found = offline::peek(&files, superblock, &places.stage_dir)?;
    refuse_loss(command, &found)?;
    Ok(target)
}

fn refuse_loss(command: &Resize, found: &Found) -> Result<()> {
    let name = command.path.display().to_string();
    if let Some(first) = found.report.damage.first() {
        let message = format!("cache {name}: {first}; see `tenuto cache verify`");
        return Err(Error::new(Kind::Damaged, message).about(name));
    }
    let listed = |volumes: Vec<&VolumeSnapshot>| -> Vec<String> {
        let line = |volume: &&VolumeSnapshot| {
            let bytes = volume.dirty_bytes;
            format!("{} ({bytes} bytes, {})", volume.name, human_bytes(bytes))
        };
        volumes.iter().map(line).collect()
    };
    let dirty = listed(found.dirty());
    if !dirty.is_empty() {
        return Err(Error::refused(format!(
            "cache {name}: dirty data of {} would be lost; bring it home with `tenuto recover \
             --cache {name}`, or by `tenuto drain` before the daemon is stopped",
            dirty.join(", ")
        ))
        .about(name));
    }
    let overlay = |it: &&VolumeSnapshot| it.policy == Policy::Ephemeral && it.dirty_bytes > 0;
    let overlays = listed(found.volumes.iter().filter(overlay).collect());
    match overlays.is_empty() || command.discard_overlays {
        true => Ok(()),
        false => Err(Error::refused(format!(
            "cache {name}: what ephemeral volumes have written would be lost, of {}; force it with \
             --discard-overlays",
            overlays.join(", ")
        ))
        .about(name)),
    }
}

fn stage_path(places: &Places, superblock: &Superblock) -> PathBuf {
    places
        .stage_dir
        .join(format!("tenuto-{}", superblock.cache))
}

/// The file is not asked for the size of a cache that is there, but should tell the truth.
fn other_size(config: &Config, path: &Path, size_bytes: u64) -> Option<String> {
    let same = config.cache.path == std::path::absolute(path).ok()?;
    let other = same && config.cache.size_bytes != size_bytes;
    other.then(|| {
        format!(
            "{}: says size = \"{}\" for it; write \"{}\"",
            config.path.display(),
            show_size(config.cache.size_bytes),
            show_size(size_bytes)
        )
    })
}
