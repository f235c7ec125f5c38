//! Batches between two daemons' links in one process, and what others send instead of them.

use super::certificates::{self, Authority, Credentials, fresh_key};
use super::data::{DataSink, Outlet, READS_MAX, answer_frame, batch_frame};
use super::identity::{self, Identity};
use super::member::fresh_id;
use super::tests::{PATIENCE, Place, next};
use super::tokens::Token;
use super::{LinkEvent, Links, RefusedView, join, wire};
use crate::config::cluster::Cluster;
use engine::event::Credit;
use engine::format::record::EntryKind;
use engine::types::{Serial, Span, Uuid};
use node::batch::{Batch, Part};
use node::frame::{
    FEATURE_DATA, FEATURE_READS, FEATURE_RECALLS, Frame, HELLO_VERSION, Hello, PAYLOAD_BYTES_MAX,
    Ping, VERSION_MAX,
};
use node::message::Body;
use node::reads::{BLOCKS_MAX, Blocks, Question, Read, Recall};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::client::TlsStream;

const COPY: Uuid = Uuid([7; 16]);
const SESSION: Uuid = Uuid([8; 16]);
/// Batches of the largest size that are held for one host.
const HELD: usize = 32;
/// What must not come has not come by then.
const NOTHING: Duration = Duration::from_millis(200);

struct Came {
    from: Uuid,
    batch: Batch,
    payload: Vec<u8>,
    back: Arc<dyn Outlet>,
}

struct Sink {
    batches: Sender<Came>,
    acks: Sender<(Uuid, Uuid, Uuid, u64)>,
    reads: Sender<Asked>,
    blocks: Sender<(Uuid, Blocks, Vec<u8>)>,
}

type Asked = (Uuid, Question, Arc<dyn Outlet>);

impl DataSink for Sink {
    fn batch(&self, from: Uuid, batch: Batch, payload: Vec<u8>, back: Arc<dyn Outlet>) {
        // The test may have ended before its links.
        let _ = self.batches.send(Came {
            from,
            batch,
            payload,
            back,
        });
    }

    fn ack(&self, from: Uuid, copy: Uuid, session: Uuid, number: u64, _: Credit) {
        let _ = self.acks.send((from, copy, session, number));
    }

    fn read(&self, from: Uuid, read: Question, back: Arc<dyn Outlet>) {
        let _ = self.reads.send((from, read, back));
    }

    fn blocks(&self, from: Uuid, blocks: Blocks, payload: Vec<u8>) {
        let _ = self.blocks.send((from, blocks, payload));
    }
}

/// A host with its links.
struct Node {
    place: Place,
    id: Uuid,
    links: Links,
    events: Receiver<LinkEvent>,
    batches: Receiver<Came>,
    acks: Receiver<(Uuid, Uuid, Uuid, u64)>,
    reads: Receiver<Asked>,
    blocks: Receiver<(Uuid, Blocks, Vec<u8>)>,
}

impl Node {
    fn start(place: Place, boot: u8) -> Node {
        let (links, events) = place.start(boot);
        let (batches_sender, batches) = channel();
        let (acks_sender, acks) = channel();
        let (reads_sender, reads) = channel();
        let (blocks_sender, blocks) = channel();
        links.set_sink(Arc::new(Sink {
            batches: batches_sender,
            acks: acks_sender,
            reads: reads_sender,
            blocks: blocks_sender,
        }));
        let id = links.own().id;
        Node {
            place,
            id,
            links,
            events,
            batches,
            acks,
            reads,
            blocks,
        }
    }

    fn until_up(&self, host: Uuid) {
        while !matches!(next(&self.events), LinkEvent::Up { host: up, .. } if up == host) {}
    }

    fn until_down(&self, host: Uuid) {
        while next(&self.events) != (LinkEvent::DataDown { host }) {}
    }

    fn batch(&self) -> Came {
        self.batches.recv_timeout(PATIENCE).expect("it comes")
    }

    fn until_refused(&self, what: &str, wanted: RefusedView) {
        let start = Instant::now();
        while self.links.refused() != wanted {
            let now = self.links.refused();
            assert!(start.elapsed() < PATIENCE, "{what}: {now:?}");
            std::thread::yield_now();
        }
        assert!(
            self.batches.try_recv().is_err(),
            "{what}: a batch was taken"
        );
    }

    fn identity(&self) -> Identity {
        let state_dir = &self.place.config.host.state_dir;
        identity::load(state_dir).expect("there").0
    }
}

