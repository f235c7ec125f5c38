//! Both ends of a ring against each other: what is offered arrives whole, in order, once; each side
//! is woken when it asked for it; and a ring goes on where it stopped.

mod common;

use common::{BUFFERS, GUEST_BYTES, Pair, QUEUE, TABLES, plus, segment, setup};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use vring::Head;
use vring::chain::Batch;
use vring::driver::Driver;
use vring::memory::{Address, Bytes, Memory, Outside, Segment};
use vring::rings::Shared;
use vring::split::SetupError;
use workload::rng::Rng;

type Lists = (Vec<Segment>, Vec<Segment>);

/// A few segments, some without bytes, none where the ring lies.
fn lists(random: &mut Rng, longest: u64) -> Lists {
    let mut list = |count| -> Vec<Segment> {
        (0..count)
            .map(|_| {
                let bytes = random.below(2) * random.below(5000);
                segment(BUFFERS + random.below(GUEST_BYTES), bytes as u32)
            })
            .collect()
    };
    (list(longest / 2), list(longest.div_ceil(2)))
}

fn with_bytes(list: &[Segment]) -> Vec<Segment> {
    let named = list.iter().filter(|segment| segment.bytes > 0);
    named.copied().collect()
}

/// Takes what there is, in batches of any size, and holds it against what was offered.
fn take_and_compare(
    pair: &mut Pair,
    random: &mut Rng,
    offered: &mut VecDeque<(Head, Lists)>,
    running: &mut Vec<Head>,
) {
    let mut batch = Batch::default();
    let limit = 1 + random.below(8) as usize;
    let shared = Shared {
        guest: &pair.guest,
        region: &pair.region,
    };
    let taken = pair.rings.take(QUEUE, &shared, limit, &mut batch);
    assert_eq!(taken, Ok(offered.len().min(limit)));
    for (taken, chain) in batch.iter() {
        let (head, (readable, writable)) = offered.pop_front().expect("was offered");
        assert_eq!(taken.head, head);
        assert_eq!(chain.readable, with_bytes(&readable));
        assert_eq!(chain.writable, with_bytes(&writable));
        running.push(head);
    }
}

fn drive(seed: u64) {
    let random = &mut Rng::new(seed);
    let (event_idx, indirect) = (seed & 1 == 1, seed & 2 == 2);
    let size = 4 << random.below(5);
    let base = random.word() as u16;
    let mut pair = Pair::new(setup(0, size, event_idx, indirect), base);
    let mut offered = VecDeque::new();
    let mut running: Vec<Head> = Vec::new();
    let mut written: BTreeMap<u16, u32> = BTreeMap::new();
    for step in 0..1500_u64 {
        match random.below(4) {
            0 => {
                let longest = 1 + random.below(size.into());
                let lists = lists(random, longest);
                let table = (indirect && random.chance(500))
                    .then_some(Address(TABLES + step % 64 * 16 * u64::from(size)));
                let head = pair
                    .driver
                    .offer(&pair.guest, &lists.0, &lists.1, table)
                    .expect("inside");
                if let Some(head) = head {
                    offered.push_back((head, lists));
                    pair.driver.show(&pair.guest).expect("inside");
                    // The table is the guest's own until the device gives the head back.
                    take_and_compare(&mut pair, random, &mut offered, &mut running);
                }
            }
            1 => {
                for _ in 0..random.below(4).min(running.len() as u64) {
                    let head = running.swap_remove(random.below(running.len() as u64) as usize);
                    written.insert(head.0, random.word() as u32);
                    pair.rings.complete(QUEUE, head, written[&head.0]);
                }
            }
            2 => {
                // A guest that looks by itself finds it before the host asks about interrupts.
                match random.chance(500) {
                    true => pair.show(),
                    false => drop(pair.publish()),
                }
                while let Some((head, bytes)) = pair.driver.reap(&pair.guest).expect("good") {
                    assert_eq!(written.remove(&head.0), Some(bytes));
                }
                assert!(written.is_empty());
            }
            _ if running.is_empty() && written.is_empty() && offered.is_empty() => {
                let base = pair.rings.stop(QUEUE).expect("nothing is in flight");
                let setup = *pair.driver.setup();
                let shared = Shared {
                    guest: &pair.guest,
                    region: &pair.region,
                };
                let started = pair.rings.start(QUEUE, setup, base, &shared);
                started.expect("starts again");
            }
            _ => {}
        }
    }
}

#[test]
fn what_a_guest_offers_arrives_whole_in_order_and_once() {
    for seed in 0..200 {
        drive(seed);
    }
}

