//! Between the JSON of the admin socket and the keys of the configuration.
//!
//! Always true: JSON is snake_case, the configuration kebab-case; nothing else differs.

use crate::config::Value;
use crate::error::{Error, Result};
use serde_json::{Map, Value as Json};

/// The members of a JSON object as values of keys, without those in `except`.
pub fn values_from_json(
    document: &Map<String, Json>,
    except: &[&str],
) -> Result<Vec<(String, Value)>> {
    let members = document
        .iter()
        .filter(|(key, _)| !except.contains(&key.as_str()));
    members
        .map(|(key, value)| Ok((key.replace('_', "-"), value_from_json(key, value)?)))
        .collect()
}

fn value_from_json(key: &str, value: &Json) -> Result<Value> {
    match value {
        Json::String(text) => Ok(Value::from_argument(text)),
        Json::Bool(flag) => Ok(Value::Flag(*flag)),
        Json::Number(number) => Ok(match number.as_i64() {
            Some(number) => Value::Integer(number),
            None => Value::Other("a number that is not whole"),
        }),
        Json::Array(items) => {
            let items: Result<_> = items
                .iter()
                .map(|item| value_from_json(key, item))
                .collect();
            Ok(Value::List(items?))
        }
        Json::Object(members) => Ok(Value::Table(values_from_json(members, &[])?)),
        Json::Null => Err(Error::usage(format!(
            "{key}: null is no value; leave the key out"
        ))),
    }
}
