//! The rules of the log one by one: what it counts and shows, how much room it asks for, and when
//! a seal, a sync, a spill or a footer is due.
//!
//! Always true: requests end when and as a test says; every segment was written once, so that none
//! is prepared, but where a test begins with fewer. The model beside this file goes all ways at
//! random; it does not look at numbers that break nothing.

mod overlay;
mod records;

use super::model::{GEOMETRY, Model, SLOTS, start, with_cx};
use super::space::SEGMENTS_RESERVED;
use super::{Adopted, Appended, Item, Log, QuotaOwner, Segment, Start, StreamKind, Usage, Waiter};
use crate::event::{Op, Purpose};
use crate::format::fill::{FillFooter, RECORD_BLOCKS_MAX, Run, runs_max};
use crate::format::footer::{body_blocks, entries_max};
use crate::format::record::EntryKind;
use crate::map::{Change, Content, Piece};
use crate::memory::{Area, Place};
use crate::outbox::Cx;
use crate::snapshot::SegmentCounts;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, BufferId, ConnectionId, EpochNumber, Generation, Geometry, LogAddr,
    RequestId, SegmentIndex, SegmentSeq, Serial, Span, StreamSeq, Tag, Time, Uuid, VolumeId,
};
use StreamKind::{Overlay, Spill, Writes};
use alloc::vec;
use alloc::vec::Vec;

const SEGMENTS: u32 = GEOMETRY.segments;
/// Blocks of a segment before its footer.
const BODY: usize = 24;
const MS: u64 = 1_000_000;

/// So many segments with records, so many with clean blocks, and the rest ready.
fn holding(written: u32, clean: u32, start: Start) -> Model {
    let mut model = Model::of(1, start);
    for index in 0..written {
        model.log.adopt(Adopted {
            index: SegmentIndex(index),
            stream: Writes,
            seq: SegmentSeq(1),
            first_stream_seq: StreamSeq(1),
            last_stream_seq: StreamSeq(1),
            sums: vec![0; BODY],
            settled: false,
        });
    }
    for index in written..written + clean {
        let index = SegmentIndex(index);
        model.log.adopt_fill(index, SegmentSeq(1), vec![0; BODY]);
    }
    model.log.collect_ready();
    model.now = Time(1000 * MS);
    model
}

fn used() -> Start {
    Start {
        unwritten_from: SEGMENTS,
        ..start()
    }
}

fn empty() -> Model {
    holding(0, 0, used())
}

fn append(model: &mut Model, stream: StreamKind, span: Span, kind: EntryKind) -> Appended {
    model.serial += 1;
    let item = Item {
        volume: VolumeId(1),
        generation: Generation(1),
        serial: Serial(model.serial),
        span,
        kind,
        more: false,
        epoch: EpochNumber::default(),
        tag: Tag::default(),
    };
    let source = Place::new(Area::Buffer(BufferId(0)), 0);
    let source = (kind == EntryKind::Write).then_some(source);
    let appended = with_cx!(model, |log, cx, scratch| log
        .append(cx, stream, item, source, false));
    appended.expect("there is room")
}

/// A write of whole blocks.
fn put(model: &mut Model, stream: StreamKind, blocks: u64) -> Appended {
    let span = Span::new(0, blocks * BLOCK_SECTORS);
    append(model, stream, span, EntryKind::Write)
}

/// As many as a chunk holds, which lives or does not.
fn put_chunk(model: &mut Model, stream: StreamKind, lives: bool) {
    for blocks in [5, 2] {
        let appended = put(model, stream, blocks);
        if lives {
            added(model, QuotaOwner::NONE, appended);
        }
    }
}

fn added(model: &mut Model, quota_owner: QuotaOwner, appended: Appended) -> i64 {
    let Appended { span, content, .. } = appended;
    let piece = Piece { span, content };
    model.log.account(quota_owner, Change::Added(piece))
}

/// Blocks of a segment come to life.
fn live(model: &mut Model, segment: u64, blocks: u64) {
    let content = Content::Data(LogAddr(segment * GEOMETRY.segment_sectors()));
    let span = Span::new(0, blocks * BLOCK_SECTORS);
    let piece = Piece { span, content };
    model.log.account(QuotaOwner::NONE, Change::Added(piece));
}

