//! Guests that break the rules of their rings, through the real daemon.
//!
//! A front end with memory of its own shows seeded garbage to one volume, case after case: chains
//! that are none, requests that are wrong, memory that changes, goes or shrinks meanwhile, events
//! that never end or are never taken. Beside it a front end of another volume and a client over NBD
//! work on and check every byte. Each case must come to its end, the fault must be told to whoever
//! made it, and afterwards the volume must serve a front end that keeps the rules.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::front_end::*;
use crate::common::{Daemon, Rig, SetWhenDropped, count, seed, wait_until};
use workload::rng::Rng;

const BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// What guests may leave behind in the daemon's heap: allocators keep some of what they had. Of
/// 15,000 guests 280 bytes each.
const LEFT_BEHIND_KIB_MAX: u64 = 4 << 10;

const SIZE: u16 = 64;
/// The rings are in the first page, what requests name in the others.
const TABLES: u64 = 0x4000;
const HEADERS: u64 = 0x8000;
const STATUS: u64 = 0xc000;
const DATA: u64 = 0x1_0000;
const MEMORY: u64 = 1 << 20;
/// A second file of memory, behind a hole.
const FAR: u64 = 1 << 30;

/// A daemon with a volume that is attacked and two that are not.
struct Arena {
    rig: Rig,
    daemon: Daemon,
}

impl Arena {
    fn new() -> Arena {
        let mut rig = Rig::new();
        for name in ["disk", "innocent"] {
            let image = rig.image(&format!("{name}.img"), BYTES);
            let image = image.display();
            rig.section(&format!(
                "[[volume]]\nname = \"{name}\"\norigin = \"{image}\"\nformat = \"raw\"\n\
                 policy = \"write-back\"\nexport = [\"vhost-user\"]\n"
            ));
        }
        let image = rig.image("neighbour.img", BYTES);
        rig.volume("neighbour", &image, "write-back", "");
        let daemon = rig.serve();
        Arena { rig, daemon }
    }

    fn socket(&self, volume: &str) -> PathBuf {
        self.rig.run_dir().join(format!("{volume}.vhost.sock"))
    }

    fn attack(&self) -> Attack {
        Attack::new(&self.socket("disk"), SIZE)
    }

    /// Once all clients are gone, no request holds a buffer.
    fn no_buffer_is_lost(&self) {
        wait_until("buffers are given back", PATIENCE, || {
            self.rig.metric("buffer_bytes_used") == 0
        });
    }

    /// The attacked volume serves whoever keeps the rules.
    fn is_served(&self, random: &mut Rng) {
        let mut client = Polite::connect(&self.socket("disk")).expect("the volume is served");
        let mut bytes = vec![0; 8192];
        random.fill(&mut bytes);
        let at = random.below(BYTES / 8192) * 8192;
        client.write(at, &bytes);
        client.flush();
        assert_eq!(client.read(at, 8192), bytes, "what was written at {at}");
        client.leave();
    }
}

/// Works on with every byte checked until the flag is set; how many rounds it made.
fn work_in_peace(done: &AtomicBool, rounds: &AtomicU64, mut round: impl FnMut(u64, &[u8])) {
    let mut random = Rng::new(5);
    while !done.load(Ordering::SeqCst) {
        let mut bytes = vec![0; 512 * (1 + random.below(16) as usize)];
        random.fill(&mut bytes);
        let at = random.below(BYTES / 512 - 16) * 512;
        round(at, &bytes);
        rounds.fetch_add(1, Ordering::SeqCst);
    }
}

/// One hostile guest with one started ring.
struct Attack {
    front: FrontEnd,
    ram: Ram,
    ring: Ring,
    /// Descriptors that were written, and requests that were made available.
    descriptors: u16,
    requests: u16,
}

impl Attack {
    fn new(socket: &std::path::Path, size: u16) -> Attack {
        let front = FrontEnd::connect(socket).expect("connect");
        let ram = Ram::new(MEMORY);
        let ring = Ring::new(0, size, 0);
        assert!(front.share(&[(&ram, 0)]).expect("share memory"));
        assert!(front.start(&ring).expect("start the ring"));
        Attack {
            front,
            ram,
            ring,
            descriptors: 0,
            requests: 0,
        }
    }

