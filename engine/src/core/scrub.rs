//! Scrub: what lies on the cache device is read once and compared with its checksum, beside the
//! guests, so that damage is found while there still is another copy.
//!
//! ```text
//! order ─▶ Look ─▶ Fetch ─▶ Rest ─▶ Look … ─▶ (end of the log) ─▶ reply
//!            └──▶ Footer ───┘
//! ```
//!
//! Dirty data by volume and sector first, then segment by segment clean blocks and footers. Always
//! true: what is judged was there, as it is mapped now, before and after it was read; a bad clean
//! block is forgotten, a bad dirty one marks its volume damaged; a scrub takes a quarter of the
//! time that the device gives, and one piece of memory. What the stage still mirrors is not read:
//! it has another copy there. One runs at a time, and who orders another joins it. Deliberately
//! absent: what becomes of a bad block, which is returned.

use crate::clean::Lines;
use crate::event::{Device, Op, Purpose, Refusal};
use crate::fetch::{Fetches, Owner, TRIES_MAX, Want};
use crate::format::footer::Footer;
use crate::lines::LineRun;
use crate::log::Log;
use crate::map::Content;
use crate::memory::{Place, Slice};
use crate::outbox::{Cx, Pending, Timer};
use crate::ram::Key;
use crate::scratch::Scratch;
use crate::snapshot::{CacheState, ScrubSnapshot};
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, LogAddr, RequestId, SECTOR_BYTES, SegmentIndex, Span, Time, Uuid,
    VolumeId,
};
use crate::volume::Volumes;
use alloc::collections::BTreeSet;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Largest read.
const CHECK_BLOCKS_MAX: u64 = 16;
/// Reads in one step.
const BATCH_MAX: usize = 16;
/// Places that one step looks at for something to read.
const LOOKS_MAX: usize = 256;
/// For each part of time that the device works for a scrub, so many in which it does not.
const REST_PARTS: u64 = 3;
const REST_NS_MIN: u64 = 1_000_000;
/// A device that hung, or a host that stood still, is no reason to rest for hours.
const REST_NS_MAX: u64 = 10_000_000_000;
/// When to look again for memory that others have.
const RETRY_MS: u64 = 10;
/// When to look again at a device that has failed something: nothing is judged meanwhile.
const FAILING_MS: u64 = 100;

const _: () = assert!(CHECK_BLOCKS_MAX > 1 && REST_NS_MIN < REST_NS_MAX);

/// Where to look next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Dirty { volume: VolumeId, sector: u64 },
    Segment(u32),
    End,
}

/// Whose bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// What an epoch of a volume has at a place.
    Dirty { volume: VolumeId, span: Span },
    /// Blocks of a layer, by its number in the index.
    Clean { layer: u16, block: u64 },
}

/// Blocks in a row, to be compared with their checksums.
#[derive(Clone, Copy, Debug)]
struct Check {
    of: Of,
    /// Of dirty data the exact place, whatever its phase.
    addr: LogAddr,
    blocks: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Look,
    Fetch,
    /// `tries`: how often no footer came.
    Footer {
        segment: SegmentIndex,
        tries: u8,
    },
    Rest,
}

/// A scrub, under way or ended.
struct Run {
    waiters: Vec<RequestId>,
    step: Step,
    at: At,
    queue: VecDeque<Check>,
    batch: Vec<Check>,
    piece: Option<u32>,
    batch_began: Time,
    rest_until: Time,
    began: Time,
    ended: Option<Time>,
    seen: ScrubSnapshot,
}

impl Run {
    fn is_running(&self) -> bool {
        self.ended.is_none()
    }

    fn put_piece(&mut self, scratch: &mut Scratch) {
        if let Some(piece) = self.piece.take() {
            scratch.free_piece(piece);
        }
    }
}

/// What a scrub looks at.
pub struct Sources<'a> {
    pub volumes: &'a Volumes,
    pub lines: &'a Lines,
    pub log: &'a mut Log,
    pub scratch: &'a mut Scratch,
    pub fetches: &'a mut Fetches,
}

