//! Pools: what is ordered of them, what their members do, and the thread that goes on with them.
//!
//! Owns the records of pools while the daemon runs. Always true: a record is durable before what
//! it says is done; orders and the thread change a record one at a time, so while the storage of a
//! member hangs the pools wait for it, and no other volume does. Deliberately absent: what follows
//! from what ([`crate::pool`]), and how a member gets its image ([`super::pool_moves`]).

use super::pool_ahead::{Ahead, AheadShown, Progress};
use super::pool_cluster::{HostShown, PoolCluster};
use super::pool_health::{ask_health, unix_ms_now};
use super::pool_words::unknown;
use super::{Daemon, VolumeError, VolumeSettings};
use crate::pool::members::{CloneKind, Settings};
use crate::pool::note::Note;
use crate::pool::record::Records;
use crate::pool::{Fact, Next, Phase, Record};
use crate::shard::pooled::{Happened, Pooled};
use engine::types::VolumeId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// How often the thread looks at what no event tells: soaks, health, hanging storage.
const PERIOD: Duration = Duration::from_secs(1);
/// Arrivals of a member within this time that say that its guest does not start.
const ARRIVALS_WITHIN_MS: u64 = 600_000;
const ARRIVALS_MAX: usize = 3;
/// A guest that starts asks for something within this time.
const SILENCE_MS_MAX: u64 = 60_000;
/// A member whose move failed is tried again after this time.
const RETRY_MS: u64 = 10_000;

/// What is known of a member since the last switch.
#[derive(Default)]
struct Member {
    due: Arc<AtomicBool>,
    arrivals: VecDeque<u64>,
    /// When its client came, and how much it had asked for by then.
    came: Option<(u64, u64)>,
    /// What its health program said.
    ill: Option<String>,
    /// Why it did not move, and when that was.
    stuck: Option<(u64, String)>,
}

/// All pools of the daemon.
pub(super) struct Pools {
    records: Records,
    boot: String,
    /// Of each member that was asked for. A lock of its own: it is taken under that of `known`.
    notes: Mutex<HashMap<String, Note>>,
    /// Held for a copy, or to set plain data.
    known: Mutex<BTreeMap<String, Known>>,
    /// Held while a record is changed, over all that this takes.
    turn: Mutex<()>,
    events: Mutex<Option<Receiver<Event>>>,
    sender: Sender<Event>,
    /// Of a host that is in one.
    pub cluster: OnceLock<Arc<PoolCluster>>,
}

struct Known {
    pool: Settings,
    record: Record,
    members: HashMap<String, Member>,
    health: Health,
    /// What is read before members move to it.
    ahead: Option<Arc<Ahead>>,
}

/// How far the health program is with the members of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Unasked,
    Asking,
    Asked,
}

/// What the thread of the pools is told.
enum Event {
    Member(String, Happened),
    /// In this generation and step.
    Answered {
        pool: String,
        of: (u64, usize),
        ill: Vec<(String, String)>,
    },
    /// The image of this pool is read ahead, or cannot be; or the cluster has another record.
    Turn(String),
}

/// A pool, as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolShown {
    pub clones: CloneKind,
    /// What the file says.
    pub named: PathBuf,
    pub record: Record,
    pub members: Vec<MemberShown>,
    pub ahead: Option<AheadShown>,
    /// Of a cluster: how far each is; none otherwise.
    pub hosts: Vec<HostShown>,
    /// Why this host does not follow the record of the cluster.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberShown {
    pub name: String,
    pub image: PathBuf,
    pub generation: u64,
    /// Its guest runs, or may come back.
    pub in_use: bool,
    /// What is wrong with it.
    pub trouble: Option<String>,
}

