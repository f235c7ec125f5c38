//! Configurations that are wrong, and the line each must be answered with.

use super::*;
use std::path::Path;

fn error_of(text: &str) -> String {
    let config = parse::parse(Path::new("t.toml"), text);
    let checked = config.map(|config| check::check(&config));
    match checked {
        Ok(Ok(())) => panic!("accepted:\n{text}"),
        Ok(Err(error)) | Err(error) => error.to_string(),
    }
}

/// One line of a volume, after its name and an origin that no test opens.
fn volume(line: &str) -> String {
    format!("[[volume]]\nname = \"a\"\norigin = \"/nowhere\"\n{line}\n")
}

#[test]
fn every_wrong_value_of_a_volume_is_answered_with_its_line_its_key_and_what_would_be_right() {
    let table = [
        (
            "polcy = \"x\"",
            "polcy: unknown key; did you mean \"policy\"?",
        ),
        (
            "write_cache = \"on\"",
            "write_cache: unknown key; did you mean \"write-cache\"?",
        ),
        (
            "policy = \"writeback\"",
            "policy: \"writeback\" is not one of its values; write \"uncached\", \
             \"write-through\", \"write-back\" or \"ephemeral\"",
        ),
        (
            "replicas = 8",
            "replicas: 8 is not a number from 0 to 7; write a whole number from 0 to 7",
        ),
        (
            "replicas = -1",
            "replicas: -1 is not a number from 0 to 7; write a whole number from 0 to 7",
        ),
        (
            "format = \"vmdk\"",
            "format: \"vmdk\" is not one of its values; write \"raw\", \"auto\" or \"qcow2\"",
        ),
        (
            "write-cache = true",
            "write-cache: true is not one of its values; write \"on\" or \"off\"",
        ),
        (
            "destage-after = 600",
            "destage-after: 600 is not a time; write ms, s, m, h or d, as in \"10m\"",
        ),
        (
            "destage-after = \"10mo\"",
            "destage-after: \"10mo\" is not a time; write ms, s, m, h or d, as in \"10m\"",
        ),
        (
            "destage-after = \"99999999999h\"",
            "destage-after: \"99999999999h\" is out of range; write at most \"1000000h\"",
        ),
        (
            "dirty-limit = \"4GB\"",
            "dirty-limit: \"4GB\" is not a size; write bytes or K, M, G, T or KiB, MiB, GiB, TiB, \
             as in \"4GiB\", since GB is 1000 MB for some and 1024 for others",
        ),
        (
            "dirty-limit = \"1KiB\"",
            "dirty-limit: \"1KiB\" is out of range; write at least \"1MiB\"",
        ),
        (
            "destage = \"lazy\"",
            "destage: \"lazy\" is not one of its values; write \"atomic\" or \"in-place\"",
        ),
        (
            "origin-queue-depth = 0",
            "origin-queue-depth: 0 is not a number from 1 to 1024; write a whole number from 1 \
             to 1024",
        ),
        (
            "reset-on = \"reboot\"",
            "reset-on: \"reboot\" is not one of its values; write \"command\", \"disconnect\" or \
             \"guest-reset\"",
        ),
        (
            "group = \"vm 1\"",
            "group: \"vm 1\" is not a name for a group; write 1 to 63 letters, digits, '-', '_' or \
             '.', a letter or digit first",
        ),
        (
            "image-guard = \"dirty\"",
            "image-guard: dirty is not in this version; write \"apply\"",
        ),
        (
            "bitmaps = \"invalidate\"",
            "bitmaps: invalidate is not in this version; write \"refuse\"",
        ),
        (
            "place = \"near\"",
            "place: \"near\" is no place of copies; write \"other-domain\", \"same-domain\", \
             \"any\", or a list of hosts, as in [\"host-b\", \"host-c\"]",
        ),
        (
            "place = [\"a/b\"]",
            "place: \"a/b\" is no host; write \"other-domain\", \"same-domain\", \"any\", or a \
             list of hosts, as in [\"host-b\", \"host-c\"]",
        ),
        (
            "place = []",
            "place: a list is no place of copies; write \"other-domain\", \"same-domain\", \
             \"any\", or a list of hosts, as in [\"host-b\", \"host-c\"]",
        ),
        (
            "on-degraded = \"stop\"",
            "on-degraded: \"stop\" is not one of its values; write \"continue\" or \
             \"write-through\"",
        ),
        (
            "admission = \"some\"",
            "admission: \"some\" is not one of its values; write \"reuse\" or \"all\"",
        ),
        (
            "origin-timeout = \"30\"",
            "origin-timeout: \"30\" is not a time; write \"hold\" or a time, as in \"30s\"",
        ),
        (
            "export = [\"iscsi\"]",
            "export: \"iscsi\" is no export; write [\"vhost-user\", \"nbd\"] or one of them",
        ),
        (
            "export = []",
            "export: a volume without export has no use; write [\"vhost-user\", \"nbd\"] or one of \
             them",
        ),
        (
            "flow = { dirty-bytes = \"0%\" }",
            "flow: dirty-bytes: \"0%\" is not a share from 1% to 100%; write a whole number and %, \
             as in \"75%\"",
        ),
        (
            "flow = { dirty-bytes = 50 }",
            "flow: dirty-bytes: 50 is not a share from 1% to 100%; write a whole number and %, as \
             in \"75%\"",
        ),
        (
            "flow = { dirty-writes = 0 }",
            "flow: dirty-writes: 0 is not a number from 1 to 4294967295; write a whole number \
             from 1 to 4294967295, or \"auto\"",
        ),
        (
            "flow = { destage-time = 5 }",
            "flow: destage-time: 5 is not a time; write ms, s, m, h or d, as in \"5m\"",
        ),
        (
            "flow = { destage-time = \"0s\" }",
            "flow: destage-time: no time is no limit; write at least \"1ms\"",
        ),
        (
            "flow = { dirty-time = \"5m\" }",
            "flow: dirty-time is no key of flow; write { dirty-writes = \"auto\", dirty-bytes = \
             \"75%\", destage-time = \"5m\" }",
        ),
        (
            "share = { weight = 20000 }",
            "share: weight: 20000 is not a number from 1 to 10000; write a whole number from 1 to \
             10000",
        ),
        (
            "block-size = 1024",
            "block-size: 1024 is not a block size of disks; write 512 or 4096",
        ),
        (
            "block-size = \"4k-native\"",
            "block-size: \"4k-native\" is not a block size of disks; write 512 or 4096",
        ),
        (
            "limit = { burst = \"2w\" }",
            "limit: burst: \"2w\" is not a time; write ms, s, m, h or d, as in \"1s\"",
        ),
        (
            "limit = { burst = \"2h\" }",
            "limit: burst: \"2h\" is out of range; write at most \"1h\"",
        ),
        (
            "limit = { bandwidth = \"1MB/s\" }",
            "limit: bandwidth: \"1MB\" is not a size; write bytes or K, M, G, T or KiB, MiB, GiB, \
             TiB, as in \"100MiB\", since GB is 1000 MB for some and 1024 for others",
        ),
        (
            "limit = { bps = 1 }",
            "limit: bps is no key of limit; write { iops = \"1000\", bandwidth = \"100MiB\", \
             burst = \"1s\" }; 0 limits nothing",
        ),
        (
            "read-only = \"yes\"",
            "read-only: \"yes\" is neither true nor false; write true or false",
        ),
    ];
    for (line, expected) in table {
        assert_eq!(
            error_of(&volume(line)),
            format!("t.toml:4: {expected}"),
            "{line}"
        );
    }
}

