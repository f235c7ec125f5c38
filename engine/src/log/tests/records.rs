//! What is appended as others read it: records and slots of the stage, footers, the table of a
//! checkpoint, and what the reserve is for.

use super::*;
use crate::format::footer::Footer;
use crate::format::record::{self, Entry, Record, Shape};
use crate::format::stage::{self, StageSlot};
use crate::format::{checkpoint::SegmentRecord, checksum};
use crate::log::content_of;
use crate::memory::Memory;
use crate::types::SECTOR_BYTES;

const CACHE: Uuid = Uuid([7; 16]);

/// An append that may find no room, and may go on in a further item.
fn offer(model: &mut Model, (evacuating, more): (bool, bool), span: Span) -> Option<Appended> {
    model.serial += 1;
    let item = Item {
        volume: VolumeId(1),
        generation: Generation(1),
        serial: Serial(model.serial),
        span,
        kind: EntryKind::Write,
        more,
        epoch: EpochNumber::default(),
        tag: Tag::default(),
    };
    let source = Some(Place::new(Area::Buffer(BufferId(0)), 0));
    with_cx!(model, |log, cx, scratch| log
        .append(cx, Writes, item, source, evacuating))
}

fn block(model: &Model, at: u64) -> Vec<u8> {
    let place = model.log.staged(LogAddr(at * BLOCK_SECTORS));
    let place = place.expect("in the stage");
    model.memory.get(place, BLOCK_BYTES).to_vec()
}

/// The record whose head is this block of the log, open or sealed.
fn read(model: &Model, at: u64) -> Record {
    let head = block(model, at);
    record::parse_sealed(&head)
        .or_else(|_| record::parse_open(&head))
        .expect("a record")
}

/// What lies behind its head is what it says.
fn has_its_sums(model: &Model, at: u64, record: &Record) {
    for (n, sum) in record.sums.iter().enumerate() {
        let bytes = block(model, at + 1 + n as u64);
        assert_eq!(checksum(&[&bytes]), *sum, "block {n}");
        let addr = LogAddr((at + 1 + n as u64) * BLOCK_SECTORS);
        assert_eq!(model.log.sum(addr), *sum, "block {n}");
    }
}

#[test]
fn a_record_of_the_stage_says_at_every_moment_what_was_appended() {
    let mut model = empty();
    for (n, byte) in model.memory.buffer.iter_mut().enumerate() {
        *byte = (n / 512) as u8 + 1;
    }
    // Records are in the second half of a chunk, so that none begins where its slot does.
    put(&mut model, Writes, 1);
    seal_and_pump(&mut model);
    let zero = EntryKind::Zero { allocate: true };
    append(&mut model, Writes, Span::new(3, 16), EntryKind::Write);
    append(&mut model, Writes, Span::new(64, 800), zero);
    // There is room for two blocks, of which the first three sectors are another's.
    let whole = Span::new(83, 20);
    let cut = offer(&mut model, (false, false), whole).expect("a part");
    assert_eq!(cut.span, Span::new(83, 13));
    let entry = |serial, kind, span, first_block, more| Entry {
        kind,
        volume: VolumeId(1),
        generation: Generation(1),
        serial: Serial(serial),
        span,
        first_block,
        inline: None,
        more,
        epoch: EpochNumber::default(),
        tag: Tag::default(),
    };
    let expected = [
        entry(2, EntryKind::Write, Span::new(3, 16), 0, false),
        entry(3, zero, Span::new(64, 800), 0, false),
        entry(4, EntryKind::Write, cut.span, 3, true),
    ];
    let open = read(&model, 2);
    assert_eq!(open.entries, expected);
    assert_eq!(open.sums.len(), 5);
    has_its_sums(&model, 2, &open);
    seal_and_pump(&mut model);
    let sealed = record::parse_sealed(&block(&model, 2)).expect("sealed");
    assert_eq!((&sealed.entries, &sealed.sums), (&open.entries, &open.sums));
    assert_eq!(read(&model, 0).entries.len(), 1, "nor was the one before");
    // A write that its owner has cut goes on, too.
    let more = offer(&mut model, (false, true), Span::new(0, 8)).expect("room");
    let at = more.content.addr().block() - 1;
    assert!(read(&model, at).entries[0].more);
    append(&mut model, Writes, Span::new(8, 8), EntryKind::Write);
    assert!(!read(&model, at).entries[1].more);
}

