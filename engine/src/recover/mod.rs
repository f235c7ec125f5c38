//! Recovery: from superblock, checkpoint, footers, log tail and stage to an engine in service.
//!
//! The order of what follows is the order of trust. The newest checkpoint says which segments
//! live; a footer is believed when a sync is known to have covered its segment; everything later
//! is read record by record. Of the write stream the longest chain without a gap is accepted.
//! Where the chain ends above the last known sync, the tail was torn; where it ends below, flushed
//! data is missing, and that is damage.
//!
//! Always true: what was accepted is on the device, synced, and named by a new checkpoint with a
//! new incarnation and new generations before [`recover`] returns; nothing is ever appended to a
//! segment of an earlier incarnation; what was not accepted is never looked at again.

mod fills;
mod relayout;
mod replay;
mod scan;

use crate::adversary::{Bug, Mark, has, mark};
use crate::clean::FoundFill;
use crate::core::Core;
use crate::event::Device;
use crate::format::checkpoint::{Checkpoint, VolumeRecord};
use crate::format::footer::{Footer, FooterEntry};
use crate::format::stage::{self, StageHeader};
use crate::format::superblock::{CHECKPOINT_AT, SUPERBLOCK_AT, Superblock};
use crate::log::{Adopted, Log, Start, StreamKind};
use crate::media::Media;
use crate::memory::{Area, Memory, Place};
use crate::open::{Config, OpenError, Report, read_superblock};
use crate::types::{
    BLOCK_BYTES, Generation, Policy, SegmentIndex, SegmentSeq, Serial, StreamSeq, Uuid, VolumeId,
};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use replay::Replayed;
use scan::Accepted;

pub use relayout::relayout;
pub use scan::Stage;

/// A cache as the offline tools show it.
#[derive(Clone, Debug)]
pub struct CacheInfo {
    pub superblock: Superblock,
    pub checkpoint_sequence: u64,
    pub incarnation: u64,
    /// Volumes with the bytes and extents the log holds of each.
    pub volumes: Vec<(VolumeRecord, u64, u64)>,
    pub segments_live: u64,
    /// Segments with clean blocks that the next run may find, and these blocks.
    pub segments_fill: u64,
    pub blocks_fill: u64,
    pub tail_bytes_discarded: u64,
    pub damage: Vec<String>,
}

/// What `cache verify` found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    pub segments: u64,
    pub blocks: u64,
    pub bad_blocks: u64,
    /// Clean blocks. Those that are bad are read from the origin again and are no damage; a power
    /// loss may leave some.
    pub clean_blocks: u64,
    pub bad_clean_blocks: u64,
    /// What is wrong, one line each; bounded.
    pub damage: Vec<String>,
    /// By volume, the newest write of which a block is bad.
    pub bad_upto: BTreeMap<VolumeId, Serial>,
}

/// Lines of damage that one report holds.
const DAMAGE_LINES_MAX: usize = 100;

const CACHE: OpenError = OpenError::Io("the cache device");

/// Writes an empty cache.
pub fn format(media: &mut dyn Media, superblock: Superblock) -> Result<(), OpenError> {
    let checkpoint = Checkpoint {
        cache: superblock.cache,
        boot: crate::types::Uuid::NIL,
        sequence: 1,
        incarnation: 1,
        stream_seq_next: 1,
        segment_seq_next: 1,
        generation_next: 1,
        unwritten_from: 0,
        segments_total: superblock.geometry.segments,
        volumes: Vec::new(),
        segments: Vec::new(),
    };
    let zeroes = alloc::vec![0; BLOCK_BYTES as usize];
    // The other slot must not hold a checkpoint of a former cache.
    media
        .write(Device::Cache, checkpoint_at(&superblock, 0), &zeroes)
        .map_err(|_| CACHE)?;
    write_checkpoint(media, &superblock, &checkpoint)?;
    for at in SUPERBLOCK_AT {
        media
            .write(Device::Cache, at, &superblock.encode())
            .map_err(|_| CACHE)?;
    }
    media.sync(Device::Cache).map_err(|_| CACHE)
}

