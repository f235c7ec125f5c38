//! Held volumes as an administrator sees them, and what it takes to go on without lost data.
//!
//! Owns the thread that looks at images which could not be opened.
//! Always true: a held volume is shown beside the others, with state `held`, why, what is missing
//! as far as anybody here knows, and how to go on; what is not known is null, never zero. Losing
//! data needs the volume's name a second time.

use super::{Admin, Look, Outcome, check_named_again, find, refuse_connected};
use crate::config::Volume;
use crate::config::units::{human_bytes, human_seconds};
use crate::daemon::Why;
use crate::error::{Error, Result};
use engine::engine::LedgerInfo;
use engine::snapshot::{Counters, FlowSnapshot, State, VolumeSnapshot};
use engine::types::{DestageMode, Generation, Policy, Serial, Uuid, VolumeId};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How often an image that could not be opened is looked at.
const RETRY_EVERY: Duration = Duration::from_secs(3);

/// A volume that is named, but not served.
#[derive(Clone, Debug)]
pub struct Held {
    pub name: String,
    pub origin: String,
    pub policy: Policy,
    pub write_cache: bool,
    pub destage: DestageMode,
    /// One line that names the volume.
    pub reason: String,
    pub why: Why,
    /// It is attached all the same, and goes on by itself when its image fits again.
    pub running: bool,
    pub ledger: Option<LedgerInfo>,
    pub ledger_age_seconds: Option<u64>,
}

impl Look {
    pub fn held(&self, name: &str) -> Option<&Held> {
        self.held.iter().find(|held| held.name == name)
    }
}

/// Puts held volumes among the volumes of a daemon.
pub(super) fn show(look: &mut Look) {
    for (at, held) in look.held.iter().enumerate() {
        let volumes = &mut look.engine.volumes;
        match volumes.iter_mut().find(|volume| volume.name == held.name) {
            // The log knows it: its dirty data is counted there.
            Some(volume) => {
                volume.state = held.state();
                (volume.orphan, volume.ready) = (false, true);
            }
            None => volumes.push(held.snapshot(VolumeId(u32::MAX - at as u32))),
        }
    }
}

impl Held {
    /// A volume that the engine does not know.
    fn snapshot(&self, id: VolumeId) -> VolumeSnapshot {
        let ledger = self.ledger.as_ref();
        let destaged = ledger.map_or(Serial(0), |ledger| ledger.destaged);
        VolumeSnapshot {
            misfit: None,
            overlay_misfits: false,
            base_changed: false,
            rests: false,
            flushes_through: false,
            id,
            name: self.name.clone(),
            uuid: ledger.map_or(Uuid::NIL, |ledger| ledger.volume),
            origin: self.origin.clone(),
            policy: self.policy,
            switching_to: None,
            write_cache: self.write_cache,
            effective_destage: self.destage,
            journal_possible: true,
            share: Default::default(),
            group: String::new(),
            group_waits: false,
            group_in_place: false,
            never_aged: false,
            state: self.state(),
            reason: None,
            damaged: Vec::new(),
            past_log: false,
            orphan: false,
            ready: true,
            size_bytes: ledger.map_or(0, |ledger| ledger.origin_bytes),
            dirty_bytes: 0,
            dirty_writes: 0,
            dirty_extents: 0,
            oldest_dirty_ns: None,
            dirty_before_start: false,
            acked_serial: destaged,
            durable_serial: destaged,
            destaged_serial: destaged,
            generation: ledger.map_or(Generation(0), |ledger| ledger.generation),
            waiting_requests: 0,
            flow: FlowSnapshot::default(),
            destaging: false,
            counters: Counters::default(),
            overlay: None,
            map_bytes: None,
            table_blocks: None,
            lineage: Uuid::NIL,
            recovered_serial: Serial(0),
            replica: None,
            peers: Vec::new(),
            written: None,
        }
    }

    fn state(&self) -> State {
        match self.why {
            Why::Away => State::Away,
            _ => State::Held,
        }
    }

    /// The reason without the name.
    pub fn words(&self) -> &str {
        let prefix = format!("volume {}: ", self.name);
        self.reason.strip_prefix(&prefix).unwrap_or(&self.reason)
    }

