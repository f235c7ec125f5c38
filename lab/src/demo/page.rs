//! The report as one HTML file that needs nothing else.
//!
//! Owns the page. Always true: it follows the reader's light or dark preference, it asks for
//! nothing from any network, and whatever comes from outside of the program is escaped.

use super::Report;
use super::figures::{Figure, Section, grouped};
use super::run::Run;
use super::side::Side;
use crate::plot::{Line, Scale, escape, over_seconds};
use crate::report::STYLE;
use crate::stats::{Disk, Kind, rate};
use std::fmt::Write;
use std::time::Duration;

/// What only this page has.
const MORE_STYLE: &str = "\
.lead{font-size:1.05rem}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:.75rem;\
margin:1.5rem 0;padding:0;list-style:none}\
.tiles li{background:var(--card);border-radius:.5rem;padding:.75rem 1rem}\
.tiles b{display:block;font-size:1.5rem;line-height:1.2;color:var(--cached)}\
.tiles small{color:var(--soft);font-size:.85rem}\
.wide{overflow-x:auto}.wide svg{min-width:34rem}table.all{width:100%}\
thead th{border-bottom:2px solid var(--soft);vertical-align:bottom}\
tbody th{font-weight:normal}tr.section th{font-weight:600;padding-top:1rem}td{white-space:nowrap}\
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
    let requests = over_seconds(
        "requests to the images per second",
        Scale::Linear,
        &lines(report, request_points),
    );
    let boots = over_seconds(
        "guests that have booted",
        Scale::Counts,
        &lines(report, boot_points),
    );
    let mut parameters = vec![crate::machine::text()];
    parameters.extend(report.parameters());
    let summary = report.summary().join(" ");
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>Tenuto: demonstration</title><style>{STYLE}{MORE_STYLE}</style></head><body>\n\
         <main><h1>The same guests on the same slow storage, without and with Tenuto</h1>\n\
         <p class=\"lead\">{}</p>\n<ul class=\"tiles\">{}</ul>\n\
         <h2>Requests at the storage</h2>\n{}\n{}\
         <h2>Boots</h2>\n{}\n\
         <h2>All figures</h2>\n<div class=\"wide\">{}</div>\n\
         <h2>How it was measured</h2>\n{}\n{}\n\
         <h2>With your own images</h2>\n<p>A host needs a configuration file and the daemon. Every \
         disk is an NBD export that QEMU opens.</p>\n<pre>{NEXT}</pre>\n\
         <pre>{NEXT_COMMANDS}</pre>\n\
         </main></body></html>\n",
        escape(&summary),
        tiles(report),
        figure(&requests, REQUESTS_CAPTION),
        latencies(report),
        figure(&boots, boots_caption(report)),
        table(&report.sections()),
        list(&report.notes()),
        list(&parameters),
    )
}

const REQUESTS_CAPTION: &str = "Reads, writes and syncs of all images; what goes to the journal \
    beside the kept one is not in it, and stands in the table in MiB. With Tenuto, what the kept \
    disk wrote is destaged when it is some seconds old, also while the guests work, and what comes \
    after their work is the rest of it.";

const LATENCY_CAPTION: &str = "All requests of half a second together, from sending a request to \
    its answer: half of them took at most the solid line, 99 of 100 the dashed one.";

fn boots_caption(report: &Report) -> &'static str {
    match report.drove.is_guests() {
        true => {
            "The first guest boots alone, then all others at once. A guest has booted when it has \
             read its system and found every checksum right."
        }
        false => "All start at once. A guest has booted when it has read its system.",
    }
}

fn latencies(report: &Report) -> String {
    if report.runs.tenuto.latency.is_none() {
        return String::new();
    }
    let mut all = Vec::new();
    for (at, percent) in [(0, "p50"), (1, "p99")] {
        for line in lines(report, |run| latency_points(run, at)) {
            all.push(Line {
                name: format!("{}, {percent}", line.name),
                dashed: at == 1,
                ..line
            });
        }
    }
    let plot = over_seconds("latency, ms (logarithmic)", Scale::Logarithmic, &all);
    format!(
        "<h2>Latency of the guests' requests</h2>\n{}\n",
        figure(&plot, LATENCY_CAPTION)
    )
}

