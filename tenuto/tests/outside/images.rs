//! Images that are not what they were: replaced, renamed, removed, truncated or written by
//! another program, while the daemon is away and while it serves.
//!
//! Always true of each: nothing of the volume goes to what is there now before somebody has said
//! so, and the volume that is held says what it would lose and how to go on.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Daemon, EXIT_REFUSED, Rig, nbd, text_of, wait_until};

const MIB: u64 = 1 << 20;
const BYTES: u64 = 4 * MIB;
/// A look comes every ten seconds; the machine may be slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// No age: what a start finds in the log counts as old, on a machine that runs for long.
const LATE: &str = "destage-after = \"never\"";

/// Another image of the same size, moved into the place of this one.
fn replace(image: &Path, byte: u8) {
    let other = image.with_extension("new");
    fs::write(&other, vec![byte; BYTES as usize]).unwrap();
    fs::rename(&other, image).unwrap();
}

fn is_all(image: &Path, byte: u8) -> bool {
    fs::read(image).unwrap() == vec![byte; BYTES as usize]
}

fn starts_with(image: &Path, byte: u8) -> bool {
    fs::read(image).unwrap()[..4096] == [byte; 4096]
}

fn is_held(rig: &Rig, name: &str) -> bool {
    rig.show(name)["state"] == "held"
}

fn becomes(rig: &Rig, name: &str, held: bool) {
    wait_until("the look at its image", PATIENCE, || {
        is_held(rig, name) == held
    });
}

/// What `status -x` says of a volume that is held names all that is needed to decide.
fn tells(rig: &Rig, name: &str, parts: &[&str]) {
    let wrong = rig.tenuto(&["status", "-x"]);
    assert_eq!(wrong.status.code(), Some(1));
    let text = text_of(&wrong);
    let head = format!("volume {name} is held: ");
    let line = text.lines().find(|line| line.starts_with(&head));
    let line = line.unwrap_or_default();
    for part in parts {
        assert!(line.contains(part), "{part:?} is missing in: {text}");
    }
}

/// Fails when: any file that has the name of the image is taken for it (`LayOverAny`).
#[test]
fn an_image_that_was_replaced_under_dirty_data_is_held_and_the_image_or_the_log_is_kept() {
    let mut rig = Rig::new();
    let names = ["image", "log", "back"];
    let images = names.map(|name| rig.image(&format!("{name}.img"), BYTES));
    for (name, image) in names.iter().zip(&images) {
        rig.volume(name, image, "write-back", LATE);
    }
    let daemon = rig.serve();
    for name in names {
        let mut client = rig.connect(name);
        client.write(0, &[1; 4096]);
        client.flush();
        client.disconnect();
    }
    daemon.stop();
    let aside = images[2].with_extension("aside");
    fs::hard_link(&images[2], &aside).unwrap();
    images.iter().for_each(|image| replace(image, 9));
    let daemon = rig.serve();
    for (name, image) in names.iter().zip(&images) {
        assert!(is_held(&rig, name), "{name}: {}", daemon.log());
        let (place, takeover) = (image.display().to_string(), "takeover");
        tells(&rig, name, &[&place, "4096 bytes", "accept-loss", takeover]);
        assert!(is_all(image, 9), "{name}: nothing was written");
    }
    // The image is kept.
    rig.refused(&["volume", "accept-loss", "image"], EXIT_REFUSED);
    let named = "--discard-dirty=image";
    rig.done(&["volume", "accept-loss", "image", named]);
    assert_eq!(rig.connect("image").read(0, 4096), [9; 4096]);
    rig.done(&["volume", "destage", "image", "--wait"]);
    assert!(is_all(&images[0], 9));
    // The log is kept.
    let line = rig.refused(&["volume", "takeover", "log", "--overwrite"], EXIT_REFUSED);
    for part in ["4096 bytes", "log.img", "--overwrite=log"] {
        assert!(line.contains(part), "{part:?} is missing in: {line}");
    }
    assert!(is_all(&images[1], 9));
    rig.done(&["volume", "takeover", "log", "--overwrite=log"]);
    assert_eq!(rig.connect("log").read(0, 8192)[..4096], [1; 4096]);
    rig.done(&["volume", "destage", "log", "--wait"]);
    assert!(starts_with(&images[1], 1));
    // The image comes back.
    fs::rename(&aside, &images[2]).unwrap();
    rig.done(&["reload"]);
    assert!(!is_held(&rig, "back"), "{}", daemon.log());
    rig.done(&["volume", "destage", "back", "--wait"]);
    assert!(starts_with(&images[2], 1));
    daemon.stop();
}

