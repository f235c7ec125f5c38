//! A part of the report that is not of the engine in virtual time: its tables.
//!
//! Always true: rows are as long as their head; what is not proven is a note, and the run that has
//! it fails. Deliberately absent: how it was measured.

use crate::plot::escape;
use crate::report::{self as frame, Table};
use serde_json::Value;

/// One table.
pub struct Grid {
    pub head: &'static [&'static str],
    pub rows: Vec<Vec<String>>,
    /// Columns at the left that are words; the others are figures.
    pub words: usize,
}

pub struct Chapter {
    /// As it is asked for.
    pub name: &'static str,
    /// What was run, in a sentence.
    pub headline: String,
    pub machine: String,
    pub grids: Vec<Grid>,
    pub notes: Vec<String>,
    pub document: Value,
    /// What the counters do not show.
    pub unproven: Vec<String>,
}

impl Chapter {
    /// As a part of an HTML page.
    pub fn html(&self) -> String {
        let grids = self.grids.iter().map(|grid| {
            frame::table(&Table {
                head: grid.head,
                rows: &grid.rows,
            })
        });
        let notes = self.notes.iter();
        let notes = notes.map(|it| format!("<p class=\"small\">{}</p>\n", escape(it)));
        format!(
            "<h2>{}</h2>\n<p>{}. {}.</p>\n{}{}",
            escape(self.name),
            escape(&self.headline),
            escape(&self.machine),
            grids.collect::<String>(),
            notes.collect::<String>(),
        )
    }
}
