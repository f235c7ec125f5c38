//! Copies of dirty data on other hosts: daemons on one machine, each with its own cache, of which
//! some are killed, also together with what they had. What was flushed is there all the same.
//!
//! Always true: a host is killed with flushes under way, and what it had on its SSD is removed
//! where a test says that it is lost. Deliberately absent: delay, loss and partitions of links, see
//! `cluster_partitions`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use workload::check::{Crash, Promise};
use workload::rng::Rng;

use crate::cluster_links::loopback;
use crate::cluster_units::{Host, Shared};
use crate::common::load::{End, Load, Mix};
use crate::common::nbd::Client;
use crate::common::{
    EXIT_FAILED, EXIT_REFUSED, PATIENCE, SetWhenDropped, count, run, seed, text_of, wait_until,
};

pub(crate) const BYTES: u64 = 64 << 20;
/// Nothing goes to the image by itself, so that what is found was in a log.
pub const ONE_COPY: &str = "destage-after = \"never\"\nreplicas = 1";
pub const NO_COPY: &str = "destage-after = \"never\"\nreplicas = 0";
/// A flush waits until a peer that is lost was left out. What the product promises is measured by
/// the bench; this only tells a wait that ends from one that does not.
const FLUSH_MAX: Duration = Duration::from_secs(20);
/// The disk of a machine that runs tests stands still for seconds at times, which is no fault.
const PEER_TIMEOUT: &str = "peer-timeout = \"4s\"\n";

/// Hosts of one cluster with one volume, whose fence program says that a host writes no more when
/// its daemon is gone.
pub struct Cluster {
    pub hosts: Vec<Host>,
    pub shared: Shared,
}

pub fn name(at: usize) -> String {
    format!("host-{}", char::from(b'a' + at as u8))
}

/// Says whether the daemon of a host is gone, and ends none.
fn fence_program(shared: &Shared) -> PathBuf {
    let program = shared.path("fence");
    let place = shared.path("");
    let text = format!(
        "#!/bin/sh\npid=$(cat \"{}/$1.pid\") || exit 1\n! kill -0 \"$pid\" 2>/dev/null\n",
        place.display()
    );
    std::fs::write(&program, text).expect("a program");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("may be run");
    program
}

fn fence_line(shared: &Shared) -> String {
    format!("fence = \"{}\"\n", fence_program(shared).display())
}

impl Cluster {
    pub fn new(hosts: usize, lines: &str) -> Cluster {
        Cluster::with(hosts, lines, |_, _| {})
    }

    /// Each host as `prepare` makes it, before it is in the cluster.
    pub fn with(hosts: usize, lines: &str, prepare: impl Fn(usize, &mut Host)) -> Cluster {
        let shared = Shared::new();
        let fence = fence_line(&shared);
        Cluster::of(shared, hosts, (lines, &fence), prepare)
    }

    /// The volume is for guests over vhost-user.
    pub fn for_guests(hosts: usize, lines: &str) -> Cluster {
        let shared = Shared::new();
        let (fence, image) = (fence_line(&shared), shared.path("disk.img"));
        Cluster::of(shared, hosts, (lines, &fence), |_, host| {
            host.rig.forget_volumes();
            host.rig.guest_volume("disk", &image, "write-back", lines);
        })
    }

    pub fn for_guests_of_qcow2(hosts: usize, lines: &str) -> Cluster {
        let shared = Shared::new();
        let (fence, image) = (fence_line(&shared), shared.path("disk.qcow2"));
        let (path, size) = (image.display().to_string(), BYTES.to_string());
        run("qemu-img", &["create", "-q", "-f", "qcow2", &path, &size]);
        Cluster::of(shared, hosts, (lines, &fence), |_, host| {
            host.rig.forget_volumes();
            host.rig.qcow2_guest("disk", &image, "write-back", lines);
        })
    }

    /// No program says anything of a host that is lost.
    pub fn without_fence(hosts: usize, lines: &str) -> Cluster {
        Cluster::of(Shared::new(), hosts, (lines, ""), |_, _| {})
    }