/// A block that is bad, which its keeper is to be told.
pub enum Bad {
    Dirty(VolumeId, LogAddr),
    Clean(Key),
}

/// The one scrub of a shard, if any was ordered yet.
#[derive(Default)]
pub struct Scrub {
    run: Option<Run>,
}

impl Check {
    /// Its bytes as whole blocks.
    fn want(&self, to: Place) -> Want {
        let addr = LogAddr(self.addr.block() * BLOCK_SECTORS);
        let sectors = self.blocks * BLOCK_SECTORS;
        Want { addr, sectors, to }
    }

    /// What of it lies in this block of the log, if any.
    fn part(&self, block: u64) -> Option<Check> {
        let (first, blocks) = (self.addr.block(), 1);
        assert!(self.blocks > 0, "a check has blocks");
        let at = block.checked_sub(first).filter(|at| *at < self.blocks)?;
        Some(match self.of {
            Of::Clean { layer, block } => Check {
                of: Of::Clean {
                    layer,
                    block: block + at,
                },
                addr: Log::block_addr((first + at) as u32),
                blocks,
            },
            Of::Dirty { volume, span } => {
                let from = self.addr.0.max(block * BLOCK_SECTORS);
                let end = self.addr.0 + span.sectors;
                let upto = end.min((block + 1) * BLOCK_SECTORS);
                let span = Span::new(span.sector + from - self.addr.0, upto - from);
                Check {
                    of: Of::Dirty { volume, span },
                    addr: LogAddr(from),
                    blocks,
                }
            }
        })
    }
}

impl Scrub {
    /// An administrator wants everything checked: so many blocks, and the footers.
    pub fn order(&mut self, cx: &mut Cx<'_>, request: RequestId, total_bytes: u64) {
        if let Some(scrub) = &mut self.run {
            if scrub.is_running() {
                scrub.waiters.push(request);
                return;
            }
            if matches!(scrub.step, Step::Fetch | Step::Footer { .. }) {
                // The last read of one that the device failed.
                cx.out.reply(request, Err(Refusal::CacheFailed));
                return;
            }
        }
        let rests = self.run.as_ref().is_none_or(|it| it.piece.is_none());
        assert!(rests, "one that has ended has no memory");
        self.run = Some(Run {
            waiters: alloc::vec![request],
            step: Step::Look,
            at: At::Dirty {
                volume: VolumeId(0),
                sector: 0,
            },
            queue: VecDeque::new(),
            batch: Vec::new(),
            piece: None,
            batch_began: cx.now,
            rest_until: cx.now,
            began: cx.now,
            ended: None,
            seen: ScrubSnapshot {
                total_bytes,
                ..ScrubSnapshot::default()
            },
        });
    }

    pub fn show(&self, now: Time) -> Option<ScrubSnapshot> {
        self.run.as_ref().map(|scrub| ScrubSnapshot {
            running: scrub.is_running(),
            took_ns: scrub.ended.unwrap_or(now).since(scrub.began),
            ended_ns: scrub.ended.map(|ended| now.since(ended)),
            ..scrub.seen
        })
    }

    /// Ends a scrub; early for an orderly stop or a device that fails.
    pub fn end(&mut self, cx: &mut Cx<'_>, scratch: &mut Scratch, result: Result<(), Refusal>) {
        let Some(scrub) = self.run.as_mut().filter(|it| it.is_running()) else {
            return;
        };
        scrub.ended = Some(cx.now);
        scrub.seen.complete = result.is_ok();
        scrub.queue = VecDeque::new();
        for request in scrub.waiters.drain(..) {
            cx.out.reply(request, result);
        }
        if matches!(scrub.step, Step::Look | Step::Rest) {
            scrub.put_piece(scratch);
        }
    }

