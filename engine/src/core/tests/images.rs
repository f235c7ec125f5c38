//! Volumes whose image does not fit, in the middle of what they were doing with it.

use super::super::image::of_ledger;
use super::{Host, STAT, fine, none, spec, writes_origin};
use crate::engine::Settled;
use crate::event::{Command, Device, Event, Io, IoError, Op, Purpose, Refusal, Stat};
use crate::format::ledger::{Ledger, Progress};
use crate::image::{Finding, Image, Mark, Marked, Named};
use crate::types::{Generation, Policy, Serial, Uuid, VolumeId};

pub(super) const IMAGE: Image = Image {
    device: 1,
    inode: 12,
    birth_ns: 0,
    size_bytes: STAT.size_bytes,
    mtime_ns: 1,
    lasts: true,
    below: 0,
    marked: Marked::Unknown,
};

fn seen(image: Image) -> Stat {
    Stat {
        image: Some(image),
        named: Named::To(image),
        ..STAT
    }
}

fn cut_short() -> Stat {
    seen(Image {
        size_bytes: 4096,
        ..IMAGE
    })
}

/// A write-back volume that knows its image.
fn with_image() -> (Host, VolumeId) {
    let mut host = Host::new();
    host.stat = seen(IMAGE);
    let spec = spec(Policy::WriteBack, "disk");
    let id = host.core.place(&spec.name);
    let settled = Settled {
        image: Some(IMAGE),
        ..Settled::default()
    };
    host.attach_as(id, spec, settled);
    (host, id)
}

fn look(host: &mut Host, volume: VolumeId) -> Option<Result<(), Refusal>> {
    let look = host.order(Command::Look { volume });
    host.answer(look)
}

fn reads_origin(io: &Io) -> bool {
    io.op == Op::Read && matches!(io.device, Device::Origin(_))
}

fn fails_reads(io: &Io) -> Option<IoError> {
    reads_origin(io).then_some(IoError::Failed)
}

fn fails_checkpoints(io: &Io) -> Option<IoError> {
    (io.purpose == Purpose::Checkpoint).then_some(IoError::Failed)
}

fn looks(io: &Io) -> bool {
    io.op == Op::Stat && matches!(io.device, Device::Origin(_))
}

#[test]
fn a_read_that_its_origin_did_not_give_waits_for_an_image_that_fits() {
    let (mut host, disk) = with_image();
    host.fail(fails_reads);
    let read = host.ask(disk, 0, 1);
    host.stat = cut_short();
    assert_eq!(look(&mut host, disk), Some(Err(Refusal::Held)));
    host.fail(fine);
    host.count(reads_origin);
    host.pass(5_000);
    assert_eq!(host.count(reads_origin), 0, "nothing is asked of it");
    host.stat = seen(IMAGE);
    assert_eq!(look(&mut host, disk), Some(Ok(())));
    host.pass(1_000);
    assert_eq!(host.answer(read), Some(Ok(())));
}

#[test]
fn who_lets_go_of_a_volume_does_not_wait_for_its_image_to_fit() {
    let (mut host, disk) = with_image();
    host.fail(fails_reads);
    let read = host.ask(disk, 0, 1);
    host.stat = cut_short();
    assert_eq!(look(&mut host, disk), Some(Err(Refusal::Held)));
    let detach = host.order(Command::Detach {
        volume: disk,
        discard_dirty: true,
    });
    host.pass(1_000);
    assert_eq!(host.answer(read), Some(Err(Refusal::Io)));
    assert_eq!(host.answer(detach), Some(Ok(())));
}

/// What a look of a destage has found, and what the host has asked for beside it.
#[test]
fn a_destage_whose_own_look_lets_its_volume_go_on_takes_one_step() {
    let (mut host, disk) = with_image();
    assert!(host.write(disk, 0, 1));
    host.hold(looks);
    let destage = host.destage(disk);
    host.order(Command::Look { volume: disk });
    let mut found = [Some(seen(IMAGE)), Some(cut_short())];
    assert_eq!(host.flights.len(), 2, "the destage has asked first");
    for at in [1, 0] {
        let (io, stat) = (host.flights.remove(at).id, found[at].take());
        host.send(Event::Done {
            io,
            result: Ok(()),
            stat,
        });
    }
    host.hold(none);
    host.pass(1_000);
    // Its order was refused meanwhile.
    assert_eq!(host.answer(destage), Some(Err(Refusal::Held)));
    assert_eq!(host.show(disk).dirty_bytes, 0, "it has gone on by itself");
}

