//! Reads between hosts: clean blocks that this host asks of those that had its volumes before, and
//! is asked for of volumes that went; and what owners ask of their copies.
//!
//! ```text
//! engine: Device::Former ─▶ Read ─▶ other host ─▶ Blocks ─▶ the end of the request
//!                 └── no way · too many · late ───────────▶ away: the image has it as well
//! other host: Read ─▶ (a buffer) ─▶ ReadLeft ─▶ reply ─▶ Blocks
//! engine: Device::Peer ─▶ Recall ─▶ host of the copy ─▶ (a buffer) ─▶ ReadCopy ─▶ reply ─▶ Blocks
//! ```
//! Always true: a request of the engine ends once, with all of its bytes or with none; a block
//! counts only with the checksum that it was sent with; what is late is not waited for, because the
//! image has the same, or the engine asks again; a copy says that it has not what it is asked for
//! only if it has looked; a host that was late a few times in a row, or has sent what it did not
//! mean, is asked no more. So many reads are under way at most, each way. Deliberately absent:
//! which blocks may be asked for (the engine), and connections (`cluster::data`).

use super::timer::Key;
use crate::buffer::HostMemory;
use crate::cluster::data::{Outlet, READS_MAX};
use engine::event::{Device, Event, Io, IoError, Stat};
use engine::format::checksum;
use engine::memory::{Memory, Slice};
use engine::types::{
    BLOCK_BYTES, BufferId, ConnectionId, IoId, RequestId, SECTOR_BYTES, Serial, Time, Uuid,
    VolumeId,
};
use node::frame::{FEATURE_READS, FEATURE_RECALLS, VERSION_MAX};
use node::reads::{Blocks, Question, Read, Recall};
use std::collections::BTreeMap;
use std::sync::Arc;

/// No client has this id, nor have commands or copies.
const READS: ConnectionId = ConnectionId(u32::MAX - 2);
/// After so long the image is read instead.
const PATIENCE_MS: u64 = 300;
/// A copy has what is nowhere else: the engine asks again then.
const COPY_PATIENCE_MS: u64 = 3_000;
const LATE_MAX: u32 = 3;
/// Reads of other hosts under way. What comes beyond is answered with nothing.
const SERVING_MAX: usize = 64;

/// The host that a volume came from.
pub struct Former {
    pub volume: VolumeId,
    pub host: Uuid,
    pub to: Arc<dyn Outlet>,
}

struct Known {
    host: Uuid,
    to: Arc<dyn Outlet>,
    /// Reads in a row that it did not answer in time.
    late: u32,
}

/// The copy that is asked for what it has.
pub(super) struct Holder {
    pub host: Uuid,
    pub copy: Uuid,
    pub session: Uuid,
    pub to: Arc<dyn Outlet>,
}

/// A request of the engine on its way.
struct Asked {
    volume: VolumeId,
    host: Uuid,
    io: Io,
    alarm: Key,
}

/// A read of another host that the engine has.
struct Serving {
    number: u64,
    buffer: BufferId,
    back: Arc<dyn Outlet>,
}

#[derive(Default)]
pub(super) struct Formers {
    known: BTreeMap<VolumeId, Known>,
    asked: BTreeMap<u64, Asked>,
    numbers: u64,
    serving: BTreeMap<u32, Serving>,
    requests: u32,
}

/// Nothing is there of what was asked for.
pub(super) fn refuse(read: &Question, back: &dyn Outlet) {
    let number = read.number();
    let sums = Vec::new();
    back.send(Blocks { number, sums }.encode(VERSION_MAX));
}

/// What the engine hears of a request: all of it is there, or is not, or cannot be asked for now.
pub(super) fn ended(
    io: &Io,
    result: Result<(), IoError>,
) -> (IoId, (Result<(), IoError>, Option<Stat>)) {
    (io.id, (result, None))
}

impl Formers {
    pub fn owns(request: RequestId) -> bool {
        request.connection == READS
    }

    pub fn open(&mut self, former: Former) {
        let Former { volume, host, to } = former;
        let late = 0;
        self.known.insert(volume, Known { host, to, late });
    }

