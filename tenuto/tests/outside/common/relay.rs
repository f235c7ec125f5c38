//! Relays in this process: what a network does to the connections between two hosts.
//!
//! Owns an address at which one side calls the other one, and each pair of hosts has one for each
//! side that calls. Always true: bytes keep their order, and none is changed, made or lost within a
//! connection; what comes while a way is cut is held, with the ends of connections, and goes on
//! when it is healed, as a network sends again what was lost; a caller that comes meanwhile is
//! connected and hears nothing. All threads end with the relay. Deliberately absent: anything
//! below a connection, as loss and order of packets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CHUNK: usize = 64 << 10;
/// Chunks on their way in one direction.
const CHUNKS_MAX: usize = 256;

/// A direction, as seen by the side that has called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    There = 0,
    Back = 1,
}

const WAYS: [Way; 2] = [Way::There, Way::Back];

struct Connection {
    number: u64,
    caller: TcpStream,
    called: TcpStream,
    /// Bytes of the caller so far.
    moved: u64,
    ends: u8,
}

impl Connection {
    fn close(&self) {
        let _ = self.caller.shutdown(Shutdown::Both);
        let _ = self.called.shutdown(Shutdown::Both);
    }
}

#[derive(Default)]
struct State {
    cut: [bool; 2],
    /// What may still pass, on all connections together; `None`: all.
    left: [Option<u64>; 2],
    delay: Duration,
    refuses: bool,
    ended: bool,
    numbers: u64,
    connections: Vec<Connection>,
}

