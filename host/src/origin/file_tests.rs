//! Locks against ourselves and against a real QEMU, formats, sizes and side files.

use super::*;
use crate::lock::testing::freed;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

fn image(dir: &tempfile::TempDir, bytes: u64) -> PathBuf {
    let path = dir.path().join("disk.img");
    fs::File::create(&path)
        .and_then(|file| file.set_len(bytes))
        .expect("made");
    path
}

fn request(path: &Path, access: Access) -> Request {
    Request {
        path: path.to_path_buf(),
        access,
        format: Format::Auto,
        allow: Vec::new(),
        journal_place: None,
        ledger_place: None,
        quiet: std::time::Duration::ZERO,
        create: false,
        keeps_end: false,
        epoch: None,
    }
}

fn try_open(path: &Path, access: Access) -> Result<OpenVolume, Fault> {
    open(&request(path, access), &mut Patience::none())
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// A QEMU that keeps the image open until it is dropped.
struct Qemu {
    child: Child,
}

impl Qemu {
    /// A tool that writes: it uses the permission, and shares everything.
    fn writing_tool(path: &Path) -> Option<Qemu> {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]).arg(path);
        Qemu::start(command, "length\n", "MiB")
    }

    /// A machine with the image as a read-only disk: it does not share writing.
    fn reading_machine(path: &Path) -> Option<Qemu> {
        let drive = format!(
            "if=none,id=d,format=raw,readonly=on,file={}",
            path.display()
        );
        let mut command = Command::new("qemu-system-x86_64");
        command.args([
            "-accel",
            "tcg",
            "-m",
            "32",
            "-nodefaults",
            "-display",
            "none",
            "-S",
        ]);
        command.args([
            "-qmp",
            "stdio",
            "-device",
            "virtio-blk-pci,drive=d",
            "-drive",
            &drive,
        ]);
        Qemu::start(
            command,
            "{\"execute\": \"qmp_capabilities\"}\n",
            "\"return\"",
        )
    }

    /// Its answer to a command says that the image is open and locked.
    fn start(mut command: Command, ask: &str, answer: &str) -> Option<Qemu> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("skipped: {:?} is not installed", command.get_program());
            return None;
        };
        let input = child.stdin.as_mut().expect("piped");
        input.write_all(ask.as_bytes()).expect("QEMU listens");
        let output = child.stdout.as_mut().expect("piped");
        let mut lines = BufReader::new(output).lines();
        let answered = lines.any(|line| line.is_ok_and(|line| line.contains(answer)));
        let qemu = Qemu { child };
        assert!(answered, "QEMU opened the image");
        Some(qemu)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.child
            .kill()
            .and_then(|()| self.child.wait().map(|_| ()))
            .expect("ended");
    }
}

/// Runs `qemu-io` once; its error text where it could not open the image.
fn qemu_tries(path: &Path, writer: bool) -> Option<Result<(), String>> {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", "-c", "length"]);
    if !writer {
        command.arg("-r");
    }
    let Ok(output) = command.arg(path).output() else {
        eprintln!("skipped: qemu-io is not installed");
        return None;
    };
    Some(match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    })
}

#[test]
fn one_writer_or_many_readers_open_an_image() {
    let dir = directory();
    let path = image(&dir, 1 << 20);
    let writer = freed(|| try_open(&path, Access::Write));
    for access in [Access::Write, Access::Read] {
        let fault = try_open(&path, access).expect_err("locked");
        assert_eq!(fault.kind, Kind::InUse);
        assert!(
            fault
                .message
                .contains(&format!("pid {}", std::process::id())),
            "{fault}"
        );
    }
    drop(writer);
    let _first = freed(|| try_open(&path, Access::Read));
    let _second = freed(|| try_open(&path, Access::Read));
    assert!(try_open(&path, Access::Write).is_err());
}

