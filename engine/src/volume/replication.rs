//! The peers of a volume: what each of them has of its writes, and who waits for that.
//!
//! ```text
//! peer:  Stopped ─StartPeer─▶ CatchingUp ─all epochs to here are sent─▶ Live
//!           ▲                     ▲  └────────── too much is queued ─────┘
//!           └───── StopPeer ──────┴──────────────────────────────────────┘
//! ```
//!
//! A peer gets the history in order. While it is behind it gets epochs, each as one delta, read
//! from their maps; from the moment on when it is about to have them all, what guests write is
//! queued as deltas of its own, which it gets next. Where too much is queued, all of that is
//! dropped, because the epochs have it.
//!
//! Always true: what is `sent` is sent as a whole, and nothing behind it; a queued delta is of one
//! epoch, and all but the last one are closed; what a reply or a destage has relied on is at each
//! peer that counts; a peer that counts has all of that from the moment on when the order to count
//! it is replied to. Deliberately absent: which peers count, which the host decides by the records
//! of the cluster; bytes and their places (`core::replication`).

use super::Volume;
use super::credit::Purse;
use super::logged::Logged;
use super::rounds::Rounds;
use crate::adversary::{Bug, has};
use crate::event::{Batch, Credit, LogRoom};
use crate::map::ExtentMap;
use crate::memory::Place;
use crate::snapshot::PeerSnapshot;
use crate::types::{EpochNumber, PeerId, RequestId, SECTOR_BYTES, Serial, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Batches on their way to one peer.
const IN_FLIGHT_MAX: usize = 8;
/// So much is queued for a peer at most; what is beyond is in the epochs.
const QUEUED_BYTES_MAX: u64 = 16 << 20;
/// With so much queued, a batch does not wait until the one before it is acknowledged.
const EAGER_BYTES: u64 = 64 << 10;

/// What guests have written since the delta before it.
pub struct Delta {
    pub map: ExtentMap,
    pub epoch: EpochNumber,
    /// Of its last write, once nothing more goes into it.
    pub upto: Option<Serial>,
}

/// What is being sent, and from where it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub upto: Serial,
    pub epoch: EpochNumber,
    pub part: u32,
    pub from: u64,
}

/// A batch that is not acknowledged.
struct Flight {
    number: u64,
    upto: Serial,
    ends: bool,
    piece: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Stopped,
    /// Epochs up to `upto` are to be sent; `dropped`: what came behind them was queued, and is not
    /// any more.
    CatchingUp {
        upto: Serial,
        dropped: bool,
    },
    Live,
}

pub struct Peer {
    pub id: PeerId,
    counts: bool,
    /// Who waits until it has all that was relied on.
    counting: Option<RequestId>,
    mode: Mode,
    durable: Serial,
    /// There is nothing up to here that it still has to get.
    sent: Serial,
    /// Of the newest delta that left as a whole.
    given: Serial,
    told_destaged: Serial,
    /// Of the delta sent last.
    epoch: Option<EpochNumber>,
    cursor: Option<Cursor>,
    queue: VecDeque<Delta>,
    queued_sectors: u64,
    in_flight: VecDeque<Flight>,
    /// A batch is being read from the device.
    reading: Option<Reading>,
    /// What it takes.
    purse: Purse,
    rounds: Rounds,
}

/// A batch whose bytes come from the device.
pub struct Reading {
    pub piece: u32,
    /// None if the peer was stopped meanwhile.
    pub batch: Option<Batch>,
}

#[derive(Default)]
pub struct Replication {
    peers: Vec<Peer>,
    /// The newest serial that a reply to a guest has promised to be durable.
    promised: Serial,
    /// The newest serial that a destage has begun with.
    begun: Serial,
    waiting: VecDeque<(Serial, RequestId)>,
    /// A reply promises what the origin has.
    at_origin: bool,
    /// So it does by order of an administrator.
    through: bool,
    /// Of the batch that left last; never given again.
    number: u64,
    logged: Logged,
}

