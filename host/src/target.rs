//! One open file description that carries I/O, and the blocking way to use it.
//!
//! Always true: every byte of this file goes through `file`, the description that also carries
//! the lock (rule 5.2.1). The blocking calls take any alignment: what direct I/O does not, goes
//! through an aligned bounce buffer, by read-modify-write at its ends. Deliberately absent: any
//! order between calls; two writers of one device block at the same time is a bug of the caller.

use crate::sys;
use engine::event::{IoError, Stat};
use engine::image::{Image, Marked, Named};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The largest piece that goes through a bounce buffer at once.
const BOUNCE_BYTES: u64 = 1 << 20;
/// Enough for every device known; where the kernel tells nothing better.
const ALIGN_SAFE: u32 = 4096;

#[derive(Debug)]
pub struct Target {
    pub file: File,
    pub path: PathBuf,
    /// Of an origin: the name under which it was asked for, which has to lead to it.
    pub named: Option<PathBuf>,
    /// Its numbers of files are the same after the next mount.
    pub lasts: bool,
    /// Opened O_DIRECT: offset, length and memory must be aligned.
    pub direct: bool,
    /// Alignment of offset and length (1 when not direct).
    pub dio_align: u32,
    /// Alignment of memory (1 when not direct).
    pub mem_align: u32,
    /// At open; ledgers and journals grow.
    pub size_bytes: u64,
    pub block_device: bool,
    pub read_only: bool,
    /// Another host may write it, so no lock of ours is on it; it is only read.
    pub unlocked: bool,
    /// `zero` writes real zeroes (cache: a sync into merely allocated blocks costs twice).
    pub zero_by_writing: bool,
    /// Device and inode.
    pub identity: (u64, u64),
    /// The kind of its file system (linux/magic.h).
    file_system: i64,
    /// A request ended as those on a lost handle do.
    lost: AtomicBool,
    /// Writes that were answered, and how many of them the last good sync covers.
    written: AtomicU64,
    synced: AtomicU64,
}

/// How to open a file for I/O.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    pub write: bool,
    /// Make the file if it is missing, with these permission bits.
    pub create: Option<u32>,
    /// Claim a block device for us alone, as mounting it does.
    pub claim_device: bool,
    pub refuse_symlink: bool,
}

