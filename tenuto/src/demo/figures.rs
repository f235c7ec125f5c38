//! The figures of both runs side by side: for the table, the page, and scripts.
//!
//! Always true: a figure is a number that was measured, or nothing; a ratio is of two of them.

use super::host::{CACHE_BYTES, RAM_BYTES, Run, SAN, STAGE_BYTES};
use super::stats::{Kind, median, millis};
use super::{Drove, Report};
use serde_json::{Value, json};
use std::time::Duration;

const MIB: f64 = (1 << 20) as f64;
/// Ratios nearer to one are called the same.
const SAME: f64 = 1.05;

/// A larger ratio of bounds says no more than that it is large.
const CLASSES_MAX: f64 = 100.0;

/// One line of the table.
pub struct Figure {
    pub name: String,
    /// Without cache, with cache.
    pub values: [Option<f64>; 2],
    decimals: usize,
    /// The values are upper bounds.
    at_most: bool,
}

impl Figure {
    pub fn new(name: &str, values: [Option<f64>; 2], decimals: usize) -> Figure {
        Figure {
            name: name.into(),
            values,
            decimals,
            at_most: false,
        }
    }

    /// Of values that are upper bounds.
    pub fn at_most(self, at_most: bool) -> Figure {
        Figure { at_most, ..self }
    }

    pub fn text(&self, which: usize) -> String {
        let bound = if self.at_most { "<= " } else { "" };
        self.values[which].map_or("-".into(), |value| {
            // What is known by its class may be far below what the decimals show.
            let decimals = match self.at_most && value < 0.1 {
                true => 3,
                false => self.decimals,
            };
            format!("{bound}{}", grouped(value, decimals))
        })
    }

    /// How much less the cache needs, in words.
    pub fn ratio(&self) -> String {
        let [Some(uncached), Some(cached)] = self.values else {
            return String::new();
        };
        if uncached == 0.0 && cached == 0.0 {
            return String::new();
        }
        let (more, word) = match uncached >= cached {
            true => (uncached / cached, "less"),
            false => (cached / uncached, "more"),
        };
        match more {
            more if !more.is_finite() && word == "less" => "none left".into(),
            more if !more.is_finite() => String::new(),
            more if more < SAME => "same".into(),
            more if self.at_most && more > CLASSES_MAX => {
                format!("> {} x {word}", grouped(CLASSES_MAX, 0))
            }
            more if more < 10.0 => format!("{more:.1} x {word}"),
            more => format!("{} x {word}", grouped(more, 0)),
        }
    }
}

/// A number with its thousands set apart.
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = match text.split_once('.') {
        Some((whole, rest)) => (whole, format!(".{rest}")),
        None => (text.as_str(), String::new()),
    };
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + &rest
}

impl Drove {
    pub fn is_guests(&self) -> bool {
        self.guests.is_some()
    }
}

impl Run {
    /// Of the clones that boot together: of real guests one boots alone before, and the guest of
    /// the kept disk, which comes last, has an image of its own.
    fn together(&self, drove: &Drove) -> impl Iterator<Item = Duration> {
        let alone = usize::from(drove.is_guests() && drove.clones > 1);
        let clones = &self.work.boots[alone..drove.clones];
        clones.iter().map(|(from, to)| *to - *from)
    }

    pub fn boot_median(&self, drove: &Drove) -> Option<Duration> {
        median(self.together(drove))
    }

    fn boot_max(&self, drove: &Drove) -> Option<Duration> {
        self.together(drove).max()
    }

    fn boot_kept(&self) -> Option<Duration> {
        self.work.boots.last().map(|(from, to)| *to - *from)
    }

    /// Requests at the origin until all had booted, by the first look after it.
    fn boot_reads(&self) -> u64 {
        let booted = self.work.boots.iter().map(|boot| boot.1).max();
        let after = self.looks.iter().find(|look| Some(look.at) >= booted);
        after.map_or(0, |look| look.totals.origin.reads)
    }

    pub fn works_median(&self) -> Option<Duration> {
        median(self.work.works.iter().copied())
    }
}

impl Report {
    pub fn headline(&self) -> String {
        format!(
            "{} throw-away clones of one image and one disk that is kept; simulated SAN: {} ms, {} \
             requests/s for all",
            self.drove.clones,
            SAN.latency.as_millis(),
            grouped(f64::from(SAN.iops.unwrap_or(0)), 0)
        )
    }

    /// What drove the disks.
    pub fn driver(&self) -> String {
        match (&self.drove.guests, &self.drove.missing) {
            (Some((accelerator, kernel)), _) => format!(
                "{} real Linux guests ({kernel}) booted in QEMU, {}",
                self.drove.clones + 1,
                match *accelerator {
                    "kvm" => "with KVM",
                    _ => "without hardware acceleration",
                }
            ),
            (None, missing) => format!(
                "no guest was booted: {}; the built-in client drove the same disks through their \
                 sockets",
                missing.as_deref().unwrap_or_default()
            ),
        }
    }