/// Fails when: it is not looked at where the path of an image leads.
#[test]
fn an_image_that_loses_its_name_while_it_is_served_is_held_until_it_has_it_again() {
    let mut rig = Rig::new();
    let policies = ["uncached", "write-through", "write-back"];
    let images = policies.map(|name| rig.image(&format!("{name}.img"), BYTES));
    for (policy, image) in policies.iter().zip(&images) {
        rig.volume(policy, image, policy, LATE);
    }
    let daemon = rig.serve();
    let mut clients = policies.map(|name| rig.connect(name));
    for client in &mut clients {
        client.write(0, &[1; 4096]);
        client.flush();
    }
    let aside = images.clone().map(|image| image.with_extension("aside"));
    fs::rename(&images[0], &aside[0]).unwrap();
    fs::rename(&images[1], &aside[1]).unwrap();
    fs::copy(&aside[1], &images[1]).unwrap();
    fs::rename(&images[2], &aside[2]).unwrap();
    // Whoever asks is not told that it is at the origin.
    for policy in policies {
        let destage = ["volume", "destage", policy, "--wait"];
        rig.refused(&destage, EXIT_REFUSED);
        assert!(is_held(&rig, policy), "{policy}");
        tells(&rig, policy, &[&format!("{policy}.img"), "accept-loss"]);
    }
    assert!(!starts_with(&aside[2], 1), "nothing of it was written");
    // What a guest writes meanwhile waits.
    let late = nbd::CMD_WRITE;
    let sent = clients[0].send(late, 0, MIB, 4096, &[2; 4096]);
    sent.expect("the request goes out");
    for (aside, image) in aside.iter().zip(&images) {
        fs::rename(aside, image).unwrap();
    }
    rig.done(&["reload"]);
    for policy in policies {
        becomes(&rig, policy, false);
        rig.done(&["volume", "destage", policy, "--wait"]);
    }
    assert_eq!(clients[0].answer().expect("an answer").error, 0);
    assert!(images.iter().all(|image| starts_with(image, 1)));
    // Nobody asks, and it is noticed all the same.
    fs::remove_file(&images[0]).unwrap();
    becomes(&rig, "uncached", true);
    daemon.stop();
}

/// A disk with dirty data that is held, because its image was replaced while it is served.
fn replaced_while_served(rig: &mut Rig) -> (PathBuf, Daemon, nbd::Client) {
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", LATE);
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 4096]);
    client.flush();
    replace(&image, 9);
    rig.refused(&["volume", "destage", "disk", "--wait"], EXIT_REFUSED);
    becomes(rig, "disk", true);
    (image, daemon, client)
}

/// Fails when: the loss of a volume that is held while it is served cannot be accepted, or does not
/// wait for the name, or what the log had comes back after a kill (`KeepAfterLoss`), or the ledger
/// is not told.
#[test]
fn the_loss_of_a_volume_whose_image_is_replaced_while_it_is_served_is_accepted_by_name() {
    let mut rig = Rig::new();
    let (image, daemon, client) = replaced_while_served(&mut rig);
    tells(&rig, "disk", &["disk.img", "4096 bytes", "accept-loss"]);
    let (order, named) = (["volume", "accept-loss", "disk"], "--discard-dirty=disk");
    rig.refused(&order, EXIT_REFUSED);
    rig.refused(&[&order[..], &[named]].concat(), EXIT_REFUSED);
    assert!(is_held(&rig, "disk"), "a client is connected");
    client.disconnect();
    rig.gone_clients("disk");
    rig.done(&[&order[..], &[named]].concat());
    assert!(!is_held(&rig, "disk"), "{}", daemon.log());
    let mut client = rig.connect("disk");
    assert_eq!(client.read(0, 4096), [9; 4096]);
    client.write(MIB, &[2; 4096]);
    client.flush();
    client.disconnect();
    // What was accepted outlives a kill, and so does what was written since.
    daemon.kill();
    let daemon = rig.serve();
    assert_eq!(rig.show("disk")["state"], "dirty", "{}", daemon.log());
    let holds = |when: &str| {
        let mut client = rig.connect("disk");
        assert_eq!(client.read(0, 4096), [9; 4096], "{when}");
        assert_eq!(client.read(MIB, 4096), [2; 4096], "{when}");
        client.disconnect();
    };
    holds("before a destage");
    assert!(is_all(&image, 9), "nothing of it was destaged yet");
    rig.done(&["volume", "destage", "disk", "--wait"]);
    holds("after a destage");
    let bytes = fs::read(&image).unwrap();
    assert_eq!(bytes[..4096], [9; 4096]);
    assert_eq!(bytes[MIB as usize..][..4096], [2; 4096]);
    daemon.stop();
}