fn tiles(report: &Report) -> String {
    let mut all = vec![
        ("requests to the storage", "", report.requests()),
        ("syncs at the storage", "", report.syncs()),
    ];
    if report.runs.tenuto.latency.is_some() {
        let of = |kind| report.latency("", Disk::Kept, kind).median();
        all.push(("a write to the kept disk, median", " ms", of(Kind::Write)));
        all.push(("its flush, median", " ms", of(Kind::Flush)));
    }
    let boots = report.boots("");
    all.push(("until a clone has booted, median", " s", boots));
    let mut text = String::new();
    for (name, unit, figure) in all {
        let _ = write!(
            text,
            "<li><b>{}</b>{name}<br><small>{}{unit} on raw images, {}{unit} on Tenuto</small></li>",
            escape(&figure.ratio()),
            escape(&figure.text(Side::Raw)),
            escape(&figure.text(Side::Tenuto))
        );
    }
    let _ = write!(
        text,
        "<li><b>identical</b>the kept disk and its image in the end<br><small>{} blocks \
         compared</small></li>",
        grouped(report.runs.tenuto.verified_blocks as f64, 0)
    );
    text
}

fn figure(plot: &str, caption: &str) -> String {
    format!(
        "<figure><div class=\"wide\">{plot}</div><figcaption>{}</figcaption></figure>",
        escape(caption)
    )
}

fn table(sections: &[Section]) -> String {
    let mut rows = String::new();
    for section in sections {
        let _ = writeln!(
            rows,
            "<tr class=\"section\"><th scope=\"rowgroup\" colspan=\"5\">{}</th></tr>",
            escape(section.name)
        );
        for figure in &section.figures {
            rows.push_str(&row(figure));
        }
    }
    let head = Side::ALL.map(|side| format!("<th scope=\"col\">{}</th>", escape(side.name())));
    format!(
        "<table class=\"all\"><thead><tr><th></th>{}<th scope=\"col\">Tenuto against raw</th>\
         </tr></thead>\n<tbody>{rows}</tbody></table>",
        head.concat()
    )
}

fn row(figure: &Figure) -> String {
    let cells = Side::ALL.map(|side| format!("<td>{}</td>", escape(&figure.text(side))));
    format!(
        "<tr><th scope=\"row\">{}</th>{}<td>{}</td></tr>\n",
        escape(&figure.name),
        cells.concat(),
        escape(&figure.ratio())
    )
}

fn list(lines: &[String]) -> String {
    let items: String = lines
        .iter()
        .map(|line| format!("<li>{}</li>\n", escape(line)))
        .collect();
    format!("<ul class=\"small\">\n{items}</ul>")
}

/// A line for each run that there was.
fn lines(report: &Report, points: impl Fn(&Run) -> Vec<(f64, f64)>) -> Vec<Line> {
    let runs = Side::ALL.into_iter();
    let runs = runs.filter_map(|side| Some((side, report.run(side)?)));
    runs.map(|(side, run)| Line {
        class: side.class(),
        dashed: false,
        name: side.name().to_owned(),
        points: points(run),
    })
    .collect()
}

fn latency_points(run: &Run, quantile: usize) -> Vec<(f64, f64)> {
    let latency = run.latency.as_ref();
    latency.map_or_else(Vec::new, |latency| latency.over_time[quantile].clone())
}

fn request_points(run: &Run) -> Vec<(f64, f64)> {
    let looks = run.looks.iter();
    let counts: Vec<(Duration, u64)> = looks
        .map(|look| (look.at, look.totals.origin.requests()))
        .collect();
    rate(&counts)
}

/// How many have booted, as steps.
fn boot_points(run: &Run) -> Vec<(f64, f64)> {
    let boots = run.work.boots.iter();
    let mut ends: Vec<f64> = boots.map(|boot| boot.1.as_secs_f64()).collect();
    ends.sort_by(f64::total_cmp);
    let mut points = vec![(0.0, 0.0)];
    for (before, end) in ends.into_iter().enumerate() {
        points.push((end, before as f64));
        points.push((end, before as f64 + 1.0));
    }
    points
}
