//! What settling makes of a ledger and a journal that were written by hand beside an image.
//!
//! Always true: the journal takes the image from serial 999 to 1100; the ledger that says so is
//! in one slot, the one before it, which knows of no journal, in the other. Devices keep what was
//! synced, tear at sectors, and write down what was asked of them.

mod common;

use common::{CACHE, ledger};
use engine::engine::{OpenError, Settled, inspect_origin, pending_journal, settle};
use engine::event::{Device, IoError, Stat};
use engine::format::checksum;
use engine::format::journal::{Journal, JournalEntry, payload_at};
use engine::format::ledger::{LOSS_ACCEPTED, Ledger, PAST_LOG, Progress};
use engine::format::record::EntryKind;
use engine::media::Media;
use engine::types::{Generation, Serial, Span, VolumeId};
use workload::rng::Rng;

const ID: VolumeId = VolumeId(2);
const SECTOR: usize = 512;
const BLOCK: u64 = 4096;
const KIB: usize = 1 << 10;
const UPTO: Serial = Serial(1100);
const IMAGE: Device = Device::Origin(ID);
/// When the journal was made, and what the clock says when it is found.
const MADE_NS: u64 = 1_000_000_000;
const FOUND_NS: u64 = 5_000_000_000;

/// A file whose unsynced sectors a power loss may take.
#[derive(Clone, Default)]
struct File {
    synced: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

impl File {
    fn of(bytes: &[u8]) -> File {
        File {
            synced: bytes.to_vec(),
            unsynced: Vec::new(),
        }
    }

    fn put(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
        bytes.resize(bytes.len().max(at + part.len()), 0);
        bytes[at..at + part.len()].copy_from_slice(part);
    }

    fn now(&self) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        for (at, part) in &self.unsynced {
            File::put(&mut bytes, *at, part);
        }
        bytes
    }

    fn sync(&mut self) {
        for (at, part) in std::mem::take(&mut self.unsynced) {
            File::put(&mut self.synced, at, &part);
        }
    }

    /// A sector that was not synced is new, old, or garbage.
    fn lose_power(&mut self, rng: &mut Rng) {
        for (at, part) in std::mem::take(&mut self.unsynced) {
            match rng.below(3) {
                0 => File::put(&mut self.synced, at, &part),
                1 => File::put(&mut self.synced, at, &[0xaa; SECTOR]),
                _ => {}
            }
        }
    }
}

#[derive(Clone)]
struct Host {
    image: File,
    journal: File,
    ledger: File,
    image_mtime_ns: u64,
    ledger_mtime_ns: u64,
    now_ns: u64,
    /// The image cannot be looked at.
    unseen: bool,
    /// Changes and syncs that succeed before one fails.
    calls_left: usize,
    /// Lengths of requests to the journal's payload and to the image, in their order, and what
    /// each call for several had altogether.
    reads: Vec<usize>,
    writes: Vec<usize>,
    read_together: Vec<usize>,
    written_together: Vec<usize>,
}

impl Host {
    fn file(&mut self, device: Device) -> &mut File {
        match device {
            Device::Origin(ID) => &mut self.image,
            Device::Journal(ID) => &mut self.journal,
            Device::Ledger(ID) => &mut self.ledger,
            other => unreachable!("{other:?} is not of this volume"),
        }
    }

    fn call(&mut self) -> Result<(), IoError> {
        self.calls_left = self.calls_left.checked_sub(1).ok_or(IoError::Failed)?;
        Ok(())
    }

    /// The newest that is whole.
    fn ledger(&self) -> Ledger {
        let found = Ledger::parse_file(&self.ledger.now());
        found.expect("whole").expect("there is one")
    }

    fn settled(&mut self) -> Result<Settled, OpenError> {
        settle(self, ID)
    }

    /// It is told what is wrong, and nothing was changed.
    fn refuses(mut self, says: &str) {
        let before = (self.image.now(), self.ledger.now());
        let shown = inspect_origin(&mut self, ID);
        let shown = shown.expect("read").expect("a ledger").journal;
        let shown = shown.expect("pending").expect_err("not whole").to_string();
        let settled = self.settled().and_then(Settled::without_log);
        let why = settled.expect_err("not whole").to_string();
        assert_eq!(shown, why);
        assert!(why.contains(says), "{why}");
        assert_eq!((self.image.now(), self.ledger.now()), before);
        assert_eq!(pending_journal(&mut self, ID), Ok(Some(self.pending().2)));
    }

