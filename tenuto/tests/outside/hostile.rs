//! Hostile NBD clients on the real sockets.
//!
//! Each test lets one client misbehave while another works on. Afterwards the daemon must be
//! alive, the other client undisturbed, and no descriptor, thread or memory left behind.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::nbd::{self, Client};
use crate::common::{Daemon, Rig, count, seed, wait_until};
use workload::rng::Rng;

const BYTES: u64 = 16 << 20;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);
/// What a client may leave behind in memory: allocators keep some of what they were given back.
const LEFT_BEHIND_KIB_MAX: u64 = 24 << 10;

/// A daemon with a victim's volume and one that is attacked.
struct Arena {
    rig: Rig,
    daemon: Daemon,
    innocent: Client,
    descriptors: usize,
    threads: usize,
}

impl Arena {
    fn new() -> Arena {
        let mut rig = Rig::new();
        for name in ["disk", "innocent"] {
            let image = rig.image(&format!("{name}.img"), BYTES);
            rig.volume(name, &image, "write-back", "");
        }
        let daemon = rig.serve();
        let mut innocent = rig.connect("innocent");
        innocent.write(0, &[0x11; 65_536]);
        innocent.flush();
        // One session on the attacked volume first: what it allocates once is no leak.
        let mut first = rig.connect("disk");
        first.write(0, &[0x22; 65_536]);
        first.disconnect();
        rig.gone_clients("disk");
        let (descriptors, threads) = (daemon.descriptors(), daemon.threads());
        Arena {
            rig,
            daemon,
            innocent,
            descriptors,
            threads,
        }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.rig.socket("disk")
    }

    /// A session that has been opened in order; the rest is up to the attacker.
    fn session(&self) -> Client {
        self.rig.connect("disk")
    }

    /// The other client works on, nothing is left of the hostile ones.
    fn assert_unharmed(mut self) {
        assert!(
            self.daemon.is_alive(),
            "the daemon died:\n{}",
            self.daemon.log()
        );
        assert_eq!(self.innocent.read(0, 65_536), vec![0x11; 65_536]);
        self.innocent.write(4096, &[0x33; 4096]);
        self.innocent.flush();
        let mut fresh = self.session();
        assert_eq!(fresh.read(0, 4096), vec![0x22; 4096]);
        fresh.disconnect();
        self.rig.gone_clients("disk");
        let (daemon, descriptors, threads) = (&self.daemon, self.descriptors, self.threads);
        wait_until(
            "descriptors and threads are given back",
            CLOSE_TIMEOUT,
            || daemon.descriptors() <= descriptors && daemon.threads() <= threads,
        );
        let log = self.daemon.stop();
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// Waits until the server has closed the connection.
fn is_closed(mut stream: &UnixStream) {
    stream
        .set_read_timeout(Some(CLOSE_TIMEOUT))
        .expect("set a timeout");
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the connection was not closed: {error}"),
        }
    }
}

/// Fails when: unknown flags are accepted.
#[test]
fn requests_outside_the_volume_and_unknown_commands_get_an_error_and_the_session_goes_on() {
    let arena = Arena::new();
    let mut client = arena.session();
    let mut sector = [0; 512];
    for (command, flags, offset, length, what) in [
        (nbd::CMD_READ, 0, BYTES, 512, "a read behind the end"),
        (nbd::CMD_READ, 0, BYTES - 512, 1024, "a read across the end"),
        (
            nbd::CMD_READ,
            0,
            u64::MAX - 511,
            1024,
            "a read around the end of numbers",
        ),
        (nbd::CMD_READ, 0, 0, u32::MAX, "a read of 4 GiB"),
        (nbd::CMD_TRIM, 0, BYTES, 512, "a trim behind the end"),
        (
            nbd::CMD_TRIM,
            0,
            u64::MAX - 4095,
            4096,
            "a trim around the end of numbers",
        ),
        (
            nbd::CMD_WRITE_ZEROES,
            0,
            BYTES - 4096,
            u32::MAX,
            "zeroes across the end",
        ),
        (
            nbd::CMD_CACHE,
            0,
            BYTES,
            4096,
            "a cache hint behind the end",
        ),
        (77, 0, 0, 512, "an unknown command"),
        (nbd::CMD_READ, 0x8000, 0, 512, "an unknown flag"),
        (
            nbd::CMD_FLUSH,
            nbd::FLAG_FUA | 0x4000,
            0,
            0,
            "a flush with an unknown flag",
        ),
    ] {
        let error = client.command(command, flags, offset, length);
        assert_ne!(error, 0, "{what} was accepted");
        assert_ne!(
            error,
            nbd::EIO,
            "{what} is the client's fault, not the disk's"
        );
        client
            .try_read(0, &mut sector)
            .unwrap_or_else(|error| panic!("after {what}: {error}"));
        assert_eq!(sector, [0x22; 512]);
    }
    let behind = client.try_write(BYTES - 512, &[1; 1024], 0);
    assert!(
        [nbd::ENOSPC, nbd::EINVAL].contains(&behind),
        "write across the end: {behind}"
    );
    client.disconnect();
    arena.assert_unharmed();
}

