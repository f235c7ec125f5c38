//! Guests that break the rules: each rule has its reason, nothing panics, and no address comes out
//! that the guest did not name.

mod common;

use common::{BUFFERS, GUEST_BYTES, Pair, QUEUE, TABLES, plus, segment, setup};
use vring::chain::{Batch, INDIRECT, NEXT, WRITE};
use vring::memory::{Address, Bytes, Memory, Outside};
use vring::rings::Shared;
use vring::split::Broken;
use workload::rng::Rng;

/// A pair whose guest offers what `descriptors` say, at head 0.
fn offered(descriptors: &[(u64, u32, u16, u16)], indirect: bool) -> Pair {
    let pair = Pair::new(setup(0, 8, true, indirect), 0);
    let table = pair.driver.setup().descriptors;
    write_table(&pair.guest, table, descriptors);
    pair.store(plus(pair.driver.setup().available, 2), 1);
    pair
}

fn write_table(guest: &Bytes, table: Address, descriptors: &[(u64, u32, u16, u16)]) {
    for (at, (address, bytes, flags, next)) in descriptors.iter().enumerate() {
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&address.to_le_bytes());
        entry[8..12].copy_from_slice(&bytes.to_le_bytes());
        entry[12..14].copy_from_slice(&flags.to_le_bytes());
        entry[14..].copy_from_slice(&next.to_le_bytes());
        guest
            .write(plus(table, at as u64 * 16), &entry)
            .expect("inside");
    }
}

/// Why the ring breaks, at this take and at each later one; another request changes nothing.
fn reason(pair: &mut Pair) -> Broken {
    let reason = pair.take().expect_err("breaks the ring");
    assert_eq!(pair.rings.broken(QUEUE), Some(reason));
    pair.store(plus(pair.driver.setup().available, 2), 2);
    assert_eq!(pair.take(), Err(reason));
    assert_eq!(
        pair.rings.in_flight(QUEUE),
        0,
        "what is no chain is not taken"
    );
    assert_eq!(pair.rings.stop(QUEUE), Some(0));
    reason
}

#[test]
fn each_broken_rule_of_a_chain_has_its_reason() {
    let direct = |descriptors: &[_]| reason(&mut offered(descriptors, true));
    let looped = [(BUFFERS, 1, NEXT, 1), (BUFFERS, 1, NEXT, 0)];
    assert_eq!(direct(&looped), Broken::ChainLength);
    assert_eq!(direct(&[(BUFFERS, 1, NEXT, 0)]), Broken::ChainLength);
    assert_eq!(direct(&[(BUFFERS, 1, NEXT, 8)]), Broken::Next { next: 8 });
    let turned = [(BUFFERS, 1, NEXT | WRITE, 1), (BUFFERS, 1, 0, 0)];
    assert_eq!(direct(&turned), Broken::ReadableAfterWritable);
    let beyond = (u64::MAX - 5, 7);
    let (at, bytes) = beyond;
    assert_eq!(direct(&[(at, bytes, 0, 0)]), Broken::Address { at, bytes });
    let giant = [(0, u32::MAX, NEXT, 1), (0, 1, 0, 0)];
    assert_eq!(direct(&giant), Broken::ChainBytes);
    let both = [(TABLES, 16, NEXT | INDIRECT, 1)];
    assert_eq!(direct(&both), Broken::IndirectWithNext);
    for bytes in [0, 1, 15, 24, 16 * 1025, u32::MAX, 0xffff_fff0] {
        let table = [(TABLES, bytes, INDIRECT, 0)];
        assert_eq!(direct(&table), Broken::IndirectBytes { bytes });
    }
    let outside = [(GUEST_BYTES - 16, 32, INDIRECT, 0)];
    let (at, bytes) = (GUEST_BYTES - 16, 32);
    assert_eq!(direct(&outside), Broken::Outside(Outside { at, bytes }));
    let unasked = reason(&mut offered(&[(TABLES, 16, INDIRECT, 0)], false));
    assert_eq!(unasked, Broken::IndirectNotNegotiated);
}

