//! What is not split, each with its whole message.

use super::fixture::{self, Tree, have_all, junction, output, set, symlink};
use super::{NEVER, WRITE_BACK, guids, page_file, path, rules};
use split::ntfs::{Error, PageFile, VolumeIndex, empty, link, list, look, look_registry, register};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

/// The message with the partition's path shortened.
fn refused<T>(tree: &Tree, result: Result<T, Error>) -> String {
    let Err(error) = result else {
        panic!("it is taken");
    };
    let message = error.to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    message.replace(&tree.partition.display().to_string(), "P")
}

/// Fails when: a volume whose data is not in place, or cannot be read, is split.
#[test]
fn volumes_that_windows_did_not_leave_are_refused() {
    if !have_all("volumes_that_windows_did_not_leave_are_refused") {
        return;
    }
    let tree = Tree::new(16, |root| {
        fs::write(
            root.join("hiberfil.sys"),
            [b"HIBR", &[0; 9000][..]].concat(),
        )
        .expect("written");
    });
    assert_eq!(
        refused(&tree, look(&tree.partition)),
        "P: Windows is hibernated or was stopped for a fast start; shut it down with \
         `shutdown /s /f /t 0`"
    );
    let unwritten = fs::read(&tree.partition).expect("read");
    let error = refused(&tree, empty(&tree.partition, &[path("\\x")]));
    assert!(
        error.starts_with("P: its journal $LogFile holds changes"),
        "{error}"
    );
    assert!(unwritten == fs::read(&tree.partition).expect("read"));
    let tree = Tree::new(16, |_| {});
    output(Command::new("ntfsfix").arg(&tree.partition));
    assert_eq!(
        refused(&tree, look(&tree.partition)),
        "P: it is marked dirty; let Windows check it with `chkdsk /f` and shut it down"
    );
    let tree = Tree::new(16, |_| {});
    fixture::leave_journal_open(&tree.partition);
    assert_eq!(
        refused(&tree, look(&tree.partition)),
        "P: its journal $LogFile holds changes that are not in place; start Windows and shut it \
         down with `shutdown /s /f /t 0`"
    );
    let file = fs::File::options()
        .write(true)
        .open(&tree.partition)
        .expect("opened");
    file.write_all_at(b"-FVE-FS-", 3).expect("written");
    assert_eq!(
        refused(&tree, look(&tree.partition)),
        "P: BitLocker encrypts it; let `manage-bde -off` decrypt it in Windows"
    );
    file.write_all_at(b"MSDOS5.0", 3).expect("written");
    let says = "P: no NTFS is in it, its boot sector says otherwise";
    assert_eq!(refused(&tree, look(&tree.partition)), says);
    file.set_len(100).expect("cut");
    assert_eq!(refused(&tree, look(&tree.partition)), says);
}

/// Fails when: files that a split would tear apart are moved all the same.
#[test]
fn files_that_can_not_be_split_are_refused() {
    if !have_all("files_that_can_not_be_split_are_refused") {
        return;
    }
    let moves = rules(&[("\\a", Some(WRITE_BACK)), ("\\a\\in", Some(NEVER))]);
    let refuse = |make: fn(&Path)| {
        let tree = Tree::new(16, |root| {
            fs::create_dir_all(root.join("a/in")).expect("made");
            fs::create_dir_all(root.join("b")).expect("made");
            fs::write(root.join("a/file"), "file").expect("written");
            make(root);
        });
        refused(&tree, list(&tree.partition, &moves))
    };
    let message = refuse(|root| {
        fs::hard_link(root.join("a/file"), root.join("b/other name")).expect("linked");
    });
    let hard = "a file has names on both sides of a split, which hard links can not have: ";
    let do_this = "; move all of them or none";
    assert_eq!(
        message,
        format!("{hard}\\b\\other name, \\a\\file{do_this}")
    );
    let message = refuse(|root| {
        fs::hard_link(root.join("a/file"), root.join("a/in/twin")).expect("linked");
    });
    assert!(
        message.starts_with(hard) && message.contains("\\a\\in\\twin"),
        "{message}"
    );
    let message = refuse(|root| {
        for number in 0..9 {
            fs::hard_link(root.join("a/file"), root.join(format!("a/{number}"))).expect("linked");
        }
        fs::hard_link(root.join("a/file"), root.join("b/other")).expect("linked");
    });
    let names = "\\b\\other, \\a\\0, \\a\\1, \\a\\2 and 7 more";
    assert_eq!(message, format!("{hard}{names}{do_this}"));
    let message = refuse(|root| symlink(&root.join("a/up"), "..\\b", true));
    assert_eq!(
        message,
        "\\a\\up is a relative link to ..\\b, which leaves the moved directory \\a; make the link \
         absolute or move both"
    );
    let message = refuse(|root| {
        fs::write(root.join("a/small"), "").expect("written");
        let data = [&0x8000_0013_u32.to_le_bytes()[..], &[8, 0, 0, 0], &[7; 8]].concat();
        set(&root.join("a/small"), "system.ntfs_reparse_data", &data);
    });
    assert_eq!(
        message,
        "\\a\\small is deduplicated, its content lies elsewhere; let `Start-DedupJob -Type \
         Unoptimization` write it back"
    );
    let tree = Tree::new(16, |root| {
        fs::create_dir_all(root.join("a/in")).expect("made");
        fs::write(root.join("a/in/secret"), [7; 600]).expect("written");
    });
    fixture::encrypt(&tree.partition, "secret");
    let message = refused(&tree, list(&tree.partition, &moves));
    assert_eq!(
        message,
        "\\a\\in\\secret is encrypted by EFS, which no copy keeps; let `cipher /d` decrypt it in \
         Windows"
    );
}