fn seal_and_pump(model: &mut Model) {
    model.log.want_sync();
    model.pump();
}

fn wait(model: &mut Model, seq: StreamSeq) {
    let request = RequestId {
        connection: ConnectionId(1),
        number: 1,
    };
    let guest = Waiter::Guest {
        volume: VolumeId(1),
        request,
        upto: Serial(0),
    };
    let is_durable = with_cx!(model, |log, cx, scratch| log.wait_durable(cx, seq, guest));
    assert!(!is_durable);
}

fn pass(model: &mut Model, nanos: u64) {
    model.now = Time(model.now.0 + nanos);
    model.pump();
}

/// What is in flight of a kind.
fn flights(model: &Model, purpose: Purpose, op: Op) -> usize {
    let mine = model.flights.iter();
    mine.filter(|io| io.purpose == purpose && io.op == op)
        .count()
}

/// The oldest of a kind ends, and what follows from that begins.
fn end(model: &mut Model, purpose: Purpose, op: Op, ok: bool) {
    let mine = |io: &crate::event::Io| io.purpose == purpose && io.op == op;
    let at = model.flights.iter().position(mine).expect("in flight");
    model.end(at, ok);
    model.pump();
}

fn end_log_writes(model: &mut Model) {
    while flights(model, Purpose::Log, Op::Write) > 0 {
        end(model, Purpose::Log, Op::Write, true);
    }
}

#[test]
fn what_lives_is_charged_to_its_overlay_until_it_dies_or_the_overlay_moves_out() {
    let mut model = empty();
    let quota_owner = model.log.open_quota();
    let staged = put(&mut model, Overlay, 3);
    let spilled = put(&mut model, Spill, 2);
    assert_eq!(added(&mut model, quota_owner, staged), 3);
    assert_eq!(added(&mut model, quota_owner, spilled), 2);
    assert_eq!(model.log.usage(quota_owner), Usage { ram: 3, ssd: 2 });
    assert_eq!(model.log.gauge().live, 5);
    let first = Piece {
        span: Span::new(0, BLOCK_SECTORS),
        content: staged.content,
    };
    let removed = model.log.account(quota_owner, Change::Removed(first));
    assert_eq!(removed, -1);
    assert_eq!(model.log.usage(quota_owner), Usage { ram: 2, ssd: 2 });
    model.log.close_quota(quota_owner);
    assert_eq!(model.log.usage(quota_owner), Usage::default());
    assert_eq!(model.log.gauge().live, 4, "it lives until it is swept");
}

#[test]
fn segments_and_slots_are_counted_by_what_they_are_for() {
    let mut model = holding(2, 1, used());
    let sums = 3 * BODY * 4;
    let tables = GEOMETRY.chunks() as usize * 8 + SEGMENTS as usize * size_of::<Segment>();
    assert_eq!(model.log.index_bytes(), (sums + tables) as u64);
    assert_eq!(empty().log.index_bytes(), tables as u64);
    assert_eq!(model.log.slots_of(Writes), (SLOTS, 0));
    assert_eq!(model.log.slots_of(Overlay), (2, 0));
    assert_eq!(model.log.footered(), 2);
    put(&mut model, Writes, 1);
    put(&mut model, Overlay, 1);
    put(&mut model, Spill, 1);
    let counts = SegmentCounts {
        free: SEGMENTS - 6,
        write: 1,
        overlay: 2,
        sealed: 2,
        fill: 1,
    };
    assert_eq!(model.log.counts(), counts);
    assert_eq!(model.log.footered(), 2);
    assert_eq!(model.log.slots_of(Writes), (SLOTS, 1));
    assert_eq!(model.log.slots_of(Overlay), (2, 2));
}

