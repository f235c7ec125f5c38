//! The switch as the unit tests of this crate have it: one for each thread, because they run side
//! by side, and always there, so that what they break needs no build of its own.

extern crate std;

use super::Bug;
use core::cell::Cell;

std::thread_local! {
    static BROKEN: Cell<Option<Bug>> = const { Cell::new(None) };
}

pub fn is_set(bug: Bug) -> bool {
    BROKEN.get() == Some(bug)
}

pub fn set(bug: Option<Bug>) {
    BROKEN.set(bug);
}
