//! NBD over TLS, with the clients that people use, and with those that should not get in.
//!
//! Always true: certificates are made for each test, and a client in plain text is a socket on
//! which the test says each byte. `qemu-nbd` is the client with TLS where a connection must stay:
//! it shows the export at a socket that the small client reads.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::certificates::Authority;
use crate::common::nbd::{self, Client, go_payload, option};
use crate::common::{Background, Daemon, Rig, have, run, seed, signal, text_of, wait_until};
use workload::rng::Rng;

const BYTES: u64 = 16 << 20;
/// Of a machine on which other tests run.
const PATIENCE: Duration = Duration::from_secs(180);
const OPT_EXPORT_NAME: u32 = 1;
const OPT_LIST: u32 = 3;
const OPT_STARTTLS: u32 = 5;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const REP_ACK: u32 = 1;
const REP_TLS_REQUIRED: u32 = (1 << 31) + 5;
/// Handshakes that the server has at a time.
const HANDSHAKES_MAX: usize = 64;

/// A daemon that needs TLS of its clients on TCP, and who signs for it.
struct House {
    rig: Rig,
    authority: Authority,
    address: SocketAddr,
    daemon: Daemon,
}

impl House {
    /// `tls`: the line of the configuration, with DIR for the directory of the certificates.
    fn new(tls: &str) -> House {
        let mut rig = Rig::new();
        let image = rig.image("disk.img", BYTES);
        rig.volume("disk", &image, "write-back", "destage-after = \"never\"");
        let authority = Authority::new();
        let directory = rig.dir.join("tls");
        authority.write_all(&directory, "server");
        authority.write_all(&rig.dir.join("client"), "client");
        let address = free_address();
        let tls = tls.replace("DIR", &directory.display().to_string());
        rig.section(&format!("[listen]\nnbd = \"{address}\"\n{tls}\n"));
        let daemon = rig.serve();
        House {
            rig,
            authority,
            address,
            daemon,
        }
    }

    fn server_dir(&self) -> PathBuf {
        self.rig.dir.join("tls")
    }

    fn client_dir(&self) -> PathBuf {
        self.rig.dir.join("client")
    }

    /// What `qemu-io` says to commands over TLS, with the certificates of a directory.
    fn qemu_io(&self, certificates: &Path, more: &str, commands: &[String]) -> Output {
        // Where nothing is answered it would wait for ever.
        let mut command = Command::new("timeout");
        command.args([&PATIENCE.as_secs().to_string(), "qemu-io"]);
        command.args(["--object", &credentials(certificates, more)]);
        for text in commands {
            command.args(["-c", text]);
        }
        command.args(["--image-opts", &self.image()]);
        command.stdin(Stdio::null()).output().expect("qemu-io runs")
    }

    fn reads(&self, certificates: &Path) -> bool {
        let output = self.qemu_io(certificates, "", &["read 0 4096".into()]);
        output.status.success()
    }

    fn image(&self) -> String {
        format!(
            "driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={},export=disk,\
             tls-creds=t",
            self.address.port()
        )
    }

    /// A client with TLS that stays, and the socket at which it shows the export.
    fn bridge(&self, name: &str) -> (Background, Client) {
        let socket = self.rig.dir.join(name);
        let bridge = Background::start(
            "qemu-nbd",
            &[
                "--object",
                &credentials(&self.client_dir(), ""),
                "--socket",
                &socket.display().to_string(),
                "--persistent",
                "--image-opts",
                &self.image(),
            ],
        );
        nbd::wait_for_server(&socket);
        let client = Client::connect(&socket, "").expect("it has just answered");
        (bridge, client)
    }

