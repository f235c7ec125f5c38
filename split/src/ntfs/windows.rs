//! What a split asks of a kind of file system, for a Windows on NTFS.
//!
//! Owns the way from the rules and the layout of a split to the steps of this module, and back.
//! Paths of a layout have `/` between names, those of Windows `\`.
//!
//! Always true: each class is one volume; a page file is a file of its volume, never a partition.
//!
//! Deliberately absent: partitions for swap, which Windows does not know.

use super::error::Error as NtfsError;
use super::list::{Found, LinkInto, Rule, Share, VolumeIndex};
use super::mount::{Access, mounted};
use super::path::{Pattern, WindowsPath};
use super::register::HIVE;
use super::tree::find;
use super::{Changed, NewVolume, PageFile};
use crate::error::{Error, Result};
use crate::kind::{
    AtRisk, Class, FileSystem, Layout, Listing, Moved, PageFile as OldPageFile, Partitions, Swap,
    SwapPartition, Volume, means_nothing, not_there,
};
use crate::rules::{Move, Pattern as RulePattern, Rules};
use std::path::{Path, PathBuf};
use uuid::Uuid;

const SECTOR_BYTES: u64 = 512;
const MIB: u64 = 1 << 20;
/// In a layout, from the root.
const PAGE_FILE_PATH: &str = "/pagefile.sys";
/// With its journal, which `mkntfs` makes of two MiB at least.
const SMALLEST_BYTES: u64 = 16 * MIB;
/// So many links are told.
const LINKS_MAX: usize = 3;

pub struct Windows;

impl From<NtfsError> for Error {
    fn from(error: NtfsError) -> Error {
        match error {
            NtfsError::Refused(refused) => Error::refused(refused.to_string()),
            error => Error::failed(error.to_string()),
        }
    }
}

/// Without the place of the partition, which the caller names in its own words.
fn of(partition: &Path) -> impl FnOnce(NtfsError) -> Error {
    let place = format!("{}: ", partition.display());
    move |error| {
        let mut error = Error::from(error);
        if let Some(message) = error.message.strip_prefix(&place) {
            error.message = message.to_owned();
        }
        error
    }
}

impl FileSystem for Windows {
    fn name(&self) -> &'static str {
        "ntfs"
    }

    fn is_system(&self, partition: &Path) -> Result<bool> {
        let hive = mounted(&[(partition, Access::Read)], |places| {
            find(&places[0], &HIVE)
        });
        let hive = hive.map_err(of(partition))?;
        if hive.is_some() {
            super::look(partition).map_err(of(partition))?;
        }
        Ok(hive.is_some())
    }

    fn list(&self, partition: &Path, rules: &Rules, _: &[SwapPartition]) -> Result<Listing> {
        super::look(partition).map_err(of(partition))?;
        let found = super::list(partition, &to_rules(rules)?).map_err(of(partition))?;
        // The letter may be taken, and the hive dirty: better told now than after the copy.
        let page_file = rules
            .page_file
            .as_ref()
            .and(rules.letter)
            .map(|letter| PageFile {
                guid: Uuid::nil(),
                letter,
                mebibytes: None,
            });
        super::look_registry(partition, page_file.as_ref()).map_err(of(partition))?;
        Ok(listing(&found, rules))
    }

    fn smallest_bytes(&self) -> u64 {
        SMALLEST_BYTES
    }

    fn swaps_to_partition(&self) -> bool {
        false
    }

    fn make_volume(&self, partition: &Path, volume: &Volume) -> Result<()> {
        let new = NewVolume {
            label: volume.class.label(),
            start_sector: volume.start_bytes / SECTOR_BYTES,
        };
        Ok(super::make_volume(partition, &new)?)
    }

    fn make_swap(&self, _: &Path, swap: &Swap) -> Result<()> {
        let uuid = &swap.partition_uuid;
        Err(Error::failed(format!(
            "partition {uuid}: Windows has no partition for swap; begin again"
        )))
    }

    fn copy(&self, from: &Path, to: &Path, moved: &[&Moved]) -> Result<()> {
        Ok(super::copy(from, to, &share(moved)?)?)
    }

    fn verify(&self, from: &Path, to: &Path, moved: &[&Moved]) -> Result<()> {
        super::verify(from, to, &share(moved)?)?;
        Ok(())
    }

    fn empty(&self, system: &Path, layout: &Layout) -> Result<()> {
        let links = links(layout, None)?;
        let paths: Vec<WindowsPath> = links.into_iter().map(|(path, _)| path).collect();
        Ok(super::empty(system, &paths)?)
    }

    fn link(&self, partitions: &Partitions, layout: &Layout) -> Result<()> {
        super::link(&partitions.system, &links(layout, None)?)?;
        for (partition, volume) in volumes(partitions, layout) {
            let inner = links(layout, Some(volume.class))?;
            if !inner.is_empty() {
                super::link(partition, &inner)?;
            }
        }
        let guids = guids(layout)?;
        let page_file = page_file(layout)?;
        let (system, input) = (&partitions.system, &partitions.input);
        Ok(super::register(system, input, &guids, page_file.as_ref())?)
    }

    fn check(&self, partitions: &Partitions, layout: &Layout) -> Result<()> {
        let volumes = partitions.volumes.iter().map(PathBuf::as_path);
        let volumes: Vec<(Uuid, &Path)> = guids(layout)?.into_iter().zip(volumes).collect();
        let changed = Changed {
            registry: true,
            page_file: page_file(layout)?.is_some(),
        };
        super::check(&partitions.system, &partitions.input, &volumes, changed)?;
        Ok(())
    }
}

