//! Any messages in any order, with any bytes: nothing panics and nothing is left behind.

use super::super::connection::Connections;
use super::{
    ALL, BYTES, GUEST, PATIENCE, QUEUES, SIZE, USER, alone, connect, memory_file, ring_at, wait_for,
};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use workload::rng::Rng;

const SEEDS: u64 = 300;
const MESSAGES: u64 = 60;
const NEED_REPLY: u32 = 1 << 3;
/// All features of the device, with VHOST_USER_F_PROTOCOL_FEATURES and without the log.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 3 << 28 | 1 << 9 | 1 << 11;
const LOG_ALL: u64 = 1 << 26;

struct Random(Rng);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.word()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn rarely(&mut self) -> bool {
        self.below(12) == 0
    }

    /// Mostly this, and sometimes what breaks things.
    fn about(&mut self, right: u64) -> u64 {
        match self.below(30) {
            0 => 0,
            1 => u64::MAX - self.below(16),
            2 => right ^ 1 << self.below(64),
            3 => self.next(),
            4 => right.wrapping_add(self.below(16)),
            _ => right,
        }
    }
}

pub fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let words = [request, flags, body.len() as u32];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend_from_slice(body);
    bytes
}

fn words(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

fn halves(values: &[u64]) -> Vec<u8> {
    let halves = values.iter().map(|&value| value as u32);
    halves.flat_map(u32::to_ne_bytes).collect()
}

/// What a front end has to give.
struct Hands {
    memory: File,
    shrinks: File,
    event: EventFd,
    region: File,
    socket: UnixStream,
    other: File,
}

impl Hands {
    fn new() -> Hands {
        let shrinks = tempfile::tempfile_in("/dev/shm").unwrap();
        shrinks.set_len(BYTES).unwrap();
        Hands {
            memory: memory_file(BYTES),
            shrinks,
            event: EventFd::new(0).unwrap(),
            region: memory_file(1 << 20),
            socket: UnixStream::pair().unwrap().0,
            other: File::open("/dev/null").unwrap(),
        }
    }

    fn any(&self, random: &mut Random) -> RawFd {
        match random.below(6) {
            0 => self.memory.as_raw_fd(),
            1 => self.shrinks.as_raw_fd(),
            2 => self.event.as_raw_fd(),
            3 => self.region.as_raw_fd(),
            4 => self.socket.as_raw_fd(),
            _ => self.other.as_raw_fd(),
        }
    }

    fn memory(&self, random: &mut Random) -> RawFd {
        match random.below(3) {
            0 => self.shrinks.as_raw_fd(),
            _ => self.memory.as_raw_fd(),
        }
    }
}

/// A message that makes sense somewhere, and its descriptors.
fn sensible(random: &mut Random, hands: &Hands) -> (u32, Vec<u8>, Vec<RawFd>) {
    let queue = random.below(QUEUES.into());
    let queue = random.about(queue);
    let ring = ring_at((queue % 4) as u16, 0, None);
    let event = vec![hands.event.as_raw_fd()];
    let log = LOG_ALL * random.below(2);
    let region = [GUEST, BYTES, USER, 0].map(|right| random.about(right));
    let size = random.about(u64::from(QUEUES) | u64::from(SIZE) << 16) & 0xffff_ffff;
    match random.below(25) {
        0 => (1, vec![], vec![]),
        1 => (2, words(&[random.about(FEATURES | log)]), vec![]),
        2 => (3 + random.below(2) as u32, vec![], vec![]),
        3 | 4 => {
            let table = [&[1][..], &region[..]].concat();
            (5, words(&table), vec![hands.memory(random)])
        }
        5 => (
            6,
            words(&[random.about(4096), random.about(0)]),
            vec![hands.region.as_raw_fd()],
        ),
        6 => (7, vec![], event),
        7 | 8 => (8, halves(&[queue, random.about(SIZE.into())]), vec![]),
        9 | 10 => {
            let used = random.about(ring.used_ring_addr);
            let mut body = halves(&[queue, random.below(2)]);
            let available = ring.avail_ring_addr;
            body.extend(words(&[
                ring.desc_table_addr,
                used,
                available,
                random.below(1 << 21),
            ]));
            (9, body, vec![])
        }
        11 => (10, halves(&[queue, random.about(5)]), vec![]),
        12 => (11, halves(&[queue, 0]), vec![]),
        13..=15 => (12 + random.below(3) as u32, words(&[queue & 0xff]), event),
        16 => (15 + 2 * random.below(2) as u32, vec![], vec![]),
        17 => (16, words(&[random.about(ALL.bits())]), vec![]),
        18 | 19 => (18, halves(&[queue, random.about(1)]), vec![]),
        20 => {
            let mut body = halves(&[random.about(32), 1, 0]);
            body.push(random.about(1) as u8);
            (24 + random.below(2) as u32, body, vec![])
        }
        21 => (31, words(&[0, 0, size]), vec![]),
        22 => {
            let bytes = random.about(1 << 18);
            (
                32,
                words(&[bytes, random.about(0), size]),
                vec![hands.region.as_raw_fd()],
            )
        }
        23 => (21, vec![], vec![hands.socket.as_raw_fd()]),
        _ => {
            let body = words(&[&[0][..], &region[..]].concat());
            match random.below(4) {
                0 => (36, vec![], vec![]),
                1 => (38, body, vec![]),
                2 => (34, vec![], vec![]),
                _ => (37, body, vec![hands.memory(random)]),
            }
        }
    }
}

/// What a front end says that is in its right mind.
fn begin(random: &mut Random, hands: &Hands, stream: &UnixStream) {
    let send = |request, body: Vec<u8>, files: &[RawFd]| {
        let bytes = message(request, 1, &body);
        stream.send_with_fds(&[&bytes[..]], files).unwrap();
    };
    send(1, vec![], &[]);
    send(16, words(&[ALL.bits()]), &[]);
    send(2, words(&[FEATURES]), &[]);
    send(
        5,
        words(&[1, GUEST, BYTES, USER, 0]),
        &[hands.memory(random)],
    );
    for queue in 0..random.below(3) {
        let ring = ring_at(queue as u16, 0, None);
        let (used, available) = (ring.used_ring_addr, ring.avail_ring_addr);
        let mut body = halves(&[queue, 0]);
        body.extend(words(&[ring.desc_table_addr, used, available, 0]));
        send(8, halves(&[queue, SIZE.into()]), &[]);
        send(9, body, &[]);
        send(12, words(&[queue]), &[hands.event.as_raw_fd()]);
        send(18, halves(&[queue, 1]), &[]);
    }
    // Answered when all of it is done.
    send(1, vec![], &[]);
    let mut answers = [0; 40];
    let mut reader = stream;
    reader.read_exact(&mut answers).unwrap();
}

/// False when the other end is closed.
fn send(random: &mut Random, hands: &Hands, stream: &UnixStream) -> bool {
    let (mut request, mut body, mut files) = sensible(random, hands);
    if random.rarely() && random.rarely() {
        request = random.below(50) as u32;
    }
    if random.rarely() && random.rarely() {
        body = (0..random.below(200))
            .map(|_| random.next() as u8)
            .collect();
    }
    if random.rarely() && random.rarely() {
        files = (0..random.below(4)).map(|_| hands.any(random)).collect();
    }
    if random.rarely() && random.rarely() {
        hands.shrinks.set_len(random.below(2) * BYTES).unwrap();
    }
    let flags = 1 | if random.rarely() { 0 } else { NEED_REPLY };
    let mut bytes = message(request, flags, &body);
    if random.rarely() && random.rarely() && random.rarely() {
        let at = random.below(12) as usize;
        bytes[at] ^= random.next() as u8;
    }
    let sent = stream.send_with_fds(&[&bytes[..]], &files);
    // Answers, so that nobody waits for room.
    let mut answers = [0; 4096];
    stream.set_nonblocking(true).unwrap();
    let mut reader = stream;
    while matches!(reader.read(&mut answers), Ok(count) if count > 0) {}
    stream.set_nonblocking(false).unwrap();
    sent.is_ok()
}

/// Mappings and descriptors of what these tests make.
fn left_behind(event: u64) -> Vec<String> {
    let names = ["memfd:tenuto-", "/dev/shm/.tmp"];
    let ours = |line: &str| names.iter().any(|name| line.contains(name));
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut found: Vec<String> = maps
        .lines()
        .filter(|it| ours(it))
        .map(str::to_owned)
        .collect();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let name = entry.unwrap().file_name();
        let name = name.to_string_lossy();
        let link = fs::read_link(format!("/proc/self/fd/{name}")).unwrap_or_default();
        if ours(&link.to_string_lossy()) {
            found.push(format!("descriptor {name}: {}", link.display()));
        }
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{name}")).unwrap_or_default();
        if event_of(&info) == Some(event) {
            found.push(format!("descriptor {name}: the event"));
        }
    }
    found
}

