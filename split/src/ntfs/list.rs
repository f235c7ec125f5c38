//! What of a volume moves, and whether it may.
//!
//! Owns the meaning of rules on a volume: patterns are matched against the directories that are in
//! it; where one match lies inside another, the deeper rule wins; of two rules for one directory
//! that with fewer wildcards wins, then the later one. A match inside a moved directory that goes
//! to another volume becomes a mount point on the outer volume.
//!
//! Always true: nothing is written; links are not followed; what can not be split without a guest
//! seeing it is refused here, before anything is copied. A link with an absolute path that points
//! into what moves is no fault, because Windows resolves its path anew, through the mount point:
//! each profile has some (`\Users\x\Local Settings`). They are told, not refused.
//!
//! Deliberately absent: `fiwalk`, which knows neither reparse points nor EFS nor extended
//! attributes, and classes, for which the caller's volumes stand.

use super::error::{Error, Refused, io, names};
use super::mount::{Access, mounted};
use super::path::{Pattern, WindowsPath, folded, is_name};
use super::reparse::{self, Reparse};
use super::tree::{PAGE_FILE, entries, find, shown, streams};
use super::xattr;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirEntry, FileType};
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A record of the table of files, which each file has on its new volume.
const RECORD_BYTES: u64 = 1024;
const CLUSTER_BYTES: u64 = 4096;
/// So many links into what moves are told.
const LINKS_TOLD_MAX: usize = 100;
/// Windows does not start, or does not service itself, where one of these is a mount point.
const UNMOVABLE: [&str; 11] = [
    "\\WINDOWS",
    "\\WINDOWS\\SYSTEM32",
    "\\WINDOWS\\SYSTEM32\\CONFIG",
    "\\WINDOWS\\SYSTEM32\\DRIVERS",
    "\\WINDOWS\\WINSXS",
    "\\BOOT",
    "\\EFI",
    "\\RECOVERY",
    "\\SYSTEM VOLUME INFORMATION",
    "\\$RECYCLE.BIN",
    "\\$EXTEND",
];

/// Names that Windows and programs give to what a user would miss, in upper case.
pub(crate) const VALUED: [&str; 10] = [
    "CREDENTIALS",
    "CRYPTO",
    "FIREFOX",
    "LOGIN DATA",
    "PROTECT",
    "SIGNATURES",
    "STICKY NOTES",
    "THUNDERBIRD",
    "VAULT",
    "WALLET",
];

/// A new volume, in the caller's order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct VolumeIndex(pub usize);

#[derive(Clone, Debug)]
pub struct Rule {
    pub pattern: Pattern,
    /// None: what matches stays where it is.
    pub volume: Option<VolumeIndex>,
}

/// A directory that moves.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Moved {
    pub path: WindowsPath,
    pub volume: VolumeIndex,
    /// Of the rule that found it.
    pub rule: usize,
    /// Of the moved directory that it lies in; the next one above.
    pub outer: Option<usize>,
    pub files: u64,
    pub directories: u64,
    /// What its files hold, with their streams.
    pub bytes: u64,
    /// What a new volume needs for them, with nothing sparse or compressed.
    pub volume_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LinkInto {
    pub path: String,
    pub target: String,
}

/// Data of a user that moves, known by its name, with what is below it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Valued {
    pub path: String,
    pub volume: VolumeIndex,
    pub bytes: u64,
}

/// What [`list`] finds.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Found {
    /// An outer directory stands before those inside.
    pub moved: Vec<Moved>,
    /// Rules that match nothing.
    pub unmatched: Vec<usize>,
    /// Links from outside into what moves, the first of them; they lead there also afterwards.
    pub links_into: Vec<LinkInto>,
    /// Moved files with extended attributes, which the copy does not keep.
    pub extended_attributes: u64,
    pub valued: Vec<Valued>,
    /// What stays.
    pub system_files: u64,
    pub system_bytes: u64,
    /// None: there is no `\\pagefile.sys`.
    pub page_file_bytes: Option<u64>,
}

