//! The checkpoint: the volume table and the segment table at one moment.
//!
//! Two slots are written in turn; the one with the higher sequence that is whole counts. Always
//! true: a segment is used again only after a checkpoint that lists it as free is durable, so a
//! live segment of the newest checkpoint that cannot be found is damage, never an accident.

use super::{
    FormatError, Kind, PREFIX_BYTES, Prefix, block, check, put_text, seal, text, uuid, zeroes,
};
use crate::image::{Image, Marked};
use crate::types::{BLOCK_BYTES, Generation, Policy, Serial, Uuid, VolumeId};
use alloc::string::String;
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest name of a volume and longest place of an origin that the table can hold.
pub const NAME_BYTES_MAX: usize = 128;
pub const ORIGIN_BYTES_MAX: usize = 736;
const HEADER_BYTES: usize = 4096;
const VOLUME_BYTES: usize = 1024;
const SEGMENT_BYTES: usize = 32;

/// Size of one slot for tables of these sizes.
pub fn slot_bytes(volumes_max: u32, segments: u32) -> u64 {
    let tables =
        u64::from(volumes_max) * VOLUME_BYTES as u64 + u64::from(segments) * SEGMENT_BYTES as u64;
    HEADER_BYTES as u64 + tables.next_multiple_of(BLOCK_BYTES)
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HeaderBytes {
    pub prefix: Prefix,
    pub cache: [u8; 16],
    pub boot: [u8; 16],
    pub sequence: U64,
    pub incarnation: U64,
    pub stream_seq_next: U64,
    pub segment_seq_next: U64,
    pub unwritten_from: U32,
    pub volumes: U32,
    pub segments: U32,
    pub tables_checksum: U32,
    pub generation_next: U32,
    pub reserved: U32,
}

const _: () = assert!(size_of::<HeaderBytes>() == PREFIX_BYTES + 88);
const _: () = assert!(size_of::<HeaderBytes>() <= HEADER_BYTES);
const _: () = assert!(HEADER_BYTES as u64 == BLOCK_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct VolumeBytes {
    pub uuid: [u8; 16],
    pub id: U32,
    pub generation: U32,
    pub base_generation: U32,
    pub policy: U16,
    pub flags: U16,
    pub first_serial: U64,
    pub serial_next: U64,
    pub destaged: U64,
    pub size_bytes: U64,
    pub name_bytes: U16,
    pub origin_bytes: U16,
    pub name: [u8; NAME_BYTES_MAX],
    pub origin: [u8; ORIGIN_BYTES_MAX],
    pub lineage: [u8; 16],
    pub term: U64,
    pub void_above: U64,
    pub under_inode: U64,
    pub under_birth_ns: U64,
    pub under_bytes: U64,
    pub under_mtime_ns: U64,
    pub merged_upto: U64,
    pub void_below: U64,
    pub role: U16,
    pub reserved: [u8; 10],
}

const _: () = assert!(size_of::<VolumeBytes>() == VOLUME_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SegmentBytes {
    pub seq: U64,
    pub first_stream_seq: U64,
    pub last_stream_seq: U64,
    pub state: U16,
    pub stream: U16,
    pub reserved: U32,
}

const _: () = assert!(size_of::<SegmentBytes>() == SEGMENT_BYTES);
const _: () = assert!(
    VOLUME_BYTES.is_multiple_of(SEGMENT_BYTES),
    "entries are aligned"
);

/// Whose writes the log has under the id of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Those of guests on this host.
    #[default]
    Own,
    /// Those of another host, which sends them.
    Replica,
    /// The same, and nothing more of that host is taken.
    Frozen,
    /// Those of an owner before this host, which has taken over and was not attached since.
    Taken,
}

/// What the hosts of a cluster have to know of a volume that has replicas, or is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub role: Role,
    /// Of the owner that gave the serials: another one after each start of its daemon.
    pub lineage: Uuid,
    /// The newest record of the cluster that a replica obeys.
    pub term: u64,
    /// Serials above the first and below the second are void: an owner before this one gave them,
    /// and no flush relied on them.
    pub void: (Serial, Serial),
}

impl Standing {
    pub fn is_void(&self, serial: Serial) -> bool {
        self.void.0 < serial && serial < self.void.1
    }
}

/// A volume as the log knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    pub id: VolumeId,
    pub uuid: Uuid,
    pub generation: Generation,
    /// Entries of older generations are void: a reset lies in between.
    pub base_generation: Generation,
    pub policy: Policy,
    pub destage_in_place: bool,
    pub journal_possible: bool,
    /// The guest of an ephemeral volume has ended in order.
    pub ended: bool,
    /// What was acknowledged of it may lie in the stage alone.
    pub staged: bool,
    /// The stage was gone when it was needed, so acknowledged writes may be missing; stays until
    /// the loss is accepted.
    pub stage_lost: bool,
    /// Flushed records of the log were missing, so what it has of a write-back volume may not be a
    /// prefix; stays until the loss is accepted.
    pub damaged: bool,
    /// First serial of `generation`: the fork point.
    pub first_serial: Serial,
    /// No serial at or above this one had been given when the checkpoint was written.
    pub serial_next: Serial,
    pub destaged: Serial,
    /// Entries up to this serial are one epoch, whatever they say: epochs were merged, and what
    /// one of them replaced in another is not kept.
    pub merged_upto: Serial,
    pub standing: Standing,
    pub size_bytes: u64,
    /// The image that an overlay lies on; unknown for all others.
    pub under: Image,
    pub name: String,
    pub origin: String,
}

