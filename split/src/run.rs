//! The course of a split: what is looked at, what is done, in which order.
//!
//! Always true: the input is opened for reading alone; each step begins from the last state that is
//! durable and leaves the same behind as if it had not been stopped before; one run at a time works
//! in a directory. Deliberately absent: what a step does to a file system.

use crate::disk::{self, Disk, Image, Part};
use crate::error::{Error, Kind, Result};
use crate::kind::{Class, FileSystem, Layout, Partitions, SYSTEM_FILE, SwapPartition, Volume};
use crate::linux::{KINDS, Linux};
use crate::plan::layout;
use crate::programs::run;
use crate::report::Report;
use crate::rules::{Family, Rules};
use crate::state::{FILE, Progress, State, sync, write_durably};
use crate::sys::{sharing, with_own_mounts};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Mount points and other places of a run, within the output directory.
const SCRATCH: &str = "work";
/// What file systems and tables take of their own.
const OWN_BYTES: u64 = 256 << 20;
/// Three seconds in all.
const LOCK_TRIES: u32 = 150;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// QEMU's server of a disk ends by itself now and then, and a step can be done again.
const SERVER_TRIES: u32 = 4;
pub const VOLUMES_FILE: &str = "volumes.toml";

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    pub image: PathBuf,
    pub rules: Rules,
    pub output: PathBuf,
    /// The kernel of this host may read the file systems of the image.
    pub trusted: bool,
    /// The system disk holds all of its data, and does not stand on the image.
    pub copy: bool,
}

/// Is told of each step; an error stops the run, which can go on later.
pub trait Watch {
    /// All of a step is done, and not yet remembered.
    fn worked(&mut self, _state: State) -> Result<()> {
        Ok(())
    }

    fn reached(&mut self, state: State) -> Result<()>;
}

/// A split that is decided, and may have been begun.
#[derive(Debug)]
pub struct Split {
    image: Image,
    output: PathBuf,
    trusted: bool,
    progress: Progress,
    begun: bool,
}

/// What is open of the image.
struct Input {
    disk: Disk,
    parts: Vec<Part>,
}

impl Split {
    /// Looks at the image, or at how far an earlier run came. Nothing is written.
    pub fn look(request: &Request) -> Result<Split> {
        let image = Image::look_at(&request.image)?;
        let output = std::path::absolute(&request.output)
            .map_err(|error| Error::io(&request.output, &error))?;
        disk::in_words(&output)?;
        if let Some(progress) = Progress::load(&output)? {
            progress.is_of(&output, &image, &request.rules, request.copy)?;
            return Ok(Split {
                image,
                output,
                trusted: request.trusted,
                progress,
                begun: true,
            });
        }
        is_free(&output)?;
        let progress = with_own_mounts(|| plan(&image, request))?;
        Ok(Split {
            image,
            output,
            trusted: request.trusted,
            progress,
            begun: false,
        })
    }

    /// How far an earlier run came.
    pub fn begun(&self) -> Option<State> {
        self.begun.then_some(self.progress.state)
    }

    pub fn refusals(&self) -> &[String] {
        &self.progress.layout.listing.refusals
    }

    /// Why the image cannot be split with these rules, in one line.
    pub fn refusal(&self) -> Option<String> {
        let shown = self.image.path.display();
        let (first, rest) = self.refusals().split_first()?;
        Some(match rest.len() {
            0 => format!("image {shown}: {first}"),
            more => format!("image {shown}: {first} (and {more} more, which --plan shows)"),
        })
    }

    pub fn moves_nothing(&self) -> bool {
        let layout = self.layout();
        layout.volumes.is_empty() && layout.listing.forgotten.is_empty()
    }

