//! Clean segments: footers and records read back into what the index is made of.
//!
//! Always true: a structure is used only if it names the cache, the life of its segment and its
//! own place; a record is looked for only where the one before it ends; runs of layers that a
//! volume writes count in a footer that the run before this one wrote, and only with a name. What
//! cannot be read is left out and was only a copy. Deliberately absent: the blocks themselves;
//! each is checked when somebody asks for it.

use crate::adversary::{Bug, Mark, has, mark};
use crate::clean::FoundFill;
use crate::event::Device;
use crate::format::fill::{FillFooter, FillRecord, Life, Run};
use crate::format::footer::body_blocks;
use crate::format::superblock::Superblock;
use crate::media::Media;
use crate::types::{BLOCK_BYTES, Uuid};
use alloc::vec::Vec;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Segments whose footers are read together.
const AT_ONCE: usize = 256;

/// Reads what the segments hold, given by index and life; the newest `segments_max` of them, in
/// order of their lives.
pub fn load(
    media: &mut dyn Media,
    (superblock, incarnation): (&Superblock, u64),
    mut lives: Vec<(u32, u64)>,
    segments_max: usize,
) -> Vec<FoundFill> {
    lives.sort_unstable_by_key(|(_, seq)| *seq);
    let older = lives.len().saturating_sub(segments_max);
    let mut found = Vec::new();
    for some in lives[older..].chunks(AT_ONCE) {
        let footers = by_footers(media, superblock, some);
        assert!(footers.len() == some.len(), "each segment has its answer");
        for ((index, seq), footer) in some.iter().zip(footers) {
            let named = footer
                .map(|(found, life)| believed(found, life.incarnation == incarnation))
                .or_else(|| by_records(media, superblock, *index, *seq));
            found.extend(named.filter(|found| !found.runs.is_empty()));
        }
    }
    debug_assert!(found.is_sorted_by_key(|found: &FoundFill| found.seq));
    found
}

/// Leaves out own layers, but for those that the run before this one has named when it stopped.
fn believed(mut found: FoundFill, just_named: bool) -> FoundFill {
    let believed = just_named || has(Bug::BelieveKilledLayers);
    let counts = |run: &Run| !run.own || (believed && run.layer != Uuid::NIL);
    found.runs.retain(counts);
    found
}

fn segment_at(superblock: &Superblock, index: u32) -> u64 {
    superblock.log_at + u64::from(index) * superblock.geometry.segment_bytes()
}

/// What the footers of these segments say, where they are whole and of these lives.
fn by_footers(
    media: &mut dyn Media,
    superblock: &Superblock,
    lives: &[(u32, u64)],
) -> Vec<Option<(FoundFill, Life)>> {
    let (geometry, cache) = (superblock.geometry, superblock.cache);
    let footer_at =
        |index| segment_at(superblock, index) + geometry.segment_bytes() - geometry.chunk_bytes();
    let places: Vec<u64> = lives.iter().map(|(index, _)| footer_at(*index)).collect();
    let mut memory: Vec<Vec<u8>> = lives.iter().map(|_| alloc::vec![0; BLOCK]).collect();
    read_those(media, &places, &mut memory);
    for ((_, seq), bytes) in lives.iter().zip(&mut memory) {
        let header = FillFooter::parse_header(bytes, geometry, cache).ok();
        let header = header.filter(|(life, _)| life.segment_seq == *seq);
        bytes.resize(header.map_or(0, |(_, length)| length as usize), 0);
    }
    read_those(media, &places, &mut memory);
    let footers = lives.iter().zip(&memory).map(|((index, seq), bytes)| {
        let (life, _) = FillFooter::parse_header(bytes, geometry, cache).ok()?;
        let footer = FillFooter::parse(bytes, geometry, cache).ok()?;
        let found = FoundFill {
            index: *index,
            seq: *seq,
            runs: footer.runs,
            sums: footer.sums,
        };
        (footer.life == life && life.segment_seq == *seq).then_some((found, life))
    });
    footers.collect()
}

/// Reads as much as the memory for each of these places asks for; where the device does not give
/// all of it together, one by one, and nothing of what it does not give.
fn read_those(media: &mut dyn Media, places: &[u64], memory: &mut [Vec<u8>]) {
    assert!(places.len() == memory.len(), "each place has its memory");
    let wanted = places.iter().copied().zip(memory.iter_mut());
    let wanted = wanted.filter(|(_, bytes)| !bytes.is_empty());
    let mut reads: Vec<_> = wanted.map(|(at, it)| (at, it.as_mut_slice())).collect();
    if reads.is_empty() || media.read_many(Device::Cache, &mut reads).is_ok() {
        return;
    }
    drop(reads);
    for (at, bytes) in places.iter().zip(memory) {
        if !bytes.is_empty() && media.read(Device::Cache, *at, bytes).is_err() {
            bytes.clear();
        }
    }
}

/// Without a footer: record by record, up to the torn end.
fn by_records(
    media: &mut dyn Media,
    superblock: &Superblock,
    index: u32,
    seq: u64,
) -> Option<FoundFill> {
    let (geometry, cache) = (superblock.geometry, superblock.cache);
    let body = body_blocks(geometry);
    let mut bytes = alloc::vec![0; body as usize * BLOCK];
    let at = segment_at(superblock, index);
    media.read(Device::Cache, at, &mut bytes).ok()?;
    let mut found = FoundFill {
        index,
        seq,
        runs: Vec::new(),
        sums: alloc::vec![0; body as usize],
    };
    let mut block = 0;
    while block < body {
        let header = &bytes[block as usize * BLOCK..];
        let Ok(record) = FillRecord::parse(header, geometry, cache) else {
            break;
        };
        if record.life.segment_seq != seq || record.block != block {
            break;
        }
        let first = block as usize + 1;
        mark(Mark::FillWithoutFooter);
        block = record.end_block();
        found.sums[first..block as usize].copy_from_slice(&record.sums);
        found.runs.extend(record.runs);
    }
    Some(believed(found, false))
}