    /// A client in plain text, past the greeting.
    fn plain(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("a greeting");
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&[0, 0, 0, 3]).expect("sent");
        stream
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

fn credentials(certificates: &Path, more: &str) -> String {
    format!(
        "tls-creds-x509,id=t,endpoint=client,verify-peer=yes,dir={}{more}",
        certificates.display()
    )
}

/// The kind of the reply to one option.
fn reply(stream: &mut TcpStream, number: u32, body: &[u8]) -> u32 {
    stream.write_all(&option(number, body)).expect("sent");
    let mut head = [0; 20];
    stream.read_exact(&mut head).expect("a reply");
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    assert_eq!(word(8), number);
    let mut text = vec![0; word(16) as usize];
    stream.read_exact(&mut text).expect("its text");
    word(12)
}

/// What comes until the server closes.
fn last_words(mut stream: TcpStream) -> Vec<u8> {
    let mut words = Vec::new();
    // A reset is an end as well: there was input that the server did not want.
    let _ = stream.read_to_end(&mut words);
    words
}

fn random_commands(random: &mut Rng, count: usize) -> Vec<String> {
    let mut commands = Vec::new();
    for _ in 0..count {
        let length = 1 + random.below(900_000);
        let offset = random.below(BYTES - length);
        let pattern = 1 + random.below(254);
        commands.push(match random.below(8) {
            0 => "flush".to_owned(),
            1 => format!("write -z {offset} {length}"),
            2 => format!("write -f -P {pattern} {offset} {}", length.min(5000)),
            _ => format!("write -P {pattern} {offset} {length}"),
        });
    }
    commands
}

/// Fails when: a byte between a client with TLS and the shard is lost or changed.
#[test]
fn what_qemu_writes_over_tls_comes_to_the_image_and_back() {
    let name = "what_qemu_writes_over_tls_comes_to_the_image_and_back";
    if !have(name, &["qemu-io", "qemu-img"]) {
        return;
    }
    let house = House::new("tls = \"DIR\"");
    let reference = house.rig.image("reference.img", BYTES);
    let mut random = Rng::new(seed(28));
    for versions in ["", ",priority=NORMAL:-VERS-TLS-ALL:+VERS-TLS1.2"] {
        let commands = random_commands(&mut random, 60);
        let output = house.qemu_io(&house.client_dir(), versions, &commands);
        let said = text_of(&output);
        assert!(
            output.status.success() && !said.contains("failed"),
            "{said}"
        );
        let mut arguments = vec!["-f", "raw"];
        for command in &commands {
            arguments.extend(["-c", command]);
        }
        let path = reference.display().to_string();
        arguments.push(&path);
        run("qemu-io", &arguments);
        let compared = Command::new("qemu-img")
            .args([
                "compare",
                "--object",
                &credentials(&house.client_dir(), versions),
            ])
            .args(["--image-opts", &house.image()])
            .arg(format!("driver=raw,file.driver=file,file.filename={path}"))
            .output()
            .expect("qemu-img runs");
        assert!(compared.status.success(), "{}", text_of(&compared));
    }
    house.rig.done(&["volume", "destage", "disk", "--wait"]);
    let image = std::fs::read(house.rig.dir.join("disk.img")).expect("the image");
    let same = image == std::fs::read(&reference).expect("the other one");
    assert!(same, "the image differs");
    house.daemon.stop();
}

/// Fails when: libnbd, or nbdkit as a client, does not get through the negotiation with TLS.
#[test]
fn the_clients_of_libnbd_and_nbdkit_find_the_export_over_tls() {
    let name = "the_clients_of_libnbd_and_nbdkit_find_the_export_over_tls";
    if !have(name, &["nbdinfo", "nbdcopy", "nbdkit"]) {
        return;
    }
    let house = House::new("tls = \"DIR\"");
    let (port, directory) = (house.address.port(), house.client_dir());
    let query = format!("?tls-certificates={}", directory.display());
    let uri = format!("nbds://127.0.0.1:{port}/disk{query}");
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), BYTES.to_string());
    let info = run("nbdinfo", &["--json", "--list", &uri.replace("/disk", "/")]);
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(
        (&info["TLS"], &info["structured"]),
        (&true.into(), &true.into())
    );
    assert_eq!(info["exports"][0]["export-name"], "disk");
    let from = house.rig.dir.join("from.img");
    let mut bytes = vec![0; BYTES as usize];
    Rng::new(seed(29)).fill(&mut bytes);
    std::fs::write(&from, &bytes).expect("written");
    run("nbdcopy", &["--flush", &from.display().to_string(), &uri]);
    // nbdkit is a client with TLS, and a server at a socket for the one of libnbd.
    let back = house.rig.dir.join("back.img");
    std::fs::write(&back, vec![0; BYTES as usize]).expect("written");
    let copy = format!("nbdcopy \"$uri\" {}", back.display());
    let certificates = format!("tls-certificates={}", directory.display());
    let (host, port) = ("hostname=127.0.0.1", format!("port={port}"));
    let server = [
        "-U",
        "-",
        "nbd",
        host,
        &port,
        "export=disk",
        "tls=require",
        &certificates,
    ];
    run("nbdkit", &[&server[..], &["--run", &copy]].concat());
    assert!(
        std::fs::read(&back).expect("read") == bytes,
        "the copy differs"
    );
    house.daemon.stop();
}

