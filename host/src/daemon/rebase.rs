//! Another file below an image, or one file less.
//!
//! ```text
//! alone ─▶ destaged ─▶ compared, batch by batch ─▶ its own ─▶ moved ─▶ exchanged ─▶ shown
//! ```
//!
//! A rebase lets the image of a volume stand on another file, or on none. A merge is one onto the
//! file below the backing: then the backing is not needed any more. Parts of the disk that would
//! read otherwise through the other file become the image's own first, unless the user knows that
//! none would. Always true: no client is connected from the first look to the last step, and
//! nothing of the volume is dirty meanwhile; each step leaves a whole image with the same disk, so
//! a kill leaves it on the file before or on the other one; no file but the image is written; a
//! backing is removed only by order, and not where something is seen that needs it. Deliberately
//! absent: the order of steps inside the image; see the engine.

use super::volumes::Entry;
use super::{Daemon, VolumeError};
use crate::fault::Kind;
use crate::lock::{self, Mode, Patience};
use crate::marks::{self, Phase};
use crate::origin::chain::{self, Link, Opened, Rules, Stated, name_of};
use crate::origin::compare::{View, differing};
use crate::origin::mapped::{self, Mapped, Places};
use crate::origin::{beside, clone, written};
use ::image::create::BackingFormat;
use ::image::format::onto::Onto;
use ::image::header::{BackingName, Header};
use ::image::limits::CHAIN_FILES_MAX;
use engine::event::Command;
use engine::origin::Move;
use engine::types::{Policy, SECTOR_BYTES, Span};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What an image is to stand on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Below {
    File {
        /// As it shall stand in the file: relative to its directory, or absolute.
        path: PathBuf,
        /// What it is; by its first bytes where that is not said.
        format: Option<Stated>,
    },
    Nothing,
}

/// What a merge has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Bytes of the disk that became the image's own.
    pub own_bytes: u64,
    /// The backing before, which the image does not need any more.
    pub before: PathBuf,
    /// Where it was to be removed and stays: why.
    pub left: Option<String>,
}

/// What the image moves to, open and judged.
struct Other {
    onto: Onto,
    opened: Option<Opened>,
    /// Its files as they were when they were opened.
    seen: Vec<Seen>,
}

/// What a file is known by: its device and number, its length, and its times.
type Seen = Option<((u64, u64), u64, (i64, i64), (i64, i64))>;

fn seen(links: &[Link]) -> Vec<Seen> {
    let of = |link: &Link| {
        let meta = link.target.file.metadata().ok()?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        let written = (meta.mtime(), meta.mtime_nsec());
        Some((link.target.identity, meta.len(), written, changed))
    };
    links.iter().map(of).collect()
}

impl Daemon {
    /// Lets the image of a volume stand on another file; gives the bytes that became its own.
    /// `changes`: what the disk reads there is not compared.
    pub fn volume_rebase(
        &self,
        name: &str,
        below: &Below,
        changes: bool,
    ) -> Result<u64, VolumeError> {
        let claim = self.claim(name)?;
        let entry = self.known(&claim.name)?;
        let image = self.image_to_move(&entry, "rebased")?;
        self.while_alone(&entry, || {
            if *below == Below::Nothing {
                backing_of(&entry, &image)?;
            }
            let now = image.as_it_is()?;
            let other = self.other(&entry, &now, below)?;
            self.check_move(&entry, &now, &other, changes)?;
            self.move_to(&entry, &image, now, other, changes)
        })
    }

    /// Gives the image what its backing has, and lets it stand on what that stands on. `remove`:
    /// the backing goes, if nothing else needs it.
    pub fn volume_merge(&self, name: &str, remove: bool) -> Result<Merged, VolumeError> {
        let claim = self.claim(name)?;
        let entry = self.known(&claim.name)?;
        let image = self.image_to_move(&entry, "merged")?;
        self.while_alone(&entry, || {
            let before = backing_of(&entry, &image)?;
            let now = image.as_it_is()?;
            let below = match now.links.get(2) {
                Some(link) => Below::File {
                    path: name_from(&now.links[0], link),
                    // Its first bytes may be a guest's.
                    format: Some(match link.format {
                        ::image::Format::Raw => Stated::Raw,
                        ::image::Format::Qcow2(_) => Stated::Qcow2,
                    }),
                },
                None => Below::Nothing,
            };
            let other = self.other(&entry, &now, &below)?;
            self.check_move(&entry, &now, &other, false)?;
            let merged = now.links[1].clone();
            let own_bytes = self.move_to(&entry, &image, now, other, false)?;
            drop(image);
            let left = remove.then(|| self.remove_merged(&entry, merged).err());
            Ok(Merged {
                own_bytes,
                before,
                left: left.flatten(),
            })
        })
    }

