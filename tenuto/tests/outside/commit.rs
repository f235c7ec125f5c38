//! Committing an overlay to its image, from outside: who may, what the image holds afterwards, and
//! what a kill in the middle leaves.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::marks::Marks;
use crate::common::server::{self, Server};
use crate::common::{EXIT_FAILED, EXIT_REFUSED, Rig, have, may_mount, nbd, seed, text_of};
use crate::qcow2_written::{check, convert, create, is_guarded};
use workload::rng::Rng;

const BYTES: usize = 16 << 20;
/// Marks of the kill drill: destage and ledger, journal write, journal apply, checkpoint.
const PHASES: [u64; 4] = [3, JOURNAL, 5, 6];
const JOURNAL: u64 = 4;

/// How an image is kept in its file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Raw,
    /// All of it lies in one qcow2 file.
    Qcow2,
    /// A qcow2 file with subclusters that has nothing of its own yet.
    Overlay,
}

impl Kind {
    fn format(self) -> &'static str {
        match self {
            Kind::Raw => "raw",
            Kind::Qcow2 | Kind::Overlay => "qcow2",
        }
    }

    /// What QEMU reads in the image.
    fn content(self, path: &Path) -> Vec<u8> {
        if self == Kind::Raw {
            return std::fs::read(path).expect("read the image");
        }
        let raw = path.with_extension("copy");
        convert(("qcow2", path), ("raw", &raw), &["-U"]);
        let bytes = std::fs::read(&raw).expect("read the copy");
        std::fs::remove_file(&raw).expect("remove the copy");
        bytes
    }

    /// An image that holds something everywhere.
    fn image(self, rig: &Rig, name: &str) -> (PathBuf, Vec<u8>) {
        let bytes = image(rig, "base.img");
        let raw = rig.dir.join("base.img");
        let path = rig.dir.join(name);
        match self {
            Kind::Raw => std::fs::rename(&raw, &path).expect("rename it"),
            Kind::Qcow2 => convert(("raw", &raw), ("qcow2", &path), &[]),
            Kind::Overlay => {
                let options = ["-o", "extended_l2=on,cluster_size=128k"];
                let below = ["-b", "base.img", "-F", "raw", "16M"];
                create(&rig.dir, name, &[&options[..], &below].concat());
            }
        }
        (path, bytes)
    }
}

/// An image that holds something everywhere.
fn image(rig: &Rig, name: &str) -> Vec<u8> {
    let bytes: Vec<u8> = (0..BYTES).map(|at| 1 + (at / 4096 % 250) as u8).collect();
    let path = rig.image(name, BYTES as u64);
    std::fs::write(path, &bytes).expect("fill the image");
    bytes
}

/// What a guest does to its disk, and to `disk` in the same way.
fn scribble(client: &mut nbd::Client, disk: &mut [u8], random: &mut Rng) {
    for _ in 0..150 {
        let length = 512 * (1 + random.below(16)) as usize;
        let at = 512 * random.below((BYTES - length) as u64 / 512) as usize;
        let bytes = vec![random.below(256) as u8; length];
        client.write(at as u64, &bytes);
        disk[at..at + length].copy_from_slice(&bytes);
    }
    let (at, length) = (5 << 20, 1 << 20);
    client.write(at as u64, &vec![0xAB; length]);
    disk[at..at + length].fill(0xAB);
    let (at, length) = (9 << 20, 256 << 10);
    assert_eq!(
        client.command(nbd::CMD_TRIM, 0, at as u64, length as u32),
        0
    );
    disk[at..at + length].fill(0);
}

fn export(rig: &Rig) -> Vec<u8> {
    let mut client = rig.connect("clone");
    let parts = (0..BYTES).step_by(1 << 20);
    let bytes = parts
        .flat_map(|at| client.read(at as u64, 1 << 20))
        .collect();
    client.disconnect();
    rig.gone_clients("clone");
    bytes
}

/// Too long to print.
fn same(one: &[u8], other: &[u8], what: &str) {
    let differs = one.iter().zip(other).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that differs");
}

/// The image and the live export hold the same bytes, by another program's word.
fn compare(rig: &Rig, image: &Path, format: &str) {
    let output = Command::new("qemu-img")
        .args(["compare", "-U", "-f", format, "-F", "raw"])
        .arg(image)
        .arg(rig.uri("clone"))
        .output();
    // Where it is not installed our own comparison has to do.
    if let Ok(output) = output {
        assert!(output.status.success(), "{}", text_of(&output));
    }
}

/// Fails when: some of the writes to the image are left out.
#[test]
fn a_committed_overlay_is_the_content_of_its_image() {
    committed(Kind::Raw);
}

/// Fails when: QEMU finds the tables of the image wrong, or another content than the guest; a guard
/// is left.
#[test]
fn a_committed_overlay_is_the_content_of_its_qcow2_image() {
    let test = "a_committed_overlay_is_the_content_of_its_qcow2_image";
    if !have(test, &["qemu-img"]) {
        return;
    }
    for kind in [Kind::Qcow2, Kind::Overlay] {
        committed(kind);
    }
}

