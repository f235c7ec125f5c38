//! Durability by class of the data: what Capo's paper and a report on throw-away desktops measured.
//!
//! Owns the parts and the report of them. Always true: what reaches the storage is counted, not
//! timed, so that no figure depends on the speed of the machine; a part that was not measured says
//! why. Deliberately absent: the week of an office under four policies, which `policies` has.

mod classes;
mod figure10;
pub mod figure13;
mod guest;
mod page;
mod root;
pub mod two_hosts;

use crate::interrupt::Interrupt;
use crate::place::Place;
use crate::{machine, report};
use classes::classify;
use figure10::{Figure10, Missing, Row, Source, Workload};
use figure13::Figure13;
use host::error::{Error, Kind, Result};
use serde_json::{Value, json};
use split::Rules;
use split::propose::classed::Classed;
use std::path::PathBuf;
use two_hosts::TwoHosts;

pub use figure10::{HEAD, ORIGIN_HEAD};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Figure10,
    Figure13,
    Hosts,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Figure10, Part::Figure13, Part::Hosts];

    pub const fn key(self) -> &'static str {
        match self {
            Part::Figure10 => "figure10",
            Part::Figure13 => "figure13",
            Part::Hosts => "hosts",
        }
    }
}

/// A recorded trace, or the image of its disk, of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// None: of all.
    pub name: Option<String>,
    pub path: PathBuf,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub parts: Vec<Part>,
    pub traces: Vec<Named>,
    pub images: Vec<Named>,
    /// A table of rules that is shipped, or a file.
    pub rules: String,
    /// The root file system of the guest: a directory or a raw image.
    pub guest: Option<PathBuf>,
    /// Where disks of guests and caches lie.
    pub directory: PathBuf,
    pub figure13: figure13::Options,
    pub hosts: two_hosts::Options,
    pub html: Option<PathBuf>,
}

pub struct Report {
    options: Options,
    pub figure10: Option<Figure10>,
    pub figure13: Option<Figure13>,
    pub hosts: Option<TwoHosts>,
}

/// What does not fit together, before anything is measured.
fn check(options: &Options) -> Result<()> {
    let traced = |it: &Named| options.traces.iter().any(|of| of.name == it.name);
    for image in options.images.iter().filter(|it| it.name.is_some()) {
        if !traced(image) {
            let name = image.name.as_deref().unwrap_or_default();
            return Err(Error::usage(format!(
                "--image {name}={}: there is no --trace {name}=FILE; name the image of a trace",
                image.path.display()
            )));
        }
    }
    let unnamed = options.images.iter().filter(|it| it.name.is_none());
    if unnamed.count() > 1 {
        return Err(Error::usage(
            "--image: several without a name; write --image NAME=IMAGE for each trace",
        ));
    }
    if options.traces.is_empty() && !options.images.is_empty() {
        return Err(Error::usage(
            "--image: is for a trace; give --trace NAME=FILE too",
        ));
    }
    if !options.parts.contains(&Part::Figure10)
        && (!options.traces.is_empty() || options.guest.is_some())
    {
        let line = "--trace and --guest: are for figure10; add it to --part";
        return Err(Error::usage(line));
    }
    options.figure13.check()?;
    options.hosts.check()?;
    for (at, trace) in options.traces.iter().enumerate() {
        if options.traces[..at].iter().any(|it| it.name == trace.name) {
            let name = trace.name.as_deref().unwrap_or_default();
            return Err(Error::usage(format!(
                "--trace {name}: is given twice; give each workload a name of its own"
            )));
        }
    }
    report::check(options.html.as_deref())
}

impl Options {
    /// The workloads run here where no trace of them is given, or a guest is.
    fn has_guest(&self) -> bool {
        let figure = self.parts.contains(&Part::Figure10);
        figure && (self.traces.is_empty() || self.guest.is_some())
    }

    /// How often `progress` is called.
    pub fn steps(&self) -> u64 {
        let part = |part: Part, steps| match self.parts.contains(&part) {
            true => steps,
            false => 0,
        };
        let guest = match self.has_guest() {
            true => 2 * Workload::ALL.len() as u64,
            false => 0,
        };
        guest + part(Part::Figure13, 1) + part(Part::Hosts, two_hosts::STEPS)
    }
}

