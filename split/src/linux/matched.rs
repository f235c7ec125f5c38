//! The paths of a file system that the rules mean.
//!
//! Always true: of several rules about a path the deepest one counts; no symbolic link is followed,
//! so that no path leads out of the file system. Deliberately absent: what the paths hold.

use super::fstab::{Entry, MOUNTS};
use super::kept::{self, Kept};
use super::paths::{expand, is_at_or_below};
use crate::error::{Error, Result};
use crate::kind::{Class, Moved};
use crate::rules::{Move, Rules};
use std::collections::BTreeMap;
use std::path::Path;

/// More of them by one rule are reached by symbolic links, so that a guest has few mounts.
const MOUNTS_MAX: usize = 32;
/// What a guest needs before it has read its table, or what is no data.
const NEEDED: [&str; 13] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys",
    "/usr", MOUNTS,
];
/// Of these not even what lies below.
const NO_DATA: [&str; 5] = ["/dev", "/proc", "/run", "/sys", MOUNTS];

/// What the rules mean in one file system.
#[derive(Debug, Default)]
pub struct Matched {
    pub moved: Vec<Moved>,
    pub refusals: Vec<String>,
    pub warnings: Vec<String>,
    /// As [`Listing::forgotten`](crate::kind::Listing::forgotten).
    pub forgotten: Vec<String>,
}

/// A path that a rule means; `None`: it stays.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Meant {
    class: Option<Class>,
    symlink: bool,
}

/// Finds what the rules mean below a mount point whose table has these entries.
pub fn find(root: &Path, rules: &Rules, table: &[Entry]) -> Result<Matched> {
    let mut matched = Matched::default();
    let mut meant = BTreeMap::new();
    let of_pool = |it: &&Move| it.class == Class::Keep;
    for rule in rules.moves.iter().filter(|it| !of_pool(it)) {
        let found = expand(root, &rule.path, &mut matched.warnings)?;
        let mut paths = Vec::new();
        for (path, is_directory) in found {
            if is_movable(&path, is_directory, table, &mut matched)? {
                paths.push(path);
            }
        }
        let symlink = rule.path.has_wildcard() && paths.len() > MOUNTS_MAX;
        let class = Some(rule.class);
        meant.extend(
            paths
                .into_iter()
                .map(|path| (path, Meant { class, symlink })),
        );
    }
    for pattern in &rules.keeps {
        for (path, _) in expand(root, pattern, &mut matched.warnings)? {
            let stays = Meant {
                class: None,
                symlink: false,
            };
            meant.insert(path, stays);
        }
    }
    let pool: Vec<_> = rules
        .moves
        .iter()
        .filter(of_pool)
        .map(|it| &it.path)
        .collect();
    let Kept {
        paths,
        refusals,
        warnings,
        forgotten,
    } = kept::find(root, &pool, table, MOUNTS_MAX)?;
    matched.refusals.extend(refusals);
    matched.warnings.extend(warnings);
    let class = Some(Class::Keep);
    let paths = paths.into_iter();
    meant.extend(paths.map(|(path, symlink)| (path, Meant { class, symlink })));
    matched.moved = moved(&meant);
    let moves = |file: &String| {
        matched
            .moved
            .iter()
            .find(|it| is_at_or_below(file, &it.path))
    };
    for file in forgotten {
        match moves(&file) {
            None => matched.forgotten.push(file),
            Some(moved) => matched.refusals.push(kept::same_in_all(&file, &moved.path)),
        }
    }
    Ok(matched)
}

/// Whether a path can have a file system of its own. What stands against it is noted.
fn is_movable(
    path: &str,
    is_directory: bool,
    table: &[Entry],
    matched: &mut Matched,
) -> Result<bool> {
    let needed = NEEDED.contains(&path) || NO_DATA.iter().any(|it| is_at_or_below(path, it));
    if needed {
        return Err(Error::later(format!(
            "{path}: cannot have a disk of its own in this version: the guest needs it before it \
             mounts what its fstab names; take the line out, or name a path below it"
        )));
    }
    if !is_directory {
        let warning = format!("{path} stays: only directories have a file system of their own");
        matched.warnings.push(warning);
        return Ok(false);
    }
    let mounts = || {
        table
            .iter()
            .filter(|it| it.place.starts_with('/') && it.place != "/")
    };
    if let Some(mount) = mounts().find(|it| is_at_or_below(path, &it.place)) {
        matched.warnings.push(format!(
            "{path} stays: {} is a file system of its own ({})",
            mount.place, mount.kind
        ));
        return Ok(false);
    }
    if let Some(mount) = mounts().find(|it| is_at_or_below(&it.place, path)) {
        matched.refusals.push(format!(
            "{path}: {} below it is a file system of its own; keep {path}, or move paths beside \
             {0}",
            mount.place
        ));
        return Ok(false);
    }
    Ok(true)
}