/// Fails when: a ledger that this daemon has written itself is taken for one of another owner.
#[test]
fn the_log_of_a_volume_whose_image_is_replaced_while_it_is_served_is_kept_by_name() {
    let mut rig = Rig::new();
    let (image, daemon, client) = replaced_while_served(&mut rig);
    client.disconnect();
    rig.gone_clients("disk");
    let takeover = ["volume", "takeover", "disk"];
    let line = rig.refused(&[&takeover[..], &["--overwrite"]].concat(), EXIT_REFUSED);
    assert!(line.contains("--overwrite=disk"), "{line}");
    assert!(is_all(&image, 9), "nothing was written");
    rig.done(&[&takeover[..], &["--overwrite=disk"]].concat());
    assert!(!is_held(&rig, "disk"), "{}", daemon.log());
    let mut client = rig.connect("disk");
    assert_eq!(client.read(0, 4096), [1; 4096]);
    client.write(MIB, &[2; 4096]);
    client.flush();
    client.disconnect();
    rig.done(&["volume", "destage", "disk", "--wait"]);
    let bytes = fs::read(&image).unwrap();
    assert_eq!(bytes[..4096], [1; 4096]);
    assert_eq!(bytes[4096..8192], [9; 4096], "what the log does not have");
    assert_eq!(bytes[MIB as usize..][..4096], [2; 4096]);
    daemon.stop();
}

/// Fails when: an image may be shorter than its volume, or what was read of a base counts after
/// another program wrote the base (`KeepChangedBase`).
#[test]
fn an_image_that_is_truncated_is_held_and_a_base_that_is_written_is_read_anew() {
    let mut rig = Rig::new();
    let gold = rig.image("gold.img", BYTES);
    let disk = rig.image("disk.img", BYTES);
    rig.volume("clone", &gold, "ephemeral", "");
    rig.volume("disk", &disk, "write-back", LATE);
    let daemon = rig.serve();
    let (mut clone, mut client) = (rig.connect("clone"), rig.connect("disk"));
    assert_eq!(clone.read(0, 4096), [0; 4096]);
    clone.write(MIB, &[1; 4096]);
    client.write(0, &[1; 4096]);
    client.flush();
    let open = |path: &PathBuf| fs::File::options().write(true).open(path).unwrap();
    for path in [&gold, &disk] {
        open(path).set_len(MIB).unwrap();
    }
    rig.done(&["reload"]);
    for (name, place) in [("clone", "gold.img"), ("disk", "disk.img")] {
        becomes(&rig, name, true);
        tells(&rig, name, &[place, "has shrunk"]);
    }
    open(&disk).set_len(BYTES).unwrap();
    // As `cp new gold.img` does it.
    fs::write(&gold, vec![7; BYTES as usize]).unwrap();
    rig.done(&["reload"]);
    becomes(&rig, "clone", false);
    becomes(&rig, "disk", false);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    assert!(starts_with(&disk, 1));
    let shown = rig.show("clone");
    let flags = shown["flags"].as_array().expect("a list");
    assert!(flags.iter().any(|flag| flag == "base-changed"), "{shown}");
    assert_eq!(clone.read(0, 4096), [7; 4096], "not what was kept");
    assert_eq!(clone.read(MIB, 4096), [1; 4096], "the overlay");
    open(&gold).write_all_at(&[8; 4096], 0).unwrap();
    rig.done(&["reload"]);
    wait_until("the look", PATIENCE, || clone.read(0, 4096) == [8; 4096]);
    daemon.stop();
}

/// Fails when: an overlay fits any image (`LayOverAnyBase`).
#[test]
fn an_overlay_is_not_laid_over_another_base_than_the_one_it_was_written_on() {
    let mut rig = Rig::new();
    let names = ["leaves", "stays", "commits"];
    let images = names.map(|name| rig.image(&format!("{name}.img"), BYTES));
    for (name, image) in names.iter().zip(&images) {
        let reset = match *name {
            "leaves" => "disconnect",
            _ => "command",
        };
        let line = format!("reset-on = \"{reset}\"");
        rig.volume(name, image, "ephemeral", &line);
    }
    let daemon = rig.serve();
    let mut clients = names.map(|name| rig.connect(name));
    for client in &mut clients {
        client.write(0, &[1; 4096]);
    }
    // They are connected when it stops, so nobody has left.
    daemon.stop();
    drop(clients);
    images[..2].iter().for_each(|image| replace(image, 9));
    let daemon = rig.serve();
    let shown = rig.show("leaves");
    let flags = shown["flags"].as_array().expect("a list");
    assert!(flags.iter().any(|flag| flag == "base-changed"), "{shown}");
    assert_eq!(rig.connect("leaves").read(0, 4096), [9; 4096]);
    assert!(is_held(&rig, "stays"));
    tells(&rig, "stays", &["stays.img", "volume reset stays"]);
    rig.refused(&["volume", "commit", "stays"], EXIT_REFUSED);
    assert!(is_all(&images[1], 9));
    rig.done(&["volume", "reset", "stays"]);
    assert!(!is_held(&rig, "stays"));
    assert_eq!(rig.connect("stays").read(0, 4096), [9; 4096]);
    // Replaced while it is served, and nobody has looked yet.
    replace(&images[2], 9);
    rig.refused(&["volume", "commit", "commits"], EXIT_REFUSED);
    assert!(is_all(&images[2], 9), "{}", daemon.log());
    daemon.stop();
}
