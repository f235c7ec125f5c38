//! How far a split has come, in a file that outlives it.
//!
//! ```text
//! planned -> copied -> verified -> emptied -> linked -> checked -> done
//! ```
//!
//! Always true: a state is in the file only when all that it says is durable; the file is replaced
//! as a whole. Until `emptied` nothing was taken from the system disk, and the input is never
//! written. Deliberately absent: what is done between two states.

use crate::disk::Image;
use crate::error::{Error, Result};
use crate::kind::Layout;
use crate::rules::Rules;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

pub const FILE: &str = "split.json";
const VERSION: u32 = 1;
const FILE_BYTES_MAX: u64 = 256 << 20;
/// No size in the file may be larger, so that sums cannot overflow.
const BYTES_MAX: u64 = 1 << 52;

/// What has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is decided what goes where.
    Planned,
    /// The new disks have the data.
    Copied,
    /// The copies were compared with the image.
    Verified,
    /// The system disk has no longer what moved.
    Emptied,
    /// The paths lead to the new disks.
    Linked,
    /// What a guest sees was compared with the image.
    Checked,
    /// The lines for the configuration are written.
    Done,
}

impl State {
    pub const fn name(self) -> &'static str {
        match self {
            State::Planned => "planned",
            State::Copied => "copied",
            State::Verified => "verified",
            State::Emptied => "emptied",
            State::Linked => "linked",
            State::Checked => "checked",
            State::Done => "done",
        }
    }

    /// What comes next; `None` at the end.
    pub const fn next(self) -> Option<State> {
        match self {
            State::Planned => Some(State::Copied),
            State::Copied => Some(State::Verified),
            State::Verified => Some(State::Emptied),
            State::Emptied => Some(State::Linked),
            State::Linked => Some(State::Checked),
            State::Checked => Some(State::Done),
            State::Done => None,
        }
    }
}

/// Which image it is. A file that was written since, or replaced, is another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageId {
    pub path: PathBuf,
    pub format: String,
    pub bytes: u64,
    /// In nanoseconds; as text, because numbers of JSON are shorter.
    pub modified: String,
    pub inode: u64,
}

impl ImageId {
    pub fn of(image: &Image) -> ImageId {
        ImageId {
            path: image.path.clone(),
            format: image.format.to_owned(),
            bytes: image.file_bytes,
            modified: image.modified_ns.to_string(),
            inode: image.inode,
        }
    }
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    version: u32,
    pub state: State,
    pub image: ImageId,
    pub rules: Rules,
    pub copy: bool,
    /// Where the system is on the disk; 0: there is no table.
    pub partition: u32,
    pub file_system: String,
    pub layout: Layout,
}

/// What the output directory had.
impl Progress {
    pub fn new(
        image: &Image,
        rules: &Rules,
        copy: bool,
        found: (u32, &str),
        layout: Layout,
    ) -> Self {
        Progress {
            version: VERSION,
            state: State::Planned,
            image: ImageId::of(image),
            rules: rules.clone(),
            copy,
            partition: found.0,
            file_system: found.1.to_owned(),
            layout,
        }
    }

    /// What a directory has of an earlier run; `None`: no run began there.
    pub fn load(directory: &Path) -> Result<Option<Progress>> {
        let path = directory.join(FILE);
        let bytes = match std::fs::metadata(&path) {
            Ok(about) if about.len() > FILE_BYTES_MAX => {
                return Err(unreadable(&path, "is too large"));
            }
            Ok(_) => std::fs::read(&path).map_err(|error| Error::io(&path, &error))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(&path, &error)),
        };
        Progress::parse(&bytes, &path).map(Some)
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<Progress> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let no_state = |error: serde_json::Error| unreadable(path, &error.to_string());
        let head: Head = serde_json::from_slice(bytes).map_err(no_state)?;
        if head.version != VERSION {
            return Err(Error::usage(format!(
                "{}: has version {}, and this program knows {VERSION}; go on with the program that \
                 began it",
                path.display(),
                head.version
            )));
        }
        let progress: Progress = serde_json::from_slice(bytes).map_err(no_state)?;
        let right = progress.layout.volumes.iter().all(|it| {
            let swap = it.swap.iter().flat_map(|it| [it.start_bytes, it.bytes]);
            let mut numbers = [it.start_bytes, it.bytes].into_iter().chain(swap);
            numbers.all(|it| it <= BYTES_MAX)
        });
        match right {
            true => Ok(progress),
            false => Err(unreadable(path, "has a size that no disk has")),
        }
    }

    /// Whether this run goes on with that one. Another image or other rules are refused.
    pub fn is_of(&self, directory: &Path, image: &Image, rules: &Rules, copy: bool) -> Result<()> {
        let path = directory.join(FILE);
        let other = |what: String| {
            Err(Error::usage(format!(
                "{}: this split was begun {what}; give another directory, or remove this one",
                path.display()
            )))
        };
        let now = ImageId::of(image);
        if self.image.path != now.path {
            return other(format!("from {}", self.image.path.display()));
        }
        if self.image != now {
            let shown = now.path.display();
            return other(format!("from {shown} as it was before it was changed"));
        }
        if self.rules != *rules {
            return other("with other rules".to_owned());
        }
        if self.copy != copy {
            let with = if self.copy { "with" } else { "without" };
            return other(format!("{with} --copy"));
        }
        Ok(())
    }

    /// Writes the file so that it is there whole after a crash, or not at all.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        let new = directory.join(format!("{FILE}.new"));
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::failed(format!("{}: {error}", path.display())))?;
        write_durably(&new, &text)?;
        std::fs::rename(&new, &path).map_err(|error| Error::io(&path, &error))?;
        sync(directory)
    }
}