#[test]
fn a_qemu_writer_keeps_us_out_and_is_named() {
    let dir = directory();
    let path = image(&dir, 1 << 20);
    let Some(qemu) = Qemu::writing_tool(&path) else {
        return;
    };
    for access in [Access::Write, Access::Read] {
        let fault = try_open(&path, access).expect_err("locked by QEMU");
        assert_eq!(fault.kind, Kind::InUse);
        let who = format!("qemu-io (pid {})", qemu.child.id());
        assert!(fault.message.contains(&who), "{fault}");
    }
    drop(qemu);
    freed(|| try_open(&path, Access::Write));
}

#[test]
fn a_machine_that_reads_shares_with_our_readers_only() {
    let dir = directory();
    let path = image(&dir, 1 << 20);
    let Some(qemu) = Qemu::reading_machine(&path) else {
        return;
    };
    freed(|| try_open(&path, Access::Read));
    let fault = try_open(&path, Access::Write).expect_err("QEMU shares no writing");
    let pid = format!("(pid {})", qemu.child.id());
    assert!(fault.message.contains(&pid), "{fault}");
    assert!(fault.message.contains("does not share"), "{fault}");
}

#[test]
fn our_writer_keeps_qemu_from_writing_and_so_does_our_reader() {
    let dir = directory();
    let path = image(&dir, 1 << 20);
    for access in [Access::Write, Access::Read] {
        let _ours = freed(|| try_open(&path, access));
        let Some(result) = qemu_tries(&path, true) else {
            return;
        };
        let error = result.expect_err("QEMU is refused");
        assert!(error.contains("lock"), "{error}");
        // A tool that only looks asks for no permission that we keep to ourselves.
        assert_eq!(qemu_tries(&path, false), Some(Ok(())));
    }
}

#[test]
fn a_refused_open_leaves_no_lock_behind() {
    let dir = directory();
    let path = image(&dir, 1 << 20);
    let reader = freed(|| try_open(&path, Access::Read));
    let refused = try_open(&path, Access::Write);
    assert!(refused.is_err());
    drop(reader);
    freed(|| try_open(&path, Access::Write));
}

#[test]
fn an_image_of_another_format_is_served_only_when_it_is_called_raw() {
    let dir = directory();
    let path = image(&dir, 1 << 20);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| file.write_all(b"KDMV\x01\0\0\0"))
        .expect("written");
    let fault = try_open(&path, Access::Write).expect_err("looks like vmdk");
    assert_eq!(fault.kind, Kind::Foreign);
    assert!(fault.message.contains("vmdk") && fault.message.contains("format = \"raw\""));
    let raw = Request {
        format: Format::Raw,
        ..request(&path, Access::Write)
    };
    freed(|| open(&raw, &mut Patience::none()));
}

#[test]
fn a_size_that_is_not_whole_sectors_is_refused() {
    let dir = directory();
    for bytes in [0, 1000] {
        let path = image(&dir, bytes);
        let fault = freed(|| match try_open(&path, Access::Read) {
            Err(fault) if fault.kind == Kind::InUse => Err(fault),
            other => Ok(other.expect_err("odd size")),
        });
        assert_eq!(fault.kind, Kind::Invalid);
        assert!(fault.message.contains("512"), "{fault}");
    }
    let missing = try_open(&dir.path().join("missing"), Access::Read).expect_err("missing");
    assert_eq!(missing.kind, Kind::NotFound);
}

#[test]
fn an_odd_number_of_sectors_never_makes_the_image_longer() {
    let dir = directory();
    let path = image(&dir, 4096 * 3 + 512);
    let volume = freed(|| try_open(&path, Access::Write));
    let origin = volume.origin.file().expect("a file");
    origin.write(4096 * 3, &[8; 512]).expect("written");
    assert_eq!(fs::metadata(&path).expect("there").len(), 4096 * 3 + 512);
}