    /// The image of a volume that may stand on another file.
    fn image_to_move(&self, entry: &Entry, done: &str) -> Result<Arc<Mapped>, VolumeError> {
        let settings = &entry.settings;
        let name = &settings.name;
        let refuse = |why: String| Err(VolumeError::Settings(format!("volume {name}: {why}")));
        let image = self.handle.image(entry.id)?;
        let writes = settings.policy == Policy::WriteBack && !settings.read_only;
        match image {
            None => refuse(format!(
                "its image is raw, which stands on nothing; only a qcow2 image is {done}"
            )),
            Some(image) if writes && image.is_written() => Ok(image),
            Some(_) if settings.read_only || settings.policy == Policy::Ephemeral => {
                refuse(format!(
                    "does not write its image; add the image as a write-back volume to have it \
                     {done}"
                ))
            }
            Some(_) => refuse(format!(
                "only the image of a write-back volume is {done}; set that with `tenuto volume set \
                 {name} policy=write-back --wait`, and the other one again afterwards"
            )),
        }
    }

    /// Does something without a client, when the image has all that was written.
    fn while_alone<T>(
        &self,
        entry: &Entry,
        act: impl FnOnce() -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        self.hold_alone(entry)?;
        let name = &entry.settings.name;
        let volume = entry.id;
        let done = self
            .command(name, Command::Destage { volume })
            .and_then(|()| act());
        let entry = self.known(name)?;
        self.show_again(&entry)?;
        done
    }

    /// Opens what the image is to stand on.
    fn other(&self, entry: &Entry, now: &Opened, below: &Below) -> Result<Other, VolumeError> {
        let name = &entry.settings.name;
        let Below::File { path, format } = below else {
            return Ok(Other {
                onto: Onto::Nothing,
                opened: None,
                seen: Vec::new(),
            });
        };
        let refuse = |why: String| Err(VolumeError::Settings(format!("volume {name}: {why}")));
        let text = path
            .to_str()
            .filter(|it| BackingName::of(it) == BackingName::Path(it));
        let Some(text) = text else {
            return refuse(format!(
                "{} cannot be named in a file; give it a path in UTF-8 without a colon in its \
                 first part",
                name_of(path)
            ));
        };
        let top = &now.links[0];
        let place = top.target.path.parent().unwrap_or(Path::new(""));
        let path = place.join(path);
        let is_itself = |meta: fs::Metadata| (meta.dev(), meta.ino()) == top.target.identity;
        if fs::metadata(&path).is_ok_and(is_itself) {
            return refuse(format!("{} is its image itself", name_of(&path)));
        }
        let allow = self.ledgers.images.allow(&entry.settings.origin);
        let rules = Rules {
            top: *format,
            allow: Some(&allow),
        };
        if format.is_none() {
            clone::refuse_guess(&path)?;
        }
        let opened = chain::open(&path, &rules, &mut Patience::none());
        let opened = opened.map_err(|fault| match fault.kind {
            Kind::NotFound => clone::not_there(&path, fault),
            _ => fault,
        })?;
        let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        if !allow.iter().any(|it| chain::is_below(&real, it)) {
            return refuse(format!(
                "{} lies outside of [images] allow; add its directory there if that is right",
                name_of(&path)
            ));
        }
        let format = match opened.links[0].format {
            ::image::Format::Raw => BackingFormat::Raw,
            ::image::Format::Qcow2(_) => BackingFormat::Qcow2,
        };
        let onto = Onto::File {
            name: text.to_owned(),
            format,
        };
        let seen = seen(&opened.links);
        let opened = Some(opened);
        Ok(Other { onto, opened, seen })
    }

