//! Requests of the engine to origins behind a server.
//!
//! Owns each such [`Io`] from the action to its `Done`, and the pieces it falls apart into. Always
//! true: every action is answered once; a piece waits in the queue or is on one wire; a write that
//! was on a wire which ended is sent again only when its first copy can land no more; reads are
//! given back to the engine while there is no connection, everything else waits for it. A sync
//! says yes only for writes of its own connection: what was answered on an earlier one and not
//! synced there makes the next sync fail, and is written again by the engine. Deliberately absent:
//! sockets, which are [`link`]'s.
//!
//! ```text
//! queued ─▶ on a wire ─▶ answered
//!   ▲           │
//!   └───────────┘ the wire ended (writes: not before origin-quiet)
//! ```

mod danger;
mod link;

use super::{Alarm, Decide, Shard, tag};
use crate::buffer::HostMemory;
use crate::files::stat_of_export;
use crate::marks::{self, Phase};
use crate::origin::file::OpenVolume;
use crate::origin::nbd::Export;
use crate::origin::nbd::client::io_error;
use crate::origin::nbd::open::Leavings;
use crate::origin::nbd::session::{Ask, Errno};
use crate::origin::nbd::split::{self, split};
use crate::origin::nbd::uri::Uri;
use crate::ring::{Part, Span};
use crate::shard::slots::Slots;
use danger::Danger;
use engine::event::{Device, Event, Io, IoError, Op};
use engine::memory::{Memory, Slice};
use engine::snapshot::{Snapshot, State};
use engine::types::{SECTOR_BYTES, Time, VolumeId};
pub(super) use link::Wires;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Payload of one send.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// Unanswered requests on one connection.
const IN_FLIGHT_MAX: usize = 128;

/// One request to a server.
#[derive(Debug)]
struct Piece {
    request: u32,
    what: What,
    /// What it is about; an edge is a part of the server's block around it.
    part: split::Piece,
}

#[derive(Debug)]
enum What {
    Read,
    /// A block of which an edge is wanted.
    ReadEdge(Vec<u8>),
    Write,
    Zero {
        keep: bool,
    },
    /// Where the server cannot zero.
    WriteZeroes,
    /// A block of which an edge is written: it is read first.
    FetchEdge(Vec<u8>),
    StoreEdge(Vec<u8>),
    /// Covers the first so many answered writes.
    Flush {
        covers: u64,
    },
}

/// A request of the engine under way.
#[derive(Debug)]
struct Asked {
    io: Io,
    left: usize,
    result: Result<(), IoError>,
    locked: bool,
}

/// One origin behind a server.
pub(super) struct Remote {
    uri: Uri,
    export: Export,
    quiet: Duration,
    link: link::Link,
    requests: Slots<Asked>,
    queue: VecDeque<Piece>,
    danger: Danger,
    /// Something in the queue waits for `danger` to be over, until then.
    resting: Option<Time>,
    /// Writes answered since the start, and how many of them the last good flush covers.
    answered: u64,
    synced: u64,
    /// Writes were answered on a connection that ended before they were synced.
    doubt: bool,
    /// The volume goes away: nothing waits for a connection any more.
    giving_up: bool,
}

/// Every origin behind a server.
#[derive(Default)]
pub(super) struct Remotes {
    all: BTreeMap<VolumeId, Remote>,
    pub wires: Wires,
}

impl Piece {
    fn new(request: u32, what: What, part: split::Piece) -> Piece {
        Piece {
            request,
            what,
            part,
        }
    }

    fn range(&self, export: &Export) -> Range<u64> {
        let (start, end) = (
            self.part.offset,
            self.part.offset + u64::from(self.part.bytes),
        );
        if !self.part.edge {
            return start..end;
        }
        let block = u64::from(export.block_bytes);
        start / block * block..end.next_multiple_of(block)
    }

    /// Must not meet a write that may still land.
    fn changes(&self) -> bool {
        !matches!(
            self.what,
            What::Read | What::ReadEdge(_) | What::Flush { .. }
        )
    }

    fn reads(&self) -> bool {
        matches!(self.what, What::Read | What::ReadEdge(_))
    }

    /// Whether the server may do it late, after the connection has ended.
    fn lands(&self) -> bool {
        self.changes() && !matches!(self.what, What::FetchEdge(_))
    }

