//! The shard against real sockets and files, with an engine that only passes requests on.

use super::control::{Attach, Export, HostSnapshot, ListenerScope, Needs};
use super::{Decide, Parts};
use crate::backup::bitmap::GRAIN_BYTES;
use crate::backup::live;
use crate::buffer::{Arena, BufferPool, HostMemory, POOL_BYTES_DEFAULT};
use crate::files::Files;
use crate::lock::Patience;
use crate::origin::Format;
use crate::origin::file::{self, Access};
use crate::origin::san::Params;
use engine::chart::{Cursor, Page};
use engine::engine::OpenError;
use engine::event::{
    Action, Admission, Batch, Command, Device, Event, Io, Op, Purpose, Refusal, Tuning, VolumeSpec,
};
use engine::image::Image;
use engine::layout::{Holds, Part};
use engine::memory::{Area, Memory, Place, Slice};
use engine::origin::Map;
use engine::snapshot::{CacheState, Snapshot};
use engine::types::{
    DestageMode, IoId, PeerId, Policy, RequestId, Serial, Span, Tag, Time, Uuid, VolumeId,
};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use workload::rng::Rng;

const SIZE: u64 = 64 << 20;

/// Every request becomes one request to the origin. Writes to the volume "held" wait for ever, and
/// so does what comes from other hosts, until a command says what becomes of it.
#[derive(Default)]
pub(super) struct PassThrough {
    pub peers: Arc<Mutex<Peers>>,
    actions: VecDeque<Action>,
    running: BTreeMap<IoId, RequestId>,
    waiting: Vec<RequestId>,
    names: Vec<String>,
    next: u64,
}

/// What an engine has heard of other hosts.
#[derive(Default)]
pub(super) struct Peers {
    /// Not replied to; with their bytes.
    pub batches: VecDeque<(RequestId, VolumeId, Batch, Vec<u8>)>,
    pub replicated: Vec<(VolumeId, PeerId, u64)>,
    pub commands: Vec<Command>,
    /// Sent by the next command; its bytes lie at the start of the stage.
    pub to_send: Option<(VolumeId, PeerId, u64, Batch)>,
}

impl PassThrough {
    fn pass(&mut self, volume: VolumeId, request: RequestId, op: Op, range: (u64, u64), at: Area) {
        let (offset, bytes) = (range.0 * 512, range.1 * 512);
        self.next += 1;
        let id = IoId(self.next);
        self.running.insert(id, request);
        let place = Place::new(at, 0);
        let slices = matches!(op, Op::Read | Op::Write).then_some(Slice { place, bytes });
        self.actions.push_back(Action::Io(Io {
            id,
            device: Device::Origin(volume),
            op,
            offset,
            bytes,
            slices: slices.into_iter().collect(),
            purpose: Purpose::GuestWrite,
        }));
    }

    /// What a command does about other hosts: the first batch is durable, or is refused, or one is
    /// sent.
    fn order(&mut self, memory: &mut dyn Memory, command: &Command) {
        let peers = self.peers.clone();
        let mut peers = peers.lock().expect("whole");
        // What a batch that was sent has named is something else after the next event.
        let stage = Place::new(Area::Stage, 0);
        memory.zero(stage, 4096);
        peers.commands.push(command.clone());
        let first = match command {
            Command::Destage { .. } => peers.batches.pop_front().map(|it| (it.0, Ok(()))),
            Command::Reset { .. } => peers
                .batches
                .pop_front()
                .map(|it| (it.0, Err(Refusal::OutOfRange))),
            _ => None,
        };
        if let Some((request, result)) = first {
            self.reply(request, result);
        }
        if let Some((volume, peer, number, batch)) = peers.to_send.take() {
            memory.store(stage, &[7; 4096]);
            self.actions.push_back(Action::Send {
                volume,
                peer,
                number,
                batch,
            });
        }
    }

    fn reply(&mut self, request: RequestId, result: Result<(), Refusal>) {
        self.actions.push_back(Action::Reply { request, result });
    }
}

impl Decide for PassThrough {
    type Settled = ();

    fn place(&mut self, name: &str) -> VolumeId {
        self.names.push(name.to_owned());
        VolumeId(self.names.len() as u32 - 1)
    }

