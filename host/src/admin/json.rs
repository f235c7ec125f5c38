//! The documents of `status --json` and `volume show --json`.
//!
//! Always true: all keys of the public interface are present in every state; what this version
//! does not have is null, never a zero that looks measured. Made from plain data only.

use super::promise::promise;
use super::{View, copies, pools};
use crate::cluster::PeerView;
use crate::config::units::human_bytes;
use crate::latency::{self, Distribution, Kind};
use crate::natural;
use crate::unit::Shown;
use crate::unit::copies::CopyShown;
use engine::snapshot::{CacheState, State, VolumeSnapshot};
use engine::types::{BLOCK_BYTES, DestageMode, Policy, SECTOR_BYTES};
use serde_json::{Map, Value, json};

/// The document of `tenuto status --json`.
pub fn status(view: &View) -> Value {
    let engine = &view.look.engine;
    let recovery = &view.look.recovery;
    let dirty: u64 = engine.volumes.iter().map(|volume| volume.dirty_bytes).sum();
    json!({
        "host": view.host_name,
        "cache": {
            "path": view.cache_path.display().to_string(),
            "size_bytes": engine.log_bytes,
            "used_bytes": engine.live_bytes,
            "dirty_bytes": dirty,
            "index_bytes": engine.index_bytes,
            "segments": {
                "free": engine.segments.free,
                "write": engine.segments.write,
                "overlay": engine.segments.overlay,
                "sealed": engine.segments.sealed,
                "replica": null,
                "fill": engine.segments.fill,
                "control": null,
            },
            "segments_reused": engine.segments_reused,
            "evacuated_bytes": engine.evacuated_bytes,
            "checkpoints": engine.checkpoints,
            "errors": engine.cache_errors,
            "state": engine.cache_state.name(),
            "scrub": scrub(view),
            "clean": {
                "bytes": engine.lines.blocks * BLOCK_BYTES,
                "read_bytes": engine.lines.read_bytes,
                "write_bytes": engine.lines.write_bytes,
                "bad_blocks": engine.lines.bad_blocks,
                "errors": engine.lines.errors,
                "segments_retired": engine.lines.segments_retired,
                "reappended_bytes": engine.lines.reappended_blocks * BLOCK_BYTES,
            },
        },
        "ram": ram(view),
        "volumes": volumes(view),
        "peers": peers(view),
        "copies": copies_kept(view),
        "copy_room": copies::room(&engine.copy_room),
        "uptime_seconds": view.uptime.as_secs(),
        "version": env!("CARGO_PKG_VERSION"),
        "drained": view.drained,
        "recovery": {
            "ms": recovery.ms,
            "tail_bytes_discarded": recovery.tail_bytes_discarded,
            "records_replayed": recovery.records_replayed,
            "damage": recovery.damage,
        },
        "connections": view.look.clients.iter().map(|(_, clients)| clients).sum::<u64>(),
    })
}

/// Copies of other hosts' volumes, by name.
fn copies_kept(view: &View) -> Vec<Value> {
    let mut kept: Vec<&CopyShown> = view.look.copies.iter().collect();
    kept.sort_by(|one, other| natural::compare(&one.name, &other.name));
    kept.into_iter().map(copies::copy).collect()
}

fn peers(view: &View) -> Vec<Value> {
    let peers = view.peers.iter();
    let peers = peers.map(|peer| super::cluster::peer(peer, Some(&view.look)));
    peers.collect()
}

/// The scrub under way or the last one; null if there was none.
pub fn scrub(view: &View) -> Value {
    let Some(scrub) = &view.look.engine.scrub else {
        return Value::Null;
    };
    json!({
        "running": scrub.running,
        "complete": scrub.complete,
        "total_bytes": scrub.total_bytes,
        "checked_bytes": scrub.checked_bytes,
        "damaged_bytes": scrub.damaged_bytes,
        "dropped_bytes": scrub.dropped_bytes,
        "bad_footers": scrub.bad_footers,
        "seconds": scrub.took_ns / 1_000_000_000,
        "ended_seconds_ago": scrub.ended_ns.map(|nanos| nanos / 1_000_000_000),
    })
}

fn ram(view: &View) -> Value {
    let engine = &view.look.engine;
    json!({
        "size_bytes": engine.ram_blocks * BLOCK_BYTES,
        "used_bytes": engine.ram_blocks_used * BLOCK_BYTES,
        "stage_bytes": view.stage_bytes,
        "stage_slots": engine.stage_slots,
        "stage_slots_busy": engine.stage_slots_busy,
        "overlay_bytes": view.overlay_ram_bytes,
        "overlay_slots": engine.overlay_slots,
        "overlay_slots_busy": engine.overlay_slots_busy,
    })
}

