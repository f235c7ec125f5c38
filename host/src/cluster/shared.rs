//! What the threads of a daemon know of its links.
//!
//! Owns the list of members while the daemon runs, the state of each link, tokens, and which of two
//! connections to one host is kept: both sides call, and of two connections within one session of
//! both daemons the one that the host with the lower id has called stays. So a host that is back
//! finds the others at once, and both sides keep the same one. Always true: for each host `Up`
//! comes first, then units, then `Down`, and `Up` again only after that; queues are bounded and one
//! that is full takes nothing. Deliberately absent: reading and writing, which is `connection`.

use super::hosts::Hosts;
use super::identity::{self, Identity};
use super::member::{Member, fresh_id};
use super::tokens::{Refusal, Tokens};
use crate::error::Result;
use engine::types::{Time, Uuid};
use node::frame::{
    Frame, Hello, Host, Join, SECRET_BYTES, VERSION_MAX, VERSION_MIN, Welcome, negotiate,
};
use node::message::Body;
use node::peers::{Link, PeerTimeout, State as LinkState};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, Semaphore, mpsc};

/// Frames that wait for one host to take them.
const QUEUE_FRAMES: usize = 256;
/// Questions of others that are tried at a time.
const ANSWERS_MAX: usize = 4;
/// Calls and callers before they are known; more than a cluster has hosts.
pub const UNKNOWN_MAX: usize = 128;

/// What a daemon tells its links.
#[derive(Clone, Debug)]
pub struct Settings {
    pub state_dir: PathBuf,
    pub host_name: String,
    pub listen: Vec<SocketAddr>,
    pub domain: String,
    pub peer_timeout: PeerTimeout,
    /// As in the configuration.
    pub vault: String,
    pub boot: Uuid,
    pub cache: Uuid,
}

/// What happens on links. Told by the thread of links, and what is about data by that of copies;
/// neither must be made to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    Up {
        host: Uuid,
        boot: Uuid,
    },
    Down {
        host: Uuid,
    },
    Unit {
        host: Uuid,
        body: Vec<u8>,
    },
    /// The connection that this host had opened for batches has ended, or could not be made. Once
    /// for each.
    DataDown {
        host: Uuid,
    },
    /// A copy there has not taken what was sent to it.
    Data {
        host: Uuid,
        body: Body,
    },
}

pub type Listener = Box<dyn Fn(LinkEvent) + Send + Sync>;
/// The volumes that this host owns, by name.
pub type Owned = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// Attempts that were turned away.
#[derive(Default)]
pub struct Refused {
    /// Callers that prove nothing, or something else.
    pub certificates: AtomicU64,
    /// Hosts that do not speak as they should.
    pub frames: AtomicU64,
    pub joins: AtomicU64,
    /// Hosts with a right certificate that are no members, or of another version.
    pub hosts: AtomicU64,
}

pub struct Shared {
    pub identity: Identity,
    pub settings: Settings,
    session: Uuid,
    begun: Instant,
    on: Listener,
    pub owned: OnceLock<Owned>,
    pub refused: Refused,
    /// Of the log of this host, for copies; told with each ping.
    pub room_blocks: AtomicU64,
    pub answers: Semaphore,
    pub unknown: Arc<Semaphore>,
    /// A lock, because administrators and the thread of the links both look; held for moments.
    state: Mutex<State>,
    /// Lists are written one after the other.
    saving: Mutex<()>,
}

pub struct State {
    pub hosts: Hosts,
    pub peers: BTreeMap<Uuid, Peer>,
    pub tokens: Tokens,
    pub questions: BTreeMap<u64, SyncSender<(bool, String)>>,
    connections: u64,
    /// This host is no member any more.
    pub left: bool,
}

/// Another host.
pub struct Peer {
    pub link: Link,
    pub connection: Option<Connection>,
    pub boot: Option<Uuid>,
    pub cache: Option<Uuid>,
    /// Version of its program.
    pub program: Option<String>,
    /// Why there is no link.
    pub trouble: Option<String>,
}

pub struct Connection {
    number: u64,
    ours: bool,
    session: Uuid,
    queue: mpsc::Sender<Vec<u8>>,
    pub close: Arc<Notify>,
}

/// A connection that was taken.
pub struct Admitted {
    pub number: u64,
    pub host: Uuid,
    pub version: u16,
    pub queue: mpsc::Receiver<Vec<u8>>,
    pub close: Arc<Notify>,
}

