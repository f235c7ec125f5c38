//! When a peer counts as lost for the owner of a unit, and when it may come back: by monotonic
//! times, for [`crate::set`], which knows none.
//!
//! ```text
//!   nothing heard for 0.6 of the peer timeout, or sent data without an answer for all of it
//! Fit ─────────────────────────────────────────────────────────────────────▶ Unfit
//!  ▲                     heard, and 1, 2, 4 s … 5 min are over                 │
//!  └───────────────────────────────────────────────────────────────────────────┘
//! ```
//! Always true: a time begins another attempt and gives no right (C19); a peer without credit is
//! slow, not lost (correction 13); a peer that was lost again soon waits twice as long, and one
//! that has stayed for a minute waits a second. Deliberately absent: what follows, and the word of
//! a peer that its own sync has failed, which comes as a message.

use crate::peers::PeerTimeout;
use engine::types::{Serial, Time};

pub const BACK_MS_MIN: u64 = 1_000;
pub const BACK_MS_MAX: u64 = 300_000;
/// A peer that has stayed for so long does not flap.
pub const STEADY_MS: u64 = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it was.
    Same,
    /// Say `Unfit` to the set.
    Lost,
    /// Say `Fit` to the set.
    Back,
}

/// The times of one peer of one unit, or of all units that share its link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    timeout: PeerTimeout,
    fit: bool,
    /// Since it is fit, or not.
    since: Time,
    heard: Time,
    /// The newest that was sent, and the newest that was answered.
    sent: Serial,
    durable: Serial,
    /// What was the newest sent when the last answer came, and when that was: it is due.
    due: Option<(Serial, Time)>,
    losses: u32,
}

impl Watch {
    pub fn new(now: Time, timeout: PeerTimeout) -> Watch {
        Watch {
            timeout,
            fit: true,
            since: now,
            heard: now,
            sent: Serial(0),
            durable: Serial(0),
            due: None,
            losses: 0,
        }
    }

    pub fn is_fit(&self) -> bool {
        self.fit
    }

    pub fn heard(&mut self, now: Time) {
        self.heard = self.heard.max(now);
    }

    pub fn sent(&mut self, now: Time, upto: Serial) {
        self.sent = self.sent.max(upto);
        if self.due.is_none() && self.sent > self.durable {
            self.due = Some((self.sent, now));
        }
    }

    pub fn acked(&mut self, now: Time, durable: Serial) {
        self.heard(now);
        self.durable = self.durable.max(durable);
        if self.durable >= self.sent {
            self.due = None;
        } else if self.due.is_some_and(|(due, _)| self.durable >= due) {
            self.due = Some((self.sent, now));
        }
    }

    /// Its stream has ended; what is sent next is another one.
    pub fn closed(&mut self) {
        (self.sent, self.durable, self.due) = (Serial(0), Serial(0), None);
    }

    /// It has said so itself, or there is no stream to it for too long.
    pub fn fail(&mut self, now: Time) -> Verdict {
        match self.fit {
            true => self.lose(now),
            false => Verdict::Same,
        }
    }

    fn lose(&mut self, now: Time) -> Verdict {
        let steady = now.since(self.since) >= STEADY_MS * 1_000_000;
        self.losses = match steady {
            true => 1,
            false => self.losses.saturating_add(1),
        };
        (self.fit, self.since) = (false, now);
        self.closed();
        Verdict::Lost
    }

    /// The inbox was emptied before: what has arrived is no reason to evict.
    pub fn tick(&mut self, now: Time) -> Verdict {
        let silent = now.since(self.heard) >= self.timeout.silent_ns();
        let late = |(_, since): (Serial, Time)| now.since(since) >= self.timeout.ack_ns();
        if self.fit && (silent || self.due.is_some_and(late)) {
            return self.lose(now);
        }
        let waits = now.since(self.since) < self.back_ms() * 1_000_000;
        if self.fit || silent || waits {
            return Verdict::Same;
        }
        (self.fit, self.since) = (true, now);
        Verdict::Back
    }

    fn back_ms(&self) -> u64 {
        assert!(self.fit || self.losses > 0, "what is lost was lost once");
        let doubled = BACK_MS_MIN << self.losses.saturating_sub(1).min(20);
        doubled.min(BACK_MS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn a_peer_is_lost_after_600_ms_of_silence_or_a_second_without_an_answer() {
        let mut watch = Watch::new(at(0), PeerTimeout::default());
        assert_eq!(watch.tick(at(599)), Verdict::Same);
        assert_eq!(watch.tick(at(600)), Verdict::Lost);
        let mut watch = Watch::new(at(0), PeerTimeout::default());
        watch.sent(at(0), Serial(5));
        watch.sent(at(900), Serial(9));
        watch.heard(at(950));
        assert_eq!(watch.tick(at(999)), Verdict::Same);
        let mut answers = watch.clone();
        assert_eq!(watch.tick(at(1_000)), Verdict::Lost, "pings do not help");
        answers.acked(at(999), Serial(5));
        answers.heard(at(1_900));
        assert_eq!(
            answers.tick(at(1_998)),
            Verdict::Same,
            "9 was due then only"
        );
        answers.acked(at(1_999), Serial(9));
        answers.heard(at(9_000));
        assert_eq!(answers.tick(at(9_001)), Verdict::Same, "nothing is due");
    }

    #[test]
    fn one_that_may_be_slow_is_waited_for_ten_times_as_long() {
        let mut watch = Watch::new(at(0), PeerTimeout { ms: 10_000 });
        watch.sent(at(0), Serial(5));
        assert_eq!(watch.tick(at(5_999)), Verdict::Same);
        watch.heard(at(5_999));
        assert_eq!(watch.tick(at(9_999)), Verdict::Same);
        assert_eq!(watch.tick(at(10_000)), Verdict::Lost);
    }

    #[test]
    fn one_that_flaps_comes_back_ever_later_until_it_stays() {
        let mut watch = Watch::new(at(0), PeerTimeout::default());
        let mut now = 0;
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            now += 600;
            assert_eq!(watch.tick(at(now)), Verdict::Lost);
            watch.heard(at(now + expected * 1_000 - 1));
            assert_eq!(watch.tick(at(now + expected * 1_000 - 1)), Verdict::Same);
            now += expected * 1_000;
            watch.heard(at(now));
            assert_eq!(watch.tick(at(now)), Verdict::Back);
        }
        now += STEADY_MS;
        assert_eq!(watch.tick(at(now)), Verdict::Lost);
        watch.heard(at(now + 1_000));
        assert_eq!(watch.tick(at(now + 1_000)), Verdict::Back);
    }
}
