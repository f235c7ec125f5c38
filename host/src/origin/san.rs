//! A simulated SAN: when would a slow shared storage have answered?
//!
//! A pure model; the shard asks it and delays completions by it. Always true: the same arrivals
//! give the same answers, and no limit is ever exceeded, not even for one request. No bursts are
//! saved up: an idle second buys nothing, as behind a controller that is busy with others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// What the simulated storage can do. 0 = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    pub latency_ns: u64,
    pub iops: u64,
    pub bytes_per_second: u64,
    /// Requests served at once; more wait in line.
    pub queue_depth: u32,
}

#[derive(Clone, Debug)]
pub struct San {
    params: Params,
    /// When the next request may start by the limit of requests per second.
    next_start_ns: u64,
    /// When the link has carried all bytes admitted so far.
    link_free_ns: u64,
    /// When each request in service ends; at most `queue_depth` of them.
    serving: BinaryHeap<Reverse<u64>>,
}

impl San {
    pub fn new(params: Params) -> San {
        San {
            params,
            next_start_ns: 0,
            link_free_ns: 0,
            serving: BinaryHeap::new(),
        }
    }

    pub fn params(&self) -> Params {
        self.params
    }

    /// When a request that arrives now is done. Arrivals come in the order of time.
    pub fn admit(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let mut start = now_ns.max(self.next_start_ns);
        if self.params.queue_depth > 0 && self.serving.len() >= self.params.queue_depth as usize {
            let Reverse(end) = self.serving.pop().expect("the queue depth is not zero");
            start = start.max(end);
        }
        if self.params.iops > 0 {
            self.next_start_ns = start + spacing_ns(1, self.params.iops);
        }
        let mut carried = start;
        if self.params.bytes_per_second > 0 {
            self.link_free_ns =
                start.max(self.link_free_ns) + spacing_ns(bytes, self.params.bytes_per_second);
            carried = self.link_free_ns;
        }
        let done = carried + self.params.latency_ns;
        if self.params.queue_depth > 0 {
            self.serving.push(Reverse(done));
        }
        done
    }
}

/// Rounded up, so that no rate is exceeded.
fn spacing_ns(amount: u64, per_second: u64) -> u64 {
    let ns = (u128::from(amount) * NS_PER_SECOND).div_ceil(u128::from(per_second));
    u64::try_from(ns).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn without_limits_a_request_takes_the_latency() {
        let mut san = San::new(Params {
            latency_ns: 5 * MS,
            ..Params::default()
        });
        assert_eq!(san.admit(0, 4096), 5 * MS);
        assert_eq!(san.admit(7, 1 << 30), 5 * MS + 7);
    }

    #[test]
    fn the_request_rate_is_kept_over_a_second_and_idle_time_buys_nothing() {
        let mut san = San::new(Params {
            latency_ns: MS,
            iops: 2000,
            ..Params::default()
        });
        let last = (0..2000)
            .map(|_| san.admit(0, 512))
            .last()
            .expect("2000 answers");
        assert_eq!(last, 1999 * 500_000 + MS);
        let later = 10_000 * MS;
        assert_eq!(san.admit(later, 512), later + MS);
        assert_eq!(san.admit(later, 512), later + 500_000 + MS);
    }

    #[test]
    fn the_bandwidth_is_shared_one_after_the_other() {
        let mut san = San::new(Params {
            bytes_per_second: 1_000_000,
            ..Params::default()
        });
        assert_eq!(san.admit(0, 1000), MS);
        assert_eq!(san.admit(0, 1000), 2 * MS);
        assert_eq!(san.admit(5 * MS, 500), 5 * MS + MS / 2);
    }

    #[test]
    fn beyond_the_queue_depth_requests_wait_for_a_place() {
        let mut san = San::new(Params {
            latency_ns: MS,
            queue_depth: 2,
            ..Params::default()
        });
        let ends: Vec<u64> = (0..5).map(|_| san.admit(0, 4096)).collect();
        assert_eq!(ends, [MS, MS, 2 * MS, 2 * MS, 3 * MS]);
        assert_eq!(san.admit(10 * MS, 4096), 11 * MS);
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_is_never_exceeded() {
        let mut san = San::new(Params {
            iops: 3,
            ..Params::default()
        });
        let starts: Vec<u64> = (0..4).map(|_| san.admit(0, 1)).collect();
        assert!(starts[3] >= 1_000_000_000);
    }
}
