//! How other threads speak to the shard: a bounded channel and an eventfd that wakes it.
//!
//! Always true: every request is answered once, or its sender learns that the shard has stopped.
//! A full channel makes the asker wait, never the shard. Deliberately absent: anything about
//! HTTP or the command line; `admin` and `daemon` build on [`Handle`].

use super::copies::{Asked, Inlet, Mail, Order as CopyOrder, Stream};
use super::former::Former;
use super::guest::Order;
use super::pooled::Pooled;
use super::record::{self, Recorded, Taken};
use crate::backup::live::Live;
use crate::backup::{Backup, Window};
use crate::cluster::data::DataSink;
use crate::frontend::nbd::Tls;
use crate::frontend::vhost_user::DataError;
use crate::frontend::vhost_user::capacity::LiveDisk;
use crate::frontend::vhost_user::guest_memory::GuestMemory;
use crate::latency::Recorder;
use crate::limit::{GuestLimit, Waits};
use crate::origin::file::{OpenVolume, Sides};
use crate::origin::mapped::Mapped;
use crate::peer::Peer;
use crate::ring::Waker;
use crate::target::Target;
use crate::waiting::Waiting;
use engine::chart::{Cursor, Page};
use engine::engine::{OpenError, Settled};
use engine::event::{Command, Refusal, VolumeSpec};
use engine::image::Image;
use engine::origin::Map;
use engine::sample::Samples;
use engine::snapshot::{CopyRoom, CopySnapshot, Snapshot};
use engine::types::{PeerId, Span as Sectors, Time, Uuid, VolumeId};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Requests that may wait in the channel.
const REQUESTS_MAX: usize = 256;

/// The shard thread has ended; nothing will answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the daemon is stopping")]
pub struct Stopped;

/// Why a command had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a volume did not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Which exports the clients of a listener see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerScope {
    All,
    /// The same, over the network.
    Network,
    /// One export by name; it is the default export as well.
    Volume(String),
    /// Front ends of one volume, which the shard hands on.
    Rings(String),
}

/// A client of the NBD server, past its accept.
pub struct Arrival {
    /// Its connection, or that of the thread which makes its bytes plain.
    pub socket: OwnedFd,
    pub peer: Peer,
    pub tls: Tls,
}

impl Arrival {
    pub fn plain(socket: OwnedFd) -> Arrival {
        Arrival {
            peer: Peer::of(&socket),
            socket,
            tls: Tls::Absent,
        }
    }
}

/// Who takes the clients of a socket that the shard only listens at.
pub type Greeter = Arc<dyn Fn(OwnedFd) + Send + Sync>;

/// What clients find under the name of an export.
pub(super) enum ExportAs {
    Set(Export),
    Held,
    Away(Waiting),
    Nothing,
}

/// A volume under the name that clients ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    pub volume: VolumeId,
    pub size_bytes: u64,
    pub read_only: bool,
    /// Several clients may write at once.
    pub shared: bool,
    /// Logical block that clients are shown.
    pub block_bytes: u32,
    pub description: String,
}

/// What a flush of a volume needs beside the log of this host, from its first one on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Though nothing is sent to them before they are started.
    pub peers: Vec<PeerId>,
    /// Its origin has what it covers.
    pub at_origin: bool,
    /// The same by an administrator's order.
    pub through: bool,
    /// Not of a flush: its image rests from the first moment on, and other hosts know that.
    pub rests: bool,
    /// Nor this: the record that gave a clustered volume to this host, if that is told.
    pub given: u64,
}

/// A volume that joins: its files, its ledger and how it is shown.
pub struct Attach<S = Settled> {
    pub id: VolumeId,
    pub spec: VolumeSpec,
    pub files: OpenVolume,
    pub settled: S,
    /// Where the bytes of its image lie, if that is not raw.
    pub map: Option<Box<dyn Map>>,
    pub exports: Vec<(String, Export)>,
    pub limit: GuestLimit,
    pub needs: Needs,
    /// Bitmaps in which its changes are marked.
    pub lives: Vec<Arc<Live>>,
    /// Of a member of a pool.
    pub pooled: Option<Pooled>,
}

