//! A host that may keep a replica, and the link to it.
//!
//! Always true: what is on a link comes in order, and is lost with it. Deliberately absent: when a
//! link breaks, and whether the record names this host, which the run decides.

use super::neighbour::Neighbour;
use crate::devices::Origin;
use crate::machine::{Machine, Sent, Shape};
use crate::rng::Rng;
use engine::event::{Credit, Refusal};
use engine::types::{BufferId, PeerId, RequestId, VolumeId};
use std::collections::VecDeque;

/// A batch that the peer has not answered yet.
pub struct Coming {
    pub request: RequestId,
    pub number: u64,
    pub buffer: BufferId,
    /// A bit of it was changed on its way.
    pub spoiled: bool,
    /// Of which link it came by.
    pub link: u64,
}

pub struct Peer {
    pub id: PeerId,
    pub host: Machine,
    pub replica: Option<VolumeId>,
    /// In its name.
    pub copy: u32,
    pub linked: bool,
    /// The newest link, of all.
    pub link: u64,
    /// The record names it.
    pub member: bool,
    pub counting: Option<RequestId>,
    pub wire: VecDeque<Sent>,
    pub coming: Vec<Coming>,
    pub acks: VecDeque<(u64, Credit)>,
    /// A batch of this link was lost: what comes behind it is refused.
    pub gap: bool,
    /// Blocks that lived in its log when it began again: of what had come to an image just before
    /// some may be dirty once more.
    pub recovered: u64,
    /// Its own guest.
    pub neighbour: Option<Neighbour>,
}

/// What becomes of a batch.
pub enum Answer {
    Taken,
    /// It was spoiled, or one before it was lost: the link has to end.
    Cut,
}

impl Peer {
    pub fn new(rng: &mut Rng, id: PeerId, segments: u32) -> Result<Peer, String> {
        let mut host = Machine::new(rng, Shape::without_lines(segments))?;
        // The disk has the first place at each host.
        host.devices.origins.push(Origin::default());
        Ok(Peer {
            id,
            host,
            replica: None,
            copy: 0,
            linked: false,
            link: 0,
            member: false,
            counting: None,
            wire: VecDeque::new(),
            coming: Vec::new(),
            acks: VecDeque::new(),
            gap: false,
            recovered: 0,
            neighbour: None,
        })
    }

    /// It was told to count, or does.
    pub fn counts(&self) -> bool {
        self.member || self.counting.is_some()
    }

    /// What is on the link is lost.
    pub fn break_link(&mut self, owner: &mut Machine) {
        self.linked = false;
        self.wire.clear();
        owner.sent.retain(|sent| sent.peer != self.id);
        self.acks.clear();
    }

    /// The answer to the oldest batch, if there is one.
    pub fn answered(&mut self) -> Result<Option<Answer>, String> {
        let Some(first) = self.coming.first() else {
            return Ok(None);
        };
        let Some(answer) = self.host.answer(first.request) else {
            return Ok(None);
        };
        let coming = self.coming.remove(0);
        self.host.memory.buffer_remove(coming.buffer);
        match answer {
            Ok(()) if coming.spoiled => {
                return Err("a batch that was changed on its way is taken".to_owned());
            }
            _ if coming.link != self.link => {}
            Err(Refusal::OutOfRange) if self.gap => return Ok(Some(Answer::Cut)),
            Err(Refusal::Io) if coming.spoiled => return Ok(Some(Answer::Cut)),
            Ok(()) if self.replica.is_none() => {}
            Ok(()) => {
                let credit = self.credit()?;
                self.acks.push_back((coming.number, credit));
            }
            Err(Refusal::Gone) => {}
            Err(refusal) => return Err(format!("a good batch is refused: {refusal}")),
        }
        Ok(Some(Answer::Taken))
    }

    /// What it takes by now.
    pub fn credit(&mut self) -> Result<Credit, String> {
        let replica = self.replica.ok_or("a batch without a replica")?;
        let credit = self.host.engine().credit(replica);
        credit.ok_or_else(|| "no replica".to_owned())
    }
}
