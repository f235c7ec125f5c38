//! What recovery and the offline tools make of a device that was written by hand.
//!
//! Always true: the checkpoint is that of `common`, so records from 100 on and lives from 55 on
//! came after it; a record has the serial of its number, and one write of whole blocks.

mod common;

use common::{BOOT, CACHE, MACHINE, checkpoint, entry, identity, open_record_of};
use engine::engine::{Config, Engine, OpenError, VerifyReport, device_bytes, format_cache};
use engine::engine::{inspect, read_superblock, verify};
use engine::event::{Device, IoError, Stat};
use engine::format::checkpoint::{Checkpoint, SegmentRecord, VolumeRecord};
use engine::format::checksum;
use engine::format::fill::{FillFooter, FillRecord, Life, Run};
use engine::format::footer::body_blocks;
use engine::format::record::{self, EntryKind, Identity};
use engine::format::stage::{self, StageHeader};
use engine::format::superblock::{CHECKPOINT_AT, Superblock};
use engine::media::Media;
use engine::memory::{Area, Memory, Place};
use engine::types::{Generation, Geometry, Policy, Serial, Span, Tag, Uuid, VolumeId};

const GEOMETRY: Geometry = Geometry {
    chunk_blocks: 8,
    segment_chunks: 4,
    segments: 12,
};
const BLOCK: usize = 4096;
/// Blocks of a chunk, and of a segment before its footer.
const CHUNK: u32 = GEOMETRY.chunk_blocks;
const BODY: u32 = 24;
const SLOTS: u32 = 8;

#[derive(Default)]
struct Disk {
    bytes: Vec<u8>,
    /// Syncs that succeed before one fails.
    syncs_left: Option<u32>,
    /// Reads of so many bytes fail.
    fails_at_bytes: usize,
}

impl Media for Disk {
    fn read(&mut self, _: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        if bytes.len() == self.fails_at_bytes {
            return Err(IoError::Failed);
        }
        let at = offset as usize;
        bytes.copy_from_slice(&self.bytes[at..at + bytes.len()]);
        Ok(())
    }

    fn write(&mut self, _: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let at = offset as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn zero(&mut self, device: Device, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.write(device, offset, &vec![0; bytes as usize])
    }

    fn sync(&mut self, _: Device) -> Result<(), IoError> {
        if let Some(left) = &mut self.syncs_left {
            *left = left.checked_sub(1).ok_or(IoError::Failed)?;
        }
        Ok(())
    }

    fn stat(&mut self, _: Device) -> Result<Stat, IoError> {
        Err(IoError::Failed)
    }
}

/// The stage; recovery touches no other memory.
struct Shared(Vec<u8>);

impl Shared {
    /// Of the run that the checkpoint of `common` names: a header and nothing else.
    fn new() -> Shared {
        let bytes = Config::stage_bytes(GEOMETRY.chunk_bytes(), SLOTS);
        let mut stage = Shared(vec![0; bytes as usize]);
        let header = StageHeader {
            cache: CACHE,
            boot: BOOT,
            incarnation: 9,
            slots: SLOTS,
            chunk_blocks: GEOMETRY.chunk_blocks,
        };
        for at in stage::HEADER_AT {
            stage.store(Place::new(Area::Stage, at), &header.encode());
        }
        stage
    }

    fn runs(&self) -> [u64; 2] {
        stage::HEADER_AT.map(|at| {
            let mut bytes = vec![0; stage::HEADER_BYTES];
            self.load(Place::new(Area::Stage, at), &mut bytes);
            StageHeader::parse(&bytes).expect("whole").incarnation
        })
    }
}

impl Memory for Shared {
    fn copy(&mut self, _: Place, _: Place, _: u64) {
        unreachable!("recovery copies nothing within memory");
    }

    fn zero(&mut self, to: Place, bytes: u64) {
        self.store(to, &vec![0; bytes as usize]);
    }

    fn store(&mut self, to: Place, bytes: &[u8]) {
        assert_eq!(to.area, Area::Stage);
        let at = to.offset as usize;
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn load(&self, from: Place, bytes: &mut [u8]) {
        let at = from.offset as usize;
        bytes.copy_from_slice(&self.0[at..at + bytes.len()]);
    }

    fn stage_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn checksum(&self, _: Place, _: u64) -> u32 {
        unreachable!("recovery sums nothing within memory");
    }
}

fn config() -> Config {
    Config {
        machine: MACHINE,
        boot: BOOT,
        host_name: "host-a".into(),
        stage_slots: 6,
        overlay_slots: 2,
        ram_blocks: 64,
        scratch_bytes: Config::SCRATCH_BYTES_MIN,
        dirty_extents_max: 1000,
        index_bytes_max: 1 << 20,
        hash_seed: 1,
    }
}

fn volume() -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(2),
        uuid: common::VOLUME,
        generation: Generation(7),
        base_generation: Generation(5),
        policy: Policy::WriteBack,
        destage_in_place: false,
        journal_possible: true,
        ended: false,
        first_serial: Serial(1),
        serial_next: Serial(1),
        destaged: Serial(0),
        size_bytes: 1 << 30,
        name: "disk".into(),
        origin: "/disk.img".into(),
    }
}

