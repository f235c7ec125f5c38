//! What the paths of a file system hold, and what stands against a move.
//!
//! Always true: each file is counted once, for the path that it lies below; a file with several
//! names is moved with all of them or not at all. Deliberately absent: which paths the rules mean.

use super::fstab::Entry;
use super::matched::Matched;
use super::paths::{inside, is_at_or_below};
use crate::error::{Error, Result};
use crate::kind::{AtRisk, Class, Listing, Moved, PageFile, SwapPartition};
use crate::sys::{self, flags};
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// So many refusals of one kind are told; the rest is counted.
const TOLD_MAX: usize = 20;
const SECTOR: u64 = 512;
/// Where the mark of a swap area stands, and what it is while a machine sleeps there.
const SWAP_MARK_AT: u64 = 4096 - 10;
const SLEEPS: [&[u8]; 2] = [b"S1SUSPEND", b"S2SUSPEND"];
/// Names that users' programs give to what a user would miss.
pub(crate) const VALUED: [&str; 9] = [
    ".config",
    ".mozilla",
    ".thunderbird",
    "Signatures",
    "evolution",
    "firefox",
    "keyrings",
    "kmail2",
    "thunderbird",
];

/// What is known of one walk.
struct Walk<'a> {
    root: &'a Path,
    listing: Listing,
    /// The paths at which the owner of what lies below changes.
    marks: HashMap<PathBuf, Option<usize>>,
    /// Files with several names, by number.
    linked: BTreeMap<u64, Vec<(PathBuf, Option<usize>)>>,
    attributes: Told,
    sockets: Told,
    devices: Told,
}

/// How many there are of a kind, and the first ones.
#[derive(Default)]
struct Told {
    count: u64,
    first: Vec<String>,
}

impl Told {
    fn add(&mut self, what: String) {
        self.count += 1;
        if self.first.len() < TOLD_MAX {
            self.first.push(what);
        }
    }
}

/// A directory to be read: where it is below the root, to whom it belongs, and which entry of
/// [`Listing::at_risk`] counts it.
struct Todo {
    path: PathBuf,
    owner: Option<usize>,
    risk: Option<usize>,
}

pub fn list(root: &Path, matched: Matched) -> Result<Listing> {
    let mut marks = HashMap::new();
    let relative = |path: &str| PathBuf::from(path.trim_start_matches('/'));
    for (at, it) in matched.moved.iter().enumerate() {
        marks.insert(relative(&it.path), Some(at));
        marks.extend(it.kept.iter().map(|path| (relative(path), None)));
    }
    let mut walk = Walk {
        root,
        listing: Listing {
            moved: matched.moved,
            refusals: matched.refusals,
            warnings: matched.warnings,
            forgotten: matched.forgotten,
            ..Listing::default()
        },
        marks,
        linked: BTreeMap::new(),
        attributes: Told::default(),
        sockets: Told::default(),
        devices: Told::default(),
    };
    let mut todo = vec![Todo {
        path: PathBuf::new(),
        owner: None,
        risk: None,
    }];
    while let Some(directory) = todo.pop() {
        walk.read(&directory, &mut todo)?;
    }
    Ok(walk.end())
}

