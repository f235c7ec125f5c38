//! Connections to the servers of origins: made, driven, lost and made again.
//!
//! ```text
//! Down ─▶ Connecting ─▶ Up(wire) ─▶ Down      a wire: open ─▶ closing ─▶ gone
//! ```
//!
//! Always true: an origin has at most one open wire; a wire is gone only when the kernel uses
//! nothing of it any more, and only then are its requests called back; a server that breaks the
//! protocol loses its connection and nothing else. A new connection is made by a thread of its
//! own, because names and handshakes block; there is at most one for each origin, with a growing
//! pause between attempts. Deliberately absent: what the requests are.

use super::{Piece, What};
use crate::origin::nbd::client::Client;
use crate::origin::nbd::session::{Errno, Session, Step};
use crate::ring::{self, Completed};
use crate::shard::slots::Slots;
use crate::shard::{Alarm, Decide, Shard, tag};
use engine::types::VolumeId;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::thread;

/// A server's words that are looked at together; more than its longest reply without data.
const INPUT_BYTES: usize = 256 << 10;
/// The pause before the first new connection, doubled each time up to the second.
const PAUSE_MS_MIN: u64 = 100;
const PAUSE_MS_MAX: u64 = 5_000;

/// Whether an origin can be reached.
#[derive(Debug, Default)]
pub(super) struct Link {
    wire: Option<u32>,
    connecting: bool,
    attempts: u32,
    /// The server shows an export that is not the one we know.
    strange: bool,
}

impl Link {
    pub fn is_up(&self) -> bool {
        self.wire.is_some()
    }

    pub fn is_strange(&self) -> bool {
        self.strange
    }

    pub fn wire(&self) -> Option<u32> {
        self.wire
    }
}

/// One connection.
pub(in crate::shard) struct Wire {
    volume: VolumeId,
    socket: OwnedFd,
    pub session: Session,
    pieces: BTreeMap<u64, Piece>,
    /// The kernel receives, sends.
    receiving: bool,
    sending: bool,
    /// Requests from this cookie on are in the send under way.
    sending_from: u64,
    /// Answered before the kernel has let go of their bytes.
    early: Vec<(u64, Result<(), Errno>)>,
    closing: bool,
    /// Its volume has let it go.
    orphan: bool,
    input: Vec<u8>,
    filled: usize,
}

/// What a connecting thread came to.
type Arrived = (VolumeId, Result<Client, String>);

/// Every connection.
pub(in crate::shard) struct Wires {
    wires: Slots<Wire>,
    arrived: mpsc::Receiver<Arrived>,
    sender: mpsc::Sender<Arrived>,
}

impl Default for Wires {
    fn default() -> Self {
        let (sender, arrived) = mpsc::channel();
        Wires {
            wires: Slots::default(),
            arrived,
            sender,
        }
    }
}

impl Wires {
    /// A wire that can take another send.
    pub fn idle(&mut self, slot: u32) -> Option<&mut Wire> {
        let wire = self.wires.get_mut(slot)?;
        (!wire.sending && !wire.closing).then_some(wire)
    }
}

impl Wire {
    pub fn unanswered(&self) -> usize {
        self.pieces.len()
    }

    /// Notes a request that goes out with the next send.
    pub(super) fn sent(&mut self, cookie: u64, piece: Piece) {
        self.sending_from = self.sending_from.min(cookie);
        self.pieces.insert(cookie, piece);
    }

    pub fn begin_send(&mut self) -> RawFd {
        self.sending = true;
        self.socket.as_raw_fd()
    }
}

impl<E: Decide> Shard<E> {
    /// Takes a connection over.
    pub(super) fn link_up(&mut self, id: VolumeId, client: Client) {
        let (socket, session, export) = client.into_parts();
        let Some(remote) = self.remotes.all.get_mut(&id) else {
            return;
        };
        if let Err(why) = export.stands_in_for(&remote.export) {
            let uri = &remote.uri;
            tracing::error!(origin = %uri, "{uri}: {why}; it is not used until it is as before");
            remote.link.strange = true;
            return self.connect_later(id);
        }
        let fd = socket.as_raw_fd();
        let slot = self.remotes.wires.wires.insert(Wire {
            volume: id,
            socket,
            session,
            pieces: BTreeMap::new(),
            receiving: true,
            sending: false,
            sending_from: u64::MAX,
            early: Vec::new(),
            closing: false,
            orphan: false,
            input: Vec::new(),
            filled: 0,
        });
        if remote.link.attempts > 0 {
            tracing::info!(origin = %remote.uri, "{}: connected again", remote.uri);
        }
        remote.link = Link {
            wire: Some(slot),
            ..Link::default()
        };
        let input = vec![0; INPUT_BYTES];
        self.ring
            .receive(tag::remote_receive(slot), fd, None, input, 0);
        self.pump_remote(id);
    }

