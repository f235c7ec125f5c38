//! The name of an NBD export: `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`.
//!
//! Always true: two spellings of one name have one [`Uri::identity`], so that a second writer is
//! found by comparing texts. Deliberately absent: resolving names; two host names of one server
//! are two origins here, and the lock of the ledger is what keeps their writers apart.

use std::fmt;
use std::fmt::Write;
use std::path::PathBuf;

const PORT: u16 = 10809;
/// Longest export name of the protocol.
const EXPORT_BYTES_MAX: usize = 4096;
/// Bytes a `sockaddr_un` takes, without its end.
const SOCKET_PATH_MAX: usize = 107;
/// What a mistaken name is answered with.
pub const RIGHT: &str = "write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=/PATH";

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    pub server: Server,
    /// Empty = the server's default export.
    pub export: String,
}

impl Uri {
    /// Whether a name is meant as one of ours.
    pub fn claims(text: &str) -> bool {
        text.starts_with("nbd:") || text.starts_with("nbd+unix:")
    }

    /// An error says what is wrong, without what would be right.
    pub fn parse(text: &str) -> Result<Uri, String> {
        if let Some(rest) = text.strip_prefix("nbd://") {
            return parse_tcp(rest);
        }
        match text.strip_prefix("nbd+unix://") {
            Some(rest) => parse_unix(rest),
            None => Err(format!("{text:?} is not the URL of an NBD export")),
        }
    }

    /// Equal for two spellings of one name.
    pub fn identity(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = escape(self.export.as_bytes());
        match &self.server {
            Server::Tcp { host, port } if host.contains(':') => {
                write!(f, "nbd://[{host}]:{port}/{export}")
            }
            Server::Tcp { host, port } => write!(f, "nbd://{host}:{port}/{export}"),
            Server::Unix(path) => {
                let path = escape(path.as_os_str().as_encoded_bytes());
                write!(f, "nbd+unix:///{export}?socket={path}")
            }
        }
    }
}

fn parse_tcp(rest: &str) -> Result<Uri, String> {
    let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
    if export.contains(['?', '#']) || authority.contains('@') {
        return Err("an NBD URL over TCP has a host, a port and an export only".into());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(inner) => {
            let (host, behind) = inner
                .split_once(']')
                .ok_or("the address in brackets does not end")?;
            let port = match behind {
                "" => None,
                behind => Some(behind.strip_prefix(':').ok_or("no ':' before the port")?),
            };
            (host, port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        None | Some("") => PORT,
        Some(text) => match text.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(format!("{text:?} is not a port")),
        },
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(plain) {
        return Err(format!("{host:?} is not a host"));
    }
    let host = host.to_ascii_lowercase();
    let export = export_name(export)?;
    let server = Server::Tcp { host, port };
    Ok(Uri { server, export })
}

fn parse_unix(rest: &str) -> Result<Uri, String> {
    let path_and_query = rest
        .strip_prefix('/')
        .ok_or("a URL over a UNIX socket has no host")?;
    let (export, query) = path_and_query
        .split_once('?')
        .unwrap_or((path_and_query, ""));
    let socket = query
        .strip_prefix("socket=")
        .filter(|path| !path.contains(['&', '#']))
        .ok_or("a URL over a UNIX socket names it by ?socket=/PATH and nothing else")?;
    let socket = unescape(socket)?;
    if !socket.starts_with('/') || socket.len() > SOCKET_PATH_MAX {
        return Err(format!(
            "{socket:?} is not an absolute path of at most {SOCKET_PATH_MAX} bytes"
        ));
    }
    let mut plain = String::new();
    for part in socket.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." {
            return Err("the socket's path must not contain '..'".into());
        }
        plain.push('/');
        plain.push_str(part);
    }
    let export = export_name(export)?;
    let server = Server::Unix(PathBuf::from(plain));
    Ok(Uri { server, export })
}

fn export_name(text: &str) -> Result<String, String> {
    let name = unescape(text)?;
    match name.len() <= EXPORT_BYTES_MAX && !name.contains('\0') {
        true => Ok(name),
        false => Err(format!(
            "the export's name has more than {EXPORT_BYTES_MAX} bytes, or a zero in it"
        )),
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let digits = digits.filter(|two| two.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let value = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(value.ok_or("'%' is followed by two hexadecimal digits")?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| "the name is not UTF-8".into())
}

/// Everything but plain letters as `%XX`; different inputs stay different.
fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => {
                out.push(char::from(byte));
            }
            _ => write!(out, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) {
        let parse = |text| Uri::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        assert_eq!(parse(a).identity(), parse(b).identity());
        assert_eq!(parse(&parse(a).identity()), parse(b), "reads back");
    }

    #[test]
    fn two_spellings_of_one_export_have_one_identity() {
        same("nbd://Store/a", "nbd://store:10809/%61");
        same("nbd://store", "nbd://store:10809/");
        same("nbd://[::1]:10/x", "nbd://[::1]:10/x");
        same(
            "nbd+unix:///a%20b?socket=/run//n.sock",
            "nbd+unix:///a%20b?socket=%2Frun/./n.sock",
        );
        let other = Uri::parse("nbd://store:10810/a").expect("a name");
        assert_ne!(
            other.identity(),
            Uri::parse("nbd://store/a").expect("a name").identity()
        );
    }

    #[test]
    fn what_is_no_name_of_an_export_is_refused() {
        for wrong in [
            "nbd:",
            "nbd:///a",
            "nbd://host:0/a",
            "nbd://host:x/a",
            "nbd://[::1/a",
            "nbd://user@host/a",
            "nbd://host/a?b",
            "nbd://host/%4",
            "nbd://host/%+1",
            "nbd+unix:///a",
            "nbd+unix://host/a?socket=/s",
            "nbd+unix:///a?socket=s",
            "nbd+unix:///a?socket=/a/../s",
        ] {
            assert!(Uri::parse(wrong).is_err(), "{wrong}");
        }
    }
}
