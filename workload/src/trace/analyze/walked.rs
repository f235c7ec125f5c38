//! Which file is where in the NTFS file systems of an image, from what `fiwalk` says of it.
//!
//! Owns the reading of that program's words, which are XML with one element a line; running it is
//! not done here. Always true: whatever the words are, ranges go into the map as they do from
//! [`places`](super::places), inside 64 bits, and nothing fails; a file with several names has the
//! first. Left out: what lies inside the record of a file, which is the place of `/$MFT`; holes;
//! and file systems other than those that were asked for.

use super::places::{Blocks, Name, Places};
use crate::trace::SECTOR_BYTES;
use std::collections::HashSet;

/// Clusters are up to 2 MiB.
const CLUSTER_BYTES_MAX: u64 = 2 << 20;

/// A file system, while its files are told.
#[derive(Default)]
struct Volume {
    start_sector: u64,
    cluster_bytes: u64,
    is_wanted: bool,
    /// Files that have a name already.
    files: HashSet<u64>,
}

/// A file, while it is told.
#[derive(Default)]
struct File {
    path: Option<String>,
    is_directory: bool,
    number: Option<u64>,
    clusters: Vec<Blocks>,
}

/// What was told so far.
pub struct Walked {
    /// Where the file systems begin that are asked for.
    starts: Vec<u64>,
    volume: Volume,
    file: File,
    found: HashSet<u64>,
    /// All names with the sector at which their file system begins, where they are wanted.
    names: Option<Vec<(u64, Name)>>,
}

impl Walked {
    pub fn new(start_sectors: &[u64]) -> Walked {
        Walked {
            starts: start_sectors.to_vec(),
            volume: Volume::default(),
            file: File::default(),
            found: HashSet::new(),
            names: None,
        }
    }

    /// Keeps all names too.
    pub fn with_names(start_sectors: &[u64]) -> Walked {
        Walked {
            names: Some(Vec::new()),
            ..Walked::new(start_sectors)
        }
    }

    /// The names, with the sector at which their file system begins.
    pub fn names(&mut self) -> Vec<(u64, Name)> {
        self.names.take().unwrap_or_default()
    }

    pub fn line(&mut self, line: &str, places: &mut Places) {
        let line = line.trim();
        if let Some(offset) = number_in(line, "partition_offset") {
            self.volume = Volume {
                start_sector: offset / SECTOR_BYTES,
                ..Volume::default()
            };
        } else if let Some(bytes) = number_in(line, "block_size") {
            self.volume.cluster_bytes = bytes;
        } else if let Some(kind) = text_in(line, "ftype_str") {
            self.volume.is_wanted = kind == "ntfs"
                && is_cluster(self.volume.cluster_bytes)
                && self.starts.contains(&self.volume.start_sector);
        } else if !self.volume.is_wanted {
            // Nothing of it goes into the map.
        } else if line == "<fileobject>" {
            self.file = File::default();
        } else if let Some(name) = text_in(line, "filename") {
            self.file.path = Some(format!("/{}", unescaped(name)));
        } else if let Some(kind) = text_in(line, "name_type") {
            self.file.is_directory = kind == "d";
        } else if let Some(number) = number_in(line, "inode") {
            // Before the name stands that of the directory.
            self.file.number = self.file.path.is_some().then_some(number);
        } else if line.starts_with("<byte_run ") {
            self.file.clusters.extend(run(line, &self.volume));
        } else if line == "</fileobject>" {
            self.file_ends(places);
        }
    }

    fn file_ends(&mut self, places: &mut Places) {
        let file = std::mem::take(&mut self.file);
        let (Some(path), Some(number)) = (file.path, file.number) else {
            return;
        };
        // Each directory is told once more as `.`, and as `..` of those in it.
        let is_own = |it: &str| !it.ends_with("/.") && !it.ends_with("/..");
        if let Some(names) = self.names.as_mut().filter(|_| is_own(&path)) {
            let name = Name {
                path: path.clone(),
                is_directory: file.is_directory,
                file: number,
            };
            names.push((self.volume.start_sector, name));
        }
        if file.clusters.is_empty() || !self.volume.files.insert(number) {
            return;
        }
        let volume = &self.volume;
        places.add(
            &path,
            volume.start_sector,
            volume.cluster_bytes,
            &file.clusters,
        );
        self.found.insert(volume.start_sector);
    }

    /// Of those asked for, the first of which no file was told.
    pub fn missing(&self) -> Option<u64> {
        let mut starts = self.starts.iter();
        starts.find(|start| !self.found.contains(start)).copied()
    }
}

fn is_cluster(bytes: u64) -> bool {
    bytes.is_power_of_two() && (SECTOR_BYTES..=CLUSTER_BYTES_MAX).contains(&bytes)
}

