//! A cache of a host of a cluster in the hands of another host: whose volumes it has, and what
//! `recover` needs to act for that host.
//!
//! ```text
//! no pointer beside the image ─▶ Alone: it is destaged as without a cluster
//! a pointer ─┬─ of another cluster, or this host is in none ─▶ refused
//!            ├─ a volume, and the newest record has another owner or cache ─▶ refused
//!            ├─ a volume of the owner ─┬─ it is this host ─▶ Owner
//!            │                         └─ another one ─▶ Owner, by the word of an administrator
//!            └─ a copy ─┬─ not needed, or not enough ([`moved`]) ─▶ left as it is, and told
//!                       ├─ the owner of the record lives ─▶ the same
//!                       └─ else ─▶ Owner, by the word of an administrator about the dead owner
//! ```
//!
//! Always true: only a cache that the newest record names is recovered, as the owner's or as that
//! of this very copy, so its host cannot go on with it elsewhere. That the hosts which that record
//! lets serve the volume and write its image do neither any more is the word of an administrator.
//! Everything after that is done by the units of the cluster, under the name of the host whose
//! cache it is and the boot of this machine: the right to write an image is taken anew, by a record
//! that follows the one which was judged and no other, before its first write. Nothing is
//! remembered where this host remembers its own units.
//! Deliberately absent: links. Whether a host that is asked may go on is decided by the vault.

use super::Context;
use super::alive::Eyes;
use super::clustered;
use super::moved::{Copied, Verdict, judge};
use crate::cluster::hosts::Hosts;
use crate::cluster::identity::{self, Identity};
use crate::config::Config;
use crate::config::values::{NAME_BYTES_MAX, check_name};
use crate::daemon::{Daemon, VolumeSettings};
use crate::error::{Error, Result};
use crate::inspect;
use crate::origin::{beside, pointer};
use crate::unit::copies::CopyPlace;
use crate::unit::sides::Membership;
use crate::vault::Vault;
use engine::snapshot::VolumeSnapshot;
use engine::types::{Policy, Serial, Uuid, VolumeId};
use node::peers::PeerTimeout;
use node::record::{Degraded, Holder, Member, Pointer, Record};
use node::unit::Alone;
use node::vault::hex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a volume may be held before that is an error: the vault may be slow for a moment.
const HELD_PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What this host knows of its cluster.
pub struct Cluster {
    identity: Identity,
    hosts: Hosts,
    name: String,
    domain: String,
    vault: Vault,
    state_dir: PathBuf,
    /// The cache of this host, if it has one.
    cache: Option<Uuid>,
    /// Which image is which volume here.
    named: Vec<(PathBuf, String)>,
    eyes: Eyes,
}

/// A cache that was found, with what is bad in it.
pub struct Moved<'a> {
    pub cache: Uuid,
    pub volumes: &'a [VolumeSnapshot],
    /// Those whose data is nowhere else, as far as their ledgers tell.
    pub dirty: Vec<&'a VolumeSnapshot>,
    /// Those of which the log has lost something that it should have.
    pub damaged: BTreeSet<VolumeId>,
    /// By volume, the newest write of which a block cannot be read.
    pub bad_upto: BTreeMap<VolumeId, Serial>,
}

/// One volume that is recovered.
pub struct Task {
    /// Under the name that it is to have; a copy has none in the log.
    pub volume: VolumeSnapshot,
    /// What it is: a copy, which its cache was to keep for the owner.
    pub is_copy: bool,
    /// Who owns it, by the newest record of its cluster.
    pub owner: Option<String>,
    /// Hosts that could still serve it, or write its image: an administrator says that they do not.
    silent: Vec<Holder>,
    goes_by: Option<(Uuid, Alone)>,
}

/// Volumes that are recovered in one go: for one host, or those that no cluster decides about.
pub struct Share {
    pub owner: Option<Owner>,
    pub tasks: Vec<Task>,
}

