//! Disks through two files.

use super::*;
use crate::lock::Patience;
use crate::origin::chain::{self, Rules, Stated};
use crate::origin::clone::{self, CloneOf};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const UNIT: u64 = 4096;

fn view(path: &Path, stated: Stated) -> View {
    let rules = Rules {
        top: Some(stated),
        allow: None,
    };
    View::new(chain::open(path, &rules, &mut Patience::none()).expect("a chain"))
}

fn span(at: u64, bytes: u64) -> Span {
    Span { at, bytes }
}

/// Fails when: a unit that differs is left out, one that does not is told of, or what is behind the
/// end of a shorter file counts as anything but zeroes.
#[test]
fn units_that_differ_are_told_of_whole() {
    let dir = tempfile::tempdir().expect("a directory");
    let [one, other, top] = ["one.img", "other.img", "top.qcow2"].map(|it| dir.path().join(it));
    let mut bytes = vec![0; 3 << 20];
    bytes[10_000..20_000].fill(1);
    bytes[(2 << 20)..(2 << 20) + 9].fill(2);
    fs::write(&one, &bytes).expect("written");
    bytes[15_000] = 9;
    bytes[(1 << 20) + 5] = 9;
    bytes.truncate(2 << 20);
    fs::write(&other, &bytes).expect("written");
    let of = CloneOf {
        image: one.clone(),
        plain: false,
    };
    let allow = [dir.path().to_path_buf()];
    clone::make(&top, &of, &allow).expect("made");

    let mut now = view(&top, Stated::Qcow2);
    let mut then = view(&other, Stated::Raw);
    let found = differing(&mut now, Some(&mut then), 0, UNIT).expect("compared");
    let expected = [span(12_288, UNIT), span(1 << 20, UNIT), span(2 << 20, UNIT)];
    assert_eq!(
        (found.parts.as_slice(), found.next),
        (&expected[..], 3 << 20)
    );
    let found = differing(&mut now, Some(&mut then), 1 << 20, 64 << 10).expect("compared");
    assert_eq!(found.parts[0], span(1 << 20, 64 << 10));

    let found = differing(&mut now, None, 0, UNIT).expect("compared");
    let expected = [span(8192, 3 * UNIT), span(2 << 20, UNIT)];
    assert_eq!(found.parts, expected);
    let mut same = view(&one, Stated::Raw);
    let found = differing(&mut now, Some(&mut same), 0, UNIT).expect("compared");
    assert_eq!(found.parts, []);
}

/// Fails when: holes of a raw file are read.
#[test]
fn a_hole_of_a_raw_file_is_zeroes_that_need_no_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("sparse.img");
    let file = fs::File::create(&path).expect("made");
    file.set_len(1 << 30).expect("made long");
    file.write_all_at(&[1; 4096], 512 << 20).expect("written");
    drop(file);
    let mut view = view(&path, Stated::Raw);
    let parts = view.parts(0, 1 << 30).expect("told");
    assert!(parts.windows(2).all(|it| it[0].span.end() == it[1].span.at));
    let ends = parts.first().zip(parts.last()).expect("parts");
    assert_eq!((ends.0.span.at, ends.1.span.end()), (0, 1 << 30));
    let data = parts.iter().filter(|it| it.content != Content::Zero);
    let [data] = data.collect::<Vec<_>>()[..] else {
        panic!("{parts:?}");
    };
    let place = 512 << 20;
    assert!(data.span.at <= place && data.span.end() >= place + 4096);
    assert!(data.span.bytes <= 1 << 20, "{data:?}");
}
