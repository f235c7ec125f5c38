//! The machine behind the administrator's orders: a running [`Daemon`].
//!
//! Owns nothing but the translation of errors and of plain data.

use crate::admin::pools::Refresh;
use crate::admin::record::Tap;
use crate::admin::{Held, Look, Machine, Recovery, Started};
use crate::backup::bitmap::Bitmap;
use crate::daemon::{
    self, Below, CheckpointShown, Daemon, FrontEndCounters, Merged, Resized, StartError,
    VolumeError, VolumeSettings, Why,
};
use crate::error::{Error, Kind, Result};
use crate::pool;
use crate::ring::monotonic_ns;
use crate::shard::control::{CommandError, Handle, HostCounters};
use crate::shard::record::{Recorded, buffer};
use crate::unit::Units;
use engine::chart::{Cursor, Spot};
use engine::event::{Command, Refusal};
use engine::sample::Samples;
use engine::snapshot::VolumeSnapshot;
use engine::types::{Policy, VolumeId};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use workload::trace::{NameId, Record};

/// A daemon as [`Machine`].
pub struct Live(Arc<Daemon>);

impl Live {
    fn refuse_clustered(&self, name: &str, what: &str) -> Result<()> {
        self.0
            .refuse_clustered(name, what)
            .map_err(|error| volume_error(name, error))
    }

    /// What nobody named at the start is detached as soon as its dirty data is at its origin.
    pub fn new(daemon: Arc<Daemon>) -> Live {
        for name in daemon.orphans() {
            settle(&daemon, name);
        }
        Live(daemon)
    }
}

/// Waits for the dirty data of an orphan, as long as that takes, on a thread of its own.
fn settle(daemon: &Arc<Daemon>, name: String) {
    let daemon = daemon.clone();
    let thread = std::thread::Builder::new().name("orphan".into());
    let waits = thread.spawn(move || match daemon.settle_orphan(&name) {
        Ok(()) => tracing::info!("volume {name}: is not configured, is at its origin; detached"),
        // The next start finds it again.
        Err(error) => tracing::debug!("{error}"),
    });
    if let Err(error) = waits {
        tracing::warn!("volumes that are not configured stay attached: {error}");
    }
}

impl Machine for Live {
    fn look(&self) -> Result<Look> {
        let mut snapshot = self
            .0
            .handle()
            .snapshot()
            .map_err(|stopped| stopping(&stopped))?;
        let shown = |name: &str| !pool::is_inner(name);
        snapshot.engine.volumes.retain(|it| shown(&it.name));
        let report = self.0.report();
        let clients = snapshot
            .volumes
            .iter()
            .map(|volume| (volume.volume, volume.clients));
        let measured = snapshot.volumes.iter().filter_map(|volume| {
            let recorder = volume.latency.as_ref()?;
            Some((volume.volume, recorder.read(snapshot.now)))
        });
        let waits = snapshot.volumes.iter().filter(|it| it.waits.count > 0);
        let waits = waits.map(|it| (it.volume, it.waits)).collect();
        let misfits: Vec<Held> = snapshot.engine.volumes.iter().filter_map(misfit).collect();
        Ok(Look {
            latency: measured.collect(),
            clients: clients.collect(),
            waits,
            engine: snapshot.engine,
            watched: self.0.watched(),
            noticed: self.0.noticed(),
            units: self.0.units_shown(),
            copies: self.0.units().map(Units::copies_shown).unwrap_or_default(),
            images: self.0.images(),
            pools: self.0.pools_shown(),
            held: self.0.held().into_iter().map(held).chain(misfits).collect(),
            recovery: Recovery {
                ms: self.0.recovery_time().as_millis() as u64,
                tail_bytes_discarded: report.tail_bytes_discarded,
                records_replayed: report.records_replayed,
                damage: report.damage.clone(),
            },
            counters: {
                let mut all = counters(&snapshot.host);
                all.extend(of_front_ends(&self.0.front_ends()));
                all
            },
        })
    }

    fn renew_certificates(&self) -> Result<Option<String>> {
        let renewed = self.0.renew_certificates();
        renewed.map_err(|unfit| Error::new(Kind::Config, unfit.to_string()))
    }

    fn look_around(&self) {
        self.0.look_around();
    }

