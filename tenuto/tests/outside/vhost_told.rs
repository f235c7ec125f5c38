//! Whom the rings of a guest call, and that nobody waits for ever for a call that has been made.
//!
//! A guest that moves has its requests answered by one QEMU and looks at the answers in another:
//! an interrupt that comes a moment too late, or to an event that nobody reads yet, is lost, and a
//! guest that waits for nothing else stands still.

use crate::common::front_end::{Event, Polite};
use crate::common::{Daemon, Rig, count};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const BYTES: u64 = 16 << 20;
const BLOCK: usize = 4096;
const SOON: Duration = Duration::from_secs(30);
/// So long at most the end of a ring waits for an event that is full.
const FULL_WAIT: Duration = Duration::from_secs(1);

fn serve() -> (Rig, Daemon, PathBuf) {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.guest_volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    let socket = rig.run_dir().join("disk.vhost.sock");
    (rig, daemon, socket)
}

/// Fails when: a new event is called for what is new alone.
#[test]
fn a_ring_that_is_to_call_somebody_else_calls_once_for_what_was_told_before() {
    let (_rig, daemon, socket) = serve();
    let mut guest = Polite::connect(&socket).expect("connect");
    for round in 0..20 {
        guest.write(round * BLOCK as u64, &[round as u8; BLOCK]);
        // Nobody has looked at the one before.
        guest.call_instead(Event::new());
        assert!(guest.is_called(SOON), "what was answered is told again");
        assert!(!guest.is_called(Duration::from_millis(20)), "and once");
        guest.complain_to(Event::new());
        assert!(
            !guest.is_called(Duration::from_millis(20)),
            "nothing is new"
        );
    }
    guest.leave();
    daemon.stop();
}

/// Fails when: the end of a ring does not wait for signals (one run in three notices); a ring that
/// starts sends no interrupt.
#[test]
fn a_ring_has_ended_only_after_its_guest_was_called_for_its_last_request() {
    let (_rig, daemon, socket) = serve();
    let mut guest = Polite::connect(&socket).expect("connect");
    let mut answered = 0;
    for round in 0..20 * count("TENUTO_DRILL_ROUNDS", 100) {
        // The start of a ring calls once.
        assert!(guest.is_called(SOON));
        guest.begin_write(round % 64 * BLOCK as u64, &[round as u8; BLOCK]);
        guest.stop();
        // One that was stopped before it was looked at has nothing to tell.
        if guest.answers() > 0 {
            answered += 1;
            let called = guest.is_called(Duration::ZERO);
            assert!(called, "round {round}: answered, and not called for");
        }
        guest.start();
    }
    assert!(answered > 0, "no request was under way");
    guest.leave();
    daemon.stop();
}

/// Fails when: the end of a ring does not wait for signals.
#[test]
fn an_event_that_is_full_holds_up_the_end_of_its_ring_for_a_moment_only() {
    let (_rig, daemon, socket) = serve();
    let mut guest = Polite::connect(&socket).expect("connect");
    guest.call_instead(Event::full());
    guest.begin_write(0, &[7; BLOCK]);
    let start = Instant::now();
    while guest.answers() == 0 {
        assert!(
            start.elapsed() < SOON,
            "its event is full, its ring goes on"
        );
    }
    let start = Instant::now();
    guest.stop();
    let took = start.elapsed();
    assert!(took >= FULL_WAIT / 2, "{took:?}: it was not waited for");
    assert!(took < SOON, "{took:?}");
    daemon.stop();
}

/// Fails when: the end of a front end waits for signals like the end of a ring.
#[test]
fn nobody_waits_for_the_events_of_a_front_end_that_is_gone() {
    const ROUNDS: u32 = 20;
    let (_rig, daemon, socket) = serve();
    let start = Instant::now();
    for round in 0..ROUNDS {
        let mut guest = Polite::connect(&socket).expect("connect");
        guest.write(0, &[round as u8; BLOCK]);
        guest.call_instead(Event::full());
        guest.begin_write(u64::from(round + 1) * BLOCK as u64, &[7; BLOCK]);
        drop(guest);
    }
    let took = start.elapsed();
    assert!(took < ROUNDS * FULL_WAIT / 2, "{took:?} for {ROUNDS}");
    daemon.stop();
}