    pub fn report(&self) -> Report<'_> {
        Report {
            image: &self.image.path,
            output: &self.output,
            partition: self.progress.partition,
            file_system: &self.progress.file_system,
            layout: &self.progress.layout,
            rules: &self.progress.rules,
            copy: self.progress.copy,
        }
    }

    pub fn volumes_file(&self) -> PathBuf {
        self.output.join(VOLUMES_FILE)
    }

    /// Does all that is left to do.
    pub fn run(&mut self, watch: &mut (dyn Watch + Send)) -> Result<()> {
        let shown = self.image.path.display();
        if let Some(refusal) = self.refusal() {
            return Err(Error::refused(refusal));
        }
        if self.moves_nothing() {
            return Err(Error::refused(format!(
                "image {shown}: has nothing that the rules move; leave it as it is, or give rules \
                 that name its paths"
            )));
        }
        let output = self.output.clone();
        std::fs::create_dir_all(&output).map_err(|error| Error::io(&output, &error))?;
        let lock = lock(&output)?;
        if !self.begun {
            is_free(&output)?;
            self.has_room()?;
            self.progress.save(&output)?;
            watch.reached(State::Planned)?;
        }
        let mut tries = SERVER_TRIES;
        loop {
            tries -= 1;
            // Mounts of a server that is gone stay in the name space of that try.
            let done = with_own_mounts(|| sharing(&lock, || self.steps(watch)));
            match done {
                Err(error) if error.kind == Kind::ServerEnded && tries > 0 => {}
                done => return done,
            }
        }
    }

    /// Refuses to begin what would fill the storage of the new disks.
    fn has_room(&self) -> Result<()> {
        let listing = &self.layout().listing;
        let stays = if self.progress.copy {
            listing.system_bytes
        } else {
            0
        };
        // The first member of a pool gets copies of what it keeps.
        let copies = |class: Class| match self.progress.rules.pool.is_some() && !class.is_relaxed()
        {
            true => 2,
            false => 1,
        };
        let moved = listing.moved.iter();
        let moved = moved.map(|it| it.bytes.saturating_mul(copies(it.class)));
        let needs = moved
            .fold(stays, u64::saturating_add)
            .saturating_add(OWN_BYTES);
        let mut command = Command::new("df");
        command.args(["--output=avail", "-B1"]).arg(&self.output);
        let output = run("coreutils", &mut command)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let free = said
            .lines()
            .last()
            .and_then(|it| it.trim().parse::<u64>().ok());
        // A storage that does not say what it has is taken as it is.
        let Some(free) = free.filter(|it| *it < needs) else {
            return Ok(());
        };
        Err(Error::failed(format!(
            "{}: has {} MiB free, and the new disks take {} MiB; give a directory with more room",
            self.output.display(),
            free / disk::MIB,
            needs / disk::MIB
        )))
    }

    fn steps(&mut self, watch: &mut (dyn Watch + Send)) -> Result<()> {
        let scratch = self.output.join(SCRATCH);
        while let Some(next) = self.progress.state.next() {
            clean(&scratch)?;
            std::fs::create_dir(&scratch).map_err(|error| Error::io(&scratch, &error))?;
            self.step(next, &scratch)?;
            clean(&scratch)?;
            watch.worked(next)?;
            self.progress.state = next;
            self.progress.save(&self.output)?;
            watch.reached(next)?;
        }
        Ok(())
    }

    fn step(&self, next: State, scratch: &Path) -> Result<()> {
        let done = match next {
            State::Planned => Ok(()),
            State::Copied => self.copy(scratch),
            State::Verified => self.verify(scratch),
            State::Emptied => self.empty(scratch),
            State::Linked => self.link(scratch),
            State::Checked => self.check(scratch),
            State::Done => self
                .copy_own_disks(scratch)
                .and_then(|()| self.write_volumes()),
        };
        done.map_err(|error| {
            let shown = self.output.display();
            let name = next.name();
            Error::new(
                error.kind,
                format!("{shown}: on the way to {name}: {error}"),
            )
        })
    }

    fn file_system(&self, scratch: &Path) -> Result<Box<dyn FileSystem>> {
        let name = &self.progress.file_system;
        kind_of(name, self.trusted, scratch).ok_or_else(|| {
            let state = self.output.join(FILE);
            Error::usage(format!("{}: {name} is no known kind", state.display()))
        })
    }

    fn layout(&self) -> &Layout {
        &self.progress.layout
    }

    fn input(&self, scratch: &Path) -> Result<(Disk, PathBuf)> {
        let mut input = open(&self.image, scratch)?;
        let path = self.system_part(&mut input.disk, &input.parts)?;
        Ok((input.disk, path))
    }

    fn system_part(&self, disk: &mut Disk, parts: &[Part]) -> Result<PathBuf> {
        let number = self.progress.partition;
        let part = parts.iter().find(|it| it.number == number);
        let part = part.ok_or_else(|| {
            let shown = self.image.path.display();
            Error::failed(format!(
                "image {shown}: partition {number} is gone; begin again"
            ))
        })?;
        disk.part(part.number, part.at_bytes, part.bytes)
    }

    fn system_file(&self) -> PathBuf {
        self.output.join(SYSTEM_FILE)
    }

    /// The system disk, with its partition as a file.
    fn system(&self, scratch: &Path, parts: &[Part], writable: bool) -> Result<(Disk, PathBuf)> {
        let image = Image::look_at(&self.system_file())?;
        let mut disk = Disk::open(&image, scratch, "system", writable)?;
        let path = self.system_part(&mut disk, parts)?;
        Ok((disk, path))
    }

    /// The new disks, with their first partitions as files.
    fn volumes(&self, scratch: &Path, writable: bool) -> Result<(Vec<Disk>, Vec<PathBuf>)> {
        let (mut disks, mut paths) = (Vec::new(), Vec::new());
        for volume in &self.layout().volumes {
            let image = Image::look_at(&self.output.join(volume.file()))?;
            let mut disk = Disk::open(&image, scratch, volume.class.name(), writable)?;
            paths.push(disk.part(1, volume.start_bytes, volume.bytes)?);
            disks.push(disk);
        }
        Ok((disks, paths))
    }

    fn copy(&self, scratch: &Path) -> Result<()> {
        let kind = self.file_system(scratch)?;
        let (input, from) = self.input(scratch)?;
        for volume in &self.layout().volumes {
            let path = self.output.join(volume.file());
            let has_swap = kind.swaps_to_partition();
            disk::make(&path, volume, has_swap, kind.name() == "ntfs")?;
            let image = Image::look_at(&path)?;
            // One part at a time can be written.
            if let Some(swap) = volume.swap.as_ref().filter(|_| has_swap) {
                let mut new = Disk::open(&image, scratch, "swap", true)?;
                kind.make_swap(&new.part(2, swap.start_bytes, swap.bytes)?, swap)?;
                new.close()?;
            }
            let mut new = Disk::open(&image, scratch, volume.class.name(), true)?;
            let to = new.part(1, volume.start_bytes, volume.bytes)?;
            kind.make_volume(&to, volume)?;
            let moved: Vec<_> = self.layout().moved_to(volume.class).collect();
            if !moved.is_empty() {
                kind.copy(&from, &to, &moved)?;
            }
            new.close()?;
            sync(&path)?;
        }
        sync(&self.output)?;
        input.close()
    }

    fn verify(&self, scratch: &Path) -> Result<()> {
        let kind = self.file_system(scratch)?;
        let (input, from) = self.input(scratch)?;
        let (disks, paths) = self.volumes(scratch, false)?;
        for (volume, to) in self.layout().volumes.iter().zip(&paths) {
            let moved: Vec<_> = self.layout().moved_to(volume.class).collect();
            if !moved.is_empty() {
                kind.verify(&from, to, &moved)?;
            }
        }
        disks.into_iter().try_for_each(Disk::close)?;
        input.close()
    }

    /// Begins with a new system disk, so that nothing of a stopped run is left.
    fn empty(&self, scratch: &Path) -> Result<()> {
        let kind = self.file_system(scratch)?;
        let input = open(&self.image, scratch)?;
        disk::make_system(&self.image, &self.system_file(), self.progress.copy)?;
        let (system, path) = self.system(scratch, &input.parts, true)?;
        kind.empty(&path, self.layout())?;
        system.close()?;
        sync(&self.system_file())?;
        sync(&self.output)?;
        input.disk.close()
    }

    fn link(&self, scratch: &Path) -> Result<()> {
        self.with_all(scratch, true, |kind, partitions| {
            kind.link(partitions, self.layout())
        })?;
        let volumes = self.layout().volumes.iter().map(Volume::file);
        for name in volumes.chain([SYSTEM_FILE.to_owned()]) {
            sync(&self.output.join(name))?;
        }
        Ok(())
    }

    fn check(&self, scratch: &Path) -> Result<()> {
        self.with_all(scratch, false, |kind, partitions| {
            kind.check(partitions, self.layout())
        })
    }

    fn with_all(
        &self,
        scratch: &Path,
        writable: bool,
        work: impl FnOnce(&dyn FileSystem, &Partitions) -> Result<()>,
    ) -> Result<()> {
        let kind = self.file_system(scratch)?;
        let mut input = open(&self.image, scratch)?;
        let path = self.system_part(&mut input.disk, &input.parts)?;
        let (system, system_path) = self.system(scratch, &input.parts, writable)?;
        let (disks, volumes) = self.volumes(scratch, writable)?;
        let partitions = Partitions {
            input: path,
            system: system_path,
            volumes,
        };
        work(&*kind, &partitions)?;
        disks.into_iter().try_for_each(Disk::close)?;
        system.close()?;
        input.disk.close()
    }

    /// Gives the first member of a pool its disks. A copy that is there is whole, and its guest may
    /// have begun to write it.
    fn copy_own_disks(&self, scratch: &Path) -> Result<()> {
        for disk in self.report().own_disks() {
            if disk.copy.exists() {
                continue;
            }
            let new = scratch.join("copy");
            let mut command = Command::new("cp");
            command.args(["--sparse=always", "--"]).arg(&disk.template);
            run("coreutils", command.arg(&new))?;
            sync(&new)?;
            std::fs::rename(&new, &disk.copy).map_err(|error| Error::io(&disk.copy, &error))?;
        }
        sync(&self.output)
    }

    fn write_volumes(&self) -> Result<()> {
        let text = self.report().volumes_toml();
        write_durably(&self.volumes_file(), text.as_bytes())?;
        sync(&self.output)
    }
}

