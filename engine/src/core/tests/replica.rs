//! Two hosts: one serves a volume, the other one keeps a replica of it.
//!
//! Always true: a batch that left is carried when a test says so, in order, with the bytes that it
//! had when it left; all else of the two hosts is apart.

use super::{Host, none, spec, writes_origin};
use crate::event::{Batch, Command, Credit, Device, Event, Io, Op, Refusal, ReplicaSpec};
use crate::format::record::EntryKind;
use crate::map::Content;
use crate::memory::model::Bytes;
use crate::memory::{Area, Memory, Place};
use crate::types::{BLOCK_SECTORS, BufferId, PeerId, Policy, RequestId, SECTOR_BYTES, Serial};
use crate::types::{Span, Uuid, VolumeId};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

mod recovered;

pub const PEER: PeerId = PeerId(7);

/// A batch on its way.
pub struct Sent {
    peer: PeerId,
    number: u64,
    pub batch: Batch,
    bytes: Vec<u8>,
}

impl Sent {
    fn again(&self) -> Sent {
        Sent {
            batch: self.batch.clone(),
            bytes: self.bytes.clone(),
            ..*self
        }
    }

    pub fn of(memory: &Bytes, peer: PeerId, number: u64, mut batch: Batch) -> Sent {
        let mut bytes = Vec::new();
        for part in &mut batch.parts {
            let Some(place) = &mut part.source else {
                continue;
            };
            let at = bytes.len() as u64;
            bytes.extend(memory.get(*place, part.span.sectors * SECTOR_BYTES));
            *place = Place::new(Area::Buffer(BufferId(0)), at);
        }
        Sent {
            peer,
            number,
            batch,
            bytes,
        }
    }
}

pub struct Pair {
    pub owner: Host,
    pub disk: VolumeId,
    pub member: Host,
    pub replica: VolumeId,
}

pub fn replica_spec(destaged: Serial) -> ReplicaSpec {
    ReplicaSpec {
        name: String::from("disk@1"),
        origin: String::from("/images/disk.raw"),
        uuid: Uuid([7; 16]),
        size_bytes: 64 << 20,
        lineage: Uuid([5; 16]),
        term: 3,
        destaged,
        fetched: false,
    }
}

impl Pair {
    /// The replica is new, and its peer gets what is dirty.
    pub fn new() -> Pair {
        let (owner, disk) = Host::write_back();
        let mut member = Host::new();
        let replica = member.core.place("disk@1");
        let mut pair = Pair {
            owner,
            disk,
            member,
            replica,
        };
        pair.open();
        pair
    }

    pub fn have(&self) -> Serial {
        let shown = self.member.show(self.replica);
        shown.replica.expect("it is one").end
    }

    /// The owner comes to the replica, and sends what it lacks.
    pub fn open(&mut self) {
        self.open_by(3);
    }

    fn open_by(&mut self, term: u64) {
        let spec = ReplicaSpec {
            term,
            ..replica_spec(self.owner.show(self.disk).destaged_serial)
        };
        let volume = self.replica;
        let kept = self.member.order(Command::KeepReplica { volume, spec });
        self.member.pass(100);
        assert_eq!(self.member.answer(kept), Some(Ok(())));
        let (volume, peer, have) = (self.disk, PEER, self.have());
        let start = self.owner.order(Command::StartPeer {
            volume,
            peer,
            have,
            credit: self.credit(),
        });
        assert_eq!(self.owner.answer(start), Some(Ok(())));
    }

    /// What the member says that it takes.
    pub fn credit(&self) -> Credit {
        self.member.core.credit(self.replica).expect("it is one")
    }

    pub fn count(&mut self) -> RequestId {
        let (volume, peer) = (self.disk, PEER);
        self.owner.order(Command::CountPeer { volume, peer })
    }

    pub fn stop(&mut self, counts: bool) {
        let (volume, peer) = (self.disk, PEER);
        self.owner.order(Command::StopPeer {
            volume,
            peer,
            counts,
        });
        self.owner.sent.clear();
    }

    /// One batch comes to the replica. What it says of it.
    pub fn carry(&mut self) -> Option<Option<Result<(), Refusal>>> {
        let sent = self.owner.sent.pop_front()?;
        assert_eq!(sent.peer, PEER);
        let request = self.member.request();
        let place = Place::new(Area::Buffer(BufferId(0)), 0);
        let before = self.member.memory.buffer.clone();
        self.member.memory.store(place, &sent.bytes);
        self.member.send(Event::Replicate {
            volume: self.replica,
            request,
            batch: sent.batch,
        });
        self.member.pass(20);
        self.member.memory.buffer = before;
        let answer = self.member.answer(request);
        if answer == Some(Ok(())) {
            let (volume, peer, number) = (self.disk, PEER, sent.number);
            self.owner.send(Event::Replicated {
                volume,
                peer,
                number,
                credit: self.credit(),
            });
        }
        Some(answer)
    }