/// Fails when: the backup of a volume is not there over TLS, or outlives its window there.
#[test]
fn a_backup_is_read_over_tls_while_its_window_is_open() {
    let name = "a_backup_is_read_over_tls_while_its_window_is_open";
    if !have(name, &["nbdinfo", "nbdcopy"]) {
        return;
    }
    let house = House::new("tls = \"DIR\"");
    let mut bytes = vec![0; BYTES as usize];
    Rng::new(seed(73)).fill(&mut bytes[..4 << 20]);
    let mut client = house.rig.connect("disk");
    client.write(0, &bytes[..4 << 20]);
    let order = |order: &str| house.rig.done(&["volume", order, "disk"]);
    order("quiesce");
    client.write(1 << 20, &[9; 4096]);
    let (port, directory) = (house.address.port(), house.client_dir());
    let query = format!("?tls-certificates={}", directory.display());
    let uri = format!("nbds://127.0.0.1:{port}/disk@backup{query}");
    let copy = house.rig.dir.join("copy.img");
    run("nbdcopy", &[&uri, &copy.display().to_string()]);
    assert!(std::fs::read(&copy).expect("read") == bytes, "it differs");
    // The thread that makes the bytes plain may see the end of its client a moment later.
    wait_until("nobody reads", PATIENCE, || {
        let resume = ["volume", "resume", "disk"];
        house.rig.tenuto(&resume).status.success()
    });
    let gone = std::process::Command::new("nbdinfo")
        .args(["--size", &uri])
        .output()
        .expect("nbdinfo runs");
    assert!(!gone.status.success(), "{}", text_of(&gone));
    drop(client);
    house.daemon.stop();
}

/// Fails when: certificates of clients are not asked for, or not checked.
#[test]
fn a_client_without_a_certificate_of_the_authority_is_refused_and_told_in_the_log() {
    let name = "a_client_without_a_certificate_of_the_authority_is_refused_and_told_in_the_log";
    if !have(name, &["qemu-io"]) {
        return;
    }
    let house = House::new("tls = \"DIR\"");
    let (bare, stranger) = (house.rig.dir.join("bare"), house.rig.dir.join("stranger"));
    house.authority.write_authority(&bare);
    house.authority.write_authority(&stranger);
    let other = Authority::new();
    other.write_signed(&stranger, "client");
    // QEMU itself would refuse a directory whose certificate is not of its CA.
    let lax = ",sanity-check=no";
    let read = ["read 0 4096".to_owned()];
    for (directory, why) in [
        (&bare, "no certificate"),
        (&stranger, "invalid peer certificate"),
    ] {
        let output = house.qemu_io(directory, lax, &read);
        assert!(!output.status.success(), "{}", text_of(&output));
        let refused = "NBD over TLS: 127.0.0.1:";
        wait_until("the log tells of it", PATIENCE, || {
            let log = house.daemon.log();
            let mut lines = log.lines().filter(|line| line.contains(refused));
            lines.any(|line| line.contains("refused") && line.contains(why))
        });
    }
    assert_eq!(house.rig.show("disk")["reads"]["requests"], 0);
    assert!(house.reads(&house.client_dir()), "the right one is served");
    // A server of another CA is refused by the client, which is told as well.
    let foreign = house.rig.dir.join("foreign");
    other.write_all(&foreign, "client");
    assert!(!house.reads(&foreign));
    house.daemon.stop();
}

