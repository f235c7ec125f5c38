//! Origins behind real NBD servers: that go away, come back, and finish writes late.
//!
//! `nbdkit` and `qemu-nbd` serve the image, and are killed and started again under load; a server
//! of the test's own parks single writes past the end of their connection. What counts is the
//! image after a destage, and what a client was told.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use workload::check::{Crash, Promise};

use crate::common::export::Export;
use crate::common::load::{End, Load, Mix};
use crate::common::marks::Marks;
use crate::common::nbd::{CMD_FLUSH, EIO};
use crate::common::{Daemon, EXIT_FAILED, EXIT_USAGE, Rig, run, seed, wait_until};
use workload::rng::Rng;

const BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// For a destage that pauses after each round of which a write fails.
const LONG: Duration = Duration::from_secs(600);
/// Longer than a late write of these tests takes, and than a slow machine hesitates.
const QUIET: &str = "8s";

/// A server of one image, ended by its own id.
struct Server {
    program: &'static str,
    arguments: Vec<String>,
    socket: PathBuf,
    child: Option<Child>,
}

impl Server {
    fn nbdkit(rig: &Rig, image: &Path, filters: &[&str]) -> Server {
        let socket = rig.dir.join("origin.sock");
        let mut arguments = vec!["-f".into(), "-U".into(), socket.display().to_string()];
        let (before, after): (Vec<&str>, Vec<&str>) =
            filters.iter().partition(|word| word.starts_with("--"));
        arguments.extend(before.into_iter().map(str::to_owned));
        arguments.extend(["file".into(), image.display().to_string()]);
        arguments.extend(after.into_iter().map(str::to_owned));
        Server::new("nbdkit", arguments, socket)
    }

    fn qemu_nbd(rig: &Rig, image: &Path) -> Server {
        let socket = rig.dir.join("origin.sock");
        let arguments = format!(
            "--format=raw --persistent --shared=4 --discard=unmap --socket={} {}",
            socket.display(),
            image.display()
        );
        let arguments = arguments.split(' ').map(str::to_owned).collect();
        Server::new("qemu-nbd", arguments, socket)
    }

    fn new(program: &'static str, arguments: Vec<String>, socket: PathBuf) -> Server {
        let mut server = Server {
            program,
            arguments,
            socket,
            child: None,
        };
        server.start();
        server
    }

    fn start(&mut self) {
        self.start_in(0);
        wait_until("the server listens", PATIENCE, || self.listens());
    }

