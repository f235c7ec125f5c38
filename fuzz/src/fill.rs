//! Targets for the structures of clean blocks.
//!
//! Always true of what was parsed: it reads the same after it is written again, every run lies
//! before the footer, and the runs of a record take exactly the blocks behind its header.

use crate::format::make;
use crate::repair;
use crate::source::Source;
use engine::format::Kind;
use engine::format::fill::{self, FillFooter, FillRecord, Life, RECORD_BLOCKS_MAX, Run};
use engine::format::footer::body_blocks;
use engine::types::{Geometry, Uuid};

fn geometry(source: &mut Source) -> Geometry {
    let (chunk_blocks, segment_chunks) = source.pick(&[(64, 32), (8, 4), (4, 2)]);
    Geometry {
        chunk_blocks,
        segment_chunks,
        segments: 8,
    }
}

fn life(source: &mut Source, cache: Uuid) -> Life {
    Life {
        cache,
        incarnation: source.number(),
        segment_seq: source.number(),
    }
}

fn run(source: &mut Source, slot: u32) -> Run {
    Run {
        layer: Uuid(source.bytes16()),
        own: source.byte() % 2 == 1,
        line: source.number() >> (source.byte() % 64),
        slot,
        bitmap: source.u16(),
    }
}

fn check_runs(runs: &[Run], geometry: Geometry) {
    for run in runs {
        assert!(run.blocks() > 0 && run.slot + run.blocks() <= body_blocks(geometry));
    }
}

pub fn record(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let geometry = geometry(source);
    let cache = Uuid(source.bytes16());
    let (mut bytes, repaired) = make(source, Kind::FillRecord, fill::HEADER_BYTES, |source| {
        built_record(source, geometry, cache).encode()
    });
    if repaired {
        repair::seal(&mut bytes, fill::HEADER_BYTES);
    }
    let Ok(parsed) = FillRecord::parse(&bytes, geometry, cache) else {
        return false;
    };
    check_runs(&parsed.runs, geometry);
    let blocks: u32 = parsed.runs.iter().map(Run::blocks).sum();
    assert_eq!(blocks as usize, parsed.sums.len());
    assert!(parsed.end_block() <= body_blocks(geometry));
    let again = FillRecord::parse(&parsed.encode(), geometry, cache);
    assert_eq!(again, Ok(parsed));
    true
}

fn built_record(source: &mut Source, geometry: Geometry, cache: Uuid) -> FillRecord {
    let block = source.u32() % body_blocks(geometry);
    let mut at = block + 1;
    let mut runs = Vec::new();
    let mut sums = Vec::new();
    for _ in 0..1 + source.byte() % 6 {
        let run = run(source, at);
        let left = RECORD_BLOCKS_MAX - sums.len();
        if run.bitmap == 0 || run.blocks() as usize > left {
            break;
        }
        at += run.blocks();
        sums.extend((0..run.blocks()).map(|_| source.u32()));
        runs.push(run);
    }
    FillRecord {
        life: life(source, cache),
        block,
        runs,
        sums,
    }
}

pub fn footer(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let geometry = geometry(source);
    let cache = Uuid(source.bytes16());
    let (mut bytes, repaired) = make(source, Kind::FillFooter, 4 * 4096, |source| {
        let runs = (0..source.below(fill::runs_max(geometry) + 1).min(40))
            .map(|_| {
                let slot = source.u32() % (body_blocks(geometry) + 4);
                run(source, slot)
            })
            .collect();
        let footer = FillFooter {
            life: life(source, cache),
            runs,
            sums: (0..body_blocks(geometry)).collect(),
        };
        footer.encode()
    });
    if repaired {
        repair::fill_footer(&mut bytes, geometry, cache);
    }
    if let Ok((_, length)) = FillFooter::parse_header(&bytes, geometry, cache) {
        assert!(
            length <= geometry.chunk_bytes(),
            "a footer lies in one chunk"
        );
    }
    let Ok(parsed) = FillFooter::parse(&bytes, geometry, cache) else {
        return false;
    };
    check_runs(&parsed.runs, geometry);
    let again = FillFooter::parse(&parsed.encode(), geometry, cache);
    assert_eq!(again, Ok(parsed));
    true
}
