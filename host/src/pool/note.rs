//! The note that the guest of a member has not ended.
//!
//! Always true: the note is there before the first client of a member is answered, and goes when
//! the last one has said goodbye, so a guest whose connection broke, also with the daemon, is known
//! as one that may come back. It is of one boot of the host: no guest outlives that, so it need not
//! be synced. Deliberately absent: who is a client; see [`crate::shard`].

use crate::error::cause;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One for each member; clones of it are the same note.
#[derive(Clone, Debug)]
pub struct Note {
    path: PathBuf,
    /// The present boot of the host.
    boot: String,
    /// Whether the file is there. Nothing else writes it, so it is read once; held while it is
    /// written.
    there: Arc<Mutex<bool>>,
}

impl Note {
    /// As a daemon before this one has left it.
    pub fn find(path: PathBuf, boot: &str) -> Note {
        let there = match fs::read_to_string(&path) {
            Ok(text) => text == boot,
            Err(error) => error.kind() != ErrorKind::NotFound,
        };
        Note {
            path,
            boot: boot.to_owned(),
            there: Arc::new(Mutex::new(there)),
        }
    }

    fn there(&self) -> MutexGuard<'_, bool> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) {
        let mut there = self.there();
        *there = true;
        if let Err(error) = fs::write(&self.path, &self.boot) {
            let note = self.path.display();
            let cause = cause(&error);
            tracing::error!("{note}: {cause}; that a guest has not ended is not kept");
        }
    }

    /// The guest has ended, or is not waited for.
    pub fn remove(&self) {
        let mut there = self.there();
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let note = self.path.display();
                let cause = cause(&error);
                tracing::error!(
                    "{note}: {cause}; its guest is still taken for one that may come back"
                );
            }
            _ => *there = false,
        }
    }

    /// Whether the guest runs, or may come back.
    pub fn is_there(&self) -> bool {
        *self.there()
    }
}