    /// What was checked, and what was cut.
    pub fn notes(&self) -> Vec<String> {
        let run = &self.cached;
        let mut notes = vec![self.driver()];
        let compared = grouped(run.verified_blocks as f64, 0);
        let destaged = run.destage.as_secs_f64();
        notes.push(match run.written_blocks {
            Some(written) => format!(
                "every read was compared with what had been written; what was left of the kept \
                 disk at the end was destaged in {destaged:.1} s, and its image holds exactly what \
                 was written: {compared} blocks compared, {} of them written",
                grouped(written as f64, 0)
            ),
            None => format!(
                "every guest checked each file it read against its checksum; what was left of the \
                 kept disk at the end was destaged in {destaged:.1} s, and its image has the \
                 SHA-256 that the guest's disk had ({compared} blocks)"
            ),
        });
        for (name, run) in [("without", &self.uncached), ("with", &self.cached)] {
            if let Some((done, asked)) = run.work.rounds
                && done < asked
            {
                notes.push(format!(
                    "cut: {name} the cache guests did {done} of {asked} rounds of work in the time \
                     they had"
                ));
            }
        }
        if !run.latency.exact {
            notes.push(
                "latencies are the daemon's, from the arrival of a request to its answer, in \
                 classes of powers of two"
                    .into(),
            );
        }
        notes
    }

    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = self.times();
        figures.extend(self.at_origin());
        for kind in Kind::ALL {
            for (at, percent) in [50, 99].into_iter().enumerate() {
                let name = format!("{} p{percent}, ms", kind.name());
                let figure = self.figure(&name, 2, |run| {
                    run.latency.quantiles[kind as usize][at].map(millis)
                });
                figures.push(figure.at_most(!self.cached.latency.exact));
            }
        }
        figures.extend(self.of_the_host());
        figures
    }

    fn figure(&self, name: &str, decimals: usize, value: impl Fn(&Run) -> Option<f64>) -> Figure {
        Figure::new(name, [value(&self.uncached), value(&self.cached)], decimals)
    }

    fn times(&self) -> Vec<Figure> {
        let drove = &self.drove;
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let mut figures = Vec::new();
        if drove.is_guests() {
            figures.push(self.figure("first clone boots alone, s", 1, |run| {
                seconds(run.work.boots.first().map(|(from, to)| *to - *from))
            }));
        }
        let together = match drove.is_guests() {
            true => "the other clones boot together",
            false => "all clones boot together",
        };
        figures.push(self.figure(&format!("{together}, median, s"), 1, |run| {
            seconds(run.boot_median(drove))
        }));
        figures.push(self.figure(&format!("{together}, last, s"), 1, |run| {
            seconds(run.boot_max(drove))
        }));
        figures.push(self.figure("the kept disk's guest boots, s", 1, |run| {
            seconds(run.boot_kept())
        }));
        if drove.is_guests() {
            // The built-in client's requests come when they come; its work always takes as long.
            figures.push(self.figure("work of a guest, median, s", 1, |run| {
                seconds(run.works_median())
            }));
        }
        figures
    }

    fn at_origin(&self) -> Vec<Figure> {
        let count = |name: &str, value: &dyn Fn(&Run) -> u64| {
            self.figure(name, 0, |run| Some(value(run) as f64))
        };
        let mib = |name: &str, value: &dyn Fn(&Run) -> u64| {
            self.figure(name, 1, |run| Some(value(run) as f64 / MIB))
        };
        vec![
            count("origin reads during boots", &Run::boot_reads),
            count("origin reads", &|run| run.totals.origin.reads),
            mib("origin reads, MiB", &|run| run.totals.origin.read_bytes),
            count("origin writes", &|run| run.totals.origin.writes),
            mib("origin writes, MiB", &|run| run.totals.origin.write_bytes),
            mib("journal beside the image, MiB", &|run| {
                run.totals.origin.journal_bytes
            }),
            count("origin syncs", &|run| run.totals.origin.syncs),
        ]
    }

    fn of_the_host(&self) -> Vec<Figure> {
        let count = |name: &str, value: &dyn Fn(&Run) -> u64| {
            self.figure(name, 0, |run| Some(value(run) as f64))
        };
        let mib = |name: &str, value: &dyn Fn(&Run) -> u64| {
            self.figure(name, 1, |run| Some(value(run) as f64 / MIB))
        };
        vec![
            count("reads of the guests", &|run| run.totals.reads),
            count("writes of the guests", &|run| run.totals.writes),
            count("flushes of the guests", &|run| run.totals.flushes),
            mib("SSD written, MiB", &|run| run.totals.flash_write_bytes),
            mib("SSD read, MiB", &|run| run.totals.flash_read_bytes),
            mib(
                "RAM of read tier, overlays and maps at the end, MiB",
                &|run| run.totals.ram_bytes,
            ),
            self.figure("the whole run, s", 1, |run| {
                Some((run.work.total + run.destage).as_secs_f64())
            }),
        ]
    }

    /// Sizes of the daemon and the length of it all.
    pub fn parameters(&self) -> Vec<String> {
        let mib = |bytes: u64| grouped(bytes as f64 / MIB, 0);
        vec![
            format!("seed {}", self.seed),
            format!(
                "cache of {} MiB on {}, read tier of {} MiB, write stage of {} MiB",
                mib(CACHE_BYTES),
                std::env::temp_dir().display(),
                mib(RAM_BYTES),
                mib(STAGE_BYTES)
            ),
            format!("the demonstration took {} s", self.took.as_secs()),
        ]
    }

    pub fn document(&self) -> Value {
        let guests = self.drove.guests.as_ref();
        json!({
            "seed": self.seed,
            "guests": self.drove.clones + 1,
            "clones": self.drove.clones,
            "driver": match guests {
                Some(_) => "qemu",
                None => "built-in client",
            },
            "missing": self.drove.missing,
            "accelerator": guests.map(|guests| guests.0),
            "kernel": guests.map(|guests| &guests.1),
            "san": {
                "latency_ms": SAN.latency.as_millis() as u64,
                "requests_per_second": SAN.iops,
            },
            "uncached": document(&self.uncached, &self.drove),
            "cached": document(&self.cached, &self.drove),
            "seconds": self.took.as_secs_f64(),
        })
    }
}

