//! One client of a backup, on a thread of its own.
//!
//! Owns its connection from the moment in which it has chosen its export. Always true: what was
//! read is sent only if the window was open after the read; requests are answered one after
//! another, so a client that wants more at a time opens more connections, as the protocol offers;
//! all it can do is read. Deliberately absent: the negotiation, which the shard has led.

use super::source::Reader;
use super::{Backup, Window};
use crate::frontend::nbd::{Chunk, Command, Context, Error, Export, Extent, Request};
use crate::frontend::nbd::{Session, Step};
use crate::peer::Peer;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

/// What is read at once for a client that takes it in parts.
const PIECE_BYTES: u32 = 2 << 20;
const INPUT_BYTES: usize = 16 << 10;
/// Its export is chosen.
const NO_EXPORTS: Vec<Export> = Vec::new();

/// A client that has chosen its export.
pub struct Chosen {
    pub socket: OwnedFd,
    pub peer: Peer,
    pub session: Session,
    /// What came behind its choice.
    pub input: Vec<u8>,
    /// Tells it that it has its export.
    pub reply: Vec<u8>,
}

struct Client {
    stream: UnixStream,
    session: Session,
    backup: Arc<Backup>,
    reader: Reader,
    contexts: Vec<Context>,
}

/// The connection ends.
struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Over {
        Over
    }
}

/// Serves a client until it goes, or until the window ends. One that is not let in finds its
/// connection closed.
pub fn start(backup: Arc<Backup>, chosen: Chosen) -> io::Result<()> {
    let Some(number) = backup
        .window
        .enter(&backup.volume, &chosen.peer, &chosen.socket)?
    else {
        return Ok(());
    };
    let window = backup.window.clone();
    let thread = thread::Builder::new().name("tenuto-backup".into());
    let started = thread.spawn(move || {
        let window = backup.window.clone();
        serve(backup, chosen);
        window.leave(number);
    });
    if started.is_err() {
        window.leave(number);
    }
    started.map(|_| ())
}

fn serve(backup: Arc<Backup>, chosen: Chosen) {
    let Chosen {
        socket,
        session,
        input,
        reply,
        ..
    } = chosen;
    let reader = match backup.source.open() {
        Ok(reader) => reader,
        Err(why) => return tracing::warn!("volume {}: backup: {why}", backup.volume),
    };
    let mut client = Client {
        stream: UnixStream::from(socket),
        contexts: session.contexts().to_vec(),
        session,
        backup,
        reader,
    };
    // It ends with its connection, whatever the reason.
    let _ = client.run(input, &reply);
}

impl Client {
    fn run(&mut self, mut held: Vec<u8>, reply: &[u8]) -> Result<(), Over> {
        self.stream.set_nonblocking(false)?;
        self.stream.write_all(reply)?;
        let mut input = vec![0; INPUT_BYTES];
        loop {
            let (used, step) = self.session.receive(&NO_EXPORTS, &held);
            held.drain(..used);
            match step {
                Some(Step::Send(bytes)) => self.stream.write_all(&bytes)?,
                Some(Step::Request(request)) => self.answer(request)?,
                Some(Step::Close { farewell, .. }) => {
                    return Ok(self.stream.write_all(&farewell)?);
                }
                Some(Step::Attach { .. } | Step::StartTls { .. } | Step::Await { .. }) => {
                    unreachable!("its negotiation is over")
                }
                None if used == 0 || held.is_empty() => match self.stream.read(&mut input)? {
                    0 => return Ok(()),
                    count => held.extend_from_slice(&input[..count]),
                },
                None => {}
            }
        }
    }

