//! Clean blocks of volumes that move between hosts: of one that came here, what may be asked of
//! the host that had it before; of one that went, what is left of it here.
//!
//! ```text
//! came:  attached ─▶ asks ─(too little is there, or its layer changed)─▶ asks no more
//! went:  retired ─▶ left ─(an hour, too many, or it came back)─▶ forgotten
//! ```
//!
//! Always true: a block is asked for only while nothing of its 64 KiB was written to the image
//! since the volume came, so that what the former host has of it is what the image has; the former
//! host answers only if the asker knows all that was destaged since it let go. What is left here
//! is of a volume that is not served here, and does not change. Neither outlives the engine.
//! Deliberately absent: which host that is, and how blocks come from there (the host says so).

use crate::adversary::{Bug, has};
use crate::memory::{Area, Place};
use crate::ram::Layer;
use crate::slab::Slab;
use crate::types::{BLOCK_BYTES, BufferId, RequestId, SegmentIndex, Serial, Time, Uuid};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// One bit stands for so many blocks: 64 KiB.
const UNIT_BLOCKS: u64 = 16;
/// A larger change of the image ends it.
const WRITTEN_UNITS_MAX: u64 = 1 << 16;
/// Of so many blocks that are asked for, one part of so many has to be there.
const WINDOW_BLOCKS: u32 = 4_096;
const PRESENT_PART: u32 = 8;
/// Volumes that went, of which something is left.
const LEFT_MAX: usize = 64;
const LEFT_MS: u64 = 3_600_000;

/// What may be asked of the host that a volume came from.
struct Former {
    /// What was destaged behind it is in `written`.
    since: Serial,
    /// Units that were written since, 64 in a word.
    written: BTreeMap<u64, u64>,
    asked: u32,
    missing: u32,
}

/// What is left here of a volume that went.
#[derive(Clone, Copy)]
struct Left {
    volume: Uuid,
    layer: Layer,
    /// The image had everything up to there.
    destaged: Serial,
    at: Time,
}

/// A read of another host, of which a part comes from the device.
pub struct Serving {
    pub request: RequestId,
    pub layer: Layer,
    pub first_block: u64,
    pub buffer: BufferId,
    pub rows: Vec<Row>,
    /// Rows that have not come.
    pub waits: u32,
    pub good: bool,
}

/// Blocks in a row on the device that such a read asks for.
#[derive(Clone, Copy)]
pub struct Row {
    /// The first of them, counted from the first of the read.
    pub at: u32,
    pub blocks: u32,
    pub base: u32,
    /// It is pinned while they are read.
    pub segment: SegmentIndex,
}

impl Row {
    pub fn place(&self, buffer: BufferId) -> Place {
        Place::new(Area::Buffer(buffer), u64::from(self.at) * BLOCK_BYTES)
    }
}

#[derive(Default)]
pub struct Remote {
    formers: BTreeMap<Layer, Former>,
    left: Vec<Left>,
    /// Reads of other hosts under way.
    pub serving: Slab<Serving>,
}

fn units(first_block: u64, blocks: u64) -> Range<u64> {
    assert!(blocks > 0, "a range has something");
    first_block / UNIT_BLOCKS..(first_block + blocks - 1) / UNIT_BLOCKS + 1
}

impl Remote {
    /// A volume came, and its blocks are kept in this layer, which is new. What is destaged behind
    /// `since` is told with [`Remote::was_written`].
    pub fn comes(&mut self, layer: Layer, since: Serial) {
        let former = Former {
            since,
            written: BTreeMap::new(),
            asked: 0,
            missing: 0,
        };
        let before = self.formers.insert(layer, former);
        assert!(before.is_none(), "a layer is used once");
    }

    /// What the former host must have known of the image, so that it may be asked.
    pub fn since(&self, layer: Layer) -> Option<Serial> {
        self.formers.get(&layer).map(|former| former.since)
    }

    /// Nothing of this layer is asked for any more.
    pub fn ends(&mut self, layer: Layer) {
        self.formers.remove(&layer);
    }

    /// The image has other bytes there from now on.
    pub fn was_written(&mut self, layer: Layer, first_block: u64, blocks: u64) {
        let Some(former) = self.formers.get_mut(&layer) else {
            return;
        };
        let units = units(first_block, blocks);
        if units.end - units.start > WRITTEN_UNITS_MAX {
            return self.ends(layer);
        }
        for unit in units.filter(|_| !has(Bug::StaleRemoteRead)) {
            *former.written.entry(unit / 64).or_default() |= 1 << (unit % 64);
        }
    }

    /// Whether all of these blocks may be asked for.
    pub fn may_ask(&self, layer: Layer, blocks: &Range<u64>) -> bool {
        let Some(former) = self.formers.get(&layer) else {
            return false;
        };
        assert!(blocks.start < blocks.end, "a question has blocks");
        let is_written = |unit: u64| {
            let word = former.written.get(&(unit / 64));
            word.is_some_and(|word| word >> (unit % 64) & 1 == 1)
        };
        !units(blocks.start, blocks.end - blocks.start).any(is_written)
    }