    /// Said before anything is changed.
    fn check_move(
        &self,
        entry: &Entry,
        now: &Opened,
        other: &Other,
        changes: bool,
    ) -> Result<(), VolumeError> {
        let name = &entry.settings.name;
        let refuse = |why: &str| Err(VolumeError::Settings(format!("volume {name}: {why}")));
        let header = header_of(now);
        if !header.has_room_for(&other.onto) {
            return refuse(
                "the first cluster of its image has no room for that name; choose a shorter one",
            );
        }
        if header.snapshots > 0 && !changes {
            return refuse(
                "its image has internal snapshots, which would see the other file as well; delete \
                 them with `qemu-img snapshot -d` while the volume is removed",
            );
        }
        let Some(opened) = &other.opened else {
            return Ok(());
        };
        if opened.links.len() >= CHAIN_FILES_MAX {
            return refuse("its image would have more than 64 files in its chain");
        }
        let top = &now.links[0];
        if opened
            .links
            .iter()
            .any(|it| it.target.identity == top.target.identity)
        {
            return refuse("that file stands on the image itself");
        }
        let chain = [std::slice::from_ref(top), &opened.links].concat();
        Ok(written::check_below(
            &chain,
            entry.settings.journal_dir.as_deref(),
        )?)
    }

    /// Returns when the volume goes on with its image on the other file; the bytes that became its
    /// own.
    fn move_to(
        &self,
        entry: &Entry,
        image: &Mapped,
        now: Opened,
        other: Other,
        changes: bool,
    ) -> Result<u64, VolumeError> {
        let name = &entry.settings.name;
        let unit_bytes = header_of(&now).unit_bytes();
        let size = now.chain.size_bytes();
        let mut now = View::new(now);
        let Other {
            onto,
            opened,
            seen: before,
        } = other;
        let mut then = opened.map(View::new);
        let (mut at, mut bytes) = (0, 0);
        let mut last = Vec::new();
        while at < size && !changes {
            let batch = differing(&mut now, then.as_mut(), at, unit_bytes)?;
            at = batch.next;
            let sectors = |it: &::image::types::Span| {
                Span::new(it.at / SECTOR_BYTES, it.bytes / SECTOR_BYTES)
            };
            let own: Vec<Span> = batch.parts.iter().map(sectors).collect();
            bytes += batch.parts.iter().map(|it| it.bytes).sum::<u64>();
            if at >= size {
                last = own;
            } else if !own.is_empty() {
                marks::passed(Phase::Exchange);
                self.order_move(entry, own, None, changes)?;
            }
        }
        drop(now);
        // Its files stay locked until the volume has them.
        let other = then.as_ref().map_or(&[][..], View::links);
        if seen(other) != before {
            return Err(VolumeError::Origin(format!(
                "volume {name}: a file that its image was to stand on was written meanwhile; order \
                 it again when that is over"
            )));
        }
        marks::passed(Phase::Exchange);
        self.order_move(entry, last, Some(onto), changes)?;
        marks::passed(Phase::Exchange);
        let exchanged = self.exchange_below(entry, image, &before);
        drop(then);
        let volume = entry.id;
        let ended = self.command(name, Command::EndExchange { volume });
        marks::passed(Phase::Exchange);
        exchanged.map_err(|error| {
            VolumeError::Origin(format!(
                "{error}; its image names the other file by now, and the volume goes on over the \
                 one before: remove it and add it again"
            ))
        })?;
        ended?;
        Ok(bytes)
    }

    fn order_move(
        &self,
        entry: &Entry,
        own: Vec<Span>,
        onto: Option<Onto>,
        changes: bool,
    ) -> Result<(), VolumeError> {
        let order = Move { own, onto, changes };
        let volume = entry.id;
        self.command(&entry.settings.name, Command::Rebase { volume, order })
    }

    /// What is open from now on is what the header says.
    fn exchange_below(
        &self,
        entry: &Entry,
        image: &Mapped,
        before: &[Seen],
    ) -> Result<(), VolumeError> {
        let settings = &entry.settings;
        let name = &settings.name;
        let allow = self.ledgers.images.allow(&settings.origin);
        let places = Places {
            allow: &allow,
            journal: settings.journal_dir.as_deref(),
        };
        let (top, path) = (image.top_as_it_is()?, &image.links()[0].path);
        let mapped = mapped::open_below(&top, path, places, &mut Patience::none())?;
        if seen(&mapped.links()[1..]) != before {
            return Err(VolumeError::Origin(format!(
                "volume {name}: a file below its image was written meanwhile"
            )));
        }
        self.exchange_files(&mut entry.clone(), mapped)
    }

