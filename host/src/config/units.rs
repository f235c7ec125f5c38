//! Sizes and times as people write them.
//!
//! Owns both directions. Always true: what `show_*` prints, `parse_*` reads back to the same
//! number. Deliberately absent: KB and GB, because half the world reads them as powers of two,
//! and fractions, because `1536MiB` needs no rule for rounding.

const SIZE_UNITS: [(&str, u64); 4] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];
const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// More than a century: a time that is longer is a mistake, and the clock of nanoseconds ends soon.
pub const MILLIS_MAX: u64 = 1_000_000 * 3_600_000;

/// Bytes of "64GiB" or of a plain number.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    match unit {
        "" => Some(number),
        _ => number.checked_mul(factor(unit, &SIZE_UNITS)?),
    }
}

/// Milliseconds of "30s". A number without a unit is no time: nobody can know what it means.
pub fn parse_millis(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    number.checked_mul(factor(unit, &TIME_UNITS)?)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

fn factor(unit: &str, units: &[(&str, u64)]) -> Option<u64> {
    units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|&(_, factor)| factor)
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
        assert_eq!(parse_size("64GiB"), Some(64 << 30));
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("0"), Some(0));
        for wrong in [
            "",
            "GiB",
            "64GB",
            "64 GiB",
            "1.5GiB",
            "-1",
            "64gib",
            "99999999TiB",
        ] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_millis("500ms"), Some(500));
        assert_eq!(parse_millis("10m"), Some(600_000));
        assert_eq!(parse_millis("2h"), Some(7_200_000));
        for wrong in ["", "10", "10 s", "5min", "1d", "-3s"] {
            assert_eq!(parse_millis(wrong), None, "{wrong}");
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
            5 << 40,
            600_000,
            61_000,
        ] {
            assert_eq!(parse_size(&show_size(value)), Some(value));
            assert_eq!(parse_millis(&show_millis(value)), Some(value));
        }
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
