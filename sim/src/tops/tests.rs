//! Images as they are made, and one destage of them, judged after each of its steps.

use super::*;
use crate::below::Below;
use crate::disk::{Change, Disk, Power};
use crate::made;
use crate::oracle::judge_origin;
use crate::rng::Rng;
use engine::format::ledger::Ledger;
use workload::check::{Initial, Kind, Model, Promise};
use workload::stamp;

fn origin(seed: u64) -> (Origin, Vec<u8>) {
    let mut content = vec![0; 4099 * 512];
    stamp::fill(&mut content, 5, 0, 0);
    let [top, below] = made::files(&content, seed);
    let origin = Origin {
        image: Disk::new(top),
        below: Below::one(below),
        ..Origin::default()
    };
    (origin, content)
}

fn write(origin: &mut Origin, offset: u64, bytes: Vec<u8>) {
    let change = Change::Bytes { offset, bytes };
    let ticket = origin.image.start(change);
    let mut rng = Rng::new(1);
    origin.image.finish(ticket, false, 1, &mut rng);
}

#[test]
fn a_guard_hides_nothing_of_an_image_and_leaves_it_no_rest() {
    for seed in 0..30 {
        let (mut origin, content) = origin(seed);
        assert_eq!(judge_at_rest(&origin), Ok(()));
        let mut head = origin.image.landed()[..512].to_vec();
        head[72] |= 0x20;
        write(&mut origin, 0, head);
        let left = Left {
            guarded: true,
            pending: false,
        };
        assert_eq!(judge_left(&origin), Ok(left));
        assert!(disk(&origin, content.len()) == Ok(content), "seed {seed}");
        assert!(judge_at_rest(&origin).is_err());
    }
}

#[test]
fn bytes_that_nothing_refers_to_may_be_anything() {
    let mut free = 0;
    for seed in 0..20 {
        let (mut origin, content) = origin(seed);
        let size = origin.image.size();
        let mut writing = Writing::default();
        let sectors = (0..size + (1 << 20)).step_by(512);
        let is_free = |at: &u64| writing.refers_to(&origin, &(*at..at + 512)).is_none();
        let places: Vec<u64> = sectors.filter(is_free).collect();
        for at in places {
            write(&mut origin, at, vec![0x5A; 512]);
            free += 1;
        }
        assert_eq!(judge(&origin), Ok(()), "seed {seed}");
        assert!(disk(&origin, content.len()) == Ok(content), "seed {seed}");
    }
    assert!(free > 20 * 2048, "{free} sectors");
}

#[test]
fn an_image_that_is_much_longer_than_its_clusters_is_noticed() {
    let (mut origin, _) = origin(3);
    let far = origin.image.size() + (64 << 20);
    write(&mut origin, far, vec![0; 512]);
    let wrong = judge(&origin).expect_err("too long");
    assert!(wrong.contains("whose clusters end at"), "{wrong}");
}

/// What a destage does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// It counts the new cluster at once.
    CountsAtOnce,
    /// It counts the new cluster never.
    NeverCounts,
    /// Tables are written at once.
    PointsAtOnce,
    /// It has no guard.
    NoGuard,
    /// The guard goes before the ledger says that all is there.
    GuardGoesEarly,
    /// What is written at once is not synced before the ledger says *apply*.
    NoSync,
    /// The guard stays.
    GuardStays,
}

const SECTOR: usize = 512;

/// An image, the same with a cluster more, and which cluster of the disk that is.
fn grown(content: &[u8], seed: u64) -> Option<([Vec<u8>; 3], usize, usize)> {
    let [before, below] = made::files(content, seed);
    let (bits, width, extended) = (before[23], before[99], before[79] & 16 > 0);
    if width != 4 || extended {
        return None;
    }
    let cluster = 1 << bits;
    let word = |file: &[u8], at: usize| {
        let bytes = file[at..at + 8].try_into().expect("eight bytes");
        u64::from_be_bytes(bytes)
    };
    let (l1, counts) = (2 * cluster, cluster);
    let is_free = |number: &usize| {
        let table = word(&before, l1 + number / (cluster / 8) * 8) & !made::COPIED;
        table > 0 && word(&before, table as usize + number % (cluster / 8) * 8) == 0
    };
    let number = (0..content.len() / cluster).find(is_free)?;
    let mut after = before.clone();
    let place = before.len().next_multiple_of(cluster);
    after.resize(place + cluster, 0);
    let table = (word(&before, l1 + number / (cluster / 8) * 8) & !made::COPIED) as usize;
    let entry = (made::COPIED | place as u64).to_be_bytes();
    after[table + number % (cluster / 8) * 8..][..8].copy_from_slice(&entry);
    let per_block = cluster / 2;
    let block = word(&before, counts + place / cluster / per_block * 8) as usize;
    if block == 0 {
        return None;
    }
    after[block + place / cluster % per_block * 2 + 1] = 1;
    Some(([before, after, below], number * cluster, place))
}

