//! The in-flight region: its bytes are those of the protocol, a good one is repaired at each kill,
//! and a foreign one is refused with its reason.

mod common;

use common::{Pair, QUEUE, setup};
use vring::inflight::{Layout, RegionError};
use vring::memory::{Address, Bytes, Memory};
use vring::rings::{Rings, Shared, StartError};
use vring::split::Setup;
use vring::{Head, Queue};

const SIZE: u16 = 8;

fn pair() -> Pair {
    Pair::new(setup(0, SIZE, true, true), 65534)
}

fn number(pair: &Pair, at: u64) -> u16 {
    pair.region.load_u16(Address(at)).expect("inside")
}

fn flag(pair: &Pair, head: Head) -> u8 {
    let mut byte = [0];
    let at = 16 + 16 * u64::from(head.0);
    pair.region.read(Address(at), &mut byte).expect("inside");
    byte[0]
}

fn set(pair: &Pair, at: u64, value: u16) {
    pair.region.store_u16(Address(at), value).expect("inside");
}

#[test]
fn the_region_has_the_bytes_of_the_protocol() {
    let layout = |queues, size| Layout { queues, size }.bytes();
    // A header and eight entries are 144 bytes; queues begin at multiples of 64.
    assert_eq!(
        (layout(1, 8), layout(3, 8), layout(2, 128)),
        (192, 576, 2 * 2112)
    );
    let mut pair = pair();
    let header: Vec<u16> = (0..8).map(|at| number(&pair, at * 2)).collect();
    assert_eq!(header, [0, 0, 0, 0, 1, SIZE, 0, 65534]);
    let heads = [pair.offer_small(), pair.offer_small(), pair.offer_small()];
    pair.take().expect("good chains");
    for (counter, head) in heads.iter().enumerate() {
        assert_eq!(flag(&pair, *head), 1);
        assert_eq!(
            number(&pair, 16 + 16 * u64::from(head.0) + 8),
            counter as u16
        );
    }
    pair.complete(heads[2]);
    pair.complete(heads[0]);
    pair.publish();
    assert_eq!(number(&pair, 12), heads[0].0, "the last one of the batch");
    assert_eq!(
        number(&pair, 16 + 16 * u64::from(heads[0].0) + 6),
        heads[2].0
    );
    assert_eq!(number(&pair, 14), 0, "two after 65534");
    assert_eq!(heads.map(|head| flag(&pair, head)), [0, 1, 0]);
}

#[test]
fn a_region_behind_its_ring_is_repaired_from_the_last_batch() {
    let mut pair = pair();
    let heads: Vec<Head> = (0..4).map(|_| pair.offer_small()).collect();
    pair.take().expect("good chains");
    pair.complete(heads[1]);
    pair.complete(heads[3]);
    pair.publish();
    // As if the kill had come right after the store of the ring's index.
    set(&pair, 14, 65534);
    for head in [heads[1], heads[3]] {
        pair.region
            .store_u8(Address(16 + 16 * u64::from(head.0)), 1)
            .expect("inside");
    }
    pair.restart();
    assert_eq!(number(&pair, 14), 0);
    assert_eq!([1, 3].map(|at: usize| flag(&pair, heads[at])), [0, 0]);
    assert_eq!(pair.rings.again(), 2);
    assert_eq!(pair.reap(), [heads[1], heads[3]]);
    let new = pair.offer_small();
    assert_eq!(pair.take(), Ok(vec![heads[0], heads[2], new]));
}

#[test]
fn counters_are_never_given_twice() {
    let mut pair = pair();
    for round in 0..6 {
        let head = pair.offer_small();
        pair.take().expect("a good chain");
        let at = Address(16 + 16 * u64::from(head.0) + 8);
        assert_eq!(pair.region.load_u16(at), Ok(round));
        pair.complete(head);
        pair.publish();
        pair.reap();
        // Nothing is in flight, but what the host keeps of this request must not fit another one.
        pair.restart();
    }
}

#[test]
fn foreign_regions_are_refused_with_their_reason() {
    let mut pair = pair();
    let head = pair.offer_small();
    pair.take().expect("a good chain");
    let layout = pair.rings.layout();
    let good = pair.region.into_vec();
    let with = |at: usize, bytes: &[u8]| {
        let mut region = good.clone();
        region[at..at + bytes.len()].copy_from_slice(bytes);
        Rings::open(layout, &Bytes::new(region)).expect_err("foreign")
    };
    let entry = 16 + 16 * usize::from(head.0);
    assert_eq!(with(0, &[1]), RegionError::Features(QUEUE, 1));
    assert_eq!(with(8, &[2]), RegionError::Version(QUEUE, 2));
    assert_eq!(with(10, &[9]), RegionError::Size(QUEUE, 9, SIZE));
    assert_eq!(with(12, &[8]), RegionError::Head(QUEUE, 8));
    assert_eq!(with(entry, &[2]), RegionError::Flag(QUEUE, 2));
    let counter = RegionError::Counter(QUEUE, u64::MAX);
    assert_eq!(with(entry + 8, &[0xff; 8]), counter);
    let short = Bytes::new(good[..good.len() - 1].to_vec());
    let error = Rings::open(layout, &short).expect_err("too short");
    assert!(matches!(error, RegionError::Outside(_)));
    for (queues, size) in [(0, 8), (1, 0), (1, 12), (1, 65535)] {
        let error = Rings::open(Layout { queues, size }, &short).expect_err("no layout");
        assert_eq!(error, RegionError::Layout { queues, size });
    }
}