#[test]
fn a_new_log_has_what_was_written_before_ready_and_nothing_to_announce() {
    let begun = Start {
        unwritten_from: 3,
        stream_seq_next: 5,
        ..start()
    };
    let mut model = holding(0, 0, begun);
    assert_eq!(model.log.unwritten_from(), 3);
    assert_eq!(model.log.ready.len(), 3);
    with_cx!(&mut model, |log, cx, scratch| log.announce(cx));
    assert_eq!(model.log.newest(), StreamSeq(4), "all of it is announced");
    assert_eq!(model.log.durable, StreamSeq(4));
}

#[test]
fn records_lie_one_behind_the_other_to_the_end_of_their_chunk() {
    let mut model = empty();
    let block = |at: u64| LogAddr(at * BLOCK_SECTORS);
    let data = |at| Content::Data(block(at));
    assert_eq!(put(&mut model, Writes, 1).content, data(1));
    seal_and_pump(&mut model);
    let zero = EntryKind::Zero { allocate: false };
    let zeroes = append(&mut model, Writes, Span::new(0, 1 << 20), zero);
    let header = Content::Zero {
        header: block(2),
        allocate: false,
    };
    assert_eq!(zeroes.content, header);
    assert_eq!(put(&mut model, Writes, 3).content, data(3));
    seal_and_pump(&mut model);
    // A head and one block are left of the first chunk.
    assert_eq!(put(&mut model, Writes, 1).content, data(7));
    assert_eq!(put(&mut model, Writes, 1).content, data(8 + 1));
}

#[test]
fn around_a_write_of_sectors_its_blocks_are_zero() {
    let of_blocks = Start {
        inline_records: false,
        ..used()
    };
    let mut model = holding(0, 0, of_blocks);
    model.memory.stage.fill(0xaa);
    model.memory.buffer.fill(0x11);
    for (sector, sectors) in [(3, 2), (0, 3), (6, 2), (5, 9), (0, 8)] {
        let span = Span::new(sector, sectors);
        let content = append(&mut model, Writes, span, EntryKind::Write).content;
        let first = LogAddr(content.addr().0 - sector);
        let place = model.log.staged(first).expect("in the stage");
        let bytes = model.memory.get(place, span.blocks() * BLOCK_BYTES);
        for (n, sector_bytes) in bytes.chunks(512).enumerate() {
            let written = (sector..span.end()).contains(&(n as u64));
            let expected = [if written { 0x11 } else { 0 }; 512];
            assert_eq!(sector_bytes, expected, "{span:?}, sector {n}");
        }
    }
}

#[test]
fn what_is_logged_is_in_ram_alone_until_a_sync_and_what_is_spilled_until_it_is_written() {
    let mut model = empty();
    let addr = put(&mut model, Writes, 1).content.addr();
    assert!(!model.log.has_unwritten(), "its record is open");
    seal_and_pump(&mut model);
    assert!(model.log.has_unwritten());
    end_log_writes(&mut model);
    assert!(model.log.is_staged_only(addr) && model.log.has_unwritten());
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert!(!model.log.is_staged_only(addr) && !model.log.has_unwritten());

    let appended = put(&mut model, Spill, 5);
    added(&mut model, QuotaOwner::NONE, appended);
    put(&mut model, Spill, 2);
    // This one closes the chunk.
    put(&mut model, Spill, 1);
    model.pump();
    assert!(model.log.is_staged_only(appended.content.addr()));
    end_log_writes(&mut model);
    assert!(!model.log.is_staged_only(appended.content.addr()));
}

/// A segment of writes, nothing of which lives, whose footer is on its way.
fn with_footer_in_flight() -> Model {
    let mut model = empty();
    for _ in 0..GEOMETRY.segment_chunks - 1 {
        put_chunk(&mut model, Writes, false);
    }
    seal_and_pump(&mut model);
    assert_eq!(flights(&model, Purpose::Footer, Op::Write), 0);
    end_log_writes(&mut model);
    assert_eq!(flights(&model, Purpose::Footer, Op::Write), 1);
    assert_eq!(flights(&model, Purpose::Log, Op::Sync), 1);
    model
}

