//! `block-size`: disks whose logical blocks have 4,096 bytes, on both front ends.

use serde_json::Value;

use crate::common::front_end::Polite;
use crate::common::guest::Machine;
use crate::common::nfs::Shell;
use crate::common::{EXIT_REFUSED, EXIT_USAGE, Rig, have, run};
use crate::vhost_guest::vhost;

const BYTES: u64 = 16 << 20;
const INVALID: u32 = 22;
const IO_ERROR: u8 = 1;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

const TOOLS: &str = r#"
until_true() { until eval "$1"; do usleep 20000; done; }
of() { cat /sys/block/vda/queue/$1; }
"#;

fn rig(lines: &str) -> Rig {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.guest_volume("disk", &image, "write-back", lines);
    rig
}

/// Fails when: the configuration space or the export tells another block, or a request that is not
/// of whole blocks is carried out.
#[test]
fn requests_of_parts_of_a_block_are_refused() {
    let rig = rig("block-size = 4096");
    let daemon = rig.serve();
    let socket = rig.run_dir().join("disk.vhost.sock");
    let mut guest = Polite::connect(&socket).expect("a front end");
    let space = guest.config(0, 60);
    let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().unwrap());
    assert_eq!(space[..8], (BYTES / 512).to_le_bytes(), "sectors as always");
    assert_eq!(word(20), 4096, "blk_size");
    // One logical block in a physical one, no offset, one block at least, no best size.
    assert_eq!(space[24..32], [0, 0, 1, 0, 0, 0, 0, 0], "topology");
    assert_eq!(word(44), 8, "discard_sector_alignment");
    guest.write(8192, &[7; 4096]);
    for (at, bytes) in [(512, 4096), (8192, 512), (8704, 3584)] {
        assert_eq!(
            guest.try_write(at, &vec![1; bytes]),
            IO_ERROR,
            "{bytes} at {at}"
        );
    }
    assert_eq!(guest.read(8192, 4096), vec![7; 4096]);
    let mut client = rig.connect("disk");
    for (at, bytes) in [(512, 4096), (8192, 512), (1, 1)] {
        let mut found = vec![0; bytes];
        assert_eq!(client.try_read(at, &mut found), Err(INVALID));
    }
    assert_eq!(client.read(8192, 4096), vec![7; 4096]);
    guest.leave();
    client.disconnect();
    rig.gone_clients("disk");
    let mut client = rig.connect("disk");
    assert_eq!(client.try_write(512, &[1; 4096], 0), INVALID);
    for command in [TRIM, WRITE_ZEROES] {
        assert_eq!(client.command(command, 0, 8192, 512), INVALID);
    }
    client.write(4096, &[9; 8192]);
    assert_eq!(
        client.read(4096, 12288),
        [vec![9; 8192], vec![0; 4096]].concat()
    );
    client.disconnect();
    daemon.stop();
}

/// Fails when: programs that read what an export tells are told another block.
#[test]
fn programs_of_nbd_are_told_the_block() {
    let test = "programs_of_nbd_are_told_the_block";
    if !have(test, &["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let rig = rig("block-size = \"4KiB\"");
    let daemon = rig.serve();
    let uri = rig.uri("disk");
    let minimum = || {
        let text = run("nbdinfo", &["--json", &uri]);
        let shown: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
        shown["exports"][0]["block_size_minimum"].clone()
    };
    assert_eq!(minimum(), 4096);
    let copy = rig.dir.join("copy.img").display().to_string();
    let mut client = rig.connect("disk");
    client.write(BYTES - 4096, &[5; 4096]);
    client.disconnect();
    run("nbdcopy", &[&uri, &copy]);
    run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &copy, &uri],
    );
    rig.gone_clients("disk");
    rig.done(&["volume", "set", "disk", "block-size=512"]);
    assert_eq!(minimum(), 1);
    daemon.stop();
}