    pub fn carry_all(&mut self) -> usize {
        let mut carried = 0;
        loop {
            match self.carry() {
                Some(answer) => assert_eq!(answer, Some(Ok(())), "batch {carried}"),
                None => return carried,
            }
            carried += 1;
        }
    }

    /// The owner is not the owner any more, and its volume a frozen replica.
    fn retire(&mut self, name: &str, term: u64) {
        let (volume, name) = (self.disk, String::from(name));
        let deposed = self.owner.order(Command::Depose { volume });
        self.owner.pass(100);
        assert_eq!(self.owner.answer(deposed), Some(Ok(())));
        let retired = self.owner.order(Command::Retire { volume, name, term });
        self.owner.pass(100);
        assert_eq!(self.owner.answer(retired), Some(Ok(())));
        self.owner.sent.clear();
    }

    /// The two hosts change places.
    fn swap(&mut self) {
        core::mem::swap(&mut self.owner, &mut self.member);
        core::mem::swap(&mut self.disk, &mut self.replica);
    }

    /// Freezes the replica, and makes it a volume of its host.
    pub fn take_over(&mut self) {
        self.take_over_by(4);
    }

    fn take_over_by(&mut self, term: u64) {
        self.own_replica(term);
        self.share_image();
        let volume = self.replica;
        let found = self.member.attach_again(spec(Policy::WriteBack, "disk"));
        assert_eq!(found, volume);
        self.member.pass(100);
    }

    /// The same, but it is not attached.
    pub fn own_replica(&mut self, term: u64) {
        let volume = self.replica;
        let frozen = self.member.order(Command::Freeze { volume, term });
        self.member.pass(100);
        assert_eq!(self.member.answer(frozen), Some(Ok(())));
        let name = String::from("disk");
        let owned = self.member.order(Command::TakeOver { volume, name });
        self.member.pass(100);
        assert_eq!(self.member.answer(owned), Some(Ok(())));
    }

    /// Both see the image and what lies beside it; the ledger speaks of a cache, and these two have
    /// one name.
    pub fn share_image(&mut self) {
        let volume = self.replica;
        for (there, here) in [
            (Device::Origin(self.disk), Device::Origin(volume)),
            (Device::Ledger(self.disk), Device::Ledger(volume)),
            (Device::Journal(self.disk), Device::Journal(volume)),
        ] {
            let bytes = self.owner.disks.0.get(&there).cloned();
            self.member.disks.0.insert(here, bytes.unwrap_or_default());
        }
    }

    pub fn same(&mut self, block: u64, blocks: u64) {
        let there = self.owner.read(self.disk, block, blocks);
        assert!(there.is_some());
        assert_eq!(self.member.read(self.replica, block, blocks), there);
    }
}

impl Host {
    /// Writes one block of these bytes.
    pub fn write_bytes(&mut self, volume: VolumeId, block: u64, byte: u8) {
        let before = self.memory.buffer.clone();
        self.memory.buffer[..4096].fill(byte);
        assert!(self.write(volume, block, 1));
        self.memory.buffer = before;
    }
}

fn syncs_cache(io: &Io) -> bool {
    io.op == Op::Sync && io.device == Device::Cache
}

#[test]
fn a_flush_waits_for_a_peer_that_counts_and_its_replica_can_be_served() {
    let mut pair = Pair::new();
    let disk = pair.disk;
    pair.owner.write_bytes(disk, 3, 0xa1);
    let alone = pair.owner.flush(disk);
    pair.owner.pass(50);
    assert_eq!(pair.owner.answer(alone), Some(Ok(())), "no peer counts yet");
    let counted = pair.count();
    assert_eq!(pair.owner.answer(counted), None, "it lacks that write");
    assert!(pair.carry_all() > 0);
    assert_eq!(pair.owner.answer(counted), Some(Ok(())));

    pair.owner.write_bytes(disk, 4, 0xa2);
    pair.owner.write_bytes(disk, 3, 0xa3);
    pair.owner.zero(disk, 9, 2);
    let flush = pair.owner.flush(disk);
    pair.owner.pass(50);
    assert_eq!(pair.owner.answer(flush), None, "the peer has nothing of it");
    assert!(pair.carry_all() > 0);
    assert_eq!(pair.owner.answer(flush), Some(Ok(())));
    pair.take_over();
    pair.same(0, 16);
}

#[test]
fn a_peer_acknowledges_only_what_is_durable() {
    let mut pair = Pair::new();
    pair.owner.write_bytes(pair.disk, 3, 0xa1);
    pair.member.hold(syncs_cache);
    assert_eq!(pair.carry(), Some(None));
    pair.member.hold(none);
    assert_eq!(pair.have(), Serial(1));
}

