//! What the owner asks of the host that had the volume before, on its way there and back.
//!
//! ```text
//! owner ─▶ asks ─▶ forwarded ─ the other host has answered ─▶ ended ─▶ owner
//!            └── it is not reached ─────────────────────────────┘
//! ```
//!
//! Always true: each step takes any time, and any of those that wait goes first; who asks is told
//! nothing but what the engine of the other host says, or that it is away. Deliberately absent: how
//! long a link takes.

use super::Handed;
use engine::event::{Event, Io, IoError, Refusal};
use engine::types::{BufferId, RequestId};

/// Of a thousand asks, so many do not reach the other host.
const LOST: u64 = 100;

/// What the other host was asked. Where the owner has gone nothing waits for it.
struct Forwarded {
    ask: Option<Io>,
    request: RequestId,
    buffer: BufferId,
}

#[derive(Default)]
pub struct Asks {
    forwarded: Vec<Forwarded>,
    ended: Vec<(Io, Option<Vec<u8>>)>,
}

impl Asks {
    pub fn is_empty(&self) -> bool {
        self.forwarded.is_empty() && self.ended.is_empty()
    }

    /// The owner has gone, and with it who waits.
    pub fn owner_is_gone(&mut self) {
        self.ended.clear();
        self.forwarded.iter_mut().for_each(|it| it.ask = None);
    }

    /// The other host has gone: it answers nothing of this.
    pub fn peer_is_gone(&mut self) {
        let asks = self.forwarded.drain(..).filter_map(|it| it.ask);
        self.ended.extend(asks.map(|ask| (ask, None)));
    }
}

impl Handed {
    /// Something of it goes on.
    pub(super) fn move_asks(&mut self) -> Result<(), String> {
        match self.rng.below(3) {
            0 => self.forward_ask(),
            1 => self.hear_peer(),
            _ => {
                self.end_ask();
                Ok(())
            }
        }
    }

    /// Any of those that wait is sent to the other host.
    fn forward_ask(&mut self) -> Result<(), String> {
        let waiting = self.owner.asks.len() as u64;
        if waiting == 0 {
            return Ok(());
        }
        let at = self.rng.below(waiting) as usize;
        let ask = self.owner.asks.swap_remove(at);
        if !ask.offset.is_multiple_of(4096) || !ask.bytes.is_multiple_of(4096) || ask.bytes == 0 {
            return Err(format!("no whole blocks are asked for: {ask:?}"));
        }
        let former = self.owner.engine().former(self.disk);
        let Some((volume, since)) = former.filter(|_| !self.rng.chance(LOST)) else {
            self.asks.ended.push((ask, None));
            return Ok(());
        };
        let buffer = vec![0xee; ask.bytes as usize];
        let buffer = self.peer.memory.buffer_add(buffer);
        let request = self.peer.request();
        self.peer.apply(Event::ReadLeft {
            request,
            volume,
            since,
            first_block: ask.offset / 4096,
            blocks: ask.bytes / 4096,
            buffer,
        });
        let ask = Some(ask);
        self.asks.forwarded.push(Forwarded {
            ask,
            request,
            buffer,
        });
        Ok(())
    }

    /// What the other host has answered by now.
    fn hear_peer(&mut self) -> Result<(), String> {
        let mut waiting = Vec::new();
        for forwarded in std::mem::take(&mut self.asks.forwarded) {
            let Some(answer) = self.peer.answer(forwarded.request) else {
                waiting.push(forwarded);
                continue;
            };
            let bytes = self.peer.memory.buffer_remove(forwarded.buffer);
            let bytes = match answer {
                Ok(()) => Some(bytes),
                Err(Refusal::Gone) => None,
                Err(refusal) => return Err(format!("what is left is refused: {refusal}")),
            };
            self.counters.served += u64::from(bytes.is_some());
            if let Some(ask) = forwarded.ask {
                self.asks.ended.push((ask, bytes));
            }
        }
        self.asks.forwarded = waiting;
        Ok(())
    }

    /// The owner hears of any that has ended.
    fn end_ask(&mut self) {
        let ended = self.asks.ended.len() as u64;
        if ended == 0 {
            return;
        }
        let at = self.rng.below(ended) as usize;
        let (ask, bytes) = self.asks.ended.swap_remove(at);
        match bytes {
            Some(_) => self.counters.remote += 1,
            None => self.counters.refused += 1,
        }
        self.owner
            .end_ask(&ask, bytes.as_deref().ok_or(IoError::Away));
    }
}