impl Walk<'_> {
    fn read(&mut self, directory: &Todo, todo: &mut Vec<Todo>) -> Result<()> {
        let place = self.root.join(&directory.path);
        let fail = |error: std::io::Error| Error::io(&place, &error);
        for entry in std::fs::read_dir(&place).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            // Of the entry itself: no link is followed.
            let about = entry.metadata().map_err(fail)?;
            let path = directory.path.join(entry.file_name());
            let owner = self.marks.get(&path).copied().unwrap_or(directory.owner);
            let risk = owner.and_then(|of| directory.risk.or_else(|| self.risk(&path, of)));
            self.count(&path, owner, risk, &about);
            if owner.is_some() {
                self.look(&path, &about)?;
            }
            if about.is_dir() {
                todo.push(Todo { path, owner, risk });
            }
        }
        Ok(())
    }

    fn count(&mut self, path: &Path, owner: Option<usize>, risk: Option<usize>, about: &Metadata) {
        let bytes = about.blocks() * SECTOR;
        let files = u64::from(!about.is_dir());
        match owner {
            Some(at) => {
                let moved = &mut self.listing.moved[at];
                moved.files += files;
                moved.bytes += bytes;
            }
            None => {
                self.listing.system_files += files;
                self.listing.system_bytes += bytes;
            }
        }
        if let Some(at) = risk {
            self.listing.at_risk[at].bytes += bytes;
        }
        if about.nlink() > 1 && !about.is_dir() {
            let names = self.linked.entry(about.ino()).or_default();
            names.push((path.to_owned(), owner));
        }
    }

    /// A new entry of what is at risk, where the name is known.
    fn risk(&mut self, path: &Path, owner: usize) -> Option<usize> {
        let name = path.file_name()?.to_str()?;
        let class = self.listing.moved[owner].class;
        let is_valued = VALUED.contains(&name) || name.to_lowercase().ends_with(".pst");
        if !is_valued || !class.is_relaxed() {
            return None;
        }
        self.listing.at_risk.push(AtRisk {
            path: shown(path),
            class,
            bytes: 0,
        });
        Some(self.listing.at_risk.len() - 1)
    }

    /// What a copy cannot keep of something that moves.
    fn look(&mut self, path: &Path, about: &Metadata) -> Result<()> {
        let kind = about.file_type();
        if kind.is_socket() {
            self.sockets.add(shown(path));
        } else if kind.is_block_device() || kind.is_char_device() {
            self.devices.add(shown(path));
        }
        if !kind.is_file() && !kind.is_dir() {
            return Ok(());
        }
        let place = self.root.join(path);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options
            .open(&place)
            .map_err(|error| Error::io(&place, &error))?;
        let (flags, project) = flags(&file);
        for (flag, is) in [
            (
                sys::IMMUTABLE,
                "is immutable; take the flag away with `chattr -i` in the guest",
            ),
            (
                sys::APPEND_ONLY,
                "is append-only; take the flag away with `chattr -a` in the guest",
            ),
            (sys::ENCRYPTED, "is encrypted by its file system; keep it"),
            (sys::VERITY, "has fs-verity, which a copy loses; keep it"),
            (
                sys::CASE_FOLDED,
                "ignores case, which the new disk does not; keep it",
            ),
        ] {
            if flags & flag != 0 {
                self.attributes.add(format!("{}: {is}", shown(path)));
            }
        }
        if project != 0 {
            self.attributes.add(format!(
                "{}: has project {project}, whose quota a new disk does not know; keep it, or set \
                 project 0 in the guest",
                shown(path)
            ));
        }
        Ok(())
    }

    fn end(mut self) -> Listing {
        let mut across = Told::default();
        for names in self.linked.values_mut() {
            // In one order, whatever that of the directories is.
            names.sort();
            let class = |owner: Option<usize>| owner.map(|at| self.listing.moved[at].class);
            let Some(((first, of), rest)) = names.split_first() else {
                continue;
            };
            let Some((second, other)) = rest.iter().find(|(_, it)| class(*it) != class(*of)) else {
                continue;
            };
            let side = |owner: &Option<usize>| class(*owner).map_or("stays", Class::name);
            let (first, second) = (shown(first), shown(second));
            let (of, other) = (side(of), side(other));
            across.add(format!(
                "{first} ({of}) and {second} ({other}) are one file with two names, which two \
                 disks cannot have; move both or keep both"
            ));
        }
        across.first.sort();
        self.attributes.first.sort();
        let Listing {
            refusals, warnings, ..
        } = &mut self.listing;
        for told in [across, self.attributes] {
            let more = told.count - told.first.len() as u64;
            refusals.extend(told.first);
            refusals.extend((more > 0).then(|| format!("{more} more like these")));
        }
        for (told, what) in [(self.sockets, "sockets"), (self.devices, "device nodes")] {
            if let Some(first) = told.first.iter().min() {
                let count = told.count;
                warnings.push(format!("{what} move as they are ({count}, one is {first})"));
            }
        }
        self.listing.at_risk.retain(|it| it.bytes > 0);
        self.listing.at_risk.sort_by(|a, b| a.path.cmp(&b.path));
        self.listing
    }
}

/// How a person sees a path: from the root, and in letters.
fn shown(path: &Path) -> String {
    format!("/{}", path.display())
}

