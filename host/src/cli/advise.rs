//! `tenuto advise`: who needs what of the cache.
//!
//! Owns how the document of the daemon looks. Always true: it changes nothing.

use super::reply::{number, text};
use super::{Context, output};
use crate::config::units::human_bytes;
use crate::error::Result;
use clap::Args;
use serde_json::Value;

#[derive(Debug, Args)]
pub struct Advise {
    /// Only these volumes; default: all
    names: Vec<String>,
}

pub fn run(context: &Context, advise: &Advise) -> Result<()> {
    let client = context.client()?;
    let mut document = client.get("/v1/advice")?;
    if !advise.names.is_empty() {
        let Some(volumes) = document["volumes"].as_array_mut() else {
            return Ok(());
        };
        for name in &advise.names {
            if !volumes.iter().any(|volume| volume["name"] == **name) {
                return Err(crate::error::Error::no_volume(name));
            }
        }
        volumes.retain(|volume| advise.names.iter().any(|name| volume["name"] == **name));
    }
    context.output().document(&document, || show(&document))
}

fn percent(ratio: &Value) -> String {
    let ratio = ratio.as_f64();
    ratio.map_or("-".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0))
}

fn tier(document: &Value, name: &str) -> String {
    let sizes = document[name].as_array().map_or(&[][..], Vec::as_slice);
    let at = |size: &Value| {
        let (bytes, ratio) = (human_bytes(number(&size["bytes"])), &size["hit_ratio"]);
        format!("{bytes}: {}", percent(ratio))
    };
    let now = sizes.get(1).map(at).unwrap_or_default();
    let others = sizes.iter().enumerate().filter(|(place, _)| *place != 1);
    let others: Vec<String> = others.map(|(_, size)| at(size)).collect();
    format!("hits with {now}; with {}\n", others.join(", with "))
}

fn row(volume: &Value) -> Vec<String> {
    let rate = |key| format!("{}/s", human_bytes(number(&volume[key])));
    let bytes = |key| human_bytes(number(&volume[key]));
    let weight = number(&volume["weight"]).to_string();
    vec![
        text(&volume["name"]),
        rate("read_bytes_per_second"),
        percent(&volume["again_ratio"]),
        percent(&volume["hit_ratio"]),
        bytes("ram_bytes"),
        bytes("ssd_bytes"),
        rate("write_bytes_per_second"),
        bytes("dirty_bytes"),
        match volume["auto"] == true {
            true => weight + " (auto)",
            false => weight,
        },
        text(&volume["reason"]),
    ]
}

fn show(document: &Value) -> String {
    let seconds = crate::config::units::human_seconds(number(&document["seconds"]));
    let mut shown = format!("by what guests did in {seconds}; older counts for less\n");
    shown += &format!("ram: {}", tier(document, "ram"));
    shown += &format!("ssd: {}", tier(document, "ssd"));
    let volumes = document["volumes"].as_array();
    let volumes = volumes.map_or(&[][..], Vec::as_slice);
    let rows: Vec<Vec<String>> = volumes.iter().map(row).collect();
    let head = [
        "NAME", "READS", "AGAIN", "HITS", "RAM", "SSD", "WRITES", "DIRTY", "WEIGHT", "REASON",
    ];
    shown += "\n";
    shown += &output::table(&head, &rows, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let none = volumes.iter().filter(|volume| volume["gains"] == false);
    let none: Vec<String> = none.map(|volume| text(&volume["name"])).collect();
    if !none.is_empty() {
        shown += &format!("\nthe cache gives nothing to: {}\n", none.join(", "));
    }
    shown
}
