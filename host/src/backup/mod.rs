//! Backups: the image of a volume as it is while it rests, and what has changed between two rests.
//!
//! ```text
//! daemon ── chain (files of checkpoints) ── live (bitmap of what changes now) ── shard marks
//!    └───── window ── backup (one volume in it) ── serve (one client) ── source (its bytes)
//! ```
//!
//! Owns the time in which backups can be read ([`Window`]), one for all members of a group, and who
//! reads. Always true: a window that is cut is open never again; it is cut before anything is
//! written to an image in it, and what a client read is sent only if the window was open
//! afterwards, so a client never gets a byte that was written after the cut of its rest; a resume
//! that is not forced ends no window that a client reads. Deliberately absent: how an image comes
//! to rest (the engine), and when a checkpoint begins and ends (`daemon::backup`).

pub mod bitmap;
pub mod chain;
pub mod file;
pub mod live;
pub mod serve;
pub mod source;

use crate::frontend::nbd::{self, BACKUP_SUFFIX};
use crate::peer::Peer;
use bitmap::Bitmap;
use source::Source;
use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Clients of one window. Each has a thread.
pub const CLIENTS_MAX: usize = 64;
/// How long a client is waited for that is just going.
const GOING_WAIT: Duration = Duration::from_secs(1);

/// The time in which the images of a volume and its group rest.
#[derive(Debug, Default)]
pub struct Window {
    cut: AtomicBool,
    /// A lock, because clients come on the shard, go on their own threads, and are cut off by an
    /// administrator; it is held for moments.
    clients: Mutex<Clients>,
    /// One of them has left.
    left: Condvar,
    /// A client that can take its data in one piece only has it alone, so that memory is bounded.
    pub(self) large: Mutex<()>,
}

#[derive(Debug, Default)]
struct Clients {
    sockets: BTreeMap<u64, (String, Peer, UnixStream)>,
    next: u64,
}

impl Window {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().expect("no holder of this lock panics")
    }

    /// Asked after bytes were read and before they are sent.
    pub fn is_open(&self) -> bool {
        !self.cut.load(Ordering::SeqCst)
    }

    /// Ends it now. Nothing that is read from here on is sent.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for (_, _, socket) in self.clients().sockets.values() {
            // One that is not connected any more needs no end.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends it unless clients read; who does, and which volumes.
    pub fn cut_if_unread(&self) -> Result<(), Vec<String>> {
        let clients = self.clients();
        if clients.sockets.is_empty() || !self.is_open() {
            self.cut.store(true, Ordering::SeqCst);
            return Ok(());
        }
        let mut who: Vec<String> = clients
            .sockets
            .values()
            .map(|(volume, peer, _)| format!("{peer} reads {volume}{BACKUP_SUFFIX}"))
            .collect();
        who.dedup();
        Err(who)
    }

    /// Waits a moment for clients that have ended, and whose threads do not know yet.
    pub fn wait_for_ends(&self) {
        let some = |clients: &mut Clients| !clients.sockets.is_empty();
        let waited = self
            .left
            .wait_timeout_while(self.clients(), GOING_WAIT, some);
        drop(waited.expect("no holder of this lock panics"));
    }

    /// Clients that read one of the volumes.
    pub fn readers(&self, volume: &str) -> u64 {
        let clients = self.clients();
        let all = clients.sockets.values();
        all.filter(|(name, ..)| name == volume).count() as u64
    }

    /// A client comes, unless the window has ended or has too many.
    fn enter(&self, volume: &str, peer: &Peer, socket: &OwnedFd) -> io::Result<Option<u64>> {
        let socket = UnixStream::from(socket.try_clone()?);
        let mut clients = self.clients();
        if !self.is_open() || clients.sockets.len() == CLIENTS_MAX {
            return Ok(None);
        }
        let number = clients.next;
        clients.next += 1;
        let client = (volume.to_owned(), peer.clone(), socket);
        clients.sockets.insert(number, client);
        Ok(Some(number))
    }

    fn leave(&self, number: u64) {
        self.clients().sockets.remove(&number);
        self.left.notify_all();
    }
}

/// What clients find under the name of one volume in a window.
#[derive(Debug)]
pub struct Backup {
    pub volume: String,
    pub size_bytes: u64,
    pub source: Source,
    /// Changes since each checkpoint that the volume has, up to the cut.
    pub bitmaps: Vec<(String, Bitmap)>,
    pub window: Arc<Window>,
}

impl Backup {
    pub fn export(&self) -> nbd::Export {
        nbd::Export {
            name: format!("{}{BACKUP_SUFFIX}", self.volume),
            description: format!("{} as it was when it was quiesced", self.volume),
            size_bytes: self.size_bytes,
            read_only: true,
            multi_conn: true,
            trim: false,
            write_zeroes: false,
            fast_zero: false,
            block_bytes: nbd::BLOCK_MINIMUM_BYTES,
            bitmaps: self.bitmaps.iter().map(|(name, _)| name.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        UnixStream::pair().expect("two sockets").0.into()
    }

    #[test]
    fn a_window_that_is_read_is_cut_only_by_force_and_lets_no_client_in_afterwards() {
        let window = Window::default();
        let number = window.enter("a", &Peer::Hidden, &socket());
        let number = number.expect("it has a descriptor").expect("it is open");
        let who = window.cut_if_unread().expect_err("a client reads");
        assert!(who[0].ends_with("reads a@backup"), "{who:?}");
        assert!(window.is_open() && window.readers("a") == 1);
        window.leave(number);
        assert!(window.cut_if_unread().is_ok() && !window.is_open());
        let late = window.enter("a", &Peer::Hidden, &socket());
        assert!(late.expect("it has a descriptor").is_none());
    }
}
