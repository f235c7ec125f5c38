//! `[[pool]]`: clones of one image that are refreshed together.
//!
//! Owns the keys of a pool, the patterns of its members, and what a pool gives to the volumes that
//! are its members. Always true: a volume is a member of one pool at most, and a member of a pool
//! of ephemeral clones is ephemeral and has the image of the pool as its origin. Deliberately
//! absent: which image the pool has since its last refresh, which is [`crate::pool`].

use super::keys::{Key, quote};
use super::values::{NAME_BYTES_MAX, Value, check_name};
use super::{Config, Source, Sources, Volume, Wrong};
use crate::error::{Error, Result as Done};
use crate::origin::{Format, Place};
use crate::pool::members::{self, CloneKind, Pattern, Settings};
use crate::pool::record::{Record, Records};
use engine::types::Policy;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// More pools than this on one host are a mistake of a script.
pub const POOLS_MAX: usize = 256;
/// Patterns of one pool, and names that one of them may stand for.
const PATTERNS_MAX: usize = 1024;
const RANGE_MAX: u64 = 4096;

#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    pub name: String,
    /// What it begins with; a refresh goes on from there.
    pub image: PathBuf,
    pub clones: CloneKind,
    pub members: Vec<Pattern>,
    /// What was kept of its last refresh, if that was looked for.
    pub record: Option<Record>,
    /// Line of its `[[pool]]`.
    pub line: Option<usize>,
    pub sources: Sources,
}

pub fn default_pool() -> Pool {
    Pool {
        name: String::new(),
        image: PathBuf::new(),
        clones: CloneKind::Ephemeral,
        members: Vec::new(),
        record: None,
        line: None,
        sources: Sources::new(),
    }
}

pub const POOL: &[Key<Pool>] = &[
    Key {
        name: "name",
        default: "",
        meaning: "how the pool is called",
        set: |pool, value| {
            let name = value.text("write a name in quotes")?;
            check_name(name).map_err(|wrong| {
                Wrong::new(format!("{name:?} is no name of a pool"), wrong.right)
            })?;
            pool.name = name.into();
            Ok(())
        },
        show: |pool| quote(&pool.name),
    },
    Key {
        name: "image",
        default: "",
        meaning: "image of the clones until the first `pool refresh`",
        set: |pool, value| {
            pool.image = image(value)?;
            Ok(())
        },
        show: |pool| quote(&pool.image.to_string_lossy()),
    },
    Key {
        name: "clone",
        default: "ephemeral",
        meaning: "what the members are: ephemeral volumes on the image, or qcow2 files on it",
        set: |pool, value| {
            pool.clones = match value.word(&CloneKind::WORDS)? {
                "ephemeral" => CloneKind::Ephemeral,
                _ => CloneKind::Qcow2,
            };
            Ok(())
        },
        show: |pool| quote(pool.clones.word()),
    },
    Key {
        name: "members",
        default: "",
        meaning: "volumes of the pool: names, \"desk-*\", or \"desk-{001..100}\"",
        set: |pool, value| {
            let right = "write a list, as in [\"desk-*\"] or [\"desk-{001..100}\"]";
            let words = value.words(right)?;
            pool.members.clear();
            for word in words {
                pool.members.extend(patterns(&word)?);
            }
            match pool.members.len() {
                0 => Err(Wrong::new("there are no members", right)),
                1..=PATTERNS_MAX => Ok(()),
                _ => Err(Wrong::new(
                    "there are too many members",
                    format!("write at most {PATTERNS_MAX}, or a pattern with *"),
                )),
            }
        },
        show: |pool| {
            let words = pool.members.iter().map(|pattern| match pattern {
                Pattern::Name(text) | Pattern::Glob(text) => quote(text),
            });
            let words: Vec<String> = words.collect();
            format!("[{}]", words.join(", "))
        },
    },
];

/// The image of a pool: a file or a block device.
fn image(value: &Value) -> Result<PathBuf, Wrong> {
    let right = "write the path of an image file or a block device, from the root";
    let path = PathBuf::from(value.text(right)?);
    match Place::parse(&path) {
        Ok(Place::File(_)) if path.is_absolute() => Ok(path),
        Ok(Place::File(_)) => Err(Wrong::new(
            format!("{} is no full path", value.show()),
            right,
        )),
        _ => Err(Wrong::later("pools on exports of a server are", right)),
    }
}

/// What one word of `members` stands for.
fn patterns(word: &str) -> Result<Vec<Pattern>, Wrong> {
    let right = "write a name, \"desk-*\", or \"desk-{001..100}\"";
    let wrong = |what: &str| Wrong::new(format!("{word:?} {what}"), right);
    if let Some((before, rest)) = word.split_once('{') {
        let (range, after) = rest.split_once('}').ok_or_else(|| wrong("has no '}'"))?;
        let names = range_of(range).ok_or_else(|| wrong("has no range of numbers"))?;
        let names = names.map(|number| format!("{before}{number}{after}"));
        return names
            .map(|name| match check_name(&name) {
                Ok(()) => Ok(Pattern::Name(name)),
                Err(_) => Err(wrong("gives no names of volumes")),
            })
            .collect();
    }
    if word.contains(['*', '?']) {
        let plain = word.replace(['*', '?'], "x");
        check_name(&plain).map_err(|_| wrong("matches no name of a volume"))?;
        return Ok(vec![Pattern::Glob(word.into())]);
    }
    check_name(word).map_err(|_| wrong("is no name of a volume"))?;
    Ok(vec![Pattern::Name(word.into())])
}

