//! Which file is where on a disk, from what `debugfs` says of an ext2, ext3 or ext4 file system.
//!
//! Owns the map, and the reading of that program's words; running it is not done here. Always true:
//! whatever the words are, also those that names in a file system forge, the map holds ranges
//! inside 64 bits and nothing fails; a place in no file is `None`. Blocks of the file system's own
//! are `/[metadata]`, its journal is `/[journal]`.

use crate::trace::SECTOR_BYTES;
use std::collections::HashMap;

/// Each command comes back behind this.
const ECHO: &str = "debugfs:";
const ROOT_INODE: u64 = 2;
const JOURNAL_INODE: u64 = 8;
const BLOCK_BYTES_MAX: u64 = 64 << 10;

/// A directory or file, found in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub parent: u64,
    pub inode: u64,
    pub is_directory: bool,
    pub name: String,
}

/// One name of a file or directory, from the root of its file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub path: String,
    pub is_directory: bool,
    /// The same for all names of a file.
    pub file: u64,
}

/// Blocks from `first` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    pub first: u64,
    pub end: u64,
}

/// Files by place.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Sectors from, to before, and the name; in order once closed.
    ranges: Vec<(u64, u64, u32)>,
    names: Vec<String>,
}

impl Places {
    /// Blocks of a file, in a file system that begins at a sector.
    pub fn add(&mut self, name: &str, start_sector: u64, block_bytes: u64, blocks: &[Blocks]) {
        let block_sectors = block_bytes / SECTOR_BYTES;
        let sector = |block: u64| {
            let offset = block.checked_mul(block_sectors)?;
            offset.checked_add(start_sector)
        };
        let number = self.names.len() as u32;
        let ranges = blocks.iter().filter_map(|blocks| {
            let (first, end) = (sector(blocks.first)?, sector(blocks.end)?);
            (first < end).then_some((first, end, number))
        });
        self.ranges.extend(ranges);
        self.names.push(name.to_owned());
    }

    /// After the last file.
    pub fn close(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.shrink_to_fit();
    }

    /// The number of the file that has this sector.
    pub fn at(&self, sector: u64) -> Option<usize> {
        let next = self.ranges.partition_point(|range| range.0 <= sector);
        let (_, end, name) = self.ranges.get(next.checked_sub(1)?)?;
        (sector < *end).then_some(*name as usize)
    }

    pub fn name(&self, number: usize) -> &str {
        self.names.get(number).map_or("?", String::as_str)
    }

    pub fn files(&self) -> usize {
        self.names.len()
    }
}

/// The size of a block, from `stats -h`.
pub fn block_bytes(stats: &str) -> Option<u64> {
    let value = stats
        .lines()
        .find_map(|line| line.strip_prefix("Block size:"))?;
    let bytes: u64 = value.trim().parse().ok()?;
    (bytes.is_power_of_two() && (1024..=BLOCK_BYTES_MAX).contains(&bytes)).then_some(bytes)
}

/// Bitmaps and tables of inodes, and what comes before the first of them, from `stats`.
pub fn metadata(stats: &str) -> Vec<Blocks> {
    let value = |line: &str| line.split_whitespace().last()?.parse::<u64>().ok();
    let table_blocks = stats
        .lines()
        .find(|line| line.starts_with("Inode blocks per group:"))
        .and_then(value)
        .unwrap_or(0);
    let mut found = Vec::new();
    for part in stats.lines().flat_map(|line| line.split([',', '('])) {
        let Some((words, place)) = part.rsplit_once(" at ") else {
            continue;
        };
        let Ok(first) = place.trim().parse::<u64>() else {
            continue;
        };
        let blocks = if words.ends_with("inode table") {
            table_blocks
        } else {
            1
        };
        let of_ours = ["block bitmap", "inode bitmap", "inode table"];
        if of_ours.iter().any(|it| words.ends_with(it)) {
            let end = first.saturating_add(blocks);
            found.push(Blocks { first, end });
        }
    }
    if let Some(first) = found.iter().map(|it| it.first).min() {
        found.push(Blocks {
            first: 0,
            end: first,
        });
    }
    found
}

/// The inode that a command of ours named: `debugfs: ls -p <12>`.
fn asked(line: &str) -> Option<u64> {
    let (_, inode) = line.strip_prefix(ECHO)?.rsplit_once('<')?;
    inode.trim_end().strip_suffix('>')?.parse().ok()
}

/// What is in the directories that were asked for with `ls -p <INODE>`.
pub fn entries(text: &str) -> Vec<Entry> {
    let mut parent = None;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with(ECHO) {
            parent = asked(line);
            continue;
        }
        // An empty part, inode, mode in octal, user, group, name, size, an empty part.
        let parts: Vec<&str> = line.split('/').collect();
        let (Some(parent), [_, inode, mode, _, _, name, _, _]) = (parent, &parts[..]) else {
            continue;
        };
        let (Ok(inode), Ok(mode)) = (inode.parse::<u64>(), u32::from_str_radix(mode, 8)) else {
            continue;
        };
        if inode == 0 || ["", ".", ".."].contains(name) {
            continue;
        }
        found.push(Entry {
            parent,
            inode,
            is_directory: mode & 0o170_000 == 0o040_000,
            name: (*name).to_owned(),
        });
    }
    found
}

