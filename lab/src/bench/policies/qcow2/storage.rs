//! The shared storage of the comparison of formats: an NBD server that notes every request.
//!
//! Owns a thread for each connection, from its start to its end, and the notes. Always true: a
//! request is noted before it is done, so that all that a client caused is in the notes when it
//! has its answer. An image that begins as the base does is kept as what differs from it, and the
//! base is made of its addresses, so that neither takes space before it is written.
//! Deliberately absent: holes, of which a LUN and NFSv3 tell nothing either, and time.

use crate::replay::watch::Verb;
use host::error::{Error, Result, cause};
use host::nbd::{self, RequestHead, answer, command, export_flag, info, option};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A disk with sectors as storage has them.
const SECTOR_BYTES: u64 = 512;
/// One process of QEMU opens an image and its base; the one before may not be gone yet.
const CONNECTIONS_MAX: usize = 8;
/// One request never causes so many.
const NOTES_MAX: usize = 1 << 20;
const EIO: u32 = 5;
const EINVAL: u32 = 22;

/// What an export holds.
pub enum Content {
    /// The base: read-only, and a function of the address.
    Base,
    /// An image that begins as a copy of the base.
    Copy(File),
    /// Nothing but what is written.
    Plain(File),
}

pub struct Export {
    pub name: &'static str,
    pub bytes: u64,
    pub content: Content,
}

impl Export {
    /// As a client would, and without a note.
    pub fn read(&self, key: u64, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match &self.content {
            Content::Base => bytes.fill(0),
            Content::Copy(file) | Content::Plain(file) => file.read_exact_at(bytes, offset)?,
        }
        if !matches!(self.content, Content::Plain(_)) {
            veil(key, offset, bytes);
        }
        Ok(())
    }

    fn write(&self, key: u64, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match &self.content {
            Content::Base => Err(io::ErrorKind::PermissionDenied.into()),
            Content::Plain(file) => file.write_all_at(bytes, offset),
            Content::Copy(file) => {
                veil(key, offset, bytes);
                file.write_all_at(bytes, offset)
            }
        }
    }

    fn flags(&self) -> u16 {
        let flags = export_flag::HAS_FLAGS | export_flag::SEND_FLUSH;
        match self.content {
            Content::Base => flags | export_flag::READ_ONLY,
            _ => flags,
        }
    }

    fn holds(&self, head: &RequestHead) -> bool {
        let end = head.offset.checked_add(u64::from(head.length));
        head.length <= nbd::PAYLOAD_BYTES_MAX
            && head.offset.is_multiple_of(SECTOR_BYTES)
            && u64::from(head.length).is_multiple_of(SECTOR_BYTES)
            && end.is_some_and(|end| end <= self.bytes)
    }
}

/// Mixes what the key makes of the address into bytes; twice is nothing.
pub fn veil(key: u64, offset: u64, bytes: &mut [u8]) {
    assert!(offset.is_multiple_of(8) && bytes.len().is_multiple_of(8));
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let number = (offset / 8 + at as u64) ^ key.rotate_left(40);
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 29)).to_le_bytes();
        for (byte, more) in word.iter_mut().zip(mixed) {
            *byte ^= more;
        }
    }
}

/// A request as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// In the order in which the exports were given.
    pub export: usize,
    pub verb: Verb,
    pub offset: u64,
    pub bytes: u64,
}

struct Shared {
    exports: Vec<Export>,
    key: u64,
    /// Short critical sections: the thread of a connection adds one note, the player takes all.
    notes: Mutex<Vec<Note>>,
    trouble: Mutex<Option<String>>,
    stopping: AtomicBool,
    open: Mutex<Vec<(UnixStream, JoinHandle<()>)>>,
}

