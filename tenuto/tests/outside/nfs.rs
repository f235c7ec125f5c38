//! An origin on the NFS server of a kernel, which forgets what its clients have open.

use std::fs;

use crate::common::nbd::{CMD_READ, Client};
use crate::common::nfs::Lan;
use crate::common::{Rig, run};

const MIB: u64 = 1 << 20;
const IMAGE_BYTES: usize = 16 << 20;
/// Where nothing reads before the test does.
const UNREAD_AT: [u64; 3] = [12 * MIB, 13 * MIB, 14 * MIB];

/// The guests, a client of the volume, and what its image has to have.
struct Drill {
    rig: Rig,
    lan: Lan,
    client: Client,
    expected: Vec<u8>,
}

impl Drill {
    fn write(&mut self, at: u64, bytes: usize, byte: u8) {
        self.client.write(at, &vec![byte; bytes]);
        self.expected[at as usize..][..bytes].fill(byte);
    }

    /// Scattered, so that a destage has many requests; all of it flushed.
    fn make_dirty(&mut self, byte: u8, mib: u64) {
        for block in 0..mib * 16 {
            self.write(block * 65_536, 32_768, byte);
        }
        self.client.flush();
    }

    /// The volume says that its image has all, and the server has the same.
    fn all_is_at_the_origin(&mut self, when: &str) {
        self.lan.host.run("tenuto volume destage disk --wait");
        self.lan.host.wait("test \"$(state)\" = clean");
        assert_eq!(self.digest("disk.img"), self.expected_digest(), "{when}");
    }

    fn digest(&mut self, file: &str) -> String {
        let said = self.lan.server.run(&format!("sha256sum /srv/{file}"));
        said.split(' ').next().expect("a digest").to_owned()
    }

    fn expected_digest(&self) -> String {
        let copy = self.rig.dir.join("expected");
        fs::write(&copy, &self.expected).expect("write a copy");
        let said = run("sha256sum", &[&copy.to_string_lossy()]);
        said.split(' ').next().expect("a digest").to_owned()
    }

    /// A block that only the image has.
    fn reads_what_is_not_cached(&mut self, number: usize) {
        let at = UNREAD_AT[number];
        assert_eq!(self.client.read(at, 4096), [5; 4096]);
    }

    fn opened_again(&mut self) -> usize {
        self.lan.log().matches("disk.img: is open again").count()
    }

    /// The host is cut off, and the server gives up what it has open and locked.
    fn lose_locks(&mut self) {
        self.lan.cable(false);
        self.lan.server.run("forget_clients");
        self.lan.server.wait("test $(locks) = 0");
    }
}

/// The export is taken away while data is dirty and comes back: what was open is stale for good.
fn handles_go_stale(drill: &mut Drill) {
    let before = drill.opened_again();
    drill.make_dirty(1, 2);
    drill.lan.server.run("known ''");
    drill.lan.host.run("tenuto volume destage disk");
    drill.lan.host.wait("test \"$(state)\" = stalled");
    drill
        .lan
        .host
        .wait("grep -q \"disk.img: is not open again\" /log");
    // Writes do not need the origin; a read of what is not cached waits for it.
    drill.write(3 * MIB, 4096, 2);
    drill.client.flush();
    let read = drill.client.send(CMD_READ, 0, UNREAD_AT[0], 4096, &[]);
    let read = read.expect("send a request");
    drill.lan.server.run("known /srv");
    let answer = drill.client.answer().expect("an answer");
    assert_eq!((answer.cookie, answer.error), (read, 0));
    let mut bytes = [0; 4096];
    drill.client.payload(&mut bytes).expect("bytes");
    assert_eq!(bytes, [5; 4096]);
    drill.all_is_at_the_origin("after stale handles");
    assert!(drill.opened_again() > before, "{}", drill.lan.log());
}

/// The server stops in the middle of a destage and starts again; its clients claim their locks.
fn the_server_starts_again(drill: &mut Drill) {
    drill.make_dirty(3, 8);
    drill.lan.host.run("tenuto volume destage disk");
    let begun = "test $(bytes_of /srv/disk.img.tenuto-journal) -gt 500000";
    drill.lan.server.wait(begun);
    drill.lan.server.run("echo 0 >/proc/fs/nfsd/threads");
    assert_ne!(drill.lan.host.run("state"), "clean", "it was too late");
    drill.write(4096, 4096, 4);
    drill.client.flush();
    drill
        .lan
        .server
        .run("umount /srv && mount -t ext4 /dev/vda /srv");
    drill.lan.server.run("serve_files");
    drill.lan.server.wait("test $(locks) = 3");
    drill.lan.server.run("no_grace");
    drill.reads_what_is_not_cached(1);
    drill.all_is_at_the_origin("after a start of the server");
}

/// The host is cut off for longer than its lease: its locks are lost, and its handles with them.
fn locks_are_lost(drill: &mut Drill) {
    let before = drill.opened_again();
    drill.lose_locks();
    drill.make_dirty(6, 2);
    drill.lan.host.run("tenuto volume destage disk");
    drill.lan.cable(true);
    drill.reads_what_is_not_cached(2);
    drill.all_is_at_the_origin("after locks were lost");
    assert!(drill.opened_again() > before, "{}", drill.lan.log());
    drill.lan.server.run("test $(locks) = 3");
}

/// While the host is cut off another file gets the name of the image: nothing goes there.
fn the_image_is_replaced_meanwhile(drill: &mut Drill) {
    drill.lose_locks();
    let replace = "cd /srv && cp disk.img copy && mv disk.img right && mv copy disk.img";
    drill.lan.server.run(replace);
    let other = drill.digest("disk.img");
    drill.make_dirty(7, 2);
    drill.lan.host.run("tenuto volume destage disk");
    drill.lan.cable(true);
    drill.lan.host.wait("test \"$(state)\" = held");
    assert_eq!(
        drill.digest("disk.img"),
        other,
        "the other file is as it was"
    );
    drill
        .lan
        .server
        .run("mv disk.img copy && mv right disk.img");
    drill.lan.host.wait("test \"$(state)\" != held");
    drill.all_is_at_the_origin("after the right image came back");
    assert_eq!(drill.digest("copy"), other, "the other file is as it was");
}

/// Fails when: a lost file is not opened again, or not locked, or whatever has its name is taken.
#[test]
fn a_volume_outlives_what_the_nfs_server_of_a_kernel_forgets() {
    let test = "a_volume_outlives_what_the_nfs_server_of_a_kernel_forgets";
    let rig = Rig::new();
    let expected = vec![5; IMAGE_BYTES];
    let Some(lan) = Lan::start(test, &rig.dir, &expected) else {
        return;
    };
    let client = lan.connect();
    let mut drill = Drill {
        rig,
        lan,
        client,
        expected,
    };
    handles_go_stale(&mut drill);
    the_server_starts_again(&mut drill);
    locks_are_lost(&mut drill);
    the_image_is_replaced_meanwhile(&mut drill);
    drill.client.disconnect();
}