    /// Takes away the file that was the backing, if a snapshot of this volume has made it and
    /// nothing is seen that needs it. Else says why it stays.
    fn remove_merged(&self, entry: &Entry, merged: Link) -> Result<(), String> {
        let path = merged.target.path.clone();
        let identity = merged.target.identity;
        let others = self.images().into_iter().find(|(_, image)| {
            let is_it = |path: &PathBuf| {
                let meta = fs::metadata(path);
                meta.is_ok_and(|meta| (meta.dev(), meta.ino()) == identity)
            };
            image.chain.iter().any(is_it)
        });
        if let Some((other, _)) = others {
            return Err(format!("volume {other} stands on it"));
        }
        let header = match &merged.format {
            ::image::Format::Qcow2(header) => header,
            ::image::Format::Raw => return Err("no snapshot has made it".into()),
        };
        if header.snapshots > 0 {
            return Err("it has internal snapshots".into());
        }
        let sides = self.handle.sides(entry.id).ok().flatten();
        let ledger = sides.and_then(|sides| sides.ledger);
        let ledger = ledger.as_deref().and_then(written::ledger_in);
        let ours = header.mark().map(|mark| mark.volume);
        if ours.is_none() || ours != ledger.map(|ledger| ledger.volume.0) {
            return Err("no snapshot of this volume has made it".into());
        }
        if written::read_ledger(&beside::beside(&path, beside::LEDGER)).is_some() {
            return Err("a ledger lies beside it, of a volume on another host or cache".into());
        }
        if let Some(other) = may_stand_on(&path, identity) {
            return Err(format!(
                "{} stands on it, or cannot be judged",
                other.display()
            ));
        }
        // Who reads it has it locked; this process has no other description of it by now.
        drop(merged);
        remove_alone(&path, identity)
    }
}

fn header_of(opened: &Opened) -> &Header {
    let header = opened.chain.files()[0].header();
    header.expect("the image that is written is qcow2")
}

/// The path of the backing.
fn backing_of(entry: &Entry, image: &Mapped) -> Result<PathBuf, VolumeError> {
    let backing = image.links().get(1).map(|link| link.path.clone());
    backing.ok_or_else(|| {
        let name = &entry.settings.name;
        VolumeError::Settings(format!("volume {name}: its image stands on nothing"))
    })
}

/// How `link` is named in a file that is written: by its name alone in the same directory.
fn name_from(top: &Link, link: &Link) -> PathBuf {
    let place = |link: &Link| {
        let place = link.target.path.parent();
        place.and_then(|place| fs::canonicalize(place).ok())
    };
    let file = link.target.path.file_name();
    match (place(top), place(link), file) {
        (Some(one), Some(other), Some(file)) if one == other => PathBuf::from(file),
        (_, Some(other), Some(file)) => other.join(file),
        _ => link.path.clone(),
    }
}

/// A qcow2 file in the same directory that names this one as its backing, or does not tell what it
/// stands on.
fn may_stand_on(path: &Path, identity: (u64, u64)) -> Option<PathBuf> {
    let place = path.parent()?;
    let Ok(entries) = fs::read_dir(place) else {
        return Some(place.to_owned());
    };
    let is_file = |file: &PathBuf| fs::symlink_metadata(file).is_ok_and(|it| it.is_file());
    let files = entries.flatten().map(|entry| entry.path()).filter(is_file);
    files.into_iter().find(|file| {
        let header = match written::look(file) {
            Ok(header) => header,
            Err(_) => return mapped::begins_as_qcow2(file),
        };
        match chain::backing_of(file, &header) {
            Ok(None) => false,
            Ok(Some(named)) => {
                fs::metadata(named).is_ok_and(|meta| (meta.dev(), meta.ino()) == identity)
            }
            Err(_) => true,
        }
    })
}

/// Removes a file that no program has open, as far as locks tell.
fn remove_alone(path: &Path, identity: (u64, u64)) -> Result<(), String> {
    let shown = name_of(path);
    let file = fs::File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| format!("it cannot be opened: {error}"))?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if (meta.dev(), meta.ino()) != identity {
        return Err("it is another file by now".into());
    }
    let locked = lock::acquire_image(&file, &shown, Mode::Exclusive, &mut Patience::none());
    locked.map_err(|fault| match fault.kind {
        Kind::InUse => "another program has it open".to_owned(),
        _ => fault.message,
    })?;
    let removed = fs::remove_file(path);
    removed.map_err(|error| format!("it cannot be removed: {error}"))?;
    let place = path.parent().unwrap_or(Path::new("."));
    fs::File::open(place)
        .and_then(|place| place.sync_all())
        .map_err(|error| format!("its directory cannot be synced: {error}"))
}

#[cfg(test)]
#[path = "rebase_tests.rs"]
mod tests;