    pub fn way_out(&self) -> String {
        let name = &self.name;
        match self.why {
            Why::Away => "a client that connects here waits until it may be served".into(),
            Why::Unopened => "it is tried again every few seconds, and by `tenuto reload`".into(),
            Why::Damaged => "put it right, then run `tenuto reload`".into(),
            Why::StageLost => format!(
                "go on with the data in the log, once its guest is down or was checked, by `tenuto \
                 volume accept-loss {name}`"
            ),
            Why::Overlay => format!(
                "put its image back and run `tenuto reload`, or empty the overlay by \
                 `tenuto volume reset {name}`"
            ),
            Why::Image => format!(
                "put its image back and run `tenuto reload`; or keep the present image \
                 by `tenuto volume accept-loss {name}`, or keep the log by `tenuto volume \
                 takeover {name} --overwrite`"
            ),
            Why::Owed => format!(
                "bring its data home and run `tenuto reload`, or go on without it by `tenuto \
                 volume accept-loss {name}`"
            ),
        }
    }

    /// Bytes that the log has of it; without any nobody here knows how many there were, unless it
    /// is attached.
    pub fn known_bytes(&self, volume: &VolumeSnapshot) -> Option<u64> {
        (volume.dirty_bytes > 0 || self.running).then_some(volume.dirty_bytes)
    }

    /// What would be lost, as far as the log and the ledger tell.
    fn loss(&self, volume: &VolumeSnapshot) -> String {
        if self.why == Why::Unopened {
            return "nothing, as long as the cache is there".into();
        }
        if self.why == Why::StageLost && volume.policy == Policy::Ephemeral {
            return "its overlay (an unknown number of bytes)".into();
        }
        if self.why == Why::StageLost {
            return "what was written and not flushed before the daemon ended (an unknown number of \
                    bytes; what was flushed is kept)"
                .into();
        }
        let what = match volume.dirty_bytes {
            bytes if self.running => self.dirty(volume, bytes),
            0 => "an unknown number of bytes".to_owned(),
            bytes => format!("{bytes} bytes ({})", human_bytes(bytes)),
        };
        let Some(ledger) = &self.ledger else {
            return what;
        };
        let age = self
            .ledger_age_seconds
            .map_or("unknown".into(), human_seconds);
        format!(
            "{what}, written after serial {} on {} (age of the ledger: {age})",
            ledger.destaged, ledger.owner
        )
    }

    fn dirty(&self, volume: &VolumeSnapshot, bytes: u64) -> String {
        let age = volume.oldest_dirty_ns.map(|nanos| nanos / 1_000_000_000);
        let age = age.filter(|_| bytes > 0).map(human_seconds);
        let age = age.map_or(String::new(), |age| format!(", the oldest of {age} ago"));
        format!("{bytes} bytes ({}){age}", human_bytes(bytes))
    }

    /// All that an administrator needs to decide, in one line.
    pub fn line(&self, volume: &VolumeSnapshot) -> String {
        let (why, way_out) = (self.words(), self.way_out());
        match self.why {
            Why::Image | Why::Overlay => {
                format!("{why}; not at its image: {}; {way_out}", self.loss(volume))
            }
            _ => format!("{why}; {way_out}"),
        }
    }

    /// What `volume show` says beyond what it says of every volume.
    pub fn document(&self, volume: &VolumeSnapshot) -> Value {
        let ledger = self.ledger.as_ref();
        json!({
            "reason": self.reason,
            "lost": self.loss(volume),
            "lost_bytes": self.known_bytes(volume),
            "ledger_age_seconds": self.ledger_age_seconds,
            "owner": ledger.map(|ledger| ledger.owner.clone()),
            "cache": ledger.map(|ledger| ledger.cache.to_string()),
            "go_on": self.way_out(),
        })
    }
}

/// Looks at volumes whose images could not be opened, until it is dropped.
pub struct Retries {
    _stop: Sender<()>,
}

