//! The experiments: which loads each has, and which figures of theirs are compared.
//!
//! Always true: both sides of a case get the same requests in the same order; targets are those of
//! the paper, or stricter. Deliberately absent: throughput.

use super::load::{Application, DISK_BYTES, Ratio, Writes};
use super::options::{Options, Part};
use super::paper::{GIB, Oltp, REQUESTS, TABLE_1, TABLE_2};
use super::section::{Case, Comparison, Section};
use super::side::{DEPTH, Destages, Kind, Measured, Setup, Side};
use crate::plot::{Axis, Curve, Scale, bars, chart};
use crate::replay::machine::Ask;
use engine::types::Policy;
use host::config::units::human_bytes;
use host::error::Result;
use image::create::Shape;
use workload::stacked::{CLUSTER_BYTES, TABLE_SPAN};

const KIB: u64 = 1 << 10;
/// As large as the paper's cache device, so that nothing is evicted.
const CACHE_BYTES: u64 = 400 << 30;
const CACHE_BYTES_MIN: u64 = 8 << 30;
/// All tables of the paper's disk.
const RAM_MIB_MAX: u64 = 128;

pub const BASELINE: Kind = Kind::Stacked(Policy::WriteBack);
const THROUGH: Kind = Kind::Stacked(Policy::WriteThrough);
pub const PLAIN: Kind = Kind::Mapped(Shape::Plain, Policy::WriteBack);
pub const EXTENDED: Kind = Kind::Mapped(Shape::Extended, Policy::WriteBack);
pub const PLAIN_THROUGH: Kind = Kind::Mapped(Shape::Plain, Policy::WriteThrough);
pub const EXTENDED_THROUGH: Kind = Kind::Mapped(Shape::Extended, Policy::WriteThrough);
const ALL: [Kind; 3] = [BASELINE, PLAIN, EXTENDED];

const NO_THROUGHPUT: &str = "Throughput of guests, which the paper's figure shows, is not measured \
    here: the engine runs in virtual time.";
const NO_WRITE_THROUGH: &str = "Write-through is measured for figure 10 alone.";

/// Of a load: reads find tables at the storage, and not all that is overwritten is saved.
const DESTAGES: u64 = 4;

type Load<'a> = dyn Fn() -> Box<dyn Iterator<Item = Ask>> + 'a;

/// Runs loads, and says so after each.
pub struct Runner<'a> {
    pub options: &'a Options,
    pub step: &'a mut dyn FnMut(),
}

/// How a load is served.
#[derive(Clone, Copy)]
struct Service<'a> {
    disk_bytes: u64,
    ram_bytes: u64,
    in_flight: usize,
    destages: u64,
    kinds: &'a [Kind],
}

impl Service<'_> {
    /// On a disk as large as the paper's.
    fn new(ram_mib: u64, kinds: &[Kind]) -> Service<'_> {
        Service {
            disk_bytes: DISK_BYTES,
            ram_bytes: ram_mib << 20,
            in_flight: DEPTH,
            destages: DESTAGES,
            kinds,
        }
    }
}