/// The log forgets with its next checkpoint only, and after a dead device past it, not at all.
#[test]
fn what_is_at_its_image_does_not_stop_a_volume_whose_image_was_written_since() {
    let (mut host, disk) = with_image();
    assert!(host.write(disk, 0, 1));
    host.fail(fails_checkpoints);
    let destage = host.destage(disk);
    host.pass(1_000);
    assert_eq!(host.answer(destage), Some(Ok(())));
    let mut host = host.killed();
    let left = host.show(disk).dirty_bytes;
    assert_eq!(left, 4096, "the log knows nothing of it");
    let settled = crate::settle::settle(&mut host.disks, disk).expect("the ledger is whole");
    let written = Image {
        mtime_ns: 2,
        ..IMAGE
    };
    let settled = Settled {
        image: Some(written),
        ..settled
    };
    host.attach_as(disk, spec(Policy::WriteBack, "disk"), settled);
    assert_eq!(host.show(disk).dirty_bytes, 0);
}

fn syncs_ledger(io: &Io) -> bool {
    io.op == Op::Sync && matches!(io.device, Device::Ledger(_))
}

/// Else every start refuses the volume again, and a cache that turns up lays its data over what
/// was written since.
#[test]
fn a_loss_that_was_accepted_for_a_direct_volume_is_in_its_ledger_before_it_is_served() {
    let (mut host, disk) = Host::write_back();
    assert!(host.write(disk, 0, 1));
    let ledger = host.disks.0.remove(&Device::Ledger(disk));
    let mut host = Host::new();
    let direct = spec(Policy::Uncached, "disk");
    let disk = host.core.place(&direct.name);
    host.disks
        .0
        .insert(Device::Ledger(disk), ledger.expect("it was claimed"));
    let settle = |host: &mut Host| crate::settle::settle(&mut host.disks, disk);
    let mut settled = settle(&mut host).expect("the ledger is whole");
    assert!(settled.ledger.as_ref().is_some_and(|ledger| ledger.dirty));
    settled.accept_loss();
    host.hold(syncs_ledger);
    host.attach_as(disk, direct, settled);
    let read = host.ask(disk, 0, 1);
    host.pass(1_000);
    assert_eq!(host.answer(read), None, "the ledger does not say so yet");
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(read), Some(Ok(())));
    let settled = settle(&mut host).expect("the ledger is whole");
    assert!(settled.ledger.is_some_and(|ledger| !ledger.dirty));
}

/// Fails when: an image that has lost a part of its last sector is taken for one that never had it.
#[test]
fn a_part_of_a_sector_is_missed_from_an_image_that_had_it() {
    let odd = Image {
        size_bytes: IMAGE.size_bytes - 197,
        ..IMAGE
    };
    let (mut host, disk) = with_image();
    host.stat = seen(odd);
    assert_eq!(look(&mut host, disk), Some(Err(Refusal::Held)));
    let mut host = Host::new();
    host.stat = seen(odd);
    let spec = spec(Policy::WriteBack, "disk");
    let disk = host.core.place(&spec.name);
    let settled = Settled {
        image: Some(odd),
        ..Settled::default()
    };
    host.attach_as(disk, spec, settled);
    assert_eq!(look(&mut host, disk), Some(Ok(())), "it never had it");
    // Its last sector is written.
    host.stat = seen(IMAGE);
    assert_eq!(look(&mut host, disk), Some(Ok(())));
    host.stat = seen(odd);
    assert_eq!(look(&mut host, disk), Some(Err(Refusal::Held)));
}

/// Fails when: a commit that has begun to write its image is given up with requests in flight.
#[test]
fn a_commit_whose_image_is_away_for_a_while_in_the_middle_goes_to_its_end() {
    let mut host = Host::new();
    host.stat = seen(IMAGE);
    let mut overlay = spec(Policy::Ephemeral, "disk");
    overlay.commit = true;
    let disk = host.core.place(&overlay.name);
    let settled = Settled {
        image: Some(IMAGE),
        ..Settled::default()
    };
    host.attach_as(disk, overlay, settled);
    host.fill(disk, 0, 3);
    host.hold(writes_origin);
    let order = host.order(Command::Commit { volume: disk });
    // The ledger is to be written again for the rest, and the image is looked at before.
    host.stat = cut_short();
    host.pass(400_000);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(order), None);
    host.stat = seen(IMAGE);
    assert_eq!(look(&mut host, disk), Some(Ok(())));
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.show(disk).dirty_bytes, 0);
}

/// It would look like a write of another program, and the volume be held after the next start.
#[test]
fn an_image_that_is_resized_and_comes_back_to_its_size_is_still_known() {
    let (mut host, disk) = with_image();
    assert!(host.write(disk, 0, 1));
    let order = host.destage(disk);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.ledger(disk).image.mtime_ns, 1, "the destage names it");
    for size_bytes in [IMAGE.size_bytes + 4096, IMAGE.size_bytes] {
        let volume = disk;
        let order = host.order(Command::Resize { volume, size_bytes });
        host.pass(1_000);
        assert_eq!(host.answer(order), Some(Ok(())));
    }
    let ledger = host.disks.0[&Device::Ledger(disk)].clone();
    let ledger = Ledger::parse_file(&ledger).expect("its slots are whole");
    let ledger = ledger.expect("there is one");
    let resized = Image {
        mtime_ns: IMAGE.mtime_ns + 1,
        ..IMAGE
    };
    assert_eq!(of_ledger(&ledger, &resized), Finding::Same);
}

