//! A small vhost-user-blk front end for tests, in good manners or in bad ones.
//!
//! Owns a connection, the guest's memory and its rings as plain bytes. Always true: every message
//! is sent as it is given, so absurd ones can be sent too; nothing waits for ever. The memory is
//! read and written through its file and never mapped, so that a test may shrink the file.
//! Deliberately shares no line with the product's own protocol code, so that one mistake cannot
//! hide the other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// No answer within this time is a failure of the daemon.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const SET_MEM_TABLE: u32 = 5;
const SET_LOG_BASE: u32 = 6;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const GET_CONFIG: u32 = 24;
const SET_CONFIG: u32 = 25;
pub const ADD_MEM_REG: u32 = 37;
pub const REM_MEM_REG: u32 = 38;

const VERSION: u32 = 1;
const NEED_REPLY: u32 = 8;
/// VHOST_F_LOG_ALL, which makes the device note what it writes.
const LOG_ALL: u64 = 1 << 26;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

/// Where the front end says that its guest's memory is, as far as it is asked for rings.
const USER: u64 = 0x7000_0000_0000;

/// A memory file of a guest.
#[derive(Debug)]
pub struct Ram {
    pub file: File,
    pub bytes: u64,
}

impl Ram {
    pub fn new(bytes: u64) -> Ram {
        // SAFETY: the name is a string that ends; the call makes a descriptor or fails.
        let fd = unsafe { libc::memfd_create(c"tenuto-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "memfd: {}", io::Error::last_os_error());
        // SAFETY: just made and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes).expect("size the memory");
        Ram { file, bytes }
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).expect("write memory");
    }

    pub fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.file.read_exact_at(&mut read, at).expect("read memory");
        read
    }

    pub fn half_word(&self, at: u64) -> u16 {
        let bytes = self.read(at, 2);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}

/// An eventfd.
#[derive(Debug)]
pub struct Event(File);

impl Event {
    pub fn new() -> Event {
        Event::with(libc::EFD_NONBLOCK)
    }

    fn with(flags: i32) -> Event {
        // SAFETY: takes numbers; makes a descriptor or fails.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
        assert!(fd >= 0, "eventfd: {}", io::Error::last_os_error());
        // SAFETY: just made and nobody else's.
        Event(unsafe { File::from_raw_fd(fd) })
    }

    /// One that makes everybody wait who adds to it.
    pub fn full() -> Event {
        let event = Event::with(0);
        event.add(u64::MAX - 1);
        event
    }

    pub fn add(&self, count: u64) {
        let written = (&self.0).write_all(&count.to_ne_bytes());
        written.expect("add to an event");
    }

    /// Waits until it was signalled, and takes that. False where nothing came.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let millis = i32::try_from(timeout.as_millis()).expect("a short time");
        // SAFETY: one descriptor, which outlives the call.
        let found = unsafe { libc::poll(&mut poll, 1, millis) };
        if found == 1 {
            // The other end may have been faster.
            let _ = (&self.0).read(&mut [0; 8]);
        }
        found == 1
    }
}

/// Where a ring lies in the guest's memory, and whom it tells.
#[derive(Debug)]
pub struct Ring {
    pub queue: u16,
    pub size: u16,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub kick: Event,
    pub call: Event,
    pub error: Event,
}

impl Ring {
    pub fn new(queue: u16, size: u16, at: u64) -> Ring {
        let available = at + 16 * u64::from(size);
        let used = (available + 6 + 2 * u64::from(size)).next_multiple_of(8);
        Ring {
            queue,
            size,
            descriptors: at,
            available,
            used,
            kick: Event::new(),
            call: Event::new(),
            error: Event::new(),
        }
    }

    pub fn descriptor(&self, ram: &Ram, at: u16, is: Descriptor) {
        ram.write(self.descriptors + 16 * u64::from(at), &is.bytes());
    }

    pub fn available(&self, ram: &Ram, at: u16, head: u16) {
        let place = self.available + 4 + 2 * u64::from(at % self.size);
        ram.write(place, &head.to_le_bytes());
    }

    /// Shows that so many requests were ever made available.
    pub fn show(&self, ram: &Ram, index: u16) {
        ram.write(self.available + 2, &index.to_le_bytes());
        self.kick.add(1);
    }

    pub fn used_index(&self, ram: &Ram) -> u16 {
        ram.half_word(self.used + 2)
    }

    /// Waits until so many requests were ever answered. False where the ring was broken before.
    pub fn answered(&self, ram: &Ram, index: u16) -> bool {
        let start = Instant::now();
        while self.used_index(ram) != index {
            if self.error.wait(Duration::ZERO) {
                return false;
            }
            assert!(start.elapsed() < ANSWER_TIMEOUT, "requests are answered");
            self.call.wait(Duration::from_millis(2));
        }
        true
    }
}

