//! Values of keys, wherever they come from, and what each kind of key makes of them.
//!
//! Always true: a file and a `KEY=VALUE` go through the same functions, so that they cannot
//! disagree. A `KEY=VALUE` is always text; therefore every kind reads text as well.

use super::Wrong;
use super::units::{self, Unfit};
use crate::error::cause;
use std::path::PathBuf;
use toml::de::DeValue;

/// Longest volume name: with its ending it must fit into a socket's path and a table of the log.
pub const NAME_BYTES_MAX: usize = 63;

/// A name that can be part of a file name, of a socket's path and of an URL as it stands.
pub fn check_name(name: &str) -> Result<(), Wrong> {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= NAME_BYTES_MAX && name.chars().all(safe) {
        return Ok(());
    }
    Err(Wrong::new(
        format!("{name:?} is not a volume name"),
        format!(
            "write 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.', a letter or digit first"
        ),
    ))
}

/// As it stands in a file.
pub(super) fn quote(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

/// A value without its place.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Integer(i64),
    Flag(bool),
    List(Vec<Value>),
    Table(Vec<(String, Value)>),
    /// A type that no key takes, by its name.
    Other(&'static str),
}

impl Value {
    pub fn from_toml(value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Boolean(flag) => Value::Flag(*flag),
            DeValue::Integer(number) => {
                match i64::from_str_radix(number.as_str(), number.radix()) {
                    Ok(number) => Value::Integer(number),
                    Err(_) => Value::Other("a number out of range"),
                }
            }
            DeValue::Array(list) => Value::List(
                list.iter()
                    .map(|item| Value::from_toml(item.get_ref()))
                    .collect(),
            ),
            DeValue::Table(table) => Value::Table(
                table
                    .iter()
                    .map(|(key, item)| {
                        (key.get_ref().to_string(), Value::from_toml(item.get_ref()))
                    })
                    .collect(),
            ),
            DeValue::Float(_) => Value::Other("a fraction"),
            DeValue::Datetime(_) => Value::Other("a date"),
        }
    }

    /// A `KEY=VALUE`: lists and tables as TOML writes them, everything else as it stands.
    pub fn from_argument(text: &str) -> Value {
        if text.starts_with(['[', '{'])
            && let Ok(value) = DeValue::parse(text)
        {
            return Value::from_toml(value.get_ref());
        }
        Value::Text(text.to_string())
    }

    /// The value as an error message repeats it.
    pub fn show(&self) -> String {
        match self {
            Value::Text(text) => format!("{text:?}"),
            Value::Integer(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::List(_) => "a list".into(),
            Value::Table(_) => "a table".into(),
            Value::Other(name) => (*name).into(),
        }
    }

    pub fn text(&self, right: &str) -> Result<&str, Wrong> {
        match self {
            Value::Text(text) => Ok(text),
            other => Err(Wrong::new(format!("{} is not a text", other.show()), right)),
        }
    }

    pub fn size(&self, example: &str) -> Result<u64, Wrong> {
        self.size_up_to(units::SIZE_BYTES_MAX, example)
    }

    /// Where a larger one is wrong, with what would be right.
    pub fn size_up_to(&self, most: u64, example: &str) -> Result<u64, Wrong> {
        let bytes = match self {
            Value::Text(text) => units::read_size(text),
            Value::Integer(number) => u64::try_from(*number).map_err(|_| Unfit::Form),
            _ => Err(Unfit::Form),
        };
        let bytes = bytes.and_then(|bytes| match bytes <= most {
            true => Ok(bytes),
            false => Err(Unfit::TooLarge),
        });
        bytes.map_err(|unfit| {
            let most = units::show_size(most);
            self.unfit(unfit, "size", units::SIZE_RIGHT, example, &most)
        })
    }

    pub fn millis(&self, example: &str) -> Result<u64, Wrong> {
        let millis = match self {
            Value::Text(text) => units::read_millis(text),
            _ => Err(Unfit::Form),
        };
        let most = units::show_millis(units::MILLIS_MAX);
        millis.map_err(|unfit| self.unfit(unfit, "time", units::TIME_RIGHT, example, &most))
    }

    fn unfit(&self, unfit: Unfit, kind: &str, right: &str, example: &str, most: &str) -> Wrong {
        let shown = self.show();
        let right = format!("{right} \"{example}\"");
        match unfit {
            Unfit::TooLarge => Wrong::new(
                format!("{shown} is out of range"),
                format!("write at most \"{most}\""),
            ),
            Unfit::Decimal => Wrong::new(
                format!("{shown} is not a {kind}"),
                format!("{right}, {}", units::DECIMAL),
            ),
            Unfit::Form => Wrong::new(format!("{shown} is not a {kind}"), right),
        }
    }

    pub fn number(&self, min: u64, max: u64) -> Result<u64, Wrong> {
        let number = match self {
            Value::Text(text) => text.parse().ok(),
            Value::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        number
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| {
                Wrong::new(
                    format!("{} is not a number from {min} to {max}", self.show()),
                    format!("write a whole number from {min} to {max}"),
                )
            })
    }

    pub fn flag(&self) -> Result<bool, Wrong> {
        match self {
            Value::Flag(flag) => Ok(*flag),
            Value::Text(text) if text == "true" => Ok(true),
            Value::Text(text) if text == "false" => Ok(false),
            other => Err(Wrong::new(
                format!("{} is neither true nor false", other.show()),
                "write true or false",
            )),
        }
    }

    /// One of these words.
    pub fn word(&self, words: &[&'static str]) -> Result<&'static str, Wrong> {
        let found = match self {
            Value::Text(text) => words.iter().find(|word| *word == text),
            _ => None,
        };
        found.copied().ok_or_else(|| {
            Wrong::new(
                format!("{} is not one of its values", self.show()),
                format!("write {}", one_of(words)),
            )
        })
    }

    /// A path, made absolute: the daemon's working directory is nobody's business later.
    pub fn path(&self) -> Result<PathBuf, Wrong> {
        let right = "write a path, as in \"/srv/images/a.img\"";
        let text = self.text(right)?;
        std::path::absolute(text)
            .map_err(|error| Wrong::new(format!("{text:?}: {}", cause(&error)), right))
    }

    /// A list of words; as an argument, separated by commas.
    pub fn words(&self, right: &str) -> Result<Vec<String>, Wrong> {
        match self {
            Value::Text(text) => Ok(text.split(',').map(|word| word.trim().into()).collect()),
            Value::List(items) => items
                .iter()
                .map(|item| item.text(right).map(String::from))
                .collect(),
            other => Err(Wrong::new(format!("{} is not a list", other.show()), right)),
        }
    }
}

/// `"a"`, `"b" or "c"`, quoted as the file has them.
pub fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
