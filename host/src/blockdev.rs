//! A block device of this host, by the name that the kernel has for it.
//!
//! Owns what is asked of every one of them, whichever driver made it: where it is, how large, and
//! who stands on it. Always true: nothing here changes a device. Deliberately absent: the drivers.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    name: String,
}

impl Block {
    pub fn new(name: String) -> Block {
        Block { name }
    }

    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// As the kernel has it now.
    pub fn size_bytes(&self) -> u64 {
        let sectors = fs::read_to_string(self.system().join("size")).unwrap_or_default();
        sectors.trim().parse::<u64>().unwrap_or(0) * 512
    }

    fn system(&self) -> PathBuf {
        Path::new("/sys/block").join(&self.name)
    }

    /// Who stands on it, as another block device or by its number in `/proc/PID/fd`.
    pub fn holders(&self) -> Vec<String> {
        let mut found = Vec::new();
        let holders = fs::read_dir(self.system().join("holders"));
        for entry in holders.into_iter().flatten().flatten() {
            found.push(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
        let own = std::process::id();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        for id in ids.filter(|id| *id != own) {
            let open = fs::read_dir(format!("/proc/{id}/fd"));
            let opens =
                open.into_iter().flatten().flatten().any(|entry| {
                    fs::read_link(entry.path()).is_ok_and(|place| self.is_place(&place))
                });
            if opens {
                found.push(format!("process {id}"));
            }
        }
        found
    }

    /// The device itself or one of its partitions.
    fn is_place(&self, place: &Path) -> bool {
        let own = self.path().display().to_string();
        let place = place.to_string_lossy();
        let rest = place.strip_prefix(own.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('p'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_a_device_are_its_own_and_those_of_others_are_not() {
        let device = Block::new("nbd1".into());
        assert!(device.is_place(Path::new("/dev/nbd1")));
        assert!(device.is_place(Path::new("/dev/nbd1p2")));
        assert!(!device.is_place(Path::new("/dev/nbd12")));
        assert!(!device.is_place(Path::new("/dev/nbd1x")));
    }
}
