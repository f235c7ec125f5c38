//! The ledger of a volume as it is to be written next, and the step that it is written for.
//!
//! Always true: one step at a time; while a step is under way nothing else is said; it never says
//! that less is at the image than it said before.
//! Deliberately absent: how it is written (`core::ledger`).

use super::Volume;
use crate::adversary::{Bug, has};
use crate::event::Stat;
use crate::format::ledger::{Ledger, PAST_LOG, Progress};
use crate::image::{BELOW_ANY, Image};
use crate::types::{Generation, Policy, Serial, Time};
use alloc::vec::Vec;

/// Applying may change the origin's modification time up to so long after the ledger was written;
/// after a third of it the ledger is written again. A request may hang for the rest.
pub(crate) const APPLY_MS_MAX: u64 = 15 * 60_000;

/// What is written to the ledger, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerStep {
    /// The volume is claimed; then it needs a checkpoint to be ready.
    Claim,
    /// A destage may write places of the image that nothing in it refers to.
    Prepare,
    /// A destage may start to write the origin.
    Begin,
    /// All of a plan is at the image; its guard is left.
    Reached,
    /// A destage has ended.
    Finish,
    /// The size of the image may change.
    Resize,
    /// Another file may take the place of the image, or has done so.
    Exchange,
    /// The image stands on another file.
    Move,
    /// Nothing is dirty any more and the owner goes away.
    Release,
}

/// The ledger of a volume as it is, or is being written.
pub struct LedgerWriter {
    ledger: Ledger,
    step: Option<LedgerStep>,
    piece: Option<u32>,
    /// The last attempt failed: due again at housekeeping.
    failed: bool,
    /// It says what has to be on media before the volume is served, also of a direct one.
    unsaid: bool,
    /// Its image moves to another file: see [`super::rebase`].
    moves: bool,
    /// The header names another file below the image than the one that is open, for this life.
    below_unsaid: bool,
    /// How far the clock of the origin's file system is ahead of ours.
    clock_ahead_ns: u64,
    /// The time over there when it was read, and when that was. The wall clock here may be set back
    /// since.
    clock_there: (u64, Time),
}

impl LedgerWriter {
    pub fn new(ledger: Ledger) -> LedgerWriter {
        LedgerWriter {
            ledger,
            step: None,
            piece: None,
            failed: false,
            unsaid: false,
            moves: false,
            below_unsaid: false,
            clock_ahead_ns: 0,
            clock_there: (0, Time(0)),
        }
    }

