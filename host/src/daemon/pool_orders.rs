//! What administrators order of pools, and the look at an image that members may move to.
//!
//! Always true: what was refused has changed nothing; an order counts when the record that says it
//! is durable, that of the cluster where this host is in one, and is carried out after that also by
//! a daemon that comes later. Deliberately absent: how members move; see [`super::pool_moves`].

use super::opened::{Joining, open_settled};
use super::pool_health::unix_ms_now;
use super::pool_words::{refused, tell_switch};
use super::{Daemon, VolumeError, VolumeSettings};
use crate::marks;
use crate::origin::Format;
use crate::pool::members::CloneKind;
use crate::pool::{Asked, Phase, Record};
use engine::types::Policy;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// How long the image of a refresh may take to come to rest before it is refused.
const REST_WAIT: Duration = Duration::from_secs(8);
const REST_POLL: Duration = Duration::from_millis(200);

impl Daemon {
    /// Looks at another image for a pool, and lets its members move to it unless it is only to be
    /// staged.
    pub fn pool_refresh(
        &self,
        name: &str,
        image: &Path,
        asked: Asked,
        stage_only: bool,
        discard: bool,
    ) -> Result<(), VolumeError> {
        let record = self.pool_record(name)?;
        if record.phase != Phase::Rolling {
            wait_for_rest(name, image)?;
        }
        let members = self.members(name)?;
        if let Some(missing) = asked.canaries.iter().find(|it| !members.contains(it)) {
            return Err(refused(name, &format!("it has no member {missing}")));
        }
        check_refresh(name, &self.pool_record(name)?, image)?;
        self.check_overlays(name, &record, &members, discard)?;
        self.look_at_refresh(name, image, &members)?;
        let mut asked = asked;
        let waits = stage_only || asked.at_unix_ms.is_some_and(|at| at > unix_ms_now());
        if !waits {
            // As soon as it is read ahead, also by the daemon after this one.
            asked.at_unix_ms = Some(unix_ms_now());
        }
        self.forget_trials(name);
        marks::passed(marks::Phase::Exchange);
        let staged = self.order_pool(name, &|record| {
            check_refresh(name, record, image)?;
            if record.phase == Phase::Staged {
                record.unstage(None);
            }
            if record.previous.is_some() {
                record.finish();
            }
            record.stage(image, asked.clone());
            Ok(())
        })?;
        marks::passed(marks::Phase::Exchange);
        self.turn_pool(name);
        match waits {
            true => Ok(()),
            false => self.wait_for_switch(name, staged.image.generation),
        }
    }

    /// Returns when members move to what was staged, or when that is not to be.
    fn wait_for_switch(&self, name: &str, before: u64) -> Result<(), VolumeError> {
        if let Some(ahead) = self.ahead_of(name) {
            ahead.wait();
            self.turn_pool(name);
        }
        loop {
            let record = self.pool_record(name)?;
            if record.image.generation > before {
                self.turn_pool(name);
                return Ok(());
            }
            if record.phase != Phase::Staged {
                return Err(match record.rollout.went_back {
                    Some(why) => VolumeError::Origin(format!("pool {name}: {why}")),
                    None => refused(name, "what was staged was given up by `pool rollback`"),
                });
            }
            let cluster = self.pool_cluster().filter(|_| self.handle.ping().is_ok());
            let Some(cluster) = cluster else {
                let why = "the daemon ends; it switches to the image when it runs again";
                return Err(VolumeError::Origin(format!("pool {name}: {why}")));
            };
            // Other hosts read it ahead.
            cluster.wait(name, &record);
        }
    }

    /// The time of what is staged has come.
    pub(super) fn switch_pool(&self, name: &str, staged: &Path) -> Result<(), VolumeError> {
        let members = self.members(name)?;
        if let Err(error) = self.look_at_refresh(name, staged, &members) {
            // It is not what it was when it was staged.
            return self.unstage(name, error.to_string());
        }
        self.forget_trials(name);
        let record = self.pools.change(name, |it| it.switch(unix_ms_now()))?;
        tell_switch(&record);
        Ok(())
    }

    /// Members go back to the image before; what is staged only is given up.
    pub fn pool_rollback(&self, name: &str) -> Result<(), VolumeError> {
        let members = self.members(name)?;
        self.order_pool(name, &|record| {
            match (record.phase, &record.previous) {
                (Phase::Staged, _) => {
                    record.unstage(None);
                    return Ok(());
                }
                _ if record.rollout.back => {
                    let image = record.image.path.display();
                    let why = format!(
                        "it is going back to {image} already, or has; another image comes by \
                         `tenuto pool refresh {name}`"
                    );
                    return Err(refused(name, &why));
                }
                (_, None) => {
                    let why = "there is no image before; it was let go of by `pool finish`, or \
                               the pool was never refreshed";
                    return Err(refused(name, why));
                }
                (_, Some(_)) => {}
            }
            record.go_back(&members, None, unix_ms_now());
            Ok(())
        })?;
        self.forget_trials(name);
        self.turn_pool(name);
        Ok(())
    }