/// Where bytes are that the log of this host does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// No peer counts.
    Nowhere,
    /// One that counts may have them after a while.
    Later,
    Peer(PeerId),
}

impl Peer {
    fn stopped(id: PeerId) -> Peer {
        Peer {
            id,
            counts: false,
            counting: None,
            mode: Mode::Stopped,
            durable: Serial(0),
            sent: Serial(0),
            given: Serial(0),
            told_destaged: Serial(0),
            epoch: None,
            cursor: None,
            queue: VecDeque::new(),
            queued_sectors: 0,
            in_flight: VecDeque::new(),
            reading: None,
            purse: Purse::default(),
            rounds: Rounds::default(),
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.mode == Mode::Stopped
    }

    /// New writes are queued for it.
    pub fn takes_new(&self) -> bool {
        match self.mode {
            Mode::Stopped => false,
            Mode::CatchingUp { dropped, .. } => !dropped,
            Mode::Live => true,
        }
    }

    /// One more batch may go.
    pub fn may_send(&self) -> bool {
        !self.is_stopped() && self.reading.is_none() && self.in_flight.len() < IN_FLIGHT_MAX
    }

    pub fn purse(&mut self) -> &mut Purse {
        &mut self.purse
    }

    /// It counts, and has no room for what it lacks.
    pub fn has_no_room(&self) -> bool {
        self.counts && !self.is_stopped() && self.purse.is_short()
    }

    /// Nothing of it is on its way.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub fn durable(&self) -> Serial {
        self.durable
    }

    pub fn sent(&self) -> Serial {
        self.sent
    }

    /// What it has when all that is on its way has come.
    pub fn given(&self) -> Serial {
        self.given
    }

    pub fn counts(&self) -> bool {
        self.counts
    }

    pub fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// The serial up to which epochs are sent to it; none while it gets deltas.
    pub fn catches_up_to(&self) -> Option<Serial> {
        match self.mode {
            Mode::CatchingUp { upto, .. } => Some(upto),
            Mode::Stopped | Mode::Live => None,
        }
    }

    /// All epochs up to here are to be sent, and what is written from now on is queued.
    pub fn begin_round(&mut self, upto: Serial) {
        assert!(self.queue.is_empty(), "what was queued before was dropped");
        self.rounds.begin();
        self.mode = Mode::CatchingUp {
            upto,
            dropped: false,
        };
    }

    /// It has all epochs of this round. True if it goes on with what was queued.
    pub fn end_round(&mut self) -> bool {
        let Mode::CatchingUp { upto, dropped } = self.mode else {
            unreachable!("only a peer that is behind has rounds");
        };
        self.cursor = None;
        self.sent = self.sent.max(upto);
        self.rounds.end(dropped);
        if !dropped {
            self.mode = Mode::Live;
        }
        !dropped
    }

    /// Sends on from here.
    pub fn set_cursor(&mut self, cursor: Option<Cursor>) {
        self.cursor = cursor;
    }

    /// What of a new write was queued.
    pub fn queue(&mut self) -> &mut VecDeque<Delta> {
        &mut self.queue
    }

    pub fn count_queued(&mut self, sectors: u64) {
        self.queued_sectors += sectors;
    }

    /// `bytes_max`: what it may keep alive in the log.
    pub fn is_overfull(&self, bytes_max: u64) -> bool {
        self.queued_sectors * SECTOR_BYTES > bytes_max.min(QUEUED_BYTES_MAX)
    }

    /// A guest has written so much, queued or not.
    pub fn count_written(&mut self, sectors: u64) {
        self.rounds.write(sectors);
    }

    /// A batch of so much leaves.
    pub fn count_sent(&mut self, sectors: u64) {
        self.rounds.send(sectors);
    }

