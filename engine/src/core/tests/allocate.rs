//! Direct writes of an image that allocates, by the planner of [`planned`](super::planned).

use super::planned::{Backwards, DATA_AT, TABLE_AT, attach, attach_known, view, with_image};
use super::{Host, fine, none};
use crate::event::{Command, Device, Io, IoError, Op, Purpose, Refusal};
use crate::image::{Image, Named};
use crate::snapshot::State;
use crate::types::{BLOCK_SECTORS, Policy, VolumeId};
use alloc::vec;

fn with_direct(policy: Policy) -> (Host, VolumeId) {
    let (mut host, disk) = with_image();
    let order = host.switch(disk, policy);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    (host, disk)
}

fn is_direct(io: &Io) -> bool {
    io.purpose == Purpose::GuestWrite
}

fn refers(io: &Io) -> bool {
    is_direct(io) && io.op == Op::Write && (TABLE_AT..DATA_AT).contains(&io.offset)
}

fn places(io: &Io) -> bool {
    is_direct(io) && io.op == Op::Write && io.offset >= DATA_AT
}

fn syncs(io: &Io) -> bool {
    is_direct(io) && io.op == Op::Sync
}

/// Fails when: a write is answered before the file refers to it, or its table is written before
/// its bytes are synced.
#[test]
fn a_direct_write_is_answered_when_the_file_refers_to_it() {
    for policy in [Policy::WriteThrough, Policy::Uncached] {
        let (mut host, disk) = with_direct(policy);
        host.hold(syncs);
        let write = host.write_sectors(disk, 3 * BLOCK_SECTORS + 1, 3 * BLOCK_SECTORS);
        assert_eq!(host.count(refers), 0, "its bytes are not on media");
        host.hold(refers);
        assert_eq!(host.answer(write), None);
        assert_eq!(view(&host, disk, 4), vec![0; 4096], "nothing refers to it");
        host.hold(none);
        assert_eq!(host.answer(write), Some(Ok(())));
        let read = host.read(disk, 3, 4).expect("it is read");
        for block in 3..7 {
            let at = (block - 3) as usize * 4096;
            assert_eq!(view(&host, disk, block), read[at..at + 4096], "{policy:?}");
        }
        assert_eq!(host.show(disk).dirty_bytes, 0, "the log has nothing of it");
    }
}

/// Fails when: writes that come while a plan is under way have a sync each.
#[test]
fn writes_that_wait_for_a_plan_share_the_next_one() {
    let (mut host, disk) = with_direct(Policy::WriteThrough);
    host.hold(syncs);
    let first = host.write_sectors(disk, 0, BLOCK_SECTORS);
    let more: vec::Vec<_> = (1..9)
        .map(|block| host.write_sectors(disk, block * 2 * BLOCK_SECTORS, BLOCK_SECTORS))
        .collect();
    host.count(syncs);
    host.hold(none);
    assert_eq!(host.answer(first), Some(Ok(())));
    assert!(more.iter().all(|it| host.answer(*it) == Some(Ok(()))));
    assert_eq!(host.count(syncs), 1, "one for all that have waited");
}

/// Fails when: the first of guests that were answered together goes alone, and the others wait for
/// its sync; or when it waits for one that does not come.
#[test]
fn guests_that_were_answered_together_share_the_next_plan_too() {
    let (mut host, disk) = with_direct(Policy::WriteThrough);
    let write = |host: &mut Host, block: u64| {
        host.write_sectors(disk, block * BLOCK_SECTORS, BLOCK_SECTORS)
    };
    for (from, comes) in [(0, true), (20, false)] {
        host.hold(syncs);
        let first = write(&mut host, from);
        let more: vec::Vec<_> = (1..4).map(|it| write(&mut host, from + it * 2)).collect();
        host.pass(8);
        host.count(syncs);
        host.hold(none);
        assert_eq!(host.answer(first), Some(Ok(())));
        assert!(more.iter().all(|it| host.answer(*it).is_none()));
        match comes {
            true => {
                let last = write(&mut host, from + 9);
                assert_eq!(host.answer(last), Some(Ok(())));
            }
            false => host.pass(5),
        }
        assert!(more.iter().all(|it| host.answer(*it) == Some(Ok(()))));
        assert_eq!(host.count(syncs), 1, "{comes}");
        host.pass(1_000);
    }
    // One guest alone is not kept waiting.
    for block in 40..44 {
        host.hold(syncs);
        let write = write(&mut host, block);
        host.pass(8);
        host.hold(none);
        assert_eq!(host.answer(write), Some(Ok(())));
    }
}

