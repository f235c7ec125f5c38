//! The command line as scripts see it: exit codes, one line of error, stable keys of JSON.

use std::path::Path;

use serde_json::Value;

use crate::common::{
    EXIT_DAMAGE, EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, Rig, text_of,
};

const BYTES: u64 = 8 << 20;

fn with_volumes() -> Rig {
    let mut rig = Rig::new();
    for (name, policy) in [
        ("back", "write-back"),
        ("plain", "uncached"),
        ("clone", "ephemeral"),
    ] {
        let image = rig.image(&format!("{name}.img"), BYTES);
        rig.volume(name, &image, policy, "");
    }
    rig
}

/// One line, lower case, with the program's name in front.
fn is_one_line(text: &str) {
    assert_eq!(text.lines().count(), 1, "one line: {text:?}");
    let rest = text
        .strip_prefix("tenuto: ")
        .unwrap_or_else(|| panic!("no name in {text:?}"));
    let first = rest.chars().next().expect("a message");
    assert!(!first.is_uppercase(), "lower case: {text:?}");
}

fn has_keys(document: &Value, keys: &[&str]) {
    let object = document
        .as_object()
        .unwrap_or_else(|| panic!("no object: {document}"));
    for key in keys {
        assert!(
            object.contains_key(*key),
            "{key} is missing in {document:#}"
        );
    }
}

#[test]
fn without_a_daemon_commands_end_with_code_3() {
    let rig = with_volumes();
    rig.write_config();
    for arguments in [
        &["status"][..],
        &["volume", "ls"],
        &["volume", "show", "back"],
    ] {
        is_one_line(&rig.refused(arguments, EXIT_UNREACHABLE));
    }
    let output = rig.tenuto(&["status", "--json"]);
    assert_eq!(output.status.code(), Some(EXIT_UNREACHABLE));
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    has_keys(&document["error"], &["kind", "message", "object"]);
}

#[test]
fn wrong_usage_ends_with_code_2() {
    let rig = Rig::new();
    rig.write_config();
    for arguments in [
        &["no-such-command"][..],
        &["volume"],
        &["volume", "show"],
        &["volume", "destage"],
        &["status", "--no-such-option"],
        &["volume", "rebase", "back"],
        &["peer"],
        &["top"],
    ] {
        rig.refused(arguments, EXIT_USAGE);
    }
    let later = rig.refused(&["volume", "takeover", "back"], EXIT_USAGE);
    assert!(later.contains("not in this version"), "{later}");
}

#[test]
fn an_error_of_the_configuration_names_file_line_and_key() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    for (line, key) in [
        ("no-such-key = 1", "no-such-key"),
        ("dirty-limit = \"4 parsecs\"", "dirty-limit"),
        ("destage-after = \"soon\"", "destage-after"),
        ("destage = \"sometimes\"", "destage"),
        ("replicas = 8", "replicas"),
    ] {
        rig.forget_volumes()
            .volume("disk", &image, "write-back", line);
        let path = rig.write_config();
        let at = 1 + std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .position(|other| other == line)
            .expect("the line is in the file");
        let expected = format!("tenuto: {}:{at}: {key}: ", path.display());
        for arguments in [&["config", "--check"][..], &["serve"]] {
            let said = rig.refused(arguments, EXIT_USAGE);
            assert!(said.starts_with(&expected), "{expected:?} in {said:?}");
            assert!(said.contains("; "), "says what would be right: {said:?}");
            is_one_line(&said);
        }
    }
    rig.forget_volumes()
        .volume("disk", Path::new("/nowhere/disk.img"), "write-back", "");
    rig.write_config();
    is_one_line(&rig.refused(&["config", "--check"], EXIT_USAGE));
    rig.forget_volumes()
        .volume("disk", &image, "write-back", "");
    rig.write_config();
    rig.done(&["config", "--check"]);
    let path = rig.config_path().to_string_lossy().into_owned();
    rig.done(&["config", "--check", &path]);
    let explained = rig.done(&["config", "--explain"]);
    for key in ["run-dir", "overlay-ram", "destage-after", "origin-timeout"] {
        assert!(explained.contains(key), "{key} is explained");
    }
}