#[test]
fn wrong_origins_and_names_are_answered_at_their_own_lines() {
    let origin = |value: &str| error_of(&format!("[[volume]]\nname = \"a\"\norigin = {value}\n"));
    let right = "write the path of an image or block device, nbd://… or nbd+unix://…";
    let export = "write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=/PATH";
    assert_eq!(
        origin("\"nbd://host:port/a\""),
        format!("t.toml:3: origin: \"port\" is not a port; {export}")
    );
    assert_eq!(
        origin("\"nbds://host/a\""),
        format!("t.toml:3: origin: nbds origins are not in this version; {right}")
    );
    assert_eq!(
        origin("\"rbd:pool/image\""),
        format!("t.toml:3: origin: rbd origins are not in this version; {right}")
    );
    assert_eq!(
        origin("\"foo://x\""),
        format!("t.toml:3: origin: \"foo://x\" is not an origin; {right}")
    );
    assert_eq!(
        origin("\"/no/such/image\""),
        "t.toml:3: origin: /no/such/image: no such file or directory; name an image or block \
         device that exists and can be read"
    );
    assert_eq!(
        error_of("[[volume]]\nname = \"a/b\"\norigin = \"/x\"\n"),
        "t.toml:2: name: \"a/b\" is not a volume name; write 1 to 63 letters, digits, '-', '_' \
         or '.', a letter or digit first"
    );
    assert_eq!(
        error_of("\n[[volume]]\nname = \"a\"\n"),
        "t.toml:2: origin: is missing; write origin = \"…\" below"
    );
    assert_eq!(
        error_of(
            "[[volume]]\nname = \"a\"\norigin = \"/x\"\n[[volume]]\nname = \"a\"\norigin = \"/y\"\n"
        ),
        "t.toml:5: name: \"a\" is already the name of the volume of line 1; give each volume a \
         name of its own"
    );
}

