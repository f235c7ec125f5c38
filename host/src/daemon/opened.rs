//! The files of a volume as the engine gets them: opened, locked, and their ledger settled.
//!
//! Owns what is opened how, and what the engine is told of it. Always true: a journal that is
//! pending is finished before the volume joins, unless the log may have what it has; an image that
//! another host may still write is read without its lock, and nothing that lies beside it is
//! looked at. Deliberately absent: where a volume stands that does not join ([`super::held`]).

use super::hold::refused;
use super::places::Ledgers;
use super::{SanSettings, VolumeError, VolumeSettings, host, identity, open};
use crate::fault::Fault;
use crate::files::Files;
use crate::lock::Patience;
use crate::origin::file::{self, Access, OpenVolume};
use crate::origin::mapped::ImageShown;
use crate::origin::san::Params;
use engine::engine::{Otherwise, Settled, inspect_origin};
use engine::event::{Device, Tuning, VolumeSpec};
use engine::origin::Map;
use engine::types::{DestageMode, Policy, Uuid, VolumeId};

/// Why a volume joins, where that is not to serve guests as its settings say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Joining {
    /// Only to be destaged; no client is shown it.
    pub(super) orphan: bool,
    /// What the ledger says is dirty elsewhere is given up.
    pub(super) accept_loss: bool,
    /// What was in a stage that is gone is given up.
    pub(super) without_stage: bool,
    /// Only to be committed: alone, and with its image open for writing.
    pub(super) commit: bool,
    /// Its image was changed by us just now.
    pub(super) renewed: bool,
    /// What the log has of it goes to the image that is there, whichever that is.
    pub(super) overwrite: bool,
    /// A pending journal is finished before the volume is served.
    pub(super) journal_first: bool,
}

impl Joining {
    fn otherwise(self) -> Otherwise {
        match (self.overwrite, self.accept_loss) {
            (true, _) => Otherwise::KeepLog,
            (false, true) => Otherwise::KeepImage,
            (false, false) => Otherwise::Refuse,
        }
    }
}

/// The files of a volume, locked, and what its ledger says.
pub(super) type Opened = Result<(OpenVolume, Settled), VolumeError>;

/// The number of a volume among files that hold no other.
const ALONE: VolumeId = VolumeId(0);

/// Locks the files of a volume and finishes what its journal says, unless the log may have that as
/// well; a reader of the image does it as its writer first.
pub(super) fn open_settled(
    settings: &VolumeSettings,
    ledgers: &Ledgers,
    joining: Joining,
) -> Opened {
    if settings.unproved {
        return open_unproved(settings, ledgers);
    }
    let mut joining = joining;
    let reader = settings.read_only || settings.policy == Policy::Ephemeral;
    if !reader || joining.commit {
        return open_origin(settings, ledgers, Access::Write, joining);
    }
    joining.journal_first = true;
    match open_origin(settings, ledgers, Access::Read, joining) {
        Err(VolumeError::Unfinished(why)) => {
            tracing::info!("{why}; finishing it");
            let (files, _) = open_origin(settings, ledgers, Access::Bytes, joining)?;
            files.close();
            open_origin(settings, ledgers, Access::Read, joining)
        }
        Ok((files, _)) if files.is_guarded() => {
            // A commit was cut short before it was decided: only other programs mind.
            files.close();
            let cleared = open_origin(settings, ledgers, Access::Bytes, joining);
            match cleared {
                Ok((files, _)) => files.close(),
                Err(error) => tracing::warn!("{error}; the guard of its image stays"),
            }
            open_origin(settings, ledgers, Access::Read, joining)
        }
        opened => opened,
    }
}

