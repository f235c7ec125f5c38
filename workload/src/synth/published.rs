//! What others have measured on desktops: the figures that the generator is made from.
//!
//! Owns Capo's six peaks (tables 1 and 3) and the figures of single phases. Always true: numbers
//! stand here once, with their source. Deliberately absent: how they are reached.

pub const SECOND_NS: u64 = 1_000_000_000;
pub const DAY_S: u64 = 86_400;
pub const WEEK_S: u64 = 7 * DAY_S;
/// Capo's office.
pub const DESKTOPS: u32 = 55;
/// Of them in use from day to day.
pub const ACTIVE: u32 = 27;

/// A peak of the office's week.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Period {
    pub name: &'static str,
    /// Since the week's beginning, Thursday 0:00.
    pub from_ns: u64,
    pub duration_ns: u64,
    /// Shares of writes, by requests and by bytes.
    pub write_requests: f64,
    pub write_bytes: f64,
    /// Of the desktops, those that make 5 % of the peak or more.
    pub heavy_desktops: f64,
    /// Reads that were seen before, by the desktop and by any.
    pub seen_by_desktop: f64,
    pub seen_by_cluster: f64,
    /// At a server without a cache, of 55 desktops.
    pub requests: u64,
    pub requests_per_second_max: u64,
    /// The same behind a write-through cache: writes, and reads that nobody has kept.
    pub passing_per_second_max: u64,
}

const fn period(
    name: &'static str,
    (day, hour, minute, minutes): (u64, u64, u64, u64),
    (write_requests, write_bytes, heavy_desktops): (u64, u64, u64),
    (seen_by_desktop, seen_by_cluster): (u64, u64),
    (requests, requests_per_second_max, passing_per_second_max): (u64, u64, u64),
) -> Period {
    Period {
        name,
        from_ns: (day * DAY_S + hour * 3600 + minute * 60) * SECOND_NS,
        duration_ns: minutes * 60 * SECOND_NS,
        write_requests: write_requests as f64 / 100.0,
        write_bytes: write_bytes as f64 / 100.0,
        heavy_desktops: heavy_desktops as f64 / 100.0,
        seen_by_desktop: seen_by_desktop as f64 / 100.0,
        seen_by_cluster: seen_by_cluster as f64 / 100.0,
        requests,
        requests_per_second_max,
        passing_per_second_max,
    }
}

const FRIDAY: u64 = 1;
const MONDAY: u64 = 4;
const TUESDAY: u64 = 5;
const WEDNESDAY: u64 = 6;

/// In the order of the tables: the second one is the first in time.
pub const PEAKS: [Period; 6] = [
    period(
        "Mon 8:30",
        (MONDAY, 8, 30, 15),
        (50, 22, 26),
        (81, 91),
        (262_590, 2307, 893),
    ),
    period(
        "Fri 8:30",
        (FRIDAY, 8, 30, 30),
        (52, 22, 29),
        (88, 97),
        (561_894, 2516, 937),
    ),
    period(
        "Tue 9:15",
        (TUESDAY, 9, 15, 15),
        (64, 43, 29),
        (78, 99),
        (143_468, 1302, 876),
    ),
    period(
        "Mon 14:00",
        (MONDAY, 14, 0, 30),
        (62, 41, 7),
        (59, 99),
        (450_914, 1887, 910),
    ),
    period(
        "Tue 14:40",
        (TUESDAY, 14, 40, 20),
        (69, 52, 26),
        (77, 97),
        (159_736, 1214, 890),
    ),
    period(
        "Wed 16:00",
        (WEDNESDAY, 16, 0, 15),
        (60, 37, 26),
        (99, 99),
        (72_082, 2185, 1155),
    ),
];

/// Of a boot: reads and their blocks of 4 KiB, 190 MiB (LSVD's measurements).
pub const BOOT_READS: u64 = 7163;
pub const BOOT_BLOCKS: u64 = 190 << 8;
/// Of requests while booting (Windows 7).
pub const BOOT_WRITES: f64 = 0.16;
/// It takes 6 to 7 seconds where storage does not hold it up.
pub const BOOT_MS: u64 = 6500;

/// Requests per second of one desktop, writes among them, and bytes of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    pub low: f64,
    pub high: f64,
    pub writes: f64,
    pub read_bytes: f64,
    pub write_bytes: f64,
}

pub const LOGIN: Phase = Phase {
    low: 8.0,
    high: 13.0,
    writes: 0.50,
    read_bytes: 36_000.0,
    write_bytes: 10_000.0,
};
const STEADY: Phase = Phase {
    low: 3.0,
    high: 4.0,
    writes: 0.75,
    read_bytes: 18_000.0,
    write_bytes: 10_000.0,
};
pub const TASK: Phase = STEADY;
pub const KNOWLEDGE: Phase = Phase {
    low: 8.0,
    high: 10.0,
    ..STEADY
};
pub const HEAVY: Phase = Phase {
    low: 14.0,
    high: 20.0,
    ..STEADY
};

/// Of the office's whole week.
pub const WEEK_WRITES: f64 = 0.65;
pub const WEEK_WRITE_BYTES: f64 = 0.35;
/// Per desktop after a day; a plateau from then on.
pub const DIVERGED_BYTES: f64 = 1e9;

/// Requests of at most so many bytes are small.
pub const SMALL_BYTES: u64 = 8192;
/// Of a kind of requests, those that begin where one of the last 32 streams of their disk and
/// direction ended. VMFleet's desktops write 32 KiB, 80 % of it sequential, and read 8 KiB, 20 % of
/// it sequential; all else was measured on a virtual machine's disk (CloudPhysics) and, reads
/// only, on a desktop's (P3 of the ARC paper).
pub const SMALL_WRITES_SEQUENTIAL: (f64, f64) = (0.330, 0.330);
pub const LARGE_WRITES_SEQUENTIAL: (f64, f64) = (0.80, 0.827);
pub const SMALL_READS_SEQUENTIAL: (f64, f64) = (0.179, 0.203);
pub const LARGE_READS_SEQUENTIAL: (f64, f64) = (0.361, 0.791);
/// Of what such requests write to a disk in ten minutes: stretches that neither touch nor overlap,
/// for each request. Measured on the virtual machine's disk, with the ten minutes beginning at
/// four different times.
pub const SMALL_WRITES_STRETCHES: (f64, f64) = (0.212, 0.215);
pub const LARGE_WRITES_STRETCHES: (f64, f64) = (0.054, 0.084);
