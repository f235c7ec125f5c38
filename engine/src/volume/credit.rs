//! Room that a replica was promised, and room that a peer has promised.
//!
//! ```text
//! copy:   upto ── received ── what came is in the log          upto − received is promised
//! owner:  upto ── spent                                        upto − spent may be sent
//! ```
//! Both count what batches cost since the owner came to the copy; the copy says up to where they
//! may go, with its answer to the owner and with each acknowledgment. A number that only rises
//! needs no word of what is under way, and none is lost. An owner for whom it is too little has
//! nothing under way any more when it knows that: so it asks, with an empty batch each 100 ms, and
//! the answer says what there is by then.
//!
//! Always true: what was promised and has not come is held until it comes, or the owner comes anew;
//! a batch that costs more than what is left is not sent, and is refused if it comes; only an owner
//! that asks, gets nothing, and of which nothing has moved for [`PATIENCE_NS`] is told that there
//! is no room. Deliberately absent: how much is promised (`core::room`), and what the owner does
//! while it has none.

use crate::adversary::{Bug, has};
use crate::event::{Credit, LogRoom};
use crate::types::Time;

/// A copy says that it has no room when nothing has moved for so long. Ten times what a peer may
/// take for an answer: one that waits for a slow origin gets some room in that time.
pub const PATIENCE_NS: u64 = 10_000_000_000;

/// What a replica was promised.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promise {
    /// It takes room as the volumes of its host do.
    unlimited: bool,
    upto: LogRoom,
    received: LogRoom,
    /// Of batches that have come and are not staged.
    waiting: LogRoom,
    /// Its owner has asked, and is to be answered.
    asked: bool,
    /// Since when it asks, and nothing has moved.
    short: Option<Time>,
    refuses: bool,
}

impl Promise {
    /// The owner comes: it counts from nothing on. What came before may still wait.
    pub fn begin(&mut self, unlimited: bool) {
        *self = Promise {
            unlimited,
            waiting: self.waiting,
            ..Promise::default()
        };
    }

    pub fn is_unlimited(&self) -> bool {
        self.unlimited
    }

    /// What may still come.
    pub fn left(&self) -> LogRoom {
        self.upto.less(self.received)
    }

    /// What is held for it, beside what it has.
    pub fn held(&self) -> LogRoom {
        match self.unlimited {
            true => LogRoom::default(),
            false => self.left().plus(self.waiting),
        }
    }

    pub fn upto(&self) -> LogRoom {
        match self.unlimited {
            true => LogRoom::ALL,
            false => self.upto,
        }
    }

    /// Whether a batch was promised its room.
    pub fn allows(&self, cost: LogRoom) -> bool {
        self.unlimited || self.left().holds(cost)
    }

    pub fn receive(&mut self, cost: LogRoom) {
        assert!(self.allows(cost), "checked by the caller");
        self.received = self.received.plus(cost);
        self.waiting = self.waiting.plus(cost);
    }

    /// A batch that has come waits no longer: it is in the log, or will never be.
    pub fn settle(&mut self, cost: LogRoom) {
        assert!(self.waiting.holds(cost), "it has come");
        self.waiting = self.waiting.less(cost);
    }

    pub fn renew(&mut self, more: LogRoom) {
        assert!(!self.unlimited, "what takes all is promised nothing");
        self.upto = self.upto.plus(more);
    }

    /// Nothing more comes before the owner comes anew.
    pub fn end(&mut self) {
        assert!(
            self.unlimited || self.upto.holds(self.received),
            "nothing has come that was not promised"
        );
        self.upto = self.received;
        (self.short, self.refuses) = (None, false);
    }

    /// Something has come, or has gone.
    pub fn moves(&mut self) {
        (self.short, self.refuses) = (None, false);
    }

    /// The owner says nothing but that it is short.
    pub fn is_asked(&mut self) {
        self.asked = true;
    }

    pub fn take_asked(&mut self) -> bool {
        core::mem::take(&mut self.asked)
    }

    /// The owner has asked, and there is no more for it.
    pub fn asked_in_vain(&mut self, now: Time) {
        let since = *self.short.get_or_insert(now);
        self.refuses = now.since(since) >= PATIENCE_NS;
    }

    /// The owner is to be told that there is no room.
    pub fn refuses(&self) -> bool {
        self.refuses
    }
}

/// What a peer has promised.
#[derive(Clone, Copy, Debug, Default)]
pub struct Purse {
    credit: Credit,
    spent: LogRoom,
    /// There is something to send, nothing is under way, and it does not fit.
    short: bool,
    /// The peer is to be asked, when that was not for a while.
    asks: bool,
}

