//! `--propose`: a table of rules for `image split` from what the traces say of an image.
//!
//! Owns which directory a request counts for, the two further passes that ask the engine what the
//! directories and then the classes cost, and the file. Always true: the file is there as a whole
//! or not at all, and is one that `image split --rules` reads. Deliberately absent: what may be
//! late, which the crate `split` judges.

use super::engine::Replays;
use crate::image_files::contents::Contents;
use crate::inputs::failed;
use crate::replay::offline::Options;
use host::cli::output;
use host::config::units::show_millis;
use host::error::{Error, Result, cause};
use serde_json::{Value, json};
use split::propose::Figures;
use split::propose::choose::{Chosen, Cost, choose, least};
use split::propose::facts::Facts;
use split::propose::judge::{Judgement, judge};
use split::propose::text::{Proposal, Requests, Total};
use split::rules::Family;
use split::{Class, Rules};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use workload::trace::analyze::Report;
use workload::trace::analyze::directories::{self, DirectoryId, Here};
use workload::trace::analyze::places::Name;
use workload::trace::{Names, Record};

/// Of requests to no file.
const NOWHERE: DirectoryId = DirectoryId(0);

/// One request of a pass, and what is known around it.
pub struct Request<'a> {
    pub record: Record,
    pub paths: &'a Names,
    /// The path stands in the trace.
    pub is_own_path: bool,
    pub has_image: bool,
}

/// Gives each request of all traces once more.
pub type Pass<'a> = dyn FnMut(&mut dyn FnMut(&Request) -> Result<()>) -> Result<()> + 'a;

/// What was asked for.
pub struct Wanted {
    pub path: PathBuf,
    pub min_share: f64,
    /// How late data may be.
    pub late_ms: u64,
    /// Of the engine that counts requests.
    pub options: Options,
}

/// Where a path of the traces belongs.
#[derive(Clone, Copy)]
struct Home {
    directory: DirectoryId,
    owned: bool,
    /// The image has no file of that name.
    missing: bool,
}

/// What is known while the traces are read for the first time.
pub struct Proposing {
    facts: Facts,
    /// Keys of directories by number; the first stands for no file.
    keys: Vec<String>,
    by_key: HashMap<String, DirectoryId>,
    by_path: Vec<Home>,
}

/// The result, ready to be written.
pub struct Proposed {
    path: PathBuf,
    /// Nothing where there is nothing to propose.
    table: Option<String>,
    nothing: &'static str,
    pub document: Value,
}

/// What must be right before a long run.
pub fn check(path: &Path, traces: &[PathBuf]) -> Result<()> {
    let shown = path.display();
    if traces.iter().any(|it| it == Path::new("-")) {
        return Err(Error::usage(
            "-: a proposal reads the traces three times; name files",
        ));
    }
    if path == Path::new("-") || path.is_dir() {
        return Err(Error::usage(format!(
            "--propose {shown}: is no place for a file; name one, as rules.toml"
        )));
    }
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    match directory.is_none_or(Path::is_dir) {
        true => Ok(()),
        false => Err(failed(
            path,
            "there is no such directory; name a file in one that exists",
        )),
    }
}

impl Proposing {
    pub fn new(contents: Contents) -> Result<Proposing> {
        let all = &contents.file_systems;
        let of_ntfs = all.iter().filter(|it| it.is_ntfs).count();
        if of_ntfs > 0 && of_ntfs < all.len() {
            return Err(Error::usage(
                "--image: file systems of Windows and of Linux; propose a table for one of them",
            ));
        }
        let family = match of_ntfs {
            0 => Family::Linux,
            _ => Family::Windows,
        };
        let mut facts = Facts::new(family);
        for file_system in contents.file_systems {
            names(&mut facts, &file_system.names);
            let packages = file_system.packages;
            facts.has_packages |= packages.is_some();
            packages.iter().flatten().for_each(|it| facts.own(it));
        }
        Ok(Proposing {
            facts,
            keys: vec![String::new()],
            by_key: HashMap::new(),
            by_path: Vec::new(),
        })
    }

