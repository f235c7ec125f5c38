//! The model of one volume: what was asked of it, what it may hold after a crash.
//!
//! Owns the history of writes since the contents were last known, in the order in which they
//! were submitted; the n-th gets the serial n and is stamped with it. Always true: the judgment
//! depends on what was submitted, acknowledged and flushed before the crash, and on nothing else.
//! Deliberately absent: how a volume keeps its promises.
//!
//! The caller must submit in the order in which the volume sees the requests. Overlapping writes
//! may be in flight together, except for [`Promise::Sectors`], which gives them no order.

use crate::stamp::{self, Reading, SECTOR_BYTES};
pub use crate::violation::{Difference, Violation};
use core::ops::Range;

/// Sectors read at once when a volume is examined: 1 MiB.
const EXAMINE_SECTORS: u64 = 2048;
/// Differing sectors that a violation shows.
const DIFFERENCES_SHOWN: usize = 6;
/// Content of a sector without a stamp.
const ZERO: u64 = u64::MAX;

/// What is promised about the order of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// A prefix of the acknowledged writes, with everything flushed in it (`write-back`).
    Prefix,
    /// Each sector its last flushed value or a later one (`uncached`, `write-through`, in-place
    /// origins, volumes that change their policy).
    Sectors,
    /// As `Prefix` while the host lives; clean after a power loss (`ephemeral`).
    Volatile,
}

/// What happened to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crash {
    /// The daemon is gone, its host is not: everything acknowledged must be there.
    Kill,
    /// Everything flushed must be there.
    PowerLoss,
}

/// What a volume holds before the first write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    Zero,
    /// Each sector carries a stamp with this tag and the serial 0.
    Stamped(u64),
}

/// What a write leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Stamp,
    /// A discard or a write of zeroes.
    Zero,
}

/// A volume after a crash, when it kept its promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// K: every sector equals the state after writes `1..=cut`, later ones left no trace.
    pub cut: u64,
    /// The first serial of which this is true as well: that write is there. `None` if no write
    /// needs to be.
    pub least: Option<u64>,
    /// What `cut` had to reach.
    pub floor: u64,
    /// The last serial that was submitted.
    pub newest: u64,
    /// The acknowledged write after `cut` is there in part; only if the model allows it.
    pub torn: bool,
}

/// An image to which a volume was being committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// It is as it was before.
    pub before: bool,
    /// It has all that the volume had.
    pub whole: bool,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    sector: u64,
    sectors: u64,
    kind: Kind,
    /// Reading of the model's clock at the acknowledgment.
    acknowledged: Option<u64>,
    /// Its acknowledgment says that it is durable.
    durable: bool,
    /// Lost in a crash that allowed it: may never appear again.
    void: bool,
}

impl Write {
    fn covers(&self, sector: u64) -> bool {
        (self.sector..self.sector + self.sectors).contains(&sector)
    }
}

/// The moment at which a flush was submitted.
#[derive(Clone, Copy, Debug)]
pub struct FlushPoint(u64);

/// What was true when a read was submitted.
#[derive(Clone, Debug)]
pub struct ReadPoint {
    sector: u64,
    /// Newest acknowledged serial of each sector; 0 = what was there before.
    newest: Vec<u64>,
    /// Zeroing writes that were not acknowledged then.
    zeroing: Vec<u64>,
    next: u64,
}

/// The model of one volume.
#[derive(Clone, Debug)]
pub struct Model {
    tag: u64,
    promise: Promise,
    initial: Initial,
    /// What a clean volume holds, once an overlay has become the content of its image.
    committed: Option<Vec<u64>>,
    /// Content of each sector before the writes in `writes`.
    base: Vec<u64>,
    /// Newest acknowledged serial of each sector since then; 0 = none.
    newest: Vec<u64>,
    writes: Vec<Write>,
    /// Serial of `writes[0]`.
    first: u64,
    /// Zeroing writes without an acknowledgment: a read may see them, and they carry no serial.
    zeroing: Vec<u64>,
    /// Counts submissions and acknowledgments, so that both have an order.
    clock: u64,
    /// Everything acknowledged up to this reading is flushed.
    flushed: u64,
    resetting: bool,
    tearing: bool,
}