    /// Descriptors as they are, their `next` counted from the first of them.
    fn raw(&mut self, chain: &[(u64, u32, u16, u16)]) {
        let first = self.descriptors;
        for (at, (place, bytes, flags, next)) in chain.iter().enumerate() {
            let is = Descriptor {
                at: *place,
                bytes: *bytes,
                flags: *flags,
                next: first.wrapping_add(*next),
            };
            self.ring.descriptor(&self.ram, first + at as u16, is);
        }
        self.descriptors += chain.len() as u16;
        self.head(first);
    }

    fn head(&mut self, head: u16) {
        self.ring.available(&self.ram, self.requests, head);
        self.requests = self.requests.wrapping_add(1);
    }

    fn show(&self) {
        self.ring.show(&self.ram, self.requests);
    }

    /// A good chain of these buffers; a request of its own header and status byte, whose place it
    /// returns.
    fn request(&mut self, kind: u32, sector: u64, data: &[(u64, u32, bool)]) -> u64 {
        let number = u64::from(self.requests);
        let (head, status) = (HEADERS + 16 * number, STATUS + number);
        self.ram.write(head, &header(kind, sector));
        self.ram.write(status, &[0xff]);
        let mut chain = vec![(head, 16, false)];
        chain.extend_from_slice(data);
        chain.push((status, 1, true));
        self.good_chain(&chain);
        status
    }

    fn good_chain(&mut self, buffers: &[(u64, u32, bool)]) {
        let last = buffers.len() - 1;
        let chain = buffers.iter().enumerate().map(|(at, buffer)| {
            let write = if buffer.2 { WRITE } else { 0 };
            let next = if at < last { NEXT } else { 0 };
            (buffer.0, buffer.1, write | next, at as u16 + 1)
        });
        self.raw(&chain.collect::<Vec<_>>());
    }

    fn indirect(&mut self, table: &[(u64, u32, u16, u16)]) {
        for (at, (place, bytes, flags, next)) in table.iter().enumerate() {
            let is = Descriptor {
                at: *place,
                bytes: *bytes,
                flags: *flags,
                next: *next,
            };
            self.ram.write(TABLES + 16 * at as u64, &is.bytes());
        }
        self.raw(&[(TABLES, 16 * table.len() as u32, INDIRECT, 0)]);
    }

    /// The ring is told to be broken, and can be stopped.
    fn breaks(self, what: &str) {
        let told = self.ring.error.wait(PATIENCE);
        assert!(told, "{what}: nobody says that the ring is broken");
        self.front.stop(0).expect("a broken ring is stopped");
    }

    /// The request has an error, and the ring goes on.
    fn fails(mut self, what: &str, status: u64) {
        self.show();
        let answered = self.ring.answered(&self.ram, self.requests);
        assert!(answered, "{what}: the ring is broken");
        let answer = self.ram.read(status, 1)[0];
        assert!(matches!(answer, 1 | 2), "{what}: status {answer}");
        self.descriptors = 0;
        let status = self.request(GET_ID, 0, &[(DATA, 20, true)]);
        self.show();
        let answered = self.ring.answered(&self.ram, self.requests);
        assert!(answered, "{what}: the ring does not go on");
        assert_eq!(self.ram.read(status, 1), [0], "{what}: a good request");
        assert_eq!(self.ram.read(DATA, 5), b"disk\0", "{what}");
        self.front.stop(0).expect("the ring is stopped");
    }

    /// Whatever became of it, the ring can be stopped.
    fn ends(self) {
        self.front.stop(0).expect("the ring is stopped");
    }
}

