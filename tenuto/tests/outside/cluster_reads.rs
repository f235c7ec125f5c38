//! Clean blocks of volumes that went from host to host: the host that serves one now reads them
//! from the cache of the host before, as long as that one lives, and never what is old there.
//!
//! Always true: what is counted as read from a host was not read from the image. Deliberately
//! absent: how fast that is, see `tenuto bench migrate`.

use workload::check::Crash;

use crate::cluster_copies::{self, BYTES, Cluster, name};
use crate::common::load::Load;
use crate::common::{PATIENCE, seed, wait_until};

/// All that is read is kept on the SSD, and nothing goes to the image by itself.
const KEEPS_ALL: &str = "destage-after = \"never\"\nreplicas = 1\nadmission = \"all\"";

/// What a host has read of the volume: from the host before, and from the image.
fn sources(cluster: &Cluster, at: usize) -> (u64, u64) {
    let shown = cluster.hosts[at].show();
    let bytes = |value: &serde_json::Value| value.as_u64().expect("a count");
    (
        bytes(&shown["reads"]["remote_bytes"]),
        bytes(&shown["origin"]["read_bytes"]),
    )
}

/// Host-a has read all of a disk on which something is dirty, and host-b has it now.
fn moved(load: &mut Load) -> Cluster {
    let cluster = Cluster::new(2, KEEPS_ALL);
    cluster.write(0, load, 400);
    cluster.hosts[0]
        .rig
        .done(&["volume", "destage", "disk", "--wait"]);
    cluster.check(0, load, Crash::Kill, "at host-a");
    cluster.write(0, load, 60);
    assert_eq!(cluster.is_full(0), 1);
    cluster.hosts[0]
        .rig
        .done(&["volume", "move", "disk", "--to", &name(1)]);
    wait_until("host-b may write the image", PATIENCE, || {
        let shown = cluster.hosts[1].show();
        shown["ownership"] == "owner" && shown["drain"]["holder"] == name(1)
    });
    cluster
}

/// Fails when: a host reads the image although the host before has it in its cache, or finds what
/// that one has from before a destage.
#[test]
fn a_volume_is_read_from_the_host_that_had_it() {
    let mut load = cluster_copies::load(seed(121));
    let mut cluster = moved(&mut load);
    cluster.check(1, &mut load, Crash::Kill, "at host-b");
    let (remote, image) = sources(&cluster, 1);
    println!("{remote} bytes from the host before, {image} from the image");
    assert!(remote > 0, "all was read from the image: {image}");
    let shown = cluster.hosts[1].rig.done(&["volume", "show", "disk"]);
    assert!(shown.contains("from the host before"), "{shown}");
    for round in 0..3 {
        cluster.write(1, &mut load, 200);
        cluster.hosts[1]
            .rig
            .done(&["volume", "destage", "disk", "--wait"]);
        cluster.check(1, &mut load, Crash::Kill, &format!("destage {round}"));
    }
    let (more, _) = sources(&cluster, 1);
    println!("{more} bytes from the host before in the end");
    assert_eq!(cluster.is_full(1), 0);
    cluster.hosts[1]
        .rig
        .done(&["volume", "move", "disk", "--to", &name(0)]);
    cluster.check(0, &mut load, Crash::Kill, "back at host-a");
    // A machine that stands still for a second makes any host too slow to be read from.
    let log = cluster.hosts[1].stop();
    let slow = log.contains("too slow to be read from");
    assert!(slow || image < BYTES / 4, "{remote} and {image}: {log}");
    cluster.hosts[0].stop();
}

/// Fails when: reads wait for a host that is gone or stands still, or are answered with an error.
#[test]
fn the_image_is_read_when_the_host_before_is_gone() {
    let mut load = cluster_copies::load(seed(122));
    let mut cluster = moved(&mut load);
    cluster.hosts[0].kill();
    cluster.check(1, &mut load, Crash::Kill, "without host-a");
    let (remote, image) = sources(&cluster, 1);
    assert!(remote == 0 && image > BYTES / 2, "{remote} and {image}");
    cluster.start(0);
    cluster.stop();
    let mut load = cluster_copies::load(seed(123));
    let cluster = moved(&mut load);
    cluster.hosts[0].signal(libc::SIGSTOP);
    cluster.check(1, &mut load, Crash::Kill, "while host-a stands still");
    cluster.hosts[0].signal(libc::SIGCONT);
    cluster.stop();
}
