//! What qcow2 images at the storage cost, as `bench policies` counts it, from outside: that its
//! counts add up, that it goes on without QEMU, and that nothing is left where QEMU fails.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;

use crate::common::{EXIT_FAILED, Rig, have};

const SMALL: [&str; 8] = [
    "bench",
    "policies",
    "--desktops",
    "1",
    "--qcow2",
    "1",
    "--cache",
    "8GiB",
];

fn count(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap_or_else(|| panic!("{key}: {of}"))
}

/// Runs that were not swept.
fn left(rig: &Rig) -> Vec<String> {
    let entries = std::fs::read_dir(&rig.dir).expect("list it").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with("tenuto-demo-"))
        .collect()
}

fn sum(image: &Value, key: &str) -> u64 {
    let peaks = image["peaks"].as_array().expect("a list of peaks");
    peaks.iter().map(|peak| count(peak, key)).sum()
}

/// What the table says of the whole week agrees with itself.
fn assert_week(document: &Value) {
    let policies = document["policies"].as_array().expect("a list");
    // The row by class is the same where each class has a disk with places of its own.
    let differential = &document["differential"];
    for at in 0..2 {
        let [ranges, disks] = ["by_ranges", "split_disks"]
            .map(|row| differential[row][at].as_f64().expect("a number"));
        assert!((disks - ranges).abs() <= ranges * 0.05, "{differential}");
    }
    let whole = policies[0]["requests_of_desktops"].as_u64();
    for policy in policies {
        assert_eq!(policy["refused"], 0, "{policy}");
        assert_eq!(policy["requests_of_desktops"].as_u64(), whole);
        let ratio = policy["mean_requests_ratio"].as_f64().expect("a number");
        let right = match policy["policy"] == "no cache" {
            true => 1.0..=1.0,
            false => 0.05..=0.95,
        };
        assert!(right.contains(&ratio), "{policy}");
        for peak in policy["peaks"].as_array().expect("a list") {
            let limits = &peak["limits"];
            for all in ["requests", "busiest_second"] {
                let kinds = limits[all].as_object().expect("kinds").values();
                let sum: u64 = kinds.map(|kind| kind.as_u64().expect("a count")).sum();
                assert_eq!(peak[all].as_u64(), Some(sum), "{peak}");
            }
            let found = limits["hit_ratio"].as_f64().expect("a number");
            assert!((0.0..=1.0).contains(&found), "{peak}");
        }
    }
}

#[test]
fn a_raw_image_takes_one_request_for_each_and_a_qcow2_clone_more() {
    let name = "a_raw_image_takes_one_request_for_each_and_a_qcow2_clone_more";
    if !have(name, &["qemu-nbd", "qemu-img"]) {
        return;
    }
    let mut rig = Rig::new();
    let place = rig.dir.display().to_string();
    rig.env("TMPDIR", &place);
    let page = rig.dir.join("week.html");
    let path = page.to_str().expect("a path in words");
    let document = rig.json(&[&SMALL[..], &["--html", path]].concat());
    let played = &document["qcow2"];
    assert!(count(played, "compared_bytes") > 0, "{played}");
    assert_eq!(count(played, "left_out"), 0);
    let policies = played["policies"].as_array().expect("a list of policies");
    assert_eq!(policies.len(), 4);
    for (policy, whole) in policies
        .iter()
        .zip(document["policies"].as_array().expect("a list"))
    {
        let images = policy["images"].as_array().expect("a list of images");
        assert_eq!(images.len(), 7);
        let (raw, week) = (&images[0], &images[1]);
        for (peak, all) in raw["peaks"]
            .as_array()
            .expect("a list")
            .iter()
            .zip(whole["peaks"].as_array().expect("a list"))
        {
            // There is one desktop, so it is all of what the policy sent.
            assert_eq!(
                count(peak, "requests"),
                count(all, "requests"),
                "{peak} {all}"
            );
            let arrived = count(peak, "reads") + count(peak, "writes");
            assert_eq!(arrived, count(peak, "sent"), "{peak}");
        }
        assert_eq!(sum(raw, "table_reads") + sum(raw, "table_writes"), 0);
        let (new, again) = (&images[2], &images[3]);
        for image in &images[1..] {
            assert!(sum(image, "requests") > sum(raw, "requests"), "{image}");
            assert_eq!(sum(image, "sent"), sum(raw, "sent"));
        }
        assert!(sum(new, "copy_reads") > sum(week, "copy_reads"), "{policy}");
        assert_eq!(sum(again, "copy_reads"), 0, "all is allocated: {again}");
    }
    assert_week(&document);
    assert!(left(&rig).is_empty());
    let page = std::fs::read_to_string(page).expect("the page was written");
    assert!(page.contains("Wed 16:00") && page.contains("differential"));
    assert!(page.matches("<svg").count() >= 9);
    assert!(page.contains("extended_l2") && !page.contains("http"));
}

#[test]
fn without_qemu_the_table_is_there_and_says_how_to_get_it_and_one_that_fails_leaves_nothing() {
    let mut rig = Rig::new();
    let place = rig.dir.display().to_string();
    rig.env("TMPDIR", &place);
    rig.env("PATH", "/nowhere");
    let text = rig.done(&SMALL);
    assert!(text.contains("wanted at most"), "{text}");
    let line = text
        .lines()
        .find(|line| line.contains("skipped"))
        .expect("a line");
    assert!(
        line.contains("not installed; Debian has it in qemu-utils"),
        "{line}"
    );
    // The row by class is the same on disks with places of their own.
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("differential by ranges and on split disks"));
    let line = line.expect("a line");
    assert!(line.ends_with(": reached"), "{line}");
    // Programs of these names that tell a version and then cannot do it.
    let programs = rig.dir.join("programs");
    std::fs::create_dir(&programs).expect("a directory");
    for name in ["qemu-img", "qemu-nbd"] {
        let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo version 0 && exit 0\n\
                      echo 'no room for it' >&2\nexit 1\n";
        let path = programs.join(name);
        std::fs::write(&path, script).expect("a script");
        let may = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, may).expect("it may run");
    }
    rig.env("PATH", &programs.display().to_string());
    let line = rig.refused(&SMALL, EXIT_FAILED);
    assert_eq!(line.lines().count(), 1, "{line}");
    let wanted = "qemu-nbd: has ended (exit status: 1): no room for it";
    assert!(line.contains(wanted), "{line}");
    assert!(left(&rig).is_empty());
}
