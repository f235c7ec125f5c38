//! Writes that go straight to the origin: the way of uncached and write-through volumes.
//!
//! A write is acknowledged when the origin has it, a flush when the origin is synced. There is no
//! copy in the log: once the origin has a write nobody would ever read that copy, neither a reader,
//! who finds the block in the read tier or at the origin, nor a recovery, for which the origin is
//! the truth; it would cost the SSD every write and give nothing. Small write-through writes go to
//! the read tier instead, and from there, once they are asked for, to the clean blocks on the SSD.
//!
//! Always true of write-through: writes that overlap reach the origin one after the other, in the
//! order they came; from the issue of a write to its end its blocks are not in the tier and nobody
//! fills them, so neither a fill it has overtaken nor half of it is ever served from there; what
//! the tier holds of it afterwards are the bytes that the origin has acknowledged. A failed sync
//! leaves open what the origin holds, so the tier forgets the volume. Uncached writes take no
//! order, as on a plain disk; those of an image that allocates do. Deliberately absent: writes that
//! have no place in such an image yet ([`super::allocate`]).

use super::Core;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, IoError, Op, Purpose, Refusal};
use crate::memory::{Place, Slice};
use crate::outbox::{Cx, Pending};
use crate::ram::Layer;
use crate::slab::Slab;
use crate::types::{BLOCK_SECTORS, Policy, RequestId, SECTOR_BYTES, Span, Time, VolumeId};
use alloc::vec::Vec;

/// A write, discard or flush on its way to the origin.
pub struct DirectIo {
    volume: VolumeId,
    request: RequestId,
    kind: Kind,
    /// A sync follows before it is acknowledged.
    sync_after: bool,
    /// Requests that it consists of, as far as they have not ended, and the first error.
    waits: u32,
    failed: Option<IoError>,
}

impl DirectIo {
    pub fn volume(&self) -> VolumeId {
        self.volume
    }
}

/// What goes past the log: requests of guests, and the volumes with some that allocate.
#[derive(Default)]
pub(super) struct Direct {
    ios: Slab<DirectIo>,
    /// Volumes with direct writes that allocate.
    allocating: Vec<VolumeId>,
}

impl Direct {
    fn begin(&mut self, io: DirectIo) -> u32 {
        assert!(io.failed.is_none(), "it has just begun");
        self.ios.insert(io)
    }

    pub(super) fn get(&mut self, call: u32) -> &mut DirectIo {
        self.ios.get(call)
    }

    fn end(&mut self, call: u32) -> DirectIo {
        let io = self.ios.take(call);
        assert!(io.waits == 0, "nothing of it is in flight");
        io
    }

    /// Something of a volume waits for a place in its image.
    pub(super) fn allocates(&mut self, id: VolumeId) {
        if !self.allocating.contains(&id) {
            self.allocating.push(id);
        }
    }

    pub(super) fn is_allocating(&self) -> bool {
        !self.allocating.is_empty()
    }

    /// They are looked at now; those that are not at their end are named again.
    pub(super) fn take_allocating(&mut self) -> Vec<VolumeId> {
        core::mem::take(&mut self.allocating)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Write {
        span: Span,
        source: Place,
        /// The layer that may hold it when the origin has it; none if it began without order.
        layer: Option<Layer>,
    },
    Zero,
    /// The guest asked for it, or it follows a write.
    Sync,
}

impl Core {
    /// Sends a write to the origin. False if it has to wait for one that it overlaps.
    pub(super) fn write_direct(
        &mut self,
        cx: &mut Cx<'_>,
        who: (VolumeId, RequestId),
        span: Span,
        source: Place,
        fua: bool,
    ) -> bool {
        let bytes = span.sectors * SECTOR_BYTES;
        let volume = self.volume(who.0);
        let cached = volume.policy == Policy::WriteThrough;
        let layer = cached.then_some(volume.layer());
        let kind = Kind::Write {
            span,
            source,
            layer,
        };
        let Some(call) = self.begin_direct(who, span, kind, fua) else {
            return false;
        };
        let places = match self.volume(who.0).allocates() {
            true => self.placed(who.0, span),
            false => Some(alloc::vec![(span, self.volume(who.0).written_at(span).1)]),
        };
        let Some(places) = places else {
            self.allocate(cx, who.0, call, (span, Some(source)));
            return true;
        };
        let requests = places.len() as u32;
        assert!(requests > 0, "a write has sectors");
        self.direct.get(call).waits = requests;
        let volume = self.volume(who.0);
        volume.requests_begin(requests - 1);
        volume.counters.origin.writes += u64::from(requests);
        volume.counters.origin.write_bytes += bytes;
        for (part, at) in places {
            let slices = alloc::vec![Slice {
                place: source.plus((part.sector - span.sector) * SECTOR_BYTES),
                bytes: part.sectors * SECTOR_BYTES,
            }];
            let (pending, device) = (Pending::Direct { call }, Device::Origin(who.0));
            cx.transfer(pending, Purpose::GuestWrite, device, Op::Write, at, slices);
        }
        true
    }

