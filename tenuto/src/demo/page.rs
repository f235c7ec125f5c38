//! The report as one HTML file that needs nothing else.
//!
//! Owns the page. Always true: it follows the reader's light or dark preference, it asks for
//! nothing from any network, and whatever comes from outside of the program is escaped.

use super::figures::{Figure, grouped};
use super::host::{Run, SAN};
use super::stats::rate;
use super::{Report, stats::millis};
use std::fmt::Write;
use std::time::Duration;

pub use super::plot::{Line, Scale, plot};

pub const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c1e21;--paper:#fff;--faint:#d9dce1;--soft:#5c636e;\
--card:#f5f6f8;--uncached:#c2410c;--cached:#1d6fb8}\
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--paper:#16181c;--faint:#343941;\
--soft:#9aa3af;--card:#1f2329;--uncached:#fb923c;--cached:#60a5fa}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);\
max-width:900px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.15rem;margin-top:2.5rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.25rem 1rem .25rem 0;border-bottom:1px solid var(--faint);text-align:right}\
th:first-child,td:first-child{text-align:left}\
svg{width:100%;height:auto}svg text{fill:var(--soft);font:12px system-ui,sans-serif}\
.grid{stroke:var(--faint)}.axis{stroke:var(--soft)}\
.line{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}\
.uncached{stroke:var(--uncached)}.cached{stroke:var(--cached)}\
figure{margin:0}figcaption,.small{color:var(--soft);font-size:.9rem}";

/// What only this page has.
const MORE_STYLE: &str = "\
.lead{font-size:1.05rem}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(12rem,1fr));gap:.75rem;\
margin:1.5rem 0;padding:0;list-style:none}\
.tiles li{background:var(--card);border-radius:.5rem;padding:.75rem 1rem}\
.tiles b{display:block;font-size:1.5rem;line-height:1.2;color:var(--cached)}\
.tiles small{color:var(--soft);font-size:.85rem}\
.wide{overflow-x:auto}.wide svg{min-width:34rem}table.all{width:100%}\
thead th{border-bottom:2px solid var(--soft);vertical-align:bottom}\
tbody th{font-weight:normal}td{white-space:nowrap}\
pre{background:var(--card);border-radius:.5rem;padding:.75rem 1rem;overflow-x:auto;\
font-size:.85rem;line-height:1.45}\
@media print{body{margin:0;max-width:none;font-size:11pt}figure,.tiles,tr,pre{break-inside:avoid}\
h2{break-after:avoid}.wide{overflow:visible}}";

/// How to go on with one's own disks.
const NEXT: &str = "\
# /etc/tenuto/tenuto.toml
[cache]
path = \"/var/lib/tenuto/cache\"     # a file on an SSD, or the SSD
size = \"64GiB\"

[[volume]]
name = \"desk-001\"
origin = \"/mnt/nfs/vms/desk-001.img\"
format = \"raw\"
policy = \"write-back\"              # a disk that is kept

[[volume]]
name = \"lab-01\"
origin = \"/mnt/nfs/vms/gold.img\"
format = \"raw\"
policy = \"ephemeral\"               # a clone that starts clean every time
";
const NEXT_COMMANDS: &str = "\
tenuto config --check
tenuto serve
tenuto volume show desk-001 --qemu    # the arguments that give this disk to QEMU
tenuto status
";

pub fn page(report: &Report) -> String {
    let latency = plot(
        "latency, ms (logarithmic)",
        Scale::Logarithmic,
        &latency_lines(report),
    );
    let requests = plot(
        "requests to the images per second",
        Scale::Linear,
        &request_lines(report),
    );
    let boots = plot(
        "guests that have booted",
        Scale::Counts,
        &boot_lines(report),
    );
    let notes = list(&report.notes());
    let mut parameters = vec![crate::bench::machine::text()];
    parameters.extend(report.parameters());
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>Tenuto: demonstration</title><style>{STYLE}{MORE_STYLE}</style></head><body>\n\
         <main><h1>The same guests on the same slow storage, without and with Tenuto</h1>\n\
         <p class=\"lead\">{}</p>\n<ul class=\"tiles\">{}</ul>\n\
         <h2>Requests at the origin</h2>\n{}\n\
         <h2>Latency of the guests' requests</h2>\n{}\n\
         <h2>Boots</h2>\n{}\n\
         <h2>All figures</h2>\n<div class=\"wide\">{}</div>\n\
         <h2>How it was measured</h2>\n{notes}\n{}\n\
         <h2>With your own images</h2>\n<p>A host needs a configuration file and the daemon. Every \
         disk is an NBD export that QEMU opens.</p>\n<pre>{NEXT}</pre>\n\
         <pre>{NEXT_COMMANDS}</pre>\n\
         </main></body></html>\n",
        escape(&lead(report)),
        tiles(report),
        figure(&requests, REQUESTS_CAPTION),
        figure(&latency, latency_caption(report)),
        figure(&boots, boots_caption(report)),
        table(&report.figures()),
        list(&parameters),
    )
}

const REQUESTS_CAPTION: &str = "Reads, writes and syncs of all images; what goes to the journal \
    beside the kept one is not in it, and stands in the table in MiB. With the cache, what the \
    kept disk wrote is destaged when it is some seconds old, also while the guests work, and what \
    comes after their work is the rest of it.";

fn latency_caption(report: &Report) -> &'static str {
    match report.cached.latency.exact {
        true => "All requests of half a second together, from sending a request to its answer.",
        false => {
            "All requests of a second together, from the arrival of a request at the daemon to its \
             answer; known by classes of powers of two, and drawn at their upper bounds."
        }
    }
}