#[test]
fn a_destage_begins_with_nothing_that_a_peer_lacks() {
    let mut pair = Pair::new();
    let counted = pair.count();
    assert_eq!(pair.owner.answer(counted), Some(Ok(())));
    pair.owner.write_bytes(pair.disk, 3, 0xa1);
    let destaged = pair.owner.destage(pair.disk);
    pair.owner.pass(500);
    assert_eq!(pair.owner.count(writes_origin), 0);
    pair.carry_all();
    pair.owner.pass(500);
    assert_eq!(pair.owner.answer(destaged), Some(Ok(())));
    assert!(pair.owner.count(writes_origin) > 0);
    // The replica hears of it, and lets go.
    pair.carry_all();
    assert!(!pair.member.core.volume(pair.replica).is_dirty());
    assert_eq!(pair.have(), Serial(1));
}

#[test]
fn a_peer_that_was_away_gets_the_rest_and_one_that_fell_behind_gets_epochs() {
    let mut pair = Pair::new();
    pair.count();
    pair.carry_all();
    let disk = pair.disk;
    pair.owner.fill(disk, 0, 20);
    pair.carry_all();
    pair.stop(true);
    pair.owner.fill(disk, 10, 60);
    let flush = pair.owner.flush(disk);
    pair.owner.pass(50);
    assert_eq!(pair.owner.answer(flush), None, "it counts, wherever it is");
    pair.open();
    pair.owner.fill(disk, 100, 5);
    pair.carry_all();
    assert_eq!(pair.owner.answer(flush), Some(Ok(())));
    pair.take_over();
    pair.same(0, 110);
}

#[test]
fn a_peer_that_is_given_up_is_not_waited_for() {
    let mut pair = Pair::new();
    pair.count();
    pair.carry_all();
    pair.owner.write_bytes(pair.disk, 3, 0xa1);
    let flush = pair.owner.flush(pair.disk);
    pair.owner.pass(50);
    assert_eq!(pair.owner.answer(flush), None);
    pair.stop(false);
    assert_eq!(pair.owner.answer(flush), Some(Ok(())));
    assert!(pair.owner.show(pair.disk).peers.is_empty());
}

/// A delta of several batches, of which some have come.
fn part_of_an_epoch() -> Pair {
    let (mut owner, disk) = Host::write_back();
    owner.fill(disk, 0, 40);
    let mut member = Host::new();
    let replica = member.core.place("disk@1");
    let mut pair = Pair {
        owner,
        disk,
        member,
        replica,
    };
    pair.open();
    assert_eq!(pair.carry(), Some(Some(Ok(()))));
    pair
}

#[test]
fn a_replica_counts_a_delta_as_a_whole_also_over_a_loss_of_power() {
    let mut pair = part_of_an_epoch();
    assert_eq!(pair.have(), Serial(0), "parts are missing");
    pair.member.lose_power();
    assert_eq!(pair.have(), Serial(0));
    assert!(!pair.member.core.volume(pair.replica).is_dirty());
    pair.stop(false);
    pair.open();
    pair.carry_all();
    assert_eq!(pair.have(), Serial(40));
    pair.member.lose_power();
    assert_eq!(pair.have(), Serial(40));
    pair.take_over();
    pair.same(0, 40);
}

#[test]
fn what_is_left_of_a_delta_never_counts_for_the_next_owner() {
    let mut pair = part_of_an_epoch();
    pair.take_over();
    assert_eq!(pair.member.read(pair.replica, 0, 1), Some(vec![0; 4096]));
    pair.member.write_bytes(pair.replica, 50, 0xb1);
    assert!(pair.member.show(pair.replica).acked_serial >= Serial(1 << 32));
    let flush = pair.member.flush(pair.replica);
    pair.member.pass(50);
    assert_eq!(pair.member.answer(flush), Some(Ok(())));
    pair.member.lose_power();
    let volume = pair.member.core.volume(pair.replica);
    let parts = volume.resolve(Span::new(0, 40 * BLOCK_SECTORS));
    assert!(parts.iter().all(|(_, content)| content.is_none()));
    let kept = volume.resolve(Span::new(50 * BLOCK_SECTORS, BLOCK_SECTORS));
    assert!(matches!(kept[..], [(_, Some(Content::Data(_)))]));
}

