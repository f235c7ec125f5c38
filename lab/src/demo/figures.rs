//! The figures of all runs side by side: for the table, the page, and scripts.
//!
//! Always true: a figure is a number that was measured, or nothing; a ratio is of two of them. What
//! the storage no longer sees comes first, then what guests wait for, then times. Sentences about
//! the figures are in `summary`.

use super::run::{CACHE_BYTES, RAM_BYTES, Run, SAN};
use super::side::Side;
use super::{Drove, Report};
use crate::in_process::STAGE_BYTES;
use crate::stats::{Disk, Kind, Latency, median, millis};
use serde_json::{Value, json};
use std::time::Duration;

const MIB: f64 = (1 << 20) as f64;
/// Ratios nearer to one are called the same.
const SAME: f64 = 1.05;
/// What a flush of a clone that is thrown away needs.
const NOTHING: &str = "does nothing";

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Figure {
    pub name: String,
    /// Of each run: one value, or p50 and p99.
    values: [Vec<f64>; 3],
    decimals: usize,
    /// With Tenuto there is nothing to do, and so nothing to compare.
    needless: bool,
}

/// Figures of one kind, in the order of importance.
pub struct Section {
    pub name: &'static str,
    pub figures: Vec<Figure>,
}

impl Figure {
    pub fn text(&self, side: Side) -> String {
        if self.needless && side == Side::Tenuto {
            return NOTHING.into();
        }
        let values = self.values[side as usize].iter();
        let texts: Vec<String> = values.map(|it| grouped(*it, self.decimals)).collect();
        match texts.is_empty() {
            true => "-".into(),
            false => texts.join(" / "),
        }
    }

    /// Of p50 and p99 the first.
    pub fn median(mut self) -> Figure {
        for values in &mut self.values {
            values.truncate(1);
        }
        self
    }

