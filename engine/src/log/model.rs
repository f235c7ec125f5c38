//! The log against a simple reference: a list of what lives, and a device of two layers.
//!
//! What is checked at each step: everything that lives reads back as it was appended, from the
//! stage or from the device; what is durable lies on the layer that syncs have reached; the counts
//! of segments are those of the list; and a segment is freed only when nothing in it lives and
//! what replaced it is durable. Writes end in any order and late, some fail, and so do syncs.

use super::{Item, Log, QuotaOwner, Start, StreamKind};
use crate::event::{Action, Io, Op};
use crate::format::record::{self, EntryKind};
use crate::format::{checksum, stage};
use crate::map::{Change, Content, Piece};
use crate::memory::model::Bytes;
use crate::memory::{Area, Memory, Place};
use crate::outbox::{Cx, Outbox, Pending, Timer};
use crate::scratch::Scratch;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, BufferId, EpochNumber, Generation, Geometry, LogAddr, SECTOR_BYTES,
    SegmentIndex, Serial, Span, StreamSeq, Tag, Time, Uuid, VolumeId,
};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use workload::rng::Rng;

pub(super) const GEOMETRY: Geometry = Geometry {
    chunk_blocks: 8,
    segment_chunks: 4,
    segments: 14,
};
pub(super) const SLOTS: u32 = 10;
pub(super) const LOG_AT: u64 = 8192;
const PIECES: u64 = 10;
const BLOCKS_MAX: u64 = 5;
const STEPS: u64 = 12_000;

/// Something appended that nothing has replaced.
struct Living {
    piece: Piece,
    seq: StreamSeq,
    bytes: Vec<u8>,
}

pub(super) struct Model {
    random: Rng,
    pub(super) now: Time,
    pub(super) log: Log,
    pub(super) memory: Bytes,
    pub(super) out: Outbox,
    pub(super) scratch: Scratch,
    pub(super) flights: Vec<Io>,
    /// What writes have left, and what of it a sync has reached.
    device: Vec<u8>,
    synced: Vec<u8>,
    /// What the sync in flight will reach.
    covered: Option<Vec<u8>>,
    living: Vec<Living>,
    /// The newest record when something in a segment died last.
    died: BTreeMap<SegmentIndex, StreamSeq>,
    pub(super) serial: u64,
    freed: u64,
    refused: u64,
    failures: u64,
}

/// An empty log.
pub(super) fn start() -> Start {
    Start {
        cache: Uuid([7; 16]),
        geometry: GEOMETRY,
        log_at: LOG_AT,
        incarnation: 1,
        stream_seq_next: 1,
        segment_seq_next: 1,
        unwritten_from: 0,
        stage_slots: SLOTS,
        overlay_slots: 2,
        inline_records: true,
    }
}

macro_rules! with_cx {
    ($model:expr, |$log:ident, $cx:ident, $scratch:ident| $body:expr) => {{
        let model: &mut Model = $model;
        let ($log, $scratch) = (&mut model.log, &mut model.scratch);
        let $cx = &mut Cx {
            now: model.now,
            memory: &mut model.memory,
            out: &mut model.out,
        };
        let _ = (&$scratch, &$cx);
        $body
    }};
}
pub(super) use with_cx;

impl Model {
    fn new(seed: u64) -> Model {
        let mut model = Model::of(seed, start());
        model.log.collect_ready();
        model
    }

    pub(super) fn of(seed: u64, start: Start) -> Model {
        let slots = start.stage_slots + start.overlay_slots;
        let log = Log::new(start);
        let stage = stage::slot_at(slots, slots, GEOMETRY.chunk_blocks);
        let scratch = 256 * BLOCK_BYTES + PIECES * GEOMETRY.chunk_bytes();
        let device = vec![0; (LOG_AT + GEOMETRY.log_bytes()) as usize];
        Model {
            random: Rng::new(seed),
            now: Time(1),
            log,
            memory: Bytes {
                stage: vec![0; stage as usize],
                scratch: vec![0; scratch as usize],
                buffer: vec![0; (BLOCKS_MAX * BLOCK_BYTES) as usize],
                ..Bytes::default()
            },
            out: Outbox::default(),
            scratch: Scratch::new(GEOMETRY, scratch),
            flights: Vec::new(),
            synced: device.clone(),
            device,
            covered: None,
            living: Vec::new(),
            died: BTreeMap::new(),
            serial: 0,
            freed: 0,
            refused: 0,
            failures: 0,
        }
    }

    /// What the engine does after each event.
    pub(super) fn pump(&mut self) {
        with_cx!(self, |log, cx, scratch| {
            log.pump_writes(cx);
            log.pump_space(cx, scratch);
        });
        while let Some(action) = self.out.poll() {
            let Action::Io(io) = action else {
                unreachable!("the log answers nobody");
            };
            if io.op == Op::Sync {
                self.covered = Some(self.device.clone());
            }
            self.flights.push(io);
        }
        while let Some(timer) = self.out.due(self.now) {
            match timer {
                Timer::Linger => self.log.linger_over(),
                Timer::Announce => with_cx!(self, |log, cx, scratch| log.announce(cx)),
                _ => self.log.retry_footers(),
            }
        }
    }

