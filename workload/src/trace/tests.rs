//! Each format by lines as its tools write them, the native one there and back, and damage.

use super::native::Writer;
use super::{Complaints, Format, Item, NameId, Op, Reader, Record, TraceError};
use crate::rng::Rng;

/// Records as `(microseconds, disk, op, sector, sectors)`.
type Plain = (u64, String, Op, u64, u32);

fn read(bytes: &[u8], format: Option<Format>) -> (Format, Vec<Plain>, Complaints) {
    let mut reader = Reader::open(bytes, format).expect("a known format");
    let mut records = Vec::new();
    while let Some(item) = reader.next_item().expect("no device") {
        if let Item::Record(record) = item {
            let disk = reader.disks().name(record.disk).to_owned();
            let micros = record.time_ns / 1000;
            records.push((micros, disk, record.op, record.sector, record.sectors));
        }
    }
    (reader.format(), records, reader.complaints().clone())
}

fn is(text: &str, format: Format, expected: &[(u64, &str, Op, u64, u32)]) {
    let (found, records, complaints) = read(text.as_bytes(), None);
    assert_eq!(found, format);
    let expected: Vec<Plain> = expected
        .iter()
        .map(|it| (it.0, it.1.to_owned(), it.2, it.3, it.4))
        .collect();
    assert_eq!(records, expected);
    assert_eq!(complaints, Complaints::default());
}

#[test]
fn vscsistats() {
    let text = "#Vscsi Cmd Trace. (Trace Format Version 1)\n\
        #Serial Number,IO Data Length,Num SG Entries,Command Type,LBN,Time Stamp (microseconds)\n\
        2147483692,4096,1,write,24048792,2756778716647\n\
        2147483769,512,1,read,6322464,2756783857269\n\
        2147483770,0,0,0x35,0,2756783857270\n\
        2147483771,36,1,0x12,0,2756783857280\n";
    let expected = [
        (0, "disk", Op::Write, 24048792, 8),
        (5140622, "disk", Op::Read, 6322464, 1),
        (5140623, "disk", Op::Flush, 0, 0),
    ];
    is(text, Format::Vscsi, &expected);
}

#[test]
fn cloudphysics() {
    let text = "version,time,op,size,lbn\n\
        1,5633898,2a,512,42932745\n\
        1,5633899,28,6656,40409911\n";
    let expected = [
        (0, "disk", Op::Write, 42932745, 1),
        (1_000_000, "disk", Op::Read, 40409911, 13),
    ];
    is(text, Format::CloudPhysics, &expected);
}

#[test]
fn msr() {
    let text = "128166372003061629,hm,1,Read,383496192,32768,413\n\
        128166372016382155,hm,0,Write,2822144,4097,10\n";
    let expected = [
        (0, "hm,1", Op::Read, 749016, 64),
        (1_332_052, "hm,0", Op::Write, 5512, 9),
    ];
    is(text, Format::Msr, &expected);
}

#[test]
fn systor() {
    let text = "Timestamp,Response,IOType,LUN,Offset,Size\n\
        1456120801.001210000,0.000139000,W,3,66050600960,4096\n\
        1456120801.501210000,,R,4,512,1024\n";
    let expected = [
        (0, "3", Op::Write, 129005080, 8),
        (500_000, "4", Op::Read, 1, 2),
    ];
    is(text, Format::Systor, &expected);
}

#[test]
fn arc_and_mqsim() {
    let expected = [
        (0, "disk", Op::Read, 230027, 8),
        (1000, "disk", Op::Read, 1842745, 64),
    ];
    is("230027 8 0 0\n1842745 64 0 1\n", Format::Arc, &expected);
    let expected = [
        (0, "4", Op::Write, 264719034, 16),
        (315, "3", Op::Read, 197570570, 16),
    ];
    let text = "938513000 4 264719034 16 0\n938828000 3 197570570 16 1\n";
    is(text, Format::Mqsim, &expected);
}