    fn of(
        shared: Shared,
        hosts: usize,
        lines: (&str, &str),
        prepare: impl Fn(usize, &mut Host),
    ) -> Cluster {
        let vault = format!("dir:{}", shared.path("vault").display());
        let vaults = vec![vault; hosts];
        let mut cluster = Cluster::joined_as(shared, lines, &vaults, prepare).0;
        for at in 1..hosts {
            cluster.start(at);
        }
        cluster.are_up();
        cluster
    }

    /// One host for each vault, of which the first one runs; and the addresses at which they
    /// listen. All vaults are the same one, which each host may reach in another way.
    pub fn joined(shared: Shared, lines: &str, vaults: &[String]) -> (Cluster, Vec<String>) {
        let fence = fence_line(&shared);
        Cluster::joined_as(shared, (lines, &fence), vaults, |_, _| {})
    }

    fn joined_as(
        shared: Shared,
        (lines, fence): (&str, &str),
        vaults: &[String],
        prepare: impl Fn(usize, &mut Host),
    ) -> (Cluster, Vec<String>) {
        let image = shared.path("disk.img");
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(BYTES).expect("its size");
        let mut cluster = Cluster {
            hosts: Vec::new(),
            shared,
        };
        let mut listen = Vec::new();
        for (at, vault) in vaults.iter().enumerate() {
            let mut host = Host::new(&name(at), &image, "raw", lines);
            prepare(at, &mut host);
            host.rig.write_config();
            let (address, rack) = (format!("{}:7440", loopback()), format!("rack-{at}"));
            let place = ["--listen", &address, "--domain", &rack];
            let command = match cluster.hosts.first() {
                None => {
                    let init = ["cluster", "init", "c1", "--vault", vault];
                    [&init[..], &place].concat().join(" ")
                }
                Some(first) => {
                    let token = first.rig.done(&["cluster", "token"]);
                    let join = ["cluster", "join", token.trim()];
                    [&join[..], &place].concat().join(" ")
                }
            };
            host.rig.done(&command.split(' ').collect::<Vec<_>>());
            let text = std::fs::read_to_string(host.rig.config_path()).expect("read");
            let text = text.replace(&vaults[0], vault);
            std::fs::write(host.rig.config_path(), text).expect("written");
            host.keep_section();
            host.rig.section(&format!("{fence}{PEER_TIMEOUT}"));
            host.rig.write_config();
            cluster.hosts.push(host);
            listen.push(address);
            if at == 0 {
                cluster.start(at);
            }
        }
        (cluster, listen)
    }

    /// Waits until all see each other.
    pub fn are_up(&self) {
        for host in &self.hosts {
            wait_until("the other hosts are up", PATIENCE, || {
                let peers = host.rig.json(&["peer", "ls"])["peers"].clone();
                let peers = peers.as_array().expect("a list");
                let up = peers.iter().filter(|peer| peer["state"] == "up");
                up.count() == self.hosts.len() - 1
            });
        }
    }

    pub fn start(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.start();
        let path = self.shared.path(&format!("{}.pid", name(at)));
        std::fs::write(path, host.pid().to_string()).expect("its number");
    }

    /// The host is gone with its SSD and its RAM.
    pub fn destroy(&mut self, at: usize) {
        self.hosts[at].kill();
        self.destroy_dead(at);
    }

    /// The same of one that was killed before.
    pub fn destroy_dead(&mut self, at: usize) {
        let rig = &self.hosts[at].rig;
        std::fs::remove_file(rig.cache_path()).expect("its cache");
        rig.lose_stage();
    }

    pub fn copies(&self, at: usize) -> Value {
        self.hosts[at].show()["replication"].clone()
    }

    /// Waits until the volume that this host serves has its copy. Who has it.
    pub fn is_full(&self, at: usize) -> usize {
        self.has_copies(at, 1)[0]
    }

