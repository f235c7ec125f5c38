//! Disks: what an image is, its partitions, and each of them as an ordinary file.
//!
//! Always true: an image that is only read is opened so that no write of it is possible, under
//! QEMU's locks; a partition is a file as long as its [`Disk`] lives. Deliberately absent: file
//! systems.

use crate::error::{Error, Kind, Result, cause};
use crate::kind::Volume;
use crate::programs::{Failure, run};
use crate::sys::ends_with_us;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SECTOR: u64 = 512;
pub const MIB: u64 = 1 << 20;
/// Room of a table with 128 entries on both ends.
const EDGE_BYTES: u64 = MIB;
const PARTITIONS_MAX: usize = 256;
/// Types of partitions in a GPT.
const LINUX_DATA: &str = "0FC63DAF-8483-4772-8E79-3D69D8477DE4";
const LINUX_SWAP: &str = "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F";
const WINDOWS_DATA: &str = "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7";
/// Formats that are known by their first bytes and are not read.
const FOREIGN: [(&[u8], &str); 5] = [
    (b"KDMV", "vmdk"),
    (b"vhdxfile", "vhdx"),
    (b"conectix", "vhd"),
    (b"<<< ", "vdi"),
    (b"QED\0", "qed"),
];
const QCOW2: &[u8] = b"QFI\xfb";

/// An image of a whole disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Without links.
    pub path: PathBuf,
    pub format: &'static str,
    pub is_device: bool,
    pub file_bytes: u64,
    pub modified_ns: i128,
    pub inode: u64,
}

impl Image {
    pub fn look_at(path: &Path) -> Result<Image> {
        let shown = path.display();
        let fail = |error: std::io::Error| {
            let cause = cause(&error);
            Error::usage(format!("image {shown}: {cause}; give a raw or qcow2 image"))
        };
        let path = path.canonicalize().map_err(fail)?;
        in_words(&path)?;
        let file = File::open(&path).map_err(fail)?;
        let about = file.metadata().map_err(fail)?;
        let is_device = about.file_type().is_block_device();
        if !about.is_file() && !is_device {
            let right = "give a raw or qcow2 image, or a block device";
            return Err(Error::usage(format!("image {shown}: is no file; {right}")));
        }
        let mut first = [0; 16];
        let read = file.read_at(&mut first, 0).map_err(fail)?;
        let first = &first[..read];
        if let Some((_, name)) = FOREIGN.iter().find(|(magic, _)| first.starts_with(magic)) {
            return Err(Error::later(format!(
                "image {shown}: {name} is not in this version; convert it with \
                 `qemu-img convert -O qcow2`"
            )));
        }
        let format = if first.starts_with(QCOW2) {
            "qcow2"
        } else {
            "raw"
        };
        Ok(Image {
            path,
            format,
            is_device,
            file_bytes: about.len(),
            modified_ns: i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec()),
            inode: about.ino(),
        })
    }
}

/// Programs are told paths in JSON and configurations in TOML, which are UTF-8.
pub fn in_words(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        let shown = path.display();
        Error::usage(format!("{shown}: the path is not UTF-8; rename it"))
    })
}

/// Makes the system disk: a file that stands on the image, or holds all of it.
pub fn make_system(image: &Image, system: &Path, copy: bool) -> Result<()> {
    remove(system)?;
    let mut command = Command::new("qemu-img");
    match copy {
        false => command
            .args(["create", "-q", "-f", "qcow2", "-F", image.format, "-b"])
            .arg(&image.path),
        true => command
            .args(["convert", "-f", image.format, "-O", "qcow2"])
            .arg(&image.path),
    };
    run("qemu-utils", command.arg(system))?;
    Ok(())
}

pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, &error)),
        _ => Ok(()),
    }
}

