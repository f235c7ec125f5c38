//! Images that rest, and files that take their place.

use super::planned::{
    BLOCKS, Backwards, attach_known, empty_file, end_destage, is_dead, place, view, with_image,
};
use super::{Host, MIB, fine, none, spec, writes_origin};
use crate::event::{Command, Device, Event, Io, Op, Purpose, Refusal};
use crate::format::ledger::Progress;
use crate::image::{Image, Marked};
use crate::origin::{Extent, FileIndex, Lies, Map, Missing, Planner, Resolved};
use crate::outbox::Cx;
use crate::types::{BLOCK_SECTORS, BufferId, Policy, Span, Uuid, VolumeId};
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

pub(super) const IMAGE: Image = Image {
    device: 5,
    inode: 12,
    birth_ns: 1_000,
    size_bytes: 64 * MIB,
    mtime_ns: 1,
    lasts: true,
    below: 7,
    marked: Marked::Unknown,
};

/// A new file that has nothing, above one that has its blocks as [`Backwards`] lays them.
struct Above(Backwards);

impl Map for Above {
    fn resolve(&mut self, span: Span) -> Resolved {
        let blocks = span.sector / BLOCK_SECTORS..span.end().div_ceil(BLOCK_SECTORS);
        let extents = blocks.map(|block| {
            let start = span.sector.max(block * BLOCK_SECTORS);
            let end = span.end().min((block + 1) * BLOCK_SECTORS);
            let lies = Lies::At {
                file: FileIndex(1),
                offset: place(block) + (start % BLOCK_SECTORS) * 512,
            };
            let span = Span::new(start, end - start);
            Extent { span, lies }
        });
        Resolved::Ready(extents.collect())
    }

    fn supply(&mut self, _: Missing, _: &[u8]) {}

    fn tables(&self) -> &[Uuid] {
        const NAMES: [Uuid; 2] = [Uuid([0xA0; 16]), Uuid([0xA1; 16])];
        &NAMES
    }

    fn layers(&self) -> &[Uuid] {
        const NAMES: [Uuid; 1] = [Uuid([0xA2; 16])];
        &NAMES
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn set_bytes_max(&mut self, _: u64) {}

    fn planner(&mut self) -> Option<&mut dyn Planner> {
        self.0.planner()
    }
}

fn exchange(host: &mut Host, volume: VolumeId) {
    let frozen = host.disks.0[&Device::Origin(volume)].clone();
    let below = Device::Base(volume, FileIndex(1));
    host.disks.0.insert(below, frozen);
    let mut cx = Cx {
        now: host.now,
        memory: &mut host.memory,
        out: &mut host.out,
    };
    let map = Box::new(Above(Backwards::default()));
    host.core.exchange(&mut cx, volume, map, IMAGE);
    host.send(Event::Tick);
}

/// Another file may take the place of the image from now on.
fn announce(host: &mut Host, volume: VolumeId) {
    for order in [Command::Quiesce { volume }, Command::Announce { volume }] {
        let order = host.order(order);
        host.pass(1_000);
        assert_eq!(host.answer(order), Some(Ok(())));
    }
}

fn announced() -> (Host, VolumeId) {
    let (mut host, disk) = with_image();
    host.fill(disk, 3, 3);
    end_destage(&mut host, disk);
    announce(&mut host, disk);
    (host, disk)
}

fn reads_image(io: &Io) -> bool {
    let image = matches!(io.device, Device::Origin(_) | Device::Base(..));
    image && io.op == Op::Read && io.purpose == Purpose::GuestRead
}

fn syncs_journal(io: &Io) -> bool {
    io.op == Op::Sync && matches!(io.device, Device::Journal(_))
}

/// Fails when: the answer comes before all that was written is at the image, or something of a
/// guest, an order or time gets there before it is resumed.
#[test]
fn an_image_at_rest_has_all_that_was_written_and_is_not_written() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 2);
    host.hold(syncs_journal);
    let quiesce = host.order(Command::Quiesce { volume: disk });
    host.fill(disk, 8, 1);
    host.pass(1_000);
    assert_eq!(host.answer(quiesce), None);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(quiesce), Some(Ok(())));
    assert_eq!(host.ledger(disk).progress, Progress::Idle);
    assert!(host.show(disk).rests && view(&host, disk, 1) != [0; 4096]);
    host.count(writes_origin);
    host.fill(disk, 4, 2);
    let switch = Command::Switch {
        volume: disk,
        policy: Policy::WriteThrough,
        journal_possible: true,
    };
    let orders = [
        Command::Quiesce { volume: disk },
        Command::Destage { volume: disk },
        switch,
    ]
    .map(|order| host.order(order));
    host.pass(700_000);
    for order in orders {
        assert_eq!(host.answer(order), Some(Err(Refusal::Busy)));
    }
    assert_eq!(host.count(writes_origin), 0);
    assert_eq!(view(&host, disk, 4), [0; 4096]);
    let resume = host.order(Command::Resume { volume: disk });
    assert_eq!(host.answer(resume), Some(Ok(())));
    end_destage(&mut host, disk);
    assert_ne!(view(&host, disk, 4), [0; 4096]);
    let again = host.order(Command::Resume { volume: disk });
    assert_eq!(host.answer(again), Some(Err(Refusal::NotQuiesced)));
}

