//! What a snapshot that did not end has left, and what only looks like it.

use super::*;
use ::image::create::NewFile;

const BYTES: u64 = 1 << 20;

fn write(path: &Path, new: &NewFile) {
    let rights = clone::Rights::of(&fs::File::open("/dev/null").expect("it is there"));
    clone::write(path, new, &rights.expect("it has some")).expect("made");
}

fn on(name: &str) -> NewFile {
    let format = BackingFormat::Qcow2;
    create::create(BYTES, Shape::Plain, Some(Backing { name, format })).expect("it fits")
}

/// An image with what a kill before the last step of a snapshot may have left.
fn left(dir: &Path, new: Option<NewFile>) -> Target {
    let image = dir.join("disk.qcow2");
    write(
        &image,
        &create::create(BYTES, Shape::Plain, None).expect("it fits"),
    );
    fs::hard_link(&image, dir.join("disk.s1.qcow2")).expect("linked");
    let made = beside::beside(&image, beside::NEW);
    match new {
        Some(new) => write(&made, &new),
        None => fs::write(&made, [7; 600]).expect("made"),
    }
    Target::open(&image, How::default()).expect("opened")
}

/// Fails when: half of a snapshot stays, or the image or a file of another program goes with it.
#[test]
fn what_a_killed_snapshot_has_left_goes_and_nothing_else() {
    let marked = |name| on(name).with_mark(&Mark::default()).expect("it has room");
    let cases = [
        (
            "a link",
            Some(marked("disk.s1.qcow2")),
            [true, false, false],
        ),
        ("no whole header", None, [true, true, false]),
        (
            "no link of that name",
            Some(marked("disk.s2.qcow2")),
            [true, true, false],
        ),
        (
            "the image itself",
            Some(marked("disk.qcow2")),
            [true, true, false],
        ),
        (
            "another program's",
            Some(on("disk.s1.qcow2")),
            [true, true, true],
        ),
    ];
    for (case, new, stays) in cases {
        let dir = tempfile::tempdir().expect("a directory");
        let image = left(dir.path(), new);
        remove_leavings(&image).expect("removed");
        let names = ["disk.qcow2", "disk.s1.qcow2", "disk.qcow2.tenuto-new"];
        let there = names.map(|name| dir.path().join(name).exists());
        assert_eq!(there, stays, "{case}");
    }
}

/// Fails when: a file of another program is overwritten, or what could not be made stays.
#[test]
fn a_new_file_takes_no_name_that_is_taken() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = left(dir.path(), Some(on("disk.s1.qcow2")));
    let plan = Plan {
        named: &image.path.clone(),
        frozen: "disk.s2.qcow2",
        plain: false,
        size_bytes: BYTES,
        mark: Mark::default(),
    };
    let fault = Successor::make(&image, &plan).expect_err("it is there");
    assert!(fault.message.contains("move it away"), "{fault}");
    let made = beside::beside(&image.path, beside::NEW);
    assert!(written::look(&made).expect("whole").mark().is_none());
    fs::remove_file(&made).expect("removed");
    let made = Successor::make(&image, &plan).expect("it is free");
    assert_eq!(made.header.backing.as_deref(), Some("disk.s2.qcow2"));
    made.take_place().expect("in place");
    let taken = made.take_place().expect_err("the name is taken");
    assert!(taken.message.contains("exists"), "{taken}");
    made.undo().expect("undone");
    let meta = fs::metadata(&image.path).expect("there");
    assert_eq!((meta.dev(), meta.ino()), image.identity);
    assert!(!dir.path().join("disk.s2.qcow2").exists());
}
