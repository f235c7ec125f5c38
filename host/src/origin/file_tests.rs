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
        .and_then(|mut file| file.write_all(b"QFI\xfb\0\0\0\x03"))
        .expect("written");
    let fault = try_open(&path, Access::Write).expect_err("looks like qcow2");
    assert_eq!(fault.kind, Kind::Foreign);
    assert!(fault.message.contains("qcow2") && fault.message.contains("format = \"raw\""));
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