impl Model {
    pub fn new(tag: u64, sectors: u64, promise: Promise, initial: Initial) -> Model {
        let mut model = Model {
            tag,
            promise,
            initial,
            committed: None,
            base: vec![ZERO; usize::try_from(sectors).expect("the model fits in memory")],
            newest: vec![0; usize::try_from(sectors).expect("the model fits in memory")],
            writes: Vec::new(),
            first: 1,
            zeroing: Vec::new(),
            clock: 0,
            flushed: 0,
            resetting: false,
            tearing: false,
        };
        model.base = model.clean();
        model
    }

    /// Allows the last write that a power loss kept to be there in part, sector by sector, though
    /// it was acknowledged: disks promise no more, the design does.
    pub fn allow_tearing(&mut self) {
        self.tearing = true;
    }

    pub fn sectors(&self) -> u64 {
        self.base.len() as u64
    }

    /// The volume has become larger or smaller. New space is empty, and what was behind the end of
    /// a smaller one does not come back. No read may be in flight that goes beyond the new end.
    pub fn resize(&mut self, sectors: u64) {
        let length = usize::try_from(sectors).expect("the model fits in memory");
        self.base.resize(length, ZERO);
        self.newest.resize(length, 0);
        for write in &mut self.writes {
            write.sector = write.sector.min(sectors);
            write.sectors = write.sectors.min(sectors - write.sector);
        }
    }

    /// What the volume held before its first write is another image now, stamped with this tag.
    /// What was written stays over it.
    pub fn base_written(&mut self, tag: u64) {
        self.initial = Initial::Stamped(tag);
    }

    /// Another image took the place of this one, and nothing of what was before counts.
    pub fn replaced(&mut self, tag: u64) {
        self.initial = Initial::Stamped(tag);
        self.committed = None;
        self.resetting = false;
        self.rebase(self.clean());
    }

    /// What is there now was all there ever was: a loss was accepted.
    pub fn given_up<R>(&mut self, read: R) -> Result<(), Violation>
    where
        R: FnMut(Range<u64>, &mut [u8]) -> Result<(), String>,
    {
        let contents = self.contents(read)?;
        self.rebase(contents);
        Ok(())
    }

    /// The serial that the next write will get.
    pub fn next_serial(&self) -> u64 {
        self.first + self.writes.len() as u64
    }

    /// Records a write as it is submitted and returns the serial to stamp it with. `durable`:
    /// its acknowledgment covers itself as a flush would (FUA, or the write cache is off).
    pub fn submit(&mut self, kind: Kind, sector: u64, sectors: u64, durable: bool) -> u64 {
        assert!(
            sectors > 0 && sector + sectors <= self.sectors(),
            "write inside the volume"
        );
        let serial = self.next_serial();
        self.clock += 1;
        self.writes.push(Write {
            sector,
            sectors,
            kind,
            acknowledged: None,
            durable,
            void: false,
        });
        if kind == Kind::Zero {
            self.zeroing.push(serial);
        }
        serial
    }

    /// Records a successful reply. A write whose reply is an error, or never comes, may appear
    /// or not.
    pub fn acknowledge(&mut self, serial: u64) {
        self.clock += 1;
        let write = &mut self.writes[(serial - self.first) as usize];
        assert!(write.acknowledged.is_none(), "a write is acknowledged once");
        write.acknowledged = Some(self.clock);
        for newest in &mut self.newest[write.sector as usize..][..write.sectors as usize] {
            *newest = serial.max(*newest);
        }
        self.zeroing.retain(|&open| open != serial);
    }

    /// A write that is under way no longer promises to be durable when it is acknowledged: the
    /// write cache was turned on in between.
    pub fn weaken(&mut self, serial: u64) {
        self.writes[(serial - self.first) as usize].durable = false;
    }

