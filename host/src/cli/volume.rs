//! `tenuto volume …`: everything that is said to a running daemon about its volumes.

use super::Context;
use super::checkpoint;
use super::copies;
use super::device;
use super::give::Show;
use super::output::{self, Output};
use super::progress::{self, Pending, Progress, Work};
use super::reply::done;
pub(super) use super::reply::{number, text, url};
use crate::admin::client::{Client, PATIENT, PROMPT};
use crate::config::keys::check_name;
use crate::config::parse::split_argument;
use crate::config::units::{human_bytes, human_seconds, show_millis};
use crate::error::{Error, Result};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List all volumes: policy, state, size, dirty data, clients
    #[command(visible_alias = "list")]
    Ls(List),
    /// Show everything about one volume, and what is lost if this host dies now
    Show(Show),
    /// Attach a volume and keep it for the next start
    #[command(visible_alias = "create")]
    Add(Add),
    /// Change keys of a volume while its guest goes on, its policy included
    Set(Set),
    /// Detach and forget a volume; its origin's data is never touched
    #[command(visible_alias = "delete")]
    Rm(Remove),
    /// Bring dirty data to the origin
    #[command(visible_alias = "flush")]
    Destage(Destage),
    /// Empty the overlay of an ephemeral volume, so that its guest finds a clean disk
    Reset(Named),
    /// Make the overlay of an ephemeral volume the content of its image
    Commit(Named),
    /// Freeze what a qcow2 image has now, while its guest goes on in a new file above it
    Snapshot(Snapshot),
    /// Give a qcow2 image what its backing has, and let it stand on what that stands on
    Merge(Merge),
    /// Let a qcow2 image stand on another file, or on none, with the same disk
    Rebase(Rebase),
    /// Change the size of a volume and its image, while its guest goes on
    Resize(Resize),
    /// Open a backup window: the image has all that was written, and nothing writes it
    Quiesce(checkpoint::Quiesce),
    /// Close a backup window
    Resume(checkpoint::Resume),
    /// Know from now on what changes, for incremental backups
    Checkpoint(checkpoint::Checkpoint),
    /// Give this host a block device of a volume, for programs that take no other disk
    Device(device::AsDevice),
    /// Show where each range lies: RAM, SSD or origin
    Map(super::map::Map),
    /// Go on with a held volume from its last destaged state
    AcceptLoss(Remove),
    /// Keep the log of a volume whose image was replaced, and write it over the present image
    Takeover(Takeover),
    /// Let another host of the cluster serve a volume that no client uses
    Move(Move),
}

#[derive(Debug, Args)]
pub struct List {
    /// Only the names, one on each line
    #[arg(long)]
    names: bool,
}

#[derive(Debug, Args)]
pub struct Named {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
}

#[derive(Debug, Args)]
pub struct Keys {
    /// Name of the volume: letters, digits, `.`, `-` and `_`
    name: String,
    /// Any key of [[volume]], as in origin=/srv/a.img policy=write-back
    #[arg(value_name = "KEY=VALUE", required = true)]
    keys: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Add {
    #[command(flatten)]
    keys: Keys,
    /// Make the file that origin names: a qcow2 file that stands on this image
    #[arg(long, value_name = "FILE")]
    clone_of: Option<PathBuf>,
    /// With --clone-of: no extended L2 entries, which older programs do not know
    #[arg(long, requires = "clone_of")]
    plain: bool,
}

#[derive(Debug, Args)]
pub struct Set {
    #[command(flatten)]
    keys: Keys,
    /// Return when the change is in effect: a policy takes a while, all else is at once
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Args)]
pub struct Remove {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// Lose the data that is not at the origin; names the volume again
    #[arg(long, value_name = "NAME", require_equals = true)]
    discard_dirty: Option<String>,
}

#[derive(Debug, Args)]
pub struct Takeover {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// Write the data of the log over the present image; names the volume again
    #[arg(long, value_name = "NAME", require_equals = true, num_args = 0..=1)]
    #[arg(default_missing_value = "")]
    overwrite: Option<String>,
    /// The owner of the clustered volume can write no more: it is off, or cut from the storage
    #[arg(long, conflicts_with = "overwrite")]
    fenced: bool,
}

#[derive(Debug, Args)]
pub struct Move {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// Host of the cluster that is to serve it, as in `tenuto peer ls`
    #[arg(long, value_name = "HOST")]
    to: String,
}