#[test]
fn a_footer_is_written_until_a_sync_covers_it_and_every_failure_is_counted() {
    let mut model = with_footer_in_flight();
    // Something lives, so that the segment stays.
    live(&mut model, 0, 1);
    end(&mut model, Purpose::Footer, Op::Write, false);
    assert_eq!(model.log.counters.cache_errors, 1);
    assert_eq!(model.log.footered(), 0);
    model.log.retry_footers();
    model.pump();
    end(&mut model, Purpose::Footer, Op::Write, true);
    assert_eq!(model.log.footered(), 1);
    // The sync may have taken it along.
    end(&mut model, Purpose::Log, Op::Sync, false);
    assert_eq!(model.log.counters.cache_errors, 2);
    assert_eq!(model.log.footered(), 0);
    end(&mut model, Purpose::Footer, Op::Write, true);
    assert_eq!(model.log.footered(), 1);
    // After the pause records are written again, and synced.
    pass(&mut model, 100 * MS);
    end(&mut model, Purpose::Log, Op::Write, false);
    assert_eq!(model.log.counters.cache_errors, 3);
}

#[test]
fn entries_are_kept_until_a_sync_covers_their_footer_though_the_segment_is_dead() {
    let mut model = with_footer_in_flight();
    end(&mut model, Purpose::Footer, Op::Write, true);
    assert!(model.log.has_dead());
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert!(!model.log.segments[0].entries.is_empty(), "issued before");
    put(&mut model, Writes, 1);
    seal_and_pump(&mut model);
    end_log_writes(&mut model);
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert!(model.log.segments[0].entries.is_empty());
    // A segment may be in use again when the sync of its footer ends.
    model.log.footer_synced(SegmentIndex(1));
    assert!(!model.log.segments[1].entries.is_empty());
    let (_, freed) = model.log.table();
    assert_eq!(freed, [SegmentIndex(0)]);
    model.log.free(&freed);
    assert_eq!(model.log.counters.segments_reused, 1);
    assert!(!model.log.has_dead());
}

#[test]
fn a_segment_that_is_read_dies_later_and_those_behind_it_do_not_wait() {
    let mut model = holding(2, 0, used());
    let read = model.log.pin(LogAddr(0));
    model.pump();
    assert_eq!((model.log.footered(), model.log.freeable()), (1, 1));
    model.log.unpin(read);
    model.pump();
    assert_eq!((model.log.footered(), model.log.freeable()), (0, 2));
}

#[test]
fn the_victim_has_a_footer_is_readable_and_has_the_least_that_lives() {
    let mut model = holding(5, 0, used());
    let addr = put(&mut model, Writes, 1).content.addr();
    assert_eq!(GEOMETRY.segment_of(addr), SegmentIndex(5), "it is open");
    for (segment, blocks) in [(0, 2), (2, 6), (3, 5), (4, 21), (5, 1)] {
        live(&mut model, segment, blocks);
    }
    model.log.mark_stuck(SegmentIndex(0), Time(9));
    assert_eq!(model.log.victim(Time(1)), Some(SegmentIndex(3)));
    model.log.mark_stuck(SegmentIndex(3), Time(9));
    assert_eq!(model.log.victim(Time(1)), Some(SegmentIndex(2)));
    model.log.mark_stuck(SegmentIndex(2), Time(9));
    assert_eq!(
        model.log.victim(Time(1)),
        None,
        "nine tenths are too much to move"
    );
}

/// Three segments are ready, and one of them is opened.
fn short_of_room() -> Model {
    let mut model = holding(SEGMENTS - 3, 0, used());
    put(&mut model, Writes, 1);
    assert_eq!(model.log.ready.len(), SEGMENTS_RESERVED);
    model
}

#[test]
fn a_write_has_room_in_what_is_left_of_its_segment_and_else_its_segments_are_wanted() {
    let mut model = short_of_room();
    let wanted = |model: &mut Model, blocks| {
        let enough = model.log.has_room(Writes, blocks);
        (enough, model.log.low_water())
    };
    // A head in each of the two chunks that are left, and a block that is cut.
    assert_eq!(wanted(&mut model, 6), (true, 4));
    assert_eq!(wanted(&mut model, 7), (false, 1 + SEGMENTS_RESERVED + 1));
    assert_eq!(wanted(&mut model, 100), (false, 6 + SEGMENTS_RESERVED + 1));
    assert_eq!(wanted(&mut model, 6), (true, 4), "nobody waits any more");
}

