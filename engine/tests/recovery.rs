//! What recovery and the offline tools make of a device that was written by hand.
//!
//! Always true: the checkpoint is that of `common`, so records from 100 on and lives from 55 on
//! came after it; a record has the serial of its number, and one write of whole blocks.

mod common;
#[path = "common/disk.rs"]
mod disk;

use common::{CACHE, entry, identity, in_footer};
use disk::*;
use engine::engine::{Config, Engine, OpenError, inspect};
use engine::format::checkpoint::{SegmentRecord, VolumeRecord};
use engine::format::checksum;
use engine::format::fill::{FillFooter, FillRecord, Life, Run};
use engine::format::footer::{Footer, body_blocks};
use engine::format::record::{self, Entry, EntryKind, Identity};
use engine::format::stage::StageHeader;
use engine::format::superblock::Superblock;
use engine::types::{Generation, Policy, Serial, Span, Uuid, VolumeId};

#[test]
fn a_hole_below_the_last_sync_is_damage_and_what_lies_behind_it_counts() {
    let mut disk = Disk::new(Vec::new());
    disk.put_record(0, 0, of(100, 99), 1);
    // Records 101 and 103 are gone; that they were synced is said behind them.
    disk.put_record(0, 4, of(102, 99), 1);
    disk.put_record(0, CHUNK, of(104, 103), 1);
    disk.put_record(0, CHUNK + 2, of(105, 103), 1);
    let lost =
        |from| format!("records {from} to {from} of the log were synced and cannot be found");
    assert_eq!(disk.look(), (bytes(4), vec![lost(101), lost(103)]));
    // Only what lies elsewhere knows of it.
    let mut disk = Disk::new(Vec::new());
    let freed = Identity {
        segment_seq: 40,
        ..of(98, 100)
    };
    disk.put_record(1, 0, freed, 1);
    assert_eq!(disk.look(), (0, vec![lost(100)]));
}

#[test]
fn a_tail_behind_a_torn_record_is_discarded_to_the_block() {
    let mut disk = Disk::new(Vec::new());
    disk.put_record(0, 0, of(100, 99), 1);
    disk.put_record(0, 2, of(101, 99), 2);
    disk.put_record(0, 5, of(102, 99), 1);
    disk.lose(0, 4);
    assert_eq!(disk.look(), (bytes(1), Vec::new()));
    let info = inspect(&mut disk).expect("opened");
    assert_eq!(info.tail_bytes_discarded, bytes(3 + 2), "with their heads");
}

#[test]
fn records_of_another_life_or_beyond_their_chunk_or_body_are_not_read() {
    let mut disk = Disk::new(Vec::new());
    disk.put_record(0, 0, of(100, 99), 1);
    assert_eq!(disk.look(), (bytes(1), Vec::new()));
    let older = Identity {
        segment_seq: 54,
        ..of(101, 99)
    };
    disk.put_record(0, 2, older, 1);
    assert_eq!(disk.look(), (bytes(1), Vec::new()), "another life");
    disk.put_record(0, CHUNK - 2, of(101, 99), 2);
    assert_eq!(disk.look(), (bytes(1), Vec::new()), "out of its chunk");
    disk.put_record(0, 2, of(101, 99), 5);
    assert_eq!(disk.look(), (bytes(6), Vec::new()), "to its end");
    disk.put_record(0, BODY, of(102, 99), 1);
    assert_eq!(disk.look(), (bytes(6), Vec::new()), "where footers lie");
    disk.put_record(0, BODY - 2, of(102, 99), 1);
    assert_eq!(disk.look(), (bytes(7), Vec::new()), "its last chunk");
}

#[test]
fn a_listed_segment_of_which_only_an_older_life_is_there_is_damage() {
    let life = listed(2, 50, (90, 95), record::STREAM_WRITES);
    let mut disk = Disk::new(vec![life]);
    let older = Identity {
        segment_seq: 40,
        stream_seq: 80,
        ..identity()
    };
    disk.put_record(2, 0, older, 1);
    let lost = "segment 2 (life 50) cannot be found";
    assert_eq!(disk.look(), (0, vec![lost.into()]));
}

#[test]
fn a_listed_segment_has_all_of_its_records_up_to_the_last() {
    let life = listed(2, 50, (97, 99), record::STREAM_WRITES);
    let of = |stream_seq| Identity {
        segment_seq: 50,
        stream_seq,
        ..identity()
    };
    let mut disk = Disk::new(vec![life]);
    disk.put_record(2, 0, of(97), 1);
    disk.put_record(2, 2, of(98), 1);
    let lost = "segment 2: records 99 to 99 cannot be read";
    assert_eq!(disk.look(), (bytes(2), vec![lost.into()]));
    disk.put_record(2, 4, of(99), 1);
    assert_eq!(disk.look(), (bytes(3), Vec::new()));
}

fn run(own: bool, name: u8, line: u64, slot: u32, blocks: u32) -> Run {
    Run {
        layer: Uuid([name; 16]),
        own,
        line,
        slot,
        bitmap: (1 << blocks) - 1,
    }
}

fn life(segment_seq: u64, incarnation: u64) -> Life {
    Life {
        cache: CACHE,
        incarnation,
        segment_seq,
    }
}

