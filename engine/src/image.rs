//! What a volume knows its image by, and whether that is still so.
//!
//! ```text
//! looked at: attach, before a journal is replayed, before and after each batch of a destage,
//!            and whenever the host asks (every few seconds while it serves)
//! fits     ─▶ nothing happens; a volume that was held for its image goes on
//! away     ─▶ nothing is known: not held, not served by mistake either; its requests wait anyway
//! misfits  ─▶ held: nothing is written to it, nothing is read from it, and nothing is called "at
//!            the origin" until the image fits again or an administrator has decided
//! base was changed where it lies ─▶ what is kept clean of it is forgotten, and the change is told
//! ```
//!
//! An image that is written may stand on other files, which it never writes: it misfits when one
//! of them is another one than it was.
//!
//! An image of a format may say of itself which volume has written it, and how far: a [`Mark`]. It
//! is gone where another program has opened the file to write it, and is of another moment where a
//! file came back from a backup.
//!
//! Always true: only what is known on both sides is compared, so a storage that tells nothing (a
//! server, a device without times) never makes a misfit; a storage that cannot be asked is away,
//! and never a misfit. Our own writes change the time of an image, so of one that we write the
//! time counts only where the ledger saw it after the last of them. Numbers of devices are given
//! anew at each mount, so they are compared within one life only and never kept. Deliberately
//! absent: how the host finds these numbers.

use crate::types::{Generation, Serial, Uuid};

/// The numbers that a file system tells of an image. Zero stands for what it does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Of the file system, or of the device that is the image; of this life only.
    pub device: u64,
    pub inode: u64,
    /// When the file was made.
    pub birth_ns: u64,
    pub size_bytes: u64,
    pub mtime_ns: u64,
    /// Its numbers are the same after the next mount.
    pub lasts: bool,
    /// Of an image that is written and is not raw: a print over all files that it stands on, which
    /// is never 0, also where there are none.
    pub below: u64,
    pub marked: Marked,
}

/// What an image says of the volume that has written it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Marked {
    /// It cannot say, or was not asked.
    #[default]
    Unknown,
    /// It has no mark, or another program took it away.
    Absent,
    By(Mark),
}

/// The volume that wrote an image, and what of it the image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub volume: Uuid,
    pub generation: Generation,
    pub serial: Serial,
}

/// Where the path of an image leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Named {
    /// It cannot be told at present, or there is no path.
    #[default]
    Unknown,
    Gone,
    To(Image),
}

/// What a look at an image found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    Same,
    /// The storage does not answer, or a handle has become stale: nothing is known.
    Away,
    /// Another file than the one that the volume knows.
    Replaced,
    /// The file is open, but nothing has its name any more.
    PathGone,
    /// The file is open, but another one has its name.
    PathLeadsElsewhere,
    Shrunk,
    Grown,
    /// The same file, written by another program.
    ChangedInPlace,
    /// One of the files below it is another one, or was written.
    BelowChanged,
    /// Another program has opened it to write it.
    OpenedElsewhere,
    /// It is the image of another moment.
    OtherMoment,
    /// The cluster has given it to another host.
    Deposed,
}

impl Image {
    /// Nothing is known that tells it from another image.
    pub fn is_unknown(&self) -> bool {
        self.inode == 0 && self.device == 0
    }

    /// What is kept over a life: the rest is of the running system.
    pub fn kept(self) -> Image {
        match self.lasts {
            // In the print over files below are no numbers of this life.
            false => Image {
                below: self.below,
                marked: self.marked,
                ..Image::default()
            },
            true => Image { device: 0, ..self },
        }
    }

    /// The same of an image that is being written: its time says nothing.
    pub fn written(self) -> Image {
        Image {
            mtime_ns: 0,
            ..self
        }
    }

    /// Whether both are one file, as far as is known. A number of an inode is given again, so the
    /// birth decides where both have one; else the device has to be the same.
    pub fn is_file_of(&self, other: &Image) -> bool {
        let differ = |one: u64, other: u64| one != 0 && other != 0 && one != other;
        if differ(self.inode, other.inode) {
            return false;
        }
        match self.birth_ns != 0 && other.birth_ns != 0 {
            true => self.birth_ns == other.birth_ns,
            false => !differ(self.device, other.device),
        }
    }
}

impl Marked {
    /// What counts for this volume.
    pub fn of(self, volume: Uuid) -> Marked {
        match self {
            Marked::By(mark) if mark.volume != volume => Marked::Absent,
            other => other,
        }
    }

    /// Whether nobody but the volume that made the mark before has written the image since.
    fn goes_on_from(self, before: Marked) -> bool {
        match (before, self) {
            (Marked::Unknown | Marked::Absent, _) | (_, Marked::Unknown) => true,
            (Marked::By(_), Marked::Absent) => false,
            (Marked::By(one), Marked::By(other)) => one.volume == other.volume,
        }
    }
}

impl Finding {
    /// Whether going on would write or read what is not the image of the volume. One that has
    /// grown has all that the volume has; one that was changed where it lies is the business of
    /// whoever looks.
    pub fn is_misfit(self) -> bool {
        match self {
            Finding::Same | Finding::Away | Finding::Grown | Finding::ChangedInPlace => false,
            Finding::Replaced
            | Finding::PathGone
            | Finding::PathLeadsElsewhere
            | Finding::Shrunk
            | Finding::BelowChanged
            | Finding::OpenedElsewhere
            | Finding::OtherMoment
            | Finding::Deposed => true,
        }
    }

