//! Streams and inlets of a shard, with an engine that keeps what it is given until it is told.

use super::copies::{Inlet, Stream};
use super::tests::{House, Peers, house_with};
use crate::cluster::data::Outlet;
use engine::event::{self, BatchPart, Command, Credit};
use engine::format::record::EntryKind;
use engine::memory::{Area, Place};
use engine::types::{PeerId, Serial, Span, Uuid, VolumeId};
use node::batch::{Batch, Part};
use node::frame::{Frame, HEADER_BYTES, Header, VERSION_MAX};
use node::message::{Body, Message};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const COPY: Uuid = Uuid([7; 16]);
const SESSION: Uuid = Uuid([8; 16]);
const OWNER: Uuid = Uuid([9; 16]);
const TERM: u64 = 3;
const MIB: usize = 1 << 20;
/// How long something takes that is sure to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Keeps what is sent.
#[derive(Default)]
struct Kept(Mutex<Vec<Vec<u8>>>);

impl Outlet for Kept {
    fn send(&self, frame: Vec<u8>) -> bool {
        self.0.lock().expect("whole").push(frame);
        true
    }
}

impl Kept {
    /// What batches were answered since the last time.
    fn answers(&self) -> Vec<Body> {
        let frames = std::mem::take(&mut *self.0.lock().expect("whole"));
        frames.iter().map(|frame| answer(frame)).collect()
    }
}

fn answer(frame: &[u8]) -> Body {
    let (header, body) = frame.split_first_chunk::<HEADER_BYTES>().expect("a header");
    let header = Header::parse(header, VERSION_MAX).expect("a header");
    match Frame::parse(&header, body) {
        Ok(Frame::Unit(bytes)) => Message::parse(&bytes).expect("a message").body,
        other => panic!("{other:?}"),
    }
}

impl House {
    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().expect("whole")
    }

    fn inlet(&self, copy: Uuid) {
        let inlet = Inlet {
            copy,
            session: SESSION,
            host: OWNER,
            volume: self.volume,
            term: TERM,
        };
        self.handle.inlet_open(inlet).expect("runs");
    }

    fn bring(&self, batch: &Batch, back: &Arc<Kept>) {
        let bytes = payload(batch);
        let back = back.clone();
        self.handle.sink().batch(OWNER, batch.clone(), bytes, back);
    }

    /// Waits until the engine has so many batches; gives their numbers, which are their `upto`.
    fn given(&self, count: usize) -> Vec<u64> {
        let start = Instant::now();
        loop {
            let peers = self.peers();
            if peers.batches.len() >= count {
                return peers.batches.iter().map(|it| it.2.upto.0).collect();
            }
            drop(peers);
            assert!(start.elapsed() < PATIENCE, "not in time");
            std::thread::yield_now();
        }
    }

    /// The engine has the first batch durably.
    fn durable(&self) {
        let volume = self.volume;
        let command = Command::Destage { volume };
        self.handle.command(command).expect("runs");
    }

    /// All that was brought before has been looked at.
    fn turn(&self) {
        let last = Arc::new(Kept::default());
        self.bring(&batch(Uuid([99; 16]), 1, 0), &last);
        let start = Instant::now();
        while last.answers().is_empty() {
            assert!(start.elapsed() < PATIENCE, "not in time");
            std::thread::yield_now();
        }
    }
}

fn batch(copy: Uuid, number: u64, bytes: usize) -> Batch {
    let write = |sector: u64, bytes: usize| Part {
        span: Span::new(sector, bytes as u64 / 512),
        kind: EntryKind::Write,
        sum: number as u32,
    };
    let zero = Part {
        span: Span::new(0, 8),
        kind: EntryKind::Zero { allocate: true },
        sum: 0,
    };
    let mut parts = vec![zero];
    if bytes > 0 {
        parts.extend([write(8, 512), write(1 << 20, bytes - 512)]);
    }
    Batch {
        number,
        term: TERM,
        copy,
        session: SESSION,
        after: Serial(1),
        upto: Serial(number),
        destaged: Serial(1),
        part: 2,
        ends: true,
        begins_epoch: true,
        parts,
    }
}

fn payload(batch: &Batch) -> Vec<u8> {
    let byte = |at: usize| (at as u64 * 7 + batch.number) as u8;
    (0..batch.payload_bytes()).map(byte).collect()
}

fn ack(number: u64, durable: u64) -> Body {
    Body::Ack {
        copy: COPY,
        session: SESSION,
        term: TERM,
        durable: Serial(durable),
        batch: number,
        credit: Credit::default(),
    }
}

fn failed(session: Uuid) -> Body {
    let copy = COPY;
    Body::Failed { copy, session }
}