    /// Of a volume that its host attaches, with this image. `unsaid`: a loss was accepted.
    pub fn of_attached(ledger: Ledger, image: Image, direct: bool, unsaid: bool) -> LedgerWriter {
        let mut writer = LedgerWriter::new(ledger);
        // Nothing of ours writes it from here on without a word in the ledger.
        writer.ledger.image = image.kept();
        let new = direct && writer.ledger.go_past_log();
        writer.unsaid = unsaid || new;
        writer
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// A step of it is under way.
    pub fn is_busy(&self) -> bool {
        self.step.is_some()
    }

    /// It says what has to be on media before the volume is served.
    pub fn is_unsaid(&self) -> bool {
        self.unsaid
    }

    /// Nothing of it is on its way, and it says that the log holds nothing.
    pub fn says_clean(&self) -> bool {
        !self.is_busy() && !self.failed && !self.ledger.dirty
    }

    /// It names a journal that is being applied.
    pub fn names_journal(&self) -> bool {
        matches!(self.ledger.progress, Progress::Apply { .. })
    }

    /// It says that the origin may hold writes without a sync.
    pub fn is_past_log(&self) -> bool {
        self.ledger.compatible & PAST_LOG != 0
    }

    /// It is written for this from here on.
    pub fn begin(&mut self, step: LedgerStep) {
        assert_eq!(self.step, None, "one step of the ledger at a time");
        assert!(self.piece.is_none(), "nothing of it is on its way");
        self.step = Some(step);
        self.ledger.sequence += 1;
    }

    /// There was no memory to write it from.
    pub fn lacks_memory(&mut self) {
        assert!(self.is_busy(), "a ledger is written for a step");
        self.failed = true;
    }

    /// A write of it begins, from this piece: what is written, and where.
    pub fn begin_write(&mut self, piece: u32) -> (Vec<u8>, u64) {
        assert!(
            self.is_busy() && self.piece.is_none(),
            "a ledger is written once at a time, and for a step"
        );
        self.failed = false;
        self.piece = Some(piece);
        if self.moves && !has(Bug::ClaimMoving) {
            self.ledger.dirty = false;
            self.ledger.image.below = BELOW_ANY;
        }
        if self.below_unsaid {
            self.ledger.image.below = BELOW_ANY;
        }
        let bytes = self.ledger.encode();
        assert!(Ledger::parse(&bytes).is_ok(), "what is written can be read");
        (bytes, Ledger::slot_at(self.ledger.sequence))
    }

    /// The write has ended: from which piece it was, and for which step.
    pub fn write_ended(&mut self, ok: bool) -> (u32, LedgerStep) {
        let piece = self.piece.take();
        self.failed = !ok;
        let step = self.step.expect("a ledger is written for a step");
        (piece.expect("a ledger write holds a piece"), step)
    }

    /// A claim asks for the time of the ledger, which is the present one over there.
    fn clock_is_read(&mut self, now: Time, stat: &Stat) {
        assert!(
            self.step == Some(LedgerStep::Claim),
            "a claim asks for the time"
        );
        self.step = None;
        self.clock_ahead_ns = stat.mtime_ns.saturating_sub(stat.now_ns);
        self.clock_there = (stat.mtime_ns, now);
    }

    /// How the image is, and until when writing it may change its time.
    pub fn note_apply(&mut self, now: Time, stat: &Stat) {
        let (there, read_at) = self.clock_there;
        let clock = there.saturating_add(now.since(read_at));
        let clock = clock.max(stat.now_ns.saturating_add(self.clock_ahead_ns));
        let ledger = &mut self.ledger;
        ledger.origin_bytes = stat.size_bytes;
        if let Some(image) = stat.image {
            // It is written from here on. Who looks at it at the end may tell its time.
            ledger.image = image.kept().written();
        }
        ledger.mtime_before_ns = stat.mtime_ns;
        let began = clock.max(stat.mtime_ns);
        let limit = began.saturating_add(APPLY_MS_MAX * 1_000_000);
        // Until all of it is synced a power loss may bring back a time that was allowed before.
        let before = match ledger.progress {
            Progress::Idle => 0,
            Progress::Prepare | Progress::Cut(_) | Progress::Apply { .. } => ledger.mtime_limit_ns,
        };
        ledger.mtime_limit_ns = limit.max(before);
        assert!(ledger.mtime_limit_ns >= ledger.mtime_before_ns);
    }

    /// The log holds nothing that the origin has not.
    pub fn release(&mut self) {
        assert!(!self.is_busy(), "one step of the ledger at a time");
        self.ledger.dirty = false;
    }

    /// The same, and the origin may hold writes without a sync from here on. A log that does not
    /// know the volume has to know that its flushes owe one.
    pub fn release_past_log(&mut self) {
        self.release();
        self.ledger.go_past_log();
        assert!(self.is_past_log() && !self.ledger.dirty);
    }

    /// A plan up to this serial may write the image; in place: also bytes of the disk.
    pub fn prepare(&mut self, upto: Serial, in_place: bool) {
        assert!(!self.is_busy(), "one step of the ledger at a time");
        self.ledger.progress = match self.ledger.progress {
            // An image between two states is that until a journal has been applied.
            Progress::Cut(before) => Progress::Cut(before.max(upto)),
            _ if in_place && !has(Bug::CutUnsaid) => Progress::Cut(upto),
            _ => Progress::Prepare,
        };
    }

    /// The image is about to be written.
    pub fn apply(&mut self, progress: Progress) {
        assert!(!self.is_busy(), "one step of the ledger at a time");
        assert!(
            matches!(progress, Progress::Apply { .. } | Progress::Cut(_)),
            "what is written goes to an end"
        );
        self.ledger.progress = progress;
    }

    /// The image has all of a destage.
    pub fn finish(&mut self, upto: Serial) {
        assert!(self.ledger.destaged <= upto, "a destage goes forward");
        assert!(!self.is_busy(), "one step of the ledger at a time");
        self.ledger.progress = Progress::Idle;
        self.ledger.destaged = upto;
    }

    /// The image has the journal up to this serial; see [`Ledger::reach`].
    pub fn reach(&mut self, upto: Serial, progress: Progress) {
        assert!(!self.is_busy(), "one step of the ledger at a time");
        self.ledger.reach(upto, progress);
        assert!(self.ledger.destaged >= upto, "a replay goes forward");
    }

    /// The journal that it names cannot be used: the image is between two states.
    pub fn journal_is_lost(&mut self, upto: Serial) {
        assert!(self.names_journal(), "it named a journal");
        assert!(!self.is_busy(), "one step of the ledger at a time");
        self.ledger.progress = Progress::Cut(upto);
    }

    /// The image as it was seen after the last write.
    pub fn sees_image(&mut self, image: &Image) {
        assert!(!self.is_busy(), "one step of the ledger at a time");
        self.ledger.image = image.kept();
    }

    /// The image is written from here on, so its time says nothing. False if that was said before.
    pub fn image_is_written(&mut self) -> bool {
        let new = self.ledger.image.mtime_ns != 0;
        if new {
            self.ledger.image = self.ledger.image.written();
        }
        assert!(self.ledger.image.mtime_ns == 0);
        new
    }

    /// Another file may take the place of the image, or not any more.
    pub fn announce(&mut self, may_succeed: bool) {
        assert!(!self.is_busy(), "one step of the ledger at a time");
        assert!(self.ledger.progress == Progress::Idle || !may_succeed);
        self.ledger.may_succeed = may_succeed;
    }

    /// A plan is to move the image, or to give it more of the disk alone.
    pub fn begin_move(&mut self, moves: bool) {
        assert!(!self.is_busy(), "one step of the ledger at a time");
        self.moves = moves;
    }

    /// The image was opened anew on its other file.
    pub fn image_is_moved(&mut self, image: &Image) {
        assert!(self.moves && !self.ledger.dirty, "so the ledger says");
        self.ledger.image = image.kept();
        self.below_unsaid = false;
    }

    /// The host has given a move up. What is open is seen again and again; the next start finds
    /// what the header names.
    pub fn move_is_left(&mut self) {
        assert!(self.moves, "a move was under way");
        self.below_unsaid = true;
    }

    /// The log may have more than the image again. `stays_on`: what the image stood on, and stands
    /// on still.
    pub fn end_move(&mut self, stays_on: Option<u64>) {
        assert!(!self.is_busy(), "one step of the ledger at a time");
        (self.moves, self.ledger.dirty) = (false, !has(Bug::ServeMoved));
        if let Some(below) = stays_on {
            self.ledger.image.below = below;
        }
    }
}

impl Volume {
    pub fn ledger_writer(&self) -> Option<&LedgerWriter> {
        self.ledger_writer.as_ref()
    }

