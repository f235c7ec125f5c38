//! An origin on a file server that makes no holes, and that loses what it had open.

use crate::common::nbd::{CMD_TRIM, CMD_WRITE_ZEROES};
use crate::common::server::{Server, Share};
use crate::common::{Rig, may_mount};

const MIB: u64 = 1 << 20;

/// A rig whose volume `disk` has its image on a server, with these bytes in it.
fn on_a_server(policy: &str, bytes: Vec<u8>) -> (Rig, Server, Share) {
    let mut rig = Rig::new();
    let server = Server::default();
    server.put("disk.img", bytes);
    let place = rig.dir.join("share");
    let share = Share::mount(&server, &place);
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