    /// To be called when a flush is submitted.
    pub fn flush_begin(&mut self) -> FlushPoint {
        self.clock += 1;
        FlushPoint(self.clock)
    }

    /// To be called when that flush succeeded.
    pub fn flush_done(&mut self, point: FlushPoint) {
        self.flushed = self.flushed.max(point.0);
    }

    /// To be called when a read is submitted.
    pub fn read_begin(&self, sector: u64, sectors: u64) -> ReadPoint {
        ReadPoint {
            sector,
            newest: self.newest[sector as usize..][..sectors as usize].to_vec(),
            zeroing: self.zeroing.clone(),
            next: self.next_serial(),
        }
    }

    /// Checks what a read returned: for each sector the newest write that was acknowledged when
    /// the read was submitted, or a later one.
    pub fn read_done(&self, point: &ReadPoint, bytes: &[u8]) -> Result<(), Violation> {
        assert_eq!(
            bytes.len(),
            point.newest.len() * SECTOR_BYTES,
            "bytes of the whole read"
        );
        let sectors = point.newest.iter().zip(bytes.chunks_exact(SECTOR_BYTES));
        for (sector, (&newest, bytes)) in (point.sector..).zip(sectors) {
            let found = self.decode(sector, bytes)?;
            if !self.may_be_read(point, sector, newest, found) {
                let expected = self.content_after(sector, newest);
                return Err(Violation::StaleRead(difference(sector, found, expected)));
            }
        }
        Ok(())
    }

    fn may_be_read(&self, point: &ReadPoint, sector: u64, newest: u64, found: u64) -> bool {
        if found == self.content_after(sector, newest) {
            return true;
        }
        let may_be = |serial: u64, kind: Kind| {
            let write = &self.writes[(serial - self.first) as usize];
            serial > newest && write.kind == kind && write.covers(sector) && !write.void
        };
        if found == ZERO {
            let later = point.next.max(self.first)..self.next_serial();
            return point
                .zeroing
                .iter()
                .copied()
                .chain(later)
                .any(|it| may_be(it, Kind::Zero));
        }
        found >= self.first && may_be(found, Kind::Stamp)
    }

    /// To be called when a reset is submitted. No write may be in flight.
    pub fn reset_begin(&mut self) {
        self.resetting = true;
    }

    /// To be called when the reset succeeded (`true`) or was refused.
    pub fn reset_done(&mut self, done: bool) {
        self.resetting = false;
        if done {
            self.rebase(self.clean());
        }
    }

    /// Judges the volume after a crash and, if it kept its promises, goes on from what it holds:
    /// what was once read after recovery stays (without a cache: what was read after a power loss).
    pub fn verify<R>(&mut self, crash: Crash, read: R) -> Result<Found, Violation>
    where
        R: FnMut(Range<u64>, &mut [u8]) -> Result<(), String>,
    {
        let contents = self.contents(read)?;
        let found = self
            .judge(self.promise, crash, &contents)
            .or_else(|violation| {
                // A reset whose reply never came has happened or has not.
                let reset = self.resetting && contents == self.clean();
                if reset {
                    Ok(self.found(self.newest_serial(), 0))
                } else {
                    Err(violation)
                }
            })?;
        // What an origin has not synced may still go, though it was read after a kill.
        if self.promise != Promise::Sectors || crash == Crash::PowerLoss {
            self.rebase(contents);
        }
        self.resetting = false;
        Ok(found)
    }