#[test]
fn each_broken_rule_of_an_indirect_table_has_its_reason() {
    let table = |descriptors: &[_]| {
        let bytes = descriptors.len() as u32 * 16;
        let mut pair = offered(&[(TABLES, bytes, INDIRECT, 0)], true);
        write_table(&pair.guest, Address(TABLES), descriptors);
        reason(&mut pair)
    };
    assert_eq!(table(&[(TABLES, 16, INDIRECT, 0)]), Broken::IndirectNested);
    assert_eq!(table(&[(BUFFERS, 1, NEXT, 1)]), Broken::Next { next: 1 });
    let looped = [(BUFFERS, 1, NEXT, 1), (BUFFERS, 1, NEXT, 0)];
    assert_eq!(table(&looped), Broken::ChainLength);
    let turned = [(BUFFERS, 0, NEXT | WRITE, 1), (BUFFERS, 1, 0, 0)];
    assert_eq!(table(&turned), Broken::ReadableAfterWritable);
}

#[test]
fn an_index_that_jumps_and_a_head_outside_break_the_ring() {
    let mut pair = Pair::new(setup(0, 8, true, true), 65535);
    let index = plus(pair.driver.setup().available, 2);
    pair.store(index, 8);
    let (from, to) = (65535, 8);
    assert_eq!(pair.take(), Err(Broken::Jump { from, to }));
    let mut pair = Pair::new(setup(0, 8, true, true), 5);
    pair.store(index, 4);
    let (from, to) = (5, 4);
    assert_eq!(pair.take(), Err(Broken::Jump { from, to }));
    let mut pair = Pair::new(setup(0, 8, true, true), 0);
    pair.store(plus(index, 2), 8);
    pair.store(index, 1);
    assert_eq!(pair.take(), Err(Broken::Head { head: 8 }));
}

#[test]
fn a_head_that_is_in_flight_is_not_taken_again() {
    let mut pair = Pair::new(setup(0, 8, true, true), 0);
    let head = pair.offer_small();
    assert_eq!(pair.take(), Ok(vec![head]));
    pair.store(plus(pair.driver.setup().available, 6), head.0);
    pair.store(plus(pair.driver.setup().available, 2), 2);
    let broken = Broken::HeadInFlight { head: head.0 };
    assert_eq!(pair.take(), Err(broken));
    assert_eq!(pair.rings.stop(QUEUE), None, "the host still has a request");
    pair.complete(head);
    pair.publish();
    assert_eq!(pair.reap(), [head], "what was taken before ends");
    assert_eq!(pair.rings.stop(QUEUE), Some(1));
}

#[test]
fn good_requests_before_a_broken_one_are_taken() {
    let mut pair = Pair::new(setup(0, 8, true, true), 0);
    let good = pair.offer_small();
    let bad = pair.offer_small();
    let table = pair.driver.setup().descriptors;
    let entry = [(BUFFERS, 1, NEXT, 99)];
    write_table(&pair.guest, plus(table, u64::from(bad.0) * 16), &entry);
    assert_eq!(pair.take(), Ok(vec![good]));
    assert_eq!(pair.take(), Err(Broken::Next { next: 99 }));
    pair.complete(good);
    pair.publish();
    assert_eq!(pair.reap(), [good]);
}

/// Memory that its owner has taken away.
struct Gone;

impl Memory for Gone {
    fn check(&self, at: Address, bytes: u64) -> Result<(), Outside> {
        Err(Outside { at: at.0, bytes })
    }
    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Outside> {
        self.check(at, into.len() as u64)
    }
    fn write(&self, at: Address, bytes: &[u8]) -> Result<(), Outside> {
        self.check(at, bytes.len() as u64)
    }
    fn load_u16(&self, at: Address) -> Result<u16, Outside> {
        self.check(at, 2).map(|()| 0)
    }
    fn store_u8(&self, at: Address, _: u8) -> Result<(), Outside> {
        self.check(at, 1)
    }
    fn store_u16(&self, at: Address, _: u16) -> Result<(), Outside> {
        self.check(at, 2)
    }
    fn store_u64(&self, at: Address, _: u64) -> Result<(), Outside> {
        self.check(at, 8)
    }
}