    /// Comes back by itself after so many seconds, while the test is held up by what it waits for.
    fn start_in(&mut self, seconds: u32) {
        let child = Command::new("sh")
            .args(["-c", &format!("sleep {seconds}; exec \"$0\" \"$@\"")])
            .arg(self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.program));
        self.child = Some(child);
    }

    fn listens(&self) -> bool {
        std::os::unix::net::UnixStream::connect(&self.socket).is_ok()
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill the server");
            child.wait().expect("reap the server");
            // A killed server leaves its socket behind.
            let _ = std::fs::remove_file(&self.socket);
        }
    }

    fn uri(&self) -> PathBuf {
        uri_of(&self.socket)
    }

    /// Starts the daemon over it. A server may have died of the kill before: nbdkit stumbles at
    /// times over answers to a client that is gone ("Assertion `sock >= 0' failed").
    fn serve(&mut self, rig: &Rig) -> Daemon {
        match rig.try_serve_strict() {
            Ok(daemon) => daemon,
            Err((_, said)) => {
                let child = self.child.as_mut().expect("it was started");
                let ended = child.try_wait().expect("look at the server");
                assert!(ended.is_some(), "the daemon did not start: {said}");
                eprintln!("{} died by itself: {ended:?}", self.program);
                self.kill();
                self.start();
                rig.serve()
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn uri_of(socket: &Path) -> PathBuf {
    PathBuf::from(format!("nbd+unix:///?socket={}", socket.display()))
}

fn place(rig: &Rig) -> String {
    let place = rig.dir.join("place");
    std::fs::create_dir_all(&place).expect("make a directory");
    format!("journal = \"{}\"\n", place.display())
}

/// What the volume shows and what the image holds are the same.
fn compare(rig: &Rig, image: &Path) {
    rig.done(&["volume", "destage", "disk", "--wait"]);
    let image = image.display().to_string();
    run(
        "qemu-img",
        &[
            "compare",
            "-f",
            "raw",
            "-F",
            "raw",
            &rig.uri("disk"),
            &image,
        ],
    );
}

/// Load over the death of the server, then over that of the daemon.
fn server_and_daemon_die(policy: &str, lines: &str, promise: Promise, qemu: bool) {
    let mut rig = Rig::new();
    let image = rig.image("origin.img", BYTES);
    let mut server = match qemu {
        true => Server::qemu_nbd(&rig, &image),
        false => Server::nbdkit(
            &rig,
            &image,
            &["--filter=delay", "delay-read=1ms", "delay-write=2ms"],
        ),
    };
    let lines = format!("{lines}destage-after = \"1s\"\norigin-quiet = \"1s\"");
    rig.volume("disk", &server.uri(), policy, &lines);
    let daemon = rig.serve();
    let mut load = Load::new(1, BYTES, promise, seed(21));
    load.mix = Mix {
        sectors_max: 128,
        ..Mix::default()
    };
    let client = rig.connect("disk");
    let (mut killed, mut back) = (false, false);
    let start = Instant::now();
    let end = load.run(client, |counts| {
        if !killed && counts.answered > 300 {
            killed = true;
            server.kill();
            wait_until("the volume says so", PATIENCE, || {
                rig.show("disk")["state"] == "stalled"
            });
            server.start_in(2);
        }
        back = back || killed && server.listens();
        !(back && counts.answered > 900 || start.elapsed() > PATIENCE)
    });
    assert_eq!(end.expect("reads are right"), End::Enough);
    assert!(killed && back, "the server died and came back");
    if policy == "write-back" {
        assert_eq!(load.counts.refused, 0, "no request fails");
        compare(&rig, &image);
        assert_eq!(rig.show("disk")["state"], "clean");
    }
    let client = rig.connect("disk");
    let before = load.counts.answered;
    let end = load.run(client, |counts| {
        if counts.answered - before > 300 {
            daemon.signal(libc::SIGKILL);
        }
        true
    });
    assert_eq!(end.expect("reads are right"), End::Broken);
    daemon.kill();
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    load.verify(Crash::Kill, &mut client)
        .expect("nothing acknowledged is lost");
    load.write_at(&mut client, 64, 64);
    load.flush(&mut client);
    compare(&rig, &image);
    drop(client);
    daemon.stop();
    server.kill();
}

/// Fails when: a read is given the origin's error at once.
#[test]
fn a_write_back_volume_outlives_its_nbd_server_and_its_daemon() {
    let rig = Rig::new();
    let lines = place(&rig);
    server_and_daemon_die("write-back", &lines, Promise::Prefix, false);
}

/// Fails when: recovery does not write to the log what only the stage has (`LeaveInStage`).
#[test]
fn a_write_back_volume_without_a_place_is_destaged_in_place_on_nbd() {
    server_and_daemon_die("write-back", "", Promise::Prefix, true);
}

/// Fails when: writes that a broken connection left unanswered count as done.
#[test]
fn an_uncached_volume_outlives_its_nbd_server_and_its_daemon() {
    server_and_daemon_die("uncached", "", Promise::Sectors, true);
}

/// What ends the connection under a write.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    Connection,
    Daemon,
}

/// A write lands after its connection has ended, while the volume goes on.
fn late_write(policy: &str, cut: Cut, quiet: &str) -> Result<(), String> {
    let mut rig = Rig::new();
    let disk = Export::new(BYTES as usize);
    let socket = rig.dir.join("origin.sock");
    disk.serve(&socket);
    let lines = format!("destage-after = \"10m\"\norigin-quiet = \"{quiet}\"");
    rig.volume("disk", &uri_of(&socket), policy, &lines);
    let mut daemon = rig.serve();
    let mut load = Load::new(1, BYTES, Promise::Sectors, seed(22));
    let mut client = rig.connect("disk");
    load.write_at(&mut client, 2048, 64);
    load.flush(&mut client);
    disk.hold_writes(2048 * 512, (2048 + 64) * 512);
    match policy {
        "uncached" => load.write_unanswered(&mut client, 2048, 64),
        _ => drop(rig.done(&["volume", "destage", "disk"])),
    }
    assert!(disk.wait_parked(1, PATIENCE), "the origin is written");
    disk.hold_no_more();
    if cut == Cut::Daemon {
        daemon.kill();
        daemon = rig.serve();
        client = rig.connect("disk");
    } else {
        disk.hang_up();
    }
    let waits = quiet != "0s";
    if policy == "write-back" {
        load.write_at(&mut client, 2048, 64);
        load.flush(&mut client);
        if waits {
            rig.done(&["volume", "destage", "disk"]);
            wait_until("the volume says what it waits for", PATIENCE, || {
                rig.show("disk")["effective_reason"]
                    .as_str()
                    .is_some_and(|reason| reason.contains("origin-quiet"))
            });
            assert_eq!(rig.show("disk")["state"], "stalled");
            assert!(disk.let_go() > 0);
            rig.done(&["volume", "destage", "disk", "--wait"]);
        } else {
            rig.done(&["volume", "destage", "disk", "--wait"]);
            assert!(disk.let_go() > 0);
        }
    } else {
        // Over another connection, because the first one may still owe an answer.
        let mut other = rig.connect("disk");
        if waits {
            let disk = disk.clone();
            let late = std::thread::spawn(move || {
                std::thread::park_timeout(Duration::from_secs(2));
                disk.let_go()
            });
            load.write_at(&mut other, 2048, 64);
            assert!(late.join().expect("it lands") > 0);
        } else {
            load.write_at(&mut other, 2048, 64);
            assert!(disk.let_go() > 0);
        }
        load.flush(&mut other);
        client = other;
    }
    drop(client);
    daemon.stop();
    // A fresh start: nothing in RAM hides what the origin holds.
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    let judged = load.verify(Crash::Kill, &mut client);
    daemon.stop();
    judged
        .map(|_| ())
        .map_err(|violation| violation.to_string())
}

/// Fails when: `origin-quiet` is not waited for.
#[test]
fn a_write_that_lands_after_its_connection_changes_nothing() {
    for policy in ["write-back", "uncached"] {
        for cut in [Cut::Connection, Cut::Daemon] {
            late_write(policy, cut, QUIET).expect("nothing is lost or changed");
        }
    }
}

#[test]
fn a_write_that_lands_after_its_connection_does_damage_without_origin_quiet() {
    for policy in ["write-back", "uncached"] {
        for cut in [Cut::Connection, Cut::Daemon] {
            let damage = late_write(policy, cut, "0s").expect_err("the late write must be seen");
            eprintln!("{policy}: seen: {damage}");
        }
    }
}

/// A server that loses what it has not synced, with its connection.
/// Fails when: a flush counts for writes of an earlier connection.
#[test]
fn a_flush_after_a_broken_connection_does_not_vouch_for_writes_before_it() {
    let mut rig = Rig::new();
    let disk = Export::new(BYTES as usize);
    let socket = rig.dir.join("origin.sock");
    disk.serve(&socket);
    rig.volume(
        "disk",
        &uri_of(&socket),
        "uncached",
        "origin-quiet = \"0s\"",
    );
    let daemon = rig.serve();
    let mut load = Load::new(1, BYTES, Promise::Sectors, seed(23));
    let mut client = rig.connect("disk");
    load.write_at(&mut client, 0, 64);
    load.flush(&mut client);
    load.write_at(&mut client, 64, 64);
    disk.lose_power();
    client.send(CMD_FLUSH, 0, 0, 0, &[]).expect("send a flush");
    let answer = client.answer().expect("an answer");
    assert_ne!(answer.error, 0, "the writes may be gone");
    load.verify(Crash::PowerLoss, &mut client)
        .expect("what was flushed is there");
    load.flush(&mut client);
    drop(client);
    daemon.stop();
}

/// Fails when: a pending journal is not finished before its volume is served (`SkipReplay`).
#[test]
fn a_volume_with_its_journal_in_a_place_survives_kills_of_daemon_and_server() {
    let mut rig = Rig::new();
    let image = rig.image("origin.img", BYTES);
    let mut server = Server::nbdkit(&rig, &image, &["--filter=delay", "delay-write=1ms"]);
    let lines = place(&rig) + "destage-after = \"100ms\"\norigin-quiet = \"300ms\"";
    rig.volume("disk", &server.uri(), "write-back", &lines);
    let mut load = Load::new(1, BYTES, Promise::Prefix, seed(24));
    let mut random = Rng::new(seed(24));
    for round in 0..12 {
        let daemon = server.serve(&rig);
        let mut client = rig.connect("disk");
        load.verify(Crash::Kill, &mut client)
            .unwrap_or_else(|violation| panic!("round {round}: {violation}\n{}", daemon.log()));
        let enough = load.counts.answered + 20 + random.below(500);
        let end = load.run(client, |counts| {
            if counts.answered > enough {
                daemon.signal(libc::SIGKILL);
            }
            true
        });
        assert_eq!(end.expect("reads are right"), End::Broken);
        daemon.kill();
        if round % 3 == 2 {
            server.kill();
            server.start();
        }
    }
    let daemon = server.serve(&rig);
    let mut client = rig.connect("disk");
    load.verify(Crash::Kill, &mut client)
        .expect("nothing acknowledged is lost");
    drop(client);
    compare(&rig, &image);
    daemon.stop();
    let left = |ending: &str| {
        let files = std::fs::read_dir(rig.dir.join("place")).expect("list the place");
        let names = files.map(|file| file.expect("a file").file_name());
        names
            .filter(|name| name.to_string_lossy().ends_with(ending))
            .count()
    };
    assert_eq!((left(".tenuto"), left(".tenuto-journal")), (1, 1));
    assert_eq!(
        left(".tenuto-writer"),
        0,
        "an end in order leaves no writer file"
    );
}

/// A start waits for a journal that a kill has left, so its writes go to the server together: one
/// after the other they would take forty seconds here.
#[test]
fn a_journal_over_a_slow_server_is_finished_with_many_writes_in_flight() {
    const WRITES: u64 = 2_000;
    const APPLY: u64 = 5;
    let mut rig = Rig::new();
    let image = rig.image("origin.img", BYTES);
    let server = Server::nbdkit(&rig, &image, &["--filter=delay", "delay-write=20ms"]);
    let lines = place(&rig) + "destage-after = \"never\"\norigin-quiet = \"300ms\"";
    rig.volume("disk", &server.uri(), "write-back", &lines);
    let marks = Marks::new(&rig.dir.join("marks"));
    rig.env("TENUTO_MARKS", &marks.path().display().to_string());
    let mut daemon = rig.serve();
    let mut client = rig.connect("disk");
    for n in 0..WRITES {
        client.write(n * 8192, &[n as u8 | 1; 4096]);
    }
    drop(client);
    marks.arm(APPLY, 1);
    let mut order = rig.spawn(&["volume", "destage", "disk", "--wait"]);
    wait_until("the daemon dies", PATIENCE, || !daemon.is_alive());
    order.wait().expect("reap the order");
    assert!(marks.died_in().contains(&APPLY));
    marks.disarm();
    let start = Instant::now();
    let daemon = rig.serve();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "a start took {took:?}");
    daemon.says(&["is finished"]);
    compare(&rig, &image);
    let found = std::fs::read(&image).expect("read the image");
    for n in 0..WRITES {
        let at = n as usize * 8192;
        let (own, behind) = found[at..at + 8192].split_at(4096);
        assert_eq!(
            (own, behind),
            (&[n as u8 | 1; 4096][..], &[0; 4096][..]),
            "at {at}"
        );
    }
    daemon.stop();
}

/// One write in thirty fails at the server, and is taken when it is sent again. A destage that
/// wrote its whole phase again had written 228 MB for 12 MiB, and did not end.
/// Fails when: a write of a destage that failed has the whole phase written again.
#[test]
fn a_destage_sends_only_those_writes_again_that_its_server_has_failed() {
    const DIRTY: u64 = 12 << 20;
    let byte_of = |block: u64| (block % 251) as u8 + 1;
    for mode in ["atomic", "in-place"] {
        let mut rig = Rig::new();
        // Each block lies alone, so that each is a write.
        let image = rig.image("origin.img", 2 * DIRTY);
        let filters = ["--filter=error", "error-pwrite=EIO", "error-pwrite-rate=3%"];
        let server = Server::nbdkit(&rig, &image, &filters);
        let lines = match mode {
            "atomic" => place(&rig),
            _ => String::new(),
        };
        let lines = format!("{lines}destage = \"{mode}\"\ndestage-after = \"never\"");
        rig.volume("disk", &server.uri(), "write-back", &lines);
        let daemon = rig.serve();
        let mut client = rig.connect("disk");
        for block in 0..DIRTY / 4096 {
            client.write(block * 8192, &[byte_of(block); 4096]);
        }
        client.flush();
        client.disconnect();
        let counter = |name: &str| rig.show("disk")["origin"][name].as_u64().expect("a number");
        let mut order = rig.spawn(&["volume", "destage", "disk", "--wait"]);
        wait_until("the destage ends", LONG, || {
            let written = counter("write_bytes");
            assert!(written <= 2 * DIRTY, "{mode}: {written} bytes of {DIRTY}");
            order.try_wait().expect("look at the order").is_some()
        });
        let ended = order.wait().expect("reap the order");
        assert!(ended.success(), "{mode}: {ended}, {}", daemon.log());
        let (written, errors) = (counter("write_bytes"), counter("errors"));
        eprintln!("{mode}: {written} bytes written, {errors} errors");
        assert!(errors > 0, "{mode}: the server fails some writes");
        assert!((DIRTY..=2 * DIRTY).contains(&written), "{mode}: {written}");
        let found = std::fs::read(&image).expect("read the image");
        for (at, pair) in found.chunks(8192).enumerate() {
            let (own, behind) = pair.split_at(4096);
            let wanted = [byte_of(at as u64); 4096];
            assert!(own == wanted && behind == [0; 4096], "{mode}: block {at}");
        }
        assert_eq!(rig.show("disk")["state"], "clean", "{mode}");
        daemon.stop();
    }
}

/// Fails when: the configuration is not searched for a second writer.
#[test]
fn two_writers_on_one_export_are_refused_in_one_configuration_and_between_two_daemons() {
    let mut rig = Rig::new();
    let image = rig.image("origin.img", BYTES);
    let server = Server::nbdkit(&rig, &image, &[]);
    let lines = place(&rig);
    rig.volume("one", &server.uri(), "write-back", &lines);
    let socket = server.socket.display();
    let other = PathBuf::from(format!("nbd+unix:///?socket=/{socket}"));
    let mut both = Rig::new();
    both.volume("one", &server.uri(), "uncached", "")
        .volume("two", &other, "uncached", "");
    let (status, log) = both.try_serve().err().expect("two writers");
    assert_eq!(status.code(), Some(EXIT_USAGE), "{log}");
    assert!(
        log.contains("tenuto.toml:") && log.contains("same image"),
        "{log}"
    );
    let daemon = rig.serve();
    let mut second = Rig::new();
    second.volume("one", &server.uri(), "uncached", &lines);
    let (status, log) = second.try_serve_strict().err().expect("it is locked");
    assert_eq!(status.code(), Some(EXIT_FAILED), "{log}");
    assert!(log.contains(&format!("pid {}", daemon.pid())), "{log}");
    daemon.stop();
}

#[test]
fn an_export_for_reading_only_is_refused_to_writers_and_served_to_readers() {
    let mut rig = Rig::new();
    let image = rig.image("origin.img", BYTES);
    let server = Server::nbdkit(&rig, &image, &["--readonly"]);
    rig.volume("disk", &server.uri(), "write-back", "");
    let (status, log) = rig.try_serve_strict().err().expect("it cannot be written");
    assert!(
        !status.success() && log.contains("for reading only"),
        "{log}"
    );
    rig.forget_volumes();
    rig.volume("disk", &server.uri(), "ephemeral", "");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[7; 4096]);
    assert_eq!(client.read(0, 8192)[4096..], [0; 4096]);
    drop(client);
    daemon.stop();
}

