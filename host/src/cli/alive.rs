//! Whether a host that a record names lives, as far as this host can see.
//!
//! Always true: where the daemon of this host runs, its links tell, and with which cache the other
//! host runs; else the addresses of that host are called, and who has its certificate lives.
//! Deliberately absent: proof. One that is not seen may live all the same, and is an
//! administrator's word.

use super::Context;
use crate::cluster::hosts::Hosts;
use crate::cluster::identity::Identity;
use crate::cluster::probe;
use node::record::Holder;
use serde_json::Value;

/// How other hosts are seen.
pub struct Eyes {
    /// What the daemon of this host knows of the others, if it runs.
    peers: Option<Value>,
    identity: Identity,
    hosts: Hosts,
}

impl Eyes {
    pub fn of(context: &Context, identity: &Identity, hosts: &Hosts) -> Eyes {
        let client = context.client().ok();
        Eyes {
            peers: client.and_then(|client| client.get("/v1/peers").ok()),
            identity: identity.clone(),
            hosts: hosts.clone(),
        }
    }

    /// Why this host is taken to live, with the cache that it had.
    pub fn why_alive(&self, holder: &Holder) -> Option<String> {
        let name = &holder.name;
        let Some(document) = &self.peers else {
            let host = self.hosts.get(holder.host)?;
            let answers = probe::answers(&self.identity, host);
            return answers.then(|| {
                format!(
                    "{name} answers at {}; stop it first",
                    host.addresses.join(", ")
                )
            });
        };
        let id = holder.host.to_string();
        let peer = document["peers"]
            .as_array()?
            .iter()
            .find(|it| it["id"] == id.as_str())?;
        let same = peer["cache"] == holder.cache.to_string().as_str();
        let state = peer["state"].as_str().filter(|state| *state != "down")?;
        same.then(|| format!("{name} lives: its link to this host is {state}"))
    }
}
