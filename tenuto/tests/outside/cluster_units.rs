//! Volumes of a cluster: two daemons on one machine, each with its own cache, over one directory of
//! images. A volume is where its client is; what was flushed is there, whichever daemon dies.

use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;
use workload::rng::Rng;

use crate::common::front_end::Polite;
use crate::common::nbd::Client;
use crate::common::{
    Daemon, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, PATIENCE, Rig, count, have, run, seed, text_of,
    wait_until,
};

pub(crate) const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1024;
pub(crate) const BYTES: u64 = BLOCKS * BLOCK;

/// A directory that all hosts have.
pub(crate) struct Shared(tempfile::TempDir);

impl Shared {
    pub fn new() -> Shared {
        Shared(tempfile::tempdir().expect("a directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn raw(&self) -> PathBuf {
        let path = self.path("disk.img");
        let file = std::fs::File::create(&path).expect("an image");
        file.set_len(BYTES).expect("its size");
        path
    }

    /// What lies beside the image.
    pub fn beside(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.0.path()).expect("a directory");
        let names = names.map(|it| it.expect("an entry").file_name());
        let mut names: Vec<String> = names.map(|it| it.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

pub(crate) struct Host {
    pub rig: Rig,
    daemon: Option<Daemon>,
}

impl Host {
    /// Not in a cluster yet.
    pub fn new(name: &str, image: &Path, format: &str, lines: &str) -> Host {
        let mut rig = Rig::new();
        rig.host_name(name);
        rig.volume_of("disk", (image, format), "write-back", lines);
        rig.write_config();
        Host { rig, daemon: None }
    }

    /// Keeps the section that a command has written.
    pub fn keep_section(&mut self) {
        let text = std::fs::read_to_string(self.rig.config_path()).expect("read");
        let at = text.find("[cluster]").expect("a section");
        let section = text[at..].split("\n[[volume]]").next().expect("a part");
        self.rig.section(section);
    }

    pub fn start(&mut self) {
        self.daemon = Some(self.rig.serve());
    }

    pub fn kill(&mut self) {
        self.daemon.take().expect("it runs").kill();
    }

    pub fn signal(&self, signal: i32) {
        self.daemon.as_ref().expect("it runs").signal(signal);
    }

    pub fn stop(&mut self) -> String {
        self.daemon.take().expect("it runs").stop()
    }

    pub fn stop_if_runs(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop();
        }
    }

    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("it runs").pid()
    }

    pub fn client(&self) -> Client {
        self.rig.connect("disk")
    }

    /// A client that may have to wait.
    pub fn client_later(&self) -> thread::JoinHandle<std::io::Result<Client>> {
        let socket = self.rig.socket("disk");
        thread::spawn(move || Client::connect(&socket, ""))
    }

    pub fn show(&self) -> Value {
        self.rig.show("disk")
    }

    pub fn waits_for(&self, key: &str, value: &str) {
        wait_until(&format!("{key} is {value}"), PATIENCE, || {
            self.show()[key] == value
        });
    }
}

/// Two hosts of a cluster that see each other.
pub(crate) fn pair(image: &Path, format: &str, lines: &str, vault: &str) -> [Host; 2] {
    let mut hosts = [
        Host::new("host-a", image, format, lines),
        Host::new("host-b", image, format, lines),
    ];
    let listen = ["--listen", "127.0.0.1:0"];
    let ports = free_ports();
    let [one, two] = &mut hosts;
    let init = ["cluster", "init", "c1", "--vault", vault];
    one.rig.done(&[&init[..], &[listen[0], &ports[0]]].concat());
    one.keep_section();
    one.start();
    let token = one.rig.done(&["cluster", "token"]);
    let join = ["cluster", "join", token.trim()];
    two.rig.done(&[&join[..], &[listen[0], &ports[1]]].concat());
    two.keep_section();
    two.start();
    see_each_other(&hosts);
    hosts
}

pub(crate) fn see_each_other(hosts: &[Host; 2]) {
    for host in hosts {
        wait_until("the other host is up", PATIENCE, || {
            host.rig.json(&["peer", "ls"])["peers"][0]["state"] == "up"
        });
    }
}

pub(crate) fn free_ports() -> [String; 2] {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = [bind(), bind()];
    taken.map(|it| it.local_addr().expect("an address").to_string())
}

/// What a block must have: what was flushed last, or something written after that.
#[derive(Clone, Default)]
struct Block {
    flushed: u64,
    later: Vec<u64>,
}

/// The disk as its clients know it.
pub(crate) struct Model {
    blocks: Vec<Block>,
    next: u64,
}

impl Model {
    pub fn new() -> Model {
        Model {
            blocks: vec![Block::default(); BLOCKS as usize],
            next: 1,
        }
    }

    pub fn stamp(value: u64) -> Vec<u8> {
        value.to_le_bytes().repeat(BLOCK as usize / 8)
    }

    pub fn write(&mut self, client: &mut Client, random: &mut Rng, writes: u64) {
        for _ in 0..writes {
            let at = random.below(BLOCKS);
            client.write(at * BLOCK, &Model::stamp(self.next));
            self.blocks[at as usize].later.push(self.next);
            self.next += 1;
        }
    }

    pub fn flush(&mut self, client: &mut Client) {
        client.flush();
        for block in &mut self.blocks {
            if let Some(last) = block.later.last() {
                block.flushed = *last;
                block.later.clear();
            }
        }
    }

    /// What was flushed is the content of a file.
    pub fn is_in(&self, path: &Path) {
        let bytes = std::fs::read(path).expect("the content");
        for (at, found) in bytes.chunks(BLOCK as usize).enumerate() {
            assert_eq!(found, Model::stamp(self.blocks[at].flushed), "block {at}");
        }
    }

    /// All of it is as it may be; what is seen is what is there from now on.
    pub fn check(&mut self, client: &mut Client, when: &str) {
        let bytes = client.read(0, BYTES as usize);
        for (at, found) in bytes.chunks(BLOCK as usize).enumerate() {
            let value = u64::from_le_bytes(found[..8].try_into().expect("eight"));
            assert_eq!(found, Model::stamp(value), "{when}: block {at} is whole");
            let block = &mut self.blocks[at];
            let may = value == block.flushed || block.later.contains(&value);
            assert!(
                may,
                "{when}: block {at} has {value}, wanted {}",
                block.flushed
            );
            (block.flushed, block.later) = (value, Vec::new());
        }
    }
}

/// Rounds on one host and the other, with daemons killed while a client writes, while a volume is
/// asked for, and while it is brought to the origin.
pub(crate) fn moves(image: &Path, format: &str, vault: &str) -> Model {
    let mut hosts = pair(image, format, "destage-after = \"never\"", vault);
    let mut random = Rng::new(seed(7));
    let (mut model, mut at) = (Model::new(), 0);
    let (mut moved, mut in_flight) = (0, 0);
    for round in 0..count("TENUTO_MOVES", 12) {
        let when = format!("round {round} on {at}");
        let mut client = hosts[at].client();
        model.check(&mut client, &when);
        let writes = 20 + random.below(200);
        model.write(&mut client, &mut random, writes);
        model.flush(&mut client);
        model.write(&mut client, &mut random, 20);
        match random.below(4) {
            // The owner dies under its client, and goes on.
            0 => {
                hosts[at].kill();
                hosts[at].start();
                see_each_other(&hosts);
                model.check(&mut hosts[at].client(), &format!("{when}, killed"));
            }
            // It dies while it lets go.
            1 => {
                model.flush(&mut client);
                drop(client);
                let asks = hosts[1 - at].client_later();
                wait_until("it is asked for", PATIENCE, || {
                    hosts[1 - at].show()["ownership"] != "away"
                });
                thread::sleep(std::time::Duration::from_millis(random.below(60)));
                in_flight += u64::from(!asks.is_finished());
                hosts[at].kill();
                hosts[at].start();
                let mut client = asks.join().expect("no panic").expect("served in the end");
                model.check(&mut client, &format!("{when}, killed while it lets go"));
            }
            // Who asks dies.
            2 => {
                model.flush(&mut client);
                drop(client);
                let asks = hosts[1 - at].client_later();
                thread::sleep(std::time::Duration::from_millis(random.below(60)));
                in_flight += u64::from(!asks.is_finished());
                hosts[1 - at].kill();
                drop(asks.join());
                hosts[1 - at].start();
            }
            _ => model.flush(&mut client),
        }
        let next = random.below(2) as usize;
        moved += u64::from(next != at);
        at = next;
    }
    assert!(moved > 0, "it has moved");
    println!("{moved} moves, {in_flight} kills while it was asked for");
    let mut client = hosts[at].client();
    model.check(&mut client, "at the end");
    client.disconnect();
    hosts[at].rig.gone_clients("disk");
    hosts[at].rig.done(&["volume", "destage", "disk", "--wait"]);
    for host in &mut hosts {
        host.stop();
    }
    model
}

/// Fails when: a host whose link is down is taken for one that writes no more.
#[test]
fn a_raw_volume_is_where_its_client_is_over_kills() {
    let shared = Shared::new();
    let image = shared.raw();
    let model = moves(&image, "raw", "beside");
    model.is_in(&image);
    // Of all epochs but the last nothing is left.
    let beside = shared.beside();
    let left = beside
        .iter()
        .filter(|it| it.starts_with("disk.img.tenuto-"));
    assert!(left.count() <= 2, "{beside:?}");
}

#[test]
fn a_qcow2_volume_is_where_its_client_is_over_kills() {
    if !have(
        "a_qcow2_volume_is_where_its_client_is_over_kills",
        &["qemu-img"],
    ) {
        return;
    }
    let shared = Shared::new();
    let (base, image) = (shared.path("base.img"), shared.path("disk.qcow2"));
    let file = std::fs::File::create(&base).expect("a base");
    file.set_len(BYTES).expect("its size");
    let [base, path] = [&base, &image].map(|it| it.display().to_string());
    let create = [
        "create", "-q", "-f", "qcow2", "-F", "raw", "-b", &base, &path,
    ];
    run("qemu-img", &create);
    let vault = shared.path("vault");
    std::fs::create_dir(&vault).expect("a vault");
    let model = moves(&image, "qcow2", &format!("dir:{}", vault.display()));
    run("qemu-img", &["check", "-q", &path]);
    let raw = shared.path("raw").display().to_string();
    run("qemu-img", &["convert", "-O", "raw", &path, &raw]);
    model.is_in(Path::new(&raw));
}

/// Fails when: a host whose link is down is taken for one that writes no more.
#[test]
fn a_dead_host_is_waited_for_and_its_data_is_given_up_by_name_only() {
    let shared = Shared::new();
    let image = shared.raw();
    let mut hosts = pair(&image, "raw", "destage-after = \"never\"", "beside");
    let [one, two] = &mut hosts;
    let mut client = one.client();
    client.write(0, &Model::stamp(1));
    client.flush();
    one.rig.done(&["volume", "destage", "disk", "--wait"]);
    client.write(0, &Model::stamp(2));
    client.flush();
    one.kill();
    let asks = two.client_later();
    two.waits_for("ownership", "waiting-for-proof");
    let said = two.rig.tenuto(&["status", "-x"]);
    assert_eq!(said.status.code(), Some(EXIT_FAILED));
    let said = text_of(&said);
    assert!(
        said.contains("host-a") && said.contains("--fenced"),
        "{said}"
    );
    let before = std::fs::read(&image).expect("the image");
    let said = two
        .rig
        .refused(&["volume", "takeover", "disk", "--fenced"], EXIT_REFUSED);
    assert!(said.contains("host-a"), "{said}");
    assert_eq!(two.show()["state"], "held");
    assert!(asks.join().expect("no panic").is_err(), "it is held");
    // It comes back, and has it again by itself.
    one.start();
    one.waits_for("ownership", "owner");
    assert_eq!(std::fs::read(&image).expect("the image"), before);
    let mut client = two.client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(2));
    client.write(0, &Model::stamp(3));
    client.flush();
    drop(client);
    // Now what the dead host has is given up.
    two.kill();
    let asks = one.client_later();
    one.waits_for("ownership", "waiting-for-proof");
    one.rig
        .refused(&["volume", "takeover", "disk", "--fenced"], EXIT_REFUSED);
    drop(asks.join());
    one.rig
        .done(&["volume", "accept-loss", "disk", "--discard-dirty=disk"]);
    let mut client = one.client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(2));
    client.write(BLOCK, &Model::stamp(4));
    client.flush();
    drop(client);
    // What was given up is not thrown away unasked where it lies, and never mixed with the rest.
    two.start();
    let refused = two.client_later().join().expect("no panic");
    assert!(refused.is_err(), "it is held");
    assert_eq!(two.show()["state"], "held");
    two.rig
        .done(&["volume", "accept-loss", "disk", "--discard-dirty=disk"]);
    let mut client = two.client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(2), "no mix");
    assert_eq!(client.read(BLOCK, BLOCK as usize), Model::stamp(4));
    drop(client);
    hosts.iter_mut().for_each(|host| drop(host.stop()));
}

