//! Certificates: the authority of a cluster, and what it makes of keys.
//!
//! Owns the making of certificates and the TLS settings of all connections. Always true: TLS 1.3
//! only; a host is who it says if its certificate is of the authority and has the name
//! `<host id>.tenuto.internal`; private keys of hosts stay where they were made. Certificates last
//! ten years and begin a day early, for clocks that differ. Every host has the key of the
//! authority, so that any host can issue tokens when the first one is gone for good: who breaks
//! into one host can write all that hosts share anyway. Deliberately absent: revocation; a host
//! that has left is refused by the list of members.

use super::tokens::{FINGERPRINT_BYTES, fingerprint};
use crate::error::{Error, Result};
use engine::types::Uuid;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: Duration = Duration::from_secs(24 * 3600);
const YEARS_10: Duration = Duration::from_secs(3653 * 24 * 3600);
/// A point of P-256 that is not compressed.
const PUBLIC_KEY_BYTES: usize = 65;

/// What makes certificates.
#[derive(Clone)]
pub struct Authority {
    /// Name of the cluster, which is part of its own name.
    pub cluster: String,
    /// DER.
    pub certificate: Vec<u8>,
    /// PKCS #8, DER.
    pub key: Vec<u8>,
}

impl Authority {
    pub fn new(cluster: &str) -> Result<Authority> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let certificate = authority_params(cluster)
            .self_signed(&key)
            .map_err(failed)?;
        Ok(Authority {
            cluster: cluster.into(),
            certificate: certificate.der().to_vec(),
            key: key.serialize_der(),
        })
    }

    /// The certificate of a host that has this public key.
    pub fn sign(&self, host: Uuid, public_key: &[u8]) -> Result<Vec<u8>> {
        if public_key.len() != PUBLIC_KEY_BYTES || public_key[0] != 4 {
            return Err(Error::usage("public key: is not one of P-256"));
        }
        let key = PrivatePkcs8KeyDer::from(self.key.clone());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256);
        let issuer = Issuer::new(authority_params(&self.cluster), key.map_err(failed)?);
        let mut params = CertificateParams::new(vec![server_name(host)]).map_err(failed)?;
        params.distinguished_name = named(&host.to_string());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        valid_from_now(&mut params);
        let signed = params
            .signed_by(&PublicKey(public_key), &issuer)
            .map_err(failed)?;
        Ok(signed.der().to_vec())
    }
}

/// A new private key (PKCS #8, DER) and its public key.
pub fn fresh_key() -> Result<(Vec<u8>, Vec<u8>)> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    Ok((key.serialize_der(), key.der_bytes().to_vec()))
}

/// The name in the certificate of a host.
pub fn server_name(host: Uuid) -> String {
    format!("{host}.tenuto.internal")
}

struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn authority_params(cluster: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("tenuto cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    valid_from_now(&mut params);
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

fn valid_from_now(params: &mut CertificateParams) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or(DAY);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(DAY);
    params.not_after = epoch + now + YEARS_10;
}

/// What a host shows and knows.
pub struct Credentials<'a> {
    pub authority: &'a [u8],
    pub certificate: &'a [u8],
    pub key: &'a [u8],
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots(authority: &[u8]) -> std::result::Result<Arc<RootCertStore>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(authority.to_vec()))?;
    Ok(Arc::new(roots))
}

fn shown(of: &Credentials<'_>) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = [of.certificate, of.authority].map(|der| CertificateDer::from(der.to_vec()));
    let key = PrivatePkcs8KeyDer::from(of.key.to_vec());
    (chain.to_vec(), PrivateKeyDer::Pkcs8(key))
}

/// For those that call: hosts of the cluster, and hosts without a certificate, which may only join.
pub fn server(of: &Credentials<'_>) -> Result<Arc<ServerConfig>> {
    let build = || {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots(of.authority)?, provider())
                .allow_unauthenticated()
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
        let (chain, key) = shown(of);
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        // A resumed session would not show a certificate again.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    };
    build().map_err(unfit)
}

/// To call a host of the cluster.
pub fn client(of: &Credentials<'_>) -> Result<Arc<ClientConfig>> {
    let build = || {
        let (chain, key) = shown(of);
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots(of.authority)?)
            .with_client_auth_cert(chain, key)?;
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    };
    build().map_err(unfit)
}

/// Set when the certificate of an authority was found.
pub type FoundAuthority = Arc<OnceLock<Vec<u8>>>;

/// To call the host that has issued a token: its authority is known by the fingerprint. Gives the
/// authority's certificate once connected.
pub fn pinned(fingerprint: [u8; FINGERPRINT_BYTES]) -> Result<(Arc<ClientConfig>, FoundAuthority)> {
    let found = Arc::new(OnceLock::new());
    let verifier = Pinned {
        fingerprint,
        provider: provider(),
        found: found.clone(),
    };
    let build = || {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Arc::new(config))
    };
    build().map_err(unfit).map(|config| (config, found))
}

/// Whether a certificate that was checked against the authority is that of a host.
pub fn is_of(certificate: &CertificateDer<'_>, host: Uuid) -> bool {
    let name = ServerName::try_from(server_name(host)).expect("a host's id makes a name");
    let parsed = ParsedCertificate::try_from(certificate);
    parsed.is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, &name).is_ok())
}

/// Trusts an authority with the right fingerprint, as any other client does from then on.
#[derive(Debug)]
struct Pinned {
    fingerprint: [u8; FINGERPRINT_BYTES],
    provider: Arc<CryptoProvider>,
    found: Arc<OnceLock<Vec<u8>>>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let is_it = |der: &&CertificateDer<'_>| fingerprint(der) == self.fingerprint;
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let authority = intermediates.iter().find(is_it).ok_or_else(unknown)?;
        let roots = roots(authority)?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, self.provider.clone())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp, now)?;
        // A second connection would have found the same.
        let _ = self.found.set(authority.to_vec());
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn failed(error: rcgen::Error) -> Error {
    Error::failed(format!("certificate: {error}"))
}

fn unfit(error: rustls::Error) -> Error {
    Error::failed(format!(
        "certificates of this host: {error}; leave the cluster and join again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_of_its_host_and_of_no_other() {
        let authority = Authority::new("c1").expect("made");
        let (_, public) = fresh_key().expect("made");
        let host = Uuid([7; 16]);
        let signed = authority.sign(host, &public).expect("signed");
        let certificate = CertificateDer::from(signed);
        assert!(is_of(&certificate, host));
        assert!(!is_of(&certificate, Uuid([8; 16])));
        assert!(!is_of(&CertificateDer::from(vec![1, 2, 3]), host));
        for wrong in [&public[1..], &[0; 65][..], &[]] {
            assert!(authority.sign(host, wrong).is_err());
        }
    }
}
