//! What a guest may ask of its volume: requests and bytes in a second.
//!
//! ```text
//! taken ◀── the next one may come ──── now          due: when it may, at the latest
//!               └── burst ──┘
//! ```
//! A leaky bucket, as a meter: a request is charged when it is taken, with what it costs, and a
//! guest that has taken more than is due takes nothing before that has passed. Nothing is held that
//! was taken, so a guest that leaves, a ring that stops and a daemon that ends wait for no limit.
//! What is not taken stays in the ring, or in the socket, of the guest.
//!
//! Always true: over any time at most as much is taken as the limit gives for it, and for the burst
//! and [`SLACK_NS`] more, and one round of requests; a timer that is late loses nothing within
//! these. Reads and writes cost their bytes and one request, all else that the engine is asked for
//! one request. Deliberately absent: destage, which has its own pace.

use engine::types::Time;

/// A thread that is woken late finds so much to do at once.
const SLACK_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Of one volume; nothing is limited by zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestLimit {
    /// Requests per second.
    pub iops: u64,
    /// Bytes per second, of reads and writes together.
    pub bandwidth_bytes: u64,
    /// What was not used of so much time may come at once.
    pub burst_ms: u64,
}

/// How often guests of a volume had to wait for its limit, and how long: waits that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub count: u64,
    pub nanos: u64,
}

/// When what was taken of one thing has passed.
#[derive(Debug, Default)]
struct Line {
    due: Time,
    /// What the last division has left, so that a limit is exact.
    rest: u64,
}

impl Line {
    fn charge(&mut self, now: Time, amount: u64, per_second: u64) {
        if per_second == 0 {
            return;
        }
        if self.due < now {
            (self.due, self.rest) = (now, 0);
        }
        let cost = u128::from(amount) * u128::from(SECOND_NS) + u128::from(self.rest);
        let nanos = cost / u128::from(per_second);
        self.rest = (cost % u128::from(per_second)) as u64;
        self.due = Time(
            self.due
                .0
                .saturating_add(nanos.min(u128::from(u64::MAX)) as u64),
        );
    }
}

/// A limit and what was taken.
#[derive(Debug, Default)]
pub struct Meter {
    limit: GuestLimit,
    requests: Line,
    bytes: Line,
}

impl Meter {
    pub fn of(limit: GuestLimit) -> Meter {
        Meter {
            limit,
            ..Meter::default()
        }
    }

    pub fn is_limited(&self) -> bool {
        self.limit.iops > 0 || self.limit.bandwidth_bytes > 0
    }

    /// What was taken under the limit before does not count.
    pub fn set(&mut self, limit: GuestLimit) {
        if self.limit != limit {
            (self.limit, self.requests, self.bytes) = (limit, Line::default(), Line::default());
        }
    }

    pub fn charge(&mut self, now: Time, bytes: u64) {
        self.requests.charge(now, 1, self.limit.iops);
        self.bytes.charge(now, bytes, self.limit.bandwidth_bytes);
    }

    /// What may be taken before it is due.
    fn ahead_ns(&self) -> u64 {
        self.limit.burst_ms.saturating_mul(1_000_000).max(SLACK_NS)
    }

    fn due(&self) -> Time {
        self.requests.due.max(self.bytes.due)
    }

    /// When the next request may be taken.
    pub fn next(&self) -> Time {
        Time(self.due().0.saturating_sub(self.ahead_ns()))
    }

    /// How many requests may be taken now, without a look at their bytes; at most `most`.
    pub fn allows(&self, now: Time, most: usize) -> usize {
        if !self.is_limited() {
            return most;
        }
        let next = self.next();
        if next > now {
            return 0;
        }
        if self.limit.bandwidth_bytes > 0 {
            // How large they are is not known before.
            return 1;
        }
        // Of a time before the burst nothing is left.
        let unused = self.ahead_ns().saturating_sub(self.due().since(now));
        let ahead = u128::from(unused) * u128::from(self.limit.iops);
        let more = ahead / u128::from(SECOND_NS);
        usize::try_from(more + 1).map_or(most, |allowed| allowed.min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(iops: u64, bandwidth_bytes: u64, burst_ms: u64) -> Meter {
        Meter::of(GuestLimit {
            iops,
            bandwidth_bytes,
            burst_ms,
        })
    }

    /// Requests that a guest with enough of them gets in ten seconds, looked at each `step`.
    fn taken(meter: &mut Meter, bytes: u64, step: u64) -> u64 {
        let (mut taken, start) = (0, 5 * SECOND_NS);
        let mut now = start;
        while now < start + 10 * SECOND_NS {
            loop {
                let allowed = meter.allows(Time(now), 64);
                if allowed == 0 {
                    break;
                }
                for _ in 0..allowed {
                    meter.charge(Time(now), bytes);
                    taken += 1;
                }
            }
            now += step;
        }
        taken
    }

    #[test]
    fn as_much_is_taken_as_the_limit_says_however_late_one_looks() {
        for step in [1_000, 300_000, 9_000_000] {
            let requests = taken(&mut limit(1_000, 0, 0), 4096, step);
            assert!((10_000..=10_011).contains(&requests), "{step}: {requests}");
            let requests = taken(&mut limit(0, 1 << 20, 0), 4096, step);
            assert!((2_555..=2_566).contains(&requests), "{step}: {requests}");
        }
        let both = taken(&mut limit(100, 1 << 30, 0), 4096, 1_000_000);
        assert!(
            (1_000..=1_002).contains(&both),
            "the lower one counts: {both}"
        );
        let odd = taken(&mut limit(7, 0, 0), 0, 1_000_000);
        assert_eq!(odd, 71, "nothing is lost to rounding");
    }

    #[test]
    fn what_was_not_used_may_come_at_once_up_to_the_burst() {
        let mut meter = limit(1_000, 0, 2_000);
        let requests = taken(&mut meter, 0, 1_000_000);
        assert!((12_000..=12_002).contains(&requests), "{requests}");
        assert_eq!(meter.allows(Time(15 * SECOND_NS - 1_000), 64), 0);
        // Long after, no more than that.
        let later = Time(900 * SECOND_NS);
        assert_eq!(meter.allows(later, 10_000), 2_001);
    }

    #[test]
    fn nothing_is_limited_by_zero_and_a_new_limit_begins_anew() {
        let mut meter = limit(0, 0, 0);
        meter.charge(Time(7), u64::MAX);
        assert_eq!(meter.allows(Time(7), 64), 64);
        meter.set(GuestLimit {
            iops: 1,
            ..GuestLimit::default()
        });
        meter.charge(Time(7), 0);
        meter.charge(Time(7), 0);
        assert_eq!(meter.allows(Time(8), 64), 0);
        assert!(meter.next() > Time(8));
        meter.set(GuestLimit::default());
        assert_eq!(meter.allows(Time(8), 64), 64);
    }
}
