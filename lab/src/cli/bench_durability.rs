//! `tenuto bench durability`: writes by class of the data, and what reaches the storage of them.
//!
//! Always true: what falls short of the paper is a line of the report and no failure; what could
//! not be measured is one.

use super::bench::directory;
use crate::bench::durability::{
    self, HEAD, Named, ORIGIN_HEAD, Options, Part, Report, figure13, two_hosts,
};
use clap::Args;
use host::cli::arguments::{latency, millis, size};
use host::cli::{Context, output, progress};
use host::error::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Args)]
pub struct BenchDurability {
    /// What is measured, with commas between
    #[arg(long = "part", value_name = "PART,PART", value_delimiter = ',')]
    #[arg(default_value = "figure10,figure13,hosts")]
    #[arg(value_parser = ["figure10", "figure13", "hosts"])]
    pub parts: Vec<String>,
    /// A recorded workload for figure10, as `tenuto trace record` writes it; may be given several
    /// times. The names web, mail and office are held against the paper
    #[arg(long = "trace", value_name = "NAME=FILE", value_parser = trace)]
    pub traces: Vec<Named>,
    /// The image of the disk of a trace, or of all of them, after it was recorded: says which
    /// files were written (raw; ext2, ext3, ext4 or NTFS)
    #[arg(long = "image", value_name = "[NAME=]IMAGE", value_parser = image)]
    pub images: Vec<Named>,
    /// The table of rules that gives paths their classes, as for `tenuto image split`
    #[arg(long, value_name = "TABLE", default_value = "linux")]
    pub rules: String,
    /// The root file system of a guest in which the workloads run: a directory, or a raw image with
    /// ext4; it needs python3 with sqlite3, mount and swapon. Without it, and without --trace, one
    /// is made of what this machine has
    #[arg(long, value_name = "ROOT")]
    pub guest: Option<PathBuf>,
    /// Heavy users of figure13
    #[arg(long, value_name = "N", default_value_t = 11)]
    pub users: u32,
    /// Length of figure13
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub seconds: f64,
    /// Latency of the simulated storage of figure13 and hosts
    #[arg(long, value_name = "TIME", default_value = "5ms")]
    pub origin_latency: String,
    /// Requests per second that the simulated storage of figure13 takes
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub origin_iops: u32,
    /// Age at which late data of figure13 goes to the storage; short, so that a short run pays for
    /// it
    #[arg(long, value_name = "TIME", default_value = "20s")]
    pub destage_after: String,
    /// Desktops of hosts, half of them on each
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub desktops: u32,
    /// Size of each cache of figure13 and hosts
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub cache: String,
    /// Size of its read tier
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub ram: String,
    /// Seed of everything random in figure13 and hosts
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Directory for disks of guests and for caches; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// Write the plots as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

fn trace(text: &str) -> std::result::Result<Named, String> {
    let parts = text.split_once('=');
    let parts = parts.filter(|(name, path)| !name.is_empty() && !path.is_empty());
    let (name, path) = parts.ok_or("write it as NAME=FILE, as web=web.trace")?;
    Ok(Named {
        name: Some(name.to_owned()),
        path: path.into(),
    })
}

fn image(text: &str) -> std::result::Result<Named, String> {
    match text.split_once('=') {
        None if !text.is_empty() => Ok(Named {
            name: None,
            path: text.into(),
        }),
        _ => trace(text).map_err(|_| "write it as IMAGE or NAME=IMAGE".to_owned()),
    }
}

pub fn run(context: &Context, command: &BenchDurability) -> Result<()> {
    let asked = |part: &Part| command.parts.iter().any(|name| name == part.key());
    let origin_latency = latency("--origin-latency", &command.origin_latency)?;
    let after = millis("--destage-after", &command.destage_after)?;
    let (cache_bytes, ram_bytes) = (
        size("--cache", &command.cache)?,
        size("--ram", &command.ram)?,
    );
    let place = directory(&command.path);
    let options = Options {
        figure13: figure13::Options {
            users: command.users,
            seconds: command.seconds,
            origin_latency,
            origin_iops: command.origin_iops,
            destage_after: Duration::from_millis(after),
            cache_bytes,
            ram_bytes,
            seed: command.seed,
            directory: place.clone(),
        },
        hosts: two_hosts::Options {
            desktops: command.desktops,
            origin_latency,
            cache_bytes,
            ram_bytes,
            seed: command.seed,
            directory: place.clone(),
        },
        parts: Part::ALL.into_iter().filter(asked).collect(),
        traces: command.traces.clone(),
        images: command.images.clone(),
        rules: command.rules.clone(),
        guest: command.guest.clone(),
        directory: place,
        html: command.html.clone(),
    };
    let template = "{bar:40} {pos} of {len} steps, {elapsed}";
    let bar = progress::counter(context.common.quiet, options.steps(), template);
    let report = durability::run(&options, &|| bar.inc(1));
    bar.finish_and_clear();
    let report = report?;
    context
        .output()
        .document(&report.document(), || text(&report, &options))?;
    match report.errors() {
        0 if report.is_complete() => Ok(()),
        // The notes say what is missing; a second line would be noise.
        0 => Err(Error::failed("")),
        errors => Err(Error::failed(format!(
            "bench durability: {errors} requests were answered with an error"
        ))),
    }
}

fn text(report: &Report, options: &Options) -> String {
    let mut text = format!("{}\n{}\n", report.headline(), report.machine());
    let lines = |lines: &[String]| -> String { lines.iter().map(|it| format!("{it}\n")).collect() };
    if let Some(figure) = &report.figure10 {
        let right = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        text += "\nwrites by class: of requests, then of bytes, then of requests what the file \
                 system keeps for itself, what no file has any more, and the page file\n";
        let rows = figure.rows();
        if !rows.is_empty() {
            text += &output::table(&HEAD, &rows, &right);
        }
        let origin = figure.origin_rows();
        if !origin.is_empty() {
            text += "\n";
            text += &output::table(&ORIGIN_HEAD, &origin, &right[..5]);
        }
        text += &lines(&figure.notes());
    }
    if let Some(figure) = &report.figure13 {
        let table = output::table(&figure13::HEAD, &figure.rows(), &[1, 2, 3, 4, 5, 6]);
        text += &format!("\n{}\n{table}", figure.headline());
        text += &lines(&figure.notes());
    }
    if let Some(hosts) = &report.hosts {
        let table = output::table(&two_hosts::HEAD, &hosts.rows(), &[1, 2, 3, 4, 5, 6, 7]);
        text += &format!("\n{}\n{table}", hosts.headline());
        text += &lines(&hosts.notes());
    }
    let page = options.html.as_ref();
    text + &page.map_or(String::new(), |path| format!("plots: {}\n", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: a trace without a name is taken, or the image of one trace counts for all.
    #[test]
    fn a_trace_has_a_name_and_an_image_may_have_one() {
        let of = |it: std::result::Result<Named, String>| it.map(|it| (it.name, it.path));
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(of(trace("web=a=b")), Ok((named("web"), "a=b".into())));
        assert_eq!(of(image("a.img")), Ok((None, "a.img".into())));
        assert_eq!(of(image("web=a.img")), Ok((named("web"), "a.img".into())));
        for wrong in ["", "web", "=x", "web="] {
            assert!(trace(wrong).is_err(), "{wrong}");
        }
        assert!(image("").is_err() && image("=x").is_err());
    }
}
