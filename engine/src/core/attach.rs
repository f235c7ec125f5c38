//! Coming and going of volumes: attach, claim, release, detach.
//!
//! ```text
//! attach ─▶ checkpoint names it ─▶ ledger claimed (write-back) ─▶ ready
//! detach ─▶ idle ─▶ ledger and journal removed ─▶ checkpoint without it ─▶ reply
//! ```
//!
//! Always true: a ledger is claimed only after the log knows the volume, so a ledger that says
//! "dirty on this cache" finds its volume there; a volume whose ledger does not fit is refused
//! and nothing of it is touched. Deliberately absent: writing a ledger ([`super::ledger`]).

use super::Core;
use super::checkpoint::Waiter;
use super::image::of_ledger;
use super::keep::name_of;
use crate::adversary::{Bug, Mark, has, mark};
use crate::clean::{Lines, is_base};
use crate::event::{Device, Op, Purpose, Refusal, Stat, VolumeSpec};
use crate::format::checkpoint::{NAME_BYTES_MAX, ORIGIN_BYTES_MAX};
use crate::format::ledger::{LOSS_ACCEPTED, Ledger, OWNER_BYTES_MAX, PAST_LOG, Progress};
use crate::format::record::MAX_SECTOR;
use crate::image::{Finding, Image, Named, compare};
use crate::map::ExtentMap;
use crate::open::OpenError;
use crate::origin::Map;
use crate::outbox::{Cx, Pending};
use crate::ram::Layer;
use crate::settle::Settled;
use crate::snapshot::State;
use crate::types::{Generation, Policy, RequestId, SECTOR_BYTES, Serial, Uuid, VolumeId};
use crate::volume::destage::Phase;
use crate::volume::ledger::LedgerStep;
use crate::volume::{Bypass, LedgerWriter, Removal, Volume};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// No record of the log can name more of a volume.
pub(super) const BYTES_MAX: u64 = MAX_SECTOR * SECTOR_BYTES;

impl Core {
    /// Of a volume or a replica that the log knows.
    pub fn known_as(&self, name: &str) -> Option<VolumeId> {
        let mut known = self.volumes.iter();
        known.find(|it| it.name() == name).map(Volume::id)
    }

    /// The id a volume of this name has, or will have.
    pub fn place(&mut self, name: &str) -> VolumeId {
        if let Some(known) = self.known_as(name) {
            return known;
        }
        self.volumes.free_id()
    }

    /// Joins a volume to what the log knows of it.
    pub fn attach(
        &mut self,
        id: VolumeId,
        spec: VolumeSpec,
        settled: Settled,
    ) -> Result<(), OpenError> {
        self.attach_mapped(id, spec, settled, None)
    }

    /// The same where a map says where the bytes of its image lie.
    pub fn attach_mapped(
        &mut self,
        id: VolumeId,
        spec: VolumeSpec,
        mut settled: Settled,
        map: Option<Box<dyn Map>>,
    ) -> Result<(), OpenError> {
        self.check_spec(id, &spec)?;
        let map = map.map(|map| check_map(&spec, map)).transpose()?;
        let owned = spec.policy != Policy::Ephemeral && !spec.read_only;
        let written = map.is_some() && (owned || spec.commit);
        if let Some(why) = settled.journal_damage.take_if(|_| written) {
            // The log does not know the places that it has.
            return Err(OpenError::Damaged(why));
        }
        self.check_journal(id, &mut settled)?;
        self.check_proof(id, &spec, &settled)?;
        let left = settled.journal_left;
        let known = self.volumes.get(id).map(known_of_image);
        let mut volume = self.join(id, &spec, &settled)?;
        let commits = written && spec.commit;
        let overlay = match commits {
            true => Overlay::Commits,
            false => left_by_commit(&volume, &settled),
        };
        let (ledger, image) = (settled.ledger, settled.image.unwrap_or_default());
        // The origin is between two states until it has all of the cut that was begun.
        if let Some(Progress::Cut(upto)) = ledger.as_ref().map(|ledger| ledger.progress) {
            self.merge_epochs(&mut volume, 0, upto);
        }
        volume.take(&spec);
        volume.begins(settled.unproved);
        volume.finds_ledger(ledger.as_ref());
        let dropped = drop_destaged(&mut volume);
        let unchanged = settled.origin.filter(|_| dropped.is_empty());
        know_image(&mut volume, image, spec.policy, overlay);
        policy_at_attach(&mut volume, &spec, ledger.as_ref());
        let plans = written && volume.policy == Policy::WriteBack || commits;
        volume.finds_journal(ledger.as_ref().filter(|_| left), plans);
        let layer = self.layer_of(&volume, spec.base_layer, unchanged);
        keep_in_layer(&mut self.lines, &mut volume, layer);
        if settled.former {
            ask_former(&mut self.lines, &volume, (known, &dropped));
        }
        dropped
            .into_iter()
            .for_each(|map| self.extents.free_later(map));
        if let Some((base, map)) = map {
            volume.open_map(self.maps.open(base, map));
        }
        self.join_group(&mut volume, &spec.group, spec.policy);
        if volume.lacks_quota() {
            volume.open_quota(self.log.open_quota());
        }
        let unsaid = settled.loss_accepted;
        let writer = self.ledger_writer_at_attach(&volume, ledger, spec.commit, (image, unsaid));
        writer.into_iter().for_each(|it| volume.keep_ledger(it));
        let kept = volume.has_ledger() || !volume.is_replaying();
        assert!(kept, "a journal that is left has a ledger");
        self.given.is_in_use(volume.generation());
        self.volumes.put(id, volume);
        self.count_writers();
        self.checkpoint.wait(Waiter::Attach(id));
        Ok(())
    }

