//! Sizes and times as people write them.
//!
//! Owns both directions. Always true: what `show_*` prints, `parse_*` reads back to the same
//! number; what is read is a size that a file can have and a time that a clock can measure.
//! Deliberately absent: KB and GB, because half the world reads them as powers of two, and
//! fractions, because `1536MiB` needs no rule for rounding.

const SIZE_UNITS: [(&str, u64); 4] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];
const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
/// What else people write for a time; never shown.
const TIME_WORDS: [(u64, &[&str]); 5] = [
    (1, &["msec", "msecs"]),
    (1_000, &["sec", "secs", "second", "seconds"]),
    (60_000, &["min", "mins", "minute", "minutes"]),
    (3_600_000, &["hr", "hrs", "hour", "hours"]),
    (86_400_000, &["d", "day", "days"]),
];

/// More than a century: a time that is longer is a mistake, and the clock of nanoseconds ends soon.
pub const MILLIS_MAX: u64 = 1_000_000 * 3_600_000;
/// Above this, offsets in sectors no longer fit the formats.
pub const SIZE_BYTES_MAX: u64 = 1 << 60;
/// What is right of a size, before its example.
pub const SIZE_RIGHT: &str = "write bytes or K, M, G, T or KiB, MiB, GiB, TiB, as in";
/// What is said of KB, MB, GB and TB beside that.
pub const DECIMAL: &str = "since GB is 1000 MB for some and 1024 for others";
/// What is right of a time, before its example.
pub const TIME_RIGHT: &str = "write ms, s, m, h or d, as in";

/// Why a text is no size or no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is none at all.
    Form,
    /// Its unit is one of powers of ten.
    Decimal,
    /// It is one, and larger than anything.
    TooLarge,
}

/// Bytes of "64GiB", of "64G", which is the same, or of a plain number.
pub fn read_size(text: &str) -> Result<u64, Unfit> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" => 1,
        _ => size_factor(unit)?,
    };
    bounded(number, factor, SIZE_BYTES_MAX)
}

/// The same where it does not matter what is wrong.
pub fn parse_size(text: &str) -> Option<u64> {
    read_size(text).ok()
}

/// Milliseconds of "30s". A number without a unit is no time: nobody can know what it means.
pub fn read_millis(text: &str) -> Result<u64, Unfit> {
    let (number, unit) = split(text)?;
    let worded = || {
        let words = TIME_WORDS.iter().find(|(_, words)| words.contains(&unit));
        words.map(|(factor, _)| *factor)
    };
    let factor = factor(unit, &TIME_UNITS).or_else(worded);
    bounded(number, factor.ok_or(Unfit::Form)?, MILLIS_MAX)
}

/// The same where it does not matter what is wrong.
pub fn parse_millis(text: &str) -> Option<u64> {
    read_millis(text).ok()
}

/// The number, which is larger than all if it does not fit, and what follows it.
fn split(text: &str) -> Result<(u64, &str), Unfit> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    match end {
        0 => Err(Unfit::Form),
        // Digits alone: what does not fit is only too large.
        _ => Ok((text[..end].parse().unwrap_or(u64::MAX), &text[end..])),
    }
}

fn bounded(number: u64, factor: u64, max: u64) -> Result<u64, Unfit> {
    let value = number.checked_mul(factor).filter(|value| *value <= max);
    value.ok_or(Unfit::TooLarge)
}

fn factor(unit: &str, units: &[(&str, u64)]) -> Option<u64> {
    units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|&(_, factor)| factor)
}

/// `K` and `k` are KiB, as `qemu-img` has them.
fn size_factor(unit: &str) -> Result<u64, Unfit> {
    if let Some(factor) = factor(unit, &SIZE_UNITS) {
        return Ok(factor);
    }
    let first = |name: &str| name.chars().next();
    let letter = unit
        .chars()
        .next()
        .map(|letter| letter.to_ascii_uppercase());
    let named = SIZE_UNITS.iter().find(|(name, _)| first(name) == letter);
    match (named, unit.len(), unit.to_ascii_uppercase().ends_with('B')) {
        (Some((_, factor)), 1, _) => Ok(*factor),
        (Some(_), 2, true) => Err(Unfit::Decimal),
        _ => Err(Unfit::Form),
    }
}

