//! What a table of rules says of a pool of clones.
//!
//! Owns the pool's name and its members, in the words of a `[[pool]]` of the configuration. Always
//! true: each member is the name of a volume, also with the name of a class behind it. Deliberately
//! absent: the paths that outlive a reset, which are rules like others, and what a pool does.

use serde::{Deserialize, Serialize};

/// A volume's name takes 63 bytes, and `-write-through` stands behind that of a member.
const NAME_BYTES_MAX: usize = 63 - "-write-through".len();
/// As many as a configuration takes.
const MEMBERS_MAX: u64 = 1024;

/// Clones of the system disk, each with a disk of its own for what outlives a reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// `None`: that of the image.
    pub name: Option<String>,
    /// Names, and ranges of them as they were written. None: one, by the name of the pool.
    pub members: Vec<String>,
}

/// The text of `[pool]`, as TOML has it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoolText {
    name: Option<String>,
    members: Option<toml::Value>,
    keep: Option<toml::Value>,
    pub size: Option<String>,
}

impl PoolText {
    /// The paths that outlive a reset, as they were written.
    pub fn keep(&self) -> Result<Vec<String>, String> {
        let right = "keep: is no list of paths; write it as [\"/etc/ssh\"], or leave [pool] out";
        let paths = self.keep.as_ref().and_then(words);
        paths.ok_or_else(|| right.to_owned())
    }

    pub fn pool(&self) -> Result<Pool, String> {
        let name = self.name.clone();
        if let Some(name) = name.as_deref().filter(|it| !is_name(it)) {
            return Err(format!("name: {name:?} is no name of a pool; {RIGHT_NAME}"));
        }
        let right = "members: are no list of names; write them as [\"desk-{001..100}\"]";
        let members = match &self.members {
            None => Vec::new(),
            Some(given) => words(given).ok_or(right)?,
        };
        let mut count = 0_u64;
        for word in &members {
            let (_, many) = names(word).map_err(|why| format!("members: {word:?} {why}"))?;
            count = count.saturating_add(many);
        }
        match count {
            0..=MEMBERS_MAX => Ok(Pool { name, members }),
            _ => Err(format!(
                "members: are {count}; write at most {MEMBERS_MAX}, and a pool for the others"
            )),
        }
    }
}

const RIGHT_NAME: &str = "write up to 49 letters, digits, '-', '_' or '.', a letter or digit first";

fn is_name(name: &str) -> bool {
    let fits = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
    name.starts_with(|it: char| it.is_ascii_alphanumeric())
        && name.len() <= NAME_BYTES_MAX
        && name.chars().all(fits)
}

/// One text, or a list of at least one.
fn words(value: &toml::Value) -> Option<Vec<String>> {
    let text = |it: &toml::Value| it.as_str().map(str::to_owned);
    match value {
        toml::Value::Array(list) if list.is_empty() => None,
        toml::Value::Array(list) => list.iter().map(text).collect(),
        one => Some(vec![text(one)?]),
    }
}

/// The first name that a word stands for, and how many these are.
pub fn names(word: &str) -> Result<(String, u64), String> {
    let right = "write a name, or a range as \"desk-{001..100}\"";
    let (first, last, count) = match word.split_once('{') {
        None => (word.to_owned(), word.to_owned(), 1),
        Some((before, rest)) => {
            let range = rest.split_once('}').and_then(|(range, after)| {
                let (from, to) = range.split_once("..")?;
                let (low, high) = (number(from)?, number(to)?);
                let width = from.len();
                let name = |it: u64| format!("{before}{it:0width$}{after}");
                let count = high.checked_sub(low)?.checked_add(1)?;
                Some((name(low), name(high), count))
            });
            range.ok_or_else(|| format!("has no range of numbers; {right}"))?
        }
    };
    match is_name(&first) && is_name(&last) {
        true => Ok((first, count)),
        false => Err(format!("is no name of a volume; {right}")),
    }
}

fn number(text: &str) -> Option<u64> {
    let is = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    text.parse().ok().filter(|_| is)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(lines: &str) -> Result<Pool, String> {
        let text: PoolText = toml::from_str(&format!("keep = [\"/a\"]\n{lines}")).unwrap();
        text.pool()
    }

    #[test]
    fn members_are_names_and_ranges_of_names() {
        let read = pool("name = \"office\"\nmembers = \"desk-{001..100}\"").unwrap();
        assert_eq!(read.name.as_deref(), Some("office"));
        assert_eq!(read.members, ["desk-{001..100}"]);
        assert_eq!(
            names("desk-{001..100}-x"),
            Ok(("desk-001-x".to_owned(), 100))
        );
        assert_eq!(names("lab"), Ok(("lab".to_owned(), 1)));
        assert_eq!(pool("").unwrap().members, [""; 0]);
        let two = pool("members = [\"desk-{1..9}\", \"lab\"]").unwrap();
        assert_eq!(two.members, ["desk-{1..9}", "lab"]);
    }

    /// Fails when: a name that no volume can have is taken, or its message does not say what is
    /// right.
    #[test]
    fn what_is_no_pool_is_refused_with_what_would_be_right() {
        let range = "; write a name, or a range as \"desk-{001..100}\"";
        for (lines, message) in [
            (
                "members = 7",
                "members: are no list of names; write them as [\"desk-{001..100}\"]".to_owned(),
            ),
            (
                "members = []",
                "members: are no list of names; write them as [\"desk-{001..100}\"]".to_owned(),
            ),
            (
                "members = \"desk-*\"",
                format!("members: \"desk-*\" is no name of a volume{range}"),
            ),
            (
                "members = \"desk-{9..1}\"",
                format!("members: \"desk-{{9..1}}\" has no range of numbers{range}"),
            ),
            (
                "members = \"desk-{1..18446744073709551615}\"",
                "members: are 18446744073709551615; write at most 1024, and a pool for the others"
                    .to_owned(),
            ),
            (
                "name = \"-\"",
                format!("name: \"-\" is no name of a pool; {RIGHT_NAME}"),
            ),
        ] {
            assert_eq!(pool(lines), Err(message), "{lines}");
        }
        for keep in ["", "keep = []", "keep = 7", "keep = [\"/a\", 7]"] {
            let text: PoolText = toml::from_str(keep).unwrap();
            let message = "keep: is no list of paths; write it as [\"/etc/ssh\"], or leave [pool] \
                           out";
            assert_eq!(text.keep(), Err(message.to_owned()), "{keep}");
        }
        let one: PoolText = toml::from_str("keep = \"/a\"").unwrap();
        assert_eq!(one.keep(), Ok(vec!["/a".to_owned()]));
    }
}
