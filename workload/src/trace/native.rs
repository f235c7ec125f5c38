//! The native format: small, and whole up to the last frame that was written.
//!
//! ```text
//! file:   "TNTTRACE" version:u32 0:u32   frame*
//! frame:  length:u32 crc32c:u32 payload  (of the payload; its length is at most 1 MiB)
//! item:   tag:u8 …                       numbers are LEB128, differences zigzag
//!   0x00 end, records:n                  the last item of a whole file
//!   0x01 a disk, number:n length:n name
//!   0x02 a path, number:n length:n name
//!   0x03 lost:n                       of nothing in a stream that shows that it goes on
//!   0x80 | op(2 bits) | same disk 0x04 | same length 0x08 | goes on 0x10 | path 0x20
//!        time:difference  [disk:n]  [sectors:n]  [sector:difference to the end of the one
//!        before on that disk]  [path:n]
//! ```
//!
//! Always true: what a record refers to begins anew in each frame, so a damaged frame costs its
//! own records alone, and the names in it: those are shown as `#NUMBER` then. A file without its
//! last item was cut, or is still being written.

use super::{Complaints, Item, NameId, Names, Op, Record, TraceError};
use std::collections::HashMap;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"TNTTRACE";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const FRAME_HEADER_BYTES: usize = 8;
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// A frame is written when it has so much.
const FRAME_BYTES: usize = 64 << 10;
pub const NAME_BYTES_MAX: usize = 4096;
/// Disks of one trace.
pub const DISKS_MAX: u32 = 1 << 20;

const END: u8 = 0x00;
const DISK: u8 = 0x01;
const PATH: u8 = 0x02;
const LOST: u8 = 0x03;
const RECORD: u8 = 0x80;
const SAME_DISK: u8 = 0x04;
const SAME_LENGTH: u8 = 0x08;
const GOES_ON: u8 = 0x10;
const HAS_PATH: u8 = 0x20;
const OP_BITS: u8 = 0x03;

pub fn is_native(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// What a record of a frame is told relative to.
#[derive(Default)]
struct Before {
    time_ns: u64,
    disk: u32,
    sectors: u32,
    /// Where the last request of each disk has ended.
    ends: Vec<u64>,
}

impl Before {
    fn end(&mut self, disk: u32) -> &mut u64 {
        let at = disk as usize;
        if self.ends.len() <= at {
            self.ends.resize(at + 1, 0);
        }
        &mut self.ends[at]
    }

    fn clear(&mut self) {
        self.time_ns = 0;
        self.disk = 0;
        self.sectors = 0;
        self.ends.clear();
    }
}

fn put(frame: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        frame.push(number as u8 | 0x80);
        number >>= 7;
    }
    frame.push(number as u8);
}

