//! The `promise` of a volume: one line that says what is lost if this host dies now.
//!
//! Always true: the line follows from policy, write cache and state alone and never promises
//! more than docs/guarantees.md. "Dies" has two meanings that matter to the reader, so the line
//! names both: the host comes back, or it and its SSD are gone for good.

use crate::config::units::{human_bytes, human_seconds};
use crate::unit::copies::Replication;
use engine::snapshot::{State, VolumeSnapshot};
use engine::types::{DestageMode, Policy};

/// `replication`: of a volume that has copies on other hosts, or shall have some.
pub fn promise(volume: &VolumeSnapshot, replication: Option<&Replication>) -> String {
    match volume.policy {
        Policy::Ephemeral => "if this host dies now, everything written since the last reset is \
                              lost, by intent; the origin is untouched"
            .into(),
        Policy::Uncached | Policy::WriteThrough => at_the_origin(volume),
        Policy::WriteBack => write_back(volume, replication),
    }
}

fn at_the_origin(volume: &VolumeSnapshot) -> String {
    if volume.state == State::Held {
        return held(volume);
    }
    match volume.write_cache {
        true => "if this host dies now, nothing that a guest flushed is lost: it is on the origin",
        false => "if this host dies now, nothing acknowledged is lost: it is on the origin",
    }
    .into()
}

fn write_back(volume: &VolumeSnapshot, replication: Option<&Replication>) -> String {
    match volume.state {
        State::Held => return held(volume),
        State::Away => return "nothing: it is not served here".into(),
        State::Damaged => {
            return format!(
                "some dirty blocks of this volume cannot be read any more; if this host and its \
                 SSD are gone, {} are lost",
                dirty(volume)
            );
        }
        State::Clean if volume.dirty_bytes == 0 => {
            return "if this host dies now, nothing is lost: the origin has every acknowledged \
                    write"
                .into();
        }
        State::Clean | State::Dirty | State::Stalled => {}
    }
    if let Some(words) = replication.and_then(|it| copied(volume, it)) {
        return words;
    }
    let back = match volume.write_cache && volume.acked_serial > volume.durable_serial {
        true => "if this host dies now and comes back, only writes not yet flushed are lost",
        false => "if this host dies now and comes back, nothing is lost",
    };
    let image = match volume.effective_destage {
        DestageMode::Atomic => "and the origin is an earlier consistent state",
        DestageMode::InPlace if volume.destaging => "and the origin is in the middle of a destage",
        DestageMode::InPlace => "and the origin is the state of its last destage",
    };
    let stalled = match volume.state {
        State::Stalled => " (the origin does not take it at present)",
        _ => "",
    };
    let lost = match volume.never_aged {
        true => "discarded",
        false => "lost",
    };
    let alone = match replication {
        Some(_) => " (no other host has all of it)",
        None => "",
    };
    format!(
        "{back}; if its SSD is gone too, {} are {lost}{alone}{stalled} {image}",
        dirty(volume)
    )
}

/// Of a volume that other hosts, or the origin, have all flushed data of; `None` where this host
/// alone has some.
fn copied(volume: &VolumeSnapshot, replication: &Replication) -> Option<String> {
    if replication.state == "waiting" {
        // What was answered before is on each host of the set, of which one does not answer.
        return Some(
            "if this host dies now, only writes not yet flushed are lost if it or another host \
             with a copy comes back with its SSD; flushes are not answered at present"
                .into(),
        );
    }
    if replication.at_origin {
        return Some(at_the_origin(volume));
    }
    let complete = replication.complete();
    // Of two copies one may be left.
    let some = replication.real > 0 && complete.len() <= replication.real.into();
    if replication.state != "full" && !some {
        return None;
    }
    let members = replication.members.iter();
    let members = members.filter(|member| member.state == "streaming");
    let everywhere = members.map(|member| member.durable).min()?;
    let everywhere = everywhere.min(volume.durable_serial.0);
    let unflushed = match volume.write_cache && volume.acked_serial.0 > everywhere {
        true => "only writes not yet flushed are lost",
        false => "nothing is lost",
    };
    let have = match complete.len() {
        1 => "has",
        _ => "have",
    };
    Some(format!(
        "if this host dies now, also for good with its SSD, {unflushed}: of what is not at the \
         origin {} {have} a copy",
        complete.join(" and ")
    ))
}

fn held(volume: &VolumeSnapshot) -> String {
    format!(
        "the volume is stopped so that nothing more is lost; {} are not at the origin",
        dirty(volume)
    )
}

fn dirty(volume: &VolumeSnapshot) -> String {
    match volume.oldest_dirty_ns {
        Some(_) if volume.dirty_before_start => format!(
            "{}, some of it from before this daemon started,",
            human_bytes(volume.dirty_bytes)
        ),
        Some(nanos) => format!(
            "{} of up to {} ago",
            human_bytes(volume.dirty_bytes),
            human_seconds(nanos / 1_000_000_000)
        ),
        None => human_bytes(volume.dirty_bytes),
    }
}