/// Fails when: a record of an earlier boot is taken for one of this boot.
#[test]
fn an_owner_goes_on_after_a_boot_with_a_new_epoch() {
    let shared = Shared::new();
    let image = shared.raw();
    let mut hosts = pair(&image, "raw", "destage-after = \"never\"", "beside");
    let mut client = hosts[0].client();
    client.write(0, &Model::stamp(1));
    client.flush();
    drop(client);
    let before = hosts[0].show()["drain"]["epoch"].as_u64();
    hosts[0].kill();
    hosts[0].rig.go_to_boot(hosts[0].rig.boot() + 1);
    hosts[0].start();
    hosts[0].waits_for("ownership", "owner");
    let after = hosts[0].show()["drain"]["epoch"].as_u64();
    assert_eq!(after, before.map(|it| it + 1));
    let mut client = hosts[1].client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(1));
    drop(client);
    hosts.iter_mut().for_each(|host| drop(host.stop()));
}

/// Fails when: an image of a cluster is not refused by who is not asked to serve it.
#[test]
fn a_volume_with_dirty_data_joins_a_cluster_and_is_refused_outside() {
    let shared = Shared::new();
    let image = shared.raw();
    let mut host = Host::new("host-a", &image, "raw", "destage-after = \"never\"");
    host.start();
    let mut client = host.client();
    client.write(0, &Model::stamp(1));
    client.flush();
    drop(client);
    host.stop();
    let port = &free_ports()[0];
    host.rig.done(&["cluster", "init", "c1", "--listen", port]);
    host.keep_section();
    host.start();
    host.waits_for("ownership", "owner");
    let mut client = host.client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(1));
    drop(client);
    host.stop();
    let mut stranger = Host::new("host-z", &image, "raw", "");
    stranger.start();
    let shown = stranger.show();
    assert_eq!(shown["state"], "held", "{shown}");
    let said = stranger.rig.tenuto(&["status", "-x"]);
    assert!(
        text_of(&said).contains("belongs to a cluster"),
        "{}",
        text_of(&said)
    );
    stranger.stop();
    let path = image.display().to_string();
    let said = stranger.rig.tenuto(&["origin", "replay", &path]);
    assert!(
        !said.status.success() && text_of(&said).contains("cluster"),
        "{}",
        text_of(&said)
    );
    // Nothing was changed by that.
    host.start();
    let mut client = host.client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(1));
    drop(client);
    host.stop();
}

