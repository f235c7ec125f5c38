//! `volume quiesce --agent`: a guest whose file systems are held while its image comes to rest.
//!
//! The real agent runs in a real guest; one of our own says what a real one says seldom.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};

use crate::common::disk::{Device, Disk};
use crate::common::guest::{Machine, with_libraries};
use crate::common::nfs::Shell;
use crate::common::vm;
use crate::common::{
    EXIT_FAILED, EXIT_USAGE, PATIENCE, Rig, have, may_mount, run, signal, wait_until,
    wait_until_it_stands,
};
use crate::vhost_guest::vhost;

const BYTES: u64 = 64 << 20;
const LETTERS: &str = "a line that no sync has followed";
const TOOLS: &str = r#"
until_true() { until eval "$1"; do usleep 20000; done; }
port() { echo /dev/vport*p1; }
"#;

fn rig(lines: &str) -> Rig {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.guest_volume("disk", &image, "write-back", lines);
    rig
}

fn is_quiesced(rig: &Rig) -> bool {
    let shown = rig.show("disk");
    let flags = shown["flags"].as_array().expect("flags").clone();
    flags.iter().any(|flag| flag == "quiesced")
}

/// Whether the file system in this copy would have to be recovered before it is used.
fn needs_recovery(copy: &Path) -> bool {
    let shown = run("dumpe2fs", &["-h", &copy.display().to_string()]);
    let features = shown
        .lines()
        .find(|line| line.starts_with("Filesystem features"));
    features.expect("its features").contains("needs_recovery")
}

/// Fails when: a file system in a copy that was made with its guest held is not clean, or the
/// guest does not go on.
#[test]
fn a_file_system_is_clean_in_a_copy_that_was_made_with_its_guest_held() {
    let test = "a_file_system_is_clean_in_a_copy_that_was_made_with_its_guest_held";
    if !have(
        test,
        &["qemu-ga", "mkfs.ext4", "dumpe2fs", "e2fsck", "debugfs"],
    ) {
        return;
    }
    let rig = rig("destage-after = \"never\"");
    let (image, copy) = (rig.dir.join("disk.img"), rig.dir.join("copy.img"));
    run("mkfs.ext4", &["-q", "-F", &image.display().to_string()]);
    with_libraries(&rig.dir.join("initramfs"), &["qemu-ga"]);
    let modules = ["drivers/char/virtio_console"];
    let Some(machine) = Machine::with_shell(test, &rig.dir, TOOLS, &modules) else {
        return;
    };
    let daemon = rig.serve();
    let socket = rig.dir.join("agent.sock");
    let mut guest = with_agent(&rig, &machine, &socket);
    guest.run(&format!("printf '{LETTERS}' >/mnt/file"));

    // Without the agent it is as after a loss of power.
    rig.done(&["volume", "quiesce", "disk"]);
    assert!(needs_recovery(&image), "it is mounted");
    rig.done(&["volume", "resume", "disk"]);

    let words = ["volume", "quiesce", "disk", "--agent"];
    let shown = rig.json(&[&words[..], &[&socket.display().to_string()]].concat());
    assert_eq!(shown["guest"]["file_systems"], 1, "{shown}");
    assert!(shown["guest"]["held_ms"].is_u64(), "{shown}");
    // The guest goes on while its image rests.
    guest.run("echo more >/mnt/more; sync");
    fs::copy(&image, &copy).expect("copy the image");
    rig.done(&["volume", "resume", "disk"]);
    assert!(!needs_recovery(&copy));
    let copy = copy.display().to_string();
    run("e2fsck", &["-f", "-n", &copy]);
    assert_eq!(run("debugfs", &["-R", "cat /file", &copy]), LETTERS);
    assert!(run("debugfs", &["-R", "ls /", &copy]).contains("file"));
    assert!(!run("debugfs", &["-R", "ls /", &copy]).contains("more"));
    drop(guest);
    daemon.stop();
}

/// A guest that has mounted its disk, and whose agent answers.
fn with_agent(rig: &Rig, machine: &Machine, socket: &Path) -> Shell {
    let chardev = format!(
        "socket,id=agent,server=on,wait=off,path={}",
        socket.display()
    );
    let port = "virtserialport,chardev=agent,name=org.qemu.guest_agent.0";
    let more = [
        "-device",
        "virtio-serial-pci",
        "-chardev",
        &chardev,
        "-device",
        port,
    ];
    let more = more.map(str::to_owned);
    let disks: Vec<vm::Disk> = vec![vhost(rig, "disk")];
    let mut guest = Shell::boot(machine, &rig.dir, "guest", disks, &more);
    guest.wait_for_shell();
    guest.run("insmod /modules/virtio_console.ko && mkdir -p /mnt /run");
    guest.run("mount -t ext4 /dev/vda /mnt");
    guest.wait("test -e $(port)");
    guest.run("/e2/qemu-ga -d -m virtio-serial -p $(port) -t /run -f /run/agent.pid");
    guest
}

