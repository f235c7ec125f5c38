//! Hosts of a cluster that are cut apart under load: three daemons whose links, and whose ways to
//! the vault, go through relays of this process. What was flushed is there afterwards, in one
//! history, and copies are whole again.
//!
//! Always true: a load of stamped writes and a stream of flushes run while something is cut, and
//! after it is healed the host that has the copy goes on alone with all that was flushed; nothing
//! is judged by how long it takes, which is printed; no host writes the image but the last owner,
//! at the end. Deliberately absent: hosts that die by themselves, see `cluster_copies`; what lies
//! below a connection, as lost packets.

use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use workload::check::{Crash, Promise};
use workload::rng::Rng;

use crate::cluster_copies::{BYTES, Cluster, ONE_COPY, name};
use crate::cluster_etcd::{Etcd, is_up as etcd_is_up};
use crate::cluster_links::loopback;
use crate::cluster_two::TWO_COPIES;
use crate::cluster_units::Shared;
use crate::common::load::{End, Load, Mix};
use crate::common::nbd::{Answer, CMD_FLUSH, Client};
use crate::common::relay::{Net, Relay, Way};
use crate::common::vault::Vault;
use crate::common::{PATIENCE, SetWhenDropped, count, have, may_mount, seed, wait_until};

/// The end of the disk, which is not of the load.
const SCRATCH: u64 = BYTES - (1 << 20);
/// So much has moved on a connection that has batches, and on no other one.
const BATCHES: u64 = 256 << 10;
/// A number that no host gives to what it says of others by itself.
const REVISION: u64 = 1000;
/// Between two flushes, and between so many requests as are under way: a drill lasts as long as it
/// has to, and the log has room for all of it.
const PAUSE: Duration = Duration::from_millis(40);
/// How long a destage that must not go on is watched. It does not shorten one that is right.
const WATCHED: Duration = Duration::from_secs(2);
/// Flushes before something is done.
const WARM: u64 = 10;
/// Each way.
const LATE: Duration = Duration::from_millis(50);
/// Some batches of a delta, and not all.
const PART: u64 = 3 << 20;

/// Three hosts, the first of which serves the volume, and what lies between them.
struct Drill {
    cluster: Cluster,
    net: Net,
    load: Load,
}

/// What becomes of requests that are under way at the end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Answered,
    /// The host may answer them or not: it is no owner any more, or dies.
    Itself,
}

/// What a stream of flushes has met.
#[derive(Default)]
struct Flushes {
    begun: AtomicU64,
    answered: AtomicU64,
    took: Mutex<Vec<Duration>>,
}

impl Flushes {
    /// Flushes until all is over, or one is not answered as durable.
    fn run(&self, mut client: Client, over: &AtomicBool) {
        while !over.load(Ordering::SeqCst) {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let begun = Instant::now();
            let sent = client.send(CMD_FLUSH, 0, 0, 0, &[]);
            match sent.and_then(|_| client.answer()) {
                Ok(answer) if answer.error == 0 => {}
                _ => return,
            }
            self.took.lock().unwrap().push(begun.elapsed());
            self.answered.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(PAUSE);
        }
        client.disconnect();
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::SeqCst)
    }

    /// Waits until flushes that were begun after this moment are answered.
    fn go_on(&self) {
        let before = self.begun.load(Ordering::SeqCst);
        wait_until("flushes are answered", PATIENCE, || {
            self.answered() > before
        });
    }

    fn tell(&self, drill: &str) {
        let mut took = self.took.lock().unwrap();
        took.sort();
        let at = |part: usize| took.get(took.len() * part / 100).map_or(0, as_ms);
        println!(
            "{drill}: {} flushes, median {} ms, 99 of 100 in {} ms, longest {} ms",
            took.len(),
            at(50),
            at(99),
            took.last().map_or(0, as_ms)
        );
    }
}

fn as_ms(time: &Duration) -> u128 {
    time.as_millis()
}

/// Each host hears from a list of members of its own where it calls the others: a host says of
/// itself where it listens, and not where others reach it.
fn go_through(cluster: &Cluster, listen: &[String], net: &Net) {
    let path = |at: usize| cluster.hosts[at].rig.dir.join("state/cluster/hosts.json");
    let last = std::fs::read_to_string(path(listen.len() - 1)).expect("a list of members");
    for at in 0..listen.len() {
        let mut list: Value = serde_json::from_str(&last).expect("a list of members");
        for host in list["hosts"].as_array_mut().expect("a list") {
            let mut others = (0..listen.len()).filter(|other| *other != at);
            let other = others.find(|other| host["name"] == name(*other));
            host["revision"] = REVISION.into();
            if let Some(other) = other {
                host["addresses"] = [net.relay(at, other).address()].to_vec().into();
            }
        }
        std::fs::write(path(at), list.to_string()).expect("written");
    }
}