    /// A journal that was left, or is damaged, is nothing without a log that has what it has.
    fn check_journal(&self, id: VolumeId, settled: &mut Settled) -> Result<(), OpenError> {
        let known = self.volumes.get(id);
        let journaled = has_journaled(known, settled.ledger.as_ref());
        if settled.journal_left {
            journaled.ok_or(OpenError::JournalFirst)?;
        }
        if let Some(why) = settled.journal_damage.take() {
            let upto = journaled.ok_or(OpenError::Damaged(why))?;
            let ledger = settled.ledger.as_mut().expect("it names a journal");
            ledger.progress = Progress::Cut(upto);
        }
        Ok(())
    }

    /// Without a look at its ledger only that is served of which this host has all that its image
    /// lacks.
    fn check_proof(
        &self,
        id: VolumeId,
        spec: &VolumeSpec,
        settled: &Settled,
    ) -> Result<(), OpenError> {
        let known = self.volumes.get(id);
        let taken = known.is_some_and(Volume::is_taken_over);
        let fits = taken && spec.policy == Policy::WriteBack && !spec.read_only;
        match settled.unproved && !fits {
            false => Ok(()),
            true => Err(OpenError::Refused(format!(
                "volume {}: another host may still write its image, and this one has no copy of \
                 what it lacks",
                spec.name
            ))),
        }
    }

    /// The volume as the log or the ledger knows it. One that is refused stays as it was.
    fn join(
        &mut self,
        id: VolumeId,
        spec: &VolumeSpec,
        settled: &Settled,
    ) -> Result<Volume, OpenError> {
        let ledger = settled.ledger.as_ref();
        check_commit(spec, ledger)?;
        let known = self.volumes.take(id);
        let Some(known) = known else {
            return self.join_fresh(id, spec, ledger);
        };
        self.join_known(known, spec, settled)
            .map_err(|(known, error)| {
                self.volumes.put(id, *known);
                error
            })
    }

    /// The ledger of a volume that may write its origin, while it is attached like this.
    fn ledger_writer_at_attach(
        &self,
        volume: &Volume,
        ledger: Option<Ledger>,
        commit: bool,
        (image, unsaid): (Image, bool),
    ) -> Option<LedgerWriter> {
        assert!(
            volume.destaged() < volume.serial_next(),
            "the next serial is not destaged"
        );
        let owned = volume.policy == Policy::WriteBack;
        let writes = !volume.is_read_only() && volume.policy != Policy::Ephemeral;
        let writes = writes && !volume.is_unproved();
        let keeps = writes && (owned || ledger.is_some());
        (keeps || commit).then(|| {
            let ledger = self.ledger_of(volume, ledger, owned);
            LedgerWriter::of_attached(ledger, image, volume.policy.is_direct(), unsaid)
        })
    }

    /// The layer of a volume that comes: shared, or its own, with what the run before has kept of
    /// it if its image is still the same. What the tier has of an earlier volume under this id is
    /// of another image.
    fn layer_of(&mut self, volume: &Volume, base: Option<Uuid>, origin: Option<Stat>) -> Layer {
        if let Some(identity) = base {
            return self.lines.layers.base(identity);
        }
        let cached = matches!(volume.policy, Policy::WriteBack | Policy::WriteThrough);
        let seen = origin.filter(|_| cached && !volume.is_read_only());
        let name = seen.and_then(|it| name_of(volume.uuid(), volume.ledger_generation(), it));
        let kept = name.and_then(|name| self.lines.claim(name));
        if kept.is_some() {
            mark(Mark::KeptLayer);
        }
        let new = self.given.take_layer();
        kept.unwrap_or(new)
    }

