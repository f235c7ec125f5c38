//! The engine as plain data.
//!
//! Always true: a snapshot changes nothing and holds nothing of the engine.

use super::Core;
use super::room::batch_max;
use crate::event::{Credit, Refusal};
use crate::flow::Reason;
use crate::layout::{self, Part};
use crate::log::StreamKind;
use crate::snapshot::{
    CopyRoom, CopySnapshot, FlowSnapshot, OverlaySnapshot, Snapshot, State, VolumeSnapshot,
};
use crate::types::{BLOCK_BYTES, Policy, Serial, Span, Time, VolumeId};
use crate::volume::quiesce::rest_is_short;
use crate::volume::{Bypass, Epoch, Volume};
use alloc::vec::Vec;

/// An origin that has not answered for so long is shown as stalled.
const SILENT_NS: u64 = 10_000_000_000;
/// Ranges that cannot be read and are told of one volume.
const DAMAGED_SHOWN_MAX: usize = 16;

/// What the destage of a volume could not read.
fn damaged(volume: &Volume) -> Vec<Span> {
    let met = volume.destage().map_or(&[][..], |it| it.damaged());
    met.iter().copied().take(DAMAGED_SHOWN_MAX).collect()
}

impl Core {
    /// The parts of a range from its start on; see [`crate::layout`].
    pub fn layout(&self, id: VolumeId, span: Span, parts_max: usize) -> Result<Vec<Part>, Refusal> {
        let volume = self.volumes.get(id).ok_or(Refusal::Gone)?;
        if volume.shown_state() == State::Held {
            return Err(Refusal::Held);
        }
        if span.end() > volume.sectors() {
            return Err(Refusal::OutOfRange);
        }
        let maps = volume.epochs.iter().rev().map(|epoch| &epoch.map);
        let mut parts = layout::layout(maps, span, parts_max);
        if volume.is_unreadable() {
            layout::assume_data(&mut parts);
        }
        Ok(parts)
    }

    /// What is here of one volume; looks at no other.
    pub fn copy(&self, id: VolumeId) -> Option<CopySnapshot> {
        let volume = self.volumes.get(id)?;
        let unread = volume.state() == State::Damaged || !damaged(volume).is_empty();
        Some(CopySnapshot {
            uuid: volume.uuid(),
            size_bytes: volume.size_bytes(),
            policy: volume.policy,
            attached: volume.is_attached(),
            acked: volume.acked(),
            durable: self.durable_serial(volume),
            destaged: destaged_serial(volume),
            written: written_of(volume),
            end: self.end_of(volume),
            dirty: volume.is_dirty(),
            dirty_bytes: volume.dirty_bytes(),
            damaged: volume.has_damaged_log() || unread,
            replica: volume.replica_snapshot(),
            credit: self.credit(id),
            peers: volume.replication.shown(),
            at_origin: volume.replication.is_at_origin(),
            rescues: volume.bypass().is_rescue(),
            past_log: volume.bypass().is_past_log(),
            rest_is_short: rest_is_short(volume),
        })
    }

    /// What the owner of a copy is told.
    pub fn credit(&self, id: VolumeId) -> Option<Credit> {
        self.shares.credit(self.volumes.get(id)?, self.budgets())
    }

    pub fn show_copy_room(&self) -> CopyRoom {
        let batch_max = batch_max(self.scratch.piece_bytes());
        self.shares.show_copy_room(self.budgets(), batch_max)
    }

    pub fn snapshot(&self, now: Time) -> Snapshot {
        let gauge = self.log.gauge();
        let (stage_slots, stage_slots_busy) = self.log.slots_of(StreamKind::Writes);
        let (overlay_slots, overlay_slots_busy) = self.log.slots_of(StreamKind::Overlay);
        let maps: u64 = self
            .volumes
            .iter()
            .flat_map(|volume| &volume.epochs)
            .map(|epoch| epoch.map.bytes())
            .sum();
        Snapshot {
            volumes: self.volumes.iter().map(|v| self.show(v, now)).collect(),
            log_bytes: self.log.geometry.log_bytes(),
            dirty_bytes_max: gauge.capacity * BLOCK_BYTES,
            live_bytes: gauge.live * BLOCK_BYTES,
            copy_room: self.show_copy_room(),
            index_bytes: self.log.index_bytes()
                + self.ram.index_bytes()
                + self.lines.index_bytes()
                + maps,
            segments: self.log.counts(),
            ram_blocks: self.ram.blocks(),
            ram_blocks_used: self.ram.used(),
            stage_slots,
            stage_slots_busy,
            overlay_slots,
            overlay_slots_busy,
            evacuated_bytes: self.log.counters.evacuated_bytes,
            segments_reused: self.log.counters.segments_reused,
            log_writes: self.log.counters.writes,
            log_write_ns: self.log.counters.write_ns,
            cache_errors: self.log.counters.cache_errors,
            cache_state: self.health.state(),
            checkpoints: self.checkpoint.written,
            lines: self.lines.snapshot(),
            scrub: self.scrub.show(now),
        }
    }

    /// Everything up to this serial is durable.
    fn durable_serial(&self, volume: &Volume) -> Serial {
        match volume.epochs.back() {
            Some(epoch) if volume.policy == Policy::WriteBack => {
                let durable = |e: &&crate::volume::Epoch| e.last_seq <= self.log.durable;
                if epoch.last_seq <= self.log.durable {
                    volume.acked()
                } else {
                    let epochs = volume.epochs.iter().rev();
                    epochs
                        .into_iter()
                        .find(durable)
                        .map_or(volume.destaged(), |e| e.last_serial)
                }
            }
            _ => volume.acked(),
        }
    }

