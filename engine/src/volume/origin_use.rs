//! What of a volume is on its way to its origin, and how the origin answers.
//!
//! Always true: each request that begins ends once; a read that is held is one of those in flight.
//! Deliberately absent: what goes by the log ([`super::Destage`], [`super::Replay`]), whose
//! requests count here all the same.

use super::Volume;
use crate::adversary::{Bug, has};
use crate::event::IoError;
use crate::types::{BLOCK_SECTORS, Span, Time};
use alloc::vec::Vec;

/// An origin that failed a request of a guest is shown as failing for so long, unless it has
/// carried one out since.
const ORIGIN_FAILS_NS: u64 = 60_000_000_000;

/// Requests to an origin.
#[derive(Default)]
pub struct OriginUse {
    in_flight: u32,
    /// Reads that are not answered.
    reads: u32,
    /// Of those, the ones that the origin did not give and that are tried again.
    reads_held: u32,
    /// When the last read of a guest went to the origin.
    guest_read_at: Option<Time>,
    /// When the last request that a guest waited for failed at the origin; none after a good one.
    failed: Option<(Time, IoError)>,
    /// Writes on their way to the origin past the log, by their call.
    direct: Vec<(u32, Span)>,
    /// A sync of the origin that no guest asked for has failed: the next flush says so.
    sync_failed: bool,
    /// The sync before a switch to write-back is under way.
    sync_of_switch: bool,
}

impl Volume {
    /// A request to its origin was sent.
    pub fn request_begins(&mut self) {
        self.requests_begin(1);
    }

    pub fn requests_begin(&mut self, count: u32) {
        self.origin_use.in_flight += count;
    }

    pub fn request_ends(&mut self) {
        assert!(self.has_requests(), "a volume counts its requests");
        self.origin_use.in_flight -= 1;
    }

    /// A request to its origin is in flight.
    pub fn has_requests(&self) -> bool {
        self.origin_use.in_flight > 0
    }

    pub fn read_begins(&mut self) {
        self.origin_use.reads += 1;
    }

    pub fn read_ends(&mut self, held: bool) {
        assert!(self.has_reads(), "a volume counts its reads");
        self.origin_use.reads -= 1;
        self.held_read_ends(held);
    }

    /// A read is not answered.
    pub fn has_reads(&self) -> bool {
        self.origin_use.reads > 0
    }

    /// What a read wants is tried again later.
    pub fn read_is_held(&mut self) {
        self.origin_use.reads_held += 1;
    }

    /// It has what it wants, or does not get it.
    pub fn held_read_ends(&mut self, held: bool) {
        let held = u32::from(held);
        assert!(self.origin_use.reads_held >= held, "what ends has begun");
        self.origin_use.reads_held -= held;
    }

    pub fn guest_reads(&mut self, now: Time) {
        self.origin_use.guest_read_at = Some(now);
    }

    pub fn guest_read_at(&self) -> Option<Time> {
        self.origin_use.guest_read_at
    }

    /// A write begins past the log.
    pub fn direct_begins(&mut self, call: u32, span: Span) {
        self.origin_use.direct.push((call, span));
    }

    pub fn direct_ends(&mut self, call: u32) {
        self.origin_use.direct.retain(|(other, _)| *other != call);
    }

    /// A write is on its way past the log.
    pub fn writes_directly(&self) -> bool {
        !self.origin_use.direct.is_empty()
    }

    /// The same to a part of this range.
    pub fn writes_directly_to(&self, span: Span) -> bool {
        let mut direct = self.origin_use.direct.iter();
        direct.any(|(_, other)| other.overlaps(span))
    }

    /// A sync has failed that no guest asked for.
    pub fn sync_failed(&mut self) {
        self.origin_use.sync_failed = true;
    }

    pub fn take_failed_sync(&mut self) -> bool {
        core::mem::take(&mut self.origin_use.sync_failed)
    }

    /// The sync before a switch to write-back begins.
    pub fn sync_of_switch_begins(&mut self) {
        let before = core::mem::replace(&mut self.origin_use.sync_of_switch, true);
        assert!(!before, "one sync of a switch at a time");
    }

    pub fn sync_of_switch_ends(&mut self) {
        let before = core::mem::take(&mut self.origin_use.sync_of_switch);
        assert!(before, "it has begun");
    }

    pub fn syncs_for_switch(&self) -> bool {
        self.origin_use.sync_of_switch
    }

    /// A request that a guest waits for has ended at the origin.
    pub fn origin_answered(&mut self, now: Time, result: Result<(), IoError>) {
        self.counters.origin.errors += u64::from(result.is_err());
        self.origin_use.failed = result.err().map(|error| (now, error));
    }

    /// In what way guests wait for an origin that fails, or were just told that it does.
    pub fn origin_fails(&self, now: Time) -> Option<&'static str> {
        if self.origin_use.reads_held > 0 {
            return Some("the origin answers with errors; reads wait, and are tried again");
        }
        let (at, error) = self.origin_use.failed?;
        (now.since(at) < ORIGIN_FAILS_NS).then_some(match error {
            IoError::NoSpace => "there is no space left at the origin; writes end with that error",
            IoError::Damaged => {
                "a compressed cluster of the image cannot be unpacked; its reads end with an error"
            }
            IoError::Failed | IoError::Away => "the origin answers with errors",
        })
    }

    /// Whether a read that its origin did not give waits for another try.
    pub(crate) fn may_hold(&self, begun: Time, now: Time) -> bool {
        let limit = self.tuning().origin_timeout_ms;
        !self.is_detaching() && limit.is_none_or(|limit| now < begun.plus_millis(limit))
    }

    pub(crate) fn count_plan_read(&mut self, bytes: u64) {
        self.request_begins();
        self.counters.origin.reads += 1;
        self.counters.origin.read_bytes += bytes;
    }

    /// Whether the blocks of a range are being written past the log: then they are not filled.
    pub(crate) fn is_being_written(&self, span: Span) -> bool {
        let first = span.sector / BLOCK_SECTORS;
        let end = span.end().div_ceil(BLOCK_SECTORS);
        let whole = Span::new(first * BLOCK_SECTORS, (end - first) * BLOCK_SECTORS);
        self.writes_directly_to(whole) && !has(Bug::FillUnderWrite)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;

    #[test]
    fn an_origin_that_failed_a_guest_is_shown_so_for_a_minute_or_until_it_answers() {
        let mut volume = volume();
        let later = Time(ORIGIN_FAILS_NS);
        assert_eq!(volume.origin_fails(Time(0)), None);
        volume.origin_answered(Time(0), Err(IoError::NoSpace));
        assert!(volume.origin_fails(Time(1)).is_some());
        assert_eq!(volume.origin_fails(later), None);
        volume.origin_answered(Time(0), Ok(()));
        assert_eq!(volume.origin_fails(Time(1)), None);
        volume.read_begins();
        volume.read_is_held();
        assert!(volume.origin_fails(later).is_some());
        volume.read_ends(true);
        assert_eq!(volume.origin_fails(later), None);
    }

    #[test]
    fn direct_writes_are_known_by_their_range_until_they_end() {
        let mut volume = volume();
        volume.direct_begins(3, Span::new(8, 8));
        assert!(volume.writes_directly_to(Span::new(15, 4)));
        assert!(!volume.writes_directly_to(Span::new(16, 4)));
        volume.direct_ends(3);
        assert!(!volume.writes_directly());
    }
}
