//! Traces that are lines of text, in the formats that are about.
//!
//! | format | a line |
//! | --- | --- |
//! | vscsistats | `serial,bytes,elements,read or write or a SCSI code,sector,microseconds` |
//! | cloudphysics | `version,seconds,SCSI code in hex,bytes,sector` |
//! | msr | `100 ns,host,disk,Read or Write,offset,bytes,response` |
//! | systor17 | `seconds,response,R or W,LUN,offset,bytes` |
//! | arc | `sector sectors ignored sequence`: reads without times, taken for one a millisecond |
//! | mqsim | `nanoseconds device sector sectors 0 for a write or 1` |
//! | fio | `file action offset bytes`, waits count; of version 3 with microseconds before it |
//! | blkparse | its text; of each request the moment it was queued, or else issued, or else done |
//!
//! Always true: a line is a record, nothing to be looked at, or bad and counted. Deliberately
//! absent: compression; a pipe does that.

use super::{Complaints, Format, Item, NameId, Names, Op, Record, SECTOR_BYTES, sectors_of};
use std::io::{self, BufRead, Read};

/// Lines that are looked at to find out what they are.
const LINES_LOOKED_AT: usize = 50;
/// A longer one is none.
const LINE_BYTES_MAX: u64 = 4096;
/// A trace without times: so far apart.
const STEP_NS: u64 = 1_000_000;
const BEYOND: &str = "a time beyond all clocks";
const NO_RANGE: &str = "a range that no disk has";
const FIO: [&str; 2] = ["fio version 2 iolog", "fio version 3 iolog"];

/// A line that is a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parsed<'a> {
    time_ns: u64,
    disk: &'a str,
    op: Op,
    offset: u64,
    bytes: u64,
}

/// What goes over from line to line.
#[derive(Clone, Debug, Default)]
struct State {
    lines: u64,
    /// fio's version 3 has times.
    timed: bool,
    waited_ns: u64,
    /// blkparse: which moment of a request counts.
    moment: Option<u8>,
}

type Line<'a> = Result<Option<Parsed<'a>>, &'static str>;

pub struct Lines<R> {
    input: io::BufReader<R>,
    format: Format,
    state: State,
    line: Vec<u8>,
    number: u64,
    disk: Option<NameId>,
}

/// The format of most lines of a beginning, if they fit any.
pub fn detect(start: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(start);
    let mut lines: Vec<&str> = text.lines().collect();
    // The last one may go on.
    if lines.len() > 1 && !text.ends_with('\n') {
        lines.pop();
    }
    lines.truncate(LINES_LOOKED_AT);
    if FIO.contains(&lines.first()?.trim()) {
        return Some(Format::Fio);
    }
    let text = |format: &Format| !matches!(format, Format::Native | Format::Fio);
    let fits = |format: Format| {
        let mut state = State {
            moment: moment(&lines),
            ..State::default()
        };
        let parsed = lines.iter().filter(|line| {
            let line = line.trim();
            matches!(parse(format, line, &mut state), Ok(Some(_)))
        });
        parsed.count()
    };
    let all = Format::ALL.into_iter().filter(text);
    let (count, format) =
        all.map(|format| (fits(format), format))
            .fold((0, Format::Native), |best, next| {
                if next.0 > best.0 { next } else { best }
            });
    (count * 2 >= lines.len().min(4) && count > 0).then_some(format)
}

/// The moment of a request that blkparse's lines are about: queued, issued, or done.
fn moment(lines: &[&str]) -> Option<u8> {
    let has = |action: u8| {
        let text = [action];
        let action = str::from_utf8(&text).unwrap_or_default();
        lines
            .iter()
            .any(|line| line.split_whitespace().nth(5) == Some(action))
    };
    [b'Q', b'D', b'C'].into_iter().find(|action| has(*action))
}

impl<R: Read> Lines<R> {
    pub fn new(input: R, format: Format) -> Lines<R> {
        Lines {
            input: io::BufReader::with_capacity(64 << 10, input),
            format,
            state: State::default(),
            line: Vec::new(),
            number: 0,
            disk: None,
        }
    }

