//! One io_uring and the operations in flight on it.
//!
//! Owns every descriptor the kernel may still touch: scatter lists, message headers and the
//! buffers that were given away with an operation live in it until the last completion. Always
//! true: each operation started completes exactly once towards the caller; short transfers,
//! EINTR and EAGAIN are continued here; more operations than the submission queue holds wait in a
//! backlog and are never lost. Deliberately absent: what an operation means, timers, and any
//! thread of its own.

mod refused;

use crate::buffer::{Arena, HostMemory};
use engine::memory::Place;
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Elements of one scatter list that the kernel takes; longer lists go in several steps.
const IOV_MAX: usize = 1024;
/// EAGAIN answers to one file operation before it counts as failed.
const RETRIES_MAX: u32 = 64;

/// Bytes that an operation reads or writes, outside of the ring's own buffers.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pointer: *mut u8,
    bytes: usize,
}

impl Span {
    /// # Safety
    ///
    /// The range must be valid for reads and writes, and stay so until the operation that it is
    /// given to has completed; nobody may hold a reference into it meanwhile.
    pub unsafe fn new(pointer: *mut u8, bytes: usize) -> Span {
        Span { pointer, bytes }
    }

    /// Memory that the engine named, which may lie in pieces.
    pub fn places(memory: &HostMemory, place: Place, bytes: u64, into: &mut Vec<Span>) {
        let mut done = 0;
        while done < bytes {
            let (pointer, run) = memory.run(place.plus(done), bytes - done);
            // SAFETY: as in `place`; a loan is given back by the shard, as a buffer is.
            into.push(unsafe { Span::new(pointer, run as usize) });
            done += run;
        }
    }

    /// The same of memory of our own, which is one piece.
    pub fn place(memory: &HostMemory, place: Place, bytes: u64) -> Span {
        // SAFETY: `pointer` checks the range. Areas live until the shard ends, which waits for
        // the ring; buffers are freed by the shard only after their last operation.
        unsafe { Span::new(memory.pointer(place, bytes), bytes as usize) }
    }

    /// All of a mapping of its own, which lives as long as the operation.
    pub fn whole(arena: &Arena) -> Span {
        // SAFETY: as long as the arena lives the range is valid, and nobody else knows of it.
        unsafe { Span::new(arena.base(), arena.bytes() as usize) }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn iovec(&self) -> libc::iovec {
        iovec(self)
    }
}

/// Zeroes to write from.
#[derive(Debug)]
pub struct Zeroes {
    arena: Arena,
}

impl Zeroes {
    const BYTES: u64 = 256 << 10;

    pub fn new() -> io::Result<Zeroes> {
        let arena = Arena::anonymous(Zeroes::BYTES)?;
        Ok(Zeroes { arena })
    }

    /// A scatter list of this many zeroes, for writes only.
    pub fn spans(&self, bytes: u64, into: &mut Vec<Span>) {
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(Zeroes::BYTES);
            // SAFETY: the range lies inside the mapping, which lives as long as the shard; the
            // operations it is used for only read it.
            into.push(unsafe { Span::new(self.arena.base(), piece as usize) });
            left -= piece;
        }
    }
}

/// A piece of what is sent: bytes of the vector given along, or of host memory.
#[derive(Clone, Debug)]
pub enum Part {
    Owned(Range<usize>),
    Span(Span),
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completed {
    pub tag: u64,
    /// Bytes moved, or the new descriptor of an accept; else an errno.
    pub result: Result<u64, i32>,
    /// The vector that was given along.
    pub owned: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Receive,
    Send,
    Sync {
        data_only: bool,
    },
    Allocate {
        mode: i32,
        bytes: u64,
    },
    Accept,
    /// Completes at once.
    Nothing,
    Hangup,
    Readable,
    /// A few bytes at once or not at all.
    Once {
        write: bool,
    },
    Cancel {
        target: u64,
    },
}

struct Op {
    tag: u64,
    kind: Kind,
    fd: RawFd,
    offset: u64,
    wanted: u64,
    moved: u64,
    retries: u32,
    /// What is left to move starts here in `iov`.
    first: usize,
    iov: Vec<libc::iovec>,
    message: libc::msghdr,
    owned: Vec<u8>,
}

/// What to do with an operation after a completion of the kernel.
enum Verdict {
    Finished(Result<u64, i32>),
    Again,
}

/// One ring, used by the one thread that made it.
pub struct Ring {
    uring: IoUring,
    /// Boxed, because the kernel keeps pointers to message headers between push and submit.
    #[allow(clippy::vec_box)]
    ops: Vec<Box<Op>>,
    free: Vec<u32>,
    backlog: VecDeque<u32>,
    in_flight: usize,
}

impl Ring {
    /// A ring of this many submission entries. Takes the cheapest mode the kernel offers; every
    /// mode works from 5.11 on (waiting with a timeout).
    pub fn new(entries: u32) -> io::Result<Ring> {
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(entries * 4)
            .build(entries)
            .or_else(|_| IoUring::builder().setup_cqsize(entries * 4).build(entries))
            .map_err(|error| refused::explained(error, &refused::Host::look()))?;
        if !uring.params().is_feature_ext_arg() || !uring.params().is_feature_nodrop() {
            let message = "this kernel's io_uring is too old; 5.11 or newer is needed";
            return Err(io::Error::other(message));
        }
        Ok(Ring {
            uring,
            ops: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            in_flight: 0,
        })
    }

