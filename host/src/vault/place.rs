//! `vault` of `[cluster]`: where the records of a cluster lie.
//!
//! Always true: what is shown reads back as the same; it fits a pointer beside an image, and a
//! message to a host that joins. Deliberately absent: what is done there.

use node::frame::TEXT_BYTES_MAX;
use node::record::VAULT_BYTES_MAX;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Members of one etcd that are named; it has three to seven.
pub const ENDPOINTS_MAX: usize = 9;
pub const RIGHT: &str = "write \"beside\", \"dir:/PATH\" or \"etcd://HOST:PORT,HOST:PORT\"";
const PLAIN: &str = "etcd://";
const SECURE: &str = "etcd+https://";
const BYTES_MAX: usize = VAULT_BYTES_MAX;
/// A host that joins is told in one message.
const _: () = assert!(BYTES_MAX <= TEXT_BYTES_MAX);

/// Why a text is no vault, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub what: String,
    pub right: String,
    /// It is right, but for a later version.
    pub later: bool,
}

impl Unfit {
    fn new(what: impl Into<String>, right: impl Into<String>) -> Unfit {
        Unfit {
            what: what.into(),
            right: right.into(),
            later: false,
        }
    }

    /// `what` with its verb.
    fn later(what: &str, right: &str) -> Unfit {
        Unfit {
            later: true,
            ..Unfit::new(what, right)
        }
    }
}

/// Where the records of a cluster lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vault {
    /// Beside each image.
    #[default]
    Beside,
    /// In a directory of its own for each unit, in this one.
    Directory(PathBuf),
    Etcd(Etcd),
}

/// How an etcd is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    /// HOST:PORT of its members. HOST is a name, or an address, the one of IPv6 in brackets.
    pub endpoints: Vec<String>,
    pub tls: Option<Tls>,
}

/// Files in PEM, which each host has at the same paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Certificates of the authority that has signed those of the members.
    pub ca: PathBuf,
    /// Certificate and key that this host shows, where etcd wants one.
    pub own: Option<(PathBuf, PathBuf)>,
}

fn wrong(what: impl Into<String>) -> Unfit {
    Unfit::new(what, RIGHT)
}

impl Vault {
    pub fn parse(text: &str) -> Result<Vault, Unfit> {
        if text.len() > BYTES_MAX {
            return Err(Unfit::new(
                "a vault of so many bytes",
                format!("write at most {BYTES_MAX}"),
            ));
        }
        let unknown = || wrong(format!("{text:?} is no vault"));
        if text.contains(char::is_control) {
            return Err(unknown());
        }
        if text == "beside" {
            return Ok(Vault::Beside);
        }
        if let Some(path) = text.strip_prefix("dir:").filter(|it| it.starts_with('/')) {
            return Ok(Vault::Directory(path.into()));
        }
        if let Some(rest) = text.strip_prefix(PLAIN) {
            let endpoints = endpoints(rest)?;
            return Ok(Vault::Etcd(Etcd {
                endpoints,
                tls: None,
            }));
        }
        match text.strip_prefix(SECURE) {
            Some(rest) => Ok(Vault::Etcd(secure(rest)?)),
            None => Err(unknown()),
        }
    }

    /// As it is written.
    pub fn show(&self) -> String {
        match self {
            Vault::Beside => "beside".into(),
            Vault::Directory(path) => format!("dir:{}", path.display()),
            Vault::Etcd(etcd) => etcd.show(),
        }
    }

    /// Whether records that were made where `text` says are looked for here. The members of an etcd
    /// change over time; whether it is the right one is told by what it has.
    pub fn is_as(&self, text: &str) -> bool {
        match self {
            Vault::Etcd(_) => matches!(Vault::parse(text), Ok(Vault::Etcd(_))),
            Vault::Beside | Vault::Directory(_) => self.show() == text,
        }
    }
}

impl Etcd {
    pub fn show(&self) -> String {
        let list = self.endpoints.join(",");
        let Some(tls) = &self.tls else {
            return format!("{PLAIN}{list}");
        };
        let mut text = format!("{SECURE}{list}?ca={}", tls.ca.display());
        if let Some((certificate, key)) = &tls.own {
            let more = format!("&cert={}&key={}", certificate.display(), key.display());
            text.push_str(&more);
        }
        text
    }
}