    fn ask(&self, export: &Export) -> Ask {
        let range = self.range(export);
        let (offset, bytes) = (range.start, (range.end - range.start) as u32);
        match self.what {
            What::Read | What::ReadEdge(_) | What::FetchEdge(_) => Ask::Read { offset, bytes },
            What::Write | What::WriteZeroes | What::StoreEdge(_) => Ask::Write { offset, bytes },
            What::Zero { keep } => Ask::Zero {
                offset,
                bytes,
                keep,
            },
            What::Flush { .. } => Ask::Flush,
        }
    }
}

impl Remotes {
    /// Nothing of the engine is under way.
    pub fn is_idle(&self) -> bool {
        self.all.values().all(|remote| remote.requests.len() == 0)
    }

    pub fn requests(&self) -> usize {
        self.all.values().map(|remote| remote.requests.len()).sum()
    }

    /// What the engine cannot know: that an origin is away.
    pub fn mark(&self, snapshot: &mut Snapshot) {
        for volume in &mut snapshot.volumes {
            let trouble = self.all.get(&volume.id).and_then(Remote::trouble);
            let ours = matches!(volume.state, State::Clean | State::Dirty | State::Stalled);
            if let Some((state, reason)) = trouble.filter(|_| ours) {
                volume.state = state;
                volume.reason = Some(reason);
            }
        }
    }
}

/// What becomes of a piece whose turn it is.
enum Turn {
    Go(Piece),
    /// Not before this time.
    Rest(Piece, Time),
    /// A sync that cannot vouch for the writes before it, by its request.
    Refuse(u32),
}

impl Remote {
    fn turn(&mut self, mut piece: Piece, now: Time) -> Turn {
        let range = piece.range(&self.export);
        if piece.changes()
            && let Err(until) = self.danger.judge(now, &range)
        {
            return Turn::Rest(piece, until);
        }
        if let What::Flush { covers } = &mut piece.what {
            if std::mem::take(&mut self.doubt) {
                self.synced = self.answered;
                return Turn::Refuse(piece.request);
            }
            *covers = self.answered;
        }
        Turn::Go(piece)
    }

    fn trouble(&self) -> Option<(State, &'static str)> {
        if self.link.is_strange() {
            let reason = "the export is not as it was when the volume was attached; restore its \
                          size and abilities";
            return Some((State::Held, reason));
        }
        let reason = if !self.link.is_up() {
            "the connection to the origin is lost; it is tried again"
        } else if self.resting.is_some() {
            "writes to the origin wait for origin-quiet after an unclean end of its connection"
        } else {
            return None;
        };
        Some((State::Stalled, reason))
    }
}

impl<E: Decide> Shard<E> {
    pub(super) fn has_remote(&self, device: Device) -> bool {
        matches!(device, Device::Origin(id) if self.remotes.all.contains_key(&id))
    }

    /// Takes the connection of a volume that joins.
    pub(super) fn add_remote(&mut self, id: VolumeId, files: &mut OpenVolume) {
        let Some(origin) = files.origin.nbd_mut() else {
            return;
        };
        let mut danger = Danger::default();
        if origin.unclean {
            danger.add_everything(self.after(origin.quiet));
        }
        let remote = Remote {
            uri: origin.uri.clone(),
            export: origin.export,
            quiet: origin.quiet,
            link: link::Link::default(),
            requests: Slots::default(),
            queue: VecDeque::new(),
            danger,
            resting: None,
            answered: 0,
            synced: 0,
            doubt: false,
            giving_up: false,
        };
        let client = origin.client.take();
        self.remotes.all.insert(id, remote);
        match client {
            Some(client) => self.link_up(id, client),
            None => self.connect_later(id),
        }
    }

