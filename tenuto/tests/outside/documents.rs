//! The commands of README and docs/operations.md, run as they stand.
//!
//! A script runs them in a name space of its own, where `/etc`, `/run` and the other places they
//! name are scratch. What it does not run it lists with the reason that stands in the document.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Rig, have, skip, text_of};

const DOCUMENTS: [&str; 2] = ["README.md", "docs/operations.md"];

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_command_of_the_documents_runs_as_it_stands() {
    let test = "every_command_of_the_documents_runs_as_it_stands";
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
        .args(DOCUMENTS.map(|document| tree().join(document)))
        .output()
        .expect("run the script");
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    // A script that found nothing to run has shown nothing.
    let ran = text.lines().filter(|line| line.starts_with("ok: ")).count();
    assert!(ran >= 25, "only {ran} commands were run:\n{text}");
}

#[test]
fn no_command_hides_in_a_fence_that_is_not_run() {
    for document in DOCUMENTS {
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