/// Fails when: a link inside, or a short name, which counts as a name, is taken for a fault.
#[test]
fn links_and_short_names_inside_are_no_fault() {
    if !have_all("links_and_short_names_inside_are_no_fault") {
        return;
    }
    let tree = Tree::new(16, |root| {
        fs::create_dir_all(root.join("a/in")).expect("made");
        fs::write(root.join("a/a long name.text"), "1").expect("written");
        set(
            &root.join("a/a long name.text"),
            "system.ntfs_dos_name",
            b"ALONGN~1.TEX",
        );
        fs::write(root.join("a/another long.text"), "22").expect("written");
        set(
            &root.join("a/another long.text"),
            "system.ntfs_dos_name",
            b"ANOTHE~1.TEX",
        );
        fs::hard_link(root.join("a/another long.text"), root.join("a/in/link")).expect("linked");
        symlink(&root.join("a/in/rel"), "..\\a long name.text", true);
        junction(&root.join("out"), "\\??\\C:\\A\\IN");
        symlink(&root.join("rel"), "a\\in", true);
    });
    let found = list(&tree.partition, &rules(&[("\\A", Some(NEVER))])).expect("listed");
    assert_eq!((found.moved[0].files, found.moved[0].bytes), (4, 3));
    let into: Vec<&str> = found.links_into.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(into, ["\\out", "\\rel"]);
}

/// Fails when: a rule that Windows or NTFS cannot follow is taken.
#[test]
fn rules_that_can_not_be_followed_are_refused() {
    if !have_all("rules_that_can_not_be_followed_are_refused") {
        return;
    }
    let tree = Tree::new(16, |root| {
        for directory in ["Windows/System32", "Data/in/deep", "Users/x", "Boot"] {
            fs::create_dir_all(root.join(directory)).expect("made");
        }
        fs::write(root.join("file.txt"), "").expect("written");
        fs::write(root.join("Data/kept"), "").expect("written");
        junction(&root.join("Documents and Settings"), "\\??\\C:\\Users");
    });
    let (back, never) = (Some(WRITE_BACK), Some(NEVER));
    let refuse =
        |some: &[(&str, Option<VolumeIndex>)]| refused(&tree, list(&tree.partition, &rules(some)));
    assert_eq!(
        refuse(&[("\\windows", back)]),
        "\\Windows: Windows needs it on the disk that it starts from; move directories inside of it"
    );
    assert_eq!(
        refuse(&[("\\file.txt", back)]),
        "\\file.txt: it is a file, and Windows mounts volumes at directories only; name its \
         directory"
    );
    assert_eq!(
        refuse(&[("\\Documents and Settings", back)]),
        "\\Documents and Settings: it is a reparse point already; leave it out of the rules"
    );
    assert_eq!(
        refuse(&[("\\Data", back), ("\\Data\\in", None)]),
        "`keep` of \\Data\\in lies inside \\Data, which moves; NTFS can not leave a part of a \
         moved directory behind, so give rules for its subdirectories instead"
    );
    let message = refuse(&[("\\Data", back), ("\\Data\\kept", None)]);
    assert!(
        message.starts_with("`keep` of \\Data\\kept lies inside"),
        "{message}"
    );
    assert_eq!(
        refuse(&[
            ("\\Data", back),
            ("\\Data\\in", never),
            ("\\Data\\in\\deep", back)
        ]),
        "\\Data\\in\\deep would lie on the same volume as \\Data, with \\Data\\in on another one \
         between them; give \\Data\\in\\deep the class of \\Data\\in"
    );
    // What a wildcard finds is left where it is; the more literal rule wins; an inner match on
    // the same volume is a part of the outer one.
    let some = [("\\*", back), ("\\Data\\*", back), ("\\users", never)];
    let found = list(&tree.partition, &rules(&some)).expect("listed");
    let moved = found
        .moved
        .iter()
        .map(|it| (it.path.to_string(), it.volume));
    let moved: Vec<(String, VolumeIndex)> = moved.collect();
    assert_eq!(
        moved,
        [
            ("\\Data".to_owned(), WRITE_BACK),
            ("\\Users".to_owned(), NEVER)
        ]
    );
}

