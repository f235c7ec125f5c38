//! Hosts of a cluster: three daemons on one machine, each with directories and a port of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::common::{
    Daemon, EXIT_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, PATIENCE, Rig, have, text_of,
    wait_until,
};
use crate::openapi;

const NAMES: [&str; 3] = ["host-a", "host-b", "host-c"];

/// A host that is in no cluster yet, and where it will listen.
struct Host {
    rig: Rig,
    address: String,
    daemon: Option<Daemon>,
}

impl Host {
    fn new(name: &str, address: &str) -> Host {
        let mut rig = Rig::new();
        rig.host_name(name);
        rig.write_config();
        Host {
            rig,
            address: address.to_owned(),
            daemon: None,
        }
    }

    /// Keeps the section that a command has written, and starts the daemon with it.
    fn serve(&mut self) {
        let text = std::fs::read_to_string(self.rig.config_path()).expect("read");
        let at = text.find("[cluster]").expect("a section");
        self.rig.section(&text[at..]);
        self.start();
    }

    fn start(&mut self) {
        self.daemon = Some(self.rig.serve());
    }

    fn join(&self, token: &str, domain: &str) -> String {
        let listen = ["--listen", &self.address, "--domain", domain];
        self.rig
            .done(&[&["cluster", "join", token][..], &listen].concat())
    }

    fn token(&self) -> String {
        self.rig.done(&["cluster", "token"]).trim().to_owned()
    }

    fn peers(&self) -> Vec<Value> {
        let document = self.rig.json(&["peer", "ls"]);
        document["peers"].as_array().expect("a list").clone()
    }

    /// Waits until the others are in these states.
    fn sees(&self, expected: &[(&str, &str)]) {
        let mut seen = Vec::new();
        let is_seen = || {
            let text = |peer: &Value, key: &str| peer[key].as_str().unwrap_or("").to_owned();
            let peers = self.peers();
            seen = peers
                .iter()
                .map(|it| (text(it, "host"), text(it, "state")))
                .collect();
            seen.iter()
                .map(|(host, state)| (host.as_str(), state.as_str()))
                .eq(expected.to_vec())
        };
        wait_until(&format!("{expected:?} is seen"), PATIENCE, is_seen);
    }

    /// Waits for the first answer of each other host.
    fn has_compared_clocks(&self) {
        wait_until("latency and skew are known", PATIENCE, || {
            let known = |it: &Value| it["latency_us"].is_u64() && it["clock_skew_ms"].is_i64();
            self.peers().iter().all(known)
        });
    }

    fn stop(&mut self) {
        self.daemon.take().expect("it runs").stop();
    }
}

/// An address of loopback that is of this test alone: a free port of 127.0.0.1 may be taken for
/// another connection before it is listened at.
pub(crate) fn loopback() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = 1 + NEXT.fetch_add(1, Ordering::Relaxed) % 250;
    format!("127.{high}.{low}.{host}")
}

fn addresses() -> Vec<String> {
    let address = |_| format!("{}:7440", loopback());
    NAMES.iter().map(address).collect()
}

/// The first of them has made the cluster; the others have joined by its tokens. All run.
fn cluster(vault: &str) -> Vec<Host> {
    let addresses = addresses();
    let hosts = NAMES.iter().zip(&addresses);
    let mut hosts: Vec<Host> = hosts
        .map(|(name, address)| Host::new(name, address))
        .collect();
    let listen = [
        "--listen",
        &addresses[0],
        "--vault",
        vault,
        "--domain",
        "rack-1",
    ];
    hosts[0]
        .rig
        .done(&[&["cluster", "init", "c1"][..], &listen].concat());
    hosts[0].serve();
    for at in 1..hosts.len() {
        let token = hosts[0].token();
        let said = hosts[at].join(&token, "rack-2");
        assert!(said.contains("host-a"), "{said}");
        hosts[at].serve();
    }
    for (at, host) in hosts.iter().enumerate() {
        let others = NAMES.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<(&str, &str)> = others.map(|(_, name)| (*name, "up")).collect();
        host.sees(&others);
    }
    hosts
}