/// Both copies of the superblock say the same before anything is written that depends on it. A
/// resize that was cut short leaves one of them from before, and damage one that is none.
fn mend_superblock(media: &mut dyn Media, superblock: &Superblock) -> Result<(), OpenError> {
    for at in SUPERBLOCK_AT {
        let mut bytes = alloc::vec![0; BLOCK_BYTES as usize];
        media
            .read(Device::Cache, at, &mut bytes)
            .map_err(|_| CACHE)?;
        if Superblock::parse(&bytes).as_ref() != Ok(superblock) {
            media
                .write(Device::Cache, at, &superblock.encode())
                .map_err(|_| CACHE)?;
            media.sync(Device::Cache).map_err(|_| CACHE)?;
        }
    }
    Ok(())
}

fn checkpoint_at(superblock: &Superblock, sequence: u64) -> u64 {
    CHECKPOINT_AT + sequence % 2 * superblock.checkpoint_slot_bytes
}

fn write_checkpoint(
    media: &mut dyn Media,
    superblock: &Superblock,
    checkpoint: &Checkpoint,
) -> Result<(), OpenError> {
    let at = checkpoint_at(superblock, checkpoint.sequence);
    let bytes = checkpoint.encode();
    assert!(
        bytes.len() as u64 <= superblock.checkpoint_slot_bytes,
        "a checkpoint fits its slot"
    );
    debug_assert!(
        Checkpoint::parse(&bytes, superblock.cache).is_ok(),
        "what is written can be read"
    );
    media.write(Device::Cache, at, &bytes).map_err(|_| CACHE)?;
    media.sync(Device::Cache).map_err(|_| CACHE)
}

/// The newest whole checkpoint.
fn read_checkpoint(
    media: &mut dyn Media,
    superblock: &Superblock,
) -> Result<Checkpoint, OpenError> {
    let mut newest: Option<Checkpoint> = None;
    let mut why = None;
    let old_first = has(Bug::TakeOldCheckpoint);
    // Of a cache that was about to get another size.
    let fits = |it: &Checkpoint| it.segments_total == superblock.geometry.segments;
    for slot in 0..2 {
        let at = checkpoint_at(superblock, slot);
        let mut bytes = alloc::vec![0; BLOCK_BYTES as usize];
        media
            .read(Device::Cache, at, &mut bytes)
            .map_err(|_| CACHE)?;
        let parsed = match Checkpoint::parse_length(&bytes, superblock.checkpoint_slot_bytes) {
            Ok(length) => {
                bytes.resize(length as usize, 0);
                media
                    .read(Device::Cache, at, &mut bytes)
                    .map_err(|_| CACHE)?;
                Checkpoint::parse(&bytes, superblock.cache)
            }
            Err(error) => Err(error),
        };
        match parsed {
            Ok(checkpoint)
                if fits(&checkpoint)
                    && newest
                        .as_ref()
                        .is_none_or(|n| (n.sequence < checkpoint.sequence) != old_first) =>
            {
                newest = Some(checkpoint);
            }
            Ok(_) => {}
            Err(error) => why = Some(error),
        }
    }
    newest.ok_or_else(|| {
        let why = why.map_or(String::new(), |error| format!(": {error}"));
        OpenError::Damaged(format!("neither checkpoint of the cache is whole{why}"))
    })
}

