//! What of a disk would be another thing if its image stood on another file.
//!
//! ```text
//! where the first file has nothing:  through the files below it │ through the other ones
//!                                    └────────── the same file and place: no read ──────┘
//! ```
//!
//! Owns the walk over both. Always true: what the first file has of its own is not looked at; a
//! unit that differs is told of whole; bytes behind the end of a shorter file are zeroes. Nothing
//! is changed, so the walk may begin anew at any place. Deliberately absent: who makes the image
//! keep what differs, and that nobody writes it meanwhile.

use super::chain::{Link, Opened, name_of, read};
use super::content::{FileSource, Metadata};
use super::inflate::inflate;
use crate::fault::{Fault, Kind};
use image::resolve::{Content, Part, resolve};
use image::source::Source;
use image::types::Span;

/// So much is looked at in one step; a unit at least.
const WINDOW_BYTES: u64 = 1 << 20;
/// A batch has at most so many bytes that differ, and so many parts.
const BATCH_BYTES_MAX: u64 = 64 << 20;
const BATCH_PARTS_MAX: usize = 4096;

/// An image through all of its files.
pub struct View {
    opened: Opened,
    tables: Metadata,
}

/// Where bytes come from: equal ones are the same bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Zeroes,
    At {
        file: (u64, u64),
        offset: u64,
    },
    /// A compressed cluster, and how far into it.
    Packed {
        file: (u64, u64),
        at: u64,
        skip: u64,
    },
}

impl View {
    pub fn new(opened: Opened) -> View {
        View {
            opened,
            tables: Metadata::default(),
        }
    }

    fn size_bytes(&self) -> u64 {
        self.opened.chain.size_bytes()
    }

    fn parts(&mut self, at: u64, bytes: u64) -> Result<Vec<Part>, Fault> {
        let visible = self.size_bytes().saturating_sub(at).min(bytes);
        let mut parts = Vec::new();
        if visible > 0 {
            let span = Span { at, bytes: visible };
            while let Err(stop) = resolve(&self.opened.chain, span, &mut self.tables, &mut parts) {
                self.tables.meet(&self.opened, stop)?;
            }
        }
        if visible < bytes {
            parts.push(Part {
                span: Span {
                    at: at + visible,
                    bytes: bytes - visible,
                },
                file: None,
                content: Content::Zero,
            });
        }
        Ok(parts)
    }

    fn link(&self, part: &Part) -> &Link {
        let file = part.file.expect("bytes lie in a file");
        &self.opened.links[usize::from(file.0)]
    }

    /// From this place of the disk on.
    fn place(&self, part: &Part, at: u64) -> Place {
        let into = at - part.span.at;
        match part.content {
            Content::Zero => Place::Zeroes,
            Content::Data { at } => Place::At {
                file: self.link(part).target.identity,
                offset: at + into,
            },
            Content::Compressed { from, cluster_at } => Place::Packed {
                file: self.link(part).target.identity,
                at: from.at,
                skip: at - cluster_at,
            },
        }
    }

    /// Reads what of these parts lies in a range.
    fn fill(&self, parts: &[Part], at: u64, into: &mut [u8]) -> Result<(), Fault> {
        let end = at + into.len() as u64;
        for part in parts {
            let (from, upto) = (part.span.at.max(at), part.span.end().min(end));
            if from >= upto {
                continue;
            }
            let piece = &mut into[(from - at) as usize..(upto - at) as usize];
            let skipped = from - part.span.at;
            match part.content {
                Content::Zero => piece.fill(0),
                Content::Data { at } => {
                    FileSource::new(self.link(part)).read(at + skipped, piece)?;
                }
                Content::Compressed {
                    from: packed,
                    cluster_at,
                } => {
                    let cluster = self.unpack(part, packed.at, packed.bytes)?;
                    let first = (from - cluster_at) as usize;
                    piece.copy_from_slice(&cluster[first..first + piece.len()]);
                }
            }
        }
        Ok(())
    }