/// A volume that is left as it is.
pub struct Left {
    pub name: String,
    pub error: Error,
    pub is_copy: bool,
    pub because: Because,
    /// What the cache has of it beyond what its log knows to be at the image.
    pub dirty_bytes: u64,
}

/// Why a volume is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// Its image has everything.
    OfItsImage,
    /// Another host has what it has, and more.
    OfAnother,
    /// What it has may be nowhere else, and cannot be used here.
    Refused,
}

/// What becomes of the volumes of a cache.
#[derive(Default)]
pub struct Division {
    pub shares: Vec<Share>,
    pub left: Vec<Left>,
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

impl Share {
    pub fn each(&self) -> impl Iterator<Item = (&Share, &Task)> {
        self.tasks.iter().map(move |task| (self, task))
    }

    pub fn volumes(&self) -> Vec<&VolumeSnapshot> {
        self.tasks.iter().map(|task| &task.volume).collect()
    }
}

impl Task {
    fn of(volume: VolumeSnapshot) -> Task {
        Task {
            volume,
            is_copy: false,
            owner: None,
            silent: Vec::new(),
            goes_by: None,
        }
    }

    /// Names of the hosts that an administrator speaks of with `--fenced`.
    pub fn silent(&self) -> Vec<&str> {
        self.silent.iter().map(|it| it.name.as_str()).collect()
    }
}

impl Left {
    fn refused(name: &str, is_copy: bool, why: &str) -> Left {
        let what = if is_copy { "copy of volume" } else { "volume" };
        Left {
            name: name.to_owned(),
            error: Error::refused(format!("{what} {name}: {why}")).about(name.to_owned()),
            is_copy,
            because: Because::Refused,
            dirty_bytes: 0,
        }
    }

    fn because(self, because: Because) -> Left {
        Left { because, ..self }
    }
}

impl Cluster {
    /// That of this configuration, if it has one.
    pub fn of(context: &Context, config: &Config) -> Result<Option<Cluster>> {
        let Some(section) = &config.cluster else {
            return Ok(None);
        };
        let state_dir = config.host.state_dir.clone();
        let (identity, hosts) = identity::load(&state_dir)?;
        let superblock = inspect::superblock_at(&config.cache.path);
        let cache = superblock.ok().and_then(|it| it.ok()).map(|it| it.cache);
        let named = config.volumes.iter().filter_map(|volume| {
            let image = volume.origin.canonicalize().ok()?;
            Some((image, volume.name.clone()))
        });
        Ok(Some(Cluster {
            name: section.name.clone(),
            domain: section.domain.clone(),
            vault: section.vault.clone(),
            state_dir,
            cache,
            named: named.collect(),
            eyes: Eyes::of(context, &identity, &hosts),
            identity,
            hosts,
        }))
    }

    /// Where it is remembered which records were made for another host.
    fn memory(&self, cache: Uuid) -> PathBuf {
        self.state_dir.join(format!("recover-{}", hex(cache)))
    }

    /// Nothing of a cache is to be recovered any more.
    pub fn forget(&self, cache: Uuid) {
        let _ = std::fs::remove_dir_all(self.memory(cache));
    }

    fn acting(&self, holder: &Holder) -> Owner {
        let is_here = holder.host == self.identity.host;
        Owner {
            holder: holder.clone(),
            member: Membership {
                cluster: self.identity.cluster,
                name: self.name.clone(),
                domain: self.domain.clone(),
                place: CopyPlace::default(),
                peer_timeout: PeerTimeout::default(),
                vault: self.vault.clone(),
                fence: None,
                me: holder.clone(),
                alone: Some(BTreeMap::new()),
            },
            is_here,
            state_dir: match is_here {
                true => self.state_dir.clone(),
                false => self.memory(holder.cache),
            },
        }
    }

