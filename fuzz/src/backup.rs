//! The head of a checkpoint of a volume, as a file in `state-dir` or in `stage-dir` has it.
//!
//! Invariants: what was accepted is written back as it was read; no bitmap is announced that is
//! larger than that of the largest disk. The checksum is put right first, because noise would never
//! get past it.

use host::backup::bitmap::{BITMAP_BYTES_MAX, words_for};
use host::backup::file::{HEAD_BYTES, Head, seal};

pub fn checkpoint(input: &[u8]) -> bool {
    let accepted = judged(input);
    let mut head = [0; HEAD_BYTES];
    let length = input.len().min(HEAD_BYTES);
    head[..length].copy_from_slice(&input[..length]);
    seal(&mut head);
    judged(&head) || accepted
}

fn judged(bytes: &[u8]) -> bool {
    let Ok(head) = Head::parse(bytes) else {
        return false;
    };
    let again = Head::parse(&head.encode()).expect("it was accepted");
    assert_eq!(again, head);
    let carries = matches!(
        head.state,
        host::backup::file::State::Kept | host::backup::file::State::Frozen
    );
    assert!(!carries || words_for(head.size_bytes) * 8 <= BITMAP_BYTES_MAX);
    true
}
