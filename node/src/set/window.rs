//! The backup window of a unit with copies: no host writes its image while its record says so.
//!
//! ```text
//! closed ─ Window(true), the image rests ─▶ in the next record ─ decided ─▶ open
//! open ─ Window(false) ─▶ in the next record ─ decided ─▶ closed, and the image is written again
//! ```
//! Always true: the window is told to be open only under a decided record that says so, and each
//! record of this owner says so until it is told otherwise, also one that gives the unit away; no
//! cut begins from the order on until a record without the window is decided; a unit with a window
//! is not released. Deliberately absent: when the image rests, and who waits for it.

use super::Set;
use crate::broken::{Rule, has};

/// What the next record says.
pub(super) fn is_wanted(set: &Set) -> bool {
    set.wish.window && !has(Rule::WindowIsInRecord)
}

/// Nothing may be brought to the origin.
pub fn rests(set: &Set) -> bool {
    let changing = set.changing().is_some_and(|record| record.quiesced);
    set.wish.window || set.record.quiesced || changing
}

/// The window that was ordered is in the record, and so is one that was closed not any more.
pub fn has_window(set: &Set, open: bool) -> bool {
    let ordered = set.wish.window == open;
    let recorded = set.record.quiesced == open || has(Rule::WindowIsInRecord);
    ordered && recorded && rests(set) == open
}
