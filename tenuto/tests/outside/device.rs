//! A volume as a block device of its host, by the kernel's NBD driver.
//!
//! The driver is that of a guest, which runs the product's daemon beside the programs that use the
//! device; this machine's own kernel is not touched.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::guest::{Machine, product, with_libraries};
use crate::common::nfs::Shell;
use crate::common::{EXIT_FAILED, EXIT_USAGE, Rig, have, is_root, on_path, skip, text_of};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 32 * MIB;

const TOOLS: &str = r#"
export TENUTO_CONFIG=/tenuto.toml NO_COLOR=1
until_true() { until eval "$1"; do usleep 50000; done; }
setup() {
    mkdir -p /t /mnt /dev/shm
    mount -t ext4 /dev/vda /t
    mkdir -p /t/run /t/state
    mount -t tmpfs stage /dev/shm
}
serve() {
    tenuto serve >/log 2>&1 </dev/null &
    daemon=$!
    until_true 'grep -q ^ready /log'
}
ends_with() {
    wanted=$1
    shift
    "$@"
    code=$?
    test $code = $wanted || { echo "code $code"; return 1; }
}
device() { tenuto volume device "$@"; }
# Sees no device.
blind_resize() { unshare -m sh -c "umount /sys && tenuto volume resize disk $1"; }
again() { sha256sum /mnt/first /mnt/second | cut -d ' ' -f 1; }
# Without udev, and of the devices of volumes only.
lvm() {
    verb=$1
    shift
    /e2/lvm $verb --config 'activation { udev_sync=0 udev_rules=0 } backup { backup=0 archive=0 }
        devices {
            use_devicesfile=0 obtain_device_list_from_udev=0
            filter=["a|^/dev/tenuto/|","r|.*|"]
        }' "$@"
}
"#;
const CONFIGURATION: &str = r#"
[host]
name = "host-a"
group = "0"
run-dir = "/t/run"
state-dir = "/t/state"
stage-dir = "/dev/shm"
[cache]
path = "/t/cache"
size = "128M"
ram = "16M"
stage = "16M"
overlay-ram = "16M"
[[volume]]
name = "disk"
origin = "/t/disk.img"
format = "raw"
policy = "write-back"
destage-after = "never"
export = ["nbd"]
"#;

/// A host with the product, a volume, these programs, and these drivers, which are not loaded yet.
fn host(test: &str, dir: &Path, programs: &[&str], drivers: &[&str]) -> Option<Shell> {
    if !have(test, &["strip", "ldd"]) || !have(test, programs) {
        return None;
    }
    let root = dir.join("initramfs");
    product(&root);
    with_libraries(&root, programs);
    fs::write(root.join("tenuto.toml"), CONFIGURATION).expect("write the configuration");
    let machine = Machine::with_shell(test, dir, TOOLS, drivers)?;
    let files = dir.join("host");
    fs::create_dir_all(&files).expect("make a directory");
    let image = fs::File::create(files.join("disk.img")).expect("make an image");
    image.set_len(DISK_BYTES).expect("its size");
    Machine::image_of(&files, &dir.join("host.disk"), 256 * MIB);
    let mut host = Shell::start(&machine, dir, "host", &[]);
    host.wait_for_shell();
    host.run("setup && serve");
    Some(host)
}

