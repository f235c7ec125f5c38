//! What a guest on vhost-user may count on besides its bytes: when an overlay ends, what switching
//! the cache off means, and what becomes of it when its volume is exported otherwise.

use crate::common::front_end::Polite;
use crate::common::{Rig, wait_until};
use lab::vhost_client::{Client, Options, Wait};
use std::path::PathBuf;
use std::time::Duration;

const BLOCK: usize = 4096;
const SLOW: Duration = Duration::from_secs(60);
/// Where the cache of a virtio disk is switched (virtio 1.2, section 5.2.4).
const WRITEBACK: u32 = 32;

fn rig(policy: &str, more: &str) -> (Rig, PathBuf) {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", 16 << 20);
    rig.section(&format!(
        "[[volume]]\nname = \"disk\"\norigin = \"{}\"\nformat = \"raw\"\n\
         policy = \"{policy}\"\n{more}",
        image.display()
    ));
    let socket = rig.run_dir().join("disk.vhost.sock");
    (rig, socket)
}

fn connect(socket: &std::path::Path) -> Client {
    let options = Options {
        queues: 2,
        slots: 16,
        slot_bytes: BLOCK as u32,
        wait: Wait::Events,
    };
    Client::connect(socket, options).unwrap()
}

fn first_byte(client: &mut Client) -> u8 {
    let mut found = [0; BLOCK];
    client.read(0, 0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == found[0]));
    found[0]
}

fn nobody_is_there(rig: &Rig) {
    wait_until("the front end is gone", SLOW, || {
        rig.show("disk")["clients"] == 0
    });
}

/// Fails when: a front end that breaks off counts as ended in order.
#[test]
fn an_overlay_ends_with_the_last_guest_that_has_stopped_its_rings_and_with_no_other() {
    let (rig, socket) = rig("ephemeral", "reset-on = \"disconnect\"\n");
    let daemon = rig.serve();
    let mut guest = connect(&socket);
    guest.write(1, 0, &[7; BLOCK]).unwrap();
    // Its QEMU was killed.
    drop(guest);
    nobody_is_there(&rig);
    let mut guest = connect(&socket);
    assert_eq!(first_byte(&mut guest), 7, "one that broke off is no end");
    // A stop and a start of the daemon is none either.
    daemon.stop();
    let _daemon = rig.serve();
    guest.reconnect().unwrap();
    assert_eq!(first_byte(&mut guest), 7, "the end of the daemon is none");
    guest.stop().unwrap();
    nobody_is_there(&rig);
    let mut guest = connect(&socket);
    assert_eq!(
        first_byte(&mut guest),
        0,
        "the next guest finds its disk clean"
    );
    guest.stop().unwrap();
}

/// Fails when: the overlay is reset under a ring that goes on (`ResetUnderSleeper`), or the guest
/// is answered before it is durable that it has not ended.
#[test]
fn a_guest_that_only_slept_finds_its_overlay_as_it_left_it() {
    let (rig, socket) = rig("ephemeral", "reset-on = \"disconnect\"\n");
    let daemon = rig.serve();
    let mut guest = Polite::connect(&socket).unwrap();
    guest.write(0, &[7; BLOCK]);
    // Saved to a file: for its disk that is the end of a guest, until it comes back.
    let asleep = guest.sleep();
    nobody_is_there(&rig);
    assert_eq!(rig.show("disk")["overlay"]["ended"], true);
    daemon.stop();
    let daemon = rig.serve();
    let mut guest = asleep.wake(&socket).unwrap();
    assert_eq!(guest.read(0, BLOCK), [7; BLOCK]);
    // That it has not ended is durable before its first answer.
    daemon.kill();
    let daemon = rig.serve();
    assert_eq!(rig.show("disk")["overlay"]["ended"], false);
    let mut guest = guest.lost().wake(&socket).unwrap();
    assert_eq!(guest.read(0, BLOCK), [7; BLOCK]);
    // One that begins anew finds its disk clean all the same.
    guest.leave();
    nobody_is_there(&rig);
    let mut guest = Polite::connect(&socket).unwrap();
    assert_eq!(guest.read(0, BLOCK), [0; BLOCK]);
    daemon.stop();
}

/// Fails when: rings that go on are given the cache that disks begin with.
#[test]
fn a_cache_that_was_switched_off_stays_off_over_a_restart_of_the_daemon() {
    let (rig, socket) = rig("write-back", "destage-after = \"1h\"\n");
    let mut daemon = rig.serve();
    let mut guest = connect(&socket);
    guest.write(0, 0, &[1; BLOCK]).unwrap();
    guest.set_config(WRITEBACK, &[0]).unwrap();
    daemon.kill();
    daemon = rig.serve();
    // It says nothing of its cache, and what it wrote is durable when it is answered.
    guest.reconnect().unwrap();
    guest.write(1, 8, &[2; BLOCK]).unwrap();
    daemon.kill();
    rig.lose_stage();
    daemon = rig.serve();
    guest.reconnect().unwrap();
    let mut found = [0; BLOCK];
    guest.read(0, 8, &mut found).unwrap();
    assert_eq!(found, [2; BLOCK], "acknowledged without a cache");
    assert_eq!(guest.config().unwrap()[WRITEBACK as usize], 0);
    guest.stop().unwrap();
    daemon.stop();
}

/// Fails when: the guest's switch is ignored.
#[test]
fn a_guest_that_switches_its_cache_off_has_all_that_it_wrote_on_the_device() {
    let (rig, socket) = rig("write-back", "");
    let _daemon = rig.serve();
    let mut guest = connect(&socket);
    let serials = || {
        let shown = rig.show("disk");
        let serial = |name: &str| shown[name].as_u64().unwrap();
        (serial("acked_serial"), serial("durable_serial"))
    };
    for block in 0..64 {
        guest.write(0, block * 8, &[1; BLOCK]).unwrap();
    }
    guest.set_config(WRITEBACK, &[0]).unwrap();
    let (acked, durable) = serials();
    assert_eq!(acked, durable, "what it wrote before");
    guest.write(1, 0, &[2; BLOCK]).unwrap();
    let (later, durable) = serials();
    assert!(later > acked);
    assert_eq!(later, durable, "and what it writes from then on");
    guest.stop().unwrap();
}

#[test]
fn a_volume_that_is_not_exported_any_more_keeps_the_guest_it_has() {
    let (rig, socket) = rig("write-back", "");
    let _daemon = rig.serve();
    let mut guest = connect(&socket);
    guest.write(0, 0, &[3; BLOCK]).unwrap();
    rig.done(&["volume", "set", "disk", "export=nbd"]);
    assert!(!socket.exists() && rig.show("disk")["vhost_socket"].is_null());
    assert_eq!(first_byte(&mut guest), 3);
    rig.done(&["volume", "set", "disk", "export=vhost-user"]);
    assert!(rig.show("disk")["nbd_socket"].is_null());
    assert!(!rig.run_dir().join("disk.nbd.sock").exists());
    guest.stop().unwrap();
    let mut guest = connect(&socket);
    assert_eq!(first_byte(&mut guest), 3);
    guest.stop().unwrap();
}
