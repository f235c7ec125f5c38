//! What a front end says of its guest's memory and rings, in any order and with any numbers.
//!
//! Checks the promises to the data side: a ring starts with the cache mode known, inside memory and
//! a region that were given, once; what runs is stopped once; no region changes under a ring; at
//! the end nothing runs. Deliberately absent: the bytes of messages, which a crate reads; sequences
//! of them go over a socket in the product's own tests.

use crate::source::Source;
use host::frontend::vhost_user::guest_memory::{GuestMemory, Place};
use host::frontend::vhost_user::handler::{Description, Handler, Refusal};
use host::frontend::vhost_user::queue::Halves;
use host::frontend::vhost_user::region::Region;
use host::frontend::vhost_user::{DataError, DataSide, RingStart};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use vring::Queue;
use vring::block::Disk;
use vring::config::Hints;
use vring::inflight::Layout;
use vring::memory::{Address, Memory};

const QUEUES: u16 = 3;
const MEMORY_BYTES: u64 = 1 << 16;
const MESSAGES_MAX: usize = 64;

/// What a front end can send, made once.
struct Hands {
    memory: File,
    event: File,
}

fn hands() -> &'static Hands {
    static HANDS: OnceLock<Hands> = OnceLock::new();
    HANDS.get_or_init(|| {
        let memory = host::sys::memory_file(c"tenuto-fuzz", MEMORY_BYTES);
        let event = EventFd::new(0).expect("an event");
        // Through a socket, because this is how one becomes a file without unsafe code.
        let (from, to) = UnixStream::pair().expect("a socket pair");
        from.send_with_fd(&[0u8][..], std::os::fd::AsRawFd::as_raw_fd(&event))
            .expect("sent");
        let (_, event) = to.recv_with_fd(&mut [0]).expect("received");
        Hands {
            memory: memory.expect("memory"),
            event: event.expect("a descriptor"),
        }
    })
}

#[derive(Default)]
struct Data {
    memory: Option<Arc<GuestMemory>>,
    region: Option<Arc<Region>>,
    running: BTreeSet<u16>,
    cache_known: bool,
    started: usize,
    /// Refuses every so many starts.
    refuses: usize,
}

impl DataSide for Data {
    fn memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), DataError> {
        memory.mark(Address(0), MEMORY_BYTES);
        self.memory = Some(memory);
        Ok(())
    }

    fn region(&mut self, region: Arc<Region>) -> Result<(), DataError> {
        assert!(self.running.is_empty(), "no region changes under a ring");
        self.region = Some(region);
        Ok(())
    }

    fn start(&mut self, ring: RingStart) -> Result<(), DataError> {
        let memory = self.memory.as_ref().expect("memory was given");
        let region = self.region.as_ref().expect("a region was given");
        assert!(self.cache_known);
        assert!(ring.setup.size <= region.layout().size);
        assert!(ring.queue.0 < region.layout().queues);
        let setup = ring.setup;
        let starts = [setup.descriptors, setup.available, setup.used];
        for (at, bytes) in starts.into_iter().zip(setup.bytes()) {
            memory.check(at, bytes).expect("a ring is in the memory");
        }
        self.started += 1;
        if self.refuses > 0 && self.started.is_multiple_of(self.refuses) {
            return Err(DataError::Refused("not now".into()));
        }
        assert!(self.running.insert(ring.queue.0), "started once");
        Ok(())
    }

    fn signal(
        &mut self,
        queue: Queue,
        _: Option<Arc<OwnedFd>>,
        _: Option<Arc<OwnedFd>>,
    ) -> Result<(), DataError> {
        assert!(self.running.contains(&queue.0));
        Ok(())
    }

    fn stop(&mut self, queue: Queue) -> Result<u16, DataError> {
        assert!(self.running.remove(&queue.0), "stopped once");
        Ok(queue.0)
    }

    fn write_cache(&mut self, _: bool) -> Result<(), DataError> {
        self.cache_known = true;
        Ok(())
    }

    fn end(&mut self, _: bool) {
        assert!(self.running.is_empty(), "nothing runs at the end");
    }
}

