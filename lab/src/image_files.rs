//! Files of a disk's image: which of them a request without a path belongs to.
//!
//! Owns the programs that know foreign structures: `partx` the table of partitions, `debugfs` ext2,
//! ext3 and ext4; NTFS is asked for in [`ntfs`]. Always true: an image is only read; the map is of
//! the image as it is now, so that a file which went away since the trace was recorded is not in
//! it. Deliberately absent: other file systems and formats other than raw; what nothing is known of
//! stays without a path.

pub mod contents;
mod ntfs;

use crate::inputs::{failed, unreadable};
use contents::{Contents, FileSystem};
use host::error::{Error, Result, cause};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use workload::trace::analyze::places::{self, Entry, Name, Places};
use workload::trace::{NameId, Names, SECTOR_BYTES};

/// Where the lists of packages are; those of rpm are a database that no program here reads.
const PACKAGES: &str = "/var/lib/dpkg/info/";

/// A disk of the trace, and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOf {
    pub disk: String,
    pub image: PathBuf,
}

pub fn argument(text: &str) -> std::result::Result<ImageOf, String> {
    let parts = text.rsplit_once('=');
    let parts = parts.filter(|(disk, image)| !disk.is_empty() && !image.is_empty());
    let (disk, image) = parts.ok_or("write it as DISK=IMAGE")?;
    Ok(ImageOf {
        disk: disk.to_owned(),
        image: image.into(),
    })
}

/// The files of one disk.
struct Files {
    disk: String,
    places: Places,
    /// Their numbers in the table of paths, once asked for.
    ids: Vec<Option<NameId>>,
}

/// The files of all disks that have an image.
#[derive(Default)]
pub struct Images {
    files: Vec<Files>,
    /// By disk, once it was looked for.
    by_disk: Vec<Option<usize>>,
}

impl Images {
    /// Reads them; all names too, where something is given for them.
    pub fn read(images: &[ImageOf], mut contents: Option<&mut Contents>) -> Result<Images> {
        let mut all = Images::default();
        for ImageOf { disk, image } in images {
            let places = files_of(image, contents.as_deref_mut())?;
            all.files.push(Files {
                disk: disk.clone(),
                ids: vec![None; places.files()],
                places,
            });
        }
        Ok(all)
    }

    /// Before the same traces are read once more: numbers of disks and paths are given anew.
    pub fn begin_again(&mut self) {
        self.by_disk.clear();
        self.files.iter_mut().for_each(|it| it.ids.fill(None));
    }

    /// Whether a disk has an image.
    pub fn has(&mut self, disks: &Names, disk: NameId) -> bool {
        self.files_of(disks, disk).is_some()
    }

    /// The path of a request on a disk; names that are new go into the table of paths.
    pub fn path(&mut self, disks: &Names, disk: NameId, sector: u64) -> Option<Found<'_>> {
        let at = self.files_of(disks, disk)?;
        let files = &mut self.files[at];
        let number = files.places.at(sector)?;
        Some(Found { files, number })
    }

    fn files_of(&mut self, disks: &Names, disk: NameId) -> Option<usize> {
        for name in disks.all().iter().skip(self.by_disk.len()) {
            let at = self.files.iter().position(|it| it.disk == *name);
            self.by_disk.push(at);
        }
        *self.by_disk.get(disk.0 as usize)?
    }

    /// Disks that were named and are in no trace.
    pub fn without_disk(&self) -> Vec<String> {
        let used: HashSet<usize> = self.by_disk.iter().flatten().copied().collect();
        let unused = (0..self.files.len()).filter(|at| !used.contains(at));
        unused.map(|at| self.files[at].disk.clone()).collect()
    }
}

pub struct Found<'a> {
    files: &'a mut Files,
    number: usize,
}

impl Found<'_> {
    pub fn id(self, paths: &mut Names) -> NameId {
        let name = self.files.places.name(self.number);
        *self.files.ids[self.number].get_or_insert_with(|| paths.id(name))
    }
}

fn files_of(image: &Path, mut contents: Option<&mut Contents>) -> Result<Places> {
    let file = std::fs::File::open(image);
    let file = file.map_err(|error| unreadable(image, &error, "an image"))?;
    let mut places = Places::default();
    let starts = starts(image)?.into_iter();
    let (of_ntfs, others): (Vec<u64>, _) = starts.partition(|start| ntfs::is_ntfs(&file, *start));
    for start_sector in others {
        add(image, start_sector, &mut places, contents.as_deref_mut())?;
    }
    if !of_ntfs.is_empty() {
        ntfs::add(image, &of_ntfs, &mut places, contents)?;
    }
    if places.files() == 0 {
        let why = "no ext2, ext3, ext4 or NTFS file system is in it; others, and formats other \
            than raw, are not known";
        return Err(failed(image, why));
    }
    places.close();
    Ok(places)
}

