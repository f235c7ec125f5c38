//! Records of a cluster in an etcd: real ones on loopback, whose members are killed and come back,
//! lose what they had, or want certificates.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use workload::rng::Rng;

use crate::cluster_links::loopback;
use crate::cluster_units::{BLOCK, Host, Model, Shared, free_ports, moves, pair};
use crate::common::{
    EXIT_FAILED, EXIT_USAGE, PATIENCE, count, have, run, seed, text_of, wait_until,
};

/// The members of an etcd; members that run are killed with it.
pub(crate) struct Etcd {
    place: tempfile::TempDir,
    hosts: Vec<String>,
    scheme: &'static str,
    options: Vec<String>,
    running: Vec<Option<Child>>,
}

impl Etcd {
    fn new(members: usize) -> Etcd {
        let hosts: Vec<String> = (0..members).map(|_| loopback()).collect();
        Etcd {
            place: tempfile::tempdir().expect("a directory"),
            running: hosts.iter().map(|_| None).collect(),
            hosts,
            scheme: "http",
            options: Vec::new(),
        }
    }

    pub fn started(members: usize) -> Etcd {
        let mut etcd = Etcd::new(members);
        for member in 0..members {
            etcd.start(member);
        }
        etcd
    }

    pub fn vault(&self) -> String {
        let list: Vec<String> = self.hosts.iter().map(|it| format!("{it}:2379")).collect();
        format!("etcd://{}", list.join(","))
    }

    fn start(&mut self, member: usize) {
        let (host, scheme) = (&self.hosts[member], self.scheme);
        let peer = |(at, host): (usize, &String)| format!("m{at}=http://{host}:2380");
        let all: Vec<String> = self.hosts.iter().enumerate().map(peer).collect();
        let log = self.place.path().join(format!("m{member}.log"));
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(log)
            .expect("a log");
        let child = Command::new("etcd")
            .args(["--name", &format!("m{member}"), "--data-dir"])
            .arg(self.place.path().join(format!("m{member}")))
            .args(["--listen-client-urls", &format!("{scheme}://{host}:2379")])
            .args([
                "--advertise-client-urls",
                &format!("{scheme}://{host}:2379"),
            ])
            .args(["--listen-peer-urls", &format!("http://{host}:2380")])
            .args([
                "--initial-advertise-peer-urls",
                &format!("http://{host}:2380"),
            ])
            .args(["--initial-cluster", &all.join(",")])
            // Else a busy machine elects anew each second.
            .args(["--heartbeat-interval", "100", "--election-timeout", "2000"])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("start etcd");
        self.running[member] = Some(child);
    }

