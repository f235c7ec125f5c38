//! The file or block device of an image, with its ledger and journal.
//!
//! Always true: every description that is written here carries an exclusive `flock`, so late
//! writes of a killed daemon have landed before anything is read (rule 5.2.1); while it is open
//! the image carries QEMU's image locks, so that no QEMU writes to it, and reads only where it
//! was told to share (rule 9). An image that another host of a cluster may still write is read
//! without a lock, and only by who has all that is not final in it.
//! Deliberately absent: what ledger and journal mean.

use crate::cachedev::{refuse_used_device, sync_directory};
use crate::fault::{Fault, Kind};
use crate::lock::{self, Mode, Patience};
use crate::origin::beside::{self, in_place};
use crate::origin::leaks;
use crate::origin::mapped::{self, Mapped};
use crate::origin::nbd::open::{Leavings, NbdOrigin};
use crate::origin::pointer;
use crate::origin::san::Params;
use crate::origin::successor;
use crate::origin::written;
use crate::origin::{Format, Place, nbd};
use crate::signature;
use crate::sys;
use crate::target::{How, Target};
use ::image::Header;
use engine::event::{IoError, Stat};
use engine::format::ledger::{Ledger, Progress};
use engine::origin::FileIndex;
use engine::types::SECTOR_BYTES;
use node::record::Epoch;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often a file that is replaced while we lock it is opened again.
const REPLACED_TRIES_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The only writer.
    Write,
    /// The only writer of its bytes, whatever they mean: a journal is finished.
    Bytes,
    /// One of several readers.
    Read,
    /// A reader while another host may write it: a raw image alone, without what lies beside it,
    /// and without a lock, which a host that is gone may hold for ever.
    Unlocked,
}

impl Access {
    /// Nothing is written.
    fn reads(self) -> bool {
        matches!(self, Access::Read | Access::Unlocked)
    }
}

/// How to open an image.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: PathBuf,
    pub access: Access,
    pub format: Format,
    /// Directories in which files below an image may lie.
    pub allow: Vec<PathBuf>,
    /// Where ledger and journal lie if not beside the image; see [`beside::in_place`].
    pub journal_place: Option<PathBuf>,
    /// Where the ledger alone lies if nothing can lie beside the origin and no place is named:
    /// a directory of this host.
    pub ledger_place: Option<PathBuf>,
    /// How long late writes to an origin without a fence may take to land.
    pub quiet: Duration,
    /// Create ledger and journal (with `Access::Write` only).
    pub create: bool,
    /// A qcow2 file is as long as before, also where it ends in the middle of a cluster.
    pub keeps_end: bool,
    /// Of a clustered volume, whose ledger and journal are those of one epoch.
    pub epoch: Option<Epoch>,
}

impl Request {
    fn places(&self) -> mapped::Places<'_> {
        mapped::Places {
            allow: &self.allow,
            journal: self.journal_place.as_deref(),
        }
    }
}

/// What carries the bytes of a volume.
#[derive(Debug)]
pub enum Origin {
    File(Arc<Target>),
    Nbd(Box<NbdOrigin>),
}

impl Origin {
    pub fn file(&self) -> Option<&Arc<Target>> {
        match self {
            Origin::File(target) => Some(target),
            Origin::Nbd(_) => None,
        }
    }

    pub fn nbd(&self) -> Option<&NbdOrigin> {
        match self {
            Origin::Nbd(origin) => Some(origin),
            Origin::File(_) => None,
        }
    }

    pub fn nbd_mut(&mut self) -> Option<&mut NbdOrigin> {
        match self {
            Origin::Nbd(origin) => Some(origin),
            Origin::File(_) => None,
        }
    }

    pub fn size_bytes(&self) -> u64 {
        match self {
            Origin::File(target) => target.size_bytes,
            Origin::Nbd(origin) => origin.export.size_bytes,
        }
    }

    pub fn read_only(&self) -> bool {
        match self {
            Origin::File(target) => target.read_only,
            Origin::Nbd(origin) => origin.read_only,
        }
    }

    /// The path, or the URL in its plain spelling.
    pub fn name(&self) -> String {
        match self {
            Origin::File(target) => target.name(),
            Origin::Nbd(origin) => origin.name(),
        }
    }
}

