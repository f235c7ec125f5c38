//! The scan: which segments live, and which records of them are accepted.
//!
//! Three sources speak of a segment: its first record and its footer on the device, and slots of
//! the stage that mirror its chunks. Its life is the youngest that any of them names. Lives that
//! the checkpoint knew and does not list were freed. Always true: a record that no sync is known
//! to have covered is accepted only with all its payload, and only if every record of the stream
//! before it was.

use super::{CACHE, note};
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::Device;
use crate::format::checkpoint::{Checkpoint, Role, SegmentRecord, VolumeRecord};
use crate::format::fill::{FillFooter, FillRecord, Life};
use crate::format::footer::{self, Footer, FooterEntry};
use crate::format::record::{self, Record, STREAM_FILL};
use crate::format::stage::{self, StageHeader, StageSlot};
use crate::format::superblock::Superblock;
use crate::log::StreamKind;
use crate::media::Media;
use crate::memory::{Area, Memory, Place};
use crate::open::{Config, OpenError, Report};
use crate::types::{
    BLOCK_BYTES, ChunkIndex, Generation, Geometry, SegmentIndex, Tag, Uuid, VolumeId,
};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Headers read by one call of the media.
const READS_AT_ONCE: usize = 1024;
/// Whole footers read by one call, of up to a chunk each.
const FOOTERS_AT_ONCE: usize = 128;

/// The stage as a former run left it.
pub struct Stage<'a> {
    memory: Option<&'a dyn Memory>,
    /// It belongs to this cache and this boot, and to the run that the checkpoint names.
    pub found: bool,
    /// What overlays hold can be trusted, in the stage or on the device.
    pub overlay_valid: bool,
    slots: BTreeMap<ChunkIndex, (StageSlot, Place)>,
}

impl<'a> Stage<'a> {
    pub fn none() -> Stage<'a> {
        Stage {
            memory: None,
            found: false,
            overlay_valid: false,
            slots: BTreeMap::new(),
        }
    }

    pub fn load(
        memory: &'a dyn Memory,
        superblock: &Superblock,
        checkpoint: &Checkpoint,
        boot: Uuid,
    ) -> Stage<'a> {
        let geometry = superblock.geometry;
        let copies = stage::HEADER_AT.into_iter().filter_map(|at| {
            let mut bytes = alloc::vec![0; stage::HEADER_BYTES];
            memory.load(Place::new(Area::Stage, at), &mut bytes);
            StageHeader::parse(&bytes).ok()
        });
        let header = copies
            .filter(|header| {
                header.cache == superblock.cache
                    && header.boot == boot
                    && header.chunk_blocks == geometry.chunk_blocks
            })
            .find(|header| header.incarnation == checkpoint.incarnation);
        // There may be more slots than the log has chunks: the stage has the size that was asked
        // for, however small the cache is.
        let fits = |header: &StageHeader| {
            Config::stage_bytes(geometry.chunk_bytes(), header.slots) <= memory.stage_bytes()
        };
        let header = header.filter(fits);
        let Some(header) = header else {
            return Stage::none();
        };
        let mut stage = Stage {
            memory: Some(memory),
            found: true,
            // A run that recovered and was killed before it renewed the stage left the overlays
            // on the device, and slots that are of the run before.
            overlay_valid: checkpoint.boot == boot,
            slots: BTreeMap::new(),
        };
        for index in 0..header.slots {
            let at = stage::TABLE_AT + u64::from(index) * stage::SLOT_BYTES as u64;
            let mut bytes = [0; stage::SLOT_BYTES];
            memory.load(Place::new(Area::Stage, at), &mut bytes);
            let Ok(slot) = StageSlot::parse(&bytes) else {
                continue;
            };
            if slot.incarnation != header.incarnation || slot.chunk.0 >= geometry.chunks() {
                continue;
            }
            let at = stage::slot_at(index, header.slots, geometry.chunk_blocks);
            let place = Place::new(Area::Stage, at);
            let newer = stage
                .slots
                .get(&slot.chunk)
                .is_none_or(|(old, _)| old.segment_seq < slot.segment_seq);
            if newer {
                stage.slots.insert(slot.chunk, (slot, place));
            }
        }
        stage
    }

    /// Reads a chunk, if a slot mirrors it in this life of its segment.
    fn load_chunk(&self, chunk: ChunkIndex, seq: u64, bytes: &mut [u8]) -> bool {
        let found = self.slots.get(&chunk);
        let (Some((slot, place)), Some(memory)) = (found, self.memory) else {
            return false;
        };
        if slot.segment_seq != seq {
            return false;
        }
        memory.load(*place, bytes);
        true
    }

    /// The youngest life of a segment that a slot names.
    fn life(&self, geometry: Geometry, segment: u32) -> Option<(u64, u16)> {
        let first = geometry.first_chunk(SegmentIndex(segment));
        let end = ChunkIndex(first.0 + geometry.segment_chunks);
        let slots = self.slots.range(first..end);
        slots
            .map(|(_, (slot, _))| (slot.segment_seq, slot.stream))
            .max()
    }
}

