//! A stamped load at queue depth 16, and the check of what a crash left of it.
//!
//! Owns the traffic to one volume over one connection, so that the order in which requests are
//! submitted is the order in which the volume sees them, as the model wants it. Always true: a
//! reply that was received counts, also when the daemon was already dead; a request without a
//! reply may have happened or not. Deliberately absent: what a volume promises; that is in
//! `workload::check`.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use workload::check::{Crash, FlushPoint, Found, Kind, Model, Promise, ReadPoint, Violation};
use workload::stamp;

use super::nbd::{self, Client};
use super::{Daemon, PATIENCE, Rig, SetWhenDropped};
use workload::rng::Rng;

pub const QUEUE_DEPTH: usize = 16;
/// A request that waits longer than this is lost, whatever the host's load.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Attempts to find a place that touches no write in flight.
const PLACES_TRIED: usize = 64;

/// What the load is made of, in percent; the rest are plain writes.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub sectors_max: u64,
    pub read_percent: u64,
    pub flush_percent: u64,
    pub zero_percent: u64,
    pub fua_percent: u64,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix {
            sectors_max: 512,
            read_percent: 15,
            flush_percent: 6,
            zero_percent: 5,
            fua_percent: 3,
        }
    }
}

/// One volume under load: its model, its place in the random sequence, and what was counted.
pub struct Load {
    pub model: Model,
    pub mix: Mix,
    pub counts: Counts,
    tag: u64,
    promise: Promise,
    random: Rng,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub answered: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub refused: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The caller had enough; everything was answered.
    Enough,
    /// The connection broke.
    Broken,
}

enum Pending {
    Write {
        serial: u64,
        sector: u64,
        sectors: u64,
    },
    Flush(FlushPoint),
    Read(ReadPoint),
}

/// What the reading side needs to know: how much payload follows a good answer.
type Payloads = Arc<Mutex<HashMap<u64, usize>>>;

struct Heard {
    cookie: u64,
    error: u32,
    payload: Vec<u8>,
}

impl Load {
    pub fn new(tag: u64, bytes: u64, promise: Promise, seed: u64) -> Load {
        let sectors = bytes / stamp::SECTOR_BYTES as u64;
        Load {
            model: Model::new(tag, sectors, promise, workload::check::Initial::Zero),
            mix: Mix::default(),
            counts: Counts::default(),
            tag,
            promise,
            random: Rng::new(seed ^ tag.wrapping_mul(0x1234_5678_9abc_def1)),
        }
    }

    /// Sends requests until `more` says no, or the connection breaks. `more` is asked after each
    /// answer and may kill the daemon.
    pub fn run(
        &mut self,
        client: Client,
        mut more: impl FnMut(&Counts) -> bool,
    ) -> Result<End, Violation> {
        let payloads = Payloads::default();
        let (sender, heard) = channel();
        let stream = client
            .stream
            .try_clone()
            .expect("a second handle of the socket");
        let listener = {
            let payloads = Arc::clone(&payloads);
            std::thread::spawn(move || hear(stream, &payloads, &sender))
        };
        let mut session = Session {
            client,
            payloads,
            heard,
            pending: HashMap::new(),
        };
        let mut going = true;
        let end = loop {
            while going && session.pending.len() < QUEUE_DEPTH {
                // What has arrived counts before what follows, or the promise would be too weak.
                while let Some(heard) = session.arrived() {
                    self.settle(&mut session, heard)?;
                }
                // After an error answers that have arrived still count; the listener ends with
                // the stream.
                going = self.submit(&mut session).is_ok();
            }
            if session.pending.is_empty() {
                break End::Enough;
            }
            match session.next() {
                Some(heard) => self.settle(&mut session, heard)?,
                None => break End::Broken,
            }
            going = going && more(&self.counts);
        };
        if end == End::Enough {
            session.client.disconnect();
        } else {
            drop(session.client);
        }
        listener.join().expect("the listener does not panic");
        Ok(end)
    }

