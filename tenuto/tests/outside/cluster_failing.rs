//! Cache devices that fail, or rot, under volumes that have a copy on another host.
//!
//! The device of the first host is a file of our own FUSE server behind a loop device, so that it
//! can be unplugged while the daemon has it open. Always true: the stage is much smaller than what
//! is dirty, so most of that is on the device and in the copy alone; nothing goes to the image by
//! itself. Deliberately absent: devices of volumes without copies, see `failing`.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;

use serde_json::Value;
use workload::check::{Crash, Promise};

use crate::cluster_copies::{Cluster, ONE_COPY, load, load_that, name};
use crate::common::disk::{Device, Disk};
use crate::common::load::{End, Load};
use crate::common::{EXIT_FAILED, PATIENCE, may_mount, seed, text_of, wait_until};

const CACHE_BYTES: usize = 160 << 20;
const TIERS: &str = "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"";
/// The superblock lies before it; checkpoints are written anew.
const LOG_AT: usize = 1 << 20;

struct Bench {
    cluster: Cluster,
    disk: Disk,
    /// Before its file system: dropped in this order.
    _device: Device,
}

/// Two hosts, of which the first one has a cache that can be unplugged, and a volume with a copy.
fn prepare() -> Bench {
    let made = RefCell::new(None);
    let cluster = Cluster::with(2, ONE_COPY, |at, host| {
        if at > 0 {
            return;
        }
        let disk = Disk::new(CACHE_BYTES);
        let device = Device::new(&disk, &host.rig.dir.join("device"));
        host.rig.cache(device.path(), "160MiB", TIERS);
        host.rig.write_config();
        let path = device.path().to_string_lossy().into_owned();
        host.rig.done(&["cache", "create", &path]);
        made.replace(Some((disk, device)));
    });
    let (disk, device) = made.into_inner().expect("it was made");
    Bench {
        cluster,
        disk,
        _device: device,
    }
}

/// The device goes under load, which goes on, as long as it takes.
fn unplug_under_load(bench: &Bench, load: &mut Load) {
    let (before, mut there) = (load.counts.answered, true);
    let end = load.run(bench.cluster.served(0), |counts| {
        let answered = counts.answered - before;
        if there && answered > 100 {
            bench.disk.unplug(true);
            there = false;
        }
        answered <= 400
    });
    assert_eq!(end.expect("reads are right"), End::Enough);
    assert!(!there, "it failed under load");
}

fn effective(cluster: &Cluster, at: usize, policy: &str) -> Value {
    let mut shown = Value::Null;
    wait_until(&format!("{} is {policy}", name(at)), PATIENCE, || {
        shown = cluster.hosts[at].show();
        shown["effective_policy"] == policy
    });
    shown
}

/// The device has failed under dirty data that only it and the copy have. The guest goes on.
fn failed(test: &str) -> Option<(Bench, Load)> {
    if !may_mount(test) {
        return None;
    }
    let bench = prepare();
    // Past the log, writes that no flush has covered come to the image in any order.
    let mut load = load_that(Promise::Sectors, seed(161));
    bench.cluster.write(0, &mut load, 1_500);
    assert_eq!(bench.cluster.is_full(0), 1);
    let dirty = bench.cluster.hosts[0].show()["dirty_bytes"].as_u64();
    assert!(dirty > Some(12 << 20), "more than the stage: {dirty:?}");
    unplug_under_load(&bench, &mut load);
    let shown = effective(&bench.cluster, 0, "write-through");
    assert_eq!(shown["policy"], "write-back", "{shown}");
    assert_eq!(shown["dirty_bytes"], 0, "{shown}");
    assert_eq!(shown["replication"]["at_origin"], true, "{shown}");
    assert_eq!(shown["replication"]["real"], 0, "{shown}");
    let reason = shown["effective_reason"].as_str().expect("words");
    assert!(reason.contains("cache device fails"), "{reason}");
    let recalled = shown["ssd"]["recalled_bytes"].as_u64();
    assert!(recalled > Some(1 << 20), "of the copy: {shown}");
    let said = bench.cluster.hosts[0].rig.tenuto(&["status", "-x"]);
    assert_eq!(said.status.code(), Some(EXIT_FAILED));
    let said = text_of(&said);
    assert!(
        said.contains("degraded: the cache of this host has failed"),
        "{said}"
    );
    Some((bench, load))
}