impl Target {
    /// Whether its path still leads to it. What cannot be told is taken for a yes.
    pub fn is_named(&self) -> bool {
        let (ours, named) = match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(ours), Ok(named)) => (ours, named),
            (_, Err(error)) => return error.kind() != io::ErrorKind::NotFound,
            (Err(_), _) => return true,
        };
        match ours.file_type().is_block_device() {
            true => ours.rdev() == named.rdev(),
            false => ours.ino() == named.ino() && ours.dev() == named.dev(),
        }
    }

    /// Opens without buffering where the file system can.
    pub fn open(path: &Path, how: How) -> io::Result<Target> {
        let present = fs::metadata(path);
        // A FIFO would block in open, a terminal would do worse.
        let device = match &present {
            Ok(meta) => check_type(meta)?,
            Err(_) => false,
        };
        let mut flags = libc::O_CLOEXEC;
        if how.claim_device && device && !crate::drill::leaves_out_locks() {
            flags |= libc::O_EXCL;
        }
        if how.refuse_symlink {
            flags |= libc::O_NOFOLLOW;
        }
        let mut options = OpenOptions::new();
        // With O_EXCL, which claims a device, O_CREAT would insist on making it.
        let create = how.create.is_some() && !device;
        options.read(true).write(how.write).create(create);
        options.mode(how.create.unwrap_or(0));
        let (file, direct) = match options.custom_flags(flags | libc::O_DIRECT).open(path) {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (options.custom_flags(flags).open(path)?, false)
            }
            Err(error) => return Err(error),
        };
        let meta = file.metadata()?;
        let block_device = check_type(&meta)?;
        let size_bytes = match block_device {
            true => sys::device_bytes(&file)?,
            false => meta.len(),
        };
        let file_system = sys::file_system(&file).map_or(0, |(kind, _)| kind);
        let mut target = Target {
            file,
            path: path.to_path_buf(),
            named: None,
            lasts: false,
            direct,
            dio_align: 1,
            mem_align: 1,
            size_bytes,
            block_device,
            read_only: !how.write,
            unlocked: false,
            zero_by_writing: false,
            identity: (meta.dev(), meta.ino()),
            file_system,
            lost: AtomicBool::new(false),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
        };
        target.find_alignment()?;
        Ok(target)
    }

    fn find_alignment(&mut self) -> io::Result<()> {
        if !self.direct {
            return Ok(());
        }
        let (memory, offset) = match sys::direct_alignment(&self.file) {
            Some(found) => found,
            None if self.block_device => {
                let sector = sys::device_sector_bytes(&self.file)?;
                (sector, sector)
            }
            None => self.try_alignment(),
        };
        if memory == 0 || offset == 0 {
            return self.go_buffered();
        }
        let sane = |align: u32| align.is_power_of_two() && u64::from(align) <= BOUNCE_BYTES;
        if !sane(memory) || !sane(offset) {
            return self.go_buffered();
        }
        self.mem_align = memory;
        self.dio_align = offset.max(512);
        Ok(())
    }

    /// Before Linux 6.1 a file cannot be asked, so a read of 512 bytes tells.
    fn try_alignment(&self) -> (u32, u32) {
        if self.size_bytes < u64::from(ALIGN_SAFE) {
            return (ALIGN_SAFE, ALIGN_SAFE);
        }
        let mut bounce = Bounce::new(512, ALIGN_SAFE);
        match self.file.read_at(bounce.bytes(), 512) {
            Ok(512) => (512, 512),
            _ => (ALIGN_SAFE, ALIGN_SAFE),
        }
    }

    /// The same open file description under a second handle.
    pub fn shared(&self) -> io::Result<Target> {
        Ok(Target {
            file: self.file.try_clone()?,
            path: self.path.clone(),
            named: None,
            lost: AtomicBool::new(false),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            ..*self
        })
    }

    /// Gives up direct I/O on this file.
    pub fn go_buffered(&mut self) -> io::Result<()> {
        sys::clear_direct(&self.file)?;
        (self.direct, self.dio_align, self.mem_align) = (false, 1, 1);
        Ok(())
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The name in messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Blocking, any alignment, zeroes beyond the end.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        if self.takes_memory(offset, bytes.as_ptr(), bytes.len()) {
            return self.read_fully(offset, bytes);
        }
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (start, end) = self.window(at, rest.len());
            let mut bounce = Bounce::new(end - start, self.mem_align);
            self.read_fully(start, bounce.bytes())?;
            let skip = (at - start) as usize;
            let count = rest.len().min((end - at) as usize);
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&bounce.bytes()[skip..skip + count]);
            at += count as u64;
            rest = later;
        }
        Ok(())
    }

    /// Blocking, any alignment (read-modify-write where the device asks for more).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        if self.takes_memory(offset, bytes.as_ptr(), bytes.len()) {
            return self.write_fully(offset, bytes);
        }
        let align = u64::from(self.dio_align);
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (start, end) = self.window(at, rest.len());
            let count = rest.len().min((end - at) as usize);
            let mut bounce = Bounce::new(end - start, self.mem_align);
            let buffer = bounce.bytes();
            // Only the first and the last device block can hold bytes that are not ours.
            if at > start {
                self.read_fully(start, &mut buffer[..align as usize])?;
            }
            if at + (count as u64) < end {
                let last = buffer.len() - align as usize;
                self.read_fully(end - align, &mut buffer[last..])?;
            }
            let skip = (at - start) as usize;
            buffer[skip..skip + count].copy_from_slice(&rest[..count]);
            self.write_fully(start, buffer)?;
            at += count as u64;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Blocking; makes the range read as zeroes. Where the file system or device makes no hole that
    /// was asked for, by writing; how many bytes then.
    pub fn zero(&self, offset: u64, bytes: u64, allocate: bool) -> Result<Option<u64>, IoError> {
        if bytes == 0 {
            return Ok(None);
        }
        let result = match (self.zero_by_writing, self.block_device) {
            (true, _) => return self.write_zeroes(offset, bytes).map(|()| None),
            (false, true) => self.zero_device(offset, bytes, allocate),
            (false, false) => {
                let mode = match allocate {
                    true => libc::FALLOC_FL_ZERO_RANGE,
                    false => libc::FALLOC_FL_PUNCH_HOLE,
                };
                sys::fallocate(&self.file, mode | libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
            }
        };
        match result {
            Ok(()) => Ok(None),
            // Who wants the space kept asks for no hole.
            Err(error) if cannot(&error) && allocate => {
                self.write_zeroes(offset, bytes).map(|()| None)
            }
            Err(error) if cannot(&error) => {
                let written = self.write_missing_zeroes(offset, bytes)?;
                // Blocks that are smaller than those of the device say nothing about it.
                let small = self.block_device && misaligned(self, offset, bytes);
                Ok((!small).then_some(written))
            }
            Err(error) => Err(self.failed("zero", offset, bytes, error)),
        }
    }

    fn zero_device(&self, offset: u64, bytes: u64, allocate: bool) -> io::Result<()> {
        if misaligned(self, offset, bytes) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        match allocate {
            true => sys::device_zero(&self.file, offset, bytes),
            false => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                sys::fallocate(&self.file, mode, offset, bytes)
            }
        }
    }

    fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        let mut zeroes = Bounce::new(bytes.min(BOUNCE_BYTES), self.mem_align);
        pieces(offset, bytes).try_for_each(|(at, count)| self.write(at, &zeroes.bytes()[..count]))
    }

    /// Zeroes what is not zero, so that a thin image stays thin: holes need nothing, and where the
    /// file system knows of none, what reads as zeroes needs nothing either. How many bytes were
    /// written.
    fn write_missing_zeroes(&self, offset: u64, bytes: u64) -> Result<u64, IoError> {
        let mut found = Bounce::new(bytes.min(BOUNCE_BYTES), self.mem_align);
        let mut written = 0;
        let mut data_from = offset;
        for (at, count) in pieces(offset, bytes) {
            let end = at + count as u64;
            // What cannot be asked is data.
            if data_from < end && !self.block_device {
                let from = data_from.max(at);
                data_from =
                    sys::seek_data(&self.file, from).map_or(from, |it| it.unwrap_or(u64::MAX));
            }
            if data_from >= end {
                continue;
            }
            let piece = &mut found.bytes()[..count];
            self.read(at, piece)?;
            if piece.iter().any(|byte| *byte != 0) {
                piece.fill(0);
                self.write(at, piece)?;
                written += count as u64;
            }
        }
        Ok(written)
    }

    /// Whether `sync` may leave out times. An origin's modification time must be on disk as
    /// well: a journal is only replayed where it fits the ledger.
    pub fn datasync(&self) -> bool {
        self.block_device || self.zero_by_writing
    }

    pub fn sync(&self) -> Result<(), IoError> {
        let result = match self.datasync() {
            true => self.file.sync_data(),
            false => self.file.sync_all(),
        };
        result.map_err(|error| self.failed("sync", 0, 0, error))
    }

    /// Times of a device node say nothing about its content: they are always zero.
    pub fn stat(&self) -> Result<Stat, IoError> {
        let meta = self
            .file
            .metadata()
            .map_err(|error| self.failed("stat", 0, 0, error))?;
        let mtime_ns = match self.block_device {
            true => 0,
            false => nanoseconds(meta.mtime(), meta.mtime_nsec()),
        };
        Ok(Stat {
            size_bytes: if self.block_device {
                self.size_bytes
            } else {
                meta.len()
            },
            mtime_ns,
            now_ns: wall_clock_ns(),
            print: (!self.block_device).then(|| print_of(&meta)).flatten(),
            image: self.named.is_some().then(|| self.image_of(&meta)),
            named: self.leads_to(),
        })
    }

    /// What an image is known by. The node of a device is made anew at each boot, and says nothing
    /// of the device but its number.
    fn image_of(&self, meta: &fs::Metadata) -> Image {
        if meta.file_type().is_block_device() {
            return Image {
                device: meta.rdev(),
                size_bytes: self.size_bytes,
                ..Image::default()
            };
        }
        let born = meta.created().ok();
        let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Image {
            device: meta.dev(),
            inode: meta.ino(),
            birth_ns: born.map_or(0, |born| born.as_nanos() as u64),
            size_bytes: meta.len(),
            mtime_ns: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            lasts: self.lasts,
            below: 0,
            marked: Marked::Unknown,
        }
    }

    /// Where the name of an origin leads by now.
    fn leads_to(&self) -> Named {
        let Some(path) = &self.named else {
            return Named::Unknown;
        };
        // An NFS client would tell for a minute where a name has led.
        if self.file_system == sys::NFS_MAGIC
            && let Some(directory) = self.path.parent()
            && let Err(error) = sys::refresh(directory)
        {
            tracing::debug!("{}: {error}", directory.display());
        }
        match fs::metadata(path) {
            Ok(meta) => Named::To(self.image_of(&meta)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Named::Gone,
                _ => Named::Unknown,
            },
        }
    }

    /// Whether an asynchronous request with this memory can go to the file as it is.
    pub fn takes(&self, offset: u64, slices: &[libc::iovec]) -> bool {
        let mut at = offset;
        slices.iter().all(|slice| {
            let fits = self.takes_memory(at, slice.iov_base.cast(), slice.iov_len);
            at += slice.iov_len as u64;
            fits
        })
    }

    fn takes_memory(&self, offset: u64, start: *const u8, bytes: usize) -> bool {
        let aligned = (start as u64).is_multiple_of(u64::from(self.mem_align));
        !self.direct || (aligned && !misaligned(self, offset, bytes as u64))
    }

    /// The aligned piece that holds `at` and as much behind it as one bounce takes.
    fn window(&self, at: u64, bytes: usize) -> (u64, u64) {
        let align = u64::from(self.dio_align);
        let start = at - at % align;
        let end = (at + bytes as u64).next_multiple_of(align);
        (start, end.min(start + BOUNCE_BYTES))
    }

    fn read_fully(&self, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => {
                    done += count;
                    // A direct read that stops inside a device block has met the end.
                    if self.direct && !(count as u64).is_multiple_of(u64::from(self.dio_align)) {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let left = (bytes.len() - done) as u64;
                    return Err(self.failed("read", offset + done as u64, left, error));
                }
            }
        }
        bytes[done..].fill(0);
        Ok(())
    }

    fn write_fully(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|error| self.failed("write", offset, bytes.len() as u64, error))
    }

    /// A request ended with this errno.
    pub fn note(&self, errno: i32) {
        // A server that has lost a lock answers EIO to all that was opened before.
        let lost = errno == libc::ESTALE
            || (errno == libc::EIO && sys::FILE_SERVERS.contains(&self.file_system));
        if lost {
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Whether opening the file again may help.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    pub fn note_written(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// What a sync that is sent now covers.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub fn note_synced(&self, covers: u64) {
        self.synced.fetch_max(covers, Ordering::Relaxed);
    }

    /// Whether bytes were written of which a new description knows nothing. On NFS a direct write
    /// is answered when the server has committed it.
    pub fn is_unsynced(&self) -> bool {
        let committed = self.direct && self.file_system == sys::NFS_MAGIC;
        !committed && self.written() != self.synced.load(Ordering::Relaxed)
    }

    fn failed(&self, doing: &str, offset: u64, bytes: u64, error: io::Error) -> IoError {
        self.note(error.raw_os_error().unwrap_or(0));
        tracing::warn!(
            "{}: {doing} of {bytes} bytes at {offset}: {error}",
            self.path.display()
        );
        io_error(&error)
    }
}

/// A range in pieces of one bounce; they end at multiples of it, so that all but the ends are
/// aligned.
fn pieces(offset: u64, bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + bytes;
    let mut at = offset;
    std::iter::from_fn(move || {
        let from = at;
        at = ((from / BOUNCE_BYTES + 1) * BOUNCE_BYTES).min(end);
        (from < end).then_some((from, (at - from) as usize))
    })
}

/// Whether a further change would show in the times of a file: changes that lie closer together
/// may have one time. FAT counts in steps of two seconds; one more, because nanoseconds are left
/// out.
pub fn is_settled(meta: &fs::Metadata) -> bool {
    const STEP_SECONDS: i64 = 2 + 1;
    let now = (wall_clock_ns() / 1_000_000_000) as i64;
    meta.mtime().max(meta.ctime()).saturating_add(STEP_SECONDS) < now
}

/// Since the epoch; a time that anybody can set, so none is too far away.
fn nanoseconds(seconds: i64, part: i64) -> u64 {
    let seconds = seconds.max(0) as u64;
    let whole = seconds.saturating_mul(1_000_000_000);
    whole.saturating_add(part.max(0) as u64)
}

/// Inode and time of the last change of any kind, mixed.
fn print_of(meta: &fs::Metadata) -> Option<u64> {
    let changed = (meta.ctime() as u64).wrapping_mul(1_000_000_000);
    let changed = changed.wrapping_add(meta.ctime_nsec() as u64);
    let print = changed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ meta.ino();
    is_settled(meta).then_some(print)
}

/// Nanoseconds since 1970 on the host's wall clock.
pub fn wall_clock_ns() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since_epoch.as_nanos() as u64
}

