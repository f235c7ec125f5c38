//! The result as one HTML file that needs nothing else.
//!
//! Owns which figures are drawn, and what stands below each. Always true: a figure of which the
//! trace says nothing is left out; what is a sample says so.

use super::Shown;
use super::text;
use crate::plot::escape;
use crate::plot::{Axis, Curve, Scale, bars, chart};
use crate::report::{self as frame, Table};
use workload::trace::analyze::blocks::BLOCK_BYTES;
use workload::trace::analyze::flow::{Mix, share};
use workload::trace::analyze::peaks::Peak;
use workload::trace::analyze::rewrites::INTERVALS_MS;

const MIB: f64 = (1 << 20) as f64;
/// Days that have a curve of their own.
const DAYS: usize = 7;

type Points = Vec<(f64, f64)>;

pub fn page(shown: &Shown) -> String {
    let summary = text::summary(shown);
    let rows: Vec<Vec<String>> = summary
        .iter()
        .map(|(name, value)| vec![(*name).to_owned(), value.clone()])
        .collect();
    let first = Table {
        head: &["", ""],
        rows: &rows,
    };
    let names: Vec<&str> = shown.sources.iter().map(|it| it.0.as_str()).collect();
    let lead = match &names[..] {
        [one] => format!("The trace {one}."),
        all => format!("{} traces: {}.", all.len(), all.join(", ")),
    };
    let figures = [
        activity(shown),
        peaks(shown),
        sizes(shown),
        rewrites(shown),
        divergence(shown),
        name_space(shown),
        cache(shown),
    ];
    frame::page("analysis of traces", &lead, &first, &figures.concat())
}

fn figure(title: &str, plot: &str, below: &str) -> String {
    let below = escape(below);
    format!("<h2>{title}</h2>\n<figure>{plot}<figcaption>{below}</figcaption></figure>\n")
}

fn linear(name: &str) -> Axis<'_> {
    Axis {
        name,
        scale: Scale::Linear,
    }
}

/// Seconds in a unit that fits the trace.
struct Time {
    name: &'static str,
    seconds: f64,
}

impl Time {
    fn of(shown: &Shown) -> Time {
        let (name, seconds) = match shown.seconds() {
            0.0..600.0 => ("time from the first request, s", 1.0),
            600.0..36_000.0 => ("time from the first request, min", 60.0),
            36_000.0..864_000.0 => ("time from the first request, h", 3_600.0),
            _ => ("time from the first request, days", 86_400.0),
        };
        Time { name, seconds }
    }

    fn at(&self, ns: u64) -> f64 {
        ns as f64 / 1e9 / self.seconds
    }
}

fn activity(shown: &Shown) -> String {
    let time = Time::of(shown);
    let slots = &shown.report.flow.over_time;
    let width = slots.width_ns();
    let seconds = width as f64 / 1e9;
    let over = |value: &dyn Fn(&Mix) -> Option<f64>| -> Points {
        let slots = slots.all().iter().zip(1..);
        slots
            .filter_map(|(mix, number)| {
                let middle = time.at(width.saturating_mul(number)) - time.at(width) / 2.0;
                Some((middle, value(mix)?))
            })
            .collect()
    };
    let rate = |value: &dyn Fn(&Mix) -> u64| over(&|mix| Some(value(mix) as f64 / seconds));
    let requests = [
        Curve::new(0, "all requests", rate(&|mix| mix.requests())),
        Curve::new(1, "writes", rate(&|mix| mix.writes)),
    ];
    let flow = |value: &dyn Fn(&Mix) -> u64| over(&|mix| Some(value(mix) as f64 / seconds / MIB));
    let bytes = [
        Curve::new(0, "read and written", flow(&|mix| mix.bytes())),
        Curve::new(1, "written", flow(&|mix| mix.write_bytes)),
    ];
    let percent = |share: Option<f64>| share.map(|share| share * 100.0);
    let shares = [
        Curve::new(0, "of requests", over(&|mix| percent(mix.write_share()))),
        Curve::new(1, "of bytes", over(&|mix| percent(mix.write_byte_share()))),
    ];
    let below = format!("Means over {seconds} s.");
    let x = linear(time.name);
    [
        figure(
            "Requests",
            &chart(x, linear("requests a second"), &requests),
            &below,
        ),
        figure("Bytes", &chart(x, linear("MiB a second"), &bytes), &below),
        figure(
            "Share of writes",
            &chart(x, linear("writes, %"), &shares),
            &below,
        ),
    ]
    .concat()
}