    pub fn pump(&mut self, cx: &mut Cx<'_>, mut from: Sources<'_>, state: CacheState) {
        let Some(scrub) = self.run.as_mut().filter(|it| it.is_running()) else {
            return;
        };
        match scrub.step {
            Step::Fetch | Step::Footer { .. } => return,
            Step::Rest if cx.now < scrub.rest_until => return,
            Step::Rest | Step::Look => scrub.step = Step::Look,
        }
        match state {
            CacheState::Good => {}
            CacheState::Failing => return scrub.rest(cx, cx.now.plus_millis(FAILING_MS)),
            CacheState::Failed | CacheState::Gone => {
                return self.end(cx, from.scratch, Err(Refusal::CacheFailed));
            }
        }
        let Some(piece) = from.scratch.take_piece() else {
            return scrub.rest(cx, cx.now.plus_millis(RETRY_MS));
        };
        assert!(scrub.piece.is_none(), "a scrub has one piece of memory");
        scrub.piece = Some(piece);
        scrub.batch_began = cx.now;
        for _ in 0..LOOKS_MAX {
            if scrub.fill_batch(&from) {
                break;
            }
            match scrub.look_further(&from) {
                At::End => return self.end(cx, from.scratch, Ok(())),
                At::Segment(at) if scrub.read_footer(cx, &mut from, SegmentIndex(at)) => return,
                _ => {}
            }
        }
        if !scrub.send_batch(cx, &mut from) {
            // Nothing was found in so many places: others have their turn.
            scrub.put_piece(from.scratch);
            scrub.rest(cx, cx.now);
        }
    }

    /// A batch was read, and these blocks of it are bad. Returns those that are so still.
    pub fn fetched(
        &mut self,
        cx: &mut Cx<'_>,
        from: Sources<'_>,
        state: CacheState,
        bad: &[Want],
    ) -> Vec<Bad> {
        let scrub = self.run.as_mut().expect("something of it was in flight");
        assert!(scrub.step == Step::Fetch, "a batch was asked for");
        let batch = core::mem::take(&mut scrub.batch);
        let mut judged = Vec::new();
        if state == CacheState::Good {
            let blocks: u64 = batch.iter().map(|check| check.blocks).sum();
            scrub.seen.checked_bytes += blocks * BLOCK_BYTES;
            // A header block may hold several of them, each of which has read it.
            let bad: BTreeSet<u64> = bad.iter().map(|want| want.addr.block()).collect();
            for check in batch {
                let parts = bad.iter().filter_map(|block| check.part(*block));
                judged.extend(parts.filter_map(|part| scrub.judge(&from, part)));
            }
        } else {
            scrub.queue.extend(batch);
        }
        scrub.rest_after_read(cx, from.scratch);
        judged
    }

    pub fn footer_read(
        &mut self,
        cx: &mut Cx<'_>,
        (log, scratch): (&mut Log, &mut Scratch),
        (cache, state): (Uuid, CacheState),
        ok: bool,
    ) {
        let scrub = self.run.as_mut().expect("something of it was in flight");
        let Step::Footer { segment, tries } = scrub.step else {
            unreachable!("a footer was asked for");
        };
        let piece = scrub.piece.expect("kept until it is read");
        let mut bytes = alloc::vec![0; scratch.piece_bytes() as usize];
        cx.memory.load(scratch.piece(piece), &mut bytes);
        let parsed = Footer::parse(&bytes, log.geometry, cache);
        let good = ok && parsed.is_ok();
        if !good && tries + 1 < TRIES_MAX {
            return scrub.ask_footer(cx, (log, scratch), segment, tries + 1);
        }
        log.unpin(segment);
        let counts = log.is_footered(segment) && state == CacheState::Good;
        scrub.seen.checked_bytes += scratch.piece_bytes();
        scrub.seen.bad_footers += u64::from(counts && !good);
        scrub.rest_after_read(cx, scratch);
    }
}

impl Run {
    fn rest(&mut self, cx: &mut Cx<'_>, until: Time) {
        assert!(self.is_running(), "one that has ended waits for nothing");
        self.step = Step::Rest;
        self.rest_until = until;
        cx.out.timer(until, Timer::Scrub);
    }

    /// The step after a read: rest in proportion to what it took.
    fn rest_after_read(&mut self, cx: &mut Cx<'_>, scratch: &mut Scratch) {
        self.put_piece(scratch);
        if !self.is_running() {
            return;
        }
        let took = cx.now.since(self.batch_began);
        let rest = (took * REST_PARTS).clamp(REST_NS_MIN, REST_NS_MAX);
        self.rest(cx, Time(cx.now.0 + rest));
    }

