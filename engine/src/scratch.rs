//! Working memory: pieces as large as a chunk, and single blocks.
//!
//! Owns which part of [`Area::Scratch`] is in use. Always true: what is taken is given back once.
//! Destage may take at most half of the pieces, so that footers, ledgers, checkpoints and
//! evacuation, which make room, never wait for it.

use crate::memory::{Area, Place};
use crate::types::{BLOCK_BYTES, Geometry};
use alloc::vec::Vec;

/// Blocks of bounce memory; a guest read of scattered sectors takes one per partial block.
const BLOCKS: u32 = 256;
/// Pieces that destage leaves free in any case.
const PIECES_KEPT: usize = 4;

pub struct Scratch {
    piece_bytes: u64,
    pieces_free: Vec<u32>,
    pieces: usize,
    destage_pieces: usize,
    blocks_free: Vec<u32>,
}

impl Scratch {
    pub fn new(geometry: Geometry, bytes: u64) -> Scratch {
        let blocks_bytes = u64::from(BLOCKS) * BLOCK_BYTES;
        assert!(bytes > blocks_bytes, "the host gives at least the minimum");
        let pieces = ((bytes - blocks_bytes) / geometry.chunk_bytes()) as u32;
        assert!(pieces >= 8, "scratch memory holds at least eight pieces");
        Scratch {
            piece_bytes: geometry.chunk_bytes(),
            pieces_free: (0..pieces).rev().collect(),
            pieces: pieces as usize,
            destage_pieces: 0,
            blocks_free: (0..BLOCKS).rev().collect(),
        }
    }

    pub fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    pub fn take_piece(&mut self) -> Option<u32> {
        self.pieces_free.pop()
    }

    /// Those who make room have enough, and there is one more.
    pub fn has_spare_piece(&self) -> bool {
        self.pieces_free.len() > PIECES_KEPT
    }

    /// As `take_piece`, while those who make room have enough.
    pub fn take_spare_piece(&mut self) -> Option<u32> {
        match self.has_spare_piece() {
            true => self.pieces_free.pop(),
            false => None,
        }
    }

    /// As `take_piece`, within the share of the destager.
    pub fn take_destage_piece(&mut self, held: usize) -> Option<u32> {
        if !self.may_take_destage_piece(held) {
            return None;
        }
        self.destage_pieces += 1;
        assert!(
            self.destage_pieces <= self.pieces / 2,
            "destage has half of the pieces at most"
        );
        self.pieces_free.pop()
    }

    /// A volume that has `held` of the destager's share already gets no more than what is left for
    /// the others, so that one whose origin is dead, and never gives a piece back, leaves enough
    /// for the rest.
    pub fn may_take_destage_piece(&self, held: usize) -> bool {
        let left = (self.pieces / 2).saturating_sub(self.destage_pieces);
        held < left && self.pieces_free.len() > PIECES_KEPT
    }

    /// Pieces that destage has.
    pub fn destage_pieces(&self) -> usize {
        self.destage_pieces
    }

    pub fn free_piece(&mut self, piece: u32) {
        assert!((piece as usize) < self.pieces, "it was taken from here");
        assert!(
            !self.pieces_free.contains(&piece),
            "a piece is given back once"
        );
        self.pieces_free.push(piece);
    }

    pub fn free_destage_piece(&mut self, piece: u32) {
        assert!(self.destage_pieces > 0, "destage has taken the piece");
        self.destage_pieces -= 1;
        self.free_piece(piece);
        assert!(self.destage_pieces + self.pieces_free.len() <= self.pieces);
    }

    pub fn piece(&self, piece: u32) -> Place {
        assert!(
            (piece as usize) < self.pieces,
            "a piece lies in the scratch memory"
        );
        let offset = u64::from(BLOCKS) * BLOCK_BYTES + u64::from(piece) * self.piece_bytes;
        Place::new(Area::Scratch, offset)
    }

    pub fn take_block(&mut self) -> Option<u32> {
        self.blocks_free.pop()
    }

    pub fn free_block(&mut self, block: u32) {
        debug_assert!(!self.blocks_free.contains(&block));
        self.blocks_free.push(block);
        assert!(
            self.blocks_free.len() <= BLOCKS as usize,
            "a block is given back once"
        );
    }

    pub fn block(&self, block: u32) -> Place {
        assert!(block < BLOCKS, "a block lies in the scratch memory");
        Place::new(Area::Scratch, u64::from(block) * BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_that_give_nothing_back_leave_pieces_for_others() {
        let geometry = Geometry {
            chunk_blocks: 8,
            segment_chunks: 4,
            segments: 12,
        };
        let mut scratch = Scratch::new(geometry, 4 << 20);
        for dead in 0..4 {
            let mut held = 0;
            while scratch.take_destage_piece(held).is_some() {
                held += 1;
            }
            assert!(held > 0, "after {dead} dead volumes nothing is left");
        }
        assert!(scratch.take_destage_piece(0).is_some());
    }
}
