//! Room for copies: what this host tells the others of its own, and what it makes of theirs.
//!
//! ```text
//! here:  log ─▶ each second ─▶ every ping           a copy asks in vain ─▶ NoRoom ─▶ its owner
//! owner: pings ─▶ the choice of a place for a copy  NoRoom ─▶ the copy is left out, another place
//! ```
//! Always true: a copy is left out for want of room by the word of its host only; a host is chosen
//! while its last ping tells of enough room, and one that has said that it has none is not chosen
//! before it tells of some. Deliberately absent: what is promised to a copy, which is the engine's;
//! who is chosen of those with room ([`node::choice`]).

use super::Manager;
use super::logs::Neighbour;
use engine::event::Credit;
use engine::types::{BLOCK_BYTES, Uuid, VolumeId};
use node::message::Body;
use node::set;
use std::collections::BTreeMap;
use std::time::Instant;

/// What a place for a copy has at least, and beside what is dirty now: some of the largest batches.
pub(super) const AHEAD_BLOCKS: u64 = (4 << 20) / BLOCK_BYTES;

impl Manager {
    /// Each second: tells the room here, and owners whose copies have none.
    pub(super) fn look_at_room(&mut self) {
        let room = self.logs.room().unwrap_or_default();
        self.post.tell_room(room.free_bytes / BLOCK_BYTES);
        let mut streamed = Vec::new();
        for (copy, kept) in &self.copies {
            if let (Some(volume), Some(inlet)) = (kept.volume(), kept.inlet()) {
                streamed.push((*copy, kept.unit(), volume, inlet));
            }
        }
        let volumes = streamed.iter().map(|it| it.2).collect();
        let views = self.logs.views(volumes);
        for ((copy, unit, _, (host, session)), view) in streamed.into_iter().zip(views) {
            let replica = view.and_then(|view| view.replica);
            if replica.is_some_and(|it| it.no_room) {
                tracing::warn!("copy {copy}: has no room here for what it lacks");
                self.say(host, unit, Body::NoRoom { copy, session });
            }
        }
    }

    /// A copy that is about to be made has room. Its owner hears it if it has none.
    pub(super) fn has_room_for_copy(&mut self, from: Uuid, unit: Uuid, body: &Body) -> bool {
        let Body::Open {
            member, session, ..
        } = body
        else {
            return true;
        };
        let room = self.logs.room().unwrap_or_default();
        if room.begins {
            return true;
        }
        let (copy, session) = (member.copy, *session);
        self.say(from, unit, Body::NoRoom { copy, session });
        false
    }

    /// What a copy takes here, for its owner.
    pub(super) fn credit_here(&self, volume: VolumeId) -> Credit {
        let view = self.logs.view(volume);
        let credit = view.and_then(|view| view.credit);
        credit.unwrap_or_default()
    }

    /// The host of a copy has said that it has no room for it.
    pub(super) fn heard_no_room(&mut self, name: &str, from: Uuid, body: Body) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        let Body::NoRoom { copy, .. } = body else {
            return;
        };
        let stream = owning.streams.get_mut(&from);
        let Some(stream) = stream.filter(|it| it.member.copy == copy) else {
            return;
        };
        stream.watch.fail(super::owning::now());
        (stream.short, stream.dropped) = (false, true);
        owning.refused.insert(from, Instant::now());
        owning.no_room.insert(from);
        let host = self.host(from);
        tracing::warn!(volume = %name, "volume {name}: {host} has no room for copies");
        self.set_event(name, set::Event::Heard { from, body });
    }

    /// Blocks that are enough for a copy of this volume, and what these hosts have for it. One that
    /// had its copy before has what is dirty, or most of it. Keeps the full ones in mind.
    pub(super) fn rooms(&mut self, name: &str, hosts: &[Neighbour]) -> (u64, BTreeMap<Uuid, u64>) {
        let view = self.volume_of(name).and_then(|it| self.logs.view(it));
        let dirty = view.map_or(0, |view| view.dirty_bytes.div_ceil(BLOCK_BYTES));
        let (wanted, mut rooms) = (dirty + AHEAD_BLOCKS, BTreeMap::new());
        let Some(owning) = self.owning(name) else {
            return (wanted, rooms);
        };
        let refused = &owning.refused;
        owning.no_room.retain(|host| refused.contains_key(host));
        for host in hosts {
            // One that has told nothing yet is not known to be full.
            let Some(room) = host.room_blocks else {
                continue;
            };
            let stream = owning.streams.get(&host.host);
            let had = stream.is_some_and(|stream| !stream.dropped);
            let room = room.saturating_add(if had { dirty } else { 0 });
            rooms.insert(host.host, room);
            if room < AHEAD_BLOCKS {
                owning.no_room.insert(host.host);
            }
        }
        (wanted, rooms)
    }

    /// "host-b has no room for copies", of these hosts.
    pub(super) fn no_room_words(&self, hosts: impl Iterator<Item = Uuid>) -> Option<String> {
        let hosts: Vec<String> = hosts.map(|host| self.host(host)).collect();
        match &hosts[..] {
            [] => None,
            [host] => Some(format!("{host} has no room for copies")),
            hosts => Some(format!("{} have no room for copies", hosts.join(" and "))),
        }
    }
}