#[test]
fn a_batch_comes_whole_to_the_engine_and_its_reply_goes_back() {
    let house = house_with("disk", None, Vec::new());
    let back = Arc::new(Kept::default());
    house.inlet(COPY);
    let first = batch(COPY, 41, 4096);
    house.bring(&first, &back);
    assert_eq!(house.given(1), [41]);
    {
        let peers = house.peers();
        let (_, volume, came, bytes) = &peers.batches[0];
        assert_eq!(*volume, house.volume);
        assert!(*bytes == payload(&first));
        let spans: Vec<Span> = came.parts.iter().map(|part| part.span).collect();
        let sent: Vec<Span> = first.parts.iter().map(|part| part.span).collect();
        assert_eq!(spans, sent);
        assert_eq!(came.parts[0].source, None);
        assert_eq!((came.after, came.destaged), (Serial(1), Serial(1)));
        assert_eq!((came.part, came.ends, came.begins_epoch), (2, true, true));
        assert_eq!(came.parts[1].sum, 41);
    }
    assert_eq!(back.answers(), []);
    house.durable();
    assert_eq!(back.answers(), [ack(41, 41)]);
    // A part of a delta makes nothing durable that was not.
    let half = Batch {
        ends: false,
        ..batch(COPY, 42, 1024)
    };
    house.bring(&half, &back);
    house.given(1);
    house.durable();
    assert_eq!(back.answers(), [ack(42, 1)]);
    house.bring(&batch(COPY, 43, 1024), &back);
    house.given(1);
    let volume = house.volume;
    let refuse = Command::Reset { volume };
    house.handle.command(refuse).expect("runs");
    assert_eq!(back.answers(), [failed(SESSION)]);
    assert_eq!(Arc::strong_count(&back), 1, "each is let go");
    house.close();
}

#[test]
fn a_batch_of_another_session_or_host_is_refused_and_a_closed_inlet_says_nothing() {
    let house = house_with("disk", None, Vec::new());
    let back = Arc::new(Kept::default());
    let other = Uuid([1; 16]);
    house.bring(&batch(COPY, 1, 512 * 3), &back);
    house.turn();
    assert_eq!(back.answers(), [failed(SESSION)]);
    house.inlet(COPY);
    let of_session = Batch {
        session: other,
        ..batch(COPY, 1, 1024)
    };
    house.bring(&of_session, &back);
    let of_host = batch(COPY, 3, 1024);
    let bytes = payload(&of_host);
    house
        .handle
        .sink()
        .batch(other, of_host, bytes, back.clone());
    house.turn();
    let expected = [failed(other), failed(SESSION)];
    assert_eq!(back.answers(), expected);
    assert_eq!(house.given(0), [0; 0]);

    for number in 4..8 {
        house.bring(&batch(COPY, number, 1024), &back);
    }
    house.given(4);
    house.durable();
    assert_eq!(back.answers(), [ack(4, 4)]);
    house.handle.inlet_close(COPY).expect("runs");
    house.durable();
    assert_eq!(back.answers(), [], "it is closed");
    // Nor is it when the copy has another session, or the same one again.
    house.inlet(COPY);
    house.durable();
    assert_eq!(back.answers(), [], "that was of the inlet before");
    let inlet = Inlet {
        copy: COPY,
        session: other,
        host: OWNER,
        volume: house.volume,
        term: TERM,
    };
    house.handle.inlet_open(inlet).expect("runs");
    house.durable();
    house.bring(&batch(COPY, 9, 1024), &back);
    house.turn();
    assert_eq!(back.answers(), [failed(SESSION)]);
    assert_eq!(Arc::strong_count(&back), 1, "each is let go");
    house.close();
}

#[test]
fn batches_without_memory_wait_in_order() {
    let house = house_with("disk", None, Vec::new());
    let back = Arc::new(Kept::default());
    let (held, more) = (64, 6);
    house.inlet(COPY);
    for number in 1..=held + more {
        house.bring(&batch(COPY, number, MIB), &back);
    }
    let first: Vec<u64> = (1..=held).collect();
    assert_eq!(house.given(held as usize), first);
    // Of another copy what needs no memory passes; of the same one it keeps its turn.
    let other = Uuid([1; 16]);
    house.inlet(other);
    house.bring(&batch(COPY, 90, 0), &back);
    house.bring(&batch(other, 91, 0), &back);
    house.bring(&batch(other, 92, 1024), &back);
    let given = house.given(held as usize + 1);
    assert_eq!(given[held as usize..], [91]);
    house.turn();
    assert_eq!(house.given(0).len(), held as usize + 1);
    let used = house
        .handle
        .snapshot()
        .expect("runs")
        .host
        .buffer_bytes_used;
    assert_eq!(used, held * MIB as u64);
    let mut order = Vec::new();
    while order.len() < (held + more) as usize + 3 {
        order.push(house.given(1)[0]);
        house.durable();
        assert!(house.given(0).len() <= held as usize + 3);
    }
    let of_copy = order.iter().filter(|number| **number < 91);
    let of_copy: Vec<u64> = of_copy.copied().collect();
    let expected: Vec<u64> = (1..=held + more).chain([90]).collect();
    assert_eq!(of_copy, expected);
    let of_other = order.iter().filter(|number| **number > 90);
    assert!(of_other.eq(&[91, 92]));
    assert_eq!(back.answers().len(), (held + more) as usize + 3);
    house.close();
}