    /// Tries again after a pause.
    pub(super) fn connect_later(&mut self, id: VolumeId) {
        let Some(remote) = self.remotes.all.get_mut(&id) else {
            return;
        };
        let link = &mut remote.link;
        (link.wire, link.connecting) = (None, false);
        let pause = PAUSE_MS_MIN << link.attempts.min(16);
        link.attempts = link.attempts.saturating_add(1);
        let at = self.now.plus_millis(pause.min(PAUSE_MS_MAX));
        self.timers.set(at, Alarm::Connect(id));
    }

    pub(in crate::shard) fn connect(&mut self, id: VolumeId) {
        let Some(remote) = self.remotes.all.get_mut(&id) else {
            return;
        };
        if remote.link.connecting || remote.link.is_up() || self.stopping.is_some() {
            return;
        }
        remote.link.connecting = true;
        let (uri, waker) = (remote.uri.clone(), self.waker.clone());
        let sender = self.remotes.wires.sender.clone();
        let thread = thread::Builder::new().name("tenuto-connect".into());
        let started = thread.spawn(move || {
            let client = Client::connect(&uri);
            // The shard has ended: nobody waits for a connection any more.
            if sender.send((id, client)).is_ok() {
                waker.wake();
            }
        });
        if let Err(error) = started {
            tracing::warn!("cannot start a thread to connect: {error}");
            self.connect_later(id);
        }
    }

    /// Takes the connections that threads have made.
    pub(in crate::shard) fn collect_links(&mut self) {
        while let Ok((id, result)) = self.remotes.wires.arrived.try_recv() {
            // A volume of the same number that has come since wants a connection of its own.
            let wants = |remote: &&super::Remote| remote.link.connecting;
            let Some(remote) = self.remotes.all.get(&id).filter(wants) else {
                continue;
            };
            match result {
                Ok(client) => self.link_up(id, client),
                Err(why) => {
                    tracing::warn!(origin = %remote.uri, "{}: cannot connect: {why}", remote.uri);
                    self.connect_later(id);
                }
            }
        }
    }

    pub(in crate::shard) fn finish_remote_receive(&mut self, slot: u32, completed: Completed) {
        let mut wire = self.remotes.wires.wires.lend(slot).expect("it receives");
        wire.receiving = false;
        wire.input = completed.owned;
        let heard = match completed.result {
            _ if wire.closing => Ok(()),
            Ok(0) => Err("the server closed the connection".into()),
            Ok(bytes) => {
                wire.filled += bytes as usize;
                self.hear(&mut wire)
            }
            Err(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                Err(crate::error::cause(&error))
            }
        };
        let id = wire.volume;
        if !wire.closing && heard.is_ok() {
            wire.receiving = true;
            let (fd, input) = (wire.socket.as_raw_fd(), std::mem::take(&mut wire.input));
            let tag = tag::remote_receive(slot);
            self.ring.receive(tag, fd, None, input, wire.filled);
        }
        self.remotes.wires.wires.restore(slot, wire);
        match heard {
            Ok(()) => self.bury_wire(slot),
            Err(why) => self.break_wire(slot, &why),
        }
        self.pump_remote(id);
    }