#[test]
fn a_record_takes_the_last_block_of_its_chunk() {
    let mut model = empty();
    let places = [5, 1, 1, 1].map(|blocks| put(&mut model, Writes, blocks).content);
    let data = |at: u64| Content::Data(LogAddr(at * BLOCK_SECTORS));
    assert_eq!(places, [data(1), data(6), data(7), data(8 + 1)]);
}

/// A write of bytes of one value.
fn small(model: &mut Model, byte: u8, span: Span) -> (Appended, u8) {
    model.memory.buffer.fill(byte);
    (append(model, Writes, span, EntryKind::Write), byte)
}

/// What the header block at this place holds, by its sum and as it reads.
fn header_holds(model: &Model, at: u64, parts: &[(Appended, u8)]) {
    let head = block(model, at);
    for (appended, byte) in parts {
        let Content::Data(addr) = appended.content else {
            panic!("a write");
        };
        assert_eq!(addr.block(), at, "in its header block");
        let from = (addr.0 % BLOCK_SECTORS * SECTOR_BYTES) as usize;
        let payload = &head[from..from + (appended.span.sectors * SECTOR_BYTES) as usize];
        assert!(payload.iter().all(|it| it == byte), "{appended:?}");
    }
    let addr = LogAddr(at * BLOCK_SECTORS);
    match record::parse_sealed(&head) {
        Ok(_) => assert_eq!(model.log.sum(addr), checksum(&[&head])),
        Err(_) => assert_eq!(model.log.sum(addr), 0, "not before it is sealed"),
    }
}

#[test]
fn small_writes_lie_in_the_header_block_and_one_that_is_flushed_is_one_block_of_the_device() {
    let mut model = empty();
    let one = small(&mut model, 1, Span::new(6, 4));
    seal_and_pump(&mut model);
    header_holds(&model, 0, &[one]);
    assert_eq!(model.flights.len(), 1);
    assert_eq!(model.flights[0].bytes, BLOCK_BYTES);
    // Five sectors in one block, wherever they are in the volume; the next has one of its own.
    let spans = [Span::new(7, 2), Span::new(100, 3), Span::new(13, 1)];
    let [first, second] = [0, 1].map(|n| small(&mut model, n + 2, spans[usize::from(n)]));
    let parts = [first, second];
    let own = small(&mut model, 4, spans[2]).0;
    let data = Content::Data(LogAddr(2 * BLOCK_SECTORS + 13 % BLOCK_SECTORS));
    assert_eq!(own.content, data);
    header_holds(&model, 1, &parts);
    seal_and_pump(&mut model);
    header_holds(&model, 1, &parts);
    let record = record::parse_sealed(&block(&model, 1)).expect("sealed");
    let inline = record.entries.iter().map(|entry| entry.inline);
    assert_eq!(inline.collect::<Vec<_>>(), [Some(3), Some(5), None]);
    has_its_sums(&model, 1, &record);
    // One that is longer begins a record of the other shape.
    append(&mut model, Writes, Span::new(0, 6), EntryKind::Write);
    append(&mut model, Writes, Span::new(0, 1), EntryKind::Write);
    assert_eq!(read(&model, 3).shape, Shape::Blocks);
    assert_eq!(read(&model, 3).sums.len(), 2);
}

#[test]
fn a_record_with_payload_in_its_header_is_full_with_fewer_entries() {
    let mut model = empty();
    let zero = EntryKind::Zero { allocate: false };
    append(&mut model, Writes, Span::new(0, 5), EntryKind::Write);
    for _ in 1..record::INLINE_ENTRIES_MAX {
        append(&mut model, Writes, Span::new(8, 8), zero);
    }
    assert_eq!(read(&model, 0).entries.len(), record::INLINE_ENTRIES_MAX);
    append(&mut model, Writes, Span::new(16, 8), zero);
    let next = read(&model, 1);
    assert_eq!((next.shape, next.entries.len()), (Shape::Blocks, 1));
    assert!(record::parse_sealed(&block(&model, 0)).is_ok());
}

#[test]
fn a_cache_that_does_not_know_payload_in_header_blocks_gets_none() {
    let of_blocks = Start {
        inline_records: false,
        ..used()
    };
    let mut model = holding(0, 0, of_blocks);
    append(&mut model, Writes, Span::new(0, 1), EntryKind::Write);
    assert_eq!(read(&model, 0).shape, Shape::Blocks);
    assert_eq!(read(&model, 0).sums.len(), 1);
}