    /// Waits until it has so many. Who has them.
    pub fn has_copies(&self, at: usize, wanted: usize) -> Vec<usize> {
        let mut peers = Vec::new();
        wait_until("other hosts have a copy", PATIENCE, || {
            let copies = self.copies(at);
            let members = copies["members"].as_array().cloned().unwrap_or_default();
            let streams = members.iter().filter(|it| it["state"] == "streaming");
            peers = streams.map(|member| member["host"].clone()).collect();
            copies["state"] == "full" && copies["real"] == wanted && peers.len() == wanted
        });
        let hosts = 0..self.hosts.len();
        hosts
            .filter(|at| peers.contains(&name(*at).into()))
            .collect()
    }

    pub fn is_degraded(&self, at: usize) {
        wait_until("it is degraded", PATIENCE, || {
            self.copies(at)["state"] == "degraded"
        });
        let shown = self.hosts[at].show();
        assert_eq!(shown["state"], "degraded", "{shown}");
        assert!(shown["replication"]["reason"].is_string(), "{shown}");
        let said = self.hosts[at].rig.tenuto(&["status", "-x"]);
        assert_eq!(said.status.code(), Some(EXIT_FAILED));
        assert!(text_of(&said).contains("degraded"), "{}", text_of(&said));
    }

    /// A client that waits as long as a takeover takes.
    pub fn served(&self, at: usize) -> Client {
        let socket = self.hosts[at].rig.socket("disk");
        let mut client = None;
        wait_until(&format!("{} serves it", name(at)), PATIENCE, || {
            client = Client::connect(&socket, "").ok();
            client.is_some()
        });
        client.expect("just connected")
    }

    /// So many requests, all answered, and what was written is flushed.
    pub fn write(&self, at: usize, load: &mut Load, requests: u64) {
        let before = load.counts.answered;
        let more = |counts: &crate::common::load::Counts| counts.answered - before < requests;
        let end = load.run(self.served(at), more);
        assert_eq!(end.expect("reads are right"), End::Enough);
        let mut client = self.served(at);
        load.flush(&mut client);
        self.leave(at, client);
    }

    pub fn leave(&self, at: usize, client: Client) {
        client.disconnect();
        self.hosts[at].rig.gone_clients("disk");
    }

    /// Reads all of the volume at this host and judges it.
    pub fn check(&self, at: usize, load: &mut Load, crash: Crash, when: &str) {
        let mut client = self.served(at);
        let found = load.verify(crash, &mut client);
        let found = found.unwrap_or_else(|violation| panic!("{when}: {violation}"));
        assert!(found.cut >= found.floor, "{when}: {found:?}");
        assert_eq!(load.counts.refused, 0, "{when}: no request hears an error");
        self.leave(at, client);
    }

    /// Kills these hosts under load after so many answers. Where the owner is among them the load
    /// ends with it, else after as many answers again.
    pub fn kill_under_load(&mut self, owner: usize, load: &mut Load, dead: &[usize], answers: u64) {
        let client = self.served(owner);
        let (before, mut lives) = (load.counts.answered, true);
        let hosts = &mut self.hosts;
        let end = load.run(client, |counts| {
            let answered = counts.answered - before;
            if lives && answered > answers {
                dead.iter().for_each(|at| hosts[*at].kill());
                lives = false;
            }
            answered <= 2 * answers
        });
        let wanted = match dead.contains(&owner) {
            true => End::Broken,
            false => End::Enough,
        };
        assert_eq!(end.expect("reads are right"), wanted);
        assert!(!lives, "it was killed under load");
    }

    pub fn stop_if_runs(&mut self, at: usize) {
        self.hosts[at].stop_if_runs();
    }

    pub fn stop(mut self) {
        self.hosts.iter_mut().for_each(|host| drop(host.stop()));
    }
}

/// Stamped writes at depth 16.
pub fn load(seed: u64) -> Load {
    load_that(Promise::Prefix, seed)
}

pub fn load_that(promise: Promise, seed: u64) -> Load {
    let mut load = Load::new(1, BYTES, promise, seed);
    load.mix = Mix {
        sectors_max: 64,
        ..Mix::default()
    };
    load
}

