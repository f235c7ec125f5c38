//! Evacuation: what still lives in a segment is appended again, so that the segment can die.
//!
//! ```text
//! ReadFooter ─▶ Gather ─▶ Fetch ─▶ Append ─▶ Gather … ─▶ (end of footer)
//! ```
//!
//! Always true: a copy carries the serial and the generation of its original; the map is pointed
//! to the copy only where it still points to the original; a copy is of the epoch of its original,
//! so that a recovery finds whole epochs; the original stays until the copy is durable, because a
//! segment dies with the newest record of that moment; zeroes are copied newest first, because
//! those of one record cannot be told apart by content. One at a time. Deliberately absent: the
//! counts of extents and of shares; what they have to know is returned.

use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose};
use crate::fetch::{Fetches, Owner, Want};
use crate::format::footer::{Footer, FooterEntry};
use crate::format::record::EntryKind;
use crate::log::{Item, Log, content_of};
use crate::map::{Content, Piece};
use crate::memory::{Place, Slice};
use crate::outbox::{Cx, Pending};
use crate::scratch::Scratch;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, Policy, SECTOR_BYTES, SegmentIndex, Serial, Span, Tag, Time, Uuid,
    VolumeId,
};
use crate::volume::{Volume, Volumes};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

/// A segment of which something could not be read is tried again so much later. While the device
/// fails all of them may be such, and later no room would be made for guests.
const STUCK_MS: u64 = 30_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    ReadFooter,
    Gather,
    Fetch,
    Append,
}

/// A live part of an entry, with where its bytes were brought.
struct Live {
    entry: FooterEntry,
    span: Span,
    content: Content,
    place: Option<Place>,
}

struct Run {
    segment: SegmentIndex,
    state: State,
    piece: u32,
    entries: Vec<FooterEntry>,
    next: usize,
    batch: Vec<Live>,
    appended: usize,
    damaged: bool,
}

/// The one evacuation of a shard, if a segment is being emptied.
#[derive(Default)]
pub struct Evacuation {
    run: Option<Run>,
}

/// What an evacuation works on.
pub struct Parts<'a> {
    pub volumes: &'a mut Volumes,
    pub log: &'a mut Log,
    pub scratch: &'a mut Scratch,
    pub fetches: &'a mut Fetches,
    /// Whether no dropped map keeps anything alive.
    pub swept: bool,
}

/// What has changed in the maps of volumes.
#[derive(Default)]
pub struct Moved {
    pub volumes: Vec<VolumeId>,
    pub extents_grown: i64,
}

impl Evacuation {
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Begins with a segment if room is short. True if it has begun.
    pub fn begin(&mut self, cx: &mut Cx<'_>, log: &mut Log, scratch: &mut Scratch) -> bool {
        // Dead segments come back cheaper than live ones: first let the checkpoint free them.
        if self.is_running() || !log.is_low() || log.freeable() > 1 {
            return false;
        }
        let Some(segment) = log.victim(cx.now) else {
            return false;
        };
        let Some(piece) = scratch.take_piece() else {
            return false;
        };
        let place = scratch.piece(piece);
        let addr = log.footer_at(segment);
        log.pin(addr);
        assert!(self.run.is_none(), "one segment is emptied at a time");
        self.run = Some(Run {
            segment,
            state: State::ReadFooter,
            piece,
            entries: Vec::new(),
            next: 0,
            batch: Vec::new(),
            appended: 0,
            damaged: false,
        });
        let slices = alloc::vec![Slice {
            place,
            bytes: scratch.piece_bytes()
        }];
        let at = log.device_at(addr);
        let pending = Pending::EvacuateFooter;
        cx.transfer(
            pending,
            Purpose::Evacuate,
            Device::Cache,
            Op::Read,
            at,
            slices,
        );
        true
    }

    /// Goes on as far as nothing has to be waited for.
    pub fn pump(&mut self, cx: &mut Cx<'_>, mut of: Parts<'_>) -> Moved {
        let mut moved = Moved::default();
        // The room it would take is promised to a write that has begun.
        if of.log.unfinished > 0 {
            return moved;
        }
        while let Some(run) = &mut self.run {
            let goes_on = match run.state {
                State::ReadFooter | State::Fetch => false,
                State::Gather => run.gather(cx, &mut of),
                State::Append => run.append_batch(cx, &mut of, &mut moved),
            };
            if !goes_on {
                if run.has_ended() {
                    self.end(cx.now, (of.log, of.scratch), of.swept);
                }
                break;
            }
        }
        assert!(
            moved.extents_grown == 0 || !moved.volumes.is_empty(),
            "what has grown is of a volume"
        );
        moved
    }