#[test]
fn wrong_sections_are_answered_at_their_own_lines() {
    let table = [
        (
            "[hots]\n",
            "t.toml:1: hots: unknown section; did you mean \"host\"?",
        ),
        (
            "\n[cluster]\nname = \"c\"\n",
            "t.toml:2: listen: is missing; write it, or leave the section to `tenuto cluster init` \
             and `join`",
        ),
        (
            "[cache]\nsize = \"64GB\"\n",
            "t.toml:2: size: \"64GB\" is not a size; write bytes or K, M, G, T or KiB, MiB, GiB, \
             TiB, as in \"64GiB\", since GB is 1000 MB for some and 1024 for others",
        ),
        (
            "[cache]\nindex-ram = \"all\"\n",
            "t.toml:2: index-ram: \"all\" is not a size; write bytes or K, M, G, T or KiB, MiB, \
             GiB, TiB, as in \"256MiB\"",
        ),
        (
            "[listen]\ntls = {}\n",
            "t.toml:2: tls: names no directory; write a directory, as in \"/etc/tenuto/tls\", or \
             { dir = \"/etc/tenuto/tls\", verify-peer = true }",
        ),
        (
            "[listen]\nnbd = \"all\"\n",
            "t.toml:2: nbd: \"all\" is not an address; write an address and a port, as in \
             \"127.0.0.1:10809\"",
        ),
        (
            "[volume]\nname = \"a\"\n",
            "t.toml:1: volume: is not a list of volumes; write [[volume]], in two brackets",
        ),
        (
            "[defaults]\nname = \"a\"\n",
            "t.toml:2: name: cannot be a default; write it in each [[volume]]",
        ),
        (
            "[host]\nrun-dir = 5\n",
            "t.toml:2: run-dir: 5 is not a text; write a path, as in \"/srv/images/a.img\"",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(error_of(text), expected);
    }
}

#[test]
fn text_that_is_no_toml_is_answered_with_its_line() {
    for (text, start) in [
        ("[host]\nname = \"a\"\nname = \"b\"\n", "t.toml:3: name: "),
        ("[host\n", "t.toml:1: "),
        ("[cache]\nsize = 64GiB\n", "t.toml:2: size: "),
    ] {
        let error = error_of(text);
        assert!(error.starts_with(start), "{error}");
        assert!(!error.contains('\n') && error.contains("; "), "{error}");
    }
}

#[test]
fn of_several_errors_the_first_in_the_file_is_reported() {
    let text = "[[volume]]\nname = \"a\"\norigin = \"/x\"\nreplicas = 9\n[cache]\nsize = \"1\"\n";
    assert!(error_of(text).starts_with("t.toml:4: replicas: "));
}

fn image(directory: &Path, name: &str, bytes: &[u8]) -> String {
    let path = directory.join(name);
    let mut content = bytes.to_vec();
    content.resize(1 << 20, 0);
    std::fs::write(&path, content).expect("the image can be written");
    path.display().to_string()
}

fn two(first: &str, second: &str, keys: &str) -> String {
    format!(
        "[[volume]]\nname = \"a\"\norigin = \"{first}\"\n{keys}\n\
         [[volume]]\nname = \"b\"\norigin = \"{second}\"\n{keys}\n"
    )
}

fn check_text(text: &str, directory: &Path) -> std::result::Result<(), ConfigError> {
    let cache = directory.join("cache").display().to_string();
    let text = format!("{text}[cache]\npath = \"{cache}\"\n");
    parse::parse(Path::new("t.toml"), &text).and_then(|config| check::check(&config))
}

#[test]
fn a_second_writer_on_one_image_is_refused_under_whatever_name_it_comes() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = image(directory.path(), "one", b"");
    let link = directory.path().join("link").display().to_string();
    let hard = directory.path().join("hard").display().to_string();
    let dotted = format!("{}/./one", directory.path().display());
    std::os::unix::fs::symlink(&one, &link).expect("a symlink");
    std::fs::hard_link(&one, &hard).expect("a hard link");
    for other in [&one, &link, &hard, &dotted] {
        let error = check_text(&two(&one, other, ""), directory.path()).expect_err("two writers");
        assert_eq!(
            error.to_string(),
            "t.toml:7: origin: volumes b and a of line 1 have the same image and b writes it; \
             give each its own image, or make all of them ephemeral or read-only"
        );
    }
}