/// Opens the image that another host may still write, and nothing that lies beside it.
fn open_unproved(settings: &VolumeSettings, ledgers: &Ledgers) -> Opened {
    let request = file::Request {
        path: settings.origin.clone(),
        access: Access::Unlocked,
        format: settings.format,
        allow: ledgers.images.allow(&settings.origin),
        journal_place: None,
        ledger_place: None,
        quiet: settings.origin_quiet,
        create: false,
        keeps_end: false,
        epoch: None,
    };
    let mut files = file::open(&request, &mut Patience::none())?;
    files.san = settings.san.map(delays);
    let unproved = true;
    let settled = Settled {
        unproved,
        ..Settled::default()
    };
    Ok((files, settled))
}

fn delays(san: SanSettings) -> Params {
    Params {
        latency_ns: san.latency.as_nanos() as u64,
        iops: u64::from(san.iops.unwrap_or(0)),
        bytes_per_second: san.bandwidth_bytes.unwrap_or(0),
        ..Params::default()
    }
}

fn open_origin(
    settings: &VolumeSettings,
    ledgers: &Ledgers,
    access: Access,
    joining: Joining,
) -> Opened {
    let reader = access == Access::Read;
    if !reader && settings.journal_dir.is_none() {
        ledgers.make().map_err(|error| {
            let (name, path) = (&settings.name, ledgers.place.display());
            VolumeError::Origin(format!("volume {name}: cannot make {path}: {error}"))
        })?;
    }
    let request = file::Request {
        path: settings.origin.clone(),
        access,
        format: settings.format,
        allow: ledgers.images.allow(&settings.origin),
        journal_place: settings.journal_dir.clone(),
        ledger_place: Some(ledgers.place.clone()),
        quiet: settings.origin_quiet,
        create: false,
        keeps_end: joining.commit,
        epoch: settings.epoch,
    };
    let mut progress = |waiting: &str| tracing::info!("{waiting}");
    let mut patience = Patience {
        wait: open::LATE_WRITES_WAIT,
        progress: &mut progress,
    };
    let opened = file::open(&request, &mut patience)?;
    let journal = opened.journal_path.is_some();
    let first = joining.journal_first || opened.has_torn_header(&request);
    let mut files = Files::without_cache();
    files.insert_volume(ALONE, opened);
    if reader {
        refuse_unfinished(&mut files, &settings.name)?;
    }
    let cache = (!first).then_some(ledgers.cache);
    let mut settled = files
        .settle(ALONE, joining.otherwise(), cache, &mut patience)
        .map_err(|error| refused(&settings.name, error, true))?;
    let mut opened = files.remove_volume(ALONE).expect("was just inserted");
    open_below(&mut opened, settings, &request, &mut settled, &mut patience)?;
    files.insert_volume(ALONE, opened);
    let owned = matches!(settings.policy, Policy::WriteBack | Policy::Ephemeral);
    if owned && !reader && (journal || settings.policy == Policy::WriteBack) {
        let beside = [Device::Ledger(ALONE), Device::Journal(ALONE)];
        for device in beside.into_iter().take(if journal { 2 } else { 1 }) {
            files.ensure(device).map_err(|_| {
                let (name, origin) = (&settings.name, settings.origin.display());
                VolumeError::Origin(format!(
                    "volume {name}: cannot make a ledger and a journal beside {origin}; name a \
                     place with `journal`"
                ))
            })?;
        }
    }
    let mut opened = files.remove_volume(ALONE).expect("was just inserted");
    opened.san = settings.san.map(delays);
    Ok((opened, settled))
}

fn unread_below(settings: &VolumeSettings) -> VolumeError {
    let (name, image) = (&settings.name, settings.origin.display());
    VolumeError::Origin(format!(
        "volume {name}: the files below {image} cannot be looked at; try again when their storage \
         answers"
    ))
}

