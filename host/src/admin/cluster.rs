//! The cluster as administrators see it: other hosts, tokens, checks, leaving and forgetting.
//!
//! Always true: a daemon without a cluster shows no peers and refuses the rest by name.
//! Deliberately absent: making and joining a cluster, which are done before a daemon knows of it.

use super::copies::{held_by, kept_for};
use super::{Admin, Look};
use crate::cluster::check::Asked;
use crate::cluster::{Links, Member, PeerView};
use crate::error::{Error, Result};
use crate::natural;
use engine::types::BLOCK_BYTES;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

impl Admin {
    /// The links of this daemon, told once.
    pub fn set_links(&self, links: Arc<Links>) {
        // A daemon starts its links once.
        let _ = self.links.set(links);
    }

    fn links(&self) -> Result<&Arc<Links>> {
        self.links.get().ok_or_else(|| {
            Error::failed(
                "cluster: this daemon is in none; run `tenuto cluster init` or `join`, then \
                 restart it",
            )
        })
    }

    pub(super) fn peer_views(&self) -> Vec<PeerView> {
        let links = self.links.get();
        let mut peers = links.map_or_else(Vec::new, |links| links.peers());
        peers.sort_by(|a, b| natural::compare(&a.member.name, &b.member.name));
        peers
    }

    /// Name, meaning and value, as the counters of the machine.
    pub(super) fn link_counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        let Some(links) = self.links.get() else {
            return Vec::new();
        };
        let refused = links.refused();
        let peers = links.peers();
        let up = peers.iter().filter(|peer| peer.state == "up").count();
        vec![
            ("peers", "Other hosts of the cluster.", peers.len() as u64),
            ("peers_up", "Other hosts with a link.", up as u64),
            (
                "cluster_refused_certificates_total",
                "Callers without a certificate of the cluster.",
                refused.certificates,
            ),
            (
                "cluster_refused_frames_total",
                "Connections that ended by a malformed frame.",
                refused.frames,
            ),
            (
                "cluster_refused_joins_total",
                "Hosts that were not let in.",
                refused.joins,
            ),
            (
                "cluster_refused_hosts_total",
                "Hosts of the cluster that are no members or of another version.",
                refused.hosts,
            ),
        ]
    }

    /// The document of `GET /v1/peers`.
    pub fn peers(&self) -> Value {
        let look = self.look().ok();
        let peers = self.peer_views();
        let peers: Vec<Value> = peers.iter().map(|it| peer(it, look.as_ref())).collect();
        let Some(links) = self.links.get() else {
            return json!({ "cluster": null, "own": null, "peers": peers, "refused": null });
        };
        let (id, name) = links.cluster();
        let refused = links.refused();
        json!({
            "cluster": { "id": id.to_string(), "name": name },
            "own": member(&links.own()),
            "peers": peers,
            "refused": {
                "certificates": refused.certificates,
                "frames": refused.frames,
                "joins": refused.joins,
                "hosts": refused.hosts,
            },
        })
    }

    pub fn token(&self) -> Result<Value> {
        let (token, valid) = self.links()?.token()?;
        Ok(json!({ "token": token, "valid_seconds": valid.as_secs() }))
    }

    pub fn leave(&self) -> Result<Value> {
        let Some(links) = self.links.get() else {
            // Others may know this host, and see it down.
            return Ok(json!({ "told": [], "not_told": [] }));
        };
        let left = links.leave()?;
        Ok(json!({ "told": left.told, "not_told": left.not_told }))
    }

    pub fn forget_host(&self, name: &str) -> Result<Value> {
        let left = self.links()?.forget(name)?;
        Ok(json!({ "told": left.told, "not_told": left.not_told }))
    }

    pub fn check_cluster(&self) -> Result<Value> {
        let asked = {
            let known = self.known();
            let cluster = known.config.cluster.clone().unwrap_or_default();
            let parent = |path: &Path| Some(path.canonicalize().ok()?.parent()?.to_path_buf());
            let origins = known.volumes.iter().filter(|volume| volume.writes_origin());
            let origins: BTreeSet<_> = origins.filter_map(|it| parent(&it.origin)).collect();
            Asked {
                vault: cluster.vault,
                fence: cluster.fence,
                origins: origins.into_iter().collect(),
            }
        };
        let found = self.links()?.check(&asked)?;
        let ok = found.iter().all(|finding| finding.ok);
        let found = found.iter().map(
            |it| json!({ "check": it.what, "object": it.object, "ok": it.ok, "text": it.text }),
        );
        Ok(json!({ "ok": ok, "findings": found.collect::<Vec<Value>>() }))
    }
}

/// One of `peers[]`, with what a look knows of copies.
pub(super) fn peer(peer: &PeerView, look: Option<&Look>) -> Value {
    let name = &peer.member.name;
    let mut document = member(&peer.member);
    document["state"] = json!(peer.state);
    document["reason"] = json!(peer.trouble);
    document["since_seconds"] = json!(peer.since.as_secs());
    document["latency_us"] = json!(peer.latency.map(|time| time.as_micros() as u64));
    document["copies"] = json!(look.map_or(0, |look| held_by(name, &look.units)));
    document["copies_kept"] = json!(look.map_or(0, |look| kept_for(name, &look.copies)));
    let room = peer
        .room_blocks
        .map(|blocks| blocks.saturating_mul(BLOCK_BYTES));
    document["copy_room_bytes"] = json!(room);
    document["version"] = json!(peer.program);
    document["protocol"] = json!(peer.protocol);
    document["boot"] = json!(peer.boot.map(|boot| boot.to_string()));
    document["cache"] = json!(peer.cache.map(|cache| cache.to_string()));
    document["clock_skew_ms"] = json!(peer.clock_skew_ms);
    document
}

fn member(member: &Member) -> Value {
    json!({
        "host": member.name,
        "id": member.id.to_string(),
        "domain": member.domain,
        "addresses": member.addresses,
    })
}