/// Fails when: guests wait for a backup, or who resumes is not told that they did not.
#[test]
fn a_rest_ends_where_the_log_needs_its_room() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 2);
    let quiesce = host.order(Command::Quiesce { volume: disk });
    host.pass(1_000);
    assert_eq!(host.answer(quiesce), Some(Ok(())));
    for block in 0..800 {
        assert!(host.write(disk, block % 700, 1), "the guest goes on");
        host.pass(10);
    }
    let shown = host.show(disk);
    assert_eq!((shown.rests, shown.counters.rests_ended), (false, 1));
    let resume = host.order(Command::Resume { volume: disk });
    assert_eq!(host.answer(resume), Some(Err(Refusal::NotQuiesced)));
}

/// Fails when: a disk of a group is written while another one rests, or rests at another cut.
#[test]
fn the_disks_of_a_group_rest_together() {
    let mut host = Host::new();
    let pair = host.attach_pair();
    let [one, other] = pair;
    host.fill(one, 0, 2);
    host.fill(other, 0, 2);
    let quiesce = host.order(Command::Quiesce { volume: one });
    host.pass(2_000);
    assert_eq!(host.answer(quiesce), Some(Ok(())));
    assert!(pair.iter().all(|it| host.show(*it).rests));
    host.count(writes_origin);
    host.fill(other, 4, 2);
    host.fill(one, 4, 2);
    host.pass(2_000);
    let destage = host.destage(other);
    assert_eq!(host.answer(destage), Some(Err(Refusal::Busy)));
    assert_eq!(host.count(writes_origin), 0);
    let resume = host.order(Command::Resume { volume: other });
    assert_eq!(host.answer(resume), Some(Ok(())));
    let destage = host.destage(one);
    host.pass(2_000);
    assert_eq!(host.answer(destage), Some(Ok(())));
    assert!(pair.iter().all(|it| host.show(*it).dirty_bytes == 0));
}

/// Fails when: a rest that has not begun is not given up, or who waits for it is not told.
#[test]
fn a_rest_that_has_not_begun_can_be_given_up() {
    let mut host = Host::new();
    let [one, other] = host.attach_pair();
    host.fill(one, 0, 2);
    host.hold(writes_origin);
    let quiesce = host.order(Command::Quiesce { volume: one });
    host.pass(1_000);
    assert_eq!(host.answer(quiesce), None, "the storage takes nothing");
    let resume = host.order(Command::Resume { volume: other });
    let told = Some(Err(Refusal::NotQuiesced));
    assert_eq!(
        host.answer(resume),
        told,
        "a copy would be of no single moment"
    );
    assert_eq!(host.answer(quiesce), told);
    host.hold(none);
    host.pass(2_000);
    assert!(!host.show(one).rests && !host.show(other).rests);
    let end = host.order(Command::EndExchange { volume: one });
    assert_eq!(host.answer(end), told, "nothing is exchanged");
}

