//! Authorities and certificates for tests of TLS, in the files that QEMU and nbdkit read.
//!
//! Owns one authority. Always true: what it signs is good for this machine's loopback address,
//! for servers and clients; another authority has the same name and another key, so that only the
//! signature tells them apart.

use std::path::Path;

use data_encoding::BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = named("tests of tenuto");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).unwrap();
        Authority {
            certificate: pem("CERTIFICATE", certificate.der()),
            issuer: Issuer::new(params, key),
        }
    }

    /// `ca-cert.pem` of this authority.
    pub fn write_authority(&self, directory: &Path) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("ca-cert.pem"), &self.certificate).unwrap();
    }

    /// A new certificate and key in the files of a `server` or a `client`.
    pub fn write_signed(&self, directory: &Path, role: &str) {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = named(role);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let write = |what: &str, text: String| {
            std::fs::write(directory.join(format!("{role}-{what}.pem")), text).unwrap();
        };
        std::fs::create_dir_all(directory).unwrap();
        write("cert", pem("CERTIFICATE", signed.der()));
        write("key", pem("PRIVATE KEY", &key.serialize_der()));
    }

    /// All that a server or a client of this authority has.
    pub fn write_all(&self, directory: &Path, role: &str) {
        self.write_authority(directory);
        self.write_signed(directory, role);
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

fn pem(kind: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let lines = text.as_bytes().chunks(64);
    let lines = lines.fold(String::new(), |all, line| {
        all + std::str::from_utf8(line).unwrap() + "\n"
    });
    format!("-----BEGIN {kind}-----\n{lines}-----END {kind}-----\n")
}
