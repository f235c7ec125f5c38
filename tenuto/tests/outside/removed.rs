//! Files of a running host that somebody removes.

use crate::common::nbd::Client;
use crate::common::{EXIT_REFUSED, Rig, text_of};

const BYTES: u64 = 16 << 20;

fn names(line: &str, words: &[&str]) {
    for word in words {
        assert!(line.contains(word), "{word:?} in {line}");
    }
}

fn wrong(rig: &Rig) -> String {
    text_of(&rig.tenuto(&["status", "-x"]))
}

fn state(rig: &Rig, volume: &str) -> String {
    rig.show(volume)["state"].as_str().unwrap().to_owned()
}

/// A volume of each policy that differs here, on images of their own.
fn rig_of_three() -> Rig {
    let mut rig = Rig::new();
    for (name, policy) in [
        ("disk", "write-back"),
        ("clone", "ephemeral"),
        ("plain", "write-through"),
    ] {
        let image = rig.image(&format!("{name}.img"), BYTES);
        rig.volume(name, &image, policy, "");
    }
    rig
}

#[test]
fn a_stage_that_is_gone_in_its_boot_holds_what_may_miss_writes_until_the_loss_is_accepted() {
    let rig = rig_of_three();
    let daemon = rig.serve();
    for name in ["disk", "clone", "plain"] {
        let mut client = rig.connect(name);
        client.write(0, &[1; 8192]);
        client.flush();
        client.write(1 << 20, &[2; 4096]);
    }
    daemon.kill();
    rig.remove_stage();
    // Also by a start that came to nothing.
    rig.serve().kill();
    let daemon = rig.serve();
    assert_eq!(state(&rig, "disk"), "held");
    assert_eq!(state(&rig, "clone"), "held");
    assert_eq!(state(&rig, "plain"), "clean");
    names(
        &wrong(&rig),
        &[
            "volume disk is held: acknowledged writes may be missing, because the stage is gone",
            "volume clone is held: its overlay is lost, because the stage is gone",
            "tenuto volume accept-loss disk",
        ],
    );
    let refused = Client::connect(&rig.socket("disk"), "disk").err();
    names(&refused.expect("no export").to_string(), &["held"]);
    let line = rig.refused(&["volume", "accept-loss", "disk"], EXIT_REFUSED);
    names(&line, &["what was flushed is kept", "--discard-dirty=disk"]);
    rig.done(&["volume", "accept-loss", "disk", "--discard-dirty=disk"]);
    rig.done(&["volume", "reset", "clone"]);
    assert_eq!(rig.connect("disk").read(0, 8192), vec![1; 8192]);
    let newer = rig.connect("disk").read(1 << 20, 4096);
    assert!(newer == [0; 4096] || newer == [2; 4096]);
    assert_eq!(rig.connect("clone").read(0, 8192), vec![0; 8192]);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    assert_eq!(
        std::fs::read(rig.dir.join("disk.img")).unwrap()[..8192],
        [1; 8192]
    );
    rig.connect("disk").write(4096, &[3; 4096]);
    rig.connect("clone").write(4096, &[3; 4096]);
    // A stage that is there holds nothing.
    daemon.kill();
    let daemon = rig.serve();
    for name in ["disk", "clone"] {
        assert_eq!(rig.connect(name).read(4096, 4096), vec![3; 4096]);
    }
    // After an orderly stop the stage has nothing but overlays.
    daemon.stop();
    rig.remove_stage();
    let daemon = rig.serve();
    assert_eq!(rig.connect("disk").read(4096, 4096), vec![3; 4096]);
    assert_eq!(state(&rig, "clone"), "held");
    rig.done(&["volume", "accept-loss", "clone", "--discard-dirty=clone"]);
    rig.connect("disk").write(0, &[4; 4096]);
    // After a loss of power the stage is gone as it must be.
    daemon.kill();
    rig.lose_stage();
    let daemon = rig.serve();
    assert_eq!(rig.connect("disk").read(4096, 4096), vec![3; 4096]);
    assert_eq!(state(&rig, "clone"), "clean");
    daemon.stop();
}