    fn after(&self, pause: Duration) -> Time {
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX / 4);
        Time(self.now.0 + pause.min(u64::MAX / 4))
    }

    /// Starts what the engine asked for.
    pub(super) fn start_remote(&mut self, io: Io) {
        let Device::Origin(id) = io.device else {
            panic!("only origins are behind a server");
        };
        if marks::on()
            && let Some(phase) = Phase::of(io.purpose)
        {
            marks::enter(phase);
            self.submitted.push(phase);
        }
        let remote = self
            .remotes
            .all
            .get_mut(&id)
            .expect("looked up by the caller");
        let export = remote.export;
        if io.op == Op::Stat {
            marks_leave(&io);
            let stat = stat_of_export(export.size_bytes);
            self.done.push_back((io.id, (Ok(()), Some(stat))));
            return;
        }
        if matches!(io.op, Op::Zero { allocate: false }) && !export.write_zeroes {
            let (volume, bytes) = (id, io.bytes);
            self.told.push_back(Event::Zeroed { volume, bytes });
        }
        // Only where blocks are larger than sectors can two writes meet in one block.
        let block = u64::from(export.block_bytes);
        let shares = block > SECTOR_BYTES && matches!(io.op, Op::Write | Op::Zero { .. });
        let alone = !(io.offset.is_multiple_of(block) && io.bytes.is_multiple_of(block));
        let first = io.offset / block * block / SECTOR_BYTES;
        let end = (io.offset + io.bytes).next_multiple_of(block.max(SECTOR_BYTES)) / SECTOR_BYTES;
        let device = io.device;
        let slot = remote.requests.insert(Asked {
            io,
            left: 0,
            result: Ok(()),
            locked: shares,
        });
        if shares {
            let lock = self.blocks.entry(device).or_default();
            if !lock.acquire(slot, engine::types::Span::new(first, end - first), alone) {
                return;
            }
        }
        self.cut_remote(id, slot);
    }

    /// Cuts a request into pieces and sends what can be sent.
    fn cut_remote(&mut self, id: VolumeId, slot: u32) {
        let remote = self.remotes.all.get_mut(&id).expect("its request is here");
        let (export, away) = (remote.export, !remote.link.is_up());
        let asked = remote.requests.get_mut(slot).expect("it was just entered");
        let (op, io) = (asked.io.op, &asked.io);
        let parts = match op {
            Op::Sync => vec![split::Piece {
                offset: 0,
                bytes: 0,
                edge: false,
            }],
            _ => split(&export, io.offset, io.bytes),
        };
        asked.left = parts.len();
        assert!(asked.left > 0, "a request to a device has bytes");
        let block = || vec![0; export.block_bytes as usize];
        for part in parts {
            let what = match op {
                Op::Read if part.edge => What::ReadEdge(block()),
                Op::Read => What::Read,
                Op::Write | Op::Zero { .. } if part.edge => What::FetchEdge(block()),
                Op::Write => What::Write,
                Op::Zero { allocate } if export.write_zeroes => What::Zero { keep: allocate },
                Op::Zero { .. } => What::WriteZeroes,
                Op::Sync => What::Flush { covers: 0 },
                Op::Unpack(_) | Op::Stat | Op::Remove | Op::Resize => {
                    panic!("{op:?} is no request to a server")
                }
            };
            remote.queue.push_back(Piece::new(slot, what, part));
        }
        if away {
            self.turn_away(id);
        }
        self.pump_remote(id);
    }

    /// Without a connection reads go back to the engine, which holds them; all else waits, unless
    /// nobody waits for the volume any more.
    pub(super) fn turn_away(&mut self, id: VolumeId) {
        let everything = self.is_parked();
        let Some(remote) = self.remotes.all.get_mut(&id) else {
            return;
        };
        let everything = everything || remote.giving_up;
        let queue = std::mem::take(&mut remote.queue);
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = queue
            .into_iter()
            .partition(|piece| everything || piece.reads());
        remote.queue = kept;
        for piece in gone {
            self.end_piece(id, piece.request, Err(IoError::Away));
        }
    }

    /// Sends what waits and may go.
    pub(super) fn pump_remote(&mut self, id: VolumeId) {
        let Some(remote) = self.remotes.all.get_mut(&id) else {
            return;
        };
        let Some(slot) = remote.link.wire() else {
            return;
        };
        let Some(wire) = self.remotes.wires.idle(slot) else {
            return;
        };
        let (mut head, mut parts, mut bytes) = (Vec::new(), Vec::new(), 0);
        let (mut kept, mut refused) = (VecDeque::new(), Vec::new());
        let mut later: Option<Time> = None;
        while let Some(piece) = remote.queue.pop_front() {
            if wire.unanswered() >= IN_FLIGHT_MAX || bytes >= BATCH_BYTES_MAX {
                kept.push_back(piece);
                break;
            }
            let piece = match remote.turn(piece, self.now) {
                Turn::Go(piece) => piece,
                Turn::Rest(piece, until) => {
                    later = Some(later.map_or(until, |later| later.min(until)));
                    kept.push_back(piece);
                    continue;
                }
                Turn::Refuse(request) => {
                    refused.push(request);
                    continue;
                }
            };
            let asked = remote.requests.get(piece.request);
            let io = &asked.expect("a piece has its request").io;
            let (cookie, words) = wire.session.ask(piece.ask(&remote.export));
            let start = head.len();
            head.extend_from_slice(&words);
            if let What::StoreEdge(block) = &piece.what {
                head.extend_from_slice(block);
            }
            parts.push(Part::Owned(start..head.len()));
            self.spans.clear();
            match piece.what {
                What::Write => spans(&self.memory, io, &piece.part, &mut self.spans),
                What::WriteZeroes => self
                    .zeroes
                    .spans(u64::from(piece.part.bytes), &mut self.spans),
                _ => {}
            }
            bytes += self
                .spans
                .iter()
                .map(|span| span.bytes() as u64)
                .sum::<u64>();
            parts.extend(self.spans.iter().copied().map(Part::Span));
            wire.sent(cookie, piece);
        }
        kept.append(&mut remote.queue);
        remote.queue = kept;
        // One alarm for each time is enough.
        let alarm = later.filter(|_| later != remote.resting);
        remote.resting = later;
        if !parts.is_empty() {
            let fd = wire.begin_send();
            self.ring.send(tag::remote_send(slot), fd, head, &parts);
        }
        if let Some(at) = alarm {
            self.timers.set(at, Alarm::Remote(id));
        }
        self.refuse_syncs(id, refused);
    }

    fn refuse_syncs(&mut self, id: VolumeId, refused: Vec<u32>) {
        for request in refused {
            tracing::warn!(
                volume = %id,
                "volume {id}: writes to the origin were answered but not synced when its \
                 connection ended; the sync fails, so that they are written again"
            );
            self.end_piece(id, request, Err(IoError::Failed));
        }
    }

    /// Bytes of a read have come.
    fn deliver_remote(&mut self, id: VolumeId, piece: &mut Piece, at: u32, bytes: &[u8]) {
        if let What::ReadEdge(block) | What::FetchEdge(block) = &mut piece.what {
            let at = at as usize;
            block[at..at + bytes.len()].copy_from_slice(bytes);
            return;
        }
        let Some(remote) = self.remotes.all.get(&id) else {
            return;
        };
        let asked = remote.requests.get(piece.request);
        let io = &asked.expect("a piece has its request").io;
        store(
            &mut self.memory,
            io,
            piece.part.offset + u64::from(at),
            bytes,
        );
    }

    /// The server has answered a piece.
    fn finish_piece(&mut self, id: VolumeId, mut piece: Piece, result: Result<(), Errno>) {
        let Some(remote) = self.remotes.all.get_mut(&id) else {
            return;
        };
        let asked = remote.requests.get(piece.request);
        let io = &asked.expect("a piece has its request").io;
        if piece.lands() {
            remote.answered += 1;
        }
        if let Err(Errno(errno)) = result {
            let (uri, op, offset) = (&remote.uri, io.op, piece.part.offset);
            let bytes = piece.part.bytes;
            tracing::warn!(
                origin = %uri,
                "{uri}: {op:?} of {bytes} bytes at {offset}: error {errno}"
            );
            return self.end_piece(id, piece.request, result.map_err(io_error));
        }
        let skip = (piece.part.offset - piece.range(&remote.export).start) as usize;
        let edge = skip..skip + piece.part.bytes as usize;
        match piece.what {
            What::FetchEdge(mut block) => {
                match io.op {
                    Op::Write => load(&self.memory, io, piece.part.offset, &mut block[edge]),
                    _ => block[edge].fill(0),
                }
                piece.what = What::StoreEdge(block);
                remote.queue.push_front(piece);
                return;
            }
            What::ReadEdge(block) => {
                store(&mut self.memory, io, piece.part.offset, &block[edge]);
            }
            What::Flush { covers } => remote.synced = remote.synced.max(covers),
            _ => {}
        }
        self.end_piece(id, piece.request, Ok(()));
    }

    /// A piece is over; with the last one the request is.
    fn end_piece(&mut self, id: VolumeId, request: u32, result: Result<(), IoError>) {
        let remote = self.remotes.all.get_mut(&id).expect("its piece was here");
        let asked = remote
            .requests
            .get_mut(request)
            .expect("it has pieces left");
        asked.left -= 1;
        asked.result = asked.result.and(result);
        if asked.left > 0 {
            return;
        }
        let asked = remote.requests.remove(request);
        marks_leave(&asked.io);
        if asked.locked {
            let mut granted = Vec::new();
            let lock = self.blocks.get_mut(&asked.io.device);
            lock.expect("it was locked").release(request, &mut granted);
            granted
                .into_iter()
                .for_each(|slot| self.cut_remote(id, slot));
        }
        self.done.push_back((asked.io.id, (asked.result, None)));
    }

    /// A wire has ended with these unanswered.
    fn recall(&mut self, id: VolumeId, pieces: Vec<Piece>) {
        let Some(remote) = self.remotes.all.get_mut(&id) else {
            return;
        };
        let until = Time(self.now.0 + remote.quiet.as_nanos() as u64);
        for piece in pieces.into_iter().rev() {
            if piece.lands() {
                remote.danger.add(piece.range(&remote.export), until);
            }
            remote.queue.push_front(piece);
        }
        remote.doubt |= remote.answered > remote.synced;
        self.turn_away(id);
    }

    /// While a volume goes away nothing of it waits for a connection.
    pub(super) fn give_up_remote(&mut self, id: VolumeId, giving_up: bool) {
        let Some(remote) = self.remotes.all.get_mut(&id) else {
            return;
        };
        remote.giving_up = giving_up;
        if giving_up && !remote.link.is_up() {
            self.turn_away(id);
        }
    }

    /// Parked: what has not been sent is not sent any more.
    pub(super) fn park_remotes(&mut self) {
        let all: Vec<VolumeId> = self.remotes.all.keys().copied().collect();
        all.into_iter().for_each(|id| self.turn_away(id));
    }

    /// Lets an origin go that the engine has let go. What is left to be done may block.
    pub(super) fn drop_remote(&mut self, id: VolumeId, files: OpenVolume) -> Leavings {
        let Some(remote) = self.remotes.all.remove(&id) else {
            return Leavings::default();
        };
        let over = remote.requests.len() == 0 && remote.danger.is_over(self.now);
        if let Some(slot) = remote.link.wire() {
            self.end_wire(slot, over);
        }
        match over {
            true => Leavings::of_clean(files),
            false => Leavings::default(),
        }
    }

    /// The last thing a shard does, when nothing is under way.
    pub(super) fn close_remotes(&mut self) {
        let all: Vec<VolumeId> = self.remotes.all.keys().copied().collect();
        for id in all {
            if let Some(files) = self.files.remove_volume(id) {
                self.drop_remote(id, files).remove();
            }
        }
    }
}

