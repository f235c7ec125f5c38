//! Memory that a guest lends for one of its requests.
//!
//! Owns the pieces that make one buffer of the engine's, wherever they lie in the guest. Always
//! true: what keeps the mapping lives as long as the loan; a piece is never empty; a range beyond
//! the buffer stops the process, because only a bug of ours can name one. The guest may change the
//! bytes at any time, so nothing here makes a reference to them. Deliberately absent: which
//! addresses a guest may name; who lends has checked that.

pub use engine::types::BufferId;
use std::any::Any;
use std::sync::Arc;

/// Numbers of buffers from here on are loans; those below are a pool's.
const FIRST: u32 = 15 << 28;

/// Bytes of a guest that lie one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub pointer: *mut u8,
    pub bytes: u64,
}

struct Loan {
    /// With the offset behind each.
    pieces: Vec<(u64, Piece)>,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a pointer into memory that is shared with a guest anyway; nothing in it is bound to a
// thread.
unsafe impl Send for Piece {}

/// All that is lent at present.
#[derive(Default)]
pub struct Loans {
    slots: Vec<Option<Loan>>,
    free: Vec<u32>,
    /// Lists of pieces that are not used, for their memory.
    spare: Vec<Vec<(u64, Piece)>>,
}

impl std::fmt::Debug for Loans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} loans", self.slots.len() - self.free.len())
    }
}

impl Loans {
    pub fn has(buffer: BufferId) -> bool {
        buffer.0 >= FIRST
    }

    /// A buffer of these pieces in a row, until it is given back.
    ///
    /// # Safety
    ///
    /// All pieces must be valid for reads and writes as long as `keeper` lives, and no reference to
    /// their bytes may exist in this process.
    pub unsafe fn lend(
        &mut self,
        pieces: impl Iterator<Item = Piece>,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> BufferId {
        let mut list = self.spare.pop().unwrap_or_default();
        let mut end = 0;
        for piece in pieces.filter(|piece| piece.bytes > 0) {
            end += piece.bytes;
            list.push((end, piece));
        }
        let loan = Loan {
            pieces: list,
            _keeper: keeper,
        };
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = Some(loan),
            None => self.slots.push(Some(loan)),
        }
        assert!(slot < u32::MAX - FIRST, "numbers of loans fit");
        BufferId(FIRST + slot)
    }

    pub fn give_back(&mut self, buffer: BufferId) {
        let slot = buffer.0 - FIRST;
        let loan = self.slots[slot as usize].take();
        let mut pieces = loan.expect("a loan is given back once").pieces;
        pieces.clear();
        self.spare.push(pieces);
        self.free.push(slot);
    }

    /// The bytes from `offset` on that lie in a row, at most `bytes` of them.
    pub fn run(&self, buffer: BufferId, offset: u64, bytes: u64) -> (*mut u8, u64) {
        let loan = self.slots[(buffer.0 - FIRST) as usize].as_ref();
        let pieces = &loan.expect("a loan is used before it is given back").pieces;
        let length = pieces.last().map_or(0, |(end, _)| *end);
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= length);
        assert!(
            inside,
            "range {offset}+{bytes} leaves a loan of {length} bytes"
        );
        if bytes == 0 {
            return (std::ptr::dangling_mut(), 0);
        }
        let at = pieces.partition_point(|(end, _)| *end <= offset);
        let (end, piece) = pieces[at];
        let within = piece.bytes - (end - offset);
        // SAFETY: the offset lies inside the piece, which whoever lent it promised to be valid.
        let pointer = unsafe { piece.pointer.add(within as usize) };
        (pointer, bytes.min(end - offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lend(loans: &mut Loans, parts: &[&mut [u8]]) -> BufferId {
        let pieces: Vec<Piece> = parts
            .iter()
            .map(|part| Piece {
                pointer: part.as_ptr().cast_mut(),
                bytes: part.len() as u64,
            })
            .collect();
        // SAFETY: the parts outlive the loan in these tests, and only pointers are compared.
        unsafe { loans.lend(pieces.into_iter(), Arc::new(())) }
    }

    #[test]
    fn runs_end_where_pieces_do_and_empty_pieces_are_none() {
        let (mut a, mut b, mut c) = ([1u8; 512], [2u8; 0], [3u8; 4096]);
        let mut loans = Loans::default();
        let first = (a.as_ptr(), c.as_ptr());
        let buffer = lend(&mut loans, &[&mut a, &mut b, &mut c]);
        assert!(Loans::has(buffer) && !Loans::has(BufferId(FIRST - 1)));
        let run = |offset, bytes| {
            let (pointer, bytes) = loans.run(buffer, offset, bytes);
            (pointer.cast_const(), bytes)
        };
        assert_eq!(run(0, 4608), (first.0, 512));
        assert_eq!(run(500, 5), (first.0.wrapping_add(500), 5));
        assert_eq!(run(500, 50), (first.0.wrapping_add(500), 12));
        assert_eq!(run(512, 4096), (first.1, 4096));
        assert_eq!(run(4607, 1), (first.1.wrapping_add(4095), 1));
        assert_eq!(run(4608, 0).1, 0);
    }

    #[test]
    fn what_was_given_back_is_lent_again_under_the_same_number() {
        let (mut a, mut b) = ([0u8; 512], [0u8; 1024]);
        let mut loans = Loans::default();
        let one = lend(&mut loans, &[&mut a]);
        let two = lend(&mut loans, &[&mut b]);
        loans.give_back(one);
        let again = lend(&mut loans, &[&mut b]);
        assert_eq!((one, again), (one, one));
        assert_ne!(again, two);
        assert_eq!(loans.run(again, 0, 1024).1, 1024);
    }

    #[test]
    #[should_panic(expected = "leaves a loan")]
    fn a_range_beyond_a_loan_is_our_bug_and_stops() {
        let mut a = [0u8; 512];
        let mut loans = Loans::default();
        let buffer = lend(&mut loans, &[&mut a]);
        loans.run(buffer, 1, 512);
    }
}
