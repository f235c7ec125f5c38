//! Drain: the host owes nothing to any image, and takes on nothing new.
//!
//! Each write-back volume becomes write-through while its guest goes on, by the switch that every
//! change of policy goes by: its image is complete from then on, and its ledger names nobody.
//! Always true: that the host is drained is on stable media before the first volume is changed,
//! and holds over a restart until it is undone; the policies that were ordered are kept, and come
//! back with the undo; what cannot be drained is named with the reason, and all others are drained
//! all the same. Deliberately absent: moving guests, which is their manager's.

use super::{Admin, Look, Started, refuse_held};
use crate::config::{Config, Volume, units};
use crate::error::{Error, Kind, Result, cause};
use engine::snapshot::VolumeSnapshot;
use engine::types::Policy;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::PathBuf;

impl Admin {
    pub fn is_drained(&self) -> bool {
        self.known().drained
    }

    /// Drains the host. With `wait` it returns when everything is at its origin that can be.
    pub fn drain(&self, wait: bool) -> Result<Value> {
        let order = self.order();
        let mut known = self.known().clone();
        remember(&known.config, true)?;
        known.drained = true;
        *self.known() = known.clone();
        let look = self.look()?;
        let begun = self.switch_all(&look, &known.volumes, Policy::WriteThrough);
        drop(order);
        let mut left = Vec::new();
        for (name, begun) in begun {
            let ended = match begun {
                Ok(started) if wait => started(),
                Ok(started) => {
                    self.go_on("drain", Some(&name), started);
                    Ok(())
                }
                Err(error) => Err(error),
            };
            left.extend(ended.err().map(|error| error.to_string()));
        }
        // Of a volume that no configuration names the policy stays, and its data goes home.
        let stays = |volume: &&VolumeSnapshot| {
            let unnamed = known.volumes.iter().all(|named| named.name != volume.name);
            volume.dirty_bytes > 0 && volume.policy == Policy::WriteBack && unnamed
        };
        // They are on their way already; held ones were told of above.
        for volume in look.engine.volumes.iter().filter(stays).filter(|_| wait) {
            let ended = self.machine.destage(volume.id);
            // One that is gone by now has nothing left.
            let failed = ended.err().filter(|error| error.kind != Kind::NotFound);
            left.extend(failed.map(|error| error.to_string()));
        }
        Ok(json!({
            "drained": true,
            "complete": wait && left.is_empty(),
            "left": left,
            "notes": notes(&self.look()?),
        }))
    }

    /// Goes on after a start of a host that was drained before; nobody waits for it.
    pub fn drain_again(&self) {
        match self.drain(false) {
            Ok(_) => tracing::warn!("the host is drained; `tenuto drain --undo` ends that"),
            Err(error) => tracing::error!("drain: {error}"),
        }
    }

    /// The volumes get the policies back that were ordered for them; nobody waits for it.
    pub fn undo_drain(&self) -> Result<Value> {
        let _order = self.order();
        let mut known = self.known().clone();
        remember(&known.config, false)?;
        let was_drained = known.drained;
        known.drained = false;
        *self.known() = known.clone();
        let mut left = Vec::new();
        if was_drained {
            let begun = self.switch_all(&self.look()?, &known.volumes, Policy::WriteBack);
            for (name, begun) in begun {
                match begun {
                    Ok(started) => self.go_on("drain --undo", Some(&name), started),
                    Err(error) => left.push(error.to_string()),
                }
            }
        }
        Ok(json!({ "drained": false, "left": left, "notes": [] }))
    }

    /// Orders a policy for all volumes that are write-back by the configuration.
    fn switch_all(
        &self,
        look: &Look,
        named: &[Volume],
        policy: Policy,
    ) -> Vec<(String, Result<Started>)> {
        let orders = named.iter().filter(|volume| owes(volume)).map(|volume| {
            let free = refuse_held(look, &volume.name);
            let begun = free.and_then(|()| self.machine.switch(&volume.name, policy));
            (volume.name.clone(), begun)
        });
        orders.collect()
    }

    /// A volume that is attached again while the host is drained is drained as well.
    pub(super) fn drain_one(&self, volume: &Volume) {
        if !self.is_drained() || !owes(volume) {
            return;
        }
        match self.machine.switch(&volume.name, Policy::WriteThrough) {
            Ok(started) => self.go_on("drain", Some(&volume.name), started),
            Err(error) => tracing::warn!(volume = %volume.name, "{error}"),
        }
    }

    pub(super) fn refuse_drained(&self, name: &str) -> Result<()> {
        match self.is_drained() {
            false => Ok(()),
            true => Err(Error::failed(format!(
                "volume {name}: the host is drained and takes nothing new; end that with `tenuto \
                 drain --undo`"
            ))
            .about(name)),
        }
    }
}

/// Write-back by the configuration.
fn owes(volume: &Volume) -> bool {
    volume.policy == Policy::WriteBack && !volume.read_only
}

/// What an administrator who takes the host away would want to know.
fn notes(look: &Look) -> Vec<String> {
    let volumes = look.engine.volumes.iter();
    let overlays = volumes.filter(|it| it.policy == Policy::Ephemeral && it.dirty_bytes > 0);
    let overlays = overlays.map(|volume| {
        let (name, bytes) = (&volume.name, units::human_bytes(volume.dirty_bytes));
        format!("volume {name}: its overlay of {bytes} stays on this host, and ends with it")
    });
    let connected = look.clients.iter().filter(|(_, clients)| *clients > 0);
    let connected = connected.filter_map(|(id, clients)| {
        let volume = look.engine.volumes.iter().find(|volume| volume.id == *id)?;
        let (name, noun) = (
            &volume.name,
            if *clients == 1 { "client" } else { "clients" },
        );
        Some(format!("volume {name}: {clients} {noun} still connected"))
    });
    overlays.chain(connected).collect()
}

fn file_of(config: &Config) -> PathBuf {
    config.host.state_dir.join("drained")
}

/// Whether the host was drained when the last daemon ended.
pub fn was_drained(config: &Config) -> bool {
    file_of(config).exists()
}

/// On stable media when this returns.
fn remember(config: &Config, drained: bool) -> Result<()> {
    let (path, directory) = (file_of(config), &config.host.state_dir);
    let write = || -> std::io::Result<()> {
        if drained {
            fs::create_dir_all(directory)?;
            File::create(&path)?.sync_all()?;
        } else if path.exists() {
            fs::remove_file(&path)?;
        } else {
            return Ok(());
        }
        File::open(directory)?.sync_all()
    };
    write().map_err(|error| {
        Error::failed(format!(
            "{}: {}; [host] state-dir must be a directory this daemon may write",
            path.display(),
            cause(&error)
        ))
    })
}