#[test]
fn three_hosts_join_by_tokens_and_see_each_other() {
    let mut hosts = cluster("beside");
    let peers = hosts[2].peers();
    for key in [
        "host",
        "id",
        "domain",
        "state",
        "copies",
        "version",
        "addresses",
    ] {
        assert!(!peers[0][key].is_null(), "{key} in {}", peers[0]);
    }
    hosts[2].has_compared_clocks();
    assert_eq!(peers[0]["domain"], "rack-1");
    assert_eq!(peers[1]["domain"], "rack-2");
    let (_, document) = openapi::ask(&hosts[0].rig, "GET", "/openapi.json", "");
    for (method, path) in [
        ("GET", "/v1/status"),
        ("GET", "/v1/peers"),
        ("GET", "/v1/events"),
        ("POST", "/v1/cluster/token"),
        ("POST", "/v1/cluster/check"),
    ] {
        openapi::held(&hosts[0].rig, &document, method, path, path, "");
    }
    let status = hosts[0].rig.json(&["status"]);
    assert_eq!(status["peers"].as_array().map(Vec::len), Some(2));
    assert_eq!(hosts[0].rig.metric("peers_up"), 2);
    let shown = hosts[0].rig.done(&["peer", "ls"]);
    assert!(
        shown.contains("host-b") && shown.contains("rack-2"),
        "{shown}"
    );
    // Keys are for their owner.
    let key = hosts[1].rig.dir.join("state/cluster/host-key.der");
    let mode = std::fs::metadata(key).expect("a key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A second cluster of one host is refused, and nothing has changed.
    let listen = hosts[0].address.clone();
    let said = hosts[0].rig.refused(
        &["cluster", "init", "c2", "--listen", &listen],
        EXIT_REFUSED,
    );
    assert!(said.contains("in a cluster already"), "{said}");
    for host in &mut hosts {
        host.stop();
    }
}

/// Fails when: a token is not forgotten once it was shown, or callers are not checked.
#[test]
fn a_token_is_for_one_host_and_a_stranger_is_refused() {
    let addresses = addresses();
    let mut first = Host::new("host-a", &addresses[0]);
    first
        .rig
        .done(&["cluster", "init", "c1", "--listen", &addresses[0]]);
    first.serve();
    let token = first.token();
    let second = Host::new("host-b", &addresses[1]);
    second.join(&token, "");
    let third = Host::new("host-c", &addresses[2]);
    let before = std::fs::read_to_string(third.rig.config_path()).expect("read");
    let join = |host: &Host, token: &str, code: i32| {
        let listen = ["--listen", &host.address];
        host.rig
            .refused(&[&["cluster", "join", token][..], &listen].concat(), code)
    };
    let said = join(&third, &token, EXIT_FAILED);
    assert!(said.contains("was used already"), "{said}");
    let said = join(&third, "tenuto1-00", EXIT_USAGE);
    assert!(said.contains("copy the whole line"), "{said}");
    // One whose secret is wrong.
    let mut wrong = first.token();
    let at = "tenuto1-".len() + 2 * 32;
    let digit = if wrong.as_bytes()[at] == b'0' {
        "1"
    } else {
        "0"
    };
    wrong.replace_range(at..=at, digit);
    let said = join(&third, &wrong, EXIT_FAILED);
    assert!(said.contains("not known to this daemon"), "{said}");
    // One of another authority: nothing is shown to a host that cannot prove that it is the one.
    let mut wrong = first.token();
    let digit = if wrong.as_bytes()[8] == b'0' {
        "1"
    } else {
        "0"
    };
    wrong.replace_range(8..=8, digit);
    join(&third, &wrong, EXIT_FAILED);
    // Another host of the same name.
    let twin = Host::new("host-b", &addresses[2]);
    let said = join(&twin, &first.token(), EXIT_FAILED);
    assert!(said.contains("the name of another member"), "{said}");
    assert_eq!(
        std::fs::read_to_string(third.rig.config_path()).expect("read"),
        before
    );
    let refused = first.rig.json(&["peer", "ls"])["refused"]["joins"].as_u64();
    assert_eq!(refused, Some(3), "used, unknown, twin");

    let test = "a_token_is_for_one_host_and_a_stranger_is_refused";
    if have(test, &["openssl"]) {
        let before = first.rig.metric("cluster_refused_certificates_total");
        call_as_stranger(&first.rig.dir, &addresses[0]);
        wait_until("the stranger is counted", PATIENCE, || {
            first.rig.metric("cluster_refused_certificates_total") > before
        });
        first.sees(&[("host-b", "down")]);
    }
    first.stop();
}

/// Shows a certificate that it has made itself, with the name of a host.
fn call_as_stranger(directory: &Path, address: &str) {
    let file = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let (key, certificate) = (file("stranger.key"), file("stranger.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
        ])
        .args([
            "-nodes",
            "-days",
            "30",
            "-subj",
            "/CN=stranger",
            "-keyout",
            &key,
        ])
        .args([
            "-addext",
            "subjectAltName=DNS:stranger.tenuto.internal",
            "-out",
            &certificate,
        ])
        .output()
        .expect("run openssl");
    assert!(made.status.success(), "{}", text_of(&made));
    let called = Command::new("openssl")
        .args([
            "s_client",
            "-connect",
            address,
            "-cert",
            &certificate,
            "-key",
            &key,
            "-quiet",
        ])
        .stdin(Stdio::null())
        .output()
        .expect("run openssl");
    assert!(!called.status.success(), "{}", text_of(&called));
}

/// Fails when: a link whose other end has died is still shown, or is not made again.
#[test]
fn a_killed_host_is_shown_down_and_comes_back() {
    let mut hosts = cluster("beside");
    hosts[1].daemon.take().expect("it runs").kill();
    hosts[0].sees(&[("host-b", "down"), ("host-c", "up")]);
    hosts[2].sees(&[("host-a", "up"), ("host-b", "down")]);
    let peers = hosts[0].peers();
    assert!(peers[0]["reason"].is_string(), "{}", peers[0]);
    let wrong = hosts[0].rig.tenuto(&["status", "-x"]);
    assert_eq!(
        wrong.status.code(),
        Some(EXIT_FAILED),
        "{}",
        text_of(&wrong)
    );
    let wrong = String::from_utf8_lossy(&wrong.stdout).into_owned();
    assert!(wrong.contains("host host-b is down"), "{wrong}");
    hosts[1].start();
    hosts[0].sees(&[("host-b", "up"), ("host-c", "up")]);
    hosts[1].sees(&[("host-a", "up"), ("host-c", "up")]);
    let told = hosts[0].rig.done(&["events"]);
    assert!(told.contains("host host-b: its link is down"), "{told}");

    // The first one is gone for good, and any other one lets hosts in.
    hosts[0].daemon.take().expect("it runs").kill();
    let mut fourth = Host::new("host-d", &addresses()[0]);
    fourth.join(&hosts[2].token(), "");
    fourth.serve();
    fourth.sees(&[("host-a", "down"), ("host-b", "up"), ("host-c", "up")]);
    hosts[1].sees(&[("host-a", "down"), ("host-c", "up"), ("host-d", "up")]);
    fourth.stop();
}

/// Fails when: the others keep a host that has left.
#[test]
fn a_host_that_leaves_is_forgotten_on_both_sides() {
    let mut hosts = cluster("beside");
    let before = std::fs::read_to_string(hosts[2].rig.config_path()).expect("read");
    let left = hosts[2].rig.json(&["cluster", "leave"]);
    assert_eq!(left["told"].as_array().map(Vec::len), Some(2), "{left}");
    hosts[0].sees(&[("host-b", "up")]);
    hosts[1].sees(&[("host-a", "up")]);
    let after = std::fs::read_to_string(hosts[2].rig.config_path()).expect("read");
    let rest = before.split("[cluster]").next().expect("a beginning");
    assert_eq!(after.trim(), rest.trim());
    assert!(!hosts[2].rig.dir.join("state/cluster").exists());
    hosts[2].rig.refused(&["cluster", "leave"], EXIT_FAILED);
    // With its old identity it is no member: the others know.
    hosts[2].stop();
    // It may join anew.
    hosts[2].join(&hosts[1].token(), "");
    hosts[2].start();
    hosts[0].sees(&[("host-b", "up"), ("host-c", "up")]);
    for host in &mut hosts {
        host.stop();
    }
    hosts[0]
        .rig
        .refused(&["cluster", "leave"], EXIT_UNREACHABLE);
    hosts[0]
        .rig
        .refused(&["cluster", "token"], EXIT_UNREACHABLE);
}

/// Fails when: a host that was forgotten is let in again with its old certificate.
#[test]
fn a_host_that_is_gone_for_good_is_forgotten_and_refused_afterwards() {
    let mut hosts = cluster("beside");
    let said = hosts[0]
        .rig
        .refused(&["cluster", "forget", "host-c"], EXIT_REFUSED);
    assert!(said.contains("cluster leave"), "it runs: {said}");
    let said = hosts[0]
        .rig
        .refused(&["cluster", "forget", "host-x"], EXIT_FAILED);
    assert!(said.contains("peer ls"), "{said}");
    hosts[2].daemon.take().expect("it runs").kill();
    hosts[0].sees(&[("host-b", "up"), ("host-c", "down")]);
    let (_, document) = openapi::ask(&hosts[0].rig, "GET", "/openapi.json", "");
    let (path, order) = ("/v1/peers/host-c", "/v1/peers/{name}");
    openapi::held(&hosts[0].rig, &document, "DELETE", path, order, "");
    hosts[0].sees(&[("host-b", "up")]);
    hosts[1].sees(&[("host-a", "up")]);
    hosts[0].has_compared_clocks();
    hosts[0].rig.done(&["cluster", "check"]);
    // It comes back, and is a stranger, also to a host that was started anew.
    hosts[1].stop();
    hosts[1].start();
    hosts[1].sees(&[("host-a", "up")]);
    let count = |host: &Host| host.rig.metric("cluster_refused_hosts_total");
    let before = [count(&hosts[0]), count(&hosts[1])];
    hosts[2].start();
    wait_until("both refuse it", PATIENCE, || {
        count(&hosts[0]) > before[0] && count(&hosts[1]) > before[1]
    });
    hosts[2].sees(&[("host-a", "down"), ("host-b", "down")]);
    hosts[0].sees(&[("host-b", "up")]);
    // Its name is free, and it may join anew.
    hosts[2].rig.done(&["cluster", "leave"]);
    hosts[2].stop();
    hosts[2].join(&hosts[1].token(), "");
    hosts[2].start();
    hosts[0].sees(&[("host-b", "up"), ("host-c", "up")]);
    for host in &mut hosts {
        host.stop();
    }
}

#[test]
fn a_check_tries_links_ports_vault_and_fence() {
    let shared = tempfile::tempdir().expect("a directory");
    let mut hosts = cluster(&format!("dir:{}", shared.path().display()));
    hosts[0].has_compared_clocks();
    let found = hosts[0].rig.json(&["cluster", "check"]);
    assert_eq!(found["ok"], true, "{found}");
    let listed = found["findings"].as_array().expect("a list");
    let count = |check: &str| listed.iter().filter(|it| it["check"] == check).count();
    for (check, times) in [
        ("link", 2),
        ("port", 2),
        ("port back", 2),
        ("version", 2),
        ("clock", 2),
        ("vault", 1),
        ("link drill", 2),
        ("fence", 1),
        ("proof", 1),
    ] {
        assert_eq!(count(check), times, "{check} in {found}");
    }
    assert_eq!(
        shared.path().read_dir().expect("listed").count(),
        0,
        "nothing is left"
    );
    hosts[1].daemon.take().expect("it runs").kill();
    hosts[0].sees(&[("host-b", "down"), ("host-c", "up")]);
    let output = hosts[0].rig.tenuto(&["cluster", "check"]);
    assert_eq!(
        output.status.code(),
        Some(EXIT_FAILED),
        "{}",
        text_of(&output)
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.lines()
            .any(|it| it.starts_with("wrong") && it.contains("host-b")),
        "{text}"
    );
    for at in [0, 2] {
        hosts[at].stop();
    }
}