/// Fails when: a front end that comes for a volume that is away is closed.
#[test]
fn a_front_end_of_vhost_user_waits_until_the_volume_is_here() {
    let shared = Shared::new();
    let image = shared.raw();
    let mut hosts = ["host-a", "host-b"].map(|name| {
        let mut host = Host::new(name, &image, "raw", "");
        host.rig.forget_volumes();
        host.rig.guest_volume("disk", &image, "write-back", "");
        host.rig.write_config();
        host
    });
    let ports = free_ports();
    let [one, two] = &mut hosts;
    one.rig
        .done(&["cluster", "init", "c1", "--listen", &ports[0]]);
    one.keep_section();
    one.start();
    let token = one.rig.done(&["cluster", "token"]);
    let join = ["cluster", "join", token.trim(), "--listen", &ports[1]];
    two.rig.done(&join);
    two.keep_section();
    two.start();
    see_each_other(&hosts);
    let socket = |host: &Host| host.rig.run_dir().join("disk.vhost.sock");
    let mut guest = Polite::connect(&socket(&hosts[0])).expect("served");
    guest.write(0, &Model::stamp(1));
    guest.flush();
    let later = thread::spawn({
        let socket = socket(&hosts[1]);
        move || Polite::connect(&socket).expect("served in the end")
    });
    hosts[1].waits_for("ownership", "asking");
    wait_until("why it waits is told", PATIENCE, || {
        let reason = hosts[1].show()["ownership_reason"].clone();
        reason
            .as_str()
            .is_some_and(|it| it.contains("a client on host-a"))
    });
    guest.leave();
    let mut guest = later.join().expect("no panic");
    assert_eq!(guest.read(0, BLOCK as usize), Model::stamp(1));
    guest.leave();
    hosts.iter_mut().for_each(|host| drop(host.stop()));
}