#[test]
fn a_write_has_room_in_the_last_chunk_but_for_a_head_and_a_block_that_is_cut() {
    let mut model = holding(SEGMENTS - 3, 0, used());
    for _ in 0..2 {
        put_chunk(&mut model, Writes, false);
    }
    put(&mut model, Writes, 1);
    assert!(model.log.has_room(Writes, 4));
    assert!(!model.log.has_room(Writes, 5));
}

#[test]
fn a_segment_whose_footer_is_half_full_is_not_counted_on() {
    let mut model = short_of_room();
    let half = entries_max(GEOMETRY) / 2;
    let zero = EntryKind::Zero { allocate: false };
    for _ in 1..half {
        append(&mut model, Writes, Span::new(0, 8), zero);
    }
    assert!(model.log.has_room(Writes, 6));
    append(&mut model, Writes, Span::new(0, 8), zero);
    assert!(!model.log.has_room(Writes, 6));
}

#[test]
fn room_is_low_below_the_mark_but_for_clean_blocks_and_what_was_never_used() {
    let judged = |written, clean, start| {
        let log = holding(written, clean, start).log;
        (log.ready.len(), log.is_low(), log.is_pressed())
    };
    assert_eq!(judged(10, 0, used()), (4, false, false));
    assert_eq!(judged(11, 0, used()), (3, true, true));
    assert_eq!(judged(10, 1, used()), (3, false, true), "it gives one back");
    let begun = Start {
        unwritten_from: 3,
        ..start()
    };
    assert_eq!(judged(0, 0, begun), (3, false, false), "more is coming");
}

const MANY: usize = 100;

/// All that the open segment of clean blocks takes.
fn fill_up(log: &mut Log) -> SegmentSeq {
    let room = log.fill_room(MANY).expect("a segment");
    let place = log.place_fill(&mut [], &vec![0; room]);
    SegmentSeq(place.life.segment_seq)
}

#[test]
fn clean_blocks_get_a_segment_above_what_writes_may_need_and_none_beside_half_a_write() {
    let room = |written, start: Start| holding(written, 0, start).log.fill_room(MANY);
    // The low-water mark and half of it: four and two.
    assert_eq!(room(SEGMENTS - 6, used()), None);
    assert_eq!(room(SEGMENTS - 7, used()), Some(BODY - 1));
    let begun = |unwritten_from| Start {
        unwritten_from,
        ..start()
    };
    assert_eq!(room(0, begun(4)), None);
    assert_eq!(room(0, begun(5)), Some(BODY - 1));
    let mut log = empty().log;
    assert_eq!(log.fill_room(0), None, "more than is allowed");
    log.unfinished = 1;
    assert_eq!(log.fill_room(MANY), None);
    log.unfinished = 0;
    assert_eq!(log.fill_room(MANY), Some(BODY - 1));
    log.place_fill(&mut [], &[0; 3]);
    assert_eq!(log.fill_room(MANY), Some(BODY - 4 - 1));
}

#[test]
fn each_segment_of_clean_blocks_is_a_life_and_waits_for_the_footer_before_it() {
    let mut log = empty().log;
    assert!(!log.fill_footer_due());
    let first = fill_up(&mut log);
    assert!(log.fill_footer_due());
    assert_eq!(log.fill_room(MANY), None, "its footer comes first");
    assert!(log.take_fill_footer().is_some());
    assert!(!log.fill_footer_due());
    let second = fill_up(&mut log);
    assert_eq!((first, second), (SegmentSeq(1), SegmentSeq(2)));
    assert_eq!(log.segment_seq_next(), SegmentSeq(3));
}