/// What a batch that was sent says, and its payload.
fn sent(frame: &[u8]) -> (Batch, Vec<u8>) {
    let (header, rest) = frame.split_first_chunk::<HEADER_BYTES>().expect("a header");
    let header = Header::parse(header, VERSION_MAX).expect("a header");
    let (body, payload) = rest.split_at(header.body_bytes);
    let batch = Batch::parse(&header, body).expect("a batch");
    (batch, payload.to_vec())
}

fn engines_batch(upto: u64) -> event::Batch {
    let write = |sector: u64, sectors: u64, at: u64| BatchPart {
        span: Span::new(sector, sectors),
        kind: EntryKind::Write,
        source: Some(Place::new(Area::Stage, at)),
        sum: 5,
    };
    let zero = BatchPart {
        span: Span::new(40, 1 << 30),
        kind: EntryKind::Zero { allocate: false },
        source: None,
        sum: 0,
    };
    event::Batch {
        after: Serial(2),
        upto: Serial(upto),
        part: 1,
        ends: true,
        begins_epoch: false,
        destaged: Serial(1),
        parts: vec![write(1, 1, 512), zero, write(1 << 40, 3, 1024)],
    }
}

#[test]
fn what_the_engine_sends_goes_to_its_stream_and_only_its_answers_count() {
    let house = house_with("disk", None, Vec::new());
    let (volume, peer) = (house.volume, PeerId(4));
    let to = Arc::new(Kept::default());
    let open = |session| {
        let stream = Stream {
            volume,
            peer,
            host: Uuid([8; 16]),
            copy: COPY,
            session,
            term: TERM,
            to: to.clone(),
        };
        house.handle.stream_open(stream).expect("runs");
    };
    let send = |number: u64| {
        house.peers().to_send = Some((volume, peer, number, engines_batch(number)));
        let command = Command::Look { volume };
        house.handle.command(command).expect("runs");
        std::mem::take(&mut *to.0.lock().expect("whole"))
    };
    let sink = house.handle.sink();
    let heard = |copy, session, number| {
        sink.ack(OWNER, copy, session, number, Credit::default());
        house.turn();
        std::mem::take(&mut house.peers().replicated)
    };
    assert!(send(1).is_empty(), "there is no stream");
    open(SESSION);
    let frames = send(2);
    house.durable();
    let [frame] = &frames[..] else {
        panic!("{} frames", frames.len());
    };
    let (batch, payload) = sent(frame);
    let parts = engines_batch(2).parts;
    let parts = parts.iter().map(|part| (part.span, part.kind, part.sum));
    let came = batch
        .parts
        .iter()
        .map(|part| (part.span, part.kind, part.sum));
    assert!(came.eq(parts));
    assert_eq!(payload, vec![7; 4 * 512], "as they were when it was sent");
    let said = (batch.number, batch.term, batch.copy, batch.session);
    assert_eq!(said, (2, TERM, COPY, SESSION));
    let said = (batch.after, batch.upto, batch.destaged);
    assert_eq!(said, (Serial(2), Serial(2), Serial(1)));
    assert_eq!(
        (batch.part, batch.ends, batch.begins_epoch),
        (1, true, false)
    );

    let nothing: [(VolumeId, PeerId, u64); 0] = [];
    assert_eq!(heard(COPY, Uuid([1; 16]), 2), nothing);
    assert_eq!(heard(Uuid([1; 16]), SESSION, 2), nothing);
    assert_eq!(heard(COPY, SESSION, 3), nothing, "it was not sent");
    assert_eq!(heard(COPY, SESSION, 2), [(volume, peer, 2)]);
    open(Uuid([2; 16]));
    assert_eq!(heard(COPY, SESSION, 2), nothing, "of the session before");
    assert_eq!(send(3).len(), 1);
    assert_eq!(heard(COPY, Uuid([2; 16]), 3), [(volume, peer, 3)]);
    house.handle.stream_close(volume, peer).expect("runs");
    assert!(send(4).is_empty());
    assert_eq!(heard(COPY, Uuid([2; 16]), 3), nothing);
    drop(sink);
    assert_eq!(Arc::strong_count(&to), 1, "it is let go");
    house.close();
}

#[test]
fn peers_that_count_do_so_before_anything_else_of_their_volume() {
    let peers = [PeerId(3), PeerId(5)];
    let house = house_with("disk", None, peers.to_vec());
    let volume = house.volume;
    let commands = house.peers().commands.clone();
    let stopped = |command: &Command| match *command {
        Command::StopPeer {
            volume: of,
            peer,
            counts: true,
        } if of == volume => Some(peer),
        _ => None,
    };
    let stopped: Vec<PeerId> = commands.iter().filter_map(stopped).collect();
    assert_eq!((stopped, commands.len()), (peers.to_vec(), 2));
    house.close();
}

#[test]
fn a_shard_that_has_ended_holds_no_batch() {
    let house = house_with("disk", None, Vec::new());
    let back = Arc::new(Kept::default());
    let sink = house.handle.sink();
    house.close();
    sink.batch(OWNER, batch(COPY, 1, 1024), vec![0; 1024], back.clone());
    sink.ack(OWNER, COPY, SESSION, 1, Credit::default());
    assert_eq!(Arc::strong_count(&back), 1);
    assert_eq!(back.answers(), []);
}