    /// Guests write as fast as it takes, so that they wait.
    fn holds_guests(&self, now: Time, bytes_max: u64) -> bool {
        let queued_max = bytes_max.min(QUEUED_BYTES_MAX) / SECTOR_BYTES;
        let (live, queued) = (self.mode == Mode::Live, self.queued_sectors);
        !self.is_stopped() && self.rounds.holds(now, live, queued, queued_max)
    }

    /// The queue is worth a batch, though one is on its way.
    pub fn is_eager(&self) -> bool {
        self.queued_sectors * SECTOR_BYTES >= EAGER_BYTES || self.queue.len() > 1
    }

    /// The epochs of its round are others by now: what it lacks is looked for anew.
    pub fn restart_round(&mut self) -> VecDeque<Delta> {
        let dropped = self.drop_queue();
        if !self.is_stopped() {
            self.cursor = None;
            self.mode = Mode::CatchingUp {
                upto: self.sent,
                dropped: true,
            };
        }
        dropped
    }

    /// Drops what is queued: it is in the epochs. What of it was sent in part is sent again.
    pub fn drop_queue(&mut self) -> VecDeque<Delta> {
        self.queued_sectors = 0;
        if self.queue.is_empty() {
            return VecDeque::new();
        }
        match self.mode {
            Mode::Stopped => {}
            Mode::CatchingUp { upto, .. } => {
                self.mode = Mode::CatchingUp {
                    upto,
                    dropped: true,
                };
            }
            Mode::Live => {
                self.cursor = None;
                self.mode = Mode::CatchingUp {
                    upto: self.sent,
                    dropped: true,
                };
            }
        }
        core::mem::take(&mut self.queue)
    }

    /// The first delta of the queue is sent as a whole.
    pub fn take_front(&mut self) -> Delta {
        let delta = self.queue.pop_front().expect("it was sent");
        let sectors = delta.map.sectors();
        assert!(delta.upto.is_some(), "what is sent is closed");
        self.queued_sectors = self.queued_sectors.saturating_sub(sectors);
        if self.queue.is_empty() {
            self.queued_sectors = 0;
            self.rounds.catches_up();
        }
        delta
    }

    /// Whether a delta of this epoch is the first of it.
    pub fn begins(&mut self, epoch: EpochNumber) -> bool {
        self.epoch.replace(epoch) != Some(epoch)
    }

    /// A batch of this delta leaves, with the serial up to which the origin has all.
    pub fn leaves(
        &mut self,
        number: u64,
        (upto, ends): (Serial, bool),
        destaged: Serial,
        piece: Option<u32>,
    ) {
        assert!(
            self.in_flight.len() < IN_FLIGHT_MAX,
            "a batch has its place"
        );
        self.told_destaged = destaged;
        if ends {
            self.sent = self.sent.max(upto);
            self.given = self.given.max(upto);
        }
        self.in_flight.push_back(Flight {
            number,
            upto,
            ends,
            piece,
        });
    }

    /// It has all that left, so that it lacks nothing up to there. True if that is news.
    pub fn has_all_that_was_sent(&mut self) -> bool {
        let all = !self.is_stopped() && self.in_flight.is_empty() && self.cursor.is_none();
        let more = all && self.durable < self.sent && self.reading.is_none();
        if more {
            self.durable = self.sent;
        }
        more
    }

    /// The origin has more than the peer was told, or the peer is to be asked for room. Within a
    /// delta it is told only where the rest has no room: what it lets go of may make some.
    pub fn is_untold(&self, destaged: Serial) -> bool {
        let between = self.cursor.is_none() || self.purse.is_short();
        self.told_destaged < destaged && between || self.purse.asks()
    }

    /// A batch that has its bytes from the device holds memory until it is acknowledged.
    pub fn holds_piece(&self) -> bool {
        self.in_flight.iter().any(|flight| flight.piece.is_some())
    }

    pub fn begin_reading(&mut self, piece: u32, batch: Batch) {
        assert!(self.reading.is_none(), "one batch is read at a time");
        let batch = Some(batch);
        self.reading = Some(Reading { piece, batch });
    }