#[derive(Debug, Args)]
pub struct Resize {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// New size as in 40GiB, or +8GiB to add that much
    size: String,
    /// Make the disk smaller and lose the data after its new end
    #[arg(long)]
    shrink: bool,
}

#[derive(Debug, Args)]
pub struct Merge {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// Remove the backing, if a snapshot of this volume has made it and nothing is seen to need it
    #[arg(long)]
    remove: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("below").required(true).args(["backing", "flatten"])))]
#[command(override_usage = "tenuto volume rebase [OPTIONS] <NAME> <BACKING|--flatten>")]
pub struct Rebase {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// File to stand on
    backing: Option<PathBuf>,
    /// What that file is; by its first bytes where that is not said
    #[arg(long, requires = "backing", value_parser = ["raw", "qcow2"])]
    format: Option<String>,
    /// Stand on no other file
    #[arg(long)]
    flatten: bool,
    /// Compare and copy nothing: the disk reads what the other file has
    #[arg(long)]
    r#unsafe: bool,
}

#[derive(Debug, Args)]
pub struct Snapshot {
    /// Name of the volume, as in `tenuto volume ls`; its group comes with it
    name: String,
    /// Name of the snapshot, which becomes part of the name of the file; the time by default
    snapshot: Option<String>,
    /// No extended L2 entries in the new file, which older programs do not know
    #[arg(long)]
    plain: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["name", "all"])))]
pub struct Destage {
    /// Name of the volume, as in `tenuto volume ls`
    name: Option<String>,
    /// Every volume that has dirty data
    #[arg(long)]
    all: bool,
    /// Return when everything written before is at the origin
    #[arg(long)]
    wait: bool,
}

pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Ls(command) => list(context, &command),
        Command::Show(command) => show(context, &command),
        Command::Add(command) => add(context, &command),
        Command::Set(command) => set(context, &command),
        Command::Rm(command) => remove(context, &command),
        Command::Destage(command) => destage(context, &command),
        Command::Reset(command) => reset(context, &command.name),
        Command::Commit(command) => commit(context, &command.name),
        Command::Snapshot(command) => snapshot(context, &command),
        Command::Merge(command) => merge(context, &command),
        Command::Rebase(command) => rebase(context, &command),
        Command::Resize(command) => resize(context, &command),
        Command::Quiesce(command) => checkpoint::quiesce(context, &command),
        Command::Resume(command) => checkpoint::resume(context, &command),
        Command::Checkpoint(command) => checkpoint::run(context, &command),
        Command::Device(command) => device::run(context, &command),
        Command::Map(command) => super::map::run(context, &command),
        Command::AcceptLoss(command) => accept_loss(context, &command),
        Command::Takeover(command) => takeover(context, &command),
        Command::Move(command) => move_to(context, &command),
    }
}

