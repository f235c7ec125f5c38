//! What an administrator can ask of a host of a benchmark.
//!
//! Owns the state of the daemon as plain data, and three orders: to look, to destage a volume, and
//! to move one. Always true: every other order is refused and changes nothing. Deliberately absent:
//! counters of the host, which no benchmark reads here.

use engine::chart::Spot;
use engine::event::Command;
use engine::types::{Policy, VolumeId};
use host::admin::record::Tap;
use host::admin::{Held, Look, Machine, Recovery, Started};
use host::backup::bitmap::Bitmap;
use host::daemon::{self, Below, CheckpointShown, Daemon, Merged, Resized, VolumeSettings};
use host::error::{Error, Result};
use host::unit::Units;
use std::path::PathBuf;
use std::sync::Arc;

pub struct Orders(pub Arc<Daemon>);

fn absent<T>() -> Result<T> {
    let what = "this order is not one of a host of a benchmark; use `tenuto serve`";
    Err(Error::usage(what))
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::failed(error.to_string())
}

/// One that another host serves is held here.
fn held(held: daemon::Held) -> Held {
    let daemon::Held { settings, hold } = held;
    Held {
        name: settings.name,
        origin: settings.origin.display().to_string(),
        policy: settings.policy,
        write_cache: settings.write_cache,
        destage: settings.destage,
        reason: hold.reason,
        why: hold.why,
        running: false,
        ledger: hold.ledger,
        ledger_age_seconds: None,
    }
}

impl Machine for Orders {
    fn look(&self) -> Result<Look> {
        let snapshot = self.0.handle().snapshot().map_err(failed)?;
        let clients = snapshot.volumes.iter().map(|it| (it.volume, it.clients));
        let measured = snapshot.volumes.iter().filter_map(|it| {
            let recorder = it.latency.as_ref()?;
            Some((it.volume, recorder.read(snapshot.now)))
        });
        let report = self.0.report();
        Ok(Look {
            latency: measured.collect(),
            clients: clients.collect(),
            waits: Default::default(),
            engine: snapshot.engine,
            watched: self.0.watched(),
            noticed: self.0.noticed(),
            units: self.0.units_shown(),
            copies: self.0.units().map(Units::copies_shown).unwrap_or_default(),
            images: self.0.images(),
            held: self.0.held().into_iter().map(held).collect(),
            recovery: Recovery {
                ms: self.0.recovery_time().as_millis() as u64,
                tail_bytes_discarded: report.tail_bytes_discarded,
                records_replayed: report.records_replayed,
                damage: report.damage.clone(),
            },
            counters: Vec::new(),
        })
    }

    fn destage(&self, volume: VolumeId) -> Result<()> {
        let destaged = self.0.handle().command(Command::Destage { volume });
        destaged.map_err(failed)
    }

    fn volume_move(&self, name: &str, host: &str) -> Result<bool> {
        self.0.volume_move(name, host).map_err(failed)
    }

    fn look_around(&self) {
        self.0.look_around();
    }

    fn look_at_images(&self) {
        self.0.look_at_images();
    }

    fn try_held(&self) -> Vec<String> {
        self.0.try_held()
    }

    fn add(&self, _: VolumeSettings) -> Result<()> {
        absent()
    }

    fn add_or_hold(&self, _: VolumeSettings) -> Result<Option<String>> {
        absent()
    }

    fn tune(&self, _: VolumeSettings) -> Result<()> {
        absent()
    }

    fn remove(&self, _: &str, _: bool) -> Result<()> {
        absent()
    }

    fn switch(&self, _: &str, _: Policy) -> Result<Started> {
        absent()
    }

    fn reset(&self, _: VolumeId) -> Result<()> {
        absent()
    }

    fn commit(&self, _: &str) -> Result<()> {
        absent()
    }

    fn quiesce(&self, _: &str, _: Option<&str>) -> Result<()> {
        absent()
    }

    fn resume(&self, _: &str, _: bool) -> Result<()> {
        absent()
    }

    fn checkpoints(&self, _: &str) -> Result<Vec<CheckpointShown>> {
        absent()
    }

    fn changes(&self, _: &str, _: &str) -> Result<Bitmap> {
        absent()
    }

    fn forget_checkpoint(&self, _: &str, _: &str) -> Result<()> {
        absent()
    }

    fn snapshot(&self, _: &str, _: &str, _: bool) -> Result<Vec<PathBuf>> {
        absent()
    }

    fn rebase(&self, _: &str, _: &Below, _: bool) -> Result<u64> {
        absent()
    }

    fn merge(&self, _: &str, _: bool) -> Result<Merged> {
        absent()
    }

    fn resize(&self, _: &str, _: u64) -> Result<Resized> {
        absent()
    }

    fn orphan(&self, _: &str) -> Result<()> {
        absent()
    }

    fn chart(&self, _: VolumeId) -> Result<Vec<Spot>> {
        absent()
    }

    fn scrub(&self) -> Result<Started> {
        absent()
    }

    fn record(&self, _: &[String]) -> Result<Box<dyn Tap>> {
        absent()
    }

    fn accept_loss(&self, _: &str) -> Result<()> {
        absent()
    }

    fn overwrite(&self, _: &str) -> Result<()> {
        absent()
    }
}
