//! Writes of a trace by class of durability.
//!
//! Owns the counts. Always true: each write counts once, for the file that has its first sector, as
//! in `trace analyze`; what no file has, as the blocks of one that went away since, is of the class
//! of the system disk, and counted apart. Deliberately absent: which paths a table names, which the
//! crate `split` knows.

use crate::image_files::{ImageOf, Images};
use crate::inputs;
use host::error::{Result, cause};
use serde_json::{Value, json};
use split::Class;
use split::propose::classed::Classed;
use std::path::Path;
use workload::trace::{Item, NameId, Names, Op, Record, SECTOR_BYTES};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub requests: u64,
    pub bytes: u64,
}

impl Count {
    pub fn add(&mut self, more: Count) {
        self.requests += more.requests;
        self.bytes += more.bytes;
    }
}

/// What was written, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// In the order of [`Class::DURABILITIES`].
    pub by_class: [Count; 3],
    /// Of these, in no file of the image.
    pub nowhere: Count,
    /// Of these, in journal and tables of the file system.
    pub own: Count,
    /// Of these, in the page file.
    pub page_file: Count,
    pub reads: u64,
    pub flushes: u64,
}

/// Where a write went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    PageFile,
    Own,
    Nowhere,
}

impl Writes {
    pub fn of(&self, class: Class) -> Count {
        self.by_class[place(class)]
    }

    pub fn all(&self) -> Count {
        let mut all = Count::default();
        self.by_class.iter().for_each(|it| all.add(*it));
        all
    }

    /// Of all requests, those of a class.
    pub fn share(&self, class: Class) -> f64 {
        part(self.of(class).requests, self.all().requests)
    }

    pub fn share_of_bytes(&self, class: Class) -> f64 {
        part(self.of(class).bytes, self.all().bytes)
    }

    /// The share of a class without the writes of the page file.
    pub fn share_without_page_file(&self, class: Class) -> f64 {
        let of = |it: Class| match it {
            Class::Never => self.of(it).requests.saturating_sub(self.page_file.requests),
            _ => self.of(it).requests,
        };
        part(of(class), Class::DURABILITIES.into_iter().map(of).sum())
    }

    pub fn add(&mut self, class: Class, count: Count) {
        self.by_class[place(class)].add(count);
    }

    fn take(&mut self, record: &Record, (class, kind): (Class, Kind)) {
        let count = Count {
            requests: 1,
            bytes: u64::from(record.sectors) * SECTOR_BYTES,
        };
        self.add(class, count);
        match kind {
            Kind::File => {}
            Kind::PageFile => self.page_file.add(count),
            Kind::Own => self.own.add(count),
            Kind::Nowhere => self.nowhere.add(count),
        }
    }

    pub fn document(&self) -> Value {
        let count = |it: Count| json!({ "requests": it.requests, "bytes": it.bytes });
        let classes = Class::DURABILITIES.map(|class| {
            json!({
                "class": class.name(),
                "requests": self.of(class).requests,
                "bytes": self.of(class).bytes,
                "share": self.share(class),
                "share_of_bytes": self.share_of_bytes(class),
            })
        });
        json!({
            "classes": classes,
            "no_file": count(self.nowhere),
            "file_system": count(self.own),
            "page_file": count(self.page_file),
            "reads": self.reads,
            "flushes": self.flushes,
        })
    }
}

fn place(class: Class) -> usize {
    let found = Class::DURABILITIES
        .iter()
        .position(|it| *it == class.durability());
    found.expect("all classes are in the list")
}

pub fn part(of: u64, all: u64) -> f64 {
    of as f64 / all.max(1) as f64
}

/// Counts the writes of a trace; the image says which files they were to, where the trace does not.
pub fn classify(trace: &Path, image: Option<&Path>, classed: &Classed) -> Result<Writes> {
    let failed = |why: &dyn std::fmt::Display| inputs::failed(trace, why);
    let mut reader = inputs::trace(trace, None)?;
    let (mut known, mut of_image) = (Known::new(classed), Known::new(classed));
    let mut names_of_image = Names::default();
    let (mut images, mut disk) = (Images::default(), None);
    let mut writes = Writes::default();
    while let Some(item) = reader.next_item().map_err(|error| failed(&cause(&error)))? {
        let record = match item {
            Item::Record(record) => record,
            Item::Lost(lost) => {
                let why = "requests were not recorded; record it again on a quieter machine";
                return Err(failed(&format_args!("{lost} {why}")));
            }
        };
        match record.op {
            Op::Read => writes.reads += 1,
            Op::Flush => writes.flushes += 1,
            Op::Write | Op::Discard => {}
        }
        if record.op != Op::Write {
            continue;
        }
        if let (None, Some(image)) = (disk, image) {
            let disk = reader.disks().name(record.disk).to_owned();
            let image = image.to_owned();
            images = Images::read(&[ImageOf { disk, image }], None)?;
        }
        if *disk.get_or_insert(record.disk) != record.disk && image.is_some() {
            let why = "has several disks, and one image; record each by itself";
            return Err(failed(&why));
        }
        let found = match record.path {
            Some(path) => Some(known.by_id(reader.paths(), path)),
            None => {
                let found = images.path(reader.disks(), record.disk, record.sector);
                let path = found.map(|it| it.id(&mut names_of_image));
                path.map(|it| of_image.by_id(&names_of_image, it))
            }
        };
        if found.is_none() && image.is_none() {
            let why = "does not say which files its writes were to; give --image, the image of \
                       its disk after it was recorded";
            return Err(failed(&why));
        }
        writes.take(&record, found.unwrap_or((classed.system(), Kind::Nowhere)));
    }
    match writes.all().requests {
        0 => Err(failed(
            &"has no writes; record one in which something is written",
        )),
        _ => Ok(writes),
    }
}