    /// False at the end.
    fn next_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        let mut limited = self.input.by_ref().take(LINE_BYTES_MAX);
        if limited.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(false);
        }
        self.number += 1;
        if self.line.len() as u64 == LINE_BYTES_MAX && !self.line.ends_with(b"\n") {
            self.input.skip_until(b'\n')?;
        }
        Ok(true)
    }

    pub fn next_record(
        &mut self,
        disks: &mut Names,
        complaints: &mut Complaints,
    ) -> io::Result<Option<Item>> {
        if self.number == 0 && self.format == Format::Blkparse {
            // A blkparse that was told to leave moments out says nothing of it.
            let start = self.input.fill_buf()?;
            let text = String::from_utf8_lossy(start);
            let lines: Vec<&str> = text.lines().take(LINES_LOOKED_AT).collect();
            self.state.moment = moment(&lines);
        }
        while self.next_line()? {
            let Ok(text) = str::from_utf8(&self.line) else {
                complaints.add(self.number, "not UTF-8");
                continue;
            };
            let parsed = match parse(self.format, text.trim(), &mut self.state) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => continue,
                Err(why) => {
                    complaints.add(self.number, why);
                    continue;
                }
            };
            let range = match parsed.op {
                Op::Flush => Some((0, 0)),
                _ => sectors_of(parsed.offset, parsed.bytes),
            };
            let Some((sector, sectors)) = range else {
                complaints.add(self.number, NO_RANGE);
                continue;
            };
            let disk = match self.disk {
                Some(disk) if disks.name(disk) == parsed.disk => disk,
                _ => disks.id(parsed.disk),
            };
            self.disk = Some(disk);
            return Ok(Some(Item::Record(Record {
                time_ns: parsed.time_ns,
                disk,
                op: parsed.op,
                sector,
                sectors,
                path: None,
            })));
        }
        Ok(None)
    }
}

fn parse<'a>(format: Format, line: &'a str, state: &mut State) -> Line<'a> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    state.lines += 1;
    match format {
        Format::Vscsi => vscsi(line),
        Format::CloudPhysics => cloudphysics(line, state),
        Format::Msr => msr(line),
        Format::Systor => systor(line, state),
        Format::Arc => arc(line, state),
        Format::Mqsim => mqsim(line),
        Format::Fio => fio(line, state),
        Format::Blkparse => blkparse(line, state),
        Format::Native => Err("not text"),
    }
}

/// Exactly so many parts.
fn split<const N: usize>(line: &str, separator: char) -> Option<[&str; N]> {
    let mut parts = [""; N];
    let mut given = line.split(separator);
    for part in &mut parts {
        *part = given.next()?.trim();
    }
    given.next().is_none().then_some(parts)
}

fn words<const N: usize>(line: &str) -> Option<[&str; N]> {
    let mut parts = [""; N];
    let mut given = line.split_ascii_whitespace();
    for part in &mut parts {
        *part = given.next()?;
    }
    given.next().is_none().then_some(parts)
}

fn number(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "not a number")
}

/// Nanoseconds of a decimal number of these.
fn decimal(text: &str, unit_ns: u64) -> Result<u64, &'static str> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let mut total = u128::from(number(whole)?) * u128::from(unit_ns);
    let mut unit = u128::from(unit_ns);
    for digit in part.bytes() {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return Err("not a number");
        }
        unit /= 10;
        total += unit * u128::from(digit);
    }
    u64::try_from(total).map_err(|_| BEYOND)
}

fn nanoseconds(count: u64, unit_ns: u64) -> Result<u64, &'static str> {
    count.checked_mul(unit_ns).ok_or(BEYOND)
}

fn bytes_of(sectors: u64) -> Result<u64, &'static str> {
    sectors.checked_mul(SECTOR_BYTES).ok_or(NO_RANGE)
}