impl Disk {
    /// A record of three clean blocks.
    fn put_fill(&mut self, segment: u32, block: u32, life: Life) {
        let payload = payload(u64::from(block), 3);
        let record = FillRecord {
            life,
            block,
            runs: vec![run(false, 1, u64::from(block), block + 1, 3)],
            sums: payload.chunks(BLOCK).map(|it| checksum(&[it])).collect(),
        };
        self.put(segment, block, &record.encode());
        self.put(segment, block + 1, &payload);
    }

    fn put_fill_footer(&mut self, segment: u32, life: Life, runs: Vec<Run>) {
        let sums = vec![0; body_blocks(GEOMETRY) as usize];
        let footer = FillFooter { life, runs, sums };
        self.put(segment, BODY, &footer.encode());
    }

    /// Segments with clean blocks that count, and these blocks.
    fn clean(&mut self) -> (u64, u64) {
        let info = inspect(self).expect("opened");
        assert_eq!(info.damage, Vec::<String>::new());
        (info.segments_fill, info.blocks_fill)
    }
}

#[test]
fn a_footer_alone_names_clean_blocks_and_own_layers_of_the_last_run_only() {
    let fill = listed(3, 50, (0, 0), record::STREAM_FILL);
    let runs = || {
        vec![
            run(false, 1, 0, 1, 3),
            run(true, 2, 1, 4, 5),
            run(true, 0, 2, 9, 7),
        ]
    };
    let mut disk = Disk::new(vec![fill]);
    disk.put_fill_footer(3, life(50, 9), runs());
    assert_eq!(disk.clean(), (1, 3 + 5), "that without a name is left out");
    disk.put_fill_footer(3, life(50, 8), runs());
    assert_eq!(disk.clean(), (1, 3), "named by an earlier run");
    disk.put_fill_footer(3, life(49, 9), runs());
    assert_eq!(disk.clean(), (0, 0), "of another life");
}

#[test]
fn without_a_footer_clean_blocks_are_read_up_to_a_record_of_another_life() {
    let fill = listed(3, 50, (0, 0), record::STREAM_FILL);
    let mut disk = Disk::new(vec![fill]);
    disk.put_fill(3, 0, life(50, 9));
    disk.put_fill(3, 4, life(49, 9));
    disk.put_fill(3, 8, life(50, 9));
    assert_eq!(disk.clean(), (1, 3));
    disk.put_fill(3, 4, life(50, 9));
    assert_eq!(disk.clean(), (1, 9));
    let third = disk.block(3, 8);
    disk.put(3, 4, &third);
    assert_eq!(disk.clean(), (1, 3), "a record of another place");
}

#[test]
fn clean_blocks_count_in_the_life_and_as_what_their_segment_is_listed() {
    // A life that is given twice is a bug; what was written then is the guest's, not a copy.
    let mut disk = Disk::new(vec![listed(3, 50, (99, 99), record::STREAM_WRITES)]);
    let written = Identity {
        segment_seq: 50,
        stream_seq: 99,
        ..identity()
    };
    disk.put_record(3, 0, written, 1);
    disk.put_fill_footer(3, life(50, 9), vec![run(false, 1, 0, 1, 3)]);
    assert_eq!(disk.clean(), (0, 0));
    assert_eq!(disk.look(), (bytes(1), Vec::new()));
    // Listed with an older life, it was not freed since.
    let mut disk = Disk::new(vec![listed(3, 50, (0, 0), record::STREAM_FILL)]);
    disk.put_fill(3, 0, life(51, 9));
    assert_eq!(disk.clean(), (0, 0));
    // Not listed: only what the last run has opened since.
    let mut disk = Disk::new(Vec::new());
    disk.put_fill(3, 0, life(54, 9));
    disk.put_fill(4, 0, life(55, 9));
    disk.put_fill(4, 4, life(55, 9));
    disk.put_fill(5, 0, life(56, 8));
    assert_eq!(disk.clean(), (1, 6));
}

#[test]
fn the_next_checkpoint_gives_no_number_again() {
    let mut disk = Disk::new(Vec::new());
    let writes = Identity {
        segment_seq: 60,
        ..of(100, 99)
    };
    disk.put_record(7, 0, writes, 1);
    // Clean blocks that do not count were written all the same.
    disk.put_fill(9, 0, life(40, 3));
    let (_, report) = Engine::open(config(), &mut disk, &mut Shared::new()).expect("opened");
    assert_eq!((report.records_replayed, report.entries_replayed), (1, 1));
    let next = disk.checkpoint(43);
    assert_eq!((next.sequence, next.incarnation), (43, 10));
    assert_eq!(next.stream_seq_next, 101);
    assert_eq!(next.segment_seq_next, 61);
    assert_eq!(next.unwritten_from, 10);
    assert_eq!(next.generation_next, 9);
    let mut seen = Disk::new(Vec::new());
    seen.put_fill(9, 0, life(70, 3));
    Engine::open(config(), &mut seen, &mut Shared::new()).expect("opened");
    assert_eq!(seen.checkpoint(43).segment_seq_next, 71);
}

