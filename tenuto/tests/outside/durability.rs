//! `bench durability`, from outside: writes by class of a recorded trace, the programs of the
//! workloads, and the parts without a guest in smoke size.
//!
//! Deliberately absent: the guest, whose two boots under emulation take minutes.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{EXIT_USAGE, Rig, have, run};
use workload::trace::native::Writer;
use workload::trace::{NameId, Op, Record};

const BLOCK: usize = 4096;
/// Files of the image, and how often each of their two blocks is written.
const FILES: [(&str, u64); 4] = [
    ("tmp/scratch", 3),
    ("var/log/syslog", 1),
    ("srv/data", 2),
    ("var/cache/debconf/answers", 2),
];

/// An image with these files; where their blocks are, in sectors.
fn image(place: &Path) -> (PathBuf, Vec<Vec<u64>>) {
    let (tree, image) = (place.join("tree"), place.join("desk.img"));
    let content = |at: usize, block: usize| vec![(16 * at + block + 1) as u8; BLOCK];
    for (at, (name, _)) in FILES.iter().enumerate() {
        let file = tree.join(name);
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(&file, [content(at, 0), content(at, 1)].concat()).expect("written");
    }
    fs::File::create(&image)
        .and_then(|file| file.set_len(32 << 20))
        .expect("an image");
    let [tree, name] = [&tree, &image].map(|it| it.to_str().expect("a path in words"));
    run("mkfs.ext4", &["-q", "-b", "4096", "-d", tree, name]);
    let bytes = fs::read(&image).expect("the image");
    let sector = |wanted: Vec<u8>| {
        let found = bytes.chunks(BLOCK).position(|it| it == wanted);
        found.expect("it is in the image") as u64 * 8
    };
    let all = 0..FILES.len();
    let sectors = all.map(|at| (0..2).map(|it| sector(content(at, it))).collect());
    (image.clone(), sectors.collect())
}

/// Each block of each file as often as it says, one read of all, and a block that no file has.
fn trace(place: &Path, sectors: &[Vec<u64>]) -> PathBuf {
    let mut writer = Writer::new(Vec::new()).expect("memory");
    let mut time_ns = 0;
    let mut ask = |op, sector| {
        time_ns += 1_000_000;
        let record = Record {
            time_ns,
            disk: NameId(0),
            op,
            sector,
            sectors: 8,
            path: None,
        };
        writer.record(&record, "desk", None).expect("memory");
    };
    for ((_, times), sectors) in FILES.iter().zip(sectors) {
        for sector in sectors {
            ask(Op::Read, *sector);
            (0..*times).for_each(|_| ask(Op::Write, *sector));
        }
    }
    // The end of an image that is nearly empty.
    ask(Op::Write, (32 << 11) - 64);
    let path = place.join("desk.trace");
    fs::write(&path, writer.finish().expect("memory")).expect("written");
    path
}

fn class<'a>(row: &'a Value, name: &str) -> &'a Value {
    let classes = row["classes"].as_array().expect("a list");
    let found = classes.iter().find(|it| it["class"] == name);
    found.unwrap_or_else(|| panic!("{name}: {row}"))
}