    /// Where a request counts; nowhere in particular without an image.
    pub fn here(&mut self, request: &Request) -> Option<Here> {
        if !request.has_image {
            return None;
        }
        let nowhere = Here {
            directory: NOWHERE,
            owned: false,
            gone: false,
        };
        let Some(path) = request.record.path else {
            return Some(nowhere);
        };
        for name in &request.paths.all()[self.by_path.len()..] {
            let home = self.home(name);
            self.by_path.push(home);
        }
        let home = self.by_path.get(path.0 as usize);
        let here = home.map(|it| Here {
            directory: it.directory,
            owned: it.owned,
            gone: it.missing && request.is_own_path,
        });
        Some(here.unwrap_or(nowhere))
    }

    fn home(&mut self, path: &str) -> Home {
        let owned = self.facts.is_owned(path);
        let missing = !self.facts.has_file(path);
        // What the file system keeps for itself.
        let directory = if path.starts_with("/[") {
            NOWHERE
        } else {
            let next = DirectoryId(self.keys.len() as u32);
            let key = self.facts.home(path);
            let keys = &mut self.keys;
            *self.by_key.entry(key).or_insert_with_key(|key| {
                keys.push(key.clone());
                next
            })
        };
        Home {
            directory,
            owned,
            missing,
        }
    }

    /// Judges, asks the engine, and makes the table.
    pub fn finish(self, wanted: &Wanted, report: &Report, pass: &mut Pass) -> Result<Proposed> {
        let found = report.directories.clone().unwrap_or_default();
        let own = found.figures.iter().map(figures);
        let mut own: Vec<(&str, Figures)> = self.keys.iter().map(|it| &**it).zip(own).collect();
        let mut all = Figures::default();
        own.iter().for_each(|it| all += it.1);
        let nowhere = match own.is_empty() {
            true => Figures::default(),
            false => own.remove(0).1,
        };
        let least_writes = least(all.writes, wanted.min_share);
        let judgement = judge(&self.facts, own, least_writes);
        let mut ask = Ask {
            wanted,
            facts: &self.facts,
            pass,
        };
        let costs = ask.costs(&judgement)?;
        let chosen = choose(&judgement, &costs, least_writes);
        let totals = ask.totals(&judgement, &chosen)?;
        let period = show_millis(wanted.late_ms);
        let proposal = Proposal {
            facts: &self.facts,
            judgement: &judgement,
            costs: &costs,
            chosen: &chosen,
            period: &period,
            min_share: wanted.min_share,
            seconds: report.last_ns as f64 / 1e9,
            all,
            nowhere,
            starts: found.starts,
            totals: &totals,
        };
        Proposed::new(wanted, &proposal)
    }
}

/// All names of a file system.
fn names(facts: &mut Facts, names: &[Name]) {
    let mut files: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for name in names {
        if name.is_directory {
            facts.directory(&name.path);
        } else {
            facts.file(&name.path);
            files.entry(name.file).or_default().push(&name.path);
        }
    }
    for names in files.values().filter(|it| it.len() > 1) {
        facts.linked(names.iter().copied());
    }
}

fn figures(it: &directories::Figures) -> Figures {
    Figures {
        writes: it.writes,
        bytes: it.bytes,
        looked_bytes: it.looked_bytes,
        rewritten: it.rewritten,
        flushed: it.flushed,
        owned: it.owned,
        gone: it.gone,
        reads_after_start: it.reads_after_start,
        has_start: it.has_start,
    }
}

/// What both further passes need.
struct Ask<'a, 'b> {
    wanted: &'a Wanted,
    facts: &'a Facts,
    pass: &'a mut Pass<'b>,
}

impl Ask<'_, '_> {
    /// What each candidate costs with the others at work.
    fn costs(&mut self, judgement: &Judgement) -> Result<Vec<Cost>> {
        let candidates = judgement.candidates.iter();
        let classes: Vec<Class> = candidates.map(|it| it.class).collect();
        if classes.is_empty() {
            return Ok(Vec::new());
        }
        let group = |it: Option<usize>| it.map_or(0, |at| at + 1);
        let sums = self.replay(&classes, judgement, group)?;
        let costs = sums[1..].iter().map(|(before, after)| Cost {
            before: before.all(),
            after: after.all(),
        });
        Ok(costs.collect())
    }