/// One entry of a table.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub at: u64,
    pub bytes: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// The first bytes of a request.
pub fn header(kind: u32, sector: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

/// A connection that has agreed on everything that the device offers, but a log of dirty pages.
#[derive(Debug)]
pub struct FrontEnd {
    stream: UnixStream,
}

fn words(numbers: &[u32]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    bytes.collect()
}

fn region(ram: &Ram, guest: u64) -> Vec<u8> {
    let numbers = [guest, ram.bytes, USER + guest, 0];
    let bytes = numbers.iter().flat_map(|number: &u64| number.to_le_bytes());
    bytes.collect()
}

impl FrontEnd {
    /// Connects and negotiates. An error where the device belongs to another front end.
    pub fn connect(socket: &Path) -> io::Result<FrontEnd> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let front = FrontEnd { stream };
        front.tell(SET_OWNER, &[], &[])?;
        let features = front.number(GET_FEATURES)?;
        let protocol = front.number(GET_PROTOCOL_FEATURES)?;
        front.tell(SET_PROTOCOL_FEATURES, &protocol.to_le_bytes(), &[])?;
        let features = features & !LOG_ALL;
        front.send(SET_FEATURES, &features.to_le_bytes(), &[])?;
        Ok(front)
    }

    fn tell_flagged(&self, request: u32, flags: u32, body: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let mut message = words(&[request, VERSION | flags, body.len() as u32]);
        message.extend_from_slice(body);
        let sent = self.stream.send_with_fds(&[&message[..]], fds);
        let sent = sent.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        assert_eq!(sent, message.len(), "a message is sent at once");
        Ok(())
    }

    /// Sends a message that is not answered.
    pub fn tell(&self, request: u32, body: &[u8], fds: &[RawFd]) -> io::Result<()> {
        self.tell_flagged(request, 0, body, fds)
    }

    fn answer(&self) -> io::Result<Vec<u8>> {
        let mut head = [0; 12];
        (&self.stream).read_exact(&mut head)?;
        let bytes = u32::from_le_bytes(head[8..].try_into().unwrap());
        let mut body = vec![0; bytes as usize];
        (&self.stream).read_exact(&mut body)?;
        Ok(body)
    }

    /// Sends a message that has an answer of its own.
    pub fn ask(&self, request: u32, body: &[u8]) -> io::Result<Vec<u8>> {
        self.tell(request, body, &[])?;
        self.answer()
    }

    /// Reads the configuration space.
    pub fn config(&self, offset: u32, bytes: usize) -> io::Result<Vec<u8>> {
        let mut body = words(&[offset, bytes as u32, 0]);
        body.resize(12 + bytes, 0);
        Ok(self.ask(GET_CONFIG, &body)?[12..].to_vec())
    }

    /// Has the device note which pages it writes.
    fn note_pages(&self, log: &Ram) -> io::Result<()> {
        let place = [log.bytes, 0].map(u64::to_le_bytes).concat();
        self.tell_flagged(SET_LOG_BASE, 0, &place, &[log.file.as_raw_fd()])?;
        self.answer()?;
        let features = self.number(GET_FEATURES)?;
        assert!(self.send(SET_FEATURES, &features.to_le_bytes(), &[])?);
        Ok(())
    }

    fn number(&self, request: u32) -> io::Result<u64> {
        let body = self.ask(request, &[])?;
        Ok(u64::from_le_bytes(body[..8].try_into().unwrap()))
    }

    /// Sends a message and waits until it was done. False where it was refused.
    pub fn send(&self, request: u32, body: &[u8], fds: &[RawFd]) -> io::Result<bool> {
        self.tell_flagged(request, NEED_REPLY, body, fds)?;
        Ok(self.answer()?[..8] == [0; 8])
    }

    /// Shares the memory of a guest: files and where each begins.
    pub fn share(&self, memory: &[(&Ram, u64)]) -> io::Result<bool> {
        let mut body = words(&[memory.len() as u32, 0]);
        for (ram, guest) in memory {
            body.extend(region(ram, *guest));
        }
        let files = memory.iter().map(|(ram, _)| ram.file.as_raw_fd());
        self.send(SET_MEM_TABLE, &body, &files.collect::<Vec<_>>())
    }

    pub fn add(&self, ram: &Ram, guest: u64) -> io::Result<bool> {
        let body = [&[0; 8], &region(ram, guest)[..]].concat();
        self.send(ADD_MEM_REG, &body, &[ram.file.as_raw_fd()])
    }

    pub fn remove(&self, ram: &Ram, guest: u64) -> io::Result<bool> {
        let body = [&[0; 8], &region(ram, guest)[..]].concat();
        self.send(REM_MEM_REG, &body, &[])
    }

    pub fn set_size(&self, queue: u16, size: u32) -> io::Result<bool> {
        self.send(SET_VRING_NUM, &words(&[queue.into(), size]), &[])
    }

    pub fn set_halves(&self, ring: &Ring) -> io::Result<bool> {
        let mut body = words(&[ring.queue.into(), 0]);
        for half in [ring.descriptors, ring.used, ring.available] {
            body.extend((USER.wrapping_add(half)).to_le_bytes());
        }
        body.extend([0; 8]);
        self.send(SET_VRING_ADDR, &body, &[])
    }

    pub fn set_event(&self, request: u32, queue: u16, event: &Event) -> io::Result<bool> {
        let body = u64::from(queue).to_le_bytes();
        self.send(request, &body, &[event.0.as_raw_fd()])
    }

    /// Starts a ring whose indices are 0. False where a part of it was refused.
    pub fn start(&self, ring: &Ring) -> io::Result<bool> {
        self.start_at(ring, 0)
    }

    /// The same for one that goes on.
    pub fn start_at(&self, ring: &Ring, base: u16) -> io::Result<bool> {
        let queue = ring.queue;
        let base = words(&[queue.into(), base.into()]);
        let enable = words(&[queue.into(), 1]);
        let done = [
            self.set_size(queue, ring.size.into())?,
            self.send(SET_VRING_BASE, &base, &[])?,
            self.set_halves(ring)?,
            self.set_event(SET_VRING_CALL, queue, &ring.call)?,
            self.set_event(SET_VRING_ERR, queue, &ring.error)?,
            self.set_event(SET_VRING_KICK, queue, &ring.kick)?,
            self.send(SET_VRING_ENABLE, &enable, &[])?,
        ];
        Ok(done.iter().all(|done| *done))
    }

    /// Stops a ring, which waits for its requests; where it would go on.
    pub fn stop(&self, queue: u16) -> io::Result<u16> {
        let body = self.ask(GET_VRING_BASE, &words(&[queue.into(), 0]))?;
        Ok(u16::from_le_bytes([body[4], body[5]]))
    }
}

