//! The new disks: which there are, how large, and what lies where on them.
//!
//! Always true: a class without data has no disk; a disk has room for half as much again as moves
//! there, unless the rules say its size.

use crate::disk::MIB;
use crate::error::{Error, Result};
use crate::kind::{Class, Layout, Listing, Swap, Volume};
use crate::rules::{Family, PageFile, Rules};
use uuid::Uuid;

/// The first partition begins where partitions of large sectors do.
const START_BYTES: u64 = MIB;
const LEAST_BYTES: u64 = 1 << 30;
/// What a file system needs for itself, at least and for each file.
const OWN_BYTES: u64 = 64 * MIB;
const FILE_BYTES: u64 = 4096;

/// Decides what the disks are. Identities are chosen here, so that a second run makes the same.
pub fn layout(listing: Listing, rules: &Rules) -> Result<Layout> {
    let page_file = page_file(&listing, rules);
    let mut volumes = Vec::new();
    for class in Class::ALL {
        let swap_bytes = page_file
            .filter(|(of, _)| *of == class)
            .map(|(_, bytes)| bytes);
        let moved = listing.moved.iter().filter(|it| it.class == class);
        if swap_bytes.is_none() && moved.clone().next().is_none() {
            continue;
        }
        // A page file of Windows lies among the other files; swap has a partition of its own.
        let files = match rules.family {
            Family::Windows => swap_bytes.unwrap_or(0),
            Family::Linux => 0,
        };
        let used = moved.fold(files, |sum, it| {
            sum.saturating_add(it.bytes)
                .saturating_add(it.files.saturating_mul(FILE_BYTES))
        });
        let bytes = size(class, used, rules)?;
        volumes.push(Volume {
            class,
            partition_uuid: Uuid::new_v4().to_string(),
            file_system_uuid: Uuid::new_v4().to_string(),
            start_bytes: START_BYTES,
            bytes,
            swap: swap_bytes.map(|swap_bytes| Swap {
                partition_uuid: Uuid::new_v4().to_string(),
                uuid: Uuid::new_v4().to_string(),
                start_bytes: START_BYTES + bytes,
                bytes: swap_bytes.next_multiple_of(MIB),
            }),
        });
    }
    let letter = rules.letter.filter(|_| page_file.is_some());
    Ok(Layout {
        listing,
        volumes,
        letter,
    })
}

/// The class that swap goes to, and how large it is.
fn page_file(listing: &Listing, rules: &Rules) -> Option<(Class, u64)> {
    let PageFile { class, size_bytes } = rules.page_file.clone()?;
    let now: u64 = listing.page_files.iter().map(|it| it.bytes).sum();
    let bytes = size_bytes.or((now > 0).then_some(now))?;
    Some((class, bytes))
}

fn size(class: Class, used: u64, rules: &Rules) -> Result<u64> {
    let least = used.saturating_add(used / 10).saturating_add(OWN_BYTES);
    match rules.disk(class).size_bytes {
        None => {
            let half_more = used.saturating_add(used / 2);
            Ok(half_more.max(least).max(LEAST_BYTES).next_multiple_of(MIB))
        }
        Some(bytes) if bytes >= least => Ok(bytes.next_multiple_of(MIB)),
        Some(bytes) => Err(Error::usage(format!(
            "class {}: a disk of {} MiB is too small for what moves there; give at least {} MiB, \
             or size = \"auto\"",
            class.name(),
            bytes / MIB,
            least.div_ceil(MIB)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{Moved, PageFile as Found};

    fn listing(bytes: u64) -> Listing {
        Listing {
            moved: vec![Moved {
                path: "/var/log".to_owned(),
                class: Class::WriteBack,
                kept: Vec::new(),
                nested: Vec::new(),
                files: 1,
                bytes,
                symlink: false,
            }],
            ..Listing::default()
        }
    }

    /// Fails when: a class without data gets a disk, or one with data gets none.
    #[test]
    fn a_class_without_data_has_no_disk() {
        let rules = Rules::load("linux").unwrap();
        let none = layout(Listing::default(), &rules).unwrap();
        assert!(none.volumes.is_empty());
        let one = layout(listing(1), &rules).unwrap();
        let classes: Vec<Class> = one.volumes.iter().map(|it| it.class).collect();
        assert_eq!(classes, [Class::WriteBack]);
        assert_eq!(one.volumes[0].bytes, LEAST_BYTES);
        let mut swaps = listing(4 << 30);
        swaps.page_files.push(Found {
            what: "/swapfile".to_owned(),
            bytes: 5,
            is_file: true,
        });
        let both = layout(swaps, &rules).unwrap();
        assert_eq!(both.volumes[0].bytes, (6 << 30) + MIB);
        let (volume, swap) = both.swap().unwrap();
        assert_eq!((volume.class, swap.bytes), (Class::Never, MIB));
        assert_eq!(swap.start_bytes, MIB + LEAST_BYTES);
    }

    /// Fails when: the volume of a Windows page file is made without room for it.
    #[test]
    fn a_page_file_of_windows_has_room_among_the_files() {
        let rules = Rules::load("windows-safe").unwrap();
        let mut swaps = Listing::default();
        swaps.page_files.push(Found {
            what: "/pagefile.sys".to_owned(),
            bytes: 4 << 30,
            is_file: true,
        });
        let layout = layout(swaps, &rules).unwrap();
        assert_eq!(layout.volumes[0].bytes, 6 << 30);
    }

    #[test]
    fn a_disk_that_is_too_small_is_refused() {
        let text = "base = \"linux\"\n[class.write-back]\nsize = \"100MiB\"\n";
        let rules = Rules::parse(text, "r").unwrap();
        assert_eq!(
            layout(listing(1), &rules).unwrap().volumes[0].bytes,
            100 * MIB
        );
        assert_eq!(
            layout(listing(100 * MIB), &rules).unwrap_err().message,
            "class write-back: a disk of 100 MiB is too small for what moves there; give at least \
             175 MiB, or size = \"auto\""
        );
    }
}
