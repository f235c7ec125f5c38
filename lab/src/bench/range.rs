//! What the numbers of a measurement may be.
//!
//! Always true: a refusal names the option, what was given and what would be right. Deliberately
//! absent: what has to fit to something else; that is looked at where both are known.

use host::config::units::human_bytes;
use host::error::{Error, Result};
use std::fmt::Display;
use std::ops::RangeInclusive;

fn refused(option: &str, given: impl Display, right: impl Display) -> Error {
    Error::usage(format!("{option} {given}: out of range; give {right}"))
}

/// What is no number at all is in no range.
pub fn within<T: PartialOrd + Display>(
    option: &str,
    given: T,
    right: RangeInclusive<T>,
) -> Result<()> {
    match right.contains(&given) {
        true => Ok(()),
        false => {
            let right = format!("{} to {}", right.start(), right.end());
            Err(refused(option, given, right))
        }
    }
}

pub fn at_least_one(option: &str, given: u32) -> Result<()> {
    match given {
        0 => Err(refused(option, given, "1 or more")),
        _ => Ok(()),
    }
}

pub fn size_at_least(option: &str, given: u64, least: u64) -> Result<()> {
    match given >= least {
        true => Ok(()),
        false => {
            let right = format!("{} or more", human_bytes(least));
            Err(refused(option, human_bytes(given), right))
        }
    }
}

pub fn size_within(option: &str, given: u64, right: RangeInclusive<u64>) -> Result<()> {
    match right.contains(&given) {
        true => Ok(()),
        false => {
            let [least, most] = [right.start(), right.end()].map(|it| human_bytes(*it));
            Err(refused(
                option,
                human_bytes(given),
                format!("{least} to {most}"),
            ))
        }
    }
}
