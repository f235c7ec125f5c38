//! Rounds of a peer that is behind, and how guests wait for it.
//!
//! ```text
//! round: what the peer lacks is sent │ what guests write meanwhile is the next round, or is queued
//! ```
//! Rounds end when what guests write meanwhile fits the queue. Where guests write as fast as the
//! peer takes it, that would be never: so from the first round on that is not much smaller than
//! the one before it, guests write half as much as is sent, beside a part of the queue, until the
//! peer has all. A burst that the peer catches up with by itself is not slowed.
//!
//! Always true: each round of a peer that guests wait for is at most a little more than half of the
//! one before it, so that there is a last one; guests wait only for a peer that goes on, and not
//! for one of which nothing has been heard for a second. Deliberately absent: when a peer is given
//! up, which is the host's; room at the peer ([`super::credit`]).

use crate::types::Time;

/// A round is smaller than the one before it where it is at most so many quarters of that.
const SMALLER_QUARTERS: u64 = 3;
/// Guests write this part of what is sent.
const SENT_PART: u64 = 2;
/// And so large a part of the queue beside that.
const QUEUE_PART: u64 = 4;
/// Who says nothing for so long is not waited for.
const SILENCE_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Default)]
pub struct Rounds {
    /// Sectors of the round before this one.
    before: u64,
    /// Sectors that were sent in this one, and that guests have written since it began.
    sent: u64,
    written: u64,
    /// Guests wait for it.
    paced: bool,
    heard: Time,
}

impl Rounds {
    pub fn start(now: Time) -> Rounds {
        Rounds {
            heard: now,
            ..Rounds::default()
        }
    }

    pub fn hear(&mut self, now: Time) {
        self.heard = self.heard.max(now);
    }

    pub fn begin(&mut self) {
        (self.before, self.sent, self.written) = (self.sent, 0, 0);
    }

    /// `again`: another one follows.
    pub fn end(&mut self, again: bool) {
        let smaller = 4 * self.sent <= SMALLER_QUARTERS * self.before;
        if again && self.before > 0 && !smaller {
            self.paced = true;
        }
    }

    pub fn send(&mut self, sectors: u64) {
        self.sent += sectors;
    }

    pub fn write(&mut self, sectors: u64) {
        self.written += sectors;
    }

    /// It has all that guests have written.
    pub fn catches_up(&mut self) {
        self.paced = false;
    }

    /// Whether guests wait: in a round for what is sent, behind it for the queue, which has
    /// `queued` of at most `queued_max` sectors.
    pub fn holds(&self, now: Time, live: bool, queued: u64, queued_max: u64) -> bool {
        if !self.paced || now.since(self.heard) >= SILENCE_NS {
            return false;
        }
        match live {
            true => queued > queued_max / 2,
            false => self.written > self.sent / SENT_PART + queued_max / QUEUE_PART,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: u64 = 1000;

    /// Sectors of the rounds of a peer whose guests write `by` times as fast as it takes.
    fn rounds(first: u64, by: u64) -> usize {
        let (mut rounds, now) = (Rounds::start(Time(0)), Time(5));
        let mut size = first;
        for round in 1..100 {
            rounds.begin();
            for _ in 0..size {
                rounds.send(1);
                for _ in 0..by {
                    if !rounds.holds(now, false, 0, QUEUE) {
                        rounds.write(1);
                    }
                }
            }
            if rounds.written <= QUEUE {
                rounds.end(false);
                return round;
            }
            rounds.end(true);
            size = rounds.written;
        }
        panic!("rounds without an end");
    }

    #[test]
    fn rounds_end_however_fast_guests_write() {
        assert_eq!(rounds(500, 1), 1, "it catches up by itself");
        assert!(rounds(50_000, 1) < 20);
        assert!(rounds(50_000, 10) < 30);
    }

    #[test]
    fn guests_wait_for_who_goes_on_only() {
        let mut rounds = Rounds::start(Time(0));
        for _ in 0..3 {
            rounds.begin();
            rounds.send(10);
            rounds.end(true);
        }
        rounds.write(QUEUE);
        let silent = Time(SILENCE_NS);
        assert!(rounds.holds(Time(1), false, 0, QUEUE));
        assert!(!rounds.holds(silent, false, 0, QUEUE));
        rounds.hear(silent);
        assert!(rounds.holds(silent, false, 0, QUEUE));
        assert!(rounds.holds(silent, true, QUEUE, QUEUE));
        assert!(!rounds.holds(silent, true, QUEUE / 2, QUEUE));
        rounds.catches_up();
        assert!(!rounds.holds(silent, true, QUEUE, QUEUE));
    }
}