/// Fails when: a mount point is made of a directory that Windows would refuse.
#[test]
fn only_an_empty_directory_becomes_a_mount_point() {
    if !have_all("only_an_empty_directory_becomes_a_mount_point") {
        return;
    }
    let tree = Tree::new(16, |root| {
        fs::create_dir_all(root.join("a/in")).expect("made");
    });
    let links = [(path("\\a"), guids()[0])];
    assert_eq!(
        refused(&tree, link(&tree.partition, &links)),
        "\\a is not empty, and Windows wants a mount point to be; empty it first"
    );
    for _ in 0..2 {
        empty(&tree.partition, &[path("\\a")]).expect("emptied");
    }
    for _ in 0..2 {
        link(&tree.partition, &links).expect("linked");
    }
    empty(&tree.partition, &[path("\\a")]).expect("it was emptied before");
    let says = "\\b is not there, or is no directory; list the partition again";
    assert_eq!(refused(&tree, empty(&tree.partition, &[path("\\b")])), says);
    assert_eq!(
        refused(&tree, link(&tree.partition, &[(path("\\b"), guids()[0])])),
        says
    );
}

/// Fails when: a registry is written that Windows would throw away or has other plans with.
#[test]
fn registries_that_can_not_be_written_are_refused() {
    if !have_all("registries_that_can_not_be_written_are_refused") {
        return;
    }
    let refuse = |page_file: PageFile, change: &(dyn Fn(&Path) + Sync)| {
        let tree = Tree::new(16, |root| {
            let config = root.join("Windows/System32/config");
            fs::create_dir_all(&config).expect("made");
            fs::write(config.join("SYSTEM"), fixture::hive()).expect("written");
            change(&config);
        });
        let message = refused(&tree, look_registry(&tree.partition, Some(&page_file)));
        let result = register(&tree.partition, &tree.partition, &guids(), Some(&page_file));
        assert!(result.is_err());
        message
    };
    let dirty = "\\Windows\\System32\\config\\SYSTEM: the registry hive is dirty, ";
    let shut_down = "; start Windows and shut it down with `shutdown /s /f /t 0`";
    let with = |at: usize, byte: u8| {
        move |config: &Path| {
            let mut hive = fixture::hive();
            hive[at] = byte;
            fs::write(config.join("SYSTEM"), hive).expect("written");
        }
    };
    let message = refuse(page_file(), &with(4, 8));
    assert_eq!(
        message,
        format!("{dirty}its sequence numbers are 8 and 7{shut_down}")
    );
    let message = refuse(page_file(), &with(100, 1));
    assert_eq!(message, format!("{dirty}its checksum is wrong{shut_down}"));
    let message = refuse(page_file(), &|config| {
        let mut log = vec![0; 2048];
        log[512..516].copy_from_slice(b"HvLE");
        log[524] = 9;
        fs::write(config.join("SYSTEM.LOG2"), log).expect("written");
    });
    assert_eq!(
        message,
        format!("{dirty}SYSTEM.LOG2 holds changes that are not in it{shut_down}")
    );
    let message = refuse(page_file(), &with(0, b'R'));
    assert_eq!(
        message,
        "\\Windows\\System32\\config\\SYSTEM: it does not begin with `regf` and a base block, so \
         it is no registry hive of Windows"
    );
    let message = refuse(page_file(), &|config| {
        fs::remove_file(config.join("SYSTEM")).expect("removed");
    });
    assert_eq!(
        message,
        "P: no \\Windows\\System32\\config\\SYSTEM is in it; without Windows leave the page file \
         out"
    );
    let letter = |letter| PageFile {
        letter,
        ..page_file()
    };
    let message = refuse(letter('E'), &|_| {});
    let says = "the letter E: belongs to another volume in the registry; choose a free one";
    assert_eq!(message, says);
    let message = refuse(letter('C'), &|_| {});
    assert_eq!(message, "`C` is no letter for a drive; D to Z are");
}