/// Fails when: a replica with a part of a delta goes on for another owner, or is forgotten for the
/// one that sends the rest.
#[test]
fn another_owner_begins_a_replica_with_a_part_of_a_delta_anew() {
    let mut pair = part_of_an_epoch();
    pair.stop(false);
    let keep = |pair: &mut Pair, lineage: u8| {
        let spec = ReplicaSpec {
            lineage: Uuid([lineage; 16]),
            term: 4,
            ..replica_spec(Serial(0))
        };
        let volume = pair.replica;
        let kept = pair.member.order(Command::KeepReplica { volume, spec });
        pair.member.pass(100);
        pair.member.answer(kept)
    };
    assert_eq!(keep(&mut pair, 5), Some(Ok(())), "it sends the rest");
    assert_eq!(keep(&mut pair, 6), Some(Err(Refusal::Gone)));
    assert_eq!(keep(&mut pair, 6), Some(Err(Refusal::Gone)), "asked again");
    let (volume, term) = (pair.replica, 4);
    let frozen = pair.member.order(Command::Freeze { volume, term });
    pair.member.pass(100);
    assert_eq!(pair.member.answer(frozen), Some(Ok(())), "its end is right");
    // A recovery takes the part out of the log.
    pair.member.lose_power();
    assert_eq!(keep(&mut pair, 6), Some(Ok(())));
}

#[test]
fn a_frozen_replica_takes_nothing_and_obeys_no_older_record() {
    let mut pair = Pair::new();
    pair.owner.write_bytes(pair.disk, 3, 0xa1);
    let volume = pair.replica;
    let frozen = pair.member.order(Command::Freeze { volume, term: 9 });
    pair.member.pass(100);
    assert_eq!(pair.member.answer(frozen), Some(Ok(())));
    assert_eq!(pair.carry(), Some(Some(Err(Refusal::Gone))));
    let older = pair.member.order(Command::Freeze { volume, term: 8 });
    assert_eq!(pair.member.answer(older), Some(Err(Refusal::Gone)));
    let spec = replica_spec(Serial(0));
    let kept = pair.member.order(Command::KeepReplica { volume, spec });
    assert_eq!(pair.member.answer(kept), Some(Err(Refusal::Gone)));
    pair.member.lose_power();
    let shown = pair.member.show(volume).replica.expect("it is one");
    assert!(shown.frozen && shown.term == 9);
}

#[test]
fn a_batch_that_was_changed_on_its_way_is_refused_as_a_whole() {
    let mut pair = Pair::new();
    pair.owner.fill(pair.disk, 0, 3);
    let mut sent = core::mem::take(&mut pair.owner.sent);
    sent[0].bytes[17] ^= 1;
    pair.owner.sent = sent;
    assert_eq!(pair.carry(), Some(Some(Err(Refusal::Io))));
    assert!(!pair.member.core.volume(pair.replica).is_dirty());
}

#[test]
fn bytes_of_a_stranger_are_refused_and_do_no_harm() {
    let mut pair = Pair::new();
    pair.owner.fill(pair.disk, 0, 3);
    let whole = pair.owner.sent.front().expect("it left").batch.clone();
    let changes: [fn(&mut Batch); 9] = [
        |it| it.parts[0].span.sector = u64::MAX,
        |it| it.parts[0].span.sectors = 0,
        |it| it.parts[0].source = None,
        |it| it.parts.push(it.parts[0]),
        |it| it.upto = Serial(u64::MAX),
        |it| it.destaged = Serial(it.upto.0 + 1),
        |it| it.part = 1,
        |it| it.upto = Serial(1 << 63),
        |it| {
            let (zeroes, span) = (EntryKind::Zero { allocate: false }, it.parts[0].span);
            it.parts = (0..65_u64)
                .map(|n| crate::event::BatchPart {
                    span: Span::new(span.sector + n, 1),
                    kind: zeroes,
                    source: None,
                    sum: 0,
                })
                .collect();
        },
    ];
    for change in changes {
        let mut batch = whole.clone();
        change(&mut batch);
        let bytes = pair.owner.sent.front().expect("it left").bytes.clone();
        let (peer, number) = (PEER, 1);
        pair.owner.sent.push_front(Sent {
            peer,
            number,
            batch,
            bytes,
        });
        assert!(matches!(pair.carry(), Some(Some(Err(_)))));
        // Nothing is taken behind it, until the owner comes anew.
        let whole = pair.owner.sent.front().expect("it left").again();
        pair.owner.sent.push_front(whole);
        assert_eq!(pair.carry(), Some(Some(Err(Refusal::Gone))));
        pair.stop(true);
        pair.open();
    }
    assert!(!pair.member.core.volume(pair.replica).is_dirty());
    pair.carry_all();
    pair.take_over();
    pair.same(0, 3);
}

/// A peer begins to count while the image is written with what it lacks.
pub fn count_behind_a_cut() -> bool {
    let mut pair = Pair::new();
    pair.owner.fill(pair.disk, 0, 3);
    pair.owner.hold(writes_origin);
    pair.owner.destage(pair.disk);
    pair.owner.pass(500);
    assert!(pair.owner.flights.iter().any(writes_origin));
    let counted = pair.count();
    let early = pair.owner.answer(counted);
    pair.carry_all();
    assert_eq!(pair.owner.answer(counted), Some(Ok(())));
    early.is_none()
}

