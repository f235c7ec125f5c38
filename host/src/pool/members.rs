//! Which volumes are members of a pool, and what they are.
//!
//! Deliberately absent: how that is written in a file; see [`crate::config::pool`].

use std::path::PathBuf;

/// What the members of a pool are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneKind {
    /// Ephemeral volumes on the image itself.
    Ephemeral,
    /// Volumes whose qcow2 image stands on it.
    Qcow2,
}

impl CloneKind {
    pub const WORDS: [&'static str; 2] = ["ephemeral", "qcow2"];

    pub fn word(self) -> &'static str {
        match self {
            CloneKind::Ephemeral => CloneKind::WORDS[0],
            CloneKind::Qcow2 => CloneKind::WORDS[1],
        }
    }
}

/// A name, or what stands for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Name(String),
    /// With `*` for any letters and `?` for one.
    Glob(String),
}

/// A pool, as the daemon is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub name: String,
    /// What it begins with.
    pub image: PathBuf,
    pub clones: CloneKind,
    pub members: Vec<Pattern>,
}

impl Settings {
    pub fn has(&self, volume: &str) -> bool {
        has(&self.members, volume)
    }
}

/// Whether a volume is one of these.
pub fn has(members: &[Pattern], volume: &str) -> bool {
    members.iter().any(|pattern| match pattern {
        Pattern::Name(name) => name == volume,
        Pattern::Glob(glob) => matches(glob.as_bytes(), volume.as_bytes()),
    })
}

/// Whether a name is what a glob stands for.
pub fn matches(glob: &[u8], name: &[u8]) -> bool {
    // The place after the last star, and where in the name it was tried last.
    let (mut g, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match glob.get(g) {
            Some(b'*') => {
                star = Some((g + 1, n));
                g += 1;
            }
            Some(letter) if *letter == b'?' || *letter == name[n] => {
                g += 1;
                n += 1;
            }
            _ => match star {
                Some((after, tried)) => {
                    star = Some((after, tried + 1));
                    (g, n) = (after, tried + 1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|letter| *letter == b'*')
}