/// What is recovered is where it was appended.
#[test]
fn a_footer_names_the_place_of_payload_in_header_blocks() {
    let mut model = empty();
    let mut appended = Vec::new();
    while flights(&model, Purpose::Footer, Op::Write) == 0 {
        let n = appended.len() as u64;
        let span = Span::new(n * 8 + 6, 1 + n % 4);
        appended.push(append(&mut model, Writes, span, EntryKind::Write));
        model.pump();
        end_log_writes(&mut model);
    }
    let footer = footers(&model).remove(0);
    let inline = footer.entries.iter().filter(|it| it.inline.is_some());
    assert!(inline.count() > 4);
    for entry in &footer.entries {
        let found = content_of(GEOMETRY, SegmentIndex(0), entry);
        let put = appended[entry.serial.0 as usize - 1];
        assert_eq!((found, entry.span), (put.content, put.span));
        let addr = LogAddr(u64::from(entry.block) * BLOCK_SECTORS);
        assert_ne!(footer.sums[entry.block as usize], 0);
        assert_eq!(model.log.sum(addr), footer.sums[entry.block as usize]);
    }
}

#[test]
fn each_slot_of_the_stage_names_the_chunk_that_it_mirrors() {
    let mut model = empty();
    let mut places = Vec::new();
    for stream in [Writes, Writes, Overlay, Writes, Spill] {
        places.push((put(&mut model, stream, 5).content.addr(), stream));
        put(&mut model, stream, 2);
    }
    let slots = SLOTS + 2;
    let first = stage::slot_at(0, slots, GEOMETRY.chunk_blocks);
    for (addr, stream) in places {
        let place = model.log.staged(addr).expect("in the stage");
        let slot = (place.offset - first) / GEOMETRY.chunk_bytes();
        let mut bytes = [0; stage::SLOT_BYTES];
        let at = stage::TABLE_AT + slot * stage::SLOT_BYTES as u64;
        model.memory.load(Place::new(Area::Stage, at), &mut bytes);
        let segment = GEOMETRY.segment_of(addr);
        let named = StageSlot {
            incarnation: 1,
            segment_seq: model.log.segments[segment.0 as usize].seq.0,
            chunk: GEOMETRY.chunk_of(addr),
            stream: stream.code(),
        };
        assert_eq!(StageSlot::parse(&bytes), Ok(named));
    }
}

/// Footers on their way, as they will be read.
fn footers(model: &Model) -> Vec<Footer> {
    let mine = |io: &&crate::event::Io| io.purpose == Purpose::Footer;
    let parsed = model.flights.iter().filter(mine).map(|io| {
        let mut bytes = Vec::new();
        for slice in &io.slices {
            bytes.extend_from_slice(model.memory.get(slice.place, slice.bytes));
        }
        bytes.resize(GEOMETRY.chunk_bytes() as usize, 0);
        Footer::parse(&bytes, GEOMETRY, CACHE).expect("a footer")
    });
    parsed.collect()
}

#[test]
fn a_footer_names_all_pieces_of_its_segment_and_which_of_them_go_on() {
    let mut model = empty();
    for (more, span) in [
        (true, Span::new(0, 40)),
        (false, Span::new(40, 8)),
        // One block is left of the chunk.
        (false, Span::new(100, 12)),
    ] {
        offer(&mut model, (false, more), span).expect("room");
    }
    for _ in 1..GEOMETRY.segment_chunks - 1 {
        put_chunk(&mut model, Writes, false);
    }
    seal_and_pump(&mut model);
    end_log_writes(&mut model);
    let [footer] = &footers(&model)[..] else {
        panic!("one segment is full");
    };
    assert_eq!((footer.first_stream_seq, footer.last_stream_seq), (1, 3));
    let pieces = footer.entries.iter().map(|it| (it.serial.0, it.more));
    let mut pieces: Vec<_> = pieces.collect();
    pieces.sort_unstable();
    let expected = [
        (1, true),
        (2, false),
        (3, true),
        (4, false),
        (5, false),
        (6, false),
        (7, false),
    ];
    assert_eq!(pieces, expected);
    for entry in &footer.entries {
        let addr = LogAddr(u64::from(entry.block) * BLOCK_SECTORS);
        let sum = footer.sums[entry.block as usize];
        assert_eq!(model.log.sum(addr), sum);
    }
}