/// The documents of all volumes that are shown, by name.
pub fn volumes(view: &View) -> Vec<Value> {
    let mut shown: Vec<&VolumeSnapshot> = view.shown().collect();
    shown.sort_by(|one, other| natural::compare(&one.name, &other.name));
    shown.into_iter().map(|known| volume(view, known)).collect()
}

/// The document of `tenuto volume show NAME --json`.
pub fn volume(view: &View, volume: &VolumeSnapshot) -> Value {
    let mut document = json!({
        "name": volume.name,
        "uuid": volume.uuid.to_string(),
        "policy": wanted_policy(view, volume).name(),
        "effective_policy": effective_policy(view, volume).name(),
        "effective_reason": effective_reason(view, volume),
        "write_cache": volume.write_cache,
        "destage": view.configured(&volume.name).map(|known| known.destage.name()),
        "effective_destage": is_destaged(volume).then(|| volume.effective_destage.name()),
        "replicas": replicas(view, volume),
        "group": volume.group,
        "group_reason": group_reason(volume),
        "share": {
            "min_bytes": volume.share.min_bytes,
            "weight": volume.share.weight,
            "auto": view.configured(&volume.name).is_some_and(|known| known.share_auto),
        },
        "block_bytes": block_bytes(view, &volume.name),
        "limit": limit(view, volume),
        "shared": view.configured(&volume.name).is_some_and(|known| known.shared),
        "state": view.state(volume),
        "flags": flags(view, volume),
        "promise": promise(volume, view.replication(volume)),
        "size_bytes": volume.size_bytes,
        "dirty_bytes": volume.dirty_bytes,
        "dirty_writes": volume.dirty_writes,
        "dirty_extents": volume.dirty_extents,
        "dirty_before_start": volume.dirty_before_start,
        "oldest_dirty_seconds": volume.oldest_dirty_ns.map(|nanos| nanos / 1_000_000_000),
        "acked_serial": volume.acked_serial.0,
        "durable_serial": volume.durable_serial.0,
        "destaged_serial": volume.destaged_serial.0,
        "generation": volume.generation.0,
        "overlay": overlay(view, volume),
        "clients": view.clients(volume.id),
        "nbd_socket": socket(view, volume, "nbd"),
        "vhost_socket": socket(view, volume, "vhost"),
    });
    document["image"] = image(view, volume);
    let held = view.look.held(&volume.name);
    document["held"] = held.map_or(Value::Null, |held| held.document(volume));
    if let Some(held) = held {
        document["effective_reason"] = json!(held.reason);
        document["dirty_bytes"] = json!(held.known_bytes(volume));
        if volume.size_bytes == 0 {
            // No ledger and no log tells it.
            document["size_bytes"] = Value::Null;
        }
        document["promise"] = match volume.state {
            State::Away => Value::Null,
            _ => json!("stopped, so that nothing more is lost; see `held`"),
        };
    }
    if let (Value::Object(document), Some(unit)) =
        (&mut document, view.look.units.get(&volume.name))
    {
        document.extend(clustered(replicas(view, volume), unit));
    }
    let counters = counters(view, volume);
    if let (Value::Object(document), Value::Object(counters)) = (&mut document, counters) {
        document.extend(counters);
    }
    document
}

/// Copies on other hosts that it is to have.
fn replicas(view: &View, volume: &VolumeSnapshot) -> u8 {
    let known = view.configured(&volume.name);
    known.map_or(0, |known| known.replicas)
}

/// What is known of a clustered volume.
fn clustered(wanted: u8, unit: &Shown) -> Map<String, Value> {
    let epoch = (unit.epoch > 0).then_some(unit.epoch);
    let depends_on = unit.depends_on.iter();
    let depends_on: Vec<Value> = depends_on
        .map(|(host, bytes)| json!({ "host": host, "bytes": bytes }))
        .collect();
    let document = json!({
        "owner": unit.owner,
        "term": unit.term,
        "unit": unit.unit.map(|unit| unit.to_string()),
        "ownership": unit.state,
        "ownership_reason": unit.reason,
        "replication": copies::document(wanted, unit.replication.as_ref()),
        "drain": {
            "holder": unit.drainer,
            "epoch": epoch,
            "proof": unit.proof,
        },
        "depends_on": depends_on,
    });
    match document {
        Value::Object(document) => document,
        _ => Map::new(),
    }
}