fn description() -> Description {
    Description {
        disk: Disk {
            capacity_sectors: 64,
            block_bytes: 512,
            read_only: false,
            flush: true,
            discard: None,
            write_zeroes: None,
            data_bytes_max: 1 << 16,
            segments_max: 8,
            id: [0; 20],
        },
        hints: Hints {
            physical_block_bytes: 4096,
            optimal_bytes: 0,
            queues: QUEUES,
            writeback: true,
        },
    }
}

/// Mostly what makes sense.
fn about(source: &mut Source, right: u64) -> u64 {
    match source.byte() {
        0..=9 => source.number(),
        _ => right,
    }
}

fn place(source: &mut Source) -> Place {
    let at = u64::from(source.byte() & 3) * 4096;
    Place {
        guest: about(source, at),
        bytes: about(source, MEMORY_BYTES),
        user: about(source, 0x10_0000 + at),
        offset: about(source, 0),
    }
}

fn layout(source: &mut Source) -> Layout {
    Layout {
        queues: about(source, QUEUES.into()) as u16,
        size: about(source, 16) as u16,
    }
}

fn message(source: &mut Source, handler: &mut Handler<Data>) -> Result<(), Refusal> {
    let Hands { memory, event } = hands();
    let queue = u32::from(source.byte() % QUEUES as u8);
    let queue = about(source, queue.into()) as u32;
    let signal = match source.byte() {
        0..=7 => None,
        8..=15 => memory.try_clone().ok(),
        _ => event.try_clone().ok(),
    };
    match source.byte() % 20 {
        0 => {
            let agreed = handler.read_features();
            let without = u64::from(source.u32()) & (1 << 26 | 1 << 29 | 1 << 30);
            let features = about(source, agreed & !without);
            handler.set_features(features)
        }
        1 => handler.set_protocol_features(about(source, 0xb22b)),
        2 => handler.set_memory(&[(place(source), memory.try_clone().expect("a clone"))]),
        3 => handler.add_memory(place(source), memory),
        4 => handler.remove_memory(place(source)),
        5 | 6 => handler.set_size(queue, about(source, 16) as u32),
        7 | 8 => {
            let at = 0x10_0000 + u64::from(source.byte() & 7) * 0x800;
            let halves = Halves {
                descriptors: about(source, at),
                available: about(source, at + 0x200),
                used: about(source, at + 0x400),
            };
            let log = source.flag().then(|| source.number());
            handler.set_halves(queue, halves, log)
        }
        9 => handler.set_base(queue, about(source, 3) as u32),
        10 => handler.base(queue).map(|_| ()),
        11 | 12 => handler.set_kick(queue, signal),
        13 => handler.set_call(queue, signal),
        14 | 15 => handler.enable(queue, source.byte() > 40),
        16 => handler.make_region(layout(source)).map(|_| ()),
        17 => {
            let (layout, offset) = (layout(source), about(source, 0));
            handler.set_region(layout, memory, offset, about(source, MEMORY_BYTES))
        }
        18 => {
            let offset = about(source, 0);
            handler.set_log(memory, offset, about(source, 4096))
        }
        _ => match source.byte() {
            0..=39 => handler.reset(),
            40..=79 => handler.disown(),
            80..=99 => handler.set_channel(signal.into_iter().collect()),
            _ => {
                let mode = about(source, 1) as u8;
                handler.write_config(about(source, 32) as u32, &[mode])
            }
        },
    }
}

pub fn messages(input: &[u8]) -> bool {
    let mut source = Source::new(input);
    let data = Data {
        refuses: usize::from(source.byte() & 15),
        ..Data::default()
    };
    let mut handler = Handler::new(description(), data);
    for _ in 0..MESSAGES_MAX {
        if source.is_empty() || handler.has_failed() {
            break;
        }
        let _ = message(&mut source, &mut handler);
    }
    handler.end();
    handler.data().started > 0
}
