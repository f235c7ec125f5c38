//! What a host remembers of its units over a restart: the last record that it knows to be decided,
//! or one that it may have linked; and what lasts of the copies that it keeps.
//!
//! Always true: a file is replaced as a whole, and is durable when `write` returns. Deliberately
//! absent: what follows from it.

use engine::types::Uuid;
use node::copy::Durable;
use node::record::{RECORD_BYTES, Record};
use node::vault::hex;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const AGAIN: Duration = Duration::from_secs(1);
const UNDECIDED: u8 = 1;

#[derive(Clone, Debug)]
pub(super) struct Memory {
    place: PathBuf,
    copies: PathBuf,
}

impl Memory {
    pub fn open(state_dir: &Path) -> io::Result<Memory> {
        let make = |name: &str| {
            let place = state_dir.join(name);
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(&place)?;
            crate::cachedev::sync_directory(&place)?;
            Ok::<PathBuf, io::Error>(place)
        };
        Ok(Memory {
            place: make("units")?,
            copies: make("copies")?,
        })
    }

    fn path(&self, unit: Uuid) -> PathBuf {
        self.place.join(hex(unit))
    }

    pub fn read(&self, unit: Uuid) -> Result<Option<(Record, bool)>, String> {
        let path = self.path(unit);
        let wrong = |why: &dyn Display| format!("{}: {why}", path.display());
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| wrong(&error))?,
        };
        let parts = bytes.split_at_checked(RECORD_BYTES);
        let (record, rest) = parts.ok_or_else(|| wrong(&"is too short"))?;
        let record = Record::parse(record).map_err(|error| wrong(&error))?;
        Ok(Some((record, rest == [UNDECIDED])))
    }

    /// False if it was given up. One that is undecided must be durable, so it is tried until it is.
    pub fn write(
        &self,
        unit: Uuid,
        record: &Record,
        undecided: bool,
        ends: &dyn Fn() -> bool,
    ) -> bool {
        let mut bytes = record.encode();
        bytes.push(if undecided { UNDECIDED } else { 0 });
        let path = self.path(unit);
        until_done(ends, || {
            let written = put(&path, &bytes);
            written.map_err(|error| format!("{}: cannot be written: {error}", path.display()))
        })
    }
}

/// Tries until it is done; false if it was given up.
pub(super) fn until_done(
    ends: &dyn Fn() -> bool,
    mut try_it: impl FnMut() -> Result<(), String>,
) -> bool {
    loop {
        match try_it() {
            Ok(()) => return true,
            Err(why) => tracing::error!("{why}"),
        }
        if ends() {
            return false;
        }
        std::thread::sleep(AGAIN);
    }
}

impl Memory {
    fn copy_path(&self, copy: Uuid) -> PathBuf {
        self.copies.join(hex(copy))
    }

    /// Copies of this host. A file that cannot be read is left where it is.
    pub fn copies(&self) -> Vec<Durable> {
        let files = fs::read_dir(&self.copies).into_iter().flatten().flatten();
        let mut found = Vec::new();
        for path in files.map(|file| file.path()) {
            if path.extension().is_some() {
                continue;
            }
            match fs::read(&path).ok().as_deref().and_then(Durable::parse) {
                Some(durable) => found.push(durable),
                None => tracing::error!("{}: is damaged; its copy is not used", path.display()),
            }
        }
        found
    }

    pub fn write_copy(&self, durable: &Durable) -> Result<(), String> {
        let path = self.copy_path(durable.member.copy);
        put(&path, &durable.encode())
            .map_err(|error| format!("{}: cannot be written: {error}", path.display()))
    }

    pub fn remove_copy(&self, copy: Uuid) {
        let path = self.copy_path(copy);
        let removed = fs::remove_file(&path).and_then(|()| crate::cachedev::sync_directory(&path));
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: cannot be removed: {error}", path.display());
        }
    }
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    crate::cachedev::sync_directory(path)
}