/// Two hosts of one cluster with a link.
fn pair() -> (Node, Node) {
    let (a, b) = (Place::new("a"), Place::new("b"));
    let cluster = Cluster {
        name: "c1".into(),
        listen: vec![a.address],
        ..Cluster::default()
    };
    join::init(&a.config, &cluster).expect("made");
    let a = Node::start(a, 1);
    let (token, _) = a.links.token().expect("a token");
    let token = Token::parse(&token).expect("a token");
    join::join(&b.config, &token, vec![b.address], String::new()).expect("joined");
    let b = Node::start(b, 2);
    a.until_up(b.id);
    b.until_up(a.id);
    (a, b)
}

fn batch(number: u64, bytes: usize) -> Batch {
    Batch {
        number,
        term: 3,
        copy: COPY,
        session: SESSION,
        after: Serial(10),
        upto: Serial(20),
        destaged: Serial(5),
        part: 0,
        ends: true,
        begins_epoch: false,
        parts: vec![Part {
            span: Span::new(8, bytes as u64 / 512),
            kind: EntryKind::Write,
            sum: 9,
        }],
    }
}

fn payload(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u64 + number) as u8).collect()
}

fn frame(number: u64, bytes: usize) -> Vec<u8> {
    let mut frame = batch_frame(&batch(number, bytes));
    frame.extend(payload(number, bytes));
    frame
}

fn ack(number: u64) -> Vec<u8> {
    answer_frame(Body::Ack {
        copy: COPY,
        session: SESSION,
        term: 3,
        durable: Serial(20),
        batch: number,
        credit: Credit::default(),
    })
}

#[test]
fn batches_and_their_answers_pass_between_two_hosts() {
    let (a, b) = pair();
    let outlet = a.links.outlet(b.id);
    for (number, bytes) in [(1, 512), (2, PAYLOAD_BYTES_MAX), (3, 4608)] {
        assert!(outlet.send(frame(number, bytes)));
    }
    for (number, bytes) in [(1, 512), (2, PAYLOAD_BYTES_MAX), (3, 4608)] {
        let came = b.batch();
        assert_eq!((came.from, came.batch), (a.id, batch(number, bytes)));
        assert!(came.payload == payload(number, bytes));
        assert!(came.back.send(ack(number)));
        let heard = a.acks.recv_timeout(PATIENCE);
        assert_eq!(heard, Ok((b.id, COPY, SESSION, number)));
    }
    let rounds = 200;
    let start = Instant::now();
    for number in 4..4 + rounds {
        assert!(a.links.outlet(b.id).send(frame(number, 4096)));
        assert!(b.batch().back.send(ack(number)));
        let heard = a.acks.recv_timeout(PATIENCE);
        assert_eq!(heard.map(|heard| heard.3), Ok(number));
    }
    println!("round trip of 4 KiB: {:?}", start.elapsed() / rounds as u32);
    let failed = Body::Failed {
        copy: COPY,
        session: SESSION,
    };
    assert!(outlet.send(frame(4, 512)));
    assert!(b.batch().back.send(answer_frame(failed.clone())));
    let told = LinkEvent::Data {
        host: b.id,
        body: failed,
    };
    let known = |event: &LinkEvent| matches!(event, LinkEvent::Up { .. } | LinkEvent::Down { .. });
    let mut heard = next(&a.events);
    while known(&heard) {
        heard = next(&a.events);
    }
    assert_eq!(heard, told);
    assert_eq!(a.links.refused(), RefusedView::default());
    assert_eq!(b.links.refused(), RefusedView::default());
}

