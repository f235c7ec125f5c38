//! Nothing names the place where it was written, nor where its crates came from.

use super::{files, judge, root};

/// Homes of users in disks of guests, which are split: rules have them, and their tests.
const OF_GUESTS: [&str; 9] = [
    "/home/*",
    "/home/u1*",
    "/home/a/",
    "/home/a b/",
    "/home/a\\\\040b/",
    "/home/anna b/",
    "/home/anna\\\\040b/",
    "/home/bob/",
    "/root/.cache",
];

fn without_guests(line: &str) -> String {
    let line = line.to_owned();
    OF_GUESTS.iter().fold(line, |line, it| line.replace(it, ""))
}

#[test]
fn nothing_names_the_place_where_it_was_written() {
    let workplace = root();
    let mut found = Vec::new();
    for source in files(&[".rs", ".toml", ".md", ".lock", "justfile", "test", "run"]) {
        for (at, line) in source.text.lines().enumerate() {
            let homes = ["/home/", "/root/", "/Users/"];
            let of_guests =
                source.path.starts_with("split/") || source.path == "docs/operations.md";
            let line = match of_guests {
                true => without_guests(line),
                false => line.to_owned(),
            };
            let inside = homes.iter().any(|home| line.contains(home));
            let checkout = line.contains(&*workplace.to_string_lossy());
            if (inside || checkout) && source.path != "tenuto/tests/tidy/workplace.rs" {
                found.push((
                    source.path.clone(),
                    format!("{}: a path of a workplace", at + 1),
                ));
            }
            let known = "registry+https://github.com/rust-lang/crates.io-index";
            let registry = ["registry+", "sparse+", "registry ="].iter();
            let names_one = registry.clone().any(|word| line.contains(word));
            let lock = source.path.ends_with(".lock");
            let config = source.path.contains(".cargo/");
            if (lock || config) && names_one && !line.contains(known) {
                found.push((source.path.clone(), format!("{}: a registry", at + 1)));
            }
        }
    }
    judge("workplace", found);
}
