//! The table of a journal on its way: what the payload is, behind the header.
//!
//! Always true: the table is made once, when all of the payload is written, and lies before it; the
//! entries of a plan stay, because they are applied by it. Deliberately absent: the payload
//! ([`super::jobs`], [`super::planned`]) and the sync behind it ([`super::destage`]).

use super::Core;
use super::jobs::write_journal;
use crate::adversary::{Bug, has};
use crate::format::journal::Journal;
use crate::memory::Slice;
use crate::outbox::{Cx, Pending};
use crate::types::VolumeId;
use crate::volume::destage::Phase;
use alloc::vec::Vec;

impl Core {
    /// Writes header and table of the journal, a piece at a time.
    pub(super) fn write_table(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let plans = self.volume(id).plans();
        if plans && self.phase(id).table.is_empty() && self.volume(id).entries_overlap() {
            self.plan_contradicted(cx, id);
            return false;
        }
        let volume = self.volume(id);
        let (uuid, generation) = (volume.uuid(), volume.generation());
        let destage = volume.destaging();
        let at_start = destage.table_at == 0;
        // It is made once: it may have to wait, and the entries are gone by then.
        if destage.table.is_empty() || (at_start && has(Bug::MakeTableTwice)) {
            match plans {
                // In the order of their payload, in which they are read again.
                true => destage.planned.clone_from(&destage.entries),
                false => destage
                    .entries
                    .sort_unstable_by_key(|entry| entry.span.sector),
            }
            destage.table = Journal {
                volume: uuid,
                generation,
                sequence: destage.journal_sequence,
                upto: destage.upto,
                total_bytes: destage.journal_at,
                entries: core::mem::take(&mut destage.entries),
            }
            .encode();
            debug_assert!(
                Journal::parse(&destage.table).is_ok(),
                "what is written can be read"
            );
        }
        let at = destage.table_at;
        assert!(
            at < destage.table.len() && destage.table.len() as u64 <= destage.journal_at,
            "the table lies before the payload"
        );
        let left = destage.table.len() - at;
        if destage.resend.is_resting(cx.now) || !self.has_turn(cx.now, id) {
            return false;
        }
        let Some(piece) = self.take_destage_piece(id) else {
            return false;
        };
        let bytes = left.min(self.scratch.piece_bytes() as usize);
        self.turns.spend(cx.now, id, bytes as u64);
        let place = self.scratch.piece(piece);
        let destage = self.phase(id);
        destage.table_piece = Some(piece);
        destage.waiting = true;
        cx.memory.store(place, &destage.table[at..at + bytes]);
        destage.table_at += bytes;
        destage.table_sent = bytes;
        self.volume(id).counters.origin.journal_bytes += bytes as u64;
        self.volume(id).counters.origin.journal_requests += 1;
        let pending = Pending::JournalTable { volume: id };
        let bytes = bytes as u64;
        write_journal(
            cx,
            id,
            pending,
            at as u64,
            alloc::vec![Slice { place, bytes }],
        );
        false
    }

    pub(super) fn table_written(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        let destage = self.phase(id);
        assert!(destage.waiting && destage.phase == Phase::Table);
        destage.waiting = false;
        let piece = destage
            .table_piece
            .take()
            .expect("a table write holds a piece");
        if !ok {
            destage.table_at -= destage.table_sent;
            self.volume(id).counters.origin.errors += 1;
            self.rest_after_failure(cx, id);
        } else {
            let whole = destage.table_at == destage.table.len();
            if whole {
                destage.phase = match destage.plan {
                    Some(_) => {
                        destage.table = Vec::new();
                        Phase::Guard
                    }
                    // What the log does not give while it is applied is read by it.
                    None => Phase::JournalSync,
                };
            }
            self.volume(id).go_on_after_success();
        }
        self.scratch.free_destage_piece(piece);
    }
}
