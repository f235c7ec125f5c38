//! The built-in front end of vhost-user-blk, against our daemon and against another program.
//!
//! What it wrote must be read back, in each way of waiting and over several queues; what was in
//! flight when the daemon was killed must be answered by the next one.

use crate::common::{Background, PATIENCE, Rig, have, wait_until};
use lab::vhost_client::{Client, ClientError, Options, Request, Wait};
use std::path::{Path, PathBuf};
use std::time::Duration;
use vring::block::SectorRange;
use vring::config;
use workload::rng::Rng;

const DISK_BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;
const SECTORS: u64 = 8;
const BLOCKS: u64 = 512;

fn options(queues: u16, wait: Wait) -> Options {
    Options {
        queues,
        slots: 16,
        slot_bytes: 64 << 10,
        wait,
    }
}

/// Each block says where it is, and how often it was written.
fn block(number: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(number << 8 | version).fill(&mut bytes);
    bytes
}

/// All blocks, with as many in flight as there are slots, spread over all queues. What a write
/// needs is put in, and what a read brings is looked at, by `payload`.
fn sweep(client: &mut Client, write: bool, version: u64) {
    let (mut next, mut left) = (0, BLOCKS);
    let mut held = vec![vec![0; 256]; client.queues().len()];
    while left > 0 {
        for (at, queue) in client.queues().iter_mut().enumerate() {
            while next < BLOCKS
                && let Some(slot) = queue.take()
            {
                let (sector, sectors) = (next * SECTORS, SECTORS as u32);
                let request = match write {
                    true => Request::Write { sector, sectors },
                    false => Request::Read { sector, sectors },
                };
                if write {
                    queue.fill(slot, 0, &block(next, version)).unwrap();
                }
                queue.offer(slot, &request).unwrap();
                held[at][usize::from(slot.0)] = next;
                next += 1;
            }
            queue.show().unwrap();
        }
        let before = left;
        for (at, queue) in client.queues().iter_mut().enumerate() {
            while let Some(ended) = queue.reap().unwrap() {
                ended.check().unwrap();
                if !write {
                    let mut found = vec![0; BLOCK];
                    queue.copy(ended.slot, &mut found).unwrap();
                    let number = held[at][usize::from(ended.slot.0)];
                    assert!(found == block(number, version), "block {number} is wrong");
                    assert_eq!(ended.written, BLOCK as u32 + 1);
                }
                queue.give(ended.slot);
                left -= 1;
            }
        }
        if left == before {
            client.wait().unwrap();
        }
    }
}

/// What every disk must do.
fn exercise(socket: &Path, queues: u16, wait: Wait, version: u64) {
    let mut client = Client::connect(socket, options(queues, wait)).unwrap();
    assert_eq!(client.capacity_sectors().unwrap(), DISK_BYTES / 512);
    assert!(client.features() & config::FLUSH != 0);
    sweep(&mut client, true, version);
    client.flush(queues - 1).unwrap();
    sweep(&mut client, false, version);
    if client.features() & config::WRITE_ZEROES != 0 {
        let range = SectorRange {
            sector: BLOCKS * SECTORS,
            sectors: 2 * SECTORS,
            unmap: false,
        };
        client
            .write(0, range.sector, &block(1, 1).repeat(2))
            .unwrap();
        client.write_zeroes(0, &[range]).unwrap();
        let mut found = vec![1; 2 * BLOCK];
        client.read(queues - 1, range.sector, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == 0));
    }
    if client.features() & config::DISCARD != 0 {
        let range = SectorRange {
            sector: BLOCKS * SECTORS,
            sectors: SECTORS,
            unmap: false,
        };
        client.discard(0, &[range]).unwrap();
    }
    let refused = client.read(0, DISK_BYTES / 512, &mut [0; BLOCK]);
    assert!(
        matches!(refused, Err(ClientError::Status(1))),
        "{refused:?}"
    );
    let bases = client.stop().unwrap();
    assert_eq!(bases.len(), usize::from(queues));
    let requests = u32::from(bases[0]);
    assert!(
        requests as u64 >= BLOCKS / u64::from(queues) / 4,
        "{bases:?}"
    );
}

fn rig() -> (Rig, PathBuf) {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", DISK_BYTES);
    // Both kinds of sockets, which is the default.
    let volume = format!(
        "[[volume]]\nname = \"disk\"\norigin = \"{}\"\nformat = \"raw\"\npolicy = \"write-back\"\n",
        image.display()
    );
    rig.section(&volume);
    let socket = rig.run_dir().join("disk.vhost.sock");
    (rig, socket)
}

