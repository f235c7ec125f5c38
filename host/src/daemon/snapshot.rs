//! Images that rest while their guests go on: for a copy, and for snapshots.
//!
//! ```text
//! quiesce ─▶ (the image is copied; see `backup`) ─▶ resume
//! quiesce ─▶ new files made ─▶ announced ─▶ in place ─▶ exchanged ─▶ resume        snapshot
//! ```
//!
//! A snapshot freezes what the image has at that moment under another name, and the volume goes on
//! in a new file that stands on it, under the name of the image. All members of a group have theirs
//! at one cut. Always true: until the files are exchanged everything can be undone, and is when
//! something fails; a kill leaves the image as it was or the snapshot as it was to be. Deliberately
//! absent: what the engine does meanwhile (see its `quiesce`), and what is in the new file.

use super::volumes::{Claim, Entry};
use super::{Daemon, VolumeError, identity};
use crate::lock;
use crate::marks::{self, Phase};
use crate::origin::mapped::{Mapped, Places};
use crate::origin::successor::{self, Plan, Successor};
use crate::origin::written;
use crate::shard::control::{CommandError, Exchange};
use crate::target::is_settled;
use ::image::format::mark::Mark;
use ::image::limits::CHAIN_FILES_MAX;
use engine::event::{Command, Refusal};
use engine::types::Policy;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A file that was renamed a moment ago has times that tell nothing yet. So long is waited until
/// they do; then what is kept clean of it is found again after a restart.
const SETTLE_WAIT: Duration = Duration::from_secs(6);
const SETTLE_POLL: Duration = Duration::from_millis(100);

/// A volume whose image is frozen.
struct Member {
    entry: Entry,
    image: Arc<Mapped>,
    frozen: String,
    successor: Option<Successor>,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Rests,
    Announced,
    InPlace,
    Exchanged,
}

impl Daemon {
    /// Lets the images be written again. Fails where they did not rest all the time. Gives up a
    /// rest that has not begun yet.
    pub(super) fn end_quiesce(&self, name: &str) -> Result<(), VolumeError> {
        let volume = self.known(name)?.id;
        let resumed = self.command(name, Command::Resume { volume });
        if is_refused(&resumed, Refusal::NotQuiesced) {
            return Err(VolumeError::Origin(format!(
                "volume {name}: its image does not rest: it was not quiesced, had not come to rest \
                 yet, the daemon was started again since, or the log needed its room; a copy that \
                 was made meanwhile may be of no single moment"
            )));
        }
        if is_refused(&resumed, Refusal::Busy) {
            return Err(VolumeError::Origin(format!(
                "volume {name}: a snapshot of it is being taken; wait until that has ended"
            )));
        }
        resumed
    }

    /// Freezes the image of a volume, and of all members of its group; the names that these have
    /// now.
    pub fn volume_snapshot(
        &self,
        name: &str,
        snapshot: &str,
        plain: bool,
    ) -> Result<Vec<PathBuf>, VolumeError> {
        let claims = self.claim_group(name)?;
        let mut members = Vec::new();
        for claim in &claims {
            members.push(self.member(&claim.name, snapshot)?);
        }
        for member in &members {
            self.check_plan(member, plain)?;
        }
        let volume = members[0].entry.id;
        self.command(&members[0].entry.settings.name, Command::Quiesce { volume })?;
        let taken = self.take_snapshot(&mut members, plain);
        if taken.is_err() {
            undo(&mut members);
        }
        let ended = self.end_rest(&members);
        taken?;
        ended?;
        let frozen = members.iter().filter_map(|it| it.successor.as_ref());
        Ok(frozen.map(|it| it.frozen().to_path_buf()).collect())
    }