    fn kill(&mut self, member: usize) {
        let mut child = self.running[member].take().expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    /// Moves what a member has, as if it had lost it, or brings it back.
    fn rename(&self, from: &str, to: &str) {
        let path = |name| self.place.path().join(name);
        std::fs::rename(path(from), path(to)).expect("moved");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Makes a cluster of one host once its etcd answers.
fn init(host: &Host, vault: &str) {
    let port = &free_ports()[0];
    let init = ["cluster", "init", "c1", "--listen", port, "--vault", vault];
    wait_until("the etcd answers", PATIENCE, || {
        host.rig.tenuto(&init).status.success()
    });
}

/// Waits until a key can be made: a new etcd elects first.
pub(crate) fn is_up(vault: &str) {
    let shared = Shared::new();
    init(&Host::new("first", &shared.raw(), "raw", ""), vault);
}

fn says(host: &Host, words: &str) {
    wait_until(words, PATIENCE, || {
        let reason = host.show()["ownership_reason"].clone();
        reason.as_str().is_some_and(|it| it.contains(words))
    });
}

/// Fails when: a host whose link is down is taken for one that writes no more.
#[test]
fn a_volume_is_where_its_client_is_with_records_in_etcd() {
    let test = "a_volume_is_where_its_client_is_with_records_in_etcd";
    if !have(test, &["etcd"]) {
        return;
    }
    let etcd = Etcd::started(1);
    is_up(&etcd.vault());
    let shared = Shared::new();
    let image = shared.raw();
    let model = moves(&image, "raw", &etcd.vault());
    model.is_in(&image);
    let beside = shared.beside();
    assert!(!beside.contains(&"disk.img.tenuto.d".into()), "{beside:?}");
}

/// Fails when: a transaction without an answer is taken for one that was done, or a claim ends when
/// its vault is away.
#[test]
fn an_etcd_that_is_killed_under_claims_is_waited_for_and_nothing_is_lost() {
    let test = "an_etcd_that_is_killed_under_claims_is_waited_for_and_nothing_is_lost";
    if !have(test, &["etcd"]) {
        return;
    }
    let mut etcd = Etcd::started(1);
    is_up(&etcd.vault());
    let shared = Shared::new();
    let image = shared.raw();
    let mut hosts = pair(&image, "raw", "destage-after = \"never\"", &etcd.vault());
    let (mut model, mut random) = (Model::new(), Rng::new(seed(11)));
    let mut under_way = 0;
    for round in 0..count("TENUTO_MOVES", 8) as usize {
        let (owner, other) = (round % 2, 1 - round % 2);
        let mut client = hosts[owner].client();
        model.check(&mut client, &format!("round {round}"));
        model.write(&mut client, &mut random, 40);
        model.flush(&mut client);
        client.disconnect();
        hosts[owner].rig.gone_clients("disk");
        let asks = hosts[other].client_later();
        if round > 0 {
            wait_until("it is asked for", PATIENCE, || {
                hosts[other].show()["ownership"] != "away"
            });
            std::thread::sleep(std::time::Duration::from_millis(random.below(40)));
        }
        etcd.kill(0);
        under_way += u64::from(!asks.is_finished());
        if round % 3 == 1 {
            // Undecided on both sides.
            hosts[owner].kill();
            hosts[owner].start();
        }
        etcd.start(0);
        let mut client = asks.join().expect("no panic").expect("served in the end");
        model.check(&mut client, &format!("round {round}, on the other host"));
        client.disconnect();
        hosts[other].rig.gone_clients("disk");
    }
    println!("{under_way} kills under a claim");
    assert!(under_way > 0, "some claim was under way");
    // What is served goes on without an etcd, and what is not waits and says for what.
    let mut client = hosts[0].client();
    model.check(&mut client, "before the etcd goes");
    etcd.kill(0);
    model.write(&mut client, &mut random, 40);
    model.flush(&mut client);
    let asks = hosts[1].client_later();
    says(&hosts[1], "etcd://");
    let found = hosts[0].rig.tenuto(&["cluster", "check"]);
    assert_eq!(found.status.code(), Some(EXIT_FAILED));
    let found = text_of(&found);
    assert!(found.contains("connection refused; start it"), "{found}");
    assert!(!asks.is_finished());
    etcd.start(0);
    client.disconnect();
    let mut client = asks.join().expect("no panic").expect("served in the end");
    model.check(&mut client, "at the end");
    drop(client);
    hosts.iter_mut().for_each(|host| drop(host.stop()));
}

/// Fails when: records are made in an etcd that does not have those of before.
#[test]
fn an_etcd_that_lost_its_records_is_not_taken_for_the_one_that_had_them() {
    let test = "an_etcd_that_lost_its_records_is_not_taken_for_the_one_that_had_them";
    if !have(test, &["etcd"]) {
        return;
    }
    let mut etcd = Etcd::started(1);
    let shared = Shared::new();
    let image = shared.raw();
    let mut host = Host::new("host-a", &image, "raw", "");
    init(&host, &etcd.vault());
    host.keep_section();
    host.start();
    let mut client = host.client();
    client.write(0, &Model::stamp(1));
    client.flush();
    drop(client);
    host.stop();
    etcd.kill(0);
    etcd.rename("m0", "kept");
    etcd.start(0);
    host.start();
    says(&host, "has no records of the volume");
    assert_eq!(host.show()["ownership"], "held");
    host.stop();
    etcd.kill(0);
    etcd.rename("m0", "empty");
    etcd.rename("kept", "m0");
    etcd.start(0);
    host.start();
    let mut client = host.client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(1));
    drop(client);
    host.stop();
}

/// Fails when: the member that is named first is the only one that is asked.
#[test]
fn one_of_three_members_may_fail_and_two_are_waited_for() {
    let test = "one_of_three_members_may_fail_and_two_are_waited_for";
    if !have(test, &["etcd"]) {
        return;
    }
    let mut etcd = Etcd::started(3);
    is_up(&etcd.vault());
    let shared = Shared::new();
    let image = shared.raw();
    let mut hosts = pair(&image, "raw", "", &etcd.vault());
    let found = hosts[0].rig.json(&["cluster", "check"]);
    assert_eq!(found["ok"], true, "{found}");
    let listed = found["findings"].as_array().expect("a list");
    let count = |check: &str| listed.iter().filter(|it| it["check"] == check).count();
    for (check, times) in [("vault member", 3), ("vault", 1), ("link drill", 1)] {
        assert_eq!(count(check), times, "{check} in {found}");
    }
    let mut client = hosts[0].client();
    client.write(0, &Model::stamp(1));
    client.flush();
    client.disconnect();
    // The first one that is named.
    etcd.kill(0);
    let mut client = hosts[1].client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(1));
    client.write(0, &Model::stamp(2));
    client.flush();
    client.disconnect();
    etcd.kill(1);
    let asks = hosts[0].client_later();
    says(&hosts[0], "etcd://");
    let found = text_of(&hosts[0].rig.tenuto(&["cluster", "check"]));
    assert!(found.contains("most of its members must run"), "{found}");
    assert!(!asks.is_finished(), "one of three decides nothing");
    etcd.start(0);
    let mut client = asks.join().expect("no panic").expect("served in the end");
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(2));
    drop(client);
    hosts.iter_mut().for_each(|host| drop(host.stop()));
}

