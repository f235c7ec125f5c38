//! The back-end channel of a front end: what a device says without being asked.
//!
//! Owns the socket that a front end gives for it, and its one message, that the configuration space
//! has changed. Always true: nothing here waits for a front end; a socket that does not take a
//! message at once is closed, and that is noted; no message asks for an answer, so nothing is read.
//! Deliberately absent: what has changed (`capacity`).

use crate::sys;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use vhost::vhost_user::message::BackendReq;

const VERSION: u32 = 1;
/// Its header; there is nothing behind it.
const MESSAGE_BYTES: usize = 12;

/// Why what came with a message is no channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoChannel {
    #[error("a channel with {0} descriptors; one is right")]
    Descriptors(usize),
    #[error("a channel that is no stream socket of this host")]
    Kind,
    #[error("a channel, which was not agreed on")]
    NotAgreed,
}

/// The channel of one front end.
#[derive(Debug)]
pub(super) struct Channel {
    device: String,
    /// A lock and no message: the thread that serves the front end may wait for the end of its
    /// rings, and who tells of a change must not.
    socket: Mutex<Option<UnixStream>>,
}

impl Channel {
    pub fn new(device: &str) -> Channel {
        Channel {
            device: device.to_owned(),
            socket: Mutex::default(),
        }
    }

    /// In the place of one from before.
    pub fn open(&self, by: UnixStream) {
        *self.socket.lock().expect("no panic with this lock") = Some(by);
    }

    /// Says that the configuration has changed. False where the front end does not hear of it.
    pub fn tell(&self) -> bool {
        let mut socket = self.socket.lock().expect("no panic with this lock");
        let Some(to) = socket.as_ref() else {
            return false;
        };
        let sent = sys::send_now(to, &message());
        if let Err(error) = &sent {
            let name = &self.device;
            tracing::warn!(
                volume = %name,
                "volume {name}: its front end is not told that the disk has grown: {error}; it \
                 sees that when it connects again"
            );
            *socket = None;
        }
        sent.is_ok()
    }
}

fn message() -> [u8; MESSAGE_BYTES] {
    let words = [u32::from(BackendReq::CONFIG_CHANGE_MSG), VERSION, 0];
    let mut bytes = [0; MESSAGE_BYTES];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// The socket that came with a message.
pub(super) fn socket(files: Vec<File>) -> Result<UnixStream, NoChannel> {
    let count = files.len();
    let file: Result<[File; 1], _> = files.try_into();
    let [file] = file.map_err(|_| NoChannel::Descriptors(count))?;
    match sys::is_unix_stream(&file) {
        true => Ok(UnixStream::from(OwnedFd::from(file))),
        false => Err(NoChannel::Kind),
    }
}
