//! A cache device and a stage that are written by hand, for what recovery makes of them.
//!
//! Always true: the checkpoint is that of `common`, so records from 100 on and lives from 55 on
//! came after it; a record has the serial of its number, and one write of whole blocks.

use crate::common;
use crate::common::{BOOT, CACHE, MACHINE, checkpoint, entry, identity, in_footer, open_record_of};
use engine::engine::{Config, VerifyReport, device_bytes, format_cache};
use engine::engine::{inspect, read_superblock, verify};
use engine::event::{Device, IoError, Stat};
use engine::format::checkpoint::{Checkpoint, SegmentRecord, VolumeRecord};
use engine::format::checksum;
use engine::format::footer::Footer;
use engine::format::record::{self, Entry, EntryKind, Identity};
use engine::format::stage::{self, StageHeader, StageSlot};
use engine::format::superblock::{CHECKPOINT_AT, Superblock};
use engine::media::Media;
use engine::memory::{Area, Memory, Place};
use engine::types::{ChunkIndex, Generation, Geometry, Policy, Serial, Span, Tag, VolumeId};

pub const GEOMETRY: Geometry = Geometry {
    chunk_blocks: 8,
    segment_chunks: 4,
    segments: 12,
};
pub const BLOCK: usize = 4096;
/// Blocks of a chunk, and of a segment before its footer.
pub const CHUNK: u32 = GEOMETRY.chunk_blocks;
pub const BODY: u32 = 24;
pub const SLOTS: u32 = 8;

#[derive(Default)]
pub struct Disk {
    pub bytes: Vec<u8>,
    /// Syncs that succeed before one fails.
    pub syncs_left: Option<u32>,
    /// Reads of so many bytes fail.
    pub fails_at_bytes: usize,
    /// Where was written, in order.
    pub written: Vec<u64>,
    /// How many reads, and how many writes, were asked for together.
    pub reads_together: Vec<usize>,
    pub writes_together: Vec<usize>,
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

    fn read_many(&mut self, device: Device, reads: &mut [(u64, &mut [u8])]) -> Result<(), IoError> {
        self.reads_together.push(reads.len());
        let mut reads = reads.iter_mut();
        reads.try_for_each(|(offset, bytes)| self.read(device, *offset, bytes))
    }

    fn write_many(&mut self, device: Device, writes: &[(u64, &[u8])]) -> Result<(), IoError> {
        self.writes_together.push(writes.len());
        let mut writes = writes.iter();
        writes.try_for_each(|(offset, bytes)| self.write(device, *offset, bytes))
    }