#[test]
fn show_and_status_have_all_their_keys() {
    let rig = with_volumes();
    let daemon = rig.serve();
    let mut client = rig.connect("back");
    client.write(0, &[1; 8192]);
    client.flush();
    for name in ["back", "plain", "clone"] {
        let shown = rig.show(name);
        has_keys(
            &shown,
            &[
                "name",
                "policy",
                "effective_policy",
                "effective_reason",
                "replicas",
                "state",
                "flags",
                "promise",
                "size_bytes",
                "dirty_bytes",
                "dirty_writes",
                "oldest_dirty_seconds",
                "acked_serial",
                "durable_serial",
                "destaged_serial",
                "generation",
                "reads",
                "writes",
                "flushes",
                "origin",
                "ssd",
                "flow_control",
                "latency_us",
                "latency_window_seconds",
            ],
        );
        has_keys(
            &shown["reads"],
            &["requests", "bytes", "ram_hits", "ssd_hits", "origin"],
        );
        has_keys(&shown["writes"], &["requests", "bytes", "elided_bytes"]);
        has_keys(
            &shown["origin"],
            &[
                "reads",
                "read_bytes",
                "writes",
                "write_bytes",
                "journal_bytes",
                "journal_requests",
                "syncs",
                "errors",
                "latency_us",
            ],
        );
        has_keys(&shown["ssd"], &["read_bytes", "write_bytes"]);
        has_keys(&shown["flow_control"], &["active", "delay_us", "reason"]);
        for what in ["read", "write", "flush"] {
            has_keys(&shown["latency_us"][what], &["p50", "p99", "p999"]);
        }
        assert_eq!(shown["size_bytes"], BYTES);
    }
    let back = rig.show("back");
    assert_eq!(back["state"], "dirty");
    assert_eq!(back["dirty_bytes"], 8192);
    assert_eq!(back["writes"]["requests"], 1);
    assert_eq!(back["acked_serial"], back["durable_serial"]);
    let status = rig.json(&["status"]);
    has_keys(
        &status,
        &[
            "host",
            "cache",
            "ram",
            "volumes",
            "peers",
            "uptime_seconds",
            "version",
            "recovery",
        ],
    );
    has_keys(
        &status["cache"],
        &[
            "size_bytes",
            "used_bytes",
            "dirty_bytes",
            "index_bytes",
            "segments",
        ],
    );
    has_keys(
        &status["cache"]["segments"],
        &["free", "write", "replica", "fill", "control"],
    );
    has_keys(
        &status["recovery"],
        &["ms", "tail_bytes_discarded", "records_replayed"],
    );
    assert_eq!(status["host"], "host-a");
    assert_eq!(status["volumes"].as_array().map(Vec::len), Some(3));
    daemon.stop();
}

/// Fails when: ledger and journal stay when a volume is removed.
#[test]
fn volumes_are_added_changed_and_removed_and_come_back_after_a_restart() {
    let rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    let origin = format!("origin={}", image.display());
    let daemon = rig.serve();
    rig.done(&[
        "volume",
        "add",
        "disk",
        &origin,
        "policy=write-back",
        "format=raw",
    ]);
    rig.refused(
        &["volume", "add", "disk", &origin, "format=raw"],
        EXIT_USAGE,
    );
    rig.refused(
        &["volume", "add", "two", "origin=/nowhere", "format=raw"],
        EXIT_USAGE,
    );
    rig.refused(
        &["volume", "add", "two", &origin, "no-such-key=1"],
        EXIT_USAGE,
    );
    let mut client = rig.connect("disk");
    client.write(0, &[7; 4096]);
    client.flush();
    rig.done(&["volume", "set", "disk", "destage-after=1h", "--wait"]);
    let line = rig.refused(&["volume", "rm", "disk"], EXIT_REFUSED);
    is_one_line(&line);
    client.disconnect();
    rig.gone_clients("disk");
    let line = rig.refused(&["volume", "rm", "disk"], EXIT_REFUSED);
    for part in ["4096 bytes", "--discard-dirty=disk"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    daemon.stop();
    let daemon = rig.serve();
    assert_eq!(rig.connect("disk").read(0, 4096), vec![7; 4096]);
    rig.gone_clients("disk");
    rig.done(&["volume", "destage", "disk", "--wait"]);
    rig.done(&["volume", "rm", "disk"]);
    rig.refused(&["volume", "show", "disk"], EXIT_FAILED);
    assert_eq!(&std::fs::read(&image).unwrap()[..4096], &[7; 4096]);
    for ending in ["tenuto", "tenuto-journal"] {
        let beside = rig.dir.join(format!("disk.img.{ending}"));
        assert!(!beside.exists(), "{} is left behind", beside.display());
    }
    daemon.stop();
    let daemon = rig.serve();
    rig.refused(&["volume", "show", "disk"], EXIT_FAILED);
    daemon.stop();
}

#[test]
fn rm_with_discard_dirty_loses_what_it_names_and_nothing_else() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[7; 4096]);
    client.disconnect();
    rig.gone_clients("disk");
    rig.refused(
        &["volume", "rm", "disk", "--discard-dirty=other"],
        EXIT_USAGE,
    );
    rig.done(&["volume", "rm", "disk", "--discard-dirty=disk"]);
    assert_eq!(&std::fs::read(&image).unwrap()[..4096], &[0; 4096]);
    daemon.stop();
}