/// A segment with what of it was accepted.
pub struct Segment {
    pub index: u32,
    pub seq: u64,
    pub stream: StreamKind,
    pub first_stream_seq: u64,
    pub last_stream_seq: u64,
    /// Its entries and sums; read from the device, or made from accepted records.
    pub footer: Footer,
    /// The footer is on the device already.
    pub footered: bool,
    /// The footer alone says which records count.
    pub settled: bool,
}

#[derive(Default)]
pub struct Accepted {
    pub segments: Vec<Segment>,
    /// Segments of clean blocks whose lines count: index and life.
    pub fills: Vec<(u32, u64)>,
    /// What only the stage has for certain, and where on the device it belongs.
    pub staged: Vec<(u64, Vec<u8>)>,
    /// Where records lie on the device, with their bytes, that no sync is known to have covered.
    pub unsynced: Vec<(u64, u64)>,
    pub stream_seq_next: u64,
    pub segment_seq_next: u64,
    pub unwritten_from: u32,
    pub overlay_valid: bool,
    /// Writes that whole records name by their tags, with their generations.
    pub tags: Vec<(VolumeId, Generation, Tag)>,
    /// Highest serial of each volume that was seen anywhere, accepted or not.
    pub serials_seen: BTreeMap<u32, u64>,
    pub report: Report,
}

/// A segment in some life, before it is decided what counts.
struct Candidate {
    index: u32,
    seq: u64,
    stream: StreamKind,
    listed: Option<SegmentRecord>,
    footer: Option<Footer>,
    /// Bytes of that footer on the device, by its header.
    footer_bytes: u64,
    records: Vec<Found>,
}

struct Found {
    record: Record,
    /// The sum of its header block, if that holds payload.
    header_sum: u32,
    chunk: u32,
    block: u32,
    staged: bool,
    payload_good: bool,
    accepted: bool,
}

impl Found {
    fn seq(&self) -> u64 {
        self.record.identity.stream_seq
    }

    fn end_block(&self) -> u32 {
        self.block + 1 + self.record.sums.len() as u32
    }
}

struct Scan<'a> {
    superblock: &'a Superblock,
    checkpoint: &'a Checkpoint,
    stage: &'a Stage<'a>,
    /// Segments of the checkpoint, by index.
    listed: BTreeMap<u32, SegmentRecord>,
    durable: u64,
    accepted: Accepted,
}

pub fn scan(
    media: &mut dyn Media,
    superblock: &Superblock,
    checkpoint: &Checkpoint,
    stage: &Stage<'_>,
) -> Result<Accepted, OpenError> {
    let mut scan = Scan {
        superblock,
        checkpoint,
        stage,
        listed: checkpoint
            .segments
            .iter()
            .map(|it| (it.index, *it))
            .collect(),
        durable: checkpoint.stream_seq_next - 1,
        accepted: Accepted {
            stream_seq_next: checkpoint.stream_seq_next,
            segment_seq_next: checkpoint.segment_seq_next,
            unwritten_from: checkpoint.unwritten_from,
            overlay_valid: stage.overlay_valid,
            ..Accepted::default()
        },
    };
    let mut candidates = scan.find_candidates(media)?;
    for some in candidates.chunks_mut(FOOTERS_AT_ONCE) {
        scan.read_footers(media, some)?;
    }
    for candidate in &mut candidates {
        scan.doubt_footer(candidate);
        if candidate.footer.is_none() {
            scan.read_records(media, candidate)?;
        }
    }
    // A record read late may have named a later sync: only now it is known which footers count.
    for candidate in &mut candidates {
        let late = candidate.footer.as_ref().is_some_and(|footer| {
            candidate.stream.is_chained() && footer.last_stream_seq > scan.durable
        });
        if late {
            mark(Mark::LateFooter);
            candidate.footer = None;
            scan.read_records(media, candidate)?;
        }
    }
    scan.accept(&mut candidates);
    for candidate in candidates {
        scan.finish(candidate);
    }
    scan.drop_unfinished();
    debug_assert!(
        scan.accepted
            .segments
            .is_sorted_by(|a, b| a.index < b.index),
        "a segment is accepted once"
    );
    Ok(scan.accepted)
}

