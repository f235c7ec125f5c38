//! Memory, rings, the in-flight region and the log, by messages in good and in bad order.

use super::super::dirty::PAGE_BYTES;
use super::super::region::Region;
use super::{BYTES, GUEST, Guest, QUEUES, SIZE, USER, beside_others, info, memory_file, ring_at};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight};
use vhost::{VhostBackend, VhostUserDirtyLogRegion};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use vring::inflight::Layout;
use vring::memory::{Address, Memory};

#[test]
fn a_ring_runs_when_it_has_a_kick_and_is_enabled() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    guest.share();
    guest.front.set_vring_num(1, SIZE).unwrap();
    guest.front.set_vring_base(1, 9).unwrap();
    guest.front.set_vring_addr(1, &ring_at(1, 0, None)).unwrap();
    guest.front.set_vring_kick(1, &guest.kicks[1]).unwrap();
    assert!(!guest.runs(1));
    guest.front.set_vring_enable(1, true).unwrap();
    let ring = guest.fake.told().running[&1].clone();
    assert_eq!((ring.base, ring.setup.size), (9, SIZE));
    assert_eq!(ring.setup.descriptors, Address(GUEST + 0x4000));
    assert_eq!(ring.setup.available, Address(GUEST + 0x5000));
    assert_eq!(ring.setup.used, Address(GUEST + 0x6000));
    assert!(ring.call.is_none());
    assert_eq!(guest.front.get_vring_base(1).unwrap(), 10);
    assert!(!guest.runs(1));
    guest.front.set_vring_enable(1, true).unwrap();
    assert!(!guest.runs(1), "another kick is needed");
    guest.front.set_vring_kick(1, &guest.kicks[1]).unwrap();
    assert_eq!(guest.fake.told().running[&1].base, 10);
    let call = EventFd::new(0).unwrap();
    guest.front.set_vring_call(1, &call).unwrap();
    guest.front.get_vring_base(1).unwrap();
    guest.front.set_vring_kick(1, &guest.kicks[1]).unwrap();
    assert!(guest.fake.told().running[&1].call.is_some());
    guest.go();
}

#[test]
fn without_protocol_features_a_ring_is_enabled_from_the_beginning() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    let offered = guest.front.get_features().unwrap();
    guest
        .front
        .set_features(offered & !(1 << 26 | 1 << 30))
        .unwrap();
    guest.share();
    guest.front.set_vring_num(0, SIZE).unwrap();
    guest.front.set_vring_addr(0, &ring_at(0, 0, None)).unwrap();
    guest.front.set_vring_kick(0, &guest.kicks[0]).unwrap();
    assert!(guest.runs(0));
    guest.go();
}

#[test]
fn a_front_end_that_agrees_to_nothing_has_its_rings_and_no_write_back_cache() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.front.get_features().unwrap();
    guest.share();
    guest.front.set_vring_num(0, SIZE).unwrap();
    guest.front.set_vring_addr(0, &ring_at(0, 0, None)).unwrap();
    guest.front.set_vring_kick(0, &guest.kicks[0]).unwrap();
    guest.fake.wait_until(|told| told.running.contains_key(&0));
    assert_eq!(guest.fake.told().write_back, Some(false));
    guest.go();
}

#[test]
fn a_ring_that_is_disabled_goes_on_where_it_was() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    guest.front.set_vring_enable(0, false).unwrap();
    assert!(!guest.runs(0));
    guest.front.set_vring_enable(0, true).unwrap();
    assert_eq!(guest.fake.told().running[&0].base, 8);
    guest.go();
}