/// The files of one volume.
#[derive(Debug)]
pub struct OpenVolume {
    pub origin: Origin,
    /// How the bytes of its image are found where it is not raw; the origin is its first file.
    pub mapped: Option<Arc<Mapped>>,
    /// What the ledger says that its image stands on (see [`engine::image::Image::below`]), which
    /// counts as long as that is not open.
    pub below: u64,
    pub ledger: Option<Arc<Target>>,
    pub journal: Option<Arc<Target>>,
    /// Where they are or would be; `None` where there is no place for them.
    pub ledger_path: Option<PathBuf>,
    pub journal_path: Option<PathBuf>,
    /// The simulated storage network it lies on. Volumes with equal parameters share one.
    pub san: Option<Params>,
}

pub fn open(request: &Request, patience: &mut Patience) -> Result<OpenVolume, Fault> {
    assert!(
        !request.create || !request.access.reads(),
        "a reader creates nothing"
    );
    match Place::parse(&request.path) {
        Ok(Place::File(_)) => {}
        Ok(Place::Nbd(uri)) => return nbd::open::open(&uri, request, patience),
        Err(why) => return Err(Fault::new(Kind::Invalid, format!("origin {why}"))),
    }
    let name = format!("origin {}", request.path.display());
    // Two names of one image must find one ledger.
    let path = fs::canonicalize(&request.path);
    let path = path.map_err(|error| Fault::io(&name, "open it", error))?;
    if request.access == Access::Unlocked {
        return open_unlocked(&path, &name, request, patience);
    }
    let device = fs::metadata(&path).is_ok_and(|meta| meta.file_type().is_block_device());
    let (ledger_path, journal_path) = side_paths(request, &path, device)?;
    let (ledger_path, journal_path) = match of_cluster(request, &path, ledger_path.as_deref())? {
        Some(epoch) => {
            let epoch = Some(epoch);
            side_paths(
                &Request {
                    epoch,
                    ..request.clone()
                },
                &path,
                device,
            )?
        }
        None => (ledger_path, journal_path),
    };
    if let (Access::Read, Some(ledger)) = (request.access, &ledger_path) {
        // Before any file is opened that a guest may have named.
        refuse_guess(request, written::read_ledger(ledger).as_ref(), || {
            mapped::begins_as_qcow2(&path)
        })?;
    }
    let mapped = match request.access {
        Access::Read => mapped::open(&request.path, request.format, request.places(), patience)?,
        Access::Write | Access::Bytes | Access::Unlocked => None,
    };
    let origin = match &mapped {
        Some(mapped) => mapped.top().clone(),
        None => Arc::new(open_image(&path, &name, request, patience)?),
    };
    if request.access != Access::Read {
        successor::remove_leavings(&origin)?;
    }
    let mut volume = OpenVolume {
        origin: Origin::File(origin),
        mapped: mapped.map(Arc::new),
        below: 0,
        ledger: None,
        journal: None,
        ledger_path,
        journal_path,
        san: None,
    };
    volume.ledger = volume.side(volume.ledger_path.as_deref(), request.create, patience)?;
    volume.journal = volume.side(volume.journal_path.as_deref(), request.create, patience)?;
    let ledger = volume.ledger.as_deref().and_then(written::ledger_in);
    volume.below = ledger.as_ref().map_or(0, |ledger| ledger.image.below);
    volume.check_ledger(request, ledger.as_ref())?;
    volume.keep_end(request, ledger.as_ref())?;
    Ok(volume)
}

/// What lies beside it is not looked at: its writer may be at it.
fn open_unlocked(
    path: &Path,
    name: &str,
    request: &Request,
    patience: &mut Patience,
) -> Result<OpenVolume, Fault> {
    let image = open_image(path, name, request, patience)?;
    Ok(OpenVolume {
        origin: Origin::File(Arc::new(image)),
        mapped: None,
        below: 0,
        ledger: None,
        journal: None,
        ledger_path: None,
        journal_path: None,
        san: None,
    })
}

/// The epoch of an image of a cluster, for one who was not asked to serve it, and reads.
fn of_cluster(
    request: &Request,
    path: &Path,
    ledger: Option<&Path>,
) -> Result<Option<Epoch>, Fault> {
    let pointer = ledger.filter(|_| request.epoch.is_none());
    let Some((pointer, ledger)) = pointer.and_then(|it| Some((pointer::read(it)?, it))) else {
        return Ok(None);
    };
    match request.access {
        Access::Read => pointer::epoch(&pointer, ledger),
        Access::Write | Access::Bytes | Access::Unlocked => Err(pointer::refuse(path)),
    }
}