#[test]
fn reads_and_their_blocks_pass_beside_batches() {
    let (a, b) = pair();
    let outlet = a.links.outlet(b.id);
    let start = Instant::now();
    while !outlet.takes(FEATURE_READS) {
        assert!(start.elapsed() < PATIENCE, "the other host takes reads");
        std::thread::yield_now();
    }
    let read = |number: u64, blocks: u32| Read {
        number,
        volume: COPY,
        since: Serial(4),
        first_block: 9,
        blocks,
    };
    for (number, count) in [(1, 1), (2, BLOCKS_MAX as u32), (3, 0)] {
        let read = read(number, count.max(1));
        assert!(outlet.send(frame(number, 512)));
        assert!(outlet.send(read.encode(VERSION_MAX)));
        assert_eq!(b.batch().batch.number, number);
        let (from, asked, back) = b.reads.recv_timeout(PATIENCE).expect("it comes");
        assert_eq!((from, asked), (a.id, Question::Left(read)));
        let blocks = Blocks {
            number,
            sums: (0..count).collect(),
        };
        let bytes = payload(number, blocks.payload_bytes());
        let mut answer = blocks.encode(VERSION_MAX);
        answer.extend_from_slice(&bytes);
        assert!(back.send(answer));
        let heard = a.blocks.recv_timeout(PATIENCE).expect("it comes");
        assert_eq!(heard, (b.id, blocks, bytes));
    }
    let recall = Recall {
        number: 4,
        copy: COPY,
        session: COPY,
        sector: 17,
        sectors: 3,
    };
    assert!(outlet.takes(FEATURE_RECALLS) && outlet.send(recall.encode(VERSION_MAX)));
    let (from, asked, _) = b.reads.recv_timeout(PATIENCE).expect("it comes");
    assert_eq!((from, asked), (a.id, Question::Copy(recall)));
    assert_eq!(a.links.refused(), RefusedView::default());
    assert_eq!(b.links.refused(), RefusedView::default());
}

#[test]
fn the_end_of_a_connection_is_told_once_and_the_next_one_is_made_anew() {
    let (a, b) = pair();
    let outlet = a.links.outlet(b.id);
    assert!(outlet.send(frame(1, 4096)));
    let came = b.batch();
    let Node {
        place, id, links, ..
    } = b;
    links.stop();
    assert!(!came.back.send(ack(1)), "its links have ended");
    assert!(!links.outlet(a.id).send(frame(1, 512)));
    a.until_down(id);
    assert!(!outlet.send(frame(2, 4096)));
    // Nothing listens there, which may be found out before anything is sent.
    let _ = a.links.outlet(id).send(frame(3, 4096));
    a.until_down(id);
    let b = Node::start(place, 3);
    a.until_up(id);
    let outlet = a.links.outlet(id);
    assert!(outlet.send(frame(4, 4096)));
    assert_eq!(b.batch().batch.number, 4);
    assert!(b.batches.try_recv().is_err());
    a.links.stop();
    assert!(!outlet.send(frame(5, 4096)));
}

#[test]
fn a_sink_that_lets_nothing_go_is_sent_no_more_than_it_may_hold() {
    let (a, b) = pair();
    let outlet = a.links.outlet(b.id);
    for number in 1..=HELD as u64 + 4 {
        assert!(outlet.send(frame(number, PAYLOAD_BYTES_MAX)));
    }
    let mut held: Vec<Came> = (0..HELD).map(|_| b.batch()).collect();
    assert!(b.batches.recv_timeout(NOTHING).is_err(), "one too many");
    // One that is let go makes room for one.
    assert_eq!(held.remove(0).batch.number, 1);
    let came = b.batch();
    assert_eq!(came.batch.number, HELD as u64 + 1);
    held.push(came);
    assert!(b.batches.recv_timeout(NOTHING).is_err(), "one too many");
    // What the sender queues has its limit as well.
    let more = (0..600).take_while(|_| outlet.send(frame(9, PAYLOAD_BYTES_MAX)));
    assert!(more.count() < 300 + READS_MAX);
    a.until_down(b.id);
    assert!(b.batches.try_recv().is_err());
    assert_eq!(b.links.refused(), RefusedView::default());
}

/// What calls in place of a daemon.
struct Caller {
    runtime: Runtime,
    stream: TlsStream<TcpStream>,
}

impl Caller {
    /// Calls `to` with this certificate.
    fn call(to: &Node, shown: &Credentials<'_>) -> Caller {
        let runtime = super::runtime("a caller").expect("made");
        let config = certificates::client(shown).expect("fit");
        let call = wire::call(to.place.address, to.id, config);
        let stream = runtime.block_on(call).expect("answers");
        Caller { runtime, stream }
    }

    fn send(&mut self, bytes: &[u8]) {
        let written = wire::write(&mut self.stream, bytes);
        // The other side may have closed the connection.
        let _ = self.runtime.block_on(written);
    }

    /// The next frame; none when the connection is over.
    fn hear(&mut self) -> Option<Frame> {
        let read = wire::read_soon(&mut self.stream, VERSION_MAX);
        let heard = self.runtime.block_on(read);
        let late = |error: &std::io::Error| error.kind() == std::io::ErrorKind::TimedOut;
        let late = matches!(&heard, Err(wire::Ended::Io(error)) if late(error));
        assert!(!late, "it neither says anything nor ends");
        heard.ok()
    }