/// `001..100`: the numbers, as wide as the first one.
fn range_of(text: &str) -> Option<impl Iterator<Item = String>> {
    let (first, last) = text.split_once("..")?;
    let number = |text: &str| {
        let plain = !text.is_empty() && text.len() < NAME_BYTES_MAX;
        let digits = plain && text.bytes().all(|it| it.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| digits)
    };
    let (from, to, width) = (number(first)?, number(last)?, first.len());
    let few = from <= to && to - from < RANGE_MAX;
    few.then(|| (from..=to).map(move |number| format!("{number:0width$}")))
}

impl Pool {
    pub fn has(&self, volume: &str) -> bool {
        members::has(&self.members, volume)
    }

    /// What the daemon is told of it.
    pub fn settings(&self) -> Settings {
        Settings {
            name: self.name.clone(),
            image: self.image.clone(),
            clones: self.clones,
            members: self.members.clone(),
        }
    }

    /// What a member has, by the record where there is one.
    pub fn image_of(&self, member: &str) -> &Path {
        let record = self.record.as_ref();
        record.map_or(&self.image, |record| &record.image_of(member).path)
    }

    /// A volume becomes a member: what it does not say itself the pool says. The key that is wrong
    /// otherwise.
    pub fn adopt(&self, volume: &mut Volume) -> Result<(), (&'static str, Wrong)> {
        let name = &self.name;
        match self.clones {
            CloneKind::Ephemeral => {
                let origin = self.image_of(&volume.name).to_owned();
                let origin = std::mem::replace(&mut volume.origin, origin);
                if !asked(volume, "policy") {
                    volume.policy = Policy::Ephemeral;
                }
                if volume.policy != Policy::Ephemeral {
                    let what = format!("a member of pool {name} is ephemeral");
                    return Err(("policy", Wrong::new(what, "leave policy out")));
                }
                if asked(volume, "origin") && origin != self.image {
                    let image = self.image.display();
                    let what = format!("a member of pool {name} has its image {image}");
                    return Err(("origin", Wrong::new(what, "leave origin out")));
                }
            }
            CloneKind::Qcow2 => {
                let writes = volume.policy != Policy::Ephemeral && !volume.read_only;
                if !writes || volume.format == Format::Raw {
                    let what = format!("a member of pool {name} writes a qcow2 image of its own");
                    let right = "write its origin, and leave policy, format and read-only out";
                    return Err(("origin", Wrong::new(what, right)));
                }
            }
        }
        Ok(())
    }
}

/// Said of this volume, and not by the defaults of all.
fn asked(volume: &Volume, key: &str) -> bool {
    matches!(
        volume.sources.get(key),
        Some(Source::Line(_) | Source::Command)
    )
}

/// The pool of a volume.
pub fn of<'a>(pools: &'a [Pool], volume: &str) -> Option<&'a Pool> {
    pools.iter().find(|pool| pool.has(volume))
}

/// Members that are named by a pool of ephemeral clones, and by nothing else.
pub fn unnamed(pools: &[Pool], volumes: &[Volume]) -> Vec<(String, Option<usize>)> {
    let mut known: BTreeSet<&str> = volumes.iter().map(|it| it.name.as_str()).collect();
    let mut found = Vec::new();
    let ephemeral = pools.iter().filter(|it| it.clones == CloneKind::Ephemeral);
    for pool in ephemeral {
        for pattern in &pool.members {
            if let Pattern::Name(name) = pattern
                && known.insert(name)
            {
                found.push((name.clone(), pool.line));
            }
        }
    }
    found
}

/// What is wrong with a pool among those before it: the key, and why.
pub fn misfit(pool: &Pool, earlier: &[Pool]) -> Option<(&'static str, Wrong)> {
    let missing = |key: &&str| !pool.sources.contains_key(*key);
    if let Some(key) = ["name", "image", "members"]
        .into_iter()
        .find(|it| missing(it))
    {
        let right = format!("write {key} = … below");
        return Some((key, Wrong::new("is missing", right)));
    }
    if earlier.iter().any(|other| other.name == pool.name) {
        let what = format!("{:?} is already the name of a pool", pool.name);
        return Some(("name", Wrong::new(what, "give each pool a name of its own")));
    }
    None
}

/// A volume that two pools have.
pub fn second<'a>(pools: &'a [Pool], volume: &str) -> Option<(&'a Pool, &'a Pool)> {
    let mut having = pools.iter().filter(|pool| pool.has(volume));
    Some((having.next()?, having.next()?))
}

impl Config {
    /// The pool of a volume.
    pub fn pool_of(&self, volume: &str) -> Option<&Pool> {
        of(&self.pools, volume)
    }

    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// The same configuration with the images that members have since the last refresh of their
    /// pools.
    pub fn with_records(mut self) -> Done<Config> {
        let records = Records::new(&self.host.state_dir);
        for pool in &mut self.pools {
            let record = records.read(&pool.name);
            pool.record = record
                .map_err(|fault| Error::failed(fault.to_string()).about(pool.name.clone()))?;
        }
        let ephemeral = |pool: &&Pool| pool.clones == CloneKind::Ephemeral;
        for volume in &mut self.volumes {
            if let Some(pool) = of(&self.pools, &volume.name).filter(ephemeral) {
                volume.origin = pool.image_of(&volume.name).to_owned();
            }
        }
        Ok(self)
    }
}

/// `value` as it may be given for the image of a refresh.
pub fn check_image(path: &Path) -> Result<(), Wrong> {
    image(&Value::Text(path.to_string_lossy().into_owned())).map(drop)
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