/// A journal is pending.
fn is_pending(ledger: &Ledger) -> bool {
    matches!(ledger.progress, Progress::Apply { .. })
}

impl OpenVolume {
    /// What the guest sees.
    pub fn size_bytes(&self) -> u64 {
        match &self.mapped {
            Some(mapped) => mapped.size_bytes(),
            None => self.origin.size_bytes().next_multiple_of(SECTOR_BYTES),
        }
    }

    /// Opens what lies below the origin, where it is a qcow2 image that is written. No journal of
    /// it is pending any more, or its volume finishes it: then it is not `at_rest`.
    pub fn open_below(
        &mut self,
        request: &Request,
        at_rest: bool,
        patience: &mut Patience,
    ) -> Result<(), Fault> {
        if !self.writes_qcow2(request) {
            return Ok(());
        }
        let mut open = |volume: &OpenVolume| {
            let top = volume.origin.file().expect("it is a file");
            let mapped = mapped::open_below(top, &request.path, request.places(), patience);
            mapped.map(|mapped| (mapped, top.size_bytes.is_multiple_of(top.dio_align.into())))
        };
        let (mut mapped, whole) = open(self)?;
        if !whole {
            // What is refused is not changed, so it is opened a second time for this.
            drop(mapped);
            self.end_with_cluster(request)?;
            (mapped, _) = open(self)?;
        }
        let leaky = mapped.header().is_some_and(Header::may_leak);
        if leaky && at_rest && leaks::free(mapped.top(), &request.path) {
            (mapped, _) = open(self)?;
        }
        self.mapped = Some(Arc::new(mapped));
        Ok(())
    }

    /// Whether the header of a qcow2 image that is written cannot be read, as where a loss of power
    /// has torn it.
    pub fn has_torn_header(&self, request: &Request) -> bool {
        let top = self.origin.file().filter(|_| self.writes_qcow2(request));
        top.is_some_and(|top| mapped::header_written(top, &request.path).is_err())
    }

    /// Whether the origin is a qcow2 image that is written.
    pub fn writes_qcow2(&self, request: &Request) -> bool {
        let top = self.origin.file();
        request.access == Access::Write
            && top.is_some_and(|top| mapped::is_qcow2(top, request.format))
    }

    /// What its image is known by; `None` for an export.
    pub fn stat(&self) -> Option<Result<Stat, IoError>> {
        if let Some(mapped) = &self.mapped {
            return Some(mapped.stat());
        }
        let mut stat = self.origin.file()?.stat();
        if let Ok(Stat {
            image: Some(image), ..
        }) = &mut stat
        {
            image.below = self.below;
        }
        Some(stat.and_then(|stat| self.with_mark(stat)))
    }

    /// Of a qcow2 image whose files below are not open.
    fn with_mark(&self, mut stat: Stat) -> Result<Stat, IoError> {
        let top = self.origin.file().filter(|_| self.below != 0);
        if let (Some(top), Some(image)) = (top, &mut stat.image) {
            (image.marked, _) = written::marked(top)?;
        }
        Ok(stat)
    }

    /// A qcow2 image under a guard has its ledger beside it, and that is the ledger of no raw one.
    fn check_ledger(&self, request: &Request, ledger: Option<&Ledger>) -> Result<(), Fault> {
        let Origin::File(top) = &self.origin else {
            return Ok(());
        };
        let path = &request.path;
        if request.access == Access::Write {
            refuse_guess(request, ledger, || mapped::is_qcow2(top, Format::Auto))?;
        }
        // One that does not tell what it is known by is told by who reads on.
        let image = top.stat().ok().and_then(|stat| stat.image);
        let image = image.unwrap_or_default();
        match (&self.mapped, request.access) {
            (Some(mapped), _) => match mapped.header() {
                Some(header) => written::check_guard(header, path, ledger, &image),
                None => Ok(()),
            },
            (None, Access::Write) if mapped::is_qcow2(top, request.format) => {
                let header = mapped::header_written(top, path);
                // A loss of power may have torn it, and the journal makes it whole.
                if header.is_err() && ledger.is_some_and(is_pending) {
                    return Ok(());
                }
                let header = header?;
                written::check_guard(&header, path, ledger, &image)
            }
            (None, _) => Ok(()),
        }
    }