    fn pool_refresh(&self, name: &str, refresh: Refresh) -> Result<()> {
        let (image, asked) = (&refresh.image, refresh.asked);
        let (stage_only, discard) = (refresh.stage_only, refresh.discard_changes);
        let refreshed = self.0.pool_refresh(name, image, asked, stage_only, discard);
        refreshed.map_err(|error| volume_error(name, error))
    }

    fn pool_rollback(&self, name: &str) -> Result<()> {
        let back = self.0.pool_rollback(name);
        back.map_err(|error| volume_error(name, error))
    }

    fn pool_finish(&self, name: &str) -> Result<()> {
        let finished = self.0.pool_finish(name);
        finished.map_err(|error| volume_error(name, error))
    }

    fn was_reset(&self, name: &str) {
        self.0.member_was_reset(name);
    }

    fn add(&self, settings: VolumeSettings) -> Result<()> {
        let name = settings.name.clone();
        self.0
            .volume_add(settings)
            .map_err(|error| volume_error(&name, error))
    }

    fn add_or_hold(&self, settings: VolumeSettings) -> Result<Option<String>> {
        let name = settings.name.clone();
        let held = self.0.volume_add_or_hold(settings);
        let held = held.map_err(|error| volume_error(&name, error))?;
        Ok(held.map(|hold| hold.to_string()))
    }

    fn tune(&self, settings: VolumeSettings) -> Result<()> {
        let name = settings.name.clone();
        self.0
            .volume_tune(settings)
            .map_err(|error| volume_error(&name, error))
    }

    fn take_samples(&self) -> Result<Samples> {
        let samples = self.0.handle().take_samples();
        samples.map_err(|stopped| stopping(&stopped))
    }

    fn remove(&self, name: &str, discard_dirty: bool) -> Result<()> {
        self.0
            .volume_remove(name, discard_dirty)
            .map_err(|error| volume_error(name, error))
    }

    fn accept_loss(&self, name: &str) -> Result<()> {
        self.0
            .accept_loss(name)
            .map_err(|error| volume_error(name, error))
    }

    fn try_held(&self) -> Vec<String> {
        self.0.try_held()
    }

    fn change_away(&self, settings: VolumeSettings) -> Result<()> {
        let name = settings.name.clone();
        self.0
            .change_away(settings)
            .map_err(|error| volume_error(&name, error))
    }

    fn take_over_fenced(&self, name: &str) -> Result<()> {
        self.0
            .take_over_fenced(name)
            .map_err(|error| volume_error(name, error))
    }

    fn volume_move(&self, name: &str, host: &str) -> Result<bool> {
        self.0
            .volume_move(name, host)
            .map_err(|error| volume_error(name, error))
    }

    fn overwrite(&self, name: &str) -> Result<()> {
        self.0
            .overwrite(name)
            .map_err(|error| volume_error(name, error))
    }

    fn look_at_images(&self) {
        self.0.look_at_images();
    }

    fn switch(&self, name: &str, policy: Policy) -> Result<Started> {
        let reply = self.0.volume_switch(name, policy);
        let reply = reply.map_err(|error| volume_error(name, error))?;
        let name = name.to_owned();
        Ok(Box::new(move || {
            reply.wait().map_err(|error| command_error(&name, error))
        }))
    }

    fn destage(&self, volume: VolumeId) -> Result<()> {
        self.command(volume, Command::Destage { volume })?;
        // What was written may have gone to a file that nobody finds any more.
        self.command(volume, Command::Look { volume })
    }

    fn reset(&self, volume: VolumeId) -> Result<()> {
        self.command(volume, Command::Reset { volume })
    }

    fn commit(&self, name: &str) -> Result<()> {
        self.0
            .volume_commit(name)
            .map_err(|error| volume_error(name, error))
    }

    fn rebase(&self, name: &str, below: &Below, changes: bool) -> Result<u64> {
        self.refuse_clustered(name, "a rebase")?;
        let rebased = self.0.volume_rebase(name, below, changes);
        rebased.map_err(|error| volume_error(name, error))
    }

    fn merge(&self, name: &str, remove: bool) -> Result<Merged> {
        self.refuse_clustered(name, "a merge")?;
        let merged = self.0.volume_merge(name, remove);
        merged.map_err(|error| volume_error(name, error))
    }