/// Fails when: a write is counted for another class than `image split` gives its file, what no file
/// has counts as late, or a workload that misses the paper's figure is said to reach it.
#[test]
fn writes_of_a_trace_are_classed_by_the_files_of_its_image() {
    let test = "writes_of_a_trace_are_classed_by_the_files_of_its_image";
    if !have(test, &["mkfs.ext4", "debugfs", "partx"]) {
        return;
    }
    let rig = Rig::new();
    let (image, sectors) = image(&rig.dir);
    let path = trace(&rig.dir, &sectors).display().to_string();
    let page = rig.dir.join("page.html").display().to_string();
    let (web, mail) = (format!("web={path}"), format!("mail={path}"));
    let image = image.display().to_string();
    let part = ["bench", "durability", "--part", "figure10"];
    let traces = ["--trace", &web, "--trace", &mail, "--image", &image];
    let all = [&part[..], &traces].concat();
    let document = rig.json(&[&all[..], &["--html", &page]].concat());
    let rows = document["figure10"]["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "{document}");
    for (row, (name, reached)) in rows.iter().zip([("web", true), ("mail", false)]) {
        assert_eq!(
            (&row["workload"], &row["counted"]),
            (&name.into(), &"rules".into())
        );
        for (class_name, writes) in [("never", 6), ("write-back", 2), ("write-through", 9)] {
            let found = class(row, class_name);
            assert_eq!(found["requests"], writes, "{row}");
            assert_eq!(found["bytes"], writes * BLOCK as u64);
        }
        assert_eq!(
            (&row["no_file"]["requests"], &row["reads"]),
            (&1.into(), &8.into())
        );
        assert_eq!(row["file_system"]["requests"], 0);
        assert_eq!(row["reached"], reached, "{row}");
    }
    let page = fs::read_to_string(page).expect("the page");
    assert!(page.matches("<svg").count() == 2 && !page.contains("http"));
    let text = rig.done(&all);
    assert!(text.contains("47.1 % of writes late or never"), "{text}");

    for (arguments, words) in [
        (vec!["--trace", "web"], "NAME=FILE"),
        (vec!["--image", "x.img"], "give --trace NAME=FILE too"),
        (
            vec!["--trace", &web, "--image", "b=x.img"],
            "there is no --trace b=FILE",
        ),
        (vec!["--trace", &web, "--trace", &web], "is given twice"),
        (
            vec!["--trace", &web, "--rules", "none"],
            "rules none: cannot be read",
        ),
        (vec!["--seconds", "0"], "--seconds 0: out of range"),
    ] {
        let line = rig.refused(&[&part[..], &arguments].concat(), EXIT_USAGE);
        assert!(line.contains(words), "{line}");
    }
}

/// What a program of a workload says it has done, and the home in which it did that.
fn workload(rig: &Rig, program: &str, arguments: &[&str]) -> (Value, PathBuf) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/guest");
    let home = rig.dir.join(format!("home-{program}-{}", arguments.len()));
    let temporary = rig.dir.join("temporary");
    fs::create_dir_all(&temporary).expect("a directory");
    let output = Command::new("python3")
        .arg(scripts.join(format!("{program}.py")))
        .args(["--pause", "0", "--home"])
        .arg(&home)
        .args(arguments)
        .env("TMPDIR", &temporary)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    let left = fs::read_dir(&temporary).expect("a directory").count();
    assert_eq!(left, 0, "temporary files go away");
    (serde_json::from_str(&said).expect("one line of JSON"), home)
}

/// Files below a directory, and bytes of them.
fn files(directory: &Path) -> (u64, u64) {
    let mut sum = (0, 0);
    for entry in fs::read_dir(directory).expect("it is there").flatten() {
        let about = entry.metadata().expect("it is there");
        if about.is_dir() {
            let below = files(&entry.path());
            sum = (sum.0 + below.0, sum.1 + below.1);
        } else {
            sum = (sum.0 + 1, sum.1 + about.len());
        }
    }
    sum
}

fn is_database(path: &Path) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3\0"))
}

