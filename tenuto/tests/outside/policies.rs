//! Policies that change while a guest goes on, from outside: under load, over kills and restarts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use workload::check::{Crash, Promise};

use crate::common::load::{End, Load};
use crate::common::{EXIT_REFUSED, Rig, SetWhenDropped, count, seed, wait_until};
use workload::rng::Rng;

const BYTES: u64 = 32 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const ROUND: [&str; 4] = ["write-through", "write-back", "uncached", "write-back"];

fn origin(rig: &Rig) -> String {
    format!("origin={}", rig.image("disk.img", BYTES).display())
}

/// A volume added at run time, so that its policy is kept in the state directory.
fn add(rig: &Rig, policy: &str) {
    let policy = format!("policy={policy}");
    let keys = [origin(rig), policy];
    rig.done(&["volume", "add", "disk", &keys[0], &keys[1], "format=raw"]);
}

fn set(rig: &Rig, policy: &str) {
    let key = format!("policy={policy}");
    rig.done(&["volume", "set", "disk", &key, "--wait"]);
}

fn is_effective(rig: &Rig, policy: &str) {
    let shown = rig.show("disk");
    for key in ["policy", "effective_policy"] {
        assert_eq!(shown[key], policy, "{key}");
    }
    assert_eq!(shown["effective_reason"], serde_json::Value::Null);
}

/// One life of the daemon: the policy goes round under load; at the end it is killed, in the
/// middle of a change every second time.
fn live(rig: &Rig, load: &mut Load, round: u64, random: &mut Rng) {
    let daemon = rig.serve();
    let client = rig.connect("disk");
    let over = AtomicBool::new(false);
    let before = load.counts.answered;
    std::thread::scope(|scope| {
        let (daemon, over) = (&daemon, &over);
        let under_load = &mut *load;
        let running = scope.spawn(move || {
            let _over = SetWhenDropped(over);
            under_load.run(client, |_| true)
        });
        for policy in ROUND {
            set(rig, policy);
            is_effective(rig, policy);
        }
        if round.is_multiple_of(2) {
            // Ordered, and the daemon dies before, while or after it happens.
            let next = ROUND[random.below(ROUND.len() as u64) as usize];
            rig.done(&["volume", "set", "disk", &format!("policy={next}")]);
            std::thread::park_timeout(Duration::from_millis(random.below(60)));
        }
        assert!(
            !over.load(Ordering::SeqCst),
            "the load goes on all the time"
        );
        daemon.signal(libc::SIGKILL);
        let end = running.join().expect("the load's thread does not panic");
        let end = end.unwrap_or_else(|violation| panic!("under load: {violation}"));
        assert_eq!(end, End::Broken, "only a kill ends the load");
    });
    daemon.kill();
    let answered = load.counts.answered - before;
    assert!(answered > 0, "nothing was answered");
    assert_eq!(
        load.counts.refused, 0,
        "no request fails because of a change"
    );
}

/// Fails when: recovery does not write to the log what only the stage has (`LeaveInStage`).
#[test]
fn policies_change_under_load_and_over_kills_and_nothing_is_lost() {
    let rounds = count("TENUTO_DRILL_ROUNDS", 4);
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "128MiB", "ram = \"8MiB\"\nstage = \"8MiB\"");
    let mut random = Rng::new(seed(3));
    let mut load = Load::new(1, BYTES, Promise::Sectors, seed(3));
    let daemon = rig.serve();
    add(&rig, "write-back");
    daemon.stop();
    for round in 0..rounds {
        live(&rig, &mut load, round, &mut random);
        let daemon = rig.serve();
        // What was ordered is what comes back, be it at once or when the log is empty.
        let wanted = rig.show("disk")["policy"].clone();
        wait_until("the policy is in effect", PATIENCE, || {
            rig.show("disk")["effective_policy"] == wanted
        });
        let mut client = rig.connect("disk");
        let found = load.verify(Crash::Kill, &mut client);
        found.unwrap_or_else(|violation| {
            panic!("round {round}: {violation}\n{}", daemon.log());
        });
        client.disconnect();
        daemon.stop();
    }
    // At last the image alone has everything.
    let daemon = rig.serve();
    set(&rig, "uncached");
    daemon.stop();
    let image = rig.dir.join("disk.img");
    let bytes = std::fs::read(image).expect("read the image");
    load.model
        .verify(Crash::Kill, |range, part| {
            part.copy_from_slice(&bytes[range.start as usize * 512..][..part.len()]);
            Ok(())
        })
        .unwrap_or_else(|violation| panic!("the image: {violation}"));
    eprintln!("{} requests, {rounds} rounds", load.counts.answered);
}

