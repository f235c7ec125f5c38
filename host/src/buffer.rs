//! The memory behind the engine's places: stage, read tier, scratch and request payloads.
//!
//! Owns all mappings and all raw pointers into them. Always true: an area keeps its address and
//! size until it is dropped; a range that leaves its area stops the process, because only a bug
//! of ours can name one; stores into the stage happen in program order. Deliberately absent: any
//! knowledge of what the bytes mean, and zeroing of reused buffers (a read reply is always filled
//! completely before it is sent).

use crate::lent::Loans;
use crate::marks::{self, Phase};
use engine::memory::{Area, Memory, Place};
use engine::types::BufferId;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// The smallest buffer, and the alignment of every buffer.
pub const BUFFER_BYTES_MIN: u64 = 4 << 10;
/// The largest buffer: NBD's largest request of 32 MiB, where it does not start on a sector, has
/// one sector more, and buffers come in powers of two.
pub const BUFFER_BYTES_MAX: u64 = 64 << 20;
pub const POOL_BYTES_DEFAULT: u64 = 256 << 20;
/// Freed buffers that keep their pages, so that a busy queue does not fault all the time.
const IDLE_BYTES_MAX: u64 = 32 << 20;
/// 4 KiB, 8 KiB, .. 64 MiB.
const CLASSES: usize = 15;
/// Bits of a `BufferId` that hold the slot; the class lies above.
const SLOT_BITS: u32 = 28;
const CHECKSUM: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
/// Larger than any request: the slot is free.
const FREE: u32 = u32::MAX;

const _: () = assert!(BUFFER_BYTES_MIN << (CLASSES - 1) == BUFFER_BYTES_MAX);

/// A page-aligned mapping of fixed size, unmapped on drop.
#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: an arena owns its mapping; nothing in it is bound to a thread.
unsafe impl Send for Arena {}
// SAFETY: a shared reference gives out a raw pointer and atomics only.
unsafe impl Sync for Arena {}