/// Fails when: a program of a workload writes other files than those of what it stands for, or says
/// of itself what it has not done.
#[test]
fn each_program_of_a_workload_does_what_it_says() {
    let test = "each_program_of_a_workload_does_what_it_says";
    if !have(test, &["python3"]) {
        return;
    }
    let rig = Rig::new();
    let count =
        |of: &Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}"));

    let (said, home) = workload(&rig, "web", &["--pages", "4", "--answers", "9"]);
    let cache = files(&home.join(".cache"));
    assert_eq!(
        (count(&said, "cache_files"), count(&said, "cache_bytes")),
        cache
    );
    let counted = ["visits", "cache_files", "cookies", "sessions"].map(|it| count(&said, it));
    assert_eq!(counted, [4, 36, 12, 2]);
    let profile = home.join(".mozilla/firefox/profile");
    assert!(
        is_database(&profile.join("places.sqlite")) && is_database(&profile.join("cookies.sqlite"))
    );
    let sessions = fs::read_dir(profile.join("sessionstore-backups")).expect("it is there");
    assert_eq!(
        sessions.count(),
        1,
        "the new file took the name of the old one"
    );

    let (said, home) = workload(&rig, "mail", &["--mails", "3"]);
    assert_eq!((count(&said, "sent"), count(&said, "received")), (3, 3));
    let profile = home.join(".thunderbird/profile");
    let boxes = ["Mail/Local Folders/Sent", "ImapMail/mail.example.org/INBOX"];
    let boxes = boxes.map(|it| fs::read_to_string(profile.join(it)).expect("a mailbox"));
    let mails = boxes.iter().map(|it| it.matches("From - now").count());
    assert_eq!(mails.sum::<usize>(), 6);
    let bytes: usize = boxes.iter().map(String::len).sum();
    assert_eq!(count(&said, "mail_bytes"), bytes as u64);
    assert!(is_database(&profile.join("global-messages-db.sqlite")));
    let (_, home) = workload(&rig, "mail", &["--mails", "2", "--layout", "evolution"]);
    let sent = files(&home.join(".local/share/evolution/mail/local/.Sent/cur"));
    let received = files(&home.join(".cache/evolution/mail/account/folders/INBOX/cur"));
    assert_eq!((sent, sent.0), (received, 2));

    let (said, home) = workload(&rig, "office", &["--saves", "3", "--memory-max", "0"]);
    let counted = ["saves", "renames", "temporary_files", "visits"].map(|it| count(&said, it));
    assert_eq!(counted, [3, 6, 24, 3]);
    let documents = files(&home.join("Documents"));
    assert_eq!(documents, (1, count(&said, "document_bytes")));
    assert_eq!(count(&said, "document_bytes"), 200_000 + 3 * 64_000);
    assert_eq!(count(&said, "pressed_mib"), 0);
}

/// Fails when: the storage is asked for what the caches have, a class is served by another policy,
/// or a clone on one host is not cached for the next one.
#[test]
fn users_and_desktops_by_class_ask_the_storage_for_what_no_cache_has() {
    let rig = Rig::new();
    let place = rig.dir.display().to_string();
    let parts = ["bench", "durability", "--part", "figure13,hosts"];
    let small = [
        "--users",
        "11",
        "--seconds",
        "5",
        "--desktops",
        "2",
        "--cache",
        "512MiB",
    ];
    let document = rig.json(&[&parts[..], &small, &["--path", &place, "--ram", "512MiB"]].concat());
    let figure = &document["figure13"];
    let of = |class: usize, side: &str, what: &str| {
        let count = figure["classes"][class][side][what].as_u64();
        count.unwrap_or_else(|| panic!("{what}: {figure}"))
    };
    // Each write of the first class is at the storage when it is answered, and none of the last.
    assert!(
        of(0, "asked", "writes") > 0 && of(0, "storage", "writes") > 0,
        "{figure}"
    );
    assert_eq!(of(2, "storage", "writes"), 0, "{figure}");
    assert_eq!(figure["asked_by_second"].as_array().map(Vec::len), Some(5));
    assert_eq!(figure["errors"], 0);

    let rows = document["hosts"]["rows"].as_array().expect("rows");
    let row = |name: &str| {
        let found = rows.iter().find(|it| it["row"] == name);
        found.unwrap_or_else(|| panic!("{name}: {document}"))
    };
    let reads = |name: &str| row(name)["share"]["reads"].as_u64().expect("a count");
    let asked = row("boot, no cache")["asked"]["reads"].as_u64();
    assert_eq!(
        asked,
        Some(reads("boot, no cache")),
        "each is asked of the share"
    );
    // One desktop on each host: a cold cache spares nothing but repetitions, a warm one all.
    assert!(
        reads("boot, cold caches") > 0 && reads("boot, cold caches") <= reads("boot, no cache")
    );
    // All of a boot has a place in the read tier; what a busy cache device did not take is there.
    assert!(
        reads("boot, warm caches") * 10 < reads("boot, cold caches"),
        "{document}"
    );
    for name in ["boot, cold caches", "boot, warm caches", "end, ephemeral"] {
        assert_eq!(row(name)["share"]["writes"], 0, "{name}");
        assert!(row(name)["asked"]["writes"].as_u64() > Some(0), "{name}");
    }
    assert!(row("end, no cache")["share"]["writes"].as_u64() > Some(0));
}