    /// Moves on by one place, and queues what lies there. The place it looked at.
    fn look_further(&mut self, from: &Sources<'_>) -> At {
        let at = self.at;
        let (next, found) = match at {
            At::Dirty { volume, sector } => from.dirty_checks(volume, sector),
            At::Segment(segment) if segment == from.log.geometry.segments => (At::End, Vec::new()),
            At::Segment(segment) => (
                At::Segment(segment + 1),
                from.clean_checks(SegmentIndex(segment)),
            ),
            At::End => (At::End, Vec::new()),
        };
        self.at = next;
        self.queue.extend(found);
        match next {
            At::End => next,
            _ => at,
        }
    }

    /// Takes what is queued, as far as it fits. True when it is to go: small reads of dirty data
    /// are collected.
    fn fill_batch(&mut self, from: &Sources<'_>) -> bool {
        let room = from.scratch.piece_bytes() / BLOCK_BYTES;
        let mut blocks: u64 = self.batch.iter().map(|check| check.blocks).sum();
        let mut full = false;
        while let Some(check) = self.queue.front() {
            full = blocks + check.blocks > room || self.batch.len() == BATCH_MAX;
            if full {
                break;
            }
            if from.is_current(check) {
                blocks += check.blocks;
                self.batch.push(*check);
            }
            self.queue.pop_front();
        }
        let collects = matches!(self.at, At::Dirty { .. });
        let goes = full || (!collects && !self.batch.is_empty());
        assert!(
            blocks <= room && self.batch.len() <= BATCH_MAX,
            "a batch fits its piece"
        );
        goes
    }

    /// False if there is nothing to send.
    fn send_batch(&mut self, cx: &mut Cx<'_>, from: &mut Sources<'_>) -> bool {
        let piece = self.piece.expect("taken before anything is looked for");
        let mut at = from.scratch.piece(piece);
        let mut wants = Vec::with_capacity(self.batch.len());
        for check in &self.batch {
            wants.push(check.want(at));
            at = at.plus(check.blocks * BLOCK_BYTES);
        }
        if wants.is_empty() {
            return false;
        }
        self.step = Step::Fetch;
        let parts = (&mut *from.log, &mut *from.scratch);
        let (owner, purpose) = (Owner::Scrub, Purpose::Scrub);
        let started = from.fetches.start(cx, parts, owner, purpose, &wants);
        assert!(started, "nothing of it is in the stage");
        true
    }

    /// One block was bad.
    fn judge(&mut self, from: &Sources<'_>, check: Check) -> Option<Bad> {
        if !from.is_current(&check) {
            return None;
        }
        match check.of {
            Of::Dirty { volume, span } => {
                self.seen.damaged_bytes += span.sectors * SECTOR_BYTES;
                Some(Bad::Dirty(volume, check.addr))
            }
            Of::Clean { layer, block } => {
                self.seen.dropped_bytes += BLOCK_BYTES;
                let layer = from.lines.layers.layer(layer)?;
                Some(Bad::Clean(Key { layer, block }))
            }
        }
    }

    /// Reads the footer of a segment that has one. False if it has none.
    fn read_footer(
        &mut self,
        cx: &mut Cx<'_>,
        from: &mut Sources<'_>,
        segment: SegmentIndex,
    ) -> bool {
        if !from.log.is_footered(segment) {
            return false;
        }
        from.log.pin(from.log.footer_at(segment));
        self.ask_footer(cx, (from.log, from.scratch), segment, 0);
        true
    }