    fn attach(
        &mut self,
        _: Time,
        _: VolumeId,
        _: VolumeSpec,
        _: (),
        _: Option<Box<dyn Map>>,
    ) -> Result<(), OpenError> {
        Ok(())
    }

    fn attach_proved(
        &mut self,
        _: Time,
        _: VolumeId,
        _: (VolumeSpec, ()),
        _: &mut dyn Memory,
    ) -> Result<(), OpenError> {
        Ok(())
    }

    fn former(&self, _: VolumeId) -> Option<(Uuid, Serial)> {
        None
    }

    fn has_allocated(&self, _: VolumeId) -> bool {
        false
    }

    fn exchange(&mut self, _: Time, _: VolumeId, _: (Box<dyn Map>, Image), _: &mut dyn Memory) {}

    fn policy(&self, _: VolumeId) -> Option<Policy> {
        Some(Policy::Uncached)
    }

    fn apply(&mut self, _now: Time, event: Event, memory: &mut dyn Memory) {
        match event {
            Event::Read {
                volume,
                request,
                sector,
                sectors,
                buffer,
            } => {
                self.pass(
                    volume,
                    request,
                    Op::Read,
                    (sector, sectors),
                    Area::Buffer(buffer),
                );
            }
            Event::Write {
                volume, request, ..
            } if self.names[volume.0 as usize] == "held" => {
                let _ = volume;
                self.waiting.push(request);
            }
            Event::Write {
                volume,
                request,
                sector,
                sectors,
                buffer,
                ..
            } => {
                self.pass(
                    volume,
                    request,
                    Op::Write,
                    (sector, sectors),
                    Area::Buffer(buffer),
                );
            }
            Event::Flush { volume, request } => {
                self.pass(volume, request, Op::Sync, (0, 0), Area::Scratch);
            }
            Event::Discard {
                volume,
                request,
                sector,
                sectors,
                ..
            } => {
                let op = Op::Zero { allocate: false };
                self.pass(volume, request, op, (sector, sectors), Area::Scratch);
            }
            Event::WriteZeroes {
                volume,
                request,
                sector,
                sectors,
                allocate,
                ..
            } => {
                let op = Op::Zero { allocate };
                self.pass(volume, request, op, (sector, sectors), Area::Scratch);
            }
            // What it has of an origin makes holes.
            Event::Zeroed { .. } => {}
            Event::Disconnect { connection } => {
                let waiting = std::mem::take(&mut self.waiting);
                for request in waiting {
                    match request.connection == connection {
                        true => self.reply(request, Err(Refusal::Gone)),
                        false => self.waiting.push(request),
                    }
                }
            }
            Event::Done { io, result, .. } => {
                let request = self.running.remove(&io).expect("asked for once");
                self.reply(request, result.map_err(|_| Refusal::Io));
            }
            Event::Admin { request, command } => {
                self.order(memory, &command);
                self.reply(request, Ok(()));
            }
            // It has nothing left of any volume.
            Event::ReadLeft { request, .. } | Event::ReadCopy { request, .. } => {
                self.reply(request, Err(Refusal::Gone))
            }
            Event::Replicate {
                volume,
                request,
                batch,
            } => {
                let mut bytes = Vec::new();
                for part in &batch.parts {
                    let Some(place) = part.source else { continue };
                    let start = bytes.len();
                    bytes.resize(start + part.span.sectors as usize * 512, 0);
                    memory.load(place, &mut bytes[start..]);
                }
                let mut peers = self.peers.lock().expect("whole");
                peers.batches.push_back((request, volume, batch, bytes));
            }
            Event::Replicated {
                volume,
                peer,
                number,
                credit: _,
            } => {
                let mut peers = self.peers.lock().expect("whole");
                peers.replicated.push((volume, peer, number));
            }
            Event::Tick => {}
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn has_taken(&self, _: VolumeId, _: Tag) -> bool {
        false
    }

    fn layout(&self, _: VolumeId, span: Span, _: usize) -> Result<Vec<Part>, Refusal> {
        let holds = Holds::Origin;
        Ok(vec![Part { span, holds }])
    }

    fn chart(&self, _: VolumeId, _: Cursor) -> Result<Page, Refusal> {
        Ok(Page::default())
    }

    fn snapshot(&self, _: Time) -> Snapshot {
        Snapshot {
            volumes: Vec::new(),
            log_bytes: 0,
            dirty_bytes_max: 0,
            live_bytes: 0,
            copy_room: Default::default(),
            index_bytes: 0,
            segments: Default::default(),
            ram_blocks: 0,
            ram_blocks_used: 0,
            stage_slots: 0,
            stage_slots_busy: 0,
            overlay_slots: 0,
            overlay_slots_busy: 0,
            evacuated_bytes: 0,
            segments_reused: 0,
            log_writes: 0,
            log_write_ns: 0,
            cache_errors: 0,
            cache_state: CacheState::Good,
            checkpoints: 0,
            lines: engine::snapshot::Lines::default(),
            scrub: None,
        }
    }

    fn credit(&self, _volume: VolumeId) -> Option<engine::event::Credit> {
        None
    }

    fn take_samples(&mut self) -> engine::sample::Samples {
        Default::default()
    }

    fn copy_room(&self) -> engine::snapshot::CopyRoom {
        Default::default()
    }

    fn copy(&self, _volume: VolumeId) -> Option<engine::snapshot::CopySnapshot> {
        None
    }

    fn find(&self, _name: &str) -> Option<VolumeId> {
        None
    }
}

/// A running shard with one volume and one socket.
pub(super) struct House {
    pub handle: super::Handle<()>,
    pub thread: JoinHandle<()>,
    socket: PathBuf,
    pub volume: VolumeId,
    pub peers: Arc<Mutex<Peers>>,
    dir: tempfile::TempDir,
}

fn house(name: &str, san: Option<Params>) -> House {
    house_with(name, san, Vec::new())
}

pub(super) fn house_with(name: &str, san: Option<Params>, counts: Vec<PeerId>) -> House {
    let dir = tempfile::tempdir().expect("directory");
    let image = dir.path().join("image");
    std::fs::File::create(&image)
        .and_then(|file| file.set_len(SIZE))
        .expect("image");
    let arena = || Arena::anonymous(1 << 20).expect("mapped");
    let pool = BufferPool::new(POOL_BYTES_DEFAULT).expect("mapped");
    let engine = PassThrough::default();
    let peers = engine.peers.clone();
    let parts = Parts {
        engine,
        memory: HostMemory::new(arena(), arena(), arena(), pool),
        files: Files::without_cache(),
    };
    let (handle, thread) = super::start(parts).expect("starts");
    let volume = handle.place(name).expect("runs");
    let request = file::Request {
        path: image,
        access: Access::Write,
        format: Format::Raw,
        allow: Vec::new(),
        journal_place: None,
        ledger_place: None,
        quiet: std::time::Duration::ZERO,
        create: false,
        keeps_end: false,
        epoch: None,
    };
    let mut files = file::open(&request, &mut Patience::none()).expect("opens");
    files.san = san;
    let export = Export {
        volume,
        size_bytes: SIZE,
        read_only: false,
        shared: false,
        block_bytes: 512,
        description: String::new(),
    };
    let attach = Attach {
        id: volume,
        spec: spec(name),
        files,
        settled: (),
        map: None,
        exports: vec![(name.to_owned(), export)],
        limit: Default::default(),
        needs: Needs {
            peers: counts,
            ..Needs::default()
        },
        lives: Vec::new(),
        pooled: None,
    };
    handle.attach(attach).expect("joins");
    let socket = dir.path().join("nbd.sock");
    let listener = UnixListener::bind(&socket).expect("binds");
    handle
        .listen(listener.into(), ListenerScope::All)
        .expect("runs");
    House {
        handle,
        thread,
        socket,
        volume,
        peers,
        dir,
    }
}

fn spec(name: &str) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        origin: String::new(),
        new_uuid: Uuid::NIL,
        policy: Policy::Uncached,
        size_bytes: SIZE,
        read_only: false,
        base_layer: None,
        journal_possible: false,
        commit: false,
        storage: 0,
        group: Default::default(),
        tuning: Tuning {
            write_cache: true,
            destage_after_ms: None,
            destage: DestageMode::InPlace,
            dirty_limit_bytes: 0,
            flow: engine::flow::FlowLimits::default(),
            origin_queue_depth: 1,
            admission: Admission::Reuse,
            overlay_timeout_ms: 0,
            overlay_ram_bytes: 0,
            reset_on: engine::event::ResetOn::Command,
            origin_timeout_ms: None,
            share: Default::default(),
            group_members: 0,
        },
    }
}

