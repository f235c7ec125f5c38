//! Destages that meet what they cannot read, and commits that cannot be brought to their end.

use super::{GEOMETRY, Host, fine, memory, none, spec, writes_journal, writes_origin};
use crate::engine::{OpenError, Settled};
use crate::event::{Command, Device, Io, IoError, Op, Purpose, Refusal};
use crate::format::footer::Footer;
use crate::format::ledger::Progress;
use crate::format::record::parse_sealed;
use crate::snapshot::{State, VolumeSnapshot};
use crate::types::{Policy, RequestId, Uuid, VolumeId};
use alloc::vec::Vec;

const DAMAGED: Option<&str> = Some("dirty data cannot be read from the cache device any more");

/// Where the records of the log have their heads on the device, newest first.
fn heads(host: &Host) -> Vec<usize> {
    let cache = &host.disks.0[&Device::Cache];
    let blocks = cache.chunks_exact(4096).enumerate();
    let sealed = |(at, block)| Some((parse_sealed(block).ok()?.identity.stream_seq, at * 4096));
    let mut heads: Vec<(u64, usize)> = blocks.filter_map(sealed).collect();
    heads.sort_unstable();
    heads.iter().rev().map(|(_, at)| *at).collect()
}

/// Where the footers of the log have their headers on the device, newest first.
fn footers(host: &Host) -> Vec<usize> {
    let cache = &host.disks.0[&Device::Cache];
    let blocks = cache.chunks_exact(4096).enumerate();
    let sealed = |(at, block): (usize, &[u8])| {
        let header = Footer::parse_header(block, GEOMETRY, Uuid([9; 16])).ok()?;
        Some((header.0.segment_seq, at * 4096))
    };
    let mut found: Vec<(u64, usize)> = blocks.filter_map(sealed).collect();
    found.sort_unstable();
    found.iter().rev().map(|(_, at)| *at).collect()
}

/// Exchanges two blocks of the cache and recovers without the stage: all is there, or told of.
fn exchange(mut host: Host, (one, other): (usize, usize), blocks: u64) {
    let cache = host.disks.0.get_mut(&Device::Cache).expect("it is there");
    let (first, second) = cache.split_at_mut(one.max(other));
    first[one.min(other)..][..4096].swap_with_slice(&mut second[..4096]);
    let mut lives = 0..;
    let mut recover = || {
        let mut memory = memory(&host.core.config);
        let mut config = host.core.config.clone();
        config.boot.0[0] += 1 + lives.next().expect("there is no last");
        let recovered = crate::recover::recover(config, &mut host.disks, &mut memory);
        recovered.expect("the rest is whole")
    };
    let (core, report) = recover();
    let volumes = core.snapshot(host.now).volumes;
    if !report.damage.is_empty() {
        // The next life finds what this one has accepted, and no damage in it.
        let (next, _) = recover();
        for volumes in [&volumes, &next.snapshot(host.now).volumes] {
            let held = |it: &VolumeSnapshot| it.state == State::Held;
            assert!(volumes.iter().all(held), "{blocks}, {one}, {other}");
        }
    }
    let kept = volumes.iter().map(|it| it.dirty_bytes).sum::<u64>();
    let told = !report.damage.is_empty();
    assert!(
        told || kept == blocks * 4096,
        "{blocks}, {one}, {other}: {kept} bytes"
    );
}

/// Whichever segments they lie in. Fails when: what a record says of syncs counts only where the
/// record belongs, or the search leaves out what lies behind a head that is before the wrong bytes.
#[test]
fn two_records_that_a_device_has_exchanged_are_told_of_and_not_taken_for_a_torn_tail() {
    let pairs = (0..5).flat_map(|one| (one + 1..9).map(move |other| (one, other)));
    for (blocks, pair) in (1..24).flat_map(|it| pairs.clone().map(move |pair| (it, pair))) {
        let (mut host, disk) = Host::write_back();
        host.fill(disk, 0, blocks);
        host.flush(disk);
        host.fill(disk, 100, 2);
        host.flush(disk);
        // What is durable is announced.
        host.pass(1_000);
        let heads = heads(&host);
        let (Some(&one), Some(&other)) = (heads.get(pair.0), heads.get(pair.1)) else {
            continue;
        };
        exchange(host, (one, other), blocks + 2);
    }
}

