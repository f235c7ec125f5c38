//! What a host remembers of its units over a restart: the last record that it knows to be decided,
//! or one that it may have linked.
//!
//! Always true: a file is replaced as a whole, and is durable when `write` returns. Deliberately
//! absent: what follows from it.

use engine::types::Uuid;
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
}

impl Memory {
    pub fn open(state_dir: &Path) -> io::Result<Memory> {
        let place = state_dir.join("units");
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&place)?;
        crate::cachedev::sync_directory(&place)?;
        Ok(Memory { place })
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
        loop {
            match self.put(unit, &bytes) {
                Ok(()) => return true,
                Err(error) => {
                    let path = self.path(unit);
                    tracing::error!("{}: cannot be written: {error}", path.display());
                }
            }
            if ends() {
                return false;
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn put(&self, unit: Uuid, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(unit);
        let fresh = path.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        crate::cachedev::sync_directory(&path)
    }
}