/// The blocks of the inodes that were asked for with `stat <INODE>`.
pub fn blocks(text: &str) -> HashMap<u64, Vec<Blocks>> {
    let mut found: HashMap<u64, Vec<Blocks>> = HashMap::new();
    let mut inode = None;
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with(ECHO) {
            (inode, inside) = (asked(line), false);
            continue;
        }
        if ["EXTENTS:", "BLOCKS:"].contains(&line.trim_end()) {
            inside = true;
            continue;
        }
        let (Some(inode), true) = (inode, inside) else {
            continue;
        };
        for part in line.split(',') {
            let range = part.trim().strip_prefix('(');
            let range = range.and_then(|it| it.split_once("):"));
            if let Some(blocks) = range.and_then(|it| range_of(it.1)) {
                found.entry(inode).or_default().push(blocks);
            }
        }
    }
    found
}

/// `1234-1237` or `1234`.
fn range_of(text: &str) -> Option<Blocks> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let end = last.checked_add(1)?;
    (first < end).then_some(Blocks { first, end })
}

/// Names of inodes with the directories above them, from the entries of all directories.
pub fn paths(entries: &[Entry]) -> HashMap<u64, String> {
    let mut paths = HashMap::from([(ROOT_INODE, "/".to_owned())]);
    paths.insert(JOURNAL_INODE, "/[journal]".to_owned());
    // Directories were asked for after they were found, so that parents come first.
    for entry in entries {
        let Some(parent) = paths.get(&entry.parent) else {
            continue;
        };
        let path = format!("{}/{}", parent.trim_end_matches('/'), entry.name);
        paths.entry(entry.inode).or_insert(path);
    }
    paths
}

/// All names, those of one file each, from the entries of all directories and their paths.
pub fn names(entries: &[Entry], paths: &HashMap<u64, String>) -> Vec<Name> {
    let names = entries.iter().filter_map(|entry| {
        let parent = paths.get(&entry.parent)?;
        Some(Name {
            path: format!("{}/{}", parent.trim_end_matches('/'), entry.name),
            is_directory: entry.is_directory,
            file: entry.inode,
        })
    });
    names.collect()
}

/// What `cat <INODE>` says of files that are lists of paths, a line for each.
pub fn listed(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|it| it.starts_with('/'));
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const STATS: &str = "Block size:               4096\nInode blocks per group:   512\n\
        Group  0: block bitmap at 259, inode bitmap at 275, inode table at 291\n           \
        52906 free blocks\n";
    const LISTING: &str = "debugfs: ls -p <2>\n/2/040755/0/0/.//\n/12/040755/0/0/etc//\n\
        /15/100644/0/0/a, b/12/\ndebugfs: ls -p <12>\n/13/100644/0/0/passwd/3/\nls: no such\n";
    const STAT: &str = "debugfs: stat <13>\nInode: 13   Type: regular\nLinks: 1\nEXTENTS:\n\
        (0-767):4609-5376, (768):6000\n(ETB0):77\n\ndebugfs: stat <15>\nInode: 15\nBLOCKS:\n\
        (0-1):10-11, (IND):12\nTOTAL: 3\n";

    #[test]
    fn a_file_system_becomes_a_map() {
        assert_eq!(block_bytes(STATS), Some(4096));
        let of_its_own = metadata(STATS);
        assert!(of_its_own.contains(&Blocks {
            first: 291,
            end: 803
        }));
        assert!(of_its_own.contains(&Blocks { first: 0, end: 259 }));
        let entries = entries(LISTING);
        assert_eq!(entries.len(), 3);
        let paths = paths(&entries);
        assert_eq!(paths[&13], "/etc/passwd");
        assert_eq!(paths[&15], "/a, b");
        let blocks = blocks(STAT);
        assert_eq!(blocks[&15].len(), 2);
        let mut places = Places::default();
        places.add("/[metadata]", 2048, 4096, &of_its_own);
        places.add(&paths[&13], 2048, 4096, &blocks[&13]);
        places.add(&paths[&15], 2048, 4096, &blocks[&15]);
        places.close();
        let name = |sector| {
            places
                .at(sector)
                .map(|number| places.name(number).to_owned())
        };
        assert_eq!(name(2047), None);
        assert_eq!(name(2048 + 8 * 4609).as_deref(), Some("/etc/passwd"));
        assert_eq!(name(2048 + 8 * 5377 - 1).as_deref(), Some("/etc/passwd"));
        assert_eq!(name(2048 + 8 * 5377), None);
        assert_eq!(name(2048 + 8 * 77).as_deref(), Some("/etc/passwd"));
        assert_eq!(name(2048 + 8 * 300).as_deref(), Some("/[metadata]"));
    }

    #[test]
    fn words_that_a_file_system_forges_do_no_harm() {
        let all = [STATS, LISTING, STAT].concat();
        let pieces: Vec<&str> = all
            .split_inclusive([' ', '/', ':', '-', '\n', '<'])
            .collect();
        let odd = [
            "18446744073709551615",
            "-",
            "<",
            "debugfs:",
            "EXTENTS:\n",
            " at ",
            "é",
            "/",
        ];
        for seed in 0..3000 {
            let mut random = Rng::new(seed << 20);
            let text: String = (0..random.below(60))
                .map(|_| match random.below(4) {
                    0 => odd[random.below(odd.len() as u64) as usize],
                    _ => pieces[random.below(pieces.len() as u64) as usize],
                })
                .collect();
            let mut places = Places::default();
            places.add(
                "m",
                1 << 40,
                block_bytes(&text).unwrap_or(4096),
                &metadata(&text),
            );
            for (inode, path) in paths(&entries(&text)) {
                let blocks = blocks(&text);
                places.add(
                    &path,
                    0,
                    4096,
                    blocks.get(&inode).map_or(&[], Vec::as_slice),
                );
            }
            places.close();
            for sector in [0, 1, 1 << 40, u64::MAX] {
                places.at(sector);
            }
        }
    }
}