#[test]
fn overlays_of_a_pool_are_refused_in_a_cluster() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = image(directory.path(), "one", b"");
    let text = |kind: &str, cluster: &str| {
        format!(
            "{cluster}[[pool]]\nname = \"p\"\nimage = \"{one}\"\nclone = \"{kind}\"\n\
             members = [\"a\"]\n[[volume]]\nname = \"a\"\norigin = \"{one}\"\n"
        )
    };
    let check = |text: &str| check_text(text, directory.path());
    let cluster = "[cluster]\nname = \"c\"\nlisten = \"10.0.0.1\"\n";
    check(&text("ephemeral", cluster)).expect("each host has its own overlays");
    check(&text("qcow2", "")).expect("no other host writes it");
    let refused = check(&text("qcow2", cluster)).expect_err("two hosts");
    assert_eq!(
        refused.to_string(),
        "t.toml:10: name: pools of qcow2 files in a cluster, as p is one, are not in this \
         version; write clone = \"ephemeral\", or leave the pool out"
    );
}

#[test]
fn copies_are_refused_where_there_can_be_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = image(directory.path(), "one", b"");
    let cluster = "[cluster]\nname = \"c\"\nlisten = \"10.0.0.1\"\n";
    let volume = |origin: &str, keys: &str| {
        format!("[[volume]]\nname = \"a\"\norigin = \"{origin}\"\nreplicas = 1\n{keys}\n")
    };
    let check = |text: &str| check_text(text, directory.path());
    check(&(cluster.to_owned() + &volume(&one, ""))).expect("a raw file in a cluster");
    let alone = check(&volume(&one, ""))
        .expect_err("no cluster")
        .to_string();
    assert_eq!(
        alone,
        "t.toml:4: replicas: this host is in no cluster, so there is no other host to have a \
         copy; run `tenuto cluster init` or `tenuto cluster join` first, or write replicas = 0"
    );
    for (origin, keys, words) in [
        (
            &one[..],
            "policy = \"write-through\"",
            "this one is write-through",
        ),
        (&one[..], "policy = \"ephemeral\"", "this one is ephemeral"),
        (&one[..], "read-only = true", "leave read-only out"),
        (&one[..], "group = \"vm\"", "leave the group out"),
        (
            "nbd+unix:///x?socket=/y",
            "journal = \"/z\"",
            "an NBD export",
        ),
        ("/dev/nothing", "journal = \"/z\"", "a block device"),
    ] {
        let error = check(&(cluster.to_owned() + &volume(origin, keys))).expect_err(words);
        assert_eq!(error.key, "replicas", "{error}");
        let line = error.to_string();
        assert!(
            line.contains(words) && line.contains("write replicas = 0"),
            "{line}"
        );
    }
}

