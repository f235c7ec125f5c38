//! The record of a pool, as a file in `state-dir` has it, and as the vault of a cluster has it with
//! what hosts say.
//!
//! Invariants: what was accepted is written back as it was read; each member has one of the two
//! images; one that is rolling has an image to come from; a host can follow any record and comes to
//! one that fits together.

use host::pool::shared::{Report, Shared};
use host::pool::{Phase, Record};
use node::vault::Kept;
use std::path::Path;

pub fn record(input: &[u8]) -> bool {
    of_vault(input) || of_file(input)
}

/// The sum that such bytes must have is not found by chance, so it is also put there.
fn of_vault(input: &[u8]) -> bool {
    let sum = engine::format::checksum(&[input]);
    let summed = [input, format!("\n{sum:08x}\n").as_bytes()].concat();
    let mut good = false;
    for bytes in [input, &summed] {
        if let Ok(shared) = Shared::parse(bytes) {
            let again = Shared::parse(&shared.encode()).expect("it was accepted");
            assert_eq!(again, shared);
            let host = Record::first("office", Path::new("/gold/office-7.img"));
            let members = ["desk-001".to_owned()];
            let follows = host.follow(&shared.record, &members, 1);
            follows.check().expect("its fields fit together");
            good = true;
        }
        if let Ok(report) = Report::parse(bytes) {
            assert!(Report::parse(&report.encode()).is_ok());
            good = true;
        }
    }
    good
}

fn of_file(input: &[u8]) -> bool {
    let Ok(record) = Record::parse(input, "office") else {
        return false;
    };
    let text = serde_json::to_vec(&record).expect("a record is a document");
    let again = Record::parse(&text, "office").expect("it was accepted");
    assert_eq!(again, record);
    let mut members: Vec<&str> = record.moved.iter().map(String::as_str).collect();
    members.push("desk-001");
    for member in members {
        let image = record.image_of(member);
        assert!(*image == record.image || record.previous.as_ref() == Some(image));
    }
    assert!(record.phase != Phase::Rolling || record.previous.is_some());
    true
}
