//! The connections of front ends: one small thread for each.
//!
//! Owns the threads, how many there may be, and who has which device. Always true: a few front ends
//! may be connected to a device, because a guest that moves to another process is connected from
//! both, but the rings of one at a time run (`turn`), so no mistake gives one disk to two guests. A
//! front end whose socket was closed at the other end keeps its place until its rings are drained,
//! so a guest that is started again right after its end finds its disk. A connection ends at the
//! first message that nobody understands. Deliberately absent: listening, and what a message means.
//!
//! ```text
//! connect -> let in by the data side -> messages -> its rings drained -> ended
//! ```

use super::advice::Advice;
use super::capacity::Capacity;
use super::channel::Channel;
use super::handler::{Description, Handler, Refusal};
use super::turn::Turn;
use super::{DataError, DataSide};
use crate::sys;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, Error};

/// A front end that may wait for its disk.
pub(super) trait Wakes: Send + Sync {
    /// False: its connection is of no use any more.
    fn awaken(&self) -> bool;
}

impl<D: DataSide> Wakes for Mutex<Handler<D>> {
    fn awaken(&self) -> bool {
        let mut handler = self.lock().expect("no panic with this lock");
        // One that its memory has lost starts with the table that has it again.
        let starts = |result| match result {
            Err(Refusal::NotReady(_)) => Ok(()),
            result => result,
        };
        let awake = (0..handler.queues()).try_for_each(|queue| starts(handler.run(queue)));
        awake
            .inspect_err(|error| tracing::warn!("the rings of a front end do not start: {error}"))
            .is_ok()
    }
}

/// Nothing here is deep; the largest thing on the stack is a message.
const STACK_BYTES: usize = 256 << 10;
/// Front ends of one device: where it runs, where it goes to, and what of others is being drained.
const SEATS_MAX: usize = 4;
const HEADER_BYTES: usize = 12;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Why a front end is not served.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{0} front ends are connected to this device, and no more are served")]
    Taken(usize),
    #[error("{0} front ends are connected, and no more are served")]
    TooMany(usize),
    #[error("the daemon is stopping")]
    Stopping,
    #[error("serve a front end: {0}")]
    Io(#[from] io::Error),
}

/// A front end is there whose guest has not gone to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awake;

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub connections: u64,
    pub accepted: u64,
    pub refused: u64,
    /// Messages that were understood and not done.
    pub messages_refused: u64,
    /// Connections that ended because of what was in them.
    pub broken: u64,
}

pub(super) struct Seat {
    pub id: u64,
    pub stream: UnixStream,
    channel: Arc<Channel>,
    device: Option<Weak<dyn Wakes>>,
    /// A ring of it has run since it came.
    ran: bool,
    /// Its guest goes on elsewhere, or later, and believes this of its cache.
    sleeps: Option<bool>,
}

impl Seats {
    /// Front ends that are not in the way when the device goes to another host: of guests that
    /// sleep, and beside one of these those that never had a guest.
    fn out_of_the_way(&self) -> usize {
        match self.all.iter().any(|seat| seat.sleeps.is_some()) {
            true => self
                .all
                .iter()
                .filter(|seat| seat.sleeps.is_some() || !seat.ran)
                .count(),
            false => 0,
        }
    }
}

/// A device with at least one front end.
#[derive(Default)]
pub(super) struct Seats {
    pub all: Vec<Seat>,
    /// Whose rings run.
    pub runs: Option<u64>,
    capacity: Capacity,
    /// No ring starts.
    rests: bool,
}

/// How many front ends were told of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub told: u64,
    /// They gave no channel, or one that takes no message.
    pub untold: u64,
}

#[derive(Default)]
pub(super) struct State {
    pub seats: BTreeMap<String, Seats>,
    counters: Counters,
    stopping: bool,
    /// It was said that guests could have larger pages.
    hinted: bool,
    /// Devices of which it was said that their guest's memory is not shared; until one runs.
    unshared: BTreeSet<String>,
}