/// Where file systems may begin: at the beginning, and with each partition.
fn starts(image: &Path) -> Result<Vec<u64>> {
    let mut command = Command::new("partx");
    command
        .args(["--show", "--noheadings", "--output", "START"])
        .arg(image);
    let output = command.stderr(Stdio::null()).output();
    let output = output.map_err(|error| without("partx", &error))?;
    let mut starts = vec![0];
    // It fails where there is no table.
    if output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        starts.extend(
            text.lines()
                .filter_map(|line| line.trim().parse::<u64>().ok()),
        );
    }
    Ok(starts)
}

pub fn without(program: &str, error: &std::io::Error) -> Error {
    let of = match program {
        "partx" | "prlimit" => "util-linux",
        "fiwalk" => "sleuthkit",
        _ => "e2fsprogs",
    };
    Error::failed(format!(
        "{program}: {}; --image needs it, from the package {of}",
        cause(error)
    ))
}

/// The files of the file system that begins there, if it is one.
fn add(
    image: &Path,
    start_sector: u64,
    places: &mut Places,
    contents: Option<&mut Contents>,
) -> Result<()> {
    let target = target(image, start_sector);
    let stats = debugfs(&target, "stats\n")?;
    let Some(block_bytes) = places::block_bytes(&stats) else {
        return Ok(());
    };
    let mut entries: Vec<Entry> = Vec::new();
    let mut level = vec![2];
    let mut known: HashSet<u64> = HashSet::from([2]);
    while !level.is_empty() {
        let found = places::entries(&debugfs(&target, &commands("ls -p", &level))?);
        let below = found
            .iter()
            .filter(|it| it.is_directory && known.insert(it.inode));
        level = below.map(|it| it.inode).collect();
        entries.extend(found);
    }
    let paths = places::paths(&entries);
    let mut inodes: Vec<u64> = paths.keys().copied().collect();
    inodes.sort_unstable();
    let blocks = places::blocks(&debugfs(&target, &commands("stat", &inodes))?);
    places.add(
        "/[metadata]",
        start_sector,
        block_bytes,
        &places::metadata(&stats),
    );
    for inode in inodes {
        if let Some(blocks) = blocks.get(&inode) {
            places.add(&paths[&inode], start_sector, block_bytes, blocks);
        }
    }
    if let Some(contents) = contents {
        let names = places::names(&entries, &paths);
        contents.file_systems.push(FileSystem {
            is_ntfs: false,
            packages: packages(&target, &names)?,
            names,
        });
    }
    Ok(())
}

/// What the lists of Debian's packages name; nothing where there are none.
fn packages(target: &OsStr, names: &[Name]) -> Result<Option<Vec<String>>> {
    let is_list = |it: &&Name| {
        let name = it
            .path
            .strip_prefix(PACKAGES)
            .filter(|it| !it.contains('/'));
        name.is_some_and(|it| it.ends_with(".list")) && !it.is_directory
    };
    let inodes: Vec<u64> = names.iter().filter(is_list).map(|it| it.file).collect();
    if inodes.is_empty() {
        return Ok(None);
    }
    Ok(Some(places::listed(&debugfs(
        target,
        &commands("cat", &inodes),
    )?)))
}

fn target(image: &Path, start_sector: u64) -> OsString {
    let mut target = OsString::from(image);
    if start_sector > 0 {
        target.push(format!(
            "?offset={}",
            start_sector.saturating_mul(SECTOR_BYTES)
        ));
    }
    target
}

fn commands(command: &str, inodes: &[u64]) -> String {
    inodes
        .iter()
        .map(|inode| format!("{command} <{inode}>\n"))
        .collect()
}

/// What `debugfs` answers; nothing where there is no file system it knows.
fn debugfs(target: &OsStr, commands: &str) -> Result<String> {
    let mut child = Command::new("debugfs")
        .args(["-f", "-"])
        .arg(target)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| without("debugfs", &error))?;
    let mut input = child.stdin.take().expect("it was asked for");
    let output = std::thread::scope(|scope| {
        // Beside the reading, because either side may be full. It ends early where the image is
        // none of its kind.
        scope.spawn(move || input.write_all(commands.as_bytes()).ok());
        child.wait_with_output()
    });
    let output = output.map_err(|error| without("debugfs", &error))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_with_its_disk() {
        let found = argument("hm,1=/a=b.img").map(|it| (it.disk, it.image));
        assert_eq!(found, Ok(("hm,1=/a".to_owned(), "b.img".into())));
        assert!(argument("x").is_err() && argument("=x").is_err() && argument("x=").is_err());
    }
}
