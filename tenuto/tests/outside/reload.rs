//! A changed configuration file under a running daemon, from outside.

use std::time::Duration;

use crate::common::{Rig, wait_until};

const BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// The file with other lines for its one volume.
fn file(rig: &mut Rig, policy: &str, lines: &str) {
    let image = rig.dir.join("disk.img");
    rig.forget_volumes();
    rig.volume("disk", &image, policy, lines);
    rig.write_config();
}

/// Fails when: a changed key is noted and not applied.
#[test]
fn what_the_file_changes_is_applied_while_the_guest_goes_on() {
    let mut rig = Rig::new();
    rig.image("disk.img", BYTES);
    file(&mut rig, "write-back", "destage-after = \"never\"");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 4096]);
    assert!(rig.done(&["reload"]).contains("nothing has changed"));
    // Lines that move are no change.
    let path = rig.write_config();
    let text = std::fs::read_to_string(&path).expect("read");
    std::fs::write(&path, format!("# a line more\n{text}")).expect("written");
    assert!(rig.done(&["reload"]).contains("nothing has changed"));

    file(&mut rig, "write-back", "destage-after = \"10ms\"");
    let said = rig.done(&["reload"]);
    assert_eq!(said, "volume disk: changed destage-after\n");
    wait_until("it is destaged by its new age", PATIENCE, || {
        rig.show("disk")["dirty_bytes"] == 0
    });
    file(&mut rig, "write-through", "destage-after = \"10ms\"");
    let said = rig.done(&["reload"]);
    assert_eq!(said, "volume disk: changed policy\n");
    wait_until("the policy is in effect", PATIENCE, || {
        rig.show("disk")["effective_policy"] == "write-through"
    });
    client.write(4096, &[2; 4096]);
    assert_eq!(
        client.read(0, 4096),
        vec![1; 4096],
        "one connection all the time"
    );
    // What a command has changed since, the file takes back.
    rig.done(&["volume", "set", "disk", "dirty-limit=1MiB"]);
    assert_eq!(rig.done(&["reload"]), "volume disk: changed dirty-limit\n");

    // What cannot change is told, and nothing of the volume is changed.
    file(&mut rig, "write-back", "read-only = true");
    let said = rig.done(&["reload"]);
    assert!(
        said.contains("read-only") && said.contains("restart"),
        "{said}"
    );
    assert_eq!(rig.show("disk")["effective_policy"], "write-through");
    client.disconnect();
    daemon.stop();
}

/// Fails when: a file that cannot be read counts as unchanged.
#[test]
fn a_wrong_file_changes_nothing() {
    let mut rig = Rig::new();
    rig.image("disk.img", BYTES);
    file(&mut rig, "write-back", "");
    let daemon = rig.serve();
    file(&mut rig, "write-through", "dirty-limit = \"many\"");
    let said = rig.refused(&["reload"], 2);
    assert!(
        said.contains("dirty-limit") && said.contains("toml:"),
        "{said}"
    );
    assert_eq!(rig.show("disk")["policy"], "write-back");
    daemon.stop();
}

/// Fails when: ledger and journal stay when a volume is detached.
#[test]
fn a_volume_that_is_gone_from_the_file_loses_neither_data_nor_client() {
    let mut rig = Rig::new();
    rig.image("disk.img", BYTES);
    file(&mut rig, "write-back", "destage-after = \"never\"");
    let gold = rig.image("gold.img", BYTES);
    rig.volume("clone", &gold, "ephemeral", "");
    rig.write_config();
    let daemon = rig.serve();
    rig.connect("clone").write(0, &[8; 4096]);
    let mut client = rig.connect("disk");
    client.write(0, &[7; 4096]);
    rig.forget_volumes();
    rig.write_config();
    let said = rig.done(&["reload"]);
    assert!(
        said.contains("volume disk: is gone from the file, but clients"),
        "{said}"
    );
    assert!(
        said.contains("volume clone: ") && said.contains("overlay of 4 KiB"),
        "{said}"
    );
    client.write(4096, &[7; 4096]);
    client.disconnect();
    rig.gone_clients("disk");
    let said = rig.done(&["reload"]);
    assert!(
        said.contains("goes to the origin, then it is detached"),
        "{said}"
    );
    let listed = || rig.json(&["volume", "ls"])["volumes"].to_string();
    wait_until("it is detached", PATIENCE, || {
        !listed().contains("\"disk\"")
    });
    assert!(
        listed().contains("clone"),
        "an overlay is nothing to lose by a file"
    );
    let image = std::fs::read(rig.dir.join("disk.img")).expect("read the image");
    assert_eq!(&image[..8192], &[7; 8192]);
    for beside in ["disk.img.tenuto", "disk.img.tenuto-journal"] {
        assert!(!rig.dir.join(beside).exists(), "{beside} is left");
    }
    assert!(!rig.socket("disk").exists(), "its socket is gone");
    rig.done(&["volume", "rm", "clone"]);
    assert!(rig.done(&["reload"]).contains("nothing has changed"));
    daemon.stop();
}

/// Fails when: a new volume whose image is missing is passed over until the next reload.
#[test]
fn a_new_volume_whose_image_is_missing_is_held_and_served_when_it_is_there() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    let later = rig.dir.join("later.img");
    rig.volume("later", &later, "write-back", "");
    rig.write_config();
    let said = rig.done(&["reload"]);
    assert!(said.starts_with("held: "), "{said}");
    assert!(said.contains("later.img"), "{said}");
    assert_eq!(rig.show("later")["state"], "held");
    assert!(rig.done(&["reload"]).contains("held"), "still");
    rig.image("later.img", BYTES);
    wait_until("it is looked for by itself", PATIENCE, || {
        rig.show("later")["state"] == "clean"
    });
    let mut client = rig.connect("later");
    client.write(0, &[1; 4096]);
    assert_eq!(client.read(0, 4096), vec![1; 4096]);
    client.disconnect();
    daemon.stop();
}
