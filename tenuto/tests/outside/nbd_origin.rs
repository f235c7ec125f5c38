//! Origins behind real NBD servers: that go away, come back, and finish writes late.
//!
//! `nbdkit` and `qemu-nbd` serve the image, and are killed and started again under load; a server
//! of the test's own parks single writes past the end of their connection. What counts is the
//! image after a destage, and what a client was told.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use workload::check::{Crash, Promise};

use crate::common::disk::Disk;
use crate::common::load::{End, Load, Mix};
use crate::common::nbd::CMD_FLUSH;
use crate::common::random::Random;
use crate::common::{Rig, run, seed, wait_until};

const BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
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
        // A killed server leaves its socket behind.
        let _ = std::fs::remove_file(&self.socket);
        let child = Command::new(self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.program));
        self.child = Some(child);
        wait_until("the server listens", PATIENCE, || {
            std::os::unix::net::UnixStream::connect(&self.socket).is_ok()
        });
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill the server");
            child.wait().expect("reap the server");
        }
    }

    fn uri(&self) -> PathBuf {
        uri_of(&self.socket)
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
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &rig.uri("disk"), &image]);
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
    let mut helper = None;
    let end = load.run(client, |counts| {
        if !killed && counts.answered > 300 {
            killed = true;
            server.kill();
            // A load that waits for the server does not come back here: another hand helps.
            let mut again = Server {
                program: server.program,
                arguments: server.arguments.clone(),
                socket: server.socket.clone(),
                child: None,
            };
            let asked = Command::new(env!("CARGO_BIN_EXE_tenuto"))
                .env("TENUTO_CONFIG", rig.config_path())
                .args(["volume", "show", "disk", "--json"])
                .output();
            drop(asked);
            helper = Some(std::thread::spawn(move || {
                std::thread::park_timeout(Duration::from_secs(2));
                again.start();
                again
            }));
        }
        if killed && !back && helper.as_ref().is_some_and(|helper| helper.is_finished()) {
            back = true;
        }
        let enough = back && counts.answered > 900 || start.elapsed() > PATIENCE;
        !enough
    });
    assert_eq!(end.expect("reads are right"), End::Enough);
    assert!(killed && back, "the server died and came back");
    let mut server = helper.expect("it was started").join().expect("it starts");
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
    load.verify(Crash::Kill, &mut client).expect("nothing acknowledged is lost");
    load.write_at(&mut client, 64, 64);
    load.flush(&mut client);
    compare(&rig, &image);
    drop(client);
    daemon.stop();
    server.kill();
}

#[test]
fn a_write_back_volume_outlives_its_nbd_server_and_its_daemon() {
    let rig = Rig::new();
    let lines = place(&rig);
    server_and_daemon_die("write-back", &lines, Promise::Prefix, false);
}

#[test]
fn a_write_back_volume_without_a_place_is_destaged_in_place_on_nbd() {
    server_and_daemon_die("write-back", "", Promise::Prefix, true);
}

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
    let disk = Disk::new(BYTES as usize);
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
    judged.map(|_| ()).map_err(|violation| violation.to_string())
}

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
#[test]
fn a_flush_after_a_broken_connection_does_not_vouch_for_writes_before_it() {
    let mut rig = Rig::new();
    let disk = Disk::new(BYTES as usize);
    let socket = rig.dir.join("origin.sock");
    disk.serve(&socket);
    rig.volume("disk", &uri_of(&socket), "uncached", "origin-quiet = \"0s\"");
    let daemon = rig.serve();
    let mut load = Load::new(1, BYTES, Promise::Sectors, seed(23));
    let mut client = rig.connect("disk");
    load.write_at(&mut client, 0, 64);
    load.flush(&mut client);
    load.write_at(&mut client, 64, 64);
    disk.cut_power();
    disk.hang_up();
    disk.restore_power(&mut Random::new(1));
    client.send(CMD_FLUSH, 0, 0, 0, &[]).expect("send a flush");
    let answer = client.answer().expect("an answer");
    assert_ne!(answer.error, 0, "the writes may be gone");
    load.verify(Crash::PowerLoss, &mut client).expect("what was flushed is there");
    load.flush(&mut client);
    drop(client);
    daemon.stop();
}

#[test]
fn a_volume_with_its_journal_in_a_place_survives_kills_of_daemon_and_server() {
    let mut rig = Rig::new();
    let image = rig.image("origin.img", BYTES);
    let mut server = Server::nbdkit(&rig, &image, &["--filter=delay", "delay-write=1ms"]);
    let lines = place(&rig) + "destage-after = \"100ms\"\norigin-quiet = \"300ms\"";
    rig.volume("disk", &server.uri(), "write-back", &lines);
    let mut load = Load::new(1, BYTES, Promise::Prefix, seed(24));
    let mut random = Random::new(seed(24));
    for round in 0..12 {
        let daemon = rig.serve();
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
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    load.verify(Crash::Kill, &mut client).expect("nothing acknowledged is lost");
    drop(client);
    compare(&rig, &image);
    daemon.stop();
    let left = |ending: &str| {
        let files = std::fs::read_dir(rig.dir.join("place")).expect("list the place");
        let names = files.map(|file| file.expect("a file").file_name());
        names.filter(|name| name.to_string_lossy().ends_with(ending)).count()
    };
    assert_eq!((left(".tenuto"), left(".tenuto-journal")), (1, 1));
    assert_eq!(left(".tenuto-writer"), 0, "an end in order leaves no writer file");
}