#[test]
fn runs_are_counted_from_their_segment_which_stays_while_it_is_written() {
    let mut log = empty().log;
    log.fill_room(MANY).expect("a segment");
    let run = Run {
        layer: Uuid([9; 16]),
        own: false,
        line: 7,
        slot: 0,
        bitmap: 0b101,
    };
    let places = [0, 1].map(|_| log.place_fill(&mut [run], &[1, 2]));
    assert_eq!(places.map(|it| it.block), [0, 3]);
    log.seal_fill();
    let (index, bytes) = log.take_fill_footer().expect("due");
    let footer = FillFooter::parse(&bytes, GEOMETRY, Uuid([7; 16])).expect("whole");
    let slots = footer.runs.iter().map(|run| run.slot);
    assert_eq!(slots.collect::<Vec<_>>(), [1, 4]);
    assert_eq!(footer.sums[..7], [0, 1, 2, 0, 1, 2, 0]);
    assert_eq!(log.retire_oldest(), Some(index));
    for _ in 0..3 {
        assert!(!log.bury_retired(), "two records and a footer");
        log.unpin(index);
    }
    assert!(log.bury_retired());
}

#[test]
fn a_segment_of_clean_blocks_is_full_when_its_footer_has_no_room_for_one_more_record() {
    let geometry = Geometry {
        chunk_blocks: 64,
        segment_chunks: 256,
        segments: SEGMENTS,
    };
    assert!(runs_max(geometry) < body_blocks(geometry) as usize);
    let mut log = Log::new(Start { geometry, ..used() });
    log.collect_ready();
    let run = Run {
        layer: Uuid([9; 16]),
        own: false,
        line: 0,
        slot: 0,
        bitmap: 1,
    };
    let mut left = runs_max(geometry) - RECORD_BLOCKS_MAX;
    while left > 0 {
        let room = log.fill_room(MANY).expect("a segment").min(left);
        log.place_fill(&mut vec![run; room], &vec![0; room]);
        left -= room;
    }
    assert!(!log.fill_footer_due(), "one more fits");
    log.place_fill(&mut [run], &[0]);
    assert!(log.fill_footer_due());
}

#[test]
fn clean_blocks_give_back_what_writes_are_short_of_and_no_more_than_there_is() {
    let excess = |written, clean| holding(written, clean, used()).log.clean_excess();
    assert_eq!(excess(0, 8), 0);
    assert_eq!(excess(0, 9), 1);
    assert_eq!(excess(0, 10), 2);
    assert_eq!(excess(SEGMENTS - 2, 2), 2, "four short, two there");
    assert_eq!(excess(SEGMENTS, 0), 0);
    let mut log = holding(SEGMENTS - 2, 2, used()).log;
    log.retire_oldest().expect("the first");
    assert_eq!(log.clean_excess(), 1);
    log.retire_oldest().expect("the second");
    assert_eq!(log.clean_excess(), 0);
    let begun = Start {
        unwritten_from: 3,
        ..start()
    };
    assert_eq!(holding(0, 3, begun).log.clean_excess(), 0);
}

#[test]
fn who_waits_for_a_clean_segment_gets_some_back_once_for_each_turn() {
    let mut log = holding(0, 6, used()).log;
    assert_eq!(log.clean_excess(), 0);
    assert_eq!(log.fill_room(6), None, "that many are allowed");
    assert_eq!(log.clean_excess(), 2);
    log.retire_oldest().expect("the first");
    assert_eq!(log.clean_excess(), 0);
    assert_eq!(log.fill_room(6), None);
    assert_eq!(log.clean_excess(), 0, "one is leaving already");
    // Where ready ones are missing, and not leave to have more.
    let mut log = holding(6, 2, used()).log;
    assert_eq!((log.fill_room(MANY), log.clean_excess()), (None, 1));
    // Allowed, and there is room: nobody waits.
    let mut log = holding(0, 6, used()).log;
    assert!(log.fill_room(MANY).is_some());
    assert_eq!(log.clean_excess(), 0);
}

#[test]
fn guests_wait_for_a_sync_and_for_what_comes_before_it() {
    let mut model = empty();
    let seq = put(&mut model, Writes, 1).seq;
    assert!(!model.log.guests_wait());
    wait(&mut model, seq);
    assert!(model.log.guests_wait(), "for its write");
    model.pump();
    end_log_writes(&mut model);
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert!(!model.log.guests_wait());
    put(&mut model, Writes, 1);
    seal_and_pump(&mut model);
    assert!(!model.log.guests_wait(), "nobody has asked");
    end_log_writes(&mut model);
    assert!(model.log.guests_wait(), "for the sync, as others would");
}