/// Flushes of a connection of its own, until it is over; the longest.
fn longest_flush(socket: &Path, over: &AtomicBool) -> Duration {
    let mut client = Client::connect(socket, "").expect("a second connection");
    let mut longest = Duration::ZERO;
    while !over.load(Ordering::SeqCst) {
        let begun = Instant::now();
        client.flush();
        longest = longest.max(begun.elapsed());
    }
    client.disconnect();
    longest
}

/// Fails when: a flush is answered before the other host has it on media.
#[test]
fn a_flush_is_at_both_hosts() {
    let mut cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(31));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    let promise = cluster.hosts[0].show()["promise"].clone();
    assert!(
        promise.as_str().expect("a text").contains("host-b"),
        "{promise}"
    );
    let kept = cluster.hosts[1].rig.json(&["status"])["copies"].clone();
    assert_eq!(
        (&kept[0]["name"], &kept[0]["owner"]),
        (&"disk".into(), &"host-a".into())
    );
    cluster.write(0, &mut load, 400);
    cluster.kill_under_load(0, &mut load, &[0], 200);
    std::fs::remove_file(cluster.hosts[0].rig.cache_path()).expect("its cache");
    cluster.check(1, &mut load, Crash::PowerLoss, "at the other host");
    cluster.is_degraded(1);
    wait_until("the fence is proof", PATIENCE, || {
        cluster.hosts[1].show()["drain"]["proof"] == "fenced by its program"
    });
    cluster.hosts[1].stop();
}

/// Fails when: a host that does not answer is waited for.
#[test]
fn a_lost_peer_is_left_out_and_comes_back() {
    let mut cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(32));
    cluster.write(0, &mut load, 100);
    cluster.is_full(0);
    let (socket, over) = (cluster.hosts[0].rig.socket("disk"), AtomicBool::new(false));
    let longest = std::thread::scope(|scope| {
        let flushes = scope.spawn(|| longest_flush(&socket, &over));
        let _over = SetWhenDropped(&over);
        cluster.kill_under_load(0, &mut load, &[1], 300);
        cluster.is_degraded(0);
        over.store(true, Ordering::SeqCst);
        flushes.join().expect("no panic")
    });
    println!("longest flush {} ms", longest.as_millis());
    assert!(longest < FLUSH_MAX, "a flush took {longest:?}");
    // What is written while it is alone is owed to the peer as well.
    cluster.write(0, &mut load, 200);
    cluster.start(1);
    assert_eq!(cluster.is_full(0), 1);
    let said = cluster.hosts[0].rig.tenuto(&["status", "-x"]);
    assert!(!text_of(&said).contains("degraded"), "{}", text_of(&said));
    cluster.write(0, &mut load, 100);
    cluster.destroy(0);
    cluster.check(1, &mut load, Crash::PowerLoss, "after the peer was back");
    cluster.hosts[1].stop();
}

/// Fails when: only the host that had a copy can get one again.
#[test]
fn a_third_host_takes_the_place_of_a_lost_peer() {
    let mut cluster = Cluster::new(3, ONE_COPY);
    let mut load = load(seed(33));
    cluster.write(0, &mut load, 100);
    let peer = cluster.is_full(0);
    let third = 3 - peer;
    cluster.kill_under_load(0, &mut load, &[peer], 200);
    wait_until("the third host has a copy", PATIENCE, || {
        cluster.copies(0)["state"] == "full" && cluster.is_full(0) == third
    });
    cluster.write(0, &mut load, 200);
    cluster.destroy(0);
    cluster.check(third, &mut load, Crash::PowerLoss, "at the third host");
    // The first peer has an old copy, which is none any more, and can have a new one.
    cluster.start(peer);
    assert_eq!(cluster.is_full(third), peer);
    cluster.check(third, &mut load, Crash::Kill, "with the first peer again");
    for at in [peer, third] {
        cluster.hosts[at].stop();
    }
}