/// Fails when: a program that says no is taken for one that says yes.
#[test]
fn a_fence_program_lets_another_host_go_on_where_nothing_is_lost() {
    let shared = Shared::new();
    let image = shared.raw();
    let (program, told) = (shared.path("fence"), shared.path("told"));
    let script = |code: u32| {
        let text = format!("#!/bin/sh\necho $1 >> {}\nexit {code}\n", told.display());
        std::fs::write(&program, text).expect("a program");
        run("chmod", &["755", &program.display().to_string()]);
    };
    script(1);
    let mut hosts = pair(&image, "raw", "", "beside");
    let [one, two] = &mut hosts;
    two.stop();
    two.rig.forget_volumes();
    one.stop();
    one.rig.forget_volumes();
    for host in [&mut *one, &mut *two] {
        host.rig.volume("disk", &image, "write-through", "");
        host.rig
            .section(&format!("fence = \"{}\"\n", program.display()));
        host.rig.write_config();
        host.start();
    }
    see_each_other(&hosts);
    let [one, two] = &mut hosts;
    let mut client = one.client();
    client.write(0, &Model::stamp(1));
    client.flush();
    one.kill();
    let asks = two.client_later();
    wait_until("the program was called", PATIENCE, || told.exists());
    wait_until("it is told that it failed", PATIENCE, || {
        let reason = two.show()["ownership_reason"].clone();
        reason
            .as_str()
            .is_some_and(|it| it.contains("fence program"))
    });
    assert!(!asks.is_finished(), "a host that may write is waited for");
    script(0);
    let mut client = asks.join().expect("no panic").expect("served");
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(1));
    let said = std::fs::read_to_string(&told).expect("what it was told");
    assert!(said.lines().all(|it| it == "host-a"), "{said}");
    assert_eq!(two.show()["drain"]["proof"], "fenced by its program");
    drop(client);
    two.stop();
}

