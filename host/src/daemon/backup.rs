//! Backup windows of a daemon, and the checkpoints of its volumes.
//!
//! ```text
//! quiesce:  (begin checkpoints) ─▶ image rests, window opens ─▶ backups are shown
//! resume:   window is cut ─▶ image is written again ─▶ checkpoints are confirmed, or abandoned
//! ```
//!
//! Always true: one window for a volume and its group, in which all of them stand at one cut; a
//! checkpoint is confirmed only after the engine has said that the image rested all the time; a
//! volume that joins is marked from its first change on, or its checkpoints are lost on media
//! before. A volume of a cluster has none, because another host may write it. Deliberately absent:
//! the bytes of both.

use super::snapshot::check_policy;
use super::volumes::Entry;
use super::{Daemon, Settings, VolumeError, VolumeSettings, host};
use crate::backup::bitmap::Bitmap;
use crate::backup::chain::{Chain, Origin, Shown};
use crate::backup::file::{ImageSeen, Reason};
use crate::backup::live::{Live, Place as LivePlace};
use crate::backup::source::Source;
use crate::backup::{Backup, Window};
use crate::origin::Place;
use crate::origin::chain::Link;
use crate::origin::mapped::ImageShown;
use engine::event::Refusal;
use engine::types::{Policy, Uuid, VolumeId};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

const CHECKSUM: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc64Nvme;

pub(super) struct Backups {
    state_dir: PathBuf,
    place: LivePlace,
    clustered: bool,
    /// Locks, because administrators come on several threads; the data path takes none of them.
    chains: Mutex<BTreeMap<String, Known>>,
    windows: Mutex<BTreeMap<String, Arc<Opened>>>,
}

struct Known {
    chain: Chain,
    origin: PathBuf,
}

/// A window, and whose it is.
struct Opened {
    window: Arc<Window>,
    members: Vec<String>,
    phase: Mutex<Phase>,
    checkpoint: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its images come to rest.
    Opening,
    /// The same, and an order has ended the rest: it is never open.
    GivenUp,
    Open,
    Ending,
}

/// What is told of the checkpoints of a volume.
#[derive(Clone, Debug)]
pub struct CheckpointShown {
    pub shown: Shown,
    /// What has changed since, if that is known.
    pub changed_bytes: Option<u64>,
}

/// A file as its name leads to it; `None` where that cannot be told.
fn seen(origin: &Path) -> Option<ImageSeen> {
    let Ok(Place::File(path)) = Place::parse(origin) else {
        return Some(ImageSeen::default());
    };
    let meta = fs::metadata(path).ok()?;
    if !meta.is_file() {
        return Some(ImageSeen::default());
    }
    let ns = |seconds: i64, ns: i64| (seconds as u64).wrapping_mul(1_000_000_000) + ns as u64;
    Some(ImageSeen {
        below: 0,
        inode: meta.ino(),
        size_bytes: meta.len(),
        mtime_ns: ns(meta.mtime(), meta.mtime_nsec()),
        ctime_ns: ns(meta.ctime(), meta.ctime_nsec()),
    })
}

/// A checksum over what lies below an image.
fn below(image: Option<&ImageShown>) -> u64 {
    let mut digest = crc_fast::Digest::new(CHECKSUM);
    for path in image.map_or(&[][..], |image| &image.chain).iter().skip(1) {
        let ImageSeen {
            inode,
            size_bytes,
            mtime_ns,
            ..
        } = seen(path).unwrap_or_default();
        for number in [inode, size_bytes, mtime_ns] {
            digest.update(&number.to_le_bytes());
        }
    }
    digest.finalize()
}

fn name_of(origin: &Path) -> u64 {
    crc_fast::checksum(CHECKSUM, origin.as_os_str().as_encoded_bytes())
}

fn failed(volume: &str, error: &io::Error) -> VolumeError {
    VolumeError::Origin(format!(
        "volume {volume}: its checkpoints cannot be read or written: {error}; state-dir and \
         stage-dir must have room and be writable"
    ))
}

/// What is told where no command waits for it.
fn tell(volume: &str, done: io::Result<()>) {
    if let Err(error) = done {
        tracing::error!(volume = %volume, "{}", failed(volume, &error));
    }
}

