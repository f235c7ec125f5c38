//! Why a device, an image or the stage could not be opened or made.
//!
//! Always true: the message is one line, lower-case, names the object, the cause and what would
//! be right; nothing was changed where one is returned, unless the message says so.

use crate::config::units::human_bytes;
use crate::error::cause;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Few kinds, for exit codes and for the admin interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NotFound,
    /// Another living process or host holds it.
    InUse,
    /// Going on would lose data that is not ours to lose.
    WouldLoseData,
    /// It is something else than what was expected.
    Foreign,
    /// The request makes no sense for this object.
    Invalid,
    NoSpace,
    Io,
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub kind: Kind,
    pub message: String,
    /// Of one that is in use by this very process.
    pub ours: Option<FileId>,
    #[source]
    pub source: Option<io::Error>,
}

/// Which file it is, whatever its name: device and inode, of a device its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl FileId {
    pub fn of(meta: &Metadata) -> FileId {
        match meta.file_type().is_block_device() {
            true => FileId(meta.rdev(), 0),
            false => FileId(meta.dev(), meta.ino()),
        }
    }
}

impl Fault {
    pub fn new(kind: Kind, message: impl Into<String>) -> Fault {
        Fault {
            kind,
            message: message.into(),
            ours: None,
            source: None,
        }
    }

    /// A file that is larger than this process may write.
    pub fn too_large(object: &str, bytes: u64, limit: u64) -> Fault {
        let (bytes, limit) = (human_bytes(bytes), human_bytes(limit));
        let message = format!(
            "{object}: has {bytes}, and this process may write no more than {limit} of a file; \
             raise LimitFSIZE= of its unit, or `ulimit -f`"
        );
        Fault::new(Kind::NoSpace, message)
    }

    /// A failed system call on `object`.
    pub fn io(object: &str, doing: &str, source: io::Error) -> Fault {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => Kind::NotFound,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::NoSpace,
            _ => Kind::Io,
        };
        let right = match source.kind() {
            io::ErrorKind::PermissionDenied => "; give this user the right to it, or name another",
            _ => "",
        };
        Fault {
            kind,
            message: format!("{object}: cannot {doing}: {}{right}", cause(&source)),
            ours: None,
            source: Some(source),
        }
    }
}
