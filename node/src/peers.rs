//! The state of the link to one other host, by what happens on it.
//!
//! Owns when a link counts as silent or dead, its latency, the skew of the other host's clock, its
//! room for copies, and when a host that is not there is called again. Always true: only monotonic
//! times decide; wall clocks are compared to be shown. Nothing here is a right: a silent host may
//! still write. Deliberately absent: connections, and which of two is kept, which is the host's.
//!
//! ```text
//!        connected        0.6 of the peer timeout without a byte
//! Down ────────────▶ Up ─────────────────────────────▶ Silent
//!   ▲                │ ▲ ◀───────────── heard ───────────┘ │
//!   └───── lost ─────┘                       5 s: close ───┘
//! ```
//! A host that does not answer is called after 1, 2, 4, 8 and then each 10 s: a call costs one
//! packet, and a host that is back is to be found soon. A link that was up for less than a minute,
//! or that the other side refused, is one that flaps: it is called after 1, 2, 4 s … 5 min.

use crate::frame::{Ping, Pong, VERSION_ROOM};
use engine::types::Time;

pub const PING_MS: u64 = 200;
/// A connection that is silent for so long is closed, or for twice as long as makes it silent.
pub const DEAD_MS: u64 = 5_000;
/// A link that was up for so long does not flap.
pub const STEADY_MS: u64 = 60_000;
pub const CALL_MS_MIN: u64 = 1_000;
pub const CALL_MS_MAX: u64 = 10_000;
pub const FLAP_MS_MAX: u64 = 300_000;
/// Pings that may be under way and still be measured.
const PINGS: usize = 32;

/// How long another host may be late before this one goes on without it. The same on all hosts, or
/// the one that waits least decides for its own volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTimeout {
    pub ms: u64,
}

impl Default for PeerTimeout {
    fn default() -> PeerTimeout {
        PeerTimeout { ms: 1_000 }
    }
}

impl PeerTimeout {
    /// Data that was sent and is not answered for so long: the peer is lost.
    pub fn ack_ns(self) -> u64 {
        self.ms * 1_000_000
    }

    /// No byte for so long: the link is silent.
    pub fn silent_ns(self) -> u64 {
        self.ack_ns() / 10 * 6
    }

    fn dead_ns(self) -> u64 {
        (DEAD_MS * 1_000_000).max(2 * self.silent_ns())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Down,
    Up,
    /// Connected, and nothing was heard for a while.
    Silent,
}

impl State {
    pub const fn name(self) -> &'static str {
        match self {
            State::Down => "down",
            State::Up => "up",
            State::Silent => "silent",
        }
    }
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Send this.
    pub ping: Option<Ping>,
    /// Close the connection, then say [`Link::lost`].
    pub close: bool,
    /// Connect, then say [`Link::connected`], [`Link::failed`] or [`Link::refused`].
    pub call: bool,
}

#[derive(Clone, Debug)]
pub struct Link {
    timeout: PeerTimeout,
    state: State,
    /// When it came up, or went down.
    since: Time,
    heard: Time,
    version: u16,
    calling: bool,
    call_at: Time,
    /// Calls without an answer since the last connection.
    failures: u32,
    /// Connections in a row that did not last.
    flaps: u32,
    ping_at: Time,
    ping_number: u64,
    sent: [Time; PINGS],
    round_trip_ns: Option<u64>,
    skew_ms: Option<i64>,
    room_blocks: Option<u64>,
}