pub(super) struct Shared {
    connections_max: usize,
    /// A lock and no message: there is nobody who could answer one.
    state: Mutex<State>,
    /// A connection has ended, or its rings have.
    pub ended: Condvar,
}

impl State {
    fn seat(&mut self, device: &str, id: u64) -> Option<&mut Seat> {
        let seats = self.seats.get_mut(device)?;
        seats.all.iter_mut().find(|seat| seat.id == id)
    }
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic with this lock")
    }

    /// The memory of this device's guest is shared after all, and the guest is awake.
    pub fn has_run(&self, device: &str, id: u64) {
        let mut state = self.state();
        state.unshared.remove(device);
        if let Some(seat) = state.seat(device, id) {
            (seat.ran, seat.sleeps) = (true, None);
        }
    }

    pub fn sleeps(&self, device: &str, id: u64, write_back: bool) {
        if let Some(seat) = self.state().seat(device, id) {
            seat.sleeps = Some(write_back);
        }
    }

    pub fn rests(&self, device: &str) -> bool {
        let state = self.state();
        state.seats.get(device).is_some_and(|seats| seats.rests)
    }

    /// Says it, once. True where it was said before: a front end comes again every second.
    fn advise(&self, device: &str, advice: Advice) -> bool {
        let mut state = self.state();
        let first = match advice.is_mere_hint() {
            true => !std::mem::replace(&mut state.hinted, true),
            false => state.unshared.insert(device.to_owned()),
        };
        drop(state);
        match (first, advice.is_mere_hint()) {
            (true, true) => tracing::info!("{device}: {advice} (said once for all guests)"),
            (true, false) => tracing::warn!(volume = %device, "{device}: {advice}"),
            (false, _) => {}
        }
        !first
    }
}

/// The connected front ends of a daemon.
#[derive(Clone)]
pub struct Connections {
    shared: Arc<Shared>,
}

impl Connections {
    pub fn new(connections_max: usize) -> Connections {
        let shared = Shared {
            connections_max,
            state: Mutex::default(),
            ended: Condvar::new(),
        };
        Connections {
            shared: Arc::new(shared),
        }
    }

