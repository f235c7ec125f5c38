//! Who has a device, and how connections end.

use super::super::DataError;
use super::super::connection::{Connections, Refused};
use super::{Fake, Guest, PATIENCE, beside_others, connect, description, memory_file, wait_for};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

fn try_connect(connections: &Connections, device: &str) -> Result<UnixStream, Refused> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    connections.connect(device, ours, |_| Ok((description(), Fake::default())))?;
    Ok(theirs)
}

#[test]
fn a_second_front_end_gets_ready_and_runs_when_the_first_has_stopped() {
    let _guard = beside_others();
    let first = Guest::running();
    let mut second = Guest::connect_by(&first.connections, memory_file(super::BYTES));
    second.negotiate();
    second.share();
    second.set_up(0);
    second.front.set_vring_enable(0, true).unwrap_err();
    assert!(first.runs(0) && !second.runs(0));
    first.front.get_vring_base(0).unwrap();
    second.front.set_vring_enable(0, true).unwrap();
    assert!(!first.runs(0) && second.runs(0));
    // And back, where the guest has not moved after all.
    second.front.get_vring_base(0).unwrap();
    let mut first = first;
    first.start(0);
    assert!(first.runs(0));
    drop(second.front);
    second.fake.wait_until(|told| told.ended == Some(true));
    assert!(first.runs(0));
    first.go();
}

#[test]
fn a_second_front_end_runs_when_the_first_is_drained() {
    let _guard = beside_others();
    let guest = Guest::running();
    let (connections, first) = (guest.connections.clone(), guest.fake.clone());
    first.change(|told| told.draining = true);
    let file = memory_file(super::BYTES);
    drop(guest.front);
    let mut second = Guest::connect_by(&connections, file);
    second.negotiate();
    second.share();
    assert!(first.told().ended.is_none());
    let (drained, waiting) = (first.clone(), second.fake.clone());
    let helper = std::thread::spawn(move || {
        // What must not come is given a moment to come in; longer than one that lives is waited
        // for.
        let begin = Instant::now();
        let runs = || !waiting.told().running.is_empty();
        while !runs() && begin.elapsed() < Duration::from_secs(3) {
            std::thread::yield_now();
        }
        let early = runs();
        drained.change(|told| told.draining = false);
        early
    });
    second.start(0);
    assert!(!helper.join().unwrap(), "ran beside the first");
    // Its rings were drained; what else it had goes a moment later.
    first.wait_until(|told| told.ended.is_some());
    assert_eq!(first.told().ended, Some(false));
    assert!(second.runs(0));
    second.go();
}

#[test]
fn few_front_ends_have_one_device() {
    let _guard = beside_others();
    let connections = Connections::new(100);
    let mut ends: Vec<UnixStream> = Vec::new();
    let refused = loop {
        match try_connect(&connections, "disk") {
            Ok(end) => ends.push(end),
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, Refused::Taken(4)) && ends.len() == 4);
    let other = try_connect(&connections, "another").unwrap();
    let counters = connections.counters();
    assert_eq!((counters.connections, counters.refused), (5, 1));
    drop((ends, other));
    wait_for(|| connections.counters().connections == 0);
}

#[test]
fn who_is_not_let_in_is_closed() {
    let _guard = beside_others();
    let connections = Connections::new(1);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let closed = |_| Err::<(_, Fake), _>(DataError::Stopped);
    connections.connect("disk", ours, closed).unwrap();
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    wait_for(|| connections.count("disk") == 0);
}

#[test]
fn a_front_end_that_stopped_its_rings_has_gone_in_order() {
    let _guard = beside_others();
    let guest = Guest::running();
    let fake = guest.fake.clone();
    guest.front.get_vring_base(0).unwrap();
    guest.go();
    assert_eq!(fake.told().ended, Some(true));
    let guest = Guest::running();
    let fake = guest.fake.clone();
    guest.go();
    assert_eq!(fake.told().ended, Some(false));
}

#[test]
fn rings_that_stop_while_dirty_pages_are_noted_are_no_end_of_a_guest() {
    let _guard = beside_others();
    let guest = Guest::running();
    let fake = guest.fake.clone();
    let bits = memory_file(4096);
    let log = VhostUserDirtyLogRegion {
        mmap_size: 4096,
        mmap_offset: 0,
        mmap_handle: bits.as_raw_fd(),
    };
    guest.front.set_log_base(0, Some(log)).unwrap();
    let offered = guest.front.get_features().unwrap();
    guest.front.set_features(offered).unwrap();
    guest.front.get_vring_base(0).unwrap();
    guest.go();
    assert_eq!(fake.told().ended, Some(false), "it goes on elsewhere");
    // One that came back has not gone.
    let guest = Guest::running();
    let goes_on = guest.fake.told().running[&0].goes_on;
    assert!(goes_on, "its base is not 0");
    guest.front.get_vring_base(0).unwrap();
    guest.go();
}

