//! The `promise` of a volume: one line that says what is lost if this host dies now.
//!
//! Always true: the line follows from policy, write cache and state alone and never promises
//! more than docs/guarantees.md. "Dies" has two meanings that matter to the reader, so the line
//! names both: the host comes back, or it and its SSD are gone for good.

use crate::config::units::{human_bytes, human_seconds};
use engine::snapshot::{State, VolumeSnapshot};
use engine::types::{DestageMode, Policy};

pub fn promise(volume: &VolumeSnapshot) -> String {
    match volume.policy {
        Policy::Ephemeral => "if this host dies now, everything written since the last reset is \
                              lost, by intent; the origin is untouched"
            .into(),
        Policy::Uncached | Policy::WriteThrough => at_the_origin(volume),
        Policy::WriteBack => write_back(volume),
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

fn write_back(volume: &VolumeSnapshot) -> String {
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
    format!(
        "{back}; if its SSD is gone too, {} are {lost}{stalled} {image}",
        dirty(volume)
    )
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