/// Lengths of writable segments are told apart from readable ones that follow them in the table.
#[test]
fn a_chain_may_end_in_an_indirect_table() {
    let mut pair = Pair::new(setup(0, 8, true, true), 0);
    let table = Address(TABLES);
    pair.driver
        .offer(&pair.guest, &[segment(1, 1)], &[segment(2, 2)], Some(table))
        .expect("inside");
    // Descriptor 5 in front of the one that names the table, and the head is 5.
    let descriptors = pair.driver.setup().descriptors;
    let mut entry = [0; 16];
    entry[..8].copy_from_slice(&7_u64.to_le_bytes());
    entry[8..].copy_from_slice(&[3, 0, 0, 0, 1, 0, 0, 0]);
    pair.guest
        .write(plus(descriptors, 5 * 16), &entry)
        .expect("inside");
    pair.store(plus(pair.driver.setup().available, 4), 5);
    pair.driver.show(&pair.guest).expect("inside");
    let shared = Shared {
        guest: &pair.guest,
        region: &pair.region,
    };
    let mut batch = Batch::default();
    assert_eq!(pair.rings.take(QUEUE, &shared, 9, &mut batch), Ok(1));
    let (taken, chain) = batch.iter().next().expect("one");
    assert_eq!(taken.head, Head(5));
    assert_eq!(chain.readable, [segment(7, 3), segment(1, 1)]);
    assert_eq!(chain.writable, [segment(2, 2)]);
}

#[test]
fn interrupts_come_when_the_guest_asked_for_them() {
    for event_idx in [false, true] {
        let mut pair = Pair::new(setup(0, 16, event_idx, false), 65530);
        assert!(pair.publish(), "a daemon before us may have owed one");
        for round in 0..40 {
            let heads: Vec<Head> = (0..3).map(|_| pair.offer_small()).collect();
            pair.take().expect("good chains");
            assert!(!pair.driver.ask_for_interrupt(&pair.guest).expect("inside"));
            assert!(!pair.publish(), "nothing is published");
            pair.complete(heads[1]);
            assert!(pair.publish(), "round {round}");
            pair.complete(heads[0]);
            // Without events the wish stands until it is taken back.
            assert_eq!(pair.publish(), !event_idx);
            pair.driver.refuse_interrupts(&pair.guest).expect("inside");
            pair.complete(heads[2]);
            assert!(!pair.publish());
            assert_eq!(pair.reap(), [heads[1], heads[0], heads[2]]);
        }
    }
}

#[test]
fn one_interrupt_serves_as_many_as_the_guest_waits_for() {
    let mut pair = Pair::new(setup(0, 16, true, false), 65534);
    pair.publish();
    let heads: Vec<Head> = (0..4).map(|_| pair.offer_small()).collect();
    pair.take().expect("good chains");
    let waits = pair.driver.ask_for_interrupt_after(&pair.guest, 3);
    assert_eq!(waits, Ok(false));
    let wanted: Vec<bool> = heads
        .iter()
        .map(|&head| {
            pair.complete(head);
            pair.publish()
        })
        .collect();
    assert_eq!(wanted, [false, false, true, false]);
    pair.reap();
    pair.driver
        .ask_for_interrupt_after(&pair.guest, 2)
        .expect("inside");
    let heads: Vec<Head> = (0..4).map(|_| pair.offer_small()).collect();
    pair.take().expect("good chains");
    heads.iter().for_each(|&head| pair.complete(head));
    assert!(pair.publish(), "a batch that goes over the wish counts");
}

#[test]
fn kicks_come_when_the_device_asked_for_them() {
    for event_idx in [false, true] {
        let mut pair = Pair::new(setup(0, 64, event_idx, false), 65530);
        for _ in 0..20 {
            let asked = |pair: &mut Pair| {
                let shared = Shared {
                    guest: &pair.guest,
                    region: &pair.region,
                };
                pair.rings.ask_for_kick(QUEUE, &shared).expect("inside")
            };
            assert!(!asked(&mut pair), "nothing waits");
            let offer = |pair: &mut Pair| {
                pair.offer(&[segment(BUFFERS, 1)], &[]);
                pair.driver.show(&pair.guest).expect("inside")
            };
            assert!(offer(&mut pair), "asked for");
            assert!(asked(&mut pair), "one waits");
            let heads = pair.take().expect("good chains");
            let shared = Shared {
                guest: &pair.guest,
                region: &pair.region,
            };
            pair.rings.refuse_kicks(QUEUE, &shared).expect("inside");
            // The wish for the one that is taken stands, and is over.
            assert!(!offer(&mut pair) || event_idx);
            assert!(!offer(&mut pair));
            let more = pair.take().expect("good chains");
            assert_eq!((heads.len(), more.len()), (1, 2));
            heads
                .iter()
                .chain(&more)
                .for_each(|&head| pair.complete(head));
            pair.publish();
            pair.reap();
        }
    }
}

