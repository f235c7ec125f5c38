//! The columns of `top`: what each shows, how wide it is, how it sorts, when it is left out.
//!
//! Always true: every column has one line in [`ALL`], and nothing else knows their number; what
//! is not known shows as `-` and sorts below everything.

use super::look::{Rates, Row};
use crate::natural;
use std::cmp::Ordering;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Name,
    Policy,
    State,
    Dirty,
    Age,
    Reads,
    Writes,
    Flushes,
    Bytes,
    Hit,
    P50,
    P99,
    OriginRequests,
    OriginBytes,
    Delay,
    Clients,
    Flags,
}

/// How one column is shown.
pub struct Shape {
    pub column: Column,
    pub head: &'static str,
    pub width: usize,
    /// The columns of a low number stay when there is little room.
    pub rank: u8,
    pub meaning: &'static str,
}

const fn shape(
    column: Column,
    head: &'static str,
    width: usize,
    rank: u8,
    meaning: &'static str,
) -> Shape {
    Shape {
        column,
        head,
        width,
        rank,
        meaning,
    }
}

/// In the order of the screen.
pub const ALL: &[Shape] = &[
    shape(Column::Name, "NAME", 12, 0, "name of the volume"),
    shape(Column::Policy, "POLICY", 13, 11, "policy in effect"),
    shape(
        Column::State,
        "STATE",
        8,
        1,
        "clean, dirty, degraded, stalled, held, damaged",
    ),
    shape(
        Column::Dirty,
        "DIRTY",
        6,
        2,
        "bytes that are not at the origin yet",
    ),
    shape(Column::Age, "AGE", 4, 10, "age of the oldest of them"),
    shape(Column::Reads, "READ/s", 6, 3, "reads of guests in a second"),
    shape(
        Column::Writes,
        "WRIT/s",
        6,
        4,
        "writes of guests in a second",
    ),
    shape(
        Column::Flushes,
        "FLSH/s",
        6,
        13,
        "flushes of guests in a second",
    ),
    shape(
        Column::Bytes,
        "B/s",
        6,
        5,
        "bytes read and written by guests in a second",
    ),
    shape(
        Column::Hit,
        "HIT%",
        4,
        6,
        "share of reads that RAM or SSD answered",
    ),
    shape(
        Column::P50,
        "p50",
        6,
        14,
        "half of all reads and writes took at most this long",
    ),
    shape(
        Column::P99,
        "p99",
        6,
        7,
        "99 of 100 reads and writes took at most this long",
    ),
    shape(
        Column::OriginRequests,
        "ORIG/s",
        6,
        9,
        "reads and writes at the origin in a second",
    ),
    shape(
        Column::OriginBytes,
        "DESTAGE",
        7,
        12,
        "bytes written to the origin in a second",
    ),
    shape(
        Column::Delay,
        "DELAY",
        6,
        8,
        "how long flow control holds each write now",
    ),
    shape(Column::Clients, "CLI", 3, 15, "connections of guests"),
    shape(
        Column::Flags,
        "FLAGS",
        12,
        16,
        "special states, as in `volume ls`",
    ),
];

/// The columns that fit, each with its width; the name takes what is left, up to its longest.
pub fn that_fit(width: usize, longest_name: usize) -> Vec<(&'static Shape, usize)> {
    let mut by_rank: Vec<&Shape> = ALL.iter().collect();
    by_rank.sort_by_key(|shape| shape.rank);
    let mut used = 0;
    let mut taken = Vec::new();
    for shape in by_rank {
        let more = shape.width + usize::from(used > 0);
        if used + more > width {
            break;
        }
        used += more;
        taken.push(shape.column);
    }
    let spare = width.saturating_sub(used);
    ALL.iter()
        .filter(|shape| taken.contains(&shape.column))
        .map(|shape| match shape.column {
            Column::Name => {
                let wanted = longest_name.saturating_sub(shape.width);
                (shape, shape.width + spare.min(wanted))
            }
            _ => (shape, shape.width),
        })
        .collect()
}

impl Column {
    fn place(self) -> usize {
        let found = ALL.iter().position(|shape| shape.column == self);
        found.expect("every column has a line in the table")
    }

    pub fn left(self) -> Column {
        ALL[self.place().saturating_sub(1)].column
    }

    pub fn right(self) -> Column {
        ALL[(self.place() + 1).min(ALL.len() - 1)].column
    }