    pub fn footer_read(
        &mut self,
        cx: &mut Cx<'_>,
        (log, scratch): (&mut Log, &mut Scratch),
        (cache, swept): (Uuid, bool),
        ok: bool,
    ) {
        let evacuation = self.run.as_mut().expect("a footer was asked for");
        assert!(evacuation.state == State::ReadFooter && evacuation.entries.is_empty());
        let place = scratch.piece(evacuation.piece);
        let mut bytes = alloc::vec![0; scratch.piece_bytes() as usize];
        cx.memory.load(place, &mut bytes);
        match Footer::parse(&bytes, log.geometry, cache) {
            Ok(footer) if ok => {
                evacuation.entries = footer.entries;
                if !has(Bug::MoveZeroesOldestFirst) {
                    newest_zeroes_first(&mut evacuation.entries);
                }
                evacuation.state = State::Gather;
            }
            _ => {
                // Without its footer nobody can say which serials lie here; it stays as it is.
                evacuation.damaged = true;
                self.end(cx.now, (log, scratch), swept);
            }
        }
    }

    pub fn fetched(
        &mut self,
        now: Time,
        parts: (&mut Log, &mut Scratch),
        swept: bool,
        damaged: bool,
    ) {
        let evacuation = self.run.as_mut().expect("bytes were asked for");
        assert!(evacuation.state == State::Fetch && evacuation.appended == 0);
        if !damaged {
            evacuation.state = State::Append;
            return;
        }
        // Which part is bad shows when it is read by its owner; here the segment just stays.
        evacuation.damaged = true;
        self.end(now, parts, swept);
    }

    fn end(&mut self, now: Time, (log, scratch): (&mut Log, &mut Scratch), swept: bool) {
        let Some(evacuation) = self.run.take() else {
            return;
        };
        assert!(
            evacuation.damaged || evacuation.next == evacuation.entries.len(),
            "all entries were looked at"
        );
        scratch.free_piece(evacuation.piece);
        log.unpin(evacuation.segment);
        // What could not be moved would be chosen again at once.
        let left = log.live_of(evacuation.segment) > 0 && swept;
        if evacuation.damaged || left {
            let until = now.plus_millis(STUCK_MS);
            log.mark_stuck(evacuation.segment, until);
        }
    }
}

impl Run {
    /// All that can be moved was moved, or nothing of it can.
    fn has_ended(&self) -> bool {
        self.state == State::Gather && self.batch.is_empty()
    }

    /// Collects live parts until the piece is full, and asks for their bytes.
    fn gather(&mut self, cx: &mut Cx<'_>, of: &mut Parts<'_>) -> bool {
        assert!(self.batch.is_empty(), "the batch before was appended");
        let (segment, piece) = (self.segment, self.piece);
        let place = of.scratch.piece(piece);
        let blocks_max = of.scratch.piece_bytes() / BLOCK_BYTES;
        let mut blocks = 0;
        while let Some(entry) = self.entries.get(self.next).copied() {
            if blocks + entry.span.blocks().min(blocks_max) > blocks_max && blocks > 0 {
                break;
            }
            self.next += 1;
            let whole = content_of(of.log.geometry, segment, &entry);
            let Some(volume) = of.volumes.get(entry.volume) else {
                continue;
            };
            // The parts keep the layout of their entry, so they never need more than it has.
            let aligned = entry.span.sector - entry.span.sector % BLOCK_SECTORS;
            let base = place.plus(blocks * BLOCK_BYTES);
            let mut bytes_live = false;
            for (_, span, content) in live_parts(volume, entry.serial, entry.span, whole) {
                let place = matches!(content, Content::Data(_))
                    .then(|| base.plus((span.sector - aligned) * SECTOR_BYTES));
                bytes_live |= place.is_some();
                self.batch.push(Live {
                    entry,
                    span,
                    content,
                    place,
                });
            }
            if bytes_live {
                blocks += entry.span.blocks();
            }
        }
        if self.batch.is_empty() {
            return false;
        }
        assert!(blocks <= blocks_max, "a batch fits its piece");
        let wants: Vec<Want> = self
            .batch
            .iter()
            .filter_map(|live| match (live.content, live.place) {
                (Content::Data(addr), Some(to)) => Some(Want {
                    addr,
                    sectors: live.span.sectors,
                    to,
                }),
                _ => None,
            })
            .collect();
        self.state = State::Fetch;
        let parts = (&mut *of.log, &mut *of.scratch);
        if of
            .fetches
            .start(cx, parts, Owner::Evacuate, Purpose::Evacuate, &wants)
        {
            return false;
        }
        self.state = State::Append;
        true
    }

    /// Appends the batch as far as there is room. True when the batch is done.
    fn append_batch(&mut self, cx: &mut Cx<'_>, of: &mut Parts<'_>, moved: &mut Moved) -> bool {
        loop {
            let Some(live) = self.batch.get(self.appended) else {
                self.batch.clear();
                self.appended = 0;
                self.state = State::Gather;
                return true;
            };
            if !of.append_live(cx, live, moved) {
                return false;
            }
            self.appended += 1;
        }
    }
}

