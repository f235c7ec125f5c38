//! Reads of the host to which a volume went: what is left here of its clean blocks.
//!
//! ```text
//! read ─ all of it is here ─▶ tier: copied at once · device: into the buffer ─ checked ─▶ answer
//!   └── a block is not ─▶ gone
//! ```
//!
//! Always true: a read is answered with all of its blocks, each with the checksum that it was kept
//! with, or is refused; the tier keeps and loses nothing for it; a segment is pinned while it is
//! read. Deliberately absent: who may ask, and how the bytes get there.

use super::layers::is_base;
use super::lines::Lines;
use super::remote::{Row, Serving};
use crate::adversary::{Mark, mark};
use crate::event::{Device, Event, LEFT_BLOCKS_MAX, Op, Purpose, Refusal};
use crate::log::Log;
use crate::memory::{Area, Place, Slice};
use crate::outbox::{Cx, Pending};
use crate::ram::{CleanCache, Key, Layer, Lookup, RamTier};
use crate::types::{BLOCK_BYTES, BufferId, RequestId, Serial, Time, Uuid};
use alloc::vec::Vec;
use core::ops::Range;

/// What another host asks for.
#[derive(Clone, Debug)]
pub struct Asked {
    pub request: RequestId,
    pub volume: Uuid,
    /// The asker knows what was destaged behind it.
    pub since: Serial,
    pub blocks: Range<u64>,
    pub buffer: BufferId,
}

impl Asked {
    pub fn of(event: Event) -> Asked {
        let Event::ReadLeft {
            request,
            volume,
            since,
            first_block,
            blocks,
            buffer,
        } = event
        else {
            unreachable!("{event:?} is no read of another host");
        };
        Asked {
            request,
            volume,
            since,
            blocks: first_block..first_block.saturating_add(blocks),
            buffer,
        }
    }
}

impl Lines {
    /// A volume goes to another host, which may ask for what is here of it.
    pub fn leave(&mut self, now: Time, volume: Uuid, (layer, destaged): (Layer, Serial)) {
        self.comes_back(volume);
        if is_base(layer) {
            return;
        }
        self.remote.ends(layer);
        if let Some(gone) = self.remote.leave(now, volume, (layer, destaged)) {
            self.forget_layer(gone);
        }
    }

    /// What was left of a volume is of another time.
    pub fn comes_back(&mut self, volume: Uuid) {
        if let Some(gone) = self.remote.take_left(volume) {
            self.forget_layer(gone);
        }
    }

    pub fn forget_old(&mut self, now: Time) {
        while let Some(gone) = self.remote.take_old(now) {
            self.forget_layer(gone);
        }
    }

    pub fn serve(&mut self, cx: &mut Cx<'_>, (ram, log): (&mut RamTier, &mut Log), asked: Asked) {
        let (request, first_block, buffer) = (asked.request, asked.blocks.start, asked.buffer);
        let count = asked.blocks.end - first_block;
        let fits = (1..=LEFT_BLOCKS_MAX).contains(&count);
        let layer = self.remote.left(asked.volume, asked.since);
        let layer = layer.filter(|_| fits);
        let rows = layer.and_then(|layer| self.rows(cx, (ram, log), &asked, layer));
        let (Some(layer), Some(rows)) = (layer, rows) else {
            return cx.out.reply(request, Err(Refusal::Gone));
        };
        assert!(!is_base(layer), "only own layers go with a volume");
        mark(Mark::ServedLeft);
        if rows.is_empty() {
            return cx.out.reply(request, Ok(()));
        }
        let serving = self.remote.serving.insert(Serving {
            request,
            layer,
            first_block,
            buffer,
            waits: rows.len() as u32,
            rows: rows.clone(),
            good: true,
        });
        for (row, of) in (0..).zip(rows) {
            log.pin(Log::block_addr(of.base));
            let slices = alloc::vec![Slice {
                place: of.place(buffer),
                bytes: u64::from(of.blocks) * BLOCK_BYTES,
            }];
            let offset = log.device_at(Log::block_addr(of.base));
            let (pending, purpose) = (Pending::Serve { serving, row }, Purpose::LineRead);
            cx.transfer(pending, purpose, Device::Cache, Op::Read, offset, slices);
        }
    }

    /// Copies what the tier has, and tells what the device has. `None` where a block is nowhere.
    fn rows(
        &mut self,
        cx: &mut Cx<'_>,
        (ram, log): (&mut RamTier, &Log),
        asked: &Asked,
        layer: Layer,
    ) -> Option<Vec<Row>> {
        let mut rows: Vec<Row> = Vec::new();
        for (at, block) in (0..).zip(asked.blocks.clone()) {
            let key = Key { layer, block };
            if let Lookup::Hit(slot) = ram.lookup(key) {
                let to = Place::new(Area::Buffer(asked.buffer), u64::from(at) * BLOCK_BYTES);
                cx.memory.copy(RamTier::place(slot), to, BLOCK_BYTES);
                continue;
            }
            let base = self.find(cx.now, key)?;
            self.hit(key);
            match rows.last_mut() {
                // Between the blocks of two segments lies a footer.
                Some(row) if (row.at + row.blocks, row.base + row.blocks) == (at, base) => {
                    row.blocks += 1;
                }
                _ => rows.push(Row {
                    at,
                    blocks: 1,
                    base,
                    segment: log.geometry.segment_of(Log::block_addr(base)),
                }),
            }
        }
        let found: u32 = rows.iter().map(|row| row.blocks).sum();
        assert!(
            u64::from(found) <= LEFT_BLOCKS_MAX,
            "no block is read twice"
        );
        Some(rows)
    }

    /// The device has given a row, or not.
    pub fn served(&mut self, cx: &mut Cx<'_>, log: &mut Log, (id, row): (u32, u32), ok: bool) {
        let serving = self.remote.serving.get(id);
        let (layer, buffer) = (serving.layer, serving.buffer);
        let row = serving.rows[row as usize];
        let is_good = |at: u32| {
            let place = row.place(buffer).plus(u64::from(at) * BLOCK_BYTES);
            let sum = cx.memory.checksum(place, BLOCK_BYTES);
            sum == log.sum(Log::block_addr(row.base + at))
        };
        let first = serving.first_block + u64::from(row.at);
        let bad = (0..row.blocks).filter(|at| ok && !is_good(*at));
        let bad: Vec<u64> = bad.map(|at| first + u64::from(at)).collect();
        assert!(serving.waits > 0, "each row ends once");
        log.unpin(row.segment);
        serving.good &= ok && bad.is_empty();
        serving.waits -= 1;
        let over = serving.waits == 0;
        if !ok {
            self.device_failed(cx.now);
        }
        for block in bad {
            self.drop_bad(Key { layer, block }, false);
        }
        if over {
            let serving = self.remote.serving.take(id);
            let result = match serving.good {
                true => Ok(()),
                false => Err(Refusal::Gone),
            };
            cx.out.reply(serving.request, result);
        }
    }
}