/// What one volume gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub paths: Vec<WindowsPath>,
    /// Directories inside of them that are on another volume.
    pub inner: Vec<WindowsPath>,
}

impl Found {
    pub fn share(&self, volume: VolumeIndex) -> Share {
        let mine = self.moved.iter().filter(|it| it.volume == volume);
        let inner = self.inner_links(volume).into_iter();
        Share {
            paths: mine.map(|it| it.path.clone()).collect(),
            inner: inner.map(|(path, _)| path).collect(),
        }
    }

    /// Directories of a new volume that become mount points.
    pub fn inner_links(&self, volume: VolumeIndex) -> Vec<(WindowsPath, VolumeIndex)> {
        let outer = |it: &Moved| it.outer.and_then(|at| self.moved.get(at));
        let inner = self.moved.iter();
        let inner = inner.filter(|it| outer(it).is_some_and(|it| it.volume == volume));
        inner.map(|it| (it.path.clone(), it.volume)).collect()
    }

    /// Directories of the system's volume that become mount points.
    pub fn system_links(&self) -> Vec<(WindowsPath, VolumeIndex)> {
        let outermost = self.moved.iter().filter(|it| it.outer.is_none());
        outermost.map(|it| (it.path.clone(), it.volume)).collect()
    }
}

pub fn list(partition: &Path, rules: &[Rule]) -> Result<Found, Error> {
    mounted(&[(partition, Access::Read)], |places| {
        let root = &places[0];
        let (matches, unmatched) = matches(root, rules)?;
        let moved = moved(matches, rules)?;
        let mut walk = Walk::new(root, moved);
        walk.walk()?;
        walk.check_hard_links()?;
        let page_file = find(root, &[PAGE_FILE])?;
        let bytes = page_file.map(|it| length(&it)).transpose()?;
        let mut found = walk.found;
        found.unmatched = unmatched;
        found.page_file_bytes = bytes;
        found.valued.retain(|it| it.bytes > 0);
        Ok(found)
    })
}

/// Which rule each matched directory has, and which rules match nothing.
type Matches = (BTreeMap<WindowsPath, usize>, Vec<usize>);

fn matches(root: &Path, rules: &[Rule]) -> Result<Matches, Error> {
    let mut matches = BTreeMap::new();
    let mut unmatched = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        let found = directories(root, rule)?;
        if found.is_empty() {
            unmatched.push(number);
        }
        for path in found {
            let winner = matches.entry(path).or_insert(number);
            if rule.pattern.wildcards() <= rules[*winner].pattern.wildcards() {
                *winner = number;
            }
        }
    }
    Ok((matches, unmatched))
}

/// All that the pattern of a rule matches.
fn directories(root: &Path, rule: &Rule) -> Result<Vec<WindowsPath>, Error> {
    let pattern = &rule.pattern;
    let mut found: Vec<Vec<String>> = vec![Vec::new()];
    for depth in 0..pattern.depth() {
        let mut deeper = Vec::new();
        for components in found {
            let mut directory = root.to_owned();
            directory.extend(&components);
            for entry in entries(&directory)? {
                let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                    continue;
                };
                if !pattern.matches(depth, &name) {
                    continue;
                }
                let mut path = components.clone();
                path.push(name);
                if is_taken(rule, depth, &entry, &path)? {
                    deeper.push(path);
                }
            }
        }
        found = deeper;
    }
    Ok(found.into_iter().map(WindowsPath::new).collect())
}