#[test]
fn nothing_of_a_ring_changes_while_it_runs_except_its_signals() {
    let _guard = beside_others();
    let guest = Guest::running();
    guest.front.set_vring_num(0, SIZE / 2).unwrap_err();
    guest.front.set_vring_base(0, 1).unwrap_err();
    let mut moved = ring_at(0, 0, None);
    moved.used_ring_addr += 0x1000;
    guest.front.set_vring_addr(0, &moved).unwrap_err();
    guest.front.set_vring_addr(0, &ring_at(0, 0, None)).unwrap();
    let before = guest.fake.told().running[&0].call.clone().unwrap();
    let event = EventFd::new(0).unwrap();
    guest.front.set_vring_call(0, &event).unwrap();
    guest.front.set_vring_err(0, &event).unwrap();
    let ring = guest.fake.told().running[&0].clone();
    assert_ne!(ring.call.unwrap().as_raw_fd(), before.as_raw_fd());
    assert!(ring.error.is_some());
    assert_eq!(guest.fake.told().started, 1);
    guest.front.set_vring_kick(0, &event).unwrap();
    assert_eq!((guest.started(), guest.runs(0)), (2, true));
    guest.go();
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    guest.share();
    guest.front.set_vring_num(0, 3).unwrap_err();
    guest.front.set_vring_num(0, 0).unwrap_err();
    guest.front.set_vring_num(0, 32768).unwrap();
    guest.front.set_vring_enable(0, true).unwrap();
    guest.front.set_vring_kick(0, &guest.kicks[0]).unwrap_err();
    guest.front.set_vring_addr(0, &ring_at(0, 0, None)).unwrap();
    let mut behind = ring_at(1, 0, None);
    behind.used_ring_addr = USER + BYTES - 4;
    guest.front.set_vring_num(1, SIZE).unwrap();
    guest.front.set_vring_addr(1, &behind).unwrap();
    guest.front.set_vring_enable(1, true).unwrap();
    guest.front.set_vring_kick(1, &guest.kicks[1]).unwrap_err();
    assert!(guest.fake.told().running.is_empty());
    guest.go();
}

#[test]
fn queues_that_are_not_there_are_refused() {
    let _guard = beside_others();
    let connections = super::Connections::new(1);
    let (fake, theirs) = super::connect(&connections, "disk");
    // This front end believes that there are more.
    let mut front = vhost::vhost_user::Frontend::from_stream(theirs, 256);
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let offered = front.get_features().unwrap();
    front.set_protocol_features(super::ALL).unwrap();
    front.set_features(offered & !(1 << 26)).unwrap();
    let queue = usize::from(QUEUES);
    let event = EventFd::new(0).unwrap();
    front.set_vring_num(queue, SIZE).unwrap_err();
    front.set_vring_base(queue, 0).unwrap_err();
    front
        .set_vring_addr(queue, &ring_at(0, 0, None))
        .unwrap_err();
    front.set_vring_kick(queue, &event).unwrap_err();
    front.set_vring_call(queue, &event).unwrap_err();
    front.set_vring_err(queue, &event).unwrap_err();
    front.set_vring_enable(queue, true).unwrap_err();
    // This one has an answer of its own, so the connection is closed instead.
    front.get_vring_base(queue).unwrap_err();
    fake.wait_until(|told| told.ended.is_some());
}

#[test]
fn only_events_wake_us_and_are_signalled() {
    let _guard = beside_others();
    let connections = super::Connections::new(1);
    let no_event = memory_file(8);
    for request in [12, 13, 14] {
        let (fake, theirs) = super::connect(&connections, "disk");
        let message = super::random::message(request, 1, &0u64.to_ne_bytes());
        theirs
            .send_with_fd(&message[..], no_event.as_raw_fd())
            .unwrap();
        fake.wait_until(|told| told.ended.is_some());
        super::wait_for(|| connections.count("disk") == 0);
    }
    assert_eq!(connections.counters().messages_refused, 3);
}

#[test]
fn a_new_table_of_memory_lets_rings_run_that_stay_where_they_are() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    let more = memory_file(BYTES);
    let added = info(GUEST + BYTES, USER + BYTES, BYTES, &more);
    let old = guest.fake.memory();
    guest.front.add_mem_region(&added).unwrap();
    let told = |guest: &Guest| (guest.started(), guest.runs(0));
    assert_eq!(told(&guest), (1, true));
    guest
        .fake
        .memory()
        .check(Address(GUEST), 2 * BYTES)
        .unwrap();
    assert!(
        old.check(Address(GUEST), 2 * BYTES).is_err(),
        "in flight: as it was"
    );
    guest.front.remove_mem_region(&added).unwrap();
    assert!(
        guest
            .fake
            .memory()
            .check(Address(GUEST + BYTES), 1)
            .is_err()
    );
    guest.front.remove_mem_region(&added).unwrap_err();
    assert_eq!(told(&guest), (1, true));
    // The same address of the front end at another of the guest.
    let moved = info(GUEST + BYTES, USER, BYTES, &guest.file);
    guest.front.set_mem_table(&[moved]).unwrap();
    assert_eq!(told(&guest), (2, true));
    let ring = guest.fake.told().running[&0].clone();
    assert_eq!((ring.base, ring.setup.descriptors.0), (8, GUEST + BYTES));
    guest.go();
}