impl VolumeRecord {
    /// A write-back volume without a write.
    pub fn unwritten(id: VolumeId, uuid: Uuid) -> VolumeRecord {
        VolumeRecord {
            id,
            uuid,
            generation: Generation(1),
            base_generation: Generation(1),
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
            standing: Standing::default(),
            size_bytes: 0,
            under: Image::default(),
            name: String::new(),
            origin: String::new(),
        }
    }
}

/// A segment that held data when the checkpoint was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    pub index: u32,
    pub seq: u64,
    pub first_stream_seq: u64,
    /// `u64::MAX` while the segment was open.
    pub last_stream_seq: u64,
    pub stream: u16,
    /// Its footer was made by recovery and alone says which of its records count.
    pub settled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub cache: Uuid,
    /// Boot of the machine that wrote it; overlays of another boot are void.
    pub boot: Uuid,
    pub sequence: u64,
    pub incarnation: u64,
    /// The next record of the write stream; all records from here to the last durable one must
    /// be found.
    pub stream_seq_next: u64,
    pub segment_seq_next: u64,
    /// No volume of this cache ever had this generation or a later one.
    pub generation_next: u32,
    /// Segments from here on were never written.
    pub unwritten_from: u32,
    pub segments_total: u32,
    pub volumes: Vec<VolumeRecord>,
    pub segments: Vec<SegmentRecord>,
}

const STATE_LIVE: u16 = 1;
const STATE_SETTLED: u16 = 2;
const FLAG_IN_PLACE: u16 = 1;
const FLAG_JOURNAL_POSSIBLE: u16 = 2;
const FLAG_ENDED: u16 = 4;
const FLAG_STAGED: u16 = 8;
const FLAG_STAGE_LOST: u16 = 16;
const FLAG_DAMAGED: u16 = 32;
const FLAGS: u16 = FLAG_IN_PLACE
    | FLAG_JOURNAL_POSSIBLE
    | FLAG_ENDED
    | FLAG_STAGED
    | FLAG_STAGE_LOST
    | FLAG_DAMAGED;
const _: () = assert!(FLAGS.count_ones() == 6, "a flag has its own bit");
const _: () = assert!(
    STATE_LIVE != 0 && STATE_SETTLED != 0,
    "a blank entry is none"
);

fn policy_code(policy: Policy) -> u16 {
    match policy {
        Policy::Uncached => 1,
        Policy::WriteBack => 2,
        Policy::Ephemeral => 3,
        Policy::WriteThrough => 4,
    }
}

fn policy_of(code: u16) -> Result<Policy, FormatError> {
    match code {
        1 => Ok(Policy::Uncached),
        2 => Ok(Policy::WriteBack),
        3 => Ok(Policy::Ephemeral),
        4 => Ok(Policy::WriteThrough),
        _ => Err(FormatError::Field("policy")),
    }
}

fn role_code(role: Role) -> u16 {
    match role {
        Role::Own => 0,
        Role::Replica => 1,
        Role::Frozen => 2,
        Role::Taken => 3,
    }
}

fn role_of(code: u16) -> Result<Role, FormatError> {
    match code {
        0 => Ok(Role::Own),
        1 => Ok(Role::Replica),
        2 => Ok(Role::Frozen),
        3 => Ok(Role::Taken),
        _ => Err(FormatError::Field("role")),
    }
}