    /// The last sectors of a qcow2 file may be less than can be written directly. One that is only
    /// repaired, or whose journal or overlay counts on its length, keeps that; see
    /// `end_with_cluster`.
    fn keep_end(&mut self, request: &Request, ledger: Option<&Ledger>) -> Result<(), Fault> {
        let kept = match request.access {
            Access::Write => request.keeps_end || ledger.is_some_and(is_pending),
            Access::Bytes => true,
            Access::Read | Access::Unlocked => false,
        };
        let Origin::File(origin) = &mut self.origin else {
            return Ok(());
        };
        if !kept || !mapped::is_qcow2(origin, format_of(request)) {
            return Ok(());
        }
        let target = Arc::get_mut(origin).expect("it was just opened");
        let name = target.name();
        buffer_odd_end(target, &name)
    }

    /// A qcow2 file may be longer than its clusters, so one that is written ends with a whole one:
    /// all of it can be written directly.
    fn end_with_cluster(&mut self, request: &Request) -> Result<(), Fault> {
        let Origin::File(origin) = &mut self.origin else {
            return Ok(());
        };
        let header = mapped::header_written(origin, &request.path)?;
        let target = Arc::get_mut(origin).expect("nothing uses it yet");
        let bytes = target.size_bytes.next_multiple_of(header.cluster_bytes());
        let extended = target.file.set_len(bytes);
        extended.map_err(|error| Fault::io(&target.name(), "make it longer", error))?;
        target.size_bytes = bytes;
        Ok(())
    }

    /// Clears the guard of an image whose ledger says that nothing is pending. True if it was set.
    pub fn clear_guard(&self) -> Result<bool, Fault> {
        let (Origin::File(image), Some(ledger)) = (&self.origin, &self.ledger) else {
            return Ok(false);
        };
        let ledger = written::ledger_in(ledger);
        written::clear_guard(image, ledger.as_ref()).map_err(|_| {
            let message = format!("{}: its first sector cannot be written", image.name());
            Fault::new(Kind::Io, message)
        })
    }

    /// Whether the image is under a guard, and no ledger says how it goes on.
    pub fn is_torn(&self) -> bool {
        let Some(image) = self.origin.file() else {
            return false;
        };
        let ledger = self.ledger.as_deref().and_then(written::ledger_in);
        ledger.is_none() && written::is_guarded(image).unwrap_or(false)
    }

    /// Whether its image, open for reading, is under a guard.
    pub fn is_guarded(&self) -> bool {
        let header = self.mapped.as_ref().and_then(|mapped| mapped.header());
        header.is_some_and(Header::is_guarded)
    }

    /// A file below the origin.
    pub fn base(&self, file: FileIndex) -> Option<&Arc<Target>> {
        self.mapped.as_ref()?.below(file)
    }

    /// What lies beside the origin, to be made or opened apart from it.
    pub fn sides(&self) -> Sides {
        Sides {
            origin: self.origin.name(),
            image: self.origin.file().cloned(),
            read_only: self.origin.read_only(),
            ledger: self.ledger.clone(),
            journal: self.journal.clone(),
            ledger_path: self.ledger_path.clone(),
            journal_path: self.journal_path.clone(),
        }
    }

    /// Opens and locks a ledger or journal; `None` where it is missing and not to be made.
    pub fn side(
        &self,
        path: Option<&Path>,
        create: bool,
        patience: &mut Patience,
    ) -> Result<Option<Arc<Target>>, Fault> {
        self.sides().open(path, create, patience)
    }

    /// No write is on its way: an image that allocates has no cluster that nothing refers to.
    /// Blocks.
    pub fn end_allocations(&self) {
        let written = self.mapped.as_ref().filter(|mapped| mapped.is_written());
        let header = written.and_then(|mapped| Some((mapped, mapped.header()?)));
        if let Some((mapped, header)) = header
            && leaks::none(mapped.top(), header).is_err()
        {
            // The next start looks for some.
            let name = self.origin.name();
            tracing::warn!("{name}: its first sector cannot be written");
        }
    }

    /// Lets go of files that nobody else uses. Blocks.
    pub fn close(self) {
        Leavings::of(self).remove();
    }
}