#[test]
fn the_number_of_copies_is_read_and_shown() {
    let text = "[defaults]\nreplicas = 1\n[[volume]]\nname = \"a\"\norigin = \"/x\"\n\
                [[volume]]\nname = \"b\"\norigin = \"/y\"\nreplicas = 0\n";
    let config = parse::parse(Path::new("t.toml"), text).expect("right");
    let replicas = config.volumes.iter().map(|it| it.settings().replicas);
    assert_eq!(replicas.collect::<Vec<u8>>(), [1, 0]);
    let rows = explain::explain(&config);
    let shown = rows.iter().filter(|row| row.key == "replicas");
    let shown: Vec<_> = shown.map(|row| (&row.value[..], &row.from[..])).collect();
    let wanted = [
        ("1", "[defaults] line 2"),
        ("1", "[defaults] line 2"),
        ("0", "line 9"),
    ];
    assert_eq!(shown, wanted);
}

#[test]
fn volumes_that_never_write_may_share_an_image() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = image(directory.path(), "one", b"");
    for keys in ["policy = \"ephemeral\"", "read-only = true"] {
        check_text(&two(&one, &one, keys), directory.path()).expect("readers only");
    }
}

#[test]
fn a_qcow2_image_of_any_length_is_for_readers() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("q");
    std::fs::write(&path, b"QFI\xfb and no whole sector").expect("written");
    for keys in ["policy = \"ephemeral\"", "read-only = true"] {
        for format in ["", "format = \"qcow2\"\n"] {
            let origin = path.display();
            let text = format!("[[volume]]\nname = \"a\"\norigin = \"{origin}\"\n{keys}\n{format}");
            check_text(&text, directory.path()).expect("for readers");
        }
    }
}

#[test]
fn an_image_that_looks_like_another_format_must_be_named_raw() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, magic, what) in [
        (
            "q",
            &b"QFI\xfb"[..],
            "looks like qcow2, and has clusters of 2^0 bytes",
        ),
        ("v", b"KDMV", "looks like vmdk"),
        ("x", b"vhdxfile", "looks like vhdx"),
        ("l", b"LUKS\xba\xbe", "looks like luks"),
    ] {
        let path = image(directory.path(), name, magic);
        let text = format!("[[volume]]\nname = \"a\"\norigin = \"{path}\"\n");
        let error = check_text(&text, directory.path())
            .expect_err(name)
            .to_string();
        assert!(
            error.starts_with(&format!("t.toml:3: origin: {path} {what}; ")),
            "{error}"
        );
        let raw = format!("{text}format = \"raw\"\n");
        check_text(&raw, directory.path()).expect("named raw");
        let auto = format!("{text}format = \"auto\"\n");
        let error = check_text(&auto, directory.path())
            .expect_err(name)
            .to_string();
        assert!(
            error.starts_with(&format!("t.toml:4: format: {path} {what}; ")),
            "{error}"
        );
    }
}