fn committed(kind: Kind) {
    let mut rig = Rig::new();
    let (path, mut disk) = kind.image(&rig, "gold");
    let lines = "reset-on = \"disconnect\"";
    rig.volume_of("clone", (&path, kind.format()), "ephemeral", lines);
    let daemon = rig.serve();
    let mut client = rig.connect("clone");
    // Into the caches of the image as it was.
    assert_eq!(client.read(5 << 20, 65_536), disk[5 << 20..][..65_536]);
    scribble(&mut client, &mut disk, &mut Rng::new(seed(1)));
    client.disconnect();
    rig.gone_clients("clone");
    let before = rig.show("clone")["generation"].as_u64();
    let shown = rig.json(&["volume", "commit", "clone"]);
    assert_eq!(shown["overlay"]["ram_blocks"], 0, "{shown}");
    assert_eq!(shown["overlay"]["ssd_blocks"], 0);
    assert_eq!(shown["overlay"]["ended"], false);
    assert_eq!(shown["effective_policy"], "ephemeral");
    assert!(shown["generation"].as_u64() > before);
    same(&kind.content(&path), &disk, "the image");
    same(&export(&rig), &disk, "the export");
    compare(&rig, &path, kind.format());
    let map = rig.json(&["volume", "map", "clone"]);
    assert_eq!(map["totals"]["log_bytes"], 0, "{map}");
    let journal = path.with_extension("tenuto-journal");
    assert_eq!(journal.metadata().expect("a journal").len(), 0, "cut");
    // The image stays untouched by what comes next, and another commit goes on from here.
    let mut client = rig.connect("clone");
    client.write(0, &[0xEE; 4096]);
    same(&kind.content(&path), &disk, "the image");
    drop(client);
    rig.gone_clients("clone");
    rig.done(&["volume", "commit", "clone"]);
    disk[..4096].fill(0xEE);
    same(&kind.content(&path), &disk, "the image");
    // With nothing in the overlay there is nothing to do.
    rig.done(&["volume", "commit", "clone"]);
    daemon.stop();
    let daemon = rig.serve();
    same(&export(&rig), &disk, "the export of another daemon");
    daemon.stop();
    if kind != Kind::Raw {
        check(&path);
    }
}

/// Fails when: the other volumes of the image are not asked for.
#[test]
fn a_commit_is_refused_where_others_would_see_it() {
    let mut rig = Rig::new();
    let disk = image(&rig, "base.img");
    image(&rig, "other.img");
    let path = rig.dir.join("base.img");
    rig.volume("clone", &path, "ephemeral", "");
    rig.volume("disk", &rig.dir.join("other.img"), "write-back", "");
    let daemon = rig.serve();
    let refused = |why: &str| {
        let said = rig.refused(&["volume", "commit", "clone"], EXIT_REFUSED);
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    };
    let mut client = rig.connect("clone");
    client.write(0, &[7; 4096]);
    refused("connected");
    // Another volume on the image, by another name of it.
    let link = rig.dir.join("link.img");
    std::os::unix::fs::symlink(&path, &link).expect("link");
    let origin = format!("origin={}", link.display());
    rig.done(&[
        "volume",
        "add",
        "second",
        &origin,
        "format=raw",
        "policy=ephemeral",
    ]);
    client.disconnect();
    rig.gone_clients("clone");
    refused("second");
    rig.done(&["volume", "rm", "second"]);
    // Another program.
    let mut foreign = Rig::new();
    foreign.volume("reader", &path, "ephemeral", "");
    let reader = foreign.serve();
    refused("in use by");
    reader.stop();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).expect("protect");
    refused("read-only");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("free");
    let said = rig.refused(&["volume", "commit", "disk"], EXIT_REFUSED);
    assert!(said.contains("write-back"), "{said}");
    // Nothing of all that has changed anything.
    same(&std::fs::read(&path).unwrap(), &disk, "the image");
    assert_eq!(rig.connect("clone").read(0, 4096), [7; 4096]);
    daemon.stop();
}

/// Fails when: an overlay is lost with a commit to a qcow2 image that could not be made, or a guard
/// is left.
#[test]
fn an_overlay_outlives_a_commit_that_fails() {
    let test = "an_overlay_outlives_a_commit_that_fails";
    if !have(test, &["qemu-img"]) || !may_mount(test) {
        return;
    }
    for kind in [Kind::Qcow2, Kind::Overlay] {
        let mut rig = Rig::new();
        let (path, mut disk) = kind.image(&rig, "gold");
        let (server, place) = (Server::default(), rig.dir.join("share"));
        let _share = server::mount(&server, &place);
        let lines = format!(
            "reset-on = \"disconnect\"\njournal = \"{}\"",
            place.display()
        );
        rig.volume_of("clone", (&path, kind.format()), "ephemeral", &lines);
        let daemon = rig.serve();
        let mut write = |rig: &Rig, at: usize, length: usize| {
            let mut client = rig.connect("clone");
            client.write(at as u64, &vec![0x5A; length]);
            client.disconnect();
            rig.gone_clients("clone");
            disk[at..at + length].fill(0x5A);
            disk.clone()
        };
        // Its journal is there afterwards.
        write(&rig, 0, 512);
        rig.done(&["volume", "commit", "clone"]);
        let mut names = server.names().into_iter();
        let journal = names.find(|name| name.ends_with(".tenuto-journal"));
        server.refuse_writes(Some(&journal.expect("a journal")));
        let before = kind.content(&path);
        let disk = write(&rig, 3 << 20, 1 << 20);
        let said = rig.refused(&["volume", "commit", "clone"], EXIT_FAILED);
        assert_eq!(said.lines().count(), 1, "{said}");
        same(&kind.content(&path), &before, "the image");
        let map = rig.json(&["volume", "map", "clone"]);
        assert_eq!(map["totals"]["stage_bytes"], 1 << 20, "{map}");
        daemon.stop();
        let daemon = rig.serve();
        server.refuse_writes(None);
        rig.done(&["volume", "commit", "clone"]);
        same(&kind.content(&path), &disk, "the image at last");
        daemon.stop();
        check(&path);
    }
}