/// Chains that are none: each must be told as the breach of a rule.
fn no_chain(attack: &mut Attack, random: &mut Rng) -> &'static str {
    let some = 1 + random.below(7) as u16;
    let beyond = SIZE + random.below(u64::from(u16::MAX - SIZE)) as u16;
    match random.below(13) {
        0 => {
            let ring = (0..some).map(|at| (DATA, 16, NEXT, (at + 1) % some));
            attack.raw(&ring.collect::<Vec<_>>());
            "a chain without an end"
        }
        1 => {
            attack.raw(&[(DATA, 16, NEXT, beyond)]);
            "a next outside of the table"
        }
        2 => {
            attack.raw(&[(DATA, 16, NEXT | WRITE, 1), (DATA, 16, 0, 0)]);
            "a readable buffer behind a writable one"
        }
        3 => {
            let bytes = 2 + random.below(1 << 20) as u32;
            let at = u64::MAX - random.below(u64::from(bytes) - 1);
            attack.raw(&[(at, bytes, 0, 0)]);
            "a buffer over the end of all addresses"
        }
        4 => {
            let giant = (0, u32::MAX - random.below(9) as u32, NEXT, 0);
            attack.raw(&[(giant.0, giant.1, NEXT, 1), (giant.0, giant.1, 0, 0)]);
            "a chain of giant length"
        }
        5 => {
            attack.raw(&[(TABLES, 16 * u32::from(some), NEXT | INDIRECT, 1)]);
            "a table with a next"
        }
        6 => {
            let bytes = [0, 1, 15, 17, 16 * 1025, u32::MAX, u32::MAX - 15];
            let bytes = bytes[random.below(bytes.len() as u64) as usize];
            attack.raw(&[(TABLES, bytes, INDIRECT, 0)]);
            "a table of a wrong length"
        }
        7 => {
            let at = [MEMORY - 8, MEMORY + 4096, u64::MAX - 4095, FAR][random.below(4) as usize];
            attack.raw(&[(at, 16 * u32::from(some), INDIRECT, 0)]);
            "a table outside of memory"
        }
        8 => {
            attack.indirect(&[(TABLES, 16, INDIRECT, 0)]);
            "a table in a table"
        }
        9 => {
            attack.indirect(&[(DATA, 16, NEXT, some)]);
            "a next outside of a table in memory"
        }
        10 => {
            attack.requests = SIZE + 1 + random.below(60_000) as u16;
            "an index that jumps"
        }
        11 => {
            attack.head(beyond);
            "a head outside of the table"
        }
        _ => {
            attack.request(IN, 0, &[(DATA, 4096, true)]);
            attack.head(0);
            "a head that is in flight"
        }
    }
}

/// Good chains with a request that is wrong; the place of its status byte.
fn bad_request(attack: &mut Attack, random: &mut Rng) -> (&'static str, u64) {
    let sectors = BYTES / 512;
    let far = [sectors, sectors + 1, u64::MAX, u64::MAX - 7, 1 << 62][random.below(5) as usize];
    let into = random.below(2) == 0;
    let kind = if into { IN } else { OUT };
    match random.below(9) {
        0 => {
            let data = [(DATA, 512, into)];
            ("a sector behind the end", attack.request(kind, far, &data))
        }
        1 => {
            let data = [(DATA, 1024, into)];
            let at = attack.request(kind, sectors - 1, &data);
            ("sectors over the end", at)
        }
        2 => {
            let odd = 1 + random.below(511) as u32;
            let data = [(DATA, odd, into)];
            ("no whole sectors", attack.request(kind, 0, &data))
        }
        3 => {
            let places = [MEMORY - 256, MEMORY, FAR, u64::MAX - 4096, 1 << 63];
            let at = places[random.below(5) as usize];
            let data = [(at, 512, into)];
            ("data outside of memory", attack.request(kind, 0, &data))
        }
        4 => {
            let unknown = [2, 3, 5, 7, 9, 10, 12, 14, 99, u32::MAX][random.below(10) as usize];
            let data = [(DATA, 512, into)];
            ("no such type", attack.request(unknown, 0, &data))
        }
        5 => {
            let data = [(DATA, 1 << 17, into); 40];
            (
                "more than a request may have",
                attack.request(kind, 0, &data),
            )
        }
        6 => {
            attack.ram.write(STATUS, &[0xff]);
            let short = random.below(16) as u32;
            attack.good_chain(&[(HEADERS, short, false), (STATUS, 1, true)]);
            ("a header that is too short", STATUS)
        }
        7 => {
            attack.ram.write(STATUS, &[0xff]);
            let at = [MEMORY - 8, MEMORY, FAR][random.below(3) as usize];
            attack.good_chain(&[(at, 16, false), (STATUS, 1, true)]);
            ("a header outside of memory", STATUS)
        }
        _ => {
            let kind = [DISCARD, WRITE_ZEROES][random.below(2) as usize];
            let count = [0, 1, 33][random.below(3) as usize];
            let mut range = far.to_le_bytes().to_vec();
            range.extend((random.word() as u32).to_le_bytes());
            range.extend((random.below(4) as u32 | 2).to_le_bytes());
            attack.ram.write(DATA, &range.repeat(count.max(1)));
            let data = [(DATA, 16 * count as u32, false)];
            ("ranges that are none", attack.request(kind, 0, &data))
        }
    }
}