impl Checkpoint {
    pub fn encode(&self) -> Vec<u8> {
        let tables =
            self.volumes.len() * VOLUME_BYTES + self.segments_total as usize * SEGMENT_BYTES;
        let mut bytes = block(HEADER_BYTES + tables.next_multiple_of(BLOCK_BYTES as usize));
        let mut at = HEADER_BYTES;
        for volume in &self.volumes {
            bytes[at..at + VOLUME_BYTES].copy_from_slice(encode_volume(volume).as_bytes());
            at += VOLUME_BYTES;
        }
        for segment in &self.segments {
            assert!(
                segment.index < self.segments_total,
                "a segment lies in the log"
            );
            let record = SegmentBytes {
                seq: U64::new(segment.seq),
                first_stream_seq: U64::new(segment.first_stream_seq),
                last_stream_seq: U64::new(segment.last_stream_seq),
                state: U16::new(if segment.settled {
                    STATE_SETTLED
                } else {
                    STATE_LIVE
                }),
                stream: U16::new(segment.stream),
                reserved: U32::new(0),
            };
            let place = at + segment.index as usize * SEGMENT_BYTES;
            bytes[place..place + SEGMENT_BYTES].copy_from_slice(record.as_bytes());
        }
        let header = HeaderBytes {
            prefix: Prefix::new(Kind::Checkpoint),
            cache: self.cache.0,
            boot: self.boot.0,
            sequence: U64::new(self.sequence),
            incarnation: U64::new(self.incarnation),
            stream_seq_next: U64::new(self.stream_seq_next),
            segment_seq_next: U64::new(self.segment_seq_next),
            unwritten_from: U32::new(self.unwritten_from),
            volumes: U32::new(self.volumes.len() as u32),
            segments: U32::new(self.segments_total),
            tables_checksum: U32::new(super::checksum(&[&bytes[HEADER_BYTES..]])),
            generation_next: U32::new(self.generation_next),
            reserved: U32::new(0),
        };
        bytes[..size_of::<HeaderBytes>()].copy_from_slice(header.as_bytes());
        seal(&mut bytes[..HEADER_BYTES]);
        bytes
    }

    /// How many bytes the checkpoint has, from its first 4 KiB.
    pub fn parse_length(header: &[u8], slot_bytes: u64) -> Result<u64, FormatError> {
        let header = parse_header(header)?;
        let tables = u64::from(header.volumes.get()) * VOLUME_BYTES as u64
            + u64::from(header.segments.get()) * SEGMENT_BYTES as u64;
        let bytes = HEADER_BYTES as u64 + tables.next_multiple_of(BLOCK_BYTES);
        if bytes > slot_bytes {
            return Err(FormatError::Field("table sizes"));
        }
        Ok(bytes)
    }

    pub fn parse(bytes: &[u8], cache: Uuid) -> Result<Checkpoint, FormatError> {
        let header = *parse_header(bytes)?;
        let length = Self::parse_length(bytes, bytes.len() as u64)?;
        let tables = bytes
            .get(HEADER_BYTES..length as usize)
            .ok_or(FormatError::Short)?;
        if super::checksum(&[tables]) != header.tables_checksum.get() {
            return Err(FormatError::Checksum);
        }
        if header.cache != cache.0 {
            return Err(FormatError::Foreign);
        }
        let volumes_bytes = header.volumes.get() as usize * VOLUME_BYTES;
        let (volumes, segments) = tables.split_at(volumes_bytes);
        let volumes = volumes
            .chunks_exact(VOLUME_BYTES)
            .map(parse_volume)
            .collect::<Result<_, _>>()?;
        let mut live = Vec::new();
        for index in 0..header.segments.get() {
            let at = index as usize * SEGMENT_BYTES;
            let record = SegmentBytes::ref_from_bytes(&segments[at..at + SEGMENT_BYTES])
                .map_err(|_| FormatError::Short)?;
            zeroes(record.reserved.as_bytes())?;
            match record.state.get() {
                0 => zeroes(record.as_bytes())?,
                state @ (STATE_LIVE | STATE_SETTLED) => live.push(SegmentRecord {
                    index,
                    seq: record.seq.get(),
                    first_stream_seq: record.first_stream_seq.get(),
                    last_stream_seq: record.last_stream_seq.get(),
                    stream: record.stream.get(),
                    settled: state == STATE_SETTLED,
                }),
                _ => return Err(FormatError::Field("segment state")),
            }
        }
        Ok(Checkpoint {
            cache,
            boot: uuid(header.boot),
            sequence: header.sequence.get(),
            incarnation: header.incarnation.get(),
            stream_seq_next: header.stream_seq_next.get(),
            segment_seq_next: header.segment_seq_next.get(),
            generation_next: header.generation_next.get(),
            unwritten_from: header.unwritten_from.get(),
            segments_total: header.segments.get(),
            volumes,
            segments: live,
        })
    }
}