/// Makes an empty raw disk with a table for a volume.
pub fn make(path: &Path, volume: &Volume, has_swap: bool, windows: bool) -> Result<()> {
    remove(path)?;
    let file = File::create(path).map_err(|error| Error::io(path, &error))?;
    file.set_len(disk_bytes(volume, has_swap))
        .map_err(|error| Error::io(path, &error))?;
    let kind = if windows { WINDOWS_DATA } else { LINUX_DATA };
    // Windows gives the next free letter to a partition whose bit 63 does not forbid it; that of
    // the page file has the letter of the rules.
    let attributes = match windows && volume.swap.is_none() {
        true => ", attrs=GUID:63",
        false => "",
    };
    let mut table = format!(
        "label: gpt\nstart={}, size={}, type={kind}, uuid={}, name={}{attributes}\n",
        volume.start_bytes / SECTOR,
        volume.bytes / SECTOR,
        volume.partition_uuid,
        volume.class.label(),
    );
    if let Some(swap) = volume.swap.as_ref().filter(|_| has_swap) {
        table += &format!(
            "start={}, size={}, type={LINUX_SWAP}, uuid={}, name=tenuto-swap\n",
            swap.start_bytes / SECTOR,
            swap.bytes / SECTOR,
            swap.partition_uuid,
        );
    }
    let mut script = tempfile::tempfile().map_err(|error| Error::io(path, &error))?;
    let written = script
        .write_all(table.as_bytes())
        .and_then(|()| std::io::Seek::rewind(&mut script));
    written.map_err(|error| Error::io(path, &error))?;
    let mut command = Command::new("sfdisk");
    command
        .args(["--quiet", "--wipe=never"])
        .arg(path)
        .stdin(script);
    run("fdisk", &mut command)?;
    Ok(())
}

fn disk_bytes(volume: &Volume, has_swap: bool) -> u64 {
    let swap = volume.swap.as_ref().filter(|_| has_swap);
    let end = swap.map_or(volume.start_bytes + volume.bytes, |it| {
        it.start_bytes + it.bytes
    });
    end + EDGE_BYTES
}

/// A part of a disk that has something in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// 0: there is no table, the disk is all one.
    pub number: u32,
    pub at_bytes: u64,
    pub bytes: u64,
    pub partition_uuid: Option<String>,
    pub found: Found,
}

impl Part {
    /// How a message names it.
    pub fn name(&self) -> String {
        match self.number {
            0 => "the disk".to_owned(),
            number => format!("partition {number}"),
        }
    }
}

/// What `blkid` says of some bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub kind: Option<String>,
    pub usage: Option<String>,
    pub uuid: Option<String>,
    pub label: Option<String>,
    pub table: Option<String>,
}

#[derive(Deserialize)]
struct Table {
    partitiontable: TableBody,
}

#[derive(Deserialize)]
struct TableBody {
    #[serde(default = "sector")]
    sectorsize: u64,
    #[serde(default)]
    partitions: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    node: String,
    start: u64,
    size: u64,
    uuid: Option<String>,
}

fn sector() -> u64 {
    SECTOR
}

/// A server that has the disk open, and shows parts of it as files.
pub struct Disk {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    scratch: PathBuf,
    name: String,
    writable: bool,
}

impl Disk {
    /// `scratch` has the places of the files; `name` is unlike that of other open disks.
    pub fn open(image: &Image, scratch: &Path, name: &str, writable: bool) -> Result<Disk> {
        let driver = if image.is_device {
            "host_device"
        } else {
            "file"
        };
        let path = in_words(&image.path)?;
        let file = json!({
            "driver": driver, "node-name": "file", "filename": path, "read-only": !writable,
        });
        let disk = json!({
            "driver": image.format, "node-name": "disk", "file": "file", "read-only": !writable,
        });
        let mut command = Command::new("qemu-storage-daemon");
        command
            .args([
                "--blockdev",
                &file.to_string(),
                "--blockdev",
                &disk.to_string(),
            ])
            // The greeting of the monitor says that all before it has been opened.
            .args([
                "--chardev",
                "stdio,id=monitor",
                "--monitor",
                "chardev=monitor",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = ends_with_us(&mut command).spawn().map_err(|source| {
            let program = "qemu-storage-daemon".to_owned();
            match source.kind() {
                std::io::ErrorKind::NotFound => Failure::Missing {
                    program,
                    package: "qemu-system-common",
                },
                _ => Failure::Io { program, source },
            }
        })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failed("qemu-storage-daemon: has no pipes"));
        };
        let mut disk = Disk {
            child,
            input,
            output: BufReader::new(output),
            scratch: scratch.to_owned(),
            name: name.to_owned(),
            writable,
        };
        let greeting = disk.line();
        if let Err(error) = greeting {
            return Err(disk.refused(image, error));
        }
        disk.ask("qmp_capabilities", &json!({}))?;
        Ok(disk)
    }