/// A directory that is not there, or has nothing of another's.
fn is_free(output: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(output) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| Error::io(output, &error))?,
    };
    let ours = [SCRATCH, "split.json.new"];
    for entry in entries {
        let name = entry
            .map_err(|error| Error::io(output, &error))?
            .file_name();
        if !ours.iter().any(|it| name == *it) {
            return Err(Error::usage(format!(
                "{}: is not empty, and no split was begun there; give a new directory",
                output.display()
            )));
        }
    }
    Ok(())
}

/// Held until the last program of a run is gone, also of one that was killed. Such programs end
/// within moments, which are waited for.
fn lock(output: &Path) -> Result<File> {
    let fail = |error: std::io::Error| Error::io(output, &error);
    let directory = File::open(output).map_err(fail)?;
    let mut left = LOCK_TRIES;
    loop {
        left -= 1;
        match directory.try_lock() {
            Ok(()) => break,
            Err(std::fs::TryLockError::WouldBlock) if left > 0 => {
                std::thread::park_timeout(LOCK_PAUSE);
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(Error::failed(format!(
                    "{}: another split works there; wait for its end",
                    output.display()
                )));
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(fail(error)),
        }
    }
    Ok(directory)
}

/// Removes places of mounts. What a killed run has mounted there, its kernel took away with it.
fn clean(scratch: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(scratch) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| Error::io(scratch, &error))?,
    };
    for entry in entries {
        let path = entry.map_err(|error| Error::io(scratch, &error))?.path();
        // Never what lies in a place: it could be mounted.
        let removed = match path.is_dir() {
            true => std::fs::remove_dir(&path),
            false => std::fs::remove_file(&path),
        };
        removed.map_err(|error| Error::io(&path, &error))?;
    }
    std::fs::remove_dir(scratch).map_err(|error| Error::io(scratch, &error))
}