    fn append(&mut self) {
        let sectors = 1 + self
            .random
            .below(BLOCKS_MAX * BLOCK_SECTORS - BLOCK_SECTORS);
        let span = Span::new(self.random.below(1 << 20), sectors);
        let bytes: Vec<u8> = (0..sectors * SECTOR_BYTES)
            .map(|_| self.random.below(256) as u8)
            .collect();
        let source = Place::new(Area::Buffer(BufferId(0)), 0);
        self.memory.store(source, &bytes);
        self.serial += 1;
        let item = Item {
            volume: VolumeId(1),
            generation: Generation(1),
            serial: Serial(self.serial),
            span,
            kind: EntryKind::Write,
            more: false,
            epoch: EpochNumber::default(),
            tag: Tag::default(),
        };
        let appended = with_cx!(self, |log, cx, scratch| log.append(
            cx,
            StreamKind::Writes,
            item,
            Some(source),
            false
        ));
        let Some(appended) = appended else {
            self.refused += 1;
            return;
        };
        assert_eq!(appended.span.sector, span.sector);
        let piece = Piece {
            span: appended.span,
            content: appended.content,
        };
        self.log.account(QuotaOwner::NONE, Change::Added(piece));
        self.living.push(Living {
            piece,
            seq: appended.seq,
            bytes: bytes[..(appended.span.sectors * SECTOR_BYTES) as usize].to_vec(),
        });
    }

    /// Something newer has taken its place.
    fn replace(&mut self, at: usize) {
        let gone = self.living.swap_remove(at);
        self.log
            .account(QuotaOwner::NONE, Change::Removed(gone.piece));
        let segment = GEOMETRY.segment_of(addr_of(&gone.piece));
        self.died.insert(segment, self.log.newest());
    }

    /// One of the requests in flight ends, perhaps badly: then it has done nothing, or half.
    fn complete(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let at = self.random.below(self.flights.len() as u64) as usize;
        let ok = self.random.below(25) != 0;
        self.end(at, ok);
    }

    pub(super) fn end(&mut self, at: usize, ok: bool) {
        let io = self.flights.swap_remove(at);
        self.failures += u64::from(!ok);
        if io.op == Op::Write {
            let mut at = io.offset as usize;
            let half = if ok { io.bytes } else { io.bytes / 2 } as usize;
            let end = io.offset as usize + half;
            for slice in &io.slices {
                let bytes = self.memory.get(slice.place, slice.bytes);
                let room = end.saturating_sub(at).min(bytes.len());
                self.device[at..at + room].copy_from_slice(&bytes[..room]);
                at += bytes.len();
            }
        }
        let (pending, _) = self.out.take(io.id);
        match pending {
            Pending::Log {
                slot,
                stream,
                segment,
                attempt,
                from,
                upto,
            } => with_cx!(self, |log, cx, scratch| log.write_done(
                cx,
                (slot, stream, segment),
                (attempt, from, upto),
                ok
            )),
            Pending::CacheSync { attempt } => {
                let covered = self.covered.take().expect("one sync at a time");
                if ok {
                    self.synced = covered;
                }
                with_cx!(self, |log, cx, scratch| log.sync_done(cx, attempt, ok));
            }
            Pending::Footer { segment, piece } => {
                with_cx!(self, |log, cx, scratch| log
                    .footer_done(scratch, segment, piece, ok));
            }
            Pending::Prepare { segment, piece } => {
                with_cx!(self, |log, cx, scratch| log
                    .prepare_done(cx, scratch, segment, piece, ok));
            }
            other => unreachable!("{other:?} is not the log's"),
        }
    }

    /// A checkpoint has become durable, whose table was made when it began.
    fn checkpoint(&mut self) {
        let (_, freed) = self.log.table();
        for &segment in &freed {
            let lives = |it: &Living| GEOMETRY.segment_of(addr_of(&it.piece)) == segment;
            assert!(!self.living.iter().any(lives), "{segment:?} still lives");
            let died = self.died.remove(&segment);
            let durable = died.is_none_or(|seq| seq <= self.log.durable);
            assert!(durable, "what replaced {segment:?} may be lost");
        }
        self.freed += freed.len() as u64;
        self.log.free(&freed);
    }

    fn check(&self) {
        let mut live: BTreeMap<SegmentIndex, u32> = BTreeMap::new();
        for it in &self.living {
            let addr = addr_of(&it.piece);
            let charge = it.piece.content.charge(it.piece.span);
            *live.entry(GEOMETRY.segment_of(addr)).or_default() += charge;
        }
        let total: u32 = live.values().sum();
        assert_eq!(self.log.gauge().live, u64::from(total));
        for index in 0..GEOMETRY.segments {
            let index = SegmentIndex(index);
            let expected = live.get(&index).copied().unwrap_or(0);
            assert_eq!(self.log.live_of(index), expected);
        }
    }

