//! A trace of whatever format.
//!
//! Invariants: a record covers something or is a flush, and no range goes round the end of all
//! sectors; what was read, written in the native format and read again is the same, and nothing is
//! found wrong with it; complaints are bounded.

use workload::trace::native::Writer;
use workload::trace::{Format, Item, Op, Reader};

type Known = (Item, String, Option<String>);

/// All items, with the names in the place of numbers.
fn items(bytes: &[u8], format: Option<Format>) -> Option<(Vec<Known>, u64)> {
    let mut reader = Reader::open(bytes, format).ok()?;
    let mut items = Vec::new();
    while let Some(item) = reader.next_item().expect("memory has no errors") {
        let (mut disk, mut path) = (String::new(), None);
        let mut item = item;
        if let Item::Record(record) = &mut item {
            assert!(record.sectors > 0 || record.op == Op::Flush);
            assert!(record.sector.checked_add(record.sectors.into()).is_some());
            disk = reader.disks().name(record.disk).to_owned();
            path = record.path.map(|path| reader.paths().name(path).to_owned());
            record.disk.0 = 0;
            record.path = None;
        }
        items.push((item, disk, path));
    }
    let complaints = reader.complaints();
    assert!(complaints.kept.len() as u64 <= complaints.bad.min(10));
    Some((items, complaints.bad))
}

/// There and back.
fn again(items_before: &[Known]) {
    let mut writer = Writer::new(Vec::new()).expect("memory has no errors");
    for (item, disk, path) in items_before {
        match item {
            Item::Record(record) => writer.record(record, disk, path.as_deref()),
            Item::Lost(lost) => writer.lost(*lost),
        }
        .expect("memory has no errors");
    }
    let bytes = writer.finish().expect("memory has no errors");
    let (found, bad) = items(&bytes, None).expect("our own");
    assert_eq!(bad, 0);
    assert_eq!(found.len(), items_before.len());
    let mut first = None;
    for ((item, disk, path), mut before) in found.into_iter().zip(items_before.iter().cloned()) {
        // Times begin with the first record, and none is before it.
        if let Item::Record(record) = &mut before.0 {
            let first = *first.get_or_insert(record.time_ns);
            record.time_ns = record.time_ns.saturating_sub(first);
        }
        assert_eq!((item, disk, path), before);
    }
}

pub fn native(input: &[u8]) -> bool {
    // Behind the checksum of a frame there are bytes of any kind as well.
    let mut file = b"TNTTRACE\x01\0\0\0\0\0\0\0".to_vec();
    for frame in input.chunks(200) {
        file.extend((frame.len() as u32).to_le_bytes());
        file.extend(engine::format::checksum(&[frame]).to_le_bytes());
        file.extend(frame);
    }
    let Some((items, _)) = items(&file, None) else {
        return false;
    };
    again(&items);
    !items.is_empty()
}

pub fn text(input: &[u8]) -> bool {
    let Some((first, rest)) = input.split_first() else {
        return false;
    };
    let format = Format::ALL[usize::from(*first) % Format::ALL.len()];
    let guessed = items(rest, None);
    let Some((items, _)) = items(rest, Some(format)).or(guessed) else {
        return false;
    };
    again(&items);
    !items.is_empty()
}