/// Fails when: the payload that was announced is read as requests.
#[test]
fn a_write_of_a_giant_length_ends_its_own_session_only() {
    let arena = Arena::new();
    for length in [(64 << 20) + 1, 1 << 31, u32::MAX] {
        let mut client = arena.session();
        let header = nbd::request_header(nbd::CMD_WRITE, 0, 9, 0, length);
        client.stream.write_all(&header).expect("send a header");
        // Whether it takes the payload to drop it or not: what follows must not be a command.
        let mut payload = nbd::request_header(nbd::CMD_WRITE, 0, 10, 0, 4096);
        payload.extend_from_slice(&[0x66; 4096]);
        let _ = client.stream.write_all(&payload);
        let _ = client.stream.shutdown(Shutdown::Write);
        is_closed(&client.stream);
    }
    arena.assert_unharmed();
}

#[test]
fn a_request_cut_at_every_byte_leaves_nothing_behind() {
    let arena = Arena::new();
    let mut request = nbd::request_header(nbd::CMD_WRITE, 0, 1, 1 << 20, 4096);
    request.extend_from_slice(&[0x77; 4096]);
    for cut in (0..=28).chain([29, 100, 2048, 4123]) {
        let client = arena.session();
        (&client.stream)
            .write_all(&request[..cut])
            .expect("send a part of a request");
        drop(client);
    }
    let mut client = arena.session();
    assert_eq!(
        client.read(1 << 20, 4096),
        vec![0; 4096],
        "a cut write left no trace"
    );
    client.disconnect();
    arena.assert_unharmed();
}

#[test]
fn a_handshake_cut_at_every_byte_leaves_nothing_behind() {
    let arena = Arena::new();
    let mut words = 3u32.to_be_bytes().to_vec();
    words.extend_from_slice(&nbd::option(7, &nbd::go_payload("disk")));
    for cut in 0..words.len() {
        let mut stream = UnixStream::connect(arena.socket()).expect("connect");
        stream
            .write_all(&words[..cut])
            .expect("send a part of the handshake");
    }
    arena.assert_unharmed();
}