#[test]
fn images_of_odd_size_and_things_that_are_no_images_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("odd");
    std::fs::write(&path, [0; 1000]).expect("written");
    let text = |path: &Path| {
        format!(
            "[[volume]]\nname = \"a\"\norigin = \"{}\"\n",
            path.display()
        )
    };
    let error = |path: &Path| {
        check_text(&text(path), directory.path())
            .expect_err("refused")
            .to_string()
    };
    assert!(error(&path).contains("has 1000 bytes, which is no multiple of 512; extend it"));
    std::fs::write(&path, [0; 5120]).expect("written");
    let lines = |block: &str| format!("{}block-size = {block}\n", text(&path));
    check_text(&lines("512"), directory.path()).expect("whole sectors");
    let blocks = ["4096", "\"4KiB\"", "\"4K\""];
    for block in blocks {
        let wrong = check_text(&lines(block), directory.path()).expect_err("refused");
        let wrong = wrong.to_string();
        assert!(
            wrong.contains("has 5120 bytes, which is no multiple of 4096"),
            "{wrong}"
        );
    }
    std::fs::write(&path, [0; 8192]).expect("written");
    for block in blocks {
        check_text(&lines(block), directory.path()).expect("whole blocks");
    }
    std::fs::write(&path, []).expect("written");
    assert!(error(&path).contains("is empty; give it its size first"));
    assert!(error(directory.path()).contains("is neither a file nor a block device; "));
    assert!(error(Path::new("/dev/null")).contains("is neither a file nor a block device; "));
}

#[test]
fn defaults_count_for_every_volume_wherever_they_stand() {
    let text = "[[volume]]\nname = \"a\"\norigin = \"/x\"\n\
                [[volume]]\nname = \"b\"\norigin = \"/y\"\ndirty-limit = \"8MiB\"\n\
                [defaults]\ndirty-limit = \"2MiB\"\npolicy = \"uncached\"\n";
    let config = parse::parse(Path::new("t.toml"), text).expect("right");
    assert_eq!(config.volumes[0].dirty_limit_bytes, 2 << 20);
    assert_eq!(config.volumes[1].dirty_limit_bytes, 8 << 20);
    assert_eq!(config.volumes[1].policy, engine::types::Policy::Uncached);
    assert_eq!(
        config.volumes[0].sources["dirty-limit"],
        Source::Defaults(9)
    );
    assert_eq!(config.volumes[1].sources["dirty-limit"], Source::Line(7));
}

#[test]
fn the_defaults_shown_are_the_defaults_in_effect() {
    let volume = keys::default_volume();
    for key in keys::VOLUME {
        if key.default.is_empty() {
            continue;
        }
        let mut other = volume.clone();
        let value = toml::de::DeValue::parse(key.default)
            .map_or(Value::Text(key.default.into()), |value| {
                Value::from_toml(value.get_ref())
            });
        (key.set)(&mut other, &value).unwrap_or_else(|wrong| panic!("{}: {wrong:?}", key.name));
        assert_eq!(volume, other, "{}", key.name);
        let shown = (key.show)(&volume);
        assert!(
            shown == key.default || shown == format!("\"{}\"", key.default),
            "{}",
            key.name
        );
    }
    let cache = keys::default_cache();
    for key in keys::CACHE {
        let mut other = cache.clone();
        (key.set)(&mut other, &Value::Text(key.default.into())).expect(key.name);
        assert_eq!(cache, other, "{}", key.name);
    }
}