#[test]
fn ledger_and_journal_lie_beside_the_image_under_every_name_of_it() {
    let dir = directory();
    let path = image(&dir, 1 << 20);
    let link = dir.path().join("alias");
    std::os::unix::fs::symlink(&path, &link).expect("linked");
    let create = Request {
        create: true,
        ..request(&link, Access::Write)
    };
    let volume = open(&create, &mut Patience::none()).expect("opened");
    let (ledger, journal) = (volume.ledger.expect("made"), volume.journal.expect("made"));
    let home = fs::canonicalize(dir.path()).expect("there");
    assert_eq!(ledger.path, home.join("disk.img.tenuto"));
    assert_eq!(journal.path, home.join("disk.img.tenuto-journal"));
    let others = fs::File::open(&ledger.path).expect("there");
    assert!(
        others.try_lock_shared().is_err(),
        "late writes of the ledger are fenced as well"
    );
}

#[test]
fn a_place_for_journals_is_used_and_a_symlink_in_it_is_refused() {
    let dir = directory();
    let place = tempfile::tempdir().expect("a directory");
    let path = image(&dir, 1 << 20);
    let elsewhere = Request {
        journal_place: Some(place.path().to_path_buf()),
        create: true,
        ..request(&path, Access::Write)
    };
    drop(open(&elsewhere, &mut Patience::none()).expect("opened"));
    let image = fs::canonicalize(&path).expect("there");
    let ledger = in_place(place.path(), &image, beside::LEDGER).expect("short");
    assert!(ledger.exists());
    fs::remove_file(&ledger).expect("removed");
    std::os::unix::fs::symlink(dir.path().join("victim"), &ledger).expect("linked");
    let fault = freed(|| match open(&elsewhere, &mut Patience::none()) {
        Err(fault) if fault.kind == Kind::InUse => Err(fault),
        other => Ok(other.expect_err("a trap")),
    });
    assert_eq!(fault.kind, Kind::Foreign);
    assert!(!dir.path().join("victim").exists());
}

/// What a qcow2 image is tried with: a new one on a file that is not there, cut at no whole sector.
fn qcow2(dir: &tempfile::TempDir, changes: &[(u64, &[u8])]) -> PathBuf {
    use ::image::create::{Backing, BackingFormat, Shape, create};
    use std::os::unix::fs::FileExt;
    let path = dir.path().join("disk.qcow2");
    let backing = Backing {
        name: "gone.img",
        format: BackingFormat::Raw,
    };
    let new = create(64 << 20, Shape::Extended, Some(backing)).expect("a size that can be");
    let file = fs::File::create(&path).expect("made");
    for extent in &new.extents {
        file.write_all_at(&extent.bytes, extent.at)
            .expect("written");
    }
    for (at, bytes) in changes {
        file.write_all_at(bytes, *at).expect("written");
    }
    file.set_len(new.file_bytes + 8).expect("sized");
    path
}

/// A journal that brings one sector of the image to these bytes, and the ledger that asks for it.
fn write_journal(path: &Path, sector: u64, bytes: &[u8; 512], below: u64) {
    use crate::origin::written::tests::ledger;
    use engine::format::checksum;
    use engine::format::journal::{Journal, JournalEntry, payload_at};
    use engine::format::ledger::{Ledger, Progress};
    use engine::format::record::EntryKind;
    use engine::types::{Generation, Serial, Span, Uuid};
    let volume = Uuid([1; 16]);
    let journal = Journal {
        volume,
        generation: Generation(1),
        sequence: 3,
        upto: Serial(9),
        total_bytes: payload_at(1) + 4096,
        entries: vec![JournalEntry {
            span: Span::new(sector, 1),
            kind: EntryKind::Write,
            offset: payload_at(1),
            checksum: checksum(&[bytes]),
        }],
    };
    let mut written = journal.encode();
    written.extend(bytes);
    written.resize(journal.total_bytes as usize, 0);
    fs::write(beside::beside(path, beside::JOURNAL), written).expect("written");
    let apply = Progress::Apply {
        upto: Serial(9),
        journal_sequence: 3,
        journal_bytes: journal.total_bytes,
    };
    let ledger = Ledger {
        volume,
        dirty: true,
        origin_bytes: fs::metadata(path).expect("stat").len(),
        mtime_limit_ns: u64::MAX,
        ..ledger(apply, below)
    };
    fs::write(beside::beside(path, beside::LEDGER), ledger.encode()).expect("written");
}