    fn ask_footer(
        &mut self,
        cx: &mut Cx<'_>,
        (log, scratch): (&Log, &Scratch),
        segment: SegmentIndex,
        tries: u8,
    ) {
        assert!(tries < TRIES_MAX);
        let piece = self.piece.expect("taken before anything is looked for");
        self.step = Step::Footer { segment, tries };
        let addr = log.footer_at(segment);
        let slices = alloc::vec![Slice {
            place: scratch.piece(piece),
            bytes: scratch.piece_bytes(),
        }];
        let at = log.device_at(addr);
        let (pending, purpose) = (Pending::ScrubFooter, Purpose::Scrub);
        cx.transfer(pending, purpose, Device::Cache, Op::Read, at, slices);
    }
}

impl Sources<'_> {
    /// What all epochs of a volume have in the log at the first dirty place from `sector` on.
    fn dirty_checks(&self, volume: VolumeId, sector: u64) -> (At, Vec<Check>) {
        if volume >= self.volumes.end() {
            return (At::Segment(0), Vec::new());
        }
        let next_volume = At::Dirty {
            volume: VolumeId(volume.0 + 1),
            sector: 0,
        };
        let Some(of) = self.volumes.get(volume) else {
            return (next_volume, Vec::new());
        };
        let firsts = of
            .epochs
            .iter()
            .filter_map(|epoch| epoch.map.at_or_after(sector));
        let Some(first) = firsts.map(|piece| piece.span.sector.max(sector)).min() else {
            return (next_volume, Vec::new());
        };
        // A range that begins inside a block touches one block more.
        let window = Span::new(first, (self.check_blocks() - 1) * BLOCK_SECTORS);
        let mut checks = Vec::new();
        for epoch in &of.epochs {
            epoch.map.get(window, |span, content| {
                if let Some(Content::Data(addr)) = content {
                    let blocks = (addr.0 + span.sectors).div_ceil(BLOCK_SECTORS) - addr.block();
                    let of = Of::Dirty {
                        volume: of.id(),
                        span,
                    };
                    checks.push(Check { of, addr, blocks });
                }
            });
        }
        let next = At::Dirty {
            volume,
            sector: window.end(),
        };
        (next, checks)
    }

    /// Blocks of one read: what fits into a piece, also of the small ones of a small cache.
    fn check_blocks(&self) -> u64 {
        let blocks = CHECK_BLOCKS_MAX.min(self.scratch.piece_bytes() / BLOCK_BYTES);
        assert!(blocks > 1, "each look goes on by a block at least");
        blocks
    }

    fn clean_checks(&self, segment: SegmentIndex) -> Vec<Check> {
        let mut checks = Vec::new();
        if !self.log.is_clean(segment) {
            return checks;
        }
        for run in self.lines.runs_of(segment) {
            checks.extend(rows(run, self.check_blocks()));
        }
        checks.sort_unstable_by_key(|check| check.addr);
        checks
    }

    /// Whether the bytes are still what the check was made for, in part at least, and on the device
    /// only.
    fn is_current(&self, check: &Check) -> bool {
        match check.of {
            Of::Clean { layer, block } => {
                let base = check.addr.block() as u32;
                let mut blocks = 0..check.blocks;
                blocks.all(|at| self.lines.place(layer, block + at) == Some(base + at as u32))
            }
            Of::Dirty { volume, span } => {
                let Some(volume) = self.volumes.get(volume) else {
                    return false;
                };
                let mut lives = false;
                for epoch in &volume.epochs {
                    epoch.map.get(span, |part, content| {
                        let addr = check.addr.plus(part.sector - span.sector);
                        lives |= content == Some(Content::Data(addr));
                    });
                }
                lives && self.log.staged(check.addr).is_none()
            }
        }
    }
}

/// A run of clean blocks as checks of blocks whose numbers follow each other.
fn rows(run: LineRun, blocks_max: u64) -> Vec<Check> {
    let mut checks: Vec<Check> = Vec::new();
    let mut next = None;
    for (block, slot) in run.blocks() {
        let last = checks.last_mut().filter(|_| next == Some(block));
        match last.filter(|check| check.blocks < blocks_max) {
            Some(check) => check.blocks += 1,
            None => checks.push(Check {
                of: Of::Clean {
                    layer: run.layer,
                    block,
                },
                addr: Log::block_addr(slot),
                blocks: 1,
            }),
        }
        next = Some(block + 1);
    }
    checks
}
