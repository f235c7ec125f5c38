//! The text of a file with all changes in it, each behind its number.
//!
//! Owns how a place is written. Always true: with no number switched on the text does what the
//! file did; inside a change everything is as it was, because one number is on at a time.

use crate::places::{Kind, Place};
use std::collections::BTreeSet;
use std::ops::Range;

/// Says in the new text where a change begins and ends.
const OPEN: &str = "/*<";
const CLOSE: &str = "/*>";

/// A file, its places sorted so that what holds others comes before them.
pub struct File<'a> {
    text: &'a str,
    places: &'a [Place],
    /// Numbers of the first change of each place.
    first: &'a [u32],
    left_out: &'a BTreeSet<u32>,
}

impl<'a> File<'a> {
    pub fn new(
        text: &'a str,
        places: &'a [Place],
        first: &'a [u32],
        left_out: &'a BTreeSet<u32>,
    ) -> File<'a> {
        File {
            text,
            places,
            first,
            left_out,
        }
    }

    pub fn render(&self) -> String {
        self.part(0..self.text.len(), 0..self.places.len())
    }

    /// A part of the text; `among` are the places in it.
    fn part(&self, range: Range<usize>, among: Range<usize>) -> String {
        let mut out = String::new();
        let mut at = range.start;
        let mut index = among.start;
        while index < among.end {
            let place = &self.places[index];
            let inside = index + 1..self.end_of(index, among.end);
            out.push_str(&self.text[at..place.range.start]);
            out.push_str(&self.place(index, inside.clone()));
            at = place.range.end;
            index = inside.end;
        }
        out.push_str(&self.text[at..range.end]);
        out
    }

    /// The first place behind `index` that is not in it.
    fn end_of(&self, index: usize, end: usize) -> usize {
        let holds = &self.places[index].range;
        let is_in = |it: &Place| !holds.is_empty() && it.range.start < holds.end;
        (index + 1..end)
            .find(|&it| !is_in(&self.places[it]))
            .unwrap_or(end)
    }

    fn place(&self, index: usize, inside: Range<usize>) -> String {
        let place = &self.places[index];
        let changes = place.changes.iter().zip(self.first[index]..);
        let changes: Vec<_> = changes
            .filter(|(_, number)| !self.left_out.contains(number))
            .collect();
        let within = |range: &Range<usize>| self.part(range.clone(), self.among(range, &inside));
        let old = |range: &Range<usize>| &self.text[range.clone()];
        let mut out = String::new();
        match &place.kind {
            Kind::Body => {
                for (change, number) in changes {
                    let code = marked(number, &change.code);
                    out.push_str(&format!(" if {} {{ {code} }}", on(number)));
                }
            }
            Kind::Binary {
                left,
                operator,
                right,
            } => {
                for (change, number) in &changes {
                    let code = format!("({}) {} ({})", old(left), change.code, old(right));
                    let code = marked(*number, &code);
                    out.push_str(&format!("if {} {{ {code} }} else ", on(*number)));
                }
                let code = format!("({}) {operator} ({})", within(left), within(right));
                out = wrapped(&out, &code);
            }
            Kind::Unary { operator, operand } => {
                for (_, number) in &changes {
                    let code = marked(*number, old(operand));
                    out.push_str(&format!("if {} {{ {code} }} else ", on(*number)));
                }
                out = wrapped(&out, &format!("{operator}({})", within(operand)));
            }
            Kind::Arm => {
                for (_, number) in changes {
                    out.push_str(&format!(" if {}", marked(number, &not_on(number))));
                }
            }
            Kind::Guard => {
                out = format!("({})", within(&place.range));
                for (change, number) in changes {
                    out = if change.about.ends_with("true") {
                        format!("({} || {out})", marked(number, &on(number)))
                    } else {
                        format!("({} && {out})", marked(number, &not_on(number)))
                    };
                }
            }
        }
        out
    }

    /// Those of some places that lie in a part of the text.
    fn among(&self, range: &Range<usize>, places: &Range<usize>) -> Range<usize> {
        let starts = |it: &usize| self.places[*it].range.start;
        let first = places.clone().find(|it| starts(it) >= range.start);
        let first = first.unwrap_or(places.end);
        let last = (first..places.end).find(|it| starts(it) >= range.end);
        first..last.unwrap_or(places.end)
    }
}

/// Changes and, after them, what is there.
fn wrapped(changes: &str, code: &str) -> String {
    if changes.is_empty() {
        format!("({code})")
    } else {
        format!("({changes}{{ {code} }})")
    }
}

fn on(number: u32) -> String {
    format!("crate::mutant::on({number})")
}

fn not_on(number: u32) -> String {
    format!("!crate::mutant::on({number})")
}

fn marked(number: u32, code: &str) -> String {
    format!("{OPEN}{number}*/{code}{CLOSE}{number}*/")
}

/// The change whose code a byte of the new text belongs to.
pub fn change_at(text: &str, byte: usize) -> Option<u32> {
    let before = &text[..byte];
    let open = before.rfind(OPEN)?;
    let number = before[open + OPEN.len()..].split("*/").next()?;
    let is_closed = before.contains(&format!("{CLOSE}{number}*/"));
    (!is_closed).then(|| number.parse().ok())?
}
