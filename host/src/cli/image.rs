//! `tenuto image info|check|map FILE`, and the way to `split`.
//!
//! Always true: the files are only read, under QEMU's image locks, so that none changes meanwhile;
//! no daemon is asked. A file that breaks its format ends a command with code 5.

use super::{Context, offline, output, split};
use crate::config::units::human_bytes;
use crate::error::{Error, Kind, Result};
use crate::fault::{self, Fault};
use crate::lock::Patience;
use crate::origin::chain::{self, Link, Opened, Rules};
use crate::origin::content::{FileSource, Metadata};
use clap::{Args, Subcommand};
use engine::types::Uuid;
use image::check::{Report, check as check_file};
use image::format::header::features;
use image::format::snapshot::Snapshot;
use image::map::Walk;
use image::resolve::{Content, Part};
use image::source::{Failed, list_snapshots};
use image::types::FileIndex;
use image::{Format, Header, error};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Runs of a map that are listed.
const RUNS_MAX: usize = 100_000;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what an image is: format, sizes, snapshots, and the chain of files it stands on
    Info(File),
    /// Check whether the tables of a qcow2 file agree; ends with code 5 if they do not
    Check(File),
    /// Show which file of a chain holds what
    Map(File),
    /// Make new disks of a guest's disk, one for each class of durability
    Split(split::Split),
}

#[derive(Debug, Args)]
pub struct File {
    /// A qcow2 or raw file, or a block device
    file: PathBuf,
}

pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Info(file) => info(context, &file.file),
        Command::Check(file) => check(context, &file.file),
        Command::Map(file) => map(context, &file.file),
        Command::Split(command) => split::run(context, &command),
    }
}

/// As other commands take a fault, but that what is invalid here is a damaged file.
fn failed(path: &Path, fault: Fault) -> Error {
    let about = path.display().to_string();
    match fault.kind {
        fault::Kind::Invalid => Error::new(Kind::Damaged, fault.message).about(about),
        _ => offline::from_fault(fault).about(about),
    }
}

fn with_patience<T>(
    path: &Path,
    work: impl FnOnce(&mut Patience) -> std::result::Result<T, Fault>,
) -> Result<T> {
    let mut progress = |line: &str| offline::tell(line);
    work(&mut offline::patience(&mut progress)).map_err(|fault| failed(path, fault))
}

/// A file whose lists could not be read.
fn list_failed(path: &Path, why: Failed<Fault>) -> Error {
    match why {
        Failed::Read(fault) => failed(path, fault),
        Failed::Format(why) => broken(path, &why),
    }
}

fn broken(path: &Path, why: &error::Error) -> Error {
    let message = format!("image {}: {why}; restore it from a backup", path.display());
    Error::new(Kind::Damaged, message).about(path.display().to_string())
}

fn info(context: &Context, path: &Path) -> Result<()> {
    let mut links = Vec::new();
    let followed = with_patience(path, |patience| {
        Ok(chain::follow(path, &Rules::default(), patience, &mut links))
    })?;
    let Some(top) = links.first() else {
        return followed.map_err(|fault| failed(path, fault));
    };
    let chain_error = followed.err().map(|fault| fault.message);
    let snapshots = match &top.format {
        Format::Raw => Vec::new(),
        Format::Qcow2(header) => {
            let mut source = FileSource::new(top);
            list_snapshots(header, &mut source).map_err(|why| list_failed(path, why))?
        }
    };
    let document = info_json(top, &links, &snapshots, chain_error.as_deref());
    let text = || info_text(top, &links, &snapshots, chain_error.as_deref());
    context.output().document(&document, text)
}

fn size_of(link: &Link) -> u64 {
    match &link.format {
        Format::Raw => link.target.size_bytes.next_multiple_of(512),
        Format::Qcow2(header) => header.size_bytes,
    }
}

fn format_of(link: &Link) -> &'static str {
    match link.format {
        Format::Raw => "raw",
        Format::Qcow2(_) => "qcow2",
    }
}

