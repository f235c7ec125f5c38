//! What a replay writes, without reading its journal back.
//!
//! A journal of this life was made of the log and of tables in memory a moment ago. As long as both
//! are there its bytes are taken from them, so that the storage is not asked for what it was just
//! given.
//!
//! Always true: the image gets what the journal has. Each entry is compared with its checksum; one
//! that differs, because the epoch has changed since, or that the log does not give, is read from
//! the journal. What is remembered is bounded; the rest is read from the journal as well.
//! Deliberately absent: journals that a start has found, whose log is another one.

use super::Core;
use crate::event::Purpose;
use crate::fetch::{Owner, Want};
use crate::map::Content;
use crate::memory::Place;
use crate::outbox::Cx;
use crate::types::{SECTOR_BYTES, VolumeId};
use crate::volume::batch::Source;
use alloc::vec::Vec;

/// How far entries are in memory.
#[derive(PartialEq, Eq)]
pub(super) enum Brought {
    /// They have to be read from the journal.
    No,
    Now,
    /// The log was asked.
    Later,
}

impl Core {
    /// Brings the entries of a job to its memory from where they came from.
    pub(super) fn bring_entries(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) -> Brought {
        let volume = self.volumes.known_mut(id);
        let (replay, epoch) = volume.replay_from_log();
        let mut wants = Vec::new();
        let mut tables: Vec<(Place, &[u8])> = Vec::new();
        for (at, place) in replay.places_of(job) {
            let (offset, sectors) = (replay.entries[at].offset, replay.entries[at].span.sectors);
            match (replay.sources.get(offset), epoch) {
                (Some(Source::Bytes(bytes)), _) => tables.push((place, bytes)),
                (Some(Source::Epoch(span)), Some(epoch)) if span.sectors == sectors => {
                    let (mut to, mut whole) = (place, true);
                    epoch.map.get(*span, |part, content| {
                        match content {
                            Some(Content::Data(addr)) => wants.push(Want {
                                addr,
                                sectors: part.sectors,
                                to,
                            }),
                            _ => whole = false,
                        }
                        to = to.plus(part.sectors * SECTOR_BYTES);
                    });
                    if !whole {
                        return Brought::No;
                    }
                }
                _ => return Brought::No,
            }
        }
        for (place, bytes) in tables {
            cx.memory.store(place, bytes);
        }
        let owner = Owner::Replay { volume: id, job };
        let parts = (&mut self.log, &mut self.scratch);
        let asked = !wants.is_empty()
            && self
                .fetches
                .start(cx, parts, owner, Purpose::DestageRead, &wants);
        match asked {
            true => Brought::Later,
            false => Brought::Now,
        }
    }

    /// The log has answered.
    pub(super) fn entries_fetched(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32, ok: bool) {
        match ok {
            true => self.entries_there(cx, id, job),
            false => self.entries_differ(id, job),
        }
        self.touched.places(1);
        self.touch(id);
    }

    /// What the log has of them is not what the journal has: that is read.
    pub(super) fn entries_differ(&mut self, id: VolumeId, job: u32) {
        let replay = self.volume(id).replay();
        let entries: Vec<usize> = replay.places_of(job).into_iter().map(|it| it.0).collect();
        for at in &entries {
            let offset = replay.entries[*at].offset;
            replay.sources.forget(offset);
        }
        self.bring_again(id, job);
    }
}