fn listed(index: u32, seq: u64, (first, last): (u64, u64), stream: u16) -> SegmentRecord {
    SegmentRecord {
        index,
        seq,
        first_stream_seq: first,
        last_stream_seq: last,
        stream,
        settled: false,
    }
}

impl Disk {
    /// A cache whose newest checkpoint lists these segments.
    fn new(segments: Vec<SegmentRecord>) -> Disk {
        let mut disk = Disk {
            bytes: vec![0; device_bytes(GEOMETRY) as usize],
            ..Disk::default()
        };
        format_cache(&mut disk, CACHE, GEOMETRY).expect("made");
        let checkpoint = Checkpoint {
            segments_total: GEOMETRY.segments,
            ..checkpoint(vec![volume()], segments)
        };
        let at = disk.checkpoint_at(checkpoint.sequence);
        disk.write(Device::Cache, at, &checkpoint.encode())
            .expect("written");
        disk
    }

    fn superblock(&mut self) -> Superblock {
        read_superblock(self).expect("whole")
    }

    fn checkpoint_at(&mut self, sequence: u64) -> u64 {
        CHECKPOINT_AT + sequence % 2 * self.superblock().checkpoint_slot_bytes
    }

    fn checkpoint(&mut self, sequence: u64) -> Checkpoint {
        let at = self.checkpoint_at(sequence) as usize;
        let length = Checkpoint::parse_length(&self.bytes[at..], u64::MAX).expect("whole");
        Checkpoint::parse(&self.bytes[at..at + length as usize], CACHE).expect("whole")
    }

    fn block_at(&mut self, segment: u32, block: u32) -> u64 {
        let blocks = u64::from(segment) * GEOMETRY.segment_blocks() + u64::from(block);
        self.superblock().log_at + blocks * BLOCK as u64
    }

    fn put(&mut self, segment: u32, block: u32, bytes: &[u8]) {
        let at = self.block_at(segment, block);
        self.write(Device::Cache, at, bytes).expect("written");
    }

    fn block(&mut self, segment: u32, block: u32) -> Vec<u8> {
        let at = self.block_at(segment, block) as usize;
        self.bytes[at..at + BLOCK].to_vec()
    }

    /// A record of one write, sealed, with its payload behind it.
    fn put_record(&mut self, segment: u32, block: u32, identity: Identity, blocks: u32) {
        self.put_piece(segment, block, identity, (blocks, false));
    }

    /// The same of a write that may go on.
    fn put_piece(
        &mut self,
        segment: u32,
        block: u32,
        identity: Identity,
        (blocks, more): (u32, bool),
    ) {
        let serial = identity.stream_seq;
        let span = Span::new(serial * 1000, u64::from(blocks) * 8);
        let mut write = entry(serial, EntryKind::Write, span, 0, more);
        write.tag = tag(serial);
        let payload = payload(serial, blocks);
        let sums: Vec<u32> = payload.chunks(BLOCK).map(|it| checksum(&[it])).collect();
        let mut bytes = open_record_of(&identity, &[write], &sums);
        record::seal_record(&mut bytes, 1, blocks as u16);
        self.put(segment, block, &bytes);
        self.put(segment, block + 1, &payload);
    }

    /// Takes what lies in a block away.
    fn lose(&mut self, segment: u32, block: u32) {
        self.put(segment, block, &[0xee; BLOCK]);
    }

    /// Bytes of the volume that recovery would put into service, and what it says of damage.
    fn look(&mut self) -> (u64, Vec<String>) {
        let info = inspect(self).expect("opened");
        (info.volumes[0].1, info.damage)
    }

    fn verify(&mut self) -> (VerifyReport, Vec<(u64, u64)>) {
        let mut steps = Vec::new();
        let report = verify(self, &mut |done, of| steps.push((done, of)));
        (report.expect("read"), steps)
    }
}

fn payload(serial: u64, blocks: u32) -> Vec<u8> {
    vec![serial as u8; blocks as usize * BLOCK]
}

fn tag(counter: u64) -> Tag {
    Tag { region: 1, counter }
}

/// A record of the life that a segment began first after the checkpoint.
fn of(stream_seq: u64, durable_upto: u64) -> Identity {
    Identity {
        segment_seq: 55,
        stream_seq,
        durable_upto,
        ..identity()
    }
}

fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK as u64
}

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
    assert_eq!(next.virgin_from, 10);
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
