//! What another program says of a file system, whose names are foreign.
//!
//! Invariants: the size of a block is one that such file systems have; a file lies below the root;
//! ranges are not empty, and whoever asks for the first sector of one gets a file; no sum goes
//! round the end of all sectors. A file system that was asked for has files or is missing.

use workload::trace::analyze::places::{Blocks, Places, block_bytes, blocks, entries, metadata};
use workload::trace::analyze::places::{Entry, paths};
use workload::trace::analyze::walked::Walked;

/// Where the file system begins on its disk.
const STARTS: [u64; 3] = [0, 2048, u64::MAX - 7];

fn sector(start: u64, block: u64, block_bytes: u64) -> Option<u64> {
    block
        .checked_mul(block_bytes / 512)
        .and_then(|offset| offset.checked_add(start))
}

fn is_found(places: &Places, start: u64, block_bytes: u64, range: &Blocks) {
    assert!(range.first < range.end, "{range:?}");
    let ends = [range.first, range.end].map(|block| sector(start, block, block_bytes));
    if let [Some(first), Some(_)] = ends {
        let number = places.at(first).expect("a file is there");
        assert!(number < places.files() && !places.name(number).is_empty());
    }
}

pub fn debugfs(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let block_size = block_bytes(&text);
    assert!(block_size.is_none_or(|it| it.is_power_of_two() && (1024..=65_536).contains(&it)));
    let block_size = block_size.unwrap_or(4096);
    let entries: Vec<Entry> = entries(&text);
    let files = paths(&entries);
    assert!(files.values().all(|path| path.starts_with('/')));
    let (of_files, of_its_own) = (blocks(&text), metadata(&text));
    for start in STARTS {
        let mut places = Places::default();
        places.add("/[metadata]", start, block_size, &of_its_own);
        for (inode, blocks) in &of_files {
            let path = files.get(inode).map_or("/?", String::as_str);
            places.add(path, start, block_size, blocks);
        }
        places.close();
        for range in of_files.values().flatten() {
            is_found(&places, start, block_size, range);
        }
        // The table of inodes may be none.
        for range in of_its_own.iter().filter(|it| it.first < it.end) {
            is_found(&places, start, block_size, range);
        }
    }
    !entries.is_empty() || !of_files.is_empty() || !of_its_own.is_empty()
}

pub fn fiwalk(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let mut any = false;
    for start in STARTS {
        let (mut walked, mut places) = (Walked::new(&[start]), Places::default());
        for line in text.lines() {
            walked.line(line, &mut places);
        }
        places.close();
        assert_eq!(walked.missing().is_some(), places.files() == 0);
        assert!((0..places.files()).all(|number| places.name(number).starts_with('/')));
        if start == 2048 {
            assert_eq!(
                places.at(0).or(places.at(2047)),
                None,
                "below its beginning"
            );
        }
        any |= places.files() > 0;
    }
    any
}