pub struct Storage {
    shared: Arc<Shared>,
    socket: PathBuf,
    acceptor: Option<JoinHandle<()>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Storage {
    pub fn start(socket: &Path, key: u64, exports: Vec<Export>) -> Result<Storage> {
        let failed = |error: io::Error| {
            let socket = socket.display();
            Error::failed(format!("counting storage: {socket}: {}", cause(&error)))
        };
        // Left by the one before; if there is none, all is well.
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).map_err(failed)?;
        let shared = Arc::new(Shared {
            exports,
            key,
            notes: Mutex::default(),
            trouble: Mutex::default(),
            stopping: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let all = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("bench-storage".into());
        let acceptor = thread
            .spawn(move || accept(&listener, &all))
            .map_err(failed)?;
        Ok(Storage {
            shared,
            socket: socket.to_owned(),
            acceptor: Some(acceptor),
        })
    }

    /// What has arrived since the last call.
    pub fn take(&self) -> Result<Vec<Note>> {
        if let Some(why) = self.trouble() {
            return Err(Error::failed(format!("counting storage: {why}")));
        }
        Ok(std::mem::take(&mut *lock(&self.shared.notes)))
    }

    /// Why a request was answered with an error.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.shared.trouble).clone()
    }

    /// Writes without a client, and without a note.
    pub fn write(&self, export: usize, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let written = self.shared.exports[export].write(self.shared.key, offset, bytes);
        written.map_err(|error| Error::failed(format!("counting storage: {}", cause(&error))))
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor; where that fails nobody can have connected either.
        let woken = UnixStream::connect(&self.socket).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            let _ = acceptor.join();
        }
        for (stream, thread) in lock(&self.shared.open).drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let mut open = lock(&shared.open);
        open.retain(|(_, thread)| !thread.is_finished());
        let Ok(kept) = stream.try_clone() else { return };
        if open.len() >= CONNECTIONS_MAX {
            *lock(&shared.trouble) = Some("too many connections".into());
            continue;
        }
        let all = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("bench-storage".into());
        // The end of a client is the end of its thread, and no failure.
        match thread.spawn(move || drop(serve(stream, &all))) {
            Ok(thread) => open.push((kept, thread)),
            Err(error) => *lock(&shared.trouble) = Some(cause(&error)),
        }
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn serve(mut stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let Some(export) = negotiate(&mut stream, shared)? else {
        return Ok(());
    };
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    loop {
        let head = RequestHead::parse(&take(&mut stream)?);
        if head.magic != nbd::REQUEST_MAGIC || head.length > nbd::PAYLOAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if head.command == command::DISC {
            return Ok(());
        }
        bytes.clear();
        if matches!(head.command, command::READ | command::WRITE) {
            bytes.resize(head.length as usize, 0);
        }
        if head.command == command::WRITE {
            stream.read_exact(&mut bytes)?;
        }
        let errno = answer(shared, export, &head, &mut bytes);
        out.clear();
        out.extend_from_slice(&nbd::simple_head(errno, head.cookie));
        if head.command == command::READ && errno == 0 {
            out.extend_from_slice(&bytes);
        }
        stream.write_all(&out)?;
    }
}

/// Notes a request and does it; an error number, or 0.
fn answer(shared: &Shared, number: usize, head: &RequestHead, bytes: &mut [u8]) -> u32 {
    let export = &shared.exports[number];
    let verb = match head.command {
        command::READ => Verb::Read,
        command::WRITE => Verb::Write,
        command::FLUSH => Verb::Flush,
        _ => return EINVAL,
    };
    let mut notes = lock(&shared.notes);
    if notes.len() >= NOTES_MAX {
        *lock(&shared.trouble) = Some("more requests than one can cause".into());
        return EIO;
    }
    notes.push(Note {
        export: number,
        verb,
        offset: head.offset,
        bytes: u64::from(head.length),
    });
    drop(notes);
    if verb != Verb::Flush && !export.holds(head) {
        return EINVAL;
    }
    let done = match verb {
        Verb::Read => export.read(shared.key, head.offset, bytes),
        Verb::Write => export.write(shared.key, head.offset, bytes),
        // Nobody pulls the plug of this storage.
        Verb::Flush => Ok(()),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            let name = export.name;
            *lock(&shared.trouble) = Some(format!("{name}: {}", cause(&error)));
            EIO
        }
    }
}

/// The export that a client asks for; none if it goes away.
fn negotiate(stream: &mut UnixStream, shared: &Shared) -> io::Result<Option<usize>> {
    stream.write_all(&nbd::GREETING)?;
    let _flags: [u8; 4] = take(stream)?;
    for _ in 0..nbd::OPTIONS_MAX {
        let head: [u8; nbd::OPTION_HEAD_BYTES] = take(stream)?;
        let mut fields = nbd::Reader::new(&head[8..]);
        let (asked, length) = (fields.u32().unwrap_or(0), fields.u32().unwrap_or(0));
        if head[..8] != nbd::OPTION_MAGIC.to_be_bytes() || length > nbd::OPTION_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; length as usize];
        stream.read_exact(&mut body)?;
        let name = nbd::Reader::new(&body).counted();
        let is_named = |export: &Export| Some(export.name.as_bytes()) == name;
        let found = shared.exports.iter().position(is_named);
        let mut out = Vec::new();
        match (asked, found) {
            (option::GO | option::INFO, Some(number)) => {
                describe(&mut out, asked, &shared.exports[number]);
            }
            (option::GO | option::INFO, None) => {
                nbd::put_option_reply(&mut out, asked, answer::ERR_UNKNOWN, &[]);
            }
            (option::ABORT, _) => nbd::put_option_reply(&mut out, asked, answer::ACK, &[]),
            _ => nbd::put_option_reply(&mut out, asked, answer::ERR_UNSUP, &[]),
        }
        stream.write_all(&out)?;
        match (asked, found) {
            (option::GO, Some(number)) => return Ok(Some(number)),
            (option::ABORT, _) => return Ok(None),
            _ => {}
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn describe(out: &mut Vec<u8>, asked: u32, export: &Export) {
    let (size, flags) = (export.bytes.to_be_bytes(), export.flags().to_be_bytes());
    let kind = info::EXPORT.to_be_bytes();
    nbd::put_option_reply(out, asked, answer::INFO, &[&kind, &size, &flags]);
    let sizes = [
        SECTOR_BYTES as u32,
        nbd::BLOCK_PREFERRED_BYTES,
        nbd::PAYLOAD_BYTES_MAX,
    ];
    let [least, preferred, most] = sizes.map(u32::to_be_bytes);
    let kind = info::BLOCK_SIZE.to_be_bytes();
    nbd::put_option_reply(
        out,
        asked,
        answer::INFO,
        &[&kind, &least, &preferred, &most],
    );
    nbd::put_option_reply(out, asked, answer::ACK, &[]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::place::Place;

    #[test]
    fn each_request_is_noted_once_and_a_copy_begins_as_the_base_does() {
        let parent = tempdir();
        let place = Place::below(&parent).expect("a place");
        let file = File::create_new(place.path("copy")).expect("a file");
        file.set_len(1 << 20).expect("a size");
        let file = File::options()
            .read(true)
            .write(true)
            .open(place.path("copy"));
        let export = |name, content| Export {
            name,
            bytes: 1 << 20,
            content,
        };
        let exports = vec![
            export("base", Content::Base),
            export("copy", Content::Copy(file.expect("it opens"))),
        ];
        let socket = place.path("storage.sock");
        let storage = Storage::start(&socket, 7, exports).expect("it starts");
        let mut base = Client::connect(&socket, "base").expect("a base");
        let mut copy = Client::connect(&socket, "copy").expect("a copy");
        let (mut one, mut other) = (vec![0; 8192], vec![0; 8192]);
        base.read(4096, &mut one).expect("it reads");
        copy.read(4096, &mut other).expect("it reads");
        assert!(one == other && one.iter().any(|byte| *byte != 0));
        copy.write(8192, &[9; 4096]).expect("it writes");
        copy.flush().expect("it flushes");
        assert!(base.write(0, &[1; 512]).is_err(), "the base is read-only");
        let notes = storage.shared.notes.lock().expect("notes").clone();
        let verbs: Vec<_> = notes.iter().map(|note| (note.export, note.verb)).collect();
        let expected = [
            (0, Verb::Read),
            (1, Verb::Read),
            (1, Verb::Write),
            (1, Verb::Flush),
            (0, Verb::Write),
        ];
        assert_eq!(verbs, expected);
        assert!(storage.take().is_err(), "the refusal is told of");
        copy.read(4096, &mut other).expect("it reads");
        assert_eq!(
            (&other[..4096], &other[4096..]),
            (&one[..4096], &[9; 4096][..])
        );
        drop((base, copy));
        drop(storage);
        assert!(!socket.exists());
        drop(place);
        std::fs::remove_dir_all(parent).expect("it is empty");
    }

    fn tempdir() -> PathBuf {
        let name = format!("tenuto-storage-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        path
    }
}