impl Runner<'_> {
    pub fn run(&mut self, part: Part) -> Result<Section> {
        match part {
            Part::Tables => self.tables(),
            Part::Sizes => self.sizes(),
            Part::Ratios => self.ratios(),
            Part::Oltp => self.oltp(),
            Part::Applications => self.applications(),
            Part::Days => self.days(),
            Part::Caches => self.caches(),
            Part::Memory => self.memory(),
        }
    }

    fn count(&self, at_scale_1: u64) -> u64 {
        ((at_scale_1 as f64 / self.options.scale) as u64).max(1)
    }

    /// Of micro benchmarks, so that as many requests as in the paper come to each table.
    fn disk_bytes(&self) -> u64 {
        let scaled = (DISK_BYTES as f64 / self.options.scale) as u64;
        scaled.next_multiple_of(TABLE_SPAN)
    }

    fn disk(&self) -> String {
        human_bytes(self.disk_bytes())
    }

    /// On a disk that is divided by the scale, with as large a part of its tables in RAM, and as
    /// many requests under way for each of them; of the smallest RAM a larger part.
    fn scaled<'a>(&self, ram_mib: u64, kinds: &'a [Kind]) -> Service<'a> {
        let ram_bytes = ((ram_mib << 20) as f64 / self.options.scale) as u64;
        let ram_bytes = ram_bytes.next_multiple_of(CLUSTER_BYTES).max(1 << 20);
        Service {
            disk_bytes: self.disk_bytes(),
            ram_bytes,
            in_flight: (DEPTH * ram_bytes as usize).div_ceil((ram_mib as usize) << 20),
            ..Service::new(ram_mib, kinds)
        }
    }

    fn cache_bytes(&self) -> u64 {
        let scaled = (CACHE_BYTES as f64 / self.options.scale) as u64;
        scaled.max(CACHE_BYTES_MIN)
    }

    fn case(
        &mut self,
        name: impl Into<String>,
        service: Service<'_>,
        load: &Load<'_>,
    ) -> Result<Case> {
        let Service {
            disk_bytes,
            ram_bytes,
            in_flight,
            destages,
            kinds,
        } = service;
        let mut sides = Vec::new();
        let every = load().count() as u64 / destages;
        for kind in kinds {
            let mut side = Side::new(&Setup {
                kind: *kind,
                cache_bytes: self.cache_bytes(),
                disk_bytes,
                table_ram_bytes: ram_bytes,
                in_flight,
                dirty_limit_bytes: self.cache_bytes(),
                destages: Destages::Every(every),
                seed: self.options.seed,
            })?;
            for ask in load() {
                side.ask(ask)?;
            }
            sides.push((*kind, side.finish()?));
            (self.step)();
        }
        Ok(Case {
            name: name.into(),
            sides,
        })
    }

    /// Random writes of one size.
    fn writes(&mut self, name: &str, load: Writes, service: Service<'_>) -> Result<Case> {
        let (count, seed) = (self.count(REQUESTS), self.options.seed);
        self.case(name, service, &|| Box::new(load.asks(count, seed)))
    }

    fn tables(&mut self) -> Result<Section> {
        let load = Writes {
            disk_bytes: self.disk_bytes(),
            bytes: 64 * KIB,
            unaligned: false,
        };
        let (mut cases, mut comparisons) = (Vec::new(), Vec::new());
        for row in TABLE_1 {
            let name = format!("{} MiB", row.ram_mib);
            let service = self.scaled(row.ram_mib, &[BASELINE, PLAIN]);
            let case = self.writes(&name, load, service)?;
            let (baseline, ours) = both(&case, PLAIN);
            let printed = row.written_gib.1 / row.written_gib.0;
            comparisons.push(Comparison {
                case: name.clone(),
                what: "tables to flash, GiB",
                baseline: baseline.flash_table_bytes as f64 / GIB,
                ours: ours.flash_table_bytes as f64 / GIB,
                paper: Some(printed),
                target: Some(printed),
            });
            comparisons.push(Comparison {
                case: name,
                what: "misses per request",
                baseline: baseline.misses_per_request(),
                ours: ours.misses_per_request(),
                paper: (row.hit_percent.0 < 100.0)
                    .then(|| (100.0 - row.hit_percent.1) / (100.0 - row.hit_percent.0)),
                target: Some(1.0 / 3.0),
            });
            comparisons.push(Comparison {
                case: case.name.clone(),
                what: "the same, destages with them",
                baseline: baseline.misses_per_request(),
                ours: ours.misses_per_request() + ours.later_per_request(),
                paper: None,
                target: None,
            });
            cases.push(case);
        }
        Ok(Section {
            name: "f9, t1",
            title: "Tables of the image, by RAM for them",
            input: format!(
                "{} random writes of 64 KiB, each a whole cluster, to a disk of {}",
                self.count(REQUESTS),
                self.disk()
            ),
            plots: vec![table_plot(&cases)],
            cases,
            comparisons,
            notes: vec![
                NO_THROUGHPUT.into(),
                format!(
                    "Tenuto's writes change no table before their destage, so none is missed or \
                     written to flash by them. Each of {DESTAGES} destages reads every table that \
                     it changes, once and whole; that is in the column 'later', and in the \
                     journal."
                ),
                "Disk and RAM for tables are divided by the scale as well, but there is at least \
                 1 MiB for tables."
                    .into(),
            ],
        })
    }

    fn sizes(&mut self) -> Result<Section> {
        const ROWS: [(&str, u64, bool, Option<f64>); 6] = [
            ("4 KiB", 4, false, Some(0.033)),
            ("8 KiB", 8, false, None),
            ("16 KiB", 16, false, None),
            ("32 KiB", 32, false, None),
            ("64 KiB, aligned", 64, false, Some(1.0)),
            ("64 KiB, not aligned", 64, true, None),
        ];
        let (mut cases, mut comparisons) = (Vec::new(), Vec::new());
        let mut add = |case: Case, paper: Option<f64>, target: Option<f64>| {
            comparisons.push(flash(&case, paper, target));
            comparisons.push(network(&case, PLAIN, "network, 64 KiB clusters, GiB"));
            comparisons.push(network(&case, EXTENDED, "network, subclusters, GiB"));
            cases.push(case);
        };
        for (name, kib, unaligned, printed) in ROWS {
            let load = Writes {
                disk_bytes: self.disk_bytes(),
                bytes: kib * KIB,
                unaligned,
            };
            let kinds = [
                BASELINE,
                THROUGH,
                PLAIN,
                EXTENDED,
                PLAIN_THROUGH,
                EXTENDED_THROUGH,
            ];
            let case = self.writes(name, load, self.scaled(RAM_MIB_MAX, &kinds))?;
            // Nothing is copied at 64 KiB, aligned: there the paper's sides are equal.
            add(case, printed, printed.filter(|it| *it < 1.0));
        }
        let load = Writes {
            disk_bytes: self.disk_bytes(),
            bytes: 4 * KIB,
            unaligned: false,
        };
        let name = "4 KiB, 1 MiB for tables";
        let case = self.writes(name, load, self.scaled(1, &ALL))?;
        add(case, Some(0.025), Some(0.025));
        Ok(Section {
            name: "f10",
            title: "Copy-on-write, by size of the writes",
            input: self.input("random writes"),
            plots: vec![flash_plot(&cases)],
            cases,
            comparisons,
            notes: vec![
                NO_THROUGHPUT.into(),
                "In write-through no write goes to the log: what Tenuto writes to flash are clean \
                 blocks alone, and its network is that of writes that are answered when the image \
                 refers to them."
                    .into(),
                "The paper prints a reduction of 96.7 % at 4 KiB (0.033) and 40 times the bytes \
                 with 1 MiB for tables (0.025); of the sizes between it shows bars alone."
                    .into(),
            ],
        })
    }

    fn input(&self, asked: &str) -> String {
        let (count, disk) = (self.count(REQUESTS), self.disk());
        format!("{count} {asked} to a disk of {disk} whose tables fit into RAM")
    }

    fn ratios(&mut self) -> Result<Section> {
        let (mut cases, mut comparisons) = (Vec::new(), Vec::new());
        for (name, writes) in [("2:1", 2), ("1:2", 1)] {
            for percent in [80, 60, 40] {
                let load = Ratio {
                    disk_bytes: self.disk_bytes(),
                    cow_per_mille: percent * 10,
                    writes,
                };
                let (count, seed) = (self.count(REQUESTS), self.options.seed);
                let case = self.case(
                    format!("{percent} %, writes to reads {name}"),
                    self.scaled(RAM_MIB_MAX, &ALL),
                    &|| Box::new(load.asks(count, seed)),
                )?;
                comparisons.push(flash(&case, None, None));
                comparisons.push(network(&case, PLAIN, "network, 64 KiB clusters, GiB"));
                comparisons.push(network(&case, EXTENDED, "network, subclusters, GiB"));
                cases.push(case);
            }
        }
        Ok(Section {
            name: "f11",
            title: "Share of writes that allocate",
            input: self.input("random requests of 4 KiB"),
            plots: vec![flash_plot(&cases)],
            cases,
            comparisons,
            notes: vec![
                NO_THROUGHPUT.into(),
                NO_WRITE_THROUGH.into(),
                "The paper prints no bytes of this experiment.".into(),
            ],
        })
    }

    fn application(&mut self, load: Application, service: Service<'_>) -> Result<Case> {
        let (count, seed) = (self.count(load.writes), self.options.seed);
        let asks = || -> Box<dyn Iterator<Item = Ask>> { Box::new(load.asks(count, seed)) };
        self.case(load.name, service, &asks)
    }

    fn oltp(&mut self) -> Result<Section> {
        let (mut cases, mut comparisons) = (Vec::new(), Vec::new());
        for (row, load) in TABLE_2.iter().zip(OLTP) {
            let case = self.application(load, Service::new(row.ram_mib, &ALL))?;
            comparisons.push(flash(&case, Some(row.ratio()), Some(row.ratio())));
            comparisons.push(oltp_tables(&case, row));
            comparisons.push(oltp_misses(&case, row));
            comparisons.push(network(&case, EXTENDED, "network, subclusters, GiB"));
            cases.push(case);
        }
        let notes = vec![
            NO_THROUGHPUT.into(),
            NO_WRITE_THROUGH.into(),
            "A stand-in for Filebench's OLTP: sizes and shares of allocating writes are the \
             paper's; reads and syncs are as many as its bytes of the baseline ask for, over 64 \
             GiB of the disk."
                .into(),
            stand_in(&cases, self.options.scale),
        ];
        Ok(Section {
            name: "f12, t2",
            title: "OLTP, synced after every few writes",
            input: "random writes and reads over 64 GiB, with syncs".into(),
            plots: vec![flash_plot(&cases)],
            cases,
            comparisons,
            notes,
        })
    }

    fn applications(&mut self) -> Result<Section> {
        let (mut cases, mut comparisons) = (Vec::new(), Vec::new());
        for (load, printed) in APPLICATIONS {
            let case = self.application(load, Service::new(RAM_MIB_MAX, &ALL))?;
            comparisons.push(flash(&case, Some(printed), Some(printed)));
            comparisons.push(network(&case, EXTENDED, "network, subclusters, GiB"));
            cases.push(case);
        }
        Ok(Section {
            name: "f13",
            title: "Varmail, Fileserver and YCSB-A",
            input: "writes and reads of the sizes of each application, with its syncs".into(),
            plots: vec![flash_plot(&cases)],
            cases,
            comparisons,
            notes: vec![
                NO_THROUGHPUT.into(),
                "Stand-ins: the paper says neither how much is written nor how much of it \
                 allocates. Sizes and syncs are those of the applications, and shares of \
                 allocating writes are chosen so that a cache that writes nothing but what guests \
                 write and read would be at the paper's figure; what is above it is the log's."
                    .into(),
            ],
        })
    }

    fn memory(&mut self) -> Result<Section> {
        let mut cases = Vec::new();
        let service = Service {
            destages: 1,
            ..self.scaled(RAM_MIB_MAX, &[PLAIN])
        };
        for (name, kib) in [("whole clusters", 64), ("scattered 4 KiB", 4)] {
            let load = Writes {
                disk_bytes: self.disk_bytes(),
                bytes: kib * KIB,
                unaligned: false,
            };
            cases.push(self.writes(name, load, service)?);
        }
        for load in [OLTP[2], APPLICATIONS[0].0] {
            cases.push(self.application(
                load,
                Service {
                    disk_bytes: DISK_BYTES,
                    ..service
                },
            )?);
        }
        cases.push(self.week()?);
        let parts = cases.iter().flat_map(|case| {
            let sides = case.sides.iter();
            sides.map(|(_, it)| index_parts(&case.name, it))
        });
        let parts: Vec<String> = parts.collect();
        Ok(Section {
            name: "memory",
            title: "RAM of the cache's index",
            input: "writes that stay dirty until all is destaged once, and a trace".into(),
            cases,
            comparisons: Vec::new(),
            notes: vec![
                "The paper's index takes 0.23 to 0.26 % of what is cached, or 0.14 to 0.17 % with \
                 counters of 4 bits, both without checksums. Wanted here: 0.14 % of full lines, \
                 0.20 % of traces; what is dirty costs more than what is clean, because each \
                 write is an extent of its own."
                    .into(),
                format!("{}.", parts.join("; ")),
            ],
            plots: Vec::new(),
        })
    }
}

