//! An orderly stop.
//!
//! Always true: everything acknowledged is in the log before the reply, and a last checkpoint says
//! so; images that do not answer are waited for no longer than a while. Deliberately absent: what
//! is kept of clean blocks ([`super::keep`]).

use super::{Core, checkpoint, keep};
use crate::event::Refusal;
use crate::log::Waiter;
use crate::outbox::{Cx, Timer};
use crate::types::{RequestId, StreamSeq, Time};
use crate::volume::Volume;

/// How long an orderly stop waits for ledgers.
const PARK_MS_MAX: u64 = 5_000;

const _: () = assert!(keep::SPARE_MS < PARK_MS_MAX);

/// An orderly stop under way.
pub(super) struct Parking {
    pub(super) request: RequestId,
    pub(super) until: Time,
    /// The newest record at that time.
    pub(super) upto: StreamSeq,
    pub(super) keep: keep::Keep,
}

impl Core {
    /// Everything acknowledged goes to the log, the ledgers of clean volumes say so, and a last
    /// checkpoint tells what is durable.
    pub(super) fn park(&mut self, cx: &mut Cx<'_>, request: RequestId) {
        self.stop_scrub(cx, Refusal::Gone);
        self.stopping = true;
        let until = cx.now.plus_millis(PARK_MS_MAX);
        cx.out.timer(until, Timer::Housekeeping);
        let looks_until = cx.now.plus_millis(PARK_MS_MAX - keep::SPARE_MS);
        cx.out.timer(looks_until, Timer::Housekeeping);
        let upto = self.log.newest();
        self.parking = Some(Parking {
            request,
            until,
            upto,
            keep: keep::Keep::Start,
        });
        self.log.wait_durable(cx, upto, Waiter::Park);
        self.touch_all();
    }

    /// Ledgers of origins that do not answer are not waited for longer than a while.
    pub(super) fn pump_park(&mut self, cx: &mut Cx<'_>) {
        if self.parking.is_none() {
            return;
        }
        let parking = self.parking.as_ref().expect("just seen");
        let waits = |v: &Volume| {
            let writes = v.is_ledger_busy();
            // Nothing is left to be destaged, but the image has its guard: no program opens it.
            let guards = v.pending_journal().is_some_and(|it| it.guards) && !v.is_dirty();
            writes || guards
        };
        let busy = self.volumes.iter().flatten().any(waits) || self.lines.is_busy(cx.now);
        let overdue = cx.now >= parking.until;
        let logged = self.log.durable >= parking.upto || (self.health.is_failed() && overdue);
        // A device that failed may be good again, and what it holds may reach its origin.
        let owes = self.volumes.iter().flatten().any(|volume| volume.owes());
        let kept = owes && self.health.is_failed();
        if ((busy || kept) && !overdue) || !logged {
            return;
        }
        let (request, late) = (parking.request, cx.now >= parking.until);
        if !late && !self.keep_layers(cx) {
            return;
        }
        self.parking = None;
        self.checkpoint.wait(checkpoint::Waiter::Park(request));
    }
}