/// Opens a cache and puts what it holds into service.
pub fn recover(
    config: Config,
    media: &mut dyn Media,
    memory: &mut dyn Memory,
) -> Result<(Core, Report), OpenError> {
    let superblock = read_superblock(media)?;
    let checkpoint = read_checkpoint(media, &superblock)?;
    mend_superblock(media, &superblock)?;
    let stage = Stage::load(&*memory, &superblock, &checkpoint, config.boot);
    let mut accepted = scan::scan(media, &superblock, &checkpoint, &stage)?;
    let (stage_found, vouches) = (stage.found, stage.overlay_valid);
    make_durable(media, &superblock, &mut accepted)?;

    let mut replayed = replay::replay(&checkpoint, &accepted, superblock.geometry);
    if checkpoint.boot == config.boot && !stage_found {
        tell_stage_lost(&checkpoint, &mut replayed);
    }
    tell_damage(&accepted.report, &mut replayed);
    let segments_max = crate::clean::segments_max(superblock.geometry, config.index_bytes_max);
    let lives = core::mem::take(&mut accepted.fills);
    let of_cache = (&superblock, checkpoint.incarnation);
    let fills = fills::load(media, of_cache, lives, segments_max);
    let next = next_checkpoint(&checkpoint, config.boot, (&accepted, &fills), &replayed);
    if vouches && !has(Bug::AnnounceNoRun) {
        announce(memory, &config, &superblock, &next);
    }
    if has(Bug::ClearStageEarly) {
        reset_stage(memory, &config, &superblock, next.incarnation);
    }
    write_checkpoint(media, &superblock, &next)?;

    reset_stage(memory, &config, &superblock, next.incarnation);
    let tags = core::mem::take(&mut accepted.tags);
    let mut log = Log::new(Start {
        cache: superblock.cache,
        geometry: superblock.geometry,
        log_at: superblock.log_at,
        incarnation: next.incarnation,
        stream_seq_next: next.stream_seq_next,
        segment_seq_next: next.segment_seq_next,
        unwritten_from: next.unwritten_from,
        stage_slots: config.stage_slots,
        overlay_slots: config.overlay_slots,
        inline_records: superblock.inline_records,
    });
    let mut report = accepted.report;
    report.stage_found = stage_found;
    report.segments_scanned = u64::from(superblock.geometry.segments);
    report.entries_replayed = replayed.entries;
    for segment in accepted.segments {
        log.adopt(Adopted {
            index: SegmentIndex(segment.index),
            stream: segment.stream,
            seq: SegmentSeq(segment.seq),
            first_stream_seq: StreamSeq(segment.first_stream_seq),
            last_stream_seq: StreamSeq(segment.last_stream_seq),
            sums: segment.footer.sums,
            settled: segment.settled,
        });
    }
    let ledger_writer = crate::core::checkpoint_writer(next.sequence);
    let mut core = Core::new(config, superblock, log, replayed.volumes, ledger_writer);
    core.adopt_fills(fills);
    let already = replay::taken(&tags, &core.volumes);
    core.log.collect_ready();
    core.given.go_on(Generation(next.generation_next), already);
    core.take_over();
    Ok((core, report))
}

/// This boot has seen a stage, and it is not there any more. Only a loss of power takes one with
/// every acknowledged write that a flush did not cover; here they may be missing, and their guests
/// run on.
fn tell_stage_lost(last: &Checkpoint, replayed: &mut Replayed) {
    let told = |staged: bool| staged && !has(Bug::ForgetLostStage);
    for record in last.volumes.iter().filter(|record| told(record.staged)) {
        let volume = replayed.volumes[record.id.0 as usize].as_mut();
        volume
            .expect("each that is named is replayed")
            .stage_is_lost();
    }
}

/// Flushed records are missing, and it is not known of which volumes. The next life does not find
/// that out again, because this one writes down what it has accepted.
fn tell_damage(report: &Report, replayed: &mut Replayed) {
    let volumes = replayed.volumes.iter_mut().flatten();
    if report.damage.is_empty() {
        return;
    }
    for volume in volumes.filter(|volume| volume.policy == Policy::WriteBack) {
        volume.log_is_damaged();
    }
}

/// The checkpoint that names what was accepted, and starts a new incarnation.
fn next_checkpoint(
    last: &Checkpoint,
    boot: Uuid,
    (accepted, fills): (&Accepted, &[FoundFill]),
    replayed: &Replayed,
) -> Checkpoint {
    assert!(
        accepted.stream_seq_next >= last.stream_seq_next
            && accepted.segment_seq_next >= last.segment_seq_next
            && replayed.generation_next.0 >= last.generation_next,
        "no number is given again"
    );
    Checkpoint {
        cache: last.cache,
        boot,
        sequence: last.sequence + 1,
        incarnation: last.incarnation + 1,
        stream_seq_next: accepted.stream_seq_next,
        segment_seq_next: accepted.segment_seq_next,
        generation_next: replayed.generation_next.0,
        unwritten_from: accepted.unwritten_from,
        segments_total: last.segments_total,
        volumes: replayed
            .volumes
            .iter()
            .flatten()
            .map(|volume| volume.record(true))
            .collect(),
        segments: accepted
            .segments
            .iter()
            .map(|segment| segment.record())
            .chain(fills.iter().map(FoundFill::record))
            .collect(),
    }
}