/// The cache device dies, which the write of another disk meets.
fn lose_cache(host: &mut Host, other: VolumeId) {
    host.fail(is_dead);
    host.write_sectors(other, 0, 8);
    host.flush(other);
    host.pass(20_000);
}

/// Fails when: an image that rests is written past a cache device that fails, and nobody is told;
/// or it is written while another file takes its place.
#[test]
fn a_cache_device_that_fails_ends_a_rest_and_waits_for_an_exchange() {
    let (mut host, disk) = with_image();
    let other = host.attach(spec(Policy::WriteBack, "other"));
    host.fill(disk, 3, 3);
    end_destage(&mut host, disk);
    let quiesce = host.order(Command::Quiesce { volume: disk });
    host.pass(1_000);
    assert_eq!(host.answer(quiesce), Some(Ok(())));
    lose_cache(&mut host, other);
    let write = host.write_sectors(disk, 64, 8);
    host.pass(1_000);
    assert_eq!(host.answer(write), Some(Ok(())), "past the log");
    let shown = host.show(disk);
    assert_eq!((shown.rests, shown.counters.rests_ended), (false, 1));
    let resume = host.order(Command::Resume { volume: disk });
    assert_eq!(host.answer(resume), Some(Err(Refusal::NotQuiesced)));

    let (mut host, disk) = announced();
    let other = host.attach(spec(Policy::WriteBack, "other"));
    lose_cache(&mut host, other);
    let write = host.write_sectors(disk, 64, 8);
    host.pass(1_000);
    assert_eq!(host.answer(write), None, "the old file is not written");
    // Nobody looks at a device that is good.
    host.fail(fine);
    host.pass(60_000);
    let end = host.order(Command::EndExchange { volume: disk });
    host.pass(1_000);
    let ends = (host.answer(end), host.answer(write));
    assert_eq!(ends, (Some(Ok(())), Some(Ok(()))));
}

/// Fails when: a rest is reported that has not begun when the cache device fails.
#[test]
fn a_cache_device_that_fails_ends_what_comes_before_a_rest() {
    let (mut host, disk) = with_image();
    host.fill(disk, 3, 3);
    host.hold(writes_origin);
    let quiesce = host.order(Command::Quiesce { volume: disk });
    host.pass(1_000);
    host.fail(is_dead);
    let write = host.write_sectors(disk, 64, 8);
    host.pass(20_000);
    assert_eq!(host.answer(quiesce), Some(Err(Refusal::CacheFailed)));
    host.hold(none);
    host.pass(20_000);
    assert_eq!(host.answer(write), Some(Ok(())));
}

/// Fails when: who resumes a rest has the image written while another file takes its place.
#[test]
fn an_exchange_is_ended_by_its_host_alone() {
    let (mut host, disk) = announced();
    host.fill(disk, 9, 1);
    host.count(writes_origin);
    let resume = |host: &mut Host| {
        let resume = host.order(Command::Resume { volume: disk });
        host.pass(2_000);
        assert_eq!(host.answer(resume), Some(Err(Refusal::Busy)));
        assert_eq!(host.count(writes_origin), 0);
    };
    resume(&mut host);
    assert!(host.ledger(disk).may_succeed);
    let empty = host.order(Command::Empty { volume: disk });
    assert_eq!(host.answer(empty), Some(Ok(())));
    resume(&mut host);
    exchange(&mut host, disk);
    resume(&mut host);
    let end = host.order(Command::EndExchange { volume: disk });
    host.pass(100);
    assert_eq!(host.answer(end), Some(Ok(())));
    assert!(!host.ledger(disk).may_succeed);
}