    /// Operations that have not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Reads at `offset`; what lies beyond the end of the file reads as zeroes.
    pub fn read(&mut self, tag: u64, fd: RawFd, offset: u64, spans: &[Span]) {
        self.transfer(tag, Kind::Read, fd, offset, spans);
    }

    pub fn write(&mut self, tag: u64, fd: RawFd, offset: u64, spans: &[Span]) {
        self.transfer(tag, Kind::Write, fd, offset, spans);
    }

    fn transfer(&mut self, tag: u64, kind: Kind, fd: RawFd, offset: u64, spans: &[Span]) {
        let slot = self.slot(tag, kind, fd);
        let op = &mut self.ops[slot as usize];
        op.offset = offset;
        op.iov.extend(spans.iter().map(iovec));
        op.wanted = spans.iter().map(|span| span.bytes as u64).sum();
        self.queue(slot);
    }

    /// Receives what is there, first into `payload`, the rest into `owned` from `at` on.
    pub fn receive(
        &mut self,
        tag: u64,
        fd: RawFd,
        payload: Option<Span>,
        mut owned: Vec<u8>,
        at: usize,
    ) {
        let slot = self.slot(tag, Kind::Receive, fd);
        let op = &mut self.ops[slot as usize];
        op.iov.extend(payload.iter().map(iovec));
        if at < owned.len() {
            let tail = &mut owned[at..];
            op.iov.push(libc::iovec {
                iov_base: tail.as_mut_ptr().cast(),
                iov_len: tail.len(),
            });
        }
        assert!(!op.iov.is_empty(), "a receive needs room");
        op.owned = owned;
        self.queue(slot);
    }

    /// Waits until the waker was used, and resets it.
    pub fn read_counter(&mut self, tag: u64, waker: &Waker) {
        let slot = self.slot(tag, Kind::Read, waker.fd());
        let op = &mut self.ops[slot as usize];
        op.owned = vec![0; 8];
        op.iov.push(libc::iovec {
            iov_base: op.owned.as_mut_ptr().cast(),
            iov_len: 8,
        });
        op.wanted = 8;
        self.queue(slot);
    }

    /// Sends all parts in order.
    pub fn send(&mut self, tag: u64, fd: RawFd, mut owned: Vec<u8>, parts: &[Part]) {
        let slot = self.slot(tag, Kind::Send, fd);
        let op = &mut self.ops[slot as usize];
        for part in parts {
            op.iov.push(match part {
                Part::Span(span) => iovec(span),
                Part::Owned(range) => {
                    let bytes = &mut owned[range.clone()];
                    libc::iovec {
                        iov_base: bytes.as_mut_ptr().cast(),
                        iov_len: bytes.len(),
                    }
                }
            });
        }
        op.wanted = op.iov.iter().map(|iov| iov.iov_len as u64).sum();
        assert!(op.wanted > 0, "a send needs bytes");
        op.owned = owned;
        self.queue(slot);
    }

    /// Makes completed writes durable; `data_only` leaves out times, never the file size.
    pub fn sync(&mut self, tag: u64, fd: RawFd, data_only: bool) {
        let slot = self.slot(tag, Kind::Sync { data_only }, fd);
        self.queue(slot);
    }

    /// Completes without doing anything, in place of a sync that a drill leaves out.
    pub fn nothing(&mut self, tag: u64) {
        let slot = self.slot(tag, Kind::Nothing, -1);
        self.queue(slot);
    }