/// The commands of a SCSI disk that move data, or order it.
fn scsi(code: u64) -> Option<Op> {
    match code {
        0x08 | 0x28 | 0x88 | 0xa8 => Some(Op::Read),
        0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e => Some(Op::Write),
        0x35 | 0x91 => Some(Op::Flush),
        0x42 => Some(Op::Discard),
        _ => None,
    }
}

fn vscsi(line: &str) -> Line<'_> {
    let [_, bytes, _, command, sector, time] = split(line, ',').ok_or("not six values")?;
    let command = command.to_ascii_lowercase();
    let op = match command.as_str() {
        "read" => Some(Op::Read),
        "write" => Some(Op::Write),
        code => match code.strip_prefix("0x") {
            Some(hex) => scsi(u64::from_str_radix(hex, 16).map_err(|_| "not a command")?),
            None => scsi(number(code).map_err(|_| "not a command")?),
        },
    };
    let Some(op) = op else { return Ok(None) };
    Ok(Some(Parsed {
        time_ns: nanoseconds(number(time)?, 1000)?,
        disk: "disk",
        op,
        offset: bytes_of(number(sector)?)?,
        bytes: number(bytes)?,
    }))
}

fn cloudphysics<'a>(line: &'a str, state: &State) -> Line<'a> {
    let [version, time, code, bytes, sector] = split(line, ',').ok_or("not five values")?;
    if state.lines == 1 && version == "version" {
        return Ok(None);
    }
    let code = u64::from_str_radix(code, 16).map_err(|_| "not a command")?;
    number(version)?;
    let Some(op) = scsi(code) else {
        return Ok(None);
    };
    Ok(Some(Parsed {
        time_ns: decimal(time, 1_000_000_000)?,
        disk: "disk",
        op,
        offset: bytes_of(number(sector)?)?,
        bytes: number(bytes)?,
    }))
}

fn word(text: &str) -> Result<Op, &'static str> {
    match text {
        "Read" | "read" | "R" | "r" => Ok(Op::Read),
        "Write" | "write" | "W" | "w" => Ok(Op::Write),
        _ => Err("neither read nor write"),
    }
}

/// The name of a disk there is its host and its number, which stand side by side.
fn msr(line: &str) -> Line<'_> {
    let [time, host, disk, op, offset, bytes, _] = split(line, ',').ok_or("not seven values")?;
    if time == "Timestamp" {
        return Ok(None);
    }
    number(disk)?;
    let from = host.as_ptr() as usize - line.as_ptr() as usize;
    let to = disk.as_ptr() as usize + disk.len() - line.as_ptr() as usize;
    Ok(Some(Parsed {
        time_ns: nanoseconds(number(time)?, 100)?,
        disk: &line[from..to],
        op: word(op)?,
        offset: number(offset)?,
        bytes: number(bytes)?,
    }))
}

fn systor<'a>(line: &'a str, state: &State) -> Line<'a> {
    let [time, response, op, lun, offset, bytes] = split(line, ',').ok_or("not six values")?;
    if state.lines == 1 && time == "Timestamp" {
        return Ok(None);
    }
    // The response of a request that was not waited for is missing.
    if !response.is_empty() {
        decimal(response, 1_000_000_000)?;
    }
    let op = match op {
        "" => return Ok(None),
        op => word(op)?,
    };
    Ok(Some(Parsed {
        time_ns: decimal(time, 1_000_000_000)?,
        disk: lun,
        op,
        offset: number(offset)?,
        bytes: number(bytes)?,
    }))
}

fn arc<'a>(line: &'a str, state: &State) -> Line<'a> {
    let [sector, sectors, ignored, sequence] = words(line).ok_or("not four values")?;
    number(ignored)?;
    number(sequence)?;
    Ok(Some(Parsed {
        time_ns: (state.lines - 1).saturating_mul(STEP_NS),
        disk: "disk",
        op: Op::Read,
        offset: bytes_of(number(sector)?)?,
        bytes: bytes_of(number(sectors)?)?,
    }))
}