    fn submit(&mut self, session: &mut Session) -> io::Result<()> {
        let dice = self.random.below(100);
        let mix = self.mix;
        let (flush, read) = (mix.flush_percent, mix.flush_percent + mix.read_percent);
        if dice < flush {
            let point = self.model.flush_begin();
            return session.send(nbd::CMD_FLUSH, 0, 0, 0, &[], Pending::Flush(point));
        }
        let (sector, sectors) = self.place(session);
        if dice < read {
            let point = self.model.read_begin(sector, sectors);
            let length = sectors as usize * stamp::SECTOR_BYTES;
            return session.send(nbd::CMD_READ, 0, sector, length, &[], Pending::Read(point));
        }
        let zero = dice < read + mix.zero_percent;
        let fua = self.random.below(100) < mix.fua_percent;
        let flags = if fua { nbd::FLAG_FUA } else { 0 };
        let kind = if zero { Kind::Zero } else { Kind::Stamp };
        let serial = self.model.submit(kind, sector, sectors, fua);
        let pending = Pending::Write {
            serial,
            sector,
            sectors,
        };
        let length = sectors as usize * stamp::SECTOR_BYTES;
        if zero {
            return session.send(nbd::CMD_WRITE_ZEROES, flags, sector, length, &[], pending);
        }
        let mut bytes = vec![0; length];
        stamp::fill(&mut bytes, self.tag, sector, serial);
        self.counts.written_bytes += bytes.len() as u64;
        session.send(nbd::CMD_WRITE, flags, sector, length, &bytes, pending)
    }

    /// Where the next request goes: a third of them into a hot sixteenth, so that overwrites and
    /// merges happen; half of them aligned to a block, as file systems do it.
    fn place(&mut self, session: &Session) -> (u64, u64) {
        let all = self.model.sectors();
        for _ in 0..PLACES_TRIED {
            let mut sectors = 1 + self.random.below(self.mix.sectors_max);
            let area = if self.random.below(3) == 0 {
                all / 16
            } else {
                all
            };
            let mut sector = self.random.below(area - self.mix.sectors_max - 8);
            if self.random.below(2) == 0 {
                sector = sector.next_multiple_of(8);
                sectors = sectors.next_multiple_of(8).min(self.mix.sectors_max);
            }
            let ordered = self.promise != Promise::Sectors;
            if ordered || !session.touches(sector, sectors) {
                return (sector, sectors);
            }
        }
        panic!("no place free of writes in flight after {PLACES_TRIED} attempts");
    }

    fn settle(&mut self, session: &mut Session, heard: Heard) -> Result<(), Violation> {
        let pending = session
            .pending
            .remove(&heard.cookie)
            .unwrap_or_else(|| panic!("an answer to nothing: cookie {}", heard.cookie));
        self.counts.answered += 1;
        if heard.error != 0 {
            self.counts.refused += 1;
            return Ok(());
        }
        match pending {
            Pending::Write { serial, .. } => self.model.acknowledge(serial),
            Pending::Flush(point) => {
                self.counts.flushes += 1;
                self.model.flush_done(point);
            }
            Pending::Read(point) => self.model.read_done(&point, &heard.payload)?,
        }
        Ok(())
    }

    /// Writes to one place and waits for the answer, so that a test can say what is where.
    pub fn write_at(&mut self, client: &mut Client, sector: u64, sectors: u64) {
        let serial = self.model.submit(Kind::Stamp, sector, sectors, false);
        let mut bytes = vec![0; sectors as usize * stamp::SECTOR_BYTES];
        stamp::fill(&mut bytes, self.tag, sector, serial);
        client.write(sector * stamp::SECTOR_BYTES as u64, &bytes);
        self.model.acknowledge(serial);
    }

    pub fn flush(&mut self, client: &mut Client) {
        let point = self.model.flush_begin();
        client.flush();
        self.model.flush_done(point);
    }

    /// Sends a write that will not be answered: the device holds it, or the daemon dies.
    pub fn write_unanswered(&mut self, client: &mut Client, sector: u64, sectors: u64) {
        let serial = self.model.submit(Kind::Stamp, sector, sectors, false);
        let mut bytes = vec![0; sectors as usize * stamp::SECTOR_BYTES];
        stamp::fill(&mut bytes, self.tag, sector, serial);
        let offset = sector * stamp::SECTOR_BYTES as u64;
        client
            .send(nbd::CMD_WRITE, 0, offset, bytes.len() as u32, &bytes)
            .expect("send a write");
    }

    /// Reads the whole volume and judges it; the model goes on from what is there.
    pub fn verify(&mut self, crash: Crash, client: &mut Client) -> Result<Found, Violation> {
        self.model.verify(crash, |range, bytes| {
            client
                .try_read(range.start * stamp::SECTOR_BYTES as u64, bytes)
                .map_err(|error| format!("read of sectors {range:?}: NBD error {error}"))
        })
    }