impl House {
    fn snapshot(&self) -> HostSnapshot {
        self.handle.snapshot().expect("runs")
    }

    /// Waits until this is true of the host's counters.
    pub fn until(&self, what: &str, wanted: impl Fn(&HostSnapshot) -> bool) {
        let start = Instant::now();
        while !wanted(&self.snapshot()) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "not in time: {what}"
            );
            std::thread::yield_now();
        }
    }

    /// Stops, and checks that nothing was left behind.
    pub fn close(self) {
        self.until("all connections are gone", |all| all.host.connections == 0);
        let host = self.snapshot().host;
        assert_eq!((host.buffer_bytes_used, host.requests_in_flight), (0, 0));
        self.handle.stop().expect("parks");
        self.thread.join().expect("ends");
        assert!(self.handle.snapshot().is_err());
    }
}

/// The least that a client needs.
struct Client {
    socket: UnixStream,
    cookie: u64,
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;

impl Client {
    fn connect(house: &House, export: &str) -> Client {
        let mut socket = UnixStream::connect(&house.socket).expect("connects");
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("sets");
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting).expect("greets");
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1u32.to_be_bytes());
        hello.extend_from_slice(&(export.len() as u32).to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        socket.write_all(&hello).expect("sends");
        let mut size = [0; 10];
        socket.read_exact(&mut size).expect("attaches");
        assert_eq!(size[..8], SIZE.to_be_bytes());
        Client { socket, cookie: 0 }
    }

