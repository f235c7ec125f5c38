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

/// From the first event to an orderly stop.
#[derive(Default)]
pub(super) struct Service {
    /// When this run took its first event.
    began: Option<Time>,
    /// An orderly stop was ordered: no volume is claimed any more.
    stopping: bool,
    parking: Option<Parking>,
}

impl Service {
    #[inline]
    pub(super) fn take_event(&mut self, now: Time) {
        self.began.get_or_insert(now);
    }

    /// When it began, at the latest now.
    pub(super) fn began(&self, now: Time) -> Time {
        self.began.unwrap_or(now)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    pub(super) fn is_parking(&self) -> bool {
        self.parking.is_some()
    }

    pub(super) fn parking(&mut self) -> Option<&mut Parking> {
        self.parking.as_mut()
    }

    fn stop(&mut self, parking: Parking) {
        assert!(self.began.is_some(), "an order is an event");
        self.stopping = true;
        self.parking = Some(parking);
    }

    /// All that was waited for is there, or is not waited for any longer.
    fn end_parking(&mut self) {
        assert!(self.stopping && self.is_parking(), "a stop was ordered");
        self.parking = None;
    }
}

impl Core {
    /// Everything acknowledged goes to the log, the ledgers of clean volumes say so, and a last
    /// checkpoint tells what is durable.
    pub(super) fn park(&mut self, cx: &mut Cx<'_>, request: RequestId) {
        self.scrub.end(cx, &mut self.scratch, Err(Refusal::Gone));
        let until = cx.now.plus_millis(PARK_MS_MAX);
        cx.out.timer(until, Timer::Housekeeping);
        let looks_until = cx.now.plus_millis(PARK_MS_MAX - keep::SPARE_MS);
        cx.out.timer(looks_until, Timer::Housekeeping);
        let upto = self.log.newest();
        self.service.stop(Parking {
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
        let Some(parking) = self.service.parking() else {
            return;
        };
        let (request, upto, late) = (parking.request, parking.upto, cx.now >= parking.until);
        let waits = |v: &Volume| {
            let writes = v.is_ledger_busy();
            // Nothing is left to be destaged, but the image has its guard: no program opens it.
            let guards = v.pending_journal().is_some_and(|it| it.guards) && !v.is_dirty();
            writes || guards
        };
        let busy = self.volumes.iter().any(waits) || self.lines.is_busy(cx.now);
        let logged = self.log.durable >= upto || (self.health.is_failed() && late);
        // A device that failed may be good again, and what it holds may reach its origin.
        let owes = self.volumes.iter().any(|volume| volume.owes());
        let kept = owes && self.health.is_failed();
        if ((busy || kept) && !late) || !logged {
            return;
        }
        if !late && !self.keep_layers(cx) {
            return;
        }
        self.service.end_parking();
        self.checkpoint.wait(checkpoint::Waiter::Park(request));
    }
}