    pub fn forget(&mut self, volume: VolumeId) {
        self.known.remove(&volume);
    }

    /// Sends a request of the engine, which knows what the other host has to have known. Gives it
    /// back where that is not to be. `alarm` sets one for its number.
    pub fn ask(
        &mut self,
        io: Io,
        (volume, about): (VolumeId, Option<(Uuid, Serial)>),
        now: Time,
        mut alarm: impl FnMut(Time, u64) -> Key,
    ) -> Option<Io> {
        let known = self.known.get(&volume);
        let known = known.filter(|it| it.to.takes(FEATURE_READS) && self.asked.len() < READS_MAX);
        let (Some(known), Some((uuid, since))) = (known, about) else {
            return Some(io);
        };
        self.numbers += 1;
        let read = Read {
            number: self.numbers,
            volume: uuid,
            since,
            first_block: io.offset / BLOCK_BYTES,
            blocks: (io.bytes / BLOCK_BYTES) as u32,
        };
        if !known.to.send(read.encode(VERSION_MAX)) {
            self.forget(volume);
            return Some(io);
        }
        let alarm = alarm(now.plus_millis(PATIENCE_MS), read.number);
        let host = known.host;
        let asked = Asked {
            volume,
            host,
            io,
            alarm,
        };
        self.asked.insert(read.number, asked);
        None
    }

    /// The same of what a copy has.
    pub fn recall(
        &mut self,
        io: Io,
        (volume, holder): (VolumeId, Option<Holder>),
        now: Time,
        mut alarm: impl FnMut(Time, u64) -> Key,
    ) -> Option<Io> {
        let holder = holder.filter(|it| it.to.takes(FEATURE_RECALLS));
        let free = self.asked.len() < 2 * READS_MAX;
        let Some(Holder {
            host,
            copy,
            session,
            to,
        }) = holder.filter(|_| free)
        else {
            return Some(io);
        };
        self.numbers += 1;
        let number = self.numbers;
        let recall = Recall {
            number,
            copy,
            session,
            sector: io.offset / SECTOR_BYTES,
            sectors: (io.bytes / SECTOR_BYTES) as u32,
        };
        if !to.send(recall.encode(VERSION_MAX)) {
            return Some(io);
        }
        let alarm = alarm(now.plus_millis(COPY_PATIENCE_MS), number);
        let asked = Asked {
            volume,
            host,
            io,
            alarm,
        };
        self.asked.insert(number, asked);
        None
    }

    /// A host has answered: the request, whether its bytes are there, and its alarm.
    pub fn answered(
        &mut self,
        memory: &mut HostMemory,
        (host, blocks, payload): (Uuid, Blocks, Vec<u8>),
    ) -> Option<(Io, Result<(), IoError>, Key)> {
        let asked = self.asked.get(&blocks.number)?;
        if asked.host != host {
            return None;
        }
        let Asked {
            volume, io, alarm, ..
        } = self.asked.remove(&blocks.number)?;
        let of_copy = matches!(io.device, Device::Peer(..));
        if !of_copy && let Some(known) = self.known.get_mut(&volume) {
            known.late = 0;
        }
        let there = !blocks.sums.is_empty();
        let whole = io.bytes.next_multiple_of(BLOCK_BYTES);
        let meant = payload.len() as u64 == whole && is_meant(&blocks, &payload);
        if there && !meant {
            tracing::warn!("host {host} sent blocks that are not what it says");
            if !of_copy {
                self.forget(volume);
            }
        }
        if !(there && meant) {
            return Some((io, Err(IoError::Damaged), alarm));
        }
        scatter(memory, &io.slices, &payload[..io.bytes as usize]);
        Some((io, Ok(()), alarm))
    }