impl Backups {
    pub fn new(settings: &Settings, cache: Uuid) -> Backups {
        Backups {
            state_dir: settings.state_dir.clone(),
            place: LivePlace {
                stage_dir: settings.stage_dir.clone(),
                cache,
                boot: host::boot(),
            },
            clustered: settings.clustered,
            chains: Mutex::default(),
            windows: Mutex::default(),
        }
    }

    fn chains(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.chains.lock().expect("no holder of this lock panics")
    }

    fn windows(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Opened>>> {
        self.windows.lock().expect("no holder of this lock panics")
    }

    /// Before an image is opened, which may change its times. What no volume here has is lost: this
    /// daemon does not see what is done with it.
    pub fn load_all(&self, own: &[VolumeSettings]) {
        own.iter().for_each(|settings| self.load(settings));
        let all = fs::read_dir(self.state_dir.join("checkpoints"));
        let names = all.into_iter().flatten().flatten().map(|it| it.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        for name in names.filter(|name| own.iter().all(|it| it.name != *name)) {
            let reason = match self.clustered {
                true => Reason::Cluster,
                false => Reason::Unnamed,
            };
            tell(&name, self.lose_unloaded(&name, reason));
        }
    }

    fn lose_unloaded(&self, name: &str, reason: Reason) -> io::Result<()> {
        Chain::load_lost(&self.state_dir, self.place.clone(), name, reason).map(drop)
    }

    /// The same of one volume, if it has checkpoints and its image can be looked at.
    pub fn load(&self, settings: &VolumeSettings) {
        if self.chains().contains_key(&settings.name) || self.is_clusters(settings) {
            return;
        }
        let directory = Chain::directory(&self.state_dir, &settings.name);
        if directory.is_dir()
            && let Some(seen) = seen(&settings.origin)
        {
            // Where it fails it is tried again, and told, when the volume joins.
            let _ = self.load_seen(settings, seen);
        }
    }

    fn is_clusters(&self, settings: &VolumeSettings) -> bool {
        self.clustered && settings.is_clustered()
    }

    fn load_seen(&self, settings: &VolumeSettings, seen: ImageSeen) -> io::Result<()> {
        let name = &settings.name;
        let origin = Origin {
            name: name_of(&settings.origin),
            seen,
        };
        let chain = Chain::load(&self.state_dir, self.place.clone(), name, origin)?;
        let origin = settings.origin.clone();
        self.chains().insert(name.clone(), Known { chain, origin });
        Ok(())
    }

    /// The bitmaps of a volume that joins, whose image is open.
    pub fn joins(
        &self,
        settings: &VolumeSettings,
        image: Option<&ImageShown>,
    ) -> Result<Vec<Arc<Live>>, VolumeError> {
        let name = &settings.name;
        let error = |error: io::Error| failed(name, &error);
        if !Chain::directory(&self.state_dir, name).is_dir() {
            return Ok(Vec::new());
        }
        if self.is_clusters(settings) {
            self.lose_unloaded(name, Reason::Cluster).map_err(error)?;
            return Ok(Vec::new());
        }
        if !self.chains().contains_key(name) {
            let seen = seen(&settings.origin).unwrap_or_default();
            self.load_seen(settings, seen).map_err(error)?;
        }
        let mut chains = self.chains();
        let known = chains.get_mut(name).expect("it was loaded");
        known.chain.stands_on(below(image)).map_err(error)?;
        Ok(known.chain.lives())
    }

    /// Does something with the checkpoints of a volume, which it has from then on.
    fn with<T>(
        &self,
        entry: &Entry,
        act: impl FnOnce(&mut Chain) -> io::Result<T>,
    ) -> Result<T, VolumeError> {
        let settings = &entry.settings;
        let error = |error: io::Error| failed(&settings.name, &error);
        if !self.chains().contains_key(&settings.name) {
            let seen = seen(&settings.origin).unwrap_or_default();
            self.load_seen(settings, seen).map_err(error)?;
            let mut chains = self.chains();
            let known = chains.get_mut(&settings.name).expect("it was loaded");
            let below = below(entry.image.as_ref());
            known.chain.stands_on(below).map_err(error)?;
        }
        let mut chains = self.chains();
        let known = chains.get_mut(&settings.name).expect("it was loaded");
        act(&mut known.chain).map_err(error)
    }

    pub fn resizes(&self, name: &str, old_bytes: u64, new_bytes: u64) {
        if let Some(known) = self.chains().get(name) {
            known.chain.resizes(old_bytes, new_bytes);
        }
    }

    /// The volume goes on in other files with the same disk.
    pub fn image_is(&self, settings: &VolumeSettings, image: Option<&ImageShown>) {
        if let Some(known) = self.chains().get_mut(&settings.name) {
            let below = below(image);
            let seen = seen(&settings.origin).unwrap_or_default();
            let done = known.chain.image_is(ImageSeen { below, ..seen });
            tell(&settings.name, done);
        }
    }

    /// Clients that read a backup of this volume.
    pub fn readers(&self, name: &str) -> u64 {
        let windows = self.windows();
        windows.get(name).map_or(0, |it| it.window.readers(name))
    }

    /// A window that is none of this host's any more.
    pub fn forget_window(&self, name: &str) {
        if let Some(opened) = self.windows().remove(name) {
            opened.window.cut();
        }
    }

    /// The volume is removed, and with it its checkpoints.
    pub fn forget(&self, name: &str) {
        self.forget_window(name);
        let removed = match self.chains().remove(name) {
            Some(mut known) => known.chain.remove_all(),
            None => {
                self.lose_unloaded(name, Reason::Unnamed).and_then(|()| {
                    match fs::remove_dir_all(Chain::directory(&self.state_dir, name)) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                        _ => Ok(()),
                    }
                })
            }
        };
        tell(name, removed);
    }

    /// What changed is not known any more.
    pub fn lose(&self, name: &str, reason: Reason) {
        let lost = match self.chains().get_mut(name) {
            Some(known) => known.chain.lose(reason),
            None => self.lose_unloaded(name, reason),
        };
        tell(name, lost);
    }

    pub fn cut_all(&self) {
        self.windows().values().for_each(|it| it.window.cut());
    }

    /// An orderly stop: nothing is written any more.
    pub fn keep_all(&self) {
        for (name, known) in self.chains().iter_mut() {
            // Without a look at the image the bits stay where they are, for this boot.
            if let Some(seen) = seen(&known.origin) {
                tell(name, known.chain.keep(seen));
            }
        }
    }

    /// Reserves a window for these volumes.
    fn reserve(
        &self,
        members: &[Entry],
        checkpoint: Option<&str>,
    ) -> Result<Arc<Opened>, VolumeError> {
        let names: Vec<String> = members.iter().map(|it| it.settings.name.clone()).collect();
        let mut windows = self.windows();
        if let Some(name) = names.iter().find(|name| windows.contains_key(*name)) {
            return Err(VolumeError::Changing(name.clone()));
        }
        let opened = Arc::new(Opened {
            window: Arc::default(),
            members: names.clone(),
            phase: Mutex::new(Phase::Opening),
            checkpoint: checkpoint.map(str::to_owned),
        });
        windows.extend(names.into_iter().map(|name| (name, opened.clone())));
        Ok(opened)
    }

    fn release(&self, opened: &Arc<Opened>) {
        let mut windows = self.windows();
        windows.retain(|_, other| !Arc::ptr_eq(other, opened));
    }

    /// The window of a volume that is to end; no other order ends it.
    fn take_to_end(
        &self,
        name: &str,
        force: bool,
    ) -> Result<Option<(Arc<Opened>, bool)>, VolumeError> {
        let Some(opened) = self.windows().get(name).cloned() else {
            return Ok(None);
        };
        if !force {
            opened.window.wait_for_ends();
        }
        let mut phase = opened.phase();
        match *phase {
            // Who opens it hears that it is given up, at its end at the latest.
            Phase::Opening | Phase::GivenUp => {
                *phase = Phase::GivenUp;
                return Ok(None);
            }
            Phase::Ending => return Err(VolumeError::Changing(name.to_owned())),
            Phase::Open => {}
        }
        let rested = opened.window.is_open();
        if force {
            opened.window.cut();
        } else if let Err(who) = opened.window.cut_if_unread() {
            let who = who.join(", ");
            return Err(VolumeError::Refused(format!(
                "volume {name}: {who}; wait until it has what it reads, or force it with --force, \
                 which cuts it off"
            )));
        }
        *phase = Phase::Ending;
        drop(phase);
        Ok(Some((opened, rested)))
    }
}

impl Opened {
    /// Unless it was given up meanwhile.
    fn is_open_from_now(&self, name: &str) -> Result<(), VolumeError> {
        let mut phase = self.phase();
        if *phase == Phase::GivenUp {
            return Err(VolumeError::Command {
                name: name.to_owned(),
                error: Refusal::NotQuiesced.into(),
            });
        }
        *phase = Phase::Open;
        Ok(())
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().expect("no holder of this lock panics")
    }
}

impl Daemon {
    /// Returns when the image has all that was written before, and that of each member of its
    /// group; nothing writes them until [`Daemon::volume_resume`], and clients can read them
    /// meanwhile. With a name, a checkpoint at this cut is there after that.
    pub fn volume_quiesce(&self, name: &str, checkpoint: Option<&str>) -> Result<(), VolumeError> {
        self.refuse_elsewhere(name)?;
        let entry = self.known(name)?;
        check_policy(&entry, "quiesced")?;
        self.refuse_through(&entry)?;
        let members = self.resting_with(&entry);
        self.settle_windows(&members)?;
        let opened = self.backups.reserve(&members, checkpoint)?;
        let done = self.open_window(&entry, &members, &opened);
        let done = done.and_then(|()| self.tell_window(&entry));
        let done = done.and_then(|()| {
            let open = opened.is_open_from_now(name);
            if open.is_err() {
                // The order that gave it up may have come before there was a rest.
                let _ = self.end_window(name);
            }
            open
        });
        match &done {
            Ok(()) => {}
            Err(_) => {
                opened.window.cut();
                let ended = self.end_checkpoints(&opened, false);
                self.backups.release(&opened);
                ended?;
            }
        }
        done
    }

