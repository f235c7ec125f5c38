use engine::event::Purpose;
use std::io;

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
}

impl Phase {
    /// The phase a request to a device belongs to.
    pub fn of(_purpose: Purpose) -> Option<Phase> {
        todo!()
    }
}

/// Maps the file named by `TENUTO_MARKS`, if any. Call once at start.
pub fn start() -> io::Result<()> {
    todo!()
}

/// At submission of a request, or at the start of a copy.
#[inline]
pub fn enter(_phase: Phase) {}

/// At completion.
#[inline]
pub fn leave(_phase: Phase) {}

/// Right after submission, while it is in flight: kills the process when the driver says so.
#[inline]
pub fn middle(_phase: Phase) {}