impl Arena {
    /// Zeroed private memory; pages appear when touched.
    pub fn anonymous(bytes: u64) -> io::Result<Arena> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Arena::map(bytes, flags, -1)
    }

    /// Maps the first `bytes` of a file MAP_SHARED. The caller has allocated them: touching a
    /// page that the file does not have ends the process.
    pub fn shared(file: &File, bytes: u64) -> io::Result<Arena> {
        Arena::map(bytes, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Maps the first `bytes` of a file, which has them, without ever changing it: what is written
    /// goes to copies of its pages. Never discarded.
    pub fn private(file: &File, bytes: u64) -> io::Result<Arena> {
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        Arena::map(bytes, flags, file.as_raw_fd())
    }

    fn map(bytes: u64, flags: libc::c_int, fd: libc::c_int) -> io::Result<Arena> {
        let bytes = usize::try_from(bytes.max(1)).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was just mapped. Guests' data has no place in a core dump; a kernel
        // that does not know the advice changes nothing else.
        unsafe { libc::madvise(base, bytes, libc::MADV_DONTDUMP) };
        Ok(Arena {
            base: base.cast(),
            bytes,
        })
    }

    /// Moves the memory to a file that is as large, and keeps its address. What the kernel still
    /// reads of the old pages is the same.
    fn move_to(&mut self, file: &File) -> io::Result<()> {
        let fresh = Arena::shared(file, self.bytes as u64)?;
        // SAFETY: two mappings of this size; `&mut self` keeps everybody else from writing.
        unsafe { std::ptr::copy_nonoverlapping(self.base, fresh.base, self.bytes) };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let (base, fd) = (self.base.cast(), file.as_raw_fd());
        // SAFETY: replaces our own mapping, as a whole, by one with the same bytes.
        let moved = unsafe { libc::mmap(base, self.bytes, access, flags, fd, 0) };
        // The old mapping may be gone by then.
        assert_ne!(moved, libc::MAP_FAILED, "its address was ours");
        // SAFETY: the range was just mapped.
        unsafe { libc::madvise(base, self.bytes, libc::MADV_DONTDUMP) };
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The memory as words that other processes may change at any time.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, lives as long as `self`, and every bit pattern is
        // a valid atomic.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.bytes / 8) }
    }

    /// Pointer to a range; panics when the range leaves the arena.
    fn range(&self, offset: u64, bytes: u64) -> *mut u8 {
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes as u64);
        assert!(
            inside,
            "range {offset}+{bytes} leaves its area of {} bytes",
            self.bytes
        );
        // SAFETY: the offset was just checked against the size of the mapping.
        unsafe { self.base.add(offset as usize) }
    }

    /// Gives pages back to the host; the range reads as zeroes afterwards.
    fn discard(&self, offset: u64, bytes: u64) {
        let start = self.range(offset, bytes);
        // SAFETY: the range lies inside our own anonymous mapping, and its owner is done with it.
        unsafe { libc::madvise(start.cast(), bytes as usize, libc::MADV_DONTNEED) };
    }

    /// Keeps small buffers from occupying a huge page each.
    fn small_pages(&self, offset: u64, bytes: u64) {
        let start = self.range(offset, bytes);
        // SAFETY: advice about our own mapping; a kernel without huge pages refuses it, which
        // changes nothing.
        unsafe { libc::madvise(start.cast(), bytes as usize, libc::MADV_NOHUGEPAGE) };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and whoever held a pointer into it borrowed the arena.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Buffers of one size. Every slot has its own address range for ever.
#[derive(Debug, Default)]
struct Class {
    /// Bytes asked for, by slot; `FREE` where nobody holds it. Grows with the slots ever used.
    lengths: Vec<u32>,
    /// Free slots whose pages are still there.
    warm: Vec<u32>,
    /// Free slots without pages.
    cold: Vec<u32>,
}

/// Payload buffers of guest requests, in address space reserved once: memory appears when a
/// buffer is used and goes back when many are idle.
#[derive(Debug)]
pub struct BufferPool {
    arena: Arena,
    classes: [Class; CLASSES],
    budget_bytes: u64,
    used_bytes: u64,
    idle_bytes: u64,
}

impl BufferPool {
    /// The budget covers used and idle buffers together; each is rounded up to a power of two.
    pub fn new(budget_bytes: u64) -> io::Result<BufferPool> {
        assert!(
            budget_bytes >= BUFFER_BYTES_MAX,
            "the largest request must fit"
        );
        let stride = budget_bytes.next_multiple_of(BUFFER_BYTES_MAX);
        assert!(
            stride / BUFFER_BYTES_MIN < 1 << SLOT_BITS,
            "slots fit their id"
        );
        let arena = Arena::anonymous(stride * CLASSES as u64)?;
        for class in 0..CLASSES {
            if class_bytes(class) < 2 << 20 {
                arena.small_pages(stride * class as u64, stride);
            }
        }
        Ok(BufferPool {
            arena,
            classes: Default::default(),
            budget_bytes,
            used_bytes: 0,
            idle_bytes: 0,
        })
    }

    /// `None` when the budget is spent (wait for a `free`) or `bytes` > `BUFFER_BYTES_MAX`.
    pub fn allocate(&mut self, bytes: u64) -> Option<BufferId> {
        if bytes > BUFFER_BYTES_MAX {
            return None;
        }
        let class = class_for(bytes);
        let size = class_bytes(class);
        if self.used_bytes + size > self.budget_bytes {
            return None;
        }
        let slots = &mut self.classes[class];
        let slot = if let Some(slot) = slots.warm.pop() {
            self.idle_bytes -= size;
            slot
        } else if let Some(slot) = slots.cold.pop() {
            slot
        } else {
            slots.lengths.push(FREE);
            (slots.lengths.len() - 1) as u32
        };
        assert_eq!(
            slots.lengths[slot as usize], FREE,
            "a free slot has no owner"
        );
        slots.lengths[slot as usize] = bytes as u32;
        self.used_bytes += size;
        self.cool_down(self.budget_bytes - self.used_bytes);
        Some(BufferId((class as u32) << SLOT_BITS | slot))
    }

    pub fn free(&mut self, buffer: BufferId) {
        let (class, slot) = split(buffer);
        let slots = &mut self.classes[class];
        let length = &mut slots.lengths[slot as usize];
        assert_ne!(*length, FREE, "buffer {buffer} is freed once");
        *length = FREE;
        slots.warm.push(slot);
        self.used_bytes -= class_bytes(class);
        self.idle_bytes += class_bytes(class);
        self.cool_down(IDLE_BYTES_MAX);
    }

    /// Exactly the bytes asked for at `allocate`.
    pub fn bytes(&mut self, buffer: BufferId) -> &mut [u8] {
        let length = self.length(buffer);
        let start = self.pointer(buffer, 0, length);
        // SAFETY: the range belongs to this buffer alone and lives as long as the pool, which is
        // borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start, length as usize) }
    }

    /// The bytes asked for at `allocate`.
    pub fn length(&self, buffer: BufferId) -> u64 {
        let (class, slot) = split(buffer);
        let length = self.classes[class].lengths[slot as usize];
        assert_ne!(length, FREE, "buffer {buffer} is in use");
        u64::from(length)
    }

    /// Bytes of the budget that buffers in use take.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn pointer(&self, buffer: BufferId, offset: u64, bytes: u64) -> *mut u8 {
        let length = self.length(buffer);
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= length);
        assert!(
            inside,
            "range {offset}+{bytes} leaves a buffer of {length} bytes"
        );
        let (class, slot) = split(buffer);
        self.arena.range(self.start(class, slot) + offset, bytes)
    }

    fn start(&self, class: usize, slot: u32) -> u64 {
        let stride = self.arena.bytes() / CLASSES as u64;
        stride * class as u64 + u64::from(slot) * class_bytes(class)
    }

    /// Takes pages from idle buffers, the largest first, until at most `limit` bytes are idle.
    fn cool_down(&mut self, limit: u64) {
        for class in (0..CLASSES).rev() {
            while self.idle_bytes > limit {
                let Some(slot) = self.classes[class].warm.pop() else {
                    break;
                };
                self.arena
                    .discard(self.start(class, slot), class_bytes(class));
                self.classes[class].cold.push(slot);
                self.idle_bytes -= class_bytes(class);
            }
        }
    }
}