fn zigzag(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Writes a trace.
pub struct Writer<W: Write> {
    output: W,
    frame: Vec<u8>,
    before: Before,
    disks: Names,
    paths: Names,
    records: u64,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    pub fn new(mut output: W) -> io::Result<Writer<W>> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        output.write_all(&header)?;
        Ok(Writer {
            output,
            frame: Vec::new(),
            before: Before::default(),
            disks: Names::default(),
            paths: Names::default(),
            records: 0,
            bytes: HEADER_BYTES as u64,
        })
    }

    /// Written so far, the frame in hand included.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.frame.len() as u64
    }

    pub fn records(&self) -> u64 {
        self.records
    }

    /// Where whole frames go, for an owner that takes them away from there.
    pub fn output(&mut self) -> &mut W {
        &mut self.output
    }

    fn name(&mut self, kind: u8, name: &str) -> NameId {
        let names = if kind == DISK {
            &mut self.disks
        } else {
            &mut self.paths
        };
        let known = names.all().len();
        let mut end = name.len().min(NAME_BYTES_MAX);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let name = &name[..end];
        let id = names.id(name);
        if id.0 as usize == known {
            self.frame.push(kind);
            put(&mut self.frame, id.0.into());
            put(&mut self.frame, name.len() as u64);
            self.frame.extend_from_slice(name.as_bytes());
        }
        id
    }

    /// Adds a request; `disk` and `path` are names, and what the record says of them is ignored.
    pub fn record(&mut self, record: &Record, disk: &str, path: Option<&str>) -> io::Result<()> {
        // Most go to the disk of the one before: no look into the table for these.
        let last = self.disks.all().get(self.before.disk as usize);
        let disk = match last.is_some_and(|last| last == disk) {
            true => self.before.disk,
            false => self.name(DISK, disk).0,
        };
        let path = path.map(|path| self.name(PATH, path));
        let op = Op::ALL.iter().position(|op| *op == record.op);
        let mut tag = RECORD | op.expect("all are listed") as u8;
        let before = &mut self.before;
        let end = *before.end(disk);
        for (holds, bit) in [
            (disk == before.disk, SAME_DISK),
            (record.sectors == before.sectors, SAME_LENGTH),
            (record.sector == end, GOES_ON),
            (path.is_some(), HAS_PATH),
        ] {
            tag |= if holds { bit } else { 0 };
        }
        let frame = &mut self.frame;
        frame.push(tag);
        let difference = record.time_ns.wrapping_sub(before.time_ns) as i64;
        put(frame, zigzag(difference));
        if tag & SAME_DISK == 0 {
            put(frame, disk.into());
        }
        if tag & SAME_LENGTH == 0 {
            put(frame, record.sectors.into());
        }
        if tag & GOES_ON == 0 {
            put(frame, zigzag(record.sector.wrapping_sub(end) as i64));
        }
        if let Some(path) = path {
            put(frame, path.0.into());
        }
        before.time_ns = record.time_ns;
        before.disk = disk;
        before.sectors = record.sectors;
        *before.end(disk) = record.sector.wrapping_add(record.sectors.into());
        self.records += 1;
        self.write_if_full()
    }

    pub fn lost(&mut self, requests: u64) -> io::Result<()> {
        self.frame.push(LOST);
        put(&mut self.frame, requests);
        self.write_if_full()
    }

    fn write_if_full(&mut self) -> io::Result<()> {
        match self.frame.len() >= FRAME_BYTES {
            true => self.write_frame(),
            false => Ok(()),
        }
    }

    fn write_frame(&mut self) -> io::Result<()> {
        let length = (self.frame.len() as u32).to_le_bytes();
        self.output.write_all(&length)?;
        self.output
            .write_all(&checksum(&self.frame).to_le_bytes())?;
        self.output.write_all(&self.frame)?;
        self.bytes += (FRAME_HEADER_BYTES + self.frame.len()) as u64;
        self.frame.clear();
        self.before.clear();
        Ok(())
    }

    /// Makes what was added so far readable.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.frame.is_empty() {
            self.write_frame()?;
        }
        self.output.flush()
    }

    /// Ends without the last item: a reader sees that the trace was cut.
    pub fn give_up(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.output)
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.frame.push(END);
        put(&mut self.frame, self.records);
        self.write_frame()?;
        self.output.flush()?;
        Ok(self.output)
    }
}

/// Bytes of a frame, from the front.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let count = usize::try_from(count).ok().filter(|n| *n <= self.0.len())?;
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        Some(bytes)
    }
}

/// What an item of a frame says.
enum Said {
    Item(Item),
    Name,
    End(u64),
}

/// Names by the numbers of a file.
#[derive(Default)]
struct Numbers {
    disks: HashMap<u32, NameId>,
    paths: HashMap<u32, NameId>,
    /// The disk of the record before, which most of them go to.
    last: Option<(u32, NameId)>,
}

/// What a number means; one whose name was lost is shown as it is.
fn named(numbers: &mut HashMap<u32, NameId>, number: u32, names: &mut Names) -> NameId {
    let name = || names.id(&format!("#{number}"));
    *numbers.entry(number).or_insert_with(name)
}

pub struct Reader<R> {
    input: R,
    numbers: Numbers,
    frame: Vec<u8>,
    at: usize,
    /// Which frame this is, for complaints.
    number: u64,
    before: Before,
    records: u64,
    /// The last item was read.
    ended: bool,
    over: bool,
}

