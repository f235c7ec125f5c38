//! A host of a cluster whose images lie on a simulated storage network.
//!
//! Owns what `serve` does for such a host, as a process of its own: the daemon, its administrator's
//! socket, its links, and its part in the cluster. Always true: all volumes of the configuration
//! have the latency that is asked for, also those that come from another host; the process runs
//! until it is killed. Deliberately absent: what no benchmark needs, such as signals, volumes that
//! are added, and orders beyond those of `orders`. `serve` has no way to a storage that is not
//! there, so that no guest gets one.

mod orders;

use engine::types::Uuid;
use host::admin::Admin;
use host::admin::server::Server;
use host::cluster::{LinkEvent, Links, Outlet, PeerView, Settings as LinkSettings, identity};
use host::config::{Cluster, Config};
use host::daemon::{Daemon, SanSettings};
use host::error::{Error, Result, cause};
use host::unit::Post;
use host::unit::logs::Neighbour;
use host::unit::sides::Membership;
use node::record::Holder;
use orders::Orders;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Serves until the process is killed.
pub fn run(config: Config, latency: Duration) -> Result<()> {
    let cluster = config.cluster.clone().ok_or_else(|| {
        let file = config.path.display();
        Error::usage(format!("{file}: this host is in no cluster"))
    })?;
    let (socket, group) = (config.admin_socket(), config.socket_group());
    let (host, listen) = (config.host.clone(), config.listen.clone());
    let volumes = config.volumes.clone();
    let mut settings = config.settings(&volumes);
    for volume in &mut settings.volumes {
        volume.san = Some(SanSettings {
            latency,
            iops: None,
            bandwidth_bytes: None,
        });
    }
    let daemon = Daemon::start(settings).map_err(|error| Error::failed(error.to_string()))?;
    let daemon = Arc::new(daemon);
    let machine = Box::new(Orders(daemon.clone()));
    let admin = Arc::new(Admin::new(config, volumes, machine));
    let _server = Server::start(admin.clone(), &socket, group.as_deref(), &listen)?;
    daemon.keep_looking().map_err(failed)?;
    let links = start_links(&host.state_dir, &host.name, &cluster, &daemon)?;
    admin.set_links(links.clone());
    join(&host.state_dir, &host.name, &cluster, &daemon, links)?;
    loop {
        std::thread::park();
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("a host of the benchmark: {}", cause(&error)))
}

fn start_links(
    state_dir: &Path,
    host_name: &str,
    cluster: &Cluster,
    daemon: &Arc<Daemon>,
) -> Result<Arc<Links>> {
    let settings = LinkSettings {
        state_dir: state_dir.to_owned(),
        host_name: host_name.to_owned(),
        listen: cluster.listen.clone(),
        domain: cluster.domain.clone(),
        peer_timeout: cluster.peer_timeout,
        vault: cluster.vault.show(),
        boot: daemon.boot(),
        cache: daemon.cache_id(),
    };
    let serves = Arc::downgrade(daemon);
    let on = move |event| {
        if let Some(daemon) = serves.upgrade() {
            hear(&daemon, event);
        }
    };
    Links::start(settings, Box::new(on)).map(Arc::new)
}

fn join(
    state_dir: &Path,
    host_name: &str,
    cluster: &Cluster,
    daemon: &Arc<Daemon>,
    links: Arc<Links>,
) -> Result<()> {
    let (identity, _) = identity::load(state_dir)?;
    let member = Membership {
        cluster: identity.cluster,
        name: cluster.name.clone(),
        domain: cluster.domain.clone(),
        place: cluster.place.clone(),
        peer_timeout: cluster.peer_timeout,
        vault: cluster.vault.clone(),
        fence: cluster.fence.clone(),
        me: Holder {
            host: identity.host,
            cache: daemon.cache_id(),
            boot: daemon.boot(),
            session: Uuid(*uuid::Uuid::new_v4().as_bytes()),
            name: host_name.to_owned(),
        },
        alone: false,
    };
    let joined = daemon.join_cluster(member, Arc::new(ByLinks(links.clone())));
    joined.map_err(failed)?;
    links.set_sink(daemon.handle().sink());
    // Those that came before it had joined.
    for peer in up(&links) {
        let (host, boot) = (peer.member.id, peer.boot.unwrap_or(Uuid::NIL));
        hear(daemon, LinkEvent::Up { host, boot });
    }
    Ok(())
}

fn up(links: &Links) -> impl Iterator<Item = PeerView> {
    let peers = links.peers().into_iter();
    peers.filter(|peer| peer.state == "up")
}

/// Tells the units what a link has brought.
fn hear(daemon: &Daemon, event: LinkEvent) {
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

/// Messages of units over links.
struct ByLinks(Arc<Links>);

impl Post for ByLinks {
    fn send(&self, host: Uuid, body: Vec<u8>) -> bool {
        self.0.send(host, body)
    }

    fn name(&self, host: Uuid) -> Option<String> {
        let mut hosts = self.0.hosts().into_iter();
        hosts
            .find(|member| member.id == host)
            .map(|member| member.name)
    }

    fn outlet(&self, host: Uuid) -> Option<Arc<dyn Outlet>> {
        Some(self.0.outlet(host))
    }

    fn tell_room(&self, blocks: u64) {
        self.0.tell_room(blocks);
    }

    fn neighbours(&self) -> Vec<Neighbour> {
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
        up(&self.0).filter_map(neighbour).collect()
    }
}