    fn pending(&self) -> (Serial, u64, u64) {
        match self.ledger().progress {
            Progress::Apply {
                upto,
                journal_sequence,
                journal_bytes,
            } => (upto, journal_sequence, journal_bytes),
            other => panic!("{other:?}"),
        }
    }
}

impl Media for Host {
    fn read(&mut self, device: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        let found = self.file(device).now();
        bytes.fill(0);
        let from = found.get(offset as usize..).unwrap_or_default();
        let there = bytes.len().min(from.len());
        bytes[..there].copy_from_slice(&from[..there]);
        Ok(())
    }

    fn read_many(&mut self, device: Device, reads: &mut [(u64, &mut [u8])]) -> Result<(), IoError> {
        let found = self.file(device).now();
        for (at, bytes) in reads.iter_mut() {
            let from = &found[*at as usize..];
            bytes.copy_from_slice(&from[..bytes.len()]);
            self.reads.push(bytes.len());
        }
        self.read_together
            .push(reads.iter().map(|it| it.1.len()).sum());
        Ok(())
    }

    fn write(&mut self, device: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        assert_ne!(device, Device::Journal(ID), "it is only read");
        let parts = bytes.chunks(SECTOR).enumerate();
        let parts = parts.map(|(n, part)| (offset as usize + n * SECTOR, part.to_vec()));
        self.file(device).unsynced.extend(parts);
        match device {
            IMAGE => self.image_mtime_ns = self.now_ns,
            _ => self.ledger_mtime_ns = self.now_ns,
        }
        self.call()
    }

    fn write_many(&mut self, device: Device, writes: &[(u64, &[u8])]) -> Result<(), IoError> {
        self.writes.extend(writes.iter().map(|it| it.1.len()));
        let together = writes.iter().map(|it| it.1.len()).sum();
        self.written_together.push(together);
        for (offset, bytes) in writes {
            self.write(device, *offset, bytes)?;
        }
        Ok(())
    }

    fn zero(&mut self, device: Device, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.write(device, offset, &vec![0; bytes as usize])
    }

    fn sync(&mut self, device: Device) -> Result<(), IoError> {
        self.call()?;
        self.file(device).sync();
        Ok(())
    }

    fn stat(&mut self, device: Device) -> Result<Stat, IoError> {
        if self.unseen && device == IMAGE {
            return Err(IoError::Failed);
        }
        let size_bytes = self.file(device).now().len() as u64;
        Ok(Stat {
            size_bytes,
            mtime_ns: match device {
                IMAGE => self.image_mtime_ns,
                _ => self.ledger_mtime_ns,
            },
            now_ns: self.now_ns,
            print: None,
            image: None,
            named: engine::image::Named::Unknown,
        })
    }
}

/// What a journal puts where: zeroes, or bytes that tell their sector.
#[derive(Clone, Copy)]
enum Part {
    Zeroes(Span),
    Bytes(Span),
}

fn zeroes(sector: u64, sectors: u64) -> Part {
    Part::Zeroes(Span::new(sector, sectors))
}

fn bytes(sector: u64, sectors: u64) -> Part {
    Part::Bytes(Span::new(sector, sectors))
}

fn payload(span: Span) -> Vec<u8> {
    let of_sector = |sector: u64| [1 + (sector % 251) as u8; SECTOR];
    (span.sector..span.end()).flat_map(of_sector).collect()
}

/// The image before, which the journal changes.
fn old(sectors: u64) -> Vec<u8> {
    vec![0xee; sectors as usize * SECTOR]
}

fn new(sectors: u64, parts: &[Part]) -> Vec<u8> {
    let mut image = old(sectors);
    for part in parts {
        match *part {
            Part::Zeroes(span) => File::put(
                &mut image,
                span.sector as usize * SECTOR,
                &vec![0; span.sectors as usize * SECTOR],
            ),
            Part::Bytes(span) => {
                File::put(&mut image, span.sector as usize * SECTOR, &payload(span));
            }
        }
    }
    image
}