    fn unpack(&self, part: &Part, at: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        let link = self.link(part);
        let name = name_of(&link.path);
        let image::Format::Qcow2(header) = &link.format else {
            unreachable!("only qcow2 files have compressed clusters");
        };
        let there = link.target.size_bytes.saturating_sub(at).min(bytes);
        let packed = read(&link.target, &name, at, there as usize)?;
        let mut cluster = vec![0; header.cluster_bytes() as usize];
        inflate(header.compression, &packed, &mut cluster).map_err(|why| {
            let message = format!(
                "{name}: its compressed cluster at {at:#x} {why}; restore it from a backup"
            );
            Fault::new(Kind::Invalid, message)
        })?;
        Ok(cluster)
    }
}

/// Parts of a disk that differ, in order, and where the next batch begins.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub parts: Vec<Span>,
    pub next: u64,
}

impl Batch {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|it| it.bytes).sum()
    }

    fn add(&mut self, part: Span) {
        match self.parts.last_mut() {
            Some(last) if last.end() == part.at => last.bytes += part.bytes,
            _ => self.parts.push(part),
        }
    }
}

/// The next parts from `at` on that the first file of `now` has nothing of, and that read otherwise
/// through `then`, which is what is to lie below it; `None` is nothing. Whole units of so many
/// bytes; the end of the disk may cut the last.
pub fn differing(
    now: &mut View,
    mut then: Option<&mut View>,
    at: u64,
    unit_bytes: u64,
) -> Result<Batch, Fault> {
    let size = now.size_bytes();
    let window = WINDOW_BYTES.next_multiple_of(unit_bytes);
    let mut batch = Batch {
        parts: Vec::new(),
        next: at,
    };
    while batch.next < size
        && batch.bytes() < BATCH_BYTES_MAX
        && batch.parts.len() < BATCH_PARTS_MAX
    {
        let (at, end) = (batch.next, (batch.next + window).min(size));
        let old = now.parts(at, end - at)?;
        let new = match then.as_deref_mut() {
            Some(then) => then.parts(at, end - at)?,
            None => Vec::new(),
        };
        for (from, upto) in lacking(&old) {
            let then = then.as_deref();
            if !is_same(now, &old, then, &new, (from, upto)) {
                compare(now, &old, then, &new, (from, upto), unit_bytes, &mut batch)?;
            }
        }
        batch.next = end;
    }
    Ok(batch)
}

/// Ranges of which the first file has nothing.
fn lacking(parts: &[Part]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let below = parts
        .iter()
        .filter(|it| it.file.is_none_or(|file| file.0 > 0));
    for Part { span, .. } in below {
        match ranges.last_mut() {
            Some(last) if last.1 == span.at => last.1 = span.end(),
            _ => ranges.push((span.at, span.end())),
        }
    }
    ranges
}

/// Whether a range surely is the same, without a look at its bytes.
fn is_same(
    now: &View,
    old: &[Part],
    then: Option<&View>,
    new: &[Part],
    (from, upto): (u64, u64),
) -> bool {
    let place_of = |view: &View, parts: &[Part], at: u64| {
        let part = parts
            .iter()
            .find(|it| it.span.at <= at && at < it.span.end());
        part.map(|part| (view.place(part, at), part.span.end()))
    };
    let mut at = from;
    while at < upto {
        let Some((one, one_end)) = place_of(now, old, at) else {
            return false;
        };
        let other = match then {
            Some(then) => place_of(then, new, at),
            None => Some((Place::Zeroes, upto)),
        };
        match other {
            Some((other, other_end)) if other == one => at = one_end.min(other_end),
            _ => return false,
        }
    }
    true
}

fn compare(
    now: &View,
    old: &[Part],
    then: Option<&View>,
    new: &[Part],
    (from, upto): (u64, u64),
    unit_bytes: u64,
    batch: &mut Batch,
) -> Result<(), Fault> {
    let bytes = (upto - from) as usize;
    let (mut one, mut other) = (vec![0; bytes], vec![0; bytes]);
    now.fill(old, from, &mut one)?;
    if let Some(then) = then {
        then.fill(new, from, &mut other)?;
    }
    let mut at = from;
    while at < upto {
        let end = ((at / unit_bytes + 1) * unit_bytes).min(upto);
        let range = (at - from) as usize..(end - from) as usize;
        if one[range.clone()] != other[range] {
            batch.add(Span {
                at,
                bytes: end - at,
            });
        }
        at = end;
    }
    Ok(())
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