/// An owner dies while it sends a write in parts. Whether the write before it is there.
pub fn part_of_a_write() -> bool {
    let mut pair = Pair::new();
    pair.owner.write_bytes(pair.disk, 3, 0xa1);
    pair.carry_all();
    assert!(pair.owner.write(pair.disk, 100, 20));
    assert_eq!(pair.carry(), Some(Some(Ok(()))));
    assert!(!pair.owner.sent.is_empty(), "parts are missing");
    pair.take_over();
    assert_eq!(pair.member.read(pair.replica, 100, 1), Some(vec![0; 4096]));
    pair.member.read(pair.replica, 3, 1) == Some(vec![0xa1; 4096])
}

/// A host loses a batch, and sends the next one.
pub fn delta_behind_a_gap() -> bool {
    let mut pair = Pair::new();
    pair.owner.write_bytes(pair.disk, 3, 0xa1);
    pair.owner.sent.clear();
    pair.owner.write_bytes(pair.disk, 4, 0xa2);
    pair.owner.flush(pair.disk);
    assert_eq!(pair.owner.sent.len(), 1);
    pair.carry() == Some(Some(Err(Refusal::OutOfRange)))
}

/// A peer that does not count has an old write of a block; the newer one goes to the image before
/// it is sent. Before there is proof no ledger tells of that.
///
/// Fails when: the old write comes back with a loss of power, below what the peer got then
/// (`LeaveOutUncovered`).
#[test]
fn what_lies_before_a_write_left_out_does_not_come_back() {
    let mut pair = Pair::new();
    let disk = pair.disk;
    pair.owner.write_bytes(disk, 3, 0xa1);
    pair.owner.flush(disk);
    pair.carry_all();
    pair.owner.write_bytes(disk, 3, 0xa2);
    let left_out = pair.owner.show(disk).acked_serial;
    pair.stop(false);
    // It comes to the peer with what the image has now, and what it gets is newer.
    pair.open();
    pair.owner.sent.clear();
    pair.stop(false);
    let destaged = pair.owner.destage(disk);
    pair.owner.pass(500);
    assert_eq!(pair.owner.answer(destaged), Some(Ok(())));
    pair.owner.write_bytes(disk, 9, 0xa3);
    let (volume, peer, have) = (disk, PEER, pair.have());
    assert!(have < left_out, "it lacks that write");
    let start = pair.owner.order(Command::StartPeer {
        volume,
        peer,
        have,
        credit: pair.credit(),
    });
    assert_eq!(pair.owner.answer(start), Some(Ok(())));
    pair.owner.pass(50);
    pair.carry_all();
    let end = pair.owner.show(disk).acked_serial;
    assert_eq!(pair.have(), end);
    pair.member.lose_power();
    assert_eq!(pair.have(), end, "it was acknowledged");
    let replica = pair.member.core.volume(pair.replica);
    let span = Span::new(3 * BLOCK_SECTORS, BLOCK_SECTORS);
    assert!(replica.resolve(span).iter().all(|(_, part)| part.is_none()));
}

#[test]
fn orders_that_fit_no_replica_are_refused_and_do_no_harm() {
    let mut pair = Pair::new();
    let (volume, lineage) = (pair.replica, Uuid([8; 16]));
    let named = pair.member.order(Command::NameLineage { volume, lineage });
    assert_eq!(pair.member.answer(named), Some(Err(Refusal::Gone)));
    let spec = replica_spec(Serial(u64::MAX));
    let kept = pair.member.order(Command::KeepReplica { volume, spec });
    assert_eq!(pair.member.answer(kept), Some(Err(Refusal::OutOfRange)));
    let name = String::from("disk");
    let taken = pair.member.order(Command::TakeOver { volume, name });
    assert_eq!(pair.member.answer(taken), Some(Err(Refusal::Busy)));
    // A peer that is lost while its volume goes.
    let (volume, discard_dirty) = (pair.disk, true);
    pair.owner.fill(volume, 0, 3);
    pair.owner.hold(|io| io.op == Op::Remove);
    let gone = pair.owner.order(Command::Detach {
        volume,
        discard_dirty,
    });
    pair.stop(true);
    pair.owner.hold(none);
    pair.owner.pass(1_000);
    assert_eq!(pair.owner.answer(gone), Some(Ok(())));
}

/// The peer is in the middle of a round when two epochs become one.
#[test]
fn a_peer_that_catches_up_gets_what_a_merge_has_made_one() {
    let (mut owner, disk) = Host::write_back();
    owner.fill(disk, 0, 40);
    let mut member = Host::new();
    let replica = member.core.place("disk@1");
    let mut pair = Pair {
        owner,
        disk,
        member,
        replica,
    };
    pair.open();
    assert_eq!(pair.carry(), Some(Some(Ok(()))));
    pair.owner.write_bytes(disk, 50, 0xb1);
    pair.owner.core.restart_rounds(disk);
    pair.owner.flush(disk);
    pair.owner.pass(50);
    pair.carry_all();
    assert_eq!(pair.have(), pair.owner.show(disk).acked_serial);
    pair.take_over();
    pair.same(0, 60);
}

