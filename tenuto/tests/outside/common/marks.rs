//! The driver's side of the marks by which a kill drill knows where the daemon died.
//!
//! Owns the file named by `TENUTO_MARKS`: one page of native 64-bit words, which the daemon maps.
//! Always true: this side arms and reads, the daemon counts and dies. The layout is written
//! down once in the product; here it is written a second time on purpose, as a driver from
//! outside would.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const WORD_KILL_PHASE: u64 = 2;
const WORD_KILL_COUNTDOWN: u64 = 3;
const WORD_KILLED_IN: u64 = 4;
const WORD_PHASES: u64 = 16;
const WORDS_PER_PHASE: u64 = 4;

/// Where a daemon can die while guests load it, with the number the marks give it. Steps of a
/// snapshot are number 8.
pub const PHASES: [(u64, &str); 7] = [
    (1, "stage copy"),
    (2, "log write"),
    (3, "destage"),
    (4, "journal write"),
    (5, "journal apply"),
    (6, "checkpoint"),
    (7, "recovery"),
];

pub struct Marks {
    file: File,
    path: PathBuf,
}

impl Marks {
    pub fn new(path: &Path) -> Marks {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .expect("create the file of marks");
        file.set_len(4096).expect("size the file of marks");
        Marks {
            file,
            path: path.to_owned(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn get(&self, word: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file
            .read_exact_at(&mut bytes, word * 8)
            .expect("read a mark");
        u64::from_ne_bytes(bytes)
    }

    fn set(&self, word: u64, value: u64) {
        self.file
            .write_all_at(&value.to_ne_bytes(), word * 8)
            .expect("write a mark");
    }

    /// The daemon dies in the middle of the `nth` entry of this phase from now on.
    pub fn arm(&self, phase: u64, nth: u64) {
        self.set(WORD_KILLED_IN, 0);
        self.set(WORD_KILL_COUNTDOWN, nth);
        self.set(WORD_KILL_PHASE, phase);
    }

    pub fn disarm(&self) {
        self.set(WORD_KILL_PHASE, 0);
    }

    /// Phases in which the daemon was when it died: the one it died in by itself, and those it
    /// had entered and not left.
    pub fn died_in(&self) -> Vec<u64> {
        let by_itself = self.get(WORD_KILLED_IN);
        self.set(WORD_KILLED_IN, 0);
        let open = |phase: u64| self.get(WORD_PHASES + WORDS_PER_PHASE * phase) > 0;
        PHASES
            .iter()
            .map(|&(phase, _)| phase)
            .filter(|&phase| phase == by_itself || open(phase))
            .collect()
    }

    /// How often this phase was entered, over all lives.
    pub fn entries(&self, phase: u64) -> u64 {
        self.get(WORD_PHASES + WORDS_PER_PHASE * phase + 1)
    }
}