/// Fails when: the header of a footer before the body of another one says whose life a segment is.
#[test]
fn two_footers_whose_headers_a_device_has_exchanged_take_no_segment_away() {
    let mut exchanged = 0;
    for blocks in (20..100).step_by(4) {
        for pair in [(0, 1), (0, 2), (1, 2), (1, 3)] {
            let (mut host, disk) = Host::write_back();
            host.fill(disk, 0, blocks);
            host.flush(disk);
            host.pass(1_000);
            // The checkpoint of a recovery counts on them.
            let host = host.without_power();
            let footers = footers(&host);
            let (Some(&one), Some(&other)) = (footers.get(pair.0), footers.get(pair.1)) else {
                continue;
            };
            exchanged += 1;
            exchange(host, (one, other), blocks);
        }
    }
    assert!(exchanged > 10, "{exchanged} times");
}

fn reads_log(io: &Io) -> bool {
    io.purpose == Purpose::DestageRead
}

fn is_bad(io: &Io) -> Option<IoError> {
    reads_log(io).then_some(IoError::Failed)
}

/// A volume of whose dirty data the first seven blocks are on the device only.
fn spilled() -> (Host, VolumeId) {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 7);
    host.flush(disk);
    // As large as the stage, and gone from it by the end.
    let other = host.attach(spec(Policy::WriteBack, "other"));
    host.fill(other, 0, 90);
    host.flush(other);
    (host, disk)
}

#[test]
fn what_cannot_be_read_is_read_again_after_a_minute() {
    let (mut host, disk) = spilled();
    host.asked.clear();
    host.fail(is_bad);
    let order = host.destage(disk);
    assert!(host.count(reads_log) > 0, "it is not in the stage");
    assert_eq!(host.state(disk), (State::Damaged, DAMAGED));
    host.pass(59_000);
    assert_eq!(host.count(reads_log), 0);
    host.fail(fine);
    host.pass(3_000);
    assert!(host.count(reads_log) > 0);
    assert_eq!(host.answer(order), Some(Err(Refusal::Damaged)), "then");
    assert_eq!(host.state(disk), (State::Clean, None));
}

#[test]
fn an_order_to_destage_what_cannot_be_read_ends_and_names_it() {
    let (mut host, disk) = spilled();
    host.fail(is_bad);
    let order = host.destage(disk);
    assert_eq!(host.answer(order), Some(Err(Refusal::Damaged)));
    let all = crate::types::Span::new(0, 7 * crate::types::BLOCK_SECTORS);
    assert_eq!(host.show(disk).damaged, [all]);
    // The next order reads it at once, and not after a minute only.
    host.asked.clear();
    let order = host.destage(disk);
    assert_eq!(host.answer(order), Some(Err(Refusal::Damaged)));
    assert!(host.count(reads_log) > 0);
    host.fail(fine);
    let order = host.destage(disk);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.state(disk), (State::Clean, None));
    assert_eq!(host.show(disk).damaged, []);
}

#[test]
fn an_order_to_a_group_ends_when_one_of_it_is_damaged() {
    let mut host = Host::new();
    let disks = host.attach_pair();
    host.fill(disks[1], 0, 7);
    host.flush(disks[1]);
    let other = host.attach(spec(Policy::WriteBack, "other"));
    host.fill(other, 0, 90);
    host.flush(other);
    host.fail(is_bad);
    let order = host.destage(disks[0]);
    assert_eq!(host.answer(order), Some(Err(Refusal::Damaged)));
    host.fail(fine);
    let order = host.destage(disks[0]);
    assert_eq!(host.answer(order), Some(Ok(())));
}

#[test]
fn newer_writes_that_cover_what_cannot_be_read_go_with_it() {
    let (mut host, disk) = spilled();
    host.fail(is_bad);
    let order = host.destage(disk);
    host.pass(1_000);
    host.fill(disk, 1, 6);
    host.pass(3_000);
    assert_eq!(
        host.state(disk),
        (State::Damaged, DAMAGED),
        "one is missing"
    );
    host.fill(disk, 0, 1);
    host.pass(3_000);
    assert_eq!(host.answer(order), Some(Err(Refusal::Damaged)), "then");
    assert_eq!(host.state(disk), (State::Clean, None));
}

fn is_bad_with_its_journal(io: &Io) -> Option<IoError> {
    let reads_journal = matches!(io.device, Device::Journal(_)) && io.op == Op::Read;
    is_bad(io).or(reads_journal.then_some(IoError::Failed))
}

/// Fails when: a destage stops for what its journal has.
#[test]
fn what_the_log_does_not_give_while_its_journal_is_applied_is_read_there() {
    let (mut host, disk) = spilled();
    host.hold(|io| io.purpose == Purpose::Ledger && io.op == Op::Write);
    let order = host.destage(disk);
    host.fail(is_bad);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.state(disk), (State::Clean, None));
    assert!(host.show(disk).counters.recalled_bytes > 0);
    host.fail(fine);
    assert_eq!(host.read(disk, 0, 7).expect("it is there").len(), 7 * 4096);
}