/// Whether a match is a directory that may be what the rule says. What a wildcard finds beside is
/// left where it is; what the rule names is an error.
fn is_taken(rule: &Rule, depth: usize, entry: &DirEntry, path: &[String]) -> Result<bool, Error> {
    let kind = entry
        .file_type()
        .map_err(io(&entry.path(), "it can not be read"))?;
    let is_end = depth + 1 == rule.pattern.depth();
    if is_end && rule.volume.is_none() {
        // Also a file inside of what moves can not stay behind.
        return Ok(true);
    }
    let path = WindowsPath::new(path.to_vec());
    let names_fit = path.components().iter().all(|it| is_name(it));
    let is_unmovable = UNMOVABLE.contains(&folded(&path.to_string()).as_str());
    let why = if kind.is_symlink() {
        "it is a reparse point already; leave it out of the rules"
    } else if !kind.is_dir() {
        "it is a file, and Windows mounts volumes at directories only; name its directory"
    } else if is_end && !names_fit {
        "its name has a character that Windows does not allow; leave it out of the rules"
    } else if is_end && is_unmovable {
        "Windows needs it on the disk that it starts from; move directories inside of it"
    } else {
        return Ok(true);
    };
    if !is_end || !rule.pattern.is_literal(depth) {
        return Ok(false);
    }
    let path = path.to_string();
    Err(Refused::Unmovable { path, why }.into())
}

/// Those that move, with the next one above; a match on the same volume as that is a part of it.
fn moved(matches: BTreeMap<WindowsPath, usize>, rules: &[Rule]) -> Result<Vec<Moved>, Refused> {
    let mut moved: Vec<Moved> = Vec::new();
    // A parent stands before its children, because its components are the beginning of theirs.
    for (path, rule) in matches {
        let outer = moved.iter().rposition(|it| it.path.contains(&path));
        let Some(volume) = rules[rule].volume else {
            if let Some(outer) = outer {
                let moved = moved[outer].path.clone();
                return Err(Refused::KeepInside { keep: path, moved });
            }
            continue;
        };
        if outer.is_some_and(|it| moved[it].volume == volume) {
            continue;
        }
        // On the volume of that one, a directory above this path is a mount point to another.
        let mut above = outer.and_then(|it| moved[it].outer);
        while let Some(it) = above {
            if moved[it].volume == volume {
                return Err(Refused::Alternates {
                    path,
                    between: moved[outer.unwrap_or(it)].path.clone(),
                    outer: moved[it].path.clone(),
                });
            }
            above = moved[it].outer;
        }
        moved.push(Moved {
            path,
            volume,
            rule,
            outer,
            files: 0,
            directories: 0,
            bytes: 0,
            volume_bytes: 0,
        });
    }
    Ok(moved)
}

/// Names of a file with several, inside of what moves.
struct Linked {
    volume: VolumeIndex,
    names: Vec<String>,
    names_on_disk: u64,
    is_on_several: bool,
}

struct Walk<'a> {
    root: &'a Path,
    found: Found,
    by_path: HashMap<PathBuf, usize>,
    linked: BTreeMap<u64, Linked>,
}

/// A directory, the moved one that it lies in, and the entry of [`Found::valued`] that counts it.
struct Todo {
    path: PathBuf,
    owner: Option<usize>,
    valued: Option<usize>,
}

