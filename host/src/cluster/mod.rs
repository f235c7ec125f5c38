//! Hosts of a cluster and the links between them.
//!
//! Owns who this host is, who the others are, one connection to each of them and one more for the
//! batches that it is sent, and the commands that make and change a cluster. Always true: nothing
//! that a link says or does not say gives a right to a volume; a daemon whose links fail serves its
//! volumes as one without a cluster. Links have a thread of their own, so that neither guests nor
//! administrators wait for another host, and batches have another one, so that no link is late
//! because of them. Deliberately absent: volumes of the cluster, whose messages pass through as
//! bytes.

pub mod certificates;
pub mod check;
mod connection;
pub mod data;
#[cfg(test)]
mod data_tests;
mod drill;
mod greeting;
pub mod hosts;
pub mod identity;
pub mod join;
pub mod member;
pub mod probe;
mod shared;
#[cfg(test)]
mod tests;
pub mod tokens;
mod wire;

pub use data::{DataSink, Outlet};
pub use member::Member;
pub use shared::{LinkEvent, Listener, Owned, Settings};

use crate::error::{Error, Kind, Result, cause};
use connection::Tls;
use data::Data;
use engine::types::Uuid;
use node::frame::{BODY_BYTES_MAX, Frame, Question};
use shared::Shared;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokens::{Token, VALID_MS, fingerprint};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// How long others may take to hear that this host leaves.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);
/// A question may wait for a slow vault.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// All links of a daemon. Dropping it leaves them to the end of the process.
pub struct Links {
    shared: Arc<Shared>,
    data: Arc<Data>,
    running: Mutex<Vec<Running>>,
}

/// A thread with a runtime of its own.
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(
        name: &str,
        runtime: Runtime,
        run: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Running> {
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = run => {}
                    // An error says that the daemon forgot to say it.
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        let thread = thread.map_err(|error| Error::failed(format!("{name}: {}", cause(&error))))?;
        Ok(Running { stop, thread })
    }
}

fn runtime(name: &str) -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("{name}: {}", cause(&error))))
}

/// Another host, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerView {
    pub member: Member,
    /// "up", "silent" or "down".
    pub state: &'static str,
    pub since: Duration,
    pub latency: Option<Duration>,
    /// Of frames; `None` where there was no link yet.
    pub protocol: Option<u16>,
    pub program: Option<String>,
    pub boot: Option<Uuid>,
    /// The cache that it had then.
    pub cache: Option<Uuid>,
    pub clock_skew_ms: Option<i64>,
    /// Blocks of its log that copies may still take.
    pub room_blocks: Option<u64>,
    /// Why there is no link.
    pub trouble: Option<String>,
}

/// What was turned away since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedView {
    pub certificates: u64,
    pub frames: u64,
    pub joins: u64,
    pub hosts: u64,
}

/// What became of a host that leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    pub told: Vec<String>,
    /// These hear it from the others.
    pub not_told: Vec<String>,
}

impl Links {
    /// Starts to listen and to call. `on` is called by one thread, which it must not hold up.
    pub fn start(settings: Settings, on: Listener) -> Result<Links> {
        let (identity, hosts) = identity::load(&settings.state_dir)?;
        let tls = Tls {
            server: certificates::server(&identity.credentials())?,
            client: certificates::client(&identity.credentials())?,
        };
        let shared = Arc::new(Shared::new(identity, hosts, settings, on));
        shared.save()?;
        let (links, copies) = (runtime("links")?, runtime("copies")?);
        let data = Data::new(shared.clone(), tls.client.clone(), copies.handle().clone());
        let data = Arc::new(data);
        let places = connection::places(&shared.settings.listen);
        let run = connection::run(shared.clone(), tls, places, data.clone());
        let running = vec![
            Running::start("copies", copies, data::run(data.clone()))?,
            Running::start("links", links, run)?,
        ];
        Ok(Links {
            shared,
            data,
            running: Mutex::new(running),
        })
    }