/// Anything in table and available half, mostly small numbers that point at each other.
fn garbage(attack: &mut Attack, random: &mut Rng) {
    for at in 0..SIZE {
        let flags = random.below(8) as u16;
        let place = match random.below(8) {
            0 => random.word(),
            1 => MEMORY - random.below(600),
            // The rings themselves.
            2 => random.below(TABLES),
            3 => TABLES + 16 * random.below(64),
            4 => HEADERS + 16 * random.below(64),
            _ => DATA + 512 * random.below(1000),
        };
        let bytes = match random.below(8) {
            0 => random.word() as u32,
            1 => 0,
            2 => 1,
            3 => 16,
            4 => 16 * random.below(40) as u32,
            _ => 512 * random.below(17) as u32,
        };
        let next = random.below(u64::from(SIZE) + 2) as u16;
        let is = Descriptor {
            at: place,
            bytes,
            flags,
            next,
        };
        attack.ring.descriptor(&attack.ram, at, is);
        attack.ram.write(TABLES + 16 * u64::from(at), &is.bytes());
        let kind = [IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES][random.below(6) as usize];
        let head = header(kind, random.below(BYTES / 512 + 99));
        attack.ram.write(HEADERS + 16 * u64::from(at), &head);
        attack.head(random.below(u64::from(SIZE)) as u16);
    }
    attack.requests = 1 + random.below(u64::from(SIZE) + 1) as u16;
    attack.show();
}

/// A ring full of good requests that take a while.
fn full_of_requests(attack: &mut Attack, random: &mut Rng, at: u64) {
    for _ in 0..SIZE / 3 {
        let into = random.below(2) == 0;
        let kind = if into { IN } else { OUT };
        let sector = random.below(BYTES / 512 - 128);
        attack.request(kind, sector, &[(at, 65_536, into)]);
    }
    attack.show();
}

/// Somebody writes into everything while it is used, and kicks.
fn restless(attack: &mut Attack, random: &mut Rng) {
    full_of_requests(attack, random, DATA);
    for _ in 0..200 {
        let near = [
            0,
            0,
            attack.ring.available,
            attack.ring.used,
            TABLES,
            HEADERS,
        ];
        let at = near[random.below(6) as usize] + random.below(1100);
        let value = [random.word() as u8, random.below(9) as u8][random.below(2) as usize];
        attack.ram.write(at, &[value]);
        if random.below(8) == 0 {
            attack.requests = attack.requests.wrapping_add(random.below(9) as u16);
            attack.show();
        }
    }
}

/// Memory that goes while requests use it.
fn removed(attack: &mut Attack, random: &mut Rng) {
    let far = Ram::new(MEMORY);
    assert!(attack.front.add(&far, FAR).expect("add memory"));
    full_of_requests(attack, random, FAR);
    assert!(attack.front.remove(&far, FAR).expect("remove memory"));
    if random.below(2) == 0 {
        // What names it now has an error, and the ring goes on.
        attack.ring.answered(&attack.ram, attack.requests);
        attack.descriptors = 0;
        let status = attack.request(OUT, 0, &[(FAR, 512, false)]);
        attack.show();
        let answered = attack.ring.answered(&attack.ram, attack.requests);
        assert!(answered, "the ring goes on without the memory");
        assert_eq!(attack.ram.read(status, 1), [1], "a write from nowhere");
    } else {
        // The ring itself goes, and comes back.
        full_again(attack, random);
        assert!(
            attack
                .front
                .remove(&attack.ram, 0)
                .expect("remove the ring")
        );
        assert!(attack.front.add(&attack.ram, 0).expect("add the ring"));
        assert!(attack.ring.answered(&attack.ram, attack.requests));
    }
}

fn full_again(attack: &mut Attack, random: &mut Rng) {
    attack.ring.answered(&attack.ram, attack.requests);
    attack.descriptors = 0;
    full_of_requests(attack, random, DATA);
}