/// Writes staged records and missing footers to the device and syncs once.
fn make_durable(
    media: &mut dyn Media,
    superblock: &Superblock,
    accepted: &mut Accepted,
) -> Result<(), OpenError> {
    let geometry = superblock.geometry;
    let chunk_at = |chunk: u32| superblock.log_at + u64::from(chunk) * geometry.chunk_bytes();
    let staged = core::mem::take(&mut accepted.staged);
    staged.iter().for_each(|_| mark(Mark::SavedFromStage));
    if !has(Bug::LeaveInStage) {
        let writes = staged.iter().map(|(at, bytes)| (*at, &bytes[..]));
        write_together(media, &writes.collect::<Vec<_>>())?;
    }
    drop(staged);
    write_again(media, &core::mem::take(&mut accepted.unsynced))?;
    if has(Bug::SkipRecoverySync) {
        return Ok(());
    }
    // Records first, then the footers that speak of them.
    media.sync(Device::Cache).map_err(|_| CACHE)?;
    let unwritten = accepted.segments.iter().filter(|it| !it.footered);
    let footers: Vec<_> = unwritten
        .map(|segment| {
            let first = geometry.first_chunk(SegmentIndex(segment.index)).0;
            let at = chunk_at(first + geometry.segment_chunks - 1);
            (at, segment.footer.encode())
        })
        .collect();
    let fits = |(_, bytes): &(u64, Vec<u8>)| bytes.len() as u64 <= geometry.chunk_bytes();
    assert!(footers.iter().all(fits), "a footer fits its chunk");
    let writes = footers.iter().map(|(at, bytes)| (*at, &bytes[..]));
    write_together(media, &writes.collect::<Vec<_>>())?;
    media.sync(Device::Cache).map_err(|_| CACHE)
}

/// A recovery before this one may have met a sync that failed, after which a sync alone proves
/// nothing: what it was to cover is written again.
fn write_again(media: &mut dyn Media, ranges: &[(u64, u64)]) -> Result<(), OpenError> {
    let mut memory: Vec<(u64, Vec<u8>)> = Vec::new();
    for (at, bytes) in ranges {
        memory.push((*at, alloc::vec![0; *bytes as usize]));
    }
    let mut reads: Vec<(u64, &mut [u8])> = Vec::new();
    for (at, bytes) in &mut memory {
        reads.push((*at, &mut bytes[..]));
    }
    if !reads.is_empty() {
        media
            .read_many(Device::Cache, &mut reads)
            .map_err(|_| CACHE)?;
    }
    let writes = memory.iter().map(|(at, bytes)| (*at, &bytes[..]));
    write_together(media, &writes.collect::<Vec<_>>())
}

/// Writes of no order among each other, so many in flight as the host can have.
fn write_together(media: &mut dyn Media, writes: &[(u64, &[u8])]) -> Result<(), OpenError> {
    match writes {
        [] => Ok(()),
        writes => media.write_many(Device::Cache, writes).map_err(|_| CACHE),
    }
}

fn stage_header(config: &Config, superblock: &Superblock, incarnation: u64) -> StageHeader {
    StageHeader {
        cache: superblock.cache,
        boot: config.boot,
        incarnation,
        slots: config.stage_slots + config.overlay_slots,
        chunk_blocks: superblock.geometry.chunk_blocks,
    }
}