impl Parts<'_> {
    /// Appends what of a part is still alive. False when there is no room; trying again later
    /// finds the parts that were already moved no longer alive.
    fn append_live(&mut self, cx: &mut Cx<'_>, live: &Live, moved: &mut Moved) -> bool {
        let (entry, span, content, place) = (live.entry, live.span, live.content, live.place);
        loop {
            let Some(volume) = self.volumes.get(entry.volume) else {
                return true;
            };
            let stream = volume.stream_of(self.log, span.blocks());
            let live = live_parts(volume, entry.serial, span, content);
            let Some((_, part, _)) = live.into_iter().next() else {
                return true;
            };
            let kind = match content {
                Content::Data(_) => EntryKind::Write,
                Content::Zero { allocate, .. } => {
                    mark(Mark::MovedZeroes);
                    EntryKind::Zero { allocate }
                }
            };
            let item = Item {
                volume: entry.volume,
                generation: entry.generation,
                serial: match has(Bug::MoveWithNewSerial) {
                    true => volume.acked(),
                    false => entry.serial,
                },
                span: part,
                kind,
                more: entry.more,
                epoch: entry.epoch,
                // Whoever asks has been answered long ago.
                tag: Tag::NONE,
            };
            let source = place.map(|at| at.plus((part.sector - span.sector) * SECTOR_BYTES));
            let Some(appended) = self.log.append(cx, stream, item, source, true) else {
                self.log.want_sync();
                return false;
            };
            assert!(
                appended.span.sector == part.sector && appended.span.sectors <= part.sectors,
                "the start of a part is appended"
            );
            mark(Mark::Moved);
            self.log.counters.evacuated_bytes += appended.span.sectors * SECTOR_BYTES;
            let old = content.advance(appended.span.sector - span.sector);
            let grown = self.repoint(&entry, appended.span, old, appended.content);
            moved.extents_grown += grown;
            if !moved.volumes.contains(&entry.volume) {
                moved.volumes.push(entry.volume);
            }
        }
    }

    /// Points the epoch of an entry, where it has `old` at `span`, to the copy. Returns by how many
    /// extents its maps have grown.
    fn repoint(&mut self, entry: &FooterEntry, span: Span, old: Content, new: Content) -> i64 {
        let mut grown = 0;
        let volume = self.volumes.known_mut(entry.volume);
        let quota_owner = volume.quota_owner();
        for (at, part, _) in live_parts(volume, entry.serial, span, old) {
            let epoch = &mut volume.epochs[at];
            let content = new.advance(part.sector - span.sector);
            let (log, mut charge) = (&mut *self.log, 0);
            let (extents, sectors) = (epoch.map.len() as i64, epoch.map.sectors());
            let piece = Piece {
                span: part,
                content,
            };
            epoch
                .map
                .insert(piece, &mut |c| charge += log.account(quota_owner, c));
            assert!(
                epoch.map.sectors() == sectors,
                "what moves is dirty as before"
            );
            epoch.charge = epoch.charge.strict_add_signed(charge);
            grown += epoch.map.len() as i64 - extents;
        }
        grown
    }
}

/// All zeroes of one record have the same content, its header, so content alone does not say
/// whose a part is. It is the newest one's: an older one was replaced there, or voided by a reset,
/// and a copy with its serial would be as well. So the newest takes its parts first, and the older
/// ones find them moved.
fn newest_zeroes_first(entries: &mut [FooterEntry]) {
    entries.sort_by_key(|entry| match entry.kind {
        EntryKind::Write => Reverse(0),
        EntryKind::Zero { .. } => Reverse(entry.serial.0),
    });
}

/// The parts of `span` that the epoch of a write still holds as exactly this content, with the
/// index of that epoch.
fn live_parts(
    volume: &Volume,
    serial: Serial,
    span: Span,
    whole: Content,
) -> Vec<(usize, Span, Content)> {
    let mut parts = Vec::new();
    for at in epoch_of(volume, serial) {
        volume.epochs[at].map.get(span, |part, content| {
            let expected = whole.advance(part.sector - span.sector);
            if content == Some(expected) {
                parts.push((at, part, expected));
            }
        });
    }
    parts
}

/// The epoch of a volume that has a write, or the oldest, which may have what is at the origin.
pub(super) fn epoch_of(volume: &Volume, serial: Serial) -> Range<usize> {
    let all = 0..volume.epochs.len();
    if volume.policy == Policy::Ephemeral || has(Bug::MoveZeroesOldestFirst) {
        return all;
    }
    let at = volume
        .epochs
        .partition_point(|epoch| epoch.last_serial < serial);
    // It may have moved into an older one.
    let older = volume.epochs.range(..at).rev();
    let joined = older.take_while(|epoch| epoch.joins).count();
    at - joined..(at + 1).min(all.end)
}
