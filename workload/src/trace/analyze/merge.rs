//! Several traces as one, in the order of time.
//!
//! Owns the readers, and one table of disks and paths for all of them. Always true: no record is
//! earlier than the one before it (a late one counts as at that moment). Traces begin together,
//! and each has its own disks, unless they share a clock: then times are as they stand, and a disk
//! of the same name is the same disk, so that a trace may go on where another ended.

use crate::trace::{Complaints, Format, Item, NameId, Names, Reader, Record};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufRead};

/// What readers call a disk of a format that names none.
const NAMELESS: &str = "disk";

struct Source<R> {
    reader: Reader<R>,
    name: String,
    next: Option<Record>,
    /// Into the common tables.
    disks: Vec<NameId>,
    paths: Vec<NameId>,
    offset_ns: u64,
}

/// An error, and in which of the traces.
#[derive(Debug)]
pub struct Failed {
    pub source: usize,
    pub error: io::Error,
}

pub struct Merged<R> {
    sources: Vec<Source<R>>,
    order: BinaryHeap<Reverse<(u64, usize)>>,
    disks: Names,
    paths: Names,
    shared_clock: bool,
    latest_ns: u64,
    lost: u64,
}

impl<R: BufRead> Merged<R> {
    pub fn new(readers: Vec<(String, Reader<R>)>, shared_clock: bool) -> Result<Merged<R>, Failed> {
        let sources = readers.into_iter().map(|(name, reader)| Source {
            reader,
            name,
            next: None,
            disks: Vec::new(),
            paths: Vec::new(),
            offset_ns: 0,
        });
        let mut merged = Merged {
            sources: sources.collect(),
            order: BinaryHeap::new(),
            disks: Names::default(),
            paths: Names::default(),
            shared_clock,
            latest_ns: 0,
            lost: 0,
        };
        for at in 0..merged.sources.len() {
            merged.fill(at)?;
        }
        if shared_clock {
            merged.align();
        }
        Ok(merged)
    }

    /// The first record of all is at zero.
    fn align(&mut self) {
        let firsts = self.sources.iter().map(|it| it.reader.first_ns());
        let earliest = firsts.flatten().min().unwrap_or(0);
        self.order.clear();
        for (at, source) in self.sources.iter_mut().enumerate() {
            source.offset_ns = source.reader.first_ns().map_or(0, |it| it - earliest);
            if let Some(record) = &source.next {
                let time_ns = record.time_ns.saturating_add(source.offset_ns);
                self.order.push(Reverse((time_ns, at)));
            }
        }
    }

    fn fill(&mut self, at: usize) -> Result<(), Failed> {
        let source = &mut self.sources[at];
        let failed = |error| Failed { source: at, error };
        while let Some(item) = source.reader.next_item().map_err(failed)? {
            match item {
                Item::Lost(lost) => self.lost = self.lost.saturating_add(lost),
                Item::Record(record) => {
                    source.next = Some(record);
                    let time_ns = record.time_ns.saturating_add(source.offset_ns);
                    self.order.push(Reverse((time_ns, at)));
                    return Ok(());
                }
            }
        }
        source.next = None;
        Ok(())
    }

    /// The next record of all, with the names of all.
    pub fn next_record(&mut self) -> Result<Option<Record>, Failed> {
        let Some(Reverse((time_ns, at))) = self.order.pop() else {
            return Ok(None);
        };
        let mut record = self.sources[at].next.expect("it is in the order");
        self.latest_ns = self.latest_ns.max(time_ns);
        record.time_ns = self.latest_ns;
        self.name(at, &mut record);
        self.fill(at)?;
        Ok(Some(record))
    }

    fn name(&mut self, at: usize, record: &mut Record) {
        let several = self.sources.len() > 1;
        let source = &mut self.sources[at];
        let known = source.reader.disks().all();
        for name in &known[source.disks.len()..] {
            let name = match (name.as_str(), several && !self.shared_clock) {
                (NAMELESS, _) => source.name.clone(),
                (name, true) => format!("{}:{name}", source.name),
                (name, false) => name.to_owned(),
            };
            source.disks.push(self.disks.id(&name));
        }
        let known = source.reader.paths().all();
        for name in &known[source.paths.len()..] {
            source.paths.push(self.paths.id(name));
        }
        record.disk = source.disks[record.disk.0 as usize];
        record.path = record.path.map(|path| source.paths[path.0 as usize]);
    }
}

impl<R: BufRead> Merged<R> {
    pub fn disks(&self) -> &Names {
        &self.disks
    }

    pub fn paths(&self) -> &Names {
        &self.paths
    }

    /// For those who know more paths than the traces.
    pub fn paths_mut(&mut self) -> &mut Names {
        &mut self.paths
    }

    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Name, format, and what was not understood of each trace.
    pub fn sources(&self) -> impl Iterator<Item = (&str, Format, &Complaints)> {
        let sources = self.sources.iter();
        sources.map(|it| (it.name.as_str(), it.reader.format(), it.reader.complaints()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[(&str, &str)], shared_clock: bool) -> Vec<(u64, String, u64)> {
        let readers = texts.iter().map(|(name, text)| {
            let reader = Reader::open(text.as_bytes(), None).expect("a known format");
            ((*name).to_owned(), reader)
        });
        let mut merged = Merged::new(readers.collect(), shared_clock).expect("memory");
        let mut all = Vec::new();
        while let Some(record) = merged.next_record().expect("memory") {
            let disk = merged.disks().name(record.disk).to_owned();
            all.push((record.time_ns / 1_000_000_000, disk, record.sector));
        }
        all
    }

    const A: &str = "1,100,2a,512,1\n1,103,2a,512,2\n1,102,28,512,3\n";
    const B: &str = "1,101,28,512,4\n1,105,2a,512,5\n";

    fn is(found: Vec<(u64, String, u64)>, expected: &[(u64, &str, u64)]) {
        let found: Vec<_> = found.iter().map(|it| (it.0, it.1.as_str(), it.2)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn traces_begin_together_and_have_their_own_disks() {
        let expected = [
            (0, "a", 1),
            (0, "b", 4),
            (3, "a", 2),
            (3, "a", 3),
            (4, "b", 5),
        ];
        is(read(&[("a", A), ("b", B)], false), &expected);
        let msr = "128166372003061629,hm,1,Read,0,512,413\n";
        is(
            read(&[("x", msr), ("y", msr)], false),
            &[(0, "x:hm,1", 0), (0, "y:hm,1", 0)],
        );
    }

    #[test]
    fn traces_of_one_clock_keep_their_times_and_share_disks() {
        let expected = [
            (0, "a", 1),
            (1, "b", 4),
            (3, "a", 2),
            (3, "a", 3),
            (5, "b", 5),
        ];
        is(read(&[("b", B), ("a", A)], true), &expected);
        let msr = "128166372003061629,hm,1,Read,0,512,413\n";
        let later = "128166372013061629,hm,1,Read,512,512,413\n";
        is(
            read(&[("y", later), ("x", msr)], true),
            &[(0, "hm,1", 0), (1, "hm,1", 1)],
        );
    }
}