    /// Closes all connections. What is sent from now on is not taken.
    pub fn stop(&self) {
        let running = self.running.lock();
        let running = std::mem::take(&mut *running.unwrap_or_else(PoisonError::into_inner));
        for Running { stop, thread } in running {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }

    /// The way of batches to a host. The connection is made for the first one who asks, and anew
    /// for the first one after its end was told.
    pub fn outlet(&self, host: Uuid) -> Arc<dyn Outlet> {
        self.data.outlet(host)
    }

    /// Says who takes the batches of other hosts, and their acknowledgments. Until then no host is
    /// let send any.
    pub fn set_sink(&self, sink: Arc<dyn DataSink>) {
        self.data.set_sink(sink);
    }

    /// Sends the body of a message about volumes; false if there is no link now, or its queue is
    /// full: then nothing of it was sent.
    pub fn send(&self, host: Uuid, body: Vec<u8>) -> bool {
        assert!(
            body.len() <= BODY_BYTES_MAX,
            "messages are bounded where they are made"
        );
        self.shared.send(host, &Frame::Unit(body))
    }

    /// All members but this one, also those that are down.
    pub fn hosts(&self) -> Vec<Member> {
        let own = self.shared.identity.host;
        let state = self.shared.state();
        let others = state.hosts.members().filter(|host| host.id != own);
        others.map(hosts::member_of).collect()
    }

    pub fn own(&self) -> Member {
        self.shared.own()
    }

    /// Id and name of the cluster.
    pub fn cluster(&self) -> (Uuid, String) {
        let identity = &self.shared.identity;
        (identity.cluster, identity.authority.cluster.clone())
    }

    /// The boot that a host was in when it was last heard.
    pub fn boot_of(&self, host: Uuid) -> Option<Uuid> {
        self.shared.state().peers.get(&host)?.boot
    }

    /// Says how to know the volumes that this host owns, which keep it from leaving.
    pub fn set_owned(&self, owned: Owned) {
        // The first one stays: a daemon has one set of volumes.
        let _ = self.shared.owned.set(owned);
    }

    /// The others hear it with the next ping.
    pub fn tell_room(&self, blocks: u64) {
        self.shared.room_blocks.store(blocks, Ordering::Relaxed);
    }

    pub fn peers(&self) -> Vec<PeerView> {
        let now = self.shared.now();
        let state = self.shared.state();
        let shown = state.peers.iter().filter_map(|(id, peer)| {
            let link = &peer.link;
            Some(PeerView {
                member: hosts::member_of(state.hosts.get(*id)?),
                state: shared::state_name(peer),
                since: Duration::from_nanos(now.since(link.since())),
                latency: link.round_trip_ns().map(Duration::from_nanos),
                protocol: Some(link.version()).filter(|version| *version > 0),
                program: peer.program.clone(),
                boot: peer.boot,
                cache: peer.cache,
                clock_skew_ms: link.skew_ms(),
                room_blocks: link.room_blocks(),
                trouble: peer.trouble.clone().filter(|_| !link.is_connected()),
            })
        });
        let mut shown: Vec<PeerView> = shown.collect();
        shown.sort_by(|one, other| one.member.name.cmp(&other.member.name));
        shown
    }

    pub fn refused(&self) -> RefusedView {
        let refused = &self.shared.refused;
        RefusedView {
            certificates: refused.certificates.load(Ordering::Relaxed),
            frames: refused.frames.load(Ordering::Relaxed),
            joins: refused.joins.load(Ordering::Relaxed),
            hosts: refused.hosts.load(Ordering::Relaxed),
        }
    }

    /// A token for one host, and how long it is good.
    pub fn token(&self) -> Result<(String, Duration)> {
        self.refuse_left()?;
        let secret = member::fresh_id().0;
        self.shared.issue(&secret);
        let own = self.own();
        let token = Token {
            fingerprint: fingerprint(&self.shared.identity.authority.certificate),
            secret,
            host: own.id,
            addresses: own.addresses,
        };
        Ok((token.show(), Duration::from_millis(VALID_MS)))
    }

    fn refuse_left(&self) -> Result<()> {
        match self.shared.state().left {
            false => Ok(()),
            true => Err(Error::failed(
                "cluster: this host is no member any more; run `tenuto cluster leave` to forget it",
            )),
        }
    }

    /// Tells the others that this host is no member any more, and closes its links. The identity
    /// stays for the caller to remove.
    pub fn leave(&self) -> Result<Leaving> {
        if let Some(owned) = self.shared.owned.get() {
            let names = owned();
            if let Some(first) = names.first() {
                let names = names.join(", ");
                let message = format!(
                    "cluster: this host owns {names}, which the others could not take over; let \
                     them be owned elsewhere or remove them first"
                );
                return Err(Error::refused(message).about(first.clone()));
            }
        }
        let own = self.shared.identity.host;
        let names = self
            .hosts()
            .into_iter()
            .map(|member| (member.id, member.name));
        let names: BTreeMap<Uuid, String> = names.collect();
        let mut up: Vec<Uuid> = Vec::new();
        {
            let mut state = self.shared.state();
            state.hosts.leave(own);
            let is_up =
                |(id, peer): (&Uuid, &shared::Peer)| peer.link.is_connected().then_some(*id);
            up.extend(state.peers.iter().filter_map(is_up));
        }
        self.shared.save()?;
        self.shared.tell_hosts();
        // A host that has heard it closes its link.
        let start = Instant::now();
        let is_up = |id: &Uuid| {
            let state = self.shared.state();
            state
                .peers
                .get(id)
                .is_some_and(|peer| peer.link.is_connected())
        };
        while start.elapsed() < LEAVE_PATIENCE && up.iter().any(is_up) {
            std::thread::sleep(LOOK);
        }
        let told: Vec<Uuid> = up.iter().filter(|id| !is_up(id)).copied().collect();
        self.shared.follow_hosts();
        let mut leaving = Leaving::default();
        for (id, name) in names {
            match told.contains(&id) {
                true => leaving.told.push(name),
                false => leaving.not_told.push(name),
            }
        }
        Ok(leaving)
    }

    /// Takes a host that is gone for good off the list of members, and tells the others. What it
    /// owns stays its own: that it is forgotten says nothing about what it writes.
    pub fn forget(&self, name: &str) -> Result<Leaving> {
        self.refuse_left()?;
        let peers = self.peers();
        let (found, others): (Vec<_>, Vec<_>) =
            peers.into_iter().partition(|peer| peer.member.name == name);
        let Some(gone) = found.first() else {
            let message = format!("host {name}: is no other member; `tenuto peer ls` lists them");
            return Err(Error::new(Kind::NotFound, message).about(name));
        };
        if gone.state != "down" {
            let message = format!(
                "host {name}: its link is {}, so it is not gone; run `tenuto cluster leave` there",
                gone.state
            );
            return Err(Error::refused(message).about(name));
        }
        self.shared.state().hosts.leave(gone.member.id);
        self.shared.save()?;
        self.shared.tell_hosts();
        self.shared.follow_hosts();
        let (told, not_told): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|peer| peer.state != "down");
        let names = |list: Vec<PeerView>| list.into_iter().map(|peer| peer.member.name).collect();
        Ok(Leaving {
            told: names(told),
            not_told: names(not_told),
        })
    }

    /// Asks a host to try something; `None` if it does not answer.
    fn ask(&self, host: Uuid, question: Question, text: String) -> Option<(bool, String)> {
        let (asker, answered) = sync_channel(1);
        let number = {
            let mut state = self.shared.state();
            let number = state
                .questions
                .last_key_value()
                .map_or(1, |(last, _)| last + 1);
            state.questions.insert(number, asker);
            number
        };
        let sent = self.shared.send(
            host,
            &Frame::Ask {
                number,
                question,
                text,
            },
        );
        let answer = sent.then(|| answered.recv_timeout(ANSWER_PATIENCE).ok());
        self.shared.state().questions.remove(&number);
        answer.flatten()
    }
}