    /// The volumes whose images rest when that of this one does.
    pub(super) fn resting_with(&self, entry: &Entry) -> Vec<Entry> {
        let group = &entry.settings.group;
        if group.is_empty() {
            return vec![entry.clone()];
        }
        let table = self.table();
        let of_group = |it: &&Entry| {
            let settings = &it.settings;
            let written = settings.policy == Policy::WriteBack && !settings.read_only;
            settings.group == *group && written
        };
        table.entries.values().filter(of_group).cloned().collect()
    }

    /// Shows the backup of a volume whose image rested before it came to this host, or to this run.
    pub(super) fn reopen_window(&self, name: &str) -> Result<(), VolumeError> {
        let members = [self.known(name)?];
        let opened = self.backups.reserve(&members, None)?;
        let (id, window) = (members[0].id, opened.window.clone());
        let shown = self.handle.open_window(id, vec![id], window);
        let shown = shown.map_err(|error| VolumeError::Command {
            name: name.to_owned(),
            error,
        });
        let shown = shown.and_then(|()| self.show_members(&members, &opened));
        match shown {
            Ok(true) => *opened.phase() = Phase::Open,
            _ => {
                opened.window.cut();
                self.backups.release(&opened);
            }
        }
        shown.map(drop)
    }

    /// Windows that ended by themselves, and were not resumed since, leave no checkpoint.
    fn settle_windows(&self, members: &[Entry]) -> Result<(), VolumeError> {
        for member in members {
            let opened = self.backups.windows().get(&member.settings.name).cloned();
            let Some(opened) = opened.filter(|it| !it.window.is_open()) else {
                continue;
            };
            let mut phase = opened.phase();
            if *phase == Phase::Open {
                *phase = Phase::Ending;
                drop(phase);
                self.end_checkpoints(&opened, false)?;
                self.backups.release(&opened);
            }
        }
        Ok(())
    }