#[test]
fn a_copy_tells_what_is_here_of_a_volume_and_of_a_replica() {
    let mut pair = Pair::new();
    assert_eq!(pair.owner.core.copy(VolumeId(99)), None);
    pair.owner.hold(syncs_cache);
    pair.owner.write_bytes(pair.disk, 3, 0xa1);
    pair.owner.flush(pair.disk);
    let copy = pair.owner.core.copy(pair.disk).expect("it is known");
    assert!(copy.attached && copy.dirty && !copy.damaged && copy.replica.is_none());
    assert_eq!((copy.acked, copy.durable), (Serial(1), Serial(0)));
    assert_eq!(
        (copy.policy, copy.size_bytes),
        (Policy::WriteBack, 64 << 20)
    );
    assert_eq!(copy.peers.len(), 1);
    pair.owner.hold(none);
    pair.carry_all();
    let shown = pair.owner.show(pair.disk);
    let copy = pair.owner.core.copy(pair.disk).expect("it is known");
    assert_eq!((copy.durable, copy.uuid), (Serial(1), shown.uuid));
    assert_eq!(copy.peers, shown.peers);
    let destaged = pair.owner.destage(pair.disk);
    pair.owner.pass(500);
    assert_eq!(pair.owner.answer(destaged), Some(Ok(())));
    let copy = pair.owner.core.copy(pair.disk).expect("it is known");
    assert!(copy.destaged == Serial(1) && !copy.dirty);

    let copy = pair.member.core.copy(pair.replica).expect("it is known");
    let replica = copy.replica.expect("it is one");
    assert!(!copy.attached && copy.dirty && !replica.frozen);
    assert_eq!((replica.end, copy.durable), (Serial(1), Serial(1)));
    // Flushed records are missing, whose it is not known.
    pair.member.core.volume(pair.replica).log_is_damaged();
    assert!(
        pair.member
            .core
            .copy(pair.replica)
            .expect("it is known")
            .damaged
    );
}

#[test]
fn a_frozen_replica_goes_on_for_an_owner_with_a_newer_record() {
    let mut pair = Pair::new();
    let (disk, volume) = (pair.disk, pair.replica);
    pair.owner.write_bytes(disk, 3, 0xa1);
    pair.carry_all();
    pair.owner.write_bytes(disk, 4, 0xa2);
    let frozen = pair.member.order(Command::Freeze { volume, term: 9 });
    pair.member.pass(100);
    assert_eq!(pair.member.answer(frozen), Some(Ok(())));
    let spec = |term| ReplicaSpec {
        term,
        lineage: Uuid([6; 16]),
        ..replica_spec(Serial(0))
    };
    let keep = |pair: &mut Pair, term| {
        let spec = spec(term);
        let kept = pair.member.order(Command::KeepReplica { volume, spec });
        pair.member.pass(100);
        pair.member.answer(kept)
    };
    assert_eq!(keep(&mut pair, 8), Some(Err(Refusal::Gone)), "it is older");
    assert_eq!(pair.carry(), Some(Some(Err(Refusal::Gone))), "it is frozen");
    pair.member.lose_power();
    assert_eq!(keep(&mut pair, 8), Some(Err(Refusal::Gone)));
    assert_eq!(keep(&mut pair, 9), Some(Ok(())), "the record that froze it");
    let found = |pair: &Pair| {
        let shown = pair.member.show(volume);
        (shown.replica.expect("it is one"), shown.lineage)
    };
    let (shown, lineage) = found(&pair);
    assert!(!shown.frozen && shown.term == 9 && shown.end == Serial(1));
    assert_eq!(lineage, Uuid([6; 16]));
    pair.member.lose_power();
    assert_eq!(found(&pair), (shown, lineage), "the reply was durable");

    pair.stop(false);
    assert_eq!(keep(&mut pair, 9), Some(Ok(())), "it promises room");
    let (peer, have) = (PEER, pair.have());
    let volume = disk;
    let credit = pair.credit();
    let start = pair.owner.order(Command::StartPeer {
        volume,
        peer,
        have,
        credit,
    });
    assert_eq!(pair.owner.answer(start), Some(Ok(())));
    assert!(pair.carry_all() > 0);
    assert_eq!(pair.have(), pair.owner.show(disk).acked_serial);
    pair.member.lose_power();
    // Its own order is not older than what it obeys.
    let volume = pair.replica;
    let frozen = pair.member.order(Command::Freeze { volume, term: 9 });
    pair.member.pass(100);
    assert_eq!(pair.member.answer(frozen), Some(Ok(())));
    assert_eq!(pair.have(), Serial(2));
}