/// Fails when: without a check of clients a client still needs a certificate.
#[test]
fn where_clients_are_not_checked_one_without_a_certificate_is_served() {
    let name = "where_clients_are_not_checked_one_without_a_certificate_is_served";
    if !have(name, &["qemu-io"]) {
        return;
    }
    let house = House::new("tls = { dir = \"DIR\", verify-peer = false }");
    let bare = house.rig.dir.join("bare");
    house.authority.write_authority(&bare);
    assert!(house.reads(&bare));
    house.daemon.says(&["every client may connect"]);
    house.daemon.stop();
}

/// Fails when: an option is answered before TLS.
#[test]
fn a_client_in_plain_text_learns_nothing_from_a_listener_with_tls() {
    let house = House::new("tls = \"DIR\"");
    let mut stream = house.plain();
    let asked = [
        (OPT_LIST, vec![]),
        (OPT_GO, go_payload("disk")),
        (OPT_STRUCTURED_REPLY, vec![]),
    ];
    for (number, body) in asked {
        assert_eq!(reply(&mut stream, number, &body), REP_TLS_REQUIRED);
    }
    // The old way to attach has no error; the connection is all there is to say no with.
    stream
        .write_all(&option(OPT_EXPORT_NAME, b"disk"))
        .expect("sent");
    assert_eq!(last_words(stream), b"");
    // After a yes to STARTTLS plain text is no TLS.
    let mut stream = house.plain();
    assert_eq!(reply(&mut stream, OPT_STARTTLS, &[]), REP_ACK);
    stream
        .write_all(&option(OPT_GO, &go_payload("disk")))
        .expect("sent");
    let words = last_words(stream);
    // At most an alert of TLS, which begins with its kind and the major version.
    assert!(words.is_empty() || words.starts_with(&[21, 3]), "{words:?}");
    assert_eq!(house.rig.show("disk")["clients"], 0);
    house
        .daemon
        .says(&["refused: client wants an export without TLS"]);
    house.daemon.stop();
}

/// Fails when: what came in plain text behind STARTTLS is passed over or kept for later.
#[test]
fn bytes_in_plain_text_behind_starttls_end_the_connection() {
    let house = House::new("tls = \"DIR\"");
    for injected in [option(OPT_STRUCTURED_REPLY, &[]), vec![0x16]] {
        let mut stream = house.plain();
        let words = [option(OPT_STARTTLS, &[]), injected].concat();
        stream.write_all(&words).expect("sent");
        assert_eq!(last_words(stream), b"", "no yes to STARTTLS");
    }
    house
        .daemon
        .says(&["refused: client has sent bytes in plain text behind STARTTLS"]);
    house.daemon.stop();
}