/// Fails when: the records of a volume are made anew where they are not found.
#[test]
fn a_vault_that_is_not_there_is_waited_for_and_never_made_anew() {
    let shared = Shared::new();
    let image = shared.raw();
    let (vault, away) = (shared.path("vault"), shared.path("away"));
    let mut host = Host::new("host-a", &image, "raw", "");
    let port = &free_ports()[0];
    let init = |place: &Path| {
        let vault = format!("dir:{}", place.display());
        ["cluster", "init", "c1", "--listen", port, "--vault", &vault].map(str::to_owned)
    };
    let nowhere = init(&shared.path("nowhere/vault"));
    let nowhere: Vec<&str> = nowhere.iter().map(String::as_str).collect();
    let said = host.rig.refused(&nowhere, EXIT_USAGE);
    assert!(said.contains("mount"), "{said}");
    let made = init(&vault);
    host.rig
        .done(&made.iter().map(String::as_str).collect::<Vec<_>>());
    host.keep_section();
    host.start();
    let mut client = host.client();
    client.write(0, &Model::stamp(1));
    client.flush();
    drop(client);
    host.stop();
    std::fs::rename(&vault, &away).expect("it is not mounted");
    for empty in [false, true] {
        if empty {
            std::fs::create_dir(&vault).expect("what it is mounted on");
        }
        host.start();
        wait_until("it is told", PATIENCE, || {
            let reason = host.show()["ownership_reason"].clone();
            reason.as_str().is_some_and(|it| it.contains("mount"))
        });
        host.stop();
    }
    assert_eq!(std::fs::read_dir(&vault).expect("there").count(), 0);
    std::fs::remove_dir(&vault).expect("nothing was made");
    std::fs::rename(&away, &vault).expect("it is mounted");
    host.start();
    let mut client = host.client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(1));
    drop(client);
    host.stop();
}

/// Fails when: what is left to be done for a volume that is removed is done to one that is not
/// there any more.
#[test]
fn a_volume_that_is_removed_from_its_owner_is_served_elsewhere() {
    let shared = Shared::new();
    let image = shared.raw();
    let mut hosts = pair(&image, "raw", "", "beside");
    let [one, two] = &mut hosts;
    let mut client = one.client();
    client.write(0, &Model::stamp(1));
    client.flush();
    drop(client);
    one.rig.done(&["volume", "destage", "disk", "--wait"]);
    one.rig.done(&["volume", "rm", "disk"]);
    assert!(!one.rig.done(&["volume", "ls"]).contains("disk"));
    let mut client = two.client();
    assert_eq!(client.read(0, BLOCK as usize), Model::stamp(1));
    drop(client);
    let said = one.stop();
    assert!(!said.contains("panicked"), "{said}");
    two.stop();
}
