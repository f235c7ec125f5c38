//! The `[cluster]` section: the typed form, its keys, and its place in the text of the file.
//!
//! Always true: a section that is there names the cluster and where this host listens;
//! what is written by [`add`] reads back as it was meant, and [`remove`] takes the section and
//! nothing else: the rest of the file is compared before it is written. Deliberately absent: who
//! is a member, which is in the state directory.

use super::keys::{Key, check_name, quote, quote_path};
use super::place::{copy_place, show_place};
use super::values::Value;
use super::{Sources, Wrong, units};
use crate::unit::copies::CopyPlace;
use crate::vault::{RIGHT, Unfit, Vault};
use node::peers::PeerTimeout;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

pub const PORT: u16 = 7440;
/// Network cards of one host.
pub const LISTEN_MAX: usize = 4;
const DOMAIN_BYTES_MAX: usize = 63;

impl From<Unfit> for Wrong {
    fn from(unfit: Unfit) -> Wrong {
        match unfit.later {
            true => Wrong::later(unfit.what, unfit.right),
            false => Wrong::new(unfit.what, unfit.right),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    pub name: String,
    /// Where other hosts reach this one.
    pub listen: Vec<SocketAddr>,
    pub vault: Vault,
    pub domain: String,
    /// Of copies of volumes that say nothing.
    pub place: CopyPlace,
    pub peer_timeout: PeerTimeout,
    /// Called with a host's name; 0 = that host can write no more.
    pub fence: Option<PathBuf>,
    pub sources: Sources,
}

pub const CLUSTER: &[Key<Cluster>] = &[
    Key {
        name: "name",
        default: "",
        meaning: "name of the cluster",
        set: |cluster, value| {
            cluster.name = cluster_name(value.text("write a name")?)?;
            Ok(())
        },
        show: |cluster| quote(&cluster.name),
    },
    Key {
        name: "listen",
        default: "",
        meaning: "where other hosts reach this one; several addresses: several network cards",
        set: |cluster, value| {
            let list = value.words("write an address, as in \"10.0.0.1:7440\"")?;
            cluster.listen = addresses(&list)?;
            Ok(())
        },
        show: |cluster| {
            let list: Vec<String> = cluster.listen.iter().map(SocketAddr::to_string).collect();
            quote(&list.join(","))
        },
    },
    Key {
        name: "vault",
        default: "beside",
        meaning: "where records of owners lie: beside each image, in a shared directory, in etcd",
        set: |cluster, value| {
            cluster.vault = Vault::parse(value.text(RIGHT)?)?;
            Ok(())
        },
        show: |cluster| quote(&cluster.vault.show()),
    },
    Key {
        name: "domain",
        default: "",
        meaning: "fault domain of this host, as a rack",
        set: |cluster, value| {
            cluster.domain = domain(value.text("write a name")?)?;
            Ok(())
        },
        show: |cluster| quote(&cluster.domain),
    },
    Key {
        name: "place",
        default: "other-domain",
        meaning: "where copies go",
        set: |cluster, value| {
            cluster.place = copy_place(value)?;
            Ok(())
        },
        show: |cluster| show_place(&cluster.place),
    },
    Key {
        name: "peer-timeout",
        default: "1s",
        meaning: "a peer that is late for so long is left out; the same on all hosts",
        set: |cluster, value| {
            cluster.peer_timeout.ms = peer_timeout(value.millis("1s")?)?;
            Ok(())
        },
        show: |cluster| quote(&units::show_millis(cluster.peer_timeout.ms)),
    },
    Key {
        name: "fence",
        default: "",
        meaning: "a program: called with a host's name, 0 = that host can write no more",
        set: |cluster, value| {
            let empty = *value == Value::Text(String::new());
            cluster.fence = if empty { None } else { Some(value.path()?) };
            Ok(())
        },
        show: |cluster| {
            let fence = cluster.fence.as_deref();
            fence.map_or_else(|| quote(""), quote_path)
        },
    },
    Key {
        name: "encrypt",
        default: "tls",
        meaning: "how links are protected",
        set: |_, value| match value.word(&["tls", "integrity"])? {
            "tls" => Ok(()),
            other => Err(Wrong::later(format!("{other} is"), "write \"tls\"")),
        },
        show: |_| quote("tls"),
    },
];

/// What a section must have; the key that is missing.
pub fn missing(cluster: &Cluster) -> Option<&'static str> {
    let there = |key: &&str| !cluster.sources.contains_key(*key);
    ["name", "listen"].into_iter().find(there)
}

pub fn cluster_name(text: &str) -> Result<String, Wrong> {
    check_name(text).map_err(|wrong| {
        let what = format!("{text:?} is not a name for a cluster");
        Wrong::new(what, wrong.right)
    })?;
    Ok(text.into())
}

pub fn domain(text: &str) -> Result<String, Wrong> {
    let fits = text.len() <= DOMAIN_BYTES_MAX && !text.contains(char::is_control);
    match fits {
        true => Ok(text.into()),
        false => Err(Wrong::new(
            format!("{text:?} is not a domain"),
            format!("write at most {DOMAIN_BYTES_MAX} printable bytes"),
        )),
    }
}

/// Pings are sent five times a second; and an owner that waits for minutes is one that hangs.
fn peer_timeout(millis: u64) -> Result<u64, Wrong> {
    match millis {
        1_000..=60_000 => Ok(millis),
        _ => Err(Wrong::new(
            format!("{} is no time for a peer", units::show_millis(millis)),
            "write \"1s\" to \"60s\"",
        )),
    }
}

/// Addresses that other hosts can call; the port may be left out.
pub fn addresses(list: &[String]) -> Result<Vec<SocketAddr>, Wrong> {
    let right = format!("write 1 to {LISTEN_MAX} addresses, as in \"10.0.0.1:{PORT}\"");
    let mut found = Vec::new();
    for text in list {
        let bare = || text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT));
        let address = text.parse::<SocketAddr>().or_else(|_| bare());
        let wrong = |what: &str| Wrong::new(format!("{text:?} {what}"), right.clone());
        let address = address.map_err(|_| wrong("is not an address"))?;
        if address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0 {
            return Err(wrong("is no address that another host can call"));
        }
        if found.contains(&address) {
            return Err(wrong("stands there twice"));
        }
        found.push(address);
    }
    match (1..=LISTEN_MAX).contains(&found.len()) {
        true => Ok(found),
        false => Err(Wrong::new(format!("{} addresses", found.len()), right)),
    }
}