/// Guest memory in which something happens at a fence.
struct AtFence<'a> {
    memory: &'a Bytes,
    then: Cell<Option<&'a dyn Fn()>>,
}

impl Memory for AtFence<'_> {
    fn check(&self, at: Address, bytes: u64) -> Result<(), Outside> {
        self.memory.check(at, bytes)
    }
    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Outside> {
        self.memory.read(at, into)
    }
    fn write(&self, at: Address, bytes: &[u8]) -> Result<(), Outside> {
        self.memory.write(at, bytes)
    }
    fn load_u16(&self, at: Address) -> Result<u16, Outside> {
        self.memory.load_u16(at)
    }
    fn store_u8(&self, at: Address, value: u8) -> Result<(), Outside> {
        self.memory.store_u8(at, value)
    }
    fn store_u16(&self, at: Address, value: u16) -> Result<(), Outside> {
        self.memory.store_u16(at, value)
    }
    fn store_u64(&self, at: Address, value: u64) -> Result<(), Outside> {
        self.memory.store_u64(at, value)
    }
    fn fence(&self) {
        if let Some(then) = self.then.take() {
            then();
        }
    }
}

#[test]
fn a_request_that_comes_while_a_kick_is_asked_for_is_seen_or_kicks() {
    for event_idx in [false, true] {
        let mut pair = Pair::new(setup(0, 8, event_idx, false), 65535);
        // The wish that stands is for a request that is taken, or there is none.
        pair.offer_small();
        pair.take().expect("a good chain");
        let shared = Shared {
            guest: &pair.guest,
            region: &pair.region,
        };
        pair.rings.refuse_kicks(QUEUE, &shared).expect("inside");
        pair.offer(&[segment(BUFFERS, 1)], &[]);
        let kicked = Cell::new(false);
        let driver: &Cell<Option<Driver>> = &Cell::new(Some(pair.driver));
        let show = || {
            let mut it = driver.take().expect("a driver");
            kicked.set(it.show(&pair.guest).expect("inside"));
            driver.set(Some(it));
        };
        let memory = AtFence {
            memory: &pair.guest,
            then: Cell::new(Some(&show)),
        };
        let shared = Shared {
            guest: &memory,
            region: &pair.region,
        };
        let seen = pair.rings.ask_for_kick(QUEUE, &shared);
        assert_eq!(seen, Ok(true), "looked again after the fence");
        assert!(kicked.get(), "the wish was written before the fence");
    }
}

#[test]
fn a_ring_with_requests_of_the_host_does_not_stop() {
    let mut pair = Pair::new(setup(0, 8, true, true), 100);
    let head = pair.offer_small();
    pair.take().expect("a good chain");
    assert_eq!(pair.rings.stop(QUEUE), None);
    pair.complete(head);
    assert_eq!(pair.rings.stop(QUEUE), None);
    pair.publish();
    assert_eq!(pair.rings.stop(QUEUE), Some(101));
    assert!(!pair.rings.is_running(QUEUE));
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let good = setup(0, 8, true, true);
    let guest = Bytes::zeroed(GUEST_BYTES);
    let refused = |change: &dyn Fn(&mut vring::split::Setup)| {
        let mut setup = good;
        change(&mut setup);
        Driver::new(setup, 0, &guest).expect_err("cannot be")
    };
    for size in [0, 3, 12, 65535] {
        assert_eq!(refused(&|it| it.size = size), SetupError::Size(size));
    }
    assert_eq!(
        refused(&|it| it.descriptors.0 += 8),
        SetupError::Alignment(0x4008)
    );
    assert_eq!(refused(&|it| it.used.0 += 2), SetupError::Alignment(0x6002));
    for at in [GUEST_BYTES, GUEST_BYTES - 4, u64::MAX] {
        let error = refused(&|it| it.descriptors = Address(at & !15));
        assert!(matches!(error, SetupError::Outside(_)), "{error}");
        let error = refused(&|it| it.used = Address(at & !3));
        assert!(matches!(error, SetupError::Outside(_)), "{error}");
    }
}