    fn open_window(
        &self,
        entry: &Entry,
        members: &[Entry],
        opened: &Opened,
    ) -> Result<(), VolumeError> {
        let name = &entry.settings.name;
        if let Some(checkpoint) = &opened.checkpoint {
            for member in members {
                self.begin_checkpoint(member, checkpoint)?;
            }
        }
        let ids: Vec<VolumeId> = members.iter().map(|member| member.id).collect();
        let rests = self
            .handle
            .open_window(entry.id, ids, opened.window.clone());
        rests.map_err(|error| VolumeError::Command {
            name: name.clone(),
            error,
        })?;
        let shown = self.show_members(members, opened);
        if !matches!(shown, Ok(true)) {
            // Its first error is the one to tell.
            let _ = self.end_quiesce(name);
        }
        match shown? {
            true => Ok(()),
            false => Err(VolumeError::Command {
                name: name.clone(),
                error: Refusal::NotQuiesced.into(),
            }),
        }
    }

    fn begin_checkpoint(&self, member: &Entry, checkpoint: &str) -> Result<(), VolumeError> {
        let name = &member.settings.name;
        let created = SystemTime::now().duration_since(UNIX_EPOCH);
        let created = created.map_or(0, |since| since.as_secs());
        let begun = self.backups.with(member, |chain| {
            if chain.has(checkpoint) {
                return Ok(Err(format!(
                    "volume {name}: has a checkpoint {checkpoint} already; give another name, or \
                     delete that one with `tenuto volume checkpoint {name} --delete {checkpoint}`"
                )));
            }
            if chain.is_full() {
                return Ok(Err(format!(
                    "volume {name}: has 16 checkpoints, and no more fit; delete one with `tenuto \
                     volume checkpoint {name} --delete CHECKPOINT`"
                )));
            }
            chain.begin(checkpoint, created, member.size_bytes)?;
            Ok(Ok(chain.lives()))
        })?;
        let lives = begun.map_err(VolumeError::Settings)?;
        Ok(self.handle.track(member.id, lives)?)
    }