    fn write(&mut self, _: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.written.push(offset);
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

/// The stage of the run that the checkpoint of `common` names.
pub const HEADER: StageHeader = StageHeader {
    cache: CACHE,
    boot: BOOT,
    incarnation: 9,
    slots: SLOTS,
    chunk_blocks: GEOMETRY.chunk_blocks,
};

/// The stage; recovery touches no other memory.
pub struct Shared(Vec<u8>);

impl Shared {
    /// Of the run that the checkpoint of `common` names: a header and nothing else.
    pub fn new() -> Shared {
        Shared::of(HEADER)
    }

    pub fn of(header: StageHeader) -> Shared {
        let bytes = Config::stage_bytes(GEOMETRY.chunk_bytes(), header.slots);
        let mut stage = Shared(vec![0; bytes as usize]);
        for at in stage::HEADER_AT {
            stage.store(Place::new(Area::Stage, at), &header.encode());
        }
        stage
    }

    pub fn headers(&self) -> [StageHeader; 2] {
        stage::HEADER_AT.map(|at| {
            let mut bytes = vec![0; stage::HEADER_BYTES];
            self.load(Place::new(Area::Stage, at), &mut bytes);
            StageHeader::parse(&bytes).expect("whole")
        })
    }

    pub fn runs(&self) -> [u64; 2] {
        self.headers().map(|header| header.incarnation)
    }

    pub fn slot(&self, slot: u32) -> Option<StageSlot> {
        let mut bytes = [0; stage::SLOT_BYTES];
        let at = stage::TABLE_AT + u64::from(slot) * stage::SLOT_BYTES as u64;
        self.load(Place::new(Area::Stage, at), &mut bytes);
        StageSlot::parse(&bytes).ok()
    }

    /// A slot mirrors a chunk of a segment, in this life, with these bytes at its start.
    pub fn put_slot(
        &mut self,
        slot: u32,
        (segment, chunk): (u32, u32),
        life: &Identity,
        bytes: &[u8],
    ) {
        let names = StageSlot {
            incarnation: life.incarnation,
            segment_seq: life.segment_seq,
            chunk: ChunkIndex(segment * GEOMETRY.segment_chunks + chunk),
            stream: life.stream,
        };
        let at = stage::TABLE_AT + u64::from(slot) * stage::SLOT_BYTES as u64;
        self.store(Place::new(Area::Stage, at), &names.encode());
        let [header, _] = self.headers();
        let at = stage::slot_at(slot, header.slots, GEOMETRY.chunk_blocks);
        self.store(Place::new(Area::Stage, at), bytes);
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

pub fn config() -> Config {
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
        map_bytes_max: 1 << 20,
        hash_seed: 1,
    }
}

pub fn volume() -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(2),
        uuid: common::VOLUME,
        generation: Generation(7),
        base_generation: Generation(5),
        policy: Policy::WriteBack,
        destage_in_place: false,
        journal_possible: true,
        ended: false,
        staged: false,
        stage_lost: false,
        damaged: false,
        first_serial: Serial(1),
        serial_next: Serial(1),
        destaged: Serial(0),
        merged_upto: Serial(0),
        standing: Default::default(),
        size_bytes: 1 << 30,
        name: "disk".into(),
        origin: "/disk.img".into(),
        under: Default::default(),
    }
}

pub fn listed(index: u32, seq: u64, (first, last): (u64, u64), stream: u16) -> SegmentRecord {
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
    pub fn new(segments: Vec<SegmentRecord>) -> Disk {
        Disk::of(volume(), segments)
    }

    pub fn of(volume: VolumeRecord, segments: Vec<SegmentRecord>) -> Disk {
        let mut disk = Disk {
            bytes: vec![0; device_bytes(GEOMETRY) as usize],
            ..Disk::default()
        };
        format_cache(&mut disk, CACHE, GEOMETRY).expect("made");
        let checkpoint = Checkpoint {
            segments_total: GEOMETRY.segments,
            ..checkpoint(vec![volume], segments)
        };
        let at = disk.checkpoint_at(checkpoint.sequence);
        disk.write(Device::Cache, at, &checkpoint.encode())
            .expect("written");
        disk
    }

    pub fn superblock(&mut self) -> Superblock {
        read_superblock(self).expect("whole")
    }

    pub fn checkpoint_at(&mut self, sequence: u64) -> u64 {
        CHECKPOINT_AT + sequence % 2 * self.superblock().checkpoint_slot_bytes
    }

    pub fn checkpoint(&mut self, sequence: u64) -> Checkpoint {
        let at = self.checkpoint_at(sequence) as usize;
        let length = Checkpoint::parse_length(&self.bytes[at..], u64::MAX).expect("whole");
        Checkpoint::parse(&self.bytes[at..at + length as usize], CACHE).expect("whole")
    }

    pub fn block_at(&mut self, segment: u32, block: u32) -> u64 {
        let blocks = u64::from(segment) * GEOMETRY.segment_blocks() + u64::from(block);
        self.superblock().log_at + blocks * BLOCK as u64
    }

    pub fn put(&mut self, segment: u32, block: u32, bytes: &[u8]) {
        let at = self.block_at(segment, block);
        self.write(Device::Cache, at, bytes).expect("written");
    }

    pub fn block(&mut self, segment: u32, block: u32) -> Vec<u8> {
        let at = self.block_at(segment, block) as usize;
        self.bytes[at..at + BLOCK].to_vec()
    }

    /// A record of one write, sealed, with its payload behind it.
    pub fn put_record(&mut self, segment: u32, block: u32, identity: Identity, blocks: u32) {
        self.put_piece(segment, block, identity, (blocks, false));
    }

    /// The same of a write that may go on.
    pub fn put_piece(
        &mut self,
        segment: u32,
        block: u32,
        identity: Identity,
        (blocks, more): (u32, bool),
    ) {
        let write = Entry {
            more,
            ..write_of(&identity, blocks)
        };
        let bytes = sealed(&identity, write);
        self.put(segment, block, &bytes);
    }

    /// Records of one block each, one behind the other from the first block on.
    pub fn put_records(&mut self, segment: u32, life: u64, numbers: std::ops::RangeInclusive<u64>) {
        for (n, stream_seq) in numbers.enumerate() {
            let identity = Identity {
                segment_seq: life,
                ..of(stream_seq, 99)
            };
            self.put_record(segment, n as u32 * 2, identity, 1);
        }
    }

    /// The footer that speaks of them.
    pub fn put_footer(&mut self, segment: u32, life: u64, numbers: std::ops::RangeInclusive<u64>) {
        let mut sums = vec![0; BODY as usize];
        let mut entries = Vec::new();
        for (n, stream_seq) in numbers.clone().enumerate() {
            let block = n * 2 + 1;
            entries.push(in_footer(&write_of(&of(stream_seq, 99), 1), block as u32));
            sums[block] = checksum(&[&payload(stream_seq, 1)]);
        }
        let footer = Footer {
            segment_seq: life,
            first_stream_seq: *numbers.start(),
            last_stream_seq: *numbers.end(),
            durable_upto: 99,
            ..common::footer(entries, sums)
        };
        self.put(segment, BODY, &footer.encode());
    }

    /// Takes what lies in a block away.
    pub fn lose(&mut self, segment: u32, block: u32) {
        self.put(segment, block, &[0xee; BLOCK]);
    }

    /// Bytes of the volume that recovery would put into service, and what it says of damage.
    pub fn look(&mut self) -> (u64, Vec<String>) {
        let info = inspect(self).expect("opened");
        (info.volumes[0].1, info.damage)
    }

    pub fn verify(&mut self) -> (VerifyReport, Vec<(u64, u64)>) {
        let mut steps = Vec::new();
        let report = verify(self, &mut |done, of| steps.push((done, of)));
        (report.expect("read"), steps)
    }
}

/// A write of whole blocks with the serial of its record.
pub fn write_of(identity: &Identity, blocks: u32) -> Entry {
    let serial = identity.stream_seq;
    let span = Span::new(serial * 1000, u64::from(blocks) * 8);
    let mut write = entry(serial, EntryKind::Write, span, 0, false);
    write.tag = tag(serial);
    write
}

/// A record of one write that is still open, with its payload behind it.
pub fn open(identity: &Identity, write: Entry) -> Vec<u8> {
    let payload = payload(write.serial.0, write.blocks() as u32);
    let sums: Vec<u32> = payload.chunks(BLOCK).map(|it| checksum(&[it])).collect();
    let mut bytes = open_record_of(identity, &[write], &sums);
    bytes.extend(payload);
    bytes
}

/// The same, sealed.
pub fn sealed(identity: &Identity, write: Entry) -> Vec<u8> {
    let mut bytes = open(identity, write);
    let blocks = write.blocks() as u16;
    record::seal_record(&mut bytes[..BLOCK], 1, blocks);
    bytes
}

pub fn payload(serial: u64, blocks: u32) -> Vec<u8> {
    vec![serial as u8; blocks as usize * BLOCK]
}

pub fn tag(counter: u64) -> Tag {
    Tag { region: 1, counter }
}

/// A record of the life that a segment began first after the checkpoint.
pub fn of(stream_seq: u64, durable_upto: u64) -> Identity {
    Identity {
        segment_seq: 55,
        stream_seq,
        durable_upto,
        ..identity()
    }
}

pub fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK as u64
}
