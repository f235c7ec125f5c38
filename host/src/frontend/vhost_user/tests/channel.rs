//! A disk that grows, and how its front ends hear of it.

use super::random::message;
use super::{ALL, Guest, PATIENCE, beside_others, connect, memory_file, wait_for};
use crate::frontend::vhost_user::connection::{Connections, Heard};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, version 1, no body.
const CHANGED: [u8; 12] = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
const TOLD: Heard = Heard { told: 1, untold: 0 };
const UNTOLD: Heard = Heard { told: 0, untold: 1 };
/// What `description` begins with.
const SECTORS: u64 = 2048;

fn sectors(guest: &mut Guest) -> u64 {
    let flags = VhostUserConfigFlags::empty();
    let (_, read) = guest.front.get_config(0, 60, flags, &[0; 60]).unwrap();
    u64::from_le_bytes(read[..8].try_into().unwrap())
}

/// Gives the front end a channel; where it is read.
fn channel(guest: &mut Guest) -> UnixStream {
    let (reads, given) = UnixStream::pair().unwrap();
    guest.front.set_backend_request_fd(&given).unwrap();
    reads.set_read_timeout(Some(PATIENCE)).unwrap();
    reads
}

fn hears(channel: &mut UnixStream) {
    let mut bytes = [0xff; 12];
    channel.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, CHANGED);
    hears_nothing(channel);
}

/// What has happened was told before, in the same thread.
fn hears_nothing(channel: &mut UnixStream) {
    channel.set_nonblocking(true).unwrap();
    let more = channel.read(&mut [0]);
    channel.set_nonblocking(false).unwrap();
    let nothing = more.map_err(|error| error.kind());
    assert_eq!(nothing, Err(std::io::ErrorKind::WouldBlock));
}

/// Fails when: the message has another form, goes before the configuration has the new size, or
/// one of two front ends does not hear it.
#[test]
fn a_front_end_is_told_that_its_disk_has_grown_and_reads_the_new_size() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    let mut reads = channel(&mut guest);
    assert_eq!(sectors(&mut guest), SECTORS);
    guest.share();
    guest.start_at(0, 0);
    hears_nothing(&mut reads);
    assert_eq!(guest.connections.grow("disk", 2 * SECTORS), TOLD);
    assert_eq!(sectors(&mut guest), 2 * SECTORS);
    hears(&mut reads);
    // Whom it moves to is shown the same.
    let mut second = Guest::connect_by(&guest.connections, memory_file(super::BYTES));
    second.negotiate();
    assert_eq!(sectors(&mut second), 2 * SECTORS);
    let mut also = channel(&mut second);
    let heard = guest.connections.grow("disk", 3 * SECTORS);
    assert_eq!((heard.told, heard.untold), (2, 0));
    hears(&mut reads);
    hears(&mut also);
    assert_eq!(guest.connections.grow("other", 4096), Heard::default());
    // The next guest finds what its description says.
    drop(second.front);
    second.fake.wait_until(|told| told.ended.is_some());
    let connections = guest.connections.clone();
    guest.go();
    let mut next = Guest::connect_by(&connections, memory_file(super::BYTES));
    next.negotiate();
    assert_eq!(sectors(&mut next), SECTORS);
    next.go();
}

/// Fails when: a front end that goes on with its rings, and does not read, is not told.
#[test]
fn a_front_end_whose_size_is_old_is_told_when_its_rings_run() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    let mut reads = channel(&mut guest);
    guest.share();
    hears_nothing(&mut reads);
    guest.start_at(0, 7);
    hears(&mut reads);
    guest.start_at(1, 7);
    hears_nothing(&mut reads);
    assert_eq!(sectors(&mut guest), SECTORS);
    // Between its look and its first ring, and its channel comes last of all.
    let mut guest = Guest::connect();
    guest.negotiate();
    assert_eq!(sectors(&mut guest), SECTORS);
    assert_eq!(guest.connections.grow("disk", 2 * SECTORS), UNTOLD);
    guest.share();
    guest.start_at(0, 0);
    hears(&mut channel(&mut guest));
    guest.go();
}

/// Fails when: a front end without a channel, or one whose channel is full or closed, is waited
/// for, ends, or is counted as told.
#[test]
fn a_front_end_that_cannot_be_told_is_served_all_the_same() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    assert_eq!(guest.connections.grow("disk", 2 * SECTORS), UNTOLD);
    assert_eq!(sectors(&mut guest), 2 * SECTORS);
    // One that never reads.
    let mut deaf = channel(&mut guest);
    let mut grown = 2 * SECTORS;
    let messages = std::iter::repeat_with(|| {
        grown += 8;
        guest.connections.grow("disk", grown)
    });
    let taken = messages.take_while(|heard| *heard == TOLD).count();
    assert!(taken > 0, "it has some room");
    let mut all = Vec::new();
    deaf.read_to_end(&mut all).expect("the channel is closed");
    assert_eq!(all, CHANGED.repeat(taken));
    assert_eq!(sectors(&mut guest), grown);
    drop(channel(&mut guest));
    for _ in 0..2 {
        grown += 8;
        assert_eq!(guest.connections.grow("disk", grown), UNTOLD);
    }
    assert_eq!(sectors(&mut guest), grown);
    assert!(guest.runs(0));
    // Another one in its place is as good as the first, whatever flags it has.
    let (mut reads, given) = UnixStream::pair().unwrap();
    given.set_nonblocking(false).unwrap();
    guest.front.set_backend_request_fd(&given).unwrap();
    assert_eq!(guest.connections.grow("disk", grown + 8), TOLD);
    hears(&mut reads);
    guest.go();
}

