//! New volumes and the page file in the registry of a Windows.
//!
//! Owns the values: `MountedDevices` has for each new volume `\??\Volume{GUID}`, and for the page
//! file's volume `\DosDevices\T:`, both with `DMIO:ID:` and the GUID of the partition, so that
//! Windows need not guess either; `PagingFiles` of each control set names that letter.
//!
//! Always true: the hive is taken from the untouched original each time, so a hive that was half
//! written when this was killed is written again, and twice gives the same bytes; it is written in
//! place, so it keeps its access rights; a dirty one is refused.
//!
//! Deliberately absent: a writer of hives (hivexregedit is one), the logs, which Windows does not
//! look at where the hive is clean.

use super::error::{Error, Refused, io};
use super::hive::{Unfit, is_pending, sequence};
use super::mount::{Access, bound, mounted};
use super::tree::{PAGE_FILE, find, shown, sync};
use crate::programs::run;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use uuid::Uuid;

pub(super) const HIVE: [&str; 4] = ["WINDOWS", "SYSTEM32", "CONFIG", "SYSTEM"];
const PACKAGE: &str = "libwin-hivex-perl";
const PREFIX: &str = "HKEY_LOCAL_MACHINE\\SYSTEM";
const MEMORY: &str = "Control\\Session Manager\\Memory Management";
/// Of the registry's types.
const BINARY: u32 = 3;
const MULTI_TEXT: u32 = 7;
/// The base block of a log and the head of its first entry.
const LOG_BYTES: u64 = 1024;

/// Where the page file goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFile {
    /// Of the partition that it goes to.
    pub guid: Uuid,
    /// From D to Z.
    pub letter: char,
    /// None: Windows chooses its size.
    pub mebibytes: Option<u64>,
}

/// Whether the registry of a Windows can take them. Nothing is written.
pub fn look_registry(partition: &Path, page_file: Option<&PageFile>) -> Result<(), Error> {
    mounted(&[(partition, Access::Read)], |places| {
        let hive = Hive::new(partition, &places[0])?;
        hive.script(&[], page_file).map(|_| ())
    })
}

/// Writes into the system's registry that of the original with the new volumes, and removes the
/// page file that is not used any more.
pub fn register(
    system: &Path,
    original: &Path,
    volumes: &[Uuid],
    page_file: Option<&PageFile>,
) -> Result<(), Error> {
    let mounts = [(original, Access::Read), (system, Access::Write)];
    mounted(&mounts, |places| {
        let hive = Hive::new(original, &places[0])?;
        let merged = hive.merged(&hive.script(volumes, page_file)?)?;
        let Some(place) = find(&places[1], &HIVE)? else {
            return Err(no_hive(system));
        };
        write_in_place(&place, &merged)?;
        if page_file.is_some()
            && let Some(old) = find(&places[1], &[PAGE_FILE])?
        {
            fs::remove_file(&old).map_err(io(&old, "it can not be removed"))?;
        }
        Ok(())
    })?;
    sync(system)
}

fn no_hive(partition: &Path) -> Error {
    let path = "\\Windows\\System32\\config\\SYSTEM".to_owned();
    let partition = partition.to_owned();
    Refused::NoHive { partition, path }.into()
}

fn write_in_place(place: &Path, content: &[u8]) -> Result<(), Error> {
    let old = fs::read(place).map_err(io(place, "it can not be read"))?;
    if old == content {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).open(place);
    let mut file = file.map_err(io(place, "it can not be opened"))?;
    let written = file.write_all(content);
    let written = written.and_then(|()| file.set_len(content.len() as u64));
    let written = written.and_then(|()| file.sync_all());
    written.map_err(io(place, "it can not be written"))
}

/// A copy of a hive, outside of its volume, because hivexregedit writes in place.
struct Hive {
    /// As Windows would write its path.
    shown: String,
    directory: tempfile::TempDir,
    sequence: u32,
}