fn peaks(shown: &Shown) -> String {
    let report = &shown.report;
    let several = shown.disks.all().len() > 1;
    let all: Vec<&Peak> = report.peaks.iter().chain(&report.periods).collect();
    if all.is_empty() {
        return String::new();
    }
    let head = text::peak_head(several);
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|it| text::peak(shown, it, several))
        .collect();
    let table = frame::table(&Table {
        head: &head,
        rows: &rows,
    });
    let below = "WRITES and SEEN BEFORE are shares of requests / bytes. A read was seen before \
        when the same disk had read or written its blocks earlier in the trace; by any, when some \
        disk had, and this one had not written there: what disks with one base can share.";
    let mut text = format!("<h2>Busiest periods</h2>\n{table}<p class=\"small\">{below}</p>\n");
    if several {
        let curves: Vec<Curve> = all.iter().enumerate().map(contributors).collect();
        let x = Axis {
            name: "disks, the busiest first",
            scale: Scale::Counts,
        };
        let plot = chart(x, linear("requests of the period, %"), &curves);
        let below = "How many disks made how much of each period.";
        text += &figure("Who makes the peaks", &plot, below);
    }
    text
}

fn contributors((at, peak): (usize, &&Peak)) -> Curve {
    let all = peak.total.mix.requests().max(1) as f64;
    let mut sum = 0;
    let mut points = vec![(0.0, 0.0)];
    for (number, (_, requests)) in peak.disks.iter().enumerate() {
        sum += requests;
        points.push((number as f64 + 1.0, sum as f64 / all * 100.0));
    }
    Curve::new(
        at,
        format!("from {}", text::moment(peak.period.start_ns)),
        points,
    )
}

fn sizes(shown: &Shown) -> String {
    let report = &shown.report;
    let (reads, writes) = (
        report.read_sizes.histogram(),
        report.write_sizes.histogram(),
    );
    let all = report.flow.total.requests().max(1) as f64;
    let part = |bars: &[workload::trace::analyze::sizes::Bar], at: usize| {
        bars.get(at)
            .map_or(0.0, |bar| bar.requests as f64 / all * 100.0)
    };
    let longer = if reads.len() > writes.len() {
        &reads
    } else {
        &writes
    };
    let rows = longer.iter().enumerate().map(|(at, bar)| {
        let name = format!("to {}", host::config::units::human_bytes(bar.up_to));
        (name, vec![part(&reads, at), part(&writes, at)])
    });
    let rows: Vec<_> = rows.collect();
    let plot = bars("requests, % of all", &["reads", "writes"], &rows);
    figure(
        "Sizes of requests",
        &plot,
        "Each bar counts the requests of at most its size that are larger than the size above it.",
    )
}

fn rewrites(shown: &Shown) -> String {
    let rewrites = &shown.report.rewrites;
    let total = rewrites.total();
    if total.bytes == 0 {
        return String::new();
    }
    let curve = |at: usize, name: String, written: &workload::trace::analyze::rewrites::Written| {
        let points = INTERVALS_MS.iter().zip(written.again).map(|(ms, again)| {
            let left = 100.0 - 100.0 * share(again, written.bytes).unwrap_or(0.0);
            (*ms as f64 / 1000.0, left)
        });
        Curve::new(at, name, points.collect())
    };
    let mut curves = vec![curve(0, "all".to_owned(), &total)];
    if rewrites.days.len() > 1 {
        let days = rewrites.days.iter().zip(1..).take(DAYS);
        let days = days.filter(|it| it.0.bytes > 0);
        curves.extend(days.map(|(day, number)| curve(number, format!("day {number}"), day)));
    }
    let x = Axis {
        name: "a write is held back for, s (logarithmic)",
        scale: Scale::Logarithmic,
    };
    let plot = chart(x, linear("left to be written, % of bytes"), &curves);
    let below = "At 10 s, 1 min, 10 min, 1 h, 6 h and 24 h: what is left to be written when each \
        write waits so long for a newer one to the same place.";
    figure("Writes that a newer one replaces", &plot, below)
}

fn divergence(shown: &Shown) -> String {
    let time = Time::of(shown);
    let points = shown.report.divergence.spread(shown.disks.all().len());
    if points.is_empty() {
        return String::new();
    }
    let over = |value: &dyn Fn(&workload::trace::analyze::divergence::Point) -> f64| -> Points {
        points
            .iter()
            .map(|it| (time.at(it.end_ns), value(it) / MIB))
            .collect()
    };
    let mut curves = vec![Curve::new(0, "mean", over(&|it| it.mean))];
    if shown.disks.all().len() > 1 {
        curves.push(Curve::new(2, "least", over(&|it| it.least as f64)));
        curves.push(Curve::new(1, "most", over(&|it| it.most as f64)));
    }
    let plot = chart(
        linear(time.name),
        linear("written for the first time, MiB a disk"),
        &curves,
    );
    let below = "Blocks of 4 KiB that differ from what the disk held at the beginning.";
    figure("Divergence from the base", &plot, below)
}