/// Fails when: a reset begins a new generation and keeps the overlay.
#[test]
fn reset_is_for_ephemeral_volumes_without_a_client() {
    let rig = with_volumes();
    let daemon = rig.serve();
    let mut client = rig.connect("clone");
    client.write(0, &[7; 4096]);
    rig.refused(&["volume", "reset", "clone"], EXIT_REFUSED);
    client.disconnect();
    rig.gone_clients("clone");
    let before = rig.show("clone")["generation"].as_u64().unwrap();
    rig.done(&["volume", "reset", "clone"]);
    assert!(rig.show("clone")["generation"].as_u64().unwrap() > before);
    assert_eq!(rig.connect("clone").read(0, 4096), vec![0; 4096]);
    rig.refused(&["volume", "reset", "back"], EXIT_REFUSED);
    daemon.kill();
    let daemon = rig.serve();
    assert_eq!(
        rig.connect("clone").read(0, 4096),
        vec![0; 4096],
        "the reset was durable"
    );
    daemon.stop();
}

#[test]
fn destage_brings_everything_to_the_origin_and_flush_is_its_alias() {
    let rig = with_volumes();
    let daemon = rig.serve();
    let mut client = rig.connect("back");
    client.write(4096, &[3; 4096]);
    rig.done(&["volume", "flush", "back", "--wait"]);
    assert_eq!(
        &std::fs::read(rig.dir.join("back.img")).unwrap()[4096..8192],
        &[3; 4096]
    );
    client.write(0, &[4; 4096]);
    rig.done(&["volume", "destage", "--all", "--wait"]);
    assert_eq!(
        &std::fs::read(rig.dir.join("back.img")).unwrap()[..4096],
        &[4; 4096]
    );
    rig.refused(&["volume", "destage", "no-such-volume"], EXIT_FAILED);
    daemon.stop();
}

#[test]
fn status_x_is_silent_and_zero_when_nothing_is_wrong() {
    let rig = with_volumes();
    let daemon = rig.serve();
    let output = rig.tenuto(&["status", "-x"]);
    assert_eq!(
        output.status.code(),
        Some(EXIT_DONE),
        "{}",
        text_of(&output)
    );
    assert!(output.stdout.is_empty());
    daemon.stop();
}

#[test]
fn cache_and_origin_tools_work_on_what_a_daemon_left() {
    let rig = with_volumes();
    let daemon = rig.serve();
    let mut client = rig.connect("back");
    client.write(0, &[7; 65_536]);
    client.flush();
    let path = rig.cache_path().to_string_lossy().into_owned();
    client.disconnect();
    daemon.stop();
    rig.json(&["cache", "inspect", &path]);
    rig.done(&["cache", "verify", &path]);
    let image = rig.dir.join("back.img").to_string_lossy().into_owned();
    rig.json(&["origin", "inspect", &image]);
    rig.done(&["origin", "replay", &image]);
    // A damaged ledger is damage, never an empty one.
    let ledger = rig.dir.join("back.img.tenuto");
    let mut bytes = std::fs::read(&ledger).expect("a ledger lies beside the image");
    for byte in &mut bytes {
        *byte ^= 0x40;
    }
    std::fs::write(&ledger, bytes).unwrap();
    rig.refused(&["origin", "inspect", &image], EXIT_DAMAGE);
}

#[test]
fn sockets_are_replaced_and_not_open_to_everybody() {
    use std::os::unix::fs::PermissionsExt;
    let rig = with_volumes();
    let daemon = rig.serve();
    daemon.kill();
    let daemon = rig.serve();
    for name in ["tenuto.sock", "nbd.sock", "back.nbd.sock"] {
        let path = rig.run_dir().join(name);
        let mode = std::fs::metadata(&path)
            .expect("a socket")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o660, "{}", path.display());
    }
    daemon.stop();
}

#[test]
fn qemu_and_libvirt_arguments_name_the_socket() {
    let rig = with_volumes();
    let daemon = rig.serve();
    for form in ["--qemu", "--libvirt"] {
        let said = rig.done(&["volume", "show", "back", form]);
        assert!(said.contains("back.nbd.sock"), "{said}");
    }
    daemon.stop();
}

#[test]
fn the_configuration_may_be_named_on_the_command_line() {
    let rig = with_volumes();
    let path = rig.write_config();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tenuto"))
        .env_remove("TENUTO_CONFIG")
        .args(["-c", &path.to_string_lossy(), "config", "--check"])
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(EXIT_DONE),
        "{}",
        text_of(&output)
    );
    assert!(rig.done(&["version"]).contains(env!("CARGO_PKG_VERSION")));
    assert!(rig.done(&["completions", "bash"]).contains("tenuto"));
}

#[test]
fn the_simulator_runs_from_the_command_line() {
    let rig = Rig::new();
    rig.write_config();
    rig.done(&["sim", "--seed", "1", "--seconds", "1"]);
}
