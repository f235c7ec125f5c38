//! How many lines one cause may write.
//!
//! Owns what was written lately for each place in the program and object it was about. Always true:
//! the first [`BURST`] lines of a cause are written at once, then one in a second; none is
//! swallowed uncounted, and the next line of the cause, or a sweep, says how many were. At most
//! [`CAUSES_MAX`] causes are told apart; what comes beyond shares one for each place. Guests,
//! peers, images and origins can provoke lines; this is the one bound for all of them.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;

/// Enough for what a person reads at once: the steps of a start, the volumes of one machine.
pub const BURST: u32 = 10;
/// A device that is gone fails thousands of requests in a second.
pub const PAUSE: Duration = Duration::from_secs(1);
const CAUSES_MAX: usize = 4_096;

/// A place in the program, and the volume, file or server it speaks of.
pub type Cause = (Identifier, String);

#[derive(Default)]
pub struct Limit {
    known: HashMap<Cause, Told>,
}

struct Told {
    /// Lines that may be written at once.
    left: u32,
    /// When `left` was counted.
    at: Instant,
    swallowed: u64,
}

impl Told {
    fn refill(&mut self, now: Instant) {
        let pauses = now.saturating_duration_since(self.at).as_millis() / PAUSE.as_millis();
        let pauses = u32::try_from(pauses).unwrap_or(u32::MAX);
        if pauses > 0 {
            self.left = self.left.saturating_add(pauses).min(BURST);
            self.at = now;
        }
    }
}

impl Limit {
    /// Whether a line may be written now, and how many were swallowed before it.
    pub fn may(&mut self, now: Instant, mut cause: Cause) -> Option<u64> {
        if self.known.len() >= CAUSES_MAX && !self.known.contains_key(&cause) {
            self.forget_idle(now);
            if self.known.len() >= CAUSES_MAX {
                cause.1.clear();
            }
        }
        let told = self.known.entry(cause).or_insert(Told {
            left: BURST,
            at: now,
            swallowed: 0,
        });
        told.refill(now);
        if told.left == 0 {
            told.swallowed += 1;
            return None;
        }
        told.left -= 1;
        Some(std::mem::take(&mut told.swallowed))
    }

    /// Causes that have gone quiet with lines that nobody was told of.
    pub fn sweep(&mut self, now: Instant) -> Vec<(Cause, u64)> {
        let mut left_over = Vec::new();
        for (cause, told) in &mut self.known {
            told.refill(now);
            if told.swallowed > 0 && told.left > 0 {
                told.left -= 1;
                left_over.push((cause.clone(), std::mem::take(&mut told.swallowed)));
            }
        }
        left_over
    }

    fn forget_idle(&mut self, now: Instant) {
        self.known.retain(|_, told| {
            told.refill(now);
            told.swallowed > 0 || told.left < BURST
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Callsite;

    fn cause(object: &str) -> Cause {
        (
            tracing::callsite!(
                name: "test",
                kind: tracing::metadata::Kind::EVENT,
                fields: message
            )
            .metadata()
            .callsite(),
            object.into(),
        )
    }

    #[test]
    fn the_first_lines_are_told_and_the_others_counted() {
        let mut limit = Limit::default();
        let start = Instant::now();
        for _ in 0..BURST {
            assert_eq!(limit.may(start, cause("disk")), Some(0));
        }
        for _ in 0..1_000 {
            assert_eq!(limit.may(start, cause("disk")), None);
        }
        assert_eq!(limit.may(start, cause("other")), Some(0));
        assert_eq!(limit.may(start + PAUSE, cause("disk")), Some(1_000));
        assert_eq!(limit.may(start + PAUSE, cause("disk")), None);
        assert!(limit.sweep(start + PAUSE).is_empty());
        let swept = limit.sweep(start + 2 * PAUSE);
        assert_eq!(swept.len(), 1);
        assert_eq!((swept[0].0.1.as_str(), swept[0].1), ("disk", 1));
        assert!(limit.sweep(start + 9 * PAUSE).is_empty());
    }

    #[test]
    fn endless_objects_are_one_cause_in_the_end() {
        let mut limit = Limit::default();
        let now = Instant::now();
        let told = (0..10 * CAUSES_MAX)
            .filter(|object| limit.may(now, cause(&object.to_string())).is_some())
            .count();
        assert!(told <= CAUSES_MAX + BURST as usize, "{told}");
    }
}