    fn resize(&self, name: &str, size_bytes: u64) -> Result<Resized> {
        self.refuse_clustered(name, "another size")?;
        let resized = self.0.volume_resize(name, size_bytes);
        resized.map_err(|error| volume_error(name, error))
    }

    fn quiesce(&self, name: &str, checkpoint: Option<&str>) -> Result<()> {
        if checkpoint.is_some() {
            self.refuse_clustered(name, "a checkpoint")?;
        }
        let quiesced = self.0.volume_quiesce(name, checkpoint);
        quiesced.map_err(|error| volume_error(name, error))
    }

    fn quiesce_through(&self, name: &str) -> Result<()> {
        let quiesced = self.0.volume_quiesce_through(name);
        quiesced.map_err(|error| volume_error(name, error))
    }

    fn quiesce_again(&self, name: &str) -> Result<()> {
        let quiesced = self.0.volume_quiesce_again(name);
        quiesced.map_err(|error| volume_error(name, error))
    }

    fn resume(&self, name: &str, force: bool) -> Result<()> {
        let resumed = self.0.volume_resume(name, force);
        resumed.map_err(|error| volume_error(name, error))
    }

    fn checkpoints(&self, name: &str) -> Result<Vec<CheckpointShown>> {
        let shown = self.0.volume_checkpoints(name);
        shown.map_err(|error| volume_error(name, error))
    }

    fn changes(&self, name: &str, checkpoint: &str) -> Result<Bitmap> {
        let changes = self.0.volume_changes(name, checkpoint);
        changes.map_err(|error| volume_error(name, error))
    }

    fn forget_checkpoint(&self, name: &str, checkpoint: &str) -> Result<()> {
        let forgotten = self.0.volume_forget_checkpoint(name, checkpoint);
        forgotten.map_err(|error| volume_error(name, error))
    }

    fn snapshot(&self, name: &str, snapshot: &str, plain: bool) -> Result<Vec<PathBuf>> {
        self.refuse_clustered(name, "a snapshot")?;
        let taken = self.0.volume_snapshot(name, snapshot, plain);
        taken.map_err(|error| volume_error(name, error))
    }

    fn orphan(&self, name: &str) -> Result<()> {
        let orphaned = self.0.volume_orphan(name);
        orphaned.map_err(|error| volume_error(name, error))?;
        settle(&self.0, name.to_owned());
        Ok(())
    }

    fn scrub(&self) -> Result<Started> {
        let begun = self.0.handle().command_begin(Command::Scrub);
        let reply = begun.map_err(|stopped| stopping(&stopped))?;
        Ok(Box::new(move || {
            reply.wait().map_err(|error| match error {
                CommandError::Refused(Refusal::CacheFailed) => Error::failed(
                    "the cache device fails, so that nothing on it can be judged; see `tenuto \
                     status -x`",
                ),
                CommandError::Refused(_) => stopping(&"the scrub ended with the daemon"),
                CommandError::Stopped(stopped) => stopping(&stopped),
            })
        }))
    }

    fn record(&self, names: &[String]) -> Result<Box<dyn Tap>> {
        let handle = self.0.handle().clone();
        let begun = handle.record_begin(names, buffer());
        let begun = begun.map_err(|stopped| stopping(&stopped))?;
        let number = begun.map_err(|name| Error::no_volume(&name))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_nanos() as u64);
        Ok(Box::new(LiveTap {
            handle,
            number,
            empty: None,
            since_1970_ns: now.wrapping_sub(monotonic_ns()),
        }))
    }

    fn chart(&self, volume: VolumeId) -> Result<Vec<Spot>> {
        let mut spots = Vec::new();
        let mut next = Some(Cursor::START);
        while let Some(from) = next {
            let page = self.0.handle().chart(volume, from);
            let page = page.map_err(|error| self.named(volume, error))?;
            spots.extend(page.spots);
            next = page.next;
        }
        Ok(spots)
    }
}

/// A recording of the shard, with times since 1970. The clock is looked at once, so that a clock
/// that is set does not go back in a trace.
struct LiveTap {
    handle: Handle,
    number: u32,
    /// What the shard gets for what it gives; absent only where a call has failed.
    empty: Option<Vec<Recorded>>,
    since_1970_ns: u64,
}

