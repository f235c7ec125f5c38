//! Marks for the kill drill: what the daemon is doing, in memory that a driver can see.
//!
//! Off unless `TENUTO_MARKS` names a file; then one branch becomes a few atomic adds. Always true:
//! a mark never changes what the daemon does, except that it kills itself when the driver says so.
//!
//! Layout of the file, 4 KiB of native 64-bit words:
//!
//! | word | written by | meaning |
//! | --- | --- | --- |
//! | 0 | daemon | `MAGIC` once the daemon has started |
//! | 1 | daemon | its pid |
//! | 2 | driver | phase to die in, 0 = off |
//! | 3 | driver | die in the middle of the nth entry of that phase from now on, from 1 |
//! | 4 | daemon | phase it killed itself in, 0 = none |
//! | 16 + 4 x phase | daemon | depth: entered, not left; 0 after a start |
//! | + 1 | daemon | total entries, over all lives |
//! | + 2 | daemon | kills of itself in this phase, over all lives |
//!
//! The driver writes word 3 before word 2, and clears word 4 itself.

use crate::buffer::Arena;
use engine::event::Purpose;
use std::fs::OpenOptions;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub const MARKS_BYTES: u64 = 4096;
/// "TENMARK1", little-endian.
pub const MAGIC: u64 = 0x314b_5241_4d4e_4554;
pub const WORD_MAGIC: usize = 0;
pub const WORD_PID: usize = 1;
pub const WORD_KILL_PHASE: usize = 2;
pub const WORD_KILL_COUNTDOWN: usize = 3;
pub const WORD_KILLED_IN: usize = 4;
pub const WORD_PHASES: usize = 16;
pub const WORDS_PER_PHASE: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    StageCopy = 1,
    LogWrite = 2,
    Destage = 3,
    JournalWrite = 4,
    JournalApply = 5,
    Checkpoint = 6,
    Recovery = 7,
    /// A step of putting another file in the place of an image.
    Exchange = 8,
    /// A step of going on with a copy for a host that is gone.
    Surrogate = 9,
}

impl Phase {
    pub const ALL: [Phase; 9] = [
        Phase::StageCopy,
        Phase::LogWrite,
        Phase::Destage,
        Phase::JournalWrite,
        Phase::JournalApply,
        Phase::Checkpoint,
        Phase::Recovery,
        Phase::Exchange,
        Phase::Surrogate,
    ];

    /// The phase a request to a device belongs to.
    pub fn of(purpose: Purpose) -> Option<Phase> {
        match purpose {
            Purpose::Log | Purpose::Footer | Purpose::Evacuate => Some(Phase::LogWrite),
            Purpose::DestageRead | Purpose::DestageWrite | Purpose::Ledger => Some(Phase::Destage),
            Purpose::JournalWrite => Some(Phase::JournalWrite),
            Purpose::JournalApply => Some(Phase::JournalApply),
            Purpose::Checkpoint => Some(Phase::Checkpoint),
            Purpose::GuestRead
            | Purpose::GuestWrite
            | Purpose::Prepare
            | Purpose::Fill
            | Purpose::Replicate
            | Purpose::Scrub
            | Purpose::LineRead => None,
        }
    }

    const fn word(self) -> usize {
        WORD_PHASES + WORDS_PER_PHASE * self as usize
    }
}

static ON: AtomicBool = AtomicBool::new(false);
static PAGE: OnceLock<Arena> = OnceLock::new();

/// Maps the file named by `TENUTO_MARKS`, if any. Call once at start.
pub fn start() -> io::Result<()> {
    let Some(path) = std::env::var_os("TENUTO_MARKS") else {
        return Ok(());
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    if file.metadata()?.len() < MARKS_BYTES {
        file.set_len(MARKS_BYTES)?;
    }
    let mapped = Arena::shared(&file, MARKS_BYTES)?;
    let page = PAGE.get_or_init(|| mapped);
    let words = page.words();
    for phase in Phase::ALL {
        words[phase.word()].store(0, Ordering::SeqCst);
    }
    words[WORD_PID].store(u64::from(std::process::id()), Ordering::SeqCst);
    words[WORD_MAGIC].store(MAGIC, Ordering::SeqCst);
    ON.store(true, Ordering::SeqCst);
    Ok(())
}

/// True when a driver watches; work may then be split so that there is a middle to die in.
#[inline]
pub fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// At submission of a request, or at the start of a copy.
#[inline]
pub fn enter(phase: Phase) {
    if on() {
        count_entry(words(), phase);
    }
}

/// A step that has been made: kills the process when the driver says so.
pub fn passed(phase: Phase) {
    enter(phase);
    middle(phase);
    leave(phase);
}

/// At completion.
#[inline]
pub fn leave(phase: Phase) {
    if on() {
        words()[phase.word()].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Right after submission, while it is in flight: kills the process when the driver says so.
#[inline]
pub fn middle(phase: Phase) {
    if on() && due(words(), phase) {
        crate::sys::kill_self();
    }
}

fn words() -> &'static [AtomicU64] {
    PAGE.get()
        .expect("marks are on only after the page was mapped")
        .words()
}

#[cold]
fn count_entry(words: &[AtomicU64], phase: Phase) {
    words[phase.word()].fetch_add(1, Ordering::SeqCst);
    words[phase.word() + 1].fetch_add(1, Ordering::SeqCst);
}

/// Counts down where this phase is armed; true when the process must die now.
#[cold]
fn due(words: &[AtomicU64], phase: Phase) -> bool {
    if words[WORD_KILL_PHASE].load(Ordering::SeqCst) != phase as u64 {
        return false;
    }
    let count = &words[WORD_KILL_COUNTDOWN];
    let before = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    if before != Ok(1) {
        return false;
    }
    words[WORD_KILL_PHASE].store(0, Ordering::SeqCst);
    words[WORD_KILLED_IN].store(phase as u64, Ordering::SeqCst);
    words[phase.word() + 2].fetch_add(1, Ordering::SeqCst);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_entry_of_the_armed_phase_dies_and_no_other() {
        let page = Arena::anonymous(MARKS_BYTES).expect("mapped");
        let words = page.words();
        words[WORD_KILL_COUNTDOWN].store(3, Ordering::SeqCst);
        words[WORD_KILL_PHASE].store(Phase::LogWrite as u64, Ordering::SeqCst);
        assert!(!due(words, Phase::StageCopy));
        assert!(!due(words, Phase::LogWrite));
        assert!(!due(words, Phase::LogWrite));
        assert!(due(words, Phase::LogWrite));
        assert!(!due(words, Phase::LogWrite), "disarmed after its kill");
        assert_eq!(
            words[WORD_KILLED_IN].load(Ordering::SeqCst),
            Phase::LogWrite as u64
        );
        assert_eq!(words[Phase::LogWrite.word() + 2].load(Ordering::SeqCst), 1);
    }

    #[test]
    fn words_of_all_phases_lie_inside_the_page() {
        for phase in Phase::ALL {
            assert!((phase.word() + WORDS_PER_PHASE) * 8 <= MARKS_BYTES as usize);
        }
    }
}