    /// How much less Tenuto needs than raw images do, in words.
    pub fn ratio(&self) -> String {
        let [raw, _, tenuto] = &self.values;
        let (Some(&raw), Some(&tenuto)) = (raw.first(), tenuto.first()) else {
            return String::new();
        };
        if raw == 0.0 && tenuto == 0.0 || self.needless {
            return String::new();
        }
        let (more, word) = match raw >= tenuto {
            true => (raw / tenuto, "less"),
            false => (tenuto / raw, "more"),
        };
        match more {
            more if !more.is_finite() && word == "less" => "none left".into(),
            more if !more.is_finite() => String::new(),
            more if more < SAME => "same".into(),
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

    /// Requests at the storage until all had booted, by the first look after it.
    fn boot_reads(&self) -> u64 {
        let booted = self.work.boots.iter().map(|boot| boot.1).max();
        let after = self.looks.iter().find(|look| Some(look.at) >= booted);
        after.map_or(0, |look| look.totals.origin.reads)
    }

    /// Reads that the guests asked for, whatever became of them.
    fn asked_reads(&self) -> u64 {
        self.latency.as_ref().map_or(self.totals.reads, |latency| {
            (latency.count(Kind::Boot) + latency.count(Kind::Read)) as u64
        })
    }

    fn asked_writes(&self) -> u64 {
        let latency = self.latency.as_ref();
        latency.map_or(self.totals.writes, |it| it.count(Kind::Write) as u64)
    }

    fn asked_flushes(&self) -> u64 {
        let latency = self.latency.as_ref();
        latency.map_or(self.totals.flushes, |it| it.count(Kind::Flush) as u64)
    }

    pub fn works_median(&self) -> Option<Duration> {
        median(self.work.works.iter().copied())
    }
}

impl Report {
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = vec![Section {
            name: "At the storage",
            figures: self.at_storage(),
        }];
        if self.runs.tenuto.latency.is_some() {
            sections.push(Section {
                name: "A request takes, p50 / p99, ms",
                figures: self.latencies(),
            });
        }
        sections.push(Section {
            name: "Times, s",
            figures: self.times(),
        });
        sections.push(Section {
            name: "On the host",
            figures: self.on_host(),
        });
        sections
    }

    fn figure(&self, name: &str, decimals: usize, value: impl Fn(&Run) -> Option<f64>) -> Figure {
        let value = |side| self.run(side).and_then(&value).into_iter().collect();
        Figure {
            name: name.into(),
            values: Side::ALL.map(value),
            decimals,
            needless: false,
        }
    }

    fn count(&self, name: &str, value: impl Fn(&Run) -> u64) -> Figure {
        self.figure(name, 0, |run| Some(value(run) as f64))
    }

    fn mib(&self, name: &str, value: impl Fn(&Run) -> u64) -> Figure {
        self.figure(name, 1, |run| Some(value(run) as f64 / MIB))
    }

    /// All requests to the images; what goes to journals beside them is counted in MiB.
    pub fn requests(&self) -> Figure {
        self.count("requests", |run| run.totals.origin.requests())
    }

    pub fn syncs(&self) -> Figure {
        self.count("syncs", |run| run.totals.origin.syncs)
    }

    fn at_storage(&self) -> Vec<Figure> {
        vec![
            self.requests(),
            self.count("reads", |run| run.totals.origin.reads),
            self.count("reads until all have booted", Run::boot_reads),
            self.count("writes", |run| run.totals.origin.writes),
            self.syncs(),
            self.mib("read, MiB", |run| run.totals.origin.read_bytes),
            self.mib("written, MiB", |run| run.totals.origin.write_bytes),
            self.mib("to the journal beside the image, MiB", |run| {
                run.totals.origin.journal_bytes
            }),
        ]
    }

    pub fn latency(&self, name: &str, disk: Disk, kind: Kind) -> Figure {
        let of = |side| {
            let latency = self.run(side).and_then(|run| run.latency.as_ref());
            let both = latency.map(|latency| latency.quantiles(disk, kind));
            both.into_iter().flatten().flatten().map(millis).collect()
        };
        Figure {
            name: name.into(),
            values: Side::ALL.map(of),
            decimals: 2,
            // It is gone with its guest, so a flush has nothing to make durable.
            needless: (disk, kind) == (Disk::Clone, Kind::Flush),
        }
    }

    fn latencies(&self) -> Vec<Figure> {
        let of = |disk, kind: Kind| {
            let whose = match disk {
                Disk::Kept => "kept disk (write-back)",
                Disk::Clone => "clone (ephemeral)",
            };
            self.latency(&format!("{whose}, {}", kind.name()), disk, kind)
        };
        // What is written first: that is where the policies differ.
        let kinds = [Kind::Write, Kind::Flush, Kind::Read, Kind::Boot];
        let all = Disk::ALL.map(|disk| kinds.map(|kind| of(disk, kind)));
        all.into_iter().flatten().collect()
    }

    /// Until a clone has booted.
    pub fn boots(&self, name: &str) -> Figure {
        self.seconds(name, |run| run.boot_median(&self.drove))
    }

    fn seconds(&self, name: &str, value: impl Fn(&Run) -> Option<Duration>) -> Figure {
        self.figure(name, 1, |run| value(run).map(|time| time.as_secs_f64()))
    }

    fn times(&self) -> Vec<Figure> {
        let drove = &self.drove;
        let mut figures = Vec::new();
        if drove.is_guests() {
            figures.push(self.seconds("first clone boots alone", |run| {
                run.work.boots.first().map(|(from, to)| *to - *from)
            }));
        }
        let together = match drove.is_guests() {
            true => "the other clones boot together",
            false => "all clones boot together",
        };
        figures.push(self.boots(&format!("{together}, median")));
        figures.push(self.seconds(&format!("{together}, last"), |run| run.boot_max(drove)));
        figures.push(self.seconds("the kept disk's guest boots", Run::boot_kept));
        if drove.is_guests() {
            // The built-in client's requests come when they come; its work takes as long.
            figures.push(self.seconds("work of a guest, median", Run::works_median));
        }
        figures.push(self.seconds("the whole run", |run| Some(run.work.total + run.destage)));
        figures
    }

    fn on_host(&self) -> Vec<Figure> {
        let mut figures: Vec<Figure> = Vec::new();
        for (name, value) in [
            ("reads of the guests", Run::asked_reads as fn(&Run) -> u64),
            ("writes of the guests", Run::asked_writes),
            ("flushes of the guests", Run::asked_flushes),
        ] {
            let mut figure = self.count(name, value);
            if self.drove.is_guests() {
                // What arrives is what QEMU makes of it, and not what the guests asked for.
                figure.values[Side::Qcow2 as usize].clear();
            }
            figures.push(figure);
        }
        figures.push(self.mib("SSD written, MiB", |run| run.totals.flash_write_bytes));
        figures.push(self.mib("SSD read, MiB", |run| run.totals.flash_read_bytes));
        figures.push(
            self.mib("RAM of cache and overlays at the end, MiB", |run| {
                run.totals.ram_bytes
            }),
        );
        figures
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
        let mut document = json!({
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
            "qemu": self.qemu,
            "not_measured": self.runs.qcow2.as_ref().err(),
            "seconds": self.took.as_secs_f64(),
        });
        for side in Side::ALL {
            document[side.key()] = self
                .run(side)
                .map_or(Value::Null, |run| of_run(run, &self.drove));
        }
        document
    }
}

fn of_latency(latency: &Latency) -> Value {
    let micros = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e6);
    let of_disk = |disk: Disk| {
        let mut kinds = json!({});
        for kind in Kind::ALL {
            let [p50, p99] = latency.quantiles(disk, kind).map(micros);
            kinds[kind.name().replace(' ', "_")] = json!({ "p50": p50, "p99": p99 });
        }
        kinds
    };
    json!({ "kept": of_disk(Disk::Kept), "clones": of_disk(Disk::Clone) })
}