fn kind_of(name: &str, trusted: bool, scratch: &Path) -> Option<Box<dyn FileSystem>> {
    if name == "ntfs" {
        return Some(Box::new(crate::ntfs::Windows));
    }
    let kind = KINDS.into_iter().find(|it| *it == name)?;
    Some(Box::new(Linux::new(kind, trusted, scratch)))
}

/// The kinds that rules of a family are for.
fn is_of(family: Family, kind: &str) -> bool {
    match family {
        Family::Linux => KINDS.contains(&kind),
        Family::Windows => kind == "ntfs",
    }
}

fn open(image: &Image, scratch: &Path) -> Result<Input> {
    let mut disk = Disk::open(image, scratch, "input", false)?;
    let whole = disk.whole()?;
    let parts = disk::parts(&whole, image)?;
    Ok(Input { disk, parts })
}

fn plan(image: &Image, request: &Request) -> Result<Progress> {
    let scratch = tempfile::tempdir().map_err(|error| Error::io(Path::new("/tmp"), &error))?;
    let mut input = open(image, scratch.path())?;
    let (part, path, kind) = system(image, request, &mut input, scratch.path())?;
    let swaps: Vec<SwapPartition> = input.parts.iter().filter_map(swap).collect();
    let listing = kind
        .list(&path, &request.rules, &swaps)
        .map_err(|error| of_part(image, &part, &error))?;
    let layout = layout(listing, &request.rules, kind.smallest_bytes())?;
    input.disk.close()?;
    let found = (part.number, kind.name());
    Ok(Progress::new(
        image,
        &request.rules,
        request.copy,
        found,
        layout,
    ))
}

