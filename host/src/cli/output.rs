//! How results look: one JSON document, or aligned text.
//!
//! Always true: a closed pipe ends a command quietly, as it does everywhere else; colours never
//! carry what the words do not.

use crate::error::{Error, Result, cause};
use serde_json::Value;
use std::io::Write;

/// How this command was asked to print.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub json: bool,
    pub quiet: bool,
    pub color: bool,
}

impl Output {
    /// Prints the result in the form asked for.
    pub fn document(&self, document: &Value, text: impl FnOnce() -> String) -> Result<()> {
        if self.json {
            return write(&format!("{document:#}\n"));
        }
        write(&text())
    }

    /// As `document`, for results that are only a confirmation.
    pub fn confirmation(&self, document: &Value, text: impl FnOnce() -> String) -> Result<()> {
        if self.quiet && !self.json {
            return Ok(());
        }
        self.document(document, text)
    }

    /// The name of a state, coloured by what it asks of the reader.
    pub fn state(&self, state: &str) -> String {
        let code = match state {
            "clean" => "32",
            "dirty" | "overlay" => "36",
            "stalled" | "degraded" => "33",
            _ => "31",
        };
        match self.color {
            true => format!("\x1b[{code}m{state}\x1b[0m"),
            false => state.into(),
        }
    }
}

/// Writes to standard output.
pub fn write(text: &str) -> Result<()> {
    is_written(text).map(|_| ())
}

/// Writes one line of a stream to standard output; false when nobody reads it any more.
pub fn write_line(line: &str) -> Result<bool> {
    is_written(&format!("{line}\n"))
}

fn is_written(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::failed(format!("standard output: {}", cause(&error)))),
    }
}

/// Columns as wide as their widest cell; numbers (columns named in `right`) to the right.
pub fn table(head: &[&str], rows: &[Vec<String>], right: &[usize]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| width(cell)).collect();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            widths[at] = widths[at].max(width(cell));
        }
    }
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_string()).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let gap = " ".repeat(widths[at] - width(cell));
            match right.contains(&at) {
                true => line.push_str(&format!("{gap}{cell}  ")),
                false => line.push_str(&format!("{cell}{gap}  ")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The words of a text in lines of at most so many letters; one line at least.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one from the start");
        match line.is_empty() {
            true => line.push_str(word),
            false if width(line) + 1 + width(word) > columns => lines.push(word.to_owned()),
            false => line.extend([" ", word]),
        }
    }
    lines
}

/// Names and values below each other.
pub fn fields(rows: &[(&str, String)]) -> String {
    let widest = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    rows.iter()
        .map(|(name, value)| format!("{name:widest$}  {value}\n"))
        .collect()
}

/// Letters on screen: colour codes take no room.
fn width(text: &str) -> usize {
    let mut count = 0;
    let mut inside_code = false;
    for letter in text.chars() {
        match (inside_code, letter) {
            (false, '\x1b') => inside_code = true,
            (true, 'm') => inside_code = false,
            (true, _) => {}
            (false, _) => count += 1,
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_also_when_some_cells_are_coloured() {
        let output = Output {
            json: false,
            quiet: false,
            color: true,
        };
        let rows = [
            vec!["a".into(), output.state("clean"), "1".into()],
            vec!["desk-001".into(), output.state("dirty"), "4096".into()],
        ];
        let text = table(&["NAME", "STATE", "BYTES"], &rows, &[2]);
        let widths: Vec<usize> = text.lines().map(width).collect();
        assert_eq!(widths, [22, 22, 22]);
    }
}