struct Drill {
    origin: Origin,
    model: Model,
    rng: Rng,
    /// What went wrong first, and behind which step.
    wrong: Option<String>,
    steps: u64,
}

impl Drill {
    /// The state after a step, in which power may go at any time.
    fn judged(&mut self) {
        self.steps += 1;
        for power in [Power::Kept, Power::Lost, Power::Lost, Power::Lost] {
            let mut left = self.origin.clone();
            for disk in [&mut left.image, &mut left.journal, &mut left.ledger] {
                disk.power_loss(power, false, &mut self.rng);
            }
            let before = judge_left(&left).map(|_| ());
            let judged = before.and_then(|()| {
                let found = judge_origin(left, &self.model, Promise::Prefix, self.rng.fork());
                found.map(|_| ()).map_err(|it| it.words)
            });
            if let (Err(why), None) = (judged, &self.wrong) {
                self.wrong = Some(format!("step {}: {why}", self.steps));
            }
        }
    }

    fn put(&mut self, file: fn(&mut Origin) -> &mut Disk, parts: Vec<(u64, Vec<u8>)>) {
        let disk = file(&mut self.origin);
        let starts = parts
            .into_iter()
            .map(|(offset, bytes)| Change::Bytes { offset, bytes });
        let mut tickets: Vec<u64> = starts.map(|change| disk.start(change)).collect();
        self.rng.shuffle(&mut tickets);
        for ticket in tickets {
            self.judged();
            file(&mut self.origin).finish(ticket, false, 1, &mut self.rng);
        }
        self.judged();
    }

    fn sync(&mut self, file: fn(&mut Origin) -> &mut Disk) {
        let disk = file(&mut self.origin);
        let point = disk.sync_point();
        disk.sync_done(point);
        self.judged();
    }

    fn tell(&mut self, sequence: u64, progress: Progress, bytes: u64) {
        let ledger = planned::ledger(sequence, progress, bytes);
        let slot = Ledger::slot_at(sequence);
        self.put(|it| &mut it.ledger, vec![(slot, ledger)]);
        self.sync(|it| &mut it.ledger);
    }

    fn guard(&mut self, guard: bool) {
        let mut head = self.origin.image.landed()[..SECTOR].to_vec();
        qcow2::unguard(&mut head);
        head[72] |= 0x20 * u8::from(guard);
        self.put(|it| &mut it.image, vec![(0, head)]);
    }
}

/// The sectors in which two files differ, and all from a place on.
fn differences(before: &[u8], after: &[u8], place: usize) -> Vec<(u64, Vec<u8>)> {
    let old = before
        .chunks(SECTOR)
        .chain(std::iter::repeat(&[0; SECTOR][..]));
    let numbered = after.chunks(SECTOR).zip(old).enumerate();
    let other = numbered.filter(|(at, (new, old))| new != old || at * SECTOR >= place);
    let sectors = other.map(|(at, (new, _))| ((at * SECTOR) as u64, new.to_vec()));
    sectors.collect()
}

/// One destage of one cluster, with power that may go behind each step. What was noticed.
fn destage(seed: u64, wrong: Wrong) -> Option<Option<String>> {
    let mut content = vec![0; 1003 * SECTOR];
    stamp::fill(&mut content, 5, 0, 0);
    let ([before, mut after, below], at, place) = grown(&content, seed)?;
    let (sector, sectors) = (at / SECTOR, (after.len() - place) / SECTOR);
    let mut model = Model::new(8, 1003, Promise::Prefix, Initial::Stamped(5));
    let serial = model.submit(Kind::Stamp, sector as u64, sectors as u64, false);
    model.acknowledge(serial);
    stamp::fill(&mut after[place..], 8, sector as u64, serial);

    let mut writing = Writing::default();
    let origin = Origin {
        image: Disk::new(before.clone()),
        below: Below::one(below),
        top: true,
        ..Origin::default()
    };
    let all = differences(&before, &after, place);
    let refers = |it: &(u64, Vec<u8>)| writing.refers_to(&origin, &(it.0..it.0 + 512)).is_some();
    let (mut journaled, now): (Vec<_>, Vec<_>) = all.into_iter().partition(refers);
    assert_eq!(now.len(), sectors, "the new cluster");
    let mut now = vec![(place as u64, after[place..].to_vec())];
    assert_eq!(journaled.len(), 2, "an entry and a count");
    // Blocks of counts are at the end of a file that is made.
    match wrong {
        Wrong::CountsAtOnce => now.extend(journaled.pop()),
        Wrong::NeverCounts => drop(journaled.pop()),
        Wrong::PointsAtOnce => now.push(journaled.remove(0)),
        _ => {}
    }
    let mut drill = Drill {
        origin,
        model,
        rng: Rng::new(seed),
        wrong: None,
        steps: 0,
    };
    drill.tell(1, Progress::Idle, before.len() as u64);
    drill.put(|it| &mut it.image, now);
    if wrong != Wrong::NoGuard {
        drill.guard(true);
    }
    if wrong != Wrong::NoSync {
        drill.sync(|it| &mut it.image);
    }
    let (journal, progress) = planned::journal(&journaled);
    drill.put(|it| &mut it.journal, vec![(0, journal)]);
    drill.sync(|it| &mut it.journal);
    let bytes = drill.origin.image.size();
    drill.tell(2, progress, bytes);
    drill.put(|it| &mut it.image, journaled);
    if wrong == Wrong::GuardGoesEarly {
        drill.guard(false);
    }
    drill.sync(|it| &mut it.image);
    drill.tell(3, Progress::Idle, bytes);
    if !matches!(wrong, Wrong::NoGuard | Wrong::GuardStays) {
        drill.guard(false);
        drill.sync(|it| &mut it.image);
    }
    let point = drill.model.flush_begin();
    drill.model.flush_done(point);
    drill.judged();
    let rests = judge_at_rest(&drill.origin).err();
    Some(drill.wrong.or(rests))
}

