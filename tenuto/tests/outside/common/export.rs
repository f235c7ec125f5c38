//! A server of one export inside the test, that answers late and forgets.
//!
//! Owns the bytes behind an NBD socket. Always true: a flush covers exactly the writes that were
//! answered before it arrived; writes that match a hold are parked without an answer and land when
//! they are let go, whether or not their connection is still there.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::nbd;

/// Connections of one test.
const CONNECTIONS_MAX: usize = 64;
/// Longest request that is taken, as the protocol recommends.
const REQUEST_BYTES_MAX: u32 = 32 << 20;

struct Parked {
    offset: u64,
    payload: Vec<u8>,
    cookie: u64,
    answer_to: UnixStream,
}

#[derive(Default)]
struct State {
    /// What a reader sees.
    now: Vec<u8>,
    /// What the last flush left.
    synced: Vec<u8>,
    /// Answered writes since the last flush, in order.
    unsynced: VecDeque<(usize, Vec<u8>)>,
    hold_from: Option<(u64, u64)>,
    parked: Vec<Parked>,
    connections: Vec<UnixStream>,
}

/// A slow line to a storage, shared by the writes of several exports.
#[derive(Clone)]
pub struct Link {
    bytes_per_second: u64,
    free_at: Arc<Mutex<Instant>>,
}

impl Link {
    pub fn new(bytes_per_second: u64) -> Link {
        Link {
            bytes_per_second,
            free_at: Arc::new(Mutex::new(Instant::now())),
        }
    }

    /// Returns when the line has carried so much more.
    fn carry(&self, bytes: usize) {
        let time = Duration::from_nanos(bytes as u64 * 1_000_000_000 / self.bytes_per_second);
        let mut free_at = self.free_at.lock().unwrap();
        *free_at = (*free_at).max(Instant::now()) + time;
        let until = *free_at;
        drop(free_at);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// One export. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Export {
    state: Arc<(Mutex<State>, Condvar)>,
    link: Option<Link>,
}

impl Export {
    pub fn new(bytes: usize) -> Export {
        let state = State {
            now: vec![0; bytes],
            synced: vec![0; bytes],
            ..State::default()
        };
        Export {
            state: Arc::new((Mutex::new(state), Condvar::new())),
            link: None,
        }
    }

    /// Its writes go over a slow line.
    pub fn behind(mut self, link: &Link) -> Export {
        self.link = Some(link.clone());
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// Ends every connection and forgets what was not synced, as a server that lost its power.
    pub fn lose_power(&self) {
        let mut state = self.lock();
        state.unsynced.clear();
        state.now = state.synced.clone();
        drop(state);
        self.hang_up();
    }

    /// Parks every later write that touches this range.
    pub fn hold_writes(&self, from: u64, to: u64) {
        self.lock().hold_from = Some((from, to));
    }

    /// Waits until that many writes are parked. False when it takes longer than `timeout`.
    pub fn wait_parked(&self, count: usize, timeout: Duration) -> bool {
        let (mutex, changed) = &*self.state;
        let guard = mutex.lock().unwrap();
        let (guard, _) = changed
            .wait_timeout_while(guard, timeout, |state| state.parked.len() < count)
            .unwrap();
        guard.parked.len() >= count
    }

    /// Later writes pass again; the parked ones stay parked.
    pub fn hold_no_more(&self) {
        self.lock().hold_from = None;
    }

    /// Ends the hold: parked writes land now, late, and are answered. Returns how many.
    pub fn let_go(&self) -> usize {
        let mut state = self.lock();
        state.hold_from = None;
        let parked = std::mem::take(&mut state.parked);
        let count = parked.len();
        for write in parked {
            state.write(write.offset as usize, write.payload);
            let mut stream = write.answer_to;
            // Whoever asked may be gone; the bytes have landed all the same.
            let _ = stream.write_all(&reply(0, write.cookie));
        }
        count
    }

    /// Ends every connection. What is parked stays parked, as in a server that goes on working.
    pub fn hang_up(&self) {
        for stream in std::mem::take(&mut self.lock().connections) {
            // One that has ended already is as it should be.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Serves it on a socket until the process ends or the socket's file is gone.
    pub fn serve(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).expect("bind the export's socket");
        let export = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(CONNECTIONS_MAX) {
                let Ok(stream) = stream else { return };
                let export = export.clone();
                std::thread::spawn(move || {
                    // The end of a connection is an error of reading, and nothing else is due.
                    let _ = export.talk(stream);
                });
            }
        });
    }