fn document(run: &Run, drove: &Drove) -> Value {
    let latency = |kind: Kind| {
        let [p50, p99] = run.latency.quantiles[kind as usize];
        let micros = |latency: Option<Duration>| latency.map(|it| it.as_micros() as u64);
        json!({ "p50": micros(p50), "p99": micros(p99) })
    };
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let totals = &run.totals;
    let boots: Vec<Value> = run
        .work
        .boots
        .iter()
        .map(|(from, to)| json!({ "start": from.as_secs_f64(), "end": to.as_secs_f64() }))
        .collect();
    json!({
        "boot_seconds": seconds(run.work.boots.iter().map(|boot| boot.1).max()),
        "boot_median_seconds": seconds(run.boot_median(drove)),
        "boot_max_seconds": seconds(run.boot_max(drove)),
        "boots": boots,
        "work_median_seconds": seconds(run.works_median()),
        "rounds": run.work.rounds.map(|(done, asked)| json!({ "done": done, "asked": asked })),
        "seconds": run.work.total.as_secs_f64(),
        "requests": totals.reads + totals.writes + totals.flushes,
        "reads": totals.reads,
        "writes": totals.writes,
        "flushes": totals.flushes,
        "bytes": totals.read_bytes + totals.write_bytes,
        "latency_us": {
            "read": latency(Kind::Read),
            "write": latency(Kind::Write),
            "flush": latency(Kind::Flush),
        },
        "latency_exact": run.latency.exact,
        "origin": {
            "reads": totals.origin.reads,
            "boot_reads": run.boot_reads(),
            "read_bytes": totals.origin.read_bytes,
            "writes": totals.origin.writes,
            "write_bytes": totals.origin.write_bytes,
            "journal_bytes": totals.origin.journal_bytes,
            "syncs": totals.origin.syncs,
            "errors": totals.origin.errors,
        },
        "ssd": {
            "read_bytes": totals.flash_read_bytes,
            "write_bytes": totals.flash_write_bytes,
        },
        "ram_bytes": totals.ram_bytes,
        "destage_seconds": run.destage.as_secs_f64(),
        "verified_blocks": run.verified_blocks,
        "written_blocks": run.written_blocks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(uncached: f64, cached: f64) -> Figure {
        Figure::new("origin reads", [Some(uncached), Some(cached)], 0)
    }

    #[test]
    fn a_ratio_says_what_the_cache_makes_of_it() {
        assert_eq!(figure(32_269.0, 1_257.0).ratio(), "26 x less");
        assert_eq!(figure(30.0, 12.0).ratio(), "2.5 x less");
        assert_eq!(figure(100.0, 98.0).ratio(), "same");
        assert_eq!(figure(10.0, 15.0).ratio(), "1.5 x more");
        assert_eq!(figure(10.0, 0.0).ratio(), "none left");
        assert_eq!(figure(0.0, 5.0).ratio(), "");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(grouped(1_234_567.891, 1), "1,234,567.9");
        assert_eq!(grouped(999.0, 0), "999");
        assert_eq!(grouped(0.04, 2), "0.04");
    }
}