    /// As in "its image ...".
    pub const fn words(self) -> &'static str {
        match self {
            Finding::Same => "is as it was",
            Finding::Away => "cannot be looked at",
            Finding::Replaced => "was replaced by another file",
            Finding::PathGone => "was removed or renamed: its path leads nowhere",
            Finding::PathLeadsElsewhere => "was renamed: its path leads to another file",
            Finding::Shrunk => "has shrunk",
            Finding::Grown => "has grown",
            Finding::ChangedInPlace => "was written by another program",
            Finding::Deposed => "was given to another host",
            Finding::BelowChanged => "stands on a file that was changed or replaced",
            Finding::OpenedElsewhere => "was opened by another program to write it",
            Finding::OtherMoment => {
                "is of another moment than its ledger: one of them was restored"
            }
        }
    }
}

/// Of the files below an image that moves to other ones nothing is said. No print is even.
pub const BELOW_ANY: u64 = 2;

/// Compares what is known of an image with its open file (`None`: it cannot be asked) and with
/// where its path leads.
pub fn compare(known: &Image, open: Option<&Image>, named: Named) -> Finding {
    if open.is_some_and(|open| !known.is_file_of(open)) {
        return Finding::Replaced;
    }
    match named {
        Named::Gone => return Finding::PathGone,
        Named::To(other) if !known.is_file_of(&other) => return Finding::PathLeadsElsewhere,
        Named::To(_) | Named::Unknown => {}
    }
    let Some(open) = open else {
        return Finding::Away;
    };
    let told = |below: u64| below != 0 && below != BELOW_ANY;
    if told(known.below) && told(open.below) && known.below != open.below {
        return Finding::BelowChanged;
    }
    if !open.marked.goes_on_from(known.marked) {
        return Finding::OpenedElsewhere;
    }
    let differ = known.mtime_ns != 0 && open.mtime_ns != 0 && known.mtime_ns != open.mtime_ns;
    match open.size_bytes.cmp(&known.size_bytes) {
        core::cmp::Ordering::Less => Finding::Shrunk,
        core::cmp::Ordering::Greater => Finding::Grown,
        core::cmp::Ordering::Equal if differ => Finding::ChangedInPlace,
        core::cmp::Ordering::Equal => Finding::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Image = Image {
        device: 5,
        inode: 12,
        birth_ns: 1_000,
        size_bytes: 4096,
        mtime_ns: 2_000,
        lasts: true,
        below: 7,
        marked: Marked::Unknown,
    };

    fn found(open: Image) -> Finding {
        compare(&KNOWN, Some(&open), Named::To(open))
    }

    #[test]
    fn each_difference_has_its_name() {
        let changed = |change: fn(&mut Image)| {
            let mut image = KNOWN;
            change(&mut image);
            image
        };
        assert_eq!(found(KNOWN), Finding::Same);
        assert_eq!(found(changed(|it| it.inode = 13)), Finding::Replaced);
        // The number of an inode was given again.
        assert_eq!(found(changed(|it| it.birth_ns = 9)), Finding::Replaced);
        // Mounted again: the birth says that it is the same.
        assert_eq!(found(changed(|it| it.device = 6)), Finding::Same);
        assert_eq!(found(changed(|it| it.size_bytes = 512)), Finding::Shrunk);
        assert_eq!(found(changed(|it| it.size_bytes = 8192)), Finding::Grown);
        assert_eq!(found(changed(|it| it.below = 8)), Finding::BelowChanged);
        assert_eq!(found(changed(|it| it.below = 0)), Finding::Same);
        assert_eq!(found(changed(|it| it.below = BELOW_ANY)), Finding::Same);
        assert!(Finding::BelowChanged.is_misfit());
        let written = changed(|it| it.mtime_ns = 1_999);
        assert_eq!(found(written), Finding::ChangedInPlace);
        let ours = KNOWN.written();
        assert_eq!((ours.below, KNOWN.kept().below), (7, 7));
        let named = Named::To(written);
        assert_eq!(compare(&ours, Some(&written), named), Finding::Same);
    }

    #[test]
    fn a_path_is_looked_at_beside_the_open_file() {
        let other = Image { inode: 13, ..KNOWN };
        let look = |named| compare(&KNOWN, Some(&KNOWN), named);
        assert_eq!(look(Named::Gone), Finding::PathGone);
        assert_eq!(look(Named::To(other)), Finding::PathLeadsElsewhere);
        assert_eq!(look(Named::Unknown), Finding::Same);
    }

    #[test]
    fn a_storage_that_does_not_answer_is_no_misfit() {
        assert_eq!(compare(&KNOWN, None, Named::Unknown), Finding::Away);
        assert_eq!(compare(&KNOWN, None, Named::To(KNOWN)), Finding::Away);
        // A file that was removed elsewhere is stale here, and has no name.
        assert_eq!(compare(&KNOWN, None, Named::Gone), Finding::PathGone);
        let unknown = Image {
            size_bytes: 4096,
            ..Image::default()
        };
        assert_eq!(
            compare(&unknown, Some(&KNOWN), Named::Unknown),
            Finding::Same
        );
        assert!(!Finding::Away.is_misfit());
    }
}