fn of_part(image: &Image, part: &Part, error: &Error) -> Error {
    let shown = image.path.display();
    Error::new(
        error.kind,
        format!("image {shown}: {}: {error}", part.name()),
    )
}

fn swap(part: &Part) -> Option<SwapPartition> {
    let kind = part.found.kind.as_deref()?;
    let is_hibernated = ["swsuspend", "swsusp"].contains(&kind);
    (kind == "swap" || is_hibernated).then(|| SwapPartition {
        number: part.number,
        uuid: part.found.uuid.clone(),
        label: part.found.label.clone(),
        partition_uuid: part.partition_uuid.clone(),
        bytes: part.bytes,
        is_hibernated,
    })
}

/// The first part of a disk that holds a system of the rules' family.
fn system(
    image: &Image,
    request: &Request,
    input: &mut Input,
    scratch: &Path,
) -> Result<(Part, PathBuf, Box<dyn FileSystem>)> {
    let family = request.rules.family;
    for part in &input.parts {
        let name = part.found.kind.as_deref().filter(|it| is_of(family, it));
        let kind = name.and_then(|name| kind_of(name, request.trusted, scratch));
        let Some(kind) = kind else { continue };
        let path = input.disk.part(part.number, part.at_bytes, part.bytes)?;
        let is = kind.is_system(&path);
        if is.map_err(|error| of_part(image, part, &error))? {
            return Ok((part.clone(), path, kind));
        }
    }
    Err(no_system(image, family, &input.parts))
}

fn no_system(image: &Image, family: Family, parts: &[Part]) -> Error {
    let shown = image.path.display();
    let found: Vec<String> = parts
        .iter()
        .filter_map(|it| Some(format!("{} has {}", it.name(), it.found.kind.as_deref()?)))
        .collect();
    let found = match found.is_empty() {
        true => "nothing known".to_owned(),
        false => found.join(", "),
    };
    let has = |kind: &str| {
        parts
            .iter()
            .any(|it| it.found.kind.as_deref() == Some(kind))
    };
    let other = match family {
        Family::Linux if has("ntfs") => Some(("Linux", "windows-safe")),
        Family::Windows if KINDS.iter().any(|it| has(it)) => Some(("Windows", "linux")),
        Family::Linux | Family::Windows => None,
    };
    if let Some((these, right)) = other {
        return Error::usage(format!(
            "image {shown}: the rules are for {these}, and {found}; give --rules {right}"
        ));
    }
    let what = match family {
        Family::Linux => "a Linux system on ext4 or xfs, with a directory /etc",
        Family::Windows => "a Windows system on ntfs",
    };
    Error::new(
        Kind::Failed,
        format!(
            "image {shown}: no part of it has {what} ({found}); encrypted disks and volume \
                 managers cannot be split"
        ),
    )
}
