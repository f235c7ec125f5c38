//! Paths that outlive the reset of a clone, and files by which a guest knows itself.
//!
//! Always true: a path that each clone is to have for itself is found, or its split is refused; so
//! is one that the guest reads before it mounts what its table names, because the kept one would
//! have no effect there. Directories and files are kept.
//!
//! `/etc/machine-id` is read by PID 1 first of all. A guest with systemd therefore gets an empty
//! one, from which systemd makes the ID anew: by the UUID of the virtual machine, so that it is
//! the same at each start and another in each clone (machine-id(5), "Initialization"). A mount is
//! no way there: `systemd-machine-id-commit.service` fails at each start where the file is a mount
//! point on a disk.

use super::fstab::{Entry, MOUNTS};
use super::paths::{expand, inside, is_at_or_below};
use crate::error::{Error, Result};
use crate::kind::{means_nothing, not_there};
use crate::rules::Pattern;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const MACHINE_ID: &str = "/etc/machine-id";
/// systemd believes it where `/etc/machine-id` is empty, unless it is a link.
const DBUS_ID: &str = "/var/lib/dbus/machine-id";
const SYSTEMD: [&str; 2] = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
/// PID 1, in directories that are none of links.
const INIT: [&str; 3] = ["/usr/sbin/init", "/usr/bin/init", "/sbin/init"];
pub const MADE_ANEW: &str = "/etc/machine-id is not kept on a disk but made empty: PID 1 reads it \
    before it mounts anything, and takes the UUID of the virtual machine instead, which libvirt \
    gives each one";

/// What the initramfs, the kernel, PID 1 or a service reads that starts before the mounts: these
/// paths and all below them.
const READ_EARLY: [&str; 35] = [
    "/bin",
    "/boot",
    "/efi",
    "/etc/crypttab",
    "/etc/fstab",
    "/etc/hostname",
    "/etc/init",
    "/etc/init.d",
    "/etc/initramfs-tools",
    "/etc/inittab",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.conf",
    "/etc/localtime",
    "/etc/lvm",
    "/etc/mdadm",
    "/etc/modprobe.d",
    "/etc/modules",
    "/etc/modules-load.d",
    "/etc/netplan",
    "/etc/selinux",
    "/etc/sysctl.conf",
    "/etc/sysctl.d",
    "/etc/systemd",
    "/etc/udev",
    "/lib",
    "/lib32",
    "/lib64",
    "/sbin",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/sbin",
];
/// Of these some of what lies below may be kept.
const NEEDED_WHOLE: [&str; 2] = ["/etc", "/usr"];
const NO_DATA: [&str; 5] = ["/dev", "/proc", "/run", "/sys", MOUNTS];
/// Programs write them anew and rename, which the kernel refuses at a mount point.
const RENAMED: [&str; 6] = [
    "/etc/group",
    "/etc/gshadow",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/subgid",
    "/etc/subuid",
];

/// What patterns of a pool mean in one file system.
#[derive(Debug, Default)]
pub struct Kept {
    /// Each with whether it is reached by a symbolic link.
    pub paths: Vec<(String, bool)>,
    pub refusals: Vec<String>,
    pub warnings: Vec<String>,
    /// Files that are taken from the system disk, so that the guest makes them anew.
    pub forgotten: Vec<String>,
}

/// More directories than `mounts_max` by one pattern are reached by symbolic links.
pub fn find(root: &Path, keep: &[&Pattern], table: &[Entry], mounts_max: usize) -> Result<Kept> {
    let mut kept = Kept::default();
    for pattern in keep {
        let mut warnings = Vec::new();
        let found = expand(root, pattern, &mut warnings)?;
        match pattern.has_wildcard() {
            true if found.is_empty() => kept.warnings.push(means_nothing(&pattern.text)),
            true => kept.warnings.append(&mut warnings),
            false if found.is_empty() => kept.refusals.push(missing(root, &pattern.text)),
            false => {}
        }
        let directories = found.iter().filter(|(_, is_directory)| *is_directory);
        let are_links = pattern.has_wildcard() && directories.count() > mounts_max;
        for (path, is_directory) in found {
            if is_made_anew(root, &path) {
                kept.forgotten = identity(root);
                continue;
            }
            in_time(&path)?;
            match mounted(&path, table) {
                Some(refusal) => kept.refusals.push(refusal),
                // A program that saves by a rename would put a file in the place of a link.
                None => kept.paths.push((path, are_links && is_directory)),
            }
        }
    }
    Ok(kept)
}

/// Why a path without stars means nothing.
fn missing(root: &Path, path: &str) -> String {
    match inside(root, path) {
        Ok(_) => not_there(path),
        Err(error) => error.message,
    }
}