const fn class_bytes(class: usize) -> u64 {
    BUFFER_BYTES_MIN << class
}

fn class_for(bytes: u64) -> usize {
    let blocks = bytes.div_ceil(BUFFER_BYTES_MIN).max(1);
    blocks.next_power_of_two().trailing_zeros() as usize
}

fn split(buffer: BufferId) -> (usize, u32) {
    (
        (buffer.0 >> SLOT_BITS) as usize,
        buffer.0 & ((1 << SLOT_BITS) - 1),
    )
}

/// The areas of the engine.
#[derive(Debug)]
pub struct HostMemory {
    stage: Arena,
    ram: Arena,
    scratch: Arena,
    pub buffers: BufferPool,
    /// Buffers that lie in guests.
    pub loans: Loans,
}

impl HostMemory {
    pub fn new(stage: Arena, ram: Arena, scratch: Arena, buffers: BufferPool) -> HostMemory {
        HostMemory {
            stage,
            ram,
            scratch,
            buffers,
            loans: Loans::default(),
        }
    }

    /// Moves the stage into this file, which is as large and allocated.
    pub fn move_stage(&mut self, file: &File) -> io::Result<()> {
        self.stage.move_to(file)
    }

    /// The bytes of a place that lie in a row, at most so many; panics when the range leaves its
    /// area. All of them, but for buffers that lie in a guest. Valid until the area's owner is
    /// dropped, or the buffer is freed.
    pub fn run(&self, place: Place, bytes: u64) -> (*mut u8, u64) {
        let offset = place.offset;
        let pointer = match place.area {
            Area::Stage => self.stage.range(offset, bytes),
            Area::Ram => self.ram.range(offset, bytes),
            Area::Scratch => self.scratch.range(offset, bytes),
            Area::Buffer(buffer) if Loans::has(buffer) => {
                return self.loans.run(buffer, offset, bytes);
            }
            Area::Buffer(buffer) => self.buffers.pointer(buffer, offset, bytes),
        };
        (pointer, bytes)
    }

