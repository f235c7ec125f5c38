//! `tenuto status`.

use super::{Context, copies, output, volume};
use crate::config::units::{human_bytes, human_seconds};
use crate::error::{Error, Kind, Result};
use clap::Args;
use serde_json::{Value, json};

#[derive(Debug, Args)]
pub struct Status {
    /// Print only what is wrong, nothing if all is well; ends with code 1 if anything is
    #[arg(short = 'x')]
    only_wrong: bool,
}

pub fn run(context: &Context, command: &Status) -> Result<()> {
    let status = context.client()?.get("/v1/status")?;
    if command.only_wrong {
        return wrong_only(context, &status);
    }
    context
        .output()
        .document(&status, || text(context, &status))
}

fn wrong_only(context: &Context, status: &Value) -> Result<()> {
    let troubles: Vec<&str> = status["troubles"]
        .as_array()
        .map(|lines| lines.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let document = json!({ "ok": troubles.is_empty(), "troubles": troubles });
    context.output().document(&document, || {
        troubles.iter().map(|line| format!("{line}\n")).collect()
    })?;
    match troubles.is_empty() {
        true => Ok(()),
        // The lines above say it all; a second line on standard error would be noise.
        false => Err(Error {
            kind: Kind::Failed,
            message: String::new(),
            object: None,
        }),
    }
}

/// How far a scrub is, or what the last one found.
fn scrub_text(scrub: &Value) -> Option<String> {
    let number = |key: &str| scrub[key].as_u64().unwrap_or(0);
    if scrub.is_null() {
        return None;
    }
    let state = match (scrub["running"] == true, scrub["complete"] == true) {
        (true, _) => format!("under way, of {}: ", human_bytes(number("total_bytes"))),
        (false, true) => {
            let ago = human_seconds(number("ended_seconds_ago"));
            format!("ended {ago} ago: ")
        }
        (false, false) => "broken off: ".to_owned(),
    };
    let damage = match number("damaged_bytes") {
        0 => String::new(),
        bytes => format!(", {} damaged", human_bytes(bytes)),
    };
    Some(state + &super::scrub::words(scrub) + &damage)
}

fn text(context: &Context, status: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let cache = &status["cache"];
    let ram = &status["ram"];
    let recovery = &status["recovery"];
    let word = |value: &Value| value.as_str().unwrap_or("-").to_string();
    let drained = match status["drained"] == true {
        true => " (drained; `tenuto drain --undo` ends that)",
        false => "",
    };
    let scrub = scrub_text(&cache["scrub"]);
    let mut fields = vec![
        ("host", word(&status["host"]) + drained),
        ("version", word(&status["version"])),
        ("up", human_seconds(number(&status["uptime_seconds"]))),
        (
            "cache",
            format!(
                "{}: {} of {} in use, {} dirty, {} index",
                word(&cache["path"]),
                human_bytes(number(&cache["used_bytes"])),
                human_bytes(number(&cache["size_bytes"])),
                human_bytes(number(&cache["dirty_bytes"])),
                human_bytes(number(&cache["index_bytes"])),
            ),
        ),
        (
            "ram",
            format!(
                "{} of {} in use, stage {} of {} slots busy",
                human_bytes(number(&ram["used_bytes"])),
                human_bytes(number(&ram["size_bytes"])),
                number(&ram["stage_slots_busy"]),
                number(&ram["stage_slots"]),
            ),
        ),
        (
            "recovery",
            format!(
                "{} ms, {} records replayed, {} of torn tail discarded",
                number(&recovery["ms"]),
                number(&recovery["records_replayed"]),
                human_bytes(number(&recovery["tail_bytes_discarded"])),
            ),
        ),
    ];
    fields.extend(scrub.map(|text| ("scrub", text)));
    fields.extend(copies::kept(status).map(|text| ("copies", text)));
    let mut text = output::fields(&fields);
    let volumes = status["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    if !volumes.is_empty() {
        text.push('\n');
        text.push_str(&volume::list_text(&context.output(), volumes));
    }
    text
}