#[test]
fn a_write_whose_last_piece_is_there_was_taken() {
    let mut disk = Disk::new(Vec::new());
    disk.put_record(0, 0, of(100, 99), 1);
    disk.put_piece(0, 2, of(101, 99), (1, true));
    disk.put_record(0, 5, of(103, 99), 1);
    let (engine, report) = Engine::open(config(), &mut disk, &mut Shared::new()).expect("opened");
    assert_eq!(report.records_replayed, 2);
    assert!(engine.has_taken(VolumeId(2), tag(100)));
    assert!(!engine.has_taken(VolumeId(2), tag(101)), "it goes on");
    assert!(!engine.has_taken(VolumeId(2), tag(102)), "nowhere");
    assert!(!engine.has_taken(VolumeId(2), tag(103)), "in a torn tail");
}

#[test]
fn a_recovery_killed_behind_its_checkpoint_leaves_a_stage_of_that_run() {
    let mut disk = Disk::new(Vec::new());
    let mut stage = Shared::new();
    // Records, footers, then the checkpoint, whose sync does not come back.
    disk.syncs_left = Some(2);
    let killed = Engine::open(config(), &mut disk, &mut stage).map(|_| ());
    assert!(matches!(killed, Err(OpenError::Io(_))));
    assert_eq!(disk.checkpoint(43).incarnation, 10);
    assert_eq!(stage.runs(), [9, 10], "one for each that may be found");
    let killed = Engine::open(config(), &mut disk, &mut stage).map(|_| ());
    assert!(matches!(killed, Err(OpenError::Io(_))), "killed once more");
    assert_eq!(stage.runs(), [9, 10], "before it had a checkpoint");
    disk.syncs_left = None;
    let (_, report) = Engine::open(config(), &mut disk, &mut stage).expect("opened");
    assert!(report.stage_found);
    let newest = disk.checkpoint(44).incarnation;
    assert_eq!(stage.runs(), [newest; 2]);
    // What was not believed is not named before it is empty.
    let other = StageHeader {
        boot: Uuid([1; 16]),
        ..HEADER
    };
    let (mut disk, mut stage) = (Disk::new(Vec::new()), Shared::of(other));
    disk.syncs_left = Some(2);
    let killed = Engine::open(config(), &mut disk, &mut stage).map(|_| ());
    assert!(matches!(killed, Err(OpenError::Io(_))));
    assert_eq!(stage.headers(), [other; 2]);
}

#[test]
fn verify_reads_each_block_that_counts_and_names_the_bad_ones() {
    let mut disk = Disk::new(vec![listed(8, 50, (0, 0), record::STREAM_FILL)]);
    disk.put_record(5, 0, of(100, 99), 2);
    disk.put_record(5, 3, of(101, 100), 1);
    disk.put_fill(8, 0, life(50, 9));
    disk.put_fill(8, 4, life(50, 9));
    let (report, steps) = disk.verify();
    assert_eq!((report.segments, report.blocks), (2, 3));
    assert_eq!((report.clean_blocks, report.damage.len()), (6, 0));
    assert_eq!((report.bad_blocks, report.bad_clean_blocks), (0, 0));
    assert_eq!(steps, [(0, 2), (1, 2), (2, 2)]);

    // The second block of the write, and two of the clean ones.
    disk.lose(5, 2);
    disk.lose(8, 3);
    disk.lose(8, 5);
    let (report, steps) = disk.verify();
    assert_eq!((report.segments, report.blocks), (2, 3));
    assert_eq!((report.clean_blocks, report.bad_clean_blocks), (6, 2));
    assert_eq!(report.bad_blocks, 1);
    let bad = "segment 5 block 2: checksum does not match (volume 2, sector 100000)";
    assert_eq!(report.damage, [bad]);
    assert_eq!(steps, [(0, 2), (1, 2), (2, 2)]);

    // Read in one piece, as only `verify` does.
    disk.fails_at_bytes = GEOMETRY.segment_bytes() as usize;
    let (report, steps) = disk.verify();
    assert_eq!((report.segments, report.blocks), (2, 0));
    assert_eq!((report.clean_blocks, report.bad_clean_blocks), (6, 6));
    assert_eq!(report.damage, ["segment 5 cannot be read"]);
    assert_eq!(steps, [(0, 2), (1, 2), (2, 2)]);
}

#[test]
fn a_report_holds_a_hundred_lines_of_damage_and_counts_the_rest() {
    let mut disk = Disk::new(Vec::new());
    let mut stream_seq = 100;
    for segment in 0..6 {
        for chunk in 0..GEOMETRY.segment_chunks - 1 {
            let identity = Identity {
                segment_seq: 55 + u64::from(segment),
                ..of(stream_seq, stream_seq - 1)
            };
            disk.put_record(segment, chunk * CHUNK, identity, CHUNK - 1);
            for block in 1..CHUNK {
                disk.lose(segment, chunk * CHUNK + block);
            }
            stream_seq += 1;
        }
    }
    // One more says that all of these were synced.
    let last = Identity {
        segment_seq: 61,
        ..of(stream_seq, stream_seq - 1)
    };
    disk.put_record(6, 0, last, 1);
    let (report, _) = disk.verify();
    let bad = 6 * 3 * u64::from(CHUNK - 1);
    assert_eq!((report.bad_blocks, report.blocks), (bad, bad + 1));
    assert!(bad > 100);
    assert_eq!(report.damage.len(), 100);
}

