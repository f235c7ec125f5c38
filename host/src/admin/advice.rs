//! What the daemon has learned of its guests: `tenuto advise`, and the weights of `share = "auto"`.
//!
//! Owns the curves while the daemon runs. Always true: they are fed once a second by the observer
//! and nothing waits for them; a weight is given only to volumes whose `share` is `"auto"`, at most
//! once in [`WEIGH`], and not for less than a fifth. Deliberately absent: what follows from figures
//! ([`crate::advise`]).

use super::{Admin, View};
use crate::advise::curves::Curves;
use crate::advise::{Advice, Known, Size, Sizes, VolumeAdvice, advise, weights};
use crate::config::Volume;
use crate::error::Result;
use engine::event::Share;
use engine::snapshot::VolumeSnapshot;
use engine::types::{BLOCK_BYTES, VolumeId};
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// How often weights follow what is written.
const WEIGH: Duration = Duration::from_secs(60);

/// What was found, behind a lock of its own: nothing on the data path takes it.
#[derive(Default)]
pub struct Advisor {
    learned: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    curves: Curves,
    since_weighed: f64,
}

impl Advisor {
    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn known(view: &View, volume: &VolumeSnapshot) -> Known {
    let configured = view.configured(&volume.name);
    Known {
        id: volume.id,
        name: volume.name.clone(),
        policy: volume.policy,
        weight: volume.share.weight,
        destage_after: configured
            .and_then(|known| known.destage_after_ms)
            .map(Duration::from_millis),
    }
}

fn all_known(view: &View) -> Vec<Known> {
    view.shown().map(|volume| known(view, volume)).collect()
}

fn sizes(view: &View) -> Sizes {
    let engine = &view.look.engine;
    let dirty: u64 = engine.volumes.iter().map(|it| it.dirty_bytes).sum();
    Sizes {
        ram_bytes: engine.ram_blocks * BLOCK_BYTES,
        ssd_bytes: engine.log_bytes.saturating_sub(dirty),
        dirty_bytes: engine.dirty_bytes_max,
    }
}

fn written(volume: &VolumeSnapshot) -> (VolumeId, u64) {
    let writes = &volume.counters.writes;
    (volume.id, writes.bytes)
}

impl Admin {
    /// What the last second has shown.
    pub(super) fn learn(&self, view: &View, seconds: f64) {
        // A daemon that is stopping has nothing to tell any more.
        let Ok(samples) = self.machine.take_samples() else {
            return;
        };
        let written: Vec<_> = view.shown().map(written).collect();
        let mut learned = self.advisor.learned();
        learned.curves.add(&samples, &written, seconds);
        learned.since_weighed += seconds;
        if learned.since_weighed < WEIGH.as_secs_f64() {
            return;
        }
        learned.since_weighed = 0.0;
        if !view.volumes.iter().any(|volume| volume.share_auto) {
            return;
        }
        let figures = learned.curves.figures();
        drop(learned);
        let volumes = all_known(view);
        for (volume, weight) in volumes.iter().zip(weights(&figures, &volumes)) {
            self.weigh(view, volume, weight);
        }
    }

    fn weigh(&self, view: &View, volume: &Known, weight: u32) {
        let configured = view.configured(&volume.name);
        let Some(settings) = configured.filter(|it| it.share_auto).map(Volume::settings) else {
            return;
        };
        let now = volume.weight;
        if weight.abs_diff(now) * 5 < now {
            return;
        }
        // An order that is under way may take as long as an origin does; a minute later is as good.
        let _order = match self.order.try_lock() {
            Ok(order) => order,
            Err(TryLockError::Poisoned(order)) => order.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let mut settings = settings;
        settings.share = Share {
            weight,
            ..settings.share
        };
        match self.machine.tune(settings) {
            Ok(()) => tracing::debug!("volume {}: weight {weight}, was {now}", volume.name),
            Err(error) => tracing::debug!("volume {}: weight {weight}: {error}", volume.name),
        }
    }

    pub fn advice(&self) -> Result<Value> {
        let view = self.view()?;
        let figures = self.advisor.learned().curves.figures();
        let advice = advise(figures, &all_known(&view), sizes(&view));
        Ok(document(&view, &advice))
    }
}

/// Three digits are more than a sample is worth.
fn ratio(ratio: Option<f64>) -> Value {
    json!(ratio.map(|ratio| (ratio * 1000.0).round() / 1000.0))
}

fn tier(sizes: &[Size]) -> Value {
    let at = |size: &Size| json!({ "bytes": size.bytes, "hit_ratio": ratio(size.hit_ratio) });
    sizes.iter().map(at).collect()
}

fn of_volume(view: &View, volume: &VolumeAdvice) -> Value {
    let auto = view.configured(&volume.name);
    json!({
        "name": volume.name,
        "policy": volume.policy.name(),
        "read_bytes_per_second": volume.read_bytes_per_second.round() as u64,
        "write_bytes_per_second": volume.write_bytes_per_second.round() as u64,
        "again_ratio": ratio(volume.again_ratio),
        "hit_ratio": ratio(volume.hit_ratio),
        "ram_bytes": volume.ram_bytes,
        "ssd_bytes": volume.ssd_bytes,
        "shared_bytes": volume.shared_bytes,
        "dirty_bytes": volume.dirty_bytes,
        "weight": volume.weight,
        "auto": auto.is_some_and(|known| known.share_auto),
        "gains": volume.gains,
        "reason": volume.reason,
    })
}

fn document(view: &View, advice: &Advice) -> Value {
    let volumes = advice.volumes.iter();
    json!({
        "seconds": advice.seconds.round() as u64,
        "reads_lost": advice.lost,
        "ram": tier(&advice.ram),
        "ssd": tier(&advice.ssd),
        "volumes": volumes.map(|it| of_volume(view, it)).collect::<Vec<_>>(),
    })
}