fn boots_caption(report: &Report) -> &'static str {
    match report.drove.is_guests() {
        true => {
            "The first guest boots alone, then all others at once. A guest has booted when it has \
             read its system and found every checksum right."
        }
        false => "All start at once. A guest has booted when it has read its system.",
    }
}

/// What was done, in one paragraph.
fn lead(report: &Report) -> String {
    let who = match &report.drove.guests {
        Some(_) => "Linux guests in QEMU",
        None => "guests played by the built-in client",
    };
    let work = match &report.drove.guests {
        Some(_) => {
            "They boot, one alone and then the others together, save files, write the log of a \
             database with a sync after each record, and read everything again."
        }
        None => "They boot together, then read, write and flush for a while.",
    };
    format!(
        "{} {who} have clones of one gold image that are thrown away afterwards; one more has a \
         disk that is kept. {work} The storage network is simulated: every request takes {} ms, \
         and all images together get {} requests per second. First every guest is on its own image \
         on that storage; then, doing the same, on Tenuto: the clones ephemeral, the kept disk \
         write-back.",
        report.drove.clones,
        SAN.latency.as_millis(),
        grouped(f64::from(SAN.iops.unwrap_or(0)), 0)
    )
}

fn tiles(report: &Report) -> String {
    let [uncached, cached] = [&report.uncached, &report.cached];
    let requests = |run: &Run| Some(run.totals.origin_requests() as f64);
    let boot = |run: &Run| {
        let median = run.boot_median(&report.drove);
        median.map(|time| time.as_secs_f64())
    };
    let flush = |run: &Run| run.latency.quantiles[2][0].map(millis);
    let bounds = !cached.latency.exact;
    let all = [
        (
            "requests to the images",
            "",
            Figure::new("", [requests(uncached), requests(cached)], 0),
        ),
        (
            "until a clone has booted, median",
            " s",
            Figure::new("", [boot(uncached), boot(cached)], 1),
        ),
        (
            "a flush, median",
            " ms",
            Figure::new("", [flush(uncached), flush(cached)], 2).at_most(bounds),
        ),
    ];
    let mut text = String::new();
    for (name, unit, figure) in all {
        let _ = write!(
            text,
            "<li><b>{}</b>{name}<br><small>{}{unit} without, {}{unit} with</small></li>",
            escape(&figure.ratio()),
            escape(&figure.text(0)),
            escape(&figure.text(1))
        );
    }
    let _ = write!(
        text,
        "<li><b>identical</b>the kept disk and its image in the end<br><small>{} blocks \
         compared</small></li>",
        grouped(cached.verified_blocks as f64, 0)
    );
    text
}

fn figure(plot: &str, caption: &str) -> String {
    format!(
        "<figure><div class=\"wide\">{plot}</div><figcaption>{}</figcaption></figure>",
        escape(caption)
    )
}

fn table(figures: &[Figure]) -> String {
    let mut rows = String::new();
    for figure in figures {
        let _ = writeln!(
            rows,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&figure.name),
            escape(&figure.text(0)),
            escape(&figure.text(1)),
            escape(&figure.ratio())
        );
    }
    format!(
        "<table class=\"all\"><thead><tr><th></th><th scope=\"col\">without cache</th>\
         <th scope=\"col\">with cache</th><th scope=\"col\">difference</th></tr></thead>\n\
         <tbody>{rows}</tbody></table>"
    )
}

fn list(lines: &[String]) -> String {
    let items: String = lines
        .iter()
        .map(|line| format!("<li>{}</li>\n", escape(line)))
        .collect();
    format!("<ul class=\"small\">\n{items}</ul>")
}

fn latency_lines(report: &Report) -> Vec<Line> {
    let line = |class, name, run: &Run, at: usize| Line {
        class,
        dashed: at == 1,
        name,
        points: run.latency.over_time[at].clone(),
    };
    vec![
        line("uncached", "without cache, p50", &report.uncached, 0),
        line("uncached", "without cache, p99", &report.uncached, 1),
        line("cached", "with cache, p50", &report.cached, 0),
        line("cached", "with cache, p99", &report.cached, 1),
    ]
}

fn request_lines(report: &Report) -> Vec<Line> {
    let line = |class, name, run: &Run| Line {
        class,
        dashed: false,
        name,
        points: {
            let looks = run.looks.iter();
            let counts: Vec<(Duration, u64)> = looks
                .map(|look| (look.at, look.totals.origin_requests()))
                .collect();
            rate(&counts)
        },
    };
    vec![
        line("uncached", "without cache", &report.uncached),
        line("cached", "with cache", &report.cached),
    ]
}

/// How many have booted, as steps.
fn boot_lines(report: &Report) -> Vec<Line> {
    let line = |class, name, run: &Run| {
        let mut ends: Vec<f64> = run
            .work
            .boots
            .iter()
            .map(|boot| boot.1.as_secs_f64())
            .collect();
        ends.sort_by(f64::total_cmp);
        let mut points = vec![(0.0, 0.0)];
        for (before, end) in ends.into_iter().enumerate() {
            points.push((end, before as f64));
            points.push((end, before as f64 + 1.0));
        }
        Line {
            class,
            dashed: false,
            name,
            points,
        }
    };
    vec![
        line("uncached", "without cache", &report.uncached),
        line("cached", "with cache", &report.cached),
    ]
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
