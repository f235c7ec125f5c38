//! What is in an image, as far as a proposal must know it.
//!
//! Owns directories, files, files with several names, and what the tables and lists of names say of
//! a path. Always true: a path is a key, `/` between its names and none at its end, the root empty;
//! keys of Windows are in small letters and without a drive. Deliberately absent: figures.

use super::classed::{Classed, Known, names};
use crate::class::Class;
use crate::linux;
use crate::ntfs;
use crate::rules::{Family, Rules, matches_name};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Directories below this depth count for the one above.
const DEPTH_MAX: usize = 5;
/// Directories that hold data of many kinds; only what is in them can be judged.
const SHARED: [&[&str]; 2] = [
    &["/home", "/home/*", "/root", "/srv", "/var", "/var/lib"],
    &[
        "/programdata",
        "/users",
        "/users/*",
        "/users/*/appdata",
        "/documents and settings/*",
    ],
];
/// What a guest needs to start, or what stands and falls with that.
const SYSTEM: [&[&str]; 2] = [
    &[
        "/.tenuto",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/lost+found",
        "/proc",
        "/run",
        "/sbin",
        "/sys",
        "/usr/bin",
        "/usr/lib",
        "/usr/lib32",
        "/usr/lib64",
        "/usr/libexec",
        "/usr/libx32",
        "/usr/sbin",
        "/var/lib/dpkg",
        "/var/lib/rpm",
    ],
    &[
        "/$*",
        "/boot",
        "/config.msi",
        "/documents and settings",
        "/efi",
        "/program files",
        "/program files (x86)",
        "/recovery",
        "/system volume information",
        "/windows",
        "/winnt",
    ],
];
/// Homes of users.
const HOMES: [&[&str]; 2] = [&["/home/*", "/root"], &["/users/*"]];
/// Users' own data in a home, beside what the lists of valued names have.
const OWN: [&[&str]; 2] = [
    &[
        ".config",
        ".gnupg",
        ".ssh",
        "Contacts",
        "Desktop",
        "Documents",
        "Downloads",
        "Mail",
        "Maildir",
        "Music",
        "Pictures",
        "Videos",
        "mail",
    ],
    &[
        "contacts",
        "desktop",
        "documents",
        "downloads",
        "favorites",
        "music",
        "pictures",
        "videos",
    ],
];
/// The same outside of homes.
const MAIL: [&[&str]; 2] = [&["/var/mail", "/var/spool/mail"], &[]];

/// Why a directory stays whatever its figures are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Users,
    System,
    Shared,
}

#[derive(Debug)]
pub struct Facts {
    family: Family,
    classed: Classed,
    /// How a directory is written, by its key.
    directories: BTreeMap<String, String>,
    files: HashSet<String>,
    /// Directories with users' own data; what is below them is theirs too.
    valued: BTreeSet<String>,
    /// Directories with such a file, whose other directories are judged by themselves.
    with_valued: BTreeSet<String>,
    /// Names of each file that has several.
    links: Vec<Vec<String>>,
    owned: HashSet<String>,
    /// Lists of packages were there.
    pub has_packages: bool,
}

impl Facts {
    pub fn new(family: Family) -> Facts {
        let rules = Rules::load(table(family)).expect("our own tables are right");
        Facts {
            family,
            classed: Classed::new(rules),
            directories: BTreeMap::new(),
            files: HashSet::new(),
            valued: BTreeSet::new(),
            with_valued: BTreeSet::new(),
            links: Vec::new(),
            owned: HashSet::new(),
            has_packages: false,
        }
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// The table whose lines are taken for known.
    pub fn table(&self) -> &'static str {
        table(self.family)
    }

    pub fn key(&self, path: &str) -> String {
        self.classed.key(path)
    }

    pub fn directory(&mut self, path: &str) {
        let key = self.key(path);
        if self.is_valued(&key) {
            self.valued.insert(key.clone());
        }
        let shown: String = match self.family {
            Family::Linux => key.clone(),
            Family::Windows => path.replace('/', "\\"),
        };
        self.directories.insert(key, shown);
    }

    /// A file of users' own data keeps its directory.
    pub fn file(&mut self, path: &str) {
        let key = self.key(path);
        if self.is_valued(&key) || key.to_lowercase().ends_with(".pst") {
            self.with_valued.insert(parent(&key).to_owned());
        }
        self.files.insert(key);
    }