fn unreadable(path: &Path, why: &str) -> Error {
    Error::usage(format!(
        "{}: is no state of a split: {why}; remove the directory and begin again",
        path.display()
    ))
}

pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    let fail = |error: std::io::Error| Error::io(path, &error);
    let mut file = File::create(path).map_err(fail)?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(fail)
}

/// Waits until a file or a directory is durable.
pub fn sync(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|it| it.sync_all());
    synced.map_err(|error| Error::io(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Listing;

    fn image() -> Image {
        Image {
            path: "/srv/a.img".into(),
            format: "raw",
            is_device: false,
            file_bytes: 5,
            modified_ns: i128::from(u64::MAX) * 7,
            inode: 3,
        }
    }

    fn progress() -> Progress {
        let rules = Rules::load("linux").unwrap();
        let layout = Layout {
            listing: Listing::default(),
            volumes: Vec::new(),
            letter: None,
        };
        Progress::new(&image(), &rules, false, (1, "ext4"), layout)
    }

    #[test]
    fn a_state_is_read_back_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Progress::load(directory.path()).unwrap(), None);
        progress().save(directory.path()).unwrap();
        assert_eq!(Progress::load(directory.path()).unwrap(), Some(progress()));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// Fails when: a run goes on with what another image or other rules have begun.
    #[test]
    fn another_image_or_other_rules_do_not_go_on() {
        let (progress, at) = (progress(), Path::new("/out"));
        let rules = Rules::load("linux").unwrap();
        let refused = |image: &Image, rules: &Rules, copy| {
            progress.is_of(at, image, rules, copy).unwrap_err().message
        };
        let right = "; give another directory, or remove this one";
        assert!(progress.is_of(at, &image(), &rules, false).is_ok());
        let mut other = image();
        other.path = "/srv/b.img".into();
        assert_eq!(
            refused(&other, &rules, false),
            format!("/out/split.json: this split was begun from /srv/a.img{right}")
        );
        other = image();
        other.modified_ns += 1;
        assert_eq!(
            refused(&other, &rules, false),
            format!(
                "/out/split.json: this split was begun from /srv/a.img as it was before it was \
                 changed{right}"
            )
        );
        let mut changed = rules.clone();
        changed.moves.pop();
        assert_eq!(
            refused(&image(), &changed, false),
            format!("/out/split.json: this split was begun with other rules{right}")
        );
        assert_eq!(
            refused(&image(), &rules, true),
            format!("/out/split.json: this split was begun without --copy{right}")
        );
    }

    #[test]
    fn bytes_that_are_no_state_are_an_error() {
        let text = serde_json::to_string(&progress()).unwrap();
        let path = Path::new("/out/split.json");
        for at in 0..text.len() {
            assert!(Progress::parse(&text.as_bytes()[..at], path).is_err());
        }
        let newer = text.replace("\"version\":1", "\"version\":2");
        let error = Progress::parse(newer.as_bytes(), path).unwrap_err();
        assert_eq!(
            error.message,
            "/out/split.json: has version 2, and this program knows 1; go on with the program that \
             began it"
        );
        let volume = "\"volumes\":[{\"class\":\"never\",\"partition_uuid\":\"\",\
                      \"file_system_uuid\":\"\",\"start_bytes\":1,\"bytes\":18446744073709551615,\
                      \"swap\":null}]";
        let large = text.replace("\"volumes\":[]", volume);
        let error = Progress::parse(large.as_bytes(), path).unwrap_err();
        assert_eq!(
            error.message,
            "/out/split.json: is no state of a split: has a size that no disk has; remove the \
             directory and begin again"
        );
    }
}
