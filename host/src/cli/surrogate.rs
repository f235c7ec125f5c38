//! A cache of a host of a cluster in the hands of another host: whose volumes it has, and what
//! `recover` needs to act for their owner.
//!
//! ```text
//! no pointer beside the image ─▶ Alone: it is destaged as without a cluster
//! a pointer ─┬─ of another cluster, or this host is in none ─▶ refused
//!            ├─ the newest record names no owner, or another cache ─▶ refused: superseded
//!            └─ its owner has this cache ─┬─ it is this host ─▶ Owner
//!                                         └─ another one ─▶ Owner, by the word of an administrator
//! ```
//!
//! Always true: only the cache that the newest record names is recovered, so its owner cannot go on
//! with it elsewhere. That an owner other than this host writes no more is the word of an
//! administrator. Everything after that is done by the units of the cluster, under the name of the
//! owner and the boot of this machine: another boot takes the right to write an image anew, by a
//! record, before its first write. Nothing is remembered where this host remembers its own units.
//! Deliberately absent: links. Whether a host that is asked may go on is decided by the vault.

use super::clustered;
use crate::cluster::identity;
use crate::config::Config;
use crate::daemon::{Daemon, VolumeSettings};
use crate::error::{Error, Result};
use crate::origin::{beside, pointer};
use crate::unit::copies::CopyPlace;
use crate::unit::sides::Membership;
use crate::vault::Vault;
use engine::snapshot::VolumeSnapshot;
use engine::types::Uuid;
use node::peers::PeerTimeout;
use node::record::{Degraded, Holder, Pointer, Record};
use node::vault::hex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a volume may be held before that is an error: the vault may be slow for a moment.
const HELD_PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What this host knows of its cluster.
pub struct Cluster {
    id: Uuid,
    host: Uuid,
    name: String,
    domain: String,
    vault: Vault,
    state_dir: PathBuf,
}

/// Volumes that are recovered in one go: of one owner, or those that no cluster decides about.
pub struct Share<'a> {
    pub owner: Option<Owner>,
    pub volumes: Vec<&'a VolumeSnapshot>,
}

/// The host that a cache is of, for which another one acts.
#[derive(Clone)]
pub struct Owner {
    holder: Holder,
    member: Membership,
    /// The command runs on the owner itself.
    is_here: bool,
    /// Where it is remembered which records were made.
    state_dir: PathBuf,
}

impl<'a> Share<'a> {
    pub fn each(&self) -> impl Iterator<Item = (&Share<'a>, &'a VolumeSnapshot)> {
        self.volumes.iter().map(move |volume| (self, *volume))
    }
}

impl Cluster {
    /// That of this configuration, if it has one.
    pub fn of(config: &Config) -> Result<Option<Cluster>> {
        let Some(section) = &config.cluster else {
            return Ok(None);
        };
        let state_dir = config.host.state_dir.clone();
        let (identity, _) = identity::load(&state_dir)?;
        Ok(Some(Cluster {
            id: identity.cluster,
            host: identity.host,
            name: section.name.clone(),
            domain: section.domain.clone(),
            vault: section.vault.clone(),
            state_dir,
        }))
    }

    fn owner(&self, holder: &Holder) -> Owner {
        let is_here = holder.host == self.host;
        let name = format!("recover-{}", hex(holder.cache));
        Owner {
            holder: holder.clone(),
            member: Membership {
                cluster: self.id,
                name: self.name.clone(),
                domain: self.domain.clone(),
                place: CopyPlace::default(),
                peer_timeout: PeerTimeout::default(),
                vault: self.vault.clone(),
                fence: None,
                me: holder.clone(),
                alone: true,
            },
            is_here,
            state_dir: match is_here {
                true => self.state_dir.clone(),
                false => self.state_dir.join(name),
            },
        }
    }

    /// Who may recover this volume from this cache; `None` where no cluster decides.
    fn look(&self, volume: &VolumeSnapshot, found: &Beside, cache: Uuid) -> Result<Owner> {
        let name = &volume.name;
        let refused = |why: String| Err(Error::refused(why).about(name.clone()));
        if found.pointer.cluster != self.id {
            return refused(format!(
                "volume {name}: its image belongs to another cluster than {}; recover it on a host \
                 of that one",
                self.name
            ));
        }
        let record = pointer::newest(&found.pointer, &self.vault, &found.ledger);
        let record = record.map_err(|fault| Error::failed(fault.message).about(name.clone()))?;
        if record.as_ref().is_some_and(|record| record.quiesced) {
            let words = "a backup window of it is open, and is broken when its data goes home";
            tracing::warn!(volume = %name, "volume {name}: {words}");
        }
        match record.as_ref().and_then(|record| record.owner.as_ref()) {
            Some(owner) if owner.cache == cache => {
                let why = record.as_ref().and_then(needs_others);
                why.map_or_else(
                    || Ok(self.owner(owner)),
                    |why| refused(format!("volume {name}: {why}")),
                )
            }
            Some(owner) => refused(format!(
                "volume {name}: {} owns it with another cache; what this one has of it was copied \
                 or given up, and is not written over what is newer",
                owner.name
            )),
            None => refused(format!(
                "volume {name}: no host owns it; what this cache has of it was given up, and is \
                 not written over what is newer"
            )),
        }
    }
}