    /// A host did not answer in time.
    pub fn is_late(&mut self, number: u64) -> Option<Io> {
        let Asked { volume, io, .. } = self.asked.remove(&number)?;
        let of_copy = matches!(io.device, Device::Peer(..));
        let known = self.known.get_mut(&volume).filter(|_| !of_copy);
        if let Some(known) = known {
            known.late += 1;
            if known.late >= LATE_MAX {
                tracing::info!("host {} is too slow to be read from", known.host);
                self.forget(volume);
            }
        }
        Some(io)
    }

    /// Another host asks: what the engine is to be told. `kept`: the volume of the copy, if that
    /// host may ask for what it has.
    pub fn serve(
        &mut self,
        memory: &mut HostMemory,
        (question, kept): (Question, Option<VolumeId>),
        back: Arc<dyn Outlet>,
    ) -> Option<Event> {
        let may = kept.is_some() || matches!(question, Question::Left(_));
        let free = may && self.serving.len() < SERVING_MAX;
        let bytes = question.payload_bytes();
        let buffer = free.then(|| memory.buffers.allocate(bytes)).flatten();
        let Some(buffer) = buffer else {
            if let Question::Left(_) = question {
                refuse(&question, &*back);
            }
            // An owner asks its copy again: to hear that it has nothing would say too much.
            return None;
        };
        while self.serving.contains_key(&self.requests) {
            self.requests = self.requests.wrapping_add(1);
        }
        let request = RequestId {
            connection: READS,
            number: self.requests,
        };
        let serving = Serving {
            number: question.number(),
            buffer,
            back,
        };
        self.serving.insert(self.requests, serving);
        self.requests = self.requests.wrapping_add(1);
        Some(match question {
            Question::Left(read) => Event::ReadLeft {
                request,
                volume: read.volume,
                since: read.since,
                first_block: read.first_block,
                blocks: u64::from(read.blocks),
                buffer,
            },
            Question::Copy(recall) => {
                memory.buffers.bytes(buffer).fill(0);
                Event::ReadCopy {
                    request,
                    volume: kept.expect("it may be asked"),
                    sector: recall.sector,
                    sectors: u64::from(recall.sectors),
                    buffer,
                }
            }
        })
    }

    /// The engine has replied.
    pub fn served(&mut self, memory: &mut HostMemory, request: RequestId, ok: bool) {
        let serving = self.serving.remove(&request.number);
        let Serving {
            number,
            buffer,
            back,
        } = serving.expect("a read is replied to once");
        let bytes = match ok {
            true => &*memory.buffers.bytes(buffer),
            false => &[],
        };
        let blocks = bytes.chunks(BLOCK_BYTES as usize);
        let sums = blocks.map(|block| checksum(&[block])).collect();
        let mut frame = Blocks { number, sums }.encode(VERSION_MAX);
        frame.extend_from_slice(bytes);
        back.send(frame);
        memory.buffers.free(buffer);
    }
}

/// Each block has its checksum.
fn is_meant(blocks: &Blocks, payload: &[u8]) -> bool {
    let parts = payload.chunks(BLOCK_BYTES as usize);
    parts.len() == blocks.sums.len()
        && parts
            .zip(&blocks.sums)
            .all(|(part, sum)| checksum(&[part]) == *sum)
}