#[test]
fn fio() {
    let text = "fio version 3 iolog\n22 /data/f add\n130 /data/f open\n\
        137 /data/f read 249856 4096\n376 /data/f write 3104768 4096\n\
        400 /data/f trim 0 8192\n401 /data/f sync 0 0\n500 /data/f close\n";
    let expected = [
        (0, "/data/f", Op::Read, 488, 8),
        (239, "/data/f", Op::Write, 6064, 8),
        (263, "/data/f", Op::Discard, 0, 16),
        (264, "/data/f", Op::Flush, 0, 0),
    ];
    is(text, Format::Fio, &expected);
    let text = "fio version 2 iolog\nf add\nf open\nf read 0 512\nf wait 250\nf write 512 512\n";
    let expected = [(0, "f", Op::Read, 0, 1), (250, "f", Op::Write, 1, 1)];
    is(text, Format::Fio, &expected);
}

#[test]
fn blkparse() {
    let text = "  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]\n  \
          8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]\n  \
          8,0    3        3     0.000009507   697  D   W 223490 + 8 [kjournald]\n  \
          8,16   1        4     0.500001829   697  Q   R 16 + 256 [fio]\n  \
          8,0    3        5     1.000001829     0  Q FWS [jbd2]\n\
        CPU3 (8,0):\n Reads Queued:           1,        4KiB\n";
    let expected = [
        (0, "8,0", Op::Write, 223490, 8),
        (500_000, "8,16", Op::Read, 16, 256),
        (1_000_000, "8,0", Op::Flush, 0, 0),
    ];
    is(text, Format::Blkparse, &expected);
    // Without the moment at which requests are queued, that at which they are issued counts.
    let text = "8,0 3 1 0.1 697 D W 0 + 8 [a]\n8,0 3 2 0.2 697 C W 0 + 8 [0]\n";
    is(text, Format::Blkparse, &[(0, "8,0", Op::Write, 0, 8)]);
}

#[test]
fn bad_lines_are_counted_and_named() {
    let mut text = "1,5,2a,512,1\n1,x,2a,512,1\n1,6,2a,0,1\n1,5,28,512\n1,4,28,512,9\n".to_owned();
    text += "1,7,28,512,18446744073709551615\n";
    text += &format!("1,8,28,512,{}\n", "1".repeat(10_000));
    text += "1,9,28,1024,7\n1,3,28,1024,7\n1,8,28,1024,7\n";
    let (_, records, complaints) = read(text.as_bytes(), Some(Format::CloudPhysics));
    assert_eq!(records.len(), 5, "{records:?}");
    assert_eq!(complaints.bad, 5);
    let places: Vec<u64> = complaints.kept.iter().map(|it| it.0).collect();
    assert_eq!(places, [2, 3, 4, 6, 7]);
    assert_eq!(complaints.kept[0].1, "not a number");
    // One before the first, one before that, and one between: each is one.
    assert_eq!(complaints.backwards, 3);
}

#[test]
fn what_nobody_knows_is_refused() {
    for text in ["", "hello\nworld\n", "1,2\n3,4\n", "\u{0}\u{1}\u{2}"] {
        let refused = Reader::open(text.as_bytes(), None).err();
        assert!(matches!(refused, Some(TraceError::Unknown)), "{text:?}");
    }
}

/// Records of a few disks, some with paths, and what is lost between them.
fn items(count: u64) -> Vec<(Item, String, Option<String>)> {
    let mut rng = Rng::new(3);
    let mut time_ns = 0;
    let items = (0..count).map(|number| {
        time_ns += rng.below(5_000_000);
        if number % 1000 == 999 {
            return (Item::Lost(number), String::new(), None);
        }
        let op = Op::ALL[(rng.below(4)) as usize];
        let flush = op == Op::Flush;
        let record = Record {
            time_ns,
            disk: NameId(0),
            op,
            sector: if flush { 0 } else { rng.below(1 << 31) * 8 },
            sectors: if flush { 0 } else { 1 + rng.below(256) as u32 },
            path: None,
        };
        let disk = format!("desk-{}", rng.below(5));
        let path = (number % 3 == 0).then(|| format!("/usr/lib/{}", rng.below(100)));
        (Item::Record(record), disk, path)
    });
    items.collect()
}

fn written(items: &[(Item, String, Option<String>)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).expect("memory");
    for (item, disk, path) in items {
        match item {
            Item::Record(record) => writer.record(record, disk, path.as_deref()),
            Item::Lost(lost) => writer.lost(*lost),
        }
        .expect("memory");
    }
    writer.finish().expect("memory")
}

type Read = (Vec<(Item, String, Option<String>)>, Complaints);