impl Disk {
    /// Opened, and what is shown of its volume: dirty bytes and writes.
    fn open(&mut self, stage: &mut Shared) -> (u64, u64) {
        let (engine, _) = Engine::open(config(), self, stage).expect("opened");
        let shown = engine.snapshot().volumes;
        (shown[0].dirty_bytes, shown[0].dirty_writes)
    }
}

#[test]
fn a_footer_alone_speaks_for_its_segment_once_a_sync_has_covered_it() {
    let with = |durable_upto| {
        let mut disk = Disk::new(Vec::new());
        disk.put_records(1, 56, 100..=102);
        disk.put_footer(1, 56, 100..=102);
        let last = Identity {
            segment_seq: 57,
            ..of(103, durable_upto)
        };
        disk.put_record(2, 0, last, 1);
        disk
    };
    let mut disk = with(99);
    assert_eq!(disk.look(), (bytes(4), Vec::new()), "all of it is there");
    disk.lose(1, 2);
    assert_eq!(disk.look(), (bytes(1), Vec::new()), "a torn tail");
    let mut disk = with(102);
    disk.lose(1, 2);
    assert_eq!(disk.look(), (bytes(4), Vec::new()), "it was synced");
    // Of a former life it says nothing.
    disk.put_footer(1, 40, 60..=62);
    let lost = "records 101 to 101 of the log were synced and cannot be found";
    assert_eq!(disk.look(), (bytes(3), vec![lost.into()]));
}

/// The footer has a write whose rest never came. The one without it, of which no sync has told, is
/// written again, or the next loss of power would bring that write back.
#[test]
fn a_footer_that_a_failed_recovery_has_left_is_written_again() {
    let mut disk = Disk::new(Vec::new());
    let identity = |stream_seq| Identity {
        segment_seq: 56,
        ..of(stream_seq, 101)
    };
    disk.put_record(1, 0, identity(100), 1);
    disk.put_piece(1, 2, identity(101), (1, true));
    let mut sums = vec![0; BODY as usize];
    let mut entries = Vec::new();
    for (stream_seq, block) in [(100, 1), (101, 3)] {
        let piece = Entry {
            more: stream_seq == 101,
            ..write_of(&identity(stream_seq), 1)
        };
        entries.push(in_footer(&piece, block));
        sums[block as usize] = checksum(&[&payload(stream_seq, 1)]);
    }
    let footer = Footer {
        segment_seq: 56,
        first_stream_seq: 100,
        last_stream_seq: 101,
        durable_upto: 101,
        ..common::footer(entries, sums)
    };
    disk.put(1, BODY, &footer.encode());
    let at = disk.block_at(1, BODY);
    for syncs_left in [Some(1), None] {
        disk.written.clear();
        disk.syncs_left = syncs_left;
        let opened = Engine::open(config(), &mut disk, &mut Shared::new());
        assert_eq!(opened.is_ok(), syncs_left.is_none());
        assert!(disk.written.contains(&at), "{syncs_left:?}");
    }
    assert_eq!(disk.look().0, bytes(1));
}

#[test]
fn numbers_that_only_a_footer_names_are_not_given_again() {
    let mut disk = Disk::new(Vec::new());
    disk.put_footer(4, 58, 100..=110);
    Engine::open(config(), &mut disk, &mut Shared::new()).expect("opened");
    let next = disk.checkpoint(43);
    assert_eq!((next.stream_seq_next, next.segment_seq_next), (111, 59));
}

#[test]
fn a_listed_segment_with_its_footer_or_open_until_now_is_no_damage() {
    let open = listed(1, 51, (95, u64::MAX), record::STREAM_WRITES);
    let footered = listed(2, 50, (92, 94), record::STREAM_WRITES);
    let opened = listed(3, 52, (0, u64::MAX), record::STREAM_WRITES);
    let overlay = listed(4, 53, (90, u64::MAX), record::STREAM_OVERLAY);
    let mut disk = Disk::new(vec![open, footered, opened, overlay]);
    disk.put_records(1, 51, 95..=99);
    disk.put_footer(2, 50, 92..=94);
    assert_eq!(disk.look(), (bytes(8), Vec::new()));
    // A record that came later takes nothing away.
    let later = Identity {
        segment_seq: 51,
        ..of(100, 99)
    };
    disk.put_record(1, 10, later, 1);
    assert_eq!(disk.look(), (bytes(9), Vec::new()));
}

#[test]
fn of_a_settled_segment_only_its_footer_says_what_counts_and_of_its_next_life_nothing() {
    let settled = SegmentRecord {
        settled: true,
        ..listed(1, 50, (95, 97), record::STREAM_WRITES)
    };
    let mut disk = Disk::new(vec![settled]);
    disk.put_records(1, 50, 95..=97);
    let lost = "segment 1: its footer cannot be read, and only that says what counts";
    assert_eq!(disk.look(), (0, vec![lost.into()]));
    disk.put_footer(1, 50, 95..=97);
    assert_eq!(disk.look(), (bytes(3), Vec::new()));
    disk.lose(1, BODY);
    disk.put_records(1, 56, 100..=101);
    assert_eq!(disk.look(), (bytes(2), Vec::new()), "another life");
}

#[test]
fn behind_one_torn_record_nothing_counts_and_a_second_one_changes_nothing() {
    let mut disk = Disk::new(Vec::new());
    disk.put_records(0, 55, 100..=103);
    disk.lose(0, 3);
    disk.lose(0, 5);
    assert_eq!(disk.look(), (bytes(1), Vec::new()));
}

