//! The commands of README and of the documents for operators, run as they stand.
//!
//! A script runs them in a name space of its own, where `/etc`, `/run` and the other places they
//! name are scratch. What it does not run it lists with the reason that stands in the document.
//! What needs a service manager is run in a guest, by the test of the package.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{EXIT_DONE, Rig, have, skip, text_of};

const DOCUMENTS: [&str; 2] = ["README.md", "docs/operations.md"];
/// A story of their own, from the configuration of the package on.
const FIRST_HOUR: [&str; 7] = [
    "docs/getting-started.md",
    "docs/recipes/libvirt.md",
    "docs/recipes/qemu.md",
    "docs/recipes/ci-runners.md",
    "docs/recipes/block-devices.md",
    "docs/recipes/other-vmms.md",
    "docs/recipes/proxmox.md",
];

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs the commands of these documents, at least so many.
fn documents_run(test: &str, documents: &[&str], least: usize) {
    if !crate::common::is_root() {
        skip(test, "a name space of its own needs root");
        return;
    }
    let needed = [
        "unshare", "mount", "timeout", "pidof", "qemu-img", "openssl", "nbdinfo", "nbdcopy",
        "qemu-io",
    ];
    if !have(test, &needed) {
        return;
    }
    let rig = Rig::new();
    let output = Command::new(tree().join("packaging/tests/documented.sh"))
        .arg(env!("CARGO_BIN_EXE_tenuto"))
        .arg(rig.dir.join("scratch"))
        .args(documents.iter().map(|document| tree().join(document)))
        .output()
        .expect("run the script");
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    // A script that found nothing to run has shown nothing.
    let ran = text.lines().filter(|line| line.starts_with("ok: ")).count();
    assert!(ran >= least, "only {ran} commands were run:\n{text}");
}

#[test]
fn every_command_of_the_documents_runs_as_it_stands() {
    let test = "every_command_of_the_documents_runs_as_it_stands";
    documents_run(test, &DOCUMENTS, 25);
}

#[test]
fn every_command_of_the_first_hour_and_of_the_recipes_runs_as_it_stands() {
    let test = "every_command_of_the_first_hour_and_of_the_recipes_runs_as_it_stands";
    documents_run(test, &FIRST_HOUR, 40);
}

/// What libvirt's hook does in this step of a guest with these disks.
fn hook(rig: &Rig, operation: &str, step: &str, sockets: &[&str]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_tenuto"));
    let directory = program.parent().expect("a directory").display();
    let path = std::env::var("PATH").expect("a path");
    let sources = sockets.iter().map(|name| {
        let socket = rig.run_dir().join(name);
        format!("      <source type='unix' path='{}'/>\n", socket.display())
    });
    let mut child = Command::new(tree().join("packaging/libvirt-hook"))
        .args(["guest", operation, step, "-"])
        .env("PATH", format!("{directory}:{path}"))
        .env("TENUTO_CONFIG", rig.config_path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run the hook");
    let mut stdin = child.stdin.take().expect("a pipe");
    let text = format!("<domain>\n{}</domain>\n", sources.collect::<String>());
    stdin.write_all(text.as_bytes()).expect("a description");
    drop(stdin);
    child.wait_with_output().expect("the hook ends")
}

#[test]
fn the_hook_of_libvirt_refuses_what_is_not_served_and_empties_what_is_ephemeral() {
    let mut rig = Rig::new();
    let [clone, kept] = ["clone", "kept"].map(|name| rig.image(name, 4 << 20));
    rig.volume("clone", &clone, "ephemeral", "");
    rig.volume("kept", &kept, "write-back", "destage-after = \"never\"");
    let daemon = rig.serve();
    let sockets = ["clone.vhost.sock", "kept.nbd.sock"];
    for name in ["clone", "kept"] {
        let mut client = rig.connect(name);
        client.write(0, &[7; 4096]);
        client.disconnect();
        rig.gone_clients(name);
    }
    let held = |name: &str, key: &str| rig.show(name)[key].clone();
    let overlay = || {
        rig.show("clone")["overlay"]["ram_bytes"]
            .as_u64()
            .expect("a size")
    };
    assert!(overlay() > 0);
    let said = hook(&rig, "prepare", "begin", &sockets);
    assert_eq!(said.status.code(), Some(EXIT_DONE), "{}", text_of(&said));
    assert!(overlay() > 0, "a start empties nothing");
    let said = hook(&rig, "release", "end", &sockets);
    assert_eq!(said.status.code(), Some(EXIT_DONE), "{}", text_of(&said));
    assert_eq!(overlay(), 0, "the overlay is left");
    assert_eq!(
        held("kept", "dirty_bytes"),
        4096,
        "a kept disk stays as it is"
    );
    // Sockets of other programs are no volumes.
    let said = hook(
        &rig,
        "prepare",
        "begin",
        &["sub/other.vhost.sock", "tenuto.sock"],
    );
    assert_eq!(said.status.code(), Some(EXIT_DONE), "{}", text_of(&said));
    let said = hook(&rig, "prepare", "begin", &["gone.vhost.sock"]);
    assert_ne!(said.status.code(), Some(EXIT_DONE));
    assert!(
        text_of(&said).contains("volume gone: is not served"),
        "{}",
        text_of(&said)
    );
    daemon.stop();
}

#[test]
fn no_command_hides_in_a_fence_that_is_not_run() {
    for document in DOCUMENTS.iter().chain(&FIRST_HOUR) {
        let text = std::fs::read_to_string(tree().join(document)).expect("read it");
        let mut fence = None;
        for line in text.lines() {
            match (line.strip_prefix("```"), fence) {
                (Some(kind), None) => fence = Some(kind),
                (Some(_), Some(_)) => fence = None,
                (None, Some(kind)) if kind != "sh" => {
                    let command = line.starts_with("tenuto ") || line.starts_with("systemctl ");
                    assert!(!command, "{document}: {line}: write ```sh before it");
                }
                _ => {}
            }
        }
    }
}