#[test]
fn what_explain_shows_can_be_written_into_a_file_and_means_the_same() {
    let text = "[[volume]]\nname = \"a\"\norigin = \"/x\"\npolicy = \"ephemeral\"\n\
                destage = \"in-place\"\nwrite-cache = \"off\"\noverlay-timeout = \"90s\"\n";
    let config = parse::parse(Path::new("t.toml"), text).expect("right");
    let rows = explain::explain(&config);
    let lines: String = rows
        .iter()
        .filter(|row| row.section == "[[volume]] a" && !row.value.is_empty())
        .map(|row| format!("{} = {}\n", row.key, row.value))
        .collect();
    let again = parse::parse(Path::new("t.toml"), &format!("[[volume]]\n{lines}")).expect("right");
    assert_eq!(config.volumes[0].settings(), again.volumes[0].settings());
    let policy = rows
        .iter()
        .find(|row| row.key == "policy" && row.section.contains(" a"));
    assert_eq!(policy.expect("listed").from, "line 4");
}

#[test]
fn every_key_of_the_public_interface_is_known() {
    // The example of the interface, with what this version has.
    let text = r#"
[host]
name = "host-a"
group = "kvm"
run-dir = "/run/tenuto"
stage-dir = "/dev/shm"
state-dir = "/var/lib/tenuto"
[cache]
path = "/var/lib/tenuto/cache"
size = "64GiB"
ram = "1GiB"
stage = "256MiB"
overlay-ram = "4GiB"
index-ram = "auto"
image-ram = "auto"
[defaults]
policy = "write-back"
[[volume]]
name = "desk-001"
origin = "/mnt/nfs/vms/desk-001.img"
format = "auto"
policy = "write-back"
write-cache = "on"
replicas = 0
on-degraded = "continue"
destage-after = "10m"
destage = "atomic"
journal = "/mnt/nfs/journals"
origin-queue-depth = 32
dirty-limit = "4GiB"
flow = { dirty-writes = "auto", dirty-bytes = "75%", destage-time = "5m" }
admission = "reuse"
overlay-ram = "256MiB"
overlay-timeout = "30s"
reset-on = "command"
group = ""
share = { min = "0", weight = 100 }
read-only = false
export = ["vhost-user", "nbd"]
origin-timeout = "hold"
origin-quiet = "30s"
[images]
allow = ["/mnt/nfs"]
[listen]
nbd = "127.0.0.1:10809"
metrics = "127.0.0.1:9469"
web = "127.0.0.1:9470"
web-token-file = "/etc/tenuto/web-token"
"#;
    let config = parse::parse(Path::new("t.toml"), text).expect("all keys are known");
    assert_eq!(config.host.name, "host-a");
    assert_eq!(config.volumes[0].journal, Some("/mnt/nfs/journals".into()));
    assert_eq!(
        config.listen.nbd,
        Some("127.0.0.1:10809".parse().expect("an address"))
    );
}

#[test]
fn volumes_kept_at_run_time_come_back_and_the_file_wins() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = |volumes: &str| {
        format!(
            "[host]\nstate-dir = \"{}\"\n{volumes}",
            directory.path().display()
        )
    };
    let config = parse::parse(Path::new("t.toml"), &text("")).expect("right");
    let values = [
        ("origin".to_string(), Value::Text("/x y\"z".into())),
        ("policy".to_string(), Value::Text("uncached".into())),
    ];
    let volume = parse::new_volume(&config.defaults, "a", &values).expect("right");
    state::save(&config, &volume).expect("kept");
    assert_eq!(
        state::load(&config).expect("loaded"),
        std::slice::from_ref(&volume)
    );
    // Defaults can change under a volume that did not ask for anything else.
    let changed = text("[defaults]\ndirty-limit = \"2MiB\"\n");
    let changed = parse::parse(Path::new("t.toml"), &changed).expect("right");
    assert_eq!(
        state::load(&changed).expect("loaded")[0].dirty_limit_bytes,
        2 << 20
    );
    let named = text("[[volume]]\nname = \"a\"\norigin = \"/w\"\n");
    let named = parse::parse(Path::new("t.toml"), &named).expect("right");
    assert_eq!(state::load(&named).expect("loaded"), []);
    state::remove(&config, "a").expect("removed");
    state::remove(&config, "a").expect("removing twice is removing once");
    assert_eq!(state::load(&config).expect("loaded"), []);
}