    /// What the server said when it could not open the image.
    fn refused(&mut self, image: &Image, error: Error) -> Error {
        let mut said = String::new();
        let read = self
            .child
            .stderr
            .take()
            .map(|mut it| it.read_to_string(&mut said));
        let line = said.lines().find(|it| !it.trim().is_empty());
        let (Some(Ok(_)), Some(line)) = (read, line) else {
            return error;
        };
        // Its options stand before the reason.
        let line = line.rsplit_once("}: ").map_or(line, |(_, why)| why);
        let line = line.trim_start_matches("qemu-storage-daemon: ");
        let shown = image.path.display();
        match line.contains("lock") {
            true => Error::refused(format!(
                "image {shown}: another program writes it ({line}); shut the guest down first"
            )),
            false => Error::failed(format!("image {shown}: {line}")),
        }
    }

    /// The server has closed its pipes.
    fn has_ended(&mut self) -> Error {
        let how = match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => cause(&error),
        };
        let message = format!("qemu-storage-daemon: has ended by itself ({how})");
        Error::new(Kind::ServerEnded, message)
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        let lost = |why: String| Error::failed(format!("qemu-storage-daemon: {why}"));
        match read {
            Ok(0) => Err(self.has_ended()),
            Ok(_) => serde_json::from_str(&line).map_err(|error| lost(error.to_string())),
            Err(error) => Err(lost(cause(&error))),
        }
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let request = json!({ "execute": command, "arguments": arguments });
        let written = writeln!(self.input, "{request}").and_then(|()| self.input.flush());
        written.map_err(|error| match error.kind() {
            std::io::ErrorKind::BrokenPipe => self.has_ended(),
            _ => Error::failed(format!("qemu-storage-daemon: {}", cause(&error))),
        })?;
        loop {
            let answer = self.line()?;
            if let Some(error) = answer.get("error") {
                let said = error
                    .get("desc")
                    .and_then(Value::as_str)
                    .unwrap_or("an error");
                return Err(Error::failed(format!(
                    "qemu-storage-daemon: {command}: {said}"
                )));
            }
            // All else is an event.
            if answer.get("return").is_some() {
                return Ok(());
            }
        }
    }

    /// Makes the whole disk a file.
    pub fn whole(&mut self) -> Result<PathBuf> {
        self.show("disk", "all")
    }

    /// Makes some bytes of the disk a file.
    pub fn part(&mut self, number: u32, at: u64, bytes: u64) -> Result<PathBuf> {
        let node = format!("part-{number}");
        let options = json!({
            "driver": "raw", "node-name": node, "file": "disk", "offset": at, "size": bytes,
            "read-only": !self.writable,
        });
        self.ask("blockdev-add", &options)?;
        self.show(&node, &number.to_string())
    }

    fn show(&mut self, node: &str, what: &str) -> Result<PathBuf> {
        let place = self.scratch.join(format!("{}-{what}", self.name));
        File::create(&place).map_err(|error| Error::io(&place, &error))?;
        let options = json!({
            "type": "fuse", "id": format!("show-{node}"), "node-name": node,
            "mountpoint": in_words(&place)?, "writable": self.writable, "growable": false,
        });
        self.ask("block-export-add", &options)?;
        Ok(place)
    }

    /// Closes the image, with all that was written to it.
    pub fn close(mut self) -> Result<()> {
        self.ask("quit", &json!({}))?;
        let ended = self.child.wait();
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Error::failed(format!("qemu-storage-daemon: {status}"))),
            Err(error) => Err(Error::failed(format!(
                "qemu-storage-daemon: {}",
                cause(&error)
            ))),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A server that ends by itself takes its mounts away. After `close` there is none.
        if self.ask("quit", &json!({})).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// What the disk in this file is divided into.
pub fn parts(whole: &Path, image: &Image) -> Result<Vec<Part>> {
    let bytes = std::fs::metadata(whole)
        .map_err(|error| Error::io(whole, &error))?
        .len();
    let found = probe(whole, None)?;
    if found.table.is_none() {
        return Ok(vec![Part {
            number: 0,
            at_bytes: 0,
            bytes,
            partition_uuid: None,
            found,
        }]);
    }
    let output = run("fdisk", Command::new("sfdisk").arg("-J").arg(whole))?;
    table(&output.stdout, bytes)
        .map_err(|why| {
            let shown = image.path.display();
            Error::new(
                Kind::Failed,
                format!("image {shown}: partition table: {why}"),
            )
        })?
        .into_iter()
        .map(|part| {
            let found = probe(whole, Some((part.at_bytes, part.bytes)))?;
            Ok(Part { found, ..part })
        })
        .collect()
}

