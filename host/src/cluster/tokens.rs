//! Tokens: the right to join, for one host and a quarter of an hour.
//!
//! Owns the text of a token and the list of those that this daemon has issued. Always true: a
//! secret lets one host in, and none after [`VALID_MS`]; a host that issues tokens keeps no secret,
//! only its hash. A token of a daemon that was restarted since is not known any more. Deliberately
//! absent: certificates, and the connection over which a token is shown.

use super::member::{from_hex, hex};
use engine::types::{Time, Uuid};
use node::frame::SECRET_BYTES;
use ring::digest::{SHA256, digest};

pub const VALID_MS: u64 = 15 * 60_000;
/// How long a token is remembered after that, to be refused by name.
const REMEMBERED_MS: u64 = 24 * 3_600_000;
const TOKENS_MAX: usize = 256;
pub const FINGERPRINT_BYTES: usize = 32;
const START: &str = "tenuto1-";
const FIXED_BYTES: usize = FINGERPRINT_BYTES + SECRET_BYTES + 16;

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Of the certificate of the cluster's authority.
    pub fingerprint: [u8; FINGERPRINT_BYTES],
    pub secret: [u8; SECRET_BYTES],
    /// The host that knows the secret, and where it is.
    pub host: Uuid,
    pub addresses: Vec<String>,
}

impl Token {
    pub fn show(&self) -> String {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.fingerprint);
        bytes.extend_from_slice(&self.secret);
        bytes.extend_from_slice(&self.host.0);
        bytes.extend_from_slice(self.addresses.join(",").as_bytes());
        START.to_owned() + &hex(&bytes)
    }

    pub fn parse(text: &str) -> Option<Token> {
        let bytes = from_hex(text.trim().strip_prefix(START)?)?;
        let (fixed, addresses) = bytes.split_at_checked(FIXED_BYTES)?;
        let (fingerprint, rest) = fixed.split_first_chunk()?;
        let (secret, host) = rest.split_first_chunk()?;
        let addresses = std::str::from_utf8(addresses).ok()?.split(',');
        Some(Token {
            fingerprint: *fingerprint,
            secret: *secret,
            host: Uuid(host.try_into().ok()?),
            addresses: addresses.map(str::to_owned).collect(),
        })
    }
}

/// Why a secret is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Unknown,
    Used,
    Old,
}

impl Refusal {
    pub const fn words(self) -> &'static str {
        match self {
            Refusal::Unknown => {
                "token: not known to this daemon, which may have been restarted since; make \
                 another with `tenuto cluster token`"
            }
            Refusal::Used => {
                "token: was used already, and is for one host; make another with `tenuto cluster \
                 token`"
            }
            Refusal::Old => {
                "token: is older than 15 minutes; make another with `tenuto cluster token`"
            }
        }
    }
}

struct Issued {
    hash: [u8; FINGERPRINT_BYTES],
    at: Time,
    used: bool,
}

/// The tokens of this daemon.
#[derive(Default)]
pub struct Tokens(Vec<Issued>);

impl Tokens {
    /// Remembers a new secret.
    pub fn issue(&mut self, secret: &[u8; SECRET_BYTES], now: Time) {
        self.0
            .retain(|known| now < known.at.plus_millis(REMEMBERED_MS));
        if self.0.len() == TOKENS_MAX {
            self.0.remove(0);
        }
        let hash = fingerprint(secret);
        self.0.push(Issued {
            hash,
            at: now,
            used: false,
        });
    }

    /// Takes a secret, once.
    pub fn take(&mut self, secret: &[u8; SECRET_BYTES], now: Time) -> Result<(), Refusal> {
        let hash = fingerprint(secret);
        let known = self.0.iter_mut().find(|known| known.hash == hash);
        let known = known.ok_or(Refusal::Unknown)?;
        if known.used {
            return Err(Refusal::Used);
        }
        if now >= known.at.plus_millis(VALID_MS) {
            return Err(Refusal::Old);
        }
        known.used = true;
        Ok(())
    }
}

pub fn fingerprint(bytes: &[u8]) -> [u8; FINGERPRINT_BYTES] {
    let hash = digest(&SHA256, bytes);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_others_are_none() {
        let token = Token {
            fingerprint: [1; FINGERPRINT_BYTES],
            secret: [2; SECRET_BYTES],
            host: Uuid([3; 16]),
            addresses: vec!["10.0.0.1:7440".into(), "[::1]:7440".into()],
        };
        let text = token.show();
        assert_eq!(Token::parse(&text), Some(token));
        assert!(
            text.chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
        );
        for wrong in [
            "",
            "tenuto1-",
            "tenuto1-00",
            "tenuto2-00",
            &text[..50],
            "tenuto1-é",
        ] {
            assert_eq!(Token::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_secret_lets_one_host_in_within_15_minutes() {
        let mut tokens = Tokens::default();
        let minute = |minutes: u64| Time::from_millis(minutes * 60_000);
        tokens.issue(&[1; SECRET_BYTES], minute(0));
        tokens.issue(&[2; SECRET_BYTES], minute(0));
        assert_eq!(
            tokens.take(&[3; SECRET_BYTES], minute(1)),
            Err(Refusal::Unknown)
        );
        assert_eq!(tokens.take(&[1; SECRET_BYTES], minute(14)), Ok(()));
        assert_eq!(
            tokens.take(&[1; SECRET_BYTES], minute(14)),
            Err(Refusal::Used)
        );
        assert_eq!(
            tokens.take(&[2; SECRET_BYTES], minute(15)),
            Err(Refusal::Old)
        );
        for secret in 0..TOKENS_MAX {
            let mut bytes = [9; SECRET_BYTES];
            bytes[..8].copy_from_slice(&secret.to_le_bytes());
            tokens.issue(&bytes, minute(15));
        }
        assert_eq!(tokens.0.len(), TOKENS_MAX);
    }
}