#[test]
fn a_ring_whose_memory_goes_waits_until_it_is_back() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    let all = info(GUEST, USER, BYTES, &guest.file);
    guest.front.remove_mem_region(&all).unwrap();
    assert!(!guest.runs(0));
    guest.front.add_mem_region(&all).unwrap();
    assert!(guest.runs(0));
    assert_eq!(guest.fake.told().running[&0].base, 8);
    guest.front.remove_mem_region(&all).unwrap();
    assert_eq!(guest.front.get_vring_base(0).unwrap(), 9);
    guest.front.add_mem_region(&all).unwrap();
    assert!(!guest.runs(0), "its base was asked for");
    guest.go();
}

#[test]
fn a_table_that_cannot_be_changes_nothing() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    let memories = guest.fake.told().memories;
    let good = info(GUEST, USER, BYTES, &guest.file);
    let large = info(GUEST, USER, 2 * BYTES, &guest.file);
    guest.front.set_mem_table(&[large]).unwrap_err();
    guest.front.set_mem_table(&[good, good]).unwrap_err();
    guest.front.add_mem_region(&good).unwrap_err();
    assert_eq!(guest.fake.told().memories, memories);
    assert!(guest.runs(0));
    guest.go();
}

fn inflight(queues: u16, size: u16) -> VhostUserInflight {
    VhostUserInflight::new(0, 0, queues, size)
}

#[test]
fn a_region_is_handed_out_and_comes_back() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    let (made, file) = guest
        .front
        .get_inflight_fd(&inflight(QUEUES, SIZE))
        .unwrap();
    let layout = Layout {
        queues: QUEUES,
        size: SIZE,
    };
    assert_eq!(
        (made.mmap_size, made.mmap_offset),
        (Region::bytes(layout), 0)
    );
    assert_eq!(guest.fake.region().layout(), layout);
    guest.fake.region().store_u8(Address(70), 7).unwrap();
    guest.share();
    guest.start(0);
    let again = guest.front.set_inflight_fd(&made, file.as_raw_fd());
    again.expect_err("a ring runs");
    let (connections, memory) = (guest.connections.clone(), guest.file.try_clone().unwrap());
    guest.go();
    let mut guest = Guest::connect_by(&connections, memory);
    guest.negotiate();
    guest
        .front
        .set_inflight_fd(&made, file.as_raw_fd())
        .unwrap();
    let mut byte = [0];
    guest.fake.region().read(Address(70), &mut byte).unwrap();
    assert_eq!(byte, [7]);
    let mut lies = made;
    lies.queue_size = 2 * SIZE;
    guest
        .front
        .set_inflight_fd(&lies, file.as_raw_fd())
        .unwrap_err();
    lies = made;
    lies.mmap_offset = 4096;
    guest
        .front
        .set_inflight_fd(&lies, file.as_raw_fd())
        .unwrap_err();
    guest.share();
    guest.start(0);
    guest.front.set_vring_num(1, 2 * SIZE).unwrap();
    guest.front.set_vring_addr(1, &ring_at(1, 0, None)).unwrap();
    guest.front.set_vring_enable(1, true).unwrap();
    let refused = guest.front.set_vring_kick(1, &guest.kicks[1]);
    refused.expect_err("more descriptors than the region has");
    guest.go();
}

#[test]
fn a_queue_that_the_region_has_no_room_for_is_refused() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    guest.front.get_inflight_fd(&inflight(1, SIZE)).unwrap();
    guest.share();
    guest.start(0);
    guest.set_up(1);
    let refused = guest.front.set_vring_enable(1, true);
    refused.expect_err("the region is for one queue");
    assert!(!guest.fake.told().running.contains_key(&1));
    guest.go();
}

#[test]
fn without_a_region_of_the_front_end_there_is_one_of_our_own() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    let first = guest.fake.region();
    assert_eq!(first.layout().queues, QUEUES);
    guest.start(1);
    assert!(std::sync::Arc::ptr_eq(&first, &guest.fake.region()));
    guest.front.get_vring_base(0).unwrap();
    guest.front.get_vring_base(1).unwrap();
    guest.start(0);
    assert!(
        !std::sync::Arc::ptr_eq(&first, &guest.fake.region()),
        "a new one"
    );
    guest.go();
}