    fn check_spec(&self, id: VolumeId, spec: &VolumeSpec) -> Result<(), OpenError> {
        let name = &spec.name;
        if spec.name.len() > NAME_BYTES_MAX || spec.origin.len() > ORIGIN_BYTES_MAX {
            return Err(OpenError::Refused(format!(
                "volume {name}: name or place of the origin is too long; \
                 at most {NAME_BYTES_MAX} and {ORIGIN_BYTES_MAX} bytes"
            )));
        }
        if spec.size_bytes > BYTES_MAX {
            return Err(OpenError::Refused(format!(
                "volume {name}: size {} is more than a volume can have; at most {BYTES_MAX} bytes",
                spec.size_bytes
            )));
        }
        if spec.size_bytes == 0 || !spec.size_bytes.is_multiple_of(512) {
            return Err(OpenError::Refused(format!(
                "volume {name}: size {} is not a multiple of 512 bytes",
                spec.size_bytes
            )));
        }
        if id.0 >= self.superblock.volumes_max {
            return Err(OpenError::Refused(format!(
                "volume {name}: the cache holds at most {} volumes",
                self.superblock.volumes_max
            )));
        }
        let attached = self.volumes.get(id);
        if attached.is_some_and(Volume::is_replica) {
            return Err(OpenError::Refused(format!(
                "volume {name} is kept here for another host, which serves it"
            )));
        }
        if attached.is_some_and(|volume| volume.is_attached()) {
            return Err(OpenError::Refused(format!(
                "volume {name} is already attached"
            )));
        }
        Ok(())
    }

    /// A volume the log knows: its dirty data must fit the ledger.
    fn join_known(
        &self,
        mut volume: Volume,
        spec: &VolumeSpec,
        settled: &Settled,
    ) -> Result<Volume, (Box<Volume>, OpenError)> {
        let ledger = settled.ledger.as_ref();
        let fits = check_dirty(self.superblock.cache, &volume, spec, settled)
            .map_err(|why| OpenError::Refused(format!("volume {}: {why}", volume.name())))
            .and_then(|()| match volume.is_taken_over() {
                // Records of the cluster say that all of it is here.
                true => Ok(()),
                false => check_owner(self.superblock.cache, volume.name(), ledger),
            })
            .and_then(|()| check_image(&volume, spec, settled))
            .and_then(|()| check_stage(&volume, settled));
        if let Err(error) = fits {
            return Err((Box::new(volume), error));
        }
        volume.loss_is_accepted();
        if let Some(ledger) = ledger {
            // An overlay has a name of its own until it is committed.
            let others = ledger.volume != volume.uuid();
            if others && !spec.commit {
                // Another image under an old name: nothing that the log has of it counts.
                volume.becomes(ledger.volume);
                volume.set_generation(self.given.generation_behind(ledger.generation));
                volume.void_older();
                volume.forget_destaged();
            }
            if ledger.generation >= volume.generation() {
                volume.set_generation(Generation(ledger.generation.0 + 1));
            }
            // Of an overlay as well: a commit that a kill cut short of its reset has brought it.
            let ours = ledger.volume == volume.uuid();
            if ours && !has(Bug::IgnoreLedger) {
                volume.reach(ledger.destaged);
            }
            volume.skip_to(ledger.destaged);
        }
        Ok(volume)
    }

    fn join_fresh(
        &self,
        id: VolumeId,
        spec: &VolumeSpec,
        ledger: Option<&Ledger>,
    ) -> Result<Volume, OpenError> {
        check_owner(self.superblock.cache, &spec.name, ledger)?;
        let mut volume = Volume::fresh(id, spec);
        volume.set_generation(self.given.generation_next());
        if let Some(ledger) = ledger {
            if ledger.dirty && spec.policy != Policy::Ephemeral && !spec.read_only {
                return Err(OpenError::Refused(format!(
                    "volume {}: the ledger says that this cache may hold dirty data of it, \
                     but the log does not know it; its cache was made anew",
                    spec.name
                )));
            }
            volume.becomes(ledger.volume);
            volume.set_generation(self.given.generation_behind(ledger.generation));
            volume.reach(ledger.destaged);
            volume.go_on_behind(ledger.destaged);
        }
        // Ids are used again; whatever the log still has under this one is of another volume.
        if !has(Bug::KeepAfterLoss) {
            volume.void_older();
        }
        Ok(volume)
    }

    /// The ledger of a volume as it is to be written next; `dirty` claims it.
    fn ledger_of(&self, volume: &Volume, old: Option<Ledger>, dirty: bool) -> Ledger {
        let mut ledger = self.claim_of(volume, old);
        ledger.dirty = dirty;
        if dirty {
            // Who claims has synced the origin.
            ledger.compatible &= !PAST_LOG;
        }
        ledger
    }

    /// The same, with the writer that it gets.
    pub(super) fn ledger_writer_of(
        &self,
        volume: &Volume,
        old: Option<Ledger>,
        dirty: bool,
    ) -> LedgerWriter {
        LedgerWriter::new(self.ledger_of(volume, old, dirty))
    }

