//! What the COWCache paper prints, and the baseline held against it.
//!
//! Always true: these numbers are compared with and are never a result; nothing is compared with a
//! baseline that is not within [`OFF_MAX`] of the paper's table 1. Gigabytes of the paper are GiB:
//! a million clusters of 64 KiB are its 61 GB. Deliberately absent: throughput, which a figure
//! shows and an engine in virtual time does not measure.

use super::load::{DISK_BYTES, Writes};
use super::side::DEPTH;
use crate::replay::machine::Ask;
use host::error::{Error, Result};
use serde_json::{Value, json};
use workload::stacked::{CLUSTER_BYTES, Shape, Stacked};

pub const GIB: f64 = (1_u64 << 30) as f64;
/// Of a printed figure, by so much the baseline's may differ.
pub const OFF_MAX: f64 = 0.05;
/// Requests of the paper's micro benchmarks.
pub const REQUESTS: u64 = 1_000_000;

/// One row of table 1; of two numbers the first is TRDCache's, the second COWCache's.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    pub ram_mib: u64,
    pub hit_percent: (f64, f64),
    pub read_gib: (f64, f64),
    pub written_gib: (f64, f64),
}

const fn tables(
    ram_mib: u64,
    hit_percent: (f64, f64),
    read_gib: (f64, f64),
    written_gib: (f64, f64),
) -> Tables {
    Tables {
        ram_mib,
        hit_percent,
        read_gib,
        written_gib,
    }
}

pub const TABLE_1: [Tables; 5] = [
    tables(1, (33.6, 75.1), (119.64, 0.35), (61.15, 0.47)),
    tables(32, (74.7, 83.0), (45.66, 0.24), (46.61, 0.47)),
    tables(64, (83.1, 90.4), (30.39, 0.14), (31.95, 0.47)),
    tables(96, (91.6, 96.6), (15.13, 0.05), (18.08, 0.47)),
    tables(128, (100.0, 100.0), (0.0, 0.0), (4.95, 0.47)),
];

/// One row of table 2.
#[derive(Clone, Copy, Debug)]
pub struct Oltp {
    pub name: &'static str,
    pub ram_mib: u64,
    pub tables: Tables,
    pub data_gib: (f64, f64),
}

impl Oltp {
    /// Flash bytes of COWCache for each of TRDCache.
    pub fn ratio(&self) -> f64 {
        let all = |data: f64, tables: f64| data + tables;
        all(self.data_gib.1, self.tables.written_gib.1)
            / all(self.data_gib.0, self.tables.written_gib.0)
    }
}

pub const TABLE_2: [Oltp; 4] = [
    Oltp {
        name: "OLTP2-1",
        ram_mib: 1,
        tables: tables(1, (39.8, 69.9), (87.46, 0.28), (21.9, 0.16)),
        data_gib: (38.75, 13.66),
    },
    Oltp {
        name: "OLTP2-8",
        ram_mib: 8,
        tables: tables(8, (100.0, 100.0), (0.0, 0.0), (23.84, 0.19)),
        data_gib: (46.48, 17.08),
    },
    Oltp {
        name: "OLTP8-1",
        ram_mib: 1,
        tables: tables(1, (31.4, 56.3), (90.05, 0.33), (20.97, 0.17)),
        data_gib: (41.31, 13.19),
    },
    Oltp {
        name: "OLTP8-8",
        ram_mib: 8,
        tables: tables(8, (100.0, 100.0), (0.0, 0.0), (21.5, 0.16)),
        data_gib: (48.13, 20.75),
    },
];

/// The baseline's row of table 1, by the mapper alone and with the paper's number of requests.
#[derive(Clone, Copy, Debug)]
pub struct Calibrated {
    pub printed: Tables,
    pub hit_percent: f64,
    pub read_gib: f64,
    pub written_gib: f64,
    pub misses_per_request: f64,
}

impl Calibrated {
    fn of(printed: Tables, seed: u64) -> Calibrated {
        let mut mapper = Stacked::new(Shape {
            disk_bytes: DISK_BYTES,
            table_ram_bytes: printed.ram_mib << 20,
            in_flight: DEPTH,
        });
        let load = Writes {
            disk_bytes: DISK_BYTES,
            bytes: CLUSTER_BYTES,
            unaligned: false,
        };
        let mut requests = Vec::new();
        for ask in load.asks(REQUESTS, seed) {
            if let Ask::Write { sector, sectors } = ask {
                mapper.write(sector, sectors, &mut requests);
            }
            requests.clear();
        }
        mapper.flush(&mut requests);
        let counts = mapper.counts();
        Calibrated {
            printed,
            hit_percent: 100.0 * (1.0 - counts.misses as f64 / counts.lookups as f64),
            read_gib: counts.table_read_bytes as f64 / GIB,
            written_gib: counts.table_write_bytes as f64 / GIB,
            misses_per_request: counts.misses as f64 / counts.requests as f64,
        }
    }

    /// What was found, what is printed, and what it is.
    fn pairs(&self) -> [(f64, f64, &'static str); 3] {
        let printed = &self.printed;
        [
            (self.hit_percent, printed.hit_percent.0, "hit ratio, %"),
            (self.read_gib, printed.read_gib.0, "table reads, GiB"),
            (self.written_gib, printed.written_gib.0, "table writes, GiB"),
        ]
    }

    /// The farthest from what is printed, as a part of that.
    pub fn off(&self) -> f64 {
        let pairs = self.pairs();
        let off = pairs.iter().filter(|it| it.1 > 0.0);
        off.map(|(found, printed, _)| (found / printed - 1.0).abs())
            .fold(0.0, f64::max)
    }

    pub fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.printed.ram_mib.to_string()];
        for (found, printed, _) in self.pairs() {
            cells.push(format!("{found:.2}"));
            cells.push(format!("{printed:.2}"));
        }
        cells.push(format!("{:.3}", self.misses_per_request));
        cells.push(format!("{:.1} %", 100.0 * self.off()));
        cells
    }

    pub const HEAD: [&'static str; 9] = [
        "RAM, MiB",
        "hit ratio, %",
        "paper",
        "table reads, GiB",
        "paper",
        "table writes, GiB",
        "paper",
        "misses per request",
        "farthest off",
    ];

    pub fn document(&self) -> Value {
        let pairs = self.pairs().map(
            |(found, printed, what)| json!({ "what": what, "found": found, "paper": printed }),
        );
        json!({
            "ram_bytes": self.printed.ram_mib << 20,
            "figures": pairs,
            "misses_per_request": self.misses_per_request,
            "off": self.off(),
        })
    }
}

/// The baseline against table 1, or an error if it is not the paper's.
pub fn calibrate(seed: u64) -> Result<Vec<Calibrated>> {
    let rows: Vec<Calibrated> = TABLE_1.map(|row| Calibrated::of(row, seed)).into();
    for row in &rows {
        if row.off() > OFF_MAX {
            let (ram, off) = (row.printed.ram_mib, 100.0 * row.off());
            return Err(Error::failed(format!(
                "bench cow: the baseline with {ram} MiB for tables is {off:.1} % off the paper's \
                 table 1, more than {:.0} %: nothing is compared with it",
                100.0 * OFF_MAX
            )));
        }
    }
    Ok(rows)
}