impl Tap for LiveTap {
    fn take(&mut self, each: &mut dyn FnMut(usize, &Record)) -> Result<u64> {
        let empty = self.empty.take().unwrap_or_else(buffer);
        let taken = self.handle.record_take(self.number, empty);
        let taken = taken.map_err(|stopped| stopping(&stopped))?;
        let mut taken = taken.ok_or_else(|| Error::failed("the recording has ended"))?;
        for it in taken.requests.drain(..) {
            let record = Record {
                time_ns: self.since_1970_ns.wrapping_add(it.time.0),
                disk: NameId(it.volume.into()),
                op: it.op,
                sector: it.sector,
                sectors: it.sectors,
                path: None,
            };
            each(it.volume.into(), &record);
        }
        self.empty = Some(taken.requests);
        Ok(taken.lost)
    }
}

impl Drop for LiveTap {
    fn drop(&mut self) {
        // Where the shard has ended there is nothing to end.
        let _ = self.handle.record_end(self.number);
    }
}

impl Live {
    fn command(&self, volume: VolumeId, command: Command) -> Result<()> {
        let result = self.0.handle().command(command);
        result.map_err(|error| self.named(volume, error))
    }

    fn named(&self, volume: VolumeId, error: CommandError) -> Error {
        let known = self.0.handle().snapshot().ok();
        let mut volumes = known.iter().flat_map(|known| &known.engine.volumes);
        let name = volumes.find(|known| known.id == volume);
        let name = name.map_or_else(|| volume.to_string(), |known| known.name.clone());
        command_error(&name, error)
    }
}

fn stopping(why: &dyn std::fmt::Display) -> Error {
    Error::new(
        Kind::Unreachable,
        format!("{why}; start it again with `tenuto serve`"),
    )
}

pub fn volume_error(name: &str, error: VolumeError) -> Error {
    let kind = match &error {
        VolumeError::Unknown(_) => Kind::NotFound,
        VolumeError::Exists(_) => Kind::Usage,
        VolumeError::Held(hold) if hold.why == Why::Damaged => Kind::Damaged,
        VolumeError::Busy { .. }
        | VolumeError::Taken(_)
        | VolumeError::Held(_)
        | VolumeError::Refused(_) => Kind::Refused,
        VolumeError::Settings(_) | VolumeError::Image(_) => Kind::Usage,
        VolumeError::Origin(_)
        | VolumeError::InUse { .. }
        | VolumeError::Changing(_)
        | VolumeError::Unfinished(_) => Kind::Failed,
        VolumeError::Stopped(stopped) => return stopping(stopped),
        VolumeError::Command { error, .. } => return command_error(name, *error),
    };
    Error::new(kind, error.to_string()).about(name)
}

/// One kind for every refusal of the engine.
pub fn command_error(name: &str, error: CommandError) -> Error {
    let refusal = match error {
        CommandError::Refused(refusal) => refusal,
        CommandError::Stopped(stopped) => return stopping(&stopped),
    };
    let (kind, advice) = match refusal {
        Refusal::Dirty => (Kind::Refused, "destage it first"),
        Refusal::Held => (Kind::Refused, "see `tenuto status -x`"),
        Refusal::CacheFailed => (
            Kind::Failed,
            "try again when it answers; see `tenuto status -x`",
        ),
        Refusal::Damaged => (
            Kind::Damaged,
            "it can be destaged when these blocks were overwritten or can be read again",
        ),
        Refusal::Contradicts => (
            Kind::Damaged,
            "look at it with `qemu-img check -U`; destage goes on when it is repaired",
        ),
        Refusal::Policy => (Kind::Refused, "see `tenuto volume show`"),
        Refusal::Gone => (Kind::NotFound, "see `tenuto volume ls`"),
        Refusal::Io => (
            Kind::Failed,
            "look at the log of the daemon and at the origin",
        ),
        Refusal::NoSpace => (Kind::Failed, "give the cache or the overlay more room"),
        Refusal::OriginFull => (Kind::Failed, "make room on the storage of its image"),
        Refusal::Busy => (
            Kind::Failed,
            "wait until that has ended; a volume that was quiesced is resumed with `tenuto volume \
             resume`",
        ),
        Refusal::NotQuiesced => (
            Kind::Failed,
            "it was resumed meanwhile, or the log needed its room; try again",
        ),
        Refusal::Unproved => (
            Kind::Failed,
            "start that host, or when it can write no more run `tenuto volume takeover` with \
             --fenced",
        ),
        Refusal::NoRoom => (Kind::Failed, "give the cache more room"),
        Refusal::OutOfRange | Refusal::ReadOnly => (Kind::Failed, "see `tenuto volume show`"),
    };
    Error::new(kind, format!("volume {name}: {refusal}; {advice}")).about(name)
}

