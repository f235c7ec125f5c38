//! An origin on a file server that makes no holes, and that loses what it had open.

use std::time::Duration;

use crate::common::fuse::Mount;
use crate::common::nbd::{CMD_TRIM, CMD_WRITE_ZEROES};
use crate::common::server::{self, Server};
use crate::common::{Rig, may_mount, wait_until};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

/// A rig whose volume `disk` has its image on a server, with these bytes in it.
fn on_a_server(policy: &str, bytes: Vec<u8>) -> (Rig, Server, Mount) {
    let mut rig = Rig::new();
    let server = Server::default();
    server.put("disk.img", bytes);
    let place = rig.dir.join("share");
    let share = server::mount(&server, &place);
    rig.volume("disk", &place.join("disk.img"), policy, "");
    (rig, server, share)
}

fn count(rig: &Rig, path: &[&str]) -> u64 {
    let shown = rig.show("disk");
    let found = path.iter().fold(&shown, |at, key| &at[*key]);
    found
        .as_u64()
        .unwrap_or_else(|| panic!("{path:?} in {shown}"))
}

#[test]
fn a_discard_writes_no_zeroes_where_the_origin_makes_no_holes() {
    let name = "a_discard_writes_no_zeroes_where_the_origin_makes_no_holes";
    if !may_mount(name) {
        return;
    }
    for policy in ["uncached", "write-back"] {
        let mut bytes = vec![0; 32 << 20];
        bytes[20 << 20..21 << 20].fill(7);
        let (rig, server, _share) = on_a_server(policy, bytes);
        let daemon = rig.serve();
        let mut client = rig.connect("disk");
        // The first one tells that the server makes no holes; where it is zero already nothing is
        // written, and where it is not the promise holds.
        let before = server.written();
        assert_eq!(client.command(CMD_TRIM, 0, 0, 16 << 20), 0);
        rig.flush_and_destage(&mut client, policy);
        let empty = server.written() - before;
        assert!(empty < MIB, "{policy}: {empty} bytes for a trim of nothing");
        // From then on a discard is dropped: the data stays, and nothing is written.
        assert_eq!(client.command(CMD_TRIM, 0, 20 << 20, 1 << 20), 0);
        rig.flush_and_destage(&mut client, policy);
        assert_eq!(client.read(20 << 20, 4096), [7; 4096], "{policy}");
        assert_eq!(count(&rig, &["dropped_discards"]), 1, "{policy}");
        assert_eq!(count(&rig, &["origin", "zeroed_bytes"]), 0, "{policy}");
        // A write of zeroes is no hint; it writes what is not zero yet.
        assert_eq!(client.command(CMD_WRITE_ZEROES, 0, 16 << 20, 8 << 20), 0);
        rig.flush_and_destage(&mut client, policy);
        assert_eq!(client.read(20 << 20, 4096), [0; 4096], "{policy}");
        assert_eq!(count(&rig, &["origin", "zeroed_bytes"]), MIB, "{policy}");
        assert!(server.bytes("disk.img").iter().all(|byte| *byte == 0));
        client.disconnect();
        daemon.stop();
    }
}

/// What the volume answers, and what its image has in the end.
fn goes_on_after(errno: i32, policy: &str) {
    let (mut rig, server, _share) = on_a_server(policy, vec![5; 16 << 20]);
    let other = rig.image("other.img", 4 * MIB);
    rig.volume("other", &other, "write-back", "");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 8192]);
    rig.flush_and_destage(&mut client, policy);
    client.write(4096, &[2; 8192]);
    if policy == "uncached" {
        // Of what was not flushed nobody would know where it is.
        client.flush();
    }
    server.forget(errno);
    // Neither read nor written before: both need the image.
    assert_eq!(client.read(8 * MIB, 4096), [5; 4096]);
    client.write(9 * MIB, &[3; 4096]);
    rig.flush_and_destage(&mut client, policy);
    let bytes = server.bytes("disk.img");
    assert_eq!(bytes[4096..12_288], [2; 8192], "{policy}");
    assert_eq!(bytes[9 << 20..][..4096], [3; 4096], "{policy}");
    daemon.says(&["disk.img: is open again"]);
    // Its locks are there again.
    let mut second = Rig::new();
    second.volume("disk", &rig.dir.join("share/disk.img"), "uncached", "");
    let (_, log) = second.try_serve_strict().err().expect("it is locked");
    names(&log, &[&format!("pid {}", daemon.pid())]);
    client.disconnect();
    daemon.stop();
}

