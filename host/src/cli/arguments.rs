//! Sizes, times and names of arguments, with the words for what is wrong.

use crate::config::Wrong;
use crate::config::values::Value;
use crate::error::{Error, Result};
use std::time::Duration;

/// No storage that anybody waits for is slower.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

pub fn size(option: &str, text: &str) -> Result<u64> {
    Value::Text(text.into())
        .size("64GiB")
        .map_err(|wrong| unfit(option, wrong))
}

pub fn millis(option: &str, text: &str) -> Result<u64> {
    Value::Text(text.into())
        .millis("10m")
        .map_err(|wrong| unfit(option, wrong))
}

/// As an error of the configuration, but for the place.
fn unfit(option: &str, wrong: Wrong) -> Error {
    Error::usage(format!("{option}: {}; {}", wrong.what, wrong.right))
}

pub fn latency(option: &str, text: &str) -> Result<Duration> {
    let latency = Duration::from_millis(millis(option, text)?);
    match latency <= LATENCY_MAX {
        true => Ok(latency),
        false => Err(Error::usage(format!("{option} {text}: at most 1h"))),
    }
}