/// Fails when: files are exchanged under a request, guests read past the exchange, what is kept of
/// the image is forgotten, or the ledger does not follow.
#[test]
fn files_are_exchanged_when_nothing_is_on_its_way_and_what_is_kept_stays() {
    let (mut host, disk) = with_image();
    host.fill(disk, 3, 3);
    end_destage(&mut host, disk);
    let three = host.read(disk, 3, 1).expect("it is there");
    announce(&mut host, disk);
    assert!(host.ledger(disk).may_succeed);
    host.fill(disk, 9, 1);
    host.hold(reads_image);
    let under_way = host.ask(disk, 5, 1);
    let empty = host.order(Command::Empty { volume: disk });
    let waits = host.ask(disk, 3, 1);
    assert_eq!(host.answer(empty), None);
    assert_eq!(host.answer(waits), None, "guests wait");
    host.hold(none);
    assert_eq!(host.answer(under_way), Some(Ok(())));
    assert_eq!(host.answer(empty), Some(Ok(())));
    assert_eq!(host.answer(waits), None, "until the files are exchanged");
    host.count(reads_image);
    exchange(&mut host, disk);
    assert_eq!(host.answer(waits), Some(Ok(())));
    assert_eq!(host.read(disk, 3, 1), Some(three));
    assert_eq!(host.count(reads_image), 0, "it was kept");
    let four = host.read(disk, 4, 1);
    assert_eq!(host.count(reads_image), 1);
    let end = host.order(Command::EndExchange { volume: disk });
    host.pass(100);
    assert_eq!(host.answer(end), Some(Ok(())));
    let ledger = host.ledger(disk);
    assert!(!ledger.may_succeed && ledger.image == IMAGE.kept());
    // The next life reads it under the same name.
    assert!(four.is_some() && host.show(disk).dirty_bytes > 0);
}

/// Fails when: a read that hangs holds all guests for good.
#[test]
fn a_read_that_hangs_ends_the_exchange_and_not_the_guests() {
    let (mut host, disk) = announced();
    host.hold(reads_image);
    let hangs = host.ask(disk, 5, 1);
    let empty = host.order(Command::Empty { volume: disk });
    assert!(host.answer(empty).is_none() && !host.write(disk, 9, 1));
    host.pass(11_000);
    assert_eq!(host.answer(empty), Some(Err(Refusal::Io)));
    assert!(host.write(disk, 10, 1), "guests go on");
    assert_eq!(host.answer(hangs), None);
    let end = host.order(Command::EndExchange { volume: disk });
    host.pass(100);
    assert_eq!(host.answer(end), Some(Ok(())));
    assert!(!host.ledger(disk).may_succeed);
    host.hold(none);
    end_destage(&mut host, disk);
}

/// Fails when: a daemon that stops in the middle of a snapshot exchanges files or takes requests
/// again, or fails for it.
#[test]
fn a_stop_in_the_middle_of_an_exchange_leaves_it_to_the_next_start() {
    for empties in [false, true] {
        let (mut host, disk) = announced();
        host.hold(reads_image);
        host.ask(disk, 5, 1);
        let empty = empties.then(|| host.order(Command::Empty { volume: disk }));
        let park = host.order(Command::Park);
        host.pass(6_000);
        assert_eq!(host.answer(park), Some(Ok(())));
        let late = host.order(Command::Empty { volume: disk });
        let end = host.order(Command::EndExchange { volume: disk });
        host.pass(100);
        for order in [late, end].into_iter().chain(empty) {
            let answer = host.answer(order);
            assert!(matches!(answer, Some(Err(_))), "{answer:?}");
        }
        assert!(host.ledger(disk).may_succeed, "either file may be there");
    }
}

/// Whether the files wait for a read that is under way.
pub(super) fn exchange_under_a_read() -> bool {
    let (mut host, disk) = announced();
    host.hold(reads_image);
    host.ask(disk, 5, 1);
    let empty = host.order(Command::Empty { volume: disk });
    host.answer(empty).is_none()
}