    pub fn take_reading(&mut self) -> Option<Reading> {
        self.reading.take()
    }

    /// The sector of the volume whose bytes come to this place.
    pub fn sector_read_at(&self, place: Place) -> Option<u64> {
        let batch = self.reading.as_ref()?.batch.as_ref()?;
        batch.parts.iter().find_map(|part| {
            let begins = part.source.filter(|it| it.area == place.area)?;
            let at = place.offset.checked_sub(begins.offset)? / SECTOR_BYTES;
            (at < part.span.sectors).then(|| part.span.sector + at)
        })
    }
}

impl Replication {
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub fn peers(&mut self) -> &mut Vec<Peer> {
        &mut self.peers
    }

    pub fn id_at(&self, at: usize) -> Option<PeerId> {
        self.peers.get(at).map(|peer| peer.id)
    }

    pub fn ids(&self) -> Vec<PeerId> {
        self.peers.iter().map(|peer| peer.id).collect()
    }

    /// What each peer that gets epochs has of them; all where none gets some.
    pub fn sent_to_all(&self) -> Serial {
        let behind = self.peers.iter().filter(|it| it.catches_up_to().is_some());
        let sent = behind.map(Peer::sent);
        sent.min().unwrap_or(Serial(u64::MAX))
    }

    /// Extents of all queues.
    #[cfg(feature = "adversary")]
    pub fn extents(&self) -> u64 {
        let queued = self.peers.iter().flat_map(|peer| &peer.queue);
        queued.map(|delta| delta.map.len()).sum()
    }

    /// Some peer has no room for what is to be sent next.
    pub fn is_short(&self) -> bool {
        self.peers.iter().any(|peer| peer.purse.is_short())
    }

    /// Up to which write the log may have what was given, with how far it is durable.
    pub fn logged(&mut self) -> &mut Logged {
        &mut self.logged
    }

    /// Which other peer has all up to here: those that count, in turn.
    pub fn source(&self, upto: Serial, turn: u32, not: Option<PeerId>) -> Source {
        let counts = self.peers.iter().filter(|peer| peer.counts);
        let counts = counts.filter(|peer| Some(peer.id) != not);
        if counts.clone().next().is_none() {
            return Source::Nowhere;
        }
        let has = |peer: &&Peer| peer.durable >= upto || has(Bug::RecallBehind);
        let have = counts.filter(|peer| !peer.is_stopped()).filter(has);
        let have: Vec<PeerId> = have.map(|peer| peer.id).collect();
        match have.is_empty() {
            true => Source::Later,
            false => Source::Peer(have[turn as usize % have.len()]),
        }
    }

    /// Requests wait for peers, or for the origin.
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Replies promise what the origin has.
    pub fn answers_at_origin(&self) -> bool {
        self.at_origin || self.through
    }

    /// By order of the host, whatever an administrator has ordered.
    pub fn is_at_origin(&self) -> bool {
        self.at_origin
    }

    /// An administrator has ordered it.
    pub fn flushes_through(&self) -> bool {
        self.through
    }

    pub fn flush_through(&mut self, on: bool) {
        self.through = on;
    }

    pub fn answer_at_origin(&mut self, on: bool) {
        self.at_origin = on;
    }

    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// A batch that was read for a stopped peer has gone; so may the peer.
    pub fn forget_gone(&mut self) {
        let gone = |peer: &Peer| peer.is_stopped() && !peer.counts && peer.reading.is_none();
        self.peers.retain(|peer| !gone(peer));
    }

    pub fn shown(&self) -> Vec<PeerSnapshot> {
        let shown = self.peers.iter().map(|peer| PeerSnapshot {
            peer: peer.id,
            counts: peer.counts,
            stopped: peer.is_stopped(),
            live: peer.mode == Mode::Live,
            durable: peer.durable,
            sent: peer.sent,
            no_room: peer.has_no_room(),
        });
        shown.collect()
    }

    pub fn find(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.id == id)
    }
}