fn mqsim(line: &str) -> Line<'_> {
    let [time, device, sector, sectors, op] = words(line).ok_or("not five values")?;
    number(device)?;
    let op = match op {
        "0" => Op::Write,
        "1" => Op::Read,
        _ => return Err("neither 0 nor 1"),
    };
    Ok(Some(Parsed {
        time_ns: number(time)?,
        disk: device,
        op,
        offset: bytes_of(number(sector)?)?,
        bytes: bytes_of(number(sectors)?)?,
    }))
}

fn fio<'a>(line: &'a str, state: &mut State) -> Line<'a> {
    if state.lines == 1 {
        state.timed = line == FIO[1];
        return match FIO.contains(&line) {
            true => Ok(None),
            false => Err("the first line names no version"),
        };
    }
    let mut parts = line.split_ascii_whitespace();
    if state.timed {
        let micros = number(parts.next().ok_or("no time")?)?;
        state.waited_ns = nanoseconds(micros, 1000)?;
    }
    let disk = parts.next().ok_or("no file")?;
    let action = parts.next().ok_or("no action")?;
    let mut value = || parts.next().map(number).transpose();
    let (offset, bytes) = (value()?, value()?);
    let op = match action {
        "read" => Op::Read,
        "write" => Op::Write,
        "trim" => Op::Discard,
        "sync" | "datasync" => Op::Flush,
        "wait" => {
            let micros = offset.ok_or("no time to wait")?;
            let then = state.waited_ns.checked_add(nanoseconds(micros, 1000)?);
            state.waited_ns = then.ok_or(BEYOND)?;
            return Ok(None);
        }
        "add" | "open" | "close" => return Ok(None),
        _ => return Err("an action that is not known"),
    };
    if op != Op::Flush && bytes.is_none() {
        return Err("no offset and length");
    }
    Ok(Some(Parsed {
        time_ns: state.waited_ns,
        disk,
        op,
        offset: offset.unwrap_or(0),
        bytes: bytes.unwrap_or(0),
    }))
}

/// `8,0 3 11 0.009507758 697 Q W 223490 + 56 [kjournald]`; its summary at the end is no request.
fn blkparse<'a>(line: &'a str, state: &State) -> Line<'a> {
    let mut parts = line.split_ascii_whitespace();
    let disk = parts.next().unwrap_or_default();
    let is_device = disk
        .split_once(',')
        .is_some_and(|(major, minor)| number(major).is_ok() && number(minor).is_ok());
    let mut next = || parts.next().ok_or("too short");
    if !is_device {
        return match state.lines {
            1 => Err("no device in front"),
            _ => Ok(None),
        };
    }
    let (_, _, time, _) = (
        number(next()?)?,
        number(next()?)?,
        next()?,
        number(next()?)?,
    );
    let (action, what) = (next()?, next()?);
    let moment = state.moment.unwrap_or(b'Q');
    if action.as_bytes() != [moment] {
        return Ok(None);
    }
    let time_ns = decimal(time, 1_000_000_000)?;
    let flushes = what.starts_with('F');
    let kind = what.trim_start_matches('F').bytes().next();
    let op = match kind {
        Some(b'R') => Op::Read,
        Some(b'W') => Op::Write,
        Some(b'D') => Op::Discard,
        _ if flushes => Op::Flush,
        _ => return Ok(None),
    };
    let range = (parts.next(), parts.next(), parts.next());
    let (sector, sectors) = match range {
        (Some(sector), Some("+"), Some(sectors)) => (number(sector)?, number(sectors)?),
        // A flush alone has no range.
        _ if flushes => (0, 0),
        _ => return Err("no range"),
    };
    let op = if flushes && sectors == 0 {
        Op::Flush
    } else {
        op
    };
    Ok(Some(Parsed {
        time_ns,
        disk,
        op,
        offset: bytes_of(sector)?,
        bytes: bytes_of(sectors)?,
    }))
}
