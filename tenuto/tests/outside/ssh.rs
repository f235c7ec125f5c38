//! `trace replay --agents` over a real `ssh`, to a server of our own on the loopback interface.
//!
//! Both machines are this one: a name in the client's configuration gives the agent the
//! configuration of one of two daemons.

use crate::common::agents::{Side, is_over, long_replay, whoever_goes_away_ends_it_on_all, writes};
use crate::common::{Background, Daemon, Rig, binary, have, is_root, signal, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

const BYTES: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: &str = "--agents left,right --volume left:one --volume right:two --overwrite";

struct Machines {
    left: Rig,
    right: Rig,
    _daemons: [Daemon; 2],
    server: Background,
    port: u16,
}

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).expect("write a file");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("set its mode");
}

/// A server with keys of its own, for nobody but this test.
fn server(place: &Path) -> (Background, u16) {
    for key in ["host", "user"] {
        let path = place.join(key).display().to_string();
        crate::common::run(
            "ssh-keygen",
            &["-q", "-t", "ed25519", "-N", "", "-f", &path],
        );
    }
    if is_root() {
        // Where it locks itself in; else the service makes it when it starts.
        std::fs::create_dir_all("/run/sshd").expect("make the server's empty directory");
    }
    let free = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = free.local_addr().expect("its address").port();
    drop(free);
    let place = place.display();
    let text = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {place}/host\nPidFile none\n\
         AuthorizedKeysFile {place}/user.pub\nStrictModes no\nUsePAM no\n\
         PasswordAuthentication no\nPermitRootLogin yes\nAcceptEnv TENUTO_CONFIG\n"
    );
    let config = format!("{place}/sshd_config");
    write(Path::new(&config), &text, 0o600);
    // It runs itself anew for each client, so it wants to know where it is.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let program = path.split(':').map(|it| Path::new(it).join("sshd"));
    let program = program.into_iter().find(|it| it.is_file()).expect("sshd");
    let program = program.to_str().expect("a name");
    let server = Background::start(program, &["-D", "-f", &config]);
    wait_until("the server listens", PATIENCE, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    (server, port)
}

fn machines(test: &str) -> Option<Machines> {
    if !have(test, &["sshd", "ssh", "ssh-keygen"]) {
        return None;
    }
    let [left, right] = ["one", "two"].map(|name| {
        let mut rig = Rig::new();
        let image = rig.image(&format!("{name}.img"), BYTES);
        rig.volume(name, &image, "write-back", "");
        rig.write_config();
        rig
    });
    let (server, port) = server(left.stage_dir());
    let key = std::fs::read_to_string(left.stage_dir().join("host.pub")).expect("its key");
    let known = format!("[127.0.0.1]:{port} {key}");
    write(&left.stage_dir().join("known"), &known, 0o600);
    write(&left.stage_dir().join("strangers"), "", 0o600);
    Some(Machines {
        _daemons: [left.serve(), right.serve()],
        server,
        port,
        left,
        right,
    })
}

impl Machines {
    /// A configuration of the client, as `--rsh` takes it.
    fn rsh(&self, port: u16, known: &str) -> String {
        let place = self.left.stage_dir();
        let of = |name: &str, rig: &Rig| {
            let config = rig.config_path();
            format!("Host {name}\n SetEnv TENUTO_CONFIG={}\n", config.display())
        };
        let place = place.display();
        let text = format!(
            "{}{}Host *\n HostName 127.0.0.1\n Port {port}\n IdentityFile {place}/user\n \
             IdentitiesOnly yes\n BatchMode yes\n StrictHostKeyChecking yes\n \
             UserKnownHostsFile {place}/{known}\n GlobalKnownHostsFile none\n",
            of("left", &self.left),
            of("right", &self.right),
        );
        let path = format!("{place}/ssh_config-{port}-{known}");
        write(Path::new(&path), &text, 0o600);
        format!("ssh -F {path}")
    }

    /// What is called as tenuto there; it notes its process.
    fn remote(&self, name: &str, before: &str) -> String {
        let path = self.left.stage_dir().join(name);
        let tenuto = binary();
        let noted = "echo $$ > \"$TENUTO_CONFIG\".pid";
        let text = format!("#!/bin/sh\n{before}\n{noted}\nexec {tenuto} \"$@\"\n");
        write(&path, &text, 0o755);
        path.display().to_string()
    }

    fn arguments(&self, trace: &Path, rsh: &str, remote: &str) -> Vec<String> {
        let trace = trace.display().to_string();
        let start = ["trace", "replay", &trace, "--rsh", rsh, "--remote", remote];
        let words = start.into_iter().chain(BOTH.split(' '));
        words.map(str::to_owned).collect()
    }

    fn long_replay(&self) -> (Child, [i32; 2]) {
        long_replay(&self.sides(), |trace| {
            let rsh = self.rsh(self.port, "known");
            let arguments = self.arguments(trace, &rsh, &self.remote("noted", ""));
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            self.left.spawn(&arguments)
        })
    }

    fn sides(&self) -> [Side<'_>; 2] {
        [(&self.left, "one"), (&self.right, "two")].map(|(rig, volume)| Side {
            rig,
            volume,
            noted: format!("{}.pid", rig.config_path().display()).into(),
        })
    }
}