    /// So many of the blocks that were asked for were not there. A footprint that has been built
    /// here, or is gone there, is asked for no more.
    pub fn answered(&mut self, layer: Layer, asked: u32, missing: u32) {
        assert!(missing <= asked, "what is missing was asked for");
        let Some(former) = self.formers.get_mut(&layer) else {
            return;
        };
        (former.asked, former.missing) = (former.asked + asked, former.missing + missing);
        if former.asked < WINDOW_BLOCKS {
            return;
        }
        assert!(former.missing <= former.asked, "it counts both");
        let present = former.asked - former.missing;
        let worth = present >= former.asked / PRESENT_PART;
        (former.asked, former.missing) = (0, 0);
        if !worth {
            self.ends(layer);
        }
    }

    /// A volume went, and these are its blocks. Returns the layer that has to go for it.
    pub fn leave(
        &mut self,
        now: Time,
        volume: Uuid,
        (layer, destaged): (Layer, Serial),
    ) -> Option<Layer> {
        let known = self.left.iter().any(|it| it.volume == volume);
        assert!(!known, "one that came back left nothing");
        let full = self.left.len() >= LEFT_MAX;
        let gone = full.then(|| self.left.remove(0).layer);
        assert!(self.left.len() < LEFT_MAX, "there is room for one");
        self.left.push(Left {
            volume,
            layer,
            destaged,
            at: now,
        });
        gone
    }

    /// What is left of a volume, for a host that knows what was destaged behind `since`.
    pub fn left(&self, volume: Uuid, since: Serial) -> Option<Layer> {
        let found = self.left.iter().find(|it| it.volume == volume)?;
        (since <= found.destaged || has(Bug::ServeOtherTime)).then_some(found.layer)
    }

    /// A volume is served here again, and what was left of it is of another time.
    pub fn take_left(&mut self, volume: Uuid) -> Option<Layer> {
        let at = self.left.iter().position(|it| it.volume == volume)?;
        Some(self.left.remove(at).layer)
    }

    /// One that was left for too long.
    pub fn take_old(&mut self, now: Time) -> Option<Layer> {
        let first = self.left.first()?;
        let old = now >= first.at.plus_millis(LEFT_MS);
        old.then(|| self.left.remove(0).layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: Layer = Layer(7);

    fn may_ask(remote: &Remote, block: u64) -> bool {
        remote.may_ask(LAYER, &(block..block + 1))
    }

    #[test]
    fn what_was_written_is_not_asked_for() {
        let mut remote = Remote::default();
        assert!(!may_ask(&remote, 0), "nothing came");
        remote.comes(LAYER, Serial(3));
        remote.was_written(LAYER, 17, 1);
        remote.was_written(Layer(8), 0, 1);
        assert!(may_ask(&remote, 15) && !may_ask(&remote, 16) && !may_ask(&remote, 31));
        assert!(may_ask(&remote, 32) && !remote.may_ask(LAYER, &(0..40)));
        remote.was_written(LAYER, 64 * UNIT_BLOCKS - 1, 2);
        assert!(!may_ask(&remote, 63 * UNIT_BLOCKS) && !may_ask(&remote, 64 * UNIT_BLOCKS));
        assert!(may_ask(&remote, 62 * UNIT_BLOCKS) && may_ask(&remote, 65 * UNIT_BLOCKS));
        remote.was_written(LAYER, 0, u64::MAX / 512);
        assert!(!may_ask(&remote, 32), "the whole disk");
    }

    #[test]
    fn a_footprint_that_is_gone_is_asked_for_no_more() {
        let mut remote = Remote::default();
        remote.comes(LAYER, Serial(3));
        for _ in 0..3 * WINDOW_BLOCKS {
            remote.answered(LAYER, 8, 7);
        }
        assert!(may_ask(&remote, 0));
        for _ in 0..WINDOW_BLOCKS {
            remote.answered(LAYER, 1, 1);
        }
        assert!(!may_ask(&remote, 0));
    }

    #[test]
    fn what_is_left_goes_when_it_is_old_or_comes_back() {
        let mut remote = Remote::default();
        let (volume, now) = (|number: u8| Uuid([number; 16]), Time(5));
        for number in 0..LEFT_MAX as u8 {
            let kept = (Layer(u64::from(number)), Serial(7));
            assert_eq!(remote.leave(now, volume(number), kept), None);
        }
        assert_eq!(
            remote.leave(now, volume(200), (Layer(200), Serial(7))),
            Some(Layer(0))
        );
        assert_eq!(remote.left(volume(0), Serial(7)), None);
        assert_eq!(remote.left(volume(1), Serial(7)), Some(Layer(1)));
        assert_eq!(
            remote.left(volume(1), Serial(8)),
            None,
            "it may lack something"
        );
        assert_eq!(remote.take_left(volume(1)), Some(Layer(1)));
        assert_eq!(
            (
                remote.left(volume(1), Serial(0)),
                remote.take_left(volume(1))
            ),
            (None, None)
        );
        assert_eq!(remote.take_old(now.plus_millis(LEFT_MS - 1)), None);
        assert_eq!(remote.take_old(now.plus_millis(LEFT_MS)), Some(Layer(2)));
    }
}
