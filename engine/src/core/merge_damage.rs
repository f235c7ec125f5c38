//! Damage that newer writes have covered.
//!
//! An epoch with a block that cannot be read any more cannot go to the origin: without the block
//! that would be no prefix of the guest's writes. Once newer epochs have all that is missing, they
//! become one with the oldest, as if all of it had been written in one epoch, and the destage
//! begins again with that. Always true: epochs are merged whole, oldest first, and only neighbours;
//! nothing of them is on its way to the origin then, except in place, where the ledger is told of
//! the new cut before the next write. Deliberately absent: groups, whose cuts end at one moment on
//! all volumes: there damage stays until its volume is told to go on without.

use super::Core;
use crate::adversary::{Mark, mark};
use crate::event::Refusal;
use crate::fetch::Want;
use crate::map::{Content, ExtentMap};
use crate::outbox::Cx;
use crate::types::{Span, Time, VolumeId};
use crate::volume::{Bypass, Epoch, Volume};
use alloc::vec::Vec;

/// Meanwhile it is looked so often whether newer writes have covered it.
const LOOK_MS: u64 = 1_000;

impl Core {
    /// Whether a destage that met damage has to wait: newer writes do not cover it, and it is not
    /// yet to be read again.
    pub(super) fn is_damaged_still(&mut self, now: Time, id: VolumeId) -> bool {
        let bad = core::mem::take(&mut self.phase(id).bad);
        assert!(!bad.is_empty(), "it has met damage");
        let destage = self.phase(id);
        let asked = core::mem::take(&mut destage.reread_asked);
        let due = asked || now >= destage.reread_at;
        if self.merge_over(id, &bad) || due {
            return false;
        }
        let destage = self.phase(id);
        destage.bad = bad;
        destage.retry_at = now.plus_millis(LOOK_MS);
        true
    }

    /// Nothing tells when the damage will be gone, so orders do not wait for that. They are asked
    /// to come again; the destage stays ready to go on by itself.
    pub(super) fn refuse_for_damage(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        let refusal = match volume.bypass() {
            Bypass::Held => Refusal::Held,
            _ => Refusal::Damaged,
        };
        let bad = &volume.destage().expect("it has met damage").bad;
        let map = &volume.epochs.front().expect("of this epoch").map;
        let damaged = joined(needed(map, bad));
        volume.destaging().damaged = damaged;
        for request in volume.take_destage_orders() {
            cx.out.reply(request, Err(refusal));
        }
        self.refuse_group(cx, id, refusal);
        self.refuse_quiesce(cx, id, refusal);
    }

    /// Merges what has to be merged so that the destage of a volume needs nothing that is bad.
    /// False if newer writes do not cover all of it. One step of the length of the epochs: it
    /// comes once after damage.
    fn merge_over(&mut self, id: VolumeId, bad: &[Want]) -> bool {
        let volume = self.volume(id);
        let Some(newest) = covering(volume, bad) else {
            return false;
        };
        mark(Mark::Mended);
        let quota_owner = volume.quota_owner();
        let mut merged = volume.epochs.pop_front().expect("one is being destaged");
        let newer: Vec<Epoch> = volume.epochs.drain(..newest).collect();
        let destage = volume.drop_destage();
        assert!(
            destage.is_some_and(|it| it.is_idle()),
            "nothing of what is merged is on its way"
        );
        for epoch in newer {
            assert!(
                merged.last_serial <= epoch.last_serial,
                "epochs are in order of their serials"
            );
            let extents = merged.map.len() as i64;
            let (log, mut charge) = (&mut self.log, 0);
            let mut at = 0;
            while let Some(piece) = epoch.map.at_or_after(at) {
                at = piece.span.end();
                let mut changed = |change| charge += log.account(quota_owner, change);
                merged.map.insert(piece, &mut changed);
            }
            merged.charge = merged.charge.strict_add_signed(charge);
            (merged.number, merged.last_serial) = (epoch.number, epoch.last_serial);
            merged.last_seq = merged.last_seq.max(epoch.last_seq);
            merged.writes += epoch.writes;
            let grown = merged.map.len() as i64 - extents;
            self.extents.grow(grown);
            self.extents.free_later(epoch.map);
        }
        let volume = self.volume(id);
        volume.merge_upto(merged.last_serial);
        debug_assert!(
            needed(&merged.map, bad).is_empty(),
            "nothing that is bad is needed any more"
        );
        volume.epochs.push_front(merged);
        self.restart_rounds(id);
        self.recount(id);
        self.begin_destage(id);
        true
    }
}

/// Whether newer writes have all that is bad of the oldest epoch, and may become one with it.
pub(super) fn is_covered(volume: &Volume, bad: &[Want]) -> bool {
    covering(volume, bad).is_some()
}

/// The newest of the epochs behind the oldest that together have all that is bad in it.
fn covering(volume: &Volume, bad: &[Want]) -> Option<usize> {
    // What a journal has does not change any more.
    let destage = volume.destage();
    let applies = destage.is_some_and(|it| it.applies() && !it.in_place);
    let joins = volume.epochs.iter().any(|epoch| epoch.joins);
    let free = volume.group().is_none() && !volume.is_committing() && !joins;
    if !free || volume.is_in_part() || applies {
        return None;
    }
    let mut missing = needed(&volume.epochs.front()?.map, bad);
    for (at, epoch) in volume.epochs.iter().enumerate().skip(1) {
        missing = missing
            .into_iter()
            .flat_map(|span| without(&epoch.map, span))
            .collect();
        if missing.is_empty() {
            return Some(at);
        }
    }
    None
}

/// Sectors that the map has in blocks that are bad.
fn needed(map: &ExtentMap, bad: &[Want]) -> Vec<Span> {
    let mut bad: Vec<(u64, u64)> = bad
        .iter()
        .map(|want| (want.addr.0, want.addr.0 + want.sectors))
        .collect();
    bad.sort_unstable();
    let (mut spans, mut at) = (Vec::new(), 0);
    while let Some(piece) = map.at_or_after(at) {
        at = piece.span.end();
        let Content::Data(addr) = piece.content else {
            continue;
        };
        let end = addr.0 + piece.span.sectors;
        let first = bad.partition_point(|(_, bad_end)| *bad_end <= addr.0);
        for (from, upto) in bad[first..].iter().take_while(|(from, _)| *from < end) {
            let (from, upto) = (addr.0.max(*from), end.min(*upto));
            spans.push(Span::new(piece.span.sector + from - addr.0, upto - from));
        }
    }
    spans
}

/// The same ranges, as few as they make.
fn joined(spans: Vec<Span>) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut().filter(|last| last.end() == span.sector) {
            Some(last) => last.sectors += span.sectors,
            None => joined.push(span),
        }
    }
    joined
}

/// The parts of a range that a map has nothing for.
fn without(map: &ExtentMap, span: Span) -> Vec<Span> {
    let mut gaps = Vec::new();
    map.get(span, |part, content| {
        if content.is_none() {
            gaps.push(part);
        }
    });
    gaps
}