/// Every errno as the engine's kind.
pub fn io_error(error: &io::Error) -> IoError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            IoError::NoSpace
        }
        _ => IoError::Failed,
    }
}

/// True when the range must go by the blocking path (`Target::read` and `Target::write`).
pub fn misaligned(target: &Target, offset: u64, bytes: u64) -> bool {
    let align = u64::from(target.dio_align);
    target.direct && !(offset.is_multiple_of(align) && bytes.is_multiple_of(align))
}

/// True for a block device, false for a regular file, an error for anything else.
fn check_type(meta: &fs::Metadata) -> io::Result<bool> {
    if meta.file_type().is_block_device() {
        return Ok(true);
    }
    match meta.is_file() {
        true => Ok(false),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "neither a regular file nor a block device",
        )),
    }
}

/// The file system or device has no such operation; it did nothing.
fn cannot(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    error.kind() == io::ErrorKind::Unsupported
        || matches!(
            errno,
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::EINVAL)
        )
}

/// Memory whose start fits direct I/O.
struct Bounce {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Bounce {
    fn new(bytes: u64, align: u32) -> Bounce {
        let (bytes, align) = (bytes as usize, align as usize);
        let memory = vec![0; bytes + align];
        let start = memory.as_ptr().align_offset(align);
        Bounce {
            memory,
            start,
            bytes,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: How = How {
        write: true,
        create: Some(0o600),
        claim_device: false,
        refuse_symlink: false,
    };

    fn temporary(bytes: u64) -> (tempfile::TempDir, Target) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .expect("made");
        let target = Target::open(&path, WRITE).expect("opened");
        (dir, target)
    }

    #[test]
    fn any_alignment_reads_what_was_written_and_leaves_its_neighbours() {
        let (_dir, mut target) = temporary(8 << 20);
        let mut shadow = vec![0xa5u8; 8 << 20];
        target.write(0, &shadow).expect("written");
        for align in [target.dio_align, 4096] {
            // 4096 makes a read-modify-write of every odd sector, on any disk.
            target.dio_align = if target.direct { align } else { 1 };
            for (at, bytes) in [(0, 1), (511, 2), (512, 512), (4095, 4098), (100, 3 << 20)] {
                let data: Vec<u8> = (0..bytes).map(|n| (n * 7 + at) as u8 | 1).collect();
                target.write(at as u64, &data).expect("written");
                shadow[at..at + bytes].copy_from_slice(&data);
                let mut back = vec![0u8; bytes];
                target.read(at as u64, &mut back).expect("read");
                assert_eq!(back, data);
            }
            let mut whole = vec![0u8; shadow.len()];
            target.read(0, &mut whole).expect("read");
            assert!(whole == shadow);
        }
    }

    #[test]
    fn beyond_the_end_there_are_zeroes() {
        let (_dir, target) = temporary(0);
        target.write(0, &[9; 700]).expect("written");
        let mut bytes = vec![1u8; 10_000];
        target.read(0, &mut bytes).expect("read");
        assert!(bytes[..700].iter().all(|&byte| byte == 9));
        assert!(bytes[700..].iter().all(|&byte| byte == 0));
        bytes.fill(1);
        target.read(1 << 30, &mut bytes).expect("read");
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn zeroing_by_each_way_clears_the_range_and_nothing_else() {
        let (_dir, mut target) = temporary(4 << 20);
        for (allocate, by_writing) in [(false, false), (true, false), (true, true)] {
            target.zero_by_writing = by_writing;
            target.write(0, &vec![5; 4 << 20]).expect("written");
            target.zero(512, (2 << 20) + 512, allocate).expect("zeroed");
            let mut bytes = vec![0u8; 4 << 20];
            target.read(0, &mut bytes).expect("read");
            let end = 512 + (2 << 20) + 512;
            assert!(bytes[..512].iter().all(|&byte| byte == 5));
            assert!(bytes[512..end].iter().all(|&byte| byte == 0));
            assert!(bytes[end..].iter().all(|&byte| byte == 5));
            assert_eq!(target.stat().expect("stat").size_bytes, 4 << 20);
        }
    }

    #[test]
    fn misaligned_ranges_are_told_apart() {
        let (_dir, mut target) = temporary(1 << 20);
        (target.direct, target.dio_align, target.mem_align) = (true, 4096, 512);
        assert!(!misaligned(&target, 4096, 8192));
        assert!(misaligned(&target, 512, 4096));
        assert!(misaligned(&target, 4096, 512));
        let slice = |start: usize, bytes| libc::iovec {
            iov_base: start as *mut libc::c_void,
            iov_len: bytes,
        };
        assert!(target.takes(0, &[slice(512, 4096), slice(8192, 8192)]));
        assert!(!target.takes(0, &[slice(511, 4096)]));
        assert!(!target.takes(0, &[slice(512, 512), slice(1024, 3584)]));
        target.go_buffered().expect("possible");
        assert!(!misaligned(&target, 1, 1));
    }

    #[test]
    fn a_directory_or_a_pipe_is_refused_without_blocking() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(Target::open(dir.path(), How::default()).is_err());
        assert!(Target::open(Path::new("/dev/null"), How::default()).is_err());
    }
}
