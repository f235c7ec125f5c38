//! Refusals by header, and guards beside ledgers.

use super::*;
use crate::target::How;
use ::image::create::{Shape, create};
use engine::image::{Image, Marked};
use engine::types::{Generation, Serial, Uuid};
use std::path::PathBuf;

const INCOMPATIBLE_LOW: u64 = 79;

/// A new image, with bytes of it changed.
fn image(dir: &tempfile::TempDir, changes: &[(u64, &[u8])]) -> PathBuf {
    let path = dir.path().join("disk.qcow2");
    let file = File::create(&path).expect("made");
    let new = create(64 << 20, Shape::Extended, None).expect("a size that can be");
    for extent in &new.extents {
        file.write_all_at(&extent.bytes, extent.at)
            .expect("written");
    }
    for (at, bytes) in changes {
        file.write_all_at(bytes, *at).expect("written");
    }
    file.set_len(new.file_bytes).expect("sized");
    path
}

/// The ledger of a clean image; `below` is zero for a raw one.
pub fn ledger(progress: Progress, below: u64) -> Ledger {
    Ledger {
        sequence: 2,
        volume: Uuid([1; 16]),
        cache: Uuid([2; 16]),
        machine: Uuid([3; 16]),
        boot: Uuid([4; 16]),
        owner: "host-a".into(),
        generation: Generation(1),
        destaged: Serial(5),
        progress,
        dirty: false,
        origin_bytes: 0,
        mtime_before_ns: 0,
        mtime_limit_ns: 0,
        image: Image {
            below,
            marked: Marked::Unknown,
            ..Image::default()
        },
        may_succeed: false,
        compatible: 0,
    }
}

fn is_guarded(path: &Path) -> bool {
    look(path).expect("a header").is_guarded()
}

/// Incompatible bit 61 is bit 5 of the first byte.
const GUARDED: (u64, &[u8]) = (INCOMPATIBLE_AT as u64, &[0x20]);

#[test]
fn an_image_that_is_not_written_is_refused_with_what_makes_it_one() {
    let extended = 0x10;
    for (changes, what, right) in [
        (
            vec![(7, &[2_u8][..])],
            "version 2, and to write that is not in this version",
            "qemu-img amend -o compat=1.1",
        ),
        (
            vec![(INCOMPATIBLE_LOW, &[extended | 1])],
            "marked dirty",
            "qemu-img check -r all",
        ),
        (
            vec![(INCOMPATIBLE_LOW, &[extended | 2])],
            "marked corrupt",
            "qemu-img check -r all",
        ),
        (
            // With an extension that names it, and no other.
            vec![
                (INCOMPATIBLE_LOW, &[extended | 4]),
                (112, b"DATA\0\0\0\x04data\0\0\0\0"),
                (128, &[0; 8]),
            ],
            "external file",
            "qemu-img convert -O qcow2",
        ),
        (vec![(35, &[1])], "encrypted", "qemu-img convert -O qcow2"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = image(&dir, &changes);
        let header = look(&path).expect("a header that is right");
        let refused = refusal(&header, &path).expect_err(what);
        let line = refused.fault(&path).to_string();
        for part in [what, right, "disk.qcow2"] {
            assert!(line.contains(part), "{part:?} is missing in: {line}");
        }
        assert!(!line.contains('\n'), "{line}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(&dir, &[]);
    let header = look(&path).expect("a header");
    assert_eq!(refusal(&header, &path), Ok(()));
}

/// Fails when: a guard is cleared while a journal is pending or without a ledger, or bytes of a
/// guest's raw disk are taken for one.
#[test]
fn a_guard_goes_only_where_the_ledger_of_that_image_has_nothing_pending() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(&dir, &[GUARDED]);
    let how = How {
        write: true,
        ..How::default()
    };
    let target = Target::open(&path, how).expect("opened");
    let before = std::fs::read(&path).expect("read");
    let apply = Progress::Apply {
        upto: Serial(9),
        journal_sequence: 1,
        journal_bytes: 4096,
    };
    for kept in [
        None,
        Some(ledger(apply, 7)),
        Some(ledger(Progress::Idle, 0)),
    ] {
        assert_eq!(clear_guard(&target, kept.as_ref()), Ok(false));
        assert!(is_guarded(&path));
        assert_eq!(std::fs::read(&path).expect("read"), before);
    }
    let idle = ledger(Progress::Idle, 7);
    assert_eq!(clear_guard(&target, Some(&idle)), Ok(true));
    assert!(!is_guarded(&path));
    let mut wanted = before;
    wanted[GUARDED.0 as usize] = 0;
    assert_eq!(std::fs::read(&path).expect("read"), wanted);
    assert_eq!(clear_guard(&target, Some(&idle)), Ok(false));
}

#[test]
fn an_image_under_a_guard_needs_the_ledger_that_says_how_it_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(&dir, &[GUARDED]);
    let header = look(&path).expect("a header");
    let image = |inode| Image {
        inode,
        device: 1,
        ..Image::default()
    };
    let idle = |inode| Ledger {
        image: Image {
            below: 7,
            marked: Marked::Unknown,
            ..image(inode)
        },
        ..ledger(Progress::Idle, 7)
    };
    // A copy in the place of the image has the ledger of that one beside it.
    for beside in [None, Some(idle(12))] {
        let fault = check_guard(&header, &path, beside.as_ref(), &image(13));
        let fault = fault.expect_err("it is not its ledger");
        assert!(
            fault.message.contains("its ledger and its journal"),
            "{fault}"
        );
    }
    for known in [idle(13), ledger(Progress::Idle, 7)] {
        check_guard(&header, &path, Some(&known), &image(13)).expect("the ledger is there");
    }
}

/// Fails when: a volume that only the log knows is destaged past the tables of its image, also of
/// one that has just grown, or a guest's own bytes are taken for tables.
#[test]
fn the_format_of_an_image_that_only_the_log_knows_is_that_of_its_ledger() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(&dir, &[]);
    let length = std::fs::metadata(&path).expect("stat").len();
    let disk = 64 << 20;
    let of = |size, ledger: Option<&Ledger>| format_in_log(&path, size, ledger);
    let (mapped, raw) = (ledger(Progress::Idle, 7), ledger(Progress::Idle, 0));
    assert_eq!(of(disk, Some(&mapped)), Format::Qcow2);
    assert_eq!(of(disk, Some(&raw)), Format::Raw);
    assert_eq!(of(disk, None), Format::Qcow2);
    assert_eq!(of(length, None), Format::Raw);
    assert_eq!(of(disk + 512, None), Format::Raw);
    assert_eq!(of(disk - 512, None), Format::Qcow2, "it has grown since");
}