/// A journal, one payload behind the other, each from a block on.
fn journal(parts: &[Part]) -> (Journal, Vec<u8>) {
    let start = payload_at(parts.len());
    let mut rest = Vec::new();
    let entries = parts.iter().map(|part| match *part {
        Part::Zeroes(span) => JournalEntry {
            span,
            kind: EntryKind::Zero { allocate: false },
            offset: 0,
            checksum: 0,
        },
        Part::Bytes(span) => {
            let offset = start + rest.len() as u64;
            let bytes = payload(span);
            let entry = JournalEntry {
                span,
                kind: EntryKind::Write,
                offset,
                checksum: checksum(&[&bytes]),
            };
            rest.extend(bytes);
            rest.resize(rest.len().next_multiple_of(BLOCK as usize), 0);
            entry
        }
    });
    let entries = entries.collect();
    let journal = Journal {
        volume: common::VOLUME,
        generation: Generation(7),
        sequence: 3,
        upto: UPTO,
        total_bytes: start + rest.len() as u64,
        entries,
    };
    (journal, rest)
}

/// An image of so many sectors with a journal that is to be applied.
fn host(sectors: u64, parts: &[Part]) -> Host {
    let (journal, rest) = journal(parts);
    let before = Ledger {
        origin_bytes: sectors * SECTOR as u64,
        mtime_before_ns: MADE_NS,
        mtime_limit_ns: MADE_NS,
        ..ledger()
    };
    let apply = Ledger {
        sequence: before.sequence + 1,
        progress: Progress::Apply {
            upto: UPTO,
            journal_sequence: journal.sequence,
            journal_bytes: journal.total_bytes,
        },
        ..before.clone()
    };
    let mut host = Host {
        image: File::of(&old(sectors)),
        journal: File::of(&journal.encode()),
        ledger: File::default(),
        image_mtime_ns: MADE_NS,
        ledger_mtime_ns: MADE_NS,
        now_ns: FOUND_NS,
        unseen: false,
        calls_left: usize::MAX,
        reads: Vec::new(),
        writes: Vec::new(),
        read_together: Vec::new(),
        written_together: Vec::new(),
    };
    host.journal.synced.extend(rest);
    for it in [before, apply] {
        host.put_ledger(&it);
    }
    host
}

impl Host {
    fn put_ledger(&mut self, ledger: &Ledger) {
        let at = Ledger::slot_at(ledger.sequence) as usize;
        File::put(&mut self.ledger.synced, at, &ledger.encode());
    }

    /// The pending ledger says something else.
    fn with_ledger(mut self, change: impl FnOnce(&mut Ledger)) -> Host {
        let mut ledger = self.ledger();
        change(&mut ledger);
        self.put_ledger(&ledger);
        self
    }

    /// The journal has another head and table.
    fn with_journal(mut self, parts: &[Part], change: impl FnOnce(&mut Journal)) -> Host {
        let (mut journal, _) = journal(parts);
        change(&mut journal);
        File::put(&mut self.journal.synced, 0, &journal.encode());
        self
    }
}

const SECTORS: u64 = 64;

/// Bytes and zeroes, some side by side, one of a piece of a block, the last to the image's end.
fn some() -> Vec<Part> {
    vec![
        bytes(0, 8),
        bytes(8, 8),
        zeroes(17, 3),
        bytes(24, 5),
        bytes(29, 8),
        zeroes(40, 8),
        bytes(56, 8),
    ]
}

fn some_host() -> Host {
    host(SECTORS, &some())
}

#[test]
fn a_pending_journal_becomes_the_image() {
    let mut host = some_host();
    let bytes_pending = host.pending().2;
    assert_eq!(pending_journal(&mut host, ID), Ok(Some(bytes_pending)));
    let shown = inspect_origin(&mut host, ID).expect("read").expect("there");
    assert_eq!(shown.ledger, host.ledger());
    assert_eq!(shown.journal, Some(Ok(7)));
    assert_eq!(host.image.now(), old(SECTORS), "nothing is done to look");

    let settled = host.settled().expect("whole");
    assert_eq!(host.image.synced, new(SECTORS, &some()));
    let ledger = settled.ledger.expect("there is one");
    assert_eq!(ledger, host.ledger());
    assert_eq!((ledger.progress, ledger.destaged), (Progress::Idle, UPTO));
    assert!(ledger.dirty, "of what came later nothing is known");
    assert_eq!(settled.journal_entries_applied, 7);
    assert_eq!(settled.origin, None, "whoever knew it knows it no more");
    assert_eq!(pending_journal(&mut host, ID), Ok(None));
    let shown = inspect_origin(&mut host, ID).expect("read").expect("there");
    assert_eq!(shown.journal, None);
}

