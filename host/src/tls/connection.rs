//! One connection of NBD over TLS.
//!
//! Owns its bytes: the words before TLS, which the pure session of [`nbd`] decides about, then
//! those between the client and the shard. Always true: not one byte that came before the
//! handshake is taken for one of TLS, and none of TLS is lost between the two, because a client
//! that has sent anything behind STARTTLS is refused; one buffer in each direction, and a chunk is
//! read only after the one before was taken whole. Deliberately absent: time limits of the
//! opening, which the parent has.

use crate::error::cause;
use crate::frontend::nbd::{self, Closing, Export, Session, Step, Tls};
use crate::peer::Peer;
use crate::shard::control::{Arrival, Handle};
use rustls::ServerConfig;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::unix::ReadHalf;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Options in one piece; a client has few before TLS.
const PLAIN_BYTES: usize = 4 << 10;
/// One record of TLS at first, and more for a client that fills it.
const BUFFER_BYTES_MIN: usize = 16 << 10;
const BUFFER_BYTES_MAX: usize = 128 << 10;
/// How long a side may take to hear the end after the other one has left.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// Why a client does not get as far as TLS.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("{0}")]
    Session(Closing),
    #[error("{}", cause(.0))]
    Handshake(io::Error),
    /// The connection has broken, or the client has left.
    #[error("left before TLS")]
    Left,
}

impl Refused {
    /// Clients that only look whether a port answers come and go.
    pub fn is_silent(&self) -> bool {
        matches!(self, Refused::Left | Refused::Session(Closing::Abort))
    }
}

/// Brings a client as far as TLS; with what its session goes on.
pub(super) async fn open(
    mut socket: TcpStream,
    server: Arc<ServerConfig>,
) -> Result<(TlsStream<TcpStream>, Tls), Refused> {
    // Without it a small reply waits for the acknowledgment of the one before.
    let _ = socket.set_nodelay(true);
    let then = negotiate(&mut socket).await?;
    let accepted = TlsAcceptor::from(server).accept(socket).await;
    match accepted {
        Ok(stream) => Ok((stream, then)),
        Err(error) => Err(Refused::Handshake(error)),
    }
}

/// The words in plain text, up to the acknowledgment of STARTTLS.
async fn negotiate(socket: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<Tls, Refused> {
    let mut session = Session::new(nbd::Config {
        only: None,
        requests_max: 1,
        tls: Tls::Required,
    });
    let left = |_| Refused::Left;
    socket.write_all(&nbd::GREETING).await.map_err(left)?;
    let mut input = [0; PLAIN_BYTES];
    loop {
        let count = match socket.read(&mut input).await {
            Ok(count @ 1..) => count,
            Ok(0) | Err(_) => return Err(Refused::Left),
        };
        let answer = answer(&mut session, &input[..count]);
        socket.write_all(&answer.bytes).await.map_err(left)?;
        if let Some(ended) = answer.ended {
            let _ = socket.shutdown().await;
            return Err(Refused::Session(ended));
        }
        if let Some(then) = answer.then {
            return Ok(then);
        }
    }
}

/// What is sent for one piece of input, and what follows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    bytes: Vec<u8>,
    then: Option<Tls>,
    ended: Option<Closing>,
}

fn answer(session: &mut Session, mut rest: &[u8]) -> Answer {
    // Exports are told of behind TLS only.
    let nothing: Vec<Export> = Vec::new();
    let mut answer = Answer::default();
    let mut acknowledgment = Vec::new();
    while !rest.is_empty() {
        let (used, step) = session.receive(&nothing, rest);
        rest = &rest[used..];
        match step {
            None => assert!(used > 0, "a negotiation takes all of its input"),
            Some(Step::Send(bytes)) => answer.bytes.extend(bytes),
            Some(Step::StartTls { reply, then }) => {
                acknowledgment = reply;
                answer.then = Some(then);
            }
            Some(Step::Close { reason, farewell }) => {
                // A client that is refused for what came behind STARTTLS hears no yes to it.
                answer.bytes.extend(farewell);
                (answer.then, answer.ended) = (None, Some(reason));
                return answer;
            }
            Some(Step::Attach { .. } | Step::Request(_) | Step::Await { .. }) => {
                panic!("there is no export before TLS")
            }
        }
    }
    answer.bytes.extend(acknowledgment);
    answer
}