/// Fails when: the ledger says the time that an image had before a destage, where the storage did
/// not tell what it is known by at the start and so is not asked at the end.
#[test]
fn a_destage_without_a_look_at_its_end_leaves_no_time_in_the_ledger() {
    let (mut host, disk) = Host::write_back();
    host.stat = seen(IMAGE);
    host.fill(disk, 0, 2);
    let order = host.destage(disk);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    let ledger = host.ledger(disk);
    let written = Image {
        mtime_ns: IMAGE.mtime_ns + 1,
        ..IMAGE
    };
    assert_eq!(ledger.progress, Progress::Idle);
    assert_eq!(of_ledger(&ledger, &written), Finding::Same);
}

/// Fails when: a volume that becomes write-back takes its ledger while a change of size writes it,
/// so that the one is taken for durable when the other is.
#[test]
fn a_switch_takes_the_ledger_when_a_change_of_size_has_written_it() {
    let (mut host, disk) = with_image();
    let order = host.switch(disk, Policy::WriteThrough);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    host.hold(syncs_ledger);
    let resize = host.order(Command::Resize {
        volume: disk,
        size_bytes: IMAGE.size_bytes + 4096,
    });
    host.count(syncs_ledger);
    let switch = host.switch(disk, Policy::WriteBack);
    host.pass(2_000);
    assert_eq!(host.count(syncs_ledger), 0, "one at a time");
    assert_eq!((host.answer(resize), host.answer(switch)), (None, None));
    host.hold(none);
    host.pass(2_000);
    assert_eq!(host.answer(resize), Some(Ok(())));
    assert_eq!(host.answer(switch), Some(Ok(())));
    assert!(host.ledger(disk).dirty && host.write(disk, 3, 1));
}

fn mark(serial: u64) -> Mark {
    Mark {
        volume: Uuid([3; 16]),
        generation: Generation(1),
        serial: Serial(serial),
    }
}

fn marked_by(mark: Mark) -> Image {
    Image {
        marked: Marked::By(mark),
        ..IMAGE
    }
}

/// The time of a file says nothing while a destage was under way; the mark still does.
#[test]
fn an_image_whose_mark_is_gone_or_of_another_moment_is_not_the_one_of_its_ledger() {
    let (mut host, disk) = with_image();
    assert!(host.write(disk, 0, 1));
    let mut ledger = host.ledger(disk);
    ledger.volume = mark(0).volume;
    ledger.generation = mark(0).generation;
    ledger.destaged = Serial(7);
    ledger.image = marked_by(mark(5)).kept();
    ledger.mtime_limit_ns = IMAGE.mtime_ns;
    let found = |ledger: &Ledger, image: Image| of_ledger(ledger, &image);
    let absent = Image {
        marked: Marked::Absent,
        ..IMAGE
    };
    let other = Mark {
        volume: Uuid([4; 16]),
        ..mark(5)
    };
    let under_way = [
        Progress::Prepare,
        Progress::Cut(Serial(9)),
        Progress::Apply {
            upto: Serial(9),
            journal_sequence: 1,
            journal_bytes: 4096,
        },
    ];
    for progress in [Progress::Idle].into_iter().chain(under_way) {
        ledger.progress = progress;
        assert_eq!(found(&ledger, absent), Finding::OpenedElsewhere);
        assert_eq!(found(&ledger, marked_by(other)), Finding::OpenedElsewhere);
        assert_eq!(found(&ledger, marked_by(mark(5))), Finding::Same);
        assert_eq!(found(&ledger, marked_by(mark(4))), Finding::OtherMoment);
        assert_eq!(found(&ledger, marked_by(mark(10))), Finding::OtherMoment);
        assert_eq!(found(&ledger, IMAGE), Finding::Same, "it cannot say");
        let reached = match progress {
            Progress::Idle => Finding::OtherMoment,
            _ => Finding::Same,
        };
        assert_eq!(found(&ledger, marked_by(mark(7))), reached, "{progress:?}");
    }
    // Serials begin anew behind a loss that was accepted.
    ledger.generation = Generation(2);
    let next = Mark {
        generation: Generation(2),
        ..mark(1)
    };
    assert_eq!(found(&ledger, marked_by(next)), Finding::Same);
    ledger.progress = Progress::Idle;
    assert_eq!(found(&ledger, marked_by(next)), Finding::OtherMoment);
    // One without a mark may have one by now.
    ledger.image = IMAGE.kept();
    assert_eq!(found(&ledger, marked_by(mark(5))), Finding::Same);
}