/// One kind for every reason not to start.
pub fn start_error(error: StartError) -> Error {
    let kind = match &error {
        StartError::Settings(_) | StartError::Cache(_) => Kind::Config,
        StartError::Refused(_) => Kind::Refused,
        StartError::Damaged(_) => Kind::Damaged,
        StartError::InUse(_) | StartError::Origin(_) | StartError::Io(_) => Kind::Failed,
    };
    Error::new(kind, error.to_string())
}

/// A volume that is attached, but held for its image.
fn misfit(volume: &VolumeSnapshot) -> Option<Held> {
    let found = volume.misfit.filter(|_| !volume.orphan)?;
    let (name, origin) = (&volume.name, &volume.origin);
    let overlay = volume.overlay_misfits;
    let words = match overlay {
        true => "is another one than its overlay was written on",
        false => found.words(),
    };
    Some(Held {
        name: name.clone(),
        origin: origin.clone(),
        policy: volume.policy,
        write_cache: volume.write_cache,
        destage: volume.effective_destage,
        reason: format!("volume {name}: its image {origin} {words}"),
        why: match overlay {
            true => Why::Overlay,
            false => Why::Image,
        },
        running: true,
        ledger: None,
        ledger_age_seconds: None,
    })
}

fn held(held: daemon::Held) -> Held {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos() as u64);
    let daemon::Held { settings, hold } = held;
    let age = |mtime: u64| now.saturating_sub(mtime) / 1_000_000_000;
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
        ledger_age_seconds: hold.ledger_mtime_ns.map(age),
    }
}

/// Name, help and value.
type Counter = (&'static str, &'static str, u64);

fn counters(host: &HostCounters) -> Vec<Counter> {
    vec![
        ("connections", "Open connections.", host.connections),
        (
            "connections_accepted_total",
            "Connections accepted.",
            host.connections_accepted,
        ),
        (
            "connections_refused_total",
            "Connections beyond the bound.",
            host.connections_refused,
        ),
        (
            "handshakes_timed_out_total",
            "Handshakes that took too long.",
            host.handshakes_timed_out,
        ),
        (
            "protocol_errors_total",
            "Malformed requests.",
            host.protocol_errors,
        ),
        (
            "requests_in_flight",
            "Guest requests under way.",
            host.requests_in_flight,
        ),
        (
            "buffer_bytes_used",
            "Payload buffers in use.",
            host.buffer_bytes_used,
        ),
        ("buffer_bytes", "Payload buffers in all.", host.buffer_bytes),
        (
            "device_requests_in_flight",
            "Device requests.",
            host.device_requests_in_flight,
        ),
        (
            "bounced_total",
            "Device requests that needed a copy.",
            host.bounced,
        ),
        (
            "unaligned_total",
            "Guest requests that were not whole sectors.",
            host.unaligned,
        ),
        (
            "requests_again_total",
            "Requests begun under an earlier daemon, and again.",
            host.requests_again,
        ),
        (
            "requests_found_total",
            "Writes of an earlier daemon that were there already.",
            host.requests_found,
        ),
        (
            "sleeps_total",
            "Times the shard went to sleep.",
            host.sleeps,
        ),
    ]
}

fn of_front_ends(rings: &FrontEndCounters) -> [Counter; 5] {
    [
        (
            "front_ends",
            "Front ends that are connected.",
            rings.connections,
        ),
        (
            "front_ends_accepted_total",
            "Front ends accepted.",
            rings.accepted,
        ),
        (
            "front_ends_refused_total",
            "Front ends beyond a bound.",
            rings.refused,
        ),
        (
            "front_ends_broken_total",
            "Front ends cut off for what they said.",
            rings.broken,
        ),
        (
            "front_end_messages_refused_total",
            "Messages of front ends that were not done.",
            rings.messages_refused,
        ),
    ]
}