/// The ledger and the journal of a volume, without its origin: a thread that may wait makes them.
#[derive(Clone, Debug)]
pub struct Sides {
    /// The name of the origin.
    pub origin: String,
    image: Option<Arc<Target>>,
    read_only: bool,
    pub ledger: Option<Arc<Target>>,
    pub journal: Option<Arc<Target>>,
    ledger_path: Option<PathBuf>,
    journal_path: Option<PathBuf>,
}

impl Sides {
    /// The image, if it is a file or a device.
    pub fn image_file(&self) -> Option<&fs::File> {
        self.image.as_ref().map(|image| &image.file)
    }

    /// The same to be read, with the length that it has now.
    pub fn image_as_it_is(&self) -> Result<Option<Arc<Target>>, Fault> {
        let Some(image) = &self.image else {
            return Ok(None);
        };
        let failed = |error| Fault::io(&image.name(), "open it", error);
        let mut target = image.shared().map_err(failed)?;
        if !target.block_device {
            target.size_bytes = target.file.metadata().map_err(failed)?.len();
        }
        Ok(Some(Arc::new(target)))
    }

    /// Whether a journal can lie beside it, or in a place that was named.
    pub fn has_journal_place(&self) -> bool {
        self.journal_path.is_some()
    }

    /// Makes what is missing. False where nothing can lie beside the origin.
    pub fn make(&mut self, patience: &mut Patience) -> Result<bool, Fault> {
        if self.ledger.is_none() {
            self.ledger = self.open(self.ledger_path.as_deref(), true, patience)?;
        }
        if self.journal.is_none() {
            self.journal = self.open(self.journal_path.as_deref(), true, patience)?;
        }
        Ok(self.ledger.is_some())
    }

    /// Whether ledger and journal are found under their names.
    pub fn are_named(&self) -> bool {
        let sides = [&self.ledger, &self.journal];
        sides.into_iter().flatten().all(|side| side.is_named())
    }

    /// Writes again what somebody has removed or replaced, with what it held; the paths of those.
    pub fn renew(&mut self) -> Result<Vec<PathBuf>, Fault> {
        let lost = |target: &Option<Arc<Target>>| {
            let target = target.as_ref().filter(|target| !target.is_named());
            target.cloned()
        };
        let mut made = Vec::new();
        if let Some(old) = lost(&self.ledger) {
            self.ledger = self.write_again(&old, self.ledger_path.as_deref())?;
            made.extend(self.ledger_path.clone());
        }
        if let Some(old) = lost(&self.journal) {
            self.journal = self.write_again(&old, self.journal_path.as_deref())?;
            made.extend(self.journal_path.clone());
        }
        Ok(made)
    }

    /// The image is locked for us, so whatever lies there now is nobody's.
    fn write_again(&self, old: &Target, path: Option<&Path>) -> Result<Option<Arc<Target>>, Fault> {
        let Some(fresh) = self.open(path, true, &mut Patience::none())? else {
            return Ok(None);
        };
        // Past direct I/O, for which ends of files are too short.
        let buffered = |target: &Target| format!("/proc/self/fd/{}", target.fd());
        let copy = || -> io::Result<()> {
            let mut from = fs::File::open(buffered(old))?;
            let mut to = fs::File::options().write(true).open(buffered(&fresh))?;
            to.set_len(0)?;
            io::copy(&mut from, &mut to)?;
            to.sync_all()
        };
        let failed = |error| Fault::io(&fresh.name(), "write it again", error);
        copy().map_err(failed)?;
        sync_directory(&fresh.path).map_err(failed)?;
        Ok(Some(fresh.clone()))
    }

    fn open(
        &self,
        path: Option<&Path>,
        create: bool,
        patience: &mut Patience,
    ) -> Result<Option<Arc<Target>>, Fault> {
        let Some(path) = path else {
            return Ok(None);
        };
        let (mode, owner) = self.rights()?;
        let create = create.then_some(mode);
        let opened = open_side(path, !self.read_only, create, patience)?;
        let Some((target, created)) = opened else {
            return Ok(None);
        };
        if created && let Some((user, group)) = owner {
            // Best effort: without the right to give files away it stays ours.
            let _ = std::os::unix::fs::fchown(&target.file, Some(user), Some(group));
        }
        Ok(Some(Arc::new(target)))
    }