#[test]
fn what_a_guest_writes_is_no_record_and_what_is_open_is_one_in_the_stage_only() {
    let mut disk = Disk::new(Vec::new());
    disk.put_record(0, 0, of(100, 99), 2);
    // The last block of its payload looks like one.
    let inner = sealed(&of(101, 99), write_of(&of(101, 99), 1));
    disk.put(0, 2, &inner[..BLOCK]);
    let (_, damage) = disk.look();
    assert_eq!(damage, Vec::<String>::new());
    let (engine, report) = Engine::open(config(), &mut disk, &mut Shared::new()).expect("opened");
    assert_eq!(report.records_replayed, 0, "its payload is another one");
    assert!(!engine.has_taken(VolumeId(2), tag(101)));

    let mut disk = Disk::new(Vec::new());
    disk.put_record(0, 0, of(100, 99), 1);
    let open = open(&of(101, 99), write_of(&of(101, 99), 1));
    disk.put(0, 2, &open);
    assert_eq!(disk.look(), (bytes(1), Vec::new()));
}

#[test]
fn every_block_of_a_segment_is_verified_where_its_record_lies() {
    let mut disk = Disk::new(Vec::new());
    disk.put_record(1, 0, of(100, 99), 2);
    disk.put_record(1, CHUNK + 1, of(101, 99), 2);
    disk.put_record(1, 2 * CHUNK, of(102, 99), 7);
    // Two writes of one record.
    let write = |serial: u64, blocks: u64, first: u16| {
        let span = Span::new(serial * 1000, blocks * 8);
        entry(serial, EntryKind::Write, span, first, false)
    };
    let writes = [write(103, 1, 0), write(104, 2, 1)];
    let payload = [payload(103, 1), payload(104, 2)].concat();
    let sums: Vec<u32> = payload.chunks(BLOCK).map(|it| checksum(&[it])).collect();
    let identity = Identity {
        segment_seq: 56,
        ..of(103, 99)
    };
    let mut head = common::open_record_of(&identity, &writes, &sums);
    record::seal_record(&mut head, 2, 3);
    disk.put(2, 0, &head);
    disk.put(2, 1, &payload);
    let (report, _) = disk.verify();
    assert_eq!((report.blocks, report.bad_blocks), (14, 0));
}

#[test]
fn of_a_write_that_is_not_whole_nothing_counts_not_even_when_others_follow() {
    let piece = |serial: u64, sector: u64, more: bool| Entry {
        more,
        ..entry(serial, EntryKind::Write, Span::new(sector, 8), 0, false)
    };
    let put = |disk: &mut Disk, segment: u32, stream_seq: u64, write: Entry| {
        let identity = Identity {
            segment_seq: 55 + u64::from(segment),
            ..of(stream_seq, 99)
        };
        disk.put(segment, 0, &sealed(&identity, write));
    };
    // Its last piece is missing; an older write lies behind it on the volume.
    let mut disk = Disk::new(Vec::new());
    put(&mut disk, 0, 100, piece(7, 800, false));
    put(&mut disk, 1, 101, piece(8, 0, true));
    put(&mut disk, 2, 102, piece(8, 8, true));
    assert_eq!(disk.open(&mut Shared::new()), (bytes(1), 1));
    let next = disk.checkpoint(43);
    let follows = Identity {
        incarnation: next.incarnation,
        segment_seq: next.segment_seq_next,
        stream_seq: next.stream_seq_next,
        ..of(0, 99)
    };
    disk.put(6, 0, &sealed(&follows, piece(9, 1600, false)));
    assert_eq!(disk.look(), (bytes(2), Vec::new()), "not later either");

    // Whole, though its last piece is found first, and was moved since.
    let mut disk = Disk::new(Vec::new());
    put(&mut disk, 0, 102, piece(8, 16, false));
    put(&mut disk, 1, 103, piece(8, 16, false));
    put(&mut disk, 2, 100, piece(8, 0, true));
    put(&mut disk, 3, 101, piece(8, 8, true));
    assert_eq!(disk.look(), (bytes(3), Vec::new()));
    assert_eq!(disk.open(&mut Shared::new()), (bytes(3), 1), "one write");

    // What a reset has voided makes nothing whole.
    let reset = VolumeRecord {
        base_generation: Generation(7),
        ..volume()
    };
    let mut disk = Disk::of(reset, Vec::new());
    put(&mut disk, 0, 100, piece(8, 0, true));
    let voided = Entry {
        generation: Generation(6),
        ..piece(9, 8, false)
    };
    put(&mut disk, 1, 101, voided);
    assert_eq!(disk.look(), (0, Vec::new()));
}