    /// What a start finds at least, in order and without a gap.
    fn end_of(&self, volume: &Volume) -> Serial {
        let durable = |epoch: &&Epoch| epoch.last_seq <= self.log.durable;
        let newest = written_of(volume);
        if volume.epochs.back().is_none_or(|it| durable(&it)) {
            return newest;
        }
        let epoch = volume.epochs.iter().rev().find(durable);
        let end = epoch.map_or(Serial(0), |epoch| epoch.last_serial);
        end.min(newest).max(volume.destaged())
    }

    /// Why a volume is not as it is configured; `of_state` where nothing else says it.
    fn why(&self, volume: &Volume, of_state: Option<&'static str>) -> Option<&'static str> {
        let misfit = volume.misfit();
        (misfit.map(|_| "its image is not the one that it knows"))
            .or(volume.switch_reason())
            .or(self.bypass_reason(volume))
            .or(of_state)
    }

    fn show_overlay(&self, volume: &Volume, now: Time) -> Option<OverlaySnapshot> {
        (volume.policy == Policy::Ephemeral).then(|| {
            let holding = self.log.usage(volume.quota_owner());
            OverlaySnapshot {
                ram_blocks: holding.ram,
                ssd_blocks: holding.ssd,
                ram_limit_bytes: volume.tuning().overlay_ram_bytes,
                age_ns: volume.overlay_since().map(|since| now.since(since)),
                ended: volume.has_ended(),
                full: volume.is_overlay_full() && holding.ram + holding.ssd > 0,
            }
        })
    }

    fn show(&self, volume: &Volume, now: Time) -> VolumeSnapshot {
        let (group_waits, group_in_place) = self.group_state(volume);
        let (oldest, began) = (volume.epochs.front(), self.service.began(now));
        let (state, reason) = state_of(volume, now);
        VolumeSnapshot {
            misfit: volume.misfit(),
            overlay_misfits: volume.lies_on_another(),
            base_changed: volume.base_has_changed(),
            id: volume.id(),
            damaged: damaged(volume),
            name: volume.name().into(),
            uuid: volume.uuid(),
            origin: volume.origin().into(),
            policy: volume.policy,
            switching_to: (volume.switches_to()).filter(|wanted| *wanted != volume.policy),
            write_cache: volume.tuning().write_cache,
            effective_destage: volume.effective_destage(),
            journal_possible: volume.has_journal_place(),
            rests: volume.rests(),
            flushes_through: volume.replication.flushes_through(),
            never_aged: volume.tuning().destage_after_ms.is_none(),
            share: volume.tuning().share,
            group: self.group_name(volume),
            group_waits,
            group_in_place,
            state,
            reason: self.why(volume, reason),
            past_log: volume.bypass() == Bypass::Bypassed,
            orphan: !volume.is_attached(),
            ready: volume.is_ready(),
            size_bytes: volume.size_bytes(),
            dirty_bytes: volume.dirty_bytes(),
            dirty_writes: volume.epochs.iter().map(|epoch| epoch.writes).sum(),
            dirty_extents: volume.dirty_extents(),
            oldest_dirty_ns: oldest.map(|epoch| now.since(epoch.opened.max(began))),
            dirty_before_start: oldest.is_some_and(Epoch::is_recovered),
            acked_serial: volume.acked(),
            durable_serial: self.durable_serial(volume),
            destaged_serial: destaged_serial(volume),
            generation: volume.generation(),
            waiting_requests: volume.waiting().len() as u64,
            flow: FlowSnapshot {
                active: volume.flow.is_active(),
                delay_ns: volume.flow.delay_ns(),
                reason: volume.flow.reason().map(Reason::name),
                latency_ns: volume.flow.latency_ns(),
                held_writes: volume.flow.held_writes,
            },
            destaging: volume.is_destaging(),
            counters: volume.counters,
            lineage: volume.standing().lineage,
            recovered_serial: volume.recovered_upto(),
            replica: volume.replica_snapshot(),
            peers: volume.replication.shown(),
            overlay: self.show_overlay(volume, now),
            map_bytes: volume.map().map(|map| self.maps.bytes(map)),
            table_blocks: (volume.map()).map(|map| self.lines.blocks_of(self.maps.tables(map))),
            written: volume.written(),
        }
    }
}

/// The origin has everything up to here. Only a volume with a log counts it.
fn destaged_serial(volume: &Volume) -> Serial {
    match volume.policy {
        Policy::WriteBack => volume.destaged(),
        Policy::Uncached | Policy::WriteThrough | Policy::Ephemeral => Serial(0),
    }
}

/// The newest write that counts.
fn written_of(volume: &Volume) -> Serial {
    if volume.is_replica() {
        return volume.history_end();
    }
    let newest = volume.epochs.back().map(|epoch| epoch.last_serial);
    newest.unwrap_or_default().max(volume.destaged())
}

/// How a volume is shown, and why.
fn state_of(volume: &Volume, now: Time) -> (State, Option<&'static str>) {
    let (state, reason) = (volume.shown_state(), volume.reason());
    if !matches!(state, State::Clean | State::Dirty) {
        return (state, reason);
    }
    if volume.flow.is_silent(now, SILENT_NS) {
        return (State::Stalled, Some("the origin does not answer"));
    }
    match volume.origin_fails(now) {
        Some(fails) => (State::Stalled, Some(fails)),
        None => (state, reason),
    }
}