/// How much of an index is there whatever is cached.
fn index_parts(case: &str, it: &Measured) -> String {
    let grown = it.index_bytes.saturating_sub(it.empty_index_bytes);
    format!(
        "{case}: index of {} for {} cached, {} of it when empty, {:.3} % without that",
        human_bytes(it.index_bytes),
        human_bytes(it.cached_bytes),
        human_bytes(it.empty_index_bytes),
        100.0 * grown as f64 / it.cached_bytes.max(1) as f64,
    )
}

/// As [`TABLE_2`] has them. What the baseline writes more than COWCache is what it copies, so it
/// says how many writes there were; the rest of COWCache's data is reads; tables tell of syncs.
pub(super) const OLTP: [Application; 4] = [
    oltp("OLTP2-1", 290_000, (2 * KIB, 731), (5680, 2)),
    oltp("OLTP2-8", 361_000, (2 * KIB, 688), (5700, 3)),
    oltp("OLTP8-1", 353_000, (8 * KIB, 745), (3900, 4)),
    oltp("OLTP8-8", 367_000, (8 * KIB, 699), (6410, 4)),
];

const fn oltp(
    name: &'static str,
    writes: u64,
    (write_bytes, cow_per_mille): (u64, u64),
    (reads, writes_per_sync): (u64, u64),
) -> Application {
    Application {
        name,
        writes,
        write_bytes,
        read_bytes: 8 * KIB,
        reads,
        cow_per_mille,
        span_bytes: 64 << 30,
        writes_per_sync,
    }
}