/// Joins a client and the shard until both have left.
pub(super) async fn relay(
    stream: TlsStream<TcpStream>,
    tls: Tls,
    from: SocketAddr,
    handle: &Handle,
    roomy: bool,
) {
    let (ours, theirs) = match pair() {
        Ok(pair) => pair,
        Err(error) => {
            let why = cause(&error);
            return tracing::warn!("NBD over TLS: {from}: no socket for the client: {why}");
        }
    };
    let arrival = Arrival {
        socket: theirs.into(),
        peer: Peer::Address(from.ip().to_canonical()),
        tls,
    };
    if handle.welcome_async(arrival).await.is_err() {
        return;
    }
    let buffer_max = if roomy {
        BUFFER_BYTES_MAX
    } else {
        BUFFER_BYTES_MIN
    };
    join(stream, ours, buffer_max).await;
}

/// Our end, and that of the shard.
fn pair() -> io::Result<(UnixStream, std::os::unix::net::UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, theirs))
}

async fn join(
    client: impl AsyncRead + AsyncWrite + Unpin,
    mut shard: UnixStream,
    buffer_max: usize,
) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_shard, mut to_shard) = shard.split();
    let inward = async {
        // However the client has left, the shard hears of it.
        let _ = pour(&mut from_client, &mut to_shard, buffer_max).await;
        let _ = to_shard.shutdown().await;
    };
    let mut outward = pin!(answers(&mut from_shard, &mut to_client, buffer_max));
    tokio::select! {
        _ = &mut outward => return,
        () = inward => {}
    }
    // The client may still hear the last words of the shard.
    let _ = timeout(END_PATIENCE, outward).await;
}

/// Requests of the client, until it has said its last.
async fn pour(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    buffer_max: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES_MIN];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count]).await?;
        grow(&mut buffer, count, buffer_max);
    }
}

/// The answers to them. A client that takes none is waited for as long as the shard keeps it.
async fn answers(
    from: &mut ReadHalf<'_>,
    to: &mut (impl AsyncWrite + Unpin),
    buffer_max: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES_MIN];
    loop {
        let count = from.read(&mut buffer).await?;
        deliver(from, to, &buffer[..count]).await?;
        if count == 0 {
            return Ok(());
        }
        grow(&mut buffer, count, buffer_max);
    }
}

/// Sends a chunk, for as long as it takes while the shard has its end open.
async fn deliver(
    shard: &ReadHalf<'_>,
    to: &mut (impl AsyncWrite + Unpin),
    chunk: &[u8],
) -> io::Result<()> {
    let mut sending = pin!(send(to, chunk));
    loop {
        match timeout(END_PATIENCE, &mut sending).await {
            Ok(sent) => return sent,
            Err(_) if chunk.is_empty() || is_closed(shard).await => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(_) => {}
        }
    }
}

/// Sends a chunk with all that TLS makes of it; an empty one is the end.
async fn send(to: &mut (impl AsyncWrite + Unpin), chunk: &[u8]) -> io::Result<()> {
    if chunk.is_empty() {
        return to.shutdown().await;
    }
    to.write_all(chunk).await?;
    to.flush().await
}

/// Whether the shard has closed its end, though some of its words may still be to be read.
async fn is_closed(shard: &ReadHalf<'_>) -> bool {
    let ready = timeout(Duration::ZERO, shard.ready(Interest::READABLE)).await;
    matches!(ready, Ok(Ok(ready)) if ready.is_read_closed())
}

/// A side that fills its buffer has more to say.
fn grow(buffer: &mut Vec<u8>, count: usize, buffer_max: usize) {
    if count == buffer.len() && count < buffer_max {
        *buffer = vec![0; buffer_max];
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
