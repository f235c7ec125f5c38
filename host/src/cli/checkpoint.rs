//! `tenuto volume quiesce`, `resume` and `checkpoint`: backups as administrators order them.
//!
//! Owns how the documents of the daemon look. Deliberately absent: what a checkpoint is, which the
//! daemon says.

use super::Context;
use super::output;
use super::reply::{done, number, text, url};
use crate::admin::client::PATIENT;
use crate::config::keys::check_name;
use crate::config::units::human_bytes;
use crate::error::{Error, Result};
use clap::Args;
use serde_json::{Value, json};

#[derive(Debug, Args)]
pub struct Quiesce {
    /// Name of the volume, as in `tenuto volume ls`; its group comes with it
    name: String,
    /// Name of a checkpoint at this cut: from it on is known what changes
    #[arg(long)]
    checkpoint: Option<String>,
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
        Some(checkpoint) => format!("?checkpoint={}", checked(name, checkpoint)?),
        None => String::new(),
    };
    let path = url(name, &format!("/quiesce{query}"))?;
    let reply = context.client()?.post(&path, None, PATIENT)?;
    let done_is = "its image has all that was written, and rests until `tenuto volume resume`";
    done(context, &reply, &format!("volume {name}: {done_is}"))
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