/// What is known of an image that is not raw; null for a raw one.
fn image(view: &View, volume: &VolumeSnapshot) -> Value {
    let Some(image) = view.look.images.get(&volume.name) else {
        return Value::Null;
    };
    json!({
        "format": "qcow2",
        "unit_bytes": image.unit_bytes,
        "chain": image.chain,
        "snapshots": image.snapshots,
        // Of one that is only read nothing is said.
        "guard": volume.written.map(|it| it.guarded),
        "pending_journal_bytes": volume.written.map(|it| it.journal_bytes),
        "metadata_ram_bytes": volume.map_bytes,
        "metadata_ssd_bytes": volume.table_blocks.map(|it| it * BLOCK_BYTES),
    })
}

/// Whether what guests write comes to the origin by destages, or still has to.
fn is_destaged(volume: &VolumeSnapshot) -> bool {
    volume.policy == Policy::WriteBack
}

/// What an ephemeral volume holds of its own; null for all others.
fn overlay(view: &View, volume: &VolumeSnapshot) -> Value {
    let Some(overlay) = &volume.overlay else {
        return Value::Null;
    };
    json!({
        "ram_bytes": overlay.ram_blocks * BLOCK_BYTES,
        "ram_blocks": overlay.ram_blocks,
        "ram_limit_bytes": overlay.ram_limit_bytes,
        "ssd_bytes": overlay.ssd_blocks * BLOCK_BYTES,
        "ssd_blocks": overlay.ssd_blocks,
        "hits": volume.counters.overlay_hits,
        "refused_writes": volume.counters.overlay_refused,
        "age_seconds": overlay.age_ns.map(|nanos| nanos / 1_000_000_000),
        "ended": overlay.ended,
        "qmp": view.look.watched.get(&volume.name).map(|watched| json!({
            "path": watched.path.display().to_string(),
            "connected": watched.connected,
            "resets": watched.resets,
        })),
    })
}

/// The policy that was ordered last; the one in effect may be another.
fn wanted_policy(view: &View, volume: &VolumeSnapshot) -> Policy {
    let known = view.configured(&volume.name).map(|known| known.policy);
    known.unwrap_or(volume.switching_to.unwrap_or(volume.policy))
}

/// Which dirty data the last destage could not read, behind words that say that it could not.
pub(super) fn damaged_ranges(volume: &VolumeSnapshot) -> String {
    let ranges = volume.damaged.iter().map(|span| {
        let (at, bytes) = (span.sector * SECTOR_BYTES, span.sectors * SECTOR_BYTES);
        format!("{bytes} bytes at offset {at}")
    });
    let ranges: Vec<String> = ranges.collect();
    match ranges.as_slice() {
        [] => String::new(),
        ranges => format!(": {}", ranges.join(", ")),
    }
}

/// What a flush is worth at present.
fn effective_policy(view: &View, volume: &VolumeSnapshot) -> Policy {
    let copies = view.replication(volume);
    let copies = copies.is_some_and(|copies| copies.at_origin);
    match copies || volume.flushes_through {
        true => Policy::WriteThrough,
        false => volume.policy,
    }
}

/// Why the volume is not as it was asked to be.
fn effective_reason(view: &View, volume: &VolumeSnapshot) -> Option<String> {
    if let Some(reason) = volume.reason {
        return Some(format!("{reason}{}", damaged_ranges(volume)));
    }
    if let Some(reason) = view.degraded_reason(volume) {
        return Some(reason);
    }
    if volume.flushes_through {
        let words =
            "a backup window is open, in which flushes are answered when its image has them";
        return Some(words.into());
    }
    let wanted = wanted_policy(view, volume);
    if let Some(next) = volume.switching_to {
        let next = next.name();
        let dirty = human_bytes(volume.dirty_bytes);
        return Some(match volume.dirty_bytes {
            0 => format!("is changing to {next}"),
            _ => format!("is changing to {next}; {dirty} are not at the origin yet"),
        });
    }
    if view.drained && wanted == Policy::WriteBack && volume.policy == Policy::WriteThrough {
        return Some("the host is drained; `tenuto drain --undo` ends that".into());
    }
    if wanted != volume.policy && volume.ready {
        let wanted = wanted.name();
        return Some(format!(
            "the change to {wanted} did not succeed; order it again"
        ));
    }
    let asked = view.configured(&volume.name).map(|known| known.destage);
    let in_place = volume.policy == Policy::WriteBack
        && asked == Some(DestageMode::Atomic)
        && !volume.journal_possible;
    in_place.then(|| {
        "is destaged in place, because no journal can lie beside its origin; name a place with \
         `journal`"
            .into()
    })
}

