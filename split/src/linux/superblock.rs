//! What the first bytes of ext4 and xfs say before a kernel mounts them.
//!
//! Always true: bytes of an image are judged, never trusted; what is too short or without its mark
//! is an error. Deliberately absent: all that a mount tells.

use crate::error::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BYTES: usize = 2048;
const EXT4_AT: usize = 1024;
const EXT4_MAGIC: u16 = 0xef53;
/// `s_state`: it was unmounted; it found errors.
const EXT4_VALID: u16 = 1;
const EXT4_ERRORS: u16 = 2;
/// The journal has to be replayed.
const EXT4_RECOVER: u32 = 0x4;
/// Files without a name are left over from a crash.
const EXT4_ORPHANS: u32 = 0x1_0000;
const EXT4_QUOTA: u32 = 0x100;
const XFS_MAGIC: u32 = u32::from_be_bytes(*b"XFSB");
const XFS_QUOTA_AT: usize = 176;
/// Quotas of users, groups and projects are accounted.
const XFS_QUOTA: u16 = 0x1 | 0x40 | 0x8;

/// What a file system says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Superblock {
    /// It was not unmounted; of xfs only a mount knows.
    pub is_dirty: bool,
    pub has_errors: bool,
    pub has_quota: bool,
}

pub fn read(partition: &Path, kind: &str) -> Result<Superblock> {
    let file = File::open(partition).map_err(|error| Error::io(partition, &error))?;
    let mut bytes = [0; BYTES];
    let read = file.read_exact_at(&mut bytes, 0);
    read.map_err(|error| Error::io(partition, &error))?;
    let found = match kind {
        "xfs" => xfs(&bytes),
        _ => ext4(&bytes),
    };
    found.ok_or_else(|| Error::failed(format!("{}: is no {kind}", partition.display())))
}

fn ext4(bytes: &[u8; BYTES]) -> Option<Superblock> {
    let half = |at: usize| u16::from_le_bytes([bytes[EXT4_AT + at], bytes[EXT4_AT + at + 1]]);
    let whole = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
    let (state, incompatible, read_only) = (half(0x3a), whole(0x60), whole(0x64));
    (half(0x38) == EXT4_MAGIC).then_some(Superblock {
        is_dirty: incompatible & EXT4_RECOVER != 0
            || read_only & EXT4_ORPHANS != 0
            || state & EXT4_VALID == 0,
        has_errors: state & EXT4_ERRORS != 0,
        has_quota: read_only & EXT4_QUOTA != 0,
    })
}

fn xfs(bytes: &[u8; BYTES]) -> Option<Superblock> {
    let magic = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let quota = u16::from_be_bytes([bytes[XFS_QUOTA_AT], bytes[XFS_QUOTA_AT + 1]]);
    (magic == XFS_MAGIC).then_some(Superblock {
        has_quota: quota & XFS_QUOTA != 0,
        ..Superblock::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_without_the_mark_are_no_file_system() {
        let mut bytes = [0; BYTES];
        assert_eq!((ext4(&bytes), xfs(&bytes)), (None, None));
        bytes[EXT4_AT + 0x38..EXT4_AT + 0x3a].copy_from_slice(&EXT4_MAGIC.to_le_bytes());
        bytes[EXT4_AT + 0x3a] = 1;
        assert_eq!(ext4(&bytes), Some(Superblock::default()));
        bytes[EXT4_AT + 0x60] = 4;
        assert!(ext4(&bytes).is_some_and(|it| it.is_dirty && !it.has_errors));
        bytes[..4].copy_from_slice(b"XFSB");
        bytes[XFS_QUOTA_AT + 1] = 0x40;
        assert!(xfs(&bytes).is_some_and(|it| it.has_quota));
    }
}