/// What an agent of our own is to say to a command.
type Script = fn(&str) -> Option<Value>;

/// An agent that says what its script says.
struct Agent {
    socket: PathBuf,
    heard: Receiver<String>,
}

impl Agent {
    fn start(rig: &Rig, script: impl FnMut(&str) -> Option<Value> + Send + 'static) -> Agent {
        let socket = rig.dir.join("agent.sock");
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("listen");
        let (tell, heard) = channel();
        std::thread::spawn(move || {
            // It ends with its only client.
            if let Ok((stream, _)) = listener.accept() {
                serve(&stream, script, &tell);
            }
        });
        Agent { socket, heard }
    }

    /// All that it was asked, once its client has gone.
    fn asked(&self) -> Vec<String> {
        let short = |command: String| command.trim_start_matches("guest-").to_owned();
        self.heard.iter().map(short).collect()
    }
}

fn serve(
    stream: &UnixStream,
    mut script: impl FnMut(&str) -> Option<Value>,
    tell: &Sender<String>,
) {
    let mut lines = BufReader::new(stream);
    let mut to = stream;
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
            return;
        }
        let text = line.strip_prefix(&[0xff]).unwrap_or(&line);
        let command: Value = serde_json::from_slice(text).expect("a command");
        let name = command["execute"].as_str().expect("a name").to_owned();
        if name != "guest-sync-delimited" {
            tell.send(name.clone()).expect("the test lives");
        }
        let Some(answer) = script(&name) else {
            continue;
        };
        let answer = match name.as_str() {
            // What is left of an answer to another client comes first.
            "guest-sync-delimited" => {
                to.write_all(b"urn\": 7}\n\xff").expect("answer");
                json!({"return": command["arguments"]["id"]})
            }
            _ => answer,
        };
        if writeln!(to, "{answer}").is_err() {
            return;
        }
    }
}

/// What a healthy agent with two file systems says.
fn healthy(command: &str) -> Option<Value> {
    Some(match command {
        "guest-fsfreeze-status" => json!({"return": "thawed"}),
        _ => json!({"return": 2}),
    })
}

fn words<'a>(agent: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["volume", "quiesce", "disk", "--agent", agent], more].concat()
}

/// The command fails, and leaves no window. What it said, and what the agent was asked.
fn refused(rig: &Rig, script: Script, more: &[&str]) -> (String, Vec<String>) {
    let agent = Agent::start(rig, script);
    let said = rig.refused(
        &words(&agent.socket.display().to_string(), more),
        EXIT_FAILED,
    );
    assert!(!is_quiesced(rig), "no window is left: {said}");
    (said, agent.asked())
}

/// Fails when: a guest is not thawed, or thawed too early, or a window is opened for a copy that is
/// not what was asked for.
#[test]
fn a_guest_that_was_not_held_to_the_end_is_thawed_and_no_window_is_left() {
    let rig = rig("");
    let daemon = rig.serve();
    let all = ["fsfreeze-status", "fsfreeze-freeze", "fsfreeze-thaw"];

    let agent = Agent::start(&rig, healthy);
    let said = rig.done(&words(&agent.socket.display().to_string(), &[]));
    assert!(
        said.contains("2 file systems of its guest were held for"),
        "{said}"
    );
    assert_eq!(agent.asked(), all);
    assert!(is_quiesced(&rig));
    // A window that is there was not made with the guest held.
    let again = rig.refused(&words("/nowhere", &[]), EXIT_FAILED);
    assert!(
        again.contains("is quiesced already, without its guest held"),
        "{again}"
    );
    rig.done(&["volume", "resume", "disk"]);

    let (said, asked) = refused(&rig, healthy, &["--agent-limit", "0s"]);
    assert!(said.contains("did not rest within 0 s"), "{said}");
    assert_eq!(asked, all);

    let (said, asked) = refused(&rig, thaws_by_itself, &[]);
    assert!(
        said.contains("has thawed by itself before the image rested"),
        "{said}"
    );
    assert_eq!(asked, all);

    let (said, asked) = refused(&rig, cannot_freeze, &[]);
    assert!(
        said.contains("refuses guest-fsfreeze-freeze: no space"),
        "{said}"
    );
    assert_eq!(asked, all, "it may have frozen some");

    let (said, asked) = refused(&rig, cannot_thaw, &[]);
    assert!(
        said.contains("the guest may still stand; send guest-fsfreeze-thaw"),
        "{said}"
    );
    assert_eq!(asked, all);

    let (said, asked) = refused(&rig, frozen_by_others, &[]);
    assert!(said.contains("frozen already; another backup"), "{said}");
    assert_eq!(asked, all[..1], "what others froze is not thawed");

    let (said, asked) = refused(&rig, |_| None, &[]);
    assert!(
        said.contains("no agent answers; see that qemu-guest-agent runs"),
        "{said}"
    );
    assert!(asked.is_empty(), "{asked:?}");

    let missing = rig.refused(&words("/nowhere", &[]), EXIT_FAILED);
    assert!(
        missing.contains("agent /nowhere: no such file or directory"),
        "{missing}"
    );
    let limit = ["volume", "quiesce", "disk", "--agent-limit", "5s"];
    rig.refused(&limit, EXIT_USAGE);
    rig.refused(
        &words("/nowhere", &["--agent-limit", "5 apples"]),
        EXIT_USAGE,
    );
    daemon.stop();
}