    /// Judges a volume whose image was replaced by one with this tag, and over which what was not
    /// at the image before was laid: with `old`, which was that image, it keeps its promises, and
    /// where `laid` does not say so there is the new image. Goes on from what it holds.
    pub fn verify_laid<R>(
        &mut self,
        crash: Crash,
        (tag, old): (u64, &[u8]),
        laid: impl Fn(u64) -> bool,
        read: R,
    ) -> Result<Found, Violation>
    where
        R: FnMut(Range<u64>, &mut [u8]) -> Result<(), String>,
    {
        let before = self.contents(|sectors, bytes| {
            bytes.copy_from_slice(&old[sectors.start as usize * SECTOR_BYTES..][..bytes.len()]);
            Ok(())
        })?;
        let initial = core::mem::replace(&mut self.initial, Initial::Stamped(tag));
        let contents = self.contents(read);
        self.initial = initial;
        let contents = contents?;
        let mut whole = contents.clone();
        for (at, found) in whole.iter_mut().enumerate() {
            // The new image has nothing but its stamps.
            match *found {
                0 => *found = before[at],
                other if laid(at as u64) || other == before[at] => {}
                other => return Err(Violation::StaleRead(difference(at as u64, other, 0))),
            }
        }
        let found = self.judge(self.promise, crash, &whole)?;
        self.initial = Initial::Stamped(tag);
        self.resetting = false;
        self.rebase(contents);
        Ok(found)
    }

    /// Judges an image to which the volume was being committed: it is as it was, or it has all that
    /// was acknowledged, and then this is what a clean volume holds.
    pub fn judge_commit<R>(&mut self, read: R) -> Result<Committed, Violation>
    where
        R: FnMut(Range<u64>, &mut [u8]) -> Result<(), String>,
    {
        let contents = self.contents(read)?;
        let before = contents == self.clean();
        let whole = match self.judge(Promise::Prefix, Crash::Kill, &contents) {
            Err(violation) if !before => return Err(violation),
            judged => judged.is_ok(),
        };
        if whole {
            self.committed = Some(contents.clone());
            self.rebase(contents);
        }
        Ok(Committed { before, whole })
    }

    /// Judges by another promise and changes nothing; for images that follow the volume, whose
    /// "flush" is a finished destage.
    pub fn examine<R>(&self, promise: Promise, read: R) -> Result<Found, Violation>
    where
        R: FnMut(Range<u64>, &mut [u8]) -> Result<(), String>,
    {
        self.judge(promise, Crash::PowerLoss, &self.contents(read)?)
    }

    /// Declares the writes after the cut lost: from now on they may not appear.
    pub fn void_after(&mut self, found: &Found) {
        let kept = (found.cut + 1).saturating_sub(self.first) as usize;
        for (at, write) in self.writes.iter_mut().skip(kept).enumerate() {
            if at == 0 && found.torn {
                write.acknowledged = None;
            } else {
                write.void = true;
            }
        }
    }

    /// After a power loss of an image that takes no order: which of the writes are there is not
    /// known, so none is promised any more; each may still be there.
    pub fn doubt(&mut self) {
        self.newest.fill(0);
        for write in &mut self.writes {
            write.acknowledged = None;
        }
    }

    /// What sectors hold when every write that was acknowledged is there.
    pub fn fill_newest(&self, first: u64, bytes: &mut [u8]) {
        for (sector, bytes) in (first..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
            match (
                self.content_after(sector, self.newest[sector as usize]),
                self.initial,
            ) {
                (ZERO, _) => bytes.fill(0),
                (0, Initial::Stamped(tag)) => stamp::fill(bytes, tag, sector, 0),
                (serial, _) => stamp::fill(bytes, self.tag, sector, serial),
            }
        }
    }

    fn newest_serial(&self) -> u64 {
        self.next_serial() - 1
    }

    fn found(&self, cut: u64, floor: u64) -> Found {
        Found {
            cut,
            least: None,
            floor,
            newest: self.newest_serial(),
            torn: false,
        }
    }

    fn clean(&self) -> Vec<u64> {
        if let Some(committed) = &self.committed {
            return committed.clone();
        }
        vec![
            if self.initial == Initial::Zero {
                ZERO
            } else {
                0
            };
            self.base.len()
        ]
    }

    fn rebase(&mut self, contents: Vec<u64>) {
        assert_eq!(
            contents.len(),
            self.base.len(),
            "a volume does not change its size"
        );
        self.first = self.next_serial();
        self.base = contents;
        self.newest.fill(0);
        self.writes.clear();
        self.zeroing.clear();
    }

