//! A disk that grows under a guest that runs, and a front end that cannot be told.

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use crate::common::front_end::{Polite, SET_BACKEND_REQ_FD};
use crate::common::guest::Machine;
use crate::common::nfs::Shell;
use crate::common::{Rig, wait_until};
use crate::vhost_guest::vhost;

const MIB: u64 = 1 << 20;
const OLD: u64 = 16 * MIB;
const BLOCK: u64 = 4096;
const NOTE: &str = "its guest sees the new size now";

const TOOLS: &str = r#"
until_true() { until eval "$1"; do usleep 20000; done; }
sectors() { cat /sys/block/vda/size; }
fill() { dd if=/dev/zero bs=4096 count=1 2>/dev/null | tr '\0' "$1"; }
# Writes, and reads back what the disk has.
write() {
    fill $2 | dd of=/dev/vda bs=4096 seek=$1 count=1 conv=fsync,notrunc 2>/dev/null || return 1
    echo 3 >/proc/sys/vm/drop_caches
    fill $2 >/wanted
    dd if=/dev/vda bs=4096 skip=$1 count=1 2>/dev/null | cmp - /wanted
}
"#;

fn resize(rig: &Rig, size: &str) -> String {
    let shown = rig.json(&["volume", "resize", "disk", size]);
    shown["notes"].to_string()
}

/// The guest sees that its disk has so many bytes, and uses its last block.
fn uses_the_end(guest: &mut Shell, bytes: u64, with: char) {
    guest.wait(&format!("test $(sectors) = {}", bytes / 512));
    guest.run(&format!("write {} {with}", bytes / BLOCK - 1));
}

/// Fails when: the guest is not told, is told before the configuration has the new size, or its
/// requests of the new space are refused; or a front end that has connected again is not told.
#[test]
fn a_guest_that_runs_sees_its_disk_grow_and_uses_it() {
    let test = "a_guest_that_runs_sees_its_disk_grow_and_uses_it";
    let mut rig = Rig::new();
    let Some(machine) = Machine::with_shell(test, &rig.dir, TOOLS, &[]) else {
        return;
    };
    let image = rig.image("disk.img", OLD);
    rig.guest_volume("disk", &image, "write-back", "destage-after = \"never\"");
    let daemon = rig.serve();
    let disk = vhost(&rig, "disk");
    let mut guest = Shell::with_disks(&machine, &rig.dir, "guest", vec![disk]);
    guest.wait_for_shell();
    uses_the_end(&mut guest, OLD, 'a');
    let notes = resize(&rig, "+8MiB");
    assert!(notes.contains(NOTE), "{notes}");
    uses_the_end(&mut guest, OLD + 8 * MIB, 'b');
    let said = guest.run("dmesg | grep 'vda.*new size'");
    assert!(said.contains("49152 512-byte logical blocks"), "{said}");
    // The front end has another connection, and a channel of that.
    daemon.kill();
    let daemon = rig.serve();
    wait_until("the guest goes on", crate::common::vm::PATIENCE, || {
        rig.show("disk")["clients"].as_u64() == Some(1)
    });
    guest.run("write 2 c");
    let notes = resize(&rig, "+8MiB");
    assert!(notes.contains(NOTE), "{notes}");
    uses_the_end(&mut guest, OLD + 16 * MIB, 'd');
    guest.run("write 2 e");
    rig.done(&["volume", "destage", "disk", "--wait"]);
    let file = std::fs::File::open(&image).expect("the image");
    let ends = [2 * BLOCK, OLD - BLOCK, OLD + 8 * MIB - BLOCK];
    let places = ends.into_iter().chain([OLD + 16 * MIB - BLOCK]);
    for (at, byte) in places.zip(*b"eabd") {
        let mut found = [0; BLOCK as usize];
        file.read_exact_at(&mut found, at).expect("read the image");
        assert!(found == [byte; BLOCK as usize], "at {at}: {:?}", found[0]);
    }
    drop(guest);
    rig.gone_clients("disk");
    daemon.stop();
}

/// Fails when: a request of the new space is refused after the change or carried out before it, or
/// a resize waits for a front end that reads nothing.
#[test]
fn a_front_end_that_is_not_told_has_the_new_space_too() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", OLD);
    rig.guest_volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    let socket = rig.run_dir().join("disk.vhost.sock");
    let mut guest = Polite::connect(&socket).expect("a front end");
    assert_eq!(guest.try_write(OLD, &[7; 512]), 1, "behind the end");
    let notes = resize(&rig, "+1MiB");
    assert!(notes.contains("when it connects again"), "{notes}");
    guest.write(OLD + MIB - BLOCK, &[7; BLOCK as usize]);
    assert_eq!(guest.try_write(OLD + MIB, &[7; 512]), 1, "behind the end");
    // It gives a channel and never reads it.
    let (deaf, given) = UnixStream::pair().expect("two sockets");
    assert!(guest.give(SET_BACKEND_REQ_FD, &given));
    drop(given);
    let mut size = OLD + MIB;
    let told = |size: &mut u64| {
        *size += BLOCK;
        resize(&rig, "+4096").contains(NOTE)
    };
    assert!(told(&mut size));
    deaf.shutdown(std::net::Shutdown::Both).expect("close");
    assert!(!told(&mut size), "it is closed");
    guest.write(size - 512, &[8; 512]);
    let mut client = rig.connect("disk");
    assert_eq!(client.read(size - 512, 512), vec![8; 512]);
    let notes = resize(&rig, "+4096");
    assert!(notes.contains("over NBD is not told"), "{notes}");
    client.disconnect();
    guest.leave();
    daemon.stop();
}
