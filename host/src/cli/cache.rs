//! `tenuto cache create|inspect|verify`, and the way to `scrub` and `resize`.
//!
//! Always true: nothing that somebody may still want is overwritten without a word that says
//! so, and the word is checked before the first byte changes.

use super::offline::{self, Found};
use super::progress::{self, Pending, Progress, Work};
use super::{Context, arguments, output};
use crate::cachedev::{self, NewCache};
use crate::config::keys::{CACHE_BYTES_MAX, CACHE_BYTES_MIN};
use crate::config::units::{human_bytes, human_seconds, show_size};
use crate::config::{Config, DEFAULT_PATH, locate};
use crate::error::{Error, Kind, Result, cause};
use crate::files::Files;
use crate::inspect;
use crate::signature;
use crate::target::{How, Target};
use clap::{Args, Subcommand};
use engine::engine::{device_bytes, format_cache, geometry_for};
use engine::format::superblock::Superblock;
use engine::snapshot::VolumeSnapshot;
use engine::types::Uuid;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make an empty cache in a file or on a block device
    Create(Create),
    /// Show what a cache is and which volumes have dirty data in it
    Inspect(Look),
    /// Check what a start would find; ends with code 5 on damage
    Verify(Look),
    /// Compare all that is in a cache with its checksums, beside the guests of a running daemon;
    /// ends with code 5 on damage
    Scrub(Look),
    /// Change the size of a cache without dirty data, while no daemon runs on it
    Resize(super::relayout::Resize),
}

#[derive(Debug, Args)]
pub struct Create {
    /// A file, which is made, or a block device
    path: PathBuf,
    /// Size of a cache file; of a block device, the part to use
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Overwrite the device, dirty data of volumes included
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub struct Look {
    /// File or block device of the cache
    path: PathBuf,
}

pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Create(command) => create(context, &command),
        Command::Inspect(command) => inspect_cache(context, &command.path),
        Command::Verify(command) => verify(context, &command.path, "verify"),
        Command::Scrub(command) => super::scrub::run(context, &command.path),
        Command::Resize(command) => super::relayout::run(context, &command),
    }
}

fn create(context: &Context, command: &Create) -> Result<()> {
    let path = &command.path;
    let asked = command
        .size
        .as_deref()
        .map(|size| parse_asked_size("--size", size))
        .transpose()?;
    let configured = configuration(context)?;
    let size = asked.or_else(|| {
        configured
            .as_ref()
            .and_then(|config| size_for(config, path))
    });
    let stage_dir = stage_dir(configured.as_ref());
    let existing = std::fs::metadata(path)
        .map(|meta| meta.len())
        .ok()
        .filter(|bytes| *bytes > 0);
    let is_device = is_block_device(path);
    if size.is_none() && existing.is_none() && !is_device {
        return Err(Error::usage(
            "--size: is missing; write it as in --size 64GiB",
        ));
    }
    let name = path.display().to_string();
    let mut progress = Progress::new(context, work("create", &name, "allocated"), None);
    let created = make(path, size, command.force, &stage_dir, Some(&mut progress))?;
    progress.finish();
    let document = json!({
        "path": name,
        "uuid": created.uuid.to_string(),
        "size_bytes": created.bytes,
        "log_bytes": created.log_bytes,
    });
    context.output().confirmation(&document, || {
        format!(
            "{name}: cache of {}, {}\n",
            human_bytes(created.log_bytes),
            created.uuid
        )
    })
}

/// `what` is what the size was given as.
pub fn parse_asked_size(what: &str, text: &str) -> Result<u64> {
    let bytes = arguments::size(what, text)?;
    if bytes > CACHE_BYTES_MAX {
        let most = show_size(CACHE_BYTES_MAX);
        return Err(Error::usage(format!(
            "{what}: {text} is too large; write at most {most}"
        )));
    }
    if bytes < CACHE_BYTES_MIN {
        let least = show_size(CACHE_BYTES_MIN);
        return Err(Error::usage(format!(
            "{what}: {text} is too small; write at least {least}"
        )));
    }
    Ok(bytes)
}

/// The configuration, where there is one; a wrong one is an error all the same.
pub fn configuration(context: &Context) -> Result<Option<Config>> {
    let path = locate(context.common.config.as_deref());
    if path == Path::new(DEFAULT_PATH) && !path.exists() {
        return Ok(None);
    }
    Config::load(&path).map(Some)
}

