//! Rules: which paths get which class, and what the disks of the classes are like.
//!
//! Owns the form of a rules file and the tables that are shipped. Always true: rules that were read
//! are right in themselves, name paths of one family of systems, and say all that a base said and
//! the file did not change. Deliberately absent: which files match, which a file system knows.

use crate::class::Class;
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolText};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The tables that are shipped.
const SHIPPED: [(&str, &str); 3] = [
    ("linux", include_str!("../rules/linux.toml")),
    ("windows-safe", include_str!("../rules/windows-safe.toml")),
    ("windows-capo", include_str!("../rules/windows-capo.toml")),
];

/// More lines than a table that a person reads, and few enough for each file to be compared.
const LINES_MAX: usize = 1000;
const FILE_BYTES_MAX: u64 = 1 << 20;
/// So that arithmetic with it cannot overflow: larger than any disk.
const SIZE_MAX: u64 = 1 << 50;
const DESTAGE_AFTER: &str = "1h";

/// Whose paths a table names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    Linux,
    Windows,
}

/// Names from the root; `*` stands for any letters within one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// As it was written.
    pub text: String,
    pub names: Vec<String>,
}

/// A path that moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    pub path: Pattern,
    pub class: Class,
}

/// What the disk of a class is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// `None`: by what moves there.
    pub size_bytes: Option<u64>,
    /// As in a configuration; "never" where the class says so.
    pub destage_after: String,
    /// Thrown away at each reset of the guest.
    pub ephemeral: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageFile {
    pub class: Class,
    /// `None`: as large as the guest has now.
    pub size_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    pub family: Family,
    pub moves: Vec<Move>,
    pub keeps: Vec<Pattern>,
    pub disks: BTreeMap<Class, Disk>,
    /// Write-through or write-back.
    pub system: Class,
    pub system_destage_after: String,
    pub letter: Option<char>,
    pub page_file: Option<PageFile>,
    /// The system disk is for clones; what outlives their resets moves to class keep.
    #[serde(default)]
    pub pool: Option<Pool>,
}