/// Refuses what a guest reads before it has mounted it.
fn in_time(path: &str) -> Result<()> {
    let is_in = |paths: &[&str]| paths.iter().any(|it| is_at_or_below(path, it));
    let why = if is_in(&READ_EARLY) || NEEDED_WHOLE.contains(&path) {
        "the guest reads it before it mounts what its fstab names"
    } else if is_in(&NO_DATA) {
        "it is no data of a disk"
    } else if RENAMED.contains(&path) {
        "programs replace it by a rename, which a mount of a file does not allow"
    } else {
        return Ok(());
    };
    Err(Error::usage(format!(
        "{path}: cannot be kept over a reset: {why}; take it out of keep"
    )))
}

/// Why a path cannot be mounted from another disk, if another file system is in the way.
fn mounted(path: &str, table: &[Entry]) -> Option<String> {
    let mut mounts = table
        .iter()
        .filter(|it| it.place.starts_with('/') && it.place != "/");
    let mount =
        mounts.find(|it| is_at_or_below(path, &it.place) || is_at_or_below(&it.place, path));
    mount.map(|it| {
        format!(
            "{path}: cannot be kept over a reset: {} is a file system of its own ({}), which stays \
             as it is; take it out of keep",
            it.place, it.kind
        )
    })
}

/// Whether PID 1 of this guest makes a file itself where it is empty.
fn is_made_anew(root: &Path, path: &str) -> bool {
    [MACHINE_ID, DBUS_ID].contains(&path) && starts_by_systemd(root)
}

/// systemd may be there and another program be PID 1, which makes no ID.
fn starts_by_systemd(root: &Path) -> bool {
    let init = INIT.iter().find_map(|it| {
        let (directory, name) = it.rsplit_once('/')?;
        let place = inside(root, directory).ok()?.join(name);
        let about = std::fs::symlink_metadata(&place).ok()?;
        Some(about.is_symlink().then(|| std::fs::read_link(&place)))
    });
    match init {
        Some(Some(Ok(target))) => target.ends_with("systemd/systemd"),
        Some(_) => false,
        None => {
            let is = |it: &&str| inside(root, it).is_ok_and(|place| place.is_file());
            SYSTEMD.iter().any(is)
        }
    }
}

/// The files that say which machine it is.
fn identity(root: &Path) -> Vec<String> {
    let is = |it: &&str| inside(root, it).is_ok_and(|place| place.is_file());
    let files = [MACHINE_ID, DBUS_ID].into_iter().filter(is);
    files.map(str::to_owned).collect()
}

/// Why a file cannot be made anew for each clone.
pub fn same_in_all(file: &str, moved: &str) -> String {
    format!(
        "{file}: is below {moved}, which moves, and would be the same in all clones; make it a \
         link to {MACHINE_ID} in the guest"
    )
}

/// Takes what a guest knows itself by. An empty file in place of none lets a guest start whose root
/// is read-only at first, and is no first boot, at which systemd would ask questions.
pub fn forget(system: &Path, file: &str) -> Result<()> {
    if file != MACHINE_ID {
        return super::linked::remove(system, file);
    }
    let place = inside(system, file)?;
    let mut options = OpenOptions::new();
    options.write(true).truncate(true);
    let opened = options.custom_flags(libc::O_NOFOLLOW).open(&place);
    let emptied = opened.and_then(|it| it.sync_all());
    emptied.map_err(|error| Error::io(&place, &error))
}