impl Scan<'_> {
    fn damage(&mut self, line: alloc::string::String) {
        mark(Mark::Damage);
        note(&mut self.accepted.report.damage, line);
    }

    fn segment_at(&self, index: u32) -> u64 {
        self.superblock.log_at + u64::from(index) * self.superblock.geometry.segment_bytes()
    }

    fn footer_at(&self, index: u32) -> u64 {
        let geometry = self.superblock.geometry;
        self.segment_at(index) + geometry.segment_bytes() - geometry.chunk_bytes()
    }

    /// Reads first records and footers of all segments and finds the life of each.
    fn find_candidates(&mut self, media: &mut dyn Media) -> Result<Vec<Candidate>, OpenError> {
        let segments = self.superblock.geometry.segments;
        let mut bytes = alloc::vec![0; 2 * segments as usize * BLOCK];
        let mut reads: Vec<(u64, &mut [u8])> = Vec::new();
        for (n, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
            let index = n as u32 / 2;
            let at = if n % 2 == 0 {
                self.segment_at(index)
            } else {
                self.footer_at(index)
            };
            reads.push((at, block));
        }
        for batch in reads.chunks_mut(READS_AT_ONCE) {
            media.read_many(Device::Cache, batch).map_err(|_| CACHE)?;
        }
        drop(reads);
        let mut candidates = Vec::new();
        for index in 0..segments {
            let at = index as usize * 2 * BLOCK;
            let (head, foot) = (&bytes[at..at + BLOCK], &bytes[at + BLOCK..at + 2 * BLOCK]);
            let foot = match self.is_strangers(media, index, head, foot)? {
                true => &[],
                false => foot,
            };
            candidates.extend(self.candidate(index, head, foot));
        }
        Ok(candidates)
    }

    /// Whether the header of a footer is before the body of another one, and names a younger life
    /// than the first record: a device has exchanged it, as it may with that of another segment.
    /// A life writes its first record long before its footer. What the header says of syncs was
    /// so all the same.
    fn is_strangers(
        &mut self,
        media: &mut dyn Media,
        index: u32,
        head: &[u8],
        foot: &[u8],
    ) -> Result<bool, OpenError> {
        let (geometry, cache) = (self.superblock.geometry, self.superblock.cache);
        let first = record::parse_sealed(head).ok();
        let first = first.filter(|it| it.identity.cache == cache);
        let footer = Footer::parse_header(foot, geometry, cache).ok();
        let (Some(first), Some((footer, bytes))) = (first, footer) else {
            return Ok(false);
        };
        if footer.segment_seq <= first.identity.segment_seq {
            return Ok(false);
        }
        let mut whole = alloc::vec![0; bytes as usize];
        let read = media.read(Device::Cache, self.footer_at(index), &mut whole);
        read.map_err(|_| CACHE)?;
        if Footer::parse(&whole, geometry, cache).is_ok() {
            return Ok(false);
        }
        self.was_synced(footer.durable_upto);
        let next = &mut self.accepted.stream_seq_next;
        *next = (*next).max(footer.last_stream_seq + 1);
        Ok(true)
    }

    fn candidate(&mut self, index: u32, head: &[u8], foot: &[u8]) -> Option<Candidate> {
        let geometry = self.superblock.geometry;
        let mut lives = Vec::new();
        if let Ok(record) = record::parse_sealed(head)
            && record.identity.cache == self.superblock.cache
        {
            self.was_synced(record.identity.durable_upto);
            self.saw(&record);
            lives.push((record.identity.segment_seq, record.identity.stream));
        }
        let footer = Footer::parse_header(foot, geometry, self.superblock.cache).ok();
        if let Some((footer, _)) = &footer {
            self.was_synced(footer.durable_upto);
            let next = self
                .accepted
                .stream_seq_next
                .max(footer.last_stream_seq + 1);
            self.accepted.stream_seq_next = next;
            lives.push((footer.segment_seq, footer.stream));
        }
        lives.extend(self.stage.life(geometry, index));
        let listed = self.listed.get(&index).copied();
        let fill = self.fill_life(index, head, foot);
        let fill = fill.filter(|life| self.fill_counts(life, listed));
        lives.extend(fill.map(|life| (life.segment_seq, STREAM_FILL)));
        let life = lives.into_iter().max();
        if let Some(listed) = listed
            && life.is_none_or(|(seq, _)| seq < listed.seq)
        {
            // An overlay that was never spilled leaves nothing on the device, nor does a segment
            // that was just opened.
            let synced = (1..self.checkpoint.stream_seq_next).contains(&listed.first_stream_seq);
            if synced && StreamKind::of_code(listed.stream).is_some_and(StreamKind::is_chained) {
                self.damage(format!(
                    "segment {index} (life {}) cannot be found",
                    listed.seq
                ));
            }
            return None;
        }
        let (seq, stream) = life?;
        if stream == STREAM_FILL {
            self.accepted.fills.push((index, seq));
        }
        self.accepted.segment_seq_next = self.accepted.segment_seq_next.max(seq + 1);
        self.accepted.unwritten_from = self.accepted.unwritten_from.max(index + 1);
        let stream = StreamKind::of_code(stream)?;
        let freed = listed.is_none() && seq < self.checkpoint.segment_seq_next;
        let void = !stream.is_chained() && !self.accepted.overlay_valid;
        if freed || void {
            return None;
        }
        let footer = footer.filter(|(footer, _)| footer.segment_seq == seq);
        let footer_bytes = footer.as_ref().map_or(0, |(_, bytes)| *bytes);
        Some(Candidate {
            index,
            seq,
            stream,
            listed,
            footer: footer.map(|(footer, _)| footer),
            footer_bytes,
            records: Vec::new(),
        })
    }

    /// The youngest life as clean blocks that the ends of a segment name.
    fn fill_life(&mut self, index: u32, head: &[u8], foot: &[u8]) -> Option<Life> {
        let (geometry, cache) = (self.superblock.geometry, self.superblock.cache);
        let record = FillRecord::parse(head, geometry, cache).ok();
        let first = record.filter(|record| record.block == 0);
        let footer = FillFooter::parse_header(foot, geometry, cache).ok();
        let lives = [first.map(|it| it.life), footer.map(|(life, _)| life)];
        let life = lives
            .into_iter()
            .flatten()
            .max_by_key(|life| life.segment_seq)?;
        let accepted = &mut self.accepted;
        let next = life.segment_seq.saturating_add(1);
        accepted.segment_seq_next = accepted.segment_seq_next.max(next);
        accepted.unwritten_from = accepted.unwritten_from.max(index + 1);
        Some(life)
    }

    /// Clean blocks count while the newest checkpoint lists their segment, or if the run that
    /// wrote this checkpoint opened it later: in both cases nothing newer was written there.
    fn fill_counts(&self, life: &Life, listed: Option<SegmentRecord>) -> bool {
        match listed {
            _ if has(Bug::IgnoreFillLife) => true,
            Some(listed) => listed.seq == life.segment_seq && listed.stream == STREAM_FILL,
            None => {
                life.segment_seq >= self.checkpoint.segment_seq_next
                    && life.incarnation == self.checkpoint.incarnation
            }
        }
    }

    /// A structure says how far the log was synced when it was written.
    fn was_synced(&mut self, upto: u64) {
        if !has(Bug::IgnoreDurableUpto) {
            self.durable = self.durable.max(upto);
        }
    }

    /// What a record of this log says of syncs was so, wherever it lies: one that a device has put
    /// in another place, as it may two that it has exchanged, still tells what is missing.
    fn heard(&mut self, record: &Record) {
        let identity = &record.identity;
        let chained = StreamKind::of_code(identity.stream).is_some_and(StreamKind::is_chained);
        if identity.cache == self.superblock.cache && chained {
            self.was_synced(identity.durable_upto);
        }
    }

    /// Notes numbers that must not be given again.
    fn saw(&mut self, record: &Record) {
        let next = self
            .accepted
            .stream_seq_next
            .max(record.identity.stream_seq + 1);
        self.accepted.stream_seq_next = next;
        for entry in &record.entries {
            self.saw_serial(entry.volume.0, entry.serial.0);
        }
    }

    fn saw_serial(&mut self, volume: u32, serial: u64) {
        let seen = self.accepted.serials_seen.entry(volume).or_default();
        *seen = (*seen).max(serial);
    }

    /// Reads the whole footers of these, where a header says that there is one of this life.
    fn read_footers(
        &mut self,
        media: &mut dyn Media,
        candidates: &mut [Candidate],
    ) -> Result<(), OpenError> {
        let headed = |it: &mut Candidate| it.footer.take().is_some();
        let candidates = candidates.iter_mut();
        let headed = candidates.filter_map(|it| headed(it).then_some(it));
        let mut headed: Vec<_> = headed.collect();
        if headed.is_empty() {
            return Ok(());
        }
        let memory = |it: &&mut Candidate| alloc::vec![0; it.footer_bytes as usize];
        let mut memory: Vec<Vec<u8>> = headed.iter().map(memory).collect();
        let at = headed.iter().map(|it| self.footer_at(it.index));
        let mut reads: Vec<_> = at.zip(memory.iter_mut().map(Vec::as_mut_slice)).collect();
        media
            .read_many(Device::Cache, &mut reads)
            .map_err(|_| CACHE)?;
        for (candidate, bytes) in headed.iter_mut().zip(&memory) {
            let (geometry, cache) = (self.superblock.geometry, self.superblock.cache);
            let Ok(footer) = Footer::parse(bytes, geometry, cache) else {
                continue;
            };
            // They are sorted by volume.
            for of_one in footer.entries.chunk_by(|a, b| a.volume == b.volume) {
                let last = of_one.iter().map(|entry| entry.serial.0).max();
                self.saw_serial(of_one[0].volume.0, last.unwrap_or(0));
            }
            candidate.footer = Some(footer);
        }
        Ok(())
    }

    /// A recovery that failed, or was killed, may have left its footer where the device shows it
    /// and no sync has covered it. To believe it would be to sync again what must be written
    /// again: the next loss of power would bring the footer before it back, with records that
    /// were torn. Its records are all there still, and lead to the same footer once more.
    fn doubt_footer(&self, candidate: &mut Candidate) {
        let is_settled = candidate.listed.is_some_and(|listed| listed.settled);
        let is_doubted = |footer: &Footer| self.is_of_no_run(footer);
        if !is_settled && candidate.footer.as_ref().is_some_and(is_doubted) {
            mark(Mark::DoubtedFooter);
            candidate.footer = None;
        }
    }

    /// Footers of a recovery name the run that it begins; this one never began.
    fn is_of_no_run(&self, footer: &Footer) -> bool {
        footer.incarnation > self.checkpoint.incarnation && !has(Bug::BelieveFailedRecovery)
    }

    /// Reads a segment record by record, from the stage where a slot mirrors a chunk.
    fn read_records(
        &mut self,
        media: &mut dyn Media,
        candidate: &mut Candidate,
    ) -> Result<(), OpenError> {
        let geometry = self.superblock.geometry;
        let first = geometry.first_chunk(SegmentIndex(candidate.index)).0;
        let segment_at = self.segment_at(candidate.index);
        let chunks = geometry.segment_chunks as usize - 1;
        let mut memory = alloc::vec![0; chunks * geometry.chunk_bytes() as usize];
        let mut reads: Vec<(u64, &mut [u8])> = Vec::new();
        let mut staged = Vec::new();
        let parts = memory.chunks_exact_mut(geometry.chunk_bytes() as usize);
        for (position, bytes) in (0u32..).zip(parts) {
            let found = self
                .stage
                .load_chunk(ChunkIndex(first + position), candidate.seq, bytes);
            staged.push(found);
            if !found {
                let at = segment_at + u64::from(position) * geometry.chunk_bytes();
                reads.push((at, bytes));
            }
        }
        if !reads.is_empty() {
            media
                .read_many(Device::Cache, &mut reads)
                .map_err(|_| CACHE)?;
        }
        assert!(staged.len() == chunks, "each chunk comes from one place");
        let parts = memory.chunks_exact(geometry.chunk_bytes() as usize);
        for ((position, bytes), staged) in (0u32..).zip(parts).zip(staged) {
            self.walk(candidate, position, bytes, staged);
        }
        keep_youngest(&mut candidate.records);
        keep_ascending(&mut candidate.records);
        Ok(())
    }

    /// Finds the records of a chunk. Behind a block that is none the search goes on block by
    /// block: what is found there tells how far a sync had come.
    fn walk(&mut self, candidate: &mut Candidate, chunk: u32, bytes: &[u8], staged: bool) {
        let blocks = self.superblock.geometry.chunk_blocks;
        let mut block = 0;
        while block < blocks {
            let at = block as usize * BLOCK;
            let header = &bytes[at..at + BLOCK];
            let mut parsed = record::parse_sealed(header);
            if let Ok(record) = &parsed {
                self.heard(record);
            }
            if parsed.is_err() && staged && !has(Bug::IgnoreOpenRecords) {
                parsed = record::parse_open(header);
            }
            let mine = parsed.ok().filter(|record| {
                record.identity.cache == self.superblock.cache
                    && record.identity.segment_seq == candidate.seq
                    && record.identity.stream == candidate.stream.code()
                    && block as usize + 1 + record.sums.len() <= blocks as usize
            });
            let Some(record) = mine else {
                block += 1;
                continue;
            };
            self.was_synced(record.identity.durable_upto);
            self.saw(&record);
            let believed = staged || has(Bug::DropTailSum);
            let payload_good = believed || payload_is_good(&record, &bytes[at + BLOCK..]);
            let found = Found {
                header_sum: header_sum(&record, header),
                record,
                chunk,
                block,
                staged,
                payload_good,
                accepted: false,
            };
            // Behind a head without its payload may be other records: a device that has exchanged
            // two heads puts each before the wrong bytes. It has none then.
            let covers = |before: &Found| before.chunk == chunk && before.end_block() > block;
            while candidate.records.pop_if(|it| covers(it)).is_some() {}
            block = match payload_good {
                true => found.end_block(),
                false => block + 1,
            };
            candidate.records.push(found);
        }
    }

    /// Decides which records count.
    fn accept(&mut self, candidates: &mut [Candidate]) {
        let from = self.checkpoint.stream_seq_next;
        // (first, last, candidate, record): in order of the stream.
        let mut chain = Vec::new();
        for (at, candidate) in candidates.iter_mut().enumerate() {
            if !candidate.stream.is_chained() {
                candidate
                    .records
                    .iter_mut()
                    .for_each(|found| found.accepted = true);
                continue;
            }
            if let Some(footer) = &candidate.footer {
                chain.push((footer.first_stream_seq, footer.last_stream_seq, at, None));
            }
            for (n, found) in candidate.records.iter().enumerate() {
                chain.push((found.seq(), found.seq(), at, Some(n)));
            }
            self.check_listed(candidate);
        }
        chain.sort_unstable();
        let mut expected = from;
        let mut torn = false;
        for (first, last, at, record) in chain {
            if last >= from && first > expected && !torn {
                if expected <= self.durable {
                    let upto = self.durable.min(first - 1);
                    self.damage(format!(
                        "records {expected} to {upto} of the log were synced and cannot be found"
                    ));
                    expected = upto + 1;
                }
                torn = first > expected && !has(Bug::AcceptBehindHole);
            }
            let Some(n) = record else {
                expected = expected.max(last + 1);
                continue;
            };
            let found = &mut candidates[at].records[n];
            // Below the last sync a bad payload is damage of its blocks only, found by readers.
            torn |= last > self.durable && !found.payload_good;
            if torn && last > self.durable {
                let bytes = (1 + found.record.sums.len() as u64) * BLOCK_BYTES;
                mark(Mark::TornTail);
                self.accepted.report.tail_bytes_discarded += bytes;
                continue;
            }
            found.accepted = true;
            expected = expected.max(last + 1);
            self.accepted.report.records_replayed += 1;
        }
        if expected <= self.durable && !torn {
            let durable = self.durable;
            self.damage(format!(
                "records {expected} to {durable} of the log were synced and cannot be found"
            ));
        }
    }

    /// All records that were durable when the checkpoint listed a segment must be there.
    fn check_listed(&mut self, candidate: &Candidate) {
        let Some(listed) = candidate
            .listed
            .filter(|listed| listed.seq == candidate.seq)
        else {
            return;
        };
        if candidate.footer.is_some() || listed.first_stream_seq == 0 {
            return;
        }
        let last = listed
            .last_stream_seq
            .min(self.checkpoint.stream_seq_next - 1);
        let mut expected = listed.first_stream_seq;
        for found in &candidate.records {
            if found.seq() == expected {
                expected += 1;
            }
        }
        if expected <= last {
            self.damage(format!(
                "segment {}: records {expected} to {last} cannot be read",
                candidate.index
            ));
        }
    }

    /// RoundRobin a candidate into a segment with a footer, or into nothing.
    fn finish(&mut self, candidate: Candidate) {
        let geometry = self.superblock.geometry;
        let Candidate {
            index,
            seq,
            stream,
            listed,
            footer,
            records,
            ..
        } = candidate;
        let listed = listed.filter(|listed| listed.seq == seq);
        if footer.is_none() && listed.is_some_and(|listed| listed.settled) {
            self.damage(format!(
                "segment {index}: its footer cannot be read, and only that says what counts"
            ));
            return;
        }
        if let Some(footer) = footer {
            self.accepted.segments.push(Segment {
                index,
                seq,
                stream,
                first_stream_seq: footer.first_stream_seq,
                last_stream_seq: footer.last_stream_seq,
                footered: !self.is_of_no_run(&footer),
                footer,
                settled: listed.is_some_and(|listed| listed.settled),
            });
            return;
        }
        let records: Vec<Found> = records.into_iter().filter(|found| found.accepted).collect();
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            return;
        };
        let mut footer = Footer {
            cache: self.superblock.cache,
            stream: stream.code(),
            incarnation: self.checkpoint.incarnation + 1,
            segment_seq: seq,
            first_stream_seq: first.seq(),
            last_stream_seq: last.seq(),
            durable_upto: self.durable,
            entries: Vec::new(),
            sums: alloc::vec![0; footer::body_blocks(geometry) as usize],
        };
        for found in &records {
            add_to_footer(&mut footer, found, geometry);
            self.accepted.tags.extend(tags_of(&found.record));
        }
        footer
            .entries
            .sort_unstable_by_key(|e| (e.volume, e.span.sector, e.serial));
        assert!(
            footer.entries.len() <= footer::entries_max(geometry),
            "records of one segment fit its footer"
        );
        self.save_staged((index, seq, stream), &records);
        self.accepted.segments.push(Segment {
            index,
            seq,
            stream,
            first_stream_seq: footer.first_stream_seq,
            last_stream_seq: footer.last_stream_seq,
            footer,
            footered: false,
            settled: true,
        });
    }

    /// The last write of a volume counts only as a whole; an earlier one is whole, because
    /// serials are given one after the other. What is not whole is taken out of the footers, so
    /// that nobody finds it later, when it is not the last write any more.
    ///
    /// A replica may have parts of several deltas behind its last whole one, each of which its
    /// owner began to send and did not end: none of them counts.
    ///
    /// Not out of a footer that alone says what counts, which a loss of power could tear while it
    /// is written over. The recovery that made it has found all of its writes whole: one of which
    /// pieces are missing now was destaged since, and those lay in segments that are used again.
    fn drop_unfinished(&mut self) {
        if has(Bug::KeepUnfinished) {
            return;
        }
        let mut last: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
        // Of replicas, the newest serial that is whole.
        let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
        let replica = |it: &&VolumeRecord| matches!(it.standing.role, Role::Replica | Role::Frozen);
        let replicas = self.checkpoint.volumes.iter().filter(replica);
        ends.extend(replicas.map(|it| (it.id.0, it.destaged.0)));
        let volumes = self.checkpoint.volumes.iter();
        let bases: BTreeMap<_, _> = volumes.map(|it| (it.id, it.base_generation)).collect();
        let segments = &mut self.accepted.segments;
        for entry in segments.iter().flat_map(|segment| &segment.footer.entries) {
            let base = bases.get(&entry.volume);
            if base.is_none_or(|base| entry.generation < *base) {
                continue;
            }
            let (serial, whole) = last.entry(entry.volume.0).or_default();
            if entry.serial.0 > *serial {
                (*serial, *whole) = (entry.serial.0, false);
            }
            *whole |= entry.serial.0 == *serial && !entry.more;
            if let Some(end) = ends.get_mut(&entry.volume.0).filter(|_| !entry.more) {
                *end = entry.serial.0.max(*end);
            }
        }
        if has(Bug::CountOlderPartialDelta) {
            ends.clear();
        }
        let unfinished = |entry: &FooterEntry| {
            let (id, serial) = (entry.volume.0, entry.serial.0);
            let behind_end = ends.get(&id).is_some_and(|end| serial > *end);
            behind_end || last.get(&id).is_some_and(|last| *last == (serial, false))
        };
        for segment in segments {
            let alone = segment.settled && segment.footered && !has(Bug::WriteOverSettled);
            if !alone && segment.footer.entries.iter().any(unfinished) {
                mark(Mark::UnfinishedWrite);
                segment.footer.entries.retain(|entry| !unfinished(entry));
                segment.footer.incarnation = self.checkpoint.incarnation + 1;
                segment.footered = has(Bug::LeaveInFooters);
                segment.settled = true;
            }
        }
    }

    /// Records that came from the stage are written to their place in the log, the open record
    /// sealed with what it had; but for those at the start of a chunk that a sync has covered.
    fn save_staged(&mut self, (index, seq, stream): (u32, u64, StreamKind), records: &[Found]) {
        let geometry = self.superblock.geometry;
        let first = geometry.first_chunk(SegmentIndex(index)).0;
        for of_chunk in records.chunk_by(|a, b| a.chunk == b.chunk) {
            let synced = |found: &&Found| stream.is_chained() && found.seq() <= self.durable;
            let synced = of_chunk.iter().take_while(synced).count();
            let Some(from) = of_chunk.get(synced) else {
                continue;
            };
            let end = of_chunk.iter().map(Found::end_block).max().unwrap_or(0);
            assert!(from.block < end && end <= geometry.chunk_blocks);
            let skipped = u64::from(from.block) * BLOCK_BYTES;
            let chunk_at = u64::from(from.chunk) * geometry.chunk_bytes();
            let at = self.segment_at(index) + chunk_at + skipped;
            if !from.staged {
                let bytes = u64::from(end) * BLOCK_BYTES - skipped;
                self.accepted.unsynced.push((at, bytes));
                continue;
            }
            let chunk = ChunkIndex(first + from.chunk);
            let mut bytes = alloc::vec![0; end as usize * BLOCK];
            let found = self.stage.load_chunk(chunk, seq, &mut bytes);
            assert!(found, "its records came from it");
            for found in of_chunk {
                let at = found.block as usize * BLOCK;
                let header = &mut bytes[at..at + BLOCK];
                let (entries, blocks) = (found.record.entries.len(), found.record.sums.len());
                record::seal_record(header, entries as u16, blocks as u16);
            }
            bytes.drain(..skipped as usize);
            self.accepted.staged.push((at, bytes));
        }
    }
}