fn list(context: &Context, command: &List) -> Result<()> {
    let document = context.client()?.get("/v1/volumes")?;
    let output = context.output();
    let volumes = document["volumes"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    output.document(&document, || match command.names {
        true => volumes
            .iter()
            .map(|volume| text(&volume["name"]) + "\n")
            .collect(),
        false => list_text(&output, volumes),
    })
}

/// The table of `volume ls` and `status`.
pub fn list_text(output: &Output, volumes: &[Value]) -> String {
    let rows: Vec<Vec<String>> = volumes
        .iter()
        .map(|volume| {
            vec![
                text(&volume["name"]),
                text(&volume["effective_policy"]),
                output.state(state_text(volume)),
                bytes(&volume["size_bytes"]),
                dirty_bytes(volume),
                oldest(volume),
                overlay_bytes(volume),
                number(&volume["clients"]).to_string(),
                flags(volume),
                text(&volume["origin"]["path"]),
            ]
        })
        .collect();
    let head = [
        "NAME", "POLICY", "STATE", "SIZE", "DIRTY", "AGE", "OVERLAY", "CLIENTS", "FLAGS", "ORIGIN",
    ];
    output::table(&head, &rows, &[3, 4, 5, 6, 7])
}

/// An overlay is owed to no origin, and a volume that has one is not clean.
fn state_text(volume: &Value) -> &str {
    let state = volume["state"].as_str().unwrap_or("-");
    match (state, overlay_size(volume)) {
        ("clean" | "dirty", Some(1..)) => "overlay",
        _ => state,
    }
}

fn dirty_bytes(volume: &Value) -> String {
    match overlay_size(volume) {
        None => bytes(&volume["dirty_bytes"]),
        Some(_) => "-".into(),
    }
}

fn oldest(volume: &Value) -> String {
    match overlay_size(volume) {
        None => age(&volume["oldest_dirty_seconds"]),
        Some(_) => "-".into(),
    }
}

fn overlay_bytes(volume: &Value) -> String {
    overlay_size(volume).map_or("-".into(), human_bytes)
}

/// What an ephemeral volume holds of its own.
fn overlay_size(volume: &Value) -> Option<u64> {
    let overlay = &volume["overlay"];
    Some(overlay["ram_bytes"].as_u64()? + overlay["ssd_bytes"].as_u64()?)
}

fn show(context: &Context, command: &Show) -> Result<()> {
    let Some(name) = command.alone()? else {
        return super::give::give(context, command);
    };
    let volume = context.client()?.get(&url(name, "")?)?;
    let output = context.output();
    output.document(&volume, || show_text(&output, &volume))
}

fn show_text(output: &Output, volume: &Value) -> String {
    let mut rows = vec![
        ("name", text(&volume["name"])),
        ("origin", text(&volume["origin"]["path"])),
        ("image", image_text(&volume["image"])),
        ("policy", policy_text(volume)),
        ("write cache", on_off(&volume["write_cache"])),
        ("destage", text(&volume["effective_destage"])),
        ("state", output.state(state_text(volume)) + &reason(volume)),
        ("lost", text(&volume["held"]["lost"])),
        ("to go on", text(&volume["held"]["go_on"])),
        ("flags", flags(volume)),
        ("copies", copies::of_volume(&volume["replication"])),
        ("promise", text(&volume["promise"])),
        ("size", bytes(&volume["size_bytes"])),
        ("dirty", dirty_text(volume)),
        ("overlay", overlay_text(&volume["overlay"])),
        ("flow control", flow_text(volume)),
        ("block size", block_text(&volume["block_bytes"])),
        ("limit", limit_text(&volume["limit"])),
        ("serials", serials_text(volume)),
        ("clients", number(&volume["clients"]).to_string()),
        ("nbd socket", text(&volume["nbd_socket"])),
        ("vhost socket", text(&volume["vhost_socket"])),
    ];
    if volume["held"].is_null() {
        rows.retain(|(name, _)| !matches!(*name, "lost" | "to go on"));
    }
    if number(&volume["replication"]["wanted"]) == 0 && volume["replication"]["state"].is_null() {
        rows.retain(|(name, _)| *name != "copies");
    }
    if volume["image"].is_null() {
        rows.retain(|(name, _)| *name != "image");
    }
    rows.retain(|(name, value)| !matches!(*name, "limit" | "block size") || !value.is_empty());
    let not_its_own = match volume["overlay"].is_null() {
        true => "overlay",
        false => "dirty",
    };
    rows.retain(|(name, _)| *name != not_its_own);
    if volume["effective_destage"].is_null() {
        rows.retain(|(name, _)| *name != "destage");
    }
    rows.extend(traffic(volume));
    output::fields(&rows)
}

/// The policy in effect, and the one that was ordered where it is another.
fn policy_text(volume: &Value) -> String {
    let (effective, wanted) = (&volume["effective_policy"], &volume["policy"]);
    match effective == wanted {
        true => text(effective),
        false => format!("{} ({} is ordered)", text(effective), text(wanted)),
    }
}

/// The files below the origin, which stands in a row of its own.
fn image_text(image: &Value) -> String {
    let chain = image["chain"].as_array().map_or(&[][..], Vec::as_slice);
    let below = chain.iter().skip(1).map(text);
    let below: String = below.map(|name| format!(" on {name}")).collect();
    format!(
        "{}{below}; units of {}; {} of tables in RAM, {} on the SSD",
        text(&image["format"]),
        bytes(&image["unit_bytes"]),
        bytes(&image["metadata_ram_bytes"]),
        bytes(&image["metadata_ssd_bytes"]),
    )
}

fn on_off(value: &Value) -> String {
    if *value == true { "on" } else { "off" }.into()
}

/// What is not known is not zero.
fn bytes(value: &Value) -> String {
    value.as_u64().map_or("?".into(), human_bytes)
}

fn dirty_text(volume: &Value) -> String {
    let (dirty, writes) = (bytes(&volume["dirty_bytes"]), &volume["dirty_writes"]);
    let oldest = age(&volume["oldest_dirty_seconds"]);
    let more = match volume["dirty_before_start"] == true {
        true => "more than ",
        false => "",
    };
    format!("{dirty} in {writes} writes, oldest {more}{oldest}")
}

fn overlay_text(overlay: &Value) -> String {
    format!(
        "{} in RAM (of {}), {} on the SSD, {} reads served, age {}",
        bytes(&overlay["ram_bytes"]),
        bytes(&overlay["ram_limit_bytes"]),
        bytes(&overlay["ssd_bytes"]),
        overlay["hits"],
        age(&overlay["age_seconds"])
    )
}

fn flow_text(volume: &Value) -> String {
    let flow = &volume["flow_control"];
    if flow["active"] != true {
        return "not active".into();
    }
    let (reason, micros) = (text(&flow["reason"]), number(&flow["delay_us"]));
    let millis = micros as f64 / 1000.0;
    format!("active because of {reason}; writes are held for {millis:.1} ms")
}

/// Of the guest; empty where there is none.
/// Nothing for the one that all disks have.
fn block_text(block_bytes: &Value) -> String {
    match number(block_bytes) {
        0 | 512 => String::new(),
        _ => bytes(block_bytes),
    }
}

fn limit_text(limit: &Value) -> String {
    let mut parts = Vec::new();
    match number(&limit["iops"]) {
        0 => {}
        iops => parts.push(format!("{iops} requests/s")),
    }
    match number(&limit["bandwidth_bytes"]) {
        0 => {}
        _ => parts.push(format!("{}/s", bytes(&limit["bandwidth_bytes"]))),
    }
    match number(&limit["burst_ms"]) {
        0 => {}
        _ if parts.is_empty() => {}
        millis => parts.push(format!("{} of it at once", show_millis(millis))),
    }
    if number(&limit["waits"]) > 0 {
        let (waits, millis) = (number(&limit["waits"]), number(&limit["waited_ms"]));
        parts.push(format!(
            "its guest waited {waits} times, {} in all",
            show_millis(millis)
        ));
    }
    parts.join(", ")
}

fn serials_text(volume: &Value) -> String {
    format!(
        "acknowledged {}, durable {}, destaged {}, generation {}",
        volume["acked_serial"],
        volume["durable_serial"],
        volume["destaged_serial"],
        volume["generation"]
    )
}

/// What has gone where since the daemon started.
fn traffic(volume: &Value) -> Vec<(&'static str, String)> {
    let (reads, writes) = (&volume["reads"], &volume["writes"]);
    let origin = &volume["origin"];
    let mut read = format!(
        "{} ({}): {} from RAM, {} from SSD, {} from the origin",
        reads["requests"],
        bytes(&reads["bytes"]),
        reads["ram_hits"],
        reads["ssd_hits"],
        reads["origin"]
    );
    if reads["remote"].as_u64().is_some_and(|count| count > 0) {
        let came = bytes(&reads["remote_bytes"]);
        read += &format!(", {} from the host before ({came})", reads["remote"]);
    }
    let written = format!(
        "{} ({}), {} overwritten before destage, {} flushes",
        writes["requests"],
        bytes(&writes["bytes"]),
        bytes(&writes["elided_bytes"]),
        volume["flushes"]
    );
    let at_origin = format!(
        "{} reads ({}), {} writes ({}), {} of journal, {} syncs, {} errors",
        origin["reads"],
        bytes(&origin["read_bytes"]),
        origin["writes"],
        bytes(&origin["write_bytes"]),
        bytes(&origin["journal_bytes"]),
        origin["syncs"],
        origin["errors"]
    );
    vec![
        ("reads", read),
        ("writes", written),
        ("at the origin", at_origin),
        ("read latency", latency_text(&volume["latency_us"]["read"])),
        (
            "write latency",
            latency_text(&volume["latency_us"]["write"]),
        ),
        (
            "flush latency",
            latency_text(&volume["latency_us"]["flush"]),
        ),
    ]
}

fn latency_text(values: &Value) -> String {
    let part = |key: &str| match values[key].as_f64() {
        Some(micros) => format!("{key} {micros} us"),
        None => format!("{key} -"),
    };
    [part("p50"), part("p99"), part("p999")].join(", ")
}

fn add(context: &Context, command: &Add) -> Result<()> {
    let name = &command.keys.name;
    check_name(name)
        .map_err(|wrong| Error::usage(format!("name: {}; {}", wrong.what, wrong.right)))?;
    let mut body = body(&command.keys.keys)?;
    body.insert("name".into(), json!(name));
    if let Some(image) = &command.clone_of {
        // The daemon has another working directory.
        let image = std::path::absolute(image).unwrap_or_else(|_| image.clone());
        body.insert("clone_of".into(), json!(image.display().to_string()));
        body.insert("plain".into(), json!(command.plain));
    }
    let reply = context
        .client()?
        .post("/v1/volumes", Some(&Value::Object(body)), PATIENT)?;
    done(context, &reply, &format!("volume {name}: attached"))
}

fn set(context: &Context, command: &Set) -> Result<()> {
    let name = &command.keys.name;
    let body = Value::Object(body(&command.keys.keys)?);
    let query = if command.wait { "?wait=true" } else { "" };
    let reply = context
        .client()?
        .patch(&url(name, query)?, &body, PATIENT)?;
    let (wanted, effective) = (&reply["policy"], &reply["effective_policy"]);
    let line = match body.get("policy").is_some() && wanted != effective {
        true => format!(
            "volume {name}: changes from {} to {}",
            text(effective),
            text(wanted)
        ),
        false => format!("volume {name}: changed"),
    };
    done(context, &reply, &line)
}

/// `KEY=VALUE`s as the JSON object of a request. Paths are made absolute on this side: the
/// daemon has another working directory.
fn body(keys: &[String]) -> Result<Map<String, Value>> {
    let mut body = Map::new();
    for argument in keys {
        let (key, mut value) = split_argument(argument)?;
        let is_path = matches!(key.as_str(), "origin" | "journal") && !value.contains(':');
        if is_path && let Ok(path) = std::path::absolute(&value) {
            value = path.display().to_string();
        }
        if body.insert(key.replace('-', "_"), json!(value)).is_some() {
            return Err(Error::usage(format!("{key}: is given twice; give it once")));
        }
    }
    Ok(body)
}

fn remove(context: &Context, command: &Remove) -> Result<()> {
    let name = &command.name;
    let query = discarded(command)?;
    let reply = context.client()?.delete(&url(name, &query)?, PATIENT)?;
    done(context, &reply, &format!("volume {name}: removed"))
}

/// The volume that `--discard-dirty` names, as a query.
fn discarded(command: &Remove) -> Result<String> {
    Ok(match &command.discard_dirty {
        Some(discard) => {
            check_name(discard).map_err(|_| Error::no_volume(discard))?;
            format!("?discard_dirty={discard}")
        }
        None => String::new(),
    })
}

fn accept_loss(context: &Context, command: &Remove) -> Result<()> {
    let name = &command.name;
    let path = url(name, &format!("/accept-loss{}", discarded(command)?))?;
    let reply = context.client()?.post(&path, None, PATIENT)?;
    done(
        context,
        &reply,
        &format!("volume {name}: goes on from its last destaged state"),
    )
}

fn takeover(context: &Context, command: &Takeover) -> Result<()> {
    let name = &command.name;
    if command.fenced {
        let path = url(name, "/takeover?fenced=true")?;
        let reply = context.client()?.post(&path, None, PATIENT)?;
        return done(context, &reply, &format!("volume {name}: is served here"));
    }
    let Some(again) = &command.overwrite else {
        return Err(Error::later(
            "`tenuto volume takeover without --overwrite` is",
        ));
    };
    if !again.is_empty() {
        check_name(again).map_err(|_| Error::no_volume(again))?;
    }
    let path = url(name, &format!("/takeover?overwrite={again}"))?;
    let reply = context.client()?.post(&path, None, PATIENT)?;
    done(
        context,
        &reply,
        &format!("volume {name}: its log is written over the image that is there"),
    )
}

fn move_to(context: &Context, command: &Move) -> Result<()> {
    let (name, to) = (&command.name, &command.to);
    let body = json!({ "to": to });
    let path = url(name, "/move")?;
    let reply = context.client()?.post(&path, Some(&body), PATIENT)?;
    let notes = reply["notes"].as_array();
    let words = match notes.is_some_and(|notes| !notes.is_empty()) {
        true => format!("volume {name}: is let go of"),
        false => format!("volume {name}: {to} has it"),
    };
    done(context, &reply, &words)
}

fn resize(context: &Context, command: &Resize) -> Result<()> {
    let name = &command.name;
    let body = json!({ "size": command.size, "shrink": command.shrink });
    let mut reply = context
        .client()?
        .post(&url(name, "/resize")?, Some(&body), PATIENT)?;
    if let Some(note) = device::grow(name, number(&reply["size_bytes"])) {
        match reply["notes"].as_array_mut() {
            Some(notes) => notes.push(note.into()),
            None => reply["notes"] = json!([note]),
        }
    }
    let size = bytes(&reply["size_bytes"]);
    done(context, &reply, &format!("volume {name}: has {size}"))
}

fn merge(context: &Context, command: &Merge) -> Result<()> {
    let name = &command.name;
    let body = json!({ "remove": command.remove });
    let path = url(name, "/merge")?;
    let reply = context.client()?.post(&path, Some(&body), PATIENT)?;
    done(context, &reply, &format!("volume {name}: merged"))
}

fn rebase(context: &Context, command: &Rebase) -> Result<()> {
    let name = &command.name;
    let mut body = json!({ "unsafe": command.r#unsafe });
    match &command.backing {
        None => body["flatten"] = true.into(),
        Some(path) => {
            // The daemon has another working directory.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let text = path.to_str().ok_or_else(|| {
                Error::usage("the backing is no name in UTF-8; give it another one")
            })?;
            body["backing"] = text.into();
        }
    }
    if let Some(format) = &command.format {
        body["format"] = format.as_str().into();
    }
    let path = url(name, "/rebase")?;
    let reply = context.client()?.post(&path, Some(&body), PATIENT)?;
    done(context, &reply, &format!("volume {name}: rebased"))
}

fn snapshot(context: &Context, command: &Snapshot) -> Result<()> {
    let name = &command.name;
    let body = match &command.snapshot {
        Some(snapshot) => json!({ "name": snapshot, "plain": command.plain }),
        None => json!({ "plain": command.plain }),
    };
    let path = url(name, "/snapshot")?;
    let reply = context.client()?.post(&path, Some(&body), PATIENT)?;
    done(context, &reply, &format!("volume {name}: snapshot taken"))
}

fn destage(context: &Context, command: &Destage) -> Result<()> {
    let client = context.client()?;
    let names = match &command.name {
        Some(name) => vec![name.clone()],
        None => dirty_volumes(&client)?,
    };
    // All start before the first is waited for.
    let mut replies = Vec::new();
    if !command.wait || names.len() > 1 {
        for name in &names {
            replies.push(client.post(&url(name, "/destage")?, None, PROMPT)?);
        }
    }
    if command.wait {
        replies = wait_for_destage(context, client, names.clone())?;
    }
    let document = match (&command.name, replies.as_slice()) {
        (Some(_), [reply]) => reply.clone(),
        _ => json!({ "volumes": replies }),
    };
    let what = if command.wait {
        "is at the origin"
    } else {
        "destage started"
    };
    context.output().confirmation(&document, || {
        names
            .iter()
            .map(|name| format!("volume {name}: {what}\n"))
            .collect()
    })
}

/// Waits until all of them are at their origins, and shows how far they are.
fn wait_for_destage(context: &Context, client: Client, names: Vec<String>) -> Result<Vec<Value>> {
    let object = match names.as_slice() {
        [name] => name.clone(),
        names => format!("{} volumes", names.len()),
    };
    let work = Work {
        verb: "destage",
        object,
        counted: "dirty data destaged",
    };
    let orders = names
        .iter()
        .map(|name| url(name, "/destage?wait=true"))
        .collect::<Result<Vec<String>>>()?;
    let asked = client.clone();
    let left = move || pending(&asked, &names);
    let order = move || {
        let order = |path: &String| client.post(path, None, PATIENT);
        orders.iter().map(order).collect()
    };
    let goes_on = "the daemon goes on with it; `tenuto volume ls` shows its dirty data";
    progress::wait_for_order(Progress::new(context, work, Some(0)), left, order, goes_on)
}

/// What these volumes still have to bring to their origins; `None` where the daemon does not say.
pub fn pending(client: &Client, names: &[String]) -> Option<Pending> {
    if let [name] = names {
        return Some(pending_of(&client.get(&url(name, "").ok()?).ok()?));
    }
    let document = client.get("/v1/volumes").ok()?;
    let volumes = document["volumes"].as_array()?;
    let asked = |volume: &&Value| names.iter().any(|name| volume["name"] == name.as_str());
    let pending = volumes.iter().filter(asked).map(pending_of);
    Some(pending.fold(Pending::default(), Pending::and))
}

fn pending_of(volume: &Value) -> Pending {
    let origin = &volume["origin"];
    // An overlay has no destage, but its commit goes the way of one.
    let way = match &volume["effective_destage"] {
        Value::Null => &volume["destage"],
        effective => effective,
    };
    let atomic = *way == "atomic";
    let journal = atomic.then(|| number(&origin["journal_bytes"]));
    let left_bytes = number(&volume["dirty_bytes"]);
    Pending::new(left_bytes, number(&origin["write_bytes"]), journal)
}

/// Volumes that have something to destage.
fn dirty_volumes(client: &Client) -> Result<Vec<String>> {
    let document = client.get("/v1/volumes")?;
    let volumes = document["volumes"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let owes = |volume: &&Value| volume["policy"] != "ephemeral";
    Ok(volumes
        .iter()
        .filter(owes)
        .map(|volume| text(&volume["name"]))
        .collect())
}

fn reset(context: &Context, name: &str) -> Result<()> {
    let reply = context
        .client()?
        .post(&url(name, "/reset")?, None, PATIENT)?;
    done(context, &reply, &format!("volume {name}: reset"))
}

fn commit(context: &Context, name: &str) -> Result<()> {
    let reply = context
        .client()?
        .post(&url(name, "/commit")?, None, PATIENT)?;
    done(context, &reply, &format!("volume {name}: committed"))
}

fn age(value: &Value) -> String {
    value.as_u64().map_or("-".into(), human_seconds)
}

fn reason(volume: &Value) -> String {
    volume["effective_reason"]
        .as_str()
        .map_or(String::new(), |reason| format!(" ({reason})"))
}

fn flags(volume: &Value) -> String {
    let flags = volume["flags"].as_array().map_or(&[][..], Vec::as_slice);
    let flags: Vec<&str> = flags.iter().filter_map(Value::as_str).collect();
    if flags.is_empty() {
        "-".into()
    } else {
        flags.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Output = Output {
        json: false,
        quiet: false,
        color: false,
    };

    /// The cells of the second line of the table.
    fn row(volume: &Value) -> Vec<String> {
        let table = list_text(&PLAIN, std::slice::from_ref(volume));
        let line = table.lines().nth(1).expect("a row");
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn the_table_has_what_is_in_effect() {
        let mut volume = json!({
            "name": "disk", "policy": "write-back", "effective_policy": "write-through",
            "state": "dirty", "size_bytes": 1 << 20, "dirty_bytes": 8192,
            "oldest_dirty_seconds": 5, "overlay": null, "clients": 1,
            "flags": ["destaging"], "origin": { "path": "/srv/a.img" },
        });
        let expected = [
            "disk",
            "write-through",
            "dirty",
            "1 MiB",
            "8 KiB",
            "5 s",
            "-",
            "1",
            "destaging",
            "/srv/a.img",
        ];
        assert_eq!(row(&volume), expected);
        // What an overlay holds is owed to no origin, and such a volume is not clean.
        volume["effective_policy"] = json!("ephemeral");
        volume["overlay"] = json!({ "ram_bytes": 8192, "ssd_bytes": 4096 });
        volume["flags"] = json!(["guest-ended"]);
        let expected = [
            "disk",
            "ephemeral",
            "overlay",
            "1 MiB",
            "-",
            "-",
            "12 KiB",
            "1",
            "guest-ended",
            "/srv/a.img",
        ];
        assert_eq!(row(&volume), expected);
        volume["state"] = json!("clean");
        volume["overlay"] = json!({ "ram_bytes": 0, "ssd_bytes": 0 });
        assert_eq!(row(&volume)[2..7], ["clean", "1 MiB", "-", "-", "0 B"]);
        volume["state"] = json!("stalled");
        volume["overlay"]["ram_bytes"] = json!(4096);
        assert_eq!(row(&volume)[2], "stalled");
    }
}