/// Fails when: a guest whose disk has larger blocks is not told so by its disk.
#[test]
fn a_guest_sees_the_block_of_its_disk() {
    let test = "a_guest_sees_the_block_of_its_disk";
    let rig = rig("block-size = 4096");
    let Some(machine) = Machine::with_shell(test, &rig.dir, TOOLS, &[]) else {
        return;
    };
    let daemon = rig.serve();
    let disk = vhost(&rig, "disk");
    let mut guest = Shell::with_disks(&machine, &rig.dir, "guest", vec![disk]);
    guest.wait_for_shell();
    let said = guest.run("echo $(of logical_block_size) $(of physical_block_size)");
    assert_eq!(said, "4096 4096");
    assert_eq!(
        guest.run("cat /sys/block/vda/size"),
        (BYTES / 512).to_string()
    );
    guest.run(
        "mke2fs -b 4096 /dev/vda >/dev/null 2>&1 && mkdir -p /mnt && mount -t ext4 /dev/vda /mnt",
    );
    guest.run("echo here >/mnt/file && umount /mnt && mount -t ext4 /dev/vda /mnt");
    assert_eq!(guest.run("cat /mnt/file"), "here");
    drop(guest);
    rig.gone_clients("disk");
    daemon.stop();
}

/// Fails when: the block changes under a client, or a disk need not be whole blocks.
#[test]
fn a_block_changes_without_clients_and_fits_the_disk() {
    let mut rig = rig("");
    let odd = rig.image("odd.img", BYTES + 512);
    rig.guest_volume("odd", &odd, "write-back", "");
    let daemon = rig.serve();
    assert_eq!(rig.show("disk")["block_bytes"], 512);
    let shown = rig.done(&["volume", "show", "disk"]);
    assert!(!shown.contains("block size"), "{shown}");
    let order = ["volume", "set", "disk", "block-size=4096"];
    let client = rig.connect("disk");
    let said = rig.refused(&order, EXIT_REFUSED);
    assert!(said.contains("1 client is connected"), "{said}");
    assert_eq!(rig.show("disk")["block_bytes"], 512);
    client.disconnect();
    rig.gone_clients("disk");
    rig.done(&order);
    assert_eq!(rig.show("disk")["block_bytes"], 4096);
    let shown = rig.done(&["volume", "show", "disk"]);
    let row = shown.lines().find(|line| line.starts_with("block size"));
    assert!(row.is_some_and(|row| row.ends_with("4 KiB")), "{shown}");
    let pasted = rig.done(&["volume", "show", "disk", "--qemu", "--nbd"]);
    assert!(pasted.contains("logical_block_size=4096"), "{pasted}");
    let pasted = rig.done(&["volume", "show", "disk", "--libvirt", "--nbd"]);
    assert!(pasted.contains("logical_block_size='4096'"), "{pasted}");
    let said = rig.refused(&["volume", "resize", "disk", "+512"], EXIT_USAGE);
    assert!(said.contains("no whole number of blocks of 4096"), "{said}");
    let said = rig.refused(&["volume", "set", "odd", "block-size=4096"], EXIT_USAGE);
    assert!(said.contains("no whole number of blocks of 4096"), "{said}");
    // It is exported as before.
    let mut client = rig.connect("odd");
    client.write(BYTES, &[3; 512]);
    client.disconnect();
    let said = rig.refused(&["volume", "set", "disk", "block-size=1024"], EXIT_USAGE);
    assert!(said.contains("write 512 or 4096"), "{said}");
    daemon.stop();
    rig.forget_volumes();
    rig.guest_volume("odd", &odd, "write-back", "block-size = 4096");
    let Err((status, said)) = rig.try_serve_strict() else {
        panic!("a disk of parts of blocks is served");
    };
    assert_eq!(status.code(), Some(EXIT_USAGE), "{said}");
    assert!(said.contains("which is no multiple of 4096"), "{said}");
}