/// Fails when: the device has no time for connections that died, so that its requests fail while
/// the daemon is away; or nothing connects again.
#[test]
fn a_volume_is_a_block_device_whose_requests_wait_for_a_daemon_that_was_killed() {
    let test = "a_volume_is_a_block_device_whose_requests_wait_for_a_daemon_that_was_killed";
    let rig = Rig::new();
    let found = host(test, &rig.dir, &["mkfs.ext4"], &["drivers/block/nbd"]);
    let Some(mut host) = found else {
        return;
    };
    let said = host.run("ends_with 1 device disk");
    assert!(said.contains("this kernel has no NBD driver"), "{said}");
    host.run("insmod /modules/nbd.ko");
    assert_eq!(host.run("device disk"), "/dev/tenuto/disk");
    assert_eq!(
        host.run("device disk"),
        "/dev/tenuto/disk",
        "the same again"
    );
    let document = host.run("device disk --json");
    for part in [
        "\"attached\": true",
        "\"device\": \"/dev/nbd0\"",
        "33554432",
    ] {
        assert!(document.contains(part), "{document}");
    }

    host.run("/e2/mkfs.ext4 -q -b 4096 /dev/tenuto/disk && mount -t ext4 /dev/tenuto/disk /mnt");
    host.run("dd if=/dev/urandom of=/mnt/first bs=64k count=32 conv=fsync 2>/dev/null");
    let said = host.run("ends_with 4 device disk --detach");
    assert!(
        said.contains("is mounted") && !said.contains("code"),
        "{said}"
    );

    // A write that is under way when the daemon is killed, and one that comes while there is none.
    host.run("(dd if=/dev/urandom of=/mnt/second bs=64k count=96 conv=fsync; echo $? >/did) &");
    host.run("kill -9 $daemon; (sync /mnt/first; echo $? >/synced) &");
    host.run("usleep 2000000; test ! -e /did");
    host.run("serve");
    host.wait("test -e /did && test -e /synced");
    assert_eq!(host.run("cat /did /synced"), "0\n0", "both waited");
    let sums = host.run("again");
    host.run("umount /mnt && echo 3 >/proc/sys/vm/drop_caches");
    host.run("mount -t ext4 /dev/tenuto/disk /mnt");
    assert_eq!(host.run("again"), sums, "after a look at the device itself");
    host.run("umount /mnt");
    host.run("dd if=/dev/urandom of=/mnt0 bs=4096 count=1 2>/dev/null");

    // The kernel is told of another size, by the command or, where that cannot, by attaching again.
    let said = host.run("tenuto volume resize disk +4MiB");
    assert!(said.contains("/dev/nbd0 has the new size"), "{said}");
    host.run("test $(cat /sys/block/nbd0/size) = $((36 * 2048))");
    host.run("dd if=/mnt0 of=/dev/tenuto/disk bs=4096 seek=9215 conv=fsync,notrunc 2>/dev/null");
    host.run("echo 3 >/proc/sys/vm/drop_caches");
    host.run("dd if=/dev/tenuto/disk bs=4096 skip=9215 2>/dev/null | cmp - /mnt0");
    host.run("blind_resize +4MiB");
    host.run("test $(cat /sys/block/nbd0/size) = $((36 * 2048))");
    host.run("device disk -q && test $(cat /sys/block/nbd0/size) = $((40 * 2048))");
    let first = host.run("dd if=/dev/tenuto/disk bs=4096 skip=10239 2>/dev/null | wc -c");
    assert_eq!(first, "4096");

    host.run("sleep 1000 </dev/tenuto/disk & holder=$!");
    let said = host.run("ends_with 4 device disk --detach");
    assert!(said.contains("in use by process "), "{said}");
    host.run("kill $holder; wait $holder; true");
    // What the host reads of the device is what the image has in the end.
    let read = host.run("sha256sum </dev/tenuto/disk");
    let said = host.run("device disk --detach");
    assert!(said.contains("/dev/nbd0 is taken away"), "{said}");
    host.run("test ! -e /dev/tenuto/disk && tenuto volume destage disk --wait -q");
    assert_eq!(host.run("sha256sum </t/disk.img"), read);
    let said = host.run("ends_with 1 device disk --detach");
    assert!(said.contains("has no block device on this host"), "{said}");
    // Who watched it is gone, and it can be attached again.
    host.wait("! pidof tenuto | grep -q ' '");
    assert_eq!(
        host.run("device disk && device disk --detach -q"),
        "/dev/tenuto/disk"
    );
}