    /// The images rest: clients find them. False if they do not any more.
    fn show_members(&self, members: &[Entry], opened: &Opened) -> Result<bool, VolumeError> {
        let mut backups = Vec::new();
        for member in members {
            let name = &member.settings.name;
            let known = self.backups.chains().contains_key(name);
            let bitmaps = match known {
                true => self
                    .backups
                    .with(member, |it| it.at_cut(member.size_bytes))?,
                false => Vec::new(),
            };
            let backup = Backup {
                volume: name.clone(),
                size_bytes: member.size_bytes,
                source: self.source(member)?,
                bitmaps,
                window: opened.window.clone(),
            };
            backups.push((member.id, Arc::new(backup)));
        }
        Ok(self.handle.show_backups(backups)?)
    }

    /// Where the bytes of an image at rest are read.
    fn source(&self, entry: &Entry) -> Result<Source, VolumeError> {
        let origin = &entry.settings.origin;
        if let Ok(Place::Nbd(uri)) = Place::parse(origin) {
            return Ok(Source::Nbd(uri));
        }
        if let Some(image) = self.handle.image(entry.id)? {
            return Ok(Source::Image(image.as_it_is()?.links));
        }
        let unknown = || VolumeError::Unknown(entry.settings.name.clone());
        let sides = self.handle.sides(entry.id)?.ok_or_else(unknown)?;
        let target = sides.image_as_it_is()?.ok_or_else(unknown)?;
        let path = origin.clone();
        let format = ::image::Format::Raw;
        Ok(Source::Image(vec![Link {
            path,
            target,
            format,
        }]))
    }

    /// Fails where the image did not rest all the time. Gives up a rest that has not begun yet.
    /// Clients that read are refused for, or with `force` cut off.
    pub fn volume_resume(&self, name: &str, force: bool) -> Result<(), VolumeError> {
        self.refuse_elsewhere(name)?;
        self.known(name)?;
        if self.resume_through(name)? {
            return Ok(());
        }
        let Some((opened, rested)) = self.backups.take_to_end(name, force)? else {
            return self.end_window(name);
        };
        let resumed = self.end_window(name);
        if self.is_kept(name)? {
            // The vault does not answer: it is tried again.
            *opened.phase() = Phase::Open;
            return resumed;
        }
        let whole = resumed.is_ok() && rested;
        let ended = self.end_checkpoints(&opened, whole);
        self.backups.release(&opened);
        match (&opened.checkpoint, resumed) {
            (Some(checkpoint), Err(VolumeError::Origin(why))) => Err(VolumeError::Origin(format!(
                "{why}; there is no checkpoint {checkpoint}"
            ))),
            (_, Ok(())) => ended,
            (_, resumed) => resumed,
        }
    }

