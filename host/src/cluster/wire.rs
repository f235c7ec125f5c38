//! Frames over a TLS connection.
//!
//! Always true: a frame is read whole or the connection ends; a body is kept only after its header
//! was checked; every connection and every first word has a time limit. Deliberately absent: what
//! frames mean.

use super::certificates::server_name;
use crate::error::cause;
use engine::types::Uuid;
use node::frame::{Frame, FrameError, HEADER_BYTES, Header};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
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
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header).await.map_err(Ended::Io)?;
    let header = Header::parse(&header, agreed).map_err(Ended::Frame)?;
    let mut body = vec![0; header.body_bytes];
    from.read_exact(&mut body).await.map_err(Ended::Io)?;
    Frame::parse(&header, &body).map_err(Ended::Frame)
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
