//! Writes of a destage that failed, and are sent again.
//!
//! A storage that fails one request in some hundred, each of which is good when it is sent again,
//! would never let a whole phase through. So a write to the journal or to the origin that fails is
//! kept as a list of ranges, its memory is given back, and after a pause it is read and sent again
//! before anything new. The pause doubles with each round that fails, and ends with the first
//! write that does not.
//!
//! Always true: a write that is sent again carries what it carried before, to the same place; the
//! ranges of an epoch do not overlap, so their order does not matter; no phase ends while one is
//! left. Deliberately absent: syncs; after one that failed the whole phase is written again.

use super::Core;
use super::jobs::JOB_PIECES_MAX;
use crate::fetch::Want;
use crate::map::Content;
use crate::outbox::{Cx, Timer};
use crate::types::{BLOCK_BYTES, SECTOR_BYTES, Span, VolumeId};
use crate::volume::jobs::Job;
use crate::volume::resend::Unsent;
use crate::volume::runs::next_run;
use alloc::vec::Vec;

impl Core {
    /// A write of a destage has failed: a pause, unless one has begun since it was sent.
    pub(super) fn rest_after_failure(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let destage = self.phase(id);
        let (full, resend) = (destage.full, &mut destage.resend);
        if let Some(until) = resend.pause.longer(cx.now) {
            cx.out.timer(until, Timer::Pace(id));
        }
        if full {
            resend.pause.make_longest();
        }
        if full || !resend.pause.is_first() {
            self.volume(id).stall(full);
        }
        // No other volume waits for its turn meanwhile.
        self.turns.rest(id);
    }

    /// Keeps what a write carried that has failed. Of the journal each piece goes by itself, so
    /// that one piece of memory is enough.
    pub(super) fn keep_unsent(&mut self, id: VolumeId, job: u32) {
        let piece_bytes = self.scratch.piece_bytes();
        let destage = self.phase(id);
        let Job {
            zeroes,
            offset,
            ref parts,
            ..
        } = *destage.jobs.get(job);
        let mut unsent: Vec<Unsent> = Vec::new();
        for (span, at) in zeroes
            .into_iter()
            .map(|span| (span, 0))
            .chain(parts.iter().map(|part| (part.span, part.at)))
        {
            let offset = offset + at / piece_bytes * piece_bytes;
            let range = (span, at % piece_bytes);
            match unsent.last_mut().filter(|last| last.offset == offset) {
                Some(last) => last.ranges.push(range),
                None => unsent.push(Unsent {
                    ranges: alloc::vec![range],
                    offset,
                }),
            }
        }
        assert!(!unsent.is_empty(), "a write carries something");
        destage.resend.queue.extend(unsent);
    }

    /// Sends the next of them again. False when there is no memory for it now.
    pub(super) fn send_again(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        match self.phase(id).applying {
            true => self.apply_again(cx, id),
            false => self.journal_again(cx, id),
        }
    }

    fn apply_again(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let bytes_max = JOB_PIECES_MAX as u64 * self.scratch.piece_bytes();
        let (span, _) = self.first_unsent(id).ranges[0];
        let run = next_run(self.volume(id).destaged_map(), span.sector, bytes_max);
        let run = run.expect("an epoch keeps its ranges while it is on its way");
        assert_eq!(run.span.sector, span.sector, "and nothing comes into it");
        let Some(end) = self.start_job(cx, id, run.up_to(span.sectors), true) else {
            return false;
        };
        assert!(
            end > span.sector && end <= span.end(),
            "a part of the range is on its way"
        );
        let rest = Span::new(end, span.end() - end);
        match rest.sectors {
            0 => drop(self.phase(id).resend.queue.pop_front()),
            _ => self.first_unsent(id).ranges[0].0 = rest,
        }
        true
    }

    fn first_unsent(&mut self, id: VolumeId) -> &mut Unsent {
        let first = self.phase(id).resend.queue.front_mut();
        first.expect("something was not sent")
    }

    fn journal_again(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let offset = self.first_unsent(id).offset;
        let mut job = Job::at(offset);
        if !self.grow(id, &mut job) {
            self.turns.enqueue(id);
            return false;
        }
        let unsent = self.phase(id).resend.queue.pop_front();
        let (place, mut wants) = (job.end(), Vec::new());
        for (span, at) in unsent.expect("just seen").ranges {
            let mut to = place.plus(at);
            job.add(span, to, at);
            self.volume(id).destaged_map().get(span, |part, content| {
                let Some(Content::Data(addr)) = content else {
                    unreachable!("an epoch keeps its data while it is on its way");
                };
                let sectors = part.sectors;
                wants.push(Want { addr, sectors, to });
                to = to.plus(sectors * SECTOR_BYTES);
            });
            job.fill((span.sectors * SECTOR_BYTES).next_multiple_of(BLOCK_BYTES));
        }
        debug_assert!(
            wants.iter().all(|want| want.sectors > 0),
            "what is sent again is in the log"
        );
        // Its entries are in the table already.
        job.again = true;
        self.fetch_job(cx, id, job, &wants);
        true
    }
}
