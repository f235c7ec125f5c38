//! Pools, as administrators order and see them.
//!
//! Owns the form of an order and of the documents. Deliberately absent: what a refresh is
//! ([`crate::pool`]), and how it is carried out (`daemon::pools`).

use super::events::{Kind, Notice, Severity};
use super::{Admin, Known, Look, Outcome};
use crate::config::pool::check_image;
use crate::config::{Value as Given, units};
use crate::daemon::{HostShown, PoolShown};
use crate::error::{Error, Result};
use crate::pool::members::CloneKind;
use crate::pool::{Asked, Phase, Prefetch};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

const SOAK_DEFAULT_MS: u64 = 600_000;
const FAILED_DEFAULT: u32 = 2;

/// What a refresh is ordered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    pub image: PathBuf,
    pub asked: Asked,
    pub stage_only: bool,
    pub discard_changes: bool,
}

impl Refresh {
    pub fn from_json(document: &Map<String, Value>) -> Result<Refresh> {
        let mut refresh = Refresh {
            image: PathBuf::new(),
            asked: Asked {
                soak_ms: SOAK_DEFAULT_MS,
                max_failed: FAILED_DEFAULT,
                ..Asked::default()
            },
            stage_only: false,
            discard_changes: false,
        };
        for (key, value) in document {
            refresh.take(key, value)?;
        }
        if refresh.image.as_os_str().is_empty() {
            return Err(Error::usage(
                "image: is missing; write {\"image\": \"/mnt/nfs/gold/office-8.img\"}",
            ));
        }
        let asked = &refresh.asked;
        let one_step = asked.canaries.is_empty() && matches!(asked.percents[..], [] | [100]);
        if one_step && !document.contains_key("soak") {
            // There is no later step that waits for it.
            refresh.asked.soak_ms = 0;
        }
        Ok(refresh)
    }

    fn take(&mut self, key: &str, value: &Value) -> Result<()> {
        let wrong = |right: &str| Error::usage(format!("{key}: is {value}; {right}"));
        let text = |right: &str| value.as_str().ok_or_else(|| wrong(right));
        let flag = || value.as_bool().ok_or_else(|| wrong("write true or false"));
        let asked = &mut self.asked;
        match key {
            "image" => {
                let image = PathBuf::from(text("write the path of an image")?);
                let checked = check_image(&image);
                checked.map_err(|it| Error::usage(format!("image: {}; {}", it.what, it.right)))?;
                self.image = image;
            }
            "canary" => {
                let right = "write a list of members";
                let names = value.as_array().ok_or_else(|| wrong(right))?.iter();
                let names: Option<BTreeSet<String>> =
                    names.map(|name| Some(name.as_str()?.to_owned())).collect();
                asked.canaries = names.ok_or_else(|| wrong(right))?;
            }
            "percent" => {
                let right = "write a list of numbers that grow, as in [10, 50, 100]";
                let numbers = value.as_array().ok_or_else(|| wrong(right))?.iter();
                let numbers: Option<Vec<u8>> = numbers
                    .map(|it| {
                        u8::try_from(it.as_u64()?)
                            .ok()
                            .filter(|it| (1..=100).contains(it))
                    })
                    .collect();
                let numbers = numbers.filter(|all| all.is_sorted_by(|a, b| a < b));
                asked.percents = numbers.ok_or_else(|| wrong(right))?;
            }
            "soak" => {
                let given = Given::from_argument(text("write a time, as in \"10m\"")?);
                let soak = given.millis("10m");
                asked.soak_ms =
                    soak.map_err(|it| Error::usage(format!("soak: {}; {}", it.what, it.right)))?;
            }
            "max_failed" => {
                let number = value.as_u64().and_then(|it| u32::try_from(it).ok());
                asked.max_failed = number.ok_or_else(|| wrong("write a number of members"))?;
            }
            "health" => {
                let program = PathBuf::from(text("write the path of a program")?);
                if !program.is_absolute() {
                    return Err(wrong("write the full path of a program"));
                }
                asked.health = Some(program);
            }
            "at_unix_ms" => {
                let time = value.as_u64();
                asked.at_unix_ms = Some(time.ok_or_else(|| wrong("write a time"))?);
            }
            "prefetch" => {
                let words = "write \"profile\", \"all\" or \"none\"";
                let word = Prefetch::parse(text(words)?);
                asked.prefetch = word.ok_or_else(|| wrong(words))?;
            }
            "stage_only" => self.stage_only = flag()?,
            "discard_changes" => self.discard_changes = flag()?,
            _ => {
                let right = "known here are image, canary, percent, soak, max_failed, health, \
                             at_unix_ms, prefetch, stage_only and discard_changes";
                return Err(Error::usage(format!("{key}: unknown key; {right}")));
            }
        }
        Ok(())
    }
}