    /// Permission bits of a ledger or journal, and whose it is, if not ours. Whoever may read an
    /// image may read its ledger: the next host may be another user.
    fn rights(&self) -> Result<(u32, Option<(u32, u32)>), Fault> {
        let image = self.image.as_ref().filter(|target| !target.block_device);
        let Some(image) = image else {
            return Ok((0o600, None));
        };
        let meta = image.file.metadata();
        let meta = meta.map_err(|error| Fault::io(&image.name(), "stat it", error))?;
        let mode = meta.mode() & 0o666 | 0o600;
        Ok((mode, Some((meta.uid(), meta.gid()))))
    }
}

fn open_image(
    path: &Path,
    name: &str,
    request: &Request,
    patience: &mut Patience,
) -> Result<Target, Fault> {
    let write = !request.access.reads();
    let mode = if write { Mode::Exclusive } else { Mode::Shared };
    if write {
        refuse_used_device(path, name)?;
    }
    let how = How {
        write,
        ..How::default()
    };
    let mut target = Target::open(path, how).map_err(|e| Fault::io(name, "open it", e))?;
    target.lasts = !sys::forgets_inodes(&target.file);
    target.named = std::path::absolute(&request.path).ok();
    target.unlocked = request.access == Access::Unlocked;
    // On NFS a shared flock is a lock on all bytes, which would keep every other reader from
    // looking whether someone writes. There a reader's image locks alone keep writers away.
    if write || !target.unlocked && !sys::is_nfs(&target.file) {
        lock::acquire(&target.file, name, mode, patience)?;
    }
    if !target.unlocked {
        lock::acquire_image(&target.file, name, mode, patience)?;
    }
    if !still_named(&target, path) {
        let message = format!("{name}: was replaced while it was opened; try again");
        return Err(Fault::new(Kind::InUse, message));
    }
    let qcow2 = is_written_as_qcow2(&target, request, name)?;
    // Only now: a writer that was killed in the middle of a resize has ended.
    if !target.block_device {
        let meta = target
            .file
            .metadata()
            .map_err(|e| Fault::io(name, "stat it", e))?;
        target.size_bytes = meta.len();
    }
    // What is refused is left as it is; when it is not, its end is made whole.
    if qcow2 {
        return Ok(target);
    }
    if target.size_bytes == 0 || !target.size_bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(Fault::new(
            Kind::Invalid,
            format!(
                "{name}: has {} bytes; a raw image has one or more whole sectors of 512 bytes",
                target.size_bytes
            ),
        ));
    }
    let limit = sys::file_bytes_max();
    if write && !target.block_device && target.size_bytes > limit {
        let fault = Fault::too_large(name, target.size_bytes, limit);
        tracing::warn!("{fault}; sectors beyond it cannot be written");
    }
    buffer_odd_end(&mut target, name)?;
    Ok(target)
}

/// A copy that is repaired is what its first bytes say.
fn format_of(request: &Request) -> Format {
    match request.access {
        Access::Bytes => Format::Auto,
        Access::Read | Access::Write | Access::Unlocked => request.format,
    }
}

/// The last sectors of such a file cannot be written directly without making it longer.
fn buffer_odd_end(target: &mut Target, name: &str) -> Result<(), Fault> {
    let align = u64::from(target.dio_align);
    if target.size_bytes.is_multiple_of(align) {
        return Ok(());
    }
    let gone = target.go_buffered();
    gone.map_err(|error| Fault::io(name, "turn direct I/O off", error))
}

/// Whether its bytes are those of a qcow2 file, which need not be whole sectors. What is neither
/// that nor raw is refused.
fn is_written_as_qcow2(target: &Target, request: &Request, name: &str) -> Result<bool, Fault> {
    match request.access {
        Access::Bytes => Ok(mapped::is_qcow2(target, Format::Auto)),
        Access::Write if mapped::is_qcow2(target, request.format) => Ok(true),
        _ if request.format == Format::Raw => Ok(false),
        _ => refuse_other_formats(target, name).map(|()| false),
    }
}

/// What was raw before is no qcow2 image because of its first bytes.
fn refuse_guess(
    request: &Request,
    ledger: Option<&Ledger>,
    looks_like_qcow2: impl FnOnce() -> bool,
) -> Result<(), Fault> {
    let raw = request.format == Format::Auto && ledger.is_some_and(written::is_of_raw);
    match raw && looks_like_qcow2() {
        true => Err(written::refuse_guess(&request.path)),
        false => Ok(()),
    }
}

