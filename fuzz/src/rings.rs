//! The targets for what a guest and a front end share with the daemon: rings, requests of a disk,
//! and the in-flight region.
//!
//! Invariants: no panic; every segment of a chain is one that a descriptor in guest memory names; a
//! command lies inside the disk and its data inside the chain; what a region says is in flight
//! comes once, oldest first, and when all of it has ended a later daemon finds nothing.

use crate::source::Source;
use std::collections::BTreeSet;
use vring::block::{Command, Disk, Parsed, RangeLimits, Scratch, SectorRange, Status};
use vring::chain::{Batch, Chain};
use vring::driver::Driver;
use vring::inflight::Layout;
use vring::memory::{Address, Bytes, Memory, Segment};
use vring::rings::{Rings, Shared};
use vring::split::Setup;
use vring::{Head, Queue};

const RING_BYTES: u64 = 0x200;
const GUEST_BYTES: u64 = 0x1000;
const QUEUE: Queue = Queue(0);

fn setup(at: u64, size: u16, event_idx: bool, indirect: bool) -> Setup {
    Setup {
        size,
        descriptors: Address(at),
        available: Address(at + 0x100),
        used: Address(at + 0x140),
        event_idx,
        indirect,
    }
}

fn segments(source: &mut Source, count: usize) -> Vec<Segment> {
    let one = |source: &mut Source| Segment {
        at: Address(match source.flag() {
            true => source.number(),
            false => u64::from(source.u16()) % GUEST_BYTES,
        }),
        bytes: match source.flag() {
            true => source.number() as u32,
            false => u32::from(source.byte()),
        },
    };
    (0..count).map(|_| one(source)).collect()
}

/// A guest that offers good chains and writes over its ring in between.
pub fn ring(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let flags = source.byte();
    let guest = Bytes::zeroed(GUEST_BYTES);
    let layout = Layout { queues: 1, size: 8 };
    let region = Bytes::zeroed(layout.bytes());
    let setup = setup(0, 8, flags & 1 == 1, flags & 2 == 2);
    let base = source.u16();
    let mut driver = Driver::new(setup, base, &guest).expect("a ring inside");
    let mut rings = Rings::open(layout, &region).expect("a new region");
    let shared = Shared {
        guest: &guest,
        region: &region,
    };
    let started = rings.start(QUEUE, setup, base, &shared);
    started.expect("a ring inside");
    let mut batch = Batch::default();
    let mut running: Vec<Head> = Vec::new();
    let mut took = false;
    while !source.is_empty() {
        match source.byte() % 8 {
            0..3 => {
                let (readable, writable) = (source.below(4), source.below(4));
                let readable = segments(source, readable + 1);
                let writable = segments(source, writable);
                let table = source.flag().then_some(Address(RING_BYTES + 0x100));
                let offered = driver.offer(&guest, &readable, &writable, table);
                offered.expect("the ring is inside");
                driver.show(&guest).expect("the ring is inside");
            }
            3 if source.flag() && !running.is_empty() => {
                // A head that is in flight is offered again, in place of the newest.
                let head = running[source.below(running.len())];
                let index = guest.load_u16(Address(setup.available.0 + 2));
                let newest = index.expect("inside").wrapping_sub(1) % setup.size;
                let at = Address(setup.available.0 + 4 + 2 * u64::from(newest));
                guest.store_u16(at, head.0).expect("inside");
            }
            3 => {
                let at = u64::from(source.u16()) % (RING_BYTES + 0x200);
                let bytes = source.byte() % 16;
                let damage = source.take(bytes.into());
                guest.write(Address(at), damage).expect("inside");
            }
            4 | 5 => {
                batch.clear();
                let limit = source.below(9);
                let taken = rings.take(QUEUE, &shared, limit, &mut batch);
                assert_eq!(taken.unwrap_or(0), batch.len());
                took |= !batch.is_empty();
                judge_batch(&batch, &guest, &mut running);
            }
            6 => {
                for _ in 0..source.below(4).min(running.len()) {
                    let head = running.swap_remove(source.below(running.len()));
                    rings.complete(QUEUE, head, source.u32());
                }
            }
            _ => {
                let _ = rings.publish(QUEUE, &shared);
                let _ = rings.ask_for_kick(QUEUE, &shared);
                while let Ok(Some(_)) = driver.reap(&guest) {}
            }
        }
    }
    took
}

fn judge_batch(batch: &Batch, guest: &Bytes, running: &mut Vec<Head>) {
    let mut memory = vec![0; GUEST_BYTES as usize];
    guest.read(Address(0), &mut memory).expect("inside");
    for (taken, chain) in batch.iter() {
        assert!(!running.contains(&taken.head), "in flight once");
        running.push(taken.head);
        for segment in chain.readable.iter().chain(chain.writable) {
            assert!(segment.bytes > 0);
            assert!(segment.at.0.checked_add(segment.bytes.into()).is_some());
            let mut named = segment.at.0.to_le_bytes().to_vec();
            named.extend(segment.bytes.to_le_bytes());
            let tables = memory[..0x800].windows(12);
            assert!(tables.clone().any(|window| window == named));
        }
    }
}

