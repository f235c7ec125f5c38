//! Overlays: which of their chunks are written, when, and when that counts.
//!
//! Always true: nothing is owed of them, so nobody asks for a sync; they are written for room.

use super::*;

fn with_slots(overlay_slots: u32, written: u32) -> Model {
    let start = Start {
        overlay_slots,
        ..used()
    };
    holding(written, 0, start)
}

fn writes(model: &Model) -> usize {
    flights(model, Purpose::Log, Op::Write)
}

fn syncs(model: &Model) -> usize {
    flights(model, Purpose::Log, Op::Sync)
}

fn offsets(model: &Model) -> Vec<u64> {
    let mine = model.flights.iter().filter(|io| io.op == Op::Write);
    mine.map(|io| io.offset).collect()
}

#[test]
fn each_overlay_is_counted_by_itself() {
    let mut model = empty();
    let (one, other) = (model.log.open_quota(), model.log.open_quota());
    assert!(one != other && one != QuotaOwner::NONE);
    let appended = put(&mut model, Overlay, 3);
    added(&mut model, one, appended);
    let appended = put(&mut model, Overlay, 2);
    added(&mut model, other, appended);
    let appended = put(&mut model, Writes, 1);
    added(&mut model, QuotaOwner::NONE, appended);
    assert_eq!(model.log.usage(one), Usage { ram: 3, ssd: 0 });
    assert_eq!(model.log.usage(other), Usage { ram: 2, ssd: 0 });
    assert_eq!(model.log.usage(QuotaOwner::NONE), Usage::default());
}

#[test]
fn an_overlay_is_written_oldest_first_when_fewer_slots_than_a_quarter_are_at_hand() {
    let mut model = with_slots(8, 0);
    for _ in 0..6 {
        put_chunk(&mut model, Overlay, true);
        model.pump();
        assert_eq!(writes(&model), 0, "a quarter is at hand");
    }
    put_chunk(&mut model, Overlay, true);
    model.pump();
    let first = model.log.device_at(LogAddr(0));
    assert_eq!(offsets(&model), [first], "it will be at hand");
    model.pump();
    assert_eq!(writes(&model), 1);
    end(&mut model, Purpose::Log, Op::Write, true);
    assert_eq!((writes(&model), syncs(&model)), (0, 1), "to make it safe");
    model.pump();
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert_eq!((writes(&model), syncs(&model)), (0, 0));
}

#[test]
fn what_is_spilled_is_synced_when_slots_run_short_and_not_before() {
    let mut model = with_slots(8, 0);
    for _ in 0..5 {
        put_chunk(&mut model, Spill, true);
        model.pump();
        end_log_writes(&mut model);
        assert_eq!(syncs(&model), 0, "three are at hand");
    }
    put_chunk(&mut model, Spill, true);
    model.pump();
    assert_eq!(syncs(&model), 1, "of what was written before");
    end_log_writes(&mut model);
    end(&mut model, Purpose::Log, Op::Sync, true);
    // Four of them can be used again.
    model.pump();
    assert_eq!(model.log.slots_of(Overlay), (8, 2));
    put_chunk(&mut model, Spill, true);
    model.pump();
    end_log_writes(&mut model);
    assert_eq!(syncs(&model), 0);
}

#[test]
fn where_the_log_is_short_of_room_overlays_are_written_two_at_once() {
    let mut model = with_slots(12, SEGMENTS - 5);
    for _ in 0..5 {
        put_chunk(&mut model, Overlay, true);
    }
    assert!(model.log.is_low());
    model.pump();
    assert_eq!(writes(&model), 2);
    end(&mut model, Purpose::Log, Op::Write, true);
    assert_eq!(
        (writes(&model), syncs(&model)),
        (1, 1),
        "it waits for a sync"
    );
    end(&mut model, Purpose::Log, Op::Write, true);
    assert_eq!(writes(&model), 0);
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert_eq!(writes(&model), 1, "now the next");
}

#[test]
fn the_footer_of_an_overlay_waits_until_a_sync_covers_all_that_it_speaks_of() {
    let mut model = with_slots(5, 0);
    for _ in 0..4 {
        put_chunk(&mut model, Spill, true);
        model.pump();
    }
    // Three chunks are a segment; the fourth has closed the third.
    assert_eq!(writes(&model), 3);
    end_log_writes(&mut model);
    while syncs(&model) > 0 && model.log.segments[0].unwritten_chunks > 0 {
        assert_eq!(flights(&model, Purpose::Footer, Op::Write), 0);
        end(&mut model, Purpose::Log, Op::Sync, true);
    }
    assert_eq!(flights(&model, Purpose::Footer, Op::Write), 1);
}

#[test]
fn a_chunk_of_an_overlay_that_the_device_did_not_take_is_written_again() {
    let mut model = with_slots(8, 0);
    let appended = put(&mut model, Spill, 5);
    added(&mut model, QuotaOwner::NONE, appended);
    put(&mut model, Spill, 2);
    put(&mut model, Spill, 1);
    model.pump();
    let place = offsets(&model);
    end(&mut model, Purpose::Log, Op::Write, false);
    assert_eq!(model.log.counters.cache_errors, 1);
    assert_eq!(writes(&model), 0);
    pass(&mut model, 100 * MS);
    assert_eq!(offsets(&model), place);
    // One that was on its way when something failed proves nothing either.
    put(&mut model, Writes, 1);
    seal_and_pump(&mut model);
    let at = model.flights.iter().position(|io| io.offset != place[0]);
    model.end(at.expect("the record"), false);
    end(&mut model, Purpose::Log, Op::Write, true);
    assert!(model.log.is_staged_only(appended.content.addr()));
    pass(&mut model, 100 * MS);
    assert!(offsets(&model).contains(&place[0]));
    end_log_writes(&mut model);
    assert!(!model.log.is_staged_only(appended.content.addr()));
}

#[test]
fn a_chunk_whose_blocks_have_died_is_let_go_as_one_in_which_none_lived() {
    let mut model = with_slots(8, 0);
    put_chunk(&mut model, Spill, true);
    let appended = put(&mut model, Spill, 5);
    added(&mut model, QuotaOwner::NONE, appended);
    put(&mut model, Spill, 2);
    let Appended { span, content, .. } = appended;
    let piece = Piece { span, content };
    let given_back = model.log.account(QuotaOwner::NONE, Change::Removed(piece));
    assert_eq!(given_back, -5);
    put_chunk(&mut model, Spill, true);
    model.pump();
    assert_eq!(offsets(&model), [model.log.device_at(LogAddr(0))]);
}