    fn close(mut self) {
        let _ = self.runtime.block_on(self.stream.shutdown());
    }
}

fn hello(of: &Identity, host: Uuid) -> Vec<u8> {
    let hello = Hello {
        version_min: 1,
        version_max: VERSION_MAX,
        features: FEATURE_DATA,
        cluster: of.cluster,
        host,
        boot: Uuid([1; 16]),
        session: Uuid([2; 16]),
        cache: Uuid([3; 16]),
        name: "other".into(),
        domain: String::new(),
        addresses: vec!["127.0.0.1:1".into()],
        program: "0".into(),
    };
    Frame::Hello(hello).encode(HELLO_VERSION)
}

/// What a refused caller is told.
fn refused(caller: &mut Caller) -> String {
    match caller.hear() {
        Some(Frame::Refused { why }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hosts_that_are_no_members_send_nothing() {
    let (a, b) = pair();
    let of_b = b.identity();
    let (stranger, (key, public)) = (fresh_id(), fresh_key().expect("made"));
    let foreign = Authority::new("c1").expect("made");
    let certificate = foreign.sign(stranger, &public).expect("signed");
    let mut caller = Caller::call(
        &a,
        &Credentials {
            authority: &of_b.authority.certificate,
            certificate: &certificate,
            key: &key,
        },
    );
    caller.send(&hello(&of_b, stranger));
    caller.send(&frame(1, 512));
    assert_eq!(caller.hear(), None);
    let mut counted = RefusedView {
        certificates: 1,
        ..RefusedView::default()
    };
    a.until_refused("of another authority", counted);

    let mut caller = Caller::call(&a, &of_b.credentials());
    caller.send(&hello(&of_b, a.id));
    caller.send(&frame(1, 512));
    assert!(refused(&mut caller).contains("certificate of another host"));
    counted.hosts = 1;
    a.until_refused("under another name", counted);

    let certificate = of_b.authority.sign(stranger, &public).expect("signed");
    let mut caller = Caller::call(
        &a,
        &Credentials {
            authority: &of_b.authority.certificate,
            certificate: &certificate,
            key: &key,
        },
    );
    caller.send(&hello(&of_b, stranger));
    caller.send(&frame(1, 512));
    assert!(refused(&mut caller).contains("no member"));
    counted.hosts = 2;
    a.until_refused("no member", counted);
    assert_eq!(a.links.hosts().len(), 1, "and it does not become one");
}

#[test]
fn a_host_that_sends_something_else_or_half_a_batch_is_cut_off() {
    let (a, b) = pair();
    let of_b = b.identity();
    let call = || {
        let mut caller = Caller::call(&a, &of_b.credentials());
        caller.send(&hello(&of_b, b.id));
        let answer = caller.hear();
        let data = |hello: &Hello| {
            hello.host == a.id && hello.features == FEATURE_DATA | FEATURE_READS | FEATURE_RECALLS
        };
        assert!(matches!(&answer, Some(Frame::Hello(hello)) if data(hello)));
        caller
    };
    let ping = Frame::Ping(Ping {
        number: 1,
        wall_ms: 2,
        room_blocks: Some(3),
    });
    let mut counted = RefusedView::default();
    let mut damaged = frame(1, 512);
    damaged[70] ^= 1;
    for wrong in [ping.encode(VERSION_MAX), ack(1), damaged] {
        let mut caller = call();
        caller.send(&wrong);
        assert_eq!(caller.hear(), None, "it is closed");
        counted.frames += 1;
        a.until_refused("a wrong frame", counted);
    }
    for _ in 0..HELD {
        // What it would have held is free again.
        let mut caller = call();
        let whole = frame(1, PAYLOAD_BYTES_MAX);
        caller.send(&whole[..whole.len() - 1]);
        caller.close();
    }
    let mut caller = call();
    caller.send(&frame(6, PAYLOAD_BYTES_MAX));
    assert_eq!(a.batch().batch.number, 6);
    let mut newer = call();
    newer.send(&frame(7, 512));
    let came = a.batch();
    assert_eq!((came.from, came.batch.number), (b.id, 7));
    assert_eq!(caller.hear(), None, "another one has its place");
    assert!(came.back.send(ack(7)));
    assert!(matches!(newer.hear(), Some(Frame::Unit(_))));
    a.until_refused("a cut one is no wrong one", counted);
}
