//! The new disks: which there are, how large, and what lies where on them.
//!
//! Always true: a class without data has no disk; a disk has room for half as much again as moves
//! there, unless the rules say its size, and is as large as its file system has to be.

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
/// `smallest`: the fewest bytes that the file system takes.
pub fn layout(mut listing: Listing, rules: &Rules, smallest: u64) -> Result<Layout> {
    if rules.pool.is_some() {
        let lost = lost_below(&listing);
        listing.warnings.extend(lost);
    }
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
        let bytes = size(class, used, rules, smallest)?;
        let pool = rules.pool.as_ref().and_then(|it| it.name.as_deref());
        let identity = |of| identity(pool, class, of).to_string();
        volumes.push(Volume {
            class,
            partition_uuid: identity("partition"),
            file_system_uuid: identity("file system"),
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

/// A new identity. In a pool it is the same in each split for a pool of that name, so that the
/// disks that its clones have fit the next image as well: Windows finds them by it.
fn identity(pool: Option<&str>, class: Class, of: &str) -> Uuid {
    let Some(pool) = pool else {
        return Uuid::new_v4();
    };
    // FNV-1a of 128 bits: nothing is secret here, and it stays the same for ever.
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let text = format!("tenuto {}/{of}/{pool}", class.name());
    let hash = text.bytes().fold(OFFSET, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    });
    uuid::Builder::from_custom_bytes(hash.to_be_bytes()).into_uuid()
}

/// The class that swap goes to, and how large it is.
fn page_file(listing: &Listing, rules: &Rules) -> Option<(Class, u64)> {
    let PageFile { class, size_bytes } = rules.page_file.clone()?;
    let now: u64 = listing.page_files.iter().map(|it| it.bytes).sum();
    let bytes = size_bytes.or((now > 0).then_some(now))?;
    Some((class, bytes))
}

/// Paths below kept ones that a reset throws away: the deeper line counts, which is easily
/// overlooked where the deeper one is of a shipped table.
fn lost_below(listing: &Listing) -> Vec<String> {
    let mut lost = Vec::new();
    for outer in listing.moved.iter().filter(|it| it.class == Class::Keep) {
        let class = |path: &String| listing.moved.iter().find(|it| it.path == *path);
        let nested = outer.nested.iter().filter_map(class);
        let nested = nested.filter(|it| it.class.is_relaxed());
        let nested = nested.map(|it| (&it.path, it.class.name()));
        let stay = outer.kept.iter().map(|it| (it, "the system disk"));
        for (path, on) in nested.chain(stay) {
            lost.push(format!(
                "{path} is on {on}, which a reset empties, though {} is kept: the deeper line \
                 counts",
                outer.path
            ));
        }
    }
    lost
}

fn size(class: Class, used: u64, rules: &Rules, smallest: u64) -> Result<u64> {
    let least = used.saturating_add(used / 10).saturating_add(OWN_BYTES);
    let least = least.max(smallest);
    match rules.disk(class).size_bytes {
        None => {
            let half_more = used.saturating_add(used / 2);
            // Each clone of a pool has one of these.
            let usual = if class == Class::Keep { 0 } else { LEAST_BYTES };
            Ok(half_more.max(least).max(usual).next_multiple_of(MIB))
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
        let none = layout(Listing::default(), &rules, 0).unwrap();
        assert!(none.volumes.is_empty());
        let one = layout(listing(1), &rules, 0).unwrap();
        let classes: Vec<Class> = one.volumes.iter().map(|it| it.class).collect();
        assert_eq!(classes, [Class::WriteBack]);
        assert_eq!(one.volumes[0].bytes, LEAST_BYTES);
        let mut swaps = listing(4 << 30);
        swaps.page_files.push(Found {
            what: "/swapfile".to_owned(),
            bytes: 5,
            is_file: true,
        });
        let both = layout(swaps, &rules, 0).unwrap();
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
        let layout = layout(swaps, &rules, 0).unwrap();
        assert_eq!(layout.volumes[0].bytes, 6 << 30);
    }

    #[test]
    fn a_disk_that_is_too_small_is_refused() {
        let text = "base = \"linux\"\n[class.write-back]\nsize = \"100MiB\"\n";
        let rules = Rules::parse(text, "r").unwrap();
        assert_eq!(
            layout(listing(1), &rules, 0).unwrap().volumes[0].bytes,
            100 * MIB
        );
        assert_eq!(
            layout(listing(100 * MIB), &rules, 0).unwrap_err().message,
            "class write-back: a disk of 100 MiB is too small for what moves there; give at least \
             175 MiB, or size = \"auto\""
        );
    }
    /// Fails when: the disk that each clone has is as large as others, or smaller than its file
    /// system can be; what is lost below a kept path is not told; or the next image of a pool does
    /// not find the disks of its members.
    #[test]
    fn a_disk_of_what_is_kept_is_small_and_found_by_the_next_image_and_what_is_lost_is_told() {
        let rules = Rules::parse("[pool]\nkeep = [\"/home\"]\n", "r").unwrap();
        let moved = |path: &str, class, nested: &[&str], kept: &[&str]| Moved {
            path: path.to_owned(),
            class,
            kept: kept.iter().map(|it| (*it).to_owned()).collect(),
            nested: nested.iter().map(|it| (*it).to_owned()).collect(),
            files: 1,
            bytes: 1,
            symlink: false,
        };
        let listing = Listing {
            moved: vec![
                moved(
                    "/home",
                    Class::Keep,
                    &["/home/a/.cache"],
                    &["/home/bob/docs"],
                ),
                moved("/home/a/.cache", Class::Never, &[], &[]),
            ],
            ..Listing::default()
        };
        let small = layout(listing.clone(), &rules, 0).unwrap();
        assert_eq!(small.volume(Class::Keep).unwrap().bytes, 65 * MIB);
        assert_eq!(small.volume(Class::Never).unwrap().bytes, LEAST_BYTES);
        let counts = "which a reset empties, though /home is kept: the deeper line counts";
        assert_eq!(
            small.listing.warnings,
            [
                format!("/home/a/.cache is on never, {counts}"),
                format!("/home/bob/docs is on the system disk, {counts}"),
            ]
        );
        let larger = layout(listing.clone(), &rules, 300 * MIB).unwrap();
        assert_eq!(larger.volume(Class::Keep).unwrap().bytes, 300 * MIB);
        let of = |name: &str| {
            let text = format!("[pool]\nkeep = [\"/home\"]\n{name}");
            let rules = Rules::parse(&text, "r").unwrap();
            let layout = layout(listing.clone(), &rules, 0).unwrap();
            let volume = layout.volume(Class::Keep).unwrap().clone();
            (volume.partition_uuid, volume.file_system_uuid)
        };
        let rules = Rules::parse("[pool]\nkeep = [\"/home\"]\nname = \"a\"\n", "r").unwrap();
        let all = || layout(listing.clone(), &rules, 0).unwrap().volumes;
        assert_eq!(all(), all());
        assert_ne!(all()[0].partition_uuid, all()[1].partition_uuid);
        // Once chosen it must stay: the disks that clones have are found by it.
        let [partition, file_system] = [
            "f541fd75-2984-8e9a-bbde-b6a359001f0e",
            "66cf35a5-12a0-8785-b2fe-5cf7c024fad7",
        ];
        assert_eq!(
            of("name = \"a\""),
            (partition.to_owned(), file_system.to_owned())
        );
        assert_ne!(of("name = \"b\"").0, partition);
        assert_ne!(of("").0, of("").0);
    }
}