/// One run alone writes into a life of a segment. But a run whose first record here was lost with
/// the power leaves nothing that tells of the numbers it gave; the next one gives them again, and
/// what the first one left behind would look like a part of it.
fn keep_youngest(records: &mut Vec<Found>) {
    let run = |found: &Found| found.record.identity.incarnation;
    let youngest = records.iter().map(run).max();
    if records.iter().any(|found| Some(run(found)) != youngest) {
        mark(Mark::OtherRun);
    }
    records.retain(|found| Some(run(found)) == youngest || has(Bug::MixRuns));
}

/// A slot of the stage that changed hands within one segment still has, behind its new records,
/// those of the chunk before. They are in their own chunk, where they are on the device.
fn keep_ascending(records: &mut Vec<Found>) {
    let mut last = 0;
    records.retain(|found| {
        let follows = found.seq() > last;
        last = last.max(found.seq());
        follows
    });
}

/// The writes that are named; the last piece of a write speaks for all of it.
fn tags_of(record: &Record) -> impl Iterator<Item = (VolumeId, Generation, Tag)> {
    let speaks = |entry: &&record::Entry| !entry.more || has(Bug::TagUnfinished);
    let entries = record.entries.iter().filter(speaks);
    let tagged = entries.filter(|entry| entry.tag != Tag::NONE);
    tagged.map(|entry| (entry.volume, entry.generation, entry.tag))
}