impl Hive {
    /// Of a volume that is mounted.
    fn new(partition: &Path, root: &Path) -> Result<Hive, Error> {
        let Some(place) = find(root, &HIVE)? else {
            return Err(no_hive(partition));
        };
        let content = fs::read(&place).map_err(io(&place, "it can not be read"))?;
        let shown = shown(root, &place);
        let sequence = sequence(&content).map_err(|it| unfit(&shown, it))?;
        for log in ["SYSTEM.LOG1", "SYSTEM.LOG2"] {
            let mut names = HIVE;
            names[3] = log;
            if let Some(log) = find(root, &names)?
                && is_pending(&head(&log)?, sequence)
            {
                let name = log.file_name().unwrap_or_default().to_string_lossy();
                let why = format!("{name} holds changes that are not in it");
                return Err(unfit(&shown, Unfit::Dirty(why)));
            }
        }
        let directory = tempfile::tempdir();
        let directory = directory.map_err(io(&std::env::temp_dir(), "no directory can be made"))?;
        let hive = Hive {
            shown,
            directory,
            sequence,
        };
        hive.write("SYSTEM", &content)?;
        Ok(hive)
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, Error> {
        let path = self.directory.path().join(name);
        fs::write(&path, content).map_err(io(&path, "it can not be written"))?;
        Ok(path)
    }

    fn export(&self, hive: &Path, key: &str, depth: u32) -> Result<String, Error> {
        let mut command = bound("hivexregedit");
        command.args(["--export", "--max-depth", &depth.to_string()]);
        let output = run(PACKAGE, command.arg(hive).arg(key))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn not_understood(&self, what: &str) -> Error {
        Error::NotUnderstood {
            program: "hivexregedit",
            object: PathBuf::from(&self.shown),
            what: what.to_owned(),
        }
    }

    /// The values that are to be in it, key by key.
    fn script(&self, volumes: &[Uuid], page_file: Option<&PageFile>) -> Result<Vec<Key>, Error> {
        let hive = self.directory.path().join("SYSTEM");
        let all = self.export(&hive, "\\", 2)?;
        let mut devices = Key::new("MountedDevices");
        for guid in volumes {
            devices.add(&format!("\\??\\Volume{{{guid}}}"), BINARY, &device(*guid));
        }
        let mut keys = Vec::new();
        if let Some(page_file) = page_file {
            let letter = page_file.letter.to_ascii_uppercase();
            if !('D'..='Z').contains(&letter) {
                return Err(Refused::NoLetter(page_file.letter).into());
            }
            let name = format!("\\DosDevices\\{letter}:");
            devices.add(&name, BINARY, &device(page_file.guid));
            let taken = all.lines().find(|it| {
                let name = quoted(&name).to_lowercase();
                it.to_lowercase().starts_with(&format!("{name}="))
            });
            if taken.is_some_and(|it| devices.values.last().is_none_or(|line| line != it)) {
                return Err(Refused::LetterTaken { letter }.into());
            }
            let sets = all.lines().filter_map(control_set);
            keys.extend(sets.map(|set| paging(set, letter, page_file.mebibytes)));
            if keys.is_empty() {
                return Err(self.not_understood("no `ControlSet001`"));
            }
        }
        keys.push(devices);
        Ok(keys)
    }

    /// The hive with these values, read back.
    fn merged(&self, keys: &[Key]) -> Result<Vec<u8>, Error> {
        let mut text = "Windows Registry Editor Version 5.00\n".to_owned();
        for key in keys {
            write!(
                text,
                "\n[{PREFIX}\\{}]\n{}\n",
                key.path,
                key.values.join("\n")
            )
            .expect("a string has room");
        }
        let script = self.write("new.reg", text.as_bytes())?;
        let place = self.directory.path().join("merged");
        let hive = self.directory.path().join("SYSTEM");
        fs::copy(&hive, &place).map_err(io(&place, "it can not be written"))?;
        let mut command = bound("hivexregedit");
        command.args(["--merge", "--prefix", PREFIX]);
        run(PACKAGE, command.arg(&place).arg(script))?;
        for key in keys {
            let found = self.export(&place, &format!("\\{}", key.path), 1)?;
            let is_there = |value: &String| found.lines().any(|it| it == value);
            if !key.values.iter().all(is_there) {
                return Err(self.not_understood(&format!("{} has not what was merged", key.path)));
            }
        }
        let content = fs::read(&place).map_err(io(&place, "it can not be read"))?;
        let sequence = sequence(&content).map_err(|it| unfit(&self.shown, it))?;
        if sequence == self.sequence {
            return Err(self.not_understood("its sequence number did not grow"));
        }
        Ok(content)
    }
}

/// Values of a key, as lines of `regedit`.
struct Key {
    path: String,
    values: Vec<String>,
}

impl Key {
    fn new(path: &str) -> Key {
        Key {
            path: path.to_owned(),
            values: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, kind: u32, data: &[u8]) {
        let data: Vec<String> = data.iter().map(|it| format!("{it:02x}")).collect();
        let line = format!("{}=hex({kind}):{}", quoted(name), data.join(","));
        self.values.push(line);
    }
}

fn paging(set: &str, letter: char, mebibytes: Option<u64>) -> Key {
    let mebibytes = mebibytes.unwrap_or(0);
    let text = format!("{letter}:\\pagefile.sys {mebibytes} {mebibytes}\0\0");
    let data: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut key = Key::new(&format!("{set}\\{MEMORY}"));
    key.add("PagingFiles", MULTI_TEXT, &data);
    key
}

/// How `MountedDevices` names a partition of a GPT.
fn device(guid: Uuid) -> Vec<u8> {
    [&b"DMIO:ID:"[..], &guid.to_bytes_le()].concat()
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\"))
}

/// Of `[\ControlSet001]`.
fn control_set(line: &str) -> Option<&str> {
    let name = line.strip_prefix("[\\")?.strip_suffix(']')?;
    let (set, number) = name.split_at_checked("ControlSet".len())?;
    let is_set = set.eq_ignore_ascii_case("ControlSet") && number.len() == 3;
    (is_set && number.bytes().all(|it| it.is_ascii_digit())).then_some(name)
}

fn head(path: &Path) -> Result<Vec<u8>, Error> {
    let file = fs::File::open(path).map_err(io(path, "it can not be opened"))?;
    let mut head = Vec::new();
    let read = file.take(LOG_BYTES).read_to_end(&mut head);
    read.map_err(io(path, "it can not be read"))?;
    Ok(head)
}

fn unfit(path: &str, unfit: Unfit) -> Error {
    let path = path.to_owned();
    match unfit {
        Unfit::NotHive(why) => Refused::NotHive { path, why }.into(),
        Unfit::Dirty(why) => Refused::DirtyHive { path, why }.into(),
    }
}
