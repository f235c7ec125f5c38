//! Who writes a volume: one client at a time, unless it is shared.
//!
//! A client of NBD has the right from its handshake to the end of its last request, a guest on
//! rings from its first ring until its front end has gone. Always true: connections of one client
//! are one; who comes second over NBD is shown a read-only export, and rings of a second client do
//! not start, but those of a guest that goes on, because it is the first one, which has moved. A
//! client that connects again waits for the last request of its connection that was cut off, too.
//! Deliberately absent: what a client is (`peer`), and that rings run at one front end only
//! (`frontend::vhost_user::turn`).

use super::conn::{Conn, Life};
use super::guest::Guest;
use super::listen::ExportTable;
use super::slots::Slots;
use super::{Decide, Shard};
use crate::frontend::nbd::{self, Exports};
use crate::frontend::vhost_user::DataError;
use crate::peer::Peer;
use engine::types::VolumeId;

/// The exports as one client finds them.
pub(super) struct Seen<'a> {
    pub exports: &'a ExportTable,
    pub conns: &'a Slots<Box<Conn>>,
    pub guests: &'a Slots<Box<Guest>>,
    pub peer: &'a Peer,
}

impl Seen<'_> {
    /// Who else writes it, so that this client may not.
    pub fn writer(&self, name: &str) -> Option<&Peer> {
        let volume = self.exports.one_writer(name)?;
        let others = |peer: &&Peer| !peer.is_same(self.peer);
        let conns = self.conns.iter().filter_map(|(_, conn)| {
            let writer = conn.writer(volume)?;
            // What is left of its own connection could land late as well.
            (conn.life == Life::Dead || others(&writer)).then_some(writer)
        });
        let guests = self.guests.iter();
        let guests = guests.filter_map(|(_, guest)| guest.writer(volume));
        conns.chain(guests.filter(others)).next()
    }
}

impl Exports for Seen<'_> {
    fn is_held(&self, name: &str) -> bool {
        self.exports.is_held(name)
    }

    fn is_away(&self, name: &str) -> bool {
        self.exports.is_away(name)
    }

    fn find(&self, name: &str) -> Option<nbd::Export> {
        let export = self.exports.find(name)?;
        let Some(writer) = self.writer(name) else {
            return Some(export);
        };
        let description = format!("{}; {writer} writes it", export.description);
        Some(nbd::Export {
            description,
            read_only: true,
            trim: false,
            write_zeroes: false,
            fast_zero: false,
            ..export
        })
    }

    fn list(&self) -> Vec<nbd::Export> {
        self.exports.list()
    }
}

impl<E: Decide> Shard<E> {
    /// Whether a guest may start a ring; the guest itself is lent out. One that `goes_on` has
    /// moved, and what it ran on before may still be there.
    pub(super) fn may_write(&self, guest: &Guest, goes_on: bool) -> Result<(), DataError> {
        let volume = guest.volume();
        if guest.shares() {
            return Ok(());
        }
        let conns = self.conns.iter();
        let conns = conns.filter_map(|(_, conn)| conn.writer(volume));
        let guests = self.guests.iter().filter(|_| !goes_on);
        let guests = guests.filter_map(|(_, guest)| guest.writer(volume));
        let mut writers = conns.chain(guests);
        let Some(writer) = writers.find(|peer| !peer.is_same(guest.peer())) else {
            return Ok(());
        };
        let name = self.name_of(volume);
        Err(DataError::Taken(format!(
            "volume {name}: {writer} writes it, and one client may at a time; end that, or set \
             shared=true"
        )))
    }

    /// Who else writes an export, so that a client may not.
    pub(super) fn other_writer(&self, conn: &Conn, name: &str) -> Option<String> {
        let seen = Seen {
            exports: &self.exports,
            conns: &self.conns,
            guests: &self.guests,
            peer: conn.peer(),
        };
        seen.writer(name).map(Peer::to_string)
    }

    fn name_of(&self, volume: VolumeId) -> &str {
        let known = self.volumes.get(&volume);
        known.map_or("", |volume| volume.name.as_str())
    }
}