fn name_space(shown: &Shown) -> String {
    let report = &shown.report;
    if report.by_path.is_empty() {
        return String::new();
    }
    let all = report.flow.total;
    let categories = report.categories().into_iter();
    let (mut requests, mut bytes) = (Vec::new(), Vec::new());
    for (id, mix) in categories {
        let name = shown.category(id).to_owned();
        let part = |value: u64, all: u64| share(value, all).unwrap_or(0.0) * 100.0;
        requests.push((
            name.clone(),
            vec![
                part(mix.reads, all.requests()),
                part(mix.writes, all.requests()),
            ],
        ));
        bytes.push((
            name,
            vec![
                part(mix.read_bytes, all.bytes()),
                part(mix.write_bytes, all.bytes()),
            ],
        ));
    }
    let names = ["reads", "writes"];
    let below = "By the path of each request; “unknown” are requests without one, “other” paths \
        that no prefix of the table fits.";
    [
        figure(
            "Requests by name space",
            &bars("requests, % of all", &names, &requests),
            below,
        ),
        figure(
            "Bytes by name space",
            &bars("bytes, % of all", &names, &bytes),
            below,
        ),
        category_divergence(shown),
        durability(shown),
    ]
    .concat()
}

fn durability(shown: &Shown) -> String {
    let all = &shown.report.flow.total;
    let part = |value: u64, all: u64| share(value, all).unwrap_or(0.0) * 100.0;
    let classes = shown.durability.iter().map(|(name, mix)| {
        let parts = vec![
            part(mix.writes, all.writes),
            part(mix.write_bytes, all.write_bytes),
        ];
        (name.clone(), parts)
    });
    let classes: Vec<_> = classes.collect();
    figure(
        "Writes by durability",
        &bars("% of all writes", &["requests", "bytes"], &classes),
        "How durable what is written has to be, by the table of paths: write-back may be late, \
         no-write-back need not outlive the machine's next start, all else is written through.",
    )
}

fn category_divergence(shown: &Shown) -> String {
    let time = Time::of(shown);
    let points = shown.report.divergence.categories();
    let Some((_, last)) = points.last() else {
        return String::new();
    };
    let used = (0..last.len()).filter(|at| last[*at] > 0);
    let curves: Vec<Curve> = used
        .enumerate()
        .map(|(number, at)| {
            let name = shown.categories.get(at).map_or("?", String::as_str);
            let points = points
                .iter()
                .map(|it| (time.at(it.0), it.1[at] as f64 / MIB));
            Curve::new(number, name, points.collect())
        })
        .collect();
    let plot = chart(
        linear(time.name),
        linear("written for the first time, MiB"),
        &curves,
    );
    let below = "All disks together.";
    figure("Divergence by name space", &plot, below)
}

fn cache(shown: &Shown) -> String {
    let report = &shown.report;
    let time = Time::of(shown);
    let set = report.working_set.over_time();
    let over = |value: &dyn Fn(&workload::trace::analyze::working_set::Set) -> u64| -> Points {
        set.iter()
            .map(|it| (time.at(it.0), value(&it.1) as f64 / MIB))
            .collect()
    };
    let sets = [
        Curve::new(0, "any", over(&|set| set.any)),
        Curve::new(2, "read", over(&|set| set.read)),
        Curve::new(1, "written", over(&|set| set.written)),
    ];
    let plot = chart(
        linear(time.name),
        linear("different blocks so far, MiB"),
        &sets,
    );
    let mut text = figure("Working set", &plot, "Blocks of 4 KiB, each disk's own.");
    let curve = &report.curve;
    if report.flow.total.reads == 0 {
        return text;
    }
    let points = curve.points.iter().filter(|point| point.blocks > 0);
    let points = points.map(|point| {
        let size = point.blocks as f64 * BLOCK_BYTES as f64 / MIB;
        (size, point.miss_ratio * 100.0)
    });
    let curves = [Curve::new(0, "LRU", points.collect())];
    let x = Axis {
        name: "cache, MiB (logarithmic)",
        scale: Scale::Logarithmic,
    };
    let below = format!(
        "One LRU cache for all disks, which writes fill too. {} of the reads ask for a block that \
         nobody asked for before. {}",
        text::percent(Some(curve.first_ratio)),
        match curve.sample_rate {
            1.0 => "The curve is exact.".to_owned(),
            rate => format!(
                "From a sample of {} of the blocks, within 2 points on average.",
                text::percent(Some(rate))
            ),
        }
    );
    text += &figure(
        "Reads that miss",
        &chart(x, linear("misses, % of block reads"), &curves),
        &below,
    );
    text
}