/// Fails when: a reload keeps the old certificates, or takes wrong ones.
#[test]
fn a_reload_takes_new_certificates_and_refuses_wrong_ones() {
    let name = "a_reload_takes_new_certificates_and_refuses_wrong_ones";
    if !have(name, &["qemu-io", "qemu-nbd"]) {
        return;
    }
    let house = House::new("tls = \"DIR\"");
    let (_bridge, mut client) = house.bridge("before.sock");
    client.write(0, &[1; 4096]);
    assert!(house.rig.done(&["reload"]).contains("nothing has changed"));
    let (next, theirs) = (Authority::new(), house.rig.dir.join("next"));
    next.write_all(&theirs, "client");
    next.write_all(&house.server_dir(), "server");
    assert!(!house.reads(&theirs), "nothing is read before a reload");
    let said = house.rig.done(&["reload"]);
    assert_eq!(said, "tls: new clients find the new certificates\n");
    assert!(house.reads(&theirs) && !house.reads(&house.client_dir()));
    // A connection from before goes on.
    assert_eq!(client.read(0, 4096), vec![1; 4096]);

    let certificate = house.server_dir().join("server-cert.pem");
    let right = std::fs::read(&certificate).expect("read");
    std::fs::write(&certificate, "no certificate").expect("written");
    let said = house.rig.refused(&["reload"], 2);
    assert!(
        said.contains("tls: ") && said.contains("server-cert.pem: "),
        "{said}"
    );
    // A key that is not that of the certificate, as between two copies.
    next.write_signed(&house.rig.dir.join("other"), "server");
    let other = house.rig.dir.join("other/server-cert.pem");
    std::fs::copy(other, &certificate).expect("copied");
    let said = house.rig.refused(&["reload"], 2);
    assert!(said.contains("server-key.pem: "), "{said}");
    std::fs::write(&certificate, right).expect("written");
    std::fs::remove_file(house.server_dir().join("ca-cert.pem")).expect("removed");
    let said = house.rig.refused(&["reload"], 2);
    assert!(said.contains("clients would not be checked"), "{said}");
    assert!(house.reads(&theirs), "the last right ones are in use");
    house.authority.write_all(&house.server_dir(), "server");
    signal(house.daemon.pid() as i32, libc::SIGHUP);
    house
        .daemon
        .says(&["reload: tls: new clients find the new certificates"]);
    assert!(house.reads(&house.client_dir()));
    client.write(4096, &[2; 4096]);
    house.daemon.stop();
}

/// Fails when: a handshake that never ends is waited for without end, or holds up a connection.
#[test]
fn handshakes_that_hang_end_and_hold_up_no_connection() {
    let name = "handshakes_that_hang_end_and_hold_up_no_connection";
    if !have(name, &["qemu-io", "qemu-nbd"]) {
        return;
    }
    let house = House::new("tls = \"DIR\"");
    let (_bridge, mut client) = house.bridge("load.sock");
    let mut hanging: Vec<TcpStream> = Vec::new();
    for at in 0..HANDSHAKES_MAX {
        let mut stream = house.plain();
        if at % 2 == 0 {
            assert_eq!(reply(&mut stream, OPT_STARTTLS, &[]), REP_ACK);
        }
        hanging.push(stream);
    }
    // These find no place, and wait in the kernel's queue for one.
    for _ in 0..8 {
        hanging.push(TcpStream::connect(house.address).expect("it listens"));
    }
    let mut random = Rng::new(seed(30));
    let mut block = vec![0; 256 << 10];
    for at in 0..64u64 {
        random.fill(&mut block);
        let offset = (at * block.len() as u64) % BYTES;
        client.write(offset, &block);
        assert!(client.read(offset, block.len()) == block, "round {at}");
    }
    assert!(house.reads(&house.client_dir()), "a place comes free");
    for stream in hanging {
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        last_words(stream);
    }
    house.daemon.says(&["no TLS within 10 s; closed"]);
    client.write(0, &block);
    house.daemon.stop();
}

/// Fails when: NBD in plain text listens for other hosts though it was not asked to.
#[test]
fn without_tls_an_address_that_other_hosts_reach_needs_a_word() {
    let address = SocketAddr::from(([0, 0, 0, 0], free_address().port()));
    let rig = |lines: &str| {
        let mut rig = Rig::new();
        let image = rig.image("disk.img", BYTES);
        rig.volume("disk", &image, "write-back", "");
        rig.section(&format!("[listen]\nnbd = \"{address}\"\n{lines}\n"));
        rig
    };
    let (status, said) = rig("").try_serve().err().expect("it does not start");
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("nbd: other hosts reach 0.0.0.0:"), "{said}");
    let rig = rig("insecure = true");
    let daemon = rig.serve();
    let local = SocketAddr::from(([127, 0, 0, 1], address.port()));
    let mut client = Client::connect_tcp(local, "disk").expect("it listens");
    client.write(0, &[7; 512]);
    assert_eq!(client.read(0, 512), vec![7; 512]);
    daemon.stop();
}