/// Fails when: a change of `replicas` is not heard of while the volume is served.
#[test]
fn replicas_can_be_switched_on_and_off_live() {
    let mut cluster = Cluster::new(2, NO_COPY);
    let mut load = load(seed(34));
    cluster.write(0, &mut load, 200);
    assert_eq!(cluster.copies(0)["wanted"], 0);
    let set = |cluster: &Cluster, number: &str| {
        let key = format!("replicas={number}");
        cluster.hosts[0].rig.done(&["volume", "set", "disk", &key]);
    };
    let over = AtomicBool::new(false);
    let client = cluster.served(0);
    std::thread::scope(|scope| {
        let (load, over) = (&mut load, &over);
        let runs = scope.spawn(move || load.run(client, |_| !over.load(Ordering::SeqCst)));
        let _over = SetWhenDropped(over);
        for _ in 0..2 {
            set(&cluster, "1");
            cluster.is_full(0);
            set(&cluster, "0");
            wait_until("the copy is dropped", PATIENCE, || {
                let kept = cluster.hosts[1].rig.json(&["status"])["copies"].clone();
                kept.as_array().is_some_and(Vec::is_empty)
            });
            let shown = cluster.hosts[0].show();
            assert_eq!(
                (&shown["replicas"], &shown["replication"]["real"]),
                (&0.into(), &0.into())
            );
        }
        set(&cluster, "1");
        cluster.is_full(0);
        over.store(true, Ordering::SeqCst);
        let end = runs.join().expect("no panic");
        assert_eq!(end.expect("reads are right"), End::Enough);
    });
    cluster.write(0, &mut load, 100);
    cluster.destroy(0);
    cluster.check(
        1,
        &mut load,
        Crash::PowerLoss,
        "from a copy that was made under load",
    );
    cluster.hosts[1].stop();
}

/// Fails when: what was flushed is on the host of its owner only.
#[test]
fn an_owner_that_was_replaced_comes_back() {
    let mut cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(35));
    cluster.write(0, &mut load, 100);
    cluster.is_full(0);
    cluster.kill_under_load(0, &mut load, &[0], 200);
    cluster.check(1, &mut load, Crash::PowerLoss, "at the other host");
    cluster.write(1, &mut load, 200);
    // It has a client, so that the volume stays where it is.
    let stays = cluster.served(1);
    cluster.start(0);
    cluster.hosts[0].waits_for("ownership", "away");
    let later = cluster.hosts[0].client_later();
    cluster.hosts[0].waits_for("ownership", "asking");
    assert!(!later.is_finished(), "it serves nothing old");
    assert_eq!(cluster.is_full(1), 0, "it is the peer now");
    cluster.leave(1, stays);
    let client = later.join().expect("no panic").expect("served in the end");
    cluster.leave(0, client);
    cluster.check(0, &mut load, Crash::Kill, "where it was first");
    cluster.write(0, &mut load, 100);
    cluster.stop();
}

/// Fails when: a host that comes back first goes on without what the other one has.
#[test]
fn both_die_and_come_back() {
    for order in [[0, 1], [1, 0]] {
        let mut cluster = Cluster::new(2, ONE_COPY);
        let mut load = load(seed(36));
        cluster.write(0, &mut load, 100);
        cluster.is_full(0);
        cluster.kill_under_load(0, &mut load, &[0, 1], 200);
        let [first, second] = order;
        cluster.start(first);
        cluster.check(
            first,
            &mut load,
            Crash::PowerLoss,
            &format!("{order:?}: first"),
        );
        cluster.write(first, &mut load, 100);
        cluster.start(second);
        assert_eq!(cluster.is_full(first), second);
        cluster.write(first, &mut load, 100);
        cluster.destroy(first);
        cluster.check(
            second,
            &mut load,
            Crash::PowerLoss,
            &format!("{order:?}: second"),
        );
        cluster.hosts[second].stop();
    }
}

/// Fails when: a copy forgets with a restart of its host what the origin had when it was begun.
#[test]
fn a_copy_that_was_begun_after_a_destage_counts_when_both_have_died() {
    let mut cluster = Cluster::new(2, NO_COPY);
    let mut load = load(seed(39));
    cluster.write(0, &mut load, 100);
    let rig = &cluster.hosts[0].rig;
    rig.done(&["volume", "destage", "disk", "--wait"]);
    rig.done(&["volume", "set", "disk", "replicas=1"]);
    assert_eq!(cluster.is_full(0), 1);
    cluster.kill_under_load(0, &mut load, &[0, 1], 200);
    cluster.start(1);
    cluster.check(1, &mut load, Crash::PowerLoss, "at the other host");
    cluster.hosts[1].stop();
}

