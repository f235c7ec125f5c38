//! What is read of a pool, and what is said where it is wrong.

use super::patterns;
use crate::config::parse::{self, new_volume_among};
use crate::config::{Config, Value};
use crate::pool::members::{Pattern, matches};
use engine::types::Policy;
use std::path::Path;

fn read(text: &str) -> Result<Config, String> {
    let config = parse::parse(Path::new("t.toml"), text);
    config.map_err(|error| error.to_string())
}

fn wrong(text: &str) -> String {
    read(text).expect_err(text)
}

fn names(word: &str) -> Vec<String> {
    let all = patterns(word).expect("it is right").into_iter();
    let name = |it| match it {
        Pattern::Name(name) => name,
        Pattern::Glob(glob) => format!("~{glob}"),
    };
    all.map(name).collect()
}

#[test]
fn words_of_members_stand_for_names() {
    assert_eq!(names("desk"), ["desk"]);
    assert_eq!(names("desk-*"), ["~desk-*"]);
    assert_eq!(
        names("d-{08..11}-x"),
        ["d-08-x", "d-09-x", "d-10-x", "d-11-x"]
    );
    assert_eq!(names("d{9..10}"), ["d9", "d10"]);
    let bad = [
        "",
        "a b",
        "*/x",
        "d-{1..",
        "d-{..2}",
        "d-{2..1}",
        "d-{a..b}",
        "d-{1..99999}",
        "d-{+1..2}",
        "/{1..2}",
        "d-{000000000000000000000000000000000000000000000000000000000000001..2}",
    ];
    for word in bad {
        assert!(patterns(word).is_err(), "{word}");
    }
}

#[test]
fn a_glob_stands_for_what_a_shell_takes_it_for() {
    let cases = [
        ("desk-*", "desk-001", true),
        ("desk-*", "desk-", true),
        ("desk-*", "desk", false),
        ("*", "anything", true),
        ("*-a-*-b", "x-a-y-a-z-b", true),
        ("*-a-*-b", "x-a-b", false),
        ("d?sk", "desk", true),
        ("d?sk", "dsk", false),
        ("a*b", "acbc", false),
    ];
    for (glob, name, right) in cases {
        assert_eq!(
            matches(glob.as_bytes(), name.as_bytes()),
            right,
            "{glob} {name}"
        );
    }
}

const POOL: &str = "[[pool]]\nname = \"office\"\nimage = \"/gold/7\"\nmembers = ";

#[test]
fn a_member_has_from_its_pool_what_it_does_not_say_itself() {
    let text = format!(
        "{POOL}[\"desk-{{1..2}}\", \"lab-*\"]\n[[volume]]\nname = \"lab-1\"\n[[volume]]\n\
         name = \"desk-2\"\noverlay-ram = \"1MiB\"\n[defaults]\noverlay-ram = \"2MiB\"\n"
    );
    let config = read(&text).expect("it is right");
    let shown = config.volumes.iter().map(|volume| {
        assert_eq!(volume.policy, Policy::Ephemeral);
        assert_eq!(volume.origin, Path::new("/gold/7"));
        (volume.name.as_str(), volume.overlay_ram_bytes >> 20)
    });
    let shown: Vec<_> = shown.collect();
    assert_eq!(shown, [("lab-1", 2), ("desk-2", 1), ("desk-1", 2)]);
    // One that is added at run time as well.
    let pools = &config.pools;
    let added = new_volume_among(&config.defaults, "lab-9", &[], pools).expect("it is right");
    assert_eq!(added.origin, Path::new("/gold/7"));
    assert_eq!(added.policy, Policy::Ephemeral);
    let values = [("policy".to_owned(), Value::Text("write-back".into()))];
    let refused = new_volume_among(&config.defaults, "lab-9", &values, pools);
    let refused = refused.expect_err("no member is").to_string();
    assert_eq!(
        refused,
        "policy: a member of pool office is ephemeral; leave policy out"
    );
    assert!(new_volume_among(&config.defaults, "other", &[], pools).is_err());
}

#[test]
fn what_is_wrong_with_a_pool_is_told_with_its_line() {
    let volume = "[[volume]]\nname = \"a\"\n";
    let cases = [
        (
            format!("{POOL}[]\n"),
            "t.toml:4: members: there are no members; write a list, as in [\"desk-*\"] or \
             [\"desk-{001..100}\"]",
        ),
        (
            format!("{POOL}[\"desk-{{9..1}}\"]\n"),
            "t.toml:4: members: \"desk-{9..1}\" has no range of numbers; write a name, \
             \"desk-*\", or \"desk-{001..100}\"",
        ),
        (
            "[[pool]]\nname = \"office\"\nimage = \"/gold/7\"\n".into(),
            "t.toml:1: members: is missing; write members = … below",
        ),
        (
            "[[pool]]\nname = \"a\"\nimage = \"gold/7\"\nmembers = [\"b\"]\n".into(),
            "t.toml:3: image: \"gold/7\" is no full path; write the path of an image file or a \
             block device, from the root",
        ),
        (
            "[[pool]]\nname = \"a\"\nimage = \"nbd://h/x\"\nmembers = [\"b\"]\n".into(),
            "t.toml:3: image: pools on exports of a server are not in this version; write the \
             path of an image file or a block device, from the root",
        ),
        (
            format!("{POOL}[\"a\"]\n{volume}policy = \"write-back\"\n"),
            "t.toml:7: policy: a member of pool office is ephemeral; leave policy out",
        ),
        (
            format!("{POOL}[\"a\"]\n{volume}origin = \"/gold/8\"\n"),
            "t.toml:7: origin: a member of pool office has its image /gold/7; leave origin out",
        ),
        (
            format!("{POOL}[\"a\"]\n{}[\"a\"]\n", POOL.replace("office", "lab")),
            "t.toml:5: members: pool office has the volume a as well; let each volume be of one \
             pool",
        ),
        (
            format!("{POOL}[\"a\"]\n{POOL}[\"b\"]\n"),
            "t.toml:6: name: \"office\" is already the name of a pool; give each pool a name of \
             its own",
        ),
        (
            format!("{POOL}[\"a\"]\nclone = \"qcow2\"\n{volume}policy = \"ephemeral\"\n"),
            "t.toml:6: origin: a member of pool office writes a qcow2 image of its own; write its \
             origin, and leave policy, format and read-only out",
        ),
        (
            "[pool]\nname = \"a\"\n".into(),
            "t.toml:1: pool: is not a list of pools; write [[pool]], in two brackets",
        ),
        (
            format!("{POOL}[\"a\"]\nclone = \"raw\"\n"),
            "t.toml:5: clone: \"raw\" is not one of its values; write \"ephemeral\" or \"qcow2\"",
        ),
    ];
    for (text, words) in cases {
        assert_eq!(wrong(&text), words, "{text}");
    }
}