    fn send(&mut self, command: u16, offset: u64, length: u32, payload: &[u8]) -> u64 {
        self.cookie += 1;
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&0u16.to_be_bytes());
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(payload);
        self.socket.write_all(&bytes).expect("sends");
        self.cookie
    }

    /// Error and cookie of the next reply.
    fn head(&mut self) -> (u32, u64) {
        let mut head = [0; 16];
        self.socket.read_exact(&mut head).expect("replies");
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().expect("four"));
        (
            error,
            u64::from_be_bytes(head[8..].try_into().expect("eight")),
        )
    }

    fn call(&mut self, command: u16, offset: u64, length: u32, payload: &[u8]) {
        let cookie = self.send(command, offset, length, payload);
        assert_eq!(self.head(), (0, cookie));
    }

    fn write(&mut self, offset: u64, payload: &[u8]) {
        self.call(WRITE, offset, payload.len() as u32, payload);
    }

    fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        self.call(READ, offset, length, &[]);
        let mut data = vec![0; length as usize];
        self.socket.read_exact(&mut data).expect("data");
        data
    }
}

#[test]
fn requests_of_any_bytes_leave_what_a_plain_array_would_hold() {
    let house = house("disk", None);
    let mut client = Client::connect(&house, "disk");
    let (seed, span) = (0x5eed_0001u64, 300_032);
    println!("seed {seed:#x}");
    let mut dice = Rng::new(seed);
    let mut model = vec![0u8; span as usize];
    for round in 0..3000u64 {
        let offset = dice.below(span);
        let most = [3, 700, 9000, 100_000][dice.below(4) as usize];
        let length = (1 + dice.below(most)).min(span - offset);
        let range = offset as usize..(offset + length) as usize;
        match dice.below(10) {
            0 => {
                client.call(ZEROES, offset, length as u32, &[]);
                model[range].fill(0);
            }
            1 => {
                client.call(TRIM, offset, length as u32, &[]);
                let (from, to) = (offset.div_ceil(512) * 512, (offset + length) / 512 * 512);
                model[from as usize..(to as usize).max(from as usize)].fill(0);
            }
            2 => client.call(FLUSH, 0, 0, &[]),
            3..=6 => {
                let data: Vec<u8> = (0..length).map(|at| (at * 7 + round) as u8 | 1).collect();
                client.write(offset, &data);
                model[range].copy_from_slice(&data);
            }
            _ => assert!(
                client.read(offset, length as u32) == model[range],
                "round {round}"
            ),
        }
    }
    assert!(client.read(0, span as u32) == model);
    assert!(house.snapshot().host.unaligned > 1000);
    drop(client);
    house.close();
}