/// The text of a file with the section at its end.
pub fn add(text: &str, cluster: &Cluster) -> String {
    let mut text = text.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str("\n[cluster]\n");
    for key in CLUSTER {
        let always = ["name", "listen", "vault"].contains(&key.name);
        let value = (key.show)(cluster);
        let is_default = value == quote(key.default);
        if always || !is_default {
            text.push_str(&format!("{} = {value}\n", key.name));
        }
    }
    text
}

/// The text of a file without the section; `None` where that cannot be told from the rest.
pub fn remove(text: &str) -> Option<String> {
    let mut wanted = text.parse::<toml::Table>().ok()?;
    if wanted.remove("cluster").is_none() {
        return Some(text.to_owned());
    }
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_header = |line: &str| line.trim_start().starts_with('[');
    let own = |line: &&str| line.split('#').next().unwrap_or("").trim() == "[cluster]";
    let first = lines.iter().position(own)?;
    let rest = &lines[first + 1..];
    let next = rest.iter().position(|line| is_header(line));
    let mut end = first + 1 + next.unwrap_or(rest.len());
    // What stands directly above the next section is about that one.
    let comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    while end > first + 1 && comment(lines[end - 1]) {
        end -= 1;
    }
    let mut begin = first;
    if begin > 0 && lines[begin - 1].trim().is_empty() {
        begin -= 1;
    }
    let left = lines[..begin].concat() + &lines[end..].concat();
    let same = left.parse::<toml::Table>().ok()? == wanted;
    same.then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse::parse;
    use std::path::Path;

    fn cluster() -> Cluster {
        Cluster {
            name: "c1".into(),
            listen: vec!["10.0.0.1:7440".parse().expect("an address")],
            vault: Vault::Directory("/mnt/shared".into()),
            domain: "rack-1".into(),
            ..Cluster::default()
        }
    }

    #[test]
    fn a_section_that_is_added_reads_back_and_goes_without_a_trace() {
        for text in [
            "[host]\nname = \"a\"",
            "# first\n[host]\nname = \"a\"\n\n[[volume]]\nname = \"v\"\norigin = \"/x\"\n",
            "",
        ] {
            let with = add(text, &cluster());
            let config = parse(Path::new("f"), &with).expect("right");
            let mut read = config.cluster.expect("a section");
            read.sources.clear();
            assert_eq!(read, cluster());
            assert_eq!(remove(&with).expect("told apart").trim(), text.trim());
        }
    }

    #[test]
    fn only_the_section_goes_wherever_it_stands() {
        let text = "[host]\nname = \"a\"\n\n[cluster] # ours\nname = \"c\"\n\n# of the cache\n\
                    [cache]\nsize = \"1GiB\"\n";
        let left = "[host]\nname = \"a\"\n\n# of the cache\n[cache]\nsize = \"1GiB\"\n";
        assert_eq!(remove(text).as_deref(), Some(left));
        assert_eq!(remove("cluster = { name = \"c\" }\n"), None);
        let hidden = "[host]\nname = \"\"\"\n[cluster]\n\"\"\"\n[cluster]\nname = \"c\"\n";
        assert_eq!(remove(hidden), None);
    }

    #[test]
    fn keys_are_checked_like_all_others() {
        for (lines, key) in [
            ("name = \"c\"", "listen"),
            ("listen = \"10.0.0.1\"", "name"),
            (
                "name = \"a/b\"\nlisten = \"10.0.0.1\"\nvault = \"beside\"",
                "name",
            ),
            (
                "name = \"c\"\nlisten = \"0.0.0.0:1\"\nvault = \"beside\"",
                "listen",
            ),
            (
                "name = \"c\"\nlisten = \"here\"\nvault = \"beside\"",
                "listen",
            ),
            ("name = \"c\"\nlisten = \"::1\"\nvault = \"dir:x\"", "vault"),
            (
                "name = \"c\"\nlisten = \"::1\"\nvault = \"etcd://h\"",
                "vault",
            ),
            (
                "name = \"c\"\nlisten = \"::1\"\nvault = \"beside\"\nplace = \"near\"",
                "place",
            ),
            (
                "name = \"c\"\nlisten = \"::1\"\nvault = \"beside\"\npeer-timeout = \"2m\"",
                "peer-timeout",
            ),
            (
                "name = \"c\"\nlisten = \"::1\"\nvault = \"beside\"\nencrypt = \"integrity\"",
                "encrypt",
            ),
            (
                "name = \"c\"\nlisten = \"::1\"\nvault = \"beside\"\ncolour = 1",
                "colour",
            ),
        ] {
            let error = parse(Path::new("f"), &format!("[cluster]\n{lines}\n"));
            let error = error.expect_err(lines);
            assert_eq!(error.key, key, "{lines}: {error}");
        }
        let text = "[cluster]\nname = \"c\"\nlisten = [\"10.0.0.1\", \"[::1]:9\"]\n\
                    vault = \"beside\"\n";
        let config = parse(Path::new("f"), text).expect("right");
        let listen = config.cluster.expect("a section").listen;
        assert_eq!(listen.len(), 2);
        assert_eq!(listen[0].port(), PORT);
    }
}