/// Fails when: who tells waits for the thread that serves the front end.
#[test]
fn a_front_end_whose_rings_do_not_end_is_told_at_once() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    sectors(&mut guest);
    let mut reads = channel(&mut guest);
    guest.fake.change(|told| told.draining = true);
    let (connections, fake) = (guest.connections.clone(), guest.fake.clone());
    std::thread::scope(|scope| {
        let front = &guest.front;
        let stops = scope.spawn(move || front.get_vring_base(0).unwrap());
        assert_eq!(connections.grow("disk", 2 * SECTORS), TOLD);
        hears(&mut reads);
        assert!(!stops.is_finished());
        fake.change(|told| told.draining = false);
    });
    guest.go();
}

/// One message that gives a channel, and whether it is done. `None` where the connection ends.
fn give(stream: &UnixStream, flags: u32, body: &[u8], files: &[RawFd]) -> Option<bool> {
    let bytes = message(21, flags, body);
    stream.send_with_fds(&[&bytes[..]], files).unwrap();
    let mut answer = [0; 20];
    let mut reader = stream;
    reader.read_exact(&mut answer).ok()?;
    assert_eq!(answer[..12], message(21, 5, &[0; 8])[..12]);
    Some(answer[12..] == [0; 8])
}

/// Fails when: what is no channel is kept, or a message that is refused ends a front end that
/// hears of it.
#[test]
fn what_is_no_channel_is_refused() {
    let _guard = beside_others();
    let connections = Connections::new(1);
    let (fake, theirs) = connect(&connections, "disk");
    let mut stream = &theirs;
    let asked = 1 | VhostUserHeaderFlag::NEED_REPLY.bits();
    let say = |request, body: &[u8]| {
        let bytes = message(request, 1, body);
        theirs.send_with_fds(&[&bytes[..]], &[]).unwrap();
    };
    say(1, &[]);
    stream.read_exact(&mut [0; 20]).unwrap();
    let protocol = |bits: u64| say(16, &bits.to_ne_bytes());
    let channels = [(); 4].map(|()| UnixStream::pair().unwrap());
    let [first, second, third, fourth] = &channels;
    let files = |ends: &[&(UnixStream, UnixStream)]| -> Vec<RawFd> {
        ends.iter().map(|ends| ends.1.as_raw_fd()).collect()
    };
    // Not agreed on.
    protocol(ALL.bits() & !(1 << 5));
    assert_eq!(give(&theirs, asked, &[], &files(&[first])), Some(false));
    protocol(ALL.bits());
    assert_eq!(give(&theirs, asked, &[], &[]), Some(false));
    let two = files(&[first, second]);
    assert_eq!(give(&theirs, asked, &[], &two), Some(false));
    let event = EventFd::new(0).unwrap();
    let (datagram, _other) = UnixDatagram::pair().unwrap();
    let memory = memory_file(4096);
    for other in [event.as_raw_fd(), datagram.as_raw_fd(), memory.as_raw_fd()] {
        assert_eq!(give(&theirs, asked, &[], &[other]), Some(false));
    }
    assert_eq!(connections.grow("disk", 4096), UNTOLD);
    // Twice: the last one counts, and the first is closed.
    assert_eq!(give(&theirs, asked, &[], &files(&[third])), Some(true));
    let number = 0_u64.to_ne_bytes();
    assert_eq!(give(&theirs, asked, &number, &files(&[fourth])), Some(true));
    assert_eq!(connections.counters().messages_refused, 6);
    let [first, second, third, fourth] = channels;
    let mut reads = [first, second, third].map(|(reads, given)| {
        drop(given);
        reads
    });
    assert_eq!(connections.grow("disk", 8192), TOLD);
    for end in &mut reads {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(end.read(&mut [0]).unwrap(), 0, "the other end is closed");
    }
    let mut fourth = fourth.0;
    hears(&mut fourth);
    // One that does not ask is closed.
    assert_eq!(give(&theirs, 1, &[], &[]), None);
    fake.wait_until(|told| told.ended.is_some());
    wait_for(|| connections.count("disk") == 0);
    // As is one whose message has a body that no such message has.
    let (fake, theirs) = connect(&connections, "disk");
    let bytes = message(21, 1, &[0; 16]);
    (&theirs).write_all(&bytes).unwrap();
    fake.wait_until(|told| told.ended.is_some());
}