/// A chain of any segments with any header.
pub fn block_request(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let any = source.number();
    let limits = RangeLimits {
        sectors_max: source.pick(&[1 << 20, u32::MAX, any as u32]),
        ranges_max: 1 + source.u16() % 64,
    };
    let disk = Disk {
        capacity_sectors: source.pick(&[1 << 20, u64::MAX, any]),
        block_bytes: 512 << (source.byte() % 4),
        read_only: source.byte().is_multiple_of(8),
        flush: source.flag(),
        discard: source.flag().then_some(limits),
        write_zeroes: source.flag().then_some(limits),
        data_bytes_max: source.pick(&[4096, u32::MAX, any as u32]),
        segments_max: source.pick(&[128, 1, 0]),
        id: [7; 20],
    };
    let guest = Bytes::zeroed(GUEST_BYTES);
    let kind = source.pick(&[0, 1, 4, 8, 11, 13, 2]);
    guest.write(Address(0), &[kind, 0, 0, 0]).expect("inside");
    let sector = [source.number(), 0, 8, 64][source.below(4)];
    guest
        .write(Address(8), &sector.to_le_bytes())
        .expect("inside");
    let (readable, writable) = chain_of(source);
    ranges_of(source, &guest);
    let chain = Chain {
        readable: &readable,
        writable: &writable,
    };
    let mut scratch = Scratch::default();
    match disk.parse(&chain, &guest, &mut scratch) {
        Parsed::Answer { status, reply } => {
            let written = reply.finish(&guest, status);
            assert!(u64::from(written) <= total(&writable));
            false
        }
        Parsed::Run { command, reply } => {
            judge_command(&disk, &command, &chain);
            assert!(u64::from(reply.finish(&guest, Status::Ok)) <= total(&writable));
            true
        }
    }
}

/// A header in one or two pieces, payload, room and status: lengths that fit, mostly.
fn chain_of(source: &mut Source) -> (Vec<Segment>, Vec<Segment>) {
    let segment = |at: u64, bytes: u32| Segment {
        at: Address(at),
        bytes,
    };
    let cut = 1 + u32::from(source.byte()) % 15;
    let mut readable = vec![segment(0, cut), segment(cut.into(), 16 - cut)];
    let lengths = [0, 16, 32, 48, 512, 1024, 4096, 3];
    for _ in 0..source.below(3) {
        let bytes = source.pick(&lengths);
        readable.push(segment(16, bytes));
    }
    let mut writable = Vec::new();
    for _ in 0..source.below(3) {
        let bytes = source.pick(&lengths);
        writable.push(segment(0x400, bytes));
    }
    if !source.byte().is_multiple_of(16) {
        writable.push(segment(0x300, 1));
    }
    if source.byte().is_multiple_of(8) {
        let at = u64::MAX - 0x10000 - u64::from(source.u16());
        readable.push(segment(at, u32::from(source.u16())));
    }
    readable.retain(|segment| segment.bytes > 0);
    writable.retain(|segment| segment.bytes > 0);
    (readable, writable)
}

