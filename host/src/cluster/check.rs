//! `cluster check`: whether what the cluster relies on is there, tried from here.
//!
//! Always true: a check changes nothing but files of its own, which it removes; each finding names
//! what was tried, and a wrong one what would be right. Deliberately absent: anything that a check
//! cannot know, as whether an NFS server keeps what it has acknowledged.

use super::drill::{Drill, Place};
use super::{Links, PeerView, connection};
use crate::error::{Error, Result, cause};
use crate::vault::{Drills, Vault, is_known};
use node::frame::Question;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Clocks that differ by more make logs hard to compare, and certificates of new hosts wrong.
const SKEW_MS_MAX: u64 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub what: &'static str,
    /// The host, directory or program.
    pub object: String,
    pub ok: bool,
    pub text: String,
}

/// What is checked beside links.
pub struct Asked {
    pub vault: Vault,
    pub fence: Option<PathBuf>,
    /// Directories in which records lie if they lie beside images.
    pub origins: Vec<PathBuf>,
}

impl Links {
    /// Tries everything; takes as long as the slowest host.
    pub fn check(&self, asked: &Asked) -> Result<Vec<Finding>> {
        self.refuse_left()?;
        let peers = self.peers();
        let mut found = Vec::new();
        for peer in &peers {
            self.check_links(peer, &mut found)?;
        }
        if peers.is_empty() {
            let text = "no other host is a member yet; `tenuto cluster token` lets one in";
            found.push(finding("link", &self.own().name, true, text));
        }
        match &asked.vault {
            Vault::Beside => found.extend(asked.origins.iter().map(|it| check_directory(it))),
            vault => {
                if let Vault::Etcd(etcd) = vault {
                    found.extend(check_members(&Drills::new(etcd)));
                }
                self.check_vault(vault, &peers, &mut found);
            }
        }
        found.push(check_fence(asked.fence.as_deref()));
        found.push(proof(asked.fence.is_some()));
        Ok(found)
    }

    fn check_links(&self, peer: &PeerView, found: &mut Vec<Finding>) -> Result<()> {
        let name = &peer.member.name;
        let is_up = peer.state == "up";
        let link = match (is_up, &peer.trouble) {
            (true, _) => "up".to_owned(),
            (false, None) => format!("{}; see whether its daemon runs", peer.state),
            (false, Some(why)) => format!("{}: {why}", peer.state),
        };
        found.push(finding("link", name, is_up, link));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::failed(format!("runtime: {}", cause(&error))))?;
        let (ok, why) = runtime.block_on(connection::reach(&self.shared, peer.member.id));
        let addresses = peer.member.addresses.join(", ");
        found.push(reached(
            "port",
            name,
            ok,
            &why,
            &format!("answers at {addresses}"),
        ));
        if !peer.state.eq("down") {
            let answer = self.ask(peer.member.id, Question::Reach, String::new());
            let own = self.own().addresses.join(", ");
            let (ok, why) = answer.unwrap_or((false, "it does not answer".into()));
            found.push(reached(
                "port back",
                name,
                ok,
                &why,
                &format!("reaches {own}"),
            ));
        }
        found.push(check_version(peer));
        found.extend(check_clock(peer));
        Ok(())
    }

    fn check_vault(&self, vault: &Vault, peers: &[PeerView], found: &mut Vec<Finding>) {
        let Some(place) = Place::of(vault) else {
            return;
        };
        let (shown, good, right) = match vault {
            Vault::Directory(path) => (
                path.display().to_string(),
                "can be written, and links decide",
                "name a shared directory that this daemon may write, on a file system with hard \
                 links",
            ),
            other => (
                other.show(),
                "can be written, and the first one decides",
                "most members of the etcd must run, and this daemon may write below /tenuto/",
            ),
        };
        let drill = match Drill::begin(place) {
            Ok(drill) => drill,
            Err(why) => {
                found.push(finding("vault", &shown, false, format!("{why}; {right}")));
                return;
            }
        };
        found.push(finding("vault", &shown, true, good));
        for peer in peers.iter().filter(|peer| peer.state != "down") {
            let answer = self.ask(peer.member.id, Question::Drill, drill.question());
            let (ok, why) = answer.unwrap_or((false, "it does not answer".into()));
            let good = "finds the name that this host has made, and cannot replace it";
            found.push(reached("link drill", &peer.member.name, ok, &why, good));
        }
    }
}

