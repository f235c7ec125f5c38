//! One connection to a server, by blocking calls: before a volume is served, and in offline tools.
//!
//! Owns the socket and its session until the shard takes both. Always true: between two calls
//! nothing is unanswered and no byte is left over; after an error the connection is used no more.
//! Every wait for the server has a bound. Deliberately absent: trying again.

use super::handshake::{self, Handshake};
use super::session::{Ask, Errno, Session, Step};
use super::split::split;
use super::uri::{Server, Uri};
use super::{Broken, Export};
use crate::sys;
use engine::event::IoError;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a server may take to accept, and for each step of the negotiation.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long a server may be silent while it owes an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Writes that are sent before the answer to the first is waited for.
const IN_FLIGHT: usize = 32;
/// Longest piece of the server's words that is looked at together.
const INPUT_BYTES: usize = 64 << 10;
/// Zeroes are written in pieces of so many bytes where the server cannot zero.
const ZERO_BYTES: usize = 256 << 10;

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection in its transmission phase.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    session: Session,
    export: Export,
    broken: bool,
}

impl Client {
    /// Connects and negotiates. The text says what is wrong, without naming the export.
    pub fn connect(uri: &Uri) -> Result<Client, String> {
        let mut socket = Socket::open(&uri.server).map_err(|error| crate::error::cause(&error))?;
        socket
            .set_wait(Some(CONNECT_WAIT))
            .map_err(|error| crate::error::cause(&error))?;
        let (export, structured) =
            negotiate(&mut socket, &uri.export).map_err(|Broken(why)| why)?;
        socket
            .set_wait(Some(ANSWER_WAIT))
            .map_err(|error| crate::error::cause(&error))?;
        Ok(Client {
            socket,
            session: Session::new(structured),
            export,
            broken: false,
        })
    }

    pub fn export(&self) -> &Export {
        &self.export
    }

    /// The parts, for who drives them otherwise.
    pub fn into_parts(self) -> (OwnedFd, Session, Export) {
        // Without an answer in time the shard finds out by itself.
        let _ = self.socket.set_wait(None);
        let socket = match self.socket {
            Socket::Tcp(stream) => stream.into(),
            Socket::Unix(stream) => stream.into(),
        };
        (socket, self.session, self.export)
    }

    /// Any alignment; zeroes beyond the end.
    pub fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        let there = self.export.size_bytes.saturating_sub(offset);
        let (head, tail) = bytes.split_at_mut((bytes.len() as u64).min(there) as usize);
        tail.fill(0);
        let (start, end) = self.outer(offset, head.len() as u64);
        let mut outer = vec![0; (end - start) as usize];
        for piece in split(&self.export, start, end - start) {
            let at = (piece.offset - start) as usize;
            let ask = Ask::Read {
                offset: piece.offset,
                bytes: piece.bytes,
            };
            self.call(ask, &[], &mut outer[at..at + piece.bytes as usize])?;
        }
        let skip = (offset - start) as usize;
        head.copy_from_slice(&outer[skip..skip + head.len()]);
        Ok(())
    }

    /// Any alignment.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        for piece in split(&self.export, offset, bytes.len() as u64) {
            let at = (piece.offset - offset) as usize;
            let data = &bytes[at..at + piece.bytes as usize];
            if !piece.edge {
                self.put(piece.offset, data)?;
                continue;
            }
            let (start, end) = self.outer(piece.offset, u64::from(piece.bytes));
            let mut block = vec![0; (end - start) as usize];
            self.read(start, &mut block)?;
            let skip = (piece.offset - start) as usize;
            block[skip..skip + data.len()].copy_from_slice(data);
            self.put(start, &block)?;
        }
        Ok(())
    }

    /// Any alignment, in any order, many in flight together; none overlaps another.
    pub fn write_many(&mut self, writes: &[(u64, &[u8])]) -> Result<(), IoError> {
        let mut whole = Vec::new();
        let mut edges = Vec::new();
        for &(offset, bytes) in writes {
            for piece in split(&self.export, offset, bytes.len() as u64) {
                let at = (piece.offset - offset) as usize;
                let data = &bytes[at..at + piece.bytes as usize];
                let kind = if piece.edge { &mut edges } else { &mut whole };
                kind.push((piece.offset, data));
            }
        }
        for together in whole.chunks(IN_FLIGHT) {
            self.guarded(|client| client.put_many(together))?;
        }
        // Two edges may lie in one block of the server.
        let mut edges = edges.into_iter();
        edges.try_for_each(|(offset, data)| self.write(offset, data))
    }

    pub fn zero(&mut self, offset: u64, bytes: u64, keep: bool) -> Result<(), IoError> {
        for piece in split(&self.export, offset, bytes) {
            if self.export.write_zeroes && !piece.edge {
                let ask = Ask::Zero {
                    offset: piece.offset,
                    bytes: piece.bytes,
                    keep,
                };
                self.call(ask, &[], &mut [])?;
                continue;
            }
            let zeroes = vec![0; ZERO_BYTES.min(piece.bytes as usize)];
            let mut done = 0;
            while done < piece.bytes as usize {
                let count = zeroes.len().min(piece.bytes as usize - done);
                self.write(piece.offset + done as u64, &zeroes[..count])?;
                done += count;
            }
        }
        Ok(())
    }

    pub fn sync(&mut self) -> Result<(), IoError> {
        match self.export.flush {
            true => self.call(Ask::Flush, &[], &mut []),
            false => Ok(()),
        }
    }

    /// Ends in order.
    pub fn goodbye(mut self) {
        let goodbye = self.session.goodbye();
        // A server that is gone has nothing to be told.
        let _ = self.socket.write_all(&goodbye);
    }

    fn put(&mut self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let bytes = data.len() as u32;
        self.call(Ask::Write { offset, bytes }, data, &mut [])
    }

    /// The server's blocks that a range touches.
    fn outer(&self, offset: u64, bytes: u64) -> (u64, u64) {
        let block = u64::from(self.export.block_bytes);
        let start = offset / block * block;
        (start, (offset + bytes).next_multiple_of(block))
    }

    /// One request and its answer.
    fn call(&mut self, ask: Ask, payload: &[u8], into: &mut [u8]) -> Result<(), IoError> {
        self.guarded(|client| client.exchange(ask, payload, into))
    }

    /// What breaks the connection breaks it for good.
    fn guarded(
        &mut self,
        exchange: impl FnOnce(&mut Client) -> Result<Result<(), Errno>, Broken>,
    ) -> Result<(), IoError> {
        if self.broken {
            return Err(IoError::Failed);
        }
        match exchange(self) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(errno)) => Err(io_error(errno)),
            Err(Broken(why)) => {
                tracing::warn!("NBD origin: {why}");
                self.broken = true;
                Err(IoError::Failed)
            }
        }
    }

    /// Writes that are all sent before the first answer is waited for: answers are short enough to
    /// wait in the socket.
    fn put_many(&mut self, writes: &[(u64, &[u8])]) -> Result<Result<(), Errno>, Broken> {
        for &(offset, data) in writes {
            let bytes = data.len() as u32;
            let (_, head) = self.session.ask(Ask::Write { offset, bytes });
            self.socket.say(&head)?;
            self.socket.say(data)?;
        }
        self.answers(&mut [])
    }

    fn exchange(
        &mut self,
        ask: Ask,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Result<(), Errno>, Broken> {
        let (_, head) = self.session.ask(ask);
        self.socket.say(&head)?;
        self.socket.say(payload)?;
        self.answers(into)
    }

    /// Waits until nothing is unanswered: what one read gives, or that of many requests that give
    /// nothing, of which the session makes sure. The first error of them.
    fn answers(&mut self, into: &mut [u8]) -> Result<Result<(), Errno>, Broken> {
        let mut first = Ok(());
        let mut input = Vec::new();
        let mut used = 0;
        while self.session.unanswered() > 0 {
            match self.session.step(&input[used..])? {
                Step::More => {
                    input.drain(..used);
                    used = 0;
                    self.socket.hear(&mut input)?;
                }
                Step::Used(bytes) => used += bytes,
                Step::Data { at, bytes, .. } => {
                    let at = at as usize;
                    into[at..at + bytes].copy_from_slice(&input[used..used + bytes]);
                    used += bytes;
                }
                Step::Hole {
                    used: more,
                    at,
                    bytes,
                    ..
                } => {
                    into[at as usize..(at + bytes) as usize].fill(0);
                    used += more;
                }
                Step::Done {
                    used: more, result, ..
                } => {
                    used += more;
                    first = first.and(result);
                }
            }
        }
        match used == input.len() {
            true => Ok(first),
            false => Err(Broken::new("the server says more than it was asked")),
        }
    }
}

