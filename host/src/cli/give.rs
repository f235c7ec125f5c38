//! `tenuto volume show NAME… --qemu` and its sisters: what gives volumes to a guest.
//!
//! Owns which form was asked for, and where a volume is known from. Always true: one form at a
//! time; no volume twice, because a guest has one disk of it. Deliberately absent: the spelling of
//! each form, which is in `attach` and `monitors`.

use super::Context;
use super::arguments;
use super::attach::{self, Disk, DiskName};
use super::monitors;
use super::reply::url;
use crate::config::state;
use crate::config::units::show_size;
use crate::error::{Error, Kind, Result};
use clap::Args;

/// What a processor of today addresses.
const GUEST_BYTES_MAX: u64 = 1 << 52;
const FORMS: &str = "--qemu, --libvirt, --cloud-hypervisor or --firecracker";

/// Memory of a guest of which nothing is said.
const GUEST_MEMORY: &str = "1GiB";

#[derive(Debug, Args)]
pub struct Show {
    /// Name of the volume, as in `tenuto volume ls`; several for the disks of one guest
    #[arg(id = "name", value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Print the arguments that give these disks to QEMU
    #[arg(long, conflicts_with_all = ["libvirt", "cloud_hypervisor", "firecracker"])]
    qemu: bool,
    /// Print the elements that give these disks to libvirt
    #[arg(long, conflicts_with_all = ["cloud_hypervisor", "firecracker"])]
    libvirt: bool,
    /// Print the arguments that give these disks to Cloud Hypervisor
    #[arg(long, conflicts_with = "firecracker")]
    cloud_hypervisor: bool,
    /// Print the requests that give these disks to Firecracker
    #[arg(long)]
    firecracker: bool,
    /// With --qemu or --cloud-hypervisor: memory of the guest, which vhost-user has to share; 1GiB
    /// where it is not said
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// With --libvirt or --firecracker: the first of these disks in the guest, vda where it is not
    /// said; the others count on
    #[arg(long, value_name = "DISK")]
    target: Option<String>,
    /// With --qemu or --libvirt: over NBD, also where the volume exports vhost-user
    #[arg(long)]
    nbd: bool,
}

impl Show {
    /// The volume of which all is to be shown; `None` where a form for a guest was asked for.
    pub fn alone(&self) -> Result<Option<&str>> {
        let forms = [
            self.qemu,
            self.libvirt,
            self.cloud_hypervisor,
            self.firecracker,
        ];
        let over_rings = self.cloud_hypervisor || self.firecracker;
        let is_form = forms.contains(&true);
        if self.nbd && over_rings {
            return Err(Error::usage(
                "--nbd: Cloud Hypervisor and Firecracker speak no NBD; leave it out",
            ));
        }
        let sized = self.qemu || self.cloud_hypervisor;
        let placed = self.libvirt || self.firecracker;
        for (is_there, fits, words) in [
            (self.nbd, is_form, "--nbd: goes with --qemu or --libvirt"),
            (
                self.memory.is_some(),
                sized,
                "--memory: goes with --qemu or --cloud-hypervisor",
            ),
            (
                self.target.is_some(),
                placed,
                "--target: goes with --libvirt or --firecracker",
            ),
        ] {
            if is_there && !fits {
                return Err(Error::usage(words));
            }
        }
        match &self.names[..] {
            _ if is_form => Ok(None),
            [name] => Ok(Some(name)),
            _ => Err(Error::usage(format!(
                "several volumes are shown for a guest only; add {FORMS}, or name one volume"
            ))),
        }
    }

    fn memory_bytes(&self) -> Result<u64> {
        let memory = self.memory.as_deref().unwrap_or(GUEST_MEMORY);
        let bytes = arguments::size("--memory", memory)?;
        if bytes > GUEST_BYTES_MAX {
            let most = show_size(GUEST_BYTES_MAX);
            return Err(Error::usage(format!(
                "--memory: {memory} is too large; write at most {most}"
            )));
        }
        Ok(bytes)
    }
}

/// Prints what gives the volumes to a guest.
pub fn give(context: &Context, command: &Show) -> Result<()> {
    if let Some(twice) = twice(&command.names) {
        return Err(Error::usage(format!(
            "volume {twice}: is named twice; a guest has one disk of a volume"
        )));
    }
    let memory = command.memory_bytes()?;
    let target = DiskName::parse(command.target.as_deref().unwrap_or(DiskName::FIRST))?;
    let disks = command.names.iter().map(|name| disk(context, name));
    let disks = disks.collect::<Result<Vec<Disk>>>()?;
    let pasted = match command {
        Show { qemu: true, .. } => attach::qemu(&disks, command.nbd, memory)?,
        Show { libvirt: true, .. } => attach::libvirt(&disks, command.nbd, &target)?,
        Show {
            firecracker: true, ..
        } => monitors::firecracker(&disks, &target)?,
        _ => monitors::cloud_hypervisor(&disks, memory)?,
    };
    let output = context.output();
    output.document(&pasted.document, || pasted.text.clone())?;
    if !output.json && !output.quiet {
        pasted.notes.iter().for_each(|note| eprintln!("# {note}"));
    }
    Ok(())
}

fn twice(names: &[String]) -> Option<&String> {
    let is_again = |(at, name): &(usize, &String)| names[..*at].contains(*name);
    names
        .iter()
        .enumerate()
        .find(is_again)
        .map(|(_, name)| name)
}

/// The volume as the daemon knows it, or where none answers as the configuration names it: guests
/// may be defined before the daemon runs. A daemon that is named by its socket may have another.
fn disk(context: &Context, name: &str) -> Result<Disk> {
    let asked = context.client()?.get(&url(name, "")?);
    let error = match asked {
        Ok(volume) => return Ok(Disk::of_daemon(&volume)),
        Err(error) => error,
    };
    let away = error.kind == Kind::Unreachable && context.common.socket.is_none();
    let config = context.load().ok().filter(|_| away);
    let named = config.and_then(|config| {
        let added = || state::load(&config).unwrap_or_default().into_iter();
        let mut known = config.volumes.iter().cloned().chain(added());
        let volume = known.find(|volume| volume.name == name)?;
        Some(Disk::of_config(&config, &volume))
    });
    named.ok_or(error)
}