impl Admin {
    pub fn pools(&self) -> Result<Value> {
        let pools = self.look()?.pools;
        let pools: Vec<Value> = pools.iter().map(|(name, it)| document(name, it)).collect();
        Ok(json!({ "pools": pools }))
    }

    pub fn pool(&self, name: &str) -> Result<Value> {
        let pools = self.look()?.pools;
        let pool = pools.get(name).map(|it| document(name, it));
        pool.ok_or_else(|| no_pool(name))
    }

    /// Returns when the image was looked at and, unless it is only staged, the first members have
    /// moved.
    pub fn pool_refresh(&self, name: &str, refresh: Refresh) -> Result<Outcome> {
        self.pool(name)?;
        self.machine.pool_refresh(name, refresh)?;
        Ok(Outcome::default())
    }

    pub fn pool_rollback(&self, name: &str) -> Result<Outcome> {
        self.pool(name)?;
        self.machine.pool_rollback(name)?;
        Ok(Outcome::default())
    }

    pub fn pool_finish(&self, name: &str) -> Result<Outcome> {
        self.pool(name)?;
        self.machine.pool_finish(name)?;
        Ok(Outcome::default())
    }
}

fn no_pool(name: &str) -> Error {
    let message = format!("pool {name}: not known; see `tenuto pool ls`");
    Error::new(crate::error::Kind::NotFound, message).about(name)
}

/// Members have the images that their pools say by now.
pub(super) fn renew_members(known: &mut Known, look: &Look) {
    let ephemeral = look
        .pools
        .values()
        .filter(|it| it.clones == CloneKind::Ephemeral);
    for pool in ephemeral {
        for volume in &mut known.volumes {
            let member = pool.members.iter().find(|it| it.name == volume.name);
            if let Some(member) = member {
                volume.origin.clone_from(&member.image);
            }
        }
    }
}

/// What is compared of a pool: where it stands, with which generation.
pub(super) type Seen = (Phase, u64);

/// What is new of pools since the last look.
pub(super) fn changes(
    seen: &mut BTreeMap<String, Seen>,
    look: &Look,
    tell: &mut dyn FnMut(Notice),
) {
    for (name, pool) in &look.pools {
        let record = &pool.record;
        let now = (record.phase, record.image.generation);
        let before = seen.insert(name.clone(), now);
        let Some(before) = before.filter(|before| *before != now) else {
            continue;
        };
        // A pool may be back before anything has looked.
        let back = record.rollout.went_back.as_ref();
        let back = back.filter(|_| before.1 != now.1);
        let image = record.image.path.display();
        let (severity, words) = match (record.phase, back) {
            (_, Some(why)) => (
                Severity::Error,
                format!("pool {name}: goes back to {image}: {why}"),
            ),
            (Phase::Rolling, None) => (
                Severity::Info,
                format!("pool {name}: members move to {image}"),
            ),
            (Phase::Staged, None) => {
                let staged = record.staged.as_ref().map(|it| it.display().to_string());
                let staged = staged.unwrap_or_default();
                (Severity::Info, format!("pool {name}: {staged} is staged"))
            }
            (Phase::Stable, None) => (
                Severity::Info,
                format!("pool {name}: all members have {image}"),
            ),
        };
        tell(Notice::host(severity, Kind::Pool, words));
    }
    seen.retain(|name, _| look.pools.contains_key(name));
}