/// Before the checkpoint of this run is written, one copy of the stage's header names the run: so
/// at every moment, however often recovery is killed, a whole copy names the run of the newest
/// checkpoint, and vouches for the overlays that are on the device. The other copy, and the
/// slots, are still those of the run before.
fn announce(memory: &mut dyn Memory, config: &Config, superblock: &Superblock, next: &Checkpoint) {
    let names_last = |at: &u64| {
        let mut bytes = alloc::vec![0; stage::HEADER_BYTES];
        memory.load(Place::new(Area::Stage, *at), &mut bytes);
        StageHeader::parse(&bytes).is_ok_and(|it| it.incarnation + 1 == next.incarnation)
    };
    let [first, second] = stage::HEADER_AT;
    let at = if names_last(&first) { second } else { first };
    let header = stage_header(config, superblock, next.incarnation);
    memory.store(Place::new(Area::Stage, at), &header.encode());
}

/// The stage of this run: a new header, and slots that mirror nothing.
fn reset_stage(
    memory: &mut dyn Memory,
    config: &Config,
    superblock: &Superblock,
    incarnation: u64,
) {
    let slots = config.stage_slots + config.overlay_slots;
    let header = stage_header(config, superblock, incarnation);
    // One copy is whole and names this run while the other is written.
    let table = (u64::from(slots) * stage::SLOT_BYTES as u64).next_multiple_of(BLOCK_BYTES);
    let bytes = Config::stage_bytes(superblock.geometry.chunk_bytes(), slots);
    assert!(
        bytes == stage::slot_at(slots, slots, superblock.geometry.chunk_blocks),
        "the host and the format lay out one stage"
    );
    assert!(
        bytes <= memory.stage_bytes(),
        "the host gives as much as it was asked for"
    );
    memory.zero(Place::new(Area::Stage, stage::TABLE_AT), table);
    for at in stage::HEADER_AT {
        memory.store(Place::new(Area::Stage, at), &header.encode());
    }
}

/// What lies on a device, read without changing it. The stage is not looked at.
struct Survey {
    superblock: Superblock,
    checkpoint: Checkpoint,
    accepted: Accepted,
    fills: Vec<FoundFill>,
}

fn survey(media: &mut dyn Media) -> Result<Survey, OpenError> {
    let superblock = read_superblock(media)?;
    let checkpoint = read_checkpoint(media, &superblock)?;
    let stage = Stage::none();
    let mut accepted = scan::scan(media, &superblock, &checkpoint, &stage)?;
    let lives = core::mem::take(&mut accepted.fills);
    let life = (&superblock, checkpoint.incarnation);
    let fills = fills::load(media, life, lives, usize::MAX);
    Ok(Survey {
        superblock,
        checkpoint,
        accepted,
        fills,
    })
}

/// What a cache holds.
pub fn inspect(media: &mut dyn Media) -> Result<CacheInfo, OpenError> {
    let Survey {
        superblock,
        checkpoint,
        accepted,
        fills,
    } = survey(media)?;
    let runs = fills.iter().flat_map(|fill| &fill.runs);
    let blocks_fill = runs.map(|run| u64::from(run.blocks())).sum();
    let replayed = replay::replay(&checkpoint, &accepted, superblock.geometry);
    let volumes = checkpoint
        .volumes
        .iter()
        .map(|record| {
            let volume = replayed
                .volumes
                .get(record.id.0 as usize)
                .and_then(Option::as_ref);
            let bytes = volume.map_or(0, |volume| volume.dirty_bytes());
            let extents = volume.map_or(0, |volume| volume.dirty_extents());
            (record.clone(), bytes, extents)
        })
        .collect();
    Ok(CacheInfo {
        superblock,
        checkpoint_sequence: checkpoint.sequence,
        incarnation: checkpoint.incarnation,
        volumes,
        segments_live: accepted.segments.len() as u64,
        segments_fill: fills.len() as u64,
        blocks_fill,
        tail_bytes_discarded: accepted.report.tail_bytes_discarded,
        damage: accepted.report.damage,
    })
}