/// A server's error as the engine's kind.
pub fn io_error(errno: Errno) -> IoError {
    match errno {
        Errno::NO_SPACE => IoError::NoSpace,
        _ => IoError::Failed,
    }
}

fn negotiate(socket: &mut Socket, export: &str) -> Result<(Export, bool), Broken> {
    let mut handshake = Handshake::new(export);
    let mut input = Vec::new();
    loop {
        match handshake.step(&input)? {
            handshake::Step::More => socket.hear(&mut input)?,
            handshake::Step::Say { used, bytes } => {
                input.drain(..used);
                socket.say(&bytes)?;
            }
            handshake::Step::Done {
                used,
                export,
                structured,
            } => {
                return match used == input.len() {
                    true => Ok((export, structured)),
                    false => Err(Broken::new("the server speaks before it is asked")),
                };
            }
        }
    }
}

impl Socket {
    fn open(server: &Server) -> io::Result<Socket> {
        let (host, port) = match server {
            Server::Unix(path) => return Ok(Socket::Unix(UnixStream::connect(path)?)),
            Server::Tcp { host, port } => (host, *port),
        };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (host.as_str(), port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_WAIT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    sys::notice_dead_peers(&stream)?;
                    return Ok(Socket::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn set_wait(&self, wait: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(wait)?;
                stream.set_write_timeout(wait)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(wait)?;
                stream.set_write_timeout(wait)
            }
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.write_all(bytes),
            Socket::Unix(stream) => stream.write_all(bytes),
        }
    }

    fn say(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.write_all(bytes).map_err(lost)
    }

    /// Appends what has come, at least one byte.
    fn hear(&mut self, input: &mut Vec<u8>) -> Result<(), Broken> {
        let before = input.len();
        input.resize(before + INPUT_BYTES, 0);
        let room = &mut input[before..];
        let read = loop {
            let tried = match self {
                Socket::Tcp(stream) => stream.read(room),
                Socket::Unix(stream) => stream.read(room),
            };
            match tried {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let count = read.map_err(lost)?;
        input.truncate(before + count);
        match count {
            0 => Err(Broken::new("the server closed the connection")),
            _ => Ok(()),
        }
    }
}

fn lost(error: io::Error) -> Broken {
    Broken::new(match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the server does not answer".into(),
        _ => crate::error::cause(&error),
    })
}