    /// The window is over: its checkpoints are there from now on, or never were.
    fn end_checkpoints(&self, opened: &Opened, whole: bool) -> Result<(), VolumeError> {
        if opened.checkpoint.is_none() {
            return Ok(());
        }
        let mut first = Ok(());
        for name in &opened.members {
            let Some(entry) = self.entry(name) else {
                continue;
            };
            let ended = self.backups.with(&entry, |chain| match whole {
                true => chain.confirm(),
                false => chain.abandon(),
            });
            let lives = self.backups.with(&entry, |chain| Ok(chain.lives()));
            let tracked = lives.and_then(|lives| Ok(self.handle.track(entry.id, lives)?));
            first = first.and(ended).and(tracked);
        }
        first
    }

    /// The checkpoints of a volume, from the oldest to the newest.
    pub fn volume_checkpoints(&self, name: &str) -> Result<Vec<CheckpointShown>, VolumeError> {
        let entry = self.known(name)?;
        self.settle_windows(std::slice::from_ref(&entry))?;
        if !self.backups.chains().contains_key(name) {
            return Ok(Vec::new());
        }
        self.backups.with(&entry, |chain| {
            let changes = chain.changes_now(entry.size_bytes)?;
            let changed = |name: &str| {
                let found = changes.iter().find(|(other, _)| other == name);
                found.map(|(_, bitmap)| bitmap.changed_bytes())
            };
            let shown = chain.shown().into_iter();
            let shown = shown.map(|shown| CheckpointShown {
                changed_bytes: changed(&shown.name),
                shown,
            });
            Ok(shown.collect())
        })
    }

    /// What has changed of a volume since a checkpoint.
    pub fn volume_changes(&self, name: &str, checkpoint: &str) -> Result<Bitmap, VolumeError> {
        let entry = self.known(name)?;
        let shown = self.volume_checkpoints(name)?;
        let shown = shown.into_iter().find(|it| it.shown.name == checkpoint);
        let shown = shown.ok_or_else(|| no_checkpoint(name, checkpoint))?.shown;
        let changes = self
            .backups
            .with(&entry, |chain| chain.changes_now(entry.size_bytes))?;
        let found = changes.into_iter().find(|(other, _)| other == checkpoint);
        found.map(|(_, bitmap)| bitmap).ok_or_else(|| {
            let why = match shown.state {
                crate::backup::chain::ShownState::Lost(reason) => reason.text(),
                _ => "its window is open; `tenuto volume resume` ends that",
            };
            VolumeError::Settings(format!(
                "volume {name}: what changed since checkpoint {checkpoint} is not known: {why}"
            ))
        })
    }

    /// Forgets a checkpoint. Those before it keep what changed after it.
    pub fn volume_forget_checkpoint(
        &self,
        name: &str,
        checkpoint: &str,
    ) -> Result<(), VolumeError> {
        let entry = self.known(name)?;
        self.settle_windows(std::slice::from_ref(&entry))?;
        if self.backups.windows().contains_key(name) {
            return Err(VolumeError::Settings(format!(
                "volume {name}: a backup window is open, in which checkpoint {checkpoint} may be \
                 read; delete it after `tenuto volume resume {name}`"
            )));
        }
        let known = self.backups.chains().contains_key(name);
        let deleted = known && self.backups.with(&entry, |it| it.delete(checkpoint))?;
        if !deleted {
            return Err(no_checkpoint(name, checkpoint));
        }
        let lives = self.backups.with(&entry, |chain| Ok(chain.lives()))?;
        Ok(self.handle.track(entry.id, lives)?)
    }
}

fn no_checkpoint(name: &str, checkpoint: &str) -> VolumeError {
    VolumeError::Settings(format!(
        "volume {name}: has no checkpoint {checkpoint}; `tenuto volume checkpoint {name} --list` \
         names them"
    ))
}