/// Fails when: a guest whose cache device fails waits for ever though another host has a copy
/// (`BypassPeers` is the reverse: it goes on before a record says so), or what was written since is
/// lost with the host.
#[test]
fn a_guest_outlives_its_cache_device_and_then_its_host() {
    let test = "a_guest_outlives_its_cache_device_and_then_its_host";
    let Some((mut bench, mut load)) = failed(test) else {
        return;
    };
    let cluster = &mut bench.cluster;
    cluster.check(0, &mut load, Crash::Kill, "past the failed device");
    cluster.write(0, &mut load, 200);
    cluster.kill_under_load(0, &mut load, &[0], 100);
    cluster.hosts[0].rig.lose_stage();
    cluster.check(1, &mut load, Crash::PowerLoss, "with the image alone");
    let proof = cluster.hosts[1].show()["drain"]["proof"].clone();
    assert_eq!(proof, "fenced by its program");
    cluster.hosts[1].stop();
}

/// Fails when: a device that is good again is not used any more, the copy is not made again, or
/// what is written then is acknowledged without it.
#[test]
fn a_cache_device_that_is_good_again_is_used_with_a_new_copy() {
    let test = "a_cache_device_that_is_good_again_is_used_with_a_new_copy";
    let Some((mut bench, mut load)) = failed(test) else {
        return;
    };
    bench.disk.unplug(false);
    let cluster = &mut bench.cluster;
    effective(cluster, 0, "write-back");
    assert_eq!(cluster.is_full(0), 1);
    cluster.write(0, &mut load, 200);
    let shown = cluster.hosts[0].show();
    assert_eq!(shown["replication"]["at_origin"], false, "{shown}");
    assert!(shown["dirty_bytes"].as_u64() > Some(0), "{shown}");
    cluster.kill_under_load(0, &mut load, &[0], 100);
    bench.disk.unplug(true);
    cluster.hosts[0].rig.lose_stage();
    cluster.check(1, &mut load, Crash::PowerLoss, "from the new copy");
    cluster.hosts[1].stop();
}

/// Fails when: a host whose cache device was replaced waits for the one that it had.
#[test]
fn a_host_goes_on_with_another_cache_device() {
    let Some((mut bench, mut load)) = failed("a_host_goes_on_with_another_cache_device") else {
        return;
    };
    let cluster = &mut bench.cluster;
    cluster.check(0, &mut load, Crash::Kill, "past the failed device");
    // Without the time to let go of it.
    cluster.hosts[0].kill();
    let rig = &mut cluster.hosts[0].rig;
    rig.lose_stage();
    let path = rig.dir.join("new");
    rig.cache(&path, "160MiB", TIERS);
    rig.write_config();
    rig.done(&["cache", "create", &path.to_string_lossy()]);
    cluster.start(0);
    cluster.check(0, &mut load, Crash::Kill, "with another device");
    assert_eq!(cluster.is_full(0), 1);
    let shown = effective(cluster, 0, "write-back");
    assert_eq!(shown["replication"]["at_origin"], false, "{shown}");
    cluster.write(0, &mut load, 100);
    cluster.hosts.iter_mut().for_each(|host| drop(host.stop()));
}

/// Fails when: a block that has rotted on the device of its host is told to the guest as an error,
/// or as it is, though the copy has it.
#[test]
fn what_rots_on_a_cache_device_is_read_from_the_copy() {
    // Without a loop device, whose pages would hide what lies below.
    let mut cluster = Cluster::with(2, ONE_COPY, |at, host| {
        if at == 0 {
            let path = host.rig.dir.join("small");
            host.rig.cache(&path, "160MiB", TIERS);
            host.rig.write_config();
            host.rig.done(&["cache", "create", &path.to_string_lossy()]);
        }
    });
    let mut load = load(seed(162));
    cluster.write(0, &mut load, 1_500);
    assert_eq!(cluster.is_full(0), 1);
    let cache = cluster.hosts[0].rig.dir.join("small");
    let cache = std::fs::OpenOptions::new().write(true).open(cache);
    let cache = cache.expect("its cache");
    for at in (LOG_AT..CACHE_BYTES).step_by(3 * 4096) {
        cache
            .write_all_at(&[0x5a; 512], at as u64)
            .expect("written");
    }
    cache.sync_all().expect("on media");
    cluster.check(0, &mut load, Crash::Kill, "with a rotten device");
    let shown = cluster.hosts[0].show();
    let recalled = shown["ssd"]["recalled_bytes"].as_u64();
    assert!(recalled > Some(256 << 10), "{shown}");
    assert_eq!(shown["state"], "dirty", "{shown}");
    // It goes home as well.
    cluster.hosts[0]
        .rig
        .done(&["volume", "destage", "disk", "--wait"]);
    assert_eq!(cluster.hosts[0].show()["dirty_bytes"], 0);
    cluster.check(0, &mut load, Crash::Kill, "at the image");
    cluster.hosts.iter_mut().for_each(|host| drop(host.stop()));
}