const GUARDED: (u64, &[u8]) = (72, &[0x20]);

/// Fails when: a replay wants the files below an image or whole sectors of it, or leaves its guard.
#[test]
fn a_journal_of_a_qcow2_image_is_finished_without_the_files_below_it() {
    use crate::files::Files;
    use engine::engine::Otherwise;
    use engine::types::VolumeId;
    let dir = directory();
    let path = qcow2(&dir, &[GUARDED]);
    write_journal(&path, 800, &[7; 512], 5);
    let volume = VolumeId(0);
    let mut files = Files::without_cache();
    files.insert_volume(volume, freed(|| try_open(&path, Access::Bytes)));
    let opened = |files: &Files| {
        let opened = files.volume(volume).expect("is open");
        opened.clear_guard().expect("can be written")
    };
    assert!(!opened(&files), "the journal is pending");
    let settled = files.settle(volume, Otherwise::TakeCopy, None, &mut Patience::none());
    settled.expect("the journal is whole");
    assert!(opened(&files), "the guard was set");
    let bytes = fs::read(&path).expect("read");
    assert_eq!(bytes[800 * 512..][..512], [7; 512]);
    assert_eq!(bytes[72], 0, "the guard is cleared");
}

/// Fails when: bytes that a guest wrote into its raw disk are taken for the header of an image.
#[test]
fn a_disk_that_was_written_raw_is_no_qcow2_image_because_its_guest_wrote_a_header() {
    let dir = directory();
    let path = qcow2(&dir, &[]);
    let as_format = |access, format| {
        let asked = Request {
            format,
            ..request(&path, access)
        };
        open(&asked, &mut Patience::none())
    };
    let accesses = [Access::Read, Access::Write];
    write_journal(&path, 800, &[7; 512], 0);
    for access in accesses {
        let fault = try_open(&path, access).expect_err("it may be a guest's");
        assert_eq!(fault.kind, Kind::Foreign);
        for part in ["raw image before", "format = \"raw\"", "format = \"qcow2\""] {
            assert!(fault.message.contains(part), "{part:?}: {fault}");
        }
    }
    drop(freed(|| as_format(Access::Write, Format::Qcow2)));
    // An image that was written as one is taken by its first bytes.
    write_journal(&path, 800, &[7; 512], 5);
    let fault = try_open(&path, Access::Read).expect_err("its backing is not there");
    assert!(fault.message.contains("gone.img"), "{fault}");
    drop(freed(|| try_open(&path, Access::Write)));
    // Last, because a raw image has whole sectors.
    let file = fs::File::options().write(true).open(&path).expect("open");
    file.set_len(1 << 20).expect("sized");
    write_journal(&path, 800, &[7; 512], 0);
    for access in accesses {
        let raw = freed(|| as_format(access, Format::Raw));
        assert!(raw.mapped.is_none() && raw.size_bytes() == 1 << 20);
    }
}

