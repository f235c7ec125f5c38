//! `tenuto drain`.

use super::Context;
use crate::admin::client::PATIENT;
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
        (true, _) => client.delete("/v1/drain")?,
        (false, true) => client.post("/v1/drain", None, PATIENT)?,
        (false, false) => client.post("/v1/drain?wait=true", None, PATIENT)?,
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

fn lines(value: &Value) -> Vec<String> {
    let lines = value.as_array().map_or(&[][..], Vec::as_slice);
    let lines = lines.iter().filter_map(Value::as_str);
    lines.map(str::to_owned).collect()
}
