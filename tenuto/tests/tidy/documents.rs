//! What documents name: links, files, and how long those are that a person reads first.
//!
//! Always true: judged from the text alone. Deliberately absent: how links are read, which tests of
//! the package need as well.

use super::{files, quoted, root};

#[path = "links.rs"]
mod links;

#[test]
fn links_in_the_documents_lead_to_files_and_headings_that_exist() {
    let documents: Vec<String> = files(&[".md"]).into_iter().map(|it| it.path).collect();
    let (broken, count) = links::broken(&root(), &documents);
    assert!(
        broken.is_empty(),
        "links to nowhere:\n{}",
        broken.join("\n")
    );
    assert!(count >= 100, "only {count} links were found");
}

/// Documents that a person reads first, and how many lines they may have: two printed pages, and
/// what fits beside the pictures of a front page.
const SHORT_DOCUMENTS: &[(&str, usize)] = &[("docs/getting-started.md", 160), ("README.md", 190)];

#[test]
fn the_first_documents_are_short() {
    for (path, most) in SHORT_DOCUMENTS {
        let text = std::fs::read_to_string(root().join(path)).expect("read it");
        let lines = text.lines().count();
        assert!(lines <= *most, "{path} has {lines} lines, at most {most}");
    }
}

#[test]
fn files_named_in_the_documents_exist() {
    let mut missing = Vec::new();
    let kinds = [".rs", ".md", ".toml"];
    for source in files(&[".md"]) {
        for word in quoted(&source.text) {
            let path = word.trim_end_matches('/');
            let is_path = path.contains('/') && !path.starts_with(['/', '<', '$', '~']);
            let kind = kinds.iter().any(|kind| path.ends_with(kind));
            if is_path && kind && !path.contains(['*', '{', ' ']) && !root().join(path).exists() {
                missing.push(format!("{}: {path}", source.path));
            }
        }
    }
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
}