/// The number of an eventfd.
fn event_of(info: &str) -> Option<u64> {
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("eventfd-id:"))?;
    line.trim().parse().ok()
}

#[test]
fn no_sequence_of_messages_panics_or_leaves_anything_behind() {
    let _guard = alone();
    let connections = Connections::new(2);
    let (mut ran, mut served) = (0, 0);
    for seed in 0..SEEDS {
        // A panic in the thread of a connection shows here as a wait that does not end.
        println!("seed {seed}");
        let mut random = Random(Rng::new(seed));
        let hands = Hands::new();
        let info = format!("/proc/self/fdinfo/{}", hands.event.as_raw_fd());
        let event = event_of(&fs::read_to_string(info).unwrap()).unwrap();
        let (fake, theirs) = connect(&connections, "disk");
        if !random.rarely() {
            begin(&mut random, &hands, &theirs);
        }
        for _ in 0..MESSAGES {
            if !send(&mut random, &hands, &theirs) {
                break;
            }
            served += 1;
        }
        drop(theirs);
        fake.wait_until(|told| told.ended.is_some());
        wait_for(|| connections.count("disk") == 0);
        ran += fake.told().started;
        drop(hands);
        // A descriptor on its way in a socket is closed by its receiver when that is closed.
        let begin = std::time::Instant::now();
        while !left_behind(event).is_empty() {
            assert!(
                begin.elapsed() < PATIENCE,
                "seed {seed}: {:?}",
                left_behind(event)
            );
        }
    }
    assert!(ran > SEEDS as usize / 4, "{ran} rings started only");
    assert!(served > SEEDS * 10, "{served} messages only");
    println!("{ran} rings started, {served} messages");
}
