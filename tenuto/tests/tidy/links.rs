//! Links of documents: which of them lead nowhere.
//!
//! Owns the reading of links and headings. Always true: a link is followed from the file that has
//! it; headings are named as the usual viewers of Markdown name them. Deliberately absent:
//! addresses with a scheme, which only a network could try.

use std::path::Path;

/// Text without what stands in fences and between backticks, where nothing is a link.
fn prose(text: &str) -> String {
    let mut is_fenced = false;
    let mut lines = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            lines += line;
        }
        lines.push('\n');
    }
    lines.split('`').step_by(2).collect()
}

/// The targets of all links and pictures.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of all headings.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut is_fenced = false;
    for line in text.lines() {
        is_fenced ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        let depth = line.len() - heading.len();
        if is_fenced || depth == 0 || !heading.starts_with(' ') {
            continue;
        }
        let kept = |it: &char| it.is_alphanumeric() || [' ', '-', '_'].contains(it);
        let anchor: String = heading.trim().to_lowercase().chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        let before = found.iter().filter(|it| **it == anchor).count();
        let again = format!("{anchor}-{before}");
        found.push(if before == 0 { anchor } else { again });
    }
    found
}

/// Why a link from a file leads nowhere.
fn fault(from: &Path, target: &str) -> Option<String> {
    let (name, anchor) = target.split_once('#').unwrap_or((target, ""));
    let directory = from.parent().expect("a file is in a directory");
    let path = if name.is_empty() {
        from.to_owned()
    } else {
        directory.join(name)
    };
    if !path.exists() {
        return Some("no such file".into());
    }
    if anchor.is_empty() {
        return None;
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let is_there = anchors(&text).iter().any(|it| it == anchor);
    (!is_there).then(|| "no such heading".into())
}

/// The links of these documents that lead nowhere, and how many links there are.
pub fn broken(root: &Path, documents: &[String]) -> (Vec<String>, usize) {
    let (mut found, mut count) = (Vec::new(), 0);
    for document in documents {
        let path = root.join(document);
        let text = std::fs::read_to_string(&path).expect("a document");
        for target in links(&text).iter().filter(|it| !it.contains(':')) {
            count += 1;
            let fault = fault(&path, target);
            found.extend(fault.map(|why| format!("{document}: {target}: {why}")));
        }
    }
    (found, count)
}