impl Drill {
    fn new(seed: u64) -> Drill {
        let shared = Shared::new();
        let vault = format!("dir:{}", shared.path("vault").display());
        Drill::with_vaults(shared, &[vault.clone(), vault.clone(), vault], seed)
    }

    fn with_vaults(shared: Shared, vaults: &[String], seed: u64) -> Drill {
        Drill::of(shared, ONE_COPY, vaults, seed)
    }

    fn of(shared: Shared, lines: &str, vaults: &[String], seed: u64) -> Drill {
        let (mut cluster, listen) = Cluster::joined(shared, lines, vaults);
        cluster.hosts[0].stop();
        let net = Net::between(&listen, || format!("{}:0", loopback()));
        go_through(&cluster, &listen, &net);
        (0..listen.len()).for_each(|at| cluster.start(at));
        cluster.are_up();
        let mut load = Load::new(1, SCRATCH, Promise::Prefix, seed);
        load.mix = Mix {
            sectors_max: 16,
            ..Mix::default()
        };
        cluster.write(0, &mut load, 50);
        Drill { cluster, net, load }
    }

    /// Does something while a load and flushes run at a host.
    fn under_load(&mut self, at: usize, ends: Ends, act: impl FnOnce(&Cluster, &Net, &Flushes)) {
        let Drill { cluster, net, load } = self;
        let [client, flusher] = [(); 2].map(|()| cluster.served(at));
        let streams = [&client, &flusher].map(|it| it.stream.try_clone().expect("a handle"));
        let (flushes, over) = (Flushes::default(), AtomicBool::new(false));
        let end = std::thread::scope(|scope| {
            let (flushes, over) = (&flushes, &over);
            scope.spawn(move || flushes.run(flusher, over));
            let runs = scope.spawn(move || {
                load.run(client, |_| {
                    std::thread::sleep(PAUSE);
                    !over.load(Ordering::SeqCst)
                })
            });
            let _over = SetWhenDropped(over);
            (0..WARM).for_each(|_| flushes.go_on());
            act(cluster, net, flushes);
            over.store(true, Ordering::SeqCst);
            if ends == Ends::Itself {
                // What it has not answered by now it need not answer.
                for stream in streams {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
            runs.join().expect("no panic")
        });
        flushes.tell(std::thread::current().name().unwrap_or("a drill"));
        let end = end.expect("reads are right");
        assert!(
            ends == Ends::Itself || end == End::Enough,
            "all is answered"
        );
    }

    /// After all is healed: what is there is right, its owner is lost, another host has it all,
    /// and brings it to the image, which no host has written so far.
    fn ends_well(mut self, owner: usize) {
        let Drill { cluster, load, .. } = &mut self;
        cluster.are_up();
        for host in &cluster.hosts {
            host.waits_for("owner", &name(owner));
        }
        cluster.check(owner, load, Crash::Kill, "after it was healed");
        cluster.write(owner, load, 50);
        let peer = cluster.is_full(owner);
        let image = cluster.shared.path("disk.img");
        let written = std::fs::metadata(&image).expect("an image").blocks();
        // On a slow machine a drill may last until the log has no room for all of it.
        let destaged = cluster.hosts[owner].show()["destaged_serial"].as_u64();
        assert!(
            written == 0 || destaged > Some(0),
            "another host has written"
        );
        cluster.destroy(owner);
        cluster.check(peer, load, Crash::PowerLoss, "where the copy was");
        cluster.is_full(peer);
        cluster.write(peer, load, 50);
        // The fence program says that the owner before is dead.
        cluster.hosts[peer].waits_for("ownership", "owner");
        let rig = &cluster.hosts[peer].rig;
        rig.done(&["volume", "destage", "disk", "--wait"]);
        let cut = load.examine(&image).expect("an image that follows");
        assert_eq!(cut, load.model.next_serial() - 1, "all of it is there");
        for at in (0..cluster.hosts.len()).filter(|at| *at != owner) {
            cluster.hosts[at].stop();
        }
    }
}

/// Waits until the peer of this host is another one.
fn is_full_with(cluster: &Cluster, at: usize, peer: usize) {
    wait_until(&format!("{} has the copy", name(peer)), PATIENCE, || {
        cluster.copies(at)["state"] == "full" && cluster.is_full(at) == peer
    });
}

/// Fails when: a host whose link is cut is waited for, or counts.
#[test]
fn an_owner_without_its_peer_goes_on_while_it_reaches_the_vault() {
    let mut drill = Drill::new(seed(41));
    let peer = drill.cluster.is_full(0);
    let third = 3 - peer;
    drill.under_load(0, Ends::Answered, |cluster, net, flushes| {
        net.cut(0, third);
        net.cut(0, peer);
        cluster.is_degraded(0);
        flushes.go_on();
        net.heal(0, third);
        is_full_with(cluster, 0, third);
        flushes.go_on();
        net.heal(0, peer);
    });
    drill.ends_well(0);
}

/// Waits until what this host serves waits for its peer and for the vault.
fn is_waiting(cluster: &Cluster, at: usize) {
    wait_until("its flushes wait", PATIENCE, || {
        cluster.copies(at)["state"] == "waiting"
    });
    let shown = cluster.hosts[at].show();
    assert!(shown["replication"]["reason"].is_string(), "{shown}");
}

/// A write that is answered at once, and a flush that is not: its answer.
fn write_and_flush_later(cluster: &Cluster, at: usize) -> JoinHandle<std::io::Result<Answer>> {
    let mut guest = cluster.served(at);
    guest.write(SCRATCH, &[1; 4096]);
    guest.send(CMD_FLUSH, 0, 0, 0, &[]).expect("sent");
    std::thread::spawn(move || guest.answer())
}

/// An etcd that each host reaches through a relay of its own.
fn vaults() -> (Etcd, Vec<Relay>, Vec<String>) {
    let etcd = Etcd::started(1);
    etcd_is_up(&etcd.vault());
    let vault = etcd.vault();
    let address = vault.strip_prefix("etcd://").expect("its address");
    let relays = [(); 3].map(|()| Relay::new(&format!("{}:0", loopback()), address));
    let vaults = relays
        .iter()
        .map(|it| format!("etcd://{}", it.address()))
        .collect();
    (etcd, relays.into(), vaults)
}

/// Fails when: a client waits for an owner that no host hears, silence is taken for proof, a flush
/// is answered without the host that has the copy, or by an owner that was deposed.
#[test]
fn an_owner_that_reaches_nothing_is_taken_over_and_answers_no_flush() {
    let test = "an_owner_that_reaches_nothing_is_taken_over_and_answers_no_flush";
    if !have(test, &["etcd"]) {
        return;
    }
    let (_etcd, ways, vaults) = vaults();
    let mut drill = Drill::with_vaults(Shared::new(), &vaults, seed(42));
    let peer = drill.cluster.is_full(0);
    drill.under_load(0, Ends::Itself, |cluster, net, _| {
        ways[0].cut(Way::There);
        net.cut(0, peer);
        is_waiting(cluster, 0);
        let flush = write_and_flush_later(cluster, 0);
        let asks = cluster.hosts[peer].client_later();
        let mut client = asks
            .join()
            .expect("no panic")
            .expect("served without proof");
        cluster.hosts[peer].waits_for("ownership", "waiting-for-proof");
        client.write(SCRATCH, &[2; 4096]);
        client.flush();
        // The owner lives, and may write the image as it likes.
        let order = ["volume", "destage", "disk", "--wait"];
        let refused = cluster.hosts[peer].rig.tenuto(&order);
        assert!(!refused.status.success(), "{refused:?}");
        let late = write_and_flush_later(cluster, 0);
        ways[0].heal(Way::There);
        net.heal(0, peer);
        cluster.hosts[0].waits_for("ownership", "away");
        // It may want to: the image is looked at in the end.
        cluster.hosts[0].rig.tenuto(&["volume", "destage", "disk"]);
        for flush in [flush, late] {
            let answer = flush.join().expect("no panic");
            let durable = answer.as_ref().is_ok_and(|it| it.error == 0);
            assert!(!durable, "it was deposed");
        }
        assert_eq!(client.read(SCRATCH, 4096), [2; 4096], "one history");
        cluster.hosts[peer].waits_for("ownership", "owner");
        let proof = cluster.hosts[peer].show()["drain"]["proof"].clone();
        assert_eq!(proof, "released by its host");
        cluster.leave(peer, client);
    });
    let Drill { cluster, load, .. } = &mut drill;
    println!("{} requests were refused", load.counts.refused);
    load.counts.refused = 0;
    cluster.check(peer, load, Crash::PowerLoss, "where it was taken over");
    drill.ends_well(peer);
}

/// Fails when: a flush or a destage goes beyond what the host with the copy has.
#[test]
fn what_only_the_owner_has_is_not_brought_to_the_image() {
    let test = "what_only_the_owner_has_is_not_brought_to_the_image";
    if !have(test, &["etcd"]) {
        return;
    }
    let (_etcd, ways, vaults) = vaults();
    let mut drill = Drill::with_vaults(Shared::new(), &vaults, seed(49));
    let peer = drill.cluster.is_full(0);
    drill.under_load(0, Ends::Itself, |cluster, net, _| {
        ways[0].cut(Way::There);
        net.cut(0, peer);
        is_waiting(cluster, 0);
        let rig = &cluster.hosts[0].rig;
        rig.done(&["volume", "destage", "disk"]);
        let destaged = || rig.show("disk")["destaged_serial"].as_u64();
        wait_until("it has begun", PATIENCE, || destaged() > Some(0));
        let begun = Instant::now();
        wait_until("it was watched", PATIENCE, || begun.elapsed() > WATCHED);
        cluster.hosts[0].signal(libc::SIGKILL);
    });
    let Drill { cluster, load, .. } = &mut drill;
    cluster.destroy(0);
    let image = load.examine(&cluster.shared.path("disk.img"));
    let image = image.expect("a prefix");
    let mut client = cluster.served(peer);
    let found = load.verify(Crash::PowerLoss, &mut client).expect("right");
    assert!(image > 0 && image <= found.cut, "{image} of {found:?}");
    cluster.leave(peer, client);
    drill.cluster.hosts[peer].stop();
    drill.cluster.hosts[3 - peer].stop();
}

/// Fails when: a flush is answered without the host that has the copy.
#[test]
fn flushes_wait_while_neither_the_peer_nor_the_vault_is_reached() {
    let test = "flushes_wait_while_neither_the_peer_nor_the_vault_is_reached";
    if !have(test, &["etcd"]) {
        return;
    }
    let (_etcd, ways, vaults) = vaults();
    let mut drill = Drill::with_vaults(Shared::new(), &vaults, seed(43));
    let peer = drill.cluster.is_full(0);
    drill.under_load(0, Ends::Answered, |cluster, net, flushes| {
        ways.iter().for_each(|it| it.cut(Way::There));
        net.cut(0, peer);
        is_waiting(cluster, 0);
        let flush = write_and_flush_later(cluster, 0);
        // The vault closes what it has, and hears no one: another kind of silence.
        ways.iter().for_each(|it| it.refuse(true));
        cluster.hosts[0].rig.done(&["volume", "show", "disk"]);
        assert_eq!(cluster.copies(0)["state"], "waiting");
        assert!(!flush.is_finished(), "it has no copy");
        for way in &ways {
            way.refuse(false);
            way.heal(Way::There);
        }
        net.heal(0, peer);
        let answer = flush.join().expect("no panic").expect("an answer");
        assert_eq!(answer.error, 0);
        flushes.go_on();
    });
    drill.ends_well(0);
}

/// Fails when: a host that is heard, or one that hears, counts as one that answers.
#[test]
fn a_link_that_loses_what_one_side_sends_is_a_link_that_is_cut() {
    let mut drill = Drill::new(seed(44));
    let peer = drill.cluster.is_full(0);
    let third = 3 - peer;
    drill.under_load(0, Ends::Answered, |cluster, net, flushes| {
        net.lose(0, peer);
        is_full_with(cluster, 0, third);
        flushes.go_on();
        net.heal(0, peer);
        net.lose(third, 0);
        is_full_with(cluster, 0, peer);
        flushes.go_on();
        net.heal(0, third);
    });
    drill.ends_well(0);
}

/// Fails when: what a connection has lost is not sent again, or counts.
#[test]
fn rounds_of_connections_that_break_in_the_middle_of_a_batch() {
    let mut random = Rng::new(seed(45));
    let mut drill = Drill::new(seed(45));
    let (mut closed, mut links) = (0, 0);
    drill.under_load(0, Ends::Answered, |cluster, net, flushes| {
        for round in 0..count("TENUTO_LINKS", 6) {
            // The host with the copy may just have lost its connection, and its place.
            let mut peer = 0;
            wait_until("batches are on their way", PATIENCE, || {
                peer = cluster.is_full(0);
                net.relay(0, peer).moved() > BATCHES
            });
            match round % 5 {
                4 => {
                    net.close(0, peer);
                    links += 1;
                }
                _ => {
                    std::thread::sleep(Duration::from_millis(random.below(30)));
                    net.relay(0, peer).close_busiest();
                    closed += 1;
                }
            }
            flushes.go_on();
        }
    });
    println!("{closed} closed, {links} links");
    drill.ends_well(0);
}

/// Fails when: an answer that is late is none.
#[test]
fn a_link_that_is_slow_is_no_link_that_is_cut() {
    let mut drill = Drill::new(seed(46));
    drill.cluster.is_full(0);
    drill.net.delay(LATE);
    // Each change of the set is a record.
    let term = |cluster: &Cluster| cluster.hosts[0].show()["term"].as_u64();
    // A machine that stands still for a second may well lose a peer, but not again and again.
    for attempt in 1.. {
        drill.cluster.is_full(0);
        let before = term(&drill.cluster);
        drill.under_load(0, Ends::Answered, |_, _, flushes| {
            (0..20).for_each(|_| flushes.go_on());
        });
        if term(&drill.cluster) == before {
            break;
        }
        println!("attempt {attempt}: it was degraded");
        assert!(attempt < 4, "it is degraded by a delay");
    }
    drill.net.delay(Duration::ZERO);
    drill.ends_well(0);
}

/// Fails when: what a vault answers to a link decides, and not what lies under the name.
#[test]
fn a_vault_that_lies_decides_nothing_wrong() {
    if !may_mount("a_vault_that_lies_decides_nothing_wrong") {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let vault = Vault::new(seed(47));
    let _mount = vault.mount(place.path());
    let at = format!("dir:{}/records", place.path().display());
    let mut drill = Drill::with_vaults(Shared::new(), &[at.clone(), at.clone(), at], seed(47));
    drill.cluster.is_full(0);
    vault.lie(true);
    drill.under_load(0, Ends::Answered, |cluster, net, flushes| {
        for _ in 0..count("TENUTO_LIES", 2) {
            let peer = cluster.is_full(0);
            net.cut(0, peer);
            is_full_with(cluster, 0, 3 - peer);
            flushes.go_on();
            net.heal(0, peer);
        }
    });
    let Drill { cluster, load, .. } = &mut drill;
    let peer = cluster.is_full(0);
    cluster.kill_under_load(0, load, &[0], 100);
    cluster.check(peer, load, Crash::PowerLoss, "where it was taken over");
    cluster.start(0);
    cluster.is_full(peer);
    vault.lie(false);
    let lies = vault.lies();
    println!("{lies:?}");
    assert!(lies.exists > 0 && lies.failed > 0, "{lies:?}");
    drill.ends_well(peer);
}

/// Fails when: a host without a copy waits for ever for the one that sends it its own, though a
/// third host has a copy as well; or goes on with a part of a delta that came from the first.
#[test]
fn a_host_that_is_lost_while_it_sends_its_copy_is_not_waited_for() {
    let shared = Shared::new();
    let vault = format!("dir:{}", shared.path("vault").display());
    let vaults = [(); 4].map(|()| vault.clone());
    let mut drill = Drill::of(shared, TWO_COPIES, &vaults, seed(48));
    drill.load.mix.sectors_max = 256;
    let Drill {
        mut cluster,
        net,
        mut load,
    } = drill;
    let copies = cluster.has_copies(0, 2);
    let taker = (1..4).find(|at| !copies.contains(at));
    let taker = taker.expect("a host without a copy");
    cluster.write(0, &mut load, 500);
    for at in &copies {
        net.lose_after(*at, taker, PART);
    }
    cluster.destroy(0);
    let lost = std::thread::scope(|scope| {
        let client = scope.spawn(|| cluster.served(taker));
        let mut sends = None;
        wait_until("it gets a copy", PATIENCE, || {
            let shown = cluster.hosts[taker].show().to_string();
            let from = |at: &&usize| shown.contains(&format!("gets its copy from {}", name(**at)));
            sends = copies.iter().find(from).copied();
            sends.is_some()
        });
        let lost = sends.expect("just found");
        // What is stopped is one connection; the host is lost when the others are as well.
        wait_until("a part has come", PATIENCE, || net.has_lost(lost, taker));
        net.lose(lost, taker);
        for other in copies.iter().filter(|at| **at != lost) {
            net.heal(*other, taker);
        }
        drop(client.join().expect("it is served"));
        lost
    });
    cluster.hosts[lost].kill();
    cluster.check(taker, &mut load, Crash::PowerLoss, "from the other copy");
    cluster.write(taker, &mut load, 50);
    let said = cluster.hosts[taker].stop();
    let told = format!("{}, which sent its copy, is lost", name(lost));
    assert!(said.contains(&told), "{said}");
    assert!(said.contains("of another copy, is begun anew"), "{said}");
}