/// Fails when: a plan that fails leaves its writes without an answer, or what it has placed is
/// taken for what the disk has.
#[test]
fn a_direct_write_that_fails_says_so_and_the_next_one_goes_on() {
    let (mut host, disk) = with_direct(Policy::WriteThrough);
    type Fails = fn(&Io) -> Option<IoError>;
    let no_space: Fails = |io| places(io).then_some(IoError::NoSpace);
    let no_table: Fails = |io| refers(io).then_some(IoError::Failed);
    let no_sync: Fails = |io| syncs(io).then_some(IoError::Failed);
    for (fails, refusal, unsynced) in [
        (no_space, Refusal::OriginFull, false),
        (no_table, Refusal::Io, false),
        (no_sync, Refusal::Io, true),
    ] {
        host.fail(fails);
        let write = host.write_sectors(disk, 8 * BLOCK_SECTORS, BLOCK_SECTORS);
        host.pass(1_000);
        assert_eq!(host.answer(write), Some(Err(refusal)));
        host.fail(fine);
        let flush = host.flush(disk);
        let told = host.answer(flush).expect("an answer");
        assert_eq!(
            told.is_err(),
            unsynced,
            "who flushes hears of a failed sync"
        );
        let found = host.read(disk, 8, 1).expect("it is read");
        assert_eq!(found, view(&host, disk, 8), "what the file has");
    }
    host.fill(disk, 8, 1);
    let found = host.read(disk, 8, 1).expect("it is read");
    assert_eq!(found, view(&host, disk, 8));
    assert_ne!(found, vec![0; 4096]);
}

/// One of two tables of a plan is written and the other fails, and a guest reads. Whether it finds
/// what is in the file when that was read anew.
pub(super) fn read_behind_a_failed_plan() -> bool {
    let (mut host, disk) = with_direct(Policy::WriteThrough);
    host.hold(syncs);
    let write = |host: &mut Host, block: u64| {
        host.write_sectors(disk, block * BLOCK_SECTORS, BLOCK_SECTORS)
    };
    // Their entries are in two sectors of the table, so two writes refer to them.
    let first = write(&mut host, 0);
    let both = [4, 1104].map(|block| write(&mut host, block));
    host.fail(|io| (refers(io) && io.offset == TABLE_AT + 1024).then_some(IoError::Failed));
    host.hold(none);
    assert_eq!(host.answer(first), Some(Ok(())));
    assert_eq!(both.map(|it| host.answer(it)), [Some(Err(Refusal::Io)); 2]);
    host.fail(fine);
    let brought = view(&host, disk, 4);
    assert_ne!(brought, vec![0; 4096], "one of them is in the file");
    let found = host.read(disk, 4, 1).expect("it is read");
    assert!(found == brought || found == vec![0; 4096]);
    host.fill(disk, 8, 1);
    host.read(disk, 4, 1) == Some(brought)
}

const BELOW_AT: u64 = DATA_AT + 64 * 4096;

fn copies(io: &Io) -> bool {
    is_direct(io) && io.op == Op::Read && (BELOW_AT..BELOW_AT + 4096).contains(&io.offset)
}