    /// `fallocate` with this mode.
    pub fn allocate(&mut self, tag: u64, fd: RawFd, mode: i32, offset: u64, bytes: u64) {
        let slot = self.slot(tag, Kind::Allocate { mode, bytes }, fd);
        self.ops[slot as usize].offset = offset;
        self.queue(slot);
    }

    /// Waits for one client; the result is its descriptor, see [`accepted`].
    pub fn accept(&mut self, tag: u64, fd: RawFd) {
        let slot = self.slot(tag, Kind::Accept, fd);
        self.queue(slot);
    }

    /// Waits until the other end of a socket has closed, whether or not anybody receives.
    pub fn hangup(&mut self, tag: u64, fd: RawFd) {
        let slot = self.slot(tag, Kind::Hangup, fd);
        self.queue(slot);
    }

    /// Waits until something can be read.
    pub fn readable(&mut self, tag: u64, fd: RawFd) {
        let slot = self.slot(tag, Kind::Readable, fd);
        self.queue(slot);
    }

    /// Takes the count of an eventfd of somebody else.
    pub fn read_eventfd(&mut self, tag: u64, fd: RawFd) {
        let slot = self.slot(tag, Kind::Once { write: false }, fd);
        self.ops[slot as usize].carry(&[0; 8]);
        self.queue(slot);
    }

    /// Adds one to an eventfd of somebody else.
    pub fn write_eventfd(&mut self, tag: u64, fd: RawFd) {
        let slot = self.slot(tag, Kind::Once { write: true }, fd);
        self.ops[slot as usize].carry(&1u64.to_ne_bytes());
        self.queue(slot);
    }

    /// Asks for an early end of the accept, receive or wait with this tag; it still completes.
    pub fn cancel(&mut self, tag: u64, target: u64) {
        let live = |op: &Op| op.tag == target && op.fd >= 0;
        if let Some(found) = self.ops.iter().position(|op| live(op)) {
            let target = found as u64;
            let slot = self.slot(tag, Kind::Cancel { target }, 0);
            self.queue(slot);
        }
    }