/// `<inode>64</inode>`.
fn text_in<'a>(line: &'a str, element: &str) -> Option<&'a str> {
    let rest = line.strip_prefix('<')?.strip_prefix(element)?;
    let (text, end) = rest.strip_prefix('>')?.rsplit_once("</")?;
    (end.strip_suffix('>') == Some(element)).then_some(text)
}

fn number_in(line: &str, element: &str) -> Option<u64> {
    text_in(line, element)?.parse().ok()
}

/// The clusters of `<byte_run file_offset='0' fs_offset='8192' img_offset='8192' len='9000'/>`. A
/// compressed one has the bytes it takes as `uncompressed_len`, and of a hole no place is said.
fn run(line: &str, volume: &Volume) -> Option<Blocks> {
    let value = |name: &str| {
        let (_, rest) = line.split_once(&format!(" {name}='"))?;
        let (digits, _) = rest.split_once('\'')?;
        digits.parse::<u64>().ok()
    };
    if line.contains(" type='resident'") {
        return None;
    }
    let offset = value("fs_offset")?;
    let bytes = value("len").or_else(|| value("uncompressed_len"))?;
    let first = offset / volume.cluster_bytes;
    let end = offset.checked_add(bytes)?.div_ceil(volume.cluster_bytes);
    (first < end).then_some(Blocks { first, end })
}

fn unescaped(name: &str) -> String {
    let marks = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        // Last, so that what it gives is not taken for the beginning of another.
        ("&amp;", "&"),
    ];
    let name = name.to_owned();
    marks
        .iter()
        .fold(name, |name, (mark, is)| name.replace(mark, is))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const WALK: &str = include_str!("../../../../fuzz/corpus/fiwalk/two_volumes");

    const ENDS: &str = include_str!("../../../../fuzz/corpus/fiwalk/bare");

    fn map(text: &str, starts: &[u64]) -> (Walked, Places) {
        let (mut walked, mut places) = (Walked::new(starts), Places::default());
        for line in text.lines() {
            walked.line(line, &mut places);
        }
        places.close();
        (walked, places)
    }

    #[test]
    fn an_image_becomes_a_map() {
        let (walked, places) = map(WALK, &[2048]);
        assert_eq!(walked.missing(), None);
        let name = |sector: u64| places.at(sector).map(|number| places.name(number));
        let at = |cluster: u64| name(2048 + 8 * cluster);
        assert_eq!(name(2047), None);
        assert_eq!(at(3), None);
        assert_eq!(at(4), Some("/$MFT"));
        assert_eq!(name(2048 + 8 * 21 - 1), at(4));
        assert_eq!(at(21), None);
        assert_eq!(at(30), Some("/pressed"));
        assert_eq!([at(31), at(32)], [at(30), None], "only what it takes");
        assert_eq!(at(99), None);
        assert_eq!(at(100), Some("/d & <e>/it's &lt;"));
        assert_eq!(at(102), None, "a hole has no place");
        assert_eq!(at(202), at(100), "the last cluster is not full");
        assert_eq!(at(203), None);
        assert_eq!(at(0), None, "in the record of a file");
        assert_eq!(
            name(8192 + 19),
            None,
            "a file system that was not asked for"
        );
    }

    #[test]
    fn a_file_system_that_is_not_told_is_missing() {
        for (starts, missing) in [
            (&[2048, 8192][..], Some(8192)),
            (&[0], Some(0)),
            (&[], None),
        ] {
            let (walked, places) = map(WALK, starts);
            assert_eq!(walked.missing(), missing);
            assert_eq!(places.files() > 0, starts.contains(&2048));
        }
        let no_cluster = WALK.replace(">4096</block_size>", ">4095</block_size>");
        assert_eq!(map(&no_cluster, &[2048]).0.missing(), Some(2048));
    }

    #[test]
    fn runs_that_end_behind_all_sectors_are_left_out() {
        let (walked, places) = map(ENDS, &[0]);
        assert_eq!(walked.missing(), None);
        let found = [7, 8, 9].map(|sector| places.at(sector));
        assert_eq!(found, [None, Some(0), None]);
    }

    #[test]
    fn words_that_a_file_system_forges_do_no_harm() {
        let pieces: Vec<&str> = WALK.split_inclusive(['>', '\'', '/', '\n', ' ']).collect();
        let odd = ["18446744073709551615", "-", "<", "len='", "é", "</", "\n"];
        for seed in 0..3000 {
            let mut random = Rng::new(seed << 20);
            let text: String = (0..random.below(200))
                .map(|at| match random.below(8) {
                    0 => odd[random.below(odd.len() as u64) as usize],
                    1 => pieces[random.below(pieces.len() as u64) as usize],
                    _ => pieces[at as usize % pieces.len()],
                })
                .collect();
            let (_, places) = map(&text, &[2048, u64::MAX / 512]);
            for sector in [0, 2048, 1 << 40, u64::MAX] {
                places.at(sector);
            }
        }
    }
}