impl Peer {
    fn new(now: Time, timeout: PeerTimeout) -> Peer {
        Peer {
            link: Link::new(now, timeout),
            connection: None,
            boot: None,
            cache: None,
            program: None,
            trouble: None,
        }
    }

    /// Whether the frame was taken.
    pub fn send(&self, frame: &Frame) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|it| it.queue.try_send(frame.encode(self.link.version())).is_ok())
    }
}

impl Shared {
    pub fn new(identity: Identity, hosts: Hosts, settings: Settings, on: Listener) -> Shared {
        let shared = Shared {
            identity,
            settings,
            session: fresh_id(),
            begun: Instant::now(),
            on,
            owned: OnceLock::new(),
            refused: Refused::default(),
            room_blocks: AtomicU64::new(0),
            answers: Semaphore::new(ANSWERS_MAX),
            unknown: Arc::new(Semaphore::new(UNKNOWN_MAX)),
            state: Mutex::new(State {
                hosts,
                peers: BTreeMap::new(),
                tokens: Tokens::default(),
                questions: BTreeMap::new(),
                connections: 0,
                left: false,
            }),
            saving: Mutex::new(()),
        };
        let own = shared.own();
        shared.state().hosts.revise(&own);
        shared.follow_hosts();
        shared
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        // A panic ends the process; a poisoned lock is met by tests only.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn own(&self) -> Member {
        Member {
            id: self.identity.host,
            name: self.settings.host_name.clone(),
            domain: self.settings.domain.clone(),
            addresses: self
                .settings
                .listen
                .iter()
                .map(SocketAddr::to_string)
                .collect(),
        }
    }

    /// Where a host is called.
    pub fn addresses(&self, host: Uuid) -> Vec<SocketAddr> {
        let state = self.state();
        let known = state.hosts.get(host);
        let addresses = known.into_iter().flat_map(|host| &host.addresses);
        addresses.filter_map(|it| it.parse().ok()).collect()
    }

    pub fn now(&self) -> Time {
        Time(self.begun.elapsed().as_nanos() as u64)
    }

    pub fn save(&self) -> Result<()> {
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts = self.state().hosts.clone();
        identity::save_hosts(&self.settings.state_dir, &hosts)
    }

    fn save_or_warn(&self) {
        if let Err(error) = self.save() {
            tracing::error!("{error}");
        }
    }

    pub fn tell(&self, event: LinkEvent) {
        (self.on)(event);
    }

    pub fn is_member(&self, host: Uuid) -> bool {
        let state = self.state();
        let known = state.hosts.get(host);
        !state.left && known.is_some_and(|known| !known.left)
    }

    pub fn is_up(&self, host: Uuid) -> bool {
        let state = self.state();
        let peer = state.peers.get(&host);
        peer.is_some_and(|peer| peer.link.is_connected())
    }

