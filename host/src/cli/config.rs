//! `tenuto config --check` and `--explain`.

use super::{Context, output};
use crate::config::{Config, check, explain, locate, state};
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
    context.output().document(&document, || {
        let mut text = String::new();
        let mut rest = rows.as_slice();
        while let Some(first) = rest.first() {
            let end = rest.iter().position(|row| row.section != first.section);
            let (section, tail) = rest.split_at(end.unwrap_or(rest.len()));
            let cells: Vec<Vec<String>> = section
                .iter()
                .map(|row| {
                    let value = if row.value.is_empty() {
                        "-"
                    } else {
                        &row.value
                    };
                    vec![
                        format!("{} = {value}", row.key),
                        row.from.clone(),
                        row.meaning.into(),
                    ]
                })
                .collect();
            text.push_str(&format!("{}\n", first.section));
            let table = output::table(&[""; 3], &cells, &[]);
            text.extend(table.lines().skip(1).map(|line| format!("  {line}\n")));
            rest = tail;
        }
        text
    })
}