/// A front end that keeps all rules: one request at a time, each checked.
#[derive(Debug)]
pub struct Polite {
    front: FrontEnd,
    ram: Ram,
    ring: Ring,
    requests: u16,
}

/// A guest without a front end.
#[derive(Debug)]
pub struct Asleep {
    ram: Ram,
    ring: Ring,
    requests: u16,
}

impl Asleep {
    /// A new front end lets it go on where it was.
    pub fn wake(self, socket: &Path) -> io::Result<Polite> {
        self.arrive(FrontEnd::connect(socket)?)
    }

    /// The same with one that is connected.
    pub fn arrive(self, front: FrontEnd) -> io::Result<Polite> {
        let Asleep {
            ram,
            ring,
            requests,
        } = self;
        assert!(front.share(&[(&ram, 0)])?, "memory is taken");
        assert!(front.start_at(&ring, requests)?, "the ring is started");
        Ok(Polite {
            front,
            ram,
            ring,
            requests,
        })
    }
}

const POLITE_BYTES: u64 = 1 << 20;
const HEADER_AT: u64 = 0x8000;
const STATUS_AT: u64 = 0x8100;
const DATA_AT: u64 = 0x1_0000;

impl Polite {
    pub fn connect(socket: &Path) -> io::Result<Polite> {
        let front = FrontEnd::connect(socket)?;
        let ram = Ram::new(POLITE_BYTES);
        let ring = Ring::new(0, 64, 0);
        assert!(front.share(&[(&ram, 0)])?, "memory is taken");
        assert!(front.start(&ring)?, "the ring is started");
        Ok(Polite {
            front,
            ram,
            ring,
            requests: 0,
        })
    }

    /// One request; its status byte.
    fn request(&mut self, kind: u32, sector: u64, bytes: u32, into: bool) -> u8 {
        self.show(kind, sector, bytes, into);
        let answered = self.ring.answered(&self.ram, self.requests);
        assert!(answered, "the ring is not broken");
        self.ram.read(STATUS_AT, 1)[0]
    }

    /// Makes a request available, and does not wait for it.
    fn show(&mut self, kind: u32, sector: u64, bytes: u32, into: bool) {
        let (ring, ram) = (&self.ring, &self.ram);
        ram.write(HEADER_AT, &header(kind, sector));
        ram.write(STATUS_AT, &[0xff]);
        let mut chain = vec![(HEADER_AT, 16, 0)];
        if bytes > 0 {
            chain.push((DATA_AT, bytes, if into { WRITE } else { 0 }));
        }
        chain.push((STATUS_AT, 1, WRITE));
        for (at, (place, bytes, flags)) in chain.iter().enumerate() {
            let more = if at + 1 < chain.len() { NEXT } else { 0 };
            let is = Descriptor {
                at: *place,
                bytes: *bytes,
                flags: flags | more,
                next: at as u16 + 1,
            };
            ring.descriptor(ram, at as u16, is);
        }
        ring.available(ram, self.requests, 0);
        self.requests = self.requests.wrapping_add(1);
        // An event that is always ahead, so that each request is told.
        let event = self.requests.wrapping_sub(1).to_le_bytes();
        ram.write(ring.available + 4 + 2 * u64::from(ring.size), &event);
        ring.show(ram, self.requests);
    }

