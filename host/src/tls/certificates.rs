//! The certificates of the NBD server: files under the names that other NBD servers read.
//!
//! Owns which files of the directory are read, and the settings of TLS that they make. Always
//! true: what is used was read whole and fits together, so that a wrong file never takes the
//! place of a right one; clients are checked where there is a CA certificate, unless the
//! configuration says otherwise, and no reload ends that check because a file has gone. Sessions
//! are not resumed, because a resumed one would not show its certificate again. Deliberately
//! absent: making certificates, and names of clients: a certificate of the CA is enough.

use crate::error::cause;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whom clients must have their certificates from.
const CA: &str = "ca-cert.pem";
/// Certificates that count no more; read if it is there.
const REVOKED: &str = "ca-crl.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
/// A CA list of a whole distribution has a quarter of a MiB.
const FILE_BYTES_MAX: u64 = 16 << 20;
const RIGHT: &str = "put ca-cert.pem, server-cert.pem and server-key.pem into the directory, as \
                     qemu-nbd takes them";

/// What the configuration says of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub directory: PathBuf,
    /// `None` = if there is a CA certificate.
    pub verify_peer: Option<bool>,
}

/// Files that make no server, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub what: String,
    pub right: &'static str,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.right)
    }
}

/// The files as they were read, and what they make.
#[derive(Clone)]
pub struct Certificates {
    pub server: Arc<ServerConfig>,
    pub verify_peer: bool,
    /// Of all files that were read: whether others lie there now.
    fingerprint: [u8; 32],
}

impl Certificates {
    pub fn is_same(&self, other: &Certificates) -> bool {
        (self.fingerprint, self.verify_peer) == (other.fingerprint, other.verify_peer)
    }
}

impl Settings {
    pub fn read(&self) -> Result<Certificates, Unfit> {
        let certificate = self.needed(CERTIFICATE)?;
        let key = self.needed(KEY)?;
        let authority = self.file(CA)?;
        let revoked = self.file(REVOKED)?;
        let verify_peer = self.verify_peer.unwrap_or(authority.is_some());
        let chain = self.certificates(CERTIFICATE, &certificate)?;
        let secret = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|error| self.unfit(KEY, error.to_string()))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| self.unfit(CERTIFICATE, error.to_string()))?;
        let builder = match (verify_peer, &authority) {
            (true, Some(authority)) => {
                builder.with_client_cert_verifier(self.verifier(authority, revoked.as_deref())?)
            }
            (true, None) => return Err(self.missing(CA)),
            (false, _) => builder.with_no_client_auth(),
        };
        let mut server = builder
            .with_single_cert(chain, secret)
            .map_err(|error| self.unfit(KEY, error.to_string()))?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let files = [Some(certificate), Some(key), authority, revoked];
        Ok(Certificates {
            server: Arc::new(server),
            verify_peer,
            fingerprint: fingerprint(&files),
        })
    }

    /// Who checks the certificates of clients.
    fn verifier(
        &self,
        authority: &[u8],
        revoked: Option<&[u8]>,
    ) -> Result<Arc<dyn ClientCertVerifier>, Unfit> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in self.certificates(CA, authority)? {
            let added = roots.add(certificate);
            added.map_err(|error| self.unfit(CA, error.to_string()))?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let builder = match revoked {
            None => builder,
            Some(pem) => {
                let lists = CertificateRevocationListDer::pem_slice_iter(pem);
                let lists = lists.collect::<Result<Vec<_>, _>>();
                let lists = lists.map_err(|error| self.unfit(REVOKED, error.to_string()))?;
                if lists.is_empty() {
                    return Err(self.unfit(REVOKED, "has no list of revoked certificates".into()));
                }
                // A list is of one CA; a certificate of another one is in none.
                builder.with_crls(lists).allow_unknown_revocation_status()
            }
        };
        let built = builder.build();
        built.map_err(|error| self.unfit(CA, error.to_string()))
    }

    fn certificates(&self, name: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unfit> {
        let list = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        match list {
            Ok(list) if list.is_empty() => Err(self.unfit(name, "has no certificate".into())),
            Ok(list) => Ok(list),
            Err(error) => Err(self.unfit(name, error.to_string())),
        }
    }

    fn needed(&self, name: &str) -> Result<Vec<u8>, Unfit> {
        self.file(name)?.ok_or_else(|| self.missing(name))
    }

    /// The bytes of a file, if it is there.
    fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Unfit> {
        match read(&self.directory.join(name)) {
            Ok(bytes) if bytes.len() as u64 > FILE_BYTES_MAX => {
                Err(self.unfit(name, "it is larger than 16 MiB".into()))
            }
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unfit(name, cause(&error))),
        }
    }

    fn missing(&self, name: &str) -> Unfit {
        let error = std::io::Error::from_raw_os_error(libc::ENOENT);
        self.unfit(name, cause(&error))
    }

    fn unfit(&self, name: &str, why: String) -> Unfit {
        Unfit {
            what: format!("{}: {why}", self.directory.join(name).display()),
            right: RIGHT,
        }
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn fingerprint(files: &[Option<Vec<u8>>]) -> [u8; 32] {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for file in files {
        // The length keeps bytes of one file from counting as those of the next.
        let length = file.as_ref().map_or(u64::MAX, |file| file.len() as u64);
        context.update(&length.to_be_bytes());
        context.update(file.as_deref().unwrap_or_default());
    }
    let digest = context.finish();
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
