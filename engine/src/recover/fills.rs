//! Clean segments: footers and records read back into what the index is made of.
//!
//! Always true: a structure is used only if it names the cache, the life of its segment and its
//! own place; a record is looked for only where the one before it ends; runs of layers that a
//! volume writes count in a footer that the run before this one wrote, and only with a name. What
//! cannot be read is left out and was only a copy. Deliberately absent: the blocks themselves;
//! each is checked when somebody asks for it.

use crate::adversary::{Bug, Mark, has, mark};
use crate::core::FoundFill;
use crate::event::Device;
use crate::format::fill::{FillFooter, FillRecord, Life, Run};
use crate::format::footer::body_blocks;
use crate::format::superblock::Superblock;
use crate::media::Media;
use crate::types::{BLOCK_BYTES, Uuid};
use alloc::vec::Vec;

const BLOCK: usize = BLOCK_BYTES as usize;

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
    let newest = lives.into_iter().skip(older);
    newest
        .filter_map(|(index, seq)| {
            by_footer(media, superblock, index, seq)
                .map(|(found, life)| believed(found, life.incarnation == incarnation))
                .or_else(|| by_records(media, superblock, index, seq))
        })
        .filter(|found| !found.runs.is_empty())
        .collect()
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

fn by_footer(
    media: &mut dyn Media,
    superblock: &Superblock,
    index: u32,
    seq: u64,
) -> Option<(FoundFill, Life)> {
    let (geometry, cache) = (superblock.geometry, superblock.cache);
    let end = segment_at(superblock, index) + geometry.segment_bytes();
    let at = end - geometry.chunk_bytes();
    let mut bytes = alloc::vec![0; BLOCK];
    media.read(Device::Cache, at, &mut bytes).ok()?;
    let (life, length) = FillFooter::parse_header(&bytes, geometry, cache).ok()?;
    if life.segment_seq != seq {
        return None;
    }
    bytes.resize(length as usize, 0);
    media.read(Device::Cache, at, &mut bytes).ok()?;
    let footer = FillFooter::parse(&bytes, geometry, cache).ok()?;
    let found = FoundFill {
        index,
        seq,
        runs: footer.runs,
        sums: footer.sums,
    };
    (footer.life == life).then_some((found, life))
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