    fn slot(&mut self, tag: u64, kind: Kind, fd: RawFd) -> u32 {
        self.in_flight += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.ops.push(Box::new(Op::empty()));
            (self.ops.len() - 1) as u32
        });
        let op = &mut self.ops[slot as usize];
        (op.tag, op.kind, op.fd) = (tag, kind, fd);
        (op.offset, op.wanted, op.moved) = (0, 0, 0);
        (op.retries, op.first) = (0, 0);
        op.iov.clear();
        slot
    }

    fn queue(&mut self, slot: u32) {
        if !self.backlog.is_empty() || !self.push(slot) {
            self.backlog.push_back(slot);
        }
    }

    fn push(&mut self, slot: u32) -> bool {
        let entry = self.ops[slot as usize].entry().user_data(u64::from(slot));
        // SAFETY: everything the entry points to lives in the boxed operation until its last
        // completion, or is a `Span`, whose maker promised the same.
        unsafe { self.uring.submission().push(&entry).is_ok() }
    }

    /// Hands everything queued to the kernel and lets it work, without waiting.
    pub fn submit(&mut self) -> io::Result<()> {
        let queue = self.uring.submission();
        let nothing = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if nothing && self.backlog.is_empty() {
            return Ok(());
        }
        loop {
            while let Some(&slot) = self.backlog.front() {
                if !self.push(slot) {
                    break;
                }
                self.backlog.pop_front();
            }
            match self.uring.submit() {
                Ok(_) if self.backlog.is_empty() => return Ok(()),
                Ok(_) => {}
                // The completion queue is full or memory is short: the caller reaps first.
                Err(error) if transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            if self.uring.submission().is_full() {
                return Ok(());
            }
        }
    }

    /// Hands everything over and sleeps until something completes or the time has passed.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.ready() || !self.backlog.is_empty() {
            return self.submit();
        }
        let result = match timeout {
            None => self.uring.submit_and_wait(1),
            Some(timeout) => {
                let timespec = types::Timespec::from(timeout);
                let args = types::SubmitArgs::new().timespec(&timespec);
                self.uring.submitter().submit_with_args(1, &args)
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) if transient(&error) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether something has completed, or would after the next `submit`. Costs no system call.
    pub fn ready(&mut self) -> bool {
        !self.uring.completion().is_empty() || self.uring.submission().taskrun()
    }

    /// Moves everything that has completed to the end of `into`.
    pub fn reap(&mut self, into: &mut Vec<Completed>) {
        loop {
            // The borrow of the queue ends here, because continuing an operation pushes to it.
            let next = self.uring.completion().next();
            let Some(entry) = next else { return };
            let slot = entry.user_data() as u32;
            let op = &mut self.ops[slot as usize];
            match op.complete(entry.result()) {
                Verdict::Again => self.queue(slot),
                Verdict::Finished(result) => {
                    let owned = std::mem::take(&mut op.owned);
                    let tag = op.tag;
                    op.fd = -1;
                    self.free.push(slot);
                    self.in_flight -= 1;
                    into.push(Completed { tag, result, owned });
                }
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // The kernel may still use what the operations own: leak it rather than free it.
            std::mem::forget(std::mem::take(&mut self.ops));
        }
    }
}

impl Op {
    fn empty() -> Op {
        Op {
            tag: 0,
            kind: Kind::Accept,
            fd: -1,
            offset: 0,
            wanted: 0,
            moved: 0,
            retries: 0,
            first: 0,
            iov: Vec::new(),
            // SAFETY: a message header of zeroes is the empty message.
            message: unsafe { std::mem::zeroed() },
            owned: Vec::new(),
        }
    }

    /// A few bytes of its own.
    fn carry(&mut self, bytes: &[u8]) {
        self.owned = bytes.to_vec();
        self.iov.push(libc::iovec {
            iov_base: self.owned.as_mut_ptr().cast(),
            iov_len: self.owned.len(),
        });
    }

    fn entry(&mut self) -> squeue::Entry {
        let fd = types::Fd(self.fd);
        let at = self.offset + self.moved;
        let left = &mut self.iov[self.first..];
        let count = left.len().min(IOV_MAX);
        match self.kind {
            Kind::Read if count == 1 => {
                opcode::Read::new(fd, left[0].iov_base.cast(), length(&left[0]))
                    .offset(at)
                    .build()
            }
            Kind::Read => opcode::Readv::new(fd, left.as_ptr(), count as u32)
                .offset(at)
                .build(),
            Kind::Write if count == 1 => {
                opcode::Write::new(fd, left[0].iov_base.cast(), length(&left[0]))
                    .offset(at)
                    .build()
            }
            Kind::Write => opcode::Writev::new(fd, left.as_ptr(), count as u32)
                .offset(at)
                .build(),
            Kind::Receive if count == 1 => {
                opcode::Recv::new(fd, left[0].iov_base.cast(), length(&left[0])).build()
            }
            Kind::Send if count == 1 => {
                opcode::Send::new(fd, left[0].iov_base.cast(), length(&left[0]))
                    .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                    .build()
            }
            Kind::Receive | Kind::Send => {
                self.message.msg_iov = left.as_mut_ptr();
                self.message.msg_iovlen = count;
                match self.kind {
                    Kind::Receive => opcode::RecvMsg::new(fd, &mut self.message).build(),
                    _ => opcode::SendMsg::new(fd, &self.message)
                        .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
                        .build(),
                }
            }
            Kind::Sync { data_only: true } => opcode::Fsync::new(fd)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
            Kind::Sync { data_only: false } => opcode::Fsync::new(fd).build(),
            Kind::Allocate { mode, bytes } => opcode::Fallocate::new(fd, bytes)
                .offset(self.offset)
                .mode(mode)
                .build(),
            Kind::Accept => opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build(),
            Kind::Nothing => opcode::Nop::new().build(),
            Kind::Readable => opcode::PollAdd::new(fd, libc::POLLIN as u32).build(),
            Kind::Once { write } => {
                let iov = self.iov.as_ptr();
                match write {
                    true => opcode::Writev::new(fd, iov, 1).build(),
                    false => opcode::Readv::new(fd, iov, 1).build(),
                }
            }
            Kind::Hangup => opcode::PollAdd::new(fd, libc::POLLRDHUP as u32).build(),
            Kind::Cancel { target } => opcode::AsyncCancel::new(target).build(),
        }
    }

    fn complete(&mut self, result: i32) -> Verdict {
        if result == -libc::EINTR {
            return Verdict::Again;
        }
        let transfers = matches!(self.kind, Kind::Read | Kind::Write | Kind::Send);
        if result == -libc::EAGAIN && transfers && self.retries < RETRIES_MAX {
            self.retries += 1;
            return Verdict::Again;
        }
        if result < 0 {
            return Verdict::Finished(Err(-result));
        }
        if !transfers {
            return Verdict::Finished(Ok(result as u64));
        }
        self.advance(result as usize);
        if self.moved == self.wanted {
            return Verdict::Finished(Ok(self.moved));
        }
        // A direct read ends inside a sector only at the end of the file.
        if self.kind == Kind::Read && (result == 0 || result % 512 != 0) {
            self.zero_rest();
            return Verdict::Finished(Ok(self.moved));
        }
        if result == 0 {
            return Verdict::Finished(Err(libc::EIO));
        }
        Verdict::Again
    }

    fn advance(&mut self, mut bytes: usize) {
        self.moved += bytes as u64;
        assert!(
            self.moved <= self.wanted,
            "the kernel moved more than was asked for"
        );
        while bytes > 0 {
            let iov = &mut self.iov[self.first];
            let step = bytes.min(iov.iov_len);
            // SAFETY: `step` stays within the element, so the pointer stays within its range.
            iov.iov_base = unsafe { iov.iov_base.cast::<u8>().add(step) }.cast();
            iov.iov_len -= step;
            bytes -= step;
            if iov.iov_len == 0 {
                self.first += 1;
            }
        }
    }

    fn zero_rest(&mut self) {
        for iov in &self.iov[self.first..] {
            // SAFETY: the element is memory of a read that has completed, valid for writes by the
            // promise of `Span::new`.
            unsafe { std::ptr::write_bytes(iov.iov_base.cast::<u8>(), 0, iov.iov_len) };
        }
    }
}

fn iovec(span: &Span) -> libc::iovec {
    libc::iovec {
        iov_base: span.pointer.cast(),
        iov_len: span.bytes,
    }
}

/// Lengths of one step fit the kernel's limit of a transfer; the rest follows as after any short
/// transfer.
fn length(iov: &libc::iovec) -> u32 {
    iov.iov_len.min(0x7fff_f000) as u32
}

fn transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}

