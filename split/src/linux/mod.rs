//! A disk with ext4 or xfs.
//!
//! Always true: the kernel of this host reads a file system of an image only where the operator
//! trusts it, and only when it was unmounted in order; what is new has the kind of the image's file
//! system. Deliberately absent: encrypted disks, volume managers, and guests of several file
//! systems, whose other ones stay as they are.

mod checked;
mod fstab;
mod kept;
mod linked;
mod list;
mod matched;
mod mounted;
mod paths;
mod superblock;
mod transfer;

use crate::error::{Error, Result};
use crate::kind::{FileSystem, Layout, Listing, Moved, Partitions, Swap, SwapPartition, Volume};
use crate::programs::run;
use crate::rules::Rules;
use fstab::{MOUNTS, SWAP_LABEL};
pub(crate) use list::VALUED;
use mounted::Mounted;
use paths::inside;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kinds of file systems that this is for, as `blkid` names them.
pub const KINDS: [&str; 2] = ["ext4", "xfs"];
/// `mkfs.xfs` refuses less; its manual page says 300 MB.
const XFS_BYTES_MIN: u64 = 300 << 20;
/// With a journal.
const EXT4_BYTES_MIN: u64 = 16 << 20;
/// Options of the root by which its guest counts what users have.
const QUOTAS: [&str; 12] = [
    "quota",
    "usrquota",
    "grpquota",
    "prjquota",
    "usrjquota",
    "grpjquota",
    "uquota",
    "gquota",
    "pquota",
    "uqnoenforce",
    "gqnoenforce",
    "pqnoenforce",
];

/// A file system of one of the kinds.
pub struct Linux {
    kind: &'static str,
    trusted: bool,
    scratch: PathBuf,
}

impl Linux {
    /// `trusted`: the operator says that its bytes may go to the kernel of this host.
    pub fn new(kind: &'static str, trusted: bool, scratch: &Path) -> Linux {
        let scratch = scratch.to_owned();
        Linux {
            kind,
            trusted,
            scratch,
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Refuses to let the kernel read what is not trusted, also in a run that goes on.
    fn trust(&self) -> Result<()> {
        let kind = self.kind;
        match self.trusted {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "has {kind}, which the kernel of this host would read, and a hostile one could \
                 take this host over; add --trust-image if you know where it comes from"
            ))),
        }
    }

    /// Refuses what was not unmounted in order.
    fn judge(&self, partition: &Path) -> Result<superblock::Superblock> {
        self.trust()?;
        let kind = self.kind;
        let found = superblock::read(partition, kind)?;
        if found.has_errors {
            return Err(Error::refused(format!(
                "its {kind} has errors; check it in the guest, and shut the guest down cleanly"
            )));
        }
        if found.is_dirty {
            return Err(self.dirty());
        }
        Ok(found)
    }

    fn dirty(&self) -> Error {
        let kind = self.kind;
        Error::refused(format!(
            "its {kind} was not unmounted and needs its journal; shut the guest down cleanly first"
        ))
    }

    /// Mounts what must need no journal.
    fn clean(&self, partition: &Path, name: &str) -> Result<Mounted> {
        let mounted = Mounted::read_only_clean(self.kind, partition, self.place(name));
        mounted.map_err(|error| {
            // Only xfs gets here with a journal: its superblock does not tell.
            match Mounted::read_only(self.kind, partition, self.place(name)) {
                Ok(_) => self.dirty(),
                Err(_) => error,
            }
        })
    }
}

