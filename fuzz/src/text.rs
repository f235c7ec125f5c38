//! Text that people write: a configuration, values on a command line, the name of an export.
//!
//! Invariants: an error names a line of the file where it names one, and is one line itself;
//! what a configuration is explained as means the same when it is written down and read again;
//! the names of its volumes differ and can be parts of paths; an export's name printed is the same
//! export; sizes and times read back as what they were printed for.

use host::config::explain::{Row, explain};
use host::config::{Config, Value, parse, units};
use host::origin::nbd::uri::Uri;
use std::path::Path;

const FILE: &str = "fuzz.toml";

/// The explanation as a file.
fn written(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut section = "";
    for row in rows {
        if row.section != section {
            section = &row.section;
            // A volume's name stands behind its brackets.
            let header = section.split_inclusive(']').collect::<Vec<_>>();
            let header: String = header
                .iter()
                .take_while(|part| part.ends_with(']'))
                .copied()
                .collect();
            text += &format!("\n{header}\n");
        }
        if !row.value.is_empty() {
            text += &format!("{} = {}\n", row.key, row.value);
        }
    }
    text
}

/// What it is, without where it stands.
fn meaning(config: &Config) -> Vec<(String, &'static str, String)> {
    let rows = explain(config).into_iter();
    rows.map(|row| (row.section, row.key, row.value)).collect()
}

fn reads_back(config: &Config) {
    let again = written(&explain(config));
    let parsed = parse::parse(Path::new(FILE), &again);
    let parsed = parsed.unwrap_or_else(|error| panic!("{error}\n{again}"));
    assert_eq!(meaning(&parsed), meaning(config), "{again}");
}

fn names_differ(config: &Config) {
    let mut names: Vec<&str> = config.volumes.iter().map(|it| it.name.as_str()).collect();
    for name in &names {
        let plain = !name.is_empty() && !name.contains(['/', '\0']) && !matches!(*name, "." | "..");
        assert!(plain, "{name:?} is part of a path");
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), config.volumes.len(), "a name is one volume's");
}

pub fn configuration(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let config = match parse::parse(Path::new(FILE), text) {
        Ok(config) => config,
        Err(error) => {
            let lines = text.split('\n').count();
            assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)));
            let said = error.to_string();
            assert!(said.starts_with(FILE), "{said}");
            assert_eq!(said.lines().count(), 1, "{said:?}");
            return false;
        }
    };
    names_differ(&config);
    reads_back(&config);
    true
}

/// `key=value`, as `volume set` takes it.
pub fn argument(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    if let Some(bytes) = units::parse_size(text) {
        assert_eq!(units::parse_size(&units::show_size(bytes)), Some(bytes));
    }
    if let Some(millis) = units::parse_millis(text) {
        assert_eq!(
            units::parse_millis(&units::show_millis(millis)),
            Some(millis)
        );
    }
    let Ok((key, value)) = parse::split_argument(text) else {
        return false;
    };
    let smallest = "[cache]\npath = \"/var/lib/cache\"\n";
    let config = parse::parse(Path::new(FILE), smallest);
    let mut config = config.expect("a cache is all that is needed");
    let origin = ("origin".to_owned(), Value::Text("/images/a.img".to_owned()));
    let values = match key == "origin" {
        true => vec![(key, Value::from_argument(&value))],
        false => vec![origin, (key, Value::from_argument(&value))],
    };
    match parse::new_volume(&config.defaults, "fuzz", &values) {
        Ok(volume) => {
            // It means the same in a file.
            config.volumes.push(volume);
            reads_back(&config);
            true
        }
        Err(error) => {
            let said = error.to_string();
            assert_eq!(said.lines().count(), 1, "{said:?}");
            false
        }
    }
}

/// The name of an NBD export.
pub fn uri(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    match Uri::parse(text) {
        Ok(uri) => {
            let printed = uri.to_string();
            assert!(Uri::claims(&printed), "{printed:?}");
            assert_eq!(Uri::parse(&printed), Ok(uri), "{text:?} as {printed:?}");
            true
        }
        Err(wrong) => {
            assert_eq!(wrong.lines().count(), 1, "{wrong:?}");
            false
        }
    }
}