/// Fails where a guest would know itself by what the image has.
pub fn is_forgotten(guest: &Path, file: &str) -> Result<()> {
    let place = inside(guest, file)?;
    let is = match std::fs::symlink_metadata(&place) {
        Ok(about) => file == MACHINE_ID && about.is_file() && about.len() == 0,
        Err(error) => file != MACHINE_ID && error.kind() == std::io::ErrorKind::NotFound,
    };
    match is {
        true => Ok(()),
        false => Err(Error::failed(format!(
            "{file}: has what the image has, which would be the same in all clones; begin again"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fstab::entries;
    use super::*;
    use crate::rules::Rules;

    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for path in [
            "etc/ssh",
            "var/lib/dbus",
            "var/lib/app",
            "usr/local/share",
            "home",
        ] {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        for number in 0..40 {
            let path = root.path().join(format!("home/u{number}"));
            std::fs::create_dir_all(path.join(".ssh")).unwrap();
            std::fs::write(path.join(".netrc"), "").unwrap();
        }
        for path in ["etc/app.conf", "etc/fstab", "etc/machine-id", "etc/passwd"] {
            std::fs::write(root.path().join(path), "x").unwrap();
        }
        std::os::unix::fs::symlink("lib/app", root.path().join("var/link")).unwrap();
        root
    }

    fn found(root: &Path, keep: &[&str], table: &str) -> Result<Kept> {
        let rules = Rules::parse(&format!("[pool]\nkeep = {keep:?}\n"), "r")?;
        let patterns: Vec<&Pattern> = rules.moves.iter().map(|it| &it.path).collect();
        find(root, &patterns, &entries(table.as_bytes()), 32)
    }

    /// Fails when: a file is not kept, or is reached by a link, which a program that saves by a
    /// rename would replace, so that the next reset took what it saved.
    #[test]
    fn directories_and_files_are_kept_and_only_many_directories_by_links() {
        let root = root();
        let kept = found(root.path(), &["/var/lib/app", "/etc/app.conf"], "").unwrap();
        let expected = ["/var/lib/app", "/etc/app.conf"].map(|it| (it.to_owned(), false));
        assert_eq!(kept.paths, expected);
        let many = found(root.path(), &["/home/*/.*"], "").unwrap();
        assert_eq!(many.paths.len(), 80);
        for (path, is_link) in many.paths {
            assert_eq!(is_link, path.ends_with(".ssh"), "{path}");
        }
    }

    /// Fails when: a path that each reset would take is left out without a word that stops the
    /// split.
    #[test]
    fn what_is_not_there_or_not_of_this_file_system_is_refused() {
        let root = root();
        let table = "tmpfs /var/lib/app tmpfs defaults 0 0\n/dev/vdb /srv ext4 defaults 0 0\n";
        let keep = [
            "/gone",
            "/gone/*",
            "/var/link",
            "/var/lib/app/data",
            "/var/lib",
        ];
        std::fs::create_dir(root.path().join("var/lib/app/data")).unwrap();
        let kept = found(root.path(), &keep, table).unwrap();
        assert_eq!(kept.paths, []);
        let nothing = "/gone/*: [pool] keeps nothing by it: the image has no such path";
        assert_eq!(kept.warnings, [nothing]);
        let mounted = "cannot be kept over a reset: /var/lib/app is a file system of its own \
                       (tmpfs), which stays as it is; take it out of keep";
        assert_eq!(
            kept.refusals,
            [
                "/gone: [pool] keeps it, and the image does not have it, so each reset would take \
                 it; make it in the guest, or take it out of keep"
                    .to_owned(),
                "/var/link: /var/link is a symbolic link; name the path that it leads to"
                    .to_owned(),
                format!("/var/lib/app/data: {mounted}"),
                format!("/var/lib: {mounted}"),
            ]
        );
    }

    /// Fails when: something is kept that the guest reads before the kept one is there.
    #[test]
    fn what_is_read_before_the_mounts_is_refused() {
        let root = root();
        std::fs::create_dir_all(root.path().join("usr/lib/x")).unwrap();
        let early = "the guest reads it before it mounts what its fstab names";
        for (path, why) in [
            ("/etc/fstab", early),
            ("/etc", early),
            ("/usr", early),
            ("/usr/lib/x", early),
            (
                "/etc/passwd",
                "programs replace it by a rename, which a mount of a file does not allow",
            ),
        ] {
            let error = found(root.path(), &[path], "").unwrap_err();
            let right = "; take it out of keep";
            let message = format!("{path}: cannot be kept over a reset: {why}{right}");
            assert_eq!((error.kind, error.message), (crate::Kind::Usage, message));
        }
        let local = found(root.path(), &["/usr/local/share", "/etc/ssh"], "").unwrap();
        assert_eq!(local.paths.len(), 2);
    }

    /// Fails when: the file with the ID of a machine is mounted in a guest with systemd, or stays
    /// what the image has, so that all clones are one machine.
    #[test]
    fn systemd_makes_the_id_of_the_machine_anew_and_other_guests_have_it_mounted() {
        let root = root();
        let keep = [MACHINE_ID];
        let kept = found(root.path(), &keep, "").unwrap();
        assert_eq!(kept.paths, [(MACHINE_ID.to_owned(), false)]);
        assert_eq!(kept.forgotten, [""; 0]);
        std::fs::create_dir_all(root.path().join("usr/lib/systemd")).unwrap();
        std::fs::write(root.path().join(SYSTEMD[0].trim_start_matches('/')), "").unwrap();
        std::fs::write(root.path().join("var/lib/dbus/machine-id"), "x").unwrap();
        std::fs::create_dir_all(root.path().join("usr/sbin")).unwrap();
        let init = root.path().join("usr/sbin/init");
        for (target, is) in [
            ("../lib/sysvinit/init", false),
            ("../lib/systemd/systemd", true),
        ] {
            let _ = std::fs::remove_file(&init);
            std::os::unix::fs::symlink(target, &init).unwrap();
            assert_eq!(is_made_anew(root.path(), MACHINE_ID), is, "{target}");
        }
        let kept = found(root.path(), &keep, "").unwrap();
        assert_eq!(kept.paths, []);
        assert_eq!(kept.forgotten, [MACHINE_ID, DBUS_ID]);
        for file in &kept.forgotten {
            assert!(is_forgotten(root.path(), file).is_err());
            // A second time is as the first.
            forget(root.path(), file).unwrap();
            forget(root.path(), file).unwrap();
            is_forgotten(root.path(), file).unwrap();
        }
        assert_eq!(
            std::fs::read(root.path().join("etc/machine-id")).unwrap(),
            b""
        );
        assert!(!root.path().join("var/lib/dbus/machine-id").exists());
    }
}
