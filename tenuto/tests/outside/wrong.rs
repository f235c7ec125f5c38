//! Wrong uses, each tried, with what is said: the object, the cause and the remedy.
//!
//! DIR stands for the directory of the test, N for a number that differs from run to run.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::nbd::CMD_READ;
use crate::common::{
    Background, EXIT_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, Rig, have, wait_until,
};

const BYTES: u64 = 16 << 20;

/// A wrong use, its exit code and its line.
type Use<'a> = (&'a [&'a str], i32, &'a str);

/// What differs from run to run.
fn plain(rig: &Rig, said: &str) -> String {
    let said = said.trim_end().strip_prefix("tenuto: ").unwrap_or(said);
    let said = said.replace(&rig.dir.display().to_string(), "DIR");
    let pid = said.find("(pid ").map(|at| at + 5);
    match pid.and_then(|from| Some((from, from + said[from..].find(')')?))) {
        Some((from, to)) => format!("{}N{}", &said[..from], &said[to..]),
        None => said,
    }
}

fn try_all(rig: &Rig, uses: &[Use<'_>]) {
    let mut wrong = Vec::new();
    for (arguments, code, expected) in uses {
        let said = plain(rig, &rig.refused(arguments, *code));
        if said != *expected {
            wrong.push(format!(
                "{arguments:?}\n  said:     {said}\n  expected: {expected}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file of which one line is wrong, and what `serve` says of it.
fn try_file(line: &str, expected: &str) {
    let rig = Rig::new();
    rig.image("disk.img", BYTES);
    let mut guest = b"QFI\xfb\0\0\0\x03".to_vec();
    guest.resize(1 << 20, 0);
    std::fs::write(rig.dir.join("guest.img"), guest).unwrap();
    std::fs::write(rig.dir.join("plain"), "x").unwrap();
    let path = rig.write_config();
    let line = line.replace("DIR", &rig.dir.display().to_string());
    let text = std::fs::read_to_string(&path).unwrap();
    let text = match line.split_once(" => ") {
        Some((key, value)) => {
            let old = text.lines().find(|old| old.starts_with(key));
            text.replace(old.expect("the key is there"), &format!("{key} = {value}"))
        }
        None => format!("{text}{line}\n"),
    };
    std::fs::write(&path, text).unwrap();
    let mut daemon = Command::new(crate::common::binary())
        .args([
            "-c",
            path.to_str().expect("a path in words"),
            "serve",
            "--strict",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run tenuto");
    let mut ready = String::new();
    let output = daemon.stdout.take().expect("a pipe");
    BufReader::new(output)
        .read_line(&mut ready)
        .expect("its output");
    if !ready.is_empty() {
        daemon.kill().expect("end it");
    }
    let done = daemon.wait_with_output().expect("it ends");
    assert!(ready.is_empty(), "{line}: it has started");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let last = said.lines().last().unwrap_or_default();
    let said = plain(&rig, last);
    let said = said.replace("DIR/tenuto.toml:", "FILE:");
    let (code, expected) = expected.split_once(' ').expect("a code first");
    assert_eq!(said, expected, "{line}");
    assert_eq!(done.status.code(), code.parse().ok(), "{line}");
}

const VOLUME: &str = "[[volume]]\nname = \"a\"\norigin = \"DIR/disk.img\"\n";

#[test]
fn a_wrong_file_is_told_with_its_line_its_key_and_what_would_be_right() {
    let volume = |lines: &str| format!("{VOLUME}{lines}");
    for (line, expected) in [
        (
            volume("polcy = \"write-back\""),
            "2 FILE:18: polcy: unknown key; did you mean \"policy\"?",
        ),
        (
            volume("dirty-limit = \"4 gigs\""),
            "2 FILE:18: dirty-limit: \"4 gigs\" is not a size; write bytes or K, M, G, T or \
             KiB, MiB, GiB, TiB, as in \"4GiB\"",
        ),
        (
            VOLUME.replace("disk.img", "missing.img"),
            "2 FILE:17: origin: DIR/missing.img: no such file or directory; name an image or \
             block device that exists and can be read",
        ),
        (
            VOLUME.replace("DIR/disk.img", "DIR"),
            "2 FILE:17: origin: DIR is neither a file nor a block device; name an image or \
             block device that exists and can be read",
        ),
        (
            VOLUME.replace("disk.img", "guest.img"),
            "2 FILE:17: origin: DIR/guest.img looks like qcow2, and has clusters of 2^0 bytes; 2^9 \
             to 2^21 are allowed, 2^14 at least with subclusters; restore it from a backup, or \
             write format = \"raw\" if it is a guest's own data",
        ),
        (
            format!("{VOLUME}{}", VOLUME.replace("\"a\"", "\"b\"")),
            "2 FILE:20: origin: volumes b and a of line 15 have the same image and b writes it; \
             give each its own image, or make all of them ephemeral or read-only",
        ),
        (
            VOLUME.replace("DIR/disk.img", "s3://bucket/prefix"),
            "2 FILE:17: origin: s3 origins are not in this version; write the path of an image \
             or block device, nbd://… or nbd+unix://…",
        ),
        (
            "[listen]\nmetrics = \"127.0.0.1\"".into(),
            "2 FILE:16: metrics: \"127.0.0.1\" is not an address; write an address and a port, as \
             in \"127.0.0.1:9469\"",
        ),
        (
            "[listen]\nweb = \"127.0.0.1:9470\"".into(),
            "2 FILE:16: web: has no token; name a file with one by web-token-file",
        ),
        (
            "[listen]\nnbd = \"127.0.0.1:10809\"\ntls = \"DIR/tls\"".into(),
            "2 FILE:17: tls: DIR/tls/server-cert.pem: no such file or directory; put ca-cert.pem, \
             server-cert.pem and server-key.pem into the directory, as qemu-nbd takes them",
        ),
        (
            "[listen]\nnbd = \"10.0.0.1:10809\"".into(),
            "2 FILE:16: nbd: other hosts reach 10.0.0.1:10809, and NBD without TLS checks no \
             client; name certificates by tls, bind to a loopback address, or write insecure = \
             true if you trust every host of this network",
        ),
        (
            "[cache".into(),
            "2 FILE:15: [cache: unclosed table, expected `]`; write key = value, texts in quotes, \
             each key once",
        ),
        (
            "stage-dir => \"/nonexistent\"".into(),
            "2 FILE:5: stage-dir: /nonexistent: no such file or directory; name a directory that \
             exists",
        ),
        (
            "run-dir => \"DIR/plain\"".into(),
            "1 DIR/plain: file exists; [host] run-dir must be a directory this daemon may make",
        ),
        (
            "path => \"DIR/nodir/cache\"".into(),
            "2 FILE:9: path: DIR/nodir/cache: no such file or directory; name a block device, or a \
             file in a directory that exists",
        ),
    ] {
        try_file(&line, expected);
    }
}

#[test]
fn what_lies_where_the_cache_should_is_told() {
    let mut rig = Rig::new();
    let name = "what_lies_where_the_cache_should_is_told";
    if !have(name, &["mkfs.ext4"]) {
        return;
    }
    let foreign = rig.image("foreign", 192 << 20);
    crate::common::run("mkfs.ext4", &["-q", foreign.to_str().expect("words")]);
    let foreign = foreign.display().to_string();
    rig.cache(Path::new(&foreign), "192MiB", "");
    let (_, said) = rig.try_serve().err().expect("it does not start");
    let said = plain(&rig, said.lines().last().expect("a line"));
    assert_eq!(
        said,
        "cache DIR/foreign: holds ext2, ext3 or ext4; name another file or device"
    );
    rig.cache(Path::new(&rig.dir.join("cache")), "8TiB", "");
    let (_, said) = rig.try_serve().err().expect("it does not start");
    let said = plain(&rig, said.lines().last().expect("a line"));
    let (start, end) = ("cache DIR/cache: cannot allocate 8 TiB (", " are free): ");
    assert!(said.starts_with(start) && said.contains(end), "{said}");
    assert!(!said.contains("(0 B are free"), "{said}");
    try_all(
        &rig,
        &[
            (
                &["cache", "inspect", &foreign],
                EXIT_USAGE,
                "cache DIR/foreign: not written by tenuto; name a cache, or make one with `tenuto \
                 cache create DIR/foreign`",
            ),
            (
                &["cache", "create", &foreign, "--size", "192MiB"],
                EXIT_REFUSED,
                "cache DIR/foreign: holds ext2, ext3 or ext4; name another device, \
                 or force it to lose that",
            ),
        ],
    );
}

#[test]
fn a_daemon_that_is_not_there_is_told() {
    let rig = Rig::new();
    rig.write_config();
    let ask: &[&str] = &["volume", "destage", "disk"];
    let right = "start the daemon with `tenuto serve`, or name its --socket";
    let missing = format!("DIR/run/tenuto.sock: no such file or directory; {right}");
    try_all(&rig, &[(ask, EXIT_UNREACHABLE, &missing)]);
    // A socket that a killed daemon has left.
    std::fs::create_dir_all(rig.run_dir()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(rig.run_dir().join("tenuto.sock")).unwrap());
    let stale = format!("DIR/run/tenuto.sock: connection refused; {right}");
    try_all(&rig, &[(ask, EXIT_UNREACHABLE, &stale)]);
    // It is no hindrance.
    rig.serve().stop();
}

#[test]
fn wrong_orders_to_a_running_daemon_are_told() {
    let mut rig = Rig::new();
    let disk = rig.image("disk.img", BYTES);
    let gold = rig.image("gold.img", BYTES);
    rig.volume("disk", &disk, "write-back", "destage-after = \"never\"");
    rig.volume("clone", &gold, "ephemeral", "");
    rig.volume("other", &gold, "ephemeral", "");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 65536]);
    let cache = rig.cache_path().display().to_string();
    let (image, again) = (
        format!("origin={}", rig.image("free.img", BYTES).display()),
        format!("origin={}", disk.display()),
    );
    let missing = format!("origin={}/missing.img", rig.dir.display());
    let in_use = "cache DIR/cache: in use by tenuto (pid N) on ";
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let in_use = format!(
        "{in_use}{}, which holds its lock; stop it first",
        host.trim()
    );
    try_all(
        &rig,
        &[
            (
                &["serve"],
                EXIT_FAILED,
                "DIR/run/tenuto.sock: another daemon answers here; stop it, or give this one \
                 another [host] run-dir",
            ),
            (
                &["volume", "show", "nope"],
                EXIT_FAILED,
                "volume nope: no such volume; `tenuto volume ls` names them",
            ),
            (
                &["volume", "shw", "disk"],
                EXIT_USAGE,
                "unrecognized subcommand 'shw'; a similar subcommand exists: 'show'",
            ),
            (
                &["volume", "set", "disk", "policy=writeback"],
                EXIT_USAGE,
                "volume disk: policy: \"writeback\" is not one of its values; write \"uncached\", \
                 \"write-through\", \"write-back\" or \"ephemeral\"",
            ),
            (
                &["volume", "set", "disk", "policy"],
                EXIT_USAGE,
                "policy: is no KEY=VALUE; write as in policy=write-back",
            ),
            (
                &["volume", "set", "disk", &image],
                EXIT_USAGE,
                "volume disk: origin cannot be changed while it is attached; write it in the \
                 configuration and restart, or remove and add the volume",
            ),
            (
                &["volume", "set", "disk", "policy=ephemeral"],
                EXIT_REFUSED,
                "volume disk: cannot change from write-back to ephemeral while it runs; what an \
                 ephemeral volume holds is not owed to its origin: remove the volume and add it",
            ),
            (
                &["volume", "add", "disk", &image],
                EXIT_USAGE,
                "volume disk: exists already; choose another name, or change it with `tenuto \
                 volume set disk`",
            ),
            (
                &["volume", "add", "more", &again, "format=raw"],
                EXIT_USAGE,
                "volume more: origin: volumes more and disk of line 15 have the same image and \
                 more writes it; give each its own image, or make all of them ephemeral or \
                 read-only",
            ),
            (
                &["volume", "add", "more", &missing],
                EXIT_USAGE,
                "volume more: origin: DIR/missing.img: no such file or directory; name an image \
                 or block device that exists and can be read",
            ),
            (
                &["volume", "add", "../x", &image],
                EXIT_USAGE,
                "name: \"../x\" is not a volume name; write 1 to 63 letters, digits, '-', '_' or \
                 '.', a letter or digit first",
            ),
            (
                &["volume", "reset", "disk"],
                EXIT_REFUSED,
                "volume disk: reset would discard the data of a write-back volume; only ephemeral \
                 volumes are reset",
            ),
            (
                &["volume", "destage", "clone"],
                EXIT_REFUSED,
                "volume clone: an ephemeral volume never writes its origin; to make its overlay \
                 the content of the image use `tenuto volume commit clone`",
            ),
            (
                &["volume", "commit", "clone"],
                EXIT_REFUSED,
                "volume clone: volume other stands on the same image, which a commit would change \
                 under them; remove them, or give this volume an image of its own",
            ),
            (
                &["volume", "accept-loss", "disk"],
                EXIT_USAGE,
                "volume disk: is not held; there is no loss to accept",
            ),
            (
                &["volume", "rm", "disk"],
                EXIT_REFUSED,
                "volume disk: 1 client is connected; disconnect first, then remove it",
            ),
            (
                &["volume", "rm", "disk", "--discard-dirty=clone"],
                EXIT_USAGE,
                "volume disk: --discard-dirty names clone; write --discard-dirty=disk",
            ),
            (
                &["cache", "create", &cache, "--size", "256MiB"],
                EXIT_REFUSED,
                &in_use,
            ),
            (&["cache", "verify", &cache], EXIT_REFUSED, &in_use),
            (&["recover", "--cache", &cache], EXIT_REFUSED, &in_use),
            (
                &[
                    "origin",
                    "inspect",
                    &format!("{}/missing.img", rig.dir.display()),
                ],
                EXIT_FAILED,
                "DIR/missing.img: no such file or directory; name a file that exists and can be \
                 read",
            ),
            (
                &["events", "--severity", "loud"],
                EXIT_USAGE,
                "invalid value 'loud' for '--severity <LEVEL>' [possible values: info, warning, \
                 error]; see --help",
            ),
            (
                &["volume", "takeover", "disk"],
                EXIT_USAGE,
                "`tenuto volume takeover without --overwrite` is not in this version",
            ),
        ],
    );
    client.disconnect();
    rig.gone_clients("disk");
    let said = plain(&rig, &rig.refused(&["volume", "rm", "disk"], EXIT_REFUSED));
    let (start, end) = (
        "volume disk: 65536 bytes (64 KiB), up to ",
        " s old, are not at the origin and would be lost; run `tenuto volume destage disk --wait` \
         first, or force it with --discard-dirty=disk",
    );
    assert!(said.starts_with(start) && said.ends_with(end), "{said}");
    daemon.stop();
}

#[test]
fn a_trace_that_cannot_be_read_is_told_with_what_to_name_instead() {
    let rig = Rig::new();
    let [missing, place, foreign, new] =
        ["missing", ".", "foreign", "new"].map(|name| rig.dir.join(name).display().to_string());
    std::fs::write(&foreign, "not a trace\n").expect("write a file");
    let formats = "tenuto, vscsistats, cloudphysics, msr, systor17, arc, mqsim, fio, blkparse";
    let right = "name a trace that exists and can be read";
    let unknown = "it is in no format that is known here; name it with --format";
    for (trace, expected) in [
        (
            &missing,
            format!("DIR/missing: no such file or directory; {right}"),
        ),
        (&place, format!("DIR/.: is a directory; {right}")),
        (&foreign, format!("DIR/foreign: {unknown}: {formats}")),
    ] {
        try_all(
            &rig,
            &[
                (&["trace", "info", trace], EXIT_FAILED, &expected),
                (&["trace", "convert", trace, &new], EXIT_FAILED, &expected),
                (&["trace", "analyze", trace], EXIT_FAILED, &expected),
                (
                    &["trace", "replay", trace, "--offline"],
                    EXIT_FAILED,
                    &expected,
                ),
            ],
        );
        assert!(!Path::new(&new).exists(), "nothing was begun");
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_told_with_what_to_name_instead() {
    let rig = Rig::new();
    let [nowhere, there, trace] = ["none/new", "there", "trace"];
    let [nowhere, there, trace] =
        [nowhere, there, trace].map(|name| rig.dir.join(name).display().to_string());
    std::fs::write(&there, "kept\n").expect("write a file");
    std::fs::write(&trace, "fio version 2 iolog\ndisk add\ndisk write 0 4096\n").expect("write");
    let wrong = "no such file or directory; name a file that can be written";
    let taken = "it is there already; give --force to replace it";
    for (output, code, expected) in [
        (&nowhere, EXIT_FAILED, format!("DIR/none/new: {wrong}")),
        (&there, EXIT_REFUSED, format!("DIR/there: {taken}")),
    ] {
        try_all(
            &rig,
            &[
                (&["trace", "convert", &trace, output], code, &expected),
                (&["trace", "synth", "boot", output], code, &expected),
            ],
        );
    }
    let record: &[&str] = &["trace", "record", "disk", "-o", &there];
    try_all(
        &rig,
        &[(record, EXIT_REFUSED, &format!("DIR/there: {taken}"))],
    );
    assert_eq!(std::fs::read_to_string(&there).expect("read"), "kept\n");
}

/// A line for each way to say what is wrong with a number: of clap, of a range, of a size.
#[test]
fn a_number_that_a_measurement_cannot_take_is_told_with_those_it_can() {
    let rig = Rig::new();
    let told = [
        (
            "policies --qcow2 99",
            "--qcow2 99: out of range; give 0 to 16",
        ),
        (
            "policies --desktops 0",
            "--desktops 0: out of range; give 1 to 10000",
        ),
        (
            "policies --desktops many",
            "--desktops many: not a whole number; give one as in 5",
        ),
        (
            "policies --qcow2 -1",
            "-1: no option takes a number below 0; see --help",
        ),
        (
            "policies --cache 1MiB",
            "replay: 1048576 bytes are too small for a cache; at least 106 MiB",
        ),
        (
            "desktops --users 10,5000",
            "--users 5000: out of range; give 1 to 4096",
        ),
        (
            "desktops --seconds 0.1",
            "--seconds 0.1: out of range; give 0.5 to 86400",
        ),
        (
            "desktops --seconds soon",
            "--seconds soon: not a number; give one as in 0.5",
        ),
        (
            "desktops --origin-iops 0",
            "--origin-iops 0: out of range; give 1 or more",
        ),
        (
            "desktops --cache 1MiB",
            "--cache 1 MiB: out of range; give 512 MiB or more",
        ),
        (
            "desktops --path-latency 10ms",
            "--path-latency: it is a part of --origin-latency; give one that is not longer",
        ),
        (
            "micro --path f --rounds 0",
            "--rounds 0: out of range; give 1 or more",
        ),
        (
            "micro --path f --qd 1,0",
            "--qd 0: out of range; give 1 to 256",
        ),
        (
            "micro --path f --size 1MiB",
            "--size 1 MiB: out of range; give 64 MiB to 64 GiB",
        ),
        (
            "micro --path f --connections 99",
            "--connections 99: out of range; give 1 to 16",
        ),
        (
            "micro --path f --client vhost-user --queues 9",
            "--queues 9: out of range; give 1 to 4",
        ),
        (
            "destage --seconds nan",
            "--seconds NaN: out of range; give 0.05 to 600",
        ),
        (
            "destage --misses 900",
            "--misses 900: out of range; give 0 to 500",
        ),
        (
            "destage --writes 90",
            "--writes 90: out of range; give 0 to 50",
        ),
        (
            "neighbour --rate 0",
            "--rate 0: out of range; give 1 or more",
        ),
        ("record --qd 999", "--qd 999: out of range; give 1 to 256"),
        ("burst --scale 0", "--scale 0: out of range; give 1 to 1000"),
        (
            "engine --rounds 0",
            "--rounds 0: out of range; give 1 or more",
        ),
        (
            "engine --rounds 99999999999999999999",
            "--rounds 99999999999999999999: out of range; give a smaller number",
        ),
    ];
    let words = told.map(|(words, _)| {
        let words = ["bench"].into_iter().chain(words.split(' '));
        words.collect::<Vec<&str>>()
    });
    let uses: Vec<Use<'_>> = words
        .iter()
        .zip(told)
        .map(|(words, (_, expected))| (&words[..], EXIT_USAGE, expected))
        .collect();
    try_all(&rig, &uses);
}

#[test]
fn a_user_without_the_right_is_told_who_has_it() {
    let name = "a_user_without_the_right_is_told_who_has_it";
    if !have(name, &["setpriv"]) {
        return;
    }
    if !crate::common::may_mount(name) {
        return;
    }
    let rig = Rig::new();
    let daemon = rig.serve();
    for path in [rig.dir.clone(), rig.run_dir()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let binary = rig.dir.join("tenuto");
    std::fs::copy(crate::common::binary(), &binary).unwrap();
    let socket = rig.run_dir().join("tenuto.sock");
    let done = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .arg("--socket")
        .arg(&socket)
        .arg("status")
        .output()
        .expect("run setpriv");
    let said = plain(&rig, &String::from_utf8_lossy(&done.stderr));
    assert_eq!(
        said,
        "DIR/run/tenuto.sock: permission denied; use it as root, or as a user of the group that \
         [host] group names"
    );
    assert_eq!(done.status.code(), Some(EXIT_UNREACHABLE));
    daemon.stop();
}

#[test]
fn an_origin_that_hangs_is_told_and_holds_up_nobody_else() {
    let name = "an_origin_that_hangs_is_told_and_holds_up_nobody_else";
    if !have(name, &["nbdkit"]) {
        return;
    }
    let mut rig = Rig::new();
    let image = rig.image("far.img", BYTES).display().to_string();
    let near = rig.image("near.img", BYTES);
    let socket = rig.dir.join("far.sock").display().to_string();
    let server = Background::start("nbdkit", &["-f", "-U", &socket, "file", &image]);
    wait_until(
        "the server listens",
        std::time::Duration::from_secs(20),
        || Path::new(&socket).exists(),
    );
    let uri = format!("nbd+unix:///?socket={socket}");
    rig.volume(
        "far",
        Path::new(&uri),
        "write-back",
        "destage-after = \"never\"",
    );
    rig.volume("near", &near, "write-back", "");
    let daemon = rig.serve();
    let mut far = rig.connect("far");
    far.write(0, &[1; 4096]);
    server.freeze();
    let orders = rig.done(&["volume", "destage", "far"]);
    assert!(orders.contains("destage started"), "{orders}");
    far.write(4096, &[2; 4096]);
    let mut client = rig.connect("near");
    client.write(0, &[3; 4096]);
    rig.done(&["volume", "destage", "near", "--wait"]);
    wait_until("it is told", std::time::Duration::from_secs(60), || {
        let said = rig.tenuto(&["status", "-x"]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.contains("volume far is stalled: the origin does not answer")
    });
    let said = rig.tenuto(&["status", "-x"]);
    assert_eq!(said.status.code(), Some(EXIT_FAILED));
    server.signal(libc::SIGCONT);
    rig.done(&["volume", "destage", "far", "--wait"]);
    assert_eq!(rig.show("far")["state"], "clean");
    // A read is enough to notice, where nothing is dirty.
    server.freeze();
    far.send(CMD_READ, 0, 8 << 20, 4096, &[])
        .expect("a read is sent");
    wait_until("it is told", std::time::Duration::from_secs(60), || {
        rig.show("far")["state"] == "stalled"
    });
    server.signal(libc::SIGCONT);
    // It goes on by itself, and what was written since goes after it.
    rig.done(&["volume", "destage", "far", "--wait"]);
    assert_eq!(rig.show("far")["dirty_bytes"], 0);
    assert_eq!(rig.show("far")["state"], "clean");
    far.disconnect();
    client.disconnect();
    daemon.stop();
}