/// Fails when: what cannot be read directly costs a written image its direct I/O, one that is
/// refused is changed, or its files below are opened before its journal is finished.
#[test]
fn a_qcow2_image_that_is_written_ends_with_whole_clusters() {
    let dir = directory();
    let path = qcow2(&dir, &[]);
    let length = || fs::metadata(&path).expect("stat").len();
    let before = length();
    let mut opened = freed(|| try_open(&path, Access::Write));
    let request = Request {
        allow: vec![dir.path().to_owned()],
        ..request(&path, Access::Write)
    };
    let fault = opened.open_below(&request, true, &mut Patience::none());
    let fault = fault.expect_err("its backing is not there");
    assert!(fault.message.contains("gone.img"), "{fault}");
    assert_eq!(length(), before, "what is refused is not changed");
    // Now its backing is there.
    fs::write(dir.path().join("gone.img"), [0; 4096]).expect("written");
    let below = opened.open_below(&request, true, &mut Patience::none());
    below.expect("all of it is there");
    let whole = before.next_multiple_of(128 << 10);
    assert_ne!(before, whole);
    assert_eq!(length(), whole);
    let best = Target::open(&path, How::default()).expect("open");
    let origin = opened.origin.file().expect("a file");
    assert_eq!(
        (origin.direct, origin.dio_align),
        (best.direct, best.dio_align)
    );
    drop(opened);
    for (changes, part) in [
        (vec![(7, &[2_u8][..])], "amend"),
        (vec![(79, &[0x11])], "check -r all"),
        (vec![GUARDED], "its ledger and its journal"),
    ] {
        let path = qcow2(&dir, &changes);
        let before = fs::read(&path).expect("read");
        // A program that another test starts has this one's files open until it runs.
        let fault = freed(|| match try_open(&path, Access::Write) {
            Err(fault) if fault.kind == Kind::InUse => Err(fault),
            other => Ok(other.expect_err(part)),
        });
        assert!(fault.message.contains(part), "{fault}");
        assert!(
            fs::read(&path).expect("read") == before,
            "it is not changed"
        );
    }
}

/// Fails when: the image of an overlay changes before its commit is accepted, or looks like another
/// one to who is to commit.
#[test]
fn an_image_that_is_opened_to_be_committed_is_what_it_was() {
    let dir = directory();
    let path = qcow2(&dir, &[]);
    fs::write(dir.path().join("gone.img"), [0; 4096]).expect("written");
    let before = fs::read(&path).expect("read");
    let request = |access| Request {
        allow: vec![dir.path().to_owned()],
        keeps_end: true,
        epoch: None,
        ..request(&path, access)
    };
    let none = &mut Patience::none();
    let reader = freed(|| open(&request(Access::Read), &mut Patience::none()));
    let mapped = reader.mapped.clone().expect("it is qcow2");
    let (read, to_write) = (mapped.stat(), mapped.stat_to_write());
    drop((reader, mapped));
    let mut writer = freed(|| open(&request(Access::Write), &mut Patience::none()));
    let below = writer.open_below(&request(Access::Write), true, none);
    below.expect("all of it is there");
    let mapped = writer.mapped.clone().expect("it is written");
    let image = |stat: Result<Stat, IoError>| stat.expect("told").image;
    assert_eq!(image(mapped.stat_to_read()), image(read));
    assert_eq!(image(mapped.stat()), image(to_write));
    assert!(fs::read(&path).expect("read") == before);
}

/// Fails when: a volume above an image does not notice that its owner owes it data.
#[test]
fn an_image_whose_owner_owes_it_data_is_no_backing() {
    let dir = directory();
    let below = dir.path().join("gone.img");
    fs::File::create(&below)
        .and_then(|file| file.set_len(1 << 20))
        .expect("made");
    let path = qcow2(&dir, &[]);
    let allowed = Request {
        allow: vec![dir.path().to_path_buf()],
        ..request(&path, Access::Read)
    };
    drop(open(&allowed, &mut Patience::none()).expect("all is as it should be"));
    write_journal(&below, 8, &[7; 512], 0);
    let fault = open(&allowed, &mut Patience::none()).expect_err("a journal is pending");
    for part in ["gone.img", "disk.qcow2", "host-a", "tenuto origin replay"] {
        assert!(fault.message.contains(part), "{part:?}: {fault}");
    }
    // Its owner may have its ledger in a place of its own.
    let place = dir.path().join("journals");
    fs::create_dir(&place).expect("made");
    let real = fs::canonicalize(&below).expect("it is there");
    let there = beside::in_place(&place, &real, beside::LEDGER).expect("a name that is short");
    fs::rename(beside::beside(&below, beside::LEDGER), there).expect("moved");
    drop(open(&allowed, &mut Patience::none()).expect("nothing is known of that place"));
    let told = Request {
        journal_place: Some(place),
        ..allowed
    };
    let fault = open(&told, &mut Patience::none()).expect_err("a journal is pending");
    assert!(fault.message.contains(" --journal "), "{fault}");
}
