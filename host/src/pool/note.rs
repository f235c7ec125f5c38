//! The note that the guest of a member has not ended.
//!
//! Always true: the note is there before the first client of a member is answered, and goes when
//! the last one has said goodbye, so a guest whose connection broke, also with the daemon, is known
//! as one that may come back. It is of one boot of the host: no guest outlives that, so it need not
//! be synced. Deliberately absent: who is a client; see [`crate::shard`].

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub path: PathBuf,
    /// The present boot of the host.
    pub boot: String,
}

impl Note {
    pub fn write(&self) {
        if let Err(error) = fs::write(&self.path, &self.boot) {
            let note = self.path.display();
            tracing::error!("{note}: {error}; that a guest has not ended is not kept");
        }
    }

    /// The guest has ended, or is not waited for.
    pub fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != ErrorKind::NotFound
        {
            let note = self.path.display();
            tracing::error!("{note}: {error}; its guest is still taken for one that may come back");
        }
    }

    /// Whether the guest runs, or may come back.
    pub fn is_there(&self) -> bool {
        match fs::read_to_string(&self.path) {
            Ok(text) => text == self.boot,
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
    }
}