impl Link {
    /// To a host that is called at once.
    pub fn new(now: Time, timeout: PeerTimeout) -> Link {
        Link {
            timeout,
            state: State::Down,
            since: now,
            heard: now,
            version: 0,
            calling: false,
            call_at: now,
            failures: 0,
            flaps: 0,
            ping_at: now,
            ping_number: 0,
            sent: [Time(0); PINGS],
            round_trip_ns: None,
            skew_ms: None,
            room_blocks: None,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn is_connected(&self) -> bool {
        self.state != State::Down
    }

    /// The version that both speak; 0 where that is not known.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Smoothed time of a ping and its answer.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.round_trip_ns
    }

    /// How far the other host's clock is ahead of ours.
    pub fn skew_ms(&self) -> Option<i64> {
        self.skew_ms
    }

    /// Blocks of the other host's log that copies may take, as of its last ping.
    pub fn room_blocks(&self) -> Option<u64> {
        self.room_blocks
    }

    /// The other side's ping.
    pub fn pinged(&mut self, ping: &Ping) {
        self.room_blocks = ping.room_blocks;
    }

    /// How long it is in this state, up and silent being one.
    pub fn since(&self) -> Time {
        self.since
    }

    /// Both sides know each other, by whichever side's call.
    pub fn connected(&mut self, now: Time, version: u16) {
        assert!(version > 0, "versions begin with 1");
        self.state = State::Up;
        self.since = now;
        self.heard = now;
        self.version = version;
        self.calling = false;
        self.failures = 0;
        self.ping_at = now;
        self.round_trip_ns = None;
        self.skew_ms = None;
        self.room_blocks = None;
    }

    pub fn heard(&mut self, now: Time) {
        self.heard = now;
        if self.state == State::Silent {
            self.state = State::Up;
        }
    }

    /// The connection has ended.
    pub fn lost(&mut self, now: Time) {
        assert!(self.is_connected(), "only a connection can be lost");
        let steady = now.since(self.since) >= STEADY_MS * 1_000_000;
        self.flaps = if steady {
            0
        } else {
            self.flaps.saturating_add(1)
        };
        self.state = State::Down;
        self.since = now;
        self.call_at = now.plus_millis(grown(self.flaps, FLAP_MS_MAX));
    }

    /// A call was not answered.
    pub fn failed(&mut self, now: Time) {
        self.calling = false;
        self.failures = self.failures.saturating_add(1);
        let wait = grown(self.failures, CALL_MS_MAX).max(grown(self.flaps, FLAP_MS_MAX));
        self.call_at = now.plus_millis(wait);
    }

    /// A call ended because the other side's was taken.
    pub fn superseded(&mut self) {
        self.calling = false;
    }

    /// A call was answered with a refusal.
    pub fn refused(&mut self, now: Time) {
        self.calling = false;
        self.flaps = self.flaps.saturating_add(1);
        self.call_at = now.plus_millis(grown(self.flaps, FLAP_MS_MAX));
    }

    /// Time has passed. `wall_ms`: our clock, and `room_blocks`: our room for copies, for the ping.
    pub fn tick(&mut self, now: Time, wall_ms: u64, room_blocks: u64) -> Due {
        if self.state == State::Down {
            let call = !self.calling && now >= self.call_at;
            self.calling |= call;
            return Due {
                call,
                ..Due::default()
            };
        }
        let quiet_ns = now.since(self.heard);
        if quiet_ns >= self.timeout.dead_ns() {
            return Due {
                close: true,
                ..Due::default()
            };
        }
        if quiet_ns >= self.timeout.silent_ns() {
            self.state = State::Silent;
        }
        if now < self.ping_at {
            return Due::default();
        }
        self.ping_at = now.plus_millis(PING_MS);
        self.ping_number += 1;
        self.sent[self.ping_number as usize % PINGS] = now;
        let ping = Some(Ping {
            number: self.ping_number,
            wall_ms,
            room_blocks: (self.version >= VERSION_ROOM).then_some(room_blocks),
        });
        Due {
            ping,
            ..Due::default()
        }
    }

    /// A ping was answered. One that was never sent, or long ago, says nothing.
    pub fn pong(&mut self, now: Time, pong: &Pong, wall_ms: u64) {
        let age = self.ping_number.checked_sub(pong.number);
        if pong.number == 0 || age.is_none_or(|age| age >= PINGS as u64) {
            return;
        }
        let sample = now.since(self.sent[pong.number as usize % PINGS]);
        self.round_trip_ns = Some(match self.round_trip_ns {
            None => sample,
            Some(known) => (known / 8).saturating_mul(7).saturating_add(sample / 8),
        });
        // Their clock was read half a round trip ago.
        let theirs = pong.wall_ms.saturating_add(sample / 2_000_000);
        let ahead = i128::from(theirs) - i128::from(wall_ms);
        self.skew_ms = Some(ahead.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
    }
}

/// 1 s for the first time, doubled for each further one.
fn grown(times: u32, max_ms: u64) -> u64 {
    let doubled = CALL_MS_MIN << times.saturating_sub(1).min(20);
    doubled.min(max_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    fn up(millis: u64) -> Link {
        let mut link = Link::new(at(millis), PeerTimeout::default());
        assert!(link.tick(at(millis), 0, 7).call);
        link.connected(at(millis), 1);
        link
    }

    #[test]
    fn a_link_is_silent_after_600_ms_and_dead_after_5_s() {
        let mut link = up(0);
        assert!(link.tick(at(0), 0, 7).ping.is_some());
        link.tick(at(599), 0, 7);
        assert_eq!(link.state(), State::Up);
        link.tick(at(600), 0, 7);
        assert_eq!(link.state(), State::Silent);
        link.heard(at(700));
        assert_eq!(link.state(), State::Up);
        assert!(!link.tick(at(5_699), 0, 7).close);
        assert!(link.tick(at(5_700), 0, 7).close);
        link.lost(at(5_700));
        assert_eq!(link.state(), State::Down);
    }

    #[test]
    fn pings_go_each_200_ms_and_give_latency_and_skew() {
        let mut link = up(0);
        let ping = link.tick(at(0), 1_000, 7).ping.expect("at once");
        assert_eq!(link.tick(at(199), 0, 7), Due::default());
        let next = link.tick(at(200), 1_200, 7).ping.expect("in time");
        assert_eq!(next.number, ping.number + 1);
        assert_eq!(next.room_blocks, None, "an older version knows none");
        // Its clock is 500 ms ahead; the way took 10 ms each.
        let pong = Pong {
            number: next.number,
            wall_ms: 1_710,
        };
        link.pong(at(220), &pong, 1_220);
        assert_eq!(link.round_trip_ns(), Some(20_000_000));
        assert_eq!(link.skew_ms(), Some(500));
        for foreign in [0, 3, u64::MAX] {
            link.pong(
                at(900),
                &Pong {
                    number: foreign,
                    wall_ms: 0,
                },
                0,
            );
        }
        assert_eq!(link.round_trip_ns(), Some(20_000_000));
        link.pong(
            at(220),
            &Pong {
                number: 1,
                wall_ms: u64::MAX,
            },
            0,
        );
        assert!(link.skew_ms().is_some_and(|skew| skew > 0));
    }

    #[test]
    fn a_ping_tells_the_room_for_copies_until_the_link_is_another_one() {
        let mut link = Link::new(at(0), PeerTimeout::default());
        link.connected(at(0), VERSION_ROOM);
        let ping = link.tick(at(0), 0, 9).ping.expect("at once");
        assert_eq!(ping.room_blocks, Some(9));
        link.pinged(&ping);
        assert_eq!(link.room_blocks(), Some(9));
        link.connected(at(10), VERSION_ROOM);
        assert_eq!(link.room_blocks(), None);
    }

    /// Milliseconds until it is called again.
    fn waits(link: &mut Link, now: u64) -> u64 {
        let wait = (0..=FLAP_MS_MAX).step_by(500);
        let mut wait = wait.filter(|wait| link.tick(at(now + wait), 0, 7).call);
        wait.next().expect("it is called again")
    }

    #[test]
    fn a_host_that_is_not_there_is_called_at_least_each_10_s() {
        let mut link = Link::new(at(0), PeerTimeout::default());
        assert!(link.tick(at(0), 0, 7).call);
        assert!(!link.tick(at(0), 0, 7).call, "one call at a time");
        let mut now = 0;
        for expected in [1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            link.failed(at(now));
            assert_eq!(waits(&mut link, now), expected);
            now += expected;
        }
    }

    #[test]
    fn one_that_flaps_is_called_ever_more_seldom_until_it_stays() {
        let mut link = up(0);
        let mut now = 0;
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            now += 1_000;
            link.lost(at(now));
            assert_eq!(waits(&mut link, now), expected * 1_000);
            now += expected * 1_000;
            link.connected(at(now), 1);
        }
        now += STEADY_MS;
        link.lost(at(now));
        assert_eq!(waits(&mut link, now), 1_000);
        link.refused(at(now));
        assert_eq!(waits(&mut link, now), 1_000);
        link.refused(at(now));
        assert_eq!(waits(&mut link, now), 2_000);
    }
}