    pub fn head(self) -> &'static str {
        ALL[self.place()].head
    }

    pub fn is_text(self) -> bool {
        matches!(
            self,
            Column::Name | Column::Policy | Column::State | Column::Flags
        )
    }

    pub fn compare(self, a: &Row, b: &Row) -> Ordering {
        match self {
            Column::Name => natural::compare(&a.volume.name, &b.volume.name),
            Column::Policy => a.volume.policy.cmp(&b.volume.policy),
            Column::State => a.volume.state.cmp(&b.volume.state),
            Column::Flags => a.volume.flags.cmp(&b.volume.flags),
            _ => {
                let (a, b) = (self.value(a), self.value(b));
                a.partial_cmp(&b).unwrap_or(Ordering::Equal)
            }
        }
    }

    /// The number of a cell; `None` for text and for what is not known.
    fn value(self, row: &Row) -> Option<f64> {
        let volume = &row.volume;
        let rate = |of: fn(&Rates) -> f64| row.rates.as_ref().map(of);
        let count = |value: Option<u64>| value.map(|value| value as f64);
        let rates = row.rates.as_ref();
        match self {
            Column::Name | Column::Policy | Column::State | Column::Flags => None,
            Column::Dirty => count(volume.dirty_bytes),
            Column::Age => count(volume.dirty_seconds),
            Column::Reads => rate(|rates| rates.reads),
            Column::Writes => rate(|rates| rates.writes),
            Column::Flushes => rate(|rates| rates.flushes),
            Column::Bytes => rate(|rates| rates.guest_bytes),
            Column::Hit => rates.and_then(|rates| rates.hit_percent),
            Column::P50 => rates.and_then(|rates| rates.p50_us),
            Column::P99 => rates.and_then(|rates| rates.p99_us),
            Column::OriginRequests => rate(|rates| rates.origin_requests),
            Column::OriginBytes => rate(|rates| rates.origin_write_bytes),
            Column::Delay => count(volume.delay_us),
            Column::Clients => Some(volume.clients as f64),
        }
    }

    pub fn cell(self, row: &Row) -> String {
        let volume = &row.volume;
        let shown = |text: fn(f64) -> String| self.value(row).map_or("-".into(), text);
        match self {
            Column::Name => volume.name.clone(),
            Column::Policy => volume.policy.clone(),
            Column::State => volume.state.clone(),
            Column::Flags if volume.flags.is_empty() => "-".into(),
            Column::Flags => volume.flags.clone(),
            Column::Dirty | Column::Bytes | Column::OriginBytes => shown(short_bytes),
            Column::Age => shown(short_seconds),
            Column::P50 | Column::P99 | Column::Delay => shown(short_micros),
            Column::Hit => shown(|percent| format!("{percent:.0}")),
            Column::Reads | Column::Writes | Column::Flushes | Column::OriginRequests => {
                shown(short_count)
            }
            Column::Clients => volume.clients.to_string(),
        }
    }
}

/// At most five letters: three digits and a unit.
fn short(value: f64, factor: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    while value >= factor && unit + 1 < units.len() {
        value /= factor;
        unit += 1;
    }
    match (unit, value) {
        (_, value) if value > 0.0 && value < 9.95 => {
            let text = format!("{value:.1}");
            format!("{}{}", text.trim_end_matches(".0"), units[unit])
        }
        _ => format!("{value:.0}{}", units[unit]),
    }
}

pub fn short_count(value: f64) -> String {
    match value {
        0.0..99_999.5 if value >= 9.95 || value == 0.0 => format!("{value:.0}"),
        0.0..9.95 => short(value, 1000.0, &[""]),
        _ => short(value, 1000.0, &["", "k", "M", "G"]),
    }
}

pub fn short_bytes(value: f64) -> String {
    short(value, 1024.0, &["", "K", "M", "G", "T", "P"])
}

pub fn short_micros(value: f64) -> String {
    match value {
        0.0..1e6 => short(value, 1000.0, &["us", "ms"]),
        _ => short(value / 1e6, 1000.0, &["s"]),
    }
}

pub fn short_seconds(value: f64) -> String {
    let seconds = value as u64;
    match seconds {
        0..100 => format!("{seconds}s"),
        100..6_000 => format!("{}m", seconds / 60),
        6_000..360_000 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let counts = [0.0, 0.4, 3.0, 12.6, 99_999.0, 123_456.0, 4.2e6].map(short_count);
        assert_eq!(counts, ["0", "0.4", "3", "13", "99999", "123k", "4.2M"]);
        let bytes = [0.0, 512.0, 1536.0, 104_857_600.0, 6e12].map(short_bytes);
        assert_eq!(bytes, ["0", "512", "1.5K", "100M", "5.5T"]);
        let micros = [85.0, 1024.0, 65_536.0, 2_097_152.0].map(short_micros);
        assert_eq!(micros, ["85us", "1ms", "66ms", "2.1s"]);
        let seconds = [7.0, 130.0, 7_300.0, 400_000.0].map(short_seconds);
        assert_eq!(seconds, ["7s", "2m", "2h", "4d"]);
    }

    #[test]
    fn a_wider_terminal_loses_no_column_and_no_line_is_too_long() {
        let mut before = 0;
        for width in 20..220 {
            let columns = that_fit(width, 40);
            let used: usize = columns.iter().map(|(_, width)| width + 1).sum();
            assert!(used <= width + 1, "{used} in {width}");
            assert!(columns.len() >= before, "{width}");
            before = columns.len();
            assert_eq!(columns[0].0.column, Column::Name);
        }
        assert_eq!(before, ALL.len());
    }

    #[test]
    fn every_head_fits_into_its_column() {
        for shape in ALL {
            // With the arrow of the sorted one.
            assert!(shape.head.len() <= shape.width, "{}", shape.head);
        }
    }
}