fn scatter(memory: &mut HostMemory, slices: &[Slice], mut bytes: &[u8]) {
    for slice in slices {
        let (part, rest) = bytes.split_at(slice.bytes as usize);
        memory.store(slice.place, part);
        bytes = rest;
    }
    assert!(bytes.is_empty(), "the slices hold all of it");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Arena, BufferPool, POOL_BYTES_DEFAULT};
    use crate::shard::timer::Timers;
    use engine::event::{Device, Op, Purpose};
    use engine::memory::{Area, Place};
    use node::frame::{HEADER_BYTES, Header};
    use std::sync::Mutex;

    const VOLUME: VolumeId = VolumeId(3);
    const HOST: Uuid = Uuid([9; 16]);

    #[derive(Default)]
    struct Way {
        frames: Mutex<Vec<Vec<u8>>>,
        ended: Mutex<bool>,
        /// The other end is not known to take reads.
        unknown: Mutex<bool>,
    }

    impl Outlet for Way {
        fn send(&self, frame: Vec<u8>) -> bool {
            let ended = *self.ended.lock().expect("whole");
            if !ended {
                self.frames.lock().expect("whole").push(frame);
            }
            !ended
        }

        fn takes(&self, _feature: u64) -> bool {
            !*self.unknown.lock().expect("whole")
        }
    }

    impl Way {
        /// The last frame, its header and what follows.
        fn last(&self) -> (Header, Vec<u8>) {
            let frame = self
                .frames
                .lock()
                .expect("whole")
                .pop()
                .expect("it was sent");
            let head = frame.first_chunk().expect("a header");
            let head = Header::parse(head, VERSION_MAX).expect("our own");
            (head, frame[HEADER_BYTES..].to_vec())
        }

        fn read(&self) -> Read {
            let (head, body) = self.last();
            Read::parse(&head, &body).expect("our own")
        }
    }

    fn memory() -> HostMemory {
        let arena = |bytes: u64| Arena::anonymous(bytes).expect("there is memory");
        let buffers = BufferPool::new(POOL_BYTES_DEFAULT).expect("there is memory");
        HostMemory::new(arena(4096), arena(16 << 12), arena(4096), buffers)
    }

    /// Two blocks of the disk from the third on, into the second and the fourth of the tier.
    fn io(number: u64) -> Io {
        let slice = |block: u64| Slice {
            place: Place::new(Area::Ram, block * BLOCK_BYTES),
            bytes: BLOCK_BYTES,
        };
        Io {
            id: IoId(number),
            purpose: Purpose::GuestRead,
            device: Device::Former(VOLUME),
            op: Op::Read,
            offset: 3 * BLOCK_BYTES,
            bytes: 2 * BLOCK_BYTES,
            slices: vec![slice(1), slice(3)],
        }
    }

    struct Host {
        formers: Formers,
        way: Arc<Way>,
        timers: Timers<u64>,
    }

    impl Host {
        fn new() -> Host {
            let (mut formers, way) = (Formers::default(), Arc::new(Way::default()));
            let (volume, host, to) = (VOLUME, HOST, way.clone());
            formers.open(Former { volume, host, to });
            let timers = Timers::default();
            Host {
                formers,
                way,
                timers,
            }
        }

        fn ask(&mut self, number: u64) -> Option<Io> {
            let about = (VOLUME, Some((Uuid([7; 16]), Serial(40))));
            let timers = &mut self.timers;
            let alarm = |at, number| timers.set(at, number);
            self.formers.ask(io(number), about, Time(5), alarm)
        }
    }

    fn blocks(number: u64, bytes: &[u8]) -> Blocks {
        let parts = bytes.chunks(BLOCK_BYTES as usize);
        let sums = parts.map(|part| checksum(&[part])).collect();
        Blocks { number, sums }
    }

    #[test]
    fn what_another_host_has_goes_where_the_engine_wants_it() {
        let (mut host, mut memory) = (Host::new(), memory());
        assert_eq!(host.ask(1), None);
        let read = host.way.read();
        assert_eq!((read.volume, read.since), (Uuid([7; 16]), Serial(40)));
        assert_eq!((read.first_block, read.blocks), (3, 2));
        let bytes = [[0xa1; 4096], [0xa2; 4096]].concat();
        let answer = || (HOST, blocks(read.number, &bytes), bytes.clone());
        let other = (Uuid([8; 16]), blocks(read.number, &bytes), bytes.clone());
        assert_eq!(host.formers.answered(&mut memory, other), None, "not asked");
        let (io, good, alarm) = host.formers.answered(&mut memory, answer()).expect("asked");
        assert!(good.is_ok() && io.id == IoId(1));
        host.timers.cancel(alarm);
        assert_eq!(host.timers.next(), None);
        let mut found = [0; 2];
        memory.load(Place::new(Area::Ram, 4096), &mut found[..1]);
        memory.load(Place::new(Area::Ram, 4 * 4096 - 1), &mut found[1..]);
        assert_eq!(found, [0xa1, 0xa2]);
        assert_eq!(host.formers.answered(&mut memory, answer()), None, "once");
    }

    #[test]
    fn what_is_not_there_or_not_meant_ends_with_nothing() {
        let (mut host, mut memory) = (Host::new(), memory());
        assert_eq!(host.ask(1), None);
        let nothing = (HOST, blocks(host.way.read().number, &[]), Vec::new());
        let ended = host.formers.answered(&mut memory, nothing);
        assert!(matches!(ended, Some((_, Err(IoError::Damaged), _))));
        assert_eq!(host.ask(2), None, "it is asked again");
        let mut bytes = vec![5; 8192];
        let said = blocks(host.way.read().number, &bytes);
        bytes[8191] ^= 1;
        let ended = host.formers.answered(&mut memory, (HOST, said, bytes));
        assert!(matches!(ended, Some((_, Err(IoError::Damaged), _))));
        assert_eq!(host.ask(3), Some(io(3)), "it is asked no more");
    }

    #[test]
    fn a_host_that_is_late_or_gone_is_asked_no_more() {
        let mut host = Host::new();
        for number in 1..=u64::from(LATE_MAX) {
            assert_eq!(host.ask(number), None);
            let asked = host.way.read().number;
            let at = host.timers.next().expect("an alarm");
            assert_eq!(at, Time(5).plus_millis(PATIENCE_MS));
            assert_eq!(host.timers.ring(at), Some(asked));
            assert_eq!(host.formers.is_late(asked), Some(io(number)));
            assert_eq!(host.formers.is_late(asked), None);
        }
        assert_eq!(host.ask(9), Some(io(9)));
        let mut host = Host::new();
        *host.way.ended.lock().expect("whole") = true;
        assert_eq!(host.ask(1), Some(io(1)));
        let mut host = Host::new();
        for number in 0..READS_MAX as u64 {
            assert_eq!(host.ask(number), None);
        }
        assert_eq!(host.ask(99), Some(io(99)), "enough is on its way");
        host.formers.forget(VOLUME);
        assert_eq!(host.ask(99), Some(io(99)));
        let mut host = Host::new();
        *host.way.unknown.lock().expect("whole") = true;
        assert_eq!(host.ask(1), Some(io(1)), "it may be of another version");
        *host.way.unknown.lock().expect("whole") = false;
        assert_eq!(host.ask(2), None);
    }

    #[test]
    fn another_host_gets_all_that_it_asks_for_or_nothing() {
        let (mut formers, mut memory) = (Formers::default(), memory());
        let way = Arc::new(Way::default());
        let read = |number: u64| Read {
            number,
            volume: Uuid([7; 16]),
            since: Serial(40),
            first_block: 3,
            blocks: 2,
        };
        let mut serve = |memory: &mut HostMemory, number| {
            let asked = (Question::Left(read(number)), None);
            let event = formers.serve(memory, asked, way.clone());
            (event, formers.serving.len())
        };
        let mut events = Vec::new();
        for number in 0..SERVING_MAX as u64 {
            events.extend(serve(&mut memory, number).0);
        }
        assert_eq!(events.len(), SERVING_MAX);
        assert!(matches!(serve(&mut memory, 99), (None, SERVING_MAX)));
        let (head, body) = way.last();
        assert_eq!(Blocks::parse(&head, &body), Ok(blocks(99, &[])));
        let ends = [true, false];
        for (number, (event, ok)) in events.into_iter().zip(ends).enumerate() {
            let Event::ReadLeft {
                request, buffer, ..
            } = event
            else {
                panic!("it is a read");
            };
            assert!(Formers::owns(request));
            memory.buffers.bytes(buffer).fill(0x5a);
            formers.served(&mut memory, request, ok);
            let (head, rest) = way.last();
            let (body, payload) = rest.split_at(head.body_bytes);
            let bytes = if ok { vec![0x5a; 8192] } else { Vec::new() };
            let said = blocks(number as u64, &bytes);
            assert_eq!(Blocks::parse(&head, body), Ok(said));
            assert!(payload == bytes);
        }
    }
}