/// With the flash bytes of COWCache for each of TRDCache.
const APPLICATIONS: [(Application, f64); 3] = [
    (
        Application {
            name: "Varmail",
            writes: 500_000,
            write_bytes: 16 * KIB,
            read_bytes: 16 * KIB,
            reads: 1000,
            cow_per_mille: 34,
            span_bytes: 16 << 30,
            writes_per_sync: 4,
        },
        1.0 - 0.225,
    ),
    (
        Application {
            name: "Fileserver",
            writes: 500_000,
            write_bytes: 16 * KIB,
            read_bytes: 64 * KIB,
            reads: 500,
            cow_per_mille: 120,
            span_bytes: 64 << 30,
            writes_per_sync: 1000,
        },
        1.0 - 0.271,
    ),
    (
        Application {
            name: "YCSB-A",
            writes: 500_000,
            write_bytes: 16 * KIB,
            read_bytes: 16 * KIB,
            reads: 1000,
            cow_per_mille: 65,
            span_bytes: 64 << 30,
            writes_per_sync: 8,
        },
        1.0 - 0.352,
    ),
];

pub fn both(case: &Case, ours: Kind) -> (&Measured, &Measured) {
    let of = |kind| case.of(|it| it == kind).expect("it was run");
    (of(BASELINE), of(ours))
}

