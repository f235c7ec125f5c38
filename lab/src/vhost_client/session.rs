//! The messages of one connection: what is agreed upon, what is shared, which rings run.
//!
//! Always true: everything that the back end needs is there before a ring runs; each message that
//! it refuses or does not answer is an error that names the message. What a back end lacks and we
//! can do without is not asked for: several queues, answers to every message, in-flight regions.

use super::memory::SharedMemory;
use super::queue::Queue;
use super::{ClientError, PATIENCE, Result};
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{
    Error as WireError, Frontend, VhostUserFrontend, VhostUserProtocolFeatures as Protocol,
    VhostUserVirtioFeatures as Transport,
};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vring::config;
use vring::memory::Address;

/// What a disk is asked for where it has it. The log of dirty pages is not.
const WANTED: u64 = config::SEG_MAX
    | config::READ_ONLY
    | config::BLK_SIZE
    | config::FLUSH
    | config::TOPOLOGY
    | config::CONFIG_WCE
    | config::MULTI_QUEUE
    | config::DISCARD
    | config::WRITE_ZEROES
    | config::INDIRECT_DESC
    | config::EVENT_IDX
    | config::VERSION_1;

/// In-flight requests as the back end keeps them in a file of ours.
pub(super) struct Region {
    pub file: File,
    pub place: VhostUserInflight,
}

impl Region {
    /// The same file once more.
    pub fn again(&self) -> io::Result<Region> {
        let (file, place) = (self.file.try_clone()?, self.place);
        Ok(Region { file, place })
    }
}

pub(super) struct Session {
    frontend: Frontend,
    /// The same socket, to see its end.
    stream: UnixStream,
    pub features: u64,
    pub protocol: Protocol,
}

impl Session {
    /// Agrees on features. `queues` says how many are wanted.
    pub fn negotiate(stream: UnixStream, queues: u16) -> Result<Session> {
        let mut session = Session {
            frontend: Frontend::from_stream(stream.try_clone()?, queues.into()),
            stream,
            features: 0,
            protocol: Protocol::empty(),
        };
        session.say("SET_OWNER", |it| it.set_owner())?;
        let offered = session.say("GET_FEATURES", |it| it.get_features())?;
        let transport = Transport::PROTOCOL_FEATURES.bits();
        if offered & transport == 0 {
            return Err(ClientError::Lacks("protocol features"));
        }
        if offered & config::VERSION_1 == 0 {
            return Err(ClientError::Lacks("virtio 1.0"));
        }
        session.agree_on_protocol()?;
        session.check_queues(queues)?;
        session.features = offered & (WANTED | transport);
        let features = session.features;
        session.say("SET_FEATURES", |it| it.set_features(features))?;
        Ok(session)
    }

    fn agree_on_protocol(&mut self) -> Result<()> {
        let offered = self.say("GET_PROTOCOL_FEATURES", |it| it.get_protocol_features())?;
        if !offered.contains(Protocol::CONFIG) {
            return Err(ClientError::Lacks("its configuration"));
        }
        let known = Protocol::MQ | Protocol::REPLY_ACK | Protocol::CONFIG;
        let wanted = offered & (known | Protocol::INFLIGHT_SHMFD);
        self.say("SET_PROTOCOL_FEATURES", |it| {
            it.set_protocol_features(wanted)
        })?;
        self.protocol = wanted;
        if wanted.contains(Protocol::REPLY_ACK) {
            self.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        Ok(())
    }

    fn check_queues(&mut self, asked: u16) -> Result<()> {
        let has = match self.protocol.contains(Protocol::MQ) {
            true => self.say("GET_QUEUE_NUM", |it| it.get_queue_num())?,
            false => 1,
        };
        match u64::from(asked) <= has {
            true => Ok(()),
            false => Err(ClientError::Queues { asked, has }),
        }
    }

    /// One message and its answer. The crate waits for an answer for ever, so somebody else looks
    /// at the clock and closes the socket.
    fn say<T: Send>(
        &mut self,
        message: &'static str,
        say: impl FnOnce(&mut Frontend) -> vhost::Result<T> + Send,
    ) -> Result<T> {
        let (done, is_done) = channel::<()>();
        let (frontend, stream) = (&mut self.frontend, &self.stream);
        let (answer, late) = thread::scope(|scope| {
            let watch = scope.spawn(move || {
                let late = is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
                if late {
                    // One that is closed already needs no closing.
                    let _ = stream.shutdown(Shutdown::Both);
                }
                late
            });
            let answer = say(frontend);
            drop(done);
            (answer, watch.join().expect("a panic ends the process"))
        });
        answer.map_err(|source| explain(message, source, late))
    }

    /// The first bytes of the configuration space.
    pub fn config(&mut self, offset: u32, bytes: usize) -> Result<Vec<u8>> {
        let space = vec![0; bytes];
        let flags = VhostUserConfigFlags::empty();
        let answer = self.say("GET_CONFIG", |it| {
            it.get_config(offset, bytes as u32, flags, &space)
        })?;
        Ok(answer.1)
    }

    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<()> {
        let flags = VhostUserConfigFlags::WRITABLE;
        self.say("SET_CONFIG", |it| it.set_config(offset, flags, bytes))
    }

    pub fn share(&mut self, shared: &SharedMemory) -> Result<()> {
        let (guest, user) = SharedMemory::starts();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: guest,
            memory_size: shared.bytes,
            userspace_addr: user,
            mmap_offset: 0,
            mmap_handle: shared.file.as_raw_fd(),
        };
        self.say("SET_MEM_TABLE", |it| it.set_mem_table(&[region]))?;
        Ok(())
    }