/// Why the cache of the owner is not enough.
fn needs_others(record: &Record) -> Option<String> {
    let owner = record.owner.as_ref()?;
    let drainer = record.drainer()?;
    if drainer.host != owner.host {
        return Some(format!(
            "{} owns it, and {} may still write its image; start {} instead",
            owner.name, drainer.name, owner.name
        ));
    }
    let taken = record.degraded == Some(Degraded::TakenOver) && record.has_copies_elsewhere();
    taken.then(|| {
        format!(
            "{} had not got all of it from the host before when it was lost; a client that comes \
             to a host with a copy is served",
            owner.name
        )
    })
}

/// What lies beside the image of a clustered volume.
struct Beside {
    pointer: Pointer,
    ledger: PathBuf,
}

impl Beside {
    fn of(volume: &VolumeSnapshot) -> Option<Beside> {
        let image = Path::new(&volume.origin).canonicalize().ok()?;
        let ledger = beside::beside(&image, beside::LEDGER);
        let pointer = pointer::read(&ledger)?;
        Some(Beside { pointer, ledger })
    }
}

/// Divides volumes of a cache by their owners; and those that cannot be recovered here, with why.
pub fn divide<'a>(
    volumes: &[&'a VolumeSnapshot],
    cluster: Option<&Cluster>,
    cache: Uuid,
) -> (Vec<Share<'a>>, Vec<(String, Error)>) {
    let mut shares: Vec<Share<'a>> = Vec::new();
    let mut refused = Vec::new();
    for volume in volumes {
        let found = Beside::of(volume);
        let owner = match (found, cluster) {
            (None, _) => Ok(None),
            (Some(found), Some(cluster)) => cluster.look(volume, &found, cache).map(Some),
            (Some(_), None) => Err(no_cluster(volume)),
        };
        let owner = match owner {
            Ok(owner) => owner,
            Err(error) => {
                refused.push((volume.name.clone(), error));
                continue;
            }
        };
        let host = |owner: &Option<Owner>| owner.as_ref().map(|owner| owner.holder.host);
        match shares.iter_mut().find(|it| host(&it.owner) == host(&owner)) {
            Some(share) => share.volumes.push(volume),
            None => shares.push(Share {
                owner,
                volumes: vec![volume],
            }),
        }
    }
    (shares, refused)
}

fn no_cluster(volume: &VolumeSnapshot) -> Error {
    let name = &volume.name;
    let message = format!(
        "volume {name}: its image belongs to a cluster; recover it on a host of the cluster, with \
         the configuration of that host"
    );
    Error::refused(message).about(name.clone())
}

/// Refuses to act for hosts that may still write their images.
pub fn need_word(shares: &[Share<'_>], fenced: bool) -> Result<()> {
    let others = |share: &&Share<'_>| share.owner.as_ref().is_some_and(|it| !it.is_here);
    let Some(share) = shares.iter().find(others).filter(|_| !fenced) else {
        return Ok(());
    };
    let host = share.owner.as_ref().map_or("", |owner| owner.name());
    let names: Vec<&str> = share.volumes.iter().map(|it| it.name.as_str()).collect();
    let message = format!(
        "{host} owns {}, and may still write there; switch it off or cut it from the storage, and \
         say so with --fenced",
        names.join(", ")
    );
    Err(Error::refused(message).about(host.to_owned()))
}

impl Owner {
    pub fn name(&self) -> &str {
        &self.holder.name
    }

    pub fn is_here(&self) -> bool {
        self.is_here
    }

    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Lets a daemon without guests act for the owner. Its links are down, and it asks no host.
    pub fn join(&self, daemon: &Arc<Daemon>) -> Result<()> {
        let mut member = self.member.clone();
        assert!(member.me.cache == daemon.cache_id(), "it has its cache");
        member.me.boot = daemon.boot();
        member.me.session = Uuid(uuid::Uuid::new_v4().into_bytes());
        clustered::join_alone(member, daemon)
    }

    /// Adds a volume and waits until it is served, which needs the vault.
    pub fn serve(&self, daemon: &Daemon, settings: VolumeSettings) -> Result<()> {
        let name = settings.name.clone();
        let added = daemon.volume_add(settings);
        added.map_err(|error| super::live::volume_error(&name, error))?;
        let mut wrong_since: Option<Instant> = None;
        loop {
            let shown = daemon.units_shown().remove(&name).unwrap_or_default();
            if shown.here && daemon.volume_id(&name).is_some() {
                return Ok(());
            }
            if !shown.is_wrong() {
                wrong_since = None;
            } else if wrong_since.get_or_insert_with(Instant::now).elapsed() >= HELD_PATIENCE {
                let why = shown.reason.unwrap_or_else(|| shown.state.to_owned());
                return Err(Error::refused(format!("volume {name}: {why}")).about(name));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Everything is let go of: what was remembered is not needed any more.
    pub fn forget(&self) {
        if !self.is_here {
            // Only records that were decided are in it.
            let _ = std::fs::remove_dir_all(&self.state_dir);
        }
    }
}