    /// The host that a member of a record is, as far as its run is not asked for.
    fn holder_of(&self, member: &Member) -> Holder {
        let known = self.hosts.get(member.host);
        let name = known.map(|host| host.name.clone());
        Holder {
            host: member.host,
            cache: member.cache,
            boot: Uuid::NIL,
            session: Uuid::NIL,
            name: name.unwrap_or_else(|| member.host.to_string()),
        }
    }

    fn record(&self, name: &str, found: &Beside) -> Result<Option<Record>> {
        if found.pointer.cluster != self.identity.cluster {
            return Err(Error::refused(format!(
                "volume {name}: its image belongs to another cluster than {}; recover it on a host \
                 of that one",
                self.name
            ))
            .about(name.to_owned()));
        }
        let record = pointer::newest(&found.pointer, &self.vault, &found.ledger);
        let record = record.map_err(|fault| Error::failed(fault.message).about(name.to_owned()))?;
        if record.as_ref().is_some_and(|record| record.quiesced) {
            let words = "a backup window of it is open, and is broken when its data goes home";
            tracing::warn!(volume = %name, "volume {name}: {words}");
        }
        Ok(record)
    }

    /// Who may still act by this record, but for the host whose cache it is and which cannot.
    fn silent(&self, record: &Record) -> Vec<Holder> {
        let mut silent: Vec<Holder> = record.owner.iter().cloned().collect();
        let drainer = record.drainer().cloned();
        silent.extend(drainer.filter(|it| silent.iter().all(|known| known.host != it.host)));
        silent
    }

    /// A volume of a cache, which its owner may recover; its owner.
    fn look(&self, mut task: Task, found: &Beside, cache: Uuid) -> Result<(Task, Holder)> {
        let name = task.volume.name.clone();
        let refused = |why: &str| Err(Left::refused(&name, false, why).error);
        let record = self.record(&name, found)?;
        let Some((record, owner)) = record
            .as_ref()
            .and_then(|it| Some((it, it.owner.as_ref()?)))
        else {
            return refused(
                "no host owns it; what this cache has of it was given up, and is not written over \
                 what is newer",
            );
        };
        if owner.cache != cache {
            let owner = &owner.name;
            return refused(&format!(
                "{owner} owns it with another cache; what this one has of it was copied or given \
                 up, and is not written over what is newer"
            ));
        }
        if let Some(why) = needs_others(record) {
            return refused(&why);
        }
        task.silent = self.silent(record);
        task.silent.retain(|it| it.host != self.identity.host);
        let drainer = task.silent.iter().filter(|it| it.host != owner.host);
        if let Some(why) = drainer.filter_map(|it| self.eyes.why_alive(it)).next() {
            return refused(&format!("{why}, and it may still write its image"));
        }
        let judged = record.nonce;
        task.goes_by = Some((record.unit, Alone { judged, copy: None }));
        task.owner = Some(owner.name.clone());
        Ok((task, owner.clone()))
    }

    /// A copy of a cache; the host that goes on with it.
    fn look_at_copy(
        &self,
        mut task: Task,
        copied: &Copied,
    ) -> std::result::Result<(Task, Holder), Left> {
        let name = task.volume.name.clone();
        let refused = |why: &str| Left::refused(&name, true, why);
        let failed = |error: Error| Left {
            error,
            ..refused("")
        };
        let Some(found) = Beside::of(&task.volume) else {
            let origin = &task.volume.origin;
            return Err(refused(&format!(
                "{origin} is not there, or belongs to no cluster; mount its storage"
            )));
        };
        let record = self.record(&name, &found).map_err(failed)?;
        let member = match judge(record.as_ref(), copied) {
            Verdict::Use(member) => member,
            Verdict::NotNeeded(why) => return Err(refused(&why).because(Because::OfItsImage)),
            Verdict::Superfluous(why) => return Err(refused(&why).because(Because::OfAnother)),
            Verdict::Short(why) => return Err(refused(&why)),
        };
        let record = record.expect("it names the copy");
        let owner = record.owner.as_ref().expect("it has members");
        if owner.host == self.identity.host && Some(owner.cache) == self.cache {
            let why = "this host owns it, and has all of it; start its daemon";
            return Err(refused(why).because(Because::OfAnother));
        }
        task.silent = self.silent(&record);
        let others = task.silent.iter().filter(|it| it.host != member.host);
        if let Some(why) = others.filter_map(|it| self.eyes.why_alive(it)).next() {
            let why = format!("{why}, and it has all of it");
            return Err(refused(&why).because(Because::OfAnother));
        }
        let alone = Alone {
            judged: record.nonce,
            copy: Some(copied.copy),
        };
        task.goes_by = Some((record.unit, alone));
        task.owner = Some(owner.name.clone());
        Ok((task, self.holder_of(&member)))
    }