fn flash(case: &Case, paper: Option<f64>, target: Option<f64>) -> Comparison {
    let (baseline, ours) = both(case, PLAIN);
    Comparison {
        case: case.name.clone(),
        what: "flash, GiB",
        baseline: baseline.flash_write_bytes as f64 / GIB,
        ours: ours.flash_write_bytes as f64 / GIB,
        paper,
        target,
    }
}

fn network(case: &Case, kind: Kind, what: &'static str) -> Comparison {
    let (baseline, ours) = both(case, kind);
    Comparison {
        case: case.name.clone(),
        what,
        baseline: baseline.network_bytes() as f64 / GIB,
        ours: ours.network_bytes() as f64 / GIB,
        paper: None,
        target: None,
    }
}

fn oltp_tables(case: &Case, row: &Oltp) -> Comparison {
    let (baseline, ours) = both(case, PLAIN);
    let printed = row.tables.written_gib;
    Comparison {
        case: case.name.clone(),
        what: "tables to flash, GiB",
        baseline: baseline.flash_table_bytes as f64 / GIB,
        ours: ours.flash_table_bytes as f64 / GIB,
        paper: Some(printed.1 / printed.0),
        target: None,
    }
}

fn oltp_misses(case: &Case, row: &Oltp) -> Comparison {
    let (baseline, ours) = both(case, PLAIN);
    let (below, aware) = row.tables.hit_percent;
    Comparison {
        case: case.name.clone(),
        what: "misses per request",
        baseline: baseline.misses_per_request(),
        ours: ours.misses_per_request(),
        paper: (below < 100.0).then(|| (100.0 - aware) / (100.0 - below)),
        target: None,
    }
}