fn info_json(top: &Link, links: &[Link], snapshots: &[Snapshot], broken: Option<&str>) -> Value {
    let chain = links.iter().map(|link| {
        json!({
            "file": link.path.display().to_string(),
            "format": format_of(link),
            "size_bytes": size_of(link),
            "file_bytes": link.target.size_bytes,
        })
    });
    let mut document = json!({
        "file": top.path.display().to_string(),
        "format": format_of(top),
        "size_bytes": size_of(top),
        "file_bytes": top.target.size_bytes,
        "chain": chain.collect::<Vec<Value>>(),
        "chain_error": broken,
    });
    let Format::Qcow2(header) = &top.format else {
        return document;
    };
    let snapshots = snapshots.iter().map(|it| {
        json!({
            "id": it.id,
            "name": it.name,
            "taken_seconds": it.taken_seconds,
            "size_bytes": it.disk_bytes,
            "state_bytes": it.state_bytes,
        })
    });
    let facts = json!({
        "version": header.version,
        "cluster_bytes": header.cluster_bytes(),
        "unit_bytes": header.unit_bytes(),
        "refcount_bits": header.refcount_bits(),
        "compression": header.compression.to_string(),
        "features": features(header),
        "dirty": header.is_dirty(),
        "corrupt": header.is_corrupt(),
        "guard": header.is_guarded(),
        "encrypted": header.encryption != image::header::Encryption::None,
        "backing": header.backing,
        "backing_format": header.backing_format,
        "data_file": header.data_file,
        "bitmaps": header.bitmaps.map_or(0, |it| it.count),
        "snapshots": snapshots.collect::<Vec<Value>>(),
        "written_by": header.mark().map(|it| json!({
            "volume": Uuid(it.volume).to_string(),
            "generation": it.generation,
            "serial": it.serial,
        })),
    });
    if let (Value::Object(all), Value::Object(facts)) = (&mut document, facts) {
        all.extend(facts);
    }
    document
}

fn info_text(top: &Link, links: &[Link], snapshots: &[Snapshot], broken: Option<&str>) -> String {
    let sized = |bytes: u64| format!("{} ({bytes} bytes)", human_bytes(bytes));
    let mut rows = vec![
        ("image", top.path.display().to_string()),
        ("format", format_of(top).to_owned()),
        ("size", sized(size_of(top))),
        ("file", sized(top.target.size_bytes)),
    ];
    if let Format::Qcow2(header) = &top.format {
        rows.extend(header_rows(header));
        rows.extend(snapshots.iter().map(|it| {
            let state = match it.state_bytes {
                0 => String::new(),
                bytes => format!(", with {} of a machine", human_bytes(bytes)),
            };
            ("snapshot", format!("{} (id {}){state}", it.name, it.id))
        }));
    }
    let below = links.iter().skip(1);
    rows.extend(below.map(|it| {
        let place = it.path.display();
        (
            "on",
            format!("{place} ({}, {})", format_of(it), human_bytes(size_of(it))),
        )
    }));
    rows.extend(broken.map(|why| ("chain", format!("does not open: {why}"))));
    output::fields(&rows)
}

fn header_rows(header: &Header) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("version", header.version.to_string()),
        ("clusters", human_bytes(header.cluster_bytes())),
        ("units", human_bytes(header.unit_bytes())),
        ("refcounts", format!("{} bits", header.refcount_bits())),
        ("compression", header.compression.to_string()),
    ];
    let features = features(header);
    if !features.is_empty() {
        rows.push(("features", features.join(", ")));
    }
    if let Some(mark) = header.mark() {
        let volume = Uuid(mark.volume);
        let text = format!("volume {volume}, up to write {}", mark.serial);
        rows.push(("written by", text));
    }
    let states = [
        (
            header.is_dirty(),
            "dirty: refcounts may be wrong; `qemu-img check -r all` counts anew",
        ),
        (
            header.is_corrupt(),
            "corrupt: some writer found its tables wrong; `tenuto image check`",
        ),
        (
            header.is_guarded(),
            "guarded: a journal completes it; `tenuto origin replay`",
        ),
    ];
    let set = states.into_iter().filter(|(set, _)| *set);
    rows.extend(set.map(|(_, what)| ("state", what.to_owned())));
    if let Some(bitmaps) = header.bitmaps {
        rows.push(("bitmaps", bitmaps.count.to_string()));
    }
    rows
}

fn check(context: &Context, path: &Path) -> Result<()> {
    let link = with_patience(path, |patience| chain::first(path, None, patience))?;
    let name = path.display();
    let Format::Qcow2(header) = &link.format else {
        let message = format!("image {name}: is raw, which has no tables to check");
        return Err(Error::usage(message).about(name.to_string()));
    };
    let mut source = FileSource::new(&link);
    let report = check_file(header, link.target.size_bytes, &mut source);
    let report = report.map_err(|why| list_failed(path, why))?;
    if report.corruptions == 0 {
        let document = check_json(path, header, &report);
        let text = || check_text(path, header, &report);
        return context.output().document(&document, text);
    }
    if !context.common.json {
        output::write(&findings_text(&report))?;
    }
    let first = report.findings.iter().find(|it| !it.is_leak());
    let first = first.map_or_else(String::new, |it| format!(", one is that {it}"));
    let count = report.corruptions;
    let message = format!(
        "image {name}: {count} errors in its tables{first}; restore it from a backup, or let \
         `qemu-img check -r all {name}` try"
    );
    Err(Error::new(Kind::Damaged, message).about(name.to_string()))
}

