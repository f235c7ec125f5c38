//! Sizes and times of options, with the words for what is wrong.

use crate::config::units::{MILLIS_MAX, parse_millis, parse_size};
use crate::error::{Error, Result};
use std::time::Duration;

/// No storage that anybody waits for is slower.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

pub fn size(option: &str, text: &str) -> Result<u64> {
    parse_size(text).ok_or_else(|| {
        Error::usage(format!(
            "{option} {text}: not a size; use bytes or a number with KiB, MiB, GiB or TiB"
        ))
    })
}

pub fn millis(option: &str, text: &str) -> Result<u64> {
    let millis = parse_millis(text).ok_or_else(|| {
        Error::usage(format!(
            "{option} {text}: not a time; use a number with ms, s, m or h"
        ))
    })?;
    match millis <= MILLIS_MAX {
        true => Ok(millis),
        false => Err(Error::usage(format!("{option} {text}: at most 1000000h"))),
    }
}

pub fn latency(option: &str, text: &str) -> Result<Duration> {
    let latency = Duration::from_millis(millis(option, text)?);
    match latency <= LATENCY_MAX {
        true => Ok(latency),
        false => Err(Error::usage(format!("{option} {text}: at most 1h"))),
    }
}