/// The configured size, if it was written down and for this path.
fn size_for(config: &Config, path: &Path) -> Option<u64> {
    let same = config.cache.path == std::path::absolute(path).ok()?;
    (same && config.cache.sources.contains_key("size")).then_some(config.cache.size_bytes)
}

pub fn stage_dir(config: Option<&Config>) -> PathBuf {
    config.map_or("/dev/shm".into(), |config| config.host.stage_dir.clone())
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

struct Created {
    uuid: Uuid,
    bytes: u64,
    log_bytes: u64,
}

/// Makes the cache that a configuration names and that is not there yet.
pub fn create_missing(config: &Config) -> Result<()> {
    let path = &config.cache.path;
    match std::fs::metadata(path) {
        Ok(_) => return refuse_foreign(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(inspect::unreadable(path, &error)),
    }
    if let Some(parent) = path
        .parent()
        .filter(|_| !config.cache.sources.contains_key("path"))
    {
        std::fs::create_dir_all(parent).map_err(|error| {
            Error::failed(format!(
                "{}: {}; make it first, or name a file that this user may make by [cache] path",
                parent.display(),
                cause(&error)
            ))
        })?;
    }
    let size = config.cache.size_bytes;
    let created = make(path, Some(size), false, &config.host.stage_dir, None)?;
    tracing::info!(
        "cache {}: made, {}",
        path.display(),
        human_bytes(created.bytes)
    );
    Ok(())
}

/// A daemon is not started on something that is no cache. One that is damaged, or of another
/// version, is refused by whoever opens it.
fn refuse_foreign(path: &Path) -> Result<()> {
    let Err(why) = inspect::superblock_at(path)? else {
        return Ok(());
    };
    if !why.is_foreign() {
        return Ok(());
    }
    let name = path.display();
    let target = Target::open(path, How::default()).ok();
    let found = target.and_then(|target| signature::foreign(&target).ok().flatten());
    let message = match found {
        Some(found) => format!("cache {name}: holds {found}; name another file or device"),
        None => format!("cache {name}: {why}; make one with `tenuto cache create {name}`"),
    };
    Err(Error::new(Kind::Config, message).about(name.to_string()))
}

fn make(
    path: &Path,
    size: Option<u64>,
    force: bool,
    stage_dir: &Path,
    progress: Option<&mut Progress>,
) -> Result<Created> {
    let mut tell = offline::tell;
    let claimed = cachedev::claim(path, force, &mut offline::patience(&mut tell))
        .map_err(offline::from_fault)?;
    let stale_stage = match refuse_dirty(path, &claimed, force, stage_dir) {
        Ok(stage) => stage,
        Err(error) => {
            claimed.abandon();
            return Err(error);
        }
    };
    let wanted = size.unwrap_or(claimed.target.size_bytes);
    let geometry = match geometry_for(wanted) {
        Ok(geometry) => geometry,
        Err(why) => {
            claimed.abandon();
            return Err(Error::usage(format!("cache {}: {why}", path.display())));
        }
    };
    let bytes = if claimed.target.block_device {
        device_bytes(geometry)
    } else {
        wanted
    };
    let target = match progress {
        Some(progress) => {
            let left = || {
                let left_bytes = bytes.saturating_sub(allocated_bytes(path));
                Some(Pending::new(left_bytes, 0, None))
            };
            progress::watch(progress, left, || claimed.allocate(bytes))
        }
        None => claimed.allocate(bytes),
    };
    let target = target.map_err(offline::from_fault)?;
    let uuid = Uuid(*uuid::Uuid::new_v4().as_bytes());
    let mut files = Files::new(target);
    format_cache(&mut files, uuid, geometry).map_err(offline::open_error)?;
    if let Some(stage) = stale_stage {
        // It belongs to a cache that is gone; left behind it would only take memory.
        let _ = std::fs::remove_file(stage);
    }
    Ok(Created {
        uuid,
        bytes,
        log_bytes: geometry.log_bytes(),
    })
}

/// What the file system has set aside for a file so far; all of it for a device.
pub fn allocated_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path);
    found.map_or(0, |found| match is_block_device(path) {
        true => u64::MAX,
        false => found.blocks() * 512,
    })
}

/// Work on a cache, for its progress.
pub fn work(verb: &'static str, path: &str, counted: &'static str) -> Work {
    Work {
        verb,
        object: path.to_owned(),
        counted,
    }
}