#[test]
fn what_was_voided_destaged_or_lies_behind_the_end_of_its_volume_is_not_taken() {
    let taken = |volume: VolumeRecord| {
        let mut disk = Disk::of(volume, Vec::new());
        disk.put_records(0, 55, 100..=102);
        disk.look().0
    };
    let base = |generation| VolumeRecord {
        base_generation: Generation(generation),
        ..volume()
    };
    assert_eq!(taken(base(6)), bytes(3));
    assert_eq!(taken(base(7)), bytes(3));
    assert_eq!(taken(base(8)), 0, "voided");
    let destaged = |serial| VolumeRecord {
        destaged: Serial(serial),
        ..volume()
    };
    assert_eq!(taken(destaged(100)), bytes(2));
    assert_eq!(taken(destaged(101)), bytes(1));
    let sectors = |sectors: u64| VolumeRecord {
        size_bytes: sectors * 512,
        ..volume()
    };
    // Each write begins at its serial, times a thousand.
    assert_eq!(taken(sectors(101_008)), bytes(2), "to its end");
    assert_eq!(taken(sectors(101_000)), bytes(1));
    assert_eq!(taken(sectors(100_500)), bytes(1));
}

#[test]
fn no_serial_and_no_generation_is_given_again() {
    let known = VolumeRecord {
        generation: Generation(30),
        serial_next: Serial(1),
        destaged: Serial(500),
        ..volume()
    };
    let mut disk = Disk::of(known, Vec::new());
    Engine::open(config(), &mut disk, &mut Shared::new()).expect("opened");
    let next = disk.checkpoint(43);
    assert_eq!(next.volumes[0].serial_next, Serial(501));
    assert_eq!(next.volumes[0].generation, Generation(31));
    assert_eq!(next.generation_next, 32);
    // Not those of what was not accepted, either.
    let mut disk = Disk::new(Vec::new());
    disk.put_records(0, 55, 100..=103);
    disk.lose(0, 3);
    assert_eq!(disk.open(&mut Shared::new()), (bytes(1), 1));
    assert_eq!(disk.checkpoint(43).volumes[0].serial_next, Serial(104));
}

#[test]
fn a_segment_holds_the_records_of_one_run_and_of_no_run_before() {
    let before = |stream_seq| Identity {
        incarnation: 8,
        ..of(stream_seq, 99)
    };
    let mut disk = Disk::new(Vec::new());
    disk.put_record(0, 0, of(100, 99), 1);
    disk.put_record(0, 2, before(101), 1);
    assert_eq!(disk.look(), (bytes(1), Vec::new()));
    let mut disk = Disk::new(Vec::new());
    disk.put_record(0, 0, before(100), 1);
    disk.put_record(0, 2, of(100, 99), 2);
    assert_eq!(disk.look(), (bytes(2), Vec::new()));
}

/// A life of a segment that began first after the checkpoint.
fn in_life(segment_seq: u64, stream_seq: u64) -> Identity {
    Identity {
        segment_seq,
        ..of(stream_seq, 99)
    }
}

/// A machine whose daemon was killed: some of its records were on the device, some were not, and
/// one was open.
fn killed() -> (Disk, Shared) {
    let life = listed(1, 50, (97, 99), record::STREAM_WRITES);
    let mut disk = Disk::new(vec![life]);
    disk.put_records(1, 50, 97..=99);
    let mut stage = Shared::new();
    let sealed = |n, blocks| sealed(&in_life(56, n), write_of(&of(n, 99), blocks));
    let open = |n, blocks| open(&in_life(56, n), write_of(&of(n, 99), blocks));
    let mut put = |slot, chunk, bytes: &[u8]| {
        stage.put_slot(slot, (2, chunk), &in_life(56, 0), bytes);
    };
    put(5, 0, &sealed(100, 7));
    put(3, 1, &[sealed(101, 2), sealed(102, 1)].concat());
    put(2, 2, &[sealed(103, 1), open(104, 2)].concat());
    // What slots say that were not used again: of older lives, before and behind.
    for slot in [1, 6] {
        stage.put_slot(slot, (2, 1), &in_life(52, 0), &[0xee; BLOCK]);
    }
    // A slot of another run, and one that names no chunk.
    let other = Identity {
        incarnation: 8,
        ..in_life(60, 0)
    };
    stage.put_slot(0, (2, 0), &other, &[0xee; BLOCK]);
    let nowhere = (GEOMETRY.segments, 0);
    stage.put_slot(7, nowhere, &in_life(60, 0), &[0xee; BLOCK]);
    (disk, stage)
}

#[test]
fn what_only_the_stage_has_is_in_the_log_before_anybody_is_served() {
    let all = bytes(3 + 13);
    let (mut disk, mut stage) = killed();
    let (engine, report) = Engine::open(config(), &mut disk, &mut stage).expect("opened");
    assert!(report.stage_found && report.damage.is_empty());
    assert_eq!(report.records_replayed, 8);
    assert_eq!(engine.snapshot().volumes[0].dirty_bytes, all);
    drop(engine);
    // The power is lost, and with it the stage.
    assert_eq!(disk.look(), (all, Vec::new()));
    let (report, _) = disk.verify();
    assert_eq!((report.blocks, report.bad_blocks), (16, 0));
    assert_eq!(disk.open(&mut Shared::new()), (all, 8));
    assert_eq!(disk.look(), (all, Vec::new()), "nor later");

    // It is lost before any footer speaks of what came from the stage.
    let (mut disk, mut stage) = killed();
    disk.syncs_left = Some(1);
    Engine::open(config(), &mut disk, &mut stage)
        .map(|_| ())
        .expect_err("killed");
    disk.lose(2, BODY);
    disk.syncs_left = None;
    assert_eq!(disk.look(), (all, Vec::new()));
}