/// Each path with what of it stays or goes elsewhere, in the order of their names.
fn moved(meant: &BTreeMap<String, Meant>) -> Vec<Moved> {
    let above = |path: &str| {
        let mut ancestors = Path::new(path).ancestors().skip(1);
        ancestors.find_map(|it| {
            let it = it.to_str()?;
            Some((it.to_owned(), *meant.get(it)?))
        })
    };
    let mut moved: BTreeMap<&str, Moved> = BTreeMap::new();
    for (path, it) in meant {
        let within = above(path);
        match (it.class, within) {
            // It goes where the path above it goes.
            (
                Some(class),
                Some((
                    _,
                    Meant {
                        class: Some(of), ..
                    },
                )),
            ) if class == of => {}
            (Some(class), within) => {
                let one = Moved {
                    path: path.clone(),
                    class,
                    kept: Vec::new(),
                    nested: Vec::new(),
                    files: 0,
                    bytes: 0,
                    symlink: it.symlink,
                };
                moved.insert(path, one);
                if let Some(outer) = within.and_then(|(it, _)| moved.get_mut(&*it)) {
                    outer.nested.push(path.clone());
                    outer.symlink = false;
                }
            }
            (None, within) => {
                if let Some(outer) = within.and_then(|(it, _)| moved.get_mut(&*it)) {
                    outer.kept.push(path.clone());
                    outer.symlink = false;
                }
            }
        }
    }
    moved.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::super::paths::inside;
    use super::*;

    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for path in ["var/cache/debconf", "var/log/audit", "opt", "usr/lib"] {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        for number in 0..40 {
            let path = format!("home/u{number}/.cache/thumbs");
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        std::fs::write(root.path().join("var/file"), "").unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("link")).unwrap();
        root
    }

    fn rules(lines: &[(&str, &str)]) -> Rules {
        let text: String = lines
            .iter()
            .map(|(path, class)| match *class {
                "keep" => format!("[[keep]]\npath = {path:?}\n"),
                class => format!("[[move]]\npath = {path:?}\nclass = {class:?}\n"),
            })
            .collect();
        Rules::parse(&text, "r").unwrap()
    }

    fn shown(root: &Path, lines: &[(&str, &str)], table: &str) -> (Vec<String>, Matched) {
        let table = super::super::fstab::entries(table.as_bytes());
        let matched = find(root, &rules(lines), &table).unwrap();
        let shown = matched.moved.iter().map(|it| {
            let class = it.class.name();
            format!(
                "{} {class} kept {:?} nested {:?}",
                it.path, it.kept, it.nested
            )
        });
        (shown.collect(), matched)
    }

    /// Fails when: the rule above a path goes before the one that names it.
    #[test]
    fn the_deepest_rule_counts() {
        let root = root();
        let (moved, _) = shown(
            root.path(),
            &[
                ("/var", "write-back"),
                ("/var/cache", "never"),
                ("/var/log", "write-back"),
                ("/var/cache/debconf", "keep"),
                ("/opt", "never"),
                ("/opt", "keep"),
            ],
            "",
        );
        assert_eq!(
            moved,
            [
                "/var write-back kept [] nested [\"/var/cache\"]",
                "/var/cache never kept [\"/var/cache/debconf\"] nested []",
            ]
        );
    }

    #[test]
    fn links_files_and_file_systems_of_their_own_stay() {
        let root = root();
        let (moved, matched) = shown(
            root.path(),
            &[
                ("/link", "never"),
                ("/var/file", "never"),
                ("/opt", "never"),
                ("/var/log", "never"),
                ("/gone", "never"),
            ],
            "tmpfs /opt tmpfs defaults 0 0\n/dev/vdb /var/log/audit ext4 defaults 0 0\n",
        );
        assert_eq!(moved, [""; 0]);
        assert_eq!(
            matched.warnings,
            [
                "/link is a symbolic link, which stays as it is",
                "/var/file stays: only directories have a file system of their own",
                "/opt stays: /opt is a file system of its own (tmpfs)",
            ]
        );
        let refusal = "/var/log: /var/log/audit below it is a file system of its own; keep \
                       /var/log, or move paths beside /var/log/audit";
        assert_eq!(matched.refusals, [refusal]);
        let error = inside(root.path(), "/link/passwd").unwrap_err();
        let message = "/link/passwd: /link is a symbolic link; name the path that it leads to";
        assert_eq!(error.message, message);
        assert!(inside(root.path(), "/a/../b").is_err());
    }

    #[test]
    fn many_paths_of_one_rule_are_reached_by_links() {
        let root = root();
        let (moved, matched) = shown(root.path(), &[("/home/*/.cache", "never")], "");
        assert_eq!(moved.len(), 40);
        assert!(matched.moved.iter().all(|it| it.symlink));
        let (_, matched) = shown(root.path(), &[("/home/u1*/.cache", "never")], "");
        assert!(matched.moved.iter().all(|it| !it.symlink));
    }

    #[test]
    fn what_a_guest_needs_to_start_does_not_move() {
        let root = root();
        let error = find(root.path(), &rules(&[("/usr", "write-back")]), &[]).unwrap_err();
        assert_eq!(
            error.message,
            "/usr: cannot have a disk of its own in this version: the guest needs it before it \
             mounts what its fstab names; take the line out, or name a path below it"
        );
        assert!(find(root.path(), &rules(&[("/usr/lib", "never")]), &[]).is_ok());
    }
}
