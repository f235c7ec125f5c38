//! A guest's monitor that says whatever it likes.
//!
//! Invariants: a line is a message or an error, and what arrives in pieces of any size means the
//! same as in one piece; after an error nothing more is believed.

use host::qmp::{Lines, Message, Wrong};

/// All messages up to the first error.
fn read(input: &[u8], step: usize) -> (Vec<Message>, Option<Wrong>) {
    let mut lines = Lines::default();
    let mut messages = Vec::new();
    for part in input.chunks(step) {
        if let Err(wrong) = lines.take(part, &mut messages) {
            return (messages, Some(wrong));
        }
    }
    (messages, None)
}

pub fn lines(input: &[u8]) -> bool {
    let whole = read(input, input.len().max(1));
    let ends = input.iter().filter(|byte| **byte == b'\n').count();
    assert!(whole.0.len() <= ends, "one message a line at most");
    for step in [1, 7] {
        assert_eq!(read(input, step), whole, "pieces make no difference");
    }
    whole.1.is_none() && !whole.0.is_empty()
}
