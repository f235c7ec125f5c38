//! Requests to the JSON gateway of an etcd.
//!
//! Always true: each request has a connection of its own and a time-out, so that one that is
//! forgotten by a member holds up no other; members are asked in turn, first the one that has
//! answered last; an error says nothing about whether the request was done; an answer that is older
//! than one that was known when the request was sent is an error, because reads of etcd must not go
//! back. Deliberately absent: locks and leases of etcd, on which no right may rest.

use super::answers::{self, Header};
use super::place::{Etcd, Tls};
use crate::error::cause;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// A member that does not take a connection in this time is passed over.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// etcd itself gives up after 7 s where most of its members do not answer, and says so.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Far more than a record or an error has.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// What a request is for, as a path.
pub const RANGE: &str = "/v3/kv/range";
pub const TRANSACTION: &str = "/v3/kv/txn";
pub const PUT: &str = "/v3/kv/put";
pub const DELETE: &str = "/v3/kv/deleterange";
const VERSION: &str = "/version";

/// A stream to a member, encrypted or not.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

#[derive(Debug)]
pub struct Gateway {
    etcd: Etcd,
    /// A lock, because threads that wait for answers share it; held to copy or to set plain data.
    known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The member that has answered last.
    member: usize,
    newest: Header,
}

impl Gateway {
    pub fn new(etcd: &Etcd) -> Gateway {
        Gateway {
            etcd: etcd.clone(),
            known: Mutex::default(),
        }
    }

    pub fn show(&self) -> String {
        self.etcd.show()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one member after the other, until an answer can be read.
    pub fn ask<T>(
        &self,
        path: &str,
        body: &Value,
        read: impl Fn(&[u8]) -> Result<(Header, T), String>,
    ) -> Result<T, String> {
        let before = *self.known();
        let count = self.etcd.endpoints.len();
        let mut why = Vec::new();
        for step in 0..count {
            let member = (before.member + step) % count;
            let endpoint = &self.etcd.endpoints[member];
            let answer = self.send(endpoint, Method::POST, path, &body.to_string());
            let answer = answer.and_then(|bytes| read(&bytes));
            match answer.and_then(|(header, found)| self.note(before, member, header, found)) {
                Ok(found) => return Ok(found),
                Err(text) => why.push(format!("{endpoint}: {text}")),
            }
        }
        Err(why.join("; "))
    }

    /// Takes an answer that is not older than what was known `before` it was asked for.
    fn note<T>(&self, before: Known, member: usize, header: Header, of: T) -> Result<T, String> {
        let mut known = self.known();
        let same = |it: Known| it.newest.cluster == header.cluster;
        if same(before) && header.revision < before.newest.revision {
            let (has, had) = (header.revision, before.newest.revision);
            return Err(format!(
                "the answer is of revision {has}, and {had} was there"
            ));
        }
        if !same(*known) && known.newest.revision > 0 {
            tracing::warn!("vault {}: is another etcd than before", self.show());
        }
        if !same(*known) || known.newest.revision < header.revision {
            known.newest = header;
        }
        known.member = member;
        Ok(of)
    }

    /// What each member says of itself.
    pub fn versions(&self) -> Vec<(String, Result<String, String>)> {
        let ask = |endpoint: &String| {
            let answer = self.send(endpoint, Method::GET, VERSION, "");
            let version = answer.and_then(|bytes| answers::version(&bytes));
            (endpoint.clone(), version)
        };
        self.etcd.endpoints.iter().map(ask).collect()
    }

    fn send(
        &self,
        endpoint: &str,
        method: Method,
        path: &str,
        body: &str,
    ) -> Result<Bytes, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| cause(&error))?;
        let answer = runtime.block_on(async {
            let stream = timeout(CONNECT_PATIENCE, connect(endpoint, self.etcd.tls.as_ref()));
            let stream = stream
                .await
                .map_err(|_| "does not take a connection".to_owned())??;
            timeout(
                ANSWER_PATIENCE,
                exchange(stream, endpoint, method, path, body),
            )
            .await
            .map_err(|_| "does not answer".to_owned())?
        });
        // The name of a member may still be looked up.
        runtime.shutdown_background();
        answer
    }
}

async fn connect(endpoint: &str, tls: Option<&Tls>) -> Result<Box<dyn Stream>, String> {
    let stream = TcpStream::connect(endpoint).await;
    let stream = stream.map_err(|error| cause(&error))?;
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return Ok(Box::new(stream));
    };
    let (host, _) = endpoint.rsplit_once(':').unwrap_or((endpoint, ""));
    let host = host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(|_| "its name fits no certificate".to_owned())?;
    let connector = TlsConnector::from(Arc::new(client(tls)?));
    let secured = connector.connect(name, stream).await;
    Ok(Box::new(secured.map_err(|error| cause(&error))?))
}

/// Read for each connection, because files of certificates are replaced while a daemon runs.
fn client(tls: &Tls) -> Result<ClientConfig, String> {
    let unfit = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let read = |path: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
        let list = CertificateDer::pem_file_iter(path).map_err(|error| unfit(path, &error))?;
        let list: Vec<_> = list
            .collect::<Result<_, _>>()
            .map_err(|error| unfit(path, &error))?;
        match list.is_empty() {
            false => Ok(list),
            true => Err(unfit(path, &"has no certificate")),
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in read(&tls.ca)? {
        let added = roots.add(certificate);
        added.map_err(|error| unfit(&tls.ca, &error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &tls.own else {
        return Ok(builder.with_no_client_auth());
    };
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unfit(key, &error))?;
    let built = builder.with_client_auth_cert(read(certificate)?, secret);
    built.map_err(|error| unfit(key, &error))
}

/// What has ended a connection, as a refusal of certificates, is told by the error below.
fn broken(error: hyper::Error) -> String {
    let below = std::error::Error::source(&error);
    let below = below.map_or(String::new(), |below| format!(": {below}"));
    format!("{error}{below}")
}

async fn exchange(
    stream: Box<dyn Stream>,
    endpoint: &str,
    method: Method,
    path: &str,
    body: &str,
) -> Result<Bytes, String> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    // Ends with the runtime, that is with the request.
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(hyper::header::HOST, endpoint)
        .header(hyper::header::CONTENT_TYPE, "application/json")
        .header(hyper::header::CONNECTION, "close")
        .body(Full::new(Bytes::from(body.to_owned())))
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    let bytes = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await
        .map_err(|error| format!("the answer breaks off: {error}"))?
        .to_bytes();
    match status.as_u16() {
        200 => Ok(bytes),
        other => Err(answers::fault(other, &bytes)),
    }
}
