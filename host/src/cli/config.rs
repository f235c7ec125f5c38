//! `tenuto config --check` and `--explain`.

use super::{Context, output};
use crate::config::explain::{self, Row};
use crate::config::{Config, check, locate, state};
use crate::error::Result;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["check", "explain"])))]
pub struct Check {
    /// Check the file and what it names; nothing is started
    #[arg(long)]
    check: bool,
    /// Every key with its value, where it comes from and what it means
    #[arg(long)]
    explain: bool,
    /// The file; default: that of --config, $TENUTO_CONFIG, or /etc/tenuto/tenuto.toml
    file: Option<PathBuf>,
}

pub fn run(context: &Context, command: &Check) -> Result<()> {
    let asked = command.file.as_deref().or(context.common.config.as_deref());
    let config = Config::load(&locate(asked))?;
    // Another user than the daemon's may not read what it keeps.
    let config = config.clone().with_records().unwrap_or(config);
    if command.check {
        check::check(&config)?;
        return confirm(context, &config);
    }
    explain_all(context, &config)
}

fn confirm(context: &Context, config: &Config) -> Result<()> {
    let path = config.path.display().to_string();
    let added = state::load(config)?.len();
    let named = config.volumes.len();
    let document = json!({ "file": path, "ok": true, "volumes": named, "added_volumes": added });
    context.output().confirmation(&document, || {
        let noun = if named == 1 { "volume" } else { "volumes" };
        format!("{path}: ok, {named} {noun}, {added} more added at run time\n")
    })
}

fn explain_all(context: &Context, config: &Config) -> Result<()> {
    let rows = explain::explain(config);
    let listed: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "section": row.section, "key": row.key, "value": row.value,
                "from": row.from, "meaning": row.meaning,
            })
        })
        .collect();
    let document = json!({ "file": config.path.display().to_string(), "keys": listed });
    context.output().document(&document, || text(&rows))
}

/// For a terminal or a page of so many columns.
const COLUMNS: usize = 100;
/// A key with its value that is wider stands on a line of its own.
const VALUE_COLUMNS: usize = 36;
const INDENT: usize = 2;

fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    for section in rows.chunk_by(|a, b| a.section == b.section) {
        text.push_str(&format!("{}\n", section[0].section));
        section_text(section, &mut text);
    }
    text
}

/// What a key is, where that comes from, and what it means in as many lines as that takes.
fn section_text(section: &[Row], text: &mut String) {
    let value = |row: &Row| match row.value.as_str() {
        "" => format!("{} = -", row.key),
        value => format!("{} = {value}", row.key),
    };
    let widest = |widths: &mut dyn Iterator<Item = usize>, max| {
        widths.filter(|width| *width <= max).max().unwrap_or(0)
    };
    let count = |text: &str| text.chars().count();
    let left = widest(
        &mut section.iter().map(|row| count(&value(row))),
        VALUE_COLUMNS,
    );
    let middle = widest(&mut section.iter().map(|row| count(&row.from)), COLUMNS);
    let room = COLUMNS - (INDENT + left + 2 + middle + 2);
    for row in section {
        let mut before = value(row);
        if count(&before) > left {
            text.push_str(&format!("{:INDENT$}{before}\n", ""));
            before.clear();
        }
        let mut from = row.from.as_str();
        for part in output::wrap(row.meaning, room) {
            let line = format!("{:INDENT$}{before:left$}  {from:middle$}  {part}", "");
            text.push_str(line.trim_end());
            text.push('\n');
            (before, from) = (String::new(), "");
        }
    }
}