/// Fails when: an owner with copies does not let go of its volume.
#[test]
fn a_volume_moves_in_order_with_copies() {
    let mut cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(37));
    for (owner, other) in [(0, 1), (1, 0), (0, 1)] {
        cluster.write(owner, &mut load, 200);
        assert_eq!(cluster.is_full(owner), other);
        let when = format!("from {} to {}", name(owner), name(other));
        cluster.check(other, &mut load, Crash::Kill, &when);
    }
    cluster.write(1, &mut load, 100);
    assert_eq!(cluster.is_full(1), 0);
    cluster.destroy(1);
    cluster.check(0, &mut load, Crash::PowerLoss, "after the moves");
    cluster.hosts[0].stop();
}

/// Fails when: what was flushed depends on which of the two is killed, or on which of them comes
/// back first.
#[test]
fn rounds_of_kill() {
    let seed = seed(38);
    let (mut random, mut load) = (Rng::new(seed), load(seed));
    let mut cluster = Cluster::new(2, ONE_COPY);
    let (mut owner, mut kills) = (0, [0; 3]);
    cluster.write(owner, &mut load, 20);
    for round in 0..count("TENUTO_COPY_ROUNDS", 10) {
        let other = 1 - owner;
        assert_eq!(cluster.is_full(owner), other);
        // Each kind in turn at first, whatever the dice say.
        let kind = if round < 3 { round } else { random.below(3) };
        kills[kind as usize] += 1;
        let dead: &[usize] = match kind {
            0 => &[owner],
            1 => &[other],
            _ => &[owner, other],
        };
        let answers = 50 + random.below(400);
        cluster.kill_under_load(owner, &mut load, dead, answers);
        let when = format!("round {round}, {dead:?} killed at {}", name(owner));
        let next = if random.below(2) == 0 { owner } else { other };
        match kind {
            // Where its client is next the volume is needed before the other one is back.
            0 if next == other => {
                cluster.check(other, &mut load, Crash::PowerLoss, &when);
                cluster.start(owner);
            }
            2 => {
                cluster.start(next);
                cluster.check(next, &mut load, Crash::PowerLoss, &when);
                cluster.start(1 - next);
            }
            _ => cluster.start(dead[0]),
        }
        let after = format!("{when}, then at {}", name(next));
        cluster.check(next, &mut load, Crash::Kill, &after);
        cluster.write(next, &mut load, 20);
        owner = next;
    }
    println!("kills of owner, member and both: {kills:?}");
    cluster.stop();
}

/// Fails when: a volume that has copies cannot be removed where it is served, or with a client.
#[test]
fn a_volume_with_copies_is_removed_from_its_owner_and_served_elsewhere() {
    let mut cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(17));
    cluster.write(0, &mut load, 100);
    cluster.is_full(0);
    let order = ["volume", "rm", "disk"];
    let client = cluster.served(0);
    let said = cluster.hosts[0].rig.refused(&order, EXIT_REFUSED);
    assert!(
        said.contains("1 client is connected; disconnect first"),
        "{said}"
    );
    cluster.leave(0, client);
    let said = cluster.hosts[0].rig.refused(&order, EXIT_REFUSED);
    assert!(
        said.contains("are not at the origin and would be lost"),
        "{said}"
    );
    let destage = ["volume", "destage", "disk", "--wait"];
    cluster.hosts[0].rig.done(&destage);
    cluster.hosts[0].rig.done(&order);
    let shown = cluster.hosts[0].rig.done(&["volume", "ls"]);
    assert!(!shown.contains("disk"), "{shown}");
    cluster.check(1, &mut load, Crash::Kill, "at the other host");
    cluster.write(1, &mut load, 50);
    for host in &mut cluster.hosts {
        let said = host.stop();
        assert!(!said.contains("panicked"), "{said}");
    }
}
