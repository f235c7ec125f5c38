//! `tenuto peer`.

use super::{Context, output};
use crate::config::units::human_bytes;
use crate::error::Result;
use clap::Subcommand;
use serde_json::Value;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the other hosts with the state of their links
    #[command(visible_alias = "list")]
    Ls,
}

pub fn run(context: &Context, command: &Command) -> Result<()> {
    let Command::Ls = command;
    let document = context.client()?.get("/v1/peers")?;
    context
        .output()
        .document(&document, || text(context, &document))
}

fn text(context: &Context, document: &Value) -> String {
    if document["cluster"].is_null() {
        return "this host is in no cluster; `tenuto cluster init` makes one\n".into();
    }
    let peers = document["peers"].as_array().map_or(&[][..], Vec::as_slice);
    if peers.is_empty() {
        return "no other host is a member yet; `tenuto cluster token` lets one in\n".into();
    }
    let rows: Vec<Vec<String>> = peers.iter().map(|peer| row(context, peer)).collect();
    let head = [
        "HOST", "DOMAIN", "STATE", "LATENCY", "COPIES", "KEPT", "ROOM", "VERSION", "CLOCK", "ID",
        "REASON",
    ];
    output::table(&head, &rows, &[3, 4, 5, 6, 8])
}

fn row(context: &Context, peer: &Value) -> Vec<String> {
    let text = |key: &str| peer[key].as_str().filter(|text| !text.is_empty());
    let shown = |key: &str| text(key).unwrap_or("-").to_owned();
    let number = |key: &str, unit: &str| {
        let number = peer[key].as_i64();
        number.map_or("-".to_owned(), |number| format!("{number} {unit}"))
    };
    // Colours are those of volumes: a link that is up asks for nothing.
    let state = match text("state") {
        Some("up") => context.output().state("clean").replace("clean", "up"),
        Some("silent") => context
            .output()
            .state("stalled")
            .replace("stalled", "silent"),
        _ => context.output().state("down"),
    };
    vec![
        shown("host"),
        shown("domain"),
        state,
        number("latency_us", "us"),
        peer["copies"].to_string(),
        peer["copies_kept"].to_string(),
        peer["copy_room_bytes"]
            .as_u64()
            .map_or("-".to_owned(), human_bytes),
        shown("version"),
        number("clock_skew_ms", "ms"),
        shown("id"),
        text("reason").unwrap_or("").to_owned(),
    ]
}
