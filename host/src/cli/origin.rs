//! `tenuto origin inspect|replay IMAGE`.

use super::{Context, output};
use crate::config::units::human_bytes;
use crate::error::{Error, Kind, Result};
use crate::inspect::{self, Beside};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show ledger and journal beside an image; ends with code 5 if they are damaged
    Inspect(Image),
    /// Finish a pending journal and clear a guard, so that the image is consistent by itself
    Replay(Image),
}

#[derive(Debug, Args)]
pub struct Image {
    /// The image, or an export as nbd://host/name
    image: PathBuf,
    /// Where ledger and journal lie if not beside the image
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
}

pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Inspect(image) => inspect(context, &image),
        Command::Replay(image) => {
            super::offline::replay(context, &image.image, image.journal.as_deref())
        }
    }
}

fn inspect(context: &Context, image: &Image) -> Result<()> {
    let found = inspect::look_beside(&image.image, image.journal.as_deref())?;
    let document = inspect::beside_json(&found);
    if let Some(damage) = found.damage.first() {
        let more = found.damage.len() - 1;
        let more = if more > 0 {
            format!(" (and {more} more)")
        } else {
            String::new()
        };
        let message = format!("{damage}{more}; do not use the image without its owner's cache");
        return Err(Error::new(Kind::Damaged, message).about(image.image.display().to_string()));
    }
    context.output().document(&document, || text(&found))
}

fn text(found: &Beside) -> String {
    let mut rows = vec![
        ("image", found.image.display().to_string()),
        ("size", human_bytes(found.image_bytes)),
    ];
    match &found.ledger {
        None => rows.push(("ledger", "none".into())),
        Some(ledger) => {
            rows.push(("ledger", found.ledger_path.display().to_string()));
            rows.push((
                "owner",
                format!("{} (machine {})", ledger.owner, ledger.machine),
            ));
            rows.push(("volume", ledger.volume.to_string()));
            rows.push(("generation", ledger.generation.to_string()));
            rows.push(("destaged", format!("up to serial {}", ledger.destaged)));
            let dirty = match ledger.dirty {
                true => "the owner may hold newer data",
                false => "no cache holds newer data",
            };
            rows.push(("dirty", dirty.into()));
        }
    }
    match (&found.journal, found.journal_bytes) {
        (Some(journal), _) => rows.push((
            "journal",
            format!(
                "{} in {} entries, up to serial {}",
                human_bytes(journal.total_bytes),
                journal.entries.len(),
                journal.upto
            ),
        )),
        (None, Some(0)) => rows.push(("journal", "empty".into())),
        (None, Some(bytes)) => rows.push(("journal", format!("torn, {}", human_bytes(bytes)))),
        (None, None) => rows.push(("journal", "none".into())),
    }
    let pending = match found.pending() {
        true => "yes; `tenuto origin replay` finishes it",
        false => "no",
    };
    rows.push(("pending", pending.into()));
    output::fields(&rows)
}
