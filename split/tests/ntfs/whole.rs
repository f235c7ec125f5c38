//! A disk with a Windows, through the split that calls the steps.

use super::fixture::{self, Tree, have_all, output};
use split::{Kind, Request, Rules, Split, State, Watch};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes nothing down: the steps themselves are what is tried.
struct Quiet(Vec<State>);

impl Watch for Quiet {
    fn reached(&mut self, state: State) -> split::Result<()> {
        self.0.push(state);
        Ok(())
    }
}

const PROGRAMS: [&str; 3] = ["qemu-img", "qemu-storage-daemon", "sfdisk"];
const SAFE: &str = "base = \"windows-safe\"\n";
const POOL: &str = "base = \"windows-safe\"\n[pool]\nkeep = ['\\Users\\bob\\Documents']\n";

fn request(image: &Path, rules: &str) -> Request {
    Request {
        image: image.to_owned(),
        rules: Rules::parse(rules, "rules").expect("they are right"),
        output: image.with_extension("out"),
        trusted: false,
        copy: false,
    }
}

/// A disk with a small volume of no Windows, and the one with it.
fn disk(tree: &Tree) -> PathBuf {
    let other = Tree::new(8, |_| {});
    let place = tree.directory.path();
    let disk = place.join("disk.img");
    let mut image = vec![0; 1 << 20];
    image.extend(fs::read(&other.partition).expect("read"));
    image.extend(fs::read(&tree.partition).expect("read"));
    image.resize(image.len() + (1 << 20), 0);
    fs::write(&disk, image).expect("written");
    let script = place.join("table");
    let table = "label: gpt\nstart=2048, size=16384\nstart=18432, size=98304\n";
    fs::write(&script, table).expect("written");
    let mut command = Command::new("sfdisk");
    command
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(&disk);
    output(command.stdin(fs::File::open(&script).expect("opened")));
    let qcow2 = place.join("disk.qcow2");
    let mut command = Command::new("qemu-img");
    output(
        command
            .args(["convert", "-O", "qcow2"])
            .args([&disk, &qcow2]),
    );
    qcow2
}

/// Fails when: the steps do not fit the split that calls them, or the exported partitions do not
/// do for the programs of NTFS.
#[test]
fn a_disk_with_windows_is_split_by_the_shipped_rules() {
    let test = "a_disk_with_windows_is_split_by_the_shipped_rules";
    if !have_all(test) || !fixture::have(test, &PROGRAMS) {
        return;
    }
    let tree = Tree::windows();
    let image = disk(&tree);
    let before = fs::read(&image).expect("read");
    for (base, classes) in [
        ("windows-safe", &["never", "write-back"][..]),
        ("windows-capo", &["never", "write-through"]),
    ] {
        let request = request(
            &image,
            &format!("base = \"{base}\"\n[page-file]\nclass = \"never\"\n"),
        );
        let mut split = Split::look(&request).expect("it may be split");
        assert_eq!(split.refusals(), [""; 0]);
        let mut watch = Quiet(Vec::new());
        split.run(&mut watch).expect("it is split");
        assert_eq!(watch.0.last(), Some(&State::Done));
        let text = fs::read_to_string(split.volumes_file()).expect("written");
        for class in classes {
            assert!(text.contains(class), "{base}: {text}");
            let disk = request.output.join(format!("{class}.raw"));
            let table = output(Command::new("sfdisk").arg("-J").arg(&disk));
            let table: serde_json::Value = serde_json::from_slice(&table).expect("json");
            let attributes = &table["partitiontable"]["partitions"][0]["attrs"];
            // That with the page file has a letter.
            let has_letter = *class == "never";
            assert_eq!(
                attributes.as_str(),
                (!has_letter).then_some("GUID:63"),
                "{class}"
            );
        }
        let again = Split::look(&request).expect("it is done");
        assert_eq!(again.begun(), Some(State::Done));
        fs::remove_dir_all(&request.output).expect("removed");
    }
    assert!(
        before == fs::read(&image).expect("read"),
        "the image is not written"
    );
}

