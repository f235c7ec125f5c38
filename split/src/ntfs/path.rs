//! Paths as Windows writes them.
//!
//! Always true: a [`WindowsPath`] begins at the root of its volume, names no drive, is not the root
//! itself, and its names are those on the disk, in their case. A [`Pattern`] is matched without
//! regard to case, one component at a time; `*` stands for any characters within a component.
//!
//! Deliberately absent: NTFS's own table of upper case, which differs from Unicode's in characters
//! that no rule names.

use std::fmt;
use std::path::{Path, PathBuf};

/// What is no path of Windows, or no pattern of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule `{rule}`: {why}")]
pub struct WrongPath {
    pub rule: String,
    pub why: &'static str,
}

/// Windows has none in a name, and wimlib's list of paths could not say them.
const NOT_IN_NAMES: [char; 8] = ['/', ':', '"', '<', '>', '|', '?', '\0'];

#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct WindowsPath {
    components: Vec<String>,
}

impl WindowsPath {
    /// Of `\Users\x`.
    pub fn parse(text: &str) -> Result<WindowsPath, WrongPath> {
        let components = components(text)?;
        if components.iter().any(|it| it.contains('*')) {
            return Err(rule(text, "a path has no `*`"));
        }
        Ok(WindowsPath { components })
    }

    pub(super) fn new(components: Vec<String>) -> WindowsPath {
        WindowsPath { components }
    }

    pub fn components(&self) -> &[String] {
        &self.components
    }

    /// Where it is below the root of a mounted volume.
    pub(super) fn under(&self, root: &Path) -> PathBuf {
        let mut path = root.to_owned();
        path.extend(&self.components);
        path
    }

    /// Whether the other one lies below it.
    pub fn contains(&self, other: &WindowsPath) -> bool {
        other.components.len() > self.components.len()
            && other.components.starts_with(&self.components)
    }

    pub(super) fn child(&self, name: &str) -> WindowsPath {
        let mut components = self.components.clone();
        components.push(name.to_owned());
        WindowsPath { components }
    }
}

impl fmt::Display for WindowsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.components
            .iter()
            .try_for_each(|it| write!(f, "\\{it}"))
    }
}

impl TryFrom<String> for WindowsPath {
    type Error = WrongPath;

    fn try_from(text: String) -> Result<WindowsPath, WrongPath> {
        WindowsPath::parse(&text)
    }
}

impl From<WindowsPath> for String {
    fn from(path: WindowsPath) -> String {
        path.to_string()
    }
}

/// Which paths a rule is about.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    components: Vec<String>,
}

impl Pattern {
    /// Of `\Users\*\AppData\Local`.
    pub fn parse(text: &str) -> Result<Pattern, WrongPath> {
        let components = components(text)?;
        let components = components.iter().map(|it| folded(it)).collect();
        let text = text.to_owned();
        Ok(Pattern { text, components })
    }

    pub(super) fn depth(&self) -> usize {
        self.components.len()
    }

    /// Components with a `*`; of two patterns for one path, that with fewer is meant.
    pub(super) fn wildcards(&self) -> usize {
        let components = self.components.iter();
        components.filter(|it| it.contains('*')).count()
    }

    /// Whether a name may stand at that depth.
    pub(super) fn matches(&self, depth: usize, name: &str) -> bool {
        let pattern = self.components.get(depth);
        pattern.is_some_and(|it| is_match(it, &folded(name)))
    }

    pub(super) fn is_literal(&self, depth: usize) -> bool {
        let pattern = self.components.get(depth);
        pattern.is_some_and(|it| !it.contains('*'))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn components(text: &str) -> Result<Vec<String>, WrongPath> {
    let Some(inner) = text.strip_prefix('\\') else {
        return Err(rule(text, "a path begins with `\\` and names no drive"));
    };
    let inner = inner.strip_suffix('\\').unwrap_or(inner);
    let components: Vec<String> = inner.split('\\').map(str::to_owned).collect();
    if components.iter().any(|it| it.is_empty()) {
        return Err(rule(text, "a path names at least one directory, each once"));
    }
    if components.iter().any(|it| it == "." || it == "..") {
        return Err(rule(text, "a path has no `.` and no `..`"));
    }
    if !components.iter().all(|it| is_name(it)) {
        return Err(rule(text, "Windows allows no such character in a name"));
    }
    Ok(components)
}

/// Whether Windows may give it as a name, or it may be a pattern for such names.
pub(super) fn is_name(name: &str) -> bool {
    !name.contains(|it: char| it.is_control() || it == '\\' || NOT_IN_NAMES.contains(&it))
}

fn rule(text: &str, why: &'static str) -> WrongPath {
    WrongPath {
        rule: text.to_owned(),
        why,
    }
}

/// Upper case, except where that would be several characters.
pub(super) fn folded(name: &str) -> String {
    let upper = |it: char| {
        let mut upper = it.to_uppercase();
        match (upper.next(), upper.next()) {
            (Some(one), None) => one,
            _ => it,
        }
    };
    name.chars().map(upper).collect()
}

/// Greedy between the stars, which finds a match where there is one.
fn is_match(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match name.split_once(part) {
            Some((_, after)) => name = after,
            None => return false,
        }
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: a star crosses a component, or case or characters beyond ASCII matter.
    #[test]
    fn patterns_match_names_without_regard_to_case() {
        for (pattern, name, is) in [
            ("*", "bob", true),
            ("*", "", true),
            ("temp", "TEMP", true),
            ("temp", "temporary", false),
            ("temp*", "Temporary Files", true),
            ("*a*b*", "xxAyyBzz", true),
            ("*a*b", "b a", false),
            ("a*a", "a", false),
            ("jörg*", "JÖRG 😀", true),
            ("straße", "STRASSE", false),
        ] {
            let text = format!("\\{pattern}");
            let found = Pattern::parse(&text).expect("it is one").matches(0, name);
            assert_eq!(found, is, "{pattern} {name}");
        }
    }

    /// Fails when: a path that Windows does not have is taken, or a good one changes.
    #[test]
    fn paths_are_read_and_written() {
        for text in ["\\Users", "\\Users\\jörg müller 😀\\AppData"] {
            let path = WindowsPath::parse(text).expect("it is one");
            assert_eq!(path.to_string(), text);
        }
        for (text, says) in [
            ("Users", "begins with `\\`"),
            ("C:\\Users", "begins with `\\`"),
            ("\\", "at least one"),
            ("\\a\\\\b", "at least one"),
            ("\\a\\..\\b", "no `..`"),
            ("\\a:b", "no such character"),
            ("\\a\nb", "no such character"),
            ("\\a\\*", "has no `*`"),
        ] {
            let error = WindowsPath::parse(text).expect_err("it is none");
            assert!(error.to_string().contains(says), "{text:?}: {error}");
        }
    }
}