/// Another file in the place of an image: what is open from now on, and what its volume knows.
pub struct Exchange {
    pub id: VolumeId,
    pub origin: Arc<Target>,
    pub mapped: Arc<Mapped>,
    pub map: Box<dyn Map>,
    pub image: Image,
}

/// What the host counted beside the engine. Counters run since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    pub connections: u64,
    pub connections_accepted: u64,
    /// Closed at once because the bound of connections was reached.
    pub connections_refused: u64,
    /// Closed because the handshake took too long.
    pub handshakes_timed_out: u64,
    pub protocol_errors: u64,
    pub requests_in_flight: u64,
    pub buffer_bytes_used: u64,
    pub buffer_bytes: u64,
    pub device_requests_in_flight: u64,
    /// Device requests that needed a copy because direct I/O does not take their alignment.
    pub bounced: u64,
    /// Guest requests that were not whole sectors.
    pub unaligned: u64,
    /// Requests that front ends had with an earlier daemon and that were begun anew, and writes of
    /// these that recovery had found.
    pub requests_again: u64,
    pub requests_found: u64,
    /// Times the thread went to sleep in the kernel.
    pub sleeps: u64,
}

/// The connections of one volume.
#[derive(Clone, Debug)]
pub struct VolumeClients {
    pub volume: VolumeId,
    /// How long they wait under the policy in effect; none before the first came. Counts go on
    /// while they are read.
    pub latency: Option<Arc<Recorder>>,
    pub clients: u64,
    /// For its limit.
    pub waits: Waits,
    pub exports: Vec<String>,
}

/// A command on its way.
pub struct CommandReply(oneshot::Receiver<Result<(), Refusal>>);

impl CommandReply {
    /// Whether the engine has replied, without waiting for it.
    pub fn is_over(&mut self) -> bool {
        !matches!(self.0.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    /// The reply, once, if the engine has replied.
    pub fn take(&mut self) -> Option<Result<(), CommandError>> {
        match self.0.try_recv() {
            Ok(result) => Some(result.map_err(CommandError::from)),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(Stopped.into())),
        }
    }

    /// Blocks until the engine has replied.
    pub fn wait(self) -> Result<(), CommandError> {
        Ok(self.0.blocking_recv().map_err(|_| Stopped)??)
    }
}

/// Everything the shard can tell about itself.
#[derive(Clone, Debug)]
pub struct HostSnapshot {
    pub engine: Snapshot,
    pub host: HostCounters,
    pub volumes: Vec<VolumeClients>,
    /// When it was taken.
    pub now: Time,
}

pub(super) type Answer<T> = oneshot::Sender<T>;

/// A front end that has a device of a volume.
pub(super) struct GuestOpen {
    pub volume: VolumeId,
    pub disk: LiveDisk,
    pub queues: u16,
    pub memory: Arc<GuestMemory>,
    pub peer: Peer,
    /// Others may write at the same time.
    pub shared: bool,
}

/// What backups ask for.
pub(super) enum BackupOrder {
    /// Images are to rest: of a volume and its group, in this window.
    Window(
        Box<(VolumeId, Vec<VolumeId>, Arc<Window>)>,
        Answer<Result<(), Refusal>>,
    ),
    Show(Vec<(VolumeId, Arc<Backup>)>, Answer<bool>),
    Track(VolumeId, Vec<Arc<Live>>, Answer<()>),
}

/// What can be asked of the shard.
pub(super) enum Request<S> {
    Place(String, Answer<VolumeId>),
    Attach(Box<Attach<S>>, Answer<Result<(), OpenError>>),
    Command(Command, Answer<Result<(), Refusal>>),
    Backup(BackupOrder),
    Exchange(Box<Exchange>, Answer<Result<(), Refusal>>),
    Prove(Box<Attach<S>>, Answer<Result<(), AttachError>>),
    FindImage(VolumeId, Answer<Option<Arc<Mapped>>>),
    FindSides(VolumeId, Answer<Option<Sides>>),
    TakeSides(VolumeId, Box<Sides>, Answer<()>),
    MoveStage(File, Answer<io::Result<()>>),
    Ping(Answer<()>),
    Snapshot(Answer<HostSnapshot>),
    Samples(Answer<Samples>),
    Chart(VolumeId, Cursor, Answer<Result<Page, Refusal>>),
    ReadAhead(VolumeId, Sectors, Answer<Result<(), Refusal>>),
    Listen(OwnedFd, ListenerScope, Answer<()>),
    HandOn(OwnedFd, ListenerScope, Greeter, Answer<()>),
    Welcome(Box<Arrival>),
    Unlisten(ListenerScope, Answer<()>),
    Export(String, ExportAs, Answer<()>),
    Limit(VolumeId, GuestLimit, Answer<()>),
    Clients(VolumeId, Answer<u64>),
    /// Without front ends whose rings do not run yet.
    ClientsIn(VolumeId, Answer<u64>),
    LetIn(VolumeId),
    Disconnect(VolumeId, Answer<()>),
    GuestOpen(Box<GuestOpen>, Answer<Result<u32, DataError>>),
    Guest(u32, Order),
    GuestEnd(u32, bool),
    Record(record::Order),
    Copies(Asked),
    Stop(Answer<Result<(), Refusal>>),
}

/// The shard as other threads see it. Cheap to clone.
///
/// The plain methods block and must not be called from asynchronous code; each has a twin that
/// ends in `_async`.
pub struct Handle<S = Settled> {
    sender: mpsc::Sender<Request<S>>,
    waker: Arc<Waker>,
    mail: Arc<Mail>,
}

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Handle {
            sender: self.sender.clone(),
            waker: self.waker.clone(),
            mail: self.mail.clone(),
        }
    }
}

