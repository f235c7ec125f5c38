//! Rests of images that other hosts know of, and flushes that an administrator wants at the image.

use super::{Host, none, spec, writes_origin};
use crate::event::{Command, Refusal};
use crate::types::{Policy, VolumeId};

fn keep(host: &mut Host, volume: VolumeId, begins: bool) -> Option<Result<(), Refusal>> {
    let kept = host.order(Command::KeepRest { volume, begins });
    host.answer(kept)
}

/// Writes until a write is not answered any more.
fn fill_the_log(host: &mut Host, disk: VolumeId) {
    for block in 0..2_000 {
        if !host.write(disk, block % 700, 1) {
            return;
        }
        host.pass(10);
    }
    panic!("guests go on for ever");
}

/// Fails when: an image is written that other hosts believe to rest, or guests do not go on when
/// that has ended.
#[test]
fn a_rest_that_is_kept_outlasts_the_room_of_the_log() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 2);
    let not = Some(Err(Refusal::NotQuiesced));
    assert_eq!(keep(&mut host, disk, false), not);
    let quiesce = host.order(Command::Quiesce { volume: disk });
    host.pass(1_000);
    assert_eq!(host.answer(quiesce), Some(Ok(())));
    assert_eq!(keep(&mut host, disk, false), Some(Ok(())));
    let again = host.order(Command::Quiesce { volume: disk });
    assert_eq!(host.answer(again), Some(Ok(())), "it rests");
    host.count(writes_origin);
    fill_the_log(&mut host, disk);
    host.pass(600_000);
    assert_eq!(host.count(writes_origin), 0);
    let shown = host.show(disk);
    assert_eq!((shown.rests, shown.counters.rests_ended), (true, 0));
    assert!(host.core.copy(disk).is_some_and(|it| it.rest_is_short));
    let end = host.order(Command::BreakRest { volume: disk });
    assert_eq!(host.answer(end), Some(Ok(())));
    host.pass(2_000);
    let shown = host.show(disk);
    assert_eq!((shown.rests, shown.counters.rests_ended), (false, 1));
    assert!(host.count(writes_origin) > 0 && host.write(disk, 5, 1));
    let resume = host.order(Command::Resume { volume: disk });
    assert_eq!(host.answer(resume), not);
    let end = host.order(Command::BreakRest { volume: disk });
    assert_eq!(host.answer(end), not);
}

/// Fails when: something that the log has gets to the image of a volume that begins at rest.
#[test]
fn a_volume_that_begins_at_rest_brings_nothing_to_its_image() {
    let (mut host, disk) = Host::write_back();
    host.hold(writes_origin);
    host.fill(disk, 0, 2);
    let mut host = host.killed();
    host.hold(none);
    host.count(writes_origin);
    let disk_again = host.attach_again(spec(Policy::WriteBack, "disk"));
    assert_eq!(disk, disk_again);
    assert_eq!(keep(&mut host, disk, true), Some(Ok(())));
    host.fill(disk, 4, 2);
    // It wants all of it at the image at once.
    host.order(Command::AnswerAtOrigin {
        volume: disk,
        on: true,
    });
    for _ in 0..30 {
        host.pass(30_000);
    }
    assert!(host.show(disk).rests && host.show(disk).dirty_bytes == 4 * 4096);
    assert_eq!(host.count(writes_origin), 0);
    let resume = host.order(Command::Resume { volume: disk });
    assert_eq!(host.answer(resume), Some(Ok(())));
    host.destage(disk);
    host.pass(2_000);
    assert_eq!(host.show(disk).dirty_bytes, 0);
}

/// Fails when: a flush is answered before the image has what it covers, or the host can end what
/// an administrator has ordered.
#[test]
fn flushes_are_answered_by_the_image_by_order() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 2);
    let on = host.order(Command::FlushThrough {
        volume: disk,
        on: true,
    });
    assert_eq!(host.answer(on), Some(Ok(())));
    let off = Command::AnswerAtOrigin {
        volume: disk,
        on: false,
    };
    host.order(off);
    host.pass(2_000);
    assert!(host.show(disk).flushes_through && host.show(disk).dirty_bytes == 0);
    host.hold(writes_origin);
    host.write(disk, 4, 1);
    let flush = host.flush(disk);
    host.pass(2_000);
    assert_eq!(host.answer(flush), None);
    host.hold(none);
    host.pass(2_000);
    assert_eq!(host.answer(flush), Some(Ok(())));
    assert_eq!(host.show(disk).dirty_bytes, 0);
    host.order(Command::FlushThrough {
        volume: disk,
        on: false,
    });
    host.hold(writes_origin);
    host.write(disk, 5, 1);
    let flush = host.flush(disk);
    host.pass(100);
    assert_eq!(host.answer(flush), Some(Ok(())), "by the log again");
}