/// The table of rules; what is wrong with it is the user's to put right.
fn classed(options: &Options) -> Result<Classed> {
    let rules = Rules::load(&options.rules);
    let rules = rules.map_err(|error| Error::usage(error.message))?;
    Ok(Classed::new(rules))
}

pub fn run(options: &Options, progress: &dyn Fn()) -> Result<Report> {
    check(options)?;
    let classed = classed(options)?;
    let interrupt = Interrupt::listen()?;
    let mut report = Report {
        options: options.clone(),
        figure10: None,
        figure13: None,
        hosts: None,
    };
    if options.parts.contains(&Part::Figure10) {
        report.figure10 = Some(figure10(options, &classed, &interrupt, progress)?);
    }
    interrupt.check()?;
    if options.parts.contains(&Part::Figure13) {
        report.figure13 = Some(figure13::run(&options.figure13, progress)?);
    }
    interrupt.check()?;
    if options.parts.contains(&Part::Hosts) {
        report.hosts = Some(two_hosts::run(&options.hosts, progress)?);
    }
    if let Some(path) = &options.html {
        report::save(path, &page::page(&report))?;
    }
    Ok(report)
}

fn figure10(
    options: &Options,
    classed: &Classed,
    interrupt: &Interrupt,
    progress: &dyn Fn(),
) -> Result<Figure10> {
    let mut figure = from_traces(options, classed)?;
    if !options.has_guest() {
        return Ok(figure);
    }
    let place = Place::below(&options.directory)?;
    let wanted = guest::Wanted {
        place: &place,
        root: options.guest.as_deref(),
        rules: &options.rules,
        classed,
        workloads: &Workload::ALL,
    };
    match guest::run(&wanted, interrupt, progress) {
        Ok(mut own) => {
            own.rows.splice(0..0, figure.rows.drain(..));
            Ok(own)
        }
        Err(error) if interrupt.came() || error.kind == Kind::Usage => Err(error),
        // The other parts need no guest.
        Err(error) => {
            figure.missing.push(Missing {
                what: "guest",
                why: error.message,
            });
            Ok(figure)
        }
    }
}

fn from_traces(options: &Options, classed: &Classed) -> Result<Figure10> {
    let mut rows = Vec::new();
    for trace in &options.traces {
        let images = options.images.iter();
        let image = images
            .filter(|it| it.name.is_none() || it.name == trace.name)
            .max_by_key(|it| it.name.is_some());
        let image = image.map(|it| it.path.as_path());
        rows.push(Row {
            name: trace.name.clone().unwrap_or_default(),
            source: Source::Rules,
            writes: classify(&trace.path, image, classed)?,
            origin: None,
            said: None,
        });
    }
    Ok(Figure10 {
        rules: options.rules.clone(),
        rows,
        missing: Vec::new(),
        guest: None,
    })
}

impl Report {
    pub fn machine(&self) -> String {
        machine::text()
    }

    pub fn headline(&self) -> String {
        let parts: Vec<&str> = self.options.parts.iter().map(|it| it.key()).collect();
        format!(
            "durability by class: {}; table of rules {}",
            parts.join(", "),
            self.options.rules
        )
    }

    /// Whether all was measured that was asked for.
    pub fn is_complete(&self) -> bool {
        let figure = self.figure10.as_ref();
        figure.is_none_or(|it| it.missing.is_empty())
    }

    /// Requests that were answered with an error.
    pub fn errors(&self) -> u64 {
        let users = self.figure13.as_ref().map_or(0, Figure13::errors);
        users + self.hosts.as_ref().map_or(0, TwoHosts::errors)
    }

    pub fn document(&self) -> Value {
        json!({
            "benchmark": "durability",
            "parameters": {
                "parts": self.options.parts.iter().map(|it| it.key()).collect::<Vec<_>>(),
                "rules": self.options.rules,
            },
            "figure10": self.figure10.as_ref().map(Figure10::document),
            "figure13": self.figure13.as_ref().map(Figure13::document),
            "hosts": self.hosts.as_ref().map(TwoHosts::document),
            "machine": machine::document(),
        })
    }
}