    /// What each class costs with what was chosen.
    fn totals(&mut self, judgement: &Judgement, chosen: &Chosen) -> Result<Vec<Total>> {
        if chosen.lines.is_empty() {
            return Ok(Vec::new());
        }
        let judgement = judgement.only(&chosen.lines);
        let classes = [Class::WriteBack, Class::Never];
        let group = |it: Option<usize>| {
            let class = it.map(|at| judgement.candidates[at].class);
            let place = class.and_then(|it| classes.iter().position(|of| *of == it));
            place.map_or(0, |at| at + 1)
        };
        let sums = self.replay(&classes, &judgement, group)?;
        let of = [None, Some(Class::WriteBack), Some(Class::Never)];
        let totals = of.into_iter().zip(sums);
        let totals = totals.map(|(class, (before, after))| Total {
            class,
            before,
            after,
        });
        Ok(totals.collect())
    }

    /// One pass through the engine; the group of a request follows from its candidate.
    fn replay(
        &mut self,
        classes: &[Class],
        judgement: &Judgement,
        group: impl Fn(Option<usize>) -> usize,
    ) -> Result<Vec<(Requests, Requests)>> {
        let options = self.wanted.options.clone();
        let mut replays = Replays::new(options, classes, self.wanted.late_ms)?;
        let mut by_path: Vec<usize> = Vec::new();
        (self.pass)(&mut |request| {
            if !request.has_image {
                return Ok(());
            }
            for path in &request.paths.all()[by_path.len()..] {
                by_path.push(group(judgement.candidate(&self.facts.key(path))));
            }
            let path = request.record.path;
            let at = path.and_then(|it| by_path.get(it.0 as usize));
            replays.take(&request.record, at.copied().unwrap_or(0))
        })?;
        replays.finish()
    }
}

impl Proposed {
    fn new(wanted: &Wanted, proposal: &Proposal) -> Result<Proposed> {
        let path = wanted.path.clone();
        let table = proposal.is_table().then(|| proposal.table());
        if let Some(table) = &table {
            Rules::parse(table, &path.display().to_string()).map_err(|error| {
                Error::failed(format!("--propose: no table came of it: {}", error.message))
            })?;
        }
        let mut document = proposal.json();
        let file = table.as_ref().map(|_| path.display().to_string());
        document["file"] = json!(file);
        document["nothing"] = json!(table.is_none().then(|| proposal.nothing()));
        Ok(Proposed {
            path,
            table,
            nothing: proposal.nothing(),
            document,
        })
    }

    /// Writes the table under another name first.
    pub fn save(&self) -> Result<()> {
        let Some(table) = &self.table else {
            return Ok(());
        };
        let mut name = self.path.as_os_str().to_owned();
        name.push(".part");
        let part = PathBuf::from(name);
        let written = || -> io::Result<()> {
            let mut file = File::create(&part)?;
            file.write_all(table.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&part, &self.path)
        };
        written().map_err(|error| {
            // What is left of it helps no reader.
            let _ = std::fs::remove_file(&part);
            let why = format!("{}; name a file that can be written", cause(&error));
            failed(&self.path, why)
        })
    }

    /// An error where a file was asked for and none was made.
    pub fn result(&self, json: bool) -> Result<()> {
        match self.table {
            Some(_) => Ok(()),
            // The document has it already, and is the only one.
            None if json => Err(Error::failed("").about(self.path.display().to_string())),
            None => Err(failed(
                &self.path,
                format_args!(
                    "is not written, {}; name disks of the trace with --image, record a longer \
                     one, or give a smaller --min-share",
                    self.nothing
                ),
            )),
        }
    }

    /// The lines for a terminal.
    pub fn text(&self) -> String {
        let words = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let head = ["path", "class", "writes", "requests before", "after"];
        let mut rows = Vec::new();
        for line in self.document["moves"].as_array().into_iter().flatten() {
            let share = line["share_of_writes"].as_f64().unwrap_or(0.0);
            rows.push(vec![
                words(&line["path"]),
                words(&line["class"]),
                format!("{:.1} %", share * 100.0),
                line["origin_requests_before"].to_string(),
                line["origin_requests_after"].to_string(),
            ]);
        }
        let (before, after) = (
            &self.document["origin_requests_before"],
            &self.document["origin_requests_after"],
        );
        let path = self.path.display();
        match &self.table {
            None => format!("none: {}\n", self.nothing),
            Some(_) => format!(
                "{}all requests at the storage: {before} before, {after} after\n{path} has the \
                 table, with its reasons\n",
                output::table(&head, &rows, &[2, 3, 4])
            ),
        }
    }
}