#[test]
fn a_segment_is_full_before_its_footer_is() {
    let mut model = empty();
    let zero = EntryKind::Zero { allocate: false };
    let mut appended = 0;
    while flights(&model, Purpose::Footer, Op::Write) == 0 {
        append(&mut model, Writes, Span::new(0, 8), zero);
        appended += 1;
        model.pump();
        end_log_writes(&mut model);
        assert!(appended <= 2 * entries_max(GEOMETRY), "its footer is due");
    }
    let entries = footers(&model)[0].entries.len();
    assert!(entries <= entries_max(GEOMETRY));
    assert!(entries + record::ENTRIES_MAX > entries_max(GEOMETRY) / 2);
}

#[test]
fn the_reserve_and_what_evacuation_has_opened_of_it_is_for_evacuation_alone() {
    let span = Span::new(0, 8);
    let mut model = holding(SEGMENTS - SEGMENTS_RESERVED as u32, 0, used());
    assert_eq!(model.log.ready.len(), SEGMENTS_RESERVED);
    assert!(offer(&mut model, (false, false), span).is_none());
    assert!(offer(&mut model, (true, false), span).is_some());
    assert_eq!(model.log.ready.len(), SEGMENTS_RESERVED - 1);
    assert!(offer(&mut model, (false, false), span).is_none());
    assert!(offer(&mut model, (true, false), span).is_some());
}

#[test]
fn what_a_checkpoint_lists_is_known_by_its_stream_and_whether_it_goes_on() {
    let mut model = holding(1, 1, used());
    let addr = put(&mut model, Writes, 1).content.addr();
    model.log.fill_room(MANY).expect("a segment");
    let (live, freed) = model.log.table();
    let found = |index| {
        let of = |it: &&SegmentRecord| it.index == index;
        let it = live.iter().find(of).expect("listed");
        (it.stream, it.last_stream_seq)
    };
    assert_eq!(found(0), (record::STREAM_WRITES, 1));
    assert_eq!(found(1), (record::STREAM_FILL, 0));
    let open = GEOMETRY.segment_of(addr).0;
    assert_eq!(found(open), (record::STREAM_WRITES, u64::MAX));
    assert_eq!(found(open + 1), (record::STREAM_FILL, 0));
    assert_eq!((live.len(), freed.len()), (4, 0));
}

#[test]
fn a_segment_is_footered_when_its_footer_is_on_the_device() {
    let mut model = with_footer_in_flight();
    live(&mut model, 0, 1);
    assert!(!model.log.is_footered(SegmentIndex(0)));
    end(&mut model, Purpose::Footer, Op::Write, true);
    assert!(model.log.is_footered(SegmentIndex(0)));
}

#[test]
fn one_segment_more_than_writes_should_find_is_prepared() {
    let begun = |unwritten_from| Start {
        unwritten_from,
        ..start()
    };
    for (ready, prepares) in [(4, 1), (5, 0)] {
        let mut model = holding(0, 0, begun(ready));
        model.pump();
        assert_eq!(flights(&model, Purpose::Prepare, Op::Write), prepares);
    }
}

#[test]
fn clean_blocks_have_so_many_segments_and_those_that_are_used_again_count_no_more() {
    let mut log = empty().log;
    fill_up(&mut log);
    let (index, _) = log.take_fill_footer().expect("due");
    assert!(log.is_clean(index));
    assert_eq!(log.fill_room(1), None, "one is there");
    assert_eq!(log.retire_oldest(), Some(index));
    assert!(!log.is_clean(index));
    assert_eq!(log.fill_room(1), None, "it is read, perhaps");
    for _ in 0..2 {
        log.unpin(index);
    }
    assert!(log.bury_retired());
    assert_eq!(log.fill_room(1), None, "no checkpoint has freed it");
    let (_, freed) = log.table();
    assert_eq!(freed, [index]);
    log.free(&freed);
    assert_eq!(log.clean_excess(), 0);
    assert_eq!(log.fill_room(1), Some(BODY - 1));
    assert_eq!(log.clean_excess(), 0);
    // A record takes what it needs, and the next one what is left.
    log.place_fill(&mut [], &[0; 12]);
    assert!(!log.fill_footer_due());
    assert_eq!(log.fill_room(1), Some(BODY - 13 - 1));
    log.place_fill(&mut [], &[0; 8]);
    assert!(!log.fill_footer_due(), "a head and a block fit");
    log.place_fill(&mut [], &[0; 1]);
    assert!(log.fill_footer_due());
}