#[test]
fn arguments_and_file_agree() {
    let defaults = keys::default_volume();
    let error = |key: &str, value: &str| {
        let values = [
            ("origin".into(), Value::Text("/x".into())),
            (key.into(), Value::from_argument(value)),
        ];
        parse::new_volume(&defaults, "a", &values)
            .expect_err("wrong")
            .to_string()
    };
    assert_eq!(
        error("replicas", "9"),
        "replicas: \"9\" is not a number from 0 to 7; write a whole number from 0 to 7"
    );
    assert_eq!(
        error("polcy", "x"),
        "polcy: unknown key; did you mean \"policy\"?"
    );
    assert_eq!(
        error("origin", "/y"),
        "origin: is given twice; give it once"
    );
    assert_eq!(
        error("name", "b"),
        "name: a volume keeps its name; give the name before the keys"
    );
    let values = [
        ("origin".into(), Value::Text("/x".into())),
        ("export".into(), Value::from_argument("nbd")),
        ("read-only".into(), Value::from_argument("true")),
        ("origin-queue-depth".into(), Value::from_argument("8")),
        ("share".into(), Value::from_argument("{ weight = 100 }")),
    ];
    let volume = parse::new_volume(&defaults, "a", &values).expect("right");
    assert!(volume.read_only);
    assert_eq!(volume.origin_queue_depth, 8);
}

#[test]
fn a_table_of_flow_control_changes_what_it_names_and_is_shown_as_it_is_written() {
    let defaults = keys::default_volume();
    let values = |flow: &str| {
        let origin = ("origin".into(), Value::Text("/x".into()));
        [origin, ("flow".into(), Value::from_argument(flow))]
    };
    let shown = |volume: &Volume| {
        let key = keys::VOLUME.iter().find(|key| key.name == "flow");
        (key.expect("a key of volumes").show)(volume)
    };
    let volume = parse::new_volume(&defaults, "a", &values("{ dirty-writes = 500 }"));
    let volume = volume.expect("right");
    let text = "{ dirty-writes = 500, dirty-bytes = \"75%\", destage-time = \"5m\" }";
    assert_eq!(shown(&volume), text);
    let text = "{ dirty-writes = \"auto\", dirty-bytes = \"50%\", destage-time = \"90s\" }";
    let other = parse::new_volume(&volume, "b", &values(text)).expect("right");
    assert_eq!(shown(&other), text);
}

#[test]
fn a_share_changes_what_it_names_and_is_shown_as_it_is_written() {
    let defaults = keys::default_volume();
    let values = |share: &str| {
        let origin = ("origin".into(), Value::Text("/x".into()));
        [origin, ("share".into(), Value::from_argument(share))]
    };
    let key = keys::VOLUME.iter().find(|key| key.name == "share");
    let key = key.expect("a key of volumes");
    let volume = parse::new_volume(&defaults, "a", &values("{ weight = 300 }")).expect("right");
    assert_eq!((key.show)(&volume), "{ min = \"0\", weight = 300 }");
    let volume = parse::new_volume(&volume, "b", &values("{ min = \"2GiB\" }")).expect("right");
    assert_eq!((key.show)(&volume), "{ min = \"2GiB\", weight = 300 }");
    let auto = parse::new_volume(&volume, "c", &values("auto")).expect("right");
    assert_eq!((key.show)(&auto), "\"auto\"");
    assert_eq!(auto.share, Share::default());
    let fixed = parse::new_volume(&auto, "d", &values("{ weight = 7 }")).expect("right");
    assert_eq!((key.show)(&fixed), "{ min = \"0\", weight = 7 }");
}