/// The logical block that guests are shown.
fn block_bytes(view: &View, name: &str) -> u32 {
    view.configured(name).map_or(512, |it| it.block_bytes)
}

/// What the guest may ask for in a second; nothing is limited by zero.
fn limit(view: &View, volume: &VolumeSnapshot) -> Value {
    let configured = view.configured(&volume.name);
    let limit = configured.map(|it| it.limit).unwrap_or_default();
    let waits = view.look.waits.get(&volume.id).copied().unwrap_or_default();
    json!({
        "iops": limit.iops,
        "bandwidth_bytes": limit.bandwidth_bytes,
        "burst_ms": limit.burst_ms,
        "waits": waits.count,
        "waited_ms": waits.nanos / 1_000_000,
    })
}

/// What keeps the volumes of a group from standing at one point in time at their origins.
fn group_reason(volume: &VolumeSnapshot) -> Option<&'static str> {
    if volume.group_waits {
        return Some("nothing of the group is destaged before all its volumes are there");
    }
    volume.group_in_place.then_some(
        "a volume of the group is destaged in place, so that their origins stand at one point in \
         time only between destages",
    )
}

fn counters(view: &View, volume: &VolumeSnapshot) -> Value {
    let counters = &volume.counters;
    let origin = &counters.origin;
    let flow = &volume.flow;
    let measured = view.look.latency.get(&volume.id);
    json!({
        "reads": {
            "requests": counters.reads.requests,
            "bytes": counters.reads.bytes,
            "ram_hits": counters.reads.ram_hits,
            "ssd_hits": counters.reads.ssd_hits,
            "origin": counters.reads.origin,
            "remote": counters.reads.remote,
            "remote_bytes": counters.reads.remote_bytes,
        },
        "writes": {
            "requests": counters.writes.requests,
            "bytes": counters.writes.bytes,
            "elided_bytes": counters.writes.elided_bytes,
        },
        "discards": counters.discards,
        "dropped_discards": counters.dropped_discards,
        "flushes": counters.flushes,
        "origin": {
            "path": volume.origin,
            "reads": origin.reads,
            "read_bytes": origin.read_bytes,
            "writes": origin.writes,
            "write_bytes": origin.write_bytes,
            "journal_bytes": origin.journal_bytes,
            "journal_requests": origin.journal_requests,
            "syncs": origin.syncs,
            "zeroed_bytes": origin.zeroed_bytes,
            "errors": origin.errors,
            "latency_us": { "p50": origin.latency.quantile_us(500),
                            "p99": origin.latency.quantile_us(990) },
        },
        "ssd": {
            "read_bytes": counters.ssd_read_bytes,
            "write_bytes": counters.ssd_write_bytes,
            "recalled_bytes": counters.recalled_bytes,
        },
        "checksum_errors": counters.checksum_errors,
        "waiting_requests": volume.waiting_requests,
        "flow_control": {
            "active": flow.active,
            "delay_us": flow.delay_ns / 1000,
            "reason": flow.reason,
            "held_writes": flow.held_writes,
            "origin_latency_us": (flow.latency_ns > 0).then_some(flow.latency_ns / 1000),
        },
        "latency_us": {
            "read": latency_of(measured.map(|it| it.of(Kind::Read))),
            "write": latency_of(measured.map(|it| it.of(Kind::Write))),
            "flush": latency_of(measured.map(|it| it.of(Kind::Flush))),
        },
        "latency_window_seconds": measured.map_or(0, |it| it.window_ns / 1_000_000_000),
    })
}

fn latency_of(distribution: Option<&Distribution>) -> Value {
    let quantile = |per_mille| distribution?.quantile_us(per_mille);
    let coarse = distribution.map_or([0; latency::COARSE], Distribution::coarse);
    let classes = distribution.into_iter().flat_map(Distribution::classes);
    json!({
        "p50": quantile(500),
        "p99": quantile(990),
        "p999": quantile(999),
        "counts": counts(&coarse),
        "classes_ns": classes.map(|(bound, count)| [bound, count]).collect::<Vec<_>>(),
    })
}

/// Requests by latency: at place n those of 2^n to 2^(n+1) microseconds, the first one also what
/// was faster. Empty places at the end are left out.
fn counts(counts: &[u64]) -> &[u64] {
    let used = counts.iter().rposition(|&count| count > 0);
    &counts[..used.map_or(0, |last| last + 1)]
}