impl Pools {
    /// Reads the records. One that is not to be had keeps the daemon from starting: members would
    /// get a wrong image.
    pub fn new(pools: &[Settings], state_dir: &Path, boot: String) -> Result<Pools, String> {
        let records = Records::new(state_dir);
        if !pools.is_empty() {
            records
                .make()
                .map_err(|error| format!("{}: {error}", state_dir.display()))?;
        }
        let mut known = BTreeMap::new();
        for pool in pools {
            let record = records.read(&pool.name);
            let record = record.map_err(|fault| fault.to_string())?;
            let record = record.unwrap_or_else(|| Record::first(&pool.name, &pool.image));
            let members = HashMap::new();
            let pool = pool.clone();
            known.insert(
                pool.name.clone(),
                Known {
                    pool,
                    record,
                    members,
                    health: Health::Unasked,
                    ahead: None,
                },
            );
        }
        let (sender, events) = channel();
        Ok(Pools {
            records,
            boot,
            notes: Mutex::default(),
            known: Mutex::new(known),
            turn: Mutex::default(),
            events: Mutex::new(Some(events)),
            sender,
            cluster: OnceLock::new(),
        })
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool of a volume.
    pub fn of(&self, volume: &str) -> Option<String> {
        let known = self.known();
        let found = known.values().find(|known| known.pool.has(volume));
        found.map(|known| known.pool.name.clone())
    }

    pub fn clones(&self, pool: &str) -> Option<CloneKind> {
        self.known().get(pool).map(|known| known.pool.clones)
    }

    pub fn note(&self, member: &str) -> Note {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || Note::find(self.records.note_of(member), &self.boot);
        notes.entry(member.to_owned()).or_insert_with(find).clone()
    }

    /// What the shard is given with a volume that is a member.
    pub fn pooled(&self, volume: &str) -> Option<Pooled> {
        let mut known = self.known();
        let known = known.values_mut().find(|it| it.pool.has(volume))?;
        let due = known.record.is_due(volume);
        let member = known.members.entry(volume.to_owned()).or_default();
        member.due.store(due, Ordering::Release);
        let (due, sender, name) = (member.due.clone(), self.sender.clone(), volume.to_owned());
        Some(Pooled {
            note: self.note(volume),
            due,
            told: Box::new(move |happened| {
                // Without the thread the daemon is ending.
                let _ = sender.send(Event::Member(name.clone(), happened));
            }),
        })
    }

    /// The cluster has another record of a pool.
    pub fn tell_shared(&self, pool: &str) {
        let _ = self.sender.send(Event::Turn(pool.to_owned()));
    }

    /// Names, and what they begin with.
    pub fn images(&self) -> Vec<(String, PathBuf)> {
        let known = self.known();
        let all = known.values().map(|it| &it.pool);
        all.map(|it| (it.name.clone(), it.image.clone())).collect()
    }

    /// Looks now at the pool of this member.
    fn nudge(&self, member: &str) {
        let ended = Happened::Ended { wait: false };
        let _ = self.sender.send(Event::Member(member.to_owned(), ended));
    }

    /// Changes a record durably.
    pub fn change(
        &self,
        name: &str,
        change: impl FnOnce(&mut Record),
    ) -> Result<Record, VolumeError> {
        let mut record = self.record(name)?;
        change(&mut record);
        let written = self.records.write(&record);
        written.map_err(|fault| VolumeError::Origin(format!("pool {name}: {fault}")))?;
        if let Some(known) = self.known().get_mut(name) {
            for (member, state) in &known.members {
                state.due.store(record.is_due(member), Ordering::Release);
            }
            known.record = record.clone();
        }
        Ok(record)
    }

    pub fn record(&self, name: &str) -> Result<Record, VolumeError> {
        let known = self.known();
        let known = known.get(name).map(|known| known.record.clone());
        known.ok_or_else(|| unknown(name))
    }
}

impl Daemon {
    /// Goes on with the pools, until the daemon is dropped or stops.
    pub fn keep_refreshing(self: &Arc<Daemon>) -> std::io::Result<()> {
        if let Err(error) = self.forget_read_ahead() {
            tracing::warn!("what was read ahead of an image for a pool: {error}");
        }
        let events = self.pools.events.lock();
        let events = events.unwrap_or_else(PoisonError::into_inner).take();
        let Some(events) = events.filter(|_| !self.pools.known().is_empty()) else {
            return Ok(());
        };
        let daemon = Arc::downgrade(self);
        let thread = thread::Builder::new().name("pools".into());
        thread.spawn(move || {
            loop {
                let event = events.recv_timeout(PERIOD);
                let Some(daemon) = daemon.upgrade() else {
                    return;
                };
                match event {
                    Ok(Event::Member(member, happened)) => daemon.hear_of_member(&member, happened),
                    Ok(Event::Answered { pool, of, ill }) => daemon.hear_of_health(&pool, of, ill),
                    Ok(Event::Turn(pool)) => daemon.turn_pool(&pool),
                    Err(RecvTimeoutError::Timeout) => daemon.turn_pools(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(())
    }

    fn hear_of_member(&self, member: &str, happened: Happened) {
        let Some(pool) = self.pools.of(member) else {
            return;
        };
        let now = unix_ms_now();
        let came = (happened == Happened::Came).then(|| (now, self.asked_for(member)));
        if let Some(known) = self.pools.known().get_mut(&pool) {
            let state = known.members.entry(member.to_owned()).or_default();
            match happened {
                Happened::Came => {
                    state.arrivals.push_back(now);
                    state.came = came;
                }
                Happened::Ended { .. } | Happened::Stopped => state.came = None,
                Happened::Waits { .. } => {}
            }
        }
        match happened {
            Happened::Came | Happened::Stopped => {}
            Happened::Ended { wait } => {
                self.turn_pool(&pool);
                if wait {
                    self.show_after_end(member);
                }
            }
            Happened::Waits { goes_on } => {
                if !goes_on {
                    self.move_before_answer(&pool, member);
                }
                self.let_guests_in(member);
                self.turn_pool(&pool);
            }
        }
    }

    /// Those who have come after the end of a client find the member, also where it did not move.
    fn show_after_end(&self, member: &str) {
        // Another change may have hidden it by now, and shows it when it is over.
        match self.claim_in_turn(member) {
            Ok(_claim) => self.let_wait_no_more(member),
            Err(error) => tracing::error!(volume = %member, "{error}"),
        }
    }

    /// A guest begins on a member: the one before does not come back.
    fn move_before_answer(&self, pool: &str, member: &str) {
        let _turn = self.pools.turn();
        let record = self.pools.record(pool);
        if record.is_ok_and(|record| record.is_due(member)) {
            self.pools.note(member).remove();
            self.move_member(pool, member);
        }
    }

    /// What clients of a volume have asked for so far.
    fn asked_for(&self, member: &str) -> u64 {
        let clients = self.clients_by_name();
        clients.map_or(0, |all| all.get(member).map_or(0, |(_, asked)| *asked))
    }

    fn turn_pools(&self) {
        let rolling = |known: &Known| known.record.phase != Phase::Stable;
        let known = self.pools.known();
        let names: Vec<String> = known
            .iter()
            .filter(|(_, known)| rolling(known))
            .map(|(name, _)| name.clone())
            .collect();
        drop(known);
        names.iter().for_each(|name| self.turn_pool(name));
    }

    /// Goes on with a pool as far as that is possible now.
    pub(super) fn turn_pool(&self, name: &str) {
        let _turn = self.pools.turn();
        if let Err(error) = self.go_on_with_pool(name) {
            tracing::error!("{error}");
        }
    }

    fn go_on_with_pool(&self, name: &str) -> Result<(), VolumeError> {
        loop {
            self.follow_cluster(name)?;
            let record = self.pools.record(name)?;
            let now = unix_ms_now();
            self.keep_ahead(name, &record);
            if let Some(staged) = &record.staged {
                let due = record.rollout.asked.at_unix_ms.is_some_and(|at| at <= now);
                match self.read_ahead(name, &record, staged)? {
                    progress if self.clustered => {
                        return self.report_pool(name, Some(progress), &Next::Wait);
                    }
                    Progress::Over if due => self.switch_pool(name, staged)?,
                    Progress::Failed(why) => self.unstage(name, why)?,
                    _ => return Ok(()),
                }
                continue;
            }
            if record.phase != Phase::Rolling {
                return self.report_pool(name, None, &Next::Wait);
            }
            if self.move_due(name, &record, now)? {
                continue;
            }
            let facts = self.facts(name, &record)?;
            let next = record.next(&facts, unix_ms_now());
            let ends = matches!(next, Next::Step | Next::Stable);
            if ends && !self.was_asked(name, &record, &facts) {
                return self.report_pool(name, None, &Next::Wait);
            }
            if self.clustered {
                return self.report_pool(name, None, &next);
            }
            match next {
                Next::Wait => return Ok(()),
                Next::Step => {
                    self.pools.change(name, |it| it.step(unix_ms_now()))?;
                    self.forget_answers(name);
                }
                Next::Stable => {
                    self.pools.change(name, Record::settle)?;
                    let image = record.image.path.display();
                    tracing::info!("pool {name}: all members have {image}");
                }
                Next::Back(why) => {
                    tracing::error!("pool {name}: goes back: {why}");
                    self.pool_back(name, why)?;
                }
            }
        }
    }

    /// Moves members that are due. True if one has moved.
    fn move_due(&self, name: &str, record: &Record, now: u64) -> Result<bool, VolumeError> {
        let facts = self.facts(name, record)?;
        let due = facts
            .iter()
            .filter(|it| !it.in_use && record.is_due(&it.name));
        for fact in due {
            if !self.waits_to_retry(name, &fact.name, now) {
                self.move_member(name, &fact.name);
            }
        }
        Ok(self.pools.record(name)?.moved != record.moved)
    }

    /// Tells the cluster how far this host is.
    fn report_pool(
        &self,
        name: &str,
        ahead: Option<Progress>,
        next: &Next,
    ) -> Result<(), VolumeError> {
        let Some(cluster) = self.pool_cluster() else {
            return Ok(());
        };
        let record = self.pools.record(name)?;
        let facts = self.facts(name, &record)?;
        let behind = cluster
            .shared(name)
            .filter(|it| record.is_ahead_of(&it.record));
        cluster.report(name, |report| {
            report.follows = record.followed;
            report.generation = record.image.generation;
            report.members = facts.len() as u64;
            let moved = facts.iter().filter(|it| record.has_moved(&it.name));
            report.moved = moved.count() as u64;
            report.in_use = facts.iter().filter(|it| it.in_use).count() as u64;
            report.ready = ahead == Some(Progress::Over);
            if let Some(Progress::Failed(why)) = ahead {
                report.failed = Some(why);
            }
            report.ends = matches!(next, Next::Step | Next::Stable);
            let ill = facts
                .into_iter()
                .filter_map(|it| Some((it.name, it.unhealthy?)));
            report.ill = ill.collect();
            report.trouble = behind.map(|shared| {
                format!(
                    "the record in the vault is of generation {}, and this host has had \
                     generation {}; order `tenuto pool refresh` once more",
                    shared.record.image.generation, record.image.generation
                )
            });
        });
        Ok(())
    }

    /// How far the image that is staged is read ahead, which begins where it has not.
    fn read_ahead(
        &self,
        name: &str,
        record: &Record,
        staged: &Path,
    ) -> Result<Progress, VolumeError> {
        if let Some(ahead) = self.ahead_of(name) {
            return Ok(ahead.progress());
        }
        let prefetch = record.rollout.asked.prefetch;
        let (sender, pool) = (self.pools.sender.clone(), name.to_owned());
        // Without the thread of the pools the daemon is ending.
        let over = move || drop(sender.send(Event::Turn(pool)));
        let ahead = match self.begin_ahead(name, staged, prefetch, over) {
            Ok(begun) => begun,
            Err(error @ VolumeError::Stopped(_)) => return Err(error),
            Err(error) => Ahead::ended(staged, Progress::Failed(error.to_string())),
        };
        let progress = ahead.progress();
        match self.pools.known().get_mut(name) {
            Some(known) => known.ahead = Some(ahead),
            None => ahead.let_go(),
        }
        Ok(progress)
    }

    pub(super) fn ahead_of(&self, name: &str) -> Option<Arc<Ahead>> {
        self.pools.known().get(name)?.ahead.clone()
    }

    /// What was read ahead goes where members do not move to it.
    fn keep_ahead(&self, name: &str, record: &Record) {
        let wanted = match record.phase {
            Phase::Staged => record.staged.as_deref(),
            Phase::Rolling => Some(record.image.path.as_path()),
            Phase::Stable => None,
        };
        if let Some(known) = self.pools.known().get_mut(name)
            && let Some(ahead) = known.ahead.take_if(|it| Some(it.image.as_path()) != wanted)
        {
            ahead.let_go();
        }
    }

    /// What was staged is not switched to.
    pub(super) fn unstage(&self, name: &str, why: String) -> Result<(), VolumeError> {
        tracing::error!("pool {name}: does not go to what was staged: {why}");
        self.pools.change(name, |it| it.unstage(Some(why)))?;
        Ok(())
    }

    /// A volume that comes: a member of a pool of ephemeral clones has the image that the record
    /// says.
    pub(super) fn as_member(&self, mut settings: VolumeSettings) -> VolumeSettings {
        let known = self.pools.known();
        let pool = known.values().find(|it| it.pool.has(&settings.name));
        if let Some(known) = pool.filter(|it| it.pool.clones == CloneKind::Ephemeral) {
            let image = known.record.image_of(&settings.name);
            settings.origin.clone_from(&image.path);
        }
        settings
    }

    /// The members of a pool that are volumes here, attached or held.
    pub(super) fn members(&self, name: &str) -> Result<Vec<String>, VolumeError> {
        let pool = {
            let known = self.pools.known();
            known.get(name).map(|known| known.pool.clone())
        };
        let pool = pool.ok_or_else(|| unknown(name))?;
        let table = self.table();
        let held = table.held.keys();
        let all = table.entries.keys().chain(held);
        let mut members: Vec<String> = all.filter(|it| pool.has(it)).cloned().collect();
        members.sort();
        members.dedup();
        Ok(members)
    }

    fn facts(&self, name: &str, record: &Record) -> Result<Vec<Fact>, VolumeError> {
        let members = self.members(name)?;
        let clients = self.clients_by_name()?;
        let now = unix_ms_now();
        let mut facts = Vec::new();
        for member in members {
            let (connected, asked) = clients.get(&member).copied().unwrap_or_default();
            let in_use = connected > 0 || self.pools.note(&member).is_there();
            let mut known = self.pools.known();
            let state = known.get_mut(name).map(|it| &mut it.members);
            let state = state.map(|it| it.entry(member.clone()).or_default());
            let moved = record.phase == Phase::Rolling && record.moved.contains(&member);
            let unhealthy = state.and_then(|it| trouble(it, moved, asked, now));
            drop(known);
            facts.push(Fact {
                name: member,
                in_use,
                unhealthy,
            });
        }
        Ok(facts)
    }

    /// Of each volume its clients, and what they have asked for.
    fn clients_by_name(&self) -> Result<HashMap<String, (u64, u64)>, VolumeError> {
        let snapshot = self.handle.snapshot()?;
        let clients: HashMap<VolumeId, u64> = snapshot
            .volumes
            .iter()
            .map(|it| (it.volume, it.clients))
            .collect();
        let shown = snapshot.engine.volumes.into_iter();
        let shown = shown.map(|volume| {
            let asked = volume.counters.reads.requests + volume.counters.writes.requests;
            let connected = clients.get(&volume.id).copied().unwrap_or(0);
            (volume.name, (connected, asked))
        });
        Ok(shown.collect())
    }

    fn waits_to_retry(&self, name: &str, member: &str, now: u64) -> bool {
        let known = self.pools.known();
        let state = known.get(name).and_then(|it| it.members.get(member));
        let stuck = state.and_then(|it| it.stuck.as_ref());
        stuck.is_some_and(|(at, _)| now.saturating_sub(*at) < RETRY_MS)
    }

    /// Why a member did not move, or that it did.
    pub(super) fn note_move(&self, name: &str, member: &str, moved: Result<(), String>) {
        if let Err(why) = &moved {
            tracing::error!(volume = %member, "pool {name}: {member} does not move: {why}");
        }
        if let Some(known) = self.pools.known().get_mut(name) {
            let state = known.members.entry(member.to_owned()).or_default();
            state.stuck = moved.err().map(|why| (unix_ms_now(), why));
            state.arrivals.clear();
            state.ill = None;
        }
    }

    /// Whether the health program of a roll-out was asked for each member that has the new image,
    /// since the step began. If not it is asked, on a thread of its own: guests wait for this one.
    fn was_asked(&self, name: &str, record: &Record, facts: &[Fact]) -> bool {
        let Some(program) = record.rollout.asked.health.clone() else {
            return true;
        };
        let mut known = self.pools.known();
        let Some(known) = known.get_mut(name) else {
            return true;
        };
        match known.health {
            Health::Asked => return true,
            Health::Asking => return false,
            Health::Unasked => known.health = Health::Asking,
        }
        let on_new = facts.iter().filter(|it| record.moved.contains(&it.name));
        let members: Vec<String> = on_new.map(|it| it.name.clone()).collect();
        let (sender, pool) = (self.pools.sender.clone(), name.to_owned());
        let of = (record.image.generation, record.rollout.step);
        let asks = move || {
            let ask = |member: &String| Some((member.clone(), ask_health(&program, member).err()?));
            let ill = members.iter().filter_map(ask).collect();
            // Without the thread of the pools the daemon is ending.
            let _ = sender.send(Event::Answered { pool, of, ill });
        };
        let thread = thread::Builder::new().name("pool health".into());
        if let Err(error) = thread.spawn(asks) {
            tracing::error!("pool {name}: a thread for its health program: {error}");
            known.health = Health::Unasked;
        }
        false
    }

    /// The health program was asked for all, and these are ill.
    fn hear_of_health(&self, name: &str, of: (u64, usize), ill: Vec<(String, String)>) {
        if let Some(known) = self.pools.known().get_mut(name)
            && known.health == Health::Asking
            && of == (known.record.image.generation, known.record.rollout.step)
        {
            known.health = Health::Asked;
            for (member, why) in ill {
                known.members.entry(member).or_default().ill = Some(why);
            }
        }
        self.turn_pool(name);
    }

    /// Another step asks again.
    pub(super) fn forget_answers(&self, name: &str) {
        if let Some(known) = self.pools.known().get_mut(name) {
            known.health = Health::Unasked;
        }
    }

    /// All pools as they are, by name.
    pub fn pools_shown(&self) -> BTreeMap<String, PoolShown> {
        let known = self.pools.known();
        let pools: Vec<(Settings, Record)> = known
            .values()
            .map(|known| (known.pool.clone(), known.record.clone()))
            .collect();
        let ahead = |name: &str| self.ahead_of(name).map(|it| it.shown());
        drop(known);
        let shown = pools.into_iter().map(|(pool, record)| {
            let facts = self.facts(&pool.name, &record).unwrap_or_default();
            let members = facts.into_iter().map(|fact| {
                let image = record.image_of(&fact.name);
                MemberShown {
                    image: image.path.clone(),
                    generation: image.generation,
                    in_use: fact.in_use,
                    trouble: fact.unhealthy,
                    name: fact.name,
                }
            });
            let members = members.collect();
            let cluster = self.pool_cluster();
            let shared = cluster.and_then(|it| it.shared(&pool.name));
            let shown = PoolShown {
                clones: pool.clones,
                named: pool.image,
                record: shared.map_or(record.clone(), |it| it.record),
                members,
                ahead: ahead(&pool.name),
                hosts: cluster.map_or_else(Vec::new, |it| it.hosts(&pool.name)),
                trouble: cluster.and_then(|it| it.trouble(&pool.name)),
            };
            (pool.name, shown)
        });
        shown.collect()
    }
    pub(super) fn forget_trials(&self, name: &str) {
        if let Some(known) = self.pools.known().get_mut(name) {
            known.health = Health::Unasked;
            for state in known.members.values_mut() {
                state.arrivals.clear();
                state.came = None;
                state.ill = None;
                state.stuck = None;
            }
        }
    }

    /// A member was reset by command: its guest is not waited for any more.
    pub fn member_was_reset(&self, member: &str) {
        if self.pools.of(member).is_some() {
            self.pools.note(member).remove();
            self.pools.nudge(member);
        }
    }
}

/// What is wrong with a member.
fn trouble(state: &mut Member, moved: bool, asked: u64, now: u64) -> Option<String> {
    let recent = |at: &u64| now.saturating_sub(*at) < ARRIVALS_WITHIN_MS;
    state.arrivals.retain(recent);
    if let Some((_, why)) = &state.stuck {
        return Some(why.clone());
    }
    if !moved {
        return None;
    }
    if let Some(why) = &state.ill {
        return Some(why.clone());
    }
    if state.arrivals.len() >= ARRIVALS_MAX {
        let times = state.arrivals.len();
        return Some(format!("its guest came {times} times within ten minutes"));
    }
    let silent = state.came.filter(|(at, before)| {
        let long = now.saturating_sub(*at) >= SILENCE_MS_MAX;
        long && asked == *before
    });
    silent.map(|_| "its guest has asked for nothing for a minute".to_owned())
}
