//! What the user of a guest should know of the memory that its front end has shared.
//!
//! Owns the judgement of memory files. Always true: advice is given only for what was seen, so a
//! front end that nobody may look into gets none; whatever its list of mappings says, nothing
//! depends on it but words. Deliberately absent: whether the memory can be used (`mapping`), and
//! when something is said.

use crate::sys;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;

/// Of a list of mappings: more than a process may have has no end.
const MAPS_BYTES_MAX: u64 = 16 << 20;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Advice {
    /// The guest writes into copies of its own.
    #[error(
        "the guest's memory is not shared with this daemon, so its disk cannot work: give its \
         memory share=on (libvirt: <access mode='shared'/>)"
    )]
    NotShared,
    /// A ring lies in none of it.
    #[error(
        "a ring of the guest is not in the memory that it shares with this daemon, so its disk \
         cannot work: give all of its memory share=on (QEMU: -object \
         memory-backend-memfd,id=…,size=…,share=on; libvirt: <access mode='shared'/> in \
         <memoryBacking>)"
    )]
    RingOutside,
    #[error(
        "the guest's memory is shared, but without huge pages; with hugetlb=on (libvirt: \
         <hugepages/>) it would be faster"
    )]
    SmallPages,
}

impl Advice {
    /// The disk works all the same.
    pub fn is_mere_hint(&self) -> bool {
        *self == Advice::SmallPages
    }
}

/// The advice for memory in these files, of a front end that is this process.
pub fn advice<'f>(files: impl Iterator<Item = &'f File>, peer: Option<u32>) -> Option<Advice> {
    let files: Vec<&File> = files.collect();
    let private = |peer: u32| files.iter().any(|file| is_private(file, peer));
    if peer.is_some_and(private) {
        return Some(Advice::NotShared);
    }
    let small = |file: &&File| {
        let kind = sys::file_system(file);
        kind.is_ok_and(|(kind, _)| kind != HUGETLBFS_MAGIC)
    };
    files.iter().any(small).then_some(Advice::SmallPages)
}

/// Whether a process maps a file, but nowhere so that others see what it writes.
fn is_private(file: &File, process: u32) -> bool {
    let (Ok(data), Ok(maps)) = (file.metadata(), File::open(format!("/proc/{process}/maps")))
    else {
        return false;
    };
    let device = (libc::major(data.dev()), libc::minor(data.dev()));
    let mut found = false;
    for line in BufReader::new(maps.take(MAPS_BYTES_MAX)).split(b'\n') {
        let Ok(line) = line else { return false };
        let Some(mapping) = Mapping::parse(&String::from_utf8_lossy(&line)) else {
            continue;
        };
        if (mapping.device, mapping.inode) != (device, data.ino()) {
            continue;
        }
        if mapping.shared {
            return false;
        }
        found = true;
    }
    found
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    shared: bool,
    device: (u32, u32),
    inode: u64,
}

impl Mapping {
    /// Range, rights, offset, device, inode, and the path.
    fn parse(line: &str) -> Option<Mapping> {
        let mut words = line.split_ascii_whitespace().skip(1);
        let shared = words.next()?.ends_with('s');
        let (major, minor) = words.nth(1)?.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        Some(Mapping {
            shared,
            device: (number(major)?, number(minor)?),
            inode: words.next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::vhost_user::mapping;
    use crate::frontend::vhost_user::tests::memory_file;

    #[test]
    fn a_line_of_a_list_of_mappings_is_understood_or_passed_over() {
        let line = "7f3c00000000-7f3c10000000 rw-p 00000000 00:01 2054 /memfd:a b (deleted)";
        let mapping = Mapping::parse(line).expect("a mapping");
        let expected = Mapping {
            shared: false,
            device: (0, 1),
            inode: 2054,
        };
        assert_eq!(mapping, expected);
        let line = "7f3c00000000-7f3c10000000 rw-s 00000000 fd:1a 7";
        let mapping = Mapping::parse(line).expect("a mapping");
        assert!(mapping.shared && mapping.device == (0xfd, 0x1a));
        for line in ["", "x", "a b c d e", "a b c d:e f", "1-2 rw-p 0 1:2"] {
            assert_eq!(Mapping::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn memory_is_judged_by_who_sees_what_is_written() {
        let ours = Some(std::process::id());
        let file = memory_file(1 << 20);
        let other = memory_file(1 << 20);
        // Nobody has mapped it, which says nothing.
        assert_eq!(advice([&file].into_iter(), ours), Some(Advice::SmallPages));
        let _shared = mapping::Mapping::new(&file, 0, 1 << 20).expect("a mapping");
        assert_eq!(advice([&file].into_iter(), ours), Some(Advice::SmallPages));
        assert!(!is_private(&file, std::process::id()));
        // A process that is not there, or may not be looked into.
        assert_eq!(
            advice([&other].into_iter(), Some(u32::MAX)),
            Some(Advice::SmallPages)
        );
        assert_eq!(advice([].into_iter(), ours), None);
    }
}