    fn content_of(&self, serial: u64) -> u64 {
        match self.writes[(serial - self.first) as usize].kind {
            Kind::Stamp => serial,
            Kind::Zero => ZERO,
        }
    }

    fn content_after(&self, sector: u64, serial: u64) -> u64 {
        if serial == 0 {
            self.base[sector as usize]
        } else {
            self.content_of(serial)
        }
    }

    /// Reads the whole volume and names the content of each sector.
    fn contents<R>(&self, mut read: R) -> Result<Vec<u64>, Violation>
    where
        R: FnMut(Range<u64>, &mut [u8]) -> Result<(), String>,
    {
        let mut contents = Vec::with_capacity(self.base.len());
        let mut buffer = vec![0; EXAMINE_SECTORS as usize * SECTOR_BYTES];
        let mut at = 0;
        while at < self.sectors() {
            let end = self.sectors().min(at + EXAMINE_SECTORS);
            let bytes = &mut buffer[..(end - at) as usize * SECTOR_BYTES];
            read(at..end, bytes).map_err(Violation::Unreadable)?;
            for (sector, bytes) in (at..end).zip(bytes.chunks_exact(SECTOR_BYTES)) {
                contents.push(self.decode(sector, bytes)?);
            }
            at = end;
        }
        Ok(contents)
    }

    fn decode(&self, sector: u64, bytes: &[u8]) -> Result<u64, Violation> {
        match stamp::read(bytes) {
            Reading::Zero => Ok(ZERO),
            Reading::Torn => Err(Violation::Torn { sector }),
            found @ Reading::Stamped {
                tag,
                sector: stamped,
                serial,
            } => {
                let ours = tag == self.tag && serial > 0 && serial < self.next_serial();
                let first = serial == 0 && self.initial == Initial::Stamped(tag);
                if stamped == sector && (ours || first) {
                    Ok(serial)
                } else {
                    Err(Violation::Misplaced { sector, found })
                }
            }
        }
    }

    fn promised(&self, crash: Crash, write: &Write) -> bool {
        let flushed = |at: u64| write.durable || crash == Crash::Kill || at < self.flushed;
        !write.void && write.acknowledged.is_some_and(flushed)
    }

    fn judge(&self, promise: Promise, crash: Crash, contents: &[u64]) -> Result<Found, Violation> {
        match promise {
            Promise::Volatile if crash == Crash::PowerLoss => self.judge_clean(contents),
            Promise::Prefix | Promise::Volatile => self.judge_prefix(crash, contents),
            Promise::Sectors => self.judge_sectors(crash, contents),
        }
    }

    fn judge_clean(&self, contents: &[u64]) -> Result<Found, Violation> {
        let clean = self.clean();
        if contents == clean {
            return Ok(self.found(0, 0));
        }
        let (differing, first) = differences(contents, &clean);
        Err(Violation::NotClean { differing, first })
    }

    /// Walks through the possible cuts, keeping for each sector whether it agrees.
    fn judge_prefix(&self, crash: Crash, contents: &[u64]) -> Result<Found, Violation> {
        let promised = |(_, write): &(u64, &Write)| self.promised(crash, write);
        let floor = self
            .numbered()
            .filter(promised)
            .map(|(serial, _)| serial)
            .last();
        let floor = floor.unwrap_or(self.first - 1);
        let decides = |write: &Write| write.acknowledged.is_some();
        let (mut valid, mut least) = (None, None);
        let mut torn = None;
        let mut nearest = (u64::MAX, 0);
        self.walk(contents, decides, |cut, differing, in_part| {
            if differing == 0 {
                valid = Some(cut);
                least = least.or(valid);
            }
            if in_part == 0 && self.tearing {
                torn = Some(cut - 1);
            }
            if cut >= floor && differing < nearest.0 {
                nearest = (differing, cut);
            }
        });
        match valid.max(torn) {
            Some(cut) if cut >= floor => {
                let torn = valid < torn;
                Ok(Found {
                    torn,
                    least: least.filter(|least| *least >= self.first),
                    ..self.found(cut, floor)
                })
            }
            Some(cut) => Err(Violation::Lost {
                cut,
                floor,
                newest: self.newest_serial(),
            }),
            None => {
                let (differing, cut) = nearest;
                let first = self.explain(contents, cut, decides);
                let newest = self.newest_serial();
                Err(Violation::NoPrefix {
                    cut,
                    floor,
                    newest,
                    differing,
                    first,
                })
            }
        }
    }