/// What `status -x` says of pools.
pub(super) fn troubles(look: &Look) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, pool) in &look.pools {
        if let Some(why) = &pool.record.rollout.went_back {
            let what = match pool.record.rollout.back {
                true => "went back to the image before",
                false => "does not go to what was staged",
            };
            lines.push(format!("pool {name} {what}: {why}"));
        }
        if let Some(why) = &pool.trouble {
            lines.push(format!("pool {name}: {why}"));
        }
        let ill = pool
            .members
            .iter()
            .filter_map(|it| Some((it, it.trouble.as_ref()?)));
        for (member, why) in ill {
            lines.push(format!("pool {name}: {}: {why}", member.name));
        }
    }
    lines
}

fn document(name: &str, pool: &PoolShown) -> Value {
    let record = &pool.record;
    let rollout = &record.rollout;
    let moved = pool
        .members
        .iter()
        .filter(|it| it.generation == record.image.generation);
    let moved = moved.count();
    let members = pool.members.iter().map(|member| {
        json!({
            "name": member.name,
            "image": member.image.display().to_string(),
            "generation": member.generation,
            "in_use": member.in_use,
            "trouble": member.trouble,
        })
    });
    let members: Vec<Value> = members.collect();
    let previous = record
        .previous
        .as_ref()
        .map(|it| json!({ "image": it.path.display().to_string(), "generation": it.generation }));
    let rolls = record.phase == Phase::Rolling;
    let rolling = rolls.then(|| {
        json!({
            "step": rollout.step,
            "steps_left": rollout.steps_left(),
            "percent": rollout.percent(),
            "canary": rollout.asked.canaries,
            "percents": rollout.asked.percents,
            "soak_ms": rollout.asked.soak_ms,
            "since_unix_ms": rollout.since_unix_ms,
            "max_failed": rollout.asked.max_failed,
            "health": rollout.asked.health.as_ref().map(|it| it.display().to_string()),
        })
    });
    let path = |it: &PathBuf| it.display().to_string();
    let hosts = pool.hosts.iter();
    let hosts = hosts.map(|it| host(it, record.image.generation));
    let hosts: Vec<Value> = hosts.collect();
    json!({
        "name": name,
        "clone": pool.clones.word(),
        "state": record.phase.word(),
        "image": path(&record.image.path),
        "generation": record.image.generation,
        "previous": previous,
        "staged": record.staged.as_ref().map(path),
        "read_ahead": pool.ahead.as_ref().map(|it| json!({
            "read_bytes": it.read_bytes,
            "total_bytes": it.total_bytes,
            "over": it.over,
        })),
        "at_unix_ms": rollout.asked.at_unix_ms.filter(|_| record.phase == Phase::Staged),
        "rollout": rolling,
        "went_back": rollout.went_back,
        "configured_image": path(&pool.named),
        "hosts": hosts,
        "trouble": pool.trouble,
        "members_total": members.len(),
        "members_moved": moved,
        "members": members,
    })
}

/// How far a host is on the way to this generation.
fn host(host: &HostShown, generation: u64) -> Value {
    let report = &host.report;
    let moved = match report.generation == generation {
        true => report.moved,
        false => 0,
    };
    let ill = report.ill.iter();
    let ill = ill.map(|(member, why)| json!({ "member": member, "why": why }));
    json!({
        "name": report.name,
        "up": host.up,
        "generation": report.generation,
        "members": report.members,
        "moved": moved,
        "in_use": report.in_use,
        "ready": report.ready,
        "unhealthy": ill.collect::<Vec<Value>>(),
        "trouble": report.trouble.as_ref().or(report.failed.as_ref()),
    })
}

/// A time as `tenuto pool` shows it.
pub fn shown_time(ms: u64) -> String {
    units::human_seconds(ms / 1000)
}

#[cfg(test)]
#[path = "pools_tests.rs"]
mod tests;