fn names(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// Fails when: a handle that is stale for good is used for ever.
#[test]
fn handles_that_are_stale_for_good_are_opened_again_and_all_goes_on() {
    if !may_mount("handles_that_are_stale_for_good_are_opened_again_and_all_goes_on") {
        return;
    }
    goes_on_after(libc::ESTALE, "uncached");
    goes_on_after(libc::ESTALE, "write-back");
}

/// Fails when: EIO of a handle is taken for an error of its range, or the lock is not taken again.
#[test]
fn a_file_whose_lock_the_server_has_lost_is_opened_and_locked_again() {
    if !may_mount("a_file_whose_lock_the_server_has_lost_is_opened_and_locked_again") {
        return;
    }
    goes_on_after(libc::EIO, "write-back");
}

/// Fails when: the thread that serves all volumes closes the files of one.
#[test]
fn a_server_that_does_not_answer_when_lost_files_are_closed_stops_no_other_volume() {
    let name = "a_server_that_does_not_answer_when_lost_files_are_closed_stops_no_other_volume";
    if !may_mount(name) {
        return;
    }
    let (mut rig, server, _share) = on_a_server("write-back", vec![5; 4 << 20]);
    let other = rig.image("other.img", 4 * MIB);
    rig.volume("other", &other, "write-back", "");
    let daemon = rig.serve();
    let (mut client, mut second) = (rig.connect("disk"), rig.connect("other"));
    client.write(0, &[1; 4096]);
    client.flush();
    let closes = server.hold_closes();
    server.forget(libc::ESTALE);
    rig.done(&["volume", "destage", "disk"]);
    wait_until("a file is closed", PATIENCE, || server.closing() > 0);
    second.write(0, &[2; 4096]);
    second.flush();
    rig.done(&["volume", "destage", "other", "--wait"]);
    drop(closes);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    assert_eq!(server.bytes("disk.img")[..4096], [1; 4096]);
    client.disconnect();
    second.disconnect();
    daemon.stop();
}

/// Fails when: a file is taken for the image because it has its name.
#[test]
fn dirty_data_is_not_written_to_another_file_that_a_stale_path_leads_to() {
    if !may_mount("dirty_data_is_not_written_to_another_file_that_a_stale_path_leads_to") {
        return;
    }
    let (rig, server, _share) = on_a_server("write-back", vec![5; 4 << 20]);
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 4096]);
    client.flush();
    server.put("disk.img", vec![6; 4 << 20]);
    server.forget(libc::ESTALE);
    rig.done(&["volume", "destage", "disk"]);
    wait_until("the volume is held", PATIENCE, || {
        rig.show("disk")["state"] == "held"
    });
    names(
        rig.show("disk")["effective_reason"].as_str().expect("why"),
        &["another file"],
    );
    assert_eq!(client.read(0, 4096), [1; 4096], "from the cache");
    daemon.stop();
    assert!(server.bytes("disk.img").iter().all(|byte| *byte == 6));
}

/// Fails when: the start waits until the journal is applied, or the journal is written over.
///
/// The daemon is killed in the middle of a destage. Its journal cannot be applied, because the
/// server takes no writes; its volume is served all the same, by what the log has.
#[test]
fn a_volume_is_served_before_the_journal_of_a_killed_destage_is_applied() {
    let name = "a_volume_is_served_before_the_journal_of_a_killed_destage_is_applied";
    if !may_mount(name) {
        return;
    }
    let (rig, server, _share) = on_a_server("write-back", vec![5; 16 << 20]);
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    for block in 0..64 {
        client.write(block * 65_536, &[1; 4096]);
    }
    client.flush();
    server.refuse_writes(Some("disk.img"));
    rig.done(&["volume", "destage", "disk"]);
    let state = |state: &str| rig.show("disk")["state"] == state;
    wait_until("the destage is stuck", PATIENCE, || state("stalled"));
    // Of the journal nothing, of the guest all.
    client.write(0, &[2; 4096]);
    client.flush();
    daemon.kill();

    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    assert_eq!(client.read(0, 4096), [2; 4096]);
    assert_eq!(
        client.read(63 * 65_536, 8192),
        [[1; 4096], [5; 4096]].concat()
    );
    client.write(65_536, &[3; 4096]);
    client.flush();
    wait_until("the replay is stuck", PATIENCE, || state("stalled"));
    daemon.says(&["the journal beside it", "is finished meanwhile"]);
    assert!(
        !server.bytes("disk.img").contains(&1),
        "nothing was applied"
    );
    server.refuse_writes(None);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    let bytes = server.bytes("disk.img");
    assert_eq!(bytes[..4096], [2; 4096]);
    assert_eq!(bytes[65_536..][..4096], [3; 4096]);
    assert_eq!(
        bytes[63 * 65_536..][..8192],
        [[1; 4096], [5; 4096]].concat()
    );
    assert!(state("clean"));
    client.disconnect();
    daemon.stop();
}