/// The shard's end of the channel.
pub(super) type Requests<S> = mpsc::Receiver<Request<S>>;

/// The two ends of a control channel, and the mail beside it.
pub(super) fn channel<S>(waker: Arc<Waker>) -> (Handle<S>, Requests<S>, Arc<Mail>) {
    let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
    let mail = Mail::new(waker.clone());
    let handle = Handle {
        sender,
        waker,
        mail: mail.clone(),
    };
    (handle, receiver, mail)
}

impl<S> Handle<S> {
    fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request<S>) -> Result<T, Stopped> {
        let (answer, reply) = oneshot::channel();
        self.sender
            .blocking_send(request(answer))
            .map_err(|_| Stopped)?;
        self.waker.wake();
        reply.blocking_recv().map_err(|_| Stopped)
    }

    async fn ask_async<T>(
        &self,
        request: impl FnOnce(Answer<T>) -> Request<S>,
    ) -> Result<T, Stopped> {
        let (answer, reply) = oneshot::channel();
        self.sender
            .send(request(answer))
            .await
            .map_err(|_| Stopped)?;
        self.waker.wake();
        reply.await.map_err(|_| Stopped)
    }

    /// The id under which a volume of this name joins.
    pub fn place(&self, name: &str) -> Result<VolumeId, Stopped> {
        self.ask(|answer| Request::Place(name.to_owned(), answer))
    }

    /// Joins a volume. Its exports appear when this returns.
    pub fn attach(&self, attach: Attach<S>) -> Result<(), AttachError> {
        Ok(self.ask(|answer| Request::Attach(Box::new(attach), answer))??)
    }

    /// Joins a volume that was attached without proof once more, with files that it may write. Its
    /// guest waits meanwhile. One that is refused goes on as before.
    pub fn prove(&self, attach: Attach<S>) -> Result<(), AttachError> {
        self.ask(|answer| Request::Prove(Box::new(attach), answer))?
    }

    /// Runs a command and waits for its reply, which for `Destage` can take as long as the
    /// origin does.
    pub fn command(&self, command: Command) -> Result<(), CommandError> {
        Ok(self.ask(|answer| Request::Command(command, answer))??)
    }

    /// Starts a command; its reply comes by what this returns.
    pub fn command_begin(&self, command: Command) -> Result<CommandReply, Stopped> {
        let (answer, reply) = oneshot::channel();
        self.sender
            .blocking_send(Request::Command(command, answer))
            .map_err(|_| Stopped)?;
        self.waker.wake();
        Ok(CommandReply(reply))
    }

    /// Brings the images of a volume and its group to rest, like [`Command::Quiesce`]; from then on
    /// the window is cut as soon as something is written to the image of one of the members.
    pub fn open_window(
        &self,
        volume: VolumeId,
        members: Vec<VolumeId>,
        window: Arc<Window>,
    ) -> Result<(), CommandError> {
        let order = Box::new((volume, members, window));
        Ok(self.ask(|answer| Request::Backup(BackupOrder::Window(order, answer)))??)
    }

    /// Shows backups to clients until their windows end. False if these have ended already.
    pub fn show_backups(&self, backups: Vec<(VolumeId, Arc<Backup>)>) -> Result<bool, Stopped> {
        self.ask(|answer| Request::Backup(BackupOrder::Show(backups, answer)))
    }

    /// Marks changes of a volume in these from now on, those under way included.
    pub fn track(&self, volume: VolumeId, lives: Vec<Arc<Live>>) -> Result<(), Stopped> {
        self.ask(|answer| Request::Backup(BackupOrder::Track(volume, lives, answer)))
    }

    /// Exchanges the image of a volume that [`Command::Announce`] was replied for, while its guest
    /// waits.
    pub fn exchange(&self, exchange: Exchange) -> Result<(), CommandError> {
        Ok(self.ask(|answer| Request::Exchange(Box::new(exchange), answer))??)
    }

    /// The files of an image that is not raw.
    pub fn image(&self, volume: VolumeId) -> Result<Option<Arc<Mapped>>, Stopped> {
        self.ask(|answer| Request::FindImage(volume, answer))
    }

    /// The open files of a volume, shared with the shard.
    pub fn sides(&self, volume: VolumeId) -> Result<Option<Sides>, Stopped> {
        self.ask(|answer| Request::FindSides(volume, answer))
    }

    /// Gives a volume the ledger and the journal that were made for it.
    pub fn take_sides(&self, volume: VolumeId, made: Sides) -> Result<(), Stopped> {
        self.ask(|answer| Request::TakeSides(volume, Box::new(made), answer))
    }

    /// Moves the stage into this file, which is as large and allocated.
    pub fn move_stage(&self, file: File) -> Result<io::Result<()>, Stopped> {
        self.ask(|answer| Request::MoveStage(file, answer))
    }

    pub async fn command_async(&self, command: Command) -> Result<(), CommandError> {
        Ok(self
            .ask_async(|answer| Request::Command(command, answer))
            .await??)
    }

    pub(super) fn guest_open(&self, open: GuestOpen) -> Result<Result<u32, DataError>, Stopped> {
        self.ask(|answer| Request::GuestOpen(Box::new(open), answer))
    }

    pub(super) fn guest<T>(
        &self,
        slot: u32,
        order: impl FnOnce(Answer<T>) -> Order,
    ) -> Result<T, Stopped> {
        self.ask(|answer| Request::Guest(slot, order(answer)))
    }

    /// Where the shard has ended there is nothing to end.
    pub(super) fn guest_end(&self, slot: u32, in_order: bool) {
        if self
            .sender
            .blocking_send(Request::GuestEnd(slot, in_order))
            .is_ok()
        {
            self.waker.wake();
        }
    }

    /// Hands each client of this socket on, whoever it is.
    pub fn hand_on(&self, socket: OwnedFd, name: &str, to: Greeter) -> Result<(), Stopped> {
        let scope = ListenerScope::Rings(name.to_owned());
        self.ask(|answer| Request::HandOn(socket, scope, to, answer))
    }

    /// Gives a client to the shard, which shows it all exports. One that it has no place for finds
    /// its connection closed.
    pub async fn welcome_async(&self, arrival: Arrival) -> Result<(), Stopped> {
        let sent = self.sender.send(Request::Welcome(Box::new(arrival))).await;
        sent.map_err(|_| Stopped)?;
        self.waker.wake();
        Ok(())
    }

    /// Returns when the loop has turned: the least that shows that it does.
    pub fn ping(&self) -> Result<(), Stopped> {
        self.ask(Request::Ping)
    }

    pub fn snapshot(&self) -> Result<HostSnapshot, Stopped> {
        self.ask(Request::Snapshot)
    }

    pub async fn snapshot_async(&self) -> Result<HostSnapshot, Stopped> {
        self.ask_async(Request::Snapshot).await
    }

    /// What guests have read since it was asked before.
    pub fn take_samples(&self) -> Result<Samples, Stopped> {
        self.ask(Request::Samples)
    }

    /// One page of what of a volume lies where.
    pub fn chart(&self, volume: VolumeId, from: Cursor) -> Result<Page, CommandError> {
        Ok(self.ask(|answer| Request::Chart(volume, from, answer))??)
    }

    /// Reads a part of a volume, so that the caches have it. Refused as busy where there is no
    /// buffer for it now, and as gone where there is no such volume.
    pub fn read_ahead(&self, volume: VolumeId, part: Sectors) -> Result<(), CommandError> {
        Ok(self.ask(|answer| Request::ReadAhead(volume, part, answer))??)
    }

    /// Accepts clients on a listening socket until `unlisten` or the end of the shard.
    pub fn listen(&self, listener: OwnedFd, scope: ListenerScope) -> Result<(), Stopped> {
        self.ask(|answer| Request::Listen(listener, scope, answer))
    }

    /// Closes the listeners of this scope; their clients stay.
    pub fn unlisten(&self, scope: ListenerScope) -> Result<(), Stopped> {
        self.ask(|answer| Request::Unlisten(scope, answer))
    }

    /// Shows a volume to clients under this name, or changes how it is shown to new ones.
    pub fn export_set(&self, name: &str, export: Export) -> Result<(), Stopped> {
        self.ask(|answer| Request::Export(name.to_owned(), ExportAs::Set(export), answer))
    }

    /// Refuses clients that ask for this name, until it is set or removed.
    pub fn export_hold(&self, name: &str) -> Result<(), Stopped> {
        self.ask(|answer| Request::Export(name.to_owned(), ExportAs::Held, answer))
    }

    /// Lets clients that ask for this name wait, until it is set, held, or removed.
    pub fn export_away(&self, name: &str, waiting: Waiting) -> Result<(), Stopped> {
        self.ask(|answer| Request::Export(name.to_owned(), ExportAs::Away(waiting), answer))
    }

    pub fn export_remove(&self, name: &str) -> Result<(), Stopped> {
        self.ask(|answer| Request::Export(name.to_owned(), ExportAs::Nothing, answer))
    }

    /// Limits the guest of a volume from now on.
    pub fn limit(&self, volume: VolumeId, limit: GuestLimit) -> Result<(), Stopped> {
        self.ask(|answer| Request::Limit(volume, limit, answer))
    }

    /// Clients of a volume but for front ends whose rings do not run yet.
    pub fn clients_in(&self, volume: VolumeId) -> Result<u64, Stopped> {
        self.ask(|answer| Request::ClientsIn(volume, answer))
    }

    /// Guests that wait with their first ring come in.
    pub fn let_in(&self, volume: VolumeId) -> Result<(), Stopped> {
        let sent = self.sender.blocking_send(Request::LetIn(volume));
        sent.map_err(|_| Stopped)?;
        self.waker.wake();
        Ok(())
    }

    /// Connections that have opened an export of this volume.
    pub fn clients(&self, volume: VolumeId) -> Result<u64, Stopped> {
        self.ask(|answer| Request::Clients(volume, answer))
    }

    pub async fn clients_async(&self, volume: VolumeId) -> Result<u64, Stopped> {
        self.ask_async(|answer| Request::Clients(volume, answer))
            .await
    }

    /// Closes every connection of this volume.
    pub fn disconnect(&self, volume: VolumeId) -> Result<(), Stopped> {
        self.ask(|answer| Request::Disconnect(volume, answer))
    }

    /// Begins to record the requests of these volumes; the number of the recording, or the name
    /// that is no volume's. `empty` is a [`record::buffer`](super::record::buffer).
    pub fn record_begin(
        &self,
        names: &[String],
        empty: Vec<Recorded>,
    ) -> Result<Result<u32, String>, Stopped> {
        self.ask(|answer| Request::Record(record::Order::Begin(names.to_vec(), empty, answer)))
    }

    /// What was recorded since the last time, in exchange for an empty buffer; `None` of a
    /// recording that has ended.
    pub fn record_take(&self, number: u32, empty: Vec<Recorded>) -> Result<Option<Taken>, Stopped> {
        self.ask(|answer| Request::Record(record::Order::Take(number, empty, answer)))
    }

    pub fn record_end(&self, number: u32) -> Result<(), Stopped> {
        self.ask(|answer| Request::Record(record::Order::End(number, answer)))
    }

    /// What hosts have to know of volumes for their copies; `None` of one that the log does not
    /// know.
    pub fn copy_views(&self, volumes: Vec<VolumeId>) -> Result<Vec<Option<CopySnapshot>>, Stopped> {
        self.ask(|answer| Request::Copies(Asked::Views(volumes, answer)))
    }

    /// A volume or a replica that the log knows under this name.
    pub fn find(&self, name: &str) -> Result<Option<VolumeId>, Stopped> {
        self.ask(|answer| Request::Copies(Asked::Find(name.to_owned(), answer)))
    }

    /// Room for copies in the log.
    pub fn copy_room(&self) -> Result<CopyRoom, Stopped> {
        self.ask(|answer| Request::Copies(Asked::Room(answer)))
    }

    /// From now on the batches of this volume for this peer go there. Takes the place of an older
    /// stream of both, and of one to the same copy.
    pub fn stream_open(&self, stream: Stream) -> Result<(), Stopped> {
        self.ask(|answer| Request::Copies(Asked::Order(CopyOrder::StreamOpen(stream), answer)))
    }

    /// From now on they go nowhere, and no acknowledgment of what was sent counts.
    pub fn stream_close(&self, volume: VolumeId, peer: PeerId) -> Result<(), Stopped> {
        self.ask(|answer| {
            Request::Copies(Asked::Order(CopyOrder::StreamClose(volume, peer), answer))
        })
    }

    /// From now on a copy takes the batches of this session, and of no other one: what was taken
    /// of an earlier one is not answered any more.
    pub fn inlet_open(&self, inlet: Inlet) -> Result<(), Stopped> {
        self.ask(|answer| Request::Copies(Asked::Order(CopyOrder::InletOpen(inlet), answer)))
    }

    /// From the return on a copy takes no batch, and none that it has taken is acknowledged.
    pub fn inlet_close(&self, copy: Uuid) -> Result<(), Stopped> {
        self.ask(|answer| Request::Copies(Asked::Order(CopyOrder::InletClose(copy), answer)))
    }

    /// From now on clean blocks of this volume may come from the host that had it before.
    pub fn former_open(&self, former: Former) -> Result<(), Stopped> {
        self.ask(|answer| Request::Copies(Asked::Order(CopyOrder::FormerOpen(former), answer)))
    }

    /// Brings the shard what other hosts send. What it is given after the shard has ended is
    /// dropped.
    pub fn sink(&self) -> Arc<dyn DataSink> {
        self.mail.clone()
    }

    /// Orderly end: no new clients, everything acknowledged into the log, then the thread ends.
    /// Returns when the data is safe, or cannot be made so.
    pub fn stop(&self) -> Result<(), CommandError> {
        Ok(self.ask(Request::Stop)??)
    }
}
