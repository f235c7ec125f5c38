//! Clones that are made, and what is left of those that are not.

use super::*;
use crate::origin::beside::{LEDGER, beside};
use crate::origin::written::tests::ledger;
use engine::format::ledger::Progress;
use std::collections::BTreeMap;

fn raw(dir: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = dir.join(name);
    File::create(&path)
        .and_then(|file| file.set_len(bytes))
        .expect("made");
    path
}

/// Each name in a directory, with the bytes of its file.
fn contents(dir: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = fs::read_dir(dir).expect("there");
    let entries = entries.map(|it| it.expect("an entry"));
    entries
        .map(|it| (it.file_name(), fs::read(it.path()).expect("read")))
        .collect()
}

fn of(image: impl Into<PathBuf>, plain: bool) -> CloneOf {
    CloneOf {
        image: image.into(),
        plain,
    }
}

#[test]
fn a_clone_stands_on_its_image_by_the_name_that_was_given() {
    let dir = tempfile::tempdir().expect("a directory");
    let base = raw(dir.path(), "base.img", 3 << 20);
    let allow = [dir.path().to_path_buf()];
    for (name, image, plain) in [
        ("one.qcow2", base.clone(), false),
        ("two.qcow2", PathBuf::from("base.img"), true),
        ("three.qcow2", PathBuf::from("one.qcow2"), false),
    ] {
        let path = dir.path().join(name);
        assert_eq!(
            make(&path, &of(&image, plain), &allow)
                .expect("made")
                .size_bytes,
            3 << 20
        );
        let opened = chain::open(&path, &Rules::default(), &mut Patience::none());
        let opened = opened.expect("a chain");
        let header = opened.chain.files()[0].header().expect("qcow2");
        assert_eq!(header.backing.as_deref(), image.to_str());
        let stated = if name == "three.qcow2" {
            "qcow2"
        } else {
            "raw"
        };
        assert_eq!(header.backing_format.as_deref(), Some(stated));
        assert_eq!(
            header.cluster_bytes(),
            if plain { 64 << 10 } else { 128 << 10 }
        );
        assert_eq!(header.is_extended(), !plain);
    }
}

/// Fails when: a file is overwritten, or something is left of a clone that is not made, whether it
/// was refused before or after its file was begun.
#[test]
fn what_is_not_made_leaves_nothing_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let outside = tempfile::tempdir().expect("a directory");
    let base = raw(dir.path(), "base.img", 1 << 20);
    let far = raw(outside.path(), "far.img", 1 << 20);
    let there = raw(dir.path(), "there.qcow2", 512);
    fs::write(&there, b"of another program").expect("written");
    let gone = dir.path().join("gone.qcow2");
    let allow = [dir.path().to_path_buf()];
    make(&gone, &of("base.img", false), &allow).expect("made");
    fs::rename(&base, dir.path().join("moved.img")).expect("renamed");
    let before = contents(dir.path());
    let fresh = dir.path().join("new.qcow2");
    let nowhere = dir.path().join("none").join("new.qcow2");
    let moved = dir.path().join("moved.img");
    for (path, image, kind, parts) in [
        (
            &there,
            moved.clone(),
            Kind::Invalid,
            ["there.qcow2", "exists already"],
        ),
        // Judged when the new file is there.
        (
            &fresh,
            far,
            Kind::Foreign,
            ["image FRESH", "[images] allow"],
        ),
        (
            &fresh,
            dir.path().join("none.img"),
            Kind::NotFound,
            ["none.img", "name an image that is there"],
        ),
        (
            &fresh,
            gone.clone(),
            Kind::NotFound,
            ["base.img", "qemu-img rebase -u -b FILE"],
        ),
        (
            &nowhere,
            moved,
            Kind::NotFound,
            ["none/new.qcow2", "make its directory first"],
        ),
        (
            &fresh,
            PathBuf::from("nbd:x"),
            Kind::Invalid,
            ["nbd:x", "colon"],
        ),
    ] {
        let fault = make(path, &of(image, false), &allow).expect_err(parts[1]);
        assert_eq!(fault.kind, kind, "{fault}");
        for part in parts {
            let part = part.replace("FRESH", &fresh.display().to_string());
            assert!(fault.message.contains(&part), "{part:?}: {fault}");
        }
        assert!(!fault.message.contains(UNDONE), "{fault}");
        assert!(contents(dir.path()) == before, "after {fault}");
    }
}

/// Fails when: a file that appears while a clone is made is overwritten by it.
#[test]
fn a_file_that_appears_under_the_name_of_a_clone_meanwhile_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let undone = raw(dir.path(), "undone", 1 << 20);
    let there = dir.path().join("there.qcow2");
    fs::write(&there, b"of another program").expect("written");
    let fault = name(&undone, &there, "image there").expect_err("it is there");
    assert_eq!(fault.kind, Kind::Invalid);
    assert!(fault.message.contains("exists already"), "{fault}");
    assert_eq!(fs::read(&there).expect("read"), b"of another program");
}