/// The text of a file, as TOML has it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Text {
    base: Option<String>,
    system: Option<SystemText>,
    #[serde(default)]
    class: BTreeMap<Class, DiskText>,
    #[serde(default, rename = "move")]
    moves: Vec<MoveText>,
    #[serde(default)]
    keep: Vec<KeepText>,
    page_file: Option<PageFileText>,
    pool: Option<PoolText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SystemText {
    policy: Class,
    destage_after: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DiskText {
    size: Option<String>,
    destage_after: Option<String>,
    letter: Option<char>,
    policy: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveText {
    path: String,
    class: Class,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeepText {
    path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageFileText {
    class: Class,
    size: Option<String>,
}

impl Pattern {
    fn parse(text: &str) -> std::result::Result<(Family, Pattern), String> {
        let family = match text.chars().next() {
            Some('/') => Family::Linux,
            Some('\\') => Family::Windows,
            _ => {
                return Err(format!(
                    "{text:?} is no path; write it from the root, as \"/tmp\""
                ));
            }
        };
        let separator = if family == Family::Linux { '/' } else { '\\' };
        let names: Vec<String> = text[1..].split(separator).map(str::to_owned).collect();
        let bad =
            |it: &String| it.is_empty() || it == "." || it == ".." || it.contains(['\0', '\n']);
        if names.iter().any(bad) {
            let right = "write names between single separators, without . and ..";
            return Err(format!("{text:?} is no path of names; {right}"));
        }
        if family == Family::Windows && names.iter().any(|it| it.contains(['/', ':', '"'])) {
            return Err(format!(
                "{text:?} is no path of Windows; write it as '\\Temp'"
            ));
        }
        let text = text.to_owned();
        Ok((family, Pattern { text, names }))
    }

    /// Whether one of its names stands for several.
    pub fn has_wildcard(&self) -> bool {
        self.names.iter().any(|it| it.contains('*'))
    }

    /// Whether a path of names is the one that is meant; letters of both cases may be the same.
    pub fn matches(&self, path: &[&[u8]], ignore_case: bool) -> bool {
        self.names.len() == path.len()
            && self
                .names
                .iter()
                .zip(path)
                .all(|(pattern, name)| matches_name(pattern, name, ignore_case))
    }
}

/// Whether one name is meant by a pattern with any number of `*`.
pub fn matches_name(pattern: &str, name: &[u8], ignore_case: bool) -> bool {
    if ignore_case {
        let name = String::from_utf8_lossy(name).to_lowercase();
        return matches_bytes(pattern.to_lowercase().as_bytes(), name.as_bytes());
    }
    matches_bytes(pattern.as_bytes(), name)
}

fn matches_bytes(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Where the last star stands, and the first byte that it does not stand for.
    let mut star = None;
    while from < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == name[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((place, taken)) = star else {
                    return false;
                };
                star = Some((place, taken + 1));
                at = place + 1;
                from = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|it| *it == b'*')
}

impl Rules {
    /// The rules of a file, or of a shipped table of that name.
    pub fn load(name: &str) -> Result<Rules> {
        if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return Rules::parse(text, name);
        }
        let path = Path::new(name);
        let about = std::fs::metadata(path).map_err(|error| unreadable(name, &error))?;
        if about.len() > FILE_BYTES_MAX {
            return Err(Error::usage(format!(
                "{name}: is larger than a table of rules; give a file below 1 MiB"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(name, &error))?;
        Rules::parse(&text, name)
    }

    /// The rules of a text. `name` stands before what is wrong with it.
    pub fn parse(text: &str, name: &str) -> Result<Rules> {
        let own = read(text, name)?;
        let base = match &own.base {
            None => Text::default(),
            Some(base) => {
                let shipped = SHIPPED.iter().find(|(shipped, _)| shipped == base);
                let (_, text) = shipped.ok_or_else(|| {
                    wrong(name, &format!("base: {base:?} is no table; {}", names()))
                })?;
                read(text, base)?
            }
        };
        join(base, own).map_err(|why| wrong(name, &why))
    }

    pub fn disk(&self, class: Class) -> Disk {
        self.disks.get(&class).cloned().unwrap_or_else(|| Disk {
            size_bytes: None,
            destage_after: default_age(class).to_owned(),
            ephemeral: false,
        })
    }
}

fn names() -> String {
    "give linux, windows-safe or windows-capo".to_owned()
}

fn wrong(name: &str, why: &str) -> Error {
    Error::usage(format!("{name}: {why}"))
}

fn unreadable(name: &str, error: &std::io::Error) -> Error {
    let cause = crate::error::cause(error);
    Error::usage(format!(
        "rules {name}: cannot be read: {cause}; {}, or a file",
        names()
    ))
}

fn read(text: &str, name: &str) -> Result<Text> {
    let read: Text = toml::from_str(text).map_err(|error| {
        let line = error
            .span()
            .map(|span| text[..span.start].matches('\n').count() + 1);
        let place = line.map_or_else(|| name.to_owned(), |line| format!("{name}:{line}"));
        let said = error.message().split('\n').collect::<Vec<_>>().join(" ");
        wrong(&place, &said)
    })?;
    let kept = read.pool.as_ref().map(PoolText::keep).transpose();
    let kept = kept
        .map_err(|why| wrong(name, &why))?
        .map_or(0, |it| it.len());
    let lines = read.moves.len() + read.keep.len() + kept;
    if lines > LINES_MAX {
        let why = format!("has {lines} paths; give at most {LINES_MAX}, with * for many");
        return Err(wrong(name, &why));
    }
    Ok(read)
}

const fn default_age(class: Class) -> &'static str {
    match class {
        Class::Never => "never",
        Class::WriteBack | Class::WriteThrough | Class::Keep => DESTAGE_AFTER,
    }
}

/// The paths of both texts: whose they are, which move, and which stay.
type Paths = (Family, Vec<Move>, Vec<Pattern>);

fn paths(base: &Text, own: &Text) -> std::result::Result<Paths, String> {
    let mut families = Vec::new();
    let (mut moves, mut keeps): (Vec<Move>, Vec<Pattern>) = (Vec::new(), Vec::new());
    for it in base.moves.iter().chain(&own.moves) {
        let (family, path) = Pattern::parse(&it.path).map_err(|why| format!("path: {why}"))?;
        families.push(family);
        not_keep("class", it.class)?;
        // The later line about a path is the one that counts.
        moves.retain(|known| known.path.names != path.names);
        let class = it.class;
        moves.push(Move { path, class });
    }
    for it in base.keep.iter().chain(&own.keep) {
        let (family, path) = Pattern::parse(&it.path).map_err(|why| format!("path: {why}"))?;
        families.push(family);
        keeps.push(path);
    }
    // A path that the file moves is not kept by its base.
    let own_moves: Vec<&str> = own.moves.iter().map(|it| &*it.path).collect();
    let own_keeps: Vec<&str> = own.keep.iter().map(|it| &*it.path).collect();
    keeps.retain(|it| !own_moves.contains(&&*it.text) || own_keeps.contains(&&*it.text));
    // What outlives a reset counts before both.
    let class = Class::Keep;
    let kept = own.pool.as_ref().map(PoolText::keep).transpose()?;
    for it in kept.unwrap_or_default() {
        let (family, path) = Pattern::parse(&it).map_err(|why| format!("keep: {why}"))?;
        families.push(family);
        moves.retain(|known| known.path.names != path.names);
        keeps.retain(|known| known.names != path.names);
        moves.push(Move { path, class });
    }
    let Some(&family) = families.first() else {
        return Err(format!(
            "moves nothing; give a [[move]], a [pool], or a base: {}",
            names()
        ));
    };
    if families.iter().any(|it| *it != family) {
        let right = "write all with / for Linux, or all with \\ for Windows";
        return Err(format!("path: has paths of two families; {right}"));
    }
    Ok((family, moves, keeps))
}

/// Refuses the class that only `[pool]` gives.
fn not_keep(key: &str, class: Class) -> std::result::Result<(), String> {
    match class {
        Class::Keep => Err(format!(
            "{key}: keep is the class of the paths in `keep` of [pool]; write them there"
        )),
        _ => Ok(()),
    }
}

/// What the file says goes before what its base says.
fn join(base: Text, own: Text) -> std::result::Result<Rules, String> {
    let (family, moves, keeps) = paths(&base, &own)?;
    let pool = own.pool.as_ref().map(|it| it.pool()).transpose()?;
    let given = own.class.keys().chain(base.class.keys());
    given.copied().try_for_each(|it| not_keep("class", it))?;
    let mut disks = BTreeMap::new();
    let mut letter = None;
    // A state that was written before there were pools has no disk of that class.
    let classes = Class::ALL.into_iter();
    for class in classes.filter(|it| *it != Class::Keep || own.pool.is_some()) {
        let [base, own] = [&base, &own].map(|it| it.class.get(&class));
        disks.insert(class, disk(class, base, own)?);
        let given = [own, base].into_iter().flatten().find_map(|it| it.letter);
        letter = letter.or(given);
    }
    if let Some(bad) = letter.filter(|it| !('D'..='Z').contains(it)) {
        return Err(format!(
            "letter: {bad:?} is no letter of a drive; write D to Z"
        ));
    }
    if let Some(disk) = disks.get_mut(&Class::Keep) {
        let size = own.pool.as_ref().and_then(|it| it.size.as_deref());
        disk.size_bytes = size.map(size_or_auto).transpose()?.flatten();
    }
    let system = own.system.or(base.system);
    let (policy, age) = system.map_or((Class::WriteThrough, None), |it| {
        (it.policy, it.destage_after)
    });
    if ![Class::WriteThrough, Class::WriteBack].contains(&policy) {
        let name = policy.name();
        return Err(format!(
            "system: a system disk cannot be of class {name}; write \"write-through\" or \
             \"write-back\""
        ));
    }
    let page_file = own.page_file.or(base.page_file).map(page_file);
    Ok(Rules {
        family,
        moves,
        keeps,
        disks,
        system: policy,
        system_destage_after: age.map_or_else(|| Ok(DESTAGE_AFTER.to_owned()), time)?,
        letter,
        page_file: page_file.transpose()?,
        pool,
    })
}

fn disk(
    class: Class,
    base: Option<&DiskText>,
    own: Option<&DiskText>,
) -> std::result::Result<Disk, String> {
    let both = || [own, base].into_iter().flatten();
    let size = both().find_map(|it| it.size.as_deref());
    let age = both().find_map(|it| it.destage_after.clone());
    let policy = both().find_map(|it| it.policy.as_deref());
    let ephemeral = match policy {
        None => false,
        Some("write-back") => false,
        Some("ephemeral") if class == Class::Never => true,
        Some(other) => {
            let name = class.name();
            return Err(format!(
                "policy: {other:?} is none of class {name}; only never may be \"ephemeral\""
            ));
        }
    };
    if class == Class::Never && age.as_deref().is_some_and(|it| it != "never") {
        return Err("destage-after: class never is not destaged; take it out".to_owned());
    }
    Ok(Disk {
        size_bytes: size.map(size_or_auto).transpose()?.flatten(),
        destage_after: age.map_or_else(|| Ok(default_age(class).to_owned()), time)?,
        ephemeral,
    })
}

fn page_file(text: PageFileText) -> std::result::Result<PageFile, String> {
    not_keep("page-file: class", text.class)?;
    let size = text.size.as_deref().map(size_or_auto).transpose()?;
    Ok(PageFile {
        class: text.class,
        size_bytes: size.flatten(),
    })
}

fn size_or_auto(text: &str) -> std::result::Result<Option<u64>, String> {
    match text {
        "auto" => Ok(None),
        _ => size(text).map(Some),
    }
}

/// Bytes of a size with its unit.
fn size(text: &str) -> std::result::Result<u64, String> {
    const UNITS: [(&str, u64); 4] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
    ];
    let bytes = UNITS.iter().find_map(|(unit, bytes)| {
        let number = text.strip_suffix(unit)?.parse::<u64>().ok()?;
        number.checked_mul(*bytes)
    });
    bytes
        .filter(|it| (1..=SIZE_MAX).contains(it))
        .ok_or_else(|| {
            format!("size: {text:?} is not a size; write KiB, MiB, GiB or TiB, as in \"8GiB\"")
        })
}

/// A time as a configuration takes it.
fn time(text: String) -> std::result::Result<String, String> {
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let is_number = digits.parse::<u32>().is_ok_and(|it| it <= 1_000_000);
    let is_right = text == "never" || is_number && ["ms", "s", "m", "h", "d"].contains(&unit);
    match is_right {
        true => Ok(text),
        false => Err(format!(
            "destage-after: {text:?} is not a time; write ms, s, m, h or d, as in \"1h\""
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let error = Rules::parse(text, "r.toml").expect_err("must be refused");
        assert_eq!(error.kind, crate::error::Kind::Usage, "{error}");
        assert!(!error.message.contains('\n'), "{error}");
        error.message
    }

    #[test]
    fn shipped_tables_are_right() {
        for (name, text) in SHIPPED {
            let rules = Rules::parse(text, name).expect(name);
            assert!(rules.moves.len() > 5, "{name}");
            assert_eq!(rules.family == Family::Linux, name == "linux");
            assert_eq!(rules.disk(Class::Never).destage_after, "never");
            // A split that was begun before there were pools goes on.
            assert!(!rules.disks.contains_key(&Class::Keep), "{name}");
        }
    }

    #[test]
    fn stars_stand_for_any_letters_within_a_name() {
        for (pattern, name, is) in [
            ("*", "anna", true),
            ("a*a", "anna", true),
            ("a*n", "anna", false),
            ("*nn*", "anna", true),
            ("**", "", true),
            ("anna", "Anna", false),
        ] {
            assert_eq!(
                matches_name(pattern, name.as_bytes(), false),
                is,
                "{pattern}"
            );
        }
        assert!(matches_name("A*\u{c4}", "a1\u{e4}".as_bytes(), true));
        let (_, path) = Pattern::parse("/home/*/.cache").unwrap();
        assert!(path.has_wildcard());
        assert!(path.matches(&[b"home", b"\xff", b".cache"], false));
        assert!(!path.matches(&[b"home", b"a", b"b", b".cache"], false));
    }

    /// Fails when: a line of the file does not take the place of the base's line.
    #[test]
    fn a_file_changes_what_its_base_says() {
        let text = "base = \"linux\"\n\
                    [class.never]\nsize = \"8GiB\"\n[class.write-back]\ndestage-after = \"10m\"\n\
                    [[move]]\npath = \"/var/log\"\nclass = \"write-through\"\n\
                    [[move]]\npath = \"/var/cache/debconf\"\nclass = \"never\"\n\
                    [[keep]]\npath = \"/var/tmp\"\n\
                    [page-file]\nclass = \"never\"\nsize = \"4GiB\"\n";
        let rules = Rules::parse(text, "r.toml").unwrap();
        let of = |path: &str| {
            let found: Vec<Class> = rules
                .moves
                .iter()
                .filter(|it| it.path.text == path)
                .map(|it| it.class)
                .collect();
            found
        };
        assert_eq!(of("/var/log"), [Class::WriteThrough]);
        assert_eq!(of("/opt"), [Class::WriteBack]);
        let keeps: Vec<&str> = rules.keeps.iter().map(|it| &*it.text).collect();
        assert_eq!(keeps, ["/var/tmp"]);
        assert_eq!(rules.disk(Class::Never).size_bytes, Some(8 << 30));
        assert_eq!(rules.disk(Class::WriteBack).destage_after, "10m");
        assert_eq!(rules.page_file.unwrap().size_bytes, Some(4 << 30));
    }

    /// Fails when: a path of a pool stays what another line says of it, or its size is not read.
    #[test]
    fn what_a_pool_keeps_goes_before_other_lines_about_the_same_path() {
        let text = "base = \"linux\"\n\
                    [[move]]\npath = \"/srv\"\nclass = \"never\"\n\
                    [[keep]]\npath = \"/var/lib/app\"\n\
                    [pool]\nkeep = [\"/srv\", \"/var/lib/app\", \"/opt\"]\nsize = \"96MiB\"\n\
                    name = \"office\"\nmembers = \"desk-{001..100}\"\n";
        let rules = Rules::parse(text, "r.toml").unwrap();
        let kept = rules.moves.iter().filter(|it| it.class == Class::Keep);
        let kept: Vec<&str> = kept.map(|it| &*it.path.text).collect();
        assert_eq!(kept, ["/srv", "/var/lib/app", "/opt"]);
        let others = rules.moves.iter().filter(|it| it.class != Class::Keep);
        let others: Vec<&str> = others.map(|it| &*it.path.text).collect();
        assert!(!others.contains(&"/srv") && !others.contains(&"/opt"));
        assert!(others.contains(&"/var/log"), "{others:?}");
        assert!(!rules.keeps.iter().any(|it| it.text == "/var/lib/app"));
        assert_eq!(rules.disk(Class::Keep).size_bytes, Some(96 << 20));
        let pool = rules.pool.unwrap();
        assert_eq!(
            (pool.name.as_deref(), pool.members.len()),
            (Some("office"), 1)
        );
        let alone = Rules::parse("[pool]\nkeep = ['\\Data']\n", "r.toml").unwrap();
        assert_eq!(alone.family, Family::Windows);
        assert_eq!(alone.disk(Class::Keep).size_bytes, None);
    }

    /// Fails when: a wrong file is taken, or its message does not say where and what is right.
    #[test]
    fn wrong_rules_are_refused_with_their_line_and_what_would_be_right() {
        for (text, message) in [
            (
                "",
                "r.toml: moves nothing; give a [[move]], a [pool], or a base: give linux, \
                 windows-safe or windows-capo",
            ),
            (
                "base = \"unix\"\n",
                "r.toml: base: \"unix\" is no table; give linux, windows-safe or windows-capo",
            ),
            (
                "[[move]]\npath = \"tmp\"\nclass = \"never\"\n",
                "r.toml: path: \"tmp\" is no path; write it from the root, as \"/tmp\"",
            ),
            (
                "[[move]]\npath = \"/a/../b\"\nclass = \"never\"\n",
                "r.toml: path: \"/a/../b\" is no path of names; write names between single \
                 separators, without . and ..",
            ),
            (
                "base = \"linux\"\n[[keep]]\npath = '\\Temp'\n",
                "r.toml: path: has paths of two families; write all with / for Linux, or all with \
                 \\ for Windows",
            ),
            (
                "base = \"linux\"\n[class.never]\nsize = \"8GB\"\n",
                "r.toml: size: \"8GB\" is not a size; write KiB, MiB, GiB or TiB, as in \"8GiB\"",
            ),
            (
                "base = \"linux\"\n[class.write-back]\ndestage-after = \"1 hour\"\n",
                "r.toml: destage-after: \"1 hour\" is not a time; write ms, s, m, h or d, as in \
                 \"1h\"",
            ),
            (
                "base = \"linux\"\n[class.write-back]\npolicy = \"ephemeral\"\n",
                "r.toml: policy: \"ephemeral\" is none of class write-back; only never may be \
                 \"ephemeral\"",
            ),
            (
                "base = \"linux\"\n[[move]]\npath = \"/a\"\nclass = \"keep\"\n",
                "r.toml: class: keep is the class of the paths in `keep` of [pool]; write them \
                 there",
            ),
            (
                "base = \"linux\"\n[class.keep]\nsize = \"8GiB\"\n",
                "r.toml: class: keep is the class of the paths in `keep` of [pool]; write them \
                 there",
            ),
            (
                "base = \"linux\"\n[page-file]\nclass = \"keep\"\n",
                "r.toml: page-file: class: keep is the class of the paths in `keep` of [pool]; \
                 write them there",
            ),
            (
                "[system]\npolicy = \"keep\"\n[pool]\nkeep = [\"/a\"]\n",
                "r.toml: system: a system disk cannot be of class keep; write \"write-through\" \
                 or \"write-back\"",
            ),
            (
                "base = \"linux\"\n[pool]\nname = \"office\"\n",
                "r.toml: keep: is no list of paths; write it as [\"/etc/ssh\"], or leave [pool] \
                 out",
            ),
            (
                "[pool]\nkeep = [\"etc\"]\n",
                "r.toml: keep: \"etc\" is no path; write it from the root, as \"/tmp\"",
            ),
            (
                "base = \"linux\"\n[pool]\nkeep = ['\\Temp']\n",
                "r.toml: path: has paths of two families; write all with / for Linux, or all with \
                 \\ for Windows",
            ),
            (
                "[pool]\nkeep = [\"/a\"]\nsize = \"1\"\n",
                "r.toml: size: \"1\" is not a size; write KiB, MiB, GiB or TiB, as in \"8GiB\"",
            ),
            (
                "base = \"windows-safe\"\n[class.never]\nletter = \"7\"\n",
                "r.toml: letter: '7' is no letter of a drive; write D to Z",
            ),
        ] {
            assert_eq!(refused(text), message);
        }
        let unknown = refused("base = \"linux\"\n[[move]]\npath = \"/a\"\nclas = \"never\"\n");
        assert!(
            unknown.starts_with("r.toml:4: unknown field `clas`"),
            "{unknown}"
        );
        let class = refused("base = \"linux\"\n[[move]]\npath = \"/a\"\nclass = \"later\"\n");
        assert!(
            class.starts_with("r.toml:4: unknown variant `later`"),
            "{class}"
        );
    }
}