/// Fails when: a write fails because what it writes over cannot be read.
#[test]
fn a_write_over_what_cannot_be_read_copies_what_is_beside_it() {
    let mut host = Host::new();
    let disk = attach(&mut host, Backwards::over(BELOW_AT));
    let order = host.switch(disk, Policy::WriteThrough);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    let file = host.disks.0.get_mut(&Device::Origin(disk)).expect("a file");
    file.resize((BELOW_AT + 4096) as usize, 0x77);
    host.count(copies);
    host.fail(|io| {
        let bytes: u64 = io.slices.iter().map(|it| it.bytes).sum();
        (copies(io) && bytes == 4096).then_some(IoError::Failed)
    });
    // In the middle of a block.
    let write = host.write_sectors(disk, 3 * BLOCK_SECTORS + 2, 2);
    assert_eq!(host.answer(write), Some(Ok(())));
    assert_eq!(host.count(copies), 3, "all at once, and then two parts");
    let found = view(&host, disk, 3);
    assert_eq!(found[..1024], [0x77; 1024]);
    assert_eq!(found[2048..], [0x77; 2048]);
    // One whose parts cannot be read fails.
    host.fail(|io| copies(io).then_some(IoError::Failed));
    let write = host.write_sectors(disk, 5 * BLOCK_SECTORS + 2, 2);
    assert_eq!(host.answer(write), Some(Err(Refusal::Io)));
    host.fail(fine);
    let write = host.write_sectors(disk, 5 * BLOCK_SECTORS + 2, 2);
    assert_eq!(host.answer(write), Some(Ok(())));
}

fn fails_syncs(io: &Io) -> Option<IoError> {
    syncs(io).then_some(IoError::Failed)
}

fn reads_header(io: &Io) -> bool {
    is_direct(io) && io.op == Op::Read && io.offset == 0
}

/// Fails when: a plan behind a failed sync reads the header of a file that has taken the place of
/// its image.
#[test]
fn an_image_that_was_replaced_is_not_read_anew() {
    let mut host = Host::new();
    let image = Image {
        device: 5,
        inode: 12,
        size_bytes: 64 * super::MIB,
        mtime_ns: 1,
        lasts: true,
        below: 7,
        ..Image::default()
    };
    assert!(attach_known(&mut host, image));
    let disk = host.core.place("disk");
    let order = host.switch(disk, Policy::WriteThrough);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    host.fail(fails_syncs);
    let failed = host.write_sectors(disk, 8, 8);
    host.pass(100);
    assert_eq!(host.answer(failed), Some(Err(Refusal::Io)));
    host.fail(fine);
    let other = Image { inode: 13, ..image };
    (host.stat.image, host.stat.named) = (Some(other), Named::To(other));
    host.count(reads_header);
    let write = host.write_sectors(disk, 16, 8);
    host.pass(1_000);
    assert_eq!((host.answer(write), host.count(reads_header)), (None, 0));
    assert_eq!(host.state(disk).0, State::Held);
    (host.stat.image, host.stat.named) = (Some(image), Named::To(image));
    host.order(Command::Look { volume: disk });
    host.pass(1_000);
    assert_eq!(host.answer(write), Some(Ok(())));
}

/// Fails when: a switch lets the log take writes while a plan is under way.
#[test]
fn a_volume_becomes_write_back_when_its_direct_writes_are_at_their_end() {
    let (mut host, disk) = with_direct(Policy::Uncached);
    host.hold(refers);
    let write = host.write_sectors(disk, 0, BLOCK_SECTORS);
    let order = host.switch(disk, Policy::WriteBack);
    host.pass(1_000);
    assert_eq!((host.answer(write), host.answer(order)), (None, None));
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(write), Some(Ok(())));
    assert_eq!(host.answer(order), Some(Ok(())));
    host.fill(disk, 20, 2);
    let want = host.read(disk, 20, 2);
    let order = host.destage(disk);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    let found = [view(&host, disk, 20), view(&host, disk, 21)].concat();
    assert_eq!(Some(found), want);
}