#[test]
fn a_migration_notes_what_is_written_and_where_used_rings_want_it() {
    let _guard = beside_others();
    let guest = Guest::running();
    let offered = guest.front.get_features().unwrap();
    let (bits, pages) = (memory_file(4096), (GUEST + BYTES) / PAGE_BYTES);
    let log = |bytes| VhostUserDirtyLogRegion {
        mmap_size: bytes,
        mmap_offset: 0,
        mmap_handle: bits.as_raw_fd(),
    };
    let is_set = |page: u64| {
        let mut byte = [0];
        bits.read_exact_at(&mut byte, page / 8).unwrap();
        byte[0] >> (page % 8) & 1 == 1
    };
    let old = guest.fake.memory();
    guest.front.set_log_base(0, Some(log(pages / 8))).unwrap();
    old.store_u8(Address(GUEST), 1).unwrap();
    assert!(!is_set(GUEST / PAGE_BYTES));
    let memories = guest.fake.told().memories;
    guest.front.set_features(offered).unwrap();
    assert_eq!(
        guest.fake.told().memories,
        memories + 1,
        "the data side knows"
    );
    old.store_u8(Address(GUEST), 1).unwrap();
    assert!(is_set(GUEST / PAGE_BYTES), "also of a request from before");
    let noted = ring_at(0, 1, Some(600 * PAGE_BYTES));
    guest.front.set_vring_addr(0, &noted).unwrap();
    let used = guest.fake.told().running[&0].setup.used;
    guest
        .fake
        .memory()
        .store_u16(Address(used.0 + 2), 1)
        .unwrap();
    assert!(!is_set(600), "behind the end of this log");
    guest.front.set_log_base(0, Some(log(4096))).unwrap();
    guest
        .fake
        .memory()
        .store_u16(Address(used.0 + 2), 1)
        .unwrap();
    assert!(is_set(600) && is_set(used.0 / PAGE_BYTES) && !is_set(601));
    guest.front.set_features(offered & !(1 << 26)).unwrap();
    guest
        .fake
        .memory()
        .store_u8(Address(GUEST + 5 * PAGE_BYTES), 1)
        .unwrap();
    assert!(!is_set(GUEST / PAGE_BYTES + 5));
    guest.front.set_log_base(0, Some(log(4096))).unwrap();
    guest.front.set_features(offered).unwrap();
    guest.go();
    old.store_u8(Address(GUEST + 5 * PAGE_BYTES), 1).unwrap();
    assert!(!is_set(GUEST / PAGE_BYTES + 5), "nobody looks any more");
}

#[test]
fn a_log_that_is_too_short_is_refused() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    let bits = memory_file(4096);
    let enough = (GUEST + BYTES) / PAGE_BYTES / 8;
    let log = |bytes| VhostUserDirtyLogRegion {
        mmap_size: bytes,
        mmap_offset: 0,
        mmap_handle: bits.as_raw_fd(),
    };
    let offered = guest.front.get_features().unwrap();
    let more = memory_file(BYTES);
    let added = info(GUEST + BYTES, USER + BYTES, BYTES, &more);
    guest.front.set_log_base(0, Some(log(enough))).unwrap();
    guest.front.add_mem_region(&added).unwrap();
    guest.front.set_features(offered).unwrap_err();
    guest.front.remove_mem_region(&added).unwrap();
    guest.front.set_features(offered).unwrap();
    guest.front.add_mem_region(&added).unwrap_err();
    guest.front.set_log_base(0, Some(log(2 * enough))).unwrap();
    guest.front.add_mem_region(&added).unwrap();
    // This has an answer of its own, so the connection is closed instead.
    guest.front.set_log_base(0, Some(log(enough))).unwrap_err();
    guest.fake.wait_until(|told| told.ended.is_some());
}

#[test]
fn an_event_for_the_log_is_taken_and_not_used() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    let event = EventFd::new(0).unwrap();
    guest.front.set_log_fd(event.as_raw_fd()).unwrap();
    guest.front.set_hdr_flags(VhostUserHeaderFlag::empty());
    guest.front.set_log_fd(event.as_raw_fd()).unwrap();
    guest.front.get_features().unwrap();
    guest.go();
}

#[test]
fn an_event_for_the_log_may_come_with_a_number() {
    let _guard = beside_others();
    let connections = super::Connections::new(1);
    let (_, mut theirs) = super::connect(&connections, "disk");
    let event = EventFd::new(0).unwrap();
    let message = super::random::message(7, 1, &[0; 8]);
    theirs
        .send_with_fd(&message[..], event.as_raw_fd())
        .unwrap();
    theirs
        .write_all(&super::random::message(1, 1, &[]))
        .unwrap();
    let mut answer = [0; 20];
    theirs.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..4], 1u32.to_ne_bytes());
}

#[test]
fn the_owner_may_give_its_device_up_and_start_again() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    guest.front.reset_owner().unwrap();
    assert!(!guest.runs(0));
    guest.front.set_vring_kick(0, &guest.kicks[0]).unwrap();
    assert!(guest.runs(0));
    assert!(!guest.is_closed());
    guest.go();
}
