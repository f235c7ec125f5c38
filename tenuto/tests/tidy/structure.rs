//! The structure of each crate: circles of files, asserts, and who calls the steps of the engine.
//!
//! Always true: a number that stands here may only get better. A file that names another one names
//! it by `use`, or by a path that begins with `crate`, `super` or `self`; a file and the folder
//! that it opens count as one with each of the files in it. Deliberately absent: calls of methods,
//! which need no path.

#[path = "sizes.rs"]
mod sizes;

use super::{Source, judge, rust};
use std::collections::{BTreeMap, BTreeSet};

/// Crates, how many of their files lie in circles, and asserts in 1,000 lines of the product.
const CRATES: &[(&str, usize, usize)] = &[
    ("engine", 0, 22),
    ("vring", 0, 10),
    ("node", 0, 9),
    ("workload", 0, 1),
    ("split", 0, 0),
    ("sim", 14, 0),
    ("host", 24, 1),
    ("lab", 16, 0),
    ("tenuto", 0, 0),
];

type Module = Vec<String>;

/// Where a file stands in its crate; `None` for what is no module of the product.
fn module_of(source: &Source, name: &str) -> Option<Module> {
    let path = source.path.strip_prefix(name)?.strip_prefix("/src/")?;
    let path = path.strip_suffix(".rs").filter(|_| !source.is_test())?;
    let mut parts: Module = path.split('/').map(str::to_owned).collect();
    let opens = parts
        .last()
        .is_some_and(|it| ["mod", "lib", "main"].contains(&it.as_str()));
    if opens {
        parts.pop();
    }
    Some(parts)
}

/// All paths that a text names, each cut at its `::`.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let begins = text[..at].chars().next_back();
        if begins.is_none_or(|it| it.is_whitespace())
            && let Some(end) = text[at..].find(';')
        {
            take_tree(&[], &text[at + 4..at + end], &mut found);
        }
    }
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(root) {
            let rest = &text[at..];
            let end = rest.find(|it: char| !(it.is_alphanumeric() || it == '_' || it == ':'));
            let path = rest[..end.unwrap_or(rest.len())].split("::");
            found.push(
                path.map(str::to_owned)
                    .filter(|it| !it.is_empty())
                    .collect(),
            );
        }
    }
    found
}

/// What one `use` names behind a prefix.
fn take_tree(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let (mut depth, mut from) = (0, 0);
    let mut parts = Vec::new();
    for (at, letter) in tree.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tree[from..]);
    for part in parts.into_iter().map(str::trim).filter(|it| !it.is_empty()) {
        let (head, inner) = match part.split_once('{') {
            Some((head, inner)) => (head, inner.rsplit_once('}').map(|it| it.0)),
            None => (part, None),
        };
        let head = head.split(" as ").next().unwrap_or(head);
        let names = head.split("::").map(str::trim).filter(|it| !it.is_empty());
        let mut path = prefix.to_vec();
        path.extend(names.map(str::to_owned));
        match inner {
            Some(inner) => take_tree(&path, inner, found),
            None => found.push(path),
        }
    }
}

/// The file that a path leads to from a module; the longest beginning of it that is one.
fn target(path: &[String], from: &Module, modules: &BTreeSet<Module>) -> Option<Module> {
    let (mut base, mut rest) = match path.first().map(String::as_str) {
        Some("crate") => (Vec::new(), &path[1..]),
        Some("self") => (from.clone(), &path[1..]),
        Some("super") => (from.clone(), path),
        _ => return None,
    };
    while rest.first().is_some_and(|it| it == "super") {
        base.pop();
        rest = &rest[1..];
    }
    for name in rest {
        base.push(name.clone());
        if !modules.contains(&base) {
            base.pop();
            break;
        }
    }
    // A folder and its own files are one.
    let own = base.starts_with(from) || from.starts_with(&base);
    (modules.contains(&base) && !own).then_some(base)
}