    /// Brings the region back, or asks for a new one. `None` where there are none.
    pub fn region(
        &mut self,
        kept: Option<Region>,
        queues: u16,
        size: u16,
    ) -> Result<Option<Region>> {
        if !self.protocol.contains(Protocol::INFLIGHT_SHMFD) {
            return match kept {
                Some(_) => Err(ClientError::Lacks("the in-flight region it had")),
                None => Ok(None),
            };
        }
        let region = match kept {
            Some(region) => region,
            None => {
                let asked = VhostUserInflight {
                    mmap_size: 0,
                    mmap_offset: 0,
                    num_queues: queues,
                    queue_size: size,
                };
                let made = self.say("GET_INFLIGHT_FD", |it| it.get_inflight_fd(&asked));
                let (place, file) = made?;
                Region { file, place }
            }
        };
        let file = region.file.as_raw_fd();
        self.say("SET_INFLIGHT_FD", |it| {
            it.set_inflight_fd(&region.place, file)
        })?;
        Ok(Some(region))
    }

    /// Lets a ring run that goes on at `base`.
    pub fn start(&mut self, index: u16, queue: &Queue, base: u16) -> Result<()> {
        let at = usize::from(index);
        let setup = *queue.setup();
        let user = |address: Address| SharedMemory::user(address);
        let halves = VringConfigData {
            queue_max_size: setup.size,
            queue_size: setup.size,
            flags: 0,
            desc_table_addr: user(setup.descriptors),
            used_ring_addr: user(setup.used),
            avail_ring_addr: user(setup.available),
            log_addr: None,
        };
        self.say("SET_VRING_NUM", |it| it.set_vring_num(at, setup.size))?;
        self.say("SET_VRING_BASE", |it| it.set_vring_base(at, base))?;
        self.say("SET_VRING_ADDR", |it| it.set_vring_addr(at, &halves))?;
        self.say("SET_VRING_CALL", |it| it.set_vring_call(at, &queue.call))?;
        self.say("SET_VRING_KICK", |it| it.set_vring_kick(at, &queue.kick))?;
        self.say("SET_VRING_ENABLE", |it| it.set_vring_enable(at, true))
    }

    /// Ends a ring, after all that is in flight, and says where it stands.
    pub fn stop(&mut self, index: u16) -> Result<u16> {
        let base = self.say("GET_VRING_BASE", |it| it.get_vring_base(index.into()))?;
        u16::try_from(base).map_err(|_| ClientError::Refused("16 bits in GET_VRING_BASE"))
    }

    /// Readable, or at its end, when the back end has something to say; it has nothing.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn is_gone(&self) -> bool {
        host::sys::reader_is_gone(&self.stream)
    }
}

fn explain(message: &'static str, source: vhost::Error, late: bool) -> ClientError {
    let closed = |error: &io::Error| {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        matches!(error.kind(), BrokenPipe | ConnectionReset)
    };
    match source {
        _ if late => ClientError::Silent(message),
        vhost::Error::VhostUserProtocol(WireError::BackendInternalError) => {
            ClientError::Refused(message)
        }
        vhost::Error::VhostUserProtocol(WireError::Disconnected | WireError::PartialMessage) => {
            ClientError::Closed(message)
        }
        vhost::Error::VhostUserProtocol(
            WireError::SocketBroken(error) | WireError::SocketError(error),
        ) if closed(&error) => ClientError::Closed(message),
        source => ClientError::Message { message, source },
    }
}