fn payload_is_good(record: &Record, payload: &[u8]) -> bool {
    let blocks = payload.chunks_exact(BLOCK);
    record
        .sums
        .iter()
        .zip(blocks)
        .all(|(sum, block)| crate::format::checksum(&[block]) == *sum)
}

/// The sum of a header block that holds payload, as it is when the record is sealed with what it
/// has; else 0.
fn header_sum(record: &Record, header: &[u8]) -> u32 {
    if !record.has_inline() {
        return 0;
    }
    let mut sealed = header.to_vec();
    let (entries, blocks) = (record.entries.len(), record.sums.len());
    if !has(Bug::SumOpenHeader) {
        record::seal_record(&mut sealed, entries as u16, blocks as u16);
    }
    crate::format::checksum(&[&sealed])
}

fn add_to_footer(footer: &mut Footer, found: &Found, geometry: Geometry) {
    let header = found.chunk * geometry.chunk_blocks + found.block;
    assert!(
        header as usize + found.record.sums.len() < footer.sums.len(),
        "a record lies before the footer"
    );
    footer.sums[header as usize] = found.header_sum;
    for (n, sum) in found.record.sums.iter().enumerate() {
        footer.sums[header as usize + 1 + n] = *sum;
    }
    for entry in &found.record.entries {
        let block = match entry.blocks() {
            0 => header,
            _ => header + 1 + u32::from(entry.first_block),
        };
        footer.entries.push(FooterEntry {
            volume: entry.volume,
            generation: entry.generation,
            serial: entry.serial,
            span: entry.span,
            kind: entry.kind,
            block,
            inline: entry.inline,
            more: entry.more,
            epoch: entry.epoch,
        });
    }
}