/// Fails when: a read is given the origin's error at once.
#[test]
fn a_read_that_misses_waits_for_its_origin_timeout_and_no_longer() {
    let mut rig = Rig::new();
    let image = rig.image("origin.img", BYTES);
    let mut server = Server::nbdkit(&rig, &image, &[]);
    rig.volume(
        "disk",
        &server.uri(),
        "write-back",
        "origin-timeout = \"1s\"",
    );
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[7; 4096]);
    server.kill();
    let start = Instant::now();
    assert_eq!(client.try_read(1 << 20, &mut [0; 4096]), Err(EIO));
    assert!(start.elapsed() >= Duration::from_secs(1));
    // What is in the cache is given, and what is written is taken.
    assert_eq!(client.read(0, 4096), [7; 4096]);
    client.write(4096, &[8; 4096]);
    client.flush();
    rig.done(&["volume", "set", "disk", "origin-timeout=hold"]);
    server.start_in(2);
    assert_eq!(client.read(1 << 20, 4096), [0; 4096]);
    assert!(start.elapsed() >= Duration::from_secs(2));
    drop(client);
    daemon.stop();
}

/// Fails when: an export with another size is accepted.
#[test]
fn an_export_that_changes_its_size_is_held_until_it_is_as_before() {
    let mut rig = Rig::new();
    let image = rig.image("origin.img", BYTES);
    let mut server = Server::nbdkit(&rig, &image, &[]);
    rig.volume("disk", &server.uri(), "uncached", "");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[7; 4096]);
    client.flush();
    server.kill();
    rig.image("origin.img", BYTES / 2);
    server.start();
    wait_until("the volume is held", PATIENCE, || {
        rig.show("disk")["state"] == "held"
    });
    server.kill();
    rig.image("origin.img", BYTES);
    server.start();
    assert_eq!(client.read(4096, 4096), [0; 4096]);
    assert_eq!(rig.show("disk")["state"], "clean");
    drop(client);
    daemon.stop();
}

