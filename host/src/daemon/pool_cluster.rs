//! Pools whose record is in the vault of a cluster: orders, what hosts say, and the thread that
//! reads and decides.
//!
//! ```text
//! order ─▶ (CAS) ─▶ record in the vault ─▶ each host: read ─▶ followed ─▶ members move ─▶ said
//!                        ▲                                                             │
//!                        └──── the host that made it: switch, step, stable, back ◀─────┘
//! ```
//!
//! The host that made the newest record decides what follows from what all say; where there is no
//! link to it another one does, and the vault takes one of two. Always true: calls into the vault
//! run on this thread and on those of orders, never on the one that guests wait for; while it does
//! not answer, each host goes on by the record that it has followed last. Deliberately absent:
//! what follows from what ([`crate::pool::shared`]), and how members move ([`super::pools`]).

use super::pool_health::unix_ms_now;
use super::pool_words::{refused, tell_switch};
use super::{Daemon, VolumeError};
use crate::origin::beside;
use crate::pool::shared::{Decision, Report, Shared, unit_of};
use crate::pool::{Phase, Record};
use crate::unit::Post;
use crate::unit::sides::Membership;
use crate::vault::Records;
use engine::types::Uuid;
use node::vault::{Cas, Look, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often the vault is looked into for a pool whose members move.
const PERIOD: Duration = Duration::from_secs(1);
/// Of others each so many looks.
const SELDOM: u32 = 5;
/// What other hosts say is read so often by one that has nothing to decide.
const RARELY: u32 = 60;
/// How long a host that counts may take to follow.
const FOLLOW_PATIENCE: Duration = Duration::from_secs(60);
/// How long an order waits for a vault that does not say who was first.
const ORDER_PATIENCE: Duration = Duration::from_secs(60);

/// A pool in the vault.
struct Place {
    unit: Uuid,
    records: Records,
    state: Mutex<State>,
    /// There is another record.
    changed: Condvar,
}

struct State {
    newest: Option<Shared>,
    /// When that was seen first.
    since: Instant,
    /// What this host says, and has said.
    report: Report,
    said: Option<Report>,
    /// What all hosts said when that was read last.
    reports: Vec<Report>,
    trouble: Option<String>,
}

/// The pools of this host in its cluster.
pub(super) struct PoolCluster {
    me: Uuid,
    name: String,
    post: Arc<dyn Post>,
    places: BTreeMap<String, Place>,
    wake: Mutex<Sender<()>>,
}

/// How far a host of the cluster is with a pool, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostShown {
    pub report: Report,
    /// There is a link to it, or it is this one.
    pub up: bool,
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for the newest record. Nothing where none was ever made, as far as this host knows.
    /// `followed`: the number of one that it has followed.
    fn look(&self, followed: u64) -> Result<Option<Shared>, String> {
        let known = self.state().newest.clone();
        if let Err(why) = self.records.find() {
            if known.is_some() || followed > 0 {
                return Err(why);
            }
            // Others are told of this host before the first order. Where nothing can lie there,
            // that is the order's to say.
            if self.records.make().is_err() {
                return Ok(None);
            }
        }
        let there = known.is_some() || followed > 0;
        let found = match self.records.look(Look::new(self.unit, known.clone())) {
            Ok(found) => found,
            // It may have been put back to an earlier state.
            Err(why) if known.is_some() => {
                let earlier = self.records.look(Look::new(self.unit, None));
                Some(earlier.ok().flatten().ok_or(why)?)
            }
            Err(why) => return Err(why),
        };
        match found {
            None if there => {
                let vault = self.records.show();
                Err(format!("the vault {vault} has no record of it any more"))
            }
            found => Ok(found),
        }
    }

    /// True if this one is new.
    fn hear(&self, found: Shared) -> bool {
        let mut state = self.state();
        state.trouble = None;
        if state.newest.as_ref() == Some(&found) {
            return false;
        }
        (state.newest, state.since) = (Some(found), Instant::now());
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Says what is new of this host.
    fn say(&self, me: Uuid) -> Result<(), String> {
        let report = {
            let state = self.state();
            let new = state.said.as_ref() != Some(&state.report);
            new.then(|| state.report.clone())
        };
        if let Some(report) = report {
            self.records.say(me, &report.encode())?;
            self.state().said = Some(report);
        }
        Ok(())
    }

    /// Reads what the others say.
    fn listen(&self) -> Result<(), String> {
        let said = self.records.said()?;
        let reports = said.iter().filter_map(|bytes| Report::parse(bytes).ok());
        let reports = reports.collect();
        self.state().reports = reports;
        Ok(())
    }
}

impl PoolCluster {
    fn new(
        member: &Membership,
        post: Arc<dyn Post>,
        pools: Vec<(String, PathBuf)>,
    ) -> (PoolCluster, Receiver<()>) {
        let place = |(name, image): (String, PathBuf)| {
            let unit = unit_of(member.cluster, &name);
            let beside = beside::beside(&image, beside::RECORDS);
            let state = State {
                newest: None,
                since: Instant::now(),
                report: Report::of(member.me.host, &member.me.name),
                said: None,
                reports: Vec::new(),
                trouble: None,
            };
            let place = Place {
                unit,
                records: Records::of(&member.vault, member.cluster, unit, beside),
                state: Mutex::new(state),
                changed: Condvar::new(),
            };
            (name, place)
        };
        let (wake, woken) = channel();
        let cluster = PoolCluster {
            me: member.me.host,
            name: member.me.name.clone(),
            post,
            places: pools.into_iter().map(place).collect(),
            wake: Mutex::new(wake),
        };
        (cluster, woken)
    }

    fn place(&self, pool: &str) -> Result<&Place, VolumeError> {
        let place = self.places.get(pool);
        place.ok_or_else(|| refused(pool, "not known; see `tenuto pool ls`"))
    }

    /// The record of the cluster, as far as it was read.
    pub fn shared(&self, pool: &str) -> Option<Shared> {
        self.places.get(pool)?.state().newest.clone()
    }

    /// Waits for another record than this one, and not for ever.
    pub fn wait(&self, pool: &str, known: &Record) {
        let Some(place) = self.places.get(pool) else {
            return;
        };
        let same = |state: &mut State| {
            let newest = state.newest.as_ref();
            newest.is_some_and(|newest| newest.record == *known)
        };
        let changed = &place.changed;
        let _ = changed.wait_timeout_while(place.state(), PERIOD, same);
    }

    /// This host is so far.
    pub fn report(&self, pool: &str, change: impl FnOnce(&mut Report)) {
        let Some(place) = self.places.get(pool) else {
            return;
        };
        let mut state = place.state();
        let before = state.report.clone();
        let mut report = Report::of(self.me, &self.name);
        change(&mut report);
        state.report = report;
        let new = state.report != before;
        drop(state);
        if new {
            self.nudge();
        }
    }

    fn nudge(&self) {
        let wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        // Without the thread the daemon is ending.
        let _ = wake.send(());
    }

    /// Hosts that there is a link to, and this one.
    fn up(&self) -> BTreeSet<Uuid> {
        let others = self.post.neighbours().into_iter().map(|it| it.host);
        others.chain([self.me]).collect()
    }

    /// What hosts say of a pool, this one as it is now.
    pub fn hosts(&self, pool: &str) -> Vec<HostShown> {
        let up = self.up();
        let Some(place) = self.places.get(pool) else {
            return Vec::new();
        };
        let state = place.state();
        let others = state.reports.iter().filter(|it| it.host() != Some(self.me));
        let all = others.chain([&state.report]);
        let mut hosts: Vec<HostShown> = all
            .map(|report| HostShown {
                up: report.host().is_some_and(|host| up.contains(&host)),
                report: report.clone(),
            })
            .collect();
        hosts.sort_by(|one, other| one.report.name.cmp(&other.report.name));
        hosts
    }

    pub fn trouble(&self, pool: &str) -> Option<String> {
        let state = self.places.get(pool)?.state();
        state.trouble.clone().or(state.report.trouble.clone())
    }

    /// Whether this host is the one to decide, and there is something to decide.
    fn decides(&self, pool: &str) -> bool {
        let shared = self.shared(pool);
        let open = shared.filter(|it| it.record.phase != Phase::Stable);
        open.is_some_and(|it| it.by == self.me || !self.up().contains(&it.by))
    }

    /// What is to become of a pool, if this host is the one to decide.
    fn decision(&self, pool: &str) -> Option<(Shared, Decision)> {
        if !self.decides(pool) {
            return None;
        }
        let shared = self.shared(pool)?;
        let hosts = self.hosts(pool).into_iter();
        let reports: Vec<Report> = hosts.filter(|it| it.up).map(|it| it.report).collect();
        let since = self.places.get(pool)?.state().since;
        let patient = since.elapsed() < FOLLOW_PATIENCE;
        let decision = shared.decide(&reports, patient, unix_ms_now());
        Some((shared, decision))
    }

    /// Makes the record that follows the newest one.
    fn make(
        &self,
        pool: &str,
        local: &Record,
        change: &dyn Fn(&mut Record) -> Result<(), VolumeError>,
    ) -> Result<Shared, VolumeError> {
        let place = self.place(pool)?;
        let failed = |why: String| VolumeError::Origin(format!("pool {pool}: {why}"));
        let newest = place.look(local.followed).map_err(failed)?;
        place.records.make().map_err(failed)?;
        let number = newest.as_ref().map_or(1, |newest| newest.number + 1);
        let mut record = newest.map_or_else(|| local.alone(), |newest| newest.record);
        change(&mut record)?;
        // What cannot be read is told by that host, and the next order is right.
        let _ = place.listen();
        let known = self.hosts(pool).into_iter().map(|it| it.report.generation);
        let known = known.chain([local.image.generation]);
        let made = (super::host::fresh(), self.me);
        let own = Shared::next((place.unit, number), made, record, known);
        if !own.fits() {
            let why = "its record would be too long for a vault; name fewer canaries";
            return Err(refused(pool, why));
        }
        let begun = Instant::now();
        let late = || begun.elapsed() >= ORDER_PATIENCE;
        match place.records.decide(Cas::new(own), &late) {
            Some(Outcome::Won(shared)) => {
                place.hear(shared.clone());
                Ok(shared)
            }
            Some(Outcome::Lost(shared)) => {
                place.hear(shared);
                let why = "another host has ordered something of it just now; see `tenuto pool \
                           show`";
                Err(refused(pool, why))
            }
            Some(Outcome::Unwritten) => {
                let vault = place.records.show();
                Err(failed(format!("the vault {vault} cannot be written")))
            }
            Some(Outcome::Damaged(why)) => Err(failed(why)),
            None => {
                let vault = place.records.show();
                Err(failed(format!(
                    "the vault {vault} does not say whether the order counts; see `tenuto pool \
                     show` when it answers"
                )))
            }
        }
    }
}

impl Daemon {
    /// From now on the vault has the records of pools.
    pub(super) fn join_pools(
        self: &Arc<Daemon>,
        member: &Membership,
        post: Arc<dyn Post>,
    ) -> std::io::Result<()> {
        let pools = self.pools.images();
        if pools.is_empty() {
            return Ok(());
        }
        let (cluster, woken) = PoolCluster::new(member, post, pools);
        let cluster = Arc::new(cluster);
        let set = self.pools.cluster.set(cluster.clone());
        assert!(set.is_ok(), "a daemon joins one cluster, once");
        // Others are told how far this host is.
        let names = cluster.places.keys();
        names.for_each(|name| self.pools.tell_shared(name));
        let daemon = Arc::downgrade(self);
        let thread = thread::Builder::new().name("pools vault".into());
        thread.spawn(move || {
            let mut round = 0;
            loop {
                let Some(daemon) = daemon.upgrade() else {
                    return;
                };
                daemon.look_at_pools(&cluster, round);
                drop(daemon);
                round += 1;
                if woken.recv_timeout(PERIOD) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
                // What was said meanwhile is said in one round.
                while woken.try_recv().is_ok() {}
            }
        })?;
        Ok(())
    }

    /// The cluster of this host, as far as pools go.
    pub(super) fn pool_cluster(&self) -> Option<&Arc<PoolCluster>> {
        self.pools.cluster.get()
    }

    fn look_at_pools(&self, cluster: &Arc<PoolCluster>, round: u32) {
        for (name, place) in &cluster.places {
            let waits = {
                let state = place.state();
                let newest = state.newest.as_ref();
                let stable = newest.is_none_or(|it| it.record.phase == Phase::Stable);
                stable && state.said.as_ref() == Some(&state.report)
            };
            if waits && !round.is_multiple_of(SELDOM) {
                continue;
            }
            if let Err(why) = self.look_at_pool(cluster, (name, place), round) {
                let mut state = place.state();
                if state.trouble.as_ref() != Some(&why) {
                    tracing::warn!("pool {name}: {why}");
                }
                state.trouble = Some(why);
            }
        }
    }

    fn look_at_pool(
        &self,
        cluster: &Arc<PoolCluster>,
        (name, place): (&str, &Place),
        round: u32,
    ) -> Result<(), String> {
        let followed = self.pools.record(name).map_or(0, |it| it.followed);
        let found = place.look(followed)?;
        if found.is_none() && place.records.find().is_err() {
            return Ok(());
        }
        let new = found.is_some_and(|found| place.hear(found));
        if new {
            self.pools.tell_shared(name);
        }
        place.say(cluster.me)?;
        // Many hosts must not read of each other all the time.
        if cluster.decides(name) || new || round.is_multiple_of(RARELY) {
            place.listen()?;
        }
        let Some((shared, decision)) = cluster.decision(name) else {
            return Ok(());
        };
        self.carry_out(name, &shared, decision)
    }

    /// Makes the record that was decided on.
    fn carry_out(&self, name: &str, shared: &Shared, decision: Decision) -> Result<(), String> {
        let decision = match (decision, &shared.record.staged) {
            (Decision::Wait, _) => return Ok(()),
            (Decision::Switch, Some(staged)) => self.look_before_switch(name, staged)?,
            (decision, _) => decision,
        };
        let now = unix_ms_now();
        let unchanged = |record: &mut Record| {
            if *record != shared.record {
                // Another host was first, and what it made is looked at in the next round.
                return Err(refused(name, "has another record by now"));
            }
            decision.change(record, now);
            Ok(())
        };
        let number = shared.number;
        let made = self.order_pool(name, &unchanged);
        match made {
            Ok(record) => {
                let (phase, image) = (record.phase.word(), record.image.path.display());
                tracing::info!("pool {name}: {phase}, {image}, record {}", number + 1);
                Ok(())
            }
            Err(VolumeError::Settings(why)) => {
                tracing::debug!("{why}");
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// What was staged may not be what it was then.
    fn look_before_switch(&self, name: &str, staged: &Path) -> Result<Decision, String> {
        let members = self.members(name).map_err(|error| error.to_string())?;
        if members.is_empty() {
            return Ok(Decision::Switch);
        }
        let looked = self.look_at_refresh(name, staged, &members);
        let unfit = looked.map_err(|error| Decision::Unstage(error.to_string()));
        Ok(unfit.err().unwrap_or(Decision::Switch))
    }

    /// Changes the record that counts, that of the cluster where this host is in one. An error of
    /// `change` leaves it as it is.
    pub(super) fn order_pool(
        &self,
        name: &str,
        change: &dyn Fn(&mut Record) -> Result<(), VolumeError>,
    ) -> Result<Record, VolumeError> {
        let Some(cluster) = self.pool_cluster() else {
            if self.clustered {
                let why = "this host has not joined its cluster, whose vault has the record";
                return Err(refused(name, why));
            }
            let _turn = self.pools.turn();
            let mut record = self.pools.record(name)?;
            change(&mut record)?;
            return self.pools.change(name, |it| *it = record);
        };
        let local = self.pools.record(name)?;
        let made = cluster.make(name, &local, change);
        // Also where another host was first.
        self.pools.tell_shared(name);
        cluster.nudge();
        Ok(made?.record)
    }

    /// The record that counts, as far as it is known here.
    pub(super) fn pool_record(&self, name: &str) -> Result<Record, VolumeError> {
        let shared = self.pool_cluster().and_then(|it| it.shared(name));
        match shared {
            Some(shared) => Ok(shared.record),
            None => self.pools.record(name),
        }
    }

    /// Comes to what the record of the cluster says.
    pub(super) fn follow_cluster(&self, name: &str) -> Result<(), VolumeError> {
        let Some(cluster) = self.pool_cluster() else {
            return Ok(());
        };
        let Some(shared) = cluster.shared(name) else {
            return Ok(());
        };
        let members = self.members(name)?;
        loop {
            let record = self.pools.record(name)?;
            let mut next = record.follow(&shared.record, &members, unix_ms_now());
            if next.is_along(&shared.record) {
                next.followed = shared.number;
            }
            if next == record {
                return Ok(());
            }
            if next.image != record.image {
                self.forget_trials(name);
                tell_switch(&next);
            } else if next.rollout.step != record.rollout.step {
                self.forget_answers(name);
            }
            self.pools.change(name, |it| *it = next)?;
        }
    }
}