    fn claim_of(&self, volume: &Volume, old: Option<Ledger>) -> Ledger {
        // A ledger that came back from a backup may name a cut that is behind the log; a ledger
        // that said so once more would be none.
        let reached = |it: Progress| matches!(it, Progress::Cut(upto) if upto < volume.destaged());
        let progress = old.as_ref().map(|ledger| ledger.progress);
        let progress = progress.filter(|it| !reached(*it));
        // A journal stays for its file, which may not be as long as the volume.
        let applies = matches!(progress, Some(Progress::Apply { .. }));
        let origin_bytes = old.as_ref().filter(|_| applies);
        let origin_bytes = origin_bytes.map_or(volume.size_bytes(), |ledger| ledger.origin_bytes);
        let mut owner = self.config.host_name.clone();
        while owner.len() > OWNER_BYTES_MAX {
            owner.pop();
        }
        Ledger {
            sequence: old.as_ref().map_or(0, |ledger| ledger.sequence),
            volume: volume.uuid(),
            cache: self.superblock.cache,
            machine: self.config.machine,
            boot: self.config.boot,
            owner,
            generation: volume.generation(),
            destaged: volume.destaged(),
            // A cut that was begun is reached by the recovered log, which covers it.
            progress: progress.unwrap_or(Progress::Idle),
            dirty: true,
            origin_bytes,
            mtime_before_ns: old.as_ref().map_or(0, |ledger| ledger.mtime_before_ns),
            mtime_limit_ns: old.as_ref().map_or(0, |ledger| ledger.mtime_limit_ns),
            image: volume.seen_image().kept(),
            may_succeed: false,
            compatible: old.map_or(0, |ledger| ledger.compatible),
        }
    }

    /// The checkpoint names the volume.
    pub(super) fn claim(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        // Whoever stops takes nothing more.
        if self.service.is_stopping() {
            return;
        }
        let Some(volume) = self.find(id) else { return };
        let owner = volume.policy == Policy::WriteBack;
        let says =
            |writer: &LedgerWriter| owner || writer.is_unsaid() && !has(Bug::KeepLossToItself);
        let says = volume.ledger_writer().is_some_and(says);
        if says && !has(Bug::ServeUnclaimed) {
            self.write_ledger(cx, id, LedgerStep::Claim);
        } else {
            self.open_for_requests(cx, id);
        }
    }

    pub(super) fn open_for_requests(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        volume.open();
        if !volume.is_unproved() {
            // The ledger says by now whose its data is.
            volume.owns_serials();
        }
        let serves = volume.serves();
        volume.wait_from(cx.now);
        if serves {
            self.start_readers(cx, id);
        }
        self.touch(id);
    }

    /// At an orderly stop, and when its image goes to another host, the ledger of a clean volume
    /// that was in use says that no cache holds anything of it.
    pub(super) fn release_if_clean(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let parks = self.service.is_parking();
        let Some(volume) = self.find(id).filter(|volume| volume.is_ready()) else {
            return;
        };
        let handed = volume.is_suspending() && volume.misfit().is_none();
        if !parks && !handed {
            return;
        }
        let clean = !volume.is_dirty() && !volume.is_destaging() && !volume.has_waiting();
        let clean = clean && !volume.is_replaying() && !volume.is_rebasing();
        let owned = volume.ledger().is_some_and(|it| it.dirty);
        if clean && owned && !volume.is_ledger_busy() {
            volume.written_ledger().release();
            volume.close();
            self.write_ledger(cx, id, LedgerStep::Release);
        }
    }

    pub(super) fn detach(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        discard_dirty: bool,
    ) {
        let volume = self.volume(id);
        let refusal = if volume.is_detaching() {
            Some(Refusal::Gone)
        } else if volume.owes() && !discard_dirty {
            Some(Refusal::Dirty)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            cx.out.reply(request, Err(refusal));
            return;
        }
        if let Some(order) = volume.drop_proof() {
            cx.out.reply(order, Err(Refusal::Gone));
        }
        let volume = self.volume(id);
        volume.begin_detach(request);
        // A commit that has begun goes to its end, if its image is touched by then.
        if self.checkpoint.is_waited_for(Waiter::Attach(id))
            && let Some(commit) = self.volume(id).take_commit()
        {
            cx.out.reply(commit, Err(Refusal::Gone));
        }
        self.give_up_unfinished(id);
        let volume = self.volume(id);
        let waiting = volume.take_waiting();
        let orders = volume.take_destage_orders();
        for request in volume.drop_switch().0 {
            cx.out.reply(request, Err(Refusal::Gone));
        }
        for waiting in waiting {
            cx.out.reply(waiting.request, Err(Refusal::Gone));
        }
        let arrivals = self.volume(id).take_arrivals();
        for request in orders.chain(arrivals) {
            cx.out.reply(request, Err(Refusal::Gone));
        }
        let batches: Vec<RequestId> = self.volume(id).take_batches().collect();
        for request in batches {
            cx.out.reply(request, Err(Refusal::Gone));
        }
        self.stop_peers(cx, id);
        self.forget_quiesce(cx, id);
        self.leave_group(cx, id);
    }