fn start(
    rings: &mut Rings,
    queue: u16,
    setup: Setup,
    guest: &Bytes,
    region: &Bytes,
) -> Result<(), StartError> {
    rings.start(Queue(queue), setup, 0, &Shared { guest, region })
}

#[test]
fn a_region_that_does_not_fit_its_ring_is_refused() {
    let mut pair = pair();
    let heads = [pair.offer_small(), pair.offer_small()];
    pair.take().expect("good chains");
    pair.complete(heads[0]);
    pair.publish();
    let setup = *pair.driver.setup();
    let layout = pair.rings.layout();
    let open = |pair: &Pair, setup: Setup| {
        let mut rings = Rings::open(layout, &pair.region).expect("good in itself");
        start(&mut rings, 0, setup, &pair.guest, &pair.region)
    };
    // The ring shows one used entry: the region would be nine behind.
    set(&pair, 14, 65535 - 9);
    let error = StartError::Region(RegionError::Batch(QUEUE, 9));
    assert_eq!(open(&pair, setup), Err(error));
    // One behind, and the list leads nowhere at its second step only.
    set(&pair, 14, 65534);
    set(&pair, 16 + 16 * u64::from(heads[0].0) + 6, 77);
    assert_eq!(open(&pair, setup), Ok(()));
    set(&pair, 14, 65533);
    let error = StartError::Region(RegionError::Head(QUEUE, 77));
    assert_eq!(open(&pair, setup), Err(error));
    let larger = Setup { size: 16, ..setup };
    assert_eq!(open(&pair, larger), Err(StartError::Size(QUEUE, 16, 8)));
}

#[test]
fn a_ring_that_was_laid_out_anew_with_nothing_in_flight_starts() {
    let mut pair = pair();
    let setup = *pair.driver.setup();
    let head = pair.offer_small();
    pair.take().expect("a good chain");
    pair.complete(head);
    pair.publish();
    pair.driver = vring::driver::Driver::new(setup, 1000, &pair.guest).expect("inside");
    pair.restart();
    assert_eq!(number(&pair, 14), 1000);
    let head = pair.offer_small();
    assert_eq!(pair.take(), Ok(vec![head]));
}

#[test]
fn nothing_runs_while_a_queue_that_owes_has_not_started() {
    let guest = Bytes::zeroed(common::GUEST_BYTES);
    let layout = Layout {
        queues: 3,
        size: SIZE,
    };
    let region = Bytes::zeroed(layout.bytes());
    let setups = [0, 1, 2].map(|queue| setup(queue, SIZE, true, true));
    let mut drivers = setups.map(|it| vring::driver::Driver::new(it, 0, &guest).expect("inside"));
    let mut rings = Rings::open(layout, &region).expect("a new region");
    let shared = Shared {
        guest: &guest,
        region: &region,
    };
    let mut batch = vring::chain::Batch::default();
    let order = [2, 0, 2, 0];
    for queue in 0..3 {
        start(
            &mut rings,
            queue,
            setups[usize::from(queue)],
            &guest,
            &region,
        )
        .expect("starts");
    }
    for queue in order {
        let driver = &mut drivers[usize::from(queue)];
        let one = [common::segment(common::BUFFERS, 1)];
        driver.offer(&guest, &one, &[], None).expect("inside");
        driver.show(&guest).expect("inside");
        rings
            .take(Queue(queue), &shared, 1, &mut batch)
            .expect("a good chain");
    }
    let mut rings = Rings::open(layout, &region).expect("a good region");
    assert_eq!(rings.owing().collect::<Vec<_>>(), [Queue(0), Queue(2)]);
    batch.clear();
    start(&mut rings, 0, setups[0], &guest, &region).expect("starts");
    drivers[0]
        .offer(&guest, &[common::segment(common::BUFFERS, 1)], &[], None)
        .expect("inside");
    drivers[0].show(&guest).expect("inside");
    assert_eq!(rings.take_again(&shared, 9, &mut batch), 0);
    assert_eq!(rings.take(Queue(0), &shared, 9, &mut batch), Ok(0));
    start(&mut rings, 2, setups[2], &guest, &region).expect("starts");
    assert_eq!(
        rings.take(Queue(0), &shared, 9, &mut batch),
        Ok(0),
        "the old first"
    );
    assert_eq!(rings.take_again(&shared, 3, &mut batch), 3);
    assert_eq!(rings.take_again(&shared, 3, &mut batch), 1);
    assert_eq!(rings.take(Queue(0), &shared, 9, &mut batch), Ok(1));
    let queues: Vec<u16> = batch.iter().map(|(taken, _)| taken.queue.0).collect();
    assert_eq!(queues, [2, 0, 2, 0, 0]);
    let counters: Vec<u64> = batch.iter().map(|(taken, _)| taken.counter.0).collect();
    assert_eq!(counters, [0, 1, 2, 3, 4]);
}
