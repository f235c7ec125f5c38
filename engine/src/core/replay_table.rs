//! The header and the table of a pending journal, read before its entries are.
//!
//! Always true: a table is believed when its header, its length and its sums fit, and the ledger
//! names it; one that does not is damaged, and decides nothing. Deliberately absent: what becomes
//! of the entries ([`replay`](super::replay)).

use super::Core;
use super::replay::read_journal;
use crate::format::journal::{HEADER_BYTES, Journal, JournalEntry, payload_at};
use crate::format::ledger::Progress;
use crate::memory::Slice;
use crate::outbox::{Cx, ReplayIo};
use crate::settle::{check_table, payload_bytes};
use crate::types::VolumeId;
use crate::volume::replay::Step;

impl Core {
    /// Reads the header, then the table, a piece at a time.
    pub(super) fn read_replay_table(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let held = self.volume(id).held_pieces();
        let Some(piece) = self.scratch.take_destage_piece(held) else {
            self.turns.enqueue(id);
            return false;
        };
        let (place, most) = (self.scratch.piece(piece), self.scratch.piece_bytes());
        let replay = self.volume(id).replay();
        let at = replay.table.len() as u64;
        let left = match at {
            0 => HEADER_BYTES as u64,
            _ => table_bytes(&replay.table).expect("it was parsed before") - at,
        };
        assert!(replay.table_piece.is_none() && !replay.waiting);
        replay.table_piece = Some(piece);
        replay.waiting = true;
        let bytes = left.min(most);
        let slices = alloc::vec![Slice { place, bytes }];
        self.volume(id).counters.origin.journal_requests += 1;
        read_journal(cx, id, ReplayIo::Table { bytes }, at, slices);
        false
    }

    pub(super) fn replay_table_read(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        bytes: u64,
        ok: bool,
    ) {
        let replay = self.volume(id).replay();
        replay.waiting = false;
        let piece = replay
            .table_piece
            .take()
            .expect("a read of the table has a piece");
        let place = self.scratch.piece(piece);
        if ok {
            let replay = self.volume(id).replay();
            let at = replay.table.len();
            replay.table.resize(at + bytes as usize, 0);
            cx.memory.load(place, &mut replay.table[at..]);
        }
        self.scratch.free_destage_piece(piece);
        match ok {
            true => self.take_replay_table(id),
            false => self.replay_read_failed(cx, id),
        }
    }

    /// Parses the table once all of it is there.
    fn take_replay_table(&mut self, id: VolumeId) {
        let piece_bytes = self.scratch.piece_bytes();
        let volume = self.volume(id);
        let ledger = volume.written_ledger().ledger().clone();
        let replay = volume.replay();
        replay.unreadable_since = None;
        replay.pause.end();
        let Progress::Apply { journal_bytes, .. } = ledger.progress else {
            unreachable!("the ledger names the journal until its replay ends");
        };
        let Some(wanted) = table_bytes(&replay.table).filter(|it| *it <= journal_bytes) else {
            replay.damaged = true;
            return;
        };
        if (replay.table.len() as u64) < wanted {
            return;
        }
        let table = core::mem::take(&mut replay.table);
        let journal = Journal::parse(&table).ok();
        let journal = journal.filter(|journal| check_table(journal, &ledger).is_ok());
        // One that was written with other chunks is not read in pieces.
        let fits = |entry: &JournalEntry| payload_bytes(entry) as u64 <= piece_bytes;
        match journal.filter(|journal| journal.entries.iter().all(fits)) {
            Some(journal) => {
                replay.entries = journal.entries;
                replay.step = Step::Stat;
            }
            None => replay.damaged = true,
        }
    }
}

/// Bytes of header and table together; `None` if the header is none.
fn table_bytes(table: &[u8]) -> Option<u64> {
    Journal::parse_entries(table).ok().map(payload_at)
}