#[test]
fn a_ring_whose_memory_went_away_under_its_requests_comes_to_an_end() {
    let mut pair = Pair::new(setup(0, 8, true, true), 0);
    let (first, second) = (pair.offer_small(), pair.offer_small());
    assert_eq!(pair.take(), Ok(vec![first, second]));
    pair.complete(first);
    let shared = Shared {
        guest: &Gone,
        region: &pair.region,
    };
    let broken = pair.rings.publish(QUEUE, &shared).expect_err("no memory");
    assert_eq!(pair.rings.broken(QUEUE), Some(broken));
    assert_eq!(pair.rings.stop(QUEUE), None, "the host still has a request");
    pair.complete(second);
    let shared = Shared {
        guest: &Gone,
        region: &pair.region,
    };
    assert_eq!(pair.rings.publish(QUEUE, &shared), Err(broken));
    assert_eq!(pair.rings.stop(QUEUE), Some(2));
}

/// Memory that is different at each look: what is read twice is not the same.
struct Restless<'a>(&'a Bytes, std::cell::RefCell<Rng>);

impl Restless<'_> {
    /// Damages a few bytes of tables, rings or region, mostly by small numbers.
    fn change(&self) {
        let random = &mut *self.1.borrow_mut();
        if random.below(3) > 0 {
            return;
        }
        let near = [0x4000, 0x5000, 0x6000, TABLES][random.below(4) as usize];
        let value = [random.word() as u8, random.below(9) as u8][random.below(2) as usize];
        let at = Address(near + random.below(160));
        self.0.store_u8(at, value).expect("inside");
    }
}

impl Memory for Restless<'_> {
    fn check(&self, at: Address, bytes: u64) -> Result<(), Outside> {
        self.0.check(at, bytes)
    }
    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Outside> {
        self.change();
        self.0.read(at, into)
    }
    fn write(&self, at: Address, bytes: &[u8]) -> Result<(), Outside> {
        self.change();
        self.0.write(at, bytes)
    }
    fn load_u16(&self, at: Address) -> Result<u16, Outside> {
        self.change();
        self.0.load_u16(at)
    }
    fn store_u8(&self, at: Address, value: u8) -> Result<(), Outside> {
        self.0.store_u8(at, value)
    }
    fn store_u16(&self, at: Address, value: u16) -> Result<(), Outside> {
        self.change();
        self.0.store_u16(at, value)
    }
    fn store_u64(&self, at: Address, value: u64) -> Result<(), Outside> {
        self.0.store_u64(at, value)
    }
}

#[test]
fn a_guest_that_changes_everything_at_any_moment_breaks_its_own_ring_only() {
    let (mut broken, mut whole) = (0, 0);
    for seed in 0..3000 {
        let random = &mut Rng::new(seed);
        let mut pair = Pair::new(setup(0, 8, seed & 1 == 1, seed & 2 == 2), seed as u16);
        let mut running = Vec::new();
        for _ in 0..60 {
            let table = random.chance(500).then_some(Address(TABLES));
            let parts = [segment(BUFFERS, 9), segment(BUFFERS + 9, 9)];
            let _ = pair.driver.offer(&pair.guest, &parts, &parts, table);
            let _ = pair.driver.show(&pair.guest);
            let memory = Restless(&pair.guest, Rng::new(random.word()).into());
            let shared = Shared {
                guest: &memory,
                region: &pair.region,
            };
            let mut batch = Batch::default();
            match pair.rings.take(QUEUE, &shared, 8, &mut batch) {
                Ok(_) => whole += batch.len(),
                Err(_) => broken += 1,
            }
            for (taken, chain) in batch.iter() {
                for segment in chain.readable.iter().chain(chain.writable) {
                    assert!(segment.bytes > 0);
                    assert!(segment.at.0.checked_add(segment.bytes.into()).is_some());
                }
                running.push(taken.head);
            }
            if random.chance(500) {
                for head in running.drain(..) {
                    pair.rings.complete(QUEUE, head, 0);
                }
                let _ = pair.rings.publish(QUEUE, &shared);
                let _ = pair.rings.ask_for_kick(QUEUE, &shared);
            }
            while let Ok(Some(_)) = pair.driver.reap(&pair.guest) {}
        }
    }
    assert!(broken > 1000 && whole > 1000, "{broken} {whole}");
}