    /// A whole range that lies in a row.
    pub fn pointer(&self, place: Place, bytes: u64) -> *mut u8 {
        let (pointer, run) = self.run(place, bytes);
        assert_eq!(run, bytes, "asked for of memory of our own only");
        pointer
    }

    /// Copies what was read into memory of its own to its place.
    pub fn copy_in(&mut self, from: &Arena, offset: u64, to: Place, bytes: u64) {
        let source = from.range(offset, bytes);
        self.runs(to, bytes, |target, done, bytes| {
            // SAFETY: both ranges were checked; a mapping of its own overlaps with nothing.
            unsafe { source.add(done as usize).copy_to(target, bytes as usize) };
        });
    }

    /// Whether a place is memory of a guest, which others use as soon as its request has ended.
    pub fn is_lent(place: Place) -> bool {
        matches!(place.area, Area::Buffer(buffer) if Loans::has(buffer))
    }

    /// Calls `each` with the runs of a range, and how much lies before each.
    fn runs(&self, place: Place, bytes: u64, mut each: impl FnMut(*mut u8, u64, u64)) {
        let mut done = 0;
        while done < bytes {
            let (pointer, run) = self.run(place.plus(done), bytes - done);
            each(pointer, done, run);
            done += run;
        }
    }

    /// Runs `part(done, bytes)` once, or in two halves when a driver may kill us in the middle.
    fn in_order(to: Place, bytes: u64, mut part: impl FnMut(u64, u64)) {
        if to.area != Area::Stage {
            return part(0, bytes);
        }
        // What the engine stores first must be in memory first: recovery trusts a slot table
        // entry or header only because the bytes it vouches for were there before it. A kill
        // falls between two instructions, so holding the compiler back is enough.
        compiler_fence(Ordering::SeqCst);
        if marks::on() {
            let half = bytes / 2;
            marks::enter(Phase::StageCopy);
            part(0, half);
            marks::middle(Phase::StageCopy);
            part(half, bytes - half);
            marks::leave(Phase::StageCopy);
        } else {
            part(0, bytes);
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Copies what lies in a row at both ends; how much that was.
    fn copy_run(&mut self, from: Place, to: Place, bytes: u64) -> u64 {
        let (source, bytes) = self.run(from, bytes);
        let (target, bytes) = self.run(to, bytes);
        let apart = (source as u64).abs_diff(target as u64) >= bytes;
        assert!(apart, "copied ranges do not overlap");
        HostMemory::in_order(to, bytes, |done, bytes| {
            // SAFETY: both ranges lie inside live areas and do not overlap, checked above. Bytes
            // of a guest may change meanwhile; what is copied is then whatever was there.
            unsafe {
                let (source, target) = (source.add(done as usize), target.add(done as usize));
                std::ptr::copy_nonoverlapping(source, target, bytes as usize);
            }
        });
        bytes
    }
}

impl Memory for HostMemory {
    fn stage_bytes(&self) -> u64 {
        self.stage.bytes()
    }

    fn copy(&mut self, from: Place, to: Place, bytes: u64) {
        let mut done = 0;
        while done < bytes {
            done += self.copy_run(from.plus(done), to.plus(done), bytes - done);
        }
    }

    fn zero(&mut self, to: Place, bytes: u64) {
        self.runs(to, bytes, |target, _, bytes| {
            HostMemory::in_order(to, bytes, |done, bytes| {
                // SAFETY: the range lies inside a live area, checked by `run`.
                unsafe { std::ptr::write_bytes(target.add(done as usize), 0, bytes as usize) };
            });
        });
    }

    fn store(&mut self, to: Place, bytes: &[u8]) {
        self.runs(to, bytes.len() as u64, |target, before, run| {
            let bytes = &bytes[before as usize..(before + run) as usize];
            HostMemory::in_order(to, run, |done, count| {
                let part = &bytes[done as usize..(done + count) as usize];
                // SAFETY: the range lies inside a live area, checked by `run`; a slice of the
                // caller's cannot overlap memory that is only reachable through `self`.
                unsafe {
                    let target = target.add(done as usize);
                    std::ptr::copy_nonoverlapping(part.as_ptr(), target, part.len());
                }
            });
        });
    }

    fn load(&self, from: Place, bytes: &mut [u8]) {
        self.runs(from, bytes.len() as u64, |source, before, run| {
            let part = &mut bytes[before as usize..(before + run) as usize];
            // SAFETY: as in `store`, in the other direction.
            unsafe { std::ptr::copy_nonoverlapping(source, part.as_mut_ptr(), part.len()) };
        });
    }

    fn checksum(&self, from: Place, bytes: u64) -> u32 {
        let lent = matches!(from.area, Area::Buffer(buffer) if Loans::has(buffer));
        if !lent {
            let source = self.pointer(from, bytes);
            // SAFETY: the range lies inside a live area of our own, and nothing writes to it
            // during this call: the engine asks for checksums of its own copies only.
            let bytes = unsafe { std::slice::from_raw_parts(source, bytes as usize) };
            return crc_fast::checksum(CHECKSUM, bytes) as u32;
        }
        // A guest may change its bytes while we look: what is summed is a copy.
        let mut digest = crc_fast::Digest::new(CHECKSUM);
        let mut copy = [0; BUFFER_BYTES_MIN as usize];
        let mut done = 0;
        while done < bytes {
            let part = &mut copy[..(bytes - done).min(BUFFER_BYTES_MIN) as usize];
            self.load(from.plus(done), part);
            digest.update(part);
            done += part.len() as u64;
        }
        digest.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lent::Piece;

    const MIB: u64 = 1 << 20;

    fn memory() -> HostMemory {
        let arena = |bytes| Arena::anonymous(bytes).expect("mapped");
        let pool = BufferPool::new(POOL_BYTES_DEFAULT).expect("mapped");
        HostMemory::new(arena(64 << 10), arena(64 << 10), arena(64 << 10), pool)
    }

    #[test]
    fn the_budget_bounds_what_is_handed_out_and_free_gives_it_back() {
        let mut pool = BufferPool::new(64 * MIB).expect("mapped");
        let first = pool.allocate(32 * MIB).expect("fits");
        let second = pool.allocate(17 * MIB).expect("takes the other half");
        assert_eq!(pool.allocate(1), None);
        pool.free(second);
        let many: Vec<_> = std::iter::from_fn(|| pool.allocate(4096)).collect();
        assert_eq!(many.len(), 8192);
        many.into_iter().for_each(|buffer| pool.free(buffer));
        pool.free(first);
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.idle_bytes <= IDLE_BYTES_MAX);
        assert_eq!(pool.allocate(64 * MIB + 1), None);
    }

    #[test]
    fn buffers_do_not_overlap_and_keep_exactly_their_length() {
        let mut pool = BufferPool::new(64 * MIB).expect("mapped");
        let lengths = [0u64, 1, 512, 4096, 4097, 65_536, 1_000_000, 4 * MIB];
        let buffers: Vec<_> = lengths.map(|n| pool.allocate(n).expect("fits")).into();
        for (at, &buffer) in buffers.iter().enumerate() {
            assert_eq!(pool.bytes(buffer).len() as u64, lengths[at]);
            assert_eq!(pool.bytes(buffer).as_ptr() as u64 % 4096, 0);
            pool.bytes(buffer).fill(at as u8 + 1);
        }
        for (at, &buffer) in buffers.iter().enumerate() {
            assert!(pool.bytes(buffer).iter().all(|&byte| byte == at as u8 + 1));
        }
    }

    #[test]
    fn idle_buffers_give_their_pages_back() {
        let mut pool = BufferPool::new(128 * MIB).expect("mapped");
        let buffers: Vec<_> = (0..4)
            .map(|_| pool.allocate(32 * MIB).expect("fits"))
            .collect();
        buffers
            .iter()
            .for_each(|&buffer| pool.bytes(buffer).fill(7));
        buffers.iter().for_each(|&buffer| pool.free(buffer));
        assert_eq!(pool.idle_bytes, 32 * MIB);
        let small = pool.allocate(4096).expect("fits");
        assert!(pool.used_bytes + pool.idle_bytes <= pool.budget_bytes);
        pool.free(small);
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn a_second_free_is_our_bug_and_stops() {
        let mut pool = BufferPool::new(64 * MIB).expect("mapped");
        let buffer = pool.allocate(4096).expect("fits");
        pool.free(buffer);
        pool.free(buffer);
    }

    #[test]
    #[should_panic(expected = "leaves a buffer")]
    fn a_range_beyond_a_buffer_is_our_bug_and_stops() {
        let mut memory = memory();
        let buffer = memory.buffers.allocate(512).expect("fits");
        memory.pointer(Place::new(Area::Buffer(buffer), 1), 512);
    }

    #[test]
    #[should_panic(expected = "leaves its area")]
    fn a_range_beyond_an_area_is_our_bug_and_stops() {
        memory().pointer(Place::new(Area::Stage, u64::MAX), 2);
    }

    #[test]
    fn bytes_travel_between_areas_and_the_checksum_is_crc_32c() {
        let mut memory = memory();
        let buffer = memory.buffers.allocate(9).expect("fits");
        memory.buffers.bytes(buffer).copy_from_slice(b"123456789");
        let from = Place::new(Area::Buffer(buffer), 0);
        let staged = Place::new(Area::Stage, 4096);
        memory.copy(from, staged, 9);
        memory.store(Place::new(Area::Scratch, 1), b"456");
        memory.zero(staged.plus(3), 3);
        memory.copy(Place::new(Area::Scratch, 1), staged.plus(3), 3);
        let mut loaded = [0u8; 10];
        memory.load(staged, &mut loaded);
        assert_eq!(&loaded, b"123456789\0");
        assert_eq!(memory.checksum(staged, 9), 0xe306_9283);
    }

    #[test]
    fn a_buffer_in_pieces_is_one_to_the_engine() {
        let mut memory = memory();
        let guest = Arena::anonymous(64 << 10).expect("mapped");
        let sizes = [512u64, 1536, 4096, 512, 1024, 512];
        let piece = |at: usize| Piece {
            pointer: guest.range(at as u64 * 8192, sizes[at]),
            bytes: sizes[at],
        };
        let pieces: Vec<Piece> = (0..sizes.len()).map(piece).collect();
        // SAFETY: the arena outlives the loan, and nothing refers to its bytes.
        let lent = unsafe {
            memory
                .loans
                .lend(pieces.into_iter(), std::sync::Arc::new(()))
        };
        let lent = Place::new(Area::Buffer(lent), 0);
        let plain = memory.buffers.allocate(8192).expect("fits");
        let plain = Place::new(Area::Buffer(plain), 0);
        let bytes: Vec<u8> = (0..8192u32).map(|at| (at * 7 % 251) as u8).collect();
        memory.store(plain, &bytes);
        memory.copy(plain, lent, 8192);
        assert_eq!(memory.checksum(lent, 8192), memory.checksum(plain, 8192));
        let staged = Place::new(Area::Stage, 4096);
        memory.copy(lent.plus(300), staged, 7000);
        let mut loaded = vec![0; 7000];
        memory.load(staged, &mut loaded);
        assert_eq!(loaded, bytes[300..7300]);
        memory.zero(lent.plus(2000), 5000);
        memory.store(lent.plus(2040), &bytes[..900]);
        let mut loaded = vec![0; 8192];
        memory.load(lent, &mut loaded);
        assert_eq!(loaded[..2000], bytes[..2000]);
        assert_eq!(loaded[2040..2940], bytes[..900]);
        assert!(loaded[2940..7000].iter().all(|byte| *byte == 0));
        assert_eq!(loaded[7000..], bytes[7000..]);
    }
}
