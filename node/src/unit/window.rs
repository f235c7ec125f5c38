//! The backup window of a unit without copies: its record says that the image rests.
//!
//! ```text
//! Owner ─ Window(true) ─▶ remembered ─▶ decided: open ─ Window(false) ─▶ …: closed
//! ```
//! Always true: the owner goes on with the unit meanwhile; while the window is open, or its record
//! is undecided, the unit is not let go of, because that would bring what is dirty to the image; a
//! record that may be linked is decided before anything else of the unit is begun. Deliberately
//! absent: when the image rests, which the host sees to: before the window is opened, and until it
//! is closed; the window of a unit with copies, see [`crate::set`].

use super::{Action, Cx, State, Unit};
use crate::change::{Change, End, Order};
use crate::message::Body;
use crate::record::Record;
use crate::vault::Outcome;
use alloc::format;

/// The record that is being made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Marking {
    change: Change,
    /// What lies under its name could not be read.
    unread: bool,
}

fn order(cx: &mut Cx<'_>, order: Order) {
    cx.out.push(match order {
        Order::Remember { record, undecided } => Action::Remember { record, undecided },
        Order::Decide { record, again } => Action::Decide { record, again },
    });
}

impl Unit {
    /// A record that opens or closes the window is not decided yet.
    pub fn changes_window(&self) -> bool {
        self.window.is_some()
    }

    pub(super) fn window(&mut self, cx: &mut Cx<'_>, open: bool) {
        let Some(newest) = self.newest.as_ref().filter(|_| self.state == State::Owner) else {
            return;
        };
        if self.window.is_some() || newest.quiesced == open {
            return;
        }
        let record = Record {
            number: newest.number + 1,
            nonce: cx.nonces.fresh(),
            before: newest.nonce,
            owner: Some(self.me.clone()),
            quiesced: open,
            ..newest.clone()
        };
        let (change, first) = Change::new(record);
        let unread = false;
        self.window = Some(Marking { change, unread });
        order(cx, first);
    }

    pub(super) fn window_remembered(&mut self, cx: &mut Cx<'_>) {
        let marking = self.window.as_mut();
        let next = marking.and_then(|it| it.change.remembered());
        next.into_iter().for_each(|next| order(cx, next));
    }

    pub(super) fn window_decided(&mut self, cx: &mut Cx<'_>, outcome: Outcome) {
        let marking = self.window.take().expect("the caller has seen it");
        let record = match marking.change.decided(outcome) {
            Some(End::Won(record) | End::Lost(record)) => record,
            // It was never there: the host may order it again.
            Some(End::Unwritten) => return,
            None => {
                let unread = true;
                self.window = Some(Marking { unread, ..marking });
                return;
            }
        };
        let undecided = false;
        let known = self.newest.as_ref().map_or(0, |newest| newest.number);
        if record.number >= known {
            self.newest = Some(record);
        }
        let record = self.newest.clone().expect("just seen");
        cx.out.push(Action::Remember { record, undecided });
        match self.state {
            State::Owner | State::Draining => self.look_if_deposed(cx),
            _ if self.rests() => self.look(cx),
            _ => {}
        }
    }

    /// What could not be read of the record is read again.
    pub(super) fn window_again(&mut self, cx: &mut Cx<'_>) {
        if let Some(marking) = self.window.as_ref().filter(|it| it.unread) {
            let (change, again) = Change::again(marking.change.record().clone());
            let unread = false;
            self.window = Some(Marking { change, unread });
            order(cx, again);
        }
    }

    /// The unit stays here because of its window; who has asked for it is told.
    pub(super) fn stays_for_window(&mut self, cx: &mut Cx<'_>) -> bool {
        let open = self.newest.as_ref().is_some_and(|newest| newest.quiesced);
        if !open && self.window.is_none() {
            return false;
        }
        if let Some(host) = self.asked_by.take() {
            let name = &self.me.name;
            let why = format!("a backup window of it is open on {name}");
            let body = Body::Denied { why };
            cx.out.push(Action::Send { host, body });
        }
        true
    }
}