/// One commit that is killed in the middle of the nth piece of work of a kind. Returns whether the
/// image was changed, and whether the kill has left a guard.
fn killed_in(kind: Kind, phase: u64, nth: u64, random: &mut Rng) -> (bool, bool) {
    let mut rig = Rig::new();
    let (path, before) = kind.image(&rig, "gold");
    let mut after = before.clone();
    rig.volume_of("clone", (&path, kind.format()), "ephemeral", "");
    let marks = Marks::new(&rig.dir.join("marks"));
    rig.env("TENUTO_MARKS", &marks.path().to_string_lossy());
    let daemon = rig.serve();
    let mut client = rig.connect("clone");
    scribble(&mut client, &mut after, random);
    client.disconnect();
    rig.gone_clients("clone");
    marks.arm(phase, nth);
    let output = rig.tenuto(&["volume", "commit", "clone"]);
    let done = output.status.success();
    drop(daemon.kill());
    marks.disarm();
    let guarded = kind != Kind::Raw && is_guarded(&path);
    // The overlay has outlived the daemon, or is in the image: the guest cannot tell.
    let daemon = rig.serve();
    same(&export(&rig), &after, "the export after a kill");
    let bytes = kind.content(&path);
    let committed = bytes == after;
    assert!(committed || bytes == before, "the image is in between");
    assert!(committed || !done, "it was said to be done");
    daemon.kill();
    // Without its RAM the host forgets an overlay, but no commit.
    rig.lose_stage();
    let daemon = rig.serve();
    let expected = if committed { &after } else { &before };
    same(
        &export(&rig),
        expected,
        "the export after the host was down",
    );
    compare(&rig, &path, kind.format());
    // It can be written and committed as ever.
    let mut client = rig.connect("clone");
    client.write(4096, &[0xCD; 512]);
    client.disconnect();
    rig.gone_clients("clone");
    rig.done(&["volume", "commit", "clone"]);
    let bytes = kind.content(&path);
    assert_eq!(bytes[4096..4608], [0xCD; 512]);
    same(&bytes[4608..], &expected[4608..], "the image at last");
    daemon.stop();
    if kind != Kind::Raw {
        check(&path);
    }
    (committed, guarded)
}

/// Returns how many guards were left before a commit was decided.
fn drill(kinds: &[Kind], numbers: &[u64]) -> u64 {
    let mut random = Rng::new(seed(2));
    let (mut outcomes, mut guards) = ([0, 0], 0);
    for phase in PHASES {
        for nth in numbers {
            let kind = kinds[(nth + phase) as usize % kinds.len()];
            let (committed, guarded) = killed_in(kind, phase, *nth, &mut random);
            eprintln!("{kind:?} killed in {phase}, {nth}: committed {committed}, {guarded}");
            outcomes[usize::from(committed)] += 1;
            guards += u64::from(guarded && !committed);
        }
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
    guards
}

/// Fails when: a pending journal is not finished before its volume is served (`SkipReplay`).
#[test]
fn a_commit_that_is_killed_is_whole_or_not_at_all() {
    drill(&[Kind::Raw], &[1, 2, 3, 4, 6]);
}

/// Fails when: a plan changes what the image refers to before it is decided, a guard stays, or QEMU
/// finds the tables of the image wrong.
#[test]
fn a_commit_to_a_qcow2_image_that_is_killed_is_whole_or_not_at_all() {
    let test = "a_commit_to_a_qcow2_image_that_is_killed_is_whole_or_not_at_all";
    if !have(test, &["qemu-img"]) {
        return;
    }
    let kinds = [Kind::Qcow2, Kind::Overlay];
    let guards = drill(&kinds, &[1, 2, 3, 4, 6, 9, 10]);
    let mut random = Rng::new(seed(3));
    // How many writes the journal takes before its sync, which the guard precedes, may differ.
    let met = |nth| {
        let (committed, guarded) = killed_in(Kind::Overlay, JOURNAL, nth, &mut random);
        guarded && !committed
    };
    assert!(guards > 0 || (1..12).any(met), "no kill met a guard");
}