/// Opens the files below an image that is written, when what was pending beside it is settled. They
/// were not open when its first file was looked at.
fn open_below(
    files: &mut OpenVolume,
    settings: &VolumeSettings,
    request: &file::Request,
    settled: &mut Settled,
    patience: &mut Patience,
) -> Result<(), VolumeError> {
    if !settled.journal_left && request.access != Access::Read {
        files.clear_guard()?;
    }
    files.open_below(request, !settled.journal_left, patience)?;
    let written = files.mapped.as_ref().filter(|mapped| mapped.is_written());
    if let Some(mapped) = files
        .mapped
        .as_ref()
        .filter(|_| settings.policy == Policy::Ephemeral)
    {
        let stat = match written {
            Some(_) => mapped.stat_to_read(),
            None => mapped.stat_to_write(),
        };
        settled.image_otherwise = stat.ok().and_then(|stat| stat.image);
    }
    if let Some(image) = &mut settled.image {
        // Without it a file below that was changed later would look as it was.
        let below = written.map(|mapped| mapped.print_below()).transpose();
        image.below = below.map_err(|_| unread_below(settings))?.unwrap_or(0);
    }
    Ok(())
}

/// A journal that was left in the middle is no reader's to finish.
fn refuse_unfinished(files: &mut Files, name: &str) -> Result<(), VolumeError> {
    let info = inspect_origin(files, ALONE).map_err(|error| refused(name, error, true))?;
    match info.is_some_and(|info| matches!(info.journal, Some(Ok(_)))) {
        false => Ok(()),
        true => Err(VolumeError::Unfinished(format!(
            "volume {name}: the journal of its image is not finished"
        ))),
    }
}

pub(super) fn spec(
    settings: &VolumeSettings,
    files: &OpenVolume,
    chain: &[Uuid],
    joining: Joining,
    group_members: u32,
) -> VolumeSpec {
    // The times of an image that was written a moment ago may say nothing.
    let identity = || match chain.first() {
        _ if joining.renewed => Some(host::fresh()),
        Some(top) => Some(*top),
        None => identity::of(files),
    };
    let reads = files.origin.read_only() && !settings.unproved;
    VolumeSpec {
        name: settings.name.clone(),
        origin: files.origin.name(),
        new_uuid: host::fresh(),
        policy: settings.policy,
        size_bytes: files.size_bytes(),
        read_only: settings.read_only,
        base_layer: reads.then(identity).flatten(),
        journal_possible: files.journal.is_some(),
        commit: joining.commit,
        storage: identity::storage(&settings.origin, files),
        group: settings.group.clone(),
        tuning: Tuning {
            // A commit is whole or not at all, however the volume would be destaged.
            destage: match joining.commit {
                true => DestageMode::Atomic,
                false => settings.destage,
            },
            ..tuning(settings, group_members)
        },
    }
}

/// Of an image that is not raw: what is told of it, the names of its files, and how its bytes are
/// found.
pub(super) fn described(files: &OpenVolume) -> Result<Described, Fault> {
    let Some(mapped) = &files.mapped else {
        return Ok((None, Vec::new(), None));
    };
    let chain = identity::of_chain(mapped);
    let (tables, layers) = identity::names(mapped, &chain);
    let map = mapped.map(tables, layers)?;
    Ok((Some(mapped.shown()), chain, Some(map)))
}

pub(super) type Described = (Option<ImageShown>, Vec<Uuid>, Option<Box<dyn Map>>);

pub(super) fn tuning(settings: &VolumeSettings, group_members: u32) -> Tuning {
    Tuning {
        write_cache: settings.write_cache,
        destage_after_ms: settings.destage_after.map(|age| age.as_millis() as u64),
        destage: settings.destage,
        dirty_limit_bytes: settings.dirty_limit_bytes,
        flow: settings.flow,
        origin_queue_depth: settings.origin_queue_depth,
        admission: settings.admission,
        origin_timeout_ms: settings
            .origin_timeout
            .map(|limit| limit.as_millis() as u64),
        overlay_timeout_ms: settings.overlay_timeout.as_millis() as u64,
        overlay_ram_bytes: settings.overlay_ram_bytes,
        reset_on: settings.reset_on,
        share: settings.share,
        group_members,
    }
}