/// The rows of a table, each within the disk.
fn table(text: &[u8], disk_bytes: u64) -> std::result::Result<Vec<Part>, String> {
    let table: Table = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let TableBody {
        sectorsize,
        partitions,
    } = table.partitiontable;
    if partitions.len() > PARTITIONS_MAX {
        return Err(format!(
            "has {} rows, at most {PARTITIONS_MAX}",
            partitions.len()
        ));
    }
    let rows = partitions.into_iter().map(|row| {
        let digits = row
            .node
            .trim_end_matches(|it: char| it.is_ascii_digit())
            .len();
        let number = row.node[digits..].parse::<u32>();
        let number = number.map_err(|_| format!("{:?} has no number", row.node))?;
        let at = row.start.checked_mul(sectorsize);
        let size = row.size.checked_mul(sectorsize);
        let within = at.zip(size).filter(|(at, size)| {
            let end = at.checked_add(*size);
            *size > 0 && end.is_some_and(|end| end <= disk_bytes)
        });
        let (at_bytes, bytes) =
            within.ok_or_else(|| format!("partition {number} ends behind the disk"))?;
        Ok(Part {
            number,
            at_bytes,
            bytes,
            partition_uuid: row.uuid.map(|it| it.to_lowercase()),
            found: Found::default(),
        })
    });
    rows.collect()
}

/// What `blkid` finds in a file, or in some bytes of it.
pub fn probe(file: &Path, within: Option<(u64, u64)>) -> Result<Found> {
    let mut command = Command::new("blkid");
    command.args(["-p", "-o", "export"]);
    if let Some((at, bytes)) = within {
        command.args(["-O", &at.to_string(), "-S", &bytes.to_string()]);
    }
    let program = || "blkid".to_owned();
    let output = match command.arg(file).output() {
        Ok(output) => output,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::Missing {
                program: program(),
                package: "util-linux",
            }
            .into());
        }
        Err(source) => {
            return Err(Failure::Io {
                program: program(),
                source,
            }
            .into());
        }
    };
    // Code 2 says that nothing is known there, code 8 that several are.
    if output.status.code() == Some(8) {
        let shown = file.display();
        return Err(Error::refused(format!(
            "{shown}: has marks of several file systems; remove the wrong one with `wipefs`"
        )));
    }
    Ok(read_found(&String::from_utf8_lossy(&output.stdout)))
}

fn read_found(text: &str) -> Found {
    let mut found = Found::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let value = Some(value.to_owned());
        match key {
            "TYPE" => found.kind = value,
            "USAGE" => found.usage = value,
            "UUID" => found.uuid = value,
            "LABEL" => found.label = value,
            "PTTYPE" => found.table = value,
            _ => {}
        }
    }
    // A file system may look like a table as well; it is the file system that was made last.
    if found.usage.is_some() {
        found.table = None;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(start: u64, size: u64) -> String {
        format!(
            "{{\"partitiontable\":{{\"label\":\"gpt\",\"sectorsize\":512,\"partitions\":[\
             {{\"node\":\"/a b1\",\"start\":{start},\"size\":{size},\"uuid\":\"AB\"}}]}}}}"
        )
    }

    /// Fails when: bytes behind the end of a disk are taken for a partition.
    #[test]
    fn partitions_are_within_their_disk() {
        let parts = table(row(2048, 2048).as_bytes(), 4 * MIB).unwrap();
        assert_eq!((parts[0].number, parts[0].at_bytes), (1, MIB));
        assert_eq!(parts[0].partition_uuid.as_deref(), Some("ab"));
        for (start, size) in [(2048, 8192), (u64::MAX, 1), (u64::MAX / 512, 1), (2048, 0)] {
            let why = table(row(start, size).as_bytes(), 4 * MIB).unwrap_err();
            assert_eq!(why, "partition 1 ends behind the disk");
        }
        assert!(table(b"{}", MIB).is_err());
        assert!(table(&row(1, 1).as_bytes()[..60], MIB).is_err());
    }

    #[test]
    fn what_blkid_says_is_read_and_a_file_system_goes_before_a_table() {
        let found = read_found("DEVNAME=a\nTYPE=ext4\nUSAGE=filesystem\nPTTYPE=dos\nUUID=x=y\n");
        assert_eq!(found.kind.as_deref(), Some("ext4"));
        assert_eq!(found.uuid.as_deref(), Some("x=y"));
        assert_eq!(found.table, None);
        assert_eq!(read_found("PTTYPE=gpt\n").table.as_deref(), Some("gpt"));
    }
}