    /// Writes, and does not wait for it.
    pub fn begin_write(&mut self, at: u64, bytes: &[u8]) {
        self.ram.write(DATA_AT, bytes);
        self.show(OUT, at / 512, bytes.len() as u32, false);
    }

    /// Requests that were answered since the ring was started last.
    pub fn answers(&self) -> u16 {
        self.ring.used_index(&self.ram)
    }

    /// Whether the ring has called, now or within this time.
    pub fn is_called(&self, within: Duration) -> bool {
        self.ring.call.wait(within)
    }

    /// Has the ring call somebody else from now on.
    pub fn call_instead(&mut self, call: Event) {
        let set = self.front.set_event(SET_VRING_CALL, self.ring.queue, &call);
        assert!(set.expect("an answer"), "the event is taken");
        self.ring.call = call;
    }

    /// The same for whom it tells that it is broken.
    pub fn complain_to(&mut self, error: Event) {
        let set = self.front.set_event(SET_VRING_ERR, self.ring.queue, &error);
        assert!(set.expect("an answer"), "the event is taken");
        self.ring.error = error;
    }

    pub fn stop(&self) {
        let base = self.front.stop(self.ring.queue);
        let base = base.expect("the ring is stopped");
        assert_eq!(base, self.answers(), "what it has taken is answered");
    }

    /// Starts the ring that was stopped, from its beginning.
    pub fn start(&mut self) {
        let nothing = [0; 2];
        for index in [self.ring.available + 2, self.ring.used + 2] {
            self.ram.write(index, &nothing);
        }
        self.requests = 0;
        assert!(self.front.start(&self.ring).expect("an answer"));
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.ram.write(DATA_AT, bytes);
        let status = self.request(OUT, at / 512, bytes.len() as u32, false);
        assert_eq!(status, 0, "write at {at}");
    }

    /// Writes; the status byte.
    pub fn try_write(&mut self, at: u64, bytes: &[u8]) -> u8 {
        self.ram.write(DATA_AT, bytes);
        self.request(OUT, at / 512, bytes.len() as u32, false)
    }

    /// Reads the configuration space.
    pub fn config(&self, offset: u32, bytes: usize) -> Vec<u8> {
        self.front.config(offset, bytes).expect("an answer")
    }

    /// Writes into it.
    pub fn configure(&self, offset: u32, bytes: &[u8]) {
        let mut body = words(&[offset, bytes.len() as u32, 0]);
        body.extend_from_slice(bytes);
        let done = self.front.send(SET_CONFIG, &body, &[]);
        assert!(done.expect("an answer"), "the configuration is written");
    }

    /// Its guest is about to move: the front end stays as it is, with the ring stopped.
    pub fn depart(self) -> (FrontEnd, Asleep) {
        self.front
            .note_pages(&Ram::new(4096))
            .expect("pages are noted");
        self.stop();
        let Polite {
            front,
            ram,
            ring,
            requests,
        } = self;
        let asleep = Asleep {
            ram,
            ring,
            requests,
        };
        (front, asleep)
    }

    /// Sends a descriptor that is nothing else. False where it is refused.
    pub fn give(&self, request: u32, file: &impl AsRawFd) -> bool {
        let given = self.front.send(request, &[], &[file.as_raw_fd()]);
        given.expect("an answer")
    }

    pub fn read(&mut self, at: u64, bytes: usize) -> Vec<u8> {
        let status = self.request(IN, at / 512, bytes as u32, true);
        assert_eq!(status, 0, "read at {at}");
        self.ram.read(DATA_AT, bytes)
    }

    pub fn flush(&mut self) {
        assert_eq!(self.request(FLUSH, 0, 0, false), 0, "flush");
    }

    /// Ends in order.
    pub fn leave(self) {
        self.front.stop(0).expect("the ring is stopped");
    }

    /// Its daemon is gone; the guest waits for another one.
    pub fn lost(self) -> Asleep {
        let Polite {
            ram,
            ring,
            requests,
            ..
        } = self;
        Asleep {
            ram,
            ring,
            requests,
        }
    }

    /// Its front end ends in order, and the guest is saved with all that it knows.
    pub fn sleep(self) -> Asleep {
        self.stop();
        self.lost()
    }
}
