//! `tenuto volume quiesce`, `resume` and `checkpoint`: backups as administrators order them.
//!
//! Owns how the documents of the daemon look. Deliberately absent: what a checkpoint is, which the
//! daemon says.

use super::agent::{self, Failed, Work};
use super::arguments::latency;
use super::reply::{done, number, text, url};
use super::{Context, output};
use crate::admin::client::{Client, PATIENT, PROMPT};
use crate::config::keys::check_name;
use crate::config::units::human_bytes;
use crate::error::{Error, Result};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An order that is given up is not waited for longer than this before it is given up again.
const GIVES_UP: Duration = Duration::from_secs(1);
const GIVES_UP_TIMES: u32 = 10;

#[derive(Debug, Args)]
pub struct Quiesce {
    /// Name of the volume, as in `tenuto volume ls`; its group comes with it
    name: String,
    /// Name of a checkpoint at this cut: from it on is known what changes
    #[arg(long)]
    checkpoint: Option<String>,
    /// Let the image have what each flush covers until `resume`, in place of leaving it alone: for
    /// windows of hours, in which the storage takes its snapshots
    #[arg(long, conflicts_with_all = ["checkpoint", "agent"])]
    through: bool,
    /// Socket of the guest's agent: the guest's file systems are written out and held meanwhile
    #[arg(long, value_name = "SOCKET")]
    agent: Option<PathBuf>,
    /// The longest time for which the guest is held; then it goes on, and the command fails
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "agent")]
    agent_limit: String,
}

#[derive(Debug, Args)]
pub struct Resume {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// Cut off clients that still read the backup
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("act").args(["checkpoint", "list", "delete", "map"])))]
pub struct Checkpoint {
    /// Name of the volume, as in `tenuto volume ls`; its group comes with it
    name: String,
    /// Name of a new checkpoint; the time by default
    checkpoint: Option<String>,
    /// List the checkpoints, and what has changed since each
    #[arg(long)]
    list: bool,
    /// Forget a checkpoint
    #[arg(long, value_name = "CHECKPOINT")]
    delete: Option<String>,
    /// Show what has changed since a checkpoint
    #[arg(long, value_name = "CHECKPOINT")]
    map: Option<String>,
}

/// Part of a URL, which a name that is none does not get into.
fn checked<'a>(volume: &str, checkpoint: &'a str) -> Result<&'a str> {
    let checked = check_name(checkpoint).map(|()| checkpoint);
    checked.map_err(|why| {
        let right = why.right;
        let message =
            format!("volume {volume}: {checkpoint:?} is no name of a checkpoint; {right}");
        Error::usage(message).about(volume)
    })
}

pub fn quiesce(context: &Context, command: &Quiesce) -> Result<()> {
    let name = &command.name;
    let query = match &command.checkpoint {
        None if command.through => "?through=true".to_owned(),
        Some(checkpoint) => format!("?checkpoint={}", checked(name, checkpoint)?),
        None => String::new(),
    };
    let path = url(name, &format!("/quiesce{query}"))?;
    let client = context.client()?;
    let reply = match &command.agent {
        Some(agent) => {
            let limit = latency("--agent-limit", &command.agent_limit)?;
            quiesce_held(&client, name, path, agent, limit)?
        }
        None => client.post(&path, None, PATIENT)?,
    };
    let done_is = match command.through {
        true => {
            "its image has all that was written, and what each flush covers until `tenuto volume \
             resume`"
        }
        false => "its image has all that was written, and rests until `tenuto volume resume`",
    };
    done(context, &reply, &format!("volume {name}: {done_is}"))
}

/// The same while its guest is held. Where the guest was not held to the end, no window is left.
fn quiesce_held(
    client: &Client,
    name: &str,
    path: String,
    agent: &Path,
    limit: Duration,
) -> Result<Value> {
    if is_quiesced(client, name)? {
        let why = "is quiesced already, without its guest held";
        let right = format!("run `tenuto volume resume {name}` first");
        return Err(Error::failed(format!("volume {name}: {why}; {right}")).about(name));
    }
    // The guest goes on meanwhile, and stands for what it writes until then only.
    client.post(&url(name, "/destage?wait=true")?, None, PATIENT)?;
    let order = client.clone();
    let held = agent::hold(agent, limit, move || order.post(&path, None, PATIENT));
    let (mut reply, held) = held.map_err(|failed| match failed {
        Failed::Work(error) => error,
        Failed::Guest { error, work } => end_window(client, name, work, error),
    })?;
    let count = held.file_systems;
    let millis = u64::try_from(held.time.as_millis()).unwrap_or(u64::MAX);
    reply["guest"] = json!({ "file_systems": count, "held_ms": millis });
    let note = format!("{count} file systems of its guest were held for {millis} ms");
    match reply["notes"].as_array_mut() {
        Some(notes) => notes.push(note.into()),
        None => reply["notes"] = json!([note]),
    }
    Ok(reply)
}