/// One request after the other would make a start as slow as the device is far.
#[test]
fn what_recovery_reads_and_writes_it_asks_for_together() {
    let (mut disk, mut stage) = killed();
    disk.put_records(3, 51, 90..=92);
    disk.put_footer(3, 51, 90..=92);
    disk.put_records(4, 52, 93..=96);
    disk.put_footer(4, 52, 93..=96);
    let lives = [(1, 50, (97, 99)), (3, 51, (90, 92)), (4, 52, (93, 96))];
    let stream = record::STREAM_WRITES;
    let segments = lives.map(|(index, seq, numbers)| listed(index, seq, numbers, stream));
    let checkpoint = Disk::new(segments.to_vec()).checkpoint(42);
    let at = disk.checkpoint_at(42) as usize;
    let bytes_of = checkpoint.encode();
    disk.bytes[at..at + bytes_of.len()].copy_from_slice(&bytes_of);
    assert_eq!(disk.open(&mut stage), (bytes(3 + 13 + 7), 3 + 5 + 7));
    // Both ends of twelve segments; two footers; the chunks of segment 1, all on the device. Those
    // of segment 2 are all in the stage.
    assert_eq!(disk.reads_together, [24, 2, 3]);
    // Three chunks of the stage, then the footers of segments 1 and 2.
    assert_eq!(disk.writes_together, [3, 2]);
}

/// What a sync had covered when the daemon was killed is on the device as it is in the stage.
#[test]
fn what_a_sync_has_covered_is_not_written_again_from_the_stage() {
    let record = |n, synced, blocks| {
        let identity = Identity {
            durable_upto: synced,
            ..in_life(56, n)
        };
        sealed(&identity, write_of(&of(n, 99), blocks))
    };
    let chunks = [
        record(100, 99, 7),
        [record(101, 99, 2), record(102, 101, 1), record(103, 101, 1)].concat(),
        record(104, 101, 3),
    ];
    let mut disk = Disk::new(Vec::new());
    let mut stage = Shared::new();
    for (n, records) in (0..).zip(&chunks) {
        stage.put_slot(n, (2, n), &in_life(56, 0), records);
    }
    let upto_101 = &chunks[1][..3 * BLOCK];
    disk.put(2, 0, &chunks[0]);
    disk.put(2, CHUNK, upto_101);
    disk.written.clear();
    assert_eq!(disk.open(&mut stage), (bytes(14), 5));
    let [again, behind, footer] = [CHUNK + 3, 2 * CHUNK, BODY].map(|it| disk.block_at(2, it));
    assert_eq!(disk.written[..3], [again, behind, footer]);
    // The power is lost, and with it the stage.
    assert_eq!(disk.look(), (bytes(14), Vec::new()));
    let (report, _) = disk.verify();
    assert_eq!((report.blocks, report.bad_blocks), (14, 0));
}

#[test]
fn a_segment_that_only_slots_name_may_be_the_first_or_the_last() {
    for segment in [0, GEOMETRY.segments - 1] {
        let mut disk = Disk::new(Vec::new());
        let mut stage = Shared::new();
        let record = sealed(&in_life(56, 100), write_of(&of(100, 99), 3));
        stage.put_slot(0, (segment, 0), &in_life(56, 0), &record);
        assert_eq!(disk.open(&mut stage), (bytes(3), 1));
        assert_eq!(disk.look(), (bytes(3), Vec::new()));
    }
}

#[test]
fn a_bad_block_in_the_stage_takes_nothing_else_with_it() {
    let mut disk = Disk::new(Vec::new());
    let mut stage = Shared::new();
    let mut records = sealed(&in_life(56, 100), write_of(&of(100, 99), 2));
    records[BLOCK] ^= 1;
    records.extend(sealed(&in_life(56, 101), write_of(&of(101, 99), 1)));
    stage.put_slot(0, (2, 0), &in_life(56, 0), &records);
    assert_eq!(disk.open(&mut stage), (bytes(3), 2));
    let (report, _) = disk.verify();
    assert_eq!((report.blocks, report.bad_blocks), (3, 1));
}

#[test]
fn the_stage_of_another_cache_boot_shape_or_run_is_not_looked_at() {
    let others = [
        StageHeader {
            cache: Uuid([1; 16]),
            ..HEADER
        },
        StageHeader {
            boot: Uuid([1; 16]),
            ..HEADER
        },
        StageHeader {
            chunk_blocks: 2 * CHUNK,
            ..HEADER
        },
        StageHeader {
            incarnation: 8,
            ..HEADER
        },
    ];
    for header in others {
        let mut disk = Disk::new(Vec::new());
        let mut stage = Shared::of(header);
        let record = sealed(&in_life(56, 100), write_of(&of(100, 99), 3));
        stage.put_slot(0, (2, 0), &in_life(56, 0), &record);
        let (_, report) = Engine::open(config(), &mut disk, &mut stage).expect("opened");
        assert!(!report.stage_found, "{header:?}");
        assert_eq!(report.records_replayed, 0, "{header:?}");
        assert_eq!(stage.runs(), [10, 10]);
    }
}

