//! Requests in any layout: what comes out is what was asked for, inside disk and limits, and every
//! other request gets the answer that the specification says.

mod common;

use common::{BUFFERS, GUEST_BYTES, segment};
use vring::block::{
    Command, DISCARD, Disk, FLUSH, GET_ID, IN, OUT, Parsed, RangeLimits, Scratch, SectorRange,
    Status, WRITE_ZEROES,
};
use vring::chain::Chain;
use vring::config::{self, Config, ConfigError, Hints};
use vring::memory::{Address, Bytes, Memory, Segment};
use workload::rng::Rng;

const CAPACITY: u64 = 100_000;
const WRITABLE: u64 = BUFFERS + 0x10000;
const STATUS_UNTOUCHED: u8 = 0xee;

fn disk() -> Disk {
    let limits = RangeLimits {
        sectors_max: 50_000,
        ranges_max: 4,
    };
    let mut id = [0; 20];
    id[..6].copy_from_slice(b"disk-7");
    Disk {
        capacity_sectors: CAPACITY,
        block_bytes: 512,
        read_only: false,
        flush: true,
        discard: Some(limits),
        write_zeroes: Some(limits),
        data_bytes_max: 16384,
        segments_max: 64,
        id,
    }
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(7_u32.to_le_bytes());
    bytes.extend(sector.to_le_bytes());
    bytes
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

/// Cuts bytes that lie in one piece into segments; the same bytes, differently framed.
fn cut(random: &mut Rng, at: u64, bytes: u64, pieces: u64) -> Vec<Segment> {
    let mut cuts: Vec<u64> = (1..pieces).map(|_| random.below(bytes + 1)).collect();
    cuts.extend([0, bytes]);
    cuts.sort_unstable();
    let pairs = cuts.windows(2).filter(|pair| pair[0] < pair[1]);
    pairs
        .map(|pair| segment(at + pair[0], (pair[1] - pair[0]) as u32))
        .collect()
}

/// What came of a request, whatever way it was cut.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The command in words, the data as bytes in a row, the lengths for good and bad ends.
    Run(String, Vec<(u64, u32)>, u32, u32),
    Answer(Status, u32),
}

fn joined(segments: &[Segment]) -> Vec<(u64, u32)> {
    let mut all: Vec<(u64, u32)> = Vec::new();
    for it in segments {
        assert!(it.bytes > 0);
        match all.last_mut() {
            Some((at, bytes)) if *at + u64::from(*bytes) == it.at.0 => *bytes += it.bytes,
            _ => all.push((it.at.0, it.bytes)),
        }
    }
    all
}

fn run(disk: &Disk, guest: &Bytes, readable: &[Segment], writable: &[Segment]) -> Outcome {
    let mut scratch = Scratch::default();
    let chain = Chain { readable, writable };
    match disk.parse(&chain, guest, &mut scratch) {
        Parsed::Answer { status, reply } => Outcome::Answer(status, reply.finish(guest, status)),
        Parsed::Run { command, reply } => {
            let bad = reply.finish(guest, Status::IoError);
            let good = reply.finish(guest, Status::Ok);
            let (words, data) = match command {
                Command::Read {
                    sector,
                    sectors,
                    data,
                } => (format!("read {sector} {sectors}"), joined(data)),
                Command::Write {
                    sector,
                    sectors,
                    data,
                } => (format!("write {sector} {sectors}"), joined(data)),
                other => (format!("{other:?}"), Vec::new()),
            };
            Outcome::Run(words, data, good, bad)
        }
    }
}