    /// Goes on with a detach when nothing of the volume is in flight any more.
    pub(super) fn detach_progress(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        let Some(request) = volume.detach_order() else {
            return;
        };
        let destaged = self.volume(id).is_destaging();
        self.abandon_destage(id);
        let volume = self.volume(id);
        if !volume.is_destaging() {
            // A commit goes with its destage.
            let commit = destaged.then(|| volume.take_commit()).flatten();
            commit
                .into_iter()
                .for_each(|request| cx.out.reply(request, Err(Refusal::Gone)));
            self.turns.rest(id);
        }
        let volume = self.volume(id);
        let busy = volume.is_destaging()
            || volume.has_requests()
            || volume.has_reads()
            || volume.is_committing()
            || volume.is_ledger_busy()
            || volume.has_batches()
            || volume.has_peers();
        if busy || volume.removal() == Removal::Ordered {
            return;
        }
        // A journal that is being applied is the only whole state there is.
        let applying = volume.ledger_writer();
        let applying = applying.is_some_and(LedgerWriter::names_journal);
        let kept = volume.bypass() == Bypass::Held && applying;
        // A first ledger that was cut short by a power loss is none, but there may be a file.
        let writes = !volume.is_read_only() && volume.policy != Policy::Ephemeral;
        let writes = writes && !volume.is_unproved();
        let beside = volume.has_ledger() || (writes && volume.is_attached());
        if beside && !kept && volume.removal() == Removal::No {
            volume.remove(Removal::Ordered);
            let pending = Pending::Remove { volume: id };
            cx.order(
                pending,
                Purpose::Ledger,
                Device::Ledger(id),
                Op::Remove,
                0,
                0,
            );
            return;
        }
        self.forget(cx, request, id);
    }

    /// A volume that is going away gives up a destage that has not touched the origin, if nothing
    /// of it is in flight; one with a request under way goes on to its end.
    pub(super) fn abandon_destage(&mut self, id: VolumeId) {
        if self.volume(id).misfit().is_some() {
            self.drop_copies(id);
        }
        let volume = self.volume(id);
        volume.abandon_replay();
        let Some(destage) = volume.destage() else {
            return;
        };
        let early = matches!(
            destage.phase,
            Phase::WaitLog { .. }
                | Phase::Look
                | Phase::Journal
                | Phase::Table
                | Phase::Guard
                | Phase::ImageSync
                | Phase::Gate
                | Phase::Stat
        );
        // What it still needs cannot be read. A step of its ledger goes to its end first.
        let in_step = matches!(destage.phase, Phase::Prepare | Phase::Begin | Phase::Finish);
        let stuck = volume.bypass() == Bypass::Held || volume.misfit().is_some();
        let early = early || (stuck && !in_step);
        if early && destage.jobs.len() == 0 && !destage.waiting {
            if destage.table_pieces() > 0 {
                return;
            }
            assert!(destage.is_idle(), "no memory goes with it");
            volume.drop_destage();
            self.touch(id);
        }
    }

    fn forget(&mut self, cx: &mut Cx<'_>, request: RequestId, id: VolumeId) {
        self.end_given_up(id);
        let mut volume = self.volumes.leave(id).expect("checked by the caller");
        assert!(
            !volume.has_requests()
                && !volume.has_reads()
                && !volume.is_in_part()
                && !volume.is_destaging(),
            "nothing of a volume that goes is in flight"
        );
        assert!(volume.group().is_none(), "it has left its group");
        // What has come since it was told to go, or could not be brought to its end.
        self.checkpoint.forget(Waiter::Resize(id));
        self.checkpoint.forget(Waiter::Cover(id));
        self.forget_join(id);
        assert!(volume.replication.is_empty() || self.replicas.sending.iter().all(|it| *it != id));
        let settling = volume.take_settling();
        let orders = volume.take_destage_orders();
        let waiting = volume.take_waiting().into_iter();
        let waiting = waiting.map(|waiting| waiting.request);
        let others = volume.resize_order();
        let suspend = volume.suspend_order();
        let rebase = volume.rebase_order();
        let others = others.into_iter().chain(suspend).chain(rebase);
        let others = others.chain(settling);
        for gone in waiting.chain(orders).chain(others) {
            cx.out.reply(gone, Err(Refusal::Gone));
        }
        self.log.close_quota(volume.quota_owner());
        self.lines.forget_layer(volume.layer());
        if let Some(map) = volume.map() {
            self.maps.close(map);
        }
        self.turns.forget(id);
        self.shares.forget(id);
        for epoch in volume.epochs {
            self.checkpoint.free_after_checkpoint(epoch.map);
        }
        self.count_writers();
        self.checkpoint.wait(Waiter::Detach(request, id));
    }
}

