//! A split for the tests of what is told of it.
//!
//! Always true: each class has one path and one disk; what is kept is there with a pool only.
//! Deliberately absent: an image, which these tests need not have.

use crate::kind::{AtRisk, Class, Layout, Listing, Moved, Volume};
use crate::report::Report;
use crate::rules::Rules;
use std::path::Path;

fn layout() -> Layout {
    let moved = |path: &str, class| Moved {
        path: path.to_owned(),
        class,
        kept: Vec::new(),
        nested: Vec::new(),
        files: 3,
        bytes: 5 << 20,
        symlink: false,
    };
    let volume = |class| Volume {
        class,
        partition_uuid: String::new(),
        file_system_uuid: String::new(),
        start_bytes: 1 << 20,
        bytes: 1 << 30,
        swap: None,
    };
    Layout {
        listing: Listing {
            moved: vec![
                moved("/opt\x1b[31m", Class::WriteBack),
                moved("/tmp", Class::Never),
            ],
            system_files: 7,
            system_bytes: 1536,
            at_risk: vec![AtRisk {
                path: "/home/a/.config".to_owned(),
                class: Class::WriteBack,
                bytes: 12,
            }],
            warnings: vec!["be careful".to_owned()],
            ..Listing::default()
        },
        volumes: vec![volume(Class::WriteBack), volume(Class::Never)],
        letter: None,
    }
}

/// With a pool there is a disk for what it keeps.
pub(crate) fn with<T>(rules: &str, image: &str, work: impl FnOnce(&Report) -> T) -> T {
    let (mut layout, rules) = (layout(), Rules::parse(rules, "r").expect("they are right"));
    if rules.pool.is_some() {
        let (mut moved, mut volume) = (layout.listing.moved[0].clone(), layout.volumes[0].clone());
        (moved.path, moved.class) = ("/srv".to_owned(), Class::Keep);
        volume.class = Class::Keep;
        layout.listing.moved.push(moved);
        layout.volumes.push(volume);
    }
    work(&Report {
        image: Path::new(image),
        output: Path::new("/out"),
        partition: 1,
        file_system: "ext4",
        layout: &layout,
        rules: &rules,
        copy: false,
    })
}