fn finding(what: &'static str, object: &str, ok: bool, text: impl Into<String>) -> Finding {
    Finding {
        what,
        object: object.into(),
        ok,
        text: text.into(),
    }
}

fn reached(what: &'static str, object: &str, ok: bool, why: &str, good: &str) -> Finding {
    finding(what, object, ok, if ok { good } else { why })
}

fn check_version(peer: &PeerView) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let name = &peer.member.name;
    match (&peer.program, peer.protocol) {
        (Some(program), Some(protocol)) if peer.state != "down" => {
            let note = if program == own {
                ""
            } else {
                "; upgrade the older one soon"
            };
            let text = format!("{program}, here {own}, protocol {protocol}{note}");
            finding("version", name, true, text)
        }
        _ => finding("version", name, false, "not known without a link"),
    }
}

fn check_clock(peer: &PeerView) -> Option<Finding> {
    let skew = peer.clock_skew_ms?;
    let ok = skew.unsigned_abs() <= SKEW_MS_MAX;
    let right = if ok {
        ""
    } else {
        "; synchronise the clocks of both hosts"
    };
    let text = format!("{skew} ms ahead of this host{right}");
    Some(finding("clock", &peer.member.name, ok, text))
}

/// Members of an etcd that are down take away from those that may fail.
fn check_members(drills: &Drills) -> Vec<Finding> {
    let members = drills.versions().into_iter();
    let check = |(endpoint, version): (String, std::result::Result<String, String>)| match version {
        Ok(version) if is_known(&version) => {
            finding("vault member", &endpoint, true, format!("etcd {version}"))
        }
        Ok(version) => {
            let text = format!("etcd {version}; 3.4 or a newer one is needed");
            finding("vault member", &endpoint, false, text)
        }
        Err(why) => {
            let right = "start it, or name another member in the vault of [cluster]";
            finding("vault member", &endpoint, false, format!("{why}; {right}"))
        }
    };
    members.map(check).collect()
}

/// Where records lie beside images, each host tries for itself.
fn check_directory(directory: &Path) -> Finding {
    let shown = directory.display().to_string();
    match Drill::begin(Place::Directory(directory.to_owned())) {
        Ok(_) => finding("vault", &shown, true, "can be written, and links decide"),
        Err(why) => {
            let right = "use a vault in a shared directory instead";
            finding("vault", &shown, false, format!("{why}; {right}"))
        }
    }
}

fn check_fence(fence: Option<&Path>) -> Finding {
    let Some(path) = fence else {
        return finding("fence", "-", true, "none");
    };
    let shown = path.display().to_string();
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o111 != 0 => finding(
            "fence",
            &shown,
            true,
            "is there and can be run; it was not run",
        ),
        Ok(_) => finding(
            "fence",
            &shown,
            false,
            "is no program; name one, and chmod +x it",
        ),
        Err(error) => finding(
            "fence",
            &shown,
            false,
            format!("{}; name a program", cause(&error)),
        ),
    }
}

/// What counts here as proof that another host can write the origins no more.
fn proof(has_fence: bool) -> Finding {
    let ways = "the other host's own word; another boot of it, once its last writes have landed";
    let text = match has_fence {
        true => format!("{ways}; exit code 0 of the fence program; an administrator's word"),
        false => format!(
            "{ways}; an administrator's word; without a fence program a host that is cut off or \
             dead for good is waited for"
        ),
    };
    finding("proof", "-", true, text)
}