/// The swap that a table names, as far as it is on this disk.
pub fn page_files(
    root: &Path,
    table: &[Entry],
    swaps: &[SwapPartition],
    listing: &mut Listing,
) -> Result<()> {
    if let Some(sleeps) = swaps.iter().find(|it| it.is_hibernated) {
        listing
            .refusals
            .push(hibernated(&format!("partition {}", sleeps.number)));
    }
    for entry in table.iter().filter(|it| it.is_swap()) {
        if let Some(partition) = swaps.iter().find(|it| names(&entry.what, it)) {
            listing.page_files.push(PageFile {
                what: entry.what.clone(),
                bytes: partition.bytes,
                is_file: false,
            });
        } else if entry.what.starts_with('/') && !entry.what.starts_with("/dev/") {
            swap_file(root, &entry.what, listing)?;
        } else {
            let what = &entry.what;
            listing
                .warnings
                .push(format!("swap on {what} stays: it is not on this disk"));
        }
    }
    Ok(())
}

fn hibernated(what: &str) -> String {
    format!("{what} holds a machine that sleeps; start the guest and shut it down")
}

fn swap_file(root: &Path, path: &str, listing: &mut Listing) -> Result<()> {
    let place = inside(root, path)?;
    let about = match std::fs::symlink_metadata(&place) {
        Ok(about) if about.is_file() => about,
        _ => {
            listing
                .warnings
                .push(format!("swap on {path} stays: there is no such file"));
            return Ok(());
        }
    };
    let mut mark = [0; 10];
    let read = File::open(&place).and_then(|it| it.read_exact_at(&mut mark, SWAP_MARK_AT));
    if read.is_ok() && SLEEPS.iter().any(|it| mark.starts_with(it)) {
        listing.refusals.push(hibernated(path));
    }
    let is_in = |it: &&Moved| is_at_or_below(path, &it.path);
    if let Some(moved) = listing.moved.iter().find(is_in) {
        let of = &moved.path;
        listing.refusals.push(format!(
            "{path}: the guest swaps to a file within {of}; move it out of there first"
        ));
    }
    listing.page_files.push(PageFile {
        what: path.to_owned(),
        bytes: about.len(),
        is_file: true,
    });
    Ok(())
}

/// Whether the first field of a table means a partition.
fn names(what: &str, partition: &SwapPartition) -> bool {
    let is = |known: &Option<String>, value: &str| {
        let value = value.trim_matches('"');
        known
            .as_deref()
            .is_some_and(|it| it.eq_ignore_ascii_case(value))
    };
    let by = |key: &str, place: &str| {
        let key = format!("{key}=");
        let value = what.strip_prefix(&key).or_else(|| what.strip_prefix(place));
        value.map(str::to_owned)
    };
    let known = [
        (by("UUID", "/dev/disk/by-uuid/"), &partition.uuid),
        (by("LABEL", "/dev/disk/by-label/"), &partition.label),
        (
            by("PARTUUID", "/dev/disk/by-partuuid/"),
            &partition.partition_uuid,
        ),
    ];
    if known
        .iter()
        .any(|(value, of)| value.as_ref().is_some_and(|it| is(of, it)))
    {
        return true;
    }
    // The first disk of a guest, as the kernel names it.
    ["sda", "vda", "hda", "xvda", "nvme0n1p"]
        .iter()
        .any(|disk| {
            what.strip_prefix("/dev/")
                .and_then(|it| it.strip_prefix(disk))
                .is_some_and(|it| it == partition.number.to_string())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_partition_is_found_by_all_of_its_names() {
        let partition = SwapPartition {
            number: 5,
            uuid: Some("ab-cd".to_owned()),
            label: Some("swap".to_owned()),
            partition_uuid: Some("12-34".to_owned()),
            bytes: 1,
            is_hibernated: false,
        };
        for (what, is) in [
            ("UUID=AB-CD", true),
            ("UUID=\"ab-cd\"", true),
            ("LABEL=swap", true),
            ("PARTUUID=12-34", true),
            ("/dev/disk/by-uuid/ab-cd", true),
            ("/dev/vda5", true),
            ("/dev/nvme0n1p5", true),
            ("/dev/vda55", false),
            ("/dev/sdb5", false),
            ("LABEL=", false),
        ] {
            assert_eq!(names(what, &partition), is, "{what}");
        }
        let bare = SwapPartition {
            uuid: None,
            label: None,
            partition_uuid: None,
            ..partition
        };
        assert!(!names("UUID=", &bare));
    }
}