#[test]
fn a_journal_that_the_ledger_points_to_is_not_written_whatever_is_damaged() {
    let (mut host, disk) = spilled();
    host.hold(|io| io.purpose == Purpose::Ledger && io.op == Op::Write);
    let order = host.destage(disk);
    let newer = host.destage(disk);
    host.fail(is_bad_with_its_journal);
    host.hold(none);
    host.pass(3_000);
    let progress = host.ledger(disk).progress;
    assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}");
    assert_eq!(host.state(disk), (State::Damaged, DAMAGED));
    host.fill(disk, 0, 7);
    host.asked.clear();
    host.pass(30_000);
    assert_eq!(host.count(writes_journal), 0);
    assert_eq!(host.ledger(disk).progress, progress);
    host.fail(fine);
    host.pass(40_000);
    assert_eq!(host.answer(order), Some(Err(Refusal::Damaged)));
    assert_eq!(host.answer(newer), Some(Err(Refusal::Damaged)));
    assert_eq!(host.ledger(disk).progress, Progress::Idle);
}

fn overlay() -> (Host, VolumeId) {
    let mut overlay = spec(Policy::Ephemeral, "disk");
    overlay.commit = true;
    let (mut host, disk) = Host::of(overlay);
    host.fill(disk, 0, 3);
    (host, disk)
}

fn commit(host: &mut Host, volume: VolumeId) -> RequestId {
    host.order(Command::Commit { volume })
}

#[test]
fn a_commit_whose_journal_cannot_be_written_is_given_up() {
    let (mut host, disk) = overlay();
    host.fail(|io| writes_journal(io).then_some(IoError::NoSpace));
    let order = commit(&mut host, disk);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Err(Refusal::OriginFull)));
    assert_eq!(host.state(disk), (State::Clean, None));
    assert_eq!(host.show(disk).dirty_bytes, 3 * 4096, "the overlay stays");
    host.fail(fine);
    let order = commit(&mut host, disk);
    assert_eq!(host.answer(order), Some(Ok(())));
}

#[test]
fn a_commit_that_is_decided_goes_to_its_end() {
    let (mut host, disk) = overlay();
    host.fail(|io| writes_origin(io).then_some(IoError::Failed));
    let order = commit(&mut host, disk);
    host.pass(5_000);
    let progress = host.ledger(disk).progress;
    assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}");
    assert_eq!((host.answer(order), host.show(disk).ready), (None, false));
    host.fail(fine);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.show(disk).dirty_bytes, 0);
}

/// That the device is good again says nothing of what it did not give while it was.
#[test]
fn damage_that_a_destage_has_met_is_not_forgiven_before_it_is_read() {
    let (mut host, disk) = spilled();
    host.fail(is_bad);
    host.destage(disk);
    assert_eq!(host.state(disk), (State::Damaged, DAMAGED));
    host.fail(|io| (reads_log(io) || io.purpose == Purpose::Checkpoint).then_some(IoError::Failed));
    host.core.checkpoint.wanted = true;
    host.send(crate::event::Event::Tick);
    host.fail(is_bad);
    host.pass(1_000);
    let shown = host.core.snapshot(host.now);
    assert_eq!(shown.cache_state, crate::snapshot::CacheState::Good);
    assert!(shown.cache_errors > 0);
    assert_eq!(host.state(disk), (State::Damaged, DAMAGED));
}

/// Its destage has written every other range of the origin when the daemon is killed, and by then
/// a byte of its journal is another one.
fn killed_beside_a_damaged_journal() -> (Host, VolumeId) {
    let (mut host, disk) = Host::write_back();
    for block in 0..10 {
        host.fill(disk, 2 * block, 1);
    }
    host.fail(|io| {
        let fails = writes_origin(io) && io.offset.is_multiple_of(4 * 4096);
        fails.then_some(IoError::Failed)
    });
    host.destage(disk);
    let progress = host.ledger(disk).progress;
    assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}");
    let journal = host.disks.0.get_mut(&Device::Journal(disk));
    *journal
        .expect("it is there")
        .last_mut()
        .expect("it has bytes") ^= 1;
    (host, disk)
}