    /// Serves a front end of the device of this name until it goes or is closed. Returns at once;
    /// what lets it in may wait. It is given the size that all front ends of the device share, and
    /// looks what it is after it was given that.
    pub fn connect<D: DataSide + 'static>(
        &self,
        device: &str,
        stream: UnixStream,
        let_in: impl FnOnce(Capacity) -> Result<(Description, D), DataError> + Send + 'static,
    ) -> Result<(), Refused> {
        // What reads messages waits for them, and a socket that does not wait would keep it busy.
        stream.set_nonblocking(false)?;
        let (id, capacity, channel) = self.sit_down(device, &stream)?;
        let (shared, name) = (self.shared.clone(), device.to_owned());
        let run = move || {
            match let_in(capacity.clone()) {
                Ok((description, data)) => {
                    let data = Turn::new(shared.clone(), name.clone(), id, data);
                    let peer = sys::peer_pid(&stream).ok().filter(|pid| *pid > 0);
                    let handler = Handler::new(description, data);
                    let handler = handler.of_peer(peer, capacity, channel);
                    let device = Arc::new(Mutex::new(handler));
                    if let Some(seat) = shared.state().seat(&name, id) {
                        let device: Weak<dyn Wakes> = Arc::downgrade(&device) as _;
                        seat.device = Some(device);
                    }
                    serve(&shared, &name, stream, device);
                }
                Err(error) => {
                    tracing::warn!(
                        volume = %name,
                        "volume {name}: a front end is refused: {error}"
                    );
                }
            }
            stand_up(&shared, &name, id);
        };
        // The kernel keeps 15 bytes of a name.
        let thread = thread::Builder::new()
            .name(format!("vhost {device}"))
            .stack_size(STACK_BYTES)
            .spawn(run);
        if let Err(error) = thread {
            stand_up(&self.shared, device, id);
            return Err(error.into());
        }
        Ok(())
    }

    fn sit_down(
        &self,
        device: &str,
        stream: &UnixStream,
    ) -> Result<(u64, Capacity, Arc<Channel>), Refused> {
        let stream = stream.try_clone()?;
        let mut state = self.shared.state();
        let all: usize = state.seats.values().map(|seats| seats.all.len()).sum();
        let seats = state.seats.get(device).map_or(0, |seats| seats.all.len());
        let refused = if state.stopping {
            Some(Refused::Stopping)
        } else if seats >= SEATS_MAX {
            Some(Refused::Taken(seats))
        } else if all >= self.shared.connections_max {
            Some(Refused::TooMany(all))
        } else {
            None
        };
        if let Some(refused) = refused {
            state.counters.refused += 1;
            return Err(refused);
        }
        state.counters.accepted += 1;
        let id = state.counters.accepted;
        let seats = state.seats.entry(device.to_owned()).or_default();
        let channel = Arc::new(Channel::new(device));
        seats.all.push(Seat {
            id,
            stream,
            channel: channel.clone(),
            device: None,
            ran: false,
            sleeps: None,
        });
        Ok((id, seats.capacity.clone(), channel))
    }

    pub fn counters(&self) -> Counters {
        let state = self.shared.state();
        let all: usize = state.seats.values().map(|seats| seats.all.len()).sum();
        Counters {
            connections: all as u64,
            ..state.counters
        }
    }

    /// Front ends that are connected to a device, or being drained.
    pub fn count(&self, device: &str) -> usize {
        let state = self.shared.state();
        state.seats.get(device).map_or(0, |seats| seats.all.len())
    }

    /// Front ends of a device that are not in the way when it goes to another host.
    pub fn out_of_the_way(&self, device: &str) -> usize {
        let state = self.shared.state();
        state.seats.get(device).map_or(0, Seats::out_of_the_way)
    }

    /// Lets no ring of a device start from now on, unless a front end is in the way.
    /// What the last guest that fell asleep believes of its cache, if there is one.
    pub fn rest(&self, device: &str) -> Result<Option<bool>, Awake> {
        let mut state = self.shared.state();
        let Some(seats) = state.seats.get_mut(device) else {
            return Ok(None);
        };
        if seats.out_of_the_way() < seats.all.len() {
            return Err(Awake);
        }
        seats.rests = true;
        Ok(seats.all.iter().rev().find_map(|seat| seat.sleeps))
    }

    /// Rings of a device that wait for it start.
    pub fn awaken(&self, device: &str) {
        let mut state = self.shared.state();
        let Some(seats) = state.seats.get_mut(device) else {
            return;
        };
        seats.rests = false;
        let waiting = seats.all.iter().filter_map(|seat| {
            let device = seat.device.as_ref()?.upgrade()?;
            Some((device, seat.stream.try_clone().ok()))
        });
        let waiting: Vec<_> = waiting.collect();
        // What they are told looks at the state.
        drop(state);
        for (device, stream) in waiting {
            if let (false, Some(stream)) = (device.awaken(), stream) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// The disk of a device has so many sectors now; its front ends are told. Waits for none.
    pub fn grow(&self, device: &str, sectors: u64) -> Heard {
        let state = self.shared.state();
        let mut heard = Heard::default();
        if let Some(seats) = state.seats.get(device) {
            // Before anybody can look.
            seats.capacity.grow(sectors);
            for seat in &seats.all {
                match seat.channel.tell() {
                    true => heard.told += 1,
                    false => heard.untold += 1,
                }
            }
        }
        heard
    }

    /// Closes the connections of a device, and waits until its rings are drained. False when that
    /// takes longer than `wait`.
    pub fn disconnect(&self, device: &str, wait: Duration) -> bool {
        let state = self.shared.state();
        close(state.seats.get(device).into_iter());
        self.wait(state, wait, |state| !state.seats.contains_key(device))
    }

    /// Serves nobody any more. False when a connection has not ended after `wait`.
    pub fn stop(&self, wait: Duration) -> bool {
        let mut state = self.shared.state();
        state.stopping = true;
        close(state.seats.values());
        self.wait(state, wait, |state| state.seats.is_empty())
    }

    fn wait(
        &self,
        state: MutexGuard<'_, State>,
        wait: Duration,
        done: impl Fn(&State) -> bool,
    ) -> bool {
        let ended = &self.shared.ended;
        let waited = ended.wait_timeout_while(state, wait, |state| !done(state));
        !waited.expect("no panic with this lock").1.timed_out()
    }
}

fn close<'a>(seats: impl Iterator<Item = &'a Seats>) {
    for seat in seats.flat_map(|seats| &seats.all) {
        // One that is closed already needs no closing.
        let _ = seat.stream.shutdown(Shutdown::Both);
    }
}