    /// Reads one of those that live, where the log says that it lies, and where a power loss
    /// would leave it.
    fn look(&mut self) {
        if self.living.is_empty() {
            return;
        }
        let at = self.random.below(self.living.len() as u64) as usize;
        let it = &self.living[at];
        let addr = addr_of(&it.piece);
        let length = it.bytes.len();
        let on_device = self.log.device_at(addr) as usize;
        let bytes = match self.log.staged(addr) {
            Some(place) => self.memory.get(place, length as u64),
            None => &self.device[on_device..on_device + length],
        };
        assert_eq!(bytes, it.bytes, "{:?}", it.piece);
        if it.seq <= self.log.durable {
            let bytes = &self.synced[on_device..on_device + length];
            assert_eq!(bytes, it.bytes, "durable: {:?}", it.piece);
            assert!(!self.log.is_staged_only(addr), "durable: {:?}", it.piece);
        }
        let block = addr.0 / BLOCK_SECTORS * BLOCK_SECTORS;
        let place = self.log.staged(LogAddr(block));
        let on_device = self.log.device_at(LogAddr(block)) as usize;
        let whole = match place {
            Some(place) => self.memory.get(place, BLOCK_BYTES),
            None => &self.device[on_device..on_device + BLOCK_BYTES as usize],
        };
        // A header block with payload gets its sum when it is sealed.
        let is_open = record::parse_sealed(whole).is_err()
            && record::parse_open(whole).is_ok_and(|record| record.has_inline());
        let sum = self.log.sum(addr);
        assert_eq!(sum, if is_open { 0 } else { checksum(&[whole]) });
    }
}

fn addr_of(piece: &Piece) -> LogAddr {
    match piece.content {
        Content::Data(addr) => addr,
        Content::Zero { header, .. } => header,
    }
}

fn run(seed: u64) -> Model {
    let mut model = Model::new(seed);
    let capacity = GEOMETRY.dirty_blocks_max();
    for step in 0..STEPS {
        model.now = Time(model.now.0 + model.random.below(2_000_000));
        match model.random.below(12) {
            0..4 if model.log.gauge().live + 2 * BLOCKS_MAX <= capacity => model.append(),
            0..6 if !model.living.is_empty() => {
                // Mostly the old ones: segments die, as behind a destage.
                let among = (model.living.len() as u64 / 4).max(1);
                let at = model.random.below(among) as usize;
                model.replace(at);
            }
            6 => model.log.want_sync(),
            7 => model.checkpoint(),
            8 => model.look(),
            _ => model.complete(),
        }
        model.pump();
        if step.is_multiple_of(16) {
            model.check();
        }
    }
    model
}

#[test]
fn segments_agree_with_a_list_of_what_lives() {
    let (mut freed, mut failures, mut appended) = (0, 0, 0);
    for seed in 0..20 {
        let mut model = run(seed);
        freed += model.freed;
        failures += model.failures;
        appended += model.serial - model.refused;
        // Nothing is stuck: when all is gone and everything ends well there is room again.
        while !model.living.is_empty() {
            model.replace(0);
        }
        for _ in 0..20_000 {
            model.now = Time(model.now.0 + 1_000_000);
            model.complete();
            model.log.want_sync();
            model.pump();
            model.checkpoint();
        }
        let before = model.living.len();
        model.append();
        assert_eq!(model.living.len(), before + 1, "seed {seed}: no room");
    }
    assert!(appended > 20_000, "{appended} appended");
    assert!(freed > 2_000, "{freed} segments were used again");
    assert!(failures > 1_000, "{failures} requests failed");
}

/// Two seconds in which everything is written and synced.
fn rest(model: &mut Model) {
    for _ in 0..2_000 {
        model.now = Time(model.now.0 + 1_000_000);
        model.complete();
        if model.log.durable < model.log.newest() {
            model.log.want_sync();
        }
        model.pump();
    }
}

#[test]
fn nothing_is_announced_beside_a_write_that_is_staged_in_part() {
    let mut model = Model::new(1);
    // There is no segment ready at first.
    rest(&mut model);
    model.append();
    assert_eq!(model.living.len(), 1);
    let newest = model.log.newest();
    model.log.unfinished = 1;
    rest(&mut model);
    assert_eq!(model.log.durable, newest);
    assert_eq!(model.log.newest(), newest, "no record is opened");
    model.log.unfinished = 0;
    rest(&mut model);
    assert!(model.log.newest() > newest, "it comes later");
}

#[test]
fn nothing_is_freed_beside_a_write_that_is_not_whole() {
    let mut model = run(1);
    // What is dead by now may go.
    rest(&mut model);
    model.checkpoint();
    let keepers: [fn(&mut Log, u32); 2] = [
        |log, count| log.unfinished = count,
        |log, count| log.given_up = count,
    ];
    for keep in keepers {
        for _ in 0..40 {
            model.append();
            model.pump();
            model.complete();
        }
        rest(&mut model);
        keep(&mut model.log, 1);
        while !model.living.is_empty() {
            model.replace(0);
        }
        rest(&mut model);
        assert_eq!(model.log.freeable(), 0, "a recovery would need it");
        keep(&mut model.log, 0);
        rest(&mut model);
        assert!(model.log.freeable() > 0, "now nobody needs it");
        model.checkpoint();
    }
}