#[test]
fn front_ends_are_bounded_in_number() {
    let _guard = beside_others();
    let connections = Connections::new(2);
    let (fake, first) = connect(&connections, "a");
    let (_, second) = connect(&connections, "b");
    let refused = try_connect(&connections, "c");
    assert!(matches!(refused, Err(Refused::TooMany(2))));
    drop(first);
    fake.wait_until(|told| told.ended.is_some());
    wait_for(|| connections.count("a") == 0);
    let third = try_connect(&connections, "c").unwrap();
    drop((second, third));
    assert!(connections.stop(PATIENCE));
}

#[test]
fn closing_a_device_drains_it() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    guest.fake.change(|told| told.draining = true);
    let connections = guest.connections.clone();
    assert!(!connections.disconnect("disk", Duration::from_millis(10)));
    assert!(guest.is_closed());
    guest.fake.change(|told| told.draining = false);
    assert!(connections.disconnect("disk", PATIENCE));
    assert_eq!(guest.fake.told().ended, Some(false));
    assert!(connections.disconnect("nobody", Duration::ZERO));
}

#[test]
fn a_front_end_that_is_cut_off_sees_it_before_its_rings_are_drained() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    guest.fake.change(|told| told.draining = true);
    guest.front.set_hdr_flags(VhostUserHeaderFlag::empty());
    // Refused, and nobody asked for an answer.
    guest.front.set_vring_num(0, 3).unwrap();
    assert!(guest.is_closed());
    assert!(guest.fake.told().ended.is_none());
    guest.fake.change(|told| told.draining = false);
    guest.fake.wait_until(|told| told.ended.is_some());
}

#[test]
fn the_end_of_the_daemon_ends_all() {
    let _guard = beside_others();
    let guest = Guest::running();
    let (_, idle) = connect(&guest.connections, "idle");
    assert!(guest.connections.stop(PATIENCE));
    assert_eq!(guest.fake.told().ended, Some(false));
    let refused = try_connect(&guest.connections, "disk");
    assert!(matches!(refused, Err(Refused::Stopping)));
    drop(idle);
}

#[test]
fn a_data_side_that_has_stopped_ends_the_connection() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    guest.fake.change(|told| told.stopped = true);
    guest.front.set_vring_enable(0, false).unwrap_err();
    assert!(guest.is_closed());
    guest.fake.wait_until(|told| told.ended.is_some());
}

#[test]
fn a_ring_that_does_not_start_again_ends_the_connection() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    guest.fake.change(|told| told.refuse_start = true);
    guest.front.set_vring_kick(0, &guest.kicks[1]).unwrap_err();
    assert!(
        guest.is_closed(),
        "it ran, and nobody knows any more what does"
    );
    guest.fake.wait_until(|told| told.ended.is_some());
    let mut guest = Guest::connect();
    guest.negotiate();
    guest.share();
    guest.fake.change(|told| told.refuse_start = true);
    guest.front.set_vring_num(0, super::SIZE).unwrap();
    guest
        .front
        .set_vring_addr(0, &super::ring_at(0, 0, None))
        .unwrap();
    guest.front.set_vring_kick(0, &guest.kicks[0]).unwrap();
    guest.front.set_vring_enable(0, true).unwrap_err();
    guest.fake.change(|told| told.refuse_start = false);
    guest.front.set_vring_enable(0, true).unwrap();
    assert!(guest.runs(0));
    guest.go();
}

#[test]
fn a_wire_that_makes_no_sense_is_closed() {
    let _guard = beside_others();
    let connections = Connections::new(1);
    // A version that there is not, a message that there is not, a size that no message has.
    let bad: [[u32; 3]; 4] = [[1, 2, 0], [99, 1, 0], [1, 1, 5000], [1, 1, 4]];
    for words in bad {
        let (fake, mut theirs) = connect(&connections, "disk");
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        theirs.write_all(&bytes).unwrap();
        theirs.write_all(&[0; 4]).unwrap_or_default();
        let mut rest = Vec::new();
        let _ = theirs.read_to_end(&mut rest);
        assert!(rest.is_empty());
        fake.wait_until(|told| told.ended.is_some());
        wait_for(|| connections.count("disk") == 0);
    }
    assert_eq!(connections.counters().broken, 4);
}
