//! The other end of the admin socket: what every command that speaks to a daemon uses.
//!
//! Always true: a daemon that cannot be reached is told apart from one that refuses. Connecting
//! takes no time on a UNIX socket; a reply may take as long as the order does, so there is a
//! limit for orders that look only, and a far longer one for those that wait.

use crate::error::{Error, Kind, Result, cause};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

pub use hyper::body::Bytes;

const REPLY_BYTES_MAX: usize = 64 << 20;
/// For orders that answer at once.
pub const PROMPT: Duration = Duration::from_secs(60);
/// For orders that wait for an origin: a day at a slow origin still ends by itself.
pub const PATIENT: Duration = Duration::from_secs(24 * 3600);

/// Speaks to one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    pub fn new(socket: &Path) -> Client {
        Client {
            socket: socket.to_path_buf(),
        }
    }

    /// Where the daemon answers; its other sockets lie beside it.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        self.send(Method::GET, path, None, PROMPT)
    }

    pub fn post(&self, path: &str, body: Option<&Value>, patience: Duration) -> Result<Value> {
        self.send(Method::POST, path, body, patience)
    }

    pub fn patch(&self, path: &str, body: &Value, patience: Duration) -> Result<Value> {
        self.send(Method::PATCH, path, Some(body), patience)
    }

    pub fn delete(&self, path: &str, patience: Duration) -> Result<Value> {
        self.send(Method::DELETE, path, None, patience)
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::failed(format!("runtime: {}", cause(&error))))?;
        let exchange = self.exchange(method, path, body);
        let (status, text) = runtime.block_on(async {
            tokio::time::timeout(patience, exchange)
                .await
                .map_err(|_| self.unreachable("no reply in time"))?
        })?;
        let document: Value = serde_json::from_slice(&text)
            .map_err(|_| self.unreachable("the reply is not from a tenuto daemon"))?;
        match Error::from_json(&document) {
            Some(error) => Err(error),
            None if status.is_success() => Ok(document),
            None => Err(self.unreachable(&format!("unexpected reply {status}"))),
        }
    }

    /// Asks for a reply that goes on.
    pub fn follow(&self, path: &str) -> Result<Stream> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::failed(format!("runtime: {}", cause(&error))))?;
        let begin = async {
            let response = self.request(Method::GET, path, None).await?;
            if response.status().is_success() {
                return Ok(response);
            }
            let (status, text) = self.collected(response).await?;
            let document = serde_json::from_slice(&text).unwrap_or(Value::Null);
            let other = || self.unreachable(&format!("unexpected reply {status}"));
            Err(Error::from_json(&document).unwrap_or_else(other))
        };
        let response = runtime.block_on(async {
            tokio::time::timeout(PROMPT, begin)
                .await
                .map_err(|_| self.unreachable("no reply in time"))?
        })?;
        let location = response.headers().get(hyper::header::LOCATION);
        let location = location.and_then(|location| location.to_str().ok());
        Ok(Stream {
            location: location.map(str::to_owned),
            body: response.into_body(),
            runtime,
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(hyper::StatusCode, Bytes)> {
        let response = self.request(method, path, body).await?;
        self.collected(response).await
    }

    async fn collected(&self, response: Response<Incoming>) -> Result<(hyper::StatusCode, Bytes)> {
        let status = response.status();
        let bytes = Limited::new(response.into_body(), REPLY_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| self.unreachable(&error.to_string()))?
            .to_bytes();
        Ok((status, bytes))
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| self.not_connected(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(&error.to_string()))?;
        // Ends with the runtime, that is with the command.
        tokio::spawn(connection);
        let body = body.map_or(String::new(), Value::to_string);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(hyper::header::HOST, "tenuto")
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Error::usage(format!("{path}: {error}")))?;
        let sent = sender.send_request(request).await;
        sent.map_err(|error| self.unreachable(&error.to_string()))
    }

    fn not_connected(&self, error: &std::io::Error) -> Error {
        if error.kind() != std::io::ErrorKind::PermissionDenied {
            return self.unreachable(&cause(error));
        }
        let socket = self.socket.display().to_string();
        let message = format!(
            "{socket}: {}; use it as root, or as a user of the group that [host] group names",
            cause(error)
        );
        Error::new(Kind::Unreachable, message).about(socket)
    }

    fn unreachable(&self, why: &str) -> Error {
        let socket = self.socket.display().to_string();
        Error::new(
            Kind::Unreachable,
            format!("{socket}: {why}; start the daemon with `tenuto serve`, or name its --socket"),
        )
        .about(socket)
    }
}

/// A reply that goes on, read where somebody waits for it. Dropped, it closes its connection.
pub struct Stream {
    /// What the reply calls itself.
    pub location: Option<String>,
    body: Incoming,
    runtime: tokio::runtime::Runtime,
}

/// What came next.
pub enum Next<T> {
    Bytes(Bytes),
    /// The stream is over, or its connection is.
    End,
    /// Something else came first.
    Other(T),
}

impl Stream {
    /// Waits for bytes, or for something else where that comes first.
    pub fn next<T>(&mut self, other: impl Future<Output = T>) -> Next<T> {
        let body = &mut self.body;
        self.runtime.block_on(async {
            tokio::select! {
                other = other => Next::Other(other),
                bytes = next_bytes(body) => bytes.map_or(Next::End, Next::Bytes),
            }
        })
    }

    /// Signals and times are waited for inside.
    pub fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.runtime.enter()
    }
}

/// Bytes that are some; `None` at the end, also at one that nobody wanted.
async fn next_bytes(body: &mut Incoming) -> Option<Bytes> {
    loop {
        let data = body.frame().await?.ok()?.into_data();
        if let Some(bytes) = data.ok().filter(|bytes| !bytes.is_empty()) {
            return Some(bytes);
        }
    }
}
