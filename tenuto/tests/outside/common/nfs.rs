//! An NFS server and a host that mounts from it: two guests on a network of their own.
//!
//! Owns both guests, the cable between them, and the words of their shells. The server is that of
//! the kernel; what a daemon for mounts would tell it of exports the test tells it. The host runs
//! the real program, and its exports are reached from here over TCP. Always true: both guests are
//! gone when this is dropped, and nothing of them is on a network of this machine but an address
//! of the loopback device.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use super::guest::{Machine, product};
use super::vm::{Disk, Shape, Vm};
use super::{have, nbd};

/// In this order: each needs the ones before it.
const MODULES: [&str; 14] = [
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "net/sunrpc/sunrpc",
    "fs/nfs_common/grace",
    "fs/lockd/lockd",
    "fs/netfs/netfs",
    "fs/fscache/fscache",
    "fs/nfs/nfs",
    "net/dns_resolver/dns_resolver",
    "fs/nfs/nfsv4",
    "fs/nfs_common/nfs_acl",
    "net/sunrpc/auth_gss/auth_rpcgss",
    "fs/nfsd/nfsd",
];
/// A handle of the export names it by the number 0. A lease is as short as the kernel lets it be.
const TOOLS: &str = r#"
load() { for module in "$@"; do insmod /modules/$module.ko; done; }
address() { ip addr add $2/24 dev $1 && ip link set $1 up; }
known() { echo "client 1 \x00000000 2147483647 $1" >/proc/net/rpc/nfsd.fh/channel; }
server() {
    load failover net_failover virtio_net sunrpc grace lockd nfs_acl auth_rpcgss nfsd
    address eth0 10.0.0.1
    mkdir -p /srv /var/lib/nfs/v4recovery
    mount -t ext4 /dev/vda /srv
    mount -t nfsd nfsd /proc/fs/nfsd
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    echo -3 >/proc/fs/nfsd/versions
    serve_files
    no_grace
}
serve_files() {
    echo 'nfsd 10.0.0.2 2147483647 client' >/proc/net/rpc/auth.unix.ip/channel
    echo 'client /srv 2147483647 0x2422 65534 65534 0' >/proc/net/rpc/nfsd.export/channel
    known /srv
    echo 4 >/proc/fs/nfsd/threads
}
no_grace() { echo Y >/proc/fs/nfsd/v4_end_grace; }
locks() { cat /proc/fs/nfsd/clients/*/states | grep -c 'type: lock'; }
forget_clients() { for client in /proc/fs/nfsd/clients/*/ctl; do echo expire >$client; done; }
bytes_of() { stat -c %s "$1" 2>/dev/null || echo 0; }
until_true() { until eval "$1"; do usleep 50000; done; }
host() {
    load failover net_failover virtio_net sunrpc grace lockd netfs fscache nfs dns_resolver nfsv4
    address eth0 10.0.0.2
    address eth1 10.0.2.15
    mkdir -p /mnt /t
    mount -t ext4 /dev/vda /t
    mkdir -p /t/run /t/state /dev/shm
    mount -t tmpfs stage /dev/shm
}
mount_files() {
    mount -t nfs4 -o vers=4.2,clientaddr=10.0.0.2,timeo=50 10.0.0.1:/ /mnt
}
export TENUTO_CONFIG=/tenuto.toml NO_COLOR=1
serve() {
    tenuto serve >/log 2>&1 </dev/null &
    until_true 'grep -q ^ready /log'
}
state() { tenuto volume show disk --json | grep '"state"' | cut -d '"' -f 4; }
"#;
const CONFIGURATION: &str = r#"
[host]
name = "host-a"
group = "0"
run-dir = "/t/run"
state-dir = "/t/state"
stage-dir = "/dev/shm"
[cache]
path = "/t/cache"
size = "128MiB"
ram = "16MiB"
stage = "16MiB"
overlay-ram = "16MiB"
[listen]
nbd = "0.0.0.0:10809"
insecure = true
[[volume]]
name = "disk"
origin = "/mnt/disk.img"
format = "raw"
policy = "write-back"
destage-after = "never"
export = ["nbd"]
"#;
const SERVER_BYTES: u64 = 96 << 20;
const HOST_BYTES: u64 = 256 << 20;

/// A guest with a shell.
pub struct Shell(Vm);

impl Shell {
    /// Its disk is the image of that name.
    pub fn start(machine: &Machine, dir: &Path, name: &str, more: &[String]) -> Shell {
        let disk = Disk::Image(dir.join(format!("{name}.disk")));
        Shell::boot(machine, dir, name, vec![disk], more)
    }

