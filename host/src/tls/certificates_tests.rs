//! Directories of certificates that are right, wrong, or incomplete, and who gets in with them.

use super::*;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Files of an authority in a directory of their own.
struct House {
    directory: TempDir,
    authority: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl House {
    fn new() -> House {
        let directory = tempfile::tempdir().expect("a directory");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = params.self_signed(&key).expect("signed");
        let issuer = Issuer::new(params, key);
        let house = House {
            directory,
            authority,
            issuer,
        };
        house.write(CA, &pem("CERTIFICATE", house.authority.der()));
        let (certificate, key) = house.signed(1);
        house.write(CERTIFICATE, &pem("CERTIFICATE", certificate.der()));
        house.write(KEY, &pem("PRIVATE KEY", &key.serialize_der()));
        house
    }

    fn signed(&self, serial: u64) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned()];
        let mut params = CertificateParams::new(names).expect("a name");
        params.serial_number = Some(SerialNumber::from(serial));
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        (signed, key)
    }

    fn revoke(&self, serial: u64) {
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(serial),
                revocation_time: date_time_ymd(2020, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("signed");
        self.write(REVOKED, &pem("X509 CRL", list.der()));
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).expect("written");
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.directory.path().join(name)).expect("removed");
    }

    fn read(&self, verify_peer: Option<bool>) -> Result<Certificates, Unfit> {
        let directory = self.directory.path().to_owned();
        let settings = Settings {
            directory,
            verify_peer,
        };
        settings.read()
    }

    /// Whether a client with this certificate, or without one, is let in.
    fn admits(&self, client: Option<(Certificate, KeyPair)>) -> bool {
        let certificates = self.read(None).expect("right");
        let mut roots = RootCertStore::empty();
        let authority = self.authority.der().clone();
        roots.add(authority).expect("an authority");
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("known versions")
            .with_root_certificates(roots);
        let client = match client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
                let chain = vec![certificate.der().clone()];
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(async {
            let (near, far) = duplex(64 << 10);
            let name = ServerName::try_from("localhost").expect("a name");
            let calls = TlsConnector::from(Arc::new(client)).connect(name, near);
            let accepts = TlsAcceptor::from(certificates.server).accept(far);
            let (called, accepted) = tokio::join!(calls, accepts);
            drop(called.map(|mut stream| drop(stream.read_u8())));
            accepted.is_ok()
        })
    }
}

fn pem(kind: &str, der: &[u8]) -> String {
    let text = data_encoding::BASE64.encode(der);
    format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n")
}

#[test]
fn clients_of_the_authority_are_let_in_and_no_others() {
    let house = House::new();
    assert!(house.read(None).expect("right").verify_peer);
    assert!(house.admits(Some(house.signed(2))));
    assert!(!house.admits(None));
    assert!(!house.admits(Some(House::new().signed(2))));
    house.revoke(2);
    assert!(!house.admits(Some(house.signed(2))), "it is revoked");
    assert!(house.admits(Some(house.signed(3))), "this one is not");
}

#[test]
fn without_a_ca_certificate_clients_are_checked_only_if_the_file_says_so() {
    let house = House::new();
    assert!(!house.read(Some(false)).expect("right").verify_peer);
    house.remove(CA);
    assert!(!house.read(None).expect("right").verify_peer);
    assert!(house.admits(None));
    let unfit = house.read(Some(true)).err().expect("wrong");
    assert!(unfit.what.contains(CA), "{unfit}");
}

#[test]
fn a_file_that_is_wrong_is_named() {
    let wrong = |name: &str, text: Option<&str>| {
        let house = House::new();
        house.revoke(9);
        assert!(house.read(None).is_ok());
        match text {
            None => house.remove(name),
            Some(text) => house.write(name, text),
        }
        let unfit = house.read(None).err().expect("wrong");
        assert!(unfit.what.contains(name), "{unfit}");
        assert!(!unfit.to_string().contains('\n'), "{unfit}");
    };
    wrong(CERTIFICATE, None);
    wrong(KEY, None);
    for name in [CA, CERTIFICATE, KEY, REVOKED] {
        wrong(name, Some(""));
        wrong(
            name,
            Some("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"),
        );
    }
    wrong(CERTIFICATE, Some(&"x".repeat(FILE_BYTES_MAX as usize + 1)));
    // A key that belongs to another certificate.
    let (_, key) = House::new().signed(1);
    wrong(KEY, Some(&pem("PRIVATE KEY", &key.serialize_der())));
}

#[test]
fn other_files_are_noticed_and_the_same_ones_are_not() {
    let house = House::new();
    let read = || house.read(None).expect("right");
    let before = read();
    assert!(before.is_same(&read()));
    house.revoke(2);
    assert!(!before.is_same(&read()));
}