#[test]
fn parts_of_one_sector_written_by_many_clients_at_once_are_all_kept() {
    // Slow enough that reads of edges and writes of others really overlap.
    let san = Params {
        latency_ns: 200_000,
        ..Params::default()
    };
    let house = house("disk", Some(san));
    let (clients, rounds) = (8u64, 60);
    std::thread::scope(|scope| {
        for number in 0..clients {
            let house = &house;
            scope.spawn(move || {
                let mut client = Client::connect(house, "disk");
                for round in 0..rounds {
                    // Every client has its own bytes in sectors that all of them share; one
                    // writes whole sectors beside them.
                    let (offset, length) = match number {
                        0 => (1024, 512),
                        _ => (number * 150, 150),
                    };
                    client.write(offset, &vec![number as u8 + round; length]);
                }
            });
        }
    });
    let mut client = Client::connect(&house, "disk");
    let data = client.read(0, 2048);
    for number in 1..clients {
        let last = number as u8 + rounds - 1;
        for at in number * 150..(number + 1) * 150 {
            let (byte, zero) = (data[at as usize], rounds - 1);
            let shared = (1024..1536).contains(&at) && byte == zero;
            assert!(byte == last || shared, "byte {at} is {byte}, not {last}");
        }
    }
    drop(client);
    house.close();
}

#[test]
fn the_largest_request_fits_at_any_offset_and_a_slow_reader_gets_it_whole() {
    let house = house("disk", None);
    let mut client = Client::connect(&house, "disk");
    let length = 32u32 << 20;
    let data: Vec<u8> = (0..length).map(|at| (at / 1000) as u8).collect();
    client.write(13, &data);
    let cookies: Vec<u64> = (0..8).map(|_| client.send(READ, 13, length, &[])).collect();
    // Eight such answers are far beyond what one client may occupy; the shard must have stopped
    // reading requests, not have lost any.
    house.until("a reply waits", |all| {
        all.host.buffer_bytes_used >= 32 << 20
    });
    for _ in cookies {
        assert_eq!(client.head().0, 0);
        let mut back = vec![0; length as usize];
        client.socket.read_exact(&mut back).expect("data");
        assert!(back == data);
    }
    drop(client);
    house.close();
}

#[test]
fn a_client_that_announces_a_write_and_stops_disturbs_nobody() {
    let house = house("disk", None);
    let mut stuck: Vec<Client> = (0..6).map(|_| Client::connect(&house, "disk")).collect();
    for client in &mut stuck {
        client.send(WRITE, 0, 16 << 20, &[1; 100]);
    }
    let mut silent = UnixStream::connect(&house.socket).expect("connects");
    silent.write_all(&[0, 0]).expect("sends");
    let mut client = Client::connect(&house, "disk");
    client.write(4096, &[7; 4096]);
    assert_eq!(client.read(0, 8192)[4096..], [7; 4096]);
    assert_eq!(client.read(0, 4096), [0; 4096]);
    drop((stuck, silent, client));
    house.close();
}

#[test]
fn clients_that_wait_for_buffers_get_them_when_others_leave() {
    let house = house("disk", None);
    // Each occupies what one client may; together all there is. None of them reads.
    let mut hoarders: Vec<Client> = (0..5).map(|_| Client::connect(&house, "disk")).collect();
    for client in &mut hoarders {
        for _ in 0..2 {
            client.send(READ, 0, 32 << 20, &[]);
        }
    }
    house.until("the pool is spent", |all| {
        all.host.buffer_bytes_used == POOL_BYTES_DEFAULT
    });
    let mut client = Client::connect(&house, "disk");
    let cookie = client.send(WRITE, 0, 4096, &[5; 4096]);
    drop(hoarders);
    assert_eq!(client.head(), (0, cookie));
    drop(client);
    house.close();
}