/// How near the stand-in's baseline comes to what the paper prints of its own.
fn stand_in(cases: &[Case], scale: f64) -> String {
    let rows = cases.iter().zip(TABLE_2).map(|(case, row)| {
        let (baseline, _) = both(case, PLAIN);
        let tables = baseline.flash_table_bytes;
        let beside = tables + baseline.header_bytes();
        let data = (baseline.flash_write_bytes - beside) as f64 / GIB * scale;
        format!(
            "{}: data {data:.1} and tables {:.1} GiB here, {} and {} in the paper",
            row.name,
            tables as f64 / GIB * scale,
            row.data_gib.0,
            row.tables.written_gib.0,
        )
    });
    let rows: Vec<String> = rows.collect();
    format!("The baseline at scale 1: {}.", rows.join("; "))
}

fn table_plot(cases: &[Case]) -> (String, String) {
    let ram = |at: usize| TABLE_1[at].ram_mib as f64;
    let each = |figure: &dyn Fn(usize) -> f64| -> Vec<(f64, f64)> {
        let points = (0..cases.len()).map(|at| (ram(at), figure(at)));
        points.collect()
    };
    let here = |kind: Kind, at: usize| {
        let measured = cases[at].of(|it| it == kind).expect("it was run");
        // For each of the paper's million requests.
        let written = measured.flash_table_bytes as f64 / measured.requests as f64;
        written * REQUESTS as f64 / GIB
    };
    let curves = [
        Curve::new(0, "TRDCache", each(&|at| here(BASELINE, at))),
        Curve::new(1, "TRDCache, paper", each(&|at| TABLE_1[at].written_gib.0)),
        Curve::new(2, "Tenuto", each(&|at| here(PLAIN, at))),
        Curve::new(3, "COWCache, paper", each(&|at| TABLE_1[at].written_gib.1)),
    ];
    let axis = |name| Axis {
        name,
        scale: Scale::Linear,
    };
    let plot = chart(
        axis("RAM for tables, MiB"),
        axis("GiB to flash for a million requests"),
        &curves,
    );
    ("Tables written to flash".into(), plot)
}

fn flash_plot(cases: &[Case]) -> (String, String) {
    let rows: Vec<(String, Vec<f64>)> = cases
        .iter()
        .map(|case| {
            let (baseline, ours) = both(case, PLAIN);
            let gib = |it: &Measured| it.flash_write_bytes as f64 / GIB;
            (case.name.clone(), vec![gib(baseline), gib(ours)])
        })
        .collect();
    let plot = bars("GiB written to flash", &["TRDCache", "Tenuto"], &rows);
    ("Written to flash".into(), plot)
}
