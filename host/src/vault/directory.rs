//! The records of one unit in a directory that the hosts of a cluster share.
//!
//! Owns the calls of the file system that [`node::vault`] asks for. Always true: a file is synced
//! before it is linked, and the directory before a record counts; a name is opened anew for each
//! read. Deliberately absent: what an answer means.

use super::{OWN_BYTES_MAX, Own, Store};
use crate::error::cause;
use engine::types::Uuid;
use node::record::RECORD_BYTES;
use node::vault::{Answer, Call, hex};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// The directory of one unit.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    pub fn new(path: PathBuf) -> Directory {
        Directory { path }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path.join(name);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        let file = File::open(self.path.join(name))?;
        file.take(OWN_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| {
            let name = entry?.file_name();
            Ok(name.to_string_lossy().into_owned())
        });
        names.collect()
    }
}

impl Store for Directory {
    fn shown(&self) -> String {
        self.path.display().to_string()
    }

    fn make(&self) -> Result<(), String> {
        if self.path.is_dir() {
            return Ok(());
        }
        let place = self.path.parent().filter(|place| !place.is_dir());
        if let Some(place) = place {
            let place = place.display();
            return Err(format!(
                "vault {place}: is no directory; mount its storage, or make it"
            ));
        }
        let make = || {
            let mut builder = fs::DirBuilder::new();
            builder.mode(0o700).create(&self.path)?;
            crate::cachedev::sync_directory(&self.path)
        };
        make().map_err(|error| format!("{}: cannot make it: {}", self.shown(), cause(&error)))
    }

    fn find(&self) -> Result<(), String> {
        let shown = self.shown();
        match fs::metadata(&self.path) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(_) => Err(format!("{shown}: is no directory")),
            Err(error) => Err(format!(
                "{shown}: cannot read the records of the volume there: {}; mount the storage of \
                 the vault",
                cause(&error)
            )),
        }
    }

    fn call(&self, call: &Call, _: Option<&Own>) -> Result<Answer, String> {
        let answered = match call {
            Call::Write { name, bytes } => self.write(name, bytes).map(|()| Answer::Done),
            Call::Link { from, to } => {
                fs::hard_link(self.path.join(from), self.path.join(to)).map(|()| Answer::Done)
            }
            Call::Sync => File::open(&self.path)
                .and_then(|place| place.sync_all())
                .map(|()| Answer::Done),
            Call::Read { name } => self.read(name).map(Answer::Bytes),
            Call::List => self.list().map(Answer::Names),
            Call::Remove { name } => fs::remove_file(self.path.join(name)).map(|()| Answer::Done),
        };
        match answered {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Answer::Absent),
            answered => answered.map_err(|error| cause(&error)),
        }
    }
    fn say(&self, host: Uuid, bytes: &[u8]) -> Result<(), String> {
        let (said, fresh) = (said_name(host), format!("{}.new", said_name(host)));
        let put = || {
            self.write(&fresh, bytes)?;
            fs::rename(self.path.join(&fresh), self.path.join(&said))
        };
        put().map_err(|error| format!("{}: {}", self.shown(), cause(&error)))
    }

    fn said(&self) -> Result<Vec<Vec<u8>>, String> {
        let names = self.list().map_err(|error| cause(&error))?;
        let names = names.iter().filter(|name| is_said(name));
        // One that is being replaced is read the next time.
        Ok(names.filter_map(|name| self.read(name).ok()).collect())
    }
}

fn said_name(host: Uuid) -> String {
    format!("h.{}", hex(host))
}

fn is_said(name: &str) -> bool {
    name.strip_prefix("h.").is_some_and(|it| !it.contains('.'))
}