/// Fails when: a directory that outlives resets is not on the disk that each clone has for itself,
/// or what is moved below it is not; or when a path is kept that cannot be, or is not there.
#[test]
fn what_clones_of_a_windows_keep_is_on_a_disk_of_its_own() {
    let test = "what_clones_of_a_windows_keep_is_on_a_disk_of_its_own";
    if !have_all(test) || !fixture::have(test, &PROGRAMS) {
        return;
    }
    let tree = Tree::new(48, |root| {
        fixture::windows(root);
        fs::create_dir(root.join("Windows/System32/drivers")).expect("made");
    });
    let image = disk(&tree);
    let before = fs::read(&image).expect("read");
    let pool = |keep: &str| format!("{SAFE}[pool]\nmembers = 'desk-{{1..9}}'\nkeep = ['{keep}']\n");
    let rules = pool("\\users\\bob");
    let mut split = Split::look(&request(&image, &rules)).expect("it may be split");
    assert_eq!(split.refusals(), [""; 0]);
    split.run(&mut Quiet(Vec::new())).expect("it is split");
    let report = split.report().json("done");
    let classes = report["classes"].as_array().expect("a list");
    let kept = classes.iter().find(|it| it["class"] == "keep");
    let kept = kept.expect("there is a disk for it");
    assert_eq!(kept["file_system_bytes"], 65 << 20);
    let moved = report["moved"].as_array().expect("a list");
    let path = |it: &serde_json::Value| it.to_string().replace('/', "\\");
    let bob = moved
        .iter()
        .find(|it| path(&it["path"]) == "\"\\Users\\bob\"");
    let nested = path(&bob.expect("it is kept")["nested"]);
    assert!(
        nested.contains("\\Users\\bob\\AppData\\Local\""),
        "{nested}"
    );
    let warning = path(&report["warnings"]);
    let says = "\\Users\\bob\\AppData\\Local is on write-back, which a reset empties, though \
                \\Users\\bob is kept";
    assert!(warning.contains(says), "{warning}");
    let output = request(&image, &rules).output;
    let [of_all, own] = ["keep.raw", "keep-desk-1.raw"].map(|it| fs::read(output.join(it)));
    assert!(of_all.expect("read") == own.expect("read"));
    fs::remove_dir_all(&output).expect("removed");
    for (keep, kind, says) in [
        (
            "\\Gone",
            Kind::Refused,
            "image I: \\Gone: [pool] keeps it, and the image does not have it, so each reset would \
             take it; make it in the guest, or take it out of keep",
        ),
        (
            "\\Users\\bob\\Documents\\letter.txt",
            Kind::Refused,
            "image I: partition 2: \\Users\\bob\\Documents\\letter.txt: it is a file, and Windows \
             mounts volumes at directories only; name its directory",
        ),
        (
            "\\Windows\\System32\\drivers",
            Kind::Refused,
            "image I: partition 2: \\Windows\\System32\\drivers: Windows needs it on the disk that \
             it starts from; move directories inside of it",
        ),
    ] {
        let looked = Split::look(&request(&image, &pool(keep)));
        let done = looked.and_then(|mut it| it.run(&mut Quiet(Vec::new())));
        let error = done.expect_err("refused");
        let message = error.message.replace(&image.display().to_string(), "I");
        assert_eq!((error.kind, &*message), (kind, says));
        assert!(!output.exists(), "nothing is made");
    }
    let looked = Split::look(&request(&image, &pool("\\Gone\\*"))).expect("it may be split");
    let nothing = "\\Gone\\*: [pool] keeps nothing by it: the image has no such path";
    assert_eq!(looked.report().json("none")["warnings"][0], nothing);
    let after = fs::read(&image).expect("read");
    assert!(before == after, "the image is not written");
}

/// Says the test below which image the child splits.
const IMAGE: &str = "TENUTO_SPLIT_IMAGE";

#[test]
fn the_split_that_is_killed() {
    let Some(image) = std::env::var_os(IMAGE).map(PathBuf::from) else {
        return;
    };
    let mut split = Split::look(&request(&image, POOL)).expect("it may be split");
    split.run(&mut Quiet(Vec::new())).expect("it is split");
}

/// Fails when: a kill that also takes the exported partitions away leaves one that can not be gone
/// on with.
#[test]
fn a_whole_split_that_is_killed_goes_on() {
    let test = "a_whole_split_that_is_killed_goes_on";
    if !have_all(test) || !fixture::have(test, &PROGRAMS) {
        return;
    }
    let tree = Tree::windows();
    let image = disk(&tree);
    let temporary = tree.directory.path().join("temporary");
    fs::create_dir(&temporary).expect("made");
    let child = |milliseconds| {
        let name = "whole::the_split_that_is_killed";
        let mut command = Command::new(std::env::current_exe().expect("it runs"));
        command.args(["--exact", name]);
        command.env(IMAGE, &image).env("TMPDIR", &temporary);
        fixture::killed_after(&mut command, milliseconds, tree.directory.path())
    };
    let kills = fixture::until_it_ends(250, 120, child);
    eprintln!("{kills} kills");
    let split = Split::look(&request(&image, POOL)).expect("it is done");
    assert_eq!(split.begun(), Some(State::Done));
}

/// Fails when: what stands against a split is told with the path of a scratch file, or late.
#[test]
fn a_disk_of_a_windows_that_sleeps_is_refused() {
    let test = "a_disk_of_a_windows_that_sleeps_is_refused";
    if !have_all(test) || !fixture::have(test, &PROGRAMS) {
        return;
    }
    let tree = Tree::new(48, |root| {
        fixture::windows(root);
        fs::write(
            root.join("hiberfil.sys"),
            [b"hibr", &[0; 9000][..]].concat(),
        )
        .expect("written");
    });
    let image = disk(&tree);
    let error = Split::look(&request(&image, SAFE)).expect_err("refused");
    assert_eq!(error.kind, Kind::Refused);
    let message = error.to_string();
    let message = message.replace(&image.display().to_string(), "I");
    let says = "image I: partition 2: Windows is hibernated or was stopped for a fast start; shut \
                it down with `shutdown /s /f /t 0`";
    assert_eq!(message, says);
}