    pub fn with_disks(machine: &Machine, dir: &Path, name: &str, disks: Vec<Disk>) -> Shell {
        Shell::boot(machine, dir, name, disks, &[])
    }

    pub fn boot(
        machine: &Machine,
        dir: &Path,
        name: &str,
        disks: Vec<Disk>,
        more: &[String],
    ) -> Shell {
        let shape = Shape {
            name: name.to_owned(),
            disks,
            uses: &[],
            step: "",
            processors: 1,
            words: "",
            incoming: None,
        };
        Shell(Vm::start_with(machine, dir, &shape, more))
    }

    /// What is typed before is lost.
    pub fn wait_for_shell(&mut self) {
        let ready = |vm: &Vm| !vm.said("ready").is_empty();
        self.0.wait_for("its shell", ready);
    }

    /// Runs a line that must succeed; what it said.
    pub fn run(&mut self, line: &str) -> String {
        let (did, got) = (self.0.said("did").len(), self.0.said("got").len());
        self.0.type_line(line);
        self.0.wait_for(line, |vm| vm.said("did").len() > did);
        let said = self.0.said("got")[got..].join("\n");
        let codes = self.0.said("did");
        assert_eq!(codes[did], "0", "{line}:\n{said}");
        said
    }

    /// Waits until a condition of its shell is true.
    pub fn wait(&mut self, condition: &str) {
        self.run(&format!("until_true '{condition}'"));
    }
}

/// Server and host.
pub struct Lan {
    pub server: Shell,
    pub host: Shell,
    exports: SocketAddr,
}

impl Lan {
    /// Both are up: the server serves a directory with a file `disk.img` of these bytes, and the
    /// host has mounted it and serves the volume `disk`. `None`, with the skip noted, where a
    /// program or a module is missing.
    pub fn start(test: &str, dir: &Path, image: &[u8]) -> Option<Lan> {
        if !have(test, &["strip", "ldd", "sha256sum"]) {
            return None;
        }
        let root = dir.join("initramfs");
        product(&root);
        fs::write(root.join("tenuto.toml"), CONFIGURATION).expect("write the configuration");
        let machine = Machine::with_shell(test, dir, TOOLS, &MODULES)?;
        for (name, bytes) in [("server", SERVER_BYTES), ("host", HOST_BYTES)] {
            let root = dir.join(name);
            fs::create_dir_all(&root).expect("make a directory");
            if name == "server" {
                fs::write(root.join("disk.img"), image).expect("write an image");
            }
            Machine::image_of(&root, &dir.join(format!("{name}.disk")), bytes);
        }
        // One address for each test that runs here.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 64 + high % 64, middle, low);
        let ends = ["server", "host"].map(|name| dir.join(format!("{name}.net")));
        let cable = |from: usize| {
            let place = |end: usize| ends[end].display();
            format!(
                "dgram,id=cable,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                place(from),
                place(1 - from)
            )
        };
        let card = |name: &str, number: usize| {
            format!("virtio-net-pci,netdev={name},mac=52:54:00:00:00:0{number},romfile=")
        };
        let way = format!("user,id=way,restrict=on,hostfwd=tcp:{address}:10809-:10809");
        let server = ["-netdev", &cable(0), "-device", &card("cable", 1)];
        let host = ["-netdev", &cable(1), "-device", &card("cable", 2)];
        let more = ["-netdev", &way, "-device", &card("way", 3)];
        let start = |name: &str, parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
            Shell::start(&machine, dir, name, &parts)
        };
        let mut lan = Lan {
            server: start("server", &server),
            host: start("host", &[host, more].concat()),
            exports: SocketAddr::from((address, 10809)),
        };
        for shell in [&mut lan.server, &mut lan.host] {
            shell.wait_for_shell();
        }
        lan.server.run("server");
        lan.host.run("host");
        lan.host.run("mount_files && serve");
        Some(lan)
    }

    pub fn connect(&self) -> nbd::Client {
        let client = nbd::Client::connect_tcp(self.exports, "disk");
        client.unwrap_or_else(|error| panic!("connect to the host: {error}"))
    }

    /// What the daemon has said.
    pub fn log(&mut self) -> String {
        self.host.run("cat /log")
    }

    /// Pulls the cable, or puts it back.
    pub fn cable(&mut self, is_there: bool) {
        let word = if is_there { "up" } else { "down" };
        self.host.run(&format!("ip link set eth0 {word}"));
    }
}