fn short_trace(rig: &Rig) -> PathBuf {
    let path = rig.stage_dir().join("short.csv");
    let line = |at: u64| {
        let (op, offset) = (["Write", "Read"][(at % 3 / 2) as usize], at * 7919 % 4096);
        let ticks = at * 10_000;
        format!("{ticks},pc,{},{op},{},4096,0\n", at % 2, offset * 4096)
    };
    write(&path, &(0..2000).map(line).collect::<String>(), 0o600);
    path
}

#[test]
fn a_trace_is_replayed_on_two_machines_over_ssh() {
    let Some(machines) = machines("a_trace_is_replayed_on_two_machines_over_ssh") else {
        return;
    };
    let trace = short_trace(&machines.left);
    let rsh = machines.rsh(machines.port, "known");
    let mut arguments = machines.arguments(&trace, &rsh, &machines.remote("noted", ""));
    arguments.push("--json".into());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let document: Value = serde_json::from_str(&machines.left.done(&arguments)).expect("JSON");
    for volume in document["volumes"].as_array().expect("volumes") {
        assert_eq!(volume["requests"], 1000, "{volume}");
        assert_eq!(volume["wrong_sectors"], 0, "{volume}");
        assert!(volume["verified_sectors"].as_u64() > Some(1000), "{volume}");
    }
    for (rig, name) in [(&machines.left, "one"), (&machines.right, "two")] {
        assert!(writes(rig, name) > 100, "{name}");
    }
}

#[test]
fn what_keeps_ssh_or_the_agent_from_beginning_is_told_with_the_remedy() {
    let test = "what_keeps_ssh_or_the_agent_from_beginning_is_told_with_the_remedy";
    let Some(machines) = machines(test) else {
        return;
    };
    let trace = short_trace(&machines.left);
    let good = machines.rsh(machines.port, "known");
    // A port that was free a moment ago.
    let free = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let nobody = machines.rsh(free.local_addr().expect("its address").port(), "known");
    drop(free);
    let strange = machines.rsh(machines.port, "strangers");
    let noisy = machines.remote("noisy", "echo Welcome to this machine");
    let old = machines.remote("old", "echo 'no such subcommand' >&2; exit 2");
    let newer = machines.remote(
        "newer",
        "read plan; echo '{\"error\":{\"kind\":\"failed\",\"message\":\"trace agent: the other \
         end speaks version 1, this one 2\"}}'; exit 1",
    );
    let cut = "its way there failed or was cut: try `ssh -F ";
    for (rsh, remote, says) in [
        (&strange, "tenuto", ["Host key verification failed", cut]),
        (&nobody, "tenuto", ["Connection refused", cut]),
        (&good, "no-tenuto", ["there is no no-tenuto", "--remote"]),
        (
            &good,
            &noisy,
            ["Welcome to this machine", "standard output"],
        ),
        (&good, &old, ["no such subcommand", "of this version"]),
        (&good, &newer, ["agent ", "the other end speaks version 1"]),
    ] {
        let arguments = machines.arguments(&trace, rsh, remote);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = machines.left.refused(&arguments, 1);
        for it in says {
            assert!(said.contains(it), "{rsh}, {remote}: no {it:?} in {said}");
        }
    }
    for (rig, name) in [(&machines.left, "one"), (&machines.right, "two")] {
        assert_eq!(writes(rig, name), 0, "{name}");
    }
}

#[test]
fn whoever_goes_away_ends_a_replay_over_ssh_on_all() {
    let Some(machines) = machines("whoever_goes_away_ends_a_replay_over_ssh_on_all") else {
        return;
    };
    whoever_goes_away_ends_it_on_all(|| machines.long_replay());
}

/// Processes whose parent is this one.
fn children(parent: u32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc")
        .expect("list processes")
        .flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent_of = stat.rsplit(") ").next().and_then(|it| it.split(' ').nth(1));
        parent_of.and_then(|it| it.parse().ok()) == Some(parent)
    };
    pids.filter(is_child).collect()
}

fn names_in(place: &Path) -> BTreeSet<OsString> {
    let all = std::fs::read_dir(place).expect("list it").flatten();
    all.map(|entry| entry.file_name()).collect()
}

#[test]
fn an_agent_that_is_killed_over_ssh_is_named_and_leaves_nothing_behind() {
    let test = "an_agent_that_is_killed_over_ssh_is_named_and_leaves_nothing_behind";
    let Some(machines) = machines(test) else {
        return;
    };
    let sockets = || [&machines.left, &machines.right].map(|rig| names_in(&rig.run_dir()));
    let before = sockets();
    let (child, pids) = machines.long_replay();
    let ours = child.id();
    let ways = children(ours);
    assert_eq!(ways.len(), 2, "an ssh to each");
    signal(pids[0], libc::SIGKILL);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty(), "no figures: {output:?}");
    for it in [
        "agent left: it ended before it was done",
        "it was killed there, or its way there was cut",
        "all figures of this replay are lost",
    ] {
        assert!(said.contains(it), "no {it:?} in {said}");
    }
    assert!(ways.into_iter().all(is_over), "no ssh is left");
    wait_until("both agents have ended", PATIENCE, || {
        pids.into_iter().all(is_over)
    });
    wait_until("the server has nobody", PATIENCE, || {
        children(machines.server.pid()).into_iter().all(is_over)
    });
    for side in machines.sides() {
        side.rig.gone_clients(side.volume);
    }
    assert_eq!(sockets(), before);
}
