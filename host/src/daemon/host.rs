//! What this machine is: its identity, its boot, its limits.

use super::{StartError, VolumeSettings};
use crate::{drill, ring};
use engine::types::{Policy, Uuid};
use std::fs;

/// What a daemon without volumes keeps open, with a few to spare.
const DESCRIPTORS: u64 = 32;

/// Identity of the machine. Without one of systemd's or D-Bus's the host name has to do.
pub(super) fn machine(host_name: &str) -> Uuid {
    let places = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    let found = places
        .iter()
        .find_map(|path| parse(&fs::read_to_string(path).ok()?));
    found.unwrap_or_else(|| {
        let mut bytes = [0u8; 16];
        for (at, byte) in host_name.bytes().enumerate() {
            bytes[at % 16] = bytes[at % 16].wrapping_mul(31) ^ byte;
        }
        Uuid(bytes)
    })
}

/// Identity of the present boot. Where the kernel does not tell, one that no stage carries, so that
/// none is taken for one of this boot.
pub(super) fn boot() -> Uuid {
    let kernels = || fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let text = drill::boot().unwrap_or_else(kernels);
    parse(&text).unwrap_or_else(fresh)
}

pub(super) fn fresh() -> Uuid {
    Uuid(*uuid::Uuid::new_v4().as_bytes())
}

fn parse(text: &str) -> Option<Uuid> {
    let parsed = uuid::Uuid::parse_str(text.trim()).ok()?;
    Some(Uuid(*parsed.as_bytes()))
}

/// Lifts the soft limit of descriptors to the hard one, and refuses where these volumes would not
/// find enough: the one that finds none would be told as if its origin were at fault.
pub(super) fn allow_descriptors(volumes: &[VolumeSettings]) -> Result<(), StartError> {
    if let Err(error) = ring::lift_descriptor_limit() {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    let needed = DESCRIPTORS + volumes.iter().map(descriptors).sum::<u64>();
    let limit = ring::descriptors_max();
    match needed <= limit {
        true => Ok(()),
        false => Err(StartError::Io(format!(
            "{} volumes need {needed} open files before the first client comes, and this process \
             may have {limit}; raise LimitNOFILE= of its unit, or `ulimit -n`",
            volumes.len()
        ))),
    }
}

/// What a volume keeps open: its sockets, its origin, and what lies beside that.
fn descriptors(volume: &VolumeSettings) -> u64 {
    let file = || fs::metadata(&volume.origin).is_ok_and(|meta| meta.is_file());
    let beside = match volume.policy {
        Policy::WriteBack if volume.read_only => 0,
        Policy::WriteBack if volume.journal_dir.is_some() || file() => 2,
        Policy::WriteBack => 1,
        Policy::Uncached | Policy::WriteThrough | Policy::Ephemeral => 0,
    };
    let sockets = u64::from(volume.exports.nbd) + u64::from(volume.exports.vhost_user);
    sockets + 1 + beside
}

/// The id of a group, by name or number.
pub(super) fn group_id(name: &str) -> Option<u32> {
    if let Ok(id) = name.parse() {
        return Some(id);
    }
    let groups = fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next()? == name;
        let id = fields.nth(1)?.parse().ok()?;
        found.then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_one_identity_and_one_boot() {
        assert_eq!(machine("a"), machine("a"));
        assert_eq!(boot(), boot());
        assert_ne!(boot(), Uuid::NIL);
        assert_ne!(fresh(), fresh());
    }

    #[test]
    fn a_group_is_found_by_name_and_by_number() {
        assert_eq!(group_id("root"), Some(0));
        assert_eq!(group_id("1234"), Some(1234));
        assert_eq!(group_id("no such group"), None);
    }
}
