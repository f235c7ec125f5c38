//! Held volumes as an administrator sees them, and what it takes to go on without lost data.
//!
//! Always true: a held volume is shown beside the others, with state `held`, why, what is missing
//! as far as anybody here knows, and how to go on; what is not known is null, never zero. Losing
//! data needs the volume's name a second time.

use super::{Admin, Look, Outcome, check_named_again, find, refuse_connected};
use crate::config::Volume;
use crate::config::units::{human_bytes, human_seconds};
use crate::error::{Error, Result};
use engine::engine::LedgerInfo;
use engine::snapshot::{Counters, FlowSnapshot, State, VolumeSnapshot};
use engine::types::{DestageMode, Generation, Policy, Serial, Uuid, VolumeId};
use serde_json::{Value, json};

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
    /// What lies beside the origin is damaged: there is no state to go on from.
    pub damaged: bool,
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
                volume.state = State::Held;
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
            state: State::Held,
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
        }
    }

    /// The reason without the name.
    pub fn why(&self) -> &str {
        let prefix = format!("volume {}: ", self.name);
        self.reason.strip_prefix(&prefix).unwrap_or(&self.reason)
    }

    pub fn way_out(&self) -> String {
        let name = &self.name;
        match self.damaged {
            true => "put it right, then run `tenuto reload`".into(),
            false => format!(
                "bring its data home and run `tenuto reload`, or go on without it by `tenuto \
                 volume accept-loss {name}`"
            ),
        }
    }

    /// What would be lost, as far as the log and the ledger tell.
    fn loss(&self, volume: &VolumeSnapshot) -> String {
        let what = match volume.dirty_bytes {
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

    /// What `volume show` says beyond what it says of every volume.
    pub fn document(&self, volume: &VolumeSnapshot) -> Value {
        let ledger = self.ledger.as_ref();
        json!({
            "reason": self.reason,
            "lost": self.loss(volume),
            "lost_bytes": known_bytes(volume),
            "ledger_age_seconds": self.ledger_age_seconds,
            "owner": ledger.map(|ledger| ledger.owner.clone()),
            "cache": ledger.map(|ledger| ledger.cache.to_string()),
            "go_on": self.way_out(),
        })
    }
}

/// Bytes that the log has of a held volume; without any nobody here knows how many there were.
pub fn known_bytes(volume: &VolumeSnapshot) -> Option<u64> {
    (volume.dirty_bytes > 0).then_some(volume.dirty_bytes)
}

impl Admin {
    /// Tries again to attach a volume that was held.
    pub(super) fn retry(&self, volume: &Volume) -> String {
        match self.machine.add(volume.settings()) {
            Ok(()) => {
                self.drain_one(volume);
                format!("volume {}: is not held any more", volume.name)
            }
            Err(error) => format!("still held: {error}"),
        }
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
        if let Some(held) = held.filter(|held| held.damaged) {
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