/// Runs a request in one piece, then cut at random: it must not matter. The status byte is the last
/// writable one, and nothing else is written beside it.
fn ask(disk: &Disk, readable: &[u8], writable: u64) -> Outcome {
    let guest = Bytes::zeroed(GUEST_BYTES);
    guest.write(Address(BUFFERS), readable).expect("inside");
    let mut whole = None;
    for seed in 0..40 {
        let random = &mut Rng::new(seed);
        let pieces = if seed == 0 { 1 } else { 1 + random.below(9) };
        let out = cut(random, BUFFERS, readable.len() as u64, pieces);
        let into = cut(random, WRITABLE, writable, pieces);
        guest
            .write(Address(WRITABLE), &vec![STATUS_UNTOUCHED; 40000])
            .expect("inside");
        let outcome = run(disk, &guest, &out, &into);
        let mut seen = vec![0; 40000];
        guest.read(Address(WRITABLE), &mut seen).expect("inside");
        if writable > 0 {
            let status = seen[writable as usize - 1];
            let said = match &outcome {
                Outcome::Run(..) => Status::Ok,
                Outcome::Answer(status, _) => *status,
            };
            assert_eq!(status, said as u8);
        }
        let beyond = seen[writable as usize..].iter();
        assert!(beyond.copied().all(|byte| byte == STATUS_UNTOUCHED));
        assert_eq!(
            whole.get_or_insert_with(|| run(disk, &guest, &out, &into)),
            &outcome
        );
    }
    whole.expect("was asked")
}