struct Inner {
    to: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

/// One address, and what is behind it.
pub struct Relay {
    address: SocketAddr,
    inner: Arc<Inner>,
    accepts: Option<JoinHandle<()>>,
}

impl Relay {
    /// Callers of `address` reach `to`.
    pub fn new(address: &str, to: &str) -> Relay {
        let listener = TcpListener::bind(address).expect("an address for a relay");
        let inner = Arc::new(Inner {
            to: to.parse().expect("an address behind a relay"),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let address = listener.local_addr().expect("its address");
        let accepts = {
            let inner = Arc::clone(&inner);
            std::thread::spawn(move || inner.accept(&listener))
        };
        Relay {
            address,
            inner,
            accepts: Some(accepts),
        }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.inner.lock());
        self.inner.changed.notify_all();
    }

    /// From here on no byte moves this way, of no connection.
    pub fn cut(&self, way: Way) {
        self.change(|state| state.cut[way as usize] = true);
    }

    /// All moves again, also what was stopped by [`Relay::stop_after`].
    pub fn heal(&self, way: Way) {
        self.change(|state| {
            state.cut[way as usize] = false;
            state.left[way as usize] = None;
        });
    }

    /// No byte moves this way any more once so many have.
    pub fn stop_after(&self, way: Way, bytes: u64) {
        self.change(|state| state.left[way as usize] = Some(bytes));
    }

    /// Whether so many have.
    pub fn has_stopped(&self, way: Way) -> bool {
        self.inner.lock().left[way as usize] == Some(0)
    }

    /// Callers are turned away, and all connections are closed.
    pub fn refuse(&self, refuses: bool) {
        self.change(|state| state.refuses = refuses);
        if refuses {
            self.close();
        }
    }

    /// What comes is so much later on the other side, either way.
    pub fn delay(&self, delay: Duration) {
        self.change(|state| state.delay = delay);
    }

    /// Closes all connections, on both sides and at once.
    pub fn close(&self) {
        self.change(|state| state.connections.iter().for_each(Connection::close));
    }

    /// Does something to the connection on which the caller has sent most; whether there is one.
    fn busiest(&self, act: impl FnOnce(&mut Connection)) -> bool {
        let mut found = false;
        self.change(|state| {
            let moved = |it: &&mut Connection| it.moved;
            let busiest = state.connections.iter_mut().max_by_key(moved);
            found = busiest.map(act).is_some();
        });
        found
    }

    /// Bytes of the connection on which the caller has sent most, which is that of the data.
    pub fn moved(&self) -> u64 {
        let state = self.inner.lock();
        let moved = state.connections.iter().map(|it| it.moved);
        moved.max().unwrap_or(0)
    }

    /// Closes that connection.
    pub fn close_busiest(&self) -> bool {
        self.busiest(|connection| connection.close())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.change(|state| {
            state.ended = true;
            state.connections.iter().for_each(Connection::close);
        });
        // Who accepts looks up for one more.
        let _ = TcpStream::connect(self.address);
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((caller, _)) = listener.accept() {
            let state = self.lock();
            if state.ended {
                return;
            }
            if !state.refuses {
                let inner = Arc::clone(self);
                std::thread::spawn(move || inner.connect(caller));
            }
        }
    }

    fn wait_until(&self, is: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waits = |state: &mut State| !state.ended && !is(state);
        self.changed.wait_while(self.lock(), waits).unwrap()
    }

    /// A connection is there once both ways have carried its first packets.
    fn connect(self: &Arc<Self>, caller: TcpStream) {
        drop(self.wait_until(|state| state.cut == [false; 2]));
        let Ok(called) = TcpStream::connect(self.to) else {
            return;
        };
        for stream in [&caller, &called] {
            let _ = stream.set_nodelay(true);
        }
        let copy = |stream: &TcpStream| stream.try_clone().expect("a second handle");
        let mut state = self.lock();
        if state.ended || state.refuses {
            return;
        }
        state.numbers += 1;
        let number = state.numbers;
        state.connections.push(Connection {
            number,
            caller: copy(&caller),
            called: copy(&called),
            moved: 0,
            ends: 0,
        });
        drop(state);
        let ends = [(copy(&caller), copy(&called)), (called, caller)];
        for (way, (from, to)) in WAYS.into_iter().zip(ends) {
            let (sender, chunks) = sync_channel(CHUNKS_MAX);
            let inner = Arc::clone(self);
            std::thread::spawn(move || take(from, &sender));
            std::thread::spawn(move || inner.give(number, way, to, &chunks));
        }
    }

    /// Lets bytes go one way when their time has come, and then the end of them.
    fn give(&self, number: u64, way: Way, mut to: TcpStream, chunks: &Receiver<Chunk>) {
        'ends: for (came, bytes) in chunks {
            let due = came + self.lock().delay;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let mut rest = &bytes[..];
            loop {
                let Some(may) = self.pass(number, way, rest.len()) else {
                    break 'ends;
                };
                if rest.is_empty() || to.write_all(&rest[..may]).is_err() {
                    break 'ends;
                }
                rest = &rest[may..];
                if rest.is_empty() {
                    break;
                }
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        let mut state = self.lock();
        let at = state.connections.iter().position(|it| it.number == number);
        let at = at.expect("it is there until both ways have ended");
        state.connections[at].ends += 1;
        if state.connections[at].ends == 2 {
            state.connections.swap_remove(at).close();
        }
    }

    /// Waits until some of so many bytes may move. None: all is over.
    fn pass(&self, number: u64, way: Way, bytes: usize) -> Option<usize> {
        let at = way as usize;
        let may = |state: &State| !state.cut[at] && state.left[at] != Some(0);
        let mut state = self.wait_until(may);
        if state.ended {
            return None;
        }
        let passes = state.left[at].map_or(bytes as u64, |left| left.min(bytes as u64));
        state.left[at] = state.left[at].map(|left| left - passes);
        let mut connections = state.connections.iter_mut();
        let connection = connections.find(|it| it.number == number);
        let connection = connection.expect("it is there until both ways have ended");
        if way == Way::There {
            connection.moved += passes;
        }
        Some(passes as usize)
    }
}

/// When they came, and bytes; none are the end.
type Chunk = (Instant, Vec<u8>);

fn take(mut from: TcpStream, to: &SyncSender<Chunk>) {
    let mut bytes = vec![0; CHUNK];
    loop {
        // A connection that was reset is one that has ended.
        let got = from.read(&mut bytes).unwrap_or(0);
        let sent = to.send((Instant::now(), bytes[..got].to_vec()));
        if got == 0 || sent.is_err() {
            return;
        }
    }
}

/// All pairs of so many hosts, each reached by each other one through a relay of its own.
pub struct Net(Vec<(usize, usize, Relay)>);

impl Net {
    /// Hosts listen at these addresses; `at` gives one for each relay.
    pub fn between(hosts: &[String], at: impl Fn() -> String) -> Net {
        let mut relays = Vec::new();
        for from in 0..hosts.len() {
            for to in (0..hosts.len()).filter(|to| *to != from) {
                relays.push((from, to, Relay::new(&at(), &hosts[to])));
            }
        }
        Net(relays)
    }

    /// Where a host calls another one.
    pub fn relay(&self, from: usize, to: usize) -> &Relay {
        let found = self.0.iter().find(|it| (it.0, it.1) == (from, to));
        &found.expect("two hosts").2
    }

    /// What one host sends to another one does not arrive, on no connection between them.
    pub fn lose(&self, from: usize, to: usize) {
        self.relay(from, to).cut(Way::There);
        self.relay(to, from).cut(Way::Back);
    }

    /// The same once so many bytes have.
    pub fn lose_after(&self, from: usize, to: usize, bytes: u64) {
        self.relay(from, to).stop_after(Way::There, bytes);
        self.relay(to, from).stop_after(Way::Back, bytes);
    }

    /// Whether so many have, where one of the two called the other.
    pub fn has_lost(&self, from: usize, to: usize) -> bool {
        let there = self.relay(from, to).has_stopped(Way::There);
        there || self.relay(to, from).has_stopped(Way::Back)
    }

    pub fn cut(&self, one: usize, other: usize) {
        self.lose(one, other);
        self.lose(other, one);
    }

    pub fn heal(&self, one: usize, other: usize) {
        for way in WAYS {
            self.relay(one, other).heal(way);
            self.relay(other, one).heal(way);
        }
    }

    pub fn close(&self, one: usize, other: usize) {
        self.relay(one, other).close();
        self.relay(other, one).close();
    }

    /// All that is sent between any two hosts is so much later.
    pub fn delay(&self, delay: Duration) {
        self.0.iter().for_each(|it| it.2.delay(delay));
    }
}
