//! Block traces: who asked which disk for what, and when.
//!
//! Owns the record that all formats are read into, and the reader that finds out what it was given.
//! Always true: times begin with zero at the first record; a range covers whole sectors and is not
//! empty, but for a flush; what cannot be understood is counted and the first few are kept, never
//! dropped in silence; memory does not grow with the length of a trace, only with the names in it.
//! Deliberately absent: what a trace means.

pub mod analyze;
pub mod native;
pub mod summary;
#[cfg(test)]
mod tests;
pub mod text;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, Read};

pub const SECTOR_BYTES: u64 = 512;
/// Of a file of unknown format, so much is looked at.
const PEEK_BYTES: usize = 64 << 10;
/// Complaints that are kept word by word.
const KEPT_MAX: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Read,
    Write,
    Flush,
    Discard,
}

impl Op {
    pub const ALL: [Op; 4] = [Op::Read, Op::Write, Op::Flush, Op::Discard];

    pub const fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
        }
    }
}

/// A disk, or a path, by its place in the reader's table of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Since the first one.
    pub time_ns: u64,
    pub disk: NameId,
    pub op: Op,
    pub sector: u64,
    /// Zero for a flush alone.
    pub sectors: u32,
    /// The file it belongs to, where that is known.
    pub path: Option<NameId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Record(Record),
    /// So many requests were not recorded here.
    Lost(u64),
}

/// Texts with numbers, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct Names {
    all: Vec<String>,
    by_name: HashMap<String, NameId>,
}

impl Names {
    pub fn id(&mut self, name: &str) -> NameId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let id = NameId(self.all.len() as u32);
        self.all.push(name.to_owned());
        self.by_name.insert(name.to_owned(), id);
        id
    }

    pub fn name(&self, id: NameId) -> &str {
        self.all.get(id.0 as usize).map_or("?", String::as_str)
    }

    pub fn all(&self) -> &[String] {
        &self.all
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Native,
    Vscsi,
    CloudPhysics,
    Msr,
    Systor,
    Arc,
    Mqsim,
    Fio,
    Blkparse,
}

impl Format {
    pub const ALL: [Format; 9] = [
        Format::Native,
        Format::Vscsi,
        Format::CloudPhysics,
        Format::Msr,
        Format::Systor,
        Format::Arc,
        Format::Mqsim,
        Format::Fio,
        Format::Blkparse,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Format::Native => "tenuto",
            Format::Vscsi => "vscsistats",
            Format::CloudPhysics => "cloudphysics",
            Format::Msr => "msr",
            Format::Systor => "systor17",
            Format::Arc => "arc",
            Format::Mqsim => "mqsim",
            Format::Fio => "fio",
            Format::Blkparse => "blkparse",
        }
    }
}

/// What could not be understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaints {
    /// Lines, or frames of a native file, that mean nothing.
    pub bad: u64,
    /// The first of them: where, and why.
    pub kept: Vec<(u64, String)>,
    /// Records earlier than one before them; they count from the first record on.
    pub backwards: u64,
    /// The file ends in the middle.
    pub cut: bool,
}

impl Complaints {
    fn add(&mut self, place: u64, why: impl fmt::Display) {
        self.bad += 1;
        if self.kept.len() < KEPT_MAX {
            self.kept.push((place, why.to_string()));
        }
    }
}

#[derive(Debug)]
pub enum TraceError {
    Io(io::Error),
    /// Nothing that is known fits.
    Unknown,
    /// Of a newer version than this program.
    Version(u32),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Io(error) => write!(f, "{error}"),
            TraceError::Unknown => f.write_str("it is in no format that is known here"),
            TraceError::Version(version) => {
                write!(
                    f,
                    "its format is version {version}, newer than this program"
                )
            }
        }
    }
}

impl std::error::Error for TraceError {}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> TraceError {
        TraceError::Io(error)
    }
}

/// A file whose beginning was looked at.
type Peeked<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

enum Kind<R> {
    Native(native::Reader<Peeked<R>>),
    Text(text::Lines<Peeked<R>>),
}

/// A trace of any format, item by item.
pub struct Reader<R> {
    kind: Kind<R>,
    format: Format,
    disks: Names,
    paths: Names,
    complaints: Complaints,
    first_ns: Option<u64>,
    latest_ns: u64,
}

impl<R: BufRead> Reader<R> {
    /// Takes the format from the content where nobody says it.
    pub fn open(mut input: R, asked: Option<Format>) -> Result<Reader<R>, TraceError> {
        let mut start = Vec::new();
        input
            .by_ref()
            .take(PEEK_BYTES as u64)
            .read_to_end(&mut start)?;
        let format = match asked {
            Some(format) => format,
            None if native::is_native(&start) => Format::Native,
            None => text::detect(&start).ok_or(TraceError::Unknown)?,
        };
        let input = io::Cursor::new(start).chain(input);
        let kind = match format {
            Format::Native => Kind::Native(native::Reader::open(input)?),
            format => Kind::Text(text::Lines::new(input, format)),
        };
        Ok(Reader {
            kind,
            format,
            disks: Names::default(),
            paths: Names::default(),
            complaints: Complaints::default(),
            first_ns: None,
            latest_ns: 0,
        })
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn disks(&self) -> &Names {
        &self.disks
    }

    pub fn paths(&self) -> &Names {
        &self.paths
    }

    pub fn complaints(&self) -> &Complaints {
        &self.complaints
    }

    /// The time of the first record by the trace's own clock, once it was read.
    pub fn first_ns(&self) -> Option<u64> {
        self.first_ns
    }

    /// The next item; `None` at the end.
    pub fn next_item(&mut self) -> io::Result<Option<Item>> {
        let names = (&mut self.disks, &mut self.paths);
        let mut item = match &mut self.kind {
            Kind::Native(reader) => reader.next_item(names, &mut self.complaints)?,
            Kind::Text(lines) => lines.next_record(names.0, &mut self.complaints)?,
        };
        if let Some(Item::Record(record)) = &mut item {
            let first = *self.first_ns.get_or_insert(record.time_ns);
            self.complaints.backwards += u64::from(record.time_ns < self.latest_ns);
            self.latest_ns = self.latest_ns.max(record.time_ns);
            // One that comes late is not before the beginning.
            record.time_ns = record.time_ns.saturating_sub(first);
        }
        Ok(item)
    }
}

/// The sectors that some bytes touch; `None` where they are none, or beyond every disk.
fn sectors_of(offset: u64, bytes: u64) -> Option<(u64, u32)> {
    let end = offset.checked_add(bytes)?;
    let first = offset / SECTOR_BYTES;
    let sectors = end.div_ceil(SECTOR_BYTES) - first;
    let sectors = u32::try_from(sectors).ok().filter(|_| bytes > 0)?;
    Some((first, sectors))
}