#[test]
fn blocks_of_the_log_are_numbered_from_its_first_one() {
    let mut model = empty();
    for _ in 0..2 {
        put_chunk(&mut model, Writes, false);
    }
    let addr = put(&mut model, Writes, 1).content.addr();
    let at = 2 * GEOMETRY.chunk_blocks + 1;
    assert_eq!(Log::block_addr(at), addr);
    assert_eq!(addr.block(), u64::from(at));
}

/// So many records of a slot, each on its way by itself.
fn of_one_slot(model: &mut Model, count: usize) {
    for _ in 0..count {
        put(model, Writes, 1);
        seal_and_pump(model);
    }
    assert_eq!(flights(model, Purpose::Log, Op::Write), count);
}

#[test]
fn what_is_written_again_waits_until_older_writes_to_its_place_have_ended() {
    let mut model = empty();
    of_one_slot(&mut model, 3);
    end(&mut model, Purpose::Log, Op::Write, false);
    pass(&mut model, 100 * MS);
    assert_eq!(flights(&model, Purpose::Log, Op::Write), 2, "the old ones");
    end(&mut model, Purpose::Log, Op::Write, true);
    assert_eq!(flights(&model, Purpose::Log, Op::Write), 1);
    end(&mut model, Purpose::Log, Op::Write, true);
    let again: Vec<_> = model.flights.iter().map(|io| (io.op, io.bytes)).collect();
    assert_eq!(again, [(Op::Write, 6 * BLOCK_BYTES)], "all in one");
    end(&mut model, Purpose::Log, Op::Write, true);
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert_eq!(model.log.durable, model.log.newest());
}

#[test]
fn a_sync_that_was_issued_before_a_failure_is_no_failure_itself() {
    let mut model = empty();
    put(&mut model, Writes, 1);
    seal_and_pump(&mut model);
    end_log_writes(&mut model);
    assert_eq!(flights(&model, Purpose::Log, Op::Sync), 1);
    put(&mut model, Writes, 1);
    seal_and_pump(&mut model);
    end(&mut model, Purpose::Log, Op::Write, false);
    assert_eq!(model.log.counters.cache_errors, 1);
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert_eq!(model.log.counters.cache_errors, 1);
    assert_eq!(model.log.durable, StreamSeq(0), "it proves nothing");
    pass(&mut model, 100 * MS);
    end_log_writes(&mut model);
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert_eq!(model.log.durable, model.log.newest());
}

#[test]
fn with_few_slots_at_hand_what_is_written_is_synced_for_nobody() {
    let mut model = empty();
    let low = 2;
    for used in 1..=SLOTS - low {
        put_chunk(&mut model, Writes, true);
        pass(&mut model, 5 * MS);
        end_log_writes(&mut model);
        let syncs = flights(&model, Purpose::Log, Op::Sync);
        assert_eq!(syncs, usize::from(used == SLOTS - low), "{used} slots");
    }
}

fn guest(volume: u32, number: u32) -> Waiter {
    Waiter::Guest {
        volume: VolumeId(volume),
        request: RequestId {
            connection: ConnectionId(1),
            number,
        },
        upto: Serial(0),
    }
}

#[test]
fn the_guests_of_one_volume_are_taken_out_of_those_who_wait_and_nobody_else() {
    let mut model = empty();
    let seq = put(&mut model, Writes, 1).seq;
    let all = [
        guest(1, 1),
        Waiter::Volume(VolumeId(1)),
        guest(2, 2),
        guest(1, 3),
        Waiter::Park,
    ];
    for waiter in all {
        let is_durable = with_cx!(&mut model, |log, cx, scratch| log
            .wait_durable(cx, seq, waiter));
        assert!(!is_durable);
    }
    let taken = |model: &mut Model, volume| {
        let taken = model.log.take_guests(VolumeId(volume));
        let numbers = taken.iter().map(|request| request.number);
        numbers.collect::<Vec<_>>()
    };
    assert_eq!(taken(&mut model, 1), [1, 3]);
    assert_eq!(taken(&mut model, 1), [0; 0]);
    assert_eq!(taken(&mut model, 2), [2]);
    assert!(model.log.guests_wait(), "others are left");
    model.pump();
    end_log_writes(&mut model);
    end(&mut model, Purpose::Log, Op::Sync, true);
    assert!(!model.log.guests_wait());
    // What is durable already nobody waits for.
    let is_durable = with_cx!(&mut model, |log, cx, scratch| log.wait_durable(
        cx,
        seq,
        guest(1, 4)
    ));
    assert!(is_durable);
    assert!(!model.log.guests_wait());
}