#[test]
fn a_journal_that_is_damaged_is_written_anew_from_the_log() {
    for powered in [true, false] {
        let (host, disk) = killed_beside_a_damaged_journal();
        let upto = host.core.volumes.known(VolumeId(0)).acked();
        let mut host = match powered {
            true => host.killed(),
            false => host.without_power(),
        };
        assert_eq!(host.attach_again(spec(Policy::WriteBack, "disk")), disk);
        assert_eq!(host.ledger(disk).progress, Progress::Cut(upto), "claimed");
        let written = host.memory.buffer[..4096].to_vec();
        for block in 0..10 {
            assert_eq!(host.read(disk, 2 * block, 1), Some(written.clone()));
        }
        host.asked.clear();
        let order = host.destage(disk);
        assert_eq!(host.answer(order), Some(Ok(())));
        assert!(host.count(writes_journal) > 0, "all of it is one cut");
        assert_eq!(host.state(disk), (State::Clean, None));
        let image = &host.disks.0[&Device::Origin(disk)];
        for block in 0..10 {
            assert_eq!(image[2 * block * 4096..][..4096], written);
        }
    }
}

#[test]
fn a_journal_that_is_damaged_stops_its_volume_where_the_log_has_not_all_of_it() {
    let (host, disk) = killed_beside_a_damaged_journal();
    let mut other = Host::new();
    other.disks.0.extend(
        host.disks
            .0
            .into_iter()
            .filter(|(device, _)| *device != Device::Cache),
    );
    let settled = crate::settle::settle(&mut other.disks, disk).expect("read");
    let refused = other
        .core
        .attach(disk, spec(Policy::WriteBack, "disk"), settled);
    let refused = refused.expect_err("its log is empty");
    assert!(matches!(refused, OpenError::Damaged(_)), "{refused}");
}

fn detach(host: &mut Host, volume: VolumeId) -> RequestId {
    let discard_dirty = true;
    host.order(Command::Detach {
        volume,
        discard_dirty,
    })
}

/// Fails when: a volume is forgotten while its commit still has a checkpoint or a journal to come.
#[test]
fn a_volume_that_is_being_committed_goes_when_that_has_ended() {
    for holds in [
        (|io| io.purpose == Purpose::Checkpoint) as fn(&Io) -> bool,
        writes_origin,
        |io| io.op == Op::Remove,
    ] {
        let (mut host, disk) = overlay();
        host.hold(holds);
        let order = commit(&mut host, disk);
        let gone = detach(&mut host, disk);
        host.pass(1_000);
        assert_eq!((host.answer(order), host.answer(gone)), (None, None));
        host.hold(none);
        host.pass(1_000);
        let ends = (host.answer(order), host.answer(gone));
        assert_eq!(ends, (Some(Ok(())), Some(Ok(()))));
    }
}

#[test]
fn a_commit_that_has_not_touched_its_image_ends_with_its_volume() {
    let (mut host, disk) = overlay();
    host.fail(|io| writes_journal(io).then_some(IoError::Failed));
    let order = commit(&mut host, disk);
    let gone = detach(&mut host, disk);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Err(Refusal::Gone)));
    assert_eq!(host.answer(gone), Some(Ok(())));
    // Nor one whose volume no checkpoint names yet.
    let mut host = Host::new();
    host.hold(|io| io.purpose == Purpose::Checkpoint);
    let mut spec = spec(Policy::Ephemeral, "disk");
    spec.commit = true;
    let disk = host.attach(spec);
    let (order, flush) = (commit(&mut host, disk), host.flush(disk));
    let gone = detach(&mut host, disk);
    assert_eq!(host.answer(order), Some(Err(Refusal::Gone)));
    let late = host.flush(disk);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(gone), Some(Ok(())));
    let flushes = (host.answer(flush), host.answer(late));
    assert_eq!(
        flushes,
        (Some(Err(Refusal::Gone)), Some(Err(Refusal::Gone)))
    );
}

/// Fails when: an overlay that is to be committed takes the name of who owned its image before.
#[test]
fn an_overlay_stays_when_its_commit_to_an_image_that_another_volume_had_is_killed() {
    let mut host = Host::new();
    let owner = host.attach(spec(Policy::WriteBack, "owner"));
    let mut ledger = host.ledger(owner);
    ledger.dirty = false;
    let disk = host.attach(spec(Policy::Ephemeral, "disk"));
    host.fill(disk, 0, 3);
    let suspended = host.order(Command::Suspend { volume: disk });
    assert_eq!(host.answer(suspended), Some(Ok(())));
    let settled = Settled {
        ledger: Some(ledger),
        ..Settled::default()
    };
    let mut to_commit = spec(Policy::Ephemeral, "disk");
    to_commit.commit = true;
    host.attach_as(disk, to_commit, settled);
    host.hold(writes_journal);
    commit(&mut host, disk);
    host.pass(1_000);
    let mut host = host.killed();
    let disk = host.attach(spec(Policy::Ephemeral, "disk"));
    assert_eq!(host.show(disk).dirty_bytes, 3 * 4096, "the overlay stays");
}