    fn answer(&mut self, request: Request) -> Result<(), Over> {
        match request.command {
            Command::Read { offset, length } => self.read(request, offset, length),
            Command::BlockStatus { offset, length } => self.status(request, offset, length),
            Command::Flush | Command::Cache { .. } => {
                let reply = self.session.reply(request.ticket, Ok(()));
                Ok(self.stream.write_all(reply.as_bytes())?)
            }
            Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. } => {
                unreachable!("the export is read-only")
            }
        }
    }

    fn read(&mut self, request: Request, offset: u64, length: u32) -> Result<(), Over> {
        let ticket = request.ticket;
        let whole = !self.session.takes_chunks(ticket);
        let backup = self.backup.clone();
        let alone = whole && length > PIECE_BYTES;
        let _large = alone.then(|| backup.window.large());
        let piece = if whole { length } else { PIECE_BYTES };
        let mut data = vec![0; piece.min(length) as usize];
        let (mut at, end) = (offset, offset + u64::from(length));
        while at < end {
            let bytes = u64::from(piece).min(end - at) as usize;
            if let Err(error) = self.read_piece(at, &mut data[..bytes]) {
                return self.refuse(request, error);
            }
            let head = match whole {
                true => self.session.read_reply(ticket),
                false => {
                    let (offset, length) = (at, bytes as u32);
                    self.session
                        .read_chunk(ticket, Chunk::Data { offset, length })
                }
            };
            self.stream.write_all(head.as_bytes())?;
            self.stream.write_all(&data[..bytes])?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Bytes of the cut, or none.
    fn read_piece(&mut self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        let read = self.reader.read(at, into);
        self.judge(read)
    }

    /// Nothing that was read after the end of the window is told.
    fn judge<T>(&self, read: Result<T, String>) -> Result<T, Error> {
        if !self.backup.window.is_open() {
            return Err(Error::Shutdown);
        }
        read.map_err(|why| {
            tracing::warn!("volume {}: backup: {why}", self.backup.volume);
            Error::Io
        })
    }

    fn status(&mut self, request: Request, offset: u64, length: u32) -> Result<(), Over> {
        let most = self.session.extents_max(request.ticket);
        let bytes = u64::from(length);
        let mut answers: Vec<(Context, Vec<Extent>)> = Vec::new();
        for context in self.contexts.clone() {
            let extents = match context {
                Context::Allocation => self.reader.extents(offset, bytes, most),
                Context::Bitmap(at) => {
                    let (_, bitmap) = &self.backup.bitmaps[at];
                    Ok(bitmap.extents(offset, bytes, most))
                }
            };
            match self.judge(extents) {
                Ok(extents) => answers.push((context, extents)),
                Err(error) => return self.refuse(request, error),
            }
        }
        let answers: Vec<(Context, &[Extent])> = answers
            .iter()
            .map(|(context, extents)| (*context, extents.as_slice()))
            .collect();
        let reply = self.session.contexts_reply(request.ticket, &answers);
        Ok(self.stream.write_all(&reply)?)
    }

    fn refuse(&mut self, request: Request, error: Error) -> Result<(), Over> {
        let reply = self.session.reply(request.ticket, Err(error));
        Ok(self.stream.write_all(reply.as_bytes())?)
    }
}

impl Window {
    fn large(&self) -> std::sync::MutexGuard<'_, ()> {
        self.large.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::source::Source;
    use crate::frontend::nbd::{Config, Tls};
    use crate::origin::chain::Link;
    use crate::target::{How, Target};

    /// Its connection may live for a moment longer than the window.
    #[test]
    fn what_is_read_after_the_end_of_a_window_is_not_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        std::fs::write(&path, [7; 4096]).expect("written");
        let target = Target::open(&path, How::default()).expect("opened");
        let link = Link {
            path,
            target: Arc::new(target),
            format: image::Format::Raw,
        };
        let source = Source::Image(vec![link]);
        let none = Config {
            only: None,
            requests_max: 1,
            tls: Tls::Absent,
        };
        let mut client = Client {
            stream: UnixStream::pair().expect("two sockets").0,
            session: Session::new(none),
            reader: source.open().expect("opened"),
            backup: Arc::new(Backup {
                volume: "a".into(),
                size_bytes: 4096,
                source,
                bitmaps: Vec::new(),
                window: Arc::default(),
            }),
            contexts: Vec::new(),
        };
        let mut bytes = [0; 512];
        assert!(client.read_piece(0, &mut bytes).is_ok() && bytes == [7; 512]);
        client.backup.window.cut();
        let read = client.read_piece(0, &mut bytes);
        assert!(matches!(read, Err(Error::Shutdown)));
    }
}