impl Volume {
    /// Whether what was written up to here is at each peer that counts.
    pub fn is_replicated(&self, upto: Serial) -> bool {
        let peers = &self.replication.peers;
        let there = |peer: &Peer| !peer.counts || peer.durable >= upto;
        upto <= self.destaged() || peers.iter().all(there) || has(Bug::AcknowledgeBeforePeers)
    }

    /// Whether a reply may promise that what was written up to here, which the log has, is durable.
    pub fn may_promise(&self, upto: Serial) -> bool {
        let origin = !self.replication.answers_at_origin() || has(Bug::AnswerBeforeOrigin);
        upto <= self.destaged() || origin && self.is_replicated(upto)
    }

    /// A peer that counts has no room: what is written next would have to wait there.
    pub fn waits_for_room_of_peers(&self) -> bool {
        self.replication.peers.iter().any(Peer::has_no_room)
    }

    /// A peer is behind, and would never catch up.
    pub fn waits_for_peers_behind(&self, now: Time, bytes_max: u64) -> bool {
        let mut peers = self.replication.peers.iter();
        peers.any(|peer| peer.holds_guests(now, bytes_max))
    }

    /// What its peers may hold of it, those included that are about to count: more could never be
    /// there. Nothing limits it where there are none.
    pub fn room_of_peers(&self) -> LogRoom {
        let peers = self.replication.peers.iter();
        let started = peers.filter(|peer| !peer.is_stopped());
        let most = started.map(|peer| peer.purse.most());
        most.fold(LogRoom::ALL, |least, it| least.with(it, u64::min))
    }

    /// Some time has passed: peers that are short of room are asked. False if none is.
    pub fn ask_for_room(&mut self) -> bool {
        let peers = self.replication.peers.iter_mut();
        let asked = peers.map(|peer| peer.purse.ask_if_short());
        asked.fold(false, |any, it| any | it)
    }

    /// What is written is sent to others, so that it stays as it is described to them.
    pub fn has_peers(&self) -> bool {
        !self.replication.is_empty()
    }

    /// Some peer counts, so that nothing may be written but by the log.
    pub fn relies_on_peers(&self) -> bool {
        self.replication.peers.iter().any(|peer| peer.counts)
    }

    /// A reply promises that writes up to here are durable.
    pub fn promise(&mut self, upto: Serial) {
        self.replication.promised = self.replication.promised.max(upto);
    }

    /// A destage begins with writes up to here.
    pub fn begin_with(&mut self, upto: Serial) {
        self.replication.begun = self.replication.begun.max(upto);
    }

    /// What replies and destages have relied on.
    pub fn relied_on(&self) -> Serial {
        let Replication {
            promised, begun, ..
        } = self.replication;
        match (
            has(Bug::CountForgettingFlushes),
            has(Bug::CountForgettingCuts),
        ) {
            (true, _) => begun,
            (_, true) => promised,
            _ => promised.max(begun),
        }
    }

    /// A request waits until its writes are at each peer that counts, or at the origin.
    pub fn wait_for_peers(&mut self, upto: Serial, request: RequestId) {
        let waiting = &mut self.replication.waiting;
        let last = waiting.back().map_or(Serial(0), |(serial, _)| *serial);
        // Who asks for less waits a little longer.
        waiting.push_back((upto.max(last), request));
    }

    /// Who waits for peers no longer, and what that promises.
    pub fn take_replicated(&mut self) -> Vec<(Serial, RequestId)> {
        let mut done = Vec::new();
        while let Some((upto, request)) = self.replication.waiting.front().copied() {
            if !self.may_promise(upto) {
                break;
            }
            self.replication.waiting.pop_front();
            done.push((upto, request));
        }
        done
    }

    /// All who wait for peers.
    pub fn take_waiting_for_peers(&mut self) -> impl Iterator<Item = RequestId> + use<> {
        let waiting = core::mem::take(&mut self.replication.waiting);
        waiting.into_iter().map(|(_, request)| request)
    }

