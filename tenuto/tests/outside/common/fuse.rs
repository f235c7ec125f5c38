//! What all file systems of these tests have in common: they are served by FUSE from this process.
//!
//! Owns attributes, the mount and its end. Always true: a mount is there when [`Mount::new`]
//! returns, and goes away with its value, also while a killed daemon's request still holds a file.
//! Deliberately absent: bytes, and what a request does to them.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileType, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, ReplyEmpty,
};

use super::{PATIENCE, wait_until};

/// The unit in which bytes are torn.
pub const SECTOR: usize = 512;
/// Requests without an answer that the kernel has at a time, parked ones among them.
const IN_FLIGHT_MAX: u16 = 256;

/// No page of a file is kept by the kernel, and its requests come side by side.
pub const DIRECT: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// Of a file with so many bytes that was changed at this time.
pub fn file(number: INodeNo, bytes: u64, time: SystemTime) -> FileAttr {
    attributes(number, (FileType::RegularFile, 0o600), bytes, time)
}

/// Of the directory that is mounted.
pub fn root() -> FileAttr {
    let kind = (FileType::Directory, 0o700);
    attributes(INodeNo::ROOT, kind, 0, SystemTime::UNIX_EPOCH)
}

fn attributes(
    number: INodeNo,
    (kind, perm): (FileType, u16),
    size: u64,
    time: SystemTime,
) -> FileAttr {
    FileAttr {
        ino: number,
        size,
        blocks: size.div_ceil(SECTOR as u64),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// What a read gets of a file with so many bytes.
pub fn readable(bytes: usize, offset: u64, size: u32) -> Range<usize> {
    let from = (offset as usize).min(bytes);
    from..(from + size as usize).min(bytes)
}

pub fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Without this a loop device waits for one request before it sends the next.
pub fn side_by_side(config: &mut KernelConfig) -> std::io::Result<()> {
    config
        .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
        .expect("the kernel has asynchronous direct input and output");
    let _ = config.set_max_background(IN_FLIGHT_MAX);
    Ok(())
}

/// A file system on its place, which is a directory or a file. Unmounted when dropped.
pub struct Mount {
    place: PathBuf,
    _session: BackgroundSession,
}

impl Mount {
    pub fn new(system: impl Filesystem + 'static, place: &Path) -> Mount {
        let device = || std::fs::metadata(place).map(|it| it.dev());
        let below = device().expect("a place to mount on");
        let session = fuser::spawn_mount(system, place, &Config::default());
        let session = session.expect("mount by FUSE");
        wait_until("it is mounted", PATIENCE, || {
            device().is_ok_and(|now| now != below)
        });
        Mount {
            place: place.to_owned(),
            _session: session,
        }
    }

    pub fn path(&self) -> &Path {
        &self.place
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily, because a killed daemon's request may still hold a file.
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}