impl Retries {
    /// An image may take as long to open as its storage does, so nobody waits for the thread.
    pub fn start(admin: Arc<Admin>) -> Option<Retries> {
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new().name("tenuto-held".into());
        let begun = thread.spawn(move || {
            while stopped.recv_timeout(RETRY_EVERY) == Err(RecvTimeoutError::Timeout) {
                admin.try_held();
            }
        });
        match begun {
            Ok(_) => Some(Retries { _stop: stop }),
            Err(error) => {
                tracing::warn!("held volumes are tried again by `tenuto reload` only: {error}");
                None
            }
        }
    }
}

impl Admin {
    fn try_held(&self) {
        for name in self.machine.try_held() {
            tracing::info!(volume = %name, "volume {name}: its image opens; it is served");
            let known = self.known().volumes.clone();
            if let Some(volume) = known.iter().find(|volume| volume.name == name) {
                self.drain_one(volume);
            }
        }
    }

    /// Tries again to attach a volume that was held.
    pub(super) fn retry(&self, volume: &Volume, held: &Held) -> String {
        if held.why == Why::Away {
            return match self.machine.change_away(volume.settings()) {
                Ok(()) => held.reason.clone(),
                Err(error) => error.to_string(),
            };
        }
        if held.running {
            return format!(
                "volume {}: held; its image is looked at again, and it goes on if that fits",
                volume.name
            );
        }
        match self.machine.add(volume.settings()) {
            Ok(()) => {
                self.drain_one(volume);
                format!("volume {}: is not held any more", volume.name)
            }
            Err(error) => format!("still held: {error}"),
        }
    }

    /// Lays what the log has of a held volume over the image that is there.
    pub fn overwrite(&self, name: &str, again: Option<&str>) -> Result<Outcome> {
        if let Some(other) = again.filter(|other| *other != name) {
            let message =
                format!("volume {name}: --overwrite names {other}; write --overwrite={name}");
            return Err(Error::usage(message).about(name));
        }
        let _order = self.order();
        let look = self.look()?;
        let volume = find(&look, name)?;
        let held = look.held(name);
        let misfits = |held: &&Held| held.why == Why::Image;
        let Some(held) = held.filter(misfits).filter(|_| volume.dirty_bytes > 0) else {
            let message = format!(
                "volume {name}: is not held for its image with dirty data in the log; there is \
                 nothing to overwrite it with"
            );
            return Err(Error::usage(message).about(name));
        };
        refuse_connected(&look, volume, "overwrite its image")?;
        if again.is_none() {
            let what = self::Held::dirty(held, volume, volume.dirty_bytes);
            return Err(Error::refused(format!(
                "volume {name}: {}; {what} of the log would be written over what {} has now; put \
                 the right image back if you can, or force it with --overwrite={name}",
                held.words(),
                held.origin
            ))
            .about(name));
        }
        self.machine.overwrite(name)?;
        Ok(Outcome::default())
    }

    /// Goes on from the last destaged state of a held volume, without what came after it.
    pub fn accept_loss(&self, name: &str, discard: Option<&str>) -> Result<Outcome> {
        check_named_again(name, discard)?;
        let _order = self.order();
        let look = self.look()?;
        let volume = find(&look, name)?;
        if volume.state != State::Held {
            let message = format!("volume {name}: is not held; there is no loss to accept");
            return Err(Error::usage(message).about(name));
        }
        refuse_connected(&look, volume, "go on without its data")?;
        let held = look.held(name);
        if let Some(held) = held.filter(|held| matches!(held.why, Why::Damaged | Why::Unopened)) {
            let message = format!("{}; {}", held.reason, held.way_out());
            return Err(Error::refused(message).about(name));
        }
        if discard.is_none() {
            let known = human_bytes(volume.dirty_bytes);
            let lost = held.map_or(known, |held| held.loss(volume));
            return Err(Error::refused(format!(
                "volume {name}: {lost} would be lost; bring it home if you can, or force it with \
                 --discard-dirty={name}"
            ))
            .about(name));
        }
        self.machine.accept_loss(name)?;
        let known = self.known().volumes.clone();
        if let Some(volume) = known.iter().find(|volume| volume.name == name) {
            self.drain_one(volume);
        }
        Ok(Outcome::default())
    }
}