fn refused(disk: &Disk, readable: &[u8], writable: u64) -> Status {
    match ask(disk, readable, writable) {
        Outcome::Answer(status, _) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_and_writes_are_understood_in_any_layout() {
    let read = ask(&disk(), &header(IN, 9), 4097);
    let data = vec![(WRITABLE, 4096)];
    assert_eq!(read, Outcome::Run("read 9 8".into(), data, 4097, 0));
    let mut bytes = header(OUT, CAPACITY - 2);
    bytes.extend([5; 1024]);
    let write = ask(&disk(), &bytes, 1);
    let data = vec![(BUFFERS + 16, 1024)];
    let words = format!("write {} 2", CAPACITY - 2);
    assert_eq!(write, Outcome::Run(words, data, 1, 1));
    // More room than a write needs: the status byte is still the last, and not the first.
    let Outcome::Run(_, _, good, bad) = ask(&disk(), &bytes, 10) else {
        panic!("a good write");
    };
    assert_eq!((good, bad), (0, 0));
    let flush = ask(&disk(), &header(FLUSH, 0), 1);
    assert_eq!(flush, Outcome::Run("Flush".into(), vec![], 1, 1));
}

#[test]
fn requests_outside_of_disk_block_or_limit_are_errors() {
    let read = |disk: &Disk, sector, bytes: u64| refused(disk, &header(IN, sector), bytes + 1);
    let disk = disk();
    for (sector, bytes) in [
        (0, 511),
        (0, 513),
        (CAPACITY, 512),
        (CAPACITY - 1, 1024),
        (u64::MAX, 512),
        (u64::MAX - 1, 1024),
        (0, 16384 + 512),
    ] {
        assert_eq!(
            read(&disk, sector, bytes),
            Status::IoError,
            "{sector} {bytes}"
        );
    }
    assert_eq!(read(&disk, 5, 0), Status::Ok, "nothing to read");
    assert_eq!(read(&disk, CAPACITY + 1, 0), Status::IoError);
    let blocks = Disk {
        block_bytes: 4096,
        ..disk.clone()
    };
    assert_eq!(read(&blocks, 4, 4096), Status::IoError);
    assert_eq!(read(&blocks, 8, 2048), Status::IoError);
    assert!(matches!(
        ask(&blocks, &header(IN, 8), 4097),
        Outcome::Run(..)
    ));
    let protected = Disk {
        read_only: true,
        ..disk.clone()
    };
    let mut write = header(OUT, 0);
    write.extend([0; 512]);
    assert_eq!(refused(&protected, &write, 1), Status::IoError);
    let mut zeroes = header(WRITE_ZEROES, 0);
    zeroes.extend(range(0, 8, 0));
    assert_eq!(refused(&protected, &zeroes, 1), Status::IoError);
    assert!(matches!(
        ask(&protected, &header(IN, 0), 513),
        Outcome::Run(..)
    ));
}

#[test]
fn more_segments_than_the_guest_was_told_are_an_error() {
    let few = Disk {
        segments_max: 2,
        ..disk()
    };
    let guest = Bytes::zeroed(GUEST_BYTES);
    guest
        .write(Address(BUFFERS), &header(IN, 0))
        .expect("inside");
    let out = [segment(BUFFERS, 16)];
    let into = |count: u64| -> Vec<Segment> {
        let data = (0..count).map(|at| segment(WRITABLE + 1024 * at, 512));
        data.chain([segment(WRITABLE + 0x8000, 1)]).collect()
    };
    assert!(matches!(
        run(&few, &guest, &out, &into(2)),
        Outcome::Run(..)
    ));
    let answer = Outcome::Answer(Status::IoError, 0);
    assert_eq!(run(&few, &guest, &out, &into(3)), answer);
}

#[test]
fn requests_that_are_not_offered_are_unsupported() {
    let bare = Disk {
        flush: false,
        discard: None,
        write_zeroes: None,
        ..disk()
    };
    let mut with_range = header(DISCARD, 0);
    with_range.extend(range(0, 8, 0));
    for kind in [
        2,
        3,
        5,
        9,
        10,
        12,
        14,
        15,
        16,
        24,
        26,
        0x8000_0000,
        u32::MAX,
    ] {
        assert_eq!(refused(&disk(), &header(kind, 0), 513), Status::Unsupported);
    }
    for kind in [FLUSH, DISCARD, WRITE_ZEROES] {
        with_range[..4].copy_from_slice(&kind.to_le_bytes());
        assert_eq!(refused(&bare, &with_range, 1), Status::Unsupported);
    }
}

#[test]
fn ranges_are_checked_flags_first() {
    let ranges = |kind, list: &[(u64, u32, u32)]| {
        let mut bytes = header(kind, 0);
        list.iter()
            .for_each(|it| bytes.extend(range(it.0, it.1, it.2)));
        bytes
    };
    let disk = disk();
    let good = [(0, 8, 0), (90_000, 10_000, 0), (7, 0, 0)];
    let expected = |unmap| {
        [(0, 8, unmap), (90_000, 10_000, false)].map(|(sector, sectors, unmap)| SectorRange {
            sector,
            sectors,
            unmap,
        })
    };
    let ranges_of = expected(false);
    let words = format!("{:?}", Command::Discard { ranges: &ranges_of });
    let done = ask(&disk, &ranges(DISCARD, &good), 1);
    assert_eq!(done, Outcome::Run(words, vec![], 1, 1));
    let ranges_of = expected(true);
    let words = format!("{:?}", Command::WriteZeroes { ranges: &ranges_of });
    let unmapping = [(0, 8, 1), good[1], good[2]];
    let done = ask(&disk, &ranges(WRITE_ZEROES, &unmapping), 1);
    assert_eq!(done, Outcome::Run(words, vec![], 1, 1));

    let refused = |kind, list: &[_]| refused(&disk, &ranges(kind, list), 1);
    assert_eq!(refused(DISCARD, &unmapping), Status::Unsupported);
    for kind in [DISCARD, WRITE_ZEROES] {
        assert_eq!(refused(kind, &[(0, 8, 2)]), Status::Unsupported);
        let worse = [(u64::MAX, u32::MAX, 0), (0, 8, 1 << 31)];
        assert_eq!(refused(kind, &worse), Status::Unsupported);
        assert_eq!(refused(kind, &worse[..1]), Status::IoError);
        assert_eq!(refused(kind, &[(0, 50_001, 0)]), Status::IoError);
        assert_eq!(refused(kind, &[(CAPACITY - 7, 8, 0)]), Status::IoError);
        assert_eq!(refused(kind, &[]), Status::IoError);
        assert_eq!(refused(kind, &[(0, 8, 0); 5]), Status::IoError);
        assert_eq!(refused(kind, &[(3, 0, 0)]), Status::Ok);
    }
    let mut ragged = ranges(DISCARD, &good);
    ragged.pop();
    let ragged = ask(&disk, &ragged, 1);
    assert_eq!(ragged, Outcome::Answer(Status::IoError, 1));
}

#[test]
fn the_identity_fills_twenty_bytes_or_as_many_as_there_are() {
    let guest = Bytes::zeroed(GUEST_BYTES);
    guest
        .write(Address(BUFFERS), &header(GET_ID, 0))
        .expect("inside");
    let out = [segment(BUFFERS, 16)];
    for (room, written) in [(20, 21), (6, 7), (3, 4), (0, 1), (100, 0)] {
        let into = [
            segment(WRITABLE, 2.min(room)),
            segment(WRITABLE + 64, room - 2.min(room) + 1),
        ];
        let into: Vec<Segment> = into.into_iter().filter(|it| it.bytes > 0).collect();
        let answer = run(&disk(), &guest, &out, &into);
        assert_eq!(
            answer,
            Outcome::Answer(Status::Ok, written),
            "room for {room}"
        );
    }
    let mut seen = [0; 2];
    guest.read(Address(WRITABLE), &mut seen).expect("inside");
    let mut rest = [9; 19];
    guest
        .read(Address(WRITABLE + 64), &mut rest)
        .expect("inside");
    assert_eq!((&seen, &rest[..4]), (b"di", &b"sk-7"[..]));
    assert!(rest[4..18].iter().all(|&byte| byte == 0));
}

#[test]
fn chains_without_header_or_status_do_nothing() {
    let disk = disk();
    for bytes in 0..16 {
        let short = &header(IN, 0)[..bytes];
        assert_eq!(refused(&disk, short, 513), Status::IoError);
    }
    assert_eq!(refused(&disk, &header(IN, 0), 0), Status::IoError);
    let guest = Bytes::zeroed(GUEST_BYTES);
    let outside = [segment(GUEST_BYTES - 8, 16)];
    let status = [segment(WRITABLE, 1)];
    let answer = Outcome::Answer(Status::IoError, 1);
    assert_eq!(run(&disk, &guest, &outside, &status), answer);
    let nowhere = [segment(u64::MAX - 9, 9)];
    guest
        .write(Address(BUFFERS), &header(FLUSH, 0))
        .expect("inside");
    let flush = run(&disk, &guest, &[segment(BUFFERS, 16)], &nowhere);
    assert_eq!(flush, Outcome::Run("Flush".into(), vec![], 0, 0));
}

#[test]
fn the_configuration_says_what_the_disk_is_and_takes_the_cache_mode_only() {
    let hints = Hints {
        physical_block_bytes: 4096,
        optimal_bytes: 65536,
        queues: 4,
        writeback: true,
    };
    let mut config = Config::new(&disk(), &hints);
    let field = |config: &Config, offset, bytes: usize| {
        let mut all = [0; 8];
        config.read(offset, &mut all[..bytes]);
        u64::from_le_bytes(all)
    };
    let fields = [
        (0, 8, CAPACITY),
        (8, 4, 0),
        (12, 4, 64),
        (16, 4, 0),
        (20, 4, 512),
        (24, 1, 3),
        (25, 1, 0),
        (26, 2, 8),
        (28, 4, 128),
        (32, 1, 1),
        (33, 1, 0),
        (34, 2, 4),
        (36, 4, 50_000),
        (40, 4, 4),
        (44, 4, 8),
        (48, 4, 50_000),
        (52, 4, 4),
        (56, 1, 1),
        (57, 3, 0),
        (60, 8, 0),
        (u32::MAX, 8, 0),
    ];
    for (offset, bytes, value) in fields {
        assert_eq!(field(&config, offset, bytes), value, "at {offset}");
    }
    assert_eq!(config.write(32, &[0]), Ok(false));
    assert!(!config.writeback() && field(&config, 32, 1) == 0);
    assert_eq!(config.write(32, &[1]), Ok(true));
    assert_eq!(config.write(32, &[2]), Err(ConfigError::Mode(2)));
    for (offset, bytes) in [(0, 1), (31, 1), (33, 1), (32, 2), (32, 0), (u32::MAX, 1)] {
        let error = ConfigError::Place { offset, bytes };
        assert_eq!(config.write(offset, &vec![0; bytes]), Err(error));
    }
    config.set_capacity(5);
    assert_eq!(field(&config, 0, 8), 5);

    let bits = config::features(&disk(), 4);
    let offered = (1 << 2 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14)
        | (1 << 28 | 1 << 29 | 1 << 32);
    assert_eq!(bits, offered);
    let through = Disk {
        flush: false,
        read_only: true,
        discard: None,
        ..disk()
    };
    assert!(!Config::new(&through, &hints).writeback());
    let without = offered & !(1 << 9 | 1 << 11 | 1 << 12 | 1 << 13) | 1 << 5;
    assert_eq!(config::features(&through, 1), without);
}
