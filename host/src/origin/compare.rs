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
//! keep what differs, and that it is not written meanwhile.

use super::chain::{Link, Opened, name_of, read};
use super::content::{FileSource, Metadata};
use super::inflate::inflate;
use crate::fault::{Fault, Kind};
use crate::sys;
use image::resolve::{Content, Part, resolve};
use image::source::Source;
use image::types::Span;

/// Of so much of the disk tables are looked at in one step, and so much of it is read.
const LOOK_BYTES: u64 = 64 << 20;
const READ_BYTES: u64 = 1 << 20;
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

    /// Its files, from the top down.
    pub fn links(&self) -> &[Link] {
        &self.opened.links
    }

    fn size_bytes(&self) -> u64 {
        self.opened.chain.size_bytes()
    }

    /// Any bytes of the disk; zeroes behind its end.
    pub fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Fault> {
        let parts = self.parts(at, into.len() as u64)?;
        // What no part tells of lies behind the end.
        let end = parts.last().map_or(at, |part| part.span.end());
        let told = (end.saturating_sub(at) as usize).min(into.len());
        let (told, behind) = into.split_at_mut(told);
        behind.fill(0);
        self.fill(&parts, at, told)
    }

    /// Lengths of what follows from a place on, and whether that surely reads as zeroes. Ends where
    /// the disk does.
    pub fn zeroes(&mut self, at: u64, bytes: u64) -> Result<Vec<(u64, bool)>, Fault> {
        let parts = self.parts(at, bytes)?;
        let all = parts.iter().map(|part| {
            let zero = matches!(part.content, Content::Zero);
            (part.span.bytes, zero)
        });
        Ok(all.collect())
    }

    fn parts(&mut self, at: u64, bytes: u64) -> Result<Vec<Part>, Fault> {
        let mut parts = Vec::new();
        let span = Span { at, bytes };
        // Behind the end of its disk there are zeroes.
        while let Err(stop) = resolve(&self.opened.chain, span, &mut self.tables, &mut parts) {
            self.tables.meet(&self.opened, stop)?;
        }
        Ok(self.without_holes(parts))
    }

    /// What lies in holes of raw files is zeroes, which need no read.
    fn without_holes(&self, parts: Vec<Part>) -> Vec<Part> {
        let mut found = Vec::with_capacity(parts.len());
        for part in parts {
            let raw = part
                .file
                .map(|file| &self.opened.links[usize::from(file.0)])
                .filter(|link| matches!(link.format, image::Format::Raw));
            match (part.content, raw) {
                (Content::Data { at }, Some(link)) => split(&part, at, link, &mut found),
                _ => found.push(part),
            }
        }
        found
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
        for part in from_place(parts, at) {
            if part.span.at >= end {
                break;
            }
            let (from, upto) = (part.span.at.max(at), part.span.end().min(end));
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
    let window = LOOK_BYTES.next_multiple_of(unit_bytes);
    let step = READ_BYTES.next_multiple_of(unit_bytes);
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
        let sides = Sides {
            now: (&*now, &old),
            then: then.as_deref().map(|then| (then, new.as_slice())),
            unit_bytes,
        };
        for (from, upto) in lacking(&old) {
            let mut at = from;
            while at < upto {
                let end = ((at / step + 1) * step).min(upto);
                if !sides.is_same(at, end) {
                    sides.compare(at, end, &mut batch)?;
                }
                at = end;
            }
        }
        batch.next = end;
    }
    Ok(batch)
}

/// Ranges of which the first file has nothing.
fn lacking(parts: &[Part]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let is_below = |it: &&Part| it.file.is_none_or(|file| file.0 > 0);
    for Part { span, .. } in parts.iter().filter(is_below) {
        match ranges.last_mut() {
            Some(last) if last.1 == span.at => last.1 = span.end(),
            _ => ranges.push((span.at, span.end())),
        }
    }
    ranges
}

/// Both views of a part of the disk, with where its bytes lie.
struct Sides<'a> {
    now: (&'a View, &'a [Part]),
    then: Option<(&'a View, &'a [Part])>,
    unit_bytes: u64,
}

impl Sides<'_> {
    /// Whether a range surely is the same, without a look at its bytes.
    fn is_same(&self, from: u64, upto: u64) -> bool {
        let place_of = |(view, parts): (&View, &[Part]), at: u64| {
            let part = from_place(parts, at).first();
            part.map(|part| (view.place(part, at), part.span.end()))
        };
        let mut at = from;
        while at < upto {
            let one = place_of(self.now, at);
            let other = match self.then {
                Some(then) => place_of(then, at),
                None => Some((Place::Zeroes, upto)),
            };
            match (one, other) {
                (Some((one, one_end)), Some((other, other_end))) if one == other => {
                    at = one_end.min(other_end);
                }
                _ => return false,
            }
        }
        true
    }

    /// Reads a range through both.
    fn compare(&self, from: u64, upto: u64, batch: &mut Batch) -> Result<(), Fault> {
        let bytes = (upto - from) as usize;
        let (mut one, mut other) = (vec![0; bytes], vec![0; bytes]);
        let (now, old) = self.now;
        now.fill(old, from, &mut one)?;
        if let Some((then, new)) = self.then {
            then.fill(new, from, &mut other)?;
        }
        let mut at = from;
        while at < upto {
            let end = ((at / self.unit_bytes + 1) * self.unit_bytes).min(upto);
            let range = (at - from) as usize..(end - from) as usize;
            if one[range.clone()] != other[range] {
                let bytes = end - at;
                batch.add(Span { at, bytes });
            }
            at = end;
        }
        Ok(())
    }
}

/// A part of a raw file, by where that has data. A file that does not tell has it everywhere.
fn split(part: &Part, place: u64, link: &Link, into: &mut Vec<Part>) {
    let file = &link.target.file;
    let (start, end) = (place, place + part.span.bytes);
    let mut at = start;
    let mut push = |from: u64, upto: u64, content: Content| {
        let span = Span {
            at: part.span.at + (from - start),
            bytes: upto - from,
        };
        if upto > from {
            into.push(Part {
                span,
                content,
                ..*part
            });
        }
    };
    while at < end {
        let data = sys::seek_data(file, at).map(|found| found.unwrap_or(end).min(end));
        let hole = data.and_then(|data| match data < end {
            true => Ok((data, sys::seek_hole(file, data)?.min(end))),
            false => Ok((end, end)),
        });
        // Behind the end of the file it is not asked.
        let (data, hole) = match hole {
            Ok((data, hole)) if hole > at => (data.max(at), hole),
            _ => (at, end),
        };
        push(at, data, Content::Zero);
        push(data, hole, Content::Data { at: data });
        at = hole;
    }
}

/// The parts from this place of the disk on.
fn from_place(parts: &[Part], at: u64) -> &[Part] {
    &parts[parts.partition_point(|it| it.span.end() <= at)..]
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