#[test]
fn an_export_of_large_blocks_is_written_by_any_sector() {
    let mut rig = Rig::new();
    let image = rig.image("origin.img", BYTES);
    let filters = [
        "--filter=blocksize-policy",
        "blocksize-minimum=4096",
        "blocksize-preferred=4096",
        "blocksize-maximum=65536",
        "blocksize-error-policy=error",
    ];
    let server = Server::nbdkit(&rig, &image, &filters);
    rig.volume("disk", &server.uri(), "uncached", "");
    let daemon = rig.serve();
    let mut load = Load::new(1, BYTES, Promise::Sectors, seed(25));
    let end = load.run(rig.connect("disk"), |counts| counts.answered < 600);
    assert_eq!(end.expect("reads are right"), End::Enough);
    assert_eq!(load.counts.refused, 0);
    let mut client = rig.connect("disk");
    load.flush(&mut client);
    load.verify(Crash::Kill, &mut client)
        .expect("nothing is lost");
    drop(client);
    daemon.stop();
}

/// Fails when: a disk in the format of another program is read wrong, or written, or an overlay on
/// it is seen by another volume.
#[test]
fn disks_in_the_formats_of_other_programs_are_bases_by_way_of_qemu_nbd() {
    for (format, options) in [
        ("vpc", "subformat=dynamic,force_size=on"),
        ("vpc", "subformat=fixed,force_size=on"),
        ("vmdk", "subformat=monolithicSparse"),
        ("vmdk", "subformat=streamOptimized"),
    ] {
        let mut rig = Rig::new();
        let mut wanted = vec![0; BYTES as usize];
        let mut random = Rng::new(seed(27));
        for block in wanted.chunks_mut(4096) {
            if random.below(3) == 0 {
                block.fill(1 + random.below(255) as u8);
            }
        }
        let raw = rig.image("raw.img", BYTES);
        std::fs::write(&raw, &wanted).expect("write the disk");
        let disk = rig.dir.join("disk");
        let paths = [&raw, &disk].map(|path| path.display().to_string());
        let convert = ["convert", "-f", "raw", "-O", format, "-o", options];
        run(
            "qemu-img",
            &[&convert[..], &[&paths[0], &paths[1]]].concat(),
        );
        let before = std::fs::read(&disk).expect("read the file");
        let socket = rig.dir.join("origin.sock");
        let arguments = format!(
            "--read-only --persistent --shared=8 --format={format} --socket={} {}",
            socket.display(),
            disk.display()
        );
        let arguments = arguments.split(' ').map(str::to_owned).collect();
        let server = Server::new("qemu-nbd", arguments, socket);
        rig.volume("gold", &server.uri(), "uncached", "read-only = true");
        rig.volume("desk", &server.uri(), "ephemeral", "");
        let daemon = rig.serve();
        let (mut gold, mut desk) = (rig.connect("gold"), rig.connect("desk"));
        let holds = |client: &mut crate::common::nbd::Client, wanted: &[u8]| {
            let found = client.read(0, wanted.len());
            assert!(found == wanted, "{format}, {options}");
        };
        holds(&mut gold, &wanted);
        holds(&mut desk, &wanted);
        desk.write(5 << 20, &[0xD5; 8192]);
        holds(&mut gold, &wanted);
        wanted[5 << 20..][..8192].fill(0xD5);
        holds(&mut desk, &wanted);
        gold.disconnect();
        desk.disconnect();
        daemon.stop();
        assert!(std::fs::read(&disk).unwrap() == before, "{format}: written");
    }
}