impl Purse {
    pub fn of(credit: Credit) -> Purse {
        Purse {
            credit,
            ..Purse::default()
        }
    }

    /// The peer says more. True if what the copy may hold is another by a part that matters.
    pub fn hear(&mut self, credit: Credit) -> bool {
        self.credit.upto = self.credit.upto.with(credit.upto, u64::max);
        assert!(
            self.credit.upto.holds(credit.upto),
            "what was promised stays so"
        );
        let before = core::mem::replace(&mut self.credit.most, credit.most);
        let other = |before: u64, now: u64| before.abs_diff(now) > before.min(now) / 16;
        other(before.blocks, credit.most.blocks) || other(before.extents, credit.most.extents)
    }

    /// All that the copy may hold at a time.
    pub fn most(&self) -> LogRoom {
        self.credit.most
    }

    pub fn allows(&self, cost: LogRoom) -> bool {
        let left = self.credit.upto.less(self.spent);
        left.holds(cost) || has(Bug::SendBeyondCredit)
    }

    pub fn spend(&mut self, cost: LogRoom) {
        assert!(self.allows(cost), "checked by the caller");
        self.spent = self.spent.plus(cost);
        self.asks = false;
    }

    /// What is to be sent does not fit, and nothing is under way. True if that is news.
    pub fn is_empty_now(&mut self) -> bool {
        !core::mem::replace(&mut self.short, true)
    }

    /// There is nothing to send.
    pub fn is_not_needed(&mut self) {
        (self.short, self.asks) = (false, false);
    }

    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Some time has passed.
    pub fn ask_if_short(&mut self) -> bool {
        self.asks |= self.short;
        self.asks
    }

    pub fn asks(&self) -> bool {
        self.asks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(blocks: u64, extents: u64) -> LogRoom {
        LogRoom { blocks, extents }
    }

    fn credit(blocks: u64) -> Credit {
        Credit {
            upto: room(blocks, blocks),
            most: room(1000, 1000),
        }
    }

    #[test]
    fn what_was_promised_is_held_until_it_has_come_and_is_staged() {
        let mut promise = Promise::default();
        promise.begin(false);
        assert!(!promise.allows(room(1, 1)));
        promise.renew(room(10, 20));
        assert!(promise.allows(room(10, 20)) && !promise.allows(room(1, 21)));
        promise.receive(room(4, 3));
        assert_eq!(
            (promise.left(), promise.held()),
            (room(6, 17), room(10, 20))
        );
        promise.settle(room(4, 3));
        assert_eq!(promise.held(), room(6, 17));
        promise.receive(room(6, 1));
        // The owner comes anew while that waits.
        promise.begin(false);
        assert_eq!((promise.left(), promise.held()), (room(0, 0), room(6, 1)));
        promise.settle(room(6, 1));
        promise.renew(room(5, 5));
        promise.end();
        assert_eq!(promise.held(), room(0, 0));
        promise.begin(true);
        promise.receive(room(500, 500));
        assert_eq!((promise.held(), promise.upto()), (room(0, 0), LogRoom::ALL));
    }

    #[test]
    fn only_one_that_asks_in_vain_for_long_is_told_that_there_is_no_room() {
        let mut promise = Promise::default();
        promise.begin(false);
        promise.asked_in_vain(Time(5));
        assert!(!promise.refuses());
        promise.moves();
        promise.asked_in_vain(Time(5 + PATIENCE_NS));
        assert!(!promise.refuses(), "it has moved meanwhile");
        promise.asked_in_vain(Time(5 + 2 * PATIENCE_NS));
        assert!(promise.refuses());
        promise.begin(false);
        assert!(!promise.refuses());
    }

    #[test]
    fn an_owner_spends_what_it_has_heard_of_and_asks_when_that_is_too_little() {
        let mut purse = Purse::of(credit(10));
        assert!(purse.allows(room(10, 10)));
        purse.spend(room(8, 2));
        assert!(!purse.allows(room(3, 1)) && !purse.ask_if_short());
        assert!(purse.is_empty_now() && !purse.is_empty_now());
        assert!(purse.ask_if_short() && purse.asks());
        purse.spend(LogRoom::default());
        assert!(!purse.asks() && purse.is_short(), "it has asked");
        assert!(!purse.hear(credit(9)), "of before");
        assert!(!purse.allows(room(3, 1)));
        purse.hear(credit(11));
        purse.is_not_needed();
        purse.spend(room(3, 1));
        assert!(!purse.is_short() && !purse.asks());
        let less = Credit {
            most: room(500, 1000),
            ..credit(11)
        };
        assert!(purse.hear(less) && purse.most() == room(500, 1000));
    }
}