fn leaked_bytes(header: &Header, report: &Report) -> u64 {
    report.leaks * header.cluster_bytes()
}

fn check_json(path: &Path, header: &Header, report: &Report) -> Value {
    let findings = report.findings.iter().map(|it| it.to_string());
    json!({
        "file": path.display().to_string(),
        "corruptions": report.corruptions,
        "leaks": report.leaks,
        "leaked_bytes": leaked_bytes(header, report),
        "total_clusters": header.size_bytes.div_ceil(header.cluster_bytes()),
        "allocated_clusters": report.allocated_clusters,
        "compressed_clusters": report.compressed_clusters,
        "end_bytes": report.end_bytes,
        "findings": findings.collect::<Vec<String>>(),
    })
}

fn check_text(path: &Path, header: &Header, report: &Report) -> String {
    let name = path.display();
    let total = header.size_bytes.div_ceil(header.cluster_bytes());
    let used = report.allocated_clusters;
    let said = match report.leaks {
        0 => "no errors, no leaks".to_owned(),
        leaks => format!(
            "no errors, {leaks} clusters leaked ({}), which `qemu-img check -r leaks {name}` gives \
             back",
            human_bytes(leaked_bytes(header, report))
        ),
    };
    format!("image {name}: {said}; {used} of {total} clusters allocated\n")
}

fn findings_text(report: &Report) -> String {
    let mut text: String = report.findings.iter().map(|it| format!("{it}\n")).collect();
    let all = report.corruptions + report.leaks;
    let told = report.findings.len() as u64;
    if all > told {
        text += &format!("… {told} of {all} findings\n");
    }
    text
}

fn map(context: &Context, path: &Path) -> Result<()> {
    let rules = Rules::default();
    let opened = with_patience(path, |patience| chain::open(path, &rules, patience))?;
    let (mut walk, mut metadata) = (Walk::default(), Metadata::default());
    let (mut runs, mut total) = (Vec::new(), 0_u64);
    while let Err(stop) = walk.go(&opened.chain, &mut metadata, |run| {
        total += 1;
        if runs.len() < RUNS_MAX {
            runs.push(run);
        }
    }) {
        let met = metadata.meet(&opened, stop);
        met.map_err(|fault| failed(path, fault))?;
    }
    let document = map_json(&opened, &runs, total);
    context
        .output()
        .document(&document, || map_text(&opened, &runs, total))
}

/// What a run is, and where in its file.
fn kind_of(run: &Part) -> (&'static str, Option<u64>) {
    match (run.content, run.file) {
        (_, None) => ("none", None),
        (Content::Zero, _) => ("zero", None),
        (Content::Data { at }, _) => ("data", Some(at)),
        (Content::Compressed { from, .. }, _) => ("compressed", Some(from.at)),
    }
}

fn path_of(opened: &Opened, FileIndex(depth): FileIndex) -> String {
    opened.links[usize::from(depth)].path.display().to_string()
}

fn map_json(opened: &Opened, runs: &[Part], total: u64) -> Value {
    let extents = runs.iter().map(|run| {
        let (kind, offset) = kind_of(run);
        json!({
            "start": run.span.at,
            "length": run.span.bytes,
            "kind": kind,
            "depth": run.file.map(|FileIndex(depth)| depth),
            "file": run.file.map(|it| path_of(opened, it)),
            "offset": offset,
        })
    });
    json!({
        "file": path_of(opened, FileIndex(0)),
        "size_bytes": opened.chain.size_bytes(),
        "extents": extents.collect::<Vec<Value>>(),
        "extents_total": total,
        "extents_truncated": total > runs.len() as u64,
    })
}

fn map_text(opened: &Opened, runs: &[Part], total: u64) -> String {
    let rows = runs.iter().map(|run| {
        let (kind, offset) = kind_of(run);
        vec![
            run.span.at.to_string(),
            run.span.bytes.to_string(),
            kind.to_owned(),
            offset.map_or_else(String::new, |it| it.to_string()),
            run.file.map_or_else(String::new, |it| path_of(opened, it)),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let head = ["START", "LENGTH", "WHAT", "OFFSET", "FILE"];
    let mut text = output::table(&head, &rows, &[0, 1, 3]);
    if total > runs.len() as u64 {
        text += &format!("… {} of {total} runs\n", runs.len());
    }
    text
}
