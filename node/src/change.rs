//! A record that this host wants to make: remembered durably first, then made, then decided.
//!
//! ```text
//! Change::new ─ Remember ─▶ remembered ─ Decide ─▶ decided: won · lost · unwritten · undecided
//! Change::again (after a restart) ─────── Decide ─┘
//! ```
//! Always true: a host has one change of a unit at a time, and begins no other one before it is
//! decided (C20). What it may need counts from its first moment. Deliberately absent: what is
//! wanted of the record, which its two users decide.

use crate::record::{Member, Record};
use crate::vault::Outcome;

/// What the host is to do for a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Keep this over a restart in the place of what was remembered before.
    Remember { record: Record, undecided: bool },
    /// Make this record. `again`: it may have been linked before.
    Decide { record: Record, again: bool },
}

/// How a change has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The record is made, and this host has made it.
    Won(Record),
    /// Another record has its number.
    Lost(Record),
    /// It was never linked, so it never counts.
    Unwritten,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    record: Record,
    deciding: bool,
}

impl Change {
    pub fn new(record: Record) -> (Change, Order) {
        let order = Order::Remember {
            record: record.clone(),
            undecided: true,
        };
        let deciding = false;
        (Change { record, deciding }, order)
    }

    /// What a run before may have linked.
    pub fn again(record: Record) -> (Change, Order) {
        let order = Order::Decide {
            record: record.clone(),
            again: true,
        };
        let deciding = true;
        (Change { record, deciding }, order)
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    /// An acknowledgment under this record would count them.
    pub fn members(&self) -> &[Member] {
        &self.record.members
    }

    pub fn remembered(&mut self) -> Option<Order> {
        if self.deciding {
            return None;
        }
        self.deciding = true;
        let record = self.record.clone();
        let again = false;
        Some(Order::Decide { record, again })
    }

    /// None: it stays undecided, because what lies under its name cannot be read.
    pub fn decided(&self, outcome: Outcome) -> Option<End> {
        assert!(self.deciding, "it was remembered before it was made");
        match outcome {
            Outcome::Won(won) => {
                assert_eq!(won, self.record, "what was won is what was made");
                Some(End::Won(won))
            }
            Outcome::Lost(other) => {
                assert_eq!(other.number, self.record.number, "one number, one record");
                Some(End::Lost(other))
            }
            Outcome::Unwritten => Some(End::Unwritten),
            Outcome::Damaged(_) => None,
        }
    }
}
