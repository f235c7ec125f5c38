//! Writes that a killed daemon had taken and not answered.
//!
//! Those that the stage has are answered by the next daemon and not done again; whether a kill
//! falls between the two is chance, so there are kills until some have.

use crate::common::Rig;
use lab::vhost_client::{Client, Options, Request, Wait};
use std::path::Path;
use std::time::{Duration, Instant};
use workload::rng::Rng;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;
const KILLS_MAX: u32 = 150;
const SLOTS: u16 = 32;

/// What a guest has asked for, and what it knows to be on its disk.
struct Guest {
    client: Client,
    random: Rng,
    /// By block, how often it was written.
    versions: Vec<u64>,
    /// The block that each slot writes.
    held: Vec<Option<u64>>,
    busy: Vec<bool>,
}

fn bytes_of(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(version << 16 | block).fill(&mut bytes);
    bytes
}

impl Guest {
    fn new(socket: &Path) -> Guest {
        let options = Options {
            queues: 1,
            slots: SLOTS,
            slot_bytes: BLOCK as u32,
            wait: Wait::Events,
        };
        Guest {
            client: Client::connect(socket, options).unwrap(),
            random: Rng::new(7),
            versions: vec![0; BLOCKS as usize],
            held: vec![None; 256],
            busy: vec![false; BLOCKS as usize],
        }
    }

    fn offer(&mut self) {
        let queue = &mut self.client.queues()[0];
        while let Some(slot) = queue.take() {
            let block = loop {
                let block = self.random.below(BLOCKS);
                if !self.busy[block as usize] {
                    break block;
                }
            };
            self.busy[block as usize] = true;
            self.versions[block as usize] += 1;
            let bytes = bytes_of(block, self.versions[block as usize]);
            queue.fill(slot, 0, &bytes).unwrap();
            let (sector, sectors) = (block * 8, 8);
            let write = Request::Write { sector, sectors };
            queue.offer(slot, &write).unwrap();
            self.held[usize::from(slot.0)] = Some(block);
        }
        queue.show().unwrap();
    }

    /// Takes what was answered; how much that was.
    fn reap(&mut self) -> usize {
        let queue = &mut self.client.queues()[0];
        let mut count = 0;
        while let Some(ended) = queue.reap().unwrap() {
            ended.check().unwrap();
            let block = self.held[usize::from(ended.slot.0)].take();
            self.busy[block.expect("it was asked for") as usize] = false;
            queue.give(ended.slot);
            count += 1;
        }
        count
    }

    fn under_way(&self) -> usize {
        self.held.iter().flatten().count()
    }

    fn check(&mut self) {
        for block in 0..BLOCKS {
            let version = self.versions[block as usize];
            let mut found = vec![0; BLOCK];
            self.client.read(0, block * 8, &mut found).unwrap();
            let right = match version {
                0 => found.iter().all(|&byte| byte == 0),
                version => found == bytes_of(block, version),
            };
            assert!(
                right,
                "block {block} is not as it was written the last time"
            );
        }
    }
}

/// Fails when: each write that was under way counts as one that the stage has.
#[test]
fn a_write_that_the_stage_has_is_answered_after_a_kill_and_not_done_again() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BLOCKS * BLOCK as u64);
    rig.section(&format!(
        "[[volume]]\nname = \"disk\"\norigin = \"{}\"\nformat = \"raw\"\npolicy = \"write-back\"\n",
        image.display()
    ));
    let socket = rig.run_dir().join("disk.vhost.sock");
    let mut daemon = rig.serve();
    let mut guest = Guest::new(&socket);
    let (mut found, mut again) = (0, 0);
    for kill in 0..KILLS_MAX {
        let load = Duration::from_micros(2_000 + guest.random.below(4_000));
        let begun = Instant::now();
        while begun.elapsed() < load {
            guest.offer();
            guest.reap();
        }
        guest.offer();
        daemon.kill();
        guest.reap();
        daemon = rig.serve();
        guest.client.reconnect().unwrap();
        while guest.under_way() > 0 {
            if guest.reap() == 0 {
                guest.client.wait().unwrap();
            }
        }
        found += rig.metric("requests_found_total");
        again += rig.metric("requests_again_total");
        if found > 0 && again > 0 && kill > 2 {
            break;
        }
    }
    println!("{found} writes were found, {again} requests were run again");
    assert!(found > 0, "no kill fell between stage and answer");
    assert!(again > 0, "no kill fell before the stage");
    guest.check();
    let shown = rig.show("disk");
    assert_eq!(shown["clients"], 1, "{shown}");
    drop(daemon);
}