#[test]
fn settling_ends_with_the_same_image_after_every_power_loss() {
    let mut torn = 0;
    for calls in 0.. {
        let mut ended = false;
        for seed in 1..12u64 {
            let mut host = some_host();
            host.calls_left = calls;
            ended = host.settled().is_ok();
            if ended {
                assert_eq!(host.image.synced, new(SECTORS, &some()));
                assert!(host.ledger.unsynced.is_empty(), "its word is synced");
            }
            torn += usize::from(!host.image.unsynced.is_empty());
            let mut rng = Rng::new(seed + calls as u64 * 16);
            host.image.lose_power(&mut rng);
            host.ledger.lose_power(&mut rng);
            if host.ledger().progress == Progress::Idle {
                assert_eq!(host.ledger().destaged, UPTO, "no word was taken back");
                assert_eq!(host.image.synced, new(SECTORS, &some()));
            }
            // The next one comes later; what was written here is not another program's.
            host.calls_left = usize::MAX;
            host.now_ns += 60_000_000_000;
            host.settled().expect("a good device");
            assert_eq!(host.image.synced, new(SECTORS, &some()));
            assert_eq!(host.ledger().destaged, UPTO);
        }
        if ended {
            break;
        }
    }
    assert!(torn > 20, "power was lost with writes under way: {torn}");
}

#[test]
fn a_journal_of_another_image_is_not_applied() {
    let mut host = some_host();
    host.image.synced.extend([0xee; SECTOR]);
    host.refuses("for an image of 32768 bytes, but it has 33280");
    let mut host = some_host();
    host.image.synced.truncate(32768 - SECTOR);
    host.refuses("for an image of 32768 bytes, but it has 32256");
    for later in [1, 1000] {
        let mut host = some_host();
        host.image_mtime_ns = MADE_NS + later;
        host.refuses("another program wrote the image");
    }
    // Up to the time that the ledger allows it is the one the journal was made for.
    for before in [0, 1] {
        let mut host = some_host();
        host.image_mtime_ns = MADE_NS - before;
        host.settled().expect("the same image");
    }
}

#[test]
fn a_journal_that_the_ledger_does_not_speak_of_is_not_applied() {
    let other = "it is not the one the ledger speaks of";
    let of = |change: fn(&mut Journal)| some_host().with_journal(&some(), change);
    of(|it| it.volume = CACHE).refuses(other);
    of(|it| it.sequence += 1).refuses(other);
    of(|it| it.upto = Serial(1101)).refuses(other);
    of(|it| it.total_bytes += BLOCK).refuses(other);
    let mut gone = some_host();
    gone.journal = File::default();
    gone.refuses("the pending journal is damaged");
    let mut half = some_host();
    half.journal.synced.truncate(BLOCK as usize);
    half.refuses("the pending journal is damaged");
    // Of the same generation or not says nothing: who claimed the volume since has a newer one.
    of(|it| it.generation = Generation(6))
        .settled()
        .expect("whole");
}

#[test]
fn nothing_is_written_behind_the_end_of_the_image() {
    for (last, fits) in [
        (zeroes(62, 2), true),
        (zeroes(63, 2), false),
        (zeroes(90, 2), false),
    ] {
        let parts = [bytes(8, 8), last];
        let mut host = host(SECTORS, &parts);
        if fits {
            host.settled().expect("to its end");
            assert_eq!(host.image.synced, new(SECTORS, &parts));
        } else {
            host.refuses("it reaches beyond the image");
        }
    }
}

#[test]
fn one_bad_block_of_a_journal_and_nothing_of_it_is_applied() {
    let (whole, _) = journal(&some());
    for entry in whole
        .entries
        .iter()
        .filter(|it| it.kind == EntryKind::Write)
    {
        let bytes = entry.span.sectors as usize * SECTOR;
        for bad in [0, bytes - 1] {
            let mut host = some_host();
            host.journal.synced[entry.offset as usize + bad] ^= 1;
            let says = format!("payload for sector {} does not match", entry.span.sector);
            host.refuses(&says);
        }
    }
}

