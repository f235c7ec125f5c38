//! Up to which write the log of this host may have what was given.
//!
//! Always true: what is above is in the stage, because only what is durable leaves it. So a peer
//! that has all up to here lacks nothing that a failed device had alone.
//! Deliberately absent: volumes without peers, for which nothing is counted.

use crate::types::{Serial, StreamSeq};
use alloc::collections::VecDeque;

#[derive(Default)]
pub struct Logged {
    upto: Serial,
    /// Of writes that were not durable when it was looked last, oldest first.
    marks: VecDeque<(StreamSeq, Serial)>,
}

impl Logged {
    /// It may have everything up to here.
    pub fn from(upto: Serial) -> Logged {
        Logged {
            upto,
            marks: VecDeque::new(),
        }
    }

    /// A part of this write is in the stage, and goes to this place of the log, which is durable
    /// up to another one.
    pub fn stages(&mut self, serial: Serial, seq: StreamSeq, durable: StreamSeq) {
        let before = self.upto(durable);
        assert!(self.upto >= before, "it only grows");
        match self.marks.back_mut() {
            Some(last) if last.0 == seq => last.1 = last.1.max(serial),
            _ => self.marks.push_back((seq, serial)),
        }
        debug_assert!(self.marks.iter().is_sorted(), "the log goes on");
    }

    /// Nothing of what is behind it is durable.
    pub fn upto(&mut self, durable: StreamSeq) -> Serial {
        while let Some((seq, serial)) = self.marks.front()
            && *seq <= durable
        {
            self.upto = self.upto.max(*serial);
            self.marks.pop_front();
        }
        self.upto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_staged_counts_when_the_log_has_it_and_not_before() {
        let mut logged = Logged::from(Serial(4));
        logged.stages(Serial(5), StreamSeq(10), StreamSeq(9));
        logged.stages(Serial(6), StreamSeq(10), StreamSeq(9));
        logged.stages(Serial(7), StreamSeq(12), StreamSeq(9));
        assert_eq!(logged.upto(StreamSeq(9)), Serial(4));
        assert_eq!(logged.upto(StreamSeq(11)), Serial(6));
        logged.stages(Serial(8), StreamSeq(14), StreamSeq(12));
        assert_eq!(logged.upto(StreamSeq(12)), Serial(7));
    }
}
