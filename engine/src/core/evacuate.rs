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
//! those of one record cannot be told apart by content. One at a time.

use super::Core;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose};
use crate::fetch::{Owner, Want};
use crate::format::footer::{Footer, FooterEntry};
use crate::format::record::EntryKind;
use crate::log::{Item, content_of};
use crate::map::{Content, Piece};
use crate::memory::{Place, Slice};
use crate::outbox::{Cx, Pending};
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, Policy, SECTOR_BYTES, SegmentIndex, Serial, Span, Tag, Time,
};
use crate::volume::Volume;
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

pub struct Evacuation {
    segment: SegmentIndex,
    state: State,
    piece: u32,
    entries: Vec<FooterEntry>,
    next: usize,
    batch: Vec<Live>,
    appended: usize,
    damaged: bool,
}

impl Core {
    pub(super) fn pump_evacuation(&mut self, cx: &mut Cx<'_>) {
        if self.evacuation.is_none() {
            // Dead segments come back cheaper than live ones: first let the checkpoint free them.
            if !self.log.is_low() || self.log.freeable() > 1 {
                return;
            }
            self.start_evacuation(cx);
        }
        // The room it would take is promised to a write that has begun.
        if self.log.unfinished > 0 {
            return;
        }
        loop {
            let Some(evacuation) = &self.evacuation else {
                return;
            };
            let goes_on = match evacuation.state {
                State::ReadFooter | State::Fetch => false,
                State::Gather => self.gather(cx),
                State::Append => self.append_batch(cx),
            };
            if !goes_on {
                return;
            }
        }
    }

    fn start_evacuation(&mut self, cx: &mut Cx<'_>) {
        let Some(segment) = self.log.victim(cx.now) else {
            return;
        };
        let Some(piece) = self.scratch.take_piece() else {
            return;
        };
        self.drop_queues();
        let place = self.scratch.piece(piece);
        let addr = self.log.footer_at(segment);
        self.log.pin(addr);
        assert!(
            self.evacuation.is_none(),
            "one segment is emptied at a time"
        );
        self.evacuation = Some(Evacuation {
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
            bytes: self.scratch.piece_bytes()
        }];
        let at = self.log.device_at(addr);
        let pending = Pending::EvacuateFooter;
        cx.transfer(
            pending,
            Purpose::Evacuate,
            Device::Cache,
            Op::Read,
            at,
            slices,
        );
    }

    pub(super) fn evacuation_footer(&mut self, cx: &mut Cx<'_>, ok: bool) {
        let evacuation = self.evacuation.as_mut().expect("a footer was asked for");
        assert!(evacuation.state == State::ReadFooter && evacuation.entries.is_empty());
        let place = self.scratch.piece(evacuation.piece);
        let mut bytes = alloc::vec![0; self.scratch.piece_bytes() as usize];
        cx.memory.load(place, &mut bytes);
        match Footer::parse(&bytes, self.log.geometry, self.superblock.cache) {
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
                self.end_evacuation(cx.now);
            }
        }
    }

    /// Collects live parts until the piece is full, and asks for their bytes.
    fn gather(&mut self, cx: &mut Cx<'_>) -> bool {
        let evacuation = self.evacuation.as_mut().expect("checked by the caller");
        assert!(evacuation.batch.is_empty(), "the batch before was appended");
        let (segment, piece) = (evacuation.segment, evacuation.piece);
        let place = self.scratch.piece(piece);
        let blocks_max = self.scratch.piece_bytes() / BLOCK_BYTES;
        let mut blocks = 0;
        while let Some(entry) = evacuation.entries.get(evacuation.next).copied() {
            if blocks + entry.span.blocks().min(blocks_max) > blocks_max && blocks > 0 {
                break;
            }
            evacuation.next += 1;
            let whole = content_of(self.log.geometry, segment, &entry);
            let Some(volume) = self
                .volumes
                .get(entry.volume.0 as usize)
                .and_then(Option::as_ref)
            else {
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
                evacuation.batch.push(Live {
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
        if evacuation.batch.is_empty() {
            self.end_evacuation(cx.now);
            return false;
        }
        assert!(blocks <= blocks_max, "a batch fits its piece");
        let wants: Vec<Want> = evacuation
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
        evacuation.state = State::Fetch;
        let parts = (&mut self.log, &mut self.scratch);
        if self
            .fetches
            .start(cx, parts, Owner::Evacuate, Purpose::Evacuate, &wants)
        {
            return false;
        }
        self.evacuation.as_mut().expect("still there").state = State::Append;
        true
    }

    pub(super) fn evacuation_fetched(&mut self, cx: &Cx<'_>, damaged: bool) {
        let evacuation = self.evacuation.as_mut().expect("bytes were asked for");
        assert!(evacuation.state == State::Fetch && evacuation.appended == 0);
        if !damaged {
            evacuation.state = State::Append;
            return;
        }
        // Which part is bad shows when it is read by its owner; here the segment just stays.
        evacuation.damaged = true;
        self.end_evacuation(cx.now);
    }

    /// Appends the batch as far as there is room. True when the batch is done.
    fn append_batch(&mut self, cx: &mut Cx<'_>) -> bool {
        loop {
            let evacuation = self.evacuation.as_mut().expect("checked by the caller");
            let Some(live) = evacuation.batch.get(evacuation.appended) else {
                evacuation.batch.clear();
                evacuation.appended = 0;
                evacuation.state = State::Gather;
                return true;
            };
            let (entry, span, content, place) = (live.entry, live.span, live.content, live.place);
            if !self.append_live(cx, entry, span, content, place) {
                return false;
            }
            self.evacuation.as_mut().expect("still there").appended += 1;
        }
    }

    /// Appends what of a part is still alive. False when there is no room; trying again later
    /// finds the parts that were already moved no longer alive.
    fn append_live(
        &mut self,
        cx: &mut Cx<'_>,
        entry: FooterEntry,
        span: Span,
        content: Content,
        place: Option<Place>,
    ) -> bool {
        loop {
            let Some(volume) = self
                .volumes
                .get(entry.volume.0 as usize)
                .and_then(Option::as_ref)
            else {
                return true;
            };
            let stream = self.stream_of(volume, span.blocks());
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
            self.repoint(&entry, appended.span, old, appended.content);
        }
    }

    /// Points the epoch of an entry, where it has `old` at `span`, to the copy.
    fn repoint(&mut self, entry: &FooterEntry, span: Span, old: Content, new: Content) {
        let volume = self.volumes[entry.volume.0 as usize]
            .as_mut()
            .expect("checked by the caller");
        let quota_owner = volume.quota_owner();
        for (at, part, _) in live_parts(volume, entry.serial, span, old) {
            let epoch = &mut volume.epochs[at];
            let content = new.advance(part.sector - span.sector);
            let (log, mut charge) = (&mut self.log, 0);
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
            let grown = epoch.map.len() as i64 - extents;
            self.extents.grow(grown);
        }
        self.recount(entry.volume);
    }

    fn end_evacuation(&mut self, now: Time) {
        let Some(evacuation) = self.evacuation.take() else {
            return;
        };
        assert!(
            evacuation.damaged || evacuation.next == evacuation.entries.len(),
            "all entries were looked at"
        );
        self.scratch.free_piece(evacuation.piece);
        self.log.unpin(evacuation.segment);
        // What could not be moved would be chosen again at once.
        let left = self.log.live_of(evacuation.segment) > 0 && self.extents.is_swept();
        if evacuation.damaged || left {
            let until = now.plus_millis(STUCK_MS);
            self.log.mark_stuck(evacuation.segment, until);
        }
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
