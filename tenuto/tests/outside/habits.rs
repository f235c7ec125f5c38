//! What people type and read because other programs have it so: other words for a verb, sizes and
//! times, sorted tables, status codes, and the calls of the documents.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::common::{EXIT_REFUSED, EXIT_USAGE, Rig, have, run, text_of};
use crate::openapi::ask_whole;

const MIB: u64 = 1 << 20;

/// Fails when: an alias is lost, or one of these forms is not read or is read as another number.
#[test]
fn verbs_sizes_and_times_have_the_words_of_other_programs() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", MIB);
    let more = rig.image("more.img", MIB);
    let lines = "dirty-limit = \"512M\"\ndestage-after = \"2hours\"\norigin-timeout = \"30sec\"";
    rig.volume("disk", &image, "write-back", lines);
    let daemon = rig.serve();
    let explained = rig.done(&["config", "--explain"]);
    for shown in [
        "dirty-limit = \"512MiB\"",
        "destage-after = \"2h\"",
        "= \"30s\"",
    ] {
        assert!(explained.contains(shown), "{shown} in\n{explained}");
    }
    let origin = format!("origin={}", more.display());
    let keys = [
        origin.as_str(),
        "format=raw",
        "dirty-limit=1G",
        "destage-after=1d",
    ];
    rig.done(&[&["volume", "create", "more"][..], &keys].concat());
    assert_eq!(rig.done(&["volume", "list", "--names"]), "disk\nmore\n");
    assert_eq!(rig.done(&["peer", "list"]), rig.done(&["peer", "ls"]));
    rig.done(&[
        "volume",
        "set",
        "more",
        "dirty-limit=2048k",
        "destage-after=10min",
    ]);
    // A name that is taken is no reason to throw anything away.
    let said = rig.refused(
        &[&["volume", "create", "more"][..], &keys].concat(),
        EXIT_USAGE,
    );
    assert!(
        said.contains("exists already") && !said.contains("reset"),
        "{said}"
    );
    rig.done(&["volume", "delete", "more"]);
    assert_eq!(rig.done(&["volume", "list", "--names"]), "disk\n");

    for (key, value, what) in [
        (
            "overlay-ram",
            "9999TiB",
            "is out of range; write at most \"1TiB\"",
        ),
        (
            "dirty-limit",
            "9999TiB",
            "is out of range; write at most \"8TiB\"",
        ),
        ("dirty-limit", "99999999TiB", "is out of range"),
        (
            "dirty-limit",
            "1GB",
            "is not a size; write bytes or K, M, G, T",
        ),
        (
            "destage-after",
            "99999999d",
            "is out of range; write at most \"1000000h\"",
        ),
        ("destage-after", "2weeks", "is not a time"),
        (
            "limit",
            "{ bandwidth = \"9999TiB\" }",
            "is out of range; write at most \"1TiB\"",
        ),
        (
            "share",
            "{ min = \"9999TiB\" }",
            "is out of range; write at most \"8TiB\"",
        ),
    ] {
        let order = format!("{key}={value}");
        let said = rig.refused(&["volume", "set", "disk", &order], EXIT_USAGE);
        assert!(said.contains(what), "{order}: {said}");
    }
    let said = rig.refused(&["volume", "resize", "disk", "9999999T"], EXIT_USAGE);
    assert!(said.contains("is not a size"), "{said}");
    daemon.stop();
}

#[test]
fn a_size_of_the_cache_that_no_cache_has_is_refused_with_the_largest_one() {
    let rig = Rig::new();
    let file = rig.dir.join("big.toml");
    for (line, what) in [
        ("size = \"9999999TiB\"", "write at most \"8TiB\""),
        ("size = \"99999999999999TiB\"", "write at most \"8TiB\""),
        ("ram = \"9999TiB\"", "write at most \"1TiB\""),
        ("stage = \"9999TiB\"", "write at most \"1TiB\""),
        ("overlay-ram = \"9999TiB\"", "write at most \"1TiB\""),
        ("index-ram = \"9999TiB\"", "write at most \"1TiB\""),
        ("image-ram = \"9999TiB\"", "write at most \"1TiB\""),
        ("size = \"64MB\"", "since GB is 1000 MB for some"),
    ] {
        std::fs::write(&file, format!("[cache]\n{line}\n")).expect("written");
        let path = file.display().to_string();
        let said = rig.refused(&["config", "--check", &path], EXIT_USAGE);
        assert!(said.contains(what), "{line}: {said}");
    }
    rig.write_config();
    let place = rig.dir.join("new").display().to_string();
    let said = rig.refused(&["cache", "create", &place, "--size", "9T"], EXIT_USAGE);
    assert!(said.contains("write at most 8TiB"), "{said}");
    let said = rig.refused(&["cache", "create", &place, "--size", "9G9"], EXIT_USAGE);
    assert!(said.contains("--size: \"9G9\" is not a size"), "{said}");
}