/// Whether a start takes the file that a snapshot has put in the place of an image before a kill,
/// and no other one.
pub(super) fn start_behind_a_snapshot() -> bool {
    let mut host = Host::new();
    assert!(attach_known(&mut host, IMAGE));
    let disk = host.core.place("disk");
    host.fill(disk, 0, 2);
    announce(&mut host, disk);
    host.fill(disk, 4, 2);
    let ledger = host.ledger(disk);
    let mut host = host.killed();
    let successor = Image {
        inode: 13,
        birth_ns: 2_000,
        size_bytes: MIB,
        mtime_ns: 9,
        below: 8,
        marked: Marked::By(ledger.successor()),
        ..IMAGE
    };
    let mut early = ledger.successor();
    early.serial.0 -= 1;
    for marked in [Marked::Absent, Marked::By(early)] {
        let other = Image {
            marked,
            ..successor
        };
        assert!(!attach_known(&mut host, other), "it is another one");
    }
    attach_known(&mut host, successor)
}

/// Whether a disk that goes on has what the file below it has, where a smaller one over that ends
/// within a block and has read what it has of that.
pub(super) fn read_behind_a_smaller_disk() -> bool {
    let mut host = Host::new();
    let blocks = 8;
    let [smaller, larger] = [blocks * 4096 + 512, BLOCKS * 4096].map(|size_bytes| {
        let mut spec = spec(Policy::WriteBack, &size_bytes.to_string());
        spec.size_bytes = size_bytes;
        let id = host.core.place(&spec.name);
        host.disks.0.insert(Device::Origin(id), empty_file());
        let mut below = empty_file();
        below.resize(place(0) as usize + 4096, 7);
        host.disks.0.insert(Device::Base(id, FileIndex(1)), below);
        let map: Box<dyn Map> = Box::new(Above(Backwards::default()));
        let settled = crate::engine::Settled::default();
        let attached = host.core.attach_mapped(id, spec, settled, Some(map));
        attached.expect("it fits");
        host.send(Event::Tick);
        id
    });
    let request = host.request();
    host.send(Event::Read {
        volume: smaller,
        request,
        sector: blocks * BLOCK_SECTORS,
        sectors: 1,
        buffer: BufferId(0),
    });
    assert_eq!(host.answer(request), Some(Ok(())));
    assert!(host.memory.buffer[..512] == [7; 512]);
    host.read(larger, blocks, 1) == Some(alloc::vec![7; 4096])
}

#[test]
fn a_start_goes_on_with_the_old_image_where_the_new_one_has_not_its_place() {
    let mut host = Host::new();
    assert!(attach_known(&mut host, IMAGE));
    let disk = host.core.place("disk");
    host.fill(disk, 0, 2);
    announce(&mut host, disk);
    host.fill(disk, 4, 2);
    let mut host = host.killed();
    assert!(attach_known(&mut host, IMAGE));
    let disk = host.core.place("disk");
    assert!(!host.ledger(disk).may_succeed && host.show(disk).dirty_bytes > 0);
}

/// Fails when: a volume without a log of its own, or one that only reads, is called at rest.
#[test]
fn volumes_that_write_their_images_past_the_log_do_not_rest() {
    for policy in [Policy::Uncached, Policy::WriteThrough, Policy::Ephemeral] {
        let (mut host, disk) = Host::of(spec(policy, "disk"));
        let quiesce = host.order(Command::Quiesce { volume: disk });
        assert_eq!(host.answer(quiesce), Some(Err(Refusal::Policy)));
    }
    let early: Vec<Command> = [
        |volume| Command::Announce { volume },
        |volume| Command::Empty { volume },
        |volume| Command::Resume { volume },
        |volume| Command::EndExchange { volume },
    ]
    .map(|order: fn(VolumeId) -> Command| order(VolumeId(0)))
    .into();
    let (mut host, disk) = with_image();
    assert_eq!(disk, VolumeId(0));
    for order in early {
        let order = host.order(order);
        assert_eq!(host.answer(order), Some(Err(Refusal::NotQuiesced)));
    }
}