fn index(class: Class) -> VolumeIndex {
    let at = Class::ALL.iter().position(|it| *it == class);
    VolumeIndex(at.unwrap_or_default())
}

fn class(volume: VolumeIndex) -> Class {
    Class::ALL
        .get(volume.0)
        .copied()
        .unwrap_or(Class::WriteThrough)
}

/// Of two for one path the later one counts: what stays goes before what moves, and what a pool
/// keeps before both.
fn to_rules(rules: &Rules) -> Result<Vec<Rule>> {
    let of_pool = |it: &&Move| it.class == Class::Keep;
    let moves = rules.moves.iter().filter(|it| !of_pool(it));
    let pool = rules.moves.iter().filter(of_pool);
    fn moved(it: &Move) -> (&RulePattern, Option<VolumeIndex>) {
        (&it.path, Some(index(it.class)))
    }
    let keeps = rules.keeps.iter().map(|it| (it, None));
    let all = moves.map(moved).chain(keeps).chain(pool.map(moved));
    let rules = all.map(|(pattern, volume)| {
        let pattern = Pattern::parse(&pattern.text)?;
        Ok(Rule { pattern, volume })
    });
    rules.collect()
}

fn listing(found: &Found, rules: &Rules) -> Listing {
    let path = |path: &dyn std::fmt::Display| path.to_string().replace('\\', "/");
    let moved = found.moved.iter().enumerate().map(|(at, it)| Moved {
        path: path(&it.path),
        class: class(it.volume),
        kept: Vec::new(),
        nested: found
            .moved
            .iter()
            .filter(|inner| inner.outer == Some(at))
            .map(|inner| path(&inner.path))
            .collect(),
        files: it.files,
        bytes: it.volume_bytes,
        symlink: false,
    });
    let at_risk = found.valued.iter().map(|it| AtRisk {
        path: path(&it.path),
        class: class(it.volume),
        bytes: it.bytes,
    });
    let page_files = found.page_file_bytes.filter(|_| rules.page_file.is_some());
    Listing {
        moved: moved.collect(),
        page_files: page_files
            .into_iter()
            .map(|bytes| OldPageFile {
                what: PAGE_FILE_PATH.to_owned(),
                bytes,
                is_file: true,
            })
            .collect(),
        system_files: found.system_files,
        system_bytes: found.system_bytes,
        at_risk: at_risk.filter(|it| it.class.is_relaxed()).collect(),
        // Each reset would take what is not there.
        refusals: unmatched(found, rules)
            .filter(|it| !it.has_wildcard())
            .map(|it| not_there(&it.text))
            .collect(),
        warnings: warnings(found, rules),
        forgotten: Vec::new(),
    }
}