fn read_back(bytes: &[u8]) -> Read {
    let mut reader = Reader::open(bytes, None).expect("our own");
    let mut items = Vec::new();
    while let Some(mut item) = reader.next_item().expect("no device") {
        let (mut disk, mut path) = (String::new(), None);
        if let Item::Record(record) = &mut item {
            disk = reader.disks().name(record.disk).to_owned();
            path = record.path.map(|path| reader.paths().name(path).to_owned());
            (record.disk, record.path) = (NameId(0), None);
        }
        items.push((item, disk, path));
    }
    (items, reader.complaints().clone())
}

/// Times begin with the first record.
fn from_zero(
    mut items: Vec<(Item, String, Option<String>)>,
) -> Vec<(Item, String, Option<String>)> {
    let times = items.iter().find_map(|(item, ..)| match item {
        Item::Record(record) => Some(record.time_ns),
        Item::Lost(_) => None,
    });
    for (item, ..) in &mut items {
        if let Item::Record(record) = item {
            record.time_ns -= times.expect("there is a record");
        }
    }
    items
}

#[test]
fn the_native_format_gives_back_what_it_was_given() {
    let items = items(50_000);
    let bytes = written(&items);
    let (found, complaints) = read_back(&bytes);
    assert_eq!(complaints, Complaints::default());
    assert_eq!(found, from_zero(items));
    let each = bytes.len() as f64 / 50_000.0;
    assert!(each < 14.0, "{each} bytes a record of random places");
}

#[test]
fn records_that_go_on_take_little() {
    let mut writer = Writer::new(Vec::new()).expect("memory");
    for number in 0..10_000 {
        let record = Record {
            time_ns: number * 100_000,
            disk: NameId(0),
            op: Op::Write,
            sector: number * 64,
            sectors: 64,
            path: None,
        };
        writer.record(&record, "disk", None).expect("memory");
    }
    let bytes = writer.finish().expect("memory").len();
    assert!(bytes < 45_000, "{bytes}");
}

#[test]
fn a_file_that_was_cut_anywhere_gives_its_whole_frames_and_says_so() {
    let items = items(20_000);
    let bytes = written(&items);
    let whole = from_zero(items);
    let mut rng = Rng::new(9);
    for _ in 0..200 {
        let end = 16 + rng.below((bytes.len() - 16) as u64) as usize;
        let (found, complaints) = read_back(&bytes[..end]);
        assert!(complaints.cut, "at {end}");
        assert_eq!(complaints.bad, 0);
        assert_eq!(found, whole[..found.len()]);
    }
}

#[test]
fn a_trace_that_was_given_up_has_all_of_its_records_and_no_end() {
    let items = items(20_000);
    let mut writer = Writer::new(Vec::new()).expect("memory");
    for (item, disk, path) in &items {
        match item {
            Item::Record(record) => writer.record(record, disk, path.as_deref()),
            Item::Lost(lost) => writer.lost(*lost),
        }
        .expect("memory");
    }
    let bytes = writer.give_up().expect("memory");
    let (found, complaints) = read_back(&bytes);
    assert!(complaints.cut && complaints.bad == 0);
    assert_eq!(found, from_zero(items));
}

#[test]
fn a_damaged_frame_costs_its_own_records_alone() {
    let items = items(20_000);
    let bytes = written(&items);
    let whole = from_zero(items);
    let mut rng = Rng::new(21);
    for _ in 0..100 {
        let mut bytes = bytes.clone();
        // Behind the lengths, in a frame that is not the first, which has the names.
        let at = 70_000 + rng.below((bytes.len() - 70_100) as u64) as usize;
        bytes[at] ^= 1 << (rng.below(8));
        let (found, complaints) = read_back(&bytes);
        if complaints.cut {
            // It was the length of a frame.
            continue;
        }
        assert_eq!(complaints.bad, 1, "at {at}: {complaints:?}");
        assert!(found.len() < whole.len() && found.len() > whole.len() / 2);
        let mut all = whole.iter();
        for item in &found {
            assert!(all.any(|it| it == item), "{item:?} was never written");
        }
    }
}

#[test]
fn a_newer_version_is_refused() {
    let mut bytes = written(&items(10));
    bytes[8] = 2;
    let refused = Reader::open(bytes.as_slice(), None).err();
    assert!(matches!(refused, Some(TraceError::Version(2))));
}