    /// Of a volume that writes its image.
    pub fn written_ledger(&mut self) -> &mut LedgerWriter {
        let writer = self.ledger_writer.as_mut();
        writer.expect("written images have a ledger")
    }

    pub fn has_ledger(&self) -> bool {
        self.ledger_writer.is_some()
    }

    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledger_writer.as_ref().map(LedgerWriter::ledger)
    }

    /// A step of its ledger is under way.
    pub fn is_ledger_busy(&self) -> bool {
        self.ledger_writer
            .as_ref()
            .is_some_and(LedgerWriter::is_busy)
    }

    /// Its ledger could not be written; due again.
    pub fn ledger_failed(&self) -> bool {
        self.ledger_writer.as_ref().is_some_and(|it| it.failed)
    }

    /// Its header names another file below it than the one that is open: the host has given a move
    /// up.
    pub(crate) fn names_another(&self) -> bool {
        self.ledger_writer
            .as_ref()
            .is_some_and(|it| it.below_unsaid)
    }

    /// Its host has found a ledger of this generation, or none.
    pub fn finds_ledger(&mut self, ledger: Option<&Ledger>) {
        assert!(self.ledger_writer.is_none(), "it is not written yet");
        self.ledger_generation = ledger.map_or(Generation(0), |it| it.generation);
    }

    /// It writes a ledger from here on; one that it wrote before is at rest.
    pub fn keep_ledger(&mut self, writer: LedgerWriter) {
        assert!(!self.is_ledger_busy(), "one step of the ledger at a time");
        self.ledger_writer = Some(writer);
    }

