//! What each kind of record makes of a copy.

use super::*;
use node::record::{Degraded, Epoch, Holder};

fn id(byte: u8) -> Uuid {
    Uuid([byte; 16])
}

fn holder(host: u8) -> Holder {
    Holder {
        host: id(host),
        cache: id(host),
        boot: id(9),
        session: id(9),
        name: format!("host-{host}"),
    }
}

fn member(host: u8) -> Member {
    Member {
        host: id(host),
        cache: id(host),
        copy: id(50 + host),
    }
}

/// Host 1 owns it, and host 2 has a copy.
fn record() -> Record {
    Record {
        cluster: id(1),
        unit: id(2),
        number: 7,
        nonce: id(3),
        before: id(4),
        owner: Some(holder(1)),
        epoch: Epoch {
            number: 3,
            nonce: id(5),
        },
        drainer: None,
        given: 5,
        wanted: 1,
        degraded: None,
        at_origin: false,
        quiesced: false,
        members: vec![member(1), member(2)],
    }
}

/// That of host 2.
fn copied() -> Copied {
    Copied {
        copy: id(52),
        cache: id(2),
        term: 7,
        lineage: id(77),
        end: Serial(40),
        destaged: Serial(20),
        damaged: false,
        bad_upto: Serial(20),
    }
}

/// Fails when: a copy is used that is not the member which the record names, or one that is named
/// and whole is not.
#[test]
fn only_the_copy_that_the_newest_record_names_is_used() {
    assert_eq!(judge(Some(&record()), &copied()), Verdict::Use(member(2)));
    let frozen = Record {
        owner: Some(holder(3)),
        drainer: Some(holder(1)),
        given: 7,
        degraded: Some(Degraded::TakenOver),
        members: vec![member(3), member(2)],
        ..record()
    };
    assert_eq!(judge(Some(&frozen), &copied()), Verdict::Use(member(2)));

    let without = Record {
        members: vec![member(1)],
        ..record()
    };
    let anew = Copied {
        copy: id(53),
        ..copied()
    };
    let wiped = Copied {
        cache: id(8),
        ..copied()
    };
    for (record, found) in [(without, copied()), (record(), anew), (record(), wiped)] {
        let verdict = judge(Some(&record), &found);
        assert!(matches!(verdict, Verdict::Superfluous(_)), "{verdict:?}");
    }
}

/// Fails when: a vault that went back decides, or what is short of the record is brought to the
/// image.
#[test]
fn a_copy_that_is_short_of_its_record_is_not_used() {
    let back = Copied {
        term: 8,
        ..copied()
    };
    let fetched = Copied {
        lineage: id(51),
        ..copied()
    };
    let damaged = Copied {
        damaged: true,
        ..copied()
    };
    let unreadable = Copied {
        bad_upto: Serial(21),
        ..copied()
    };
    for found in [back, fetched, damaged, unreadable] {
        let verdict = judge(Some(&record()), &found);
        assert!(matches!(verdict, Verdict::Short(_)), "{verdict:?}");
    }
    let verdict = judge(None, &copied());
    assert!(matches!(verdict, Verdict::Short(_)), "{verdict:?}");
}

/// Fails when: the image is written though it has everything.
#[test]
fn what_the_image_has_is_not_brought_again() {
    let released = Record {
        owner: None,
        given: 0,
        members: Vec::new(),
        ..record()
    };
    let at_origin = Record {
        at_origin: true,
        degraded: Some(Degraded::PeerLost),
        ..record()
    };
    for record in [released, at_origin] {
        let verdict = judge(Some(&record), &copied());
        assert!(matches!(verdict, Verdict::NotNeeded(_)), "{verdict:?}");
    }
}