/// Fails when: a file stays that has its name, although its volume was refused.
#[test]
fn a_clone_whose_name_may_not_last_is_taken_away() {
    let dir = tempfile::tempdir().expect("a directory");
    raw(dir.path(), "base.img", 1 << 20);
    let before = contents(dir.path());
    let path = dir.path().join("new.qcow2");
    let allow = [dir.path().to_path_buf()];
    let made = make_with(&path, &of("base.img", false), &allow, |path| {
        assert!(path.exists(), "it has its name");
        Err(io::ErrorKind::StorageFull.into())
    });
    let fault = made.expect_err("the name cannot be kept");
    assert_eq!(fault.kind, Kind::NoSpace, "{fault}");
    assert!(contents(dir.path()) == before);
}

/// Fails when: a file is removed that another program has put under the name of ours.
#[test]
fn only_the_file_that_was_made_is_taken_away_again() {
    let dir = tempfile::tempdir().expect("a directory");
    raw(dir.path(), "base.img", 1 << 20);
    let path = dir.path().join("new.qcow2");
    let allow = [dir.path().to_path_buf()];
    let make = || make(&path, &of("base.img", false), &allow).expect("made");
    make().remove();
    assert!(!path.exists());
    let made = make();
    fs::remove_file(&path).expect("removed");
    fs::write(&path, b"of another program").expect("written");
    made.remove();
    assert_eq!(fs::read(&path).expect("read"), b"of another program");
}

/// Fails when: what a killed daemon left of a clone stays for good, or something else goes with it.
#[test]
fn what_a_killed_daemon_left_of_a_clone_goes_when_that_is_made() {
    let dir = tempfile::tempdir().expect("a directory");
    raw(dir.path(), "base.img", 1 << 20);
    let path = dir.path().join("new.qcow2");
    let left = temporary(&path);
    fs::write(&left, b"half").expect("written");
    let others = [
        temporary(&dir.path().join("other.qcow2")),
        dir.path().join(format!(".new.qcow2.mine.{UNDONE}")),
        dir.path().join(".new.qcow2.swp"),
    ];
    for other in &others {
        fs::write(other, b"other").expect("written");
    }
    let allow = [dir.path().to_path_buf()];
    make(&path, &of("base.img", false), &allow).expect("made");
    assert!(!left.exists());
    for other in &others {
        assert!(other.exists(), "{other:?}");
    }
}

/// Fails when: a header that a guest wrote into its raw disk is taken for that of an image.
#[test]
fn a_disk_that_was_written_raw_is_cloned_neither_as_qcow2_nor_by_a_guess() {
    let dir = tempfile::tempdir().expect("a directory");
    raw(dir.path(), "base.img", 1 << 20);
    let allow = [dir.path().to_path_buf()];
    let disk = dir.path().join("disk.qcow2");
    make(&disk, &of("base.img", false), &allow).expect("made");
    let path = dir.path().join("new.qcow2");
    let write = |below: u64| {
        let ledger = ledger(Progress::Idle, below);
        fs::write(beside(&disk, LEDGER), ledger.encode()).expect("written");
    };
    write(0);
    // Also by another name of it.
    let alias = dir.path().join("alias");
    std::os::unix::fs::symlink(&disk, &alias).expect("linked");
    for image in [&disk, &alias] {
        let fault = make(&path, &of(image, false), &allow).expect_err("a guest's header");
        assert_eq!(fault.kind, Kind::Foreign);
        for part in ["raw image before", "-F raw", &image.display().to_string()] {
            assert!(fault.message.contains(part), "{part:?}: {fault}");
        }
        assert!(!path.exists());
    }
    write(7);
    make(&path, &of(&disk, false), &allow).expect("an image that was written as qcow2");
}

/// Fails when: those who use the image below cannot use its clone, or others can read it.
#[test]
fn a_clone_has_the_mode_and_the_owner_of_its_image() {
    let dir = tempfile::tempdir().expect("a directory");
    let base = raw(dir.path(), "base.img", 1 << 20);
    let allow = [dir.path().to_path_buf()];
    // Without the right to give files away its owner stays who made it.
    let given = fchown(File::open(&base).expect("open"), Some(1234), Some(5678)).is_ok();
    for (number, (mode, expected)) in [
        (0o640, 0o640),
        (0o600, 0o600),
        (0o444, 0o644),
        (0o7775, 0o664),
    ]
    .into_iter()
    .enumerate()
    {
        fs::set_permissions(&base, Permissions::from_mode(mode)).expect("set");
        let path = dir.path().join(format!("{number}.qcow2"));
        make(&path, &of(&base, false), &allow).expect("made");
        let meta = fs::metadata(&path).expect("stat");
        assert_eq!(meta.mode() & 0o7777, expected, "of {mode:o}");
        if given {
            assert_eq!((meta.uid(), meta.gid()), (1234, 5678));
        }
    }
}

/// Fails when: a group that was not meant, or one that was shut out, reads a clone.
#[test]
fn a_clone_that_cannot_have_the_group_of_its_image_is_for_nobody_that_the_image_shuts_out() {
    let (user, group) = (1234, 5678);
    let mode = |mode: u32, has_group: bool| Rights { mode, user, group }.mode(has_group);
    for (of_image, with, without) in [
        (0o640, 0o640, 0o600),
        (0o604, 0o604, 0o600),
        (0o664, 0o664, 0o644),
        (0o666, 0o666, 0o666),
        (0o400, 0o600, 0o600),
    ] {
        assert_eq!(mode(of_image, true), with, "of {of_image:o}");
        assert_eq!(mode(of_image, false), without, "of {of_image:o}");
    }
}