    fn judge_sectors(&self, crash: Crash, contents: &[u64]) -> Result<Found, Violation> {
        let decides = |write: &Write| self.promised(crash, write);
        let mut left = 0;
        self.walk(contents, decides, |_, differing, _| left = differing);
        let newest = self.newest_serial();
        if left == 0 {
            return Ok(self.found(newest, self.first - 1));
        }
        let first = self.explain(contents, newest, decides);
        Err(Violation::Stale {
            differing: left,
            first,
        })
    }

    fn numbered(&self) -> impl Iterator<Item = (u64, &Write)> {
        (self.first..).zip(&self.writes)
    }

    /// Goes through the cuts in order and tells how many sectors disagree with each, and how many
    /// would if the last write of the cut was there in part. A write that `decides` ends what was
    /// allowed before it; any other adds what it carries.
    fn walk(
        &self,
        contents: &[u64],
        decides: impl Fn(&Write) -> bool,
        mut visit: impl FnMut(u64, u64, u64),
    ) {
        let agrees = |(found, base): (&u64, &u64)| found == base;
        let mut agreeing: Vec<bool> = contents.iter().zip(&self.base).map(agrees).collect();
        let mut differing = agreeing.iter().filter(|&&it| !it).count() as u64;
        visit(self.first - 1, differing, u64::MAX);
        for (serial, write) in self.numbered().filter(|(_, write)| !write.void) {
            let content = self.content_of(serial);
            let decides = decides(write);
            let mut in_part = differing;
            let range = write.sector as usize..(write.sector + write.sectors) as usize;
            for (agrees, &found) in agreeing[range.clone()].iter_mut().zip(&contents[range]) {
                in_part -= u64::from(found == content && !*agrees);
                let now = found == content || (*agrees && !decides);
                differing = differing + u64::from(*agrees) - u64::from(now);
                *agrees = now;
            }
            visit(serial, differing, in_part);
        }
    }

    /// The first sectors that disagree with the state after `cut`.
    fn explain(
        &self,
        contents: &[u64],
        cut: u64,
        decides: impl Fn(&Write) -> bool,
    ) -> Vec<Difference> {
        let mut expected = self.base.clone();
        let mut allowed: Vec<bool> = contents
            .iter()
            .zip(&expected)
            .map(|(a, b)| a == b)
            .collect();
        let upto = |(serial, write): &(u64, &Write)| *serial <= cut && !write.void;
        for (serial, write) in self.numbered().filter(upto) {
            let content = self.content_of(serial);
            for at in write.sector as usize..(write.sector + write.sectors) as usize {
                allowed[at] = contents[at] == content || (allowed[at] && !decides(write));
                expected[at] = if decides(write) {
                    content
                } else {
                    expected[at]
                };
            }
        }
        let wrong = (0..contents.len())
            .filter(|&at| !allowed[at])
            .take(DIFFERENCES_SHOWN);
        wrong
            .map(|at| difference(at as u64, contents[at], expected[at]))
            .collect()
    }
}

fn difference(sector: u64, found: u64, expected: u64) -> Difference {
    let name = |content: u64| (content != ZERO).then_some(content);
    Difference {
        sector,
        found: name(found),
        expected: name(expected),
    }
}

fn differences(found: &[u64], expected: &[u64]) -> (u64, Vec<Difference>) {
    let wrong = || (0..found.len()).filter(|&at| found[at] != expected[at]);
    let first = wrong().take(DIFFERENCES_SHOWN);
    let first = first
        .map(|at| difference(at as u64, found[at], expected[at]))
        .collect();
    (wrong().count() as u64, first)
}

#[cfg(test)]
mod tests;