/// Reads every block that an entry of a live segment covers and checks it.
pub fn verify(
    media: &mut dyn Media,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport, OpenError> {
    let Survey {
        superblock,
        accepted,
        fills,
        ..
    } = survey(media)?;
    let mut report = VerifyReport {
        damage: accepted.report.damage,
        ..VerifyReport::default()
    };
    let geometry = superblock.geometry;
    let total = (accepted.segments.len() + fills.len()) as u64;
    let mut bytes = alloc::vec![0; geometry.segment_bytes() as usize];
    for segment in &accepted.segments {
        progress(report.segments, total);
        report.segments += 1;
        let at = superblock.log_at + u64::from(segment.index) * geometry.segment_bytes();
        if media.read(Device::Cache, at, &mut bytes).is_err() {
            note(
                &mut report.damage,
                format!("segment {} cannot be read", segment.index),
            );
            let writes = segment.footer.entries.iter();
            writes.for_each(|entry| report.find_bad(entry));
            continue;
        }
        verify_segment(&segment.footer, segment.index, &bytes, &mut report);
    }
    for fill in &fills {
        progress(report.segments, total);
        report.segments += 1;
        let at = superblock.log_at + u64::from(fill.index) * geometry.segment_bytes();
        let read = media.read(Device::Cache, at, &mut bytes).is_ok();
        for block in fill
            .runs
            .iter()
            .flat_map(|run| run.slot..run.slot + run.blocks())
        {
            let at = block as usize * BLOCK_BYTES as usize;
            let found = crate::format::checksum(&[&bytes[at..at + BLOCK_BYTES as usize]]);
            report.clean_blocks += 1;
            let good = read && fill.sums.get(block as usize) == Some(&found);
            report.bad_clean_blocks += u64::from(!good);
        }
    }
    progress(total, total);
    Ok(report)
}

impl VerifyReport {
    /// What this entry has written cannot be read, or only in part.
    fn find_bad(&mut self, entry: &FooterEntry) {
        let newest = self.bad_upto.entry(entry.volume).or_default();
        *newest = entry.serial.max(*newest);
    }
}

fn verify_segment(footer: &Footer, index: u32, bytes: &[u8], report: &mut VerifyReport) {
    let writes = footer
        .entries
        .iter()
        .filter(|e| e.kind == crate::format::record::EntryKind::Write);
    let (mut seen, mut bad) = (BTreeSet::new(), BTreeSet::new());
    for entry in writes {
        for n in 0..entry.blocks_needed() {
            let block = entry.block as usize + n as usize;
            // A header block may hold payload of several entries.
            if !seen.insert(block) {
                if bad.contains(&block) {
                    report.find_bad(entry);
                }
                continue;
            }
            let at = block * BLOCK_BYTES as usize;
            let found = crate::format::checksum(&[&bytes[at..at + BLOCK_BYTES as usize]]);
            report.blocks += 1;
            if footer.sums.get(block) != Some(&found) {
                report.bad_blocks += 1;
                bad.insert(block);
                report.find_bad(entry);
                note(
                    &mut report.damage,
                    format!(
                        "segment {index} block {block}: checksum does not match \
                         (volume {}, sector {})",
                        entry.volume, entry.span.sector
                    ),
                );
            }
        }
    }
}

fn note(damage: &mut Vec<String>, line: String) {
    if damage.len() < DAMAGE_LINES_MAX {
        damage.push(line);
    }
}

impl scan::Segment {
    fn record(&self) -> crate::format::checkpoint::SegmentRecord {
        crate::format::checkpoint::SegmentRecord {
            index: self.index,
            seq: self.seq,
            first_stream_seq: self.first_stream_seq,
            last_stream_seq: self.last_stream_seq,
            stream: self.stream.code(),
            settled: self.settled,
        }
    }
}

impl FoundFill {
    fn record(&self) -> crate::format::checkpoint::SegmentRecord {
        crate::format::checkpoint::SegmentRecord {
            index: self.index,
            seq: self.seq,
            first_stream_seq: 0,
            last_stream_seq: 0,
            stream: crate::format::record::STREAM_FILL,
            settled: false,
        }
    }
}

impl StreamKind {
    fn is_chained(self) -> bool {
        self == StreamKind::Writes
    }
}