fn parse_header(bytes: &[u8]) -> Result<&HeaderBytes, FormatError> {
    let block = bytes.get(..HEADER_BYTES).ok_or(FormatError::Short)?;
    check(block, Kind::Checkpoint)?;
    let (header, rest) = HeaderBytes::ref_from_prefix(block).map_err(|_| FormatError::Short)?;
    zeroes(rest)?;
    zeroes(header.reserved.as_bytes())?;
    if header.volumes.get() > 1 << 16 || header.segments.get() > 1 << 20 {
        return Err(FormatError::Field("table sizes"));
    }
    Ok(header)
}

fn encode_volume(volume: &VolumeRecord) -> VolumeBytes {
    let mut name = [0; NAME_BYTES_MAX];
    let mut origin = [0; ORIGIN_BYTES_MAX];
    let name_bytes = put_text(&mut name, &volume.name);
    let origin_bytes = put_text(&mut origin, &volume.origin);
    let flags = [
        (volume.destage_in_place, FLAG_IN_PLACE),
        (volume.journal_possible, FLAG_JOURNAL_POSSIBLE),
        (volume.ended, FLAG_ENDED),
        (volume.staged, FLAG_STAGED),
        (volume.stage_lost, FLAG_STAGE_LOST),
        (volume.damaged, FLAG_DAMAGED),
    ];
    let flags = flags.iter().filter(|(is, _)| *is);
    let flags = flags.fold(0, |all, (_, flag)| all | flag);
    VolumeBytes {
        uuid: volume.uuid.0,
        id: U32::new(volume.id.0),
        generation: U32::new(volume.generation.0),
        base_generation: U32::new(volume.base_generation.0),
        policy: U16::new(policy_code(volume.policy)),
        flags: U16::new(flags),
        first_serial: U64::new(volume.first_serial.0),
        serial_next: U64::new(volume.serial_next.0),
        destaged: U64::new(volume.destaged.0),
        size_bytes: U64::new(volume.size_bytes),
        name_bytes: U16::new(name_bytes),
        origin_bytes: U16::new(origin_bytes),
        name,
        origin,
        under_inode: U64::new(volume.under.inode),
        under_birth_ns: U64::new(volume.under.birth_ns),
        under_bytes: U64::new(volume.under.size_bytes),
        under_mtime_ns: U64::new(volume.under.mtime_ns),
        merged_upto: U64::new(volume.merged_upto.0),
        lineage: volume.standing.lineage.0,
        term: U64::new(volume.standing.term),
        void_above: U64::new(volume.standing.void.0.0),
        void_below: U64::new(volume.standing.void.1.0),
        role: U16::new(role_code(volume.standing.role)),
        reserved: [0; 10],
    }
}

fn parse_volume(bytes: &[u8]) -> Result<VolumeRecord, FormatError> {
    let record = VolumeBytes::ref_from_bytes(bytes).map_err(|_| FormatError::Short)?;
    zeroes(&record.reserved)?;
    let flags = record.flags.get();
    if flags & !FLAGS != 0 {
        return Err(FormatError::Field("volume flags"));
    }
    if record.id.get() >= 1 << 16 {
        return Err(FormatError::Field("volume id"));
    }
    Ok(VolumeRecord {
        id: VolumeId(record.id.get()),
        uuid: uuid(record.uuid),
        generation: Generation(record.generation.get()),
        base_generation: Generation(record.base_generation.get()),
        policy: policy_of(record.policy.get())?,
        destage_in_place: flags & FLAG_IN_PLACE != 0,
        journal_possible: flags & FLAG_JOURNAL_POSSIBLE != 0,
        ended: flags & FLAG_ENDED != 0,
        staged: flags & FLAG_STAGED != 0,
        stage_lost: flags & FLAG_STAGE_LOST != 0,
        damaged: flags & FLAG_DAMAGED != 0,
        first_serial: Serial(record.first_serial.get()),
        serial_next: Serial(record.serial_next.get()),
        destaged: Serial(record.destaged.get()),
        merged_upto: Serial(record.merged_upto.get()),
        standing: Standing {
            role: role_of(record.role.get())?,
            lineage: uuid(record.lineage),
            term: record.term.get(),
            void: (
                Serial(record.void_above.get()),
                Serial(record.void_below.get()),
            ),
        },
        size_bytes: record.size_bytes.get(),
        under: Image {
            device: 0,
            inode: record.under_inode.get(),
            birth_ns: record.under_birth_ns.get(),
            size_bytes: record.under_bytes.get(),
            mtime_ns: record.under_mtime_ns.get(),
            lasts: record.under_inode.get() != 0,
            below: 0,
            marked: Marked::Unknown,
        },
        name: text(&record.name, record.name_bytes.get())?,
        origin: text(&record.origin, record.origin_bytes.get())?,
    })
}