    /// The right to change a volume and the members of its group that write their images by the
    /// log.
    fn claim_group(&self, name: &str) -> Result<Vec<Claim<'_>>, VolumeError> {
        let group = self.known(name)?.settings.group;
        let mut names = vec![name.to_owned()];
        if !group.is_empty() {
            let table = self.table();
            let all = table.entries.values().map(|it| &it.settings);
            let owned = all.filter(|it| it.group == group && !it.read_only);
            let owned = owned.filter(|it| it.policy == Policy::WriteBack);
            names.extend(owned.map(|it| it.name.clone()));
        }
        names.sort();
        names.dedup();
        names.iter().map(|it| self.claim(it)).collect()
    }

    fn member(&self, name: &str, snapshot: &str) -> Result<Member, VolumeError> {
        let entry = self.known(name)?;
        check_policy(&entry, "snapshotted")?;
        let settings = |why: String| VolumeError::Settings(format!("volume {name}: {why}"));
        let image = self.handle.image(entry.id)?;
        let Some(image) = image.filter(|image| image.is_written()) else {
            return Err(settings(
                "its image is raw, which has no room for snapshots; make it qcow2 with `qemu-img \
                 convert -O qcow2`, or use the snapshots of the storage between `tenuto volume \
                 quiesce` and `resume`"
                    .into(),
            ));
        };
        if image.links().len() >= CHAIN_FILES_MAX {
            let image = entry.settings.origin.display();
            return Err(settings(format!(
                "its image has {CHAIN_FILES_MAX} files in its chain already; remove the volume, \
                 shorten the chain with `qemu-img rebase -b BASE -F qcow2 {image}`, and add it"
            )));
        }
        let frozen = successor::frozen_name(&entry.settings.origin, snapshot);
        let frozen = frozen.ok_or_else(|| settings("its origin is no name in UTF-8".into()))?;
        Ok(Member {
            entry,
            image,
            frozen,
            successor: None,
            step: Step::Rests,
        })
    }

    fn check_plan(&self, member: &Member, plain: bool) -> Result<(), VolumeError> {
        let plan = member.plan(Mark::default(), plain);
        let allow = self.ledgers.images.allow(plan.named);
        Ok(successor::check(&plan, &allow)?)
    }

    /// All images rest. What fails leaves some members further than others.
    fn take_snapshot(&self, members: &mut [Member], plain: bool) -> Result<(), VolumeError> {
        for member in members.iter_mut() {
            let mark = self.mark_of(member)?;
            let plan = member.plan(mark, plain);
            let made = Successor::make(member.image.top(), &plan)?;
            member.successor = Some(made);
        }
        for member in members.iter_mut() {
            let volume = member.entry.id;
            self.command(member.name(), Command::Announce { volume })?;
            member.step = Step::Announced;
        }
        for member in members.iter_mut() {
            member.successor().take_place()?;
            member.step = Step::InPlace;
        }
        wait_until_settled(members);
        for member in members.iter_mut() {
            marks::passed(Phase::Exchange);
            self.exchange(member)?;
        }
        marks::passed(Phase::Exchange);
        Ok(())
    }

    /// Which moment of which volume the new file stands for.
    fn mark_of(&self, member: &Member) -> Result<Mark, VolumeError> {
        let sides = self.handle.sides(member.entry.id)?;
        let ledger = sides.and_then(|sides| sides.ledger);
        let ledger = ledger.as_deref().and_then(written::ledger_in);
        let mark = ledger.map(|it| it.successor()).ok_or_else(|| {
            let name = member.name();
            VolumeError::Origin(format!("volume {name}: its ledger cannot be read"))
        })?;
        Ok(Mark {
            volume: mark.volume.0,
            generation: mark.generation.0,
            serial: mark.serial.0,
        })
    }

    /// The volume goes on in the new file, which has the name of the image by now.
    fn exchange(&self, member: &mut Member) -> Result<(), VolumeError> {
        let settings = &member.entry.settings;
        let allow = self.ledgers.images.allow(&settings.origin);
        let places = Places {
            allow: &allow,
            journal: settings.journal_dir.as_deref(),
        };
        let successor = member.successor();
        let first = (successor.top.clone(), successor.header.clone());
        let mapped = member.image.with_top(first, &member.frozen, places)?;
        self.exchange_files(&mut member.entry, mapped)?;
        member.step = Step::Exchanged;
        if let Err(error) = lock::share(&member.image.top().file) {
            tracing::warn!("{}: its lock is kept: {error}", member.frozen);
        }
        Ok(())
    }

    /// The volume goes on with these files from now on.
    pub(super) fn exchange_files(
        &self,
        entry: &mut Entry,
        mapped: Mapped,
    ) -> Result<(), VolumeError> {
        let name = entry.settings.name.clone();
        let mapped = Arc::new(mapped);
        let stat = mapped.stat().ok().and_then(|stat| stat.image);
        let image = stat.ok_or_else(|| {
            VolumeError::Origin(format!("volume {name}: its image cannot be looked at"))
        })?;
        let chain = identity::of_chain(&mapped);
        let (tables, layers) = identity::names(&mapped, &chain);
        let exchange = Exchange {
            id: entry.id,
            origin: mapped.top().clone(),
            map: mapped.map(tables, layers)?,
            mapped: mapped.clone(),
            image,
        };
        let exchanged = self.handle.exchange(exchange);
        exchanged.map_err(|error| VolumeError::Command {
            name: name.clone(),
            error,
        })?;
        entry.image = Some(mapped.shown());
        self.backups.image_is(&entry.settings, entry.image.as_ref());
        self.table().entries.insert(name, entry.clone());
        Ok(())
    }

    /// Their images are written again. Of one whose new file could not be taken away from the place
    /// of its image the ledger goes on to say that either of the two may be there.
    fn end_rest(&self, members: &[Member]) -> Result<(), VolumeError> {
        let mut first = Ok(());
        for member in members {
            let volume = member.entry.id;
            let end = match member.step {
                Step::InPlace => continue,
                Step::Rests => Command::Resume { volume },
                Step::Announced | Step::Exchanged => Command::EndExchange { volume },
            };
            let ended = self.command(member.name(), end);
            // What rests in a group is resumed with its first member.
            let was_first = member.step == Step::Rests && is_refused(&ended, Refusal::NotQuiesced);
            if !was_first {
                first = first.and(ended);
            }
        }
        first
    }
}