fn endpoints(text: &str) -> Result<Vec<String>, Unfit> {
    let mut found: Vec<String> = Vec::new();
    for endpoint in text.split(',') {
        if endpoint.contains('@') {
            return Err(Unfit::later(
                "users of etcd are",
                "let hosts in by certificates, as in etcd+https://HOST:PORT?ca=/PATH&cert=/PATH&\
                 key=/PATH",
            ));
        }
        if !is_endpoint(endpoint) {
            return Err(wrong(format!("{endpoint:?} is no HOST:PORT of an etcd")));
        }
        if found.iter().any(|it| it == endpoint) {
            return Err(wrong(format!("{endpoint:?} stands there twice")));
        }
        found.push(endpoint.to_owned());
    }
    match found.len() <= ENDPOINTS_MAX {
        true => Ok(found),
        false => Err(Unfit::new(
            format!("{} members of an etcd", found.len()),
            format!("name at most {ENDPOINTS_MAX}"),
        )),
    }
}

fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let named = |it: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
        !it.is_empty() && it.bytes().all(plain)
    };
    let right = match bare {
        Some(bare) => bare.parse::<IpAddr>().is_ok_and(|it| it.is_ipv6()),
        None => named(host),
    };
    right && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn secure(text: &str) -> Result<Etcd, Unfit> {
    let (list, rest) = text.split_once('?').unwrap_or((text, ""));
    let (mut ca, mut certificate, mut key) = (None, None, None);
    for part in rest.split('&').filter(|part| !part.is_empty()) {
        let (name, path) = part.split_once('=').unwrap_or((part, ""));
        let place = match name {
            "ca" => &mut ca,
            "cert" => &mut certificate,
            "key" => &mut key,
            _ => return Err(Unfit::new(format!("{name:?}"), "write ca, cert and key")),
        };
        if !Path::new(path).is_absolute() || place.is_some() {
            let right = format!("write {name}=/PATH once");
            return Err(Unfit::new(format!("{part:?}"), right));
        }
        *place = Some(PathBuf::from(path));
    }
    let Some(ca) = ca else {
        let right = "write etcd+https://HOST:PORT?ca=/PATH, a file with the certificate of the \
                     authority";
        return Err(Unfit::new(
            "an etcd whose certificate cannot be checked",
            right,
        ));
    };
    let own = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        _ => return Err(Unfit::new("one of cert and key", "write both or none")),
    };
    let tls = Some(Tls { ca, own });
    let endpoints = endpoints(list)?;
    Ok(Etcd { endpoints, tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vault_is_shown_as_it_was_read() {
        for text in [
            "beside",
            "dir:/mnt/shared",
            "etcd://10.0.0.1:2379",
            "etcd://h-1.example:2379,[fd00::1]:2379",
            "etcd+https://h:2379?ca=/etc/ca.pem",
            "etcd+https://h:2379,i:2379?ca=/etc/ca.pem&cert=/etc/a.pem&key=/etc/a.key",
        ] {
            let vault = Vault::parse(text).expect(text);
            assert_eq!(vault.show(), text);
            assert!(vault.is_as(text));
        }
    }

    #[test]
    fn what_is_no_vault_is_told_by_name() {
        for text in [
            "",
            "dir:x",
            "dir:/a\nb",
            "etcd://",
            "etcd://h",
            "etcd://h:0",
            "etcd://h:1,",
            "etcd://h:1,h:1",
            "etcd://h/x:1",
            "etcd://[h]:1",
            "etcd://[127.0.0.1]:1",
            "etcd://h:1?ca=/x",
            "etcd+https://h:1",
            "etcd+https://h:1?ca=x",
            "etcd+https://h:1?ca=/x&cert=/y",
            "etcd+https://h:1?ca=/x&ca=/y",
            "etcd+https://h:1?ca=/x&colour=/y",
            "etcd://a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,j:1",
        ] {
            let wrong = Vault::parse(text).expect_err(text);
            assert!(!wrong.later && !wrong.right.is_empty(), "{text}");
        }
        let user = Vault::parse("etcd://root:secret@h:1").expect_err("a user");
        assert!(user.later && !user.what.contains("secret"));
        let long = format!("dir:/{}", "x".repeat(BYTES_MAX));
        assert!(Vault::parse(&long).is_err());
    }

    #[test]
    fn members_of_an_etcd_may_change_and_nothing_else() {
        let vault = |text| Vault::parse(text).expect(text);
        assert!(vault("etcd://a:1").is_as("etcd+https://b:2?ca=/x"));
        assert!(!vault("etcd://a:1").is_as("beside"));
        assert!(!vault("beside").is_as("etcd://a:1"));
        assert!(!vault("dir:/a").is_as("dir:/b"));
    }
}