/// Makes a key and a certificate that the authority has signed, or the authority itself.
fn certificate(place: &Path, name: &str, by: Option<&str>) {
    let file = |name: &str| place.join(name).display().to_string();
    let (key, out) = (file(&format!("{name}.key")), file(&format!("{name}.pem")));
    let subject = format!("/CN={name}");
    let mut arguments = vec!["req", "-x509", "-newkey", "ec", "-pkeyopt"];
    arguments.extend(["ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]);
    arguments.extend(["-subj", &subject, "-keyout", &key, "-out", &out]);
    let alternative = format!("subjectAltName=IP:{}", by.unwrap_or("127.0.0.1"));
    let (ca, ca_key) = (file("ca.pem"), file("ca.key"));
    if by.is_some() {
        arguments.extend(["-CA", &ca, "-CAkey", &ca_key, "-addext", &alternative]);
        arguments.extend(["-addext", "basicConstraints=critical,CA:FALSE"]);
    }
    run("openssl", &arguments);
}

/// Fails when: the certificate of an etcd is not checked.
#[test]
fn an_etcd_is_reached_by_certificates_and_one_of_another_authority_is_refused() {
    let test = "an_etcd_is_reached_by_certificates_and_one_of_another_authority_is_refused";
    if !have(test, &["etcd", "openssl"]) {
        return;
    }
    let mut etcd = Etcd::new(1);
    etcd.scheme = "https";
    let (place, wrong) = (etcd.place.path(), etcd.place.path().join("wrong"));
    std::fs::create_dir(&wrong).expect("a directory");
    certificate(place, "ca", None);
    certificate(&wrong, "ca", None);
    for name in ["server", "host"] {
        certificate(place, name, Some(&etcd.hosts[0]));
    }
    let file = |name: &str| place.join(name).display().to_string();
    let (ca, own) = (file("ca.pem"), format!("cert={}", file("host.pem")));
    let own = format!("{own}&key={}", file("host.key"));
    let at = format!("etcd+https://{}:2379", etcd.hosts[0]);
    let mut options = vec!["--client-cert-auth".to_owned()];
    let named = [("cert", "server.pem"), ("key", "server.key")];
    options.extend(named.map(|(option, name)| format!("--{option}-file={}", file(name))));
    options.push(format!("--trusted-ca-file={ca}"));
    etcd.options = options;
    let shared = Shared::new();
    let image = shared.raw();
    let mut host = Host::new("host-a", &image, "raw", "");
    etcd.start(0);
    init(&host, &format!("{at}?ca={ca}&{own}"));
    host.keep_section();
    host.start();
    let mut client = host.client();
    client.write(0, &Model::stamp(1));
    client.flush();
    drop(client);
    let found = host.rig.json(&["cluster", "check"]);
    assert_eq!(found["ok"], true, "{found}");
    host.stop();
    let other = Host::new("host-b", &image, "raw", "");
    let wrong = wrong.join("ca.pem").display().to_string();
    for (vault, says) in [
        (format!("{at}?ca={wrong}&{own}"), "certificate"),
        (format!("{at}?ca={ca}"), "ertificate"),
        (format!("{at}?ca=/nowhere/ca.pem"), "/nowhere/ca.pem"),
        (at.replace("+https", ""), "etcd"),
    ] {
        let port = &free_ports()[0];
        let init = ["cluster", "init", "c2", "--listen", port, "--vault", &vault];
        let said = other.rig.refused(&init, EXIT_USAGE);
        assert!(said.contains(says), "{vault}: {said}");
    }
}
