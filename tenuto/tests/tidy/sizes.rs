//! How large the types of the product are: a part owns few fields and has few verbs.
//!
//! Always true: a type that is larger than [`FIELDS_MAX`] or [`METHODS_MAX`] stands in [`LARGE`]
//! with its figures, which may only shrink. Methods are those of all `impl` blocks without a trait,
//! in all files of the crate; a name that a crate has twice is counted in each file by itself.
//! Deliberately absent: plain data, which has fields and no method that changes it.

use super::{Source, code_of, module_of, rust};
use std::collections::BTreeMap;

const FIELDS_MAX: usize = 16;
const METHODS_MAX: usize = 60;

/// Types that are larger: crate, name, fields, methods.
const LARGE: &[(&str, &str, usize, usize)] = &[
    ("engine", "Core", 25, 504),
    ("engine", "Destage", 31, 12),
    ("engine", "Flow", 22, 27),
    ("engine", "Log", 29, 110),
    ("engine", "Replay", 26, 14),
    ("engine", "Volume", 45, 418),
    ("node", "Set", 22, 63),
    ("workload", "Desktop", 21, 7),
    ("sim", "Images", 18, 1),
    ("sim", "sim/src/guest.rs: Guest", 45, 35),
    ("sim", "sim/src/pair/mod.rs: Counters", 18, 1),
    ("sim", "sim/src/trace.rs: Counters", 66, 5),
    ("sim", "sim/src/world.rs: World", 33, 20),
    ("host", "Conn", 32, 10),
    ("host", "Guest", 24, 14),
    ("host", "Handler", 19, 54),
    ("host", "Manager", 18, 151),
    ("host", "Shard", 47, 213),
    ("host", "Target", 17, 31),
    ("host", "host/src/cli/top/keys.rs: Top", 17, 15),
];

#[derive(Default)]
struct Size {
    fields: usize,
    methods: usize,
    changes: bool,
}

/// The name that a line opens a block of with this word, if it is about no trait.
fn opened<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let line = line
        .trim_start_matches("pub(crate) ")
        .trim_start_matches("pub(super) ");
    let rest = line.trim_start_matches("pub ").strip_prefix(word)?;
    let rest = match rest.strip_prefix('<') {
        Some(rest) => rest.split_once("> ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    let end = rest.find(|it: char| !(it.is_alphanumeric() || it == '_'));
    let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
    (rest.ends_with('{') && !rest.contains(" for ")).then_some(name)
}

/// A line of a block that begins a method, or a field.
fn is_method(line: &str) -> bool {
    let inner = line
        .strip_prefix("    ")
        .filter(|it| !it.starts_with([' ', '/']));
    inner.is_some_and(|it| it.starts_with("fn ") || it.contains(" fn "))
}

fn is_field(line: &str) -> bool {
    let inner = line
        .strip_prefix("    ")
        .filter(|it| !it.starts_with([' ', '/', '#']));
    let name = inner.and_then(|it| it.split(": ").next().filter(|name| *name != it));
    name.and_then(|it| it.split(' ').next_back())
        .is_some_and(|it| it.chars().all(|it| it.is_alphanumeric() || it == '_'))
}

/// The types of a crate. One whose name stands in several files has its file before it.
fn sizes(name: &str, sources: &[Source]) -> BTreeMap<String, Size> {
    let of_crate = sources.iter().filter(|it| module_of(it, name).is_some());
    let files: Vec<(&str, String)> = of_crate.map(|it| (&*it.path, code_of(it))).collect();
    let mut defined: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, code) in &files {
        for of in code.lines().filter_map(|line| opened(line, "struct")) {
            *defined.entry(of).or_default() += 1;
        }
    }
    let mut sizes: BTreeMap<String, Size> = BTreeMap::new();
    for (path, code) in &files {
        let (mut at, mut fields) = (None, false);
        for line in code.lines() {
            let begins = [("struct", true), ("impl", false)];
            let found = begins
                .iter()
                .find_map(|(word, is)| Some((opened(line, word)?, *is)));
            if let Some((of, is_struct)) = found.filter(|(of, _)| defined.contains_key(of)) {
                let own = defined[of] == 1;
                at = Some(if own {
                    of.to_owned()
                } else {
                    format!("{path}: {of}")
                });
                fields = is_struct;
            } else if line.starts_with('}') {
                at = None;
            } else if let Some(of) = &at {
                let size = sizes.entry(of.clone()).or_default();
                size.fields += usize::from(fields && is_field(line));
                size.methods += usize::from(!fields && is_method(line));
                size.changes |= !fields && line.contains("&mut self");
            }
        }
    }
    sizes
}

#[test]
fn no_type_grows_beyond_what_one_reader_holds() {
    let sources = rust();
    let mut wrong = Vec::new();
    for (name, ..) in super::CRATES {
        let sizes = sizes(name, &sources);
        for (of, size) in sizes.iter().filter(|(_, it)| it.changes) {
            let known = LARGE.iter().find(|it| it.0 == *name && it.1 == of);
            let most = known.map_or((FIELDS_MAX, METHODS_MAX), |it| (it.2, it.3));
            let now = (size.fields, size.methods);
            let words = format!("{name}: {of} has {} fields and {} methods", now.0, now.1);
            if now.0 > most.0 || now.1 > most.1 {
                wrong.push(format!(
                    "{words}, at most {} and {}: give what is new to a part that owns its fields",
                    most.0, most.1
                ));
            } else if known.is_some() && now != most {
                wrong.push(format!("{words}: write these into LARGE"));
            }
        }
        for (_, of, fields, methods) in LARGE.iter().filter(|it| it.0 == *name) {
            let large = *fields > FIELDS_MAX || *methods > METHODS_MAX;
            if !large || !sizes.contains_key(*of) {
                wrong.push(format!(
                    "{name}: {of} is not large any more: take it out of LARGE"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn fields_and_methods_are_counted_over_files() {
    let file = |path: &str, text: &str| Source {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let sources = [
        file(
            "node/src/one.rs",
            "pub struct One<'a> {\n    /// Of it.\n    pub(super) at: u32,\n    b: &'a str,\n}\n\n\
             impl One<'_> {\n    pub fn new() {\n        let x: u32;\n    }\n}\n",
        ),
        file(
            "node/src/two.rs",
            "impl<'a> One<'a> {\n    fn change(\n        &mut self,\n    ) {\n    }\n}\n\n\
             impl Drop for One<'_> {\n    fn drop(&mut self) {}\n}\n",
        ),
    ];
    let sizes = sizes("node", &sources);
    let one = &sizes["One"];
    assert_eq!((one.fields, one.methods, one.changes), (2, 2, true));
}