/// The size in its largest whole unit, as the configuration takes it.
pub fn show_size(bytes: u64) -> String {
    show_whole(bytes, &SIZE_UNITS, "")
}

/// The time in its largest whole unit, as the configuration takes it.
pub fn show_millis(millis: u64) -> String {
    show_whole(millis, &TIME_UNITS, "ms")
}

fn show_whole(value: u64, units: &[(&str, u64)], bare: &str) -> String {
    let fits = |factor: u64| value != 0 && value.is_multiple_of(factor);
    match units.iter().rev().find(|&&(_, factor)| fits(factor)) {
        Some((unit, factor)) => format!("{}{unit}", value / factor),
        None => format!("{value}{bare}"),
    }
}

/// A size for people: at most four digits, rounded. Not for reading back.
pub fn human_bytes(bytes: u64) -> String {
    match SIZE_UNITS
        .iter()
        .rev()
        .find(|&&(_, factor)| bytes >= factor)
    {
        Some(&(unit, factor)) => {
            let tenths = (u128::from(bytes) * 10 + u128::from(factor) / 2) / u128::from(factor);
            match (tenths / 10, tenths % 10) {
                (whole, 0) => format!("{whole} {unit}"),
                (whole, _) if whole >= 100 => format!("{whole} {unit}"),
                (whole, part) => format!("{whole}.{part} {unit}"),
            }
        }
        None => format!("{bytes} B"),
    }
}

/// An age for people, in its two largest units.
pub fn human_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_units_and_plain_bytes_only() {
        assert_eq!(read_size("64GiB"), Ok(64 << 30));
        assert_eq!(read_size("4096"), Ok(4096));
        assert_eq!(read_size("0"), Ok(0));
        for (text, bytes) in [("10k", 10 << 10), ("512M", 512 << 20), ("4T", 4 << 40)] {
            assert_eq!(read_size(text), Ok(bytes), "{text}");
        }
        for (text, bytes) in [("1G", 1 << 30), ("1g", 1 << 30), ("10K", 10 << 10)] {
            assert_eq!(read_size(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "", "GiB", "G", "64 GiB", "1.5GiB", "-1", "64gib", "64Gi", "64GBs", "64b", "64Ä",
        ] {
            assert_eq!(read_size(wrong), Err(Unfit::Form), "{wrong}");
        }
        for wrong in ["64GB", "1kB", "1KB", "3tb", "2Mb"] {
            assert_eq!(read_size(wrong), Err(Unfit::Decimal), "{wrong}");
        }
        for wrong in [
            "99999999TiB",
            "9999999T",
            "99999999999999999999",
            "2000000000000000000",
        ] {
            assert_eq!(read_size(wrong), Err(Unfit::TooLarge), "{wrong}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("10m", 600_000),
            ("10min", 600_000),
            ("2h", 7_200_000),
            ("2hours", 7_200_000),
            ("2hr", 7_200_000),
            ("30sec", 30_000),
            ("1d", 86_400_000),
            ("3days", 3 * 86_400_000),
            ("1000000h", MILLIS_MAX),
        ] {
            assert_eq!(read_millis(text), Ok(millis), "{text}");
        }
        for wrong in ["", "10", "10 s", "5M", "1w", "-3s", "1month", "s"] {
            assert_eq!(read_millis(wrong), Err(Unfit::Form), "{wrong}");
        }
        for wrong in ["1000001h", "99999999999d", "99999999999999999999ms"] {
            assert_eq!(read_millis(wrong), Err(Unfit::TooLarge), "{wrong}");
        }
    }

    #[test]
    fn what_is_shown_reads_back_to_the_same_number() {
        for value in [
            0,
            1,
            1023,
            1024,
            1536,
            1 << 20,
            3 << 30,
            600_000,
            61_000,
            MILLIS_MAX,
        ] {
            assert_eq!(parse_size(&show_size(value)), Some(value));
            assert_eq!(parse_millis(&show_millis(value)), Some(value));
        }
        assert_eq!(parse_size(&show_size(5 << 40)), Some(5 << 40));
        assert_eq!(show_size(64 << 30), "64GiB");
        assert_eq!(show_millis(600_000), "10m");
    }

    #[test]
    fn people_get_short_numbers() {
        assert_eq!(human_bytes(512), "512 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(4 << 30), "4 GiB");
        assert_eq!(human_seconds(75), "1 min 15 s");
    }
}
