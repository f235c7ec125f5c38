//! The key `limit` of a volume: what its guest may ask for in a second.
//!
//! Always true: a member that is not named stays as it is; what is shown is read back as the same.
//! Deliberately absent: what a limit does ([`crate::limit`]).

use super::{Value, Volume, Wrong, units};
use crate::limit::GuestLimit;

/// More than any device gives.
const IOPS_MAX: u64 = 1_000_000_000;
const BANDWIDTH_BYTES_MAX: u64 = 1 << 40;
/// A burst of more is no limit.
const BURST_MS_MAX: u64 = 3_600_000;

/// What is not named stays as it is.
pub fn set(volume: &mut Volume, value: &Value) -> Result<(), Wrong> {
    let right =
        "write { iops = \"1000\", bandwidth = \"100MiB\", burst = \"1s\" }; 0 limits nothing";
    let mut limit = volume.limit;
    let Value::Table(members) = value else {
        return Err(Wrong::new(
            format!("{} is not a table", value.show()),
            right,
        ));
    };
    for (name, value) in members {
        let wrong = |wrong: Wrong| Wrong::new(format!("{name}: {}", wrong.what), wrong.right);
        let none = matches!(value, Value::Integer(0)) || value.text("").is_ok_and(|it| it == "0");
        match name.as_str() {
            "iops" => limit.iops = value.number(0, IOPS_MAX).map_err(wrong)?,
            "bandwidth" => limit.bandwidth_bytes = per_second(value).map_err(wrong)?,
            "burst" if none => limit.burst_ms = 0,
            "burst" => {
                let burst = value.millis("1s").map_err(wrong)?;
                if burst > BURST_MS_MAX {
                    let right = format!("write at most {:?}", units::show_millis(BURST_MS_MAX));
                    let what = format!("{} is out of range", value.show());
                    return Err(wrong(Wrong::new(what, right)));
                }
                limit.burst_ms = burst;
            }
            _ => return Err(Wrong::new(format!("{name} is no key of limit"), right)),
        }
    }
    volume.limit = limit;
    Ok(())
}

/// A size, with or without "/s".
fn per_second(value: &Value) -> Result<u64, Wrong> {
    match value {
        Value::Text(text) => {
            let bare = text.strip_suffix("/s").unwrap_or(text);
            Value::Text(bare.into()).size_up_to(BANDWIDTH_BYTES_MAX, "100MiB")
        }
        other => other.size_up_to(BANDWIDTH_BYTES_MAX, "100MiB"),
    }
}

pub fn show(limit: GuestLimit) -> String {
    let bandwidth = match limit.bandwidth_bytes {
        0 => "0".to_owned(),
        bytes => units::show_size(bytes),
    };
    let burst = match limit.burst_ms {
        0 => "0".to_owned(),
        millis => units::show_millis(millis),
    };
    let iops = limit.iops;
    format!("{{ iops = \"{iops}\", bandwidth = \"{bandwidth}\", burst = \"{burst}\" }}")
}