/// The policy that is in effect at first, and the switch to the one that is wanted.
fn policy_at_attach(volume: &mut Volume, spec: &VolumeSpec, ledger: Option<&Ledger>) {
    // A switch cut short: what is dirty or claimed is write-back until it is at the origin.
    let owes = volume.owes() || ledger.is_some_and(|ledger| ledger.dirty);
    let unfinished = owes && spec.policy.is_direct() && !spec.read_only;
    // What went past the log is not synced yet, and a flush has to cover it.
    let past_log = |ledger: &Ledger| ledger.compatible & PAST_LOG != 0;
    let past_log = ledger.is_some_and(past_log) && !has(Bug::ForgetPastLog);
    if past_log && !owes && volume.policy == Policy::WriteBack {
        volume.policy = Policy::Uncached;
    }
    let unsynced = volume.policy.is_direct() && spec.policy == Policy::WriteBack;
    let unsynced = unsynced && !has(Bug::StartWithoutSync);
    volume.policy = if unfinished {
        volume.begin_switch(spec.policy);
        Policy::WriteBack
    } else if unsynced && !owes && !spec.read_only {
        volume.begin_switch(spec.policy);
        volume.policy
    } else {
        spec.policy
    };
    volume.logged_policy = volume.policy;
}

/// What is kept clean of a volume that comes is in this layer. It may have had another one, before
/// it was let go of.
fn keep_in_layer(lines: &mut Lines, volume: &mut Volume, layer: Layer) {
    lines.forget_layer(volume.layer());
    volume.finds_layer(layer);
    lines.comes_back(volume.uuid());
}

/// The host that had the volume before may be asked, if only destages of this one change its image
/// from here on. `dropped`: what the image has got of the log since.
fn ask_former(
    lines: &mut Lines,
    volume: &Volume,
    (known, dropped): (Option<(Serial, Serial)>, &[ExtentMap]),
) {
    let knows = volume.policy == Policy::WriteBack && !volume.is_read_only();
    if !knows || volume.is_unproved() || is_base(volume.layer()) {
        return;
    }
    let reached = volume.destaged();
    let known = known.filter(|(_, end)| reached <= *end);
    let since = known.map_or(reached, |(since, _)| since);
    lines.ask_former(volume.layer(), since, dropped);
}

/// How much of a volume was at its image when its log heard of that last, and the newest write that
/// the log has. All between them is in its epochs.
fn known_of_image(volume: &Volume) -> (Serial, Serial) {
    let newest = volume.epochs.back().map(|epoch| epoch.last_serial);
    let destaged = volume.destaged();
    (destaged, newest.unwrap_or(destaged).max(destaged))
}

/// What is at the origin by now is clean.
fn drop_destaged(volume: &mut Volume) -> Vec<ExtentMap> {
    let mut dropped = Vec::new();
    while volume
        .epochs
        .front()
        .is_some_and(|epoch| epoch.last_serial <= volume.destaged())
    {
        mark(Mark::ReachedMeanwhile);
        dropped.extend(volume.epochs.pop_front().map(|epoch| epoch.map));
    }
    dropped
}

/// A map, and under which name volumes share it: the base that they stand on. One that is written
/// has one volume.
fn check_map(spec: &VolumeSpec, mut map: Box<dyn Map>) -> Result<(Uuid, Box<dyn Map>), OpenError> {
    let reads = spec.read_only || spec.policy == Policy::Ephemeral;
    let journaled = spec.journal_possible || spec.policy.is_direct();
    let planned = journaled && map.planner().is_some();
    let name = match (reads && !spec.commit, planned) {
        (true, _) => spec.base_layer,
        (false, true) => map.tables().first().copied(),
        (false, false) => None,
    };
    let refused = || {
        OpenError::Refused(format!(
            "volume {}: an image that is not raw is served read-only, as ephemeral, or with a \
             place for its journal",
            spec.name
        ))
    };
    let name = name.ok_or_else(refused)?;
    Ok((name, map))
}