#[test]
fn a_volume_that_is_retired_is_a_frozen_replica_with_all_that_it_has() {
    let (mut owner, disk) = Host::write_back();
    let other = owner.attach(spec(Policy::WriteBack, "other"));
    owner.write_bytes(disk, 3, 0xa1);
    let retire = |owner: &mut Host, name: &str, term| {
        let (volume, name) = (disk, String::from(name));
        owner.order(Command::Retire { volume, name, term })
    };
    let early = retire(&mut owner, "disk@1", 4);
    assert_eq!(owner.answer(early), Some(Err(Refusal::Busy)), "attached");
    let volume = disk;
    let deposed = owner.order(Command::Depose { volume });
    owner.pass(100);
    assert_eq!(owner.answer(deposed), Some(Ok(())));
    let taken = retire(&mut owner, "other", 4);
    assert_eq!(owner.answer(taken), Some(Err(Refusal::Busy)), "the name");
    owner.hold(syncs_cache);
    let retired = retire(&mut owner, "disk@1", 4);
    owner.pass(100);
    assert_eq!(owner.answer(retired), None, "it is not durable");
    owner.hold(none);
    owner.pass(100);
    assert_eq!(owner.answer(retired), Some(Ok(())));
    let again = retire(&mut owner, "disk@2", 5);
    assert_eq!(owner.answer(again), Some(Err(Refusal::Gone)));

    owner.lose_power();
    let copy = owner.core.copy(disk).expect("it is known");
    let replica = copy.replica.expect("it is one");
    assert!(replica.frozen && replica.term == 4 && !copy.damaged);
    assert_eq!((replica.end, copy.dirty), (Serial(1), true));
    assert_eq!(owner.show(disk).name, "disk@1");
    assert!(owner.core.find(other).is_some());
    let destaged = owner.destage(disk);
    assert_eq!(owner.answer(destaged), Some(Err(Refusal::Gone)));
    owner.pass(1_000_000);
    assert_eq!(owner.count(writes_origin), 0, "it is never destaged");
}

#[test]
fn the_owner_before_becomes_a_member_and_the_owner_once_more() {
    let mut pair = Pair::new();
    pair.owner.fill(pair.disk, 0, 20);
    pair.carry_all();
    pair.take_over_by(4);
    pair.retire("disk@2", 4);
    pair.swap();
    pair.owner.write_bytes(pair.disk, 5, 0xb1);
    pair.open_by(4);
    pair.owner.write_bytes(pair.disk, 6, 0xb2);
    let counted = pair.count();
    pair.carry_all();
    assert_eq!(pair.owner.answer(counted), Some(Ok(())));
    assert_eq!(pair.have(), pair.owner.show(pair.disk).acked_serial);
    pair.member.lose_power();
    assert_eq!(pair.have(), pair.owner.show(pair.disk).acked_serial);
    let seen = pair.owner.show(pair.disk).acked_serial;
    pair.take_over_by(5);
    pair.same(0, 30);
    pair.member.write_bytes(pair.replica, 7, 0xc1);
    let given = pair.member.show(pair.replica).acked_serial;
    assert!(given > seen, "{given:?} is above {seen:?}");
    // And back, without a write of its own.
    pair.retire("disk@3", 5);
    pair.swap();
    pair.open_by(5);
    pair.carry_all();
    assert_eq!(pair.have(), given);
}

#[test]
fn a_replica_that_is_forgotten_gives_its_room_back() {
    let live = |host: &Host| host.core.log.gauge().live;
    for (retires, freezes) in [(true, false), (false, true), (false, false)] {
        let mut pair = Pair::new();
        let other = (!retires).then(|| pair.member.attach(spec(Policy::WriteBack, "other")));
        let before = live(&pair.member);
        pair.owner.fill(pair.disk, 0, 20);
        pair.carry();
        pair.carry();
        assert!(live(&pair.member) > before);
        if retires {
            pair.retire("disk@2", 4);
            pair.swap();
        }
        let mut request = None;
        if freezes {
            let volume = pair.replica;
            pair.member.order(Command::Freeze { volume, term: 4 });
            pair.member.pass(100);
        } else if !retires {
            // Another volume has most of the stage, so that some of it waits.
            pair.owner.fill(pair.disk, 30, 40);
            pair.member.hold(|io| io.device == Device::Cache);
            pair.member.fill(other.expect("it is there"), 0, 52);
            while let Some(answer) = pair.carry() {
                request = Some(answer);
            }
            assert_eq!(request, Some(None), "it waits");
            assert!(pair.member.core.volume(pair.replica).has_batches());
        }
        let volume = pair.replica;
        let kept = pair.member.order(Command::Detach {
            volume,
            discard_dirty: false,
        });
        assert_eq!(pair.member.answer(kept), Some(Err(Refusal::Dirty)));
        let gone = pair.member.order(Command::Detach {
            volume,
            discard_dirty: true,
        });
        pair.member.hold(none);
        pair.member.pass(1_000);
        assert_eq!(pair.member.answer(gone), Some(Ok(())));
        assert!(pair.member.core.find(volume).is_none());
        let others = other.map_or(0, |it| pair.member.core.volume(it).charge());
        assert_eq!(live(&pair.member), before + others);
        pair.member.lose_power();
        assert!(pair.member.core.find(volume).is_none());
    }
}

