//! `tenuto volume map`: the document of the daemon as a table.
//!
//! Owns how it looks: totals in the order in which a reader looks, and the ranges if they were
//! asked for. Deliberately absent: what lies where, which the daemon says.

use super::Context;
use super::output;
use super::reply::url;
use super::volume::{number, text};
use crate::config::units::human_bytes;
use crate::error::Result;
use clap::Args;
use serde_json::Value;

#[derive(Debug, Args)]
pub struct Map {
    /// Name of the volume, as in `tenuto volume ls`
    name: String,
    /// List the ranges as well; with --json they are always there
    #[arg(long)]
    extents: bool,
}

pub fn run(context: &Context, command: &Map) -> Result<()> {
    let document = context.client()?.get(&url(&command.name, "/map")?)?;
    let output = context.output();
    output.document(&document, || map_text(&document, command.extents))
}

fn map_text(map: &Value, extents: bool) -> String {
    const PLACES: [(&str, &str); 6] = [
        ("stage", "written by the guest, in RAM only"),
        ("log", "written by the guest, on the SSD"),
        ("zero", "written as zeroes or discarded"),
        ("ram", "clean copies in RAM"),
        ("ssd", "clean copies on the SSD"),
        ("origin", "read from the origin"),
    ];
    let row = |(place, meaning): &(&str, &str)| {
        let bytes = number(&map["totals"][format!("{place}_bytes")]);
        vec![
            (*place).to_owned(),
            bytes.to_string(),
            human_bytes(bytes),
            (*meaning).to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = PLACES.iter().map(row).collect();
    let mut shown = output::table(&["WHERE", "BYTES", "SIZE", "WHAT"], &rows, &[1, 2]);
    if !extents {
        return shown;
    }
    let listed = map["extents"].as_array().map_or(&[][..], Vec::as_slice);
    let row = |extent: &Value| {
        let zero = if extent["zero"] == true { "zero" } else { "" };
        let place = text(&extent["where"]);
        vec![
            number(&extent["start"]).to_string(),
            number(&extent["length"]).to_string(),
            place,
            zero.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
    shown.push('\n');
    shown += &output::table(&["START", "LENGTH", "WHERE", ""], &rows, &[0, 1]);
    if map["extents_truncated"] == true {
        let total = number(&map["extents_total"]);
        shown += &format!("… {} of {total} ranges\n", listed.len());
    }
    shown
}