/// Patterns of a pool that mean nothing.
fn unmatched<'a>(found: &'a Found, rules: &'a Rules) -> impl Iterator<Item = &'a RulePattern> {
    let kept = rules.moves.iter().filter(|it| it.class == Class::Keep);
    let first = rules.moves.len() + rules.keeps.len() - kept.clone().count();
    let kept = kept.enumerate();
    let kept = kept.filter(move |(at, _)| found.unmatched.contains(&(first + at)));
    kept.map(|(_, it)| &it.path)
}

fn warnings(found: &Found, rules: &Rules) -> Vec<String> {
    let many = unmatched(found, rules).filter(|it| it.has_wildcard());
    let mut warnings: Vec<String> = many.map(|it| means_nothing(&it.text)).collect();
    if found.extended_attributes > 0 {
        let count = found.extended_attributes;
        warnings.push(format!(
            "{count} files that move have extended attributes, which the copy does not keep"
        ));
    }
    if let Some(LinkInto { path, target }) = found.links_into.first() {
        let count = found.links_into.len();
        let others: Vec<&str> = found.links_into.iter().map(|it| it.path.as_str()).collect();
        let named = others[..count.min(LINKS_MAX)].join(", ");
        warnings.push(match count {
            1 => format!("{path} leads to {target}, which moves; it leads there also afterwards"),
            _ => format!("{count} links lead to what moves, also afterwards: {named}"),
        });
    }
    warnings
}

fn windows_path(path: &str) -> Result<WindowsPath> {
    Ok(WindowsPath::parse(&path.replace('/', "\\"))?)
}

fn share(moved: &[&Moved]) -> Result<Share> {
    let paths = moved.iter().map(|it| windows_path(&it.path));
    let inner = moved.iter().flat_map(|it| &it.nested);
    let inner = inner.map(|it| windows_path(it));
    Ok(Share {
        paths: paths.collect::<Result<_>>()?,
        inner: inner.collect::<Result<_>>()?,
    })
}

/// The mount points of a class's volume; `None`: of the system's.
fn links(layout: &Layout, on: Option<Class>) -> Result<Vec<(WindowsPath, Uuid)>> {
    let moved = &layout.listing.moved;
    let on_what = |path: &String| {
        let outer = moved.iter().find(|it| it.nested.contains(path));
        outer.map(|it| it.class)
    };
    let mine = moved.iter().filter(|it| on_what(&it.path) == on);
    let links = mine.map(|it| {
        let volume = layout.volume(it.class).ok_or_else(|| {
            let class = it.class.name();
            Error::failed(format!("class {class}: has no volume; begin again"))
        })?;
        Ok((windows_path(&it.path)?, guid(volume)?))
    });
    links.collect()
}

fn volumes<'a>(
    partitions: &'a Partitions,
    layout: &'a Layout,
) -> impl Iterator<Item = (&'a Path, &'a Volume)> {
    let paths = partitions.volumes.iter().map(PathBuf::as_path);
    paths.zip(&layout.volumes)
}

fn guid(volume: &Volume) -> Result<Uuid> {
    let text = &volume.partition_uuid;
    Uuid::parse_str(text).map_err(|error| {
        let class = volume.class.name();
        Error::failed(format!("class {class}: {text:?} is no GUID: {error}"))
    })
}

fn guids(layout: &Layout) -> Result<Vec<Uuid>> {
    layout.volumes.iter().map(guid).collect()
}

/// As large as the room that was left for it.
fn page_file(layout: &Layout) -> Result<Option<PageFile>> {
    let (Some((volume, swap)), Some(letter)) = (layout.swap(), layout.letter) else {
        return Ok(None);
    };
    Ok(Some(PageFile {
        guid: guid(volume)?,
        letter,
        mebibytes: Some(swap.bytes / MIB),
    }))
}