    /// The same for a discard or a write of zeroes.
    pub(super) fn zero_direct(
        &mut self,
        cx: &mut Cx<'_>,
        who: (VolumeId, RequestId),
        span: Span,
        fua: bool,
        allocate: bool,
    ) -> bool {
        let Some(call) = self.begin_direct(who, span, Kind::Zero, fua) else {
            return false;
        };
        let volume = self.volume(who.0);
        if volume.allocates() {
            self.allocate(cx, who.0, call, (span, None));
            return true;
        }
        volume.counters.origin.writes += 1;
        let (device, at) = volume.written_at(span);
        let (pending, bytes) = (Pending::Direct { call }, span.sectors * SECTOR_BYTES);
        let op = Op::Zero { allocate };
        cx.order(pending, Purpose::GuestWrite, device, op, at, bytes);
        true
    }

    /// Enters a write among those in flight, and takes its blocks out of the tier.
    fn begin_direct(
        &mut self,
        (id, request): (VolumeId, RequestId),
        span: Span,
        kind: Kind,
        fua: bool,
    ) -> Option<u32> {
        let volume = self.volume(id);
        assert!(
            volume.policy.is_direct() && !volume.is_dirty(),
            "the origin is written past the log only while the log holds nothing newer"
        );
        let cached = volume.policy == Policy::WriteThrough;
        let in_turn = (cached || volume.is_mapped()) && !has(Bug::WriteSideBySide);
        if in_turn && volume.writes_directly_to(span) {
            mark(Mark::OverlapWaits);
            return None;
        }
        let layer = volume.layer();
        volume.request_begins();
        let call = DirectIo {
            volume: id,
            request,
            kind,
            sync_after: fua || !volume.tuning().write_cache,
            waits: 1,
            failed: None,
        };
        let call = self.direct.begin(call);
        self.volume(id).direct_begins(call, span);
        if cached && !has(Bug::KeepOverwritten) {
            let (first, end) = blocks_of(span);
            self.lines
                .forget_blocks(&mut self.ram, layer, first, end - first);
        }
        Some(call)
    }

    pub(super) fn sync_origin(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let volume = self.volume(id);
        volume.request_begins();
        volume.counters.origin.syncs += 1;
        let call = self.direct.begin(DirectIo {
            volume: id,
            request,
            kind: Kind::Sync,
            sync_after: false,
            waits: 1,
            failed: None,
        });
        let (pending, device) = (Pending::Direct { call }, Device::Origin(id));
        let op = Op::sync_unless(Bug::SkipDirectSync);
        cx.order(pending, Purpose::GuestWrite, device, op, 0, 0);
    }

    pub(super) fn call_done(
        &mut self,
        cx: &mut Cx<'_>,
        at: u32,
        result: Result<(), IoError>,
        started: Time,
    ) {
        let call = self.direct.get(at);
        let id = call.volume;
        call.waits -= 1;
        call.failed = call.failed.or(result.err());
        let (left, result) = (call.waits, call.failed.map_or(Ok(()), Err));
        let volume = self.volume(id);
        volume.request_ends();
        if left > 0 {
            return;
        }
        let call = self.direct.end(at);
        let volume = self.volume(id);
        volume.direct_ends(at);
        volume.counters.origin.latency.add_ns(cx.now.since(started));
        volume.origin_answered(cx.now, result);
        let result = result.map_err(|error| match error {
            IoError::Failed | IoError::Away | IoError::Damaged => Refusal::Io,
            IoError::NoSpace => Refusal::OriginFull,
        });
        match (call.kind, result) {
            (
                Kind::Write {
                    span,
                    source,
                    layer: Some(layer),
                },
                Ok(()),
            ) if layer == volume.layer() => self.ram.keep_written(cx.memory, layer, span, source),
            (Kind::Sync, Err(_)) if !has(Bug::BelieveAfterFailedSync) => {
                volume.allocator_mut().doubt();
                self.renew_layer(id);
            }
            _ => {}
        }
        if call.sync_after && result.is_ok() && !has(Bug::IgnoreDirectFua) {
            self.sync_origin(cx, id, call.request);
        } else {
            cx.out.reply(call.request, result);
        }
        self.touch_if_awaited(id);
    }
}

/// The blocks that a range touches: the first, and the one behind the last.
fn blocks_of(span: Span) -> (u64, u64) {
    let end = span.end().div_ceil(BLOCK_SECTORS);
    (span.sector / BLOCK_SECTORS, end)
}
