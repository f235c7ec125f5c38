//! Who may stand on a file that is to be removed.

use super::*;
use ::image::create::{Backing, Shape, create};
use std::os::unix::fs::FileExt;

const DISK_BYTES: u64 = 1 << 20;

fn qcow2(path: &Path, backing: Option<&str>) {
    let backing = backing.map(|name| Backing {
        name,
        format: BackingFormat::Qcow2,
    });
    let new = create(DISK_BYTES, Shape::Plain, backing).expect("it can be made");
    let file = fs::File::create(path).expect("made");
    for extent in &new.extents {
        file.write_all_at(&extent.bytes, extent.at)
            .expect("written");
    }
    file.set_len(new.file_bytes).expect("made long");
}

/// Fails when: a file that stands on another one is not seen, however it names that, or one that
/// does not tell what it stands on counts as none; or a file that stands elsewhere keeps it.
#[test]
fn a_file_that_stands_on_another_or_cannot_be_judged_keeps_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let [frozen, above] = ["frozen.qcow2", "above.qcow2"].map(|it| dir.path().join(it));
    qcow2(&frozen, None);
    fs::write(dir.path().join("raw.img"), "no image").expect("written");
    let meta = fs::metadata(&frozen).expect("there");
    let found = || may_stand_on(&frozen, (meta.dev(), meta.ino()));
    assert_eq!(found(), None);
    let path = frozen.display();
    for (name, stands) in [
        ("frozen.qcow2".to_owned(), true),
        (path.to_string(), true),
        (format!("file:{path}"), true),
        (
            format!(r#"json:{{"driver":"qcow2","file":{{"filename":"{path}"}}}}"#),
            true,
        ),
        ("nbd://host/export".to_owned(), true),
        ("raw.img".to_owned(), false),
        ("none.qcow2".to_owned(), false),
    ] {
        qcow2(&above, Some(&name));
        let expected = stands.then(|| above.clone());
        assert_eq!(found(), expected, "{name}");
    }
}
