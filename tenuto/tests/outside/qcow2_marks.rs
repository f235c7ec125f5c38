//! What a qcow2 image says of the volume that has written it, and what comes of it when another
//! program was there.
//!
//! Always true of each: the time, the size and the inode of the image are what its ledger knows, so
//! that only the mark tells.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::common::{EXIT_REFUSED, Rig, have};
use crate::qcow2_written::{check, create, shown, write};

const LATE: &str = "destage-after = \"never\"";
const PLACE_BYTES: usize = 64 << 10;

fn time_of(image: &Path) -> SystemTime {
    let meta = fs::metadata(image).expect("it is there");
    meta.modified().expect("it has a time")
}

fn set_time(image: &Path, time: SystemTime) {
    let file = File::options().write(true).open(image);
    file.and_then(|it| it.set_modified(time))
        .expect("set the time");
}

/// Writes this over the volume, and leaves it dirty.
fn dirty(rig: &Rig, name: &str, byte: u8) {
    let mut client = rig.connect(name);
    client.write(0, &[byte; PLACE_BYTES]);
    client.flush();
    client.disconnect();
}

/// A volume whose image was destaged to.
fn written(rig: &Rig, name: &str) -> PathBuf {
    let image = rig.dir.join(format!("{name}.qcow2"));
    dirty(rig, name, 1);
    rig.done(&["volume", "destage", name, "--wait"]);
    image
}

fn reads_as(rig: &Rig, name: &str, byte: u8) {
    assert_eq!(rig.connect(name).read(0, 4096), [byte; 4096], "{name}");
}

/// Why a volume is held, as `status -x` says it.
fn held_for(rig: &Rig, name: &str, why: &str) {
    assert_eq!(rig.show(name)["state"], "held", "{name}");
    let wrong = rig.tenuto(&["status", "-x"]);
    let text = crate::common::text_of(&wrong);
    let head = format!("volume {name} is held: ");
    let line = text.lines().find(|line| line.starts_with(&head));
    assert!(line.is_some_and(|it| it.contains(why)), "{why:?}: {text}");
}

/// Fails when: a program may write an image under dirty data and leave it with the time, size and
/// inode that it had; or an image may go back to an earlier state so.
#[test]
fn an_image_that_another_program_wrote_or_a_backup_brought_back_is_held() {
    let test = "an_image_that_another_program_wrote_or_a_backup_brought_back_is_held";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let names = ["opened", "restored", "quiet"];
    for name in names {
        let file = format!("{name}.qcow2");
        let options = ["-o", "extended_l2=on,cluster_size=128k", "16M"];
        let image = create(&rig.dir, &file, &options);
        // As long as it will be, so that its size tells nothing.
        write(&image, "qcow2", &["write -P 7 0 1M"]);
        rig.qcow2_volume(name, &image, "write-back", LATE);
    }
    let daemon = rig.serve();
    let images = names.map(|name| written(&rig, name));
    let backup = fs::read(&images[1]).unwrap();
    dirty(&rig, "restored", 2);
    rig.done(&["volume", "destage", "restored", "--wait"]);
    names.iter().for_each(|name| dirty(&rig, name, 3));
    let uuid = rig.show("opened")["uuid"].clone();
    daemon.stop();
    let text = rig.done(&["image", "info", &shown(&images[0]), "--json"]);
    let info: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(info["written_by"]["volume"], uuid, "{info}");
    images.iter().for_each(|image| check(image));

    let times = images.clone().map(|image| time_of(&image));
    write(&images[0], "qcow2", &["write -P 9 0 4k"]);
    let file = File::options().write(true).open(&images[1]).unwrap();
    file.write_all_at(&backup, 0).unwrap();
    file.set_len(backup.len() as u64).unwrap();
    drop(file);
    for (image, time) in images.iter().zip(times) {
        set_time(image, time);
    }

    let daemon = rig.serve();
    held_for(&rig, "opened", "was opened by another program to write it");
    held_for(&rig, "restored", "is of another moment than its ledger");
    reads_as(&rig, "quiet", 3);
    // The image is kept; the log is kept.
    rig.refused(&["volume", "accept-loss", "opened"], EXIT_REFUSED);
    let named = "--discard-dirty=opened";
    rig.done(&["volume", "accept-loss", "opened", named]);
    reads_as(&rig, "opened", 9);
    rig.done(&["volume", "takeover", "restored", "--overwrite=restored"]);
    reads_as(&rig, "restored", 3);
    for name in names {
        dirty(&rig, name, 4);
        rig.done(&["volume", "destage", name, "--wait"]);
    }
    daemon.stop();
    // All of them are the volumes' own again.
    let daemon = rig.serve();
    names.iter().for_each(|name| reads_as(&rig, name, 4));
    daemon.stop();
    for image in &images {
        check(image);
        let text = rig.done(&["image", "info", &shown(image), "--json"]);
        let info: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(info["written_by"]["serial"].is_u64(), "{info}");
    }
}
