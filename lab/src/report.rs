//! The frame of a report: one HTML file that needs nothing else.
//!
//! Always true: it follows the reader's light or dark preference, and whatever comes from outside
//! of the program is escaped. The plots are those of `plot`.

use crate::plot::{self, escape};
use host::error::{Error, Result, cause};
use std::fs::OpenOptions;
use std::path::Path;

pub const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c1e21;--paper:#fff;--faint:#d9dce1;--soft:#5c636e;\
--card:#f5f6f8;--uncached:#c2410c;--cached:#1d6fb8;--overlays:#7e22ce}\
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--paper:#16181c;--faint:#343941;\
--soft:#9aa3af;--card:#1f2329;--uncached:#fb923c;--cached:#60a5fa;--overlays:#c084fc}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);\
max-width:900px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.15rem;margin-top:2.5rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.25rem 1rem .25rem 0;border-bottom:1px solid var(--faint);text-align:right}\
th:first-child,td:first-child{text-align:left}\
svg{width:100%;height:auto}svg text{fill:var(--soft);font:12px system-ui,sans-serif}\
.grid{stroke:var(--faint)}.axis{stroke:var(--soft)}\
.line{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}\
.uncached{stroke:var(--uncached)}.cached{stroke:var(--cached)}\
.overlays{stroke:var(--overlays)}\
figure{margin:0}figcaption,.small{color:var(--soft);font-size:.9rem}";

/// A table: heads, and rows of cells.
pub struct Table<'a> {
    pub head: &'a [&'a str],
    pub rows: &'a [Vec<String>],
}

/// Figures do not break, heads may; what is wider than the window is moved in it.
const WIDE: &str = "body{max-width:1100px}.wide{overflow-x:auto;font-size:.9rem}.wide th{\
    vertical-align:bottom}.wide td{white-space:nowrap}.wide .words{text-align:left}";

/// `below` is what stands under the first table, as HTML.
pub fn page(title: &str, lead: &str, first: &Table<'_>, below: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Tenuto: {title}</title><style>{STYLE}{}{WIDE}</style></head><body>\n\
         <h1>Tenuto: {title}</h1>\n<p>{}</p>\n{}\
         {below}</body></html>\n",
        plot::STYLE,
        escape(lead),
        table(first),
    )
}

/// Whether a column has words, which stand at its left; figures stand at its right.
fn has_words(table: &Table<'_>, column: usize) -> bool {
    let cells = table.rows.iter().filter_map(|row| row.get(column));
    let mut cells = cells.filter(|cell| !cell.is_empty()).peekable();
    cells.peek().is_some() && cells.all(|cell| cell.starts_with(char::is_alphabetic))
}

pub fn table(table: &Table<'_>) -> String {
    if table.head.is_empty() {
        return String::new();
    }
    let columns = 0..table.head.len();
    let words: Vec<bool> = columns.map(|at| has_words(table, at)).collect();
    let line = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cell = |(at, cell): (usize, &str)| {
            let class = match words.get(at) {
                Some(true) => " class=\"words\"",
                _ => "",
            };
            format!("<{tag}{class}>{}</{tag}>", escape(cell))
        };
        let cells: String = cells.enumerate().map(cell).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = line("th", &mut table.head.iter().copied());
    let rows = table.rows.iter();
    let rows: String = rows
        .map(|row| line("td", &mut row.iter().map(String::as_str)))
        .collect();
    format!("<div class=\"wide\"><table>{head}{rows}</table></div>\n")
}

pub fn save(path: &Path, page: &str) -> Result<()> {
    std::fs::write(path, page).map_err(|error| cannot_write(path, &error))
}

/// Tells before a long run that its page could not be written after it.
pub fn check(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let is_new = path.symlink_metadata().is_err();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    let removed = opened.and_then(|_| match is_new {
        true => std::fs::remove_file(path),
        false => Ok(()),
    });
    removed.map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Error {
    let path = path.display();
    Error::failed(format!("{path}: {}; name another file", cause(error)))
}