/// Refuses to overwrite what is not blank and not a clean cache. Returns the stage file of the
/// cache that is overwritten.
fn refuse_dirty(
    path: &Path,
    claimed: &NewCache,
    force: bool,
    stage_dir: &Path,
) -> Result<Option<PathBuf>> {
    if claimed.blank {
        return Ok(None);
    }
    let name = path.display();
    let refuse = |what: String| {
        Err(
            Error::refused(format!("cache {name}: {what}, or force it with --force"))
                .about(name.to_string()),
        )
    };
    let superblock = match inspect::superblock(&claimed.target)? {
        Ok(superblock) => superblock,
        Err(_) if force => return Ok(None),
        Err(why) => {
            let bytes = human_bytes(claimed.target.size_bytes);
            return refuse(format!(
                "holds {bytes} of data that would be lost ({why}); name another place"
            ));
        }
    };
    let stage = stage_dir.join(format!("tenuto-{}", superblock.cache));
    if force {
        return Ok(Some(stage));
    }
    let files = Files::new(reopened(&claimed.target)?);
    let found = match offline::peek(&files, &superblock, stage_dir) {
        Ok(found) => found,
        Err(error) => {
            return refuse(format!(
                "is a cache that does not open ({error}); see cache verify"
            ));
        }
    };
    let dirty: Vec<String> = found.dirty().into_iter().map(named_bytes).collect();
    if dirty.is_empty() {
        return Ok(Some(stage));
    }
    refuse(format!(
        "dirty data of {}{} would be lost; bring it home with `tenuto recover --cache {name}`",
        dirty.join(", "),
        last_written(&claimed.target)
    ))
}

fn named_bytes(volume: &VolumeSnapshot) -> String {
    let (name, bytes) = (&volume.name, volume.dirty_bytes);
    format!("{name} ({bytes} bytes, {})", human_bytes(bytes))
}

/// How old the data is: nothing was written since then. A device keeps no such time.
fn last_written(target: &Target) -> String {
    let written = target.file.metadata().and_then(|meta| meta.modified());
    match written.map(|written| written.elapsed().unwrap_or_default()) {
        Ok(age) if !target.block_device => {
            format!(", last written {} ago,", human_seconds(age.as_secs()))
        }
        _ => String::new(),
    }
}

/// The same open file under a second handle: the lock stays one.
pub fn reopened(target: &Target) -> Result<Target> {
    target
        .shared()
        .map_err(|error| Error::failed(format!("{}: {}", target.name(), cause(&error))))
}

/// The superblock of a cache that somebody may use, or the word of what would be right.
pub fn superblock_of(path: &Path) -> Result<Superblock> {
    let name = path.display();
    inspect::superblock_at(path)?.map_err(|why| {
        let right = format!("name a cache, or make one with `tenuto cache create {name}`");
        let message = format!("cache {name}: {why}; {right}");
        Error::new(why.kind(), message).about(name.to_string())
    })
}

fn inspect_cache(context: &Context, path: &Path) -> Result<()> {
    let superblock = superblock_of(path)?;
    let configured = configuration(context)?;
    let mut progress = offline::tell;
    let target = match cachedev::open(path, &mut offline::patience(&mut progress)) {
        Ok(target) => target,
        Err(fault) if fault.kind == crate::fault::Kind::InUse => {
            let document = inspect::superblock_json(path, &superblock, Some(&fault.message));
            return context.output().document(&document, || {
                superblock_text(path, &superblock) + &format!("in use     {}\n", fault.message)
            });
        }
        Err(fault) => return Err(offline::from_fault(fault)),
    };
    let mut files = Files::new(target);
    let clean = engine::engine::inspect(&mut files).map_err(offline::open_error)?;
    let found = offline::peek(&files, &superblock, &stage_dir(configured.as_ref()))?;
    let clean_bytes = clean.blocks_fill * engine::types::BLOCK_BYTES;
    let mut document = inspect::superblock_json(path, &superblock, None);
    document["recovery"] = report_json(&found);
    document["clean"] = json!({ "segments": clean.segments_fill, "bytes": clean_bytes });
    document["volumes"] = Value::Array(found.volumes.iter().map(inspect::volume_json).collect());
    context.output().document(&document, || {
        found_text(path, &superblock, &found, clean_bytes)
    })
}