fn is_quiesced(client: &Client, name: &str) -> Result<bool> {
    let document = client.get(&url(name, "")?)?;
    let flags = document["flags"].as_array();
    Ok(flags.is_some_and(|flags| flags.iter().any(|flag| flag == "quiesced")))
}

/// Ends a window that is of no use, also one that is about to begin.
fn end_window(client: &Client, name: &str, mut work: Work, error: Error) -> Error {
    let more = match give_up(client, name, &mut work) {
        Ok(()) => String::new(),
        Err(why) => format!(
            "; its image may rest later, until `tenuto volume resume {name}`: {}",
            why.message
        ),
    };
    let message = format!("volume {name}: {}{more}", error.message);
    Error::new(error.kind, message).about(name)
}

fn give_up(client: &Client, name: &str, work: &mut Work) -> Result<()> {
    let path = url(name, "/resume?force=false")?;
    let mut refused = None;
    for _ in 0..GIVES_UP_TIMES {
        // An order that has not come to the daemon yet is not given up by that.
        refused = client.post(&path, None, PROMPT).err();
        if let Some(opened) = work.end_within(GIVES_UP)
            && (!opened || !is_quiesced(client, name)?)
        {
            return Ok(());
        }
    }
    Err(refused.unwrap_or(Error::failed("what it waits for does not end")))
}

pub fn resume(context: &Context, command: &Resume) -> Result<()> {
    let name = &command.name;
    let path = url(name, &format!("/resume?force={}", command.force))?;
    let reply = context.client()?.post(&path, None, PATIENT)?;
    let what = "its image rested all the time, and is written again";
    done(context, &reply, &format!("volume {name}: {what}"))
}

pub fn run(context: &Context, command: &Checkpoint) -> Result<()> {
    let name = &command.name;
    let client = context.client()?;
    let output = context.output();
    if command.list {
        let document = client.get(&url(name, "/checkpoints")?)?;
        return output.document(&document, || list_text(&document));
    }
    if let Some(checkpoint) = &command.map {
        let path = format!("/checkpoints/{}", checked(name, checkpoint)?);
        let document = client.get(&url(name, &path)?)?;
        return output.document(&document, || map_text(&document));
    }
    if let Some(checkpoint) = &command.delete {
        let path = format!("/checkpoints/{}", checked(name, checkpoint)?);
        let reply = client.delete(&url(name, &path)?, PATIENT)?;
        let line = format!("volume {name}: checkpoint {checkpoint} is deleted");
        return done(context, &reply, &line);
    }
    let body = match &command.checkpoint {
        Some(checkpoint) => json!({ "name": checked(name, checkpoint)? }),
        None => json!({}),
    };
    let reply = client.post(&url(name, "/checkpoints")?, Some(&body), PATIENT)?;
    let made = text(&reply["checkpoint"]);
    let line = format!("volume {name}: what changes after checkpoint {made} is known");
    done(context, &reply, &line)
}

fn list_text(document: &Value) -> String {
    let all = document["checkpoints"].as_array();
    let row = |it: &Value| {
        vec![
            text(&it["name"]),
            text(&it["created"]),
            text(&it["state"]),
            it["changed_bytes"].as_u64().map_or("-".into(), human_bytes),
            it["reason"].as_str().unwrap_or_default().to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = all.into_iter().flatten().map(row).collect();
    output::table(&["NAME", "CREATED", "STATE", "CHANGED", ""], &rows, &[3])
}

fn map_text(document: &Value) -> String {
    let all = document["extents"].as_array().into_iter().flatten();
    let changed = all.filter(|it| it["changed"] == true);
    let row = |it: &Value| {
        let numbers = [&it["start"], &it["length"]];
        numbers.map(|it| number(it).to_string()).to_vec()
    };
    let rows: Vec<Vec<String>> = changed.map(row).collect();
    output::table(&["START", "LENGTH"], &rows, &[0, 1])
}