#[test]
fn writes_of_the_log_and_spills_are_sixteen_at_once_each() {
    let mut model = empty();
    for _ in 0..20 {
        put(&mut model, Writes, 1);
        seal_and_pump(&mut model);
    }
    assert_eq!(flights(&model, Purpose::Log, Op::Write), 16);
    end(&mut model, Purpose::Log, Op::Write, true);
    assert_eq!(flights(&model, Purpose::Log, Op::Write), 16);

    let overlays = Start {
        overlay_slots: 24,
        ..used()
    };
    let mut model = holding(0, 0, overlays);
    for _ in 0..20 {
        put_chunk(&mut model, Spill, true);
    }
    model.pump();
    assert_eq!(flights(&model, Purpose::Log, Op::Write), 16);
    end(&mut model, Purpose::Log, Op::Write, true);
    assert_eq!(flights(&model, Purpose::Log, Op::Write), 16);
}

#[test]
fn of_chunks_in_which_nothing_lives_only_the_first_of_a_segment_is_spilled() {
    let overlays = Start {
        overlay_slots: 6,
        ..used()
    };
    let mut model = holding(0, 0, overlays);
    for lives in [false, false, true, true] {
        put_chunk(&mut model, Spill, lives);
    }
    model.pump();
    let written = model.flights.iter().map(|io| io.offset);
    let chunk = |at: u64| model.log.device_at(LogAddr(at * GEOMETRY.chunk_sectors()));
    assert_eq!(written.collect::<Vec<_>>(), [chunk(0), chunk(2)]);
}

#[test]
fn a_record_that_nobody_waits_for_is_sealed_after_five_milliseconds() {
    let mut model = empty();
    put(&mut model, Writes, 1);
    model.pump();
    assert_eq!(model.flights.len(), 0);
    let due = Time(model.now.0 + 5 * MS);
    assert_eq!(model.out.next_deadline(), Some(due));
    pass(&mut model, 5 * MS - 1);
    assert_eq!(model.flights.len(), 0);
    pass(&mut model, 1);
    assert_eq!(flights(&model, Purpose::Log, Op::Write), 1);
    end_log_writes(&mut model);
    assert_eq!(model.flights.len(), 0, "and nobody asks for a sync");
    assert!(model.log.has_unwritten());
}

#[test]
fn for_fifty_milliseconds_after_a_flush_writes_go_one_at_a_time_and_at_once() {
    let mut model = empty();
    let seq = put(&mut model, Writes, 1).seq;
    wait(&mut model, seq);
    model.pump();
    end_log_writes(&mut model);
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert_eq!(model.log.durable, seq);
    let writes = |model: &Model| flights(model, Purpose::Log, Op::Write);
    pass(&mut model, 50 * MS - 1);
    put(&mut model, Writes, 1);
    model.pump();
    assert_eq!(writes(&model), 1);
    put(&mut model, Writes, 1);
    model.pump();
    assert_eq!(writes(&model), 1, "one is under way");
    end(&mut model, Purpose::Log, Op::Write, true);
    assert_eq!(writes(&model), 1, "now the other");
    end_log_writes(&mut model);
    pass(&mut model, 1);
    put(&mut model, Writes, 1);
    model.pump();
    assert_eq!(writes(&model), 0, "the flush is too long ago");
}

#[test]
fn who_waits_for_less_has_a_sync_before_all_is_written() {
    let mut model = empty();
    for _ in 0..2 {
        let seq = put(&mut model, Writes, 1).seq;
        wait(&mut model, seq);
        model.pump();
    }
    assert_eq!(flights(&model, Purpose::Log, Op::Write), 2);
    end(&mut model, Purpose::Log, Op::Write, true);
    assert_eq!(flights(&model, Purpose::Log, Op::Sync), 1);
}
