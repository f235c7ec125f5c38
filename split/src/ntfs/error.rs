//! What goes wrong with NTFS.
//!
//! Always true: a message is one line and says what would be right. [`Refused`] is about the image
//! or the rules, and the operator can change it; the others are about this host.

use super::path::{WindowsPath, WrongPath};
use crate::programs::Failure;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// So many names of files stand in a message.
pub(super) const NAMES_MAX: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Refused(#[from] Box<Refused>),
    #[error(transparent)]
    Program(#[from] Failure),
    #[error("{}: {doing}: {source}", path.display())]
    Io {
        path: PathBuf,
        doing: &'static str,
        source: io::Error,
    },
    #[error("{program} says of {} what is not understood: {what}", object.display())]
    NotUnderstood {
        program: &'static str,
        object: PathBuf,
        what: String,
    },
    #[error(
        "{}: mounting NTFS needs root, for it is done in a mount namespace of its own: {source}",
        partition.display()
    )]
    NoNamespace {
        partition: PathBuf,
        source: io::Error,
    },
    #[error(
        "{}: ntfs-3g did not mount it within {seconds} s; run the step again",
        partition.display()
    )]
    MountTimeout { partition: PathBuf, seconds: u64 },
    #[error("{path} is not as it was: {what}; run the split again from the untouched image")]
    Differs { path: String, what: &'static str },
    #[error("the check of {} finds faults: {says}; run the split again", partition.display())]
    Faulty { partition: PathBuf, says: String },
}

/// Why an image or a rule is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{}: no NTFS is in it, its boot sector says otherwise", .0.display())]
    NotNtfs(PathBuf),
    #[error("{}: BitLocker encrypts it; let `manage-bde -off` decrypt it in Windows", .0.display())]
    BitLocker(PathBuf),
    #[error(
        "{}: Windows is hibernated or was stopped for a fast start; shut it down with \
         `shutdown /s /f /t 0`",
        .0.display()
    )]
    Hibernated(PathBuf),
    #[error(
        "{}: its journal $LogFile holds changes that are not in place; start Windows and shut it \
         down with `shutdown /s /f /t 0`",
        .0.display()
    )]
    Unclean(PathBuf),
    #[error(
        "{}: it is marked dirty; let Windows check it with `chkdsk /f` and shut it down",
        .0.display()
    )]
    Dirty(PathBuf),
    #[error("rule `{rule}`: {why}")]
    Rule { rule: String, why: &'static str },
    #[error("{path}: {why}")]
    Unmovable { path: String, why: &'static str },
    #[error(
        "`keep` of {keep} lies inside {moved}, which moves; NTFS can not leave a part of a moved \
         directory behind, so give rules for its subdirectories instead"
    )]
    KeepInside {
        keep: WindowsPath,
        moved: WindowsPath,
    },
    #[error(
        "{path} would lie on the same volume as {outer}, with {between} on another one between \
         them; give {path} the class of {between}"
    )]
    Alternates {
        path: WindowsPath,
        between: WindowsPath,
        outer: WindowsPath,
    },
    #[error(
        "a file has names on both sides of a split, which hard links can not have: {}; move all \
         of them or none",
        .0
    )]
    HardLink(String),
    #[error(
        "{path} is a relative link to {target}, which leaves the moved directory {moved}; make \
         the link absolute or move both"
    )]
    LinkLeaves {
        path: String,
        target: String,
        moved: WindowsPath,
    },
    #[error("{0} is encrypted by EFS, which no copy keeps; let `cipher /d` decrypt it in Windows")]
    Encrypted(String),
    #[error(
        "{0} is deduplicated, its content lies elsewhere; let `Start-DedupJob -Type \
         Unoptimization` write it back"
    )]
    Deduplicated(String),
    #[error("{0} is not empty, and Windows wants a mount point to be; empty it first")]
    NotEmpty(WindowsPath),
    #[error("{0} is a reparse point already, but another one; keep it out of the rules")]
    OtherReparse(WindowsPath),
    #[error("{0} is not there, or is no directory; list the partition again")]
    NoDirectory(WindowsPath),
    #[error("{}: no {path} is in it; without Windows leave the page file out", partition.display())]
    NoHive { partition: PathBuf, path: String },
    #[error(
        "{path}: the registry hive is dirty, {why}; start Windows and shut it down with \
         `shutdown /s /f /t 0`"
    )]
    DirtyHive { path: String, why: String },
    #[error("{path}: {why}, so it is no registry hive of Windows")]
    NotHive { path: String, why: &'static str },
    #[error("the letter {letter}: belongs to another volume in the registry; choose a free one")]
    LetterTaken { letter: char },
    #[error("`{0}` is no letter for a drive; D to Z are")]
    NoLetter(char),
}

impl From<WrongPath> for Refused {
    fn from(wrong: WrongPath) -> Refused {
        let WrongPath { rule, why } = wrong;
        Refused::Rule { rule, why }
    }
}

impl From<WrongPath> for Error {
    fn from(wrong: WrongPath) -> Error {
        Refused::from(wrong).into()
    }
}

impl From<WrongPath> for crate::Error {
    fn from(wrong: WrongPath) -> crate::Error {
        Refused::from(wrong).into()
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        Error::Refused(Box::new(refused))
    }
}

impl From<Refused> for crate::Error {
    fn from(refused: Refused) -> crate::Error {
        crate::Error::refused(refused.to_string())
    }
}

/// For `map_err` of what reads and writes files.
pub(super) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io {
        path,
        doing,
        source,
    }
}

/// Names in one line, the first of them where there are many.
pub(super) fn names(names: &[String]) -> String {
    let mut text = names[..names.len().min(NAMES_MAX)].join(", ");
    if names.len() > NAMES_MAX {
        let more = names.len() - NAMES_MAX;
        write!(text, " and {more} more").expect("a string has room");
    }
    text
}
