//! NBD over TLS: the TCP listener of a server that has certificates.
//!
//! Owns the connections of this listener from their first byte to their last: the words before
//! TLS, the handshake, and the bytes in between. The shard gets one end of a socket pair for each
//! client that has passed, and serves it like any other. This way the shard's thread neither
//! encrypts nor knows that something is encrypted: a plain connection costs what it did before,
//! and one thread that owns a cache device does not spend its time on ciphers. The price is one
//! more copy through the kernel for connections with TLS. TLS inside the connection of the shard
//! was the other design; it would have put a cipher, and buffers of its own, between the ring and
//! the buffers that payloads are received into.
//!
//! Always true: the shard sees no byte of a client before its handshake has succeeded; before
//! TLS there is no state but flags, so that nothing said in plain text survives; what a client may
//! occupy is bounded, and so is the number of handshakes at a time, each of which ends after
//! [`HANDSHAKE_PATIENCE`]; where one side takes nothing, nothing is read from the other one.
//! Deliberately absent: which option is answered how (`frontend::nbd`), and what requests mean.
//!
//! ```text
//!  accept -> plain options -> STARTTLS -> handshake -> relay <-> socket pair <-> shard
//!     |------- at most HANDSHAKES_MAX, 10 s --------|
//! ```

pub mod certificates;
mod connection;

use crate::error::cause;
use crate::shard::control::Handle;
use certificates::{Certificates, Settings, Unfit};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Duration, sleep};

/// Clients that have not shown yet who they are. A host of desktops starts them in turns of
/// seconds, and a handshake takes milliseconds.
const HANDSHAKES_MAX: usize = 64;
/// From the accept to the end of the handshake, for a client on a slow link.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// As many as the shard has places for.
const CONNECTIONS_MAX: usize = 4096;
/// Connections that get large buffers, so that all of them together stay below 200 MiB.
const CONNECTIONS_FAST: usize = 256;
/// Pause after an accept that failed for want of something.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// A MiB takes less than a millisecond of a core here, so that one serves a link of 10 Gbit/s; more
/// threads would take cores from guests.
const THREADS_MAX: usize = 4;
/// How long what was said last may take to reach clients at the end of the daemon.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// A listener, its clients and its threads.
pub struct SecureListener {
    shared: Arc<Shared>,
    runtime: Mutex<Option<(Runtime, oneshot::Sender<()>)>>,
}

struct Shared {
    settings: Settings,
    /// A lock, because a reload exchanges them while clients come.
    certificates: Mutex<Certificates>,
    handshakes: Arc<Semaphore>,
    places: Arc<Semaphore>,
    handle: Handle,
}

impl Shared {
    fn certificates(&self) -> MutexGuard<'_, Certificates> {
        let locked = self.certificates.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a connection may have large buffers.
    fn is_roomy(&self) -> bool {
        self.places.available_permits() >= CONNECTIONS_MAX - CONNECTIONS_FAST
    }
}

impl SecureListener {
    /// Takes clients from now on.
    pub fn start(
        listener: OwnedFd,
        settings: Settings,
        certificates: Certificates,
        handle: Handle,
        cores: usize,
    ) -> io::Result<SecureListener> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads((cores / 2).clamp(1, THREADS_MAX))
            .thread_name("nbd-tls")
            .enable_all()
            .build()?;
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        say_who_is_checked(&settings, &certificates);
        let shared = Arc::new(Shared {
            settings,
            certificates: Mutex::new(certificates),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            handle,
        });
        let (stop, stopped) = oneshot::channel();
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        runtime.spawn(accept_until(stopped, listener, shared.clone()));
        Ok(SecureListener {
            shared,
            runtime: Mutex::new(Some((runtime, stop))),
        })
    }

    /// Reads the certificates again, for clients that come from now on; whether they are others.
    pub fn renew(&self) -> Result<bool, Unfit> {
        let fresh = self.shared.settings.read()?;
        let mut current = self.shared.certificates();
        if current.verify_peer && !fresh.verify_peer {
            return Err(Unfit {
                what: "tls: ca-cert.pem has gone, so that clients would not be checked any more"
                    .into(),
                right: "put it back, or write verify-peer = false and restart",
            });
        }
        let changed = !current.is_same(&fresh);
        *current = fresh;
        Ok(changed)
    }

    /// Takes no more clients. Those that are here end with the shard.
    pub fn close(&self) {
        let mut runtime = self.runtime();
        if let Some((_, stop)) = runtime.as_mut() {
            let (unused, _) = oneshot::channel();
            let _ = std::mem::replace(stop, unused).send(());
        }
    }

    /// Ends everything, after the shard.
    pub fn stop(&self) {
        if let Some((runtime, _)) = self.runtime().take() {
            let ends = self.shared.places.clone();
            // What the shard has said at last is still on its way to the clients.
            let all = async move { ends.acquire_many(CONNECTIONS_MAX as u32).await.is_ok() };
            let _ = runtime.block_on(async { tokio::time::timeout(END_PATIENCE, all).await });
            runtime.shutdown_background();
        }
    }

    fn runtime(&self) -> MutexGuard<'_, Option<(Runtime, oneshot::Sender<()>)>> {
        let locked = self.runtime.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}

fn say_who_is_checked(settings: &Settings, certificates: &Certificates) {
    let directory = settings.directory.display();
    match certificates.verify_peer {
        true => tracing::info!("NBD over TLS: clients need a certificate of the CA in {directory}"),
        false => tracing::warn!(
            "NBD over TLS: every client may connect, because certificates of clients are not \
             checked; put ca-cert.pem into {directory}, and write no verify-peer = false"
        ),
    }
}

async fn accept_until(stopped: oneshot::Receiver<()>, listener: TcpListener, shared: Arc<Shared>) {
    tokio::select! {
        () = accept_all(listener, &shared) => {}
        // An error says that the listener was dropped, which ends it as well.
        _ = stopped => {}
    }
}

/// Clients beyond the bounds wait in the kernel's queue.
async fn accept_all(listener: TcpListener, shared: &Arc<Shared>) {
    loop {
        let place = acquire(&shared.places).await;
        let turn = acquire(&shared.handshakes).await;
        match listener.accept().await {
            Ok((socket, from)) => {
                tokio::spawn(serve(shared.clone(), (socket, from), place, turn));
            }
            Err(error) => {
                tracing::warn!("cannot accept a client of NBD over TLS: {}", cause(&error));
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let permit = semaphore.clone().acquire_owned().await;
    permit.expect("the semaphore is never closed")
}

/// One client, from its first byte to its last.
async fn serve(
    shared: Arc<Shared>,
    (socket, from): (TcpStream, SocketAddr),
    place: OwnedSemaphorePermit,
    turn: OwnedSemaphorePermit,
) {
    let server = shared.certificates().server.clone();
    let opening = connection::open(socket, server);
    let opened = tokio::time::timeout(HANDSHAKE_PATIENCE, opening).await;
    drop(turn);
    let seconds = HANDSHAKE_PATIENCE.as_secs();
    match opened {
        Err(_) => tracing::info!("NBD over TLS: {from}: no TLS within {seconds} s; closed"),
        Ok(Err(why)) if why.is_silent() => tracing::debug!("NBD over TLS: {from}: {why}"),
        Ok(Err(why)) => tracing::warn!("NBD over TLS: {from}: refused: {why}"),
        Ok(Ok((stream, tls))) => {
            connection::relay(stream, tls, from, &shared.handle, shared.is_roomy()).await;
        }
    }
    drop(place);
}