impl<R: Read> Reader<R> {
    pub fn open(mut input: R) -> Result<Reader<R>, TraceError> {
        let mut header = [0; HEADER_BYTES];
        match input.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(TraceError::Unknown);
            }
            other => other?,
        }
        let version = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
        match is_native(&header) {
            true if version == VERSION => {}
            true => return Err(TraceError::Version(version)),
            false => return Err(TraceError::Unknown),
        }
        Ok(Reader {
            input,
            numbers: Numbers::default(),
            frame: Vec::new(),
            at: 0,
            number: 0,
            before: Before::default(),
            records: 0,
            ended: false,
            over: false,
        })
    }

    /// What it reads from.
    pub fn input(&self) -> &R {
        &self.input
    }

    /// Fills as much as there is.
    fn fill(input: &mut R, bytes: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match input.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// The next frame that is whole. False at the end.
    fn next_frame(&mut self, complaints: &mut Complaints) -> io::Result<bool> {
        loop {
            let mut header = [0; FRAME_HEADER_BYTES];
            let filled = Self::fill(&mut self.input, &mut header)?;
            let word = |at: usize| {
                let word = header[at..at + 4].try_into();
                u32::from_le_bytes(word.expect("four bytes"))
            };
            let length = word(0) as usize;
            if filled < header.len() {
                complaints.cut |= filled > 0 || !self.ended;
                return Ok(false);
            }
            self.number += 1;
            if length == 0 || length > FRAME_BYTES_MAX {
                // Where the next one begins is not known.
                complaints.add(self.number, format_args!("a frame of {length} bytes"));
                complaints.cut = true;
                return Ok(false);
            }
            self.frame.resize(length, 0);
            self.at = 0;
            self.before.clear();
            if Self::fill(&mut self.input, &mut self.frame)? < length {
                complaints.cut = true;
                return Ok(false);
            }
            if checksum(&self.frame) == word(4) {
                return Ok(true);
            }
            complaints.add(self.number, "a frame with a wrong checksum");
        }
    }

    pub fn next_item(
        &mut self,
        names: (&mut Names, &mut Names),
        complaints: &mut Complaints,
    ) -> io::Result<Option<Item>> {
        while !self.over {
            if self.at == self.frame.len() {
                self.over = !self.next_frame(complaints)?;
                continue;
            }
            let mut cursor = Cursor(&self.frame[self.at..]);
            let said = match cursor.0.first() {
                Some(&(DISK | PATH)) => self
                    .numbers
                    .name(&mut cursor, (&mut *names.0, &mut *names.1)),
                _ => item(
                    &mut cursor,
                    &mut self.before,
                    &mut self.numbers,
                    (&mut *names.0, &mut *names.1),
                ),
            };
            self.at = self.frame.len() - cursor.0.len();
            match said {
                Some(Said::Item(item)) => {
                    self.records += u64::from(matches!(item, Item::Record(_)));
                    return Ok(Some(item));
                }
                Some(Said::Name) => {}
                Some(Said::End(records)) => {
                    self.ended = true;
                    if records != self.records && complaints.bad == 0 {
                        let found = self.records;
                        let why = format_args!("{found} records where {records} were written");
                        complaints.add(self.number, why);
                    }
                }
                None => {
                    complaints.add(self.number, "an item that is none");
                    self.at = self.frame.len();
                }
            }
        }
        Ok(None)
    }
}

impl Numbers {
    fn name(
        &mut self,
        cursor: &mut Cursor<'_>,
        (disks, paths): (&mut Names, &mut Names),
    ) -> Option<Said> {
        let kind = cursor.byte()?;
        let number = u32::try_from(cursor.number()?).ok()?;
        let length = cursor.number()?;
        (length <= NAME_BYTES_MAX as u64).then_some(())?;
        let name = str::from_utf8(cursor.bytes(length)?).ok()?;
        let (numbers, names) = match kind {
            DISK => (&mut self.disks, disks),
            _ => (&mut self.paths, paths),
        };
        numbers.insert(number, names.id(name));
        self.last = None;
        Some(Said::Name)
    }

    fn disk(&mut self, number: u32, names: &mut Names) -> NameId {
        match self.last {
            Some((last, id)) if last == number => id,
            _ => {
                let id = named(&mut self.disks, number, names);
                self.last = Some((number, id));
                id
            }
        }
    }
}

/// Anything but a name.
fn item(
    cursor: &mut Cursor<'_>,
    before: &mut Before,
    numbers: &mut Numbers,
    (disks, paths): (&mut Names, &mut Names),
) -> Option<Said> {
    let tag = cursor.byte()?;
    if tag & RECORD == 0 {
        let number = cursor.number()?;
        return match tag {
            END => Some(Said::End(number)),
            LOST => Some(Said::Item(Item::Lost(number))),
            _ => None,
        };
    }
    let op = Op::ALL[usize::from(tag & OP_BITS)];
    let difference = unzigzag(cursor.number()?);
    let time_ns = before.time_ns.wrapping_add(difference as u64);
    let disk = match tag & SAME_DISK {
        0 => u32::try_from(cursor.number()?).ok()?,
        _ => before.disk,
    };
    (disk < DISKS_MAX).then_some(())?;
    let sectors = match tag & SAME_LENGTH {
        0 => u32::try_from(cursor.number()?).ok()?,
        _ => before.sectors,
    };
    let end = *before.end(disk);
    let sector = match tag & GOES_ON {
        0 => end.wrapping_add(unzigzag(cursor.number()?) as u64),
        _ => end,
    };
    let path = match tag & HAS_PATH {
        0 => None,
        _ => Some(u32::try_from(cursor.number()?).ok()?),
    };
    (sectors > 0 || op == Op::Flush).then_some(())?;
    let ends = sector.checked_add(sectors.into())?;
    before.time_ns = time_ns;
    before.disk = disk;
    before.sectors = sectors;
    *before.end(disk) = ends;
    Some(Said::Item(Item::Record(Record {
        time_ns,
        disk: numbers.disk(disk, disks),
        op,
        sector,
        sectors,
        path: path.map(|path| named(&mut numbers.paths, path, paths)),
    })))
}