/// The descriptor that an accept returned.
pub fn accepted(result: u64) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us, and an accept completes once.
    unsafe { OwnedFd::from_raw_fd(result as RawFd) }
}

/// Lifts the soft limit of open descriptors to the hard one.
pub fn lift_descriptor_limit() -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls read or fill a value that lives over them.
    let result = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many descriptors this process may have open.
pub fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills a value that lives over the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
}

/// Nanoseconds on the monotonic clock.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills a value that lives over the call; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Ends both directions of a socket, so that operations waiting on it complete.
pub fn shutdown(socket: &OwnedFd) {
    // SAFETY: a system call on a descriptor we own; an error means it is not connected any more.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Sends small replies at once. Does nothing to sockets that are not TCP.
pub fn set_nodelay(socket: &OwnedFd) {
    let on: libc::c_int = 1;
    // SAFETY: a system call on a descriptor we own with a value that lives over the call; UNIX
    // sockets answer with an error that changes nothing.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// An eventfd that wakes the shard from any thread.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
}

impl Waker {
    pub fn new() -> io::Result<Waker> {
        // SAFETY: makes a new descriptor or fails.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Waker { fd })
    }

    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes that live over the call. It can fail only when the counter
        // is full, and then the shard is awake.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    fn one(ring: &mut Ring) -> Completed {
        let mut done = Vec::new();
        while done.is_empty() {
            ring.wait(Some(Duration::from_secs(10))).expect("waits");
            ring.reap(&mut done);
        }
        assert_eq!(done.len(), 1);
        done.remove(0)
    }

    fn spans(bytes: &mut [u8], piece: usize) -> Vec<Span> {
        bytes
            .chunks_mut(piece)
            // SAFETY: each test keeps the bytes until its operation has completed.
            .map(|chunk| unsafe { Span::new(chunk.as_mut_ptr(), chunk.len()) })
            .collect()
    }

    #[test]
    fn more_slices_than_the_kernel_takes_are_written_and_read_in_steps() {
        let mut ring = Ring::new(8).expect("ring");
        let file = tempfile::tempfile().expect("file");
        let mut bytes: Vec<u8> = (0..3000 * 512).map(|at| (at / 512) as u8).collect();
        ring.write(7, file.as_raw_fd(), 1024, &spans(&mut bytes, 512));
        let done = one(&mut ring);
        assert_eq!((done.tag, done.result), (7, Ok(3000 * 512)));
        let mut back = vec![0xee; 3000 * 512];
        ring.read(8, file.as_raw_fd(), 1024, &spans(&mut back, 512));
        assert_eq!(one(&mut ring).result, Ok(3000 * 512));
        assert_eq!(bytes, back);
    }

    #[test]
    fn what_lies_beyond_the_end_of_a_file_reads_as_zeroes() {
        let mut ring = Ring::new(8).expect("ring");
        let mut file = tempfile::tempfile().expect("file");
        file.write_all(&[5; 700]).expect("writes");
        file.rewind().expect("rewinds");
        let mut back = vec![0xee; 4096];
        ring.read(1, file.as_raw_fd(), 0, &spans(&mut back, 512));
        assert_eq!(one(&mut ring).result, Ok(700));
        assert!(back[..700].iter().all(|&byte| byte == 5));
        assert!(back[700..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn more_operations_than_the_queue_holds_all_complete_once() {
        let mut ring = Ring::new(4).expect("ring");
        let file = tempfile::tempfile().expect("file");
        let mut bytes = vec![1u8; 512 * 500];
        for (tag, span) in spans(&mut bytes, 512).into_iter().enumerate() {
            ring.write(tag as u64, file.as_raw_fd(), tag as u64 * 512, &[span]);
        }
        let mut done = Vec::new();
        while ring.in_flight() > 0 {
            ring.wait(Some(Duration::from_secs(10))).expect("waits");
            ring.reap(&mut done);
        }
        let mut tags: Vec<u64> = done.iter().map(|done| done.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..500).collect::<Vec<u64>>());
        assert!(done.iter().all(|done| done.result == Ok(512)));
    }

    #[test]
    fn a_send_larger_than_the_socket_takes_is_sent_whole() {
        let mut ring = Ring::new(8).expect("ring");
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).expect("reads");
            all
        });
        let mut payload = vec![9u8; 4 << 20];
        let mut parts = vec![Part::Owned(0..3)];
        parts.extend(spans(&mut payload, 1 << 20).into_iter().map(Part::Span));
        parts.push(Part::Owned(3..4));
        ring.send(1, ours.as_raw_fd(), vec![1, 2, 3, 4], &parts);
        let done = one(&mut ring);
        assert_eq!((done.result, done.owned.len()), (Ok((4 << 20) + 4), 4));
        drop(ours);
        let all = reader.join().expect("joins");
        assert_eq!(all.len(), (4 << 20) + 4);
        assert_eq!(
            (all[..3].to_vec(), all[3], all[all.len() - 1]),
            (vec![1, 2, 3], 9, 4)
        );
    }

    #[test]
    fn a_receive_fills_the_payload_first_and_can_be_ended_by_shutdown() {
        let mut ring = Ring::new(8).expect("ring");
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        theirs.write_all(&[1, 2, 3, 4, 5]).expect("writes");
        let mut payload = vec![0u8; 2];
        let span = spans(&mut payload, 2)[0];
        ring.receive(1, ours.as_raw_fd(), Some(span), vec![0; 8], 1);
        let done = one(&mut ring);
        assert_eq!((done.result, payload), (Ok(5), vec![1, 2]));
        assert_eq!(done.owned, [0, 3, 4, 5, 0, 0, 0, 0]);
        ring.receive(2, ours.as_raw_fd(), None, done.owned, 0);
        ring.submit().expect("submits");
        let ours = OwnedFd::from(ours);
        shutdown(&ours);
        assert_eq!(one(&mut ring).result, Ok(0));
    }

    #[test]
    fn an_accept_that_is_cancelled_completes() {
        let mut ring = Ring::new(8).expect("ring");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        ring.accept(1, listener.as_raw_fd());
        ring.submit().expect("submits");
        ring.cancel(2, 1);
        let mut done = Vec::new();
        while ring.in_flight() > 0 {
            ring.wait(Some(Duration::from_secs(10))).expect("waits");
            ring.reap(&mut done);
        }
        let accept = done.iter().find(|done| done.tag == 1).expect("completes");
        assert_eq!(accept.result, Err(libc::ECANCELED));
    }

    #[test]
    fn a_waker_ends_a_wait() {
        let mut ring = Ring::new(8).expect("ring");
        let waker = Waker::new().expect("eventfd");
        ring.read_counter(3, &waker);
        waker.wake();
        let done = one(&mut ring);
        assert_eq!((done.tag, done.result), (3, Ok(8)));
    }
}