fn flags(view: &View, volume: &VolumeSnapshot) -> Vec<&'static str> {
    let known = view.configured(&volume.name);
    let pairs = [
        ("orphan", view.is_orphan(volume)),
        ("opening", !volume.ready && !view.is_orphan(volume)),
        ("read-only", known.is_some_and(|known| known.read_only)),
        ("destaging", volume.destaging),
        ("quiesced", volume.rests),
        ("through", volume.flushes_through),
        ("slowed", volume.flow.active),
        (
            "in-place",
            volume.policy == Policy::WriteBack
                && known.is_some_and(|known| known.destage != volume.effective_destage),
        ),
        (
            "base-changed",
            volume.base_changed || volume.overlay_misfits,
        ),
        ("checksum-errors", volume.counters.checksum_errors > 0),
        (
            "overlay-full",
            volume.overlay.is_some_and(|overlay| overlay.full),
        ),
        (
            "guest-ended",
            volume.overlay.is_some_and(|overlay| overlay.ended),
        ),
    ];
    pairs
        .into_iter()
        .filter(|(_, set)| *set)
        .map(|(flag, _)| flag)
        .collect()
}

/// Where guests find the volume, if they find it there.
fn socket(view: &View, volume: &VolumeSnapshot, kind: &str) -> Option<String> {
    let exports = view.configured(&volume.name)?.exports;
    let is_there = match kind {
        "nbd" => exports.nbd,
        _ => exports.vhost_user,
    };
    let path = view.run_dir.join(format!("{}.{kind}.sock", volume.name));
    is_there.then(|| path.display().to_string())
}

fn link_troubles(view: &View) -> Vec<String> {
    if view.has_no_links {
        let line = "the cluster has no links from this host; see the log of its start";
        return vec![line.into()];
    }
    let down = view.peers.iter().filter(|peer| peer.state == "down");
    let line = |peer: &PeerView| {
        let name = &peer.member.name;
        let why = peer.trouble.as_deref().unwrap_or("no link was made yet");
        format!("host {name} is down: {why}")
    };
    down.map(line).collect()
}

/// What `status -x` prints: one line for everything that is not as it should be.
pub fn troubles(view: &View) -> Vec<String> {
    let look = &view.look;
    let mut lines = [look.recovery.damage.clone(), link_troubles(view)].concat();
    lines.extend(pools::troubles(look));
    for volume in view.shown() {
        let name = &volume.name;
        let unit = view.look.units.get(name).filter(|unit| unit.is_wrong());
        let wrong = unit.and_then(|unit| unit.reason.as_deref());
        if volume.state == State::Away {
            lines.extend(wrong.map(|reason| format!("volume {name} is away: {reason}")));
            continue;
        }
        let here = unit.is_some_and(|unit| unit.here);
        let wrong = wrong.filter(|_| here);
        lines.extend(wrong.map(|reason| format!("volume {name} is not destaged: {reason}")));
        if let Some(held) = view.look.held(name) {
            lines.push(format!("volume {name} is held: {}", held.line(volume)));
            continue;
        }
        let reason = volume.reason.map_or(String::new(), |reason| {
            format!(": {reason}{}", damaged_ranges(volume))
        });
        match volume.state {
            State::Clean if volume.past_log => {
                lines.push(format!("volume {name} is uncached{reason}"));
            }
            State::Clean | State::Dirty => {}
            state => lines.push(format!("volume {name} is {}{reason}", state.name())),
        }
        lines.extend(copies::trouble(view, volume));
        if volume.group_waits && volume.dirty_bytes > 0 {
            let group = &volume.group;
            lines.push(format!(
                "volume {name} is not destaged: volumes of its group {group} are missing"
            ));
        }
        if view.is_orphan(volume) {
            lines.push(format!(
                "volume {name} is an orphan: no configuration names it"
            ));
        }
        if volume.overlay.is_some_and(|overlay| overlay.full) {
            let refused = volume.counters.overlay_refused;
            lines.push(format!(
                "volume {name} has no more room in its overlay: {refused} writes were answered \
                 with `no space left`"
            ));
        }
        if volume.counters.checksum_errors > 0 {
            let errors = volume.counters.checksum_errors;
            lines.push(format!("volume {name} has met {errors} checksum errors"));
        }
    }
    lines.extend(look.noticed.lasting.iter().cloned());
    let errors = look.engine.cache_errors;
    match look.engine.cache_state {
        CacheState::Good if errors == 0 => {}
        CacheState::Good => lines.push(format!("the cache device has failed {errors} requests")),
        CacheState::Failing => lines.push(format!(
            "the cache device fails ({errors} requests so far); guests that flush wait for it"
        )),
        // That line is among what was noticed.
        CacheState::Gone => {}
        CacheState::Failed => lines.push(format!(
            "the cache device has failed ({errors} requests); write-back volumes do without it \
             until it answers again"
        )),
    }
    lines
}