fn marks_leave(io: &Io) {
    if marks::on()
        && let Some(phase) = Phase::of(io.purpose)
    {
        marks::leave(phase);
    }
}

/// Calls `each` with the parts of an operation's memory that hold these bytes of the origin.
fn places(io: &Io, offset: u64, bytes: u64, mut each: impl FnMut(Slice)) {
    let (mut skip, mut left) = (offset - io.offset, bytes);
    for slice in &io.slices {
        if skip >= slice.bytes {
            skip -= slice.bytes;
            continue;
        }
        let bytes = (slice.bytes - skip).min(left);
        if bytes > 0 {
            each(Slice {
                place: slice.place.plus(skip),
                bytes,
            });
        }
        (skip, left) = (0, left - bytes);
    }
    assert_eq!(left, 0, "a piece lies inside its request");
}

fn spans(memory: &HostMemory, io: &Io, part: &split::Piece, into: &mut Vec<Span>) {
    places(io, part.offset, u64::from(part.bytes), |slice| {
        Span::places(memory, slice.place, slice.bytes, into);
    });
}

fn store(memory: &mut HostMemory, io: &Io, offset: u64, bytes: &[u8]) {
    let mut at = 0;
    places(io, offset, bytes.len() as u64, |slice| {
        let end = at + slice.bytes as usize;
        memory.store(slice.place, &bytes[at..end]);
        at = end;
    });
}

fn load(memory: &HostMemory, io: &Io, offset: u64, bytes: &mut [u8]) {
    let mut at = 0;
    places(io, offset, bytes.len() as u64, |slice| {
        let end = at + slice.bytes as usize;
        memory.load(slice.place, &mut bytes[at..end]);
        at = end;
    });
}
