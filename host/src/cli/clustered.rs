//! Clustered volumes in `serve`: the daemon joins its cluster, and links carry its messages.
//!
//! Always true: volumes of the cluster are away until this host knows who it is, also where there
//! are no links: then the vault alone tells who owns what. Deliberately absent: links and units.

use crate::cluster::data::Outlet;
use crate::cluster::{LinkEvent, Links, PeerView, identity};
use crate::config::Cluster;
use crate::daemon::Daemon;
use crate::error::{Error, Result, cause};
use crate::unit::Post;
use crate::unit::logs::Neighbour;
use crate::unit::sides::Membership;
use engine::types::Uuid;
use node::record::{HOST_NAME_BYTES_MAX, Holder};
use std::path::Path;
use std::sync::Arc;

/// What a daemon has to know of its cluster.
pub(super) struct Joining<'a> {
    pub cluster: &'a Cluster,
    pub state_dir: &'a Path,
    pub host_name: &'a str,
}

/// Messages over links, if there are any.
struct ByLinks(Option<Arc<Links>>);

impl Post for ByLinks {
    fn send(&self, host: Uuid, body: Vec<u8>) -> bool {
        self.0.as_ref().is_some_and(|links| links.send(host, body))
    }

    fn name(&self, host: Uuid) -> Option<String> {
        let hosts = self.0.as_ref()?.hosts();
        let found = hosts.into_iter().find(|member| member.id == host);
        found.map(|member| member.name)
    }

    fn outlet(&self, host: Uuid) -> Option<Arc<dyn Outlet>> {
        Some(self.0.as_ref()?.outlet(host))
    }

    fn tell_room(&self, blocks: u64) {
        if let Some(links) = &self.0 {
            links.tell_room(blocks);
        }
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        let links = self.0.as_ref();
        let peers = links.into_iter().flat_map(|links| links.peers());
        let up = peers.filter(|peer| peer.state == "up");
        let neighbour = |peer: PeerView| {
            Some(Neighbour {
                host: peer.member.id,
                cache: peer.cache?,
                boot: peer.boot?,
                name: peer.member.name,
                domain: peer.member.domain,
                room_blocks: peer.room_blocks,
            })
        };
        up.filter_map(neighbour).collect()
    }
}

/// Lets the hosts of the cluster decide which of them serves a volume.
pub(super) fn join(
    with: &Joining<'_>,
    daemon: &Arc<Daemon>,
    links: Option<Arc<Links>>,
) -> Result<()> {
    let (identity, _) = identity::load(with.state_dir)?;
    let mut name = with.host_name.to_owned();
    while name.len() > HOST_NAME_BYTES_MAX {
        name.pop();
    }
    let member = Membership {
        cluster: identity.cluster,
        name: with.cluster.name.clone(),
        domain: with.cluster.domain.clone(),
        place: with.cluster.place.clone(),
        peer_timeout: with.cluster.peer_timeout,
        vault: with.cluster.vault.clone(),
        fence: with.cluster.fence.clone(),
        me: Holder {
            host: identity.host,
            cache: daemon.cache_id(),
            boot: daemon.boot(),
            session: Uuid(uuid::Uuid::new_v4().into_bytes()),
            name,
        },
        alone: None,
    };
    let joined = daemon.join_cluster(member, Arc::new(ByLinks(links.clone())));
    joined.map_err(|error| Error::failed(format!("cluster: {}", cause(&error))))?;
    if let Some(links) = links {
        links.set_sink(daemon.handle().sink());
        // Those that came before it had joined.
        let up = links.peers().into_iter().filter(|peer| peer.state == "up");
        for peer in up {
            hear(
                daemon,
                LinkEvent::Up {
                    host: peer.member.id,
                    boot: peer.boot.unwrap_or(Uuid::NIL),
                },
            );
        }
        let daemon = Arc::downgrade(daemon);
        links.set_owned(Box::new(move || {
            let shown = daemon.upgrade().map(|daemon| daemon.units_shown());
            let owned = shown.into_iter().flatten().filter(|(_, unit)| unit.here);
            owned.map(|(name, _)| name).collect()
        }));
    }
    Ok(())
}

/// The same for a daemon that acts for a host which is gone: it has no links, and the vault alone
/// tells it who owns what.
pub(super) fn join_alone(member: Membership, daemon: &Arc<Daemon>) -> Result<()> {
    let joined = daemon.join_cluster(member, Arc::new(ByLinks(None)));
    joined.map_err(|error| Error::failed(format!("cluster: {}", cause(&error))))
}

/// Tells the units what a link has brought.
pub(super) fn hear(daemon: &Daemon, event: LinkEvent) {
    let Some(units) = daemon.units() else {
        return;
    };
    match event {
        LinkEvent::Up { host, .. } => units.link(host, true),
        LinkEvent::Down { host } => units.link(host, false),
        LinkEvent::Unit { host, body } => units.heard(host, body),
        LinkEvent::DataDown { host } => units.data_down(host),
        LinkEvent::Data { host, body } => units.data(host, body),
    }
}