/// Why the dirty data of a volume that the log knows must not be served like this.
fn check_dirty(
    cache: Uuid,
    volume: &Volume,
    spec: &VolumeSpec,
    settled: &Settled,
) -> Result<(), String> {
    let (ledger, overwrite) = (settled.ledger.as_ref(), settled.overwrite);
    if !volume.is_dirty() || ledger.is_some_and(|ledger| is_home(volume, ledger)) {
        return Ok(());
    }
    let bytes = volume.dirty_bytes();
    // From write-back to the origin's own policies the volume finds its way by itself.
    let switches = volume.policy == Policy::WriteBack && spec.policy.is_direct();
    if volume.policy != spec.policy && !switches {
        return Err(format!(
            "has {bytes} dirty bytes as {}; destage or reset it before its policy changes to {}",
            volume.policy.name(),
            spec.policy.name()
        ));
    }
    if spec.read_only {
        return Err(format!(
            "has {bytes} dirty bytes; it cannot be read-only yet"
        ));
    }
    if spec.policy == Policy::Ephemeral {
        return Ok(());
    }
    // A change of size may have been cut short before a checkpoint named it; nothing was owed then.
    let reached = |ledger: &Ledger| {
        let last = volume.epochs.back().map(|epoch| epoch.last_serial);
        ledger.volume == volume.uuid() && last <= Some(ledger.destaged)
    };
    if spec.size_bytes < volume.size_bytes() && !ledger.is_some_and(reached) {
        return Err(format!(
            "has {bytes} dirty bytes and its origin has shrunk; restore the size first"
        ));
    }
    match ledger {
        None if overwrite || settled.unproved => Ok(()),
        None => Err(format!(
            "has {bytes} dirty bytes in the log but its origin has no ledger; \
             was the image replaced?"
        )),
        Some(ledger) if ledger.volume != volume.uuid() => Err(format!(
            "has {bytes} dirty bytes in the log but the ledger beside its origin belongs to \
             volume {}",
            ledger.volume
        )),
        // Records of the cluster say whose it is.
        Some(_) if volume.is_taken_over() => Ok(()),
        // The last one that was written in this life, before the volume let go of its image: a
        // recovery would have given it another generation.
        Some(ledger)
            if (ledger.generation, ledger.cache) == (volume.generation(), cache)
                && ledger.destaged == volume.destaged() =>
        {
            Ok(())
        }
        Some(ledger) if ledger.generation >= volume.generation() => Err(format!(
            "has {bytes} dirty bytes of an older generation; {} owns it since",
            ledger.owner
        )),
        Some(_) => Ok(()),
    }
}

/// Acknowledged writes that may have gone with the stage must not be passed over. A ledger that
/// says that nobody holds anything was written when there was nothing to lose.
fn check_stage(volume: &Volume, settled: &Settled) -> Result<(), OpenError> {
    let owned = settled.ledger.as_ref().is_none_or(|ledger| ledger.dirty);
    let overlay = volume.policy == Policy::Ephemeral;
    if !volume.lost_stage() || settled.without_stage || !(owned || overlay) {
        return Ok(());
    }
    let name = &volume.name();
    Err(OpenError::StageLost(match overlay {
        true => format!(
            "volume {name}: its overlay is lost, because the stage is gone though this host was \
             not started again; bring no guest up that was running on it"
        ),
        false => format!(
            "volume {name}: acknowledged writes may be missing, because the stage is gone though \
             this host was not started again; the log has all that was flushed, {} bytes of it \
             dirty",
            volume.dirty_bytes()
        ),
    }))
}

/// How an overlay lies on its image when its volume comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overlay {
    /// On what it was begun on, or not.
    AsEver,
    /// A plan is about to write the image, which the ledger says from then on.
    Commits,
    /// Its commit was cut short, and another program has written the image since.
    Misfits,
}

/// Whether the image is what a commit that was cut short before it was decided has left.
fn left_by_commit(volume: &Volume, settled: &Settled) -> Overlay {
    let ledger = settled.ledger.as_ref();
    let unknown = volume.image_under().is_unknown() && volume.policy == Policy::Ephemeral;
    let prepares = |it: &&Ledger| it.progress == Progress::Prepare && it.volume == volume.uuid();
    let ledger = ledger.filter(prepares).filter(|_| unknown);
    match ledger.zip(settled.image_otherwise) {
        Some((ledger, image)) if of_ledger(ledger, &image) != Finding::Same => Overlay::Misfits,
        _ => Overlay::AsEver,
    }
}

/// What a volume knows its image by from now on. An overlay lies on the image that was there when
/// its first write came; on another one it must not be read.
fn know_image(volume: &mut Volume, image: Image, policy: Policy, overlay: Overlay) {
    let (under, commits) = (volume.image_under(), overlay == Overlay::Commits);
    assert!(
        !commits || policy == Policy::Ephemeral,
        "an overlay is committed"
    );
    let lies = policy == Policy::Ephemeral && volume.is_dirty();
    let misfits = match overlay {
        Overlay::AsEver => overlay_misfit(&under, &image) != Finding::Same,
        Overlay::Commits => false,
        Overlay::Misfits => true,
    };
    let seen = match volume.is_read_only() || policy == Policy::Ephemeral && !commits {
        true => image,
        false => volume.written_image(&image),
    };
    let under = match policy {
        // The ledger tells, also at a start after the next.
        Policy::Ephemeral if commits || overlay == Overlay::Misfits => Image::default(),
        Policy::Ephemeral if lies && !under.is_unknown() => under,
        Policy::Ephemeral => image.kept(),
        _ => Image::default(),
    };
    volume.knows_image(seen, under, lies && misfits);
}