#[test]
fn a_stage_that_is_gone_in_its_boot_is_told_of_the_volumes_that_may_miss_it_and_not_forgotten() {
    let foreign = || {
        Shared::of(StageHeader {
            cache: Uuid([1; 16]),
            ..HEADER
        })
    };
    let lost = |disk: &mut Disk, sequence| disk.checkpoint(sequence).volumes[0].stage_lost;
    let machine = |staged| {
        let mut disk = Disk::of(VolumeRecord { staged, ..volume() }, Vec::new());
        disk.put_records(0, 55, 100..=102);
        disk
    };
    let mut disk = machine(true);
    assert_eq!(disk.open(&mut foreign()), (bytes(3), 3), "what the log has");
    assert!(lost(&mut disk, 43));
    // The run that told it was killed.
    assert_eq!(disk.open(&mut Shared::new()).0, bytes(3));
    assert!(lost(&mut disk, 44), "nobody has accepted it");

    let mut disk = machine(true);
    disk.open(&mut Shared::new());
    assert!(!lost(&mut disk, 43), "it is there");
    let mut disk = machine(false);
    disk.open(&mut foreign());
    assert!(!lost(&mut disk, 43), "it has ended in order");
    let mut disk = machine(true);
    let booted = Config {
        boot: Uuid([2; 16]),
        ..config()
    };
    Engine::open(booted, &mut disk, &mut foreign()).expect("opened");
    assert!(!lost(&mut disk, 43), "the host was down");
}

#[test]
fn a_new_run_has_a_stage_that_names_it_and_mirrors_nothing() {
    // One slot more than a block of the table holds.
    let slots = 129;
    let mut stage = Shared::of(StageHeader { slots, ..HEADER });
    for slot in 0..slots {
        stage.put_slot(slot, (2, 0), &in_life(50, 0), &[0xee; BLOCK]);
    }
    assert!(stage.slot(slots - 1).is_some());
    let config = Config {
        stage_slots: slots - 1,
        overlay_slots: 1,
        ..config()
    };
    let mut disk = Disk::new(Vec::new());
    Engine::open(config, &mut disk, &mut stage).expect("opened");
    let header = StageHeader {
        incarnation: 10,
        slots,
        ..HEADER
    };
    assert_eq!(stage.headers(), [header; 2]);
    assert!((0..slots).all(|slot| stage.slot(slot).is_none()));
}

#[test]
fn an_overlay_is_there_after_every_kill_and_clean_after_the_host_was_down() {
    let overlay = VolumeRecord {
        policy: Policy::Ephemeral,
        ..volume()
    };
    let spilled = Identity {
        stream: record::STREAM_OVERLAY,
        ..in_life(56, 100)
    };
    let staged = Identity {
        stream_seq: 104,
        ..spilled
    };
    let machine = || {
        let mut disk = Disk::of(overlay.clone(), Vec::new());
        disk.put_record(3, 0, spilled, 2);
        let mut stage = Shared::new();
        let record = sealed(&staged, write_of(&staged, 3));
        stage.put_slot(7, (3, 1), &staged, &record);
        (disk, stage)
    };
    let (mut disk, mut stage) = machine();
    for sequence in 43..46 {
        assert_eq!(disk.open(&mut stage), (bytes(5), 2));
        let base = disk.checkpoint(sequence).volumes[0].base_generation;
        assert_eq!(base, Generation(5), "it goes on");
    }
    // The host was down: the stage is empty, or that of another boot of it.
    let (mut disk, _) = machine();
    let mut empty = Shared::of(StageHeader {
        boot: Uuid([1; 16]),
        ..HEADER
    });
    assert_eq!(disk.open(&mut empty), (0, 0));
    assert_eq!(
        disk.checkpoint(43).volumes[0].base_generation,
        Generation(8)
    );
    let (mut disk, mut stage) = machine();
    let booted = Config {
        boot: Uuid([2; 16]),
        ..config()
    };
    let (engine, _) = Engine::open(booted, &mut disk, &mut stage).expect("opened");
    assert_eq!(engine.snapshot().volumes[0].dirty_bytes, 0);
    assert_eq!(
        disk.checkpoint(43).volumes[0].base_generation,
        Generation(8)
    );
}

/// What a program of before, or a damage of the first copy, leaves in one of them would be believed
/// when the other is lost.
#[test]
fn both_superblocks_say_the_same_behind_a_recovery() {
    for (at, other) in [(0, 4096), (4096, 0)] {
        let mut disk = Disk::new(Vec::new());
        let whole = disk.superblock();
        let before = Superblock {
            inline_records: false,
            ..whole
        };
        let left: &[u8] = match at {
            0 => &[0; 4096],
            _ => &before.encode(),
        };
        disk.bytes[at..at + 4096].copy_from_slice(left);
        assert_eq!(disk.superblock(), whole);
        Engine::open(config(), &mut disk, &mut Shared::new()).expect("opened");
        disk.bytes[other..other + 4096].fill(0);
        assert_eq!(disk.superblock(), whole, "the copy at {at}");
    }
}

#[test]
fn a_superblock_of_a_later_program_is_not_passed_over_for_the_other_copy() {
    let mut disk = Disk::new(Vec::new());
    disk.bytes[16] |= 4;
    engine::format::seal(&mut disk.bytes[..4096]);
    let refused = engine::engine::inspect(&mut disk).err();
    assert!(
        matches!(refused, Some(OpenError::Foreign(_))),
        "{refused:?}"
    );
}