/// The file of the memory shrinks while requests use it.
fn shrunk(attack: &mut Attack, random: &mut Rng) {
    full_of_requests(attack, random, DATA);
    let left = [0, 4096, DATA, DATA + 4096][random.below(4) as usize];
    attack.ram.file.set_len(left).expect("shrink the memory");
    for _ in 0..3 {
        attack.ring.kick.add(1);
    }
}

/// Kicks without end, some of which the guest takes away again.
fn storm(attack: &mut Attack, random: &mut Rng) {
    full_of_requests(attack, random, DATA);
    for _ in 0..2000 {
        match random.below(3) {
            0 => drop(attack.ring.kick.wait(Duration::ZERO)),
            1 => attack.ring.kick.add(1 << random.below(30)),
            _ => attack.ring.kick.add(1),
        }
    }
}

/// Rings of sizes that are none, or that hardly are.
fn sizes(arena: &Arena, random: &mut Rng) {
    let front = FrontEnd::connect(&arena.socket("disk")).expect("connect");
    let ram = Ram::new(8 << 20);
    assert!(front.share(&[(&ram, 0)]).expect("share memory"));
    for size in [0, 3, 48, 65_535, 65_536, u32::MAX, random.word() as u32 | 3] {
        let taken = front.set_size(0, size).expect("an answer");
        assert!(!taken, "a ring of {size}");
    }
    let mut ring = Ring::new(0, [1, 2, 32_768][random.below(3) as usize], 0);
    assert!(front.start(&ring).expect("an answer"));
    ring.show(&ram, 1);
    front.stop(0).expect("the ring is stopped");
    // One that does not lie in the memory, in whole or in part.
    let halves = [
        ring.descriptors,
        (8 << 20) - 8,
        FAR,
        u64::MAX - 4096,
        8 << 20,
    ];
    ring.used = halves[1 + random.below(4) as usize];
    // Refused, or cut off at once.
    assert!(!front.start(&ring).unwrap_or(false), "{ring:?}");
}

/// One case of those that make up most of the test.
fn case(arena: &Arena, number: u64, random: &mut Rng) {
    if number % 40 == 39 {
        return sizes(arena, random);
    }
    let mut attack = arena.attack();
    match number % 10 {
        0..=3 => {
            let what = no_chain(&mut attack, random);
            attack.show();
            attack.breaks(what);
        }
        4..=6 => {
            let (what, status) = bad_request(&mut attack, random);
            attack.fails(what, status);
        }
        7 | 8 => {
            garbage(&mut attack, random);
            attack.ends();
        }
        _ => {
            let kinds = [restless, removed, shrunk, storm];
            kinds[random.below(4) as usize](&mut attack, random);
            // Half of them leave without a word.
            if random.below(2) == 0 {
                attack.ends();
            }
        }
    }
}

/// Fails when: the front end is not told of a broken ring.
#[test]
fn guests_that_break_every_rule_of_their_rings_disturb_nobody_and_are_told() {
    let mut arena = Arena::new();
    let seed = seed(21);
    let cases = 3 * count("TENUTO_HOSTILE_ROUNDS", 400);
    let done = AtomicBool::new(false);
    let rounds = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        let _end = SetWhenDropped(&done);
        scope.spawn(|| {
            let client = Polite::connect(&arena.socket("innocent"));
            let mut client = client.expect("connect");
            work_in_peace(&done, &rounds[0], |at, bytes| {
                client.write(at, bytes);
                client.flush();
                assert_eq!(client.read(at, bytes.len()), bytes, "by rings at {at}");
            });
        });
        scope.spawn(|| {
            let mut client = arena.rig.connect("neighbour");
            work_in_peace(&done, &rounds[1], |at, bytes| {
                client.write(at, bytes);
                client.flush();
                assert_eq!(client.read(at, bytes.len()), bytes, "over NBD at {at}");
            });
        });
        let mut before = None;
        for number in 0..cases {
            let mut random = Rng::new(seed << 32 | number);
            case(&arena, number, &mut random);
            if number % 100 == 99 {
                arena.is_served(&mut random);
                // What the first ones made it allocate once is no leak.
                before.get_or_insert_with(|| arena.daemon.heap_kib());
            }
        }
        arena.rig.gone_clients("disk");
        let (before, after) = (before.expect("100 cases"), arena.daemon.heap_kib());
        assert!(
            after < before + LEFT_BEHIND_KIB_MAX,
            "grew from {before} to {after} KiB"
        );
    });
    arena.no_buffer_is_lost();
    let rounds = rounds.map(AtomicU64::into_inner);
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    assert!(arena.daemon.is_alive());
    arena.is_served(&mut Rng::new(seed));
    let log = arena.daemon.stop();
    assert!(!log.contains("panicked"), "{log}");
}