/// Fails when: a policy that is set is not kept.
#[test]
fn a_policy_is_kept_over_a_restart_and_the_log_is_emptied_before_another_writes_the_image() {
    let rig = Rig::new();
    let daemon = rig.serve();
    add(&rig, "write-back");
    let mut client = rig.connect("disk");
    client.write(0, &[7; 8192]);
    client.flush();
    assert_eq!(rig.show("disk")["dirty_bytes"], 8192);
    set(&rig, "write-through");
    is_effective(&rig, "write-through");
    let image = || std::fs::read(rig.dir.join("disk.img")).expect("read the image");
    assert_eq!(&image()[..8192], &[7; 8192], "destaged before it changed");
    client.write(4096, &[8; 4096]);
    assert_eq!(&image()[4096..8192], &[8; 4096], "written through");
    assert_eq!(client.read(0, 4096), vec![7; 4096]);
    client.disconnect();
    daemon.stop();
    let daemon = rig.serve();
    is_effective(&rig, "write-through");
    set(&rig, "write-back");
    let mut client = rig.connect("disk");
    client.write(0, &[9; 4096]);
    assert_eq!(&image()[..4096], &[7; 4096], "held back again");
    daemon.kill();
    let daemon = rig.serve();
    is_effective(&rig, "write-back");
    assert_eq!(rig.connect("disk").read(0, 4096), vec![9; 4096]);
    daemon.stop();
}

/// Fails when: the policy of the file counts at once, also for a dirty volume.
#[test]
fn a_dirty_volume_whose_file_names_another_policy_is_destaged_and_then_follows_it() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "destage-after = \"1h\"");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[7; 4096]);
    client.disconnect();
    daemon.stop();
    rig.forget_volumes();
    rig.volume("disk", &image, "uncached", "");
    let daemon = rig.serve();
    wait_until("the policy is in effect", PATIENCE, || {
        rig.show("disk")["effective_policy"] == "uncached"
    });
    assert_eq!(&std::fs::read(&image).unwrap()[..4096], &[7; 4096]);
    assert_eq!(rig.connect("disk").read(0, 4096), vec![7; 4096]);
    daemon.stop();
}

#[test]
fn ephemeral_volumes_keep_their_policy_and_the_file_wins_at_the_next_start() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    let base = rig.image("base.img", BYTES);
    rig.volume("disk", &image, "write-back", "");
    rig.volume("clone", &base, "ephemeral", "");
    let daemon = rig.serve();
    for (volume, policy) in [("clone", "policy=write-back"), ("disk", "policy=ephemeral")] {
        let line = rig.refused(&["volume", "set", volume, policy], EXIT_REFUSED);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("ephemeral"), "{line}");
    }
    is_effective(&rig, "write-back");
    let said = rig.json(&["volume", "set", "disk", "policy=uncached", "--wait"]);
    let note = said["notes"][0].as_str().expect("a note");
    assert!(note.contains("wins at the next start"), "{note}");
    assert_eq!(said["effective_policy"], "uncached");
    daemon.stop();
    let daemon = rig.serve();
    // It comes back as it was, and becomes what the file says by a switch as any other.
    wait_until("the file has won", PATIENCE, || {
        rig.show("disk")["effective_reason"].is_null()
    });
    is_effective(&rig, "write-back");
    daemon.stop();
}

/// Fails when: `never` is taken for an age of zero.
#[test]
fn dirty_data_of_a_volume_that_is_never_destaged_for_its_age_stays_until_a_command() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume(
        "disk",
        &image,
        "write-back",
        "destage-after = \"never\"\ndirty-limit = \"8MiB\"",
    );
    let other = rig.image("other.img", BYTES);
    rig.volume("other", &other, "write-back", "destage-after = \"1s\"");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[7; 4096]);
    client.flush();
    let promise = rig.show("disk")["promise"].to_string();
    assert!(promise.contains("discarded"), "{promise}");
    daemon.kill();
    // Found by a recovery, which counts all other dirty data as old, it stays as well.
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    assert_eq!(client.read(0, 4096), vec![7; 4096]);
    rig.connect("other").write(0, &[7; 4096]);
    wait_until("what ages is destaged", PATIENCE, || {
        rig.show("other")["origin"]["writes"].as_u64() > Some(0)
    });
    assert_eq!(rig.show("disk")["dirty_bytes"], 4096);
    assert_eq!(&std::fs::read(&image).unwrap()[..4096], &[0; 4096]);
    // Its limit of space makes room; no write fails.
    for at in 0..16u64 {
        client.write(at << 20, &vec![8; 1 << 20]);
    }
    client.flush();
    assert!(rig.show("disk")["origin"]["writes"].as_u64() > Some(0));
    rig.done(&["volume", "destage", "disk", "--wait"]);
    assert_eq!(rig.show("disk")["dirty_bytes"], 0);
    assert_eq!(&std::fs::read(&image).unwrap()[..4096], &[8; 4096]);
    daemon.stop();
}

/// Fails when: clean blocks of a removed volume are found by the next one of its number.
#[test]
fn a_volume_that_takes_the_place_of_another_sees_nothing_of_it() {
    let rig = Rig::new();
    let daemon = rig.serve();
    add(&rig, "write-back");
    let mut client = rig.connect("disk");
    assert_eq!(client.read(0, 4096), vec![0; 4096], "now in the read tier");
    client.disconnect();
    rig.gone_clients("disk");
    rig.done(&["volume", "rm", "disk"]);
    let image = rig.dir.join("disk.img");
    std::fs::write(&image, vec![5; BYTES as usize]).expect("write the image");
    let origin = format!("origin={}", image.display());
    rig.done(&["volume", "add", "disk", &origin, "format=raw"]);
    assert_eq!(rig.connect("disk").read(0, 4096), vec![5; 4096]);
    daemon.stop();
}