    /// It is let go of: its ledger stays as it is.
    pub fn leave_ledger(&mut self) {
        assert!(!self.is_ledger_busy(), "nothing of it is on its way");
        self.ledger_writer = None;
    }

    /// The write of the ledger is on media: the step that it was for. A claim goes on until the
    /// time over there is known as well.
    pub fn ledger_is_synced(&mut self) -> LedgerStep {
        let writer = self.ledger_writer.as_mut().expect("a ledger was synced");
        assert!(writer.piece.is_none(), "its write has ended");
        let step = writer.step.expect("a step was under way");
        writer.step.take_if(|it| *it != LedgerStep::Claim);
        self.ledger_generation = writer.ledger.generation;
        step
    }

    /// A write, a sync or a look at the ledger has failed: the same step is due again.
    pub fn ledger_fails(&mut self) {
        let writer = self.ledger_writer.as_mut().expect("a ledger was written");
        assert!(writer.is_busy(), "a ledger is written for a step");
        writer.failed = true;
        self.counters.origin.errors += 1;
    }

    /// The ledger was written a moment ago, so its time is the present one over there.
    pub fn ledger_clock_is_read(&mut self, now: Time, stat: &Stat) {
        let writer = self.ledger_writer.as_mut().expect("a ledger was written");
        writer.clock_is_read(now, stat);
    }

    /// Whether a volume may be let go of as it is: the ledger of one that writes its image says
    /// that it is clean, which `release_if_clean` writes.
    pub(crate) fn said_clean(&self) -> bool {
        if self.policy == Policy::Ephemeral || self.misfit().is_some() {
            return self.is_ready();
        }
        assert!(!self.is_dirty(), "what is let go of owes nothing");
        match self.ledger_writer() {
            Some(writer) => writer.says_clean(),
            None => self.is_ready(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;
    use crate::image::Named;
    use crate::types::Uuid;
    use alloc::string::String;

    fn ledger() -> Ledger {
        Ledger {
            sequence: 4,
            volume: Uuid([1; 16]),
            cache: Uuid([2; 16]),
            machine: Uuid([3; 16]),
            boot: Uuid([4; 16]),
            owner: String::from("host"),
            generation: Generation(1),
            destaged: Serial(0),
            progress: Progress::Idle,
            dirty: true,
            origin_bytes: 0,
            mtime_before_ns: 0,
            mtime_limit_ns: 0,
            image: Image::default(),
            may_succeed: false,
            compatible: 0,
        }
    }

    fn stat() -> Stat {
        Stat {
            size_bytes: 0,
            mtime_ns: 5,
            now_ns: 3,
            print: None,
            image: None,
            named: Named::Unknown,
        }
    }

    fn written(volume: &mut Volume, step: LedgerStep) -> LedgerStep {
        volume.written_ledger().begin(step);
        volume.written_ledger().begin_write(7);
        assert_eq!(volume.written_ledger().write_ended(true), (7, step));
        volume.ledger_is_synced()
    }

    #[test]
    fn a_claim_ends_when_the_time_over_there_is_known() {
        let mut volume = volume();
        volume.keep_ledger(LedgerWriter::new(ledger()));
        assert_eq!(written(&mut volume, LedgerStep::Claim), LedgerStep::Claim);
        assert!(volume.is_ledger_busy());
        volume.ledger_clock_is_read(Time(1), &stat());
        assert!(!volume.is_ledger_busy());
        assert_eq!(written(&mut volume, LedgerStep::Finish), LedgerStep::Finish);
        assert!(!volume.is_ledger_busy());
    }

    #[test]
    fn a_ledger_that_could_not_be_written_is_due_again_for_the_same_step() {
        let mut volume = volume();
        volume.keep_ledger(LedgerWriter::new(ledger()));
        volume.written_ledger().begin(LedgerStep::Begin);
        volume.written_ledger().lacks_memory();
        assert!(volume.ledger_failed());
        volume.written_ledger().begin_write(1);
        assert!(!volume.ledger_failed());
        volume.written_ledger().write_ended(false);
        assert!(volume.ledger_failed() && volume.is_ledger_busy());
    }

    #[test]
    fn who_goes_past_the_log_says_so_with_the_release() {
        let mut writer = LedgerWriter::new(ledger());
        writer.release_past_log();
        assert!(writer.says_clean() && writer.is_past_log());
    }
}