#[test]
fn what_the_front_end_writes_it_reads_back_in_either_way_of_waiting() {
    let (rig, socket) = rig();
    let _daemon = rig.serve();
    let ways = [
        (1, Wait::Events),
        (2, Wait::Polling),
        (2, Wait::Events),
        (4, Wait::Polling),
    ];
    for (version, (queues, wait)) in (1..).zip(ways) {
        exercise(&socket, queues, wait, version);
        let mut client = Client::connect(&socket, options(1, wait)).unwrap();
        let id = client.id(0).unwrap();
        assert!(id.starts_with(b"disk"), "{id:?}");
        // A guest may turn its write cache off.
        client.set_config(32, &[0]).unwrap();
        assert_eq!(client.config().unwrap()[32], 0);
        client.stop().unwrap();
    }
    let shown = rig.show("disk");
    assert!(
        shown["writes"]["requests"].as_u64() >= Some(4 * BLOCKS),
        "{shown}"
    );
}

#[test]
fn what_was_in_flight_when_the_daemon_was_killed_is_answered_by_the_next_one() {
    let (rig, socket) = rig();
    let daemon = rig.serve();
    let mut client = Client::connect(&socket, options(2, Wait::Events)).unwrap();
    let (_, bytes) = client.region().expect("an in-flight region");
    assert!(bytes > 0);
    sweep(&mut client, true, 1);
    let mut number = 0;
    for queue in client.queues() {
        while let Some(slot) = queue.take() {
            queue.fill(slot, 0, &block(number, 2)).unwrap();
            let (sector, sectors) = (number * SECTORS, SECTORS as u32);
            let write = Request::Write { sector, sectors };
            queue.offer(slot, &write).unwrap();
            number += 1;
        }
        queue.show().unwrap();
    }
    daemon.kill();
    let _daemon = rig.serve();
    client.reconnect().unwrap();
    let mut left = number;
    while left > 0 {
        let before = left;
        for queue in client.queues() {
            while let Some(ended) = queue.reap().unwrap() {
                ended.check().unwrap();
                queue.give(ended.slot);
                left -= 1;
            }
        }
        if left == before {
            client.wait().unwrap();
        }
    }
    for at in 0..BLOCKS {
        let mut found = vec![0; BLOCK];
        client.read(1, at * SECTORS, &mut found).unwrap();
        let version = if at < number { 2 } else { 1 };
        assert!(found == block(at, version), "block {at} is wrong");
    }
    client.stop().unwrap();
}

/// A client that looks all the time asks again in the moment in which the daemon takes its kick.
#[test]
fn no_kick_is_lost_however_soon_the_next_request_comes() {
    let (rig, socket) = rig();
    let _daemon = rig.serve();
    let mut client = Client::connect(&socket, options(2, Wait::Polling)).unwrap();
    let mut random = Rng::new(1);
    for round in 0..30_000 {
        if random.below(50) == 0 {
            // The daemon has gone to sleep, or is about to.
            let pause = Duration::from_micros(random.below(120));
            let begun = std::time::Instant::now();
            while begun.elapsed() < pause {
                std::hint::spin_loop();
            }
        }
        client.read(round % 2, 0, &mut [0; BLOCK]).unwrap();
    }
    client.stop().unwrap();
}

#[test]
fn a_back_end_that_ends_is_noticed_in_either_way_of_waiting() {
    let (rig, socket) = rig();
    for wait in [Wait::Events, Wait::Polling] {
        let daemon = rig.serve();
        let mut client = Client::connect(&socket, options(1, wait)).unwrap();
        client.flush(0).unwrap();
        daemon.kill();
        let gone = client.flush(0);
        assert!(matches!(gone, Err(ClientError::Gone)), "{gone:?}");
        // Its socket may take connections until its last write has landed; nobody answers there.
        client.reconnect().unwrap_err();
    }
}

#[test]
fn the_front_end_speaks_to_the_storage_daemon_of_qemu() {
    let name = "the_front_end_speaks_to_the_storage_daemon_of_qemu";
    if !have(name, &["qemu-storage-daemon"]) {
        return;
    }
    let rig = Rig::new();
    let (image, socket) = (rig.image("disk.img", DISK_BYTES), rig.dir.join("qsd.sock"));
    let node = format!("driver=file,node-name=disk,filename={}", image.display());
    let export = format!(
        "type=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path={},writable=on,\
         num-queues=2",
        socket.display()
    );
    let arguments = ["--blockdev", &node, "--export", &export];
    let _server = Background::start("qemu-storage-daemon", &arguments);
    // Its socket is there before it listens.
    wait_until("it listens", PATIENCE, || {
        Client::connect(&socket, options(1, Wait::Events)).is_ok()
    });
    for (version, wait) in [(1, Wait::Events), (2, Wait::Polling)] {
        exercise(&socket, 2, wait, version);
    }
    let many = Client::connect(&socket, options(3, Wait::Events));
    assert!(matches!(
        many.err(),
        Some(ClientError::Queues { asked: 3, has: 2 })
    ));
    let written = std::fs::read(&image).unwrap();
    for number in 0..BLOCKS {
        let at = number as usize * BLOCK;
        assert!(
            written[at..at + BLOCK] == block(number, 2),
            "block {number}"
        );
    }
}