fn of_run(run: &Run, drove: &Drove) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let totals = &run.totals;
    let boots: Vec<Value> = run
        .work
        .boots
        .iter()
        .map(|(from, to)| json!({ "start": from.as_secs_f64(), "end": to.as_secs_f64() }))
        .collect();
    let (done, asked) = run.work.done;
    json!({
        "boot_seconds": seconds(run.work.boots.iter().map(|boot| boot.1).max()),
        "boot_median_seconds": seconds(run.boot_median(drove)),
        "boot_max_seconds": seconds(run.boot_max(drove)),
        "boots": boots,
        "work_median_seconds": seconds(run.works_median()),
        "rounds": { "done": done, "asked": asked },
        "seconds": run.work.total.as_secs_f64(),
        "reads": run.asked_reads(),
        "writes": run.asked_writes(),
        "flushes": run.asked_flushes(),
        "latency_us": run.latency.as_ref().map(of_latency),
        "origin": {
            "requests": totals.origin.requests(),
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

    fn figure(raw: f64, tenuto: f64) -> Figure {
        Figure {
            name: "reads".into(),
            values: [vec![raw], vec![], vec![tenuto]],
            decimals: 0,
            needless: false,
        }
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
    fn what_does_nothing_has_no_latency_to_boast_of() {
        let flush = Figure {
            needless: true,
            ..figure(5.0, 0.05)
        };
        assert_eq!(flush.text(Side::Raw), "5");
        assert_eq!(flush.text(Side::Qcow2), "-");
        assert_eq!(flush.text(Side::Tenuto), "does nothing");
        assert_eq!(flush.ratio(), "");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(grouped(1_234_567.891, 1), "1,234,567.9");
        assert_eq!(grouped(999.0, 0), "999");
        assert_eq!(grouped(0.04, 2), "0.04");
    }
}