/// Fails when: signals to a guest that is gone stay under way.
#[test]
fn events_that_nobody_takes_cost_no_more_than_one_signal_each() {
    let arena = Arena::new();
    let rounds = count("TENUTO_HOSTILE_ROUNDS", 400);
    let ask = |attack: &mut Attack| {
        attack.descriptors = 0;
        attack.request(GET_ID, 0, &[(DATA, 20, true)]);
        // Asks to be told of it.
        let event = attack.requests.wrapping_sub(1).to_le_bytes();
        let place = attack.ring.available + 4 + 2 * u64::from(SIZE);
        attack.ram.write(place, &event);
        attack.show();
        let answered = attack.ring.answered(&attack.ram, attack.requests);
        assert!(answered, "the request is answered");
        attack.requests %= 1 << 9;
    };
    drop(arena.attack());
    arena.rig.gone_clients("disk");
    let descriptors = arena.daemon.descriptors();
    for _ in 0..rounds {
        let mut attack = arena.attack();
        let full = Event::full();
        let set = attack.front.set_event(SET_VRING_CALL, 0, &full);
        assert!(set.expect("an answer"));
        attack.requests = 0;
        ask(&mut attack);
    }
    arena.rig.gone_clients("disk");
    wait_until("descriptors are given back", PATIENCE, || {
        arena.daemon.descriptors() <= descriptors + 8
    });
    arena.is_served(&mut Rng::new(1));
    arena.daemon.stop();
}

/// Fails when: 32,768 descriptors are refused.
#[test]
fn rings_of_the_largest_size_are_served_to_their_last_request() {
    const LARGEST: u16 = 32_768;
    const PLACES: u64 = 4 << 20;
    let arena = Arena::new();
    let front = FrontEnd::connect(&arena.socket("disk")).expect("connect");
    let ram = Ram::new(16 << 20);
    assert!(front.share(&[(&ram, 0)]).expect("share memory"));
    let rings = [0, 1].map(|queue| Ring::new(queue, LARGEST, u64::from(queue) << 20));
    // Each reads one sector by a table of its own; both rings name the same.
    let places = [0, 1, 3, 6].map(|place| PLACES + (place << 20));
    let [headers, statuses, tables, data] = places;
    let mut table = Vec::new();
    for number in 0..u64::from(LARGEST) {
        ram.write(headers + 16 * number, &header(IN, number % 1024));
        let parts = [
            (headers + 16 * number, 16, NEXT, 1),
            (data + 512 * (number % 4096), 512, NEXT | WRITE, 2),
            (statuses + number, 1, WRITE, 0),
        ];
        for (at, bytes, flags, next) in parts {
            let is = Descriptor {
                at,
                bytes,
                flags,
                next,
            };
            table.extend(is.bytes());
        }
    }
    ram.write(tables, &table);
    ram.write(statuses, &vec![0xff; usize::from(LARGEST)]);
    for ring in &rings {
        for number in 0..LARGEST {
            let is = Descriptor {
                at: tables + 48 * u64::from(number),
                bytes: 48,
                flags: INDIRECT,
                next: 0,
            };
            ring.descriptor(&ram, number, is);
            ring.available(&ram, number, number);
        }
        assert!(front.start(ring).expect("an answer"));
    }
    rings.iter().for_each(|ring| ring.show(&ram, LARGEST));
    for ring in &rings {
        assert!(ring.answered(&ram, LARGEST), "the ring is not broken");
    }
    let answers = ram.read(statuses, usize::from(LARGEST));
    assert!(answers.iter().all(|status| *status == 0));
    rings.iter().for_each(|ring| drop(front.stop(ring.queue)));
    drop(front);
    arena.is_served(&mut Rng::new(1));
    arena.daemon.stop();
}