fn thaws_by_itself(command: &str) -> Option<Value> {
    match command {
        "guest-fsfreeze-thaw" => Some(json!({"return": 0})),
        _ => healthy(command),
    }
}

fn cannot_freeze(command: &str) -> Option<Value> {
    match command {
        "guest-fsfreeze-freeze" => Some(json!({"error": {"desc": "no space"}})),
        _ => healthy(command),
    }
}

fn cannot_thaw(command: &str) -> Option<Value> {
    match command {
        "guest-fsfreeze-thaw" => Some(json!({"error": {"class": "GenericError"}})),
        _ => healthy(command),
    }
}

fn frozen_by_others(command: &str) -> Option<Value> {
    match command {
        "guest-fsfreeze-status" => Some(json!({"return": "frozen"})),
        _ => healthy(command),
    }
}

/// Fails when: a guest stands for longer than its limit, or the command for ever, because the
/// storage takes nothing any more.
#[test]
fn a_guest_goes_on_where_its_storage_stands_still() {
    let test = "a_guest_goes_on_where_its_storage_stands_still";
    if !may_mount(test) {
        return;
    }
    let mut rig = Rig::new();
    let disk = Disk::new(BYTES as usize);
    let device = Device::new(&disk, &rig.dir.join("device"));
    let place = rig.dir.display();
    let lines = format!("destage-after = \"never\"\njournal = \"{place}\"");
    rig.volume("disk", device.path(), "write-back", &lines);
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    let agent = Agent::start(&rig, {
        let disk = disk.clone();
        move |command| {
            if command == "guest-fsfreeze-freeze" {
                disk.hold_writes(0, BYTES);
                // What the guest writes out.
                client.write(0, &[7; 65536]);
            }
            healthy(command)
        }
    });
    let socket = agent.socket.display().to_string();
    let said = rig.refused(&words(&socket, &["--agent-limit", "1s"]), EXIT_FAILED);
    assert!(said.contains("did not rest within 1 s"), "{said}");
    assert!(!said.contains("may rest later"), "it was given up: {said}");
    assert_eq!(
        agent.asked().last().map(String::as_str),
        Some("fsfreeze-thaw")
    );
    disk.hold_no_more();
    disk.let_go();
    wait_until("no window is left", PATIENCE, || !is_quiesced(&rig));
    daemon.stop();
}

/// Fails when: a guest stands for ever because the command was interrupted.
#[test]
fn an_interrupted_command_thaws_its_guest() {
    let rig = rig("");
    let daemon = rig.serve();
    let (go, goes) = channel();
    let agent = Agent::start(&rig, move |command| {
        if command == "guest-fsfreeze-status" {
            goes.recv().expect("the test lives");
        }
        healthy(command)
    });
    let socket = agent.socket.display().to_string();
    let limit = format!("{}s", PATIENCE.as_secs());
    let hears = |what: &str| {
        let heard = agent.heard.recv_timeout(PATIENCE).expect("a command");
        assert_eq!(heard, format!("guest-fsfreeze-{what}"));
    };
    let command = rig.spawn(&words(&socket, &["--agent-limit", &limit]));
    hears("status");
    // Its image does not come to rest.
    daemon.signal(libc::SIGSTOP);
    wait_until_it_stands(daemon.pid());
    go.send(()).expect("the agent waits");
    hears("freeze");
    signal(command.id() as i32, libc::SIGINT);
    hears("thaw");
    daemon.signal(libc::SIGCONT);
    let output = command.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(EXIT_FAILED), "{said}");
    assert!(
        said.contains("was to end before the image rested; its guest goes on"),
        "{said}"
    );
    assert!(!is_quiesced(&rig), "no window is left");
    daemon.stop();
}