/// A frozen replica of 40 blocks with a delta behind it that is not whole, and a third host.
fn frozen_and_a_third() -> Pair {
    let mut pair = Pair::new();
    pair.owner.fill(pair.disk, 0, 40);
    pair.carry_all();
    assert!(pair.owner.write(pair.disk, 100, 20));
    assert_eq!(pair.carry(), Some(Some(Ok(()))), "a part of it");
    let volume = pair.replica;
    let frozen = pair.member.order(Command::Freeze { volume, term: 4 });
    pair.member.pass(100);
    assert_eq!(pair.member.answer(frozen), Some(Ok(())));
    pair.share_image();
    pair.swap();
    pair.owner.sent.clear();
    pair.member = Host::new();
    pair.replica = pair.member.core.place("disk@1");
    pair
}

#[test]
fn a_frozen_replica_is_sent_to_a_third_host_and_ends_there_as_here() {
    let mut pair = frozen_and_a_third();
    let end = pair.owner.core.volume(pair.disk).history_end();
    assert_eq!(end, Serial(40));
    let (volume, peer, have) = (pair.disk, PEER, Serial(41));
    let start = pair.owner.order(Command::StartPeer {
        volume,
        peer,
        have,
        credit: Credit::ALL,
    });
    assert_eq!(pair.owner.answer(start), Some(Err(Refusal::OutOfRange)));
    pair.open_by(4);
    let counted = pair.count();
    assert_eq!(pair.owner.answer(counted), Some(Err(Refusal::Gone)));
    // The link breaks in the middle; what came before stays.
    assert_eq!(pair.carry(), Some(Some(Ok(()))));
    pair.stop(true);
    assert!(
        pair.owner.show(pair.disk).peers.is_empty(),
        "it cannot count"
    );
    pair.open_by(4);
    assert!(pair.carry_all() > 0);
    let shown = pair.owner.show(pair.disk).peers[0];
    assert_eq!((shown.durable, shown.sent), (end, end));
    assert!(shown.live && !shown.counts);
    assert_eq!(pair.have(), end);
    pair.member.lose_power();
    assert_eq!(pair.have(), end);

    pair.take_over_by(5);
    let (volume, name) = (pair.disk, String::from("disk"));
    let owned = pair.owner.order(Command::TakeOver { volume, name });
    pair.owner.pass(100);
    assert_eq!(pair.owner.answer(owned), Some(Ok(())));
    assert!(
        pair.owner.show(pair.disk).peers.is_empty(),
        "it was stopped"
    );
    let found = pair.owner.attach_again(spec(Policy::WriteBack, "disk"));
    assert_eq!(found, pair.disk);
    pair.owner.pass(100);
    pair.same(0, 130);
    assert_eq!(
        pair.member.read(pair.replica, 39, 1).map(|it| it[0]),
        Some(0)
    );
}

#[test]
fn what_becomes_of_a_frozen_replica_ends_its_peers() {
    for order in 0..3 {
        let mut pair = frozen_and_a_third();
        pair.open_by(4);
        assert_eq!(pair.carry(), Some(Some(Ok(()))));
        let volume = pair.disk;
        let command = match order {
            0 => Command::KeepReplica {
                volume,
                spec: ReplicaSpec {
                    term: 4,
                    ..replica_spec(Serial(0))
                },
            },
            1 => Command::Detach {
                volume,
                discard_dirty: true,
            },
            _ => Command::StopPeer {
                volume,
                peer: PEER,
                counts: false,
            },
        };
        let ordered = pair.owner.order(command);
        pair.owner.pass(100);
        assert_eq!(pair.owner.answer(ordered), Some(Ok(())));
        let left = pair.owner.core.copy(volume);
        assert!(left.is_none_or(|it| it.peers.is_empty()));
        pair.owner.sent.clear();
        pair.owner.pass(1_000);
        assert!(pair.owner.sent.is_empty(), "nothing more is sent");
    }
    // What has lost something is not given away as if it were whole.
    let mut pair = frozen_and_a_third();
    pair.owner.core.volume(pair.disk).log_is_damaged();
    let (volume, peer, have) = (pair.disk, PEER, Serial(0));
    let start = pair.owner.order(Command::StartPeer {
        volume,
        peer,
        have,
        credit: Credit::ALL,
    });
    assert_eq!(pair.owner.answer(start), Some(Err(Refusal::Damaged)));
}
