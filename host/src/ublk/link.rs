//! The way of requests to the daemon and back, over one connection after another.
//!
//! ```text
//! queue ──push──▶ requests ──send──▶ socket ──▶ daemon
//!   ▲── take_ended ── ended ◀── receive ─────────┘
//! ```
//!
//! Owns the threads that send and receive. Always true: a connection is left only when the other
//! end has closed it, which the daemon does after it has decided to carry out nothing more of it;
//! a server that answers what was not asked ends [`carry`], and its caller ends the process, so
//! that the next one is another client. Deliberately absent: who connects, and the kernel.

use super::buffers::Buffers;
use super::requests::{Answer, Kind, Request, Requests};
use crate::nbd::SIMPLE_REPLY_BYTES;
use crate::nbdlink::Connection;
use std::io::{BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Bytes that are sent at once, unless one request has more.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of answers that are received at once.
const ANSWERS_BYTES: usize = 64 << 10;

struct State {
    requests: Requests,
    /// Tags and results, for the kernel.
    ended: Vec<(u16, i32)>,
    /// Nothing comes any more over the connection.
    dead: bool,
}

/// What the thread of the kernel's queue and those of the connection have in common.
pub struct Link {
    /// A lock and no messages: when a connection has died, what it left unanswered has to be seen
    /// whole, and between the threads of two connections.
    state: Mutex<State>,
    changed: Condvar,
    /// Tells the queue that requests have ended.
    pub told: EventFd,
    pub buffers: Buffers,
}

impl Link {
    pub fn new(depth: u16, buffer_bytes: u32) -> std::io::Result<Link> {
        Ok(Link {
            state: Mutex::new(State {
                requests: Requests::new(depth),
                ended: Vec::new(),
                dead: false,
            }),
            changed: Condvar::new(),
            told: EventFd::new(EFD_NONBLOCK)?,
            buffers: Buffers::new(depth, buffer_bytes),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request of the kernel.
    pub fn push(&self, request: Request) {
        self.state().requests.push(request);
        self.changed.notify_one();
    }

    /// What has ended since the last call.
    pub fn take_ended(&self) -> Vec<(u16, i32)> {
        // What is told later finds this counter empty again.
        let _ = self.told.read();
        std::mem::take(&mut self.state().ended)
    }

    fn end(&self, request: Request, result: i32) {
        let mut state = self.state();
        state.requests.finish(request);
        state.ended.push((request.tag, result));
        drop(state);
        self.told.write(1).expect("the counter is far from its end");
    }

    /// The next requests as bytes; `None` when the connection has died.
    fn batch(&self) -> Option<Vec<u8>> {
        let mut state = self.state();
        let mut bytes = Vec::new();
        loop {
            if state.dead {
                return None;
            }
            while bytes.len() < BATCH_BYTES
                && let Some((head, request)) = state.requests.send_next()
            {
                bytes.extend(head.encode());
                if request.kind == Kind::Write {
                    self.buffers.copy_to(request.tag, request.bytes, &mut bytes);
                }
            }
            if !bytes.is_empty() {
                return Some(bytes);
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn send(&self, mut socket: &UnixStream) {
        while let Some(bytes) = self.batch() {
            if socket.write_all(&bytes).is_err() {
                return;
            }
        }
    }

    /// Ends requests until the connection dies. What is wrong with an answer is an error.
    fn receive(&self, socket: &UnixStream) -> Result<(), String> {
        let mut socket = BufReader::with_capacity(ANSWERS_BYTES, socket);
        loop {
            let mut head = [0; SIMPLE_REPLY_BYTES];
            if socket.read_exact(&mut head).is_err() {
                return Ok(());
            }
            let answer = Answer::parse(&head).ok_or("answers with what is no reply")?;
            let request = self.state().requests.sent(answer.cookie);
            let request = request.ok_or("answers what was not asked")?;
            if answer.errno != 0 {
                self.end(request, -(answer.errno as i32));
                continue;
            }
            if request.kind == Kind::Read {
                let fill = |bytes: &mut [u8]| socket.read_exact(bytes);
                let filled = self.buffers.fill(request.tag, request.bytes, fill);
                if filled.is_err() {
                    return Ok(());
                }
            }
            self.end(request, request.done());
        }
    }
}

/// Carries requests over this connection, and when it has died over another one, for as long as the
/// process lives; returns what a server said that makes no sense. `begin` is called by each thread.
pub fn carry(
    link: &Link,
    mut connection: Connection,
    mut reconnect: impl FnMut() -> Connection,
    begin: impl Fn() + Sync,
) -> String {
    begin();
    loop {
        let mut state = link.state();
        state.requests.send_again();
        state.dead = false;
        drop(state);
        let socket = &connection.socket;
        let received = thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                begin();
                let received = link.receive(socket);
                if received.is_err() {
                    // The process ends, so that it is no client of which something may land late.
                    let _ = socket.shutdown(Shutdown::Both);
                }
                link.state().dead = true;
                link.changed.notify_all();
                received
            });
            link.send(socket);
            // Where sending has failed, receiving is about to.
            let _ = socket.shutdown(Shutdown::Write);
            receiver.join().expect("a panic ends the process")
        });
        if let Err(why) = received {
            return why;
        }
        connection = reconnect();
    }
}