impl FileSystem for Linux {
    fn name(&self) -> &'static str {
        self.kind
    }

    fn is_system(&self, partition: &Path) -> Result<bool> {
        self.judge(partition)?;
        let mounted = self.clean(partition, "look")?;
        let found = mounted.place().join("etc");
        let is = std::fs::symlink_metadata(found).is_ok_and(|it| it.is_dir());
        mounted.close()?;
        Ok(is)
    }

    fn list(&self, partition: &Path, rules: &Rules, swaps: &[SwapPartition]) -> Result<Listing> {
        let found = self.judge(partition)?;
        let mounted = self.clean(partition, "input")?;
        let root = mounted.place();
        if std::fs::symlink_metadata(root.join(MOUNTS.trim_start_matches('/'))).is_ok() {
            return Err(Error::refused(format!(
                "has {MOUNTS} already: it was split before; give the image that it came from"
            )));
        }
        let table = fstab::entries(&linked::table(root)?);
        let matched = matched::find(root, rules, &table)?;
        let mut listing = list::list(root, matched)?;
        let mut entries = table.iter().filter(|it| it.place == "/");
        let has_quota = entries.any(|it| QUOTAS.iter().any(|quota| it.has_option(quota)));
        if (has_quota || found.has_quota) && !listing.moved.is_empty() {
            listing.refusals.push(
                "the root has quotas, which do not count on other disks; take them away in the \
                 guest"
                    .to_owned(),
            );
        }
        if rules.page_file.is_some() {
            list::page_files(root, &table, swaps, &mut listing)?;
        }
        if !listing.forgotten.is_empty() {
            listing.warnings.push(kept::MADE_ANEW.to_owned());
        }
        let labels = inside(root, "/etc/selinux/config").is_ok_and(|it| it.exists());
        if labels {
            listing.warnings.push(format!(
                "the guest has SELinux: after its first start run `restorecon {MOUNTS}`"
            ));
        }
        mounted.close()?;
        Ok(listing)
    }

    fn smallest_bytes(&self) -> u64 {
        match self.kind {
            "xfs" => XFS_BYTES_MIN,
            _ => EXT4_BYTES_MIN,
        }
    }

    fn swaps_to_partition(&self) -> bool {
        true
    }

    fn make_volume(&self, partition: &Path, volume: &Volume) -> Result<()> {
        let (label, uuid) = (volume.class.label(), &volume.file_system_uuid);
        match self.kind {
            "xfs" => {
                let mut command = Command::new("mkfs.xfs");
                command.args(["-q", "-L", label, "-m", &format!("uuid={uuid}")]);
                run("xfsprogs", command.arg(partition))?
            }
            _ => {
                let mut command = Command::new("mke2fs");
                command.args(["-q", "-F", "-t", "ext4", "-L", label, "-U", uuid]);
                run("e2fsprogs", command.arg(partition))?
            }
        };
        Ok(())
    }

    fn make_swap(&self, partition: &Path, swap: &Swap) -> Result<()> {
        let mut command = Command::new("mkswap");
        command.args(["-L", SWAP_LABEL, "-U", &swap.uuid]);
        run("util-linux", command.arg(partition))?;
        Ok(())
    }

    fn copy(&self, from: &Path, to: &Path, moved: &[&Moved]) -> Result<()> {
        self.trust()?;
        let from = Mounted::read_only(self.kind, from, self.place("input"))?;
        let to = Mounted::writable(self.kind, to, self.place("new"))?;
        transfer::copy(from.place(), to.place(), moved)?;
        to.close()?;
        from.close()
    }

    fn verify(&self, from: &Path, to: &Path, moved: &[&Moved]) -> Result<()> {
        self.trust()?;
        let from = Mounted::read_only(self.kind, from, self.place("input"))?;
        let to = Mounted::read_only_clean(self.kind, to, self.place("new"))?;
        transfer::verify(from.place(), to.place(), moved)?;
        to.close()?;
        from.close()
    }

    fn empty(&self, system: &Path, layout: &Layout) -> Result<()> {
        self.trust()?;
        let system = Mounted::writable(self.kind, system, self.place("system"))?;
        for moved in &layout.listing.moved {
            transfer::empty(system.place(), moved)?;
        }
        for file in &layout.listing.forgotten {
            kept::forget(system.place(), file)?;
        }
        system.close()
    }

    fn link(&self, partitions: &Partitions, layout: &Layout) -> Result<()> {
        self.trust()?;
        let input = Mounted::read_only(self.kind, &partitions.input, self.place("input"))?;
        let system = Mounted::writable(self.kind, &partitions.system, self.place("system"))?;
        linked::link(input.place(), system.place(), layout, self.kind)?;
        system.close()?;
        input.close()
    }

    fn check(&self, partitions: &Partitions, layout: &Layout) -> Result<()> {
        self.trust()?;
        checked::check(self.kind, &self.scratch, partitions, layout)
    }
}