    /// The same by itself.
    pub(super) fn pool_back(&self, name: &str, why: String) -> Result<(), VolumeError> {
        let members = self.members(name)?;
        self.forget_trials(name);
        let now = unix_ms_now();
        self.pools
            .change(name, |it| it.go_back(&members, Some(why), now))?;
        Ok(())
    }

    /// Lets go of the image before.
    pub fn pool_finish(&self, name: &str) -> Result<(), VolumeError> {
        let record = self.pool_record(name)?;
        self.check_finish(name, &record)?;
        if record.previous.is_some() {
            let _turn = self.pools.turn();
            self.remove_former_overlays(name)?;
        }
        // What is told of a refresh that went wrong is over as well.
        if record.previous.is_some() || record.rollout.went_back.is_some() {
            self.order_pool(name, &|record| {
                self.check_finish(name, record)?;
                record.finish();
                Ok(())
            })?;
            self.turn_pool(name);
        }
        Ok(())
    }

    fn check_finish(&self, name: &str, record: &Record) -> Result<(), VolumeError> {
        if record.phase == Phase::Stable {
            return Ok(());
        }
        let here = self.pools.record(name)?;
        let left = self.members(name)?.into_iter();
        let left: Vec<String> = left.filter(|it| !here.has_moved(it)).collect();
        let why = match (record.phase, left.as_slice()) {
            (Phase::Staged, _) => "an image is staged; switch to it by `tenuto pool refresh`, or \
                                   give it up by `tenuto pool rollback`"
                .to_owned(),
            (_, []) => "other hosts have the image before still".to_owned(),
            (_, [one]) => format!("{one} has the image before still"),
            (_, all) => format!("{} members have the image before still", all.len()),
        };
        Err(refused(name, &why))
    }

    /// An image that members may move to is a disk, is not written by anything, and is as large
    /// as theirs.
    pub(super) fn look_at_refresh(
        &self,
        name: &str,
        image: &Path,
        members: &[String],
    ) -> Result<(), VolumeError> {
        let entries: Vec<_> = members.iter().filter_map(|it| self.entry(it)).collect();
        let clones = self.pools.clones(name);
        let Some((first, clones)) = entries.first().zip(clones) else {
            return Err(refused(name, "no member of it is served here"));
        };
        let settings = VolumeSettings {
            name: first.settings.name.clone(),
            origin: image.to_owned(),
            policy: Policy::Ephemeral,
            read_only: false,
            journal_dir: None,
            format: match clones {
                CloneKind::Ephemeral => first.settings.format,
                CloneKind::Qcow2 => Format::Auto,
            },
            ..first.settings.clone()
        };
        let of_pool = |error: VolumeError| {
            let text = error.to_string();
            let start = format!("volume {}: ", settings.name);
            let text = text.strip_prefix(&start).unwrap_or(&text);
            VolumeError::Image(format!("pool {name}: {text}"))
        };
        let opened = open_settled(&settings, &self.ledgers, Joining::default());
        let (files, _) = opened.map_err(of_pool)?;
        let size = files.size_bytes();
        files.close();
        let larger = entries.iter().find(|it| it.size_bytes > size);
        match larger {
            None => Ok(()),
            Some(member) => {
                let (image, other) = (image.display(), &member.settings.name);
                let why = format!(
                    "{image} is a disk of {size} bytes, and that of {other} has {}; give it one as \
                     large",
                    member.size_bytes
                );
                Err(refused(name, &why))
            }
        }
    }
}

/// Why another image cannot be ordered now.
fn check_refresh(name: &str, record: &Record, image: &Path) -> Result<(), VolumeError> {
    if record.phase == Phase::Rolling {
        let image = record.image.path.display();
        let why = format!(
            "its members move to {image}; wait for the end, or run `tenuto pool rollback {name}`"
        );
        return Err(refused(name, &why));
    }
    if record.image.path == image {
        let why = format!("{} is its image already", image.display());
        return Err(refused(name, &why));
    }
    Ok(())
}

/// An image that was written a moment ago may be written on. Its times say nothing before.
fn wait_for_rest(name: &str, image: &Path) -> Result<(), VolumeError> {
    let polls = REST_WAIT.as_millis() / REST_POLL.as_millis();
    for _ in 0..polls {
        let meta = std::fs::metadata(image);
        let meta = meta.map_err(|error| {
            let (image, cause) = (image.display(), crate::error::cause(&error));
            let right = "name a whole image that is there";
            VolumeError::Image(format!("pool {name}: {image}: {cause}; {right}"))
        })?;
        if !meta.is_file() || crate::target::is_settled(&meta) {
            return Ok(());
        }
        thread::sleep(REST_POLL);
    }
    let why = format!(
        "{} is being written; refresh when that is over",
        image.display()
    );
    Err(refused(name, &why))
}