/// Checks what a start would find, and every block of the log that something refers to.
pub fn verify(context: &Context, path: &Path, verb: &'static str) -> Result<()> {
    let name = path.display().to_string();
    let superblock = superblock_of(path)?;
    let configured = configuration(context)?;
    let mut tell = offline::tell;
    let target = cachedev::open(path, &mut offline::patience(&mut tell));
    let mut files = Files::new(target.map_err(offline::from_fault)?);
    let segment_bytes = superblock.geometry.segment_bytes();
    let mut progress = Progress::new(context, work(verb, &name, "log read"), None);
    let report = engine::engine::verify(&mut files, &mut |segments, total| {
        progress.set(segments * segment_bytes, Some(total * segment_bytes));
    });
    progress.finish();
    let report = report.map_err(offline::open_error)?;
    let found = offline::peek(&files, &superblock, &stage_dir(configured.as_ref()))?;
    let mut damage = found.report.damage.clone();
    damage.extend(
        report
            .damage
            .iter()
            .filter(|line| !found.report.damage.contains(line))
            .cloned(),
    );
    if let Some(first) = damage.first() {
        let count = damage.len();
        let message = format!(
            "cache {name}: {first} ({count} in all); serve goes on without these blocks, \
             `tenuto status -x` names the volumes"
        );
        return Err(Error::new(Kind::Damaged, message).about(name));
    }
    let document = json!({
        "path": name,
        "ok": true,
        "segments": report.segments,
        "blocks": report.blocks,
        "bad_blocks": report.bad_blocks,
        "clean_blocks": report.clean_blocks,
        "bad_clean_blocks": report.bad_clean_blocks,
        "recovery": report_json(&found),
    });
    context.output().confirmation(&document, || {
        let (segments, blocks) = (report.segments, report.blocks);
        let tail = match found.report.tail_bytes_discarded {
            0 => String::new(),
            bytes => format!(", {} of torn tail that no flush covers", human_bytes(bytes)),
        };
        let clean = match (report.clean_blocks, report.bad_clean_blocks) {
            (0, _) => String::new(),
            (all, 0) => format!(", {all} clean ones good"),
            (all, bad) => format!(", {bad} of {all} clean ones to be read from origins again"),
        };
        format!("cache {name}: no damage in {blocks} blocks of {segments} segments{clean}{tail}\n")
    })
}

pub fn report_json(found: &Found) -> Value {
    let report = &found.report;
    json!({
        "stage_found": report.stage_found,
        "segments_scanned": report.segments_scanned,
        "records_replayed": report.records_replayed,
        "entries_replayed": report.entries_replayed,
        "tail_bytes_discarded": report.tail_bytes_discarded,
        "damage": report.damage,
    })
}

fn superblock_text(path: &Path, superblock: &Superblock) -> String {
    let geometry = superblock.geometry;
    output::fields(&[
        ("cache", path.display().to_string()),
        ("uuid", superblock.cache.to_string()),
        ("log", human_bytes(geometry.log_bytes())),
        (
            "segments",
            format!(
                "{} of {}",
                geometry.segments,
                human_bytes(geometry.segment_bytes())
            ),
        ),
        (
            "flushed small writes",
            match superblock.inline_records {
                true => "in one block".into(),
                false => "in two blocks, until it is resized".into(),
            },
        ),
    ])
}

fn found_text(path: &Path, superblock: &Superblock, found: &Found, clean_bytes: u64) -> String {
    let report = &found.report;
    let mut text = superblock_text(path, superblock);
    text.push_str(&output::fields(&[
        (
            "stage",
            found
                .stage
                .as_ref()
                .map_or("none".into(), |path| path.display().to_string()),
        ),
        (
            "recovery",
            format!(
                "{} records replayed, {} of torn tail discarded",
                report.records_replayed,
                human_bytes(report.tail_bytes_discarded)
            ),
        ),
        (
            "clean",
            format!("{} of base images", human_bytes(clean_bytes)),
        ),
        (
            "damage",
            if report.damage.is_empty() {
                "none"
            } else {
                "see below"
            }
            .into(),
        ),
    ]));
    text.extend(report.damage.iter().map(|line| format!("  {line}\n")));
    if !found.volumes.is_empty() {
        let rows: Vec<Vec<String>> = found
            .volumes
            .iter()
            .map(|volume| {
                vec![
                    volume.name.clone(),
                    volume.policy.name().into(),
                    human_bytes(volume.size_bytes),
                    human_bytes(volume.dirty_bytes),
                    volume.origin.clone(),
                ]
            })
            .collect();
        text.push('\n');
        text.push_str(&output::table(
            &["VOLUME", "POLICY", "SIZE", "DIRTY", "ORIGIN"],
            &rows,
            &[2, 3],
        ));
    }
    text
}