fn stand_up(shared: &Shared, device: &str, id: u64) {
    let mut state = shared.state();
    let seats = state.seats.get_mut(device);
    let seats = seats.expect("a seat until we stand up");
    seats.all.retain(|seat| seat.id != id);
    if seats.all.is_empty() {
        state.seats.remove(device);
    }
    shared.ended.notify_all();
}

/// The start of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    request: u32,
    flags: u32,
    bytes: u32,
}

impl Header {
    /// Looks at the next message without taking it. `None` at the end. A header that comes in parts
    /// reads as no request, which nobody treats specially.
    fn peek(stream: &UnixStream) -> io::Result<Option<Header>> {
        let mut bytes = [0; HEADER_BYTES];
        let count = sys::peek(stream, &mut bytes)?;
        if count < HEADER_BYTES {
            bytes.fill(0);
        }
        let word = |at: usize| {
            let word = bytes[at..at + 4].try_into();
            u32::from_ne_bytes(word.expect("four bytes"))
        };
        let header = Header {
            request: word(0),
            flags: word(4),
            bytes: word(8),
        };
        Ok((count > 0).then_some(header))
    }

    fn is(&self, request: FrontendReq) -> bool {
        self.request == u32::from(request)
    }

    /// Whether whoever sent it is told when it is refused.
    fn is_answered<D: DataSide>(&self, handler: &Handler<D>) -> bool {
        use FrontendReq::*;
        // The others have an answer of their own, which does not come then.
        let plain = [
            SET_OWNER,
            RESET_OWNER,
            RESET_DEVICE,
            SET_FEATURES,
            SET_PROTOCOL_FEATURES,
            SET_MEM_TABLE,
            ADD_MEM_REG,
            REM_MEM_REG,
            SET_VRING_NUM,
            SET_VRING_ADDR,
            SET_VRING_BASE,
            SET_VRING_KICK,
            SET_VRING_CALL,
            SET_VRING_ERR,
            SET_VRING_ENABLE,
            SET_INFLIGHT_FD,
            SET_CONFIG,
            SET_BACKEND_REQ_FD,
        ];
        let asked = self.flags & NEED_REPLY != 0 && handler.acknowledges();
        asked && plain.iter().any(|request| self.is(*request))
    }
}

type Device<D> = Arc<Mutex<Handler<D>>>;

/// Serves the messages of a front end until there are no more.
fn serve<D: DataSide>(shared: &Shared, name: &str, stream: UnixStream, device: Device<D>) {
    let messages = stream.try_clone();
    let messages = messages.map(|stream| BackendReqHandler::from_stream(stream, device.clone()));
    let mut repeats = false;
    let ended = match messages {
        Ok(mut messages) => loop {
            let done = next_message(shared, &stream, &mut messages, &device);
            let advice = lock(&device).take_advice();
            repeats |= advice.is_some_and(|advice| {
                let said = shared.advise(name, advice);
                said && !advice.is_mere_hint()
            });
            if let Err(error) = done {
                break error;
            }
        },
        Err(error) => Error::SocketError(error),
    };
    match ended {
        Error::Disconnected if repeats => tracing::debug!("{name}: the front end has gone"),
        Error::Disconnected => tracing::info!("{name}: the front end has gone"),
        error if repeats => {
            shared.state().counters.broken += 1;
            tracing::debug!("{name}: the connection of the front end ends: {error}");
        }
        error => {
            // Counted before the front end can see that it is cut off.
            shared.state().counters.broken += 1;
            tracing::warn!("{name}: the connection of the front end ends: {error}");
        }
    }
    // The front end sees its end now, and not when its rings are drained.
    let _ = stream.shutdown(Shutdown::Both);
    device.lock().expect("no panic with this lock").end();
}