    /// Takes what has been received apart.
    fn hear(&mut self, wire: &mut Wire) -> Result<(), String> {
        let input = std::mem::take(&mut wire.input);
        let mut used = 0;
        let result = loop {
            let step = match wire.session.step(&input[used..wire.filled]) {
                Ok(step) => step,
                Err(broken) => break Err(broken.0),
            };
            match step {
                Step::More => break Ok(()),
                Step::Used(bytes) => used += bytes,
                Step::Data { cookie, at, bytes } => {
                    let data = &input[used..used + bytes];
                    let piece = wire.pieces.get_mut(&cookie);
                    let piece = piece.expect("the session knows what was sent");
                    self.deliver_remote(wire.volume, piece, at, data);
                    used += bytes;
                }
                Step::Hole {
                    used: more,
                    cookie,
                    at,
                    bytes,
                } => {
                    let piece = wire.pieces.get_mut(&cookie);
                    let piece = piece.expect("the session knows what was sent");
                    let zeroes = vec![0; bytes as usize];
                    self.deliver_remote(wire.volume, piece, at, &zeroes);
                    used += more;
                }
                Step::Done {
                    used: more,
                    cookie,
                    result,
                } => {
                    used += more;
                    self.answered(wire, cookie, result);
                }
            }
        };
        wire.input = input;
        wire.input.copy_within(used..wire.filled, 0);
        wire.filled -= used;
        result
    }

    fn answered(&mut self, wire: &mut Wire, cookie: u64, result: Result<(), Errno>) {
        // The kernel may still read the bytes of a request that is just being sent.
        if wire.sending && cookie >= wire.sending_from {
            wire.early.push((cookie, result));
            return;
        }
        let piece = wire.pieces.remove(&cookie);
        let piece = piece.expect("the session knows what was sent");
        self.finish_piece(wire.volume, piece, result);
    }

    pub(in crate::shard) fn finish_remote_send(&mut self, slot: u32, completed: Completed) {
        let mut wire = self.remotes.wires.wires.lend(slot).expect("it sends");
        (wire.sending, wire.sending_from) = (false, u64::MAX);
        for (cookie, result) in std::mem::take(&mut wire.early) {
            self.answered(&mut wire, cookie, result);
        }
        let id = wire.volume;
        self.remotes.wires.wires.restore(slot, wire);
        match completed.result {
            Ok(_) => self.bury_wire(slot),
            Err(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                self.break_wire(slot, &crate::error::cause(&error));
            }
        }
        self.pump_remote(id);
    }

    /// Ends a connection that is of no use any more.
    fn break_wire(&mut self, slot: u32, why: &str) {
        let wire = self.remotes.wires.wires.get_mut(slot);
        let wire = wire.expect("a wire stays until it is buried");
        let id = wire.volume;
        if !wire.closing {
            wire.closing = true;
            ring::shutdown(&wire.socket);
            if let Some(remote) = self.remotes.all.get_mut(&id) {
                let (uri, lost) = (&remote.uri, wire.pieces.len());
                tracing::warn!(
                    origin = %uri,
                    "{uri}: connection lost with {lost} requests unanswered: {why}"
                );
                remote.link.wire = None;
            }
        }
        self.bury_wire(slot);
    }

    /// Ends the connection of a volume that is gone, in order if nothing is unanswered.
    pub(super) fn end_wire(&mut self, slot: u32, in_order: bool) {
        let Some(wire) = self.remotes.wires.wires.get_mut(slot) else {
            return;
        };
        if in_order && !wire.sending && !wire.closing {
            let goodbye = wire.session.goodbye();
            let socket = wire.socket.try_clone().map(File::from);
            // A server that does not hear it sees the end of the connection.
            let _ = socket.and_then(|mut socket| socket.write_all(&goodbye));
        }
        (wire.closing, wire.orphan) = (true, true);
        ring::shutdown(&wire.socket);
        self.bury_wire(slot);
    }

    /// Forgets a wire that the kernel has let go, and calls its requests back.
    fn bury_wire(&mut self, slot: u32) {
        let wire = self.remotes.wires.wires.get(slot);
        let over = wire.is_some_and(|wire| wire.closing && !wire.receiving && !wire.sending);
        if !over {
            return;
        }
        let wire = self.remotes.wires.wires.remove(slot);
        if wire.orphan {
            return;
        }
        let mut pieces: Vec<Piece> = wire.pieces.into_values().collect();
        for piece in &mut pieces {
            if let What::StoreEdge(block) = &piece.what {
                // What the block holds by then is looked at again.
                piece.what = What::FetchEdge(vec![0; block.len()]);
            }
        }
        self.recall(wire.volume, pieces);
        self.connect_later(wire.volume);
    }
}