fn destages(wrong: Wrong) -> Vec<Option<String>> {
    let all = (0..60).filter_map(|seed| destage(seed, wrong));
    all.take(3).collect()
}

#[test]
fn a_destage_by_the_rules_is_right_wherever_power_goes() {
    let all = destages(Wrong::Nothing);
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(Option::is_none), "{all:?}");
}

#[test]
fn a_destage_against_a_rule_is_noticed() {
    let cases = [
        (Wrong::CountsAtOnce, "clusters leak"),
        (Wrong::NeverCounts, "errors in the image"),
        (Wrong::PointsAtOnce, "errors in the image"),
        (Wrong::NoGuard, "nothing in the image says so"),
        (Wrong::GuardGoesEarly, "nothing in the image says so"),
        (Wrong::NoSync, "nothing in the image says so"),
        (Wrong::GuardStays, "between two states"),
    ];
    for (wrong, words) in cases {
        let all = destages(wrong);
        let noticed = all.iter().flatten().any(|it| it.contains(words));
        assert!(noticed, "{wrong:?}: {all:?}");
    }
}

/// Ledgers and journals as the engine writes them.
mod planned {
    use super::*;
    use engine::format::checksum;
    use engine::format::journal::{Journal, JournalEntry, payload_at};
    use engine::format::record::EntryKind;
    use engine::types::{Generation, Serial, Span, Uuid};

    const VOLUME: Uuid = Uuid([1; 16]);

    pub fn ledger(sequence: u64, progress: Progress, bytes: u64) -> Vec<u8> {
        let ledger = Ledger {
            sequence,
            volume: VOLUME,
            cache: Uuid([2; 16]),
            machine: Uuid([3; 16]),
            boot: Uuid([4; 16]),
            owner: "host-a".to_owned(),
            generation: Generation(1),
            destaged: Serial(0),
            progress,
            dirty: true,
            origin_bytes: bytes,
            mtime_before_ns: 0,
            mtime_limit_ns: u64::MAX / 4,
            image: Default::default(),
            may_succeed: false,
            compatible: 0,
        };
        ledger.encode()
    }

    /// One that has these sectors, and what a ledger says of it.
    pub fn journal(sectors: &[(u64, Vec<u8>)]) -> (Vec<u8>, Progress) {
        let first = payload_at(sectors.len());
        let numbered = sectors.iter().enumerate();
        let entries = numbered.map(|(at, (offset, bytes))| JournalEntry {
            span: Span::new(offset / 512, 1),
            kind: EntryKind::Write,
            offset: first + at as u64 * 4096,
            checksum: checksum(&[bytes]),
        });
        let total_bytes = first + sectors.len() as u64 * 4096;
        let journal = Journal {
            volume: VOLUME,
            generation: Generation(1),
            sequence: 1,
            upto: Serial(1),
            total_bytes,
            entries: entries.collect(),
        };
        let mut bytes = journal.encode();
        bytes.resize(total_bytes as usize, 0);
        for (entry, (_, payload)) in journal.entries.iter().zip(sectors) {
            bytes[entry.offset as usize..][..512].copy_from_slice(payload);
        }
        let progress = Progress::Apply {
            upto: Serial(1),
            journal_sequence: 1,
            journal_bytes: total_bytes,
        };
        (bytes, progress)
    }
}