/// Whether an overlay lies on another image than this.
fn overlay_misfit(under: &Image, image: &Image) -> Finding {
    match under.is_unknown() || image.is_unknown() || has(Bug::LayOverAnyBase) {
        true => Finding::Same,
        false => compare(under, Some(image), Named::Unknown),
    }
}

/// Dirty data is not laid over another image than the one it belongs to.
fn check_image(volume: &Volume, spec: &VolumeSpec, settled: &Settled) -> Result<(), OpenError> {
    let (ledger, image) = (settled.ledger.as_ref(), settled.image.unwrap_or_default());
    let destaged = ledger.map_or(Serial(0), |ledger| ledger.destaged);
    let left = |epoch: &crate::volume::Epoch| epoch.last_serial > destaged;
    let (name, bytes) = (&spec.name, volume.dirty_bytes());
    if spec.policy == Policy::Ephemeral {
        let image = settled.image_otherwise.unwrap_or(image);
        let found = overlay_misfit(&volume.image_under(), &image);
        if !spec.commit || found == Finding::Same || !volume.epochs.iter().any(left) {
            return Ok(());
        }
        return Err(OpenError::Refused(format!(
            "volume {name}: its image {} since the overlay was begun, so the overlay is not \
             committed to it; run `tenuto volume reset {name}`",
            found.words()
        )));
    }
    // What the ledger counts as destaged goes nowhere any more.
    let owed = volume.epochs.iter().any(left);
    let owed = owed && ledger.is_some_and(|ledger| !is_home(volume, ledger));
    let found = ledger.map_or(Finding::Same, |ledger| of_ledger(ledger, &image));
    if !owed || settled.overwrite || found == Finding::Same || has(Bug::LayOverAny) {
        return Ok(());
    }
    Err(OpenError::Image(format!(
        "volume {name}: has {bytes} dirty bytes in the log, but its image {} {}",
        spec.origin,
        found.words()
    )))
}

/// The cut of a pending journal, if the log has all that the journal had. Then it can be replayed
/// while its volume is served; or, if it cannot be read any more, its destage is as one in place
/// that was cut short. An overlay that was being committed has no serials that would tell.
fn has_journaled(volume: Option<&Volume>, ledger: Option<&Ledger>) -> Option<Serial> {
    let (volume, ledger) = (volume?, ledger?);
    let Progress::Apply { upto, .. } = ledger.progress else {
        return None;
    };
    let mut epochs = volume.epochs.iter();
    let ends = epochs.any(|epoch| epoch.last_serial == upto);
    let whole = volume.policy == Policy::WriteBack && volume.state() != State::Held;
    let has = whole && ledger.volume == volume.uuid() && ends;
    has.then_some(upto)
}

/// Whether all that the log has of a volume is at the origin, by a ledger that others have written
/// since. Who takes a volume over goes on with its serials, and does so only when everything is at
/// the origin or the loss is accepted; so serials alone tell what became of the log of a cache
/// device that was dead when its volumes went home.
fn is_home(volume: &Volume, ledger: &Ledger) -> bool {
    let since = ledger.volume == volume.uuid() && ledger.generation >= volume.generation();
    let lossless = ledger.compatible & LOSS_ACCEPTED == 0;
    let last = volume.epochs.back().map(|epoch| epoch.last_serial);
    let destaged = last.is_none_or(|last| last <= ledger.destaged);
    volume.policy != Policy::Ephemeral && since && lossless && destaged
}

/// Dirty data of another cache or machine must not be passed over.
fn check_owner(cache_here: Uuid, name: &str, ledger: Option<&Ledger>) -> Result<(), OpenError> {
    let Some(ledger) = ledger.filter(|ledger| ledger.dirty) else {
        return Ok(());
    };
    if ledger.cache == cache_here {
        return Ok(());
    }
    let owner = &ledger.owner;
    let cache = ledger.cache;
    Err(OpenError::Refused(format!(
        "volume {name}: {owner} may hold dirty data of it in cache {cache} (after serial {}); \
         start tenuto there, or run `tenuto recover` on that cache",
        ledger.destaged
    )))
}

/// An image that another volume owes data is not to be written.
fn check_commit(spec: &VolumeSpec, ledger: Option<&Ledger>) -> Result<(), OpenError> {
    let Some(ledger) = ledger.filter(|ledger| spec.commit && ledger.dirty) else {
        return Ok(());
    };
    Err(OpenError::Refused(format!(
        "volume {}: {} may hold dirty data of its image, of volume {}; bring that home first",
        spec.name, ledger.owner, ledger.volume
    )))
}