    fn talk(&self, mut stream: UnixStream) -> io::Result<()> {
        let handle = stream.try_clone()?;
        self.lock().connections.push(handle);
        handshake(&mut stream, self.lock().now.len() as u64)?;
        loop {
            let mut head = [0; 28];
            stream.read_exact(&mut head)?;
            assert_eq!(head[..4], nbd::REQUEST_MAGIC.to_be_bytes());
            let command = u16::from_be_bytes(head[6..8].try_into().unwrap());
            let fua = u16::from_be_bytes(head[4..6].try_into().unwrap()) & nbd::FLAG_FUA != 0;
            let cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
            let offset = u64::from_be_bytes(head[16..24].try_into().unwrap());
            let length = u32::from_be_bytes(head[24..28].try_into().unwrap());
            assert!(length <= REQUEST_BYTES_MAX || command != nbd::CMD_WRITE);
            match command {
                nbd::CMD_DISC => return Ok(()),
                nbd::CMD_WRITE => {
                    let mut payload = vec![0; length as usize];
                    stream.read_exact(&mut payload)?;
                    self.take_write(&mut stream, cookie, offset, payload, fua)?;
                }
                nbd::CMD_WRITE_ZEROES => {
                    let payload = vec![0; length as usize];
                    self.take_write(&mut stream, cookie, offset, payload, fua)?;
                }
                nbd::CMD_READ => {
                    let state = self.lock();
                    let end = offset as usize + length as usize;
                    if end > state.now.len() {
                        stream.write_all(&reply(nbd::EIO, cookie))?;
                        continue;
                    }
                    let mut bytes = reply(0, cookie).to_vec();
                    bytes.extend_from_slice(&state.now[offset as usize..end]);
                    drop(state);
                    stream.write_all(&bytes)?;
                }
                nbd::CMD_FLUSH => {
                    self.lock().flush();
                    stream.write_all(&reply(0, cookie))?;
                }
                _ => stream.write_all(&reply(nbd::EINVAL, cookie))?,
            }
        }
    }

    fn take_write(
        &self,
        stream: &mut UnixStream,
        cookie: u64,
        offset: u64,
        payload: Vec<u8>,
        fua: bool,
    ) -> io::Result<()> {
        if let Some(link) = &self.link {
            link.carry(payload.len());
        }
        let mut state = self.lock();
        let end = offset + payload.len() as u64;
        let held = state
            .hold_from
            .is_some_and(|(from, to)| offset < to && from < end);
        let error = if end > state.now.len() as u64 {
            nbd::EIO
        } else if held {
            let answer_to = stream.try_clone()?;
            state.parked.push(Parked {
                offset,
                payload,
                cookie,
                answer_to,
            });
            self.state.1.notify_all();
            return Ok(());
        } else {
            state.write(offset as usize, payload);
            if fua {
                state.flush();
            }
            0
        };
        drop(state);
        stream.write_all(&reply(error, cookie))
    }
}

impl State {
    fn write(&mut self, offset: usize, payload: Vec<u8>) {
        self.now[offset..offset + payload.len()].copy_from_slice(&payload);
        self.unsynced.push_back((offset, payload));
    }

    fn flush(&mut self) {
        for (offset, payload) in self.unsynced.drain(..) {
            self.synced[offset..offset + payload.len()].copy_from_slice(&payload);
        }
    }
}

fn reply(error: u32, cookie: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&0x6744_6698u32.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The server's side of fixed newstyle, as far as `libnbd` needs it: `GO`, and no to the rest.
fn handshake(stream: &mut UnixStream, size: u64) -> io::Result<()> {
    // Has flags, flush, FUA, write zeroes, multi-conn.
    let flags: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 8;
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    let mut client_flags = [0; 4];
    stream.read_exact(&mut client_flags)?;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let kind = u32::from_be_bytes(head[8..12].try_into().unwrap());
        let length = u32::from_be_bytes(head[12..16].try_into().unwrap());
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        let answer = |code: u32, body: &[u8]| {
            let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
            bytes.extend_from_slice(&kind.to_be_bytes());
            bytes.extend_from_slice(&code.to_be_bytes());
            bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
            bytes.extend_from_slice(body);
            bytes
        };
        if kind == 7 {
            let mut body = vec![0, 0];
            body.extend_from_slice(&size.to_be_bytes());
            body.extend_from_slice(&flags.to_be_bytes());
            stream.write_all(&answer(3, &body))?;
            stream.write_all(&answer(1, &[]))?;
            return Ok(());
        }
        stream.write_all(&answer(0x8000_0001, &[]))?;
    }
}