#[test]
fn wrong_magics_options_and_names_are_refused_or_closed() {
    let arena = Arena::new();
    // Flags nobody offered.
    let mut stream = UnixStream::connect(arena.socket()).unwrap();
    stream.write_all(&0xffff_ffffu32.to_be_bytes()).unwrap();
    is_closed(&stream);
    // An option without its magic.
    let mut stream = nbd::greet(&arena.socket()).unwrap();
    stream.write_all(&[0x41; 64]).unwrap();
    is_closed(&stream);
    // A request without its magic.
    let client = arena.session();
    (&client.stream).write_all(&[0x42; 28]).unwrap();
    is_closed(&client.stream);
    // Lengths that lie inside an option; the answer is an error, then a good option works.
    for payload in [
        vec![],
        0xffff_fff0u32.to_be_bytes().to_vec(),
        vec![0, 0, 0, 4, b'd', b'i'],
        [&nbd::go_payload("disk")[..], &[0; 3]].concat(),
        nbd::go_payload("no such export"),
        nbd::go_payload(&"x".repeat(5000)),
    ] {
        let mut stream = nbd::greet(&arena.rig.all_exports()).unwrap();
        stream.write_all(&nbd::option(7, &payload)).unwrap();
        let mut head = [0; 20];
        match stream.read_exact(&mut head) {
            Ok(()) => assert_eq!(head[12] & 0x80, 0x80, "an option error for {payload:?}"),
            Err(_) => is_closed(&stream),
        }
    }
    // An option of 4 GiB.
    let mut stream = nbd::greet(&arena.socket()).unwrap();
    let mut option = nbd::option(6, &[]);
    option[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    stream.write_all(&option).unwrap();
    let _ = stream.write_all(&[0; 65_536]);
    let _ = stream.shutdown(Shutdown::Write);
    is_closed(&stream);
    arena.assert_unharmed();
}

#[test]
fn overlapping_requests_in_flight_keep_the_order_of_one_writer() {
    let arena = Arena::new();
    let mut client = arena.session();
    const COUNT: u8 = 64;
    const PLACE: u64 = 2 << 20;
    for number in 0..COUNT {
        let offset = PLACE + u64::from(number % 7) * 512;
        let bytes = [number; 8192];
        client
            .send(nbd::CMD_WRITE, 0, offset, 8192, &bytes)
            .unwrap();
    }
    for _ in 0..COUNT {
        assert_eq!(client.answer().unwrap().error, 0);
    }
    // The last write at each place wins, because the volume saw them in this order.
    let last = (COUNT - 1) % 7;
    let bytes = client.read(PLACE + u64::from(last) * 512, 8192);
    assert!(bytes.iter().all(|&byte| byte == COUNT - 1));
    client.disconnect();
    arena.assert_unharmed();
}

/// Fails when: a connection that breaks leaves a descriptor behind.
#[test]
fn a_client_that_sends_a_header_and_stops_disturbs_nobody() {
    let mut arena = Arena::new();
    let stuck: Vec<Client> = (0..8)
        .map(|_| {
            let client = arena.session();
            let header = nbd::request_header(nbd::CMD_WRITE, 0, 5, 0, 1 << 20);
            (&client.stream).write_all(&header).unwrap();
            (&client.stream).write_all(&[0; 100]).unwrap();
            client
        })
        .collect();
    let start = Instant::now();
    for number in 0..200u64 {
        arena.innocent.write(number * 4096, &[number as u8; 4096]);
    }
    arena.innocent.flush();
    assert!(
        start.elapsed() < CLOSE_TIMEOUT,
        "the other client had to wait"
    );
    for number in 0..200u64 {
        assert_eq!(
            arena.innocent.read(number * 4096, 4096),
            vec![number as u8; 4096]
        );
    }
    arena.innocent.write(0, &[0x11; 65_536]);
    drop(stuck);
    arena.assert_unharmed();
}

#[test]
fn a_client_that_never_takes_its_answers_does_not_grow_the_daemon() {
    let mut arena = Arena::new();
    let before = arena.daemon.private_kib();
    let client = arena.session();
    client
        .stream
        .set_write_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    // 1 MiB wanted per 28 bytes sent: without a bound the daemon would hold gigabytes.
    for number in 0..20_000 {
        let header = nbd::request_header(nbd::CMD_READ, 0, number, 0, 1 << 20);
        if (&client.stream).write_all(&header).is_err() {
            break;
        }
    }
    let during = arena.daemon.private_kib();
    assert!(
        during < before + (128 << 10),
        "grew from {before} to {during} KiB"
    );
    arena.innocent.write(0, &[0x11; 65_536]);
    arena.innocent.flush();
    drop(client);
    arena.assert_unharmed();
}

/// Fails when: each session leaves 8 KiB behind.
#[test]
fn ten_thousand_connections_opened_and_dropped_leave_nothing_behind() {
    let arena = Arena::new();
    let connections = count("TENUTO_CONNECTIONS", 10_000);
    let open = |socket: &Path, number: u64| {
        let mut stream = UnixStream::connect(socket).expect("connect");
        match number % 4 {
            0 => {}
            1 => stream.write_all(&3u32.to_be_bytes()).expect("send flags"),
            2 => drop(nbd::greet(socket)),
            _ => drop(Client::connect(socket, "")),
        }
    };
    // A tenth of them first: what they allocate once is no leak.
    for number in 0..connections / 10 {
        open(&arena.socket(), number);
    }
    arena.rig.gone_clients("disk");
    let before = arena.daemon.private_kib();
    for number in 0..connections {
        open(&arena.socket(), number);
    }
    arena.rig.gone_clients("disk");
    let after = arena.daemon.private_kib();
    assert!(
        after < before + LEFT_BEHIND_KIB_MAX,
        "grew from {before} to {after} KiB"
    );
    arena.assert_unharmed();
}

#[test]
fn random_bytes_never_end_the_daemon() {
    let arena = Arena::new();
    let mut random = Rng::new(seed(11));
    for round in 0..count("TENUTO_HOSTILE_ROUNDS", 400) {
        let mut bytes = vec![0; 1 + random.below(600) as usize];
        random.fill(&mut bytes);
        let stream = if round % 2 == 0 {
            nbd::greet(&arena.socket()).expect("greet")
        } else {
            // Behind a good request, with a good magic every now and then.
            let client = arena.session();
            if random.below(2) == 0 {
                for (byte, good) in bytes.iter_mut().zip(nbd::REQUEST_MAGIC.to_be_bytes()) {
                    *byte = good;
                }
                // Reads only: the innocent bytes of this volume are checked at the end.
                if let Some(command) = bytes.get_mut(6..8) {
                    command.fill(0);
                }
            }
            client.stream
        };
        let _ = (&stream).write_all(&bytes);
    }
    arena.assert_unharmed();
}
