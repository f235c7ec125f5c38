//! `tenuto drain`.

use super::Context;
use super::progress::{self, Progress, Work};
use super::volume::pending;
use crate::admin::client::{Client, PATIENT};
use crate::error::{Error, Result};
use clap::Args;
use serde_json::Value;

#[derive(Debug, Args)]
pub struct Drain {
    /// Give the volumes back the policies that were ordered for them
    #[arg(long, conflicts_with = "no_wait")]
    undo: bool,
    /// Return when the order is taken; `tenuto status` tells how far it is
    #[arg(long)]
    no_wait: bool,
}

pub fn run(context: &Context, command: &Drain) -> Result<()> {
    let client = context.client()?;
    let reply = match (command.undo, command.no_wait) {
        (true, _) => client.delete("/v1/drain", PATIENT)?,
        (false, true) => client.post("/v1/drain", None, PATIENT)?,
        (false, false) => drain(context, client)?,
    };
    let done = match (command.undo, command.no_wait) {
        (true, _) => "the host is not drained any more; volumes become what they were\n",
        (false, true) => "the host is being drained\n",
        (false, false) => "the host is drained: everything is at the origins\n",
    };
    let left = lines(&reply["left"]);
    context.output().confirmation(&reply, || {
        let mut text = String::new();
        if left.is_empty() {
            text.push_str(done);
        }
        text.extend(
            lines(&reply["notes"])
                .iter()
                .map(|line| format!("{line}\n")),
        );
        text
    })?;
    match left.as_slice() {
        [] => Ok(()),
        [one] => Err(Error::failed(one.clone())),
        [first, rest @ ..] => Err(Error::failed(format!(
            "{first} (and {} more; see `tenuto status`)",
            rest.len()
        ))),
    }
}

/// Waits until it is done, and shows how far it is.
fn drain(context: &Context, client: Client) -> Result<Value> {
    let listed = client.get("/v1/volumes")?;
    let volumes = listed["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let owing = volumes
        .iter()
        .filter(|volume| volume["policy"] == "write-back");
    let names: Vec<String> = owing
        .filter_map(|volume| volume["name"].as_str().map(str::to_owned))
        .collect();
    let asked = client.clone();
    let left = move || pending(&asked, &names);
    let order = move || client.post("/v1/drain?wait=true", None, PATIENT);
    let work = Work {
        verb: "drain",
        object: "the host".into(),
        counted: "dirty data destaged",
    };
    let goes_on = "the daemon goes on with it; `tenuto status` shows how far it is";
    progress::wait_for_order(Progress::new(context, work, Some(0)), left, order, goes_on)
}

fn lines(value: &Value) -> Vec<String> {
    let lines = value.as_array().map_or(&[][..], Vec::as_slice);
    let lines = lines.iter().filter_map(Value::as_str);
    lines.map(str::to_owned).collect()
}