/// A guest can write any header into a raw disk; probing it at the next start would hand the
/// guest whatever files that header names.
fn refuse_other_formats(target: &Target, name: &str) -> Result<(), Fault> {
    let mut head = [0u8; signature::HEAD_BYTES];
    let read = target.read(0, &mut head);
    read.map_err(|_| Fault::new(Kind::Io, format!("{name}: its first bytes cannot be read")))?;
    let Some(format) = signature::image_format(&head) else {
        return Ok(());
    };
    let served = match format {
        "qcow2" => {
            "which is served with read-only = true or policy = \"ephemeral\", and not written in \
             this version"
        }
        _ => "which is not in this version",
    };
    Err(Fault::new(
        Kind::Foreign,
        format!(
            "{name}: its first bytes look like {format}, {served}; if it is a raw image all the \
             same, say format = \"raw\""
        ),
    ))
}

/// Paths of a ledger and a journal.
type SidePaths = (Option<PathBuf>, Option<PathBuf>);

/// Ledger and journal: `IMAGE.tenuto` and `IMAGE.tenuto-journal` beside it, or in the place given.
/// Beside a device nothing can lie: without a place it has a ledger of this host's own only.
fn side_paths(request: &Request, path: &Path, device: bool) -> Result<SidePaths, Fault> {
    // A device has its stable name in the configuration, not in what that resolves to.
    let identity = if device { request.path.as_path() } else { path };
    let names = match request.epoch {
        Some(epoch) => [beside::LEDGER, beside::JOURNAL].map(|it| beside::of_epoch(it, epoch)),
        None => [beside::LEDGER, beside::JOURNAL].map(str::to_owned),
    };
    let [ledger, journal] = &names;
    let places = (&request.journal_place, &request.ledger_place);
    Ok(match places {
        (Some(place), _) => (
            Some(in_place(place, identity, ledger)?),
            Some(in_place(place, identity, journal)?),
        ),
        (None, Some(place)) if device => (Some(in_place(place, identity, ledger)?), None),
        (None, None) if device => (None, None),
        (None, _) => (
            Some(beside::beside(path, ledger)),
            Some(beside::beside(path, journal)),
        ),
    })
}

fn open_side(
    path: &Path,
    write: bool,
    create: Option<u32>,
    patience: &mut Patience,
) -> Result<Option<(Target, bool)>, Fault> {
    let name = path.display().to_string();
    let how = How {
        write,
        create,
        claim_device: false,
        refuse_symlink: true,
    };
    for _ in 0..REPLACED_TRIES_MAX {
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.is_file() => {
                let message = format!("{name}: is not a regular file; remove it");
                return Err(Fault::new(Kind::Foreign, message));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && create.is_none() => {
                return Ok(None);
            }
            _ => {}
        }
        let target = Target::open(path, how).map_err(|error| cannot_open(&name, create, error))?;
        let mode = if write { Mode::Exclusive } else { Mode::Shared };
        if write || !sys::is_nfs(&target.file) {
            lock::acquire(&target.file, &name, mode, patience)?;
        }
        if !still_named(&target, path) {
            continue;
        }
        let created = target.size_bytes == 0 && create.is_some();
        if created {
            // Also where another has just made it: his name may not be durable yet.
            sync_directory(path).map_err(|e| Fault::io(&name, "sync its directory", e))?;
        }
        return Ok(Some((target, created)));
    }
    let message = format!("{name}: is replaced again and again; stop the program that does it");
    Err(Fault::new(Kind::InUse, message))
}

fn cannot_open(name: &str, create: Option<u32>, error: io::Error) -> Fault {
    let mut fault = Fault::io(name, "open it", error);
    if create.is_some() {
        fault.message += "; it must be writable, or name another place by `journal`";
    }
    fault
}

/// Whoever had the lock before us may have removed the file under this name.
fn still_named(target: &Target, path: &Path) -> bool {
    let (Ok(ours), Ok(named)) = (target.file.metadata(), fs::metadata(path)) else {
        return false;
    };
    if ours.file_type().is_block_device() {
        return ours.rdev() == named.rdev();
    }
    ours.ino() == named.ino() && ours.dev() == named.dev()
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