#[test]
fn a_journal_is_applied_in_steps_of_8_mib_and_few_requests_of_at_most_256_kib() {
    let each = 32;
    // Each of 16 KiB, side by side, and 8 MiB of them, then one more; zeroes take no room.
    let count = (8 << 20) / (each as usize * SECTOR) as u64;
    let mut parts: Vec<Part> = (0..=count).map(|n| bytes(n * each, each)).collect();
    let sectors = (count + 3) * each;
    parts.push(zeroes((count + 1) * each, each));
    let mut host = host(sectors, &parts);
    host.settled().expect("whole");
    assert_eq!(host.image.synced, new(sectors, &parts));
    let steps = [8 << 20, 16 * KIB];
    // Once to look at all of it, once to write it.
    assert_eq!(host.read_together, [steps, steps].concat());
    assert_eq!(host.written_together, steps);
    assert_eq!(host.writes.len(), 32 + 1, "as few as they make");
    assert_eq!(host.reads.len(), 2 * (32 + 1), "as few as they make");
    let longest = host.writes.iter().chain(&host.reads).max();
    assert_eq!(longest, Some(&(256 * KIB)));
}

#[test]
fn without_a_pending_journal_settling_syncs_the_ledger_and_does_nothing_else() {
    let mut none = some_host();
    none.ledger = File::default();
    let stat = none.stat(IMAGE).ok();
    let settled = none.settled().expect("read");
    assert_eq!((settled.ledger, settled.origin), (None, stat));
    assert_eq!(pending_journal(&mut none, ID), Ok(None));
    assert_eq!(inspect_origin(&mut none, ID), Ok(None));
    for progress in [Progress::Idle, Progress::Cut(Serial(1200))] {
        let mut host = some_host().with_ledger(|it| it.progress = progress);
        let (ledger, stat) = (host.ledger(), host.stat(IMAGE).ok());
        // Whoever wrote it died before its sync.
        let slot = Ledger::slot_at(ledger.sequence) as usize;
        let written = host.ledger.synced[slot..].to_vec();
        host.ledger.synced[slot..].fill(0);
        host.ledger.unsynced.push((slot, written));
        let settled = host.settled().expect("read");
        assert!(host.ledger.unsynced.is_empty(), "its word is synced");
        let expected = Settled {
            ledger: Some(ledger.clone()),
            origin: stat,
            ..Settled::default()
        };
        assert_eq!(settled, expected);
        assert_eq!(pending_journal(&mut host, ID), Ok(None));
        let shown = inspect_origin(&mut host, ID).expect("read").expect("there");
        assert_eq!((shown.ledger, shown.journal), (ledger.clone(), None));
        assert_eq!(host.image.now(), old(SECTORS));
        assert_eq!(host.ledger(), ledger);
        host.calls_left = 0;
        let error = host.settled().expect_err("its sync fails").to_string();
        assert!(error.contains("the ledger"), "{error}");
    }
    let mut torn = some_host();
    torn.ledger.synced.fill(7);
    let error = torn.settled().expect_err("both slots").to_string();
    assert!(error.starts_with("ledger "), "{error}");
}

/// It would go on with any image, in all of that life.
#[test]
fn a_volume_whose_image_cannot_be_looked_at_does_not_come() {
    let mut host = some_host();
    host.unseen = true;
    assert_eq!(host.settled(), Err(OpenError::Io("the origin")));
    host.unseen = false;
    host.settled().expect("it is looked at again");
    host.unseen = true;
    // No journal is pending any more, which would want to know the image by itself.
    assert_eq!(host.settled(), Err(OpenError::Io("the origin")));
}

#[test]
fn who_accepts_a_loss_goes_on_from_what_was_destaged_and_gives_no_serial_again() {
    let accept = |ledger: Ledger| {
        let mut settled = Settled {
            ledger: Some(ledger),
            ..Settled::default()
        };
        settled.accept_loss();
        settled.ledger.expect("it stays")
    };
    let dirty = Ledger {
        compatible: PAST_LOG,
        ..ledger()
    };
    let after = accept(dirty.clone());
    let expected = Ledger {
        dirty: false,
        compatible: PAST_LOG | LOSS_ACCEPTED,
        ..dirty.clone()
    };
    assert_eq!(after, expected);
    assert_eq!(accept(after.clone()), after, "accepted once for all");
    let cut = Ledger {
        progress: Progress::Cut(Serial(1200)),
        ..dirty.clone()
    };
    let reached = Ledger {
        destaged: Serial(1200),
        ..expected
    };
    assert_eq!(accept(cut), reached);
    let twice = Ledger {
        compatible: LOSS_ACCEPTED,
        ..dirty
    };
    assert_eq!(accept(twice).compatible, LOSS_ACCEPTED, "and again later");
    let clean = Ledger {
        dirty: false,
        ..ledger()
    };
    assert_eq!(accept(clean.clone()), clean, "nothing is lost");
    let mut none = Settled::default();
    none.accept_loss();
    assert_eq!(none, Settled::default());
}