    /// The names of one file.
    pub fn linked<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let names: BTreeSet<String> = names.map(|it| self.key(it)).collect();
        if names.len() > 1 {
            self.links.push(names.into_iter().collect());
        }
    }

    /// A path that the list of a package has.
    pub fn own(&mut self, path: &str) {
        let key = self.key(path);
        self.owned.insert(key);
    }

    pub fn is_owned(&self, path: &str) -> bool {
        self.owned.contains(&self.key(path))
    }

    pub fn has_file(&self, path: &str) -> bool {
        let key = self.key(path);
        self.files.contains(&key) || self.directories.contains_key(&key)
    }

    pub fn has_directory(&self, key: &str) -> bool {
        self.directories.contains_key(key)
    }

    /// How a table of rules writes a path.
    pub fn shown(&self, key: &str) -> String {
        let written = || match self.family {
            Family::Linux => key.to_owned(),
            Family::Windows => key.replace('/', "\\"),
        };
        match key {
            "" if self.family == Family::Linux => "/".to_owned(),
            "" => "\\".to_owned(),
            _ => self.directories.get(key).cloned().unwrap_or_else(written),
        }
    }

    /// The directory that a request to a file counts for; a page file counts for itself.
    pub fn home(&self, path: &str) -> String {
        let key = self.key(path);
        if self.is_page_file(&key) {
            return key;
        }
        let names: Vec<&str> = names(parent(&key));
        let deepest = self.classed.deepest_move(&names).max(DEPTH_MAX);
        let depth = deepest.min(names.len());
        names[..depth].iter().map(|it| format!("/{it}")).collect()
    }

    pub fn is_page_file(&self, key: &str) -> bool {
        self.classed.is_page_file(key)
    }

    /// What the table of the family says of a path.
    pub fn known(&self, key: &str) -> Known {
        self.classed.known(key)
    }

    /// Whether it stays for what it is.
    pub fn held(&self, key: &str) -> Option<Held> {
        let all = names(key);
        let mut above = (1..=all.len()).map(|end| all[..end].concat_path());
        let is = |lists: [&[&str]; 2], at_or_below: bool| {
            let depth = |it: &&str| names(it).len();
            let mut list = lists[self.at()].iter();
            list.any(|it| {
                let fits = depth(it) == all.len() || at_or_below && depth(it) < all.len();
                fits && fits_names(&names(it), &all)
            })
        };
        let is_users = self.with_valued.contains(key) || above.any(|it| self.valued.contains(&it));
        // Of the system disk only what the table knows can leave it.
        let is_system = is(SYSTEM, true) && !matches!(self.known(key), Known::Moved(_));
        if is_users || self.is_own(&all) || is(MAIL, true) {
            Some(Held::Users)
        } else if is_system || key == "/usr" {
            Some(Held::System)
        } else if key.is_empty() || is(SHARED, false) {
            Some(Held::Shared)
        } else {
            None
        }
    }

    /// Whether names lead into a folder of a user's own data.
    fn is_own(&self, path: &[&str]) -> bool {
        HOMES[self.at()].iter().any(|home| {
            let home = names(home);
            let own = path
                .get(home.len())
                .is_some_and(|it| OWN[self.at()].contains(it));
            own && fits_names(&home, path)
        })
    }

    /// Directories below a path that stay for what they are.
    pub fn kept_below(&self, key: &str) -> Vec<String> {
        let below = format!("{key}/");
        let all = self.directories.range(below.clone()..);
        let all = all.take_while(|it| it.0.starts_with(&below));
        let kept = all.filter(|(it, _)| {
            self.known(it) == Known::Kept
                || matches!(self.held(it), Some(Held::Users | Held::System))
        });
        kept.map(|it| it.0.clone()).collect()
    }

    /// Two names of one file, of which the first is within a path and the second is not.
    pub fn link_out_of(&self, key: &str) -> Option<(String, String)> {
        let is_in = |it: &&String| is_within(it, key);
        self.links.iter().find_map(|names| {
            let inside = names.iter().find(is_in)?;
            let outside = names.iter().find(|it| !is_in(it))?;
            Some((self.shown(inside), self.shown(outside)))
        })
    }

    /// Why a table cannot name it.
    pub fn unnamable(&self, key: &str) -> Option<&'static str> {
        let odd = |it: char| it.is_control() || it == '*' || it == char::REPLACEMENT_CHARACTER;
        let of_windows = self.family == Family::Windows && key.contains([':', '"']);
        let is_odd = key.chars().any(odd) || of_windows;
        is_odd.then_some("has a name that a table of rules cannot say")
    }

    /// A name that is a user's data wherever it stands, but in what is known as temporary.
    fn is_valued(&self, key: &str) -> bool {
        let is_temporary = self.known(key) == Known::Moved(Class::Never);
        let name = names(key).last().copied().unwrap_or_default();
        let is = match self.family {
            Family::Linux => linux::VALUED.contains(&name),
            Family::Windows => ntfs::VALUED.iter().any(|it| it.eq_ignore_ascii_case(name)),
        };
        is && !is_temporary
    }

    fn at(&self) -> usize {
        match self.family {
            Family::Linux => 0,
            Family::Windows => 1,
        }
    }
}

/// Names of one path, put together again.
trait ConcatPath {
    fn concat_path(&self) -> String;
}

impl ConcatPath for [&str] {
    fn concat_path(&self) -> String {
        self.iter().map(|it| format!("/{it}")).collect()
    }
}

const fn table(family: Family) -> &'static str {
    match family {
        Family::Linux => "linux",
        Family::Windows => "windows-safe",
    }
}

pub fn parent(key: &str) -> &str {
    key.rsplit_once('/').map_or("", |it| it.0)
}

/// Whether a path is another one, or lies below it.
pub fn is_within(key: &str, of: &str) -> bool {
    let rest = key.strip_prefix(of);
    rest.is_some_and(|it| it.is_empty() || it.starts_with('/'))
}

fn fits_names(pattern: &[&str], path: &[&str]) -> bool {
    let mut pairs = pattern.iter().zip(path);
    pairs.all(|(pattern, name)| matches_name(pattern, name.as_bytes(), false))
}