    /// A peer that has writes up to here gets the rest.
    pub fn start_peer(&mut self, now: Time, id: PeerId, have: Serial, credit: Credit) {
        if self.replication.is_empty() {
            // The write that is staged in part counts.
            self.replication.logged = Logged::from(Serial(self.acked().0 + 1));
        }
        let peers = &mut self.replication.peers;
        let at = peers.iter().position(|peer| peer.id == id);
        let at = at.unwrap_or_else(|| {
            peers.push(Peer::stopped(id));
            peers.len() - 1
        });
        let peer = &mut peers[at];
        assert!(
            peer.is_stopped() && peer.queue.is_empty() && peer.in_flight.is_empty(),
            "a peer is started once"
        );
        (peer.durable, peer.sent, peer.given) = (have, have, have);
        (peer.told_destaged, peer.epoch, peer.cursor) = (Serial(0), None, None);
        (peer.purse, peer.rounds) = (Purse::of(credit), Rounds::start(now));
        peer.mode = Mode::CatchingUp {
            upto: have,
            dropped: true,
        };
    }

    /// From now on it is relied on. False if it is not there.
    pub fn count_peer(&mut self, id: PeerId, request: RequestId) -> bool {
        let Some(peer) = self.replication.find(id) else {
            return false;
        };
        if peer.counting.is_some() {
            return false;
        }
        peer.counts = true;
        peer.counting = Some(request);
        true
    }

    /// Who waits for a peer that has all by now that was relied on.
    pub fn take_counted(&mut self) -> Vec<RequestId> {
        let (relied_on, destaged) = (self.relied_on(), self.destaged());
        let peers = self.replication.peers.iter_mut();
        let whole = |peer: &&mut Peer| peer.durable >= relied_on || relied_on <= destaged;
        peers
            .filter(whole)
            .filter_map(|peer| peer.counting.take())
            .collect()
    }

    /// A peer that is needed, and cannot be sent to at present.
    pub fn need_peer(&mut self, id: PeerId) {
        let peers = &mut self.replication.peers;
        if peers.iter().all(|peer| peer.id != id) {
            peers.push(Peer {
                counts: true,
                ..Peer::stopped(id)
            });
        }
    }

    /// Nothing is sent to it any more. What is given back: deltas, pieces of memory, and who waited
    /// for it to count.
    pub fn stop_peer(&mut self, id: PeerId, counts: bool) -> Option<Stopped> {
        let peer = self.replication.find(id)?;
        let deltas = peer.drop_queue();
        let flights = core::mem::take(&mut peer.in_flight);
        let stopped = Stopped {
            deltas,
            pieces: flights.into_iter().filter_map(|it| it.piece).collect(),
            counting: peer.counting.take(),
        };
        (peer.mode, peer.cursor) = (Mode::Stopped, None);
        (peer.counts, peer.purse) = (counts, Purse::default());
        if let Some(reading) = &mut peer.reading {
            reading.batch = None;
        }
        self.replication.forget_gone();
        Some(stopped)
    }

    /// A peer has this batch, and all before it, durably. The pieces of memory that are free by
    /// that.
    pub fn peer_has(&mut self, now: Time, id: PeerId, number: u64) -> Vec<u32> {
        let mut pieces = Vec::new();
        let Some(peer) = self.replication.find(id) else {
            return pieces;
        };
        peer.rounds.hear(now);
        while peer.in_flight.front().is_some_and(|it| it.number <= number) {
            let flight = peer.in_flight.pop_front().expect("just seen");
            pieces.extend(flight.piece);
            if flight.ends {
                peer.durable = peer.durable.max(flight.upto);
            }
        }
        assert!(peer.durable <= peer.sent, "a peer has what was sent to it");
        pieces
    }
}

/// What a peer had.
pub struct Stopped {
    pub deltas: VecDeque<Delta>,
    pub pieces: Vec<u32>,
    pub counting: Option<RequestId>,
}