impl Member {
    fn name(&self) -> &str {
        &self.entry.settings.name
    }

    fn plan(&self, mark: Mark, plain: bool) -> Plan<'_> {
        Plan {
            named: &self.entry.settings.origin,
            frozen: &self.frozen,
            plain,
            size_bytes: self.entry.size_bytes,
            mark,
        }
    }

    fn successor(&self) -> &Successor {
        self.successor.as_ref().expect("it was made")
    }
}

fn is_refused(done: &Result<(), VolumeError>, refusal: Refusal) -> bool {
    let refused = |error: &VolumeError| match error {
        VolumeError::Command { error, .. } => *error == CommandError::Refused(refusal),
        _ => false,
    };
    done.as_ref().is_err_and(refused)
}

pub(super) fn check_policy(entry: &Entry, done: &str) -> Result<(), VolumeError> {
    let settings = &entry.settings;
    let (name, policy) = (&settings.name, settings.policy);
    if policy == Policy::WriteBack && !settings.read_only {
        return Ok(());
    }
    let right = match policy {
        _ if settings.read_only => "nothing writes its image, so that it can be copied at any time",
        Policy::Ephemeral => {
            "nothing of what its guest writes is in its image, which can be copied at any time"
        }
        _ => {
            "its guest writes the image itself; set policy=write-back with `tenuto volume set \
             --wait`, and the other one again afterwards"
        }
    };
    let policy = match settings.read_only {
        true => "read-only",
        false => policy.name(),
    };
    Err(VolumeError::Settings(format!(
        "volume {name}: is {policy}, and only a write-back volume is {done}; {right}"
    )))
}

/// What was not exchanged is as it was before. What cannot be undone stays in its place, which its
/// ledger allows.
fn undo(members: &mut [Member]) {
    for member in members.iter_mut().filter(|it| it.step != Step::Exchanged) {
        let Some(successor) = &member.successor else {
            continue;
        };
        match successor.undo() {
            Ok(()) => member.step = member.step.min(Step::Announced),
            Err(fault) => {
                let name = member.name();
                tracing::error!(
                    volume = %name,
                    "volume {name}: {fault}; its data stays in the log until the daemon is \
                     started again"
                );
                member.step = Step::InPlace;
            }
        }
    }
}

fn wait_until_settled(members: &[Member]) {
    let start = Instant::now();
    let settled = |member: &Member| {
        let meta = member.image.top().file.metadata();
        meta.is_ok_and(|meta| is_settled(&meta))
    };
    while !members.iter().all(settled) && start.elapsed() < SETTLE_WAIT {
        thread::sleep(SETTLE_POLL);
    }
}
