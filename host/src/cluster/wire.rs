//! Frames over a TLS connection.
//!
//! Owns the reading and writing of them, and sockets that move to another thread. Always true: a
//! frame is read whole or the connection ends; a body is kept only after its header was checked;
//! every connection and every first word has a time limit. Deliberately absent: what frames mean.

use super::certificates::server_name;
use crate::error::cause;
use engine::types::Uuid;
use node::batch::Batch;
use node::frame::{Frame, FrameError, HEADER_BYTES, Header, Kind};
use node::reads::{Blocks, Question, Read, Recall};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// To connect, to agree on keys, and for each frame of a conversation before the link is up.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why no frame came.
#[derive(Debug)]
pub enum Ended {
    /// The connection is over.
    Io(io::Error),
    /// The other side does not speak as it should.
    Frame(FrameError),
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the connection was closed")
            }
            Ended::Io(error) => f.write_str(&cause(error)),
            Ended::Frame(error) => write!(f, "a frame is {error}"),
        }
    }
}

pub async fn read(from: &mut (impl AsyncRead + Unpin), agreed: u16) -> Result<Frame, Ended> {
    let (header, body) = read_body(from, agreed).await?;
    Frame::parse(&header, &body).map_err(Ended::Frame)
}

/// What comes over a connection for batches, whose payload follows.
pub enum Data {
    Batch(Batch),
    Read(Question),
}

/// The head of a batch, or a read; no other frame may take the place of these.
pub async fn read_data(from: &mut (impl AsyncRead + Unpin), agreed: u16) -> Result<Data, Ended> {
    let (header, body) = read_body(from, agreed).await?;
    let data = match header.kind {
        Kind::Read => Read::parse(&header, &body).map(|it| Data::Read(Question::Left(it))),
        Kind::Recall => Recall::parse(&header, &body).map(|it| Data::Read(Question::Copy(it))),
        _ => Batch::parse(&header, &body).map(Data::Batch),
    };
    data.map_err(Ended::Frame)
}

/// What answers that.
pub enum Answer {
    Frame(Frame),
    Blocks(Blocks),
}

pub async fn read_answer(
    from: &mut (impl AsyncRead + Unpin),
    agreed: u16,
) -> Result<Answer, Ended> {
    let (header, body) = read_body(from, agreed).await?;
    let answer = match header.kind {
        Kind::Blocks => Blocks::parse(&header, &body).map(Answer::Blocks),
        _ => Frame::parse(&header, &body).map(Answer::Frame),
    };
    answer.map_err(Ended::Frame)
}

/// So many bytes that are no frame.
pub async fn read_bytes(
    from: &mut (impl AsyncRead + Unpin),
    count: usize,
) -> Result<Vec<u8>, Ended> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes).await.map_err(Ended::Io)?;
    Ok(bytes)
}

async fn read_body(
    from: &mut (impl AsyncRead + Unpin),
    agreed: u16,
) -> Result<(Header, Vec<u8>), Ended> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header).await.map_err(Ended::Io)?;
    let header = Header::parse(&header, agreed).map_err(Ended::Frame)?;
    let body = read_bytes(from, header.body_bytes).await?;
    Ok((header, body))
}

pub async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), Ended> {
    to.write_all(bytes).await.map_err(Ended::Io)?;
    to.flush().await.map_err(Ended::Io)
}

/// The same within [`PATIENCE`].
pub async fn read_soon(from: &mut (impl AsyncRead + Unpin), agreed: u16) -> Result<Frame, Ended> {
    timeout(PATIENCE, read(from, agreed))
        .await
        .unwrap_or_else(|_| Err(late()))
}

pub async fn write_soon(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), Ended> {
    timeout(PATIENCE, write(to, bytes))
        .await
        .unwrap_or_else(|_| Err(late()))
}

fn late() -> Ended {
    Ended::Io(io::ErrorKind::TimedOut.into())
}

/// Connects to a host, which has to prove that it is the one.
pub async fn call(
    address: SocketAddr,
    host: Uuid,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, Ended> {
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(server_name(host)).map_err(io::Error::other)?;
        TlsConnector::from(config).connect(name, stream).await
    };
    let connected = timeout(PATIENCE, connect).await;
    connected
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(Ended::Io)
}

/// A socket that can go to the runtime of another thread, below the TLS that it carries: who calls
/// is known only when both sides have agreed on keys.
pub struct Movable(Option<TcpStream>);

impl Movable {
    pub fn new(stream: TcpStream) -> Movable {
        Movable(Some(stream))
    }

    /// Leaves the runtime of this thread; until it has entered another one it is closed.
    pub fn leave(&mut self) -> io::Result<std::net::TcpStream> {
        let stream = self.0.take().ok_or(io::ErrorKind::NotConnected)?;
        stream.into_std()
    }

    pub fn enter(&mut self, stream: std::net::TcpStream) -> io::Result<()> {
        self.0 = Some(TcpStream::from_std(stream)?);
        Ok(())
    }

    fn poll<T>(
        self: Pin<&mut Self>,
        poll: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.get_mut().0 {
            Some(stream) => poll(Pin::new(stream)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Movable {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(|stream| stream.poll_read(cx, to))
    }
}

impl AsyncWrite for Movable {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(|stream| stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.as_ref().is_some_and(TcpStream::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|stream| stream.poll_shutdown(cx))
    }
}