    /// What the volume of a copy is called here, and else by its image.
    fn name_of(&self, copy: &VolumeSnapshot, volumes: &[VolumeSnapshot]) -> String {
        let origin = Path::new(&copy.origin);
        let image = origin.canonicalize().ok();
        let mut named = self.named.iter();
        let named = named.find(|(at, _)| Some(at) == image.as_ref());
        let name = named.map_or_else(|| by_image(origin), |(_, name)| name.clone());
        let other = |it: &VolumeSnapshot| it.name == name && it.uuid != copy.uuid;
        match volumes.iter().any(other) {
            false => name,
            // A volume of another image, which stays what it is.
            true => format!("copy-{}", copy.name.trim_start_matches('@')),
        }
    }
}

fn by_image(origin: &Path) -> String {
    let stem = origin.file_stem().map(|it| it.to_string_lossy());
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = stem
        .unwrap_or_default()
        .chars()
        .filter(|c| safe(*c))
        .collect();
    let name: String = name.chars().take(NAME_BYTES_MAX).collect();
    match check_name(&name) {
        Ok(()) => name,
        Err(_) => "volume".into(),
    }
}

/// Why the cache of the owner is not enough.
fn needs_others(record: &Record) -> Option<String> {
    let owner = record.owner.as_ref()?;
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

impl Division {
    /// Divides what is in a cache by the hosts for which it is recovered, and tells what is left as
    /// it is. Only what `asked` takes is looked at.
    pub fn of(
        moved: &Moved<'_>,
        cluster: Option<&Cluster>,
        asked: &dyn Fn(&str) -> bool,
    ) -> Division {
        let mut division = Division::default();
        division.add_copies(moved, cluster, asked);
        let dirty = moved.dirty.iter();
        let volumes = dirty.filter(|it| it.replica.is_none() && asked(&it.name));
        for volume in volumes {
            // Of an ownership before the copy that is used instead.
            let copies = division.shares.iter().flat_map(|share| &share.tasks);
            if copies
                .into_iter()
                .any(|task| task.volume.uuid == volume.uuid)
            {
                continue;
            }
            division.add_volume(volume, cluster, moved.cache);
        }
        division
    }

    fn add_volume(&mut self, volume: &VolumeSnapshot, cluster: Option<&Cluster>, cache: Uuid) {
        let task = Task::of(volume.clone());
        let looked = match (Beside::of(volume), cluster) {
            (None, _) => Ok((task, None)),
            (Some(found), Some(cluster)) => {
                let looked = cluster.look(task, &found, cache);
                looked.map(|(task, owner)| (task, Some(cluster.acting(&owner))))
            }
            (Some(_), None) => Err(Left::refused(&volume.name, false, NO_CLUSTER).error),
        };
        match looked {
            Ok((task, owner)) => self.add(task, owner),
            Err(error) => self.left.push(Left {
                error,
                dirty_bytes: volume.dirty_bytes,
                ..Left::refused(&volume.name, false, "")
            }),
        }
    }

    fn add_copies(
        &mut self,
        moved: &Moved<'_>,
        cluster: Option<&Cluster>,
        asked: &dyn Fn(&str) -> bool,
    ) {
        for volume in moved.volumes {
            let damaged = moved.damaged.contains(&volume.id);
            let bad_upto = moved.bad_upto.get(&volume.id).copied().unwrap_or_default();
            let Some(copied) = Copied::of(volume, moved.cache, damaged, bad_upto) else {
                continue;
            };
            let name = cluster.map_or_else(
                || by_image(Path::new(&volume.origin)),
                |cluster| cluster.name_of(volume, moved.volumes),
            );
            if !asked(&name) {
                continue;
            }
            let task = Task {
                is_copy: true,
                ..Task::of(VolumeSnapshot {
                    name: name.clone(),
                    policy: Policy::WriteBack,
                    ..volume.clone()
                })
            };
            let looked = match cluster {
                Some(cluster) => cluster
                    .look_at_copy(task, &copied)
                    .map(|(task, holder)| (task, cluster.acting(&holder))),
                None => Err(Left::refused(&name, true, NO_CLUSTER)),
            };
            match looked {
                Ok((task, owner)) => self.add(task, Some(owner)),
                Err(left) => self.left.push(Left {
                    dirty_bytes: volume.dirty_bytes,
                    ..left
                }),
            }
        }
    }

    fn add(&mut self, task: Task, owner: Option<Owner>) {
        let host = |owner: &Option<Owner>| owner.as_ref().map(|owner| owner.holder.host);
        let mut shares = self.shares.iter_mut();
        let share = match shares.find(|it| host(&it.owner) == host(&owner)) {
            Some(share) => share,
            None => {
                let tasks = Vec::new();
                self.shares.push(Share { owner, tasks });
                self.shares.last_mut().expect("just added")
            }
        };
        let units = share.owner.as_mut().and_then(|it| it.member.alone.as_mut());
        if let (Some(units), Some((unit, alone))) = (units, task.goes_by) {
            units.insert(unit, alone);
        }
        share.tasks.push(task);
    }

    /// There is nothing to do, now or later.
    pub fn is_done(&self) -> bool {
        self.tasks().next().is_none()
            && self
                .left
                .iter()
                .all(|left| left.because != Because::Refused)
    }

    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.shares.iter().flat_map(|share| &share.tasks)
    }

    /// Refuses to act for hosts that may still write their images.
    pub fn need_word(&self, fenced: bool) -> Result<()> {
        let mut said: Vec<String> = Vec::new();
        let mut hosts: Vec<&str> = Vec::new();
        for task in self.tasks().filter(|task| !task.silent.is_empty()) {
            let owner = task.owner.as_deref().unwrap_or_default();
            let silent = task.silent();
            let may = match silent[..] == [owner] {
                true => String::new(),
                false => format!("{} ", silent.join(" and ")),
            };
            let name = &task.volume.name;
            said.push(format!(
                "{owner} owns {name}, and {may}may still write there"
            ));
            hosts.extend(silent);
        }
        let Some(first) = hosts.first().filter(|_| !fenced) else {
            return Ok(());
        };
        let first = (*first).to_owned();
        hosts.sort_unstable();
        hosts.dedup();
        let what = match hosts.len() {
            1 => "it".to_owned(),
            _ => hosts.join(" and "),
        };
        let message = format!(
            "{}; switch {what} off or cut {what} from the storage, and say so with --fenced",
            said.join("; ")
        );
        Err(Error::refused(message).about(first))
    }
}

const NO_CLUSTER: &str = "its image belongs to a cluster; recover it on a host of the cluster, \
                          with the configuration of that host";

impl Owner {
    pub fn name(&self) -> &str {
        &self.holder.name
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
            let wrong = shown.is_wrong() || shown.here && shown.reason.is_some();
            if !wrong {
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
            return;
        }
        let units = self.member.alone.iter().flatten();
        for copy in units.filter_map(|(_, it)| it.copy) {
            // The cache has it no more.
            let _ = std::fs::remove_file(self.state_dir.join("copies").join(hex(copy)));
        }
    }
}