    /// What a connection begins with; `features` says what it is for.
    pub fn hello(&self, features: u64) -> Frame {
        let own = self.own();
        Frame::Hello(Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            features,
            cluster: self.identity.cluster,
            host: own.id,
            boot: self.settings.boot,
            session: self.session,
            cache: self.settings.cache,
            name: own.name,
            domain: own.domain,
            addresses: own.addresses,
            program: env!("CARGO_PKG_VERSION").into(),
        })
    }

    /// The version to speak with a host, or why there is none. Its certificate was checked.
    pub fn judge(&self, hello: &Hello) -> std::result::Result<u16, String> {
        if hello.cluster != self.identity.cluster {
            return Err("is of another cluster".into());
        }
        if hello.host == self.identity.host {
            return Err("has the identity of this host; leave the cluster there and join".into());
        }
        let state = self.state();
        if state.left || state.hosts.has_left(hello.host) {
            return Err("is no member any more; leave the cluster there and join".into());
        }
        let theirs = (hello.version_min, hello.version_max);
        negotiate((VERSION_MIN, VERSION_MAX), theirs).ok_or_else(|| {
            format!(
                "speaks versions {} to {}, and the other host {VERSION_MIN} to {VERSION_MAX}; \
                 upgrade one of them",
                theirs.0, theirs.1
            )
        })
    }

    /// Makes a connection the one to its host; `None` if another one stays.
    pub fn admit(&self, hello: &Hello, version: u16, ours: bool) -> Option<Admitted> {
        let now = self.now();
        let host = hello.host;
        let caller = if ours { self.identity.host } else { host };
        let lower = self.identity.host.min(host);
        let mut state = self.state();
        // One that was let in by another host may come before the list does.
        let is_new = state.hosts.get(host).is_none() && state.hosts.merge(host_of(hello));
        state.connections += 1;
        let number = state.connections;
        let peer = state
            .peers
            .entry(host)
            .or_insert_with(|| Peer::new(now, self.settings.peer_timeout));
        let kept = peer.connection.as_ref().is_some_and(|known| {
            let known_caller = if known.ours { self.identity.host } else { host };
            known.session == hello.session && known_caller == lower && caller != lower
        });
        if kept {
            peer.link.superseded();
            return None;
        }
        let replaced = peer.connection.take();
        if let Some(old) = &replaced {
            old.close.notify_one();
            peer.link.lost(now);
        }
        peer.link.connected(now, version);
        peer.boot = Some(hello.boot);
        peer.cache = Some(hello.cache);
        peer.program = Some(hello.program.clone());
        peer.trouble = None;
        let (queue, taken) = mpsc::channel(QUEUE_FRAMES);
        if !ours {
            // A caller that is not taken hears nothing, and takes the link for one that was not.
            let hello = self.hello(0).encode(version);
            queue.try_send(hello).expect("a new queue has room");
        }
        let close = Arc::new(Notify::new());
        peer.connection = Some(Connection {
            number,
            ours,
            session: hello.session,
            queue,
            close: close.clone(),
        });
        drop(state);
        if replaced.is_some() {
            (self.on)(LinkEvent::Down { host });
        }
        (self.on)(LinkEvent::Up {
            host,
            boot: hello.boot,
        });
        if is_new {
            self.save_or_warn();
            self.tell_hosts();
        }
        Some(Admitted {
            number,
            host,
            version,
            queue: taken,
            close,
        })
    }

    /// A connection has ended.
    pub fn ended(&self, host: Uuid, number: u64, why: String) {
        let now = self.now();
        let mut state = self.state();
        let Some(peer) = state.peers.get_mut(&host) else {
            return;
        };
        if peer
            .connection
            .as_ref()
            .is_none_or(|known| known.number != number)
        {
            return;
        }
        peer.connection = None;
        peer.link.lost(now);
        peer.trouble = Some(why);
        drop(state);
        (self.on)(LinkEvent::Down { host });
    }

    /// Whether a connection is the one to its host.
    pub fn is_current(&self, host: Uuid, number: u64) -> bool {
        let state = self.state();
        let connection = state
            .peers
            .get(&host)
            .and_then(|peer| peer.connection.as_ref());
        connection.is_some_and(|known| known.number == number)
    }

    /// A call came to nothing.
    pub fn not_called(&self, host: Uuid, why: String, refused: bool) {
        let now = self.now();
        if let Some(peer) = self.state().peers.get_mut(&host) {
            match refused {
                true => peer.link.refused(now),
                false => peer.link.failed(now),
            }
            // While the other side's call has made the link there is no trouble.
            if peer.connection.is_none() {
                peer.trouble = Some(why);
            }
        }
    }

    /// Time has passed; the hosts to call now.
    pub fn tick(&self) -> Vec<Uuid> {
        let (now, wall_ms) = (self.now(), wall_ms());
        let room_blocks = self.room_blocks.load(Ordering::Relaxed);
        let mut state = self.state();
        if state.left {
            return Vec::new();
        }
        let mut calls = Vec::new();
        for (host, peer) in &mut state.peers {
            let due = peer.link.tick(now, wall_ms, room_blocks);
            if let Some(ping) = due.ping {
                // One that is not taken is one that is not answered.
                peer.send(&Frame::Ping(ping));
            }
            if due.close
                && let Some(connection) = &peer.connection
            {
                connection.close.notify_one();
            }
            if due.call {
                calls.push(*host);
            }
        }
        calls
    }

    /// A frame of a host that is up. An error ends the connection.
    pub fn take(&self, host: Uuid, frame: Frame) -> std::result::Result<(), String> {
        let now = self.now();
        if let Some(peer) = self.state().peers.get_mut(&host) {
            peer.link.heard(now);
        }
        match frame {
            Frame::Ping(ping) => {
                if let Some(peer) = self.state().peers.get_mut(&host) {
                    peer.link.pinged(&ping);
                }
                let pong = Frame::Pong(node::frame::Pong {
                    number: ping.number,
                    wall_ms: wall_ms(),
                });
                self.send(host, &pong);
            }
            Frame::Pong(pong) => {
                if let Some(peer) = self.state().peers.get_mut(&host) {
                    peer.link.pong(now, &pong, wall_ms());
                }
            }
            Frame::Hosts(hosts) => self.merge(hosts),
            Frame::Unit(body) => (self.on)(LinkEvent::Unit { host, body }),
            Frame::Answer { number, ok, text } => {
                let asker = self.state().questions.remove(&number);
                // One that has stopped waiting needs no answer.
                let _ = asker.map(|asker| asker.try_send((ok, text)));
            }
            other => return Err(format!("{:?} is not expected here", other.kind())),
        }
        Ok(())
    }

    pub fn send(&self, host: Uuid, frame: &Frame) -> bool {
        let state = self.state();
        state.peers.get(&host).is_some_and(|peer| peer.send(frame))
    }

    fn merge(&self, hosts: Vec<Host>) {
        let mut state = self.state();
        let mut changed = false;
        for host in hosts {
            changed |= state.hosts.merge(host);
        }
        drop(state);
        if changed {
            self.save_or_warn();
            self.follow_hosts();
            self.tell_hosts();
        }
    }

    /// Lets peers be what the list says.
    pub fn follow_hosts(&self) {
        let now = self.now();
        let mut state = self.state();
        let own = self.identity.host;
        if state.hosts.has_left(own) && !state.left {
            tracing::warn!("cluster: this host is no member any more");
            state.left = true;
        }
        let members: Vec<Uuid> = state.hosts.members().map(|host| host.id).collect();
        for id in members.iter().filter(|id| **id != own) {
            state
                .peers
                .entry(*id)
                .or_insert_with(|| Peer::new(now, self.settings.peer_timeout));
        }
        let mut gone = Vec::new();
        let left = state.left;
        state.peers.retain(|id, peer| {
            let stays = !left && members.contains(id);
            if !stays && let Some(connection) = &peer.connection {
                connection.close.notify_one();
                gone.push(*id);
            }
            stays
        });
        drop(state);
        for host in gone {
            (self.on)(LinkEvent::Down { host });
        }
    }

    /// Gives all others the list.
    pub fn tell_hosts(&self) {
        let state = self.state();
        let frame = Frame::Hosts(state.hosts.list());
        for peer in state.peers.values().filter(|peer| peer.link.is_connected()) {
            peer.send(&frame);
        }
    }

    pub fn issue(&self, secret: &[u8; SECRET_BYTES]) {
        let now = self.now();
        self.state().tokens.issue(secret, now);
    }

    /// Lets a host in that has shown the secret of a token.
    pub fn welcome(&self, join: &Join) -> std::result::Result<Welcome, String> {
        let now = self.now();
        let mut state = self.state();
        if state.left {
            return Err("the host that issued the token is no member any more".into());
        }
        state
            .tokens
            .take(&join.secret, now)
            .map_err(|refusal: Refusal| refusal.words())?;
        let name = &join.name;
        if state.hosts.members().any(|host| host.name == *name) {
            return Err(format!(
                "host {name}: is the name of another member; give this one another [host] name \
                 and take a new token"
            ));
        }
        let certificate = self.identity.authority.sign(join.host, &join.public_key);
        let certificate = certificate.map_err(|error| error.message)?;
        let taken = state.hosts.get(join.host).is_none()
            && state.hosts.merge(Host {
                id: join.host,
                revision: 1,
                left: false,
                name: join.name.clone(),
                domain: join.domain.clone(),
                addresses: join.addresses.clone(),
            });
        if !taken {
            return Err("the cluster has no room for another host".into());
        }
        let hosts = state.hosts.list();
        drop(state);
        self.save().map_err(|error| error.message)?;
        self.follow_hosts();
        self.tell_hosts();
        Ok(Welcome {
            cluster: self.identity.cluster,
            name: self.identity.authority.cluster.clone(),
            vault: self.settings.vault.clone(),
            certificate,
            ca_key: self.identity.authority.key.clone(),
            hosts,
        })
    }
}

impl Refused {
    pub fn add(counter: &AtomicU64) -> u64 {
        counter.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn host_of(hello: &Hello) -> Host {
    Host {
        id: hello.host,
        revision: 1,
        left: false,
        name: hello.name.clone(),
        domain: hello.domain.clone(),
        addresses: hello.addresses.clone(),
    }
}

pub fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_millis() as u64)
}

/// The state of a link and the name of it.
pub fn state_name(peer: &Peer) -> &'static str {
    let state: LinkState = peer.link.state();
    state.name()
}
