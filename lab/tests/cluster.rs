//! Two daemons in this process, one image on a directory that both have, and messages between them
//! without a network: a volume goes where its client is.

use engine::event::Command;
use engine::types::{Policy, Uuid};
use host::cluster::Outlet;
use host::daemon::{Daemon, Settings};
use host::unit::Post;
use host::unit::logs::Neighbour;
use host::unit::sides::Membership;
use host::vault::Vault;
use lab::client::Client;
use lab::in_process::{make_image, settings, volume};
use lab::place::{Place, make_cache};
use node::record::Holder;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);
const CLUSTER: Uuid = Uuid([7; 16]);

fn id(of: u8, host: u8) -> Uuid {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1]) = (of, host);
    Uuid(bytes)
}

/// Who is reached.
type Hosts = Arc<Mutex<BTreeMap<Uuid, Weak<Daemon>>>>;

struct Mail {
    from: Uuid,
    hosts: Hosts,
}

impl Post for Mail {
    fn send(&self, host: Uuid, body: Vec<u8>) -> bool {
        let hosts = self.hosts.lock().expect("no panic");
        let to = hosts.get(&host).and_then(Weak::upgrade);
        drop(hosts);
        let from = self.from;
        let Some(to) = to else {
            return false;
        };
        std::thread::spawn(move || {
            if let Some(units) = to.units() {
                units.heard(from, body);
            }
        });
        true
    }

    fn name(&self, host: Uuid) -> Option<String> {
        Some(format!("host-{}", host.0[1]))
    }

    fn outlet(&self, _host: Uuid) -> Option<Arc<dyn Outlet>> {
        None
    }

    fn tell_room(&self, _blocks: u64) {}

    fn neighbours(&self) -> Vec<Neighbour> {
        Vec::new()
    }
}

struct House {
    _parent: TempDir,
    place: Place,
    host: u8,
    image: PathBuf,
    hosts: Hosts,
}

impl House {
    fn new(host: u8, image: &Path, hosts: &Hosts) -> House {
        let parent = tempfile::tempdir().expect("a directory");
        let place = Place::below(parent.path()).expect("a place");
        make_cache(&place.path("cache"), 256 << 20).expect("a cache");
        let (image, hosts) = (image.to_owned(), hosts.clone());
        House {
            _parent: parent,
            place,
            host,
            image,
            hosts,
        }
    }

    fn start(&self, boot: u8) -> Arc<Daemon> {
        let disk = volume("disk", self.image.clone(), Policy::WriteBack);
        let name = format!("host-{}", self.host);
        let daemon = Daemon::start(Settings {
            clustered: true,
            ..settings(&name, &self.place, 32 << 20, vec![disk])
        });
        let daemon = Arc::new(daemon.expect("starts"));
        let member = Membership {
            cluster: CLUSTER,
            name: "c1".into(),
            domain: String::new(),
            place: Default::default(),
            peer_timeout: Default::default(),
            vault: Vault::Beside,
            fence: None,
            alone: None,
            me: Holder {
                host: id(1, self.host),
                cache: id(2, self.host),
                boot: id(3, boot),
                session: Uuid(uuid::Uuid::new_v4().into_bytes()),
                name,
            },
        };
        let post = Arc::new(Mail {
            from: id(1, self.host),
            hosts: self.hosts.clone(),
        });
        daemon.join_cluster(member, post).expect("joins");
        let mut hosts = self.hosts.lock().expect("no panic");
        for (other, there) in hosts.iter() {
            if let (Some(there), Some(here)) = (there.upgrade(), daemon.units()) {
                here.link(*other, true);
                there.units().expect("joined").link(id(1, self.host), true);
            }
        }
        hosts.insert(id(1, self.host), Arc::downgrade(&daemon));
        daemon
    }

    fn stop(&self, daemon: Arc<Daemon>) {
        daemon.stop().expect("stops");
        self.lose(daemon);
    }

    fn lose(&self, daemon: Arc<Daemon>) {
        drop(daemon);
        let mut hosts = self.hosts.lock().expect("no panic");
        hosts.remove(&id(1, self.host));
        for there in hosts.values().filter_map(Weak::upgrade) {
            there.units().expect("joined").link(id(1, self.host), false);
        }
    }

    fn socket(&self) -> PathBuf {
        self.place.path("run").join("nbd.sock")
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket(), "disk").expect("connects")
    }
}

fn wait_for(daemon: &Daemon, state: &str) {
    let began = Instant::now();
    loop {
        let shown = daemon.units_shown();
        if shown.get("disk").is_some_and(|it| it.state == state) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "not {state}: {shown:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn write(client: &mut Client, byte: u8) {
    client
        .write(u64::from(byte) * 4096, &[byte; 4096])
        .expect("written");
    client.flush().expect("flushed");
}

fn check(client: &mut Client, bytes: std::ops::RangeInclusive<u8>) {
    for byte in bytes {
        let mut found = [0; 4096];
        client
            .read(u64::from(byte) * 4096, &mut found)
            .expect("read");
        assert!(found == [byte; 4096], "block {byte} has {}", found[0]);
    }
}

#[test]
fn a_volume_goes_where_its_client_is() {
    let shared = tempfile::tempdir().expect("a directory");
    let image = shared.path().join("disk.img");
    make_image(&image, 64 << 20).expect("an image");
    let hosts = Hosts::default();
    let (one, two) = (House::new(1, &image, &hosts), House::new(2, &image, &hosts));
    let (a, b) = (one.start(1), two.start(1));
    wait_for(&a, "away");
    let mut client = one.client();
    write(&mut client, 1);
    wait_for(&a, "owner");
    drop(client);
    // Nothing is destaged before another host asks.
    let mut client = two.client();
    check(&mut client, 1..=1);
    write(&mut client, 2);
    wait_for(&b, "owner");
    wait_for(&a, "away");
    // While a client is there no other host gets it.
    let asks = std::thread::spawn({
        let socket = one.socket();
        move || Client::connect(&socket, "disk").expect("connects in the end")
    });
    wait_for(&a, "asking");
    write(&mut client, 3);
    drop(client);
    let mut client = asks.join().expect("no panic");
    check(&mut client, 1..=3);
    write(&mut client, 4);
    drop(client);
    // What no other host has is waited for, also over a boot.
    one.stop(a);
    let asks = std::thread::spawn({
        let socket = two.socket();
        move || Client::connect(&socket, "disk").expect("connects in the end")
    });
    wait_for(&b, "waiting-for-proof");
    let a = one.start(2);
    let mut client = asks.join().expect("no panic");
    check(&mut client, 1..=4);
    write(&mut client, 5);
    // An orderly stop with nothing to destage lets go of it.
    let volume = b.volume_id("disk").expect("served");
    drop(client);
    let destaged = b.handle().command(Command::Destage { volume });
    destaged.expect("destaged");
    two.stop(b);
    let mut client = one.client();
    check(&mut client, 1..=5);
    drop(client);
    one.stop(a);
}