#[test]
fn waiting_writes_of_a_client_that_dies_are_dropped_and_its_number_comes_back() {
    let house = house("held", None);
    let mut client = Client::connect(&house, "held");
    // More than one client may have unanswered, so that the shard does not read any more.
    for at in 0..300 {
        client.send(WRITE, at * 700, 700, &[1; 700]);
    }
    house.until("requests wait", |all| all.host.requests_in_flight >= 200);
    drop(client);
    house.until("it is gone", |all| all.host.connections == 0);
    assert_eq!(house.handle.clients(house.volume), Ok(0));
    house.close();
}

/// They may get their place in the order of writes after the cut at which the bitmap begins.
#[test]
fn a_bitmap_has_the_writes_that_are_under_way_as_it_comes() {
    let house = house("held", None);
    let mut client = Client::connect(&house, "held");
    client.send(WRITE, 3 * GRAIN_BYTES, 4096, &[1; 4096]);
    house.until("a write waits", |all| all.host.requests_in_flight == 1);
    let place = live::Place {
        stage_dir: house.dir.path().to_owned(),
        cache: Uuid::NIL,
        boot: Uuid::NIL,
    };
    let made = live::Live::create(&place, "held", Uuid([1; 16]), SIZE);
    let live = Arc::new(made.expect("a bitmap"));
    let tracked = house.handle.track(house.volume, vec![live.clone()]);
    tracked.expect("it runs");
    client.send(WRITE, 5 * GRAIN_BYTES, 4096, &[1; 4096]);
    house.until("both wait", |all| all.host.requests_in_flight == 2);
    let changed = live.bitmap();
    let changed: Vec<u64> = (0..8).filter(|grain| changed.is_changed(*grain)).collect();
    assert_eq!(changed, [3, 5]);
    drop(client);
    house.close();
}

#[test]
fn a_goodbye_lets_requests_end_first() {
    let san = Params {
        latency_ns: 20_000_000,
        ..Params::default()
    };
    let house = house("disk", Some(san));
    let mut client = Client::connect(&house, "disk");
    let cookie = client.send(WRITE, 0, 512, &[3; 512]);
    client.send(DISC, 0, 0, &[]);
    assert_eq!(client.head(), (0, cookie));
    assert_eq!(client.socket.read(&mut [0; 1]).expect("closes"), 0);
    house.close();
}

#[test]
fn ten_thousand_connections_opened_and_dropped_leave_nothing() {
    let house = house("disk", None);
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("lists").count();
    drop(Client::connect(&house, "disk"));
    house.until("the first is gone", |all| all.host.connections == 0);
    let before = descriptors();
    for round in 0..10_000 {
        let mut socket = UnixStream::connect(&house.socket).expect("connects");
        if round % 3 == 0 {
            socket
                .write_all(&[0, 0, 0, 3, b'I', b'H'][..round % 7])
                .expect("sends");
        }
    }
    house.until("all were seen", |all| {
        all.host.connections_accepted > 10_000
    });
    house.until("all are gone", |all| all.host.connections == 0);
    // Other tests run beside this one and open files of their own.
    assert!(descriptors() < before + 100);
    let mut client = Client::connect(&house, "disk");
    client.write(0, &[1; 512]);
    drop(client);
    house.close();
}

#[test]
fn an_idle_shard_sleeps() {
    let house = house("disk", None);
    let mut client = Client::connect(&house, "disk");
    (0..100).for_each(|at| client.write(at * 512, &[1; 512]));
    let before = house.snapshot().host.sleeps;
    // Not to wait for anything: this is the time that is measured.
    std::thread::sleep(Duration::from_millis(300));
    let after = house.snapshot().host.sleeps;
    assert!(after - before <= 3, "{} wake-ups", after - before);
    drop(client);
    house.close();
}

#[test]
fn a_detached_volume_lets_its_files_and_clients_go() {
    let house = house("disk", None);
    let mut client = Client::connect(&house, "disk");
    client.write(0, &[1; 512]);
    let detach = Command::Detach {
        volume: house.volume,
        discard_dirty: false,
    };
    house.handle.command(detach).expect("detaches");
    assert_eq!(client.socket.read(&mut [0; 1]).expect("closes"), 0);
    house.close();
}