/// Fails when: names are ordered by their letters, or a line of the explanation grows.
#[test]
fn tables_have_the_order_of_people_and_fit_a_terminal() {
    let mut rig = Rig::new();
    let names = ["desk-10", "desk-2", "desk-1", "a"];
    for name in names {
        let image = rig.image(&format!("{name}.img"), MIB);
        rig.volume(name, &image, "write-back", "");
    }
    let daemon = rig.serve();
    let sorted = ["a", "desk-1", "desk-2", "desk-10"];
    assert_eq!(
        rig.done(&["volume", "ls", "--names"]),
        sorted.join("\n") + "\n"
    );
    let table = rig.done(&["volume", "ls"]);
    let first = table
        .lines()
        .skip(1)
        .map(|line| line.split(' ').next().unwrap_or(""));
    assert_eq!(first.collect::<Vec<_>>(), sorted);
    let explained = rig.done(&["config", "--explain"]);
    for line in explained.lines() {
        let is_place = line.contains(&rig.dir.display().to_string());
        assert!(line.chars().count() <= 100 || is_place, "{line}");
    }
    daemon.stop();
}

/// Fails when: what is made answers as what is shown does, or a conflict as a mistake.
#[test]
fn what_is_made_answers_201_and_what_conflicts_answers_409() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", MIB);
    let more = rig.image("more.img", MIB);
    rig.volume("disk", &image, "ephemeral", "");
    let daemon = rig.serve();
    let body = json!({ "name": "more", "origin": more.display().to_string(), "format": "raw" });
    let (status, head, document) = ask_whole(&rig, "POST", "/v1/volumes", &body.to_string());
    assert_eq!((status, document["name"].as_str()), (201, Some("more")));
    assert!(
        head.to_lowercase()
            .contains("\r\nlocation: /v1/volumes/more\r\n"),
        "{head}"
    );
    let (status, _, document) = ask_whole(&rig, "POST", "/v1/volumes", &body.to_string());
    assert_eq!(status, 409, "{document}");
    assert_eq!(document["error"]["kind"], "exists");
    let client = rig.connect("disk");
    for (method, path) in [
        ("DELETE", "/v1/volumes/disk"),
        ("POST", "/v1/volumes/disk/reset"),
    ] {
        let (status, _, document) = ask_whole(&rig, method, path, "");
        assert_eq!(status, 409, "{method} {path}: {document}");
        assert_eq!(document["error"]["kind"], "refused");
    }
    drop(client);
    for (body, wanted) in [("{", 400), ("{\"name\":\"x\"}", 400)] {
        let (status, _, document) = ask_whole(&rig, "POST", "/v1/volumes", body);
        assert_eq!(status, wanted, "{body}: {document}");
    }
    let (status, _, document) = ask_whole(&rig, "GET", "/v1/volumes/none", "");
    assert_eq!(status, 404, "{document}");
    daemon.stop();
}

/// The calls in the document, each in one line.
fn calls_of_the_document() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let text = std::fs::read_to_string(path).expect("read the document");
    let text = text.replace("\\\n", " ");
    let lines = text.lines().filter(|line| line.starts_with("curl "));
    lines.map(str::to_owned).collect()
}

#[test]
fn the_calls_of_the_document_do_what_it_says() {
    if !have("the_calls_of_the_document_do_what_it_says", &["curl"]) {
        return;
    }
    let rig = Rig::new();
    let image = rig.image("desk-9.img", MIB);
    let daemon = rig.serve();
    let socket = rig.run_dir().join("tenuto.sock").display().to_string();
    let calls = calls_of_the_document();
    assert!(calls.len() >= 5, "{calls:?}");
    for call in calls {
        let call = call.replace("/run/tenuto/tenuto.sock", &socket);
        let call = call.replace("/srv/vms/desk-9.img", &image.display().to_string());
        let output = Command::new("sh")
            .args(["-c", &call])
            .output()
            .expect("sh runs");
        assert!(output.status.success(), "{call}: {}", text_of(&output));
    }
    assert_eq!(
        rig.done(&["volume", "ls", "--names"]),
        "",
        "the last one removes it"
    );
    daemon.stop();
}

/// Fails when: `blkid` is not asked, or a label of ZFS is not known without it.
#[test]
fn a_cache_is_never_made_over_a_member_of_a_pool_or_what_only_blkid_knows() {
    let rig = Rig::new();
    rig.write_config();
    let bytes = 256 * MIB;
    // Rings of uberblocks in the last two labels: what is left of a member after a new partition
    // table at its start.
    let pool = rig.image("pool", bytes);
    let mut content = vec![0; bytes as usize];
    for label in [bytes - (512 << 10), bytes - (256 << 10)] {
        for block in 0..64 {
            let at = (label + (128 << 10) + (block << 10)) as usize;
            content[at..at + 8].copy_from_slice(&0x00ba_b10c_u64.to_le_bytes());
        }
    }
    std::fs::write(&pool, &content).expect("written");
    let refused = |path: &Path| {
        let name = path.display().to_string();
        rig.refused(&["cache", "create", &name, "--size", "256M"], EXIT_REFUSED)
    };
    let said = refused(&pool);
    assert!(
        said.contains("holds a ZFS member") && said.contains("force it to lose that"),
        "{said}"
    );
    assert!(
        std::fs::read(&pool).expect("read") == content,
        "a byte was changed"
    );
    // What our own list does not have.
    if !have("what only blkid knows", &["blkid", "mkfs.minix"]) {
        return;
    }
    let minix = rig.image("minix", bytes);
    run("mkfs.minix", &[&minix.display().to_string()]);
    let content = std::fs::read(&minix).expect("read");
    let said = refused(&minix);
    assert!(said.contains("holds minix, by blkid"), "{said}");
    assert!(
        std::fs::read(&minix).expect("read") == content,
        "a byte was changed"
    );
}
