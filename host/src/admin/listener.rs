//! A listener that keeps at most so many connections open, and one that keeps its socket.
//!
//! Always true: beyond the bound a client waits in the kernel's queue; a connection gives its
//! place back when it is dropped, however it ended; where the listener has a patience, a client
//! that takes nothing of its reply for so long loses its connection; a socket that is removed is
//! made again, and who is connected stays.

use super::Admin;
use super::events::{Kind, Notice, Severity};
use axum::serve::Listener;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Duration, Instant, Sleep, sleep, sleep_until};

/// Administrators and monitoring together; far more than anyone needs.
const CONNECTIONS_MAX: usize = 256;

/// How often the name of a socket is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A socket that is made again when its name is gone.
pub struct Kept {
    inner: UnixListener,
    admin: Arc<Admin>,
    path: PathBuf,
    group: Option<String>,
    identity: Option<(u64, u64)>,
    next_look: Instant,
}

impl Kept {
    pub fn new(inner: UnixListener, admin: Arc<Admin>, path: &Path, group: Option<&str>) -> Kept {
        Kept {
            inner,
            admin,
            path: path.to_owned(),
            group: group.map(str::to_owned),
            identity: identity(path),
            next_look: Instant::now() + LOOK_EVERY,
        }
    }

    fn look(&mut self) {
        self.next_look = Instant::now() + LOOK_EVERY;
        // One on which another program answers is left alone.
        if identity(&self.path) == self.identity || StdStream::connect(&self.path).is_ok() {
            return;
        }
        let shown = self.path.display();
        match super::server::bind(&self.path, self.group.as_deref()) {
            Ok(listener) => {
                let words = format!("socket {shown}: was removed; it is made again");
                tracing::warn!("{words}");
                let notice = Notice::host(Severity::Warning, Kind::Files, words);
                self.admin.events.tell(notice);
                self.inner = listener;
                self.identity = identity(&self.path);
            }
            Err(error) => tracing::error!("socket {shown}: was removed: {error}"),
        }
    }
}

/// Device and inode of what lies there.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

impl Listener for Kept {
    type Io = <UnixListener as Listener>::Io;
    type Addr = <UnixListener as Listener>::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let admin = self.admin.clone();
        loop {
            tokio::select! {
                client = Listener::accept(&mut self.inner) => return client,
                () = admin.socket_look.notified() => {}
                () = sleep_until(self.next_look) => {}
            }
            self.look();
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Listener::local_addr(&self.inner)
    }
}

pub struct Bounded<L> {
    inner: L,
    places: Arc<Semaphore>,
    patience: Option<Duration>,
}

impl<L> Bounded<L> {
    pub fn new(inner: L) -> Bounded<L> {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Bounded {
            inner,
            places,
            patience: None,
        }
    }

    /// Clients have to take a byte of their replies within this time.
    pub fn with_patience(self, patience: Duration) -> Bounded<L> {
        let patience = Some(patience);
        Bounded { patience, ..self }
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = Held<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Held<L::Io>, L::Addr) {
        let place = self.places.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let (stream, address) = self.inner.accept().await;
        (
            Held {
                stream,
                clock: self.patience.map(Clock::new),
                _place: place,
            },
            address,
        )
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.inner.local_addr()
    }
}

/// Runs while there is something to be taken.
struct Clock {
    patience: Duration,
    sleep: Pin<Box<Sleep>>,
    waits: bool,
}

impl Clock {
    fn new(patience: Duration) -> Clock {
        Clock {
            patience,
            sleep: Box::pin(sleep(patience)),
            waits: false,
        }
    }

    /// Passes on what became of writing; an error if nothing has for too long.
    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        if !self.waits {
            self.waits = true;
            self.sleep.as_mut().reset(Instant::now() + self.patience);
        }
        ready!(self.sleep.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// A connection and its place.
pub struct Held<S> {
    stream: S,
    clock: Option<Clock>,
    _place: OwnedSemaphorePermit,
}

impl<S> Held<S> {
    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.clock {
            Some(clock) => clock.timed(context, written),
            None => written,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.timed(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