impl Walk<'_> {
    fn new(root: &Path, moved: Vec<Moved>) -> Walk<'_> {
        let paths = moved.iter().enumerate();
        let by_path = paths.map(|(at, it)| (it.path.under(root), at)).collect();
        Walk {
            root,
            found: Found {
                moved,
                ..Found::default()
            },
            by_path,
            linked: BTreeMap::new(),
        }
    }

    /// The whole volume, because a link into what moves may be anywhere.
    fn walk(&mut self) -> Result<(), Error> {
        let mut pending = vec![Todo {
            path: self.root.to_owned(),
            owner: None,
            valued: None,
        }];
        while let Some(directory) = pending.pop() {
            for entry in entries(&directory.path)? {
                let path = entry.path();
                let kind = entry.file_type();
                let kind = kind.map_err(io(&path, "it can not be read"))?;
                let mut owner = directory.owner;
                if kind.is_dir() {
                    owner = self.by_path.get(&path).copied().or(owner);
                }
                let valued = directory.valued.or_else(|| self.valued(&path, owner));
                let before = owner.map_or(0, |it| self.found.moved[it].bytes);
                self.entry(&path, kind, owner)?;
                if let (Some(owner), Some(valued)) = (owner, valued) {
                    let bytes = self.found.moved[owner].bytes - before;
                    self.found.valued[valued].bytes += bytes;
                }
                if kind.is_dir() {
                    pending.push(Todo {
                        path,
                        owner,
                        valued,
                    });
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, kind: FileType, owner: Option<usize>) -> Result<(), Error> {
        if kind.is_symlink() {
            return self.reparse_point(path, owner);
        }
        match owner {
            None if kind.is_dir() => {}
            None => {
                self.found.system_files += 1;
                self.found.system_bytes += length(path)?;
            }
            Some(owner) => {
                self.refuse_encrypted(path)?;
                if kind.is_dir() {
                    self.count(path, owner)?;
                    self.found.moved[owner].directories += 1;
                } else {
                    self.file(path, owner)?;
                }
            }
        }
        Ok(())
    }

    /// A new entry, where the name is known.
    fn valued(&mut self, path: &Path, owner: Option<usize>) -> Option<usize> {
        let name = folded(path.file_name()?.to_str()?);
        if !VALUED.contains(&name.as_str()) && !name.ends_with(".PST") {
            return None;
        }
        let volume = self.found.moved[owner?].volume;
        let path = shown(self.root, path);
        let bytes = 0;
        self.found.valued.push(Valued {
            path,
            volume,
            bytes,
        });
        Some(self.found.valued.len() - 1)
    }

    fn refuse_encrypted(&self, path: &Path) -> Result<(), Error> {
        if xattr::attributes(path)? & xattr::ATTRIBUTE_ENCRYPTED != 0 {
            return Err(Refused::Encrypted(shown(self.root, path)).into());
        }
        Ok(())
    }

    /// Streams and extended attributes, which directories have as well.
    fn count(&mut self, path: &Path, owner: usize) -> Result<(), Error> {
        if xattr::get(path, xattr::EXTENDED)?.is_some_and(|it| !it.is_empty()) {
            self.found.extended_attributes += 1;
        }
        let moved = &mut self.found.moved[owner];
        moved.volume_bytes += RECORD_BYTES;
        for stream in streams(path)? {
            let stream = fs::metadata(&stream).map_err(io(&stream, "it can not be read"))?;
            moved.bytes += stream.len();
            moved.volume_bytes += stream.len().next_multiple_of(CLUSTER_BYTES);
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, owner: usize) -> Result<(), Error> {
        let metadata = metadata(path)?;
        let mut is_new = true;
        // A short name counts as one more, where the file has but one other.
        let is_short = metadata.nlink() == 2 && xattr::get(path, xattr::SHORT_NAME)?.is_some();
        if metadata.nlink() > 1 && !is_short {
            let volume = self.found.moved[owner].volume;
            let linked = self.linked.entry(metadata.ino()).or_insert(Linked {
                volume,
                names: Vec::new(),
                names_on_disk: metadata.nlink(),
                is_on_several: false,
            });
            linked.is_on_several |= linked.volume != volume;
            is_new = linked.names.is_empty();
            linked.names.push(shown(self.root, path));
        }
        self.found.moved[owner].files += 1;
        if is_new {
            self.count(path, owner)?;
            let moved = &mut self.found.moved[owner];
            moved.bytes += metadata.len();
            moved.volume_bytes += metadata.len().next_multiple_of(CLUSTER_BYTES);
        }
        Ok(())
    }

    fn reparse_point(&mut self, path: &Path, owner: Option<usize>) -> Result<(), Error> {
        let data = xattr::get(path, xattr::REPARSE)?.unwrap_or_default();
        if let Some(owner) = owner {
            self.refuse_encrypted(path)?;
            self.count(path, owner)?;
            self.found.moved[owner].files += 1;
        }
        let (target, is_relative) = match reparse::read(&data) {
            Reparse::MountPoint(target) => (target, false),
            Reparse::Symlink {
                target,
                is_relative,
            } => (target, is_relative),
            Reparse::Deduplicated if owner.is_some() => {
                return Err(Refused::Deduplicated(shown(self.root, path)).into());
            }
            Reparse::Deduplicated | Reparse::Other => return Ok(()),
        };
        let resolved = match (is_relative, path.parent()) {
            (true, Some(parent)) => resolved(&shown(self.root, parent), &target),
            _ => absolute(&target),
        };
        if let Some(owner) = owner
            && is_relative
            && !is_in(&resolved, &self.found.moved[owner].path)
        {
            return Err(Refused::LinkLeaves {
                path: shown(self.root, path),
                target,
                moved: self.found.moved[owner].path.clone(),
            }
            .into());
        }
        let mut moved = self.found.moved.iter();
        let into = moved.rposition(|it| is_in(&resolved, &it.path));
        if into.is_some() && into != owner && self.found.links_into.len() < LINKS_TOLD_MAX {
            let path = shown(self.root, path);
            self.found.links_into.push(LinkInto { path, target });
        }
        Ok(())
    }

    /// Those whose names were not all found inside need a look at all others.
    fn check_hard_links(&self) -> Result<(), Error> {
        let inside = |it: &Linked| it.names.len() as u64;
        let mut several = self.linked.values().filter(|it| it.is_on_several);
        if let Some(linked) = several.next() {
            return Err(Refused::HardLink(names(&linked.names)).into());
        }
        let missing = self
            .linked
            .iter()
            .filter(|(_, it)| inside(it) < it.names_on_disk);
        let missing: HashMap<u64, &Linked> = missing.map(|(inode, it)| (*inode, it)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut pending = vec![self.root.to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in entries(&directory)? {
                let path = entry.path();
                let kind = entry.file_type().map_err(io(&path, "it can not be read"))?;
                if kind.is_dir() && !self.by_path.contains_key(&path) {
                    pending.push(path);
                } else if let Some(linked) = missing.get(&entry.ino())
                    && !kind.is_dir()
                {
                    let mut all = vec![shown(self.root, &path)];
                    all.extend_from_slice(&linked.names);
                    return Err(Refused::HardLink(names(&all)).into());
                }
            }
        }
        // What is missing is a short name.
        Ok(())
    }
}

fn metadata(path: &Path) -> Result<fs::Metadata, Error> {
    fs::symlink_metadata(path).map_err(io(path, "it can not be read"))
}

fn length(path: &Path) -> Result<u64, Error> {
    Ok(metadata(path)?.len())
}

/// Whether a path of Windows is that directory or below it.
fn is_in(path: &str, directory: &WindowsPath) -> bool {
    let rest = folded(path);
    let rest = rest.strip_prefix(&folded(&directory.to_string()));
    rest.is_some_and(|it| it.is_empty() || it.starts_with('\\'))
}

/// The path within its volume of `\??\C:\x` and the like.
fn absolute(target: &str) -> String {
    let target = target.strip_prefix("\\??\\").unwrap_or(target);
    let at = target.find('\\').unwrap_or(target.len());
    target[at..].trim_end_matches('\\').to_owned()
}

/// The path that a relative link in a directory leads to.
fn resolved(directory: &str, target: &str) -> String {
    let mut components: Vec<&str> = match target.starts_with('\\') {
        // From the root of the volume that the link is on.
        true => Vec::new(),
        false => directory.split('\\').filter(|it| !it.is_empty()).collect(),
    };
    for component in target.split('\\') {
        match component {
            "" | "." => {}
            ".." => {
                components.pop();
            }
            name => components.push(name),
        }
    }
    components.iter().map(|it| format!("\\{it}")).collect()
}