/// Modules from which a way leads back to themselves.
fn in_circles(names: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<&Module> {
    let returns = |start: &&Module| {
        let mut seen: BTreeSet<&Module> = BTreeSet::new();
        let mut left: Vec<&Module> = names[*start].iter().collect();
        while let Some(at) = left.pop() {
            if at == *start {
                return true;
            }
            if seen.insert(at) {
                left.extend(&names[at]);
            }
        }
        false
    };
    names.keys().filter(returns).collect()
}

fn code_of(source: &Source) -> String {
    let lines = source.code().map(|(_, line)| line);
    lines.fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn files_name_each_other_in_one_direction() {
    for &(name, known, _) in CRATES {
        let sources = rust();
        let of_crate = sources
            .iter()
            .filter_map(|it| Some((module_of(it, name)?, it)));
        let of_crate: BTreeMap<Module, &Source> = of_crate.collect();
        let modules: BTreeSet<Module> = of_crate.keys().cloned().collect();
        let names = of_crate.iter().map(|(module, source)| {
            let paths = paths(&code_of(source));
            let named = paths
                .iter()
                .filter_map(|path| target(path, module, &modules));
            (module.clone(), named.collect())
        });
        let names = names.collect();
        let circles = in_circles(&names);
        let listed: Vec<String> = circles.iter().map(|it| it.join("/")).collect();
        let words = format!("{name}: {} files in circles, {known} known", circles.len());
        assert!(circles.len() <= known, "{words}: {listed:?}");
        assert!(circles.len() == known, "{words}: lower the number");
    }
}

#[test]
fn the_product_asserts_no_less_than_before() {
    for &(name, _, known) in CRATES {
        let sources = rust();
        let of_crate = sources.iter().filter(|it| module_of(it, name).is_some());
        let texts: Vec<String> = of_crate.map(code_of).collect();
        let count = |word| {
            texts
                .iter()
                .map(|it| it.matches(word).count())
                .sum::<usize>()
        };
        let asserts: usize = ["assert!(", "assert_eq!(", "assert_ne!("]
            .map(count)
            .iter()
            .sum();
        let lines = count("\n");
        let now = asserts * 1000 / lines.max(1);
        let words = format!("{name}: {asserts} asserts in {lines} lines, {known} in 1,000 known");
        assert!(now >= known, "{words}");
        assert!(now < known + 2, "{words}: raise the number");
    }
}

/// The file of the engine's lists of steps, and the folder in which nothing else calls a step.
const LISTS: &str = "engine/src/core/maintain.rs";
const STEPS_IN: &str = "engine/src/core/";

/// Names that a step has, so that one which is in no list yet is known as well.
fn is_named_as_step(name: &str) -> bool {
    let begins = ["pump_", "continue_"].iter().any(|it| name.starts_with(it));
    let ends = ["_progress", "_if_due", "_if_clean"];
    begins || ends.iter().any(|it| name.ends_with(it))
}

/// The names of methods that a line calls with arguments that begin like this.
fn calls<'a>(line: &'a str, arguments: &'a str) -> impl Iterator<Item = &'a str> {
    line.match_indices(arguments).filter_map(|(end, _)| {
        let before = &line[..end];
        let at = before.rfind(|it: char| !(it.is_alphanumeric() || it == '_'))?;
        before[..=at].ends_with('.').then_some(&before[at + 1..])
    })
}

/// No step is called by hand: what changes something touches its volume, and the two lists of
/// `core::maintain` call each step. A step is what they give the context of an event to.
#[test]
fn steps_of_the_engine_are_called_by_its_lists_alone() {
    let sources = rust();
    let lists = sources.iter().find(|it| it.path == LISTS);
    let lists = lists.expect("the engine has its lists");
    let mut steps = BTreeSet::new();
    let listed = lists.code().map(|(_, line)| line);
    for line in listed.take_while(|line| !line.contains("fn give_turn_back")) {
        steps.extend(calls(line, "(cx,").chain(calls(line, "(cx)")));
    }
    assert!(steps.len() > 25, "the lists have changed: {steps:?}");
    let others = sources
        .iter()
        .filter(|it| it.path.starts_with(STEPS_IN) && it.path != LISTS);
    let found = others.flat_map(|source| {
        let code = source.code().collect::<Vec<_>>().into_iter();
        let names = code.flat_map(|(at, line)| calls(line, "(").map(move |name| (at, name)));
        let steps = &steps;
        let woken = names.filter(move |(_, name)| steps.contains(name) || is_named_as_step(name));
        woken.map(|(at, name)| (source.path.clone(), format!("line {at} calls {name}")))
    });
    judge("wake-ups", found.collect());
}