/// Fails when: a volume group does not find its device again, loses what is on it, or has it taken
/// away under its feet.
#[test]
fn a_volume_group_lies_on_a_device_over_a_kill_and_an_absence() {
    let test = "a_volume_group_lies_on_a_device_over_a_kill_and_an_absence";
    let rig = Rig::new();
    let drivers = ["drivers/block/nbd", "drivers/md/dm-mod"];
    let Some(mut host) = host(test, &rig.dir, &["mkfs.ext4", "lvm"], &drivers) else {
        return;
    };
    host.run("insmod /modules/nbd.ko && insmod /modules/dm-mod.ko && mkdir -p /run/lock/lvm");
    host.run("device disk -q && lvm pvcreate -q /dev/tenuto/disk");
    host.run("lvm vgcreate -q pool /dev/tenuto/disk");
    host.run("lvm lvcreate -q -y -W n -Z n -n data -l 100%FREE pool");
    host.run("/e2/mkfs.ext4 -q -b 4096 /dev/mapper/pool-data");
    host.run("mount -t ext4 /dev/mapper/pool-data /mnt");
    host.run("dd if=/dev/urandom of=/mnt/first bs=64k count=32 conv=fsync 2>/dev/null");
    host.run("(dd if=/dev/urandom of=/mnt/second bs=64k count=96 conv=fsync; echo $? >/did) &");
    host.run("kill -9 $daemon; usleep 1000000; serve");
    host.wait("test -e /did");
    assert_eq!(host.run("cat /did"), "0", "it waited");
    let sums = host.run("again");
    host.run("umount /mnt");
    let said = host.run("ends_with 4 device disk --detach");
    assert!(!said.contains("code"), "{said}");
    host.run("lvm vgchange -q -an pool && device disk --detach -q");
    host.run("test ! -e /dev/mapper/pool-data && test ! -e /dev/tenuto/disk");
    host.run("device disk -q && lvm vgchange -q -ay pool");
    host.run("mount -t ext4 /dev/mapper/pool-data /mnt");
    assert_eq!(host.run("again"), sums);
    host.run("umount /mnt && lvm vgchange -q -an pool && device disk --detach -q");
}

#[test]
fn what_a_block_device_lacks_is_told() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", MIB);
    rig.volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    if !cfg!(feature = "ublk") {
        let by_ublk = ["volume", "device", "disk", "--by", "ublk"];
        let said = rig.refused(&by_ublk, EXIT_USAGE);
        assert!(said.contains("--features ublk"), "{said}");
    }
    if !is_root() {
        let said = rig.refused(&["volume", "device", "disk"], EXIT_FAILED);
        assert!(said.contains("only root makes block devices"), "{said}");
        daemon.stop();
        return skip("what_a_block_device_lacks_is_told", "not root");
    }
    if on_path("setpriv") {
        let program = crate::common::binary();
        let output = Command::new("setpriv")
            .args(["--reuid", "65534", "--clear-groups", "--"])
            .args([&program, "volume", "device", "disk"])
            .output()
            .expect("setpriv runs");
        let said = text_of(&output);
        // Where the program itself lies where only root looks, it cannot even be started.
        if output.status.code() == Some(EXIT_FAILED) && said.contains("tenuto: ") {
            assert!(said.contains("only root makes block devices"), "{said}");
        }
    }
    let said = rig.refused(&["volume", "device", "none"], EXIT_FAILED);
    assert!(said.contains("no such volume"), "{said}");
    rig.done(&["volume", "set", "disk", "export=vhost-user"]);
    let said = rig.refused(&["volume", "device", "disk"], EXIT_USAGE);
    assert!(said.contains("is not exported over NBD"), "{said}");
    let said = rig.refused(&["volume", "device", "disk", "--detach"], EXIT_FAILED);
    assert!(said.contains("has no block device on this host"), "{said}");
    daemon.stop();
}