/// What a discard or a request for zeroes would name; any bytes to a write.
fn ranges_of(source: &mut Source, guest: &Bytes) {
    for range in 0..3 {
        let sector = [source.number(), 8, 0, 64][source.below(4)];
        let sectors = source.pick(&[8_u32, 16, 0, 1, u32::MAX]);
        let flags = source.pick(&[0_u32, 0, 0, 1, 2]);
        let mut bytes = sector.to_le_bytes().to_vec();
        bytes.extend(sectors.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        let at = Address(16 + 16 * range);
        guest.write(at, &bytes).expect("inside");
    }
}

fn total(segments: &[Segment]) -> u64 {
    let bytes = segments.iter().map(|segment| u64::from(segment.bytes));
    bytes.sum()
}

fn judge_command(disk: &Disk, command: &Command, chain: &Chain) {
    let inside = |sector: u64, sectors: u64| {
        let end = sector.checked_add(sectors).expect("no overflow");
        let block = u64::from(disk.block_bytes) / 512;
        assert!(sectors > 0 && end <= disk.capacity_sectors);
        assert!(sector.is_multiple_of(block) && sectors.is_multiple_of(block));
    };
    let of = |data: &[Segment], of: &[Segment], sectors: u64| {
        assert_eq!(total(data), sectors * 512);
        assert!(total(data) <= disk.data_bytes_max.into());
        assert!(data.len() <= disk.segments_max as usize);
        for it in data {
            let end = it.at.0 + u64::from(it.bytes);
            let holds =
                |whole: &Segment| whole.at <= it.at && end <= whole.at.0 + u64::from(whole.bytes);
            assert!(of.iter().any(holds));
        }
    };
    let ranges = |list: &[SectorRange], limits: Option<RangeLimits>| {
        let limits = limits.expect("was offered");
        assert!(!list.is_empty() && list.len() <= limits.ranges_max.into());
        for range in list {
            assert!(range.sectors <= limits.sectors_max.into());
            inside(range.sector, range.sectors);
        }
    };
    match *command {
        Command::Read {
            sector,
            sectors,
            data,
        } => {
            inside(sector, sectors);
            of(data, chain.writable, sectors);
        }
        Command::Write {
            sector,
            sectors,
            data,
        } => {
            assert!(!disk.read_only);
            inside(sector, sectors);
            of(data, chain.readable, sectors);
        }
        Command::Flush => assert!(disk.flush),
        Command::Discard { ranges: list } => ranges(list, disk.discard),
        Command::WriteZeroes { ranges: list } => ranges(list, disk.write_zeroes),
    }
}

/// A region as a killed daemon left it, or as somebody changed it.
pub fn in_flight(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let layout = Layout {
        queues: 1 + u16::from(source.byte() % 3),
        size: 4 << (source.byte() % 2),
    };
    let guest = Bytes::zeroed(GUEST_BYTES);
    let setups: Vec<Setup> = (0..u64::from(layout.queues))
        .map(|queue| setup(queue * RING_BYTES, layout.size, true, true))
        .collect();
    let mut region = region_of(source, &layout);
    if source.flag() {
        source.damage(&mut region);
    }
    let region = Bytes::new(region);
    let shared = Shared {
        guest: &guest,
        region: &region,
    };
    for setup in &setups {
        let index = u16::from(source.byte() % 8);
        guest
            .store_u16(Address(setup.used.0 + 2), index)
            .expect("inside");
    }
    let open = || {
        let mut rings = Rings::open(layout, &region).ok()?;
        for (queue, setup) in setups.iter().enumerate() {
            let started = rings.start(Queue(queue as u16), *setup, 0, &shared);
            started.ok()?;
        }
        Some(rings)
    };
    let Some(mut rings) = open() else {
        return false;
    };
    let mut batch = Batch::default();
    let count = rings.again();
    assert_eq!(count, flags_in(&region, &layout), "flagged is what comes");
    assert_eq!(rings.take_again(&shared, usize::MAX, &mut batch), count);
    let came: Vec<_> = batch.iter().map(|(taken, _)| taken).collect();
    assert!(came.is_sorted_by_key(|taken| taken.counter));
    let named: BTreeSet<_> = came.iter().map(|taken| (taken.queue, taken.head)).collect();
    assert_eq!(named.len(), count);
    came.iter()
        .for_each(|taken| rings.complete(taken.queue, taken.head, 0));
    for queue in 0..layout.queues {
        let published = rings.publish(Queue(queue), &shared);
        assert_eq!(published, Ok(true));
        assert_eq!(rings.in_flight(Queue(queue)), 0);
    }
    let rings = open().expect("what we have written ourselves");
    assert_eq!(rings.again(), 0);
    true
}

fn flags_in(region: &Bytes, layout: &Layout) -> usize {
    let stride = layout.bytes() / u64::from(layout.queues);
    let entries = (0..u64::from(layout.queues)).flat_map(|queue| {
        let first = queue * stride + 16;
        (0..u64::from(layout.size)).map(move |head| first + 16 * head)
    });
    let is_set = |at: &u64| {
        let mut flag = [0];
        region.read(Address(*at), &mut flag).expect("inside");
        flag == [1]
    };
    entries.filter(is_set).count()
}

/// Bytes of a region, with fields that mostly make sense.
fn region_of(source: &mut Source, layout: &Layout) -> Vec<u8> {
    let stride = layout.bytes() as usize / usize::from(layout.queues);
    let mut region = Vec::new();
    for queue in 0..usize::from(layout.queues) {
        region.extend([0; 8]);
        region.extend(u16::from(!source.byte().is_multiple_of(8)).to_le_bytes());
        region.extend(layout.size.to_le_bytes());
        region.extend((source.u16() % layout.size).to_le_bytes());
        region.extend((source.u16() % 8).to_le_bytes());
        for _ in 0..layout.size {
            region.push(u8::from(source.flag()));
            region.extend([0; 5]);
            region.extend((source.u16() % layout.size).to_le_bytes());
            let counter = match source.byte() {
                ..4 => source.number(),
                other => other.into(),
            };
            region.extend(counter.to_le_bytes());
        }
        region.resize(stride * (queue + 1), 0);
    }
    region
}
