//! The record of a pool, as a file in `state-dir` has it.
//!
//! Invariants: what was accepted is written back as it was read; each member has one of the two
//! images; one that is rolling has an image to come from.

use host::pool::{Phase, Record};

pub fn record(input: &[u8]) -> bool {
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