/// Classes of the paths of a trace, looked up once.
struct Known<'a> {
    classed: &'a Classed,
    by_id: Vec<(Class, Kind)>,
}

impl<'a> Known<'a> {
    fn new(classed: &'a Classed) -> Known<'a> {
        Known {
            classed,
            by_id: Vec::new(),
        }
    }

    fn by_id(&mut self, paths: &Names, path: NameId) -> (Class, Kind) {
        for name in paths.all().iter().skip(self.by_id.len()) {
            let found = self.by_name(name);
            self.by_id.push(found);
        }
        let found = self.by_id.get(path.0 as usize);
        found
            .copied()
            .unwrap_or((self.classed.system(), Kind::Nowhere))
    }

    fn by_name(&self, path: &str) -> (Class, Kind) {
        let class = self.classed.class(path);
        let kind = match path {
            _ if path.starts_with("/[") => Kind::Own,
            _ if self.classed.is_page_file(&self.classed.key(path)) => Kind::PageFile,
            _ => Kind::File,
        };
        (class, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use split::Rules;
    use workload::trace::native::Writer;

    fn record(op: Op, sectors: u32) -> Record {
        Record {
            time_ns: 0,
            disk: NameId(0),
            op,
            sector: 64,
            sectors,
            path: None,
        }
    }

    /// Counts of a trace of these requests, each to a file.
    fn counted(requests: &[(Op, u32, &str)], lost: u64) -> Result<Writes> {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("a.trace");
        let mut writer = Writer::new(Vec::new()).expect("memory");
        for (op, sectors, name) in requests {
            let name = Some(*name).filter(|it| !it.is_empty());
            let written = writer.record(&record(*op, *sectors), "disk", name);
            written.expect("memory");
        }
        if lost > 0 {
            writer.lost(lost).expect("memory");
        }
        std::fs::write(&path, writer.finish().expect("memory")).expect("a file");
        let rules = Rules::load("linux").expect("a table");
        classify(&path, None, &Classed::new(rules))
    }

    /// Fails when: a write counts for another class or not once, a read counts as a write, or what
    /// the file system keeps for itself is not told apart.
    #[test]
    fn each_write_counts_once_for_the_class_of_its_path() {
        let writes = counted(
            &[
                (Op::Write, 8, "/tmp/a"),
                (Op::Write, 16, concat!("/", "home/ann/.cache/b")),
                (Op::Write, 8, "/swapfile"),
                (Op::Write, 8, "/var/log/syslog"),
                (Op::Write, 32, concat!("/", "home/ann/Documents/c")),
                (Op::Write, 8, "/[journal]"),
                (Op::Read, 8, "/tmp/a"),
                (Op::Flush, 0, ""),
            ],
            0,
        );
        let writes = writes.expect("it has paths");
        let count = |requests, bytes| Count { requests, bytes };
        assert_eq!(writes.of(Class::Never), count(3, 32 * 512));
        assert_eq!(writes.of(Class::WriteBack), count(1, 4096));
        assert_eq!(writes.of(Class::WriteThrough), count(2, 40 * 512));
        assert_eq!(writes.own, count(1, 4096));
        assert_eq!(writes.page_file, count(1, 4096));
        assert_eq!(writes.nowhere, Count::default());
        assert_eq!((writes.reads, writes.flushes), (1, 1));
        assert_eq!(writes.share(Class::Never), 0.5);
        assert_eq!(writes.share_without_page_file(Class::WriteThrough), 0.4);
    }

    /// Fails when: a trace that says nothing of files, has no writes or has lost some gives a
    /// figure.
    #[test]
    fn a_trace_that_cannot_be_classed_is_refused_with_what_would_be_right() {
        let said = |it: Result<Writes>| it.expect_err("no figure").message;
        let line = said(counted(&[(Op::Write, 8, "")], 0));
        assert!(line.contains("; give --image"), "{line}");
        let line = said(counted(&[(Op::Read, 8, "/tmp/a")], 0));
        assert!(line.contains("has no writes"), "{line}");
        let line = said(counted(&[(Op::Write, 8, "/tmp/a")], 3));
        assert!(line.contains("3 requests were not recorded"), "{line}");
    }
}