fn next_message<D: DataSide>(
    shared: &Shared,
    stream: &UnixStream,
    messages: &mut BackendReqHandler<Mutex<Handler<D>>>,
    device: &Device<D>,
) -> Result<(), Error> {
    let header = Header::peek(stream).map_err(Error::SocketError)?;
    let header = header.ok_or(Error::Disconnected)?;
    if header.is(FrontendReq::SET_LOG_FD) {
        let answer = header.flags & NEED_REPLY != 0 && lock(device).acknowledges();
        return take_log_event(stream, header, answer);
    }
    let done = match header.is(FrontendReq::SET_BACKEND_REQ_FD) {
        true => take_channel(stream, header, device),
        false => messages.handle_request(),
    };
    let Err(Error::ReqHandlerError(refusal)) = done else {
        return done;
    };
    shared.state().counters.messages_refused += 1;
    tracing::debug!(
        "message {} of a front end is refused: {refusal}",
        header.request
    );
    let handler = lock(device);
    // What a guest writes into its configuration is no fault of its front end.
    let known = header.is(FrontendReq::SET_CONFIG) || header.is_answered(&handler);
    match known && !handler.has_failed() {
        true => Ok(()),
        false => Err(Error::ReqHandlerError(refusal)),
    }
}

fn lock<D: DataSide>(device: &Device<D>) -> MutexGuard<'_, Handler<D>> {
    device.lock().expect("no panic with this lock")
}

/// The one message that the crate does not know. We may signal the event when the log has changed
/// and need not; nobody waits for it, so it is closed.
fn take_log_event(stream: &UnixStream, header: Header, answer: bool) -> Result<(), Error> {
    take_files(stream, header)?;
    match answer {
        true => acknowledge(stream, header, true),
        false => Ok(()),
    }
}

/// The crate would keep the channel to itself, and can only write to it where that may wait.
fn take_channel<D: DataSide>(
    stream: &UnixStream,
    header: Header,
    device: &Device<D>,
) -> Result<(), Error> {
    let files = take_files(stream, header)?;
    let mut handler = lock(device);
    let done = handler.set_channel(files);
    if header.flags & NEED_REPLY != 0 && handler.acknowledges() {
        acknowledge(stream, header, done.is_ok())?;
    }
    Ok(done?)
}

/// The descriptors of a message that is nothing else.
fn take_files(mut stream: &UnixStream, header: Header) -> Result<Vec<File>, Error> {
    let mut bytes = [0; HEADER_BYTES];
    let received = sys::receive_with_files(stream, &mut bytes);
    let (count, files) = received.map_err(Error::SocketError)?;
    // Some send the number of nothing with it.
    let mut number = [0; 8];
    let known = header.bytes == 0 || header.bytes == 8;
    if count != HEADER_BYTES || !known || header.flags & !NEED_REPLY != VERSION {
        return Err(Error::InvalidMessage);
    }
    let rest = &mut number[..header.bytes as usize];
    stream.read_exact(rest).map_err(Error::SocketError)?;
    Ok(files)
}

fn acknowledge(mut stream: &UnixStream, header: Header, done: bool) -> Result<(), Error> {
    let words = [header.request, VERSION | REPLY, 8, u32::from(!done), 0];
    let reply: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    stream.write_all(&reply).map_err(Error::SocketError)
}