    /// Runs until this daemon is dead: by a mark, or when `life` is over. All the while what is
    /// dirty is brought home. A mark is armed by `arm`, once the client is connected: what an
    /// earlier life left dirty may be on its way home at the start already.
    pub fn run_until_killed(
        &mut self,
        rig: &Rig,
        volume: &str,
        (daemon, life): (Daemon, Life),
        arm: impl FnOnce(),
    ) {
        let client = rig.connect(volume);
        arm();
        let (before, begun) = (self.counts.answered, Instant::now());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    rig.tenuto(&["volume", "destage", volume, "--wait"]);
                }
            });
            let _over = SetWhenDropped(&over);
            let end = self.run(client, |counts| {
                if life.is_over(counts.answered - before, begun) {
                    daemon.signal(libc::SIGKILL);
                }
                true
            });
            assert_eq!(end.expect("reads are right"), End::Broken);
        });
        daemon.kill();
    }

    /// Judges an image that follows the volume: it must be a prefix of the writes, which may end
    /// before what was flushed. Where it ends.
    pub fn examine(&self, image: &std::path::Path) -> Result<u64, Violation> {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::open(image).expect("open the image");
        let found = self.model.examine(Promise::Prefix, |range, bytes| {
            file.read_exact_at(bytes, range.start * stamp::SECTOR_BYTES as u64)
                .map_err(|error| error.to_string())
        });
        match found {
            Ok(Found { cut, .. }) | Err(Violation::Lost { cut, .. }) => Ok(cut),
            Err(violation) => Err(violation),
        }
    }
}

/// How long a daemon lives that no mark ends before.
#[derive(Clone, Copy)]
pub enum Life {
    /// Until so many answers.
    Answers(u64),
    /// Until the mark ends it, however slow the machine is.
    UntilMark,
}

impl Life {
    pub fn is_over(self, answered: u64, begun: Instant) -> bool {
        match self {
            Life::Answers(most) => answered > most,
            Life::UntilMark => begun.elapsed() > PATIENCE,
        }
    }
}

struct Session {
    client: Client,
    payloads: Payloads,
    heard: Receiver<Heard>,
    pending: HashMap<u64, Pending>,
}

impl Session {
    fn send(
        &mut self,
        command: u16,
        flags: u16,
        sector: u64,
        length: usize,
        bytes: &[u8],
        pending: Pending,
    ) -> io::Result<()> {
        let offset = sector * stamp::SECTOR_BYTES as u64;
        let cookie = self.client.next_cookie();
        if command == nbd::CMD_READ {
            self.payloads.lock().unwrap().insert(cookie, length);
        }
        // Noted before it is sent: a request cut short by a kill may have been complete.
        self.pending.insert(cookie, pending);
        self.client
            .send(command, flags, offset, length as u32, bytes)?;
        Ok(())
    }

    fn touches(&self, sector: u64, sectors: u64) -> bool {
        self.pending.values().any(|pending| match *pending {
            Pending::Write {
                sector: other,
                sectors: length,
                ..
            } => other < sector + sectors && sector < other + length,
            _ => false,
        })
    }

    fn arrived(&self) -> Option<Heard> {
        self.heard.try_recv().ok()
    }

    /// The next answer; `None` when the connection is broken and all answers were taken.
    fn next(&self) -> Option<Heard> {
        match self.heard.recv_timeout(ANSWER_TIMEOUT) {
            Ok(heard) => Some(heard),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no answer within {ANSWER_TIMEOUT:?}"),
        }
    }
}

/// Takes answers off the socket until it ends. Without a thread of its own, a server that waits
/// for its answers to be taken and a client that waits for its requests to be taken would wait
/// for each other.
fn hear(mut stream: UnixStream, payloads: &Payloads, to: &Sender<Heard>) {
    // The other side's pause is bounded where answers are waited for.
    stream
        .set_read_timeout(None)
        .expect("no timeout on a socket");
    loop {
        let mut head = [0; 16];
        if stream.read_exact(&mut head).is_err() {
            return;
        }
        assert_eq!(
            head[..4],
            0x6744_6698u32.to_be_bytes(),
            "magic of a simple reply"
        );
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        let length = payloads.lock().unwrap().remove(&cookie).unwrap_or(0);
        let mut payload = vec![0; if error == 0 { length } else { 0 }];
        if stream.read_exact(&mut payload).is_err() {
            return;
        }
        if to
            .send(Heard {
                cookie,
                error,
                payload,
            })
            .is_err()
        {
            return;
        }
    }
}
