//! Checks what a guest will get: each file system by itself, and all of them as it mounts them.
//!
//! Always true: nothing is written; the table is read from the system disk and not from memory;
//! what a guest sees is compared with the untouched image, name by name and byte by byte.

use super::fstab::{self, Entry, MOUNTS, SWAP_LABEL};
use super::kept;
use super::linked::table;
use super::mounted::Mounted;
use super::paths::inside;
use super::transfer::{compare, exclude};
use crate::disk::probe;
use crate::error::{Error, Kind, Result};
use crate::kind::{Class, Layout, Partitions};
use crate::programs::run;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn check(kind: &str, scratch: &Path, partitions: &Partitions, layout: &Layout) -> Result<()> {
    for partition in std::iter::once(&partitions.system).chain(&partitions.volumes) {
        sound(kind, partition)?;
    }
    let place = |name: &str| scratch.join(name);
    let input = Mounted::read_only(kind, &partitions.input, place("input"))?;
    let system = Mounted::read_only_clean(kind, &partitions.system, place("guest"))?;
    let entries = fstab::written(&table(system.place())?);
    let mut mounts = Vec::new();
    for entry in &entries {
        if let Some(mount) = mount(kind, entry, &system, partitions, layout)? {
            mounts.push(mount);
        }
    }
    let compared = same_view(&input, &system, layout);
    // The last one first: some lie on others.
    while let Some(mount) = mounts.pop() {
        mount.close()?;
    }
    system.close()?;
    input.close()?;
    compared
}

/// A file system that its own program finds no fault in.
fn sound(kind: &str, partition: &Path) -> Result<()> {
    let (program, package) = match kind {
        "xfs" => ("xfs_repair", "xfsprogs"),
        _ => ("e2fsck", "e2fsprogs"),
    };
    let mut command = Command::new(program);
    match kind {
        "xfs" => command.args(["-n", "-f"]),
        _ => command.args(["-f", "-n"]),
    };
    match run(package, command.arg(partition)) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::new(
            Kind::Failed,
            format!("{}: is damaged: {error}; begin again", partition.display()),
        )),
    }
}

/// Mounts what a line of the table says, as a guest does.
fn mount(
    kind: &str,
    entry: &Entry,
    system: &Mounted,
    partitions: &Partitions,
    layout: &Layout,
) -> Result<Option<Mounted>> {
    let lost = || {
        let what = &entry.what;
        Error::failed(format!(
            "fstab names {what}, and no new disk has it; begin again"
        ))
    };
    let label = entry.what.strip_prefix("LABEL=");
    if entry.is_swap() {
        return match label == Some(SWAP_LABEL) && layout.swap().is_some() {
            true => Ok(None),
            false => Err(lost()),
        };
    }
    let place = inside(system.place(), &entry.place)?;
    let Some(label) = label else {
        let from = match &*entry.what {
            "/" => system.place().to_owned(),
            what => inside(system.place(), what)?,
        };
        return Mounted::bind(&from, place).map(Some);
    };
    let at = Class::ALL.into_iter().find(|it| it.label() == label);
    let at = at.and_then(|class| layout.volumes.iter().position(|it| it.class == class));
    let partition: &PathBuf = at
        .and_then(|at| partitions.volumes.get(at))
        .ok_or_else(lost)?;
    let found = probe(partition, None)?;
    match found.label.as_deref() == Some(label) && found.kind.as_deref() == Some(kind) {
        true => Mounted::over(kind, partition, place).map(Some),
        false => Err(lost()),
    }
}

/// Fails where the guest would see something else than it did.
fn same_view(input: &Mounted, guest: &Mounted, layout: &Layout) -> Result<()> {
    let listing = &layout.listing;
    let mut excluded: Vec<OsString> = ["/etc/fstab", MOUNTS]
        .iter()
        .map(|it| format!("--exclude={it}").into())
        .collect();
    let files = listing.page_files.iter().filter(|it| it.is_file);
    excluded.extend(files.map(|it| exclude(&it.what)));
    for file in &listing.forgotten {
        kept::is_forgotten(guest.place(), file)?;
        excluded.push(exclude(file));
    }
    for moved in listing.moved.iter().filter(|it| it.symlink) {
        excluded.push(exclude(&moved.path));
        // A link from the root leads out of a mount point of this host.
        let disk = inside(guest.place(), &fstab::mount_point(moved.class))?;
        compare(
            input.place(),
            &disk,
            &[format!(".{}", moved.path).into()],
            &[],
        )?;
        let link = guest.place().join(moved.path.trim_start_matches('/'));
        let target = format!("{}{}", fstab::mount_point(moved.class), moved.path);
        if !std::fs::read_link(&link).is_ok_and(|it| it == Path::new(&target)) {
            let path = &moved.path;
            return Err(Error::failed(format!(
                "{path}: does not lead to {target}; begin again"
            )));
        }
    }
    compare(input.place(), guest.place(), &[".".into()], &excluded)
}
