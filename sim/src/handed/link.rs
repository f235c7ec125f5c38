//! The copy of the volume at the other host, and the link that brings it there.
//!
//! ```text
//! none ─ link ─▶ linked ─ count ─▶ counts ─▶ (taken over)
//!   ▲               │                 │
//!   └── a host has gone ──────────────┘
//! ```
//!
//! Always true: batches come in order and whole; a copy that a host has lost, or that the owner did
//! not see the end of, is thrown away, and the next one is new. Deliberately absent: a link that
//! breaks and goes on; the pair has that.

use super::{Handed, SECTORS};
use crate::machine::expect;
use engine::event::{Command, Credit, Event, Refusal, ReplicaSpec};
use engine::types::{BufferId, PeerId, RequestId, Uuid, VolumeId};
use std::collections::VecDeque;

const PEER: PeerId = PeerId(1);

/// A batch that the other host has not answered.
struct Coming {
    request: RequestId,
    number: u64,
    buffer: BufferId,
}

#[derive(Default)]
pub struct Link {
    replica: Option<VolumeId>,
    /// Names of replicas are used once.
    copies: u32,
    counts: bool,
    counting: Option<RequestId>,
    coming: Vec<Coming>,
    acks: VecDeque<(u64, Credit)>,
}

impl Link {
    /// The copy, if it has all that a flush has promised.
    pub fn counting_replica(&self) -> Option<VolumeId> {
        self.replica.filter(|_| self.counts)
    }

    pub fn is_there(&self) -> bool {
        self.replica.is_some()
    }

    pub fn is_counting(&self) -> bool {
        self.counting.is_some()
    }

    /// Nothing of it goes on; what the copy becomes is another's business.
    fn ends(&mut self) -> Option<VolumeId> {
        let copies = self.copies;
        let ended = std::mem::replace(
            self,
            Link {
                copies,
                ..Link::default()
            },
        );
        ended.replica
    }
}

impl Handed {
    /// A new copy begins, if the other host has room for it.
    pub(super) fn link(&mut self) -> Result<(), String> {
        let shown = self.owner.show(self.disk).ok_or("no volume")?;
        self.link.copies += 1;
        let name = format!("disk@{}", self.link.copies);
        let replica = self.peer.engine().place(&name);
        let spec = ReplicaSpec {
            name,
            origin: "/images/disk.raw".to_owned(),
            uuid: shown.uuid,
            size_bytes: SECTORS * 512,
            lineage: shown.lineage,
            term: self.term,
            destaged: shown.destaged_serial,
            fetched: false,
        };
        let volume = replica;
        let kept = self.peer.order(Command::KeepReplica { volume, spec })?;
        if kept == Err(Refusal::NoRoom) {
            return Ok(());
        }
        expect(Ok(kept))?;
        let have = self.peer.show(replica).and_then(|it| it.replica);
        let (have, credit) = (have.ok_or("no replica")?.end, self.credit(replica)?);
        self.owner.sent.clear();
        let (volume, peer) = (self.disk, PEER);
        expect(self.owner.order(Command::StartPeer {
            volume,
            peer,
            have,
            credit,
        }))?;
        self.link.replica = Some(replica);
        Ok(())
    }

    fn credit(&mut self, replica: VolumeId) -> Result<Credit, String> {
        let credit = self.peer.engine().credit(replica);
        credit.ok_or_else(|| "no replica".to_owned())
    }

    pub(super) fn count(&mut self) {
        let (volume, peer, request) = (self.disk, PEER, self.owner.request());
        self.link.counting = Some(request);
        let command = Command::CountPeer { volume, peer };
        self.owner.apply(Event::Admin { request, command });
    }

    /// A batch comes to the other host.
    pub(super) fn carry(&mut self) {
        let Some(replica) = self.link.replica else {
            return;
        };
        if let Some(sent) = self.owner.sent.pop_front() {
            let number = sent.number;
            let (request, buffer) = self.peer.take(replica, sent);
            self.link.coming.push(Coming {
                request,
                number,
                buffer,
            });
        }
    }

    /// The owner hears that a batch is there.
    pub(super) fn acknowledge(&mut self) {
        if let Some((number, credit)) = self.link.acks.pop_front() {
            let (volume, peer) = (self.disk, PEER);
            self.owner.apply(Event::Replicated {
                volume,
                peer,
                number,
                credit,
            });
        }
    }

    /// What was answered of the link.
    pub(super) fn reap_link(&mut self) -> Result<(), String> {
        while let Some(first) = self.link.coming.first() {
            let Some(answer) = self.peer.answer(first.request) else {
                break;
            };
            expect(Ok(answer))?;
            let coming = self.link.coming.remove(0);
            self.peer.memory.buffer_remove(coming.buffer);
            let replica = self.link.replica.ok_or("a batch without a replica")?;
            let credit = self.credit(replica)?;
            self.link.acks.push_back((coming.number, credit));
        }
        let counted = self.link.counting.and_then(|it| self.owner.answer(it));
        if let Some(answer) = counted {
            expect(Ok(answer))?;
            (self.link.counts, self.link.counting) = (true, None);
        }
        Ok(())
    }

    /// Either host has gone, and the copy goes as well: first the record says so.
    pub(super) fn unlink(&mut self, owner_lives: bool) -> Result<(), String> {
        let Some(replica) = self.link.ends() else {
            return Ok(());
        };
        self.owner.sent.clear();
        if owner_lives {
            let (volume, peer, counts) = (self.disk, PEER, false);
            expect(self.owner.order(Command::StopPeer {
                volume,
                peer,
                counts,
            }))?;
        }
        self.forget(replica)
    }

    /// The owner has let go, and sends no more. Returns the copy, which takes nothing more either.
    pub(super) fn freeze(&mut self) -> Result<VolumeId, String> {
        self.owner.sent.clear();
        let coming = std::mem::take(&mut self.link.coming);
        let volume = self.link.ends().ok_or("no copy")?;
        let term = self.term;
        expect(self.peer.order(Command::Freeze { volume, term }))?;
        for coming in coming {
            let answer = self.peer.answer(coming.request);
            if !matches!(answer, Some(Ok(()) | Err(Refusal::Gone))) {
                return Err(format!("a frozen copy says {answer:?} of a batch"));
            }
            self.peer.memory.buffer_remove(coming.buffer);
        }
        Ok(volume)
    }

    /// The other host forgets what it has of the volume dirty.
    pub(super) fn forget(&mut self, volume: VolumeId) -> Result<(), String> {
        let discard_dirty = true;
        expect(self.peer.order(Command::Detach {
            volume,
            discard_dirty,
        }))
    }

    pub(super) fn name_lineage(&mut self) -> Result<(), String> {
        self.lineages += 1;
        let lineage = Uuid(self.lineages.to_le_bytes());
        let volume = self.disk;
        expect(self.owner.order(Command::NameLineage { volume, lineage }))
    }
}
